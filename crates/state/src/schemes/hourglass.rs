//! Hourglass (HG): ICDE 2018, §II-B.1, Example 1.
//!
//! Zigzag's marks with ping-pong's swap: two copies D0 and D1. Copy u collects the updates of a
//! period while the writer reads the other copy, d. A point of consistency swaps u and d and costs
//! nothing else.
//!
//! The paper has a dirty bit for each copy, and a location bit for the copy with the newest value.
//! Here each copy of a block has a *stamp* instead: the low eight bits of the period in which the
//! mutator last wrote that copy. The stamps S0 and S1 tell what the three bits tell.
//! A block is dirty in period k if S\[u\] = k. The copy with the younger stamp is the newest.
//!
//! ```text
//!            period k                 PoC            period k+1
//! mutator    D[u][i], S[u][i] = k   │ swap │ D[u′][i], S[u′][i] = k+1
//! writer     D[d] where S[d] = k-1  │      │ D[u] where S[u] = k
//! ```
//!
//! A write of a whole block stores the values and the stamp, and reads nothing: no store waits for
//! a cache line. A partial write to a block whose newest values are in D\[d\] first copies the
//! block to D\[u\]. Where marks lie beside their cells, a block is one cell. Elsewhere a block is
//! one cache line of cells, so that the stamps are few enough for the processor's caches. In a cell
//! longer than a cache line each line is a block. If the newest lines are in different copies, a
//! read of the whole cell gathers them.
//!
//! Invariants:
//! 1. The mutator does not write D\[d\] and S\[d\] in a period, nor the writer D\[u\] and S\[u\].
//! 2. A block with S\[d\] = k-1 has its values at the point of consistency in D\[d\].
//! 3. The copy with the younger stamp holds the newest values. S0 is even and S1 is odd, except for
//!    the zeros of a new array, where both copies are equal.
//! 4. No stamp is more than 3 · [`SWEEP_PERIODS`] periods old, so eight bits tell which is younger.
//!
//! The writer keeps invariant 4. Once in [`SWEEP_PERIODS`] periods it visits S\[d\] after the image
//! is durable. By then nobody needs to know which blocks were dirty in period k-1. If S\[d\] is the
//! younger stamp, the writer sets it to k-1. If S\[d\] is the older stamp, the writer sets it to
//! S\[u\] - 1. Both keep the order, even if the mutator sets S\[u\] to k meanwhile.
//!
//! Deviation from the paper, which gives no code: the stamps. In a new array all stamps are the
//! first period's, 0. So the first capture is full and begins at a tick like any other. A failed
//! capture does not end its period: the writer takes that capture again. (The published code reads
//! without looking at the location, from a third copy.)

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_io::ForkError;
use stillpoint_mem::{Grain, Spot};
use stillpoint_sync::mutant;

use crate::grid::{
    CellRequirements, Grid, cells_per_block, has_marks_beside, line_of_part, lines_near,
    lines_per_cell,
};
use crate::layout::Layout;
use crate::planted;
use crate::scheme::{Content, Extent, Intent, LiveCopy, Scheme};

/// Periods after which the writer visits all stamps of a copy again (invariant 4).
const SWEEP_PERIODS: u8 = 32;

/// The copy with the younger stamp.
#[inline(always)]
fn newest<G: Grain, L: Layout>(grid: &Grid<G, L>, turn: LiveCopy, block: usize) -> usize {
    let age = |copy: usize| turn.period.wrapping_sub(grid.plain_mark(copy, block));
    usize::from(age(1) < age(0))
}

/// As [`newest`], for a cell that shares its stamps with no other.
#[inline(always)]
fn newest_of<G: Grain, L: Layout>(grid: &Grid<G, L>, turn: LiveCopy, spot: &Spot<'_, G>) -> usize {
    let age = |copy: usize| turn.period.wrapping_sub(grid.mark_of(copy, spot));
    usize::from(age(1) < age(0))
}

/// As [`newest`], for a line of a long cell.
#[inline(always)]
fn newest_of_line<G: Grain, L: Layout>(
    grid: &Grid<G, L>,
    turn: LiveCopy,
    spot: &Spot<'_, G>,
    line: usize,
) -> usize {
    let age = |copy: usize| turn.period.wrapping_sub(grid.mark_of_line(copy, spot, line));
    usize::from(age(1) < age(0))
}

