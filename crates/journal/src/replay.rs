//! Replay: the kept writes of all logs in gsn order per key, in rounds of bounded memory.
//!
//! Each round reads a buffer of every log and takes the records up to the *safe* gsn. The safe gsn
//! is the smallest last gsn of any buffer with unread records behind it. No unread record has a
//! smaller gsn. Writes are sorted into partitions by key, so that a thread can apply each
//! partition. Only the writes of a key have an order, by their gsns. The buffer that set the safe
//! gsn is used up, so every round makes progress.

mod unordered;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::path::PathBuf;

use parking_lot::Mutex;
use stillpoint_format::DecodeError;
use stillpoint_format::log::{
    Batch, BatchReader, CallReader, CallToRepeat, Record, RecordKind, Step, Write,
};
use stillpoint_io::in_parallel;

use crate::content::{Content, ReplayOperation};
use crate::reader::{
    Chain, LogOffset, Logs, ReadBuffer, ScanError, SegmentFile, Walked, after, damaged_since,
};

/// Smallest buffer of a log, in bytes.
const WINDOW_BYTES_MIN: usize = 64 << 10;
/// Approximate bytes that one thread decodes at a time.
const PIECE_BYTES: u64 = 2 << 20;

/// Settings of a replay.
#[derive(Clone, Copy, Debug)]
pub struct ReplayOptions {
    /// Number of partitions.
    pub partitions: usize,
    /// Bytes of log that one round reads, all logs together. A round takes about five times as much
    /// memory at most. A single batch larger than its share is read as a whole.
    pub round_bytes: usize,
    /// Threads that read and decode.
    pub threads: usize,
    /// Whether the calls that records name are among the [operations](Round::operations).
    pub with_calls: bool,
    /// Whether before-images are decoded, too. A replay has no use for them.
    pub checks_before_images: bool,
}

impl ReplayOptions {
    /// A replay of writes alone.
    pub fn new(partitions: usize, round_bytes: usize, threads: usize) -> Self {
        let (with_calls, checks_before_images) = (false, false);
        Self { partitions, round_bytes, threads, with_calls, checks_before_images }
    }
}

/// The partition of a key: table and key to a number below the number of partitions.
pub type PartitionOf<'a> = dyn Fn(u16, &[u8]) -> usize + Sync + 'a;

/// A write of a kept record.
#[derive(Clone, Debug)]
pub struct ReplayWrite<'a> {
    /// The record's gsn.
    pub gsn: u64,
    /// The log that holds the record.
    pub log: u8,
    /// The epoch in which the record committed.
    pub epoch: u64,
    /// The write of the record.
    pub write: Write<'a>,
}

/// A kept record that holds a call instead of writes.
#[derive(Clone, Debug)]
pub struct ReplayCall<'a> {
    /// The record's gsn.
    pub gsn: u64,
    /// The log that holds the record.
    pub log: u8,
    /// The call, to be made again.
    pub call: CallToRepeat<'a>,
}

/// Yields rounds until all kept records have been replayed.
pub struct Replay<'a> {
    options: ReplayOptions,
    partition_of: &'a PartitionOf<'a>,
    start_epoch: u64,
    /// Incarnations still to come, the next one last.
    later: Vec<Vec<Cursor>>,
    cursors: Vec<Cursor>,
    /// Buffers of the cursors' segments. Rounds borrow from these buffers.
    buffers: Vec<ReadBuffer>,
    total_bytes: u64,
    done_bytes: u64,
}

impl fmt::Debug for Replay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("total_bytes", &self.total_bytes)
            .field("done_bytes", &self.done_bytes)
            .finish_non_exhaustive()
    }
}

/// A segment, with the begin and end of the part that matters.
#[derive(Debug)]
struct SegmentRange {
    file: SegmentFile,
    begin: LogOffset,
    end: LogOffset,
}

/// Position of the replay in one log of one incarnation.
#[derive(Debug)]
struct Cursor {
    log: u8,
    kept_gsn: u64,
    /// The present segment and those after it, in reverse.
    segment_ranges: Vec<SegmentRange>,
    /// The place before the first batch that is not used up.
    place: LogOffset,
    /// Whether the buffer does not begin at the wanted offset.
    stale: bool,
    /// The gsn up to which records have been replayed, or need not be.
    done_gsn: u64,
}

