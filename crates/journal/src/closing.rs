//! Finds *closed* records: those that are flushed, together with everything that they depend on.
//!
//! The closed watermark `C_j` of log `j` is the greatest g with two properties. Every record of `j`
//! with gsn ≤ g is flushed. Each dependency (k, h) that such a record names has h ≤ `C_k`. Closed
//! records survive any crash. The reason: recovery keeps the greatest set of per-log prefixes that
//! is closed under dependencies, and the watermarks are such a set.
//!
//! "Flushed" instead of "closed" would be the two-hop bug: a flushed record may itself
//! depend on one that is lost.
//!
//! A record leaves out a dependency that is closed already. A record also leaves out a dependency
//! if an earlier record of its log names the other log with the same or a greater gsn. The
//! remaining dependencies suffice, since recovery keeps prefixes as a whole. So both gsns grow
//! strictly along the queues here, and the queues stay short. Gsns grow along every dependency, so
//! the waits have no cycles. The greatest solution is reached when no satisfied entry is left at
//! the front of any queue.

use std::collections::VecDeque;

use stillpoint_format::{LogGsn, Stamp};
use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{AtomicU64, Ordering};
use stillpoint_sync::{mutant, planted};

use crate::monitor::Monitor;

/// A dependency that a record names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// The record's gsn in its own log.
    pub(crate) gsn: u64,
    /// The record on which this record depends.
    pub(crate) on: LogGsn,
}

/// The watermarks of one log. Written under the lock of [`Closing::waiting`].
#[derive(Debug)]
struct Marks {
    flushed: AtomicU64,
    closed: AtomicU64,
}

/// The watermarks of all logs of one incarnation.
#[derive(Debug)]
pub(crate) struct Closing {
    marks: Box<[CachePadded<Marks>]>,
    /// Per log, the dependencies of flushed records that are not closed yet.
    waiting: Monitor<Box<[VecDeque<Named>]>>,
    floor: u64,
}

impl Closing {
    /// Watermarks of the logs of an incarnation: everything at or below `floor` is closed.
    pub(crate) fn new(logs: u8, floor: u64) -> Self {
        let mark = |_| {
            let (flushed, closed) = (AtomicU64::new(floor), AtomicU64::new(floor));
            CachePadded::new(Marks { flushed, closed })
        };
        Closing {
            marks: (0..logs).map(mark).collect(),
            waiting: Monitor::new((0..logs).map(|_| VecDeque::new()).collect()),
            floor,
        }
    }

    /// Greatest closed gsn of a log.
    #[inline]
    pub(crate) fn closed(&self, log: u8) -> u64 {
        // Acquire: partner of the Release in `advance`.
        self.marks[usize::from(log)].closed.load(Ordering::Acquire)
    }

    /// Greatest flushed gsn of a log.
    #[inline]
    pub(crate) fn flushed(&self, log: u8) -> u64 {
        // Acquire: partner of the Release in `record_flushed`.
        self.marks[usize::from(log)].flushed.load(Ordering::Acquire)
    }

    /// Whether the record survives any crash. A log that this incarnation does not have is closed
    /// up to the floor only.
    #[inline]
    pub(crate) fn is_closed(&self, stamp: Stamp) -> bool {
        stamp.gsn() <= self.floor
            || stamp.is_none()
            || self
                .marks
                .get(usize::from(stamp.log()))
                .is_some_and(|marks| stamp.gsn() <= marks.closed.load(Ordering::Acquire))
    }

    /// Notes that the records of `log` up to `gsn` are flushed. `named` are the dependencies of the
    /// newly flushed ones, in order of gsn. Advances every watermark that can advance.
    pub(crate) fn record_flushed(&self, log: u8, gsn: u64, named: impl Iterator<Item = Named>) {
        let mut waiting = self.waiting.lock();
        let queue = &mut waiting[usize::from(log)];
        queue.extend(named);
        let flushed = &self.marks[usize::from(log)].flushed;
        debug_assert!(flushed.load(Ordering::Relaxed) <= gsn, "a log's gsns grow");
        // Release: a thread that sees the value may tell a client that the bytes are on the device.
        flushed.store(gsn, Ordering::Release);
        self.advance(&mut waiting);
    }

