//! The file header of the pages, and the two headers of checkpoints behind it.

use super::directory::Extent;
use crate::bytes::{put, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::{FileKind, HEADER_BYTES, Identity, StoreId, decode_header, encode_header};

const WHAT: &str = "header of a SIREN store";
const WHAT_CHECKPOINT: &str = "checkpoint header of a SIREN store";
const MAGIC: u32 = u32::from_le_bytes(*b"SPSH");
/// Offset from which the checksum of a checkpoint header counts.
const CRC_FROM: usize = 8;

/// Smallest disk page, in bytes.
pub const PAGE_BYTES_MIN: u32 = 4096;
/// Largest disk page, in bytes.
pub const PAGE_BYTES_MAX: u32 = 1 << 20;
/// Bytes of a checkpoint header.
pub const CHECKPOINT_HEADER_BYTES: usize = 4096;
/// Number of checkpoint headers.
pub const CHECKPOINT_HEADERS: u64 = 2;

/// The file header of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagesHeader {
    /// The store.
    pub store: StoreId,
    /// Wall clock at creation, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Bytes of a disk page: a multiple of 4096.
    pub page_bytes: u32,
}

impl PagesHeader {
    /// The header block.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        encode_header(
            FileKind::SirenPages,
            self.store,
            self.created_ms,
            &self.page_bytes.to_le_bytes(),
        )
    }

    /// Decodes a header block.
    ///
    /// # Errors
    /// Anything but an intact header of this format version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let header = decode_header(bytes, FileKind::SirenPages, WHAT)?;
        let page_bytes = u32_at(header.params, 0);
        let (min, max) = (PAGE_BYTES_MIN, PAGE_BYTES_MAX);
        if !(min..=max).contains(&page_bytes) || !page_bytes.is_multiple_of(min) {
            let (value, min, max) = (u64::from(page_bytes), u64::from(min), u64::from(max));
            let cause = DecodeCause::OutOfRange { field: "bytes of a page", value, min, max };
            return Err(DecodeError { what: WHAT, offset: 0, cause });
        }
        Ok(Self { store: header.store, created_ms: header.created_ms, page_bytes })
    }

    /// The seed of the checksums of this file.
    pub fn identity(&self) -> Identity {
        let numbers = [u64::from(self.page_bytes), self.created_ms];
        Identity::new(FileKind::SirenPages, self.store, &numbers)
    }

    /// Offset of a checkpoint header in the file, by its number: 0 or 1.
    pub fn checkpoint_header_at(number: u64) -> u64 {
        HEADER_BYTES as u64 + (number % CHECKPOINT_HEADERS) * CHECKPOINT_HEADER_BYTES as u64
    }

    /// The first disk page. The headers take the place of those before.
    pub fn first_page(&self) -> u32 {
        let headers = HEADER_BYTES as u64 + CHECKPOINT_HEADERS * CHECKPOINT_HEADER_BYTES as u64;
        headers.div_ceil(u64::from(self.page_bytes)) as u32
    }

    /// Offset of a disk page in the file.
    pub fn page_at(&self, page: u32) -> u64 {
        u64::from(page) * u64::from(self.page_bytes)
    }

    /// Disk pages that `bytes` take.
    pub fn pages_for(&self, bytes: usize) -> u32 {
        (bytes as u64).div_ceil(u64::from(self.page_bytes)) as u32
    }
}

/// The header of a checkpoint. Once it is durable the checkpoint is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointHeader {
    /// Level: the checkpoint holds all operations of this level and of those below.
    pub level: u64,
    /// A number above those of all transactions in the checkpoint.
    pub next_transaction: u64,
    /// The first segment of the log that may hold operations of higher levels.
    pub first_segment: u64,
    /// The opening of the store that took the checkpoint. A later one has aborted the transactions
    /// that the checkpoint holds as open.
    pub incarnation: u64,
    /// Whether that opening had a log. Then the first segment exists.
    pub is_logged: bool,
    /// Whether the pages are fuzzy, so that nothing recovers them.
    pub is_fuzzy: bool,
    /// The directory.
    pub directory: Extent,
    /// Bytes of the directory.
    pub directory_bytes: u64,
}

