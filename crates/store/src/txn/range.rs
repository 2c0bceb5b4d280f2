//! Reads of ranges of ordered tables, serializable without phantoms.
//!
//! ```text
//! read keys ─▶ share each key and the gap below it ─▶ have the leaves changed? ─no─▶ give the records
//!     ▲                                                        │ yes
//!     └────────────────────────────────────────────────────────┘
//! ```
//! At the end of the range the gap below the first key beyond is shared, too. A descending range shares
//! that gap first. Keys that were locked and are not in the second reading stay locked, without need.
//!
//! 1. Who adds a key to the range after the locks were taken finds the gap shared.
//! 2. Who has added a key before has changed a leaf. The change comes before the end of its claim, and
//!    the share of the gap comes after that. So the second look at the leaves sees the change.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use stillpoint_sync::mutant;
use stillpoint_txn::{Discipline, Mode, Slot, TableId, TxError};

use crate::memory::stamp::ABSENT;
use crate::memory::value::ValueRef;
use crate::ordered::locks::Name;
use crate::ordered::{Batch, OrderedIndex, planted};
use crate::participant::Participant;
use crate::table::Table;
use crate::txn::pending::{NONE, Op, OpKind};
use crate::txn::tx::Tx;
use crate::txn::{LockState, Transaction};

/// Keys that are locked together. A reader that stops in a range has locked at most as many keys more.
const BATCH_KEYS: usize = if cfg!(shuttle) { 2 } else { 16 };

/// The records of a range of an ordered table, in the order of their keys or against it. From
/// [`Tx::range`].
///
/// Records are locked as they are read, a few ahead. A transaction that stops early has not locked the
/// rest of the range.
#[derive(Debug)]
pub struct Range<'t> {
    tx: Tx<'t>,
    id: TableId,
    table: Arc<Table>,
    /// The part of the range that is still to be read.
    bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    is_descending: bool,
    has_begun: bool,
    batch: Batch,
    /// Slots of the keys of `batch`.
    slots: Vec<Slot>,
    /// The next key of `batch`.
    next: usize,
}

