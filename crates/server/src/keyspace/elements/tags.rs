//! Short elements of the index of a sorted set (`members`).

use std::ops::RangeInclusive;

/// Bits of a hash that a tag has. Unit tests have shorter tags, so that members share them.
const TAG_BITS: u32 = if cfg!(test) { 9 } else { 27 };
/// Bits of a hash behind its tag.
const REST_BITS: u32 = u64::BITS - TAG_BITS;
/// The byte before a tag.
const SHORT: u8 = 0;
/// The first byte of a tag is this one at most. No score begins with 0 and such a byte.
const TAG_BYTE_MAX: u8 = 7;
/// Bytes of a score that a content begins with.
pub(super) const SCORE_BYTES: usize = 8;
/// The score at the beginning of a content.
pub(super) type Score = [u8; SCORE_BYTES];

/// The tag of a hash.
pub(super) fn tag(hash: u64) -> u32 {
    (hash >> REST_BITS) as u32
}

/// The hashes of a tag.
pub(super) fn hashes_of(tag: u32) -> RangeInclusive<u64> {
    let first = u64::from(tag) << REST_BITS;
    first..=first | ((1 << REST_BITS) - 1)
}

/// The tag of a short element; `None` for a whole one.
pub(super) fn tag_in(content: &[u8]) -> Option<u32> {
    match content {
        [SHORT, tag @ ..] if tag.first().is_some_and(|first| *first <= TAG_BYTE_MAX) => {
            tag.first_chunk().map(|tag| u32::from_be_bytes(*tag))
        }
        _ => None,
    }
}

/// The tag and the score of a short element; `None` for a whole one.
pub(super) fn short_parts(content: &[u8]) -> Option<(u32, Score)> {
    let tag = tag_in(content)?;
    let (mut score, bytes) = ([0; SCORE_BYTES], content.get(1 + size_of::<u32>()..)?);
    score.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some((tag, score))
}

/// The short element for a tag and a content.
pub(super) fn short(tag: u32, content: &[u8]) -> Vec<u8> {
    let score = &content[..SCORE_BYTES.min(content.len())];
    let kept = score.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    [&[SHORT][..], &tag.to_be_bytes(), &score[..kept]].concat()
}

#[cfg(test)]
pub(super) mod tests;
