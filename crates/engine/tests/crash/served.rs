//! Stores that are served while their checkpoints are loaded. The load is held at each of its reads,
//! while sessions read and write.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stillpoint::{
    Durability, Engine, Error, KeySet, Mode, Procedure, Session, Slot, Stamp, TableId, Tx, TxError,
};
use stillpoint_format::manifest::CheckpointKind;
use stillpoint_io::{
    Caching, Clock, Disk, JoinHandle, OpenMode, RealClock, Rng, SeededRng, SimDisk,
};

use crate::gate::{GatedDisk, ReadGate};
use crate::history::State;
use crate::lives::configure;
use crate::settings::Setting;
use crate::workload::scan_table;

const CHANGES: Setting =
    Setting { scheme: "calc:partial", journal: "redo", durability: Durability::Strict };
const FULL: Setting = Setting { scheme: "calc", journal: "redo", durability: Durability::Strict };

/// Keys of the tests, each of which takes some kilobytes, so that a load reads several ranges.
const KEYS: u64 = 1_500;
/// More keys, which no checkpoint has at first.
const OTHERS: u64 = 300;

/// A store that is served while the gate holds its load.
struct Served {
    engine: Arc<Engine>,
    gate: Arc<ReadGate>,
    load: JoinHandle<bool>,
    table: TableId,
    session: Session,
}

/// The limit of memory, in bytes.
const MEMORY_BYTES: usize = 256 << 20;

fn open(disk: &SimDisk, setting: &Setting, serves: bool) -> (Engine, Arc<ReadGate>) {
    let gate = Arc::<ReadGate>::default();
    if !serves {
        gate.open();
    }
    open_gated(disk, setting, (serves, MEMORY_BYTES), gate)
}

/// As [`open`], with a limit of memory, in bytes.
fn open_gated(
    disk: &SimDisk,
    setting: &Setting,
    (serves, max_memory_bytes): (bool, usize),
    gate: Arc<ReadGate>,
) -> (Engine, Arc<ReadGate>) {
    let mut config = configure(setting, disk, &SeededRng::new(1), 4);
    (config.keep_checkpoints, config.merge_after, config.recovery_threads) = (1, None, 1);
    (config.serve_while_loading, config.max_memory_bytes) = (serves, max_memory_bytes);
    let inner = config.environment.disk.take().expect("a simulated one");
    config.environment.disk = Some(Arc::new(GatedDisk(inner, gate.clone())));
    (Engine::open(config).expect("opens"), gate)
}

impl Served {
    fn open(disk: &SimDisk, setting: &Setting) -> Self {
        Self::of(open(disk, setting, true))
    }

    /// The load cannot read the logs, either.
    fn open_without_logs(disk: &SimDisk, setting: &Setting) -> Self {
        let gate = Arc::<ReadGate>::default();
        gate.hold("load");
        let served = Self::of(open_gated(disk, setting, (true, MEMORY_BYTES), gate));
        served.gate.await_held(1);
        served
    }

    fn of((engine, gate): (Engine, Arc<ReadGate>)) -> Self {
        let status = engine.loading();
        assert!(!status.is_done && status.bytes_done == 0, "the store was loaded first");
        let engine = Arc::new(engine);
        let (loading, table) = (engine.clone(), engine.table("things").expect("a table"));
        let load = stillpoint_io::spawn("loads", move || loading.wait_until_loaded().is_ok());
        let session = engine.session().expect("a session");
        Self { engine, gate, load: load.expect("a thread"), table, session }
    }

    /// Lets the load end. Returns the store and a session.
    fn finish(self) -> (Engine, Session) {
        let Self { engine, gate, load, session, .. } = self;
        gate.open();
        assert!(load.join().expect("no panic"), "the load has failed");
        assert!(engine.loading().is_done);
        (Arc::into_inner(engine).expect("one owner"), session)
    }

    /// Ends the store before the load has ended.
    fn cut_off(self) {
        let Self { engine, gate, load, session, .. } = self;
        gate.open();
        load.join().expect("no panic");
        drop((session, engine));
    }
}

type Model = BTreeMap<u64, Vec<u8>>;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn get(session: &mut Session, table: TableId, number: u64) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let found = session.read(table, &key(number), &mut value).expect("reads");
    found.map(|_| value)
}

