//! Trees of random changes against a plain vector.

use std::collections::HashMap;
use std::ops::Range;

use stillpoint::KeyHasher;
use stillpoint_io::{Rng, SeededRng};

use super::*;
use crate::keyspace::elements::changes::{changed_range, removed_ranges};
use crate::keyspace::elements::sorting::Hashes;

/// Nodes in a map.
#[derive(Default)]
pub(in crate::keyspace::elements) struct MapNodes {
    pub(in crate::keyspace::elements) nodes: HashMap<u64, Vec<u8>>,
    last: u64,
    /// Whether the tree may be damaged.
    forgives: bool,
    /// Bytes of nodes that a log gets.
    logged_bytes: usize,
}

impl Nodes for MapNodes {
    fn read(&mut self, node: u64) -> Result<NodeBytes, TxError> {
        self.nodes.get(&node).cloned().map(Arc::new).ok_or_else(damaged)
    }

    fn write(&mut self, node: u64, bytes: Vec<u8>) -> Result<(), TxError> {
        let old = self.nodes.insert(node, bytes.clone());
        self.logged_bytes += match &old {
            Some(old) => match removed_ranges(old, &bytes) {
                Some(ranges) => 6 * ranges.len(),
                None => changed_range(old, &bytes).len(),
            },
            None => bytes.len(),
        };
        assert!(self.forgives || (old.is_some() && !bytes.is_empty()));
        Ok(())
    }

    fn splice(&mut self, node: u64, range: Range<usize>, bytes: &[u8]) -> Result<(), TxError> {
        let old = self.nodes.get_mut(&node).ok_or_else(damaged)?;
        assert!(range.end <= old.len());
        self.logged_bytes += changed_range(&old[range.clone()], bytes).len();
        old.splice(range, bytes.iter().copied());
        assert!(self.forgives || !old.is_empty());
        Ok(())
    }

    fn add(&mut self, bytes: Vec<u8>) -> Result<u64, TxError> {
        assert!(self.forgives || !bytes.is_empty());
        self.last += 1;
        self.logged_bytes += bytes.len();
        self.nodes.insert(self.last, bytes);
        Ok(self.last)
    }

    fn remove(&mut self, node: u64) -> Result<(), TxError> {
        assert!(self.nodes.remove(&node).is_some() || self.forgives);
        Ok(())
    }

    fn ask_for(&mut self, _: u64) -> bool {
        true
    }
}

/// Checks the invariants of a subtree; gives its elements. Each node is met once.
fn check(
    nodes: &HashMap<u64, Vec<u8>>,
    sorting: &Sorting,
    (bytes, height): (&[u8], u8),
    bounds: (&[u8], Option<&[u8]>),
    met: &mut usize,
) -> u64 {
    if height == 0 {
        let separators = elements(bytes, 0).map(|e| sorting.place(e.content).into_owned());
        for separator in separators {
            assert!(
                *separator >= *bounds.0
                    && bounds.1.is_none_or(|upper| {
                        matches!(sorting, Sorting::Positions) || *separator < *upper
                    })
            );
        }
        return elements(bytes, 0).count() as u64;
    }
    let all: Vec<Entry<'_>> = entries(bytes, 0).collect();
    assert!(!all.is_empty() && all.last().map(|last| last.end) == Some(bytes.len()));
    for (i, entry) in all.iter().enumerate() {
        *met += 1;
        let lower = if i == 0 { bounds.0 } else { entry.separator };
        let upper = all.get(i + 1).map_or(bounds.1, |next| Some(next.separator));
        let child = nodes.get(&entry.child).expect("a node");
        let below = check(nodes, sorting, (child, height - 1), (lower, upper), met);
        assert_eq!(below, entry.below);
    }
    all_below(bytes)
}

fn check_all(tree: &Tree, nodes: &MapNodes, sorting: &Sorting) {
    let mut met = 0;
    let len = check(&nodes.nodes, sorting, (&tree.root, tree.height), (&[], None), &mut met);
    assert_eq!(len, tree.len);
    assert_eq!(met, nodes.nodes.len(), "no node is lost");
}

