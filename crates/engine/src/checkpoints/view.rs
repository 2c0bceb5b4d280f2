//! The capture of a snapshot: a checkpoint into memory, which is never published.
//!
//! The capture passes through the phases like a full checkpoint, in an epoch of its own. It ends as one
//! that was given up, so no mark of a change is cleared. The next checkpoint joins the marks of the two
//! epochs.
//!
//! One checkpoint or snapshot is under way at a time. A checkpoint that is due waits for the
//! snapshot, up to the snapshot's greatest age or the limit of the log. Then the snapshot ends.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stillpoint_checkpoint::{
    Cycle, NoSchemeLog, Observer, Pace, Progress, QuiesceFor, ViewSink, Wanted, run_checkpoint,
    work_after_capture,
};
use stillpoint_io::catch_panic;
use stillpoint_journal::Shortage;
use stillpoint_store::{Outcome, Phase, Sink, TableId};
use stillpoint_sync::{mutant, planted};

use super::waiting::is_pressing;
use super::{Checkpoints, Running, TICK, Wish};
use crate::error::{Error, SnapshotEnd};
use crate::named::OWN_TABLES;
use crate::shared::Shared;

/// A snapshot that is not complete.
#[derive(Debug)]
pub(crate) struct OpenView {
    sink: Arc<ViewSink>,
    progress: Arc<Progress>,
    since_ns: u64,
    /// Spare bytes of the store below which the snapshot ends: half of those at its begin.
    spare_bytes_min: usize,
    end: OnceLock<SnapshotEnd>,
}

/// Generations of the tables at the point of consistency.
pub(crate) type Generations = BTreeMap<TableId, u32>;

/// What the capture tells the caller once, when the point of consistency has passed or cannot be passed.
type Opened = Result<(Arc<OpenView>, Generations), Error>;

/// Where the caller waits for the point of consistency.
#[derive(Debug, Default)]
pub(crate) struct Opening {
    told: Mutex<Option<Opened>>,
    changed: Condvar,
}

impl Opening {
    /// Waits until the capture has told.
    pub(crate) fn wait(&self) -> Opened {
        let mut told = self.told.lock();
        loop {
            match told.take() {
                Some(opened) => return opened,
                None => self.changed.wait(&mut told),
            }
        }
    }

    /// Tells the caller, who hears the first word alone.
    fn tell(&self, opened: Opened) {
        self.told.lock().get_or_insert(opened);
        self.changed.notify_all();
    }
}

impl OpenView {
    /// Ends the snapshot, unless it is complete.
    pub(crate) fn end(&self, reason: SnapshotEnd) {
        // The first reason is the one that counts.
        let _ = self.end.set(reason);
        self.progress.cancel();
        self.sink.end();
    }

    /// Why the snapshot has ended early.
    pub(crate) fn reason(&self) -> SnapshotEnd {
        if self.sink.is_over_limit() {
            return SnapshotEnd::MemoryLimit;
        }
        self.end.get().cloned().unwrap_or(SnapshotEnd::Closed)
    }
}

impl Checkpoints {
    /// Waits for the end of the checkpoint under way, and of those that wait. Then begins a snapshot.
    ///
    /// # Errors
    /// Another snapshot is open, or the store is being closed.
    fn begin_view(
        &self,
        shared: &Shared,
        sink: &Arc<ViewSink>,
    ) -> Result<(Running<'_>, Arc<OpenView>), Error> {
        let mut state = self.state.lock();
        loop {
            // The capture of one that has ended comes to its end soon.
            if state.view.as_ref().is_some_and(|view| !view.sink.has_ended()) {
                return Err(Error::SnapshotOpen);
            }
            if state.is_stopping {
                return Err(Error::Ended);
            }
            // A checkpoint that was asked for comes first, if somebody takes it.
            let is_asked_for = state.requested && shared.config.environment.background;
            if state.running.is_none() && state.waiting == 0 && !is_asked_for {
                break;
            }
            self.changed.wait_for(&mut state, TICK);
        }
        let progress = Arc::<Progress>::default();
        let view = Arc::new(OpenView {
            sink: sink.clone(),
            progress: progress.clone(),
            since_ns: shared.config.environment.clock.monotonic_ns(),
            spare_bytes_min: shared.store.spare_bytes() / 2,
            end: OnceLock::new(),
        });
        (state.running, state.view) = (Some(progress.clone()), Some(view.clone()));
        Ok((Running { checkpoints: self, progress, wish: Wish::Full }, view))
    }

    /// Ends the open snapshot.
    pub(crate) fn end_view(&self, reason: SnapshotEnd) {
        let view = self.state.lock().view.clone();
        if let Some(view) = view {
            view.end(reason);
        }
    }

    /// Waits until no snapshot is under way, once the store is being [closed](Self::stop).
    pub(crate) fn wait_for_view(&self) {
        let mut state = self.state.lock();
        while state.view.is_some() {
            self.changed.wait(&mut state);
        }
    }

    /// Ends the open snapshot if the store has little memory left for commits, and the snapshot may be the
    /// reason. It keeps large values, or cells of deleted keys that no capture spares.
    pub(crate) fn end_view_for_memory(&self, shared: &Shared) {
        let Some(view) = self.state.lock().view.clone() else { return };
        let keeps = view.sink.large_bytes() > 0 || shared.store.captures_keep_deleted_keys();
        if keeps && shared.store.spare_bytes() < view.spare_bytes_min {
            view.end(SnapshotEnd::StoreMemory);
        }
    }

