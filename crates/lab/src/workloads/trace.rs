//! A trace of accesses in memory, made before the run, and the load that carries them out.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use stillpoint_state::{Array, ArrayMut, Cells, Plain, Scheme};

use crate::workloads::load::{Declare, Load, difference};

/// A read or a write of one word of 4 bytes, in 8 bytes.
///
/// Words are counted from the beginning of the state, so a trace does not depend on the length of
/// cells.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    word_and_kind: u32,
    value: u32,
}

/// Number of words that an access can address: 8 GiB.
pub(crate) const WORDS_MAX: usize = 1 << 31;

const READ: u32 = 1 << 31;

impl Access {
    /// A write of one word.
    ///
    /// # Panics
    /// If the word is not below [`WORDS_MAX`].
    pub(crate) fn write(word: u32, value: u32) -> Access {
        assert!((word as usize) < WORDS_MAX, "word {word} of a trace");
        Access { word_and_kind: word, value }
    }

    /// A read of one word.
    ///
    /// # Panics
    /// If the word is not below [`WORDS_MAX`].
    pub(crate) fn read(word: u32) -> Access {
        assert!((word as usize) < WORDS_MAX, "word {word} of a trace");
        Access { word_and_kind: word | READ, value: 0 }
    }

    /// Whether this is a write.
    #[inline(always)]
    pub(crate) fn is_write(self) -> bool {
        self.word_and_kind & READ == 0
    }

    /// Number of the word.
    #[inline(always)]
    pub(crate) fn word(self) -> usize {
        (self.word_and_kind & !READ) as usize
    }

    /// The written value. A load may mix the tick's number into the value.
    #[inline(always)]
    pub(crate) fn value(self) -> u32 {
        self.value
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_write() { "write" } else { "read" };
        write!(f, "{kind} {} {}", self.word(), self.value)
    }
}

/// Division of the accesses into ticks.
#[derive(Clone, Debug)]
enum Ticks {
    /// Every tick has this number of accesses.
    Equal(usize),
    /// Each tick's end, as a number of accesses.
    Ends(Arc<Vec<usize>>),
}

/// Accesses of ticks. After the last tick the first one follows again.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    accesses: Arc<Vec<Access>>,
    ticks: Ticks,
}

impl Trace {
    /// Ticks with the same number of accesses, so that one pool serves traces of every rate.
    ///
    /// # Panics
    /// If there is no access.
    pub(crate) fn equal(accesses: Arc<Vec<Access>>, per_tick: usize) -> Trace {
        assert!(!accesses.is_empty(), "a trace has an access");
        Trace { accesses, ticks: Ticks::Equal(per_tick) }
    }

    /// Ticks of different lengths: `ends` has the number of accesses up to the end of each.
    ///
    /// # Panics
    /// If there is no tick, or the ends do not rise to the number of accesses.
    pub(crate) fn with_ends(accesses: Vec<Access>, ends: Vec<usize>) -> Trace {
        assert!(ends.is_sorted() && ends.last() == Some(&accesses.len()), "ends of ticks");
        Trace { accesses: Arc::new(accesses), ticks: Ticks::Ends(Arc::new(ends)) }
    }

