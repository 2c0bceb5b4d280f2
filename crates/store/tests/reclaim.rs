//! Tests that cells of keys without a value are freed as fast as they are made, counted in cells
//! and bytes held.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use common::{CheckingLog, env_or, store_of};
use parking_lot::Mutex;
use stillpoint_io::{Clock, RealClock};
use stillpoint_store::{
    Capture, Commit, CommitLog, DeletedKey, KeptValue, KeySet, Lane, LogRefused, Mode, NoLog,
    Procedure, RecordImage, Replaced, Slot, Stamp, Store, TableId, Tx, TxError, Worker,
};
use stillpoint_sync::GracePeriod;

const T: TableId = TableId(0);
const U: TableId = TableId(1);
/// More calls than any round inside of the store needs.
const BATCH: u64 = 1_000;

type Step = fn(&mut Tx<'_>, Slot) -> Result<(), TxError>;

/// One transaction that reads, writes or deletes a run of keys.
struct Many {
    keys: std::ops::Range<u64>,
    mode: Mode,
    step: Step,
    result: Option<Result<Option<Stamp>, TxError>>,
}

impl Procedure for Many {
    fn declare(&mut self, keys: &mut KeySet) {
        for key in self.keys.clone() {
            keys.push(T, &key.to_be_bytes(), self.mode, 100);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let slots = (self.keys.end - self.keys.start) as u32;
        (0..slots).try_for_each(|slot| (self.step)(tx, Slot(slot)))
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.result = Some(result);
    }
}

fn run(worker: &mut Worker, keys: std::ops::Range<u64>, mode: Mode, step: Step) {
    let mut many = Many { keys, mode, step, result: None };
    worker.execute(std::slice::from_mut(&mut many));
    many.result.expect("it ran").expect("memory");
}

fn read_missing(worker: &mut Worker, first: u64) {
    run(worker, first..first + BATCH, Mode::Read, |tx, slot| {
        assert!(tx.value(slot).is_none());
        Ok(())
    });
}

fn put(worker: &mut Worker, first: u64) {
    run(worker, first..first + BATCH, Mode::Write, |tx, slot| tx.put_slot(slot, &[7; 100]));
}

fn delete(worker: &mut Worker, first: u64) {
    run(worker, first..first + BATCH, Mode::Write, |tx, slot| {
        assert!(tx.delete_slot(slot)?);
        Ok(())
    });
}

fn worker_of(store: &Arc<Store>, number: u8, closed: &Arc<AtomicU64>) -> Worker {
    let log = CheckingLog::new(number, &Arc::default(), closed);
    Worker::new(store.clone(), log).expect("a free slot")
}

#[test]
fn missing_keys_leave_no_cells() {
    let store = store_of(64 << 20, 4, 1);
    // `closed` stays 0: no commit of this test is ever closed. The cells of missing keys are
    // reclaimed all the same.
    let closed = Arc::new(AtomicU64::new(0));
    let mut worker = worker_of(&store, 0, &closed);
    let mut other = worker_of(&store, 1, &closed);
    // A deletion that is not closed waits, and nothing waits behind it.
    worker.transact(|tx| tx.put(T, b"gone", b"value")).expect("memory");
    worker.transact(|tx| tx.delete(T, b"gone")).expect("a deletion");
    for round in 0..env_or("STORE_TEST_ROUNDS", 200) {
        for reader in [&mut worker, &mut other] {
            read_missing(reader, round * BATCH);
            assert_eq!(store.cell_count(T), 1, "round {round}");
        }
    }
    assert!(store.held_bytes() < 8 << 20, "{}", store.held_bytes());
    assert_eq!(store.record_count(T), 0);
}

/// Two transactions share the lock of a missing key. The last release removes the cell.
#[test]
fn the_last_sharer_of_a_missing_key_takes_its_cell_along() {
    let store = store_of(64 << 20, 4, 1);
    let closed = Arc::new(AtomicU64::new(0));
    let (mut first, mut second) = (worker_of(&store, 0, &closed), worker_of(&store, 1, &closed));
    let read = first.transact(|tx| {
        assert!(tx.get(T, b"missing")?.is_none());
        second.transact(|tx| Ok(tx.get(T, b"missing")?.is_some()))?;
        assert_eq!(store.cell_count(T), 1, "the first still has its lock");
        Ok(())
    });
    read.expect("no conflict");
    assert_eq!(store.cell_count(T), 0);
}

/// A queue: a batch enters, the oldest batch leaves, and closing lags behind.
#[test]
fn queues_that_come_and_go_keep_their_size() {
    const ROUNDS_HELD: u64 = 10;
    for lag in [0, 3] {
        let store = store_of(32 << 20, 4, 1);
        let closed = Arc::new(AtomicU64::new(0));
        let mut worker = worker_of(&store, 0, &closed);
        for round in 0..env_or("STORE_TEST_ROUNDS", 200) {
            put(&mut worker, round * BATCH);
            if round >= ROUNDS_HELD {
                delete(&mut worker, (round - ROUNDS_HELD) * BATCH);
            }
            // Each round has two commits at most.
            closed.store((2 * round).saturating_sub(2 * lag), SeqCst);
            let waiting = store.cell_count(T) - store.record_count(T);
            assert!(waiting <= (lag + ROUNDS_HELD) * BATCH, "round {round}: {waiting} absent");
        }
        assert_eq!(store.record_count(T), ROUNDS_HELD * BATCH);
        assert!(store.held_bytes() <= 10 << 20, "{}", store.held_bytes());
    }
}

/// A log that counts the grace periods that pass while a worker asks which deletions are closed.
struct Watching {
    store: Arc<Store>,
    log: NoLog,
    is_closed: Arc<AtomicBool>,
    grace: Mutex<GracePeriod>,
    passed: Arc<AtomicU64>,
}

impl CommitLog for Watching {
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused> {
        // No worker reclaims a cell that a log wrote before its deletion is closed.
        Ok(Stamp::new(self.log.append(commit)?.gsn(), 0))
    }
    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        Ok(())
    }
    fn is_closed(&self, _: Stamp) -> bool {
        let (read_sections, mut grace) = (self.store.driver().read_sections(), self.grace.lock());
        if read_sections.has_passed(&mut grace) {
            *grace = read_sections.token();
            self.passed.fetch_add(1, SeqCst);
        }
        self.is_closed.load(SeqCst)
    }
}

/// A worker has many deleted keys to reclaim at once. Whoever waits for a grace period meanwhile need not
/// wait for all of them.
#[test]
fn an_idle_worker_reclaims_in_short_read_sections() {
    let store = store_of(1 << 30, 2, 7);
    let (is_closed, passed) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let log = Watching {
        store: store.clone(),
        log: NoLog::default(),
        is_closed: is_closed.clone(),
        grace: Mutex::new(store.driver().read_sections().token()),
        passed: passed.clone(),
    };
    let mut worker = Worker::new(store.clone(), Box::new(log)).expect("a free slot");
    for first in (0..10 * BATCH).step_by(BATCH as usize) {
        put(&mut worker, first);
    }
    run(&mut worker, 0..10 * BATCH, Mode::Write, |tx, slot| tx.delete_slot(slot).map(|_| ()));
    is_closed.store(true, SeqCst);
    let (cells, before) = (store.cell_count(T), passed.load(SeqCst));
    worker.idle();
    let (reclaimed, sections) = (cells - store.cell_count(T), passed.load(SeqCst) - before);
    assert!(reclaimed > 4_000, "{reclaimed} cells");
    assert!(sections > reclaimed / 600, "{sections} read sections, {reclaimed} cells");
}

/// Deletions of a session that went idle or ended are reclaimed once they are closed.
#[test]
fn sessions_that_go_idle_or_end_leave_nothing() {
    let store = store_of(64 << 20, 8, 1);
    let closed = Arc::new(AtomicU64::new(0));
    let mut workers: Vec<Worker> = (0..4).map(|n| worker_of(&store, n, &closed)).collect();
    for (at, worker) in workers.iter_mut().enumerate() {
        let first = at as u64 * 10 * BATCH;
        for from in (first..first + 10 * BATCH).step_by(BATCH as usize) {
            put(worker, from);
            delete(worker, from);
        }
    }
    assert_eq!(store.cell_count(T), 4 * 10 * BATCH, "nothing is closed yet");
    // Two sessions end, two go idle.
    workers.truncate(2);
    closed.store(u64::MAX, SeqCst);
    for _ in 0..8 {
        workers.iter_mut().for_each(|worker| _ = worker.idle());
    }
    assert_eq!(store.cell_count(T), 0);
}

/// Memory of deleted records serves records and values of any other size.
#[test]
fn deleted_records_make_room_for_any_size() {
    let store = store_of(32 << 20, 2, 1);
    let closed = Arc::new(AtomicU64::new(u64::MAX));
    let mut worker = worker_of(&store, 0, &closed);
    for len in [100, 1_000, 30, 40_000, 300_000, 2_000] {
        let value = vec![7; len];
        let full = (0..1_000_000u64).find(|key| {
            let put = worker.transact(|tx| tx.put(T, &key.to_be_bytes(), &value));
            matches!(put, Err(TxError::Memory(_)))
        });
        let full = full.expect("the limit was never reached");
        assert!(full as usize * (len + 32) > 12 << 20, "only {full} records of {len} bytes fit");
        for key in 0..full {
            assert!(worker.transact(|tx| tx.delete(T, &key.to_be_bytes())).expect("a deletion"));
        }
        // An event loop makes this call ten times a second.
        worker.idle();
        worker.idle();
        assert_eq!(store.cell_count(T), 0);
    }
    for _ in 0..2_000 {
        store.maintain();
    }
    // Indexes do not shrink, so the index of a third of a million records stays.
    assert!(store.held_bytes() < 12 << 20, "{} of an empty store", store.held_bytes());
}

/// A sink that keeps the large values of a scan.
struct Keeper {
    slot: usize,
    kept: Vec<KeptValue>,
}

impl Capture for Keeper {
    fn slot(&self) -> usize {
        self.slot
    }
    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane)) {
        with(self);
    }
    fn pause(&mut self) {}
    fn is_abandoned(&self) -> bool {
        false
    }
}

