//! The appending half of a log: gsns, dependencies, batches in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_format::log::{
    BATCH_HEADER_BYTES as EMPTY_BATCH_BYTES, BODY_ROOM, BatchBuilder, CONTINUATION_BYTES,
    LoggedOperation, RECORD_BYTES_MAX, RECORD_HEAD_BYTES, RecordHead, SegmentHeader,
};
use stillpoint_format::{EncodeError, LOG_NONE, LogGsn, Stamp};
use stillpoint_io::{DIRECT_ALIGN, huge_zeros};
use stillpoint_mem::prefetch_to_write;
use stillpoint_sync::{mutant, planted};

use super::aside::Aside;
use super::handoff::Handoff;
use super::marks::Marks;
use crate::closing::{Closing, Named};
use crate::error::JournalError;
use crate::journal::{Entry, Together};
use crate::segments::Segment;

/// The size of a huge page that this module assumes.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes that one named log takes in a batch's dependency summary.
const SUMMARY_ENTRY_BYTES: usize = 8;
/// Bytes of records after which the appending thread computes their checksum. Huge records are left
/// to the leader, since the appending thread holds locks.
const SUM_AHEAD_BYTES: std::ops::Range<usize> = 4 << 10..256 << 10;
/// Bytes behind a record that are prefetched for the next one, which is likely to have the same
/// length.
const FETCHED_AHEAD_BYTES: std::ops::Range<usize> = 320..16 << 10;
/// Epochs whose beginnings are remembered.
const EPOCHS_KEPT: usize = 1024;

/// Records that are written by one call.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) builder: BatchBuilder,
    /// The dependencies of the batch's records, in order.
    pub(crate) named: Vec<Named>,
    /// Position of the batch, set when it is sealed.
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u64,
    pub(crate) number: u64,
    /// Bytes of records when the batch was queued.
    pub(crate) queued_bytes: usize,
    /// Whether the batch's buffer has grown too large to be kept.
    pub(crate) oversized: bool,
}

impl Batch {
    /// The bytes to be written, once the batch is sealed.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.builder.sealed()
    }

    /// Bytes on disk.
    fn padded_bytes(&self) -> u64 {
        let bytes = self.builder.bytes() + self.builder.deps().count() * SUMMARY_ENTRY_BYTES;
        bytes.next_multiple_of(DIRECT_ALIGN) as u64
    }
}

/// Begin of an epoch in the log.
#[derive(Clone, Copy, Debug)]
struct EpochStart {
    epoch: u64,
    /// No record before this gsn is of this epoch or a later one.
    gsn: u64,
    /// Bytes appended before that gsn.
    bytes: u64,
}

/// A segment in which no batch was placed.
#[derive(Debug)]
pub(crate) enum Unused {
    /// The file has its name already. The next segment's file replaces this file.
    Named,
    /// The file is still a prepared one.
    Spare(Arc<Segment>),
}

/// The reason why the open batch did not take a record.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// The record needs a segment of at least this number of bytes.
    Segment(u64),
    /// The record needs a further share of what the limit of the logs leaves: so many bytes.
    Limit(u64),
    /// The record cannot be appended at all.
    Error(JournalError),
}

/// The state behind a log's append lock.
#[derive(Debug)]
pub(crate) struct Appender {
    log: u8,
    logs: u8,
    batch_bytes: usize,
    floor: u64,
    pub(crate) last_gsn: u64,
    /// Per log, the gsn up to which a dependency need not be named: it is closed, or an earlier
    /// record of this log names it. For the own log, the greatest gsn.
    covered: Box<[u64; 256]>,
    /// Scratch: per log the greatest uncovered gsn that the record touches. 0 between records.
    touched: Box<[u64; 256]>,
    /// Scratch: the dependencies that the record names.
    deps: Vec<LogGsn>,
    open: Option<Batch>,
    handoff: Arc<Handoff>,
    segment: Arc<Segment>,
    /// Whether the segment's file has its name before any batch, as the first segment does.
    segment_is_named: bool,
    /// Where the open batch will lie in the segment.
    offset: u64,
    /// Number of the open batch.
    pub(crate) next_number: u64,
    /// Bytes given a place in this incarnation, the open batch not counted.
    placed_bytes: u64,
    epochs: VecDeque<EpochStart>,
    pub(crate) records: u64,
    pub(crate) record_bytes: u64,
    pub(crate) waits: u64,
    pub(crate) refusals: u64,
    pub(crate) segments_reused: u64,
    /// Length of the segment that a refused append has asked for. 0 for none.
    pub(crate) wanted_bytes: u64,
    /// Room that is set aside for undos and aborts.
    pub(super) aside: Aside,
    /// Number of prepared segments that a refused call of `set_aside` needs. 0 for none.
    pub(crate) wanted_spares: usize,
    pub(super) marks: Marks,
    /// Place up to which the log has a share of what the limit of the logs leaves. `u64::MAX` without
    /// a limit.
    share_end: u64,
    /// Bytes by which the log exceeds the limit.
    exceeded: u64,
    /// Bytes of records for which room is set aside.
    set_aside_bytes: u64,
    /// Where the batches of the present segment end: with the segment, or with the share.
    end: u64,
    /// Whether a batch has been placed.
    in_use: bool,
    /// Set once, when the log takes no further record.
    pub(crate) refused: Option<JournalError>,
}

