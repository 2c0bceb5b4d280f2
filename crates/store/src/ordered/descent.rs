//! Descents from the root to a node.

use stillpoint_node::Node;

use super::OrderedIndex;
use super::nodes::{NodeVersion, ROOT};

/// Failed descents without latches after which a reader latches.
const OPTIMISTIC_DESCENTS: usize = 16;

/// The way of a descent.
#[derive(Clone, Copy, Debug)]
pub(super) enum To<'k> {
    /// To the leaf that holds the key.
    Key(&'k [u8]),
    /// To the leaf that holds the keys just below the key.
    Below(&'k [u8]),
    /// To the last leaf.
    Last,
}

impl To<'_> {
    /// Position of the child on the way.
    #[inline]
    fn child_of(self, node: &Node<'_>) -> usize {
        match self {
            To::Key(key) => node.child_of(key),
            To::Below(key) => node.child_below(key),
            To::Last => node.child_count() - 1,
        }
    }
}

impl OrderedIndex {
    /// The leaf at the end of a way.
    #[inline]
    pub(super) fn leaf(&self, to: To<'_>) -> NodeVersion {
        self.descend(to, 0).0
    }

    /// The node of this level at the end of a way, or the root of a lower tree. Also the position of
    /// the child on the way, for an inner node.
    pub(super) fn descend(&self, to: To<'_>, level: u8) -> (NodeVersion, usize) {
        for _ in 0..OPTIMISTIC_DESCENTS {
            if let Some(found) = self.try_descend(to, level) {
                return found;
            }
        }
        self.descend_latched(to, level)
    }

    /// A descent without latches. `None` if a node has changed meanwhile.
    #[inline]
    fn try_descend(&self, to: To<'_>, level: u8) -> Option<(NodeVersion, usize)> {
        let mut seen = self.nodes.seen(ROOT);
        loop {
            let node = self.nodes.node(seen.number);
            let is_end = node.level() <= level;
            let is_leaf = node.level() == 0;
            let position = if is_leaf { 0 } else { to.child_of(&node) };
            let child = if is_end { 0 } else { node.child(position).at };
            if !self.nodes.is_still(seen) {
                return None;
            }
            if is_end {
                return Some((seen, position));
            }
            // The child's version is read before the parent's is checked. So the child was the
            // parent's in that version.
            let next = self.nodes.seen(child);
            if !self.nodes.is_still(seen) {
                return None;
            }
            seen = next;
        }
    }

    /// A descent that shares the latches of parent and child.
    #[cold]
    fn descend_latched(&self, to: To<'_>, level: u8) -> (NodeVersion, usize) {
        let mut shared = self.nodes.share(ROOT);
        loop {
            let node = shared.node();
            let position = if node.level() == 0 { 0 } else { to.child_of(&node) };
            if node.level() <= level {
                return (shared.seen(), position);
            }
            shared = self.nodes.share(node.child(position).at);
        }
    }
}