/// Writes of a piece of a log, by partition.
type Lane<'r> = Vec<Vec<ReplayWrite<'r>>>;

/// A round: all kept writes up to some gsn that were not in an earlier round.
#[derive(Debug)]
pub struct Round<'r> {
    lanes: Vec<Lane<'r>>,
    operations: Vec<ReplayOperation<'r>>,
    calls: Vec<ReplayCall<'r>>,
    records: u64,
    /// Bytes of log read before the round, read with it, and in all.
    progress: (u64, u64),
}

impl<'r> Round<'r> {
    /// The writes of a partition in gsn order.
    pub fn partition(&self, partition: usize) -> Merge<'_, 'r> {
        let lanes = self.lanes.iter().map(|lane| lane[partition].iter());
        Merge::new(lanes.collect())
    }

    /// The operations on tables of other kinds in this round and the ends of their transactions, in
    /// gsn order. The calls are among the operations if they were [asked
    /// for](ReplayOptions::with_calls). Operations of a later round, and of a later incarnation,
    /// have greater gsns.
    pub fn operations(&self) -> &[ReplayOperation<'r>] {
        &self.operations
    }

    /// The calls to make again in this round, in gsn order. Each stands for the writes of its
    /// transaction.
    pub fn calls(&self) -> &[ReplayCall<'r>] {
        &self.calls
    }

    /// Commits in this round.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Bytes of log done when this round is, and bytes in all.
    pub fn progress(&self) -> (u64, u64) {
        self.progress
    }
}

/// Merges lists that are each in gsn order.
#[derive(Debug)]
pub struct Merge<'m, 'r> {
    lists: Vec<std::slice::Iter<'m, ReplayWrite<'r>>>,
    /// The next gsn of each list that has one.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
}

impl<'m, 'r> Merge<'m, 'r> {
    fn new(lists: Vec<std::slice::Iter<'m, ReplayWrite<'r>>>) -> Self {
        let head = |(at, list): (usize, &std::slice::Iter<'m, ReplayWrite<'r>>)| {
            list.as_slice().first().map(|write| Reverse((write.gsn, at)))
        };
        let heads = lists.iter().enumerate().filter_map(head).collect();
        Merge { lists, heads }
    }
}

impl<'m, 'r> Iterator for Merge<'m, 'r> {
    type Item = &'m ReplayWrite<'r>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut head = self.heads.peek_mut()?;
        let at = head.0.1;
        let write = self.lists[at].next();
        // The heap holds only the next write of each list, so the writes of one record keep their
        // order.
        match self.lists[at].as_slice().first() {
            Some(next) => head.0.0 = next.gsn,
            None => drop(std::collections::binary_heap::PeekMut::pop(head)),
        }
        write
    }
}

impl Logs {
    /// Begins a replay. `partition_of` must return the same partition for the same key.
    pub fn replay<'a>(
        &self,
        options: ReplayOptions,
        partition_of: &'a PartitionOf<'a>,
    ) -> Replay<'a> {
        let cursors = |chains: &Vec<Chain>| chains.iter().filter_map(Cursor::new).collect();
        Replay {
            options: ReplayOptions {
                partitions: options.partitions.max(1),
                threads: options.threads.max(1),
                ..options
            },
            partition_of,
            start_epoch: self.start.epoch,
            later: self.incarnations.iter().rev().map(cursors).collect(),
            cursors: Vec::new(),
            buffers: Vec::new(),
            total_bytes: self.replay_bytes(),
            done_bytes: 0,
        }
    }
}

