//! One thread plays mutator, copier and writer in turns, in steps of a random order.

use std::marker::PhantomData;

use stillpoint_io::{Rng, SeededRng};
use stillpoint_state::{
    Array, Arrays, Capture, Content, FieldValue, Intent, PageSize, Plain, Scheme, registry,
};

/// Counts of events in a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) reads: u64,
    pub(crate) ticks: u64,
    pub(crate) images: u64,
    pub(crate) failures: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Plain)]
enum Kind {
    First,
    Second { since: u16 },
    Third,
}

/// A part of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
struct Part {
    c: i16,
    d: f32,
    is_there: bool,
}

/// A cell of an odd number of grains, not all of whose bytes are fields.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
struct Odd {
    a: u32,
    b: [u8; 3],
    #[field(PARTS)]
    parts: [Part; 2],
    kind: Kind,
    e: [[i8; 2]; 2],
}

/// A cell that the model knows by its bytes.
pub(crate) trait TestCell: Plain {
    fn of(bytes: &[u8]) -> Self;
    fn bytes(self) -> Vec<u8>;
}

impl<T: Plain + FieldValue> TestCell for T {
    fn of(bytes: &[u8]) -> Self {
        Self::from_bytes(&bytes[..<T as FieldValue>::PACKED_BYTES])
    }
    fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; <T as Plain>::BYTES];
        self.into_bytes(&mut bytes[..<T as FieldValue>::PACKED_BYTES]);
        bytes
    }
}

/// Runs a scheme with cells of every size.
pub(crate) fn run_all_sizes(name: &str, seed: u64, steps: u64) -> Coverage {
    let mut all = Coverage::default();
    let runs: [fn(&str, u64, u64) -> Coverage; 8] = [
        run::<u32>,
        run::<[f32; 3]>,
        run::<Odd>,
        run::<[u8; 64]>,
        run::<[u8; 72]>,
        run::<[u64; 39]>,
        run::<[u32; 256]>,
        run::<[u8; 4096]>,
    ];
    for run in runs {
        let seen = run(name, seed, steps);
        all.reads += seen.reads;
        all.ticks += seen.ticks;
        all.images += seen.images;
        all.failures += seen.failures;
    }
    all
}

/// Steps of one world, after which another one begins.
const STEPS_OF_A_WORLD: u64 = 5_000;

pub(crate) fn run<T: TestCell>(name: &str, seed: u64, steps: u64) -> Coverage {
    let mut all = Coverage::default();
    let mut left = steps;
    for seed in seed.. {
        let program =
            Steps::<T> { name, seed, steps: left.min(STEPS_OF_A_WORLD), cell: PhantomData };
        let seen = registry::run(name, program).expect("it is in the table");
        all.reads += seen.reads;
        all.ticks += seen.ticks;
        all.images += seen.images;
        all.failures += seen.failures;
        left = left.saturating_sub(STEPS_OF_A_WORLD);
        if left == 0 {
            break;
        }
    }
    all
}

struct Steps<'a, T> {
    name: &'a str,
    seed: u64,
    steps: u64,
    cell: PhantomData<T>,
}

impl<T: TestCell> registry::Program for Steps<'_, T> {
    type Output = Coverage;

    fn run<S: Scheme>(self) -> Coverage {
        let Self { name, seed, steps, .. } = self;
        let mut world = World::<S, T>::new(name, seed);
        for step in 0..steps {
            world.at = format!("{name}, cells of {} bytes, seed {seed}, step {step}", T::BYTES);
            world.step();
        }
        world.check_all();
        world.seen
    }
}

/// An image under way.
struct Taking<S: Scheme> {
    capture: Capture<S>,
    /// The expected content of the image.
    wanted: Vec<Vec<u8>>,
    /// The content of the image so far.
    image: Vec<Vec<u8>>,
    /// Ranges (array, first, count) that the copier, or the writer, has still to do.
    to_copy: Vec<(usize, usize, usize)>,
    to_write: Vec<(usize, usize, usize)>,
}

struct World<S: Scheme, T: TestCell> {
    at: String,
    rng: SeededRng,
    arrays: Arrays<S>,
    cells: Array<T>,
    words: Array<u32>,
    /// The bytes of both arrays.
    model: Vec<Vec<u8>>,
    /// The last durable image. As with the method Copy, it may also contain values of failed
    /// captures.
    base: Vec<Vec<u8>>,
    keeps_a_copy: bool,
    taking: Option<Taking<S>>,
    /// Tick and expected image of the last capture of changes, if it failed.
    failed: Option<(u64, Vec<Vec<u8>>)>,
    seen: Coverage,
}

