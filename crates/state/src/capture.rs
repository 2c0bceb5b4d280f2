//! A capture: the writer's view of the state at a point of consistency.

use std::ops::Range;
use std::sync::Arc;

use stillpoint_io::ForkError;
use stillpoint_sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::mutant;

use crate::arrays::{ArrayInfo, Shared};
use crate::plain::with_grid;
use crate::planted;
use crate::scheme::{Content, FreezeCost, Frozen, Last, LiveCopy, Scheme};

/// Whether a capture is under way, and how the last one ended.
#[derive(Debug)]
pub(crate) struct CaptureState(AtomicU32);

const DURABLE: u32 = 0;
const RUNNING: u32 = 1;
const FAILED: u32 = 2;
const BASE_LOST: u32 = 3;

impl CaptureState {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(DURABLE))
    }

    /// How the last capture ended; `None` while one runs.
    #[inline]
    pub(crate) fn last(&self) -> Option<Last> {
        // Acquire: pairs with the Release in `end`, so that the mutator sees all that the writer
        // did to marks and copies.
        match self.0.load(Acquire) {
            RUNNING => None,
            FAILED => Some(Last::Failed),
            BASE_LOST => Some(Last::BaseLost),
            _ => Some(Last::Durable),
        }
    }

    pub(crate) fn begin(&self) {
        // Relaxed: only the mutator begins captures, and handing a capture to a thread publishes
        // the new state.
        self.0.store(RUNNING, Relaxed);
    }

    pub(crate) fn end(&self, last: Last) {
        let state = match last {
            Last::Durable => DURABLE,
            Last::Failed => FAILED,
            Last::BaseLost => BASE_LOST,
        };
        self.0.store(state, Release); // pairs with the Acquire in `last`
    }
}

/// A point of consistency at which a capture begins. The mutator gives this value to the writer.
#[derive(Debug)]
pub struct PointOfConsistency<S: Scheme> {
    pub(crate) turn: LiveCopy,
    pub(crate) tick: u64,
    pub(crate) frozen: S::Frozen,
}

/// The state at a point of consistency. Any one thread may write this state to the disk while the
/// mutator goes on. The next capture cannot begin before this one has ended.
///
/// [`durable`](Self::durable) ends the capture. A capture that is dropped without this call has
/// failed. After a failed capture of changes the next capture is the same again, as of the same
/// tick, because the image needs those changes. [`base_is_lost`](Self::base_is_lost) ends a capture
/// whose image before is lost.
#[derive(Debug)]
pub struct Capture<S: Scheme> {
    shared: Arc<Shared<S>>,
    turn: LiveCopy,
    tick: u64,
    frozen: S::Frozen,
    /// True once the copier has come to its end.
    is_copied: std::sync::atomic::AtomicBool,
    last: Last,
}

impl<S: Scheme> Capture<S> {
    pub(crate) fn new(shared: Arc<Shared<S>>, point: PointOfConsistency<S>) -> Self {
        let is_copied = std::sync::atomic::AtomicBool::new(false);
        let PointOfConsistency { turn, tick, frozen } = point;
        Self { shared, turn, tick, frozen, is_copied, last: Last::Failed }
    }

    /// Ticks that had ended at the point of consistency. The image holds exactly their effects.
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// Whether the capture holds all cells or changes.
    pub fn content(&self) -> Content {
        S::CONTENT
    }

    /// The cost of the capture in the system so far, for schemes that leave copying to the system.
    pub fn freeze_cost(&self) -> FreezeCost {
        self.frozen.cost()
    }

    /// The arrays.
    pub fn infos(&self) -> impl ExactSizeIterator<Item = &ArrayInfo> {
        self.shared.slots.iter().map(|slot| &slot.info)
    }

    pub(crate) fn info(&self, array: usize) -> &ArrayInfo {
        &self.shared.slots[array].info
    }

    /// Runs the copier, for the schemes that have one. A second call does nothing. Without a call, the
    /// end of the capture runs the copier.
    pub fn copy_over(&self) {
        // Relaxed: if two threads run the copier at the same time, one of them waits.
        if self.is_copied.load(Relaxed) {
            return;
        }
        for slot in self.shared.slots.iter() {
            with_grid!(&slot.grid, grid => {
                S::copy_over(grid, self.turn, grid.cells());
            });
        }
        self.is_copied.store(true, Relaxed);
    }

    /// Runs the copier over an array until at least the first `cells` cells are done.
    ///
    /// # Panics
    /// If there is no such array.
    pub fn copy_over_until(&self, array: usize, cells: usize) {
        with_grid!(&self.shared.slots[array].grid, grid => S::copy_over(grid, self.turn, cells));
    }

    /// Puts those cells of a range that belong to the image into `image`, little-endian. The range's
    /// first cell goes to offset 0. Bytes of other cells keep their values: see [`Content`]. Several
    /// threads may ask for ranges, in any order and again.
    ///
    /// # Errors
    /// For fork: the child has ended, or could not be made. The capture cannot go on.
    ///
    /// # Panics
    /// If there is no such array or cell, or `image` is not as long as the cells.
    pub fn write_to_stable_storage(
        &self,
        array: usize,
        cells: Range<usize>,
        image: &mut [u8],
    ) -> Result<(), ForkError> {
        let slot = &self.shared.slots[array];
        assert!(cells.start <= cells.end && cells.end <= slot.info.cells, "no such cells");
        assert_eq!(image.len(), cells.len() * slot.info.cell_bytes, "room for those cells");
        with_grid!(&slot.grid, grid => {
            S::write_to_stable_storage(grid, self.turn, &self.frozen, cells, image)
        })
    }

    /// Ends the capture as failed, since the image before it is lost. The next capture holds all cells.
    pub fn base_is_lost(mut self) {
        self.last = Last::BaseLost;
    }

    /// Ends the capture as durable. The next capture holds what changes from here on.
    pub fn durable(mut self) {
        self.last = Last::Durable;
    }
}

impl<S: Scheme> Drop for Capture<S> {
    fn drop(&mut self) {
        self.copy_over();
        let is_durable = mutant!(self.last == Last::Durable, MarksClearedBeforeDurable => true);
        if is_durable {
            for slot in self.shared.slots.iter() {
                with_grid!(&slot.grid, grid => S::image_is_durable(grid, self.turn));
            }
        }
        self.shared.gate.end(self.last);
    }
}
