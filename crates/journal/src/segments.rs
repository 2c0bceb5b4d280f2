//! The segment files of one log: prepared ahead, named when used, recycled when freed.
//!
//! ```text
//!   prepare ──▶ spare-N ──roll──▶ <incarnation>-<first gsn> ──release──▶ spare-M or removed
//!   (allocated, flushed)  (renamed by the flush that first writes into it)
//! ```
//!
//! A batch gets its place in an allocated segment before a record is added. So a full disk refuses
//! records and never breaks a flush. A recycled segment keeps its old bytes, which never validate
//! under the new segment's identity.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stillpoint_format::ident::{HEADER_BYTES, Identity};
use stillpoint_format::log::{BatchReader, EndCause, SegmentHeader, Step};
use stillpoint_format::names;
use stillpoint_io::{
    AlignedBuf, Caching, DIRECT_ALIGN, Disk, DiskError, DiskFile, DiskResult, OpenMode,
};

use crate::error::JournalError;
use crate::journal::{Config, Durability, EarlierSegment, Environment};
use crate::monitor::Monitor;
use crate::room::Room;

/// Prefix of the names of prepared segments, which hold no records.
pub(crate) const SPARE_PREFIX: &str = "spare-";
/// Interval at which a waiting append checks again, in case a wake-up was missed.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Bytes of zeros in one write.
const ZEROS_BYTES: u64 = 1 << 20;

/// A file with allocated space and no records.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Whether the file was a segment before.
    pub(crate) reused: bool,
}

/// A segment that batches are placed in. The segment's first batch gives the file its name.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) header: SegmentHeader,
    pub(crate) identity: Identity,
    pub(crate) bytes: u64,
    /// The name under which the file was prepared, and its name as a segment.
    pub(crate) spare: PathBuf,
    pub(crate) path: PathBuf,
}

/// A segment file with records, of this incarnation or an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) incarnation: u32,
    pub(crate) first_gsn: u64,
    pub(crate) bytes: u64,
    pub(crate) path: PathBuf,
}

impl From<&EarlierSegment> for Kept {
    fn from(of: &EarlierSegment) -> Self {
        let EarlierSegment { incarnation, first_gsn, bytes, ref path, .. } = *of;
        Kept { incarnation, first_gsn, bytes, path: path.clone() }
    }
}

/// The prepared segments in the directory of a log. A failed start has left segments of
/// `incarnation` or a later one. These segments hold no record, and become prepared ones.
pub(crate) fn list_spares(
    disk: &dyn Disk,
    log: u8,
    incarnation: u32,
) -> Result<Vec<Spare>, JournalError> {
    let dir = PathBuf::from(names::log_dir(log));
    let mut spares = Vec::new();
    let mut left = Vec::new();
    let mut listed = match disk.list(&dir) {
        Ok(listed) => listed,
        Err(error) if error.is_not_found() => return Ok(spares),
        Err(error) => return Err(error.into()),
    };
    listed.sort();
    for name in listed {
        let path = dir.join(&name);
        let segment = names::parse_segment_name(&name);
        if segment.is_none() && !name.starts_with(SPARE_PREFIX) {
            continue;
        }
        let bytes = disk.open(&path, OpenMode::Read, Caching::Buffered)?.len()?;
        match segment {
            Some((of, _)) if of < incarnation => {}
            Some((of, _)) => {
                refuse_records(disk, &path, of)?;
                left.push(Spare { path, bytes, reused: true });
            }
            None => spares.push(Spare { path, bytes, reused: true }),
        }
    }
    // The header will be overwritten. So the file must lose its segment name durably first, since a
    // crash could bring the name back.
    let is_renamed = !left.is_empty();
    for mut spare in left {
        let path = dir.join(spare_name(next_spare(&spares)));
        disk.rename(&spare.path, &path)?;
        spare.path = path;
        spares.push(spare);
    }
    if is_renamed {
        disk.sync_dir(&dir)?;
    }
    Ok(spares)
}

fn spare_name(number: u64) -> String {
    format!("{SPARE_PREFIX}{number:06}")
}

