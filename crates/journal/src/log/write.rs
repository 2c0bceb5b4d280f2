//! The writing half of a log: the leader of a group writes sealed batches.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::LogGsn;
use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_format::log::{BatchPlace, Continuation};
use stillpoint_io::{AlignedBuf, Caching, DIRECT_ALIGN, Disk, DiskFile, DiskResult, OpenMode};
use stillpoint_sync::{mutant, planted};

use super::append::Batch;
use crate::closing::{Closing, Named};
use crate::segments::Segment;

/// Size of a write call, in bytes, that no further batch joins. Devices take a few large writes
/// faster than many small ones.
const CALL_BYTES: u64 = 4 << 20;

/// Bytes of a piece of a grown batch. The batch's buffer may be unaligned for a direct write, so
/// the batch is copied and written in pieces. So a long value is not in memory a second time.
const PIECE_BYTES: usize = 1 << 20;

/// A segment that the log has left, and the mark that goes to its end.
#[derive(Debug)]
struct Filled {
    file: Arc<dyn DiskFile>,
    offset: u64,
    mark: AlignedBuf,
}

/// The state that only the leader touches.
#[derive(Debug)]
pub(crate) struct Writer {
    dir: PathBuf,
    pub(crate) queue: VecDeque<Batch>,
    /// The batches of the last call, whose buffers may be used again.
    pub(crate) written: Vec<Batch>,
    segment: Arc<Segment>,
    file: Arc<dyn DiskFile>,
    /// Offset of the next batch in the file.
    offset: u64,
    /// Segments that were filled since the last flush.
    filled: Vec<Filled>,
    /// Whether the directory has names that are not durable.
    names_dirty: bool,
    /// Scratch: closed positions of the other logs.
    closed: Vec<LogGsn>,
    /// Gsn of the last record written.
    pub(crate) written_gsn: u64,
    /// Number of the batch after the last one written.
    next_number: u64,
    /// All batches with smaller numbers are flushed.
    flushed_below: u64,
    /// Dependencies of records that are written and not flushed.
    pub(crate) named: Vec<Named>,
    /// Set while a leader works. If the next leader finds the flag set, the last leader panicked.
    pub(crate) busy: bool,
}

impl Writer {
    /// `file` is that of the first segment, whose header is durable.
    pub(crate) fn new(
        dir: PathBuf,
        segment: Arc<Segment>,
        file: Arc<dyn DiskFile>,
        floor: u64,
        logs: u8,
    ) -> Self {
        Writer {
            dir,
            queue: VecDeque::new(),
            written: Vec::new(),
            next_number: segment.header.first_batch,
            flushed_below: segment.header.first_batch,
            segment,
            file,
            offset: HEADER_BYTES as u64,
            filled: Vec::new(),
            names_dirty: false,
            closed: Vec::with_capacity(logs.into()),
            written_gsn: floor,
            named: Vec::new(),
            busy: false,
        }
    }

    /// Writes the adjacent batches at the front of the queue by one call, and leaves them in
    /// `written`. Returns the batches' bytes on disk.
    pub(crate) fn write_next(&mut self, disk: &dyn Disk, closing: &Closing) -> DiskResult<u64> {
        let Some(first) = self.queue.front() else {
            return Ok(0);
        };
        let (segment, from) = (Arc::clone(&first.segment), first.offset);
        if !Arc::ptr_eq(&segment, &self.segment) {
            self.begin_segment(disk, &segment)?;
        }
        closing.others_closed(segment.header.log, &mut self.closed);
        let mut bytes = 0;
        while bytes < CALL_BYTES
            && let Some(mut batch) =
                self.queue.pop_front_if(|next| Arc::ptr_eq(&next.segment, &segment))
        {
            assert!(batch.number == self.next_number, "batches are written in order");
            assert!(batch.offset == from + bytes, "batches lie behind one another");
            bytes += self.seal(&mut batch);
            self.next_number += 1;
            self.written.push(batch);
        }
        assert!(from + bytes <= segment.bytes, "only allocated space");
        self.write_sealed(from)?;
        self.offset = from + bytes;
        for batch in &mut self.written {
            self.written_gsn = batch.builder.last_gsn().unwrap_or(self.written_gsn);
            self.named.append(&mut batch.named);
        }
        Ok(bytes)
    }

