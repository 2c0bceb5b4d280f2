//! No journal: after a crash the last complete checkpoint remains.
//!
//! Commits cost one virtual call. Stamps name no log, so everything counts as closed, and replies
//! leave at once. Gsns still grow along every dependency.

use std::sync::Arc;
use std::time::Duration;

use stillpoint_format::{LOG_NONE, LogGsn, Stamp};
use stillpoint_io::DiskError;

use crate::error::JournalError;
use crate::holds::{Hold, Holder};
use crate::journal::{Capabilities, Durability, Entry, Journal, JournalStats, Shortage, Together};
use crate::registry::Row;

/// The row of the registry.
pub(crate) const ROW: Row = Row {
    name: "none",
    about: "no log: a crash goes back to the last checkpoint",
    durabilities: &[Durability::Checkpoint],
    capabilities: Capabilities {
        records_commits: false,
        logs_calls_alone: false,
        logs_before_images: false,
    },
    open: |_, _| Ok(Arc::new(NoJournal)),
};

#[derive(Debug)]
struct NoJournal;

impl Journal for NoJournal {
    fn append(&self, _log: u8, entry: &Entry<'_>) -> Result<Stamp, JournalError> {
        let gsn = entry.touched.iter().map(|stamp| stamp.gsn()).fold(0, u64::max) + 1;
        Ok(Stamp::new(gsn, LOG_NONE))
    }

    fn admit(&self, _log: u8) -> Result<(), JournalError> {
        Ok(())
    }

    fn set_aside(&self, _log: u8, _body_bytes: u64) -> Result<(), JournalError> {
        Ok(())
    }

    fn append_buffer(
        &self,
        log: u8,
        entry: &Entry<'_>,
        _: &mut Vec<u8>,
    ) -> Result<Stamp, JournalError> {
        self.append(log, entry)
    }

    fn append_together(&self, _: u8, together: &mut Together<'_>) -> Result<Stamp, JournalError> {
        let greatest = together.touched.iter().map(|stamp| stamp.gsn()).fold(0, u64::max);
        Ok(Stamp::new(greatest + together.records.len() as u64, LOG_NONE))
    }

    fn append_aside(&self, log: u8, entry: &Entry<'_>, _: u64) -> Result<Stamp, JournalError> {
        self.append(log, entry)
    }

    fn await_memory(&self, _: u8) {}

    fn give_back(&self, _: u8, _: &mut dyn Iterator<Item = u64>) {}

    fn set_limit(&self, _bytes: u64) {}

    fn limit_left(&self) -> u64 {
        u64::MAX
    }

    fn await_limit(&self, _bytes: u64, _timeout: Duration) -> bool {
        true
    }

    fn set_aside_bytes(&self) -> u64 {
        0
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

    fn is_closed(&self, _stamp: Stamp) -> bool {
        true
    }

    fn make_closed(&self, _stamps: &[Stamp]) -> Result<(), JournalError> {
        Ok(())
    }

    fn make_flushed(&self, _stamps: &[Stamp]) -> Result<(), JournalError> {
        Ok(())
    }

    fn positions_before_epoch(&self, _epoch: u64) -> Vec<LogGsn> {
        Vec::new()
    }

    fn bytes_since(&self, _positions: &[LogGsn]) -> u64 {
        0
    }

    fn hold(&self, _hold: Hold) -> Result<(), JournalError> {
        Ok(())
    }

    fn holders(&self) -> Vec<Holder> {
        Vec::new()
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
    fn everything_is_closed() {
        let journal = NoJournal;
        let touched = [Stamp::new(77, LOG_NONE), Stamp::new(5, 1)];
        let (kind, body) = (stillpoint_format::log::RecordKind::Writes, &|_: &mut Vec<u8>| Ok(()));
        let entry = Entry { kind, epoch: 1, touched: &touched, body };
        let stamp = journal.append(3, &entry).expect("nothing can fail");
        assert_eq!((stamp.gsn(), stamp.log()), (78, LOG_NONE));
        assert!(journal.is_closed(stamp));
        assert_eq!(journal.flush(3).expect("nothing can fail"), 0, "no log has a record");
        assert_eq!(journal.close().expect("nothing can fail"), []);
    }
}
