//! Stamps of the commits that have added or removed records, for whoever counts records.
//!
//! A reader of a record finds the stamp of its last writer in the cell, and so depends on that commit. A
//! count reads no cell. Without these stamps its answer could outlive a commit that a crash takes back.
//!
//! ```text
//! T1 adds a record:  shares a word of the number ─▶ note(stamp) ─▶ gives the share back
//! T2 counts:         holds all words of the number ─▶ all() ─▶ depends on T1
//! ```

use stillpoint_format::{LOG_NONE, Stamp};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};

/// Number of logs. The transactions of models have no log.
const LOGS: usize = if cfg!(any(loom, shuttle)) { 1 } else { LOG_NONE as usize };

/// For each log, the newest commit that has added or removed a record of the table.
#[derive(Debug)]
pub(crate) struct NumberStamps {
    by_log: Box<[AtomicU64]>,
}

impl NumberStamps {
    /// No commit yet.
    pub(super) fn new() -> Self {
        Self { by_log: (0..LOGS).map(|_| AtomicU64::new(Stamp::NONE.to_bits())).collect() }
    }

    /// Notes a commit that adds or removes a record. The caller shares the number of the records.
    #[inline]
    pub(crate) fn note(&self, stamp: Stamp) {
        mutant!(NumberWithoutStamp => return);
        // A stamp without a log names nothing that a crash could lose.
        let Some(newest) = self.by_log.get(usize::from(stamp.log())) else { return };
        // Relaxed: the lock of the number orders this before the next count. The gsn decides between
        // stamps of one log. A commit of many records changes the word once.
        if newest.load(Relaxed) < stamp.to_bits() {
            newest.fetch_max(stamp.to_bits(), Relaxed);
        }
    }

    /// The newest commits, one of each log. The caller holds the number of the records exclusively.
    pub(crate) fn all(&self) -> impl Iterator<Item = Stamp> {
        // Relaxed: as in `note`.
        let stamps = self.by_log.iter().map(|newest| Stamp::from_bits(newest.load(Relaxed)));
        stamps.filter(|stamp| !stamp.is_none())
    }

    /// Bytes of the stamps.
    pub(super) fn held_bytes(&self) -> usize {
        self.by_log.len() * size_of::<AtomicU64>()
    }
}