impl<S: Scheme, T: TestCell> World<S, T> {
    fn new(name: &str, seed: u64) -> Self {
        let rng = SeededRng::new(seed);
        let most = if T::BYTES > 64 { 24 } else { 300 };
        let (cells, words) = (1 + rng.below(most) as usize, rng.below(70) as usize);
        let mut builder = Arrays::<S>::builder();
        builder.pages(if seed.is_multiple_of(2) { PageSize::Small } else { PageSize::Huge });
        let handle = builder.array::<T>("cells", cells);
        let word_handle = builder.array::<u32>("words", words);
        let arrays = builder.build().expect("memory");
        let model = vec![vec![0; cells * T::BYTES], vec![0; words * 4]];
        let mut world = Self {
            at: format!("{name}, seed {seed}"),
            keeps_a_copy: rng.below(2) == 0,
            rng,
            arrays,
            cells: handle,
            words: word_handle,
            base: model.clone(),
            model,
            taking: None,
            failed: None,
            seen: Coverage::default(),
        };
        if !seed.is_multiple_of(3) {
            world.fill();
        }
        world
    }

    fn fill(&mut self) {
        let (rng, model) = (&self.rng, &mut self.model);
        let mut value = |index: usize| {
            let bytes = random_cell::<T>(rng);
            model[0][index * T::BYTES..][..T::BYTES].copy_from_slice(&bytes);
            T::of(&bytes)
        };
        self.arrays.fill(self.cells, &mut value).expect("no tick has ended");
    }

