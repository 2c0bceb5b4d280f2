//! Piggyback (PB): ICDE 2018, §II-B.2, Example 2.
//!
//! Two copies D0 and D1, of which u collects updates. In each period a copier copies all blocks
//! that are newest in the other copy, d, to u. So D[u] is complete at the end of the period, and
//! after the swap D[d] is a full snapshot. A tick can swap once both the capture and the copier are
//! done.
//!
//! ```text
//! state of a block: EQUAL ──write──► NEWEST u ──swap: u is now d──► NEWEST d
//!                     ▲                 ▲                             │  │
//!                     │                 └──────write, bringing over───┘  │
//!                     └──────────────────── copied ──────────────────────┘
//! ```
//!
//! The paper has these three states and no code, and its published copy loop races with writers.
//! Here the copier goes over the blocks in order, and a [`Frontier`](crate::Frontier) keeps the two
//! apart. The mutator and the copier are never at work in the same *piece*, some KiB of blocks. So
//! neither has to claim a block, and a mark is a plain store for both. A write to the piece that is
//! being copied waits for the end of the piece. Behind the copier a write reads no mark. Ahead of
//! the copier a write brings its own block over, and the copier skips that block.
//!
//! Invariants:
//! 1. D[d] is not written in a period.
//! 2. NEWEST u and EQUAL blocks are up to date in D[u], EQUAL and NEWEST d blocks in D[d].
//! 3. At the swap no block is NEWEST d.
//!
//! So a reader needs no frontier: a mark names a right copy, even if the copier has passed
//! meanwhile. A failed capture costs nothing: the copier still finishes, and the next image is
//! full.
//!
//! The copier works before the writer, and is done soon. From then on, which is most of the time,
//! D[u] is complete. Reads use D[u] without a look at any mark. A write, partial or whole, stores
//! the cell and the mark without a load. A store that waits for its cache line delays no other
//! access, and a load does.
//!
//! A block is 64 bytes of words, or a cache line. The mark of a block is a byte (or two bits) in an
//! array of marks that is small enough to stay in the cache. Where marks lie beside their cells
//! instead (`interleaved`, `packed`), each cell has its own. In a cell longer than a cache line
//! each line is a block.

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_io::ForkError;
use stillpoint_mem::{Grain, Spot, copy_grains};
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::mutant;

use crate::grid::{CellRequirements, Grid, cells_per_block, line_of_part, lines_per_cell};
use crate::layout::Layout;
use crate::planted;
use crate::scheme::{Content, Extent, Intent, LiveCopy, Scheme};

/// The only column of marks.
const STATE: usize = 0;

const EQUAL: u8 = 0;

/// A piece is copied as a whole if at least one in `DENSE` of its blocks must be copied. Adjacent
/// blocks are copied faster than scattered ones.
const DENSE: usize = 8;

/// The state of a block whose newest value is in this copy.
#[inline(always)]
fn newest_in(copy: usize) -> u8 {
    copy as u8 + 1
}

/// Swaps two copies, and copies on the side.
#[derive(Debug)]
pub struct Piggyback<L>(PhantomData<L>);

/// Brings the blocks of a piece over.
fn copy_piece<G: Grain, L: Layout>(grid: &Grid<G, L>, turn: LiveCopy, piece: Range<usize>) {
    if !grid.has_columns_of_marks() {
        return grid.for_each_spot(piece, |spot| {
            // Relaxed: no other thread changes the marks of the piece.
            if spot.mark(STATE).load(Relaxed) == newest_in(turn.down()) {
                copy_grains(spot.cell(turn.down()), spot.cell(turn.up));
                spot.mark(STATE).store(EQUAL, Relaxed);
            }
        });
    }
    let copy = |run: Range<usize>| {
        grid.copy_marks(turn.down(), turn.up, run.clone());
        grid.set_marks(STATE, run, EQUAL);
    };
    let mut newest_down = 0;
    grid.for_each_run(STATE, newest_in(turn.down()), piece.clone(), |run| newest_down += run.len());
    if newest_down < piece.len() / DENSE {
        return grid.for_each_run(STATE, newest_in(turn.down()), piece, copy);
    }
    // EQUAL blocks may be copied as well. Only blocks that the mutator has brought over must not.
    let mut at = piece.start;
    grid.for_each_run(STATE, newest_in(turn.up), piece.clone(), |run| {
        if at < run.start {
            copy(at..run.start);
        }
        at = run.end;
    });
    if at < piece.end {
        copy(at..piece.end);
    }
}

/// Marks lines of a cell as NEWEST u before the copier has come to all of them. If a line is only
/// partly written, the mutator brings over the rest of the line.
#[cold]
fn bring_over<G: Grain, L: Layout>(
    grid: &Grid<G, L>,
    turn: LiveCopy,
    index: usize,
    bytes: &Range<usize>,
    marks: Range<usize>,
) {
    let (frontier, spot) = (grid.frontier(), grid.spot(index));
    let mut at = marks.start;
    while at < marks.end {
        let end = frontier.end_of_piece(at).min(marks.end);
        let writing = frontier.enter(turn, at);
        grid.for_each_partial_line(bytes, |line| {
            let is_here = (at..end).contains(&grid.mark_at_line(index, line));
            if is_here && grid.mark_of_line(STATE, &spot, line) == newest_in(turn.down()) {
                grid.bring_line_over(turn.down(), turn.up, &spot, line);
            }
        });
        grid.set_marks(STATE, at..end, newest_in(turn.up));
        drop(writing);
        at = end;
    }
}

