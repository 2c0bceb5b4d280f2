//! One attempt, from the MANIFEST that reserves its epoch to the MANIFEST that names the
//! checkpoint.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_checkpoint::{
    Captured, CheckpointError, Cycle, Observer, Pace, Progress, WriterConfig, Written,
    remove_checkpoint,
};
use stillpoint_format::LogGsn;
use stillpoint_format::manifest::{
    CheckpointEntry, CheckpointKind, LogPositions, Manifest, TableGeneration,
};
use stillpoint_io::Disk;
use stillpoint_journal::Hold;
use stillpoint_store::{Outcome, Phase, TableId};
use stillpoint_sync::{mutant, planted};

use super::{CheckpointDone, LOG_HOLDER, chain};
use crate::error::Error;
use crate::kinds;
use crate::shared::Shared;

/// Notes taken during the phases.
#[derive(Debug, Default)]
struct AtPointOfConsistency {
    generations: Vec<TableGeneration>,
    positions: Vec<LogGsn>,
}

/// Takes a checkpoint and publishes it. Returns the logs' positions at its point of consistency.
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
    let merging = shared.checkpoints.state.lock().merging.serial;
    match remove_strays(&*shared.disk, &shared.catalog.now(), merging) {
        Err(error) if error.is_fatal() => return Err(error.into()),
        // Files that cannot be removed now are removed by a later attempt, or at the next start.
        Ok(()) | Err(_) => {}
    }
    // Unneeded segments are removed first. If a removal fails and the space is missing, the writing
    // of the parts will fail.
    let _ = shared.journal.shed(shared.reserve_space());
    let epoch = shared.store.driver().now().epoch() + 1;
    // The MANIFEST must know of the epoch before a commit belongs to it. It must count the
    // directory's serial before the directory is made, so that a later attempt gets another one.
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
        wanted: chain::wanted(
            &shared.catalog.now(),
            shared.scheme_name,
            (shared.config.changed_percent_max, shared.checkpoints.merge_after().is_some()),
        ),
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
        // With one writer the calls of the disk always come in the same order.
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

/// Epoch of the checkpoint that one of changes goes on from. No other checkpoint is published meanwhile.
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
    let (serial, kind) = (written.serial, written.kind);
    let pool_bytes_max = written.stats.pool_bytes_peak;
    let logs = mutant!(
        noted.positions.clone(),
        PositionsTooLate => shared.journal.positions_before_epoch(u64::MAX)
    );
    let positions = vec![LogPositions { incarnation: shared.incarnation, logs }];
    let entry = written.into_entry(
        shared.scheme_name,
        base_of(shared, kind),
        noted.generations.clone(),
        positions,
        shared.floor,
    );
    let done = CheckpointDone {
        epoch: captured.epoch,
        kind,
        records: entry.records,
        bytes: chain::bytes_of(&entry),
        duration: Duration::from_nanos(shared.config.environment.clock.monotonic_ns() - start_ns),
        pool_bytes_max,
        finished_ms: entry.finished_ms,
    };
    let of_kinds = kinds::checkpoint::begin(shared)?;
    // Recovery takes dependencies on records before the point of consistency as met. So these
    // records must be flushed.
    let flush_logs = || shared.journal.flush_all().map_err(|error| shared.note_failure(error));
    let flushed = mutant!(flush_logs(), PublishesBeforeLogs => Ok(()));
    flushed.inspect_err(|_| of_kinds.end(shared, false))?;
    mutant!(RemovesBeforePublishing => remove_all(shared)?);
    let published = shared.publish(|manifest| {
        of_kinds.publish(manifest);
        supersede(shared, manifest, entry, noted)
    });
    let dropped = match published {
        Ok(dropped) => dropped,
        Err(error) => {
            // If the MANIFEST on disk is in doubt, neither checkpoint may be removed.
            if shared.health().is_ok() {
                of_kinds.end(shared, false);
                let _ = remove_checkpoint(&*shared.disk, serial, kind);
            }
            return Err(error);
        }
    };
    // The checkpoint is published. Files that cannot be removed now are removed by a later attempt,
    // or at the next start.
    for old in &dropped {
        if let Err(error) = remove_checkpoint(&*shared.disk, old.serial, old.kind)
            && error.is_fatal()
        {
            shared.fail(error.to_string());
        }
    }
    of_kinds.end(shared, true);
    let hold = Hold { holder: LOG_HOLDER, floor: shared.floor, positions: noted.positions.clone() };
    if let Err(error) = of_kinds.hold(shared).and_then(|()| shared.journal.hold(hold)) {
        shared.note_failure(error);
    }
    Ok(done)
}

/// The planted bug `RemovesBeforePublishing`.
fn remove_all(shared: &Shared) -> Result<(), CheckpointError> {
    let now = shared.catalog.now();
    now.checkpoints
        .iter()
        .try_for_each(|old| remove_checkpoint(&*shared.disk, old.serial, old.kind))
}

/// Adds a checkpoint to the MANIFEST and removes the excess ones from it. Returns the removed ones.
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
    // A table that was emptied since the point of consistency freed its memory at once, captured or
    // not. So the checkpoint names no generation of the table, and records of it in the parts are
    // void.
    entry.generations.retain(|then| {
        manifest.table(then.table).is_some_and(|now| now.generation == then.generation)
    });
    manifest.checkpoints.push(entry);
    // The checkpoint holds all that earlier incarnations did, but for tables of other kinds.
    let needed: Vec<u32> = manifest
        .incarnations
        .iter()
        .filter(|of| of.number >= shared.incarnation || kinds::checkpoint::needs(manifest, of))
        .map(|of| of.number)
        .collect();
    manifest.incarnations.retain(|incarnation| needed.contains(&incarnation.number));
    chain::drop_surplus(manifest, shared.config.keep_checkpoints)
}

/// Removes directories of checkpoints that the MANIFEST does not name. A crash has ended these
/// attempts. The directory of a merge under way stays: `merging` is its serial.
pub(crate) fn remove_strays(
    disk: &dyn Disk,
    manifest: &Manifest,
    merging: Option<u64>,
) -> Result<(), CheckpointError> {
    let dir = Path::new(stillpoint_format::names::CHECKPOINT_DIR);
    if !disk.exists(dir)? {
        return Ok(());
    }
    for name in disk.list(dir)? {
        let Some((serial, kind)) = stillpoint_format::names::parse_checkpoint_name(&name) else {
            continue;
        };
        let is_named = manifest.checkpoints.iter().any(|c| (c.serial, c.kind) == (serial, kind));
        if !is_named && merging != Some(serial) {
            remove_checkpoint(disk, serial, kind)?;
        }
    }
    Ok(())
}
