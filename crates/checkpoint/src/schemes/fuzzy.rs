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
//!
//! In the form of changes the scan takes the records with the dirty mark of the ended epoch. A commit
//! that is under way when the checkpoint begins has this mark, too, and a replay repeats it in any case.
//! Merges of checkpoints keep no stamps, so chains of this scheme are not merged.
//!
//! Deviations: the form of the CALC paper (§4.1.2) is [`fuzzy_undo`](super::fuzzy_undo). It stops commits for
//! its tables of dirty records and of active transactions, and a recovery undoes. Here nothing stops and
//! nothing is undone. No such table is needed, since a transaction changes no record before it commits.

use std::sync::Arc;

use stillpoint_store::{
    Capture, Checkpointer, LogRefused, Outcome, PointOfConsistency, SchemeLog, Stamp, Store,
};
use stillpoint_sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::changes::Changes;

#[derive(Default)]
pub(super) struct Fuzzy {
    /// The record in the log with which the last checkpoint began, or [`NO_RECORD`].
    begun: AtomicU64,
    changes: Option<Changes>,
}

/// Stands for no record. No commit has the gsn 0.
const NO_RECORD: u64 = 0;

impl Fuzzy {
    /// The form of changes.
    pub(super) fn with_changes() -> Self {
        Fuzzy { changes: Some(Changes::default()), ..Fuzzy::default() }
    }
}

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(Fuzzy::default()))
}

pub(crate) fn of_changes() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(Fuzzy::with_changes()))
}

impl Checkpointer for Fuzzy {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Fuzzy
    }

    fn takes_changes(&self) -> bool {
        self.changes.is_some()
    }

    fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        self.changes.as_ref().map_or(0, |changes| changes.settle(store, unit, slot))
    }

    fn begin(&self, epoch: u64, log: &dyn SchemeLog) -> Result<(), LogRefused> {
        let begun = match log.append(&epoch.to_le_bytes()) {
            // A replay needs the positions, and not the record. A full disk must not keep the checkpoint
            // from freeing the log.
            Err(LogRefused::NoRoom) => NO_RECORD,
            appended => appended?.to_bits(),
        };
        // SeqCst: the thread that publishes the checkpoint may be another one.
        self.begun.store(begun, SeqCst);
        Ok(())
    }

    fn section(&self) -> Option<String> {
        // SeqCst: as in `begin`.
        match self.begun.load(SeqCst) {
            NO_RECORD => Some("begun without a record: the log had no room".to_owned()),
            begun => {
                let begun = Stamp::from_bits(begun);
                Some(format!("begun at gsn {} of log {}", begun.gsn(), begun.log()))
            }
        }
    }

    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        if !to.is_abandoned() {
            store.scan_wanted(unit, to, &mut |cell| {
                cell.take_stamped();
            });
        }
    }

    fn ended(&self, epoch: u64, outcome: Outcome) {
        if let Some(changes) = &self.changes {
            changes.ended(epoch, outcome);
        }
    }
}
