//! fjall: a log-structured merge tree, with serialized write transactions.

use fjall::{Config, PartitionCreateOptions, PersistMode, TxKeyspace, TxPartitionHandle};
use stillpoint_lab::peers::{Embedded, EmbeddedSession, Setup};

use crate::{absent, said};

struct Store {
    keyspace: TxKeyspace,
    records: TxPartitionHandle,
    durability: Option<PersistMode>,
}

pub(crate) fn open(setup: &Setup) -> Result<Box<dyn Embedded>, String> {
    let keyspace = Config::new(setup.dir.join("fjall"))
        .cache_size((setup.data_bytes * 2).max(64 << 20))
        .open_transactional()
        .map_err(said)?;
    let options = PartitionCreateOptions::default();
    let records = keyspace.open_partition("records", options).map_err(said)?;
    let durability = if setup.is_durable { PersistMode::SyncData } else { PersistMode::Buffer };
    Ok(Box::new(Store { keyspace, records, durability: Some(durability) }))
}

impl Embedded for Store {
    fn session(&self) -> Result<Box<dyn EmbeddedSession + '_>, String> {
        Ok(Box::new(Session(self)))
    }
}

struct Session<'a>(&'a Store);

impl EmbeddedSession for Session<'_> {
    fn load(&mut self, records: &[([u8; 8], Vec<u8>)]) -> Result<(), String> {
        let mut transaction = self.0.keyspace.write_tx().durability(Some(PersistMode::Buffer));
        for (key, value) in records {
            transaction.insert(&self.0.records, &key[..], &value[..]);
        }
        transaction.commit().map_err(said)
    }

    fn update(
        &mut self,
        keys: &[[u8; 8]],
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), String> {
        let mut transaction = self.0.keyspace.write_tx().durability(self.0.durability);
        for key in keys {
            let found = transaction.get(&self.0.records, key).map_err(said)?;
            let mut value = found.ok_or_else(|| absent(*key))?.to_vec();
            change(&mut value);
            transaction.insert(&self.0.records, &key[..], &value[..]);
        }
        transaction.commit().map_err(said)
    }

    fn read(&mut self, key: [u8; 8], see: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        let value = self.0.records.get(key).map_err(said)?.ok_or_else(|| absent(key))?;
        see(&value);
        Ok(())
    }
}
