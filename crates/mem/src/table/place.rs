//! Offsets of cells, copies and marks in a table, for each [`Placement`]: the arithmetic, and the
//! check that no two of them overlap.

use super::TableShape;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Cells of a group in [`Placement::Lines`] if a cell with its copies exceeds a cache line.
const LARGE_GROUP: usize = 8;

/// Placement of the copies and marks of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Every copy and every column of marks is an array of its own.
    Apart,
    /// A cell's copies and marks are contiguous, and a cache line holds as many cells as fit. Cells
    /// that exceed a line with their copies and marks lie as in [`Apart`](Self::Apart). Contiguous
    /// copies would save nothing for such cells, and cells of one copy are dense.
    Rows,
    /// The cells of one cache line lie column by column: first copy 0 of each cell, then copy 1,
    /// then the marks. Eight cells form a group if a single cell exceeds a line. Each kind of mark
    /// then has an array of its own, behind all groups.
    Lines,
}

/// Offsets of cells and marks in bytes. A table has one or several *groups* of cells, and the
/// number of a cell within its group is its *lane*. A copy of cell `i` begins at `copy·copy_stride
/// + (i div lanes)·group_stride + (i mod lanes)·lane_stride`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    lanes: usize,
    /// 2^64 ÷ lanes, rounded up; 0 if there is only one group.
    lanes_reciprocal: u64,
    group_stride: usize,
    lane_stride: usize,
    copy_stride: usize,
    cell_bytes: usize,
    /// Offset of the first mark. The strides of marks follow; marks have the groups and lanes of cells.
    marks_at: usize,
    mark_column_stride: usize,
    mark_group_stride: usize,
    mark_lane_stride: usize,
    /// Size of the table in bytes.
    pub(super) end: usize,
}

/// The position of a cell: its offset in a copy, and the offset of its mark in a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) index: usize,
    lane: usize,
    cell: usize,
    mark: usize,
}

impl Places {
    /// The offsets of a shape, or `None` if the table exceeds 2^60 bytes.
    pub(super) fn of(shape: &TableShape, grain_bytes: usize) -> Option<Self> {
        let cell_bytes = shape.cell_grains.checked_mul(grain_bytes)?;
        // An upper bound of the table's size, so that no sum below overflows.
        let marks = shape.mark_columns.checked_mul(shape.marks_per_cell)?;
        let one = cell_bytes.checked_mul(shape.copies)?.checked_add(marks)?;
        let bound = one.checked_add(2 * LINE)?.checked_mul(shape.cells.checked_add(LINE)?)?;
        if bound > 1 << 60 {
            return None;
        }
        Some(match shape.placement {
            Placement::Apart => Self::apart(shape, cell_bytes),
            Placement::Rows => Self::rows(shape, cell_bytes, grain_bytes),
            Placement::Lines => Self::lines(shape, cell_bytes),
        })
    }

    fn apart(shape: &TableShape, cell_bytes: usize) -> Self {
        let copy_stride = (shape.cells * cell_bytes).next_multiple_of(LINE);
        let marks_at = copy_stride * shape.copies;
        let mark_column_stride = shape.marks().next_multiple_of(LINE);
        Self {
            lanes: shape.cells.max(1),
            lanes_reciprocal: 0,
            group_stride: 0,
            lane_stride: cell_bytes,
            copy_stride,
            cell_bytes,
            marks_at,
            mark_column_stride,
            mark_group_stride: 0,
            mark_lane_stride: 1,
            end: marks_at + mark_column_stride * shape.mark_columns,
        }
    }

    fn rows(shape: &TableShape, cell_bytes: usize, grain_bytes: usize) -> Self {
        let copies = cell_bytes * shape.copies;
        let row = (copies + shape.mark_columns).next_multiple_of(grain_bytes);
        let places = |lanes, row| Self {
            copy_stride: cell_bytes,
            cell_bytes,
            marks_at: copies,
            mark_column_stride: 1,
            ..Self::grouped(shape.cells, lanes, LINE, row, row)
        };
        if row <= LINE {
            return places(LINE / row, row);
        }
        Self::apart(shape, cell_bytes)
    }