    /// Takes satisfied entries from the fronts of the queues, until no front is satisfied.
    fn advance(&self, waiting: &mut [VecDeque<Named>]) {
        loop {
            let mut moved = false;
            for (queue, marks) in waiting.iter_mut().zip(&self.marks) {
                while queue.front().is_some_and(|named| self.closed(named.on.log) >= named.on.gsn) {
                    queue.pop_front();
                }
                // Relaxed, here and below: both are written with the lock held only.
                let flushed = marks.flushed.load(Ordering::Relaxed);
                let closed = queue
                    .front()
                    .map_or(flushed, |named| mutant!(named.gsn - 1, AnswersWhenFlushed => flushed));
                if closed > marks.closed.load(Ordering::Relaxed) {
                    marks.closed.store(closed, Ordering::Release);
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// The next flush that `stamp` needs to close: a log and a gsn. `None` if `stamp` is closed.
    pub(crate) fn blocker(&self, stamp: Stamp) -> Option<LogGsn> {
        if self.is_closed(stamp) {
            return None;
        }
        let waiting = self.waiting.lock();
        let mut next = LogGsn { log: stamp.log(), gsn: stamp.gsn() };
        // Each hop goes to a smaller gsn, so the loop ends.
        while self.closed(next.log) < next.gsn && next.gsn <= self.flushed(next.log) {
            match waiting[usize::from(next.log)].front() {
                Some(named) if named.gsn <= next.gsn => next = named.on,
                _ => return None,
            }
        }
        (self.closed(next.log) < next.gsn).then_some(next)
    }

    /// Lists the closed positions of the logs other than `log`. Logs without a record of this
    /// incarnation are left out.
    pub(crate) fn others_closed(&self, log: u8, into: &mut Vec<LogGsn>) {
        into.clear();
        for other in (0..self.logs()).filter(|&other| other != log) {
            let gsn = self.closed(other);
            if gsn > self.floor {
                into.push(LogGsn { log: other, gsn });
            }
        }
    }

    /// Number of logs.
    pub(crate) fn logs(&self) -> u8 {
        self.marks.len() as u8
    }

    /// Entries that wait for something.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.lock().iter().map(VecDeque::len).sum()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn named(gsn: u64, log: u8, on: u64) -> Named {
        Named { gsn, on: LogGsn { log, gsn: on } }
    }

    fn closed(closing: &Closing) -> Vec<u64> {
        (0..closing.logs()).map(|log| closing.closed(log)).collect()
    }

    #[test]
    fn two_hops_wait_for_the_last() {
        // Record 3 of log 2 depends on record 2 of log 1, which depends on record 1 of log 0.
        let closing = Closing::new(3, 0);
        closing.record_flushed(2, 3, [named(3, 1, 2)].into_iter());
        closing.record_flushed(1, 2, [named(2, 0, 1)].into_iter());
        assert_eq!(closed(&closing), [0, 1, 2], "flushed is not closed");
        assert_eq!(closing.waiting(), 2);
        assert_eq!(closing.blocker(Stamp::new(3, 2)), Some(LogGsn { log: 0, gsn: 1 }));
        closing.record_flushed(0, 1, std::iter::empty());
        assert_eq!(closed(&closing), [1, 2, 3]);
        assert_eq!(closing.blocker(Stamp::new(3, 2)), None);
        assert_eq!(closing.waiting(), 0);
    }

    #[test]
    fn own_log_order_holds_back_records_that_name_nothing() {
        let closing = Closing::new(2, 10);
        closing.record_flushed(0, 13, [named(12, 1, 11)].into_iter());
        assert_eq!(closed(&closing), [11, 10], "13 names nothing but follows 12");
        assert!(!closing.is_closed(Stamp::new(13, 0)) && closing.is_closed(Stamp::new(11, 0)));
        closing.record_flushed(1, 20, std::iter::empty());
        assert_eq!(closed(&closing), [13, 20]);
    }

    #[test]
    fn an_idle_log_holds_nothing_back() {
        let closing = Closing::new(3, 5);
        closing.record_flushed(0, 900, std::iter::empty());
        assert_eq!(closed(&closing), [900, 5, 5]);
    }

    #[test]
    fn the_floor_and_no_log_are_closed() {
        let closing = Closing::new(1, 100);
        assert!(closing.is_closed(Stamp::new(100, 0)) && closing.is_closed(Stamp::new(100, 77)));
        assert!(closing.is_closed(Stamp::new(5000, stillpoint_format::LOG_NONE)));
        assert!(!closing.is_closed(Stamp::new(101, 0)) && !closing.is_closed(Stamp::new(101, 77)));
    }

    #[test]
    fn records_that_name_each_other_across_batches_close_together() {
        // Log 0 has records 1 and 4, and record 4 depends on record 3 of log 1. Log 1 has records 2
        // and 3, and record 2 depends on record 1 of log 0. Each log has one batch.
        let closing = Closing::new(2, 0);
        closing.record_flushed(0, 4, [named(4, 1, 3)].into_iter());
        assert_eq!(closed(&closing), [3, 0]);
        closing.record_flushed(1, 3, [named(2, 0, 1)].into_iter());
        assert_eq!(closed(&closing), [4, 3]);
    }
}
