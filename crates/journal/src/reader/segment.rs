//! Scans one segment in buffers of bounded size.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::DecodeError;
use stillpoint_format::ident::{HEADER_BYTES, StoreId};
use stillpoint_format::log::{
    Batch, BatchReader, EndCause, SegmentEnd, SegmentHeader, Step, Tail, TailSearch,
};
use stillpoint_io::{AlignedBuf, Caching, Disk, DiskFile, OpenMode};

use super::error::ScanError;

/// A place between two batches of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogOffset {
    /// File offset of the next batch.
    pub(crate) offset: u64,
    /// Number of the batch.
    pub(crate) number: u64,
    /// The last gsn before the batch.
    pub(crate) last_gsn: u64,
}

/// A segment with an intact header.
#[derive(Clone, Debug)]
pub(crate) struct SegmentFile {
    /// For messages: the absolute path.
    pub(crate) shown: PathBuf,
    pub(crate) path: PathBuf,
    pub(crate) header: SegmentHeader,
    pub(crate) bytes: u64,
    file: Arc<dyn DiskFile>,
}

/// Bytes of a window whose writes are noted. They are decoded from a cache of the processor.
const NOTED_WINDOW_BYTES: usize = 128 << 10;
/// Bytes of a window that have a checksum of their own, so that they can be read alone.
const PIECE_BYTES: usize = 16 << 10;

/// What a walk through the windows of a segment comes to.
pub(crate) enum InWindow<'a> {
    /// A batch, with its place, and the window that has its bytes.
    Batch(&'a Batch<'a>, &'a LogOffset, &'a [u8]),
    /// The end of a window, which this function describes.
    End(&'a dyn Fn() -> LogWindow),
}

/// Valid batches of a log that were read. They can be read again as long as the segment is held.
#[derive(Debug)]
pub struct LogWindow {
    file: SegmentFile,
    begin: LogOffset,
    end: LogOffset,
    /// The checksum of each piece, as the scan has read it.
    sums: Box<[u32]>,
}

impl LogWindow {
    fn new(file: &SegmentFile, (begin, end): (LogOffset, LogOffset), bytes: &[u8]) -> Self {
        let window = Self { file: file.clone(), begin, end, sums: Box::default() };
        let sums = window.sums_of(0, bytes).collect();
        Self { sums, ..window }
    }

    /// The checksums of pieces, the first of which begins at this offset of the window.
    fn sums_of(&self, from: usize, bytes: &[u8]) -> impl Iterator<Item = u32> {
        let identity = self.file.header.identity();
        let offsets = (self.begin.offset + from as u64..).step_by(PIECE_BYTES);
        let pieces = offsets.zip(bytes.chunks(PIECE_BYTES));
        pieces.map(move |(offset, piece)| identity.checksum(offset, piece))
    }

    /// Bytes of the window.
    pub fn bytes(&self) -> usize {
        (self.end.offset - self.begin.offset) as usize
    }

    /// Reads the window again, into a buffer of its length. Verifies each batch as a start does.
    ///
    /// # Errors
    /// The bytes have changed, or the disk refuses.
    pub fn read(&self, into: &mut [u8]) -> Result<(), ScanError> {
        let Self { file, begin, end, .. } = self;
        let read = file.file.read_at(into, begin.offset)?;
        let LogOffset { offset, number, last_gsn } = *begin;
        let mut reader = BatchReader::window(&file.header, &into[..read], offset, number, last_gsn);
        let mut at = *begin;
        while at.offset < end.offset {
            match reader.next_batch() {
                Step::Batch(batch) => at = after(&batch),
                Step::End(SegmentEnd { cause, .. }) => {
                    return Err(damaged_since(file, file.header.log, &at, cause));
                }
            }
        }
        Ok(())
    }

    /// Reads these bytes of the window, as far as it goes, and some beside them. Returns the range that the
    /// buffer has then. Verifies it by checksums that were taken when the scan had verified the batches.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_part(
        &self,
        wanted: Range<usize>,
        into: &mut AlignedBuf,
    ) -> Result<Range<usize>, ScanError> {
        let end = wanted.end.next_multiple_of(PIECE_BYTES).min(self.bytes());
        let range = wanted.start / PIECE_BYTES * PIECE_BYTES..end;
        into.resize(range.len(), 0);
        let read = self.file.file.read_at(into, self.begin.offset + range.start as u64)?;
        let expected = &self.sums[range.start / PIECE_BYTES..range.end.div_ceil(PIECE_BYTES)];
        if read == range.len() && self.sums_of(range.start, into).eq(expected.iter().copied()) {
            return Ok(range);
        }
        // The look at all batches tells what is wrong.
        into.resize(self.bytes(), 0);
        self.read(into)?;
        Ok(0..self.bytes())
    }
}

