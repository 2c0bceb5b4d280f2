//! Locks of what has no cell: the gaps between the keys of ordered tables, and the numbers of their
//! records.
//!
//! The words lie in one table of the store, and several names may share a word. Who shares a word with
//! another name waits or is refused without need, and loses nothing.
//!
//! **Gaps** (next-key locking; Mohan, ARIES/KVL, 1990). A gap is named by the key above it, and lies
//! between that key and the key below. The gap above all keys has the name of the empty key, below which
//! there is no gap. A transaction that reads a range shares the gap below every key of the range, and
//! the gap below the first key beyond. Who adds a key claims the gap below the next key. So nobody adds
//! a key to a range that a transaction has read and not ended.
//!
//! **Numbers.** A transaction that adds or removes records shares one of several words of the table. A
//! transaction that counts records takes all these words exclusively. So nobody adds or removes records
//! between a count and the end of its transaction. Nobody else locks a key of the table for writing
//! either. Who locks one shares the number before it is known what the transaction does.

use stillpoint_sync::atomic::AtomicU64;
use stillpoint_sync::lock_word::{self, Priority};

use super::GapClaim;

/// Number of words of gaps.
const GAPS: usize = if cfg!(any(loom, shuttle)) { 64 } else { 1 << 16 };
/// Words of numbers for each table, spread over the workers.
pub(crate) const NUMBERS_PER_TABLE: usize = if cfg!(any(loom, shuttle)) { 2 } else { 16 };
/// Tables with words of their own. Further tables share them.
const TABLES: usize = if cfg!(any(loom, shuttle)) { 1 } else { 64 };
/// Words from one number's word to the next, so that each has a cache line of its own.
const NUMBER_STRIDE: usize = 8;
/// Number of words.
pub(crate) const NAMES: usize = GAPS + TABLES * NUMBERS_PER_TABLE * NUMBER_STRIDE;

/// The word of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(u32);

impl Name {
    /// The gap below a key, or the one above all keys for the empty key. `hash` is that of the key and
    /// its table.
    #[inline]
    pub(crate) fn gap(hash: u64) -> Self {
        // The upper bits, since tables choose buckets by the lower ones.
        Self((hash >> 40) as u32 % GAPS as u32)
    }

    /// The number of a table's records, in one of its words.
    pub(crate) fn number(table: u16, part: usize) -> Self {
        let table = usize::from(table) % TABLES;
        let line = table * NUMBERS_PER_TABLE + part % NUMBERS_PER_TABLE;
        Self((GAPS + line * NUMBER_STRIDE) as u32)
    }

    /// The number of the word.
    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }
}

/// The words of all names.
#[derive(Debug)]
pub(crate) struct LockTable {
    words: Box<[AtomicU64]>,
}

impl LockTable {
    pub(crate) fn new() -> Self {
        Self { words: (0..NAMES).map(|_| AtomicU64::new(lock_word::free(0, 0))).collect() }
    }

    #[inline]
    pub(crate) fn word(&self, name: Name) -> &AtomicU64 {
        &self.words[name.at()]
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.words.len() * 8
    }
}

/// The gap below a key that is removed, for the moment of the change.
pub(crate) struct RemovedKey<'a> {
    pub(crate) locks: &'a LockTable,
    pub(crate) gap: Name,
}

impl GapClaim for RemovedKey<'_> {
    fn claim(&mut self, _: Option<&[u8]>) -> bool {
        lock_word::try_exclusive(self.locks.word(self.gap), Priority::DECLARED).is_ok()
    }

    fn end(&mut self) {
        lock_word::release_exclusive(self.locks.word(self.gap));
    }
}
