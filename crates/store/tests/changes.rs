//! Checkpoints of changes: a capture and a settling visit what has changed, and nothing else.

mod common;

use common::{CheckingLog, Random, store_with};
use std::collections::BTreeSet;
use std::sync::Arc;
use stillpoint_store::{
    Capture, CellRules, DeletedKey, DirtyRule, KeyImage, Lane, Loader, NoLog, Phase, RecordImage,
    Replayed, Reuse, StatusChanges, Store, TableId, Tx, Worker,
};

const T: TableId = TableId(0);
const KEYS: u64 = 60_000;
const LIMIT_BYTES: usize = 96 << 20;

const CHANGES: CellRules = CellRules {
    dirty: DirtyRule::ByEpoch,
    status_changes: StatusChanges::InPrepareAndCapture,
    reuse: Reuse::WhenClean,
    ..CellRules::BEFORE_IMAGES
};

/// Keeps the keys that a capture emits, and counts how often the capture takes its lane. The
/// capture takes the lane once for each 64 cells or fewer, and once for each slab.
struct Found {
    slot: usize,
    keys: BTreeSet<u64>,
    lanes: usize,
}

impl Capture for Found {
    fn slot(&self) -> usize {
        self.slot
    }
    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane)) {
        self.lanes += 1;
        with(self);
    }
    fn pause(&mut self) {}
    fn is_abandoned(&self) -> bool {
        false
    }
}

fn number(key: &[u8]) -> u64 {
    u64::from_be_bytes(key.try_into().expect("eight bytes"))
}

impl Lane for Found {
    fn emit(&mut self, record: &RecordImage<'_>) {
        assert!(self.keys.insert(number(record.key)));
    }
    fn emit_deletion(&mut self, deleted: &DeletedKey<'_>) {
        assert!(self.keys.insert(number(deleted.key)));
    }
    fn take_back(&mut self) {
        unreachable!("nobody commits meanwhile");
    }
}

/// A checkpoint. `published` says whether the one before was published. Returns the emitted keys,
/// and the number of cells that `settle_marks` has counted.
fn checkpoint(store: &Store, of_changes: bool, published: bool) -> (Found, u64) {
    attempt(store, of_changes, Some(published), || {})
}

/// As [`checkpoint`]. Without `published`, the pass that settles the marks is cut off before the first
/// slab. `settled` is called after the pass.
fn attempt(
    store: &Store,
    of_changes: bool,
    published: Option<bool>,
    settled: impl FnOnce(),
) -> (Found, u64) {
    let driver = store.driver();
    let slot = driver.read_sections().claim().expect("a free slot");
    driver.choose_changes(of_changes);
    driver.advance(Phase::Prepare);
    let slabs = 0..store.group_count();
    let settle =
        |published| slabs.clone().map(|slab| store.settle_marks(slab, slot, published)).sum();
    let dirty = published.map_or(0, settle);
    if published.is_some() {
        store.end_settling();
    }
    settled();
    driver.advance(Phase::Resolve);
    driver.advance(Phase::Capture);
    let mut found = Found { slot, keys: BTreeSet::new(), lanes: 0 };
    slabs.for_each(|slab| store.capture_unmarked(slab, &mut found));
    driver.advance(Phase::Complete);
    driver.advance(Phase::Rest);
    driver.read_sections().unclaim(slot);
    (found, dirty)
}

/// Puts, grows, patches and deletes some records, new ones among them.
fn change(worker: &mut Worker, random: &mut Random, count: usize) -> BTreeSet<u64> {
    let mut changed = BTreeSet::new();
    while changed.len() < count {
        let key = random.below(KEYS as usize + 5_000) as u64;
        let name = key.to_be_bytes();
        let done = worker.transact(|tx| match key % 4 {
            0 => tx.delete(T, &name).map(|_| ()),
            1 => tx.put(T, &name, &[7; 900]),
            _ => tx.put(T, &name, &[8; 30]),
        });
        done.expect("memory");
        changed.insert(key);
    }
    changed
}

