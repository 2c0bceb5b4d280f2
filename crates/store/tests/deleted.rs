//! Cells of deleted keys that the chain of published checkpoints has.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use common::{CheckingLog, store_with};
use parking_lot::Mutex;
use stillpoint_store::{
    Capture, CellRules, DeletedKey, DirtyRule, Lane, NoLog, Phase, RecordImage, Reuse, Sink,
    StatusChanges, Store, TableId, TxError, Worker,
};

const T: TableId = TableId(0);

const CHANGES: CellRules = CellRules {
    dirty: DirtyRule::ByEpoch,
    status_changes: StatusChanges::InPrepareAndCapture,
    reuse: Reuse::WhenClean,
    ..CellRules::BEFORE_IMAGES
};

/// The keys of a checkpoint, each with its value, or `None` for a deletion.
type Taken = BTreeMap<u64, Option<Vec<u8>>>;

/// A sink that keeps its records.
#[derive(Default)]
struct Paper(Mutex<Taken>);

impl Sink for Paper {
    fn with_lane(&self, _: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        let mut line = Line { to: self, last: None };
        with(&mut line);
        line.settle();
    }
}

struct Line<'a> {
    to: &'a Paper,
    last: Option<(u64, Option<Vec<u8>>)>,
}

impl Line<'_> {
    fn settle(&mut self) {
        if let Some((key, value)) = self.last.take() {
            assert!(self.to.0.lock().insert(key, value).is_none(), "key {key} was taken twice");
        }
    }
}

fn number(key: &[u8]) -> u64 {
    u64::from_be_bytes(key.try_into().expect("eight bytes"))
}

impl Lane for Line<'_> {
    fn emit(&mut self, record: &RecordImage<'_>) {
        self.settle();
        self.last = Some((number(record.key), Some(record.value.to_vec())));
    }
    fn emit_deletion(&mut self, deleted: &DeletedKey<'_>) {
        self.settle();
        self.last = Some((number(deleted.key), None));
    }
    fn take_back(&mut self) {
        assert!(self.last.take().is_some());
    }
}

/// The capture scan, into the paper.
struct Scan<'a>(usize, &'a Paper);

impl Capture for Scan<'_> {
    fn slot(&self) -> usize {
        self.0
    }
    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane)) {
        self.1.with_lane(self.0, with);
    }
    fn pause(&mut self) {}
    fn is_abandoned(&self) -> bool {
        false
    }
}

/// A store whose checkpoints succeed or fail.
struct Checked {
    store: Arc<Store>,
    /// Whether the last checkpoint was published.
    was_published: bool,
    /// What the published chain holds.
    chain: BTreeMap<u64, Vec<u8>>,
}

impl Checked {
    fn new(limit_bytes: usize) -> Self {
        let store = store_with(limit_bytes, 4, 1, CHANGES);
        store.note_loaded_chain(true);
        Self { store, was_published: false, chain: BTreeMap::new() }
    }

    fn worker(&self) -> Worker {
        Worker::new(Arc::clone(&self.store), Box::new(NoLog::default())).expect("a free slot")
    }

    fn checkpoint(&mut self, of_changes: bool, published: bool) {
        self.checkpoint_while(of_changes, published, || {});
    }

    /// A checkpoint. `before_scan` is called when its capture has begun.
    fn checkpoint_while(&mut self, of_changes: bool, published: bool, before_scan: impl FnOnce()) {
        let (store, driver) = (&self.store, self.store.driver());
        let slot = driver.read_sections().claim().expect("a free slot");
        let paper = Arc::<Paper>::default();
        store.set_sink(Some(paper.clone()));
        driver.choose_changes(of_changes);
        driver.advance(Phase::Prepare);
        for slab in 0..store.group_count() {
            store.settle_marks(slab, slot, self.was_published);
        }
        store.end_settling();
        if !of_changes {
            store.begin_chain();
        }
        driver.advance(Phase::Resolve);
        driver.advance(Phase::Capture);
        before_scan();
        for slab in 0..store.group_count() {
            store.capture_unmarked(slab, &mut Scan(slot, &paper));
        }
        driver.advance(Phase::Complete);
        driver.advance(Phase::Rest);
        driver.read_sections().unclaim(slot);
        store.set_sink(None);
        store.end_chain(published);
        self.was_published = published;
        if published {
            if !of_changes {
                self.chain.clear();
            }
            for (key, value) in std::mem::take(&mut *paper.0.lock()) {
                match value {
                    Some(value) => drop(self.chain.insert(key, value)),
                    None => drop(self.chain.remove(&key)),
                }
            }
        }
    }
}

fn put(worker: &mut Worker, keys: std::ops::Range<u64>, value: &[u8]) {
    for key in keys {
        worker.transact(|tx| tx.put(T, &key.to_be_bytes(), value)).expect("memory");
    }
}

fn delete(worker: &mut Worker, keys: std::ops::Range<u64>) {
    for key in keys {
        assert!(worker.transact(|tx| tx.delete(T, &key.to_be_bytes())).expect("a deletion"));
    }
}

