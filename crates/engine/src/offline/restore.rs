//! Makes a new data directory from one checkpoint of another.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_checkpoint::Verified;
use stillpoint_format::manifest::{CheckpointEntry, IncarnationEntry, Manifest};
use stillpoint_format::names;
use stillpoint_io::{Caching, Disk, OpenMode, RealDisk, cpu_count};

use super::{Directory, kinds, load_options, open, plan};
use crate::catalog::Catalog;
use crate::error::Error;

/// The directory in the target that holds the copy until it is whole and verified.
const RESTORING: &str = "restoring";
/// Bytes of one step of the copy.
const COPY_BYTES: usize = 1 << 20;

/// Makes a new data directory from one checkpoint of another, and from those that it goes on from. The
/// new store has the state at the checkpoint's point of consistency, without tables that were emptied
/// before its publication. Returns the records and bytes of the copied checkpoints, deletions included.
///
/// # Errors
/// One of the directories is in use. The first is no store, is damaged, or has no such checkpoint:
/// the error names those that it offers. The checkpoint has no point of consistency. The store has paged
/// tables or SIREN tables ([`Error::OtherKinds`]): their pages make a state only together with the logs. Or the new
/// directory exists and is not empty; files left by a killed restore do not count.
pub fn restore(dir: &Path, epoch: u64, to: &Path) -> Result<(u64, u64), Error> {
    let directory = open(dir)?;
    let manifest = &directory.manifest;
    let chain = manifest.chain_to(epoch);
    let Some(&entry) = chain.last() else {
        let known: Vec<u64> = manifest.checkpoints.iter().map(|c| c.epoch).collect();
        let into = known.iter().copied().filter(|&of| of > epoch).min();
        return Err(Error::NoSuchCheckpoint { dir: dir.to_owned(), epoch, known, into });
    };
    let reason = "`restore` makes a store of a checkpoint's files alone, while pages make a state only \
         together with the logs: copy the whole directory while no process has it open";
    kinds::refuse(dir, manifest, reason)?;
    if entry.fuzzy {
        return Err(Error::NeedsLog { dir: dir.to_owned(), epoch });
    }
    let target: Arc<dyn Disk> = Arc::new(RealDisk::new(to)?);
    let _lock = target.lock(Path::new(names::LOCK))?.ok_or_else(|| Error::InUse(to.to_owned()))?;
    remove_left(&*target, to)?;
    let copy: Arc<dyn Disk> = Arc::new(RealDisk::new(to.join(RESTORING))?);
    let copied = chain.iter().try_for_each(|entry| {
        copy_checkpoint(&*directory.disk, &*copy, entry, entry.serial)?;
        verify_copy(&copy, manifest, entry)
    });
    if let Err(error) = copied {
        let _ = target.remove(Path::new(RESTORING));
        return Err(error);
    }
    let mut restored = manifest.clone();
    for table in &mut restored.tables {
        // The generation at the point of consistency, without later flushes.
        if let Some(then) = entry.generations.iter().find(|then| then.table == table.id) {
            table.generation = then.generation;
        }
        table.emptied.clear();
    }
    restored.checkpoints = chain.iter().map(|&entry| entry.clone()).collect();
    restored.clean_shutdown = None;
    let newest = manifest.incarnations.last().map_or(1, |incarnation| incarnation.number + 1);
    // The other directory's logs are ignored.
    let floor = inspect_gsn(&directory)?;
    restored.incarnations.clear();
    restored.incarnations.push(IncarnationEntry {
        number: newest,
        gsn_floor: floor,
        logs: 0,
        cut: Some(Vec::new()),
        calls: false,
        tails: Vec::new(),
        scheme: None,
    });
    let bytes = chain.iter().flat_map(|entry| &entry.parts).map(|part| part.bytes).sum();
    let records = chain.iter().map(|entry| entry.records).sum();
    // The copy's MANIFEST is moved last: the new store exists from then on. Until then the MANIFEST in
    // the copy shows that the moved checkpoints are those of a restore.
    Catalog::new(copy, restored).publish(|_| ())?;
    for name in [names::CHECKPOINT_DIR, names::MANIFEST] {
        target.rename(&Path::new(RESTORING).join(name), Path::new(name))?;
        target.sync_dir(Path::new(""))?;
    }
    target.remove(Path::new(RESTORING))?;
    Ok((records, bytes))
}

/// Removes what a killed restore has left of its copy.
///
/// # Errors
/// There is something else in the directory.
fn remove_left(target: &dyn Disk, to: &Path) -> Result<(), Error> {
    let (copy, checkpoints) = (Path::new(RESTORING), Path::new(names::CHECKPOINT_DIR));
    let was_moving = target.exists(&copy.join(names::MANIFEST))?;
    let is_ours = |name: &String| {
        name == names::LOCK || name == RESTORING || (was_moving && name == names::CHECKPOINT_DIR)
    };
    if !target.list(Path::new(""))?.iter().all(is_ours) {
        return Err(Error::NotEmpty(to.to_owned()));
    }
    if was_moving {
        // The copy, which shows whose the checkpoints are, is removed after them.
        target.remove(checkpoints)?;
        target.sync_dir(Path::new(""))?;
    }
    target.remove(copy)?;
    Ok(())
}

/// A damaged copy is not published, whether reading or writing damaged it.
pub(super) fn verify_copy(
    target: &Arc<dyn Disk>,
    manifest: &Manifest,
    entry: &CheckpointEntry,
) -> Result<(), Error> {
    let options = load_options(manifest);
    stillpoint_checkpoint::verify(target, entry, &options, cpu_count(), &Arc::default())
        .and_then(Verified::sound)
        .map_err(stillpoint_recovery::RecoveryError::from)?;
    Ok(())
}

/// The greatest gsn of the directory. Damage of the directory's logs does not matter here.
fn inspect_gsn(directory: &Directory) -> Result<u64, Error> {
    match plan(directory) {
        Ok(plan) => Ok(plan.gsn_floor),
        Err(error) if error.is_damage() => {
            let floors = directory.manifest.incarnations.iter().map(|entry| entry.gsn_floor);
            let positions = directory.manifest.checkpoints.iter().flat_map(|c| &c.positions);
            let positions = positions.flat_map(|of| of.logs.iter().map(|position| position.gsn));
            Ok(floors.chain(positions).max().unwrap_or(0))
        }
        Err(error) => Err(error),
    }
}

/// Copies the files of a checkpoint, as those of the checkpoint `serial`, and makes the copy durable.
pub(super) fn copy_checkpoint(
    from: &dyn Disk,
    to: &dyn Disk,
    entry: &CheckpointEntry,
    serial: u64,
) -> Result<(), Error> {
    let from_dir = PathBuf::from(names::checkpoint_dir(entry.serial, entry.kind));
    let dir = PathBuf::from(names::checkpoint_dir(serial, entry.kind));
    to.create_dir_all(&dir)?;
    let mut buffer = vec![0; COPY_BYTES];
    for part in &entry.parts {
        let path = dir.join(&part.file);
        let source = from.open(&from_dir.join(&part.file), OpenMode::Read, Caching::Buffered)?;
        let target = to.open(&path, OpenMode::CreateNew, Caching::Buffered)?;
        let mut at = 0;
        loop {
            let count = source.read_at(&mut buffer, at)?;
            if count == 0 {
                break;
            }
            target.write_at(&buffer[..count], at)?;
            at += count as u64;
        }
        target.sync()?;
    }
    to.sync_dir(&dir)?;
    to.sync_dir(Path::new(names::CHECKPOINT_DIR))?;
    to.sync_dir(Path::new(""))?;
    Ok(())
}
