//! Many elements at once: a tree is built from elements in order, and elements are removed node by
//! node.
//!
//! A removal passes over the tree once. The removal takes whole subtrees out. Of the remaining
//! nodes the removal visits, once, those with elements to remove. So the cost of a removal depends
//! on nodes, not on elements.

use std::ops::Range;

use stillpoint::TxError;

use super::super::node::{elements, entries, put_entry};
use super::super::sorting::{Hashes, Sorting};
use super::{
    ENTRIES_MIN, INNER_BYTES_MAX, LEAF_BYTES_MAX, LEAF_BYTES_MIN, Nodes, PACKED_BYTES_MAX,
    ROOT_BYTES_MAX, Tree, damaged, sorted, unshared,
};
use crate::keyspace::encoding::{put_string, string_bytes};

/// Bytes up to which a node is filled whose neighbours may grow in any place.
const FILLED_BYTES: usize = LEAF_BYTES_MAX * 7 / 8;
/// A shorter inner node is joined to a neighbour if both fit.
const INNER_BYTES_MIN: usize = INNER_BYTES_MAX / 4;
/// Names that are compared one by one; more are found by their hashes.
const NAMES_COMPARED: usize = 8;

/// Elements that are to be removed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Doomed<'a> {
    /// Ranges of positions in ascending order, which neither touch nor overlap each other.
    Positions(&'a [Range<u64>]),
    /// Names with their hashes, in ascending order of the hashes. In an index by tags they are whole
    /// elements.
    Names { hashes: Hashes, names: &'a [(u64, &'a [u8])] },
}

impl Doomed<'_> {
    fn is_empty(&self) -> bool {
        match self {
            Self::Positions(ranges) => ranges.is_empty(),
            Self::Names { names, .. } => names.is_empty(),
        }
    }

    /// The part of the removal within a subtree that begins at position `from`, has `below`
    /// elements, and ends before the separator `upper`.
    fn within(&self, from: u64, below: u64, upper: Option<&[u8]>) -> Self {
        match *self {
            Self::Positions(ranges) => {
                let first = ranges.partition_point(|range| range.end <= from);
                let end = ranges.partition_point(|range| range.start < from + below);
                Self::Positions(ranges.get(first..end).unwrap_or_default())
            }
            Self::Names { hashes, names } => {
                let end = upper.map_or(names.len(), |upper| {
                    names.partition_point(|(hash, _)| hash.to_be_bytes()[..] < *upper)
                });
                Self::Names { hashes, names: &names[..end] }
            }
        }
    }

    /// The part of the removal behind the names of a subtree. Positions stay as they are, since
    /// each subtree finds its own positions.
    fn behind(&self, taken: &Self) -> Self {
        match (*self, taken) {
            (Self::Names { hashes, names }, Self::Names { names: taken, .. }) => {
                Self::Names { hashes, names: &names[taken.len()..] }
            }
            (all, _) => all,
        }
    }

    /// Whether every element is to be removed of a subtree that begins at position `from` and has
    /// `below` elements.
    fn covers(&self, from: u64, below: u64) -> bool {
        match self {
            Self::Positions([range]) => range.start <= from && from + below <= range.end,
            _ => false,
        }
    }

    /// Whether the element at a position is to be removed.
    fn has(&self, position: u64, content: &[u8]) -> bool {
        match self {
            Self::Positions(ranges) => {
                let next = ranges.partition_point(|range| range.end <= position);
                ranges.get(next).is_some_and(|range| range.start <= position)
            }
            Self::Names { hashes, names } => {
                if names.len() <= NAMES_COMPARED {
                    return names.iter().any(|sought| hashes.is_sought(content, *sought));
                }
                let of = hashes.of(content);
                let first = names.partition_point(|(hash, _)| hash < of.start());
                let same = names[first..].iter().take_while(|(hash, _)| hash <= of.end());
                { same }.any(|sought| hashes.is_sought(content, *sought))
            }
        }
    }
}

/// An entry of an inner node on its way to a new one.
struct Child<'a> {
    below: u64,
    node: u64,
    separator: &'a [u8],
    /// The child's new bytes, if it has changed.
    new: Option<Vec<u8>>,
}

/// Called with the content of each element that is removed.
pub(crate) type Gone<'a> = Option<&'a mut dyn FnMut(&[u8])>;

impl Tree {
    /// Removes elements; gives how many. `gone` is called with each removed element. Without
    /// `gone`, leaves that are removed as a whole are not read.
    pub(in crate::keyspace::elements) fn remove_all(
        &mut self,
        nodes: &mut dyn Nodes,
        doomed: Doomed<'_>,
        mut gone: Gone<'_>,
    ) -> Result<u64, TxError> {
        self.end = None;
        let root = std::mem::take(&mut self.root);
        let by_content = self.by_content;
        let (new, removed) =
            match cut(nodes, &root, (self.height, 0, by_content), doomed, &mut gone) {
                Err(TxError::NotLoaded) => {
                    self.root = root;
                    self.ask_for_doomed(nodes, doomed);
                    return Err(TxError::NotLoaded);
                }
                cut => cut?,
            };
        self.root = new;
        self.len = self.len.saturating_sub(removed);
        if self.root.is_empty() {
            self.height = 0;
        }
        self.lower(nodes)?;
        Ok(removed)
    }

