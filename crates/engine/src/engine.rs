//! The engine: composes store, scheme and journal from a configuration, recovers, and keeps the
//! background work going.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_format::manifest::{CleanShutdown, Manifest};
use stillpoint_io::{Disk, DiskError, JoinHandle, OwnedDisk, ThreadError, catch_panic};
use stillpoint_journal::{Journal, JournalError};
use stillpoint_recovery::RecoverySummary;
use stillpoint_store::{Checkpointer, CommitLog, NoLog, Store, Worker};
use stillpoint_sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use stillpoint_sync::{mutant, planted};

use crate::builder::EngineBuilder;
use crate::catalog::Catalog;
use crate::checkpoints::Checkpoints;
use crate::config::Config;
use crate::error::Error;
use crate::guards::{Inside, Seats};
use crate::kinds::{Kinds, Operations, Parts};
use crate::life::Life;
use crate::log::{CommitCounter, CommitCounters, SessionLog};
use crate::procedure::Procedures;
use crate::session::{Session, Unflushed};
use crate::stats::Stats;

/// Time between two looks of the maintenance thread.
const MAINTENANCE_TICK: Duration = Duration::from_millis(5);
/// Time between two looks whether the data directory is still ours.
const OWNERSHIP_TICK: Duration = Duration::from_secs(1);

/// Time between two looks how much space the next checkpoint needs.
const RESERVE_TICK: Duration = Duration::from_millis(20);

/// What engine, sessions and background threads share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) disk: Arc<dyn Disk>,
    /// The same, with the lock of the data directory.
    pub(crate) owned: Arc<OwnedDisk>,
    pub(crate) store: Arc<Store>,
    /// What takes checkpoints, if the scheme takes any.
    pub(crate) scheme: Option<Arc<dyn Checkpointer>>,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) records_commits: bool,
    pub(crate) acknowledges_closed: bool,
    pub(crate) catalog: Catalog,
    pub(crate) incarnation: u32,
    pub(crate) floor: u64,
    pub(crate) procedures: Procedures,
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) commits: Mutex<CommitCounters>,
    pub(crate) recovered: RecoverySummary,
    pub(crate) life: Life,
    pub(crate) seats: Seats,
    pub(crate) stopping: AtomicBool,
    pub(crate) next_log: AtomicUsize,
}

impl Shared {
    #[inline]
    pub(crate) fn admit(&self, log: u8) -> Result<(), Error> {
        self.life.check()?;
        if self.records_commits {
            return self.journal.admit(log).map_err(|error| self.note_failure(error));
        }
        Ok(())
    }

    /// Changes the MANIFEST durably. If it is not known afterwards which one is on disk, the
    /// store has failed.
    pub(crate) fn publish<R>(&self, change: impl FnOnce(&mut Manifest) -> R) -> Result<R, Error> {
        self.confirm_ownership()?;
        self.catalog.publish(change).inspect_err(|error| {
            if let Error::ManifestUncertain { source } = error {
                self.fail(error.to_string());
                mutant!(CommitsInDoubt => return);
                // Nor may a transaction that is open already commit: half of what it writes may be
                // in tables that the MANIFEST has emptied.
                let reason = std::io::Error::new(source.source.kind(), source.source.to_string());
                let source = DiskError::new(source.op.clone(), source.path.clone(), reason);
                self.journal.refuse(Arc::new(source));
            }
        })
    }

    /// Remembers a failure after which nothing may be acknowledged.
    pub(crate) fn note_failure(&self, error: JournalError) -> Error {
        if error.is_fatal() {
            self.fail(error.to_string());
        }
        error.into()
    }

    pub(crate) fn make_durable(&self, unflushed: &Unflushed) -> Result<(), Error> {
        let closed = self.journal.make_closed(&unflushed.stamps);
        closed.map_err(|error| self.note_failure(error))
    }

    pub(crate) fn fail(&self, reason: String) {
        self.life.fail(reason);
    }

    /// Fails the store after a panic that may have left a publication or a flush half done.
    pub(crate) fn fail_by_panic(&self, panic: ThreadError) -> Error {
        let reason = panic.to_string();
        self.fail(reason.clone());
        let path = self.disk.describe(Path::new(""));
        let source = DiskError::new("work in", path, std::io::Error::other(reason));
        self.journal.refuse(Arc::new(source));
        panic.into()
    }

    /// Keeps the space of the next checkpoint from the log; returns it. The log's own next segments
    /// are part of it: the checkpoint leaves them.
    pub(crate) fn reserve_space(&self) -> u64 {
        if self.scheme.is_none() {
            return 0;
        }
        let bytes = self.checkpoints.needed_bytes(self) + self.journal.headroom_bytes();
        self.journal.set_reserve(bytes);
        bytes
    }

