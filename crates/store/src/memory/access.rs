//! Access marks: 32 bits for each cell, beside the cells, which say when a record was used last, or how
//! often. Whoever uses records says what the bits mean; 0 is no mark.
//!
//! The marks exist from the moment on at which somebody asks for them. They belong to no transaction
//! and to no checkpoint. A mark that is lost or late makes a choice worse, and nothing wrong. So all
//! accesses are Relaxed. A cell that is made for a key has no mark. A cell that replaces another takes
//! over the mark.

use std::sync::Arc;

use stillpoint_mem::{AddressSpace, PageSize, RegionError, Segments};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::arena::classes::{CELLS_PER_SLAB_MAX, SLABS_PER_GROUP};

/// Words of the marks of one slab, two marks in each.
const WORDS: usize = CELLS_PER_SLAB_MAX / 2;

/// Position of a cell among the cells that its slab can have at most, and the slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct MarkPosition {
    pub(super) slab: usize,
    pub(super) position: usize,
}

/// The access marks of all slabs.
pub(super) struct AccessMarks {
    words: Segments,
}

impl std::fmt::Debug for AccessMarks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessMarks").finish_non_exhaustive()
    }
}

impl AccessMarks {
    pub(super) fn new(space: Arc<AddressSpace>) -> Self {
        // Slabs of large cells have few marks, and only the pages of these take memory.
        Self { words: Segments::on_pages(space, WORDS * SLABS_PER_GROUP, PageSize::Small) }
    }

    /// Makes the marks of the slabs up to this one usable.
    ///
    /// # Errors
    /// The system refuses the address space.
    pub(super) fn reserve(&self, slab: usize) -> Result<(), RegionError> {
        self.words.reserve_up_to((slab + 1) * WORDS - 1)
    }

    fn word(&self, place: MarkPosition) -> Option<(&AtomicU64, u32)> {
        let word = place.slab * WORDS + place.position / 2;
        let shift = (place.position % 2) as u32 * 32;
        self.words.is_reserved(word).then(|| (&self.words.line::<1>(word)[0], shift))
    }

    /// Prefetches a mark.
    pub(super) fn prefetch(&self, place: MarkPosition) {
        if let Some((word, _)) = self.word(place) {
            stillpoint_mem::prefetch(word);
        }
    }

    pub(super) fn get(&self, place: MarkPosition) -> u32 {
        // Relaxed: see the head of this file.
        self.word(place).map_or(0, |(word, shift)| (word.load(Relaxed) >> shift) as u32)
    }

    pub(super) fn set(&self, place: MarkPosition, mark: u32) {
        let Some((word, shift)) = self.word(place) else { return };
        let with = |seen: u64| seen & !(0xffff_ffff << shift) | u64::from(mark) << shift;
        // Relaxed: see the head of this file. The exchange keeps the mark of the neighbour.
        let mut seen = word.load(Relaxed);
        while with(seen) != seen {
            match word.compare_exchange_weak(seen, with(seen), Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn neighbours_keep_their_marks() {
        let marks = AccessMarks::new(Arc::default());
        let place = |slab, position| MarkPosition { slab, position };
        marks.set(place(0, 0), 7);
        assert_eq!(marks.get(place(0, 0)), 0, "without room nothing is kept");
        (0..3).for_each(|slab| marks.reserve(slab).expect("address space"));
        let last = CELLS_PER_SLAB_MAX - 1;
        let places = [place(1, 0), place(1, 1), place(1, last), place(2, 0), place(2, 1)];
        for (mark, &at) in (1..).zip(&places) {
            marks.set(at, mark << 28 | mark);
        }
        for (mark, &at) in (1u32..).zip(&places) {
            assert_eq!(marks.get(at), mark << 28 | mark, "{at:?}");
        }
        marks.set(places[0], 0);
        assert_eq!((marks.get(places[0]), marks.get(places[1])), (0, 2 << 28 | 2));
    }
}