    fn below(&self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    fn step(&mut self) {
        match self.below(20) {
            0..=6 => self.write(),
            7..=9 => self.write_part(),
            10..=11 => self.read(),
            12 => self.read_part(),
            13 => self.write_word(),
            14 => {
                self.arrays.end_tick();
                self.seen.ticks += 1;
                self.begin();
            }
            15..=18 => self.go_on(),
            _ => {
                if self.below(10) == 0 {
                    self.give_up();
                }
            }
        }
    }

    /// A random cell, often one of a few.
    fn some_cell(&self) -> usize {
        let cells = self.model[0].len() / T::BYTES;
        if self.below(2) == 0 { self.below(cells.min(5)) } else { self.below(cells) }
    }

    fn write(&mut self) {
        let index = self.some_cell();
        let bytes = random_cell::<T>(&self.rng);
        self.model[0][index * T::BYTES..][..T::BYTES].copy_from_slice(&bytes);
        self.arrays.write(self.cells, index, T::of(&bytes));
    }

    /// An offset and a length of a part of a cell.
    fn some_part(&self) -> (usize, usize) {
        let offset = self.below(T::BYTES);
        (offset, self.below(T::BYTES - offset + 1))
    }

    fn write_part(&mut self) {
        let index = self.some_cell();
        let (offset, len) = self.some_part();
        let bytes = random_cell::<T>(&self.rng)[..len].to_vec();
        self.model[0][index * T::BYTES + offset..][..len].copy_from_slice(&bytes);
        self.arrays.write_part(self.cells, index, offset, &bytes);
    }

    fn write_word(&mut self) {
        let words = self.model[1].len() / 4;
        if words > 0 {
            let (index, value) = (self.below(words), self.rng.next_u64() as u32);
            self.model[1][index * 4..][..4].copy_from_slice(&value.to_le_bytes());
            self.arrays.write(self.words, index, value);
        }
    }

    fn read(&mut self) {
        let index = self.some_cell();
        // A prefetch may name any index and changes nothing.
        for index in [index, usize::MAX - index] {
            self.arrays.prefetch(self.cells, index, Intent::Read);
            self.arrays.prefetch(self.cells, index, Intent::Write);
        }
        let found = self.arrays.read(self.cells, index);
        let wanted = T::of(&self.model[0][index * T::BYTES..][..T::BYTES]);
        // Compared as bytes, since a NaN does not equal itself.
        assert_eq!(found.bytes(), wanted.bytes(), "{}: cell {index}", self.at);
        self.seen.reads += 1;
    }

    fn read_part(&mut self) {
        let index = self.some_cell();
        let (offset, len) = self.some_part();
        let mut found = vec![0; len];
        self.arrays.read_part(self.cells, index, offset, &mut found);
        let wanted = &self.model[0][index * T::BYTES + offset..][..len];
        assert_eq!(found, wanted, "{}: bytes {offset}+{len} of cell {index}", self.at);
    }

    fn check_all(&self) {
        for (index, found) in self.arrays.iter(self.cells).enumerate() {
            let wanted = T::of(&self.model[0][index * T::BYTES..][..T::BYTES]);
            assert_eq!(found.bytes(), wanted.bytes(), "{}: cell {index}", self.at);
        }
        for (index, found) in self.arrays.iter(self.words).enumerate() {
            let wanted = u32::from_bytes(&self.model[1][index * 4..][..4]);
            assert_eq!(found, wanted, "{}: word {index}", self.at);
        }
    }

    /// A point of consistency.
    fn begin(&mut self) {
        let capture = self.arrays.point_of_consistency();
        if self.taking.is_some() || S::CONTENT == Content::Nothing {
            assert!(capture.is_none(), "{}: a capture beside another", self.at);
            return;
        }
        let capture = capture.expect("none is under way");
        let (tick, wanted) = match (S::CONTENT, self.failed.take()) {
            (Content::Changes, Some(again)) => again,
            _ => (self.arrays.ticks(), self.model.clone()),
        };
        assert_eq!(capture.tick(), tick, "{}", self.at);
        let image = match S::CONTENT {
            Content::Changes => self.base.clone(),
            _ => self.model.iter().map(|bytes| vec![0xEE; bytes.len()]).collect(),
        };
        let to_write = self.ranges();
        let mut to_copy = self.ranges();
        // The copier goes from the first cell to the last. The next cells to copy stand at the end
        // of the list.
        to_copy.sort_by_key(|(_, first, _)| std::cmp::Reverse(*first));
        self.taking = Some(Taking { capture, wanted, image, to_copy, to_write });
    }

    /// All cells, in ranges, shuffled.
    fn ranges(&self) -> Vec<(usize, usize, usize)> {
        let mut ranges = Vec::new();
        for (array, cell_bytes) in [T::BYTES, 4].into_iter().enumerate() {
            let (mut at, cells) = (0, self.model[array].len() / cell_bytes);
            while at < cells {
                let count = 1 + self.below((cells - at).min(100));
                ranges.push((array, at, count));
                at += count;
            }
        }
        for at in (1..ranges.len()).rev() {
            ranges.swap(at, self.below(at + 1));
        }
        ranges
    }

    /// The copier or the writer takes a range; when none is left, the image is durable.
    fn go_on(&mut self) {
        let copies = self.below(2) == 0;
        let cell_bytes = [T::BYTES, 4];
        let Some(taking) = &mut self.taking else { return };
        let todo = if copies { &mut taking.to_copy } else { &mut taking.to_write };
        if let Some((array, first, count)) = todo.pop() {
            let cells = first..first + count;
            if copies {
                return taking.capture.copy_over_until(array, cells.end);
            }
            let bytes = cell_bytes[array];
            let room = &mut taking.image[array][first * bytes..(first + count) * bytes];
            taking.capture.write_to_stable_storage(array, cells, room).expect("a child");
        }
        if taking.to_write.is_empty() {
            let taking = self.taking.take().expect("see above");
            assert!(taking.image == taking.wanted, "{}: the image differs", self.at);
            taking.capture.durable();
            self.base = taking.image;
            self.seen.images += 1;
        }
    }

    /// The capture fails; now and then because the last image is lost.
    fn give_up(&mut self) {
        if let Some(taking) = self.taking.take() {
            self.seen.failures += 1;
            if S::CONTENT == Content::Changes && self.below(3) == 0 {
                self.base.iter_mut().for_each(|bytes| bytes.fill(0xEE));
                return taking.capture.base_is_lost();
            }
            if self.keeps_a_copy {
                self.base = taking.image;
            }
            self.failed = Some((taking.capture.tick(), taking.wanted));
            drop(taking.capture);
        }
    }
}

/// Random bytes that are a value of the cell's type.
fn random_cell<T: TestCell>(rng: &SeededRng) -> Vec<u8> {
    let mut bytes = vec![0; T::BYTES];
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&rng.next_u64().to_le_bytes()[..part.len()]);
    }
    T::of(&bytes).bytes()
}