impl<'w> Tx<'w> {
    /// The records of a range of an ordered table, in the ascending order of their keys. No other
    /// transaction adds, changes or removes a record of the part that was read before this transaction
    /// has ended. Keys are ordered bytewise.
    ///
    /// # Errors
    /// [`TxError::RangeDeclared`] in a transaction with declared keys. [`TxError::NoSuchTable`],
    /// [`TxError::NotOrdered`]. [`TxError::WaitsForItself`] as for [`key`](Self::key).
    pub fn range<'k>(
        &mut self,
        table: TableId,
        bounds: impl RangeBounds<&'k [u8]>,
    ) -> Result<Range<'_>, TxError> {
        self.reborrow().into_range(table, &bounds, false)
    }

    /// As [`range`](Self::range), from the greatest key down.
    ///
    /// # Errors
    /// As [`range`](Self::range).
    pub fn range_descending<'k>(
        &mut self,
        table: TableId,
        bounds: impl RangeBounds<&'k [u8]>,
    ) -> Result<Range<'_>, TxError> {
        self.reborrow().into_range(table, &bounds, true)
    }

    /// As [`range`](Self::range) or [`range_descending`](Self::range_descending), for as long as the
    /// transaction is borrowed.
    ///
    /// # Errors
    /// As [`range`](Self::range).
    pub fn into_range<'k>(
        mut self,
        id: TableId,
        bounds: &impl RangeBounds<&'k [u8]>,
        is_descending: bool,
    ) -> Result<Range<'w>, TxError> {
        let table = self.ordered_table(id)?;
        let bounds = (
            bounds.start_bound().map(|key| key.to_vec()),
            bounds.end_bound().map(|key| key.to_vec()),
        );
        let (batch, slots) = (Batch::default(), Vec::new());
        let has_begun = false;
        Ok(Range { tx: self, id, table, bounds, is_descending, has_begun, batch, slots, next: 0 })
    }

    /// Number of records in a range of an ordered table, in logarithmic time. No other transaction adds
    /// or removes a record of the table before this transaction has ended. No other one even locks a key
    /// of the table for writing: updates wait, too. The answer depends on every commit that it counts.
    ///
    /// # Errors
    /// As [`range`](Self::range). [`TxError::Conflict`], which the body must return: the transaction is
    /// tried again.
    pub fn count<'k>(
        &mut self,
        table: TableId,
        bounds: impl RangeBounds<&'k [u8]>,
    ) -> Result<u64, TxError> {
        let found = self.hold_number(table)?;
        let index = index_of(&found);
        let end = match bounds.end_bound() {
            Bound::Included(key) => index.rank(key, true),
            Bound::Excluded(key) => index.rank(key, false),
            Bound::Unbounded => index.records(),
        };
        let start = match bounds.start_bound() {
            Bound::Included(key) => index.rank(key, false),
            Bound::Excluded(key) => index.rank(key, true),
            Bound::Unbounded => 0,
        };
        let own = self.transaction().own_records(table, |key| bounds.contains(&key));
        let own: i64 = own.iter().map(|(_, added)| added).sum();
        Ok(end.saturating_sub(start).saturating_add_signed(own))
    }

    /// The key of the record of this number in an ordered table, counted from 0 in the order of keys.
    /// `None` if the table has fewer records. Takes logarithmic time, and time for each record that the
    /// transaction itself has added or removed. Locks as [`count`](Self::count) does.
    ///
    /// # Errors
    /// As [`count`](Self::count).
    pub fn nth(&mut self, table: TableId, number: u64) -> Result<Option<Vec<u8>>, TxError> {
        let found = self.hold_number(table)?;
        let index = index_of(&found);
        let mut own = self.transaction().own_records(table, |_| true);
        own.sort_unstable();
        // The number among the records of the index: without those that the transaction has added, and
        // with those that it has removed.
        let mut number = number;
        for (key, added) in own {
            // Records of the transaction before this key, and of the index.
            let before = index.rank(key, false);
            match added {
                1.. if before == number => return Ok(Some(key.to_vec())),
                1.. if before < number => number -= 1,
                ..=0 if before <= number => number += 1,
                _ => break,
            }
        }
        let mut key = Vec::new();
        Ok(index.nth(number, &mut key).then_some(key))
    }

    /// Finds an ordered table, and keeps the number of its records as it is.
    fn hold_number(&mut self, id: TableId) -> Result<Arc<Table>, TxError> {
        let table = self.ordered_table(id)?;
        let (transaction, local) = self.parts();
        let held = transaction.hold_number(local, id, index_of(&table));
        held.inspect_err(|error| transaction.note_end(error))?;
        Ok(table)
    }

    /// Finds an ordered table whose ranges or number the transaction is about to read.
    fn ordered_table(&mut self, id: TableId) -> Result<Arc<Table>, TxError> {
        let (transaction, local) = self.parts();
        if transaction.discipline == Discipline::Declared {
            return Err(TxError::RangeDeclared);
        }
        // A transaction without locks gives way to the holder of the store's permit.
        if transaction.gives_way() {
            local.enter_to_begin()?;
        } else {
            local.enter();
        }
        let found = local.tables.get(id).cloned();
        local.exit();
        let table = found.ok_or(TxError::NoSuchTable(id))?;
        if table.ordered.is_none() {
            return Err(TxError::NotOrdered(id));
        }
        transaction.locked_version = transaction.locked_version.min(local.tables.version);
        transaction.names.note_read(id, table.owner);
        Ok(table)
    }
}

fn index_of(table: &Table) -> &OrderedIndex {
    table.ordered.as_ref().expect("the table is ordered")
}

