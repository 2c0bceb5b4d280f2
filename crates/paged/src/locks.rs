//! Locks of keys and of stretches of keys, in tables of words that never grow.
//!
//! A key has a word, by its hash. The *stretch* of a leaf, which is all keys between its fences, has
//! another one, by the number of its page. Several keys may share a word, and so may several stretches.
//! Who shares a word without need waits without need, and loses nothing.
//!
//! - Who reads or changes a key locks the key's word.
//! - Who reads a range shares the stretches of the leaves that it reads (decision 0045).
//! - Who changes a record *claims* the stretch of its leaf for the moment of the change, with the leaf
//!   latched. So nobody changes a stretch that somebody else shares.
//! - A split gives a part of a stretch to a new page. Who splits has claimed the stretch. If it shares the
//!   stretch itself, it shares that of the new page, too.
//!
//! The word of a key has a *stamp*: the end of the last transaction that changed a key of this word. Who
//! locks the word later depends on that end.

use stillpoint_format::Stamp;
use stillpoint_format::hash::KeyHasher;
use stillpoint_mem::{huge_slice, prefetch};
use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};
use stillpoint_sync::lock_word::{self, Priority};
use stillpoint_sync::{Backoff, mutant};
use stillpoint_txn::TableId;

use crate::planted;

/// Least and most words of keys, as powers of two.
const WORDS_LOG2: std::ops::RangeInclusive<u32> = if cfg!(loom) { 4..=4 } else { 8..=20 };
/// Words of keys for each frame of the pool.
const WORDS_PER_FRAME: usize = 16;
/// Words of keys for each word of stretches, as a power of two.
const KEYS_PER_STRETCH_LOG2: u32 = 3;

/// A word and its stamp, in one cache line.
#[derive(Debug)]
#[repr(align(16))]
struct Lock {
    word: AtomicU64,
    stamp: AtomicU64,
}

/// Number of a word: of a key, or of a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name(u32);

/// The bit of the names of stretches.
const STRETCH: u32 = 1 << 31;

impl Name {
    /// The name of no word.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn is_stretch(self) -> bool {
        self.0 & STRETCH != 0
    }

    /// A number for a table of names.
    pub(crate) fn hash(self) -> u64 {
        u64::from(self.0)
    }
}

/// A word that another transaction holds, and the oldest priority of its holders.
pub(crate) type Blocked = (Name, Priority);

/// The words of all tables of the kind.
#[derive(Debug)]
pub(crate) struct LockTable {
    hasher: KeyHasher,
    /// Number of words of keys, as a power of two.
    words_log2: u32,
    locks: Box<[Lock]>,
    stretches: Box<[AtomicU64]>,
}

impl LockTable {
    /// Words for a pool of so many frames.
    pub(crate) fn new(seed: u64, frames: usize) -> Self {
        let lock = || Lock {
            word: AtomicU64::new(lock_word::free(0, 0)),
            stamp: AtomicU64::new(Stamp::NONE.to_bits()),
        };
        let words = frames.saturating_mul(WORDS_PER_FRAME).max(1).next_power_of_two();
        let words_log2 = words.ilog2().clamp(*WORDS_LOG2.start(), *WORDS_LOG2.end());
        // Each key has its word at another place.
        let locks = huge_slice(1 << words_log2, lock);
        let stretches = 1usize << (words_log2 - KEYS_PER_STRETCH_LOG2);
        let stretches = huge_slice(stretches, || AtomicU64::new(lock_word::free(0, 0)));
        Self { hasher: KeyHasher::new(seed), words_log2, locks, stretches }
    }

    /// The hash of a key and its table.
    #[inline]
    pub(crate) fn hash(&self, table: TableId, key: &[u8]) -> u64 {
        self.hasher.hash(table.0, key)
    }

    /// The word of a key with this hash.
    #[inline]
    pub(crate) fn key(&self, hash: u64) -> Name {
        Name((hash >> (64 - self.words_log2)) as u32)
    }

    /// The word of the stretch of a leaf.
    #[inline]
    pub(crate) fn stretch(&self, page: u64) -> Name {
        let spread = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Name((spread >> (64 + KEYS_PER_STRETCH_LOG2 - self.words_log2)) as u32 | STRETCH)
    }

