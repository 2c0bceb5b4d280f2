//! The pool of stable versions (CALC, SIGMOD 2016, §5.1.6): slots of one size, reserved before a
//! transaction needs them. A value takes as many slots as it is long.
//!
//! ```text
//! slot:  [ number of the next slot, 0 in the last | 120 bytes of the value ]
//!
//! free ──▶ cache of a worker ──▶ stable version ──▶ cache of the scan ──▶ free
//! ```
//! The pool is as large as it was made, and never grows beyond. Its bytes count against the store's
//! memory limit from the start. The background touches its pages ahead of their use.

use std::sync::Arc;

use stillpoint_mem::{AddressSpace, Region, RegionError};
use stillpoint_sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::{Backoff, Mutex};

use crate::memory::words;

/// Bytes of a slot.
const SLOT_BYTES: usize = 128;
const SLOT_WORDS: usize = SLOT_BYTES / 8;
const SLOT_VALUE_BYTES: usize = SLOT_BYTES - 8;
/// Slots that a cache takes at a time, at most.
const RUN_SLOTS_MAX: usize = 32;
/// Bytes that the background touches ahead of the slots in use.
const AHEAD_BYTES: usize = 32 << 20;

/// Free slots that belong to one thread.
#[derive(Debug, Default)]
pub(crate) struct SlotCache {
    slots: Vec<u32>,
    /// The number of resets of the pool when the slots were taken.
    resets: u64,
}

/// The slots, and which are free.
#[derive(Debug)]
pub(crate) struct Pool {
    region: Region,
    /// Number of slots. Slot 0 is never used.
    slots: usize,
    run_slots: usize,
    free: Mutex<Free>,
    /// As in [`Free`]. A cache with another number is outdated.
    resets: AtomicU64,
    populated: AtomicUsize,
    /// The last epoch in which a commit needed more slots than the pool has.
    exceeded_in: AtomicU64,
}

#[derive(Debug)]
struct Free {
    /// The first slot of the list of returned slots, 0 for none. Each slot names the next.
    first: u32,
    returned: usize,
    /// Slots from this number on were not used since the last reset.
    fresh: usize,
    /// Slots that are not free, those in caches included: now, and at most since the last reset.
    used: usize,
    peak: usize,
}

impl Free {
    fn new() -> Self {
        Self { first: 0, returned: 0, fresh: 1, used: 0, peak: 0 }
    }
}

impl Pool {
    /// A pool of about `bytes` bytes.
    pub(crate) fn new(bytes: usize, space: &Arc<AddressSpace>) -> Result<Self, RegionError> {
        let slots = (bytes / SLOT_BYTES).clamp(2, u32::MAX as usize);
        let region = space.reserve_to_grow(slots * SLOT_BYTES, slots * SLOT_BYTES)?;
        Ok(Self {
            region,
            slots,
            run_slots: (slots / 64).clamp(1, RUN_SLOTS_MAX),
            free: Mutex::new(Free::new()),
            resets: AtomicU64::new(0),
            populated: AtomicUsize::new(0),
            exceeded_in: AtomicU64::new(0),
        })
    }

    /// Bytes of the pool.
    pub(crate) fn bytes(&self) -> usize {
        self.slots * SLOT_BYTES
    }

    /// Bytes of slots in use now, and the most since the last reset. Up to a few dozen slots for each
    /// worker are in its cache, and count.
    pub(crate) fn used_bytes(&self) -> (usize, usize) {
        let free = self.free.lock();
        (free.used * SLOT_BYTES, free.peak * SLOT_BYTES)
    }

    /// Slots that a value of this length takes.
    pub(crate) fn slots_for(len: usize) -> usize {
        len.div_ceil(SLOT_VALUE_BYTES).max(1)
    }

    /// Whether a commit may ever have so many slots at once.
    pub(crate) fn can_have(&self, slots: usize) -> bool {
        slots < self.slots
    }

    /// Notes that a commit of `epoch` needs more slots than the pool has.
    pub(crate) fn exceed(&self, epoch: u64) {
        // Relaxed: a reason for a message.
        self.exceeded_in.fetch_max(epoch, Relaxed);
    }

