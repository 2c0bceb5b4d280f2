//! One attempt, from the MANIFEST that reserves its epoch to the MANIFEST that names the
//! checkpoint.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_checkpoint::{
    Captured, CheckpointError, Cycle, Observer, Pace, Progress, QuiesceFor, Wanted, WriterConfig,
    Written, remove_checkpoint, remove_checkpoint_soon, work_after_capture,
};
use stillpoint_format::LogGsn;
use stillpoint_format::log::RecordKind;
use stillpoint_format::manifest::{CheckpointKind, LogPositions, Manifest, TableGeneration};
use stillpoint_io::Disk;
use stillpoint_journal::{Entry, Hold, Journal};
use stillpoint_store::{LogRefused, Outcome, Phase, PointOfConsistency, SchemeLog, Stamp, TableId};
use stillpoint_sync::{mutant, planted};

use super::publication::{self, NewCheckpoint};
use super::{CheckpointDone, LOG_HOLDER, Wish, chain};
use crate::error::Error;
use crate::guards::open_on_thread;
use crate::log::refused;
use crate::shared::Shared;
use crate::undone::WriteAhead;

/// Notes taken during the phases.
#[derive(Debug, Default)]
struct AtPointOfConsistency {
    generations: Vec<TableGeneration>,
    positions: Vec<LogGsn>,
}

/// A checkpoint of changes, however many there are.
const ALL_CHANGES: Wanted = Wanted::Changes { percent_max: u64::MAX };

/// How an attempt is made.
pub(super) struct Manner {
    /// Not every record is loaded. So the checkpoint is one of changes, however many there are.
    pub(super) changes_alone: bool,
    pub(super) pace: Pace,
    pub(super) quiesce_for: QuiesceFor,
    /// No further checkpoint will be taken.
    pub(super) is_last: bool,
}

/// Takes a checkpoint and publishes it. Returns the logs' positions at its point of consistency.
pub(super) fn take(
    shared: &Arc<Shared>,
    wish: Wish,
    Manner { changes_alone, pace, quiesce_for, is_last }: Manner,
    progress: &Arc<Progress>,
) -> Result<(CheckpointDone, Vec<LogGsn>), Error> {
    let start_ns = shared.config.environment.clock.monotonic_ns();
    let Some(scheme) = &shared.scheme else {
        if !shared.kinds.is_empty() {
            return publish_kinds(shared, start_ns);
        }
        let reason = format!("scheme {} takes none", shared.config.checkpoint);
        return Err(Error::Config { setting: "checkpoint", reason });
    };
    let waits = quiesce_for == QuiesceFor::Transactions && scheme.published_point().stops_commits();
    if waits && open_on_thread() > 0 {
        // The point of consistency would wait for the transaction of its own thread.
        return Err(Error::InsideTransaction { what: "checkpoint" });
    }
    match remove_strays_while_open(shared) {
        Err(error) if error.is_fatal() => return Err(error.into()),
        // Files that cannot be removed now are removed by a later attempt, or at the next start.
        Ok(()) | Err(_) => {}
    }
    // Unneeded segments are removed first. If a removal fails and the space is missing, the writing
    // of the parts will fail.
    let _ = shared.journal.shed(shared.reserve_space());
    let epoch = shared.store.driver().now().epoch() + 1;
    // The MANIFEST must know of the epoch before a commit belongs to it. The MANIFEST must also
    // count the directory's serial before the directory is made, so that a later attempt gets
    // another one.
    let serial = shared.publish(|manifest| {
        manifest.next_epoch = manifest.next_epoch.max(epoch + 1);
        let serial = manifest.next_serial;
        manifest.next_serial += 1;
        serial
    })?;
    shared.checkpoints.state.lock().making = Some(serial);
    let noted = Arc::new(Mutex::new(AtPointOfConsistency::default()));
    let cycle = Cycle {
        store: shared.store.clone(),
        scheme: scheme.clone(),
        wanted: if changes_alone { ALL_CHANGES } else { wanted(shared, wish) },
        clock: shared.config.environment.clock.clone(),
        threads: shared.config.checkpoint_threads,
        pace,
        progress: progress.clone(),
        log: Arc::new(LogOfScheme(shared.journal.clone(), epoch - 1)),
        quiesce_for,
        observer: Some(observer(shared, &noted)),
        before_point: Some(before_point(shared)),
    };
    let writer = writer(shared, serial);
    let taken = stillpoint_checkpoint::take_checkpoint(&cycle, &shared.disk, &writer);
    let (written, captured) = taken?;
    let noted = std::mem::take(&mut *noted.lock());
    let published = publish(shared, written, captured, &noted, start_ns);
    let outcome = if published.is_ok() { Outcome::Published } else { Outcome::Abandoned };
    cycle.ended(captured.epoch, outcome);
    let mut until_ready = None;
    if !is_last {
        match work_after_capture(&cycle) {
            Ok(()) => until_ready = Some(cycle.clock.monotonic_ns() - start_ns),
            // The next checkpoint finishes the work that was cut off.
            Err(error) => tracing::debug!(%error, "the work after a checkpoint was cut off"),
        }
    }
    let until_ready = until_ready.map(Duration::from_nanos);
    published.map(|done| (CheckpointDone { until_ready, ..done }, noted.positions))
}

