//! When checkpoints are taken, and how one becomes the one that counts.
//!
//! ```text
//! next epoch reserved in the MANIFEST ─▶ phases, capture, files flushed, directory flushed
//!   ─▶ all logs flushed past the point of consistency ─▶ MANIFEST names it ─▶ older ones removed,
//!   log segments below it recycled
//! ```
//! Whatever fails before the MANIFEST names the checkpoint leaves the previous one in force.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use stillpoint_checkpoint::{CheckpointJob, CheckpointProgress};
use stillpoint_format::LogGsn;
use stillpoint_format::manifest::{CheckpointEntry, CheckpointKind, LogPositions, Manifest};
use stillpoint_format::names;
use stillpoint_sync::atomic::{AtomicBool, Ordering::{Acquire, Release}};

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
    pub running: Option<CheckpointProgress>,
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
    every: Option<Duration>,
    /// Monotonic clock when the last attempt ended, and commits when it began.
    last_ns: u64,
    last_commits: u64,
    last: Option<CheckpointDone>,
    last_finished_ms: Option<u64>,
    last_error: Option<String>,
    failures: u64,
    published: u64,
}

/// The part of the engine that takes checkpoints.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    state: Mutex<State>,
    changed: Condvar,
    /// Held while one is taken.
    taking: Mutex<()>,
    /// Held while the point of consistency passes.
    point_of_consistency: Mutex<()>,
    busy: AtomicBool,
    progress: Mutex<Option<CheckpointProgress>>,
}

impl Checkpoints {
    pub(crate) fn new(manifest: &Manifest, now_ns: u64) -> Self {
        let last_finished_ms = manifest.checkpoints.iter().map(|c| c.finished_ms).max();
        Self {
            state: Mutex::new(State {
                requested: false,
                every: None,
                last_ns: now_ns,
                last_commits: 0,
                last: None,
                last_finished_ms,
                last_error: None,
                failures: 0,
                published: 0,
            }),
            changed: Condvar::new(),
            taking: Mutex::new(()),
            point_of_consistency: Mutex::new(()),
            busy: AtomicBool::new(false),
            progress: Mutex::new(None),
        }
    }

    /// No point of consistency passes while the guard lives.
    pub(crate) fn hold_point_of_consistency(&self) -> MutexGuard<'_, ()> {
        self.point_of_consistency.lock()
    }

    pub(crate) fn request(&self) -> bool {
        let mut state = self.state.lock();
        if state.requested || self.busy.load(Acquire) {
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
            running: self.progress.lock().clone(),
            last: state.last.clone(),
            last_finished_ms: state.last_finished_ms,
            last_error: state.last_error.clone(),
            failures: state.failures,
            published: state.published,
            commits_since: commits.saturating_sub(state.last_commits),
        }
    }
}
