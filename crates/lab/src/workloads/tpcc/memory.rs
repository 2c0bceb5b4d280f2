//! What transactions read and write: the tables, wherever they lie.

use stillpoint_state::{Cells, Field, FieldValue, Intent, Scheme};

use crate::workloads::tpcc::load::Population;
use crate::workloads::tpcc::schema::{Row, Tables};

/// The tables, for a reader.
pub(crate) trait Rows {
    /// A column of a row.
    fn get<T: Row, F: FieldValue>(&self, row: usize, column: Field<T, F>) -> F;
    /// A whole row; zeros where there is none.
    fn row<T: Row>(&self, row: usize) -> T;
}

/// The tables, in the hands of the thread that runs a transaction.
pub(crate) trait Memory: Rows {
    /// Gives a column of a row a new value.
    fn set<T: Row, F: FieldValue>(&mut self, row: usize, column: Field<T, F>, value: F);
    /// Replaces a whole row.
    fn put<T: Row>(&mut self, row: usize, value: T);
    /// Says that a column of a row will be read or written soon.
    fn announce<T: Row, F: FieldValue>(&self, row: usize, column: Field<T, F>, intent: Intent);

    /// The customer in the middle of those who have this last name (2.5.2.2).
    fn named(&self, population: &Population, district: usize, name: u32) -> u32 {
        middle(population.by_name(district, name))
    }
}

/// The customer in the middle of those of a name, in the order of their first names.
///
/// # Panics
/// If there is nobody: every name of the load has somebody.
pub(crate) fn middle(named: &[u32]) -> u32 {
    named[(named.len() - 1) / 2]
}

/// The tables in cells that a scheme captures.
#[derive(Debug)]
pub(crate) struct InCells<'a, S: Scheme> {
    /// The cells.
    pub(crate) cells: &'a mut Cells<S>,
    /// Which arrays are which tables.
    pub(crate) tables: &'a Tables,
}

impl<S: Scheme> Rows for InCells<'_, S> {
    #[inline]
    fn get<T: Row, F: FieldValue>(&self, row: usize, column: Field<T, F>) -> F {
        self.cells.read_field(T::array(self.tables), row, column)
    }

    #[inline]
    fn row<T: Row>(&self, row: usize) -> T {
        self.cells.read(T::array(self.tables), row)
    }
}

impl<S: Scheme> Memory for InCells<'_, S> {
    #[inline]
    fn set<T: Row, F: FieldValue>(&mut self, row: usize, column: Field<T, F>, value: F) {
        self.cells.write_field(T::array(self.tables), row, column, value);
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
