//! The header of a collection and its nodes, under random schedules. A writer changes nodes or replaces them all. A
//! reader takes no lock. A reclaimer removes what a replacement has left, and a checkpoint captures. Whoever sees a
//! header sees all its nodes, in the version of the header.
#![cfg(shuttle)]

mod common;

use common::{Contents, Gathered, checkpoint};
use shuttle::thread;
use std::sync::Arc;
use stillpoint_store::{
    CellRules, KeySet, Mode, NoLog, Procedure, Slot, Stamp, Store, StoreConfig, TableId, Tx,
    TxError, Worker,
};

const SCHEDULES: usize = 1_500;
const HEADERS: TableId = TableId(0);
const NODES: TableId = TableId(1);
const GRAVES: TableId = TableId(2);
const HEADER: &[u8] = b"header";
/// Nodes of a collection.
const COUNT: u64 = 2;

fn node(incarnation: u64, number: u64) -> Vec<u8> {
    [incarnation.to_be_bytes(), number.to_be_bytes()].concat()
}

/// One transaction, and how it has ended.
struct Step<F> {
    keys: Vec<(TableId, Vec<u8>, Mode)>,
    run: F,
    ended: Option<Result<(), TxError>>,
}

impl<F: FnMut(&mut Tx<'_>) -> Result<(), TxError>> Procedure for Step<F> {
    fn declare(&mut self, keys: &mut KeySet) {
        for (table, key, mode) in &self.keys {
            keys.push(*table, key, *mode, 8);
        }
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        (self.run)(tx)
    }

    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.ended = Some(result.map(|_| ()));
    }
}

fn execute(
    worker: &mut Worker,
    keys: Vec<(TableId, Vec<u8>, Mode)>,
    run: impl FnMut(&mut Tx<'_>) -> Result<(), TxError>,
) {
    let mut step = Step { keys, run, ended: None };
    worker.execute(std::slice::from_mut(&mut step));
    step.ended.expect("it has ended").expect("memory");
}

/// The incarnation and the version of the collection.
fn header(tx: &mut Tx<'_>) -> (u64, u64) {
    let value = tx.value(Slot(0));
    value.map_or((0, 0), |value| (value.u64_at(0).unwrap_or(0), value.u64_at(8).unwrap_or(0)))
}

/// Writes all nodes of a version, and the header.
fn write(tx: &mut Tx<'_>, incarnation: u64, version: u64) -> Result<(), TxError> {
    for number in 0..COUNT {
        let slot = tx.key_under(Slot(0), NODES, &node(incarnation, number), 8)?;
        tx.put_slot(slot, &version.to_le_bytes())?;
    }
    tx.put_slot(Slot(0), &[incarnation.to_le_bytes(), version.to_le_bytes()].concat())
}

fn change(worker: &mut Worker, replaces: bool) {
    execute(worker, vec![(HEADERS, HEADER.to_vec(), Mode::Write)], |tx| {
        let (old, version) = header(tx);
        if !replaces && old > 0 {
            return write(tx, old, version + 1);
        }
        if old > 0 {
            let grave = tx.key_under(Slot(0), GRAVES, &old.to_be_bytes(), 8)?;
            tx.put_slot(grave, b"grave")?;
        }
        write(tx, old + 1, version + 1)
    });
}

fn read(worker: &mut Worker) {
    let mut seen = ((0, 0), Vec::new());
    execute(worker, vec![(HEADERS, HEADER.to_vec(), Mode::Read)], |tx| {
        let of = header(tx);
        let mut versions = Vec::new();
        for number in 0..COUNT {
            let mut value = Vec::new();
            tx.read_under(Slot(0), NODES, &node(of.0, number), &mut value)?;
            versions.push(value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)));
        }
        seen = (of, versions);
        Ok(())
    });
    assert_eq!(seen.1, [seen.0.1; COUNT as usize], "{:?}", seen.0);
}

/// Removes the nodes of an incarnation that has a grave. Nobody else locks these nodes any more.
fn reclaim(worker: &mut Worker, incarnation: u64) {
    let grave = (GRAVES, incarnation.to_be_bytes().to_vec());
    let mut is_there = false;
    execute(worker, vec![(grave.0, grave.1.clone(), Mode::Read)], |tx| {
        is_there = tx.value(Slot(0)).is_some();
        Ok(())
    });
    if !is_there {
        return;
    }
    let mut keys = vec![(grave.0, grave.1, Mode::Write)];
    keys.extend((0..COUNT).map(|number| (NODES, node(incarnation, number), Mode::Write)));
    execute(worker, keys, |tx| {
        (0..=COUNT as u32).try_for_each(|slot| tx.delete_slot(Slot(slot)).map(drop))
    });
}

fn check(contents: &Contents) {
    let Some((_, header)) = contents.get(&(HEADERS.0, HEADER.to_vec())) else { return };
    let number = |at: usize| header[at..at + 8].try_into().map(u64::from_le_bytes);
    let (Ok(incarnation), Ok(version)) = (number(0), number(8)) else { panic!("{header:?}") };
    for number in 0..COUNT {
        let found = contents.get(&(NODES.0, node(incarnation, number))).map(|(_, value)| &**value);
        assert_eq!(found, Some(&version.to_le_bytes()[..]), "node {number} of {incarnation}");
    }
}

fn work() {
    let config =
        StoreConfig { max_memory_bytes: 1 << 20, workers: 5, hash_seed: 1, ..Default::default() };
    let store = Arc::new(Store::new(&config, CellRules::BEFORE_IMAGES).expect("a model's memory"));
    for table in [HEADERS, NODES, GRAVES] {
        store.add_table(table, 1).expect("a model's memory");
    }
    let worker = || Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot");
    let mut first = worker();
    change(&mut first, true);
    let (mut writer, mut reader, mut reclaimer) = (worker(), worker(), worker());
    let threads = [
        thread::spawn(move || {
            [false, true, false].into_iter().for_each(|it| change(&mut writer, it))
        }),
        thread::spawn(move || (0..3).for_each(|_| read(&mut reader))),
        thread::spawn(move || [1, 2, 1].into_iter().for_each(|it| reclaim(&mut reclaimer, it))),
    ];
    let gathered = Arc::new(Gathered::default());
    check(&checkpoint(&store, &gathered, |_| {}));
    for thread in threads {
        thread.join().expect("no panic");
    }
    reclaim(&mut first, 1);
    read(&mut first);
    let left = checkpoint(&store, &gathered, |_| {});
    check(&left);
    assert_eq!(left.len() as u64, 1 + COUNT, "what was replaced is gone");
}

#[test]
fn a_header_comes_with_all_its_nodes() {
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}
