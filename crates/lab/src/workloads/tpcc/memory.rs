//! The tables as transactions see them, independent of their storage.

use std::ops::Range;

use stillpoint_state::Intent::Read;
use stillpoint_state::{Cells, Field, FieldValue, Intent, Scheme};

use crate::workloads::tpcc::load::Population;
use crate::workloads::tpcc::schema::{LINES_MAX, Order, OrderLine, Scale, TableRow, Tables};

/// Tables that can be read.
pub(crate) trait Rows {
    /// A column of a row.
    fn get<T: TableRow, F: FieldValue>(&self, row: usize, column: Field<T, F>) -> F;
    /// A whole row. Zeros if there is none.
    fn row<T: TableRow>(&self, row: usize) -> T;
}

/// Tables that a transaction can read and write.
pub(crate) trait Memory: Rows {
    /// Gives a column of a row a new value.
    fn set<T: TableRow, F: FieldValue>(&mut self, row: usize, column: Field<T, F>, value: F);
    /// Replaces a whole row.
    fn put<T: TableRow>(&mut self, row: usize, value: T);
    /// Prefetches a column of a row.
    fn announce<T: TableRow, F: FieldValue>(&self, row: usize, column: Field<T, F>, intent: Intent);

    /// The items of all lines of some orders of a district. Returns how many `items` has got.
    fn items_of(
        &self,
        scale: &Scale,
        district: usize,
        orders: Range<u32>,
        items: &mut [u32; 20 * LINES_MAX],
    ) -> usize {
        let row = |order: u32| scale.order_row(district, order);
        orders.clone().for_each(|order| self.announce(row(order), Order::LINES, Read));
        let mut count = 0;
        for order in orders {
            let lines = usize::from(self.get(row(order), Order::LINES));
            for line in row(order) * LINES_MAX..row(order) * LINES_MAX + lines {
                items[count] = self.get(line, OrderLine::ITEM);
                count += 1;
            }
        }
        count
    }

    /// The middle one of the customers with this last name (2.5.2.2).
    fn named(&self, population: &Population, district: usize, name: u32) -> u32 {
        middle(population.by_name(district, name))
    }
}

/// The middle one of the customers with a last name, in the order of first names.
///
/// # Panics
/// If nobody has the name. Every name of the load has a customer.
pub(crate) fn middle(named: &[u32]) -> u32 {
    named[(named.len() - 1) / 2]
}

/// The tables in cells that a scheme captures.
#[derive(Debug)]
pub(crate) struct InCells<'a, S: Scheme> {
    /// The cells of the arrays.
    pub(crate) cells: &'a mut Cells<S>,
    /// The array of each table.
    pub(crate) tables: &'a Tables,
}

impl<S: Scheme> Rows for InCells<'_, S> {
    #[inline(always)]
    fn get<T: TableRow, F: FieldValue>(&self, row: usize, column: Field<T, F>) -> F {
        self.cells.read_field(T::array(self.tables), row, column)
    }

    #[inline(always)]
    fn row<T: TableRow>(&self, row: usize) -> T {
        self.cells.read(T::array(self.tables), row)
    }
}

impl<S: Scheme> Memory for InCells<'_, S> {
    #[inline(always)]
    fn set<T: TableRow, F: FieldValue>(&mut self, row: usize, column: Field<T, F>, value: F) {
        self.cells.write_field(T::array(self.tables), row, column, value);
    }

    #[inline(always)]
    fn put<T: TableRow>(&mut self, row: usize, value: T) {
        self.cells.write(T::array(self.tables), row, value);
    }

    #[inline(always)]
    fn announce<T: TableRow, F: FieldValue>(
        &self,
        row: usize,
        column: Field<T, F>,
        intent: Intent,
    ) {
        self.cells.prefetch_field(T::array(self.tables), row, column, intent);
    }
}