#[test]
fn passes_over_changes_visit_what_has_changed() {
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let store = store_with(LIMIT_BYTES, 4, seed, CHANGES);
        let log = Box::new(NoLog::default());
        let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
        for key in 0..KEYS {
            worker.transact(|tx| tx.put(T, &key.to_be_bytes(), &[1; 30])).expect("memory");
        }
        let (full, dirty) = checkpoint(&store, false, false);
        assert_eq!((full.keys.len() as u64, dirty), (KEYS, KEYS), "seed {seed}");
        assert!(full.lanes > 900, "{} lanes for all cells", full.lanes);
        // Changed keys that no published checkpoint has yet, and keys whose deletion one has.
        let (mut lacking, mut gone) = (BTreeSet::new(), BTreeSet::new());
        let mut published = true;
        for round in 0..12 {
            let context = format!("seed {seed}, round {round}");
            let changed = change(&mut worker, &mut random, [0, 1, 20, 300][round % 4]);
            lacking.extend(changed);
            let (found, dirty) = checkpoint(&store, true, published);
            // For keys that had no value before, a deletion may be emitted or not.
            let had_none = |key: u64| key.is_multiple_of(4) && (key >= KEYS || gone.contains(&key));
            let wanted: Vec<u64> = lacking.iter().copied().filter(|&key| !had_none(key)).collect();
            assert!(wanted.iter().all(|key| found.keys.contains(key)), "{context}");
            assert!(found.keys.iter().all(|key| lacking.contains(key)), "{context}");
            assert!(dirty >= wanted.len() as u64, "{context}: {dirty} are dirty");
            // The capture takes the lane once for each slab with bits, and once for each 64 bits.
            let slabs = 32 * store.group_count();
            let most = slabs.min(lacking.len()) + 2 * lacking.len().div_ceil(64) + 2;
            assert!(found.lanes <= most, "{context}: {} lanes", found.lanes);
            published = random.below(3) > 0;
            if published {
                gone.extend(lacking.iter().copied().filter(|key| key.is_multiple_of(4)));
                lacking.clear();
            }
        }
    }
}

/// A checkpoint of changes is published, and the pass that would settle its marks is cut off. A key that
/// only this checkpoint has is deleted then. The next checkpoint has the deletion.
#[test]
fn a_deletion_is_captured_though_a_pass_was_cut_off() {
    let store = store_with(LIMIT_BYTES, 4, 1, CHANGES);
    store.note_loaded_chain(true);
    let log = Box::new(NoLog::default());
    let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
    let put = |worker: &mut Worker, key: u64| {
        worker.transact(|tx| tx.put(T, &key.to_be_bytes(), &[1; 30])).expect("memory");
    };
    put(&mut worker, 1);
    store.begin_chain();
    checkpoint(&store, false, false);
    store.end_chain(true);
    put(&mut worker, 2);
    let (found, _) = checkpoint(&store, true, true);
    store.end_chain(true);
    assert_eq!(found.keys, BTreeSet::from([2]));
    attempt(&store, false, None, || {});
    store.end_chain(false);
    worker.transact(|tx| tx.delete(T, &2u64.to_be_bytes()).map(|_| ())).expect("memory");
    worker.idle();
    let (found, _) = attempt(&store, true, Some(false), || {
        worker.idle();
    });
    assert!(found.keys.contains(&2), "a published checkpoint has key 2: {:?}", found.keys);
}

/// A replay deletes a key that the chain has and then puts a longer value, which needs a larger cell.
/// The key is deleted again. The next checkpoint has the deletion, since the chain has the key.
#[test]
fn a_larger_cell_keeps_what_the_chain_has() {
    let store = store_with(LIMIT_BYTES, 4, 1, CHANGES);
    store.note_loaded_chain(false);
    let key = 1u64.to_be_bytes();
    let mut loader = Loader::new(Arc::clone(&store)).expect("a free slot");
    let hash = loader.hash(T, &key);
    let loaded = KeyImage { hash, key: &key, label: 0u8.into(), value: Some(&[1; 8]), gsn: 0 };
    loader.load(T, std::iter::once(loaded)).expect("memory");
    loader.apply(T, hash, &key, 5, Replayed::Delete).expect("memory");
    let longer = Replayed::Put { label: 0u8.into(), value: &[2; 900] };
    loader.apply(T, hash, &key, 6, longer).expect("memory");
    drop(loader);
    let log = Box::new(NoLog::default());
    let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
    assert!(worker.transact(|tx| tx.delete(T, &key)).expect("memory"));
    worker.idle();
    let (found, _) = checkpoint(&store, true, true);
    assert!(found.keys.contains(&1), "the chain has key 1");
}

