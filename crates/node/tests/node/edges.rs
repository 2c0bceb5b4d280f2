//! Tests of limits, refusals, and single cases.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stillpoint_node::{Node, NodeError, NodeKind, node_key_bytes_max, node_value_bytes_max};

use crate::common::{PAGES, copy, fences_of, key_of, page, value_of, values};

#[test]
fn an_empty_leaf_takes_any_entry_between_the_longest_fences() {
    for bytes in PAGES {
        let words = page(bytes);
        let node = Node::new(&words);
        let longest = node_key_bytes_max(bytes);
        node.init(NodeKind::Leaf, 0, &vec![1; longest], Some(&vec![3; longest]));
        assert_eq!(node.prefix_bytes(), 0);
        node.insert(&vec![2; longest], &vec![7; node_value_bytes_max(bytes)], 0).expect("room");
        node.check().expect("a sound node");
        assert_eq!(key_of(&node, 0), vec![2; longest]);
        assert_eq!(value_of(&node, 0), vec![7; node_value_bytes_max(bytes)]);
    }
}

#[test]
fn what_is_too_long_is_refused_with_the_limit() {
    let words = page(4096);
    let node = Node::new(&words);
    node.init(NodeKind::Leaf, 0, b"", None);
    assert_eq!(
        node.insert(&[1; 513], b"", 0),
        Err(NodeError::KeyTooLong { bytes: 513, bytes_max: 512 })
    );
    let too_long = Err(NodeError::ValueTooLong { bytes: 1025, bytes_max: 1024 });
    assert_eq!(node.insert(b"k", &[1; 1025], 0), too_long);
    let slot = node.insert(b"k", b"value", 0).expect("room");
    assert_eq!(node.update(slot, &[1; 1025], 0).map(|()| 0), too_long);
    let beyond = Err(NodeError::PatchBeyondEnd { end: 6, bytes: 5 });
    assert_eq!(node.patch(slot, 3, b"abc"), beyond);
    assert!(node.patch(slot, usize::MAX, b"abc").is_err());
    assert_eq!(value_of(&node, slot), b"value");
}

#[test]
fn a_ghost_keeps_its_place_until_it_is_freed() {
    let words = page(512);
    let node = Node::new(&words);
    node.init(NodeKind::Leaf, 0, b"", None);
    node.insert(b"a", &[1; 100], 5).expect("room");
    node.insert(b"b", &[2; 100], 5).expect("room");
    let free = node.free_bytes();
    node.delete(0);
    assert_eq!((node.free_bytes(), node.ghost_count(), node.records()), (free, 1, 1));
    assert_eq!(node.search(b"a"), Ok(0));
    node.compact(|_| false);
    assert_eq!((node.free_bytes(), node.slot_count()), (free, 2));
    node.restore(0);
    assert_eq!((value_of(&node, 0), node.tag(0)), (vec![1; 100], 5));
    // A shorter value keeps the capacity, so that the undo of the change finds room.
    node.update(0, b"", 6).expect("room");
    assert_eq!((node.free_bytes(), node.capacity_bytes(0)), (free, 104));
    node.compact(|slot| slot == 1);
    assert_eq!(node.free_bytes(), free, "slot 0 was not to be freed");
    node.compact(|slot| slot == 0);
    assert_eq!(node.free_bytes(), free + 104);
    node.delete(0);
    node.compact(|_| true);
    assert_eq!((node.slot_count(), node.ghost_count()), (1, 0));
    assert_eq!(node.free_bytes(), free + 104 + 24);
    assert_eq!(value_of(&node, 0), vec![2; 100]);
}

#[test]
fn an_insertion_over_a_ghost_takes_its_place() {
    let words = page(512);
    let node = Node::new(&words);
    node.init(NodeKind::Leaf, 0, b"", None);
    node.insert(b"a", &[1; 30], 1).expect("room");
    let free = node.free_bytes();
    node.delete(0);
    assert_eq!(node.insert(b"a", b"new", 2), Ok(0));
    assert_eq!((value_of(&node, 0), node.tag(0), node.ghost_count()), (b"new".to_vec(), 2, 0));
    assert_eq!(node.free_bytes(), free);
    node.delete(0);
    assert!(node.insert(b"a", &[3; 128], 2).is_ok());
    assert_eq!(value_of(&node, 0), vec![3; 128]);
    node.check().expect("a sound node");
}

/// A longer value may always replace that of a leaf's only record, although both do not fit at
/// once.
#[test]
fn a_leaf_with_one_record_takes_any_value_for_it() {
    let words = page(512);
    let node = Node::new(&words);
    node.init(NodeKind::Leaf, 0, &[1; 64], Some(&[3; 64]));
    node.insert(&[2; 64], &[7; 100], 0).expect("room");
    node.update(0, &[8; 128], 0).expect("room");
    node.check().expect("a sound node");
    assert_eq!(value_of(&node, 0), vec![8; 128]);
    node.update(0, &[9; 1], 0).expect("room");
    node.delete(0);
    node.compact(|_| false);
    assert_eq!(node.insert(&[2; 64], &[6; 128], 0), Ok(0));
    node.check().expect("a sound node");
}