/// The first number that no prepared segment has.
fn next_spare(spares: &[Spare]) -> u64 {
    let number = |spare: &Spare| {
        let name = spare.path.file_name()?.to_str()?;
        name.strip_prefix(SPARE_PREFIX)?.parse::<u64>().ok()
    };
    spares.iter().filter_map(number).max().map_or(0, |last| last + 1)
}

/// An incarnation is used once, so a segment of it with records must not be overwritten.
fn refuse_records(disk: &dyn Disk, path: &Path, incarnation: u32) -> Result<(), JournalError> {
    let file = disk.open(path, OpenMode::Read, Caching::Buffered)?;
    let mut start = AlignedBuf::zeroed(HEADER_BYTES + DIRECT_ALIGN);
    let read = file.read_at(&mut start, 0)?;
    let Ok(header) = SegmentHeader::decode(&start[..read]) else {
        return Ok(());
    };
    if header.incarnation != incarnation {
        return Ok(());
    }
    let step = BatchReader::new(&header, &start[..read]).next_batch();
    match step {
        Step::End(end) if !matches!(end.cause, EndCause::Truncated { .. }) => Ok(()),
        _ => Err(JournalError::Configuration {
            field: "incarnation",
            value: u64::from(incarnation),
            requirement: "it has records already; an incarnation is opened once, recover first",
        }),
    }
}

/// The kind of record that takes a prepared segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taker {
    /// Any record: pinned segments stay.
    Any,
    /// A record for which room was set aside. Such a record may take a pinned segment, if there is
    /// no other.
    Undo,
}

#[derive(Debug, Default)]
struct Shelf {
    ready: VecDeque<Spare>,
    /// Number of the next spare's name.
    next_name: u64,
    /// The reason why the last preparation failed. The next success clears the reason.
    refused: Option<Arc<DiskError>>,
    /// The reason why nothing will be prepared any more: the thread that prepares has ended.
    ended: Option<JournalError>,
    /// Whether the log takes records. Nothing is prepared for an unused log.
    in_use: bool,
    made: u64,
    /// Segments of ordinary length that are kept for records with room set aside.
    pinned: usize,
}

/// The prepared segments of one log.
#[derive(Debug)]
pub(crate) struct Stock {
    log: u8,
    dir: PathBuf,
    segment_bytes: u64,
    ahead: usize,
    keep: usize,
    background: bool,
    /// Whether fresh segments are filled with zeros. A first write into merely reserved space
    /// changes the file system's metadata, and a flush of 4 KiB then takes 1.5 times as long.
    write_zeros: bool,
    disk: Arc<dyn Disk>,
    room: Arc<Room>,
    shelf: Monitor<Shelf>,
}

impl Stock {
    pub(crate) fn new(
        env: &Environment,
        config: &Config,
        log: u8,
        spares: Vec<Spare>,
        room: Arc<Room>,
    ) -> Self {
        let next_name = next_spare(&spares);
        let shelf = Shelf { ready: spares.into(), next_name, ..Shelf::default() };
        Stock {
            log,
            dir: PathBuf::from(names::log_dir(log)),
            segment_bytes: config.segment_bytes,
            ahead: config.spare_segments,
            keep: config.recycled_segments,
            background: config.background,
            write_zeros: config.durability == Durability::Strict,
            disk: Arc::clone(&env.disk),
            room,
            shelf: Monitor::new(shelf),
        }
    }

    /// Whether a prepared segment serves an append that needs `bytes`. A segment of ordinary
    /// length serves ordinary needs only, and a longer one waits for the record that needs it.
    fn serves(&self, spare: &Spare, bytes: u64) -> bool {
        if bytes <= self.segment_bytes {
            spare.bytes == self.segment_bytes
        } else {
            spare.bytes >= bytes
        }
    }

    /// A prepared segment of at least `bytes`, if one is ready.
    pub(crate) fn take(&self, bytes: u64, taker: Taker) -> Option<Spare> {
        let mut shelf = self.shelf.lock();
        if taker == Taker::Any && bytes <= self.segment_bytes && self.unpinned(&shelf) == 0 {
            return None;
        }
        let at = shelf.ready.iter().position(|spare| self.serves(spare, bytes))?;
        if taker == Taker::Undo {
            shelf.pinned = shelf.pinned.saturating_sub(1);
        }
        shelf.ready.remove(at)
    }

