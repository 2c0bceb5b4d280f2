//! Moves entries between nodes, for splits, merges and compactions. A node's next content is built
//! in private words and then stored in the node.

use stillpoint_format::node::{
    ENTRY_GHOST, Insertions, NODE_HEADER_WORDS, NodeKind, OWNER_WORDS, Slot, WORD_LAST_CHILD,
    WORD_LAST_COUNT, WORD_OWNER, entry_words,
};
use stillpoint_mem::words;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::NodeError;
use crate::node::Node;
use crate::write::Content;

/// Buffers for a key and a value, used again for each entry.
#[derive(Default)]
pub(crate) struct Buffers {
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Node<'_> {
    /// Compacts the heap, with its entries in the order of their keys. For each slot, `may_free`
    /// says whether space may be freed: a ghost as a whole, or a record's capacity beyond its
    /// value. Return true only if no transaction that could still be undone wrote the slot.
    pub fn compact(&self, mut may_free: impl FnMut(usize) -> bool) {
        let (lower, upper) = self.fence_keys();
        let mut insertions = self.insertions();
        let last_slot = usize::from(insertions.last_slot);
        self.rebuild(&lower, upper.as_deref(), |next, buffers| {
            for slot in 0..self.slot_count() {
                let frees = may_free(slot);
                if !(frees && self.is_ghost(slot)) {
                    next.push_from(self, slot, frees, buffers)?;
                } else if slot <= last_slot {
                    insertions.last_slot = insertions.last_slot.saturating_sub(1);
                }
            }
            next.take_last_child(self);
            next.keep_insertions(insertions);
            Ok(())
        })
        .expect("what a node holds fits its page");
    }

    /// Both fences.
    pub(crate) fn fence_keys(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        self.read_lower_fence(&mut lower);
        let bounded = self.read_upper_fence(&mut upper);
        (lower, bounded.then_some(upper))
    }

    /// Replaces the node by one of its kind and level with these fences, which `fill` fills.
    ///
    /// # Errors
    /// That of `fill`. The node is then unchanged.
    pub(crate) fn rebuild(
        &self,
        lower: &[u8],
        upper: Option<&[u8]>,
        fill: impl FnOnce(&Node<'_>, &mut Buffers) -> Result<(), NodeError>,
    ) -> Result<(), NodeError> {
        let scratch: Vec<AtomicU64> = self.words.iter().map(|_| AtomicU64::new(0)).collect();
        let next = Node::new(&scratch);
        next.init(self.own_kind(), self.level(), lower, upper);
        fill(&next, &mut Buffers::default())?;
        for (at, (to, from)) in self.words.iter().zip(&scratch).enumerate() {
            if !(WORD_OWNER..WORD_OWNER + OWNER_WORDS).contains(&at) {
                // Relaxed: see `Node::set_word`.
                to.store(from.load(Relaxed), Relaxed);
            }
        }
        Ok(())
    }

    /// Appends a copy of another node's entry, behind all keys of this one. If `trimmed`, the copy
    /// has no capacity beyond its value.
    ///
    /// # Errors
    /// [`NodeError::Full`].
    pub(crate) fn push_from(
        &self,
        from: &Node<'_>,
        slot: usize,
        trimmed: bool,
        buffers: &mut Buffers,
    ) -> Result<(), NodeError> {
        if !trimmed && self.prefix_bytes() == from.prefix_bytes() {
            return self.push_words_from(from, slot);
        }
        let Buffers { key, value } = buffers;
        key.clear();
        from.read_key(slot, key);
        value.clear();
        from.read_value(slot, value);
        let entry = from.entry(from.slot(slot));
        let capacity_bytes = match trimmed {
            true => words::words_for(value.len()) * 8,
            false => usize::from(entry.capacity_bytes),
        };
        let content = Content { value, capacity_bytes, tag: entry.tag, flags: entry.flags };
        self.put_entry(self.slot_count(), key, content)?;
        if entry.flags & ENTRY_GHOST != 0 {
            self.count_ghosts(1);
        }
        Ok(())
    }

    /// Appends the words of another node's entry, whose keys have as long a prefix.
    fn push_words_from(&self, from: &Node<'_>, slot: usize) -> Result<(), NodeError> {
        let slot = from.slot(slot);
        let entry = from.entry(slot);
        let count = entry_words(slot.rest_bytes.into(), entry.capacity_bytes.into());
        let start = self.allocate(count, 1)?;
        let old = &from.words[usize::from(slot.start)..][..count];
        for (to, from) in self.words[start..].iter().zip(old) {
            // Relaxed: see `Node::set_word`.
            to.store(from.load(Relaxed), Relaxed);
        }
        let mut space = self.space();
        let own = Slot { start: start as u16, ..slot };
        self.set_word(NODE_HEADER_WORDS + usize::from(space.slots), own.pack());
        space.slots += 1;
        space.ghosts += u16::from(entry.flags & ENTRY_GHOST != 0);
        self.set_space(space);
        Ok(())
    }

    /// Takes over the last child of another inner node.
    pub(crate) fn take_last_child(&self, from: &Node<'_>) {
        if self.own_kind() != NodeKind::Leaf {
            self.set_word(WORD_LAST_CHILD, from.word(WORD_LAST_CHILD));
            self.set_word(WORD_LAST_COUNT, from.word(WORD_LAST_COUNT));
        }
    }

    /// Keeps the record of a leaf's ascending insertions.
    pub(crate) fn keep_insertions(&self, insertions: Insertions) {
        if self.own_kind() == NodeKind::Leaf {
            self.set_word(WORD_LAST_CHILD, insertions.pack());
        }
    }

    /// The kind of a node that may be changed.
    pub(crate) fn own_kind(&self) -> NodeKind {
        self.kind().expect("a node that may be changed has a kind")
    }
}
