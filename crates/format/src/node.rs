//! Slotted nodes of ordered indexes: positions of header, slots and entries in the words of a page.
//!
//! ```text
//! ┌──────────┬─────────────────┬── free ──┬───────────────────────────────────┐
//! │ header 64│ slot, slot, … → │          │ ← heap: entries, fences, garbage  │
//! └──────────┴─────────────────┴──────────┴───────────────────────────────────┘
//! ```
//! A slot is one word, so that a search reads the slots alone until two keys agree in four bytes.
//! This module knows bits of words. `stillpoint-node` knows what a node means.

/// Bytes of the header.
pub const NODE_HEADER_BYTES: usize = 64;
/// Words of the header.
pub const NODE_HEADER_WORDS: usize = NODE_HEADER_BYTES / 8;
/// Smallest page that holds a node, in bytes.
pub const NODE_BYTES_MIN: usize = 512;
/// Largest page that holds a node, in bytes.
pub const NODE_BYTES_MAX: usize = 64 << 10;
/// Units of the heap, in bytes: offsets and sizes of entries are multiples of it.
pub const HEAP_UNIT_BYTES: usize = 8;

/// The header's word with checksum (low half), kind, level and prefix length.
pub const WORD_KIND: usize = 0;
/// The first of three words that belong to the page's owner: page id; gsn; table and generation.
pub const WORD_OWNER: usize = 1;
/// Number of words that belong to the page's owner.
pub const OWNER_WORDS: usize = 3;
/// The header's word with the number of slots, the number of ghosts, the heap's start and its garbage.
pub const WORD_SPACE: usize = 4;
/// The header's word with the two fences.
pub const WORD_FENCES: usize = 5;
/// The last child of an inner node. In a leaf, the position of the last insertion ([`Insertions`]).
pub const WORD_LAST_CHILD: usize = 6;
/// The number of records below the last child of a counted inner node. Otherwise zero.
pub const WORD_LAST_COUNT: usize = 7;

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Keys and values.
    Leaf,
    /// Separators and children.
    Inner,
    /// Separators and children, each child with the number of records below it.
    CountedInner,
}

impl NodeKind {
    /// The kind with this code; `None` if this build knows no such kind.
    #[inline]
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Leaf, Self::Inner, Self::CountedInner].into_iter().find(|kind| kind.code() == code)
    }

    /// The kind's code in the header, from 1 on.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            Self::Leaf => 1,
            Self::Inner => 2,
            Self::CountedInner => 3,
        }
    }
}

/// The parts of [`WORD_KIND`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindWord {
    /// Checksum of the page. Zero while the page is in memory.
    pub checksum: u32,
    /// Code of the [`NodeKind`].
    pub kind: u8,
    /// Height above the leaves, which have level 0.
    pub level: u8,
    /// Length in bytes of the prefix that all keys of the node have.
    pub prefix_bytes: u16,
}

impl KindWord {
    /// The parts of a word.
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        Self {
            checksum: word as u32,
            kind: (word >> 32) as u8,
            level: (word >> 40) as u8,
            prefix_bytes: (word >> 48) as u16,
        }
    }

    /// The word.
    #[inline]
    pub const fn pack(self) -> u64 {
        self.checksum as u64
            | (self.kind as u64) << 32
            | (self.level as u64) << 40
            | (self.prefix_bytes as u64) << 48
    }
}

/// The parts of [`WORD_SPACE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceWord {
    /// Number of slots, ghosts included.
    pub slots: u16,
    /// Number of slots whose entry is a ghost.
    pub ghosts: u16,
    /// Begin of the heap, in units from the start of the page.
    pub heap_start: u16,
    /// Units of the heap that no slot and no fence uses.
    pub garbage: u16,
}

