//! Redo: one record per commit with the values it wrote, in per-session logs.
//!
//! Sources: the dependency-aware commit of parallel logs is decision record 0003, "closed, not
//! flushed". GSNs are those of Haubenschild et al., *Rethinking Logging, Checkpoints, and Recovery
//! for High-Performance Storage Engines*, SIGMOD 2020, §3.1–3.2. GSNs are taken per commit instead
//! of per page access, since memory tables need no steal.
//!
//! ```text
//!  commit, locks held        leader of the log              everybody
//!  gsn = 1+max(last,touched) takes the gathered batches     closed watermark covers
//!  record → open batch   ──▶ writes, flushes            ──▶ own record: reply leaves
//!  cells stamped (log,gsn)   advances closed watermarks
//! ```
//!
//! Invariants:
//! - Gsns grow in a log and along every dependency; so per key the records order by gsn,
//!   which is all that replay by key needs.
//! - A record names its dependencies, except those that are closed or named by an earlier record of
//!   its log. Recovery keeps prefixes, so the earlier record covers the dependencies that it names.
//! - A batch lies in space that was allocated before. So a full disk refuses records and leaves
//!   everything flushable.
//! - A failed write or flush ends the log: nothing that it carried is acknowledged, and
//!   neither is anything in other logs that depends on it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_format::{GSN_MAX, LOG_NONE, LogGsn, Stamp};
use stillpoint_io::{DIRECT_ALIGN, DiskError, JoinHandle, catch_panic, spawn};
use stillpoint_sync::{mutant, planted};

use crate::closing::Closing;
use crate::error::JournalError;
use crate::holds::{Hold, Holder, Holds};
use crate::journal::{
    Capabilities, Config, Durability, Entry, Environment, Journal, JournalStats, Shortage, Together,
};
use crate::limit::Limit;
use crate::log::{Background, Log, Shared};
use crate::registry::Row;
use crate::room::{Room, fit_segment};
use crate::segments::{Kept, list_spares};
use crate::workers::{Signal, Wake};

/// Smallest segment: header, and room for a few batches.
const SEGMENT_BYTES_MIN: u64 = 4 * DIRECT_ALIGN as u64;
/// Time for which the flusher gathers full batches while more of them come.
const GATHER: Duration = Duration::from_millis(1);
/// Interval between attempts of a refused preparation.
const RETRY: Duration = Duration::from_millis(50);
/// Interval at which the thread that prepares segments looks for work without a signal.
const LOOK: Duration = Duration::from_secs(1);

/// The row of the registry.
pub(crate) const ROW: Row = Row {
    name: "redo",
    about: "the values that each transaction wrote, in one log per worker",
    durabilities: &[Durability::Relaxed, Durability::Strict],
    capabilities: Capabilities {
        records_commits: true,
        logs_calls_alone: false,
        logs_before_images: false,
    },
    open: |env, config| Ok(Arc::new(Redo::open(env, config)?)),
};

/// State shared by the background threads and the callers.
#[derive(Debug)]
struct Core {
    shared: Arc<Shared>,
    logs: Box<[Log]>,
    flusher: Signal,
    preparer: Signal,
}

#[derive(Debug)]
pub(super) struct Redo {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Segments of logs that this incarnation does not have.
    retired: Mutex<Vec<Kept>>,
    holds: Holds,
}

impl Redo {
    pub(super) fn open(env: &Environment, config: &Config) -> Result<Self, JournalError> {
        check(config)?;
        let segments = u64::from(config.logs) * (1 + config.spare_segments as u64);
        let segment_bytes = fit_segment(config.segment_bytes, segments, env.disk.space()?);
        let config = &Config { segment_bytes, ..config.clone() };
        let room = Arc::new(Room::new(Arc::clone(&env.disk)));
        let closing = Closing::new(config.logs, config.floor);
        let shared = Arc::new(Shared {
            disk: Arc::clone(&env.disk),
            clock: Arc::clone(&env.clock),
            config: config.clone(),
            closing,
            room,
            limit: Limit::new(config.logs),
        });
        let open = |log| {
            let spares = list_spares(&*env.disk, log, config.incarnation)?;
            Log::open(log, env, &shared, spares)
        };
        let logs = (0..config.logs).map(open).collect::<Result<Box<[Log]>, JournalError>>()?;
        for log in config.logs..LOG_NONE {
            let spares = list_spares(&*env.disk, log, config.incarnation)?;
            spares.iter().try_for_each(|spare| env.disk.remove(&spare.path))?;
        }
        let retired = config.earlier.iter().filter(|of| of.log >= config.logs);
        let retired = retired.map(Kept::from).collect();
        let (flusher, preparer) = (Signal::default(), Signal::default());
        let core = Arc::new(Core { shared, logs, flusher, preparer });
        let redo = Redo {
            core,
            threads: Mutex::default(),
            retired: Mutex::new(retired),
            holds: Holds::default(),
        };
        if config.background {
            redo.start()?;
        }
        Ok(redo)
    }