impl Transaction {
    /// The keys whose records this transaction adds (1) or removes (-1), of those that `is_meant` names.
    fn own_records(&self, table: TableId, is_meant: impl Fn(&[u8]) -> bool) -> Vec<(&[u8], i64)> {
        let mut found = Vec::new();
        for (slot, held) in self.held.iter().enumerate() {
            let index = self.first_key + slot;
            if self.keys.declared()[index].table != table || held.state != LockState::Exclusive {
                continue;
            }
            if held.pending == NONE {
                continue;
            }
            let deletes = |op: &Op| op.kind == OpKind::Delete;
            let deletes = self.pending.op(held.pending).is_some_and(deletes);
            let added = i64::from(held.stamp_word & ABSENT != 0) - i64::from(deletes);
            if added != 0 && is_meant(self.keys.key(index)) {
                found.push((self.keys.key(index), added));
            }
        }
        found
    }

    /// Locks the keys of a batch and the gaps below them. Returns the slots of the keys.
    fn lock_batch(
        &mut self,
        local: &mut Participant,
        (id, table): (TableId, &Table),
        batch: &Batch,
        slots: &mut Vec<Slot>,
    ) -> Result<(), TxError> {
        slots.clear();
        let mut found = [(0, 0); BATCH_KEYS];
        while slots.len() < batch.len() {
            if self.gives_way() {
                local.enter_to_begin()?;
            } else {
                local.enter();
            }
            let is_changed = local.tables.version > self.locked_version;
            let checked = if is_changed { self.check_tables(local) } else { Ok(()) };
            if checked.is_ok() {
                find_cells(local, (id, table), batch, &mut found);
                self.lock_free(local, id, (batch, &found), slots);
            }
            local.exit();
            checked?;
            if slots.len() < batch.len() {
                // Another transaction holds a lock, or the key has no cell any more.
                let key = batch.key(slots.len());
                let slot = Tx::new(self, local).key(id, key, Mode::Read)?;
                self.share_gap(local, id, key)?;
                slots.push(slot);
            }
        }
        Ok(())
    }

    /// Locks the next keys of a batch, up to the first whose locks are not free. Call this inside the
    /// read section in which the cells were found.
    fn lock_free(
        &mut self,
        local: &mut Participant,
        id: TableId,
        (batch, found): (&Batch, &[(u64, u64); BATCH_KEYS]),
        slots: &mut Vec<Slot>,
    ) {
        for (number, &(hash, cell)) in found.iter().enumerate().take(batch.len()).skip(slots.len())
        {
            let key = batch.key(number);
            let slot = match self.slot_of_key(id, key) {
                Some(slot) => Some(Slot(slot as u32)),
                None => self.take_free(local, (id, key), cell),
            };
            let Some(slot) = slot else { return };
            if !self.share_free_gap(local, hash) {
                return;
            }
            slots.push(slot);
        }
    }
}

/// Finds hashes and probable cells of some keys, and prefetches the lines that their locks need.
fn find_cells(
    local: &Participant,
    (id, table): (TableId, &Table),
    batch: &Batch,
    found: &mut [(u64, u64); BATCH_KEYS],
) {
    let mut buckets = [0; BATCH_KEYS];
    for (number, bucket) in buckets.iter_mut().enumerate().take(batch.len()) {
        let hash = local.store.hash(id, batch.key(number));
        found[number].0 = hash;
        *bucket = table.index.prefetch(hash);
        stillpoint_mem::prefetch(local.store.lock_table().word(Name::gap(hash)));
    }
    for ((hash, cell), &bucket) in found.iter_mut().zip(&buckets).take(batch.len()) {
        *cell = table.index.candidate(bucket, *hash);
        local.store.memory().prefetch(*cell);
    }
}