/// Whether a look failed since the record is on the disk.
fn not_loaded(error: Error) -> bool {
    matches!(error, Error::Transaction(TxError::NotLoaded))
}

fn delete(session: &mut Session, table: TableId, number: u64) -> bool {
    session.transact(|tx| tx.delete(table, &key(number))).expect("commits")
}

fn put(session: &mut Session, table: TableId, number: u64, value: &[u8]) {
    session.transact(|tx| tx.put(table, &key(number), value)).expect("commits");
}

/// One random change or look, which must find what the model has.
fn step(session: &mut Session, table: TableId, rng: &SeededRng, model: &mut Model) {
    let number = rng.below(KEYS + OTHERS);
    let there = model.get(&number).cloned();
    let bytes = rng.next_u64().to_le_bytes();
    match rng.below(10) {
        0..=1 => assert_eq!(get(session, table, number), there, "key {number}"),
        2 => {
            let found =
                session.transact(|tx| Ok(tx.get(table, &key(number))?.map(|value| value.to_vec())));
            assert_eq!(found.expect("commits"), there, "key {number}");
        }
        3..=4 => {
            let value = bytes.repeat(1 + rng.below(500) as usize);
            put(session, table, number, &value);
            model.insert(number, value);
        }
        5 => {
            assert_eq!(delete(session, table, number), there.is_some(), "key {number}");
            model.remove(&number);
        }
        6 => {
            // Existence is known before the key is written.
            let added = session.transact(|tx| {
                let slot = tx.key(table, &key(number), Mode::Write)?;
                let existed = tx.existed(slot);
                if !existed {
                    tx.put_slot(slot, &bytes)?;
                }
                Ok(!existed)
            });
            assert_eq!(added.expect("commits"), there.is_none(), "key {number}");
            model.entry(number).or_insert_with(|| bytes.to_vec());
        }
        7..=8 if there.is_some() => {
            let mut value = there.expect("it is there");
            let offset = rng.below(value.len() as u64 + 1) as usize;
            let patch = session.transact(|tx| tx.patch(table, &key(number), offset, &bytes));
            patch.expect("commits");
            value.resize(value.len().max(offset + 8), 0);
            value[offset..offset + 8].copy_from_slice(&bytes);
            model.insert(number, value);
        }
        _ => {
            if let Some(mut value) = there.filter(|value| value.len() > 20) {
                let removed = rng.below(20) as usize;
                let spliced = session.transact(|tx| {
                    let slot = tx.key(table, &key(number), Mode::Write)?;
                    tx.splice_slot(slot, 0, removed, &bytes)
                });
                spliced.expect("commits");
                value.splice(0..removed, bytes);
                model.insert(number, value);
            }
            session.idle();
        }
    }
}

fn assert_same(session: &mut Session, table: TableId, model: &Model) {
    assert_eq!(session.len(table).expect("counts"), model.len() as u64);
    let expected: State = model
        .iter()
        .map(|(number, value)| ((table.0, key(*number).to_vec()), (0, value.clone())))
        .collect();
    let found = scan_table(session, table.0).expect("nothing fails");
    for (key, value) in &expected {
        assert_eq!(found.get(key), Some(value), "key {:?}", key.1);
    }
    assert_eq!(found.len(), expected.len(), "keys came back");
}

/// A chain of a full checkpoint and some of changes, and a log behind it.
fn store_with_chain(setting: &Setting, rng: &SeededRng) -> (SimDisk, Model) {
    let disk = SimDisk::new(1);
    let (engine, _) = open(&disk, setting, false);
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    let mut model = Model::new();
    for number in 0..KEYS {
        // Some values are large, and take blocks of their own.
        let len = if number.is_multiple_of(100) { 80 << 10 } else { 3_000 };
        let value = vec![number as u8; len];
        put(&mut session, table, number, &value);
        model.insert(number, value);
    }
    engine.checkpoint().expect("a full one");
    let links = if setting.scheme == "calc:partial" { 3 } else { 0 };
    for _ in 0..links {
        (0..120).for_each(|_| step(&mut session, table, rng, &mut model));
        engine.checkpoint().expect("one of changes");
    }
    (0..200).for_each(|_| step(&mut session, table, rng, &mut model));
    drop((session, engine));
    (disk.crash(2), model)
}

