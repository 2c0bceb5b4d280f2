//! Locks of keys and of gaps, in a table of words that never grows.
//!
//! A key has two words, by its hash: its own, and that of the *gap* below it (Mohan, ARIES/KVL, 1990).
//! Several keys may share a word. Who shares a word with another key waits without need, and loses
//! nothing. Words of keys and of gaps are apart: a declared transaction may wait for a gap, and no cycle
//! of waits closes through it.
//!
//! Each word has a *stamp*: the end of the last transaction that changed a key of this word. Who locks the
//! word later depends on that end.

use stillpoint_format::Stamp;
use stillpoint_format::hash::KeyHasher;
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::lock_word::{self, Priority};
use stillpoint_txn::TableId;

/// Least and most words of keys, as powers of two. There are as many words of gaps.
const WORDS_LOG2: std::ops::RangeInclusive<u32> = 8..=20;
/// Words of keys for each frame of the pool.
const WORDS_PER_FRAME: usize = 16;

/// The gap above all keys has the name of the empty key, below which there is no gap.
pub(crate) const END: &[u8] = b"";

#[derive(Debug)]
struct Lock {
    word: AtomicU64,
    stamp: AtomicU64,
}

/// Number of a word: of a key, or of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name(u32);

/// The words of all tables of the kind.
#[derive(Debug)]
pub(crate) struct LockTable {
    hasher: KeyHasher,
    /// Number of words of keys, as a power of two.
    words_log2: u32,
    locks: Box<[Lock]>,
}

impl LockTable {
    /// Words for a pool of so many frames.
    pub(crate) fn new(seed: u64, frames: usize) -> Self {
        let lock = |_| Lock {
            word: AtomicU64::new(lock_word::free(0, 0)),
            stamp: AtomicU64::new(Stamp::NONE.to_bits()),
        };
        let words = frames.saturating_mul(WORDS_PER_FRAME).max(1).next_power_of_two();
        let words_log2 = words.ilog2().clamp(*WORDS_LOG2.start(), *WORDS_LOG2.end());
        let locks = (0..2usize << words_log2).map(lock).collect();
        Self { hasher: KeyHasher::new(seed), words_log2, locks }
    }

    /// The word of a key.
    #[inline]
    pub(crate) fn key(&self, table: TableId, key: &[u8]) -> Name {
        Name((self.hasher.hash(table.0, key) >> (64 - self.words_log2)) as u32)
    }

    /// The word of the gap below a key.
    #[inline]
    pub(crate) fn gap(&self, table: TableId, key: &[u8]) -> Name {
        Name(self.key(table, key).0 | 1 << self.words_log2)
    }

    #[inline]
    pub(crate) fn word(&self, name: Name) -> &AtomicU64 {
        &self.locks[name.0 as usize].word
    }

    /// The stamp of a word. The caller holds the word.
    #[inline]
    pub(crate) fn stamp(&self, name: Name) -> Stamp {
        // Relaxed: ordered by the word, which the caller holds.
        Stamp::from_bits(self.locks[name.0 as usize].stamp.load(Relaxed))
    }

    /// Notes the end of a transaction at a word that it holds exclusively.
    pub(crate) fn set_stamp(&self, name: Name, end: Stamp) {
        // Relaxed: as in `stamp`.
        self.locks[name.0 as usize].stamp.store(end.to_bits(), Relaxed);
    }

    /// Waits for all words, in their order, as a declared transaction does.
    pub(crate) fn lock_all(&self) {
        for lock in &self.locks {
            let mut backoff = Backoff::new();
            while lock_word::try_exclusive(&lock.word, Priority::DECLARED).is_err() {
                lock_word::await_sharers(&lock.word, Priority::DECLARED);
                backoff.wait();
            }
        }
    }

    /// Gives all words back.
    pub(crate) fn release_all(&self) {
        self.locks.iter().for_each(|lock| lock_word::release_exclusive(&lock.word));
    }

    /// Whether nobody holds a lock. For tests.
    pub(crate) fn is_free(&self) -> bool {
        let is_free = |lock: &Lock| {
            let free = lock_word::try_exclusive(&lock.word, Priority::DECLARED).is_ok();
            if free {
                lock_word::release_exclusive(&lock.word);
            }
            free
        };
        self.locks.iter().all(is_free)
    }
}