    /// Whether a commit of `epoch` needed more slots than the pool has.
    pub(crate) fn was_exceeded(&self, epoch: u64) -> bool {
        self.exceeded_in.load(Relaxed) == epoch
    }

    /// Fills the cache up to `wanted` slots, or beyond. False if the pool has too few free slots.
    pub(crate) fn fill(&self, cache: &mut SlotCache, wanted: usize) -> bool {
        // Acquire: partner of the Release in `reset`.
        if cache.resets == self.resets.load(Acquire) && cache.slots.len() >= wanted {
            return true;
        }
        let mut free = self.free.lock();
        // Relaxed: the mutex orders.
        let resets = self.resets.load(Relaxed);
        if std::mem::replace(&mut cache.resets, resets) != resets {
            cache.slots.clear();
        }
        let missing = wanted.saturating_sub(cache.slots.len());
        let there = free.returned + (self.slots - free.fresh);
        if missing > there {
            return false;
        }
        let taken = missing.max(self.run_slots.min(there));
        let before = cache.slots.len();
        while cache.slots.len() < before + taken {
            let slot = match free.first {
                0 if self.grow_to(free.fresh) => {
                    free.fresh += 1;
                    (free.fresh - 1) as u32
                }
                0 => break,
                first => {
                    free.first = self.words(first)[0].load(Relaxed) as u32;
                    free.returned -= 1;
                    first
                }
            };
            cache.slots.push(slot);
        }
        free.used += cache.slots.len() - before;
        free.peak = free.peak.max(free.used);
        cache.slots.len() >= wanted
    }

    /// Waits until the cache has `wanted` slots, or until nobody needs them any more.
    pub(crate) fn wait(&self, cache: &mut SlotCache, wanted: usize, is_over: impl Fn() -> bool) {
        let mut backoff = Backoff::new();
        while !is_over() && !self.fill(cache, wanted) {
            backoff.wait();
        }
    }

    /// Puts `len` bytes into slots of the cache, which has enough. `read` fills a part from an offset on.
    /// Returns the first slot.
    pub(crate) fn store(
        &self,
        cache: &mut SlotCache,
        len: usize,
        read: impl Fn(usize, &mut [u8]),
    ) -> u32 {
        let mut part = [0; SLOT_VALUE_BYTES];
        let mut next = 0;
        // The last slot comes first, since each names the next.
        for index in (0..Self::slots_for(len)).rev() {
            let at = index * SLOT_VALUE_BYTES;
            let bytes = &mut part[..SLOT_VALUE_BYTES.min(len - at)];
            read(at, bytes);
            let slot = cache.slots.pop().expect("the cache was filled");
            let words = self.words(slot);
            words[0].store(u64::from(next), Relaxed);
            words::fill(&words[1..], bytes);
            next = slot;
        }
        next
    }

    /// Replaces the contents of `out` by a stored value.
    pub(crate) fn read(&self, first: u32, len: usize, out: &mut Vec<u8>) {
        out.clear();
        let mut slot = first;
        while slot != 0 {
            let words = self.words(slot);
            words::read(&words[1..], 0, SLOT_VALUE_BYTES.min(len - out.len()), out);
            slot = words[0].load(Relaxed) as u32;
        }
    }

    /// Gives the slots of a stored value to the cache. Nobody reads the value any more.
    pub(crate) fn erase(&self, cache: &mut SlotCache, first: u32) {
        // The stored value is of the present reset. Acquire: as in `fill`.
        let resets = self.resets.load(Acquire);
        if std::mem::replace(&mut cache.resets, resets) != resets {
            cache.slots.clear();
        }
        let mut slot = first;
        while slot != 0 {
            cache.slots.push(slot);
            slot = self.words(slot)[0].load(Relaxed) as u32;
        }
        self.return_surplus(cache);
    }

    /// Returns what the cache has beyond a few dozen slots.
    pub(crate) fn return_surplus(&self, cache: &mut SlotCache) {
        if cache.slots.len() > 2 * self.run_slots {
            self.return_beyond(cache, self.run_slots);
        }
    }

    /// Returns all slots of the cache.
    pub(crate) fn drain(&self, cache: &mut SlotCache) {
        // Each scan comes here every few dozen cells, also at rest.
        if !cache.slots.is_empty() {
            self.return_beyond(cache, 0);
        }
    }

