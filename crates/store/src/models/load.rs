//! Bulk load, as recovery does it: several loaders fill one table with keys of their own, in
//! batches, while the index grows under them. No record is lost, and the index holds none twice.

use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use super::{SCHEDULES, find, hash};
use crate::memory::index::{Index, Inserted};
use crate::{
    CellRules, KeyImage, Loader, NoLog, Replayed, Store, StoreConfig, TableId, TxError, Worker,
};

const TABLE: TableId = TableId(0);

/// How often a scan of the whole index meets each cell below 64. Nobody changes the index
/// meanwhile.
fn scanned(index: &Index) -> [u32; 64] {
    let mut seen = [0; 64];
    let mut cursor = 0;
    loop {
        cursor = index.scan(cursor, |cell| seen[cell as usize] += 1, || {});
        if cursor == 0 {
            return seen;
        }
    }
}

/// Hashes whose low bits are equal, so that one bucket overflows.
fn crowded(cell: u64) -> u64 {
    cell << 8 | 0b10
}

fn loaders_fill_an_index(hash: fn(u64) -> u64) {
    let index = Arc::new(Index::new(&Arc::default()).expect("a model's memory"));
    for cell in 1..=6 {
        assert_eq!(index.load(hash(cell), cell, |found| found == cell), Inserted::New);
    }
    index.count_loaded(0, 6);
    let loaders = [10u64, 20, 30].map(|first| {
        let index = index.clone();
        thread::spawn(move || {
            let load = |cell: u64| index.load(hash(cell), cell, |found| found == cell);
            // A batch of new keys. The next batches have a key that the index has already, and a
            // record without an inline value.
            assert_eq!([load(first), load(first + 1)], [Inserted::New, Inserted::New]);
            index.count_loaded(first as usize, 2);
            assert_eq!(load(first), Inserted::Existing(first));
            assert_eq!(load(first + 2), Inserted::New);
            index.count_loaded(first as usize, 1);
            let other = first + 3;
            assert_eq!(index.insert(0, hash(other), other, |_| false, || {}), Inserted::New);
            for cell in first..first + 4 {
                let found = index.find(hash(cell), |found| found == cell);
                assert_eq!(found, Some(cell), "lost while others load");
            }
        })
    });
    for loader in loaders {
        loader.join().expect("no panic");
    }
    assert_eq!(index.len(), 6 + 3 * 4);
    let seen = scanned(&index);
    let there = |cell: usize| matches!(cell, 1..=6 | 10..=13 | 20..=23 | 30..=33);
    for (cell, &times) in seen.iter().enumerate() {
        assert_eq!(times, u32::from(there(cell)), "cell {cell}");
        assert_eq!(index.find(hash(cell as u64), |f| f == cell as u64).is_some(), there(cell));
    }
}

#[test]
fn loaders_of_an_index_lose_nothing() {
    for hash in [hash, crowded] {
        shuttle::check_random(move || loaders_fill_an_index(hash), SCHEDULES);
        shuttle::check_pct(move || loaders_fill_an_index(hash), SCHEDULES, 3);
    }
}

