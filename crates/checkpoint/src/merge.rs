//! Merging: a run of a chain of checkpoints becomes one, with the newest record of each key
//! (CALC, SIGMOD 2016, §2.3.1 and §3).
//!
//! ```text
//! full 5 ─ changes 6 ─ changes 7 ─ changes 8      run 5 to 7: full 7 ─ changes 8
//!                                                 run 6 to 7: full 5 ─ changes 7 ─ changes 8
//! ```
//! The run is read newest first, some partitions at a time. The keys of the run's newer checkpoints
//! are remembered, exactly and not by their hashes alone; a record whose key was seen is
//! superseded. The keys of the oldest checkpoint are compared and not remembered. The keys of a
//! partition might take more memory than is allowed. Then the partition is read several times, each
//! time for a part of the hashes.
//!
//! Deletions hide older records of their keys. A flush of a table hides the records of its older
//! generations. If the full checkpoint is in the run, what is hidden goes with it, and so do the
//! deletions and the records of older generations. Otherwise deletions and hidden records stay.
//!
//! The merged checkpoint exists when a manifest names it in place of the run. Until then a crash
//! leaves a directory that no manifest names.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::manifest::{CheckpointEntry, TableGeneration};
use stillpoint_format::names::{CHECKPOINT_DIR, CheckpointKind, checkpoint_dir};
use stillpoint_format::part::PartHeader;
use stillpoint_io::{Clock, Disk, Meter, Pace};
use stillpoint_sync::{mutant, planted};

use crate::error::{CheckpointError, LoadError};
use crate::progress::Progress;
use crate::reader::{LoadOptions, LoadedRecord, OpenCheckpoint};
use crate::writer::{MergedPart, MergedRecords, WriterConfig, merge_target};

/// Bytes that the keys of newer checkpoints may take at a time.
pub const MERGE_KEY_BYTES: u64 = 64 << 20;

/// The reason why checkpoints were not merged. The checkpoints are untouched.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A checkpoint of the run cannot be read.
    #[error("the merge was given up: {0}")]
    Read(#[from] LoadError),
    /// The merged checkpoint cannot be written.
    #[error("the merge was given up: {0}")]
    Write(#[from] CheckpointError),
}

impl MergeError {
    /// Whether the flush of a directory that every checkpoint needs has failed.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Write(error) if error.is_fatal())
    }
}

/// How checkpoints are merged.
#[derive(Clone)]
pub struct Merge {
    /// The settings of the merged checkpoint, which has one part, and the serial of its directory.
    pub writer: WriterConfig,
    /// The clock of the pace, and of the time in the part's header.
    pub clock: Arc<dyn Clock>,
    /// Most bytes that are read per second, until the progress has [another](Progress::change_pace).
    pub pace: Pace,
    /// Bytes that the keys of newer checkpoints may take at a time.
    pub key_bytes_max: u64,
    /// The progress that others may watch, and the way to cancel.
    pub progress: Arc<Progress>,
}

impl std::fmt::Debug for Merge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merge").field("pace", &self.pace).finish_non_exhaustive()
    }
}

impl Merge {
    /// Merges a run of a chain, given oldest first, into one checkpoint, and makes its files
    /// durable. Returns its entry for the manifest. Epoch, positions, generations and times are those
    /// of the newest checkpoint of the run, kind and base those of the oldest.
    ///
    /// # Errors
    /// A checkpoint of the run is damaged or missing, the disk refuses, or the merge was cancelled.
    /// The files of the merged checkpoint are removed.
    ///
    /// # Panics
    /// If the run is empty.
    pub fn run(
        &self,
        disk: &Arc<dyn Disk>,
        run: &[&CheckpointEntry],
    ) -> Result<CheckpointEntry, MergeError> {
        let (oldest, newest) = (run[0], run[run.len() - 1]);
        let kind = oldest.kind;
        let dir = PathBuf::from(checkpoint_dir(self.writer.serial, kind));
        let merged = self.write(disk, run, &dir);
        let MergedRecords { part: (part, value_bytes), table_records } = match merged {
            Ok(merged) => merged,
            Err(error) => {
                // If even the removal fails, the directory stays until the next start, which
                // removes directories that no manifest names.
                let _ = disk.remove(&dir);
                return Err(error);
            }
        };
        Ok(CheckpointEntry {
            serial: self.writer.serial,
            kind,
            base: oldest.base,
            codec: self.writer.codec,
            partitions_log2: self.writer.partitions_log2,
            records: part.records,
            table_records,
            value_bytes,
            parts: vec![part],
            ..newest.clone()
        })
    }

