//! How long writers wait beside checkpoints: the distribution of the times of single operations.
//!
//! `cargo bench -p stillpoint-siren --bench waits -- [SECONDS] [WRITERS] [TUPLES]`: writers change tuples of
//! 100 bytes at random, one a transaction, and one thread takes checkpoints without a pause. Prints the times
//! of puts by powers of two, while a checkpoint was under way and in between. Then the most turns of the
//! checkpointer that one writer has waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use stillpoint_io::{Clock, RealClock, Rng, SeededRng, SimDisk, in_parallel};
use stillpoint_siren::{Config, Logging, Removes, SirenError, Store, TableId};

/// Powers of two of nanoseconds.
const CLASSES: usize = 40;
/// Time between two checkpoints.
const BETWEEN: Duration = Duration::from_millis(100);

type Job<'s> = Box<dyn FnOnce() -> Result<[[u64; CLASSES]; 2], SirenError> + Send + 's>;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn fill(store: &Store, table: TableId, tuples: u64) -> Result<(), SirenError> {
    let session = store.session()?;
    let mut number = 0;
    while number < tuples {
        let mut transaction = session.begin();
        for _ in 0..500 {
            transaction.put(table, &key(number), &[7; 100])?;
            number += 1;
        }
        transaction.commit()?;
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
fn main() -> Result<(), SirenError> {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let seconds: u64 = arguments.next().unwrap_or(5);
    let writers: u64 = arguments.next().unwrap_or(2);
    let tuples: u64 = arguments.next().unwrap_or(200_000);
    let config = Config { removes: Removes::ToPages, logging: Logging::None, ..Config::default() };
    let store = Store::open(Arc::new(SimDisk::new(1)), config)?;
    let table = store.table("table")?;
    fill(&store, table, tuples)?;
    let (is_over, is_under_way) = (AtomicBool::new(false), AtomicBool::new(false));
    let checkpoints = AtomicU64::new(0);
    let mut jobs: Vec<Job<'_>> = Vec::new();
    for writer in 0..writers {
        let (store, is_over, is_under_way) = (&store, &is_over, &is_under_way);
        jobs.push(Box::new(move || {
            let (rng, session) = (SeededRng::new(writer), store.session()?);
            let mut times = [[0; CLASSES]; 2];
            // Relaxed, here and below: counts and hints.
            while !is_over.load(Relaxed) {
                let mut transaction = session.begin();
                let beside = usize::from(is_under_way.load(Relaxed));
                let begin_ns = RealClock.monotonic_ns();
                let put = transaction.put(table, &key(rng.below(tuples)), &[writer as u8; 100]);
                let took_ns = RealClock.monotonic_ns() - begin_ns;
                match put {
                    Ok(()) => drop(transaction.commit()?),
                    Err(error) if error.is_retryable() => continue,
                    Err(error) => return Err(error),
                }
                times[beside][(took_ns.max(1).ilog2() as usize).min(CLASSES - 1)] += 1;
            }
            Ok(times)
        }));
    }
    jobs.push(Box::new(|| {
        let end_ns = RealClock.monotonic_ns() + seconds * 1_000_000_000;
        while RealClock.monotonic_ns() < end_ns {
            is_under_way.store(true, Relaxed);
            store.checkpoint()?;
            is_under_way.store(false, Relaxed);
            checkpoints.fetch_add(1, Relaxed);
            RealClock.sleep(BETWEEN);
        }
        is_over.store(true, Relaxed);
        Ok([[0; CLASSES]; 2])
    }));
    let mut all = [[0u64; CLASSES]; 2];
    for times in in_parallel("waits", jobs)? {
        for (sum, of_job) in all.iter_mut().zip(times?) {
            sum.iter_mut().zip(of_job).for_each(|(sum, count)| *sum += count);
        }
    }
    println!("{} checkpoints, {writers} writers, {tuples} tuples", checkpoints.load(Relaxed));
    println!("{:>14} {:>14} {:>14}", "up to, µs", "between", "beside");
    let [between, beside] = all;
    for (class, (between, beside)) in between.into_iter().zip(beside).enumerate() {
        if between + beside > 0 {
            let up_to_us = (1u64 << (class + 1)) as f64 / 1000.0;
            println!("{up_to_us:>14.3} {between:>14} {beside:>14}");
        }
    }
    println!(
        "a writer has waited for {} turns of the checkpointer at most; {} writes waited for the pages of \
         removed tuples, each for 10 ms at most",
        store.waited_turns_max(),
        store.slowed_writes()
    );
    Ok(())
}
