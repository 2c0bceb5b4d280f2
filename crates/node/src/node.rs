//! A node's header, and the reading of its records.

use std::cmp::Ordering;

use stillpoint_format::node::{
    ENTRY_GHOST, EntryWord, Fence, FencesWord, HEAP_UNIT_BYTES, Insertions, KindWord,
    NODE_BYTES_MAX, NODE_BYTES_MIN, NODE_HEADER_BYTES, NODE_HEADER_WORDS, NodeKind, OWNER_WORDS,
    Slot, SpaceWord, WORD_FENCES, WORD_KIND, WORD_LAST_CHILD, WORD_OWNER, WORD_SPACE,
    node_key_bytes_max, node_value_bytes_max,
};
use stillpoint_mem::words;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::search::big_endian;

/// A node in the words of a page.
///
/// Slots are numbered in the order of their keys, from 0 on. Ghosts have slots, too.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    pub(crate) words: &'a [AtomicU64],
}

impl<'a> Node<'a> {
    /// The node in these words.
    ///
    /// # Panics
    /// If there are fewer than [`NODE_BYTES_MIN`] or more than [`NODE_BYTES_MAX`] bytes.
    #[inline]
    pub fn new(words: &'a [AtomicU64]) -> Self {
        assert!((NODE_BYTES_MIN / 8..=NODE_BYTES_MAX / 8).contains(&words.len()), "no page size");
        Self { words }
    }

    /// Makes an empty node with these fences, at this height above the leaves. Without an upper
    /// fence the node takes all keys from the lower fence on. The owner's words stay.
    ///
    /// # Panics
    /// If the lower fence is not below the upper one, or a fence is longer than a key may be.
    pub fn init(&self, kind: NodeKind, level: u8, lower: &[u8], upper: Option<&[u8]>) {
        let longest = node_key_bytes_max(self.page_bytes());
        assert!(upper.is_none_or(|upper| lower < upper), "fences out of order");
        assert!(lower.len() <= longest && upper.unwrap_or(b"").len() <= longest, "long fence");
        debug_assert_eq!(kind == NodeKind::Leaf, level == 0, "leaves have level 0");
        for (at, word) in self.words.iter().enumerate() {
            if !(WORD_OWNER..WORD_OWNER + OWNER_WORDS).contains(&at) {
                word.store(0, Relaxed);
            }
        }
        let prefix = upper.map_or(0, |upper| common_prefix_bytes(lower, upper));
        let kind = kind.code();
        let prefix_bytes = prefix as u16;
        self.set_word(WORD_KIND, KindWord { checksum: 0, kind, level, prefix_bytes }.pack());
        let heap_start = self.words.len() as u16;
        self.set_space(SpaceWord { slots: 0, ghosts: 0, heap_start, garbage: 0 });
        let lower = self.put_fence(lower);
        let upper = upper.map_or(Fence::NONE, |upper| self.put_fence(upper));
        self.set_word(WORD_FENCES, FencesWord { lower, upper }.pack());
    }

    fn put_fence(&self, key: &[u8]) -> Fence {
        if key.is_empty() {
            return Fence::NONE;
        }
        let mut space = self.space();
        space.heap_start -= words::words_for(key.len()) as u16;
        self.set_space(space);
        words::fill(&self.words[usize::from(space.heap_start)..], key);
        Fence { start: space.heap_start, bytes: key.len() as u16 }
    }

