//! The footer of a part, an index of its blocks, and the trailer that finds the footer.

use std::ops::Range;

use super::block::{BLOCK_HEADER_BYTES, BlockBuilder};
use super::keys::KeysBuilder;
use crate::PARTITIONS_LOG2_MAX;
use crate::bytes::{put, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::hash::KeyHasher;
use crate::ident::{HEADER_BYTES, Identity};

/// Bytes of the trailer: the last of every part.
pub const TRAILER_BYTES: usize = 32;

/// The file's length is a multiple of this.
const FILE_ALIGN: u64 = 4096;
const FOOTER_HEAD_BYTES: usize = 48;
const ENTRY_BYTES: usize = 36;
/// "SPCF" and "SPCT".
const FOOTER_MAGIC: u32 = u32::from_le_bytes(*b"SPCF");
const TRAILER_MAGIC: u32 = u32::from_le_bytes(*b"SPCT");
/// Each of the two checksums covers the bytes from here on.
const CRC_FROM: usize = 8;

const WHAT_FOOTER: &str = "checkpoint part footer";
const WHAT_TRAILER: &str = "checkpoint part trailer";

/// A block's entry in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEntry {
    /// The partition of the block's keys.
    pub partition: u32,
    /// Checksum of the block's header, which holds the checksum of its payload.
    pub header_crc: u32,
    /// File offset.
    pub offset: u64,
    /// Length in the file, in bytes, header included.
    pub bytes: u32,
    /// Length of the block's payload in plain form, in bytes.
    pub uncompressed_bytes: u32,
    /// Values that begin in the block.
    pub values: u32,
    /// Tombstones in the block.
    pub tombstones: u32,
    /// Bytes of values in the block.
    pub value_bytes: u32,
}

/// Counts of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartTotals {
    /// Number of values. A value in fragments counts once.
    pub values: u64,
    /// Number of tombstones.
    pub tombstones: u64,
    /// Bytes of all values.
    pub value_bytes: u64,
    /// Bytes of all payloads in plain form.
    pub uncompressed_bytes: u64,
}

impl PartTotals {
    /// Adds a block.
    fn add(&mut self, entry: &BlockEntry) {
        self.values += u64::from(entry.values);
        self.tombstones += u64::from(entry.tombstones);
        self.value_bytes += u64::from(entry.value_bytes);
        self.uncompressed_bytes += u64::from(entry.uncompressed_bytes);
    }
}

/// Collects the index while a part is written.
#[derive(Clone, Debug, Default)]
pub struct IndexBuilder {
    /// The blocks, each with the place of its keys among those of `keys`.
    entries: Vec<(BlockEntry, Range<usize>)>,
    totals: PartTotals,
    keys: Option<KeysBuilder>,
}

impl IndexBuilder {
    /// A builder of an index with a [key map](super::KeyMap). Each block is [noted](Self::note_keys)
    /// before it is added.
    pub fn with_keys(hasher: KeyHasher, partitions_log2: u8) -> Self {
        let keys = Some(KeysBuilder::new(hasher, partitions_log2));
        Self { keys, ..Self::default() }
    }

    /// Notes the keys of the block that is sealed and [added](Self::push) next. Takes 4 bytes for each
    /// key until the end of the part.
    pub fn note_keys(&mut self, block: &BlockBuilder) {
        if let Some(keys) = &mut self.keys {
            keys.take(block);
        }
    }

    /// Adds a block, in any order.
    pub fn push(&mut self, entry: BlockEntry) {
        self.totals.add(&entry);
        let keys = self.keys.as_mut().map_or(0..0, KeysBuilder::end_block);
        self.entries.push((entry, keys));
    }

    /// Counts of the part so far.
    pub fn totals(&self) -> PartTotals {
        self.totals
    }

