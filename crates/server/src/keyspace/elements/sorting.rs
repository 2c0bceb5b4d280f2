//! The orders of the elements of a tree.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use stillpoint::KeyHasher;

use super::changes::same_at_start;
use super::tags::{self, SCORE_BYTES, Score};

/// Gives the name in a content.
pub(super) type NameOf = fn(&[u8]) -> &[u8];

/// The hashes that order the elements of a tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashes {
    pub(super) hasher: KeyHasher,
    pub(super) name: NameOf,
    /// Whether the tree is the index of a sorted set. Its elements are in order by tags, which are
    /// the first bits of hashes.
    pub(super) are_tags: bool,
}

impl Hashes {
    /// The hash of a name.
    pub(super) fn of_name(&self, name: &[u8]) -> u64 {
        self.hasher.hash(0, name)
    }

    /// The hashes that the name of an element may have. The first one orders the element.
    pub(super) fn of(&self, content: &[u8]) -> RangeInclusive<u64> {
        if let Some(tag) = tags::tag_in(content).filter(|_| self.are_tags) {
            return tags::hashes_of(tag);
        }
        let hash = self.of_name((self.name)(content));
        if self.are_tags { tags::hashes_of(tags::tag(hash)) } else { hash..=hash }
    }

    /// Whether an element is the sought one. `sought` is a name with its hash. In an index by tags it
    /// is a whole element with the hash of its name.
    pub(super) fn is_sought(&self, content: &[u8], (hash, sought): (u64, &[u8])) -> bool {
        if !self.are_tags {
            return (self.name)(content) == sought;
        }
        match tags::short_parts(content) {
            Some((tag, score)) => tags::tag(hash) == tag && sought.starts_with(&score),
            None => content == sought,
        }
    }
}

/// The order of the elements of a tree.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sorting {
    /// Elements are in the order in which they were put.
    Positions,
    /// Elements are in the order of their bytes.
    Contents,
    /// Elements are in the order of the hashes of their names.
    Hashes(Hashes),
}

impl Sorting {
    /// The place of an element in the order.
    pub(super) fn place<'a>(&self, content: &'a [u8]) -> Cow<'a, [u8]> {
        match self {
            Self::Positions => Cow::Borrowed(&[]),
            Self::Contents => Cow::Borrowed(content),
            Self::Hashes(hashes) => Cow::Owned(hashes.of(content).start().to_be_bytes().to_vec()),
        }
    }

    /// The shortest separator between an element and the next, whose content is `content`. It holds
    /// the score of a sorted set's element whole.
    pub(super) fn separator<'a>(&self, before: &[u8], content: &'a [u8]) -> Cow<'a, [u8]> {
        match self {
            Self::Contents => {
                let bytes = same_at_start(before, content).saturating_add(1);
                Cow::Borrowed(&content[..bytes.max(SCORE_BYTES).min(content.len())])
            }
            _ => self.place(content),
        }
    }
}

/// The score that a separator divides: elements of that score may be on both of its sides.
pub(super) fn divided_score(separator: &[u8]) -> Option<&Score> {
    separator.split_first_chunk().filter(|(_, rest)| !rest.is_empty()).map(|(score, _)| score)
}
