//! A key whose cell is replaced by cells of other sizes and of the same, while others read and scan. The key has a value
//! all the time, so nobody may miss it, and no read gives an older value after a newer one.

use std::sync::Arc;

use shuttle::thread;

use super::{SCHEDULES, hash};
use crate::memory::arena::Kind;
use crate::memory::index::{Index, Inserted};
use crate::record::NewCell;
use crate::{CellRules, NoLog, Store, StoreConfig, TableId, Worker};
use stillpoint_format::Stamp;
use stillpoint_sync::atomic::{AtomicU64, Ordering::SeqCst};
use stillpoint_sync::lock_word::{self, Priority};

const TABLE: TableId = TableId(0);
const KEY: &[u8] = b"key";
/// Lengths of the values, one after the other: each needs a cell of another size, or a large value.
const LENS: [usize; 5] = [8, 30, 60, 8, 61];

/// Entries of one bucket are replaced again and again, and each old cell dies. A reader finds the key
/// under one of its cells.
#[test]
fn a_replaced_entry_is_never_missed() {
    let work = || {
        let index = Arc::new(Index::new(&Arc::default()).expect("a model's memory"));
        // The cell that is alive. In the moment of a replacement two cells are.
        let alive = Arc::new([AtomicU64::new(10), AtomicU64::new(0)]);
        let same = hash(1);
        let inserted = index.insert(0, same, 10, |_| false, || {});
        assert_eq!(inserted, Inserted::New);
        let (replaced, living) = (index.clone(), alive.clone());
        let writer = thread::spawn(move || {
            for (turn, new) in (11..14u64).enumerate() {
                living[(turn + 1) % 2].store(new, SeqCst);
                let end = || living[turn % 2].store(0, SeqCst);
                assert!(replaced.replace(same, (new - 1, new), end));
            }
        });
        let is_key = |cell| alive.iter().any(|living| living.load(SeqCst) == cell);
        for _ in 0..2 {
            assert!(index.find(same, is_key).is_some(), "the key has a cell all the time");
            let (mut seen, mut cursor) = (false, 0);
            loop {
                // A dead cell tells nothing. Whoever meets one looks the key up.
                cursor = index.scan(cursor, |_| seen = true, || {});
                if cursor == 0 {
                    break;
                }
            }
            assert!(seen, "the scan missed the key");
        }
        writer.join().expect("no panic");
        assert_eq!(index.find(same, is_key), Some(13));
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}

/// The gsn that a value of these bytes was written with: 1 for the first of [`LENS`].
fn turn_of(value: &[u8]) -> usize {
    let turn = usize::from(value[0]);
    assert_eq!(value, vec![turn as u8; LENS[turn]], "torn");
    turn
}

#[test]
fn a_key_is_read_and_scanned_while_its_cell_is_replaced() {
    let work = || {
        let config = StoreConfig { max_memory_bytes: 1 << 20, workers: 3, ..Default::default() };
        let store = Store::new(&config, CellRules::IN_PLACE).expect("a model's memory");
        store.add_table(TABLE, 1).expect("a model's memory");
        let store = Arc::new(store);
        let worker =
            || Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot");
        let put = |worker: &mut Worker, turn: usize| {
            let value = vec![turn as u8; LENS[turn]];
            worker.transact(|tx| tx.put(TABLE, KEY, &value)).expect("memory");
        };
        let (mut writer, mut reader) = (worker(), worker());
        put(&mut writer, 0);
        let newest = Arc::new(AtomicU64::new(0));
        let latest = newest.clone();
        let writing = thread::spawn(move || {
            for turn in 1..LENS.len() {
                put(&mut writer, turn);
                latest.store(turn as u64, SeqCst);
                writer.local.relocate_all();
                writer.idle();
            }
        });
        let mut last = 0;
        for _ in 0..2 {
            let least = newest.load(SeqCst) as usize;
            let mut value = Vec::new();
            let found = reader.read(TABLE, KEY, &mut value).expect("the table");
            assert!(found.is_some(), "the read missed the key");
            let turn = turn_of(&value);
            assert!(turn >= last && turn >= least, "{turn} after {last} and {least}");
            last = turn;
            let mut scanned = Vec::new();
            let mut cursor = 0;
            loop {
                let mut visit = |key: &[u8], value: crate::ValueRef<'_>| {
                    assert_eq!(key, KEY);
                    scanned.push(turn_of(&value.to_vec()));
                };
                cursor = reader.scan(TABLE, cursor, 1, &mut visit).expect("the table");
                if cursor == 0 {
                    break;
                }
            }
            assert_eq!(scanned.len(), 1, "a present key is visited exactly once: {scanned:?}");
            assert!(scanned[0] >= last, "{scanned:?} after {last}");
            last = scanned[0];
        }
        writing.join().expect("no panic");
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}

/// A pass for blocks that are to leave takes the lock of no record without such a block. So another thread finds that
/// lock free at any time.
#[test]
fn a_pass_for_blocks_leaves_other_records_alone() {
    let work = || {
        let config = StoreConfig { max_memory_bytes: 1 << 20, workers: 2, ..Default::default() };
        let store = Store::new(&config, CellRules::IN_PLACE).expect("a model's memory");
        store.add_table(TABLE, 1).expect("a model's memory");
        let store = Arc::new(store);
        let worker =
            || Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot");
        let (mut worker, mut mover) = (worker(), worker());
        worker.transact(|tx| tx.put(TABLE, KEY, b"value")).expect("memory");
        let table = store.catalog().table(TABLE).expect("the table");
        let found = worker.local.find(&table, KEY, store.hash(TABLE, KEY)).expect("a cell");
        let moving = thread::spawn(move || {
            mover.local.relocate_blocks();
            mover
        });
        let lock = store.cell(found).lock();
        for _ in 0..4 {
            let locked = lock_word::try_exclusive(lock, Priority::DECLARED);
            assert!(locked.is_ok(), "the mover has the lock");
            lock_word::release_exclusive(lock);
            thread::yield_now();
        }
        let _mover = moving.join().expect("no panic");
    };
    shuttle::check_random(work, SCHEDULES / 10);
    shuttle::check_pct(work, SCHEDULES / 10, 3);
}

/// A transaction has made a cell for a new key. Then others insert the key and delete it, and the cell of
/// the deletion is reclaimed. A mover meets the new cell while the transaction puts it into the index. The
/// key's next stamp must not be below that of the deletion.
#[test]
fn the_stamp_of_a_moved_cell_never_goes_back() {
    let work = || {
        let config = StoreConfig { max_memory_bytes: 1 << 20, workers: 3, ..Default::default() };
        let store = Store::new(&config, CellRules::IN_PLACE).expect("a model's memory");
        store.add_table(TABLE, 1).expect("a model's memory");
        let store = Arc::new(store);
        let worker =
            || Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot");
        let (mut worker, mut mover) = (worker(), worker());
        let table = store.catalog().table(TABLE).expect("the table");
        let hash = store.hash(TABLE, KEY);
        let made = NewCell {
            table: &table,
            hash,
            key: KEY,
            value_len: LENS[0],
            kind: Kind::Record,
            locked_by: None,
            status: 0,
        };
        let number = made.make(store.memory(), &mut worker.local.cache).expect("memory");
        worker.transact(|tx| tx.put(TABLE, KEY, b"value")).expect("memory");
        worker.transact(|tx| tx.delete(TABLE, KEY)).expect("memory");
        worker.idle();
        assert_eq!(store.cell_count(TABLE), 0, "the deletion is closed at once");
        let floor = table.floor_stamp(hash).gsn();
        assert!(floor > 0);
        let of = table.clone();
        let moving = thread::spawn(move || {
            mover.local.enter();
            mover.local.relocate_one(&of, number);
            mover.local.exit();
            mover
        });
        worker.local.enter();
        let publish = || store.cell(number).record().end_delete(table.floor_stamp(hash));
        let inserted = table.index.insert(0, hash, number, |_| false, publish);
        worker.local.exit();
        assert_eq!(inserted, Inserted::New);
        // The end of the mover would reclaim the cell.
        let _mover = moving.join().expect("no panic");
        let found = worker.local.find(&table, KEY, hash).expect("the key has a cell");
        let gsn = Stamp::from_bits(store.cell(found).stamp_word()).gsn();
        assert!(gsn >= floor, "gsn {gsn}, after a deletion with {floor}");
    };
    shuttle::check_random(work, SCHEDULES / 10);
    shuttle::check_pct(work, SCHEDULES / 10, 3);
}
