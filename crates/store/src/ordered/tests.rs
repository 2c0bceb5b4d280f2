//! The ordered index in comparison with a map, and under several threads.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use stillpoint_node::NodeKind;

use super::nodes::ROOT;
use super::{Batch, ORDERED_KEY_BYTES_MAX, OrderedIndex, Unclaimed};

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

fn index() -> OrderedIndex {
    OrderedIndex::new(&Arc::default()).expect("address space")
}

impl OrderedIndex {
    fn add_free(&self, key: &[u8]) {
        self.add(key, &mut Unclaimed).expect("address space");
    }

    /// Keys of a range, up to `most` at a time.
    fn keys(&self, bounds: (Bound<&[u8]>, Bound<&[u8]>), most: usize, down: bool) -> Vec<Vec<u8>> {
        let (mut found, mut batch): (Vec<Vec<u8>>, _) = (Vec::new(), Batch::default());
        loop {
            let last = found.last().cloned();
            let last = last.as_ref().map(|key| Bound::Excluded(&key[..]));
            match down {
                true => {
                    self.read_descending((bounds.0, last.unwrap_or(bounds.1)), most, &mut batch);
                }
                false => {
                    self.read_ascending((last.unwrap_or(bounds.0), bounds.1), most, &mut batch);
                }
            }
            assert!(batch.len() <= most && (batch.len() > 0 || batch.is_end()));
            found.extend((0..batch.len()).map(|number| batch.key(number).to_vec()));
            if batch.is_end() {
                return found;
            }
        }
    }

    /// Checks fences, levels and counts of a subtree. Returns its nodes and its records.
    fn check_from(&self, number: u64, lower: &[u8], upper: Option<&[u8]>) -> (usize, u64) {
        let node = self.nodes.node(number);
        let (mut low, mut high) = (Vec::new(), Vec::new());
        node.read_lower_fence(&mut low);
        let bounded = node.read_upper_fence(&mut high);
        assert_eq!((&low[..], bounded.then_some(&high[..])), (lower, upper), "node {number}");
        if node.level() == 0 {
            return (1, node.records());
        }
        let (mut nodes, mut records) = (1, 0);
        let mut from = lower.to_vec();
        for position in 0..node.child_count() {
            let mut to = Vec::new();
            let is_last = position == node.slot_count();
            if is_last {
                to.clone_from(&high)
            } else {
                node.read_key(position, &mut to)
            }
            let until = if is_last { upper } else { Some(&to[..]) };
            let child = node.child(position);
            assert_eq!(self.nodes.node(child.at).level() + 1, node.level());
            let below = self.check_from(child.at, &from, until);
            assert_eq!(child.records, below.1, "child {position} of node {number}");
            (nodes, records) = (nodes + below.0, records + below.1);
            from = to;
        }
        assert_eq!(node.kind(), Some(NodeKind::CountedInner));
        (nodes, records)
    }

    fn check(&self) -> usize {
        let (nodes, records) = self.check_from(ROOT, b"", None);
        assert_eq!(records, self.records());
        nodes
    }
}

/// A key of one of several shapes: dense numbers, few prefixes, up to the longest keys.
fn key(random: &mut Random, shape: usize) -> Vec<u8> {
    let number = random.below(3_000) as u64;
    match shape {
        0 => number.to_be_bytes().to_vec(),
        1 => format!("user:{:05}:name", number % 700).into_bytes(),
        2 => {
            let mut key = vec![b'x'; number as usize % ORDERED_KEY_BYTES_MAX];
            key.push(number as u8);
            key
        }
        _ => (0..random.below(4)).map(|_| random.below(3) as u8).collect(),
    }
}

fn bound(random: &mut Random, shape: usize) -> Bound<Vec<u8>> {
    match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key(random, shape)),
        _ => Bound::Excluded(key(random, shape)),
    }
}

