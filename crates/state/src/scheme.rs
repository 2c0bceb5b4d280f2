//! What a scheme is: the five calls of SIGMOD 2011, §2.2, "Interface 1".

use std::fmt::Debug;
use std::ops::Range;

use stillpoint_io::ForkError;
use stillpoint_mem::Grain;

use crate::arrays::Arrays;
use crate::capture::Capture;
use crate::grid::{CellRequirements, Grid};
use crate::layout::Layout;

/// Which copy is being updated in a period, for the schemes that swap two: u of the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveCopy {
    /// The copy that collects updates: 0 or 1, in turn.
    pub up: usize,
    /// The low eight bits of the number of the period. The first period has number 0.
    pub period: u8,
}

impl LiveCopy {
    /// That of a new state.
    pub(crate) const FIRST: LiveCopy = LiveCopy { up: 0, period: 0 };

    /// The other copy: d of the papers, which the capture reads.
    #[inline]
    pub fn down(self) -> usize {
        1 - self.up
    }

    /// The turn after a swap.
    pub(crate) fn swapped(self) -> Self {
        Self { up: self.down(), period: self.period.wrapping_add(1) }
    }
}

/// How much of a cell a write replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// A part: the rest keeps its newest value.
    Part,
}

/// What a cell is brought nearer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// It will be read.
    Read,
    /// It will be written, and read perhaps.
    Write,
}

/// What a capture yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// No captures.
    Nothing,
    /// Every cell.
    Full,
    /// The cells that changed since the last durable capture, all of them at the first one. The
    /// writer lays them over the image before: in memory (Copy) or from the disk (Merge), §3.3.
    ///
    /// A failed capture of changes is taken again, as of the same tick: nobody has touched what it
    /// reads, so that costs nothing, where joining it to the next one would cost the mutator a
    /// look at every mark. If the image before is lost, the next capture holds all cells, as of its
    /// own tick. The mutator pays for that once, by a partial write of no bytes to every cell.
    Changes,
}

/// How the last capture before a point of consistency ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// Its image is durable, or there was none.
    Durable,
    /// It failed.
    Failed,
    /// It failed because the image before, over which its changes were to be laid, is lost.
    BaseLost,
}

/// What a capture holds beside the state's own memory: nothing, for most schemes.
pub trait Frozen: Debug + Send + Sync + 'static {
    /// Called by the mutator at a point of consistency, once for all arrays.
    fn freeze() -> Self;

    /// What it has cost so far.
    fn cost(&self) -> FreezeCost {
        FreezeCost::default()
    }
}

impl Frozen for () {
    fn freeze() -> Self {}
}

/// What it costs to keep the state's memory as it was, where the system does that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreezeCost {
    /// Nanoseconds that fork took at the point of consistency.
    pub fork_ns: u64,
    /// Bytes of pages that were copied since because one side has written to them.
    pub copied_bytes: u64,
}

/// A scheme that captures consistent images of arrays which one mutator changes.
///
/// Calls of the mutator: `handle_read`, `handle_write`, and at a point of consistency
/// `prepare_for_next_checkpoint`. Calls of the asynchronous writer, which may run beside the
/// mutator's reads and writes: `copy_over`, `write_to_stable_storage`, `image_is_durable`. The
/// mutator enters a new period only after the writer has said that it is done, so a period's turn
/// is the same for both.
///
/// A new state has all copies equal and no capture behind it; [`start`](Self::start) sets the marks
/// as if every cell had just been written, so that the first capture is full.
pub trait Scheme: Debug + Send + Sync + Sized + 'static {
    /// Where its copies and marks lie.
    type Layout: Layout;
    /// What a capture holds beside them.
    type Frozen: Frozen;
    /// What a capture yields.
    const CONTENT: Content;

    /// Copies and marks that it needs for cells of so many bytes.
    fn needs(cell_bytes: usize) -> CellRequirements;

    /// Sets the marks of a new array, which are zero.
    fn start<G: Grain>(grid: &Grid<G, Self::Layout>, turn: LiveCopy);

    /// *PrepareForNextCheckpoint*: makes what was written so far the next image. No capture runs;
    /// of changes, the last one is durable, or all cells were written since.
    fn prepare_for_next_checkpoint<G: Grain>(grid: &Grid<G, Self::Layout>, turn: LiveCopy);

    /// *PointOfConsistency*: the mutator has ended a step. If the writer is done with the last
    /// capture, a new one begins here; the same for all schemes (Algorithms 1 and 2).
    fn point_of_consistency(arrays: &mut Arrays<Self>) -> Option<Capture<Self>> {
        arrays.begin_capture_if_writer_done()
    }

    /// *HandleRead*: the copy that holds the newest value of a cell.
    fn handle_read<G: Grain>(grid: &Grid<G, Self::Layout>, turn: LiveCopy, index: usize) -> usize;

    /// Brings nearer what will be touched at an offset of a cell: the first copy, unless said
    /// otherwise. A cell that is not there is ignored.
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

    /// *HandleWrite*: calls `store` with each copy that is to take the new value, brought up to
    /// date before if the write is partial.
    fn handle_write<G: Grain>(
        grid: &Grid<G, Self::Layout>,
        turn: LiveCopy,
        index: usize,
        extent: Extent,
        store: impl FnMut(&[G]),
    );

    /// *WriteToStableStorage*: puts the cells of a range that belong to the image into `image`,
    /// where the range's first cell is at 0; the bytes of other cells stay as they are.
    ///
    /// # Errors
    /// What was frozen is lost, or never was; the capture cannot go on.
    fn write_to_stable_storage<G: Grain>(
        grid: &Grid<G, Self::Layout>,
        turn: LiveCopy,
        frozen: &Self::Frozen,
        cells: Range<usize>,
        image: &mut [u8],
    ) -> Result<(), ForkError>;

    /// What else the writer does to the cells in a period, in order and once, before the next can
    /// begin: the copier of piggyback, which goes on until it is done with at least so many cells.
    fn copy_over<G: Grain>(_: &Grid<G, Self::Layout>, _: LiveCopy, _cells: usize) {}

    /// The image is durable: marks that only it needed are cleared.
    fn image_is_durable<G: Grain>(_: &Grid<G, Self::Layout>, _: LiveCopy) {}
}
