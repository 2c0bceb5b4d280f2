//! The engine composes store, scheme and journal from a configuration, recovers, and runs the
//! background work.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_format::manifest::CleanShutdown;
use stillpoint_io::{JoinHandle, ThreadError, catch_panic};
use stillpoint_store::{CommitLog, NoLog, Worker};
use stillpoint_sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::builder::EngineBuilder;
use crate::checkpoints::{CheckpointCounts, Wish};
use crate::config::{CheckpointPolicy, Config};
use crate::error::Error;
use crate::guards::Inside;
use crate::kinds::{Lack, Operations, Parts};
use crate::log::{CommitCounter, SessionLog};
use crate::named;
use crate::session::Session;
use crate::shared::Shared;
use crate::stats::{MemoryRoom, Stats};
use crate::unflushed::Unflushed;

/// Interval of the maintenance thread.
const MAINTENANCE_TICK: Duration = Duration::from_millis(5);
/// Interval of the checks that the data directory is still ours.
const OWNERSHIP_TICK: Duration = Duration::from_secs(1);

/// Checkpoints that an orderly end takes at most, while sessions go on to commit.
const LAST_CHECKPOINTS_MAX: usize = 3;

/// Interval at which the space of the next checkpoint is computed.
const RESERVE_TICK: Duration = Duration::from_millis(20);

