//! Marks of one or two bits, packed into words.
//!
//! The columns of marks share each cache line, so that one line has all marks of some cells. In
//! BAZZ (SIGMOD 2011, §4.2) the first half of a line is for the bits of MR, the second for those of
//! MW. No word holds bits of two columns, so that each column may belong to another thread.

use std::ops::Range;

use stillpoint_mem::{PageSize, Region, RegionError};
use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Words of a cache line.
const LINE: usize = 8;
/// Most marks that a word holds.
pub(crate) const MARKS_PER_WORD_MAX: usize = 64;
/// The lower bit of each mark of two bits.
const LOW_BITS: u64 = 0x5555_5555_5555_5555;

/// Columns of marks.
#[derive(Debug)]
pub(crate) struct BitMarks {
    region: Option<Region>,
    marks: usize,
    /// log2 of the bits of a mark: 0 or 1.
    bits_log2: u32,
    /// log2 of the words that a column has of each line.
    words_log2: u32,
}

impl BitMarks {
    /// No marks at all.
    pub(crate) fn none() -> Self {
        Self { region: None, marks: 0, bits_log2: 0, words_log2: 0 }
    }

    /// `columns` (1 to 8) of `marks` marks of `bits` (1 or 2) bits, all 0.
    pub(crate) fn new(
        marks: usize,
        columns: usize,
        bits: u32,
        pages: PageSize,
    ) -> Result<Self, RegionError> {
        assert!((1..=LINE).contains(&columns) && (bits == 1 || bits == 2), "see above");
        let mut this = Self::none();
        this.marks = marks;
        this.bits_log2 = bits.trailing_zeros();
        this.words_log2 = (LINE / columns.next_power_of_two()).trailing_zeros();
        let lines = marks.div_ceil((64 >> this.bits_log2) << this.words_log2);
        this.region = Some(Region::reserve_with((lines * LINE * 8).max(1), pages)?);
        Ok(this)
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.region.as_ref().map_or(0, Region::len_bytes)
    }

