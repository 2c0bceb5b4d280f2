//! Hourglass (Li, Wang, Chen, Liu, Zhang, Zhou: *Consistent Snapshot Algorithms for In-Memory Database
//! Systems: Experiments and Analysis*, ICDE 2018, §III-A), for records: incremental by nature.
//!
//! The idea: each cell has two copies. Commits of an epoch write the copy of its parity, mark the record
//! as dirty in this epoch, and note where the newest value is. At the point of consistency nothing
//! changes but the epoch. The capture emits the dirty records of the ended epoch from its copy, which
//! no commit writes any more. Merged onto the checkpoints before, they are the whole state.
//!
//! ```text
//!  epoch      e          │ e + 1                │ e + 2
//!  copy 0   commits      │ read by the scan     │ commits
//!  copy 1   scan         │ commits              │ read by the scan
//!  dirty    bit of e     │ e's: has the scan    │ e's: published → cleared
//! ```
//! Invariants:
//! 1. Of a record with the dirty mark of epoch e, copy *e mod 2* is its value when e ended. A commit of
//!    e wrote this copy, or the pass in PREPARE has brought the value over.
//! 2. The thread that claims the copy of an epoch writes it first: a commit, or the pass in PREPARE. A
//!    commit that comes second waits for the pass, for the length of one copy.
//! 3. If a checkpoint is not published, PREPARE of the next brings its records over, and joins their
//!    marks to those of the present epoch.
//! 4. Before a checkpoint of every record, PREPARE brings over all records that the epoch has not
//!    written. This is the paper's first snapshot, for which all dirty bits are set.
//!
//! The paper's location bit is flag SECOND of a cell's stamp word. So readers without a lock see the
//! location change together with the stamp.
//!
//! Deviations: the paper has one mutator and a physical point of consistency. Here the point of
//! consistency is a place in commit order, since the epoch of a commit tells which copy it writes.

use std::sync::Arc;

use stillpoint_store::rules::alternate_copy;
use stillpoint_store::{Capture, Checkpointer, Outcome, PointOfConsistency, Store};

use crate::changes::{Changes, bring_all_over};

#[derive(Default)]
struct Hourglass {
    changes: Changes,
}

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(Hourglass::default()))
}

impl Checkpointer for Hourglass {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Virtual
    }

    fn published_point(&self) -> PointOfConsistency {
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
        // The scan marks nothing that the next one needs, so one that was given up ends here.
        if !to.is_abandoned() {
            let stable = alternate_copy(store.driver().now().epoch() + 1);
            store.scan_wanted(unit, to, &mut |cell| cell.take_copy(stable));
        }
    }

    fn ended(&self, epoch: u64, outcome: Outcome) {
        self.changes.ended(epoch, outcome);
    }
}