    /// Ends the open snapshot if a checkpoint cannot wait for it any longer.
    pub(super) fn end_view_in_time(&self, shared: &Shared) {
        let commits = shared.commit_count();
        let now_ns = shared.config.environment.clock.monotonic_ns();
        let (view, frees_memory, positions, earlier_log_bytes, limit_bytes) = {
            let state = self.state.lock();
            let Some(view) = state.view.clone() else { return };
            let waited = Duration::from_nanos(now_ns.saturating_sub(state.last_ns));
            // A cache is full all the time, and some of its deleted keys always wait for a checkpoint.
            let frees_memory = is_pressing(shared) && state.frees_memory(shared, commits, waited);
            let (positions, limit) = (state.positions.clone(), state.policy.log_limit_bytes);
            (view, frees_memory, positions, state.earlier_log_bytes, limit)
        };
        let age = Duration::from_nanos(now_ns.saturating_sub(view.since_ns));
        let log_bytes = earlier_log_bytes + shared.journal.bytes_since(&positions);
        let max_age = shared.config.snapshot_max_age;
        let is_at_limit = shared.journal.limit_left() < limit_bytes / 8;
        if age >= max_age {
            view.end(SnapshotEnd::TooOld { max_age });
        } else if log_bytes >= limit_bytes
            || is_at_limit
            || shared.journal.shortage() != Shortage::None
        {
            view.end(SnapshotEnd::LogLimit);
        } else if frees_memory {
            view.end(SnapshotEnd::StoreMemory);
        }
    }
}

/// Captures a snapshot into `sink`, and tells once the point of consistency has passed. Returns when all
/// records are queued, or when the snapshot has ended early.
pub(crate) fn take(shared: &Arc<Shared>, sink: &Arc<ViewSink>, opening: &Arc<Opening>) {
    // A panic of the capture has become an error already. Any other panic may have interrupted a
    // publication.
    let taken = catch_panic("snapshot", || begin_and_capture(shared, sink, opening))
        .unwrap_or_else(|panic| Err(shared.fail_by_panic(panic)));
    if let Err(error) = taken {
        sink.end();
        opening.tell(Err(error));
    }
}

/// Returns the failure that the caller has to hear, if the caller waits still.
fn begin_and_capture(
    shared: &Arc<Shared>,
    sink: &Arc<ViewSink>,
    opening: &Arc<Opening>,
) -> Result<(), Error> {
    let (running, view) = shared.checkpoints.begin_view(shared, sink)?;
    let captured = capture(shared, sink, &running, &view, opening);
    let Err(error) = captured else { return Ok(()) };
    if sink.has_ended() {
        return Err(Error::SnapshotEnded(view.reason()));
    }
    tracing::warn!(%error, "a snapshot has failed");
    if let Error::Checkpoint(fatal) = &error
        && fatal.is_fatal()
    {
        shared.fail(error.to_string());
    }
    view.end(SnapshotEnd::Failed(error.to_string()));
    Err(error)
}

fn capture(
    shared: &Arc<Shared>,
    sink: &Arc<ViewSink>,
    running: &Running<'_>,
    view: &Arc<OpenView>,
    opening: &Arc<Opening>,
) -> Result<(), Error> {
    shared.health()?;
    let scheme = shared.scheme.clone().expect("a scheme with snapshots takes checkpoints");
    let epoch = shared.store.driver().now().epoch() + 1;
    // The MANIFEST must know of the epoch before a commit belongs to it.
    shared.publish(|manifest| manifest.next_epoch = manifest.next_epoch.max(epoch + 1))?;
    let cycle = Cycle {
        store: shared.store.clone(),
        scheme,
        wanted: Wanted::Full,
        clock: shared.config.environment.clock.clone(),
        threads: shared.config.checkpoint_threads,
        quiesce_for: QuiesceFor::Commits,
        pace: Pace::Unpaced,
        progress: running.progress.clone(),
        log: Arc::new(NoSchemeLog),
        observer: Some(observer(shared, (view, &running.progress), opening)),
        before_point: Some(Arc::new({
            let shared = shared.clone();
            move || shared.checkpoints.begin_passing()
        })),
    };
    let into: Arc<dyn Sink> = sink.clone();
    let captured = run_checkpoint(&cycle, &into)?;
    sink.complete();
    let outcome = mutant!(Outcome::Abandoned, SnapshotClearsMarks => Outcome::Published);
    cycle.ended(captured.epoch, outcome);
    if let Err(error) = work_after_capture(&cycle) {
        // The next checkpoint finishes the work that was cut off.
        tracing::debug!(%error, "the work after a snapshot was cut off");
    }
    Ok(())
}

/// Tells when the point of consistency has passed, and lets flushes of tables go on.
fn observer(
    shared: &Arc<Shared>,
    (view, progress): (&Arc<OpenView>, &Arc<Progress>),
    opening: &Arc<Opening>,
) -> Observer {
    let (shared, view, opening) = (shared.clone(), view.clone(), opening.clone());
    let progress = progress.clone();
    Arc::new(move |phase, _| {
        if phase == Phase::Resolve {
            let tables = shared.catalog.now().tables;
            let generation = |id| Some((id, shared.store.generation(id)?));
            // Records of the engine's own tables are not the program's.
            let shown = tables.iter().filter(|table| !table.name.starts_with(OWN_TABLES));
            let ids = shown.map(|table| TableId(table.id));
            let generations = ids.filter_map(generation).collect();
            shared.checkpoints.end_passing();
            // A passage that has failed goes through the phases too, and the progress does not show that.
            if progress.snapshot().phase == Phase::Resolve {
                opening.tell(Ok((view.clone(), generations)));
            }
        }
    })
}
