//! Opening a part: header and index checked against the manifest, blocks grouped for reading.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::DecodeError;
use stillpoint_format::hash::partition_of;
use stillpoint_format::ident::{HEADER_BYTES, Identity, StoreId};
use stillpoint_format::manifest::{CheckpointEntry, PartEntry};
use stillpoint_format::names::{CheckpointKind, parse_part_name};
use stillpoint_format::part::{
    BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, BlockEntry, KeyMap, PartHeader, PartIndex, TRAILER_BYTES,
    Trailer,
};
use stillpoint_io::{AlignedBuf, Caching, DIRECT_ALIGN, Disk, DiskFile, OpenMode};
use stillpoint_sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

use super::{LoadOptions, damage};
use crate::error::{DamageCause, LoadError};

/// Bytes that are read at a time. With the bytes that alignment adds at both ends, a buffer has 2
/// MiB.
const UNIT_BYTES: u64 = (2 << 20) - 2 * DIRECT_ALIGN as u64;
/// A unit longer than this is a large value, and is read block by block.
const UNIT_BYTES_MAX: u64 = 2 * UNIT_BYTES;

/// Parts of a chain that stay open at a time. Further ones are opened for each read, so a chain of
/// any length needs few descriptors.
pub(super) const OPEN_PARTS_MAX: usize = 64;

/// A part whose header and index were read and checked.
#[derive(Clone, Debug)]
pub(super) struct Part {
    source: Source,
    path: PathBuf,
    identity: Identity,
    partitions_log2: u8,
    file_bytes: u64,
    /// The blocks, in the order of the file.
    blocks: Vec<BlockEntry>,
    /// For each block of a part that is open for keys, whether all its records are loaded. Empty for other
    /// parts.
    loaded: Arc<[AtomicBool]>,
}

/// A part with its index by partition, and its key map.
#[derive(Debug)]
pub(super) struct KeyedPart {
    pub(super) part: Part,
    pub(super) index: PartIndex,
    /// `None` if an earlier release has written the part.
    pub(super) keys: Option<KeyMap>,
}

impl KeyedPart {
    /// Whether the key map leads from this hash to the record that ends in the block at `offset`. It names
    /// that block, or the one in which the record begins. True without a map.
    pub(super) fn leads_to(&self, hash: u64, offset: u64) -> bool {
        let Some(keys) = &self.keys else { return true };
        let of_partition = self.index.partition(partition_of(hash, self.part.partitions_log2));
        let all = self.part.all_blocks();
        let ends_at = all.partition_point(|block| block.offset < offset);
        let goes_on = |block: &BlockEntry| block.values == 0 && block.tombstones == 0;
        keys.blocks_of(hash).any(|number| {
            let begin = of_partition[number].offset;
            let begins_at = all.partition_point(|block| block.offset < begin);
            begin == offset || begin < offset && all[begins_at + 1..=ends_at].iter().all(goes_on)
        })
    }
}

/// Where the bytes of a part come from.
#[derive(Clone, Debug)]
enum Source {
    /// The open file, which can be read though it is removed meanwhile.
    File(Arc<dyn DiskFile>),
    /// A disk, and the path of the file on it.
    OnDisk(Arc<dyn Disk>, PathBuf),
}

/// Opens the parts of a chain's checkpoints, given newest first.
pub(super) fn open_chain(
    disk: &Arc<dyn Disk>,
    newest_first: &[&CheckpointEntry],
    options: &LoadOptions,
) -> Result<Vec<Vec<Part>>, LoadError> {
    let mut opened = 0;
    let mut open = |entry: &CheckpointEntry, part: &PartEntry| {
        let dir = super::dir_of(entry);
        let mut whole = Part::open(&**disk, &dir, entry, part, options)?;
        opened += 1;
        if opened > OPEN_PARTS_MAX {
            whole.read_from(disk, dir.join(&part.file));
        }
        Ok(whole)
    };
    let of = |entry: &&CheckpointEntry| entry.parts.iter().map(|part| open(entry, part)).collect();
    newest_first.iter().map(of).collect()
}

