//! The requirements of a checkpoint scheme on the cells of a store, as data. The store reads the
//! requirements once, when it is made, so that a commit calls no scheme.
//!
//! | status bit | meaning | rule |
//! |---|---|---|
//! | [`CAPTURED`](status::CAPTURED) | the latest full checkpoint has the record, or lacks it: the meaning alternates | [`WriteRule::SaveBeforeImage`] |
//! | [`SHADOW`](status::SHADOW) | copy 1, or the stable version, is a before-image that the scan has not met | [`WriteRule::KeepShadow`], [`WriteRule::StoreStable`] |
//! | [`DIRTY_EVEN`](status::DIRTY_EVEN), [`DIRTY_ODD`](status::DIRTY_ODD) | the record was written in an epoch of this parity | [`WriteRule::WriteBoth`], [`DirtyRule::ByEpoch`] |
//! | [`TAKEN`](status::TAKEN) | the present checkpoint has the dirty record | [`DirtyRule::ByEpoch`] |
//! | [`CAPTURED`](status::CAPTURED) | the copy of odd epochs is the current one, otherwise that of even epochs: it has the newest value, or will have it once `COPYING` is gone | [`WriteRule::AlternateCopies`], [`WriteRule::WriteAlongside`] |
//! | [`CHAIN_0`](status::CHAIN_0), [`CHAIN_1`](status::CHAIN_1) | a chain of published checkpoints may have the key | [`DirtyRule::ByEpoch`] |
//! | [`WAITS`](status::WAITS), [`WAITS_BESIDE_SHADOW`](status::WAITS_BESIDE_SHADOW) | the absent cell waits for a checkpoint, in the queue of a worker | [`Reuse`] |
//! | [`COPYING`](status::COPYING) | a thread brings the newest value over to the current copy | [`WriteRule::AlternateCopies`], [`WriteRule::WriteAlongside`] |
//! | [`NEXT_COPY`](status::NEXT_COPY) | number of the copy that the next commit writes | [`WriteRule::SwitchCopies`] |

use stillpoint_sync::atomic::AtomicU64;
use stillpoint_sync::lock_word;

use crate::phase::PhaseWord;

/// The status bits of a cell that the store gives a meaning.
pub mod status {
    /// The latest full checkpoint has the record if this bit is that of the phase word. Each full
    /// checkpoint gives the bit the opposite meaning. Under
    /// [`AlternateCopies`](super::WriteRule::AlternateCopies) and
    /// [`WriteAlongside`](super::WriteRule::WriteAlongside): the parity of the epoch whose copy is
    /// current. A commit or a copier has claimed that copy.
    pub const CAPTURED: u8 = 1;
    /// The next commit writes copy 1 if this bit is set, else copy 0. The scheme sets the bit.
    pub const NEXT_COPY: u8 = 1 << 1;
    /// A thread is bringing the newest value over to the copy of the epoch's parity. A commit that
    /// writes this copy waits until the bit is unset. No write rule has both this bit and
    /// [`NEXT_COPY`].
    pub const COPYING: u8 = 1 << 1;
    /// Copy 1, or the stable version, has the value of the point of consistency. The capture scan has not
    /// met it yet.
    pub const SHADOW: u8 = 1 << 2;
    /// The record was written in an even epoch, and no checkpoint has that write. Under
    /// [`WriteBoth`](super::WriteRule::WriteBoth): no capture has merged copy 1 into copy 3.
    pub const DIRTY_EVEN: u8 = 1 << 3;
    /// As [`DIRTY_EVEN`], for an odd epoch and for copy 2.
    pub const DIRTY_ODD: u8 = 1 << 4;
    /// The checkpoint that is under way has the dirty record.
    pub const TAKEN: u8 = 1 << 5;
    /// The chain of checkpoints of this number may have the key. A full checkpoint begins the chain of
    /// the other number.
    pub const CHAIN_0: u8 = 1 << 6;
    /// As [`CHAIN_0`].
    pub const CHAIN_1: u8 = 1 << 7;

    /// The cell of a key without a value waits for a checkpoint, in the queue of one worker. Not under
    /// [`KeepShadow`](super::WriteRule::KeepShadow) and
    /// [`StoreStable`](super::WriteRule::StoreStable), where this bit is [`SHADOW`].
    pub const WAITS: u8 = 1 << 2;
    /// As [`WAITS`], under [`KeepShadow`](super::WriteRule::KeepShadow) and
    /// [`StoreStable`](super::WriteRule::StoreStable).
    pub const WAITS_BESIDE_SHADOW: u8 = 1 << 1;

