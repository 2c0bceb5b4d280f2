//! The builder of a batch. Records are appended to one buffer, which is sealed before it is
//! written.

use std::mem::MaybeUninit;

use super::call::CallBefore;
use super::record::{
    DEP_BYTES, RECORD_BYTES_MAX, RECORD_HEAD_BYTES, RecordKind, dep_is_legal, pack_dep,
};
use super::segment::SegmentHeader;
use crate::bytes::put;
use crate::error::EncodeError;
use crate::ident::Identity;
use crate::{GSN_MAX, LogGsn};

/// Bytes of a batch header.
pub const BATCH_HEADER_BYTES: usize = 64;
/// Alignment of batches. A journal may pad to a greater one.
pub const BATCH_ALIGN: usize = 8;
/// First four bytes of a batch: "SPLB".
pub(crate) const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"SPLB");
/// The header's checksum covers the header from here.
pub(crate) const HEADER_CRC_FROM: usize = 8;
/// The value of `unflushed` that claims no flushed batch.
pub(crate) const UNFLUSHED_UNKNOWN: u16 = u16::MAX;

/// Alignment in memory of a batch, as direct I/O demands.
const MEMORY_ALIGN: usize = 4096;
/// Alignment in a large buffer. A batch within one huge page is one piece for the device.
const HUGE_ALIGN: usize = 2 << 20;
/// Largest padding that [`BatchPlace::align`] may ask for.
const ALIGN_MAX: usize = 4096;
/// Longest body of a batch: records before the dependency summary and the padding.
const BATCH_BODY_MAX: usize = BATCH_HEADER_BYTES + RECORD_BYTES_MAX;
const SUMMARY_MAX: usize = 255 * DEP_BYTES;
/// Bytes in front of a body that is [appended with its buffer](BatchBuilder::append_buffer): room for the
/// heads of batch and record.
pub const BODY_ROOM: usize = 4096;

/// Byte offsets of the batch header's fields.
pub(crate) mod at {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const HEADER_CRC: usize = 4;
    pub(crate) const PAYLOAD_CRC: usize = 8;
    pub(crate) const TOTAL_LEN: usize = 12;
    pub(crate) const RECORDS_LEN: usize = 16;
    pub(crate) const RECORD_COUNT: usize = 20;
    pub(crate) const NUMBER: usize = 24;
    pub(crate) const FIRST_GSN: usize = 32;
    pub(crate) const LAST_GSN: usize = 40;
    pub(crate) const BASE_EPOCH: usize = 48;
    pub(crate) const EPOCH_MIN: usize = 56;
    pub(crate) const EPOCH_MAX: usize = 58;
    pub(crate) const UNFLUSHED: usize = 60;
    pub(crate) const DEP_COUNT: usize = 62;
    pub(crate) const CLOSED_COUNT: usize = 63;
}

const _: () = assert!(at::CLOSED_COUNT + 1 == BATCH_HEADER_BYTES);
const _: () = assert!(BATCH_HEADER_BYTES + RECORD_HEAD_BYTES + SUMMARY_MAX <= BODY_ROOM);
const _: () = assert!(BATCH_BODY_MAX + SUMMARY_MAX + ALIGN_MAX <= u32::MAX as usize);
const _: () = assert!(RECORD_HEAD_BYTES == 4 + 1 + 1 + 2 + 8);

/// The transaction's data in the head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead<'a> {
    /// The record's global sequence number, greater than that of the log's previous record.
    pub gsn: u64,
    /// The epoch in which the record committed.
    pub epoch: u64,
    /// For each other log, the greatest gsn that the record depends on, if it was not yet closed.
    pub deps: &'a [LogGsn],
}

/// Bytes of a buffer before the boundary at which its batch begins.
fn lead(buf: &Vec<u8>) -> usize {
    let align = if buf.capacity() >= 2 * HUGE_ALIGN { HUGE_ALIGN } else { MEMORY_ALIGN };
    let address = buf.as_ptr().addr();
    address.next_multiple_of(align) - address
}