    /// Writes the files and makes them durable.
    fn write(
        &self,
        disk: &Arc<dyn Disk>,
        run: &[&CheckpointEntry],
        dir: &Path,
    ) -> Result<MergedRecords, MergeError> {
        let options = LoadOptions {
            store: self.writer.store,
            hash_seed: self.writer.hash_seed,
            generations: None,
        };
        let newest_first: Vec<&CheckpointEntry> = run.iter().rev().copied().collect();
        let mut open = OpenCheckpoint::open_chain(disk, &newest_first, &options)?;
        let newest = run[run.len() - 1];
        disk.create_dir_all(dir).map_err(CheckpointError::from)?;
        let header = PartHeader {
            store: self.writer.store,
            created_ms: self.clock.wall_ms(),
            epoch: newest.epoch,
            part: 0,
            kind: run[0].kind,
            partitions_log2: self.writer.partitions_log2,
            codec: self.writer.codec,
            hash_seed: self.writer.hash_seed,
            base: run[0].base,
        };
        let target = merge_target(disk, dir, header, &self.writer);
        let mut out = MergedPart::new(&target, self.writer.block_bytes, &self.progress);
        let keeps = Keeps { kind: run[0].kind, generations: &newest.generations };
        let reading = Reading::new(self);
        let log2 = open.iter().map(OpenCheckpoint::partitions_log2).min().unwrap_or(0);
        for partition in 0..1u32 << log2 {
            self.merge_partition((partition, log2), &mut open, &keeps, &reading, &mut out)?;
            out.end_partitions()?;
        }
        for checkpoint in open {
            checkpoint.finish(&**disk)?;
        }
        let written = out.finish()?;
        disk.sync_dir(dir).map_err(CheckpointError::from)?;
        for shared in [CHECKPOINT_DIR, ""] {
            disk.sync_dir(Path::new(shared)).map_err(CheckpointError::Directory)?;
        }
        Ok(written)
    }

    /// Merges the records of one of 2^`log2` partitions, in as many passes as the memory requires.
    fn merge_partition(
        &self,
        (partition, log2): (u32, u8),
        open: &mut [OpenCheckpoint<'_>],
        keeps: &Keeps<'_>,
        reading: &Reading<'_>,
        out: &mut MergedPart<'_>,
    ) -> Result<(), MergeError> {
        let range = |of: &OpenCheckpoint<'_>| -> Range<u32> {
            let finer = of.partitions_log2() - log2;
            partition << finer..(partition + 1) << finer
        };
        let (_, newer) = open.split_last().expect("a run is not empty");
        let key_bytes: u64 = newer.iter().map(|of| of.plain_bytes(&range(of))).sum();
        let passes = key_bytes.div_ceil(self.key_bytes_max.max(1)).max(1);
        for pass in 0..passes {
            let mut seen = NewerKeys::default();
            let count = open.len();
            for (at, checkpoint) in open.iter_mut().enumerate() {
                let is_oldest = at + 1 == count;
                let partitions = range(checkpoint);
                let mut failed = None;
                let before = &mut |bytes| reading.wait(bytes);
                let read = checkpoint.read(&partitions, pass == 0, before, &mut |record| {
                    reading.check()?;
                    // The low bits of the hash choose the pass, since the high bits choose the
                    // partition.
                    if record.hash % passes != pass || seen.has(record) {
                        return Ok(());
                    }
                    if !is_oldest {
                        seen.add(record);
                    }
                    if !keeps.keeps(record) {
                        return Ok(());
                    }
                    self.take(record, out).map_err(|error| {
                        failed = Some(error);
                        LoadError::Cancelled
                    })
                });
                if let Some(error) = failed {
                    return Err(error.into());
                }
                read?;
            }
        }
        Ok(())
    }

    fn take(
        &self,
        record: &LoadedRecord<'_>,
        out: &mut MergedPart<'_>,
    ) -> Result<(), CheckpointError> {
        out.add(record)?;
        Progress::add(&self.progress.records, 1);
        Ok(())
    }
}

/// The reading of the run, at its pace and until it is cancelled. A record that is not kept costs as much
/// as another.
struct Reading<'a> {
    merge: &'a Merge,
    meter: Meter,
    /// Bytes that were read, or are about to be.
    bytes: Cell<u64>,
}

