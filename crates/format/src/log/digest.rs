//! The digest of a call's writes in the record of the call.

use crc32c::crc32c_append;

/// A checksum over what a call writes, in the order in which it writes. A call that is made again must
/// have the same digest.
///
/// The digest is the CRC32C of a sequence of writes (`docs/formats.md`, "Record").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WritesDigest(u32);

impl WritesDigest {
    /// The checksum.
    pub fn value(self) -> u32 {
        self.0
    }

    /// Adds a new value of a key.
    #[inline]
    pub fn put(&mut self, hash: u64, tag: u8, value: &[u8]) {
        self.add((1, tag), hash, (0, 0), value);
    }

    /// Adds the removal of a key's value.
    #[inline]
    pub fn delete(&mut self, hash: u64) {
        self.add((2, 0), hash, (0, 0), &[]);
    }

    /// Adds bytes that overwrite a range of a key's value.
    #[inline]
    pub fn patch(&mut self, hash: u64, offset: usize, bytes: &[u8]) {
        self.add((3, 0), hash, (offset, 0), bytes);
    }

    /// Adds bytes that replace others in a key's value.
    #[inline]
    pub fn splice(&mut self, hash: u64, offset: usize, removed: usize, bytes: &[u8]) {
        self.add((4, 0), hash, (offset, removed), bytes);
    }

    #[inline]
    fn add(
        &mut self,
        (kind, tag): (u8, u8),
        hash: u64,
        (offset, removed): (usize, usize),
        bytes: &[u8],
    ) {
        let mut head = [0; 24];
        (head[0], head[1]) = (kind, tag);
        head[4..8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        head[8..16].copy_from_slice(&hash.to_le_bytes());
        head[16..20].copy_from_slice(&(offset as u32).to_le_bytes());
        head[20..].copy_from_slice(&(removed as u32).to_le_bytes());
        self.0 = crc32c_append(crc32c_append(self.0, &head), bytes);
    }
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
}
