//! An index that shrinks, while others find, scan, insert and remove.

use std::sync::Arc;

use shuttle::thread;
use stillpoint_sync::ReadSections;

use super::{SCHEDULES, find, hash, insert};
use crate::memory::index::{Index, Inserted};

/// Buckets merge while a worker inserts keys, which splits them anew. A reader finds and scans the lasting keys.
#[test]
fn the_index_loses_nothing_while_it_shrinks() {
    let work = || {
        let index = Arc::new(Index::new(&Arc::default()).expect("a model's memory"));
        let read_sections = ReadSections::new(2);
        for key in 1..=12 {
            assert_eq!(insert(&index, 0, key), Inserted::New);
        }
        // The background sees how many entries there are.
        index.shrink(&read_sections);
        for key in 4..=12 {
            assert!(index.remove(0, hash(key), key, || {}));
        }
        let (shrinking, sections) = (index.clone(), read_sections.clone());
        let background = thread::spawn(move || {
            for _ in 0..4 {
                shrinking.shrink(&sections);
                thread::yield_now();
            }
        });
        let (inserting, sections) = (index.clone(), read_sections.clone());
        let slot = sections.claim().expect("room");
        let writer = thread::spawn(move || {
            for key in 20..28 {
                let _inside = sections.read_section(slot);
                assert_eq!(insert(&inserting, 1, key), Inserted::New);
                assert!(find(&inserting, key));
            }
            let _inside = sections.read_section(slot);
            assert!(inserting.remove(1, hash(20), 20, || {}));
            assert!(inserting.replace(hash(21), (21, 31), || {}));
        });
        let slot = read_sections.claim().expect("room");
        for _ in 0..2 {
            let _inside = read_sections.read_section(slot);
            for key in 1..=3 {
                assert!(find(&index, key), "lost {key}");
                assert!(!find(&index, key + 100));
            }
            let (mut seen, mut cursor) = (0u64, 0);
            loop {
                let mut here = 0;
                cursor = index.scan(cursor, |cell| here |= 1 << cell, || {});
                assert_eq!(seen & here & 0xe, 0, "a key is met at two positions");
                seen |= here;
                if cursor == 0 {
                    break;
                }
            }
            assert_eq!(seen & 0xe, 0xe, "the scan missed what was there all the time");
        }
        writer.join().expect("no panic");
        background.join().expect("no panic");
        assert_eq!(index.len(), 3 + 7);
        for key in 1..=31 {
            let is_there = key <= 3 || (22..28).contains(&key);
            assert_eq!(find(&index, key), is_there, "{key} in the end");
        }
        assert_eq!(index.find(hash(21), |cell| cell == 31), Some(31));
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}
