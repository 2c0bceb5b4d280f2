//! Decides when checkpoints are taken, and publishes them.
//!
//! ```text
//! next epoch reserved in the MANIFEST ─▶ phases, capture, files flushed, directory flushed
//!   ─▶ all logs flushed past the point of consistency ─▶ MANIFEST names it ─▶ older ones removed,
//!   log segments below it recycled
//! ```
//! A failure before the MANIFEST names the checkpoint leaves the previous one in force.

mod attempt;
mod backoff;
mod chain;
mod held;
mod merge;
mod publication;
pub(crate) mod view;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use stillpoint_checkpoint::{CheckpointError, Pace, Progress, ProgressSnapshot, QuiesceFor};
use stillpoint_format::LogGsn;
use stillpoint_format::manifest::{CheckpointKind, Manifest};
use stillpoint_io::catch_panic;
use stillpoint_journal::Shortage;
use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use stillpoint_sync::{mutant, planted};

use crate::config::CheckpointPolicy;
use crate::error::{Error, SnapshotEnd};
use crate::shared::Shared;
use backoff::Backoff;
use waiting::{
    are_changes_due, frees_half, is_pressing, is_worth_it, may_take_now, pause_after, takes_any,
    wait_for_load, will_take,
};

pub(crate) use attempt::remove_strays;
pub(crate) use chain::{marks_replayed, replace_run, whole_run};
pub(crate) use held::hold;
pub use held::{FileHolder, HeldFiles};
pub use merge::CheckpointsMerged;
pub(crate) use merge::{merge, run_in_background as merge_in_background};

/// Name under which the newest checkpoint holds the segments of the logs beyond it.
pub(crate) const LOG_HOLDER: &str = "checkpoint";

/// Interval at which the background thread checks whether a checkpoint is due.
const TICK: Duration = Duration::from_millis(50);

/// A published checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointDone {
    /// The checkpoint's epoch. The checkpoint holds the commits of all earlier epochs.
    pub epoch: u64,
    /// Whether the checkpoint holds every record, or the changes since the previous checkpoint.
    pub kind: CheckpointKind,
    /// Records in the checkpoint, deletions included.
    pub records: u64,
    /// Bytes of the checkpoint's files.
    pub bytes: u64,
    /// Time from the request to the publication.
    pub duration: Duration,
    /// Time from the request until the next checkpoint may begin. It is longer than [`duration`](Self::duration)
    /// for schemes that copy records after the capture. `None` if the copying was cut off.
    pub until_ready: Option<Duration>,
    /// Records that had changed since the previous checkpoint when this one began. 0 for schemes
    /// that do not mark changes.
    pub changed: u64,
    /// Time from the checkpoint's begin to the end of its phase RESOLVE. The point of consistency
    /// lies within that time.
    pub consistency: Duration,
    /// Time in which no transaction could commit, for the point of consistency or until the end of the
    /// capture. Zero for schemes that stop nobody.
    pub stopped: Duration,
    /// Time of the capture scan.
    pub capture: Duration,
    /// Time from the end of the scan until the files were written.
    pub drain: Duration,
    /// The most bytes that were in use in the pool of stable versions, for schemes that have one.
    pub stable_peak_bytes: usize,
    /// Peak of the before-images that waited for the disk, in bytes.
    pub pool_bytes_max: u64,
    /// How often a thread waited until the output had room. Mostly it is a commit with before-images.
    pub waits: u64,
    /// The sum of these waits.
    pub waited: Duration,
    /// Time of the publication, in milliseconds since the Unix epoch.
    pub finished_ms: u64,
}

/// Attempts of this run that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointCounts {
    /// Checkpoints that were published.
    pub published: u64,
    /// Attempts that failed.
    pub failures: u64,
}

/// Status of merges of checkpoints.
#[derive(Clone, Debug, Default)]
pub struct MergeStatus {
    /// Progress of the merge under way.
    pub running: Option<ProgressSnapshot>,
    /// Merges of this run.
    pub done: u64,
    /// Merges that failed in this run.
    pub failures: u64,
    /// The reason why the last merge failed, if it did.
    pub last_error: Option<String>,
}

