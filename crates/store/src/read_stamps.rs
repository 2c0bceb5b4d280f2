//! Stamps of reads: how far commits that overwrite something must come after those that read it.
//!
//! ```text
//! T1 reads x, writes y:   locks x shared ─▶ gsn g1 from its log ─▶ leave(x, g1) ─▶ unlocks x
//! T2 writes x:                              locks x exclusively ─▶ heed(x) ≥ g1 ─▶ gsn g2 > g1
//! ```
//! A cell has the stamp of its last writer, so gsns grow from a write to whoever reads or overwrites
//! it. With these stamps they also grow from a read to whoever overwrites what was read. Then gsns are a
//! serial order of all transactions that write: a replay in their order has each transaction read what
//! it has read before. A read that is lost in a crash takes nothing away from the overwriter, so a
//! log names no dependency for it.
//!
//! The stamps do not lie in the cells but in a table by key hash. A key that has no cell, or whose cell
//! was reclaimed, is no special case then. Keys that share a line get greater gsns than they need,
//! which does no harm.
//!
//! A line has a word for each of the first workers, which alone writes it, with a plain store. The others
//! share the last word. Whoever overwrites a key looks at all words of the line. Each read that is left
//! writes a line, also that of a record which everybody reads. Such a record's lock word goes from core to
//! core at each commit anyway, and the lines are prefetched.

use stillpoint_mem::{prefetch, prefetch_to_write};
use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};

/// Words of a line.
const WORDS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 8 };
/// Lines of the table: 256 KiB, so that they stay in a core's cache.
const LINES: usize = if cfg!(any(loom, shuttle)) { 2 } else { 1 << 12 };

/// A cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; WORDS]);

/// For each line, the greatest gsns of transactions that have written anything and read a key of the
/// line.
#[derive(Debug)]
pub(crate) struct ReadStamps {
    lines: Box<[Line]>,
    /// Whether any transaction has read something that it has not written.
    are_left: CachePadded<AtomicBool>,
}

impl ReadStamps {
    pub(crate) fn new() -> Self {
        let lines = (0..LINES).map(|_| Line::default()).collect();
        Self { lines, are_left: CachePadded::default() }
    }

    /// Prefetches the line of a key that a transaction is about to overwrite.
    #[inline]
    pub(crate) fn prefetch_to_heed(&self, hash: u64) {
        prefetch(self.of(hash));
    }

    /// Prefetches the line of a key that a transaction is about to read.
    #[inline]
    pub(crate) fn prefetch_to_leave(&self, hash: u64) {
        prefetch_to_write(std::slice::from_ref(self.of(hash)));
    }

    #[inline]
    fn of(&self, hash: u64) -> &Line {
        // The high bits choose partitions and floors, the low ones the buckets of the index.
        &self.lines[(hash >> 24) as usize % LINES]
    }

    /// The gsn above which a commit must be that overwrites the key. The caller has the key's lock
    /// exclusively.
    #[inline]
    pub(crate) fn heed(&self, hash: u64) -> u64 {
        // Relaxed: the lock of the key orders these loads behind `leave`, whose caller had the lock.
        self.of(hash).0.iter().map(|word| word.load(Relaxed)).fold(0, u64::max)
    }

    /// Whether there is anything to heed for a caller that has its locks.
    #[inline]
    pub(crate) fn are_left(&self) -> bool {
        // Relaxed: as in `heed`.
        self.are_left.load(Relaxed)
    }

    /// Notes that a commit of a worker with this gsn has read the key. The caller still has the key's lock.
    #[inline]
    pub(crate) fn leave(&self, worker: usize, hash: u64, gsn: u64) {
        mutant!(ReadStampLeftOut => return);
        // First, since the stamp that another worker left may suffice below.
        if !self.are_left.load(Relaxed) {
            self.are_left.store(true, Relaxed);
        }
        let own = worker.min(WORDS - 1);
        let word = &self.of(hash).0[own];
        // Relaxed: a word only rises, and the lock of the key orders it before `heed`.
        if word.load(Relaxed) >= gsn {
            return;
        }
        if own < WORDS - 1 {
            word.store(gsn, Relaxed);
        } else {
            word.fetch_max(gsn, Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_never_below_its_last_reader() {
        let stamps = ReadStamps::new();
        assert!(!stamps.are_left());
        for gsn in 1..1_000 {
            let worker = gsn as usize % 20;
            stamps.leave(worker, 7 << 24, gsn);
            assert_eq!(stamps.heed(7 << 24), gsn);
        }
        assert_eq!((stamps.heed(8 << 24), stamps.are_left()), (0, true));
    }

    /// A worker may end, and another one with a log of smaller gsns may get its number.
    #[test]
    fn a_later_worker_of_the_same_number_lowers_nothing() {
        for worker in [0, WORDS, 100] {
            let stamps = ReadStamps::new();
            stamps.leave(worker, 0, 1_000);
            stamps.leave(worker, 0, 10);
            assert_eq!(stamps.heed(0), 1_000, "worker {worker}");
        }
    }
}