    /// The bits that a cell takes over from the cell that it replaces while a checkpoint needs the key,
    /// where stores note the chains.
    pub(crate) const MOVED: u8 = DIRTY_EVEN | DIRTY_ODD | TAKEN | CHAIN_0 | CHAIN_1;

    /// The dirty bit of commits of `epoch`.
    pub const fn dirty_in(epoch: u64) -> u8 {
        if epoch & 1 == 0 { DIRTY_EVEN } else { DIRTY_ODD }
    }
}

/// What a commit does with the value that it overwrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRule {
    /// The new value replaces the old one.
    InPlace,
    /// As [`InPlace`](Self::InPlace). The first commit after a point of consistency that changes a
    /// record first emits the old value into the checkpoint's output.
    SaveBeforeImage,
    /// The new value goes to the copy that [`status::NEXT_COPY`] names. The other copy stays.
    SwitchCopies,
    /// The new value goes to the copy of the epoch's parity: 0 or 1. The other copy stays. The
    /// scheme brings over to this copy the records that a checkpoint reads there and that no commit
    /// has written in the epoch.
    AlternateCopies,
    /// As [`InPlace`](Self::InPlace), in copy 0. The first commit after a point of consistency that
    /// changes a record first copies the old value to copy 1.
    KeepShadow,
    /// As [`InPlace`](Self::InPlace). The first commit after a point of consistency that changes a
    /// record first stores its old value in the store's pool, as its stable version.
    StoreStable,
    /// The new value goes to copy 0, and whole to the copy of the epoch's parity: 1 or 2. Copy 3
    /// belongs to the capture scan, which merges the copies of ended epochs into it.
    WriteBoth,
    /// The new value goes to copy 0, and whole to the copy of the epoch's parity: 1 or 2. The
    /// scheme brings records over to this copy as under [`AlternateCopies`](Self::AlternateCopies).
    WriteAlongside,
}

impl WriteRule {
    /// Whether a cell has one value alone, which commits overwrite.
    pub const fn is_in_place(self) -> bool {
        matches!(self, Self::InPlace | Self::SaveBeforeImage)
    }

    /// Whether another cell may replace the cell of a key that has a value. Under the other rules the
    /// cell has copies, or a value of the point of consistency elsewhere, which belong to the cell.
    #[inline]
    pub(crate) fn replaces_present_cells(self) -> bool {
        self.is_in_place()
    }

    /// The copy of this epoch's parity, and the copy whose value is brought over to it. `None` under
    /// rules that bring nothing over.
    pub(crate) fn copies_of(self, epoch: u64) -> Option<(usize, usize)> {
        match self {
            Self::AlternateCopies => Some((alternate_copy(epoch), alternate_copy(epoch + 1))),
            Self::WriteAlongside => Some((second_copy(epoch), 0)),
            _ => None,
        }
    }
}

/// Whether commits note which records they write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirtyRule {
    /// Commits note nothing.
    None,
    /// Each commit sets the dirty bit of its epoch, in every phase. A checkpoint of changes has the
    /// dirty records of the ended epoch: their values, and the deletions of those without a value.
    ByEpoch,
}

/// When a thread other than the holder of a record's lock may change the record's status bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusChanges {
    /// At no time: locks are given back by a plain store.
    Never,
    /// While the store is quiesced: a plain store suffices inside of a read section.
    WhileQuiesced,
    /// In CAPTURE: a plain store suffices in all other phases.
    InCapture,
    /// In PREPARE and in CAPTURE: a plain store suffices in all other phases.
    InPrepareAndCapture,
    /// At any time: locks are given back by an exchange.
    AtAnyTime,
}

/// When the cell of a deleted key may be reused, once no crash can bring the key back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// At once.
    Always,
    /// Outside of captures, which run from RESOLVE to COMPLETE and read the other copies. At any
    /// time if no copy has a value.
    OutsideOfCaptures,
    /// Outside of checkpoints, which run from PREPARE to COMPLETE. A fuzzy capture emits the
    /// deletion of each key that has lost its value meanwhile.
    OutsideOfCheckpoints,
    /// When captures have merged all that commits wrote, or no copy has a value.
    WhenMerged,
    /// When a published checkpoint has the deletion, so that no dirty bit is set. At any time if no
    /// checkpoint has the key ([`Chains`](crate::chains::Chains)).
    WhenClean,
    /// As both [`WhenClean`](Self::WhenClean) and [`OutsideOfCaptures`](Self::OutsideOfCaptures) say.
    WhenCleanOutsideOfCaptures,
    /// As both [`WhenClean`](Self::WhenClean) and [`OutsideOfCheckpoints`](Self::OutsideOfCheckpoints)
    /// say.
    WhenCleanOutsideOfCheckpoints,
}