impl SpaceWord {
    /// The parts of a word.
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        Self {
            slots: word as u16,
            ghosts: (word >> 16) as u16,
            heap_start: (word >> 32) as u16,
            garbage: (word >> 48) as u16,
        }
    }

    /// The word.
    #[inline]
    pub const fn pack(self) -> u64 {
        self.slots as u64
            | (self.ghosts as u64) << 16
            | (self.heap_start as u64) << 32
            | (self.garbage as u64) << 48
    }
}

/// Position of a fence key in the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Begin of the key's bytes, in units from the start of the page. Zero means that there is no
    /// such fence.
    pub start: u16,
    /// Length of the key in bytes.
    pub bytes: u16,
}

impl Fence {
    /// No fence: the node is open to this side.
    pub const NONE: Self = Self { start: 0, bytes: 0 };
}

/// The parts of [`WORD_FENCES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FencesWord {
    /// The smallest key that the node may hold.
    pub lower: Fence,
    /// Upper fence: all keys of the node are smaller.
    pub upper: Fence,
}

impl FencesWord {
    /// The parts of a word.
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        Self {
            lower: Fence { start: word as u16, bytes: (word >> 16) as u16 },
            upper: Fence { start: (word >> 32) as u16, bytes: (word >> 48) as u16 },
        }
    }

    /// The word.
    #[inline]
    pub const fn pack(self) -> u64 {
        self.lower.start as u64
            | (self.lower.bytes as u64) << 16
            | (self.upper.start as u64) << 32
            | (self.upper.bytes as u64) << 48
    }
}

/// The position of a leaf's last insertion, and the number of sequential insertions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Insertions {
    /// Slot of the last insertion.
    pub last_slot: u16,
    /// Number of insertions in a row, each of which went behind its predecessor.
    pub ascending: u16,
}

impl Insertions {
    /// The parts of a word.
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        Self { last_slot: word as u16, ascending: (word >> 16) as u16 }
    }

    /// The word.
    #[inline]
    pub const fn pack(self) -> u64 {
        self.last_slot as u64 | (self.ascending as u64) << 16
    }
}

/// One slot: the position of the entry, and the beginning of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Begin of the entry, in units from the start of the page.
    pub start: u16,
    /// Length in bytes of the key's rest, behind the node's prefix.
    pub rest_bytes: u16,
    /// The rest's first four bytes as a big-endian number, padded with zeros.
    pub head: u32,
}

impl Slot {
    /// The parts of a word.
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        Self { start: word as u16, rest_bytes: (word >> 16) as u16, head: (word >> 32) as u32 }
    }

    /// The word.
    #[inline]
    pub const fn pack(self) -> u64 {
        self.start as u64 | (self.rest_bytes as u64) << 16 | (self.head as u64) << 32
    }
}

/// Flag of an entry: the record is deleted, and the entry keeps its place.
pub const ENTRY_GHOST: u8 = 1;
/// Flag of an entry: the value is a [reference](crate::large) to pages of its own.
pub const ENTRY_LARGE: u8 = 2;

/// The first word of an entry. The rest of the key follows, padded with zeros to whole words. The
/// value follows the rest, and begins at a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryWord {
    /// Length of the value in bytes.
    pub value_bytes: u16,
    /// Bytes that the value may grow to in its place; a multiple of 8.
    pub capacity_bytes: u16,
    /// The tag that the user gave the value.
    pub tag: u8,
    /// [`ENTRY_GHOST`], [`ENTRY_LARGE`], both, or neither.
    pub flags: u8,
}

impl EntryWord {
    /// The parts of a word.
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        Self {
            value_bytes: word as u16,
            capacity_bytes: (word >> 16) as u16,
            tag: (word >> 32) as u8,
            flags: (word >> 40) as u8,
        }
    }

    /// The word, whose last two bytes are zero.
    #[inline]
    pub const fn pack(self) -> u64 {
        self.value_bytes as u64
            | (self.capacity_bytes as u64) << 16
            | (self.tag as u64) << 32
            | (self.flags as u64) << 40
    }
}

