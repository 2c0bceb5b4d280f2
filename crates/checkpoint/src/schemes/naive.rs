//! Naive snapshot (CALC, SIGMOD 2016, §4.1.1): stop, copy everything, go on.
//!
//! The oldest way to a consistent image, and the baseline of the other schemes. From the point of
//! consistency to the end of the capture nothing commits. At rest the scheme costs nothing. The
//! capture is as fast as memory and device allow, and the stop grows with the database.
//!
//! ```text
//! REST ── PREPARE ──▶│ RESOLVE ─ CAPTURE │ COMPLETE ──▶ REST
//!                    └ physical PoC      └ commits go on; what is queued is still written
//!         commits:   ══════╡ none        ╞══════
//! ```
//!
//! Invariants:
//! 1. The store is quiesced from before RESOLVE to after CAPTURE, so the scan needs no claim, no
//!    mark and no read section.
//! 2. The scan emits large values by reference, and that reference keeps them alive. So commits may
//!    go on while large values are still being written.
//!
//! The form of changes emits the records that commits have marked as dirty in the ended epoch, and the
//! keys that they have deleted.
//!
//! Deviation: the paper takes an exclusive lock on the database, which waits for open
//! transactions. With deferred updates (docs/decisions/0001) an open transaction has changed
//! nothing. So the checkpoint waits only for commits under way, and a long transaction stays open
//! across the whole checkpoint.

use std::sync::Arc;

use stillpoint_store::{Capture, Checkpointer, Outcome, PointOfConsistency, Store};

use crate::changes::Changes;

struct Naive {
    changes: Option<Changes>,
}

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(Naive { changes: None }))
}

pub(crate) fn of_changes() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(Naive { changes: Some(Changes::default()) }))
}

impl Checkpointer for Naive {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::PhysicalThroughout
    }

    fn takes_changes(&self) -> bool {
        self.changes.is_some()
    }

    fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        self.changes.as_ref().map_or(0, |changes| changes.settle(store, unit, slot))
    }

    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        // Nothing is marked that the next capture needs, so one that was given up ends here.
        if !to.is_abandoned() {
            store.scan_wanted(unit, to, &mut |cell| cell.take_value());
        }
    }

    fn ended(&self, epoch: u64, outcome: Outcome) {
        if let Some(changes) = &self.changes {
            changes.ended(epoch, outcome);
        }
    }
}