/// The separator of an ascending split may be longer than any key of its leaf.
#[test]
fn a_long_separator_never_overflows_a_part() {
    let words = page(512);
    let node = Node::new(&words);
    let long = |end: u8| [vec![b'm'; 62], vec![end]].concat();
    for number in 0..64u8 {
        node.init(NodeKind::Leaf, 0, b"", None);
        node.insert(&long(9), &vec![0; usize::from(number)], 0).expect("room");
        let mut end = 0;
        while node.insert(&[b'a', end], b"", 0).is_ok() {
            end += 1;
        }
        let slots = node.slot_count();
        let pending = long(5);
        let right = page(512);
        let split = node.split_for(&pending);
        node.split(&split, &Node::new(&right));
        node.check().expect("a sound left part");
        Node::new(&right).check().expect("a sound right part");
        assert_eq!(node.slot_count() + Node::new(&right).slot_count(), slots);
    }
}

#[test]
fn separators_are_as_short_as_can_be() {
    let words = page(512);
    let node = Node::new(&words);
    node.init(NodeKind::Leaf, 0, b"", None);
    for number in 0..7 {
        node.insert(format!("a{number:02}").as_bytes(), b"", 0).expect("room");
        node.insert(format!("c{number:02}").as_bytes(), b"", 0).expect("room");
    }
    node.insert(b"banana-bread", b"", 0).expect("room");
    node.insert(b"banana-split", b"", 0).expect("room");
    // A split in the middle would have the separator "banana-s".
    let split = node.split_for(b"z");
    assert_eq!((split.slot, split.separator.as_slice()), (7, &b"b"[..]));
    let right = page(512);
    node.split(&split, &Node::new(&right));
    assert_eq!(fences_of(&node), (vec![], Some(b"b".to_vec())));
    assert_eq!(fences_of(&Node::new(&right)), (b"b".to_vec(), None));
}

#[test]
fn a_prefix_grows_with_splits_and_shrinks_with_merges() {
    let words = page(4096);
    let node = Node::new(&words);
    node.init(NodeKind::Leaf, 0, b"customer/00", Some(b"customer/09"));
    assert_eq!(node.prefix_bytes(), 10);
    for number in 0..20 {
        node.insert(format!("customer/0{:03}", number * 10).as_bytes(), b"", 0).expect("room");
    }
    let right = page(4096);
    let right = Node::new(&right);
    node.split(&node.split_for(b"customer/0195"), &right);
    assert_eq!((node.prefix_bytes(), right.prefix_bytes()), (10, 10));
    let end = page(4096);
    let end = Node::new(&end);
    end.init(NodeKind::Leaf, 0, b"customer/09", None);
    end.insert(b"zebra", b"", 0).expect("room");
    right.merge(&end).expect("room");
    assert_eq!(right.prefix_bytes(), 0);
    node.merge(&right).expect("room");
    node.check().expect("a sound node");
    assert_eq!(node.slot_count(), 21);
    assert_eq!(key_of(&node, 7), b"customer/0070");
}

#[test]
fn what_cannot_be_a_node_is_no_page() {
    for words in [0, 63, 8193] {
        let words = page(words * 8);
        assert!(catch_unwind(AssertUnwindSafe(|| Node::new(&words))).is_err());
    }
    let words = page(512);
    let node = Node::new(&words);
    assert_eq!(node.kind(), None);
    assert!(node.check().is_err());
    let refuses = |lower: &[u8], upper: &[u8]| {
        catch_unwind(AssertUnwindSafe(|| node.init(NodeKind::Leaf, 0, lower, Some(upper)))).is_err()
    };
    assert!(refuses(b"b", b"b") && refuses(b"b", b"a") && refuses(b"", &[1; 65]));
}

/// Every bit of a sound node is flipped, one at a time. The check misses only those that change a value,
/// a tag, or a key that stays in order.
#[test]
fn the_check_finds_what_readers_rely_on() {
    let words = page(512);
    let node = Node::new(&words);
    node.init(NodeKind::Leaf, 0, b"user:1", Some(b"user:9"));
    for key in ["user:2", "user:33333333333333", "user:4"] {
        node.insert(key.as_bytes(), b"v", 0).expect("room");
    }
    node.delete(1);
    node.check().expect("a sound node");
    let sound = values(&words);
    let free = 8 + node.slot_count()..usize::from((sound[4] >> 32) as u16);
    let mut missed = Vec::new();
    for bit in 0..512 * 8 {
        let broken = copy(&words);
        let (word, shift) = (bit / 64, bit % 64);
        broken[word].store(sound[word] ^ 1 << shift, stillpoint_sync::atomic::Ordering::Relaxed);
        let owners = (1..4).contains(&word) || (6..8).contains(&word);
        let checksum = word == 0 && shift < 32;
        if !owners && !checksum && !free.contains(&word) && Node::new(&broken).check().is_ok() {
            missed.push(bit);
        }
    }
    // The check misses flips in three values and tags, in lengths of values, in ten bytes of a key,
    // and some in fences and lengths.
    let unseen_bits = 3 * (64 + 8 + 3) + 10 * 8 + 2 * 8;
    assert!(missed.len() <= unseen_bits, "{} bits: {missed:?}", missed.len());
}
