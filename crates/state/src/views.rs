//! One array, or one cell, found once for many reads and writes. Chunks of an array for several threads.
//!
//! A chunk is a range of cells that shares no mark, and no word of marks, with other cells. So threads may
//! write different chunks side by side, by the same rules of the scheme as the mutator alone. A copier is
//! held off meanwhile, since its [`Frontier`](crate::Frontier) knows one writer only.

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_mem::{Grain, copy_grains};

use crate::arrays::{Array, Cells};
use crate::frontier::FrontierHold;
use crate::grid::{Grid, LINE_BYTES, lines_near, load_part, store_part};
use crate::plain::{CELL_BYTES_MAX, Field, FieldValue, Plain};
use crate::scheme::{Extent, Intent, LiveCopy, Scheme};

/// One array, to read from.
#[derive(Debug)]
pub struct ArrayRef<'a, T: Plain, S: Scheme> {
    pub(crate) grid: &'a Grid<T::Grain, S::Layout>,
    pub(crate) turn: LiveCopy,
}

impl<'a, T: Plain, S: Scheme> ArrayRef<'a, T, S> {
    /// Number of cells.
    pub fn len(&self) -> usize {
        self.grid.cells()
    }

    /// True if there is no cell.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the lines of a cell have marks of their own.
    const HAS_LINES: bool = S::MARKS_LINES && T::BYTES > LINE_BYTES;

    /// The copy of a cell that holds the newest values of some of its bytes; `None` if they are in different
    /// copies.
    #[inline(always)]
    fn newest(&self, index: usize, bytes: Range<usize>) -> Option<&'a [T::Grain]> {
        if Self::HAS_LINES {
            let (spot, lines) = (self.grid.spot(index), lines_near(&bytes, T::BYTES));
            return S::handle_read_lines(self.grid, self.turn, &spot, lines)
                .map(|it| spot.cell(it));
        }
        Some(self.grid.cell(S::handle_read(self.grid, self.turn, index), index))
    }

    /// As [`Cells::read`].
    #[inline(always)]
    pub fn read(&self, index: usize) -> T {
        match self.newest(index, 0..T::BYTES) {
            Some(cell) => T::load(cell),
            None => match T::BYTES {
                ..=128 => self.gather::<16>(index),
                129..=512 => self.gather::<64>(index),
                _ => self.gather::<{ CELL_BYTES_MAX / 8 }>(index),
            },
        }
    }

    /// Reads a cell whose lines are in different copies by way of a cell of `GRAINS` grains or less.
    #[cold]
    #[inline(never)]
    fn gather<const GRAINS: usize>(&self, index: usize) -> T {
        let room: [T::Grain; GRAINS] = std::array::from_fn(|_| T::Grain::zero());
        for line in lines_near(&(0..T::BYTES), T::BYTES) {
            let grains = self.grid.grains_of_line(line);
            copy_grains(&self.line(index, line)[grains.clone()], &room[grains]);
        }
        T::load(&room[..T::BYTES / T::Grain::BYTES])
    }

    /// The copy of a cell that holds the newest values of a line.
    fn line(&self, index: usize, line: usize) -> &'a [T::Grain] {
        let spot = self.grid.spot(index);
        let copy = S::handle_read_lines(self.grid, self.turn, &spot, line..line + 1);
        spot.cell(copy.expect("one line is in one copy"))
    }

    /// As [`Cells::read_part`].
    #[inline]
    pub fn read_part(&self, index: usize, offset: usize, bytes: &mut [u8]) {
        check_part::<T>(offset, bytes.len());
        self.load_part(index, offset, bytes);
    }

    #[inline(always)]
    fn load_part(&self, index: usize, offset: usize, bytes: &mut [u8]) {
        match self.newest(index, offset..offset + bytes.len()) {
            Some(cell) => load_part(cell, offset, bytes),
            None => self.gather_part(index, offset, bytes),
        }
    }

    /// Reads bytes of lines that are in different copies.
    #[cold]
    #[inline(never)]
    fn gather_part(&self, index: usize, offset: usize, bytes: &mut [u8]) {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let in_line = LINE_BYTES - at % LINE_BYTES;
            let (head, tail) = rest.split_at_mut(in_line.min(rest.len()));
            load_part(self.line(index, at / LINE_BYTES), at, head);
            at += head.len();
            rest = tail;
        }
    }

    /// As [`Cells::read_field`].
    #[inline]
    pub fn read_field<F: FieldValue>(&self, index: usize, field: Field<T, F>) -> F {
        F::read_with(|bytes| self.load_part(index, field.offset(), bytes))
    }

    /// The newest values of all cells, in order.
    pub fn into_values(self) -> impl ExactSizeIterator<Item = T> + use<'a, T, S> {
        (0..self.len()).map(move |index| self.read(index))
    }

    /// As [`Cells::prefetch`].
    #[inline(always)]
    pub fn prefetch(&self, index: usize, intent: Intent) {
        S::prefetch(self.grid, self.turn, index, 0, intent);
    }

    /// As [`Cells::prefetch_field`].
    #[inline(always)]
    pub fn prefetch_field<F: FieldValue>(&self, index: usize, field: Field<T, F>, intent: Intent) {
        S::prefetch(self.grid, self.turn, index, field.offset(), intent);
    }
}

