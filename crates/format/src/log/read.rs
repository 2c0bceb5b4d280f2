//! The reader of a segment: batches up to the first invalid one, and their records.

use super::batch::{
    BATCH_ALIGN, BATCH_HEADER_BYTES, BATCH_MAGIC, HEADER_CRC_FROM, UNFLUSHED_UNKNOWN, at,
};
use super::before;
use super::call::LoggedCall;
use super::continuation::Continuation;
use super::operation::{LoggedEnd, LoggedOperation};
use super::record::{DEP_BYTES, DepIter, RECORD_HEAD_BYTES, RecordKind};
use super::segment::SegmentHeader;
use super::write::WriteIter;
use crate::GSN_MAX;
use crate::bytes::{Cursor, array, put, u16_at, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::{HEADER_BYTES, Identity};

const WHAT: &str = "log batch";
const WHAT_RECORD: &str = "log record";

/// The fields of a batch header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) payload_crc: u32,
    pub(crate) total_len: usize,
    pub(crate) records_len: usize,
    pub(crate) record_count: u32,
    pub(crate) number: u64,
    pub(crate) flushed_below: u64,
    pub(crate) first_gsn: u64,
    pub(crate) last_gsn: u64,
    pub(crate) base_epoch: u64,
    pub(crate) epoch_min: u64,
    pub(crate) epoch_max: u64,
    pub(crate) dep_count: u8,
    pub(crate) closed_count: u8,
}

impl BatchHeader {
    /// Decodes the header at the start of `bytes`, which lie at `offset` of their segment. Does not
    /// read the payload.
    pub(crate) fn decode(identity: Identity, bytes: &[u8], offset: u64) -> Result<Self, EndCause> {
        let Some(header) = bytes.first_chunk::<BATCH_HEADER_BYTES>() else {
            return Err(EndCause::Exhausted);
        };
        let magic = u32_at(header, at::MAGIC);
        if magic != BATCH_MAGIC {
            let zero = *header == [0; BATCH_HEADER_BYTES];
            return Err(if zero { EndCause::Zero } else { EndCause::NoBatch { found: magic } });
        }
        let stored = u32_at(header, at::HEADER_CRC);
        let computed = identity.checksum(offset, &header[HEADER_CRC_FROM..]);
        if stored != computed {
            return Err(EndCause::HeaderChecksum { stored, computed });
        }
        let number = u64_at(header, at::NUMBER);
        let unflushed = u16_at(header, at::UNFLUSHED);
        let base_epoch = u64_at(header, at::BASE_EPOCH);
        let epoch =
            |at| base_epoch.wrapping_add_signed(i16::from_le_bytes(array(header, at)).into());
        let batch = BatchHeader {
            payload_crc: u32_at(header, at::PAYLOAD_CRC),
            total_len: u32_at(header, at::TOTAL_LEN) as usize,
            records_len: u32_at(header, at::RECORDS_LEN) as usize,
            record_count: u32_at(header, at::RECORD_COUNT),
            number,
            flushed_below: if unflushed == UNFLUSHED_UNKNOWN {
                0
            } else {
                number.saturating_sub(unflushed.into())
            },
            first_gsn: u64_at(header, at::FIRST_GSN),
            last_gsn: u64_at(header, at::LAST_GSN),
            base_epoch,
            epoch_min: epoch(at::EPOCH_MIN),
            epoch_max: epoch(at::EPOCH_MAX),
            dep_count: header[at::DEP_COUNT],
            closed_count: header[at::CLOSED_COUNT],
        };
        match batch.check() {
            Ok(()) => Ok(batch),
            Err(cause) => Err(EndCause::Malformed(DecodeError { what: WHAT, offset, cause })),
        }
    }

