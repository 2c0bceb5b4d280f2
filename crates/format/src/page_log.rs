//! Records of paged tables: the bytes that the kind of table gives to an operation or an undo of the log.
//!
//! ```text
//! code 1, then …
//! 1 change: page 8, key, value before, value after
//! 2 undo:   page 8, key, 1 if the key had a value before else 0, value after
//! 3 split:  left 8, right 8, parent 8, separator, image of the right page
//! 4 raise:  root 8, child 8, image of the child
//! 5 kept:   nothing
//! 6 purge:  page 8, slots 2 each, ascending
//! 7 large:  page 8, level 1, bytes behind the header
//! 8 freed:  page 8
//! 9 merge:  left 8, right 8, parent 8, separator, image of the left page
//! 10 patch:   page 8, key, for each range: offset 2, length 2, bytes before, bytes after
//! 11 restore: page 8, key, for each range: offset 2, length 2, bytes
//! 12 load:    as split
//!
//! key, separator: length 2, bytes     value: 0, or 1, tag 1, length 4, bytes
//!                                            or 2, tag 1, length 4, reference of a large value
//! image: words at the begin 2, first word of the heap 2, both parts as words of 8 bytes
//! ```
//! A change holds the value before it, so its undo needs nothing else. A *patch* is a change of some bytes of
//! a value, whose length and tag stay. The undo of a patch *restores* these bytes. Changes of structure are not
//! undone. The record *kept* stands for their undo. A *load* is a split of the last leaf behind all its
//! records, and the new leaf has further ones. A page of a [large value](crate::large) has one record.
//! The undo of that record frees the page.

mod ranges;

pub use ranges::{PatchedRange, PatchedRanges};

use crate::bytes::Cursor;
use crate::error::{DecodeCause, DecodeError};
use crate::large::{LARGE_LEVEL_MAX, LargeReference};
use crate::node::{NODE_BYTES_MAX, NODE_HEADER_WORDS};

const WHAT: &str = "record of a paged table";

const CHANGE: u8 = 1;
const UNDO: u8 = 2;
const SPLIT: u8 = 3;
const RAISE: u8 = 4;
const KEPT: u8 = 5;
const PURGE: u8 = 6;
const LARGE: u8 = 7;
const FREED: u8 = 8;
const MERGE: u8 = 9;
const PATCH: u8 = 10;
const RESTORE: u8 = 11;
const LOAD: u8 = 12;

const ABSENT: u8 = 0;
const PRESENT: u8 = 1;
const PRESENT_LARGE: u8 = 2;

/// A value as a leaf has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredValue<'a> {
    /// The tag.
    pub tag: u8,
    /// The bytes. Those of a [reference](crate::large::LargeReference) if the value is large.
    pub bytes: &'a [u8],
    /// Whether the value has pages of its own.
    pub is_large: bool,
}

impl<'a> StoredValue<'a> {
    /// A value that lies in its leaf.
    pub const fn in_leaf(tag: u8, bytes: &'a [u8]) -> Self {
        Self { tag, bytes, is_large: false }
    }

    /// Where the bytes are, if the value is large.
    pub fn reference(&self) -> Option<LargeReference> {
        if self.is_large { LargeReference::unpack(self.bytes) } else { None }
    }
}

/// The value of a key. `None` for a key without one.
pub type LoggedValue<'a> = Option<StoredValue<'a>>;

/// What an undo of a record has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToUndo<'a> {
    /// The key gets the value before the change.
    Change {
        /// The key.
        key: &'a [u8],
        /// The value before.
        before: LoggedValue<'a>,
        /// Whether the key has a value after the change.
        has: bool,
    },
    /// Some bytes of the value of a key become those before.
    Patch {
        /// The key.
        key: &'a [u8],
        /// The bytes.
        ranges: PatchedRanges<'a>,
    },
    /// Nothing: a change of structure stays.
    Structure,
    /// The page of a large value is freed.
    Large {
        /// The page.
        page: u64,
    },
}

