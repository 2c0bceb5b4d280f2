//! Which records have changed since the last checkpoint, for stores whose rules ask for it
//! ([`DirtyRule::ByEpoch`]).
//!
//! A commit of epoch E sets the dirty bit of E in the cells that it writes, with their locks held. The
//! checkpoint that begins epoch E + 1 has the cells with that bit. The bits of two epochs are in use
//! at a time, and an epoch gives its bit to the next but one. So a pass in PREPARE settles the bit of
//! the epoch before:
//!
//! ```text
//!            commits mark   checkpoint has   pass settles
//!  epoch 4   even           odd (3)          odd (3): published → cleared; failed → joined to even
//!  epoch 5   odd            even (4)         even (4)
//! ```
//! Replay marks what it applies, as commits of the epoch in which the store begins.

use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::{lock_word, mutant, planted};

use crate::memory::stamp::ABSENT;
use crate::rules::{DirtyRule, status};
use crate::store::Store;

/// What a pass over dirty marks has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Records with a value.
    pub records: u64,
    /// Keys that have changed since the last published checkpoint, deleted ones included.
    pub dirty: u64,
}

impl Store {
    /// Marks the cell as written in `epoch`. The caller holds the lock of the cell, or is alone.
    /// `claimable` says that others may change the status of the cell meanwhile.
    #[inline]
    pub(crate) fn mark_dirty(&self, cell: u64, epoch: u64, claimable: bool) {
        lock_word::set_status_held(self.cell(cell).lock(), status::dirty_in(epoch), claimable);
    }

    /// The status bits of a cell that replay writes.
    pub(crate) fn replayed_status(&self) -> u8 {
        match self.rules().dirty {
            DirtyRule::None => 0,
            DirtyRule::ByEpoch => {
                let dirty = status::dirty_in(self.driver().now().epoch());
                mutant!(dirty, ReplaysWithoutMarks => 0)
            }
        }
    }

    /// Settles the marks of the epoch before the present one in a slab: clears them if the checkpoint
    /// that has these records is `published`, and joins them to those of the present epoch if not.
    /// In PREPARE. The caller owns read section slot `slot`.
    pub fn settle_marks(&self, slab: usize, slot: usize, published: bool) -> Settled {
        let epoch = self.driver().now().epoch();
        let (ended, present) = (status::dirty_in(epoch.wrapping_sub(1)), status::dirty_in(epoch));
        let mut settled = Settled::default();
        self.for_each_record(slab, slot, &mut |cell| {
            let next = |seen: u8| {
                let joined = if seen & ended != 0 && !published { present } else { 0 };
                (seen & !(ended | status::TAKEN)) | joined
            };
            // Relaxed: a mark of the epoch before is there since its last commit, for which the
            // grace period of PREPARE has waited.
            let seen = lock_word::status(cell.lock().load(Relaxed));
            if next(seen) != seen {
                lock_word::update_status(cell.lock(), next);
            }
            settled.records += u64::from(cell.stamp_word() & ABSENT == 0);
            settled.dirty += u64::from(next(seen) & present != 0);
        });
        settled
    }
}