    fn start(&self) -> Result<(), JournalError> {
        let mut threads = self.threads.lock();
        let core = Arc::clone(&self.core);
        threads.push(spawn("log-flusher", move || core.watch("log-flusher", Core::run_flusher))?);
        let core = Arc::clone(&self.core);
        threads
            .push(spawn("log-preparer", move || core.watch("log-preparer", Core::run_preparer))?);
        Ok(())
    }

    /// Bytes of the segments of logs that this incarnation does not have.
    fn retired_bytes(&self) -> u64 {
        self.retired.lock().iter().map(|kept| kept.bytes).sum()
    }

    /// Counts what the holders keep and what is set aside, and takes the shares of the logs back.
    fn count_for_limit(&self) {
        let count = self.core.shared.limit.begin_count();
        let is_limited = self.core.shared.limit.bytes() != u64::MAX;
        let kept = (0..).zip(&self.core.logs).map(|(log, of)| {
            let position = self.holds.position(log).unwrap_or(0);
            of.end_share(is_limited, position)
        });
        count.end(self.retired_bytes() + kept.sum::<u64>());
    }

    /// Ends the threads. A panic of a thread becomes an error.
    fn stop(&self) -> Result<(), JournalError> {
        self.core.flusher.stop();
        self.core.preparer.stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        threads.into_iter().try_for_each(|thread| Ok(thread.join()?))
    }
}

impl Drop for Redo {
    fn drop(&mut self) {
        // A panic of a thread has shown itself as a failure of the log that it served.
        let _ = self.stop();
    }
}

impl Core {
    /// Runs the body of a background thread. If the thread panics all logs fail, since nobody does
    /// its work any more.
    fn watch(&self, name: &str, body: impl FnOnce(&Self)) {
        if let Err(panic) = catch_panic(name, || body(self)) {
            let error = JournalError::from(panic);
            self.logs.iter().for_each(|log| log.fail(error.clone()));
        }
    }

    fn log(&self, log: u8) -> Result<&Log, JournalError> {
        let logs = self.closing().logs();
        self.logs.get(usize::from(log)).ok_or(JournalError::UnknownLog { log, logs })
    }

    fn closing(&self) -> &Closing {
        &self.shared.closing
    }

    /// Bytes on disk above the positions of a hold.
    fn bytes_above(&self, hold: &Hold) -> u64 {
        (0..).zip(&self.logs).map(|(log, of)| of.bytes_above(hold.position(log))).sum()
    }

    fn flush(&self, log: &Log) -> Result<u64, JournalError> {
        let gsn = log.last_gsn();
        log.flush_to(gsn)?;
        Ok(gsn)
    }

    /// Writes full batches as they come, and flushes everything twice per interval.
    fn run_flusher(&self) {
        let clock = &self.shared.clock;
        let period_ns = (self.shared.config.interval / 2).as_nanos().max(1) as u64;
        let mut due_ns = clock.monotonic_ns() + period_ns;
        let idle = || !self.logs.iter().any(Log::has_work);
        let mut busy = false;
        loop {
            let left_ns = due_ns.saturating_sub(clock.monotonic_ns());
            let left = Duration::from_nanos(left_ns);
            // While work keeps coming, this thread sleeps for a moment in which batches gather. No
            // caller has to wake this thread.
            let wake = if busy {
                self.flusher.pause(left.min(GATHER))
            } else {
                self.flusher.wait(left, idle)
            };
            if wake == Wake::Stop {
                return;
            }
            busy = !idle();
            let due = clock.monotonic_ns() >= due_ns;
            if due {
                due_ns = clock.monotonic_ns() + period_ns;
            }
            for log in &self.logs {
                // The log keeps a failure and returns it to every caller.
                if due {
                    let _ = self.flush(log);
                    log.trim();
                } else if log.has_work() {
                    let _ = log.write_out();
                }
            }
        }
    }

