//! Loads of many records, which are fast if their keys ascend.

use stillpoint_store::{TableId, TxError};
use stillpoint_txn::RangeBatch;

use super::Session;
use crate::error::Error;
use crate::guards::{Inside, open_on_thread};
use crate::kinds::{Locked, LongWait, WaitLimits};
use crate::shared::Shared;

/// Bytes of records that are loaded at a time. Meanwhile nobody else uses tables of the kind.
const CHUNK_BYTES: usize = 1 << 20;
/// A chunk has at most this part of the limit of the log, as a divisor.
const CHUNK_OF_LIMIT: u64 = 32;
/// Records of one transaction, where records are put one by one.
const PUTS: usize = 64;

impl Session {
    /// Puts many records with tag 0, in their order. Returns their number. A [paged](crate::Kind::Paged) table
    /// takes keys that ascend and are above all of its own in whole pages. No key is searched for then, and the
    /// log gets each page once. Other records are put in transactions of some dozens.
    ///
    /// A load is no transaction. Others may see its first records before it has ended, and an error or a crash
    /// leaves the records up to one of them. While some pages are filled, others wait for their locks in paged
    /// tables. In strict durability the call returns once all records survive any crash.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// use stillpoint::{Config, Engine, Kind};
    /// let mut config = Config::new(directory.path());
    /// config.pool_bytes = Some(16 << 20);
    /// let engine = Engine::open(config)?;
    /// let numbers = engine.table_with("numbers", Kind::Paged)?;
    /// let mut session = engine.session()?;
    /// let records = (0..20_000u32).map(|number| (number.to_be_bytes(), format!("number {number}")));
    /// assert_eq!(session.load_sorted(numbers, records)?, 20_000);
    /// assert_eq!(engine.len(numbers), 20_000);
    /// # drop(session);
    /// # engine.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`transact`](Self::transact). [`LockTimeout`](stillpoint_store::TxError::LockTimeout) if an open
    /// transaction keeps locks in paged tables for long.
    pub fn load_sorted<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        table: TableId,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64, Error> {
        let limit = self.shared.checkpoints.policy().log_limit_bytes / CHUNK_OF_LIMIT;
        let chunk_bytes = CHUNK_BYTES.min(usize::try_from(limit).unwrap_or(usize::MAX));
        let (mut chunk, mut bytes, mut loaded) = (RangeBatch::default(), 0, 0);
        for (key, value) in records {
            let (key, value) = (key.as_ref(), value.as_ref());
            let (key_room, value_room) = chunk.push(0, key.len(), value.len());
            key_room.copy_from_slice(key);
            value_room.copy_from_slice(value);
            bytes += key.len() + value.len();
            if bytes >= chunk_bytes {
                loaded += self.load_chunk(table, &chunk)?;
                chunk.clear();
                bytes = 0;
            }
        }
        Ok(loaded + self.load_chunk(table, &chunk)?)
    }

    /// Loads some records. Returns their number.
    fn load_chunk(&mut self, table: TableId, records: &RangeBatch) -> Result<u64, Error> {
        let mut next = 0;
        while next < records.len() {
            next += self.append_sorted(table, (records, next))?;
            let end = records.len().min(next + PUTS);
            if next < end {
                self.transact(|tx| {
                    (next..end).try_for_each(|number| {
                        let (key, tag, value) = records.record(number);
                        tx.put_tagged(table, key, tag, value)
                    })
                })?;
            }
            next = end;
        }
        Ok(next as u64)
    }

    /// Appends records behind the last one of a table, if its kind takes them so. Returns how many.
    fn append_sorted(
        &mut self,
        table: TableId,
        records: (&RangeBatch, usize),
    ) -> Result<usize, Error> {
        Inside::refuse_in_batch("load_sorted")?;
        let shared = self.shared.clone();
        let kind = self.parts.as_ref().and_then(|parts| parts.kinds.kind_of(table).ok());
        // A transaction of this thread may hold locks in the table.
        if open_on_thread() > 0 || !kind.is_some_and(|kind| kind.takes_sorted()) {
            return Ok(0);
        }
        let limits = self.parts.as_ref().map(|parts| parts.limits.clone());
        let _locked =
            lock_to_load(&shared, table, &limits.unwrap_or_else(|| shared.wait_limits()))?;
        let appended = self.transact(|tx| tx.in_parts().append_sorted(table, records))?;
        // Nobody who reads the records depends on their keys' locks, so they must survive before.
        shared.make_durable(&shared.appended().stamps)?;
        Ok(appended)
    }
}

/// Locks a table as a whole. Before that, waits until the logs have room.
fn lock_to_load<'s>(
    shared: &'s Shared,
    table: TableId,
    limits: &WaitLimits,
) -> Result<Vec<Locked<'s>>, Error> {
    if !shared.open.admits_new() {
        let waited = shared.open.wait_to_begin(1, shared.open.begin_wait());
        waited.map_err(TxError::from)?;
    }
    let mut wait = LongWait::default();
    loop {
        let locked = shared.kinds.lock_tables(&[table], &shared.store, limits.leaves_held)?;
        if let Some(locked) = locked {
            return Ok(locked);
        }
        if limits.leaves_held {
            return Err(TxError::Held.into());
        }
        wait.pause(limits)?;
    }
}