/// Status of checkpoints.
#[derive(Clone, Debug, Default)]
pub struct CheckpointStatus {
    /// Progress of the checkpoint under way.
    pub running: Option<ProgressSnapshot>,
    /// The last checkpoint of this run.
    pub last: Option<CheckpointDone>,
    /// Time of the newest publication, of this run or an earlier one.
    pub last_finished_ms: Option<u64>,
    /// The reason why the last attempt failed, if it did.
    pub last_error: Option<String>,
    /// Attempts that failed in this run.
    pub failures: u64,
    /// Checkpoints published in this run.
    pub published: u64,
    /// Commits since the last checkpoint began.
    pub commits_since: u64,
    /// Time since the last checkpoint of this run was published, or since the store was opened.
    pub since_success: Duration,
    /// Failed attempts since the last publication.
    pub failures_since: u32,
    /// Remaining pause after failed attempts. A request ends the pause, and so does new space on a
    /// disk that was full.
    pub next_attempt: Option<Duration>,
    /// Whether there are commits older than [three periods](CheckpointPolicy::every) that no
    /// checkpoint has.
    pub is_overdue: bool,
    /// Checkpoints that a start would load: a full one, and those of changes since.
    pub chain_links: usize,
    /// The most checkpoints that a chain has if its merges come in time. A chain that is longer than
    /// that is a warning in the log.
    pub chain_links_max: usize,
    /// Bytes of the files that a start would load.
    pub chain_bytes: u64,
    /// Those who [hold](crate::Engine::hold_files) the files. What they keep takes space.
    pub holders: Vec<FileHolder>,
    /// Merges.
    pub merging: MergeStatus,
}

/// Periods without a checkpoint, after which one is overdue.
const OVERDUE_PERIODS: u32 = 3;

#[derive(Debug)]
struct State {
    /// The checkpoint that was asked for: a full one, or of the kind that is due.
    requested: bool,
    /// A checkpoint of every record was asked for, and none was published since. Until then each
    /// attempt takes one, also after attempts that failed or were given up. So it is after a start that
    /// has replayed without marks.
    owes_full: bool,
    /// A merge has found that a checkpoint of the chain cannot be read. So a full one is due.
    chain_is_damaged: bool,
    /// The MANIFEST has many notes of emptied tables, which a full checkpoint makes superfluous.
    has_many_notes: bool,
    /// Somebody holds the files no longer, so there may be some to remove.
    was_released: bool,
    /// Whether the scheme takes checkpoints.
    takes_checkpoints: bool,
    /// Whether the scheme's chains can be merged.
    may_merge: bool,
    /// Whether the store is being closed.
    is_stopping: bool,
    /// The checkpoint under way, or the capture of a snapshot.
    running: Option<Arc<Progress>>,
    /// The snapshot whose capture is under way.
    view: Option<Arc<view::OpenView>>,
    /// Checkpoints that wait for the end of what is under way.
    waiting: usize,
    /// Serial of the directory of the checkpoint under way, which no MANIFEST names yet.
    making: Option<u64>,
    merging: merge::Merging,
    policy: CheckpointPolicy,
    /// Monotonic time at which commits were first seen that no checkpoint has.
    unsaved_since_ns: Option<u64>,
    /// Whether the log says already that a checkpoint is overdue.
    has_warned: bool,
    /// Monotonic time of the last success, and the number of commits at its begin.
    last_ns: u64,
    last_commits: u64,
    /// Positions of the logs at the newest point of consistency.
    positions: Vec<LogGsn>,
    /// Number of checkpoints that a start would load, and the bytes of their files. Both numbers
    /// are copies from the MANIFEST, since a status must not wait while a MANIFEST is written.
    chain_links: usize,
    chain_bytes: u64,
    /// The newest checkpoints that are kept as points: so many.
    keep_checkpoints: usize,
    /// Whether the log says already that the chain is longer than its bound.
    has_warned_of_chain: bool,
    /// Bytes of log from earlier runs that recovery would read again.
    earlier_log_bytes: u64,
    last: Option<CheckpointDone>,
    last_finished_ms: Option<u64>,
    last_error: Option<String>,
    retry: Backoff,
    failures: u64,
    published: u64,
}

