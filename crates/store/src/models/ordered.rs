//! Random schedules of the ordered index, and of transactions on ordered tables.

use std::ops::Bound;
use std::sync::Arc;

use shuttle::thread;

use super::SCHEDULES;
use crate::ordered::{Batch, OrderedIndex, Unclaimed};
use crate::{CellRules, NoLog, Store, StoreConfig, TableId, TxError, Worker};

/// A long key, of which a node of a model holds five.
fn key(number: u8) -> Vec<u8> {
    let mut key = vec![number; 2];
    key.resize(56, number);
    key
}

fn keys(index: &OrderedIndex, is_descending: bool) -> Vec<u8> {
    let (mut found, mut batch) = (Vec::<u8>::new(), Batch::default());
    loop {
        let last = found.last().map(|&last| key(last));
        let last = last.as_ref().map_or(Bound::Unbounded, |last| Bound::Excluded(&last[..]));
        match is_descending {
            true => index.read_descending((Bound::Unbounded, last), 3, &mut batch),
            false => index.read_ascending((last, Bound::Unbounded), 3, &mut batch),
        }
        found.extend((0..batch.len()).map(|number| batch.key(number)[0]));
        if batch.is_end() {
            return found;
        }
    }
}

/// Two writers add keys around lasting ones, so that nodes split up to the root, and remove them, so that
/// nodes merge. A reader meets the lasting keys in order all the time.
#[test]
fn readers_miss_nothing_while_nodes_split_and_merge() {
    let work = || {
        let index = Arc::new(OrderedIndex::new(&Arc::default()).expect("a model's memory"));
        for number in [10, 20, 30, 40] {
            index.load(&key(number)).expect("a model's memory");
        }
        let writers: Vec<_> = [11u8, 31]
            .map(|first| {
                let index = index.clone();
                thread::spawn(move || {
                    for number in first..first + 4 {
                        index.add(&key(number), &mut Unclaimed).expect("a model's memory");
                        index.set_present(&key(number), true);
                    }
                    for number in first..first + 4 {
                        index.set_present(&key(number), false);
                        if number != first {
                            assert!(index.remove(&key(number), &mut Unclaimed));
                        }
                    }
                })
            })
            .into();
        let reading = index.clone();
        let reader = thread::spawn(move || {
            for is_descending in [false, true] {
                let mut found = keys(&reading, is_descending);
                if is_descending {
                    found.reverse();
                }
                assert!(found.is_sorted_by(|a, b| a < b), "{found:?}");
                found.retain(|number| number % 10 == 0);
                assert_eq!(found, [10, 20, 30, 40]);
            }
            assert!((2..=6).contains(&reading.rank(&key(30), false)));
            let mut batch = Batch::default();
            for number in [40, 30, 20, 40, 30, 20] {
                let lower = key(number);
                let bounds = (Bound::Included(&lower[..]), Bound::Unbounded);
                reading.read_ascending(bounds, 1, &mut batch);
                assert_eq!(batch.key(0), lower, "a descent has missed a key");
            }
        });
        for writer in writers {
            writer.join().expect("no panic");
        }
        reader.join().expect("no panic");
        assert_eq!(keys(&index, false), [10, 11, 20, 30, 31, 40]);
        assert_eq!(index.records(), 4);
        assert_eq!(index.rank(&key(40), true), 4);
    };
    shuttle::check_random(work, SCHEDULES / 5);
    shuttle::check_pct(work, SCHEDULES / 5, 3);
}

const TABLE: TableId = TableId(0);

/// A store with an ordered table, whose keys fill several nodes.
fn ordered_store(workers: usize) -> Arc<Store> {
    let config = StoreConfig { max_memory_bytes: 1 << 20, workers, ..Default::default() };
    let store = Store::new(&config, CellRules::IN_PLACE).expect("a model's memory");
    let table = store.new_ordered_table(TABLE, 1).expect("a model's memory");
    store.add_tables(vec![table]).expect("the first table");
    Arc::new(store)
}

