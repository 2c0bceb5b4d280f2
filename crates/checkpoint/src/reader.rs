//! Reading checkpoints back: loading in parallel, checking, and visiting in order.
//!
//! ```text
//! part files ─► read threads: ranges of whole blocks, past the page cache ─► bounded buffers
//!   ─► load threads: checksums, decompression, batches of records ─► one visitor per thread
//! ```
//! A visitor gets no record before the checksum of the record's block was verified. The checksum is
//! seeded with the file's identity and the block's place. Before any block, the file's header and
//! index are checked against the manifest. A large value comes whole: its fragments lie side by side
//! in one part.

mod decode;
mod describe;
mod find;
mod load;
mod part;
mod ranges;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::Label;
use stillpoint_format::ident::StoreId;
use stillpoint_format::manifest::{CheckpointEntry, TableGeneration};
use stillpoint_format::names::checkpoint_dir;
use stillpoint_io::Disk;

use crate::error::{Damage, DamageCause, LoadError};
use crate::progress::Progress;
use decode::{BlockLocation, Decoder, Take};
pub use describe::{Described, describe, epoch_of};
pub use find::{Beside, FindCounts, Found, OpenChain, SoughtKey};
use load::StagedPart;
use part::{Part, open_chain};
pub(crate) use ranges::OpenCheckpoint;
pub use verify::{DAMAGE_MAX, Verified, verify};

/// The expected store of a checkpoint, and the generations whose records count.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Name of the store.
    pub store: StoreId,
    /// Seed of the key hash.
    pub hash_seed: u64,
    /// Present generation of each table: records of other generations, or of no table, are skipped.
    /// `None` takes all.
    pub generations: Option<Vec<TableGeneration>>,
}

/// A record of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedRecord<'a> {
    /// Table.
    pub table: u16,
    /// Generation of the table.
    pub generation: u32,
    /// Keyed hash of table and key.
    pub hash: u64,
    /// Key.
    pub key: &'a [u8],
    /// Tag and deadline kept with the value.
    pub label: Label,
    /// The value. `None` if the key was deleted since the checkpoint's base, or during a fuzzy
    /// checkpoint.
    pub value: Option<&'a [u8]>,
    /// The gsn of the record's last writer; 0 if the checkpoint does not say.
    pub gsn: u64,
}

/// The error of a visitor.
pub type VisitError = Box<dyn std::error::Error + Send + Sync>;

/// Takes the records that one thread loads.
pub trait Visit: Send {
    /// Takes some records, in no order. Each key of a checkpoint comes once. Of a chain, all
    /// records of a checkpoint come before those of older checkpoints. Records come in batches, so
    /// that a visitor can prefetch for several of them together.
    ///
    /// # Errors
    /// Ends the loading.
    fn records(&mut self, batch: &[LoadedRecord<'_>]) -> Result<(), VisitError>;
}

/// What was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSummary {
    /// Records given to the visitors, deletions included.
    pub records: u64,
    /// Records skipped, since their table has another generation now, or is gone.
    pub stale_records: u64,
    /// Bytes of values, those skipped included.
    pub value_bytes: u64,
    /// Bytes of the files.
    pub file_bytes: u64,
}

impl LoadSummary {
    fn add(&mut self, other: &Self) {
        self.records += other.records;
        self.stale_records += other.stale_records;
        self.value_bytes += other.value_bytes;
        self.file_bytes += other.file_bytes;
    }
}

/// Loads a checkpoint with a thread for each visitor.
///
/// # Errors
/// Damage, with file, offset and cure. An error of the disk or of a visitor. Or the load was
/// cancelled. The visitors may have got some records before the error.
///
/// # Panics
/// Without a visitor.
pub fn load(
    disk: &Arc<dyn Disk>,
    entry: &CheckpointEntry,
    options: &LoadOptions,
    visitors: Vec<Box<dyn Visit>>,
    progress: &Arc<Progress>,
) -> Result<LoadSummary, LoadError> {
    load_chain(disk, &[entry], options, visitors, progress)
}

/// Loads a chain of checkpoints, given oldest first, with a thread for each visitor. The newest
/// checkpoint is loaded first. So the first record of a key is the one that counts, and the visitor
/// ignores records of the key that come later. The summary counts all records.
///
/// # Errors
/// As [`load`].
///
/// # Panics
/// Without a visitor.
pub fn load_chain(
    disk: &Arc<dyn Disk>,
    chain: &[&CheckpointEntry],
    options: &LoadOptions,
    visitors: Vec<Box<dyn Visit>>,
    progress: &Arc<Progress>,
) -> Result<LoadSummary, LoadError> {
    let mut parts = Vec::new();
    let newest_first: Vec<&CheckpointEntry> = chain.iter().rev().copied().collect();
    for (stage, opened) in open_chain(disk, &newest_first, options)?.into_iter().enumerate() {
        parts.extend(opened.into_iter().map(|part| StagedPart { stage, part }));
    }
    load_stages((&**disk, &newest_first), parts, options, visitors, progress)
}

/// Loads the parts of a chain, given newest first. The number of a checkpoint is the stage of its parts.
fn load_stages(
    (disk, newest_first): (&dyn Disk, &[&CheckpointEntry]),
    parts: Vec<StagedPart>,
    options: &LoadOptions,
    visitors: Vec<Box<dyn Visit>>,
    progress: &Arc<Progress>,
) -> Result<LoadSummary, LoadError> {
    assert!(!visitors.is_empty(), "a visitor for each thread");
    load::begin(progress, parts.iter().map(|staged| staged.part.units().len()).sum());
    let visitors =
        visitors.into_iter().map(|visitor| -> Box<dyn Take + Send> { Box::new(visitor) });
    let stages = newest_first.len();
    let loaded = load::run(parts.into(), stages, options, visitors.collect(), progress)?;
    let mut total = LoadSummary::default();
    for (entry, summary) in newest_first.iter().zip(loaded) {
        total.add(&check_totals(disk, entry, summary)?);
    }
    Ok(total)
}

type VisitOne<'a> = dyn FnMut(&LoadedRecord<'_>) -> Result<(), VisitError> + 'a;

