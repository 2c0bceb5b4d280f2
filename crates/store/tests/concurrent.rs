//! Tests with several workers. Sums must not change, values must not tear, and locks must not
//! deadlock. Keys come and go, and tables grow and are flushed.

mod common;

use common::{CheckingLog, Gathered, LogState, Random, env_or, for_seeds, store_of, store_with};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use stillpoint_io::{Clock, RealClock};
use stillpoint_store::{
    CellRules, DeletedKey, KeptValue, KeySet, Lane, Mode, NoLog, Phase, Procedure, RecordImage,
    Replaced, Sink, Slot, Stamp, Store, TableId, Tx, TxError, Worker,
};

const T: TableId = TableId(0);
const U: TableId = TableId(1);

fn worker_of(store: &Arc<Store>) -> Worker {
    Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot")
}

/// Runs the closures on threads of their own. A run that hangs fails with its name.
fn together(works: Vec<Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = works
        .into_iter()
        .enumerate()
        .map(|(at, work)| stillpoint_io::spawn(&format!("test-{at}"), work).expect("a thread"))
        .collect();
    let (clock, start) = (RealClock, RealClock.monotonic_ns());
    while !threads.iter().all(|thread| thread.is_finished()) {
        clock.sleep(std::time::Duration::from_millis(1));
        let seconds = (clock.monotonic_ns() - start) / 1_000_000_000;
        assert!(seconds < 300, "no progress: a deadlock or a livelock");
    }
    for thread in threads {
        if let Err(error) = thread.join() {
            panic!("{error}");
        }
    }
}

/// A declared transaction: keys with modes, and actions on their slots.
struct Declared<F> {
    keys: Vec<(TableId, Vec<u8>, Mode)>,
    body: F,
}

impl<F: FnMut(&mut Tx<'_>) -> Result<(), TxError>> Procedure for Declared<F> {
    fn declare(&mut self, keys: &mut KeySet) {
        for (table, key, mode) in &self.keys {
            keys.push(*table, key, *mode, 8);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        (self.body)(tx)
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("a declared transaction commits");
    }
}

fn account(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn balance(tx: &mut Tx<'_>, slot: Slot) -> u64 {
    let value = tx.value(slot).expect("an account");
    value.u64_at(0).expect("eight bytes")
}

fn transfer(worker: &mut Worker, random: &mut Random, accounts: u64) {
    let from = random.below(accounts as usize) as u64;
    let to = (from + 1 + random.below(accounts as usize - 1) as u64) % accounts;
    let amount = random.below(10) as u64;
    let body = move |tx: &mut Tx<'_>, from: Slot, to: Slot| {
        let (a, b) = (balance(tx, from), balance(tx, to));
        let amount = amount.min(a);
        tx.patch_slot(from, 0, &(a - amount).to_le_bytes())?;
        tx.put_slot(to, &(b + amount).to_le_bytes())
    };
    if random.one_in(2) {
        let keys = [from, to].map(|key| (T, account(key), Mode::Write));
        let keys = keys.to_vec();
        let body = |tx: &mut Tx<'_>| body(tx, Slot(0), Slot(1));
        worker.execute(&mut [Declared { keys, body }][..]);
    } else {
        let ended = worker.transact(|tx| {
            let slot = tx.key(T, &account(from), Mode::Read)?;
            let to = tx.key(T, &account(to), Mode::Write)?;
            std::thread::yield_now();
            // The transaction makes the lock of the first key exclusive later.
            let from = tx.key(T, &account(from), Mode::Write)?;
            assert_eq!(slot, from);
            body(tx, from, to)
        });
        ended.expect("it is tried until it commits");
    }
}

#[test]
fn transfers_keep_the_sum() {
    for_seeds(4, |seed| {
        let accounts = [2, 6, 50, 400][seed as usize % 4];
        let total = accounts * 100;
        let store = store_of(1 << 30, 8, seed);
        let mut worker = worker_of(&store);
        let fill = |tx: &mut Tx<'_>| {
            (0..accounts).try_for_each(|key| tx.put(T, &account(key), &100u64.to_le_bytes()))
        };
        worker.transact(fill).expect("memory");
        let transfers = env_or("STORE_TEST_TRANSACTIONS", 3_000);
        let mut works: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
        let stop = Arc::new(AtomicU64::new(2));
        for number in 0..2 {
            let (store, stop) = (store.clone(), stop.clone());
            works.push(Box::new(move || {
                let mut random = Random::new(seed * 100 + number);
                let mut worker = worker_of(&store);
                for _ in 0..transfers {
                    transfer(&mut worker, &mut random, accounts);
                }
                stop.fetch_sub(1, SeqCst);
            }));
        }
        for declared in [true, false] {
            let (store, stop) = (store.clone(), stop.clone());
            works.push(Box::new(move || {
                let mut worker = worker_of(&store);
                let mut audits = 0;
                while stop.load(SeqCst) > 0 || audits == 0 {
                    audit(&mut worker, accounts, declared, total);
                    audits += 1;
                }
            }));
        }
        together(works);
        audit(&mut worker, accounts, true, total);
    });
}