impl Replay<'_> {
    /// The next round. `None` at the end.
    ///
    /// # Errors
    /// Bytes that have changed since they were validated, a record that does not decode, or
    /// a disk that refuses.
    pub fn next_round(&mut self) -> Result<Option<Round<'_>>, ScanError> {
        if !self.next_cursors() {
            return Ok(None);
        }
        let threads = self.options.threads;
        let share = self.options.round_bytes / self.cursors.len();
        let share = share.max(WINDOW_BYTES_MIN);
        let refills = self.cursors.iter_mut().zip(&mut self.buffers).collect();
        run(threads, refills, |(cursor, buffer)| cursor.refill(buffer, share))?;

        let views = self.cursors.iter().zip(&self.buffers).collect();
        let views = run(threads, views, |(cursor, buffer)| cursor.view(buffer))?;
        let open = views.iter().filter(|view| !view.complete);
        let safe = open.map(|view| view.end.last_gsn).min().unwrap_or(u64::MAX);

        let mut pieces = Vec::new();
        for (cursor, view) in self.cursors.iter_mut().zip(views) {
            let Some(range) = cursor.segment_ranges.last() else {
                continue;
            };
            let empty = DecodedBatches {
                log: cursor.log,
                path: range.file.shown.clone(),
                batches: Vec::new(),
                gsns: (cursor.done_gsn, safe.min(cursor.kept_gsn)),
            };
            let before = cursor.place.offset;
            let used = cursor.advance(view, empty.gsns.1);
            let behind = used.last().map_or(before, |batch| batch.offset() + batch.bytes());
            self.done_bytes += behind.saturating_sub(before);
            pieces.extend(empty.split(used));
        }
        let decoder = Decoder {
            partitions: self.options.partitions,
            partition_of: self.partition_of,
            start_epoch: self.start_epoch,
            with_calls: self.options.with_calls,
            checks_before_images: self.options.checks_before_images,
        };
        let lanes = run(threads, pieces, |piece| decoder.decode(&piece))?;
        let mut decoded = Decoded::default();
        for piece in lanes {
            decoded.lanes.push(piece.lane);
            decoded.operations.extend(piece.operations);
            decoded.calls.extend(piece.calls);
            decoded.records += piece.records;
        }
        decoded.operations.sort_by_key(|of| (of.gsn, of.log));
        decoded.calls.sort_unstable_by_key(|of| (of.gsn, of.log));
        let Decoded { lanes, operations, calls, records } = decoded;
        let over = self.cursors.iter().all(|cursor| cursor.segment_ranges.is_empty())
            && self.later.iter().all(Vec::is_empty);
        // A batch that straddles two rounds is counted twice, and a batch beyond the cut never.
        let done = if over { self.total_bytes } else { self.done_bytes.min(self.total_bytes) };
        let progress = (done, self.total_bytes);
        Ok(Some(Round { lanes, operations, calls, records, progress }))
    }

    /// Makes sure that a cursor has records left. Returns false at the end.
    fn next_cursors(&mut self) -> bool {
        let buffers = self.cursors.iter().zip(std::mem::take(&mut self.buffers));
        let left = buffers.filter(|(cursor, _)| !cursor.segment_ranges.is_empty());
        self.buffers = left.map(|(_, buffer)| buffer).collect();
        self.cursors.retain(|cursor| !cursor.segment_ranges.is_empty());
        while self.cursors.is_empty() {
            // The gsns of an incarnation all exceed those of the one before.
            let Some(cursors) = self.later.pop() else {
                return false;
            };
            self.buffers = cursors.iter().map(|_| ReadBuffer::default()).collect();
            self.cursors = cursors;
        }
        true
    }
}

/// The batches of a buffer.
#[derive(Debug)]
struct View<'w> {
    batches: Vec<(LogOffset, Batch<'w>)>,
    /// The place behind the last of the batches.
    end: LogOffset,
    /// Whether the log ends behind these batches.
    complete: bool,
}

impl Cursor {
    /// `None` if nothing of the log is to be replayed.
    fn new(chain: &Chain) -> Option<Self> {
        let matters = |of: &&Walked| of.end.last_gsn > chain.base && chain.kept_gsn > chain.base;
        let range =
            |of: &Walked| SegmentRange { file: of.file.clone(), begin: of.begin, end: of.end };
        let segment_ranges: Vec<_> =
            chain.segments.iter().rev().filter(matters).map(range).collect();
        Some(Cursor {
            log: chain.log,
            kept_gsn: chain.kept_gsn,
            place: segment_ranges.last()?.begin,
            segment_ranges,
            stale: true,
            done_gsn: chain.base,
        })
    }

