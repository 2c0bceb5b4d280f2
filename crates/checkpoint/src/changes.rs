//! The common part of all schemes that take checkpoints of changes (CALC, SIGMOD 2016, §2.3 and §4).
//!
//! If the last checkpoint was published, its dirty marks are cleared. Otherwise they are joined to
//! those of the present epoch ([`Store::settle_marks`]).

use stillpoint_store::{Bug, Outcome, Store};
use stillpoint_sync::atomic::{AtomicU64, Ordering::SeqCst};

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

    /// Notes how a checkpoint has ended.
    pub(crate) fn ended(&self, epoch: u64, outcome: Outcome) {
        if outcome == Outcome::Published {
            // SeqCst: as in `are_published`.
            self.published.store(epoch, SeqCst);
        }
    }
}
