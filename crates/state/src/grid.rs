//! One array: its cells in as many copies as the scheme wants, and the marks.

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_io::{ForkError, ForkedMemory, WrittenPages, WrittenPagesError};
use stillpoint_mem::{
    Grain, PageSize, Placement, RegionError, Spot, Table, TableShape, copy_grains,
};
use stillpoint_sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use stillpoint_sync::{Mutex, mutant};

use crate::bits::{BitMarks, MARKS_PER_WORD_MAX};
use crate::frontier::Frontier;
use crate::layout::Layout;
use crate::planted;

mod lines;

pub use lines::LINE_BYTES;
pub(crate) use lines::{line_of_part, lines_near, lines_per_cell};

/// The cells of an array and their marks, as a scheme sees them.
///
/// Nothing here synchronises: a scheme's rules say which thread may touch which copy of a cell, and
/// which column of marks, in a period. Memory stays well-defined even if a scheme breaks these
/// rules.
#[derive(Debug)]
pub struct Grid<G: Grain, L: Layout> {
    table: Table<G>,
    bits: BitMarks,
    /// log2 of the cells that share a mark.
    cells_per_mark_log2: u32,
    marks_per_cell: usize,
    frontier: Frontier,
    /// Tells which pages of the first copy were written.
    written: Option<Mutex<WrittenPages>>,
    layout: PhantomData<L>,
}

/// Bytes of cells that a copier keeps for itself at a time. A write at that place waits for some
/// microseconds of copying, which is enough to pay for an ordinary fence.
#[cfg(not(any(loom, shuttle)))]
const PIECE_BYTES: usize = 16 << 10;
/// In models each mark is a piece.
#[cfg(any(loom, shuttle))]
const PIECE_BYTES: usize = 1;

/// The copies and marks that a scheme needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellRequirements {
    /// Copies of each cell.
    pub copies: usize,
    /// Columns of marks.
    pub mark_columns: usize,
    /// Bits of a mark: 1 or 2, or 8 in layouts whose marks are bytes.
    pub mark_bits: u32,
    /// Cells that share a mark: a power of two.
    pub cells_per_mark: usize,
    /// Marks of a cell, one for each line of [`LINE_BYTES`] bytes. More than 1 only with one cell per mark,
    /// and only for cells longer than a line.
    pub marks_per_cell: usize,
    /// True if the system is to tell which pages of the first copy were written.
    pub tracks_writes: bool,
}

/// Why an array cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum GridError {
    /// The memory cannot be had.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// The system does not tell which pages were written.
    #[error(transparent)]
    Tracking(#[from] WrittenPagesError),
}

/// Bytes of neighbouring cells that share a mark, where marks lie apart from cells: a cache line.
#[cfg(not(any(loom, shuttle)))]
const BLOCK_BYTES: usize = 64;
/// In models few cells make several blocks.
#[cfg(any(loom, shuttle))]
const BLOCK_BYTES: usize = 16;

/// True if the layout keeps marks beside their cells, one for each.
pub(crate) const fn has_marks_beside<L: Layout>() -> bool {
    !matches!(L::PLACEMENT, Placement::Apart) && !L::BITS
}

/// Cells that share a mark, for schemes that bring over blocks: as many as a cache line holds, rounded
/// down to a power of two. Where marks lie beside their cells each cell has its own.
pub(crate) fn cells_per_block<L: Layout>(cell_bytes: usize) -> usize {
    if has_marks_beside::<L>() {
        return 1;
    }
    1 << (BLOCK_BYTES / cell_bytes).max(1).ilog2()
}

/// Has the system watch the first copy. Without cells there is nothing to watch.
#[cfg(not(any(loom, shuttle)))]
fn track<G: Grain>(table: &Table<G>) -> Result<Option<Mutex<WrittenPages>>, WrittenPagesError> {
    assert!(table.shape().placement == Placement::Apart, "the first copy is one piece of memory");
    let cells = table.len();
    let watch = || WrittenPages::track(table.run(0, 0, cells)).map(Mutex::new);
    (cells > 0).then(watch).transpose()
}

