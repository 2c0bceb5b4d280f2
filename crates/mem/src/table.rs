//! Tables of plain-data cells. Each cell has several copies, and bytes of marks beside them. One
//! thread changes the memory of a table while another captures it.
//!
//! Threads reach data as atomics of one width, the *grains*, and marks as atomic bytes. No byte of
//! a table is both, and every access is checked against the table's bounds. So no use of a table by
//! several threads is undefined behaviour. Relaxed loads and stores compile to plain moves on
//! x86-64 and AArch64. The caller's algorithm decides which thread owns which copy, and when.
//!
//! The placement of cells, copies and marks is a parameter, since it decides how many cache lines a
//! write touches (SIGMOD 2011, §4):
//!
//! ```text
//! Apart   a0 a1 a2 a3 …   b0 b1 b2 b3 …   m0 m1 m2 m3 …   every copy and every mark an array
//! Rows    a0 b0 m0 · a1 b1 m1 · a2 b2 m2 · …              a cell with all it has, side by side
//! Lines   a0 a1 a2 b0 b1 b2 m0 m1 m2 · a3 a4 a5 …         column by column in each cache line
//! ```

mod grain;
mod place;
mod walk;

pub use grain::Grain;
pub use place::Placement;
pub use walk::{CellCursor, Spot};

use std::ops::Range;

use crate::RegionError;
use crate::region::PageSize;
use backing::Backing;
use place::Places;
use stillpoint_sync::atomic::AtomicU8;

/// Size and layout of a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// Number of cells.
    pub cells: usize,
    /// Grains of a cell, at least 1.
    pub cell_grains: usize,
    /// Copies of each cell, at least 1.
    pub copies: usize,
    /// Columns of marks. A mark is one byte.
    pub mark_columns: usize,
    /// Cells that share a mark, at least 1. More than 1 saves memory in [`Placement::Apart`] only: the
    /// other placements keep a byte for each cell.
    pub cells_per_mark: usize,
    /// Marks of a cell in each column, at least 1. More than 1 is allowed only with one cell per
    /// mark, if each column of marks is an array. Each column is an array in [`Placement::Apart`].
    /// In the other placements each column is an array for cells that exceed a cache line with
    /// their copies.
    pub marks_per_cell: usize,
    /// Where cells, copies and marks lie.
    pub placement: Placement,
    /// Page size of the memory.
    pub pages: PageSize,
}

impl TableShape {
    /// Marks in each column.
    fn marks(&self) -> usize {
        self.cells.div_ceil(self.cells_per_mark) * self.marks_per_cell
    }
}

/// A table of cells that consist of grains `G`. All grains are zero at first.
///
/// ```
/// use stillpoint_mem::{PageSize, Placement, Table, TableShape};
/// use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
/// let shape = TableShape {
///     cells: 100,
///     cell_grains: 8, // 64 bytes
///     copies: 2,
///     mark_columns: 1,
///     cells_per_mark: 1,
///     marks_per_cell: 1,
///     placement: Placement::Rows,
///     pages: PageSize::Huge,
/// };
/// let table = Table::<AtomicU64>::new(&shape)?;
/// table.cell(1, 99)[7].store(5, Relaxed);
/// table.mark(0, 99).store(1, Relaxed);
/// assert_eq!(table.cell(0, 99)[7].load(Relaxed), 0);
/// # Ok::<(), stillpoint_mem::RegionError>(())
/// ```
#[derive(Debug)]
pub struct Table<G: Grain> {
    backing: Backing<G>,
    places: Places,
    shape: TableShape,
    marks: usize,
    /// Number of leading marks whose block of `cells_per_mark` cells is complete and contiguous; only
    /// the last block may be shorter.
    whole_marks: usize,
    /// Columns of marks if each cell has one mark that it shares with no other cell, otherwise 0.
    own_mark_columns: usize,
    /// Columns of marks if each column is an array and no cells share a mark, otherwise 0.
    part_mark_columns: usize,
}

