//! Pages of paged tables: the header of a page on the disk, and the map that says where pages lie.
//!
//! A page is never overwritten in its place. Each writing goes to a free *slot* of the data file,
//! and the map leads from the number of a page to its slot. The checksum of a page is seeded with
//! the store and with the number of the page, not with the slot. So a page that lies in another
//! page's slot is noticed. A stale page is noticed by its gsn, whose low bits the map has.

mod map;

use crate::bytes::{put, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::{FileKind, Identity, StoreId};
use crate::node::{NODE_HEADER_BYTES, WORD_OWNER};
use crate::{Stamp, names};

pub use map::{
    MAP_BLOCK_BYTES, MAP_BLOCK_ENTRIES, MAP_HEADER_PLACES, MAP_PLACES, MapBlock, MapEntry,
    MapHeader, SLOTS_MAX, encode_map_block, map_block_offset, map_file_bytes,
};

const WHAT: &str = "page";

/// Smallest page of a paged table, in bytes.
pub const PAGE_BYTES_MIN: usize = 4 << 10;
/// Largest page of a paged table, in bytes.
pub const PAGE_BYTES_MAX: usize = 64 << 10;

/// Name of the data file, in [`names::PAGES_DIR`].
pub const PAGES_DATA: &str = "data";
/// Name of the map file, in [`names::PAGES_DIR`].
pub const PAGES_MAP: &str = "map";

/// Number of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u64);

impl PageId {
    /// The page with the list of old roots whose pages are still to be freed.
    pub const FREE_LIST: PageId = PageId(0);
    /// The first page that is neither the free list nor the root of a table.
    pub const FIRST: PageId = PageId(1 + (1 << 16));

    /// The root of a table, which never changes.
    pub const fn root_of(table: u16) -> PageId {
        PageId(1 + table as u64)
    }
}

impl std::fmt::Display for PageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The header's fields that the page store knows. The other fields belong to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHeader {
    /// Checksum of the page. Zero while the page is in memory.
    pub checksum: u32,
    /// Number of the page.
    pub page: PageId,
    /// The gsn of the last change.
    pub gsn: u64,
    /// The log of the last change.
    pub log: u8,
    /// Number of the table.
    pub table: u16,
    /// Generation of the table.
    pub generation: u32,
}

impl PageHeader {
    /// The fields of a page's first words.
    pub const fn unpack(words: &[u64; NODE_HEADER_BYTES / 8]) -> Self {
        Self {
            checksum: words[0] as u32,
            page: PageId(words[WORD_OWNER]),
            gsn: Stamp::from_bits(words[WORD_OWNER + 1]).gsn(),
            log: Stamp::from_bits(words[WORD_OWNER + 1]).log(),
            table: words[WORD_OWNER + 2] as u16,
            generation: (words[WORD_OWNER + 2] >> 32) as u32,
        }
    }

    /// The three words that belong to the owner of a node: page, stamp, table and generation.
    pub const fn owner_words(&self) -> [u64; 3] {
        let stamp = Stamp::new(self.gsn, self.log);
        [self.page.0, stamp.to_bits(), self.table as u64 | (self.generation as u64) << 32]
    }

    /// The fields of a page's bytes.
    ///
    /// # Errors
    /// Fewer bytes than a header has.
    pub fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Some(header) = bytes.first_chunk::<NODE_HEADER_BYTES>() else {
            let (needed, available) = (NODE_HEADER_BYTES as u64, bytes.len() as u64);
            return Err(fault(DecodeCause::Truncated { needed, available }));
        };
        let mut words = [0; NODE_HEADER_BYTES / 8];
        for (at, word) in words.iter_mut().enumerate() {
            *word = u64_at(header, at * 8);
        }
        Ok(Self::unpack(&words))
    }

    /// Checks that this is the page that the map's entry promises, with that checksum.
    ///
    /// # Errors
    /// Another checksum, another page, or another gsn.
    pub fn expect(&self, page: PageId, entry: MapEntry, computed: u32) -> Result<(), DecodeError> {
        if self.checksum != computed {
            let stored = self.checksum;
            return Err(fault(DecodeCause::Checksum { stored, computed }));
        }
        if self.page != page {
            let (found, expected) = (self.page.0, page.0);
            return Err(fault(DecodeCause::WrongFile { field: "page", found, expected }));
        }
        if !entry.has_gsn(self.gsn) {
            let (found, expected) = (self.gsn, u64::from(entry.gsn_low));
            return Err(fault(DecodeCause::StalePage { found, expected }));
        }
        Ok(())
    }
}

fn fault(cause: DecodeCause) -> DecodeError {
    DecodeError { what: WHAT, offset: 0, cause }
}

/// The checksum of a page, computed piece by piece.
#[derive(Clone, Copy, Debug)]
pub struct PageChecksum {
    crc: u32,
    /// Bytes of the checksum's own field that are still to be left out.
    skipped: usize,
}

impl PageChecksum {
    /// Begins the checksum of a page of a store.
    pub fn new(store: StoreId, page: PageId) -> Self {
        let identity = Identity::new(FileKind::PageData, store, &[page.0]);
        Self { crc: identity.checksum(0, &[]), skipped: 0 }
    }

    /// Adds the next bytes of the page. The page's first four bytes, the checksum itself, count as
    /// absent.
    pub fn add(&mut self, bytes: &[u8]) {
        let skipped = (4 - self.skipped).min(bytes.len());
        self.skipped += skipped;
        self.crc = crc32c::crc32c_append(self.crc, &bytes[skipped..]);
    }

    /// The checksum of all bytes so far.
    pub fn value(self) -> u32 {
        self.crc
    }
}

/// Writes the checksum into the copy of a page that goes to the disk.
///
/// # Panics
/// If there are fewer bytes than a header has.
pub fn seal_page(store: StoreId, page: PageId, bytes: &mut [u8]) {
    assert!(bytes.len() >= NODE_HEADER_BYTES, "a page has a header");
    let mut checksum = PageChecksum::new(store, page);
    checksum.add(bytes);
    put(bytes, 0, &checksum.value().to_le_bytes());
}

/// Checks the bytes of a slot: the page that the map's entry promises, whole and of that gsn.
///
/// # Errors
/// The defect, at offset 0 of the page. The caller adds file, slot and page.
pub fn check_page(
    store: StoreId,
    page: PageId,
    entry: MapEntry,
    bytes: &[u8],
) -> Result<PageHeader, DecodeError> {
    let header = PageHeader::read(bytes)?;
    let mut checksum = PageChecksum::new(store, page);
    checksum.add(bytes);
    header.expect(page, entry, checksum.value())?;
    debug_assert_eq!(u32_at(bytes, 0), header.checksum);
    Ok(header)
}

/// `pages/data`: the path of the data file.
pub fn pages_data_path() -> String {
    format!("{}/{PAGES_DATA}", names::PAGES_DIR)
}

/// `pages/map`: the path of the map file.
pub fn pages_map_path() -> String {
    format!("{}/{PAGES_MAP}", names::PAGES_DIR)
}
