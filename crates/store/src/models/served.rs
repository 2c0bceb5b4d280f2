//! A load of a store that is served meanwhile: one loader beside a writer and a reader. A loaded record
//! takes the place of nothing newer, also if its key was deleted and the cell would be reclaimed. The
//! writes of the log count for whoever finds their key: the loader, a transaction, or the pass at the end.

use std::sync::Arc;

use shuttle::thread;
use stillpoint_format::log::{PatchRange, WritesEncoder};

use super::SCHEDULES;
use crate::{
    CellRules, ColdRecords, FoundRecord, KeyImage, Loader, NoLog, Store, StoreConfig, TableId,
    TakeBeside, UnreadableRecord, WaitingWrites, Worker,
};

const TABLE: TableId = TableId(0);
/// Keys that the checkpoint has: one is deleted, one overwritten, one only read.
const KEYS: [&[u8]; 3] = [b"deleted", b"written", b"read"];

/// Keys of the log. The checkpoint has the first three, too.
const PATCHED: &[u8] = b"patched";
const REPLACED: &[u8] = b"replaced";
const GONE: &[u8] = b"gone";
const NEW: &[u8] = b"new";
const DROPPED: &[u8] = b"dropped";

fn all_of_checkpoint() -> impl Iterator<Item = &'static [u8]> {
    KEYS.into_iter().chain([PATCHED, REPLACED, GONE])
}

/// What the log has written after the checkpoint.
fn written_after(store: &Store) -> Vec<WaitingWrites> {
    let mut threads = WaitingWrites::for_threads(2);
    let mut write = |thread: usize, gsn, key: &[u8], encode: &dyn Fn(&mut WritesEncoder<'_>)| {
        let mut body = Vec::new();
        encode(&mut WritesEncoder::new(&mut body));
        threads[thread].push_alone(store.hash(TABLE, key), gsn, (TABLE, 1), &body);
    };
    let put = |key, value: &'static [u8]| {
        move |writer: &mut WritesEncoder<'_>| writer.put(0, 1, key, 0, value).expect("it is short")
    };
    let patch = |offset, bytes: &'static [u8]| {
        move |writer: &mut WritesEncoder<'_>| {
            writer.patch(0, 1, PATCHED, &[PatchRange { offset, bytes }]).expect("it is short");
        }
    };
    write(0, 7, PATCHED, &patch(1, b"LD"));
    write(1, 5, PATCHED, &patch(0, b"xxx"));
    write(0, 6, REPLACED, &put(REPLACED, b"put"));
    write(1, 8, GONE, &|writer| writer.delete(0, 1, GONE).expect("it is short"));
    write(0, 9, NEW, &put(NEW, b"new"));
    write(1, 9, DROPPED, &put(DROPPED, b"new"));
    threads
}

/// The checkpoint, which has the old value of each key.
#[derive(Debug)]
struct Checkpoint {
    /// The hashes that its key maps have.
    hashes: Vec<u64>,
}

impl ColdRecords for Checkpoint {
    fn may_have(&self, _: TableId, _: u32) -> bool {
        true
    }
    fn reads_for(&self, hash: u64) -> bool {
        self.hashes.contains(&hash)
    }
    fn find(
        &self,
        _: TableId,
        _: u32,
        _: u64,
        key: &[u8],
        _: &mut TakeBeside<'_>,
    ) -> Result<FoundRecord, UnreadableRecord> {
        thread::yield_now();
        let is_there = all_of_checkpoint().any(|of| of == key);
        Ok(is_there.then(|| (Default::default(), b"old".to_vec())))
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
    let keys: Vec<_> = all_of_checkpoint().collect();
    for keys in [&keys[..1], &keys[1..]] {
        let images = keys.iter().map(|key| KeyImage {
            hash: store.hash(TABLE, key),
            key,
            label: Default::default(),
            value: Some(b"old"),
            gsn: 0,
        });
        loader.load_generation(TABLE, 1, images).expect("room");
    }
    // Those that only the log has.
    let without_base = loader.load_waiting((0, 1)).expect("room");
    assert_eq!(without_base, None, "a patch without a base");
    drop(loader);
    store.end_load();
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
    assert!(worker.transact(|tx| tx.delete(TABLE, DROPPED)).expect("room"), "the log has it");
    assert!(!worker.transact(|tx| tx.delete(TABLE, GONE)).expect("room"), "the log has deleted it");
    worker.idle();
    assert_eq!(read(&mut worker, KEYS[1]).as_deref(), Some(&b"new"[..]));
    assert_eq!(read(&mut worker, KEYS[0]), None, "the load brings it back");
    assert_eq!(read(&mut worker, DROPPED), None, "the load brings it back");
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
        assert_log(&mut worker);
    }
}

fn assert_log(worker: &mut Worker) {
    assert_eq!(read(worker, PATCHED).as_deref(), Some(&b"xLD"[..]));
    assert_eq!(read(worker, REPLACED).as_deref(), Some(&b"put"[..]));
    assert_eq!(read(worker, NEW).as_deref(), Some(&b"new"[..]));
    assert_eq!(read(worker, GONE), None, "the log has deleted it");
}

fn served() {
    let config = StoreConfig { max_memory_bytes: 1 << 20, workers: 5, ..Default::default() };
    let store = Arc::new(Store::new(&config, CellRules::IN_PLACE).expect("a model's memory"));
    store.add_table(TABLE, 1).expect("a model's memory");
    let hashes = all_of_checkpoint().map(|key| store.hash(TABLE, key)).collect();
    store.begin_load(Arc::new(Checkpoint { hashes }), written_after(&store), 0);
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
    assert_eq!(read(&mut worker, DROPPED), None, "the load brings it back");
    assert_log(&mut worker);
    assert_eq!(store.record_count(TABLE), 5);
}

#[test]
fn a_load_beside_transactions_overwrites_nothing_newer() {
    shuttle::check_random(served, SCHEDULES);
    shuttle::check_pct(served, SCHEDULES, 3);
}
