//! The bytes of the nodes of a tree of elements.
//!
//! ```text
//! leaf   element*            element  length of the content (LEB128), content
//! inner  entry*              entry    elements below (u32), node (LEB128),
//!                                     length of the separator (LEB128), separator
//! ```
//! Nothing here panics on damaged bytes: a node ends before an entry that cannot be read.

use crate::keyspace::encoding::{number_at, put_number, put_string, string_at};

/// An element of a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element<'a> {
    /// Where the element begins.
    pub(super) at: usize,
    pub(super) content: &'a [u8],
    /// Where the next element begins.
    pub(super) end: usize,
}

/// An entry of an inner node: a subtree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) at: usize,
    /// Elements of the subtree.
    pub(super) below: u64,
    pub(super) child: u64,
    /// No element of the subtree is before the separator. The first entry of a node has no such bound.
    pub(super) separator: &'a [u8],
    pub(super) end: usize,
}

/// Bytes of `Entry::below`.
const BELOW_BYTES: usize = 4;

/// The elements of a leaf from byte `at` on.
pub(super) fn elements(leaf: &[u8], mut at: usize) -> impl Iterator<Item = Element<'_>> {
    std::iter::from_fn(move || {
        let (content, end) = string_at(leaf, at)?;
        let element = Element { at, content, end };
        at = end;
        Some(element)
    })
}

/// The entries of an inner node from byte `at` on.
pub(super) fn entries(inner: &[u8], mut at: usize) -> impl Iterator<Item = Entry<'_>> {
    std::iter::from_fn(move || {
        let below = inner.get(at..)?.first_chunk::<BELOW_BYTES>()?;
        let (child, next) = number_at(inner, at + BELOW_BYTES)?;
        let (separator, end) = string_at(inner, next)?;
        let below = u64::from(u32::from_le_bytes(*below));
        let entry = Entry { at, below, child, separator, end };
        at = end;
        Some(entry)
    })
}

/// The separator of the entry at `at`, and where the entry ends, if the separator is a hash. Reads three words.
#[inline]
fn hash_entry_at(inner: &[u8], at: usize) -> Option<(u64, usize)> {
    let node = inner.get(at + BELOW_BYTES..)?.first_chunk::<8>()?;
    // The last byte of the node's number is the first one below 0x80.
    let last = !u64::from_le_bytes(*node) & 0x8080_8080_8080_8080;
    let len_at = at + BELOW_BYTES + last.trailing_zeros() as usize / 8 + 1;
    let [8, separator @ ..] = inner.get(len_at..)?.first_chunk::<9>()? else { return None };
    Some((u64::from_be_bytes(*separator), len_at + 9))
}

/// The entry that leads to the leaf of a hash, in an inner node of a tree in the order of hashes. It is the last
/// one that begins there or before, or the first.
pub(super) fn entry_of_hash(inner: &[u8], hash: u64) -> Option<Entry<'_>> {
    let first = entries(inner, 0).next()?;
    let (mut chosen, mut at) = (first.at, first.end);
    while let Some((separator, end)) = hash_entry_at(inner, at)
        && separator <= hash
    {
        (chosen, at) = (at, end);
    }
    entries(inner, chosen).next()
}

/// Appends an entry.
pub(super) fn put_entry(out: &mut Vec<u8>, below: u64, child: u64, separator: &[u8]) {
    out.extend_from_slice(&below_bytes(below));
    put_number(out, child);
    put_string(out, separator);
}

/// Changes the number of elements below the entry at `at`.
pub(super) fn set_below(inner: &mut [u8], at: usize, below: u64) {
    inner[at..at + BELOW_BYTES].copy_from_slice(&below_bytes(below));
}

/// A number of elements as an entry begins with it.
pub(super) fn below_bytes(below: u64) -> [u8; BELOW_BYTES] {
    (below as u32).to_le_bytes()
}

/// Elements below an inner node.
pub(super) fn all_below(inner: &[u8]) -> u64 {
    entries(inner, 0).map(|entry| entry.below).sum()
}

#[cfg(test)]
mod tests {
    use stillpoint_io::{Rng, SeededRng};

    use super::*;

    #[test]
    fn elements_come_back_and_damage_ends_them() {
        let mut bytes = Vec::new();
        put_string(&mut bytes, b"abc");
        put_string(&mut bytes, &[7; 200]);
        assert_eq!(elements(&bytes, 0).map(|e| e.content.len()).collect::<Vec<_>>(), [3, 200]);
        bytes.pop();
        assert_eq!(elements(&bytes, 0).count(), 1);
        assert_eq!(elements(&[0xff; 12], 0).count(), 0);
    }

    #[test]
    fn entries_come_back() {
        let mut inner = Vec::new();
        put_entry(&mut inner, 70_000, 300, b"");
        put_entry(&mut inner, 5, 2, b"separator");
        let all: Vec<_> = entries(&inner, 0).map(|e| (e.below, e.child, e.separator)).collect();
        assert_eq!(all, [(70_000, 300, &b""[..]), (5, 2, b"separator")]);
        let second = entries(&inner, 0).nth(1).map_or(0, |e| e.at);
        set_below(&mut inner, second, 9);
        assert_eq!(all_below(&inner), 70_009);
        inner.truncate(inner.len() - 1);
        assert_eq!(entries(&inner, 0).count(), 1);
    }

    #[test]
    fn a_hash_leads_to_the_last_entry_before_it() {
        let rng = SeededRng::new(3);
        for _ in 0..2_000 {
            let mut separators: Vec<u64> =
                (0..1 + rng.below(60)).map(|_| rng.below(u64::MAX)).collect();
            separators.sort_unstable();
            let mut inner = Vec::new();
            for (i, separator) in separators.iter().enumerate() {
                let separator = separator.to_be_bytes();
                let separator = if i == 0 { &[][..] } else { &separator };
                put_entry(
                    &mut inner,
                    rng.below(1 << 32),
                    rng.below(1 << (7 * rng.below(9))),
                    separator,
                );
            }
            let hash = match rng.below(3) {
                0 => separators[rng.below(separators.len() as u64) as usize],
                _ => rng.below(u64::MAX),
            };
            let found = entry_of_hash(&inner, hash).map(|entry| entry.at);
            let is_behind = |entry: &Entry<'_>| *entry.separator > hash.to_be_bytes()[..];
            let want = entries(&inner, 0).skip(1).take_while(|entry| !is_behind(entry)).last();
            assert_eq!(found, Some(want.map_or(0, |entry| entry.at)));
            inner.truncate(rng.below(inner.len() as u64) as usize);
            entry_of_hash(&inner, hash);
        }
    }
}