    fn lines(shape: &TableShape, cell_bytes: usize) -> Self {
        let one = cell_bytes * shape.copies + shape.mark_columns;
        let places = |lanes: usize, group| Self {
            copy_stride: lanes * cell_bytes,
            cell_bytes,
            marks_at: lanes * cell_bytes * shape.copies,
            mark_column_stride: lanes,
            ..Self::grouped(shape.cells, lanes, group, cell_bytes, 1)
        };
        if one <= LINE {
            return places(LINE / one, LINE);
        }
        let group = (LARGE_GROUP * cell_bytes * shape.copies).next_multiple_of(LINE);
        places(LARGE_GROUP, group).with_marks_behind(shape, LARGE_GROUP)
    }

    /// Moves the marks behind all cells, each column an array. The cells keep their offsets, in groups
    /// of `lanes` cells.
    fn with_marks_behind(self, shape: &TableShape, lanes: usize) -> Self {
        let mark_column_stride = shape.marks().next_multiple_of(LINE);
        Self {
            marks_at: self.end,
            mark_column_stride,
            mark_group_stride: lanes,
            mark_lane_stride: 1,
            end: self.end + mark_column_stride * shape.mark_columns,
            ..self
        }
    }

    /// The strides of placements in groups.
    fn grouped(cells: usize, lanes: usize, group: usize, lane: usize, mark_lane: usize) -> Self {
        let end = cells.div_ceil(lanes) * group;
        let (lane, mark_lane) = if lanes == 1 { (group, group) } else { (lane, mark_lane) };
        // One group, or groups without a gap between them, need no division.
        let is_uniform = cells <= lanes || (lanes * lane == group && lanes * mark_lane == group);
        let lanes = if is_uniform { cells.max(1) } else { lanes };
        let reciprocal = if is_uniform { 0 } else { (u64::MAX / lanes as u64) + 1 };
        Self {
            lanes,
            lanes_reciprocal: reciprocal,
            group_stride: group,
            lane_stride: lane,
            copy_stride: 0,
            cell_bytes: 0,
            marks_at: 0,
            mark_column_stride: 0,
            mark_group_stride: group,
            mark_lane_stride: mark_lane,
            end,
        }
    }

    /// Bytes of a cell.
    #[cfg_attr(any(loom, shuttle), expect(dead_code, reason = "models have vectors"))]
    #[inline(always)]
    pub(super) fn cell_bytes(&self) -> usize {
        self.cell_bytes
    }

    /// The group and the lane of a cell.
    #[inline(always)]
    fn split(&self, index: usize) -> (usize, usize) {
        // Multiplies by the reciprocal instead of dividing. The result is exact while
        // index · lanes < 2^64. The bound on the table's size implies that: several groups have at
        // most 64 lanes each.
        let product = u128::from(self.lanes_reciprocal) * index as u128;
        let group = (product >> 64) as usize;
        (group, index - group * self.lanes)
    }

    /// Offset of one copy of a cell, in bytes.
    #[inline(always)]
    pub(super) fn cell_at(&self, copy: usize, index: usize) -> usize {
        if self.lanes_reciprocal == 0 {
            return copy * self.copy_stride + index * self.lane_stride;
        }
        let (group, lane) = self.split(index);
        copy * self.copy_stride + group * self.group_stride + lane * self.lane_stride
    }

    /// Offset of a byte in the cache line that holds a cell with all its copies and marks. The table
    /// must have no columns of marks.
    #[cfg_attr(any(loom, shuttle), expect(dead_code, reason = "models have vectors"))]
    #[inline(always)]
    pub(super) fn line_at(&self, index: usize) -> usize {
        debug_assert!(!self.has_columns_of_marks());
        if self.lanes_reciprocal == 0 {
            return index * self.lane_stride;
        }
        // Such groups are one cache line each.
        let group = (u128::from(self.lanes_reciprocal) * index as u128) >> 64;
        group as usize * LINE
    }

