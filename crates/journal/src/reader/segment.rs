//! Scans one segment in buffers of bounded size.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::DecodeError;
use stillpoint_format::ident::{HEADER_BYTES, StoreId};
use stillpoint_format::log::{Batch, BatchReader, EndCause, SegmentEnd, SegmentHeader, Step};
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

/// Bytes of a window that a receiver of writes may keep.
const KEPT_WINDOW_BYTES: usize = 4 << 20;
/// Bytes that are read at once into such a window. They are decoded from a cache of the processor.
const STEP_BYTES: usize = 512 << 10;

/// What a walk through the windows of a segment comes to.
pub(crate) enum InWindow<'a> {
    /// A batch, with its place, and the window that has its bytes.
    Batch(&'a Batch<'a>, &'a LogOffset, &'a [u8]),
    /// The end of a window, whose bytes may be taken.
    End(&'a mut AlignedBuf),
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

    /// Has the buffer hold up to `len` bytes from `offset` on. Reads those alone that it lacks.
    fn fill(&self, buffer: &mut ReadBuffer, offset: u64, len: usize) -> Result<(), ScanError> {
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
        Ok(())
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
            self.fill(&mut buffer, at.offset, len)?;
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
                Some(needed) => len = window_bytes.max(needed),
                None => return Ok((at, Some(end.cause))),
            }
        }
    }

    /// As [`walk`](Self::walk), in windows that the visitor may keep. Each window ends, also the one in which
    /// the visitor breaks. An error ends the walk at once.
    pub(crate) fn walk_windows(
        &self,
        from: LogOffset,
        mut visit: impl FnMut(InWindow<'_>) -> Result<ControlFlow<()>, ScanError>,
    ) -> Result<(LogOffset, Option<EndCause>), ScanError> {
        let mut window = AlignedBuf::new();
        let (mut at, mut len) = (from, KEPT_WINDOW_BYTES);
        loop {
            let (begin, mut filled, mut is_cut_off) = (at.offset, 0, false);
            let left = usize::try_from(self.bytes.saturating_sub(begin)).unwrap_or(usize::MAX);
            if window.len() < len.min(left) {
                window = AlignedBuf::zeroed(len.min(left));
            }
            let end = loop {
                let rest = &window[(at.offset - begin) as usize..filled];
                let step =
                    BatchReader::window(&self.header, rest, at.offset, at.number, at.last_gsn)
                        .next_batch();
                match step {
                    Step::Batch(batch) => {
                        if visit(InWindow::Batch(&batch, &at, &window))?.is_break() {
                            let _ = visit(InWindow::End(&mut window))?;
                            return Ok((at, None));
                        }
                        at = after(&batch);
                    }
                    Step::End(end) => {
                        let more = self.more(&end, begin + filled as u64);
                        let most = len.min(left);
                        let Some(more) = more.filter(|_| filled < most) else { break end };
                        let wanted = STEP_BYTES.max(more).min(most - filled);
                        let part = &mut window[filled..filled + wanted];
                        match self.file.read_at(part, begin + filled as u64)? {
                            0 => {
                                is_cut_off = true;
                                break end;
                            }
                            read => filled += read,
                        }
                    }
                }
            };
            let _ = visit(InWindow::End(&mut window))?;
            match self.more(&end, begin + filled as u64) {
                Some(needed) if !is_cut_off => len = KEPT_WINDOW_BYTES.max(needed),
                _ => return Ok((at, Some(end.cause))),
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