/// The load is held after each number of reads, while a session reads and writes. Then it ends, or the
/// machine dies. The next start, which may be served, too, has everything.
pub(crate) fn nothing_is_lost_or_stale_wherever_the_load_stands() {
    for (at, setting) in [CHANGES, FULL].iter().enumerate() {
        for reads in [0, 1, 2, 3, 5] {
            let rng = SeededRng::new(10 * at as u64 + reads as u64);
            let (mut disk, mut model) = store_with_chain(setting, &rng);
            for life in 0..3 {
                let mut served = Served::open(&disk, setting);
                served.gate.let_pass(reads);
                for _ in 0..250 {
                    step(&mut served.session, served.table, &rng, &mut model);
                }
                let table = served.table;
                if rng.below(2) == 0 {
                    served.cut_off();
                } else {
                    let (engine, mut session) = served.finish();
                    assert_same(&mut session, table, &model);
                    (0..50).for_each(|_| step(&mut session, table, &rng, &mut model));
                    if rng.below(2) == 0 {
                        engine.checkpoint().expect("the load has ended");
                    }
                    assert_same(&mut session, table, &model);
                    drop((session, engine));
                }
                disk = disk.crash(life);
            }
            let (engine, _) = open(&disk, setting, false);
            let table = engine.table("things").expect("a table");
            let mut session = engine.session().expect("a session");
            assert_same(&mut session, table, &model);
        }
    }
}

/// Checkpoints of changes that are taken while the load stands still have what the logs have had and what
/// was written since. The load goes on after them, and a start after a crash lacks nothing.
pub(crate) fn a_checkpoint_of_changes_waits_for_no_load() {
    for seed in 0..3 {
        let rng = SeededRng::new(seed);
        let (mut disk, mut model) = store_with_chain(&CHANGES, &rng);
        for life in 0..2 {
            let mut served = Served::open(&disk, &CHANGES);
            let table = served.table;
            served.gate.let_pass(life);
            for _ in 0..2 {
                (0..60).for_each(|_| step(&mut served.session, table, &rng, &mut model));
                let done = served.engine.checkpoint().expect("one of changes");
                assert_eq!(done.kind, CheckpointKind::Partial);
                assert!(!served.engine.loading().is_done, "it has waited for the load");
            }
            (0..30).for_each(|_| step(&mut served.session, table, &rng, &mut model));
            if life == 0 {
                served.cut_off();
            } else {
                let (engine, mut session) = served.finish();
                assert_same(&mut session, table, &model);
                drop((session, engine));
            }
            disk = disk.crash(seed);
            let (engine, _) = open(&disk, &CHANGES, false);
            let mut session = engine.session().expect("a session");
            assert_same(&mut session, engine.table("things").expect("a table"), &model);
            drop((session, engine));
            disk = disk.crash(seed);
        }
    }
}

/// What a session writes while the load stands still is newer than what the load has of the key.
pub(crate) fn a_load_overwrites_nothing_newer() {
    let (disk, _) = store_with_chain(&FULL, &SeededRng::new(1));
    let mut served = Served::open(&disk, &FULL);
    let table = served.table;
    for number in 0..KEYS {
        put(&mut served.session, table, number, b"new");
    }
    let (engine, mut session) = served.finish();
    for number in 0..KEYS {
        assert_eq!(get(&mut session, table, number).as_deref(), Some(&b"new"[..]), "{number}");
    }
    drop((session, engine));
}

/// A replayed patch is applied to the record of the checkpoint, whoever finds it.
pub(crate) fn a_replayed_patch_waits_for_its_base() {
    let disk = SimDisk::new(1);
    let (engine, _) = open(&disk, &CHANGES, false);
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    (0..20).for_each(|number| put(&mut session, table, number, b"0123456789"));
    engine.checkpoint().expect("a full one");
    for number in 0..20 {
        for (offset, bytes) in [(3, b"abc"), (5, b"xyz"), (10, b"...")] {
            let patched = session.transact(|tx| tx.patch(table, &key(number), offset, bytes));
            patched.expect("commits");
        }
    }
    drop((session, engine));
    let mut served = Served::open(&disk.crash(1), &CHANGES);
    for number in 0..10 {
        let found = get(&mut served.session, table, number);
        assert_eq!(found.as_deref(), Some(&b"012abxyz89..."[..]), "asked for");
    }
    let (engine, mut session) = served.finish();
    for number in 0..20 {
        let found = get(&mut session, table, number);
        assert_eq!(found.as_deref(), Some(&b"012abxyz89..."[..]), "loaded");
    }
    // The patches are in the next checkpoint of changes.
    assert_eq!(engine.checkpoint().expect("one of changes").records, 20);
    drop((session, engine));
}