    /// Keeps prepared segments in stock.
    fn run_preparer(&self) {
        loop {
            let mut stocked = true;
            for log in &self.logs {
                stocked &= log.stock().fill();
            }
            let wake = if stocked {
                let missing = |log: &Log| log.stock().is_short();
                self.preparer.wait(LOOK, || !self.logs.iter().any(missing))
            } else {
                // After a refusal of the disk the thread pauses. No caller that needs a segment
                // shortens the pause.
                self.preparer.pause(RETRY)
            };
            if wake == Wake::Stop {
                return;
            }
        }
    }
}

impl Journal for Redo {
    #[inline]
    fn append(&self, log: u8, entry: &Entry<'_>) -> Result<Stamp, JournalError> {
        let core = &*self.core;
        let background = Background {
            batch_full: &|| core.flusher.work(),
            segment_taken: &|| core.preparer.work(),
        };
        core.log(log)?.append(entry, &background)
    }

    fn append_buffer(
        &self,
        log: u8,
        entry: &Entry<'_>,
        body: &mut Vec<u8>,
    ) -> Result<Stamp, JournalError> {
        let core = &*self.core;
        let background = Background {
            batch_full: &|| core.flusher.work(),
            segment_taken: &|| core.preparer.work(),
        };
        core.log(log)?.append_buffer(entry, body, &background)
    }

    fn append_together(&self, log: u8, together: &mut Together<'_>) -> Result<Stamp, JournalError> {
        let core = &*self.core;
        let background = Background {
            batch_full: &|| core.flusher.work(),
            segment_taken: &|| core.preparer.work(),
        };
        core.log(log)?.append_together(together, &background)
    }

    fn set_aside(&self, log: u8, body_bytes: u64) -> Result<(), JournalError> {
        self.core.log(log)?.set_aside(body_bytes)
    }

    fn append_aside(
        &self,
        log: u8,
        entry: &Entry<'_>,
        body_bytes: u64,
    ) -> Result<Stamp, JournalError> {
        let core = &*self.core;
        let background = Background {
            batch_full: &|| core.flusher.work(),
            segment_taken: &|| core.preparer.work(),
        };
        core.log(log)?.append_aside(entry, body_bytes, &background)
    }

    fn await_memory(&self, log: u8) {
        if let Ok(log) = self.core.log(log) {
            log.await_memory();
        }
    }

    fn give_back(&self, log: u8, bodies: &mut dyn Iterator<Item = u64>) {
        if let Ok(log) = self.core.log(log) {
            log.give_back(bodies);
        }
    }

    fn admit(&self, log: u8) -> Result<(), JournalError> {
        self.core.log(log)?.admit(&|| self.core.preparer.work())
    }

    fn set_limit(&self, bytes: u64) {
        mutant!(LogLimitIgnored => return);
        if self.core.shared.limit.set(bytes) {
            self.count_for_limit();
        }
    }

    fn limit_left(&self) -> u64 {
        self.core.shared.limit.left()
    }

    fn await_limit(&self, bytes: u64, timeout: Duration) -> bool {
        self.core.shared.limit.wait(bytes, timeout)
    }

    fn set_aside_bytes(&self) -> u64 {
        self.core.logs.iter().map(Log::set_aside_bytes).sum()
    }

    fn flush(&self, log: u8) -> Result<u64, JournalError> {
        self.core.flush(self.core.log(log)?)
    }

    fn flush_all(&self) -> Result<(), JournalError> {
        self.core.logs.iter().try_for_each(|log| self.core.flush(log).map(drop))
    }

    fn set_reserve(&self, bytes: u64) {
        self.core.shared.room.set_reserve(bytes);
    }

    fn shed(&self, bytes: u64) -> Result<(), JournalError> {
        Ok(self.core.logs.iter().try_for_each(|log| log.stock().shed(bytes))?)
    }

    fn headroom_bytes(&self) -> u64 {
        self.core.logs.len() as u64 * self.core.shared.config.segment_bytes
    }

    fn shortage(&self) -> Shortage {
        self.core.logs.iter().map(Log::shortage).max().unwrap_or_default()
    }

    fn refuse(&self, source: Arc<DiskError>) {
        for (log, id) in self.core.logs.iter().zip(0..) {
            log.refuse(JournalError::Poisoned { log: id, source: source.clone() });
        }
    }

    fn health(&self) -> Result<(), JournalError> {
        self.core.logs.iter().try_for_each(Log::health)
    }

    #[inline]
    fn is_closed(&self, stamp: Stamp) -> bool {
        self.core.closing().is_closed(stamp)
    }

