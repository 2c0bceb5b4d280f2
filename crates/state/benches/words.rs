//! The cost of a write of a random word, in comparison with a bare loop that makes the same memory
//! accesses. The schemes must cost what their accesses cost.
//!
//! `cargo bench -p stillpoint-state --bench words -- [CELLS] [NAME…]`: so many cells of 4 bytes (default
//! 50,000,000); the schemes of those names (default: all with a bare loop). In nanoseconds of CPU per write;
//! the scheme and its bare loop run in turns. The last columns are the scheme ÷ its bare loop.
//!
//! | column | a pass of writes |
//! |---|---|
//! | `before` | nearly all the first to their cell in a period, before piggyback's copier has begun |
//! | `first` | most of them the first to their cell in a period, with the copier done |
//! | `then` | the fastest of the later passes |
//! | `ahead` | the same with prefetches 24 writes ahead |
//!
//! Every cell was written in the period before. So the bare loop of piggyback's `before` copies a block of 64
//! bytes at the first write to it.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::hint::black_box;

use stillpoint_io::{huge_zeros, thread_cpu_ns};
use stillpoint_mem::prefetch;
use stillpoint_state::{Array, ArrayMut, Arrays, Capture, Intent, Scheme, registry};

/// Writes of a pass.
const WRITES: usize = 8 << 20;
/// Writes in a pass of first writes. Few of these writes meet the same cell.
const FIRST_WRITES: usize = 1 << 20;
/// Passes after the first.
const PASSES: usize = 5;
/// Writes between a prefetch and its use.
const AHEAD: usize = 24;

/// Random numbers by SplitMix64.
struct Mix(u64);

impl Mix {
    #[inline(always)]
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(z ^ (z >> 31)) * bound as u128) >> 64) as usize
    }
}

/// Something whose words are written.
trait Words {
    fn write(&mut self, index: usize, value: u32);
    fn prefetch(&self, index: usize);
}

/// Nanoseconds per write of a pass.
fn pass(words: &mut impl Words, cells: usize, writes: usize, seed: u64, has_prefetch: bool) -> f64 {
    let mut mix = Mix(seed);
    let start_ns = thread_cpu_ns();
    if has_prefetch {
        let mut ahead: [usize; 32] = std::array::from_fn(|_| mix.below(cells));
        for number in 0..writes {
            let next = mix.below(cells);
            ahead[(number + AHEAD) % 32] = next;
            words.prefetch(next);
            let index = ahead[number % 32];
            words.write(index, index as u32);
        }
    } else {
        for _ in 0..writes {
            let index = mix.below(cells);
            words.write(index, index as u32);
        }
    }
    (thread_cpu_ns() - start_ns) as f64 / writes as f64
}

/// The bare loop of a scheme: plain stores to memory of the scheme's shape.
struct Bare {
    bytes: Vec<u8>,
    /// Where the first cache line begins.
    start: usize,
    shape: Shape,
}

/// The memory that a write touches.
#[derive(Clone, Copy)]
enum Shape {
    /// The word: the baseline.
    Word,
    /// Rows of 16 bytes: two of three words, and a mark.
    Row,
    /// Lines of six words in two copies, and a stamp for each.
    Line,
    /// The word, and a mark for each 64 bytes elsewhere. Another copy lies behind the marks.
    WordAndMark { marks_at: usize, other_at: usize },
}

impl Shape {
    fn of(name: &str, cells: usize) -> Option<(Self, usize)> {
        Some(match name {
            "none" => (Self::Word, cells * 4),
            "ipp" => (Self::Row, cells * 16),
            "hg" => (Self::Line, cells.div_ceil(6) * 64),
            "pb" => {
                let marks_at = (cells * 4).next_multiple_of(64);
                let other_at = (marks_at + cells / 16 + 1).next_multiple_of(64);
                (Self::WordAndMark { marks_at, other_at }, other_at + marks_at)
            }
            _ => return None,
        })
    }
}

impl Bare {
    fn new((shape, bytes): (Shape, usize)) -> Self {
        let mut bytes = huge_zeros(bytes + 64);
        bytes.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        let start = bytes.as_ptr().align_offset(64);
        Self { bytes, start, shape }
    }
}