/// Lock of the point of consistency, held by a checkpoint that passes it or by a flush of tables.
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
    /// Those who [hold](held) the files.
    holders: Mutex<Vec<held::Holding>>,
    /// Epoch of the newest checkpoint that was published in this run; 0 for none.
    published_epoch: AtomicU64,
    /// Lock of a caller that takes a checkpoint because commits are in none.
    saving: Mutex<()>,
}

/// Guard that keeps checkpoints from their point of consistency.
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
        (takes_checkpoints, may_merge): (bool, bool),
        (keep_checkpoints, policy): (usize, CheckpointPolicy),
        owes_full: bool,
        log_bytes: u64,
        now_ns: u64,
    ) -> Self {
        let last_finished_ms = manifest.checkpoints.iter().map(|c| c.finished_ms).max();
        Self {
            state: Mutex::new(State {
                requested: false,
                owes_full,
                chain_is_damaged: false,
                has_many_notes: false,
                was_released: false,
                takes_checkpoints,
                may_merge,
                is_stopping: false,
                running: None,
                view: None,
                waiting: 0,
                making: None,
                merging: merge::Merging::default(),
                policy,
                unsaved_since_ns: None,
                has_warned: false,
                last_ns: now_ns,
                last_commits: 0,
                positions: Vec::new(),
                chain_links: manifest.newest_chain().len(),
                chain_bytes: chain::newest_bytes(manifest),
                keep_checkpoints,
                has_warned_of_chain: false,
                earlier_log_bytes: log_bytes,
                last: None,
                last_finished_ms,
                last_error: None,
                retry: Backoff::default(),
                failures: 0,
                published: 0,
            }),
            changed: Condvar::new(),
            point: Mutex::default(),
            point_changed: Condvar::new(),
            holders: Mutex::default(),
            published_epoch: AtomicU64::new(0),
            saving: Mutex::default(),
        }
    }

    /// Epoch of the newest checkpoint that was published in this run; 0 for none. The checkpoint
    /// holds the commits of all earlier epochs.
    pub(crate) fn published_epoch(&self) -> u64 {
        // Acquire: partner of the Release in `note`. The checkpoint is published.
        self.published_epoch.load(Acquire)
    }

    /// Waits for the turn of a caller whose commits are in no checkpoint. Others wait meanwhile, and
    /// then find their commits in the checkpoint that the first one has taken.
    pub(crate) fn take_turn_to_save(&self) -> MutexGuard<'_, ()> {
        self.saving.lock()
    }

    /// Waits for the checkpoint under way, if there is one. Does not wait for a snapshot.
    pub(crate) fn wait_for_running(&self) {
        let mut state = self.state.lock();
        while state.running.is_some() && state.view.is_none() {
            self.changed.wait(&mut state);
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

    /// Gives up the checkpoint under way, if there is one, and asks for another at once. Does not
    /// wait: the memory that the checkpoint held is free once the phase is REST. A checkpoint that
    /// has captured everything already is still published.
    pub(crate) fn abandon(&self) {
        let mut state = self.state.lock();
        if let (Some(running), None) = (&state.running, &state.view) {
            running.cancel();
            state.requested = true;
            self.changed.notify_all();
        }
    }

    /// Asks the background thread for a checkpoint, and counts the attempts that ended before. `None` if
    /// one is under way or requested already.
    pub(crate) fn request(&self, wish: Wish) -> Option<CheckpointCounts> {
        let mut state = self.state.lock();
        if state.requested || (state.running.is_some() && state.view.is_none()) {
            return None;
        }
        state.request(wish);
        self.changed.notify_all();
        // No attempt is under way. So the next that is counted has begun after this request.
        Some(CheckpointCounts { published: state.published, failures: state.failures })
    }

    /// Makes a full checkpoint due: the MANIFEST has many notes of emptied tables.
    pub(crate) fn note_many_notes(&self) {
        let mut state = self.state.lock();
        (state.owes_full, state.has_many_notes) = (true, true);
    }

    pub(crate) fn policy(&self) -> CheckpointPolicy {
        self.state.lock().policy
    }

    /// Changes the policy in one step: no other change comes between its reading and its writing.
    ///
    /// # Errors
    /// The changed policy cannot be used. The policy stays as it was.
    pub(crate) fn change_policy(
        &self,
        change: impl FnOnce(&mut CheckpointPolicy),
    ) -> Result<(), Error> {
        let mut state = self.state.lock();
        let mut policy = state.policy;
        change(&mut policy);
        policy.check()?;
        if policy.pace != state.policy.pace && !state.is_stopping {
            // The last checkpoint of a store that is being closed has no pace.
            let checkpoint = state.checkpoint();
            checkpoint.iter().for_each(|progress| progress.change_pace(pace_of(&policy)));
            state.merging.change_pace(pace_of(&policy));
        }
        state.policy = policy;
        self.changed.notify_all();
        Ok(())
    }

    /// Gives up the checkpoint under way, since the store is being closed. The background thread
    /// begins no other.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.is_stopping = true;
        let view = state.view.clone();
        if let (Some(running), None) = (&state.running, &view) {
            running.cancel();
        }
        state.merging.cancel();
        self.changed.notify_all();
        drop(state);
        if let Some(view) = view {
            view.end(SnapshotEnd::Closed);
        }
    }

    /// Notes the chain of a MANIFEST that was published, and warns once in the log when the chain is
    /// longer than its bound.
    fn note_chain(&self, manifest: &Manifest) {
        let mut state = self.state.lock();
        state.chain_links = manifest.newest_chain().len();
        state.chain_bytes = chain::newest_bytes(manifest);
        let (links, links_max) = (state.chain_links, state.chain_links_max());
        let has_warned = std::mem::replace(&mut state.has_warned_of_chain, links > links_max);
        if has_warned || links <= links_max {
            return;
        }
        let merging = state.merging.status();
        drop(state);
        tracing::warn!(
            links,
            links_max,
            merge_failures = merging.failures,
            last_error = merging.last_error.unwrap_or_default(),
            "the chain of checkpoints is longer than its bound; a start reads all of them"
        );
    }

    pub(crate) fn status(&self, commits: u64, now_ns: u64) -> CheckpointStatus {
        let holders = self.file_holders(now_ns);
        let mut state = self.state.lock();
        CheckpointStatus {
            running: state.checkpoint().map(|progress| progress.snapshot()),
            last: state.last.clone(),
            last_finished_ms: state.last_finished_ms,
            last_error: state.last_error.clone(),
            failures: state.failures,
            published: state.published,
            commits_since: commits.saturating_sub(state.last_commits),
            since_success: Duration::from_nanos(now_ns.saturating_sub(state.last_ns)),
            failures_since: state.retry.failures(),
            next_attempt: state.retry.left(now_ns),
            is_overdue: state.is_overdue(commits, now_ns),
            chain_links: state.chain_links,
            chain_links_max: state.chain_links_max(),
            chain_bytes: state.chain_bytes,
            holders,
            merging: state.merging.status(),
        }
    }

    /// Whether the background thread should take a checkpoint now.
    fn is_due(&self, shared: &Shared) -> bool {
        let commits = shared.commit_count();
        let now_ns = shared.config.environment.clock.monotonic_ns();
        let (retry, policy, by_time, positions, earlier_log_bytes) = {
            let state = self.state.lock();
            if state.requested {
                return true;
            }
            let waited = Duration::from_nanos(now_ns.saturating_sub(state.last_ns));
            let is_urgent = state.frees_memory(shared, commits, waited)
                || state.has_many_notes && waited >= state.frees_every(false)
                || state.chain_is_damaged;
            let is_unchanged = commits == state.last_commits && state.earlier_log_bytes == 0;
            // Transactions on tables of other kinds fill the log also when they are rolled back.
            let has_kinds = mutant!(!shared.kinds.is_empty(), RollbacksNotCounted => false);
            if is_unchanged && !is_urgent && !has_kinds {
                return false;
            }
            let is_time = state.policy.every.is_some_and(|every| waited >= every);
            let by_time = is_time && !is_unchanged || is_urgent;
            let policy = state.policy;
            (state.retry, policy, by_time, state.positions.clone(), state.earlier_log_bytes)
        };
        if !retry.may_try(now_ns, || shared.free_bytes()) {
            return false;
        }
        let log_bytes = earlier_log_bytes + shared.journal.bytes_since(&positions);
        let frees_log = match shared.journal.shortage() {
            Shortage::None => false,
            Shortage::NoSegmentAhead => log_bytes >= shared.journal.headroom_bytes(),
            Shortage::Refuses => true,
        };
        let limit = policy.log_limit_bytes;
        by_time || frees_log || log_bytes >= limit || frees_half(shared, limit, log_bytes)
    }

    /// Bytes of the disk that the next checkpoint needs, or that the one under way still needs. A
    /// checkpoint is at most as large as the last chain and the bytes logged since, and no larger
    /// than the memory in use.
    pub(crate) fn needed_bytes(&self, shared: &Shared) -> u64 {
        let (chain_bytes, earlier, positions, written) = {
            let state = self.state.lock();
            let written = state.checkpoint().map_or(0, |now| now.snapshot().written_bytes);
            (state.chain_bytes, state.earlier_log_bytes, state.positions.clone(), written)
        };
        let grown = chain_bytes + earlier + shared.journal.bytes_since(&positions);
        grown.min(shared.store.held_bytes() as u64).saturating_sub(written)
    }

    /// Waits for the end of the checkpoint or snapshot under way and begins a checkpoint. `None` if the store is
    /// being closed and this is not its [last](take_last) checkpoint.
    fn begin(&self, shared: &Shared, is_last: bool) -> Option<Running<'_>> {
        let mut state = self.state.lock();
        state.waiting += 1;
        while state.running.is_some() {
            if state.view.is_none() {
                self.changed.wait(&mut state);
                continue;
            }
            drop(state);
            self.end_view_in_time(shared);
            state = self.state.lock();
            if state.view.is_some() {
                self.changed.wait_for(&mut state, TICK);
            }
        }
        state.waiting -= 1;
        if state.is_stopping && !is_last {
            return None;
        }
        let progress = Arc::<Progress>::default();
        state.running = Some(progress.clone());
        // This attempt answers all requests made so far.
        state.requested = false;
        let wish = if state.owes_full { Wish::Full } else { Wish::Due };
        Some(Running { checkpoints: self, progress, wish })
    }

    /// Whether the logs hold commits that the newest checkpoint does not have.
    pub(crate) fn lacks_commits(&self, shared: &Shared) -> bool {
        !self.state.lock().is_saved(shared.commit_count())
    }

    /// Warns once in the log when a checkpoint is overdue.
    pub(crate) fn warn_if_overdue(&self, shared: &Shared) {
        let commits = shared.commit_count();
        let now_ns = shared.config.environment.clock.monotonic_ns();
        let mut state = self.state.lock();
        if state.has_warned || !state.is_overdue(commits, now_ns) {
            return;
        }
        state.has_warned = true;
        let since_ns = state.unsaved_since_ns.unwrap_or(now_ns);
        let since_s = Duration::from_nanos(now_ns.saturating_sub(since_ns)).as_secs();
        let every_s = state.policy.every.map_or(0, |every| every.as_secs());
        let error = state.last_error.clone().unwrap_or_default();
        drop(state);
        tracing::warn!(
            since_s,
            every_s,
            last_error = error,
            "commits of three periods ago are in no checkpoint; the log grows until one is published"
        );
    }
}