/// A write to a part of a line calls this first. If the other copy has the newest values, they are copied
/// to the copy of the period.
#[inline(always)]
fn bring_over<G: Grain, L: Layout>(
    grid: &Grid<G, L>,
    turn: LiveCopy,
    spot: &Spot<'_, G>,
    line: usize,
) {
    if newest_of_line(grid, turn, spot, line) != turn.up {
        grid.bring_line_over(turn.down(), turn.up, spot, line);
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
    store(spot.cell(turn.up));
    grid.set_marks(turn.up, grid.marks_near(index, bytes), turn.period);
}

/// Keeps the stamps of the writer's copy young, and their order.
fn sweep<G: Grain, L: Layout>(grid: &Grid<G, L>, turn: LiveCopy) {
    for block in 0..grid.marks() {
        let stamp = if newest(grid, turn, block) == turn.down() {
            turn.period.wrapping_sub(1)
        } else {
            grid.plain_mark(turn.up, block).wrapping_sub(1)
        };
        grid.set_mark(turn.down(), block, stamp);
    }
}

/// Swaps two copies.
#[derive(Debug)]
pub struct Hourglass<L>(PhantomData<L>);

impl<L: Layout> Scheme for Hourglass<L> {
    type Layout = L;
    type Frozen = ();
    const CONTENT: Content = Content::Changes;
    const MARKS_LINES: bool = true;

    fn needs(cell_bytes: usize) -> CellRequirements {
        const { assert!(!L::BITS, "stamps are bytes: take a layout whose marks are bytes") };
        let cells_per_mark = cells_per_block::<L>(cell_bytes);
        CellRequirements {
            copies: 2,
            mark_columns: 2,
            mark_bits: 8,
            cells_per_mark,
            marks_per_cell: lines_per_cell(cell_bytes),
            tracks_writes: false,
        }
    }

    /// All stamps are 0, the first period's.
    fn start<G: Grain>(_: &Grid<G, L>, turn: LiveCopy) {
        assert_eq!((turn.up, turn.period), (0, 0), "the zeros say so already");
    }

    fn prepare_for_next_checkpoint<G: Grain>(_: &Grid<G, L>, _: LiveCopy) {}

    #[inline(always)]
    fn handle_read<G: Grain>(grid: &Grid<G, L>, turn: LiveCopy, index: usize) -> usize {
        mutant!(HourglassReadsOneCopy => return turn.up);
        if has_marks_beside::<L>() {
            return newest_of(grid, turn, &grid.spot(index));
        }
        newest(grid, turn, grid.mark_at(index))
    }

    #[inline(always)]
    fn handle_read_lines<G: Grain>(
        grid: &Grid<G, L>,
        turn: LiveCopy,
        spot: &Spot<'_, G>,
        mut lines: Range<usize>,
    ) -> Option<usize> {
        mutant!(HourglassReadsOneCopy => return Some(turn.up));
        let newest = |line| newest_of_line(grid, turn, spot, line);
        let first = newest(lines.next()?);
        lines.all(|line| newest(line) == first).then_some(first)
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
        // The stamps are in the processor's caches and need no prefetch. Only a first write touches
        // both copies.
        let newest = if grid.marks_lines() {
            let line = lines_near(&(offset..offset), grid.cell_bytes()).start;
            newest_of_line(grid, turn, &spot, line)
        } else {
            newest(grid, turn, grid.mark_at(index))
        };
        grid.prefetch_at(newest, &spot, offset);
        if intent == Intent::Write && newest != turn.up {
            grid.prefetch_at(turn.up, &spot, offset);
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
        if extent == Extent::Whole && grid.cells_per_mark() == 1 {
            let spot = grid.spot(index);
            store(spot.cell(turn.up));
            return grid.set_mark_of(turn.up, &spot, turn.period);
        }
        let block = grid.mark_at(index);
        if newest(grid, turn, block) != turn.up {
            mutant!(grid.copy_marked(turn.down(), turn.up, block), HourglassBringsNothingOver => ());
        }
        store(grid.cell(turn.up, index));
        grid.set_mark(turn.up, block, turn.period);
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
        store(spot.cell(turn.up));
        grid.set_mark_of_line(turn.up, &spot, line, turn.period);
    }

    fn write_to_stable_storage<G: Grain>(
        grid: &Grid<G, L>,
        turn: LiveCopy,
        (): &(),
        cells: Range<usize>,
        image: &mut [u8],
    ) -> Result<(), ForkError> {
        let stamp = turn.period.wrapping_sub(1);
        grid.read_marked(turn.down(), (turn.down(), stamp), cells, image);
        Ok(())
    }

    fn image_is_durable<G: Grain>(grid: &Grid<G, L>, turn: LiveCopy) {
        if turn.period % SWEEP_PERIODS < 2 {
            sweep(grid, turn);
        }
    }
}