    #[inline]
    pub(crate) fn word(&self, name: Name) -> &AtomicU64 {
        match name.0 & STRETCH {
            0 => &self.locks[name.0 as usize].word,
            _ => &self.stretches[(name.0 & !STRETCH) as usize],
        }
    }

    /// Prefetches a word.
    #[inline]
    pub(crate) fn prefetch(&self, name: Name) {
        prefetch(self.word(name));
    }

    /// The stamp of a word. The caller holds the word.
    #[inline]
    pub(crate) fn stamp(&self, name: Name) -> Stamp {
        match name.0 & STRETCH {
            // Relaxed: ordered by the word, which the caller holds.
            0 => Stamp::from_bits(self.locks[name.0 as usize].stamp.load(Relaxed)),
            _ => Stamp::NONE,
        }
    }

    /// The stamp of a key's word that nobody holds exclusively. `None` if somebody does.
    #[inline]
    pub(crate) fn stamp_if_free(&self, name: Name) -> Option<Stamp> {
        let lock = &self.locks[name.0 as usize];
        // Acquire: partner of the Release in `lock_word::release_exclusive`. Who sees the word released
        // sees its stamp, and the pages as its holder has left them.
        let word = lock.word.load(Acquire);
        let is_free =
            mutant!(lock_word::exclusive_holder(word).is_none(), UnlockedReadIgnoresWord => true);
        // Relaxed: ordered by the load before.
        is_free.then(|| Stamp::from_bits(lock.stamp.load(Relaxed)))
    }

    /// The transaction that holds a word exclusively, by its priority.
    #[inline]
    pub(crate) fn exclusive_holder(&self, name: Name) -> Option<Priority> {
        // Acquire: as in `stamp_if_free`.
        lock_word::exclusive_holder(self.word(name).load(Acquire))
    }

    /// Notes the end of a transaction at a key's word that it holds exclusively.
    pub(crate) fn set_stamp(&self, name: Name, end: Stamp) {
        // Relaxed: as in `stamp`.
        self.locks[name.0 as usize].stamp.store(end.to_bits(), Relaxed);
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.locks.iter().map(|lock| &lock.word).chain(&self.stretches)
    }

    /// Waits for all words, in their order, as a declared transaction does. False if it may not wait: then
    /// no word is held.
    pub(crate) fn lock_all(&self, may_wait: &dyn Fn() -> bool) -> bool {
        for (taken, word) in self.words().enumerate() {
            let mut backoff = Backoff::new();
            while lock_word::try_exclusive(word, Priority::DECLARED).is_err() {
                if !may_wait() {
                    // The holder may keep the word for minutes, and others share it meanwhile.
                    lock_word::await_no_longer(word);
                    self.words().take(taken).for_each(lock_word::release_exclusive);
                    return false;
                }
                lock_word::await_sharers(word, Priority::DECLARED);
                backoff.wait();
            }
        }
        true
    }

    /// Gives all words back.
    pub(crate) fn release_all(&self) {
        self.words().for_each(lock_word::release_exclusive);
    }

    /// Whether nobody holds a lock. For tests.
    pub(crate) fn is_free(&self) -> bool {
        let is_free = |word: &AtomicU64| {
            let free = lock_word::try_exclusive(word, Priority::DECLARED).is_ok();
            if free {
                lock_word::release_exclusive(word);
            }
            free
        };
        self.words().all(is_free)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::cell::Cell;

    use stillpoint_txn::Mode;

    use super::*;
    use crate::held::HeldLocks;

    /// While an open transaction shares a word, who wants the word alone gives up. Others go on to share it.
    #[test]
    fn who_gives_up_on_a_word_holds_up_nobody() {
        let table = LockTable::new(1, 1);
        let name = table.key(1 << 63);
        let share = || lock_word::try_shared(table.word(name), Priority::DECLARED);
        let turns = Cell::new(0);
        let may_wait = || turns.replace(turns.get() + 1) % 4 < 3;
        assert!(share().is_ok());
        assert!(!table.lock_all(&may_wait), "a word is held");
        assert!(share().is_ok(), "who empties the tables has given up");
        let taken = HeldLocks::new().take(&table, name, Mode::Write, &may_wait);
        assert!(taken.is_err() && share().is_ok(), "a writer has given up: {taken:?}");
    }
}