/// The memory of models is none that the system knows of.
#[cfg(any(loom, shuttle))]
fn track<G: Grain>(_: &Table<G>) -> Result<Option<Mutex<WrittenPages>>, WrittenPagesError> {
    Ok(None)
}

impl<G: Grain, L: Layout> Grid<G, L> {
    /// An array of `cells` cells of `cell_grains` grains, all zero.
    ///
    /// # Errors
    /// The address space does not suffice, or the system does not tell which pages were written.
    ///
    /// # Panics
    /// If the cells that share a mark are no power of two.
    pub fn new(
        cells: usize,
        cell_grains: usize,
        needs: CellRequirements,
        pages: PageSize,
    ) -> Result<Self, GridError> {
        assert!(needs.cells_per_mark.is_power_of_two(), "a shift leads from a cell to its mark");
        let table = Table::new(&TableShape {
            cells,
            cell_grains,
            copies: needs.copies,
            mark_columns: if L::BITS { 0 } else { needs.mark_columns },
            cells_per_mark: needs.cells_per_mark,
            marks_per_cell: if L::BITS { 1 } else { needs.marks_per_cell },
            placement: L::PLACEMENT,
            pages,
        })?;
        let marks = cells.div_ceil(needs.cells_per_mark) * needs.marks_per_cell;
        let bits = if L::BITS && needs.mark_columns > 0 {
            BitMarks::new(marks, needs.mark_columns, needs.mark_bits, pages)?
        } else {
            BitMarks::none()
        };
        let cells_per_mark_log2 = needs.cells_per_mark.ilog2();
        let cell_bytes = cell_grains * G::BYTES;
        let mark_bytes = (needs.cells_per_mark * cell_bytes / needs.marks_per_cell).max(1);
        // No word of marks lies in two pieces.
        let piece_min = if L::BITS { MARKS_PER_WORD_MAX } else { 1 };
        let frontier = Frontier::new(marks, (PIECE_BYTES / mark_bytes).max(piece_min));
        let written = if needs.tracks_writes { track(&table)? } else { None };
        let marks_per_cell = needs.marks_per_cell;
        let layout = PhantomData;
        Ok(Self { table, bits, cells_per_mark_log2, marks_per_cell, frontier, written, layout })
    }

    /// Cells.
    #[inline]
    pub fn cells(&self) -> usize {
        self.table.len()
    }

    /// Bytes of a cell.
    #[inline]
    pub fn cell_bytes(&self) -> usize {
        self.table.shape().cell_grains * G::BYTES
    }

    /// Copies of each cell.
    #[inline]
    pub fn copies(&self) -> usize {
        self.table.shape().copies
    }

    /// Bytes of address space, marks included.
    pub fn len_bytes(&self) -> usize {
        self.table.len_bytes() + self.bits.len_bytes()
    }

    /// Leaves the cells out of child processes, so that a fork does not copy their page tables.
    pub(crate) fn keep_from_children(&self) {
        self.table.keep_from_children();
    }

    /// Cells that share a mark.
    #[inline]
    pub fn cells_per_mark(&self) -> usize {
        1 << self.cells_per_mark_log2
    }

    /// At every multiple of this number an array may be divided between threads. The cells of the two sides
    /// share neither a mark nor a word of marks.
    pub(crate) fn cells_apart(&self) -> usize {
        let marks = if L::BITS { MARKS_PER_WORD_MAX } else { 1 };
        mutant!(marks * self.cells_per_mark(), ChunksShareMarks => 1)
    }

    /// The number of a cell's only mark.
    #[inline(always)]
    pub fn mark_at(&self, index: usize) -> usize {
        index >> self.cells_per_mark_log2
    }

    /// Marks of a column.
    #[inline]
    pub fn marks(&self) -> usize {
        self.cells().div_ceil(self.cells_per_mark()) * self.marks_per_cell
    }

    /// The range of the marks of some cells.
    #[inline]
    pub fn marks_of(&self, cells: &Range<usize>) -> Range<usize> {
        let marks = self.mark_at(cells.start)..cells.end.div_ceil(self.cells_per_mark());
        marks.start * self.marks_per_cell..marks.end * self.marks_per_cell
    }

