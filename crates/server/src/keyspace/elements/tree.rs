//! A counted tree of elements.
//!
//! A small collection is one leaf, the root. A larger one is a tree whose inner nodes count the
//! elements below each of their entries. So an element is found by its position, and by its place
//! in the order. The root lies in the record of the collection; every other node is a record of its
//! own.
//!
//! Invariants:
//! 1. The entries of an inner node are in the order of the elements. If the order is that of
//!    hashes, a separator never divides elements of one hash, and the elements of one leaf have no
//!    order. If the order is that of contents, a leaf below the root has no order in its record.
//!    A new element is appended there, and whoever reads the leaf sorts it.
//! 2. `below` of an entry is the number of elements in its subtree, if the tree is counted.
//! 3. No node but the root is empty. A tree that has grown keeps an inner root until it is empty.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use stillpoint::TxError;

use self::ends::EndPath;
use self::halves::{End, Halves, halve_inner, halve_leaf};
use super::node::{
    Element, Entry, all_below, below_bytes, elements, entries, entry_of_hash, put_entry, set_below,
};
use super::sorting::{Sorting, divided_score};
use super::tags::Score;
use crate::keyspace::encoding::{put_string, splice};

/// Bytes of the only leaf of a small collection. A longer leaf becomes a tree.
pub(super) const PACKED_BYTES_MAX: usize = 1000;
/// Bytes of a leaf below the root: a longer one is split.
pub(super) const LEAF_BYTES_MAX: usize = 960;
/// A shorter leaf is joined to a neighbour if both fit.
const LEAF_BYTES_MIN: usize = LEAF_BYTES_MAX / 4;
/// Bytes of an inner node below the root.
const INNER_BYTES_MAX: usize = 960;
/// Bytes of an inner root: a longer one gets a level below it.
const ROOT_BYTES_MAX: usize = 440;
/// Entries that an inner node has at least when it is split.
const ENTRIES_MIN: usize = 4;

/// The bytes of a node.
pub(super) type NodeBytes = Arc<Vec<u8>>;

/// Where the nodes below the root are.
pub(super) trait Nodes {
    /// The bytes of a node. A change of the node copies them, unless the caller has dropped them.
    fn read(&mut self, node: u64) -> Result<NodeBytes, TxError>;
    /// Replaces the bytes of a node.
    fn write(&mut self, node: u64, bytes: Vec<u8>) -> Result<(), TxError>;
    /// Replaces a range of the bytes of a node.
    fn splice(&mut self, node: u64, range: Range<usize>, bytes: &[u8]) -> Result<(), TxError>;
    /// Adds a node.
    fn add(&mut self, bytes: Vec<u8>) -> Result<u64, TxError>;
    /// Removes a node.
    fn remove(&mut self, node: u64) -> Result<(), TxError>;
    /// Whether a node is in memory. Otherwise the node is loaded before the next run, with the one for
    /// which the present run ends.
    fn ask_for(&mut self, node: u64) -> bool;
}

/// An inner node on the path to a place.
#[derive(Debug)]
struct Level {
    /// The node; 0 for the root.
    node: u64,
    /// The node's bytes. `None` for the root.
    bytes: Option<NodeBytes>,
    /// Where the entry that leads to the place begins.
    entry: usize,
}

/// A place in a tree, given by the path to a leaf and a byte of the leaf. An element is there, or
/// may be inserted there.
#[derive(Debug)]
pub(super) struct TreePosition {
    levels: Vec<Level>,
    /// The leaf, unless it is the root.
    leaf: Option<(u64, NodeBytes)>,
    /// Byte of the leaf.
    offset: usize,
    /// Number of elements before the place. If the order is that of hashes, elements of the same
    /// leaf count in any order.
    pub(super) position: u64,
    /// Whether the sought element exists.
    pub(super) is_there: bool,
    /// Level and byte of the entry whose separator is that of the next leaf, if there is one.
    upper: Option<(usize, usize)>,
}

impl TreePosition {
    /// The place of the element that begins at a byte of the same leaf. Its position in the order is
    /// not told.
    pub(super) fn moved(self, offset: usize) -> Self {
        Self { offset, is_there: true, ..self }
    }

    /// The place behind the element that ends at a byte of the same leaf.
    pub(super) fn behind(self, end: usize) -> Self {
        Self { offset: end, is_there: false, ..self }
    }

