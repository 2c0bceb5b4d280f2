//! CALC with partial checkpoints (Ren, Diamond, Abadi, Thomson: *Low-Overhead Asynchronous
//! Checkpointing in Main-Memory Database Systems*, SIGMOD 2016, §2.3), by before-image.
//!
//! The idea: a checkpoint of changes covers the time since the point of consistency of its base, a
//! published checkpoint. The checkpoint has the records that were written in that time, and a note
//! of each key that was deleted. A full checkpoint and those that go on from it are a chain. Point
//! of consistency, before-images and scan are those of [`calc`](super::calc).
//!
//! ```text
//!             full 5          changes 6            changes 7
//!  epoch  4   │      5        │       6            │       7
//!  commits mark odd ──────────┤ even ──────────────┤ odd
//!  pass in PREPARE            settles odd's past   settles even's past
//!  has        every record    dirty in 5 (odd)     dirty in 6 (even)
//! ```
//! Each commit sets the dirty bit of its epoch in the records that it writes, in every phase. The
//! checkpoint that begins epoch E has the records that are dirty in E − 1. The scan and the commits
//! claim each record by the bit TAKEN. The thread that wins emits the value, or the deletion if the
//! key has no value.
//!
//! Invariants:
//! 1. A dirty bit is cleared only after a checkpoint that has the record was published. The pass in
//!    the next PREPARE clears the bit. Commits of the next epoch that uses this bit come only
//!    later.
//! 2. If the checkpoint was not published, the pass joins its dirty records to those of the present
//!    epoch, by one exchange for each cell.
//! 3. The cell of a deleted key is not reused while a dirty bit is set: the deletion is in no
//!    published checkpoint.
//! 4. Replay marks the records that it writes. So every change in memory that the newest checkpoint
//!    lacks is dirty.
//! 5. A full checkpoint marks every record even if it fails, as in [`calc`](super::calc). Its marks
//!    have their own bit, which a checkpoint of changes leaves alone.
//!
//! The paper's tracker is a bit vector beside the cells, in two copies by parity of the epoch. Only
//! the first mark of a cell in an epoch sets a bit there. The pass in PREPARE and the scan read these
//! bits, and visit only the cells whose bits are set.

use std::sync::Arc;

use stillpoint_store::{Capture, Checkpointer, Outcome, PointOfConsistency, Store};

use crate::changes::Changes;

#[derive(Debug, Default)]
struct PartialCalc {
    changes: Changes,
}

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(PartialCalc::default()))
}

impl Checkpointer for PartialCalc {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Virtual
    }

    fn takes_changes(&self) -> bool {
        true
    }

    fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        self.changes.settle(store, unit, slot)
    }

    /// Scans the unit even if a full checkpoint is given up, since its marks are needed (invariant
    /// 5).
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        if !to.is_abandoned() || !store.driver().now().is_of_changes() {
            store.capture_unmarked(unit, to);
        }
    }

    fn ended(&self, epoch: u64, outcome: Outcome) {
        self.changes.ended(epoch, outcome);
    }
}
