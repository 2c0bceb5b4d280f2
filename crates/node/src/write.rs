//! Changes of single records. No such change frees the space of a record that still has a slot.

use stillpoint_format::node::{
    ENTRY_GHOST, ENTRY_LARGE, EntryWord, Insertions, NODE_HEADER_WORDS, NodeKind, Slot,
    WORD_LAST_CHILD, entry_words, node_key_bytes_max,
};
use stillpoint_mem::words;
use stillpoint_sync::atomic::Ordering::Relaxed;

use crate::error::NodeError;
use crate::node::{Node, value_start};
use crate::search::head_of;

/// The content of an entry, except its key.
#[derive(Clone, Copy)]
pub(crate) struct Content<'v> {
    pub(crate) value: &'v [u8],
    pub(crate) capacity_bytes: usize,
    pub(crate) tag: u8,
    pub(crate) flags: u8,
}

impl<'v> Content<'v> {
    pub(crate) fn record(value: &'v [u8], tag: u8) -> Self {
        Self { value, capacity_bytes: value.len().next_multiple_of(8), tag, flags: 0 }
    }

    fn entry_word(&self) -> EntryWord {
        EntryWord {
            value_bytes: self.value.len() as u16,
            capacity_bytes: self.capacity_bytes as u16,
            tag: self.tag,
            flags: self.flags,
        }
    }
}

