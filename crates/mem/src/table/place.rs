use super::TableShape;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Cells that share a group in [`Placement::Lines`] where a line holds not even one.
const LARGE_GROUP: usize = 8;

/// Where the copies and marks of cells lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Every copy and every column of marks is an array of its own.
    Apart,
    /// A cell's copies and its marks lie side by side; as many cells to a cache line as fit. Where
    /// not even one does, each begins a line, and columns of marks are arrays of their own: a line
    /// for the marks of one cell would be one more to wait for, an array's holds those of 64.
    Rows,
    /// Cells of one cache line lie column by column: first the one copy of all, then the other,
    /// then the marks. Cells too large for that form groups of eight, and their marks arrays.
    Lines,
}

/// The arithmetic of a placement. A copy of cell `i` begins at
/// `copy·copy_stride + (i div lanes)·group_stride + (i mod lanes)·lane_stride`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    lanes: usize,
    /// 2^64 ÷ lanes, rounded up; 0 if there is only one group.
    lanes_reciprocal: u64,
    group_stride: usize,
    lane_stride: usize,
    copy_stride: usize,
    cell_bytes: usize,
    /// Where the marks begin, and their strides; groups and lanes are those of the cells.
    marks_at: usize,
    mark_column_stride: usize,
    mark_group_stride: usize,
    mark_lane_stride: usize,
    /// Bytes in all.
    pub(super) end: usize,
}

/// Where a cell lies: offsets from where the first copy, or the marks, begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) index: usize,
    lane: usize,
    cell: usize,
    mark: usize,
}

impl Places {
    /// The places of a shape; `None` if they exceed the address space.
    pub(super) fn of(shape: &TableShape, grain_bytes: usize) -> Option<Self> {
        let cell_bytes = shape.cell_grains.checked_mul(grain_bytes)?;
        // Cell and marks of one cell, rounded up generously, so that no sum below overflows.
        let one = cell_bytes.checked_mul(shape.copies)?.checked_add(shape.mark_columns)?;
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
        let marks = shape.cells.div_ceil(shape.cells_per_mark);
        let mark_column_stride = marks.next_multiple_of(LINE);
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
        let places = |lanes, group, row| Self {
            copy_stride: cell_bytes,
            cell_bytes,
            marks_at: copies,
            mark_column_stride: 1,
            ..Self::grouped(shape.cells, lanes, group, row, row)
        };
        if row <= LINE {
            return places(LINE / row, LINE, row);
        }
        let row = copies.next_multiple_of(LINE);
        places(1, row, row).with_marks_behind(shape, 1)
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

    /// The same places of cells, in groups of so many lanes; behind them all each column of marks
    /// as an array.
    fn with_marks_behind(self, shape: &TableShape, lanes: usize) -> Self {
        let mark_column_stride = shape.cells.next_multiple_of(LINE);
        Self {
            marks_at: self.end,
            mark_column_stride,
            mark_group_stride: lanes,
            mark_lane_stride: 1,
            end: self.end + mark_column_stride * shape.mark_columns,
            ..self
        }
    }

    /// What placements in groups have in common.
    fn grouped(cells: usize, lanes: usize, group: usize, lane: usize, mark_lane: usize) -> Self {
        let end = cells.div_ceil(lanes) * group;
        let (lane, mark_lane) = if lanes == 1 { (group, group) } else { (lane, mark_lane) };
        // One group, or rows that follow each other without a gap, need no division.
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
        // A product with the reciprocal in place of a division: exact while index · lanes < 2^64,
        // which the bound on the table's size implies (lanes of several groups are at most 64).
        let product = u128::from(self.lanes_reciprocal) * index as u128;
        let group = (product >> 64) as usize;
        (group, index - group * self.lanes)
    }

    /// Where a copy of a cell begins.
    #[inline(always)]
    pub(super) fn cell_at(&self, copy: usize, index: usize) -> usize {
        if self.lanes_reciprocal == 0 {
            return copy * self.copy_stride + index * self.lane_stride;
        }
        let (group, lane) = self.split(index);
        copy * self.copy_stride + group * self.group_stride + lane * self.lane_stride
    }

    /// Where a mark of a cell is.
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

    /// Where a cell lies, to go on from.
    #[inline]
    pub(super) fn cursor(&self, index: usize) -> Cursor {
        let (group, lane) = self.split(index);
        let cell = group * self.group_stride + lane * self.lane_stride;
        let mark = group * self.mark_group_stride + lane * self.mark_lane_stride;
        Cursor { index, lane, cell, mark }
    }

    /// Goes on to the next cell. Behind the last one the offsets mean nothing, and may wrap.
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

    /// Where a copy of the cell begins.
    #[cfg_attr(any(loom, shuttle), expect(dead_code, reason = "models have vectors"))]
    #[inline(always)]
    pub(super) fn cell_of(&self, cursor: &Cursor, copy: usize) -> usize {
        let offset = copy * self.copy_stride + cursor.cell;
        debug_assert_eq!(offset, self.cell_at(copy, cursor.index));
        offset
    }

    /// Where a mark of the cell is.
    #[cfg_attr(any(loom, shuttle), expect(dead_code, reason = "models have vectors"))]
    #[inline(always)]
    pub(super) fn mark_of(&self, cursor: &Cursor, column: usize) -> usize {
        let offset = self.marks_at + column * self.mark_column_stride + cursor.mark;
        debug_assert_eq!(offset, self.mark_at(column, cursor.index));
        offset
    }

    /// How many cells lie side by side from this one on, in each copy.
    #[inline]
    pub(super) fn contiguous_from(&self, index: usize) -> usize {
        if self.lane_stride != self.cell_bytes {
            return 1;
        }
        self.lanes - self.split(index).1
    }

    /// True if marks lie behind all cells, not among them.
    #[inline]
    pub(super) fn has_columns_of_marks(&self) -> bool {
        self.mark_group_stride != self.group_stride || self.group_stride == 0
    }

    /// How many marks lie side by side from this one on, in each column.
    #[inline]
    pub(super) fn contiguous_marks_from(&self, index: usize) -> usize {
        if self.mark_lane_stride != 1 { 1 } else { self.lanes - self.split(index).1 }
    }

    /// Verifies that no two places meet and all lie inside: what the unsafe code above rests on.
    ///
    /// The lanes of a group do not meet, nor do the copies, the marks and the groups: each is a
    /// progression whose step is at least the extent of what it repeats.
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
        // Of a group: the lanes hold rows of copies, or each copy holds the lanes.
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
        // A column of marks: of the lanes of a group, and of them all.
        let of_lanes = match shape.placement {
            Placement::Apart => lanes.div_ceil(shape.cells_per_mark),
            _ => lanes,
        };
        assert!(self.mark_lane_stride >= 1);
        let of_group = (of_lanes - 1) * self.mark_lane_stride + 1;
        let all = (groups - 1) * self.mark_group_stride + of_group;
        assert!(self.marks_at + (columns - 1) * self.mark_column_stride + all <= self.end);
        if self.marks_at >= data {
            // Behind all cells, one column behind the other.
            assert!(groups == 1 || of_group <= self.mark_group_stride);
            assert!(columns == 1 || all <= self.mark_column_stride);
            return;
        }
        // Inside the groups: of each lane behind its row, or behind the lanes of all copies.
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
