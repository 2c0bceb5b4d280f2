//! Loading a checkpoint's records: every kind of records, keys that the store has already, several
//! loaders at once, and too little memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use stillpoint_store::{
    Before, CellRules, KeyImage, Loader, NoLog, Replayed, Store, StoreConfig, TableId, TxError,
    Worker,
};

const TABLE: TableId = TableId(3);

type Record = (Vec<u8>, u8, Option<Vec<u8>>);

fn empty_store(max_memory_bytes: usize) -> Arc<Store> {
    let config = StoreConfig { max_memory_bytes, hash_seed: 11, ..StoreConfig::default() };
    let store = Arc::new(Store::new(&config, CellRules::IN_PLACE).expect("address space"));
    store.add_table(TABLE, 1).expect("address space");
    store
}

fn load(loader: &mut Loader, records: &[Record]) -> Result<(), TxError> {
    let hashes: Vec<u64> = records.iter().map(|(key, ..)| loader.hash(TABLE, key)).collect();
    let images = records.iter().zip(hashes).map(|((key, tag, value), hash)| KeyImage {
        hash,
        key,
        label: (*tag).into(),
        value: value.as_deref(),
        gsn: 0,
    });
    loader.load(TABLE, images.collect::<Vec<_>>().into_iter())
}

fn value_of(worker: &mut Worker, key: &[u8]) -> Option<(u8, Vec<u8>)> {
    let mut value = Vec::new();
    let seen = worker.read(TABLE, key, &mut value).expect("the table is there");
    seen.map(|seen| (seen.tag, value))
}

/// Checks that the store holds exactly these records. Of several records of a key, the last one
/// counts.
fn assert_holds(store: &Arc<Store>, records: &[Record]) {
    let expected: BTreeMap<_, _> =
        records.iter().map(|(key, tag, value)| (key, value.clone().map(|v| (*tag, v)))).collect();
    let mut worker = Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot");
    for (&key, value) in &expected {
        assert!(value_of(&mut worker, key) == *value, "key {:?}", &key[..key.len().min(20)]);
    }
    assert_eq!(store.record_count(TABLE), expected.values().flatten().count() as u64);
}

/// Records with keys and values of all sizes at which the layout changes, for the keys from `first`
/// on.
fn records(first: u32, count: u32, salt: u8) -> Vec<Record> {
    let value_lens = [0, 1, 4, 100, 104, 2044, 2045, 70_000];
    (first..first + count)
        .map(|number| {
            let mut key = number.to_be_bytes().to_vec();
            if number % 50 == 7 {
                key.resize(2_000, b'k');
            }
            // Large values are few.
            let kinds = if number % 40 == 0 { value_lens.len() } else { value_lens.len() - 2 };
            let len = value_lens[(number as usize + usize::from(salt)) % kinds];
            (key, salt, Some(vec![number as u8 ^ salt; len]))
        })
        .collect()
}

#[test]
fn all_kinds_are_found_and_the_index_grows_though_nobody_made_room() {
    let store = empty_store(1 << 30);
    let mut loader = Loader::new(store.clone()).expect("a free slot");
    let mut all = records(0, 20_000, 1);
    // A later checkpoint of the chain replaces some and deletes others, known and unknown ones.
    // That checkpoint is loaded first.
    let mut changes = records(15_000, 10_000, 2);
    for (_, _, value) in changes.iter_mut().step_by(3) {
        *value = None;
    }
    for batch in changes.chunks(100).chain(all.chunks(64)) {
        load(&mut loader, batch).expect("memory");
    }
    drop(loader);
    all.extend(changes);
    assert_holds(&store, &all);
}

#[test]
fn a_key_that_comes_twice_in_a_batch_is_there_once() {
    let store = empty_store(1 << 30);
    let mut loader = Loader::new(store.clone()).expect("a free slot");
    let first = records(0, 50, 1);
    let twice = [first.clone(), records(0, 50, 2)].concat();
    load(&mut loader, &twice).expect("memory");
    drop(loader);
    assert_holds(&store, &first);
    assert_eq!(store.cell_count(TABLE), 50);
}

#[test]
fn of_a_chain_the_newest_record_of_a_key_counts() {
    let store = empty_store(1 << 30);
    let mut newest = Loader::new(store.clone()).expect("a free slot");
    let mut older = Loader::new(store.clone()).expect("a free slot");
    let mut changes = records(0, 400, 1);
    for record in changes.iter_mut().step_by(3) {
        record.2 = None;
    }
    changes.chunks(64).try_for_each(|batch| load(&mut newest, batch)).expect("memory");
    let full = records(0, 1000, 2);
    full.chunks(64).try_for_each(|batch| load(&mut older, batch)).expect("memory");
    drop((newest, older));
    assert_holds(&store, &[full, changes].concat());
    assert_eq!(store.cell_count(TABLE), store.record_count(TABLE), "deleted keys are gone");
}

