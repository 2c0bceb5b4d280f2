//! The reader of blocks: checks, decompresses, iterates.

use super::block::{BLOCK_ALIGN, BLOCK_HEADER_BYTES, BLOCK_MAGIC, HEADER_CRC_FROM, at};
use super::codec::{Codec, Decompressor};
use super::entry::{ENTRY_HEAD_BYTES, EntryIter, FRAGMENT_BYTES, FRAGMENT_HEAD_BYTES};
use super::index::BlockEntry;
use crate::KEY_BYTES_MAX;
use crate::bytes::{u16_at, u32_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::Identity;

/// Longest payload of a block, uncompressed: one fragment with the longest key.
pub const BLOCK_BYTES_MAX: usize =
    ENTRY_HEAD_BYTES + FRAGMENT_HEAD_BYTES + KEY_BYTES_MAX + FRAGMENT_BYTES;

/// Longest stored payload: zeros may fill up a plain payload to the alignment.
const PAYLOAD_BYTES_MAX: usize = BLOCK_BYTES_MAX + BLOCK_ALIGN - 1;

const WHAT: &str = "checkpoint block";

/// The fields of a block header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockHeader {
    pub(super) payload_crc: u32,
    pub(super) payload_len: u32,
    pub(super) uncompressed_len: u32,
    pub(super) entries: u32,
    pub(super) tombstones: u32,
    pub(super) value_bytes: u32,
    pub(super) partition: u32,
    pub(super) codec: u8,
    pub(super) continuations: u16,
}

impl BlockHeader {
    /// The fields, unchecked. `bytes` hold at least a header.
    pub(super) fn fields(bytes: &[u8]) -> Self {
        BlockHeader {
            payload_crc: u32_at(bytes, at::PAYLOAD_CRC),
            payload_len: u32_at(bytes, at::PAYLOAD_LEN),
            uncompressed_len: u32_at(bytes, at::UNCOMPRESSED_LEN),
            entries: u32_at(bytes, at::ENTRIES),
            tombstones: u32_at(bytes, at::TOMBSTONES),
            value_bytes: u32_at(bytes, at::VALUE_BYTES),
            partition: u32_at(bytes, at::PARTITION),
            codec: bytes[at::CODEC],
            continuations: u16_at(bytes, at::CONTINUATIONS),
        }
    }

    fn check(&self) -> Result<(), DecodeCause> {
        for (field, value, max) in [
            ("block payload length", self.payload_len, PAYLOAD_BYTES_MAX),
            ("block uncompressed length", self.uncompressed_len, BLOCK_BYTES_MAX),
        ] {
            let (value, max) = (u64::from(value), max as u64);
            if value > max {
                return Err(DecodeCause::OutOfRange { field, value, min: 0, max });
            }
        }
        let special = u64::from(self.tombstones) + u64::from(self.continuations);
        let smallest = u64::from(self.entries) * ENTRY_HEAD_BYTES as u64;
        if special > u64::from(self.entries) || smallest > u64::from(self.uncompressed_len) {
            return Err(DecodeCause::Inconsistent("block entry count"));
        }
        let padding = self.payload_len.wrapping_sub(self.uncompressed_len);
        if Codec::from_code(self.codec)? == Codec::None && padding >= BLOCK_ALIGN as u32 {
            return Err(DecodeCause::Inconsistent("plain payload with two lengths"));
        }
        Ok(())
    }
}

/// Checks and decompresses blocks of one part, reusing its working memory. One per thread.
pub struct BlockReader {
    identity: Identity,
    decompressor: Decompressor,
}

