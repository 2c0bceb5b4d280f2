//! Which slots of the data file are free.
//!
//! A slot is in use if the map in memory, or a write-back under way, has it. It must keep its
//! content as long as a map on the disk names it that counts or may soon count. Only a slot that
//! none of the three has is free.

use std::ops::Range;

use stillpoint_sync::mutant;

use super::bits::{Bits, absent_run, count_absent};
use super::planted;

/// The slots of a data file.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    /// Number of slots.
    count: u64,
    /// Slots that the map in memory or a write-back has.
    used: Bits,
    /// Slots that the map names that counts on the disk.
    counted: Bits,
    /// Slots that the map of a round names that was written and does not count yet.
    candidate: Bits,
    free: u64,
    /// Where the search for the next run begins.
    cursor: u64,
}

impl Slots {
    /// The slots of a file with so many, of which the map that counts names some.
    pub(super) fn new(count: u64, named: &Bits) -> Self {
        let counted = mutant!(named.clone(), StartFreesSlots => Bits::default());
        let mut slots = Self { count, used: named.clone(), counted, ..Self::default() };
        slots.count_free();
        slots
    }

    /// Number of slots.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Number of free slots.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    fn sets(&self) -> [&Bits; 3] {
        [&self.used, &self.counted, &self.candidate]
    }

    fn count_free(&mut self) {
        self.free = count_absent(self.sets(), self.count);
    }

    /// Adds slots at the end of the file.
    pub(super) fn grow(&mut self, count: u64) {
        let added = count.saturating_sub(self.count);
        self.count += added;
        self.free += added;
    }

    /// Takes the next run of at most `longest` free slots into use. `None` if no slot is free.
    pub(super) fn take_run(&mut self, longest: u64) -> Option<Range<u64>> {
        let sets = self.sets();
        let run = absent_run(sets, self.cursor..self.count, longest)
            .or_else(|| absent_run(sets, 0..self.cursor.min(self.count), longest))?;
        for slot in run.clone() {
            let is_new = self.used.add(slot);
            assert!(is_new, "slot {slot} was in use");
        }
        self.free -= run.end - run.start;
        self.cursor = run.end;
        Some(run)
    }

    /// Takes a slot out of use. It becomes free if no map on the disk needs it.
    pub(super) fn release(&mut self, slot: u64) {
        let was_used = self.used.remove(slot);
        assert!(was_used, "slot {slot} was not in use");
        mutant!(OldSlotReused => {
            self.counted.remove(slot);
            self.candidate.remove(slot);
        });
        if !self.counted.has(slot) && !self.candidate.has(slot) {
            self.free += 1;
        }
    }

    /// A round has taken its copy of the map: the slots in use now must stay.
    pub(super) fn begin_round(&mut self) {
        self.candidate = self.used.clone();
    }

    /// The round counts: slots that only the map before it names become free.
    pub(super) fn round_counts(&mut self) {
        self.counted = std::mem::take(&mut self.candidate);
        self.count_free();
    }

    /// The round will never count.
    pub(super) fn give_up_round(&mut self) {
        self.candidate = Bits::default();
        self.count_free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_free_once_no_map_has_it() {
        let mut slots = Slots::default();
        assert_eq!(slots.take_run(1), None);
        slots.grow(4);
        assert_eq!(slots.take_run(3), Some(0..3));
        assert_eq!(slots.free(), 1);
        slots.release(1);
        assert_eq!(slots.free(), 2, "no map has named it");
        slots.begin_round();
        slots.release(0);
        assert_eq!(slots.free(), 2, "the round names it");
        slots.round_counts();
        assert_eq!(slots.free(), 2, "the map that counts names it");
        assert_eq!(slots.take_run(9), Some(3..4));
        assert_eq!(slots.take_run(9), Some(1..2));
        slots.begin_round();
        slots.release(3);
        slots.give_up_round();
        assert_eq!(slots.free(), 1);
        slots.begin_round();
        slots.round_counts();
        assert_eq!((slots.free(), slots.count()), (2, 4));
        assert_eq!(slots.take_run(9), Some(3..4));
    }
}