impl Appender {
    pub(crate) fn new(
        log: u8,
        logs: u8,
        batch_bytes: usize,
        floor: u64,
        segment: Arc<Segment>,
        handoff: Arc<Handoff>,
        segment_bytes: u64,
    ) -> Self {
        let mut covered = Box::new([floor; 256]);
        covered[usize::from(log)] = u64::MAX;
        covered[usize::from(LOG_NONE)] = u64::MAX;
        let first = EpochStart { epoch: 0, gsn: floor + 1, bytes: 0 };
        Appender {
            log,
            logs,
            batch_bytes,
            floor,
            last_gsn: floor,
            covered,
            touched: Box::new([0; 256]),
            deps: Vec::with_capacity(255),
            open: None,
            handoff,
            offset: HEADER_BYTES as u64,
            next_number: segment.header.first_batch,
            marks: Marks::new(segment_bytes),
            share_end: u64::MAX,
            exceeded: 0,
            set_aside_bytes: 0,
            end: segment.bytes - CONTINUATION_BYTES as u64,
            segment,
            segment_is_named: true,
            placed_bytes: 0,
            epochs: VecDeque::from([first]),
            records: 0,
            record_bytes: 0,
            waits: 0,
            refusals: 0,
            segments_reused: 0,
            wanted_bytes: 0,
            aside: Aside::new(segment_bytes, logs),
            wanted_spares: 0,
            in_use: false,
            refused: None,
        }
    }

    /// Appends a record and returns its gsn. A returned [`Obstacle`] means that nothing has
    /// changed, except that the open batch may have been sealed.
    #[inline]
    pub(crate) fn append(&mut self, entry: &Entry<'_>, closing: &Closing) -> Result<u64, Obstacle> {
        let end = self.end_of_others();
        self.append_before(entry, closing, end, false)
    }

    /// As [`append`](Self::append), in room that was set aside.
    pub(super) fn append_aside(
        &mut self,
        entry: &Entry<'_>,
        closing: &Closing,
    ) -> Result<u64, Obstacle> {
        let end = self.segment_end();
        self.append_before(entry, closing, end, true)
    }

    /// As [`append`](Self::append), with a body that was encoded before. The record has a batch of its own,
    /// which takes the buffer over.
    pub(crate) fn append_buffer(
        &mut self,
        entry: &Entry<'_>,
        body: &mut Vec<u8>,
        closing: &Closing,
    ) -> Result<u64, Obstacle> {
        self.seal_for_others()?;
        let floor = self.name_dependencies(entry.touched, closing)?;
        let gsn = self.last_gsn.max(floor).saturating_add(1);
        self.open_batch();
        let summary = self.deps.len() * SUMMARY_ENTRY_BYTES;
        let needed = EMPTY_BATCH_BYTES + RECORD_HEAD_BYTES + 2 * summary + body.len() - BODY_ROOM;
        if needed > self.room(self.end_of_others()) {
            return Err(self.lack(needed, false));
        }
        let head = RecordHead { gsn, epoch: entry.epoch, deps: &self.deps };
        let Some(batch) = self.open.as_mut() else { unreachable!("a batch was opened") };
        if let Err(source) = batch.builder.append_buffer(head, entry.kind, body) {
            return Err(Obstacle::Error(JournalError::Encode { log: self.log, source }));
        }
        batch.oversized = true;
        batch.named.extend(self.deps.iter().map(|&on| Named { gsn, on }));
        self.appended(gsn, entry.epoch, EMPTY_BATCH_BYTES);
        Ok(gsn)
    }