/// Reads all balances as one transaction.
fn audit(worker: &mut Worker, accounts: u64, declared: bool, total: u64) {
    let mut sum = 0;
    if declared {
        let keys = (0..accounts).map(|key| (T, account(key), Mode::Read));
        let keys = keys.collect();
        let body = |tx: &mut Tx<'_>| {
            sum = (0..accounts as u32).map(|slot| balance(tx, Slot(slot))).sum();
            Ok(())
        };
        worker.execute(&mut [Declared { keys, body }][..]);
    } else {
        let ended = worker.transact(|tx| {
            sum = 0;
            for key in 0..accounts {
                let slot = tx.key(T, &account(key), Mode::Read)?;
                sum += balance(tx, slot);
            }
            Ok(())
        });
        ended.expect("it is tried until it commits");
    }
    assert_eq!(sum, total, "declared: {declared}");
}

#[test]
fn few_keys_and_many_hands_make_progress() {
    for_seeds(3, |seed| {
        let store = store_of(1 << 30, 8, seed);
        let (threads, turns) = (6, env_or("STORE_TEST_TRANSACTIONS", 1_500));
        let keys = 1 + seed;
        let works = (0..threads).map(|number| {
            let store = store.clone();
            Box::new(move || {
                let mut random = Random::new(seed * 100 + number);
                let mut worker = worker_of(&store);
                for _ in 0..turns {
                    let mut order: Vec<u64> = (0..keys).collect();
                    for at in 0..order.len() {
                        let other = at + random.below(order.len() - at);
                        order.swap(at, other);
                    }
                    bump_all(&mut worker, &mut random, &order);
                }
            }) as Box<dyn FnOnce() + Send>
        });
        together(works.collect());
        let mut worker = worker_of(&store);
        for key in 0..keys {
            let found =
                worker.transact(|tx| Ok(tx.get(T, &account(key))?.and_then(|v| v.u64_at(0))));
            let found = found.expect("it commits").expect("it was counted");
            assert_eq!(found, threads * turns);
        }
    });
}

/// Adds one to each key, in the given order, declared or not.
fn bump_all(worker: &mut Worker, random: &mut Random, order: &[u64]) {
    let bump = |tx: &mut Tx<'_>, slot: Slot| {
        let now = tx.value(slot).and_then(|value| value.u64_at(0));
        tx.put_slot(slot, &(now.unwrap_or(0) + 1).to_le_bytes())
    };
    if random.one_in(2) {
        let mut keys: Vec<_> = order.iter().map(|key| (T, account(*key), Mode::Write)).collect();
        // The first key is declared again for reading, so two slots refer to one record.
        keys.push((T, account(order[0]), Mode::Read));
        let count = order.len() as u32;
        let body = |tx: &mut Tx<'_>| (0..count).try_for_each(|slot| bump(tx, Slot(slot)));
        worker.execute(&mut [Declared { keys, body }][..]);
    } else {
        let upgrades = random.one_in(2);
        let yields = random.one_in(2);
        let ended = worker.transact(|tx| {
            for key in order {
                if upgrades {
                    tx.get(T, &account(*key))?;
                }
                let slot = tx.key(T, &account(*key), Mode::Write)?;
                if yields {
                    std::thread::yield_now();
                }
                bump(tx, slot)?;
            }
            Ok(())
        });
        ended.expect("it is tried until it commits");
    }
}

