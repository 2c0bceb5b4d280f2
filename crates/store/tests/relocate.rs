//! Records that move to other cells, so that memory in sparse slabs serves others.

use std::collections::BTreeMap;
use std::sync::Arc;

use stillpoint_store::{
    CellRules, DirtyRule, KeyImage, Loader, NoLog, Phase, Reuse, StatusChanges, Store, StoreConfig,
    TableId, Worker, WriteRule,
};

const T: TableId = TableId(0);
/// Rules of a store whose checkpoints may be of changes.
const OF_CHANGES: CellRules = CellRules {
    dirty: DirtyRule::ByEpoch,
    status_changes: StatusChanges::InPrepareAndCapture,
    reuse: Reuse::WhenClean,
    ..CellRules::BEFORE_IMAGES
};

fn open(max_memory_bytes: usize, rules: CellRules) -> (Arc<Store>, Worker) {
    let config = StoreConfig { max_memory_bytes, workers: 4, ..StoreConfig::default() };
    let store = Arc::new(Store::new(&config, rules).expect("address space"));
    store.add_table(T, 1).expect("address space");
    store.note_loaded_chain(true);
    let worker = Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot");
    (store, worker)
}

/// The deadline that a key has, 0 for none.
fn deadline(key: &[u8]) -> u64 {
    let last = u64::from(key[key.len() - 1]);
    if last.is_multiple_of(2) { 0 } else { last << 32 | key.len() as u64 }
}

fn put(worker: &mut Worker, key: &[u8], value: &[u8]) -> bool {
    worker.transact(|tx| tx.put_until(T, key, value, deadline(key))).is_ok()
}

/// Moves what can be moved, and gives free groups back to the system.
fn settle(store: &Store, worker: &mut Worker) {
    let mut calls = 0;
    while worker.relocate() {
        store.maintain();
        calls += 1;
        assert!(calls < 100_000, "it does not end");
    }
    for _ in 0..200 {
        worker.idle();
        store.maintain();
    }
}