    /// Whether the place is that of the element that begins at a byte of its leaf.
    pub(super) fn is_at(&self, offset: usize) -> bool {
        self.is_there && self.offset == offset
    }
}

/// A tree.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) root: Vec<u8>,
    /// Levels of inner nodes.
    pub(super) height: u8,
    /// Elements.
    pub(super) len: u64,
    /// Whether the elements are in the order of their contents.
    pub(super) by_content: bool,
    /// Whether inner nodes count the elements below their entries. A tree whose elements are found
    /// by name alone needs no such counts.
    pub(super) is_counted: bool,
    /// The score whose elements the last insertion has divided by the first separator, if it has
    /// split a leaf.
    pub(super) divided: Option<Score>,
    /// The way to the last leaf, if it is known. No entry of an inner node was added or removed since.
    end: Option<EndPath>,
}

impl Tree {
    /// A tree without elements, whose elements will be in the order of their contents, or in another.
    pub(super) fn new(by_content: bool) -> Self {
        Self { by_content, is_counted: true, ..Self::default() }
    }

    /// A tree without elements, whose elements will be found by name alone.
    pub(super) fn uncounted() -> Self {
        Self::default()
    }

    /// The content of the element at a place.
    pub(super) fn content<'a>(&'a self, place: &'a TreePosition) -> &'a [u8] {
        elements(self.leaf(place), place.offset).next().map_or(&[], |element| element.content)
    }

    /// The number of elements, as the root tells it.
    pub(super) fn len_by_root(&self) -> u64 {
        match self.height {
            0 => elements(&self.root, 0).count() as u64,
            _ => all_below(&self.root),
        }
    }

    fn leaf<'a>(&'a self, place: &'a TreePosition) -> &'a [u8] {
        place.leaf.as_ref().map_or(&self.root, |(_, bytes)| bytes)
    }

    fn inner<'a>(&'a self, level: &'a Level) -> &'a [u8] {
        level.bytes.as_deref().unwrap_or(&self.root)
    }

