//! Looking at data directories that are not open: check, inspect, dump, restore.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_checkpoint::{LoadOptions, Verified};
use stillpoint_format::manifest::{CheckpointEntry, CheckpointKind, IncarnationEntry, Manifest};
use stillpoint_format::names;
use stillpoint_io::{Caching, Disk, OpenMode, RealClock, RealDisk, cpu_count};
use stillpoint_recovery::{Plan, RecoverySummary};
use stillpoint_store::{Store, StoreConfig, TableId, ValueRef, Worker};

use crate::catalog;
use crate::error::Error;

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

/// What a data directory holds.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The MANIFEST.
    pub manifest: Manifest,
    /// Bytes of log that the next start will read.
    pub replay_bytes: u64,
    /// Greatest gsn found.
    pub gsn_max: u64,
}

/// Says what a data directory holds. Reads the logs, not the checkpoints.
///
/// # Errors
/// It is in use, or no store, or damaged.
pub fn inspect(dir: &Path) -> Result<Inspection, Error> {
    let directory = open(dir)?;
    let plan = plan(&directory)?;
    Ok(Inspection {
        replay_bytes: plan.replay_bytes(),
        gsn_max: plan.gsn_floor,
        manifest: directory.manifest,
    })
}

fn plan(directory: &Directory) -> Result<Plan, Error> {
    let (disk, manifest) = (&directory.disk, directory.manifest.clone());
    Ok(stillpoint_recovery::plan(disk, manifest, cpu_count(), &|_, _| {})?)
}

/// What was verified.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Checkpoints, by epoch, with their records and bytes.
    pub checkpoints: Vec<(u64, u64, u64)>,
    /// Bytes of log that the next start will read.
    pub replay_bytes: u64,
    /// What is damaged: file, offset, meaning and cure; the first places of each checkpoint. Empty
    /// if the directory is sound.
    pub damage: Vec<String>,
    /// How many more places are.
    pub damage_more: u64,
}

/// Verifies a data directory: every checksum; of checkpoints also that each key lies in its partition
/// and comes once, that large values are whole, and that the MANIFEST counts the records right.
///
/// # Errors
/// It is in use, or no store, or cannot be read. Damage is no error but a finding, except that of
/// the MANIFEST, without which there is nothing to verify.
pub fn check(dir: &Path) -> Result<Checked, Error> {
    let directory = open(dir)?;
    let mut checked = Checked::default();
    let options = load_options(&directory.manifest);
    for entry in &directory.manifest.checkpoints {
        let progress = Arc::default();
        let verified =
            stillpoint_checkpoint::verify(&directory.disk, entry, &options, cpu_count(), &progress);
        let verified = verified.map_err(stillpoint_recovery::RecoveryError::from)?;
        if verified.damage.is_empty() {
            let summary = verified.summary;
            let records = summary.records + summary.stale_records;
            checked.checkpoints.push((entry.epoch, records, summary.file_bytes));
        }
        checked.damage.extend(verified.damage.iter().map(ToString::to_string));
        checked.damage_more += verified.damage_more;
    }
    match plan(&directory) {
        Ok(plan) => checked.replay_bytes = plan.replay_bytes(),
        Err(error) if error.is_damage() => checked.damage.push(error.to_string()),
        Err(error) => return Err(error),
    }
    Ok(checked)
}

fn load_options(manifest: &Manifest) -> LoadOptions {
    LoadOptions { store: manifest.store, hash_seed: manifest.hash_seed, generations: None }
}

/// Takes one key of a dump: its table's name, the key, its value.
pub type DumpVisit<'a> = dyn FnMut(&str, &[u8], ValueRef<'_>) -> std::io::Result<()> + 'a;

/// Recovers a data directory into memory, without changing it, and visits every key: the table's
/// name, key, and value.
///
/// # Errors
/// It is in use, or no store, or damaged; there is no table `table`; or `visit` fails.
pub fn dump(
    dir: &Path,
    table: Option<&str>,
    visit: &mut DumpVisit<'_>,
) -> Result<RecoverySummary, Error> {
    let directory = open(dir)?;
    let known = |name: &str| directory.manifest.tables.iter().any(|table| table.name == name);
    if let Some(name) = table.filter(|name| !known(name)) {
        let name = name.to_owned();
        return Err(Error::TableName { name, reason: "there is no such table" });
    }
    let plan = plan(&directory)?;
    let threads = cpu_count();
    let config = StoreConfig {
        workers: threads + 1,
        hash_seed: plan.manifest.hash_seed,
        ..StoreConfig::default()
    };
    let store = Arc::new(Store::new(&config, Arc::new(stillpoint_store::NoPolicy))?);
    for entry in &plan.manifest.tables {
        store.set_table(TableId(entry.id), entry.generation)?;
    }
    let summary =
        stillpoint_recovery::run(&directory.disk, &plan, &store, threads, &RealClock, &mut |_| {})?;
    let mut worker = Worker::new(store, Box::new(stillpoint_store::NoLog::default()))
        .ok_or(Error::TooManySessions(threads))?;
    for entry in &plan.manifest.tables {
        if table.is_none_or(|name| name == entry.name) {
            dump_table(&mut worker, TableId(entry.id), &entry.name, visit)?;
        }
    }
    Ok(summary)
}

fn dump_table(
    worker: &mut Worker,
    id: TableId,
    name: &str,
    visit: &mut DumpVisit<'_>,
) -> Result<(), Error> {
    let mut cursor = 0;
    loop {
        let mut result = Ok(());
        cursor = worker.scan(id, cursor, 1024, &mut |key, value| {
            if result.is_ok() {
                result = visit(name, key, value);
            }
        })?;
        result.map_err(Error::Output)?;
        if cursor == 0 {
            return Ok(());
        }
    }
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