/// The position and form in which a batch will be written.
#[derive(Clone, Copy, Debug)]
pub struct BatchPlace<'a> {
    /// The segment.
    pub segment: &'a SegmentHeader,
    /// File offset in the segment, a multiple of [`BATCH_ALIGN`].
    pub offset: u64,
    /// Number of the batch: one more than that of the batch before in the same log and incarnation.
    pub number: u64,
    /// Every batch of this log and incarnation with a smaller number was flushed before this batch
    /// went to the disk. [`classify_tail`](super::classify_tail) relies on this number. A smaller
    /// value is always safe.
    pub flushed_below: u64,
    /// The length is padded with zeros to a multiple of this power of two, 8 to 4096.
    pub align: usize,
    /// Closed positions of other logs, from before this batch went to the disk. The padding holds
    /// as many positions as fit, the first ones first.
    pub closed: &'a [LogGsn],
}

/// Collects the records of a batch in one reused buffer.
///
/// An append copies the body once and allocates only when the buffer grows. The seal computes the
/// checksums, so swap the builder out of the log's mutex first.
#[derive(Debug)]
pub struct BatchBuilder {
    /// Unused bytes up to `lead`, room for the header, then the records.
    buf: Vec<u8>,
    /// Begin of the batch in `buf`. Unless the buffer has grown, the begin is a multiple of
    /// [`MEMORY_ALIGN`] in memory, so direct I/O needs no copy.
    lead: usize,
    count: u32,
    sealed: bool,
    first_gsn: u64,
    last_gsn: u64,
    base_epoch: u64,
    epoch_min: i16,
    epoch_max: i16,
    /// Greatest gsn that the batch's records name, per log; 0 if no record names the log.
    summary: Box<[u64; 256]>,
    /// The logs named, in order of first mention.
    named: Vec<u8>,
    /// What the next call may leave out.
    call_before: CallBefore,
    ahead: Ahead,
}

/// Checksum of the first part of the payload.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// Bytes of the batch that this checksum covers, with the header. 0 without a checksum.
    bytes: usize,
    crc: u32,
    /// The identity and offset that the checksum assumes.
    place: (Identity, u64),
}

impl BatchBuilder {
    /// An empty batch whose buffer holds `capacity` bytes before it grows.
    pub fn with_capacity(capacity: usize) -> Self {
        Self::with_buffer(Vec::with_capacity(capacity.max(BATCH_HEADER_BYTES) + MEMORY_ALIGN))
    }

    /// An empty batch in this memory, whose content is dropped. From a capacity of 4 MiB on, the
    /// batch begins at a multiple of 2 MiB. The bytes before the batch are not touched if the
    /// buffer is long enough.
    pub fn with_buffer(mut buf: Vec<u8>) -> Self {
        let lead = lead(&buf);
        buf.truncate(lead);
        buf.resize(lead + BATCH_HEADER_BYTES, 0);
        BatchBuilder {
            buf,
            lead,
            count: 0,
            sealed: false,
            first_gsn: 0,
            last_gsn: 0,
            base_epoch: 0,
            epoch_min: 0,
            epoch_max: 0,
            summary: Box::new([0; 256]),
            named: Vec::with_capacity(8),
            call_before: CallBefore::default(),
            ahead: Ahead { bytes: 0, crc: 0, place: (Identity::NONE, 0) },
        }
    }