impl State {
    /// The checkpoint under way, which is no snapshot.
    fn checkpoint(&self) -> Option<&Arc<Progress>> {
        self.running.as_ref().filter(|_| self.view.is_none())
    }

    fn request(&mut self, wish: Wish) {
        self.requested = true;
        self.owes_full |= wish == Wish::Full;
    }

    fn chain_links_max(&self) -> usize {
        let merge_after = self.policy.merge_after.filter(|_| self.may_merge);
        chain::links_max(self.keep_checkpoints, merge_after)
    }

    /// Whether memory is nearly used up, and checkpoints free a part of it that deleted keys hold. A
    /// checkpoint frees the keys whose deletions the previous checkpoint has published, so one more
    /// is taken after the last deletion.
    fn frees_memory(&self, shared: &Shared, commits: u64, waited: Duration) -> bool {
        let last = self.last.as_ref();
        let (held, most) = (shared.store.held_bytes(), shared.store.max_memory_bytes());
        shared.keeps_deleted_keys
            && is_worth_it(shared)
            && held >= most - most / 16
            && waited >= self.frees_every(is_pressing(shared))
            && (commits != self.last_commits || last.is_some_and(|done| done.changed > 0))
    }

    /// Shortest time from one checkpoint to another that frees something.
    fn frees_every(&self, is_pressing: bool) -> Duration {
        let last_took = self.last.as_ref().map_or(Duration::ZERO, |done| done.duration);
        pause_after(last_took, is_pressing)
    }

