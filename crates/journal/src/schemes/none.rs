//! No journal: what the last complete checkpoint holds is what a crash leaves.
//!
//! Commits cost one virtual call. Stamps name no log, so everything counts as closed and
//! replies leave at once; their gsns still grow along every dependency.

use std::sync::Arc;

use stillpoint_format::log::Record;
use stillpoint_format::{LOG_NONE, LogGsn, Stamp};
use stillpoint_io::DiskError;

use crate::error::JournalError;
use crate::journal::{
    Appended, Capabilities, CommitInput, Durability, Journal, JournalStats, Operation, Shortage,
};
use crate::registry::Scheme;

const NAME: &str = "none";

/// The row of the registry.
pub(crate) const SCHEME: Scheme = Scheme {
    name: NAME,
    description: "no log: a crash goes back to the last checkpoint",
    durabilities: &[Durability::Checkpoint],
    capabilities: Capabilities {
        records_commits: false,
        records_operations: false,
        replays_by_key: false,
    },
    open: |_, _| Ok(Arc::new(NoJournal)),
};

#[derive(Debug)]
struct NoJournal;

impl Journal for NoJournal {
    fn append(&self, _log: u8, commit: &CommitInput<'_>) -> Result<Appended, JournalError> {
        let touched = commit.touched.iter().map(|stamp| stamp.gsn());
        let gsn = touched.fold(commit.floor, u64::max) + 1;
        Ok(Appended { stamp: Stamp::new(gsn, LOG_NONE) })
    }

    fn admit(&self, _log: u8) -> Result<(), JournalError> {
        Ok(())
    }

    fn append_operation(
        &self,
        _log: u8,
        _operation: &Operation<'_>,
    ) -> Result<Appended, JournalError> {
        Err(JournalError::Unsupported { scheme: NAME, what: "record operations" })
    }

    fn read_operation(
        &self,
        _position: Stamp,
        _visit: &mut dyn FnMut(&Record<'_>),
    ) -> Result<(), JournalError> {
        Err(JournalError::Unsupported { scheme: NAME, what: "read records back" })
    }

    fn flush(&self, _log: u8) -> Result<u64, JournalError> {
        Ok(0)
    }

    fn flush_all(&self) -> Result<(), JournalError> {
        Ok(())
    }

    fn set_reserve(&self, _bytes: u64) {}

    fn shed(&self, _bytes: u64) -> Result<(), JournalError> {
        Ok(())
    }

    fn headroom_bytes(&self) -> u64 {
        0
    }

    fn shortage(&self) -> Shortage {
        Shortage::None
    }

    fn refuse(&self, _source: Arc<DiskError>) {}

    fn health(&self) -> Result<(), JournalError> {
        Ok(())
    }

    fn closed(&self, _log: u8) -> u64 {
        0
    }

    fn is_closed(&self, _stamp: Stamp) -> bool {
        true
    }

    fn make_closed(&self, _stamps: &[Stamp]) -> Result<(), JournalError> {
        Ok(())
    }

    fn positions_before_epoch(&self, _epoch: u64) -> Vec<LogGsn> {
        Vec::new()
    }

    fn bytes_since(&self, _positions: &[LogGsn]) -> u64 {
        0
    }

    fn release_below(&self, _floor: u64, _positions: &[LogGsn]) -> Result<(), JournalError> {
        Ok(())
    }

    fn stats(&self) -> JournalStats {
        JournalStats::default()
    }

    fn close(&self) -> Result<Vec<LogGsn>, JournalError> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_closed_and_operations_are_refused() {
        let journal = NoJournal;
        let commit = CommitInput { epoch: 1, floor: 77, touched: &[], writes: &|_| Ok(()) };
        let stamp = journal.append(3, &commit).expect("nothing can fail").stamp;
        assert_eq!((stamp.gsn(), stamp.log()), (78, LOG_NONE));
        assert!(journal.is_closed(stamp));
        let refused = journal.read_operation(stamp, &mut |_| ()).expect_err("no records");
        assert_eq!(
            refused.to_string(),
            "journal none does not read records back; choose one that does"
        );
    }
}