/// Deleted keys take memory while a chain is loaded, less than cells would, and none afterwards. So
/// the load takes no more memory than that of the records alone.
#[test]
fn deletions_leave_no_memory_behind() {
    let keys = 0..200_000u32;
    let record = |key: u32, value: Option<&[u8]>| -> Record {
        (key.to_be_bytes().repeat(4), 1, value.map(<[u8]>::to_vec))
    };
    let load_all = |loader: &mut Loader, all: &[Record]| {
        all.chunks(64).try_for_each(|batch| load(loader, batch)).expect("memory");
    };
    let is_live = |key: &u32| key.is_multiple_of(4);
    let live: Vec<Record> = keys.clone().filter(is_live).map(|k| record(k, Some(b"v"))).collect();
    let plain = empty_store(1 << 30);
    plain.reserve(TABLE, 1);
    load_all(&mut Loader::new(plain.clone()).expect("a free slot"), &live);
    let store = empty_store(1 << 30);
    let mut loader = Loader::new(store.clone()).expect("a free slot");
    // Deletions of the newest checkpoint lie between records of it.
    let newest: Vec<Record> =
        keys.clone().map(|k| record(k, is_live(&k).then_some(&b"v"[..]))).collect();
    load_all(&mut loader, &newest);
    let while_loading = store.held_bytes();
    load_all(&mut loader, &keys.map(|key| record(key, Some(b"old"))).collect::<Vec<_>>());
    drop(loader);
    plain.maintain();
    store.maintain();
    let (held, of_plain) = (store.held_bytes(), plain.held_bytes());
    assert!(held <= of_plain, "{held} bytes are held, and {of_plain} without deletions");
    let deletions = while_loading - store.held_bytes().min(while_loading);
    let each = deletions / 150_000;
    assert!((20..56).contains(&each), "a deletion of a key of 16 bytes takes {each}");
    assert_holds(&store, &live);
}

#[test]
fn loaders_side_by_side_lose_nothing() {
    let store = empty_store(1 << 30);
    store.reserve(TABLE, 30_000);
    let parts: Vec<Vec<Record>> = (0..3).map(|part| records(part * 10_000, 10_000, 5)).collect();
    let jobs: Vec<_> = parts
        .iter()
        .map(|part| {
            let mut loader = Loader::new(store.clone()).expect("a free slot");
            move || part.chunks(64).try_for_each(|batch| load(&mut loader, batch))
        })
        .collect();
    for loaded in stillpoint_io::in_parallel("load", jobs).expect("no panic") {
        loaded.expect("memory");
    }
    assert_holds(&store, &parts.concat());
}

#[test]
fn too_little_memory_is_an_error_and_what_was_loaded_is_whole() {
    let store = empty_store(8 << 20);
    let mut loader = Loader::new(store.clone()).expect("a free slot");
    let value = |number: u32| vec![number as u8; 1000];
    let all: Vec<Record> = (0..20_000u32)
        .map(|number| (number.to_be_bytes().to_vec(), 9, Some(value(number))))
        .collect();
    let refused = all.chunks(64).find_map(|batch| load(&mut loader, batch).err());
    assert!(matches!(refused, Some(TxError::Memory(_))), "{refused:?}");
    let found = store.record_count(TABLE) as usize;
    assert!((5_000..9_000).contains(&found), "{found} records in 8 MiB");
    drop(loader);
    assert_holds(&store, &all[..found]);
    assert_eq!(store.cell_count(TABLE), found as u64);
}

#[test]
fn a_table_that_is_not_there_is_an_error() {
    let store = empty_store(1 << 30);
    let mut loader = Loader::new(store).expect("a free slot");
    let loaded = loader.load(TableId(4), std::iter::empty());
    assert!(matches!(loaded, Err(TxError::NoSuchTable(TableId(4)))));
}

