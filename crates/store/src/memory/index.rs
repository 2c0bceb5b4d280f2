//! The hash index: linear hashing over segments that double (Litwin 1980). The index grows one bucket
//! at a time, without a pause, and takes address space by need. A round of splits, from one level to
//! the next, fills one segment.
//!
//! ```text
//! bucket (64 bytes):  [ control | entry × 7 ]
//! control:            overflow bucket number << 24 | moves (23 bits) | lock bit
//! entry:              hash bits 8..36 << 36 | cell number (36 bits);  0 = empty
//! state:              level << 56 | split
//! bucket of a hash:   h mod 2^level, or h mod 2^(level+1) where that is below `split`
//! ```
//!
//! Readers take no lock and write nothing. A split fills the new bucket before it publishes the new
//! state, and empties the old one afterwards. A reader that misses reads the state again, and tries
//! again if the state has changed. Then the split moves entries from overflow buckets to free
//! places of the first bucket, where one line finds them. Each entry is in both places until the
//! count of moves has changed. A reader that misses and sees a changed count tries again. The bits
//! of a hash that choose between the two buckets of a split are in the entry, so a split touches no
//! cell.
//!
//! If most keys were deleted, pairs of buckets [merge](Index::shrink), the last first.
//!
//! A key's cell may be replaced by another. The count of moves then changes between two events: the new
//! cell enters the index before, and the old cell dies after. So a reader that has met the dead cell
//! tries again.
//!
//! Growth: beyond [`LOAD_START_QUARTERS`] entries per bucket a round of splits begins, and every insertion
//! adds [`SPLITS_PER_INSERT`] of them until the number of buckets has doubled.

#[path = "index/shrink.rs"]
mod shrink;

use std::sync::Arc;
use stillpoint_mem::{AddressSpace, HUGE_PAGE_BYTES, RegionError, Segments};
use stillpoint_sync::atomic::{
    AtomicBool, AtomicI64, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::{Backoff, CachePadded, Mutex};

use super::arena::NUMBER_BITS;
use shrink::Shrinking;

const BUCKET_WORDS: usize = 8;
const LOCK: u64 = 1;
const MOVES_ONE: u64 = 2;
const MOVES_MASK: u64 = (1 << OVERFLOW_SHIFT) - MOVES_ONE;
const OVERFLOW_SHIFT: u32 = 24;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// The lowest hash bit that entries keep. The index's level never falls below this bit.
const LEVEL_MIN: u32 = if IS_MODEL { 1 } else { 8 };
const LEVEL_MAX: u32 = LEVEL_MIN + 63 - NUMBER_BITS;
const SPLIT_MASK: u64 = (1 << 56) - 1;
/// Entries per bucket, in quarters, at which a round of splits begins.
const LOAD_START_QUARTERS: u64 = 18;
const SPLITS_PER_INSERT: u32 = 4;
/// Entry counters, to keep inserting workers off each other's lines.
const COUNTERS: usize = 16;
/// Insertions between two reads of the total by a worker.
const CHECK_EVERY: i64 = if IS_MODEL { 1 } else { 32 };
/// A model checker grows the index from its first dozen of entries.
const IS_MODEL: bool = cfg!(any(loom, shuttle));

/// Number of overflow buckets in the first segment.
const OVERFLOW_FIRST: usize = if IS_MODEL { 4 } else { 256 };

#[derive(Debug)]
pub(crate) struct Index {
    buckets: Segments,
    overflow: Segments,
    /// Number of overflow buckets that were taken at least once. Number 0 is none.
    overflow_taken: AtomicU64,
    /// Overflow buckets that no chain has any more, and their number.
    overflow_free: Mutex<Vec<u64>>,
    overflow_free_count: AtomicUsize,
    state: AtomicU64,
    /// Number of merges of two buckets so far.
    merges: AtomicU64,
    splitting: AtomicBool,
    growing: AtomicBool,
    entries: [CachePadded<AtomicI64>; COUNTERS],
    populated_bytes: AtomicUsize,
    shrinking: Mutex<Shrinking>,
}

/// Result of an insertion.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    New,
    /// The key exists already, in this cell.
    Existing(u64),
    /// The system grants no more address space.
    Full,
}

