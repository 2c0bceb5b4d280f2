//! Random schedules of a tree of three levels with splits, and of evictions at 8 frames, under shuttle.
#![cfg(shuttle)]

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use std::sync::Arc;

use common::{TABLE, World};
use shuttle::thread;
use stillpoint_txn::TxError;

const SCHEDULES: usize = 60;

fn key(number: u64) -> Vec<u8> {
    format!("{number:04}").into_bytes()
}

/// Two threads insert keys, so that nodes split. A third one reads the lasting keys. The pool is smaller
/// than the tree.
#[test]
fn nothing_is_lost_while_nodes_split_and_pages_leave() {
    let work = || {
        let world = Arc::new(World::new(8, 512, 1));
        let mut session = world.session(0);
        for number in 0..48 {
            let put = session.transact(|tx| tx.put(&key(number * 10), Some(&[7; 100])));
            put.expect("commits");
        }
        let threads: Vec<_> = [1u64, 2]
            .map(|own| {
                let world = world.clone();
                thread::spawn(move || {
                    let mut session = world.session(own as u8);
                    for number in [0, 24, 47] {
                        let own = key(number * 10 + own);
                        session.transact(|tx| tx.put(&own, Some(&[8; 100]))).expect("commits");
                    }
                })
            })
            .into();
        for number in [0, 23, 47] {
            let found = session.transact(|tx| tx.get(&key(number * 10))).expect("reads");
            assert_eq!(found, Some(vec![7; 100]), "lost {number}");
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let summary = world.kind.pool().check_table(TABLE).expect("a sound tree");
        assert_eq!((summary.records, summary.levels), (54, 3));
        assert!(world.kind.stats().evictions > 0);
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}

/// A thread deletes whole leaves, which are merged with their neighbours. Another one inserts into these, and
/// a third one reads the lasting keys.
#[test]
fn nothing_is_lost_while_leaves_are_merged() {
    let work = || {
        let world = Arc::new(World::new(8, 512, 1));
        let mut session = world.session(0);
        for number in 0..24 {
            let put = session.transact(|tx| tx.put(&key(number * 10), Some(&[7; 100])));
            put.expect("commits");
        }
        let pages =
            |world: &World| world.kind.pool().check_table(TABLE).expect("sound").pages.len();
        let before = pages(&world);
        let (deleting, inserting) = (world.clone(), world.clone());
        let deletes = thread::spawn(move || {
            let mut session = deleting.session(1);
            for number in 4..16 {
                session.transact(|tx| tx.put(&key(number * 10), None)).expect("commits");
            }
        });
        let inserts = thread::spawn(move || {
            let mut session = inserting.session(2);
            for number in [3, 16] {
                let own = key(number * 10 + 1);
                session.transact(|tx| tx.put(&own, Some(&[8; 20]))).expect("commits");
            }
        });
        for number in [3, 16, 23] {
            let found = session.transact(|tx| tx.get(&key(number * 10))).expect("reads");
            assert_eq!(found, Some(vec![7; 100]), "lost {number}");
        }
        [deletes, inserts].into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(world.content().len(), 24 - 12 + 2);
        assert!(pages(&world) < before, "leaves were merged");
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}

/// Two threads miss one page, and read it once.
#[test]
fn two_misses_are_one_read() {
    let work = || {
        let world = Arc::new(World::new(16, 512, 1));
        let mut session = world.session(0);
        for number in 0..12 {
            session.transact(|tx| tx.put(&key(number), Some(&[7; 100]))).expect("commits");
        }
        let taken = world.checkpoint(true);
        let after = Arc::new(world.restart(16, 512, Some(&taken), 1));
        let begun = || after.memory.begun.load(std::sync::atomic::Ordering::SeqCst);
        let before = begun();
        let threads = [1u8, 2].map(|number| {
            let after = after.clone();
            thread::spawn(move || {
                let mut session = after.session(number);
                session.transact(|tx| tx.get(&key(5))).expect("reads")
            })
        });
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), Some(vec![7; 100]));
        }
        assert_eq!(begun(), before + 1, "one read of the one leaf");
    };
    shuttle::check_random(work, SCHEDULES * 4);
}

/// Two threads move a byte from one key to another, and give up now and then. Their values differ in
/// length, so nodes split, and the pool is smaller than the tree. A third thread reads ranges and single keys.
#[test]
fn readers_see_committed_values_while_nodes_split_and_pages_leave() {
    const KEYS: u64 = 20;
    let value = |count: u8| vec![count; 60 + usize::from(count % 3) * 20];
    let work = move || {
        let world = Arc::new(World::new(8, 512, 1));
        let mut session = world.session(0);
        for number in 0..KEYS {
            session.transact(|tx| tx.put(&key(number), Some(&value(100)))).expect("commits");
        }
        let threads: Vec<_> = [1u64, 2]
            .map(|own| {
                let world = world.clone();
                thread::spawn(move || {
                    let mut session = world.session(own as u8);
                    for round in 0..3 {
                        let (from, to) = (key(own * 3 + round), key(KEYS - 1 - own - round));
                        let fails = round == 1;
                        let moved = session.transact(|tx| {
                            let count = tx.get(&from)?.expect("a value")[0];
                            tx.put(&from, Some(&value(count - 1)))?;
                            let count = tx.get(&to)?.expect("a value")[0];
                            tx.put(&to, Some(&value(count + 1)))?;
                            if fails {
                                Err(TxError::abandon("as the test wants it"))
                            } else {
                                Ok(())
                            }
                        });
                        assert_eq!(moved.is_err(), fails);
                    }
                })
            })
            .into();
        for round in 0..3 {
            let all = session.transact(|tx| tx.range(.., usize::MAX)).expect("reads");
            assert_eq!(all.len() as u64, KEYS);
            let sum: u64 = all.values().map(|value| u64::from(value[0])).sum();
            assert_eq!(sum, KEYS * 100, "a transfer was seen in part");
            if let Some(found) = world.read(&key(3 + round)) {
                let found = found.expect("a value");
                assert_eq!(found, value(found[0]), "a value that was not written so");
            }
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let summary = world.kind.pool().check_table(TABLE).expect("a sound tree");
        assert_eq!(summary.records, KEYS);
        assert!(world.kind.is_unlocked());
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}
