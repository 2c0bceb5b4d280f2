//! redb: a copy-on-write B-tree with one writer at a time.

use std::sync::atomic::{AtomicU64, Ordering};

use redb::{Database, Durability, ReadableTable, TableDefinition};
use stillpoint_io::{Clock, RealClock};
use stillpoint_lab::peers::{Embedded, EmbeddedSession, Setup};

use crate::{absent, said};

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

/// Where a crash may take the last commits away, a commit is flushed after this time, as with our store.
const FLUSH_NS: u64 = 1_000_000_000;

struct Store {
    database: Database,
    is_durable: bool,
    /// The time of the last commit that was flushed.
    flushed_ns: AtomicU64,
}

impl Store {
    /// The durability of the next commit. The caller is the only writer.
    ///
    /// `Durability::Eventual` is left out: on Linux, this version of redb flushes each such commit, too.
    fn durability(&self) -> Durability {
        let now_ns = RealClock.monotonic_ns();
        if self.is_durable || now_ns - self.flushed_ns.load(Ordering::Relaxed) >= FLUSH_NS {
            self.flushed_ns.store(now_ns, Ordering::Relaxed);
            return Durability::Immediate;
        }
        Durability::None
    }
}

pub(crate) fn open(setup: &Setup) -> Result<Box<dyn Embedded>, String> {
    let cache_bytes = usize::try_from(setup.data_bytes * 2).map_err(said)?;
    let database = Database::builder()
        .set_cache_size(cache_bytes.max(64 << 20))
        .create(setup.dir.join("redb"))
        .map_err(said)?;
    let flushed_ns = AtomicU64::new(RealClock.monotonic_ns());
    Ok(Box::new(Store { database, is_durable: setup.is_durable, flushed_ns }))
}

impl Embedded for Store {
    fn session(&self) -> Result<Box<dyn EmbeddedSession + '_>, String> {
        Ok(Box::new(Session(self)))
    }
}

struct Session<'a>(&'a Store);

impl EmbeddedSession for Session<'_> {
    fn load(&mut self, records: &[([u8; 8], Vec<u8>)]) -> Result<(), String> {
        let mut transaction = self.0.database.begin_write().map_err(said)?;
        transaction.set_durability(Durability::Eventual);
        {
            let mut table = transaction.open_table(TABLE).map_err(said)?;
            for (key, value) in records {
                table.insert(&key[..], &value[..]).map_err(said)?;
            }
        }
        transaction.commit().map_err(said)
    }

    fn update(
        &mut self,
        keys: &[[u8; 8]],
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), String> {
        let mut transaction = self.0.database.begin_write().map_err(said)?;
        transaction.set_durability(self.0.durability());
        {
            let mut table = transaction.open_table(TABLE).map_err(said)?;
            for key in keys {
                let found = table.get(&key[..]).map_err(said)?.map(|value| value.value().to_vec());
                let mut value = found.ok_or_else(|| absent(*key))?;
                change(&mut value);
                table.insert(&key[..], &value[..]).map_err(said)?;
            }
        }
        transaction.commit().map_err(said)
    }

    fn read(&mut self, key: [u8; 8], see: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        let transaction = self.0.database.begin_read().map_err(said)?;
        let table = transaction.open_table(TABLE).map_err(said)?;
        let value = table.get(&key[..]).map_err(said)?.ok_or_else(|| absent(key))?;
        see(value.value());
        Ok(())
    }
}