    /// The end of the file: footer, padding and trailer, to be written at `offset`, directly behind
    /// the last block. With this end the file's length is a multiple of 4096. Also returns the
    /// footer's checksum, which the manifest holds.
    ///
    /// # Panics
    /// If the blocks do not fill the file from its header to `offset`.
    pub fn finish(mut self, identity: Identity, offset: u64) -> (Vec<u8>, u32) {
        self.entries.sort_unstable_by_key(|(entry, _)| (entry.partition, entry.offset));
        let covered: u64 = self.entries.iter().map(|(entry, _)| u64::from(entry.bytes)).sum();
        assert!(HEADER_BYTES as u64 + covered == offset, "blocks do not fill the part");
        let mut out = vec![0; FOOTER_HEAD_BYTES + self.entries.len() * ENTRY_BYTES];
        if let Some(keys) = self.keys.take() {
            keys.append(&self.entries, &mut out);
        }
        let used = out.len() + TRAILER_BYTES;
        let file_len = (offset + used as u64).next_multiple_of(FILE_ALIGN);
        out.resize((file_len - offset) as usize, 0);
        let footer_len = out.len() - TRAILER_BYTES;
        let (footer, trailer) = out.split_at_mut(footer_len);

        put(footer, 0, &FOOTER_MAGIC.to_le_bytes());
        put(footer, 8, &(self.entries.len() as u64).to_le_bytes());
        put(footer, 16, &self.totals.values.to_le_bytes());
        put(footer, 24, &self.totals.tombstones.to_le_bytes());
        put(footer, 32, &self.totals.value_bytes.to_le_bytes());
        put(footer, 40, &self.totals.uncompressed_bytes.to_le_bytes());
        let places = footer[FOOTER_HEAD_BYTES..].chunks_exact_mut(ENTRY_BYTES);
        for (place, (entry, _)) in places.zip(&self.entries) {
            entry.encode(place);
        }
        let footer_crc = identity.checksum(offset, &footer[CRC_FROM..]);
        put(footer, 4, &footer_crc.to_le_bytes());

        put(trailer, 0, &TRAILER_MAGIC.to_le_bytes());
        put(trailer, 8, &offset.to_le_bytes());
        put(trailer, 16, &(footer_len as u64).to_le_bytes());
        put(trailer, 24, &file_len.to_le_bytes());
        let crc = identity.checksum(offset + footer_len as u64, &trailer[CRC_FROM..]);
        put(trailer, 4, &crc.to_le_bytes());
        (out, footer_crc)
    }
}

impl BlockEntry {
    fn encode(&self, place: &mut [u8]) {
        put(place, 0, &self.partition.to_le_bytes());
        put(place, 4, &self.header_crc.to_le_bytes());
        put(place, 8, &self.offset.to_le_bytes());
        put(place, 16, &self.bytes.to_le_bytes());
        put(place, 20, &self.uncompressed_bytes.to_le_bytes());
        put(place, 24, &self.values.to_le_bytes());
        put(place, 28, &self.tombstones.to_le_bytes());
        put(place, 32, &self.value_bytes.to_le_bytes());
    }

    fn decode(place: &[u8]) -> Self {
        BlockEntry {
            partition: u32_at(place, 0),
            header_crc: u32_at(place, 4),
            offset: u64_at(place, 8),
            bytes: u32_at(place, 16),
            uncompressed_bytes: u32_at(place, 20),
            values: u32_at(place, 24),
            tombstones: u32_at(place, 28),
            value_bytes: u32_at(place, 32),
        }
    }
}

/// Position of the footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// File offset of the footer, where the blocks end.
    pub footer_offset: u64,
    /// Length of the footer in bytes, with its padding and without the trailer.
    pub footer_bytes: u64,
}

impl Trailer {
    /// Decodes the last [`TRAILER_BYTES`] of a part that is `file_bytes` long.
    ///
    /// # Errors
    /// No intact trailer, or one that does not fit the file's length.
    pub fn decode(identity: Identity, bytes: &[u8], file_bytes: u64) -> Result<Self, DecodeError> {
        let offset = file_bytes.saturating_sub(TRAILER_BYTES as u64);
        let fail = |cause| Err(DecodeError { what: WHAT_TRAILER, offset, cause });
        let Some(trailer) = bytes.first_chunk::<TRAILER_BYTES>() else {
            let (needed, available) = (TRAILER_BYTES as u64, bytes.len() as u64);
            return fail(DecodeCause::Truncated { needed, available });
        };
        check_crc(identity, trailer, offset, TRAILER_MAGIC, WHAT_TRAILER)?;
        let (footer_offset, footer_bytes) = (u64_at(trailer, 8), u64_at(trailer, 16));
        if u64_at(trailer, 24) != file_bytes || !file_bytes.is_multiple_of(FILE_ALIGN) {
            return fail(DecodeCause::Inconsistent("length of the file"));
        }
        let fits = footer_offset.checked_add(footer_bytes) == Some(offset);
        if footer_offset < HEADER_BYTES as u64 || !fits {
            return fail(DecodeCause::Inconsistent("place of the footer"));
        }
        Ok(Trailer { footer_offset, footer_bytes })
    }
}

/// The index of a part: its blocks by partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartIndex {
    entries: Vec<BlockEntry>,
    totals: PartTotals,
    crc: u32,
}