impl<G: Grain> Table<G> {
    /// Reserves the address space of a table. Pages cost memory from their first access on.
    ///
    /// # Errors
    /// The system refuses the address space, or the size of the table overflows.
    ///
    /// # Panics
    /// If the shape has no grains, no copies, or marks of no cells; or if a cell has several marks that would
    /// lie beside it.
    pub fn new(shape: &TableShape) -> Result<Self, RegionError> {
        assert!(shape.cell_grains > 0 && shape.copies > 0, "a cell has grains and copies");
        assert!(shape.cells_per_mark > 0, "a mark covers at least one cell");
        assert!(shape.marks_per_cell > 0, "a cell has at least one mark");
        let is_one_to_many = shape.cells_per_mark == 1 || shape.marks_per_cell == 1;
        assert!(is_one_to_many, "several cells share a mark, or a cell has several");
        let places = Places::of(shape, G::BYTES).ok_or_else(|| RegionError {
            bytes: usize::MAX,
            reason: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        places.check(shape, G::BYTES);
        let backing = Backing::reserve(shape, &places)?;
        let marks = shape.marks();
        let is_apart = shape.placement == Placement::Apart;
        let whole_marks = if is_apart { shape.cells / shape.cells_per_mark } else { 0 };
        let is_one_to_one = shape.cells_per_mark == 1 && shape.marks_per_cell == 1;
        let own_mark_columns = if is_one_to_one { shape.mark_columns } else { 0 };
        let is_in_arrays = shape.cells_per_mark == 1 && places.has_columns_of_marks();
        let part_mark_columns = if is_in_arrays { shape.mark_columns } else { 0 };
        Ok(Self {
            backing,
            places,
            shape: *shape,
            marks,
            whole_marks,
            own_mark_columns,
            part_mark_columns,
        })
    }

    /// Size and layout of the table.
    #[inline]
    pub fn shape(&self) -> &TableShape {
        &self.shape
    }

    /// Number of cells.
    #[inline]
    pub fn len(&self) -> usize {
        self.shape.cells
    }

    /// Number of marks in each column: those of a cell follow each other.
    #[inline]
    pub fn marks_len(&self) -> usize {
        self.marks
    }

    /// True if there is no cell.
    pub fn is_empty(&self) -> bool {
        self.shape.cells == 0
    }

    /// Bytes of address space. The table takes as much memory once every page has been touched.
    pub fn len_bytes(&self) -> usize {
        self.places.end
    }

    /// Keeps the table out of child processes: see
    /// [`Region::keep_from_children`](crate::Region::keep_from_children).
    pub fn keep_from_children(&self) {
        self.backing.keep_from_children();
    }

    /// One copy of a cell.
    ///
    /// # Panics
    /// If there is no such cell or copy.
    #[inline]
    pub fn cell(&self, copy: usize, index: usize) -> &[G] {
        assert!(index < self.shape.cells && copy < self.shape.copies, "no such cell");
        self.backing.grains(&self.places, copy, index, self.shape.cell_grains)
    }

    /// One copy of the longest contiguous run of cells that begins at `first` and has at most `count`
    /// cells. The run holds at least the cell `first`.
    ///
    /// # Panics
    /// If `count` is 0 or there are no such cells or copy.
    #[inline]
    pub fn run(&self, copy: usize, first: usize, count: usize) -> &[G] {
        assert!(count > 0 && first < self.shape.cells, "no such cell");
        assert!(count <= self.shape.cells - first && copy < self.shape.copies, "no such cell");
        let count = count.min(self.places.contiguous_from(first));
        self.backing.grains(&self.places, copy, first, count * self.shape.cell_grains)
    }

    /// Overwrites copy `to` of some cells with copy `from`.
    ///
    /// # Panics
    /// If there are no such cells or copies.
    pub fn copy_cells(&self, from: usize, to: usize, cells: Range<usize>) {
        let mut at = cells.start;
        while at < cells.end {
            let from = self.run(from, at, cells.end - at);
            copy_grains(from, self.run(to, at, cells.end - at));
            at += from.len() / self.shape.cell_grains;
        }
    }

    /// Overwrites copy `to` with copy `from`, in the cells that share a mark. The call takes few
    /// instructions, so that the processor can start the caller's next ones while memory is slow.
    ///
    /// # Panics
    /// If there are no such cells or copies.
    #[inline(always)]
    pub fn copy_marked(&self, from: usize, to: usize, mark: usize) {
        if mark >= self.whole_marks {
            return self.copy_other_marked(from, to, mark);
        }
        assert!(from < self.shape.copies && to < self.shape.copies, "no such copy");
        let (first, cells) = (mark * self.shape.cells_per_mark, self.shape.cells_per_mark);
        let grains = cells * self.shape.cell_grains;
        let from = self.backing.grains(&self.places, from, first, grains);
        copy_grains(from, self.backing.grains(&self.places, to, first, grains));
    }

    /// `copy_marked` for a mark whose block is shorter or not contiguous.
    #[inline(never)]
    fn copy_other_marked(&self, from: usize, to: usize, mark: usize) {
        assert!(mark < self.marks, "no such mark");
        let first = mark * self.shape.cells_per_mark;
        let end = (first + self.shape.cells_per_mark).min(self.shape.cells);
        self.copy_cells(from, to, first..end);
    }

    /// A cell with its copies and marks, found once for all of them.
    ///
    /// # Panics
    /// If there is no such cell.
    #[inline(always)]
    pub fn spot(&self, index: usize) -> Spot<'_, G> {
        assert!(index < self.shape.cells, "no such cell");
        Spot::new(self, index)
    }

    /// Iterates over the cells `first..end`.
    ///
    /// # Panics
    /// If there are no such cells.
    #[inline]
    pub fn walk(&self, first: usize, end: usize) -> CellCursor<'_, G> {
        assert!(first <= end && end <= self.shape.cells, "no such cells");
        CellCursor::new(self, first, end)
    }

