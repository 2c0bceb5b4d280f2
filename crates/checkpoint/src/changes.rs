//! The common part of all schemes that take checkpoints of changes (CALC, SIGMOD 2016, §2.3 and §4).
//!
//! If the last checkpoint was published, its dirty marks are cleared. Otherwise they are joined to
//! those of the present epoch ([`Store::settle_marks`]).

use stillpoint_store::{Bug, Capture, Outcome, Store, planted};
use stillpoint_sync::atomic::{AtomicU64, Ordering::SeqCst};
use stillpoint_sync::mutant;

/// The last published checkpoint of a scheme that takes changes.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// The epoch begun by the last checkpoint that was published since the start. 0 for none.
    published: AtomicU64,
}

impl Changes {
    /// Whether the checkpoint that began the present epoch was published. Call this in PREPARE.
    pub(crate) fn are_published(&self, store: &Store) -> bool {
        // SeqCst: the thread that took an earlier checkpoint has set the value.
        self.published.load(SeqCst) == store.driver().now().epoch()
    }

    /// Settles the marks of a unit. Returns how many keys have changed.
    pub(crate) fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        let forgets = store.driver().has_planted(Bug::DirtyForgotten);
        store.settle_marks(unit, slot, self.are_published(store) || forgets)
    }

    /// As [`settle`](Self::settle), where captures read the copy of the ended epoch. The records of a
    /// checkpoint that was not published are first brought over to the copy of the present epoch.
    pub(crate) fn settle_copies(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        let forgets = store.driver().has_planted(Bug::NotBroughtOver);
        if !self.are_published(store) && !forgets {
            store.visit_ended_marks(unit, slot, &mut |cell| cell.bring_over());
        }
        self.settle(store, unit, slot)
    }

    /// Notes how a checkpoint has ended.
    pub(crate) fn ended(&self, epoch: u64, outcome: Outcome) {
        if outcome == Outcome::Published {
            // SeqCst: as in `are_published`.
            self.published.store(epoch, SeqCst);
        }
    }
}

/// Brings the newest value of each record over to the copy of the present epoch, so that a capture finds
/// every record there.
pub(crate) fn bring_all_over(store: &Store, unit: usize, to: &mut dyn Capture) {
    mutant!(in store.driver(); NotBroughtOver => return);
    if !to.is_abandoned() {
        store.scan_records(unit, to, &mut |cell| cell.bring_over());
    }
}
