//! Tests of a chain of leaves under random changes, in comparison with an ordered map.

use std::collections::BTreeMap;

use stillpoint_io::SeededRng;
use stillpoint_node::{Near, Node, NodeError, NodeKind};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::common::{PAGES, below, fences_of, key, key_of, page, run, value, value_of};

/// Leaves with adjoining fences, and their expected records.
struct Chain {
    page_bytes: usize,
    leaves: Vec<Vec<AtomicU64>>,
    /// Value, tag, and whether the record is deleted.
    model: BTreeMap<Vec<u8>, (Vec<u8>, u8, bool)>,
}

impl Chain {
    fn new(page_bytes: usize) -> Self {
        let words = page(page_bytes);
        Node::new(&words).init(NodeKind::Leaf, 0, b"", None);
        Self { page_bytes, leaves: vec![words], model: BTreeMap::new() }
    }

    fn leaf_of(&self, key: &[u8]) -> usize {
        let covers = |words: &Vec<AtomicU64>| Node::new(words).covers(key);
        self.leaves.iter().position(covers).expect("the leaves cover all keys")
    }

    /// Makes room for a key: compacts the leaf or, if that frees nothing, splits it.
    fn make_room(&mut self, at: usize, key: &[u8]) {
        let node = Node::new(&self.leaves[at]);
        let before = node.free_bytes();
        if node.ghost_count() > 0 {
            for slot in 0..node.slot_count() {
                if node.is_ghost(slot) {
                    self.model.remove(&key_of(&node, slot));
                }
            }
        }
        node.compact(|_| true);
        node.check().expect("sound after compaction");
        if node.free_bytes() > before {
            return;
        }
        let right = page(self.page_bytes);
        Node::new(&right).owner_words()[0].store(77, Relaxed);
        let slots = node.slot_count();
        let split = node.split_for(key);
        node.split(&split, &Node::new(&right));
        assert_eq!(node.slot_count() + Node::new(&right).slot_count(), slots);
        assert_eq!(Node::new(&right).owner_words()[0].load(Relaxed), 77);
        self.leaves.insert(at + 1, right);
    }