/// Gives the records of each batch to a visitor of single records.
struct Each<'a>(&'a mut VisitOne<'a>);

impl Take for Each<'_> {
    fn take(&mut self, _: BlockLocation, batch: &[LoadedRecord<'_>]) -> Result<(), LoadError> {
        batch.iter().try_for_each(&mut *self.0).map_err(LoadError::Visitor)
    }
}

/// Visits the records of a checkpoint on the calling thread, in the order of its files.
///
/// # Errors
/// As [`load`].
pub fn for_each_record(
    disk: &dyn Disk,
    entry: &CheckpointEntry,
    options: &LoadOptions,
    visit: &mut dyn FnMut(&LoadedRecord<'_>) -> Result<(), VisitError>,
) -> Result<LoadSummary, LoadError> {
    let mut decoder = Decoder::new(options);
    let mut summary = LoadSummary::default();
    let mut each = Each(visit);
    for (number, part) in open_parts(disk, entry, options)?.iter().enumerate() {
        summary.file_bytes += part.file_bytes();
        for unit in part.units() {
            summary.add(&decoder.stream_unit((number, part), unit, &mut each)?);
        }
    }
    check_totals(disk, entry, summary)
}

fn open_parts(
    disk: &dyn Disk,
    entry: &CheckpointEntry,
    options: &LoadOptions,
) -> Result<Vec<Part>, LoadError> {
    let dir = dir_of(entry);
    let open = |part| Part::open(disk, &dir, entry, part, options);
    entry.parts.iter().map(open).collect()
}

fn dir_of(entry: &CheckpointEntry) -> PathBuf {
    PathBuf::from(checkpoint_dir(entry.serial, entry.kind))
}

fn check_totals(
    disk: &dyn Disk,
    entry: &CheckpointEntry,
    summary: LoadSummary,
) -> Result<LoadSummary, LoadError> {
    let records = summary.records + summary.stale_records;
    let totals = [
        ("number of records in the parts", records, entry.records),
        ("bytes of values in the parts", summary.value_bytes, entry.value_bytes),
    ];
    for (what, found, expected) in totals {
        if found != expected {
            let cause = DamageCause::Differs { what, found, expected };
            return Err(damage(disk.describe(&dir_of(entry)), 0, cause).into());
        }
    }
    Ok(summary)
}

fn damage(file: impl AsRef<Path>, offset: u64, cause: DamageCause) -> Box<Damage> {
    Box::new(Damage { file: file.as_ref().to_owned(), offset, cause })
}