/// Words of an entry whose key's rest and value's capacity have these lengths in bytes.
#[inline]
pub const fn entry_words(rest_bytes: usize, capacity_bytes: usize) -> usize {
    1 + rest_bytes.div_ceil(8) + capacity_bytes.div_ceil(8)
}

/// Longest key, in bytes, of a node of `page_bytes`.
#[inline]
pub const fn node_key_bytes_max(page_bytes: usize) -> usize {
    page_bytes / 8
}

/// Longest value, in bytes, of a node of `page_bytes`.
#[inline]
pub const fn node_value_bytes_max(page_bytes: usize) -> usize {
    page_bytes / 4
}

const _: () = {
    assert!(WORD_LAST_COUNT + 1 == NODE_HEADER_WORDS);
    assert!(WORD_OWNER + OWNER_WORDS == WORD_SPACE);
    // Every number of a page fits its 16 bits; the heap of an empty page starts at its end.
    assert!(NODE_BYTES_MAX / HEAP_UNIT_BYTES <= u16::MAX as usize);
    assert!(node_value_bytes_max(NODE_BYTES_MAX) <= u16::MAX as usize);
    // A node without entries takes any entry, whatever its fences.
    let largest =
        entry_words(node_key_bytes_max(NODE_BYTES_MIN), node_value_bytes_max(NODE_BYTES_MIN));
    let fences = 2 * node_key_bytes_max(NODE_BYTES_MIN).div_ceil(8);
    assert!(NODE_HEADER_WORDS + 1 + largest + fences <= NODE_BYTES_MIN / 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_has_the_specified_bits() {
        let kind = KindWord { checksum: 0x0403_0201, kind: 5, level: 6, prefix_bytes: 0x0807 };
        assert_eq!(kind.pack(), 0x0807_0605_0403_0201);
        let space =
            SpaceWord { slots: 0x0201, ghosts: 0x0403, heap_start: 0x0605, garbage: 0x0807 };
        assert_eq!(space.pack(), 0x0807_0605_0403_0201);
        let lower = Fence { start: 0x0201, bytes: 0x0403 };
        let upper = Fence { start: 0x0605, bytes: 0x0807 };
        assert_eq!(FencesWord { lower, upper }.pack(), 0x0807_0605_0403_0201);
        let slot = Slot { start: 0x0201, rest_bytes: 0x0403, head: 0x0807_0605 };
        assert_eq!(slot.pack(), 0x0807_0605_0403_0201);
        let entry = EntryWord { value_bytes: 0x0201, capacity_bytes: 0x0403, tag: 5, flags: 6 };
        assert_eq!(entry.pack(), 0x0605_0403_0201);
        let insertions = Insertions { last_slot: 0x0201, ascending: 0x0403 };
        assert_eq!(insertions.pack(), 0x0403_0201);
    }

    #[test]
    fn words_are_the_same_after_unpacking_and_packing() {
        for word in [0, u64::MAX, 0x0807_0605_0403_0201, 1 << 63] {
            assert_eq!(KindWord::unpack(word).pack(), word);
            assert_eq!(SpaceWord::unpack(word).pack(), word);
            assert_eq!(FencesWord::unpack(word).pack(), word);
            assert_eq!(Slot::unpack(word).pack(), word);
            assert_eq!(EntryWord::unpack(word).pack(), word & 0xffff_ffff_ffff);
            assert_eq!(Insertions::unpack(word).pack(), word & 0xffff_ffff);
        }
    }

    #[test]
    fn kinds_have_codes_of_their_own() {
        for kind in [NodeKind::Leaf, NodeKind::Inner, NodeKind::CountedInner] {
            assert_eq!(NodeKind::from_code(kind.code()), Some(kind));
        }
        assert_eq!(NodeKind::from_code(0), None);
        assert_eq!(NodeKind::from_code(4), None);
    }
}
