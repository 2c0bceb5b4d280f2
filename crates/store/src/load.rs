//! Filling a store before it is served: checkpoints loaded, logs replayed.
//!
//! Nobody else uses the store meanwhile but other loaders, and no two of them touch one key. The store may
//! also be served while its checkpoints are loaded, and then nothing is replayed: see [`served`].

mod served;

use std::sync::Arc;

use stillpoint_format::{LOG_NONE, Label, Stamp};
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::{lock_word, mutant};
use stillpoint_txn::{TableId, TxError};

use crate::catalog::Absent;
use crate::deletions::Deletions;
use crate::memory::arena::{Allowance, Kind};
use crate::memory::cell::INLINE_VALUE_BYTES_MAX;
use crate::memory::index::Inserted;
use crate::ordered::{ORDERED_KEY_BYTES_MAX, planted};
use crate::participant::Participant;
use crate::record::{self, NewCell, RecordChange};
use crate::store::Store;
use crate::table::Table;
use crate::unloaded::Unentered;
use served::Made;

/// A change of one key, as a log has it. The ranges of a patch are pairs of an offset and bytes.
pub type Replayed<'a> = RecordChange<'a, &'a [(usize, &'a [u8])]>;

/// What a key had before a commit, as the commit's record has it.
#[derive(Clone, Copy, Debug)]
pub enum Before<'a> {
    /// The change that brings it back.
    Change(Replayed<'a>),
    /// The splices that make it of what the commit has left: offset, number of the replaced bytes, and the
    /// bytes that replace them.
    Splices(&'a [(usize, usize, &'a [u8])]),
}

impl Before<'_> {
    /// Whether this has all of it, whatever the key has now.
    fn is_whole(&self) -> bool {
        matches!(self, Self::Change(Replayed::Put { .. } | Replayed::Delete))
    }
}

/// A record of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct KeyImage<'a> {
    /// Keyed hash of table and key.
    pub hash: u64,
    /// The key.
    pub key: &'a [u8],
    /// Tag and deadline of the value.
    pub label: Label,
    /// The value; `None` if the key has none.
    pub value: Option<&'a [u8]>,
    /// The gsn of the record's last writer; 0 if the checkpoint does not say. Then a replay of any
    /// change is newer.
    pub gsn: u64,
}

/// Puts records into a store that is not served yet, or that is being loaded. One per thread.
///
/// A chain of checkpoints is loaded newest first, so the first record of a key is the one that
/// counts. Older checkpoints may have a value of a key that was deleted. So all loaders of a store
/// remember deleted keys together, until the last of them is dropped.
#[derive(Debug)]
pub struct Loader {
    local: Participant,
    /// Whether the present change is a record of a checkpoint.
    loads: bool,
    /// The cells of the records that are being loaded.
    cells: Vec<u64>,
    /// For each of these records, whether a newer checkpoint has deleted its key.
    hidden: Vec<bool>,
    /// Whether the last batch had records of keys that the table has already. Then so will the next.
    meets_known: bool,
    /// Keys that were deleted. `None` once the loader is being dropped.
    deletions: Option<Arc<Deletions>>,
    /// Absent cells whose stamps a replay needs. These cells stay until the store has a worker.
    stamped: Vec<Absent>,
    /// What is not in the store yet, if the store is served while its checkpoints are loaded.
    unentered: Option<Arc<Unentered>>,
    made: Made,
}

/// Notes in the ordered index of a table, if it has one, that a key has got or lost its value.
fn note_present(table: &Table, key: &[u8], is_present: bool) -> Result<(), TxError> {
    let Some(ordered) = &table.ordered else { return Ok(()) };
    mutant!(ReplayedUnordered => return Ok(()));
    if !is_present {
        ordered.set_present(key, false);
        return Ok(());
    }
    if key.len() > ORDERED_KEY_BYTES_MAX {
        let (len, limit) = (key.len(), ORDERED_KEY_BYTES_MAX);
        return Err(TxError::OrderedKeyTooLong { len, limit });
    }
    ordered.load(key).map_err(|_| TxError::IndexFull(table.id))
}