    /// Asks for the nodes of elements that are to be removed.
    #[cold]
    fn ask_for_doomed(&self, nodes: &mut dyn Nodes, doomed: Doomed<'_>) {
        if let Doomed::Positions(ranges) = doomed
            && let (Some(first), Some(last)) = (ranges.first(), ranges.last())
        {
            // The run ends, and has changed some of the nodes. So an error says nothing.
            let _ = self.ask_for(nodes, first.start..last.end);
        }
    }

    /// Makes this tree, which is empty, of elements in their order.
    pub(in crate::keyspace::elements) fn fill(
        &mut self,
        nodes: &mut dyn Nodes,
        sorting: &Sorting,
        contents: &[&[u8]],
    ) -> Result<(), TxError> {
        self.end = None;
        self.len = contents.len() as u64;
        if is_packed(contents) {
            contents.iter().for_each(|content| put_string(&mut self.root, content));
            return Ok(());
        }
        let mut level = fill_leaves(nodes, sorting, contents)?;
        self.height = 1;
        loop {
            let mut root = Vec::new();
            let first = level.iter().enumerate();
            first.for_each(|(i, built)| put_built(&mut root, i == 0, built));
            if root.len() <= ROOT_BYTES_MAX || level.len() < ENTRIES_MIN {
                self.root = root;
                return Ok(());
            }
            level = fill_inner(nodes, level)?;
            self.height += 1;
        }
    }
}

/// Whether elements fit into the only leaf of a small collection.
pub(in crate::keyspace::elements) fn is_packed(contents: &[&[u8]]) -> bool {
    let bytes: usize = contents.iter().map(|content| string_bytes(content.len())).sum();
    bytes <= PACKED_BYTES_MAX || contents.len() < 2
}

/// A node that was built, with the elements below it and its separator.
struct Built {
    below: u64,
    node: u64,
    separator: Vec<u8>,
}

/// Appends the entry of a node. The first entry of a tree has no separator.
fn put_built(inner: &mut Vec<u8>, is_first: bool, built: &Built) {
    put_entry(inner, built.below, built.node, if is_first { &[] } else { &built.separator });
}

fn fill_leaves(
    nodes: &mut dyn Nodes,
    sorting: &Sorting,
    contents: &[&[u8]],
) -> Result<Vec<Built>, TxError> {
    // Lists grow at their ends: a full leaf is rarely split.
    let most = if matches!(sorting, Sorting::Positions) { LEAF_BYTES_MAX } else { FILLED_BYTES };
    let is_hashed = matches!(sorting, Sorting::Hashes(_));
    let mut built = Vec::new();
    let (mut leaf, mut below) = (Vec::with_capacity(LEAF_BYTES_MAX), 0);
    let (mut separator, mut last, mut before) = (Vec::new(), None, &[][..]);
    for content in contents {
        let next = sorting.place(content);
        // Elements of one hash stay together.
        let may_cut = below > 0 && !(is_hashed && last.as_ref() == Some(&next));
        if may_cut && leaf.len() + content.len() + 5 > most {
            let full = std::mem::replace(&mut leaf, Vec::with_capacity(LEAF_BYTES_MAX));
            let node = nodes.add(full)?;
            built.push(Built { below, node, separator: std::mem::take(&mut separator) });
            below = 0;
        }
        if below == 0 {
            separator = sorting.separator(before, content).into_owned();
        }
        (last, before) = (Some(next), *content);
        put_string(&mut leaf, content);
        below += 1;
    }
    let node = nodes.add(leaf)?;
    built.push(Built { below, node, separator });
    Ok(built)
}

fn fill_inner(nodes: &mut dyn Nodes, level: Vec<Built>) -> Result<Vec<Built>, TxError> {
    let mut above = Vec::new();
    let (mut inner, mut below, mut count) = (Vec::with_capacity(INNER_BYTES_MAX), 0, 0);
    let mut separator = Vec::new();
    for built in level {
        if count >= ENTRIES_MIN && inner.len() + built.separator.len() + 15 > FILLED_BYTES {
            let full = std::mem::replace(&mut inner, Vec::with_capacity(INNER_BYTES_MAX));
            let node = nodes.add(full)?;
            above.push(Built { below, node, separator: std::mem::take(&mut separator) });
            (below, count) = (0, 0);
        }
        put_built(&mut inner, above.is_empty() && count == 0, &built);
        below += built.below;
        if count == 0 {
            separator = built.separator;
        }
        count += 1;
    }
    let node = nodes.add(inner)?;
    above.push(Built { below, node, separator });
    Ok(above)
}

