//! Random schedules of the index, of cells, of captures and of bulk loads, under shuttle.

mod capture;
mod load;
mod ordered;
mod reads;
mod replace;
mod served;
mod shrink;
mod under;

use shuttle::thread;
use std::sync::Arc;
use stillpoint_format::{LOG_NONE, Label, Stamp};
use stillpoint_sync::atomic::{AtomicU64, Ordering::SeqCst};
use stillpoint_sync::{ReadSections, lock_word};

use crate::memory::Memory;
use crate::memory::arena::{CellCache, Kind};
use crate::memory::blob;
use crate::memory::cell::{Cell, OptimisticRead, cell_bytes};
use crate::memory::index::{Index, Inserted};

const SCHEDULES: usize = 3_000;

/// Low bits, which choose buckets, repeat, and the tags differ.
fn hash(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7)
}

fn insert(index: &Index, worker: usize, key: u64) -> Inserted {
    index.insert(worker, hash(key), key, |cell| cell == key, || {})
}

fn find(index: &Index, key: u64) -> bool {
    index.find(hash(key), |cell| cell == key) == Some(key)
}

/// Two workers insert and remove keys, so that buckets split repeatedly. A third finds and scans
/// the lasting keys.
#[test]
fn the_index_loses_nothing_while_it_grows() {
    let work = || {
        let index = Arc::new(Index::new(&Arc::default()).expect("a model's memory"));
        for key in 1..=8 {
            assert_eq!(insert(&index, 0, key), Inserted::New);
        }
        let writers: Vec<_> = [10u64, 20]
            .map(|first| {
                let index = index.clone();
                thread::spawn(move || {
                    for key in first..first + 6 {
                        assert_eq!(insert(&index, first as usize, key), Inserted::New);
                        assert!(find(&index, key));
                    }
                    assert!(index.remove(0, hash(first), first, || {}));
                    assert!(!find(&index, first));
                    assert_eq!(insert(&index, 0, first + 1), Inserted::Existing(first + 1));
                    assert!(index.replace(hash(first + 1), (first + 1, first + 9), || {}));
                    let replaced = index.find(hash(first + 1), |cell| cell == first + 9);
                    assert_eq!(replaced, Some(first + 9));
                })
            })
            .into();
        let reading = index.clone();
        let reader = thread::spawn(move || {
            for key in [1, 8, 3] {
                assert!(find(&reading, key), "lost {key}");
                assert!(!find(&reading, key + 100));
            }
            let mut seen = 0u64;
            let mut cursor = 0;
            loop {
                cursor = reading.scan(cursor, |cell| seen |= 1 << cell, || {});
                if cursor == 0 {
                    break;
                }
            }
            assert_eq!(seen & 0x1fe, 0x1fe, "the scan missed what was there all the time");
        });
        for writer in writers {
            writer.join().expect("no panic");
        }
        reader.join().expect("no panic");
        assert_eq!(index.len(), 8 + 2 * 5);
        for key in (1..=8).chain(12..16).chain(22..26) {
            assert!(find(&index, key), "lost {key} in the end");
        }
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}

/// A bucket overflows with entries that stay in it during a split, while those in front of them
/// leave. The staying entries move to the front, and must be found and scanned all the time.
#[test]
fn entries_that_move_nearer_are_never_missed() {
    const LEAVE: u64 = 0b10;
    let work = || {
        let index = Arc::new(Index::new(&Arc::default()).expect("a model's memory"));
        let insert = |index: &Index, cell: u64, low: u64| {
            let new = index.insert(0, cell << 8 | low, cell, |found| found == cell, || {});
            assert_eq!(new, Inserted::New);
        };
        (1..=7).for_each(|cell| insert(&index, cell, LEAVE));
        (8..=9).for_each(|cell| insert(&index, cell, 0));
        let candidate = |hash| index.candidate(index.prefetch(hash), hash);
        assert_eq!(candidate(9 << 8), 0, "it has overflowed");
        let growing = index.clone();
        let writer = thread::spawn(move || insert(&growing, 10, 1));
        for cell in [9, 8] {
            let found = index.find(cell << 8, |found| found == cell);
            assert_eq!(found, Some(cell), "lost on its way");
        }
        let mut seen = 0u64;
        let mut cursor = 0;
        loop {
            cursor = index.scan(cursor, |cell| seen |= 1 << cell, || {});
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(seen & 0x3fe, 0x3fe, "the scan missed what was there all the time");
        writer.join().expect("no panic");
        for cell in [8, 9] {
            let candidate = index.candidate(index.prefetch(cell << 8), cell << 8);
            assert_eq!(candidate, cell, "it is in the first bucket now");
        }
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}

/// Two workers insert the same key, and one of them adds it.
#[test]
fn a_key_is_inserted_once() {
    let work = || {
        let index = Arc::new(Index::new(&Arc::default()).expect("a model's memory"));
        for key in 1..=8 {
            insert(&index, 0, key);
        }
        let same = hash(99);
        let threads = [30u64, 31].map(|cell| {
            let index = index.clone();
            thread::spawn(move || {
                // Another insertion comes first, so that splits happen meanwhile.
                insert(&index, 0, cell + 20);
                let mut published = false;
                let inserted = index.insert(
                    0,
                    same,
                    cell,
                    |found| found == 30 || found == 31,
                    || published = true,
                );
                assert_eq!(published, inserted == Inserted::New);
                published
            })
        });
        let added = threads.map(|thread| thread.join().expect("no panic"));
        assert!(added[0] != added[1], "{added:?}");
        let found = index.find(same, |cell| cell == 30 || cell == 31);
        assert_eq!(found, Some(if added[0] { 30 } else { 31 }));
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}

/// The label of the value that `gsn` writes: the first one has no deadline.
fn label_of(gsn: u64) -> Label {
    Label { tag: gsn as u8, deadline: if gsn == 2 { 0 } else { 1_000 + gsn } }
}

/// Reads without a lock see whole values, and never an older value after a newer one.
fn look_three_times(
    memory: &Memory,
    read_sections: &ReadSections,
    slot: usize,
    number: u64,
    newest: &AtomicU64,
) {
    let mut last = 0;
    for _ in 0..3 {
        let least = newest.load(SeqCst);
        read_sections.enter(slot);
        let mut out = vec![77];
        let outcome = Cell::new(memory, number).read_optimistic(b"key", &mut out);
        read_sections.exit(slot);
        let gsn = match outcome {
            OptimisticRead::Value(label, stamp) => {
                let tag = label.tag;
                let expected = vec![tag; 24];
                assert_eq!(out[1..], expected[..], "torn");
                assert_eq!(u64::from(tag), stamp.gsn());
                assert_eq!(label, label_of(stamp.gsn()));
                stamp.gsn()
            }
            OptimisticRead::Absent(stamp) => {
                assert_eq!(out, [77]);
                assert!(stamp.gsn() % 4 == 1);
                stamp.gsn()
            }
            OptimisticRead::Other => panic!("the cell is the key's"),
        };
        assert!(gsn >= last && gsn >= least, "{gsn} after {last} and {least}");
        last = gsn;
    }
}

/// The value of a cell is three equal words, and is rewritten during reads: inline, then large,
/// then deleted, then inserted again. The old blocks are used again after a grace period.
#[test]
fn a_read_without_lock_is_never_torn() {
    let work = || {
        let read_sections = Arc::new(ReadSections::new(2));
        let memory = Memory::new(1 << 20, 1, &Arc::default(), (*read_sections).clone());
        let memory = Arc::new(memory.expect("a model's memory"));
        let reader_slot = read_sections.claim().expect("room");
        let mut cache = CellCache::default();
        let number =
            cache.allocate(&memory.arena, 1, Kind::Record, cell_bytes(3, 32, 1)).expect("room");
        let stamp = |gsn| Stamp::new(gsn, LOG_NONE);
        Cell::new(&memory, number).initialise(b"key", 0, lock_word::free(3, 0), stamp(1));
        let newest = Arc::new(AtomicU64::new(1));
        let (looked, watched, latest) = (memory.clone(), read_sections.clone(), newest.clone());
        let reader = thread::spawn(move || {
            look_three_times(&looked, &watched, reader_slot, number, &latest);
        });
        let mut garbage = None;
        for gsn in 2..=6u64 {
            let cell = Cell::new(&memory, number).record();
            let old = cell.blob();
            let value = [gsn as u8; 24];
            let large = (gsn % 4 == 3).then(|| {
                let shape = (value.len(), label_of(gsn).deadline);
                let large = blob::allocate(&memory, &mut cache, 1, shape).expect("room");
                blob::fill(&memory, large, 0, &value);
                large
            });
            cell.begin_write();
            stillpoint_sync::atomic::fence(stillpoint_sync::atomic::Ordering::Release);
            match (gsn % 4, large) {
                (1, _) => cell.end_delete(stamp(gsn)),
                (_, Some(blob)) => {
                    cell.put_large(label_of(gsn), blob);
                    cell.end_write(stamp(gsn));
                }
                _ => {
                    cell.put_inline(label_of(gsn), &value);
                    cell.end_write(stamp(gsn));
                }
            }
            newest.store(gsn, SeqCst);
            if let Some(blob) = old {
                garbage = Some((read_sections.token(), blob));
            }
            if let Some((mut token, blob)) = garbage.take() {
                if read_sections.has_passed(&mut token) {
                    blob::release(&memory, &mut cache, blob);
                    // Another value gets the blocks.
                    let other = blob::allocate(&memory, &mut cache, 1, (24, 9)).expect("room");
                    blob::fill(&memory, other, 0, &[200; 24]);
                } else {
                    garbage = Some((token, blob));
                }
            }
        }
        reader.join().expect("no panic");
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}
