//! Scans the keys of a table while transactions change the table.
//!
//! A read section copies the records of some positions of the index. The visitor sees the copies
//! after the section has ended. So a visitor may be slow and may use other sessions, and no grace
//! period waits for it.

use std::ops::Range;

use stillpoint_format::Label;
use stillpoint_txn::{TableId, TxError};

use crate::memory::cell::OptimisticRead;
use crate::memory::value::ValueRef;
use crate::worker::Worker;

/// Positions of the index whose cells are prefetched together.
const POSITIONS_MAX: usize = 16;
/// Bytes that one read section copies, plus one record. The next section copies the rest.
const COPIED_BYTES: usize = 1 << 20;

/// Buffers of a scan are kept for the next one if they are no longer than this.
const KEPT_BYTES: usize = 64 << 10;

/// What a scan tells of a record beside key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordUse {
    /// Bytes of memory that the record takes, without its share of the index.
    pub bytes: usize,
    /// The [access mark](crate::Tx::access), 0 for none.
    pub access: u32,
}

/// A copied record.
#[derive(Clone, Copy, Debug)]
struct Found {
    label: Label,
    /// Ends of the key and of the value among the copied bytes.
    key_end: usize,
    end: usize,
    used: RecordUse,
}

/// A position of the index.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// End of its cells.
    end: usize,
    next: u64,
    /// Whether its cells were collected more than once, so that two of them may be those of one key.
    is_repeated: bool,
}

/// Copies of records at some positions of the index.
#[derive(Debug, Default)]
pub(super) struct Copied {
    cells: Vec<u64>,
    positions: Vec<Position>,
    /// Keys and values, one record after the other.
    bytes: Vec<u8>,
    records: Vec<Found>,
    key: Vec<u8>,
    /// Keys that earlier read sections have copied at the first position.
    earlier: Vec<Vec<u8>>,
}

/// Position at which the next read section begins.
struct Next {
    cursor: u64,
    is_end: bool,
    /// Number of visited cells. An empty position counts as one, so that a call ends in bounded
    /// time.
    looked_at: usize,
}

impl Copied {
    fn clear(&mut self) {
        self.cells.clear();
        self.positions.clear();
        self.bytes.clear();
        self.records.clear();
    }

    fn visit(&self, visit: &mut dyn FnMut(&[u8], ValueRef<'_>, RecordUse)) {
        let mut start = 0;
        for &Found { label, key_end, end, used } in &self.records {
            let value = ValueRef::from_bytes(label, &self.bytes[key_end..end]);
            visit(&self.bytes[start..key_end], value, used);
            start = end;
        }
    }

    /// Drops the last record if another one from `first` on has its key. The key's cell is being replaced,
    /// and the old cell was copied while it was still alive.
    #[cold]
    fn drop_repeated(&mut self, first: usize) {
        let Some((last, others)) = self.records[first..].split_last() else { return };
        let mut start = first.checked_sub(1).map_or(0, |before| self.records[before].end);
        let begin = others.last().map_or(start, |other| other.end);
        let key = &self.bytes[begin..last.key_end];
        let mut is_repeated = false;
        for other in others {
            is_repeated |= self.bytes[start..other.key_end] == *key;
            start = other.end;
        }
        if is_repeated {
            self.records.pop();
            self.bytes.truncate(begin);
        }
    }

    /// Notes the keys that the next read section skips: those of the records from `first` on.
    #[cold]
    fn note_keys(&mut self, first: usize) {
        let mut start = first.checked_sub(1).map_or(0, |before| self.records[before].end);
        for &Found { key_end, end, .. } in &self.records[first..] {
            self.earlier.push(self.bytes[start..key_end].to_vec());
            start = end;
        }
    }
}

impl Worker {
    /// Visits some keys of a table with their values, from a cursor on (0 at first), and returns
    /// the next cursor, 0 at the end. A key that has a value during the whole scan is visited
    /// exactly once, another key at most once, unless the table is emptied meanwhile. At least
    /// `count` cells are visited, unless the end comes before. Each value is read without a lock
    /// and is consistent in itself. The visitor is called outside of the read section.
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
        self.scan_heads(table, cursor, count, usize::MAX, visit)
    }

