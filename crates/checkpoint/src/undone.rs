//! The checkpoint of a start that has undone commits: the keys that it has brought back.
//!
//! A start cannot leave the undo to the next one, whose logs end at the cut. So it writes a checkpoint of
//! changes that goes on from the newest one, and the MANIFEST of its incarnation names it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::Label;
use stillpoint_format::manifest::CheckpointEntry;
use stillpoint_format::names::{CHECKPOINT_DIR, CheckpointKind, checkpoint_dir};
use stillpoint_format::part::PartHeader;
use stillpoint_io::{Clock, Disk};

use crate::error::CheckpointError;
use crate::progress::Progress;
use crate::reader::LoadedRecord;
use crate::writer::{MergedPart, MergedRecords, WriterConfig, merge_target};

/// A key of which a checkpoint held what a crash has taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndoneRecord {
    /// Table.
    pub table: u16,
    /// Generation of the table.
    pub generation: u32,
    /// Keyed hash of table and key.
    pub hash: u64,
    /// Key.
    pub key: Vec<u8>,
    /// Label and value that the key has now. `None` if it has no value.
    pub value: Option<(Label, Vec<u8>)>,
    /// Commits on the key up to this gsn are in the value.
    pub gsn: u64,
}

/// Writes a checkpoint of changes that goes on from `base`, begins `epoch` and holds these records. Makes
/// its files durable. Returns its entry for the manifest, with the positions of the base.
///
/// # Errors
/// The disk refuses. The files are removed.
pub fn write_undone(
    disk: &Arc<dyn Disk>,
    clock: &dyn Clock,
    config: &WriterConfig,
    (base, epoch): (&CheckpointEntry, u64),
    records: &[UndoneRecord],
) -> Result<CheckpointEntry, CheckpointError> {
    let kind = CheckpointKind::Partial;
    let dir = PathBuf::from(checkpoint_dir(config.serial, kind));
    let header = PartHeader {
        store: config.store,
        created_ms: clock.wall_ms(),
        epoch,
        part: 0,
        kind,
        partitions_log2: config.partitions_log2,
        codec: config.codec,
        hash_seed: config.hash_seed,
        base: Some(base.epoch),
    };
    let written = write(disk, &dir, header, config, records);
    let MergedRecords { part: (part, value_bytes), table_records } = written.inspect_err(|_| {
        // If even the removal fails, the next start removes the directory, which no manifest names.
        let _ = disk.remove(&dir);
    })?;
    Ok(CheckpointEntry {
        epoch,
        serial: config.serial,
        kind,
        base: Some(base.epoch),
        active: Vec::new(),
        codec: config.codec,
        partitions_log2: config.partitions_log2,
        records: part.records,
        table_records,
        value_bytes,
        parts: vec![part],
        ..base.clone()
    })
}

fn write(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    header: PartHeader,
    config: &WriterConfig,
    records: &[UndoneRecord],
) -> Result<MergedRecords, CheckpointError> {
    disk.create_dir_all(dir)?;
    let target = merge_target(disk, dir, header, config);
    let progress = Progress::default();
    let mut out = MergedPart::new(&target, config.block_bytes, &progress);
    for record in records {
        let UndoneRecord { table, generation, hash, ref key, ref value, gsn } = *record;
        let now = value.as_ref().map(|(label, value)| (*label, Some(&value[..])));
        let (label, value) = now.unwrap_or_default();
        out.add(&LoadedRecord { table, generation, hash, key, label, value, gsn })?;
    }
    let written = out.finish()?;
    disk.sync_dir(dir)?;
    for shared in [CHECKPOINT_DIR, ""] {
        disk.sync_dir(Path::new(shared)).map_err(CheckpointError::Directory)?;
    }
    Ok(written)
}
