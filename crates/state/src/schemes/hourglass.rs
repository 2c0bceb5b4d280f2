//! Hourglass (HG): ICDE 2018, §II-B.1, Example 1.
//!
//! Zigzag's bits with ping-pong's swap: two copies D0 and D1, of which u collects the updates of a
//! period while the writer reads the other, d. Dirty bits b0 and b1 say which cells changed; the
//! location bit L says which copy holds a cell's newest value. A point of consistency swaps u and d
//! and costs nothing else.
//!
//! ```text
//!            period k                     PoC            period k+1
//! mutator    D[u][i], b[u][i]=1, L[i]=u │ swap │ D[u′][i], b[u′][i]=1, L[i]=u′
//! writer     D[d] where b[d]            │      │ D[u] where b[u]
//! ```
//!
//! Invariants: D[d] is not written in a period; a cell with b[d] has its value at the point of
//! consistency in D[d]; D[L[i]][i] is the newest value. The first partial write to a cell whose
//! newest value is in the other copy brings the whole cell over.
//!
//! The paper leaves its code out, and the published code reads without looking at L, from a third
//! copy. Here: at the start b[u] is all ones and L all u, so that the first capture, which begins at
//! a tick like any other, is full (the paper begins with one at time 0). b[d] is cleared in bulk
//! once the image is durable. A failed capture does not end its period: it is taken again.

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_io::ForkError;
use stillpoint_mem::Grain;
use stillpoint_sync::mutant;

use crate::grid::{CellRequirements, Grid};
use crate::layout::Layout;
use crate::planted;
use crate::scheme::{Content, Extent, Intent, LiveCopy, Scheme};

/// Column of the location bits; 0 and 1 are the dirty bits of the two copies.
const LOCATION: usize = 2;

/// From this many bytes on copies of a cell share no line.
const LARGE_BYTES: usize = 64;

/// Swaps two copies.
#[derive(Debug)]
pub struct Hourglass<L>(PhantomData<L>);

impl<L: Layout> Scheme for Hourglass<L> {
    type Layout = L;
    type Frozen = ();
    const CONTENT: Content = Content::Changes;

    fn needs(_: usize) -> CellRequirements {
        CellRequirements { copies: 2, mark_columns: 3, mark_bits: 1, cells_per_mark: 1 }
    }

    fn start<G: Grain>(grid: &Grid<G, L>, turn: LiveCopy) {
        assert_eq!(turn.up, 0, "LOCATION says so already");
        grid.fill_marks(turn.up, 1);
    }

    fn prepare_for_next_checkpoint<G: Grain>(_: &Grid<G, L>, _: LiveCopy) {}

    #[inline(always)]
    fn handle_read<G: Grain>(grid: &Grid<G, L>, turn: LiveCopy, index: usize) -> usize {
        mutant!(HourglassReadsOneCopy => return turn.up);
        if L::BITS && grid.cell_bytes() < LARGE_BYTES {
            // The bits are elsewhere; the line of both copies need not wait for them.
            grid.prefetch(turn.up, index, 0);
        }
        usize::from(grid.mark(LOCATION, index))
    }

    #[inline(always)]
    fn prefetch<G: Grain>(
        grid: &Grid<G, L>,
        turn: LiveCopy,
        index: usize,
        offset: usize,
        intent: Intent,
    ) {
        // To ask first which copy is the newest would be to wait for the mark.
        grid.prefetch(turn.up, index, offset);
        grid.prefetch(turn.down(), index, offset);
        grid.prefetch_mark(LOCATION, index);
        if intent == Intent::Write {
            grid.prefetch_mark(turn.up, index);
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
        if extent == Extent::Part && grid.mark(LOCATION, index) != turn.up as u8 {
            mutant!(grid.copy_cell(turn.down(), turn.up, index), HourglassBringsNothingOver => ());
        }
        store(grid.cell(turn.up, index));
        grid.set_mark(turn.up, index, 1);
        grid.set_mark(LOCATION, index, turn.up as u8);
    }

    fn write_to_stable_storage<G: Grain>(
        grid: &Grid<G, L>,
        turn: LiveCopy,
        (): &(),
        cells: Range<usize>,
        image: &mut [u8],
    ) -> Result<(), ForkError> {
        grid.read_marked(turn.down(), turn.down(), cells, image);
        Ok(())
    }

    fn image_is_durable<G: Grain>(grid: &Grid<G, L>, turn: LiveCopy) {
        grid.fill_marks(turn.down(), 0);
    }
}