/// Adds a key if there is none from 11 to 29 but 20. Returns whether it was added.
fn add_if_alone(worker: &mut Worker, own: u8, is_descending: bool) -> bool {
    let added = worker.transact(|tx| {
        let (lower, upper) = (key(11), key(29));
        let bounds = &lower[..]..=&upper[..];
        let mut range = match is_descending {
            true => tx.range_descending(TABLE, bounds)?,
            false => tx.range(TABLE, bounds)?,
        };
        let mut is_alone = true;
        while let Some((found, _)) = range.next_record()? {
            is_alone &= found[0] == 20;
        }
        if is_alone {
            tx.put(TABLE, &key(own), b"v")?;
        }
        Ok(is_alone)
    });
    added.expect("it is tried until it commits")
}

/// Two transactions each add a key to a range if they have found none there. A third thread adds keys
/// and gives them up, so that leaves change and cells are reclaimed. One of these keys is the first
/// beyond the range. Only one key is added.
#[test]
fn one_of_two_finds_a_range_empty() {
    let work = || {
        let store = ordered_store(4);
        let worker = || Worker::new(store.clone(), Box::new(NoLog::default())).expect("a slot");
        let mut last = worker();
        for number in [10, 20, 40] {
            last.transact(|tx| tx.put(TABLE, &key(number), b"v")).expect("memory");
        }
        let threads: Vec<_> = [(13, false), (25, true)]
            .map(|(own, is_descending)| {
                let mut worker = worker();
                thread::spawn(move || add_if_alone(&mut worker, own, is_descending))
            })
            .into();
        let mut disturbing = worker();
        let disturbs = thread::spawn(move || {
            for number in [33, 12, 33] {
                let given_up = disturbing.transact(|tx| {
                    tx.put(TABLE, &key(number), b"v")?;
                    Err::<(), _>(TxError::abandon("given up"))
                });
                assert!(matches!(given_up, Err(TxError::Abandoned(_))));
                disturbing.idle();
            }
        });
        let added = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        let added = added.filter(|&added| added).count();
        disturbs.join().expect("no panic");
        assert_eq!(added, 1, "both have found the range empty");
        let count = last.transact(|tx| tx.count(TABLE, ..)).expect("nobody else");
        assert_eq!(count, 4);
        while last.idle() {}
        assert_eq!(store.ordered_key_count(TABLE), 4);
    };
    shuttle::check_random(work, SCHEDULES / 10);
    shuttle::check_pct(work, SCHEDULES / 10, 3);
}

/// A count beside insertions of two keys each: it sees both or none.
#[test]
fn a_count_sees_whole_transactions() {
    let work = || {
        let store = ordered_store(3);
        let worker = || Worker::new(store.clone(), Box::new(NoLog::default())).expect("a slot");
        let writers: Vec<_> = [10u8, 30]
            .map(|first| {
                let mut worker = worker();
                thread::spawn(move || {
                    for number in [first, first + 2] {
                        let put = worker.transact(|tx| {
                            tx.put(TABLE, &key(number), b"v")?;
                            tx.put(TABLE, &key(number + 10), b"v")
                        });
                        put.expect("memory");
                    }
                })
            })
            .into();
        let mut reader = worker();
        let mut before = 0;
        for _ in 0..2 {
            let count = reader.transact(|tx| tx.count(TABLE, ..)).expect("it is tried again");
            assert!(count % 2 == 0 && count >= before, "{count} after {before}");
            before = count;
        }
        for writer in writers {
            writer.join().expect("no panic");
        }
        let (count, last) = reader
            .transact(|tx| Ok((tx.count(TABLE, ..)?, tx.nth(TABLE, 7)?)))
            .expect("nobody else");
        assert_eq!((count, last), (8, Some(key(42))));
    };
    shuttle::check_random(work, SCHEDULES / 10);
    shuttle::check_pct(work, SCHEDULES / 10, 3);
}