/// Adjacent blocks of a part. The fragments of a value are in one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    first: usize,
    end: usize,
}

impl Part {
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &Path,
        entry: &CheckpointEntry,
        part: &PartEntry,
        options: &LoadOptions,
    ) -> Result<Self, LoadError> {
        Self::open_with(disk, dir, (entry, part), options, false).map(|keyed| keyed.part)
    }

    /// As [`open`](Self::open), with the part's key map, if the part has one.
    pub(super) fn open_keyed(
        disk: &dyn Disk,
        dir: &Path,
        entry: &CheckpointEntry,
        part: &PartEntry,
        options: &LoadOptions,
    ) -> Result<KeyedPart, LoadError> {
        Self::open_with(disk, dir, (entry, part), options, true)
    }

    fn open_with(
        disk: &dyn Disk,
        dir: &Path,
        (entry, part): (&CheckpointEntry, &PartEntry),
        options: &LoadOptions,
        wants_keys: bool,
    ) -> Result<KeyedPart, LoadError> {
        let name = dir.join(&part.file);
        let path = disk.describe(&name);
        let file = open_file(disk, &name)?;
        let opening = Opening { file: &*file, path: &path, bytes: file.len()? };
        opening.check_length(part)?;
        let header = opening.header(entry, part, options)?;
        let (index, footer) = opening.index_and_footer(&header)?;
        let crc = u64::from(index.crc());
        opening.same("checksum of the index", crc, part.crc.into())?;
        let totals = index.totals();
        let records = totals.values + totals.tombstones;
        opening.same("number of records in the index", records, part.records)?;
        let keys = if wants_keys { opening.keys(&header, &index, footer)? } else { None };
        let mut blocks = index.blocks().to_vec();
        blocks.sort_unstable_by_key(|block| block.offset);
        let file_bytes = opening.bytes;
        let part = Self {
            source: Source::File(file),
            path,
            identity: header.identity(),
            partitions_log2: header.partitions_log2,
            file_bytes,
            loaded: blocks.iter().filter(|_| wants_keys).map(|_| AtomicBool::new(false)).collect(),
            blocks,
        };
        part.check_blocks()?;
        Ok(KeyedPart { part, index, keys })
    }

    /// Reads the part from the disk each time, so that the file need not stay open.
    pub(super) fn read_from(&mut self, disk: &Arc<dyn Disk>, name: PathBuf) {
        self.source = Source::OnDisk(disk.clone(), name);
    }

    /// Checks that the blocks are adjacent, and that none is longer than a block can be.
    fn check_blocks(&self) -> Result<(), LoadError> {
        let mut expected = HEADER_BYTES as u64;
        for block in &self.blocks {
            let differs = |what, found, expected| DamageCause::Differs { what, found, expected };
            let cause = if block.offset != expected {
                differs("offset of a block in the index", block.offset, expected)
            } else if block.bytes as usize > BLOCK_HEADER_BYTES + BLOCK_BYTES_MAX {
                let max = (BLOCK_HEADER_BYTES + BLOCK_BYTES_MAX) as u64;
                differs("length of a block in the index", block.bytes.into(), max)
            } else {
                expected += u64::from(block.bytes);
                continue;
            };
            return Err(damage(&self.path, block.offset, cause).into());
        }
        Ok(())
    }

    /// The same part, with only the blocks of some partitions.
    pub(super) fn with_partitions(&self, partitions: &Range<u32>) -> Self {
        let of_them = |block: &&BlockEntry| partitions.contains(&block.partition);
        let blocks = self.blocks.iter().filter(of_them).copied().collect();
        let (source, loaded) = (self.source.clone(), Arc::default());
        Self { source, path: self.path.clone(), blocks, loaded, ..*self }
    }

    /// Notes that all records of the block at this offset are loaded. Whoever loads the part may leave it
    /// out.
    pub(super) fn note_loaded(&self, offset: u64) {
        let at = self.blocks.binary_search_by_key(&offset, |block| block.offset);
        if let Some(loaded) = at.ok().and_then(|at| self.loaded.get(at)) {
            // Release: partner of the Acquire in `is_loaded`.
            loaded.store(true, Release);
        }
    }

    /// Whether all records of a block are loaded.
    fn is_loaded(&self, at: usize) -> bool {
        // Acquire: partner of the Release in `note_loaded`.
        self.loaded.get(at).is_some_and(|loaded| loaded.load(Acquire))
    }

    /// The blocks of a unit, each with whether all its records are loaded.
    pub(super) fn blocks_to_load(&self, unit: Unit) -> impl Iterator<Item = (&BlockEntry, bool)> {
        (unit.first..unit.end).map(|at| (&self.blocks[at], self.is_loaded(at)))
    }

    pub(super) fn all_blocks(&self) -> &[BlockEntry] {
        &self.blocks
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    pub(super) fn partitions_log2(&self) -> u8 {
        self.partitions_log2
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    pub(super) fn blocks(&self, unit: Unit) -> &[BlockEntry] {
        &self.blocks[unit.first..unit.end]
    }

    /// The blocks in groups that one thread takes at a time.
    pub(super) fn units(&self) -> Vec<Unit> {
        let mut units: Vec<Unit> = Vec::new();
        let mut bytes = 0;
        let mut end = 0;
        for (at, block) in self.blocks.iter().enumerate() {
            let adjacent = block.offset == end;
            end = block.offset + u64::from(block.bytes);
            // If no entry begins in the block, it continues the value of the previous block.
            let goes_on = block.values == 0 && block.tombstones == 0;
            match units.last_mut() {
                Some(unit)
                    if adjacent && (goes_on || bytes + u64::from(block.bytes) <= UNIT_BYTES) =>
                {
                    unit.end = at + 1;
                    bytes += u64::from(block.bytes);
                }
                _ => {
                    units.push(Unit { first: at, end: at + 1 });
                    bytes = u64::from(block.bytes);
                }
            }
        }
        units
    }

    pub(super) fn unit_bytes(&self, unit: Unit) -> u64 {
        let blocks = self.blocks(unit);
        blocks.iter().map(|block| u64::from(block.bytes)).sum()
    }

    /// Whether the unit is too long to be read as a whole.
    pub(super) fn is_oversize(&self, unit: Unit) -> bool {
        self.unit_bytes(unit) > UNIT_BYTES_MAX
    }

    /// Reads adjacent blocks. Returns the position in `buf` at which they begin.
    pub(super) fn read_blocks(
        &self,
        blocks: &[BlockEntry],
        buf: &mut AlignedBuf,
    ) -> Result<usize, LoadError> {
        let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else {
            return Ok(0);
        };
        let end = last.offset + u64::from(last.bytes);
        match &self.source {
            Source::File(file) => read_range(&**file, &self.path, first.offset, end, buf),
            Source::OnDisk(disk, name) => {
                let file = open_file(&**disk, name)?;
                read_range(&*file, &self.path, first.offset, end, buf)
            }
        }
    }
}

/// A file that claims to be a part.
pub(super) struct Opening<'a> {
    pub(super) file: &'a dyn DiskFile,
    pub(super) path: &'a Path,
    pub(super) bytes: u64,
}

