//! The open transactions that have changed tables in place. A checkpoint must leave their records
//! in the logs, so that a start can undo the transactions that a crash cuts off.
//!
//! A transaction is named by log and gsn of its first record. The transaction is listed here from
//! the append of that record until shortly after the append of the record that ends it.
//!
//! Whoever finds the logs at their limit waits here. Each such thread also rolls the oldest transactions
//! back that keep too much, since a checkpoint frees nothing behind them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_format::{LogGsn, Stamp};
use stillpoint_io::Clock;
use stillpoint_journal::{Journal, JournalError};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::{LogFreed, LogFull, LogPinned, LogRefused};

use crate::config::Config;
use crate::kinds::Resting;
use crate::kinds::done::UndoFiles;

/// The longest wait for a checkpoint that frees the logs, if the settings allow no shorter one.
const LOG_WAIT_MAX: Duration = Duration::from_secs(10);
/// Interval at which a thread that waits looks for transactions to roll back.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Looks before a refusal where no thread frees the log.
const LOOKS_IN_VAIN: u32 = 20;
/// A wait that begins so soon after another one goes on with it.
const SAME_WAIT: Duration = Duration::from_millis(1);
/// While the limit leaves less than this part of it, as a divisor, no transaction begins to change tables in
/// place. Those that have begun go on.
const LEFT_FOR_OPEN: u64 = 8;

/// Bytes of the log that an open transaction may keep, together with its undo, while nobody waits for the log.
fn unless_others_wait(limit: u64) -> u64 {
    limit / 16 * 13
}

/// What a session lacked when the logs refused a record of its for their limit.
#[derive(Debug, Default)]
pub(crate) struct Lack(Mutex<Lacking>);

#[derive(Clone, Copy, Debug, Default)]
struct Lacking {
    /// Bytes. 0 for nothing.
    bytes: u64,
    /// The first record of the transaction.
    first: Option<LogGsn>,
    /// When the last wait began and ended.
    begun_ns: u64,
    ended_ns: u64,
}

impl Lack {
    /// Notes a refusal.
    pub(crate) fn note(&self, bytes: u64, first: Option<LogGsn>) {
        let mut lacking = self.0.lock();
        (lacking.bytes, lacking.first) = (bytes, first);
    }
}

/// The open transactions of one log, by the gsn of their first record. Those that stay open across calls
/// have their parts with them.
type OfLog = BTreeMap<u64, Option<Weak<Resting>>>;

/// The open transactions of all sessions.
#[derive(Debug)]
pub(crate) struct OpenTransactions {
    journal: Arc<dyn Journal>,
    undo_files: Arc<UndoFiles>,
    clock: Arc<dyn Clock>,
    /// The longest wait at the limit of the logs.
    wait_max: Duration,
    /// Locked while a first record is appended.
    of_log: Box<[Mutex<OfLog>]>,
    /// For each log, the first record of a transaction that keeps too much of the log. It was the oldest one.
    too_old: Box<[AtomicU64]>,
    /// The limit of the log, in bytes.
    limit: AtomicU64,
    freed: Mutex<LogFreed>,
    /// Why an undo is in memory and not in the logs, if one is.
    lost_undo: OnceLock<String>,
}

impl OpenTransactions {
    /// A list of open transactions in `logs` logs, with none open.
    pub(crate) fn new(
        journal: Arc<dyn Journal>,
        undo_files: Arc<UndoFiles>,
        config: &Config,
    ) -> Self {
        let of_log = (0..config.logs).map(|_| Mutex::default()).collect();
        let too_old = (0..config.logs).map(|_| AtomicU64::new(0)).collect();
        let wait_max = config.lock_timeout.map_or(LOG_WAIT_MAX, |most| most.min(LOG_WAIT_MAX));
        let clock = config.environment.clock.clone();
        let limit = AtomicU64::new(config.log_limit_bytes);
        let freed = Mutex::new(LogFreed::InTime);
        let lost_undo = OnceLock::new();
        Self { journal, undo_files, clock, wait_max, of_log, too_old, limit, freed, lost_undo }
    }

