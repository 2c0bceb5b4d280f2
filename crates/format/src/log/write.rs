//! The body of a [`RecordKind::Writes`](super::RecordKind::Writes) record: the
//! writes of one transaction, in the order in which it made them.
//!
//! This is the hottest encoder of the product, so fields have fixed widths. Flags of a write select
//! the wide form of its key or lengths. A further flag says that its table is that of the write
//! before. A patch of 8 bytes under an 8-byte key of the same table takes 23 bytes.
//!
//! ```text
//! write = op u8 · [table u16 · generation u32] · key length u8|u32 · key · rest
//! put    rest = tag u8 · value length u16|u32 · [deadline u64] · value
//! delete rest = (nothing)
//! patch  rest = [deadline u64] · count u8|u32 · count × (offset u16|u32 · length u16|u32 · bytes)
//! splice rest = count u8|u32 · count × (offset u16|u32 · removed u16|u32 · length u16|u32 · bytes)
//! ```

use crate::bytes::Cursor;
use crate::error::{DecodeCause, DecodeError, EncodeError};
use crate::{KEY_BYTES_MAX, Label, VALUE_BYTES_MAX};

/// Low two bits of the op byte.
const OP_PUT: u8 = 0;
const OP_DELETE: u8 = 1;
const OP_PATCH: u8 = 2;
const OP_SPLICE: u8 = 3;
const OP_MASK: u8 = 0b11;
/// Table and generation are left out, since they equal those of the previous write.
const SAME_TABLE: u8 = 1 << 2;
/// The key length takes four bytes instead of one.
const WIDE_KEY: u8 = 1 << 3;
/// Value lengths, range offsets and the range count take four bytes instead of two or one.
const WIDE_VALUE: u8 = 1 << 4;
/// A deadline precedes the value of a put, or the ranges of a patch.
const DEADLINE: u8 = 1 << 5;
const KNOWN_BITS: u8 = OP_MASK | SAME_TABLE | WIDE_KEY | WIDE_VALUE | DEADLINE;

/// Stands for no table, since table and generation take 48 bits together.
const NO_TABLE: u64 = u64::MAX;

const WHAT: &str = "log record write";

/// Changed bytes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchRange<'a> {
    /// Offset of the changed bytes in the value.
    pub offset: u32,
    /// The new bytes.
    pub bytes: &'a [u8],
}

/// Bytes of a value that others replace, of another number perhaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splice<'a> {
    /// Offset of the replaced bytes in the value.
    pub offset: u32,
    /// Number of the replaced bytes.
    pub removed: u32,
    /// The bytes that replace them.
    pub bytes: &'a [u8],
}

/// Appends the writes of one transaction to a buffer, in order.
///
/// The writer allocates only when the buffer must grow. After an error the buffer is as before the
/// failed call.
///
/// ```
/// use stillpoint_format::log::{PatchRange, WritesEncoder};
/// let mut body = Vec::with_capacity(256);
/// let mut writes = WritesEncoder::new(&mut body);
/// writes.put(1, 0, b"key", 0, b"value")?;
/// writes.patch(1, 0, b"key", &[PatchRange { offset: 2, bytes: b"L" }])?;
/// writes.delete(1, 0, b"key")?;
/// # Ok::<(), stillpoint_format::EncodeError>(())
/// ```
#[derive(Debug)]
pub struct WritesEncoder<'a> {
    out: &'a mut Vec<u8>,
    table: u64,
}