fn all(tree: &Tree, nodes: &mut MapNodes, back: bool) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let from = if back { tree.len.saturating_sub(1) } else { 0 };
    tree.visit(nodes, from, u64::MAX, back, &mut |e| out.push(e.to_vec())).expect("nodes");
    out
}

fn content(rng: &SeededRng, names: u64) -> Vec<u8> {
    let name = rng.below(names);
    let len = if rng.below(60) == 0 { 1500 } else { rng.below(90) as usize };
    let mut content = name.to_be_bytes().to_vec();
    content.resize(8 + len, b'x');
    content
}

fn name(content: &[u8]) -> &[u8] {
    &content[..8]
}

#[test]
fn lists_are_as_a_vector() {
    for seed in 0..6 {
        let rng = SeededRng::new(seed);
        let (mut tree, mut nodes, mut model) = (Tree::new(false), MapNodes::default(), Vec::new());
        let sorting = Sorting::Positions;
        for step in 0..6000 {
            let grows = rng.below(100) < if step % 3000 < 1800 { 75 } else { 20 };
            let at = match rng.below(4) {
                0 => 0,
                1 => model.len() as u64,
                _ => rng.below(model.len() as u64 + 1),
            };
            let place = tree.place_at(&mut nodes, at).expect("nodes");
            assert_eq!((place.position, place.is_there), (at, at < model.len() as u64));
            let new = content(&rng, 1000);
            if grows {
                model.insert(at as usize, new.clone());
                tree.insert(&mut nodes, &sorting, place, &new).expect("nodes");
            } else if place.is_there && rng.below(4) == 0 {
                model[at as usize] = new.clone();
                tree.replace(&mut nodes, &sorting, place, &new).expect("nodes");
            } else if place.is_there {
                assert_eq!(tree.content(&place), model.remove(at as usize));
                tree.remove(&mut nodes, place).expect("nodes");
            }
            if step % 250 == 0 {
                check_all(&tree, &nodes, &sorting);
                assert_eq!(all(&tree, &mut nodes, false), model);
                model.reverse();
                assert_eq!(all(&tree, &mut nodes, true), model);
                model.reverse();
            }
        }
        assert!(tree.height > 0);
        while tree.len > 0 {
            let place = tree.place_at(&mut nodes, rng.below(tree.len)).expect("nodes");
            tree.remove(&mut nodes, place).expect("nodes");
        }
        assert!(nodes.nodes.is_empty() && tree.root.is_empty() && tree.height == 0);
    }
}

#[test]
fn contents_are_sorted_and_counted() {
    for seed in 0..4 {
        let rng = SeededRng::new(seed);
        let (mut tree, mut nodes) = (Tree::new(true), MapNodes::default());
        let mut model: Vec<Vec<u8>> = Vec::new();
        let sorting = Sorting::Contents;
        for step in 0..5000 {
            let new = content(&rng, 500);
            let place = tree.place_of(&mut nodes, &new).expect("nodes");
            match model.binary_search(&new) {
                Ok(at) => {
                    assert_eq!((place.position, place.is_there), (at as u64, true));
                    tree.remove(&mut nodes, place).expect("nodes");
                    model.remove(at);
                }
                Err(at) => {
                    assert_eq!((place.position, place.is_there), (at as u64, false));
                    tree.insert_content(&mut nodes, &new).expect("nodes");
                    model.insert(at, new.clone());
                }
            }
            if rng.below(3) == 0 && model.len() > 1 && tree.height > 0 {
                let old = model.swap_remove(rng.below(model.len() as u64) as usize);
                let mut other = content(&rng, 500);
                if rng.below(2) == 0 {
                    other = old.clone();
                    other[7] ^= 1;
                }
                let new = if model.contains(&other) { old.clone() } else { other };
                let place = tree.place_of(&mut nodes, &old).expect("nodes");
                tree.exchange(&mut nodes, place, (&old, &new)).expect("it is there");
                model.push(new);
                model.sort();
            }
            if rng.below(3) == 0 && !model.is_empty() {
                let at = rng.below(model.len() as u64);
                let place = tree.place_at(&mut nodes, at).expect("nodes");
                let removed = model.remove(at as usize);
                assert_eq!(tree.content(&place), removed);
                // That place is for reading alone.
                let place = tree.place_of(&mut nodes, &removed).expect("nodes");
                tree.remove(&mut nodes, place).expect("nodes");
            }
            let before = tree.count_before(&mut nodes, &|e| *e < *new).expect("nodes");
            assert_eq!(before, model.partition_point(|e| *e < new) as u64);
            if step % 250 == 0 {
                check_all(&tree, &nodes, &sorting);
                assert_eq!(all(&tree, &mut nodes, false), model);
            }
        }
        assert!(tree.height > 1);
    }
}

