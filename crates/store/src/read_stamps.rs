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
//! which does no harm.

use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};

/// Entries of the table: 512 KiB, so that they stay in a core's cache.
const ENTRIES: usize = if cfg!(any(loom, shuttle)) { 2 } else { 1 << 16 };

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
        if entry.load(Relaxed) < gsn {
            entry.fetch_max(gsn, Relaxed);
        }
    }
}
