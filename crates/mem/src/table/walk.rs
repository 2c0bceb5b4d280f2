//! Iteration over the cells of a table.

use super::place::Cursor;
use super::{Grain, Table};
use stillpoint_sync::atomic::AtomicU8;

/// An iterator over cells in order. The iterator finds each cell from the one before, without the
/// division of [`Table::cell`]. Made by [`Table::walk`].
#[derive(Debug)]
pub struct CellCursor<'a, G: Grain> {
    table: &'a Table<G>,
    cursor: Cursor,
    end: usize,
}

/// A cell with its copies and marks, as a [`CellCursor`] yields it.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a, G: Grain> {
    table: &'a Table<G>,
    cursor: Cursor,
}

impl<'a, G: Grain> CellCursor<'a, G> {
    /// The caller has checked that the table has the cells `first..end`.
    pub(super) fn new(table: &'a Table<G>, first: usize, end: usize) -> Self {
        Self { table, cursor: table.places.cursor(first), end }
    }
}

impl<'a, G: Grain> Iterator for CellCursor<'a, G> {
    type Item = Spot<'a, G>;

    #[inline(always)]
    fn next(&mut self) -> Option<Spot<'a, G>> {
        if self.cursor.index == self.end {
            return None;
        }
        let spot = Spot { table: self.table, cursor: self.cursor };
        self.table.places.advance(&mut self.cursor);
        Some(spot)
    }
}

impl<'a, G: Grain> Spot<'a, G> {
    /// The caller has checked that the table has the cell.
    #[inline(always)]
    pub(super) fn new(table: &'a Table<G>, index: usize) -> Self {
        Self { table, cursor: table.places.cursor(index) }
    }

    /// The cell's number.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.cursor.index
    }

    /// One copy of the cell.
    ///
    /// # Panics
    /// If there is no such copy.
    #[inline(always)]
    pub fn cell(&self, copy: usize) -> &'a [G] {
        assert!(copy < self.table.shape.copies, "no such cell");
        self.table.backing.cell_at(&self.table.places, &self.cursor, copy)
    }

    /// The cell's mark in a column.
    ///
    /// # Panics
    /// If there is no such column, cells share marks, or the cell has several.
    #[inline(always)]
    pub fn mark(&self, column: usize) -> &'a AtomicU8 {
        assert!(column < self.table.own_mark_columns, "no such mark");
        self.table.backing.mark_at(&self.table.places, &self.cursor, column)
    }

    /// The mark of a part of the cell in a column that is an array. A cell has one mark or several in a
    /// column.
    ///
    /// # Panics
    /// If there is no such column or mark, cells share marks, or marks lie beside their cells.
    #[inline(always)]
    pub fn mark_of_part(&self, column: usize, part: usize) -> &'a AtomicU8 {
        let (table, marks_per_cell) = (self.table, self.table.shape.marks_per_cell);
        assert!(column < table.part_mark_columns && part < marks_per_cell, "no such mark");
        let number = self.cursor.index * marks_per_cell + part;
        table.backing.mark_in_array(&table.places, column, number)
    }
}
