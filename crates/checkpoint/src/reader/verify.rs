//! Verifying: whatever a load would believe, and that each key comes once.
//!
//! A load trusts the writer that a checkpoint holds each key once; checking it takes memory for
//! every key. So the blocks are read some partitions at a time, as many as have [`PASS_RECORDS`]
//! together (a partition with more is taken alone), each block once in all. Of each record its hash
//! and its place are kept; keys are compared only where two hashes are equal.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_format::hash::KeyHasher;
use stillpoint_format::manifest::{CheckpointEntry, TableRecords};
use stillpoint_format::names::CheckpointKind;
use stillpoint_format::part::{BlockReader, Content, Entry};
use stillpoint_format::{DecodeCause, PARTITIONS_LOG2_MAX};
use stillpoint_io::{AlignedBuf, Disk};

use super::decode::inconsistent;
use super::load::{Place, Take};
use super::part::Part;
use super::{
    LoadOptions, LoadSummary, LoadedRecord, check_totals, damage, dir_of, load, open_parts,
};
use crate::error::{DamageCause, LoadError};
use crate::progress::Progress;

/// Records whose hashes are kept at a time: 96 MiB of them.
const PASS_RECORDS: u64 = 4 << 20;
/// Bytes of a key that an error shows.
const KEY_BYTES_SHOWN: usize = 64;

/// Reads a checkpoint from end to end, with `threads` threads, and checks every byte of it: all
/// checksums, that each key lies in its partition and comes once, that large values are whole, that
/// a full checkpoint holds no deletions, and that the numbers of records are those of the manifest.
///
/// Memory grows with the records of the largest partition (24 to 48 bytes each), not with those of
/// the checkpoint. Records of all generations are verified, whatever the options say.
///
/// # Errors
/// As [`load`](super::load); the first damage that was met.
pub fn verify(
    disk: &Arc<dyn Disk>,
    entry: &CheckpointEntry,
    options: &LoadOptions,
    threads: usize,
    progress: &Arc<Progress>,
) -> Result<LoadSummary, LoadError> {
    verify_in_passes(disk, entry, options, threads, progress, PASS_RECORDS)
}

fn verify_in_passes(
    disk: &Arc<dyn Disk>,
    entry: &CheckpointEntry,
    options: &LoadOptions,
    threads: usize,
    progress: &Arc<Progress>,
    pass_records: u64,
) -> Result<LoadSummary, LoadError> {
    let parts = open_parts(&**disk, entry, options)?;
    let options = &LoadOptions { generations: None, ..options.clone() };
    let some = |pass: &Pass| {
        parts.iter().map(|part| part.with_partitions(&pass.partitions)).collect::<Arc<[Part]>>()
    };
    let passes: Vec<_> =
        passes(&parts, entry, pass_records).iter().map(|pass| (pass.records, some(pass))).collect();
    let units = passes.iter().flat_map(|(_, parts)| &**parts).map(|part| part.units().len());
    load::begin(progress, units.sum());
    let mut total = LoadSummary::default();
    let mut tables = BTreeMap::new();
    for (records, parts) in passes {
        // What the index says was not compared with the blocks yet: at most what is usual.
        let seen = Vec::with_capacity(records.min(PASS_RECORDS) as usize);
        let found = Arc::new(Mutex::new(Found { seen, tables, deletion: None }));
        let visitor = || -> Box<dyn Take> {
            Box::new(Verifying {
                is_full: entry.kind == CheckpointKind::Full,
                found: found.clone(),
            })
        };
        let visitors = (0..threads.max(1)).map(|_| visitor()).collect();
        total.add(&load::run(parts.clone(), options, visitors, progress)?);
        let Found { mut seen, tables: counted, deletion } = std::mem::take(&mut *found.lock());
        if let Some(at) = deletion {
            let cause = DecodeCause::Inconsistent("a deletion in a full checkpoint");
            return Err(inconsistent(&parts[at.part], at.offset, cause));
        }
        seen.sort_unstable();
        for same in
            seen.chunk_by(|one, next| (one.hash, one.generation) == (next.hash, next.generation))
        {
            if same.len() > 1 {
                compare_keys(&parts, options, same)?;
            }
        }
        tables = counted;
    }
    total.file_bytes = parts.iter().map(Part::file_bytes).sum();
    let total = check_totals(&**disk, entry, total)?;
    check_tables(entry, &tables)
        .map_err(|cause| damage(disk.describe(&dir_of(entry)), 0, cause))?;
    Ok(total)
}