impl std::fmt::Debug for BlockReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockReader").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl BlockReader {
    /// A reader of the part with that identity ([`PartHeader::identity`](super::PartHeader::identity)).
    pub fn new(identity: Identity) -> Self {
        BlockReader { identity, decompressor: Decompressor::default() }
    }

    /// Switches to another part.
    pub fn set_identity(&mut self, identity: Identity) {
        self.identity = identity;
    }

    /// Length in bytes of the block at the start of `bytes`, which begin at `offset` and hold
    /// at least its header. For walking a part whose index is lost.
    ///
    /// # Errors
    /// There is no intact block header.
    pub fn block_len(&self, bytes: &[u8], offset: u64) -> Result<usize, DecodeError> {
        let header = self.header(bytes, offset)?;
        Ok(BLOCK_HEADER_BYTES + header.payload_len as usize)
    }

    /// Opens the block at the start of `bytes`, which begin at `offset` of the part.
    ///
    /// # Errors
    /// Anything but an intact block of this part at this place.
    pub fn open<'a>(&'a mut self, bytes: &'a [u8], offset: u64) -> Result<Block<'a>, DecodeError> {
        let header = self.header(bytes, offset)?;
        let fail = |cause| DecodeError { what: WHAT, offset, cause };
        let end = BLOCK_HEADER_BYTES + header.payload_len as usize;
        let Some(stored) = bytes.get(BLOCK_HEADER_BYTES..end) else {
            let (needed, available) = (end as u64, bytes.len() as u64);
            return Err(fail(DecodeCause::Truncated { needed, available }));
        };
        let (expected, computed) = (header.payload_crc, crc32c::crc32c(stored));
        if expected != computed {
            return Err(fail(DecodeCause::Checksum { stored: expected, computed }));
        }
        let codec = Codec::from_code(header.codec).map_err(fail)?;
        if codec == Codec::None {
            let (payload, padding) = stored.split_at(header.uncompressed_len as usize);
            if padding.iter().any(|&byte| byte != 0) {
                return Err(fail(DecodeCause::Inconsistent("padding that is not zero")));
            }
            return Ok(Block { header, payload });
        }
        let payload = self
            .decompressor
            .decompress(codec, stored, header.uncompressed_len as usize)
            .map_err(fail)?;
        Ok(Block { header, payload })
    }

    /// Opens a block that the index names; `bytes` begin at the entry's offset.
    ///
    /// # Errors
    /// As [`open`](Self::open), or the block differs from the one that the index names.
    pub fn open_indexed<'a>(
        &'a mut self,
        entry: &BlockEntry,
        bytes: &'a [u8],
    ) -> Result<Block<'a>, DecodeError> {
        if bytes.len() >= BLOCK_HEADER_BYTES {
            let computed = u32_at(bytes, at::HEADER_CRC);
            if u32_at(bytes, at::MAGIC) == BLOCK_MAGIC && computed != entry.header_crc {
                let cause = DecodeCause::Checksum { stored: entry.header_crc, computed };
                return Err(DecodeError { what: WHAT, offset: entry.offset, cause });
            }
        }
        self.open(bytes, entry.offset)
    }

    fn header(&self, bytes: &[u8], offset: u64) -> Result<BlockHeader, DecodeError> {
        let fail = |cause| DecodeError { what: WHAT, offset, cause };
        let Some(header) = bytes.first_chunk::<BLOCK_HEADER_BYTES>() else {
            let (needed, available) = (BLOCK_HEADER_BYTES as u64, bytes.len() as u64);
            return Err(fail(DecodeCause::Truncated { needed, available }));
        };
        let magic = u32_at(header, at::MAGIC);
        if magic != BLOCK_MAGIC {
            return Err(fail(DecodeCause::BadMagic { found: u64::from(magic) }));
        }
        let stored = u32_at(header, at::HEADER_CRC);
        let computed = self.identity.checksum(offset, &header[HEADER_CRC_FROM..]);
        if stored != computed {
            return Err(fail(DecodeCause::Checksum { stored, computed }));
        }
        let header = BlockHeader::fields(header);
        header.check().map_err(fail)?;
        Ok(header)
    }
}

/// An intact block, in plain form. Borrows from the part's bytes or the reader's memory.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    header: BlockHeader,
    payload: &'a [u8],
}

impl<'a> Block<'a> {
    /// The partition to which all keys of the block belong.
    pub fn partition(&self) -> u32 {
        self.header.partition
    }

    /// Number of entries, each fragment counted.
    pub fn entry_count(&self) -> u32 {
        self.header.entries
    }

    /// Length in bytes in the file, header included.
    pub fn stored_bytes(&self) -> usize {
        BLOCK_HEADER_BYTES + self.header.payload_len as usize
    }

    /// The block's entries. Offsets in errors of entries count from the start of the plain payload.
    pub fn entries(&self) -> EntryIter<'a> {
        EntryIter::new(self.payload, self.header.entries)
    }
}