    /// Fills the buffer anew, with at least one batch.
    fn refill(&mut self, buffer: &mut ReadBuffer, share: usize) -> Result<(), ScanError> {
        let Some(range) = self.segment_ranges.last().filter(|_| self.stale) else {
            return Ok(());
        };
        let left = (range.end.offset - self.place.offset) as usize;
        let mut len = share.min(left);
        loop {
            range.file.read(buffer, self.place.offset, len)?;
            let step = reader(range, &buffer.bytes, &self.place).next_batch();
            match step {
                Step::Batch(_) => break,
                Step::End(end) => {
                    let buffer_end = self.place.offset + buffer.bytes.len() as u64;
                    match range.file.more(&end, buffer_end) {
                        Some(needed) if needed > len => len = needed,
                        _ => {
                            return Err(damaged_since(
                                &range.file,
                                self.log,
                                &self.place,
                                end.cause,
                            ));
                        }
                    }
                }
            }
        }
        self.stale = false;
        Ok(())
    }

    fn view<'w>(&self, buffer: &'w ReadBuffer) -> Result<View<'w>, ScanError> {
        let mut view = View { batches: Vec::new(), end: self.place, complete: true };
        let Some(range) = self.segment_ranges.last() else {
            return Ok(view);
        };
        let skip = (self.place.offset - buffer.offset) as usize;
        let mut reader = reader(range, &buffer.bytes[skip..], &self.place);
        while view.end.offset < range.end.offset {
            match reader.next_batch() {
                Step::Batch(batch) if batch.first_gsn() > self.kept_gsn => return Ok(view),
                Step::Batch(batch) => {
                    let behind = after(&batch);
                    view.batches.push((view.end, batch));
                    view.end = behind;
                }
                Step::End(end) => {
                    let buffer_end = buffer.offset + buffer.bytes.len() as u64;
                    if range.file.more(&end, buffer_end).is_none() {
                        return Err(damaged_since(&range.file, self.log, &view.end, end.cause));
                    }
                    view.complete = false;
                    return Ok(view);
                }
            }
        }
        view.complete = self.segment_ranges.len() == 1;
        Ok(view)
    }

    /// Moves behind the batches that records up to `upto` use up. Returns the batches with such
    /// records.
    fn advance<'w>(&mut self, view: View<'w>, upto: u64) -> Vec<Batch<'w>> {
        let View { batches, end, complete } = view;
        let left = batches.iter().find(|(_, batch)| batch.last_gsn() > upto).map(|(at, _)| *at);
        match left {
            // Records beyond the cut do not count as left.
            Some(place) if upto < self.kept_gsn => self.place = place,
            _ if complete => {
                self.place = end;
                self.segment_ranges.clear();
            }
            _ => {
                self.place = end;
                self.stale = true;
                if self.segment_ranges.last().is_some_and(|of| of.end.offset <= end.offset) {
                    self.segment_ranges.pop();
                    self.place = self.segment_ranges.last().map_or(end, |of| of.begin);
                }
            }
        }
        self.done_gsn = self.done_gsn.max(upto);
        let used = batches.into_iter().filter(|(_, batch)| batch.first_gsn() <= upto);
        used.map(|(_, batch)| batch).collect()
    }
}

fn reader<'w>(range: &SegmentRange, bytes: &'w [u8], at: &LogOffset) -> BatchReader<'w> {
    BatchReader::window(&range.file.header, bytes, at.offset, at.number, at.last_gsn)
}

/// Some batches of one log, decoded by one thread.
#[derive(Clone, Debug)]
struct DecodedBatches<'w> {
    log: u8,
    path: PathBuf,
    batches: Vec<Batch<'w>>,
    /// Records above the first gsn and up to the second.
    gsns: (u64, u64),
}

impl<'w> DecodedBatches<'w> {
    /// Divides batches into pieces of about [`PIECE_BYTES`] each, with the settings of this piece.
    fn split(self, batches: Vec<Batch<'w>>) -> Vec<Self> {
        let mut pieces: Vec<Self> = Vec::new();
        let mut bytes = PIECE_BYTES;
        for batch in batches {
            if bytes >= PIECE_BYTES {
                pieces.push(self.clone());
                bytes = 0;
            }
            bytes += batch.bytes();
            if let Some(piece) = pieces.last_mut() {
                piece.batches.push(batch);
            }
        }
        pieces
    }
}