/// A worker is idle after the deletions of many keys were published.
#[test]
fn published_deletions_are_reclaimed_in_few_rounds() {
    const KEYS: u64 = 100_000;
    let mut checked = Checked::new(96 << 20);
    let mut worker = checked.worker();
    put(&mut worker, 0..KEYS, &[1; 30]);
    checked.checkpoint(false, true);
    delete(&mut worker, 0..KEYS);
    for _ in 0..20 {
        worker.idle();
    }
    let store = checked.store.clone();
    assert_eq!(store.cell_count(T), KEYS, "no checkpoint has the deletions");
    assert_eq!(store.waiting_cells() as u64, KEYS);
    checked.checkpoint(true, true);
    checked.checkpoint(true, true);
    let rounds = (1..).find(|_| {
        worker.idle();
        store.cell_count(T) == 0
    });
    let rounds = rounds.expect("it ends");
    assert!(rounds <= KEYS / 8_192 + 2, "{rounds} rounds");
    assert_eq!(store.waiting_cells(), 0);
}

/// Keys of the chain come and go under load, in a store that is never idle.
#[test]
fn deletions_of_a_busy_store_keep_a_bound() {
    const KEYS: u64 = 1_000;
    let mut checked = Checked::new(96 << 20);
    let mut worker = checked.worker();
    for round in 0..60 {
        put(&mut worker, round * KEYS..(round + 1) * KEYS, &[1; 30]);
        checked.checkpoint(round > 0, true);
        if let Some(oldest) = u64::checked_sub(round, 1) {
            // One transaction, so that the worker looks for cells once.
            let mut keys = oldest * KEYS..(oldest + 1) * KEYS;
            let deleted = worker
                .transact(|tx| keys.try_for_each(|key| tx.delete(T, &key.to_be_bytes()).map(drop)));
            deleted.expect("deletions");
        }
        let absent = checked.store.cell_count(T) - checked.store.record_count(T);
        assert!(absent <= 3 * KEYS, "round {round}: {absent} absent");
    }
}

/// The queues of deleted keys count as memory.
#[test]
fn queues_of_deleted_keys_count_as_memory() {
    const KEYS: u64 = 100_000;
    let mut checked = Checked::new(96 << 20);
    let mut worker = checked.worker();
    put(&mut worker, 0..KEYS, &[1; 30]);
    checked.checkpoint(false, true);
    checked.store.maintain();
    let before = checked.store.held_bytes();
    delete(&mut worker, 0..KEYS);
    worker.idle();
    checked.store.maintain();
    let grown = checked.store.held_bytes() - before;
    assert!(grown as u64 >= KEYS * 16, "{grown} bytes of queues");
    checked.checkpoint(true, true);
    checked.checkpoint(true, true);
    (0..20).for_each(|_| _ = worker.idle());
    // The background gives empty slabs back to the system.
    (0..2_000).for_each(|_| _ = checked.store.maintain());
    let after = checked.store.held_bytes();
    assert!(after <= before, "{before} bytes before, {after} after");
}

/// The store is full, and each checkpoint fails. The deletion of keys that the chain has makes room for
/// as many others.
#[test]
fn deletions_make_room_while_checkpoints_fail() {
    let mut checked = Checked::new(64 << 20);
    let mut worker = checked.worker();
    let value = [1; 1_000];
    let fill = |worker: &mut Worker, first: u64| {
        (first..).find(|key| {
            let put = worker.transact(|tx| tx.put(T, &key.to_be_bytes(), &value));
            matches!(put, Err(TxError::Memory(_)))
        })
    };
    let full = fill(&mut worker, 0).expect("the limit is reached");
    checked.checkpoint(false, true);
    delete(&mut worker, 0..full);
    for _ in 0..3 {
        worker.idle();
        checked.checkpoint(true, false);
    }
    (0..20).for_each(|_| _ = worker.idle());
    assert_eq!(checked.store.cell_count(T), full, "the chain has all of these keys");
    let more = fill(&mut worker, full).expect("the limit is reached") - full;
    assert!(more > full / 10 * 8, "{more} keys after the deletion of {full}");
    // The keys come back, each with room for a value.
    delete(&mut worker, full..full + more);
    (0..20).for_each(|_| _ = worker.idle());
    put(&mut worker, 0..full / 2, &value);
    checked.checkpoint(true, true);
    let keys: Vec<u64> = checked.chain.keys().copied().collect();
    assert_eq!(keys, (0..full / 2).collect::<Vec<_>>());
}

/// Keys are deleted right before a point of consistency, and their deletions are closed while the capture
/// has yet to take them. Once it has, their cells keep no room for values.
#[test]
fn cells_become_smaller_once_a_capture_has_taken_their_deletions() {
    const KEYS: u64 = 10_000;
    let mut checked = Checked::new(96 << 20);
    let closed = Arc::new(AtomicU64::new(0));
    let log = CheckingLog::new(0, &Arc::default(), &closed);
    let mut worker = Worker::new(Arc::clone(&checked.store), log).expect("a free slot");
    put(&mut worker, 0..KEYS, &[1; 1_000]);
    checked.checkpoint(false, true);
    delete(&mut worker, 0..KEYS);
    worker.idle();
    let store = checked.store.clone();
    assert_eq!(store.returning_bytes().1, 0, "no deletion is closed");
    checked.checkpoint_while(true, false, || {
        closed.store(u64::MAX, Relaxed);
        (0..4).for_each(|_| _ = worker.idle());
        let waiting = store.returning_bytes().1;
        assert!(waiting > KEYS as usize * 1_000, "the capture may read the cells: {waiting}");
    });
    (0..4).for_each(|_| _ = worker.idle());
    let waiting = store.returning_bytes().1;
    assert!(waiting <= KEYS as usize * 64, "{waiting} bytes wait");
    checked.checkpoint(true, true);
    checked.checkpoint(true, true);
    (0..4).for_each(|_| _ = worker.idle());
    assert_eq!((store.cell_count(T), store.returning_bytes()), (0, (0, 0)));
}
