//! Code shared by the tests: pages, keys and sound nodes from a stream of random numbers.

use stillpoint_io::{Rng, SeededRng, seeded_rounds};
use stillpoint_mem::words;
use stillpoint_node::{Node, NodeKind, node_key_bytes_max, node_value_bytes_max};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Page sizes in bytes: the smallest, the largest, the usual one, and some that are no power of
/// two.
pub(crate) const PAGES: [usize; 6] = [512, 520, 1000, 4096, 16 << 10, 64 << 10];

/// Runs `round` with the random numbers of one seed after the other.
pub(crate) fn run(rounds: u64, mut round: impl FnMut(&SeededRng)) {
    seeded_rounds(rounds, |seed| round(&SeededRng::new(seed)));
}

pub(crate) fn page(bytes: usize) -> Vec<AtomicU64> {
    (0..bytes / 8).map(|_| AtomicU64::new(0)).collect()
}

pub(crate) fn copy(from: &[AtomicU64]) -> Vec<AtomicU64> {
    from.iter().map(|word| AtomicU64::new(word.load(Relaxed))).collect()
}

pub(crate) fn values(words: &[AtomicU64]) -> Vec<u64> {
    words.iter().map(|word| word.load(Relaxed)).collect()
}

/// A number below `end`, which is not 0.
pub(crate) fn below(random: &SeededRng, end: usize) -> usize {
    random.below(end as u64) as usize
}

/// A key of one of three kinds. Keys of few letters, zeros among them, often share prefixes. Other
/// keys are numbers, or are long.
pub(crate) fn key(random: &SeededRng, page_bytes: usize) -> Vec<u8> {
    let letters = |len: usize| (0..len).map(|_| [0, 0, 1, b'a', 255][below(random, 5)]).collect();
    match below(random, 8) {
        0..3 => letters(below(random, 7)),
        3..6 => (below(random, 100_000) as u64).to_be_bytes().to_vec(),
        6 => [vec![b'u'; below(random, 20)], letters(below(random, 6))].concat(),
        _ => {
            let mut long = vec![1; below(random, node_key_bytes_max(page_bytes) + 1)];
            if let Some(last) = long.last_mut() {
                *last = random.next_u64() as u8;
            }
            long
        }
    }
}

pub(crate) fn value(random: &SeededRng, page_bytes: usize) -> Vec<u8> {
    let longest = node_value_bytes_max(page_bytes);
    let bytes = if below(random, 10) == 0 { longest } else { longest.min(40) };
    vec![random.next_u64() as u8; below(random, bytes + 1)]
}

/// Makes a leaf with some records and ghosts, within random fences.
pub(crate) fn sample_leaf(random: &SeededRng, words: &[AtomicU64]) {
    let node = Node::new(words);
    let bytes = node.page_bytes();
    let mut fences = [key(random, bytes), key(random, bytes)];
    fences.sort();
    let [lower, upper] = &fences;
    let bounded = lower < upper && below(random, 4) > 0;
    node.init(NodeKind::Leaf, 0, lower, bounded.then_some(upper));
    for _ in 0..below(random, 200) {
        let key = [&lower[..below(random, lower.len() + 1)], &key(random, bytes)].concat();
        if key.len() <= node_key_bytes_max(bytes) && node.covers(&key) {
            let _ = node.insert(&key, &value(random, bytes), 3);
        }
        if node.slot_count() > 0 && below(random, 3) == 0 {
            let slot = below(random, node.slot_count());
            match node.is_ghost(slot) {
                true => node.restore(slot),
                false if below(random, 2) == 0 => node.delete(slot),
                false => drop(node.update(slot, &value(random, bytes), 4)),
            }
        }
    }
}

/// The key of a slot.
pub(crate) fn key_of(node: &Node<'_>, slot: usize) -> Vec<u8> {
    let mut key = Vec::new();
    node.read_key(slot, &mut key);
    key
}

/// The value of a slot. A copy of the whole record has the same key and value.
pub(crate) fn value_of(node: &Node<'_>, slot: usize) -> Vec<u8> {
    let mut value = Vec::new();
    node.read_value(slot, &mut value);
    let (key, (prefix, prefix_bytes)) = (key_of(node, slot), node.prefix_words());
    let mut room = vec![0xee; key.len() + value.len() + 8];
    words::copy_whole(prefix, &mut room);
    node.record(slot).copy_padded(value.len(), &mut room[prefix_bytes..]);
    assert_eq!((&room[..key.len()], &room[key.len()..][..value.len()]), (&key[..], &value[..]));
    value
}

/// Both fences. `None` means no upper fence.
pub(crate) fn fences_of(node: &Node<'_>) -> (Vec<u8>, Option<Vec<u8>>) {
    let (mut lower, mut upper) = (Vec::new(), Vec::new());
    node.read_lower_fence(&mut lower);
    let bounded = node.read_upper_fence(&mut upper);
    (lower, bounded.then_some(upper))
}