impl Lane for Keeper {
    fn emit(&mut self, record: &RecordImage<'_>) {
        self.kept.extend(record.keep_large());
    }
    fn emit_deletion(&mut self, _: &DeletedKey<'_>) {}
    fn take_back(&mut self) {}
}

/// A large value that a checkpoint keeps by reference outlives its table. Memory of other tables is
/// freed meanwhile.
#[test]
fn a_kept_value_outlives_its_table() {
    const LEN: usize = 1 << 20;
    let store = store_of(32 << 20, 2, 1);
    let closed = Arc::new(AtomicU64::new(u64::MAX));
    let mut worker = worker_of(&store, 0, &closed);
    worker.transact(|tx| tx.put(T, b"kept", &vec![7; LEN])).expect("memory");
    let slot = store.driver().read_sections().claim().expect("a free slot");
    let mut keeper = Keeper { slot, kept: Vec::new() };
    let quiesced = store.driver().quiesce();
    for slab in 0..store.group_count() {
        store.scan_wanted(slab, &mut keeper, &mut |cell| cell.take_value());
    }
    let new = [T, U].map(|id| store.new_table(id, 2).expect("address space"));
    store.replace_tables(&quiesced, new.into(), Replaced::Captured);
    drop(quiesced);
    for _ in 0..3 {
        store.maintain();
    }
    assert_eq!(store.generations_held(), 3, "the table of the kept value, and the new ones");
    assert!(store.memory_returns());
    // All free memory is overwritten.
    for key in 0..100u64 {
        let _ = worker.transact(|tx| tx.put(U, &key.to_be_bytes(), &vec![9; LEN]));
    }
    let kept = keeper.kept.pop().expect("the large value");
    let mut bytes = vec![0; LEN];
    store.read_kept(&kept, 0, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 7), "the kept value was written over");
    store.release_kept(kept);
    store.maintain();
    assert_eq!(store.generations_held(), 2);
    assert!(!store.memory_returns());
}