/// What only the log has enters the store with the load, though nobody asks for it. A record of the
/// checkpoint that the log has replaced or deleted does not come back.
pub(crate) fn what_only_the_log_has_is_loaded() {
    let disk = SimDisk::new(1);
    let (engine, _) = open(&disk, &CHANGES, false);
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    (0..200).for_each(|number| put(&mut session, table, number, b"old"));
    engine.checkpoint().expect("a full one");
    (190..210).for_each(|number| put(&mut session, table, number, b"new"));
    (0..10).for_each(|number| assert!(delete(&mut session, table, number)));
    drop((session, engine));
    let disk = disk.crash(1);
    let mut served = Served::open(&disk, &CHANGES);
    for number in [191, 201] {
        assert_eq!(get(&mut served.session, table, number).as_deref(), Some(&b"new"[..]), "asked");
    }
    for number in [192, 202] {
        assert!(delete(&mut served.session, table, number), "the log has it");
    }
    assert!(!delete(&mut served.session, table, 5), "the log has deleted it");
    served.session.flush().expect("durable");
    // Idle sessions reclaim the cells of deleted keys.
    for _ in 0..20 {
        served.session.idle();
    }
    let mut model = Model::new();
    model.extend((10..190).map(|number| (number, b"old".to_vec())));
    model.extend((190..210).map(|number| (number, b"new".to_vec())));
    model.remove(&192);
    model.remove(&202);
    let (engine, mut session) = served.finish();
    assert_same(&mut session, table, &model);
    // The values and deletions of the log are in the next checkpoint of changes.
    let done = engine.checkpoint().expect("one of changes");
    drop((session, engine));
    let (engine, _) = open(&disk.crash(2), &CHANGES, false);
    assert_same(&mut engine.session().expect("a session"), table, &model);
    assert_eq!(done.records, 30);
}

/// A checkpoint and a log. The log patches keys below 50, deletes those below 60, and adds 300, which take
/// several windows.
fn store_with_log(setting: &Setting) -> (SimDisk, Model) {
    let disk = SimDisk::new(1);
    let (engine, _) = open(&disk, setting, false);
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    let mut model: Model = (0..200).map(|number| (number, vec![number as u8; 100])).collect();
    model.iter().for_each(|(&number, value)| put(&mut session, table, number, value));
    engine.checkpoint().expect("a full one");
    for number in 0..50 {
        session.transact(|tx| tx.patch(table, &key(number), 5, b"patch")).expect("commits");
        model.get_mut(&number).expect("it is there")[5..10].copy_from_slice(b"patch");
    }
    (50..60).for_each(|number| assert!(delete(&mut session, table, number)));
    model.retain(|number, _| !(50..60).contains(number));
    for number in 1_000..1_300 {
        model.insert(number, vec![number as u8; 3_000]);
        put(&mut session, table, number, &model[&number]);
    }
    drop((session, engine));
    (disk.crash(1), model)
}

/// Nobody reads the logs before somebody needs them, and an event loop never does. Once a checkpoint of
/// changes has what they hold, they may be written over, also under a read that was begun before.
pub(crate) fn logs_are_read_by_those_who_need_them() {
    let (disk, mut model) = store_with_log(&CHANGES);
    let mut served = Served::open_without_logs(&disk, &CHANGES);
    let table = served.table;
    served.session.leave_unloaded(true);
    for number in [3, 53, 1_003] {
        let read = served.session.read(table, &key(number), &mut Vec::new());
        assert!(read.is_err_and(not_loaded), "the log has key {number}");
    }
    assert_eq!(get(&mut served.session, table, 5_000), None, "nobody has it");
    served.session.leave_unloaded(false);
    for number in [3, 53, 153, 1_003] {
        let found = get(&mut served.session, table, number);
        assert_eq!(found.as_ref(), model.get(&number), "key {number}");
    }
    served.gate.hold("asks");
    let asking = {
        let engine = served.engine.clone();
        let asks = move || get(&mut engine.session().expect("a session"), table, 1_290);
        stillpoint_io::spawn("asks", asks).expect("a thread")
    };
    served.gate.await_held(2);
    served.engine.checkpoint().expect("one of changes");
    for number in 2_000..4_000 {
        model.insert(number, vec![number as u8; 3_000]);
        put(&mut served.session, table, number, &model[&number]);
    }
    served.session.flush().expect("durable");
    served.gate.release();
    assert_eq!(asking.join().expect("no panic").as_ref(), model.get(&1_290));
    let (engine, mut session) = served.finish();
    assert_same(&mut session, table, &model);
    drop((session, engine));
    let (engine, _) = open(&disk.crash(2), &CHANGES, false);
    assert_same(&mut engine.session().expect("a session"), table, &model);
}