    /// Bytes that are free on the disk, if anybody knows.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.disk.space().ok().flatten().map(|space| space.free_bytes)
    }

    pub(crate) fn health(&self) -> Result<(), Error> {
        self.life.check()
    }

    /// Fails the store if the data directory is not ours any more. Everything that the disk is
    /// asked to change is refused from then on, flushes of the journal included.
    pub(crate) fn confirm_ownership(&self) -> Result<(), Error> {
        if let Some(reason) = self.owned.confirm()? {
            self.life.lose(reason);
        }
        self.life.check()
    }

    pub(crate) fn commit_count(&self) -> u64 {
        self.commits.lock().sum()
    }
}

/// An open store.
///
/// Dropping it without [`close`](Self::close) is like a crash of the process: what was durable
/// stays, and the next opening recovers. Its sessions may live on, but every later call of them is
/// refused with [`Error::Ended`]. A call that is under way on another thread ends in one of two
/// ways. If what it waits for was flushed before, it succeeds. Else it fails, and the next opening
/// says whether its transaction has happened. The data directory is given back last, when nothing
/// writes to it any more.
///
/// While it is open, `LOCK` says whose the data directory is. The engine looks for it before each
/// creation, renaming and removal of a file, before each publication, and once a second. If `LOCK`
/// is not the file that the engine has locked, the store has failed: [`Error::NotOwner`]. Commits
/// that were acknowledged after the replacement, for a second at most, are in files that are no
/// longer below the directory's name.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("data", &self.shared.config.data).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens a store, or makes one in an empty directory; recovers what the last run left.
    ///
    /// # Errors
    /// [`Error::Config`] if a setting cannot be used. [`Error::InUse`] if another process holds the
    /// data directory. [`Error::Recovery`] and the errors of the MANIFEST if what the last run left
    /// is damaged or incomplete: no file was changed then. Else the disk's errors.
    pub fn open(config: Config) -> Result<Self, Error> {
        Self::builder(config).open()
    }

    /// A store that is to be opened with more than its settings: with procedures, with somebody
    /// who hears of the progress, or in a way that can be cancelled.
    pub fn builder<'a>(config: Config) -> EngineBuilder<'a> {
        EngineBuilder::new(config)
    }

    pub(crate) fn open_built(builder: EngineBuilder<'_>) -> Result<Self, Error> {
        let cancel = builder.cancel.clone();
        let opened = crate::open::open(builder.into_parts());
        let shared =
            opened.map_err(|error| if cancel.is_cancelled() { Error::Cancelled } else { error })?;
        let engine = Self { shared, threads: Mutex::default() };
        engine.start_threads()?;
        Ok(engine)
    }

    fn start_threads(&self) -> Result<(), Error> {
        if !self.shared.config.environment.background {
            return Ok(());
        }
        let mut threads = self.threads.lock();
        threads.push(watched(&self.shared, "maintenance", |shared| {
            let clock = &*shared.config.environment.clock;
            shared.reserve_space();
            let mut look_ns = clock.monotonic_ns();
            let mut reserve_ns = look_ns;
            while !shared.stopping.load(Acquire) {
                if !shared.store.maintain() {
                    clock.sleep(MAINTENANCE_TICK);
                }
                if clock.monotonic_ns() >= look_ns {
                    look_ns = clock.monotonic_ns() + OWNERSHIP_TICK.as_nanos() as u64;
                    // A look that fails says nothing; a mismatch fails the store.
                    let _ = shared.confirm_ownership();
                }
                if clock.monotonic_ns() >= reserve_ns {
                    reserve_ns = clock.monotonic_ns() + RESERVE_TICK.as_nanos() as u64;
                    shared.reserve_space();
                }
                if let Err(error) = shared.journal.health() {
                    shared.note_failure(error);
                }
            }
        })?);
        threads.push(watched(&self.shared, "checkpoint", |shared| {
            // A save takes what the transactions leave, and a little more.
            stillpoint_io::go_behind();
            crate::checkpoints::run_in_background(shared);
        })?);
        Ok(())
    }

    /// Returns once what a session's answers wait for is safe from any crash. Callers at the same
    /// time share flushes.
    ///
    /// # Errors
    /// A flush has failed, now or before: nothing may be acknowledged any more.
    pub fn make_durable(&self, unflushed: &Unflushed) -> Result<(), Error> {
        self.shared.make_durable(unflushed)
    }

    /// True if it is safe already.
    pub fn is_durable(&self, unflushed: &Unflushed) -> bool {
        unflushed.stamps.iter().all(|&stamp| self.shared.journal.is_closed(stamp))
    }

    /// A session for one thread.
    ///
    /// # Errors
    /// [`Error::TooManySessions`] if [`Config::sessions`] of them exist.
    pub fn session(&self) -> Result<Session, Error> {
        let shared = &self.shared;
        let seat = shared.seats.take(shared.config.sessions)?;
        // Relaxed: spreads sessions over logs.
        let log = (shared.next_log.fetch_add(1, Relaxed) % shared.config.logs) as u8;
        let commits = shared.commits.lock().add();
        let parts = (!shared.kinds.is_empty()).then(|| {
            let operations = Operations::new(shared.journal.clone(), log, commits.clone());
            Parts::new(shared.kinds.clone(), shared.store.clone(), operations)
        });
        let commit_log: Box<dyn CommitLog> = if shared.records_commits {
            Box::new(SessionLog {
                journal: shared.journal.clone(),
                log,
                commits,
                wants_dependencies: shared.acknowledges_closed,
            })
        } else {
            Box::new(CountingLog { log: NoLog::above(shared.floor), commits })
        };
        let worker = Worker::new(shared.store.clone(), commit_log)
            .ok_or(Error::TooManySessions(shared.config.sessions))?;
        Ok(Session::new(shared.clone(), worker, parts, log, seat))
    }

    /// Takes a checkpoint now, or waits for the one under way and takes another; returns when it
    /// is published.
    ///
    /// # Errors
    /// [`Error::InsideTransaction`] from inside a transaction; else why it failed, the previous one
    /// being kept.
    pub fn checkpoint(&self) -> Result<crate::CheckpointDone, Error> {
        Inside::refuse("checkpoint")?;
        crate::checkpoints::take(&self.shared)
    }

    /// Asks the background thread for a checkpoint and returns at once; false if one is under way.
    pub fn checkpoint_in_background(&self) -> bool {
        self.shared.checkpoints.request()
    }

    /// Statistics.
    pub fn stats(&self) -> Stats {
        crate::stats::gather(&self.shared)
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Sets the memory limit; what is held already stays.
    pub fn set_max_memory_bytes(&self, bytes: usize) {
        self.shared.store.set_max_memory_bytes(bytes);
    }

    /// Changes when checkpoints begin by themselves; `None` for never.
    pub fn set_checkpoint_every(&self, every: Option<Duration>) {
        self.shared.checkpoints.set_every(every);
    }

    /// Ok, or why nothing may be acknowledged any more.
    ///
    /// # Errors
    /// [`Error::Failed`] or [`Error::NotOwner`] once the store has failed.
    pub fn health(&self) -> Result<(), Error> {
        self.shared.health()
    }

    /// Flushes everything and closes the store, so that the next opening has nothing to recover
    /// but what the log holds. A checkpoint under way is given up, since the log has what it was to
    /// hold. Without a journal a last checkpoint is taken, as fast as the disk writes. Every later call of its sessions is refused with [`Error::Ended`].
    ///
    /// # Errors
    /// [`Error::InsideTransaction`] from inside a transaction: the engine is dropped then. Else why
    /// something could not be flushed.
    pub fn close(self) -> Result<(), Error> {
        Inside::refuse("close")?;
        self.stop_threads()?;
        let shared = &self.shared;
        shared.health()?;
        if !shared.records_commits && shared.scheme.is_some() {
            crate::checkpoints::take_last(shared)?;
        }
        let last = shared.journal.close().map_err(|error| shared.note_failure(error))?;
        if shared.records_commits {
            let incarnation = shared.incarnation;
            shared.publish(|manifest| {
                manifest.clean_shutdown = Some(CleanShutdown { incarnation, last });
            })?;
        }
        Ok(())
    }

    fn stop_threads(&self) -> Result<(), Error> {
        if self.shared.stopping.swap(true, AcqRel) {
            return Ok(());
        }
        self.shared.checkpoints.stop();
        // All of them end before the first error is told.
        let ended: Vec<_> = self.threads.lock().drain(..).map(JoinHandle::join).collect();
        Ok(ended.into_iter().collect::<Result<(), _>>()?)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if Inside::is_now() {
            // A thread may wait for the transaction that we are in. It ends by itself.
            self.shared.stopping.store(true, Release);
            self.shared.checkpoints.stop();
        } else if self.stop_threads().is_err() {
            self.shared.fail("a background thread panicked".to_owned());
        }
        self.shared.life.end();
        self.shared.owned.give_back();
    }
}

/// Starts a background thread. If it panics the store has failed, with that as the reason.
fn watched(
    shared: &Arc<Shared>,
    name: &'static str,
    body: impl FnOnce(&Arc<Shared>) + Send + 'static,
) -> Result<JoinHandle<()>, ThreadError> {
    let shared = shared.clone();
    stillpoint_io::spawn(name, move || {
        if let Err(panic) = catch_panic(name, || body(&shared)) {
            shared.fail_by_panic(panic);
        }
    })
}

/// A log that keeps nothing, and counts.
struct CountingLog {
    log: NoLog,
    commits: CommitCounter,
}

impl CommitLog for CountingLog {
    fn append(
        &mut self,
        commit: &stillpoint_store::Commit<'_>,
    ) -> Result<stillpoint_format::Stamp, stillpoint_store::LogRefused> {
        // Relaxed: a statistic with one writer.
        self.commits.store(self.commits.load(Relaxed) + 1, Relaxed);
        self.log.append(commit)
    }
    fn wait_for_room(&mut self) -> Result<(), stillpoint_store::LogRefused> {
        self.log.wait_for_room()
    }
    fn is_closed(&self, stamp: stillpoint_format::Stamp) -> bool {
        self.log.is_closed(stamp)
    }
}
