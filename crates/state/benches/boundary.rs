//! The cost of the tick at which a capture begins, and the memory that a state holds, by the size
//! of the state. The tick must cost the same for all sizes, and two copies must take the memory of
//! two states.
//!
//! `cargo bench -p stillpoint-state --bench boundary -- [--mib MIB,…] [--only COLUMN,…] [--fence] [NAME…]`:
//! sizes of the state (default 512,1024), the columns (default: all), the schemes of those names
//! (default: those whose row promises a constant tick). With `--fence` the stores of the tick's work are
//! done before the clock starts.
//!
//! | column | what |
//! |---|---|
//! | `words` | cells of 4 bytes, in memory. Between two boundaries the mutator reads, writes parts, and writes whole cells. Of four captures one fails, and the boundary after it is shown separately. |
//! | `pages` | the same with cells of 4 KiB |
//! | `disk` | a state of words in a temporary directory. Its writer is a thread, so the mutator has to fetch cache lines from the writer's core |
//! | `log` | the same with the default log of actions, whose logger is a thread, too |
//! | `actions` | the same with 100 actions of 8 bytes in the tick |
//!
//! Wall time of the mutator: clock, end of the tick and point of consistency. A column on the disk
//! writes one whole image for each boundary. So a state of 4 GiB takes about half a minute for each
//! column. The state needs 8 GiB on the disk.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::hint::black_box;

use std::sync::Arc;
use std::sync::atomic::{Ordering::SeqCst, fence};

use stillpoint_io::{Clock, RealClock, RealDisk, Rng, SeededRng, resident_bytes};
use stillpoint_state::{
    Array, Arrays, Cells, Config, Environment, Every, Plain, Scheme, State, registry,
};

/// Boundaries of each size.
const BOUNDARIES: usize = 40;
/// Bytes of a state on the disk up to which all boundaries are taken.
const SMALL_BYTES: usize = 64 << 20;
/// Boundaries of a larger state on the disk.
const BOUNDARIES_OF_LARGE: usize = 12;
/// Actions of a tick that has some.
const ACTIONS: usize = 100;
/// Accesses between two boundaries.
const ACCESSES: usize = 20_000;

/// A column of the output, with its heads.
const COLUMNS: [(&str, &[&str]); 5] = [
    ("words", &["worst", "failed", "worst", "memory"]),
    ("pages", &["worst", "failed", "worst", "memory"]),
    ("disk", &["worst"]),
    ("log", &["worst"]),
    ("actions", &["worst"]),
];

fn main() {
    let (mut sizes, mut names, mut only) = (vec![512, 1024], Vec::new(), None);
    let mut is_fenced = false;
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(arg) = args.next() {
        let mut list = || {
            let list = args.next().unwrap_or_else(|| panic!("{arg} is followed by a list"));
            list.split(',').map(str::to_owned).collect::<Vec<_>>()
        };
        match &*arg {
            "--mib" => {
                let mib = |text: &String| text.parse().expect("a number of MiB");
                sizes = list().iter().map(mib).collect();
            }
            "--only" => only = Some(list()),
            "--fence" => is_fenced = true,
            _ => names.push(arg),
        }
    }
    if names.is_empty() {
        let constant = registry::REGISTRY.iter().filter(|row| row.has_constant_tick);
        names.extend(constant.flat_map(|row| row.layouts).map(|layout| layout.name.to_owned()));
    }
    let is_wanted = |column: &str| only.as_ref().is_none_or(|it| it.iter().any(|it| it == column));
    let columns: Vec<&str> =
        COLUMNS.iter().map(|(name, _)| *name).filter(|name| is_wanted(name)).collect();
    println!(
        "boundary in ns: median, worst; after a failed capture the same; memory held \u{f7} state"
    );
    print!("{:<14} {:>6}", "", "MiB");
    for (name, heads) in COLUMNS.iter().filter(|(name, _)| columns.contains(name)) {
        print!(" | {name:>7}");
        heads.iter().for_each(|head| print!(" {head:>7}"));
    }
    println!();
    for name in names {
        for mib in &sizes {
            let bench = Bench { bytes: mib << 20, columns: &columns, is_fenced };
            let line = registry::run(&name, bench).expect("a known scheme");
            println!("{name:<14} {mib:>6}{line}");
        }
    }
}

struct Bench<'a> {
    bytes: usize,
    columns: &'a [&'a str],
    is_fenced: bool,
}

