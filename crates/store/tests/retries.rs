//! Tests that undeclared transactions end after a bounded number of runs, whatever the others do.
//! Many keys, or many patches of one key, need no more runs than few.

mod common;

use common::{Random, store_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use stillpoint_io::{Clock, RealClock};
use stillpoint_store::{
    KeySet, Mode, NoLog, Procedure, RUNS_MAX, Slot, Stamp, Store, TableId, Tx, TxError, Worker,
};

const T: TableId = TableId(0);
const KEYS: u64 = 4;

fn worker_of(store: &Arc<Store>) -> Worker {
    Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot")
}

fn key(number: u64) -> [u8; 8] {
    (number % KEYS).to_be_bytes()
}

/// Reads all keys, or adds one to each, while it holds their locks for a while.
struct Holds {
    mode: Mode,
    runs: u32,
}

impl Procedure for Holds {
    fn declare(&mut self, keys: &mut KeySet) {
        (0..KEYS).for_each(|number| {
            keys.push(T, &key(number), self.mode, 8);
        });
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        RealClock.sleep(std::time::Duration::from_micros(50));
        for slot in (0..KEYS as u32).map(Slot) {
            let value = tx.value(slot).and_then(|value| value.u64_at(0)).expect("a number");
            if self.mode == Mode::Write {
                tx.put_slot(slot, &(value + 1).to_le_bytes())?;
            }
        }
        self.runs += 1;
        Ok(())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("a declared transaction commits");
    }
}

/// Declared transactions hold all keys nearly always, and one undeclared writer competes with them.
/// `pick` chooses the writer's key at each step of each run. Returns the number of runs.
fn runs_among(mode: Mode, threads: u64, pick: fn(u64, u64) -> u64) -> Vec<u32> {
    let store = store_of(64 << 20, threads as usize + 1, 1);
    let mut writer = worker_of(&store);
    for number in 0..KEYS {
        writer.transact(|tx| tx.put(T, &key(number), &[0; 8])).expect("memory");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let declared = Arc::new(AtomicU64::new(0));
    let others: Vec<_> = (0..threads)
        .map(|number| {
            let (store, stop, declared) = (store.clone(), stop.clone(), declared.clone());
            let work = move || {
                let mut worker = worker_of(&store);
                let mut holds = Holds { mode, runs: 0 };
                while !stop.load(SeqCst) {
                    worker.execute(std::slice::from_mut(&mut holds));
                }
                declared.fetch_add(u64::from(holds.runs), SeqCst);
            };
            stillpoint_io::spawn(&format!("declared-{number}"), work).expect("a thread")
        })
        .collect();
    let mut runs = Vec::new();
    let mut added = 0;
    for _ in 0..2 {
        let mut run = 0;
        let ended = writer.transact(|tx| {
            run += 1;
            if run > 10 * RUNS_MAX {
                return Err(TxError::abandon("it starves"));
            }
            for step in 0..2 {
                let key = key(pick(u64::from(run), step));
                let value = tx.get(T, &key)?.and_then(|value| value.u64_at(0)).expect("a number");
                tx.put(T, &key, &(value + 1).to_le_bytes())?;
            }
            Ok(())
        });
        ended.expect("it ends");
        added += 2;
        runs.push(run);
    }
    stop.store(true, SeqCst);
    others.into_iter().for_each(|other| other.join().expect("no panic"));
    let mut sum = 0;
    for number in 0..KEYS {
        let read = |tx: &mut Tx<'_>| Ok(tx.get(T, &key(number))?.and_then(|v| v.u64_at(0)));
        sum += writer.transact(read).expect("reads").expect("a number");
    }
    let by_declared = if mode == Mode::Write { declared.load(SeqCst) * KEYS } else { 0 };
    assert_eq!(sum, added + by_declared, "no addition is lost");
    runs
}

#[test]
fn an_undeclared_writer_ends_among_declared_ones() {
    let same = |_, step| step;
    // Each run takes other keys than the one before.
    let drifting = |run, step| run + step * 2;
    for mode in [Mode::Read, Mode::Write] {
        for pick in [same, drifting] {
            let runs = runs_among(mode, 3, pick);
            assert!(runs.iter().all(|&runs| runs <= RUNS_MAX), "{mode:?}: {runs:?}");
        }
    }
}

/// Undeclared transactions compete with each other, and each takes all keys in an order of its own.
#[test]
fn undeclared_writers_end_among_each_other() {
    let store = store_of(64 << 20, 3, 1);
    let works = (0..3u64).map(|number| {
        let store = store.clone();
        let work = move || {
            let mut worker = worker_of(&store);
            let mut random = Random::new(number);
            let mut most = 0;
            for _ in 0..300 {
                let mut run = 0;
                let first = random.next();
                let ended = worker.transact(|tx| {
                    run += 1;
                    for step in 0..KEYS {
                        // The order goes up or down, from any key, and differs in each run.
                        let at = first.wrapping_add(u64::from(run));
                        let at = if at.is_multiple_of(2) { at + step } else { at + KEYS - step };
                        let value = tx.get(T, &key(at))?.and_then(|value| value.u64_at(0));
                        std::thread::yield_now();
                        tx.put(T, &key(at), &(value.unwrap_or(0) + 1).to_le_bytes())?;
                    }
                    Ok(())
                });
                ended.expect("it ends");
                most = most.max(run);
            }
            most
        };
        stillpoint_io::spawn(&format!("writer-{number}"), work).expect("a thread")
    });
    let works: Vec<_> = works.collect();
    for work in works {
        let most = work.join().expect("no panic");
        assert!(most <= RUNS_MAX, "{most} runs");
    }
    let mut worker = worker_of(&store);
    for number in 0..KEYS {
        let read = |tx: &mut Tx<'_>| Ok(tx.get(T, &key(number))?.and_then(|v| v.u64_at(0)));
        assert_eq!(worker.transact(read).expect("reads"), Some(900));
    }
}

/// So many keys that a linear search would take too long, each looked up repeatedly.
#[test]
fn a_transaction_finds_its_keys_among_many() {
    const MANY: u64 = 40_000;
    let store = store_of(256 << 20, 1, 1);
    let mut worker = worker_of(&store);
    let ended = worker.transact(|tx| {
        for round in 0..2u64 {
            for number in 0..MANY {
                let slot = tx.key(T, &number.to_le_bytes(), Mode::Write)?;
                assert_eq!(slot, Slot(number as u32), "the same key has the same slot");
                let seen = tx.value(slot).and_then(|value| value.u64_at(0));
                assert_eq!(seen, (round > 0).then_some(number));
                tx.put_slot(slot, &number.to_le_bytes())?;
            }
        }
        Ok(())
    });
    ended.expect("memory");
    assert_eq!(store.record_count(T), MANY);
}

/// The same keys declared several times, in different orders and modes.
struct Repeats(Vec<(u64, Mode)>);

impl Procedure for Repeats {
    fn declare(&mut self, keys: &mut KeySet) {
        for (number, mode) in &self.0 {
            keys.push(T, &number.to_le_bytes(), *mode, 8);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        for (slot, (number, mode)) in (0..).map(Slot).zip(&self.0) {
            if *mode == Mode::Write {
                tx.put_slot(slot, &number.to_le_bytes())?;
            }
        }
        for (slot, (number, _)) in (0..).map(Slot).zip(&self.0) {
            assert_eq!(tx.value(slot).and_then(|value| value.u64_at(0)), Some(*number));
        }
        Ok(())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("commits");
    }
}

#[test]
fn keys_declared_many_times_are_one_record_each() {
    const MANY: u64 = 20_000;
    let store = store_of(256 << 20, 1, 1);
    let mut worker = worker_of(&store);
    let write = |number| (number, Mode::Write);
    let read = |number| (number, Mode::Read);
    let keys = (0..MANY).map(read).chain((0..MANY).rev().map(write)).chain((0..MANY).map(read));
    worker.execute(&mut [Repeats(keys.collect())][..]);
    assert_eq!(store.record_count(T), MANY);
}

/// So many patches and appends of two keys in turn that a walk along their chains would take too
/// long.
#[test]
fn a_value_is_patched_many_times() {
    const TIMES: usize = 60_000;
    let store = store_of(256 << 20, 1, 1);
    let mut worker = worker_of(&store);
    let mut random = Random::new(1);
    let mut expected = [vec![1; 1500], vec![2; 100_000], Vec::new(), Vec::new()];
    for (number, value) in (0u64..2).zip(&expected) {
        worker.transact(|tx| tx.put(T, &key(number), value)).expect("memory");
    }
    let ended = worker.transact(|tx| {
        tx.put(T, &key(2), &[])?;
        tx.put(T, &key(3), &[])?;
        for time in 0..TIMES {
            let number = time % 4;
            let value = &mut expected[number];
            let offset = match number {
                0 | 1 => random.below(value.len() - 2),
                _ => value.len(),
            };
            value.resize(value.len().max(offset + 2), 0);
            let bytes = random.bytes(2);
            value[offset..offset + 2].copy_from_slice(&bytes);
            tx.patch(T, &key(number as u64), offset, &bytes)?;
        }
        for (number, value) in (0u64..).zip(&expected) {
            let found = tx.get(T, &key(number))?.expect("a value").to_vec();
            assert!(found == *value, "key {number} before the commit");
        }
        Ok(())
    });
    ended.expect("memory");
    for (number, value) in (0u64..).zip(&expected) {
        let read = |tx: &mut Tx<'_>| Ok(tx.get(T, &key(number))?.map(|found| found.to_vec()));
        let found = worker.transact(read).expect("reads").expect("a value");
        assert!(found == *value, "key {number} after the commit");
    }
}

/// A body that ignores a conflict has seen only a part of its keys, so its run does not commit.
#[test]
fn a_run_that_ignores_a_conflict_does_not_commit() {
    let store = store_of(64 << 20, 2, 1);
    let (locked, runs, ended) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), AtomicBool::new(false));
    let ended = Arc::new(ended);
    let (store_of_older, is_locked) = (store.clone(), locked.clone());
    let (runs_of_younger, has_ended) = (runs.clone(), ended.clone());
    let older = stillpoint_io::spawn("older", move || {
        let put = worker_of(&store_of_older).transact(|tx| {
            tx.put(T, b"contended", b"older")?;
            is_locked.store(true, SeqCst);
            // Waits until the younger transaction has conflicted, and runs again or has ended
            // wrongly.
            while runs_of_younger.load(SeqCst) < 2 && !has_ended.load(SeqCst) {
                std::thread::yield_now();
            }
            Ok(())
        });
        put.expect("the older one does not conflict");
    });
    while !locked.load(SeqCst) {
        std::thread::yield_now();
    }
    let mut worker = worker_of(&store);
    let put = worker.transact(|tx| {
        runs.fetch_add(1, SeqCst);
        tx.put(T, b"own", b"younger")?;
        drop(tx.put(T, b"contended", b"younger"));
        Ok(())
    });
    ended.store(true, SeqCst);
    put.expect("it is tried again until it has no conflict");
    older.expect("a thread").join().expect("no panic");
    for key in [&b"own"[..], b"contended"] {
        let mut found = Vec::new();
        worker.read(T, key, &mut found).expect("a table");
        assert_eq!(found, b"younger", "half of a transaction");
    }
}

/// A conflict that the body invents ends the transaction after the same number of runs as a real
/// one.
#[test]
fn a_body_that_always_makes_up_a_conflict_ends() {
    let store = store_of(64 << 20, 2, 1);
    let mut worker = worker_of(&store);
    let mut runs = 0;
    let ended = worker.transact(|tx| -> Result<(), TxError> {
        runs += 1;
        assert!(runs <= RUNS_MAX, "it runs for ever");
        tx.put(T, b"key", b"value")?;
        Err(TxError::Conflict)
    });
    assert!(matches!(ended, Err(TxError::Conflict)), "{ended:?}");
    assert_eq!(runs, RUNS_MAX);
    // The permit was released.
    worker.transact(|tx| tx.put(T, b"key", b"value")).expect("commits");
}

/// Writes one key, and keeps its result.
#[derive(Default)]
struct Once(Option<Result<(), TxError>>);

impl Procedure for Once {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(T, &key(0), Mode::Write, 8);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        tx.put_slot(Slot(0), &[1; 8])
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.0 = Some(result.map(drop));
    }
}

/// An event loop has other clients: it does not wait for the holder of the store's permit.
#[test]
fn a_thread_that_leaves_held_locks_alone_leaves_the_permit_alone() {
    const LONG_NS: u64 = 5_000_000_000;
    let store = store_of(64 << 20, 1, 1);
    let mut worker = worker_of(&store);
    worker.leave_held(true);
    let held = store.hold_transactions(&|| false).expect("nobody has it");
    let mut two = [Once::default(), Once::default()];
    let is_back = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            worker.execute(&mut two[..]);
            is_back.store(true, SeqCst);
        });
        let start_ns = RealClock.monotonic_ns();
        while !is_back.load(SeqCst) && RealClock.monotonic_ns() - start_ns < LONG_NS {
            std::thread::yield_now();
        }
        drop(held);
    });
    for Once(result) in &two {
        assert!(matches!(result, Some(Err(TxError::Held))), "{result:?}");
    }
    worker.execute(&mut two[..]);
    assert!(two.iter().all(|once| matches!(once.0, Some(Ok(())))));
}
