//! Cells of several copies. The blocks of large values that copies share are freed, and cells of
//! deleted keys are used again. Captures read what commits have left to them.

mod common;

use common::{CheckingLog, Random, env_or, for_seeds, store_with};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use stillpoint_store::rules::{alternate_copy, second_copy, status};
use stillpoint_store::{
    Capture, CellRules, DeletedKey, DirtyRule, Lane, NoLog, Phase, RecordImage, Reuse,
    StatusChanges, Store, TableId, Tx, Worker, WriteRule,
};

const T: TableId = TableId(0);
const KEYS: u64 = 8;
/// The values of all keys fit, even with one copy more than the cells have. If each round leaked
/// one value, the memory would not suffice.
const LIMIT_BYTES: usize = 96 << 20;
const ROUNDS: u64 = 60;
/// Bytes of the pool of stable versions that may be in a worker's cache.
const CACHED_BYTES_MAX: usize = 16 << 10;

const ZIGZAG: CellRules = CellRules {
    copies: 2,
    write: WriteRule::SwitchCopies,
    dirty: DirtyRule::None,
    status_changes: StatusChanges::WhileQuiesced,
    reuse: Reuse::OutsideOfCaptures,
};
const SHADOW: CellRules = CellRules {
    copies: 2,
    write: WriteRule::KeepShadow,
    dirty: DirtyRule::None,
    status_changes: StatusChanges::InCapture,
    reuse: Reuse::OutsideOfCaptures,
};
const PING_PONG: CellRules = CellRules {
    copies: 4,
    write: WriteRule::WriteBoth,
    dirty: DirtyRule::None,
    status_changes: StatusChanges::InCapture,
    reuse: Reuse::WhenMerged,
};
const PIGGYBACK: CellRules = CellRules {
    copies: 2,
    write: WriteRule::AlternateCopies,
    dirty: DirtyRule::None,
    status_changes: StatusChanges::AtAnyTime,
    reuse: Reuse::OutsideOfCaptures,
};
const ALONGSIDE: CellRules = CellRules { copies: 3, write: WriteRule::WriteAlongside, ..PIGGYBACK };
const STORED: CellRules = CellRules { copies: 1, write: WriteRule::StoreStable, ..SHADOW };
const RULES: [CellRules; 6] = [ZIGZAG, SHADOW, PING_PONG, PIGGYBACK, ALONGSIDE, STORED];

/// Keeps the keys that a capture emits, with the lengths of their values.
struct Found {
    slot: usize,
    records: Vec<(Vec<u8>, usize)>,
}