/// A large value that is written again and again needs room for a few copies, not for 64.
#[test]
fn replaced_large_values_are_freed_by_their_bytes() {
    let store = store_of(64 << 20, 2, 1);
    let closed = Arc::new(AtomicU64::new(0));
    let mut worker = worker_of(&store, 0, &closed);
    for round in 0..30u8 {
        let value = vec![round; 10 << 20];
        let put = worker.transact(|tx| tx.put(T, b"key", &value));
        put.unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}

/// Writes values of this length under the keys, and reads them all.
fn fill(worker: &mut Worker, keys: std::ops::Range<u64>, len: usize) {
    for key in keys.clone() {
        let value = vec![key as u8; len];
        let put = worker.transact(|tx| tx.put(T, &key.to_be_bytes(), &value));
        put.unwrap_or_else(|error| panic!("{len} bytes, key {key}: {error}"));
        // Between its requests a worker is idle for a moment.
        if key.is_multiple_of(1_000) {
            worker.idle();
        }
    }
    let mut read = Vec::new();
    for key in keys {
        read.clear();
        worker.read(T, &key.to_be_bytes(), &mut read).expect("the table");
        assert!(read.len() == len && read.iter().all(|&byte| byte == key as u8), "key {key}");
    }
}

/// Values that grow bit by bit take the memory of values that were put once.
#[test]
fn growing_values_take_cells_of_their_size() {
    let store = store_of(48 << 20, 2, 1);
    let closed = Arc::new(AtomicU64::new(u64::MAX));
    let mut worker = worker_of(&store, 0, &closed);
    for len in (20..1_800).step_by(60) {
        fill(&mut worker, 0..8_000, len);
    }
}

/// The memory of values that shrink serves other keys.
#[test]
fn shrunk_values_give_memory_back() {
    let store = store_of(64 << 20, 2, 1);
    let closed = Arc::new(AtomicU64::new(u64::MAX));
    let mut worker = worker_of(&store, 0, &closed);
    for len in [1_900, 800, 300, 100] {
        fill(&mut worker, 0..20_000, len);
    }
    fill(&mut worker, 20_000..60_000, 800);
}

/// A long key in a cell whose class has spare bytes keeps its cell when its short value is overwritten.
#[test]
fn no_cell_of_the_same_size_replaces_a_cell() {
    let store = store_of(64 << 20, 2, 1);
    let closed = Arc::new(AtomicU64::new(u64::MAX));
    let mut worker = worker_of(&store, 0, &closed);
    let key = [b'k'; 1_000];
    let mut put = |len: usize| {
        worker.transact(|tx| tx.put(T, &key, &vec![1; len])).expect("memory");
        !worker.idle()
    };
    for len in [60, 60, 8, 60] {
        assert!(put(len), "{len} bytes: a cell waits to be freed");
    }
    put(1_500);
    assert!(!put(60), "a smaller cell replaces a larger one");
}

/// Writes two keys, and notes the old value of the second.
struct Two {
    keys: [&'static [u8]; 2],
    begun: Arc<AtomicBool>,
    seen: Option<Vec<u8>>,
}

impl Procedure for Two {
    fn declare(&mut self, keys: &mut KeySet) {
        for key in self.keys {
            keys.push(T, key, Mode::Write, 8);
        }
        self.begun.store(true, SeqCst);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.seen = tx.value(Slot(1)).map(|value| value.to_vec());
        (0..2).try_for_each(|slot| tx.put_slot(Slot(slot), b"both"))
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("a declared transaction commits");
    }
}

/// A transaction waits for the lock of `held`. Meanwhile `moved` is deleted, and another key gets
/// its cell. Returns false if the transaction had locked `moved` before it waited, since locks are
/// taken in the order of cells.
fn waits_while_a_cell_moves(held: &'static [u8], moved: &'static [u8]) -> bool {
    const OTHERS: u32 = 300;
    let store = store_of(64 << 20, 8, 1);
    let worker = || Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot");
    let (mut holder, mut other, mut waiter) = (worker(), worker(), worker());
    for key in [b"one", b"two"] {
        holder.transact(|tx| tx.put(T, key, b"old!")).expect("memory");
    }
    let begun = Arc::new(AtomicBool::new(false));
    let mut two = Two { keys: [held, moved], begun: begun.clone(), seen: None };
    let wait = move || {
        waiter.execute(std::slice::from_mut(&mut two));
        two.seen
    };
    let mut wait = Some(wait);
    let mut waiting = None;
    let has_moved = holder.transact(|tx| {
        tx.put(T, held, b"held")?;
        let wait = wait.take().expect("nobody is in the way of the first run");
        waiting = Some(stillpoint_io::spawn("waiter", wait).expect("a thread"));
        while !begun.load(SeqCst) {
            std::thread::yield_now();
        }
        // The waiting transaction tries for a moment, and then leaves its read section.
        RealClock.sleep(Duration::from_millis(50));
        let mut runs = 0;
        let deleted = other.transact(|tx| {
            runs += 1;
            if runs > 3 {
                return Err(TxError::abandon("the waiter has the lock"));
            }
            tx.delete(T, moved)
        });
        if deleted.is_err() {
            return Ok(false);
        }
        // The deleted record is reclaimed, and the next keys get its memory.
        while other.idle() {
            std::thread::yield_now();
        }
        assert_eq!(store.cell_count(T), 1, "the cell was not reclaimed: the test shows nothing");
        for number in 0..OTHERS {
            let key = number.to_be_bytes();
            other.transact(|tx| tx.put(T, &key, &key)).expect("memory");
        }
        Ok(true)
    });
    let has_moved = has_moved.expect("it commits");
    let seen = waiting.expect("it was begun").join().expect("no panic");
    if has_moved {
        assert_eq!(seen, None, "the key was deleted before");
    }
    let mut value = |key: &[u8]| {
        let read = |tx: &mut Tx<'_>| Ok(tx.get(T, key)?.map(|value| value.to_vec()));
        holder.transact(read).expect("reads")
    };
    for key in [b"one", b"two"] {
        assert_eq!(value(key).as_deref(), Some(&b"both"[..]));
    }
    for number in (0..OTHERS).filter(|_| has_moved) {
        let key = number.to_be_bytes();
        assert_eq!(value(&key).as_deref(), Some(&key[..]), "another key's record was written");
    }
    has_moved
}

#[test]
fn a_cell_that_went_to_another_key_during_a_wait_is_not_taken_for_the_old_one() {
    let moved = [(&b"one"[..], &b"two"[..]), (b"two", b"one")]
        .map(|(held, moved)| waits_while_a_cell_moves(held, moved));
    assert!(moved.contains(&true), "one of the two has the lower cell");
}