    /// The accesses of a tick. The first tick has number 1. A tick that wraps around the trace has
    /// several pieces.
    pub(crate) fn tick(&self, number: u64) -> impl Iterator<Item = &[Access]> {
        let (len, before) = (self.accesses.len(), number.saturating_sub(1));
        let (mut at, mut left) = match &self.ticks {
            Ticks::Equal(per_tick) => ((before as usize).wrapping_mul(*per_tick) % len, *per_tick),
            Ticks::Ends(ends) => {
                let tick = (before % ends.len() as u64) as usize;
                let start = tick.checked_sub(1).map_or(0, |tick| ends[tick]);
                (start, ends[tick] - start)
            }
        };
        std::iter::from_fn(move || {
            let piece = &self.accesses[at..len.min(at + left)];
            left -= piece.len();
            at = 0;
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// Share of `cells` cells that the writes of these ticks touch.
    pub(crate) fn dirty_share(
        &self,
        ticks: std::ops::RangeInclusive<u64>,
        cells: usize,
        cell_words: usize,
    ) -> f64 {
        let mut is_dirty = vec![false; cells];
        for tick in ticks {
            for access in self.tick(tick).flatten().filter(|access| access.is_write()) {
                is_dirty[access.word() / cell_words] = true;
            }
        }
        is_dirty.iter().filter(|&&it| it).count() as f64 / cells as f64
    }
}

/// Cells that hold words.
pub(crate) trait WordCell: Plain + PartialEq {
    /// Words of a cell.
    const WORDS: usize = Self::BYTES / 4;
    /// A cell of zeros.
    const ZERO: Self;
    /// Writes a word, counted from the beginning of the array.
    fn write_word<S: Scheme>(array: &mut ArrayMut<'_, Self, S>, word: usize, value: u32);
    /// Reads a word, counted from the beginning of the array.
    fn read_word<S: Scheme>(array: &ArrayMut<'_, Self, S>, word: usize) -> u32;
}

impl WordCell for u32 {
    const ZERO: u32 = 0;

    #[inline(always)]
    fn write_word<S: Scheme>(array: &mut ArrayMut<'_, u32, S>, word: usize, value: u32) {
        array.write(word, value);
    }

    #[inline(always)]
    fn read_word<S: Scheme>(array: &ArrayMut<'_, u32, S>, word: usize) -> u32 {
        array.read(word)
    }
}

impl<const N: usize> WordCell for [u32; N]
where
    [u32; N]: Plain,
{
    const ZERO: [u32; N] = [0; N];

    #[inline(always)]
    fn write_word<S: Scheme>(array: &mut ArrayMut<'_, Self, S>, word: usize, value: u32) {
        array.write_part(word / N, word % N * 4, &value.to_le_bytes());
    }

    #[inline(always)]
    fn read_word<S: Scheme>(array: &ArrayMut<'_, Self, S>, word: usize) -> u32 {
        let mut bytes = [0; 4];
        array.as_ref().read_part(word / N, word % N * 4, &mut bytes);
        u32::from_le_bytes(bytes)
    }
}

/// The accesses of a trace, carried out on one array of words (`u32`) or pages (`[u32; N]`).
#[derive(Debug)]
pub(crate) struct TraceLoad<C> {
    trace: Trace,
    words: usize,
    cell: PhantomData<fn() -> C>,
}

impl<C: WordCell> TraceLoad<C> {
    /// A state of a number of words, with the trace of its accesses.
    ///
    /// # Panics
    /// If there are more words than a trace can tell apart.
    pub(crate) fn new(trace: Trace, words: usize) -> Self {
        assert!(words <= WORDS_MAX, "{words} words");
        TraceLoad { trace, words, cell: PhantomData }
    }

    /// The accesses.
    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }
}

impl<C: WordCell> Load for TraceLoad<C> {
    type Arrays = Array<C>;

    fn declare(&self, builder: &mut impl Declare) -> Array<C> {
        builder.array("words", self.words.div_ceil(C::WORDS))
    }

    fn first<S: Scheme>(&self, array: Array<C>, cells: &mut Cells<S>) {
        cells.fill(array, |_| C::ZERO).expect("no tick has ended");
    }

    fn step<S: Scheme>(&self, array: Array<C>, cells: &mut Cells<S>, tick: u64) -> u64 {
        let mut array = cells.array_mut(array);
        // The tick's number makes a value differ from the one that the same access wrote before.
        let (salt, mut read) = (tick as u32, 0u64);
        for piece in self.trace.tick(tick) {
            for access in piece {
                if access.is_write() {
                    C::write_word(&mut array, access.word(), access.value() ^ salt);
                } else {
                    read = read.rotate_left(5) ^ u64::from(C::read_word(&array, access.word()));
                }
            }
        }
        read
    }

    fn first_difference<A: Scheme, B: Scheme>(
        &self,
        one: (Array<C>, &Cells<A>),
        other: (Array<C>, &Cells<B>),
    ) -> Option<String> {
        difference("words", one, other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(trace: &Trace, tick: u64) -> Vec<usize> {
        trace.tick(tick).flatten().map(|access| access.word()).collect()
    }

    #[test]
    fn cells_are_dirty_once_however_often_they_are_written() {
        let writes = [0, 1, 2, 9].map(|word| Access::write(word, 1)).to_vec();
        let trace = Trace::equal(Arc::new(writes), 2);
        assert_eq!(trace.dirty_share(1..=1, 5, 2), 0.2);
        assert_eq!(trace.dirty_share(1..=4, 5, 2), 0.6);
    }

    #[test]
    fn an_access_keeps_what_it_is_given() {
        let last = (WORDS_MAX - 1) as u32;
        let (write, read) = (Access::write(last, u32::MAX), Access::read(last));
        assert!(write.is_write() && !read.is_write());
        assert_eq!(
            (write.word(), write.value(), read.word()),
            (last as usize, u32::MAX, last as usize)
        );
        assert_eq!(size_of::<Access>(), 8);
    }

    #[test]
    fn a_trace_goes_on_from_the_beginning() {
        let pool: Vec<Access> = (0..5).map(|word| Access::write(word, 0)).collect();
        let trace = Trace::equal(Arc::new(pool.clone()), 3);
        assert_eq!((words(&trace, 1), words(&trace, 2)), (vec![0, 1, 2], vec![3, 4, 0]));
        assert_eq!(
            words(&Trace::equal(Arc::new(pool.clone()), 12), 2),
            [2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3]
        );
        assert!(words(&Trace::equal(Arc::new(pool.clone()), 0), 2).is_empty());
        let trace = Trace::with_ends(pool, vec![2, 2, 5]);
        let ticks: Vec<_> = (1..=4).map(|tick| words(&trace, tick)).collect();
        assert_eq!(ticks, [vec![0, 1], vec![], vec![2, 3, 4], vec![0, 1]]);
    }
}
