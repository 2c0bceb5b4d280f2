//! The cost of a write while the copier of a scheme is at work, and once the copier is done. Also
//! the time that the copier takes.
//!
//! `cargo bench -p stillpoint-state --bench copier -- [CELLS] [NAME…]`: so many cells (default
//! 50,000,000) of 4 bytes, then of 8; the schemes of those names (default: pb). Before each
//! capture, random cells are written: half as many as there are blocks of 64 bytes. So the copier
//! has to bring over about 40 % of the blocks. In the last rounds four times as many cells are
//! written. The figures are CPU times of each thread, and the wall time in microseconds of the
//! slowest batch of 64 writes. All figures are medians of the rounds.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use stillpoint_io::{Clock, RealClock, thread_cpu_ns};
use stillpoint_state::{Array, ArrayMut, Arrays, Plain, Scheme, registry};

/// Rounds of each kind.
const ROUNDS: usize = 7;
/// Writes between two looks at whether the copier is done.
const BATCH: usize = 64;

/// Random numbers by SplitMix64, without a lock, since a lock would make stores wait for each
/// other.
struct Mix(u64);

impl Mix {
    #[inline]
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(z ^ (z >> 31)) * bound as u128) >> 64) as usize
    }
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let cells = args.next().map_or(50_000_000, |cells| cells.parse().expect("a number of cells"));
    let mut names: Vec<String> = args.collect();
    if names.is_empty() {
        names.push("pb".to_owned());
    }
    println!("ns per write of a random cell; copier: milliseconds");
    println!(
        "{:<14} {:>5} {:>6} | {:>8} {:>8} {:>8} {:>8}",
        "", "bytes", "dirty", "settled", "copying", "worst", "copier"
    );
    for name in names {
        registry::run(&name, Bench { name: &name, cells }).expect("a known scheme");
    }
}

struct Bench<'a> {
    name: &'a str,
    cells: usize,
}

impl registry::Program for Bench<'_> {
    type Output = ();

    fn run<S: Scheme>(self) {
        self.measure::<S, u32>(|index| index as u32);
        self.measure::<S, u64>(|index| index as u64);
    }
}

/// A round's figures.
struct Round {
    settled_ns: f64,
    copying_ns: f64,
    worst_us: f64,
    copier_ms: f64,
}

impl Bench<'_> {
    fn measure<S: Scheme, T: Plain>(&self, value: impl Fn(usize) -> T) {
        let mut builder = Arrays::<S>::builder();
        let array = builder.array::<T>("cells", self.cells);
        let mut arrays = builder.build().expect("memory");
        arrays.fill(array, &value).expect("no tick has ended");
        let mut mix = Mix(1);
        let mut write = |cells: &mut ArrayMut<'_, T, S>| {
            let index = mix.below(self.cells);
            cells.write(index, value(index));
        };
        let blocks = self.cells * T::BYTES / 64;
        for writes in [blocks / 2, blocks * 2] {
            let rounds: Vec<Round> =
                (0..ROUNDS).map(|_| round(&mut arrays, array, writes, &mut write)).collect();
            let median = |of: fn(&Round) -> f64| {
                let mut values: Vec<f64> = rounds.iter().map(of).collect();
                values.sort_by(f64::total_cmp);
                values[values.len() / 2]
            };
            println!(
                "{:<14} {:>5} {:>5.0}% | {:>8.1} {:>8.1} {:>8.0} {:>8.1}",
                self.name,
                T::BYTES,
                (1.0 - (-(writes as f64) / blocks as f64).exp()) * 100.0,
                median(|round| round.settled_ns),
                median(|round| round.copying_ns),
                median(|round| round.worst_us),
                median(|round| round.copier_ms),
            );
        }
    }
}

/// Measures writes while no capture runs, then writes while the copier runs.
fn round<S: Scheme, T: Plain>(
    arrays: &mut Arrays<S>,
    array: Array<T>,
    writes: usize,
    write: &mut impl FnMut(&mut ArrayMut<'_, T, S>),
) -> Round {
    let mut cells = arrays.array_mut(array);
    let begun_ns = thread_cpu_ns();
    (0..writes).for_each(|_| write(&mut cells));
    let settled_ns = (thread_cpu_ns() - begun_ns) as f64 / writes as f64;
    arrays.end_tick();
    let capture = arrays.point_of_consistency().expect("none is under way");
    let (begins, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    let round = std::thread::scope(|scope| {
        let copier = scope.spawn(|| {
            let begun_ns = thread_cpu_ns();
            begins.store(true, SeqCst);
            capture.copy_over();
            is_done.store(true, SeqCst);
            (thread_cpu_ns() - begun_ns) as f64 / 1e6
        });
        while !begins.load(SeqCst) {
            std::hint::spin_loop();
        }
        let mut cells = arrays.array_mut(array);
        let begun_ns = thread_cpu_ns();
        let (mut count, mut last_ns, mut worst_ns) = (0, RealClock.monotonic_ns(), 0);
        while !is_done.load(SeqCst) {
            (0..BATCH).for_each(|_| write(&mut cells));
            count += BATCH;
            let now_ns = RealClock.monotonic_ns();
            worst_ns = worst_ns.max(now_ns - last_ns);
            last_ns = now_ns;
        }
        let copying_ns = (thread_cpu_ns() - begun_ns) as f64 / count as f64;
        let copier_ms = copier.join().expect("no panic");
        Round { settled_ns, copying_ns, worst_us: worst_ns as f64 / 1e3, copier_ms }
    });
    capture.durable();
    round
}