/// One kind of bare loop, known at compile time.
struct BareOf<'a, const KIND: usize>(&'a mut [u8], usize, usize);

/// The mark of a block that was written in the period.
const WRITTEN: u8 = 2;

impl<const KIND: usize> BareOf<'_, KIND> {
    #[inline(always)]
    fn place(index: usize) -> usize {
        match KIND {
            1 => index * 16,
            2 => index / 6 * 64 + index % 6 * 4,
            _ => index * 4,
        }
    }

    #[inline(always)]
    fn put(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

impl<const KIND: usize> Words for BareOf<'_, KIND> {
    #[inline(always)]
    fn write(&mut self, index: usize, value: u32) {
        let at = Self::place(index);
        if KIND == 4 {
            let block = index / 16;
            if std::mem::replace(&mut self.0[self.1 + block], WRITTEN) != WRITTEN {
                let (words, other) = self.0.split_at_mut(self.2);
                words[block * 64..][..64].copy_from_slice(&other[block * 64..][..64]);
            }
        }
        self.put(at, value);
        match KIND {
            1 => {
                self.put(at + 4, value);
                self.0[at + 12] = 1;
            }
            2 => self.0[index / 6 * 64 + 48 + index % 6] = 3,
            3 => self.0[self.1 + index / 16] = 1,
            _ => {}
        }
    }

    #[inline(always)]
    fn prefetch(&self, index: usize) {
        prefetch(&self.0[Self::place(index)]);
        if KIND >= 3 {
            prefetch(&self.0[self.1 + index / 16]);
        }
    }
}

impl Bare {
    fn pass(&mut self, cells: usize, seed: u64, has_prefetch: bool) -> f64 {
        let bytes = &mut self.bytes[self.start..];
        let ns = match self.shape {
            Shape::Word => pass(&mut BareOf::<0>(bytes, 0, 0), cells, WRITES, seed, has_prefetch),
            Shape::Row => pass(&mut BareOf::<1>(bytes, 0, 0), cells, WRITES, seed, has_prefetch),
            Shape::Line => pass(&mut BareOf::<2>(bytes, 0, 0), cells, WRITES, seed, has_prefetch),
            Shape::WordAndMark { marks_at, .. } => {
                let mut words = BareOf::<3>(bytes, marks_at, 0);
                pass(&mut words, cells, WRITES, seed, has_prefetch)
            }
        };
        black_box(&self.bytes);
        ns
    }

    /// First writes, before a copier has begun.
    fn first_writes(&mut self, cells: usize, seed: u64) -> f64 {
        let bytes = &mut self.bytes[self.start..];
        let ns = match self.shape {
            Shape::Word => pass(&mut BareOf::<0>(bytes, 0, 0), cells, FIRST_WRITES, seed, false),
            Shape::Row => pass(&mut BareOf::<1>(bytes, 0, 0), cells, FIRST_WRITES, seed, false),
            Shape::Line => pass(&mut BareOf::<2>(bytes, 0, 0), cells, FIRST_WRITES, seed, false),
            Shape::WordAndMark { marks_at, other_at } => {
                bytes[marks_at..other_at].fill(1);
                pass(&mut BareOf::<4>(bytes, marks_at, other_at), cells, FIRST_WRITES, seed, false)
            }
        };
        black_box(&self.bytes);
        ns
    }
}

struct OfScheme<'a, S: Scheme>(ArrayMut<'a, u32, S>);

impl<S: Scheme> Words for OfScheme<'_, S> {
    #[inline(always)]
    fn write(&mut self, index: usize, value: u32) {
        self.0.write(index, value);
    }

    #[inline(always)]
    fn prefetch(&self, index: usize) {
        self.0.as_ref().prefetch(index, Intent::Write);
    }
}

struct Bench<'a> {
    name: &'a str,
    cells: usize,
}

/// First writes before a copier, the first pass, the fastest of the others, and the fastest with prefetches.
#[derive(Clone, Copy)]
struct Figures {
    before: f64,
    first: f64,
    then: f64,
    ahead: f64,
}

