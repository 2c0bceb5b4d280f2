//! Slots by hash, for transactions of many keys.

/// An open-addressing table of slot numbers. The table keeps no keys, and its caller compares them.
#[derive(Debug, Default)]
pub struct Lookup {
    /// Slot number + 1, or 0 for a free entry. The length is a power of two, and at most half is
    /// used.
    places: Vec<u32>,
    /// Slots below this number were visited, and entered if they have a hash.
    covered: usize,
    entered: usize,
}

/// Slots up to which a scan is faster than a table.
pub const SCAN_MAX: usize = 32;

/// Most entries kept from one transaction to the next.
const KEEP_PLACES: usize = 1 << 16;

impl Lookup {
    /// Whether nothing was entered since the last [`clear`](Self::clear).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.covered == 0
    }

    /// Number of slots visited so far.
    #[inline]
    pub fn covered(&self) -> usize {
        self.covered
    }

    /// Forgets all slots.
    #[inline]
    pub fn clear(&mut self) {
        self.covered = 0;
        self.entered = 0;
        if self.places.len() > KEEP_PLACES {
            self.places = Vec::new();
        }
        self.places.fill(0);
    }

    /// Visits the next slot: enters it, or skips it if `hash` is `None`.
    pub fn cover(&mut self, hash: Option<u64>, hash_of: impl Fn(usize) -> u64) {
        let slot = self.covered;
        self.covered += 1;
        let Some(hash) = hash else {
            return;
        };
        if (self.entered + 1) * 2 > self.places.len() {
            let entered = std::mem::take(&mut self.places);
            self.places = vec![0; (entered.len() * 2).max(4 * SCAN_MAX)];
            for place in entered.into_iter().filter(|&place| place != 0) {
                self.enter(hash_of(place as usize - 1), place);
            }
        }
        self.enter(hash, slot as u32 + 1);
        self.entered += 1;
    }

    fn enter(&mut self, hash: u64, place: u32) {
        let mask = self.places.len() - 1;
        let mut at = spread(hash) & mask;
        while self.places[at] != 0 {
            at = (at + 1) & mask;
        }
        self.places[at] = place;
    }

    /// The slot with this hash that `is_it` accepts.
    pub fn find(&self, hash: u64, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let mask = self.places.len().checked_sub(1)?;
        let mut at = spread(hash) & mask;
        while self.places[at] != 0 {
            let slot = self.places[at] as usize - 1;
            if is_it(slot) {
                return Some(slot);
            }
            at = (at + 1) & mask;
        }
        None
    }
}

/// Numbers of records serve as hashes here, with many equal low bits.
fn spread(hash: u64) -> usize {
    (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn slots_are_found_by_hash_and_forgotten() {
        let mut lookup = Lookup::default();
        assert_eq!(lookup.find(1, |_| true), None);
        let hash_of = |slot: usize| (slot as u64 / 3) << 40;
        for round in 0..3 {
            let slots = 5000 * (round + 1);
            for slot in 0..slots {
                let passed_over = slot % 7 == 0;
                lookup.cover((!passed_over).then(|| hash_of(slot)), hash_of);
            }
            assert_eq!(lookup.covered(), slots);
            for slot in 0..slots {
                let found = lookup.find(hash_of(slot), |found| found == slot);
                assert_eq!(found, (slot % 7 != 0).then_some(slot));
            }
            lookup.clear();
            assert!(lookup.is_empty());
            assert_eq!(lookup.find(0, |_| true), None);
        }
    }
}
