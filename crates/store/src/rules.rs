//! The rules of a checkpoint scheme for the cells of a store, as data. The store reads them once,
//! when it is made, so that a commit calls no scheme.
//!
//! | status bit | meaning | rule |
//! |---|---|---|
//! | [`CAPTURED`](status::CAPTURED) | the checkpoint of epochs of this parity has the record | [`WriteRule::SaveBeforeImage`] |
//! | [`SHADOW`](status::SHADOW) | copy 1 is a before-image that the scan has not met | [`WriteRule::KeepShadow`] |
//! | [`DIRTY_EVEN`](status::DIRTY_EVEN), [`DIRTY_ODD`](status::DIRTY_ODD) | the record was written in an epoch of this parity | [`WriteRule::WriteBoth`], [`DirtyRule::ByEpoch`] |
//! | [`TAKEN`](status::TAKEN) | the present checkpoint has the dirty record | [`DirtyRule::ByEpoch`] |
//! | [`NEXT_COPY`](status::NEXT_COPY) | number of the copy that the next commit writes | [`WriteRule::SwitchCopies`] |

use stillpoint_sync::atomic::AtomicU64;
use stillpoint_sync::lock_word;

/// The status bits of a cell.
pub mod status {
    /// The present checkpoint has the record if this bit is the parity of the epoch.
    pub const CAPTURED: u8 = 1;
    /// The next commit writes copy 1 if this bit is set, else copy 0. The scheme sets the bit.
    pub const NEXT_COPY: u8 = 1 << 1;
    /// Copy 1 has the value of the point of consistency, and the capture scan has not met it yet.
    pub const SHADOW: u8 = 1 << 2;
    /// The record was written in an even epoch, and no checkpoint has that write. Under
    /// [`WriteBoth`](super::WriteRule::WriteBoth): no capture has merged copy 1 into copy 3.
    pub const DIRTY_EVEN: u8 = 1 << 3;
    /// As [`DIRTY_EVEN`], of an odd epoch, and of copy 2.
    pub const DIRTY_ODD: u8 = 1 << 4;
    /// The checkpoint that is under way has the dirty record.
    pub const TAKEN: u8 = 1 << 5;

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
    /// As [`InPlace`](Self::InPlace). But the first commit that changes a record after a point of
    /// consistency first emits the old value to the checkpoint's output.
    SaveBeforeImage,
    /// The new value goes to the copy that [`status::NEXT_COPY`] names. The other copy stays.
    SwitchCopies,
    /// As [`InPlace`](Self::InPlace), in copy 0. But the first commit that changes a record after a
    /// point of consistency first copies the old value to copy 1.
    KeepShadow,
    /// The new value goes to copy 0, and whole to the copy of the epoch's parity: 1 or 2. Copy 3
    /// belongs to the capture scan, which merges the copies of ended epochs into it.
    WriteBoth,
}

/// Whether commits note which records they write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirtyRule {
    /// Commits note nothing.
    None,
    /// Each sets the dirty bit of its epoch, in every phase. A checkpoint has the records of the
    /// ended epoch only: those with a value, and the news that others have none.
    ByEpoch,
}

/// Times at which a thread other than the holder of a record's lock may change the record's status
/// bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusChanges {
    /// Never, so a plain store releases a lock.
    Never,
    /// While the store is quiesced, so a plain store suffices inside of a read section.
    WhileQuiesced,
    /// In CAPTURE, so a plain store suffices in all other phases.
    InCapture,
    /// At any time.
    AtAnyTime,
}

/// Times at which the cell of a deleted key may be reused, after its deletion is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// At once.
    Always,
    /// Not from RESOLVE to COMPLETE, unless no copy has a value: a capture reads the other copies.
    OutsideOfCaptures,
    /// When captures have merged all that commits wrote, or no copy has a value.
    WhenMerged,
    /// When a published checkpoint has the deletion: no dirty bit is set.
    WhenClean,
}

/// Layout, write rule and reuse of a store's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellRules {
    /// Copies of the value in each cell, side by side; as many as the write rule names.
    pub copies: usize,
    /// What a commit does with the value that it overwrites.
    pub write: WriteRule,
    /// Whether commits note which records they write.
    pub dirty: DirtyRule,
    /// Times at which others than the holder of the lock may change the status bits.
    pub status_changes: StatusChanges,
    /// Times at which the cell of a deleted key may be reused.
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

    /// The status of a cell that is made in `epoch`.
    #[inline]
    pub(crate) fn first_status(&self, epoch: u64) -> u8 {
        match self.write {
            _ if self.dirty == DirtyRule::ByEpoch => 0,
            WriteRule::SaveBeforeImage | WriteRule::KeepShadow => captured_in(epoch),
            WriteRule::InPlace | WriteRule::SwitchCopies | WriteRule::WriteBoth => 0,
        }
    }
}

/// The status of records that the checkpoint which began `epoch` has.
#[inline]
pub(crate) fn captured_in(epoch: u64) -> u8 {
    (epoch & 1) as u8 * status::CAPTURED
}

/// A claim: an exchange of status bits that finds the one thread which emits a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// The record is unclaimed if these bits of its status are `unclaimed`.
    seen_mask: u8,
    unclaimed: u8,
    /// The claim makes these bits `claimed`.
    mask: u8,
    claimed: u8,
    /// Whether the checkpoint holds records without a value, too.
    pub(crate) has_deletions: bool,
}

impl Claim {
    /// The claim of the checkpoint that began `epoch`.
    #[inline]
    pub(crate) fn of(rules: &CellRules, epoch: u64) -> Self {
        match rules.dirty {
            DirtyRule::None => Self::of_all(epoch),
            DirtyRule::ByEpoch => {
                let dirty = status::dirty_in(epoch - 1);
                Self {
                    seen_mask: dirty | status::TAKEN,
                    unclaimed: dirty,
                    mask: status::TAKEN,
                    claimed: status::TAKEN,
                    has_deletions: true,
                }
            }
        }
    }

    /// The claim of a checkpoint that holds every record with a value.
    #[inline]
    pub(crate) fn of_all(epoch: u64) -> Self {
        let claimed = captured_in(epoch);
        Self {
            seen_mask: status::CAPTURED,
            unclaimed: claimed ^ status::CAPTURED,
            mask: status::CAPTURED,
            claimed,
            has_deletions: false,
        }
    }

    /// Whether a record with this status is unclaimed.
    #[inline]
    pub(crate) fn is_open(self, status: u8) -> bool {
        status & self.seen_mask == self.unclaimed
    }

    /// Claims the record, and sets the status bits `also`. Returns true to the one thread that
    /// wins.
    #[inline]
    pub(crate) fn claim(self, lock: &AtomicU64, also: u8) -> bool {
        let unclaimed = (self.seen_mask, self.unclaimed);
        lock_word::claim_if(lock, unclaimed, self.mask | also, self.claimed | also)
    }
}

/// The copy that commits of `epoch` write besides copy 0, and its dirty bit. Only for
/// [`WriteRule::WriteBoth`].
#[inline]
pub(crate) fn copy_of(epoch: u64) -> (usize, u8) {
    match epoch & 1 {
        0 => (1, status::dirty_in(epoch)),
        _ => (2, status::dirty_in(epoch)),
    }
}
