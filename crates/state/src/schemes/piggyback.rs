//! Piggyback (PB): ICDE 2018, §II-B.2, Example 2.
//!
//! Two copies D0 and D1, of which u collects updates; in each period a copier takes everything that
//! was newest in the other, d, over to u. So D[u] is complete at the end of the period, and after the
//! swap D[d] is a full snapshot. A tick can swap once both the capture and the copier are done.
//!
//! ```text
//! state of a cell:  EQUAL ──write──► NEWEST u ──swap: u is now d──► NEWEST d
//!                     ▲                 ▲                             │  │
//!                     │                 └──────────write, claiming────┘  │
//!                     └── copied ◄── MOVING ◄──────────copier claims─────┘
//! ```
//!
//! While a cell is MOVING only the copier writes it; a writer that meets it waits for the copy of
//! that one cell. The paper has three states and no code; with them the claim cannot be expressed,
//! and the published copy loop races with writers.
//!
//! Invariants: D[d] is not written in a period; NEWEST u and EQUAL cells are up to date in D[u]; at
//! the swap no cell is MOVING or NEWEST d. A failed capture costs nothing, the copier goes to its
//! end all the same: the next image is full.

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_mem::Grain;
use stillpoint_sync::Backoff;

use crate::grid::{Grid, Needs};
use crate::layout::Layout;
use crate::planted::{Bug, is_planted};
use crate::scheme::{Content, Extent, Last, Scheme, Turn};

/// The only column of marks.
const STATE: usize = 0;

const EQUAL: u8 = 0;
const MOVING: u8 = 3;

/// The state of a cell whose newest value is in this copy.
#[inline(always)]
fn newest_in(copy: usize) -> u8 {
    copy as u8 + 1
}

/// Swaps two copies, and copies on the side.
#[derive(Debug)]
pub struct Piggyback<L>(PhantomData<L>);

/// Makes a cell whose newest value is in D[d] the mutator's own; false if the copier has brought it
/// over meanwhile.
#[inline]
fn claim<G: Grain, L: Layout>(grid: &Grid<G, L>, turn: Turn, index: usize) -> bool {
    if grid.exchange_mark(STATE, index, newest_in(turn.down()), newest_in(turn.up)) {
        return true;
    }
    let mut backoff = Backoff::new();
    while grid.mark(STATE, index) == MOVING {
        backoff.wait();
    }
    false
}

impl<L: Layout> Scheme for Piggyback<L> {
    type Layout = L;
    const CONTENT: Content = Content::Full;

    fn needs(_: usize) -> Needs {
        Needs { copies: 2, mark_columns: 1, mark_bits: 2, cells_per_mark: 1 }
    }

    fn start<G: Grain>(grid: &Grid<G, L>, _: Turn) {
        grid.fill_marks(STATE, EQUAL);
    }

    fn prepare_for_next_checkpoint<G: Grain>(_: &Grid<G, L>, _: Turn, _: Last) {}

    #[inline(always)]
    fn handle_read<G: Grain>(grid: &Grid<G, L>, turn: Turn, index: usize) -> usize {
        match grid.mark(STATE, index) {
            MOVING => turn.down(),
            state => usize::from(state == newest_in(1)),
        }
    }

    #[inline(always)]
    fn handle_write<G: Grain>(
        grid: &Grid<G, L>,
        turn: Turn,
        index: usize,
        extent: Extent,
        mut store: impl FnMut(&[G]),
    ) {
        let state = grid.mark(STATE, index);
        if state != newest_in(turn.up) {
            let was_behind = state != EQUAL && claim(grid, turn, index);
            if was_behind {
                if extent == Extent::Part {
                    grid.copy_cell(turn.down(), turn.up, index);
                }
            } else {
                // EQUAL: nobody else changes this mark, but others those beside it.
                grid.publish_mark(STATE, index, newest_in(turn.up));
            }
        }
        store(grid.cell(turn.up, index));
    }

    fn write_to_stable_storage<G: Grain>(
        grid: &Grid<G, L>,
        turn: Turn,
        cells: Range<usize>,
        image: &mut [u8],
    ) {
        grid.read_bytes(turn.down(), cells, image);
    }

    fn copy_over<G: Grain>(grid: &Grid<G, L>, turn: Turn, cells: Range<usize>) {
        if is_planted(Bug::PiggybackDoesNotWaitForTheCopier) {
            return;
        }
        for index in cells {
            if is_planted(Bug::PiggybackCopiesUnclaimed) {
                if grid.mark(STATE, index) != EQUAL {
                    grid.copy_cell(turn.down(), turn.up, index);
                    grid.publish_mark(STATE, index, EQUAL);
                }
                continue;
            }
            if grid.mark(STATE, index) == newest_in(turn.down())
                && grid.exchange_mark(STATE, index, newest_in(turn.down()), MOVING)
            {
                grid.copy_cell(turn.down(), turn.up, index);
                grid.publish_mark(STATE, index, EQUAL);
            }
        }
    }
}