    /// Appends all records of a transaction to one batch, and returns the gsn of the last one. As
    /// [`append`](Self::append) otherwise.
    pub(crate) fn append_together(
        &mut self,
        together: &mut Together<'_>,
        closing: &Closing,
    ) -> Result<u64, Obstacle> {
        let Together { epoch, touched, records, bodies } = together;
        let (epoch, records) = (*epoch, *records);
        let floor = self.name_dependencies(touched, closing)?;
        let first = self.last_gsn.max(floor).saturating_add(1);
        let last = first.saturating_add(records.len() as u64 - 1);
        let around = 2 * self.deps.len() * SUMMARY_ENTRY_BYTES + records.len() * RECORD_HEAD_BYTES;
        let needed = around + bodies.len();
        if needed > RECORD_BYTES_MAX {
            let source = EncodeError::RecordTooLong { bytes: needed, max: RECORD_BYTES_MAX };
            return Err(Obstacle::Error(JournalError::Encode { log: self.log, source }));
        }
        self.seal_unless_it_takes(epoch, needed)?;
        let room = self.room(self.end_of_others());
        let summary = self.open_batch().builder.deps().count() * SUMMARY_ENTRY_BYTES;
        let before = self.open_batch().builder.bytes();
        if before + summary + needed > room {
            return Err(self.lack(EMPTY_BATCH_BYTES + needed, false));
        }
        let Some(batch) = self.open.as_mut() else { unreachable!("a batch was opened") };
        let mut start = 0;
        for (gsn, &(kind, end)) in (first..).zip(records) {
            let deps = if gsn == first { &self.deps[..] } else { &[] };
            let body = &mut bodies[start..end];
            if gsn != first {
                LoggedOperation::name_transaction(body, LogGsn { log: self.log, gsn: first });
            }
            // A batch has room for much more, and the gsns grow.
            if let Err(source) = batch.builder.append(RecordHead { gsn, epoch, deps }, kind, body) {
                assert_eq!(gsn, first, "a record was appended, and a later one refused: {source}");
                return Err(Obstacle::Error(JournalError::Encode { log: self.log, source }));
            }
            start = end;
        }
        batch.oversized |= before + needed > 2 * self.batch_bytes;
        batch.named.extend(self.deps.iter().map(|&on| Named { gsn: first, on }));
        if self.epochs.back().is_none_or(|of| epoch > of.epoch) {
            self.epoch_begins(first, epoch, before);
        }
        self.records += records.len() as u64 - 1;
        self.appended(last, epoch, before);
        Ok(last)
    }

    /// Seals the open batch if it does not take so many bytes of records of this epoch.
    fn seal_unless_it_takes(&mut self, epoch: u64, bytes: usize) -> Result<(), Obstacle> {
        match &self.open {
            Some(batch) if !batch.builder.takes(epoch, bytes) => self.seal_for_others(),
            _ => Ok(()),
        }
    }

    /// Seals the open batch for a record without room set aside. The padding must not take the room of the
    /// others.
    fn seal_for_others(&mut self) -> Result<(), Obstacle> {
        if !self.may_seal() {
            return Err(Obstacle::Segment(0));
        }
        self.seal();
        Ok(())
    }

    /// Whether the open batch may be sealed: the records for which room was set aside find room behind it.
    #[inline]
    pub(super) fn may_seal(&self) -> bool {
        let is_open = self.open.as_ref().is_some_and(|batch| !batch.builder.is_empty());
        !is_open || self.aside.lets_end(self.room_left())
    }

    /// Room for the open batch before an end.
    fn room(&self, end: u64) -> usize {
        usize::try_from(end.saturating_sub(self.offset)).unwrap_or(usize::MAX)
    }

    /// Where batches end in the present segment.
    fn segment_end(&self) -> u64 {
        self.segment.bytes - CONTINUATION_BYTES as u64
    }

