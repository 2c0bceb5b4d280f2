//! Stable versions in a pool ([`WriteRule::StoreStable`](crate::rules::WriteRule)): CALC as published
//! (SIGMOD 2016, §2.2). A record has one place for its live version, and a reference to its stable
//! version, which is empty at rest.
//!
//! ```text
//! commit, locked:  marked? ── no ─▶ copy to the pool ─▶ refer ─▶ claim, with SHADOW ─ lost ─▶ erase
//! scan, no lock:   marked? ── no ─▶ emit ─▶ claim ─ lost ─▶ take back;  SHADOW? ─▶ emit the version, erase
//! ```
//! The commit claims after the version is whole, and in the same exchange sets SHADOW. So a scan that
//! finds SHADOW finds the version. After that only the scan touches the version.
//!
//! | paper | here |
//! |---|---|
//! | stable_status | CAPTURED or TAKEN: the mark of the claim, whose meaning alternates |
//! | stable version, not empty | SHADOW, and the reference |
//! | add_status: the checkpoint lacks the key | marked without SHADOW, before the scan has met it |
//! | delete_status: only the checkpoint has the key | SHADOW, while the key has no value |
//!
//! In a checkpoint of changes SHADOW without a version stands for a deletion.
//!
//! **No free slot.** The commit waits outside of its read section, with its locks, until the scan has
//! erased enough versions. The scan waits for no lock, so the wait ends. A commit that needs more than
//! the whole pool spoils the checkpoint under way once the log has taken it, and goes on. So does one for
//! which a flush of tables waits. In a spoilt checkpoint commits claim without a version: the scan must not
//! win a claim on what they overwrite.
//!
//! **Dropped tables.** No scan meets the versions of a table that was emptied, if its checkpoint does not
//! want them. Their slots go back with the table's slabs.

use stillpoint_format::Label;

use crate::memory::Memory;
use crate::memory::arena::CellCache;
use crate::memory::blob;
use crate::memory::cell::{Cell, PooledVersion};
use crate::memory::pool::{Pool, SlotCache};
use crate::memory::value::ValueRef;
use crate::rules::{Claim, status};
use crate::store::Store;

/// The pool of a store with stable versions.
pub(crate) fn pool(memory: &Memory) -> &Pool {
    memory.pool.as_ref().expect("the rule comes with a pool")
}

/// Stores the value of a record as its stable version, unless the checkpoint has the record or does not
/// want it. The caller holds the record's lock, and the slots are in the cache.
pub(crate) fn store_version(
    memory: &Memory,
    (slots, cells): (&mut SlotCache, &mut CellCache),
    number: u64,
    claim: Claim,
) {
    let cell = Cell::new(memory, number);
    let (value, stable) = (cell.copy(0).value(), cell.copy(1));
    let mut also = status::SHADOW;
    match value.map(|value| (value, value.large_in())) {
        None if claim.has_deletions => {}
        None => also = 0,
        Some((value, Some((_, blob)))) => {
            blob::retain(memory, blob);
            stable.put_large(value.label(), blob);
        }
        Some((value, None)) => {
            let read = |at: usize, part: &mut [u8]| read_stored(&value, at, part);
            let slot = pool(memory).store(slots, stored_bytes(&value), read);
            stable.put_pooled(value.len(), value.label(), slot);
        }
    }
    if !claim.claim_record_with(cell.lock(), value.is_some(), also) {
        // The scan was first, and has the value. Nobody has seen the version.
        erase_version(memory, (slots, cells), cell);
    }
}

/// Bytes of a value in the pool: the value, and its deadline if it has one.
fn stored_bytes(value: &ValueRef<'_>) -> usize {
    value.len() + value.label().deadline_bytes()
}

/// Fills `part` with what the pool gets of a value, from byte `at` on.
fn read_stored(value: &ValueRef<'_>, at: usize, part: &mut [u8]) {
    let (of_value, behind) = part.split_at_mut(value.len().saturating_sub(at).min(part.len()));
    if !of_value.is_empty() {
        value.read_range(at, of_value);
    }
    let deadline = value.label().deadline.to_le_bytes();
    let first = (at + of_value.len()) - value.len().min(at + of_value.len());
    for (to, from) in behind.iter_mut().zip(&deadline[first..]) {
        *to = *from;
    }
}

