//! Copy-on-update (CALC, SIGMOD 2016, §4.1.2; Cao et al., SIGMOD 2011, §2.3) with a physical point of
//! consistency.
//!
//! The idea: each cell has room for a shadow, a copy of its value. The first commit after the point of
//! consistency that changes a record copies the old value into the shadow. The scan emits the shadow
//! instead of the record, and otherwise the record itself.
//!
//! ```text
//!            point of consistency
//!  copy 0   v1 ════╪═ v1 ── v2 : commits                   read by the scan if there is no shadow
//!  copy 1          │        v1 : the shadow, until the scan has met it
//!  SHADOW          0        1                                0
//! ```
//! Invariants:
//! 1. A commit writes the shadow before it marks the record as captured, in one exchange with the bit
//!    SHADOW. So a scan that finds a record marked finds its shadow whole, and waits for nobody.
//! 2. A scan visits every cell in every epoch, also in a capture that is given up. Afterwards every
//!    record is marked and no bit SHADOW is set.
//! 3. A commit of a later epoch writes the shadow of a cell only after this capture.
//!
//! In a checkpoint of changes only records with the dirty mark of the ended epoch are marked and
//! scanned. Their shadow may say that the key had no value, which stands for a deletion.
//!
//! Deviations: the papers latch each cell. Here the scan copies a value first, claims the record by one
//! exchange, and takes the copy back if a commit was first ([`super::calc`]). The meaning of the mark
//! alternates with every full checkpoint, so nothing is reset.

use std::sync::Arc;

use stillpoint_store::{Capture, Checkpointer, Outcome, PointOfConsistency, Store};

use crate::changes::Changes;

struct CopyOnUpdate {
    changes: Option<Changes>,
}

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(CopyOnUpdate { changes: None }))
}

pub(crate) fn of_changes() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(CopyOnUpdate { changes: Some(Changes::default()) }))
}

impl Checkpointer for CopyOnUpdate {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Physical
    }

    fn takes_changes(&self) -> bool {
        self.changes.is_some()
    }

    fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        self.changes.as_ref().map_or(0, |changes| changes.settle(store, unit, slot))
    }

    /// Scans the unit even if the checkpoint is given up (invariant 2).
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        store.capture_or_shadow(unit, to);
    }

    fn ended(&self, epoch: u64, outcome: Outcome) {
        if let Some(changes) = &self.changes {
            changes.ended(epoch, outcome);
        }
    }
}
