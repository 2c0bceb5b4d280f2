//! The lines of long cells. A scheme may give each line marks of its own.
//!
//! Most writes lie within one line. Such a write finds its cell once ([`Grid::spot`]), and reaches
//! copies and marks of the line from there.

use std::ops::Range;

use stillpoint_mem::{Grain, Spot, copy_grains};
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::mutant;

use super::Grid;
use crate::layout::Layout;
use crate::planted;

/// Bytes of a line of a cell, as long as a cache line. A scheme may mark the lines of long cells one by one.
/// Then a first write to a part of a cell brings over a line and not the cell.
pub const LINE_BYTES: usize = 64;

/// Marks of a cell, for schemes that mark each line of long cells.
pub(crate) fn lines_per_cell(cell_bytes: usize) -> usize {
    cell_bytes.div_ceil(LINE_BYTES).max(1)
}

/// The lines that some bytes of a cell lie in. An empty range counts as the byte at its begin, or as
/// the last byte of the cell.
#[inline(always)]
pub(crate) fn lines_near(bytes: &Range<usize>, cell_bytes: usize) -> Range<usize> {
    let first = bytes.start.min(cell_bytes - 1);
    let last = bytes.end.max(first + 1) - 1;
    first / LINE_BYTES..last / LINE_BYTES + 1
}

/// The line of a cell that some bytes are a part of. `None` without bytes, for a whole line, and for
/// bytes in several lines.
#[inline(always)]
pub(crate) fn line_of_part(bytes: &Range<usize>) -> Option<usize> {
    let line = bytes.start / LINE_BYTES;
    let is_part = !bytes.is_empty() && bytes.len() < LINE_BYTES;
    (is_part && (bytes.end - 1) / LINE_BYTES == line).then_some(line)
}

impl<G: Grain, L: Layout> Grid<G, L> {
    /// The number of the mark for an offset in bytes of a cell.
    #[inline(always)]
    pub fn mark_near(&self, index: usize, offset: usize) -> usize {
        if self.marks_per_cell == 1 {
            return self.mark_at(index);
        }
        // A prefetch may ask for a cell that is not there.
        index.saturating_mul(self.marks_per_cell).saturating_add(offset / LINE_BYTES)
    }

    /// Whether each line of a cell has marks of its own.
    #[inline(always)]
    pub fn marks_lines(&self) -> bool {
        self.marks_per_cell > 1
    }

    /// The number of the mark of a line.
    #[inline(always)]
    pub fn mark_at_line(&self, index: usize, line: usize) -> usize {
        index * self.marks_per_cell + line
    }

    /// The marks of the lines that some bytes of a cell lie in.
    #[inline]
    pub fn marks_near(&self, index: usize, bytes: &Range<usize>) -> Range<usize> {
        let lines = lines_near(bytes, self.cell_bytes());
        self.mark_at_line(index, lines.start)..self.mark_at_line(index, lines.end)
    }

    /// The cell of a mark that is the mark of a line, and the grains of the line in the cell.
    #[inline]
    pub fn line_of(&self, mark: usize) -> (usize, Range<usize>) {
        (mark / self.marks_per_cell, self.grains_of_line(mark % self.marks_per_cell))
    }

    /// The grains of a line in its cell.
    #[inline(always)]
    pub fn grains_of_line(&self, line: usize) -> Range<usize> {
        let (grains, all) = (LINE_BYTES / G::BYTES, self.table.shape().cell_grains);
        line * grains..((line + 1) * grains).min(all)
    }

    /// As [`plain_mark`](Self::plain_mark), of a line of a cell.
    #[inline(always)]
    pub fn mark_of_line(&self, column: usize, spot: &Spot<'_, G>, line: usize) -> u8 {
        if L::BITS {
            self.bits.get(column, self.mark_at_line(spot.index(), line))
        } else {
            spot.mark_of_part(column, line).load(Relaxed) // as in `plain_mark`
        }
    }

    /// Sets the mark of a line of a cell, in a column that no other thread changes now.
    #[inline(always)]
    pub fn set_mark_of_line(&self, column: usize, spot: &Spot<'_, G>, line: usize, value: u8) {
        if L::BITS {
            self.bits.set(column, self.mark_at_line(spot.index(), line), value);
        } else {
            spot.mark_of_part(column, line).store(value, Relaxed); // as in `set_mark`
        }
    }

    /// Overwrites a line of copy `to` of a cell with that of copy `from`, before a write to a part of
    /// the line.
    #[inline(always)]
    pub fn bring_line_over(&self, from: usize, to: usize, spot: &Spot<'_, G>, line: usize) {
        mutant!(LinesLoseTheirRest => return);
        let grains = self.grains_of_line(line);
        copy_grains(&spot.cell(from)[grains.clone()], &spot.cell(to)[grains]);
    }

    /// Calls `each` with each line that some bytes of a cell touch and do not cover: two at most.
    #[inline]
    pub fn for_each_partial_line(&self, bytes: &Range<usize>, mut each: impl FnMut(usize)) {
        let lines = lines_near(bytes, self.cell_bytes());
        let last = lines.end - 1;
        for line in [lines.start, last] {
            let grains = self.grains_of_line(line);
            if bytes.start > grains.start * G::BYTES || bytes.end < grains.end * G::BYTES {
                each(line);
            }
            if line == last {
                return;
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_lines_of_every_part_of_a_cell() {
        for cell_bytes in [72, 128, 200] {
            for start in 0..=cell_bytes {
                for bytes in (start..=cell_bytes).map(|end| start..end) {
                    let lines = lines_near(&bytes, cell_bytes);
                    if bytes.is_empty() {
                        assert_eq!(lines.start, start.min(cell_bytes - 1) / LINE_BYTES);
                        assert_eq!((lines.len(), line_of_part(&bytes)), (1, None), "{bytes:?}");
                        continue;
                    }
                    let touched: BTreeSet<usize> =
                        bytes.clone().map(|it| it / LINE_BYTES).collect();
                    assert!(lines.eq(touched.iter().copied()), "{bytes:?}");
                    let is_part = touched.len() == 1 && bytes.len() < LINE_BYTES;
                    let wanted = touched.first().copied().filter(|_| is_part);
                    assert_eq!(line_of_part(&bytes), wanted, "{bytes:?}");
                }
            }
        }
    }
}