/// Loaded records are closed: no log can lose them.
const ALL_CLOSED: fn(Stamp) -> bool = |_| true;

/// The number in [`Loader::cells`] that stands for a record without a prepared cell.
const NO_CELL: u64 = 0;

impl Loader {
    /// A loader. `None` if all of the store's workers are taken.
    pub fn new(store: Arc<Store>) -> Option<Self> {
        let mut local = Participant::new(store, (false, false))?;
        // Absent cells that another loader has left must stay.
        let stamped = local.reclaim.give_up_absent();
        let deletions = Some(local.store.deletions());
        let (cells, hidden) = (Vec::new(), Vec::new());
        let (unentered, made) = (local.store.unloaded().unentered(), Made::default());
        let (loads, meets_known) = (false, false);
        Some(Self { local, loads, cells, hidden, meets_known, deletions, stamped, unentered, made })
    }

    fn deletions(&self) -> &Deletions {
        self.deletions.as_ref().expect("until the loader is dropped")
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.local.store
    }

    /// Keyed hash of a key.
    pub fn hash(&self, table: TableId, key: &[u8]) -> u64 {
        self.local.store.hash(table, key)
    }

    /// Generation of a table; records of other generations are not to be loaded.
    pub fn generation(&self, table: TableId) -> Option<u32> {
        self.local.tables.get(table).map(|table| table.generation)
    }

    /// Prefetches the index line of a key that will be changed soon.
    #[inline]
    pub fn prefetch(&self, table: TableId, hash: u64) {
        if let Some(table) = self.local.tables.get(table) {
            table.index.prefetch(hash);
        }
    }

