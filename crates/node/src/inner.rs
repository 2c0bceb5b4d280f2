//! Separators and children. The i-th child holds the keys below the i-th separator, from the separator
//! before it on. The last child holds the keys from the last separator on.

use stillpoint_format::node::{NODE_HEADER_WORDS, NodeKind, WORD_LAST_CHILD, WORD_LAST_COUNT};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::NodeError;
use crate::node::{Node, value_start};
use crate::write::Content;

/// A child of an inner node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Child {
    /// Number of the child, whose meaning only the caller knows.
    pub at: u64,
    /// Number of records below the child. 0 in a node that does not count.
    pub records: u64,
}

impl Child {
    fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..].copy_from_slice(&self.records.to_le_bytes());
        bytes
    }
}

impl Node<'_> {
    /// Number of children: one more than the number of separators.
    #[inline]
    pub fn child_count(&self) -> usize {
        self.slot_count() + 1
    }

    /// Position of the child that holds a key.
    #[inline]
    pub fn child_of(&self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(slot) => slot + 1,
            Err(slot) => slot,
        }
    }

    /// Position of the child that holds the keys just below a key, for a descending range.
    #[inline]
    pub fn child_below(&self, key: &[u8]) -> usize {
        self.search(key).unwrap_or_else(|slot| slot)
    }

    /// The child at a position.
    #[inline]
    pub fn child(&self, position: usize) -> Child {
        let start = self.child_start(position);
        let counts = self.kind() == Some(NodeKind::CountedInner);
        Child { at: self.word(start), records: if counts { self.word(start + 1) } else { 0 } }
    }

    /// The number of the child at a position.
    #[inline]
    pub fn child_number(&self, position: usize) -> u64 {
        self.word(self.child_start(position))
    }

    /// The number of the child in a word of the page; zero beyond the end.
    #[inline]
    pub fn child_in(&self, word: usize) -> u64 {
        self.word(word)
    }

    /// Changes the child at a position.
    ///
    /// # Panics
    /// If there is no such child.
    pub fn set_child(&self, position: usize, child: Child) {
        let start = self.own_child_start(position);
        self.set_word(start, child.at);
        if self.kind() == Some(NodeKind::CountedInner) {
            self.set_word(start + 1, child.records);
        }
    }

    /// The word of a counted node with the number of records below a child. Threads that share the
    /// node's latch add to it with atomic additions.
    ///
    /// # Panics
    /// If there is no such child, or the node does not count.
    #[inline]
    pub fn child_records(&self, position: usize) -> &AtomicU64 {
        assert_eq!(self.kind(), Some(NodeKind::CountedInner), "the node does not count");
        &self.words[self.own_child_start(position) + 1]
    }

    /// Number of records below the children before a position.
    pub fn records_before(&self, position: usize) -> u64 {
        let before = 0..position.min(self.child_count());
        before.map(|position| self.child(position).records).fold(0, u64::wrapping_add)
    }

    /// The child that holds the record of this number, counted from 0 in the order of keys, and the
    /// number of records before that child. `None` if the node has fewer records.
    pub fn child_at_record(&self, number: u64) -> Option<(usize, u64)> {
        let mut before = 0u64;
        for position in 0..self.child_count() {
            let records = self.child(position).records;
            if number.wrapping_sub(before) < records {
                return Some((position, before));
            }
            before = before.wrapping_add(records);
        }
        None
    }

    /// Number of records below the node.
    pub fn records(&self) -> u64 {
        match self.kind() {
            Some(NodeKind::Leaf) => self.slot_count().saturating_sub(self.ghost_count()) as u64,
            _ => self.records_before(self.child_count()),
        }
    }

    /// Gives an empty inner node its only child.
    ///
    /// # Panics
    /// If the node has separators.
    pub fn set_only_child(&self, child: Child) {
        assert_eq!(self.slot_count(), 0, "the node has children");
        self.set_child(0, child);
    }

    /// Notes that a child was split: `left` takes its position, and `right` the next one, with the
    /// separator between them. The node must [cover](Self::covers) the separator.
    ///
    /// # Errors
    /// [`NodeError::Full`], [`NodeError::KeyTooLong`].
    ///
    /// # Panics
    /// If the separator exists already.
    pub fn insert_child(
        &self,
        separator: &[u8],
        left: Child,
        right: Child,
    ) -> Result<(), NodeError> {
        debug_assert!(self.covers(separator), "the separator belongs into another node");
        let slot = self.search(separator).expect_err("a new separator");
        self.put_child(slot, separator, left)?;
        self.set_child(slot + 1, right);
        Ok(())
    }

    /// Notes that two children were merged: `merged` replaces those before and behind a separator.
    ///
    /// # Panics
    /// If there is no such separator.
    pub fn merge_children(&self, separator: usize, merged: Child) {
        assert!(separator < self.slot_count(), "no separator {separator}");
        self.remove_entry(separator);
        self.set_child(separator, merged);
    }

    /// Inserts a separator with the child before it.
    pub(crate) fn put_child(
        &self,
        slot: usize,
        separator: &[u8],
        child: Child,
    ) -> Result<(), NodeError> {
        let bytes = child.bytes();
        let value = &bytes[..self.child_bytes()];
        self.put_entry(slot, separator, Content::record(value, 0))
    }

    /// Bytes of a value of this inner node.
    pub(crate) fn child_bytes(&self) -> usize {
        if self.kind() == Some(NodeKind::CountedInner) { 16 } else { 8 }
    }

    fn own_child_start(&self, position: usize) -> usize {
        assert!(position < self.child_count(), "no child {position}");
        self.child_start(position)
    }

    /// Where the words of a child begin.
    #[inline]
    pub(crate) fn child_start(&self, position: usize) -> usize {
        match self.slots().get(position) {
            // Relaxed: see `Node::word`.
            Some(slot) => value_start(stillpoint_format::node::Slot::unpack(slot.load(Relaxed))),
            None => WORD_LAST_CHILD,
        }
    }
}

const _: () =
    assert!(WORD_LAST_COUNT == WORD_LAST_CHILD + 1 && WORD_LAST_COUNT < NODE_HEADER_WORDS);
