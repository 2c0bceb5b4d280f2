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
use stillpoint_sync::{mutant, planted};

/// The open transactions of all sessions.
#[derive(Debug)]
pub(crate) struct OpenTransactions {
    journal: Arc<dyn Journal>,
    /// For each log, the gsns of the open transactions' first records. Locked while a first record
    /// is appended.
    of_log: Box<[Mutex<BTreeSet<u64>>]>,
}

impl OpenTransactions {
    /// A list of open transactions in `logs` logs, with none open.
    pub(crate) fn new(journal: Arc<dyn Journal>, logs: usize) -> Self {
        Self { journal, of_log: (0..logs).map(|_| Mutex::default()).collect() }
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