    /// Whether the newest checkpoint has all commits, of which there were so many since the opening.
    fn is_saved(&self, commits: u64) -> bool {
        commits == self.last_commits && self.earlier_log_bytes == 0
    }

    fn is_overdue(&mut self, commits: u64, now_ns: u64) -> bool {
        if self.is_saved(commits) || !self.takes_checkpoints {
            self.unsaved_since_ns = None;
            return false;
        }
        let since_ns = *self.unsaved_since_ns.get_or_insert(now_ns);
        let waited = Duration::from_nanos(now_ns.saturating_sub(since_ns));
        let most = self.policy.every.map(|every| every.saturating_mul(OVERDUE_PERIODS));
        most.is_some_and(|most| waited > most)
    }
}

fn pace_of(policy: &CheckpointPolicy) -> Pace {
    policy.pace.map_or(Pace::Unpaced, Pace::BytesPerSecond)
}

/// The kind of checkpoint that a caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// A checkpoint of changes, if the scheme and the chain allow it.
    Due,
    /// A full checkpoint.
    Full,
}

/// An attempt under way. A drop, also after a failure, lets the next attempt begin and releases the
/// point of consistency.
struct Running<'a> {
    checkpoints: &'a Checkpoints,
    progress: Arc<Progress>,
    wish: Wish,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.checkpoints.end_passing();
        let mut state = self.checkpoints.state.lock();
        (state.running, state.view, state.making) = (None, None, None);
        drop(state);
        self.checkpoints.changed.notify_all();
    }
}