    /// The files of the undos that memory has no place for.
    pub(crate) fn undo_files(&self) -> &Arc<UndoFiles> {
        &self.undo_files
    }

    /// Sets the limit of the log, and what frees it.
    pub(crate) fn set_limit(&self, limit: u64, freed: LogFreed) {
        // Relaxed: a setting.
        self.limit.store(limit, Relaxed);
        *self.freed.lock() = freed;
    }

    /// Notes that an undo is not in the logs, before memory shows it.
    pub(crate) fn note_lost_undo(&self, reason: &str) {
        self.lost_undo.get_or_init(|| reason.to_owned());
    }

    /// Why an undo is in memory and not in the logs, if one is. Then no checkpoint of a kind may be published: a
    /// start would look for what it does not hold any more.
    pub(crate) fn lost_undo(&self) -> Option<&str> {
        self.lost_undo.get().map(String::as_str)
    }

    /// Admits a further operation of a transaction that has logged so many bytes, and then needs so many to
    /// undo all.
    ///
    /// # Errors
    /// It has logged more than half of the limit, or both are more than thirteen sixteenths. Or the transaction is
    /// the oldest one and keeps too much.
    pub(crate) fn admit(
        &self,
        first: Option<LogGsn>,
        (bytes, undo_bytes): (u64, u64),
    ) -> Result<(), LogPinned> {
        // Relaxed: a setting.
        let limit = self.limit.load(Relaxed);
        let is_too_large = bytes > limit / 2 || bytes + undo_bytes > unless_others_wait(limit);
        if mutant!(is_too_large, LogPinnedForEver => false) {
            return Err(LogPinned { bytes, limit });
        }
        self.told(first).map_or(Ok(()), Err)
    }

    /// Why a transaction with this first record must end: it is the oldest one and keeps too much.
    pub(crate) fn told(&self, first: Option<LogGsn>) -> Option<LogPinned> {
        let too_old = first.and_then(|first| {
            let too_old = self.too_old.get(usize::from(first.log))?;
            // Relaxed: an operation later will do, too.
            (first.gsn <= too_old.load(Relaxed)).then_some(first)
        });
        // Relaxed: a setting.
        let limit = self.limit.load(Relaxed);
        too_old.map(|_| LogPinned { bytes: self.kept_bytes(), limit })
    }

