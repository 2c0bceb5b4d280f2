//! Places in scans, by number.

use std::collections::VecDeque;

use stillpoint_sync::Mutex;
use stillpoint_txn::TableId;

/// Scans that may be under way. A scan that is older is refused.
const CURSORS: usize = 4096;

/// A place in a scan.
#[derive(Debug)]
struct Cursor {
    number: u64,
    table: TableId,
    /// The last key that was given.
    after: Vec<u8>,
}

/// The places of all scans.
#[derive(Debug, Default)]
pub(crate) struct Cursors(Mutex<(u64, VecDeque<Cursor>)>);

impl Cursors {
    /// A cursor behind a key.
    pub(crate) fn note(&self, table: TableId, after: &[u8]) -> u64 {
        let (last, cursors) = &mut *self.0.lock();
        *last += 1;
        if cursors.len() == CURSORS {
            cursors.pop_front();
        }
        cursors.push_back(Cursor { number: *last, table, after: after.to_vec() });
        *last
    }

    /// The last key before a cursor. `None` if the cursor is unknown or too old.
    pub(crate) fn find(&self, table: TableId, number: u64) -> Option<Vec<u8>> {
        let (_, cursors) = &*self.0.lock();
        let found = cursors.iter().find(|cursor| cursor.number == number && cursor.table == table);
        found.map(|cursor| cursor.after.clone())
    }
}