    /// Checks the rules for an intact header. A violation is an error of its writer.
    fn check(&self) -> Result<(), DecodeCause> {
        let packed = usize::from(self.dep_count) + usize::from(self.closed_count);
        let used = BATCH_HEADER_BYTES + self.records_len + packed * DEP_BYTES;
        if self.total_len < used || !self.total_len.is_multiple_of(BATCH_ALIGN) {
            return Err(DecodeCause::Inconsistent("batch length does not hold its records"));
        }
        let smallest = self.record_count as usize * RECORD_HEAD_BYTES;
        if self.record_count == 0 || smallest > self.records_len {
            return Err(DecodeCause::Inconsistent("batch record count"));
        }
        if self.first_gsn == 0 || self.first_gsn > self.last_gsn || self.last_gsn > GSN_MAX {
            return Err(DecodeCause::Inconsistent("batch gsn range"));
        }
        if !(self.epoch_min..=self.epoch_max).contains(&self.base_epoch) {
            return Err(DecodeCause::Inconsistent("batch epoch range"));
        }
        Ok(())
    }
}

/// The reason why no further batch was found. None of these proves damage; ask
/// [`classify_tail`](super::classify_tail).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndCause {
    /// The bytes end here.
    #[error("the segment ends")]
    Exhausted,
    /// Space that was preallocated and not yet written.
    #[error("nothing but zeros")]
    Zero,
    /// Other bytes: left over from an older use of the segment, or damage.
    #[error("no batch, but {found:#010x}")]
    NoBatch {
        /// The bytes in place of the magic number.
        found: u32,
    },
    /// A header that is torn, damaged, or of an older use of the segment.
    #[error("batch header checksum mismatch: stored {stored:#010x}, computed {computed:#010x}")]
    HeaderChecksum {
        /// The checksum in the batch's header.
        stored: u32,
        /// The checksum of the bytes that were read.
        computed: u32,
    },
    /// An intact header whose batch extends beyond the end of the bytes.
    #[error("batch of {needed} bytes, {available} there")]
    Truncated {
        /// Length of the batch in bytes.
        needed: u64,
        /// Bytes that exist.
        available: u64,
    },
    /// An intact header whose records are torn or damaged.
    #[error("batch payload checksum mismatch: stored {stored:#010x}, computed {computed:#010x}")]
    PayloadChecksum {
        /// The checksum that the header states.
        stored: u32,
        /// The checksum that the payload has.
        computed: u32,
    },
    /// The log goes on in another segment.
    #[error("the log goes on in the segment that begins at gsn {first_gsn}")]
    Continued {
        /// First gsn of the next segment, also part of its name.
        first_gsn: u64,
    },
    /// An intact batch that is not the next one. Never the result of a crash.
    #[error("batch number {found}, expected {expected}")]
    Sequence {
        /// The number in the batch's header.
        found: u64,
        /// The next number.
        expected: u64,
    },
    /// Intact bytes that break the rules of the format. Never the result of a crash.
    #[error(transparent)]
    Malformed(DecodeError),
}

/// The end of a segment, with its cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log segment ends at byte {offset} before batch {next_number}: {cause}")]
pub struct SegmentEnd {
    /// File offset of the first byte that belongs to no valid batch.
    pub offset: u64,
    /// Number of the next batch, if there were one.
    pub next_number: u64,
    /// The cause of the end.
    pub cause: EndCause,
}

/// The next batch, or the end of the valid ones.
#[derive(Clone, Debug)]
pub enum Step<'a> {
    /// A valid batch.
    Batch(Batch<'a>),
    /// No further valid batch.
    End(SegmentEnd),
}

/// Reads the batches of a segment in order. Borrows; allocates nothing.
#[derive(Clone, Debug)]
pub struct BatchReader<'a> {
    identity: Identity,
    bytes: &'a [u8],
    /// File offset of `bytes[0]`.
    base: u64,
    at: usize,
    next_number: u64,
    last_gsn: u64,
}

impl<'a> BatchReader<'a> {
    /// Reads a segment that is in memory as a whole, header block included.
    pub fn new(header: &SegmentHeader, segment: &'a [u8]) -> Self {
        let rest = segment.get(HEADER_BYTES..).unwrap_or_default();
        // A gsn below the segment's first is as wrong as one that does not grow.
        let last_gsn = header.first_gsn.saturating_sub(1);
        Self::window(header, rest, HEADER_BYTES as u64, header.first_batch, last_gsn)
    }