#[inline]
fn entry(hash: u64, cell: u64) -> u64 {
    debug_assert!(cell != 0 && cell <= NUMBER_MASK);
    (hash >> LEVEL_MIN) << NUMBER_BITS | cell
}

#[inline]
fn has_tag(entry: u64, hash: u64) -> bool {
    entry != 0 && (entry ^ (hash >> LEVEL_MIN) << NUMBER_BITS) >> NUMBER_BITS == 0
}

/// Whether an entry goes to the upper bucket in a split from `level` to `level + 1`.
fn goes_up(entry: u64, level: u32) -> bool {
    entry >> (NUMBER_BITS + level - LEVEL_MIN) & 1 == 1
}

#[inline]
fn bucket_of(state: u64, hash: u64) -> u64 {
    let level = (state >> 56) as u32;
    let wide = hash & ((2 << level) - 1);
    let narrow = hash & ((1 << level) - 1);
    // A bucket below 2^level + split exists; `wide` is either `narrow` or `narrow + 2^level`.
    if wide < (1 << level) + (state & SPLIT_MASK) { wide } else { narrow }
}

/// Number of buckets in a state.
fn buckets_in(state: u64) -> u64 {
    (1 << (state >> 56)) + (state & SPLIT_MASK)
}

/// The known bits of the hash of an entry in the chain of bucket `number`.
fn known_hash(entry: u64, number: u64) -> u64 {
    (entry >> NUMBER_BITS) << LEVEL_MIN | number & ((1 << LEVEL_MIN) - 1)
}

/// Number of moves of entries in a bucket's chain, and of replaced cells, modulo 2²³. No reader sleeps
/// through so many in the middle of a lookup.
#[inline]
fn moves(first: &[AtomicU64]) -> u64 {
    first[0].load(Acquire) & MOVES_MASK
}

/// Counts a move in the chain of a bucket, whose lock the caller holds.
fn count_move(first: &[AtomicU64]) {
    let control = first[0].load(Relaxed);
    let moves = control.wrapping_add(MOVES_ONE) & MOVES_MASK;
    first[0].store(control & !MOVES_MASK | moves, Release);
}

impl Index {
    pub(crate) fn new(space: &Arc<AddressSpace>) -> Result<Self, RegionError> {
        let counter = || CachePadded::new(AtomicI64::new(0));
        let buckets = Segments::new(space.clone(), BUCKET_WORDS << LEVEL_MIN);
        buckets.reserve_up_to(0)?;
        Ok(Self {
            buckets,
            overflow: Segments::new(space.clone(), BUCKET_WORDS * OVERFLOW_FIRST),
            overflow_taken: AtomicU64::new(1),
            overflow_free: Mutex::default(),
            overflow_free_count: AtomicUsize::new(0),
            merges: AtomicU64::new(0),
            state: AtomicU64::new(u64::from(LEVEL_MIN) << 56),
            splitting: AtomicBool::new(false),
            growing: AtomicBool::new(false),
            entries: std::array::from_fn(|_| counter()),
            populated_bytes: AtomicUsize::new(0),
            shrinking: Mutex::default(),
        })
    }

    /// Makes room for `entries` at once if the index is empty and never grew. Limited by the
    /// address space that the system grants.
    pub(crate) fn reserve(&self, entries: u64) {
        if self.splitting.swap(true, Acquire) {
            return;
        }
        let first_state = u64::from(LEVEL_MIN) << 56;
        if self.state.load(Relaxed) == first_state {
            // A concurrent insertion waits for a bucket and then sees the new state.
            let buckets = || (0..1 << LEVEL_MIN).map(|number| self.bucket(number));
            buckets().for_each(|bucket| self.lock_bucket(bucket));
            let mut slots = buckets().flat_map(|bucket| self.chain(bucket)).flat_map(|b| &b[1..]);
            if slots.all(|slot| slot.load(Relaxed) == 0) {
                self.state.store(self.state_for(entries), Release);
            }
            buckets().for_each(|bucket| self.unlock(bucket));
        }
        self.splitting.store(false, Release);
    }

