//! Tells a torn tail from damage, by the bytes behind the last valid batch.
//!
//! A crash may lose any subset of the writes since the last flush. So a valid batch behind an
//! invalid one does not prove damage by itself. Each batch states a number below which all batches
//! were flushed before it was written. If a valid later batch covers the missing one in this way,
//! the missing batch was durable once, and is damaged now.

use super::batch::{BATCH_ALIGN, BATCH_HEADER_BYTES, BATCH_MAGIC};
use super::read::{Batch, EndCause, SegmentEnd};
use super::segment::SegmentHeader;
use crate::bytes::u32_at;
use crate::ident::HEADER_BYTES;

/// A valid batch found behind the end of the valid sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaterBatch {
    /// File offset of the batch.
    pub offset: u64,
    /// Number of the batch.
    pub number: u64,
    /// Gsn of the batch's first record.
    pub first_gsn: u64,
    /// All batches with smaller numbers were flushed before this batch was written.
    pub flushed_below: u64,
}

/// Judgement of the bytes behind the last valid batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// No valid batch follows: the log ends here, cleanly or with a batch torn
    /// by a crash, which was never acknowledged. (Damage in the very last batch
    /// looks the same; no local file can tell.)
    End,
    /// Valid batches follow, but the missing one was possibly never flushed:
    /// writes of one crash reached the disk out of order. The log ends here.
    OutOfOrder(LaterBatch),
    /// Damage: the missing batch was durable once. A later batch proves the damage. Without such a
    /// batch, the cause of the end is one that no crash explains.
    Damaged(Option<LaterBatch>),
}

/// Judges the end that [`BatchReader`](super::BatchReader) reported.
///
/// `bytes` begin at file offset `offset`; pass the rest of the segment in which the sequence ended.
/// The *next* segments of the same log and incarnation can hold the proof as well. Call this
/// function again with their header, their bytes from [`HEADER_BYTES`] on, and the same end.
pub fn classify_tail(header: &SegmentHeader, bytes: &[u8], offset: u64, end: &SegmentEnd) -> Tail {
    if matches!(end.cause, EndCause::Sequence { .. } | EndCause::Malformed(_)) {
        return Tail::Damaged(None);
    }
    let identity = header.identity();
    let mut out_of_order = None;
    // Batches begin at multiples of their alignment in the file.
    let first = offset.next_multiple_of(BATCH_ALIGN as u64).max(HEADER_BYTES as u64);
    let mut skip = usize::try_from(first - offset).unwrap_or(usize::MAX);
    while let Some(rest) = bytes.get(skip..).filter(|rest| rest.len() >= BATCH_HEADER_BYTES) {
        let at = offset + skip as u64;
        let mut step = BATCH_ALIGN;
        if u32_at(rest, 0) == BATCH_MAGIC
            && let Ok(batch) = Batch::decode(identity, rest, at)
        {
            let later = LaterBatch {
                offset: at,
                number: batch.number(),
                first_gsn: batch.first_gsn(),
                flushed_below: batch.flushed_below(),
            };
            if later.flushed_below > end.next_number {
                return Tail::Damaged(Some(later));
            }
            if later.number > end.next_number {
                out_of_order = out_of_order.or(Some(later));
            }
            step = usize::try_from(batch.bytes()).unwrap_or(usize::MAX);
        }
        skip = skip.saturating_add(step);
    }
    out_of_order.map_or(Tail::End, Tail::OutOfOrder)
}
