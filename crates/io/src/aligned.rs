//! A growable byte buffer at a 4096-byte boundary, for direct I/O.
//!
//! Small buffers lie in a `Vec<u8>` that is one alignment unit too large. The bytes begin at the
//! first boundary inside the vector. Growth aligns and copies the bytes anew. Large buffers lie on
//! huge pages.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::disk::DIRECT_ALIGN;
use crate::huge::{HUGE_PAGE_BYTES, HugeBytes};

/// Bytes that begin at a multiple of [`DIRECT_ALIGN`] in memory, whatever their number.
///
/// ```
/// use stillpoint_io::{AlignedBuf, DIRECT_ALIGN};
/// let mut buf = AlignedBuf::with_capacity(10_000);
/// buf.extend_from_slice(b"block");
/// assert_eq!(buf.pad_to_align(), DIRECT_ALIGN - 5);
/// assert_eq!((buf.len(), &buf[..6]), (DIRECT_ALIGN, &b"block\0"[..]));
/// assert_eq!(buf.as_ptr().addr() % DIRECT_ALIGN, 0);
/// ```
#[derive(Default)]
pub struct AlignedBuf {
    /// The allocation, made for the first byte. All bytes of the allocation are initialised.
    raw: Raw,
    /// Offset of the first boundary in `raw`.
    start: usize,
    len: usize,
}

/// Capacity from which huge pages are used. A buffer of this capacity fills more than half of a
/// huge page.
const HUGE_FROM_BYTES: usize = HUGE_PAGE_BYTES / 2 + 1;

enum Raw {
    Heap(Vec<u8>),
    Huge(HugeBytes),
}

impl Default for Raw {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl Raw {
    /// Zeros with room for `capacity` bytes behind the first boundary, and the boundary's offset.
    fn zeroed(capacity: usize) -> (Self, usize) {
        if capacity >= HUGE_FROM_BYTES
            && let Ok(huge) = HugeBytes::zeroed(capacity)
        {
            return (Self::Huge(huge), 0);
        }
        let raw = vec![0u8; capacity.saturating_add(DIRECT_ALIGN)];
        let address = raw.as_ptr().addr();
        let start = address.next_multiple_of(DIRECT_ALIGN) - address;
        (Self::Heap(raw), start)
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Huge(bytes) => bytes.as_slice(),
        }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Huge(bytes) => bytes.as_mut_slice(),
        }
    }
}

impl AlignedBuf {
    /// An empty buffer that holds no memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty buffer with room for `capacity` bytes, rounded up to whole alignment units.
    ///
    /// # Panics
    /// If the capacity exceeds the address space, as `Vec` does.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut buf = Self::new();
        buf.reserve(capacity);
        buf
    }

    /// A buffer of `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::with_capacity(len);
        buf.len = len; // fresh memory is zero
        buf
    }

    /// Bytes that fit without growing.
    pub fn capacity(&self) -> usize {
        match &self.raw {
            Raw::Heap(bytes) => bytes.len().saturating_sub(DIRECT_ALIGN),
            Raw::Huge(bytes) => bytes.as_slice().len(),
        }
    }

    /// Makes room for `additional` more bytes.
    pub fn reserve(&mut self, additional: usize) {
        let wanted = self.len.saturating_add(additional);
        if wanted <= self.capacity() {
            return;
        }
        // Doubling keeps a run of appends linear in total.
        let capacity = wanted.max(self.capacity().saturating_mul(2));
        let capacity = capacity.checked_next_multiple_of(DIRECT_ALIGN).unwrap_or(usize::MAX);
        let (mut raw, start) = Raw::zeroed(capacity);
        raw.bytes_mut()[start..start + self.len].copy_from_slice(self);
        self.raw = raw;
        self.start = start;
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        let end = self.start + self.len;
        self.raw.bytes_mut()[end..end + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends copies of `byte`, or cuts, until `len` bytes are there.
    pub fn resize(&mut self, len: usize, byte: u8) {
        if len > self.len {
            self.reserve(len - self.len);
            self.raw.bytes_mut()[self.start + self.len..self.start + len].fill(byte);
        }
        self.len = len;
    }

    /// Keeps the first `len` bytes. Changes nothing if the buffer is shorter.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Empties the buffer and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends zeros up to the next multiple of [`DIRECT_ALIGN`]. Returns how many.
    pub fn pad_to_align(&mut self) -> usize {
        let before = self.len;
        self.resize(before.next_multiple_of(DIRECT_ALIGN), 0);
        self.len - before
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.raw.bytes()[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let range = self.start..self.start + self.len;
        &mut self.raw.bytes_mut()[range]
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        let mut copy = Self::with_capacity(self.len);
        copy.extend_from_slice(self);
        copy
    }
}

impl std::io::Write for AlignedBuf {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_aligned(buf: &AlignedBuf) {
        assert!(buf.is_empty() || buf.as_ptr().addr().is_multiple_of(DIRECT_ALIGN));
    }

    #[test]
    fn behaves_as_a_vec_and_stays_aligned() {
        for seed in 0..50 {
            let rng = crate::SeededRng::new(seed);
            let (mut buf, mut mirror) = (AlignedBuf::new(), Vec::new());
            for step in 0..40 {
                let n = crate::Rng::below(&rng, 9000) as usize;
                match crate::Rng::below(&rng, 6) {
                    0 => {
                        buf.clear();
                        mirror.clear();
                    }
                    1 => {
                        buf.truncate(n);
                        mirror.truncate(n);
                    }
                    2 => {
                        buf.resize(n, step);
                        mirror.resize(n, step);
                    }
                    3 => {
                        let padded = buf.pad_to_align();
                        mirror.resize(mirror.len() + padded, 0);
                        assert!(buf.len().is_multiple_of(DIRECT_ALIGN));
                    }
                    _ => {
                        let bytes = vec![step; n];
                        buf.extend_from_slice(&bytes);
                        mirror.extend_from_slice(&bytes);
                    }
                }
                assert_eq!(&*buf, &mirror[..], "seed {seed} step {step}");
                assert_aligned(&buf);
            }
            assert_eq!(&*buf.clone(), &mirror[..]);
            assert_aligned(&buf.clone());
        }
    }

    #[test]
    fn growing_onto_huge_pages_keeps_the_bytes() {
        let mut buf = AlignedBuf::new();
        let bytes: Vec<u8> = (0..3 * HUGE_FROM_BYTES).map(|at| (at % 251) as u8).collect();
        for part in bytes.chunks(100_003) {
            buf.extend_from_slice(part);
            assert_aligned(&buf);
        }
        assert_eq!(&*buf, &bytes[..]);
        assert!(buf.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
        buf.truncate(5);
        buf.resize(2 * HUGE_PAGE_BYTES, 9);
        assert_eq!(buf[..5], bytes[..5]);
        assert!(buf[5..].iter().all(|&byte| byte == 9));
    }

    #[test]
    fn zeroed_is_zero_and_writable_in_place() {
        let mut buf = AlignedBuf::zeroed(DIRECT_ALIGN * 3);
        assert_aligned(&buf);
        assert!(buf.iter().all(|&b| b == 0));
        buf[DIRECT_ALIGN] = 7;
        assert_eq!(buf[DIRECT_ALIGN], 7);
    }
}
