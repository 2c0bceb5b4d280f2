//! Checks that the words of a page are a sound node. Pages from a disk are checked before their
//! use.

use stillpoint_format::large::LARGE_REFERENCE_BYTES;
use stillpoint_format::node::{
    ENTRY_GHOST, ENTRY_LARGE, EntryWord, Fence, HEAP_UNIT_BYTES, NODE_HEADER_WORDS, NodeKind,
    entry_words, node_key_bytes_max,
};
use stillpoint_format::{DecodeCause, DecodeError};
use stillpoint_mem::words;

use crate::node::{Node, common_prefix_bytes};
use crate::search::head_of;

/// A check of one node, with a list of the used words of the heap.
struct Checker<'n, 'a> {
    node: &'n Node<'a>,
    kind: NodeKind,
    /// First word and number of words of every used range of the heap.
    taken: Vec<(usize, usize)>,
    ghosts: usize,
}

impl Node<'_> {
    /// Checks everything that the functions of a node rely on: fences, prefix, and the order of the
    /// keys. The entries must lie in the heap without overlap. Writers may use a node that has
    /// passed.
    ///
    /// # Errors
    /// The first defect. The defect's offset in the page is that of the slot or of the header's
    /// word. The caller adds the page's name.
    pub fn check(&self) -> Result<(), DecodeError> {
        let kind_word = self.kind_word();
        let Some(kind) = self.kind() else {
            let cause = DecodeCause::Unknown { field: "node kind", value: kind_word.kind.into() };
            return Err(fault(0, cause));
        };
        if (kind == NodeKind::Leaf) != (kind_word.level == 0) {
            return Err(fault(0, DecodeCause::Inconsistent("leaves, and only they, have level 0")));
        }
        let mut checker = Checker { node: self, kind, taken: Vec::new(), ghosts: 0 };
        checker.space()?;
        let (lower, upper) = checker.fences()?;
        checker.slots(&lower, upper.as_deref())?;
        checker.heap()
    }
}

fn fault(word: usize, cause: DecodeCause) -> DecodeError {
    DecodeError { what: "node", offset: (word * 8) as u64, cause }
}

fn inconsistent(word: usize, what: &'static str) -> DecodeError {
    fault(word, DecodeCause::Inconsistent(what))
}

fn in_range(
    word: usize,
    field: &'static str,
    value: usize,
    min: usize,
    max: usize,
) -> Result<(), DecodeError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let [value, min, max] = [value, min, max].map(|number| number as u64);
    Err(fault(word, DecodeCause::OutOfRange { field, value, min, max }))
}

impl Checker<'_, '_> {
    fn space(&self) -> Result<(), DecodeError> {
        const AT: usize = stillpoint_format::node::WORD_SPACE;
        let (space, words) = (self.node.space(), self.node.words.len());
        in_range(AT, "number of slots", space.slots.into(), 0, words - NODE_HEADER_WORDS)?;
        let slots_end = NODE_HEADER_WORDS + usize::from(space.slots);
        in_range(AT, "start of the heap", space.heap_start.into(), slots_end, words)
    }

    /// The fences, after a check of their order and of the prefix.
    fn fences(&mut self) -> Result<(Vec<u8>, Option<Vec<u8>>), DecodeError> {
        const AT: usize = stillpoint_format::node::WORD_FENCES;
        let fences = self.node.fences();
        for fence in [fences.lower, fences.upper] {
            if fence == Fence::NONE {
                continue;
            }
            let bytes = usize::from(fence.bytes);
            in_range(AT, "fence length", bytes, 1, node_key_bytes_max(self.node.page_bytes()))?;
            self.take(AT, fence.start.into(), words::words_for(bytes))?;
        }
        let (lower, upper) = self.node.fence_keys();
        for (fence, key) in
            [(fences.lower, &lower[..]), (fences.upper, upper.as_deref().unwrap_or(b""))]
        {
            let words = &self.node.words[usize::from(fence.start)..][..words::words_for(key.len())];
            if !words::starts_with(words, key) {
                return Err(inconsistent(AT, "a fence that is not padded with zeros"));
            }
        }
        if upper.as_ref().is_some_and(|upper| *upper <= lower) {
            return Err(inconsistent(AT, "the upper fence is not above the lower one"));
        }
        let prefix = upper.as_ref().map_or(0, |upper| common_prefix_bytes(&lower, upper));
        in_range(0, "prefix length", self.node.prefix_bytes(), prefix, prefix)?;
        Ok((lower, upper))
    }