impl CheckpointHeader {
    /// The bytes of header 0 or 1. A checkpoint takes the one that the newest checkpoint has not.
    pub fn encode(&self, identity: Identity, number: u64) -> [u8; CHECKPOINT_HEADER_BYTES] {
        let mut block = [0; CHECKPOINT_HEADER_BYTES];
        put(&mut block, 0, &MAGIC.to_le_bytes());
        put(&mut block, 8, &self.level.to_le_bytes());
        put(&mut block, 16, &self.next_transaction.to_le_bytes());
        put(&mut block, 24, &self.first_segment.to_le_bytes());
        put(&mut block, 32, &self.directory.first.to_le_bytes());
        put(&mut block, 36, &self.directory.pages.to_le_bytes());
        put(&mut block, 40, &self.directory_bytes.to_le_bytes());
        put(&mut block, 48, &self.incarnation.to_le_bytes());
        put(&mut block, 56, &u64::from(self.is_logged).to_le_bytes());
        put(&mut block, 64, &u64::from(self.is_fuzzy).to_le_bytes());
        let offset = PagesHeader::checkpoint_header_at(number);
        let crc = identity.checksum(offset, &block[CRC_FROM..]);
        put(&mut block, 4, &crc.to_le_bytes());
        block
    }

    /// Decodes the bytes of header 0 or 1.
    ///
    /// # Errors
    /// Anything but an intact header of that place.
    pub fn decode(identity: Identity, bytes: &[u8], number: u64) -> Result<Self, DecodeError> {
        let offset = PagesHeader::checkpoint_header_at(number);
        let fail = |cause| DecodeError { what: WHAT_CHECKPOINT, offset, cause };
        let Some(block) = bytes.first_chunk::<CHECKPOINT_HEADER_BYTES>() else {
            let (needed, available) = (CHECKPOINT_HEADER_BYTES as u64, bytes.len() as u64);
            return Err(fail(DecodeCause::Truncated { needed, available }));
        };
        if u32_at(block, 0) != MAGIC {
            return Err(fail(DecodeCause::BadMagic { found: u64_at(block, 0) }));
        }
        let (stored, computed) = (u32_at(block, 4), identity.checksum(offset, &block[CRC_FROM..]));
        if stored != computed {
            return Err(fail(DecodeCause::Checksum { stored, computed }));
        }
        let directory = Extent { first: u32_at(block, 32), pages: u32_at(block, 36) };
        if !directory.is_possible() {
            return Err(fail(DecodeCause::Inconsistent("an impossible extent of the directory")));
        }
        Ok(Self {
            level: u64_at(block, 8),
            next_transaction: u64_at(block, 16),
            first_segment: u64_at(block, 24),
            directory,
            directory_bytes: u64_at(block, 40),
            incarnation: u64_at(block, 48),
            is_logged: u64_at(block, 56) != 0,
            is_fuzzy: u64_at(block, 64) != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: PagesHeader =
        PagesHeader { store: StoreId([3; 16]), created_ms: 5, page_bytes: 8192 };

    #[test]
    fn headers_come_back_and_damage_is_named() {
        assert_eq!(PagesHeader::decode(&FILE.encode()), Ok(FILE));
        assert_eq!((FILE.first_page(), FILE.page_at(3), FILE.pages_for(8193)), (2, 24576, 2));
        let odd = PagesHeader { page_bytes: 5000, ..FILE };
        assert!(PagesHeader::decode(&odd.encode()).is_err());
        let header = CheckpointHeader {
            level: 7,
            next_transaction: 99,
            first_segment: 4,
            incarnation: 3,
            is_logged: true,
            is_fuzzy: false,
            directory: Extent { first: 2, pages: 1 },
            directory_bytes: 100,
        };
        let identity = FILE.identity();
        let mut block = header.encode(identity, 1);
        assert_eq!(CheckpointHeader::decode(identity, &block, 1), Ok(header));
        let elsewhere = CheckpointHeader::decode(identity, &block, 0);
        assert!(matches!(elsewhere.map_err(|e| e.cause), Err(DecodeCause::Checksum { .. })));
        for at in [0, 9, 60, 4095] {
            block[at] ^= 1;
            assert!(CheckpointHeader::decode(identity, &block, 1).is_err(), "byte {at}");
            block[at] ^= 1;
        }
        assert!(CheckpointHeader::decode(identity, &block[..100], 1).is_err());
    }
}