    fn state_for(&self, entries: u64) -> u64 {
        let buckets = (entries * 4).div_ceil(LOAD_START_QUARTERS).max(1);
        let mut level = buckets.next_power_of_two().ilog2().clamp(LEVEL_MIN, LEVEL_MAX);
        let last_word = |level: u32| (BUCKET_WORDS << level) - 1;
        while level > LEVEL_MIN && self.buckets.reserve_up_to(last_word(level)).is_err() {
            level -= 1;
        }
        u64::from(level) << 56
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> u64 {
        let sum: i64 = self.entries.iter().map(|counter| counter.load(Relaxed)).sum();
        sum.max(0).unsigned_abs()
    }

    fn bucket_count(&self) -> u64 {
        buckets_in(self.state.load(Relaxed))
    }

    /// Bytes of buckets in use.
    pub(crate) fn held_bytes(&self) -> usize {
        let overflow = self.overflow_taken.load(Relaxed) as usize;
        let in_use = overflow.saturating_sub(self.overflow_free_count.load(Relaxed));
        (self.bucket_count() as usize + in_use) * BUCKET_WORDS * 8
    }

    /// Touches pages that the next splits will need. Returns whether there was work. Small indexes
    /// are left alone, since there may be thousands.
    pub(crate) fn populate_ahead(&self) -> bool {
        let used = self.bucket_count() as usize * BUCKET_WORDS * 8;
        let goal = used + (used / 8).clamp(HUGE_PAGE_BYTES, 16 * HUGE_PAGE_BYTES);
        let from = self.populated_bytes.load(Relaxed).max(used / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
        if used < HUGE_PAGE_BYTES || from >= goal || !self.buckets.is_reserved(from / 8) {
            return false;
        }
        self.buckets.populate(from / 8, HUGE_PAGE_BYTES / 8);
        self.populated_bytes.store(from + HUGE_PAGE_BYTES, Relaxed);
        from + HUGE_PAGE_BYTES < goal
    }

    /// Touches a share of the pages of buckets in use. `first` tells which share, of `step`. Small indexes are
    /// left alone.
    pub(crate) fn populate(&self, (first, step): (usize, usize)) {
        let pages = self.bucket_count() as usize * BUCKET_WORDS * 8 / HUGE_PAGE_BYTES;
        let begins = (first..pages).step_by(step).map(|page| page * HUGE_PAGE_BYTES / 8);
        for begin in begins.filter(|&begin| self.buckets.is_reserved(begin)) {
            self.buckets.populate(begin, HUGE_PAGE_BYTES / 8);
        }
    }

    #[inline]
    fn bucket(&self, number: u64) -> &[AtomicU64] {
        self.buckets.line::<BUCKET_WORDS>(number as usize)
    }

    fn overflow_bucket(&self, number: u64) -> &[AtomicU64] {
        self.overflow.line::<BUCKET_WORDS>(number as usize)
    }

    /// The chain that begins with a bucket.
    fn chain<'a>(&'a self, first: &'a [AtomicU64]) -> impl Iterator<Item = &'a [AtomicU64]> {
        std::iter::successors(Some(first), |bucket| {
            match bucket[0].load(Acquire) >> OVERFLOW_SHIFT {
                0 => None,
                number => Some(self.overflow_bucket(number)),
            }
        })
    }

    /// Prefetches the bucket of a hash, and returns its number.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) -> u64 {
        // Acquire, paired with `state.store` of a split: the segment of the bucket is reserved.
        let number = bucket_of(self.state.load(Acquire), hash);
        stillpoint_mem::prefetch(&self.bucket(number)[0]);
        number
    }

    /// The first cell with a matching tag in the bucket that [`prefetch`](Self::prefetch) returned
    /// for the hash. The cell may hold another key. 0 if there is none, or if a split has moved it
    /// since.
    #[inline]
    pub(crate) fn candidate(&self, bucket: u64, hash: u64) -> u64 {
        for slot in &self.bucket(bucket)[1..] {
            let seen = slot.load(Acquire);
            if has_tag(seen, hash) {
                return seen & NUMBER_MASK;
            }
        }
        0
    }

    /// The cell of a key. `is_key` says whether a cell holds that key. Call this inside a read
    /// section.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut is_key: impl FnMut(u64) -> bool) -> Option<u64> {
        loop {
            let state = self.state.load(Acquire);
            let first = self.bucket(bucket_of(state, hash));
            let moves = moves(first);
            for bucket in self.chain(first) {
                for slot in &bucket[1..] {
                    let seen = slot.load(Acquire);
                    if has_tag(seen, hash) && is_key(seen & NUMBER_MASK) {
                        return Some(seen & NUMBER_MASK);
                    }
                }
            }
            // The loads above are Acquire. If one of them has seen an entry cleared by a split,
            // these loads see the published state, or the counted move, of that split. If `is_key` has
            // met a dead cell that another has replaced, they see the counted move likewise.
            let same_bucket = bucket_of(self.state.load(Acquire), hash) == bucket_of(state, hash);
            if same_bucket && self::moves(first) == moves {
                return None;
            }
        }
    }

