//! A load of a store that is served meanwhile: one loader beside a writer and a reader. A loaded record
//! takes the place of nothing newer, also if its key was deleted and the cell would be reclaimed.

use std::sync::Arc;

use shuttle::thread;

use super::SCHEDULES;
use crate::{
    CellRules, ColdRecords, FoundRecord, KeyImage, Loader, NoLog, Store, StoreConfig, TableId,
    UnreadableRecord, Worker,
};

const TABLE: TableId = TableId(0);
/// Keys that the checkpoint has: one is deleted, one overwritten, one only read.
const KEYS: [&[u8]; 3] = [b"deleted", b"written", b"read"];

/// The checkpoint, which has the old value of each key.
#[derive(Debug)]
struct Checkpoint;

impl ColdRecords for Checkpoint {
    fn may_have(&self, _: TableId, _: u32) -> bool {
        true
    }
    fn reads_for(&self, _: u64) -> bool {
        true
    }
    fn find(
        &self,
        _: TableId,
        _: u32,
        _: u64,
        key: &[u8],
    ) -> Result<FoundRecord, UnreadableRecord> {
        thread::yield_now();
        Ok(KEYS.contains(&key).then(|| (Default::default(), b"old".to_vec())))
    }
}

fn worker(store: &Arc<Store>) -> Worker {
    Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot")
}

fn read(worker: &mut Worker, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    worker.read(TABLE, key, &mut value).expect("the table").map(|_| value)
}

fn load(store: &Arc<Store>) {
    let mut loader = Loader::new(store.clone()).expect("a free slot");
    for keys in [&KEYS[..1], &KEYS[1..]] {
        let images = keys.iter().map(|key| KeyImage {
            hash: store.hash(TABLE, key),
            key,
            label: Default::default(),
            value: Some(b"old"),
            gsn: 0,
        });
        loader.load_generation(TABLE, 1, images).expect("room");
    }
    drop(loader);
    store.end_load().expect("no patch waits");
}

fn write(store: &Arc<Store>) -> Worker {
    let mut worker = worker(store);
    assert!(
        worker.transact(|tx| tx.delete(TABLE, KEYS[0])).expect("room"),
        "the checkpoint has it"
    );
    worker.idle();
    assert_eq!(read(&mut worker, KEYS[0]), None, "the load brings it back");
    worker.transact(|tx| tx.put(TABLE, KEYS[1], b"new")).expect("room");
    worker.idle();
    assert_eq!(read(&mut worker, KEYS[1]).as_deref(), Some(&b"new"[..]));
    assert_eq!(read(&mut worker, KEYS[0]), None, "the load brings it back");
    worker
}

fn look(store: &Arc<Store>) {
    let mut worker = worker(store);
    let (mut is_deleted, mut is_new) = (false, false);
    for _ in 0..2 {
        match read(&mut worker, KEYS[0]) {
            None => is_deleted = true,
            Some(value) => assert!(!is_deleted && value == b"old"),
        }
        let value = read(&mut worker, KEYS[1]).expect("it always has one");
        assert!(value == b"new" || !is_new && value == b"old");
        is_new = value == b"new";
        assert_eq!(read(&mut worker, KEYS[2]).as_deref(), Some(&b"old"[..]));
        assert_eq!(read(&mut worker, b"none"), None);
    }
}

fn served() {
    let config = StoreConfig { max_memory_bytes: 1 << 20, workers: 5, ..Default::default() };
    let store = Arc::new(Store::new(&config, CellRules::IN_PLACE).expect("a model's memory"));
    store.add_table(TABLE, 1).expect("a model's memory");
    store.begin_load(Arc::new(Checkpoint), 0);
    let loading = thread::spawn({
        let store = store.clone();
        move || load(&store)
    });
    let looking = thread::spawn({
        let store = store.clone();
        move || look(&store)
    });
    let mut worker = write(&store);
    loading.join().expect("no panic");
    looking.join().expect("no panic");
    worker.idle();
    assert_eq!(read(&mut worker, KEYS[0]), None, "the load brings it back");
    assert_eq!(read(&mut worker, KEYS[1]).as_deref(), Some(&b"new"[..]));
    assert_eq!(read(&mut worker, KEYS[2]).as_deref(), Some(&b"old"[..]));
    assert_eq!(store.record_count(TABLE), 2);
}

#[test]
fn a_load_beside_transactions_overwrites_nothing_newer() {
    shuttle::check_random(served, SCHEDULES);
    shuttle::check_pct(served, SCHEDULES, 3);
}