/// An open store.
///
/// A drop without [`close`](Self::close) is like a crash of the process: durable data stay, and the
/// next opening recovers. Sessions may outlive the engine, but every later call of them is refused
/// with [`Error::Ended`]. A call under way on another thread ends in one of two ways. If the call's
/// records were flushed before, the call succeeds. Otherwise the call fails, and the next opening
/// decides whether its transaction has happened. The lock of the data directory is released last,
/// after the last write.
///
/// The file `LOCK` says who owns the data directory. The engine checks this file before each
/// creation, renaming and removal of a file, before each publication, and once a second. If `LOCK`
/// is not the file that the engine has locked, the store fails with [`Error::NotOwner`]. Commits
/// acknowledged between the replacement and the next check, within a second, are in files outside
/// of the directory's present name.
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
    /// Opens a store, or makes one in an empty directory, and recovers the last run's state.
    ///
    /// # Errors
    /// [`Error::Config`] if a setting cannot be used. [`Error::InUse`] if another process holds the
    /// data directory. [`Error::Recovery`] and the errors of the MANIFEST if the data are damaged
    /// or incomplete; then no file was changed. Otherwise errors of the disk.
    pub fn open(config: Config) -> Result<Self, Error> {
        Self::builder(config).open()
    }

    /// A builder for a store with procedures or kinds of tables, with reports of progress, or with
    /// cancellation.
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
        self.shared.heed_log_limit();
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
                shared.checkpoints.end_view_for_memory(shared);
                if clock.monotonic_ns() >= look_ns {
                    look_ns = clock.monotonic_ns() + OWNERSHIP_TICK.as_nanos() as u64;
                    // A failed check says nothing. A mismatch fails the store.
                    let _ = shared.confirm_ownership();
                    // Here, since the thread of checkpoints may be busy with the one that is late.
                    shared.checkpoints.warn_if_overdue(shared);
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
        if self.shared.load.is_due() {
            threads.push(watched(&self.shared, "loading", |shared| shared.load.run(shared))?);
        }
        if let Some(paged) = &self.shared.of_engine.paged {
            let pool = paged.pool().clone();
            threads.push(watched(&self.shared, "pages", move |shared| {
                pool.provide(|| shared.stopping.load(Acquire));
            })?);
        }
        threads.push(watched(&self.shared, "checkpoint", |shared| {
            // A checkpoint gets the CPU time that transactions leave, and a little more.
            stillpoint_io::go_behind();
            crate::checkpoints::run_in_background(shared);
        })?);
        if self.shared.scheme.as_ref().is_some_and(|scheme| scheme.takes_changes()) {
            threads.push(watched(&self.shared, "merge", |shared| {
                stillpoint_io::go_behind();
                crate::checkpoints::merge_in_background(shared);
            })?);
        }
        Ok(())
    }

    /// Waits until the commits that a session's answers depend on are durable. Concurrent callers
    /// share flushes.
    ///
    /// # Errors
    /// A flush has failed, now or before. Nothing may be acknowledged any more.
    pub fn make_durable(&self, unflushed: &Unflushed) -> Result<(), Error> {
        self.shared.make_durable(&unflushed.stamps)
    }

    /// Whether these commits are durable already.
    pub fn is_durable(&self, unflushed: &Unflushed) -> bool {
        unflushed.stamps.iter().all(|&stamp| self.shared.journal.is_closed(stamp))
    }

    /// Everything that was committed so far, whoever did it.
    pub fn appended(&self) -> Unflushed {
        self.shared.appended()
    }

    /// Whether what a session has [met](Session::dependencies) survives any crash: it is durable in
    /// the log, or, without a journal, a published checkpoint has it.
    pub fn is_saved(&self, met: &Unflushed) -> bool {
        self.shared.is_saved(met)
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
        let lack = Arc::<Lack>::default();
        let parts = (!shared.kinds.is_empty()).then(|| {
            let (journal, open) = (shared.journal.clone(), shared.open.clone());
            let operations = Operations::new(journal, log, commits.clone(), (open, lack.clone()));
            let limits = shared.wait_limits();
            Box::new(Parts::new(shared.kinds.clone(), shared.store.clone(), operations, limits))
        });
        let commit_log: Box<dyn CommitLog> = if shared.records_commits {
            Box::new(SessionLog {
                journal: shared.journal.clone(),
                log,
                commits,
                wants_dependencies: shared.acknowledges_closed,
                overwritten: shared.overwritten.clone(),
                ahead: Vec::new(),
                open: shared.open.clone(),
                lack,
            })
        } else {
            Box::new(CountingLog { log: NoLog::above(shared.floor), commits })
        };
        let worker = Worker::new(shared.store.clone(), commit_log)
            .ok_or(Error::TooManySessions(shared.config.sessions))?;
        Ok(Session::new(shared.clone(), worker, parts, log, seat))
    }

    /// A session for one thread, with a name of 1 to 255 bytes. The store keeps the serial of the
    /// session's last commit, exactly: the commit writes it. So after a crash, or after any other
    /// end, the program opens a session of that name, and [`Session::serial`] says where to go on.
    ///
    /// Each commit of the session writes one record more. A journal that logs calls gets the writes
    /// of a named session's calls. The session tracks its [durable serial](Session::durable_serial)
    /// from the beginning.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// use stillpoint::{Config, Durability, Engine};
    ///
    /// let inputs = ["rex", "tom", "kit"];
    /// let mut config = Config::new(directory.path());
    /// config.durability = Durability::Strict;
    /// for run in 0..2 {
    ///     let engine = Engine::open(config.clone())?;
    ///     let pets = engine.table("pets")?;
    ///     let mut session = engine.session_named("importer")?;
    ///     assert_eq!(session.serial(), 2 * run);
    ///     // Goes on with the first input that the store does not have.
    ///     for input in inputs.iter().skip(session.serial() as usize).take(2) {
    ///         session.transact(|tx| tx.put(pets, input.as_bytes(), b"pet"))?;
    ///     }
    ///     assert_eq!(engine.len(pets), 2 + run);
    ///     // A drop without a close is like a crash.
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SessionName`] if a living session has the name, or the name is empty or too long.
    /// [`Error::InsideTransaction`] from inside a transaction. [`Error::TooManySessions`]. The
    /// first session of a name also needs what a commit needs, and the first one of a store what a
    /// new table needs.
    pub fn session_named(&self, name: &str) -> Result<Session, Error> {
        Inside::refuse("session_named")?;
        named::check_length(name)?;
        let table = self.find_or_make_tables(&[named::SESSIONS])?[0];
        let name = self.shared.seats.names.take(name, table)?;
        let mut session = self.session()?;
        session.begin_named(name)?;
        Ok(session)
    }

    /// Takes a checkpoint, after the one under way if there is one. Returns when the checkpoint is
    /// published. If the scheme takes none, publishes the files of tables of other kinds.
    ///
    /// # Errors
    /// [`Error::InsideTransaction`] from inside a transaction. Otherwise the reason of the failure;
    /// the previous checkpoint stays in force.
    pub fn checkpoint(&self) -> Result<crate::CheckpointDone, Error> {
        Inside::refuse("checkpoint")?;
        let done = crate::checkpoints::take(&self.shared)?;
        if !self.shared.config.environment.background && self.shared.load.is_done() {
            // No caller waits for the result. The status shows an error.
            let _ = crate::checkpoints::merge(&self.shared, false);
        }
        Ok(done)
    }

    /// Merges the newest checkpoint with those that it goes on from, but not across a point that is
    /// [kept](Config::keep_checkpoints). `None` if there is nothing to merge, if another merge is
    /// under way, or if a full checkpoint has replaced these meanwhile.
    ///
    /// # Errors
    /// [`Error::InsideTransaction`] from inside a transaction; otherwise the reason of the failure.
    /// The checkpoints stay as they were.
    pub fn merge_checkpoints(&self) -> Result<Option<crate::CheckpointsMerged>, Error> {
        Inside::refuse("merge")?;
        self.shared.health()?;
        self.shared.load.wait(&self.shared)?;
        crate::checkpoints::merge(&self.shared, true)
    }

    /// Holds the files of checkpoints, so that a chain can be copied while the store is served. Copy the
    /// MANIFEST first, then the checkpoints that it names, and drop the hold.
    /// [`offline::restore`](crate::offline::restore) makes a store of the copy, if it has tables in memory
    /// alone: the pages of other kinds are not held. Until the hold is dropped, checkpoints that were
    /// replaced take space.
    ///
    /// # Errors
    /// [`Error::Config`] if `holder` holds the files already, or is no name of 1 to 64 printable
    /// characters without a comma. [`Error::InsideTransaction`] from inside a transaction.
    pub fn hold_files(&self, holder: &str) -> Result<crate::HeldFiles, Error> {
        Inside::refuse("hold files")?;
        self.shared.health()?;
        crate::checkpoints::hold(&self.shared, holder)
    }

    /// Whether the log gets the calls of procedures, and not what they write.
    pub fn logs_calls(&self) -> bool {
        self.shared.logs_calls_alone
    }

    /// Whether the engine takes checkpoints: true unless [`Config::checkpoint`] is `none`.
    pub fn takes_checkpoints(&self) -> bool {
        self.shared.scheme.is_some()
    }

    /// How far the load of a store is that is [served meanwhile](Config::serve_while_loading).
    pub fn loading(&self) -> crate::LoadStatus {
        self.shared.load.status(self.shared.config.environment.clock.monotonic_ns())
    }

    /// Whether a store that is [served meanwhile](Config::serve_while_loading) is being loaded.
    pub fn is_loading(&self) -> bool {
        !self.has_all() && self.loading().failure.is_none()
    }

    /// Whether every record is in memory. False for a while after a start that
    /// [serves while it loads](Config::serve_while_loading), and for ever if that load stops.
    #[inline]
    pub fn has_all(&self) -> bool {
        self.shared.load.is_done()
    }

    /// Waits until every record is in memory, if the store is
    /// [served while it is loaded](Config::serve_while_loading).
    ///
    /// # Errors
    /// [`Error::NotLoaded`] if the load has stopped: a checkpoint is damaged, or the disk refuses.
    /// [`Error::InsideTransaction`] from inside a transaction.
    pub fn wait_until_loaded(&self) -> Result<(), Error> {
        Inside::refuse("wait_until_loaded")?;
        self.shared.load.wait(&self.shared)
    }

    /// Asks the background thread for a checkpoint and returns at once. The scheme and the chain decide
    /// whether the checkpoint is full or one of changes. Returns the counts before the checkpoint: it has
    /// ended when the [status](crate::CheckpointStatus) counts more. `None` if one is under way. While a
    /// store is [served and loaded](Config::serve_while_loading), a full checkpoint waits for the end of the
    /// load. One of changes waits for the writes of the logs alone. `None`, too, if the load has stopped.
    pub fn checkpoint_in_background(&self) -> Option<CheckpointCounts> {
        self.request(Wish::Due)
    }

    fn request(&self, wish: Wish) -> Option<CheckpointCounts> {
        let stopped = self.shared.load.has_stopped();
        (!stopped).then(|| self.shared.checkpoints.request(wish)).flatten()
    }

    /// Asks the background thread for a checkpoint of every record and returns at once. The counts are
    /// those of [`checkpoint_in_background`](Self::checkpoint_in_background). `None` if one is under way.
    pub fn full_checkpoint_in_background(&self) -> Option<CheckpointCounts> {
        self.request(Wish::Full)
    }

    /// Statistics of the store.
    pub fn stats(&self) -> Stats {
        crate::stats::gather(&self.shared)
    }

    /// Settings with which the store was opened.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Keeps an access mark for each record from now on: 32 bits that transactions
    /// [set](crate::Tx::set_access). The marks take 4 bytes a record, which count against the memory
    /// limit. Until this call there are none.
    ///
    /// # Errors
    /// The system refuses the address space for the marks.
    pub fn keep_accesses(&self) -> Result<(), stillpoint_store::RegionError> {
        self.shared.store.keep_accesses()
    }

    /// Whether [`Session::scan_uses`] shows the records of tables that are made without the name of a kind.
    ///
    /// # Errors
    /// [`Error::Config`]: these tables are of another kind than the memory store.
    pub fn shows_uses(&self) -> Result<(), Error> {
        let Some(row) = self.shared.config.siren_row() else { return Ok(()) };
        let reason = format!(
            "{} is for tables of kind siren, which do not show how their records are used, so that none \
             can be given up at full memory: choose max-memory-policy noeviction",
            row.name()
        );
        Err(Error::Config { setting: "checkpoint", reason })
    }

    /// Room below the memory limit, at this moment.
    pub fn memory_room(&self) -> MemoryRoom {
        let store = &self.shared.store;
        let (returning_bytes, waiting_bytes) = store.returning_bytes();
        let siren = self.shared.of_engine.siren.as_ref().map(|siren| siren.stats());
        let (siren_limit, siren_held) =
            siren.map_or((0, 0), |siren| (siren.memory_bytes, siren.held_bytes));
        MemoryRoom {
            limit_bytes: store.max_memory_bytes().saturating_add(siren_limit),
            spare_bytes: store.spare_bytes() + siren_limit.saturating_sub(siren_held),
            returning_bytes,
            waiting_bytes,
            child_bytes: store.child_bytes().0,
        }
    }

    /// Sets the memory limit. Memory already in use stays in use.
    pub fn set_max_memory_bytes(&self, bytes: usize) {
        let Shared { config, of_engine, store, .. } = &*self.shared;
        let siren = config.siren_share(bytes).unwrap_or(0);
        of_engine.siren.iter().for_each(|kind| kind.set_memory_bytes(siren));
        let others = config.pool_bytes.unwrap_or(0) + siren;
        store.set_max_memory_bytes(bytes.saturating_sub(others));
    }

    /// When checkpoints are taken and merged.
    pub fn checkpoint_policy(&self) -> CheckpointPolicy {
        self.shared.checkpoints.policy()
    }

    /// Changes when checkpoints are taken and merged. A checkpoint or merge under way keeps its pace.
    /// The change is one step, so that two threads may change two parts of the policy at once.
    ///
    /// # Errors
    /// [`Error::Config`] if the changed policy cannot be used. The policy stays as it was.
    pub fn change_checkpoint_policy(
        &self,
        change: impl FnOnce(&mut CheckpointPolicy),
    ) -> Result<(), Error> {
        self.shared.checkpoints.change_policy(change)?;
        self.shared.heed_log_limit();
        Ok(())
    }

    /// The health of the store. An error says why nothing may be acknowledged any more.
    ///
    /// # Errors
    /// [`Error::Failed`] or [`Error::NotOwner`] once the store has failed.
    pub fn health(&self) -> Result<(), Error> {
        self.shared.health()
    }

    /// Flushes everything and closes the store. A checkpoint under way is given up, since the log
    /// holds the same commits. Without a journal, or with one that logs calls, a last checkpoint is
    /// taken, as fast as the disk writes. Commits of other threads meanwhile may be in the logs alone,
    /// so end all sessions before. Every later call of its sessions is refused with [`Error::Ended`].
    ///
    /// # Errors
    /// [`Error::InsideTransaction`] from inside a transaction; the engine is dropped then.
    /// Otherwise the reason why a flush failed.
    pub fn close(self) -> Result<(), Error> {
        Inside::refuse("close")?;
        self.stop_threads()?;
        let shared = &self.shared;
        shared.health()?;
        if !shared.records_commits && shared.scheme.is_some() {
            crate::checkpoints::take_last(shared)?;
        }
        // A checkpoint takes the place of logged calls, so that another version of the program can open
        // the store. Without it the logs still hold everything.
        // Sessions that still commit make another one necessary.
        for _ in 0..LAST_CHECKPOINTS_MAX {
            // Relaxed: what a session does beside this call may be missed.
            let holds_calls =
                shared.holds_calls.load(Relaxed) && shared.checkpoints.lacks_commits(shared);
            if !holds_calls || shared.scheme.is_none() {
                break;
            }
            let taken = crate::checkpoints::take_last(shared);
            shared.health()?;
            if let Err(error) = taken {
                tracing::warn!(%error, "the next start makes the calls in the logs again");
                break;
            }
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
        self.shared.load.stop();
        self.shared.stop_checkpoints();
        // All threads end before the first error is returned.
        let ended: Vec<_> = self.threads.lock().drain(..).map(JoinHandle::join).collect();
        self.shared.checkpoints.wait_for_view();
        Ok(ended.into_iter().collect::<Result<(), _>>()?)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if Inside::is_now() {
            // A thread may wait for the transaction of this thread. The waiting thread ends by
            // itself later.
            self.shared.stopping.store(true, Release);
            self.shared.load.stop();
            self.shared.stop_checkpoints();
        } else if self.stop_threads().is_err() {
            self.shared.fail("a background thread panicked".to_owned());
        }
        let thread = self.shared.life.end().filter(|_| !Inside::is_now());
        if thread.is_some_and(|thread| thread.join().is_err()) {
            self.shared.fail("a background thread panicked".to_owned());
        }
        self.shared.owned.give_back();
    }
}

/// Starts a background thread. If the thread panics the store has failed, with the panic as the
/// reason.
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

/// A log that keeps nothing and counts commits.
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
