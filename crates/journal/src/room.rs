//! Disk space: the part that the logs may take, and the part that they must leave.
//!
//! ```text
//!  ├── files ──┤── free, for further segments ──┤── reserve: the next checkpoint ──┤
//! ```
//! A checkpoint frees the log, so its space has priority over a further segment. A record that
//! finds no segment is refused while the checkpoint still fits. Writes resume when the checkpoint
//! is published. On a small disk segments are smaller, so that unused ones do not fill it.

use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use stillpoint_io::{DIRECT_ALIGN, Disk, DiskError, DiskResult, Space};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Largest part of the disk, as a divisor, that unused segments of all logs may take.
const SHARE_OF_DISK: u64 = 16;
/// A segment of this length is not made smaller, since it would hold too few batches.
const SEGMENT_BYTES_SMALL: u64 = 64 << 10;

/// The limit of disk space for further segments.
#[derive(Debug)]
pub(crate) struct Room {
    disk: Arc<dyn Disk>,
    reserve_bytes: AtomicU64,
}

impl Room {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, reserve_bytes: AtomicU64::new(0) }
    }

    /// Sets the reserve, which further segments may not use.
    pub(crate) fn set_reserve(&self, bytes: u64) {
        // Relaxed: the number guards no other memory. A concurrent preparation may still see the
        // old number.
        self.reserve_bytes.store(bytes, Relaxed);
    }

    /// Notes a prepared segment. Records in that segment may make the next checkpoint larger by the
    /// same amount, so the reserve grows until the next `set_reserve`.
    pub(crate) fn took(&self, bytes: u64) {
        // Relaxed: as in `set_reserve`.
        let grown = |reserve: u64| (reserve > 0).then(|| reserve.saturating_add(bytes));
        let _ = self.reserve_bytes.fetch_update(Relaxed, Relaxed, grown);
    }

    fn free_bytes(&self) -> DiskResult<Option<u64>> {
        Ok(self.disk.space()?.map(|space| space.free_bytes))
    }

    /// Refuses a segment of this length if it would reach into the reserve.
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

    /// Whether fewer bytes are free. False if the free space is unknown.
    pub(crate) fn lacks(&self, bytes: u64) -> DiskResult<bool> {
        Ok(self.free_bytes()?.is_some_and(|free| free < bytes))
    }

    /// Whether a further segment of this length would be refused.
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

/// Length of the first segment of a log. The first segment is shorter than the others, since an
/// unused log keeps it empty.
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
