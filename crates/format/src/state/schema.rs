//! The schema of a state's arrays: one header block, written once.

use crate::bytes::{put, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::{FileKind, HEADER_BYTES, StoreId, decode_header, encode_header};

const WHAT: &str = "state schema";
/// Most arrays of a state.
pub const ARRAYS_MAX: usize = 32;
/// Longest name of an array, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest cell, in bytes.
const CELL_BYTES_MAX: u64 = 4096;
/// Most cells of an array.
const CELLS_MAX: u64 = 1 << 48;
const ENTRY_BYTES: usize = 80;
const ENTRIES_AT: usize = 8;

/// One array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySchema {
    /// Name of the array: 1 to [`NAME_BYTES_MAX`] bytes, unique in the state.
    pub name: String,
    /// Bytes of a cell: 4, or a multiple of 8 up to 4096.
    pub cell_bytes: u32,
    /// Cells.
    pub cells: u64,
}

/// The file `STATE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSchema {
    /// The state.
    pub store: StoreId,
    /// Wall clock at creation, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Arrays of the state, 1 to [`ARRAYS_MAX`].
    pub arrays: Vec<ArraySchema>,
}

impl StateSchema {
    /// The file.
    ///
    /// # Panics
    /// If there are too many arrays, or a name is too long.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        assert!(self.arrays.len() <= ARRAYS_MAX, "the caller has counted them");
        let mut params = [0; ENTRIES_AT + ARRAYS_MAX * ENTRY_BYTES];
        put(&mut params, 0, &(self.arrays.len() as u32).to_le_bytes());
        for (array, entry) in self.arrays.iter().zip(params[ENTRIES_AT..].chunks_mut(ENTRY_BYTES)) {
            assert!(array.name.len() <= NAME_BYTES_MAX, "the caller has measured it");
            put(entry, 0, &array.cells.to_le_bytes());
            put(entry, 8, &array.cell_bytes.to_le_bytes());
            put(entry, 12, &(array.name.len() as u32).to_le_bytes());
            put(entry, 16, array.name.as_bytes());
        }
        encode_header(FileKind::StateSchema, self.store, self.created_ms, &params)
    }

    /// Decodes the file.
    ///
    /// # Errors
    /// Anything but an intact schema of this format version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let header = decode_header(bytes, FileKind::StateSchema, WHAT)?;
        let fail = |cause| DecodeError { what: WHAT, offset: 0, cause };
        let count = u64::from(u32_at(header.params, 0));
        check("number of arrays", count, 1, ARRAYS_MAX as u64).map_err(fail)?;
        let entries = header.params[ENTRIES_AT..].chunks(ENTRY_BYTES).take(count as usize);
        let mut arrays: Vec<ArraySchema> = Vec::with_capacity(count as usize);
        for entry in entries {
            let array = decode_entry(entry).map_err(fail)?;
            if arrays.iter().any(|other| other.name == array.name) {
                return Err(fail(DecodeCause::Inconsistent("two arrays of one name")));
            }
            arrays.push(array);
        }
        Ok(Self { store: header.store, created_ms: header.created_ms, arrays })
    }

    /// Checksum of the schema, which every image carries.
    pub fn checksum(&self) -> u32 {
        crc32c::crc32c(&self.encode())
    }
}

fn decode_entry(entry: &[u8]) -> Result<ArraySchema, DecodeCause> {
    let (cells, cell_bytes) = (u64_at(entry, 0), u32_at(entry, 8));
    check("cells", cells, 0, CELLS_MAX)?;
    check("bytes of a cell", u64::from(cell_bytes), 4, CELL_BYTES_MAX)?;
    if cell_bytes != 4 && !cell_bytes.is_multiple_of(8) {
        return Err(DecodeCause::Inconsistent("a cell of neither 4 nor a multiple of 8 bytes"));
    }
    let len = u64::from(u32_at(entry, 12));
    check("length of a name", len, 1, NAME_BYTES_MAX as u64)?;
    let name = std::str::from_utf8(&entry[16..16 + len as usize])
        .map_err(|_| DecodeCause::Inconsistent("a name that is not UTF-8"))?;
    Ok(ArraySchema { name: name.to_owned(), cell_bytes, cells })
}

/// Checks that a number is in its range.
pub(super) fn check(
    field: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<(), DecodeCause> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(DecodeCause::OutOfRange { field, value, min, max })
    }
}
