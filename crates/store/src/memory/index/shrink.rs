//! The index of a table most of whose keys were deleted gives memory back, one bucket after the other.
//!
//! ```text
//! lower bucket   lock ─ copies of the upper's entries ─ count a move ───────────────────────────── unlock
//! state                                                          one bucket fewer
//! upper bucket   lock ─────────────────────────────────────────────── count a move ─ empty ─ unlock
//! a grace period later: whole huge pages of emptied buckets go to the system, overflow buckets serve others
//! ```
//! A merge undoes the last split, and is as visible to readers. A reader that has missed an entry in the upper
//! bucket sees that the state has changed. If the bucket was split anew meanwhile, its count of moves has
//! changed. A reader of the lower bucket sees the copies or the older state.
//!
//! Nobody merges but the background, so no commit pays for it. It begins once three quarters of the
//! most entries are gone, and ends at a load that leaves a wide distance to the growth.

use stillpoint_mem::HUGE_PAGE_BYTES;
use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::{GracePeriod, ReadSections};

use super::{
    BUCKET_WORDS, Index, LEVEL_MIN, LOCK, MOVES_MASK, OVERFLOW_SHIFT, SPLIT_MASK, count_move,
};

/// Merges of one call.
const MERGES_AT_ONCE: usize = if super::IS_MODEL { 2 } else { 4 << 10 };
/// Entries per bucket, in eighths, at which merges end. Growth begins at four times as many.
const LOAD_END_EIGHTHS: u64 = 9;
/// Merges begin when this fraction of the most entries is left.
const LEFT_PART: u64 = 4;

/// What the background knows of an index.
#[derive(Debug, Default)]
pub(super) struct Shrinking {
    /// The most entries that were seen since the index last shrank.
    most: u64,
    /// Whether merges have begun and not reached their end.
    is_under_way: bool,
    emptied: Option<Emptied>,
}

/// Buckets that were merged away, and that readers may look at still.
#[derive(Debug)]
struct Emptied {
    grace: GracePeriod,
    /// Number of buckets before.
    before: u64,
    overflow: Vec<u64>,
}

impl Index {
    /// Merges some buckets if the index has far too many, and gives memory of earlier merges back. Called in
    /// the background.
    pub(crate) fn shrink(&self, read_sections: &ReadSections) {
        let mut shrinking = self.shrinking.lock();
        if let Some(emptied) = &mut shrinking.emptied {
            if !read_sections.has_passed(&mut emptied.grace) || !self.give_back(emptied) {
                return;
            }
            shrinking.emptied = None;
        }
        let len = self.len();
        shrinking.most = shrinking.most.max(len);
        if !shrinking.is_under_way && len > shrinking.most / LEFT_PART {
            return;
        }
        shrinking.is_under_way = true;
        let (before, mut overflow) = (self.bucket_count(), Vec::new());
        let mut merges = 0;
        while merges < MERGES_AT_ONCE && self.is_sparse() && self.merge_last(&mut overflow) {
            merges += 1;
        }
        if merges < MERGES_AT_ONCE {
            (shrinking.is_under_way, shrinking.most) = (false, len);
        }
        if merges > 0 {
            let grace = read_sections.token();
            shrinking.emptied = Some(Emptied { grace, before, overflow });
        }
    }

    fn is_sparse(&self) -> bool {
        // Relaxed: a hint.
        !self.growing.load(Relaxed) && self.len() * 8 < self.bucket_count() * LOAD_END_EIGHTHS
    }

    /// Undoes the last split. Adds the overflow buckets that no chain has any more to `overflow`. False if that
    /// is impossible now.
    fn merge_last(&self, overflow: &mut Vec<u64>) -> bool {
        if self.splitting.swap(true, Acquire) {
            return false;
        }
        let state = self.state.load(Relaxed);
        let (level, split) = ((state >> 56) as u32, state & SPLIT_MASK);
        let last = match split.checked_sub(1) {
            Some(lower) => Some((level, lower)),
            None if level > LEVEL_MIN => Some((level - 1, (1 << (level - 1)) - 1)),
            None => None,
        };
        let merged = last.is_some_and(|(level, lower)| {
            let upper = lower + (1 << level);
            let next_state = u64::from(level) << 56 | lower;
            self.merge((self.bucket(lower), self.bucket(upper)), next_state, overflow)
        });
        self.splitting.store(false, Release);
        merged
    }