    /// The elements of the leaf of a place.
    pub(super) fn elements_at<'a>(
        &'a self,
        place: &'a TreePosition,
    ) -> impl Iterator<Item = Element<'a>> {
        elements(self.leaf(place), 0)
    }

    /// Goes down to a leaf: at each node into the last entry that `picks` picks, given the elements
    /// before it, or into the first.
    fn descend(
        &self,
        nodes: &mut dyn Nodes,
        picks: impl Fn(&Entry<'_>, u64) -> bool,
    ) -> Result<TreePosition, TxError> {
        let mut place = TreePosition {
            levels: Vec::with_capacity(usize::from(self.height)),
            leaf: None,
            offset: 0,
            position: 0,
            is_there: false,
            upper: None,
        };
        for _ in 0..self.height {
            let (node, bytes) = place.leaf.take().unzip();
            let inner = bytes.as_deref().unwrap_or(&self.root);
            let (mut before, mut chosen) = (place.position, None);
            for entry in entries(inner, 0) {
                if chosen.is_some() && !picks(&entry, before) {
                    place.upper = Some((place.levels.len(), entry.at));
                    break;
                }
                (place.position, chosen) = (before, Some(entry));
                before += entry.below;
            }
            let chosen = chosen.ok_or_else(damaged)?;
            let (child, entry) = (chosen.child, chosen.at);
            place.levels.push(Level { node: node.unwrap_or(0), bytes, entry });
            place.leaf = Some((child, nodes.read(child)?));
        }
        Ok(place)
    }

    /// The place of position `at`: of an element, or behind the last. If the order is that of
    /// contents, the place is for reading alone, since its leaf is sorted.
    pub(super) fn place_at(&self, nodes: &mut dyn Nodes, at: u64) -> Result<TreePosition, TxError> {
        let mut place = self.descend(nodes, |_, before| before <= at)?;
        if let Some((_, leaf)) = place.leaf.as_mut().filter(|_| self.by_content)
            && let Some(sorted) = sorted(leaf)
        {
            *leaf = Arc::new(sorted);
        }
        let (mut offset, mut position, mut is_there) = (0, place.position, false);
        for element in elements(self.leaf(&place), 0) {
            if position == at {
                is_there = true;
                break;
            }
            (offset, position) = (element.end, position + 1);
        }
        (place.offset, place.position, place.is_there) = (offset, position, is_there);
        Ok(place)
    }

    /// The place of the element of that name in a tree in the order of hashes, or in a single leaf.
    /// If there is no such element: the end of the leaf where it belongs.
    pub(super) fn place_of_name(
        &self,
        nodes: &mut dyn Nodes,
        sorting: &Sorting,
        named: &dyn Fn(&[u8]) -> bool,
        name: &[u8],
    ) -> Result<TreePosition, TxError> {
        let hash = match sorting {
            Sorting::Hashes(hashes) if self.height > 0 => hashes.of_name(name),
            _ => 0,
        };
        let mut place = self.leaf_of_hash(nodes, hash)?;
        let (mut offset, mut position, mut is_there) = (0, place.position, false);
        for element in elements(self.leaf(&place), 0) {
            if named(element.content) {
                is_there = true;
                break;
            }
            (offset, position) = (element.end, position + 1);
        }
        (place.offset, place.position, place.is_there) = (offset, position, is_there);
        Ok(place)
    }

    /// The place in the leaf of a hash, in a tree in the order of hashes. Its byte and its position are not told yet.
    pub(super) fn leaf_of_hash(
        &self,
        nodes: &mut dyn Nodes,
        hash: u64,
    ) -> Result<TreePosition, TxError> {
        let (levels, leaf) = (Vec::with_capacity(usize::from(self.height)), None);
        let mut place =
            TreePosition { levels, leaf, offset: 0, position: 0, is_there: false, upper: None };
        for _ in 0..self.height {
            let (node, bytes) = place.leaf.take().unzip();
            let inner = bytes.as_deref().unwrap_or(&self.root);
            let Entry { at: entry, child, .. } = entry_of_hash(inner, hash).ok_or_else(damaged)?;
            place.levels.push(Level { node: node.unwrap_or(0), bytes, entry });
            place.leaf = Some((child, nodes.read(child)?));
        }
        Ok(place)
    }

    /// The place of a content in a tree in the order of contents. If there is no such element: the
    /// end of the leaf where it belongs.
    pub(super) fn place_of(
        &self,
        nodes: &mut dyn Nodes,
        content: &[u8],
    ) -> Result<TreePosition, TxError> {
        let is_from = |entry: &Entry<'_>, _| compared(entry.separator, content).is_le();
        let mut place = self.descend(nodes, is_from)?;
        let (mut before, mut end, mut found) = (0, 0, None);
        for element in elements(self.leaf(&place), 0) {
            match compared(element.content, content) {
                Ordering::Less => before += 1,
                Ordering::Equal => found = Some(element.at),
                Ordering::Greater => {}
            }
            end = element.end;
        }
        place.position += before;
        (place.is_there, place.offset) = (found.is_some(), found.unwrap_or(end));
        Ok(place)
    }

    /// How many elements are before a bound, in a tree in the order of contents.
    pub(super) fn count_before(
        &self,
        nodes: &mut dyn Nodes,
        is_before: &dyn Fn(&[u8]) -> bool,
    ) -> Result<u64, TxError> {
        let place = self.descend(nodes, |entry, _| is_before(entry.separator))?;
        let before = elements(self.leaf(&place), 0).filter(|element| is_before(element.content));
        Ok(place.position + before.count() as u64)
    }

    /// Inserts an element into a tree in the order of contents. Returns whether a separator divides
    /// the elements of its score.
    pub(super) fn insert_content(
        &mut self,
        nodes: &mut dyn Nodes,
        content: &[u8],
    ) -> Result<bool, TxError> {
        let mut place = self.place_of(nodes, content)?;
        if place.leaf.is_none() {
            // A root that is a leaf is in order.
            let behind = elements(&self.root, 0).find(|element| element.content > content);
            place.offset = behind.map_or(place.offset, |element| element.at);
        }
        self.divided = None;
        let was_divided = self.is_divided((&place.levels, place.upper), content);
        self.insert(nodes, &Sorting::Contents, place, content)?;
        Ok(was_divided || self.divided.is_some_and(|score| content.starts_with(&score)))
    }

    /// Inserts an element at a place.
    pub(super) fn insert(
        &mut self,
        nodes: &mut dyn Nodes,
        sorting: &Sorting,
        place: TreePosition,
        content: &[u8],
    ) -> Result<(), TxError> {
        let mut element = Vec::with_capacity(content.len() + 5);
        put_string(&mut element, content);
        self.len += 1;
        self.splice(nodes, sorting, place, 0, &element)
    }

    /// Replaces the element at a place by another of the same name.
    pub(super) fn replace(
        &mut self,
        nodes: &mut dyn Nodes,
        sorting: &Sorting,
        place: TreePosition,
        content: &[u8],
    ) -> Result<(), TxError> {
        let end = elements(self.leaf(&place), place.offset).next().map_or(place.offset, |e| e.end);
        let mut element = Vec::with_capacity(content.len() + 5);
        put_string(&mut element, content);
        let removed = end - place.offset;
        self.splice(nodes, sorting, place, removed, &element)
    }

    /// Replaces the element at a place by another, which stands in for it in a tree in the order of
    /// contents. Returns whether a separator divides the elements of the new score.
    pub(super) fn exchange(
        &mut self,
        nodes: &mut dyn Nodes,
        mut place: TreePosition,
        (old, new): (&[u8], &[u8]),
    ) -> Result<bool, TxError> {
        if !place.is_there {
            return Err(damaged());
        }
        if old.len() == new.len()
            && self.covers(&place, new)
            && let Some((node, leaf)) = place.leaf.take()
        {
            let end = elements(&leaf, place.offset).next().map(|element| element.end);
            let end = end.ok_or_else(damaged)?;
            drop(leaf);
            nodes.splice(node, end - old.len()..end, new)?;
            self.divided = None;
            return Ok(self.is_divided((&place.levels, place.upper), new));
        }
        self.remove(nodes, place)?;
        self.insert_content(nodes, new)
    }

    /// Whether an element of that content belongs to the leaf of a place, in a tree in the order of
    /// contents.
    fn covers(&self, place: &TreePosition, content: &[u8]) -> bool {
        let (lower, upper) = self.bounds(&place.levels, place.upper);
        lower.is_none_or(|lower| lower <= content) && upper.is_none_or(|upper| upper > content)
    }

    /// The separators before and behind a leaf.
    fn bounds<'a>(
        &'a self,
        levels: &'a [Level],
        upper: Option<(usize, usize)>,
    ) -> (Option<&'a [u8]>, Option<&'a [u8]>) {
        // The first entry of a node has no bound of its own.
        let lower = levels.iter().rev().find(|level| level.entry > 0);
        let lower = lower.map(|level| self.separator_at(level, level.entry));
        let upper = upper.and_then(|(level, at)| Some((levels.get(level)?, at)));
        (lower, upper.map(|(level, at)| self.separator_at(level, at)))
    }

    /// Whether a separator before or behind the leaf of a content divides the elements of its score.
    fn is_divided(
        &self,
        (levels, upper): (&[Level], Option<(usize, usize)>),
        content: &[u8],
    ) -> bool {
        let (lower, upper) = self.bounds(levels, upper);
        let divided = [lower, upper].into_iter().flatten().filter_map(divided_score);
        { divided }.any(|score| content.starts_with(score))
    }

    /// The scores that separators divide, in order.
    pub(super) fn divided_scores(&self, nodes: &mut dyn Nodes) -> Result<Vec<Score>, TxError> {
        let mut scores = Vec::new();
        let mut left = vec![(0, self.height)];
        while let Some((node, height)) = left.pop().filter(|(_, height)| *height > 0) {
            let bytes = if node == 0 { None } else { Some(nodes.read(node)?) };
            for entry in entries(bytes.as_deref().unwrap_or(&self.root), 0) {
                // The first entry of a node has no bound of its own.
                scores.extend(divided_score(entry.separator).filter(|_| entry.at > 0));
                if height > 1 {
                    left.push((entry.child, height - 1));
                }
            }
        }
        scores.sort_unstable();
        Ok(scores)
    }

    fn separator_at<'a>(&'a self, level: &'a Level, at: usize) -> &'a [u8] {
        entries(self.inner(level), at).next().map_or(&[], |entry| entry.separator)
    }

    /// Replaces `removed` bytes of the leaf at a place by an element. Removed bytes, if any, are
    /// one element.
    fn splice(
        &mut self,
        nodes: &mut dyn Nodes,
        sorting: &Sorting,
        place: TreePosition,
        removed: usize,
        element: &[u8],
    ) -> Result<(), TxError> {
        let TreePosition { levels, leaf, offset, position, upper, .. } = place;
        let Some((node, bytes)) = leaf else {
            splice(&mut self.root, offset..offset + removed, element);
            return if self.root.len() > PACKED_BYTES_MAX && self.len > 1 {
                self.grow(nodes, sorting)
            } else {
                Ok(())
            };
        };
        if let Some(end) = &mut self.end {
            end.note_change(node);
        }
        let replaced = offset..offset + removed;
        if removed == element.len() || bytes.len() - removed + element.len() <= LEAF_BYTES_MAX {
            drop(bytes);
            nodes.splice(node, replaced, element)?;
            return if removed > 0 { Ok(()) } else { self.add_below(nodes, levels, 1) };
        }
        let mut bytes = unshared(bytes);
        splice(&mut bytes, replaced, element);
        let end = match () {
            () if removed > 0 => End::Neither,
            () if position + 1 == self.len && upper.is_none() => End::Last,
            () if position == 0 => End::First,
            () => End::Neither,
        };
        let Some(halves) = halve_leaf(&bytes, sorting, end) else {
            nodes.write(node, bytes)?;
            return if removed > 0 { Ok(()) } else { self.add_below(nodes, levels, 1) };
        };
        if self.by_content {
            let score = divided_score(&halves.separator).copied();
            self.divided = score.filter(|score| !self.is_divided((&levels, upper), score));
        }
        let by = i64::from(removed == 0);
        self.replace_by_halves(nodes, levels, by, (node, halves))
    }

    /// Makes a tree of a leaf that is too long for a root.
    fn grow(&mut self, nodes: &mut dyn Nodes, sorting: &Sorting) -> Result<(), TxError> {
        let Some(halves) = halve_leaf(&self.root, sorting, End::Neither) else { return Ok(()) };
        self.put_below_root(nodes, halves)
    }

    /// Makes two nodes of the root, and a new root above them.
    fn put_below_root(&mut self, nodes: &mut dyn Nodes, halves: Halves) -> Result<(), TxError> {
        self.end = None;
        let left = nodes.add(halves.left.0)?;
        let right = nodes.add(halves.right.0)?;
        self.root.clear();
        put_entry(&mut self.root, halves.left.1, left, &[]);
        put_entry(&mut self.root, halves.right.1, right, &halves.separator);
        self.height += 1;
        Ok(())
    }

    /// Puts two halves in the place of a node, the child of the last of `levels`. The tree has `by`
    /// elements more.
    fn replace_by_halves(
        &mut self,
        nodes: &mut dyn Nodes,
        mut levels: Vec<Level>,
        by: i64,
        (mut node, mut halves): (u64, Halves),
    ) -> Result<(), TxError> {
        self.end = None;
        while let Some(level) = levels.pop() {
            let Halves { left: (left, left_below), right: (right, right_below), separator } =
                halves;
            nodes.write(node, left)?;
            let right = nodes.add(right)?;
            let mut inner = level.bytes.map_or_else(|| std::mem::take(&mut self.root), unshared);
            let end = entries(&inner, level.entry).next().map_or(inner.len(), |entry| entry.end);
            set_below(&mut inner, level.entry, left_below);
            let mut entry = Vec::with_capacity(separator.len() + 16);
            put_entry(&mut entry, right_below, right, &separator);
            inner.splice(end..end, entry);
            let bytes_max = if level.node == 0 { ROOT_BYTES_MAX } else { INNER_BYTES_MAX };
            let split = if inner.len() > bytes_max { halve_inner(&inner) } else { None };
            match (split, level.node) {
                (None, 0) => {
                    self.root = inner;
                    return Ok(());
                }
                (Some(split), 0) => return self.put_below_root(nodes, split),
                (None, of) => {
                    nodes.write(of, inner)?;
                    return self.add_below(nodes, levels, by);
                }
                (Some(split), of) => (node, halves) = (of, split),
            }
        }
        Ok(())
    }

    /// Changes the number of elements below the entries of the path.
    fn add_below(
        &mut self,
        nodes: &mut dyn Nodes,
        levels: Vec<Level>,
        by: i64,
    ) -> Result<(), TxError> {
        if by == 0 || !self.is_counted {
            return Ok(());
        }
        for level in levels.into_iter().rev() {
            let below = entries(self.inner(&level), level.entry).next().map_or(0, |e| e.below);
            let below = below.wrapping_add_signed(by);
            let Level { node, bytes, entry } = level;
            if node == 0 {
                set_below(&mut self.root, entry, below);
            } else {
                drop(bytes);
                let below = below_bytes(below);
                nodes.splice(node, entry..entry + below.len(), &below)?;
            }
        }
        Ok(())
    }

    /// Removes the element at a place.
    pub(super) fn remove(
        &mut self,
        nodes: &mut dyn Nodes,
        place: TreePosition,
    ) -> Result<(), TxError> {
        let TreePosition { mut levels, leaf, offset, .. } = place;
        self.len = self.len.saturating_sub(1);
        let end = |leaf: &[u8]| elements(leaf, offset).next().map_or(offset, |e| e.end);
        let Some((node, bytes)) = leaf else {
            let end = end(&self.root);
            self.root.drain(offset..end);
            return Ok(());
        };
        let removed = offset..end(&bytes);
        let left = bytes.len() - removed.len();
        let is_last = self.end.as_ref().is_some_and(|end| end.leads_to(node));
        if let Some(end) = &mut self.end {
            end.note_removal(node, offset);
        }
        if left == 0 {
            nodes.remove(node)?;
            self.remove_entry(nodes, levels)?;
            return self.lower(nodes);
        }
        // The last leaf of a list grows again, or goes with its last element.
        let may_join = left < LEAF_BYTES_MIN && !is_last;
        if may_join && self.join(nodes, &mut levels, node, (&bytes, &removed))? {
            return self.lower(nodes);
        }
        drop(bytes);
        nodes.splice(node, removed, &[])?;
        self.add_below(nodes, levels, -1)
    }

    /// Removes the last entry of the path, whose node was removed.
    fn remove_entry(
        &mut self,
        nodes: &mut dyn Nodes,
        mut levels: Vec<Level>,
    ) -> Result<(), TxError> {
        self.end = None;
        while let Some(Level { node, bytes, entry }) = levels.pop() {
            let mut inner = bytes.map_or_else(|| std::mem::take(&mut self.root), unshared);
            let end = entries(&inner, entry).next().map_or(entry, |entry| entry.end);
            inner.drain(entry..end);
            match (inner.is_empty(), node) {
                (true, 0) => self.height = 0,
                (false, 0) => self.root = inner,
                (true, node) => {
                    nodes.remove(node)?;
                    continue;
                }
                (false, node) => nodes.write(node, inner)?,
            }
            return self.add_below(nodes, levels, -1);
        }
        Ok(())
    }

    /// Joins a leaf, without a range of its bytes, to a neighbour below the same node. Gives false if they do not
    /// fit.
    fn join(
        &mut self,
        nodes: &mut dyn Nodes,
        levels: &mut Vec<Level>,
        node: u64,
        (bytes, without): (&[u8], &Range<usize>),
    ) -> Result<bool, TxError> {
        let Some(level) = levels.last() else { return Ok(false) };
        let mut before = None;
        let mut pair = None;
        for entry in entries(self.inner(level), 0) {
            let this = (entry.at, entry.end, entry.below, entry.child);
            if entry.at > level.entry {
                pair = before.map(|left| (left, this));
                break;
            }
            if entry.at == level.entry {
                // The child is paired with the neighbour before it, unless a neighbour follows.
                // That neighbour's pair then replaces this pair.
                pair = before.map(|left| (left, this));
            }
            before = Some(this);
        }
        let Some((left, right)) = pair else { return Ok(false) };
        let is_left = left.3 == node;
        let other = nodes.read(if is_left { right.3 } else { left.3 })?;
        if bytes.len() - without.len() + other.len() > LEAF_BYTES_MAX * 3 / 4 {
            return Ok(false);
        }
        self.end = None;
        let (front, back) = (&bytes[..without.start], &bytes[without.end..]);
        let joined = match is_left {
            true => [front, back, &other].concat(),
            false => [&other, front, back].concat(),
        };
        nodes.write(left.3, joined)?;
        nodes.remove(right.3)?;
        let Some(Level { node, bytes, .. }) = levels.pop() else { return Ok(false) };
        let mut inner = bytes.map_or_else(|| std::mem::take(&mut self.root), unshared);
        set_below(&mut inner, left.0, (left.2 + right.2).saturating_sub(1));
        inner.drain(right.0..right.1);
        match node {
            0 => self.root = inner,
            node => nodes.write(node, inner)?,
        }
        self.add_below(nodes, std::mem::take(levels), -1)?;
        Ok(true)
    }

    /// Takes a level out while the root has one entry whose inner node fits the root.
    fn lower(&mut self, nodes: &mut dyn Nodes) -> Result<(), TxError> {
        while self.height > 1 {
            let children: Vec<u64> = entries(&self.root, 0).map(|entry| entry.child).collect();
            let [only] = children[..] else { break };
            let bytes = nodes.read(only)?;
            if bytes.len() > ROOT_BYTES_MAX {
                break;
            }
            nodes.remove(only)?;
            self.end = None;
            self.root = unshared(bytes);
            self.height -= 1;
        }
        Ok(())
    }

    /// Bytes of the nodes below the root, each with `overhead` additional bytes.
    pub(super) fn node_bytes(
        &self,
        nodes: &mut dyn Nodes,
        overhead: usize,
    ) -> Result<usize, TxError> {
        let mut bytes = 0;
        let children = |inner: &[u8], height: u8| {
            entries(inner, 0).map(|entry| (entry.child, height)).collect::<Vec<_>>()
        };
        let mut left = match self.height {
            0 => Vec::new(),
            height => children(&self.root, height - 1),
        };
        while let Some((node, height)) = left.pop() {
            let node = self.with_others(nodes, 0..u64::MAX, |nodes| nodes.read(node))?;
            bytes += node.len() + overhead;
            if height > 0 {
                left.extend(children(&node, height - 1));
            }
        }
        Ok(bytes)
    }
}

