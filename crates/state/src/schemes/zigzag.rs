//! Wait-free zigzag (NZZ, IZZ, PZZ, BAZZ by layout): SIGMOD 2011, §3.2, Algorithm 1, and §4.2.
//!
//! Every cell has two copies and two bits. MR tells which copy the mutator reads, and MW which copy
//! it writes. MW does not change in a period. So the copy ¬MW does not change either, and the
//! writer reads it without any lock. At a point of consistency MW becomes ¬MR, which protects the
//! newest values.
//!
//! ```text
//!            period k                 PoC           period k+1
//! cell i   MR=0 MW=1   write → MR=1 │ MW := ¬MR=0 │ write goes to copy 0, writer reads copy 1
//! ```
//!
//! Invariant: ¬MW of each cell is its value at the point of consistency. Before a partial write to
//! a cell whose newest value is in the other copy (MR ≠ MW), the mutator copies the whole cell
//! over. The paper has words only, which are written whole. A failed capture costs nothing: the
//! next image is full.

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_io::ForkError;
use stillpoint_mem::Grain;
use stillpoint_sync::mutant;

use crate::grid::{CellRequirements, Grid};
use crate::layout::Layout;
use crate::planted;
use crate::scheme::{Content, Extent, Intent, LiveCopy, Scheme};

/// Columns of marks.
const MR: usize = 0;
const MW: usize = 1;

/// Reads and writes by two bits.
#[derive(Debug)]
pub struct Zigzag<L>(PhantomData<L>);

/// Plants the bug `ZigzagForgetsAMark`: MW of the last cell stays unchanged.
fn negate_all_but_one<G: Grain, L: Layout>(grid: &Grid<G, L>) {
    let last = grid.cells().checked_sub(1).map(|last| (last, grid.mark(MW, last)));
    grid.negate_marks(MW, MR);
    if let Some((last, before)) = last {
        grid.set_mark(MW, last, before);
    }
}

impl<L: Layout> Scheme for Zigzag<L> {
    type Layout = L;
    type Frozen = ();
    const CONTENT: Content = Content::Full;

    fn needs(_: usize) -> CellRequirements {
        CellRequirements {
            copies: 2,
            mark_columns: 2,
            mark_bits: 1,
            cells_per_mark: 1,
            marks_per_cell: 1,
            tracks_writes: false,
        }
    }

    fn start<G: Grain>(grid: &Grid<G, L>, _: LiveCopy) {
        grid.fill_marks(MW, 1);
    }

    fn prepare_for_next_checkpoint<G: Grain>(grid: &Grid<G, L>, _: LiveCopy) {
        mutant!(grid.negate_marks(MW, MR), ZigzagForgetsAMark => negate_all_but_one(grid));
    }

    #[inline(always)]
    fn handle_read<G: Grain>(grid: &Grid<G, L>, _: LiveCopy, index: usize) -> usize {
        usize::from(grid.mark(MR, index))
    }

    #[inline(always)]
    fn prefetch<G: Grain>(grid: &Grid<G, L>, _: LiveCopy, index: usize, offset: usize, _: Intent) {
        if !grid.has_columns_of_marks() {
            return grid.prefetch_line(index);
        }
        grid.prefetch(0, index, offset);
        grid.prefetch(1, index, offset);
        grid.prefetch_mark(MR, index);
        grid.prefetch_mark(MW, index);
    }

    #[inline(always)]
    fn handle_write<G: Grain>(
        grid: &Grid<G, L>,
        _: LiveCopy,
        index: usize,
        extent: Extent,
        mut store: impl FnMut(&[G]),
    ) {
        let to = grid.mark(MW, index);
        if extent == Extent::Part {
            let newest = mutant!(grid.mark(MR, index), ZigzagBringsNothingOver => to);
            if newest != to {
                grid.copy_cell(usize::from(newest), usize::from(to), index);
            }
        }
        store(grid.cell(usize::from(to), index));
        grid.set_mark(MR, index, to);
    }

    fn write_to_stable_storage<G: Grain>(
        grid: &Grid<G, L>,
        _: LiveCopy,
        (): &(),
        cells: Range<usize>,
        image: &mut [u8],
    ) -> Result<(), ForkError> {
        grid.for_each_cell(cells, image, |spot, room| {
            let stable = usize::from(grid.mark_of(MW, &spot) ^ 1);
            crate::grid::load_bytes(spot.cell(stable), room);
        });
        Ok(())
    }
}