impl Reuse {
    /// Whether a published checkpoint must have the deletion first.
    pub const fn waits_for_deletions(self) -> bool {
        matches!(
            self,
            Self::WhenClean
                | Self::WhenCleanOutsideOfCaptures
                | Self::WhenCleanOutsideOfCheckpoints
        )
    }
}

/// How the cells of a store are laid out, written and reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellRules {
    /// Copies of the value in each cell, side by side; as many as the write rule names. Stable versions
    /// in the pool do not count.
    pub copies: usize,
    /// What a commit does with the value that it overwrites.
    pub write: WriteRule,
    /// Whether commits note which records they write.
    pub dirty: DirtyRule,
    /// When others than the holder of the lock may change the status bits.
    pub status_changes: StatusChanges,
    /// When the cell of a deleted key may be reused.
    pub reuse: Reuse,
}

impl CellRules {
    /// One copy, written in place. Nothing is kept for a checkpoint.
    pub const IN_PLACE: Self = Self {
        copies: 1,
        write: WriteRule::InPlace,
        dirty: DirtyRule::None,
        status_changes: StatusChanges::Never,
        reuse: Reuse::Always,
    };

    /// One copy. A capture scan and the commits claim each record once in every epoch.
    pub const BEFORE_IMAGES: Self = Self {
        write: WriteRule::SaveBeforeImage,
        status_changes: StatusChanges::InCapture,
        ..Self::IN_PLACE
    };

    /// The status bit of a cell without a value that waits for a checkpoint.
    pub(crate) fn waits(&self) -> u8 {
        match self.write {
            WriteRule::KeepShadow | WriteRule::StoreStable => status::WAITS_BESIDE_SHADOW,
            _ => status::WAITS,
        }
    }

    /// The status of a cell that is made at this time.
    #[inline]
    pub(crate) fn first_status(&self, now: PhaseWord) -> u8 {
        match self.write {
            WriteRule::SaveBeforeImage | WriteRule::KeepShadow | WriteRule::StoreStable => {
                now.captured()
            }
            WriteRule::AlternateCopies | WriteRule::WriteAlongside => current_in(now.epoch()),
            WriteRule::InPlace | WriteRule::SwitchCopies | WriteRule::WriteBoth => 0,
        }
    }
}

/// The bit [`CAPTURED`](status::CAPTURED) of a cell whose current copy is that of this epoch's parity.
#[inline]
fn current_in(epoch: u64) -> u8 {
    if epoch & 1 == 0 { 0 } else { status::CAPTURED }
}

/// An exchange of status bits that exactly one thread wins: the one that emits the record into the
/// checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// The record is unclaimed if these bits of its status are `unclaimed`.
    seen_mask: u8,
    unclaimed: u8,
    /// The claim makes these bits `claimed`.
    mask: u8,
    claimed: u8,
    /// The bit that notes whether a full checkpoint has the key.
    noted: u8,
    /// Whether the checkpoint also has deletions.
    pub(crate) has_deletions: bool,
}

impl Claim {
    /// The claim for the checkpoint that is under way. Call this after its point of consistency.
    #[inline]
    pub(crate) fn of(now: PhaseWord) -> Self {
        if !now.is_of_changes() {
            return Self::of_all(now);
        }
        let dirty = status::dirty_in(now.epoch() - 1);
        Self {
            seen_mask: dirty | status::TAKEN,
            unclaimed: dirty,
            mask: status::TAKEN,
            claimed: status::TAKEN,
            noted: 0,
            has_deletions: true,
        }
    }

    /// The claim for a checkpoint that has every record with a value.
    #[inline]
    pub(crate) fn of_all(now: PhaseWord) -> Self {
        let claimed = now.captured();
        Self {
            seen_mask: status::CAPTURED,
            unclaimed: claimed ^ status::CAPTURED,
            mask: status::CAPTURED,
            claimed,
            noted: 0,
            has_deletions: false,
        }
    }

    /// The claim of the copy of this epoch's parity, for the thread that writes the copy first.
    #[inline]
    pub(crate) fn of_copy(epoch: u64) -> Self {
        let claimed = current_in(epoch);
        Self {
            seen_mask: status::CAPTURED,
            unclaimed: claimed ^ status::CAPTURED,
            mask: status::CAPTURED,
            claimed,
            noted: 0,
            has_deletions: false,
        }
    }

    /// As this claim. A claim of a full checkpoint also sets the bit `noted` if the record has a value,
    /// and unsets it otherwise.
    #[inline]
    pub(crate) fn noting(self, noted: u8) -> Self {
        if self.has_deletions { self } else { Self { noted, ..self } }
    }