/// The settings of the files.
fn writer(shared: &Shared, serial: u64) -> WriterConfig {
    let manifest = shared.catalog.now();
    let mut writer = WriterConfig::new(manifest.store, manifest.hash_seed, serial);
    writer.base = base_of(shared, CheckpointKind::Partial);
    writer.codec = shared.config.codec;
    writer.leave_bytes = shared.journal.headroom_bytes();
    if !shared.config.environment.background {
        // With one writer the calls of the disk always come in the same order.
        writer.parts = 1;
    }
    writer
}

/// The log of a scheme's own records, which are of this epoch.
struct LogOfScheme(Arc<dyn Journal>, u64);

impl SchemeLog for LogOfScheme {
    fn append(&self, body: &[u8]) -> Result<Stamp, LogRefused> {
        let append = |out: &mut Vec<u8>| {
            out.extend_from_slice(body);
            Ok(())
        };
        let (kind, epoch) = (RecordKind::Scheme, self.1);
        let entry = Entry { kind, epoch, touched: &[], body: &append };
        match self.0.append(0, &entry) {
            Err(error) if error.is_refusal() => Err(LogRefused::NoRoom),
            appended => appended.map_err(refused),
        }
    }
}

fn is_fuzzy(shared: &Shared) -> bool {
    let point = shared.scheme.as_ref().map(|scheme| scheme.point_of_consistency());
    point.is_some_and(PointOfConsistency::is_fuzzy)
}

/// Keeps flushes of tables away from the point of consistency.
fn before_point(shared: &Arc<Shared>) -> Arc<dyn Fn() + Send + Sync> {
    let shared = shared.clone();
    Arc::new(move || {
        if !is_fuzzy(&shared) {
            shared.checkpoints.begin_passing();
        }
    })
}

/// Notes positions and generations. A fuzzy checkpoint notes positions in PREPARE, and keeps flushes of
/// tables away from then on.
fn observer(shared: &Arc<Shared>, noted: &Arc<Mutex<AtPointOfConsistency>>) -> Observer {
    let (shared, noted) = (shared.clone(), noted.clone());
    let is_fuzzy = is_fuzzy(&shared);
    Arc::new(move |phase, epoch| match phase {
        Phase::Prepare if is_fuzzy => {
            shared.checkpoints.begin_passing();
            // All that is in the logs by now is installed before the scan begins.
            noted.lock().positions = shared.journal.positions_before_epoch(u64::MAX);
        }
        Phase::Prepare => {}
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
        Phase::Capture if is_fuzzy => {}
        Phase::Capture => noted.lock().positions = shared.journal.positions_before_epoch(epoch),
        Phase::Complete | Phase::Rest => {}
    })
}

