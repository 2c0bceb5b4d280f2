//! Publication: of a checkpoint, of what kinds of tables have, of both, or of a merge.
//!
//! ```text
//! files durable ─▶ logs flushed ─▶ MANIFEST names the files ─▶ files that it does not name any
//!   more are removed ─▶ the logs are held from the new places on
//! ```

use std::sync::Arc;

use stillpoint_checkpoint::{CheckpointError, remove_checkpoint};
use stillpoint_format::LogGsn;
use stillpoint_format::manifest::{CheckpointEntry, CheckpointKind, Manifest, TableGeneration};
use stillpoint_journal::Hold;
use stillpoint_sync::{mutant, planted};

use super::chain;
use crate::error::Error;
use crate::kinds;
use crate::shared::Shared;
use crate::undone::WriteAhead;

/// A checkpoint whose files are durable, and the log positions from which it needs the logs once it
/// is published.
#[derive(Debug)]
pub(super) struct NewCheckpoint {
    pub(super) entry: CheckpointEntry,
    pub(super) hold: Hold,
    /// Present if a start may have to undo commits that the checkpoint holds.
    pub(super) ahead: Option<WriteAhead>,
}

/// Publishes a checkpoint, if there is one, and the sections of the kinds of tables. One caller at
/// a time. Returns the positions of the logs from which on the kinds need them.
///
/// # Errors
/// The files of a kind or the MANIFEST could not be written, or the logs could not be flushed.
/// Earlier publications stay in force.
pub(super) fn publish(
    shared: &Arc<Shared>,
    new: Option<NewCheckpoint>,
) -> Result<Vec<LogGsn>, Error> {
    let of_kinds = kinds::checkpoint::begin(shared)?;
    let ahead = new.as_ref().and_then(|new| new.ahead.as_ref());
    // Recovery takes dependencies on records before the point of consistency as met. So these
    // records must be flushed. Nor may a published file hold a commit that a crash takes away, unless
    // the log can undo the commit.
    let flush_logs = || match ahead {
        Some(WriteAhead { closed, flushed }) => {
            shared.journal.make_closed(closed)?;
            mutant!(shared.journal.make_flushed(flushed), PublishesBeforeUndo => Ok(()))
        }
        None => shared.journal.flush_all(),
    };
    let flush_logs = || flush_logs().map_err(|error| shared.note_failure(error));
    let flushed = mutant!(flush_logs(), PublishesBeforeLogs => Ok(()));
    flushed.inspect_err(|_| of_kinds.end(shared, false))?;
    if let Some(reason) = shared.open.lost_undo() {
        // A failed store publishes nothing.
        shared.fail(reason.to_owned());
    }
    let active = ahead.map_or(Vec::new(), |ahead| {
        let open = ahead.flushed.iter().filter(|stamp| !shared.journal.is_closed(**stamp));
        open.map(|stamp| LogGsn { log: stamp.log(), gsn: stamp.gsn() }).collect()
    });
    let (entry, hold) = new.map(|new| (CheckpointEntry { active, ..new.entry }, new.hold)).unzip();
    let made = entry.as_ref().map(|entry: &CheckpointEntry| (entry.serial, entry.kind));
    mutant!(RemovesBeforePublishing => remove_all(shared)?);
    let published = exchange(shared, made, |manifest| {
        of_kinds.publish(manifest);
        Some(entry.map(|entry| supersede(shared, manifest, entry)).unwrap_or_default())
    });
    if let Err(error) = published {
        // If the MANIFEST on disk is in doubt, no file may be removed.
        if shared.health().is_ok() {
            of_kinds.end(shared, false);
        }
        return Err(error);
    }
    of_kinds.end(shared, true);
    let hold = || hold.map_or(Ok(()), |hold| shared.journal.hold(hold));
    if let Err(error) = of_kinds.hold(shared).and_then(|()| hold()) {
        shared.note_failure(error);
    }
    Ok(of_kinds.positions())
}

