//! The record of a slot, for readers that copy it, and prefetches of what a search will read.

use stillpoint_format::node::{ENTRY_GHOST, ENTRY_LARGE, EntryWord, NODE_HEADER_WORDS, Slot};
use stillpoint_mem::{prefetch, words};

use crate::node::{Node, value_start};
use crate::search::{AROUND, Near};

/// Words of a cache line.
const LINE_WORDS: usize = 8;
/// Words of a record that are prefetched.
const RECORD_WORDS: usize = 3 * LINE_WORDS;

/// The record of a slot: the words of slot and entry as they were read.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    node: Node<'a>,
    slot: Slot,
    entry: EntryWord,
}

impl<'a> Node<'a> {
    /// The record of a slot, a ghost too.
    #[inline]
    pub fn record(&self, slot: usize) -> Record<'a> {
        let slot = self.slot(slot);
        Record { node: *self, slot, entry: self.entry(slot) }
    }

    /// Prefetches the header, and the slots up to this number.
    #[inline]
    pub fn prefetch_head(&self, slots: usize) {
        self.prefetch_words(0, NODE_HEADER_WORDS + slots);
    }

    /// Prefetches the slots around a likely place, among which a search begins. The header has been read.
    #[inline]
    pub fn prefetch_near(&self, near: Near) {
        let slot = NODE_HEADER_WORDS + near.slot(self.slot_count());
        let first = slot.saturating_sub(AROUND + 1) / LINE_WORDS * LINE_WORDS;
        self.prefetch_words(first, slot + AROUND + 1 - first);
    }

    /// Prefetches the record of a slot.
    #[inline]
    pub fn prefetch_record(&self, slot: usize) {
        self.prefetch_words(usize::from(self.slot(slot).start), RECORD_WORDS);
    }

    /// Prefetches the number of a child. Returns the number of its word, for [`child_in`](Self::child_in).
    #[inline]
    pub fn prefetch_child(&self, position: usize) -> usize {
        let start = self.child_start(position);
        self.prefetch_words(start, 1);
        start
    }

    #[inline]
    fn prefetch_words(&self, start: usize, count: usize) {
        let end = (start + count).min(self.words.len());
        for word in self.words.get(start..end).unwrap_or_default().iter().step_by(LINE_WORDS) {
            prefetch(word);
        }
    }
}

impl Record<'_> {
    /// Whether the record is deleted.
    #[inline]
    pub fn is_ghost(&self) -> bool {
        self.entry.flags & ENTRY_GHOST != 0
    }

    /// Whether the value is a reference to pages of its own.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.entry.flags & ENTRY_LARGE != 0
    }

    /// The tag of the value.
    #[inline]
    pub fn tag(&self) -> u8 {
        self.entry.tag
    }

    /// Length in bytes of the key's rest, behind the node's prefix.
    #[inline]
    pub fn rest_bytes(&self) -> usize {
        usize::from(self.slot.rest_bytes)
    }

    /// Length in bytes of the value.
    #[inline]
    pub fn value_bytes(&self) -> usize {
        usize::from(self.entry.value_bytes)
    }

    /// Copies the key's rest, and behind it the first bytes of the value, so many. Writes up to seven bytes
    /// more, which mean nothing, if `out` has room for them.
    #[inline]
    pub fn copy_padded(&self, value_bytes: usize, out: &mut [u8]) {
        let (rest, value) = (usize::from(self.slot.start) + 1, value_start(self.slot));
        let end = value + words::words_for(value_bytes);
        words::copy_whole(self.node.words.get(rest..value).unwrap_or_default(), out);
        let out = out.get_mut(self.rest_bytes()..).unwrap_or_default();
        words::copy_whole(self.node.words.get(value..end).unwrap_or_default(), out);
    }

    /// Appends the key's rest.
    pub fn read_rest(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.rest_bytes(), 0);
        self.copy(usize::from(self.slot.start) + 1, &mut out[start..]);
    }

    /// Appends the value.
    #[inline]
    pub fn read_value(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.value_bytes(), 0);
        self.copy(value_start(self.slot), &mut out[start..]);
    }

    /// Copies bytes from a word on. Words of two states may name bytes beyond the page: those are not
    /// copied.
    #[inline]
    fn copy(&self, start: usize, out: &mut [u8]) {
        let from = self.node.words.get(start..).unwrap_or_default();
        if out.len() <= from.len() * 8 {
            words::read_into(from, 0, out);
        }
    }
}