/// Bytes of a segment from some offset on.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffer {
    pub(crate) bytes: Vec<u8>,
    /// File offset of the first buffered byte.
    pub(crate) offset: u64,
}

impl SegmentFile {
    /// Opens a segment and checks that it belongs to its place.
    pub(crate) fn open(
        disk: &dyn Disk,
        path: &Path,
        store: StoreId,
        (incarnation, log, first_gsn): (u32, u8, u64),
    ) -> Result<Self, ScanError> {
        let shown = disk.describe(path);
        let file = disk.open(path, OpenMode::Read, Caching::Buffered)?;
        let mut block = vec![0; HEADER_BYTES];
        let read = file.read_at(&mut block, 0)?;
        let header = SegmentHeader::decode(&block[..read])
            .and_then(|header| header.expect(store, incarnation, log, first_gsn).map(|()| header))
            .map_err(|source| ScanError::Malformed { path: shown.clone(), source })?;
        Ok(SegmentFile { shown, path: path.to_owned(), header, bytes: file.len()?, file })
    }

    /// Whether the file is shorter than its header says.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.bytes < self.header.file_bytes
    }

    /// An error about a record in the segment.
    pub(crate) fn malformed(&self, source: DecodeError) -> ScanError {
        ScanError::Malformed { path: self.shown.clone(), source }
    }

    /// The place before the segment's first batch.
    pub(crate) fn begin(&self) -> LogOffset {
        LogOffset {
            offset: HEADER_BYTES as u64,
            number: self.header.first_batch,
            last_gsn: self.header.first_gsn.saturating_sub(1),
        }
    }

    /// Reads up to `len` bytes at `offset`.
    pub(crate) fn read(
        &self,
        buffer: &mut ReadBuffer,
        offset: u64,
        len: usize,
    ) -> Result<(), ScanError> {
        let left = usize::try_from(self.bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        buffer.bytes.resize(len.min(left), 0);
        let read = self.file.read_at(&mut buffer.bytes, offset)?;
        buffer.bytes.truncate(read);
        buffer.offset = offset;
        Ok(())
    }

    /// Has the buffer hold up to `len` bytes from `offset` on. Reads those alone that it lacks. False if the
    /// file ends before: it is shorter than when it was opened.
    fn fill(&self, buffer: &mut ReadBuffer, offset: u64, len: usize) -> Result<bool, ScanError> {
        let left = usize::try_from(self.bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = len.min(left);
        let skipped = offset.checked_sub(buffer.offset).and_then(|of| usize::try_from(of).ok());
        let mut held = 0;
        if let Some(skipped) = skipped.filter(|&skipped| skipped < buffer.bytes.len()) {
            buffer.bytes.copy_within(skipped.., 0);
            held = (buffer.bytes.len() - skipped).min(wanted);
        }
        buffer.offset = offset;
        buffer.bytes.resize(wanted, 0);
        let read = self.file.read_at(&mut buffer.bytes[held..], offset + held as u64)?;
        buffer.bytes.truncate(held + read);
        Ok(held + read == wanted)
    }

    /// Visits batches from a place on, until the visitor breaks or the valid ones end. Returns the
    /// place, and the cause if it was the end.
    pub(crate) fn walk(
        &self,
        from: LogOffset,
        window_bytes: usize,
        mut visit: impl FnMut(&Batch<'_>, &LogOffset) -> Result<ControlFlow<()>, ScanError>,
    ) -> Result<(LogOffset, Option<EndCause>), ScanError> {
        let mut buffer = ReadBuffer::default();
        let mut at = from;
        let mut len = window_bytes;
        loop {
            let is_whole = self.fill(&mut buffer, at.offset, len)?;
            let begin = at;
            let end = loop {
                let rest = &buffer.bytes[(at.offset - begin.offset) as usize..];
                let step =
                    BatchReader::window(&self.header, rest, at.offset, at.number, at.last_gsn)
                        .next_batch();
                match step {
                    Step::Batch(batch) => {
                        if visit(&batch, &at)?.is_break() {
                            return Ok((at, None));
                        }
                        at = after(&batch);
                    }
                    Step::End(end) => break end,
                }
            };
            match self.more(&end, buffer.offset + buffer.bytes.len() as u64) {
                Some(needed) if is_whole => len = window_bytes.max(needed),
                _ => return Ok((at, Some(end.cause))),
            }
        }
    }

    /// As [`walk`](Self::walk), in windows of which the visitor learns the end, also if the visitor breaks.
    /// An error ends the walk at once.
    pub(crate) fn walk_windows(
        &self,
        from: LogOffset,
        mut visit: impl FnMut(InWindow<'_>) -> Result<ControlFlow<()>, ScanError>,
    ) -> Result<(LogOffset, Option<EndCause>), ScanError> {
        let mut buffer = ReadBuffer::default();
        let (mut at, mut wanted) = (from, NOTED_WINDOW_BYTES);
        loop {
            let is_whole = self.fill(&mut buffer, at.offset, wanted)?;
            let begin = at;
            let end = loop {
                let rest = &buffer.bytes[(at.offset - begin.offset) as usize..];
                let step =
                    BatchReader::window(&self.header, rest, at.offset, at.number, at.last_gsn)
                        .next_batch();
                match step {
                    Step::Batch(batch) => {
                        if visit(InWindow::Batch(&batch, &at, &buffer.bytes))?.is_break() {
                            break None;
                        }
                        at = after(&batch);
                    }
                    Step::End(end) => break Some(end),
                }
            };
            let valid = &buffer.bytes[..(at.offset - begin.offset) as usize];
            let describe = || LogWindow::new(self, (begin, at), valid);
            let _ = visit(InWindow::End(&describe))?;
            let Some(end) = end else { return Ok((at, None)) };
            match self.more(&end, begin.offset + buffer.bytes.len() as u64) {
                Some(needed) if is_whole => wanted = NOTED_WINDOW_BYTES.max(needed),
                _ => return Ok((at, Some(end.cause))),
            }
        }
    }

    /// Judges the bytes from a place on, behind the end of the valid batches. A segment may have many of them,
    /// so they are read in windows.
    pub(crate) fn tail(&self, from: u64, end: &SegmentEnd) -> Result<Tail, ScanError> {
        let mut search = TailSearch::new(&self.header, from, end);
        let mut buffer = ReadBuffer::default();
        loop {
            let wanted = NOTED_WINDOW_BYTES.max(search.needed());
            let is_whole = self.fill(&mut buffer, search.offset(), wanted)?;
            let is_rest = buffer.offset + buffer.bytes.len() as u64 >= self.bytes;
            if !search.look(&buffer.bytes, is_rest || !is_whole) {
                return Ok(search.judge());
            }
        }
    }

    /// Bytes to read at the end's offset, if only the buffer has ended there.
    pub(crate) fn more(&self, end: &SegmentEnd, buffer_end: u64) -> Option<usize> {
        let needed = match end.cause {
            EndCause::Truncated { needed, .. } => needed,
            EndCause::Exhausted => 1,
            _ => return None,
        };
        let more = buffer_end < self.bytes && end.offset + needed <= self.bytes;
        more.then(|| usize::try_from(needed).unwrap_or(usize::MAX))
    }
}

/// The place behind a batch.
pub(crate) fn after(batch: &Batch<'_>) -> LogOffset {
    LogOffset {
        offset: batch.offset() + batch.bytes(),
        number: batch.number() + 1,
        last_gsn: batch.last_gsn(),
    }
}

/// Bytes of a log that were valid when they were scanned have changed since.
pub(crate) fn damaged_since(
    file: &SegmentFile,
    log: u8,
    at: &LogOffset,
    cause: EndCause,
) -> ScanError {
    ScanError::Damaged {
        path: file.shown.clone(),
        log,
        offset: at.offset,
        last_gsn: at.last_gsn,
        cause: Box::new(cause),
        proof: None,
    }
}

#[cfg(test)]
mod tests {
    use stillpoint_format::log::{BatchBuilder, BatchPlace, RecordHead, RecordKind};
    use stillpoint_io::SimDisk;

    use super::*;

    const BATCH_BYTES: u64 = 4096;

    /// A segment of batches with bodies of so many bytes, each of which fills its pages, and its disk.
    fn segment_of(bodies: &[usize]) -> (SimDisk, SegmentFile) {
        let mut header = SegmentHeader {
            store: StoreId([1; 16]),
            created_ms: 0,
            incarnation: 1,
            log: 0,
            first_gsn: 1,
            first_batch: 1,
            file_bytes: 0,
        };
        let mut batches = Vec::new();
        for (number, &body) in (1..).zip(bodies) {
            let mut builder = BatchBuilder::with_capacity(BATCH_BYTES as usize);
            let head = RecordHead { gsn: number, epoch: 1, deps: &[] };
            builder.append(head, RecordKind::Writes, &vec![7; body]).expect("room");
            let (offset, align) = ((HEADER_BYTES + batches.len()) as u64, BATCH_BYTES as usize);
            let segment = &header;
            let place =
                BatchPlace { segment, offset, number, flushed_below: number, align, closed: &[] };
            batches.extend_from_slice(builder.seal(&place));
        }
        header.file_bytes = (HEADER_BYTES + batches.len()) as u64;
        let disk = SimDisk::new(1);
        let path = Path::new("segment");
        let file = disk.open(path, OpenMode::CreateNew, Caching::Buffered).expect("creates");
        file.write_at(&header.encode(), 0).expect("writes");
        file.write_at(&batches, HEADER_BYTES as u64).expect("writes");
        let opened = SegmentFile::open(&disk, path, header.store, (1, 0, 1)).expect("opens");
        (disk, opened)
    }

    /// A segment of three batches, each of which fills a page, and its disk.
    fn segment() -> (SimDisk, SegmentFile) {
        segment_of(&[4; 3])
    }

    fn reopened(disk: &SimDisk) -> Arc<dyn DiskFile> {
        disk.open(Path::new("segment"), OpenMode::ReadWrite, Caching::Buffered).expect("opens")
    }

    #[test]
    fn a_walk_ends_where_a_file_was_cut_off() {
        let (disk, segment) = segment();
        let end = HEADER_BYTES as u64 + 2 * BATCH_BYTES;
        reopened(&disk).set_len(end).expect("cuts");
        let goes_on = || Ok(ControlFlow::Continue(()));
        let walked = segment.walk(segment.begin(), 1 << 20, |_, _| goes_on());
        let (place, cause) = walked.expect("reads");
        assert_eq!((place.offset, cause), (end, Some(EndCause::Exhausted)));
        let (place, cause) = segment.walk_windows(segment.begin(), |_| goes_on()).expect("reads");
        assert_eq!((place.offset, cause), (end, Some(EndCause::Exhausted)));
    }

    /// Batches that end with a window, begin in one, and are longer than one.
    #[test]
    fn windows_lie_one_behind_the_other() {
        const HALF: usize = NOTED_WINDOW_BYTES / 2;
        let (_, segment) = segment_of(&[1, HALF - 4096, HALF - 4096, HALF - 4096, 1, 3 * HALF, 1]);
        let (mut batches, mut windows) = (vec![Vec::new()], Vec::<LogWindow>::new());
        let walked = segment.walk_windows(segment.begin(), |come_to| {
            match come_to {
                InWindow::Batch(batch, at, bytes) => {
                    let begin = windows.last().map_or(segment.begin(), |window| window.end);
                    assert_eq!((batch.number(), batch.offset()), (at.number, at.offset));
                    assert!(batch.offset() + batch.bytes() <= begin.offset + bytes.len() as u64);
                    batches.last_mut().expect("a window").push(at.number);
                }
                InWindow::End(describe) => {
                    windows.push(describe());
                    batches.push(Vec::new());
                }
            }
            Ok(ControlFlow::Continue(()))
        });
        let (end, cause) = walked.expect("reads");
        assert_eq!((end.offset, cause), (segment.bytes, Some(EndCause::Exhausted)));
        let expected: [&[u64]; 6] = [&[1, 2], &[3, 4], &[5], &[6], &[7], &[]];
        assert_eq!(batches, expected);
        let mut at = segment.begin();
        for window in &windows {
            assert_eq!(window.begin, at);
            window.read(&mut vec![0; window.bytes()]).expect("unchanged");
            at = window.end;
        }
        assert_eq!(at, end);
    }

    /// The proof of damage may lie some windows behind the end, and may be longer than a window.
    #[test]
    fn a_tail_is_judged_in_windows() {
        const LONG: usize = 5 * NOTED_WINDOW_BYTES / 2;
        for bodies in [[1, LONG, 1], [1, 1, LONG]] {
            let (disk, segment) = segment_of(&bodies);
            let is_first = |batch: &Batch<'_>| batch.number() == 1;
            let walked = segment.walk(segment.begin(), NOTED_WINDOW_BYTES, |batch, _| {
                let goes_on = ControlFlow::Continue(());
                Ok(if is_first(batch) { goes_on } else { ControlFlow::Break(()) })
            });
            let (at, _) = walked.expect("reads");
            reopened(&disk).write_at(&[0; 64], at.offset).expect("writes");
            let (offset, next_number) = (at.offset, at.number);
            let end = SegmentEnd { offset, next_number, cause: EndCause::Zero };
            let judged = segment.tail(offset, &end).expect("reads");
            assert!(
                matches!(judged, Tail::Damaged(Some(later)) if later.number == 3),
                "{bodies:?}: {judged:?}"
            );
            reopened(&disk).set_len(segment.bytes - 8).expect("cuts");
            assert_eq!(segment.tail(offset, &end).expect("reads"), Tail::End, "{bodies:?}");
        }
    }

    #[test]
    fn a_window_is_verified_when_it_is_read_again() {
        let (disk, segment) = segment();
        let mut windows = Vec::new();
        let walked = segment.walk_windows(segment.begin(), |come_to| {
            if let InWindow::End(describe) = come_to {
                windows.push(describe());
            }
            Ok(ControlFlow::Continue(()))
        });
        walked.expect("reads");
        let [window] = &windows[..] else { panic!("{} windows", windows.len()) };
        let mut bytes = vec![0; window.bytes()];
        assert_eq!(bytes.len() as u64, 3 * BATCH_BYTES);
        window.read(&mut bytes).expect("unchanged");
        let at = HEADER_BYTES as u64 + BATCH_BYTES + 70;
        reopened(&disk).write_at(b"!", at).expect("writes");
        let error = window.read(&mut bytes).expect_err("it has changed");
        assert!(matches!(error, ScanError::Damaged { log: 0, last_gsn: 1, .. }), "{error}");
    }

    /// Who needs a part of a window reads little beside it, and meets no damage elsewhere.
    #[test]
    fn a_part_of_a_window_is_read_and_verified_alone() {
        let (disk, segment) = segment_of(&[1, 2 * PIECE_BYTES]);
        let mut windows = Vec::new();
        let walked = segment.walk_windows(segment.begin(), |come_to| {
            if let InWindow::End(describe) = come_to {
                windows.push(describe());
            }
            Ok(ControlFlow::Continue(()))
        });
        walked.expect("reads");
        let [window] = &windows[..] else { panic!("{} windows", windows.len()) };
        let mut whole = vec![0; window.bytes()];
        window.read(&mut whole).expect("unchanged");
        let last = 2 * PIECE_BYTES;
        assert!((last + 1..last + PIECE_BYTES).contains(&whole.len()), "{} bytes", whole.len());
        let mut part = AlignedBuf::new();
        let cases = [
            (0..1, 0..PIECE_BYTES),
            (PIECE_BYTES - 1..PIECE_BYTES, 0..PIECE_BYTES),
            (PIECE_BYTES..PIECE_BYTES + 1, PIECE_BYTES..last),
            (PIECE_BYTES - 1..PIECE_BYTES + 1, 0..last),
            (last + 5..usize::MAX / 2, last..whole.len()),
        ];
        for (wanted, expected) in cases {
            let range = window.read_part(wanted, &mut part).expect("unchanged");
            assert_eq!(range, expected);
            assert_eq!(part[..], whole[range]);
        }
        let at = window.begin.offset + PIECE_BYTES as u64;
        reopened(&disk).write_at(b"!", at).expect("writes");
        window.read_part(0..5, &mut part).expect("the damage is elsewhere");
        window.read_part(last..last + 1, &mut part).expect("the damage is elsewhere");
        let error = window.read_part(0..PIECE_BYTES + 1, &mut part).expect_err("it has changed");
        assert!(matches!(error, ScanError::Damaged { log: 0, last_gsn: 1, .. }), "{error}");
        reopened(&disk).write_at(&whole[PIECE_BYTES..][..1], at).expect("writes");
        reopened(&disk).set_len(segment.bytes - 1).expect("cuts");
        window.read_part(0..PIECE_BYTES + 1, &mut part).expect("it is there");
        window.read_part(last..last + 1, &mut part).expect_err("it was cut off");
    }
}