/// Gives the bytes of a node without the doomed elements, and how many these are. The node has
/// `height` levels below it and begins at a position. Its tree is in the order of contents or not.
fn cut(
    nodes: &mut dyn Nodes,
    bytes: &[u8],
    (height, from, by_content): (u8, u64, bool),
    doomed: Doomed<'_>,
    gone: &mut Gone<'_>,
) -> Result<(Vec<u8>, u64), TxError> {
    if height == 0 {
        let sorted = if by_content { sorted(bytes) } else { None };
        return Ok(cut_leaf(sorted.as_deref().unwrap_or(bytes), from, doomed, gone));
    }
    let mut children: Vec<Child<'_>> = Vec::new();
    let (mut before, mut removed, mut doomed) = (from, 0, doomed);
    let mut all = entries(bytes, 0).peekable();
    if all.peek().is_none() {
        return Err(damaged());
    }
    while let Some(entry) = all.next() {
        let upper = all.peek().map(|next| next.separator);
        let own = doomed.within(before, entry.below, upper);
        doomed = doomed.behind(&own);
        let mut child =
            Child { below: entry.below, node: entry.child, separator: entry.separator, new: None };
        if own.covers(before, entry.below) {
            drop_subtree(nodes, (entry.child, height - 1, by_content), gone)?;
            removed += entry.below;
        } else if own.is_empty() {
            children.push(child);
        } else {
            let old = nodes.read(entry.child)?;
            let place = (height - 1, before, by_content);
            let (new, gone_below) = cut(nodes, &old, place, own, gone)?;
            removed += gone_below;
            child.below = child.below.saturating_sub(gone_below);
            if new.is_empty() {
                nodes.remove(entry.child)?;
            } else {
                child.new = (new != *old).then_some(new);
                children.push(child);
            }
        }
        before += entry.below;
    }
    Ok((put_children(nodes, children, height == 1)?, removed))
}

fn cut_leaf(bytes: &[u8], from: u64, doomed: Doomed<'_>, gone: &mut Gone<'_>) -> (Vec<u8>, u64) {
    let (mut kept, mut removed) = (Vec::with_capacity(bytes.len()), 0);
    for (element, position) in elements(bytes, 0).zip(from..) {
        if !doomed.has(position, element.content) {
            kept.extend_from_slice(&bytes[element.at..element.end]);
            continue;
        }
        removed += 1;
        if let Some(gone) = gone {
            gone(element.content);
        }
    }
    (kept, removed)
}

/// Removes a node and all below it.
fn drop_subtree(
    nodes: &mut dyn Nodes,
    (node, height, by_content): (u64, u8, bool),
    gone: &mut Gone<'_>,
) -> Result<(), TxError> {
    if height == 0 && gone.is_none() {
        return nodes.remove(node);
    }
    let bytes = nodes.read(node)?;
    // In a damaged tree a node may be below itself. A removed node is not found again, so this
    // ends.
    nodes.remove(node)?;
    if height > 0 {
        let mut children = entries(&bytes, 0).map(|entry| entry.child);
        let below = (height - 1, by_content);
        return children.try_for_each(|child| drop_subtree(nodes, (child, below.0, below.1), gone));
    }
    if let Some(gone) = gone {
        let sorted = if by_content { sorted(&bytes) } else { None };
        elements(sorted.as_deref().unwrap_or(&bytes), 0).for_each(|element| gone(element.content));
    }
    Ok(())
}

/// Joins short children to their neighbours, and writes the changed ones. Returns the bytes of the
/// inner node above the children.
fn put_children(
    nodes: &mut dyn Nodes,
    children: Vec<Child<'_>>,
    are_leaves: bool,
) -> Result<Vec<u8>, TxError> {
    let (least, most) = match are_leaves {
        true => (LEAF_BYTES_MIN, LEAF_BYTES_MAX * 3 / 4),
        false => (INNER_BYTES_MIN, INNER_BYTES_MAX * 3 / 4),
    };
    let is_short = |child: &Child<'_>| child.new.as_ref().is_some_and(|new| new.len() < least);
    let mut joined: Vec<Child<'_>> = Vec::with_capacity(children.len());
    for child in children {
        if let Some(left) = joined.last_mut()
            && (is_short(left) || is_short(&child))
        {
            let bytes_of = |nodes: &mut dyn Nodes, child: &Child<'_>| match &child.new {
                Some(new) => Ok(new.clone()),
                None => nodes.read(child.node).map(unshared),
            };
            let (first, second) = (bytes_of(nodes, left)?, bytes_of(nodes, &child)?);
            let both = if are_leaves {
                [first, second].concat()
            } else {
                join_inner(first, &second, child.separator)
            };
            if both.len() <= most {
                nodes.remove(child.node)?;
                left.below += child.below;
                left.new = Some(both);
                continue;
            }
        }
        joined.push(child);
    }
    let mut inner = Vec::new();
    for child in joined {
        put_entry(&mut inner, child.below, child.node, child.separator);
        if let Some(new) = child.new {
            nodes.write(child.node, new)?;
        }
    }
    Ok(inner)
}

/// Appends an inner node to another. The first entry of the appended node, which had no bound, gets
/// that node's own bound.
fn join_inner(mut first: Vec<u8>, second: &[u8], separator: &[u8]) -> Vec<u8> {
    for (i, entry) in entries(second, 0).enumerate() {
        let separator = if i == 0 { separator } else { entry.separator };
        put_entry(&mut first, entry.below, entry.child, separator);
    }
    first
}
