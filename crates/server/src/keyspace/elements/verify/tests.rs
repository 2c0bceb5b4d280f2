use stillpoint_io::{Rng, SeededRng};

use super::super::node::set_below;
use super::super::sorting::Sorting;
use super::super::tree::tests::MapNodes;
use super::*;
use crate::keyspace::elements::times::timed;
use crate::keyspace::encoding::put_string;
use crate::keyspace::fields::Field;

/// A sorted set of random members, its nodes, and the bytes of its record.
fn sorted_set(elements: u64) -> (Vec<u8>, HashMap<u64, Vec<u8>>) {
    let rng = SeededRng::new(elements);
    let mut contents: Vec<Vec<u8>> = (0..elements)
        .map(|i| {
            let score = (i / 3) | 1 << 63;
            [&score.to_be_bytes()[..], &rng.next_u64().to_be_bytes()].concat()
        })
        .collect();
    contents.sort();
    let mut set = Elements::stored(Kind::SORTED_SET, vec![0, 0, 0, 0, 0]).expect("an empty one");
    set.keys.incarnation = 77;
    let mut nodes = MapNodes::default();
    let all: Vec<&[u8]> = contents.iter().map(|content| &content[..]).collect();
    set.tree.fill(&mut nodes, &Sorting::Contents, &all).expect("nodes");
    let hashes = set.member_hashes();
    let divided = set.tree.divided_scores(&mut nodes).expect("nodes");
    let indexed = index_elements(&hashes, &divided, &all);
    let indexed: Vec<&[u8]> = indexed.iter().collect();
    set.index.fill(&mut nodes, &Sorting::Hashes(hashes), &indexed).expect("nodes");
    (set.value(), nodes.nodes)
}

fn fault(header: &[u8], nodes: &HashMap<u64, Vec<u8>>) -> Option<CollectionFault> {
    let mut check = CollectionCheck::default();
    check.add("db3", b"key", ValueRef::from_bytes(Kind::SORTED_SET.tag(), header));
    for (node, bytes) in nodes {
        let key = super::super::node_key(77, *node);
        check.add("db3.nodes", &key, ValueRef::from_bytes(0, bytes));
    }
    let found = check.finish();
    assert_eq!((found.collections, found.nodes), (1, nodes.len() as u64));
    assert!(found.damage.len() < 2, "{:?}", found.damage);
    found.damage.into_iter().next().map(|damage| {
        assert!(damage.table == "db3" && damage.key == "key", "{damage}");
        damage.fault
    })
}

#[test]
fn a_sound_tree_has_no_fault_and_each_kind_of_damage_is_told() {
    let (header, nodes) = sorted_set(3000);
    assert!(nodes.len() > 100);
    assert_eq!(fault(&header, &nodes), None);
    // A node is gone.
    let mut damaged = nodes.clone();
    damaged.remove(&1);
    assert_eq!(fault(&header, &damaged), Some(CollectionFault::NodeMissing { node: 1 }));
    // A node that belongs to no collection.
    let mut damaged = nodes.clone();
    damaged.insert(99_999, vec![1, b'x']);
    let lost = CollectionFault::LostNodes { incarnation: 77, nodes: 1 };
    assert_eq!(fault(&header, &damaged), Some(lost));
    // An element is missing, and the counts are unchanged.
    let mut damaged = nodes.clone();
    let first = damaged.get_mut(&1).expect("a leaf");
    let end = elements(first, 0).next().map_or(0, |element| element.end);
    first.drain(..end);
    assert!(matches!(fault(&header, &damaged), Some(CollectionFault::Count { node: 1, .. })));
    // An element is in the wrong place.
    let mut damaged = nodes.clone();
    let first = damaged.get_mut(&1).expect("a leaf");
    let mut element = Vec::new();
    put_string(&mut element, &[0xff; 16]);
    first[..element.len()].copy_from_slice(&element);
    assert_eq!(fault(&header, &damaged), Some(CollectionFault::Order { node: 1 }));
    // Bytes that are no node.
    let mut damaged = nodes.clone();
    damaged.get_mut(&1).expect("a leaf").push(9);
    assert_eq!(fault(&header, &damaged), Some(CollectionFault::NodeDamaged { node: 1 }));
    // The header counts one more.
    let mut wrong = header.clone();
    wrong[1] += 1;
    assert!(matches!(fault(&wrong, &nodes), Some(CollectionFault::Count { node: 0, .. })));
    // The root has another count for a subtree, which is found first.
    let mut wrong = header.clone();
    set_below(&mut wrong[27..], 0, 7);
    assert!(matches!(fault(&wrong, &nodes), Some(CollectionFault::Count { counted: 7, .. })));
    // The header states one level more than the tree has.
    let mut wrong = header.clone();
    wrong[21] += 1;
    assert!(fault(&wrong, &nodes).is_some());
    // A record that is too short for the header of a collection.
    let mut check = CollectionCheck::default();
    check.add("db3", b"key", ValueRef::from_bytes(Kind::SORTED_SET.tag(), &header[..20]));
    let damage = check.finish().damage;
    assert!(matches!(damage[0].fault, CollectionFault::Header { kind: "zset", bytes: 20 }));
}

