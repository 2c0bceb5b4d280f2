//! What a commit does beside its installs in place: writes to cells of several copies, and dirty marks.

use stillpoint_format::{Label, Stamp};
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::{lock_word, mutant};

use crate::memory::blob::Blob;
use crate::memory::stamp::ABSENT;
use crate::participant::Participant;
use crate::phase::PhaseWord;
use crate::planted;
use crate::record::{self, Writing};
use crate::rules::{WriteRule, status};
use crate::txn::Transaction;
use crate::txn::commit_log::Change;
use crate::txn::pending::OpKind;

/// For the planted bug `DeadlineNotCopied`.
fn without_deadline(change: Change<'_>) -> Change<'_> {
    match change {
        Change::Until { ranges, .. } => Change::Patch(ranges),
        change => change,
    }
}

impl Transaction {
    /// Puts one write into its cell, which is busy and has several copies.
    pub(super) fn install_in_copies(
        &self,
        local: &mut Participant,
        (key, first): (usize, u32),
        large: Option<(Blob, Label)>,
        stamp: Stamp,
        phase: PhaseWord,
    ) {
        let Participant { store, reclaim, .. } = local;
        let held = &self.held[key - self.first_key];
        let change = Change::of(store.memory(), &self.pending, first);
        let change =
            mutant!(in store.driver(); change, DeadlineNotCopied => without_deadline(change));
        let (memory, owner) = (store.memory(), store.memory().arena.owner_of(held.cell));
        let rule = store.rules().write;
        let rule = mutant!(in store.driver(); rule, WriteRuleForgotten => WriteRule::InPlace);
        let writing =
            Writing { memory, number: held.cell, rule, phase, noted: store.begun_chain() };
        let added = change.added_records(held.stamp_word & ABSENT != 0);
        writing.install(change, large, stamp, |old| reclaim.retire_blob(owner, old));
        self.count(local, key, added, stamp);
    }

    /// Makes the records busy. Returns whether a written cell lacks the dirty bit of the epoch. In a
    /// call of its own, since the loop of the stores without marks is shorter.
    #[inline(never)]
    pub(super) fn begin_marked_writes(&self, local: &Participant, phase: PhaseWord) -> bool {
        let record = |&(key, _): &(usize, u32)| local.record(self.held[key - self.first_key].place);
        let mut common = u64::MAX;
        record::begin_writes(self.written.iter().map(record).inspect(|record| {
            // Relaxed: the holder of the lock alone sets the bit of the present epoch, and nobody
            // unsets it before the holder's commit has ended.
            common &= record.lock().load(Relaxed);
        }));
        let is_marked = lock_word::status(common) & status::dirty_in(phase.epoch()) != 0;
        // A new cell may have no mark yet.
        !(is_marked && self.prepared.is_empty())
    }

    /// Sets the dirty bit of the epoch in the cells that were written. Commits mostly write what was
    /// written in this epoch before, so that they need no call.
    #[cold]
    pub(super) fn mark_dirty(&self, local: &Participant, phase: PhaseWord) {
        for &(key, first) in &self.written {
            let kind = || self.pending.op(first).map(|op| op.kind);
            mutant!(in local.store.driver(); DeadlineUnmarked => if kind() == Some(OpKind::Until) {
                continue;
            });
            let cell = self.held[key - self.first_key].cell;
            local.store.mark_dirty(cell, phase.epoch(), local.in_section);
        }
    }
}
