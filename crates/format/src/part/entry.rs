//! Entries of blocks: values, tombstones, and fragments of large values.

use super::block::KeyRef;
use crate::bytes::{Cursor, u32_at};
use crate::error::{DecodeCause, DecodeError};
use crate::{GSN_MAX, KEY_BYTES_MAX, Label, VALUE_BYTES_MAX};

/// Longest value that is stored whole (1 MiB). Longer values are cut into fragments of this length.
pub const FRAGMENT_BYTES: usize = 1 << 20;

/// Bytes of an entry's head: table u16, flags u8, tag u8, generation u32, key and value length u32.
pub(super) const ENTRY_HEAD_BYTES: usize = 16;
/// Bytes between head and key of a fragment: offset u32, total u32.
pub(super) const FRAGMENT_HEAD_BYTES: usize = 8;

/// Flags of an entry: exactly one of these is set.
pub(super) const FLAG_VALUE: u8 = 1;
pub(super) const FLAG_TOMBSTONE: u8 = 2;
pub(super) const FLAG_FRAGMENT: u8 = 4;
/// A flag beside that of a value or of a fragment: the deadline of the record precedes gsn and key.
pub(super) const FLAG_DEADLINE: u8 = 8;
/// A flag beside one of the others: the gsn of the record's last writer precedes the key.
pub(super) const FLAG_STAMP: u8 = 16;
/// Bytes of a stamp.
pub(super) const STAMP_BYTES: usize = 8;

const WHAT: &str = "checkpoint entry";

/// Position of a fragment in its value, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of the fragment in the value.
    pub offset: u32,
    /// Length of the whole value.
    pub total: u32,
}

/// The fragments that a value of `len` bytes is cut into, as (fragment, its length).
pub fn fragments(len: u32) -> impl Iterator<Item = (Fragment, usize)> {
    let step = FRAGMENT_BYTES as u32;
    (0..len)
        .step_by(FRAGMENT_BYTES)
        .map(move |offset| (Fragment { offset, total: len }, step.min(len - offset) as usize))
}

/// One entry of a block, whose bytes it borrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key, its table and the table's generation.
    pub key: KeyRef<'a>,
    /// What the store keeps beside the value: tag and deadline; nothing for a tombstone.
    pub label: Label,
    /// The gsn of the commit that wrote or removed the value; 0 if the checkpoint does not say.
    pub gsn: u64,
    /// The key's state in the checkpoint.
    pub content: Content<'a>,
}

/// A key's state in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// The whole value.
    Value(&'a [u8]),
    /// The key was deleted since the base checkpoint.
    Tombstone,
    /// A piece of the value.
    Fragment(Fragment, &'a [u8]),
}

/// Iterator over the entries of a block. The iteration ends after an error.
#[derive(Clone, Debug)]
pub struct EntryIter<'a> {
    rest: Cursor<'a>,
    left: u32,
    done: bool,
}

impl<'a> EntryIter<'a> {
    pub(super) fn new(payload: &'a [u8], count: u32) -> Self {
        EntryIter { rest: Cursor::new(payload, 0, WHAT), left: count, done: false }
    }