impl<'a> WritesEncoder<'a> {
    /// Appends to `out`, behind its present bytes.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        WritesEncoder { out, table: NO_TABLE }
    }

    /// Writes a value of a key, and its label: a tag, or a tag and a deadline.
    ///
    /// # Errors
    /// Key or value too long.
    #[inline]
    pub fn put(
        &mut self,
        table: u16,
        generation: u32,
        key: &[u8],
        label: impl Into<Label>,
        value: &[u8],
    ) -> Result<(), EncodeError> {
        self.put_with(table, generation, key, (label.into(), value.len()), |out| {
            out.extend_from_slice(value);
        })
    }

    /// As [`put`](Self::put). `append` appends the value, whose label and length in bytes are given.
    ///
    /// # Errors
    /// Those of [`put`](Self::put).
    #[inline]
    pub fn put_with(
        &mut self,
        table: u16,
        generation: u32,
        key: &[u8],
        (Label { tag, deadline }, len): (Label, usize),
        append: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), EncodeError> {
        let op = if deadline == 0 { OP_PUT } else { OP_PUT | DEADLINE };
        if let Ok(len) = u16::try_from(len) {
            self.head(op, table, generation, key)?;
            let [low, high] = len.to_le_bytes();
            self.out.extend_from_slice(&[tag, low, high]);
        } else {
            check_value(len)?;
            self.head(op | WIDE_VALUE, table, generation, key)?;
            self.out.push(tag);
            self.out.extend_from_slice(&(len as u32).to_le_bytes());
        }
        if deadline != 0 {
            self.out.extend_from_slice(&deadline.to_le_bytes());
        }
        let start = self.out.len();
        append(self.out);
        debug_assert_eq!(self.out.len() - start, len, "a value of another length");
        Ok(())
    }

    /// Writes the deletion of a key.
    ///
    /// # Errors
    /// Key too long.
    #[inline]
    pub fn delete(&mut self, table: u16, generation: u32, key: &[u8]) -> Result<(), EncodeError> {
        self.head(OP_DELETE, table, generation, key)
    }

    /// Writes new bytes for ranges of the key's existing value. The label stays. A range begins
    /// inside the value or at its end, and may make the value longer.
    ///
    /// # Errors
    /// Key too long, or a range that ends beyond the longest value.
    #[inline]
    pub fn patch(
        &mut self,
        table: u16,
        generation: u32,
        key: &[u8],
        ranges: &[PatchRange<'_>],
    ) -> Result<(), EncodeError> {
        let narrow = ranges.len() <= usize::from(u8::MAX)
            && ranges.iter().all(|range| {
                range.offset <= u32::from(u16::MAX) && range.bytes.len() <= usize::from(u16::MAX)
            });
        if !narrow {
            return self.patch_wide((table, generation, key), None, ranges);
        }
        self.head(OP_PATCH, table, generation, key)?;
        self.out.push(ranges.len() as u8);
        for range in ranges {
            let place = range.offset | (range.bytes.len() as u32) << 16;
            self.out.extend_from_slice(&place.to_le_bytes());
            append(self.out, range.bytes);
        }
        Ok(())
    }

    /// As [`patch`](Self::patch), perhaps without a range. The key has this deadline from now on, 0 for
    /// none.
    ///
    /// # Errors
    /// Those of [`patch`](Self::patch).
    pub fn patch_until(
        &mut self,
        (table, generation, key): (u16, u32, &[u8]),
        deadline: u64,
        ranges: &[PatchRange<'_>],
    ) -> Result<(), EncodeError> {
        if !ranges.is_empty() {
            return self.patch_wide((table, generation, key), Some(deadline), ranges);
        }
        self.head(OP_PATCH | DEADLINE, table, generation, key)?;
        self.out.extend_from_slice(&deadline.to_le_bytes());
        self.out.push(0);
        Ok(())
    }

    /// Writes splices of the key's existing value, one after the other. The label stays. A splice
    /// replaces bytes inside the value, or none of them at a place inside it or at its end.
    ///
    /// # Errors
    /// Key too long, or a splice that ends beyond the longest value.
    pub fn splice<'b>(
        &mut self,
        table: u16,
        generation: u32,
        key: &[u8],
        splices: impl ExactSizeIterator<Item = Splice<'b>> + Clone,
    ) -> Result<(), EncodeError> {
        let mut is_narrow = splices.len() <= usize::from(u8::MAX);
        for Splice { offset, removed, bytes } in splices.clone() {
            check_value(offset as usize + (removed as usize).max(bytes.len()))?;
            let largest = offset.max(removed).max(bytes.len() as u32);
            is_narrow &= largest <= u32::from(u16::MAX);
        }
        let count = u32::try_from(splices.len())
            .map_err(|_| EncodeError::ValueTooLong { bytes: splices.len() })?;
        if is_narrow {
            self.head(OP_SPLICE, table, generation, key)?;
            self.out.push(count as u8);
        } else {
            self.head(OP_SPLICE | WIDE_VALUE, table, generation, key)?;
            self.out.extend_from_slice(&count.to_le_bytes());
        }
        for Splice { offset, removed, bytes } in splices {
            for number in [offset, removed, bytes.len() as u32] {
                let width = if is_narrow { 2 } else { 4 };
                self.out.extend_from_slice(&number.to_le_bytes()[..width]);
            }
            self.out.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// As [`patch`](Self::patch), with one range.
    ///
    /// # Errors
    /// Those of [`patch`](Self::patch).
    #[inline]
    pub fn patch_range(
        &mut self,
        table: u16,
        generation: u32,
        key: &[u8],
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), EncodeError> {
        if self.table == place(table, generation)
            && let (Ok(key), Ok(word)) = (key.try_into(), bytes.try_into())
            && let Ok(offset) = u16::try_from(offset)
        {
            self.word_patch(u64::from_le_bytes(key), offset, u64::from_le_bytes(word));
            return Ok(());
        }
        self.patch(table, generation, key, &[PatchRange { offset, bytes }])
    }

    /// Appends a patch of eight bytes under an eight-byte key of the same table. This most common
    /// write is put together in registers, 23 bytes in all.
    #[inline]
    fn word_patch(&mut self, key: u64, offset: u16, bytes: u64) {
        const HEAD: u64 = (OP_PATCH | SAME_TABLE) as u64 | 8 << 8;
        const RANGES: u64 = 1;
        const RANGE_LEN: u64 = 8;
        let start = self.out.len();
        self.out.resize(start + 23, 0);
        if let Some(patch) = self.out[start..].first_chunk_mut::<23>() {
            let middle = key >> 48 | RANGES << 16 | u64::from(offset) << 24 | RANGE_LEN << 40;
            patch[..8].copy_from_slice(&(HEAD | key << 16).to_le_bytes());
            patch[7..15].copy_from_slice(&(key >> 40 & 0xff | middle << 8).to_le_bytes());
            patch[15..].copy_from_slice(&bytes.to_le_bytes());
        }
    }

    #[cold]
    fn patch_wide(
        &mut self,
        (table, generation, key): (u16, u32, &[u8]),
        deadline: Option<u64>,
        ranges: &[PatchRange<'_>],
    ) -> Result<(), EncodeError> {
        for range in ranges {
            check_value((range.offset as usize).saturating_add(range.bytes.len()))?;
        }
        let count = u32::try_from(ranges.len())
            .map_err(|_| EncodeError::ValueTooLong { bytes: ranges.len() })?;
        let op = OP_PATCH | WIDE_VALUE | deadline.map_or(0, |_| DEADLINE);
        self.head(op, table, generation, key)?;
        if let Some(deadline) = deadline {
            self.out.extend_from_slice(&deadline.to_le_bytes());
        }
        self.out.extend_from_slice(&count.to_le_bytes());
        for range in ranges {
            self.out.extend_from_slice(&range.offset.to_le_bytes());
            self.out.extend_from_slice(&(range.bytes.len() as u32).to_le_bytes());
            self.out.extend_from_slice(range.bytes);
        }
        Ok(())
    }

    #[inline]
    fn head(&mut self, op: u8, table: u16, generation: u32, key: &[u8]) -> Result<(), EncodeError> {
        let place = place(table, generation);
        let Ok(key_len) = u8::try_from(key.len()) else {
            return self.wide_head(op, place, key);
        };
        if place == self.table {
            self.out.extend_from_slice(&[op | SAME_TABLE, key_len]);
        } else {
            self.table = place;
            // op · table · generation · key length are exactly eight bytes.
            let word = u64::from(op) | place << 8 | u64::from(key_len) << 56;
            self.out.extend_from_slice(&word.to_le_bytes());
        }
        append(self.out, key);
        Ok(())
    }

    #[cold]
    fn wide_head(&mut self, op: u8, place: u64, key: &[u8]) -> Result<(), EncodeError> {
        if key.len() > KEY_BYTES_MAX {
            return Err(EncodeError::KeyTooLong { bytes: key.len() });
        }
        if place == self.table {
            self.out.push(op | WIDE_KEY | SAME_TABLE);
        } else {
            self.table = place;
            self.out.push(op | WIDE_KEY);
            self.out.extend_from_slice(&place.to_le_bytes()[..6]);
        }
        self.out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.out.extend_from_slice(key);
        Ok(())
    }
}

/// Table and generation in one word.
#[inline]
fn place(table: u16, generation: u32) -> u64 {
    u64::from(table) | u64::from(generation) << 16
}

/// Appends bytes; eight of them, the commonest length, without a call.
#[inline]
fn append(out: &mut Vec<u8>, bytes: &[u8]) {
    match <&[u8; 8]>::try_from(bytes) {
        Ok(word) => out.extend_from_slice(word),
        Err(_) => out.extend_from_slice(bytes),
    }
}

fn check_value(bytes: usize) -> Result<(), EncodeError> {
    if bytes > VALUE_BYTES_MAX { Err(EncodeError::ValueTooLong { bytes }) } else { Ok(()) }
}

/// One write of a transaction. Borrows from the batch.
#[derive(Clone, Debug)]
pub struct Write<'a> {
    /// The table.
    pub table: u16,
    /// The table's generation at the time. Writes of an older generation are void.
    pub generation: u32,
    /// The key.
    pub key: &'a [u8],
    /// Effect of the write on the key.
    pub op: WriteOp<'a>,
}

/// Effect of a write on its key.
#[derive(Clone, Debug)]
pub enum WriteOp<'a> {
    /// New value and label.
    Put {
        /// What the store keeps beside the value.
        label: Label,
        /// The value.
        value: &'a [u8],
    },
    /// The key is deleted.
    Delete,
    /// New bytes in ranges of the existing value.
    Patch(RangeIter<'a>),
    /// New bytes in ranges of the existing value, perhaps in none, and another deadline.
    Until {
        /// The deadline, 0 for none.
        deadline: u64,
        /// The ranges.
        ranges: RangeIter<'a>,
    },
    /// Bytes of the existing value are replaced by others.
    Splice(SpliceIter<'a>),
}

/// The ranges of a patch, in order: checked when the write was decoded.
#[derive(Clone, Debug)]
pub struct RangeIter<'a> {
    rest: Cursor<'a>,
    left: u32,
    wide: bool,
}

impl<'a> RangeIter<'a> {
    /// Steps over one range.
    #[inline]
    fn range(cursor: &mut Cursor<'a>, wide: bool) -> Result<PatchRange<'a>, DecodeError> {
        let (offset, len) = if wide {
            (cursor.u32()?, cursor.u32()?)
        } else {
            (u32::from(cursor.u16()?), u32::from(cursor.u16()?))
        };
        let end = u64::from(offset) + u64::from(len);
        if end > VALUE_BYTES_MAX as u64 {
            return Err(out_of_range(cursor, "range end", end, VALUE_BYTES_MAX));
        }
        Ok(PatchRange { offset, bytes: cursor.take(len as usize)? })
    }
}

impl<'a> Iterator for RangeIter<'a> {
    type Item = PatchRange<'a>;

    fn next(&mut self) -> Option<PatchRange<'a>> {
        self.left = self.left.checked_sub(1)?;
        Self::range(&mut self.rest, self.wide).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for RangeIter<'_> {}

/// The splices of a write, in order: checked when the write was decoded.
#[derive(Clone, Debug)]
pub struct SpliceIter<'a> {
    rest: Cursor<'a>,
    left: u32,
    wide: bool,
}

impl<'a> SpliceIter<'a> {
    /// Steps over one splice.
    #[inline]
    fn splice(cursor: &mut Cursor<'a>, wide: bool) -> Result<Splice<'a>, DecodeError> {
        let mut number = || if wide { cursor.u32() } else { cursor.u16().map(u32::from) };
        let (offset, removed, len) = (number()?, number()?, number()?);
        let end = u64::from(offset) + u64::from(removed.max(len));
        if end > VALUE_BYTES_MAX as u64 {
            return Err(out_of_range(cursor, "splice end", end, VALUE_BYTES_MAX));
        }
        Ok(Splice { offset, removed, bytes: cursor.take(len as usize)? })
    }
}

impl<'a> Iterator for SpliceIter<'a> {
    type Item = Splice<'a>;

    fn next(&mut self) -> Option<Splice<'a>> {
        self.left = self.left.checked_sub(1)?;
        Self::splice(&mut self.rest, self.wide).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for SpliceIter<'_> {}

/// Iterator over the writes of a record's body, in order. The iteration ends after an error.
#[derive(Clone, Debug)]
pub struct WriteIter<'a> {
    rest: Cursor<'a>,
    table: Option<(u16, u32)>,
    failed: bool,
}

impl<'a> WriteIter<'a> {
    /// Decodes a body that begins at `offset` of its file.
    pub fn new(body: &'a [u8], offset: u64) -> Self {
        WriteIter { rest: Cursor::new(body, offset, WHAT), table: None, failed: false }
    }

    /// Decodes writes that were cut out of a body, behind a write of this table and generation.
    pub fn behind((table, generation): (u16, u32), writes: &'a [u8]) -> Self {
        WriteIter {
            rest: Cursor::new(writes, 0, WHAT),
            table: Some((table, generation)),
            failed: false,
        }
    }

    /// The bytes that are still to be decoded, and their offset in the file.
    pub fn undecoded(&self) -> (&'a [u8], u64) {
        (self.rest.rest(), self.rest.offset())
    }

    #[inline]
    fn write(&mut self) -> Result<Write<'a>, DecodeError> {
        let start = self.rest.clone();
        let rest = &mut self.rest;
        let op = rest.u8()?;
        if op & !KNOWN_BITS != 0 {
            return Err(start.error(DecodeCause::Unknown { field: "op", value: u64::from(op) }));
        }
        let place =
            if op & SAME_TABLE == 0 { Some((rest.u16()?, rest.u32()?)) } else { self.table };
        let Some((table, generation)) = place else {
            return Err(start.error(DecodeCause::Inconsistent("the first write names no table")));
        };
        self.table = place;
        let key_len =
            if op & WIDE_KEY == 0 { usize::from(rest.u8()?) } else { rest.u32()? as usize };
        if key_len > KEY_BYTES_MAX {
            return Err(out_of_range(&start, "key length", key_len as u64, KEY_BYTES_MAX));
        }
        let key = rest.take(key_len)?;
        let (wide, expires) = (op & WIDE_VALUE != 0, op & DEADLINE != 0);
        let op = match op & OP_MASK {
            OP_PUT => Self::put(rest, wide, expires)?,
            OP_PATCH if expires => Self::until(rest, wide)?,
            OP_PATCH => Self::patch(rest, wide)?,
            _ if expires => {
                return Err(start.error(DecodeCause::Unknown { field: "op", value: u64::from(op) }));
            }
            OP_DELETE => WriteOp::Delete,
            _ => Self::splices(rest, wide)?,
        };
        Ok(Write { table, generation, key, op })
    }

    #[inline]
    fn put(rest: &mut Cursor<'a>, wide: bool, expires: bool) -> Result<WriteOp<'a>, DecodeError> {
        let tag = rest.u8()?;
        let len = if wide { rest.u32()? as usize } else { usize::from(rest.u16()?) };
        if len > VALUE_BYTES_MAX {
            return Err(out_of_range(rest, "value length", len as u64, VALUE_BYTES_MAX));
        }
        let deadline = if expires { rest.u64()? } else { 0 };
        if expires && deadline == 0 {
            let cause =
                DecodeCause::Inconsistent("a put with the deadline 0, which stands for none");
            return Err(rest.error(cause));
        }
        Ok(WriteOp::Put { label: Label { tag, deadline }, value: rest.take(len)? })
    }

    fn until(rest: &mut Cursor<'a>, wide: bool) -> Result<WriteOp<'a>, DecodeError> {
        let deadline = rest.u64()?;
        let ranges = Self::ranges(rest, wide)?;
        Ok(WriteOp::Until { deadline, ranges })
    }

    #[inline]
    fn patch(rest: &mut Cursor<'a>, wide: bool) -> Result<WriteOp<'a>, DecodeError> {
        Self::ranges(rest, wide).map(WriteOp::Patch)
    }

    #[inline]
    fn ranges(rest: &mut Cursor<'a>, wide: bool) -> Result<RangeIter<'a>, DecodeError> {
        let count = if wide { rest.u32()? } else { u32::from(rest.u8()?) };
        let ranges = RangeIter { rest: rest.clone(), left: count, wide };
        for _ in 0..count {
            RangeIter::range(rest, wide)?;
        }
        Ok(ranges)
    }

    #[inline]
    fn splices(rest: &mut Cursor<'a>, wide: bool) -> Result<WriteOp<'a>, DecodeError> {
        let count = if wide { rest.u32()? } else { u32::from(rest.u8()?) };
        let splices = SpliceIter { rest: rest.clone(), left: count, wide };
        for _ in 0..count {
            SpliceIter::splice(rest, wide)?;
        }
        Ok(WriteOp::Splice(splices))
    }
}

impl<'a> Iterator for WriteIter<'a> {
    type Item = Result<Write<'a>, DecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let write = self.write();
        self.failed = write.is_err();
        Some(write)
    }
}

#[cold]
fn out_of_range(at: &Cursor<'_>, field: &'static str, value: u64, max: usize) -> DecodeError {
    at.error(DecodeCause::OutOfRange { field, value, min: 0, max: max as u64 })
}
