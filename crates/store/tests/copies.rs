//! Cells of several copies. The blocks of large values that copies share are freed, and cells of
//! deleted keys are used again. Captures read what commits have left to them.

mod common;

use common::{CheckingLog, Random, env_or, for_seeds, store_with};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use stillpoint_store::rules::{alternate_copy, second_copy, status};
use stillpoint_store::{
    Capture, CellRules, DeletedKey, DirtyRule, Lane, Mode, NoLog, Phase, RecordImage, Reuse,
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
    records: Vec<(Vec<u8>, Shape)>,
}

/// Length and deadline of a value.
type Shape = (usize, u64);

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
        let shape = (record.value.len(), record.value.label().deadline);
        self.records.push((record.key.to_vec(), shape));
    }
    fn emit_deletion(&mut self, _: &DeletedKey<'_>) {
        unreachable!("a checkpoint of everything");
    }
    fn take_back(&mut self) {
        self.records.pop();
    }
}

/// A checkpoint; `meanwhile` runs between the point of consistency and the capture.
fn checkpoint(store: &Store, rule: WriteRule, meanwhile: impl FnOnce()) -> Vec<(Vec<u8>, Shape)> {
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

/// Some keys get large values, some a patch of one, some a small value, some are deleted. Some get another
/// deadline, and some give their value to another key, with which they share its blocks.
fn change(worker: &mut Worker, random: &mut Random, shapes: &mut [Option<Shape>]) {
    for key in 0..KEYS {
        let (name, at) = (key.to_be_bytes(), key as usize);
        let (what, deadline) = (random.below(7), random.below(3) as u64);
        let long = 300_000 + random.below(700_000);
        let other = random.below(KEYS as usize);
        let done = match (what, shapes[at]) {
            (0, _) => {
                shapes[at] = None;
                worker.transact(|tx| tx.delete(T, &name).map(drop))
            }
            (1, Some((len, deadline))) => {
                shapes[at] = Some((len.max(len / 2 + 9), deadline));
                worker.transact(|tx| tx.patch(T, &name, len / 2, &[7; 9]))
            }
            (2, _) => {
                shapes[at] = Some((long / 3_000, 0));
                worker.transact(|tx| tx.put(T, &name, &vec![key as u8; long / 3_000]))
            }
            (3, Some((len, _))) => {
                shapes[at] = Some((len, deadline));
                worker.transact(|tx| {
                    let slot = tx.key(T, &name, Mode::Write)?;
                    tx.set_slot_deadline(slot, deadline)
                })
            }
            (4, Some(shape)) if other != at => {
                // In every second case both keys keep the value, and share its blocks.
                let moves = deadline == 0;
                shapes[other] = Some(shape);
                if moves {
                    shapes[at] = None;
                }
                let to = (other as u64).to_be_bytes();
                worker.transact(|tx| share(tx, (&name, &to), moves))
            }
            _ => {
                shapes[at] = Some((long, deadline));
                worker.transact(|tx| tx.put_until(T, &name, &vec![key as u8; long], deadline))
            }
        };
        done.expect("a value that is lost takes memory");
    }
}

/// Gives key `to` the value of key `from`, which is then deleted if the value `moves`.
fn share(
    tx: &mut Tx<'_>,
    (from, to): (&[u8], &[u8]),
    moves: bool,
) -> Result<(), stillpoint_store::TxError> {
    let (source, target) = (tx.key(T, from, Mode::Write)?, tx.key(T, to, Mode::Write)?);
    let label = tx.value(source).expect("it is there").label();
    let is_large = tx.can_share_slot(source, target);
    if !tx.share_slot(source, target, label)? {
        let value = tx.value(source).expect("it is there").to_vec();
        assert!(!is_large && value.len() < 300_000, "blocks of {} bytes are shared", value.len());
        tx.put_slot_labelled(target, label, &value)?;
    }
    if moves { tx.delete_slot(source).map(drop) } else { Ok(()) }
}

fn expected(shapes: &[Option<Shape>]) -> Vec<(Vec<u8>, Shape)> {
    let named = (0..KEYS).zip(shapes);
    named.filter_map(|(key, shape)| Some((key.to_be_bytes().to_vec(), (*shape)?))).collect()
}

#[test]
fn blocks_of_several_copies_are_freed() {
    for rules in RULES {
        for_seeds(2, |seed| {
            let mut random = Random::new(seed);
            let store = store_with(LIMIT_BYTES, 4, seed, rules);
            let log = Box::new(NoLog::default());
            let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
            let mut shapes = vec![None; KEYS as usize];
            for round in 0..env_or("STORE_TEST_COPY_ROUNDS", ROUNDS) {
                change(&mut worker, &mut random, &mut shapes);
                if round % 3 == 0 {
                    let at_point = expected(&shapes);
                    let meanwhile = || change(&mut worker, &mut random, &mut shapes);
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

/// The first patch after a point of consistency copies the part of a large value that it changes. The other
/// copies share the rest, so the values need hardly more memory than they have bytes.
#[test]
fn a_first_patch_of_a_period_copies_one_part() {
    const LARGE: u64 = 60;
    const BYTES: usize = 1 << 20;
    for rules in RULES {
        let store = store_with(LIMIT_BYTES, 4, 1, rules);
        let log = Box::new(NoLog::default());
        let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
        let mut values = vec![vec![1; BYTES]; LARGE as usize];
        for (key, value) in (0..LARGE).zip(&values) {
            worker.transact(|tx| tx.put(T, &key.to_be_bytes(), value)).expect("memory");
        }
        for period in 0..5u8 {
            let found = checkpoint(&store, rules.write, || {
                for (key, value) in (0..LARGE).zip(&mut values) {
                    let at = (usize::from(period) * 200_000 + key as usize * 9_000) % (BYTES - 8);
                    value[at..at + 8].copy_from_slice(&[period; 8]);
                    let patch = |tx: &mut Tx<'_>| tx.patch(T, &key.to_be_bytes(), at, &[period; 8]);
                    worker.transact(patch).unwrap_or_else(|error| {
                        panic!("{rules:?}, period {period}: {error}");
                    });
                }
            });
            assert_eq!(found.len() as u64, LARGE, "{rules:?}");
            for _ in 0..100 {
                worker.idle();
                store.maintain();
            }
        }
        for (key, value) in (0..LARGE).zip(&values) {
            let get = |tx: &mut Tx<'_>| Ok(tx.get(T, &key.to_be_bytes())?.map(|it| it.to_vec()));
            let found = worker.transact(get).expect("reads");
            assert!(found.as_ref() == Some(value), "{rules:?}: key {key}");
        }
    }
}
