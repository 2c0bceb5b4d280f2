//! The end of a tree whose elements are in the order of their positions, where a list grows and shrinks.

use stillpoint::TxError;

use super::super::node::elements;
use super::{Level, Nodes, Tree, TreePosition, damaged};

/// The way to the last leaf.
#[derive(Debug)]
pub(super) struct EndPath {
    /// The inner nodes, 0 for the root, each with the byte where its last entry begins.
    levels: Vec<(u64, usize)>,
    leaf: u64,
    /// Where the last elements of the leaf begin, in order. Empty if nobody has asked since another change.
    starts: Vec<u32>,
}

impl EndPath {
    /// The place in the last leaf. Its byte and its position are not told yet.
    fn follow(&self, nodes: &mut dyn Nodes) -> Result<TreePosition, TxError> {
        let mut levels = Vec::with_capacity(self.levels.len());
        for &(node, entry) in &self.levels {
            let bytes = if node == 0 { None } else { Some(nodes.read(node)?) };
            levels.push(Level { node, bytes, entry });
        }
        let leaf = Some((self.leaf, nodes.read(self.leaf)?));
        Ok(TreePosition { levels, leaf, offset: 0, position: 0, is_there: false, upper: None })
    }

    /// Where the last element begins, in the bytes of the leaf.
    fn last_start(&mut self, leaf: &[u8]) -> Option<usize> {
        if self.starts.is_empty() {
            self.starts.extend(elements(leaf, 0).map(|element| element.at as u32));
        }
        self.starts.last().map(|start| *start as usize)
    }

    /// Whether the way leads to that leaf.
    pub(super) fn leads_to(&self, leaf: u64) -> bool {
        self.leaf == leaf
    }

    /// Notes that the element at a byte of a leaf is removed.
    pub(super) fn note_removal(&mut self, leaf: u64, offset: usize) {
        if leaf == self.leaf && self.starts.pop().is_some_and(|last| last as usize != offset) {
            self.starts.clear();
        }
    }

    /// Notes another change of a leaf.
    pub(super) fn note_change(&mut self, leaf: u64) {
        if leaf == self.leaf {
            self.starts.clear();
        }
    }
}

impl Tree {
    /// As [`place_at`](Self::place_at), for the last position or the one behind it. Remembers the way, since the
    /// next place is probably there, too. The tree is in the order of positions.
    pub(in crate::keyspace::elements) fn place_at_end(
        &mut self,
        nodes: &mut dyn Nodes,
        at: u64,
    ) -> Result<TreePosition, TxError> {
        let mut place = match &self.end {
            Some(end) => end.follow(nodes)?,
            None => self.descend(nodes, |_, before| before <= at)?,
        };
        let Some((leaf, bytes)) = &place.leaf else { return Err(damaged()) };
        let end = self.end.get_or_insert_with(|| {
            let levels = place.levels.iter().map(|level| (level.node, level.entry)).collect();
            EndPath { levels, leaf: *leaf, starts: Vec::new() }
        });
        (place.position, place.is_there) = (at, at < self.len);
        place.offset = match place.is_there {
            true => end.last_start(bytes).ok_or_else(damaged)?,
            false => bytes.len(),
        };
        Ok(place)
    }
}