/// A value that shows whether it is whole: its number, and bytes computed from the number.
fn whole(number: u64, len: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    let mut random = Random::new(number);
    value.extend(random.bytes(len));
    value
}

fn check_whole(value: &[u8]) -> u64 {
    let number = u64::from_le_bytes(value[..8].try_into().expect("eight bytes"));
    assert!(value == whole(number, value.len() - 8), "torn");
    number
}

#[test]
fn reads_without_locks_see_whole_values_that_never_go_back() {
    for_seeds(3, |seed| {
        let store = store_of(1 << 30, 8, seed);
        let left = Arc::new(AtomicU64::new(2));
        let turns = env_or("STORE_TEST_TRANSACTIONS", 4_000);
        let mut works: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
        for writer in 0..2u64 {
            let (store, left) = (store.clone(), left.clone());
            works.push(Box::new(move || {
                let mut random = Random::new(seed * 100 + writer);
                let mut worker = worker_of(&store);
                for turn in 1..=turns {
                    // One commit writes both keys of the pair, sometimes by patches.
                    let len = [8, 40, 90, 2_000, 2_100, 70_000][random.below(6)];
                    let value = whole(turn, len);
                    let ended = worker.transact(|tx| {
                        for key in [account(writer), account(writer + 10)] {
                            let slot = tx.key(T, &key, Mode::Write)?;
                            let old = tx.value(slot).map(|old| old.len());
                            match old {
                                Some(old) if old <= value.len() => {
                                    let half = old.min(value.len() / 2);
                                    tx.patch_slot(slot, half, &value[half..])?;
                                    tx.patch_slot(slot, 0, &value[..half])?;
                                }
                                _ => tx.put_slot(slot, &value)?,
                            }
                        }
                        Ok(())
                    });
                    ended.expect("memory");
                }
                left.fetch_sub(1, SeqCst);
            }));
        }
        for reader in 0..2u64 {
            let (store, left) = (store.clone(), left.clone());
            works.push(Box::new(move || {
                let mut worker = worker_of(&store);
                let mut last = 0;
                let mut value = Vec::new();
                while left.load(SeqCst) > 0 {
                    // The reads come one after the other: a reader that saw one half of a commit
                    // must see the other.
                    for key in [account(reader), account(reader + 10)] {
                        value.clear();
                        if worker.read(T, &key, &mut value).expect("a table").is_some() {
                            let number = check_whole(&value);
                            assert!(number >= last, "{number} after {last}");
                            last = number;
                        }
                    }
                }
            }));
        }
        together(works);
        assert!(store.held_bytes() < 128 << 20, "{}", store.held_bytes());
    });
}

#[test]
fn keys_that_come_and_go_never_go_back_and_leave_nothing() {
    for_seeds(3, |seed| {
        let store = store_of(1 << 30, 8, seed);
        let (state, closed) = (Arc::<Mutex<LogState>>::default(), Arc::new(AtomicU64::new(0)));
        let turns = env_or("STORE_TEST_TRANSACTIONS", 5_000);
        let keys = [3, 40, 1000][seed as usize % 3];
        let works = (0..4u8).map(|number| {
            let log = CheckingLog::new(number, &state, &closed);
            let (store, closed) = (store.clone(), closed.clone());
            Box::new(move || {
                let mut random = Random::new(seed * 100 + u64::from(number));
                let mut worker = Worker::new(store, log).expect("a free slot");
                for _ in 0..turns {
                    let key = account(random.below(keys) as u64);
                    let len = [8, 8, 8, 300, 3_000][random.below(5)];
                    let ended = worker.transact_stamped(|tx| match tx.get(T, &key)?.is_some() {
                        true => tx.delete(T, &key).map(|_| ()),
                        false => tx.put(T, &key, &vec![1; len]),
                    });
                    let ((), stamp) = ended.expect("memory");
                    let stamp = stamp.expect("it wrote");
                    let mut value = Vec::new();
                    worker.read(T, &key, &mut value).expect("a table");
                    if random.one_in(50) {
                        closed.fetch_max(stamp.gsn(), SeqCst);
                        worker.idle();
                        std::thread::yield_now();
                    }
                }
                closed.store(u64::MAX, SeqCst);
            }) as Box<dyn FnOnce() + Send>
        });
        // The log checks that the gsns of a key grow.
        together(works.collect());
        let left = state.lock().replica.len() as u64;
        assert_eq!(store.record_count(T), left);
        let log = CheckingLog::new(9, &state, &closed);
        let mut worker = Worker::new(store.clone(), log).expect("a free slot");
        for _ in 0..2 * keys {
            worker.idle();
        }
        assert_eq!(
            store.cell_count(T),
            left,
            "absent cells of workers that are gone are reclaimed"
        );
        assert!(store.held_bytes() < 64 << 20, "{}", store.held_bytes());
    });
}