#[test]
fn names_are_found_and_a_scan_meets_what_stays() {
    let hashers = [KeyHasher::new(5), KeyHasher::new(6)];
    for (seed, hasher) in hashers.into_iter().enumerate() {
        let rng = SeededRng::new(seed as u64);
        let (mut tree, mut nodes) = (Tree::new(false), MapNodes::default());
        let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let hashes = Hashes { hasher, name, are_tags: false };
        let sorting = Sorting::Hashes(hashes);
        let (mut cursor, mut met, mut stayed) = (0, HashMap::new(), HashMap::new());
        for step in 0..8000 {
            let names = if step / 2000 % 2 == 0 { 900 } else { 30 };
            let new = content(&rng, names);
            let found = tree
                .place_of_name(&mut nodes, &sorting, &|e| name(e) == name(&new), name(&new))
                .expect("nodes");
            assert_eq!(found.is_there, model.contains_key(name(&new)));
            if rng.below(100) < 55 {
                match found.is_there {
                    true => tree.replace(&mut nodes, &sorting, found, &new).expect("nodes"),
                    false => tree.insert(&mut nodes, &sorting, found, &new).expect("nodes"),
                }
                model.insert(name(&new).to_vec(), new);
            } else if found.is_there {
                assert_eq!(Some(tree.content(&found)), model.get(name(&new)).map(|e| &**e));
                tree.remove(&mut nodes, found).expect("nodes");
                model.remove(name(&new));
                stayed.remove(name(&new));
            }
            if step % 20 == 0 {
                // One step of a scan that runs while the tree changes.
                if cursor == 0 {
                    let missed = |name: &&Vec<u8>| !met.contains_key(*name);
                    assert_eq!(stayed.keys().filter(missed).count(), 0);
                    (met, stayed) = (HashMap::new(), model.clone());
                }
                let mut visit = |e: &[u8]| *met.entry(name(e).to_vec()).or_insert(0) += 1;
                let from = (cursor, 30);
                cursor = tree.scan(&mut nodes, &hashes, from, &mut visit).expect("nodes");
            }
            if step % 250 == 0 {
                check_all(&tree, &nodes, &sorting);
                let mut have = all(&tree, &mut nodes, false);
                let mut want: Vec<_> = model.values().cloned().collect();
                have.sort();
                want.sort();
                assert_eq!(have, want);
            }
        }
    }
}

#[test]
fn damaged_nodes_end_in_an_error_or_a_short_answer() {
    let rng = SeededRng::new(9);
    for _ in 0..3000 {
        let root: Vec<u8> = (0..rng.below(60)).map(|_| rng.below(256) as u8).collect();
        let (height, by_content) = (rng.below(3) as u8, rng.below(2) == 0);
        let len = rng.below(9);
        let is_counted = true;
        let mut tree = Tree { root, height, len, by_content, is_counted, ..Tree::default() };
        let mut nodes = MapNodes { last: 9, forgives: true, ..MapNodes::default() };
        for node in 1..4 {
            let bytes = (0..1 + rng.below(40)).map(|_| rng.below(5) as u8).collect();
            nodes.nodes.insert(node, bytes);
        }
        let _ = tree.visit(&mut nodes, 0, 9, false, &mut |_| ());
        let _ = tree.visit(&mut nodes, 3, 9, true, &mut |_| ());
        if let Ok(place) = tree.place_at(&mut nodes, 2) {
            let _ = tree.remove(&mut nodes, place);
        }
        if let Ok(place) = tree.place_of(&mut nodes, b"x") {
            let _ = tree.insert(&mut nodes, &Sorting::Contents, place, &[1; 1200]);
        }
    }
}

