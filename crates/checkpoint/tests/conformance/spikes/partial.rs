//! CALC with partial checkpoints (SIGMOD 2016, §2.3), by before-image.
//!
//! Each commit sets the dirty bit of its epoch in the records that it writes, in every phase. The
//! checkpoint that begins epoch E has the records that are dirty in E − 1: the scan and the commits
//! claim each by the bit TAKEN, and whoever wins emits the value, or the news that there is none.
//!
//! Invariants:
//! 1. A dirty bit is cleared only after a checkpoint that has the record was published. The pass
//!    before the next PREPARE clears it, and commits of that parity come only later.
//! 2. If the checkpoint was not published, the pass joins its dirty records to those of the present
//!    epoch, by one exchange for each cell.
//! 3. The cell of a deleted key is not reused while a dirty bit is set: the deletion is in no
//!    published checkpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use stillpoint_checkpoint::{Capabilities, Row};
use stillpoint_format::names::CheckpointKind;
use stillpoint_store::rules::status::{TAKEN, dirty_in};
use stillpoint_store::{
    Bug, Capture, CellRules, Checkpointer, DirtyRule, Outcome, PointOfConsistency, Reuse,
    StatusChanges, Store,
};

pub(crate) const ROW: Row = Row {
    name: "pcalc",
    about: "calc, of what has changed since the last checkpoint",
    source: "CALC, SIGMOD 2016, §2.3",
    capabilities: Capabilities {
        point: Some(PointOfConsistency::Virtual),
        cells: CellRules {
            dirty: DirtyRule::ByEpoch,
            status_changes: StatusChanges::AtAnyTime,
            reuse: Reuse::WhenClean,
            ..CellRules::BEFORE_IMAGES
        },
    },
    checkpointer: || Some(Arc::new(PartialCalc::default())),
};

#[derive(Default)]
struct PartialCalc {
    /// The epoch that the last published checkpoint began.
    published: AtomicU64,
}

impl Checkpointer for PartialCalc {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Virtual
    }

    fn kind(&self) -> CheckpointKind {
        CheckpointKind::Partial
    }

    fn before_prepare(&self, store: &Store, unit: usize, slot: usize) {
        let epoch = store.driver().now().epoch();
        let (ended, present) = (dirty_in(epoch - 1), dirty_in(epoch));
        let forgets = store.driver().has_planted(Bug::DirtyForgotten);
        let is_published = self.published.load(SeqCst) == epoch || forgets;
        store.set_statuses(unit, slot, |status, _| {
            let kept = status & !(ended | TAKEN);
            if status & ended != 0 && !is_published { kept | present } else { kept }
        });
    }

    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        if !to.is_abandoned() {
            store.capture_unmarked(unit, to);
        }
    }

    fn ended(&self, epoch: u64, outcome: Outcome) {
        if outcome == Outcome::Published {
            self.published.store(epoch, SeqCst);
        }
    }
}