/// One scan of the table meets every key below `lasting` once.
fn scan_meets_each_once(worker: &mut Worker, lasting: u64) {
    let mut seen = vec![0; lasting as usize];
    let mut cursor = 0;
    loop {
        let visit = &mut |key: &[u8], _: stillpoint_store::ValueRef<'_>| {
            let key = u64::from_le_bytes(key.try_into().expect("eight bytes"));
            if key < lasting {
                seen[key as usize] += 1;
            }
        };
        cursor = worker.scan(T, cursor, 200, visit).expect("a table");
        if cursor == 0 {
            break;
        }
    }
    let wrong = seen.iter().position(|&times| times != 1);
    let times = wrong.map(|key| seen[key]);
    assert_eq!(times, None, "times that a scan met a key that was there all the time");
}

#[test]
fn the_index_grows_under_load() {
    let store = store_of(2 << 30, 8, 5);
    let per_thread = env_or("STORE_TEST_TRANSACTIONS", 100_000);
    let lasting = 2_000u64;
    let mut worker = worker_of(&store);
    for key in 0..lasting {
        let put = worker.transact(|tx| tx.put(T, &account(key), &account(key)));
        put.expect("memory");
    }
    let left = Arc::new(AtomicU64::new(2));
    let mut works: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
    for number in 1..=2u64 {
        let (store, left) = (store.clone(), left.clone());
        works.push(Box::new(move || {
            let mut worker = worker_of(&store);
            for turn in 0..per_thread {
                let key = account(number << 32 | turn);
                let put = worker.transact(|tx| tx.put(T, &key, &key));
                put.expect("memory");
                if turn.is_multiple_of(4) {
                    let gone = account(number << 32 | (turn / 2));
                    worker.transact(|tx| tx.delete(T, &gone)).expect("memory");
                }
            }
            left.fetch_sub(1, SeqCst);
        }));
    }
    let (reading, others) = (store.clone(), left.clone());
    works.push(Box::new(move || {
        let mut worker = worker_of(&reading);
        let mut random = Random::new(1);
        while others.load(SeqCst) > 0 {
            let key = account(random.below(lasting as usize) as u64);
            let mut value = Vec::new();
            let seen = worker.read(T, &key, &mut value).expect("a table");
            assert!(seen.is_some() && value == key);
        }
    }));
    let scanning = store.clone();
    works.push(Box::new(move || {
        let mut worker = worker_of(&scanning);
        while left.load(SeqCst) > 0 {
            scan_meets_each_once(&mut worker, lasting);
        }
    }));
    together(works);
    let mut seen = 0;
    let mut cursor = 0;
    loop {
        cursor = worker.scan(T, cursor, 1_000, &mut |_, _| seen += 1).expect("a table");
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(seen, store.record_count(T));
}

#[test]
fn a_table_is_flushed_under_load() {
    for_seeds(3, |seed| {
        let store = store_of(1 << 30, 8, seed);
        let stop = Arc::new(AtomicBool::new(false));
        let mut works: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
        let turns = env_or("STORE_TEST_TRANSACTIONS", 2_000);
        let done = Arc::new(AtomicU64::new(0));
        for number in 0..3u64 {
            let (store, stop, done) = (store.clone(), stop.clone(), done.clone());
            works.push(Box::new(move || {
                let mut random = Random::new(seed * 100 + number);
                let mut worker = worker_of(&store);
                for turn in 0..turns {
                    pair_transaction(&mut worker, &mut random, turn);
                }
                if done.fetch_add(1, SeqCst) == 2 {
                    stop.store(true, SeqCst);
                }
            }));
        }
        let flushed = store.clone();
        works.push(Box::new(move || {
            let mut generation = 1;
            while !stop.load(SeqCst) {
                let quiesced = flushed.driver().quiesce();
                generation += 1;
                let new = flushed.new_table(U, generation).expect("address space");
                flushed.replace_tables(&quiesced, vec![new], Replaced::Captured);
                drop(quiesced);
                for _ in 0..10 {
                    flushed.maintain();
                    std::thread::yield_now();
                }
            }
            assert!(generation > 3);
        }));
        together(works);
        for _ in 0..2 {
            store.maintain();
        }
        // At most two generations exist, each with 2 tables and some classes of slabs.
        assert!(store.held_bytes() < 200 << 20, "{}", store.held_bytes());
        assert_eq!(store.generations_held(), 2, "the old ones are gone");
    });
}

/// One commit writes the two keys of a pair in a table that is flushed at any moment, and the same
/// number in another table. So all are there, or only those of the flushed table are missing.
fn pair_transaction(worker: &mut Worker, random: &mut Random, turn: u64) {
    let pair = random.below(5) as u64;
    let (a, b) = (account(pair), account(pair + 100));
    let len = [8, 50, 500, 5_000, 100_000][random.below(5)];
    let check = |a: Option<Vec<u8>>, b: Option<Vec<u8>>| assert!(a == b, "half a pair");
    match random.below(4) {
        0 => {
            let keys = vec![(U, a, Mode::Read), (U, b, Mode::Read)];
            let body = |tx: &mut Tx<'_>| {
                let values = [Slot(0), Slot(1)].map(|slot| tx.value(slot).map(|v| v.to_vec()));
                let [a, b] = values;
                check(a, b);
                Ok(())
            };
            worker.execute(&mut [Declared { keys, body }][..]);
        }
        1 => {
            let ended = worker.transact(|tx| {
                let value = tx.get(U, &a)?.map(|value| value.to_vec());
                std::thread::yield_now();
                let other = tx.get(U, &b)?.map(|value| value.to_vec());
                check(value, other);
                Ok(())
            });
            ended.expect("it is tried until it commits");
        }
        2 => {
            let value = whole(turn, len);
            let keys = [(U, &a), (T, &a), (U, &b)];
            let keys = keys.map(|(table, key)| (table, key.clone(), Mode::Write)).to_vec();
            let body = |tx: &mut Tx<'_>| {
                let delete = turn.is_multiple_of(5);
                for slot in 0..3 {
                    if delete && slot != 1 {
                        tx.delete_slot(Slot(slot))?;
                    } else {
                        tx.put_slot(Slot(slot), &value)?;
                    }
                }
                Ok(())
            };
            worker.execute(&mut [Declared { keys, body }][..]);
        }
        _ => {
            let value = whole(turn, len);
            let ended = worker.transact(|tx| {
                for (table, key) in [(U, &a), (T, &a), (U, &b)] {
                    tx.put(table, key, &value)?;
                    std::thread::yield_now();
                }
                Ok(())
            });
            ended.expect("memory");
        }
    }
}

