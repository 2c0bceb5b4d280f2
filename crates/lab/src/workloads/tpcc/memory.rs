//! What transactions read and write: the tables, wherever they lie.

use stillpoint_state::{Cells, Field, FieldValue, Intent, Scheme};

use crate::workloads::tpcc::schema::{Row, Tables};

/// The tables, in the hands of the one thread that runs transactions.
pub(crate) trait Memory {
    /// A column of a row.
    fn get<T: Row, F: FieldValue>(&self, row: usize, column: Field<T, F>) -> F;
    /// Gives a column of a row a new value.
    fn set<T: Row, F: FieldValue>(&mut self, row: usize, column: Field<T, F>, value: F);
    /// A whole row.
    fn row<T: Row>(&self, row: usize) -> T;
    /// Replaces a whole row.
    fn put<T: Row>(&mut self, row: usize, value: T);
    /// Says that a column of a row will be read or written soon.
    fn announce<T: Row, F: FieldValue>(&self, row: usize, column: Field<T, F>, intent: Intent);
}

/// The tables in cells that a scheme captures.
#[derive(Debug)]
pub(crate) struct InCells<'a, S: Scheme> {
    /// The cells.
    pub(crate) cells: &'a mut Cells<S>,
    /// Which arrays are which tables.
    pub(crate) tables: &'a Tables,
}

impl<S: Scheme> Memory for InCells<'_, S> {
    #[inline]
    fn get<T: Row, F: FieldValue>(&self, row: usize, column: Field<T, F>) -> F {
        self.cells.read_field(T::array(self.tables), row, column)
    }

    #[inline]
    fn set<T: Row, F: FieldValue>(&mut self, row: usize, column: Field<T, F>, value: F) {
        self.cells.write_field(T::array(self.tables), row, column, value);
    }

    #[inline]
    fn row<T: Row>(&self, row: usize) -> T {
        self.cells.read(T::array(self.tables), row)
    }

    #[inline]
    fn put<T: Row>(&mut self, row: usize, value: T) {
        self.cells.write(T::array(self.tables), row, value);
    }

    #[inline]
    fn announce<T: Row, F: FieldValue>(&self, row: usize, column: Field<T, F>, intent: Intent) {
        self.cells.prefetch_field(T::array(self.tables), row, column, intent);
    }
}
