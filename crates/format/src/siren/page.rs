//! An extent of tuples: the image of a logical page, or pending removes.
//!
//! ```text
//! page  = header (40 bytes) · tuples · zeros up to a whole number of disk pages
//! tuple = flags u8 · table u16 · length of the key u32 · length of the value u32
//!       · [transaction u64 · statement u32] · key · value
//! ```
//! Only a tuple of an open transaction has the part in brackets.

use super::directory::{ExtentKind, StoredExtent};
use crate::bytes::{Cursor, put, u16_at, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::Identity;
use crate::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

const WHAT: &str = "page of a SIREN store";
const MAGIC: u32 = u32::from_le_bytes(*b"SPSP");
/// Offset from which the checksum counts.
const CRC_FROM: usize = 8;
const COMMITTED: u8 = 1;
const DELETE_MARK: u8 = 2;

/// Bytes of a page's header.
pub const PAGE_HEADER_BYTES: usize = 40;
/// Bytes of a tuple beside its key and its value.
pub const TUPLE_HEAD_BYTES: usize = 11;
/// Further bytes of a tuple of an open transaction.
pub const OPEN_TUPLE_BYTES: usize = 12;

/// A tuple, as a page holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TupleImage<'a> {
    /// Table.
    pub table: u16,
    /// Key.
    pub key: &'a [u8],
    /// Value. Empty for a delete mark.
    pub value: &'a [u8],
    /// Whether the tuple marks the deletion of its key.
    pub is_delete_mark: bool,
    /// The transaction and the statement that created the tuple, if the transaction is open.
    pub open: Option<(u64, u32)>,
}

impl TupleImage<'_> {
    /// Bytes that the tuple takes in a page.
    pub fn bytes(&self) -> usize {
        let open = if self.open.is_some() { OPEN_TUPLE_BYTES } else { 0 };
        TUPLE_HEAD_BYTES + open + self.key.len() + self.value.len()
    }
}

/// Builds the bytes of an extent. The buffer is used again after [`clear`](Self::clear).
#[derive(Clone, Debug)]
pub struct PageBuilder {
    buf: Vec<u8>,
    tuples: u32,
}

impl Default for PageBuilder {
    fn default() -> Self {
        Self { buf: vec![0; PAGE_HEADER_BYTES], tuples: 0 }
    }
}

impl PageBuilder {
    /// Removes all tuples and keeps the memory.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.buf.resize(PAGE_HEADER_BYTES, 0);
        self.tuples = 0;
    }

    /// Bytes so far, header included.
    pub fn bytes(&self) -> usize {
        self.buf.len()
    }

    /// Tuples so far.
    pub fn tuples(&self) -> u32 {
        self.tuples
    }

    /// Appends a tuple.
    ///
    /// # Panics
    /// If the key or the value is longer than the format allows. Transactions refuse these.
    pub fn push(&mut self, tuple: &TupleImage<'_>) {
        assert!(tuple.key.len() <= KEY_BYTES_MAX && tuple.value.len() <= VALUE_BYTES_MAX);
        let committed = if tuple.open.is_none() { COMMITTED } else { 0 };
        let delete_mark = if tuple.is_delete_mark { DELETE_MARK } else { 0 };
        self.buf.push(committed | delete_mark);
        self.buf.extend_from_slice(&tuple.table.to_le_bytes());
        self.buf.extend_from_slice(&(tuple.key.len() as u32).to_le_bytes());
        self.buf.extend_from_slice(&(tuple.value.len() as u32).to_le_bytes());
        if let Some((transaction, statement)) = tuple.open {
            self.buf.extend_from_slice(&transaction.to_le_bytes());
            self.buf.extend_from_slice(&statement.to_le_bytes());
        }
        self.buf.extend_from_slice(tuple.key);
        self.buf.extend_from_slice(tuple.value);
        self.tuples += 1;
    }

    /// Writes the header and the zeros behind the tuples, and returns the bytes of the extent.
    ///
    /// # Panics
    /// If the tuples do not fit the extent.
    pub fn seal(&mut self, identity: Identity, stored: &StoredExtent, page_bytes: u32) -> &[u8] {
        let len = stored.extent.pages as usize * page_bytes as usize;
        assert!(self.buf.len() <= len, "the tuples do not fit the extent");
        let payload = (self.buf.len() - PAGE_HEADER_BYTES) as u32;
        self.buf.resize(len, 0);
        put(&mut self.buf, 0, &MAGIC.to_le_bytes());
        self.buf[8] = stored.kind as u8;
        put(&mut self.buf, 10, &stored.table.to_le_bytes());
        put(&mut self.buf, 12, &self.tuples.to_le_bytes());
        put(&mut self.buf, 16, &stored.level.to_le_bytes());
        put(&mut self.buf, 24, &stored.extent.first.to_le_bytes());
        put(&mut self.buf, 28, &stored.extent.pages.to_le_bytes());
        put(&mut self.buf, 32, &payload.to_le_bytes());
        let offset = u64::from(stored.extent.first) * u64::from(page_bytes);
        let crc = identity.checksum(offset, &self.buf[CRC_FROM..]);
        put(&mut self.buf, 4, &crc.to_le_bytes());
        &self.buf
    }
}

/// A decoded extent.
#[derive(Clone, Debug)]
pub struct StoredPage<'a> {
    tuples: u32,
    payload: &'a [u8],
    offset: u64,
    table: Option<u16>,
}

