//! Fork: ICDE 2018, §II-A.2. Copy-on-update by the system, as Redis saves.
//!
//! At a point of consistency the mutator forks. The child keeps the memory as it was, and sleeps;
//! the writer reads the child's memory. Reads and writes run no code of a scheme, but the system
//! copies each page at the first write to it.
//!
//! ```text
//! mutator  … write write │ fork │ write ↯ write … write ↯      ↯ the system copies a page
//! child                  └──────┴── holds the memory ────┐
//! writer                        └──── child → disk ──────┘
//! ```
//!
//! Copies: 0 the state. Invariant: fork is called by the one thread that writes, between two
//! steps, so the child has all of a step or nothing. A failed capture costs nothing: the next image
//! is full.

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_io::{ForkError, ForkedMemory};
use stillpoint_mem::Grain;
use stillpoint_sync::mutant;

use crate::grid::{CellRequirements, Grid};
use crate::layout::Layout;
use crate::planted;
use crate::scheme::{Content, Extent, FreezeCost, Frozen, LiveCopy, Scheme};

const STATE: usize = 0;

/// Leaves copying to the system.
#[derive(Debug)]
pub struct Fork<L>(PhantomData<L>);

/// The child, or why there is none.
#[derive(Debug)]
pub struct Forked(Result<ForkedMemory, ForkError>);

impl Frozen for Forked {
    fn freeze() -> Self {
        Self(ForkedMemory::fork())
    }

    fn cost(&self) -> FreezeCost {
        self.0.as_ref().map_or_else(
            |_| FreezeCost::default(),
            |it| FreezeCost { fork_ns: it.fork_ns(), copied_bytes: it.copied_bytes() },
        )
    }
}

impl<L: Layout> Scheme for Fork<L> {
    type Layout = L;
    type Frozen = Forked;
    const CONTENT: Content = Content::Full;

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
        frozen: &Forked,
        cells: Range<usize>,
        image: &mut [u8],
    ) -> Result<(), ForkError> {
        mutant!(ForkReadsTheParent => { grid.read_bytes(STATE, cells, image); return Ok(()) });
        grid.read_forked(frozen.0.as_ref().map_err(Clone::clone)?, STATE, cells, image)
    }
}