struct Decoder<'a> {
    partitions: usize,
    partition_of: &'a PartitionOf<'a>,
    start_epoch: u64,
    with_calls: bool,
    checks_before_images: bool,
}

/// Decoded content of a piece.
struct DecodedPiece<'w> {
    lane: Lane<'w>,
    operations: Vec<ReplayOperation<'w>>,
    calls: Vec<ReplayCall<'w>>,
    records: u64,
}

/// Decoded contents of all pieces of a round.
#[derive(Default)]
struct Decoded<'w> {
    lanes: Vec<Lane<'w>>,
    operations: Vec<ReplayOperation<'w>>,
    calls: Vec<ReplayCall<'w>>,
    records: u64,
}

impl Decoder<'_> {
    /// The writes of a piece by partition, and the number of its commits.
    fn decode<'w>(&self, piece: &DecodedBatches<'w>) -> Result<DecodedPiece<'w>, ScanError> {
        let malformed = |source| ScanError::Malformed { path: piece.path.clone(), source };
        let lane = (0..self.partitions).map(|_| Vec::new()).collect();
        let mut decoded =
            DecodedPiece { lane, operations: Vec::new(), calls: Vec::new(), records: 0 };
        for batch in &piece.batches {
            let mut calls = CallReader::default();
            for record in batch.records() {
                let record = record.map_err(malformed)?;
                // A call may need the one before it, though nobody replays that.
                let is_call = record.kind == RecordKind::Call;
                let call = is_call.then(|| calls.decode(&record)).transpose().map_err(malformed)?;
                if record.gsn <= piece.gsns.0 || record.gsn > piece.gsns.1 {
                    continue;
                }
                match call {
                    Some(call) => self.keep_call((piece.log, &record), call, &mut decoded),
                    None => {
                        if self.checks_before_images {
                            record.check_before_images().map_err(malformed)?;
                        }
                        let split = record.before_images().map_err(malformed)?;
                        let record = split.map_or(record, |(_, record)| record);
                        self.decode_record(piece.log, &record, &mut decoded).map_err(malformed)?;
                    }
                }
            }
        }
        Ok(decoded)
    }

    fn keep_call<'w>(
        &self,
        (log, record): (u8, &Record<'w>),
        call: CallToRepeat<'w>,
        decoded: &mut DecodedPiece<'w>,
    ) {
        if record.epoch >= self.start_epoch || self.with_calls {
            decoded.calls.push(ReplayCall { gsn: record.gsn, log, call });
            decoded.records += 1;
        }
    }

    #[inline]
    fn decode_record<'w>(
        &self,
        log: u8,
        record: &Record<'w>,
        decoded: &mut DecodedPiece<'w>,
    ) -> Result<(), DecodeError> {
        let (gsn, epoch) = (record.gsn, record.epoch);
        let content = Content::of(record, epoch < self.start_epoch, self.with_calls)?;
        if let Some(record) = content.operation {
            decoded.operations.push(ReplayOperation { gsn, log, record });
        }
        let Some(writes) = content.writes else { return Ok(()) };
        decoded.records += 1;
        for write in writes {
            let write = write?;
            let partition = (self.partition_of)(write.table, write.key);
            decoded.lane[partition].push(ReplayWrite { gsn, log, epoch, write });
        }
        Ok(())
    }
}

/// Runs `f` on every item with up to `threads` threads. Keeps the order of the results.
fn run<I: Send, T: Send>(
    threads: usize,
    items: Vec<I>,
    f: impl Fn(I) -> Result<T, ScanError> + Sync,
) -> Result<Vec<T>, ScanError> {
    if threads == 1 || items.len() <= 1 {
        return items.into_iter().map(f).collect();
    }
    let count = items.len();
    let todo = Mutex::new(items.into_iter().enumerate());
    let work = || {
        let mut done = Vec::new();
        loop {
            let next = todo.lock().next();
            let Some((at, item)) = next else { return done };
            done.push((at, f(item)));
        }
    };
    let jobs = (0..threads.min(count)).map(|_| &work).collect();
    let mut done: Vec<_> = in_parallel("replay", jobs)?.into_iter().flatten().collect();
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
