//! Random schedules of a tree of three levels with splits, and of evictions at 8 frames, under shuttle.
#![cfg(shuttle)]

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use std::sync::Arc;

use common::{TABLE, World};
use shuttle::thread;

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