/// One thread reserves room in the index while others load already. No entry is lost.
#[test]
fn room_made_meanwhile_loses_nothing() {
    let work = || {
        let index = Arc::new(Index::new(&Arc::default()).expect("a model's memory"));
        let reserving = index.clone();
        let reserver = thread::spawn(move || reserving.reserve(40));
        let loaders = [10u64, 20].map(|first| {
            let index = index.clone();
            thread::spawn(move || {
                for cell in first..first + 3 {
                    let loaded = index.load(hash(cell), cell, |found| found == cell);
                    assert_eq!(loaded, Inserted::New);
                }
                index.count_loaded(first as usize, 3);
            })
        });
        for loader in loaders {
            loader.join().expect("no panic");
        }
        reserver.join().expect("no panic");
        assert!((10..13).chain(20..23).all(|cell| find(&index, cell)), "a cell was lost");
        assert_eq!(scanned(&index).iter().sum::<u32>(), 6);
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}

/// The value that a loader has for a key. The value of number 2 does not fit the usual cell.
fn value_of(loader: u8, number: u8) -> Vec<u8> {
    vec![loader * 16 + number; if number == 2 { 40 } else { 5 }]
}

fn load(
    loader: &mut Loader,
    keys: &[[u8; 2]],
    value: fn(u8, u8) -> Vec<u8>,
) -> Result<(), TxError> {
    let values: Vec<Vec<u8>> = keys.iter().map(|key| value(key[0], key[1])).collect();
    let hashes: Vec<u64> = keys.iter().map(|key| loader.hash(TABLE, key)).collect();
    let images = (0..keys.len()).map(|at| KeyImage {
        hash: hashes[at],
        key: &keys[at],
        label: keys[at][0].into(),
        value: Some(&values[at]).filter(|value| !value.is_empty()).map(|value| &**value),
        gsn: 0,
    });
    loader.load(TABLE, images)
}

/// A checkpoint of changes and then its base, each loaded by two loaders. The record that was
/// loaded first counts.
#[test]
fn loaders_of_a_store_leave_each_key_once() {
    let work = || {
        let config = StoreConfig { max_memory_bytes: 1 << 20, workers: 4, ..Default::default() };
        let store = Arc::new(Store::new(&config, CellRules::IN_PLACE).expect("a model's memory"));
        store.add_table(TABLE, 1).expect("a model's memory");
        let both = |loaders: [Loader; 2], each: fn(&mut Loader, u8)| {
            let threads = [1, 2].into_iter().zip(loaders).map(|(number, mut loader)| {
                thread::spawn(move || {
                    each(&mut loader, number);
                    loader
                })
            });
            let threads: Vec<_> = threads.collect();
            let ended: Vec<Loader> =
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
            <[Loader; 2]>::try_from(ended).expect("two")
        };
        let loaders = [(); 2].map(|()| Loader::new(store.clone()).expect("a free slot"));
        let loaders = both(loaders, |loader, number| {
            load(loader, &[[number, 1], [number, 2], [number, 6]], value_of).expect("room");
            load(loader, &[[number, 0]], |_, _| Vec::new()).expect("room");
        });
        // Loaders find keys that others have loaded.
        let loaders = both(loaders, |loader, number| {
            let number = 3 - number;
            let keys: Vec<[u8; 2]> = (0..5).map(|key| [number, key]).collect();
            let first = thread_rng().gen_range(1..5);
            for batch in [&keys[..first], &keys[first..]] {
                load(loader, batch, |_, _| vec![9; 5]).expect("room");
            }
            let key = [number, 7];
            let hash = loader.hash(TABLE, &key);
            let put = Replayed::Put { label: number.into(), value: &value_of(number, 7) };
            loader.apply(TABLE, hash, &key, 5, put).expect("room");
        });
        drop(loaders);
        assert_eq!(store.record_count(TABLE), 2 * 6);
        // Absent cells may be reclaimed by now or not.
        assert!((2 * 6..=2 * 7).contains(&store.cell_count(TABLE)), "the index lost count");
        let mut worker =
            Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot");
        let mut seen = Vec::new();
        let mut cursor = 0;
        loop {
            let visit = &mut |key: &[u8], value: crate::ValueRef<'_>| {
                seen.push((key.to_vec(), value.tag(), value.to_vec()));
            };
            cursor = worker.scan(TABLE, cursor, 8, visit).expect("the table");
            if cursor == 0 {
                break;
            }
        }
        seen.sort();
        let mut expected = Vec::new();
        for number in [1, 2] {
            for (key, value) in
                [(1, None), (2, None), (3, Some(9)), (4, Some(9)), (6, None), (7, None)]
            {
                let value = value.map_or_else(|| value_of(number, key), |byte| vec![byte; 5]);
                expected.push((vec![number, key], number, value));
            }
        }
        assert_eq!(seen, expected);
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}
