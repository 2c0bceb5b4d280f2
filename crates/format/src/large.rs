//! Values that are too long for a leaf of a paged table. Their bytes lie in pages of their own, and the leaf
//! has a reference.
//!
//! ```text
//! leaf entry ──▶ root ──▶ index page ──▶ page of bytes      reference: root 8, gsn 8, length 8
//!                      └▶ index page ──▶ page of bytes      index page: numbers of pages, 8 each
//! ```
//! A value of one page has that page as its root. All other values have index pages, each with as many
//! numbers as fit. A value is written once and replaced as a whole. So the gsn of its root names it: no
//! other value ever has this root with this gsn.
//!
//! These pages have the header of a [node](crate::node), with a kind of their own. The level of an index page
//! is its height above the bytes. The first half of [`WORD_SPACE`] is the number of bytes behind the header.

use crate::error::{DecodeCause, DecodeError};
use crate::node::{KindWord, NODE_HEADER_BYTES, WORD_KIND, WORD_SPACE};

/// Code of the kind in the header.
pub const LARGE_KIND: u8 = 4;
/// Bytes of a reference.
pub const LARGE_REFERENCE_BYTES: usize = 24;
/// Greatest level of an index page. So many levels hold more than the longest value.
pub const LARGE_LEVEL_MAX: u8 = 3;

/// Bytes that a page holds behind its header: a multiple of 8.
pub const fn large_capacity_bytes(page_bytes: usize) -> usize {
    page_bytes - NODE_HEADER_BYTES
}

/// Where the bytes of a large value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LargeReference {
    /// The page that leads to all others.
    pub root: u64,
    /// The gsn of the root.
    pub gsn: u64,
    /// Length of the value in bytes.
    pub bytes: u64,
}

impl LargeReference {
    /// The bytes of a reference.
    pub fn pack(&self) -> [u8; LARGE_REFERENCE_BYTES] {
        let mut out = [0; LARGE_REFERENCE_BYTES];
        for (to, word) in out.chunks_exact_mut(8).zip([self.root, self.gsn, self.bytes]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// The reference in these bytes. `None` if they have another length.
    pub fn unpack(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LARGE_REFERENCE_BYTES] = bytes.try_into().ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        let [root, gsn, bytes] = [0, 1, 2].map(|at: usize| u64::from_le_bytes(words[at]));
        Some(Self { root, gsn, bytes })
    }
}

/// The header's fields of a page of a large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeHeader {
    /// Height above the pages of bytes, which have level 0.
    pub level: u8,
    /// Bytes behind the header.
    pub bytes: u32,
}

impl LargeHeader {
    /// The words of kind and of space.
    pub const fn pack(self) -> [(usize, u64); 2] {
        let kind = KindWord { checksum: 0, kind: LARGE_KIND, level: self.level, prefix_bytes: 0 };
        [(WORD_KIND, kind.pack()), (WORD_SPACE, self.bytes as u64)]
    }

    /// The fields in these words. `None` if the page is of another kind.
    pub const fn unpack(kind: u64, space: u64) -> Option<Self> {
        let kind = KindWord::unpack(kind);
        match kind.kind {
            LARGE_KIND => Some(Self { level: kind.level, bytes: space as u32 }),
            _ => None,
        }
    }

    /// Checks the fields of a page of so many bytes.
    ///
    /// # Errors
    /// The level, or the number of bytes, is out of range.
    pub fn check(self, page_bytes: usize) -> Result<(), DecodeError> {
        let level_max = u64::from(LARGE_LEVEL_MAX);
        in_range(WORD_KIND, "level", self.level.into(), (0, level_max))?;
        let most = large_capacity_bytes(page_bytes) as u64;
        in_range(WORD_SPACE, "bytes", self.bytes.into(), (1, most))?;
        let is_index = self.level > 0;
        match is_index && !self.bytes.is_multiple_of(8) {
            true => Err(fault(WORD_SPACE, DecodeCause::Inconsistent("a part of a page's number"))),
            false => Ok(()),
        }
    }
}

fn in_range(
    word: usize,
    field: &'static str,
    value: u64,
    (min, max): (u64, u64),
) -> Result<(), DecodeError> {
    match (min..=max).contains(&value) {
        true => Ok(()),
        false => Err(fault(word, DecodeCause::OutOfRange { field, value, min, max })),
    }
}

fn fault(word: usize, cause: DecodeCause) -> DecodeError {
    DecodeError { what: "page of a large value", offset: word as u64 * 8, cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_and_headers_are_the_same_after_packing() {
        let reference = LargeReference { root: 1 << 40, gsn: 77, bytes: u64::MAX };
        assert_eq!(LargeReference::unpack(&reference.pack()), Some(reference));
        assert_eq!(LargeReference::unpack(&[0; 23]), None);
        let header = LargeHeader { level: 2, bytes: 4000 };
        let [(_, kind), (_, space)] = header.pack();
        assert_eq!(LargeHeader::unpack(kind, space), Some(header));
        assert_eq!(LargeHeader::unpack(1 << 32, 7), None, "a leaf");
    }

    #[test]
    fn headers_out_of_range_are_errors() {
        let check = |level, bytes| LargeHeader { level, bytes }.check(4096);
        assert!(check(0, 1).is_ok() && check(3, 4032).is_ok());
        for (level, bytes) in [(4, 8), (0, 0), (0, 4033), (1, 12)] {
            assert!(check(level, bytes).is_err(), "{level} {bytes}");
        }
    }
}
