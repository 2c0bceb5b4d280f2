//! Verifying: checks all that a load relies on, and that each key comes once.
//!
//! A load trusts the writer that a checkpoint holds each key once; to check that takes memory for
//! every key. So the blocks are read some partitions at a time, each block once in all. A pass takes
//! as many partitions as have [`PASS_RECORDS`] together, and a partition with more alone. Of each
//! record its hash and its place are kept; keys are compared only where two hashes are equal.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_format::hash::KeyHasher;
use stillpoint_format::manifest::{CheckpointEntry, TableRecords};
use stillpoint_format::names::CheckpointKind;
use stillpoint_format::part::{BlockEntry, BlockReader, Content, Entry};
use stillpoint_format::{DecodeCause, PARTITIONS_LOG2_MAX};
use stillpoint_io::{AlignedBuf, Disk};

use super::decode::{BlockLocation, Take, inconsistent};
use super::load::StagedPart;
use super::part::{KeyedPart, Part};
use super::{LoadOptions, LoadSummary, LoadedRecord, check_totals, damage, dir_of, load};
use crate::error::{Damage, DamageCause, LoadError};
use crate::progress::Progress;

/// Records whose hashes and places are kept at a time, in 96 MiB.
const PASS_RECORDS: u64 = 4 << 20;
/// Bytes of a key that an error shows.
const KEY_BYTES_SHOWN: usize = 64;

/// Most damaged places that are reported. Further ones are only counted.
pub const DAMAGE_MAX: usize = 100;

/// What a verification found.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// The summary of the records that could be read.
    pub summary: LoadSummary,
    /// The first [`DAMAGE_MAX`] damaged places in the order of the files, each for its first fault.
    /// Empty if the checkpoint is sound.
    pub damage: Vec<Damage>,
    /// Number of further damaged places.
    pub damage_more: u64,
}

impl Verified {
    /// The summary, if the checkpoint is sound.
    ///
    /// # Errors
    /// The first damage.
    pub fn sound(self) -> Result<LoadSummary, LoadError> {
        match self.damage.into_iter().next() {
            None => Ok(self.summary),
            Some(first) => Err(Box::new(first).into()),
        }
    }

    fn add(&mut self, damage: Damage) {
        // Two checks of one block may report the same damage.
        if self.damage.contains(&damage) {
            return;
        }
        self.damage.push(damage);
        if self.damage.len() >= 2 * DAMAGE_MAX {
            self.keep_first();
        }
    }

    fn keep_first(&mut self) {
        self.damage.sort_by(|a, b| (&a.file, a.offset).cmp(&(&b.file, b.offset)));
        self.damage_more += self.damage.len().saturating_sub(DAMAGE_MAX) as u64;
        self.damage.truncate(DAMAGE_MAX);
    }