/// A log that is damaged after a start has read it is told to whoever needs it, and no checkpoint is made
/// without it.
pub(crate) fn a_log_that_is_damaged_late_is_told() {
    let (disk, model) = store_with_log(&CHANGES);
    let mut served = Served::open_without_logs(&disk, &CHANGES);
    let table = served.table;
    let mut segments = Vec::new();
    for log in 0..4 {
        let dir = PathBuf::from(stillpoint_format::names::log_dir(log));
        let names = disk.list(&dir).unwrap_or_default();
        let parsed = |name: &String| stillpoint_format::names::parse_segment_name(name);
        segments.extend(names.iter().filter_map(|name| Some((parsed(name)?.0, dir.join(name)))));
    }
    let newest = segments.iter().map(|(incarnation, _)| *incarnation).max();
    for (_, path) in segments.iter().filter(|(incarnation, _)| Some(*incarnation) < newest) {
        let file = disk.open(path, OpenMode::ReadWrite, Caching::Buffered).expect("it is there");
        let bytes = file.len().expect("its length") as usize;
        file.write_at(&vec![0xA5; bytes - 4096], 4096).expect("writes");
    }
    assert_eq!(get(&mut served.session, table, 153).as_ref(), model.get(&153));
    for number in [3, 53, 1_003] {
        let read = served.session.read(table, &key(number), &mut Vec::new());
        let error = read.expect_err("the log has it").to_string();
        assert!(error.contains("damage"), "key {number}: {error}");
        let put = served.session.transact(|tx| tx.put(table, &key(number), b"new"));
        put.expect_err("it is not known what the key has");
    }
    served.engine.checkpoint().expect_err("a record would be missing");
    served.gate.release();
    assert!(!served.load.join().expect("no panic"), "it has entered what nobody can read");
    let failure = served.engine.loading().failure.expect("the load has stopped");
    assert!(failure.contains("damage"), "{failure}");
}

/// A key that is deleted while the load stands still does not come back with the load. Its deletion is in
/// the next checkpoint.
pub(crate) fn a_deleted_key_stays_deleted() {
    let disk = SimDisk::new(1);
    let (engine, _) = open(&disk, &CHANGES, false);
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    (0..200).for_each(|number| put(&mut session, table, number, b"old"));
    engine.checkpoint().expect("a full one");
    (0..10).for_each(|number| assert!(delete(&mut session, table, number)));
    engine.checkpoint().expect("one of changes");
    (10..20).for_each(|number| assert!(delete(&mut session, table, number)));
    drop((session, engine));
    let disk = disk.crash(1);
    let mut served = Served::open(&disk, &CHANGES);
    for number in 20..30 {
        assert!(delete(&mut served.session, table, number), "the checkpoint has it");
        assert!(!delete(&mut served.session, table, number), "it is gone");
    }
    (0..20).for_each(|number| assert_eq!(get(&mut served.session, table, number), None));
    served.session.flush().expect("durable");
    // Idle sessions reclaim the cells of deleted keys.
    for _ in 0..5 {
        served.session.idle();
    }
    // A key that was replayed is deleted again.
    put(&mut served.session, table, 15, b"again");
    assert!(delete(&mut served.session, table, 15));
    let (engine, mut session) = served.finish();
    let all = |session: &mut Session| {
        (0..200).filter(|&number| get(session, table, number).is_some()).collect::<Vec<_>>()
    };
    assert_eq!(all(&mut session), (30..200).collect::<Vec<_>>());
    let done = engine.checkpoint().expect("one of changes");
    assert_eq!(done.records, 20, "the deletions of this run and of the replayed log");
    drop((session, engine));
    let (engine, _) = open(&disk.crash(2), &CHANGES, false);
    let mut session = engine.session().expect("a session");
    assert_eq!(all(&mut session), (30..200).collect::<Vec<_>>(), "after the checkpoint");
}

