//! A little program whose step is known twice: on a state, and on plain vectors.

use std::sync::Arc;

use stillpoint_io::{ManualClock, SeededRng, SimDisk};
use stillpoint_state::{
    Actions, Array, Cells, Config, Environment, Recovered, Scheme, State, StateError,
};

pub(crate) const PAGES: usize = 70;
pub(crate) const WORDS: usize = 3000;
pub(crate) type Page = [u8; 128];

/// The cells that a step reads and writes.
pub(crate) trait Target {
    fn word(&self, index: usize) -> u32;
    fn set_word(&mut self, index: usize, value: u32);
    fn page(&self, index: usize) -> Page;
    fn set_page(&mut self, index: usize, page: Page);
    fn set_part(&mut self, index: usize, offset: usize, bytes: &[u8]);
}

/// Random numbers by SplitMix64.
pub(crate) struct Mix(pub(crate) u64);

impl Mix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Runs one step. The step reads and writes cells, and the order of the actions matters.
pub(crate) fn step<'a>(
    target: &mut impl Target,
    tick: u64,
    actions: impl IntoIterator<Item = &'a [u8]>,
) {
    for action in actions {
        let mut seed = [0; 8];
        let len = action.len().min(8);
        seed[..len].copy_from_slice(&action[..len]);
        let mut mix = Mix(u64::from_le_bytes(seed) ^ action.len() as u64);
        for _ in 0..4 {
            let (page, word) = (mix.below(PAGES), mix.below(WORDS));
            match mix.below(3) {
                0 => {
                    let mut bytes = target.page(page);
                    bytes.rotate_left(1);
                    bytes[0] ^= mix.next() as u8;
                    target.set_page(page, bytes);
                }
                1 => {
                    let offset = mix.below(120);
                    target.set_part(page, offset, &mix.next().to_le_bytes()[..1 + offset % 8]);
                }
                _ => target.set_word(word, target.word(word).wrapping_mul(31) ^ mix.next() as u32),
            }
        }
    }
    let (to, from) = (tick as usize % WORDS, tick as usize * 7 % WORDS);
    target.set_word(to, target.word(from).wrapping_add(tick as u32));
}

/// Plain vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) pages: Vec<Page>,
    pub(crate) words: Vec<u32>,
}

impl Model {
    pub(crate) fn new() -> Self {
        let pages = (0..PAGES).map(first_page).collect();
        Self { pages, words: vec![0; WORDS] }
    }
}

fn first_page(index: usize) -> Page {
    [index as u8; 128]
}

impl Target for Model {
    fn word(&self, index: usize) -> u32 {
        self.words[index]
    }
    fn set_word(&mut self, index: usize, value: u32) {
        self.words[index] = value;
    }
    fn page(&self, index: usize) -> Page {
        self.pages[index]
    }
    fn set_page(&mut self, index: usize, page: Page) {
        self.pages[index] = page;
    }
    fn set_part(&mut self, index: usize, offset: usize, bytes: &[u8]) {
        self.pages[index][offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Handles {
    pub(crate) pages: Array<Page>,
    pub(crate) words: Array<u32>,
}

/// The cells of a state.
pub(crate) struct OnState<'a, S: Scheme>(pub(crate) &'a mut Cells<S>, pub(crate) Handles);

impl<S: Scheme> Target for OnState<'_, S> {
    fn word(&self, index: usize) -> u32 {
        self.0.read(self.1.words, index)
    }
    fn set_word(&mut self, index: usize, value: u32) {
        self.0.write(self.1.words, index, value);
    }
    fn page(&self, index: usize) -> Page {
        self.0.read(self.1.pages, index)
    }
    fn set_page(&mut self, index: usize, page: Page) {
        self.0.write(self.1.pages, index, page);
    }
    fn set_part(&mut self, index: usize, offset: usize, bytes: &[u8]) {
        self.0.write_part(self.1.pages, index, offset, bytes);
    }
}

/// The values of all cells of a state.
pub(crate) fn contents<S: Scheme>(cells: &Cells<S>, handles: Handles) -> Model {
    let pages = cells.iter(handles.pages).collect();
    Model { pages, words: cells.iter(handles.words).collect() }
}

/// Opens the state on a disk.
pub(crate) fn open<S: Scheme>(
    disk: &SimDisk,
    config: &Config,
    seed: u64,
) -> Result<(State<S>, Recovered, Handles), StateError> {
    let environment = Environment {
        disk: Arc::new(disk.clone()),
        clock: Arc::new(ManualClock::self_advancing(seed)),
        rng: Arc::new(SeededRng::new(seed)),
    };
    let mut builder = State::<S>::builder();
    let handles = Handles {
        pages: builder.array::<Page>("pages", PAGES),
        words: builder.array::<u32>("words", WORDS),
    };
    let first = |cells: &mut Cells<S>| {
        cells.fill(handles.pages, first_page).expect("no tick has ended");
    };
    let again = |cells: &mut Cells<S>, tick: u64, actions: Actions<'_>| {
        step(&mut OnState(cells, handles), tick, actions);
    };
    let (state, recovered) = builder.open(environment, config, first, again)?;
    Ok((state, recovered, handles))
}