    /// Pins `count` segments of ordinary length. False if there are fewer.
    pub(crate) fn pin(&self, count: usize) -> bool {
        let mut shelf = self.shelf.lock();
        let there = self.ordinary(&shelf) >= count;
        if there {
            shelf.pinned = count;
        }
        there
    }

    /// Unpins all segments.
    pub(crate) fn unpin(&self) {
        self.shelf.lock().pinned = 0;
    }

    /// Prepares segments until `count` of ordinary length are ready.
    pub(crate) fn provide_spares(&self, count: usize) -> Result<(), JournalError> {
        while self.ordinary(&self.shelf.lock()) < count {
            let made = self.prepare(self.segment_bytes);
            self.put(made.map_err(|source| self.no_space(Arc::new(source)))?);
        }
        Ok(())
    }

    /// Waits until a segment of at least `bytes` is ready, or prepares it.
    /// `hurry` wakes the thread that prepares.
    pub(crate) fn provide(&self, bytes: u64, hurry: &dyn Fn()) -> Result<(), JournalError> {
        let is_ready = |shelf: &Shelf| {
            let is_free = bytes > self.segment_bytes || self.unpinned(shelf) > 0;
            is_free && shelf.ready.iter().any(|spare| self.serves(spare, bytes))
        };
        if !self.background || bytes > self.segment_bytes {
            if is_ready(&self.shelf.lock()) {
                return Ok(());
            }
            let made = self.prepare(bytes.max(self.segment_bytes));
            self.put(made.map_err(|source| self.no_space(Arc::new(source)))?);
            return Ok(());
        }
        let mut shelf = self.shelf.lock();
        loop {
            if is_ready(&shelf) {
                return Ok(());
            }
            if let Some(source) = &shelf.refused {
                return Err(self.no_space(Arc::clone(source)));
            }
            if let Some(ended) = &shelf.ended {
                return Err(ended.clone());
            }
            shelf.in_use = true;
            hurry();
            shelf = self.shelf.wait_for(shelf, LOOK_AGAIN);
        }
    }

    /// Whether fewer segments are prepared than wanted.
    pub(crate) fn is_short(&self) -> bool {
        let shelf = self.shelf.lock();
        shelf.in_use && self.unpinned(&shelf) < self.ahead
    }

    /// Number of ready segments of ordinary length.
    fn ordinary(&self, shelf: &Shelf) -> usize {
        shelf.ready.iter().filter(|spare| self.is_ordinary(spare)).count()
    }

    fn is_ordinary(&self, spare: &Spare) -> bool {
        spare.bytes == self.segment_bytes
    }

    /// Number of ready segments of ordinary length that any record may take.
    fn unpinned(&self, shelf: &Shelf) -> usize {
        self.ordinary(shelf).saturating_sub(shelf.pinned)
    }

    /// Notes that the log takes records, so that segments are prepared for it.
    #[cold]
    pub(crate) fn begin_use(&self) {
        self.shelf.lock().in_use = true;
    }

    /// Ends the preparation of segments.
    pub(crate) fn end(&self, error: JournalError) {
        self.shelf.lock().ended.get_or_insert(error);
        self.shelf.notify_all();
    }