    /// Whether a key's entry names this cell. While somebody holds the lock of such a cell, nobody else
    /// takes the cell out of the index.
    pub(crate) fn has(&self, hash: u64, cell: u64) -> bool {
        self.find(hash, |found| found == cell).is_some()
    }

    fn lock(&self, hash: u64) -> &[AtomicU64] {
        loop {
            let number = bucket_of(self.state.load(Acquire), hash);
            let bucket = self.bucket(number);
            self.lock_bucket(bucket);
            if bucket_of(self.state.load(Acquire), hash) == number {
                return bucket;
            }
            self.unlock(bucket);
        }
    }

    fn lock_bucket(&self, bucket: &[AtomicU64]) {
        let mut backoff = Backoff::new();
        while bucket[0].fetch_or(LOCK, Acquire) & LOCK != 0 {
            backoff.wait();
        }
    }

    fn unlock(&self, bucket: &[AtomicU64]) {
        // No read-modify-write is needed. While the lock is held nobody else changes the word; a
        // waiter sets only the bit that is set already. Relaxed load: the word is the holder's own.
        let control = bucket[0].load(Relaxed);
        bucket[0].store(control & !LOCK, Release);
    }

    /// Adds a cell for a key that is not in the index yet. `worker` spreads the counters. `publish`
    /// is called right before others can see the cell, and after every removal of the same key.
    pub(crate) fn insert(
        &self,
        worker: usize,
        hash: u64,
        cell: u64,
        mut is_key: impl FnMut(u64) -> bool,
        publish: impl FnOnce(),
    ) -> Inserted {
        let first = self.lock(hash);
        let existing = self.chain(first).flat_map(|bucket| &bucket[1..]).find_map(|slot| {
            let seen = slot.load(Acquire);
            (has_tag(seen, hash) && is_key(seen & NUMBER_MASK)).then_some(seen & NUMBER_MASK)
        });
        let stored = existing.is_none() && {
            publish();
            self.store(first, entry(hash, cell))
        };
        self.unlock(first);
        match existing {
            Some(cell) => Inserted::Existing(cell),
            None if !stored => Inserted::Full,
            None => {
                self.count_and_grow(worker);
                Inserted::New
            }
        }
    }

    /// As [`insert`](Self::insert), but without counting and growth, which a later
    /// [`count_loaded`](Self::count_loaded) does for many. Reads each entry of the bucket once.
    #[inline]
    pub(crate) fn load(
        &self,
        hash: u64,
        cell: u64,
        mut is_key: impl FnMut(u64) -> bool,
    ) -> Inserted {
        let first = self.lock(hash);
        let mut free = None;
        let mut found = Inserted::New;
        for slot in &first[1..] {
            let seen = slot.load(Acquire);
            if seen == 0 {
                free = free.or(Some(slot));
            } else if has_tag(seen, hash) && is_key(seen & NUMBER_MASK) {
                found = Inserted::Existing(seen & NUMBER_MASK);
            }
        }
        match free {
            Some(slot)
                if found == Inserted::New && first[0].load(Relaxed) >> OVERFLOW_SHIFT == 0 =>
            {
                slot.store(entry(hash, cell), Release);
            }
            _ if found == Inserted::New => found = self.load_chain(first, hash, cell, is_key),
            _ => {}
        }
        self.unlock(first);
        found
    }