impl Capture for Found {
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

impl Lane for Found {
    fn emit(&mut self, record: &RecordImage<'_>) {
        self.records.push((record.key.to_vec(), record.value.len()));
    }
    fn emit_deletion(&mut self, _: &DeletedKey<'_>) {
        unreachable!("a checkpoint of everything");
    }
    fn take_back(&mut self) {
        self.records.pop();
    }
}

/// A checkpoint; `meanwhile` runs between the point of consistency and the capture.
fn checkpoint(store: &Store, rule: WriteRule, meanwhile: impl FnOnce()) -> Vec<(Vec<u8>, usize)> {
    let driver = store.driver();
    let slot = driver.read_sections().claim().expect("a free slot");
    driver.advance(Phase::Prepare);
    if matches!(rule, WriteRule::AlternateCopies | WriteRule::WriteAlongside) {
        for slab in 0..store.group_count() {
            store.visit_records(slab, slot, &mut |cell| cell.bring_over());
        }
    }
    let quiesced = driver.quiesce();
    if rule == WriteRule::SwitchCopies {
        for slab in 0..store.group_count() {
            store.switch_copies(slab, slot);
        }
    }
    driver.advance(Phase::Resolve);
    drop(quiesced);
    driver.advance(Phase::Capture);
    meanwhile();
    let mut found = Found { slot, records: Vec::new() };
    for slab in 0..store.group_count() {
        match rule {
            WriteRule::SwitchCopies => {
                store.scan_records(slab, &mut found, &mut |cell| {
                    cell.take_copy(usize::from(cell.status() & status::NEXT_COPY == 0));
                });
            }
            WriteRule::AlternateCopies => {
                let stable = alternate_copy(driver.now().epoch() + 1);
                store.scan_records(slab, &mut found, &mut |cell| cell.take_copy(stable));
            }
            WriteRule::WriteAlongside => {
                let stable = second_copy(driver.now().epoch() + 1);
                store.scan_records(slab, &mut found, &mut |cell| cell.take_copy(stable));
            }
            WriteRule::KeepShadow => store.capture_or_shadow(slab, &mut found),
            WriteRule::StoreStable => store.capture_or_stable(slab, &mut found),
            _ => store.capture_merged(slab, &mut found),
        }
    }
    driver.advance(Phase::Complete);
    driver.advance(Phase::Rest);
    driver.read_sections().unclaim(slot);
    found.records.sort();
    found.records
}

/// Some keys get large values, some a patch of one, some a small value, some are deleted.
fn change(worker: &mut Worker, random: &mut Random, lens: &mut [Option<usize>]) {
    for key in 0..KEYS {
        let (name, len) = (key.to_be_bytes(), lens[key as usize]);
        let new = match (random.below(5), len) {
            (0, _) => None,
            (1, Some(len)) => {
                let patched = worker.transact(|tx| tx.patch(T, &name, len / 2, &[7; 9]));
                patched.expect("memory");
                Some(len.max(len / 2 + 9))
            }
            (2, _) => Some(random.below(300)),
            _ => Some(300_000 + random.below(700_000)),
        };
        let is_patched = len.is_some() && new.is_some_and(|new| Some(new) == len);
        let done = worker.transact(|tx| match new {
            None => tx.delete(T, &name).map(|_| ()),
            Some(_) if is_patched => Ok(()),
            Some(len) => tx.put(T, &name, &vec![key as u8; len]),
        });
        done.expect("a value that is lost takes memory");
        lens[key as usize] = new;
    }
}

fn expected(lens: &[Option<usize>]) -> Vec<(Vec<u8>, usize)> {
    let named = (0..KEYS).zip(lens);
    named.filter_map(|(key, len)| Some((key.to_be_bytes().to_vec(), (*len)?))).collect()
}

#[test]
fn blocks_of_several_copies_are_freed() {
    for rules in RULES {
        for_seeds(2, |seed| {
            let mut random = Random::new(seed);
            let store = store_with(LIMIT_BYTES, 4, seed, rules);
            let log = Box::new(NoLog::default());
            let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
            let mut lens = vec![None; KEYS as usize];
            for round in 0..env_or("STORE_TEST_COPY_ROUNDS", ROUNDS) {
                change(&mut worker, &mut random, &mut lens);
                if round % 3 == 0 {
                    let at_point = expected(&lens);
                    let meanwhile = || change(&mut worker, &mut random, &mut lens);
                    let found = checkpoint(&store, rules.write, meanwhile);
                    assert_eq!(found, at_point, "{rules:?}, seed {seed}, round {round}");
                    let used = store.stable_pool_bytes().used_bytes;
                    assert!(
                        used <= CACHED_BYTES_MAX,
                        "{rules:?}, round {round}: {used} bytes used"
                    );
                }
                worker.idle();
            }
        });
    }
}

/// A capture during which large values are overwritten holds no memory once it has ended.
#[test]
fn shadows_of_large_values_are_given_back() {
    let store = store_with(LIMIT_BYTES, 4, 1, SHADOW);
    let log = Box::new(NoLog::default());
    let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
    let write = |worker: &mut Worker, byte: u8| {
        for key in 0..KEYS {
            let value = vec![byte; 1 << 20];
            worker.transact(|tx| tx.put(T, &key.to_be_bytes(), &value)).expect("memory");
        }
    };
    let settled = |worker: &mut Worker| {
        for _ in 0..2_000 {
            worker.idle();
            store.maintain();
        }
        store.held_bytes()
    };
    (0..2).for_each(|byte| write(&mut worker, byte));
    let before = settled(&mut worker);
    assert_eq!(checkpoint(&store, SHADOW.write, || write(&mut worker, 2)).len() as u64, KEYS);
    let after = settled(&mut worker);
    // The blocks may lie in two groups more.
    assert!(after <= before + (4 << 20), "{before} bytes before the capture, {after} after it");
}

/// A capture that looks at the pool of stable versions whenever it pauses.
struct Watching<'a> {
    found: Found,
    store: &'a Store,
    pauses: usize,
}

