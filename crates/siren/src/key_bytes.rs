//! The bytes of a key. Short ones take no memory of their own, so they cost no cache line.

use std::ops::Deref;

/// Longest key that lies in place.
const SHORT_MAX: usize = 22;

/// The bytes of a key.
#[derive(Clone, Debug)]
pub(crate) enum KeyBytes {
    Short { len: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<[u8]>),
}

impl KeyBytes {
    pub(crate) fn new(key: &[u8]) -> Self {
        if key.len() > SHORT_MAX {
            return Self::Long(key.into());
        }
        let mut bytes = [0; SHORT_MAX];
        bytes[..key.len()].copy_from_slice(key);
        Self::Short { len: key.len() as u8, bytes }
    }

    /// Bytes of memory of its own.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Short { .. } => 0,
            Self::Long(bytes) => bytes.len(),
        }
    }
}

impl Deref for KeyBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn keys_of_all_lengths_come_back() {
        assert_eq!(size_of::<KeyBytes>(), 24);
        for len in 0..=2 * SHORT_MAX {
            let key: Vec<u8> = (0..len as u8).collect();
            assert_eq!(*KeyBytes::new(&key), *key, "{len} bytes");
        }
    }
}