    /// Offset of a mark of a cell, in bytes.
    #[inline(always)]
    pub(super) fn mark_at(&self, column: usize, index: usize) -> usize {
        if self.lanes_reciprocal == 0 {
            return self.marks_at
                + column * self.mark_column_stride
                + index * self.mark_lane_stride;
        }
        let (group, lane) = self.split(index);
        self.marks_at
            + column * self.mark_column_stride
            + group * self.mark_group_stride
            + lane * self.mark_lane_stride
    }

    /// Offset of a mark in bytes, if the marks lie behind all cells.
    #[cfg_attr(any(loom, shuttle), expect(dead_code, reason = "models have vectors"))]
    #[inline(always)]
    pub(super) fn mark_in_array(&self, column: usize, number: usize) -> usize {
        let offset = self.marks_at + column * self.mark_column_stride + number;
        debug_assert_eq!(offset, self.mark_at(column, number));
        offset
    }

    /// A cursor at a cell.
    #[inline(always)]
    pub(super) fn cursor(&self, index: usize) -> Cursor {
        if self.lanes_reciprocal == 0 {
            let (cell, mark) = (index * self.lane_stride, index * self.mark_lane_stride);
            return Cursor { index, lane: index, cell, mark };
        }
        let (group, lane) = self.split(index);
        let cell = group * self.group_stride + lane * self.lane_stride;
        let mark = group * self.mark_group_stride + lane * self.mark_lane_stride;
        Cursor { index, lane, cell, mark }
    }

    /// Moves the cursor to the next cell. Behind the last cell its offsets are meaningless and may wrap.
    #[inline(always)]
    pub(super) fn advance(&self, cursor: &mut Cursor) {
        cursor.index += 1;
        cursor.lane += 1;
        cursor.cell = cursor.cell.wrapping_add(self.lane_stride);
        cursor.mark = cursor.mark.wrapping_add(self.mark_lane_stride);
        if cursor.lane == self.lanes {
            let (cells, marks) =
                (self.lanes * self.lane_stride, self.lanes * self.mark_lane_stride);
            cursor.lane = 0;
            cursor.cell = cursor.cell.wrapping_add(self.group_stride).wrapping_sub(cells);
            cursor.mark = cursor.mark.wrapping_add(self.mark_group_stride).wrapping_sub(marks);
        }
    }

    /// Offset of one copy of the cell at the cursor, in bytes.
    #[cfg_attr(any(loom, shuttle), expect(dead_code, reason = "models have vectors"))]
    #[inline(always)]
    pub(super) fn cell_of(&self, cursor: &Cursor, copy: usize) -> usize {
        let offset = copy * self.copy_stride + cursor.cell;
        debug_assert_eq!(offset, self.cell_at(copy, cursor.index));
        offset
    }

    /// Offset of a mark of the cell at the cursor, in bytes.
    #[cfg_attr(any(loom, shuttle), expect(dead_code, reason = "models have vectors"))]
    #[inline(always)]
    pub(super) fn mark_of(&self, cursor: &Cursor, column: usize) -> usize {
        let offset = self.marks_at + column * self.mark_column_stride + cursor.mark;
        debug_assert_eq!(offset, self.mark_at(column, cursor.index));
        offset
    }

    /// Number of contiguous cells from `index` on, in each copy.
    #[inline]
    pub(super) fn contiguous_from(&self, index: usize) -> usize {
        if self.lane_stride != self.cell_bytes {
            return 1;
        }
        self.lanes - self.split(index).1
    }