/// A write of no bytes, of a whole line of a cell, or of bytes in several lines.
#[inline(never)]
fn write_several_lines<G: Grain, L: Layout>(
    grid: &Grid<G, L>,
    turn: LiveCopy,
    index: usize,
    bytes: &Range<usize>,
    mut store: impl FnMut(&[G]),
) {
    let marks = grid.marks_near(index, bytes);
    if grid.frontier().is_done(turn, marks.end - 1) {
        grid.set_marks(STATE, marks, newest_in(turn.up));
    } else {
        bring_over(grid, turn, index, bytes, marks);
    }
    // The copier skips blocks that are NEWEST u.
    store(grid.cell(turn.up, index));
}

impl<L: Layout> Scheme for Piggyback<L> {
    type Layout = L;
    type Frozen = ();
    const CONTENT: Content = Content::Full;
    const MARKS_LINES: bool = true;

    /// Where marks lie beside their cells, each cell has one; elsewhere they are for blocks.
    fn needs(cell_bytes: usize) -> CellRequirements {
        let cells_per_mark = cells_per_block::<L>(cell_bytes);
        CellRequirements {
            copies: 2,
            mark_columns: 1,
            mark_bits: 2,
            cells_per_mark,
            marks_per_cell: lines_per_cell(cell_bytes),
            tracks_writes: false,
        }
    }

    /// All blocks are EQUAL, which is zero.
    fn start<G: Grain>(_: &Grid<G, L>, _: LiveCopy) {}

    /// The swap of the copies also resets the frontier.
    fn prepare_for_next_checkpoint<G: Grain>(_: &Grid<G, L>, _: LiveCopy) {}

    #[inline(always)]
    fn handle_read<G: Grain>(grid: &Grid<G, L>, turn: LiveCopy, index: usize) -> usize {
        if grid.frontier().is_all_done(turn) {
            return turn.up;
        }
        let is_up = grid.plain_mark(STATE, grid.mark_at(index)) == newest_in(turn.up);
        if is_up { turn.up } else { turn.down() }
    }

    #[inline]
    fn handle_read_lines<G: Grain>(
        grid: &Grid<G, L>,
        turn: LiveCopy,
        spot: &Spot<'_, G>,
        mut lines: Range<usize>,
    ) -> Option<usize> {
        if grid.frontier().is_all_done(turn) {
            return Some(turn.up);
        }
        let is_up = |line| grid.mark_of_line(STATE, spot, line) == newest_in(turn.up);
        let first = is_up(lines.next()?);
        let copy = if first { turn.up } else { turn.down() };
        lines.all(|line| is_up(line) == first).then_some(copy)
    }

    #[inline(always)]
    fn prefetch<G: Grain>(
        grid: &Grid<G, L>,
        turn: LiveCopy,
        index: usize,
        offset: usize,
        intent: Intent,
    ) {
        if !grid.has_columns_of_marks() {
            return grid.prefetch_line(index);
        }
        grid.prefetch(turn.up, index, offset);
        if !grid.frontier().is_all_done(turn) {
            grid.prefetch(turn.down(), index, offset);
            grid.prefetch_mark(STATE, grid.mark_near(index, offset));
        } else if intent == Intent::Write {
            grid.prefetch_mark(STATE, grid.mark_near(index, offset));
        }
    }

    #[inline(always)]
    fn handle_write<G: Grain>(
        grid: &Grid<G, L>,
        turn: LiveCopy,
        index: usize,
        extent: Extent,
        mut store: impl FnMut(&[G]),
    ) {
        let block = grid.mark_at(index);
        let frontier = grid.frontier();
        let writing = if frontier.is_done(turn, block) {
            grid.set_mark(STATE, block, newest_in(turn.up));
            None
        } else {
            let writing = frontier.enter(turn, block);
            let state = grid.replace_mark(STATE, block, newest_in(turn.up));
            // A write of less than its block or cell brings over the rest.
            let is_all = extent == Extent::Whole && grid.cells_per_mark() == 1;
            if state == newest_in(turn.down()) && !is_all {
                grid.copy_marked(turn.down(), turn.up, block);
            }
            Some(writing)
        };
        store(grid.cell(turn.up, index));
        drop(writing);
    }

    #[inline(always)]
    fn handle_write_lines<G: Grain>(
        grid: &Grid<G, L>,
        turn: LiveCopy,
        index: usize,
        bytes: Range<usize>,
        mut store: impl FnMut(&[G]),
    ) {
        let Some(line) = line_of_part(&bytes) else {
            return write_several_lines(grid, turn, index, &bytes, store);
        };
        let (spot, mark) = (grid.spot(index), grid.mark_at_line(index, line));
        if grid.frontier().is_done(turn, mark) {
            grid.set_mark_of_line(STATE, &spot, line, newest_in(turn.up));
        } else {
            bring_over(grid, turn, index, &bytes, mark..mark + 1);
        }
        // The copier skips blocks that are NEWEST u.
        store(spot.cell(turn.up));
    }

    fn write_to_stable_storage<G: Grain>(
        grid: &Grid<G, L>,
        turn: LiveCopy,
        (): &(),
        cells: Range<usize>,
        image: &mut [u8],
    ) -> Result<(), ForkError> {
        grid.read_bytes(turn.down(), cells, image);
        Ok(())
    }

    fn copy_over<G: Grain>(grid: &Grid<G, L>, turn: LiveCopy, cells: usize) {
        mutant!(PiggybackDoesNotWaitForTheCopier => return);
        let end = grid.marks_of(&(0..cells)).end;
        grid.frontier().copy_until(turn, end, |piece| copy_piece(grid, turn, piece));
    }
}
