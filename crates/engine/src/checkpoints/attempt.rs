//! One checkpoint, from the MANIFEST that reserves its epoch to the one that names it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_checkpoint::{
    Captured, CheckpointError, Cycle, Observer, Pace, Progress, WriterConfig, Written,
    remove_checkpoint,
};
use stillpoint_format::LogGsn;
use stillpoint_format::manifest::{CheckpointEntry, LogPositions, Manifest, TableGeneration};
use stillpoint_io::Disk;
use stillpoint_journal::Hold;
use stillpoint_store::{Outcome, Phase, TableId};
use stillpoint_sync::{mutant, planted};

use super::{CheckpointDone, LOG_HOLDER};
use crate::engine::Shared;
use crate::error::Error;

/// What is noted while the phases pass.
#[derive(Debug, Default)]
struct AtPointOfConsistency {
    generations: Vec<TableGeneration>,
    positions: Vec<LogGsn>,
}

/// Takes a checkpoint and publishes it; gives the logs' positions at its point of consistency.
pub(super) fn take(
    shared: &Arc<Shared>,
    pace: Pace,
    progress: &Arc<Progress>,
) -> Result<(CheckpointDone, Vec<LogGsn>), Error> {
    let Some(scheme) = &shared.scheme else {
        let reason = format!("scheme {} takes none", shared.config.checkpoint);
        return Err(Error::Config { setting: "checkpoint", reason });
    };
    let start_ns = shared.config.environment.clock.monotonic_ns();
    match remove_strays(&*shared.disk, &shared.catalog.now()) {
        Err(error) if error.is_fatal() => return Err(error.into()),
        // What cannot be removed now goes with a later one, or at the next start.
        Ok(()) | Err(_) => {}
    }
    // Segments that hold nothing go first. Whether those that cannot be removed are in the way shows
    // when the parts are written.
    let _ = shared.journal.shed(shared.reserve_space());
    let epoch = shared.store.driver().now().epoch() + 1;
    // No commit of the new epoch may come before the MANIFEST knows of the epoch, and no directory
    // may be made before the MANIFEST counts its serial: a later attempt gets another one.
    let serial = shared.publish(|manifest| {
        manifest.next_epoch = manifest.next_epoch.max(epoch + 1);
        let serial = manifest.next_serial;
        manifest.next_serial += 1;
        serial
    })?;
    let noted = Arc::new(Mutex::new(AtPointOfConsistency::default()));
    let cycle = Cycle {
        store: shared.store.clone(),
        scheme: scheme.clone(),
        clock: shared.config.environment.clock.clone(),
        threads: shared.config.checkpoint_threads,
        pace,
        progress: progress.clone(),
        observer: Some(observer(shared, &noted)),
    };
    let manifest = shared.catalog.now();
    let mut writer = WriterConfig::new(manifest.store, manifest.hash_seed, serial);
    writer.codec = shared.config.codec;
    writer.leave_bytes = shared.journal.headroom_bytes();
    if !shared.config.environment.background {
        // One writer: its calls of the disk come in the same order every time.
        writer.parts = 1;
    }
    let taken = stillpoint_checkpoint::take_checkpoint(&cycle, &shared.disk, &writer);
    let (written, captured) = taken?;
    let noted = std::mem::take(&mut *noted.lock());
    let published = publish(shared, written, captured, &noted, start_ns);
    let outcome = if published.is_ok() { Outcome::Published } else { Outcome::Abandoned };
    scheme.ended(captured.epoch, outcome);
    published.map(|done| (done, noted.positions))
}

/// Notes positions and generations, and keeps flushes of tables away from the point of consistency.
fn observer(shared: &Arc<Shared>, noted: &Arc<Mutex<AtPointOfConsistency>>) -> Observer {
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
    noted: &AtPointOfConsistency,
    start_ns: u64,
) -> Result<CheckpointDone, Error> {
    let (serial, kind) = (written.serial, written.kind);
    let pool_bytes_max = written.stats.pool_bytes_peak;
    let logs = mutant!(
        noted.positions.clone(),
        PositionsTooLate => shared.journal.positions_before_epoch(u64::MAX)
    );
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
    let flush_logs = || shared.journal.flush_all().map_err(|error| shared.note_failure(error));
    mutant!(flush_logs()?, PublishesBeforeLogs => ());
    mutant!(RemovesBeforePublishing => remove_all(shared)?);
    let published = shared.publish(|manifest| supersede(shared, manifest, entry, noted));
    let dropped = match published {
        Ok(dropped) => dropped,
        Err(error) => {
            // If it is not known which MANIFEST is on disk, neither checkpoint may be removed.
            if shared.health().is_ok() {
                let _ = remove_checkpoint(&*shared.disk, serial, kind);
            }
            return Err(error);
        }
    };
    // The checkpoint exists. What cannot be removed now goes with a later one, or at the next start.
    for old in &dropped {
        if let Err(error) = remove_checkpoint(&*shared.disk, old.serial, old.kind)
            && error.is_fatal()
        {
            shared.fail(error.to_string());
        }
    }
    let hold = Hold { holder: LOG_HOLDER, floor: shared.floor, positions: noted.positions.clone() };
    if let Err(error) = shared.journal.hold(hold) {
        shared.note_failure(error);
    }
    Ok(done)
}

/// What `RemovesBeforePublishing` does.
fn remove_all(shared: &Shared) -> Result<(), CheckpointError> {
    let now = shared.catalog.now();
    now.checkpoints
        .iter()
        .try_for_each(|old| remove_checkpoint(&*shared.disk, old.serial, old.kind))
}

/// Puts a checkpoint into the MANIFEST and takes those out that are too many; returns them.
fn supersede(
    shared: &Shared,
    manifest: &mut Manifest,
    mut entry: CheckpointEntry,
    noted: &AtPointOfConsistency,
) -> Vec<CheckpointEntry> {
    if !shared.records_commits {
        // Without a journal a flush of tables becomes durable with the checkpoint after it.
        for table in &mut manifest.tables {
            if let Some(at) = noted.generations.iter().find(|g| g.table == table.id) {
                table.generation = at.generation;
            }
        }
    }
    // A table that was emptied since the point of consistency gave its memory back at once, captured or
    // not. So the checkpoint names no generation of it, and what its parts hold of it is void.
    entry.generations.retain(|then| {
        manifest.table(then.table).is_some_and(|now| now.generation == then.generation)
    });
    manifest.checkpoints.push(entry);
    // The checkpoint holds all that earlier incarnations did.
    manifest.incarnations.retain(|incarnation| incarnation.number >= shared.incarnation);
    let surplus = manifest.checkpoints.len().saturating_sub(shared.config.keep_checkpoints);
    manifest.checkpoints.drain(..surplus).collect()
}

/// Removes directories of checkpoints that the MANIFEST does not name: attempts that a crash ended.
pub(crate) fn remove_strays(disk: &dyn Disk, manifest: &Manifest) -> Result<(), CheckpointError> {
    let dir = Path::new(stillpoint_format::names::CHECKPOINT_DIR);
    if !disk.exists(dir)? {
        return Ok(());
    }
    for name in disk.list(dir)? {
        let Some((serial, kind)) = stillpoint_format::names::parse_checkpoint_name(&name) else {
            continue;
        };
        if !manifest.checkpoints.iter().any(|c| (c.serial, c.kind) == (serial, kind)) {
            remove_checkpoint(disk, serial, kind)?;
        }
    }
    Ok(())
}