impl Opening<'_> {
    fn decode_error(&self, error: DecodeError) -> LoadError {
        damage(self.path, error.offset, error.into()).into()
    }

    fn same(&self, what: &'static str, found: u64, expected: u64) -> Result<(), LoadError> {
        let cause = DamageCause::Differs { what, found, expected };
        (found == expected).then_some(()).ok_or_else(|| damage(self.path, 0, cause).into())
    }

    fn read(&self, from: u64, to: u64) -> Result<Vec<u8>, LoadError> {
        let mut buf = AlignedBuf::new();
        let at = read_range(self.file, self.path, from, to, &mut buf)?;
        Ok(buf[at..at + (to - from) as usize].to_vec())
    }

    pub(super) fn check_length(&self, part: &PartEntry) -> Result<(), LoadError> {
        self.same("length of the file in bytes", self.bytes, part.bytes)?;
        let whole = self.bytes / DIRECT_ALIGN as u64 * DIRECT_ALIGN as u64;
        let whole = whole.max(HEADER_BYTES as u64);
        self.same("length of the file in bytes", self.bytes, whole)
    }

    /// The header, which may be that of any part.
    pub(super) fn any_header(&self) -> Result<PartHeader, LoadError> {
        let head = self.read(0, HEADER_BYTES as u64)?;
        PartHeader::decode(&head).map_err(|error| self.decode_error(error))
    }

    /// Refuses a header of another store, epoch, kind or part number.
    pub(super) fn expect(
        &self,
        header: &PartHeader,
        (store, epoch, kind, number): (StoreId, u64, CheckpointKind, u32),
    ) -> Result<(), LoadError> {
        header.expect(store, epoch, kind, number).map_err(|error| self.decode_error(error))
    }

    fn header(
        &self,
        entry: &CheckpointEntry,
        part: &PartEntry,
        options: &LoadOptions,
    ) -> Result<PartHeader, LoadError> {
        let header = self.any_header()?;
        let number = parse_part_name(&part.file).unwrap_or(u32::MAX);
        self.expect(&header, (options.store, entry.epoch, entry.kind, number))?;
        self.same(
            "number of partitions, as a power of two,",
            header.partitions_log2.into(),
            entry.partitions_log2.into(),
        )?;
        self.same("seed of the key hash", header.hash_seed, options.hash_seed)?;
        Ok(header)
    }

    pub(super) fn index(&self, header: &PartHeader) -> Result<PartIndex, LoadError> {
        self.index_and_footer(header).map(|(index, _)| index)
    }

    fn keys(
        &self,
        header: &PartHeader,
        index: &PartIndex,
        (footer, at): (Vec<u8>, u64),
    ) -> Result<Option<KeyMap>, LoadError> {
        KeyMap::decode(footer, at, index, header.partitions_log2)
            .map_err(|error| self.decode_error(error))
    }

    /// The index, and the bytes of the footer with their offset.
    fn index_and_footer(
        &self,
        header: &PartHeader,
    ) -> Result<(PartIndex, (Vec<u8>, u64)), LoadError> {
        let identity = header.identity();
        let tail = self.read(self.bytes - TRAILER_BYTES as u64, self.bytes)?;
        let trailer = Trailer::decode(identity, &tail, self.bytes)
            .map_err(|error| self.decode_error(error))?;
        // Both numbers were checked against the file's length.
        let end = trailer.footer_offset + trailer.footer_bytes;
        let footer = self.read(trailer.footer_offset, end)?;
        let index = PartIndex::decode(identity, &footer, &trailer, header.partitions_log2)
            .map_err(|error| self.decode_error(error))?;
        Ok((index, (footer, trailer.footer_offset)))
    }
}

fn open_file(disk: &dyn Disk, name: &Path) -> Result<Arc<dyn DiskFile>, LoadError> {
    match disk.open(name, OpenMode::Read, Caching::Direct) {
        Err(error) if error.is_not_found() => {
            Err(damage(disk.describe(name), 0, DamageCause::Missing).into())
        }
        opened => Ok(opened?),
    }
}

/// Reads a range, and the bytes that alignment adds. Returns the position in `buf` at which the
/// range begins.
fn read_range(
    file: &dyn DiskFile,
    path: &Path,
    from: u64,
    to: u64,
    buf: &mut AlignedBuf,
) -> Result<usize, LoadError> {
    let align = DIRECT_ALIGN as u64;
    let start = from / align * align;
    let len = (to.next_multiple_of(align) - start) as usize;
    buf.resize(len, 0);
    let read = file.read_at(buf, start)?;
    if read < len {
        let cause = DamageCause::Differs {
            what: "end of the file, which became shorter while it was read,",
            found: start + read as u64,
            expected: start + len as u64,
        };
        return Err(damage(path, start, cause).into());
    }
    Ok((from - start) as usize)
}