    /// Whether the checkpoint may lack the record with this status.
    #[inline]
    pub(crate) fn is_open(self, status: u8) -> bool {
        status & self.seen_mask == self.unclaimed
    }

    /// Claims the record, and sets the status bits `also`: true for the one thread that wins.
    #[inline]
    pub(crate) fn claim(self, lock: &AtomicU64, also: u8) -> bool {
        let unclaimed = (self.seen_mask, self.unclaimed);
        lock_word::claim_if(lock, unclaimed, self.mask | also, self.claimed | also)
    }

    /// As [`claim`](Self::claim), for a checkpoint that has the record if it has a value.
    #[inline]
    pub(crate) fn claim_record(self, lock: &AtomicU64, has_value: bool) -> bool {
        self.claim_record_with(lock, has_value, 0)
    }

    /// As [`claim_record`](Self::claim_record), and sets the status bits `also`.
    #[inline]
    pub(crate) fn claim_record_with(self, lock: &AtomicU64, has_value: bool, also: u8) -> bool {
        let unclaimed = (self.seen_mask, self.unclaimed);
        let noted = if has_value { self.noted } else { 0 };
        let (mask, claimed) = (self.mask | self.noted, self.claimed | noted);
        lock_word::claim_if(lock, unclaimed, mask | also, claimed | also)
    }

    /// Notes that the checkpoint has taken the record, for a scan that emits each record without a
    /// claim.
    pub(crate) fn note(self, lock: &AtomicU64, has_value: bool) {
        match self.has_deletions {
            true => drop(lock_word::claim(lock, self.mask, self.claimed)),
            false if self.noted == 0 => {}
            false => {
                let noted = if has_value { self.noted } else { 0 };
                lock_word::claim(lock, self.noted, noted);
            }
        }
    }
}

/// The copy that commits of `epoch` write. Call this only under [`WriteRule::AlternateCopies`].
#[inline]
pub const fn alternate_copy(epoch: u64) -> usize {
    (epoch & 1) as usize
}

/// The copy that commits of `epoch` write besides copy 0. Call this only under
/// [`WriteRule::WriteBoth`] and [`WriteRule::WriteAlongside`].
#[inline]
pub const fn second_copy(epoch: u64) -> usize {
    1 + (epoch & 1) as usize
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::status::*;
    use super::*;

    /// The status bits that a store uses under these rules, but for that of waiting cells.
    fn used(write: WriteRule, dirty: DirtyRule) -> [u8; 2] {
        let of_writes = match write {
            WriteRule::InPlace => 0,
            WriteRule::SaveBeforeImage => CAPTURED,
            WriteRule::SwitchCopies => NEXT_COPY,
            WriteRule::AlternateCopies | WriteRule::WriteAlongside => CAPTURED | COPYING,
            WriteRule::KeepShadow | WriteRule::StoreStable => CAPTURED | SHADOW,
            WriteRule::WriteBoth => DIRTY_EVEN | DIRTY_ODD,
        };
        let of_changes = match dirty {
            DirtyRule::None => 0,
            DirtyRule::ByEpoch => DIRTY_EVEN | DIRTY_ODD | TAKEN | CHAIN_0 | CHAIN_1,
        };
        [of_writes, of_changes]
    }

    const WRITES: [WriteRule; 8] = [
        WriteRule::InPlace,
        WriteRule::SaveBeforeImage,
        WriteRule::SwitchCopies,
        WriteRule::AlternateCopies,
        WriteRule::KeepShadow,
        WriteRule::StoreStable,
        WriteRule::WriteBoth,
        WriteRule::WriteAlongside,
    ];

    #[test]
    fn no_bit_means_two_things() {
        for write in WRITES {
            for dirty in [DirtyRule::None, DirtyRule::ByEpoch] {
                if (write, dirty) == (WriteRule::WriteBoth, DirtyRule::ByEpoch) {
                    // No scheme has both: each has dirty bits of its own.
                    continue;
                }
                let [of_writes, of_changes] = used(write, dirty);
                let waits = CellRules { write, dirty, ..CellRules::IN_PLACE }.waits();
                let all = [of_writes, of_changes, waits];
                let count: u32 = all.iter().map(|bits| bits.count_ones()).sum();
                assert_eq!(count, (all[0] | all[1] | all[2]).count_ones(), "{write:?} {dirty:?}");
            }
        }
    }

    /// A scan would miss a value of the point of consistency that lies in another copy or in the pool.
    #[test]
    fn no_cell_with_another_value_is_replaced() {
        let replaced = WRITES.into_iter().filter(|write| write.replaces_present_cells());
        assert!(replaced.eq([WriteRule::InPlace, WriteRule::SaveBeforeImage]));
    }
}