impl<'a> StoredPage<'a> {
    /// Checks the bytes of an extent against the directory's entry.
    ///
    /// # Errors
    /// Anything but the intact bytes of that very extent.
    pub fn decode(
        identity: Identity,
        bytes: &'a [u8],
        stored: &StoredExtent,
        page_bytes: u32,
    ) -> Result<Self, DecodeError> {
        let offset = u64::from(stored.extent.first) * u64::from(page_bytes);
        let fail = |cause| DecodeError { what: WHAT, offset, cause };
        let needed = u64::from(stored.extent.pages) * u64::from(page_bytes);
        if bytes.len() as u64 != needed || bytes.len() < PAGE_HEADER_BYTES {
            return Err(fail(DecodeCause::Truncated { needed, available: bytes.len() as u64 }));
        }
        if u32_at(bytes, 0) != MAGIC {
            return Err(fail(DecodeCause::BadMagic { found: u64_at(bytes, 0) }));
        }
        let (crc, computed) = (u32_at(bytes, 4), identity.checksum(offset, &bytes[CRC_FROM..]));
        if crc != computed {
            return Err(fail(DecodeCause::Checksum { stored: crc, computed }));
        }
        let fields = [
            ("kind of the extent", u64::from(bytes[8]), stored.kind as u64),
            ("table of the extent", u64::from(u16_at(bytes, 10)), u64::from(stored.table)),
            ("level of the extent", u64_at(bytes, 16), stored.level),
            ("pages of the extent", u64::from(u32_at(bytes, 28)), u64::from(stored.extent.pages)),
        ];
        for (field, found, expected) in fields {
            if found != expected {
                return Err(fail(DecodeCause::WrongFile { field, found, expected }));
            }
        }
        let len = u32_at(bytes, 32) as usize;
        let Some(payload) = bytes[PAGE_HEADER_BYTES..].get(..len) else {
            return Err(fail(DecodeCause::Inconsistent("more tuples than bytes")));
        };
        let table = (stored.kind == ExtentKind::Tuples).then_some(stored.table);
        let offset = offset + PAGE_HEADER_BYTES as u64;
        Ok(Self { tuples: u32_at(bytes, 12), payload, offset, table })
    }

    /// The tuples.
    ///
    /// # Errors
    /// Intact bytes that are no tuples.
    pub fn tuples(&self) -> Result<Vec<TupleImage<'a>>, DecodeError> {
        let mut rest = Cursor::new(self.payload, self.offset, WHAT);
        let mut tuples = Vec::new();
        for _ in 0..self.tuples {
            let flags = rest.u8()?;
            let table = rest.u16()?;
            let (key, value) = (rest.u32()? as usize, rest.u32()? as usize);
            let open = match flags & COMMITTED {
                0 => Some((rest.u64()?, rest.u32()?)),
                _ => None,
            };
            let is_delete_mark = flags & DELETE_MARK != 0;
            let is_of_another = self.table.is_some_and(|own| own != table);
            let is_too_long = key > KEY_BYTES_MAX || value > VALUE_BYTES_MAX;
            let is_marked_twice = is_delete_mark && (open.is_none() || value > 0);
            let is_unknown = flags & !(COMMITTED | DELETE_MARK) != 0;
            if is_of_another || is_too_long || is_marked_twice || is_unknown {
                return Err(rest.error(DecodeCause::Inconsistent("an impossible tuple")));
            }
            let (key, value) = (rest.take(key)?, rest.take(value)?);
            tuples.push(TupleImage { table, key, value, is_delete_mark, open });
        }
        if !rest.is_empty() {
            return Err(rest.error(DecodeCause::Inconsistent("bytes behind the tuples")));
        }
        Ok(tuples)
    }
}

#[cfg(test)]
mod tests {
    use super::super::directory::Extent;
    use super::*;
    use crate::ident::{FileKind, StoreId};

    #[test]
    fn tuples_come_back_and_every_flipped_byte_is_seen() {
        let identity = Identity::new(FileKind::SirenPages, StoreId([1; 16]), &[4096]);
        let tuple = |key, value, is_delete_mark, open| TupleImage {
            table: 4,
            key,
            value,
            is_delete_mark,
            open,
        };
        let tuples = [
            tuple(b"a", b"one", false, None),
            tuple(b"a", b"two", false, Some((7, 2))),
            tuple(b"b", b"", true, Some((8, 1))),
        ];
        let stored = StoredExtent {
            extent: Extent { first: 5, pages: 1 },
            kind: ExtentKind::Tuples,
            table: 4,
            level: 3,
        };
        let mut builder = PageBuilder::default();
        tuples.iter().for_each(|tuple| builder.push(tuple));
        let used: usize = tuples.iter().map(TupleImage::bytes).sum();
        assert_eq!((builder.bytes(), builder.tuples()), (PAGE_HEADER_BYTES + used, 3));
        let mut bytes = builder.seal(identity, &stored, 4096).to_vec();
        let page = StoredPage::decode(identity, &bytes, &stored, 4096).expect("its own bytes");
        assert_eq!(page.tuples().expect("its own tuples"), tuples);
        let older = StoredExtent { level: 2, ..stored };
        assert!(StoredPage::decode(identity, &bytes, &older, 4096).is_err(), "another checkpoint");
        for at in (0..bytes.len()).step_by(7) {
            bytes[at] ^= 1;
            assert!(StoredPage::decode(identity, &bytes, &stored, 4096).is_err(), "byte {at}");
            bytes[at] ^= 1;
        }
    }
}