    /// The words of the page.
    #[inline]
    pub fn words(&self) -> &'a [AtomicU64] {
        self.words
    }

    /// Forgets the checksum of a page that was read. A page in memory has none.
    pub fn clear_checksum(&self) {
        self.set_word(WORD_KIND, KindWord { checksum: 0, ..self.kind_word() }.pack());
    }

    /// The number of words at the begin of the page that are used, and the number of the first word of
    /// the heap. The words in between mean nothing.
    pub fn used_words(&self) -> (usize, usize) {
        let space = self.space();
        let head = (NODE_HEADER_WORDS + usize::from(space.slots)).min(self.words.len());
        (head, usize::from(space.heap_start).clamp(head, self.words.len()))
    }

    /// Bytes of the page.
    #[inline]
    pub fn page_bytes(&self) -> usize {
        self.words.len() * 8
    }

    /// The node's kind. `None` if the words are no node.
    #[inline]
    pub fn kind(&self) -> Option<NodeKind> {
        NodeKind::from_code(self.kind_word().kind)
    }

    /// Height above the leaves.
    #[inline]
    pub fn level(&self) -> u8 {
        self.kind_word().level
    }

    /// Length in bytes of the prefix that all keys of the node have.
    #[inline]
    pub fn prefix_bytes(&self) -> usize {
        usize::from(self.kind_word().prefix_bytes)
    }

    /// The words of the page that belong to its owner. No function of this crate changes these
    /// words.
    #[inline]
    pub fn owner_words(&self) -> &'a [AtomicU64; OWNER_WORDS] {
        self.words[WORD_OWNER..].first_chunk().expect("a page is longer than a header")
    }

    /// Number of slots, ghosts included.
    #[inline]
    pub fn slot_count(&self) -> usize {
        usize::from(self.space().slots).min(self.words.len() - NODE_HEADER_WORDS)
    }

    /// Number of ghosts.
    #[inline]
    pub fn ghost_count(&self) -> usize {
        usize::from(self.space().ghosts)
    }

    /// Bytes that are free for insertions, after a compaction.
    pub fn free_bytes(&self) -> usize {
        let space = self.space();
        let used = usize::from(space.slots) * 8 + NODE_HEADER_BYTES;
        let heap = usize::from(space.heap_start) + usize::from(space.garbage);
        (heap * HEAP_UNIT_BYTES).saturating_sub(used)
    }

    /// Appends the lower fence, the smallest key that the node may hold. An empty fence admits
    /// every small key.
    pub fn read_lower_fence(&self, out: &mut Vec<u8>) {
        self.read_fence(self.fences().lower, out);
    }

    /// Appends the upper fence, above all keys of the node. Returns false if there is none.
    pub fn read_upper_fence(&self, out: &mut Vec<u8>) -> bool {
        let upper = self.fences().upper;
        self.read_fence(upper, out);
        upper != Fence::NONE
    }

    /// Whether the node's fences admit the key.
    pub fn covers(&self, key: &[u8]) -> bool {
        let fences = self.fences();
        self.order_of_fence(fences.lower, key) != Ordering::Greater
            && (fences.upper == Fence::NONE
                || self.order_of_fence(fences.upper, key) == Ordering::Greater)
    }

    /// The order of a fence and a key.
    fn order_of_fence(&self, fence: Fence, key: &[u8]) -> Ordering {
        let own = if fence == Fence::NONE { 0 } else { usize::from(fence.bytes) };
        // The last word of a fence is padded with zeros, and so is the last chunk of the key.
        for (index, chunk) in key.chunks(8).enumerate().take(own.div_ceil(8)) {
            let word = self.word(usize::from(fence.start) + index).swap_bytes();
            match word.cmp(&big_endian(chunk)) {
                Ordering::Equal => {}
                order => return order,
            }
        }
        own.cmp(&key.len())
    }

    fn read_fence(&self, fence: Fence, out: &mut Vec<u8>) {
        if fence != Fence::NONE {
            self.read_bytes(usize::from(fence.start), usize::from(fence.bytes), out);
        }
    }

    /// Appends the prefix that all keys of the node have.
    pub fn read_prefix(&self, out: &mut Vec<u8>) {
        let fence = self.fences().lower;
        self.read_bytes(usize::from(fence.start), self.prefix_bytes(), out);
    }

    /// The words that begin with the prefix, and its length in bytes.
    #[inline]
    pub fn prefix_words(&self) -> (&'a [AtomicU64], usize) {
        let (start, bytes) = (usize::from(self.fences().lower.start), self.prefix_bytes());
        (self.words.get(start..start + words::words_for(bytes)).unwrap_or_default(), bytes)
    }

    /// Appends the key of a slot.
    pub fn read_key(&self, slot: usize, out: &mut Vec<u8>) {
        self.read_prefix(out);
        self.read_rest(self.slot(slot), out);
    }

    /// Appends the rest of a slot's key, behind the prefix.
    pub(crate) fn read_rest(&self, slot: Slot, out: &mut Vec<u8>) {
        self.read_bytes(usize::from(slot.start) + 1, usize::from(slot.rest_bytes), out);
    }

    /// Appends the value of a slot. A ghost has its last value as a record.
    pub fn read_value(&self, slot: usize, out: &mut Vec<u8>) {
        let slot = self.slot(slot);
        let bytes = usize::from(self.entry(slot).value_bytes);
        self.read_bytes(value_start(slot), bytes, out);
    }

    /// One word of a slot's value, for values that consist of words.
    #[inline]
    pub fn value_word(&self, slot: usize, index: usize) -> u64 {
        self.word(value_start(self.slot(slot)) + index)
    }

    /// The tag of a slot's value.
    pub fn tag(&self, slot: usize) -> u8 {
        self.entry(self.slot(slot)).tag
    }

    /// Whether the record of a slot is deleted.
    #[inline]
    pub fn is_ghost(&self, slot: usize) -> bool {
        self.entry(self.slot(slot)).flags & ENTRY_GHOST != 0
    }

    /// Bytes that the value of a slot may grow to in its place.
    pub fn capacity_bytes(&self, slot: usize) -> usize {
        usize::from(self.entry(self.slot(slot)).capacity_bytes)
    }

    /// Appends `bytes` bytes from the unit `start` on, as many of them as the page has.
    pub(crate) fn read_bytes(&self, start: usize, bytes: usize, out: &mut Vec<u8>) {
        let from = &self.words[start.min(self.words.len())..];
        words::read(from, 0, bytes.min(from.len() * 8), out);
    }

    #[inline]
    pub(crate) fn kind_word(&self) -> KindWord {
        KindWord::unpack(self.word(WORD_KIND))
    }

    #[inline]
    pub(crate) fn space(&self) -> SpaceWord {
        SpaceWord::unpack(self.word(WORD_SPACE))
    }

    #[inline]
    pub(crate) fn set_space(&self, space: SpaceWord) {
        self.set_word(WORD_SPACE, space.pack());
    }

    #[inline]
    pub(crate) fn fences(&self) -> FencesWord {
        FencesWord::unpack(self.word(WORD_FENCES))
    }

    #[inline]
    pub(crate) fn insertions(&self) -> Insertions {
        Insertions::unpack(self.word(WORD_LAST_CHILD))
    }

    /// The words of the slots, but no more words than the page has.
    #[inline]
    pub(crate) fn slots(&self) -> &'a [AtomicU64] {
        &self.words[NODE_HEADER_WORDS..][..self.slot_count()]
    }

    #[inline]
    pub(crate) fn slot(&self, slot: usize) -> Slot {
        Slot::unpack(self.word(NODE_HEADER_WORDS.saturating_add(slot)))
    }

    #[inline]
    pub(crate) fn entry(&self, slot: Slot) -> EntryWord {
        EntryWord::unpack(self.word(usize::from(slot.start)))
    }

    /// A word of the page; zero beyond its end.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> u64 {
        // Relaxed: a reader without a latch validates the version afterwards.
        self.words.get(at).map_or(0, |word| word.load(Relaxed))
    }

    #[inline]
    pub(crate) fn set_word(&self, at: usize, word: u64) {
        // Relaxed: the writer's latch orders all its stores.
        self.words[at].store(word, Relaxed);
    }

    pub(crate) fn value_bytes_max(&self) -> usize {
        node_value_bytes_max(self.page_bytes())
    }
}

/// Begin of an entry's value, in units.
#[inline]
pub(crate) fn value_start(slot: Slot) -> usize {
    usize::from(slot.start) + 1 + words::words_for(usize::from(slot.rest_bytes))
}

/// Length in bytes of the common prefix of two keys.
pub(crate) fn common_prefix_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