    /// Loads records of a checkpoint into a table. A key that the table has already stays as it is,
    /// since the newest checkpoint of a chain is loaded first. Before the first cell enters the
    /// index, all index lines are prefetched and all cells written. So a few dozen records in each
    /// call are fastest.
    ///
    /// # Errors
    /// There is no such table, or too little memory. Some records may have been loaded before the
    /// error.
    pub fn load<'a>(
        &mut self,
        table: TableId,
        records: impl Iterator<Item = KeyImage<'a>> + Clone,
    ) -> Result<(), TxError> {
        self.load_if(table, |_| true, records)
    }

    /// As [`load`](Self::load), for records of a generation of the table. Loads nothing if the table has
    /// another generation by now.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_generation<'a>(
        &mut self,
        table: TableId,
        generation: u32,
        records: impl Iterator<Item = KeyImage<'a>> + Clone,
    ) -> Result<(), TxError> {
        self.load_if(table, |table| table.generation == generation, records)
    }

    fn load_if<'a>(
        &mut self,
        id: TableId,
        counts: impl Fn(&Table) -> bool,
        records: impl Iterator<Item = KeyImage<'a>> + Clone,
    ) -> Result<(), TxError> {
        if self.unentered.is_some() {
            // The store has kept memory for these records.
            self.local.cache.allowance = Allowance::Load;
        }
        // Another loader may look at this one's cells while it searches a bucket.
        self.local.enter();
        let loaded = match self.local.tables.get(id).cloned() {
            Some(table) if counts(&table) => self.load_in_read_section(&table, records),
            Some(_) => Ok(()),
            None => Err(TxError::NoSuchTable(id)),
        };
        self.local.collect_garbage(&ALL_CLOSED);
        self.local.exit();
        loaded
    }

    fn load_in_read_section<'a>(
        &mut self,
        table: &Table,
        records: impl Iterator<Item = KeyImage<'a>> + Clone,
    ) -> Result<(), TxError> {
        let mut hidden = std::mem::take(&mut self.hidden);
        let keys = records.clone().map(|record| (record.hash, record.key));
        self.deletions().find(table.id, keys, &mut hidden);
        let loaded = self
            .note_deletions(table, records.clone(), &mut hidden)
            .and_then(|()| self.load_with_writes(table, records.clone(), &mut hidden));
        self.hidden = hidden;
        loaded
    }

    /// Notes the keys that these records of a checkpoint delete, and hides these records. A key that
    /// the table has was made again, or changed, by a newer checkpoint.
    fn note_deletions<'a>(
        &self,
        table: &Table,
        records: impl Iterator<Item = KeyImage<'a>> + Clone,
        hidden: &mut [bool],
    ) -> Result<(), TxError> {
        // A deletion with a stamp has a cell, as a record has.
        let deletes = |record: &KeyImage<'_>| record.value.is_none() && record.gsn == 0;
        if !records.clone().any(|record| deletes(&record)) {
            return Ok(());
        }
        for record in records.clone().filter(deletes) {
            table.index.prefetch(record.hash);
        }
        for (record, hidden) in records.clone().zip(&mut *hidden) {
            let is_key = |cell| self.local.store.cell(cell).has_key(record.key);
            if deletes(&record) && table.index.find(record.hash, is_key).is_some() {
                *hidden = true;
            }
        }
        let new = records.clone().zip(&*hidden);
        let new = new.filter(|(record, hidden)| deletes(record) && !**hidden);
        let new = new.map(|(KeyImage { hash, key, .. }, _)| (hash, key));
        let may_grow = |more| self.local.store.count_deletions(more);
        self.deletions().add(table.id, new, may_grow)?;
        for (record, hidden) in records.zip(hidden) {
            *hidden = *hidden || deletes(&record);
        }
        Ok(())
    }

    /// Loads records, each with whether its key was deleted.
    fn load_unless_hidden<'a>(
        &mut self,
        table: &Table,
        records: impl Iterator<Item = (KeyImage<'a>, bool)> + Clone,
    ) -> Result<(), TxError> {
        let records = records.filter(|(_, is_hidden)| !is_hidden).map(|(record, _)| record);
        for record in records.clone() {
            table.index.prefetch(record.hash);
        }
        if self.meets_known {
            for record in records.clone() {
                let bucket = table.index.prefetch(record.hash);
                let candidate = table.index.candidate(bucket, record.hash);
                self.local.store.memory().prefetch(candidate);
            }
        }
        // A locked instruction makes an index entry, and waits for all earlier stores. The cells'
        // lines are not in the cache. So all cells are written before the first index entry.
        let mut cells = std::mem::take(&mut self.cells);
        cells.clear();
        let mut built = Ok(());
        for record in records.clone() {
            match self.build_cell(table, &record) {
                Ok(cell) => cells.push(cell),
                Err(error) => {
                    built = Err(error);
                    break;
                }
            }
        }
        let mut added = 0;
        let mut at = 0;
        // After an error no cell is left over: each cell that was built enters the index or is
        // given back.
        let entered = records.zip(&cells).try_for_each(|(record, &cell)| {
            at += 1;
            added += u32::from(self.enter_cell(table, &record, cell)?);
            Ok(())
        });
        for &cell in cells[at..].iter().filter(|&&cell| cell != NO_CELL) {
            self.drop_cell(cell);
        }
        self.cells = cells;
        self.meets_known = (added as usize) < at;
        table.count(self.local.number, i64::from(added));
        table.index.count_loaded(self.local.number, added);
        entered.and(built)
    }

    /// Makes a cell with the record in it, not in the index yet; [`NO_CELL`] for a record without
    /// an inline value. So too, perhaps, for one whose key the table has already. Where cells have several
    /// copies the result is always [`NO_CELL`]: then [`load_unusual`](Self::load_unusual) makes the
    /// cell.
    #[inline]
    fn build_cell(&mut self, table: &Table, record: &KeyImage<'_>) -> Result<u64, TxError> {
        let &KeyImage { hash, key, label, value, gsn } = record;
        let behind = label.deadline_bytes();
        let has_one_copy = self.local.store.rules().copies == 1;
        let is_usual =
            |value: &&[u8]| has_one_copy && value.len() + behind <= INLINE_VALUE_BYTES_MAX;
        let Some(value) = value.filter(is_usual) else {
            return Ok(NO_CELL);
        };
        let is_key = |cell| self.local.store.cell(cell).has_key(key);
        if self.meets_known && table.index.find(hash, is_key).is_some() {
            return Ok(NO_CELL);
        }
        let mut new = self.describe(table, hash, key, value.len() + behind);
        new.status |= self.local.store.loaded_status();
        // Records of a load beside transactions have a gsn only if a write of the log was applied.
        let is_replayed = self.unentered.is_some() && gsn > 0;
        let mark = if is_replayed { self.local.store.replayed_status() } else { 0 };
        new.status |= mark;
        let number = self.make(&new)?;
        if mark != 0 {
            self.local.store.note_mark(number, self.local.store.driver().now().epoch());
        }
        let cell = self.local.store.cell(number).record();
        cell.put_inline(label, value);
        cell.end_write(Stamp::new(gsn, LOG_NONE));
        Ok(number)
    }

    /// True if the record is new and was not counted.
    #[inline]
    fn enter_cell(
        &mut self,
        table: &Table,
        record: &KeyImage<'_>,
        number: u64,
    ) -> Result<bool, TxError> {
        if number == NO_CELL {
            return self.load_unusual(table, record);
        }
        let is_key = |cell| self.local.store.cell(cell).has_key(record.key);
        match table.index.load(record.hash, number, is_key) {
            Inserted::New => note_present(table, record.key, true).map(|()| true),
            Inserted::Existing(existing) => {
                self.leave_existing(table, record.hash, (existing, number));
                Ok(false)
            }
            Inserted::Full => {
                self.drop_cell(number);
                Err(TxError::IndexFull(table.id))
            }
        }
    }

    /// A large value, a deletion with a stamp, or a key that the table has. The record is counted here.
    #[cold]
    fn load_unusual(&mut self, table: &Table, record: &KeyImage<'_>) -> Result<bool, TxError> {
        let &KeyImage { hash, key, label, value, gsn } = record;
        let is_key = |cell| self.local.store.cell(cell).has_key(key);
        if table.index.find(hash, is_key).is_some() {
            return Ok(false);
        }
        match value {
            Some(value) if self.unentered.is_some() => {
                self.enter(table, (hash, key), (Some((label, value)), gsn))?;
            }
            Some(value) => {
                let change = Replayed::Put { label, value };
                self.loads = true;
                let applied = self.apply_in_read_section(table.id, hash, key, gsn, change);
                self.loads = false;
                applied?;
            }
            None => {
                let number = self.insert(table, hash, key, 0)?;
                let stamp = Stamp::new(gsn, LOG_NONE);
                self.local.store.cell(number).record().end_delete(stamp);
                let Table { owner, id, .. } = *table;
                let class = self.local.store.memory().arena.class_of(number);
                let absent = Absent { owner, table: id, is_noted: false, class, cell: number };
                self.stamped.push(absent);
            }
        }
        Ok(false)
    }

    /// Gives back a cell that never was in the index. If the store is not served yet, no other thread has
    /// met the cell.
    fn drop_cell(&mut self, number: u64) {
        if self.unentered.is_some() {
            // A capture of changes may be looking at it.
            return self.local.retire_unpublished(number);
        }
        let Participant { cache, store, .. } = &mut self.local;
        let cell = store.cell(number);
        cell.kill();
        if let Some(block) = cell.long_key_block() {
            cache.free(&store.memory().arena, block);
        }
        cache.free(&store.memory().arena, number);
    }

    /// Loads a record of a checkpoint.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn put(
        &mut self,
        table: TableId,
        hash: u64,
        key: &[u8],
        label: impl Into<Label>,
        value: &[u8],
    ) -> Result<(), TxError> {
        self.apply(table, hash, key, 0, Replayed::Put { label: label.into(), value })
    }

    /// Applies a change with its gsn. Changes of one key must come in the order of their gsns. A
    /// change that is not newer than what the key has is skipped, unless its gsn is 0.
    ///
    /// # Errors
    /// [`TxError::NoSuchTable`], [`TxError::Memory`], [`TxError::IndexFull`]; a key or value that
    /// is too long; a patch outside the value.
    pub fn apply(
        &mut self,
        id: TableId,
        hash: u64,
        key: &[u8],
        gsn: u64,
        change: Replayed<'_>,
    ) -> Result<(), TxError> {
        // Another loader may look at this one's cells while it searches a bucket.
        self.local.enter();
        let applied = self.apply_in_read_section(id, hash, key, gsn, change);
        self.local.collect_garbage(&ALL_CLOSED);
        self.local.exit();
        applied
    }

    /// Undoes the change of the commit with this gsn: `before` says what the key had before. Commits are
    /// undone in descending order of their gsns, and before any change is replayed. Does nothing if the
    /// key has what an earlier commit has left. `has_later` says that all later commits on the key were
    /// undone before, if the key had them. Without that, a part of a value is put back only into what
    /// this commit has left, since it may not fit elsewhere. Returns whether the change was undone.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn undo(
        &mut self,
        id: TableId,
        (hash, key): (u64, &[u8]),
        gsn: u64,
        before: Before<'_>,
        has_later: bool,
    ) -> Result<bool, TxError> {
        self.local.enter();
        let undone = self.undo_in_read_section(id, (hash, key), gsn, (before, has_later));
        // A replay needs the stamp of a key without a value.
        self.stamped.extend(self.local.reclaim.give_up_absent());
        self.local.collect_garbage(&ALL_CLOSED);
        self.local.exit();
        undone
    }

    fn undo_in_read_section(
        &mut self,
        id: TableId,
        (hash, key): (u64, &[u8]),
        gsn: u64,
        (before, has_later): (Before<'_>, bool),
    ) -> Result<bool, TxError> {
        let table = self.local.tables.get(id).ok_or(TxError::NoSuchTable(id))?.clone();
        let found = table.index.find(hash, |cell| self.local.store.cell(cell).has_key(key));
        let Some(number) = found else { return Ok(false) };
        let now = Stamp::from_bits(self.local.store.cell(number).stamp_word()).gsn();
        let fits = before.is_whole() || has_later || now == gsn;
        if now < gsn || !fits {
            return Ok(false);
        }
        // What a replay has up to this commit is in the value of before.
        let spliced;
        let change = match before {
            Before::Change(change) => change,
            Before::Splices(splices) => {
                spliced = self.spliced(id, hash, key, 0, splices)?;
                let Some((label, value)) = &spliced else { return Ok(false) };
                Replayed::Put { label: *label, value }
            }
        };
        self.write_change(&table, number, (hash, key), gsn - 1, change)?;
        Ok(true)
    }

    /// The value of a key, and its label. `None` if the key has none.
    pub fn value(&mut self, id: TableId, hash: u64, key: &[u8]) -> Option<(Label, Vec<u8>)> {
        self.local.enter();
        let table = self.local.tables.get(id);
        let value = table.and_then(|table| {
            let is_key = |cell| self.local.store.cell(cell).has_key(key);
            let value = self.local.store.cell(table.index.find(hash, is_key)?).record().value()?;
            Some((value.label(), value.to_vec()))
        });
        self.local.exit();
        value
    }

    /// Replaces bytes of a key's value, one splice after the other: offset, number of the replaced
    /// bytes, and the bytes that replace them. The change has a gsn, as in [`apply`](Self::apply).
    ///
    /// # Errors
    /// As [`apply`](Self::apply); a splice outside the value.
    pub fn splice(
        &mut self,
        id: TableId,
        hash: u64,
        key: &[u8],
        gsn: u64,
        splices: &[(usize, usize, &[u8])],
    ) -> Result<(), TxError> {
        self.local.enter();
        let applied = self.spliced(id, hash, key, gsn, splices).and_then(|spliced| match spliced {
            Some((label, value)) => {
                let change = Replayed::Put { label, value: &value };
                self.apply_in_read_section(id, hash, key, gsn, change)
            }
            None => Ok(()),
        });
        self.local.collect_garbage(&ALL_CLOSED);
        self.local.exit();
        applied
    }

    /// The value after splices, with its label. `None` if the key's value is newer than these.
    fn spliced(
        &mut self,
        id: TableId,
        hash: u64,
        key: &[u8],
        gsn: u64,
        splices: &[(usize, usize, &[u8])],
    ) -> Result<Option<(Label, Vec<u8>)>, TxError> {
        let table = self.local.tables.get(id).ok_or(TxError::NoSuchTable(id))?;
        let found = table.index.find(hash, |cell| self.local.store.cell(cell).has_key(key));
        let offset = splices.first().map_or(0, |splice| splice.0);
        let missing = TxError::PatchOutsideValue { offset, len: 0 };
        let Some(number) = found else { return Err(missing) };
        let cell = self.local.store.cell(number);
        if gsn != 0 && Stamp::from_bits(cell.stamp_word()).gsn() >= gsn {
            return Ok(None);
        }
        let Some(value) = cell.record().value() else { return Err(missing) };
        let (label, mut value) = (value.label(), value.to_vec());
        for &(offset, removed, bytes) in splices {
            let len = value.len();
            if removed > len || offset > len - removed {
                return Err(TxError::PatchOutsideValue { offset: offset + removed, len });
            }
            value.splice(offset..offset + removed, bytes.iter().copied());
        }
        Ok(Some((label, value)))
    }

    fn apply_in_read_section(
        &mut self,
        id: TableId,
        hash: u64,
        key: &[u8],
        gsn: u64,
        change: Replayed<'_>,
    ) -> Result<(), TxError> {
        let table = self.local.tables.get(id).ok_or(TxError::NoSuchTable(id))?.clone();
        let existing = table.index.find(hash, |cell| self.local.store.cell(cell).has_key(key));
        let number = match existing {
            Some(number) => number,
            None => {
                let len = match change {
                    Replayed::Put { label, value } => value.len() + label.deadline_bytes(),
                    _ => 0,
                };
                self.insert(&table, hash, key, len)?
            }
        };
        let before = self.local.store.cell(number).stamp_word();
        if gsn != 0 && existing.is_some() && Stamp::from_bits(before).gsn() >= gsn {
            return Ok(());
        }
        self.write_change(&table, number, (hash, key), gsn, change)
    }

    fn write_change(
        &mut self,
        table: &Table,
        number: u64,
        (hash, key): (u64, &[u8]),
        gsn: u64,
        change: Replayed<'_>,
    ) -> Result<(), TxError> {
        let stamp = Stamp::new(gsn, LOG_NONE);
        let outgrown = match change {
            Replayed::Patch(ranges) => self.outgrown(number, None, ranges)?,
            Replayed::Until { deadline, ranges } => {
                self.outgrown(number, Some(deadline), ranges)?
            }
            _ => None,
        };
        if let Some((label, whole)) = outgrown {
            let change = Replayed::Put { label, value: &whole };
            return self.write(table, number, hash, key, stamp, change);
        }
        self.write(table, number, hash, key, stamp, change)
    }

    fn insert(
        &mut self,
        table: &Table,
        hash: u64,
        key: &[u8],
        value_len: usize,
    ) -> Result<u64, TxError> {
        let number = self.new_cell(table, hash, key, value_len)?;
        match table.index.insert(self.local.number, hash, number, |_| false, || {}) {
            Inserted::New => Ok(number),
            Inserted::Existing(_) => unreachable!("no key was compared"),
            Inserted::Full => Err(TxError::IndexFull(table.id)),
        }
    }

    /// Describes a new cell for a key.
    fn describe<'a>(
        &self,
        table: &'a Table,
        hash: u64,
        key: &'a [u8],
        value_len: usize,
    ) -> NewCell<'a> {
        let store = &self.local.store;
        let status = store.rules().first_status(store.driver().now());
        NewCell { table, hash, key, value_len, kind: Kind::Record, locked_by: None, status }
    }

    fn make(&mut self, new: &NewCell<'_>) -> Result<u64, TxError> {
        let Participant { cache, store, .. } = &mut self.local;
        Ok(new.make(store.memory(), cache)?)
    }

    fn new_cell(
        &mut self,
        table: &Table,
        hash: u64,
        key: &[u8],
        value_len: usize,
    ) -> Result<u64, TxError> {
        let new = self.describe(table, hash, key, value_len);
        self.make(&new)
    }

    fn write(
        &mut self,
        table: &Table,
        number: u64,
        hash: u64,
        key: &[u8],
        stamp: Stamp,
        change: Replayed<'_>,
    ) -> Result<(), TxError> {
        let was_absent = self.local.store.cell(number).record().is_absent();
        // A fuzzy checkpoint has records with stamps.
        let is_loaded = stamp.gsn() == 0 || self.loads;
        let mark = if is_loaded {
            self.local.store.loaded_status()
        } else {
            self.local.store.replayed_status()
        };
        let mut other = self.describe(table, hash, key, 0);
        // A chain that has the key keeps it when another cell replaces the cell. Relaxed: no other
        // loader touches this key.
        let seen = lock_word::status(self.local.store.cell(number).lock().load(Relaxed));
        other.status |= mark | (seen & self.local.store.loaded_status());
        let Participant { cache, store, reclaim, number: worker, .. } = &mut self.local;
        let worker = *worker;
        let place = (number, store.rules().write, store.driver().now());
        let replaced = record::apply(store.memory(), cache, place, change, stamp, other)?;
        let is_first = match replaced {
            Some(_) => {
                reclaim.retire_cell(table.owner, number);
                mark != 0
            }
            None => mark != 0 && lock_word::claim(store.cell(number).lock(), mark, mark),
        };
        if is_first && !is_loaded {
            store.note_mark(replaced.unwrap_or(number), store.driver().now().epoch());
        }
        if matches!(change, Replayed::Delete) {
            self.local.add_absent(table.owner, table.id, number);
        }
        match change.added_records(was_absent) {
            0 => {}
            added => {
                table.count(worker, added);
                note_present(table, key, added > 0)?;
            }
        }
        Ok(())
    }

    /// The whole value after a patch, with its label, if the patched value does not fit its cell together
    /// with its deadline. `deadline` is another one of the key, 0 for none.
    ///
    /// # Errors
    /// A range begins outside the value, or the key has none.
    fn outgrown(
        &self,
        number: u64,
        deadline: Option<u64>,
        ranges: &[(usize, &[u8])],
    ) -> Result<Option<(Label, Vec<u8>)>, TxError> {
        let record = self.local.store.cell(number).record();
        let value = record.value();
        let mut len = value.map_or(0, |value| value.len());
        for &(offset, bytes) in ranges {
            if value.is_none() || offset > len {
                return Err(TxError::PatchOutsideValue { offset, len });
            }
            len = len.max(offset + bytes.len());
        }
        if deadline.is_some() && value.is_none() {
            return Err(TxError::PatchOutsideValue { offset: 0, len: 0 });
        }
        let stays = || match deadline {
            None => record.can_patch_to(len),
            Some(deadline) => record.can_have_until(len, deadline),
        };
        let Some(value) = value.filter(|_| !stays()) else {
            return Ok(None);
        };
        let mut whole = value.to_vec();
        whole.resize(len, 0);
        for &(offset, bytes) in ranges {
            whole[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        let label = value.label();
        let deadline = deadline.unwrap_or(label.deadline);
        Ok(Some((Label { deadline, ..label }, whole)))
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if let Some(share) = self.deletions.take() {
            self.local.store.release_deletions(share);
        }
        self.local.finish_reclaiming(&ALL_CLOSED);
        self.local.store.catalog().leave_absent(self.stamped.drain(..));
    }
}
