//! Looking at data directories that are not open: check, inspect, dump, restore.

mod look;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_checkpoint::{LoadOptions, Verified};
use stillpoint_format::manifest::{CheckpointEntry, CheckpointKind, IncarnationEntry, Manifest};
use stillpoint_format::names;
use stillpoint_io::{Caching, Disk, OpenMode, RealDisk, cpu_count};
use stillpoint_recovery::Plan;

use crate::catalog;
use crate::error::Error;

pub use look::{Checked, DumpVisit, Extent, InspectedLogs, Inspection, check, dump, inspect};

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// A data directory, locked while this lives.
struct Directory {
    disk: Arc<dyn Disk>,
    manifest: Manifest,
    _lock: Box<dyn Send + Sync>,
}

fn open(dir: &Path) -> Result<Directory, Error> {
    if !dir.is_dir() {
        return Err(Error::NoStore(dir.to_owned()));
    }
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir)?);
    let lock = disk.lock(Path::new("LOCK"))?.ok_or_else(|| Error::InUse(dir.to_owned()))?;
    let manifest = catalog::read(&*disk)?.ok_or_else(|| Error::NoStore(dir.to_owned()))?;
    Ok(Directory { disk, manifest, _lock: lock })
}

fn plan(directory: &Directory) -> Result<Plan, Error> {
    let (disk, manifest) = (&directory.disk, directory.manifest.clone());
    Ok(stillpoint_recovery::plan(disk, manifest, cpu_count(), &|_, _| {})?)
}

fn load_options(manifest: &Manifest) -> LoadOptions {
    LoadOptions { store: manifest.store, hash_seed: manifest.hash_seed, generations: None }
}

/// Makes a new data directory from one checkpoint of another: the state at its point of
/// consistency. Gives the checkpoint's records and bytes.
///
/// # Errors
/// The directory is in use, or no store, or damaged; it has no such checkpoint; or the new one
/// exists and is not empty.
pub fn restore(dir: &Path, epoch: u64, to: &Path) -> Result<(u64, u64), Error> {
    let directory = open(dir)?;
    let manifest = &directory.manifest;
    let Some(entry) = manifest.checkpoints.iter().find(|checkpoint| checkpoint.epoch == epoch)
    else {
        let known: Vec<u64> = manifest.checkpoints.iter().map(|c| c.epoch).collect();
        return Err(Error::NoSuchCheckpoint { dir: dir.to_owned(), epoch, known });
    };
    if entry.kind != CheckpointKind::Full {
        return Err(Error::NotFull { dir: dir.to_owned(), epoch });
    }
    let target: Arc<dyn Disk> = Arc::new(RealDisk::new(to)?);
    target.create_dir_all(Path::new(""))?;
    if !target.list(Path::new(""))?.is_empty() {
        return Err(Error::NotEmpty(to.to_owned()));
    }
    copy_checkpoint(&*directory.disk, &*target, entry)?;
    let mut restored = manifest.clone();
    for table in &mut restored.tables {
        // The generation at the point of consistency: a later flush is not part of it.
        if let Some(then) = entry.generations.iter().find(|then| then.table == table.id) {
            table.generation = then.generation;
        }
    }
    restored.checkpoints = vec![entry.clone()];
    restored.clean_shutdown = None;
    let newest = manifest.incarnations.last().map_or(1, |incarnation| incarnation.number + 1);
    // Nothing of the other directory's logs counts here.
    let floor = inspect_gsn(&directory)?;
    restored.incarnations.clear();
    restored.incarnations.push(IncarnationEntry {
        number: newest,
        gsn_floor: floor,
        cut: Some(Vec::new()),
    });
    let bytes = entry.parts.iter().map(|part| part.bytes).sum();
    catalog::Catalog::new(target.clone(), restored).publish(|_| ())?;
    let options = load_options(manifest);
    stillpoint_checkpoint::verify(&target, entry, &options, cpu_count(), &Arc::default())
        .and_then(Verified::sound)
        .map_err(stillpoint_recovery::RecoveryError::from)?;
    Ok((entry.records, bytes))
}

/// The greatest gsn of the directory; what the logs of a damaged one hold does not matter here.
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

fn copy_checkpoint(from: &dyn Disk, to: &dyn Disk, entry: &CheckpointEntry) -> Result<(), Error> {
    let dir = PathBuf::from(names::checkpoint_dir(entry.epoch, entry.kind));
    to.create_dir_all(&dir)?;
    let mut buffer = vec![0; COPY_BYTES];
    for part in &entry.parts {
        let path = dir.join(&part.file);
        let source = from.open(&path, OpenMode::Read, Caching::Buffered)?;
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
