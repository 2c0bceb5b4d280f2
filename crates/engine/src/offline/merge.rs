//! Merging the checkpoints of a data directory that is not open.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_checkpoint::{MERGE_KEY_BYTES, Merge, Pace, WriterConfig, remove_checkpoint};
use stillpoint_format::manifest::{CheckpointEntry, Manifest};
use stillpoint_format::names;
use stillpoint_io::{Disk, RealClock, read_all, write_file_durably};

use super::restore::{copy_checkpoint, verify_copy};
use super::{Directory, open, plan};
use crate::catalog::Catalog;
use crate::checkpoints::{CheckpointsMerged, remove_strays, replace_run, whole_run};
use crate::error::Error;
use crate::kinds::OF_ENGINE;

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
    note_inputs(&*disk, &manifest, &run, &entry)?;
    exchange(&*disk, &catalog, &run, entry).map(Some)
}

/// Puts a checkpoint in the place of a run, whose files it removes. The directory is locked.
fn exchange(
    disk: &dyn Disk,
    catalog: &Catalog,
    run: &[CheckpointEntry],
    entry: CheckpointEntry,
) -> Result<CheckpointsMerged, Error> {
    let bytes_of = |entry: &CheckpointEntry| entry.parts.iter().map(|part| part.bytes).sum::<u64>();
    let done = CheckpointsMerged {
        epoch: entry.epoch,
        merged: run.len(),
        bytes_before: run.iter().map(bytes_of).sum(),
        bytes: bytes_of(&entry),
    };
    let replaced = catalog.publish(|manifest| replace_run(manifest, run, entry))?;
    assert!(replaced, "the directory is locked");
    for old in run {
        remove_checkpoint(disk, old.serial, old.kind)?;
    }
    Ok(done)
}

fn inputs_file(entry: &CheckpointEntry) -> PathBuf {
    Path::new(&names::checkpoint_dir(entry.serial, entry.kind)).join(names::MERGE_INPUTS)
}

/// Notes in the directory of a merged checkpoint what was merged: a MANIFEST of the run.
fn note_inputs(
    disk: &dyn Disk,
    manifest: &Manifest,
    run: &[CheckpointEntry],
    entry: &CheckpointEntry,
) -> Result<(), Error> {
    let of_run = Manifest { checkpoints: run.to_vec(), ..manifest.clone() };
    let path = inputs_file(entry);
    let in_file = |source| Error::Manifest { file: disk.describe(&path), source };
    // Once the MANIFEST names the merged checkpoint, nobody could note the inputs any more.
    write_file_durably(disk, &path, &of_run.encode().map_err(in_file)?)?;
    Ok(())
}

/// The entry of a checkpoint that was merged in a copy. The copy's MANIFEST says only what its files
/// are, which is verified. All else comes from the merged entries, which the directory has itself.
fn adopted(run: &[CheckpointEntry], merged: &CheckpointEntry, serial: u64) -> CheckpointEntry {
    let (oldest, newest) = (&run[0], &run[run.len() - 1]);
    CheckpointEntry {
        serial,
        kind: oldest.kind,
        base: oldest.base,
        codec: merged.codec,
        partitions_log2: merged.partitions_log2,
        records: merged.records,
        table_records: merged.table_records.clone(),
        value_bytes: merged.value_bytes,
        parts: merged.parts.clone(),
        ..newest.clone()
    }
}

/// The first checkpoint of a directory that a merge has made, and what was merged.
fn merged_in(of: &Directory) -> Result<Option<(CheckpointEntry, Manifest)>, Error> {
    for entry in &of.manifest.checkpoints {
        let path = inputs_file(entry);
        if of.disk.exists(&path)? {
            let in_file = |source| Error::Manifest { file: of.disk.describe(&path), source };
            let inputs = read_all(&*of.disk, &path)?;
            let inputs = Manifest::decode_with_kinds(&inputs, &OF_ENGINE).map_err(in_file)?;
            return Ok(Some((entry.clone(), inputs)));
        }
    }
    Ok(None)
}