/// The background thread, which takes a checkpoint whenever one is due.
pub(crate) fn run_in_background(shared: &Arc<Shared>) {
    while !shared.stopping.load(Acquire) {
        let checkpoints = &shared.checkpoints;
        if std::mem::take(&mut checkpoints.state.lock().was_released) {
            held::remove_released(shared);
        }
        shared.watch_log();
        let may_take = takes_any(shared) && may_take_now(shared) && shared.health().is_ok();
        if may_take && checkpoints.is_due(shared) {
            // The status holds the error for the operator.
            let _ = take(shared);
            continue;
        }
        let mut state = checkpoints.state.lock();
        if !will_take(shared) {
            state.give_up_request(shared);
        }
        let is_idle = !may_take || !state.requested && !state.was_released;
        if is_idle && !shared.stopping.load(Acquire) {
            checkpoints.changed.wait_for(&mut state, TICK);
        }
    }
    // Nobody frees the logs, or takes a requested checkpoint, for those who wait.
    shared.journal.set_limit(u64::MAX);
    shared.checkpoints.state.lock().requested = false;
}

/// Takes a checkpoint at the pace of the policy and publishes it. A checkpoint that is
/// [abandoned](Checkpoints::abandon) is begun anew.
///
/// # Errors
/// The reason of the failure. A cancellation if the store is being closed.
pub(crate) fn take(shared: &Arc<Shared>) -> Result<CheckpointDone, Error> {
    take_until_not_abandoned(shared, false)
}

