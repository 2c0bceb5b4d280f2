//! The digest of a call's writes in the record of the call.
//!
//! ```text
//! word    = kind u8 · tag u8 · 0 u16 · length u32
//! place   = offset u32 · number of replaced bytes u32, or deadline u64
//! write   = fold(fold(word ^ A, hash ^ B) ^ bytes, place ^ D)                         of 8 bytes
//! write   = fold(first ^ place, second ^ D) of two lanes, which begin as word ^ A and hash ^ B   of others
//!           and fold blocks of 32 bytes; the last block is that of the last 32 bytes
//! digest  = fold(digest ^ write, C), folded to 32 bits
//! ```
//! A fold is the 128-bit product of two words, its halves combined by exclusive or, as in wyhash (Wang
//! Yi, "wyhash", 2019; public domain). The hash of a write does not wait for those before it, so a
//! processor computes several at a time.

use crate::Label;

const A: u64 = 0xA076_1D64_78BD_642F;
const B: u64 = 0xE703_7ED1_A0B4_28DB;
const C: u64 = 0x8EBC_6AF0_9C88_C6E3;
const D: u64 = 0x5899_65CC_7537_4CC3;
/// Bytes that both lanes take together.
const BLOCK_BYTES: usize = 32;

/// A checksum over what a call writes, in the order in which it writes. A call that is made again must
/// have the same digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WritesDigest(u64);

impl WritesDigest {
    /// The checksum.
    pub fn value(self) -> u32 {
        (self.0 ^ (self.0 >> 32)) as u32
    }

    /// Adds a new value of a key.
    #[inline]
    pub fn put(&mut self, hash: u64, label: impl Into<Label>, value: &[u8]) {
        let Label { tag, deadline } = label.into();
        let kind = if deadline == 0 { 1 } else { 5 };
        self.add((kind, tag), hash, deadline, value);
    }

    /// Adds another deadline of a key, 0 for none.
    pub fn until(&mut self, hash: u64, deadline: u64) {
        self.add((6, 0), hash, deadline, &[]);
    }

    /// Adds the removal of a key's value.
    #[inline]
    pub fn delete(&mut self, hash: u64) {
        self.add((2, 0), hash, 0, &[]);
    }

    /// Adds bytes that overwrite a range of a key's value.
    #[inline]
    pub fn patch(&mut self, hash: u64, offset: usize, bytes: &[u8]) {
        self.add((3, 0), hash, offset as u64 & 0xFFFF_FFFF, bytes);
    }

    /// Adds bytes that replace others in a key's value.
    #[inline]
    pub fn splice(&mut self, hash: u64, offset: usize, removed: usize, bytes: &[u8]) {
        let place = offset as u64 & 0xFFFF_FFFF | (removed as u64) << 32;
        self.add((4, 0), hash, place, bytes);
    }

    #[inline]
    fn add(&mut self, (kind, tag): (u8, u8), hash: u64, place: u64, bytes: &[u8]) {
        let word = u64::from(kind) | u64::from(tag) << 8 | (bytes.len() as u64) << 32;
        let write = hash_of((word ^ A, hash ^ B), place, bytes);
        self.0 = fold(self.0 ^ write, C);
    }
}

/// The hash of a write.
#[inline]
fn hash_of(mut lanes: (u64, u64), place: u64, bytes: &[u8]) -> u64 {
    if let Some(word) = bytes.first_chunk::<8>().filter(|_| bytes.len() == 8) {
        return fold(fold(lanes.0, lanes.1) ^ u64::from_le_bytes(*word), place ^ D);
    }
    let mut rest = bytes;
    while rest.len() > BLOCK_BYTES
        && let Some((block, behind)) = rest.split_first_chunk()
    {
        lanes = add_block(lanes, block);
        rest = behind;
    }
    lanes = match bytes.last_chunk() {
        Some(last) => add_block(lanes, last),
        None => {
            let mut last = [0; BLOCK_BYTES];
            last[..rest.len()].copy_from_slice(rest);
            add_block(lanes, &last)
        }
    };
    fold(lanes.0 ^ place, lanes.1 ^ D)
}

#[inline]
fn add_block((first, second): (u64, u64), block: &[u8; BLOCK_BYTES]) -> (u64, u64) {
    let (words, _) = block.as_chunks::<8>();
    let word = |at: usize| u64::from_le_bytes(words[at]);
    (fold(first ^ word(0), word(1) ^ C), fold(second ^ word(2), word(3) ^ D))
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_differ_in_anything_have_other_digests() {
        let digest = |write: &dyn Fn(&mut WritesDigest)| {
            let mut digest = WritesDigest::default();
            write(&mut digest);
            digest.value()
        };
        let all = [
            digest(&|_| ()),
            digest(&|to| to.put(7, 1, b"value")),
            digest(&|to| to.put(8, 1, b"value")),
            digest(&|to| to.put(7, 2, b"value")),
            digest(&|to| to.put(7, 1, b"valuE")),
            digest(&|to| to.delete(7)),
            digest(&|to| to.put(7, Label { tag: 1, deadline: 9 }, b"value")),
            digest(&|to| to.put(7, Label { tag: 1, deadline: 9 << 32 }, b"value")),
            digest(&|to| to.until(7, 9)),
            digest(&|to| to.until(7, 0)),
            digest(&|to| to.until(8, 0)),
            digest(&|to| to.patch(7, 0, b"value")),
            digest(&|to| to.patch(7, 1, b"value")),
            digest(&|to| to.splice(7, 0, 1, b"value")),
            digest(&|to| to.splice(7, 0, 2, b"value")),
            digest(&|to| {
                to.delete(7);
                to.put(7, 1, b"value");
            }),
            digest(&|to| {
                to.put(7, 1, b"value");
                to.delete(7);
            }),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "number {at}");
        }
    }

    #[test]
    fn each_byte_counts_at_every_length() {
        let of = |bytes: &[u8]| {
            let mut digest = WritesDigest::default();
            digest.put(7, 0, bytes);
            digest.value()
        };
        let mut seen = std::collections::HashSet::new();
        for len in 0..200 {
            let mut bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            assert!(seen.insert(of(&bytes)), "length {len}");
            for at in 0..len {
                bytes[at] ^= 0x40;
                assert!(seen.insert(of(&bytes)), "byte {at} of {len}");
                bytes[at] ^= 0x40;
            }
        }
    }

    /// Logs have these values.
    #[test]
    fn the_digest_never_changes() {
        let mut digest = WritesDigest::default();
        digest.put(0x0123_4567_89AB_CDEF, 3, &[5; 100]);
        digest.patch(42, 8, &[1, 2, 3, 4, 5, 6, 7, 8]);
        digest.splice(42, 4, 2, b"abc");
        digest.delete(7);
        assert_eq!(digest.value(), 0x6113_9420);
    }
}
