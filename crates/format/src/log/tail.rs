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
/// [`TailSearch`] does the same without the whole rest in memory.
pub fn classify_tail(header: &SegmentHeader, bytes: &[u8], offset: u64, end: &SegmentEnd) -> Tail {
    let mut search = TailSearch::new(header, offset, end);
    let skipped = usize::try_from(search.offset() - offset).unwrap_or(usize::MAX);
    search.look(bytes.get(skipped..).unwrap_or_default(), true);
    search.judge()
}

/// The search behind the end of a segment, as that of [`classify_tail`], in pieces of the rest.
#[derive(Clone, Debug)]
pub struct TailSearch<'a> {
    header: &'a SegmentHeader,
    end: &'a SegmentEnd,
    /// File offset of the next place to look at.
    at: u64,
    /// Bytes from there on that the next piece needs, unless the segment ends before.
    needed: usize,
    damage: Option<LaterBatch>,
    out_of_order: Option<LaterBatch>,
}

impl<'a> TailSearch<'a> {
    /// Begins at file offset `offset`.
    pub fn new(header: &'a SegmentHeader, offset: u64, end: &'a SegmentEnd) -> Self {
        // Batches begin at multiples of their alignment in the file.
        let at = offset.next_multiple_of(BATCH_ALIGN as u64).max(HEADER_BYTES as u64);
        let needed = BATCH_HEADER_BYTES;
        TailSearch { header, end, at, needed, damage: None, out_of_order: None }
    }

    /// File offset at which the next piece begins.
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Least number of bytes of the next piece, unless the segment ends before.
    pub fn needed(&self) -> usize {
        self.needed
    }

    /// Looks at a piece that begins at [`offset`](Self::offset). `is_rest` says that the segment ends with
    /// it. Returns whether a further piece can change the judgement.
    pub fn look(&mut self, bytes: &[u8], is_rest: bool) -> bool {
        if self.is_unexplained() {
            return false;
        }
        let identity = self.header.identity();
        self.needed = BATCH_HEADER_BYTES;
        let begin = self.at;
        let mut skip = 0;
        while let Some(rest) = bytes.get(skip..).filter(|rest| rest.len() >= BATCH_HEADER_BYTES) {
            self.at = begin + skip as u64;
            let mut step = BATCH_ALIGN;
            if u32_at(rest, 0) == BATCH_MAGIC {
                match Batch::decode(identity, rest, self.at) {
                    Ok(batch) => {
                        self.note(&batch);
                        step = usize::try_from(batch.bytes()).unwrap_or(usize::MAX);
                    }
                    Err(EndCause::Truncated { needed, .. }) if !is_rest => {
                        self.needed = usize::try_from(needed).unwrap_or(usize::MAX);
                        return true;
                    }
                    Err(_) => {}
                }
            }
            if self.damage.is_some() {
                return false;
            }
            skip = skip.saturating_add(step);
        }
        self.at = begin.saturating_add(skip as u64);
        !is_rest
    }

    /// The judgement, after the last piece.
    pub fn judge(&self) -> Tail {
        if self.is_unexplained() || self.damage.is_some() {
            return Tail::Damaged(self.damage);
        }
        self.out_of_order.map_or(Tail::End, Tail::OutOfOrder)
    }

    /// Whether no crash explains the end, whatever lies behind it.
    fn is_unexplained(&self) -> bool {
        matches!(self.end.cause, EndCause::Sequence { .. } | EndCause::Malformed(_))
    }

    fn note(&mut self, batch: &Batch<'_>) {
        let later = LaterBatch {
            offset: batch.offset(),
            number: batch.number(),
            first_gsn: batch.first_gsn(),
            flushed_below: batch.flushed_below(),
        };
        if later.flushed_below > self.end.next_number {
            self.damage = Some(later);
        }
        if later.number > self.end.next_number {
            self.out_of_order = self.out_of_order.or(Some(later));
        }
    }
}