    /// As [`scan`](Self::scan), but reads and shows only the first `most` bytes of each value.
    ///
    /// # Errors
    /// [`TxError::NoSuchTable`].
    pub fn scan_heads(
        &mut self,
        table: TableId,
        cursor: u64,
        count: usize,
        most: usize,
        visit: &mut dyn FnMut(&[u8], ValueRef<'_>),
    ) -> Result<u64, TxError> {
        self.scan_uses(table, cursor, count, most, &mut |key, value, _| visit(key, value))
    }

    /// As [`scan_heads`](Self::scan_heads), and shows how each record was used. Every number is a cursor,
    /// so a random number is a random place to draw some records from.
    ///
    /// # Errors
    /// [`TxError::NoSuchTable`].
    pub fn scan_uses(
        &mut self,
        table: TableId,
        cursor: u64,
        count: usize,
        most: usize,
        visit: &mut dyn FnMut(&[u8], ValueRef<'_>, RecordUse),
    ) -> Result<u64, TxError> {
        let mut cursor = cursor;
        let mut left = count.max(1);
        let mut copied = std::mem::take(&mut self.copied);
        while left > 0 {
            copied.clear();
            let next =
                self.guarded(|worker| worker.copy_some(table, cursor, left, most, &mut copied))?;
            copied.visit(visit);
            left = left.saturating_sub(next.looked_at);
            cursor = if next.is_end { 0 } else { next.cursor };
            if next.is_end {
                break;
            }
        }
        if copied.bytes.capacity() <= KEPT_BYTES {
            self.copied = copied;
        }
        Ok(cursor)
    }

    /// Copies records from a position on, and visits about `count` cells.
    fn copy_some(
        &mut self,
        table: TableId,
        cursor: u64,
        count: usize,
        most: usize,
        copied: &mut Copied,
    ) -> Result<Next, TxError> {
        self.local.enter();
        let Some(found) = self.local.tables.get(table).cloned() else {
            self.local.exit();
            return Err(TxError::NoSuchTable(table));
        };
        let mut next = Next { cursor, is_end: false, looked_at: 0 };
        let Copied { cells, positions, .. } = copied;
        while positions.len() < POSITIONS_MAX && next.looked_at < count && !next.is_end {
            let from = cells.len();
            let mut is_repeated = false;
            // An entry that moves meanwhile may be met in both places.
            let visit = |cell| {
                if !cells[from..].contains(&cell) {
                    cells.push(cell);
                }
            };
            next.cursor = found.index.scan(next.cursor, visit, || is_repeated = true);
            next.looked_at += (cells.len() - from).max(1);
            next.is_end = next.cursor == 0;
            positions.push(Position { end: cells.len(), next: next.cursor, is_repeated });
        }
        let memory = self.local.store.memory();
        cells.iter().for_each(|&cell| memory.prefetch(cell));
        memory.arena.prefetch_accesses(cells.iter().copied());
        let all = self.copy_positions((table, cursor), most, copied);
        self.local.exit();
        Ok(all.unwrap_or(next))
    }

    /// Copies the records of the found cells, with the first `most` bytes of each value. If the
    /// records are too long for one read section, returns the place to continue from.
    fn copy_positions(
        &mut self,
        (table, cursor): (TableId, u64),
        most: usize,
        copied: &mut Copied,
    ) -> Option<Next> {
        let (mut cursor, mut from) = (cursor, 0);
        for position in 0..copied.positions.len() {
            let Position { end: to, next, is_repeated } = copied.positions[position];
            let first = copied.records.len();
            for at in from..to {
                if copied.bytes.len() > COPIED_BYTES {
                    copied.note_keys(first);
                    return Some(Next { cursor, is_end: false, looked_at: from });
                }
                self.copy_record(table, at..to, most, copied);
                if is_repeated {
                    copied.drop_repeated(first);
                }
            }
            copied.earlier.clear();
            (cursor, from) = (next, to);
        }
        None
    }

    /// Copies the record of the first of these cells, which are those of one position from there on.
    fn copy_record(
        &mut self,
        table: TableId,
        cells: Range<usize>,
        most: usize,
        copied: &mut Copied,
    ) {
        let Copied { cells: all, bytes, records, key, earlier, .. } = copied;
        let mut number = all[cells.start];
        self.local.store.cell(number).read_key(key);
        if earlier.contains(key) {
            return;
        }
        let start = bytes.len();
        bytes.extend_from_slice(key);
        let key_end = bytes.len();
        loop {
            match self.local.store.cell(number).read_head_optimistic(key, most, bytes) {
                OptimisticRead::Value(label, stamp) => {
                    self.local.dependencies.add(stamp);
                    let cell = self.local.store.cell(number);
                    let access = self.local.store.memory().arena.access(number).unwrap_or(0);
                    let used = RecordUse { bytes: cell.taken_bytes(), access };
                    records.push(Found { label, key_end, end: bytes.len(), used });
                    return;
                }
                // The absence of the key is part of the answer.
                OptimisticRead::Absent(stamp) => {
                    self.local.dependencies.add(stamp);
                    break;
                }
                OptimisticRead::Other => {
                    // Another cell has replaced the key's, or the key is gone. If the scan has met the
                    // other cell too, that cell comes later.
                    let has_key = |&other: &u64| self.local.store.cell(other).has_key(key);
                    if all[cells.start + 1..cells.end].iter().any(has_key) {
                        break;
                    }
                    let hash = self.local.store.hash(table, key);
                    let found = self.local.tables.get(table).expect("found before");
                    match self.local.find(found, key, hash) {
                        Some(other) => number = other,
                        None => break,
                    }
                }
            }
        }
        bytes.truncate(start);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use stillpoint_sync::lock_word::Priority;

    use super::*;
    use crate::memory::arena::Kind;
    use crate::record::NewCell;
    use crate::{CellRules, NoLog, Stamp, Store, StoreConfig};

    /// The scan has met the cell of a key and then the cell that replaces it. The old cell is not dead yet.
    #[test]
    fn a_key_in_two_cells_is_copied_once() {
        const T: TableId = TableId(0);
        let config = StoreConfig { max_memory_bytes: 64 << 20, ..StoreConfig::default() };
        let store = Arc::new(Store::new(&config, CellRules::IN_PLACE).expect("address space"));
        store.add_table(T, 1).expect("address space");
        let log = Box::new(NoLog::default());
        let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
        for key in [b"a", b"b"] {
            worker.transact(|tx| tx.put(T, key, b"old")).expect("memory");
        }
        let table = store.catalog().table(T).expect("the table");
        let cell_of = |key: &[u8]| {
            let hash = store.hash(T, key);
            table.index.find(hash, |cell| store.cell(cell).has_key(key)).expect("a cell")
        };
        let (a, b) = (cell_of(b"a"), cell_of(b"b"));
        worker.local.enter();
        let new = NewCell {
            table: &table,
            hash: store.hash(T, b"a"),
            key: b"a",
            value_len: 3,
            kind: Kind::Record,
            locked_by: Some(Priority::DECLARED),
            status: 0,
        };
        let new = new.make(store.memory(), &mut worker.local.cache).expect("memory");
        store.cell(new).record().put_inline(0.into(), b"new");
        store.cell(new).record().end_write(Stamp::new(9, 0));
        for cells in [vec![a, b, new], vec![b, new, a], vec![a, new, b]] {
            let positions = vec![Position { end: 3, next: 0, is_repeated: true }];
            let mut copied = Copied { cells, positions, ..Copied::default() };
            assert!(worker.copy_positions((T, 0), usize::MAX, &mut copied).is_none());
            let mut keys = Vec::new();
            copied.visit(&mut |key, value, _| keys.push((key.to_vec(), value.to_vec())));
            keys.sort();
            let first =
                if copied.cells[1] == new && copied.cells[0] == b { b"new" } else { b"old" };
            let expected = [(b"a".to_vec(), first.to_vec()), (b"b".to_vec(), b"old".to_vec())];
            assert_eq!(keys, expected);
        }
        worker.local.exit();
    }
}