    /// Forgets the records and keeps the buffer.
    pub fn clear(&mut self) {
        self.lead = lead(&self.buf);
        // The bytes before the batch are unused and may be megabytes, so they stay untouched.
        self.buf.truncate(self.lead);
        self.buf.resize(self.lead + BATCH_HEADER_BYTES, 0);
        self.count = 0;
        self.sealed = false;
        self.ahead.bytes = 0;
        (self.epoch_min, self.epoch_max) = (0, 0);
        self.call_before.clear();
        for log in self.named.drain(..) {
            self.summary[usize::from(log)] = 0;
        }
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of records.
    pub fn record_count(&self) -> u32 {
        self.count
    }

    /// Bytes so far, with the header, and without dependency summary and padding.
    pub fn bytes(&self) -> usize {
        self.buf.len() - self.lead
    }

    /// The memory of the next record, `bytes` bytes at most, to be prefetched.
    #[inline]
    pub fn tail(&mut self, bytes: usize) -> &[MaybeUninit<u8>] {
        let room = self.buf.spare_capacity_mut();
        &room[..room.len().min(bytes)]
    }

    /// Gsn of the last record, `None` if there is none.
    pub fn last_gsn(&self) -> Option<u64> {
        (self.count > 0).then_some(self.last_gsn)
    }

    /// The greatest gsn named per log, by all records together.
    pub fn deps(&self) -> impl Iterator<Item = LogGsn> {
        self.named.iter().map(|&log| LogGsn { log, gsn: self.summary[usize::from(log)] })
    }

    /// Appends a record whose body was encoded before.
    ///
    /// # Errors
    /// A gsn that does not grow, an impossible dependency, or no room. Nothing is appended then.
    #[inline]
    pub fn append(
        &mut self,
        head: RecordHead<'_>,
        kind: RecordKind,
        body: &[u8],
    ) -> Result<(), EncodeError> {
        let len = RECORD_HEAD_BYTES + head.deps.len() * DEP_BYTES + body.len();
        let epoch_delta = self.admit(&head, len)?;
        self.push_head(&head, kind, epoch_delta, len as u32);
        self.buf.extend_from_slice(body);
        if kind == RecordKind::Call {
            // The next call leaves out what it has in common with this one, which is not looked at.
            self.call_before.clear();
        }
        self.count_record(&head, epoch_delta);
        Ok(())
    }

    /// Appends a long record to an empty batch, without a copy: the batch takes over the buffer of its
    /// body, which begins at byte [`BODY_ROOM`]. `body` gets the buffer that the batch has had.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    ///
    /// # Panics
    /// If the batch has a record, or the buffer lacks the room.
    pub fn append_buffer(
        &mut self,
        head: RecordHead<'_>,
        kind: RecordKind,
        body: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        assert!(self.is_empty() && body.len() >= BODY_ROOM, "a buffer for another batch");
        let head_len = RECORD_HEAD_BYTES + head.deps.len() * DEP_BYTES;
        let len = head_len + body.len() - BODY_ROOM;
        let epoch_delta = self.admit(&head, len)?;
        let start = self.buf.len();
        self.push_head(&head, kind, epoch_delta, len as u32);
        put(body, BODY_ROOM - head_len, &self.buf[start..]);
        self.buf.truncate(start);
        std::mem::swap(&mut self.buf, body);
        self.lead = BODY_ROOM - head_len - BATCH_HEADER_BYTES;
        self.call_before.clear();
        self.count_record(&head, epoch_delta);
        Ok(())
    }

    /// Appends a record. `encode` appends the record's body to the given buffer. A call leaves out
    /// what it has in common with the call before it.
    ///
    /// # Errors
    /// As [`append`](Self::append), or the error of `encode`. Nothing is appended then.
    pub fn append_with(
        &mut self,
        head: RecordHead<'_>,
        kind: RecordKind,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let start = self.buf.len();
        let epoch_delta = self.admit(&head, RECORD_HEAD_BYTES + head.deps.len() * DEP_BYTES)?;
        self.push_head(&head, kind, epoch_delta, 0);
        let body = encode(&mut self.buf);
        let head_len = RECORD_HEAD_BYTES + head.deps.len() * DEP_BYTES;
        assert!(self.buf.len() >= start + head_len, "`encode` removed bytes that are not its own");
        let len = self.buf.len() - start;
        if let Err(error) = body.and_then(|()| self.fits(start - self.lead, len)) {
            self.buf.truncate(start);
            return Err(error);
        }
        if kind == RecordKind::Call {
            self.call_before.shorten(&mut self.buf, start + head_len);
        }
        let len = self.buf.len() - start;
        put(&mut self.buf, start, &(len as u32).to_le_bytes());
        self.count_record(&head, epoch_delta);
        Ok(())
    }

    /// Whether the batch takes further records of this epoch, with so many bytes in all. An empty batch takes
    /// records of any epoch.
    pub fn takes(&self, epoch: u64, bytes: usize) -> bool {
        let delta = epoch.wrapping_sub(self.base_epoch) as i64;
        let is_near = self.count == 0 || i16::try_from(delta).is_ok();
        is_near && self.bytes() + bytes <= BATCH_BODY_MAX && self.count < u32::MAX >> 1
    }

    /// Bytes appended since [`checksum_ahead`](Self::checksum_ahead).
    #[inline]
    pub fn unsummed_bytes(&self) -> usize {
        self.bytes() - self.ahead.bytes.max(BATCH_HEADER_BYTES)
    }

    /// Computes the checksum of the bytes appended so far, while they lie in the appending thread's
    /// cache. [`seal`](Self::seal), usually by another thread, continues from there. `identity` and
    /// `offset` are those of the later seal.
    pub fn checksum_ahead(&mut self, identity: Identity, offset: u64) {
        assert!(!self.sealed, "summing a sealed batch");
        let from = self.ahead.bytes.max(BATCH_HEADER_BYTES);
        let before =
            if self.ahead.bytes == 0 { identity.checksum(offset, &[]) } else { self.ahead.crc };
        self.ahead = Ahead {
            bytes: self.bytes(),
            crc: crc32c::crc32c_append(before, &self.buf[self.lead + from..]),
            place: (identity, offset),
        };
    }

    /// Writes header, dependency summary and padding, and returns the batch's bytes. The bytes
    /// begin at a multiple of 4096 in memory unless the buffer has grown since it was cleared. The
    /// builder must be [cleared](Self::clear) before it is appended to again.
    ///
    /// # Panics
    /// If the batch is empty or already sealed, or its place is impossible, or differs from the
    /// place of the checksum. Only an error of the journal, and no input, can cause these panics.
    pub fn seal(&mut self, place: &BatchPlace<'_>) -> &[u8] {
        assert!(self.count > 0, "sealing a batch without records");
        assert!(!self.sealed, "sealing a batch twice");
        self.sealed = true;
        assert!(place.offset.is_multiple_of(BATCH_ALIGN as u64), "batch at odd offset");
        assert!(place.offset >= crate::ident::HEADER_BYTES as u64, "batch over segment header");
        assert!(place.align.is_power_of_two() && (BATCH_ALIGN..=ALIGN_MAX).contains(&place.align));
        assert!(self.first_gsn >= place.segment.first_gsn, "gsn below the segment's first");
        assert!(place.number >= place.segment.first_batch, "batch below the segment's first");
        let records_len = self.bytes() - BATCH_HEADER_BYTES;
        for &log in &self.named {
            let dep = LogGsn { log, gsn: self.summary[usize::from(log)] };
            self.buf.extend_from_slice(&pack_dep(dep).to_le_bytes());
        }
        let total = self.bytes().next_multiple_of(place.align);
        let room = ((total - self.bytes()) / DEP_BYTES).min(usize::from(u8::MAX));
        let closed = &place.closed[..place.closed.len().min(room)];
        for &mark in closed {
            assert!(dep_is_legal(mark), "an impossible watermark {}@{}", mark.log, mark.gsn);
            self.buf.extend_from_slice(&pack_dep(mark).to_le_bytes());
        }
        self.buf.resize(self.lead + total, 0);
        let unflushed = place.number.saturating_sub(place.flushed_below);
        let unflushed = u16::try_from(unflushed).unwrap_or(UNFLUSHED_UNKNOWN);

        let identity = place.segment.identity();
        let (header, payload) = self.buf[self.lead..].split_at_mut(BATCH_HEADER_BYTES);
        let payload_crc = match self.ahead {
            Ahead { bytes: 0, .. } => identity.checksum(place.offset, payload),
            Ahead { bytes, crc, place: summed_for } => {
                assert!(summed_for == (identity, place.offset), "batch summed for another place");
                crc32c::crc32c_append(crc, &payload[bytes - BATCH_HEADER_BYTES..])
            }
        };
        put(header, at::MAGIC, &BATCH_MAGIC.to_le_bytes());
        put(header, at::PAYLOAD_CRC, &payload_crc.to_le_bytes());
        put(header, at::TOTAL_LEN, &(total as u32).to_le_bytes());
        put(header, at::RECORDS_LEN, &(records_len as u32).to_le_bytes());
        put(header, at::RECORD_COUNT, &self.count.to_le_bytes());
        put(header, at::NUMBER, &place.number.to_le_bytes());
        put(header, at::FIRST_GSN, &self.first_gsn.to_le_bytes());
        put(header, at::LAST_GSN, &self.last_gsn.to_le_bytes());
        put(header, at::BASE_EPOCH, &self.base_epoch.to_le_bytes());
        put(header, at::EPOCH_MIN, &self.epoch_min.to_le_bytes());
        put(header, at::EPOCH_MAX, &self.epoch_max.to_le_bytes());
        put(header, at::UNFLUSHED, &unflushed.to_le_bytes());
        header[at::DEP_COUNT] = self.named.len() as u8;
        header[at::CLOSED_COUNT] = closed.len() as u8;
        let crc = identity.checksum(place.offset, &header[HEADER_CRC_FROM..]);
        put(header, at::HEADER_CRC, &crc.to_le_bytes());
        self.sealed()
    }

    /// The bytes of a sealed batch.
    ///
    /// # Panics
    /// If the batch is not [sealed](Self::seal).
    pub fn sealed(&self) -> &[u8] {
        assert!(self.sealed, "an unsealed batch has no bytes to write");
        &self.buf[self.lead..]
    }

    /// Checks a record before anything is appended. Returns the distance of the record's epoch from
    /// the first epoch.
    #[inline]
    fn admit(&self, head: &RecordHead<'_>, len: usize) -> Result<i16, EncodeError> {
        assert!(!self.sealed, "appending to a sealed batch");
        let last = if self.count == 0 { 0 } else { self.last_gsn };
        if head.gsn <= last || head.gsn > GSN_MAX {
            return Err(EncodeError::GsnOrder { gsn: head.gsn, last });
        }
        let deps_fit = head.deps.len() <= usize::from(u8::MAX);
        if let Some(&LogGsn { log, gsn }) =
            head.deps.iter().find(|dep| !deps_fit || !dep_is_legal(**dep))
        {
            return Err(EncodeError::Dependency { log, gsn });
        }
        self.fits(self.bytes(), len)?;
        if self.count == 0 {
            return Ok(0);
        }
        let delta = head.epoch.wrapping_sub(self.base_epoch) as i64;
        i16::try_from(delta)
            .map_err(|_| EncodeError::EpochSpan { epoch: head.epoch, base: self.base_epoch })
    }

    /// Checks that a record of `len` bytes fits behind `start` bytes.
    #[inline]
    fn fits(&self, start: usize, len: usize) -> Result<(), EncodeError> {
        if len > RECORD_BYTES_MAX {
            return Err(EncodeError::RecordTooLong { bytes: len, max: RECORD_BYTES_MAX });
        }
        if start + len > BATCH_BODY_MAX || self.count == u32::MAX {
            return Err(EncodeError::BatchFull);
        }
        Ok(())
    }

    #[inline]
    fn push_head(&mut self, head: &RecordHead<'_>, kind: RecordKind, epoch_delta: i16, len: u32) {
        let first = u64::from(len)
            | u64::from(kind as u8) << 32
            | (head.deps.len() as u64) << 40
            | u64::from(epoch_delta as u16) << 48;
        let fixed = u128::from(first) | u128::from(head.gsn) << 64;
        self.buf.extend_from_slice(&fixed.to_le_bytes());
        for dep in head.deps {
            self.buf.extend_from_slice(&pack_dep(*dep).to_le_bytes());
        }
    }

    #[inline]
    fn count_record(&mut self, head: &RecordHead<'_>, epoch_delta: i16) {
        if self.count == 0 {
            (self.first_gsn, self.base_epoch) = (head.gsn, head.epoch);
        }
        self.count += 1;
        self.last_gsn = head.gsn;
        self.epoch_min = self.epoch_min.min(epoch_delta);
        self.epoch_max = self.epoch_max.max(epoch_delta);
        for dep in head.deps {
            let greatest = &mut self.summary[usize::from(dep.log)];
            if !self.named.contains(&dep.log) {
                self.named.push(dep.log);
            }
            *greatest = (*greatest).max(dep.gsn);
        }
    }
}

impl Default for BatchBuilder {
    /// Room for 1 MiB.
    fn default() -> Self {
        Self::with_capacity(1 << 20)
    }
}