impl Node<'_> {
    /// Inserts a record, over a ghost with its key if there is one, and returns its slot. The leaf
    /// must [cover](Self::covers) the key.
    ///
    /// # Errors
    /// [`NodeError::Exists`], [`NodeError::Full`], [`NodeError::KeyTooLong`],
    /// [`NodeError::ValueTooLong`].
    pub fn insert(&self, key: &[u8], value: &[u8], tag: u8) -> Result<usize, NodeError> {
        self.insert_at(self.search(key), key, value, tag)
    }

    /// As [`insert`](Self::insert), where a [search](Self::search) for the key has ended.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_at(
        &self,
        place: Result<usize, usize>,
        key: &[u8],
        value: &[u8],
        tag: u8,
    ) -> Result<usize, NodeError> {
        debug_assert_eq!(self.kind(), Some(NodeKind::Leaf), "records lie in leaves");
        debug_assert!(self.covers(key), "the key belongs into another node");
        debug_assert_eq!(place, self.search(key), "the place is not the key's");
        self.check_value(value)?;
        match place {
            Ok(slot) if self.is_ghost(slot) => {
                self.restore(slot);
                let put = self.put_value(slot, Content::record(value, tag));
                put.inspect_err(|_| self.delete(slot)).map(|()| slot)
            }
            Ok(slot) => Err(NodeError::Exists { slot }),
            Err(slot) => {
                self.put_entry(slot, key, Content::record(value, tag))?;
                self.note_insertion(slot);
                Ok(slot)
            }
        }
    }

    /// Replaces the value and the tag of a record. A shorter value keeps the capacity of the longer
    /// one, so that an undo always finds room.
    ///
    /// # Errors
    /// [`NodeError::Full`], [`NodeError::ValueTooLong`].
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn update(&self, slot: usize, value: &[u8], tag: u8) -> Result<(), NodeError> {
        assert!(slot < self.slot_count(), "no slot {slot}");
        debug_assert!(!self.is_ghost(slot), "update of a ghost");
        self.check_value(value)?;
        self.put_value(slot, Content::record(value, tag))
    }

    /// Overwrites bytes of a record's value from `offset` on.
    ///
    /// # Errors
    /// [`NodeError::PatchBeyondEnd`].
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn patch(&self, slot: usize, offset: usize, patch: &[u8]) -> Result<(), NodeError> {
        assert!(slot < self.slot_count(), "no slot {slot}");
        let slot = self.slot(slot);
        let bytes = usize::from(self.entry(slot).value_bytes);
        let end = offset.saturating_add(patch.len());
        if end > bytes {
            return Err(NodeError::PatchBeyondEnd { end, bytes });
        }
        words::write(&self.words[value_start(slot)..], offset, patch);
        Ok(())
    }

    /// Makes a record a ghost, which keeps its key, value and place.
    ///
    /// # Panics
    /// If there is no such slot, or its record is a ghost already.
    pub fn delete(&self, slot: usize) {
        self.set_ghost(slot, true);
    }

    /// Makes a ghost a record again, as before its deletion.
    ///
    /// # Panics
    /// If there is no such slot, or its record is no ghost.
    pub fn restore(&self, slot: usize) {
        self.set_ghost(slot, false);
    }

    /// Says whether a record's value is a reference to pages of its own. A new value is none.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn set_large(&self, slot: usize, is_large: bool) {
        assert!(slot < self.slot_count(), "no slot {slot}");
        let start = usize::from(self.slot(slot).start);
        let mut entry = EntryWord::unpack(self.word(start));
        entry.flags = if is_large { entry.flags | ENTRY_LARGE } else { entry.flags & !ENTRY_LARGE };
        self.set_word(start, entry.pack());
    }

    /// Removes a record or a ghost, and frees its space. For an index whose operations are never
    /// undone.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn remove(&self, slot: usize) {
        assert!(slot < self.slot_count(), "no slot {slot}");
        if self.is_ghost(slot) {
            self.count_ghosts(-1);
        }
        self.remove_entry(slot);
    }

    fn set_ghost(&self, slot: usize, ghost: bool) {
        assert!(slot < self.slot_count(), "no slot {slot}");
        assert_ne!(self.is_ghost(slot), ghost, "slot {slot} is so already");
        let start = usize::from(self.slot(slot).start);
        let mut entry = EntryWord::unpack(self.word(start));
        entry.flags ^= ENTRY_GHOST;
        self.set_word(start, entry.pack());
        self.count_ghosts(if ghost { 1 } else { -1 });
    }

    fn check_value(&self, value: &[u8]) -> Result<(), NodeError> {
        let (bytes, bytes_max) = (value.len(), self.value_bytes_max());
        if bytes > bytes_max {
            return Err(NodeError::ValueTooLong { bytes, bytes_max });
        }
        Ok(())
    }

    /// Replaces the content of a slot: in place if the capacity suffices, otherwise elsewhere.
    fn put_value(&self, slot: usize, content: Content<'_>) -> Result<(), NodeError> {
        let old = self.slot(slot);
        let capacity_bytes = usize::from(self.entry(old).capacity_bytes);
        if content.value.len() <= capacity_bytes {
            let kept = Content { capacity_bytes, ..content };
            self.set_word(usize::from(old.start), kept.entry_word().pack());
            self.write_value(value_start(old), kept.value);
            return Ok(());
        }
        // The old entry's space counts as free. Otherwise a leaf with one record might have no room
        // for the next value.
        let rest_bytes = usize::from(old.rest_bytes);
        let needed_bytes = entry_words(rest_bytes, content.capacity_bytes) * 8;
        if self.free_bytes() + entry_words(rest_bytes, capacity_bytes) * 8 < needed_bytes {
            return Err(NodeError::Full { needed_bytes });
        }
        let mut key = Vec::new();
        self.read_key(slot, &mut key);
        self.remove_entry(slot);
        self.put_entry(slot, &key, content)
    }

    /// Gives `slot` to a new entry. The slots from there on move by one.
    pub(crate) fn put_entry(
        &self,
        slot: usize,
        key: &[u8],
        content: Content<'_>,
    ) -> Result<(), NodeError> {
        let (bytes, bytes_max) = (key.len(), node_key_bytes_max(self.page_bytes()));
        if bytes > bytes_max {
            return Err(NodeError::KeyTooLong { bytes, bytes_max });
        }
        let rest = key.get(self.prefix_bytes()..).unwrap_or(b"");
        let start = self.allocate(entry_words(rest.len(), content.capacity_bytes), 1)?;
        self.write_entry(start, rest, content);
        let mut space = self.space();
        let first = NODE_HEADER_WORDS + slot;
        let moved = &self.words[first..=NODE_HEADER_WORDS + usize::from(space.slots)];
        for pair in moved.windows(2).rev() {
            // Relaxed: see `set_word`.
            pair[1].store(pair[0].load(Relaxed), Relaxed);
        }
        let (start, rest_bytes) = (start as u16, rest.len() as u16);
        self.set_word(first, Slot { start, rest_bytes, head: head_of(rest) }.pack());
        space.slots += 1;
        self.set_space(space);
        Ok(())
    }

    /// Removes a slot, and frees its entry's space.
    pub(crate) fn remove_entry(&self, slot: usize) {
        let old = self.slot(slot);
        let capacity_bytes = usize::from(self.entry(old).capacity_bytes);
        self.add_garbage(entry_words(usize::from(old.rest_bytes), capacity_bytes));
        let mut space = self.space();
        space.slots -= 1;
        let moved = NODE_HEADER_WORDS + slot..=NODE_HEADER_WORDS + usize::from(space.slots);
        for pair in self.words[moved].windows(2) {
            // Relaxed: see `set_word`.
            pair[0].store(pair[1].load(Relaxed), Relaxed);
        }
        self.set_space(space);
    }

    /// Allocates `needed` words of the heap, and leaves room for `slots` more slots. Returns where
    /// these words begin. May move entries.
    pub(crate) fn allocate(&self, needed: usize, slots: usize) -> Result<usize, NodeError> {
        let needed_bytes = (needed + slots) * 8;
        if self.contiguous_bytes() < needed_bytes {
            if self.free_bytes() < needed_bytes {
                return Err(NodeError::Full { needed_bytes });
            }
            self.compact(|_| false);
        }
        let mut space = self.space();
        space.heap_start -= needed as u16;
        self.set_space(space);
        Ok(usize::from(space.heap_start))
    }

    fn contiguous_bytes(&self) -> usize {
        let space = self.space();
        usize::from(space.heap_start) * 8 - (NODE_HEADER_WORDS + usize::from(space.slots)) * 8
    }

    fn write_entry(&self, start: usize, rest: &[u8], content: Content<'_>) {
        self.set_word(start, content.entry_word().pack());
        words::fill(&self.words[start + 1..], rest);
        self.write_value(start + 1 + words::words_for(rest.len()), content.value);
    }

    fn write_value(&self, start: usize, value: &[u8]) {
        words::fill(&self.words[start..][..words::words_for(value.len())], value);
    }

    pub(crate) fn count_ghosts(&self, difference: i16) {
        let mut space = self.space();
        space.ghosts = space.ghosts.wrapping_add_signed(difference);
        self.set_space(space);
    }

    fn add_garbage(&self, words: usize) {
        let mut space = self.space();
        space.garbage += words as u16;
        self.set_space(space);
    }

    /// Counts ascending insertions, each directly behind the one before.
    fn note_insertion(&self, slot: usize) {
        let before = self.insertions();
        let ascends = slot == usize::from(before.last_slot) + 1;
        let ascending = if ascends { before.ascending.saturating_add(1) } else { 0 };
        let insertions = Insertions { last_slot: slot as u16, ascending };
        self.set_word(WORD_LAST_CHILD, insertions.pack());
    }
}
