//! Checkpoints of changes: a capture and a settling visit what has changed, and nothing else.

mod common;

use common::{Random, store_with};
use std::collections::BTreeSet;
use std::sync::Arc;
use stillpoint_store::{
    Capture, CellRules, DeletedKey, DirtyRule, Lane, NoLog, Phase, RecordImage, Reuse,
    StatusChanges, Store, TableId, Worker,
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
    let slabs = 0..store.slab_count();
    let settle =
        |published| slabs.clone().map(|slab| store.settle_marks(slab, slot, published)).sum();
    let dirty = published.map_or(0, settle);
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
            // The capture takes the lane once for each slab, and once for each 64 bits.
            let most = store.slab_count() + 2 * lacking.len().div_ceil(64) + 2;
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