    /// Removes prepared segments until this number of bytes is free on the disk.
    pub(crate) fn shed(&self, bytes: u64) -> Result<(), DiskError> {
        while self.room.lacks(bytes)? {
            let mut shelf = self.shelf.lock();
            let is_kept = self.unpinned(&shelf) == 0;
            let Some(spare) =
                shelf.ready.pop_back_if(|spare| !(is_kept && self.is_ordinary(spare)))
            else {
                return Ok(());
            };
            drop(shelf);
            if let Err(error) = self.disk.remove(&spare.path) {
                self.put(spare);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Prepares missing segments. Returns false if the disk refused.
    pub(crate) fn fill(&self) -> bool {
        while self.is_short() {
            match self.prepare(self.segment_bytes) {
                Ok(spare) => self.put(spare),
                Err(error) => {
                    self.shelf.lock().refused = Some(Arc::new(error));
                    self.shelf.notify_all();
                    return false;
                }
            }
        }
        true
    }

    /// The reason why nothing can be prepared at present. `None` if a segment is ready.
    pub(crate) fn refusal(&self) -> Option<JournalError> {
        let shelf = self.shelf.lock();
        let source = shelf.refused.as_ref().filter(|_| self.unpinned(&shelf) == 0)?;
        Some(self.no_space(Arc::clone(source)))
    }

    /// Number of new segments made so far, as opposed to recycled ones.
    pub(crate) fn made(&self) -> u64 {
        self.shelf.lock().made
    }

    fn no_space(&self, source: Arc<DiskError>) -> JournalError {
        JournalError::NoSpace { log: self.log, source }
    }

    fn put(&self, spare: Spare) {
        let mut shelf = self.shelf.lock();
        shelf.refused = None;
        shelf.ready.push_back(spare);
        drop(shelf);
        self.shelf.notify_all();
    }

    fn next_path(&self) -> PathBuf {
        let mut shelf = self.shelf.lock();
        let path = self.dir.join(spare_name(shelf.next_name));
        shelf.next_name += 1;
        path
    }

    /// Makes a file with allocated space. A failure leaves nothing behind.
    fn prepare(&self, bytes: u64) -> Result<Spare, DiskError> {
        let path = self.next_path();
        self.room.check(&path, bytes)?;
        let file = self.disk.open(&path, OpenMode::CreateNew, Caching::Direct)?;
        // A transaction prepares the segment for a single long record itself, with its locks held.
        // So the space is only reserved. The flush of the segment's header makes the reserved space
        // durable.
        let is_hurried = bytes > self.segment_bytes;
        let zeros = if self.write_zeros && !is_hurried { bytes } else { 0 };
        let allocated = file.allocate(bytes).and_then(|()| write_zeros(&*file, zeros));
        let flush = || if is_hurried { Ok(()) } else { file.sync() };
        if let Err(error) = allocated.and_then(|()| flush()) {
            drop(file);
            // A file that cannot be removed now becomes a prepared segment at the next opening.
            let _ = self.disk.remove(&path);
            return Err(error);
        }
        self.room.took(bytes);
        self.shelf.lock().made += 1;
        Ok(Spare { path, bytes, reused: false })
    }

    /// Takes back a prepared segment that was not used.
    pub(crate) fn put_back(&self, segment: &Segment) {
        self.put(Spare { path: segment.spare.clone(), bytes: segment.bytes, reused: true });
    }

    /// The first segment of the log, of `bytes` unless one is ready.
    pub(crate) fn first(&self, bytes: u64) -> Result<Spare, JournalError> {
        match self.take(bytes, Taker::Undo) {
            Some(spare) => Ok(spare),
            None => self.prepare(bytes).map_err(|source| JournalError::NoRoomToStart {
                log: self.log,
                bytes,
                source: Arc::new(source),
            }),
        }
    }

    /// Takes back a segment whose records are no longer needed.
    pub(crate) fn give_back(&self, kept: &Kept) -> Result<(), DiskError> {
        let room = self.shelf.lock().ready.len() < self.keep;
        let is_tight = || self.room.is_short(&kept.path, self.segment_bytes);
        if !room || kept.bytes != self.segment_bytes || is_tight() {
            return self.disk.remove(&kept.path);
        }
        let path = self.next_path();
        // A crash may bring the old name back, with another segment's bytes. No reader opens the
        // file then, since the next segment's name says that this one is in the checkpoint.
        self.disk.rename(&kept.path, &path)?;
        self.put(Spare { path, bytes: kept.bytes, reused: true });
        Ok(())
    }
}

/// Writes zeros over the first `bytes` of a file.
fn write_zeros(file: &dyn DiskFile, bytes: u64) -> DiskResult<()> {
    let block = AlignedBuf::zeroed(bytes.min(ZEROS_BYTES) as usize);
    let mut offset = 0;
    while offset < bytes {
        let len = (bytes - offset).min(ZEROS_BYTES) as usize;
        file.write_at(&block[..len], offset)?;
        offset += len as u64;
    }
    Ok(())
}