    /// The rare rest of [`load`](Self::load): the bucket is full, or has overflow buckets.
    #[cold]
    fn load_chain(
        &self,
        first: &[AtomicU64],
        hash: u64,
        cell: u64,
        mut is_key: impl FnMut(u64) -> bool,
    ) -> Inserted {
        let behind_first = self.chain(first).skip(1).flat_map(|bucket| &bucket[1..]);
        for slot in behind_first {
            let seen = slot.load(Acquire);
            if has_tag(seen, hash) && is_key(seen & NUMBER_MASK) {
                return Inserted::Existing(seen & NUMBER_MASK);
            }
        }
        if self.store(first, entry(hash, cell)) { Inserted::New } else { Inserted::Full }
    }

    /// Counts the entries that [`load`](Self::load) has added, and makes the due splits.
    pub(crate) fn count_loaded(&self, worker: usize, added: u32) {
        // Relaxed: as in `count_and_grow`.
        self.entries[worker % COUNTERS].fetch_add(i64::from(added), Relaxed);
        self.begin_growing_if_full();
        self.split_some(added * SPLITS_PER_INSERT);
    }

    /// Puts an entry into a free place of a locked (or unpublished) chain. Returns false without
    /// address space for a further bucket.
    fn store(&self, first: &[AtomicU64], new: u64) -> bool {
        let mut last = first;
        for bucket in self.chain(first) {
            if let Some(slot) = bucket[1..].iter().find(|slot| slot.load(Relaxed) == 0) {
                slot.store(new, Release);
                return true;
            }
            last = bucket;
        }
        let Some(number) = self.take_overflow_bucket() else {
            return false;
        };
        self.overflow_bucket(number)[1].store(new, Release);
        last[0].fetch_or(number << OVERFLOW_SHIFT, Release);
        true
    }

    /// The number of an unused overflow bucket. `None` without address space.
    fn take_overflow_bucket(&self) -> Option<u64> {
        // Relaxed: a hint.
        if self.overflow_free_count.load(Relaxed) > 0
            && let Some(number) = self.overflow_free.lock().pop()
        {
            self.overflow_free_count.fetch_sub(1, Relaxed);
            return Some(number);
        }
        // Relaxed: the number is published by the control word that will hold it.
        let mut number = self.overflow_taken.load(Relaxed);
        loop {
            self.overflow.reserve_up_to(number as usize * BUCKET_WORDS).ok()?;
            match self.overflow_taken.compare_exchange(number, number + 1, Relaxed, Relaxed) {
                Ok(_) => return Some(number),
                Err(now) => number = now,
            }
        }
    }

    /// Replaces a key's cell by another, and returns whether the index had the old cell. The caller
    /// holds the locks of both cells, or is the only one to change the key. `retire` ends the old cell.
    /// It is called after others can see the new cell, and before anyone can add a further cell for the
    /// key.
    pub(crate) fn replace(&self, hash: u64, (old, new): (u64, u64), retire: impl FnOnce()) -> bool {
        let first = self.lock(hash);
        let slot = self.slot_of(first, entry(hash, old));
        if let Some(slot) = slot {
            slot.store(entry(hash, new), Release);
            // The count changes before the old cell ends: partner of the loads at the end of `find`. A
            // lookup that has taken the old entry, and finds the cell dead, sees another count.
            count_move(first);
            retire();
        }
        self.unlock(first);
        slot.is_some()
    }

    /// Removes a key's cell. Returns false if the cell is not in the index. `retire` is called
    /// before the removal, and before anyone can add another cell for the key.
    pub(crate) fn remove(
        &self,
        worker: usize,
        hash: u64,
        cell: u64,
        retire: impl FnOnce(),
    ) -> bool {
        let first = self.lock(hash);
        let slot = self.slot_of(first, entry(hash, cell));
        if let Some(slot) = slot {
            retire();
            slot.store(0, Release);
            // Relaxed: a count.
            self.entries[worker % COUNTERS].fetch_sub(1, Relaxed);
        }
        self.unlock(first);
        slot.is_some()
    }