/// Claims a record without a version of its value, for a checkpoint that is given up. The caller holds
/// the record's lock.
pub(crate) fn claim_alone(memory: &Memory, number: u64, claim: Claim) {
    let cell = Cell::new(memory, number);
    // If the scan was first, it has the value.
    claim.claim_record(cell.lock(), cell.copy(0).value().is_some());
}

/// Empties the stable version of a cell.
fn erase_version(
    memory: &Memory,
    (slots, cells): (&mut SlotCache, &mut CellCache),
    cell: Cell<'_>,
) {
    let stable = cell.copy(1);
    match stable.pooled() {
        Some(version) => pool(memory).erase(slots, version.slot),
        None => stable.copy_blob().into_iter().for_each(|blob| blob::release(memory, cells, blob)),
    }
    stable.put_nothing();
}

/// What a scan needs for stable versions.
#[derive(Debug, Default)]
pub(crate) struct VersionReader {
    slots: SlotCache,
    value: Vec<u8>,
}

impl VersionReader {
    /// The stable version of a cell with the bit SHADOW. `None` stands for a deletion.
    pub(crate) fn version<'a>(
        &'a mut self,
        memory: &'a Memory,
        cell: Cell<'a>,
    ) -> Option<ValueRef<'a>> {
        let stable = cell.copy(1);
        let Some(PooledVersion { len, tag, has_deadline, slot }) = stable.pooled() else {
            return stable.copy_value();
        };
        let mut label = Label::from(tag);
        let behind = if has_deadline { Label::DEADLINE_BYTES } else { 0 };
        pool(memory).read(slot, len + behind, &mut self.value);
        if let Some(deadline) = self.value[len..].first_chunk() {
            label.deadline = u64::from_le_bytes(*deadline);
        }
        Some(ValueRef::from_bytes(label, &self.value[..len]))
    }

    /// Erases the version. A lane has a reference of its own to the blocks of a large value.
    pub(crate) fn erase(&mut self, memory: &Memory, cells: &mut CellCache, cell: Cell<'_>) {
        erase_version(memory, (&mut self.slots, cells), cell);
    }

    /// Gives all slots back.
    pub(crate) fn give_back(&mut self, memory: &Memory) {
        if let Some(pool) = &memory.pool {
            pool.drain(&mut self.slots);
        }
    }
}

/// Slots that the stable version of a record takes.
pub(crate) fn slots_of(memory: &Memory, number: u64) -> usize {
    let value = Cell::new(memory, number).copy(0).value();
    let in_cell = value.filter(|value| value.large_in().is_none());
    in_cell.map_or(0, |value| Pool::slots_for(stored_bytes(&value)))
}

impl Store {
    /// Bytes of the pool of stable versions, and how many of them are in use: now, and at most since the
    /// last checkpoint ended. All are 0 without a pool.
    pub fn stable_pool_bytes(&self) -> StablePool {
        let Some(pool) = &self.memory().pool else { return StablePool::default() };
        let (used_bytes, peak_bytes) = pool.used_bytes();
        StablePool { bytes: pool.bytes(), used_bytes, peak_bytes }
    }

    /// Whether a commit of `epoch` had no room for its stable versions in the whole pool. The checkpoint
    /// that began this epoch is then given up.
    pub fn exceeds_stable_pool(&self, epoch: u64) -> bool {
        self.memory().pool.as_ref().is_some_and(|pool| pool.was_exceeded(epoch))
    }
}

/// The pool of stable versions, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StablePool {
    /// Reserved from the start.
    pub bytes: usize,
    /// In use now. Up to a few dozen slots for each worker are in its cache, and count.
    pub used_bytes: usize,
    /// In use at most, since the last checkpoint ended.
    pub peak_bytes: usize,
}