/// As [`a_deleted_key_stays_deleted`], with full checkpoints: nothing else keeps the cell of a deleted key.
pub(crate) fn a_deleted_key_stays_deleted_without_tombstones() {
    let disk = SimDisk::new(1);
    let (engine, _) = open(&disk, &FULL, false);
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    (0..200).for_each(|number| put(&mut session, table, number, b"old"));
    engine.checkpoint().expect("a full one");
    drop((session, engine));
    let disk = disk.crash(1);
    let mut served = Served::open(&disk, &FULL);
    (20..30).for_each(|number| assert!(delete(&mut served.session, table, number)));
    served.session.flush().expect("durable");
    // Idle sessions reclaim the cells of deleted keys.
    for _ in 0..20 {
        served.session.idle();
    }
    (20..30).for_each(|number| assert_eq!(get(&mut served.session, table, number), None));
    let (engine, mut session) = served.finish();
    let left = (0..200).filter(|&number| get(&mut session, table, number).is_some()).count();
    assert_eq!(left, 190, "deleted keys came back with the load");
    drop((session, engine));
}

/// Who reads a record from the disk holds up nobody. A flush of tables waits for read sections, and goes
/// on. So does a session that leaves such records alone.
pub(crate) fn a_wait_for_the_disk_holds_up_nobody() {
    let (disk, model) = store_with_chain(&FULL, &SeededRng::new(5));
    let mut served = Served::open(&disk, &FULL);
    let table = served.table;
    let is_untouched = |number: &u64| model.get(number) == Some(&vec![*number as u8; 3_000]);
    let untouched: Vec<u64> = (1..KEYS).filter(is_untouched).take(2).collect();
    let others = served.engine.table("others").expect("a new table");
    served.gate.hold("asks");
    let asking = {
        let (engine, number) = (served.engine.clone(), untouched[0]);
        let asks = move || get(&mut engine.session().expect("a session"), table, number);
        stillpoint_io::spawn("asks", asks).expect("a thread")
    };
    served.gate.await_held(1);
    served.session.leave_unloaded(true);
    for &number in &untouched {
        let read = served.session.read(table, &key(number), &mut Vec::new());
        assert!(read.is_err_and(not_loaded), "key {number} was read");
        let put = served.session.transact(|tx| tx.put(table, &key(number), b"new"));
        assert!(put.is_err_and(not_loaded), "key {number} was written");
    }
    assert_eq!(get(&mut served.session, table, KEYS + OTHERS), None, "no block may have it");
    put(&mut served.session, table, KEYS + OTHERS, b"new");
    served.engine.flush_tables(&[others]).expect("empties");
    served.gate.release();
    assert_eq!(asking.join().expect("no panic").as_ref(), model.get(&untouched[0]));
    // The record is in memory now.
    assert_eq!(get(&mut served.session, table, untouched[0]).as_ref(), model.get(&untouched[0]));
    served.session.leave_unloaded(false);
    assert_eq!(get(&mut served.session, table, untouched[1]).as_ref(), model.get(&untouched[1]));
    let (engine, mut session) = served.finish();
    let mut model = model;
    model.insert(KEYS + OTHERS, b"new".to_vec());
    assert_same(&mut session, table, &model);
    drop((session, engine));
}

/// Keys that no checkpoint has come and go, and their memory comes back, although the load stands still.
pub(crate) fn keys_that_come_and_go_take_no_memory() {
    let (disk, mut model) = store_with_chain(&CHANGES, &SeededRng::new(6));
    let mut served = Served::open(&disk, &CHANGES);
    let table = served.table;
    let memory = |served: &Served| served.engine.stats().memory_bytes;
    let before = memory(&served);
    for number in 10_000..14_000 {
        put(&mut served.session, table, number, &[1; 3_000]);
        assert!(delete(&mut served.session, table, number));
        // A lock of a key without a value, which a checkpoint has, leaves its cell once.
        delete(&mut served.session, table, 5);
        model.remove(&5);
        if number.is_multiple_of(50) {
            served.session.flush().expect("durable");
            for _ in 0..4 {
                served.session.idle();
            }
        }
    }
    let grown = memory(&served).saturating_sub(before);
    assert!(grown < 3 << 20, "{grown} bytes more for 12,000,000 that came and went");
    let (engine, mut session) = served.finish();
    assert_same(&mut session, table, &model);
    engine.checkpoint().expect("the load has ended");
    assert_same(&mut session, table, &model);
    drop((session, engine));
}

