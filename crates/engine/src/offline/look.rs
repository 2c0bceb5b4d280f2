//! What a data directory holds, and whether it is sound: check, inspect, dump.

use std::path::Path;
use std::sync::Arc;

use stillpoint_format::manifest::Manifest;
use stillpoint_io::{RealClock, cpu_count};
use stillpoint_recovery::RecoverySummary;
use stillpoint_store::{Store, StoreConfig, TableId, ValueRef, Worker};

use super::{load_options, open, plan};
use crate::error::Error;

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
