//! When checkpoints are taken, and how one becomes the one that counts.
//!
//! ```text
//! next epoch reserved in the MANIFEST ─▶ phases, capture, files flushed, directory flushed
//!   ─▶ all logs flushed past the point of consistency ─▶ MANIFEST names it ─▶ older ones removed,
//!   log segments below it recycled
//! ```
//! Whatever fails before the MANIFEST names the checkpoint leaves the previous one in force.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stillpoint_checkpoint::{Captured, Cycle, Pace, ProgressSnapshot, WriterConfig, Written};
use stillpoint_format::LogGsn;
use stillpoint_format::manifest::{CheckpointEntry, LogPositions, Manifest, TableGeneration};
use stillpoint_store::{Outcome, Phase, TableId};
use stillpoint_sync::atomic::Ordering::Acquire;
use stillpoint_sync::planted::{Bug, is_planted};

use crate::engine::Shared;
use crate::error::Error;

/// How often the background thread looks whether a checkpoint is due.
const TICK: Duration = Duration::from_millis(50);

/// A published checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointDone {
    /// It holds the commits of all epochs before this one.
    pub epoch: u64,
    /// Records in it.
    pub records: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// From the request to its publication.
    pub duration: Duration,
    /// Most bytes of old values that waited for the disk.
    pub pool_bytes_max: u64,
    /// Wall clock at its publication, in milliseconds since the Unix epoch.
    pub finished_ms: u64,
}

/// Where checkpoints stand.
#[derive(Clone, Debug, Default)]
pub struct CheckpointStatus {
    /// Progress of the one under way.
    pub running: Option<ProgressSnapshot>,
    /// The last one of this run.
    pub last: Option<CheckpointDone>,
    /// Wall clock of the newest published one, of this run or an earlier.
    pub last_finished_ms: Option<u64>,
    /// Why the last attempt failed, if it did.
    pub last_error: Option<String>,
    /// Attempts that failed in this run.
    pub failures: u64,
    /// Published in this run.
    pub published: u64,
    /// Commits since the last one began.
    pub commits_since: u64,
}

#[derive(Debug)]
struct State {
    requested: bool,
    /// One is being taken.
    busy: bool,
    every: Option<Duration>,
    /// Monotonic clock when the last attempt ended, and commits when it began.
    last_ns: u64,
    last_commits: u64,
    /// Where logs stood at the newest point of consistency.
    positions: Vec<LogGsn>,
    /// Bytes of log from before this run that recovery would read again.
    earlier_log_bytes: u64,
    last: Option<CheckpointDone>,
    last_finished_ms: Option<u64>,
    last_error: Option<String>,
    failures: u64,
    published: u64,
}

/// Who is at the point of consistency: a checkpoint passing it, or a flush of tables.
#[derive(Debug, Default)]
struct Point {
    passing: bool,
    flushing: bool,
}

/// The part of the engine that takes checkpoints.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    state: Mutex<State>,
    changed: Condvar,
    point: Mutex<Point>,
    point_changed: Condvar,
    progress: Arc<stillpoint_checkpoint::Progress>,
}

/// No checkpoint passes its point of consistency while this lives.
pub(crate) struct HeldPoint<'a>(&'a Checkpoints);

impl Drop for HeldPoint<'_> {
    fn drop(&mut self) {
        self.0.point.lock().flushing = false;
        self.0.point_changed.notify_all();
    }
}

impl Checkpoints {
    pub(crate) fn new(
        manifest: &Manifest,
        every: Option<Duration>,
        log_bytes: u64,
        now_ns: u64,
    ) -> Self {
        let last_finished_ms = manifest.checkpoints.iter().map(|c| c.finished_ms).max();
        Self {
            state: Mutex::new(State {
                requested: false,
                busy: false,
                every,
                last_ns: now_ns,
                last_commits: 0,
                positions: Vec::new(),
                earlier_log_bytes: log_bytes,
                last: None,
                last_finished_ms,
                last_error: None,
                failures: 0,
                published: 0,
            }),
            changed: Condvar::new(),
            point: Mutex::default(),
            point_changed: Condvar::new(),
            progress: Arc::default(),
        }
    }