    /// Notes damage, and returns `None` for it. Any other error ends the verification.
    fn note<T>(&mut self, result: Result<T, LoadError>) -> Result<Option<T>, LoadError> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(LoadError::Damaged(damage)) => {
                self.add(*damage);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Reads a checkpoint from end to end, with `threads` threads, and checks every byte of it:
///
/// - all checksums are right;
/// - each key lies in its partition and comes once;
/// - large values are whole;
/// - a full checkpoint holds no deletions, but those with a gsn, of a fuzzy one;
/// - the key map of a part, if it has one, leads to each record;
/// - the numbers of records are those of the manifest, if no block and no file is damaged.
///
/// Verifying goes on behind a damaged block or file.
///
/// Memory grows with the records of the largest partition (24 to 48 bytes each), not with those of
/// the checkpoint. Records of all generations are verified, whatever the options say.
///
/// # Errors
/// As [`load`](super::load), except damage, which is part of the result.
pub fn verify(
    disk: &Arc<dyn Disk>,
    entry: &CheckpointEntry,
    options: &LoadOptions,
    threads: usize,
    progress: &Arc<Progress>,
) -> Result<Verified, LoadError> {
    verify_in_passes(disk, entry, options, threads, progress, PASS_RECORDS)
}

fn verify_in_passes(
    disk: &Arc<dyn Disk>,
    entry: &CheckpointEntry,
    options: &LoadOptions,
    threads: usize,
    progress: &Arc<Progress>,
    pass_records: u64,
) -> Result<Verified, LoadError> {
    let options = &LoadOptions { generations: None, ..options.clone() };
    let mut found = Findings::default();
    let mut parts = Vec::new();
    for part in &entry.parts {
        let opened = Part::open_keyed(&**disk, &dir_of(entry), entry, part, options);
        parts.extend(found.verified.note(opened)?);
    }
    let some = |pass: &Pass| {
        let of_pass = |keyed: &KeyedPart| keyed.part.with_partitions(&pass.partitions);
        let staged = parts.iter().map(|keyed| StagedPart { stage: 0, part: of_pass(keyed) });
        staged.collect::<Arc<[StagedPart]>>()
    };
    let keyed = &parts;
    let blocks = keyed.iter().flat_map(|keyed| keyed.part.all_blocks());
    let passes: Vec<_> =
        passes(blocks, entry, pass_records).iter().map(|pass| (pass.records, some(pass))).collect();
    let units =
        passes.iter().flat_map(|(_, parts)| &**parts).map(|staged| staged.part.units().len());
    load::begin(progress, units.sum());
    let is_full = entry.kind == CheckpointKind::Full;
    for (records, parts) in passes {
        // The number in the index was not compared with the blocks yet, so the reservation is
        // bounded.
        found.seen = Vec::with_capacity(records.min(PASS_RECORDS) as usize);
        let shared = Arc::new(Mutex::new(found));
        let visitor =
            || -> Box<dyn Take + Send> { Box::new(Verifying { is_full, found: shared.clone() }) };
        let visitors = (0..threads.max(1)).map(|_| visitor()).collect();
        let read = load::run(parts.clone(), 1, options, visitors, progress);
        found = std::mem::take(&mut *shared.lock());
        for read in found.verified.note(read)?.into_iter().flatten() {
            found.verified.summary.add(&read);
        }
        found.check_maps(keyed);
        found.judge(&parts, options)?;
    }
    let Findings { mut verified, tables, .. } = found;
    verified.summary.file_bytes = keyed.iter().map(|keyed| keyed.part.file_bytes()).sum();
    if verified.damage.is_empty() {
        verified.note(check_totals(&**disk, entry, verified.summary))?;
        let differing = differing_tables(entry, &tables);
        let told = |cause| Err(damage(disk.describe(&dir_of(entry)), 0, cause).into());
        for cause in differing {
            verified.note::<()>(told(cause))?;
        }
    }
    verified.keep_first();
    Ok(verified)
}

/// Partitions that are read together, and their number of records by the indexes.
struct Pass {
    partitions: Range<u32>,
    records: u64,
}

fn passes<'a>(
    blocks: impl Iterator<Item = &'a BlockEntry>,
    entry: &CheckpointEntry,
    records_max: u64,
) -> Vec<Pass> {
    let mut of_partition = vec![0u64; 1 << entry.partitions_log2.min(PARTITIONS_LOG2_MAX)];
    for block in blocks {
        // Header and index were checked: no block names a partition beyond the last.
        of_partition[block.partition as usize] +=
            u64::from(block.values) + u64::from(block.tombstones);
    }
    grouped(&of_partition, records_max)
}

/// Partitions that follow each other, as many in a pass as the bound allows, and one at least.
fn grouped(of_partition: &[u64], records_max: u64) -> Vec<Pass> {
    let mut passes: Vec<Pass> = Vec::new();
    for (partition, &records) in (0u32..).zip(of_partition) {
        match passes.last_mut() {
            Some(pass) if pass.records + records <= records_max => {
                pass.partitions.end = partition + 1;
                pass.records += records;
            }
            _ => passes.push(Pass { partitions: partition..partition + 1, records }),
        }
    }
    passes
}

/// The hash and the place of a record, to find a second record of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KeyLocation {
    hash: u64,
    generation: u32,
    part: u32,
    offset: u64,
}

const _: () = assert!(size_of::<KeyLocation>() == 24, "as the memory bound says");

/// Findings of all passes so far, and those of the present pass.
#[derive(Default)]
struct Findings {
    verified: Verified,
    /// Records of each table.
    tables: BTreeMap<u16, u64>,
    /// The records of the pass.
    seen: Vec<KeyLocation>,
    /// Blocks of the pass with a deletion that must not be there.
    deletions: BTreeSet<BlockLocation>,
}

struct Verifying {
    is_full: bool,
    found: Arc<Mutex<Findings>>,
}

impl Take for Verifying {
    fn take(&mut self, at: BlockLocation, batch: &[LoadedRecord<'_>]) -> Result<(), LoadError> {
        let mut found = self.found.lock();
        for record in batch {
            // A fuzzy checkpoint also holds what commits of its run have deleted, with their gsns.
            if self.is_full && record.value.is_none() && record.gsn == 0 {
                found.deletions.insert(at);
            }
            *found.tables.entry(record.table).or_default() += 1;
            found.seen.push(KeyLocation {
                hash: record.hash,
                generation: record.generation,
                part: at.part as u32,
                offset: at.offset,
            });
        }
        Ok(())
    }

    fn damaged(&mut self, damage: Box<Damage>) -> Result<(), LoadError> {
        self.found.lock().verified.add(*damage);
        Ok(())
    }
}

impl Findings {
    /// Checks that the key map of its part leads to each record of the pass.
    fn check_maps(&mut self, parts: &[KeyedPart]) {
        let Self { seen, verified, .. } = self;
        for record in &*seen {
            let keyed = &parts[record.part as usize];
            if !keyed.leads_to(record.hash, record.offset) {
                let cause = DecodeCause::Inconsistent("a key to which the key map does not lead");
                verified.add(*inconsistent(&keyed.part, record.offset, cause));
            }
        }
    }

