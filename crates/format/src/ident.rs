//! The identity of a file: store id, file header, and checksums seeded with the identity.
//!
//! A plain CRC accepts an intact block that lies in the wrong place. Here each checksum starts from
//! a CRC of the file's identity and of the block's offset. The identity is kind, store id, and the
//! numbers that tell the file from others of its kind. So a block that was swapped, left over from
//! an older use of the file, or written elsewhere does not match.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bytes::{array, put, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::{FORMAT_VERSION, SIREN_FORMAT_VERSION, STATE_FORMAT_VERSION};

/// Bytes of a file header: one block, so that the rest of the file stays aligned for direct I/O.
pub const HEADER_BYTES: usize = 4096;

/// First eight bytes of every binary file.
const MAGIC: [u8; 8] = *b"STILLPNT";
/// Offset of the kind's parameters.
pub(crate) const PARAMS_AT: usize = 64;
/// Offset of the header's own checksum, in this and every later version.
const CRC_AT: usize = HEADER_BYTES - 4;

/// Sixteen random bytes that name a store. Every file of the store carries these bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub [u8; 16]);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreId({self})")
    }
}

/// A text that is not a store id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a store id is 32 lower-case hexadecimal digits")]
pub struct StoreIdError;

impl FromStr for StoreId {
    type Err = StoreIdError;

    fn from_str(text: &str) -> Result<Self, StoreIdError> {
        let digits = text.as_bytes();
        let mut id = [0; 16];
        if digits.len() != 32 {
            return Err(StoreIdError);
        }
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
        }
        Ok(StoreId(id))
    }
}

fn hex_digit(digit: u8) -> Result<u8, StoreIdError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(StoreIdError),
    }
}

impl Serialize for StoreId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StoreId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The kind of a binary file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FileKind {
    /// A segment of a log.
    LogSegment = 1,
    /// A part of a checkpoint.
    CheckpointPart = 2,
    /// The schema of a state's arrays.
    StateSchema = 3,
    /// An image of the arrays of a state.
    StateImage = 4,
    /// A segment of the log of actions of a state.
    StateActions = 5,
    /// The pages of paged tables. The file has no header; each page has a checksum of its own.
    PageData = 6,
    /// The map of the places of pages.
    PageMap = 7,
    /// The pages of a SIREN store.
    SirenPages = 16,
    /// A segment of the log of a SIREN store.
    SirenLog = 17,
}

impl FileKind {
    /// The version that this build writes and reads.
    fn version(self) -> u32 {
        match self {
            FileKind::LogSegment
            | FileKind::CheckpointPart
            | FileKind::PageData
            | FileKind::PageMap => FORMAT_VERSION,
            FileKind::StateSchema | FileKind::StateImage | FileKind::StateActions => {
                STATE_FORMAT_VERSION
            }
            FileKind::SirenPages | FileKind::SirenLog => SIREN_FORMAT_VERSION,
        }
    }
}

/// The checksum seed of one file. Cheap to copy; made once per file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u32);

impl Identity {
    /// The identity of no file.
    pub(crate) const NONE: Identity = Identity(0);

    /// The identity of a file: its kind, its store, and the numbers that tell it
    /// from other files of that kind in that store.
    pub fn new(kind: FileKind, store: StoreId, numbers: &[u64]) -> Self {
        let mut crc = crc32c::crc32c(&[kind as u8]);
        crc = crc32c::crc32c_append(crc, &store.0);
        for number in numbers {
            crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
        }
        Identity(crc)
    }

    /// CRC32C over the identity, the offset in the file, and the bytes.
    #[inline]
    pub fn checksum(self, offset: u64, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c_append(self.0, &offset.to_le_bytes()), bytes)
    }
}

/// The common fields of all file headers.
pub(crate) struct Header<'a> {
    pub(crate) store: StoreId,
    pub(crate) created_ms: u64,
    /// The bytes from [`PARAMS_AT`] to the checksum.
    pub(crate) params: &'a [u8],
}

/// A header block. `params` go to [`PARAMS_AT`]; the rest is zero.
pub(crate) fn encode_header(
    kind: FileKind,
    store: StoreId,
    created_ms: u64,
    params: &[u8],
) -> [u8; HEADER_BYTES] {
    let mut block = [0; HEADER_BYTES];
    put(&mut block, 0, &MAGIC);
    put(&mut block, 8, &kind.version().to_le_bytes());
    block[12] = kind as u8;
    put(&mut block, 16, &store.0);
    put(&mut block, 32, &created_ms.to_le_bytes());
    assert!(params.len() <= CRC_AT - PARAMS_AT, "header parameters overflow the block");
    put(&mut block, PARAMS_AT, params);
    let crc = crc32c::crc32c(&block[..CRC_AT]);
    put(&mut block, CRC_AT, &crc.to_le_bytes());
    block
}