    /// Calls `each` with the cells of some marks: ranges of whole cells with all their grains, and
    /// single cells with some of their grains.
    #[inline]
    fn for_each_span(&self, marks: Range<usize>, mut each: impl FnMut(Range<usize>, Range<usize>)) {
        let all = 0..self.table.shape().cell_grains;
        let lines = self.marks_per_cell;
        if lines == 1 {
            let end = self.cells_of(marks.end - 1).end;
            return each(self.cells_of(marks.start).start..end, all);
        }
        let mut at = marks.start;
        while at < marks.end {
            let (first, from) = self.line_of(at);
            let whole = if from.start == 0 { (marks.end - at) / lines } else { 0 };
            if whole > 0 {
                each(first..first + whole, all.clone());
                at += whole * lines;
                continue;
            }
            let end = marks.end.min((first + 1) * lines);
            each(first..first + 1, from.start..self.line_of(end - 1).1.end);
            at = end;
        }
    }

    /// The cells that share a mark, which is not the mark of a line.
    #[inline(always)]
    pub fn cells_of(&self, mark: usize) -> Range<usize> {
        let first = mark << self.cells_per_mark_log2;
        first..(first + self.cells_per_mark()).min(self.cells())
    }

    /// How far the copier has come, for the schemes that have one.
    #[inline(always)]
    pub fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// One copy of a cell.
    ///
    /// # Panics
    /// If there is no such cell or copy.
    #[inline]
    pub fn cell(&self, copy: usize, index: usize) -> &[G] {
        self.table.cell(copy, index)
    }

