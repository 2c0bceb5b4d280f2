//! Naive snapshot (NS): SIGMOD 2011, §2.3 and §4.1; ICDE 2018, §II-A.1.
//!
//! At a point of consistency the mutator copies the whole state into a shadow, which the writer
//! then reads. Reads and writes cost nothing. A tick that begins a capture costs a copy of the
//! whole state.
//!
//! ```text
//! mutator  … write write │ copy all │ write write …
//! writer                            └──── shadow → disk ────┘
//! ```
//!
//! Copies: 0 the state, 1 the shadow. Invariant: between two points of consistency nobody writes
//! the shadow. A failed capture costs nothing: the next image is full.

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_io::ForkError;
use stillpoint_mem::Grain;
use stillpoint_sync::mutant;

use crate::grid::{CellRequirements, Grid};
use crate::layout::Layout;
use crate::planted;
use crate::scheme::{Content, Extent, LiveCopy, Scheme};

const STATE: usize = 0;
const SHADOW: usize = 1;

/// Copies everything at a point of consistency.
#[derive(Debug)]
pub struct NaiveSnapshot<L>(PhantomData<L>);

impl<L: Layout> Scheme for NaiveSnapshot<L> {
    type Layout = L;
    type Frozen = ();
    const CONTENT: Content = Content::Full;

    fn needs(_: usize) -> CellRequirements {
        CellRequirements {
            copies: 2,
            mark_columns: 0,
            mark_bits: 1,
            cells_per_mark: 1,
            marks_per_cell: 1,
            tracks_writes: false,
        }
    }

    fn start<G: Grain>(_: &Grid<G, L>, _: LiveCopy) {}

    fn prepare_for_next_checkpoint<G: Grain>(grid: &Grid<G, L>, _: LiveCopy) {
        let end = mutant!(grid.cells(), SnapshotMissesACell => grid.cells().saturating_sub(1));
        grid.copy_cells(STATE, SHADOW, 0..end);
    }

    #[inline(always)]
    fn handle_read<G: Grain>(_: &Grid<G, L>, _: LiveCopy, _: usize) -> usize {
        STATE
    }

    #[inline(always)]
    fn handle_write<G: Grain>(
        grid: &Grid<G, L>,
        _: LiveCopy,
        index: usize,
        _: Extent,
        mut store: impl FnMut(&[G]),
    ) {
        store(grid.cell(STATE, index));
    }

    fn write_to_stable_storage<G: Grain>(
        grid: &Grid<G, L>,
        _: LiveCopy,
        (): &(),
        cells: Range<usize>,
        image: &mut [u8],
    ) -> Result<(), ForkError> {
        grid.read_bytes(SHADOW, cells, image);
        Ok(())
    }
}
