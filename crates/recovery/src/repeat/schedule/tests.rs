use stillpoint_io::{Rng, SeededRng, in_parallel};
use stillpoint_sync::atomic::AtomicU64;

use super::*;

const RECORDS: usize = 2_000;
const KEYS: u64 = 9;

/// A record: its keys, each once, and whether it writes them.
fn records(seed: u64) -> Vec<Vec<(u64, Mode)>> {
    let rng = SeededRng::new(seed);
    // In every third seed nearly all keys are only read.
    let reads = if seed.is_multiple_of(3) { 20 } else { 3 };
    let mode = || if rng.below(reads) == 0 { Mode::Write } else { Mode::Read };
    let some = |_| {
        let keys = (0..KEYS).filter(|_| rng.below(3) == 0).map(|key| (key << 24, mode()));
        keys.collect()
    };
    (0..RECORDS).map(some).collect()
}

/// Reads all keys of a record, and writes what follows from them and its number.
fn run(number: usize, keys: &[(u64, Mode)], values: &[AtomicU64]) {
    let at = |hash: u64| &values[(hash >> 24) as usize];
    let add = |sum: u64, key: &(u64, Mode)| {
        (sum ^ at(key.0).load(Relaxed)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    };
    let sum = keys.iter().fold(number as u64, add);
    let writes = keys.iter().filter(|key| key.1 == Mode::Write);
    writes.for_each(|key| at(key.0).store(sum ^ key.0, Relaxed));
}

fn values() -> Vec<AtomicU64> {
    (0..KEYS).map(AtomicU64::new).collect()
}

/// Runs all records that the thread can take.
fn work(
    schedule: &Schedule<()>,
    thread: usize,
    records: &[Vec<(u64, Mode)>],
    values: &[AtomicU64],
) {
    let (mut runner, mut waits) = (Runner::new(schedule, thread), vec![Waits::default(); TAKEN]);
    while let Some(taken) = runner.take() {
        let first = taken.start;
        assert!(runner.declare(|index| records[first + index].iter().copied(), &mut waits));
        for (number, waits) in taken.zip(&waits) {
            assert!(runner.wait_for_turn(number, waits));
            run(number, &records[number], values);
            runner.note_ended(number);
        }
    }
}

#[test]
fn records_in_parallel_see_what_they_see_one_by_one() {
    for seed in 0..30 {
        let records = records(seed);
        let expected = values();
        (0..).zip(&records).for_each(|(number, keys)| run(number, keys, &expected));
        let (found, schedule) = (values(), Schedule::<()>::new(RECORDS, 4));
        let jobs = (0..4).map(|thread| {
            let (schedule, records, found) = (&schedule, &records, &found);
            move || work(schedule, thread, records, found)
        });
        in_parallel("records", jobs.collect()).expect("no thread panics");
        let of = |values: &[AtomicU64]| -> Vec<u64> {
            values.iter().map(|value| value.load(Relaxed)).collect()
        };
        assert_eq!(of(&found), of(&expected), "seed {seed}");
    }
}

#[test]
fn a_failure_ends_all_waits() {
    let schedule = Schedule::new(30, 2);
    let (mut first, mut second) = (Runner::new(&schedule, 0), Runner::new(&schedule, 1));
    let mut waits = vec![Waits::default(); TAKEN];
    assert_eq!((first.take(), second.take()), (Some(0..8), Some(8..16)));
    let writes = |_: usize| [(0, Mode::Write)].into_iter();
    assert!(first.declare(writes, &mut waits) && second.declare(writes, &mut waits));
    schedule.fail(0, "failed");
    assert!(!second.wait_for_turn(8, &waits[0]));
    // The records from 16 on are never declared.
    let mut third = Runner::new(&schedule, 1);
    third.taken = 24..30;
    assert!(!third.declare(writes, &mut waits));
    assert!(third.take().is_none() && schedule.result().is_err());
}
