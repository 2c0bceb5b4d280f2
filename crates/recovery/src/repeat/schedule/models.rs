//! Random schedules of threads that replay records, under shuttle. Each record reads what it has read
//! in the order of gsns, whichever threads run the records.

use shuttle::sync::Arc;
use shuttle::thread;
use stillpoint_sync::atomic::AtomicU64;

use super::*;

const SCHEDULES: usize = 5_000;
const KEYS: usize = 4;

use Mode::{Read, Write};

type Record = &'static [(u64, Mode)];

/// The hash of a key: entries lie at the bits from 24 on. Key 2 shares the entry of key 0.
const fn hash(key: u64) -> u64 {
    match key {
        2 => 4 << 24,
        other => other << 24,
    }
}

fn key_of(hash: u64) -> usize {
    match hash >> 24 {
        4 => 2,
        key => key as usize,
    }
}

/// Two calls that conflict, readers between two writers, and blind writers, which read nothing.
const RECORDS: [(Record, bool); 8] = [
    (&[(hash(0), Write), (hash(1), Read)], true),
    (&[(hash(0), Read), (hash(1), Write)], true),
    (&[(hash(1), Read), (hash(3), Write)], true),
    (&[(hash(1), Read), (hash(2), Write)], true),
    (&[(hash(1), Write)], false),
    (&[(hash(0), Write), (hash(2), Read)], true),
    (&[(hash(1), Read), (hash(0), Read), (hash(2), Write)], true),
    (&[(hash(0), Write), (hash(1), Write)], false),
];

/// What a record leaves: a sum over what it reads, in its number and in the keys that it writes.
fn run(number: usize, values: &[AtomicU64], seen: &[AtomicU64]) {
    let (keys, reads) = RECORDS[number];
    let mut sum = number as u64 + 1;
    for &(hash, _) in keys.iter().filter(|_| reads) {
        // Relaxed: the schedule orders the records.
        sum = (sum ^ values[key_of(hash)].load(Relaxed)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    seen[number].store(sum, Relaxed);
    for &(hash, _) in keys.iter().filter(|key| key.1 == Write) {
        values[key_of(hash)].store(sum ^ hash, Relaxed);
    }
}

fn zeros(count: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..count).map(|_| AtomicU64::new(0)).collect())
}

fn all(of: &[AtomicU64]) -> Vec<u64> {
    of.iter().map(|value| value.load(Relaxed)).collect()
}

/// The records are replayed in two stretches, between which a table is emptied.
fn replay(threads: usize, barrier: usize) {
    let (expected, expected_seen) = (zeros(KEYS), zeros(RECORDS.len()));
    let (found, seen) = (zeros(KEYS), zeros(RECORDS.len()));
    for (from, to) in [(0, barrier), (barrier, RECORDS.len())] {
        (from..to).for_each(|number| run(number, &expected, &expected_seen));
        let schedule = Arc::new(Schedule::<()>::new(to - from, threads));
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                let (schedule, found, seen) = (schedule.clone(), found.clone(), seen.clone());
                thread::spawn(move || {
                    let mut runner = Runner::new(&schedule, thread);
                    let mut waits = vec![Waits::default(); TAKEN];
                    while let Some(taken) = runner.take() {
                        let first = from + taken.start;
                        let keys = |index: usize| RECORDS[first + index].0.iter().copied();
                        assert!(runner.declare(keys, &mut waits));
                        for (number, waits) in taken.zip(&waits) {
                            assert!(runner.wait_for_turn(number, waits));
                            run(from + number, &found, &seen);
                            runner.note_ended(number);
                        }
                    }
                })
            })
            .collect();
        started.into_iter().for_each(|thread| thread.join().expect("no panic"));
        expected[0].store(0, Relaxed);
        found[0].store(0, Relaxed);
    }
    assert_eq!(all(&seen), all(&expected_seen), "a record has read something else");
    assert_eq!(all(&found), all(&expected));
}

#[test]
fn records_read_what_they_have_read() {
    shuttle::check_random(|| replay(2, 5), SCHEDULES);
    shuttle::check_random(|| replay(3, RECORDS.len()), SCHEDULES);
}
