//! Costs of one node in the cache: search, insertion in random order, scan and split, for pages of
//! 4, 16 and 64 KiB. Keys are 8-byte numbers, big-endian. Values have 8 bytes. `cargo bench -p
//! stillpoint-node --bench node`
#![expect(clippy::print_stdout, reason = "a report on the terminal")]

use std::hint::black_box;

use stillpoint_io::{Clock, RealClock, Rng, SeededRng};
use stillpoint_node::{Node, NodeKind};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Operations per figure.
const OPERATIONS: usize = 4_000_000;

fn page(bytes: usize) -> Vec<AtomicU64> {
    (0..bytes / 8).map(|_| AtomicU64::new(0)).collect()
}

fn copy(from: &[AtomicU64], to: &[AtomicU64]) {
    from.iter().zip(to).for_each(|(from, to)| to.store(from.load(Relaxed), Relaxed));
}

/// Nanoseconds per operation of `work`, which does `count` of them.
fn ns_per(count: usize, work: impl FnOnce()) -> f64 {
    let start_ns = RealClock.monotonic_ns();
    work();
    (RealClock.monotonic_ns() - start_ns) as f64 / count as f64
}

/// As many keys as a page takes, in random order.
fn fill(node: &Node<'_>, random: &mut SeededRng) -> Vec<[u8; 8]> {
    node.init(NodeKind::Leaf, 0, b"", None);
    let mut keys = Vec::new();
    loop {
        let key = random.next_u64().to_be_bytes();
        if node.insert(&key, &[7; 8], 0).is_err() {
            return keys;
        }
        keys.push(key);
    }
}

fn main() {
    for page_kib in [4, 16, 64] {
        let mut random = SeededRng::new(1);
        let words = page(page_kib << 10);
        let node = Node::new(&words);
        let keys = fill(&node, &mut random);
        let sought: Vec<usize> =
            (0..OPERATIONS).map(|_| random.next_u64() as usize % keys.len()).collect();
        let search = ns_per(OPERATIONS, || {
            for at in &sought {
                black_box(node.search(&keys[*at]).expect("there"));
            }
        });
        let rounds = OPERATIONS / keys.len();
        let insert = ns_per(rounds * keys.len(), || {
            for _ in 0..rounds {
                node.init(NodeKind::Leaf, 0, b"", None);
                for key in &keys {
                    node.insert(key, &[7; 8], 0).expect("room");
                }
            }
        });
        node.compact(|_| false);
        let scan = ns_per(rounds * keys.len(), || {
            let mut key = Vec::new();
            for _ in 0..rounds {
                for slot in 0..node.slot_count() {
                    key.clear();
                    node.read_key(slot, &mut key);
                    black_box((&key, node.value_word(slot, 0), node.is_ghost(slot)));
                }
            }
        });
        let (left, right) = (page(page_kib << 10), page(page_kib << 10));
        let split_at = node.split_for(&keys[0]);
        let splits = OPERATIONS / 100 / keys.len();
        let split = ns_per(splits, || {
            for _ in 0..splits {
                copy(&words, &left);
                Node::new(&left).split(&split_at, &Node::new(&right));
            }
        });
        println!(
            "{page_kib} KiB, {} records: search {search:.1} ns, insert {insert:.1} ns, \
             scan {:.1} M records/s, split {:.1} us",
            keys.len(),
            1e3 / scan,
            split / 1e3
        );
    }
}