/// Partitions that are read together, and how many records the indexes say they have.
struct Pass {
    partitions: Range<u32>,
    records: u64,
}

fn passes(parts: &[Part], entry: &CheckpointEntry, records_max: u64) -> Vec<Pass> {
    let mut of_partition = vec![0u64; 1 << entry.partitions_log2.min(PARTITIONS_LOG2_MAX)];
    for block in parts.iter().flat_map(Part::all_blocks) {
        // Header and index were checked to name none beyond.
        of_partition[block.partition as usize] +=
            u64::from(block.values) + u64::from(block.tombstones);
    }
    let mut passes: Vec<Pass> = Vec::new();
    for (partition, &records) in (0u32..).zip(&of_partition) {
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

/// A record, for finding another of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    hash: u64,
    generation: u32,
    part: u32,
    offset: u64,
}

const _: () = assert!(size_of::<Seen>() == 24, "as the memory bound says");

/// What the threads of a pass found.
#[derive(Default)]
struct Found {
    seen: Vec<Seen>,
    tables: BTreeMap<u16, u64>,
    deletion: Option<Place>,
}

struct Verifying {
    is_full: bool,
    found: Arc<Mutex<Found>>,
}

impl Take for Verifying {
    fn take(&mut self, at: Place, batch: &[LoadedRecord<'_>]) -> Result<(), LoadError> {
        let mut found = self.found.lock();
        for record in batch {
            if self.is_full && record.value.is_none() {
                found.deletion.get_or_insert(at);
            }
            *found.tables.entry(record.table).or_default() += 1;
            found.seen.push(Seen {
                hash: record.hash,
                generation: record.generation,
                part: at.part as u32,
                offset: at.offset,
            });
        }
        Ok(())
    }
}

/// Looks at the keys of records whose hashes are equal.
fn compare_keys(parts: &[Part], options: &LoadOptions, same: &[Seen]) -> Result<(), LoadError> {
    let mut keys: Vec<(u16, Vec<u8>, Seen)> = Vec::new();
    let hasher = KeyHasher::new(options.hash_seed);
    for block in same.chunk_by(|one, next| one == next) {
        let at = block[0];
        let part = &parts[at.part as usize];
        for_each_end(part, at.offset, &mut |item| {
            let (table, key) = (item.key.table, item.key.key);
            if item.key.generation != at.generation || hasher.hash(table, key) != at.hash {
                return Ok(());
            }
            if let Some((_, _, other)) =
                keys.iter().find(|known| (known.0, &*known.1) == (table, key))
            {
                let cause = DamageCause::RepeatedKey {
                    table,
                    key: key[..key.len().min(KEY_BYTES_SHOWN)].to_vec(),
                    other: parts[other.part as usize].path().to_owned(),
                    other_offset: other.offset,
                };
                return Err(damage(part.path(), at.offset, cause));
            }
            keys.push((table, key.to_vec(), at));
            Ok(())
        })?;
    }
    Ok(())
}

/// The entries of a block that end a record.
fn for_each_end(
    part: &Part,
    offset: u64,
    visit: &mut dyn FnMut(&Entry<'_>) -> Result<(), LoadError>,
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
            visit(&item)?;
        }
    }
    Ok(())
}

/// The manifest counts the records of each table, so that a loader can make room.
fn check_tables(entry: &CheckpointEntry, found: &BTreeMap<u16, u64>) -> Result<(), DamageCause> {
    let stated = |table| entry.table_records.iter().find(|stated| stated.table == table);
    for (&table, &found) in found {
        let expected = stated(table).map_or(0, |stated| stated.records);
        if found != expected {
            return Err(DamageCause::TableRecords { table, found, expected });
        }
    }
    let lacks = |stated: &&TableRecords| stated.records > 0 && !found.contains_key(&stated.table);
    match entry.table_records.iter().find(lacks) {
        None => Ok(()),
        Some(&TableRecords { table, records }) => {
            Err(DamageCause::TableRecords { table, found: 0, expected: records })
        }
    }
}

#[cfg(test)]
mod tests;