/// Publishes a MANIFEST that `change` has changed, and removes the files of the checkpoints that
/// `change` returns: the MANIFEST names them no more. `made` says which files are new. If `change`
/// returns `None`, the new files are removed, and this returns false.
///
/// # Errors
/// The MANIFEST could not be written. The new files are removed, unless it is in doubt which MANIFEST
/// is on disk.
pub(super) fn exchange(
    shared: &Shared,
    made: Option<(u64, CheckpointKind)>,
    change: impl FnOnce(&mut Manifest) -> Option<Vec<CheckpointEntry>>,
) -> Result<bool, Error> {
    let published = shared.publish(change);
    let Ok(Some(dropped)) = published else {
        // If the MANIFEST on disk is in doubt, neither the old files nor the new ones may be removed.
        if let Some((serial, kind)) = made
            && shared.health().is_ok()
        {
            let _ = remove_checkpoint(&*shared.disk, serial, kind);
        }
        return published.map(|_| false);
    };
    shared.checkpoints.state.lock().merging.cancel_without(&dropped);
    // The files are removed once nobody holds them.
    if mutant!(shared.checkpoints.are_held(), RemovesHeldFiles => false) {
        return Ok(true);
    }
    // Files that cannot be removed now are removed by a later attempt, or at the next start.
    for old in &dropped {
        if let Err(error) = remove_checkpoint(&*shared.disk, old.serial, old.kind)
            && error.is_fatal()
        {
            shared.fail(error.to_string());
        }
    }
    Ok(true)
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
    // A table that was emptied since the point of consistency freed its memory at once, captured or
    // not. So the checkpoint names no generation of the table, and the table's records in the parts
    // do not count.
    // Unless the log has calls that may read the records: then the checkpoint has captured them.
    if !shared.logs_calls_alone {
        entry.generations.retain(|then| {
            manifest.table(then.table).is_some_and(|now| now.generation == then.generation)
        });
    }
    manifest.checkpoints.push(entry);
    // The checkpoint holds all commits of earlier incarnations, except those to tables of other
    // kinds.
    let needed: Vec<u32> = manifest
        .incarnations
        .iter()
        .filter(|of| of.number >= shared.incarnation || kinds::checkpoint::needs(manifest, of))
        .map(|of| of.number)
        .collect();
    manifest.incarnations.retain(|incarnation| needed.contains(&incarnation.number));
    let dropped = chain::drop_surplus(manifest, shared.config.keep_checkpoints);
    for table in &mut manifest.tables {
        // A repair may go back to the oldest checkpoint. Calls of earlier incarnations are in the new one.
        let generation_in = |entry: &CheckpointEntry| {
            let then = entry.generations.iter().find(|then| then.table == table.id);
            then.map_or(0, |then| then.generation)
        };
        let oldest = manifest.checkpoints.iter().map(generation_in).min().unwrap_or(0);
        table.emptied.retain(|of| shared.logs_calls_alone && of.generation > oldest);
    }
    dropped
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stillpoint_io::{DiskError, ManualClock, SeededRng, SimDisk};

    use crate::{Config, Engine, Environment, Error, Kind};

    fn open(disk: &SimDisk) -> Engine {
        let mut config = Config::new("unused");
        (config.checkpoint_every, config.logs, config.sessions) = (None, 1, 4);
        (config.log_segment_bytes, config.max_memory_bytes) = (64 << 10, 64 << 20);
        config.siren_bytes = Some(8 << 20);
        config.environment = Environment {
            disk: Some(Arc::new(disk.clone())),
            clock: Arc::new(ManualClock::self_advancing(1_700_000_000_000)),
            rng: Arc::new(SeededRng::new(1)),
            background: false,
            ..config.environment
        };
        Engine::open(config).expect("opens")
    }

    /// The log refuses an undo, and what it has can still be flushed. A checkpoint would hold what the log
    /// does not know to be undone, and a start would undo it once more.
    #[test]
    fn nothing_is_published_once_an_undo_is_lost() {
        let disk = SimDisk::new(3);
        let engine = open(&disk);
        let table = engine.table_with("orders", Kind::Siren).expect("a table");
        let mut session = engine.session().expect("a session");
        session.transact(|tx| tx.put(table, b"base", b"kept")).expect("commits");
        let mut lost = session.begin().expect("begins");
        lost.tx().expect("open").put(table, b"first", b"open").expect("free");
        let savepoint = lost.savepoint().expect("open");
        lost.tx().expect("open").put(table, b"second", b"undone").expect("free");
        let cause = std::io::Error::other("the undo of another transaction has failed");
        engine.shared.journal.refuse(Arc::new(DiskError::new("undo in", "log", cause)));
        lost.roll_back_to(savepoint).expect("in memory");
        let published = engine.checkpoint();
        drop(lost);
        drop((session, engine));

        let engine = open(&disk.kill());
        let mut session = engine.session().expect("a session");
        let all = session.transact(|tx| {
            let (mut keys, mut range) = (Vec::new(), tx.range(table, ..)?);
            while let Some((key, _)) = range.next_record()? {
                keys.push(key.to_vec());
            }
            Ok(keys)
        });
        assert_eq!(all.expect("reads"), [b"base"]);
        assert!(matches!(published, Err(Error::Failed(_))), "{published:?}");
    }
}
