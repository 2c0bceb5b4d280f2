//! The cost of a write, of a read, and of a tick at which a capture begins, in each scheme and
//! layout. Also the writer's time for an image without the disk.
//!
//! `cargo bench -p stillpoint-state -- [MIB] [NAME…]`: MIB of state (default 256), the schemes of
//! those names (default: all). Times are CPU times of the working thread. Writes go to random words
//! of 4 bytes, then to random pages of 4 KiB (8 bytes of each, and whole). `begun` are writes after
//! a capture has begun, before the writer has done anything.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::hint::black_box;

use stillpoint_io::{Clock, RealClock, thread_cpu_ns};
use stillpoint_state::schemes::NaiveSnapshot;
use stillpoint_state::{Array, Arrays, Capture, Naive, Plain, Scheme, registry};

/// Accesses that are timed together.
const ACCESSES: usize = 1 << 20;

/// Random numbers by SplitMix64.
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
    let mib: usize = args.next().map_or(256, |mib| mib.parse().expect("a number of MiB"));
    let names: Vec<String> = args.collect();
    let names: Vec<&str> = if names.is_empty() {
        registry::names_here().collect()
    } else {
        names.iter().map(String::as_str).collect()
    };
    println!("{mib} MiB; ns per access, CPU; tick: wall; writer: CPU per MiB of state");
    println!(
        "{:<14} {:>7} {:>7} {:>7} {:>9} {:>9} | {:>7} {:>7} {:>7} {:>9} {:>9} | {:>6}",
        "words of 4",
        "write",
        "begun",
        "read",
        "tick us",
        "image us",
        "part",
        "whole",
        "read",
        "tick us",
        "image us",
        "MiB"
    );
    for name in names {
        let bench = Bench { bytes: mib << 20 };
        let line = registry::run(name, bench).expect("it is in the table");
        println!("{name:<14} {line}");
    }
    copies();
}

/// Measures how fast words are copied, in comparison with the library's copy.
fn copies() {
    let mut builder = Arrays::<NaiveSnapshot<Naive>>::builder();
    let bytes = 256 << 20;
    let pages = builder.array::<[u64; 512]>("pages", bytes / 4096);
    let mut arrays = builder.build().expect("memory");
    arrays.fill(pages, |_| [1; 512]).expect("no tick");
    drop(arrays.point_of_consistency());
    let ours = wall_ns(|| drop(arrays.point_of_consistency()));
    let (from, mut to) = (vec![1u8; bytes], vec![2u8; bytes]);
    to.copy_from_slice(black_box(&from));
    let library = wall_ns(|| black_box(&mut to).copy_from_slice(black_box(&from)));
    let rate = |ns: u64| bytes as f64 / ns as f64;
    println!(
        "copying 256 MiB: by atomic words {:.2} GB/s, by the library {:.2} GB/s",
        rate(ours),
        rate(library)
    );
}

fn wall_ns(run: impl FnOnce()) -> u64 {
    let start_ns = RealClock.monotonic_ns();
    run();
    RealClock.monotonic_ns() - start_ns
}

struct Bench {
    bytes: usize,
}

impl registry::Program for Bench {
    type Output = String;

    fn run<S: Scheme>(self) -> String {
        let words = self.measure::<S, u32>(|arrays, cells, index, value| {
            arrays.write(cells, index, value);
        });
        let pages = self.measure::<S, [u64; 512]>(|arrays, cells, index, value| {
            arrays.write_part(cells, index, 64, &value.to_le_bytes());
        });
        let whole = self.measure::<S, [u64; 512]>(|arrays, cells, index, value| {
            arrays.write(cells, index, [u64::from(value); 512]);
        });
        format!(
            "{:>7.1} {:>7.1} {:>7.1} {:>9.1} {:>9.0} | {:>7.1} {:>7.1} {:>7.1} {:>9.1} {:>9.0} | {:>6}",
            words.write,
            words.begun,
            words.read,
            words.tick_us,
            words.image_us,
            pages.write,
            whole.write,
            pages.read,
            pages.tick_us,
            pages.image_us,
            words.mib
        )
    }
}

struct Figures {
    write: f64,
    begun: f64,
    read: f64,
    tick_us: f64,
    image_us: f64,
    mib: usize,
}

impl Bench {
    fn measure<S: Scheme, T: Plain>(
        &self,
        write: impl Fn(&mut Arrays<S>, Array<T>, usize, u32),
    ) -> Figures {
        let cells_count = self.bytes / T::BYTES;
        let accesses = if T::BYTES > 8 { ACCESSES / 16 } else { ACCESSES };
        let mut builder = Arrays::<S>::builder();
        let cells = builder.array::<T>("cells", cells_count);
        let mut arrays = builder.build().expect("memory");
        let zero = arrays.read(cells, 0);
        arrays.fill(cells, |_| zero).expect("no tick has ended");
        let mut mix = Mix(1);
        let mut writes = |arrays: &mut Arrays<S>| {
            let start_ns = thread_cpu_ns();
            for _ in 0..accesses {
                let index = mix.below(cells_count);
                write(arrays, cells, index, index as u32);
            }
            (thread_cpu_ns() - start_ns) as f64 / accesses as f64
        };
        // The first image is full.
        take(arrays.point_of_consistency(), self.bytes, T::BYTES);
        let mut write = writes(&mut arrays);
        let mut tick_ns = u64::MAX;
        let (mut begun, mut image_us) = (f64::MAX, f64::MAX);
        for _ in 0..3 {
            arrays.end_tick();
            let mut capture = None;
            tick_ns = tick_ns.min(wall_ns(|| capture = arrays.point_of_consistency()));
            begun = begun.min(writes(&mut arrays));
            image_us = image_us.min(take(capture, self.bytes, T::BYTES));
            write = write.min(writes(&mut arrays));
        }
        let start_ns = thread_cpu_ns();
        let mut mix = Mix(2);
        let reader = arrays.array(cells);
        for _ in 0..accesses {
            black_box(reader.read(mix.below(cells_count)));
        }
        let read = (thread_cpu_ns() - start_ns) as f64 / accesses as f64;
        let tick_us = tick_ns as f64 / 1e3;
        Figures { write, begun, read, tick_us, image_us, mib: arrays.len_bytes() >> 20 }
    }
}

/// Takes an image without writing it. Returns microseconds of CPU per MiB of state.
fn take<S: Scheme>(capture: Option<Capture<S>>, bytes: usize, cell_bytes: usize) -> f64 {
    let Some(capture) = capture else { return 0.0 };
    let start_ns = thread_cpu_ns();
    capture.copy_over();
    let mut block = vec![0; (1 << 20) / cell_bytes * cell_bytes];
    let (cells, per_block) = (bytes / cell_bytes, block.len() / cell_bytes);
    for first in (0..cells).step_by(per_block) {
        let end = (first + per_block).min(cells);
        let room = &mut block[..(end - first) * cell_bytes];
        capture.write_to_stable_storage(0, first..end, room).expect("a child");
    }
    black_box(&block);
    let taken_ns = thread_cpu_ns() - start_ns;
    capture.durable();
    taken_ns as f64 / 1e3 / (bytes >> 20) as f64
}