/// A hash of fields, the even ones of which expire, that is a tree.
fn timed_hash(fields: u64) -> (Vec<u8>, HashMap<u64, Vec<u8>>) {
    let mut hash = Elements::stored(Kind::HASH, vec![0, 0, 0, 0, 0]).expect("an empty one");
    (hash.keys.incarnation, hash.earliest) = (77, 1000);
    hash.flags |= super::super::times::IS_TIMED;
    let (mut contents, mut times) = (Vec::new(), Vec::new());
    for i in 0..fields {
        let name = i.to_be_bytes();
        let expire_at_ms = (i % 2 == 0).then_some(1000 + i);
        contents.push(Field { name: &name, value: b"value", expire_at_ms }.content());
        times.extend(expire_at_ms.map(|at| timed(at, &name)));
    }
    let hashes = hash.hashes();
    contents.sort_by_key(|content| *hashes.of(content).start());
    let mut nodes = MapNodes::default();
    let all: Vec<&[u8]> = contents.iter().map(|content| &content[..]).collect();
    hash.tree.fill(&mut nodes, &Sorting::Hashes(hashes), &all).expect("nodes");
    let all: Vec<&[u8]> = times.iter().map(|timed| &timed[..]).collect();
    hash.index.fill(&mut nodes, &Sorting::Contents, &all).expect("nodes");
    (hash.value(), nodes.nodes)
}

fn fault_of_hash(header: &[u8], nodes: &HashMap<u64, Vec<u8>>) -> Option<CollectionFault> {
    let mut check = CollectionCheck::default();
    check.add("db0", b"key", ValueRef::from_bytes(Kind::HASH.tag(), header));
    for (node, bytes) in nodes {
        let key = super::super::node_key(77, *node);
        check.add("db0.nodes", &key, ValueRef::from_bytes(0, bytes));
    }
    check.finish().damage.into_iter().next().map(|damage| damage.fault)
}

#[test]
fn expiries_that_the_index_or_the_head_does_not_know_are_told() {
    let (header, nodes) = timed_hash(500);
    assert_eq!(fault_of_hash(&header, &nodes), None);
    // The collection's header tells another earliest expiry than its elements have.
    let mut wrong = header.clone();
    wrong[super::super::TREE_BYTES] ^= 1;
    assert_eq!(fault_of_hash(&wrong, &nodes), Some(CollectionFault::Times));
    // A field has another expiry than the index has.
    let leaf = nodes.iter().find(|(_, bytes)| elements(bytes, 0).any(|e| e.content.len() > 18));
    let (&leaf, bytes) = leaf.expect("a field that expires");
    let at = elements(bytes, 0).find(|e| e.content.len() > 18).map_or(0, |e| e.at);
    let mut damaged = nodes.clone();
    damaged.get_mut(&leaf).expect("a leaf")[at + 3] ^= 1;
    assert_eq!(fault_of_hash(&header, &damaged), Some(CollectionFault::Times));
}

#[test]
fn whatever_byte_changes_is_found_or_harmless_but_never_a_panic() {
    let (header, nodes) = sorted_set(400);
    let rng = SeededRng::new(5);
    let mut found = 0;
    for _ in 0..2000 {
        let (mut header, mut nodes) = (header.clone(), nodes.clone());
        let at = 1 + rng.below(nodes.len() as u64 + 1);
        let bytes = nodes.get_mut(&at).unwrap_or(&mut header);
        let byte = rng.below(bytes.len() as u64) as usize;
        bytes[byte] ^= 1 << rng.below(8);
        let mut check = CollectionCheck::default();
        check.add("db0", b"k", ValueRef::from_bytes(Kind::SORTED_SET.tag(), &header));
        for (node, bytes) in &nodes {
            let key = super::super::node_key(77, *node);
            check.add("db0.nodes", &key, ValueRef::from_bytes(0, bytes));
        }
        found += usize::from(!check.finish().damage.is_empty());
    }
    // The flag for a large collection, the last number of a node, and the separator of a first entry
    // may be anything.
    assert!(found > 1800, "{found} of 2000");
}
