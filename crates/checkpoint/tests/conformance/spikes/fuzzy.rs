//! A fuzzy checkpoint with redo only. Source: Hagmann, *A Crash Recovery Scheme for a Memory-Resident
//! Database System*, IEEE ToC 1986, §3. Lomet et al. call it an inconsistent snapshot.
//!
//! Nothing stops and nothing is saved: the scan takes each record as it meets it, with the stamp of
//! its last writer. The image is no state of the store. A recovery replays all commits since the
//! begin of the checkpoint, and leaves out changes that are not newer than the record.
//!
//! ```text
//! REST ─ PREPARE: positions, record in the log ─ RESOLVE ─ CAPTURE: scan ─ REST ─ logs flushed ─ published
//!          replay begins here ──────────────────────────────────────────────────▶
//! ```
//! Invariants:
//! 1. Each commit that a log has at the positions is installed before the scan begins: a grace period
//!    lies between.
//! 2. The publication waits until all logs are closed past the highest stamp that the scan has met.
//!    So no record holds the value of a commit that a crash takes away.
//! 3. A key that has lost its value since PREPARE keeps its cell until COMPLETE, and the scan emits
//!    the deletion with its stamp. Otherwise a patch from before the deletion would find no value.
//! 4. A capture that is given up leaves no work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use stillpoint_checkpoint::{Capabilities, Row};
use stillpoint_store::{
    Capture, CellRules, Checkpointer, LogRefused, PointOfConsistency, Reuse, SchemeLog, Stamp,
    Store,
};

pub(crate) const ROW: Row = Row {
    name: "fuzzy",
    aliases: &[],
    about: "nothing stops and nothing is saved; a recovery replays from the begin of the checkpoint",
    source: "Hagmann, IEEE ToC 1986, §3",
    capabilities: Capabilities {
        point: Some(PointOfConsistency::Fuzzy),
        cells: CellRules { reuse: Reuse::OutsideOfCheckpoints, ..CellRules::IN_PLACE },
    },
    checkpointer: || Some(Arc::new(Fuzzy::default())),
};

#[derive(Default)]
struct Fuzzy {
    /// The record in the log with which the last checkpoint began.
    begun: AtomicU64,
}

impl Checkpointer for Fuzzy {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Fuzzy
    }

    fn begin(&self, epoch: u64, log: &dyn SchemeLog) -> Result<(), LogRefused> {
        let stamp = log.append(&epoch.to_le_bytes())?;
        self.begun.store(stamp.to_bits(), SeqCst);
        Ok(())
    }

    fn section(&self) -> Option<String> {
        let begun = Stamp::from_bits(self.begun.load(SeqCst));
        Some(format!("begun at gsn {} of log {}", begun.gsn(), begun.log()))
    }

    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        if !to.is_abandoned() {
            store.scan_records(unit, to, &mut |cell| cell.emit_stamped());
        }
    }
}