    /// The mark `index` of a column. With one mark for one cell, `index` is the number of the cell.
    ///
    /// # Panics
    /// If there is no such mark or column.
    #[inline]
    pub fn mark(&self, column: usize, index: usize) -> &AtomicU8 {
        assert!(index < self.marks && column < self.shape.mark_columns, "no such mark");
        self.backing.mark(&self.places, column, index)
    }

    /// True if each column of marks is one array, so that marks of neighbouring cells are contiguous.
    #[inline]
    pub fn has_columns_of_marks(&self) -> bool {
        self.places.has_columns_of_marks()
    }

    /// The longest contiguous run of marks that begins at `first` and has at most `count` marks. The
    /// run holds at least the mark `first`.
    ///
    /// # Panics
    /// If `count` is 0 or there are no such marks or column.
    #[inline]
    pub fn marks(&self, column: usize, first: usize, count: usize) -> &[AtomicU8] {
        assert!(count > 0 && first < self.marks, "no such mark");
        assert!(count <= self.marks - first, "no such mark");
        assert!(column < self.shape.mark_columns, "no such mark");
        let count = count.min(self.places.contiguous_marks_from(first));
        self.backing.marks(&self.places, column, first, count)
    }

    /// Prefetches a grain, that is one atomic word, of one copy of a cell. Does nothing if the
    /// table has no such grain.
    #[inline(always)]
    pub fn prefetch(&self, copy: usize, index: usize, grain: usize) {
        let shape = &self.shape;
        if index < shape.cells && copy < shape.copies && grain < shape.cell_grains {
            let cell = self.backing.grains(&self.places, copy, index, shape.cell_grains);
            crate::prefetch(&cell[grain]);
        }
    }