/// A record of a paged table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageRecord<'a> {
    /// A key got another value, or lost it.
    Change {
        /// The page that had the key.
        page: u64,
        /// The key.
        key: &'a [u8],
        /// The value before.
        before: LoggedValue<'a>,
        /// The value after.
        after: LoggedValue<'a>,
    },
    /// A key got back what it had before a change.
    Undo {
        /// The page that had the key.
        page: u64,
        /// The key.
        key: &'a [u8],
        /// Whether the key had a value before the undo.
        had: bool,
        /// The value that it has again.
        after: LoggedValue<'a>,
    },
    /// The entries of a page from a separator on went to a new page.
    Split {
        /// The page that was split.
        left: u64,
        /// The new page.
        right: u64,
        /// The parent of both.
        parent: u64,
        /// The key between both.
        separator: &'a [u8],
        /// Content of the new page.
        image: PageImage<'a>,
    },
    /// A leaf with further records has come behind the last leaf.
    Load {
        /// The leaf that was the last one.
        left: u64,
        /// The new leaf.
        right: u64,
        /// The parent of both.
        parent: u64,
        /// The key between both.
        separator: &'a [u8],
        /// Content of the new leaf.
        image: PageImage<'a>,
    },
    /// The content of a root went to a new page, the only child of the root.
    Raise {
        /// The root.
        root: u64,
        /// The new page.
        child: u64,
        /// Content of the new page.
        image: PageImage<'a>,
    },
    /// A change of structure stays, although its transaction has aborted.
    Kept,
    /// Deleted records have lost their places in a leaf.
    Purge {
        /// The leaf.
        page: u64,
        /// Their slots before the purge, in ascending order, each as a little-endian number.
        slots: &'a [u8],
    },
    /// A page of a large value was written.
    Large {
        /// The page.
        page: u64,
        /// Height above the pages of bytes.
        level: u8,
        /// The bytes behind the header: those of the value, or numbers of pages.
        bytes: &'a [u8],
    },
    /// A page of a large value is free again, since its transaction has aborted.
    Freed {
        /// The page.
        page: u64,
    },
    /// The entries of a page went to its left neighbour, and the page is free.
    Merge {
        /// The page that has all entries.
        left: u64,
        /// The page that is free.
        right: u64,
        /// The parent of both.
        parent: u64,
        /// The key that was between both.
        separator: &'a [u8],
        /// Content of the left page.
        image: PageImage<'a>,
    },
    /// Some bytes of the value of a key have changed.
    Patch {
        /// The page that had the key.
        page: u64,
        /// The key.
        key: &'a [u8],
        /// The bytes.
        ranges: PatchedRanges<'a>,
    },
    /// Some bytes of the value of a key are again what they were before a patch.
    Restore {
        /// The page that had the key.
        page: u64,
        /// The key.
        key: &'a [u8],
        /// The bytes, as *before*.
        ranges: PatchedRanges<'a>,
    },
}

/// The words of a page, without the unused ones between slots and heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageImage<'a> {
    /// Words at the begin of the page: header and slots, as little-endian bytes.
    pub head: &'a [u8],
    /// Number of the first word of the heap.
    pub heap_start: u16,
    /// The words of the heap, as little-endian bytes.
    pub heap: &'a [u8],
}

fn put_key(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(key);
}

fn put_value(out: &mut Vec<u8>, value: LoggedValue<'_>) {
    let Some(StoredValue { tag, bytes, is_large }) = value else { return out.push(ABSENT) };
    out.extend_from_slice(&[if is_large { PRESENT_LARGE } else { PRESENT }, tag]);
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_pages(out: &mut Vec<u8>, code: u8, pages: &[u64]) {
    out.push(code);
    pages.iter().for_each(|page| out.extend_from_slice(&page.to_le_bytes()));
}

impl PageImage<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&((self.head.len() / 8) as u16).to_le_bytes());
        out.extend_from_slice(&self.heap_start.to_le_bytes());
        out.extend_from_slice(self.head);
        out.extend_from_slice(self.heap);
    }
}

