//! Which records have changed since the last checkpoint, for stores whose rules ask for it
//! ([`DirtyRule::ByEpoch`]).
//!
//! A commit of epoch E sets the dirty bit of E in the cells that it writes, with their locks held.
//! The checkpoint that begins epoch E + 1 has the cells with that bit. There are two dirty bits,
//! for odd and for even epochs. So before an epoch ends, a pass in PREPARE settles the bit of the
//! epoch before, which the next epoch will use:
//!
//! ```text
//!            commits mark   checkpoint has   pass settles
//!  epoch 4   even           odd (3)          odd (3): published → cleared; failed → joined to even
//!  epoch 5   odd            even (4)         even (4)
//! ```
//! Replay marks the cells that it writes, like commits of the epoch in which the store begins.
//!
//! The first mark of a cell in an epoch is also noted beside the cells, in
//! [`Marks`](crate::memory::marks::Marks). Passes and captures of changes find the marked cells
//! there.

use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::{lock_word, mutant, planted};

use crate::memory::arena::Arena;
use crate::memory::cell::Cell;
use crate::phase::PhaseWord;
use crate::rules::{Claim, DirtyRule, status};
use crate::store::Store;

/// Which cells of a group of slabs a pass visits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cells {
    /// Every cell.
    All,
    /// At least the cells with the dirty mark of this epoch. Every cell if the store sets no marks.
    Marked(u64),
}

impl Store {
    /// Marks the cell as written in `epoch`. The caller holds the lock of the cell, or no other
    /// thread uses the store. `in_section` says that the caller is inside of a read section.
    #[inline(never)]
    pub(crate) fn mark_dirty(&self, cell: u64, epoch: u64, in_section: bool) {
        let claimable = self.status_may_change(in_section);
        let dirty = status::dirty_in(epoch);
        if lock_word::set_status_held(self.cell(cell).lock(), dirty, claimable) {
            self.note_mark(cell, epoch);
        }
    }

    /// Notes the chain of checkpoints that the store is loaded from, before anything is loaded or
    /// replayed. If `is_empty`, there is none. Without this call any key may be in a chain, until a
    /// full checkpoint is published.
    pub fn note_loaded_chain(&self, is_empty: bool) {
        self.chains().load(is_empty);
    }

    /// Notes that a full checkpoint is under way, from which checkpoints of changes may go on. Called in
    /// PREPARE.
    pub fn begin_chain(&self) {
        self.chains().begin();
    }

    /// Notes how a checkpoint has ended. Called after REST, and after a publication is durable.
    pub fn end_chain(&self, is_published: bool) {
        self.chains().end(is_published);
    }

    /// The claim for the checkpoint that is under way. Called after its point of consistency.
    #[inline]
    pub(crate) fn claim_in(&self, now: PhaseWord) -> Claim {
        Claim::of(now).noting(self.begun_chain())
    }

    /// The status bits of a cell that a load of a checkpoint writes.
    pub(crate) fn loaded_status(&self) -> u8 {
        match self.rules().dirty {
            DirtyRule::None => 0,
            DirtyRule::ByEpoch => self.chains().present(),
        }
    }

    /// The status bits of a cell that replay writes.
    pub(crate) fn replayed_status(&self) -> u8 {
        match self.rules().dirty {
            DirtyRule::None => 0,
            DirtyRule::ByEpoch if !self.marks_replayed() => 0,
            DirtyRule::ByEpoch => {
                let dirty = status::dirty_in(self.driver().now().epoch());
                mutant!(dirty, ReplaysWithoutMarks => 0)
            }
        }
    }

    /// Ends a pass over all slabs. Called in PREPARE.
    pub fn end_settling(&self) {
        self.chains().end_settling(self.driver().now().epoch());
    }

    /// Settles the marks that the epoch before the present one has left in a group of slabs. If the
    /// checkpoint that has these records is `published`, the call clears these marks. Otherwise the
    /// call turns the marks into marks of the present epoch. Returns how many cells have a mark of
    /// the present epoch.
    ///
    /// Called in PREPARE. The caller owns read section slot `slot`.
    pub fn settle_marks(&self, group: usize, slot: usize, published: bool) -> u64 {
        let epoch = self.driver().now().epoch();
        let (before, marks) = (epoch.wrapping_sub(1), self.memory().arena.marks());
        let (ended, present) = (status::dirty_in(before), status::dirty_in(epoch));
        let in_chain = self.present_chain();
        // If the last pass was cut off, a cell that the pass did not come to may be in the chain.
        let taken_in_chain = match self.chains().settled_in() == before {
            true => 0,
            false => in_chain,
        };
        let next = |seen: u8| {
            let added = match (seen & ended != 0, published) {
                // A pass that was cut off did not come to this cell. The checkpoint that has taken
                // the cell may have been published.
                (false, _) if seen & status::TAKEN != 0 => in_chain,
                (false, _) => 0,
                (true, false) if seen & status::TAKEN != 0 => present | taken_in_chain,
                (true, false) => present,
                (true, true) => in_chain,
            };
            (seen & !(ended | status::TAKEN)) | added
        };
        let settle = |cell: Cell<'_>, number: u64| {
            // Relaxed: a mark of the epoch before is there since its last commit, for which the
            // grace period of PREPARE has waited.
            let seen = lock_word::status(cell.lock().load(Relaxed));
            let settled = next(seen);
            if settled & present & !seen != 0 {
                // The bit comes before the mark, so that no mark is ever without its bit.
                self.note_mark(number, epoch);
            }
            if settled != seen {
                lock_word::update_status(cell.lock(), next);
            }
            settled & present != 0
        };
        self.for_each_record(group, slot, Cells::Marked(before), &mut |cell, number| {
            settle(cell, number);
        });
        if let Some(marks) = marks {
            Arena::slabs_of(group).for_each(|slab| marks.clear(slab, before));
        }
        // An earlier pass that was cut off may have left bits of the ended epoch in cells with a
        // mark of the present one.
        let mut dirty = 0;
        self.for_each_record(group, slot, Cells::Marked(epoch), &mut |cell, number| {
            dirty += u64::from(settle(cell, number));
        });
        dirty
    }
}