    /// Judges the records of a pass over these parts.
    fn judge(&mut self, parts: &[StagedPart], options: &LoadOptions) -> Result<(), LoadError> {
        for at in std::mem::take(&mut self.deletions) {
            let cause = DecodeCause::Inconsistent("a deletion in a full checkpoint");
            self.verified.add(*inconsistent(&parts[at.part].part, at.offset, cause));
        }
        let Self { seen, verified, .. } = self;
        seen.sort_unstable();
        for same in
            seen.chunk_by(|one, next| (one.hash, one.generation) == (next.hash, next.generation))
        {
            if same.len() > 1 {
                compare_keys(parts, options, same, verified)?;
            }
        }
        Ok(())
    }
}

/// Compares the keys of records whose hashes are equal.
fn compare_keys(
    parts: &[StagedPart],
    options: &LoadOptions,
    same: &[KeyLocation],
    verified: &mut Verified,
) -> Result<(), LoadError> {
    let mut keys: Vec<(u16, Vec<u8>, KeyLocation)> = Vec::new();
    let hasher = KeyHasher::new(options.hash_seed);
    for block in same.chunk_by(|one, next| one == next) {
        let at = block[0];
        let part = &parts[at.part as usize].part;
        let mut repeated = Vec::new();
        let walked = for_each_end(part, at.offset, &mut |item| {
            let (table, key) = (item.key.table, item.key.key);
            if item.key.generation != at.generation || hasher.hash(table, key) != at.hash {
                return;
            }
            let other = keys.iter().find(|known| (known.0, &*known.1) == (table, key));
            let Some((_, _, other)) = other else {
                return keys.push((table, key.to_vec(), at));
            };
            let cause = DamageCause::RepeatedKey {
                table,
                key: key[..key.len().min(KEY_BYTES_SHOWN)].to_vec(),
                other: parts[other.part as usize].part.path().to_owned(),
                other_offset: other.offset,
            };
            repeated.push(damage(part.path(), at.offset, cause));
        });
        repeated.into_iter().for_each(|damage| verified.add(*damage));
        verified.note(walked)?;
    }
    Ok(())
}

/// Visits the entries of a block that end a record.
fn for_each_end(
    part: &Part,
    offset: u64,
    visit: &mut dyn FnMut(&Entry<'_>),
) -> Result<(), LoadError> {
    let entry = part.all_blocks().iter().find(|block| block.offset == offset);
    let entry = entry.expect("a record was read from it");
    let mut buf = AlignedBuf::new();
    let at = part.read_blocks(std::slice::from_ref(entry), &mut buf)?;
    let mut reader = BlockReader::new(part.identity());
    let wrong = |error: stillpoint_format::DecodeError| damage(part.path(), offset, error.into());
    for item in reader.open_indexed(entry, &buf[at..]).map_err(wrong)?.entries() {
        let item = item.map_err(wrong)?;
        let ends = match item.content {
            Content::Value(_) | Content::Tombstone => true,
            Content::Fragment(fragment, bytes) => {
                fragment.offset as usize + bytes.len() == fragment.total as usize
            }
        };
        if ends {
            visit(&item);
        }
    }
    Ok(())
}

/// The tables of which the manifest counts another number of records, so that a loader would make
/// too much room, or too little.
fn differing_tables(entry: &CheckpointEntry, found: &BTreeMap<u16, u64>) -> Vec<DamageCause> {
    let stated = |table| entry.table_records.iter().find(|stated| stated.table == table);
    let lacks = |stated: &&TableRecords| !found.contains_key(&stated.table);
    let counted = found
        .iter()
        .map(|(&table, &found)| (table, found, stated(table).map_or(0, |stated| stated.records)));
    let missing = entry.table_records.iter().filter(lacks);
    counted
        .chain(missing.map(|stated| (stated.table, 0, stated.records)))
        .filter(|(_, found, expected)| found != expected)
        .map(|(table, found, expected)| DamageCause::TableRecords { table, found, expected })
        .collect()
}

#[cfg(test)]
mod tests;
