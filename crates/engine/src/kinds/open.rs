//! The open transactions that have changed tables in place. A checkpoint must leave their records
//! in the logs, so that a start can undo the transactions that a crash cuts off.
//!
//! A transaction is named by log and gsn of its first record. The transaction is listed here from
//! the append of that record until shortly after the append of the record that ends it.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_format::{LogGsn, Stamp};
use stillpoint_journal::{Journal, JournalError};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::LogPinned;

/// The open transactions of all sessions.
#[derive(Debug)]
pub(crate) struct OpenTransactions {
    journal: Arc<dyn Journal>,
    /// For each log, the gsns of the open transactions' first records. Locked while a first record
    /// is appended.
    of_log: Box<[Mutex<BTreeSet<u64>>]>,
    /// For each log, the first record of a transaction that keeps too much of the log. It was the oldest one.
    too_old: Box<[AtomicU64]>,
    /// The limit of the log, in bytes.
    limit: AtomicU64,
}

impl OpenTransactions {
    /// A list of open transactions in `logs` logs, with none open.
    pub(crate) fn new(journal: Arc<dyn Journal>, logs: usize, limit: u64) -> Self {
        let of_log = (0..logs).map(|_| Mutex::default()).collect();
        let too_old = (0..logs).map(|_| AtomicU64::new(0)).collect();
        Self { journal, of_log, too_old, limit: AtomicU64::new(limit) }
    }

    /// Sets the limit of the log.
    pub(crate) fn set_limit(&self, limit: u64) {
        // Relaxed: a setting.
        self.limit.store(limit, Relaxed);
    }

    /// Admits a further operation of a transaction that has logged so many bytes.
    ///
    /// # Errors
    /// These are more than half of the limit, or the transaction is the oldest one and keeps too much.
    pub(crate) fn admit(&self, first: Option<LogGsn>, bytes: u64) -> Result<(), LogPinned> {
        // Relaxed: a setting.
        let limit = self.limit.load(Relaxed);
        if mutant!(bytes > limit / 2, LogPinnedForEver => false) {
            return Err(LogPinned { bytes, limit });
        }
        let too_old = first.and_then(|first| {
            let too_old = self.too_old.get(usize::from(first.log))?;
            // Relaxed: an operation later will do, too.
            (first.gsn <= too_old.load(Relaxed)).then_some(first)
        });
        match too_old {
            None => Ok(()),
            Some(_) => Err(LogPinned { bytes: self.kept_bytes(), limit }),
        }
    }

    /// Bytes of the logs from the first record of the oldest open transaction on.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.journal.bytes_since(&self.positions())
    }

    /// Lets the oldest transaction end with an error at its next operation, if it keeps more than three
    /// quarters of what the log may have. One transaction after the other.
    pub(crate) fn end_oldest_in_time(&self) {
        // Relaxed: a setting.
        let limit = self.limit.load(Relaxed);
        if self.kept_bytes() <= limit / 4 * 3 {
            return;
        }
        let firsts = self.of_log.iter().enumerate().filter_map(|(log, open)| {
            let first = open.lock().first().copied()?;
            Some((first, log))
        });
        if let Some((first, log)) = firsts.min() {
            // Relaxed: as in `admit`.
            let first = mutant!(first, LogPinnedForEver => 0);
            self.too_old[log].fetch_max(first, Relaxed);
        }
    }

    /// Appends the first record of a transaction, which is open from here on.
    pub(crate) fn begin(
        &self,
        log: u8,
        append: impl FnOnce() -> Result<Stamp, JournalError>,
    ) -> Result<Stamp, JournalError> {
        let mut open = self.of_log[usize::from(log)].lock();
        let stamp = append()?;
        open.insert(stamp.gsn());
        Ok(stamp)
    }

    /// Notes that the record that ends a transaction has been appended.
    pub(crate) fn remove(&self, first: LogGsn) {
        // A transaction that a start undoes began in an earlier incarnation, and is not listed
        // here.
        if let Some(open) = self.of_log.get(usize::from(first.log)) {
            open.lock().remove(&first.gsn);
        }
    }

    /// Of each log, a gsn up to which all records have been appended, and which no open transaction
    /// reaches back to.
    pub(crate) fn positions(&self) -> Vec<LogGsn> {
        // All logs are locked together, so no transaction begins meanwhile. Each transaction has
        // ended, is listed, or begins later.
        let open: Vec<_> = self.of_log.iter().map(Mutex::lock).collect();
        let mut positions = self.journal.positions_before_epoch(u64::MAX);
        for (position, open) in positions.iter_mut().zip(&open) {
            let first = open.first().map_or(u64::MAX, |first| first - 1);
            let first = mutant!(first, OpenTransactionsNotHeld => u64::MAX);
            position.gsn = position.gsn.min(first);
        }
        positions
    }
}
