//! Ranges of a value that a change has written.
//!
//! ```text
//! for each range: offset 2, length 2, bytes before, bytes after (of an undo: no bytes after)
//! ```

use std::ops::Range;

use crate::bytes::{Cursor, u16_at};
use crate::error::{DecodeCause, DecodeError};

/// Ranges of a value, with the bytes before and after a change. Or with the bytes before alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchedRanges<'a> {
    /// The ranges as bytes.
    pub(super) bytes: &'a [u8],
    pub(super) has_after: bool,
}

/// A range of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchedRange<'a> {
    /// Where the range begins, in bytes from the begin of the value.
    pub offset: usize,
    /// The bytes before the change.
    pub before: &'a [u8],
    /// The bytes after the change, as many. Empty if only those before are known.
    pub after: &'a [u8],
}

impl<'a> PatchedRanges<'a> {
    /// Ranges in ascending order and without overlap, which end the record.
    pub(super) fn decode(rest: &mut Cursor<'a>, has_after: bool) -> Result<Self, DecodeError> {
        let bytes = rest.rest();
        let mut end = 0;
        while !rest.is_empty() {
            let (offset, length) = (rest.u16()?, rest.u16()?);
            if length == 0 || usize::from(offset) < end {
                return Err(rest.error(DecodeCause::Inconsistent("ranges that do not ascend")));
            }
            end = usize::from(offset) + usize::from(length);
            rest.take(usize::from(length) * if has_after { 2 } else { 1 })?;
        }
        Ok(Self { bytes, has_after })
    }

    /// The ranges, in ascending order and without overlap.
    pub fn iter(&self) -> impl Iterator<Item = PatchedRange<'a>> + use<'a> {
        let (mut rest, has_after) = (self.bytes, self.has_after);
        std::iter::from_fn(move || {
            // Decoding has found whole ranges.
            let head = rest.get(..RANGE_HEAD_BYTES)?;
            let (offset, length) = (usize::from(u16_at(head, 0)), usize::from(u16_at(head, 2)));
            let (before, behind) = rest.get(RANGE_HEAD_BYTES..)?.split_at_checked(length)?;
            let (after, behind) = behind.split_at_checked(if has_after { length } else { 0 })?;
            rest = behind;
            Some(PatchedRange { offset, before, after })
        })
    }

    /// Appends the ranges in which two values of one length differ.
    pub(super) fn put_between(before: &[u8], after: &[u8], out: &mut Vec<u8>) {
        let mut open = 0..0;
        let mut put = |range: Range<usize>| {
            if !range.is_empty() {
                out.extend_from_slice(&(range.start as u16).to_le_bytes());
                out.extend_from_slice(&(range.len() as u16).to_le_bytes());
                out.extend_from_slice(&before[range.clone()]);
                out.extend_from_slice(&after[range]);
            }
        };
        let (words, _) = before.as_chunks::<8>();
        let (others, _) = after.as_chunks::<8>();
        let whole =
            words.iter().zip(others).map(|(a, b)| [u64::from_le_bytes(*a), u64::from_le_bytes(*b)]);
        let end = words.len() * 8;
        let rest = [&before[end..], &after[end..]].map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        });
        for (number, [before, after]) in whole.chain([rest]).enumerate() {
            let difference = before ^ after;
            if difference == 0 {
                continue;
            }
            let first = number * 8 + difference.trailing_zeros() as usize / 8;
            let end = number * 8 + 8 - difference.leading_zeros() as usize / 8;
            if first > open.end + GAP_BYTES || open.is_empty() {
                put(std::mem::replace(&mut open, first..end));
            } else {
                open.end = end;
            }
        }
        put(open);
    }

    /// Number of the bytes after the change in these ranges. `None` if they are not whole.
    #[inline]
    pub(super) fn after_bytes(mut ranges: &[u8]) -> Option<usize> {
        let mut bytes = 0;
        while let Some(head) = ranges.get(..RANGE_HEAD_BYTES) {
            let length = usize::from(u16_at(head, 2));
            bytes += length;
            ranges = ranges.get(RANGE_HEAD_BYTES + 2 * length..)?;
        }
        Some(bytes)
    }

    /// Appends the ranges with the bytes before alone.
    pub(super) fn put_before(&self, out: &mut Vec<u8>) {
        for PatchedRange { offset, before, .. } in self.iter() {
            out.extend_from_slice(&(offset as u16).to_le_bytes());
            out.extend_from_slice(&(before.len() as u16).to_le_bytes());
            out.extend_from_slice(before);
        }
    }
}

/// Bytes of a range besides those of the value.
const RANGE_HEAD_BYTES: usize = 4;
/// Most equal bytes between two ranges that are logged as one.
const GAP_BYTES: usize = 2;