    /// Reads a piece of a segment that begins at `offset`, with a batch of number `next_number`.
    /// `last_gsn` is the gsn of the record before.
    ///
    /// If the piece ends within a batch, the end's cause is [`EndCause::Truncated`] or
    /// [`EndCause::Exhausted`]: read on from its offset.
    pub fn window(
        header: &SegmentHeader,
        bytes: &'a [u8],
        offset: u64,
        next_number: u64,
        last_gsn: u64,
    ) -> Self {
        BatchReader {
            identity: header.identity(),
            bytes,
            base: offset,
            at: 0,
            next_number,
            last_gsn,
        }
    }

    /// File offset of the next batch.
    pub fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Number of the next batch.
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// The next batch. After an end, always the same end.
    pub fn next_batch(&mut self) -> Step<'a> {
        match self.read() {
            Ok(batch) => {
                self.at += batch.header.total_len;
                self.next_number = batch.header.number.wrapping_add(1);
                self.last_gsn = batch.header.last_gsn;
                Step::Batch(batch)
            }
            Err(cause) => Step::End(SegmentEnd {
                offset: self.offset(),
                next_number: self.next_number,
                cause,
            }),
        }
    }

    fn read(&self) -> Result<Batch<'a>, EndCause> {
        if let Some(mark) =
            Continuation::decode(self.identity, &self.bytes[self.at..], self.offset())?
        {
            let (found, expected) = (mark.first_batch, self.next_number);
            return Err(if found == expected {
                EndCause::Continued { first_gsn: mark.first_gsn }
            } else {
                EndCause::Sequence { found, expected }
            });
        }
        let batch = Batch::decode(self.identity, &self.bytes[self.at..], self.offset())?;
        if batch.header.number != self.next_number {
            let (found, expected) = (batch.header.number, self.next_number);
            return Err(EndCause::Sequence { found, expected });
        }
        if batch.header.first_gsn <= self.last_gsn {
            let cause = DecodeCause::Inconsistent("gsn not above that of the batch before");
            let offset = self.offset();
            return Err(EndCause::Malformed(DecodeError { what: WHAT, offset, cause }));
        }
        Ok(batch)
    }
}

/// A batch with right checksums. Borrows from the segment's bytes.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    header: BatchHeader,
    offset: u64,
    raw: &'a [u8],
    records: &'a [u8],
    deps: DepIter<'a>,
    closed: DepIter<'a>,
}

impl<'a> Batch<'a> {
    /// Decodes and checks the batch at the start of `bytes`.
    pub(crate) fn decode(
        identity: Identity,
        bytes: &'a [u8],
        offset: u64,
    ) -> Result<Self, EndCause> {
        let header = BatchHeader::decode(identity, bytes, offset)?;
        let Some(batch) = bytes.get(..header.total_len) else {
            let (needed, available) = (header.total_len as u64, bytes.len() as u64);
            return Err(EndCause::Truncated { needed, available });
        };
        let payload = &batch[BATCH_HEADER_BYTES..];
        let (stored, computed) = (header.payload_crc, identity.checksum(offset, payload));
        if stored != computed {
            return Err(EndCause::PayloadChecksum { stored, computed });
        }
        // The header's check made sure that these lengths fit.
        let (records, rest) = payload.split_at(header.records_len);
        let (deps, rest) = rest.split_at(usize::from(header.dep_count) * DEP_BYTES);
        let closed = &rest[..usize::from(header.closed_count) * DEP_BYTES];
        let positions = |bytes, why| {
            let cause = DecodeCause::Inconsistent(why);
            let malformed = EndCause::Malformed(DecodeError { what: WHAT, offset, cause });
            DepIter::new(bytes).ok_or(malformed)
        };
        let deps = positions(deps, "impossible dependency in the summary")?;
        let closed = positions(closed, "impossible closed watermark")?;
        Ok(Batch { header, offset, raw: batch, records, deps, closed })
    }

    /// File offset of the batch.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes, header and padding included.
    pub fn bytes(&self) -> u64 {
        self.header.total_len as u64
    }

