//! Piggyback (PB): ICDE 2018, §II-B.2, Example 2.
//!
//! Two copies D0 and D1, of which u collects updates; in each period a copier takes everything that
//! was newest in the other, d, over to u. So D[u] is complete at the end of the period, and after the
//! swap D[d] is a full snapshot. A tick can swap once both the capture and the copier are done.
//!
//! ```text
//! state of a block: EQUAL ──write──► NEWEST u ──swap: u is now d──► NEWEST d
//!                     ▲                 ▲                             │  │
//!                     │                 └──────────write, claiming────┘  │
//!                     └── copied ◄── MOVING ◄──────────copier claims─────┘
//! ```
//!
//! While a block is MOVING only the copier writes it; a writer that meets it waits for the copy of
//! that one block. The paper has three states and no code; with them the claim cannot be expressed,
//! and the published copy loop races with writers.
//!
//! Invariants: D[d] is not written in a period; NEWEST u and EQUAL blocks are up to date in D[u]; at
//! the swap no block is MOVING or NEWEST d. A failed capture costs nothing, the copier goes to its
//! end all the same: the next image is full.
//!
//! The copier goes first, and is done soon; from then on, which is most of the time, the grid is
//! *settled*: D[u] is complete, so reads go there without a look at any mark, and a write stores the
//! cell and the mark without one, partial or whole. A store that waits for its cache line holds
//! nobody up; a load does.
//!
//! A block is 64 bytes of words, a cache line, or a page, with a mark of a byte (or two bits) in an
//! array of marks that is small enough to stay in the cache: where marks lie beside their cells
//! instead (`interleaved`, `packed`), each cell has its own.

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_io::ForkError;
use stillpoint_mem::{Grain, Placement};
use stillpoint_sync::Backoff;

use crate::grid::{Grid, Needs};
use crate::layout::Layout;
use crate::planted::{Bug, is_planted};
use crate::scheme::{Content, Extent, Scheme, Turn};

/// The only column of marks.
const STATE: usize = 0;

const EQUAL: u8 = 0;
const MOVING: u8 = 3;

/// Bytes of words that share a mark.
const BLOCK_BYTES: usize = 64;

/// The state of a block whose newest value is in this copy.
#[inline(always)]
fn newest_in(copy: usize) -> u8 {
    copy as u8 + 1
}

/// Swaps two copies, and copies on the side.
#[derive(Debug)]
pub struct Piggyback<L>(PhantomData<L>);

/// Makes a block whose newest value is in D[d] the mutator's own; false if the copier has brought it
/// over meanwhile.
#[inline]
fn claim<G: Grain, L: Layout>(grid: &Grid<G, L>, turn: Turn, block: usize) -> bool {
    if grid.exchange_mark(STATE, block, newest_in(turn.down()), newest_in(turn.up)) {
        return true;
    }
    let mut backoff = Backoff::new();
    while grid.mark(STATE, block) == MOVING {
        backoff.wait();
    }
    false
}

/// Before a write, while the copier may be at work: makes D[u] complete as far as the block goes, up
/// to the cell itself if that is written whole.
#[inline]
fn bring_over<G: Grain, L: Layout>(grid: &Grid<G, L>, turn: Turn, block: usize, extent: Extent) {
    let state = grid.mark(STATE, block);
    if state == newest_in(turn.up) {
        return;
    }
    if state != EQUAL && claim(grid, turn, block) {
        if extent == Extent::Part || grid.cells_per_mark() > 1 {
            grid.copy_cells(turn.down(), turn.up, grid.cells_of(block));
        }
    } else {
        // EQUAL: nobody else changes this mark, but others those beside it.
        grid.publish_mark(STATE, block, newest_in(turn.up));
    }
}

impl<L: Layout> Scheme for Piggyback<L> {
    type Layout = L;
    type Frozen = ();
    const CONTENT: Content = Content::Full;

    /// Where marks lie beside their cells, each cell has one; elsewhere they are for blocks.
    fn needs(cell_bytes: usize) -> Needs {
        let is_beside = L::PLACEMENT != Placement::Apart && !L::BITS;
        let cells_per_mark = if is_beside { 1 } else { (BLOCK_BYTES / cell_bytes).max(1) };
        Needs { copies: 2, mark_columns: 1, mark_bits: 2, cells_per_mark }
    }

    /// All blocks are EQUAL, which is zero.
    fn start<G: Grain>(_: &Grid<G, L>, _: Turn) {}

    fn prepare_for_next_checkpoint<G: Grain>(grid: &Grid<G, L>, _: Turn) {
        if !is_planted(Bug::PiggybackSettlesTooEarly) {
            grid.unsettle();
        }
    }

    #[inline(always)]
    fn handle_read<G: Grain>(grid: &Grid<G, L>, turn: Turn, index: usize) -> usize {
        if grid.is_settled() {
            return turn.up;
        }
        match grid.mark(STATE, index / grid.cells_per_mark()) {
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
        let block = index / grid.cells_per_mark();
        if grid.is_settled() {
            grid.set_mark(STATE, block, newest_in(turn.up));
        } else {
            bring_over(grid, turn, block, extent);
        }
        store(grid.cell(turn.up, index));
    }

    fn write_to_stable_storage<G: Grain>(
        grid: &Grid<G, L>,
        turn: Turn,
        (): &(),
        cells: Range<usize>,
        image: &mut [u8],
    ) -> Result<(), ForkError> {
        grid.read_bytes(turn.down(), cells, image);
        Ok(())
    }

    fn copy_over<G: Grain>(grid: &Grid<G, L>, turn: Turn, cells: Range<usize>) {
        if is_planted(Bug::PiggybackDoesNotWaitForTheCopier) {
            return;
        }
        if cells.is_empty() {
            return;
        }
        let per = grid.cells_per_mark();
        let blocks = cells.start / per..(cells.end - 1) / per + 1;
        let copy = |block| grid.copy_cells(turn.down(), turn.up, grid.cells_of(block));
        if is_planted(Bug::PiggybackCopiesUnclaimed) {
            for block in blocks.filter(|block| grid.mark(STATE, *block) != EQUAL) {
                copy(block);
                grid.publish_mark(STATE, block, EQUAL);
            }
            return;
        }
        grid.for_each_run(STATE, newest_in(turn.down()), blocks, |run| {
            for block in run {
                if grid.exchange_mark(STATE, block, newest_in(turn.down()), MOVING) {
                    copy(block);
                    grid.publish_mark(STATE, block, EQUAL);
                }
            }
        });
    }

    fn all_is_copied<G: Grain>(grid: &Grid<G, L>) {
        // Another thread may still be copying what it has claimed.
        grid.for_each_run(STATE, MOVING, 0..grid.marks(), |run| {
            for block in run {
                let mut backoff = Backoff::new();
                while grid.mark(STATE, block) == MOVING {
                    backoff.wait();
                }
            }
        });
        grid.settle();
    }
}