/// An insertion into a leaf in the order of contents logs the element, and not the elements behind
/// it. A new score of an element that stays in its leaf logs the score.
#[test]
fn the_log_gets_what_is_new_of_a_sorted_leaf() {
    const ELEMENTS: usize = 4_000;
    let rng = SeededRng::new(3);
    let (mut tree, mut nodes) = (Tree::new(true), MapNodes::default());
    let mut all = Vec::new();
    for _ in 0..ELEMENTS {
        let new = [rng.next_u64().to_be_bytes(); 3].concat();
        tree.insert_content(&mut nodes, &new).expect("nodes");
        all.push(new);
    }
    // The rest is for splits and for the counts of inner nodes.
    let mean = nodes.logged_bytes / ELEMENTS;
    assert!((25..=200).contains(&mean), "{mean} bytes for each insertion");
    nodes.logged_bytes = 0;
    for old in &all {
        let mut new = old.clone();
        new[7] ^= 1;
        let place = tree.place_of(&mut nodes, old).expect("nodes");
        tree.exchange(&mut nodes, place, (old, &new)).expect("it is there");
    }
    // A few elements come into the next leaf.
    let mean = nodes.logged_bytes / ELEMENTS;
    assert!(mean <= 30, "{mean} bytes for each change");
}

/// A separator of long contents is no longer than it must be, whether the tree grows or is filled.
#[test]
fn separators_of_long_contents_are_short() {
    let sorting = Sorting::Contents;
    let mut contents: Vec<Vec<u8>> = (0..300_u64)
        .map(|i| [&(i % 7).to_be_bytes()[..], &(i * 7919).to_be_bytes(), &[b'x'; 3000]].concat())
        .collect();
    let (mut grown, mut nodes_of_grown) = (Tree::new(true), MapNodes::default());
    for content in &contents {
        grown.insert_content(&mut nodes_of_grown, content).expect("nodes");
    }
    contents.sort();
    let all: Vec<&[u8]> = contents.iter().map(|content| &content[..]).collect();
    let (mut filled, mut nodes_of_filled) = (Tree::new(true), MapNodes::default());
    filled.fill(&mut nodes_of_filled, &sorting, &all).expect("nodes");
    for (tree, mut nodes) in [(grown, nodes_of_grown), (filled, nodes_of_filled)] {
        check_all(&tree, &nodes, &sorting);
        assert!(tree.root.len() <= ROOT_BYTES_MAX && tree.height > 1);
        let (mut leaves, mut at) = (0, 0);
        while let Some(next) = (at < tree.len).then(|| tree.place_at(&mut nodes, at)) {
            let place = next.expect("nodes");
            assert!(place.levels.iter().all(|level| tree.inner(level).len() <= INNER_BYTES_MAX));
            at += elements(tree.leaf(&place), 0).count() as u64;
            leaves += 1;
        }
        assert!(leaves > 100, "{leaves} leaves");
        for (before, content) in all.iter().enumerate() {
            let found = tree.count_before(&mut nodes, &|other| other < *content).expect("nodes");
            assert_eq!(found, before as u64);
        }
    }
}

/// Ranges of positions below `len`, which neither touch nor overlap each other.
fn ranges(rng: &SeededRng, len: u64) -> Vec<Range<u64>> {
    let mut doomed = vec![false; len as usize];
    for _ in 0..rng.below(6) {
        let from = rng.below(len + 1) as usize;
        let most = if rng.below(2) == 0 { 3 } else { len };
        let to = (from + rng.below(most + 1) as usize).min(doomed.len());
        doomed[from..to].fill(true);
    }
    let all: Vec<u64> = (0..len).filter(|at| doomed[*at as usize]).collect();
    super::super::bulk::ranges_of(&all)
}