    /// Merges two buckets. False without room for an overflow bucket.
    fn merge(
        &self,
        (lower, upper): (&[AtomicU64], &[AtomicU64]),
        next_state: u64,
        overflow: &mut Vec<u64>,
    ) -> bool {
        self.lock_bucket(lower);
        self.lock_bucket(upper);
        let slots = || self.chain(upper).flat_map(|bucket| &bucket[1..]);
        let entries = || slots().map(|slot| slot.load(Relaxed)).filter(|&entry| entry != 0);
        let moved = entries().all(|entry| self.store(lower, entry));
        if moved {
            // A reader whose state is this one again, after a split and a merge, sees another count.
            count_move(lower);
            self.state.store(next_state, Release);
            self.merges.fetch_add(1, Release);
            // The counts change before the old places are emptied.
            count_move(upper);
            slots().for_each(|slot| slot.store(0, Release));
            self.unlink(upper, overflow);
        } else {
            for slot in entries().filter_map(|entry| self.slot_of(lower, entry)) {
                slot.store(0, Release);
            }
        }
        self.unlock(upper);
        self.unlock(lower);
        moved
    }

    /// Ends the chain of a bucket, which is locked and empty, behind its first bucket.
    fn unlink(&self, first: &[AtomicU64], overflow: &mut Vec<u64>) {
        // Relaxed: only the holder of the lock changes the links.
        let mut next = first[0].load(Relaxed) >> OVERFLOW_SHIFT;
        while next != 0 {
            overflow.push(next);
            next = self.overflow_bucket(next)[0].load(Relaxed) >> OVERFLOW_SHIFT;
        }
        // A waiting writer sets only the bit of the lock, which is set.
        first[0].store(first[0].load(Relaxed) & (MOVES_MASK | LOCK), Release);
    }