/// Takes the last checkpoint of a store that is being closed, without a pace.
pub(crate) fn take_last(shared: &Arc<Shared>) -> Result<CheckpointDone, Error> {
    take_until_not_abandoned(shared, true)
}

fn take_until_not_abandoned(shared: &Arc<Shared>, is_last: bool) -> Result<CheckpointDone, Error> {
    loop {
        wait_for_load(shared)?;
        let Some(running) = shared.checkpoints.begin(shared, is_last) else {
            tracing::info!("no checkpoint: the store is being closed");
            return Err(CheckpointError::Cancelled.into());
        };
        let changes_alone = !shared.load.is_done();
        if changes_alone && (running.wish == Wish::Full || !are_changes_due(shared)) {
            // A full one was asked for meanwhile, and is still asked for.
            shared.checkpoints.state.lock().requested = true;
            continue;
        }
        shared.health()?;
        let commits = shared.commit_count();
        tracing::info!("a checkpoint begins");
        // A checkpoint that is begun anew heeds a pace that was changed meanwhile.
        let policy = shared.checkpoints.policy();
        let pace = if is_last { Pace::Unpaced } else { pace_of(&policy) };
        // Nobody could cancel the last one, and transactions may stay open for ever.
        let quiesce_for = if is_last { QuiesceFor::Commits } else { shared.config.quiesce_for };
        let (wish, progress) = (running.wish, &running.progress);
        // A panic of the capture has become an error already. Any other panic may have interrupted
        // a publication.
        let taken = catch_panic("checkpoint", || {
            let manner = attempt::Manner { changes_alone, pace, quiesce_for, is_last };
            attempt::take(shared, wish, manner, progress)
        })
        .unwrap_or_else(|panic| Err(shared.fail_by_panic(panic)));
        match taken {
            Err(Error::Checkpoint(CheckpointError::Cancelled)) => continue,
            taken => return shared.checkpoints.note(shared, commits, taken),
        }
    }
}

impl Checkpoints {
    /// Notes the outcome of an attempt.
    fn note(
        &self,
        shared: &Shared,
        commits: u64,
        taken: Result<(CheckpointDone, Vec<LogGsn>), Error>,
    ) -> Result<CheckpointDone, Error> {
        let now_ns = shared.config.environment.clock.monotonic_ns();
        let is_full = taken.as_ref().is_err_and(Error::is_disk_full);
        let free_bytes = if is_full { shared.free_bytes() } else { None };
        if let Ok((done, _)) = &taken {
            tracing::info!(
                epoch = done.epoch,
                kind = done.kind.as_str(),
                records = done.records,
                bytes = done.bytes,
                changed = done.changed,
                ms = done.duration.as_millis() as u64,
                "a checkpoint is published"
            );
        }
        self.note_chain(&shared.catalog.now());
        let mut state = self.state.lock();
        match taken {
            Ok((done, positions)) => {
                self.published_epoch.fetch_max(done.epoch, Release);
                state.last_ns = now_ns;
                state.last_commits = commits;
                state.positions = positions;
                state.earlier_log_bytes = 0;
                state.last_finished_ms = Some(done.finished_ms);
                state.owes_full &= done.kind != CheckpointKind::Full;
                state.chain_is_damaged &= done.kind != CheckpointKind::Full;
                state.has_many_notes &= done.kind != CheckpointKind::Full;
                state.last = Some(done.clone());
                state.last_error = None;
                state.retry = Backoff::default();
                state.unsaved_since_ns = None;
                state.has_warned = false;
                state.published += 1;
                Ok(done)
            }
            Err(error) => {
                state.retry.failed(now_ns, free_bytes);
                state.last_error = Some(error.to_string());
                state.failures += 1;
                let (failures, next) = (state.retry.failures(), state.retry.left(now_ns));
                drop(state);
                tracing::error!(
                    %error,
                    failures,
                    next_attempt_s = next.map_or(0, |left| left.as_secs()),
                    "a checkpoint has failed; the previous one is kept"
                );
                if let Error::Checkpoint(fatal) = &error
                    && fatal.is_fatal()
                {
                    shared.fail(error.to_string());
                }
                Err(error)
            }
        }
    }
}