/// Commits are undone where the image has them, the last one first. A replay then leaves out what the
/// value of before has, and finds the absence of a key by its stamp.
#[test]
fn what_an_image_has_of_lost_commits_is_undone() {
    let store = empty_store(64 << 20);
    let mut loader = Loader::new(store.clone()).expect("a free slot");
    let image = |loader: &mut Loader, key: &[u8], value: Option<&[u8]>, gsn: u64| {
        let image = KeyImage { hash: loader.hash(TABLE, key), key, label: 1u8.into(), value, gsn };
        loader.load(TABLE, std::iter::once(image)).expect("memory");
    };
    let long = vec![9; 5_000];
    image(&mut loader, b"older", Some(b"kept"), 10);
    image(&mut loader, b"twice", Some(b"30th value"), 30);
    image(&mut loader, b"grown", Some(&long), 30);
    image(&mut loader, b"deleted", None, 30);
    image(&mut loader, b"inserted", Some(b"new"), 30);
    let undo = |loader: &mut Loader, key: &[u8], gsn: u64, before: Replayed<'_>| {
        let hash = loader.hash(TABLE, key);
        let before = Before::Change(before);
        loader.undo(TABLE, (hash, key), gsn, before, true).expect("memory")
    };
    let put = |value| Replayed::Put { label: 2u8.into(), value };
    // In descending order of gsns.
    assert!(!undo(&mut loader, b"older", 30, put(b"not put back")));
    assert!(!undo(&mut loader, b"unknown", 30, put(b"not put back")));
    assert!(undo(&mut loader, b"twice", 30, Replayed::Patch(&[(0, b"25"), (4, b"\x20")])));
    assert!(undo(&mut loader, b"grown", 30, put(b"short")));
    assert!(undo(&mut loader, b"deleted", 30, put(b"back")));
    assert!(undo(&mut loader, b"inserted", 30, Replayed::Delete));
    assert!(undo(&mut loader, b"twice", 25, put(b"before all")));
    assert!(!undo(&mut loader, b"twice", 25, put(b"not again")));
    let replay = |loader: &mut Loader, key: &[u8], gsn: u64, change: Replayed<'_>| {
        let hash = loader.hash(TABLE, key);
        loader.apply(TABLE, hash, key, gsn, change).expect("it is left out, or applied");
    };
    // These commits are in what was put back. A patch of an absent key would be refused.
    replay(&mut loader, b"twice", 24, put(b"older"));
    replay(&mut loader, b"inserted", 28, Replayed::Patch(&[(0, b"x")]));
    replay(&mut loader, b"inserted", 29, Replayed::Delete);
    replay(&mut loader, b"older", 11, put(b"kept"));
    let hash = loader.hash(TABLE, b"grown");
    assert_eq!(loader.value(TABLE, hash, b"grown"), Some((2.into(), b"short".to_vec())));
    let hash = loader.hash(TABLE, b"inserted");
    assert_eq!(loader.value(TABLE, hash, b"inserted"), None);
    drop(loader);
    let record = |key: &[u8], value: Option<&[u8]>| (key.to_vec(), 2, value.map(<[u8]>::to_vec));
    assert_holds(
        &store,
        &[
            record(b"older", Some(b"kept")),
            record(b"twice", Some(b"before all")),
            record(b"grown", Some(b"short")),
            record(b"deleted", Some(b"back")),
            record(b"inserted", None),
            record(b"unknown", None),
        ],
    );
}

/// A part of a value is put back into what its commit has left, and into nothing else. Where a later
/// commit could not be undone, the key keeps that commit's value, until a whole value comes.
#[test]
fn a_part_of_a_value_is_put_back_where_it_belongs() {
    let store = empty_store(64 << 20);
    let mut loader = Loader::new(store).expect("a free slot");
    let keys = [&b"appended"[..], b"spliced", b"foreign"];
    for (key, value) in keys.into_iter().zip([&b"value, longer"[..], b"vXYe", b"other"]) {
        let hash = loader.hash(TABLE, key);
        let image = KeyImage { hash, key, label: 1u8.into(), value: Some(value), gsn: 30 };
        loader.load(TABLE, std::iter::once(image)).expect("memory");
    }
    let undo = |loader: &mut Loader, key: &[u8], gsn: u64, before: Before<'_>, has_later: bool| {
        let hash = loader.hash(TABLE, key);
        loader.undo(TABLE, (hash, key), gsn, before, has_later).expect("it fits")
    };
    let value = |loader: &mut Loader, key: &[u8]| {
        let hash = loader.hash(TABLE, key);
        let (label, value) = loader.value(TABLE, hash, key).expect("a value");
        (label.tag, String::from_utf8(value).expect("text"))
    };
    let cut: &[(usize, usize, &[u8])] = &[(5, 8, b"")];
    assert!(undo(&mut loader, b"appended", 30, Before::Splices(cut), false), "of this commit");
    assert_eq!(value(&mut loader, b"appended"), (1, "value".to_owned()));
    assert!(!undo(&mut loader, b"appended", 20, Before::Splices(cut), false), "of an earlier one");
    let back: &[(usize, usize, &[u8])] = &[(1, 2, b"alu")];
    assert!(undo(&mut loader, b"spliced", 25, Before::Splices(back), true), "all later are undone");
    assert_eq!(value(&mut loader, b"spliced"), (1, "value".to_owned()));
    // The record of commit 30 is damaged.
    let patch = Before::Change(Replayed::Patch(&[(2, b"not here")]));
    assert!(!undo(&mut loader, b"foreign", 25, patch, false));
    assert!(!undo(&mut loader, b"foreign", 25, Before::Splices(cut), false));
    assert_eq!(value(&mut loader, b"foreign"), (1, "other".to_owned()));
    let whole = Before::Change(Replayed::Put { label: 2u8.into(), value: b"whole" });
    assert!(undo(&mut loader, b"foreign", 20, whole, false));
    assert_eq!(value(&mut loader, b"foreign"), (2, "whole".to_owned()));
}
