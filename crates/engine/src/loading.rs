//! The load of a store that is served meanwhile.
//!
//! Sessions load the keys that they ask for by themselves. What needs every record waits here: full
//! checkpoints, merges, snapshots, scans and counts. A checkpoint of changes waits for the writes of the logs
//! alone.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stillpoint_checkpoint::Progress;
use stillpoint_recovery::{RecoveryError, RecoverySummary, Remaining};
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::error::Error;
use crate::shared::Shared;

/// Time after an error of the disk, or of the system, until the load begins anew. It doubles each time.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Time after which a checkpoint of changes that is due does not wait for the load. A load that ends sooner
/// brings the writes of the logs into the store faster than looks for their records do.
const LONG_LOAD: Duration = Duration::from_secs(30);
/// Why the load of a store that is closed has stopped.
const CLOSED: &str = "the store was closed before";

/// The load of a store that is served meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadStatus {
    /// Whether every record is in memory.
    pub is_done: bool,
    /// Bytes of the checkpoints' files that are loaded.
    pub bytes_done: u64,
    /// Bytes of the checkpoints' files.
    pub bytes_total: u64,
    /// Bytes of indexes and key maps, which were read before the store was served.
    pub index_bytes: u64,
    /// Keys that somebody asked for before they were loaded.
    pub keys_asked: u64,
    /// Blocks of checkpoints that were read for these keys.
    pub blocks_read: u64,
    /// Records that the load has read. 0 if the store was loaded before it was served.
    pub records: u64,
    /// Time since the store is served, up to the end of the load. Zero if the store was loaded before.
    pub elapsed: Duration,
    /// The reason why the load has stopped, if it has. Keys are still found in the checkpoints, but for
    /// those that cannot be read. No checkpoint is taken or merged.
    pub failure: Option<String>,
}

#[derive(Debug)]
enum State {
    Waits,
    Runs,
    Ended(Option<String>),
}

/// What a start has left to load.
#[derive(Debug)]
pub(crate) struct BackgroundLoad {
    /// `None` once everything is loaded, or if it was before the store was served. The files are open
    /// until then.
    remaining: Mutex<Option<Arc<Remaining>>>,
    bytes_total: u64,
    index_bytes: u64,
    /// Keys that were asked for, and blocks that were read for them, once everything is loaded.
    asked: Mutex<(u64, u64)>,
    /// Whether all writes of the logs have entered the store. Locked while they do.
    replayed: Mutex<bool>,
    /// What the load has read, once everything is loaded.
    loaded: Mutex<RecoverySummary>,
    /// When the store was served, and when the load has ended, in monotonic nanoseconds. 0 for not yet.
    begun_ns: u64,
    ended_ns: AtomicU64,
    progress: Arc<Progress>,
    is_done: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

impl BackgroundLoad {
    pub(crate) fn new(remaining: Option<Remaining>, now_ns: u64) -> Self {
        let state = if remaining.is_some() { State::Waits } else { State::Ended(None) };
        Self {
            is_done: AtomicBool::new(remaining.is_none()),
            bytes_total: remaining.as_ref().map_or(0, Remaining::file_bytes),
            index_bytes: remaining.as_ref().map_or(0, Remaining::index_bytes),
            remaining: Mutex::new(remaining.map(Arc::new)),
            asked: Mutex::default(),
            replayed: Mutex::default(),
            loaded: Mutex::default(),
            begun_ns: now_ns,
            ended_ns: AtomicU64::new(0),
            progress: Arc::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Whether every record is in memory.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        // Acquire: partner of the Release in `run`.
        self.is_done.load(Acquire)
    }

    /// Whether the background threads of the store have to run the load.
    pub(crate) fn is_due(&self) -> bool {
        matches!(*self.state.lock(), State::Waits)
    }

    /// Whether the load has ended before every record was in memory.
    pub(crate) fn has_stopped(&self) -> bool {
        self.failure().is_some()
    }

    /// Why the load has ended before every record was in memory, if it has.
    pub(crate) fn failure(&self) -> Option<String> {
        match &*self.state.lock() {
            State::Ended(reason) => reason.clone(),
            State::Waits | State::Runs => None,
        }
    }

    /// Gives the load up, since the store is being closed. Who waits for it gets an error.
    pub(crate) fn stop(&self) {
        self.progress.cancel();
        let mut state = self.state.lock();
        if matches!(*state, State::Waits) {
            *state = State::Ended(Some(CLOSED.to_owned()));
        }
        self.changed.notify_all();
    }

    /// Waits until every record is in memory. A store without background threads loads them now.
    ///
    /// # Errors
    /// [`Error::NotLoaded`].
    pub(crate) fn wait(&self, shared: &Shared) -> Result<(), Error> {
        if self.is_done() {
            return Ok(());
        }
        if !shared.config.environment.background {
            self.run(shared);
        }
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Ended(None) => return Ok(()),
                State::Ended(Some(reason)) => return Err(Error::NotLoaded(reason.clone())),
                State::Waits | State::Runs => self.changed.wait(&mut state),
            }
        }
    }