    /// Number of the batch in its log and incarnation.
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// Batches of this log and incarnation with a smaller number than this were
    /// flushed before this batch was written.
    pub fn flushed_below(&self) -> u64 {
        self.header.flushed_below
    }

    /// Number of records, at least one.
    pub fn record_count(&self) -> u32 {
        self.header.record_count
    }

    /// Gsn of the first record.
    pub fn first_gsn(&self) -> u64 {
        self.header.first_gsn
    }

    /// Gsn of the last record.
    pub fn last_gsn(&self) -> u64 {
        self.header.last_gsn
    }

    /// Smallest and greatest epoch of the batch's records.
    pub fn epochs(&self) -> (u64, u64) {
        (self.header.epoch_min, self.header.epoch_max)
    }

    /// The greatest gsn that any of its records names, per log.
    pub fn deps(&self) -> DepIter<'a> {
        self.deps.clone()
    }

    /// Closed positions of other logs, from before this batch went to the disk.
    pub fn closed(&self) -> DepIter<'a> {
        self.closed.clone()
    }

    /// Appends the batch to `out` in its form for `offset` of another segment of its log. The
    /// records are the same, and the checksums are those of the new place.
    ///
    /// # Panics
    /// If the batch cannot lie there: the offset is not aligned, or the segment begins with a later
    /// batch.
    pub fn copy_to(&self, segment: &SegmentHeader, offset: u64, out: &mut Vec<u8>) {
        assert!(offset.is_multiple_of(BATCH_ALIGN as u64), "batch at odd offset");
        assert!(self.number() >= segment.first_batch, "batch below the segment's first");
        assert!(self.first_gsn() >= segment.first_gsn, "gsn below the segment's first");
        let (identity, start) = (segment.identity(), out.len());
        out.extend_from_slice(self.raw);
        let copy = &mut out[start..];
        let payload_crc = identity.checksum(offset, &copy[BATCH_HEADER_BYTES..]);
        put(copy, at::PAYLOAD_CRC, &payload_crc.to_le_bytes());
        let crc = identity.checksum(offset, &copy[HEADER_CRC_FROM..BATCH_HEADER_BYTES]);
        put(copy, at::HEADER_CRC, &crc.to_le_bytes());
    }

    /// Records of the batch, in gsn order.
    pub fn records(&self) -> RecordIter<'a> {
        let offset = self.offset + BATCH_HEADER_BYTES as u64;
        RecordIter {
            rest: Cursor::new(self.records, offset, WHAT_RECORD),
            header: self.header,
            left: Some(self.header.record_count),
            last_gsn: self.header.first_gsn - 1,
        }
    }
}

/// The record of one transaction. Borrows from the segment's bytes.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// Global sequence number of the record.
    pub gsn: u64,
    /// The epoch in which the record committed.
    pub epoch: u64,
    /// Kind of the record's body.
    pub kind: RecordKind,
    /// File offset of the record's body.
    pub body_offset: u64,
    /// The record's body.
    pub body: &'a [u8],
    deps: DepIter<'a>,
}

