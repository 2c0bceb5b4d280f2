//! The map file: a header and blocks of entries, each in two places.
//!
//! A *round* writes the header and the changed blocks, all with the round's number, into the place
//! that does not count. The round counts once somebody names its number. Then the same bytes go to
//! the other place, too. So of each block one whole copy exists at any time, and after a round that
//! counts there are two. The header says how many blocks the round has written, so that a missing
//! one is noticed even if an older copy is whole.

use crate::bytes::{put, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::{FileKind, HEADER_BYTES, Identity, StoreId, decode_header, encode_header};

use super::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};

const WHAT: &str = "page map header";
const WHAT_BLOCK: &str = "page map block";
const PARAMS_BYTES: usize = 48;
const BLOCK_MAGIC: [u8; 4] = *b"SPPM";
const ENTRIES_AT: usize = 32;

/// Bytes of a block.
pub const MAP_BLOCK_BYTES: usize = 4096;
/// Entries of a block.
pub const MAP_BLOCK_ENTRIES: usize = (MAP_BLOCK_BYTES - ENTRIES_AT) / 8;
/// Number of places of each block.
pub const MAP_PLACES: u64 = 2;
/// Offsets of the header's places.
pub const MAP_HEADER_PLACES: [u64; MAP_PLACES as usize] = [0, HEADER_BYTES as u64];
/// Most slots of a data file.
pub const SLOTS_MAX: u64 = (1 << 40) - 1;

/// Bits of an entry that hold a part of the gsn.
const GSN_BITS: u32 = 24;
const GSN_MASK: u64 = (1 << GSN_BITS) - 1;

/// The slot of a page, and the low 24 bits of the gsn that the page has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// Slot, below [`SLOTS_MAX`].
    pub slot: u64,
    /// Low bits of the gsn.
    pub gsn_low: u32,
}

impl MapEntry {
    /// The entry of a page that was placed with this gsn.
    ///
    /// # Panics
    /// If there is no such slot.
    pub const fn new(slot: u64, gsn: u64) -> Self {
        assert!(slot < SLOTS_MAX, "a slot has 40 bits");
        Self { slot, gsn_low: (gsn & GSN_MASK) as u32 }
    }

    /// The entry in a word. `None` for zero: the page has no slot.
    pub const fn unpack(word: u64) -> Option<Self> {
        match word >> GSN_BITS {
            0 => None,
            slot => Some(Self { slot: slot - 1, gsn_low: (word & GSN_MASK) as u32 }),
        }
    }

    /// The word, which is not zero.
    pub const fn pack(self) -> u64 {
        (self.slot + 1) << GSN_BITS | self.gsn_low as u64
    }

    /// Whether a page of this gsn may be the placed one.
    pub const fn has_gsn(self, gsn: u64) -> bool {
        gsn & GSN_MASK == self.gsn_low as u64
    }
}

/// The header of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapHeader {
    /// The store.
    pub store: StoreId,
    /// Wall clock at the round, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Number of the round.
    pub number: u64,
    /// Number of blocks of the map.
    pub blocks: u64,
    /// Number of blocks that the round has written.
    pub written: u64,
    /// Slots of the data file: no entry has a greater one.
    pub slots: u64,
    /// Bytes of a page.
    pub page_bytes: u32,
}

impl MapHeader {
    /// The header block.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut params = [0; PARAMS_BYTES];
        for (at, number) in [self.number, self.blocks, self.written, self.slots].iter().enumerate()
        {
            put(&mut params, at * 8, &number.to_le_bytes());
        }
        put(&mut params, 32, &self.page_bytes.to_le_bytes());
        encode_header(FileKind::PageMap, self.store, self.created_ms, &params)
    }

    /// Decodes a header block.
    ///
    /// # Errors
    /// Anything but an intact header of this format version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let header = decode_header(bytes, FileKind::PageMap, WHAT)?;
        let params = header.params;
        let decoded = Self {
            store: header.store,
            created_ms: header.created_ms,
            number: u64_at(params, 0),
            blocks: u64_at(params, 8),
            written: u64_at(params, 16),
            slots: u64_at(params, 24),
            page_bytes: u32_at(params, 32),
        };
        let fail = |cause| Err(DecodeError { what: WHAT, offset: 0, cause });
        let blocks_max = (SLOTS_MAX / MAP_BLOCK_ENTRIES as u64) + 1;
        let limits = [
            ("number of map blocks", decoded.blocks, 0, blocks_max),
            ("written map blocks", decoded.written, 0, decoded.blocks),
            ("slots", decoded.slots, 0, SLOTS_MAX),
            (
                "page bytes",
                u64::from(decoded.page_bytes),
                PAGE_BYTES_MIN as u64,
                PAGE_BYTES_MAX as u64,
            ),
        ];
        for (field, value, min, max) in limits {
            if !(min..=max).contains(&value) {
                return fail(DecodeCause::OutOfRange { field, value, min, max });
            }
        }
        if !decoded.page_bytes.is_power_of_two() {
            return fail(DecodeCause::Inconsistent("a page is no power of two"));
        }
        Ok(decoded)
    }
}