    #[inline]
    fn entry(&mut self) -> Result<Entry<'a>, DecodeError> {
        let start = self.rest.clone();
        let rest = &mut self.rest;
        let head = rest.array::<ENTRY_HEAD_BYTES>()?;
        let (flags, tag) = (head[2] & !(FLAG_STAMP | FLAG_DEADLINE), head[3]);
        let (is_stamped, expires) = (head[2] & FLAG_STAMP != 0, head[2] & FLAG_DEADLINE != 0);
        let (key_len, value_len) = (u32_at(&head, 8) as usize, u32_at(&head, 12) as usize);
        let range = |field, value: usize, max: usize| {
            let (value, max) = (value as u64, max as u64);
            start.error(DecodeCause::OutOfRange { field, value, min: 0, max })
        };
        if key_len > KEY_BYTES_MAX {
            return Err(range("key length", key_len, KEY_BYTES_MAX));
        }
        if value_len > FRAGMENT_BYTES {
            return Err(range("value length", value_len, FRAGMENT_BYTES));
        }
        let fragment = if flags == FLAG_FRAGMENT {
            let fragment = Fragment { offset: rest.u32()?, total: rest.u32()? };
            let end = u64::from(fragment.offset) + value_len as u64;
            if fragment.total as usize > VALUE_BYTES_MAX || end > u64::from(fragment.total) {
                let cause = DecodeCause::Inconsistent("fragment outside its value");
                return Err(start.error(cause));
            }
            Some(fragment)
        } else {
            None
        };
        let deadline = if expires { rest.u64()? } else { 0 };
        if expires && (deadline == 0 || flags == FLAG_TOMBSTONE) {
            return Err(start.error(DecodeCause::Inconsistent("an impossible deadline")));
        }
        let gsn = if is_stamped { rest.u64()? } else { 0 };
        if is_stamped && !(1..=GSN_MAX).contains(&gsn) {
            return Err(start.error(DecodeCause::Inconsistent("an impossible stamp")));
        }
        let key = KeyRef {
            table: u16::from_le_bytes([head[0], head[1]]),
            generation: u32_at(&head, 4),
            key: rest.take(key_len)?,
        };
        let value = rest.take(value_len)?;
        let content = match (flags, fragment) {
            (FLAG_VALUE, _) => Content::Value(value),
            (FLAG_TOMBSTONE, _) if value.is_empty() => Content::Tombstone,
            (FLAG_FRAGMENT, Some(fragment)) => Content::Fragment(fragment, value),
            _ => {
                let value = u64::from(flags);
                return Err(start.error(DecodeCause::Unknown { field: "entry flags", value }));
            }
        };
        Ok(Entry { key, label: Label { tag, deadline }, gsn, content })
    }
}

impl<'a> Iterator for EntryIter<'a> {
    type Item = Result<Entry<'a>, DecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        if let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            let entry = self.entry();
            self.done = entry.is_err();
            return Some(entry);
        }
        self.done = true;
        let cause = DecodeCause::Inconsistent("entries do not fill their block");
        (!self.rest.is_empty()).then(|| Err(self.rest.error(cause)))
    }
}

/// Joins the fragments of large values. Memory grows with the bytes received,
/// not with the length announced.
#[derive(Debug, Default)]
pub struct FragmentJoiner {
    key: Vec<u8>,
    value: Vec<u8>,
    /// Table, generation, label and total length of the value that is incomplete.
    open: Option<(u16, u32, Label, u32)>,
}

/// A large value, whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined<'a> {
    /// The key, its table and the table's generation.
    pub key: KeyRef<'a>,
    /// What the store keeps beside the value.
    pub label: Label,
    /// The value.
    pub value: &'a [u8],
}

impl FragmentJoiner {
    /// Takes the next entry of a partition, in file order. Only fragments of the same value may
    /// come between its fragments. Returns the value when it is complete.
    ///
    /// # Errors
    /// [`DecodeCause::Inconsistent`]: a fragment is missing, repeated or out of order.
    pub fn push(&mut self, entry: &Entry<'_>) -> Result<Option<Joined<'_>>, DecodeCause> {
        let Content::Fragment(fragment, bytes) = entry.content else {
            self.finish()?;
            return Ok(None);
        };
        let KeyRef { table, generation, key } = entry.key;
        let value = (table, generation, entry.label, fragment.total);
        match self.open {
            None => {
                self.key.clear();
                self.key.extend_from_slice(key);
                self.value.clear();
            }
            Some(open) if open == value && self.key == key => {}
            Some(_) => return Err(DecodeCause::Inconsistent("a large value lacks fragments")),
        }
        if fragment.offset as usize != self.value.len() || bytes.is_empty() {
            return Err(DecodeCause::Inconsistent("fragments of a large value out of order"));
        }
        self.value.extend_from_slice(bytes);
        self.open = (self.value.len() < fragment.total as usize).then_some(value);
        if self.open.is_some() {
            return Ok(None);
        }
        let key = KeyRef { table, generation, key: &self.key };
        Ok(Some(Joined { key, label: entry.label, value: &self.value }))
    }

    /// Checks that no value is incomplete.
    ///
    /// # Errors
    /// [`DecodeCause::Inconsistent`].
    pub fn finish(&self) -> Result<(), DecodeCause> {
        match self.open {
            None => Ok(()),
            Some(_) => Err(DecodeCause::Inconsistent("a large value lacks its last fragments")),
        }
    }
}
