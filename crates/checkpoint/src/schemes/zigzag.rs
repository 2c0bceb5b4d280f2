//! Wait-Free Zigzag (Cao, Vaz Salles, Sowell, Yue, Demers, Gehrke, White: *Fast Checkpoint Recovery
//! Algorithms for Frequently Consistent Applications*, SIGMOD 2011, §3.2), for records.
//!
//! The idea: each cell has two copies of its value. The point of consistency fixes the copy that is
//! the newest one. From then on, commits write the other copy, so the capture scan reads a copy that
//! nobody writes, and neither waits for the other.
//!
//! ```text
//!                 point of consistency          next point of consistency
//!  copy 0   v1 ═══════╪═══ v1, read by the scan ═══════╪══ v3: the next commit writes here
//!  copy 1             │  v2 ── v2' : commits           │  v2', read by the scan
//!  NEXT_COPY          1                                0
//! ```
//! The paper's bit MR, the copy to read, is flag SECOND of a cell's stamp word. So readers without a
//! lock see the flag change together with the stamp. The paper's bit MW, the copy to write, is
//! [`status::NEXT_COPY`]. The paper's step *MW := not MR* is the pass at the point of consistency.
//!
//! Invariants:
//! 1. From one point of consistency to the next, commits write copy NEXT_COPY only, so copy
//!    *not* NEXT_COPY has the value of the point of consistency.
//! 2. A cell made after the point of consistency has NEXT_COPY 0 and no value in copy 1, so the scan
//!    finds nothing in it.
//! 3. From RESOLVE to COMPLETE no cell is reused or replaced by a larger one while one of its
//!    copies has a value. Meanwhile a value that does not fit the cell goes to blocks.
//! 4. A capture that fails leaves no work: the next pass sets NEXT_COPY of every cell.
//!
//! In the form of changes a checkpoint has the records with the dirty mark of the ended epoch, and the
//! pass visits only these. A record that it leaves out is in no scan, so commits may go on to write
//! either copy.
//!
//! Deviations: the paper has one mutator thread and words of one size. Here copies have lengths,
//! tags and blocks of their own, and a copy may have no value. The paper negates bit vectors word
//! by word. Here the bits of a cell are in the cell, so the pass visits every cell while commits
//! wait. All capture threads share the pass, and only records that were written since the last one need
//! an exchange. With deferred updates (docs/decisions/0001) the pass waits for commits under way, not for
//! open transactions.

use std::sync::Arc;

use stillpoint_store::rules::status;
use stillpoint_store::{Capture, Checkpointer, Outcome, PointOfConsistency, Store, planted};
use stillpoint_sync::mutant;

use crate::changes::Changes;

struct Zigzag {
    changes: Option<Changes>,
}

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(Zigzag { changes: None }))
}

pub(crate) fn of_changes() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(Zigzag { changes: Some(Changes::default()) }))
}

impl Checkpointer for Zigzag {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Physical
    }

    fn takes_changes(&self) -> bool {
        self.changes.is_some()
    }

    fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        self.changes.as_ref().map_or(0, |changes| changes.settle(store, unit, slot))
    }

    fn has_pass_at_point(&self) -> bool {
        true
    }

    fn at_point_of_consistency(&self, store: &Store, unit: usize, slot: usize) {
        mutant!(in store.driver(); NextCopyKept => return);
        store.switch_copies(unit, slot);
    }

    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        // Nothing is marked that the next capture needs, so one that was given up ends here.
        if !to.is_abandoned() {
            store.scan_wanted(unit, to, &mut |cell| {
                let stable = usize::from(cell.status() & status::NEXT_COPY == 0);
                cell.take_copy(stable);
            });
        }
    }

    fn ended(&self, epoch: u64, outcome: Outcome) {
        if let Some(changes) = &self.changes {
            changes.ended(epoch, outcome);
        }
    }
}