    /// Seals a batch. Returns the batch's bytes.
    fn seal(&self, batch: &mut Batch) -> u64 {
        let bytes = batch.builder.seal(&BatchPlace {
            segment: &self.segment.header,
            offset: batch.offset,
            number: batch.number,
            flushed_below: self.flushed_below,
            align: DIRECT_ALIGN,
            closed: &self.closed,
        });
        bytes.len() as u64
    }

    /// Writes the sealed, adjacent batches.
    fn write_sealed(&self, from: u64) -> DiskResult<()> {
        let batches = || self.written.iter().map(Batch::bytes);
        if batches().all(|bytes| bytes.as_ptr().addr().is_multiple_of(DIRECT_ALIGN)) {
            let slices: Vec<_> = batches().map(IoSlice::new).collect();
            return self.file.write_vectored_at(&slices, from);
        }
        let mut aligned = AlignedBuf::new();
        let mut at = from;
        for piece in batches().flat_map(|bytes| bytes.chunks(PIECE_BYTES)) {
            aligned.clear();
            aligned.extend_from_slice(piece);
            self.file.write_at(&aligned, at)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Switches to another file.
    fn begin_segment(&mut self, disk: &dyn Disk, segment: &Arc<Segment>) -> DiskResult<()> {
        let file = name_segment(disk, segment)?;
        // A segment without a batch has the same name, and has just been replaced.
        if self.offset > HEADER_BYTES as u64 {
            let header = &segment.header;
            let next =
                Continuation { first_batch: header.first_batch, first_gsn: header.first_gsn };
            let mut mark = AlignedBuf::new();
            mark.extend_from_slice(&next.encode(&self.segment.header, self.offset));
            let file = Arc::clone(&self.file);
            self.filled.push(Filled { file, offset: self.offset, mark });
        }
        (self.file, self.offset) = (file, HEADER_BYTES as u64);
        self.segment = Arc::clone(segment);
        self.names_dirty = true;
        Ok(())
    }

    /// Whether written bytes are not flushed yet.
    pub(crate) fn is_dirty(&self) -> bool {
        self.next_number != self.flushed_below
    }

    /// Makes everything written durable.
    pub(crate) fn flush(&mut self, disk: &dyn Disk) -> DiskResult<()> {
        // The names come first: a mark must not name a segment that a crash takes away.
        if self.names_dirty {
            mutant!(disk.sync_dir(&self.dir)?, DirectoryNotFlushed => ());
            self.names_dirty = false;
        }
        for Filled { file, offset, mark } in self.filled.drain(..) {
            file.write_at(&mark, offset)?;
            file.sync()?;
        }
        self.file.sync()?;
        self.flushed_below = self.next_number;
        Ok(())
    }
}

/// Writes the segment's header into a prepared file, flushes it, and then gives the file its name.
/// So a segment that can be found has an intact header. The name is not durable yet.
pub(crate) fn name_segment(disk: &dyn Disk, segment: &Segment) -> DiskResult<Arc<dyn DiskFile>> {
    let prepared = disk.open(&segment.spare, OpenMode::ReadWrite, Caching::Direct)?;
    let mut header = AlignedBuf::new();
    header.extend_from_slice(&segment.header.encode());
    prepared.write_at(&header, 0)?;
    prepared.sync()?;
    disk.rename(&segment.spare, &segment.path)?;
    // Opened anew, so that messages carry the new name.
    disk.open(&segment.path, OpenMode::ReadWrite, Caching::Direct)
}

/// Makes a directory and the names of its parents durable.
pub(crate) fn create_dir(disk: &dyn Disk, dir: &Path) -> DiskResult<()> {
    disk.create_dir_all(dir)?;
    dir.ancestors().skip(1).try_for_each(|parent| disk.sync_dir(parent))
}
