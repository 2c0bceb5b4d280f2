//! Transactions per second of the CALC microbenchmark on the bare store, by threads, records and
//! batch. `cargo bench -p stillpoint-store --bench transactions -- [RECORDS…]` (default 1 M; the
//! figures of the documents are for 1 M and 10 M).
#![expect(clippy::print_stdout, reason = "a report on the terminal")]

mod calc;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use stillpoint_io::{Clock, RealClock};
use stillpoint_store::{CellRules, Store};

const REPEATS: usize = 3;

/// Seconds that `threads` threads need for `each` transactions each.
fn seconds(store: &Arc<Store>, threads: u64, records: u64, each: u64, batch: usize) -> f64 {
    let ready = Arc::new(AtomicU64::new(0));
    let running: Vec<_> = (0..threads)
        .map(|thread| {
            let (store, ready) = (store.clone(), ready.clone());
            let run = move || {
                ready.fetch_add(1, SeqCst);
                while ready.load(SeqCst) <= threads {
                    std::hint::spin_loop();
                }
                calc::run(&store, thread + 1, records, each, batch);
            };
            stillpoint_io::spawn(&format!("bench-{thread}"), run).expect("a thread")
        })
        .collect();
    while ready.load(SeqCst) < threads {
        std::hint::spin_loop();
    }
    let start = RealClock.monotonic_ns();
    ready.fetch_add(1, SeqCst);
    for thread in running {
        thread.join().expect("no panic");
    }
    (RealClock.monotonic_ns() - start) as f64 / 1e9
}

fn main() {
    let asked: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let sizes = if asked.is_empty() { vec![1_000_000] } else { asked };
    for records in sizes {
        let store = calc::filled(records, CellRules::IN_PLACE);
        println!("{records} records of 8 + 100 bytes, 10 read and updated per transaction");
        println!("threads  batch  transactions/s (best and worst of {REPEATS})");
        let mut done = 0;
        for threads in [1, 2] {
            for batch in [1, 6] {
                let each = 600_000;
                let mut rates: Vec<f64> = (0..REPEATS)
                    .map(|_| {
                        done += threads * each;
                        let seconds = seconds(&store, threads, records, each, batch);
                        (threads * each) as f64 / seconds
                    })
                    .collect();
                rates.sort_by(f64::total_cmp);
                let (worst, best) = (rates[0], rates[REPEATS - 1]);
                println!("{threads:7}  {batch:5}  {best:12.0} {worst:12.0}");
            }
        }
        assert_eq!(calc::sum(&store), done * calc::KEYS_PER_TRANSACTION);
    }
}