/// The wanted content of the checkpoint.
pub(super) fn wanted(shared: &Shared, wish: Wish) -> Wanted {
    let percent_max = shared.config.changed_percent_max;
    let merges = shared.checkpoints.policy().merge_after.is_some();
    match wish {
        Wish::Full => Wanted::Full,
        Wish::Due => {
            chain::wanted(&shared.catalog.now(), shared.scheme_name, (percent_max, merges))
        }
    }
}

/// Epoch of the base of a checkpoint of changes. No other checkpoint is published meanwhile.
fn base_of(shared: &Shared, kind: CheckpointKind) -> Option<u64> {
    let newest = shared.catalog.now().checkpoints.last().map(|newest| newest.epoch);
    newest.filter(|_| kind == CheckpointKind::Partial)
}

fn publish(
    shared: &Arc<Shared>,
    written: Written,
    captured: Captured,
    noted: &AtPointOfConsistency,
    start_ns: u64,
) -> Result<CheckpointDone, Error> {
    let (kind, output) = (written.kind, written.stats);
    let mut logs = noted.positions.clone();
    mutant!(PositionsTooLate => logs = shared.journal.positions_before_epoch(u64::MAX));
    let positions = vec![LogPositions { incarnation: shared.incarnation, logs }];
    let mut entry = written.into_entry(
        shared.scheme_name,
        base_of(shared, kind),
        noted.generations.clone(),
        positions,
        shared.floor,
    );
    entry.private = shared.scheme.as_ref().and_then(|scheme| scheme.section());
    let duration = Duration::from_nanos(shared.config.environment.clock.monotonic_ns() - start_ns);
    let done = CheckpointDone {
        epoch: captured.epoch,
        kind,
        records: entry.records,
        bytes: chain::bytes_of(&entry),
        duration,
        until_ready: Some(duration),
        changed: captured.dirty,
        consistency: Duration::from_nanos(captured.consistency_ns),
        stopped: Duration::from_nanos(captured.stopped_ns),
        capture: Duration::from_nanos(captured.capture_ns),
        drain: Duration::from_nanos(captured.drain_ns),
        stable_peak_bytes: captured.stable_peak_bytes,
        pool_bytes_max: output.pool_bytes_peak,
        waits: output.worker_waits,
        waited: Duration::from_nanos(output.worker_wait_ns),
        finished_ms: entry.finished_ms,
    };
    let hold = Hold { holder: LOG_HOLDER, floor: shared.floor, positions: noted.positions.clone() };
    let ahead = write_ahead(shared, &noted.positions);
    publication::publish(shared, Some(NewCheckpoint { entry, hold, ahead }))?;
    Ok(done)
}

/// What the logs must have before the checkpoint is published, if a start may have to undo it.
fn write_ahead(shared: &Shared, positions: &[LogGsn]) -> Option<WriteAhead> {
    let scheme = shared.scheme.as_ref()?;
    let overwritten = shared.overwritten.as_ref()?;
    if scheme.point_of_consistency() != PointOfConsistency::FuzzyUndone {
        return None;
    }
    let closed = positions.iter().map(|at| Stamp::new(at.gsn, at.log)).collect();
    Some(WriteAhead { closed, flushed: overwritten.with_overwritten(&scheme.met()) })
}

/// Publishes the sections of the kinds of tables, if the scheme takes no checkpoints. Returns the positions
/// from which on the kinds need the logs.
fn publish_kinds(
    shared: &Arc<Shared>,
    start_ns: u64,
) -> Result<(CheckpointDone, Vec<LogGsn>), Error> {
    let clock = &shared.config.environment.clock;
    let positions = publication::publish(shared, None)?;
    let duration = Duration::from_nanos(clock.monotonic_ns() - start_ns);
    let done = CheckpointDone {
        epoch: shared.store.driver().now().epoch(),
        kind: CheckpointKind::Full,
        records: 0,
        bytes: 0,
        changed: 0,
        duration,
        until_ready: Some(duration),
        consistency: Duration::ZERO,
        stopped: Duration::ZERO,
        capture: Duration::ZERO,
        drain: Duration::ZERO,
        stable_peak_bytes: 0,
        pool_bytes_max: 0,
        waits: 0,
        waited: Duration::ZERO,
        finished_ms: clock.wall_ms(),
    };
    Ok((done, positions))
}