    /// A cell with its copies and marks, found once for all of them.
    ///
    /// # Panics
    /// If there is no such cell.
    #[inline(always)]
    pub fn spot(&self, index: usize) -> Spot<'_, G> {
        self.table.spot(index)
    }

    /// Prefetches the cache line of a byte of a cell.
    #[inline(always)]
    pub fn prefetch(&self, copy: usize, index: usize, offset: usize) {
        self.table.prefetch(copy, index, offset / G::BYTES);
    }

    /// Prefetches the cache line that holds a cell with all its copies and marks. An index without a
    /// cell is ignored. Not for arrays with columns of marks.
    #[inline(always)]
    pub fn prefetch_line(&self, index: usize) {
        self.table.prefetch_line(index);
    }

    /// As [`prefetch`](Self::prefetch), of a cell that was found already.
    #[inline(always)]
    pub fn prefetch_at(&self, copy: usize, spot: &Spot<'_, G>, offset: usize) {
        if let Some(grain) = spot.cell(copy).get(offset / G::BYTES) {
            stillpoint_mem::prefetch(grain);
        }
    }

    /// Prefetches a mark.
    #[inline(always)]
    pub fn prefetch_mark(&self, column: usize, mark: usize) {
        if L::BITS {
            self.bits.prefetch(column, mark);
        } else {
            self.table.prefetch_mark(column, mark);
        }
    }

    /// True if each column of marks lies apart from the cells. Otherwise one cache line holds a cell
    /// with all its copies and marks.
    #[inline(always)]
    pub fn has_columns_of_marks(&self) -> bool {
        L::BITS || self.table.has_columns_of_marks()
    }

    /// Overwrites copy `to` with copy `from`, in all cells of these marks.
    pub fn copy_marks(&self, from: usize, to: usize, marks: Range<usize>) {
        self.for_each_span(marks, |cells, grains| {
            if grains.len() == self.table.shape().cell_grains {
                return self.table.copy_cells(from, to, cells);
            }
            let (from, to) = (self.cell(from, cells.start), self.cell(to, cells.start));
            copy_grains(&from[grains.clone()], &to[grains]);
        });
    }

    /// Overwrites copy `to` of a cell with copy `from`.
    #[inline]
    pub fn copy_cell(&self, from: usize, to: usize, index: usize) {
        copy_grains(self.table.cell(from, index), self.table.cell(to, index));
    }

    /// Overwrites copy `to` of some cells with copy `from`.
    pub fn copy_cells(&self, from: usize, to: usize, cells: Range<usize>) {
        self.table.copy_cells(from, to, cells);
    }

    /// Overwrites copy `to` with copy 0, in all pages of copy 0 that were written since the last
    /// call. Copies all pages if the system does not tell which were written.
    pub fn copy_written(&self, to: usize) {
        let all = || self.table.copy_cells(0, to, 0..self.cells());
        let Some(written) = &self.written else { return all() };
        let cell_bytes = self.cell_bytes();
        let told = written.lock().take(|bytes| {
            let mut end = bytes.end;
            mutant!(OnePageOfEachRange => end = end.min(bytes.start + 4096));
            let cells = bytes.start / cell_bytes..end.div_ceil(cell_bytes);
            self.table.copy_cells(0, to, cells);
        });
        if told.is_err() {
            all();
        }
    }

    /// Overwrites copy `to` with copy `from`, in the cells that share a mark.
    #[inline(always)]
    pub fn copy_marked(&self, from: usize, to: usize, mark: usize) {
        self.table.copy_marked(from, to, mark);
    }

    /// Reads the bytes of one copy of some cells, little-endian.
    ///
    /// # Panics
    /// If `bytes` is not as long as those cells.
    pub fn read_bytes(&self, copy: usize, cells: Range<usize>, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), cells.len() * self.cell_bytes(), "room for those cells");
        if L::PLACEMENT == Placement::Rows && !self.has_columns_of_marks() {
            return self
                .for_each_cell(cells, bytes, |spot, room| load_bytes(spot.cell(copy), room));
        }
        let (mut at, mut rest) = (cells.start, bytes);
        while at < cells.end {
            let run = self.table.run(copy, at, cells.end - at);
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(run.len() * G::BYTES);
            load_bytes(run, head);
            rest = tail;
            at += run.len() / self.table.shape().cell_grains;
        }
    }

    /// As [`read_bytes`](Self::read_bytes), of cells as they were when the process was forked.
    ///
    /// # Errors
    /// The child has ended, or cannot be read.
    ///
    /// # Panics
    /// If `bytes` is not as long as those cells.
    pub fn read_forked(
        &self,
        forked: &ForkedMemory,
        copy: usize,
        cells: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), ForkError> {
        const { assert!(cfg!(target_endian = "little"), "memory has the order of images") };
        assert_eq!(bytes.len(), cells.len() * self.cell_bytes(), "room for those cells");
        let (mut at, mut rest) = (cells.start, bytes);
        while at < cells.end {
            let run = self.table.run(copy, at, cells.end - at);
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(size_of_val(run));
            forked.read(run, head)?;
            rest = tail;
            at += run.len() / self.table.shape().cell_grains;
        }
        Ok(())
    }

    /// Visits some cells in order, each with its room in `image`.
    ///
    /// # Panics
    /// If there are no such cells, or `image` is not as long.
    #[inline(always)]
    pub fn for_each_cell(
        &self,
        cells: Range<usize>,
        image: &mut [u8],
        mut each: impl FnMut(Spot<'_, G>, &mut [u8]),
    ) {
        assert_eq!(image.len(), cells.len() * self.cell_bytes(), "room for those cells");
        let rooms = image.chunks_exact_mut(self.cell_bytes());
        for (spot, room) in self.table.walk(cells.start, cells.end).zip(rooms) {
            each(spot, room);
        }
    }

    /// Calls `each` with some cells, in order.
    #[inline(always)]
    pub fn for_each_spot(&self, cells: Range<usize>, each: impl FnMut(Spot<'_, G>)) {
        self.table.walk(cells.start, cells.end).for_each(each);
    }

    /// Writes the bytes of one copy of some cells to their room in `image`: those cells whose marks
    /// in a column have this value.
    #[inline]
    pub fn read_marked(
        &self,
        copy: usize,
        (column, value): (usize, u8),
        cells: Range<usize>,
        image: &mut [u8],
    ) {
        let (first, bytes) = (cells.start, self.cell_bytes());
        if self.has_columns_of_marks() {
            let marks = self.marks_of(&cells);
            return self.for_each_run(column, value, marks, |run| {
                self.for_each_span(run, |run, grains| {
                    let (start, end) = (run.start.max(first), run.end.min(cells.end));
                    let room = &mut image[(start - first) * bytes..(end - first) * bytes];
                    if grains.len() * G::BYTES == bytes {
                        return self.read_bytes(copy, start..end, room);
                    }
                    let room = &mut room[grains.start * G::BYTES..grains.end * G::BYTES];
                    load_bytes(&self.cell(copy, start)[grains], room);
                });
            });
        }
        self.for_each_cell(cells, image, |spot, room| {
            // Relaxed: the hand-over of the column orders its stores.
            if spot.mark(column).load(Relaxed) == value {
                load_bytes(spot.cell(copy), room);
            }
        });
    }

    /// Sets every copy of some cells to these bytes, little-endian. For a state that nobody uses
    /// yet.
    ///
    /// # Panics
    /// If `bytes` is not as long as those cells.
    pub fn fill_bytes(&self, cells: Range<usize>, bytes: &[u8]) {
        assert_eq!(bytes.len(), cells.len() * self.cell_bytes(), "bytes of those cells");
        if L::PLACEMENT == Placement::Rows && !self.has_columns_of_marks() {
            let spots = self.table.walk(cells.start, cells.end);
            for (spot, bytes) in spots.zip(bytes.chunks_exact(self.cell_bytes())) {
                for copy in 0..self.copies() {
                    store_bytes(spot.cell(copy), bytes);
                }
            }
            return;
        }
        for copy in 0..self.copies() {
            let (mut at, mut rest) = (cells.start, bytes);
            while at < cells.end {
                let run = self.table.run(copy, at, cells.end - at);
                let (head, tail) = rest.split_at(run.len() * G::BYTES);
                store_bytes(run, head);
                rest = tail;
                at += run.len() / self.table.shape().cell_grains;
            }
        }
    }

    /// A mark. Acquire, where others may change it: pairs with [`publish_mark`](Self::publish_mark)
    /// and [`exchange_mark`](Self::exchange_mark).
    #[inline(always)]
    pub fn mark(&self, column: usize, mark: usize) -> u8 {
        if L::BITS {
            self.bits.get(column, mark)
        } else {
            self.table.mark(column, mark).load(Acquire)
        }
    }

    /// A mark in a column whose marks [`set_mark`](Self::set_mark) and its like set, also beside this
    /// call. Such a mark publishes no cell.
    #[inline(always)]
    pub fn plain_mark(&self, column: usize, mark: usize) -> u8 {
        if L::BITS {
            self.bits.get(column, mark)
        } else {
            // Relaxed: a hand-over of the column orders the stores before. After an Acquire the compiler
            // would read the shape of the table again.
            self.table.mark(column, mark).load(Relaxed)
        }
    }

    /// Sets a mark of a column that no other thread changes meanwhile. Returns the previous mark.
    #[inline(always)]
    pub fn replace_mark(&self, column: usize, mark: usize, value: u8) -> u8 {
        if L::BITS {
            let old = self.bits.get(column, mark);
            self.bits.set(column, mark, value);
            return old;
        }
        let mark = self.table.mark(column, mark);
        // Relaxed, no exchange: the mark is this thread's.
        let old = mark.load(Relaxed);
        mark.store(value, Relaxed);
        old
    }

    /// As [`plain_mark`](Self::plain_mark), of a cell that shares its mark with no other cell.
    #[inline(always)]
    pub fn mark_of(&self, column: usize, spot: &Spot<'_, G>) -> u8 {
        if L::BITS {
            self.bits.get(column, spot.index())
        } else {
            spot.mark(column).load(Relaxed) // as in `plain_mark`
        }
    }

    /// Sets the mark of a cell that shares it with no other, in a column that no other thread changes now.
    #[inline(always)]
    pub fn set_mark_of(&self, column: usize, spot: &Spot<'_, G>, value: u8) {
        if L::BITS {
            self.bits.set(column, spot.index(), value);
        } else {
            spot.mark(column).store(value, Relaxed); // as in `set_mark`
        }
    }

    /// Sets a mark of a column that no other thread changes now.
    #[inline(always)]
    pub fn set_mark(&self, column: usize, mark: usize, value: u8) {
        if L::BITS {
            self.bits.set(column, mark, value);
        } else {
            // Relaxed: the column belongs to this thread, and a later hand-over orders this store.
            self.table.mark(column, mark).store(value, Relaxed);
        }
    }

    /// Sets some marks of a column, which no other thread changes now.
    pub fn set_marks(&self, column: usize, marks: Range<usize>, value: u8) {
        if L::BITS {
            return marks.into_iter().for_each(|mark| self.bits.set(column, mark, value));
        }
        let mut at = marks.start;
        while at < marks.end {
            let run = self.table.marks(column, at, marks.end - at);
            for mark in run {
                // Relaxed: as in `set_mark`.
                mark.store(value, Relaxed);
            }
            at += run.len();
        }
    }

    /// Sets a mark of a column of which other threads may change other marks: Release.
    #[inline]
    pub fn publish_mark(&self, column: usize, mark: usize, value: u8) {
        if L::BITS {
            self.bits.publish(column, mark, value);
        } else {
            self.table.mark(column, mark).store(value, Release);
        }
    }

    /// Replaces the mark `from` by `to`. False if the mark is another one.
    #[inline]
    pub fn exchange_mark(&self, column: usize, mark: usize, from: u8, to: u8) -> bool {
        if L::BITS {
            return self.bits.exchange(column, mark, from, to);
        }
        // Relaxed on failure: the caller does not use the found mark.
        self.table.mark(column, mark).compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }

    /// Sets all marks of a column that no other thread changes now.
    pub fn fill_marks(&self, column: usize, value: u8) {
        if L::BITS {
            return self.bits.fill(column, value);
        }
        let (mut at, end) = (0, self.marks());
        while at < end {
            let run = self.table.marks(column, at, end - at);
            for mark in run {
                // Relaxed: as in `set_mark`.
                mark.store(value, Relaxed);
            }
            at += run.len();
        }
    }

    /// Clears the marks of a column that no other thread changes now. A mark that is clear is not
    /// written, so its cache line stays where it is.
    pub fn clear_marks(&self, column: usize) {
        if L::BITS {
            return self.bits.clear(column);
        }
        let (mut at, end) = (0, self.marks());
        while at < end {
            let run = self.table.marks(column, at, end - at);
            for mark in run {
                // Relaxed: as in `set_mark`.
                if mark.load(Relaxed) != 0 {
                    mark.store(0, Relaxed);
                }
            }
            at += run.len();
        }
    }

    /// Makes the marks (0 or 1) of one column the opposite of those of another. No other thread may
    /// change either now.
    pub fn negate_marks(&self, to: usize, from: usize) {
        if L::BITS {
            return self.bits.negate(to, from);
        }
        let (mut at, end) = (0, self.marks());
        while at < end {
            let from = self.table.marks(from, at, end - at);
            let to = self.table.marks(to, at, end - at);
            for (from, to) in from.iter().zip(to) {
                // Relaxed: as in `set_mark`.
                to.store(from.load(Relaxed) ^ 1, Relaxed);
            }
            at += from.len();
        }
    }

    /// Calls `each` with ranges of marks among `marks` that all have this value, in order, until
    /// none is left. Either the column belongs to this thread, or other threads may change marks to
    /// and from other values meanwhile. In the second case a range may be out of date.
    #[inline]
    pub fn for_each_run(
        &self,
        column: usize,
        value: u8,
        marks: Range<usize>,
        mut each: impl FnMut(Range<usize>),
    ) {
        if L::BITS {
            return self.bits.for_each_run(column, value, marks, each);
        }
        let mut at = marks.start;
        let mut run_start = None;
        while at < marks.end {
            let side_by_side = self.table.marks(column, at, marks.end - at);
            for (offset, mark) in side_by_side.iter().enumerate() {
                // Relaxed: see above.
                let is_equal = mark.load(Relaxed) == value;
                match run_start {
                    None if is_equal => run_start = Some(at + offset),
                    Some(start) if !is_equal => {
                        run_start = None;
                        each(start..at + offset);
                    }
                    _ => {}
                }
            }
            at += side_by_side.len();
        }
        if let Some(start) = run_start {
            each(start..marks.end);
        }
    }
}

/// Reads the bytes of grains, little-endian.
#[inline]
pub(crate) fn load_bytes<G: Grain>(from: &[G], bytes: &mut [u8]) {
    if let [grain] = from {
        return G::to_le(grain.get(), bytes);
    }
    for (grain, bytes) in from.iter().zip(bytes.chunks_exact_mut(G::BYTES)) {
        G::to_le(grain.get(), bytes);
    }
}

/// Gives grains the values of bytes, little-endian.
#[inline]
fn store_bytes<G: Grain>(to: &[G], bytes: &[u8]) {
    if let [grain] = to {
        return grain.set(G::from_le(bytes));
    }
    for (grain, bytes) in to.iter().zip(bytes.chunks_exact(G::BYTES)) {
        grain.set(G::from_le(bytes));
    }
}

/// Reads the bytes at an offset of a cell, little-endian.
#[inline(always)]
pub(crate) fn load_part<G: Grain>(cell: &[G], offset: usize, bytes: &mut [u8]) {
    let (grain, within) = (offset / G::BYTES, offset % G::BYTES);
    if bytes.is_empty() || within + bytes.len() > G::BYTES {
        return load_grains(cell, offset, bytes);
    }
    load_within(&cell[grain], within, bytes);
}

/// Reads bytes of a grain. A shift costs less than a copy of bytes at an offset that only the run
/// knows.
#[inline(always)]
fn load_within<G: Grain>(grain: &G, within: usize, bytes: &mut [u8]) {
    let value = value_of(grain) >> (8 * within);
    bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
}

/// `load_part` for no bytes, and for bytes in several grains.
#[inline]
fn load_grains<G: Grain>(cell: &[G], offset: usize, bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let (grain, within) = ((offset + done) / G::BYTES, (offset + done) % G::BYTES);
        let count = (G::BYTES - within).min(bytes.len() - done);
        if count == G::BYTES {
            G::to_le(cell[grain].get(), &mut bytes[done..done + G::BYTES]);
        } else {
            load_within(&cell[grain], within, &mut bytes[done..done + count]);
        }
        done += count;
    }
}

