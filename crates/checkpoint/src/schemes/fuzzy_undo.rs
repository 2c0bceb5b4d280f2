//! The fuzzy checkpoint as published, with undo. Sources: Ren, Diamond, Abadi, Thomson, *Low-Overhead
//! Asynchronous Checkpointing in Main-Memory Database Systems*, SIGMOD 2016, §4.1.2; Mohan et al.,
//! *ARIES*, ACM TODS 1992, §5.4.
//!
//! Commits stop for a moment, while the tables of dirty records and of active transactions are made.
//! Then the scan takes each record as it meets it, with the stamp of its last writer, beside commits.
//! The publication waits for no commit to be closed. So a record may have the value of a commit that a
//! crash takes away. A recovery undoes that commit before it replays the others.
//!
//! ```text
//! PREPARE: positions ─ stop: tables ─ RESOLVE ─ CAPTURE: scan ─ REST ─ logs written ahead ─ published
//!          replay begins here ──────────────────────────────────────────────────────────▶
//! ```
//! Invariants:
//! 1. As [`fuzzy`](super::fuzzy), 1, 3 and 4.
//! 2. Write-ahead: the publication waits until the log has the record of each commit whose value the
//!    image has. It also waits for each commit whose value such a commit has overwritten. So a recovery
//!    finds each before-image that it needs. The engine follows the second relation from log to log.
//! 3. All commits up to the positions are closed when the checkpoint is published. A replay takes them
//!    for decided.
//!
//! Deviations:
//! - A transaction writes no record before it commits. So the image never has a value of an open
//!   transaction, and an active transaction is a commit that is not closed. The MANIFEST names the last
//!   one of each log. The dirty records are those of a partial checkpoint, whose MANIFEST entry counts
//!   them by table; a second list of them would have no reader.
//! - With one log nothing is ever undone: a log loses its end, and the commits of the image are not in
//!   it. With several, a commit is undone if it has read what another log has lost.
//! - The full form reads the records where they are. The paper's merges dirty records into a second
//!   image in memory first. What it writes is the same.

use std::sync::Arc;

use stillpoint_format::LOG_NONE;
use stillpoint_store::{
    Capture, Checkpointer, LogRefused, Outcome, PointOfConsistency, SchemeLog, Stamp, Store,
};
use stillpoint_sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::fuzzy::Fuzzy;

/// Number of logs that a store may have.
const LOGS: usize = LOG_NONE as usize;

struct FuzzyUndo {
    fuzzy: Fuzzy,
    /// Of each log the greatest gsn that the present capture has met.
    met: Box<[AtomicU64]>,
}

impl FuzzyUndo {
    fn over(fuzzy: Fuzzy) -> Option<Arc<dyn Checkpointer>> {
        let met = (0..LOGS).map(|_| AtomicU64::new(0)).collect();
        Some(Arc::new(FuzzyUndo { fuzzy, met }))
    }
}

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    FuzzyUndo::over(Fuzzy::default())
}

pub(crate) fn of_changes() -> Option<Arc<dyn Checkpointer>> {
    FuzzyUndo::over(Fuzzy::with_changes())
}

impl Checkpointer for FuzzyUndo {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::FuzzyUndone
    }

    fn takes_changes(&self) -> bool {
        self.fuzzy.takes_changes()
    }

    fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        self.fuzzy.settle(store, unit, slot)
    }

    fn begin(&self, epoch: u64, log: &dyn SchemeLog) -> Result<(), LogRefused> {
        // SeqCst, here and below: once for each log, and the threads of a capture are others.
        self.met.iter().for_each(|met| met.store(0, SeqCst));
        self.fuzzy.begin(epoch, log)
    }

    fn met(&self) -> Vec<Stamp> {
        let met = (0..LOG_NONE).zip(&self.met).map(|(log, met)| Stamp::new(met.load(SeqCst), log));
        met.filter(|stamp| stamp.gsn() > 0).collect()
    }

    fn section(&self) -> Option<String> {
        self.fuzzy.section()
    }

    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        if to.is_abandoned() {
            return;
        }
        let mut met = [0; LOGS];
        store.scan_wanted(unit, to, &mut |cell| {
            // What a checkpoint has loaded is of no log.
            if let Some(stamp) = cell.take_stamped()
                && let Some(met) = met.get_mut(usize::from(stamp.log()))
            {
                *met = stamp.gsn().max(*met);
            }
        });
        for (all, gsn) in self.met.iter().zip(met).filter(|(_, gsn)| *gsn > 0) {
            all.fetch_max(gsn, SeqCst);
        }
    }

    fn ended(&self, epoch: u64, outcome: Outcome) {
        self.fuzzy.ended(epoch, outcome);
    }
}
