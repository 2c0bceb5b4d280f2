//! Copy-on-update (COU; BACOU with the layout `bit-array`): SIGMOD 2011, §2.3 and §4.1; ICDE 2018,
//! §II-A.2.
//!
//! The first write to a block in a period saves its old value in the shadow. The writer takes a
//! block from the shadow if it was saved, and from the state if not. A latch per block keeps the
//! mutator from changing a block that the writer is reading. The latch also keeps the writer from
//! reading a block that is being saved. Latch and dirty bit are one mark of two bits.
//!
//! ```text
//! CLEAN ──mutator's first write──► SAVING ──old value in the shadow──► SAVED ──next PoC──► CLEAN
//!   └────writer reads the state───► READING ──────────► CLEAN
//! ```
//!
//! A block is 32 bytes of words, as much as a cache line holds beside its shadow (§4.1), or a page.
//!
//! Invariants: the state of a CLEAN block is its value at the point of consistency. For a SAVED
//! block the shadow is, and it does not change in this period. The mutator may have to wait for the
//! writer, for the copy of one block. The paper's Table 1 calls that "locking". A failed capture
//! costs nothing: the next image is full.

use std::marker::PhantomData;
use std::ops::Range;

use stillpoint_io::ForkError;
use stillpoint_mem::Grain;
use stillpoint_sync::Backoff;
use stillpoint_sync::mutant;

use crate::grid::{CellRequirements, Grid};
use crate::layout::Layout;
use crate::planted;
use crate::scheme::{Content, Extent, Intent, LiveCopy, Scheme};

const STATE: usize = 0;
const SHADOW: usize = 1;
/// The only column of marks.
const BLOCKS: usize = 0;

const CLEAN: u8 = 0;
const SAVING: u8 = 1;
const SAVED: u8 = 2;
const READING: u8 = 3;

/// Bytes of words that are saved together.
const BLOCK_BYTES: usize = 32;

/// Saves old values at the first write after a point of consistency.
#[derive(Debug)]
pub struct CopyOnUpdate<L>(PhantomData<L>);

/// Saves the old value of a block before its first write in a period.
#[cold]
fn save<G: Grain, L: Layout>(grid: &Grid<G, L>, block: usize) {
    let mut backoff = Backoff::new();
    while !grid.exchange_mark(BLOCKS, block, CLEAN, SAVING) {
        backoff.wait(); // the writer reads it
    }
    grid.copy_cells(STATE, SHADOW, grid.cells_of(block));
    grid.publish_mark(BLOCKS, block, SAVED);
}

impl<L: Layout> Scheme for CopyOnUpdate<L> {
    type Layout = L;
    type Frozen = ();
    const CONTENT: Content = Content::Full;

    fn needs(cell_bytes: usize) -> CellRequirements {
        let cells_per_mark = 1 << (BLOCK_BYTES / cell_bytes).max(1).ilog2();
        CellRequirements {
            copies: 2,
            mark_columns: 1,
            mark_bits: 2,
            cells_per_mark,
            marks_per_cell: 1,
            tracks_writes: false,
        }
    }

    /// Nothing is captured before the first point of consistency, so nothing needs saving.
    fn start<G: Grain>(grid: &Grid<G, L>, _: LiveCopy) {
        grid.fill_marks(BLOCKS, SAVED);
    }

    fn prepare_for_next_checkpoint<G: Grain>(grid: &Grid<G, L>, _: LiveCopy) {
        mutant!(grid.fill_marks(BLOCKS, CLEAN), CopyOnUpdateKeepsBits => ());
    }

    #[inline(always)]
    fn handle_read<G: Grain>(_: &Grid<G, L>, _: LiveCopy, _: usize) -> usize {
        STATE
    }

    #[inline(always)]
    fn prefetch<G: Grain>(
        grid: &Grid<G, L>,
        _: LiveCopy,
        index: usize,
        offset: usize,
        intent: Intent,
    ) {
        grid.prefetch(STATE, index, offset);
        if intent == Intent::Write {
            grid.prefetch_mark(BLOCKS, grid.mark_at(index));
        }
    }

    #[inline(always)]
    fn handle_write<G: Grain>(
        grid: &Grid<G, L>,
        _: LiveCopy,
        index: usize,
        _: Extent,
        mut store: impl FnMut(&[G]),
    ) {
        let block = grid.mark_at(index);
        let is_saved = grid.mark(BLOCKS, block) == SAVED;
        if !is_saved {
            mutant!(save(grid, block), CopyOnUpdateSavesTheNew => ());
        }
        store(grid.cell(STATE, index));
        mutant!(CopyOnUpdateSavesTheNew => if !is_saved { save(grid, block) });
    }

    fn write_to_stable_storage<G: Grain>(
        grid: &Grid<G, L>,
        _: LiveCopy,
        (): &(),
        cells: Range<usize>,
        image: &mut [u8],
    ) -> Result<(), ForkError> {
        let (per, bytes) = (grid.cells_per_mark(), grid.cell_bytes());
        let mut at = cells.start;
        while at < cells.end {
            let block = at / per;
            let end = ((block + 1) * per).min(cells.end);
            let room = &mut image[(at - cells.start) * bytes..(end - cells.start) * bytes];
            let mut backoff = Backoff::new();
            loop {
                if grid.mark(BLOCKS, block) == SAVED {
                    grid.read_bytes(SHADOW, at..end, room);
                    break;
                }
                if grid.exchange_mark(BLOCKS, block, CLEAN, READING) {
                    grid.read_bytes(STATE, at..end, room);
                    grid.publish_mark(BLOCKS, block, CLEAN);
                    break;
                }
                backoff.wait(); // the mutator saves it
            }
            at = end;
        }
        Ok(())
    }
}