/// First writes before a copier, of the scheme and of its bare loop: the fastest of a few periods. The
/// capture of the last period is open.
fn first_writes<S: Scheme>(
    arrays: &mut Arrays<S>,
    array: Array<u32>,
    cells: usize,
    bare: &mut Bare,
) -> ([f64; 2], Option<Capture<S>>) {
    let (mut found, mut capture) = ([f64::MAX; 2], None);
    // The first capture is full. Every cell is written in the period before.
    for period in 0..5 {
        if let Some(capture) = capture.take() {
            Capture::durable(capture);
        }
        (0..cells).for_each(|index| arrays.write(array, index, index as u32));
        arrays.end_tick();
        capture = arrays.point_of_consistency();
        if period > 0 {
            let mut words = OfScheme(arrays.array_mut(array));
            found[0] = found[0].min(pass(&mut words, cells, FIRST_WRITES, period, false));
            found[1] = found[1].min(bare.first_writes(cells, period));
        }
    }
    (found, capture)
}

impl registry::Program for Bench<'_> {
    type Output = ();

    fn run<S: Scheme>(self) {
        let Self { name, cells } = self;
        let Some(shape) = Shape::of(name, cells) else {
            return println!("{name:<8} has no bare loop here");
        };
        let mut bare = Bare::new(shape);
        let mut builder = Arrays::<S>::builder();
        let array = builder.array::<u32>("words", cells);
        let mut arrays = builder.build().expect("memory");
        arrays.fill(array, |index| index as u32).expect("no tick has ended");
        let none = Figures { before: f64::MAX, first: f64::MAX, then: f64::MAX, ahead: f64::MAX };
        let mut found = [none; 2];
        let (before, capture) = first_writes(&mut arrays, array, cells, &mut bare);
        for (found, before) in found.iter_mut().zip(before) {
            found.before = before;
        }
        if let Some(capture) = &capture {
            capture.copy_over();
        }
        let mut words = OfScheme(arrays.array_mut(array));
        for number in 0..=PASSES {
            let seed = 1 + number as u64;
            let of_both = |has_prefetch: bool, words: &mut OfScheme<'_, S>, bare: &mut Bare| {
                [
                    pass(words, cells, WRITES, seed, has_prefetch),
                    bare.pass(cells, seed, has_prefetch),
                ]
            };
            let without = of_both(false, &mut words, &mut bare);
            for (found, ns) in found.iter_mut().zip(without) {
                if number == 0 {
                    found.first = ns;
                } else {
                    found.then = found.then.min(ns);
                }
            }
            let with = of_both(true, &mut words, &mut bare);
            for (found, ns) in found.iter_mut().zip(with) {
                found.ahead = found.ahead.min(ns);
            }
        }
        drop(capture);
        let [ours, bare] = found;
        println!(
            "{name:<8} | {:>6.2} {:>6.2} {:>6.2} {:>6.2} | {:>6.2} {:>6.2} {:>6.2} {:>6.2} | {:>6.2} {:>6.2} {:>6.2} {:>6.2}",
            ours.before,
            ours.first,
            ours.then,
            ours.ahead,
            bare.before,
            bare.first,
            bare.then,
            bare.ahead,
            ours.before / bare.before,
            ours.first / bare.first,
            ours.then / bare.then,
            ours.ahead / bare.ahead,
        );
    }
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let cells = args.next().map_or(50_000_000, |cells| cells.parse().expect("a number of cells"));
    let mut names: Vec<String> = args.collect();
    if names.is_empty() {
        names.extend(["none", "ipp", "hg", "pb"].map(String::from));
    }
    println!("{cells} words; ns of CPU per write of a random one");
    println!(
        "{:<8} | {:>6} {:>6} {:>6} {:>6} | {:>6} {:>6} {:>6} {:>6} | {:>6} {:>6} {:>6} {:>6}",
        "",
        "before",
        "first",
        "then",
        "ahead",
        "bare",
        "first",
        "then",
        "ahead",
        "\u{f7}",
        "first",
        "then",
        "ahead"
    );
    for name in &names {
        registry::run(name, Bench { name, cells }).expect("a known scheme");
    }
}
