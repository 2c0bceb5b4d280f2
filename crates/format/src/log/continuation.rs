//! The continuation mark at the end of a segment that the log has left. The mark names the next
//! segment.
//!
//! The mark lies behind the last batch. The mark is flushed after name and header of the next
//! segment are durable, and before any reply that depends on the next segment. So recovery notices
//! a segment that was lost as a whole.

use super::batch::{BATCH_ALIGN, BATCH_MAGIC};
use super::read::EndCause;
use super::segment::SegmentHeader;
use crate::GSN_MAX;
use crate::bytes::{put, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::{HEADER_BYTES, Identity};

/// Bytes of a continuation mark. A journal leaves that much room at the end of a segment.
pub const CONTINUATION_BYTES: usize = 4096;

/// First four bytes of the mark: "SPLC".
const MAGIC: u32 = u32::from_le_bytes(*b"SPLC");
const WHAT: &str = "continuation mark";

/// Byte offsets of the mark's fields; the rest is zero.
mod at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const CRC: usize = 4;
    pub(super) const FIRST_BATCH: usize = 8;
    pub(super) const FIRST_GSN: usize = 16;
}

/// The checksum covers the mark from here.
const CRC_FROM: usize = 8;
const _: () = assert!(MAGIC != BATCH_MAGIC);

/// The begin of a log's next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// Number of the next segment's first batch.
    pub first_batch: u64,
    /// The next segment's first gsn.
    pub first_gsn: u64,
}

impl Continuation {
    /// Encodes the mark for `offset` of `segment`.
    ///
    /// # Panics
    /// If the mark cannot lie at that offset. Only an error of the journal, and no input, can cause
    /// this panic.
    pub fn encode(&self, segment: &SegmentHeader, offset: u64) -> [u8; CONTINUATION_BYTES] {
        assert!(offset.is_multiple_of(BATCH_ALIGN as u64), "mark at odd offset");
        assert!(offset >= HEADER_BYTES as u64, "mark over segment header");
        assert!(self.first_batch >= segment.first_batch, "the next segment comes before");
        assert!((1..=GSN_MAX).contains(&self.first_gsn), "an impossible gsn");
        let mut mark = [0; CONTINUATION_BYTES];
        put(&mut mark, at::MAGIC, &MAGIC.to_le_bytes());
        put(&mut mark, at::FIRST_BATCH, &self.first_batch.to_le_bytes());
        put(&mut mark, at::FIRST_GSN, &self.first_gsn.to_le_bytes());
        let crc = segment.identity().checksum(offset, &mark[CRC_FROM..]);
        put(&mut mark, at::CRC, &crc.to_le_bytes());
        mark
    }

    /// Decodes the mark at the start of `bytes`, which lie at `offset` of their segment. `None` if
    /// something else begins there.
    pub(super) fn decode(
        identity: Identity,
        bytes: &[u8],
        offset: u64,
    ) -> Result<Option<Self>, EndCause> {
        if bytes.len() < CRC_FROM || u32_at(bytes, at::MAGIC) != MAGIC {
            return Ok(None);
        }
        let Some(mark) = bytes.first_chunk::<CONTINUATION_BYTES>() else {
            let (needed, available) = (CONTINUATION_BYTES as u64, bytes.len() as u64);
            return Err(EndCause::Truncated { needed, available });
        };
        let stored = u32_at(mark, at::CRC);
        let computed = identity.checksum(offset, &mark[CRC_FROM..]);
        if stored != computed {
            return Err(EndCause::HeaderChecksum { stored, computed });
        }
        let first_gsn = u64_at(mark, at::FIRST_GSN);
        if !(1..=GSN_MAX).contains(&first_gsn) {
            let cause = DecodeCause::Inconsistent("first gsn of the next segment");
            return Err(EndCause::Malformed(DecodeError { what: WHAT, offset, cause }));
        }
        Ok(Some(Continuation { first_batch: u64_at(mark, at::FIRST_BATCH), first_gsn }))
    }
}