/// A table that is emptied while the load stands still gets nothing of what it had. With all tables
/// emptied, the load ends before it has read everything.
pub(crate) fn an_emptied_table_gets_nothing_of_the_load() {
    let (disk, _) = store_with_chain(&CHANGES, &SeededRng::new(3));
    let mut served = Served::open(&disk, &CHANGES);
    let table = served.table;
    assert!(get(&mut served.session, table, 1_111).is_some());
    let mut session = served.session;
    served.engine.flush_tables(&[table]).expect("empties");
    while !served.engine.loading().is_done {
        RealClock.sleep(Duration::from_millis(1));
    }
    assert_eq!(get(&mut session, table, 1_111), None);
    put(&mut session, table, 7, b"new");
    assert_eq!(session.len(table).expect("counts"), 1, "it waits for no read");
    // The read that stands at the gate, and those that were begun before somebody sees that they are
    // in vain.
    while !served.load.is_finished() {
        served.gate.let_pass(1);
        RealClock.sleep(Duration::from_millis(20));
    }
    assert!(served.load.join().expect("no panic"), "the load has failed");
    let (engine, gate) = (served.engine, served.gate);
    assert!(engine.loading().is_done && !gate.has_passed(5), "everything was read");
    let engine = Arc::into_inner(engine).expect("one owner");
    let model = Model::from([(7, b"new".to_vec())]);
    assert_same(&mut session, table, &model);
    drop((session, engine));
    let (engine, _) = open(&disk.crash(1), &CHANGES, false);
    assert_same(&mut engine.session().expect("a session"), table, &model);
}

/// A damaged block is told to whoever needs it, and no checkpoint is made without it.
pub(crate) fn damage_that_shows_late_is_told() {
    let (disk, model) = store_with_chain(&FULL, &SeededRng::new(4));
    let mut served = stopped_by_damage(&disk);
    let told = served.engine.loading().failure.expect("the load has stopped");
    assert!(told.contains("damaged"), "{told}");
    let (mut found, mut refused) = (0, 0);
    for number in 0..KEYS {
        let mut value = Vec::new();
        match served.session.read(served.table, &key(number), &mut value) {
            Ok(read) => {
                found += 1;
                assert_eq!(read.map(|_| &value), model.get(&number), "key {number}");
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("damaged"), "{error}");
                let table = served.table;
                let put = served.session.transact(|tx| tx.put(table, &key(number), b"new"));
                put.expect_err("it is not known what the key has");
            }
        }
    }
    assert!(refused > 0 && found > refused, "{found} found, {refused} refused");
    let refused = served.engine.checkpoint().expect_err("a record would be missing");
    assert!(refused.to_string().contains("not all loaded"), "{refused}");
    assert!(served.session.len(served.table).is_err(), "nobody knows how many there are");
}

/// A store with a damaged block, whose load stops.
fn stopped_by_damage(disk: &SimDisk) -> Served {
    let newest = crate::chains::manifest(disk).checkpoints[0].clone();
    let dir = stillpoint_format::names::checkpoint_dir(newest.serial, newest.kind);
    let part = Path::new(&dir).join(&newest.parts[0].file);
    let file = disk.open(&part, OpenMode::ReadWrite, Caching::Buffered).expect("it is there");
    file.write_at(&[0xA5; 100], 4096 + 2_000).expect("writes");
    file.sync().expect("flushes");
    let served = Served::open(disk, &FULL);
    served.gate.open();
    while served.engine.loading().failure.is_none() {
        RealClock.sleep(Duration::from_millis(1));
    }
    served
}