    fn insert(&mut self, key: &[u8], value: &[u8], tag: u8) {
        for _ in 0..100 {
            let at = self.leaf_of(key);
            let node = Node::new(&self.leaves[at]);
            let is_there = self.model.get(key).is_some_and(|(.., deleted)| !deleted);
            match node.insert(key, value, tag) {
                Ok(slot) => {
                    assert!(!is_there, "inserted what is there");
                    assert_eq!(key_of(&node, slot), key);
                    self.model.insert(key.to_vec(), (value.to_vec(), tag, false));
                    return;
                }
                Err(NodeError::Exists { slot }) => {
                    assert!(is_there, "refused what is not there");
                    assert_eq!(key_of(&node, slot), key);
                    return;
                }
                Err(NodeError::Full { .. }) => self.make_room(at, key),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("splits make no room for a key of {} bytes", key.len());
    }

    fn change(&mut self, key: &[u8], random: &SeededRng) {
        let at = self.leaf_of(key);
        let node = Node::new(&self.leaves[at]);
        let Ok(slot) = node.search(key) else {
            assert!(!self.model.contains_key(key), "a key is not found");
            return;
        };
        let entry = self.model.get_mut(key).expect("a key that nobody inserted");
        assert_eq!((value_of(&node, slot), node.tag(slot), node.is_ghost(slot)), *entry);
        if entry.2 {
            if below(random, 2) == 0 {
                node.restore(slot);
                entry.2 = false;
            }
            return;
        }
        match below(random, 3) {
            0 => {
                node.delete(slot);
                entry.2 = true;
            }
            1 => {
                let new = value(random, self.page_bytes);
                let capacity = node.capacity_bytes(slot);
                match node.update(slot, &new, 9) {
                    Ok(()) => {
                        assert!(node.capacity_bytes(slot) >= new.len().max(capacity));
                        (entry.0, entry.1) = (new, 9);
                    }
                    Err(NodeError::Full { .. }) => assert!(new.len() > capacity, "room in place"),
                    Err(error) => panic!("{error}"),
                }
            }
            _ => {
                let from = below(random, entry.0.len() + 1);
                let to = from + below(random, entry.0.len() - from + 1);
                entry.0[from..to].fill(42);
                node.patch(slot, from, &vec![42; to - from]).expect("inside of the value");
            }
        }
    }

    fn merge(&mut self, random: &SeededRng) {
        if self.leaves.len() < 2 {
            return;
        }
        let at = below(random, self.leaves.len() - 1);
        let (left, right) = (Node::new(&self.leaves[at]), Node::new(&self.leaves[at + 1]));
        let before = crate::common::values(&self.leaves[at]);
        match left.merge(&right) {
            Ok(()) => drop(self.leaves.remove(at + 1)),
            Err(error) => {
                assert!(matches!(error, NodeError::Full { .. }), "{error}");
                assert_eq!(before, crate::common::values(&self.leaves[at]), "not unchanged");
            }
        }
    }

    fn check(&self) {
        let mut lower = Some(Vec::new());
        let mut model = self.model.iter();
        for words in &self.leaves {
            let node = Node::new(words);
            node.check().expect("a sound node");
            let (own_lower, upper) = fences_of(&node);
            assert_eq!(Some(own_lower), lower, "fences that do not meet");
            for slot in 0..node.slot_count() {
                let (key, entry) = model.next().expect("a record too many");
                assert_eq!(&key_of(&node, slot), key);
                assert_eq!((value_of(&node, slot), node.tag(slot), node.is_ghost(slot)), *entry);
                assert_eq!(node.search(key), Ok(slot));
                assert_eq!(node.search_near(key, Near::MIDDLE), Ok(slot));
                // Any place will do.
                let (position, near) = node.child_near::<true>(key, Near::MIDDLE);
                assert_eq!(node.child_near::<false>(key, near), (position, near));
                assert_eq!(node.child_near::<true>(key, near), (slot + 1, near));
                let found = node.search_heads::<true>(key, near);
                assert_eq!(found.and_then(|first| node.search_from(key, first)), Ok(slot));
            }
            if let Some(upper) = &upper {
                assert_eq!(node.search(upper), Err(node.slot_count()), "the upper fence");
            }
            lower = upper;
        }
        assert_eq!((lower, model.next()), (None, None), "a record is lost");
    }
}

#[test]
fn leaves_hold_what_an_ordered_map_holds() {
    run(60, |random| {
        let page_bytes = PAGES[below(random, PAGES.len())];
        let mut chain = Chain::new(page_bytes);
        for step in 0..1_500 {
            let key = key(random, page_bytes);
            match below(random, 10) {
                0..6 => chain.insert(&key, &value(random, page_bytes), step as u8),
                6..9 => chain.change(&key, random),
                _ => chain.merge(random),
            }
            if step % 100 == 0 {
                chain.check();
            }
        }
        chain.check();
    });
}

/// Ascending keys leave full leaves behind; random ones leave leaves that are two thirds full.
#[test]
fn ascending_insertions_fill_their_leaves() {
    let mut chain = Chain::new(4096);
    for number in 0..10_000u64 {
        chain.insert(&number.to_be_bytes(), b"12345678", 0);
    }
    chain.check();
    let (last, full) = chain.leaves.split_last().expect("leaves");
    assert!(Node::new(last).slot_count() > 0);
    let room: Vec<usize> = full.iter().map(|words| Node::new(words).free_bytes()).collect();
    assert!(room.iter().skip(1).all(|bytes| *bytes < 200), "free bytes: {room:?}");
}

/// Twenty separate runs of ascending keys, each in the middle of the key space.
#[test]
fn ascending_insertions_between_others_fill_their_leaves() {
    let mut chain = Chain::new(4096);
    for run in 0..20u64 {
        chain.insert(&[run.to_be_bytes(), [255; 8]].concat(), b"end", 0);
    }
    for run in 0..20u64 {
        for number in 0..500u64 {
            chain.insert(&[run.to_be_bytes(), number.to_be_bytes()].concat(), b"12345678", 0);
        }
    }
    chain.check();
    let records = 20 * 501;
    // A record takes a slot, an entry's head, its rest of 8 to 16 bytes and its value.
    let least = records * (8 + 8 + 16 + 8) / (4096 - 64);
    assert!(chain.leaves.len() < least * 13 / 10, "{} leaves, {least} suffice", chain.leaves.len());
}
