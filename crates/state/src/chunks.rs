//! One array in the hands of several threads: parallel systems inside a tick.
//!
//! A chunk is a range of cells that shares no mark, and no word of marks, with other cells. So threads may
//! write different chunks side by side, by the same rules of the scheme as the mutator alone. A copier is
//! held off meanwhile, since its [`Frontier`](crate::Frontier) knows one writer only.

use std::ops::Range;

use crate::frontier::Held;
use crate::plain::{Field, FieldValue, Plain};
use crate::scheme::Scheme;
use crate::views::{ArrayMut, CellMut};

/// One array, divided into chunks: see [`ArrayMut::chunks_mut`].
#[derive(Debug)]
pub struct ChunksMut<'a, T: Plain, S: Scheme> {
    array: ArrayMut<'a, T, S>,
    chunk_cells: usize,
    _held: Held<'a>,
}

impl<'a, T: Plain, S: Scheme> ChunksMut<'a, T, S> {
    pub(crate) fn new(array: ArrayMut<'a, T, S>, cells: usize) -> Self {
        let chunk_cells = cells.max(1).next_multiple_of(array.grid.cells_apart());
        let held = array.grid.frontier().hold();
        Self { array, chunk_cells, _held: held }
    }

    /// Cells of a chunk, but for the last one.
    pub fn chunk_cells(&self) -> usize {
        self.chunk_cells
    }

    /// The chunks, in order. Each may be given to another thread.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = ChunkMut<'_, T, S>> {
        let (cells, step) = (self.array.grid.cells(), self.chunk_cells);
        let array = &self.array;
        (0..cells.div_ceil(step)).map(move |number| ChunkMut {
            array: ArrayMut { grid: array.grid, turn: array.turn },
            cells: number * step..((number + 1) * step).min(cells),
        })
    }
}

/// Some cells of an array, in the hands of one thread. Cells keep their indices in the array.
#[derive(Debug)]
pub struct ChunkMut<'a, T: Plain, S: Scheme> {
    array: ArrayMut<'a, T, S>,
    cells: Range<usize>,
}

impl<T: Plain, S: Scheme> ChunkMut<'_, T, S> {
    /// The indices of its cells.
    pub fn range(&self) -> Range<usize> {
        self.cells.clone()
    }

    #[inline(always)]
    fn check(&self, index: usize) {
        assert!(self.cells.contains(&index), "a cell of this chunk");
    }

    /// As [`Cells::read`](crate::Cells::read).
    ///
    /// # Panics
    /// If the chunk has no such cell.
    #[inline(always)]
    pub fn read(&self, index: usize) -> T {
        self.check(index);
        self.array.read(index)
    }

    /// As [`Cells::write`](crate::Cells::write).
    ///
    /// # Panics
    /// If the chunk has no such cell.
    #[inline(always)]
    pub fn write(&mut self, index: usize, value: T) {
        self.check(index);
        self.array.write(index, value);
    }

    /// As [`Cells::update`](crate::Cells::update).
    ///
    /// # Panics
    /// If the chunk has no such cell.
    #[inline]
    pub fn update<R>(&mut self, index: usize, change: impl FnOnce(&mut T) -> R) -> R {
        self.check(index);
        self.array.update(index, change)
    }

    /// As [`Cells::read_field`](crate::Cells::read_field).
    ///
    /// # Panics
    /// If the chunk has no such cell.
    #[inline]
    pub fn read_field<F: FieldValue>(&self, index: usize, field: Field<T, F>) -> F {
        self.check(index);
        self.array.as_ref().read_field(index, field)
    }

    /// As [`Cells::write_field`](crate::Cells::write_field).
    ///
    /// # Panics
    /// If the chunk has no such cell.
    #[inline]
    pub fn write_field<F: FieldValue>(&mut self, index: usize, field: Field<T, F>, value: F) {
        self.check(index);
        self.array.write_field(index, field, value);
    }

    /// All cells of the chunk, in order, each to be read and written.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = CellMut<'_, T, S>> {
        let array = ArrayMut { grid: self.array.grid, turn: self.array.turn };
        array.into_cells_of(self.cells.clone())
    }
}