/// A quiesced store resumes, whatever the phases do meanwhile.
#[test]
fn phases_move_while_the_store_is_quiesced_and_let_go() {
    let store = store_with(64 << 20, 4, 3, CellRules::BEFORE_IMAGES);
    let left = Arc::new(AtomicU64::new(1));
    let turns = env_or("STORE_TEST_TRANSACTIONS", 3_000);
    let (gated, turning) = (store.clone(), left.clone());
    let mut works: Vec<Box<dyn FnOnce() + Send>> = vec![Box::new(move || {
        while turning.load(SeqCst) > 0 {
            drop(gated.driver().quiesce());
        }
    })];
    let (moved, moving) = (store.clone(), left.clone());
    works.push(Box::new(move || {
        let gathered = Arc::default();
        while moving.load(SeqCst) > 0 {
            common::checkpoint(&moved, &gathered, |_| {});
        }
    }));
    works.push(Box::new(move || {
        let mut worker = worker_of(&store);
        for turn in 0..turns {
            let put = worker.transact(|tx| tx.put(T, &account(turn % 5), &account(turn)));
            put.expect("memory");
        }
        left.fetch_sub(1, SeqCst);
    }));
    together(works);
}

/// A sink that keeps every large value that is about to be replaced, and releases each a while
/// later.
#[derive(Default)]
struct Keeper {
    kept: Mutex<Vec<(KeptValue, Vec<u8>)>>,
}