    /// Bytes of the logs from the first record of the oldest open transaction on.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.journal.bytes_since(&self.positions())
    }

    /// Ends the oldest transactions one after the other, as long as they keep more than thirteen sixteenths of
    /// what the log may have.
    pub(crate) fn end_oldest_in_time(&self) {
        // Relaxed: a setting.
        let limit = self.limit.load(Relaxed);
        self.end_oldest((limit, unless_others_wait(limit)));
    }

    /// Ends the oldest transactions one after the other, as long as they keep more than `most` bytes of the
    /// log. Room that is set aside for undos counts, too. A transaction at rest is rolled back here. Another
    /// one ends with an error at its next operation.
    fn end_oldest(&self, (limit, most): (u64, u64)) {
        while self.kept_bytes().saturating_add(self.journal.set_aside_bytes()) > most {
            let firsts = self.of_log.iter().zip(0..).filter_map(|(open, log)| {
                let open = open.lock();
                let (&gsn, resting) = open.first_key_value()?;
                Some((gsn, log, resting.clone()))
            });
            let Some((gsn, log, resting)) = firsts.min_by_key(|(gsn, log, _)| (*gsn, *log)) else {
                return;
            };
            mutant!(LogPinnedForEver => return);
            // Relaxed: as in `told`.
            self.too_old[usize::from(log)].fetch_max(gsn, Relaxed);
            let resting = mutant!(resting, IdleKeepsLog => None).and_then(|of| of.upgrade());
            let why = LogPinned { bytes: self.kept_bytes(), limit };
            if !resting.is_some_and(|resting| resting.roll_back(LogGsn { log, gsn }, why)) {
                return;
            }
        }
    }

    /// Whether a transaction may begin to change tables in place.
    pub(crate) fn admits_new(&self) -> bool {
        // Relaxed: a setting.
        let limit = self.limit.load(Relaxed);
        self.journal.limit_left() >= limit / LEFT_FOR_OPEN
    }

    /// The refusal of a transaction that has not waited yet.
    pub(crate) fn full(&self) -> LogFull {
        // Relaxed: a setting.
        LogFull { limit: self.limit.load(Relaxed), waited_ms: 0, freed: *self.freed.lock() }
    }

    /// The wait at the limit of the logs, from now on.
    pub(crate) fn begin_wait(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// Waits for what a session lacks, if it lacks anything.
    ///
    /// # Errors
    /// As [`wait_for_log`](Self::wait_for_log).
    pub(crate) fn wait_for(&self, lack: &Lack) -> Result<(), LogRefused> {
        let Lacking { bytes, first, begun_ns, ended_ns } = *lack.0.lock();
        if bytes == 0 {
            return Ok(());
        }
        let now_ns = self.begin_wait();
        // Others took what was left, and the record was refused again: the same wait.
        let goes_on = now_ns - ended_ns < SAME_WAIT.as_nanos() as u64;
        let begun_ns = if goes_on { begun_ns } else { now_ns };
        let waited = self.wait_for_log(bytes, begun_ns, first);
        let ended_ns = if waited.is_ok() { self.begin_wait() } else { 0 };
        *lack.0.lock() = Lacking { begun_ns, ended_ns, ..Lacking::default() };
        waited
    }

    /// Waits until the limit of the logs leaves so many bytes, for a transaction with this first record. The
    /// wait began at `begun_ns`.
    ///
    /// # Errors
    /// [`LogRefused::Full`] after the longest wait, or after some looks if no thread of the store frees the logs.
    /// [`LogRefused::Pinned`] if the transaction keeps too much.
    pub(crate) fn wait_for_log(
        &self,
        wanted: u64,
        begun_ns: u64,
        first: Option<LogGsn>,
    ) -> Result<(), LogRefused> {
        let mut looks = 0;
        loop {
            if self.journal.await_limit(wanted, Duration::ZERO) {
                return Ok(());
            }
            // Relaxed: a setting.
            let limit = self.limit.load(Relaxed);
            self.end_oldest((limit, limit / 4 * 3));
            if let Some(why) = self.told(first) {
                return Err(why.into());
            }
            let waited = Duration::from_nanos(self.clock.monotonic_ns() - begun_ns);
            let freed = *self.freed.lock();
            let is_in_vain = matches!(freed, LogFreed::ByCaller | LogFreed::Never);
            if is_in_vain && looks < LOOKS_IN_VAIN {
                // The journal gives nothing while it counts what is left, and others give back what they need not.
                looks += 1;
                self.journal.await_limit(wanted, LOOK_AGAIN);
                continue;
            }
            if is_in_vain || waited >= self.wait_max || wanted > limit {
                let waited_ms = waited.as_millis() as u64;
                return Err(LogFull { limit, waited_ms, freed }.into());
            }
            self.journal.await_limit(wanted, LOOK_AGAIN);
        }
    }

    /// Waits until a transaction may begin to change tables in place.
    ///
    /// # Errors
    /// As [`wait_for_log`](Self::wait_for_log).
    pub(crate) fn wait_to_begin(&self, wanted: u64, begun_ns: u64) -> Result<(), LogRefused> {
        // Relaxed: a setting.
        let limit = self.limit.load(Relaxed);
        self.wait_for_log(wanted.max(limit / LEFT_FOR_OPEN), begun_ns, None)
    }

    /// Appends the first record of a transaction, which is open from here on. `resting` has its parts, if it
    /// stays open across calls.
    pub(crate) fn begin(
        &self,
        log: u8,
        resting: Option<&Weak<Resting>>,
        append: impl FnOnce() -> Result<Stamp, JournalError>,
    ) -> Result<Stamp, JournalError> {
        let mut open = self.of_log[usize::from(log)].lock();
        let stamp = append()?;
        open.insert(stamp.gsn(), resting.cloned());
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
            let first = open.first_key_value().map_or(u64::MAX, |(first, _)| first - 1);
            let first = mutant!(first, OpenTransactionsNotHeld => u64::MAX);
            position.gsn = position.gsn.min(first);
        }
        positions
    }
}
