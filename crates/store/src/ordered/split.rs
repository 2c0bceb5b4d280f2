//! Splits of full nodes.

use stillpoint_format::node::{OWNER_WORDS, WORD_OWNER};
use stillpoint_node::{Child, Node, NodeError, NodeKind};
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::Ordering::Relaxed;

use super::descent::To;
use super::nodes::{Latched, ROOT};
use super::{AddError, OrderedIndex};

/// The result of an attempt to split a node.
enum Attempt {
    /// The node has room, or another one has its keys now.
    Ended,
    /// Another thread was faster.
    Again,
    /// The parent needs this many bytes for another child.
    ParentFull(usize),
}

impl OrderedIndex {
    /// Splits the node of this level on the way to a key, unless the node has room for so many bytes.
    /// An insertion after it may still find too little room, since the node may be full again.
    ///
    /// # Errors
    /// [`AddError::Full`]. The tree is as it was.
    pub(super) fn make_room(
        &self,
        key: &[u8],
        level: u8,
        needed_bytes: usize,
    ) -> Result<(), AddError> {
        let mut backoff = Backoff::new();
        loop {
            match self.try_make_room(key, level, needed_bytes)? {
                Attempt::Ended => return Ok(()),
                Attempt::Again => backoff.wait(),
                Attempt::ParentFull(bytes) => self.make_room(key, level + 1, bytes)?,
            }
        }
    }

    fn try_make_room(
        &self,
        key: &[u8],
        level: u8,
        needed_bytes: usize,
    ) -> Result<Attempt, AddError> {
        let (seen, position) = self.descend(To::Key(key), level + 1);
        let Some(latched) = self.nodes.try_latch_seen(seen) else { return Ok(Attempt::Again) };
        let parent = latched.node();
        match parent.level() {
            lower if lower < level => return Ok(Attempt::Ended),
            same if same == level => {
                self.raise_root(&latched)?;
                return Ok(Attempt::Again);
            }
            _ => {}
        }
        let child = self.nodes.latch_exclusively(parent.child(position).at);
        let node = child.node();
        let has_key = level == 0 && node.search(key).is_ok();
        if has_key || node.free_bytes() >= needed_bytes {
            return Ok(Attempt::Ended);
        }
        let right = self.nodes.allocate().ok_or(AddError::Full)?;
        let split = node.split_for(key);
        let uncounted = |latched: &Latched<'_>| Child { at: latched.number, records: 0 };
        match parent.insert_child(&split.separator, uncounted(&child), uncounted(&right)) {
            Ok(()) => {}
            Err(NodeError::Full { needed_bytes }) => {
                right.free();
                return Ok(Attempt::ParentFull(needed_bytes));
            }
            Err(refused) => unreachable!("a separator is no longer than a key: {refused}"),
        }
        node.split(&split, &right.node());
        parent.set_child(position, counted(&child));
        parent.set_child(position + 1, counted(&right));
        Ok(Attempt::Ended)
    }

    /// Moves the content of the root, which is latched, into a new node, the only child of the root.
    fn raise_root(&self, root: &Latched<'_>) -> Result<(), AddError> {
        debug_assert_eq!(root.number, ROOT, "only the root has no parent");
        let child = self.nodes.allocate().ok_or(AddError::Full)?;
        self.copy_node(root.number, &child);
        let node: Node<'_> = root.node();
        node.init(NodeKind::CountedInner, node.level() + 1, b"", None);
        node.set_only_child(counted(&child));
        Ok(())
    }

    /// Copies a node, whose latch the caller holds, over another one. The latches stay.
    pub(super) fn copy_node(&self, from: u64, to: &Latched<'_>) {
        let (from, words) = (self.nodes.words(from), self.nodes.words(to.number));
        for (at, (word, from)) in words.iter().zip(from).enumerate() {
            if !(WORD_OWNER..WORD_OWNER + OWNER_WORDS).contains(&at) {
                // Relaxed: the latches order all stores.
                word.store(from.load(Relaxed), Relaxed);
            }
        }
    }
}

/// A node as a child, with its number of records.
pub(super) fn counted(latched: &Latched<'_>) -> Child {
    Child { at: latched.number, records: latched.node().records() }
}