    fn return_beyond(&self, cache: &mut SlotCache, kept: usize) {
        let mut free = self.free.lock();
        // Relaxed: the mutex orders.
        let resets = self.resets.load(Relaxed);
        if std::mem::replace(&mut cache.resets, resets) != resets {
            return cache.slots.clear();
        }
        let kept = kept.min(cache.slots.len());
        for slot in cache.slots.drain(kept..) {
            self.words(slot)[0].store(u64::from(free.first), Relaxed);
            free.first = slot;
            free.returned += 1;
            free.used -= 1;
        }
    }

    /// How often all slots were made free. Slots from before the last time are not valid any more.
    pub(crate) fn resets(&self) -> u64 {
        // Acquire: as in `fill`.
        self.resets.load(Acquire)
    }

    /// Makes the slots of stored values free, and empties the list. Does nothing else if all slots were
    /// made free since the values were stored, with `resets` as it was. Nobody reads the values any more.
    pub(crate) fn erase_all(&self, stored: &mut Vec<u32>, resets: u64) {
        let mut free = self.free.lock();
        // Relaxed: the mutex orders.
        if self.resets.load(Relaxed) != resets {
            return stored.clear();
        }
        for first in stored.drain(..) {
            let mut slot = first;
            while slot != 0 {
                let word = &self.words(slot)[0];
                let next = word.load(Relaxed) as u32;
                word.store(u64::from(free.first), Relaxed);
                free.first = slot;
                free.returned += 1;
                free.used -= 1;
                slot = next;
            }
        }
    }

    /// Makes all slots free. No record has a stable version any more, but those of dropped tables whose
    /// slabs are not free yet. Slots in caches are not valid any more.
    pub(crate) fn reset(&self) {
        let mut free = self.free.lock();
        *free = Free::new();
        // Release: partner of the Acquire in `fill`.
        self.resets.fetch_add(1, Release);
    }

    /// Touches pages ahead of their use. Whether more is to be done.
    pub(crate) fn populate_ahead(&self) -> bool {
        let peak = self.free.lock().peak * SLOT_BYTES;
        let wanted = (peak + AHEAD_BYTES).min(self.bytes());
        // Relaxed: one thread does the work of the background.
        let populated = self.populated.load(Relaxed);
        if populated >= wanted {
            return false;
        }
        let until = wanted.min(populated + stillpoint_mem::HUGE_PAGE_BYTES);
        if self.region.grow(until).is_err() {
            return false;
        }
        self.region.populate(populated / 8, (until - populated) / 8);
        self.populated.store(until, Relaxed);
        until < wanted
    }

    /// Makes the slot usable. False if the system refuses the memory.
    fn grow_to(&self, slot: usize) -> bool {
        if slot >= self.slots {
            return false;
        }
        let end = (slot + 1) * SLOT_BYTES;
        end <= self.region.len_bytes() || self.region.grow(end).is_ok()
    }

