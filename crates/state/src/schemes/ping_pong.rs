//! Wait-free ping-pong (NPP, IPP by layout): SIGMOD 2011, §3.3, Algorithm 2, and §4.3.
//!
//! Three copies: the state, and two that collect changes in turn, Odd and Even, each with a mark
//! per cell. Every write goes to the state and to the copy of changes of the present period. The
//! writer reads the cells marked in the other copy of changes. A point of consistency swaps the two
//! and costs nothing else.
//!
//! ```text
//!            period k                  PoC            period k+1
//! mutator    AS, Odd[i], mark Odd[i] │ swap │ AS, Even[i], mark Even[i]
//! writer     Even where marked       │      │ Odd where marked
//! ```
//!
//! Invariants: a cell that is marked in the copy of the period has its newest value there. The other
//! copy is not written in the period. The image is made full by laying the changes over the last
//! one, in memory (Copy) or from the disk (Merge).
//!
//! Beyond the paper: the first partial write to a cell in a period copies the whole cell to the
//! copy of the period. The writer clears marks once the image is durable, not one by one while it
//! writes the image. The writer stores only where a mark is set. A failed capture does not end its
//! period: the writer takes that capture again.

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_io::ForkError;
use stillpoint_mem::{Grain, Spot, copy_grains};
use stillpoint_sync::mutant;

use crate::grid::{CellRequirements, Grid, line_of_part, lines_per_cell};
use crate::layout::Layout;
use crate::planted;
use crate::scheme::{Content, Extent, Intent, LiveCopy, Scheme};

const STATE: usize = 0;

/// The copy of changes of a turn. That copy's column of marks has the turn's own number.
#[inline(always)]
fn changes(turn: usize) -> usize {
    1 + turn
}

/// The two copies that take a write. A loop over both calls the store at one place, where the compiler
/// inlines it.
#[inline(always)]
fn both_copies(turn: LiveCopy) -> [usize; 2] {
    [STATE, changes(turn.up)]
}

/// Writes everything twice.
#[derive(Debug)]
pub struct PingPong<L>(PhantomData<L>);

/// A write to a part of a line calls this first. The first write to the line in a period copies the line
/// to the copy of the period. That reads the state before the write's own store, so it need not
/// wait for that store.
#[inline(always)]
fn bring_over<G: Grain, L: Layout>(
    grid: &Grid<G, L>,
    turn: LiveCopy,
    spot: &Spot<'_, G>,
    line: usize,
) {
    if grid.mark_of_line(turn.up, spot, line) == 0 {
        grid.bring_line_over(STATE, changes(turn.up), spot, line);
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
    let spot = grid.spot(index);
    grid.for_each_partial_line(bytes, |line| bring_over(grid, turn, &spot, line));
    for copy in both_copies(turn) {
        store(spot.cell(copy));
    }
    grid.set_marks(turn.up, grid.marks_near(index, bytes), 1);
}

impl<L: Layout> Scheme for PingPong<L> {
    type Layout = L;
    type Frozen = ();
    const CONTENT: Content = Content::Changes;
    const MARKS_LINES: bool = true;

    fn needs(cell_bytes: usize) -> CellRequirements {
        CellRequirements {
            copies: 3,
            mark_columns: 2,
            mark_bits: 1,
            cells_per_mark: 1,
            marks_per_cell: lines_per_cell(cell_bytes),
            tracks_writes: false,
        }
    }

    fn start<G: Grain>(grid: &Grid<G, L>, turn: LiveCopy) {
        grid.fill_marks(turn.up, 1);
    }

    fn prepare_for_next_checkpoint<G: Grain>(_: &Grid<G, L>, _: LiveCopy) {}

    #[inline(always)]
    fn handle_read<G: Grain>(_: &Grid<G, L>, _: LiveCopy, _: usize) -> usize {
        STATE
    }

    #[inline(always)]
    fn handle_read_lines<G: Grain>(
        _: &Grid<G, L>,
        _: LiveCopy,
        _: &Spot<'_, G>,
        _: Range<usize>,
    ) -> Option<usize> {
        Some(STATE)
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
        if index >= grid.cells() {
            return;
        }
        let spot = grid.spot(index);
        grid.prefetch_at(STATE, &spot, offset);
        if intent == Intent::Write {
            grid.prefetch_at(changes(turn.up), &spot, offset);
            grid.prefetch_mark(turn.up, grid.mark_near(index, offset));
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
        let spot = grid.spot(index);
        let (state, changed) = (spot.cell(STATE), spot.cell(changes(turn.up)));
        store(state);
        if extent == Extent::Part && grid.mark_of(turn.up, &spot) == 0 {
            mutant!(copy_grains(state, changed), PingPongBringsNothingOver => store(changed));
        } else {
            store(changed);
        }
        grid.set_mark_of(turn.up, &spot, 1);
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
        let spot = grid.spot(index);
        bring_over(grid, turn, &spot, line);
        for copy in both_copies(turn) {
            store(spot.cell(copy));
        }
        grid.set_mark_of_line(turn.up, &spot, line, 1);
    }

    fn write_to_stable_storage<G: Grain>(
        grid: &Grid<G, L>,
        turn: LiveCopy,
        (): &(),
        cells: Range<usize>,
        image: &mut [u8],
    ) -> Result<(), ForkError> {
        grid.read_marked(changes(turn.down()), (turn.down(), 1), cells, image);
        Ok(())
    }

    fn image_is_durable<G: Grain>(grid: &Grid<G, L>, turn: LiveCopy) {
        grid.clear_marks(turn.down());
    }
}
