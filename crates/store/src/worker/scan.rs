//! Visiting the keys of a table while transactions change the table.
//!
//! A read section copies the records of one position of the index. The visitor sees the copies after
//! the section has ended: a visitor may take its time and use other sessions, and no grace period
//! waits for a visitor.

use stillpoint_txn::{TableId, TxError};

use crate::memory::cell::OptimisticRead;
use crate::memory::value::ValueRef;
use crate::worker::Worker;

/// Bytes of values that one read section copies, and one value more. The rest of the position is
/// copied by the next section.
const COPIED_BYTES: usize = 1 << 20;

/// Copies of records at one position of the index.
#[derive(Default)]
struct Copied {
    cells: Vec<u64>,
    /// Keys and values, one record after the other.
    bytes: Vec<u8>,
    /// Of each record: its tag, and where its key and its value end.
    records: Vec<(u8, usize, usize)>,
    key: Vec<u8>,
    /// Keys that earlier read sections have copied at the same position.
    earlier: Vec<Vec<u8>>,
}

impl Copied {
    fn visit(&self, visit: &mut dyn FnMut(&[u8], ValueRef<'_>)) {
        let mut start = 0;
        for &(tag, key_end, end) in &self.records {
            let value = ValueRef::from_bytes(tag, &self.bytes[key_end..end]);
            visit(&self.bytes[start..key_end], value);
            start = end;
        }
    }

    /// Notes which keys the next read section passes over.
    #[cold]
    fn note_keys(&mut self) {
        let mut start = 0;
        for &(_, key_end, end) in &self.records {
            self.earlier.push(self.bytes[start..key_end].to_vec());
            start = end;
        }
    }
}

impl Worker {
    /// Visits some keys of a table with their values, from a cursor on (0 at first), and returns
    /// the next cursor, 0 at the end. A key that has a value during the whole walk is visited at
    /// least once. At least `count` cells are looked at, unless the end is reached before; each
    /// value is read without a lock and is consistent in itself. The visitor is called outside of
    /// the read section.
    ///
    /// # Errors
    /// [`TxError::NoSuchTable`].
    pub fn scan(
        &mut self,
        table: TableId,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(&[u8], ValueRef<'_>),
    ) -> Result<u64, TxError> {
        let mut cursor = cursor;
        let mut looked_at = 0;
        let mut copied = Copied::default();
        // Empty positions of the index count as visited, so that a call ends in bounded time.
        while looked_at < count.max(1) {
            let next = self.guarded(|worker| worker.copy_position(table, cursor, &mut copied))?;
            copied.visit(visit);
            let Some(next) = next else {
                copied.note_keys();
                continue;
            };
            looked_at += copied.cells.len().max(1);
            copied.earlier.clear();
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        Ok(cursor)
    }

    /// Copies the records at one position; gives the next position, `None` if some are left.
    fn copy_position(
        &mut self,
        table: TableId,
        cursor: u64,
        copied: &mut Copied,
    ) -> Result<Option<u64>, TxError> {
        let Copied { cells, bytes, records, key, earlier } = copied;
        cells.clear();
        bytes.clear();
        records.clear();
        self.local.enter();
        let Some(found) = self.local.tables.get(table).cloned() else {
            self.local.exit();
            return Err(TxError::NoSuchTable(table));
        };
        let mut next = Some(found.index.scan(cursor, |cell| cells.push(cell)));
        for &number in &*cells {
            if bytes.len() > COPIED_BYTES {
                next = None;
                break;
            }
            let cell = self.local.store.cell(number);
            cell.read_key(key);
            if earlier.contains(key) {
                continue;
            }
            let start = bytes.len();
            bytes.extend_from_slice(key);
            let key_end = bytes.len();
            match cell.read_optimistic(key, bytes) {
                OptimisticRead::Value(tag, stamp) => {
                    self.local.dependencies.add(stamp);
                    records.push((tag, key_end, bytes.len()));
                    continue;
                }
                // The absence of the key is a part of the answer.
                OptimisticRead::Absent(stamp) => self.local.dependencies.add(stamp),
                OptimisticRead::Other => {}
            }
            bytes.truncate(start);
        }
        self.local.exit();
        Ok(next)
    }
}