/// One array, to read from and to write to.
#[derive(Debug)]
pub struct ArrayMut<'a, T: Plain, S: Scheme> {
    pub(crate) grid: &'a Grid<T::Grain, S::Layout>,
    pub(crate) turn: LiveCopy,
}

impl<'a, T: Plain, S: Scheme> ArrayMut<'a, T, S> {
    /// The same array, to read from.
    #[inline(always)]
    pub fn as_ref(&self) -> ArrayRef<'_, T, S> {
        ArrayRef { grid: self.grid, turn: self.turn }
    }

    /// As [`Cells::read`].
    #[inline(always)]
    pub fn read(&self, index: usize) -> T {
        self.as_ref().read(index)
    }

    /// As [`Cells::write`].
    #[inline(always)]
    pub fn write(&mut self, index: usize, value: T) {
        let store = |cell: &[T::Grain]| value.store(cell);
        if ArrayRef::<T, S>::HAS_LINES {
            return S::handle_write_lines(self.grid, self.turn, index, 0..T::BYTES, store);
        }
        S::handle_write(self.grid, self.turn, index, Extent::Whole, store);
    }

    /// As [`Cells::update`].
    #[inline]
    pub fn update<R>(&mut self, index: usize, change: impl FnOnce(&mut T) -> R) -> R {
        let mut value = self.read(index);
        let result = change(&mut value);
        self.write(index, value);
        result
    }

    /// All cells, in order, each to be read and written.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = CellMut<'_, T, S>> {
        ArrayMut { grid: self.grid, turn: self.turn }.into_cells()
    }

    /// The array divided into chunks of at least so many cells, for threads that write side by side inside
    /// a tick. A chunk is a little longer where its cells share marks with those behind it. Until the
    /// chunks are given back, a scheme's copier waits; if it is at work, it first ends some KiB.
    ///
    /// The step must come to the same result in whatever order the threads run, since it runs again after
    /// a crash.
    ///
    /// ```
    /// # use stillpoint_state::{Arrays, Interleaved, schemes::Piggyback};
    /// # let mut builder = Arrays::<Piggyback<Interleaved>>::builder();
    /// let places = builder.array::<[f32; 3]>("places", 10_000);
    /// let speeds = builder.array::<[f32; 3]>("speeds", 10_000);
    /// # let mut arrays = builder.build()?;
    /// # arrays.write(speeds, 7, [1.0; 3]);
    /// let (mut places, speeds) = arrays.arrays_mut((places, speeds));
    /// let speeds = speeds.as_ref();
    /// let mut chunks = places.chunks_mut(2_500);
    /// std::thread::scope(|threads| {
    ///     for mut chunk in chunks.iter_mut() {
    ///         let speeds = &speeds;
    ///         threads.spawn(move || {
    ///             for mut place in chunk.iter_mut() {
    ///                 let speed = speeds.read(place.index());
    ///                 place.update(|place| (0..3).for_each(|n| place[n] += speed[n]));
    ///             }
    ///         });
    ///     }
    /// });
    /// drop(chunks);
    /// assert_eq!(places.read(7), [1.0; 3]);
    /// # Ok::<(), stillpoint_state::ArraysError>(())
    /// ```
    pub fn chunks_mut(&mut self, cells: usize) -> ChunksMut<'_, T, S> {
        ChunksMut::new(ArrayMut { grid: self.grid, turn: self.turn }, cells)
    }

    pub(crate) fn into_cells(
        self,
    ) -> impl ExactSizeIterator<Item = CellMut<'a, T, S>> + use<'a, T, S> {
        let cells = 0..self.grid.cells();
        self.into_cells_of(cells)
    }

    pub(crate) fn into_cells_of(
        self,
        cells: Range<usize>,
    ) -> impl ExactSizeIterator<Item = CellMut<'a, T, S>> + use<'a, T, S> {
        let (grid, turn) = (self.grid, self.turn);
        cells.map(move |index| CellMut {
            array: ArrayMut { grid, turn },
            index,
            one_thread: PhantomData,
        })
    }

    /// As [`Cells::write_part`].
    #[inline]
    pub fn write_part(&mut self, index: usize, offset: usize, bytes: &[u8]) {
        check_part::<T>(offset, bytes.len());
        self.store_part(index, offset, bytes);
    }

    #[inline(always)]
    fn store_part(&mut self, index: usize, offset: usize, bytes: &[u8]) {
        let store = |cell: &[T::Grain]| store_part(cell, offset, bytes);
        if ArrayRef::<T, S>::HAS_LINES {
            let written = offset..offset + bytes.len();
            return S::handle_write_lines(self.grid, self.turn, index, written, store);
        }
        let extent = if bytes.len() == T::BYTES { Extent::Whole } else { Extent::Part };
        S::handle_write(self.grid, self.turn, index, extent, store);
    }

    /// As [`Cells::write_field`].
    #[inline]
    pub fn write_field<F: FieldValue>(&mut self, index: usize, field: Field<T, F>, value: F) {
        value.write_with(|bytes| self.store_part(index, field.offset(), bytes));
    }
}