    fn words(&self, slot: u32) -> &[AtomicU64] {
        let first = slot as usize * SLOT_WORDS;
        &self.region.words()[first..first + SLOT_WORDS]
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn put(pool: &Pool, cache: &mut SlotCache, value: &[u8]) -> u32 {
        assert!(pool.fill(cache, Pool::slots_for(value.len())));
        pool.store(cache, value.len(), |at, part| part.copy_from_slice(&value[at..][..part.len()]))
    }

    #[test]
    fn values_of_all_lengths_come_back() {
        let pool = Pool::new(1 << 20, &Arc::default()).expect("address space");
        let (mut cache, mut out) = (SlotCache::default(), vec![9; 9]);
        let lens = [0, 1, 7, 8, 119, 120, 121, 239, 240, 241, 2_044];
        let stored = lens.map(|len| {
            let value: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
            (put(&pool, &mut cache, &value), value)
        });
        for (slot, value) in &stored {
            pool.read(*slot, value.len(), &mut out);
            assert_eq!(&out, value);
        }
        for (slot, _) in stored {
            pool.erase(&mut cache, slot);
        }
        pool.drain(&mut cache);
        let (used, peak) = pool.used_bytes();
        let slots: usize = lens.iter().map(|&len| Pool::slots_for(len)).sum();
        assert_eq!((used, slots), (0, 33));
        assert!(peak >= slots * SLOT_BYTES && peak <= (slots + RUN_SLOTS_MAX) * SLOT_BYTES);
    }

    #[test]
    fn a_pool_that_is_used_up_has_room_once_slots_come_back() {
        let pool = Pool::new(4 * SLOT_BYTES, &Arc::default()).expect("address space");
        let (mut cache, mut other) = (SlotCache::default(), SlotCache::default());
        let stored = put(&pool, &mut cache, &[1; 350]);
        assert!(!pool.fill(&mut other, 1), "three of four slots are in use, and one never is");
        assert!(pool.can_have(3) && !pool.can_have(4));
        pool.wait(&mut other, 1, || true);
        pool.erase(&mut cache, stored);
        pool.drain(&mut cache);
        pool.wait(&mut other, 3, || false);
        assert_eq!(pool.used_bytes(), (3 * SLOT_BYTES, 3 * SLOT_BYTES));
    }

    /// A wait may bring slots for versions that the scan has made needless.
    #[test]
    fn slots_that_a_commit_does_not_need_any_more_go_back() {
        let pool = Pool::new(64 * SLOT_BYTES, &Arc::default()).expect("address space");
        let (mut cache, mut other) = (SlotCache::default(), SlotCache::default());
        pool.wait(&mut cache, 60, || false);
        assert!(!pool.fill(&mut other, 40));
        pool.return_surplus(&mut cache);
        assert_eq!(pool.used_bytes().0, pool.run_slots * SLOT_BYTES);
        assert!(pool.fill(&mut other, 40));
    }

    #[test]
    fn a_reset_frees_all_slots_and_outdates_the_caches() {
        let pool = Pool::new(8 * SLOT_BYTES, &Arc::default()).expect("address space");
        let mut cache = SlotCache::default();
        put(&pool, &mut cache, &[1; 700]);
        assert!(pool.fill(&mut cache, 1));
        pool.reset();
        assert_eq!(pool.used_bytes(), (0, 0));
        pool.drain(&mut cache);
        assert_eq!(pool.used_bytes(), (0, 0), "outdated slots are not returned");
        let stored = put(&pool, &mut cache, &[2; 700]);
        let mut out = Vec::new();
        pool.read(stored, 700, &mut out);
        assert_eq!(out, [2; 700]);
        let mut fresh = SlotCache::default();
        pool.erase(&mut fresh, stored);
        pool.drain(&mut fresh);
        pool.drain(&mut cache);
        assert_eq!(pool.used_bytes().0, 0, "a cache that was never filled gives slots back");
        pool.exceed(5);
        assert!(pool.was_exceeded(5) && !pool.was_exceeded(6));
    }

    /// Slots of a dropped table go back at once, unless a reset has made them free before.
    #[test]
    fn values_that_nobody_reaches_are_erased_once() {
        let pool = Pool::new(16 * SLOT_BYTES, &Arc::default()).expect("address space");
        let mut cache = SlotCache::default();
        let mut stored = vec![put(&pool, &mut cache, &[1; 700]), put(&pool, &mut cache, &[2; 100])];
        pool.drain(&mut cache);
        assert_eq!(pool.used_bytes().0, 7 * SLOT_BYTES);
        let resets = pool.resets();
        pool.erase_all(&mut stored, resets);
        assert_eq!((pool.used_bytes().0, stored.len()), (0, 0));
        let all = put(&pool, &mut cache, &[3; 15 * SLOT_VALUE_BYTES]);
        let mut out = Vec::new();
        pool.read(all, 15 * SLOT_VALUE_BYTES, &mut out);
        assert!(out.iter().all(|&byte| byte == 3), "each slot is there once");
        pool.reset();
        pool.erase_all(&mut vec![all], resets);
        assert_eq!(pool.used_bytes().0, 0, "the reset has made them free");
    }

    #[test]
    fn pages_are_touched_ahead() {
        let pool = Pool::new(5 << 20, &Arc::default()).expect("address space");
        let rounds = (1..).find(|_| !pool.populate_ahead()).expect("it ends");
        assert_eq!((rounds, pool.populated.load(Relaxed)), (3, 5 << 20));
    }
}