impl<'a> Record<'a> {
    /// The dependencies that the record names.
    pub fn deps(&self) -> DepIter<'a> {
        self.deps.clone()
    }

    /// The writes in the body, if the kind is [`RecordKind::Writes`].
    pub fn writes(&self) -> WriteIter<'a> {
        WriteIter::new(self.body, self.body_offset)
    }

    /// The call and the writes in the body, if the kind is [`RecordKind::Command`].
    ///
    /// # Errors
    /// The body encodes no call.
    pub fn command(&self) -> Result<(LoggedCall<'a>, WriteIter<'a>), DecodeError> {
        LoggedCall::decode(self)
    }

    /// The before-images in the body, and the record without them: of kind [`RecordKind::Writes`] or
    /// [`RecordKind::Command`]. `None` for a record of another kind than [`RecordKind::UndoWrites`] and
    /// [`RecordKind::UndoCommand`].
    ///
    /// # Errors
    /// The body encodes no before-images.
    pub fn before_images(&self) -> Result<Option<(WriteIter<'a>, Self)>, DecodeError> {
        let kind = match self.kind {
            RecordKind::UndoWrites => RecordKind::Writes,
            RecordKind::UndoCommand => RecordKind::Command,
            _ => return Ok(None),
        };
        let ((images, images_at), (body, body_offset)) =
            before::split(self.body, self.body_offset)?;
        let rest = Record { kind, body, body_offset, ..self.clone() };
        Ok(Some((WriteIter::new(images, images_at), rest)))
    }

    /// Decodes the before-images in the body, if it has any. There is one for each write, of the same
    /// key.
    ///
    /// # Errors
    /// The body encodes other before-images, or none.
    pub fn check_before_images(&self) -> Result<(), DecodeError> {
        let Some((images, rest)) = self.before_images()? else { return Ok(()) };
        let is_command = rest.kind == RecordKind::Command;
        let writes = if is_command { rest.command()?.1 } else { rest.writes() };
        before::check(images, writes)
    }

    /// The operation in the body, if the kind is [`RecordKind::Operation`] or [`RecordKind::Undo`].
    ///
    /// # Errors
    /// The body encodes no operation.
    pub fn operation(&self) -> Result<LoggedOperation<'a>, DecodeError> {
        LoggedOperation::decode(self, self.kind == RecordKind::Undo)
    }

    /// The end in the body, if the kind is [`RecordKind::End`].
    ///
    /// # Errors
    /// The body encodes no end of a transaction.
    pub fn end(&self) -> Result<LoggedEnd<'a>, DecodeError> {
        LoggedEnd::decode(self)
    }
}

/// Iterator over the records of a batch in gsn order. The iteration ends after an error.
#[derive(Clone, Debug)]
pub struct RecordIter<'a> {
    rest: Cursor<'a>,
    header: BatchHeader,
    /// Remaining records. `None` after the end.
    left: Option<u32>,
    last_gsn: u64,
}

impl<'a> RecordIter<'a> {
    #[inline]
    fn record(&mut self) -> Result<Record<'a>, DecodeError> {
        let start = self.rest.clone();
        let rest = &mut self.rest;
        let head = rest.array::<RECORD_HEAD_BYTES>()?;
        let inconsistent = |why| Err(start.error(DecodeCause::Inconsistent(why)));
        let (len, dep_count) = (u32_at(&head, 0) as usize, usize::from(head[5]));
        let kind = RecordKind::from_code(head[4]).map_err(|cause| start.error(cause))?;
        let Some(body_len) = len.checked_sub(RECORD_HEAD_BYTES + dep_count * DEP_BYTES) else {
            return inconsistent("record length does not hold its dependencies");
        };
        let gsn = u64_at(&head, 8);
        if gsn <= self.last_gsn || gsn > self.header.last_gsn {
            return inconsistent("record gsn outside its place in the batch");
        }
        let epoch_delta = i16::from_le_bytes(array(&head, 6));
        let epoch = self.header.base_epoch.wrapping_add_signed(epoch_delta.into());
        if !(self.header.epoch_min..=self.header.epoch_max).contains(&epoch) {
            return inconsistent("record epoch outside the batch's range");
        }
        let Some(deps) = DepIter::new(rest.take(dep_count * DEP_BYTES)?) else {
            return inconsistent("impossible dependency");
        };
        let body_offset = rest.offset();
        let body = rest.take(body_len)?;
        self.last_gsn = gsn;
        Ok(Record { gsn, epoch, kind, body_offset, body, deps })
    }

    /// No bytes may remain after the last record.
    fn finish(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() && self.last_gsn == self.header.last_gsn {
            return Ok(());
        }
        let cause = DecodeCause::Inconsistent("records do not fill their batch");
        Err(self.rest.error(cause))
    }
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Result<Record<'a>, DecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let left = self.left?;
        let record = match left.checked_sub(1) {
            Some(fewer) => {
                self.left = Some(fewer);
                self.record()
            }
            None => {
                self.left = None;
                return self.finish().err().map(Err);
            }
        };
        if record.is_err() {
            self.left = None;
        }
        Some(record)
    }
}
