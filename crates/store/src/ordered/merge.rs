//! Merges of sparse nodes.

use stillpoint_node::Node;
use stillpoint_sync::Backoff;

use super::OrderedIndex;
use super::descent::To;
use super::nodes::{Latched, ROOT};
use super::split::counted;

/// Attempts to merge a node, each of which may meet other threads. A node that stays sparse is looked at
/// again after the next removal.
const ATTEMPTS: usize = 8;

/// Whether less than a third of a node is used.
pub(super) fn is_sparse(node: &Node<'_>) -> bool {
    node.free_bytes() > node.page_bytes() / 3 * 2
}

impl OrderedIndex {
    /// Merges the node of this level on the way to a key with a neighbour. Does so if both together leave
    /// a quarter of a node free, or one of them is empty. Then does the same with the parent, if that is sparse now.
    pub(super) fn merge(&self, key: &[u8], level: u8) {
        let mut backoff = Backoff::new();
        for _ in 0..ATTEMPTS {
            match self.try_merge(key, level) {
                Some(true) => return self.merge(key, level + 1),
                Some(false) => return,
                None => backoff.wait(),
            }
        }
    }

    /// Tries to merge. `None` if another thread was faster or has latched a node. Otherwise whether the
    /// parent is sparse now.
    fn try_merge(&self, key: &[u8], level: u8) -> Option<bool> {
        let (seen, position) = self.descend(To::Key(key), level + 1);
        let latched = self.nodes.try_latch_seen(seen)?;
        let parent = latched.node();
        let is_root = latched.number == ROOT;
        if parent.level() <= level {
            return Some(false);
        }
        if parent.child_count() == 1 {
            return if is_root { self.lower_root(&latched).map(|()| false) } else { Some(true) };
        }
        // Both neighbours are tried. A queue leaves an empty node to the left, and a full one to the right.
        let mut has_merged = false;
        for separator in [Some(position), position.checked_sub(1)].into_iter().flatten() {
            if !has_merged && separator + 1 < parent.child_count() {
                has_merged = self.merge_at(&parent, separator)?;
            }
        }
        if !has_merged {
            return Some(false);
        }
        if is_root && parent.child_count() == 1 {
            return self.lower_root(&latched).map(|()| false);
        }
        Some(!is_root && is_sparse(&parent))
    }

    /// Merges the two children around a separator of a node, which is latched. False if they have too
    /// much together. `None` if another thread has latched one of them.
    fn merge_at(&self, parent: &Node<'_>, separator: usize) -> Option<bool> {
        let left = self.nodes.try_latch(parent.child(separator).at)?;
        let right = self.nodes.try_latch(parent.child(separator + 1).at)?;
        let free = left.node().free_bytes() + right.node().free_bytes();
        let is_empty = left.node().slot_count() == 0 || right.node().slot_count() == 0;
        if !is_empty && free < parent.page_bytes() / 4 * 5 {
            return Some(false);
        }
        if left.node().merge(&right.node()).is_err() {
            return Some(false);
        }
        parent.merge_children(separator, counted(&left));
        right.free();
        Some(true)
    }

    /// Moves the content of the only child of the root into the root, which is latched. `None` if another
    /// thread has latched the child.
    fn lower_root(&self, root: &Latched<'_>) -> Option<()> {
        let child = self.nodes.try_latch(root.node().child(0).at)?;
        self.copy_node(child.number, root);
        child.free();
        Some(())
    }
}
