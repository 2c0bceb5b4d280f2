//! The limit of the bytes that the logs keep. What it leaves is given to the logs in shares, so an append
//! looks at nothing but its own log.
//!
//! ```text
//!  limit  = kept by holders + room set aside + shares of the logs + left
//!  append   │ takes a share where its log has none; refused if too little is left
//!  hold     │ everything is counted anew: shares are taken back, and what was freed is left again
//! ```
//! Nobody takes or gives a share while everything is counted. So no byte is in two of these terms.

use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use stillpoint_io::DIRECT_ALIGN;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Part of the limit, as a divisor, that the shares of all logs have together.
const SHARES: u64 = 64;
/// Part of the limit, as a divisor, by which the ends of transactions may exceed it.
const ENDS: u64 = 32;

/// What a limit leaves.
#[derive(Debug)]
struct Left {
    bytes: u64,
    /// Whether everything is being counted.
    is_counting: bool,
}

/// The limit of a journal. `u64::MAX` bytes for none.
#[derive(Debug)]
pub(crate) struct Limit {
    logs: u64,
    bytes: AtomicU64,
    left: Mutex<Left>,
    freed: Condvar,
    /// Held by the thread that counts.
    counting: Mutex<()>,
}

impl Limit {
    /// No limit.
    pub(crate) fn new(logs: u8) -> Self {
        Self {
            logs: logs.into(),
            bytes: AtomicU64::new(u64::MAX),
            left: Mutex::new(Left { bytes: u64::MAX, is_counting: false }),
            freed: Condvar::new(),
            counting: Mutex::default(),
        }
    }

    /// The limit in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: a setting; who sets it counts everything anew.
        self.bytes.load(Relaxed)
    }

    /// Sets the limit. False if it was the same: nothing has to be counted.
    pub(crate) fn set(&self, bytes: u64) -> bool {
        // Relaxed: as in `bytes`.
        self.bytes.swap(bytes, Relaxed) != bytes
    }

    /// A share of a log, in bytes.
    pub(crate) fn share(&self) -> u64 {
        (self.bytes() / SHARES / self.logs).next_multiple_of(DIRECT_ALIGN as u64)
    }

    /// Bytes by which a log may exceed the limit to end transactions.
    pub(crate) fn excess(&self) -> u64 {
        self.bytes() / ENDS / self.logs
    }

    /// Takes a share with at least so many bytes. `None` if too little is left.
    pub(crate) fn take(&self, bytes: u64) -> Option<u64> {
        let mut left = self.left.lock();
        if left.is_counting || left.bytes < bytes {
            return None;
        }
        let taken = bytes.max(self.share()).min(left.bytes);
        left.bytes -= taken;
        Some(taken)
    }

    /// Takes a part of a share back that its log does not need. False if it has to keep it.
    pub(crate) fn give(&self, bytes: u64) -> bool {
        let mut left = self.left.lock();
        if left.is_counting {
            return false;
        }
        left.bytes += bytes;
        drop(left);
        self.freed.notify_all();
        true
    }

    /// Bytes that no log has.
    pub(crate) fn left(&self) -> u64 {
        self.left.lock().bytes
    }

    /// Waits until so many bytes are left. False after the timeout.
    pub(crate) fn wait(&self, bytes: u64, timeout: Duration) -> bool {
        let mut left = self.left.lock();
        if left.is_counting || left.bytes < bytes {
            self.freed.wait_for(&mut left, timeout);
        }
        !left.is_counting && left.bytes >= bytes
    }

    /// Begins to count everything. No share is given meanwhile.
    pub(crate) fn begin_count(&self) -> Count<'_> {
        let one = self.counting.lock();
        self.left.lock().is_counting = true;
        Count { limit: self, kept: u64::MAX, _one: one }
    }
}

/// A count of everything under way.
pub(crate) struct Count<'l> {
    limit: &'l Limit,
    kept: u64,
    _one: MutexGuard<'l, ()>,
}

impl Count<'_> {
    /// Ends the count: so many bytes are kept or set aside.
    pub(crate) fn end(mut self, kept: u64) {
        self.kept = kept;
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        let mut left = self.limit.left.lock();
        left.is_counting = false;
        left.bytes = match self.limit.bytes() {
            u64::MAX => u64::MAX,
            limit => limit.saturating_sub(self.kept),
        };
        drop(left);
        self.limit.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_what_the_limit_leaves() {
        let limit = Limit::new(2);
        assert!(limit.take(1 << 40).is_some(), "no limit");
        assert!(limit.set(1 << 20) && !limit.set(1 << 20));
        limit.begin_count().end(1 << 19);
        assert_eq!(limit.left(), 1 << 19);
        let share = limit.share();
        assert_eq!((limit.take(1), limit.take(share + 7)), (Some(share), Some(share + 7)));
        assert_eq!(limit.take(1 << 19), None);
        let count = limit.begin_count();
        assert_eq!((limit.take(1), limit.give(1)), (None, false), "everything is counted");
        assert!(!limit.wait(1, Duration::ZERO));
        count.end(1 << 21);
        assert_eq!((limit.left(), limit.take(1)), (0, None));
        assert!(limit.give(5) && limit.wait(5, Duration::ZERO));
        assert_eq!(limit.take(3), Some(5), "the rest is no share of its own");
    }
}
