//! Test of readers without a latch beside a writer. Every validated read is right, and no read
//! panics.

use std::sync::Arc;

use stillpoint_io::{SeededRng, seeded_rounds, spawn};
use stillpoint_node::{Node, NodeKind};
use stillpoint_sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use crate::common::{below, page};

const PAGE_BYTES: usize = 1024;

struct Shared {
    words: Vec<AtomicU64>,
    /// Odd while the writer changes the words.
    version: AtomicU64,
    is_over: AtomicBool,
}

fn key(number: usize) -> Vec<u8> {
    format!("key:{:0width$}", number, width = 1 + number % 9).into_bytes()
}

fn value(number: usize, length: usize) -> Vec<u8> {
    vec![number as u8; length]
}

/// Reads until the writer has ended. Returns how often the version was valid.
fn read(shared: &Shared, seed: u64) -> u64 {
    let random = SeededRng::new(seed);
    let mut valid = 0;
    while !shared.is_over.load(Ordering::Acquire) || valid == 0 {
        let number = below(&random, 40);
        let sought = key(number);
        let version = shared.version.load(Ordering::Acquire);
        let node = Node::new(&shared.words);
        let found = node.search(&sought);
        let (mut found_key, mut found_value) = (Vec::new(), Vec::new());
        if let Ok(slot) = found {
            node.read_key(slot, &mut found_key);
            node.read_value(slot, &mut found_value);
        }
        let records = node.records();
        fence(Ordering::Acquire);
        // Relaxed: the fence before this load is the partner of the Release fence in `write`.
        if !version.is_multiple_of(2) || shared.version.load(Ordering::Relaxed) != version {
            continue;
        }
        valid += 1;
        assert!(records <= 40);
        if found.is_ok() {
            assert_eq!(found_key, sought);
            assert!(found_value.iter().all(|byte| *byte == number as u8), "a torn value");
        } else {
            assert!(!number.is_multiple_of(4), "a key that is always there was not found");
        }
    }
    valid
}

fn write(shared: &Shared, random: &SeededRng) {
    // Relaxed: this thread is the only writer. The fence is the partner of the one in `read`.
    let version = shared.version.load(Ordering::Relaxed);
    shared.version.store(version + 1, Ordering::Relaxed);
    fence(Ordering::Release);
    let node = Node::new(&shared.words);
    let number = below(random, 40);
    let length = below(random, 12);
    match node.search(&key(number)) {
        Ok(slot) if node.is_ghost(slot) => node.restore(slot),
        Ok(slot) if number.is_multiple_of(4) || below(random, 2) == 0 => {
            let _ = node.update(slot, &value(number, length), 0);
        }
        Ok(slot) => node.delete(slot),
        Err(_) => drop(node.insert(&key(number), &value(number, length), 0)),
    }
    if below(random, 8) == 0 {
        node.compact(|slot| node.is_ghost(slot));
    }
    shared.version.store(version + 2, Ordering::Release);
}

#[test]
fn what_validates_is_right() {
    seeded_rounds(4, |seed| {
        let shared = Arc::new(Shared {
            words: page(PAGE_BYTES),
            version: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let node = Node::new(&shared.words);
        node.init(NodeKind::Leaf, 0, b"key:", Some(b"key;"));
        for number in (0..40).step_by(4) {
            node.insert(&key(number), &value(number, 4), 0).expect("room");
        }
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let shared = shared.clone();
                spawn("reader", move || read(&shared, seed * 2 + reader)).expect("a thread")
            })
            .collect();
        let random = SeededRng::new(seed);
        (0..20_000).for_each(|_| write(&shared, &random));
        shared.is_over.store(true, Ordering::Release);
        for reader in readers {
            assert!(reader.join().expect("no panic") > 0);
        }
        node.check().expect("a sound node");
    });
}