    fn slots(&mut self, lower: &[u8], upper: Option<&[u8]>) -> Result<(), DecodeError> {
        let (mut key, mut before) = (Vec::new(), Vec::new());
        for slot in 0..self.node.slot_count() {
            let at = NODE_HEADER_WORDS + slot;
            self.entry(at, slot)?;
            key.clear();
            self.node.read_key(slot, &mut key);
            if key.as_slice() < lower || upper.is_some_and(|upper| key.as_slice() >= upper) {
                return Err(inconsistent(at, "a key outside of the fences"));
            }
            if slot > 0 && key <= before {
                return Err(inconsistent(at, "keys that do not ascend"));
            }
            std::mem::swap(&mut key, &mut before);
        }
        let ghosts = self.node.ghost_count();
        in_range(stillpoint_format::node::WORD_SPACE, "ghosts", ghosts, self.ghosts, self.ghosts)
    }

    /// Lengths, flags, head and padding of one entry.
    fn entry(&mut self, at: usize, index: usize) -> Result<(), DecodeError> {
        let node = self.node;
        let slot = node.slot(index);
        let start = usize::from(slot.start);
        in_range(
            at,
            "start of the entry",
            start,
            node.space().heap_start.into(),
            node.words.len() - 1,
        )?;
        let entry = node.entry(slot);
        if entry.pack() != node.word(start) || entry.flags & !(ENTRY_GHOST | ENTRY_LARGE) != 0 {
            return Err(inconsistent(at, "an entry with unknown flags"));
        }
        let rest_max = node_key_bytes_max(node.page_bytes()).saturating_sub(node.prefix_bytes());
        in_range(at, "length of the key's rest", slot.rest_bytes.into(), 0, rest_max)?;
        self.value(at, entry)?;
        self.take(at, start, entry_words(slot.rest_bytes.into(), entry.capacity_bytes.into()))?;
        let mut rest = Vec::new();
        node.read_rest(slot, &mut rest);
        if head_of(&rest) != slot.head {
            return Err(inconsistent(at, "a head that is not the beginning of its key"));
        }
        if !words::starts_with(&node.words[start + 1..][..words::words_for(rest.len())], &rest) {
            return Err(inconsistent(at, "a key that is not padded with zeros"));
        }
        self.ghosts += usize::from(entry.flags & ENTRY_GHOST != 0);
        Ok(())
    }

    fn value(&self, at: usize, entry: EntryWord) -> Result<(), DecodeError> {
        let (bytes, capacity) = (usize::from(entry.value_bytes), usize::from(entry.capacity_bytes));
        let most = self.node.value_bytes_max().next_multiple_of(HEAP_UNIT_BYTES);
        in_range(at, "capacity of the value", capacity, 0, most)?;
        if !capacity.is_multiple_of(HEAP_UNIT_BYTES) {
            return Err(inconsistent(at, "a capacity that is no multiple of 8"));
        }
        in_range(at, "length of the value", bytes, 0, capacity)?;
        if entry.flags & ENTRY_LARGE != 0 {
            in_range(
                at,
                "reference of a large value",
                bytes,
                LARGE_REFERENCE_BYTES,
                LARGE_REFERENCE_BYTES,
            )?;
        }
        if self.kind != NodeKind::Leaf {
            let child = self.node.child_bytes();
            in_range(at, "length of a child", bytes, child, child)?;
            in_range(at, "flags of a child", entry.flags.into(), 0, 0)?;
        }
        Ok(())
    }

    /// Notes that these words of the heap are in use.
    fn take(&mut self, at: usize, start: usize, count: usize) -> Result<(), DecodeError> {
        let heap_start = usize::from(self.node.space().heap_start);
        in_range(at, "start in the heap", start, heap_start, self.node.words.len())?;
        in_range(at, "end in the heap", start + count, heap_start, self.node.words.len())?;
        self.taken.push((start, count));
        Ok(())
    }

    /// Checks that nothing overlaps, and that the remaining words equal the header's garbage.
    fn heap(mut self) -> Result<(), DecodeError> {
        const AT: usize = stillpoint_format::node::WORD_SPACE;
        self.taken.sort_unstable();
        let mut end = 0;
        for (start, count) in &self.taken {
            if *start < end {
                return Err(inconsistent(AT, "entries that overlap"));
            }
            end = start + count;
        }
        let used: usize = self.taken.iter().map(|(_, count)| count).sum();
        let space = self.node.space();
        let garbage = self.node.words.len() - usize::from(space.heap_start) - used;
        in_range(AT, "garbage", space.garbage.into(), garbage, garbage)
    }
}