/// One cell, to read from and to write to, in the mutator's own thread.
#[derive(Debug)]
pub struct CellMut<'a, T: Plain, S: Scheme> {
    array: ArrayMut<'a, T, S>,
    index: usize,
    /// Cells share marks, so two threads must not write cells of one array.
    one_thread: PhantomData<*const ()>,
}

impl<T: Plain, S: Scheme> CellMut<'_, T, S> {
    /// The index of the cell.
    pub fn index(&self) -> usize {
        self.index
    }

    /// As [`Cells::read`].
    #[inline(always)]
    pub fn read(&self) -> T {
        self.array.read(self.index)
    }

    /// As [`Cells::write`].
    #[inline(always)]
    pub fn write(&mut self, value: T) {
        self.array.write(self.index, value);
    }

    /// As [`Cells::update`].
    #[inline]
    pub fn update<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        self.array.update(self.index, change)
    }

    /// As [`Cells::read_field`].
    #[inline]
    pub fn read_field<F: FieldValue>(&self, field: Field<T, F>) -> F {
        self.array.as_ref().read_field(self.index, field)
    }

    /// As [`Cells::write_field`].
    #[inline]
    pub fn write_field<F: FieldValue>(&mut self, field: Field<T, F>, value: F) {
        self.array.write_field(self.index, field, value);
    }
}

/// One array, divided into chunks: see [`ArrayMut::chunks_mut`].
#[derive(Debug)]
pub struct ChunksMut<'a, T: Plain, S: Scheme> {
    array: ArrayMut<'a, T, S>,
    chunk_cells: usize,
    _held: FrontierHold<'a>,
}

impl<'a, T: Plain, S: Scheme> ChunksMut<'a, T, S> {
    pub(crate) fn new(array: ArrayMut<'a, T, S>, cells: usize) -> Self {
        // The program may ask for any length. No chunk is longer than the array.
        let asked = cells.clamp(1, array.grid.cells().max(1));
        let chunk_cells = asked.next_multiple_of(array.grid.cells_apart());
        let held = array.grid.frontier().hold();
        Self { array, chunk_cells, _held: held }
    }

    /// Cells of each chunk, except the last one.
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

/// Some cells of an array, owned by one thread. Cells keep their indices in the array.
#[derive(Debug)]
pub struct ChunkMut<'a, T: Plain, S: Scheme> {
    array: ArrayMut<'a, T, S>,
    cells: Range<usize>,
}

impl<T: Plain, S: Scheme> ChunkMut<'_, T, S> {
    /// The indices of the chunk's cells.
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

mod sealed {
    pub trait Sealed {}
}

/// Two to four arrays of one state, for [`Cells::arrays_mut`].
pub trait ArraySet<S: Scheme>: sealed::Sealed {
    /// The same arrays, to read from and to write to.
    type Muts<'a>;
    /// The body of [`Cells::arrays_mut`].
    fn borrow(self, cells: &mut Cells<S>) -> Self::Muts<'_>;
}

macro_rules! array_set {
    ($($type:ident $name:ident),+) => {
        impl<$($type: Plain),+> sealed::Sealed for ($(Array<$type>,)+) {}
        impl<S: Scheme, $($type: Plain),+> ArraySet<S> for ($(Array<$type>,)+) {
            type Muts<'a> = ($(ArrayMut<'a, $type, S>,)+);
            #[inline]
            fn borrow(self, cells: &mut Cells<S>) -> Self::Muts<'_> {
                let ($($name,)+) = self;
                let mut slots = [$($name.slot()),+];
                slots.sort_unstable();
                assert!(slots.windows(2).all(|pair| pair[0] != pair[1]), "the same array twice");
                let cells = &*cells;
                ($(cells.view_mut($name),)+)
            }
        }
    };
}

array_set!(A a, B b);
array_set!(A a, B b, C c);
array_set!(A a, B b, C c, D d);

#[inline]
fn check_part<T: Plain>(offset: usize, len: usize) {
    let end = offset.checked_add(len);
    assert!(end.is_some_and(|end| end <= T::BYTES), "a part lies inside its cell");
}
