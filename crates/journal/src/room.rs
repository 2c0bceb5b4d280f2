//! Space on the disk: what the logs may take of it, and what they leave.
//!
//! ```text
//!  ├── files ──┤── free, for further segments ──┤── reserve: the next checkpoint ──┤
//! ```
//! The checkpoint is what frees the log, so its space comes before that of a further segment. A
//! record that finds no segment then is refused while the checkpoint still fits, and writes resume
//! when it is published. On a small disk segments are smaller, so that those that hold nothing yet
//! do not fill it.

use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use stillpoint_io::{DIRECT_ALIGN, Disk, DiskError, DiskResult, Space};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Segments that hold nothing yet take at most this part of the disk, in all logs together.
const SHARE_OF_DISK: u64 = 16;
/// A segment of this length or less is not made smaller: it holds few batches.
const SEGMENT_BYTES_SMALL: u64 = 64 << 10;

/// How much of the disk a further segment may take.
#[derive(Debug)]
pub(crate) struct Room {
    disk: Arc<dyn Disk>,
    reserve_bytes: AtomicU64,
}

impl Room {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, reserve_bytes: AtomicU64::new(0) }
    }

    /// Keeps so much space from further segments.
    pub(crate) fn set_reserve(&self, bytes: u64) {
        // Relaxed: a figure of its own; a segment prepared meanwhile may still see the old one.
        self.reserve_bytes.store(bytes, Relaxed);
    }

    /// A segment was prepared. What is going to be logged there may make the next checkpoint larger
    /// by as much: so it is until the reserve is set again.
    pub(crate) fn took(&self, bytes: u64) {
        // Relaxed: as in `set_reserve`.
        let grown = |reserve: u64| (reserve > 0).then(|| reserve.saturating_add(bytes));
        let _ = self.reserve_bytes.fetch_update(Relaxed, Relaxed, grown);
    }

    fn free_bytes(&self) -> DiskResult<Option<u64>> {
        Ok(self.disk.space()?.map(|space| space.free_bytes))
    }

    /// Refuses a segment of so many bytes that would reach into the reserve.
    pub(crate) fn check(&self, path: &Path, bytes: u64) -> DiskResult<()> {
        // Relaxed: partner of the store in `set_reserve`.
        let reserve = self.reserve_bytes.load(Relaxed);
        match self.free_bytes()? {
            Some(free) if reserve > 0 && free < reserve.saturating_add(bytes) => {
                let why = format!(
                    "{free} bytes are free, and {reserve} of them are kept for the next checkpoint, \
                     which frees the log"
                );
                let op = format!("allocate {bytes} bytes of");
                let path = self.disk.describe(path);
                Err(DiskError::new(op, path, Error::new(ErrorKind::StorageFull, why)))
            }
            _ => Ok(()),
        }
    }

    /// True unless so many bytes are free, or nobody knows.
    pub(crate) fn lacks(&self, bytes: u64) -> DiskResult<bool> {
        Ok(self.free_bytes()?.is_some_and(|free| free < bytes))
    }

    /// True if a further segment of so many bytes would be refused.
    pub(crate) fn is_short(&self, path: &Path, bytes: u64) -> bool {
        self.check(path, bytes).is_err()
    }
}

/// Length of a segment on a disk of this size: at most `wanted`, in `segments` at a time.
pub(crate) fn fit_segment(wanted: u64, segments: u64, space: Option<Space>) -> u64 {
    let Some(space) = space else { return wanted };
    let share = space.total_bytes / SHARE_OF_DISK / segments.max(1);
    let fitting = share.max(SEGMENT_BYTES_SMALL) / DIRECT_ALIGN as u64 * DIRECT_ALIGN as u64;
    wanted.min(fitting)
}

/// Length of the first segment of a log: shorter than the others, since a log that takes no records
/// keeps it empty.
pub(crate) fn first_segment(segment_bytes: u64) -> u64 {
    let quarter = segment_bytes / 4 / DIRECT_ALIGN as u64 * DIRECT_ALIGN as u64;
    if quarter < SEGMENT_BYTES_SMALL { segment_bytes } else { quarter }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_follow_the_size_of_the_disk() {
        let of = |total_bytes| Some(Space { free_bytes: total_bytes, total_bytes });
        assert_eq!(fit_segment(64 << 20, 6, None), 64 << 20);
        assert_eq!(fit_segment(64 << 20, 48, of(1 << 40)), 64 << 20);
        for (megabytes, logs) in [(400, 2), (80, 2), (80, 16), (400, 16), (10_000, 16)] {
            let total = megabytes << 20;
            let fitted = fit_segment(64 << 20, 3 * logs, of(total));
            assert!(fitted.is_multiple_of(4096) && fitted >= 64 << 10, "{fitted}");
            assert!(fitted * 3 * logs <= total / 10, "{megabytes} MB, {logs} logs: {fitted}");
        }
        assert_eq!(fit_segment(16 << 10, 6, of(80 << 20)), 16 << 10, "never longer than asked for");
    }
}