/// Trees that are filled, changed one by one, and cut by ranges.
#[test]
fn filled_trees_are_cut_as_vectors_are() {
    for seed in 0..40 {
        let rng = SeededRng::new(seed);
        let len = [0, 1, 5, 40, 900, 6000][seed as usize % 6];
        let sorting = if seed % 2 == 0 { Sorting::Positions } else { Sorting::Contents };
        let mut model: Vec<Vec<u8>> = (0..len).map(|_| content(&rng, 1 << 40)).collect();
        if seed % 2 == 1 {
            model.sort();
        }
        let (mut tree, mut nodes) = (Tree::new(seed % 2 == 1), MapNodes::default());
        let contents: Vec<&[u8]> = model.iter().map(|content| &content[..]).collect();
        tree.fill(&mut nodes, &sorting, &contents).expect("nodes");
        check_all(&tree, &nodes, &sorting);
        assert_eq!(all(&tree, &mut nodes, false), model);
        for _ in 0..12 {
            for _ in 0..rng.below(60) {
                let new = content(&rng, 1 << 40);
                let (at, place) = if seed % 2 == 0 {
                    let at = rng.below(model.len() as u64 + 1);
                    (at, tree.place_at(&mut nodes, at).expect("nodes"))
                } else {
                    let at = model.partition_point(|old| *old < new) as u64;
                    (at, tree.place_of(&mut nodes, &new).expect("nodes"))
                };
                assert_eq!(place.position, at);
                match sorting {
                    Sorting::Contents => {
                        tree.insert_content(&mut nodes, &new).expect("nodes");
                    }
                    _ => tree.insert(&mut nodes, &sorting, place, &new).expect("nodes"),
                }
                model.insert(at as usize, new);
            }
            let (ranges, mut gone) = (ranges(&rng, tree.len), Vec::new());
            let doomed = bulk::Doomed::Positions(&ranges);
            let wants = rng.below(2) == 0;
            let mut keep = |content: &[u8]| gone.push(content.to_vec());
            let visit: bulk::Gone<'_> = if wants { Some(&mut keep) } else { None };
            let removed = tree.remove_all(&mut nodes, doomed, visit).expect("nodes");
            let mut taken = Vec::new();
            for range in ranges.iter().rev() {
                let part = model.splice(range.start as usize..range.end as usize, []);
                taken.splice(0..0, part.collect::<Vec<_>>());
            }
            assert_eq!(removed, taken.len() as u64);
            assert!(!wants || gone == taken);
            check_all(&tree, &nodes, &sorting);
            assert_eq!(all(&tree, &mut nodes, false), model);
        }
    }
}

/// Many names of a tree in the order of hashes are removed at once.
#[test]
fn names_go_at_once() {
    for seed in 0..20 {
        let rng = SeededRng::new(seed);
        let hasher = KeyHasher::new(seed);
        let hashes = Hashes { hasher, name, are_tags: false };
        let sorting = Sorting::Hashes(hashes);
        let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        for _ in 0..[3, 60, 4000][seed as usize % 3] {
            let new = content(&rng, 1 << 40);
            model.insert(name(&new).to_vec(), new);
        }
        let hash = |content: &[u8]| hasher.hash(0, name(content));
        let mut contents: Vec<&[u8]> = model.values().map(|content| &content[..]).collect();
        contents.sort_by_key(|content| hash(content));
        let (mut tree, mut nodes) = (Tree::new(false), MapNodes::default());
        tree.fill(&mut nodes, &sorting, &contents).expect("nodes");
        check_all(&tree, &nodes, &sorting);
        while !model.is_empty() {
            let share = 1 + rng.below(9);
            let mut names: Vec<Vec<u8>> =
                model.keys().filter(|_| rng.below(10) < share).cloned().collect();
            // Names that are not there change nothing.
            names.push(rng.below(1 << 40).to_be_bytes().to_vec());
            let mut hashed: Vec<(u64, &[u8])> =
                names.iter().map(|name| (hasher.hash(0, name), &name[..])).collect();
            hashed.sort_by_key(|(hash, _)| *hash);
            let there = names.iter().filter(|name| model.contains_key(*name)).count() as u64;
            let doomed = bulk::Doomed::Names { hashes, names: &hashed };
            let removed = tree.remove_all(&mut nodes, doomed, None).expect("nodes");
            assert_eq!(removed, there);
            names.iter().for_each(|name| drop(model.remove(name)));
            check_all(&tree, &nodes, &sorting);
            let mut have = all(&tree, &mut nodes, false);
            let mut want: Vec<_> = model.values().cloned().collect();
            have.sort();
            want.sort();
            assert_eq!(have, want);
        }
        assert!(nodes.nodes.is_empty());
    }
}