impl<'a> Reading<'a> {
    fn new(merge: &'a Merge) -> Self {
        let meter = Meter::new(merge.pace, merge.clock.clone());
        Self { merge, meter, bytes: Cell::new(0) }
    }

    fn check(&self) -> Result<(), LoadError> {
        match self.merge.progress.is_cancelled() {
            true => Err(LoadError::Cancelled),
            false => Ok(()),
        }
    }

    /// Waits until the pace allows so many bytes more.
    fn wait(&self, bytes: u64) -> Result<(), LoadError> {
        let (progress, sum) = (&self.merge.progress, self.bytes.get() + bytes);
        self.bytes.set(sum);
        let pace = || progress.pace(self.merge.pace);
        self.meter.wait_at(pace, || sum, || progress.is_cancelled());
        self.check()
    }
}

/// The rule that decides which newest records stay in the merged checkpoint.
struct Keeps<'a> {
    kind: CheckpointKind,
    /// The tables' generations at the point of consistency of the newest checkpoint.
    generations: &'a [TableGeneration],
}

impl Keeps<'_> {
    fn keeps(&self, record: &LoadedRecord<'_>) -> bool {
        if self.kind == CheckpointKind::Partial {
            return mutant!(true, MergeDropsDeletions => record.value.is_some());
        }
        let of = TableGeneration { table: record.table, generation: record.generation };
        record.value.is_some() && self.generations.contains(&of)
    }
}

/// The keys of newer checkpoints, with their tables' generations.
#[derive(Default)]
struct NewerKeys {
    /// Hash → where the last key with that hash begins in `keys`.
    last: HashMap<u64, u32, BuildHasherDefault<AsIs>>,
    keys: Vec<u8>,
}

/// A hasher that returns the hash of a key unchanged, since it is random already.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u64(&mut self, hash: u64) {
        // The keys of a partition share their high bits, by which the map tells entries apart.
        self.0 = hash.rotate_left(32);
    }
}

/// Bytes before a key in `keys`: the begin of the previous key with the same hash, table,
/// generation, length.
const HEAD_BYTES: usize = 4 + 2 + 4 + 4;
/// There is no previous key with the same hash.
const NONE: u32 = u32::MAX;

impl NewerKeys {
    fn head(record: &LoadedRecord<'_>, before: u32) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&before.to_le_bytes());
        head[4..6].copy_from_slice(&record.table.to_le_bytes());
        head[6..10].copy_from_slice(&record.generation.to_le_bytes());
        head[10..].copy_from_slice(&(record.key.len() as u32).to_le_bytes());
        head
    }

    fn add(&mut self, record: &LoadedRecord<'_>) {
        let at = u32::try_from(self.keys.len()).expect("the keys of a pass are bounded");
        let before = self.last.insert(record.hash, at).unwrap_or(NONE);
        self.keys.extend_from_slice(&Self::head(record, before));
        self.keys.extend_from_slice(record.key);
    }

    fn has(&self, record: &LoadedRecord<'_>) -> bool {
        let mut at = self.last.get(&record.hash).copied().unwrap_or(NONE);
        let head = Self::head(record, NONE);
        while at != NONE {
            let entry = &self.keys[at as usize..];
            let key = &entry[HEAD_BYTES..];
            if entry[4..HEAD_BYTES] == head[4..] && key[..record.key.len()] == *record.key {
                return true;
            }
            at = u32::from_le_bytes(entry[..4].try_into().expect("four bytes"));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use stillpoint_format::Label;

    use super::*;

    fn record<'a>(hash: u64, generation: u32, key: &'a [u8]) -> LoadedRecord<'a> {
        let label = Label::default();
        LoadedRecord { table: 1, generation, hash, key, label, value: None, gsn: 0 }
    }

    #[test]
    fn keys_are_told_apart_though_their_hashes_are_equal() {
        let mut seen = NewerKeys::default();
        let keys: [&[u8]; 4] = [b"", b"a", b"ab", b"b"];
        for (at, key) in keys.iter().enumerate() {
            assert!(!seen.has(&record(7, 1, key)));
            seen.add(&record(7, 1, key));
            assert!(keys[..=at].iter().all(|key| seen.has(&record(7, 1, key))));
        }
        assert!(!seen.has(&record(7, 2, b"a")), "another generation");
        assert!(!seen.has(&record(8, 1, b"a")), "another hash");
        let other = LoadedRecord { table: 2, ..record(7, 1, b"a") };
        assert!(!seen.has(&other), "another table");
    }
}