/// The bytes of a node, to be changed. Copies them if the node is open elsewhere.
fn unshared(bytes: NodeBytes) -> Vec<u8> {
    Arc::try_unwrap(bytes).unwrap_or_else(|bytes| Vec::clone(&bytes))
}

/// Whether a hash belongs behind a separator. Eight bytes are compared at once.
fn is_from(separator: &[u8], hash: u64) -> bool {
    match separator.first_chunk::<8>() {
        Some(first) if separator.len() == 8 => u64::from_be_bytes(*first) <= hash,
        _ => *separator <= hash.to_be_bytes()[..],
    }
}

/// Compares contents. The first eight bytes, which are the score of a sorted set's element, are
/// compared at once.
fn compared(one: &[u8], other: &[u8]) -> Ordering {
    match (one.split_first_chunk::<8>(), other.split_first_chunk::<8>()) {
        (Some((a, one)), Some((b, other))) => {
            let scores = u64::from_be_bytes(*a).cmp(&u64::from_be_bytes(*b));
            scores.then_with(|| one.cmp(other))
        }
        _ => one.cmp(other),
    }
}

/// The elements of a leaf in the order of their contents; `None` if they are in it already.
pub(super) fn sorted(leaf: &[u8]) -> Option<Vec<u8>> {
    if elements(leaf, 0).map(|element| element.content).is_sorted() {
        return None;
    }
    let mut all: Vec<_> = elements(leaf, 0).collect();
    // Most elements are in order already, which a stable sort makes use of.
    all.sort_by_key(|element| element.content);
    let end = all.iter().map(|element| element.end).max().unwrap_or(0);
    let mut sorted = Vec::with_capacity(leaf.len());
    all.iter().for_each(|element| sorted.extend_from_slice(&leaf[element.at..element.end]));
    // Bytes that are no element stay behind them.
    sorted.extend_from_slice(&leaf[end..]);
    Some(sorted)
}

/// The error of a damaged tree.
pub(super) fn damaged() -> TxError {
    TxError::abandon(
        "the collection at this key is damaged: run `stillpoint check`, or delete the key",
    )
}

pub(super) mod bulk;
mod ends;
mod halves;
#[cfg(test)]
pub(super) mod tests;
mod walks;
