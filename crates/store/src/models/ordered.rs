//! Random schedules of the ordered index: readers against splits, merges and counts.

use std::ops::Bound;
use std::sync::Arc;

use shuttle::thread;

use super::SCHEDULES;
use crate::ordered::{Batch, OrderedIndex, Unclaimed};

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
        });
        for writer in writers {
            writer.join().expect("no panic");
        }
        reader.join().expect("no panic");
        assert_eq!(keys(&index, false), [10, 11, 20, 30, 31, 40]);
        assert_eq!(index.records(), 4);
        assert_eq!(index.rank(&key(40), true), 4);
    };
    shuttle::check_random(work, SCHEDULES / 3);
    shuttle::check_pct(work, SCHEDULES / 3, 3);
}
