//! Copy-on-update (CALC, SIGMOD 2016, §5; Cao et al., SIGMOD 2011, §2.3) with a physical point of
//! consistency. Each cell has room for a shadow, a copy of its value. The first commit after the point
//! of consistency that changes a record copies the old value into the shadow. The scan then emits the
//! shadow instead of the record.
//!
//! Invariants:
//! 1. A commit writes the shadow before it marks the record as captured, in one exchange with the bit
//!    SHADOW. So a scan that finds a record marked finds its shadow whole, and waits for nobody.
//! 2. A scan visits every cell in every epoch, also in a capture that is given up. Afterwards every
//!    record is marked and no bit SHADOW is set.
//! 3. A commit of a later epoch writes the shadow of a cell only after this capture.

use std::sync::Arc;

use stillpoint_checkpoint::{Capabilities, Row};
use stillpoint_store::{
    Capture, CellRules, Checkpointer, DirtyRule, PointOfConsistency, Reuse, StatusChanges, Store,
    WriteRule,
};

pub(crate) const ROW: Row = Row {
    name: "cou",
    aliases: &[],
    about: "the first write after a stop copies the old value to a shadow in the cell",
    source: "CALC, SIGMOD 2016, §5; Cao et al., SIGMOD 2011, §2.3",
    capabilities: Capabilities {
        point: Some(PointOfConsistency::Physical),
        cells: CellRules {
            copies: 2,
            write: WriteRule::KeepShadow,
            dirty: DirtyRule::None,
            status_changes: StatusChanges::InCapture,
            reuse: Reuse::OutsideOfCaptures,
        },
    },
    checkpointer: || Some(Arc::new(CopyOnUpdate)),
};

struct CopyOnUpdate;

impl Checkpointer for CopyOnUpdate {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Physical
    }
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        store.capture_or_shadow(unit, to);
    }
}
