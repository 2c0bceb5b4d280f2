//! An array of words that grows by segments. Each segment is as long as all before it together.
//!
//! ```text
//! segment 0: words 0 .. n      segment 1: n .. 2n      segment 2: 2n .. 4n      …
//! ```
//! So the array takes address space only when it grows, and a word never moves. A word is found by
//! one load from a table that stays in the cache.

use std::sync::Arc;
// The atomics of std, not of the model checkers. The words of a segment are valid from the moment
// of its reservation, so the pointers need no order.
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use stillpoint_sync::Mutex;
use stillpoint_sync::atomic::AtomicU64;

use crate::region::{AddressSpace, HUGE_PAGE_BYTES, PageSize, Region, RegionError};

/// Largest number of segments. The last segment begins at 2^30 times the length of the first.
const SEGMENTS: usize = 32;

/// Words in segments that are reserved in order.
#[derive(Debug)]
pub struct Segments {
    /// For each segment, the address of word 0 if all words were contiguous with the segment's. Null
    /// before the segment is reserved.
    origins: [AtomicPtr<AtomicU64>; SEGMENTS],
    first_shift: u32,
    regions: Mutex<Vec<Region>>,
    space: Arc<AddressSpace>,
    pages: PageSize,
}

impl Segments {
    /// An array without segments. The first segment will have `first_words` words, a power of two.
    pub fn new(space: Arc<AddressSpace>, first_words: usize) -> Self {
        Self::on_pages(space, first_words, PageSize::Huge)
    }

    /// As [`new`](Self::new), on pages of this size or smaller ones. On small pages, words that nobody
    /// touches cost no memory.
    pub fn on_pages(space: Arc<AddressSpace>, first_words: usize, pages: PageSize) -> Self {
        assert!(first_words.is_power_of_two(), "segments double");
        Self {
            origins: std::array::from_fn(|_| AtomicPtr::default()),
            first_shift: first_words.ilog2(),
            regions: Mutex::new(Vec::new()),
            space,
            pages,
        }
    }

    #[inline]
    fn segment_of(&self, word: usize) -> usize {
        (usize::BITS - (word >> self.first_shift).leading_zeros()) as usize
    }

    /// First word and number of words of a segment.
    fn range(&self, segment: usize) -> (usize, usize) {
        let first = 1 << self.first_shift;
        if segment == 0 { (0, first) } else { (first << (segment - 1), first << (segment - 1)) }
    }

    /// Reserves the segments up to the segment of `word`.
    ///
    /// # Errors
    /// The system refuses the address space. Segments reserved before stay.
    pub fn reserve_up_to(&self, word: usize) -> Result<(), RegionError> {
        let wanted = self.segment_of(word);
        if self.is_reserved(word) {
            return Ok(());
        }
        let mut regions = self.regions.lock();
        while regions.len() <= wanted {
            let (start, len) = self.range(regions.len());
            let region = self.space.reserve_on(len * 8, self.pages)?;
            assert!(region.words().len() >= len, "as long as asked for");
            let origin = region.words().as_ptr().cast_mut().wrapping_sub(start);
            // Relaxed: see the field's type.
            self.origins[regions.len()].store(origin, Relaxed);
            regions.push(region);
        }
        Ok(())
    }

    /// True if the word's segment is reserved.
    #[inline]
    pub fn is_reserved(&self, word: usize) -> bool {
        // Relaxed: see the field's type.
        let segment = self.segment_of(word);
        self.origins.get(segment).is_some_and(|origin| !origin.load(Relaxed).is_null())
    }