/// Writes bytes at an offset of a cell. The other bytes stay.
#[inline(always)]
pub(crate) fn store_part<G: Grain>(cell: &[G], offset: usize, bytes: &[u8]) {
    let (grain, within) = (offset / G::BYTES, offset % G::BYTES);
    if bytes.is_empty() || within + bytes.len() > G::BYTES {
        return store_grains(cell, offset, bytes);
    }
    store_within(&cell[grain], within, bytes);
}

/// Writes bytes of a grain. The other bytes stay.
#[inline(always)]
fn store_within<G: Grain>(grain: &G, within: usize, bytes: &[u8]) {
    if bytes.len() == G::BYTES {
        return grain.set(G::from_le(bytes));
    }
    let mut new = [0; 8];
    new[..bytes.len()].copy_from_slice(bytes);
    let mask = ((1 << (8 * bytes.len())) - 1) << (8 * within);
    let rest = mutant!(value_of(grain) & !mask, PartLosesTheRest => 0);
    let value = rest | u64::from_le_bytes(new) << (8 * within);
    grain.set(G::from_le(&value.to_le_bytes()[..G::BYTES]));
}

/// `store_part` for no bytes, and for bytes in several grains. Apart, so that the compiler inlines the
/// frequent case into every write.
#[inline(never)]
fn store_grains<G: Grain>(cell: &[G], offset: usize, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let (grain, within) = ((offset + done) / G::BYTES, (offset + done) % G::BYTES);
        let count = (G::BYTES - within).min(bytes.len() - done);
        if count == G::BYTES {
            cell[grain].set(G::from_le(&bytes[done..done + G::BYTES]));
        } else {
            store_within(&cell[grain], within, &bytes[done..done + count]);
        }
        done += count;
    }
}

/// The value of a grain as a number of 8 bytes.
#[inline(always)]
fn value_of<G: Grain>(grain: &G) -> u64 {
    let mut bytes = [0; 8];
    G::to_le(grain.get(), &mut bytes[..G::BYTES]);
    u64::from_le_bytes(bytes)
}