    /// Where batches of records end for which no room was set aside.
    #[inline]
    fn end_of_others(&self) -> u64 {
        match self.aside.kept_back() {
            0 => self.end,
            kept_back => self.end.min(self.segment_end().saturating_sub(kept_back as u64)),
        }
    }

    /// The end moves with segment and share, and not with the batches between.
    fn move_end(&mut self) {
        let of_share = match self.share_end {
            u64::MAX => u64::MAX,
            end => (end + self.offset).saturating_sub(self.placed_bytes),
        };
        self.end = self.segment_end().min(of_share);
    }

    /// Why a record that needs so many bytes found no room. The open batch is sealed if the next segment can
    /// follow. Another record cannot take the next segment before [`may_seal`](Self::may_seal).
    #[cold]
    fn lack(&mut self, needed: usize, is_aside: bool) -> Obstacle {
        let needed = needed as u64;
        if self.aside.kept_back() as u64 + needed <= self.room_left() {
            // The segment has room. A flush may pad the batch.
            return Obstacle::Limit(needed.next_multiple_of(DIRECT_ALIGN as u64));
        }
        if is_aside || self.may_seal() {
            self.seal();
        }
        let bytes = needed + (HEADER_BYTES + CONTINUATION_BYTES) as u64;
        Obstacle::Segment(bytes.next_multiple_of(DIRECT_ALIGN as u64))
    }

    /// Bytes of the share that are left. `None` without a limit.
    pub(super) fn share_left(&self) -> Option<u64> {
        let open = self.open.as_ref().map_or(0, |batch| batch.builder.bytes() as u64);
        let end = Some(self.share_end).filter(|&end| end != u64::MAX)?;
        Some(end.saturating_sub(self.placed_bytes + open))
    }

    /// Adds bytes to the share. What the log has taken without a share is paid first.
    pub(super) fn add_share(&mut self, bytes: u64) {
        if self.share_end != u64::MAX {
            self.share_end += bytes;
            self.move_end();
        }
    }

    /// Takes bytes of the share away.
    pub(super) fn give_share(&mut self, bytes: u64) {
        self.share_end -= bytes;
        self.move_end();
    }

    /// Ends the share. Without a limit the log needs none.
    pub(super) fn end_share(&mut self, is_limited: bool) {
        let open = self.open.as_ref().map_or(0, |batch| batch.builder.bytes() as u64);
        self.share_end = if is_limited { self.placed_bytes + open } else { u64::MAX };
        self.exceeded = 0;
        self.move_end();
    }

    /// A share beyond the limit, if all of these have at most so many bytes.
    pub(super) fn exceed(&mut self, bytes: u64, most: u64) -> Option<u64> {
        let exceeded = self.exceeded + bytes;
        (exceeded <= most).then(|| {
            self.exceeded = exceeded;
            bytes
        })
    }

    /// Takes the bytes of a later record from the share.
    pub(super) fn set_aside(&mut self, bytes: u64) {
        self.set_aside_bytes += bytes;
        if self.share_end != u64::MAX {
            self.give_share(bytes);
        }
    }

    /// Gives the bytes of such a record back to the share.
    pub(super) fn end_aside(&mut self, bytes: u64) {
        self.set_aside_bytes -= bytes;
        self.add_share(bytes);
    }

    pub(super) fn set_aside_bytes(&self) -> u64 {
        self.set_aside_bytes
    }

    /// As [`append`](Self::append), before an end in the segment.
    #[inline]
    fn append_before(
        &mut self,
        entry: &Entry<'_>,
        closing: &Closing,
        end: u64,
        is_aside: bool,
    ) -> Result<u64, Obstacle> {
        let floor = self.name_dependencies(entry.touched, closing)?;
        let gsn = self.last_gsn.max(floor).saturating_add(1);
        let head = RecordHead { gsn, epoch: entry.epoch, deps: &[] };
        loop {
            let before = self.open_batch().builder.bytes();
            match self.encode(head, entry, end) {
                Ok(()) => {
                    self.appended(gsn, entry.epoch, before);
                    return Ok(gsn);
                }
                // The batch is full by bytes or by epochs, so an empty one follows.
                Err(Full::Batch) if before > EMPTY_BATCH_BYTES => self.seal(),
                Err(Full::Batch) => {
                    let source = EncodeError::BatchFull;
                    return Err(Obstacle::Error(JournalError::Encode { log: self.log, source }));
                }
                Err(Full::Room(needed)) => return Err(self.lack(needed, is_aside)),
                Err(Full::Never(source)) => {
                    // Its buffer may have grown to the limit of a record.
                    drop(self.open.take_if(|batch| batch.oversized && batch.builder.is_empty()));
                    return Err(Obstacle::Error(JournalError::Encode { log: self.log, source }));
                }
            }
        }
    }

