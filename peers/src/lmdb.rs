//! LMDB: a copy-on-write B+-tree in a mapped file, with one writer at a time.

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};
use stillpoint_lab::peers::{Embedded, EmbeddedSession, Setup};

use crate::{absent, said};

struct Store {
    environment: Env,
    records: Database<Bytes, Bytes>,
}

pub(crate) fn open(setup: &Setup) -> Result<Box<dyn Embedded>, String> {
    let map_bytes = usize::try_from(setup.data_bytes * 4).map_err(said)?.max(1 << 28);
    let mut options = EnvOpenOptions::new();
    options.map_size(map_bytes.next_multiple_of(1 << 20));
    if !setup.is_durable {
        // SAFETY: without flushes a crash of the machine may damage the file, which nobody opens again.
        unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP) };
    }
    // SAFETY: the directory is new, so no other process maps or changes the file.
    let environment = unsafe { options.open(&setup.dir) }.map_err(said)?;
    let mut transaction = environment.write_txn().map_err(said)?;
    let records = environment.create_database(&mut transaction, None).map_err(said)?;
    transaction.commit().map_err(said)?;
    Ok(Box::new(Store { environment, records }))
}

impl Embedded for Store {
    fn session(&self) -> Result<Box<dyn EmbeddedSession + '_>, String> {
        Ok(Box::new(Session(self)))
    }
}

struct Session<'a>(&'a Store);

impl EmbeddedSession for Session<'_> {
    fn load(&mut self, records: &[([u8; 8], Vec<u8>)]) -> Result<(), String> {
        let mut transaction = self.0.environment.write_txn().map_err(said)?;
        for (key, value) in records {
            self.0.records.put(&mut transaction, key, value).map_err(said)?;
        }
        transaction.commit().map_err(said)
    }

    fn update(
        &mut self,
        keys: &[[u8; 8]],
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), String> {
        let mut transaction = self.0.environment.write_txn().map_err(said)?;
        for key in keys {
            let found = self.0.records.get(&transaction, key).map_err(said)?;
            let mut value = found.ok_or_else(|| absent(*key))?.to_vec();
            change(&mut value);
            self.0.records.put(&mut transaction, key, &value).map_err(said)?;
        }
        transaction.commit().map_err(said)
    }

    fn read(&mut self, key: [u8; 8], see: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        let transaction = self.0.environment.read_txn().map_err(said)?;
        let found = self.0.records.get(&transaction, &key).map_err(said)?;
        see(found.ok_or_else(|| absent(key))?);
        Ok(())
    }
}
