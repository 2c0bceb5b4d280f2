//! The writing half of a log: what the leader of a group does with sealed batches.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::log::BatchPlace;
use stillpoint_io::{AlignedBuf, Caching, DIRECT_ALIGN, Disk, DiskFile, DiskResult, OpenMode};
use stillpoint_sync::planted::{Bug, is_planted};

use super::append::Batch;
use crate::closing::Named;
use crate::segments::Segment;

/// The state that only the leader touches.
#[derive(Debug)]
pub(crate) struct Writer {
    dir: PathBuf,
    pub(crate) queue: VecDeque<Batch>,
    segment: Arc<Segment>,
    file: Arc<dyn DiskFile>,
    /// Files of segments that were filled since the last flush.
    filled: Vec<Arc<dyn DiskFile>>,
    /// The directory has names that are not durable.
    names_dirty: bool,
    /// Gsn of the last record written.
    pub(crate) written_gsn: u64,
    /// Number of the batch after the last one written.
    next_number: u64,
    /// All batches with smaller numbers are flushed.
    flushed_below: u64,
    /// Dependencies of records that are written and not flushed.
    pub(crate) named: Vec<Named>,
    /// Where a batch goes whose buffer is not aligned.
    bounce: AlignedBuf,
    /// A leader has begun and not ended: if it is found set, that leader panicked.
    pub(crate) busy: bool,
}

impl Writer {
    /// `file` is that of the first segment, whose header is durable.
    pub(crate) fn new(
        dir: PathBuf,
        segment: Arc<Segment>,
        file: Arc<dyn DiskFile>,
        floor: u64,
    ) -> Self {
        Writer {
            dir,
            queue: VecDeque::new(),
            next_number: segment.header.first_batch,
            flushed_below: segment.header.first_batch,
            segment,
            file,
            filled: Vec::new(),
            names_dirty: false,
            written_gsn: floor,
            named: Vec::new(),
            bounce: AlignedBuf::new(),
            busy: false,
        }
    }

    /// Writes a batch into its place; returns its bytes on disk.
    pub(crate) fn write(&mut self, disk: &dyn Disk, batch: &mut Batch) -> DiskResult<u64> {
        if !Arc::ptr_eq(&batch.segment, &self.segment) {
            self.begin_segment(disk, &batch.segment)?;
        }
        assert!(batch.number == self.next_number, "batches are written in order");
        let last_gsn = batch.builder.last_gsn().unwrap_or(self.written_gsn);
        let bytes = batch.builder.seal(&BatchPlace {
            segment: &self.segment.header,
            offset: batch.offset,
            number: batch.number,
            flushed_below: self.flushed_below,
            align: DIRECT_ALIGN,
        });
        assert!(batch.offset + bytes.len() as u64 <= self.segment.bytes, "only allocated space");
        if bytes.as_ptr().addr().is_multiple_of(DIRECT_ALIGN) {
            self.file.write_at(bytes, batch.offset)?;
        } else {
            self.bounce.clear();
            self.bounce.extend_from_slice(bytes);
            self.file.write_at(&self.bounce, batch.offset)?;
        }
        self.next_number += 1;
        self.written_gsn = last_gsn;
        self.named.append(&mut batch.named);
        Ok(bytes.len() as u64)
    }

    /// Goes on in another file.
    fn begin_segment(&mut self, disk: &dyn Disk, segment: &Arc<Segment>) -> DiskResult<()> {
        self.filled.push(Arc::clone(&self.file));
        self.file = name_segment(disk, segment)?;
        self.segment = Arc::clone(segment);
        self.names_dirty = true;
        Ok(())
    }

    /// True if something is written and not flushed.
    pub(crate) fn is_dirty(&self) -> bool {
        self.next_number != self.flushed_below
    }

    /// Makes everything written durable.
    pub(crate) fn flush(&mut self, disk: &dyn Disk) -> DiskResult<()> {
        for file in self.filled.drain(..) {
            file.sync()?;
        }
        self.file.sync()?;
        if self.names_dirty && !is_planted(Bug::DirectoryNotFlushed) {
            disk.sync_dir(&self.dir)?;
            self.names_dirty = false;
        }
        self.flushed_below = self.next_number;
        Ok(())
    }

    /// Bytes of memory of its own.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.bounce.capacity() as u64
    }
}

/// Writes the segment's header into a prepared file, flushes it, and then gives the file its
/// name: a segment that can be found has an intact header. The name is not durable yet.
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