    /// Gives memory back that no reader looks at any more. False if a split is under way.
    fn give_back(&self, emptied: &mut Emptied) -> bool {
        if self.splitting.swap(true, Acquire) {
            return false;
        }
        // Splits since may have filled some of the buckets anew.
        let bytes = |buckets: u64| buckets as usize * BUCKET_WORDS * 8;
        let from = bytes(self.bucket_count()).next_multiple_of(HUGE_PAGE_BYTES);
        let populated = self.populated_bytes.load(Relaxed);
        let end = bytes(emptied.before).max(populated).next_multiple_of(HUGE_PAGE_BYTES);
        if from < end {
            self.buckets.discard(from / 8, (end - from) / 8);
            self.populated_bytes.store(populated.min(from), Relaxed);
        }
        self.splitting.store(false, Release);
        for &number in &emptied.overflow {
            // Relaxed: the mutex orders whoever takes the bucket.
            self.overflow_bucket(number)[0].store(0, Relaxed);
        }
        self.overflow_free_count.fetch_add(emptied.overflow.len(), Relaxed);
        self.overflow_free.lock().append(&mut emptied.overflow);
        true
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use stillpoint_mem::AddressSpace;

    use super::super::Inserted;
    use super::*;

    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    fn new_index() -> Index {
        Index::new(&Arc::default()).expect("address space")
    }

    fn insert(index: &Index, key: u64) {
        let inserted = index.insert(0, hash(key), key, |cell| cell == key, || {});
        assert_eq!(inserted, Inserted::New);
    }

    fn finds(index: &Index, key: u64) -> bool {
        index.find(hash(key), |cell| cell == key).is_some()
    }

    /// Shrinks as far as the index goes.
    fn settle(index: &Index, read_sections: &ReadSections) {
        for _ in 0..1_000 {
            index.shrink(read_sections);
            if !index.shrinking.lock().is_under_way && index.shrinking.lock().emptied.is_none() {
                return;
            }
        }
        panic!("it does not end");
    }

    #[test]
    fn it_shrinks_and_grows_again_without_a_loss() {
        const KEYS: u64 = 400_000;
        let (index, read_sections) = (new_index(), ReadSections::new(1));
        let mut held = Vec::new();
        for _ in 0..3 {
            (1..=KEYS).for_each(|key| insert(&index, key));
            index.shrink(&read_sections);
            let full = index.held_bytes();
            for key in (1..=KEYS).filter(|key| key % 50 != 0) {
                assert!(index.remove(0, hash(key), key, || {}));
            }
            settle(&index, &read_sections);
            held.push((full, index.held_bytes()));
            assert!(index.held_bytes() < full / 10, "{held:?}");
            for key in 1..=KEYS {
                assert_eq!(finds(&index, key), key % 50 == 0, "{key}");
            }
            for key in (50..=KEYS).step_by(50) {
                assert!(index.remove(0, hash(key), key, || {}));
            }
            settle(&index, &read_sections);
            assert_eq!(index.len(), 0);
        }
        // The overflow buckets of earlier rounds serve again.
        assert!(held[2].0 <= held[0].0 + held[0].0 / 50, "{held:?}");
        assert!(index.bucket_count() == 1 << LEVEL_MIN && index.held_bytes() < 1 << 20);
    }

    #[test]
    fn an_index_in_use_keeps_its_size() {
        let (index, read_sections) = (new_index(), ReadSections::new(1));
        index.reserve(100_000);
        let before = index.bucket_count();
        (1..=1_000).for_each(|key| insert(&index, key));
        settle(&index, &read_sections);
        assert_eq!(index.bucket_count(), before, "it was never fuller");
        (1_001..=100_000).for_each(|key| insert(&index, key));
        settle(&index, &read_sections);
        for key in 1..=70_000 {
            assert!(index.remove(0, hash(key), key, || {}));
        }
        settle(&index, &read_sections);
        assert_eq!(index.bucket_count(), before, "three tenths are left");
    }

    /// A scan that begins in a large index and ends in a small one meets each lasting entry at one position.
    #[test]
    fn a_scan_meets_every_lasting_entry_once_though_the_index_shrinks() {
        const KEYS: u64 = 60_000;
        for steps in [3, 700, 9_000] {
            let (index, read_sections) = (new_index(), ReadSections::new(1));
            (1..=KEYS).for_each(|key| insert(&index, key));
            index.shrink(&read_sections);
            let before = index.bucket_count();
            let (mut seen, mut cursor, mut position) = (HashSet::new(), 0, 0);
            loop {
                let mut here = HashSet::new();
                cursor = index.scan(cursor, |cell| _ = here.insert(cell), || {});
                for cell in here {
                    assert!(seen.insert(cell), "entry {cell} is met at two positions, {steps}");
                }
                if cursor == 0 {
                    break;
                }
                position += 1;
                if position == steps {
                    for key in (1..=KEYS).filter(|key| key % 40 != 0) {
                        index.remove(0, hash(key), key, || {});
                    }
                }
                index.shrink(&read_sections);
            }
            assert!((40..=KEYS).step_by(40).all(|key| seen.contains(&key)), "{steps}");
            assert!(steps == 9_000 || index.bucket_count() < before / 8, "{steps}");
        }
    }

    #[test]
    fn without_address_space_nothing_is_lost() {
        let space = Arc::new(AddressSpace::default());
        let index = Index::new(&space).expect("address space");
        (1..=30_000).for_each(|key| insert(&index, key));
        let read_sections = ReadSections::new(1);
        index.shrink(&read_sections);
        for key in (1..=30_000).filter(|key| key % 8 != 0) {
            assert!(index.remove(0, hash(key), key, || {}));
        }
        space.end_after(space.requests());
        settle(&index, &read_sections);
        space.end_after(usize::MAX);
        settle(&index, &read_sections);
        assert!((1..=30_000).all(|key| finds(&index, key) == (key % 8 == 0)));
    }

    #[test]
    fn threads_find_what_is_there_while_it_shrinks_and_grows() {
        let index = Arc::new(new_index());
        let read_sections = ReadSections::new(4);
        let lasting = 1..=2_000u64;
        lasting.clone().for_each(|key| insert(&index, key));
        let over = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..2)
            .map(|number| {
                let (index, over) = (index.clone(), over.clone());
                let sections = read_sections.clone();
                let slot = sections.claim().expect("a slot");
                let lasting = lasting.clone();
                let run = move || {
                    while !over.load(SeqCst) {
                        for key in lasting.clone() {
                            let _inside = sections.read_section(slot);
                            assert!(finds(&index, key), "{number} misses {key}");
                        }
                        let _inside = sections.read_section(slot);
                        let (mut seen, mut cursor) = (HashSet::new(), 0);
                        loop {
                            let mut here = HashSet::new();
                            cursor = index.scan(cursor, |cell| _ = here.insert(cell), || {});
                            for cell in here.into_iter().filter(|cell| *cell <= 2_000) {
                                assert!(seen.insert(cell), "{cell} is met at two positions");
                            }
                            if cursor == 0 {
                                break;
                            }
                        }
                        assert_eq!(seen.len(), 2_000);
                    }
                };
                stillpoint_io::spawn("reader", run).expect("a thread")
            })
            .collect();
        let slot = read_sections.claim().expect("a slot");
        let mut fewest = u64::MAX;
        for _ in 0..12 {
            for key in 2_001..=40_000 {
                let _inside = read_sections.read_section(slot);
                insert(&index, key);
            }
            for key in 2_001..=40_000 {
                let _inside = read_sections.read_section(slot);
                assert!(index.remove(0, hash(key), key, || {}));
                if key % 64 == 0 {
                    index.shrink(&read_sections);
                }
            }
            // Each step waits for the scans under way.
            for _ in 0..5_000 {
                index.shrink(&read_sections);
                fewest = fewest.min(index.bucket_count());
                if fewest < 4_000 {
                    break;
                }
                std::thread::yield_now();
            }
        }
        over.store(true, SeqCst);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!(fewest < 4_000, "{fewest} buckets");
    }
}