    /// The words `number * N..(number + 1) * N`. `N` is a power of two.
    ///
    /// # Panics
    /// If these words are not reserved.
    #[inline]
    pub fn line<const N: usize>(&self, number: usize) -> &[AtomicU64; N] {
        const { assert!(N.is_power_of_two()) };
        assert!(N <= 1 << self.first_shift, "a line lies inside a segment");
        let word = number * N;
        // Relaxed: see the field's type.
        let origin = self.origins[self.segment_of(word)].load(Relaxed);
        assert!(!origin.is_null(), "the segment is reserved");
        // SAFETY: the segment has as many words as `range` says. The words live as long as `self`,
        // and all accesses are atomic. `segment_of` says that `word` is in the segment. So are the
        // words up to the next multiple of `N`, since segments begin and end at multiples of `N`.
        unsafe { &*origin.wrapping_add(word).cast() }
    }

    /// Touches the pages of the words `first..first + count` before they are used. Does nothing if
    /// these words are not reserved, or do not lie in one segment.
    pub fn populate(&self, first: usize, count: usize) {
        let segment = self.segment_of(first);
        let (start, len) = self.range(segment);
        if let Some(region) = self.regions.lock().get(segment)
            && first + count <= start + len
        {
            region.populate(first - start, count);
        }
    }

    /// Gives the pages of the words `first..first + count` back to the system. The words read as zero
    /// afterwards. `first` and `count` are multiples of a huge page. Segments shorter than that stay as
    /// they are. The caller makes sure that no thread uses the words.
    pub fn discard(&self, first: usize, count: usize) {
        let regions = self.regions.lock();
        for (segment, region) in regions.iter().enumerate() {
            let (start, len) = self.range(segment);
            let (from, to) = (first.max(start), (first + count).min(start + len));
            if from < to && (len * 8).is_multiple_of(HUGE_PAGE_BYTES) {
                region.discard(from - start, to - from);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_its_place() {
        let space = Arc::new(AddressSpace::default());
        let segments = Segments::new(space.clone(), 64);
        assert!(!segments.is_reserved(0));
        segments.reserve_up_to(10_000).expect("address space");
        assert!(segments.is_reserved(16_383) && !segments.is_reserved(16_384));
        assert_eq!(space.requests(), 9, "64 words, then 64, 128 and so on up to 8192");
        for line in 0..16_384 / 8 {
            for (at, word) in segments.line::<8>(line).iter().enumerate() {
                assert_eq!(word.swap((line * 8 + at) as u64 + 1, Relaxed), 0);
            }
        }
        for line in 0..16_384 / 8 {
            for (at, word) in segments.line::<8>(line).iter().enumerate() {
                assert_eq!(word.load(Relaxed), (line * 8 + at) as u64 + 1);
            }
        }
        segments.populate(8_192, 8_192);
        segments.populate(8_192, 9_000);
        segments.populate(1 << 20, 1);
    }

    #[test]
    fn discarded_words_are_zero_and_others_stay() {
        const PAGE: usize = HUGE_PAGE_BYTES / 8;
        let segments = Segments::new(Arc::default(), 64);
        segments.reserve_up_to(8 * PAGE - 1).expect("address space");
        let line = |word: usize| &segments.line::<8>(word / 8)[0];
        (0..8 * PAGE).step_by(64).for_each(|word| line(word).store(1, Relaxed));
        // Page 0 lies in many short segments, pages 2 and 3 in one, and the others in the last.
        segments.discard(0, PAGE);
        segments.discard(3 * PAGE, 2 * PAGE);
        segments.discard(7 * PAGE, 9 * PAGE);
        for word in (0..8 * PAGE).step_by(64) {
            let is_gone = matches!(word / PAGE, 3 | 4 | 7);
            assert_eq!(line(word).load(Relaxed), u64::from(!is_gone), "page {}", word / PAGE);
        }
    }

    #[test]
    fn a_refusal_leaves_what_there_was() {
        let space = Arc::new(AddressSpace::default());
        let segments = Segments::new(space.clone(), 64);
        space.end_after(2);
        segments.reserve_up_to(64).expect("two requests");
        assert!(segments.reserve_up_to(128).is_err());
        assert!(segments.is_reserved(127) && !segments.is_reserved(128));
        space.end_after(usize::MAX);
        segments.reserve_up_to(128).expect("address space");
    }
}
