//! The page directory of a checkpoint: tables, and the extents that hold their tuples.

use crate::bytes::{Cursor, put, u32_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::Identity;

const WHAT: &str = "page directory of a SIREN store";
const MAGIC: u32 = u32::from_le_bytes(*b"SPSD");
/// Offset from which the checksum counts.
const CRC_FROM: usize = 8;

/// Adjacent disk pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The first disk page.
    pub first: u32,
    /// Number of disk pages.
    pub pages: u32,
}

impl Extent {
    /// Whether the extent has a page, and all its pages have a number.
    pub fn is_possible(self) -> bool {
        self.pages > 0 && self.first.checked_add(self.pages).is_some()
    }
}

/// The content of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExtentKind {
    /// A logical page of one table: tuples in clustering order.
    Tuples = 1,
    /// Pending removes of a semi-fuzzy checkpoint: tuples with their tables.
    Removes = 2,
}

impl ExtentKind {
    pub(super) fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(ExtentKind::Tuples),
            2 => Some(ExtentKind::Removes),
            _ => None,
        }
    }
}

/// An extent of a checkpoint, as the directory has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredExtent {
    /// The disk pages.
    pub extent: Extent,
    /// The content.
    pub kind: ExtentKind,
    /// Table. 0 for [`ExtentKind::Removes`].
    pub table: u16,
    /// The level of the checkpoint that wrote the extent.
    pub level: u64,
}

/// A table of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTable {
    /// Number of the table.
    pub id: u16,
    /// Name of the table, at most 65,535 bytes.
    pub name: String,
}

/// The page directory of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// Level of the checkpoint.
    pub level: u64,
    /// The tables.
    pub tables: Vec<StoredTable>,
    /// The extents.
    pub extents: Vec<StoredExtent>,
}

impl Directory {
    /// The bytes of the directory, for this offset in the file.
    pub fn encode(&self, identity: Identity, offset: u64) -> Vec<u8> {
        let mut out = vec![0; CRC_FROM];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        out.extend_from_slice(&self.level.to_le_bytes());
        out.extend_from_slice(&(self.tables.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.extents.len() as u32).to_le_bytes());
        for table in &self.tables {
            out.extend_from_slice(&table.id.to_le_bytes());
            out.extend_from_slice(&(table.name.len() as u32).to_le_bytes());
            out.extend_from_slice(table.name.as_bytes());
        }
        for stored in &self.extents {
            out.extend_from_slice(&stored.extent.first.to_le_bytes());
            out.extend_from_slice(&stored.extent.pages.to_le_bytes());
            out.push(stored.kind as u8);
            out.extend_from_slice(&stored.table.to_le_bytes());
            out.extend_from_slice(&stored.level.to_le_bytes());
        }
        let crc = identity.checksum(offset, &out[CRC_FROM..]);
        put(&mut out, 4, &crc.to_le_bytes());
        out
    }

    /// Decodes the bytes of a directory at an offset of the file.
    ///
    /// # Errors
    /// Anything but an intact directory of that place.
    pub fn decode(identity: Identity, bytes: &[u8], offset: u64) -> Result<Self, DecodeError> {
        let fail = |cause| DecodeError { what: WHAT, offset, cause };
        if bytes.len() < CRC_FROM || u32_at(bytes, 0) != MAGIC {
            return Err(fail(DecodeCause::Inconsistent("no directory is at its place")));
        }
        let (stored, computed) = (u32_at(bytes, 4), identity.checksum(offset, &bytes[CRC_FROM..]));
        if stored != computed {
            return Err(fail(DecodeCause::Checksum { stored, computed }));
        }
        let mut rest = Cursor::new(&bytes[CRC_FROM..], offset + CRC_FROM as u64, WHAT);
        let level = rest.u64()?;
        let (tables, extents) = (rest.u32()?, rest.u32()?);
        let mut directory = Self { level, ..Self::default() };
        for _ in 0..tables {
            let id = rest.u16()?;
            let len = rest.u32()? as usize;
            let name = std::str::from_utf8(rest.take(len)?)
                .map_err(|_| rest.error(DecodeCause::Inconsistent("a name is not UTF-8")))?;
            directory.tables.push(StoredTable { id, name: name.to_owned() });
        }
        for _ in 0..extents {
            let extent = Extent { first: rest.u32()?, pages: rest.u32()? };
            let code = rest.u8()?;
            let unknown = DecodeCause::Unknown { field: "extent kind", value: u64::from(code) };
            let kind = ExtentKind::from_code(code).ok_or_else(|| rest.error(unknown))?;
            let (table, level) = (rest.u16()?, rest.u64()?);
            if !extent.is_possible() {
                return Err(rest.error(DecodeCause::Inconsistent("an impossible extent")));
            }
            directory.extents.push(StoredExtent { extent, kind, table, level });
        }
        if !rest.is_empty() {
            return Err(rest.error(DecodeCause::Inconsistent("bytes behind the directory")));
        }
        Ok(directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::{FileKind, StoreId};

    #[test]
    fn a_directory_comes_back_and_every_flipped_byte_is_seen() {
        let identity = Identity::new(FileKind::SirenPages, StoreId([1; 16]), &[4096]);
        let extent = |first, pages, kind| StoredExtent {
            extent: Extent { first, pages },
            kind,
            table: 3,
            level: 9,
        };
        let directory = Directory {
            level: 12,
            tables: vec![StoredTable { id: 3, name: "accounts".into() }],
            extents: vec![extent(4, 1, ExtentKind::Tuples), extent(9, 2, ExtentKind::Removes)],
        };
        let bytes = directory.encode(identity, 8192);
        assert_eq!(Directory::decode(identity, &bytes, 8192), Ok(directory));
        assert!(Directory::decode(identity, &bytes, 4096).is_err(), "elsewhere");
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x40;
            assert!(Directory::decode(identity, &flipped, 8192).is_err(), "byte {at}");
            assert!(Directory::decode(identity, &bytes[..at], 8192).is_err(), "{at} bytes");
        }
    }
}
