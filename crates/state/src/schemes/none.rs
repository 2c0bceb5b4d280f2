//! No checkpoints: the raw mutator, the baseline of both papers.
//!
//! One copy, no marks, no hooks: a read is a load and a write is a store. With a log of actions the
//! state is still durable, and recovery replays all actions.

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_io::ForkError;
use stillpoint_mem::Grain;

use crate::grid::{CellRequirements, Grid};
use crate::layout::Layout;
use crate::scheme::{Content, Extent, LiveCopy, Scheme};

/// No checkpoints.
#[derive(Debug)]
pub struct NoCheckpoints<L>(PhantomData<L>);

impl<L: Layout> Scheme for NoCheckpoints<L> {
    type Layout = L;
    type Frozen = ();
    const CONTENT: Content = Content::Nothing;

    fn needs(_: usize) -> CellRequirements {
        CellRequirements {
            copies: 1,
            mark_columns: 0,
            mark_bits: 1,
            cells_per_mark: 1,
            marks_per_cell: 1,
            tracks_writes: false,
        }
    }

    fn start<G: Grain>(_: &Grid<G, L>, _: LiveCopy) {}

    fn prepare_for_next_checkpoint<G: Grain>(_: &Grid<G, L>, _: LiveCopy) {}

    #[inline(always)]
    fn handle_read<G: Grain>(_: &Grid<G, L>, _: LiveCopy, _: usize) -> usize {
        0
    }

    #[inline(always)]
    fn handle_write<G: Grain>(
        grid: &Grid<G, L>,
        _: LiveCopy,
        index: usize,
        _: Extent,
        mut store: impl FnMut(&[G]),
    ) {
        store(grid.cell(0, index));
    }

    fn write_to_stable_storage<G: Grain>(
        _: &Grid<G, L>,
        _: LiveCopy,
        (): &(),
        _: Range<usize>,
        _: &mut [u8],
    ) -> Result<(), ForkError> {
        Ok(())
    }
}