    /// Collects in `deps` the dependencies that no earlier record covers. Returns the greatest gsn
    /// that the record touches.
    #[inline]
    fn name_dependencies(&mut self, touched: &[Stamp], closing: &Closing) -> Result<u64, Obstacle> {
        self.deps.clear();
        let mut floor = 0;
        for &stamp in touched {
            floor = floor.max(stamp.gsn());
            if stamp.gsn() > self.covered[usize::from(stamp.log())] {
                self.name_dependency(stamp, closing)?;
            }
        }
        for dep in &mut self.deps {
            dep.gsn = std::mem::take(&mut self.touched[usize::from(dep.log)]);
        }
        Ok(floor)
    }

    fn name_dependency(&mut self, stamp: Stamp, closing: &Closing) -> Result<(), Obstacle> {
        let log = stamp.log();
        if log >= self.logs {
            for dep in self.deps.drain(..) {
                self.touched[usize::from(dep.log)] = 0;
            }
            let unknown = JournalError::UnknownStamp { stamp, logs: self.logs };
            return Err(Obstacle::Error(unknown));
        }
        let closed = mutant!(closing.closed(log), NamesOnlyUnflushed => closing.flushed(log));
        let covered = &mut self.covered[usize::from(log)];
        if stamp.gsn() <= closed {
            *covered = closed;
            return Ok(());
        }
        let greatest = &mut self.touched[usize::from(log)];
        if *greatest == 0 {
            self.deps.push(LogGsn { log, gsn: 0 });
        }
        *greatest = (*greatest).max(stamp.gsn());
        Ok(())
    }

    /// Encodes the record into the open batch, if the segment has room for batch and record.
    #[inline]
    fn encode(&mut self, head: RecordHead<'_>, entry: &Entry<'_>, end: u64) -> Result<(), Full> {
        let room = self.room(end);
        let Some(batch) = self.open.as_mut() else {
            return Err(Full::Batch);
        };
        let head = RecordHead { deps: &self.deps, ..head };
        let named = batch.builder.deps().count() + self.deps.len();
        let around = RECORD_HEAD_BYTES
            + self.deps.len() * SUMMARY_ENTRY_BYTES
            + named.min(usize::from(LOG_NONE)) * SUMMARY_ENTRY_BYTES;
        let before = batch.builder.bytes();
        let (mut needed, mut body) = (0, 0);
        let done = batch.builder.append_with(head, entry.kind, |buf| {
            let start = buf.len();
            let encoded = (entry.body)(buf);
            body = buf.len() - start;
            encoded?;
            if before + around + body > room {
                needed = EMPTY_BATCH_BYTES + around + body;
                return Err(EncodeError::BatchFull);
            }
            Ok(())
        });
        // The buffer keeps the room of a record that is refused, too.
        batch.oversized |= before + around + body > 2 * self.batch_bytes;
        match done {
            Ok(()) => {
                batch.named.extend(self.deps.iter().map(|&on| Named { gsn: head.gsn, on }));
                Ok(())
            }
            Err(EncodeError::BatchFull) if needed > 0 => Err(Full::Room(needed)),
            Err(EncodeError::BatchFull | EncodeError::EpochSpan { .. }) => Err(Full::Batch),
            Err(source) => Err(Full::Never(source)),
        }
    }