impl PartIndex {
    /// Decodes the footer: the bytes that the trailer names.
    ///
    /// # Errors
    /// Anything but an intact footer of this part.
    pub fn decode(
        identity: Identity,
        bytes: &[u8],
        trailer: &Trailer,
        partitions_log2: u8,
    ) -> Result<Self, DecodeError> {
        let offset = trailer.footer_offset;
        let fail = |cause| DecodeError { what: WHAT_FOOTER, offset, cause };
        let (needed, available) = (trailer.footer_bytes, bytes.len() as u64);
        if needed != available || bytes.len() < FOOTER_HEAD_BYTES {
            let needed = needed.max(FOOTER_HEAD_BYTES as u64);
            return Err(fail(DecodeCause::Truncated { needed, available }));
        }
        let crc = check_crc(identity, bytes, offset, FOOTER_MAGIC, WHAT_FOOTER)?;
        let (count, room) = (u64_at(bytes, 8), &bytes[FOOTER_HEAD_BYTES..]);
        if count > (room.len() / ENTRY_BYTES) as u64 {
            return Err(fail(DecodeCause::Inconsistent("footer does not hold its entries")));
        }
        // The capacity is bounded, since `count` was just checked against the bytes.
        let entries: Vec<_> =
            room.chunks_exact(ENTRY_BYTES).take(count as usize).map(BlockEntry::decode).collect();
        let totals = PartTotals {
            values: u64_at(bytes, 16),
            tombstones: u64_at(bytes, 24),
            value_bytes: u64_at(bytes, 32),
            uncompressed_bytes: u64_at(bytes, 40),
        };
        let index = PartIndex { entries, totals, crc };
        index.check(offset, partitions_log2).map_err(fail)?;
        Ok(index)
    }

    /// Decodes the index of a part that is in memory as a whole.
    ///
    /// # Errors
    /// As [`Trailer::decode`] and [`decode`](Self::decode).
    pub fn of_file(
        identity: Identity,
        file: &[u8],
        partitions_log2: u8,
    ) -> Result<Self, DecodeError> {
        let tail = &file[file.len().saturating_sub(TRAILER_BYTES)..];
        let trailer = Trailer::decode(identity, tail, file.len() as u64)?;
        // The trailer was checked against the file's length.
        let (start, len) = (trailer.footer_offset as usize, trailer.footer_bytes as usize);
        Self::decode(identity, &file[start..start + len], &trailer, partitions_log2)
    }

    fn check(&self, end: u64, partitions_log2: u8) -> Result<(), DecodeCause> {
        let mut totals = PartTotals::default();
        let mut covered = HEADER_BYTES as u64;
        let partitions = 1u32 << partitions_log2.min(PARTITIONS_LOG2_MAX);
        for entry in &self.entries {
            totals.add(entry);
            covered += u64::from(entry.bytes);
            let inside = entry.offset.checked_add(entry.bytes.into()).is_some_and(|e| e <= end);
            if entry.offset < HEADER_BYTES as u64
                || (entry.bytes as usize) < BLOCK_HEADER_BYTES
                || entry.partition >= partitions
                || !inside
            {
                return Err(DecodeCause::Inconsistent("index entry outside the part"));
            }
        }
        let sorted = self
            .entries
            .windows(2)
            .all(|pair| (pair[0].partition, pair[0].offset) < (pair[1].partition, pair[1].offset));
        if !sorted || covered != end || totals != self.totals {
            return Err(DecodeCause::Inconsistent("index entries do not add up to the part"));
        }
        Ok(())
    }

    /// Bytes of the footer up to the end of its entries.
    pub(super) fn end_of_entries(&self) -> usize {
        FOOTER_HEAD_BYTES + self.entries.len() * ENTRY_BYTES
    }

    /// All blocks, by partition, then by offset.
    pub fn blocks(&self) -> &[BlockEntry] {
        &self.entries
    }

    /// The blocks of one partition, by offset.
    pub fn partition(&self, partition: u32) -> &[BlockEntry] {
        &self.entries[self.range(partition)]
    }

    fn range(&self, partition: u32) -> Range<usize> {
        let start = self.entries.partition_point(|entry| entry.partition < partition);
        let rest = &self.entries[start..];
        start..start + rest.partition_point(|entry| entry.partition == partition)
    }

    /// Sums over all blocks of the part.
    pub fn totals(&self) -> PartTotals {
        self.totals
    }

    /// The footer's checksum, which the manifest holds.
    pub fn crc(&self) -> u32 {
        self.crc
    }
}

/// Checks magic and checksum of footer or trailer; returns the checksum.
fn check_crc(
    identity: Identity,
    bytes: &[u8],
    offset: u64,
    magic: u32,
    what: &'static str,
) -> Result<u32, DecodeError> {
    let found = u32_at(bytes, 0);
    if found != magic {
        let cause = DecodeCause::BadMagic { found: u64::from(found) };
        return Err(DecodeError { what, offset, cause });
    }
    let (stored, computed) = (u32_at(bytes, 4), identity.checksum(offset, &bytes[CRC_FROM..]));
    if stored != computed {
        return Err(DecodeError {
            what,
            offset,
            cause: DecodeCause::Checksum { stored, computed },
        });
    }
    Ok(stored)
}