impl Capture for Watching<'_> {
    fn slot(&self) -> usize {
        self.found.slot
    }
    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane)) {
        with(&mut self.found);
    }
    fn pause(&mut self) {
        self.pauses += 1;
        let left = 300 - self.found.records.len();
        assert_eq!(self.store.stable_pool_bytes().used_bytes, left * 128);
    }
    fn is_abandoned(&self) -> bool {
        false
    }
}

/// A commit may wait for slots while the scan pauses. So they go back before.
#[test]
fn a_scan_that_pauses_keeps_no_slots() {
    let store = store_with(LIMIT_BYTES, 4, 1, STORED);
    let write = |byte: u8| {
        let log = Box::new(NoLog::default());
        let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
        for key in 0..300u64 {
            let put = |tx: &mut Tx<'_>| tx.put(T, &key.to_be_bytes(), &[byte; 100]);
            worker.transact(put).expect("memory");
        }
    };
    write(1);
    let driver = store.driver();
    driver.advance(Phase::Prepare);
    driver.advance(Phase::Resolve);
    driver.advance(Phase::Capture);
    write(2);
    let slot = driver.read_sections().claim().expect("a free slot");
    let found = Found { slot, records: Vec::new() };
    let mut watching = Watching { found, store: &store, pauses: 0 };
    for group in 0..store.group_count() {
        store.capture_or_stable(group, &mut watching);
    }
    assert!(watching.found.records.len() == 300 && watching.pauses >= 4, "{}", watching.pauses);
    driver.advance(Phase::Complete);
    driver.advance(Phase::Rest);
    driver.read_sections().unclaim(slot);
}

/// Keys that are inserted and deleted leave no cells behind, once captures have seen their
/// deletions.
#[test]
fn cells_of_deleted_keys_are_used_again() {
    for rules in RULES {
        let store = store_with(LIMIT_BYTES, 4, 1, rules);
        let log = Box::new(NoLog::default());
        let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
        for round in 0..8u64 {
            for key in 0..500u64 {
                let name = (round * 500 + key).to_be_bytes();
                worker.transact(|tx| tx.put(T, &name, &[1; 100])).expect("memory");
            }
            checkpoint(&store, rules.write, || {
                for key in 0..500u64 {
                    let name = (round * 500 + key).to_be_bytes();
                    worker.transact(|tx| tx.delete(T, &name)).expect("memory");
                }
                worker.idle();
            });
            let left = checkpoint(&store, rules.write, || _ = worker.idle());
            assert!(left.is_empty(), "{rules:?}: {} deleted keys are captured", left.len());
            worker.idle();
            assert_eq!(store.cell_count(T), 0, "{rules:?}, round {round}");
        }
    }
}

/// During a capture, cells of keys that are inserted and deleted are used again. Only cells that the
/// capture still has to read are not.
#[test]
fn a_capture_does_not_hold_up_cells_that_it_does_not_need() {
    for rules in RULES {
        let store = store_with(LIMIT_BYTES, 4, 1, rules);
        let (state, closed) = (Arc::default(), Arc::new(AtomicU64::new(u64::MAX)));
        let log = CheckingLog::new(0, &state, &closed);
        let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
        for key in 0..50u64 {
            worker.transact(|tx| tx.put(T, &key.to_be_bytes(), &[1; 100])).expect("memory");
        }
        // The first capture marks all records, so that the second one must capture the deletions.
        checkpoint(&store, rules.write, || ());
        let found = checkpoint(&store, rules.write, || {
            for key in 0..50u64 {
                worker.transact(|tx| tx.delete(T, &key.to_be_bytes())).expect("memory");
            }
            for key in 50..5050u64 {
                let name = key.to_be_bytes();
                worker.transact(|tx| tx.put(T, &name, &[2; 100])).expect("memory");
                worker.transact(|tx| tx.delete(T, &name)).expect("memory");
            }
            let cells = store.cell_count(T);
            assert!((50..300).contains(&cells), "{rules:?}: {cells} cells");
        });
        assert_eq!(found.len(), 50, "{rules:?}");
    }
}
