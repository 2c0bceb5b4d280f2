//! Writers, readers and rounds of the map at the same time, on a disk of this machine.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use stillpoint_format::pages::{PageHeader, PageId};
use stillpoint_io::{RealDisk, Rng, SeededRng, in_parallel};
use stillpoint_mem::{Frames, words};

use super::world::{PAGE_BYTES, Pool, PoolPage, bytes_of, config};
use crate::backing::{DirtyFrames, PendingRead, Purpose};
use crate::pages::PageStore;

const PAGES: u64 = 60;
const ROUNDS: usize = 40;

fn persisted(pool: &Pool) -> BTreeMap<u64, u64> {
    let pages = pool.pages.lock();
    pages.iter().filter_map(|(page, held)| Some((*page, held.persisted?))).collect()
}

/// Changes pages and writes them back, until the rounds are over.
fn write(store: &PageStore, pool: &Pool, seed: u64, is_over: &AtomicBool) {
    let rng = SeededRng::new(seed);
    // Relaxed: a flag alone.
    while !is_over.load(Ordering::Relaxed) {
        let frames: Vec<u32> =
            (0..rng.below(20)).map(|_| (PageId::FIRST.0 + rng.below(PAGES)) as u32).collect();
        for frame in &frames {
            pool.pages.lock().get_mut(&u64::from(*frame)).expect("a page").gsn += 1;
        }
        let purpose = if rng.below(2) == 0 { Purpose::Eviction } else { Purpose::Checkpoint };
        store.write_frames(pool, &frames, purpose).expect("the disk has room");
    }
}

/// Reads pages that nobody writes meanwhile, until the rounds are over.
fn read(store: &std::sync::Arc<PageStore>, pool: &Pool, is_over: &AtomicBool) {
    let rng = SeededRng::new(77);
    let frames = Frames::new(1, PAGE_BYTES).expect("memory");
    let mut bytes = vec![0; PAGE_BYTES];
    // Relaxed: a flag alone.
    while !is_over.load(Ordering::Relaxed) {
        let page = PageId::FIRST.0 + rng.below(PAGES);
        if !pool.claim(page as u32) {
            continue;
        }
        let expected = pool.pages.lock()[&page].persisted;
        if let Some(expected) = expected {
            let read = store.read(PageId(page), frames.target(0)).expect("it has a slot");
            read.wait();
            read.check_page().expect("whole");
            words::read_into(frames.words(0), 0, &mut bytes);
            assert_eq!(PageHeader::read(&bytes).expect("a header").gsn, expected);
            assert_eq!(bytes, bytes_of(page, expected));
        }
        pool.release(page as u32);
    }
}

#[test]
fn rounds_find_what_threads_have_written() {
    let scratch = tempfile::tempdir().expect("a directory");
    let disk = RealDisk::new(scratch.path()).expect("a disk");
    let store = PageStore::open(&disk, config(None)).expect("an empty store");
    let pool = Pool::default();
    for _ in 0..PAGES {
        let page = store.allocate_page().expect("room").page;
        pool.pages.lock().insert(page, PoolPage::new(1));
    }
    let is_over = AtomicBool::new(false);
    let (store, pool, is_over) = (&store, &pool, &is_over);
    let mut jobs: Vec<Box<dyn FnOnce() + Send>> = vec![
        Box::new(move || write(store, pool, 1, is_over)),
        Box::new(move || write(store, pool, 2, is_over)),
        Box::new(move || read(store, pool, is_over)),
    ];
    jobs.push(Box::new(move || {
        let mut counts = None;
        for round in 0..ROUNDS {
            let before = persisted(pool);
            let number = store.write_round().expect("the disk has room");
            let after = persisted(pool);
            let is_counted = round % 3 != 0;
            store.round_ended(number, is_counted).expect("the disk works");
            if is_counted {
                counts = Some((number, before, after));
            }
        }
        // Relaxed: a flag alone.
        is_over.store(true, Ordering::Relaxed);
        let (number, before, after) = counts.expect("a round counts");
        check(&disk, number, &before, &after);
    }));
    in_parallel("pages", jobs).expect("no panic");
    store.check_pages(|_| Ok(()), |defect| panic!("{defect}")).expect("memory");
}

/// Opens the store as a process would that starts after a crash now.
fn check(disk: &RealDisk, number: u64, before: &BTreeMap<u64, u64>, after: &BTreeMap<u64, u64>) {
    let found = PageStore::open_to_read(disk, config(Some(number))).expect("a round counts");
    let frames = Frames::new(1, PAGE_BYTES).expect("memory");
    for (page, before) in before {
        let read = found.read(PageId(*page), frames.target(0)).expect("it has a slot");
        read.wait();
        read.check_page().expect("whole");
        let mut bytes = vec![0; PAGE_BYTES];
        words::read_into(frames.words(0), 0, &mut bytes);
        let gsn = PageHeader::read(&bytes).expect("a header").gsn;
        assert!((*before..=after[page]).contains(&gsn), "page {page}: {before} {gsn}");
    }
}
