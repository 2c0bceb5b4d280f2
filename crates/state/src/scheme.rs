//! The interface of a scheme: the five calls of SIGMOD 2011, §2.2, "Interface 1".

use std::fmt::Debug;
use std::ops::Range;

use stillpoint_io::ForkError;
use stillpoint_mem::{Grain, Spot};

use crate::arrays::Arrays;
use crate::capture::PointOfConsistency;
use crate::grid::{CellRequirements, Grid};
use crate::layout::Layout;
pub use crate::live_copy::LiveCopy;

/// How much of a cell a write replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The whole cell.
    Whole,
    /// A part. The rest of the cell keeps its newest value.
    Part,
}

/// Why a cell is prefetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// The program will read the cell.
    Read,
    /// The program will write the cell, and perhaps read it.
    Write,
}

/// The content of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// No captures.
    Nothing,
    /// Every cell.
    Full,
    /// The cells that changed since the last durable capture; all cells at the first capture. The
    /// writer lays the changes over the previous image: in memory (Copy) or from the disk (Merge),
    /// §3.3.
    ///
    /// The writer takes a failed capture of changes again, as of the same tick. The cells that the
    /// capture reads have not changed, so the repetition costs the mutator nothing. To join two
    /// captures would cost the mutator a look at every mark. If the previous image is lost, the
    /// next capture holds all cells, as of its own tick. The mutator pays for that once, by an
    /// empty partial write to every cell.
    Changes,
}

/// How the last capture before a point of consistency ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// The capture's image is durable, or there was no capture.
    Durable,
    /// The capture failed.
    Failed,
    /// The capture failed because the image before is lost, over which its changes were to be laid.
    BaseLost,
}

/// A value that a capture holds besides the state's own memory. Most schemes have none.
pub trait Frozen: Debug + Send + Sync + Sized + 'static {
    /// The mutator calls this at a point of consistency, once for all arrays.
    fn freeze() -> Self;

    /// The value for schemes that need none. Such a value needs no hand-over.
    fn nothing() -> Option<Self> {
        None
    }

    /// The cost of the capture so far.
    fn cost(&self) -> FreezeCost {
        FreezeCost::default()
    }
}

impl Frozen for () {
    fn freeze() -> Self {}

    fn nothing() -> Option<Self> {
        Some(())
    }
}

/// The cost in the system of keeping the state's memory as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreezeCost {
    /// Nanoseconds that fork took at the point of consistency.
    pub fork_ns: u64,
    /// Bytes of pages that the system has copied since then because one side wrote to them.
    pub copied_bytes: u64,
}

/// A scheme that captures consistent images of arrays which one mutator changes.
///
/// The mutator calls `handle_read`, `handle_write`, and `prepare_for_next_checkpoint` at a point of
/// consistency. The asynchronous writer calls `copy_over`, `write_to_stable_storage` and
/// `image_is_durable`, also beside the mutator's reads and writes. The mutator enters a new period only
/// after the writer has ended its capture. So both see the same period.
///
/// In a new state all copies are equal, and no capture has run. [`start`](Self::start) sets the marks
/// as if every cell had just been written, so that the first capture is full.
pub trait Scheme: Debug + Send + Sync + Sized + 'static {
    /// Where copies and marks lie.
    type Layout: Layout;
    /// The value that a capture holds besides copies and marks.
    type Frozen: Frozen;
    /// The content of a capture.
    const CONTENT: Content;
    /// True if each line of a cell longer than [`LINE_BYTES`](crate::LINE_BYTES) has marks of its own. Such
    /// cells are read and written by the two calls for lines.
    const MARKS_LINES: bool = false;

    /// Copies and marks that the scheme needs for cells of `cell_bytes` bytes.
    fn needs(cell_bytes: usize) -> CellRequirements;

    /// Sets the marks of a new array, which are zero.
    fn start<G: Grain>(grid: &Grid<G, Self::Layout>, turn: LiveCopy);

    /// *PrepareForNextCheckpoint*: makes the present values the content of the next image. No
    /// capture is under way. For schemes whose captures yield changes, the last capture is durable,
    /// or all cells were written since.
    fn prepare_for_next_checkpoint<G: Grain>(grid: &Grid<G, Self::Layout>, turn: LiveCopy);

    /// *PointOfConsistency*: the mutator has ended a step. If the writer has ended the last capture, a
    /// new capture begins here. All schemes do the same (Algorithms 1 and 2).
    fn point_of_consistency(arrays: &mut Arrays<Self>) -> Option<PointOfConsistency<Self>> {
        arrays.begin_capture_if_writer_done()
    }

    /// *HandleRead*: the copy that holds the newest value of a cell.
    fn handle_read<G: Grain>(grid: &Grid<G, Self::Layout>, turn: LiveCopy, index: usize) -> usize;

    /// *HandleRead* for lines of a long cell, one or more: the copy that holds the newest values of all of
    /// them. `None` if they are in different copies.
    #[inline(always)]
    fn handle_read_lines<G: Grain>(
        grid: &Grid<G, Self::Layout>,
        turn: LiveCopy,
        spot: &Spot<'_, G>,
        _: Range<usize>,
    ) -> Option<usize> {
        Some(Self::handle_read(grid, turn, spot.index()))
    }

    /// Prefetches what an access at an offset of a cell will touch. The default prefetches the
    /// first copy. An index without a cell is ignored.
    #[inline(always)]
    fn prefetch<G: Grain>(
        grid: &Grid<G, Self::Layout>,
        _: LiveCopy,
        index: usize,
        offset: usize,
        _: Intent,
    ) {
        grid.prefetch(0, index, offset);
    }

    /// *HandleWrite*: calls `store` with each copy that takes the new value. Before a partial write the
    /// scheme brings that copy up to date.
    fn handle_write<G: Grain>(
        grid: &Grid<G, Self::Layout>,
        turn: LiveCopy,
        index: usize,
        extent: Extent,
        store: impl FnMut(&[G]),
    );

    /// *HandleWrite* for some bytes of a long cell, which `store` writes. The lines that the bytes
    /// touch and do not cover are brought up to date in the copy before the call of `store`.
    #[inline(always)]
    fn handle_write_lines<G: Grain>(
        grid: &Grid<G, Self::Layout>,
        turn: LiveCopy,
        index: usize,
        bytes: Range<usize>,
        store: impl FnMut(&[G]),
    ) {
        let is_whole = bytes.len() == grid.cell_bytes();
        let extent = if is_whole { Extent::Whole } else { Extent::Part };
        Self::handle_write(grid, turn, index, extent, store);
    }

    /// *WriteToStableStorage*: puts those cells of a range that belong to the image into `image`. The
    /// range's first cell goes to offset 0. Bytes of other cells keep their values.
    ///
    /// # Errors
    /// The scheme's value of the capture is lost or could not be made. The capture cannot go on.
    fn write_to_stable_storage<G: Grain>(
        grid: &Grid<G, Self::Layout>,
        turn: LiveCopy,
        frozen: &Self::Frozen,
        cells: Range<usize>,
        image: &mut [u8],
    ) -> Result<(), ForkError>;

    /// Does the writer's further work on the cells in a period, in order and once, before the next
    /// period can begin. Piggyback's copier works until at least `cells` cells are done.
    fn copy_over<G: Grain>(_: &Grid<G, Self::Layout>, _: LiveCopy, _cells: usize) {}

    /// Tells the scheme that the image is durable. The scheme clears the marks that only this image
    /// needed.
    fn image_is_durable<G: Grain>(_: &Grid<G, Self::Layout>, _: LiveCopy) {}
}
