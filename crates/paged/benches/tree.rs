//! Point reads, declared batches of reads, insertions, updates, scans, sorted loads and replay of a
//! paged table that fits its pool.
//!
//! `cargo bench -p stillpoint-paged -- [RECORDS] [KEYS OF A BATCH]`: one thread, values of 100 bytes, keys
//! of 8 bytes in random order, pages of 16 KiB. Reads are without a lock, or each is a transaction with
//! its lock. The backing is in memory, and nothing is evicted. Prints operations per second.

#[path = "../tests/common/mod.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod common;

use std::ops::Bound;
use std::sync::Arc;

use common::{Logged, TABLE, World};
use stillpoint_io::{Clock, RealClock, Rng, SeededRng, in_parallel};
use stillpoint_sync::lock_word::Priority;
use stillpoint_txn::{
    Discipline, KeyList, KindKey, KindPart, KindRange, Lane, Mode, Presence, RangeBatch, TableKind,
};

const PAGE_BYTES: usize = 16 << 10;
/// Scans of the whole table.
const SCANS: u64 = 5;
/// Records of a load that are given together.
const LOADED: u64 = 10_000;
/// Records that a start asks for ahead of their replay.
const AHEAD: usize = 64;

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

/// Repeats the records of insertions and updates on empty pages, in one lane and in two.
fn measure_replay(frames: usize, records: u64) {
    let world = World::new(frames, PAGE_BYTES, 1);
    let mut session = world.session(0);
    for number in 0..2 * records {
        let key = key(number % records);
        session.transact(|tx| tx.put(&key, Some(&[(number / records) as u8; 100]))).expect("room");
    }
    let logs = world.logs.lock();
    for lanes in [1, 2] {
        measure_lanes(frames, &logs.records, lanes);
    }
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
fn measure_lanes(frames: usize, records: &[Logged], lanes: usize) {
    let after = World::new(frames, PAGE_BYTES, 1);
    let start = RealClock.monotonic_ns();
    let replay = |lane: Lane| {
        let kind = &after.kind;
        move || {
            for (number, record) in records.iter().enumerate() {
                // As a start does.
                if let Some(later) = records.get(number + AHEAD) {
                    kind.ask_for_redo(later.table, &later.body, lane);
                }
                let place = (record.table, record.stamp);
                kind.redo_in(place, &record.body, lane).expect("it fits");
            }
        }
    };
    in_parallel("lane", Lane::all(lanes).map(replay).collect()).expect("no panic");
    let seconds = (RealClock.monotonic_ns() - start) as f64 / 1e9;
    let (count, bytes) = (records.len(), records.iter().map(|record| record.body.len()));
    let (rate, per_s) = (count as f64 / seconds / 1e6, bytes.sum::<usize>() as f64 / seconds / 1e6);
    println!(
        "records replayed in {lanes} lanes: {rate:.3} M/s, {per_s:.0} MB/s of bodies ({count} in {seconds:.2} s)"
    );
}

/// Scans the table some times.
fn measure_scan(part: &mut dyn KindPart, records: u64) {
    measure("records scanned", SCANS * records, || {
        for _ in 0..SCANS {
            part.begin(Priority::undeclared(1), Discipline::WaitDie);
            let (mut batch, mut lower, mut found) = (RangeBatch::default(), Vec::new(), 0);
            while !batch.is_end {
                let (from, upper) = (Bound::Included(&lower[..]), Bound::Unbounded);
                let range = KindRange { table: TABLE, lower: from, upper, is_descending: false };
                let read = part.range(&range, &|| true, &mut batch);
                assert!(matches!(read, Ok(Presence::Here(()))));
                for number in 0..batch.len() {
                    found += u64::from(batch.record(number).2[0] == 7);
                }
                lower.clone_from(&batch.next);
            }
            assert_eq!(found, records);
            part.release(None);
        }
    });
}

/// Loads ascending keys into an empty table, after the ordinary puts of a first leaf.
fn measure_load(frames: usize, records: u64) {
    let world = World::new(frames, PAGE_BYTES, 1);
    let mut session = world.session(0);
    session.log.is_checked = false;
    let first = PAGE_BYTES as u64 / 64;
    for number in 0..first {
        session.transact(|tx| tx.put(&number.to_be_bytes(), Some(&[7; 100]))).expect("commits");
    }
    let mut batch = RangeBatch::default();
    measure("records of a sorted load", records, || {
        let mut next = first;
        while next < records + first {
            batch.clear();
            for number in next..(next + LOADED).min(records + first) {
                let (key, value) = batch.push(0, 8, 100);
                key.copy_from_slice(&number.to_be_bytes());
                value.fill(7);
            }
            let appended = world.kind.append_sorted(TABLE, (&batch, 0), &mut session.log);
            assert_eq!(appended.expect("room"), batch.len());
            session.log.done.clear();
            next += batch.len() as u64;
        }
    });
    assert_eq!(world.kind.record_count(TABLE), records + first);
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let records: u64 = arguments.next().unwrap_or(1_000_000);
    let batch: usize = arguments.next().unwrap_or(64) as usize;
    let frames = records as usize * 260 / PAGE_BYTES + 64;
    let world = World::new(frames, PAGE_BYTES, 1);
    let mut session = world.session(0);
    session.log.is_checked = false;
    measure("insertions", records, || {
        for number in 0..records {
            session.transact(|tx| tx.put(&key(number), Some(&[7; 100]))).expect("commits");
        }
    });
    let (rng, mut out) = (SeededRng::new(2), Vec::new());
    let mut part = Arc::clone(&world.kind).new_part();
    measure("point reads without a lock", records, || {
        for _ in 0..records {
            out.clear();
            let read = world.kind.read(TABLE, &key(rng.below(records)), &mut out);
            assert!(matches!(read, Ok(Presence::Here(Some(_)))) && out.len() == 100);
        }
    });
    measure("point reads, each a transaction", records, || {
        for _ in 0..records {
            part.begin(Priority::undeclared(1), Discipline::WaitDie);
            let slot = lock(&mut *part, &key(rng.below(records)));
            out.clear();
            assert!(part.value(slot, &mut out).is_some() && out.len() == 100);
            part.release(None);
        }
    });
    measure("updates of eight bytes", records, || {
        for number in 0..records {
            let mut value = [7; 100];
            value[40..48].copy_from_slice(&number.to_le_bytes());
            let key = key(rng.below(records));
            session.transact(|tx| tx.put(&key, Some(&value))).expect("commits");
        }
    });
    let (mut keys, mut slots) = (KeyList::default(), Vec::new());
    measure(&format!("point reads, {batch} declared together"), records, || {
        for _ in 0..records / batch as u64 {
            keys.clear();
            (0..batch).for_each(|_| keys.push(asked(&key(rng.below(records)))));
            part.begin(Priority::DECLARED, Discipline::Declared);
            let locked = part.lock_all(&keys, &|| true, &mut slots);
            assert!(matches!(locked, Ok(Presence::Here(()))));
            for &slot in &slots {
                out.clear();
                assert!(part.value(slot, &mut out).is_some());
            }
            part.release(None);
        }
    });
    measure_scan(&mut *part, records);
    drop(part);
    measure_load(frames, records);
    measure_replay(frames, records.min(500_000));
}