/// Takes over a merged checkpoint from a copy of the data directory, which [`merge`] has merged,
/// perhaps on another machine. The checkpoint replaces those that were merged. The last `keep` points
/// stay points that `restore` offers.
///
/// # Errors
/// [`Error::NotAdopted`] if the copy has no merged checkpoint, or if a point that is kept lies in it. So
/// too if the directory has not all that was merged, with the same checksums. As for [`merge`], if one
/// of the directories is in use or damaged. The checkpoints are kept as they were.
pub fn adopt(dir: &Path, copy: &Path, keep: usize) -> Result<CheckpointsMerged, Error> {
    let directory = open(dir)?;
    plan(&directory)?;
    let from = open(copy)?;
    let refuse = |reason: &str| {
        let (dir, copy) = (dir.to_owned(), copy.to_owned());
        Err(Error::NotAdopted { dir, copy, reason: reason.to_owned() })
    };
    let Some((merged, inputs)) = merged_in(&from)? else {
        return refuse("it has no checkpoint that `stillpoint merge` has made");
    };
    let (ours, theirs) = (&directory.manifest, &inputs);
    if (ours.store, ours.hash_seed) != (theirs.store, theirs.hash_seed) {
        return refuse("it is of another store");
    }
    let run = inputs.checkpoints;
    let first = ours.checkpoints.iter().position(|entry| Some(entry) == run.first());
    let present = first.and_then(|first| ours.checkpoints.get(first..first + run.len()));
    if present != Some(&run[..]) {
        return refuse("what was merged there is here no more, or has other checksums");
    }
    if run.is_empty() || merged.kind != run[0].kind {
        return refuse("its MANIFEST contradicts what was merged there");
    }
    if !whole_run(ours, keep).starts_with(&run) {
        return refuse("a point that is kept would be merged away");
    }
    let Directory { disk, manifest, _lock } = directory;
    let catalog = Catalog::new(disk.clone(), manifest.clone());
    let serial = catalog.publish(|manifest| {
        manifest.next_serial += 1;
        manifest.next_serial - 1
    })?;
    let entry = adopted(&run, &merged, serial);
    let copied = copy_checkpoint(&*from.disk, &*disk, &merged, serial)
        .and_then(|()| verify_copy(&disk, &manifest, &entry));
    if let Err(error) = copied {
        let _ = remove_checkpoint(&*disk, serial, entry.kind);
        return Err(error);
    }
    exchange(&*disk, &catalog, &run, entry)
}

#[cfg(test)]
mod tests {
    use stillpoint_format::ident::StoreId;
    use stillpoint_format::manifest::{CheckpointKind, Codec};
    use stillpoint_io::SimDisk;

    use super::*;

    fn entry(epoch: u64, base: Option<u64>) -> CheckpointEntry {
        CheckpointEntry {
            epoch,
            serial: epoch,
            kind: if base.is_some() { CheckpointKind::Partial } else { CheckpointKind::Full },
            base,
            scheme: "calc:partial".to_owned(),
            private: None,
            fuzzy: false,
            active: Vec::new(),
            codec: Codec::None,
            partitions_log2: 4,
            records: 0,
            table_records: Vec::new(),
            value_bytes: 0,
            parts: Vec::new(),
            generations: Vec::new(),
            positions: Vec::new(),
            gsn_floor: 0,
            started_ms: 0,
            finished_ms: 0,
        }
    }

    /// A MANIFEST may name a merged checkpoint as soon as its inputs are noted.
    #[test]
    fn noted_inputs_survive_a_crash() {
        let run = vec![entry(1, None), entry(2, Some(1))];
        let manifest = Manifest {
            store: StoreId([1; 16]),
            hash_seed: 0,
            created_ms: 0,
            next_epoch: 3,
            next_serial: 4,
            tables: Vec::new(),
            kinds: Vec::new(),
            checkpoints: run.clone(),
            incarnations: Vec::new(),
            clean_shutdown: None,
        };
        let merged = CheckpointEntry { serial: 3, ..entry(2, None) };
        let dir = PathBuf::from(names::checkpoint_dir(merged.serial, merged.kind));
        for seed in 0..8 {
            let disk = SimDisk::new(seed);
            disk.create_dir_all(&dir).expect("a sound disk");
            for dir in [&dir, Path::new(names::CHECKPOINT_DIR), Path::new("")] {
                disk.sync_dir(dir).expect("a sound disk");
            }
            note_inputs(&disk, &manifest, &run, &merged).expect("a sound disk");
            let after = disk.crash(seed);
            let bytes = read_all(&after, &inputs_file(&merged));
            let bytes = bytes.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(Manifest::decode(&bytes).expect("sound").checkpoints, run, "seed {seed}");
        }
    }
}