/// A key that the chain has gets a value that needs a cell of another size, and is deleted. The next
/// checkpoint has the deletion, since the chain has the key. The new cell has no other mark.
#[test]
fn a_cell_of_another_size_keeps_what_the_chain_has() {
    for (before, after) in [(30, 900), (900, 30), (30, 2_044), (2_044, 10)] {
        let store = store_with(LIMIT_BYTES, 4, 1, CHANGES);
        store.note_loaded_chain(true);
        let log = Box::new(NoLog::default());
        let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
        let put = |worker: &mut Worker, len: usize| {
            let value = vec![1; len];
            worker.transact(|tx| tx.put(T, &1u64.to_be_bytes(), &value)).expect("memory");
        };
        put(&mut worker, before);
        store.begin_chain();
        checkpoint(&store, false, false);
        store.end_chain(true);
        let (found, _) = checkpoint(&store, true, true);
        assert_eq!(found.keys, BTreeSet::new(), "{before}: nothing has changed");
        put(&mut worker, after);
        worker.transact(|tx| tx.delete(T, &1u64.to_be_bytes()).map(|_| ())).expect("memory");
        worker.idle();
        let (found, _) = checkpoint(&store, true, true);
        assert_eq!(found.keys, BTreeSet::from([1]), "{before} and {after}: the chain has the key");
    }
}

/// A written record is marked though others of its transaction have their mark already. So is a larger
/// cell that takes the place of a marked one.
#[test]
fn every_written_record_is_marked() {
    let store = store_with(LIMIT_BYTES, 4, 1, CHANGES);
    store.note_loaded_chain(true);
    // No commit is closed. So the cells of deleted keys stay.
    let log = CheckingLog::new(0, &Arc::default(), &Arc::default());
    let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
    let mut put = |keys: &[u64], len: usize| {
        let value = vec![1; len];
        let mut put_all =
            |tx: &mut Tx<'_>| keys.iter().try_for_each(|key| tx.put(T, &key.to_be_bytes(), &value));
        worker.transact(&mut put_all).expect("memory");
    };
    put(&[1, 2, 3, 4], 30);
    store.begin_chain();
    checkpoint(&store, false, false);
    store.end_chain(true);
    for keys in [&[1][..], &[1, 2], &[3, 2, 1]] {
        put(keys, 30);
    }
    put(&[10], 8);
    worker.transact(|tx| tx.delete(T, &10u64.to_be_bytes())).expect("memory");
    worker.transact(|tx| tx.put(T, &10u64.to_be_bytes(), &[2; 900])).expect("memory");
    let (found, dirty) = checkpoint(&store, true, true);
    assert_eq!((found.keys, dirty), (BTreeSet::from([1, 2, 3, 10]), 4));
}

/// As above, but the key is written again before the pass that is cut off. The pass after that one joins
/// the mark of this write to those of the present epoch.
#[test]
fn a_deletion_is_captured_though_a_pass_was_cut_off_after_another_write() {
    let store = store_with(LIMIT_BYTES, 4, 1, CHANGES);
    store.note_loaded_chain(true);
    let log = Box::new(NoLog::default());
    let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
    let put = |worker: &mut Worker, key: u64| {
        worker.transact(|tx| tx.put(T, &key.to_be_bytes(), &[1; 30])).expect("memory");
    };
    put(&mut worker, 1);
    store.begin_chain();
    checkpoint(&store, false, false);
    store.end_chain(true);
    put(&mut worker, 2);
    let (found, _) = checkpoint(&store, true, true);
    store.end_chain(true);
    assert_eq!(found.keys, BTreeSet::from([2]));
    put(&mut worker, 2);
    attempt(&store, false, None, || {});
    store.end_chain(false);
    let (found, _) = attempt(&store, true, Some(false), || {
        worker.transact(|tx| tx.delete(T, &2u64.to_be_bytes()).map(|_| ())).expect("memory");
        worker.idle();
    });
    assert!(found.keys.contains(&2), "a published checkpoint has key 2: {:?}", found.keys);
}