    /// Has all writes of the logs enter the store, each with its record, whatever else is still to be
    /// loaded. Then a checkpoint of changes lacks nothing.
    ///
    /// # Errors
    /// [`Error::NotLoaded`].
    pub(crate) fn enter_replayed(&self, shared: &Shared) -> Result<(), Error> {
        let mut have_entered = self.replayed.lock();
        if *have_entered || self.is_done() {
            return Ok(());
        }
        if let State::Ended(Some(reason)) = &*self.state.lock() {
            return Err(Error::NotLoaded(reason.clone()));
        }
        let Some(remaining) = self.remaining.lock().clone() else { return Ok(()) };
        let is_over = || shared.stopping.load(Acquire);
        let entered = remaining.enter_replayed(&shared.store, &is_over);
        entered.map_err(|error| Error::NotLoaded(error.to_string()))?;
        if is_over() {
            return Err(Error::NotLoaded(CLOSED.to_owned()));
        }
        *have_entered = true;
        Ok(())
    }

    /// Whether a store is loaded for so long that checkpoints which are due do not wait for it.
    pub(crate) fn takes_long(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.begun_ns) >= LONG_LOAD.as_nanos() as u64
    }

    /// Loads what is left, unless another thread does or has done so.
    pub(crate) fn run(&self, shared: &Shared) {
        {
            let mut state = self.state.lock();
            if !matches!(*state, State::Waits) {
                return;
            }
            *state = State::Runs;
        }
        let mut end = End { load: self, failure: Some("a thread panicked".to_owned()) };
        let emptied = || {
            tracing::info!("the load ends: all that was to load was removed");
            self.finish(shared);
        };
        let Some(remaining) = self.remaining.lock().clone() else { return };
        let clock = &shared.config.environment.clock;
        let mut pause = RETRY_AFTER;
        let loaded = loop {
            match remaining.load(&shared.store, clock, &self.progress, &emptied) {
                Err(error) if self.is_tried_again(shared, &error) => {
                    tracing::error!(%error, "the load could not go on, and begins anew");
                    let until_ns = clock.monotonic_ns() + pause.as_nanos() as u64;
                    while clock.monotonic_ns() < until_ns && !shared.stopping.load(Acquire) {
                        clock.sleep(RETRY_AFTER / 10);
                    }
                    pause = (2 * pause).min(RETRY_AFTER_MAX);
                }
                loaded => break loaded,
            }
        };
        match loaded {
            Ok(loaded) => {
                let keys_and_blocks = remaining.asked();
                if !self.is_done() {
                    tracing::info!(
                        records = loaded.records_loaded,
                        bytes = loaded.checkpoint_bytes,
                        ms = loaded.load_time.as_millis() as u64,
                        keys_asked = keys_and_blocks.0,
                        blocks_read = keys_and_blocks.1,
                        "every record is loaded"
                    );
                }
                *self.loaded.lock() = loaded;
                *self.asked.lock() = keys_and_blocks;
                self.finish(shared);
            }
            Err(error) => {
                if !shared.stopping.load(Acquire) {
                    tracing::error!(%error, "the load has stopped; no checkpoint is taken any more");
                }
                end.failure = Some(error.to_string());
            }
        }
    }

    /// Every record is in memory.
    fn finish(&self, shared: &Shared) {
        if self.is_done() {
            return;
        }
        if let Some(remaining) = self.remaining.lock().take() {
            *self.asked.lock() = remaining.asked();
        }
        shared.store.maintain();
        // Relaxed: a statistic.
        self.ended_ns.store(shared.config.environment.clock.monotonic_ns(), Relaxed);
        // Release: partner of the Acquire in `is_done`.
        self.is_done.store(true, Release);
        *self.state.lock() = State::Ended(None);
        self.changed.notify_all();
    }

    /// Notes that tables were emptied. Less memory is kept then. A load that has stopped ends after all, if
    /// nothing of the checkpoints counts any more.
    pub(crate) fn note_flush(&self, shared: &Shared) {
        if self.is_done() {
            return;
        }
        let Some(remaining) = self.remaining.lock().clone() else { return };
        remaining.keep_memory(&shared.store, self.progress.snapshot().written_bytes);
        if shared.stopping.load(Acquire) || !remaining.is_empty(&shared.store) {
            return;
        }
        {
            let mut state = self.state.lock();
            if !matches!(*state, State::Ended(Some(_))) {
                // The thread that loads sees it, too.
                return;
            }
            *state = State::Runs;
        }
        let mut end = End { load: self, failure: Some("a thread panicked".to_owned()) };
        match remaining.end(&shared.store) {
            Ok(()) => {
                tracing::info!(
                    "the damaged checkpoints count no more: checkpoints are taken again"
                );
                self.finish(shared);
            }
            Err(error) => end.failure = Some(error.to_string()),
        }
    }

    /// The counts of the recovery, with those of the load once it has ended.
    pub(crate) fn recovered(&self, recovered: &RecoverySummary) -> RecoverySummary {
        let loaded = self.loaded.lock();
        RecoverySummary {
            records_loaded: recovered.records_loaded + loaded.records_loaded,
            checkpoint_bytes: recovered.checkpoint_bytes + loaded.checkpoint_bytes,
            stale: recovered.stale + loaded.stale,
            load_time: recovered.load_time + loaded.load_time,
            ..recovered.clone()
        }
    }

    /// Whether a load that has met this error begins anew. What is loaded stays. Damage stays damage, and a
    /// caller without a background thread has to know at once.
    fn is_tried_again(&self, shared: &Shared, error: &RecoveryError) -> bool {
        shared.config.environment.background
            && !error.is_damage()
            && !self.progress.is_cancelled()
            && !shared.stopping.load(Acquire)
    }

    /// The status at `now_ns`, in monotonic nanoseconds.
    pub(crate) fn status(&self, now_ns: u64) -> LoadStatus {
        let asked = self.remaining.lock().as_ref().map(|remaining| remaining.asked());
        let (keys_asked, blocks_read) = asked.unwrap_or_else(|| *self.asked.lock());
        let Self { bytes_total, index_bytes, .. } = *self;
        let is_done = self.is_done();
        let progress = self.progress.snapshot();
        let bytes_done =
            if is_done { bytes_total } else { progress.written_bytes.min(bytes_total) };
        // Relaxed: a statistic.
        let until_ns = match self.ended_ns.load(Relaxed) {
            0 if is_done => self.begun_ns,
            0 => now_ns,
            ended_ns => ended_ns,
        };
        let failure = self.failure();
        LoadStatus {
            is_done,
            bytes_done,
            bytes_total,
            index_bytes,
            keys_asked,
            blocks_read,
            records: progress.records,
            elapsed: Duration::from_nanos(until_ns.saturating_sub(self.begun_ns)),
            failure,
        }
    }
}

/// The drop of this value, also by a panic, ends the load for those who wait for it.
struct End<'a> {
    load: &'a BackgroundLoad,
    failure: Option<String>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if !self.load.is_done() {
            *self.load.state.lock() = State::Ended(self.failure.take());
            self.load.changed.notify_all();
        }
    }
}
