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
        if self.end.is_none()
            && let Some((leaf, _)) = place.leaf
        {
            let levels = place.levels.iter().map(|level| (level.node, level.entry)).collect();
            self.end = Some(EndPath { levels, leaf });
        }
        (place.position, place.is_there) = (at, at < self.len);
        let leaf = self.leaf(&place);
        place.offset = match place.is_there {
            true => elements(leaf, 0).last().ok_or_else(damaged)?.at,
            false => leaf.len(),
        };
        Ok(place)
    }
}