impl registry::Program for Bench<'_> {
    type Output = String;

    fn run<S: Scheme>(self) -> String {
        let column = |name: &&str| match *name {
            "words" => self.measure::<S, u32>(|number| number as u32),
            "pages" => self.measure::<S, [u64; 512]>(|number| [number; 512]),
            "disk" => self.measure_on_disk::<S>(false, 0),
            "log" => self.measure_on_disk::<S>(true, 0),
            _ => self.measure_on_disk::<S>(true, ACTIONS),
        };
        self.columns.iter().map(column).collect()
    }
}

impl Bench<'_> {
    /// With `--fence`: waits until the stores of the tick's work have reached the caches. Without it the
    /// end of the tick may wait behind them.
    fn settle_stores(&self) {
        if self.is_fenced {
            fence(SeqCst);
        }
    }

    fn measure<S: Scheme, T: Plain>(&self, value: impl Fn(u64) -> T) -> String {
        let before_bytes = resident_bytes();
        let mut builder = Arrays::<S>::builder();
        let cells = builder.array::<T>("cells", self.bytes / T::BYTES);
        let mut arrays = builder.build().expect("memory");
        arrays.fill(cells, |index| value(index as u64)).expect("no tick has ended");
        let rng = SeededRng::new(1);
        let (mut usual, mut failed) = (Vec::new(), Vec::new());
        let mut has_failed = false;
        for boundary in 0..BOUNDARIES {
            work(&mut arrays, cells, &rng, &value);
            self.settle_stores();
            let start_ns = RealClock.monotonic_ns();
            arrays.end_tick();
            let capture = arrays.point_of_consistency();
            let taken_ns = RealClock.monotonic_ns() - start_ns;
            if boundary > 0 {
                if has_failed { &mut failed } else { &mut usual }.push(taken_ns);
            }
            work(&mut arrays, cells, &rng, &value);
            has_failed = boundary % 4 == 2;
            if let Some(capture) = capture {
                capture.copy_over();
                if !has_failed {
                    capture.durable();
                }
            }
        }
        let held = resident_bytes().saturating_sub(before_bytes) as f64 / self.bytes as f64;
        let worst = |times: &[u64]| times.iter().copied().max().unwrap_or(0);
        let (usual_worst, failed_worst) = (worst(&usual), worst(&failed));
        let (usual, failed) = (median(&mut usual), median(&mut failed));
        format!(" | {usual:>7} {usual_worst:>7} {failed:>7} {failed_worst:>7} {held:>7.3}")
    }

    fn measure_on_disk<S: Scheme>(&self, logs_actions: bool, actions: usize) -> String {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let environment = Environment {
            disk: Arc::new(RealDisk::new(dir.path()).expect("a directory")),
            clock: Arc::new(RealClock),
            rng: Arc::new(SeededRng::new(1)),
        };
        let mut builder = State::<S>::builder();
        let cells = builder.array::<u32>("cells", self.bytes / 4);
        let config = Config { every: Every::OnRequest, logs_actions, ..Config::default() };
        let opened = builder.open(environment, &config, |_| {}, |_, _, _| {});
        let (mut state, _) = opened.expect("a new state");
        let rng = SeededRng::new(1);
        let is_small = self.bytes <= SMALL_BYTES;
        let boundaries = if is_small { BOUNDARIES } else { BOUNDARIES_OF_LARGE };
        let mut times = Vec::new();
        for _ in 0..boundaries {
            work(&mut state, cells, &rng, &|number| number as u32);
            state.checkpoint();
            for _ in 0..actions {
                state.log(&[7; 8]).expect("it is short");
            }
            self.settle_stores();
            let start_ns = RealClock.monotonic_ns();
            state.tick().expect("the disk has room");
            times.push(RealClock.monotonic_ns() - start_ns);
            while state.last_capture().is_none() {
                work(&mut state, cells, &rng, &|number| number as u32);
            }
        }
        let worst = times.iter().copied().max().unwrap_or(0);
        format!(" | {:>7} {worst:>7}", median(&mut times))
    }
}

/// Half reads, a quarter writes of parts, a quarter of whole cells, anywhere.
fn work<S: Scheme, T: Plain>(
    arrays: &mut Cells<S>,
    cells: Array<T>,
    rng: &SeededRng,
    value: &impl Fn(u64) -> T,
) {
    let count = arrays.array(cells).len() as u64;
    for number in 0..ACCESSES as u64 {
        let index = rng.below(count) as usize;
        match number % 4 {
            0 => arrays.write(cells, index, value(number)),
            1 => arrays.write_part(cells, index, T::BYTES / 2, &[7, 7]),
            _ => {
                black_box(arrays.read(cells, index));
            }
        }
    }
}

fn median(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}