fn check(worker: &mut Worker, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut value = Vec::new();
    for (key, expected) in model {
        value.clear();
        let found = worker.read(T, key, &mut value).expect("the table");
        assert_eq!(found.map(|found| found.deadline), Some(deadline(key)), "{key:?}");
        assert_eq!(value, *expected);
    }
    let (mut seen, mut cursor) = (0, 0);
    loop {
        cursor = worker
            .scan(T, cursor, 1_000, &mut |key, value| {
                assert_eq!(value.to_vec(), model[key]);
                seen += 1;
            })
            .expect("the table");
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(seen, model.len());
}

/// Values of all kinds: in their cells, in blocks, and with keys in blocks. Every tenth stays.
#[test]
fn what_stays_lies_close_together_and_is_unchanged() {
    for rules in [CellRules::IN_PLACE, CellRules::BEFORE_IMAGES, OF_CHANGES] {
        let (store, mut worker) = open(1 << 30, rules);
        let lens = [8, 100, 700, 2_000, 3_000, 9_000, 70_000];
        let mut model = BTreeMap::new();
        let key = |i: usize| match i % 50 {
            7 => format!("{i:0>1500}").into_bytes(),
            _ => format!("key {i}").into_bytes(),
        };
        let value = |i: usize| -> Vec<u8> {
            (0..lens[i / 10 % lens.len()]).map(|at| (i + at) as u8).collect()
        };
        for i in 0..12_000 {
            assert!(put(&mut worker, &key(i), &value(i)));
            model.insert(key(i), value(i));
        }
        let full = store.held_bytes();
        for i in (0..12_000).filter(|i| i % 10 != 7) {
            worker.transact(|tx| tx.delete(T, &key(i))).expect("memory");
            model.remove(&key(i));
        }
        settle(&store, &mut worker);
        check(&mut worker, &model);
        let held = store.held_bytes();
        assert!(held < full / 10 + (24 << 20), "{held} bytes of {full} are held: {rules:?}");
        for i in 0..12_000 {
            assert!(put(&mut worker, &key(i), b"again"));
            model.insert(key(i), b"again".to_vec());
        }
        settle(&store, &mut worker);
        check(&mut worker, &model);
    }
}

/// After nine of ten short values were deleted, longer ones fill the memory.
#[test]
fn memory_of_short_values_serves_longer_ones() {
    const LIMIT: usize = 64 << 20;
    for rules in [CellRules::IN_PLACE, OF_CHANGES] {
        let (store, mut worker) = open(LIMIT, rules);
        let mut count = 0;
        while put(&mut worker, format!("short {count}").as_bytes(), &[1; 100]) {
            count += 1;
        }
        assert!(count > 300_000, "{count} short values");
        for i in (0..count).filter(|i| i % 10 != 3) {
            worker.transact(|tx| tx.delete(T, format!("short {i}").as_bytes())).expect("memory");
        }
        settle(&store, &mut worker);
        let mut long = 0;
        loop {
            if !put(&mut worker, format!("long {long}").as_bytes(), &[2; 1_000]) {
                if !worker.relocate() {
                    break;
                }
                continue;
            }
            long += 1;
        }
        let bytes = long * 1_000 + count / 10 * 100;
        assert!(bytes > LIMIT * 7 / 10, "{long} long values, {bytes} bytes");
        let mut value = Vec::new();
        for i in (0..count).filter(|i| i % 10 == 3) {
            value.clear();
            let key = format!("short {i}");
            assert!(worker.read(T, key.as_bytes(), &mut value).expect("the table").is_some());
        }
    }
}

/// A record that a transaction has locked stays where it is, and others move.
#[test]
fn a_locked_record_stays() {
    let (store, mut worker) = open(1 << 30, CellRules::IN_PLACE);
    let log = Box::new(NoLog::default());
    let mut mover = Worker::new(store.clone(), log).expect("a free slot");
    let key = |i: u32| i.to_be_bytes();
    for i in 0..200_000 {
        assert!(put(&mut worker, &key(i), &[3; 100]));
    }
    for i in (0..200_000).filter(|i| i % 10 != 0) {
        worker.transact(|tx| tx.delete(T, &key(i))).expect("memory");
    }
    let mut calls = 0;
    let moved = worker.transact(|tx| {
        for i in (0..200_000).step_by(1_000) {
            tx.put(T, &key(i), &[4; 100])?;
        }
        // The mover meets the locks.
        while mover.relocate() && calls < 2_000 {
            store.maintain();
            calls += 1;
        }
        for i in (0..200_000).step_by(1_000) {
            assert_eq!(tx.get(T, &key(i))?.map(|value| value.to_vec()), Some(vec![4; 100]));
        }
        Ok(())
    });
    assert!(moved.is_ok() && calls > 0);
    settle(&store, &mut mover);
    let mut value = Vec::new();
    for i in (0..200_000).step_by(10) {
        value.clear();
        mover.read(T, &key(i), &mut value).expect("the table").expect("it stays");
        assert_eq!(value, [if i % 1_000 == 0 { 4 } else { 3 }; 100]);
    }
}

/// Fills a store with records, of which nine in ten are deleted.
fn thinned_out(store: &Store, worker: &mut Worker) {
    for i in 0..200_000u32 {
        assert!(put(worker, &i.to_be_bytes(), &[3; 100]));
    }
    for i in (0..200_000u32).filter(|i| i % 10 != 0) {
        worker.transact(|tx| tx.delete(T, &i.to_be_bytes())).expect("memory");
    }
    worker.idle();
    store.maintain();
}

/// Where nothing may move, nothing is withdrawn from use, and no lock is taken.
#[test]
fn no_slab_is_to_leave_where_nothing_may_move() {
    let several_copies = CellRules {
        copies: 2,
        write: WriteRule::SwitchCopies,
        status_changes: StatusChanges::WhileQuiesced,
        ..CellRules::IN_PLACE
    };
    let (store, mut worker) = open(1 << 30, several_copies);
    thinned_out(&store, &mut worker);
    (0..100).for_each(|_| assert!(!worker.relocate(), "a cell of several copies stays"));

    let (store, mut worker) = open(1 << 30, CellRules::IN_PLACE);
    thinned_out(&store, &mut worker);
    assert!(worker.relocate(), "it begins");
    for phase in [Phase::Prepare, Phase::Resolve, Phase::Capture, Phase::Complete] {
        store.driver().advance(phase);
        (0..100).for_each(|_| assert!(!worker.relocate(), "{phase:?}"));
    }
    store.driver().advance(Phase::Rest);
    assert!(worker.relocate(), "it goes on");
    settle(&store, &mut worker);
    assert!(store.held_bytes() < 16 << 20, "{} bytes", store.held_bytes());
}

/// Deleted keys that the chain has lie in slabs with deleted keys that it lacks. Their cells wait for a
/// checkpoint where they are, so that each is counted once.
#[test]
fn a_deleted_key_that_a_checkpoint_needs_is_counted_once() {
    const KEYS: u32 = 2_000;
    let (store, mut worker) = open(1 << 30, OF_CHANGES);
    store.note_loaded_chain(false);
    let mut loader = Loader::new(store.clone()).expect("a free slot");
    let mut others = 0..;
    for part in 0..KEYS / 50 {
        for i in 50 * part..50 * (part + 1) {
            let key = i.to_be_bytes();
            let hash = loader.hash(T, &key);
            let loaded = KeyImage {
                hash,
                key: &key,
                label: Default::default(),
                value: Some(&[1; 8]),
                gsn: 0,
            };
            loader.load(T, std::iter::once(loaded)).expect("memory");
        }
        for i in others.by_ref().take(5_000) {
            assert!(put(&mut worker, format!("{i:06}").as_bytes(), &[2; 8]));
        }
    }
    drop(loader);
    for i in 0..KEYS {
        worker.transact(|tx| tx.delete(T, &i.to_be_bytes())).expect("memory");
    }
    for i in 0..others.start {
        worker.transact(|tx| tx.delete(T, format!("{i:06}").as_bytes())).expect("memory");
    }
    while worker.idle() && store.waiting_cells() < KEYS as usize {}
    store.maintain();
    let before = (store.waiting_cells(), store.returning_bytes().1);
    assert_eq!(before.0, KEYS as usize);
    assert!(worker.relocate(), "much is free");
    settle(&store, &mut worker);
    assert_eq!((store.waiting_cells(), store.returning_bytes().1), before);
}