    /// True if the marks lie behind all cells.
    #[inline]
    pub(super) fn has_columns_of_marks(&self) -> bool {
        self.mark_group_stride != self.group_stride || self.group_stride == 0
    }

    /// Number of contiguous marks from `index` on, in each column, or more than there are.
    #[inline]
    pub(super) fn contiguous_marks_from(&self, index: usize) -> usize {
        match self.mark_lane_stride {
            _ if self.has_columns_of_marks() => usize::MAX,
            1 => self.lanes - self.split(index).1,
            _ => 1,
        }
    }

    /// Verifies that no two cells, copies or marks overlap and that all lie inside the table. The
    /// unsafe code of `Backing` rests on this check.
    ///
    /// Lanes, copies, marks and groups are arithmetic progressions. No progression overlaps itself,
    /// since each step is at least as long as the repeated part.
    pub(super) fn check(&self, shape: &TableShape, grain_bytes: usize) {
        let cells = shape.cells;
        if cells == 0 {
            return;
        }
        let groups = self.split(cells - 1).0 + 1;
        assert!(self.lanes <= cells.max(LINE) && (groups - 1) * self.lanes < cells);
        let cell = shape.cell_grains * grain_bytes;
        assert_eq!(cell, self.cell_bytes);
        let aligned = [self.copy_stride, self.group_stride, self.lane_stride];
        assert!(aligned.iter().all(|stride| stride.is_multiple_of(grain_bytes)));
        let columns = shape.mark_columns;
        let lanes = self.lanes.min(cells);
        let is_row = self.copy_stride == cell && self.lane_stride >= cell * shape.copies;
        // A group: either each lane holds a row of copies, or each copy holds all lanes.
        assert!(self.lane_stride >= cell || lanes == 1);
        let (data, before_marks) = if is_row {
            let row = cell * shape.copies;
            ((lanes - 1) * self.lane_stride + row, row)
        } else {
            let run = (lanes - 1) * self.lane_stride + cell;
            assert!(run <= self.copy_stride || shape.copies == 1);
            let data = (shape.copies - 1) * self.copy_stride + run;
            (data, data)
        };
        assert!(groups == 1 || data <= self.group_stride);
        let data = (groups - 1) * self.group_stride + data;
        assert!(data <= self.end);
        if columns == 0 {
            return;
        }
        if self.has_columns_of_marks() {
            // The marks lie behind all cells, column by column. Groups of marks have no gaps, so the
            // offset of a mark in its column is the number of the mark.
            let marks = shape.marks();
            assert!(self.marks_at >= data && self.mark_lane_stride == 1);
            assert!(self.lanes_reciprocal == 0 || self.mark_group_stride == self.lanes);
            assert!(columns == 1 || marks <= self.mark_column_stride);
            assert!(self.marks_at + (columns - 1) * self.mark_column_stride + marks <= self.end);
            return;
        }
        assert_eq!(shape.marks_per_cell, 1, "one mark beside a cell");
        // A column of marks: its extent in one group, and its extent in all groups.
        assert!(self.mark_lane_stride >= 1);
        let of_group = (lanes - 1) * self.mark_lane_stride + 1;
        let all = (groups - 1) * self.mark_group_stride + of_group;
        assert!(self.marks_at + (columns - 1) * self.mark_column_stride + all <= self.end);
        // The marks lie inside the groups. If the copies of a cell are contiguous, its marks follow
        // them. Otherwise the marks of a group follow all its copies.
        assert!(groups == 1 || self.mark_group_stride == self.group_stride);
        assert!(before_marks <= self.marks_at);
        if is_row && self.mark_lane_stride == self.lane_stride {
            assert!(self.mark_column_stride == 1 && self.marks_at + columns <= self.lane_stride);
            return;
        }
        assert!(columns == 1 || of_group <= self.mark_column_stride);
        let marks = (columns - 1) * self.mark_column_stride + of_group;
        assert!(self.marks_at + marks <= self.group_stride);
    }
}