impl<'a> PageRecord<'a> {
    /// Appends the record's bytes. Keys have at most 65,535 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Change { page, key, before, after } => {
                put_pages(out, CHANGE, &[*page]);
                put_key(out, key);
                put_value(out, *before);
                put_value(out, *after);
            }
            Self::Undo { page, key, had, after } => {
                put_pages(out, UNDO, &[*page]);
                put_key(out, key);
                out.push(u8::from(*had));
                put_value(out, *after);
            }
            Self::Split { left, right, parent, separator, image } => {
                put_pages(out, SPLIT, &[*left, *right, *parent]);
                put_key(out, separator);
                image.encode(out);
            }
            Self::Load { left, right, parent, separator, image } => {
                put_pages(out, LOAD, &[*left, *right, *parent]);
                put_key(out, separator);
                image.encode(out);
            }
            Self::Raise { root, child, image } => {
                put_pages(out, RAISE, &[*root, *child]);
                image.encode(out);
            }
            Self::Kept => out.push(KEPT),
            Self::Purge { page, slots } => {
                put_pages(out, PURGE, &[*page]);
                out.extend_from_slice(slots);
            }
            Self::Large { page, level, bytes } => {
                put_pages(out, LARGE, &[*page]);
                out.push(*level);
                out.extend_from_slice(bytes);
            }
            Self::Freed { page } => put_pages(out, FREED, &[*page]),
            Self::Merge { left, right, parent, separator, image } => {
                put_pages(out, MERGE, &[*left, *right, *parent]);
                put_key(out, separator);
                image.encode(out);
            }
            Self::Patch { page, key, ranges } => {
                put_pages(out, PATCH, &[*page]);
                put_key(out, key);
                out.extend_from_slice(ranges.bytes);
            }
            Self::Restore { page, key, ranges } => {
                put_pages(out, RESTORE, &[*page]);
                put_key(out, key);
                ranges.put_before(out);
            }
        }
    }

    /// The pages that the record changes, but for those that it makes or frees.
    pub fn changed_pages(&self) -> [Option<u64>; 2] {
        match *self {
            Self::Change { page, .. }
            | Self::Undo { page, .. }
            | Self::Patch { page, .. }
            | Self::Restore { page, .. }
            | Self::Purge { page, .. } => [Some(page), None],
            Self::Split { left, parent, .. }
            | Self::Load { left, parent, .. }
            | Self::Merge { left, parent, .. } => [Some(left), Some(parent)],
            Self::Raise { root, .. } => [Some(root), None],
            Self::Kept | Self::Large { .. } | Self::Freed { .. } => [None, None],
        }
    }

    /// The page of a record in these bytes that concerns no other one. `None` for records of other sorts.
    pub fn only_page(bytes: &[u8]) -> Option<u64> {
        let (code, rest) = bytes.split_first()?;
        let is_of_one = matches!(*code, CHANGE | UNDO | PURGE | LARGE | FREED | PATCH | RESTORE);
        let page = rest.first_chunk::<8>().filter(|_| is_of_one)?;
        Some(u64::from_le_bytes(*page))
    }

    /// Appends the record of a change: a patch, if it is shorter than both values.
    pub fn encode_change(
        page: u64,
        key: &[u8],
        [before, after]: [LoggedValue<'_>; 2],
        out: &mut Vec<u8>,
    ) {
        if let (Some(old), Some(new)) = (before, after)
            && old.bytes.len() == new.bytes.len()
            && old.bytes.len() <= usize::from(u16::MAX)
            && (old.tag, old.is_large, new.is_large) == (new.tag, false, false)
        {
            let start = out.len();
            put_pages(out, PATCH, &[page]);
            put_key(out, key);
            let begin = out.len();
            PatchedRanges::put_between(old.bytes, new.bytes, out);
            if out.len() - begin < 2 * old.bytes.len() {
                return;
            }
            out.truncate(start);
        }
        PageRecord::Change { page, key, before, after }.encode(out);
    }

    /// The record in these bytes.
    ///
    /// # Errors
    /// The bytes are no such record.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut rest = Cursor::new(bytes, 0, WHAT);
        let record = match rest.u8()? {
            CHANGE => Self::Change {
                page: rest.u64()?,
                key: key(&mut rest)?,
                before: value(&mut rest)?,
                after: value(&mut rest)?,
            },
            UNDO => Self::Undo {
                page: rest.u64()?,
                key: key(&mut rest)?,
                had: flag(&mut rest)?,
                after: value(&mut rest)?,
            },
            SPLIT => Self::Split {
                left: rest.u64()?,
                right: rest.u64()?,
                parent: rest.u64()?,
                separator: key(&mut rest)?,
                image: image(&mut rest)?,
            },
            LOAD => Self::Load {
                left: rest.u64()?,
                right: rest.u64()?,
                parent: rest.u64()?,
                separator: key(&mut rest)?,
                image: image(&mut rest)?,
            },
            RAISE => {
                Self::Raise { root: rest.u64()?, child: rest.u64()?, image: image(&mut rest)? }
            }
            KEPT => Self::Kept,
            PURGE => Self::Purge { page: rest.u64()?, slots: slots(&mut rest)? },
            LARGE => {
                Self::Large { page: rest.u64()?, level: level(&mut rest)?, bytes: all(&mut rest)? }
            }
            FREED => Self::Freed { page: rest.u64()? },
            MERGE => Self::Merge {
                left: rest.u64()?,
                right: rest.u64()?,
                parent: rest.u64()?,
                separator: key(&mut rest)?,
                image: image(&mut rest)?,
            },
            PATCH => Self::Patch {
                page: rest.u64()?,
                key: key(&mut rest)?,
                ranges: PatchedRanges::decode(&mut rest, true)?,
            },
            RESTORE => Self::Restore {
                page: rest.u64()?,
                key: key(&mut rest)?,
                ranges: PatchedRanges::decode(&mut rest, false)?,
            },
            code => {
                let value = u64::from(code);
                return Err(rest.error(DecodeCause::Unknown { field: "code", value }));
            }
        };
        if !rest.is_empty() {
            return Err(rest.error(DecodeCause::Inconsistent("bytes behind a record")));
        }
        Ok(record)
    }
}

