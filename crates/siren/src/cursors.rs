//! Places in scans, by number.

use std::collections::VecDeque;

use stillpoint_sync::Mutex;
use stillpoint_txn::TableId;

/// Scans that may be under way. Of more, the ones that have stood still for longest are refused.
const CURSORS: usize = 4096;

/// A place in a scan.
#[derive(Debug)]
struct Cursor {
    number: u64,
    /// The one with which the scan has come.
    before: u64,
    table: TableId,
    /// The last key that was given.
    after: Vec<u8>,
}

/// The places of all scans.
#[derive(Debug, Default)]
pub(crate) struct Cursors(Mutex<(u64, VecDeque<Cursor>)>);

impl Cursors {
    /// A cursor behind a key, for the scan that has come with cursor `from`, 0 if it begins. The scan may
    /// come with `from` once more, but not with the one before. So each scan has two at most.
    pub(crate) fn note(&self, table: TableId, from: u64, after: &[u8]) -> u64 {
        let (last, cursors) = &mut *self.0.lock();
        *last += 1;
        let before = cursors.iter().find(|cursor| cursor.number == from).map(|it| it.before);
        if let Some(at) = cursors.iter().position(|cursor| Some(cursor.number) == before) {
            cursors.remove(at);
        }
        if cursors.len() == CURSORS {
            cursors.pop_front();
        }
        let before = from;
        cursors.push_back(Cursor { number: *last, before, table, after: after.to_vec() });
        *last
    }

    /// The last key before a cursor. `None` if the cursor is unknown or too old.
    pub(crate) fn find(&self, table: TableId, number: u64) -> Option<Vec<u8>> {
        let (_, cursors) = &*self.0.lock();
        let found = cursors.iter().find(|cursor| cursor.number == number && cursor.table == table);
        found.map(|cursor| cursor.after.clone())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_long_scan_does_not_push_out_another() {
        let (cursors, table) = (Cursors::default(), TableId(1));
        let slow = cursors.note(table, 0, b"slow");
        let (mut before, mut now) = (0, 0);
        for _ in 0..2 * CURSORS {
            (before, now) = (now, cursors.note(table, now, b"fast"));
        }
        assert_eq!(cursors.find(table, slow).as_deref(), Some(&b"slow"[..]));
        // A reply may be lost, so the last cursor but one is known, too.
        assert!(cursors.find(table, now).is_some() && cursors.find(table, before).is_some());
        assert_eq!(cursors.find(TableId(2), now), None, "of another table");
        for _ in 0..CURSORS {
            cursors.note(table, 0, b"other");
        }
        assert_eq!(cursors.find(table, slow), None, "as many scans have begun since");
    }
}
