//! The one publication: of a checkpoint, of what kinds of tables keep on their own, or of both.
//!
//! ```text
//! files durable ─▶ all logs flushed ─▶ MANIFEST names them ─▶ what it does not name any more is removed
//!                                                            ─▶ the logs are held from the new places on
//! ```

use std::sync::Arc;

use stillpoint_checkpoint::{CheckpointError, remove_checkpoint};
use stillpoint_format::manifest::{CheckpointEntry, Manifest, TableGeneration};
use stillpoint_journal::Hold;
use stillpoint_sync::{mutant, planted};

use crate::error::Error;
use crate::kinds;
use crate::shared::Shared;

/// A checkpoint whose files are durable, and what it needs of the logs from now on.
#[derive(Debug)]
pub(crate) struct NewCheckpoint {
    pub(crate) entry: CheckpointEntry,
    pub(crate) hold: Hold,
}

/// Publishes a checkpoint, if there is one, and what the kinds of tables give. One caller at a time.
///
/// # Errors
/// The files of a kind or the MANIFEST could not be written, or the logs could not be flushed. Then
/// what was published before stays, and the files of the new checkpoint are removed, unless it is not
/// known which MANIFEST is on disk.
pub(crate) fn publish(shared: &Arc<Shared>, new: Option<NewCheckpoint>) -> Result<(), Error> {
    let of_kinds = kinds::checkpoint::begin(shared)?;
    let (entry, hold) = new.map(|new| (new.entry, new.hold)).unzip();
    let made = entry.as_ref().map(|entry: &CheckpointEntry| (entry.serial, entry.kind));
    // A dependency on what is before the point of consistency counts as met: so it must be. Nor may a
    // published file hold what a crash takes away.
    let flush_logs = || shared.journal.flush_all().map_err(|error| shared.note_failure(error));
    let flushed = mutant!(flush_logs(), PublishesBeforeLogs => Ok(()));
    flushed.inspect_err(|_| of_kinds.end(shared, false))?;
    mutant!(RemovesBeforePublishing => remove_all(shared)?);
    let published = shared.publish(|manifest| {
        of_kinds.publish(manifest);
        entry.map(|entry| supersede(shared, manifest, entry)).unwrap_or_default()
    });
    let dropped = published.inspect_err(|_| {
        // If it is not known which MANIFEST is on disk, the files of neither may be removed.
        if shared.health().is_ok() {
            of_kinds.end(shared, false);
            if let Some((serial, kind)) = made {
                let _ = remove_checkpoint(&*shared.disk, serial, kind);
            }
        }
    })?;
    // It exists. What cannot be removed now goes with a later one, or at the next start.
    for old in &dropped {
        if let Err(error) = remove_checkpoint(&*shared.disk, old.serial, old.kind)
            && error.is_fatal()
        {
            shared.fail(error.to_string());
        }
    }
    of_kinds.end(shared, true);
    let hold = || hold.map_or(Ok(()), |hold| shared.journal.hold(hold));
    if let Err(error) = of_kinds.hold(shared).and_then(|()| hold()) {
        shared.note_failure(error);
    }
    Ok(())
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
) -> Vec<CheckpointEntry> {
    if !shared.records_commits {
        // Without a journal a flush of tables becomes durable with the checkpoint after it.
        for table in &mut manifest.tables {
            let at_point = |of: &&TableGeneration| of.table == table.id;
            if let Some(at) = entry.generations.iter().find(at_point) {
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
    // The checkpoint holds all that earlier incarnations did, but for tables of other kinds.
    let needed: Vec<u32> = manifest
        .incarnations
        .iter()
        .filter(|of| of.number >= shared.incarnation || kinds::checkpoint::needs(manifest, of))
        .map(|of| of.number)
        .collect();
    manifest.incarnations.retain(|incarnation| needed.contains(&incarnation.number));
    let surplus = manifest.checkpoints.len().saturating_sub(shared.config.keep_checkpoints);
    manifest.checkpoints.drain(..surplus).collect()
}