    /// Bookkeeping after an appended record.
    #[inline]
    fn appended(&mut self, gsn: u64, epoch: u64, before: usize) {
        self.last_gsn = gsn;
        for dep in &self.deps {
            self.covered[usize::from(dep.log)] = dep.gsn;
        }
        if self.epochs.back().is_none_or(|last| epoch > last.epoch) {
            self.epoch_begins(gsn, epoch, before);
        }
        let Some(batch) = &mut self.open else { return };
        let bytes = batch.builder.bytes();
        self.records += 1;
        self.record_bytes += (bytes - before) as u64;
        // This thread computes the checksum while the bytes are in its cache. A leader on another
        // core would fetch every line, and the next record would fetch it back.
        if SUM_AHEAD_BYTES.contains(&batch.builder.unsummed_bytes()) {
            batch.builder.checksum_ahead(self.segment.identity, self.offset);
        }
        let ahead = (bytes - before).clamp(FETCHED_AHEAD_BYTES.start, FETCHED_AHEAD_BYTES.end);
        prefetch_to_write(batch.builder.tail(ahead));
        if bytes >= self.batch_bytes && self.may_seal() {
            self.seal();
        }
    }

    #[cold]
    fn epoch_begins(&mut self, gsn: u64, epoch: u64, before: usize) {
        if self.epochs.len() == EPOCHS_KEPT {
            self.epochs.pop_front();
        }
        let bytes = self.placed_bytes + before as u64;
        self.epochs.push_back(EpochStart { epoch, gsn, bytes });
    }

    #[inline]
    fn open_batch(&mut self) -> &mut Batch {
        let (handoff, segment) = (&self.handoff, &self.segment);
        let batch_bytes = self.batch_bytes;
        self.open.get_or_insert_with(|| {
            handoff.take_free().unwrap_or_else(|| Batch {
                builder: BatchBuilder::with_buffer(huge_zeros(batch_capacity(batch_bytes))),
                named: Vec::new(),
                segment: Arc::clone(segment),
                offset: 0,
                number: 0,
                queued_bytes: 0,
                oversized: false,
            })
        })
    }

    /// Gives the open batch its offset in the segment and queues it, if the batch has a record.
    pub(crate) fn seal(&mut self) {
        let Some(mut batch) = self.open.take_if(|batch| !batch.builder.is_empty()) else {
            return;
        };
        let bytes = batch.padded_bytes();
        batch.segment = Arc::clone(&self.segment);
        (batch.offset, batch.number) = (self.offset, self.next_number);
        self.offset += bytes;
        debug_assert!(self.offset <= self.segment.bytes, "a batch must lie in allocated space");
        self.placed_bytes += bytes;
        self.marks.note(self.last_gsn + 1, self.placed_bytes);
        self.next_number += 1;
        self.handoff.push(batch);
    }

    /// True once: when the first batch has been placed.
    #[inline]
    pub(crate) fn begins_use(&mut self) -> bool {
        self.placed_bytes > 0 && !std::mem::replace(&mut self.in_use, true)
    }

    /// Room of the present segment behind the open batch, in bytes.
    pub(super) fn room_left(&self) -> u64 {
        let open = self.open.as_ref().filter(|batch| !batch.builder.is_empty());
        let taken = self.offset + open.map_or(0, Batch::padded_bytes);
        (self.segment.bytes - CONTINUATION_BYTES as u64).saturating_sub(taken)
    }

    /// The header of the segment that would follow.
    pub(crate) fn next_header(&self) -> SegmentHeader {
        SegmentHeader {
            first_gsn: self.last_gsn + 1,
            first_batch: self.next_number,
            ..self.segment.header
        }
    }

    /// Goes on in another segment. The open batch must be empty. Returns the old segment if nothing
    /// was placed in it.
    pub(crate) fn roll(&mut self, segment: Segment) -> Option<Unused> {
        debug_assert!(self.open.as_ref().is_none_or(|batch| batch.builder.is_empty()));
        let unused = self.offset == HEADER_BYTES as u64;
        let named = std::mem::replace(&mut self.segment_is_named, false);
        let old = std::mem::replace(&mut self.segment, Arc::new(segment));
        self.offset = HEADER_BYTES as u64;
        self.move_end();
        unused.then_some(if named { Unused::Named } else { Unused::Spare(old) })
    }

    /// The greatest gsn up to which all records are of epochs before `epoch`.
    pub(crate) fn last_gsn_before(&self, epoch: u64) -> u64 {
        match self.epochs.partition_point(|start| start.epoch < epoch) {
            // The epoch is older than the remembered ones. A smaller position is always safe.
            0 => self.floor,
            at => self.epochs.get(at).map_or(self.last_gsn, |start| start.gsn - 1),
        }
    }

