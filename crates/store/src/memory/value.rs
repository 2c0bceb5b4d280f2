//! A value in the view of a reader.

use stillpoint_format::Label;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::memory::Memory;
use crate::memory::blob::{self, Blob};
use crate::memory::words;

/// A value, whose bytes belong to a record that is locked or about to be claimed, or to the
/// transaction's own write.
#[derive(Clone, Copy)]
pub struct ValueRef<'a> {
    label: Label,
    len: usize,
    place: ValueSource<'a>,
}

#[derive(Clone, Copy)]
enum ValueSource<'a> {
    Bytes(&'a [u8]),
    Words { words: &'a [AtomicU64], at: usize },
    Large { memory: &'a Memory, blob: Blob },
}

impl<'a> ValueRef<'a> {
    /// A value that is held elsewhere, with its label: a tag, or a tag and a deadline.
    pub fn from_bytes(label: impl Into<Label>, bytes: &'a [u8]) -> Self {
        Self { label: label.into(), len: bytes.len(), place: ValueSource::Bytes(bytes) }
    }

    #[inline]
    pub(crate) fn inline(words: &'a [AtomicU64], at: usize, len: usize, label: Label) -> Self {
        Self { label, len, place: ValueSource::Words { words, at } }
    }

    pub(crate) fn large(memory: &'a Memory, blob: Blob, label: Label) -> Self {
        Self { label, len: blob.len, place: ValueSource::Large { memory, blob } }
    }

    /// The same value with another deadline, 0 for none.
    pub(crate) fn until(mut self, deadline: u64) -> Self {
        self.label.deadline = deadline;
        self
    }

    /// The tag stored with the value. The store does not interpret the tag.
    #[inline]
    pub fn tag(&self) -> u8 {
        self.label.tag
    }

    /// The deadline stored with the value. The store does not interpret the deadline.
    #[inline]
    pub fn deadline(&self) -> Option<u64> {
        (self.label.deadline != 0).then_some(self.label.deadline)
    }

    /// Tag and deadline.
    #[inline]
    pub fn label(&self) -> Label {
        self.label
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the whole value.
    #[inline]
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        self.copy_range_to(0, self.len, out);
    }

    /// Appends `count` bytes from `offset` on.
    ///
    /// # Panics
    /// If the range is not inside the value.
    pub fn copy_range_to(&self, offset: usize, count: usize, out: &mut Vec<u8>) {
        assert!(offset <= self.len && count <= self.len - offset, "range outside the value");
        match self.place {
            ValueSource::Bytes(bytes) => out.extend_from_slice(&bytes[offset..offset + count]),
            ValueSource::Words { words, at } => words::read(words, at + offset, count, out),
            ValueSource::Large { memory, blob } => blob::read(memory, blob, offset, count, out),
        }
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Panics
    /// If the range is not inside the value.
    #[inline]
    pub fn read_range(&self, offset: usize, out: &mut [u8]) {
        assert!(offset <= self.len && out.len() <= self.len - offset, "range outside the value");
        match self.place {
            ValueSource::Bytes(bytes) => out.copy_from_slice(&bytes[offset..offset + out.len()]),
            ValueSource::Words { words, at } => words::read_into(words, at + offset, out),
            ValueSource::Large { memory, blob } => blob::read_into(memory, blob, offset, out),
        }
    }

    /// The value's bytes in a vector of their own.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len + 8);
        self.copy_to(&mut out);
        out
    }

    /// Eight bytes at `offset` as a little-endian integer, without a copy of the value. `None` if
    /// the eight bytes do not lie inside the value.
    #[inline]
    pub fn u64_at(&self, offset: usize) -> Option<u64> {
        if offset.checked_add(8)? > self.len {
            return None;
        }
        match self.place {
            ValueSource::Words { words, at } => {
                let (index, shift) = ((at + offset) / 8, (at + offset) % 8 * 8);
                let low = words[index].load(Relaxed) >> shift;
                if shift == 0 {
                    return Some(low);
                }
                Some(low | words[index + 1].load(Relaxed) << (64 - shift))
            }
            _ => {
                let mut bytes = [0; 8];
                self.read_range(offset, &mut bytes);
                Some(u64::from_le_bytes(bytes))
            }
        }
    }

    /// The blocks of a large value, and their memory.
    pub(crate) fn large_in(&self) -> Option<(&'a Memory, Blob)> {
        match self.place {
            ValueSource::Large { memory, blob } => Some((memory, blob)),
            _ => None,
        }
    }
}

impl std::fmt::Debug for ValueRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValueRef").field("label", &self.label).field("len", &self.len).finish()
    }
}