/// Checks a header block. The checksum is tested before the version, so that a
/// flipped bit in the version counts as damage and not as a newer release.
pub(crate) fn decode_header<'a>(
    bytes: &'a [u8],
    kind: FileKind,
    what: &'static str,
) -> Result<Header<'a>, DecodeError> {
    let fail = |cause| DecodeError { what, offset: 0, cause };
    let Some(block) = bytes.first_chunk::<HEADER_BYTES>() else {
        let (needed, available) = (HEADER_BYTES as u64, bytes.len() as u64);
        return Err(fail(DecodeCause::Truncated { needed, available }));
    };
    if block[..8] != MAGIC {
        return Err(fail(DecodeCause::BadMagic { found: u64_at(block, 0) }));
    }
    let (stored, computed) = (u32_at(block, CRC_AT), crc32c::crc32c(&block[..CRC_AT]));
    if stored != computed {
        return Err(fail(DecodeCause::Checksum { stored, computed }));
    }
    let version = u32_at(block, 8);
    if version != kind.version() {
        let reads = kind.version();
        return Err(fail(DecodeCause::UnknownVersion { found: version, reads }));
    }
    if block[12] != kind as u8 {
        let (found, expected) = (u64::from(block[12]), u64::from(kind as u8));
        return Err(fail(DecodeCause::WrongFile { field: "file kind", found, expected }));
    }
    Ok(Header {
        store: StoreId(array(block, 16)),
        created_ms: u64_at(block, 32),
        params: &block[PARAMS_AT..CRC_AT],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: StoreId = StoreId(*b"0123456789abcdef");

    #[test]
    fn store_ids_print_and_parse() {
        let text = STORE.to_string();
        assert_eq!(text, "30313233343536373839616263646566");
        assert_eq!(text.parse(), Ok(STORE));
        for bad in
            ["", "30", "3031323334353637383961626364656g", "3031323334353637383961626364656A"]
        {
            assert_eq!(bad.parse::<StoreId>(), Err(StoreIdError), "{bad}");
        }
    }

    #[test]
    fn identity_separates_kind_store_number_and_offset() {
        let base = Identity::new(FileKind::LogSegment, STORE, &[1, 2]).checksum(4096, b"block");
        let others = [
            Identity::new(FileKind::CheckpointPart, STORE, &[1, 2]).checksum(4096, b"block"),
            Identity::new(FileKind::LogSegment, StoreId([7; 16]), &[1, 2]).checksum(4096, b"block"),
            Identity::new(FileKind::LogSegment, STORE, &[2, 1]).checksum(4096, b"block"),
            Identity::new(FileKind::LogSegment, STORE, &[1, 2]).checksum(8192, b"block"),
            Identity::new(FileKind::LogSegment, STORE, &[1, 2]).checksum(4096, b"blocj"),
        ];
        for other in others {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn headers_say_what_is_wrong() {
        let block = encode_header(FileKind::LogSegment, STORE, 99, &[1, 2, 3]);
        let header = decode_header(&block, FileKind::LogSegment, "h").expect("own header");
        assert_eq!(
            (header.store, header.created_ms, &header.params[..4]),
            (STORE, 99, &[1, 2, 3, 0][..])
        );

        let cause = |bytes: &[u8], kind| decode_header(bytes, kind, "h").err().map(|e| e.cause);
        assert!(matches!(
            cause(&block[..100], FileKind::LogSegment),
            Some(DecodeCause::Truncated { needed: 4096, available: 100 })
        ));
        assert!(matches!(
            cause(&block, FileKind::CheckpointPart),
            Some(DecodeCause::WrongFile { field: "file kind", found: 1, expected: 2 })
        ));
        let mut newer = block;
        newer[8] = 9;
        assert!(matches!(cause(&newer, FileKind::LogSegment), Some(DecodeCause::Checksum { .. })));
        let crc = crc32c::crc32c(&newer[..CRC_AT]);
        put(&mut newer, CRC_AT, &crc.to_le_bytes());
        let error = cause(&newer, FileKind::LogSegment).expect("unknown version");
        assert_eq!(error, DecodeCause::UnknownVersion { found: 9, reads: 2 });
        assert!(error.to_string().contains("this build reads 2"), "{error}");
        assert!(matches!(
            cause(&[0; HEADER_BYTES], FileKind::LogSegment),
            Some(DecodeCause::BadMagic { found: 0 })
        ));
    }
}