impl<'a> ToUndo<'a> {
    /// What the undo of a record needs of its bytes: a begin of them.
    pub fn part_of(record: &'a [u8]) -> &'a [u8] {
        let bytes = match record.first() {
            Some(&CHANGE) => change_part(record).unwrap_or(record.len()),
            Some(&PATCH) => record.len(),
            Some(&LARGE) => 1 + 8,
            _ => 1,
        };
        record.get(..bytes).unwrap_or(record)
    }

    /// Bytes of the record of the undo, for which this is the [part](Self::part_of).
    #[inline]
    pub fn record_bytes(part: &[u8]) -> usize {
        let after_bytes = match part.first() {
            Some(&PATCH) => patch_after_bytes(part).unwrap_or(0),
            _ => 0,
        };
        part.len() - after_bytes
    }

    /// What is to be undone of a record in these bytes, of which only the [part](Self::part_of) is needed.
    ///
    /// # Errors
    /// The bytes are no such record, or that of an undo.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut rest = Cursor::new(bytes, 0, WHAT);
        match rest.u8()? {
            CHANGE => {
                rest.u64()?;
                let (key, before) = (key(&mut rest)?, value(&mut rest)?);
                let has = match rest.u8()? {
                    ABSENT => false,
                    PRESENT | PRESENT_LARGE => true,
                    other => return Err(no_presence(&rest, other)),
                };
                Ok(Self::Change { key, before, has })
            }
            PATCH => {
                rest.u64()?;
                Ok(Self::Patch {
                    key: key(&mut rest)?,
                    ranges: PatchedRanges::decode(&mut rest, true)?,
                })
            }
            SPLIT | LOAD | RAISE | PURGE | MERGE => Ok(Self::Structure),
            LARGE => Ok(Self::Large { page: rest.u64()? }),
            code => {
                let value = u64::from(code);
                Err(rest.error(DecodeCause::Unknown { field: "code of an operation", value }))
            }
        }
    }
}

/// Where the key of a record of one page begins: its length.
const KEY_AT: usize = 1 + 8;

