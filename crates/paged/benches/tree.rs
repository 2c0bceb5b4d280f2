//! Point reads, declared batches of reads, insertions and scans of a paged table that fits its pool.
//!
//! `cargo bench -p stillpoint-paged -- [RECORDS] [KEYS OF A BATCH]`: one thread, values of 100 bytes, keys
//! of 8 bytes in random order, pages of 16 KiB. Each read is a transaction with its lock. The backing is in
//! memory, and nothing is evicted. Prints operations per second.

#[path = "../tests/common/mod.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod common;

use std::sync::Arc;

use common::{TABLE, World};
use stillpoint_io::{Clock, RealClock, Rng, SeededRng};
use stillpoint_sync::lock_word::Priority;
use stillpoint_txn::{Discipline, KindKey, KindPart, Mode, Presence};

const PAGE_BYTES: usize = 16 << 10;

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
fn measure(what: &str, count: u64, run: impl FnOnce()) {
    let start = RealClock.monotonic_ns();
    run();
    let seconds = (RealClock.monotonic_ns() - start) as f64 / 1e9;
    println!("{what}: {:.3} M/s ({count} in {seconds:.2} s)", count as f64 / seconds / 1e6);
}

fn asked(key: &[u8]) -> KindKey<'_> {
    KindKey { table: TABLE, key, mode: Mode::Read }
}

fn lock(part: &mut dyn KindPart, key: &[u8]) -> u32 {
    match part.lock(asked(key), &|| true) {
        Ok(Presence::Here(slot)) => slot,
        other => panic!("the pool holds everything: {other:?}"),
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let records: u64 = arguments.next().unwrap_or(1_000_000);
    let batch: usize = arguments.next().unwrap_or(64) as usize;
    let frames = records as usize * 260 / PAGE_BYTES + 64;
    let world = World::new(frames, PAGE_BYTES, 1);
    let mut session = world.session(0);
    measure("insertions", records, || {
        for number in 0..records {
            session.transact(|tx| tx.put(&key(number), Some(&[7; 100]))).expect("commits");
        }
        world.logs.lock().records = Vec::new();
    });
    let (rng, mut out) = (SeededRng::new(2), Vec::new());
    let mut part = stillpoint_txn::TableKind::new_part(Arc::clone(&world.kind));
    measure("point reads, one at a time", records, || {
        for _ in 0..records {
            part.begin(Priority::undeclared(1), Discipline::WaitDie);
            let slot = lock(&mut *part, &key(rng.below(records)));
            out.clear();
            assert!(part.value(slot, &mut out).is_some() && out.len() == 100);
            part.release(None);
        }
    });
    measure(&format!("point reads, {batch} declared together"), records, || {
        for _ in 0..records / batch as u64 {
            let keys: Vec<[u8; 8]> = (0..batch).map(|_| key(rng.below(records))).collect();
            let asked: Vec<KindKey<'_>> = keys.iter().map(|key| asked(key)).collect();
            part.begin(Priority::DECLARED, Discipline::Declared);
            assert!(matches!(part.lock_all(&asked, &|| true), Ok(Presence::Here(()))));
            for key in &keys {
                let slot = lock(&mut *part, key);
                out.clear();
                assert!(part.value(slot, &mut out).is_some());
            }
            part.release(None);
        }
    });
    measure("records scanned", records, || {
        let found = session.transact(|tx| tx.range(.., usize::MAX)).expect("reads");
        assert_eq!(found.len() as u64, records);
    });
}