    /// Bytes of this incarnation that lie above a gsn, rounded up to a mark or to where an epoch begins.
    pub(crate) fn bytes_above(&self, gsn: u64) -> u64 {
        if gsn >= self.last_gsn {
            return 0;
        }
        let open = self.open.as_ref().map_or(0, |batch| batch.builder.bytes() as u64);
        let at = self.epochs.partition_point(|start| start.gsn <= gsn + 1);
        let before = at.checked_sub(1).map_or(0, |at| self.epochs[at].bytes);
        self.placed_bytes + open - before.max(self.marks.place_above(gsn))
    }

    /// Bytes of memory in buffers.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        let batches = self.handoff.free() + usize::from(self.open.is_some());
        (batches * self.batch_bytes + self.handoff.sealed_bytes()) as u64
    }
}

/// Bytes of memory for a batch: with the record that fills it, padding, summary, and the gap before
/// an aligned address.
fn batch_capacity(batch_bytes: usize) -> usize {
    let bytes = batch_bytes + batch_bytes / 4 + 8192;
    // A buffer that fills most of a huge page gets one.
    if bytes > HUGE_PAGE_BYTES / 2 {
        bytes.next_multiple_of(HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES
    } else {
        bytes + DIRECT_ALIGN
    }
}

/// The reason why a batch did not take a record.
#[derive(Debug)]
enum Full {
    /// The record may fit an empty batch.
    Batch,
    /// An empty batch with the record has so many bytes, and there is less room for it.
    Room(usize),
    /// No batch takes the record.
    Never(EncodeError),
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use stillpoint_format::ident::StoreId;
    use stillpoint_format::log::RecordKind;

    use super::*;

    const BATCH_BYTES: usize = 4096;

    fn appender(segment_bytes: u64) -> Appender {
        let header = SegmentHeader {
            store: StoreId([1; 16]),
            created_ms: 0,
            incarnation: 1,
            log: 0,
            first_gsn: 1,
            first_batch: 1,
            file_bytes: segment_bytes,
        };
        let segment = Segment {
            identity: header.identity(),
            header,
            bytes: segment_bytes,
            spare: "spare".into(),
            path: "segment".into(),
        };
        Appender::new(0, 1, BATCH_BYTES, 0, Arc::new(segment), Arc::default(), segment_bytes)
    }

    fn append(to: &mut Appender, bytes: usize) -> Result<u64, Obstacle> {
        let body = |buf: &mut Vec<u8>| {
            buf.resize(buf.len() + bytes, 7);
            Ok(())
        };
        let entry = Entry { kind: RecordKind::Command, epoch: 1, touched: &[], body: &body };
        to.append(&entry, &Closing::new(1, 0))
    }

    /// Seals the open batch. Returns whether the buffers of all sealed batches are freed.
    fn are_oversized(of: &mut Appender) -> Vec<bool> {
        of.seal();
        let mut sealed = VecDeque::new();
        of.handoff.take_sealed(&mut sealed);
        sealed.iter().map(|batch| batch.oversized).collect()
    }

    #[test]
    fn a_buffer_that_a_long_record_has_grown_is_not_kept() {
        let mut log = appender(1 << 20);
        for (bytes, expected) in [(100, false), (5000, false), (9000, true), (100_000, true)] {
            append(&mut log, bytes).expect("it fits");
            assert_eq!(are_oversized(&mut log), [expected], "{bytes} bytes");
        }
    }

    /// The records of a transaction are appended as a whole or not at all, and all but the first name it.
    #[test]
    fn records_that_belong_together_are_never_parted() {
        let (mut log, closing) = (appender(8 * 4096), Closing::new(1, 0));
        let records = [700, 1400, 2100].map(|end| (RecordKind::Operation, end));
        let mut bodies = vec![0; 2100];
        let mut last = 0;
        let refused = loop {
            let (epoch, touched, records, bodies) = (1, &[][..], &records[..], &mut bodies[..]);
            let together = &mut Together { epoch, touched, records, bodies };
            match log.append_together(together, &closing) {
                Ok(gsn) => assert_eq!(gsn, last + 3),
                Err(obstacle) => break obstacle,
            }
            let names = [0, 700, 1400].map(|at| {
                let name = together.bodies[at..].first_chunk().expect("a name");
                u64::from_le_bytes(*name)
            });
            assert_eq!(names, [0, last + 1, last + 1]);
            last += 3;
        };
        assert!(matches!(refused, Obstacle::Segment(_)), "{refused:?}");
        assert_eq!((log.last_gsn, log.records), (last, last), "nothing of what was refused");
        assert!(last >= 12 && log.next_number > 2, "{last} records in few batches");
    }

    /// The record itself may come much later, or never.
    #[test]
    fn a_buffer_that_a_refused_record_has_grown_is_not_kept() {
        for (bytes, expected) in [(5000, false), (9000, true), (100_000, true)] {
            let mut log = appender(5 * 4096);
            append(&mut log, 5000).expect("it fits");
            assert_eq!(are_oversized(&mut log), [false]);
            let refused = append(&mut log, bytes).expect_err("the segment has no room");
            assert!(matches!(refused, Obstacle::Segment(needed) if needed > bytes as u64));
            append(&mut log, 100).expect("it fits");
            assert_eq!(are_oversized(&mut log), [expected], "{bytes} bytes");
        }
    }

    #[test]
    fn a_record_that_cannot_be_encoded_leaves_no_buffer() {
        let mut log = appender(1 << 20);
        let refused = |log: &mut Appender| {
            let body = |buf: &mut Vec<u8>| {
                buf.resize(buf.len() + 100_000, 7);
                Err(EncodeError::RecordTooLong { bytes: 1 << 32, max: 1 << 31 })
            };
            let entry = Entry { kind: RecordKind::Command, epoch: 1, touched: &[], body: &body };
            let refused = log.append(&entry, &Closing::new(1, 0)).expect_err("it is too long");
            assert!(matches!(refused, Obstacle::Error(JournalError::Encode { .. })), "{refused:?}");
        };
        refused(&mut log);
        assert!(log.open.is_none(), "the buffer is given up");
        append(&mut log, 100).expect("it fits");
        refused(&mut log);
        append(&mut log, 100).expect("it fits");
        assert_eq!(are_oversized(&mut log), [true]);
    }

    #[test]
    fn records_gather_in_a_batch_until_it_is_full() {
        let mut log = appender(1 << 20);
        let mut sealed = VecDeque::new();
        for bytes in [100, 2000] {
            append(&mut log, bytes).expect("it fits");
            log.handoff.take_sealed(&mut sealed);
            assert!(sealed.is_empty(), "{bytes} bytes fill no batch");
        }
        append(&mut log, 2000).expect("it fits");
        log.handoff.take_sealed(&mut sealed);
        assert_eq!(sealed.len(), 1, "a full batch is handed over at once");
        assert_eq!(sealed[0].builder.last_gsn(), Some(3));
    }

    #[test]
    fn the_bytes_of_buffers_are_those_of_open_and_sealed_batches() {
        let mut log = appender(1 << 20);
        assert_eq!(log.buffer_bytes(), 0);
        append(&mut log, 100).expect("it fits");
        assert_eq!(log.buffer_bytes(), BATCH_BYTES as u64);
        append(&mut log, 5000).expect("it fits");
        let sealed = log.handoff.sealed_bytes() as u64;
        assert!(sealed > 5100);
        assert_eq!(log.buffer_bytes(), sealed, "no batch is open");
        append(&mut log, 100).expect("it fits");
        assert_eq!(log.buffer_bytes(), BATCH_BYTES as u64 + sealed);
    }

    #[test]
    fn the_use_of_a_log_begins_once() {
        let mut log = appender(1 << 20);
        assert!(!log.begins_use());
        append(&mut log, 100).expect("it fits");
        assert!(!log.begins_use(), "nothing has a place");
        log.seal();
        assert!(log.begins_use() && !log.begins_use());
    }

    /// A batch grows up to its limit and by a quarter without being copied to a larger buffer.
    #[test]
    fn a_buffer_has_room_for_the_record_that_fills_it() {
        for batch_bytes in [1, 4096, 256 << 10, 1 << 20, (1 << 20) + 1, 64 << 20] {
            let needed = batch_bytes + batch_bytes / 4 + 8192;
            let capacity = batch_capacity(batch_bytes);
            let most = needed + if needed > 1 << 20 { 2 * HUGE_PAGE_BYTES } else { DIRECT_ALIGN };
            assert!((needed..=most).contains(&capacity), "{batch_bytes}: {capacity}");
        }
    }
}
