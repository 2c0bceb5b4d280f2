//! Physical redo records: new bytes of a column or a row.
//!
//! ```text
//! record   code (1 byte) | row (4) | the new bytes
//! ```
//!
//! A record's code names table and column, the columns of a table that are written together, or the
//! whole row of a table. Lengths and offsets follow
//! from the schema. "We compressed the format of physical log records by exploiting schema
//! information instead of recording explicit offsets and lengths" (SIGMOD 2011, §5.1).

use stillpoint_state::{Array, Cells, FieldValue, Plain, Scheme};

use crate::workloads::tpcc::schema::{TableRow, Tables, Visit};

/// Meaning of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FieldOffset {
    table: u8,
    offset: usize,
    len: usize,
}

/// The codes of a schema.
#[derive(Clone, Debug, Default)]
pub(super) struct Codes {
    places: Vec<FieldOffset>,
    /// The code of a table's whole row.
    whole: Vec<u8>,
    /// The code of a table's first columns that are written together.
    together: Vec<u8>,
    /// The code of the column at an offset, table by table.
    column: Vec<Vec<u8>>,
}

/// Longest value of a column or row.
const VALUE_BYTES_MAX: usize = stillpoint_state::CELL_BYTES_MAX;

impl Codes {
    /// The codes of these tables.
    pub(super) fn new(tables: &Tables) -> Self {
        let mut codes = Codes::default();
        tables.each(&mut codes);
        assert!(codes.places.len() <= 256, "a code is one byte");
        codes
    }

    /// Adds the record of a column's new value, or of columns that are written together.
    #[inline]
    pub(super) fn put_column<T: TableRow, F: FieldValue>(
        &self,
        log: &mut Vec<u8>,
        row: usize,
        offset: usize,
        value: F,
    ) {
        let table = usize::from(T::TABLE);
        let is_together = offset == 0 && F::PACKED_BYTES == T::TOGETHER_BYTES;
        log.push(if is_together { self.together[table] } else { self.column[table][offset] });
        log.extend((row as u32).to_le_bytes());
        let begin = log.len();
        log.resize(begin + F::PACKED_BYTES, 0);
        value.into_bytes(&mut log[begin..]);
    }

    /// Adds the record of a row's new bytes. `read` writes the bytes into the record's buffer.
    #[inline]
    pub(super) fn put_row<T: TableRow>(
        &self,
        log: &mut Vec<u8>,
        row: usize,
        read: impl FnOnce(&mut [u8]),
    ) {
        log.push(self.whole[usize::from(T::TABLE)]);
        log.extend((row as u32).to_le_bytes());
        let begin = log.len();
        log.resize(begin + <T as Plain>::BYTES, 0);
        read(&mut log[begin..]);
    }

    /// Applies all records of a batch.
    ///
    /// # Errors
    /// The reason why a record cannot be read.
    pub(super) fn apply<S: Scheme>(
        &self,
        mut log: &[u8],
        cells: &mut Cells<S>,
        tables: &Tables,
    ) -> Result<(), String> {
        while !log.is_empty() {
            let head = log.split_first_chunk::<5>().ok_or("a record is cut off")?;
            let ([code, row @ ..], rest) = head;
            let row = u32::from_le_bytes(*row) as usize;
            let place = self.places.get(usize::from(*code)).ok_or("a record of an unknown code")?;
            let (bytes, rest) = rest.split_at_checked(place.len).ok_or("a record is cut off")?;
            if !tables.write(cells, place.table, row, place.offset, bytes) {
                return Err(format!("a record of row {row} of table {}", place.table));
            }
            log = rest;
        }
        Ok(())
    }
}

impl Visit for Codes {
    fn table<T: TableRow>(&mut self, _: Array<T>) {
        let (table, bytes) = (T::TABLE, <T as Plain>::BYTES);
        assert!(bytes <= VALUE_BYTES_MAX, "a row is a cell");
        self.whole.push(self.places.len() as u8);
        self.places.push(FieldOffset { table, offset: 0, len: bytes });
        self.together.push(self.places.len() as u8);
        self.places.push(FieldOffset { table, offset: 0, len: T::TOGETHER_BYTES });
        let mut column = vec![u8::MAX; bytes];
        for (offset, len) in T::columns() {
            column[offset] = self.places.len() as u8;
            self.places.push(FieldOffset { table, offset, len });
        }
        self.column.push(column);
    }
}
