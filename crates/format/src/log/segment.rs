//! The header block of a log segment.

use crate::bytes::{put, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::{FileKind, HEADER_BYTES, Identity, StoreId, decode_header, encode_header};
use crate::{GSN_MAX, LOG_NONE};

const WHAT: &str = "log segment header";
const PARAMS_BYTES: usize = 32;

/// Identity of a log segment, written once, before the segment's first batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The store.
    pub store: StoreId,
    /// Time of creation in milliseconds since the Unix epoch, for information only.
    pub created_ms: u64,
    /// The incarnation (opening of the store) that wrote the segment.
    pub incarnation: u32,
    /// Number of the log, `0..=254`.
    pub log: u8,
    /// Lower bound of the segment's gsns, unique per incarnation and log.
    pub first_gsn: u64,
    /// Number of the first batch. Batches are numbered per incarnation and log.
    pub first_batch: u64,
    /// Bytes of the file, all allocated before the file got its name. 0 means unknown.
    pub file_bytes: u64,
}

impl SegmentHeader {
    /// The header block.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut params = [0; PARAMS_BYTES];
        put(&mut params, 0, &self.incarnation.to_le_bytes());
        params[4] = self.log;
        put(&mut params, 8, &self.first_gsn.to_le_bytes());
        put(&mut params, 16, &self.first_batch.to_le_bytes());
        put(&mut params, 24, &self.file_bytes.to_le_bytes());
        encode_header(FileKind::LogSegment, self.store, self.created_ms, &params)
    }

    /// Decodes a header block: the first [`HEADER_BYTES`] of a segment.
    ///
    /// # Errors
    /// Anything but an intact header of this format version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let header = decode_header(bytes, FileKind::LogSegment, WHAT)?;
        let segment = SegmentHeader {
            store: header.store,
            created_ms: header.created_ms,
            incarnation: u32_at(header.params, 0),
            log: header.params[4],
            first_gsn: u64_at(header.params, 8),
            first_batch: u64_at(header.params, 16),
            file_bytes: u64_at(header.params, 24),
        };
        let range = |field, value, max| {
            let cause = DecodeCause::OutOfRange { field, value, min: 0, max };
            Err(DecodeError { what: WHAT, offset: 0, cause })
        };
        if segment.log == LOG_NONE {
            return range("log", u64::from(segment.log), u64::from(LOG_NONE - 1));
        }
        if segment.first_gsn > GSN_MAX {
            return range("first gsn", segment.first_gsn, GSN_MAX);
        }
        Ok(segment)
    }

    /// Checks that the segment belongs to its place in the data directory.
    ///
    /// # Errors
    /// [`DecodeCause::WrongStore`] or [`DecodeCause::WrongFile`].
    pub fn expect(
        &self,
        store: StoreId,
        incarnation: u32,
        log: u8,
        first_gsn: u64,
    ) -> Result<(), DecodeError> {
        let fail = |cause| Err(DecodeError { what: WHAT, offset: 0, cause });
        if self.store != store {
            return fail(DecodeCause::WrongStore { found: self.store, expected: store });
        }
        let numbers = [
            ("incarnation", u64::from(self.incarnation), u64::from(incarnation)),
            ("log", u64::from(self.log), u64::from(log)),
            ("first gsn", self.first_gsn, first_gsn),
        ];
        for (field, found, expected) in numbers {
            if found != expected {
                return fail(DecodeCause::WrongFile { field, found, expected });
            }
        }
        Ok(())
    }

    /// The seed of the checksums of the segment's batches.
    pub fn identity(&self) -> Identity {
        let numbers =
            [u64::from(self.incarnation), u64::from(self.log), self.first_gsn, self.first_batch];
        Identity::new(FileKind::LogSegment, self.store, &numbers)
    }
}