impl Range<'_> {
    /// The next record: its key, and its value as the transaction sees it. `None` at the end.
    ///
    /// # Errors
    /// [`TxError::Conflict`], which the body must return: the transaction is tried again.
    /// [`TxError::WaitsForItself`], after which the transaction cannot commit.
    pub fn next_record(&mut self) -> Result<Option<(&[u8], ValueRef<'_>)>, TxError> {
        loop {
            while let Some(&slot) = self.slots.get(self.next) {
                self.next += 1;
                if self.tx.value(slot).is_some() {
                    let key = self.batch.key(self.next - 1);
                    return Ok(self.tx.value(slot).map(|value| (key, value)));
                }
            }
            if self.batch.is_end() {
                return Ok(None);
            }
            self.read_on()?;
        }
    }

    /// Reads and locks the next keys.
    fn read_on(&mut self) -> Result<(), TxError> {
        if let Some(last) = self.batch.len().checked_sub(1) {
            let last = Bound::Excluded(self.batch.key(last).to_vec());
            match self.is_descending {
                true => self.bounds.1 = last,
                false => self.bounds.0 = last,
            }
        }
        let Self { tx, id, table, bounds, is_descending, has_begun, batch, slots, next } = self;
        let (transaction, local) = tx.parts();
        let place = (*id, &**table);
        let bounds = (bounds.0.as_ref().map(|key| &key[..]), bounds.1.as_ref().map(|key| &key[..]));
        *next = 0;
        slots.clear();
        let is_first = !std::mem::replace(has_begun, true);
        let locked = match (*is_descending, is_first) {
            (true, true) => lock_beyond(transaction, local, place, bounds.1, batch),
            _ => Ok(()),
        };
        let locked = locked.and_then(|()| {
            let read = |batch: &mut Batch| match *is_descending {
                true => index_of(table).read_descending(bounds, BATCH_KEYS, batch),
                false => index_of(table).read_ascending(bounds, BATCH_KEYS, batch),
            };
            lock_what_is_read(transaction, local, (place, !*is_descending), read, (batch, slots))
        });
        locked.inspect_err(|error| transaction.note_end(error))
    }
}

/// Reads keys and locks them, until they are still the same after that. At the end of an ascending range
/// also locks the gap beyond.
fn lock_what_is_read(
    transaction: &mut Transaction,
    local: &mut Participant,
    ((id, table), is_ascending): ((TableId, &Table), bool),
    read: impl Fn(&mut Batch),
    (batch, slots): (&mut Batch, &mut Vec<Slot>),
) -> Result<(), TxError> {
    let index = index_of(table);
    let mut again = Batch::default();
    read(batch);
    loop {
        transaction.lock_batch(local, (id, table), batch, slots)?;
        if is_ascending && batch.is_end() {
            transaction.share_gap(local, id, batch.beyond().unwrap_or(b""))?;
        }
        if mutant!(index.is_unchanged(batch), RangeNotReadAgain => true) {
            return Ok(());
        }
        read(&mut again);
        let is_same = again.is_like(batch);
        std::mem::swap(batch, &mut again);
        // Of several leaves, each may have been read at another moment.
        if is_same && index.is_unchanged(batch) {
            return Ok(());
        }
    }
}

/// Shares the gap below the first key above the upper end of a range.
fn lock_beyond(
    transaction: &mut Transaction,
    local: &mut Participant,
    place: (TableId, &Table),
    upper: Bound<&[u8]>,
    batch: &mut Batch,
) -> Result<(), TxError> {
    let start = match upper {
        Bound::Included(key) => Bound::Excluded(key),
        Bound::Excluded(key) => Bound::Included(key),
        Bound::Unbounded => return transaction.share_gap(local, place.0, b""),
    };
    let index = index_of(place.1);
    let mut again = Batch::default();
    let read = |batch: &mut Batch| index.read_ascending((start, Bound::Unbounded), 1, batch);
    read(batch);
    loop {
        let name = if batch.len() > 0 { batch.key(0) } else { b"" };
        transaction.share_gap(local, place.0, name)?;
        read(&mut again);
        let is_same = again.is_like(batch);
        std::mem::swap(batch, &mut again);
        if is_same && index.is_unchanged(batch) {
            break;
        }
    }
    Ok(())
}
