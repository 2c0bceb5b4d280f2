//! Merging the checkpoints of a data directory that is not open.

use std::path::Path;
use std::sync::Arc;

use stillpoint_checkpoint::{MERGE_KEY_BYTES, Merge, Pace, WriterConfig, remove_checkpoint};
use stillpoint_format::manifest::CheckpointEntry;
use stillpoint_io::RealClock;

use super::{Directory, open, plan};
use crate::catalog::Catalog;
use crate::checkpoints::{CheckpointsMerged, remove_strays, replace_run, whole_run};
use crate::error::Error;

/// Merges the newest checkpoint of a data directory with those that it goes on from, into a full one.
/// The last `keep` points stay points that `restore` offers; at least one does. `None` if there is
/// nothing to merge.
///
/// # Errors
/// The directory is in use, is no store, or is one that a start refuses; or the disk refuses. The
/// checkpoints are kept as they were.
pub fn merge(dir: &Path, keep: usize) -> Result<Option<CheckpointsMerged>, Error> {
    let directory = open(dir)?;
    // A merge refuses a directory that a start refuses. Otherwise a merge could remove the only
    // checkpoint which shows that the MANIFEST is older than the other files.
    plan(&directory)?;
    let Directory { disk, manifest, _lock } = directory;
    let run = whole_run(&manifest, keep);
    if run.is_empty() {
        return Ok(None);
    }
    remove_strays(&*disk, &manifest)?;
    let catalog = Catalog::new(disk.clone(), manifest);
    let serial = catalog.publish(|manifest| {
        manifest.next_serial += 1;
        manifest.next_serial - 1
    })?;
    let manifest = catalog.now();
    let newest = run.last().expect("it is not empty");
    let mut writer = WriterConfig::new(manifest.store, manifest.hash_seed, serial);
    writer.codec = newest.codec;
    let merge = Merge {
        writer,
        clock: Arc::new(RealClock),
        pace: Pace::Unpaced,
        key_bytes_max: MERGE_KEY_BYTES,
        progress: Arc::default(),
    };
    let inputs: Vec<&CheckpointEntry> = run.iter().collect();
    let entry = merge.run(&disk, &inputs)?;
    let bytes_of = |entry: &CheckpointEntry| entry.parts.iter().map(|part| part.bytes).sum::<u64>();
    let done = CheckpointsMerged {
        epoch: entry.epoch,
        merged: run.len(),
        bytes_before: run.iter().map(bytes_of).sum(),
        bytes: bytes_of(&entry),
    };
    let replaced = catalog.publish(|manifest| replace_run(manifest, &run, entry))?;
    assert!(replaced, "the directory is locked");
    for old in &run {
        remove_checkpoint(&*disk, old.serial, old.kind)?;
    }
    Ok(Some(done))
}
