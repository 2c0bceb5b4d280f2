//! Wait-Free Ping-Pong (Cao et al., SIGMOD 2011, §3.3; CALC, SIGMOD 2016, §4.1.3), interleaved, with
//! the method *Copy* for the full image.
//!
//! Every commit writes twice: the application state (copy 0), and the copy of the epoch's parity
//! (even 1, odd 2), which it marks as dirty. At the point of consistency the parity changes and
//! nothing else. The capture merges the dirty copies of the ended epoch into the last consistent
//! image (copy 3), and emits that image. Nobody else reads or writes copy 3.
//!
//! Invariants:
//! 1. Commits of an epoch write copy 0 and the copy of its parity only, and readers read copy 0 only.
//! 2. After a capture no bit of the ended epoch's parity is set, so the next epoch of that parity
//!    begins clean. A capture that is given up also visits every cell.
//! 3. Copy 3 with all dirty copies merged is the state of the point of consistency.

use std::sync::Arc;

use stillpoint_checkpoint::{Capabilities, Row};
use stillpoint_store::{
    Capture, CellRules, Checkpointer, DirtyRule, PointOfConsistency, Reuse, StatusChanges, Store,
    WriteRule,
};

pub(crate) const ROW: Row = Row {
    name: "ping-pong",
    aliases: &[],
    about: "every write goes to two copies; the capture merges one of them into an image",
    source: "Cao et al., SIGMOD 2011, §3.3; CALC, SIGMOD 2016, §4.1.3",
    capabilities: Capabilities {
        point: Some(PointOfConsistency::Physical),
        cells: CellRules {
            copies: 4,
            write: WriteRule::WriteBoth,
            dirty: DirtyRule::None,
            status_changes: StatusChanges::InCapture,
            reuse: Reuse::WhenMerged,
        },
    },
    checkpointer: || Some(Arc::new(PingPong)),
};

struct PingPong;

impl Checkpointer for PingPong {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Physical
    }
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        store.capture_merged(unit, to);
    }
}
