//! Visiting the keys of a table while transactions change the table.

use crate::error::TxError;
use crate::memory::cell::OptimisticRead;
use crate::memory::value::ValueRef;
use crate::table::TableId;
use crate::worker::Worker;

impl Worker {
    /// Visits some keys of a table with their values, from a cursor on (0 at first), and returns
    /// the next cursor, 0 at the end. A key that has a value during the whole walk is visited at
    /// least once. At least `count` cells are looked at, unless the end is reached before; each
    /// value is read without a lock and is consistent in itself.
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
        self.guarded(|worker| worker.scan_some(table, cursor, count, visit))
    }

    fn scan_some(
        &mut self,
        table: TableId,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(&[u8], ValueRef<'_>),
    ) -> Result<u64, TxError> {
        let mut cursor = cursor;
        let mut looked_at = 0;
        let mut cells = Vec::new();
        let (mut key, mut value) = (Vec::new(), Vec::new());
        // Empty positions of the index count as visited, so that a call ends in bounded time.
        while looked_at < count.max(1) {
            self.local.enter();
            let found = self.local.tables.get(table).cloned();
            let Some(found) = found else {
                self.local.exit();
                return Err(TxError::NoSuchTable(table));
            };
            cells.clear();
            cursor = found.index.scan(cursor, |cell| cells.push(cell));
            looked_at += cells.len().max(1);
            for &number in &cells {
                value.clear();
                let cell = self.local.store.cell(number);
                cell.read_key(&mut key);
                match cell.read_optimistic(&key, &mut value) {
                    OptimisticRead::Value(tag, stamp) => {
                        self.depend_on(stamp);
                        visit(&key, ValueRef::from_bytes(tag, &value));
                    }
                    // The absence of the key is a part of the answer.
                    OptimisticRead::Absent(stamp) => self.depend_on(stamp),
                    OptimisticRead::Other => {}
                }
            }
            self.local.exit();
            if cursor == 0 {
                break;
            }
        }
        Ok(cursor)
    }
}