impl Sink for Keeper {
    fn with_lane(&self, _: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        with(&mut KeeperLane(self));
    }
}

struct KeeperLane<'a>(&'a Keeper);

impl Lane for KeeperLane<'_> {
    fn emit(&mut self, record: &RecordImage<'_>) {
        if let Some(kept) = record.keep_large() {
            self.0.kept.lock().push((kept, record.value.to_vec()));
        }
    }
    fn emit_deletion(&mut self, _: &DeletedKey<'_>) {
        unreachable!("a checkpoint of everything");
    }
    fn take_back(&mut self) {
        unreachable!("a writer takes nothing back");
    }
}

#[test]
fn large_values_are_kept_and_freed() {
    let keeper = Arc::new(Keeper::default());
    let store = store_with(192 << 20, 4, 3, CellRules::BEFORE_IMAGES);
    let turns = env_or("STORE_TEST_TRANSACTIONS", 600);
    let left = Arc::new(AtomicU64::new(2));
    let mut works: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
    for number in 0..2u64 {
        let (store, left) = (store.clone(), left.clone());
        works.push(Box::new(move || {
            let mut random = Random::new(number);
            let mut worker = worker_of(&store);
            for turn in 0..turns {
                let key = account(random.below(6) as u64);
                let len = 70_000 + random.below(700_000);
                let ended = worker.transact(|tx| {
                    let old = tx.get(T, &key)?.map(|value| value.len());
                    match (old, turn % 4) {
                        (Some(old), 0 | 1) => tx.patch(T, &key, old / 2, &[turn as u8; 100]),
                        (Some(_), 2) => tx.delete(T, &key).map(|_| ()),
                        _ => tx.put(T, &key, &whole(turn, len)),
                    }
                });
                // There are at most 7 values of 0.8 MB with two versions each, far below the limit.
                ended.expect("memory");
            }
            left.fetch_sub(1, SeqCst);
        }));
    }
    let (phases, driven) = (keeper.clone(), store.clone());
    works.push(Box::new(move || {
        let mut given_back = 0;
        let mut worker = worker_of(&driven);
        let mut replace = |turn| {
            // Only this worker writes key 6, so at least the value of that key is replaced in the
            // middle of each checkpoint.
            let put = worker.transact(|tx| tx.put(T, &account(6), &whole(turn, 80_000)));
            put.expect("memory");
        };
        let mut turn = 0;
        replace(turn);
        while left.load(SeqCst) > 0 || turn == 0 {
            turn += 1;
            common::checkpoint_into(&driven, &Gathered::default(), phases.clone(), |phase| {
                for _ in 0..10 {
                    std::thread::yield_now();
                }
                if phase == Phase::Resolve {
                    replace(turn);
                }
            });
            for (kept, expected) in std::mem::take(&mut *phases.kept.lock()) {
                let mut bytes = vec![0; kept.len()];
                driven.read_kept(&kept, 0, &mut bytes);
                assert!(bytes == expected, "a kept value changed");
                driven.release_kept(kept);
                given_back += 1;
            }
        }
        assert!(given_back >= turn, "{given_back} values in {turn} checkpoints");
    }));
    together(works);
    deleted_values_make_room(&store);
}

/// All memory is freed, so new values up to the limit fit.
fn deleted_values_make_room(store: &Arc<Store>) {
    let mut worker = worker_of(store);
    for key in 0..7 {
        worker.transact(|tx| tx.delete(T, &account(key))).expect("a deletion");
    }
    drop(worker);
    let held = store.held_bytes();
    let mut worker = worker_of(store);
    for key in 0..6 {
        let put = worker.transact(|tx| tx.put(T, &account(key), &whole(key, 600_000)));
        put.expect("memory");
    }
    assert!(store.held_bytes() <= held + (4 << 20), "{held} then {}", store.held_bytes());
}