    fn make_closed(&self, stamps: &[Stamp]) -> Result<(), JournalError> {
        let (core, closing) = (&*self.core, self.core.closing());
        for &stamp in stamps {
            let given_out = |log: &Log| stamp.gsn() <= log.last_gsn();
            if !closing.is_closed(stamp) && !core.log(stamp.log()).is_ok_and(given_out) {
                return Err(JournalError::UnknownStamp { stamp, logs: closing.logs() });
            }
            while let Some(next) = closing.blocker(stamp) {
                core.log(next.log)?.flush_to(next.gsn)?;
            }
        }
        Ok(())
    }

    fn make_flushed(&self, stamps: &[Stamp]) -> Result<(), JournalError> {
        stamps.iter().try_for_each(|stamp| self.core.log(stamp.log())?.flush_to(stamp.gsn()))
    }

    fn positions_before_epoch(&self, epoch: u64) -> Vec<LogGsn> {
        let position = |(log, of): (u8, &Log)| LogGsn { log, gsn: of.last_gsn_before(epoch) };
        (0..).zip(&self.core.logs).map(position).collect()
    }

    fn bytes_since(&self, positions: &[LogGsn]) -> u64 {
        let since = Hold { holder: "", floor: 0, positions: positions.to_vec() };
        self.retired_bytes() + self.core.bytes_above(&since)
    }

    fn hold(&self, hold: Hold) -> Result<(), JournalError> {
        let _one = self.holds.lock_freeing();
        self.holds.replace(hold);
        for (log, of) in (0..).zip(&self.core.logs) {
            self.holds.position(log).map_or(Ok(()), |position| of.release_below(position))?;
        }
        // The incarnations that wrote the retired segments all ended below our floor.
        if self.holds.floor().is_some_and(|floor| floor >= self.core.shared.config.floor) {
            let mut retired = self.retired.lock();
            while let Some(kept) = retired.last() {
                self.core.shared.disk.remove(&kept.path)?;
                retired.pop();
            }
        }
        if self.core.shared.limit.bytes() != u64::MAX {
            self.count_for_limit();
        }
        Ok(())
    }

    fn holders(&self) -> Vec<Holder> {
        let floor = self.core.shared.config.floor;
        let holder = |hold: &Hold| {
            let retired = if hold.floor < floor { self.retired_bytes() } else { 0 };
            Holder { name: hold.holder, bytes: retired + self.core.bytes_above(hold) }
        };
        self.holds.list().iter().map(holder).collect()
    }

    fn stats(&self) -> JournalStats {
        let mut stats = JournalStats::default();
        for log in &self.core.logs {
            log.count(&mut stats);
        }
        stats.open_dependencies = self.core.closing().waiting() as u64;
        stats
    }

    fn close(&self) -> Result<Vec<LogGsn>, JournalError> {
        self.core.logs.iter().for_each(|log| log.refuse(JournalError::Closed));
        self.flush_all()?;
        self.stop()?;
        self.health()?;
        let last = |(log, of): (u8, &Log)| LogGsn { log, gsn: of.last_gsn() };
        Ok((0..).zip(&self.core.logs).map(last).collect())
    }
}

fn check(config: &Config) -> Result<(), JournalError> {
    let refuse =
        |field, value, requirement| Err(JournalError::Configuration { field, value, requirement });
    if config.logs == 0 {
        return refuse("logs", 0, "a journal has 1 to 255 logs");
    }
    if config.segment_bytes < SEGMENT_BYTES_MIN
        || !config.segment_bytes.is_multiple_of(DIRECT_ALIGN as u64)
    {
        let requirement = "a segment is a multiple of 4096 bytes, at least 16384";
        return refuse("segment bytes", config.segment_bytes, requirement);
    }
    if config.floor >= GSN_MAX {
        return refuse("gsn floor", config.floor, "the store has used up its 2^52 gsns");
    }
    if config.batch_bytes == 0 || config.buffer_bytes < config.batch_bytes {
        let requirement = "it holds at least one batch, and a batch at least one byte";
        return refuse("buffer bytes", config.buffer_bytes as u64, requirement);
    }
    if config.interval.is_zero() {
        return refuse("flush interval", 0, "it is greater than zero");
    }
    if !ROW.durabilities.contains(&config.durability) {
        let requirement = "redo is relaxed or strict";
        return refuse("durability", config.durability as u64, requirement);
    }
    Ok(())
}