    /// Prefetches the cache line that holds a cell with all its copies and marks. Does nothing without
    /// such a cell. The table must have no columns of marks.
    #[inline(always)]
    pub fn prefetch_line(&self, index: usize) {
        if index < self.shape.cells {
            self.backing.prefetch_line(&self.places, index);
        }
    }

    /// Prefetches a mark. Does nothing if the table has no such mark.
    #[inline(always)]
    pub fn prefetch_mark(&self, column: usize, index: usize) {
        if index < self.marks && column < self.shape.mark_columns {
            crate::prefetch(self.backing.mark(&self.places, column, index));
        }
    }
}

/// Copies the grains, that is the atomic words, of `from` to `to`.
///
/// # Panics
/// If the two lengths differ.
#[inline(always)]
pub fn copy_grains<G: Grain>(from: &[G], to: &[G]) {
    assert_eq!(from.len(), to.len(), "as many grains");
    // Inlined on purpose: a call spills registers. Those stores would queue in the store buffer
    // behind copies that wait for cache misses.
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    if size_of_val(from) == bulk::LINE {
        return bulk::copy_lines(from, to);
    }
    if let ([from], [to]) = (from, to) {
        return to.set(from.get());
    }
    copy_many(from, to);
}

/// `copy_grains` for more than one cache line, and for sizes that are no multiple of a line.
#[inline(never)]
fn copy_many<G: Grain>(from: &[G], to: &[G]) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    if size_of_val(from) >= bulk::BYTES_MIN {
        return bulk::copy(from, to);
    }
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    let (from, to) = {
        let line = bulk::LINE / G::BYTES;
        let whole = from.len() / line * line;
        let ((from, from_rest), (to, to_rest)) = (from.split_at(whole), to.split_at(whole));
        bulk::copy_lines(from, to);
        (from_rest, to_rest)
    };
    // Eight grains in each round, since the compiler does not unroll loops over atomics.
    let (from_eights, from_rest) = from.as_chunks::<8>();
    let (to_eights, to_rest) = to.as_chunks::<8>();
    for (from, to) in from_eights.iter().zip(to_eights) {
        let values = std::array::from_fn::<_, 8, _>(|at| from[at].get());
        for (to, value) in to.iter().zip(values) {
            to.set(value);
        }
    }
    for (from, to) in from_rest.iter().zip(to_rest) {
        to.set(from.get());
    }
}

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
mod bulk {
    use super::Grain;

    /// Least size in bytes for `rep movsq`, which is slower below this size.
    pub(super) const BYTES_MIN: usize = 64 << 10;

    /// Bytes of one round of `copy_lines`: a cache line.
    pub(super) const LINE: usize = 64;

    /// Copies 64 bytes by four stores of 16 bytes. A store that waits for its cache line occupies
    /// an entry of the small store buffer. So wider stores let more lines be fetched at once.
    #[inline(always)]
    pub(super) fn copy_lines<G: Grain>(from: &[G], to: &[G]) {
        let lines = size_of_val(from) / LINE;
        assert!(from.len() == to.len() && lines * LINE == size_of_val(from), "whole lines");
        for line in 0..lines {
            // SAFETY: as in `copy`: 64 bytes of both slices, which the assertion has them hold. Moves
            // of 16 bytes do not tear an aligned word of 4 or 8 of them on this architecture.
            unsafe {
                std::arch::asm!(
                    "movups {a}, [{from}]",
                    "movups {b}, [{from} + 16]",
                    "movups {c}, [{from} + 32]",
                    "movups {d}, [{from} + 48]",
                    "movups [{to}], {a}",
                    "movups [{to} + 16], {b}",
                    "movups [{to} + 32], {c}",
                    "movups [{to} + 48], {d}",
                    from = in(reg) from.as_ptr().byte_add(line * LINE),
                    to = in(reg) to.as_ptr().byte_add(line * LINE),
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            }
        }
    }

    /// Copies by `rep movsq`, which does not fetch the lines that it overwrites.
    pub(super) fn copy<G: Grain>(from: &[G], to: &[G]) {
        // SAFETY: both slices have the same length (asserted by the caller). The slices lie in
        // memory that is valid for reads, or for writes through atomics. The slices hold plain
        // words, of which any bytes are a value. The instruction stands for a loop of Relaxed loads
        // and stores of grains. The instruction is opaque to the compiler, and on this architecture
        // it never tears aligned words. The direction flag is clear, as the calling convention has
        // it. Overlapping slices would be read and written in ascending order.
        unsafe {
            std::arch::asm!(
                "rep movsq",
                inout("rcx") size_of_val(from) / 8 => _,
                inout("rsi") from.as_ptr() => _,
                inout("rdi") to.as_ptr() => _,
                options(nostack, preserves_flags),
            );
        }
        // An odd number of 4-byte grains leaves one grain to copy.
        for (from, to) in from.iter().zip(to).skip(size_of_val(from) / 8 * 8 / G::BYTES) {
            to.set(from.get());
        }
    }
}

#[cfg(not(any(loom, shuttle)))]
mod backing {
    use super::place::{Cursor, Places};
    use super::{Grain, TableShape};
    use crate::{Region, RegionError};
    use std::marker::PhantomData;
    use stillpoint_sync::atomic::AtomicU8;

