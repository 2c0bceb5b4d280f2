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
//! was reclaimed, is no special case then. Keys that share an entry get greater gsns than they need,
//! which does no harm. So an entry that is raised again and again gets more than the reader's gsn: the
//! next readers find it high enough and write nothing. Otherwise the line of a record that everybody
//! reads would go from core to core at each commit.

use stillpoint_mem::prefetch_to_write;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};

/// Entries of the table: 512 KiB, so that they stay in a core's cache.
const ENTRIES: usize = if cfg!(any(loom, shuttle)) { 2 } else { 1 << 16 };

/// By how much an entry is raised beyond a reader's gsn, if the last reader was that near. Overwriters
/// of such keys get gsns that are greater by as much, of which there are 2^52.
const AHEAD: u64 = 64;

/// For each entry, the greatest gsn of a transaction that has written anything and read a key of the
/// entry.
#[derive(Debug)]
pub(crate) struct ReadStamps {
    gsns: Box<[AtomicU64]>,
}

impl ReadStamps {
    pub(crate) fn new() -> Self {
        Self { gsns: (0..ENTRIES).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Prefetches the entry of a key that a transaction is about to read.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch_to_write(std::slice::from_ref(self.of(hash)));
    }

    fn of(&self, hash: u64) -> &AtomicU64 {
        // The high bits choose partitions and floors, the low ones the buckets of the index.
        &self.gsns[(hash >> 24) as usize % ENTRIES]
    }

    /// The gsn above which a commit must be that overwrites the key. The caller has the key's lock
    /// exclusively.
    #[inline]
    pub(crate) fn heed(&self, hash: u64) -> u64 {
        // Relaxed: the lock of the key orders this load behind `leave`, whose caller had the lock.
        self.of(hash).load(Relaxed)
    }

    /// Notes that a commit with this gsn has read the key. The caller still has the key's lock.
    #[inline]
    pub(crate) fn leave(&self, hash: u64, gsn: u64) {
        mutant!(ReadStampLeftOut => return);
        let entry = self.of(hash);
        // Relaxed: an entry only rises, and the lock of the key orders it before `heed`.
        let last = entry.load(Relaxed);
        if last < gsn {
            let ahead = if gsn - last <= AHEAD { AHEAD } else { 0 };
            entry.fetch_max(gsn + ahead, Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_never_below_its_last_reader() {
        let stamps = ReadStamps::new();
        for gsn in (1..1_000).chain((2_000..100_000).step_by(97)) {
            stamps.leave(7 << 24, gsn);
            assert!((gsn..=gsn + AHEAD).contains(&stamps.heed(7 << 24)), "{gsn}");
        }
        assert_eq!(stamps.heed(8 << 24), 0);
    }

    #[test]
    fn readers_one_after_the_other_seldom_write() {
        let stamps = ReadStamps::new();
        let mut raised = 0;
        for gsn in 1..=6_400 {
            let before = stamps.heed(0);
            stamps.leave(0, gsn);
            raised += u64::from(stamps.heed(0) != before);
        }
        assert!(raised <= 6_400 / AHEAD + 2, "{raised}");
    }
}