    pub(crate) fn hold_point_of_consistency(&self) -> HeldPoint<'_> {
        let mut point = self.point.lock();
        while point.passing || point.flushing {
            self.point_changed.wait(&mut point);
        }
        point.flushing = true;
        HeldPoint(self)
    }

    fn begin_passing(&self) {
        let mut point = self.point.lock();
        while point.flushing {
            self.point_changed.wait(&mut point);
        }
        point.passing = true;
    }

    fn end_passing(&self) {
        self.point.lock().passing = false;
        self.point_changed.notify_all();
    }

    /// Asks the background thread for one; false if one is under way or asked for already.
    pub(crate) fn request(&self) -> bool {
        let mut state = self.state.lock();
        if state.requested || state.busy {
            return false;
        }
        state.requested = true;
        self.changed.notify_all();
        true
    }

    pub(crate) fn set_every(&self, every: Option<Duration>) {
        self.state.lock().every = every;
    }

    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    pub(crate) fn status(&self, commits: u64) -> CheckpointStatus {
        let state = self.state.lock();
        CheckpointStatus {
            running: state.busy.then(|| self.progress.snapshot()),
            last: state.last.clone(),
            last_finished_ms: state.last_finished_ms,
            last_error: state.last_error.clone(),
            failures: state.failures,
            published: state.published,
            commits_since: commits.saturating_sub(state.last_commits),
        }
    }

    /// True if the background thread should take one now.
    fn is_due(&self, shared: &Shared) -> bool {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.requested) {
            return true;
        }
        let commits = shared.commit_count();
        if commits == state.last_commits && state.earlier_log_bytes == 0 {
            return false;
        }
        let log_bytes = state.earlier_log_bytes + shared.journal.bytes_since(&state.positions);
        if log_bytes >= shared.config.log_limit_bytes {
            return true;
        }
        let waited = shared.config.environment.clock.monotonic_ns() - state.last_ns;
        state.every.is_some_and(|every| u128::from(waited) >= every.as_nanos())
    }
}

/// The background thread: takes a checkpoint whenever one is due.
pub(crate) fn run_in_background(shared: &Arc<Shared>) {
    while !shared.stopping.load(Acquire) {
        let checkpoints = &shared.checkpoints;
        if shared.scheme.is_some() && shared.health().is_ok() && checkpoints.is_due(shared) {
            // What went wrong is in the status, for the operator to see.
            let _ = take(shared);
            continue;
        }
        let mut state = checkpoints.state.lock();
        if !state.requested && !shared.stopping.load(Acquire) {
            checkpoints.changed.wait_for(&mut state, TICK);
        }
        if shared.scheme.is_none() {
            state.requested = false;
        }
    }
    // Whoever waits for one that was asked for must not wait for ever.
    shared.checkpoints.state.lock().requested = false;
}

/// Takes a checkpoint and publishes it.
pub(crate) fn take(shared: &Arc<Shared>) -> Result<CheckpointDone, Error> {
    let checkpoints = &shared.checkpoints;
    {
        let mut state = checkpoints.state.lock();
        while state.busy {
            checkpoints.changed.wait(&mut state);
        }
        state.busy = true;
    }
    let commits = shared.commit_count();
    let start_ns = shared.config.environment.clock.monotonic_ns();
    tracing::info!("a checkpoint begins");
    let result = take_one(shared, start_ns);
    let end_ns = shared.config.environment.clock.monotonic_ns();
    let mut state = checkpoints.state.lock();
    state.busy = false;
    state.last_ns = end_ns;
    match &result {
        Ok((done, positions)) => {
            tracing::info!(
                epoch = done.epoch,
                records = done.records,
                bytes = done.bytes,
                ms = done.duration.as_millis() as u64,
                "a checkpoint is published"
            );
            state.last_commits = commits;
            state.positions = positions.clone();
            state.earlier_log_bytes = 0;
            state.last_finished_ms = Some(done.finished_ms);
            state.last = Some(done.clone());
            state.last_error = None;
            state.published += 1;
        }
        Err(error) => {
            tracing::error!(%error, "a checkpoint has failed; the previous one is kept");
            state.last_error = Some(error.to_string());
            state.failures += 1;
        }
    }
    checkpoints.changed.notify_all();
    result.map(|(done, _)| done)
}

/// What is noted while the phases pass.
#[derive(Debug, Default)]
struct Noted {
    generations: Vec<TableGeneration>,
    positions: Vec<LogGsn>,
}

fn take_one(shared: &Arc<Shared>, start_ns: u64) -> Result<(CheckpointDone, Vec<LogGsn>), Error> {
    let Some(scheme) = &shared.scheme else {
        let reason = format!("scheme {} takes none", shared.config.checkpoint);
        return Err(Error::Config { setting: "checkpoint", reason });
    };
    // No commit of the new epoch may come before the MANIFEST knows of it.
    let epoch = shared.store.driver().now().epoch() + 1;
    shared.publish(|manifest| manifest.next_epoch = epoch + 1)?;
    let noted = Arc::new(Mutex::new(Noted::default()));
    let cycle = Cycle {
        store: shared.store.clone(),
        scheme: scheme.clone(),
        clock: shared.config.environment.clock.clone(),
        threads: shared.config.checkpoint_threads,
        pace: match shared.config.checkpoint_pace {
            Some(bytes_per_s) => Pace::BytesPerSecond(bytes_per_s),
            None => Pace::Unpaced,
        },
        progress: shared.checkpoints.progress.clone(),
        observer: Some(observer(shared, &noted)),
    };
    let manifest = shared.catalog.now();
    let mut writer = WriterConfig::new(manifest.store, manifest.hash_seed);
    writer.codec = shared.config.codec;
    if !shared.config.environment.background {
        // One writer: its calls of the disk come in the same order every time.
        writer.parts = 1;
    }
    let taken = stillpoint_checkpoint::take_checkpoint(&cycle, &shared.disk, &writer);
    shared.checkpoints.end_passing();
    let (written, captured) = taken.map_err(|error| Error::Checkpoint(error.to_string()))?;
    let noted = std::mem::take(&mut *noted.lock());
    let published = publish(shared, written, captured, &noted, start_ns);
    let outcome = if published.is_ok() { Outcome::Published } else { Outcome::Abandoned };
    scheme.ended(captured.epoch, outcome);
    published.map(|done| (done, noted.positions))
}