    /// The memory of a table. Data is accessed as `G`, marks are accessed as bytes.
    #[derive(Debug)]
    pub(super) struct Backing<G> {
        region: Region,
        grains: PhantomData<G>,
    }

    impl<G: Grain> Backing<G> {
        pub(super) fn reserve(shape: &TableShape, places: &Places) -> Result<Self, RegionError> {
            let region = Region::reserve_with(places.end.max(1), shape.pages)?;
            assert!(places.end <= region.len_bytes(), "the region holds the table");
            Ok(Self { region, grains: PhantomData })
        }

        pub(super) fn keep_from_children(&self) {
            self.region.keep_from_children();
        }

        /// `count` grains of one copy, beginning at a cell. The caller has checked that these grains
        /// belong to contiguous cells of the table.
        #[inline]
        pub(super) fn grains(
            &self,
            places: &Places,
            copy: usize,
            index: usize,
            count: usize,
        ) -> &[G] {
            self.grains_from(places, places.cell_at(copy, index), count)
        }

        /// One copy of the cell at `cursor`. The caller has checked that the cursor is inside the table.
        #[inline(always)]
        pub(super) fn cell_at(&self, places: &Places, cursor: &Cursor, copy: usize) -> &[G] {
            self.grains_from(places, places.cell_of(cursor, copy), places.cell_bytes() / G::BYTES)
        }

        /// `count` grains from `offset` on, the offset of a cell in bytes. The caller has checked that
        /// these grains belong to contiguous cells of the table.
        #[inline(always)]
        fn grains_from(&self, places: &Places, offset: usize, count: usize) -> &[G] {
            debug_assert!(
                offset + count * G::BYTES <= places.end && offset.is_multiple_of(G::BYTES)
            );
            let base = self.region.words().as_ptr().cast::<u8>();
            // SAFETY: `Places::check` has verified that every cell of every copy lies inside the
            // first `places.end` bytes of the region. Each cell lies at a multiple of the grain's
            // size, and overlaps no mark. The region begins at a page. The region's memory is
            // initialised and lives as long as `self`. `Region` is private to this value, so the
            // bytes are reached only here, as atomics `G` of one width.
            unsafe { std::slice::from_raw_parts(base.add(offset).cast::<G>(), count) }
        }

        /// Prefetches the cache line of a cell. The caller has checked that the table has the cell.
        #[inline(always)]
        pub(super) fn prefetch_line(&self, places: &Places, index: usize) {
            crate::prefetch(&self.grains_from(places, places.line_at(index), 1)[0]);
        }

