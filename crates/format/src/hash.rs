//! The keyed hash of a key, used by index, checkpoint partitions and parallel replay.
//!
//! A folded multiply in the manner of wyhash (Wang Yi, "wyhash", 2019; public domain). Every
//! constant that is mixed with key bytes comes from a secret seed. So a client that does not know
//! the seed cannot aim keys at one bucket. The hash is fast and well mixed, and no cryptographic
//! hash.
//!
//! The partitions of checkpoints on disk depend on this hash. So its definition is part of the
//! format (`docs/formats.md`, "Key hash") and never changes within a format version.

use crate::PARTITIONS_LOG2_MAX;

/// Step of the SplitMix64 generator that turns the seed into three secrets.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
/// Spreads the table number over the word.
const TABLE_FACTOR: u64 = 0x9FB2_1C65_1E98_DF25;

/// Hashes keys of one store. A hasher is a few words and may be copied freely.
///
/// ```
/// use stillpoint_format::hash::{KeyHasher, partition_of};
/// let hasher = KeyHasher::new(42);
/// let hash = hasher.hash(1, b"user:1000");
/// assert_eq!(hash, hasher.hash(1, b"user:1000"));
/// assert_ne!(hash, hasher.hash(2, b"user:1000"));
/// assert!(partition_of(hash, 6) < 64);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHasher {
    seed: u64,
    k0: u64,
    k1: u64,
    k2: u64,
}

impl KeyHasher {
    /// The hasher of the store whose MANIFEST holds this seed.
    pub const fn new(seed: u64) -> Self {
        KeyHasher {
            seed,
            k0: split_mix(seed.wrapping_add(GOLDEN)),
            k1: split_mix(seed.wrapping_add(GOLDEN.wrapping_mul(2))),
            k2: split_mix(seed.wrapping_add(GOLDEN.wrapping_mul(3))) | 1,
        }
    }

    /// The seed from which this hasher was made.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The 64-bit hash of a key of a table. All 64 bits are equally good.
    #[inline]
    pub fn hash(&self, table: u16, key: &[u8]) -> u64 {
        let mut lane = self.k1 ^ u64::from(table).wrapping_mul(TABLE_FACTOR);
        let len = key.len();
        let (a, b) = if let Some(first) = key.first_chunk::<8>() {
            if len > 16 {
                lane = self.absorb(lane, key);
            }
            // Up to 16 bytes: first and last word, overlapping. Beyond: the last 16 bytes.
            let a = if len > 16 { word(&key[len - 16..]) } else { u64::from_le_bytes(*first) };
            (a, word(&key[len - 8..]))
        } else if let Some(first) = key.first_chunk::<4>() {
            let last = key.last_chunk::<4>().unwrap_or(first);
            (u64::from(u32::from_le_bytes(*first)), u64::from(u32::from_le_bytes(*last)))
        } else if len > 0 {
            let bytes = [key[0], key[len / 2], key[len - 1], 0];
            (u64::from(u32::from_le_bytes(bytes)), 0)
        } else {
            (0, 0)
        };
        let mixed = fold(a ^ self.k0, b ^ lane);
        fold(mixed ^ len as u64, self.k2)
    }

    /// Folds whole 16-byte blocks into the lane until at most 16 bytes are left.
    fn absorb(&self, mut lane: u64, mut key: &[u8]) -> u64 {
        while key.len() > 16 {
            lane = fold(word(key) ^ self.k0, word(&key[8..]) ^ lane);
            key = &key[16..];
        }
        lane
    }
}

/// The partition of a hash: its top `partitions_log2` bits.
///
/// `partitions_log2` is at most [`PARTITIONS_LOG2_MAX`]; more is taken as that.
#[inline]
pub fn partition_of(hash: u64, partitions_log2: u8) -> u32 {
    let bits = u32::from(partitions_log2.min(PARTITIONS_LOG2_MAX));
    // Two shifts, since one by 64 (no partitions) would overflow. At most 16 bits remain.
    ((hash >> 1) >> (63 - bits)) as u32
}

/// The 128-bit product, its halves combined by exclusive or.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk::<8>().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

/// The output function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
const fn split_mix(state: u64) -> u64 {
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
