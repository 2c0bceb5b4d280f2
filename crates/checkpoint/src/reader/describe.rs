//! Describes a checkpoint from its files alone, without a manifest.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use stillpoint_format::ident::StoreId;
use stillpoint_format::manifest::{CheckpointEntry, PartEntry, TableGeneration, TableRecords};
use stillpoint_format::names::{CheckpointKind, checkpoint_dir, parse_part_name};
use stillpoint_format::part::PartHeader;
use stillpoint_io::{Caching, Disk, OpenMode};

use super::part::Opening;
use super::{LoadOptions, damage, for_each_record};
use crate::error::{DamageCause, LoadError};

/// A checkpoint as its files describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The store that it belongs to.
    pub store: StoreId,
    /// Seed of the store's key hash.
    pub hash_seed: u64,
    /// The checkpoint's entry for a manifest, without positions. The epoch tells which commits the
    /// checkpoint holds.
    pub entry: CheckpointEntry,
}

/// Describes the checkpoint in a directory, and reads every record of it. The files do not tell how
/// many parts there were. So a missing part is not noticed.
///
/// # Errors
/// A part is damaged, or belongs to another checkpoint than the first part. Or there is no part, or
/// the disk refuses.
pub fn describe(
    disk: &Arc<dyn Disk>,
    serial: u64,
    kind: CheckpointKind,
) -> Result<Described, LoadError> {
    let dir = PathBuf::from(checkpoint_dir(serial, kind));
    let mut names = disk.list(&dir)?;
    names.retain(|name| parse_part_name(name).is_some());
    let mut parts = Vec::new();
    let mut first: Option<PartHeader> = None;
    let mut value_bytes = 0;
    for name in names {
        let path = disk.describe(&dir.join(&name));
        let file = disk.open(&dir.join(&name), OpenMode::Read, Caching::Direct)?;
        let opening = Opening { file: &*file, path: &path, bytes: file.len()? };
        let part = PartEntry { file: name, bytes: opening.bytes, records: 0, crc: 0 };
        opening.check_length(&part)?;
        let header = opening.any_header()?;
        let of = first.get_or_insert(header);
        let number = parse_part_name(&part.file).unwrap_or(u32::MAX);
        opening.expect(&header, (of.store, of.epoch, kind, number))?;
        let index = opening.index(&header)?;
        let totals = index.totals();
        value_bytes += totals.value_bytes;
        let records = totals.values + totals.tombstones;
        parts.push(PartEntry { records, crc: index.crc(), ..part });
    }
    let Some(header) = first else {
        return Err(damage(disk.describe(&dir), 0, DamageCause::Missing).into());
    };
    let mut entry = CheckpointEntry {
        epoch: header.epoch,
        serial,
        kind,
        base: header.base,
        scheme: "unknown".to_owned(),
        private: None,
        fuzzy: false,
        active: Vec::new(),
        codec: header.codec,
        partitions_log2: header.partitions_log2,
        records: parts.iter().map(|part| part.records).sum(),
        table_records: Vec::new(),
        value_bytes,
        parts,
        generations: Vec::new(),
        positions: Vec::new(),
        gsn_floor: 0,
        started_ms: header.created_ms,
        finished_ms: header.created_ms,
    };
    let (store, hash_seed) = (header.store, header.hash_seed);
    let options = LoadOptions { store, hash_seed, generations: None };
    let mut tables: BTreeMap<u16, (u64, u32)> = BTreeMap::new();
    let mut is_fuzzy = false;
    for_each_record(&**disk, &entry, &options, &mut |record| {
        let (records, generation) = tables.entry(record.table).or_default();
        *records += 1;
        *generation = record.generation.max(*generation);
        // Only a fuzzy checkpoint has stamps.
        is_fuzzy |= record.gsn > 0;
        Ok(())
    })?;
    entry.fuzzy = is_fuzzy;
    for (table, (records, generation)) in tables {
        entry.table_records.push(TableRecords { table, records });
        entry.generations.push(TableGeneration { table, generation });
    }
    Ok(Described { store, hash_seed, entry })
}

/// The epoch of a damaged checkpoint, if the header of a part is intact.
///
/// # Errors
/// The disk refuses.
pub fn epoch_of(
    disk: &dyn Disk,
    serial: u64,
    kind: CheckpointKind,
) -> Result<Option<u64>, LoadError> {
    let dir = PathBuf::from(checkpoint_dir(serial, kind));
    for name in disk.list(&dir)?.iter().filter(|name| parse_part_name(name).is_some()) {
        let path = disk.describe(&dir.join(name));
        let file = disk.open(&dir.join(name), OpenMode::Read, Caching::Direct)?;
        let opening = Opening { file: &*file, path: &path, bytes: file.len()? };
        match opening.any_header() {
            Ok(header) => return Ok(Some(header.epoch)),
            Err(LoadError::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
