//! Which cells have dirty marks: one bit for each pair of units of the arena, beside the cells. There are two
//! copies, by the parity of the epoch. The smallest cell has two units, so one cell at most begins in a pair.
//!
//! ```text
//! commit of epoch e: cell marked for e already? ── no ─▶ marks the cell ─▶ sets the bit of e's parity
//! pass over changes: each bit that is set ─▶ is a cell there, with the mark? ─▶ visits the cell
//! ```
//! Only the first mark of a cell in an epoch sets a bit. So a pass over the changes of an epoch
//! reads these bits and the cells that were marked. The pass does not read the store.
//!
//! A bit says where to look, and the status of the cell decides. A bit leads nowhere once its cell was
//! freed, or once its slab has cells of another size. Every marked cell has its bit.

use std::sync::Arc;

use stillpoint_mem::{AddressSpace, RegionError, Segments};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::arena::classes::{SLABS_PER_GROUP, UNITS_PER_SLAB};

/// Units that share a bit.
pub(crate) const UNITS_PER_BIT: u64 = 2;
/// Units that share a word of bits.
const UNITS_PER_WORD: u64 = 64 * UNITS_PER_BIT;
/// Words of bits of one slab and one parity.
const WORDS: usize = UNITS_PER_SLAB.div_ceil(UNITS_PER_WORD) as usize;

/// The bits of all slabs.
pub(crate) struct Marks {
    /// For each slab, the words of even epochs and those of odd epochs.
    words: Segments,
}

impl std::fmt::Debug for Marks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Marks").finish_non_exhaustive()
    }
}

impl Marks {
    pub(crate) fn new(space: Arc<AddressSpace>) -> Self {
        Self { words: Segments::new(space, 2 * WORDS * SLABS_PER_GROUP) }
    }

    /// Bytes of bits of one slab.
    pub(crate) const SLAB_BYTES: usize = 2 * WORDS * 8;

    /// Makes the bits of the slabs up to this one usable, all unset for new slabs.
    ///
    /// # Errors
    /// The system refuses the address space.
    pub(crate) fn reserve(&self, slab: usize) -> Result<(), RegionError> {
        self.words.reserve_up_to((slab + 1) * 2 * WORDS - 1)
    }

    /// `None` if the slab has never had a cell.
    fn of(&self, slab: usize, epoch: u64) -> Option<&[AtomicU64; WORDS]> {
        let line = 2 * slab + (epoch & 1) as usize;
        self.words.is_reserved(line * WORDS).then(|| self.words.line(line))
    }

    /// Notes that the cell of this number has the mark of `epoch`.
    pub(crate) fn set(&self, number: u64, epoch: u64) {
        let (slab, unit) = ((number / UNITS_PER_SLAB) as usize, number % UNITS_PER_SLAB);
        let words = self.of(slab, epoch).expect("the slab has this cell");
        // Relaxed: a grace period lies between the commits of an epoch and the passes over its marks.
        let bit = unit % UNITS_PER_WORD / UNITS_PER_BIT;
        words[(unit / UNITS_PER_WORD) as usize].fetch_or(1 << bit, Relaxed);
    }

    /// Whether a bit of a slab is set for `epoch`.
    pub(crate) fn has_any(&self, slab: usize, epoch: u64) -> bool {
        self.find(slab, epoch, 0, &mut [0]) > 0
    }

    /// Finds the units of a slab whose bits are set for `epoch`, from unit `from` on. Puts the first of each
    /// pair into `units`, as many as have room there. Returns their number.
    pub(crate) fn find(&self, slab: usize, epoch: u64, from: u64, units: &mut [u64]) -> usize {
        let Some(words) = self.of(slab, epoch) else { return 0 };
        let first = (from / UNITS_PER_WORD) as usize;
        let mut unseen = u64::MAX << (from % UNITS_PER_WORD / UNITS_PER_BIT);
        let mut found = 0;
        for (word, bits) in words.iter().enumerate().skip(first) {
            // Relaxed: as in `set`.
            let mut bits = bits.load(Relaxed) & std::mem::replace(&mut unseen, u64::MAX);
            while bits != 0 {
                let Some(unit) = units.get_mut(found) else { return found };
                *unit =
                    word as u64 * UNITS_PER_WORD + u64::from(bits.trailing_zeros()) * UNITS_PER_BIT;
                bits &= bits - 1;
                found += 1;
            }
        }
        found
    }

    /// Unsets the bits of a slab for `epoch`. Nobody sets one meanwhile.
    pub(crate) fn clear(&self, slab: usize, epoch: u64) {
        for word in self.of(slab, epoch).into_iter().flatten() {
            // Relaxed: commits of the next epoch of this parity see the phase of a later point of
            // consistency first. Words without bits stay untouched, so their pages cost nothing.
            if word.load(Relaxed) != 0 {
                word.store(0, Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn units(marks: &Marks, slab: usize, epoch: u64) -> Vec<u64> {
        let mut found = [0; 8];
        let count = marks.find(slab, epoch, 0, &mut found);
        found[..count].to_vec()
    }

    #[test]
    fn bits_are_found_in_order_and_by_parity() {
        let marks = Marks::new(Arc::default());
        (0..4).for_each(|slab| marks.reserve(slab).expect("address space"));
        let last = UNITS_PER_SLAB - 1;
        for unit in [127, 0, 128, last, 4_000, 126] {
            marks.set(3 * UNITS_PER_SLAB + unit, 7);
        }
        marks.set(2 * UNITS_PER_SLAB + last, 7);
        marks.set(3 * UNITS_PER_SLAB + 5, 8);
        assert_eq!(units(&marks, 3, 7), [0, 126, 128, 4_000, last - 1]);
        assert_eq!(units(&marks, 3, 9), units(&marks, 3, 7), "of the same parity");
        assert_eq!((units(&marks, 3, 8), units(&marks, 2, 7)), (vec![4], vec![last - 1]));
        let mut some = [0; 2];
        assert_eq!((marks.find(3, 7, 2, &mut some), some), (2, [126, 128]), "as many as have room");
        assert_eq!((marks.find(3, 7, 130, &mut some), some), (2, [4_000, last - 1]));
        assert_eq!((marks.find(3, 7, 4_002, &mut some), some[0]), (1, last - 1));
        assert_eq!(marks.find(3, 7, UNITS_PER_SLAB, &mut some), 0);
        marks.clear(3, 7);
        assert_eq!((units(&marks, 3, 7), units(&marks, 3, 8)), (vec![], vec![4]));
        assert_eq!(units(&marks, 2, 7), [last - 1], "of another slab");
    }
}
