//! Tests with hostile words. Readers end without a panic, and writers can change every node that
//! the check accepts.
//!
//! `STILLPOINT_FUZZ_SECONDS` and `STILLPOINT_FUZZ_SEED` set the time and the first seed.

use std::hint::black_box;

use stillpoint_io::{Rng, SeededRng};
use stillpoint_node::{Child, Near, Node, NodeError, NodeKind};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::common::{PAGES, below, copy, key, page, run, sample_leaf, value};

/// Calls every reader, with slots and keys that need not be there.
fn read(node: &Node<'_>, random: &SeededRng) {
    let mut out = Vec::new();
    for _ in 0..8 {
        let key = key(random, node.page_bytes());
        let _ = black_box(node.search(&key));
        let (_, near) = black_box(node.child_near::<false>(&key, Near::MIDDLE));
        let _ = black_box(node.child_near::<true>(&key, near));
        let _ = black_box(node.search_near(&key, near));
        let _ = black_box(node.search_heads::<true>(&key, near));
        let _ = black_box(node.search_from(&key, below(random, node.slot_count() + 2)));
        black_box((node.child_of(&key), node.child_below(&key)));
        black_box(node.covers(&key));
        let slot = match below(random, 4) {
            0 => random.next_u64() as usize,
            _ => below(random, node.slot_count() + 2),
        };
        out.clear();
        node.read_key(slot, &mut out);
        node.read_value(slot, &mut out);
        assert!(out.len() <= 3 * node.page_bytes(), "more than there is");
        let (mut room, value_bytes) = (vec![0; below(random, 200)], random.next_u64() as u16);
        node.record(slot).copy_padded(value_bytes.into(), &mut room);
        black_box(node.prefix_words());
        black_box((node.tag(slot), node.is_ghost(slot), node.capacity_bytes(slot)));
        black_box((node.value_word(slot, 1), node.child(slot), node.records_before(slot)));
        black_box(node.child_at_record(random.next_u64()));
    }
    node.read_lower_fence(&mut out);
    node.read_upper_fence(&mut out);
    black_box((node.kind(), node.level(), node.prefix_bytes(), node.records()));
    black_box((node.free_bytes(), node.ghost_count(), node.owner_words()));
}

/// Changes a node that the check has accepted. The check must accept the result, too.
fn change(node: &Node<'_>, random: &SeededRng) {
    let bytes = node.page_bytes();
    if node.kind() != Some(NodeKind::Leaf) {
        let separator = key(random, bytes);
        if node.covers(&separator) && node.search(&separator).is_err() {
            let _ = node.insert_child(&separator, Child::default(), Child::default());
        }
        if node.slot_count() > 0 {
            node.merge_children(below(random, node.slot_count()), Child::default());
        }
    } else {
        let key = key(random, bytes);
        if node.covers(&key) {
            let _ = node.insert(&key, &value(random, bytes), 1);
        }
        if node.slot_count() > 0 {
            let slot = below(random, node.slot_count());
            if node.is_ghost(slot) {
                node.restore(slot);
            }
            let _ = node.update(slot, &value(random, bytes), 1);
            node.delete(slot);
        }
    }
    node.check().expect("sound after changes");
    node.compact(|slot| slot % 2 == 0);
    node.check().expect("sound after compaction");
    let pending = key(random, bytes);
    if node.slot_count() > 0 && node.covers(&pending) && node.search(&pending).is_err() {
        let words = page(bytes);
        let right = Node::new(&words);
        node.split(&node.split_for(&pending), &right);
        node.check().expect("a sound left part");
        right.check().expect("a sound right part");
        node.merge(&right).expect("both were one page");
        node.check().expect("sound after a merge");
    }
}

fn judge(words: &[AtomicU64], random: &SeededRng) -> bool {
    let node = Node::new(words);
    read(&node, random);
    let is_sound = node.check().is_ok();
    if is_sound {
        change(&node, random);
    }
    is_sound
}

#[test]
fn random_words_never_panic() {
    run(2_000, |random| {
        let words = page(PAGES[below(random, 4)]);
        for word in &words {
            word.store(random.next_u64() & random.next_u64() >> below(random, 64), Relaxed);
        }
        judge(&words, random);
        // With a valid kind and few slots, readers get further.
        let kind = 1 + below(random, 3) as u64;
        words[0].store(kind << 32, Relaxed);
        words[4].store(below(random, 40) as u64 | random.next_u64() << 32, Relaxed);
        judge(&words, random);
    });
}

#[test]
fn mutated_nodes_are_refused_or_can_be_used() {
    let (mut accepted, mut refused) = (0, 0);
    run(3_000, |random| {
        let words = page(PAGES[below(random, 4)]);
        sample_leaf(random, &words);
        let original = copy(&words);
        for _ in 0..=below(random, 3) {
            let in_header = below(random, 2) == 0;
            let at = below(random, if in_header { 24.min(words.len()) } else { words.len() });
            let old = words[at].load(Relaxed);
            let shift = below(random, 4) * 16;
            let new = match below(random, 4) {
                0 => old ^ 1 << below(random, 64),
                1 => old ^ (random.next_u64() & 0xffff) << shift,
                2 => old.wrapping_add(1 << shift),
                _ => original[below(random, words.len())].load(Relaxed),
            };
            words[at].store(new, Relaxed);
        }
        match judge(&words, random) {
            true => accepted += 1,
            false => refused += 1,
        }
    });
    if std::env::var_os("STILLPOINT_FUZZ_SECONDS").is_none() {
        assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused");
    }
}

/// A full leaf refuses, and stays unchanged.
#[test]
fn a_refused_change_changes_nothing() {
    run(300, |random| {
        let words = page(PAGES[below(random, 3)]);
        sample_leaf(random, &words);
        let node = Node::new(&words);
        for _ in 0..30 {
            let key = key(random, node.page_bytes());
            if !node.covers(&key) {
                continue;
            }
            let before = crate::common::values(&words);
            if let Err(NodeError::Full { needed_bytes }) =
                node.insert(&key, &value(random, node.page_bytes()), 0)
            {
                assert!(node.free_bytes() < needed_bytes);
                assert_eq!(before, crate::common::values(&words));
            }
        }
    });
}
