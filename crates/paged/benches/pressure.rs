//! The longest wait in a pool of sixteen frames: transfers, ranges and checkpoints on a table of many times the
//! pool.
//!
//! `cargo bench -p stillpoint-paged --bench pressure -- [SECONDS] [THREADS]`: 600 seconds and three threads, if
//! nothing else is said. Pages have 1 KiB, and the backing is in memory. Every page is wanted by somebody, and
//! most are dirty. Prints the number of transactions, and the longest one from its begin to its end. An error,
//! such as that of a pool without a free frame, ends the run.

#[path = "../tests/common/mod.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use common::{World, threads};
use stillpoint_io::{Clock, RealClock, SeededRng};

/// Checkpoints of a second.
const CHECKPOINTS_PER_S: u64 = 4;

#[expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let seconds: u64 = arguments.next().unwrap_or(600);
    let count = arguments.next().unwrap_or(3) as u8;
    let world = Arc::new(World::new(16, 1024, 1));
    let mut session = world.session(0);
    session.log.is_checked = false;
    threads::open_accounts(&mut session);
    let ends = Arc::new(AtomicBool::new(false));
    let run = |number: u8| {
        let (world, ends) = (world.clone(), ends.clone());
        let run = move || {
            let (mut session, rng) = (world.session(number), SeededRng::new(number.into()));
            session.log.is_checked = false;
            let (mut count, mut longest) = (0u64, 0);
            // Relaxed: a flag alone.
            while !ends.load(Relaxed) {
                let begun_ns = RealClock.monotonic_ns();
                if count % 64 == 63 {
                    threads::check_sum(&mut session);
                } else {
                    threads::transfer(&mut session, &rng);
                }
                count += 1;
                longest = longest.max(RealClock.monotonic_ns() - begun_ns);
            }
            (count, longest)
        };
        stillpoint_io::spawn("pressure", run).expect("a thread")
    };
    let running: Vec<_> = (1..=count).map(run).collect();
    for _ in 0..seconds * CHECKPOINTS_PER_S {
        RealClock.sleep(std::time::Duration::from_millis(1000 / CHECKPOINTS_PER_S));
        world.checkpoint(true);
    }
    ends.store(true, Relaxed);
    for thread in running {
        let (count, longest) = thread.join().expect("no panic");
        println!("{count} transactions, the longest took {:.3} ms", longest as f64 / 1e6);
    }
    threads::check_sum(&mut session);
    let stats = world.kind.stats();
    println!("{} reads, {} writes, {} evictions", stats.reads, stats.writes, stats.evictions);
}
