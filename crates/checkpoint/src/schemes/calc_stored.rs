//! CALC as published, with stable versions in a pool. Source: Ren, Diamond, Abadi, Thomson,
//! *Low-Overhead Asynchronous Checkpointing in Main-Memory Database Systems*, SIGMOD 2016, §2.2, §2.3 and
//! §5.1.6.
//!
//! The idea: each record has a live version, and a stable version that is empty at rest. The first
//! commit after the virtual point of consistency that changes a record copies the live version to the
//! stable one. The scan emits and erases the stable version, or emits the live one if there is none.
//!
//! ```text
//!            REST ───► PREPARE ───►│ RESOLVE ───► CAPTURE ───► COMPLETE ───► REST
//!  live     v1 ════════════════════╪═ v1 ── v2 : commits
//!  stable   empty                  │        v1, in the pool   erased by the scan
//! ```
//! **Memory.** The pool is reserved from the start, so the memory is flat, as in the paper. After the
//! part x of the capture, a record has a version if the scan has not met it and a commit has changed it.
//! Let r be the rate of uniform updates divided by the rate of the capture. Then the pool holds the
//! share (1 − x)(1 − e^(−r·x)) of the records. Its maximum for x from 0 to 1 is f(r). f(1) is 19.9 %,
//! the paper's 1.2 times.
//!
//! Invariants:
//! 1. A commit stores the version before it claims the record, and sets SHADOW in the same exchange. So
//!    a scan that finds a record claimed finds its version whole, and waits for nobody.
//! 2. A scan visits every cell that commits may have claimed, also in a capture that is given up. So at
//!    rest no record has a stable version, and the pool is free.
//! 3. Without a free slot a commit waits for the scan. The scan waits for no lock, so the wait ends. If a
//!    commit needs more slots than the pool has, the checkpoint fails and says so. No write is lost.
//!
//! In the form of changes, the records with the dirty mark of the ended epoch have stable versions. An
//! empty one with the bit SHADOW stands for a deletion.
//!
//! Deviations, whose reasons are in docs/decisions/0001:
//! - PREPARE stores no versions, since a commit knows its phase before its first write. So the peak is
//!   that of RESOLVE and CAPTURE, and no long transaction adds to it.
//! - add_status and delete_status are no vectors of their own. The mark without a version, and the
//!   version of a key without a value, say the same (`crates/store/src/stable.rs`).
//! - Values have all lengths, so a version is a chain of slots. A large value is shared, not copied.

use std::sync::Arc;

use stillpoint_store::{Capture, Checkpointer, Outcome, PointOfConsistency, Store};

use crate::changes::Changes;

struct StoredCalc {
    changes: Option<Changes>,
}

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(StoredCalc { changes: None }))
}

pub(crate) fn of_changes() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(StoredCalc { changes: Some(Changes::default()) }))
}

impl Checkpointer for StoredCalc {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Virtual
    }

    fn takes_changes(&self) -> bool {
        self.changes.is_some()
    }

    fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        self.changes.as_ref().map_or(0, |changes| changes.settle(store, unit, slot))
    }

    /// Scans the unit even if the checkpoint is given up (invariant 2).
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        store.capture_or_stable(unit, to);
    }

    fn ended(&self, epoch: u64, outcome: Outcome) {
        if let Some(changes) = &self.changes {
            changes.ended(epoch, outcome);
        }
    }
}