/// Removes directories of checkpoints that the MANIFEST does not name. Attempts that failed, or
/// that a crash ended, may have left such directories.
pub(crate) fn remove_strays(disk: &dyn Disk, manifest: &Manifest) -> Result<(), CheckpointError> {
    remove_unnamed(disk, &directories(disk)?, manifest, ([None; 2], remove_checkpoint_soon))
}

/// Removes strays, but not the directories of a checkpoint and of a merge under way. Both name their
/// directory before they make it, and the MANIFEST names it before they end. So the directories are
/// listed first. While somebody holds the files, nothing is removed.
pub(super) fn remove_strays_while_open(shared: &Shared) -> Result<(), CheckpointError> {
    let found = directories(&*shared.disk)?;
    let under_way = {
        let state = shared.checkpoints.state.lock();
        [state.making, state.merging.serial]
    };
    let manifest = shared.catalog.now();
    // Who holds the files from here on finds this MANIFEST or a newer one.
    if shared.checkpoints.are_held() {
        return Ok(());
    }
    let under_way = mutant!(under_way, RemovesWhatIsMade => [None, under_way[1]]);
    remove_unnamed(&*shared.disk, &found, &manifest, (under_way, remove_checkpoint))
}

/// Serials and kinds of the directories of checkpoints.
fn directories(disk: &dyn Disk) -> Result<Vec<(u64, CheckpointKind)>, CheckpointError> {
    let dir = Path::new(stillpoint_format::names::CHECKPOINT_DIR);
    if !disk.exists(dir)? {
        return Ok(Vec::new());
    }
    let names = disk.list(dir)?;
    Ok(names
        .iter()
        .filter_map(|name| stillpoint_format::names::parse_checkpoint_name(name))
        .collect())
}

/// How the files of a checkpoint are removed.
type Remove = fn(&dyn Disk, u64, CheckpointKind) -> Result<(), CheckpointError>;

fn remove_unnamed(
    disk: &dyn Disk,
    found: &[(u64, CheckpointKind)],
    manifest: &Manifest,
    (under_way, remove): ([Option<u64>; 2], Remove),
) -> Result<(), CheckpointError> {
    for &(serial, kind) in found {
        let is_named = manifest.checkpoints.iter().any(|c| (c.serial, c.kind) == (serial, kind));
        if !is_named && !under_way.contains(&Some(serial)) {
            remove(disk, serial, kind)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{Config, Durability, Engine};

    /// The process ends after the last checkpoint, so nothing is copied for a next one.
    #[test]
    fn the_last_checkpoint_copies_nothing_for_a_next_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut config = Config::new(directory.path());
        (config.checkpoint, config.journal) = ("piggyback".to_owned(), "none".to_owned());
        (config.durability, config.checkpoint_every) = (Durability::Checkpoint, None);
        let engine = Engine::open(config).expect("opens");
        let table = engine.table("things").expect("a table");
        let mut session = engine.session().expect("a session");
        session.transact(|tx| tx.put(table, b"key", b"value")).expect("commits");
        drop(session);
        let shared = engine.shared.clone();
        let scheme = shared.scheme.clone().expect("it takes checkpoints");
        let has_work_left = || scheme.has_work_left(shared.store.driver().now().epoch());
        let done = engine.checkpoint().expect("a checkpoint");
        assert!(done.until_ready.is_some_and(|ready| ready >= done.duration) && !has_work_left());
        engine.close().expect("closes");
        assert!(has_work_left(), "every record was copied once more");
    }
}