        #[inline]
        pub(super) fn mark(&self, places: &Places, column: usize, index: usize) -> &AtomicU8 {
            &self.marks(places, column, index, 1)[0]
        }

        /// The caller has checked that these are contiguous marks of the table.
        #[inline]
        pub(super) fn marks(
            &self,
            places: &Places,
            column: usize,
            index: usize,
            count: usize,
        ) -> &[AtomicU8] {
            self.marks_from(places, places.mark_at(column, index), count)
        }

        /// A mark of the cell at `cursor`. The caller has checked that the cursor is inside the table.
        #[inline(always)]
        pub(super) fn mark_at(&self, places: &Places, cursor: &Cursor, column: usize) -> &AtomicU8 {
            &self.marks_from(places, places.mark_of(cursor, column), 1)[0]
        }

        /// A mark of a column that is an array. The caller has checked that the table has the mark.
        #[inline(always)]
        pub(super) fn mark_in_array(
            &self,
            places: &Places,
            column: usize,
            number: usize,
        ) -> &AtomicU8 {
            &self.marks_from(places, places.mark_in_array(column, number), 1)[0]
        }

        /// `count` marks from `offset` on. The caller has checked the range as in `marks`.
        #[inline(always)]
        fn marks_from(&self, places: &Places, offset: usize, count: usize) -> &[AtomicU8] {
            debug_assert!(offset + count <= places.end);
            let base = self.region.words().as_ptr().cast::<u8>();
            // SAFETY: as in `grains`; marks are bytes that belong to no cell, and are reached as
            // atomic bytes only.
            unsafe { std::slice::from_raw_parts(base.add(offset).cast::<AtomicU8>(), count) }
        }
    }
}

#[cfg(any(loom, shuttle))]
mod backing {
    use super::place::{Cursor, Places};
    use super::{Grain, TableShape};
    use crate::RegionError;
    use stillpoint_sync::atomic::AtomicU8;

    /// Atomics of the model checker, one for each grain and mark, ordered by copy, then by cell.
    #[derive(Debug)]
    pub(super) struct Backing<G> {
        grains: Vec<G>,
        marks: Vec<AtomicU8>,
        shape: TableShape,
    }

    impl<G: Grain> Backing<G> {
        pub(super) fn reserve(shape: &TableShape, _: &Places) -> Result<Self, RegionError> {
            let grains = shape.cells * shape.cell_grains * shape.copies;
            let marks = shape.marks() * shape.mark_columns;
            Ok(Self {
                grains: (0..grains).map(|_| G::zero()).collect(),
                marks: (0..marks).map(|_| AtomicU8::new(0)).collect(),
                shape: *shape,
            })
        }

        pub(super) fn keep_from_children(&self) {}

        pub(super) fn grains(&self, _: &Places, copy: usize, index: usize, count: usize) -> &[G] {
            let first = (copy * self.shape.cells + index) * self.shape.cell_grains;
            &self.grains[first..first + count]
        }

        pub(super) fn prefetch_line(&self, _: &Places, _: usize) {}

        pub(super) fn mark(&self, _: &Places, column: usize, index: usize) -> &AtomicU8 {
            &self.marks[column * self.shape.marks() + index]
        }

        pub(super) fn mark_in_array(&self, _: &Places, column: usize, number: usize) -> &AtomicU8 {
            &self.marks[column * self.shape.marks() + number]
        }

        pub(super) fn cell_at(&self, places: &Places, cursor: &Cursor, copy: usize) -> &[G] {
            self.grains(places, copy, cursor.index, self.shape.cell_grains)
        }

        pub(super) fn mark_at(&self, places: &Places, cursor: &Cursor, column: usize) -> &AtomicU8 {
            self.mark(places, column, cursor.index)
        }

        pub(super) fn marks(
            &self,
            _: &Places,
            column: usize,
            index: usize,
            count: usize,
        ) -> &[AtomicU8] {
            let first = column * self.shape.marks() + index;
            &self.marks[first..first + count]
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