/// A load that has met damage ends after all, once the tables of the checkpoint are emptied. So checkpoints
/// are taken again.
pub(crate) fn a_flush_of_what_is_damaged_ends_the_load() {
    let (disk, _) = store_with_chain(&FULL, &SeededRng::new(4));
    let mut served = stopped_by_damage(&disk);
    let table = served.table;
    served.engine.checkpoint().expect_err("a record would be missing");
    served.engine.flush_tables(&[table]).expect("empties");
    let status = served.engine.loading();
    assert!(status.is_done && status.failure.is_none(), "{status:?}");
    put(&mut served.session, table, 7, b"new");
    let model = Model::from([(7, b"new".to_vec())]);
    assert_same(&mut served.session, table, &model);
    served.engine.checkpoint().expect("nothing is missing");
    let Served { engine, load, session, .. } = served;
    assert!(!load.join().expect("no panic"), "it has stopped before");
    drop((session, engine));
    let (engine, _) = open(&disk.crash(1), &FULL, false);
    assert_same(&mut engine.session().expect("a session"), table, &model);
}

/// While the load stands still, an emptied table needs no memory for what it had.
pub(crate) fn memory_is_kept_for_what_still_counts() {
    let disk = SimDisk::new(1);
    let (engine, _) = open(&disk, &FULL, false);
    let (large, small) = (engine.table("large"), engine.table("small"));
    let (large, small) = (large.expect("a table"), small.expect("a table"));
    let mut session = engine.session().expect("a session");
    (0..4_000).for_each(|number| put(&mut session, large, number, &[1; 2_000]));
    (0..20).for_each(|number| put(&mut session, small, number, &[1; 2_000]));
    engine.checkpoint().expect("a full one");
    drop((session, engine));
    let served = Served::open(&disk.crash(1), &FULL);
    let before = served.engine.stats().memory_bytes;
    assert!(before > 8_000_000, "{before} bytes are kept for 8,000,000");
    served.engine.flush_tables(&[large]).expect("empties");
    let after = served.engine.stats().memory_bytes;
    assert!(after + 7_000_000 < before, "{after} bytes of {before} are kept");
    served.cut_off();
}

/// A chain of many links has each key several times, and needs memory for it once.
pub(crate) fn a_long_chain_is_served_within_the_limit() {
    let disk = SimDisk::new(1);
    let (engine, _) = open(&disk, &CHANGES, false);
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    (0..6_000).for_each(|number| put(&mut session, table, number, &[1; 2_000]));
    engine.checkpoint().expect("a full one");
    for link in 0..7 {
        (0..3_000).for_each(|number| put(&mut session, table, 2 * number, &[link; 2_000]));
        engine.checkpoint().expect("one of changes");
    }
    drop((session, engine));
    // The records of all links have 54 MB, and those that count 12.
    let disk = disk.crash(1);
    let limit = 40 << 20;
    let served = Served::of(open_gated(&disk, &CHANGES, (true, limit), Arc::default()));
    assert!(served.engine.stats().memory_bytes <= limit);
    let (engine, mut session) = served.finish();
    assert_eq!(session.len(table).expect("counts"), 6_000);
    assert_eq!(get(&mut session, table, 100).as_deref(), Some(&[6; 2_000][..]));
    assert!(engine.stats().memory_bytes <= limit);
    drop((session, engine));
}

/// Adds one to the number below a key, and takes an error for a missing number.
struct Careless {
    table: TableId,
    runs: usize,
}

impl Procedure for Careless {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.table, &key(KEYS + 1), Mode::Write, 8);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.runs += 1;
        let found = tx.key_under(Slot(0), self.table, &key(1), 8);
        let first = found.ok().and_then(|slot| tx.value(slot).map(|value| value.to_vec()[0]));
        tx.put_slot(Slot(0), &[first.map_or(0, |first| first + 1)])
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("it commits");
    }
}

/// A run that has missed a record counts for nothing, whatever its body has made of it. The next run
/// finds the record.
pub(crate) fn a_run_that_misses_a_record_does_not_commit() {
    let (disk, model) = store_with_chain(&FULL, &SeededRng::new(7));
    let first = model[&1][0];
    let mut served = Served::open(&disk, &FULL);
    let mut careless = Careless { table: served.table, runs: 0 };
    served.session.execute(std::slice::from_mut(&mut careless));
    assert_eq!(careless.runs, 2);
    let found = get(&mut served.session, served.table, KEYS + 1);
    assert_eq!(found, Some(vec![first + 1]), "a commit on what was not read");
    let (engine, session) = served.finish();
    drop((session, engine));
}