fn is_within(key: &[u8], (lower, upper): (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    let above = match lower {
        Bound::Included(lower) => key >= lower,
        Bound::Excluded(lower) => key > lower,
        Bound::Unbounded => true,
    };
    let below = match upper {
        Bound::Included(upper) => key <= upper,
        Bound::Excluded(upper) => key < upper,
        Bound::Unbounded => true,
    };
    above && below
}

fn compare(
    index: &OrderedIndex,
    model: &BTreeMap<Vec<u8>, bool>,
    random: &mut Random,
    shape: usize,
) {
    let (lower, upper) = (bound(random, shape), bound(random, shape));
    let bounds = (lower.as_ref().map(|key| &key[..]), upper.as_ref().map(|key| &key[..]));
    let expected = || model.keys().filter(|key| is_within(key, bounds)).cloned();
    let most = 1 + random.below(20);
    assert_eq!(index.keys(bounds, most, false), expected().collect::<Vec<_>>(), "{bounds:?}");
    assert_eq!(index.keys(bounds, most, true), expected().rev().collect::<Vec<_>>(), "{bounds:?}");
    let sought = key(random, shape);
    let records = || model.iter().filter(|(_, is_record)| **is_record).map(|(key, _)| key);
    let below = records().filter(|key| **key < sought).count() as u64;
    assert_eq!(index.rank(&sought, false), below);
    let has = model.get(&sought).copied().unwrap_or(false);
    assert_eq!(index.rank(&sought, true), below + u64::from(has));
    let number = random.below(records().count() + 2);
    let mut found = Vec::new();
    let has_number = index.nth(number as u64, &mut found);
    assert_eq!(has_number.then_some(&found), records().nth(number));
    assert_eq!(index.records(), records().count() as u64);
}

#[test]
fn the_index_is_like_a_map() {
    for shape in 0..4 {
        let mut random = Random(shape as u64 + 1);
        let (index, mut model) = (index(), BTreeMap::new());
        let mut most_nodes = 0;
        for round in 0..12 {
            // Rounds that mostly add, and rounds that mostly remove.
            let adds = if round % 3 == 2 { 1 } else { 8 };
            for _ in 0..1_500 {
                let key = key(&mut random, shape);
                if random.below(10) < adds {
                    match random.below(3) {
                        0 => {
                            index.add_free(&key);
                            model.entry(key).or_insert(false);
                        }
                        1 => {
                            index.load(&key).expect("address space");
                            // A key that was a ghost becomes a record.
                            model.insert(key, true);
                        }
                        _ => {
                            index.add_free(&key);
                            index.set_present(&key, true);
                            model.insert(key, true);
                        }
                    }
                } else {
                    if model.get(&key) == Some(&true) {
                        index.set_present(&key, false);
                    }
                    assert!(index.remove(&key, &mut Unclaimed));
                    model.remove(&key);
                }
            }
            (0..20).for_each(|_| compare(&index, &model, &mut random, shape));
            most_nodes = most_nodes.max(index.check());
        }
        let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
        for key in &keys {
            if model[key] {
                index.set_present(key, false);
            }
            assert!(index.remove(key, &mut Unclaimed));
        }
        assert_eq!(index.check(), 1, "an empty index is one leaf again");
        assert!(shape == 3 || most_nodes > 5, "shape {shape}: {most_nodes} nodes");
        assert!(index.held_bytes() >= most_nodes * 4096);
    }
}

#[test]
fn a_queue_takes_no_more_nodes_than_it_needs() {
    let index = index();
    for number in 0..200_000u64 {
        index.add_free(&number.to_be_bytes());
        index.set_present(&number.to_be_bytes(), true);
        if let Some(old) = number.checked_sub(1_000) {
            index.set_present(&old.to_be_bytes(), false);
            assert!(index.remove(&old.to_be_bytes(), &mut Unclaimed));
        }
    }
    assert_eq!(index.records(), 1_000);
    assert!(index.check() < 40 && index.held_bytes() < 60 * 4096, "{}", index.held_bytes());
}

/// Writers add and remove their own keys between lasting ones. Readers find all lasting keys in their
/// order all the time, upwards and downwards.
#[test]
fn lasting_keys_are_never_missed() {
    let index = Arc::new(index());
    let lasting: Vec<Vec<u8>> =
        (0..2_000u64).map(|number| (number * 8).to_be_bytes().to_vec()).collect();
    for key in &lasting {
        index.load(key).expect("address space");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (1..4u64)
        .map(|writer| {
            let (index, stop) = (index.clone(), stop.clone());
            stillpoint_io::spawn(&format!("writer-{writer}"), move || {
                let mut random = Random(writer);
                let mut rounds = 0;
                while !stop.load(Relaxed) || rounds < 20 {
                    let first = random.below(2_000) as u64;
                    let keys =
                        || (first..first + 300).map(|number| (number * 8 + writer).to_be_bytes());
                    for key in keys() {
                        index.add_free(&key);
                        index.set_present(&key, true);
                    }
                    for key in keys() {
                        index.set_present(&key, false);
                        assert!(index.remove(&key, &mut Unclaimed));
                    }
                    rounds += 1;
                }
            })
            .expect("a thread")
        })
        .collect();
    for round in 0..60 {
        let down = round % 2 == 1;
        let mut found = index.keys((Bound::Unbounded, Bound::Unbounded), 64, down);
        if down {
            found.reverse();
        }
        assert!(found.is_sorted_by(|a, b| a < b), "in order, each once");
        found.retain(|key| u64::from_be_bytes(key[..].try_into().expect("eight bytes")) % 8 == 0);
        assert_eq!(found, lasting, "round {round}");
        let middle = &lasting[round * 30];
        assert!(index.rank(middle, false) >= round as u64 * 30);
    }
    stop.store(true, Relaxed);
    for writer in writers {
        writer.join().expect("no panic");
    }
    assert_eq!(index.records(), 2_000);
    index.check();
}