/// Notes positions and generations, and keeps flushes of tables away from the point of consistency.
fn observer(shared: &Arc<Shared>, noted: &Arc<Mutex<Noted>>) -> stillpoint_checkpoint::Observer {
    let (shared, noted) = (shared.clone(), noted.clone());
    Arc::new(move |phase, epoch| match phase {
        Phase::Prepare => shared.checkpoints.begin_passing(),
        Phase::Resolve => {
            let manifest = shared.catalog.now();
            let generation = |id: u16| shared.store.generation(TableId(id)).unwrap_or(1);
            noted.lock().generations = manifest
                .tables
                .iter()
                .map(|table| TableGeneration { table: table.id, generation: generation(table.id) })
                .collect();
            shared.checkpoints.end_passing();
        }
        Phase::Capture => noted.lock().positions = shared.journal.positions_before_epoch(epoch),
        Phase::Complete | Phase::Rest => {}
    })
}

fn publish(
    shared: &Arc<Shared>,
    written: Written,
    captured: Captured,
    noted: &Noted,
    start_ns: u64,
) -> Result<CheckpointDone, Error> {
    let kind = written.kind;
    let pool_bytes_max = written.stats.pool_bytes_peak;
    let logs = if is_planted(Bug::PositionsTooLate) {
        shared.journal.positions_before_epoch(u64::MAX)
    } else {
        noted.positions.clone()
    };
    let positions = vec![LogPositions { incarnation: shared.incarnation, logs }];
    let entry = written.into_entry(
        &shared.config.checkpoint,
        noted.generations.clone(),
        positions,
        shared.floor,
    );
    let done = CheckpointDone {
        epoch: captured.epoch,
        records: entry.records,
        bytes: entry.parts.iter().map(|part| part.bytes).sum(),
        duration: Duration::from_nanos(shared.config.environment.clock.monotonic_ns() - start_ns),
        pool_bytes_max,
        finished_ms: entry.finished_ms,
    };
    // A dependency on what is before the point of consistency counts as met: so it must be.
    shared.journal.flush_all().map_err(|error| shared.note_failure(error))?;
    if is_planted(Bug::RemovesBeforePublishing) {
        for old in shared.catalog.now().checkpoints {
            stillpoint_checkpoint::remove_checkpoint(&*shared.disk, old.epoch, old.kind)?;
        }
    }
    let published = shared.publish(|manifest| supersede(shared, manifest, entry, noted));
    let dropped = match published {
        Ok(dropped) => dropped,
        Err(error) => {
            // If it is not known which MANIFEST is on disk, neither checkpoint may be removed.
            if shared.health().is_ok() {
                let _ = stillpoint_checkpoint::remove_checkpoint(&*shared.disk, done.epoch, kind);
            }
            return Err(error);
        }
    };
    // The checkpoint exists. What cannot be removed now goes with a later one, or at the next start.
    for old in &dropped {
        let _ = stillpoint_checkpoint::remove_checkpoint(&*shared.disk, old.epoch, old.kind);
    }
    if let Err(error) = shared.journal.release_below(shared.floor, &noted.positions) {
        shared.note_failure(error);
    }
    Ok(done)
}

/// Puts a checkpoint into the MANIFEST and takes those out that are too many; returns them.
fn supersede(
    shared: &Shared,
    manifest: &mut Manifest,
    entry: CheckpointEntry,
    noted: &Noted,
) -> Vec<CheckpointEntry> {
    if !shared.records_commits {
        // Without a journal a flush of tables becomes durable with the checkpoint after it.
        for table in &mut manifest.tables {
            if let Some(at) = noted.generations.iter().find(|g| g.table == table.id) {
                table.generation = at.generation;
            }
        }
    }
    manifest.checkpoints.push(entry);
    // The checkpoint holds all that earlier incarnations did.
    manifest.incarnations.retain(|incarnation| incarnation.number >= shared.incarnation);
    let surplus = manifest.checkpoints.len().saturating_sub(shared.config.keep_checkpoints);
    manifest.checkpoints.drain(..surplus).collect()
}

/// Removes directories of checkpoints that the MANIFEST does not name: attempts that a crash ended.
pub(crate) fn remove_strays(
    disk: &dyn stillpoint_io::Disk,
    manifest: &Manifest,
) -> Result<(), Error> {
    let dir = Path::new(stillpoint_format::names::CHECKPOINT_DIR);
    if !disk.exists(dir)? {
        return Ok(());
    }
    for name in disk.list(dir)? {
        let Some((epoch, kind)) = stillpoint_format::names::parse_checkpoint_name(&name) else {
            continue;
        };
        if !manifest.checkpoints.iter().any(|c| (c.epoch, c.kind) == (epoch, kind)) {
            stillpoint_checkpoint::remove_checkpoint(disk, epoch, kind)?;
        }
    }
    Ok(())
}
