//! Written pages: a naive snapshot of the written pages, which the system finds. The scheme is in
//! no paper. The unit is the page, as in ICDE 2018 (§III-B), where fork finds pages by the same
//! faults.
//!
//! The kernel protects the state's pages against writes, and lifts the protection at a page's first
//! write (`userfaultfd`, asynchronous). At a point of consistency the mutator asks which pages lost
//! their protection, and copies these into a shadow, which the writer then reads. Reads and writes
//! run no code of a scheme.
//!
//! ```text
//! mutator  … write ↯ write │ copy what was written │ write ↯ …     ↯ the system marks a page
//! writer                   │                       └──── shadow → disk ────┘
//! ```
//!
//! Copies: 0 the state, 1 the shadow. Invariant: between two points of consistency nobody writes
//! the shadow, and right after a point of consistency the shadow equals the state. A failed capture
//! costs nothing: the next image is full. Arrays of this scheme can be made only if the system
//! tells the written pages. If the system stops telling, the mutator copies all pages.

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_io::ForkError;
use stillpoint_mem::{Grain, Placement};

use crate::grid::{CellRequirements, Grid};
use crate::layout::Layout;
use crate::scheme::{Content, Extent, LiveCopy, Scheme};

const STATE: usize = 0;
const SHADOW: usize = 1;

/// Copies the written pages at a point of consistency.
#[derive(Debug)]
pub struct CopyWrittenPages<L>(PhantomData<L>);

impl<L: Layout> Scheme for CopyWrittenPages<L> {
    type Layout = L;
    type Frozen = ();
    const CONTENT: Content = Content::Full;

    fn needs(_: usize) -> CellRequirements {
        const { assert!(matches!(L::PLACEMENT, Placement::Apart), "the state has pages of its own") };
        CellRequirements {
            copies: 2,
            mark_columns: 0,
            mark_bits: 1,
            cells_per_mark: 1,
            marks_per_cell: 1,
            tracks_writes: true,
        }
    }

    fn start<G: Grain>(_: &Grid<G, L>, _: LiveCopy) {}

    fn prepare_for_next_checkpoint<G: Grain>(grid: &Grid<G, L>, _: LiveCopy) {
        grid.copy_written(SHADOW);
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
