//! A cell between a commit that writes it, a walk that captures it, and readers without a lock.
//!
//! ```text
//! commit, locked:  marked? ── no ─▶ claim ─ won ─▶ emit      then busy ▶ words ▶ stamp ▶ release
//! walk, no lock:   marked? ── no ─▶ emit ─▶ claim ─ lost ─▶ take back
//! ```
//! The functions here are all that touches the words of a cell that others may look at. The models
//! beside them (`protocol/models.rs`) try every order of their accesses.

#[cfg(all(test, loom))]
mod models;

use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};
use stillpoint_sync::lock_word;

use crate::memory::cell::Cell;
use crate::memory::value::ValueRef;
use crate::store::MARK;

/// What takes the records of a walk.
pub(crate) trait Captured {
    /// A value, which may be dropped again.
    fn emit(&mut self, cell: Cell<'_>, value: ValueRef<'_>);
    /// Drops the last value.
    fn take_back(&mut self);
}

/// Emits a record, unless a commit of the new epoch has handed it out or does so meanwhile. `blind`
/// is a planted bug: marks are not seen.
///
/// Nobody is kept out while the value is copied. Whoever wins the claim of the mark emits, and
/// the walk claims after it has copied; if it loses, it takes the copy back. If it wins, the copy
/// is the value at the point of consistency:
/// - Not older: the commits of the old epoch have left their read sections before the walk began, and
///   what they did happened before its reads.
/// - Not newer, nor torn: a commit of the new epoch overwrites after it has seen the mark, set by
///   itself or by the walk. By itself, and the walk would have lost, since marks are not unset
///   within an epoch. So by the walk: then it has acquired what the walk has released by its
///   claim, and the walk's reads, Relaxed though they are, happened before the overwriting.
///
/// A large value is not copied from the cell but found by it, so that number and length, read
/// before the claim, are what is right or is dropped. Its blocks do not change and outlive the
/// read section, even if the record lets go of them: they are read or kept after the claim.
pub(crate) fn capture(cell: Cell<'_>, mark: u8, blind: bool, to: &mut impl Captured) {
    // Relaxed: what is marked is left alone; if it only looks unmarked, the claim tells.
    let seen = lock_word::status(cell.lock().load(Relaxed)) & MARK;
    if !cell.is_record() || (seen == mark && !blind) {
        return;
    }
    let claim = || lock_word::claim(cell.lock(), MARK, mark) || blind;
    let Some(value) = cell.value() else {
        claim();
        return;
    };
    if value.large_in().is_some() {
        if claim() {
            to.emit(cell, value);
        }
        return;
    }
    to.emit(cell, value);
    if !claim() {
        to.take_back();
    }
}

/// True if the checkpoint may lack the record: the holder of its lock then claims it.
#[inline]
pub(crate) fn is_unmarked(lock: &AtomicU64, mark: u8) -> bool {
    // Acquire: partner of the Release in `claim`; who set the mark has read the value. Not yet set
    // may be stale, and claiming tells.
    lock_word::status(lock.load(Acquire)) & MARK != mark
}

/// True for the one who gives the record to the checkpoint. The caller holds the lock, which keeps
/// the value from changing, so this side claims first and has nothing to take back.
#[inline]
pub(crate) fn claim_locked(lock: &AtomicU64, mark: u8) -> bool {
    lock_word::claim(lock, MARK, mark)
}

/// Gives an exclusive lock back. A plain store suffices while no walk can claim the mark of a locked
/// record. A walk does so in CAPTURE only, and begins after every read section has closed that may have
/// seen the phase before it.
#[inline]
pub(crate) fn release_exclusive(lock: &AtomicU64, claimable: bool) {
    if claimable {
        lock_word::release_exclusive(lock);
    } else {
        lock_word::release_exclusive_unclaimable(lock);
    }
}