    fn mask(&self) -> u64 {
        (1 << (1u32 << self.bits_log2)) - 1
    }

    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        self.region.as_ref().map_or(&[], Region::words)
    }

    /// The `number`th word of a column.
    #[inline(always)]
    fn word(&self, column: usize, number: usize) -> &AtomicU64 {
        let line = number >> self.words_log2;
        let within = number & ((1 << self.words_log2) - 1);
        &self.words()[line * LINE + (column << self.words_log2) + within]
    }

    /// The word of a mark, and the position of the mark's lowest bit in the word.
    #[inline(always)]
    fn place(&self, column: usize, index: usize) -> (&AtomicU64, u32) {
        assert!(index < self.marks, "no such mark");
        let per_word_log2 = 6 - self.bits_log2;
        let shift = (index as u32 & ((1 << per_word_log2) - 1)) << self.bits_log2;
        (self.word(column, index >> per_word_log2), shift)
    }

    /// Prefetches a mark. An index without a mark is ignored.
    #[inline(always)]
    pub(crate) fn prefetch(&self, column: usize, index: usize) {
        if index < self.marks {
            stillpoint_mem::prefetch(self.place(column, index).0);
        }
    }

    /// A mark; Acquire pairs with the Release of `publish` and `exchange`.
    #[inline(always)]
    pub(crate) fn get(&self, column: usize, index: usize) -> u8 {
        let (word, shift) = self.place(column, index);
        ((word.load(Acquire) >> shift) & self.mask()) as u8
    }

    /// Sets a mark of a column that no other thread changes now.
    #[inline(always)]
    pub(crate) fn set(&self, column: usize, index: usize, mark: u8) {
        let (word, shift) = self.place(column, index);
        // Relaxed: no other thread changes the word. The hand-over of the column to a later reader
        // orders this store.
        let old = word.load(Relaxed);
        let new = (old & !(self.mask() << shift)) | (u64::from(mark) << shift);
        // Stored even if it is the same: a branch on a word that is far away costs more, since it
        // holds up all that follows.
        word.store(new, Relaxed);
    }

    /// Sets a mark of a column whose other marks others may change meanwhile.
    #[inline]
    pub(crate) fn publish(&self, column: usize, index: usize, mark: u8) {
        let (word, shift) = self.place(column, index);
        // Relaxed: only the exchange counts. The exchange's Release pairs with the Acquire of
        // `get`.
        let mut old = word.load(Relaxed);
        loop {
            let new = (old & !(self.mask() << shift)) | (u64::from(mark) << shift);
            match word.compare_exchange_weak(old, new, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Replaces the mark `from` by `to`. Does nothing and returns false if the mark is another one.
    #[inline]
    pub(crate) fn exchange(&self, column: usize, index: usize, from: u8, to: u8) -> bool {
        let (word, shift) = self.place(column, index);
        // Relaxed: a stale value is found out by the exchange.
        let mut old = word.load(Relaxed);
        while (old >> shift) & self.mask() == u64::from(from) {
            let new = (old & !(self.mask() << shift)) | (u64::from(to) << shift);
            // Acquire and Release: pairs with `get`, `publish` and another `exchange`.
            match word.compare_exchange_weak(
                old,
                new,
                stillpoint_sync::atomic::Ordering::AcqRel,
                Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    fn column_words(&self) -> usize {
        self.marks.div_ceil(64 >> self.bits_log2)
    }

    /// Sets all marks of a column that no other thread changes now.
    pub(crate) fn fill(&self, column: usize, mark: u8) {
        let pattern = match (self.bits_log2, mark) {
            (_, 0) => 0,
            (0, _) => u64::MAX,
            (_, mark) => LOW_BITS * u64::from(mark),
        };
        for number in 0..self.column_words() {
            // Relaxed: as in `set`.
            self.word(column, number).store(pattern, Relaxed);
        }
    }

    /// Clears all marks of a column that no other thread changes now. A word without marks is not
    /// written, so its cache line stays where it is.
    pub(crate) fn clear(&self, column: usize) {
        for number in 0..self.column_words() {
            let word = self.word(column, number);
            // Relaxed: as in `set`.
            if word.load(Relaxed) != 0 {
                word.store(0, Relaxed);
            }
        }
    }

    /// Makes all marks of one column the opposite of those of another. No other thread may change
    /// either column meanwhile.
    pub(crate) fn negate(&self, to: usize, from: usize) {
        for number in 0..self.column_words() {
            // Relaxed: as in `set`.
            let bits = self.word(from, number).load(Relaxed);
            self.word(to, number).store(!bits, Relaxed);
        }
    }

    /// Calls `each` with ranges of marks among `marks` that are all of this value: as long as they
    /// can be inside a word.
    #[inline]
    pub(crate) fn for_each_run(
        &self,
        column: usize,
        value: u8,
        marks: Range<usize>,
        mut each: impl FnMut(Range<usize>),
    ) {
        let per_word = 64usize >> self.bits_log2;
        let mut at = marks.start;
        while at < marks.end {
            let (word, shift) = self.place(column, at);
            let first = at - (shift as usize >> self.bits_log2);
            let end = marks.end.min(first + per_word);
            // Relaxed: the hand-over of the column orders its stores. Without a hand-over, the
            // caller accepts ranges that are out of date.
            let mut equal = self.equal(word.load(Relaxed), value) >> shift;
            if end - at < per_word {
                equal &= (1u64 << ((end - at) << self.bits_log2)) - 1;
            }
            // One bit stands for each mark. For marks of two bits, the second bit is made equal to
            // the first.
            equal |= equal << self.bits_log2;
            while equal != 0 {
                let skipped = equal.trailing_zeros();
                let count = (equal >> skipped).trailing_ones();
                let start = at + (skipped as usize >> self.bits_log2);
                each(start..start + (count as usize >> self.bits_log2));
                // The shift takes two steps, since a shift by 64 would overflow.
                equal &= (u64::MAX << skipped << (count - 1)) << 1;
            }
            at = end;
        }
    }

    /// The lowest bit of each mark of a word that has this value.
    #[inline(always)]
    fn equal(&self, word: u64, value: u8) -> u64 {
        let value = u64::from(value);
        if self.bits_log2 == 0 {
            return word ^ (value & 1).wrapping_sub(1);
        }
        let differs = word ^ (LOW_BITS * value);
        !(differs | differs >> 1) & LOW_BITS
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use stillpoint_io::{Rng, SeededRng};

    #[test]
    fn marks_of_every_shape_keep_to_themselves() {
        for (columns, bits) in [(1, 1), (2, 1), (3, 1), (1, 2)] {
            for marks in [1, 31, 64, 65, 1000] {
                let seed = (marks * 10 + columns) as u64;
                let rng = SeededRng::new(seed);
                let packed = BitMarks::new(marks, columns, bits, PageSize::Small).expect("memory");
                let mut model = vec![vec![0u8; marks]; columns];
                for _ in 0..2000 {
                    let column = rng.below(columns as u64) as usize;
                    let index = rng.below(marks as u64) as usize;
                    let mark = rng.below(1 << bits) as u8;
                    match rng.below(3) {
                        0 => packed.set(column, index, mark),
                        1 => packed.publish(column, index, mark),
                        _ => {
                            let old = model[column][index];
                            assert!(!packed.exchange(column, index, old ^ 1, mark));
                            assert!(packed.exchange(column, index, old, mark));
                        }
                    }
                    model[column][index] = mark;
                }
                for (column, wanted) in model.iter().enumerate() {
                    let found: Vec<u8> = (0..marks).map(|i| packed.get(column, i)).collect();
                    assert_eq!(&found, wanted, "seed {seed}");
                    for value in 0..1 << bits {
                        let first = rng.below(marks as u64) as usize;
                        let within = first..marks - rng.below((marks - first) as u64) as usize;
                        let mut equal = Vec::new();
                        packed.for_each_run(column, value, within.clone(), |run| equal.extend(run));
                        let wanted: Vec<usize> = within.filter(|i| wanted[*i] == value).collect();
                        assert_eq!(equal, wanted, "seed {seed}, {value} in column {column}");
                    }
                }
            }
        }
    }

    #[test]
    fn whole_columns() {
        let packed = BitMarks::new(300, 2, 1, PageSize::Small).expect("memory");
        packed.set(0, 7, 1);
        packed.set(0, 299, 1);
        packed.negate(1, 0);
        let set = |column, marks| {
            let mut set = Vec::new();
            packed.for_each_run(column, 1, marks, |run| set.extend(run));
            set
        };
        assert_eq!(set(0, 0..300), [7, 299]);
        assert_eq!(set(0, 8..299), [0; 0]);
        let opposite: Vec<usize> = (3..290).filter(|i| *i != 7).collect();
        assert_eq!(set(1, 3..290), opposite);
        packed.clear(1);
        assert_eq!((set(1, 0..300).len(), set(0, 7..8).len()), (0, 1));
        let twos = BitMarks::new(70, 1, 2, PageSize::Small).expect("memory");
        twos.fill(0, 2);
        assert!((0..70).all(|i| twos.get(0, i) == 2));
    }
}
