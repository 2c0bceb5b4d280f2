//! Wait-Free Ping-Pong (Cao et al.: *Fast Checkpoint Recovery Algorithms for Frequently Consistent
//! Applications*, SIGMOD 2011, §3.3; CALC, SIGMOD 2016, §4.1.3), interleaved.
//!
//! The idea: every commit writes twice, to the application state (copy 0) and to the copy of the epoch's
//! parity (even 1, odd 2). At the point of consistency the parity changes and nothing else. The capture
//! reads the copy that commits have left.
//!
//! ```text
//!  epoch       e (even)     │ e + 1 (odd)           │ e + 2 (even)
//!  copy 0      commits      │ commits               │ commits
//!  copy 1      commits      │ read by the scan      │ commits
//!  copy 2      scan         │ commits               │ read by the scan
//! ```
//! **Full**, with the method *Copy* of §4.2: copy 3 is the last consistent image. The scan merges the
//! dirty copies of the ended epoch into the image, and emits the image.
//! 1. Commits of an epoch write copy 0 and the copy of its parity only, and readers read copy 0 only.
//! 2. After a capture no dirty bit of the ended epoch's parity is set, so the next epoch of that parity
//!    begins clean. A capture that is given up also visits every cell.
//! 3. Copy 3 with all dirty copies merged is the state of the point of consistency.
//!
//! **Of changes** ("pIPP"): the scan emits the copies that the ended epoch has written, and there is no
//! image. In two cases the copy of the ending epoch must have values that this epoch has not written:
//! 1. The checkpoint before was not published. Its records are brought over in PREPARE, and their marks
//!    are joined to those of the present epoch.
//! 2. The checkpoint will be full. Then every record is brought over in PREPARE.
//!
//! Whoever claims the copy of an epoch writes it first: a commit, or the pass in PREPARE.
//!
//! Deviation: with deferred updates (docs/decisions/0001) the point of consistency waits for commits
//! under way, not for open transactions.

use std::sync::Arc;

use stillpoint_store::rules::second_copy;
use stillpoint_store::{Capture, Checkpointer, Outcome, PointOfConsistency, Store};

use crate::changes::{Changes, bring_all_over};

struct PingPong;

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(PingPong))
}

impl Checkpointer for PingPong {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Physical
    }

    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        store.capture_merged(unit, to);
    }
}

#[derive(Default)]
struct OfChanges {
    changes: Changes,
}

pub(crate) fn of_changes() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(OfChanges::default()))
}

impl Checkpointer for OfChanges {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Physical
    }

    fn takes_changes(&self) -> bool {
        true
    }

    fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        self.changes.settle_copies(store, unit, slot)
    }

    fn works_before_full(&self) -> bool {
        true
    }

    fn before_full(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        bring_all_over(store, unit, to);
    }

    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        if !to.is_abandoned() {
            let stable = second_copy(store.driver().now().epoch() + 1);
            store.scan_wanted(unit, to, &mut |cell| cell.take_copy(stable));
        }
    }

    fn ended(&self, epoch: u64, outcome: Outcome) {
        self.changes.ended(epoch, outcome);
    }
}