    fn slot_of<'a>(&'a self, first: &'a [AtomicU64], wanted: u64) -> Option<&'a AtomicU64> {
        self.chain(first).flat_map(|bucket| &bucket[1..]).find(|slot| slot.load(Relaxed) == wanted)
    }

    fn count_and_grow(&self, worker: usize) {
        // Relaxed: counts and hints. The split itself synchronises.
        let own = self.entries[worker % COUNTERS].fetch_add(1, Relaxed);
        if own % CHECK_EVERY == 0 {
            self.begin_growing_if_full();
        }
        self.split_some(SPLITS_PER_INSERT);
    }

    #[inline]
    fn begin_growing_if_full(&self) {
        if !self.growing.load(Relaxed) && self.len() * 4 > self.bucket_count() * LOAD_START_QUARTERS
        {
            self.growing.store(true, Relaxed);
        }
    }

    #[inline]
    fn split_some(&self, count: u32) {
        if self.growing.load(Relaxed) {
            for _ in 0..count {
                if self.split_next() {
                    self.growing.store(false, Relaxed);
                    break;
                }
            }
        }
    }

    /// Splits the next bucket, unless another worker does. Returns true when a round is complete or
    /// no room is left.
    fn split_next(&self) -> bool {
        if self.splitting.swap(true, Acquire) {
            return false;
        }
        let state = self.state.load(Relaxed);
        let (level, split) = ((state >> 56) as u32, state & SPLIT_MASK);
        let new = (1 << level) + split;
        let has_room = || self.buckets.reserve_up_to(new as usize * BUCKET_WORDS).is_ok();
        let done = if level < LEVEL_MAX && has_room() {
            let last = split + 1 == 1 << level;
            let next = if last { u64::from(level + 1) << 56 } else { state + 1 };
            self.split(self.bucket(split), self.bucket(new), level, next);
            last
        } else {
            true
        };
        self.splitting.store(false, Release);
        done
    }

    fn split(&self, old: &[AtomicU64], new: &[AtomicU64], level: u32, next_state: u64) {
        self.lock_bucket(old);
        // A writer may have chosen this bucket before it was merged away, and find out in a moment.
        self.lock_bucket(new);
        let mut moved = true;
        for slot in self.chain(old).flat_map(|bucket| &bucket[1..]) {
            let seen = slot.load(Relaxed);
            if seen != 0 && goes_up(seen, level) {
                moved &= self.store(new, seen);
            }
        }
        // Without room for an overflow bucket the split is postponed.
        if moved {
            // A reader may have looked at this bucket before it was merged away, and look again now.
            count_move(new);
            self.state.store(next_state, Release);
            for slot in self.chain(old).flat_map(|bucket| &bucket[1..]) {
                let seen = slot.load(Relaxed);
                if seen != 0 && goes_up(seen, level) {
                    slot.store(0, Release);
                }
            }
            self.gather(old);
        } else {
            for slot in self.chain(new).flat_map(|bucket| &bucket[1..]) {
                slot.store(0, Relaxed);
            }
        }
        self.unlock(new);
        self.unlock(old);
    }

    /// Moves entries of overflow buckets to free places of the first, which is locked.
    fn gather(&self, first: &[AtomicU64]) {
        let mut free = first[1..].iter().filter(|slot| slot.load(Relaxed) == 0);
        for slot in self.chain(first).skip(1).flat_map(|bucket| &bucket[1..]) {
            let seen = slot.load(Relaxed);
            if seen == 0 {
                continue;
            }
            let Some(place) = free.next() else {
                return;
            };
            place.store(seen, Release);
            // The count changes before the old place is emptied: partner of the loads at the end of
            // `find`.
            count_move(first);
            slot.store(0, Release);
        }
    }