/// Bytes up to the end of the key in a record of one page.
#[inline]
fn key_end(record: &[u8]) -> Option<usize> {
    let key_bytes = u16::from_le_bytes(*record.get(KEY_AT..)?.first_chunk()?);
    Some(KEY_AT + 2 + usize::from(key_bytes))
}

/// Bytes of a change up to the presence of the value after it.
#[inline]
fn change_part(record: &[u8]) -> Option<usize> {
    let before_at = key_end(record)?;
    let (&presence, behind) = record.get(before_at..)?.split_first()?;
    let before_bytes = match presence {
        ABSENT => 1,
        _ => 1 + 1 + 4 + u32::from_le_bytes(*behind.get(1..)?.first_chunk()?) as usize,
    };
    Some(before_at + before_bytes + 1)
}

/// Bytes in the ranges of a patch that are those after it.
#[inline]
fn patch_after_bytes(record: &[u8]) -> Option<usize> {
    PatchedRanges::after_bytes(record.get(key_end(record)?..)?)
}

fn no_presence(rest: &Cursor<'_>, other: u8) -> DecodeError {
    rest.error(DecodeCause::Unknown { field: "presence", value: other.into() })
}

fn key<'a>(rest: &mut Cursor<'a>) -> Result<&'a [u8], DecodeError> {
    let bytes = rest.u16()?;
    rest.take(usize::from(bytes))
}

fn flag(rest: &mut Cursor<'_>) -> Result<bool, DecodeError> {
    match rest.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(no_presence(rest, other)),
    }
}

fn value<'a>(rest: &mut Cursor<'a>) -> Result<LoggedValue<'a>, DecodeError> {
    let is_large = match rest.u8()? {
        ABSENT => return Ok(None),
        PRESENT => false,
        PRESENT_LARGE => true,
        other => return Err(no_presence(rest, other)),
    };
    let (tag, bytes) = (rest.u8()?, rest.u32()?);
    let value = StoredValue { tag, bytes: rest.take(bytes as usize)?, is_large };
    if is_large && value.reference().is_none() {
        return Err(rest.error(DecodeCause::Inconsistent("a reference of another length")));
    }
    Ok(Some(value))
}

fn level(rest: &mut Cursor<'_>) -> Result<u8, DecodeError> {
    let level = rest.u8()?;
    if level <= LARGE_LEVEL_MAX {
        return Ok(level);
    }
    Err(rest.error(DecodeCause::Unknown { field: "level", value: level.into() }))
}

fn all<'a>(rest: &mut Cursor<'a>) -> Result<&'a [u8], DecodeError> {
    rest.take(rest.rest().len())
}

/// Slots in ascending order, which end the record.
fn slots<'a>(rest: &mut Cursor<'a>) -> Result<&'a [u8], DecodeError> {
    let slots = rest.take(rest.rest().len())?;
    let (numbers, odd) = slots.as_chunks::<2>();
    let ascend = numbers.iter().map(|slot| u16::from_le_bytes(*slot)).is_sorted_by(|a, b| a < b);
    if numbers.is_empty() || !odd.is_empty() || !ascend {
        return Err(rest.error(DecodeCause::Inconsistent("slots that do not ascend")));
    }
    Ok(slots)
}

/// An image, which ends the record.
fn image<'a>(rest: &mut Cursor<'a>) -> Result<PageImage<'a>, DecodeError> {
    let (head_words, heap_start) = (rest.u16()?, rest.u16()?);
    let head = rest.take(usize::from(head_words) * 8)?;
    let heap = rest.take(rest.rest().len())?;
    let end = usize::from(heap_start) + heap.len() / 8;
    let is_sound = usize::from(head_words) >= NODE_HEADER_WORDS
        && head_words <= heap_start
        && heap.len().is_multiple_of(8)
        && end <= NODE_BYTES_MAX / 8;
    if !is_sound {
        return Err(rest.error(DecodeCause::Inconsistent("an image that is no page")));
    }
    Ok(PageImage { head, heap_start, heap })
}

#[cfg(test)]
mod tests;