/// Offset of a block in one of its places.
pub const fn map_block_offset(block: u64, place: u64) -> u64 {
    let header = MAP_PLACES * HEADER_BYTES as u64;
    header + (block * MAP_PLACES + place) * MAP_BLOCK_BYTES as u64
}

/// Bytes of a map file with so many blocks.
pub const fn map_file_bytes(blocks: u64) -> u64 {
    map_block_offset(blocks, 0)
}

fn identity(store: StoreId, block: u64, place: u64) -> Identity {
    Identity::new(FileKind::PageMap, store, &[block, place])
}

/// A block for one of its places, as the round of that number writes it. The entries are words of
/// [`MapEntry`], zero for pages without a slot.
pub fn encode_map_block(
    store: StoreId,
    (block, place): (u64, u64),
    number: u64,
    entries: &[u64; MAP_BLOCK_ENTRIES],
) -> [u8; MAP_BLOCK_BYTES] {
    let mut bytes = [0; MAP_BLOCK_BYTES];
    put(&mut bytes, 0, &BLOCK_MAGIC);
    put(&mut bytes, 8, &block.to_le_bytes());
    put(&mut bytes, 16, &number.to_le_bytes());
    for (at, entry) in entries.iter().enumerate() {
        put(&mut bytes, ENTRIES_AT + at * 8, &entry.to_le_bytes());
    }
    let offset = map_block_offset(block, place);
    let checksum = identity(store, block, place).checksum(offset, &bytes[8..]);
    put(&mut bytes, 4, &checksum.to_le_bytes());
    bytes
}

/// A block that was verified.
#[derive(Clone, Copy, Debug)]
pub struct MapBlock<'a> {
    /// Number of the round that wrote the block.
    pub number: u64,
    entries: &'a [[u8; 8]],
}

impl<'a> MapBlock<'a> {
    /// Verifies the copy of a block in one of its places.
    ///
    /// # Errors
    /// Anything but an intact block of that number in that place.
    pub fn decode(
        store: StoreId,
        (block, place): (u64, u64),
        bytes: &'a [u8],
    ) -> Result<Self, DecodeError> {
        let offset = map_block_offset(block, place);
        let fail = |cause| Err(DecodeError { what: WHAT_BLOCK, offset, cause });
        let Some(bytes) = bytes.first_chunk::<MAP_BLOCK_BYTES>() else {
            let (needed, available) = (MAP_BLOCK_BYTES as u64, bytes.len() as u64);
            return fail(DecodeCause::Truncated { needed, available });
        };
        if bytes[..4] != BLOCK_MAGIC {
            return fail(DecodeCause::BadMagic { found: u64::from(u32_at(bytes, 0)) });
        }
        let stored = u32_at(bytes, 4);
        let computed = identity(store, block, place).checksum(offset, &bytes[8..]);
        if stored != computed {
            return fail(DecodeCause::Checksum { stored, computed });
        }
        let found = u64_at(bytes, 8);
        if found != block {
            let cause = DecodeCause::WrongFile { field: "map block", found, expected: block };
            return fail(cause);
        }
        Ok(Self { number: u64_at(bytes, 16), entries: bytes[ENTRIES_AT..].as_chunks().0 })
    }

    /// The words of the entries, in the order of the pages.
    pub fn entries(&self) -> impl Iterator<Item = u64> + 'a {
        self.entries.iter().map(|bytes| u64::from_le_bytes(*bytes))
    }
}