    /// Visits the cells of the buckets at one cursor position and returns the next position, 0 at
    /// the end. A cell that is present during the whole scan is visited at one position, perhaps more than once
    /// there. The index may grow or shrink meanwhile. (Positions count in bit-reversed order, as in
    /// Redis's SCAN.)
    ///
    /// `repeats` is called before a bucket is visited again. A key whose cell is replaced meanwhile may then be
    /// met in both cells.
    pub(crate) fn scan(
        &self,
        cursor: u64,
        mut visit: impl FnMut(u64),
        mut repeats: impl FnMut(),
    ) -> u64 {
        let mut level = LEVEL_MAX;
        loop {
            let merges = self.merges.load(Acquire);
            let state = self.state.load(Acquire);
            let (mut count, mut most) = (buckets_in(state), buckets_in(state));
            // The position of an earlier attempt is visited whole, though the index has grown since.
            level = level.min((state >> 56) as u32);
            let mask = (1u64 << level) - 1;
            // The cursor may be of a time when there were more buckets. Then the scan has been at a part of
            // this position already.
            let is_from_larger = cursor & !mask != 0 && cursor >> LEVEL_MAX == 0;
            // While a split or a merge is under way, entries of another position lie in the bucket, too.
            let is_here = |hash: u64| {
                (hash ^ cursor) & mask == 0
                    && !(is_from_larger && hash.reverse_bits() < cursor.reverse_bits())
            };
            // A bucket that was split already is scanned with its other half, and so is one that is
            // split meanwhile. The entries of such a bucket move upwards only, and the scan reads the
            // count anew for each bucket.
            let mut number = cursor & mask;
            while number < count {
                let first = self.bucket(number);
                let moves = moves(first);
                for slot in self.chain(first).flat_map(|bucket| &bucket[1..]) {
                    let seen = slot.load(Acquire);
                    if seen != 0 && is_here(known_hash(seen, number)) {
                        visit(seen & NUMBER_MASK);
                    }
                }
                // An entry that has moved meanwhile may have been missed in both places.
                if self::moves(first) == moves {
                    number += 1 << level;
                } else {
                    repeats();
                }
                count = buckets_in(self.state.load(Acquire));
                most = most.max(count);
            }
            // A bucket may have been merged into one that was visited before. If the scan has seen its entries
            // gone, or its number, then these loads see the merge.
            count = buckets_in(self.state.load(Acquire));
            if count >= most && self.merges.load(Acquire) == merges {
                return ((cursor | !mask).reverse_bits().wrapping_add(1)).reverse_bits();
            }
            repeats();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, HashSet};

    /// Hashes for cells that are their own keys. The mixing keeps low bits random.
    fn hash(key: u64) -> u64 {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .rotate_left(29)
            .wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    fn new_index() -> Result<Index, RegionError> {
        Index::new(&Arc::default())
    }

    #[test]
    fn without_address_space_it_neither_grows_nor_loses_anything() {
        let space = Arc::new(AddressSpace::default());
        let mut refused_at = std::collections::BTreeSet::new();
        for requests in 1..12 {
            space.end_after(space.requests() + requests);
            let index = Index::new(&space).expect("the first request");
            let insert = |key| index.insert(0, hash(key), key, |cell| cell == key, || {});
            let full = (1..200_000).find(|&key| insert(key) == Inserted::Full);
            let stored = full.unwrap_or(200_000) - 1;
            refused_at.insert(stored);
            assert_eq!(index.len(), stored);
            for key in 1..=stored {
                assert_eq!(index.find(hash(key), |cell| cell == key), Some(key), "{requests}");
            }
            space.end_after(usize::MAX);
            if full.is_some() {
                assert_eq!(insert(stored + 1), Inserted::New, "room again");
            }
        }
        assert!(refused_at.len() > 5, "it ran out at different sizes: {refused_at:?}");
    }

    #[test]
    fn a_small_index_takes_little_address_space() {
        let space = Arc::new(AddressSpace::default());
        let index = Index::new(&space).expect("address space");
        assert_eq!(space.requests(), 1);
        assert!(index.held_bytes() < 32 << 10);
        assert!(!index.populate_ahead(), "nothing of it is touched ahead");
    }

    #[test]
    fn grows_through_many_rounds_and_finds_all() {
        let index = new_index().expect("address space");
        let n = 200_000;
        for key in 1..=n {
            assert_eq!(index.insert(0, hash(key), key, |cell| cell == key, || {}), Inserted::New);
            if key % 97 == 0 {
                let old = key / 2 + 1;
                assert_eq!(index.find(hash(old), |cell| cell == old), Some(old));
            }
        }
        assert_eq!(index.len(), n);
        assert!(index.bucket_count() * 5 > n && index.bucket_count() < n);
        let near = (1..=n)
            .filter(|&key| index.candidate(index.prefetch(hash(key)), hash(key)) != 0)
            .count() as u64;
        assert!(near * 200 > n * 199, "only {near} of {n} are in the first bucket of their chain");
        for key in 1..=n {
            assert_eq!(index.find(hash(key), |cell| cell == key), Some(key), "{key}");
            assert_eq!(
                index.insert(0, hash(key), 9, |cell| cell == key, || {}),
                Inserted::Existing(key)
            );
        }
        assert_eq!(index.find(hash(n + 1), |cell| cell == n + 1), None);
        for key in (1..=n).step_by(2) {
            assert!(index.remove(0, hash(key), key, || {}));
            assert!(!index.remove(0, hash(key), key, || {}));
        }
        for key in 1..=n {
            let expected = (key % 2 == 0).then_some(key);
            assert_eq!(index.find(hash(key), |cell| cell == key), expected);
        }
    }

    #[test]
    fn colliding_hashes_go_to_overflow_buckets() {
        let index = new_index().expect("address space");
        for key in 1..=1000 {
            assert_eq!(index.insert(0, 42, key, |cell| cell == key, || {}), Inserted::New);
        }
        for key in 1..=1000 {
            assert_eq!(index.find(42, |cell| cell == key), Some(key));
            assert!(index.remove(0, 42, key, || {}));
        }
        assert_eq!(index.len(), 0);
    }

    #[test]
    fn a_scan_meets_every_lasting_entry_though_the_index_grows() {
        let index = new_index().expect("address space");
        let lasting = 3_000;
        for key in 1..=lasting {
            index.insert(0, hash(key), key, |cell| cell == key, || {});
        }
        let mut seen = HashSet::new();
        let mut cursor = 0;
        let mut next = lasting;
        loop {
            let visit = |cell| assert!(seen.insert(cell), "entry {cell} is met twice");
            cursor = index.scan(cursor, visit, || {});
            if cursor == 0 {
                break;
            }
            for _ in 0..20 {
                next += 1;
                index.insert(0, hash(next), next, |cell| cell == next, || {});
            }
        }
        assert!((1..=lasting).all(|key| seen.contains(&key)));
        assert!(next > 4 * lasting, "the index grew during the scan");
    }

    #[test]
    fn readers_and_writers_side_by_side() {
        let index = Arc::new(new_index().expect("address space"));
        let per_thread = 60_000u64;
        let threads: Vec<_> = (0..4u64)
            .map(|t| {
                let index = index.clone();
                stillpoint_io::spawn(&format!("index-{t}"), move || {
                    let keys = (1..=per_thread).map(|i| i * 4 + t);
                    let mut mine = BTreeMap::new();
                    for key in keys {
                        assert_eq!(
                            index.insert(t as usize, hash(key), key, |cell| cell == key, || {}),
                            Inserted::New
                        );
                        mine.insert(key, ());
                        if key % 3 == 0 {
                            assert!(index.remove(t as usize, hash(key), key, || {}));
                            mine.remove(&key);
                        }
                        let old = 4 + t;
                        let expected = mine.contains_key(&old).then_some(old);
                        assert_eq!(index.find(hash(old), |cell| cell == old), expected);
                    }
                    for key in (1..=per_thread).map(|i| i * 4 + t) {
                        let expected = mine.contains_key(&key).then_some(key);
                        assert_eq!(index.find(hash(key), |cell| cell == key), expected);
                    }
                })
                .expect("a thread")
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
    }
}
