//! The fuzzy checkpoint as a scheme of state arrays: one copy and no marks. The capture reads the
//! cells while the mutator changes them. The image is of no use without the redo log.

use std::ops::Range;

use stillpoint_io::ForkError;
use stillpoint_state::{CellRequirements, Content, Extent, Grid, LiveCopy, Naive, Scheme};

/// The bounds of `Scheme`'s methods.
use stillpoint_mem::Grain;

/// The scheme keeps no data for the capture.
#[derive(Debug)]
pub(crate) enum Fuzzy {}

impl Scheme for Fuzzy {
    type Layout = Naive;
    type Frozen = ();
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

    fn start<G: Grain>(_: &Grid<G, Naive>, _: LiveCopy) {}

    fn prepare_for_next_checkpoint<G: Grain>(_: &Grid<G, Naive>, _: LiveCopy) {}

    #[inline(always)]
    fn handle_read<G: Grain>(_: &Grid<G, Naive>, _: LiveCopy, _: usize) -> usize {
        0
    }

    #[inline(always)]
    fn handle_write<G: Grain>(
        grid: &Grid<G, Naive>,
        _: LiveCopy,
        index: usize,
        _: Extent,
        mut store: impl FnMut(&[G]),
    ) {
        store(grid.cell(0, index));
    }

    fn write_to_stable_storage<G: Grain>(
        grid: &Grid<G, Naive>,
        _: LiveCopy,
        (): &(),
        cells: Range<usize>,
        image: &mut [u8],
    ) -> Result<(), ForkError> {
        grid.read_bytes(0, cells, image);
        Ok(())
    }
}
