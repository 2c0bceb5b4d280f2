//! A capture: the image of a point of consistency, while it is being taken.

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
pub(crate) struct Gate(AtomicU32);

const DURABLE: u32 = 0;
const RUNNING: u32 = 1;
const FAILED: u32 = 2;
const BASE_LOST: u32 = 3;

impl Gate {
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
        // Relaxed: only the mutator begins, and it hands the capture over by other means.
        self.0.store(RUNNING, Relaxed);
    }

    fn end(&self, last: Last) {
        let state = match last {
            Last::Durable => DURABLE,
            Last::Failed => FAILED,
            Last::BaseLost => BASE_LOST,
        };
        self.0.store(state, Release); // pairs with the Acquire in `last`
    }
}

/// The image of a point of consistency, to be written by any one thread while the mutator goes on.
/// The next one cannot begin before this one has ended.
///
/// Ends with [`durable`](Self::durable); dropped without it, the capture has failed. If it was one of
/// changes, the next one is the same again, as of the same tick: the image before cannot do without
/// them. If there is no image before any more, [`base_is_lost`](Self::base_is_lost) ends it.
#[derive(Debug)]
pub struct Capture<S: Scheme> {
    shared: Arc<Shared<S>>,
    turn: LiveCopy,
    tick: u64,
    frozen: S::Frozen,
    /// Set once the copier has gone to its end.
    is_copied: std::sync::atomic::AtomicBool,
    last: Last,
}

impl<S: Scheme> Capture<S> {
    /// In the mutator's thread, at the point of consistency.
    pub(crate) fn new(shared: Arc<Shared<S>>, turn: LiveCopy, tick: u64) -> Self {
        let is_copied = std::sync::atomic::AtomicBool::new(false);
        Self { shared, turn, tick, frozen: S::Frozen::freeze(), is_copied, last: Last::Failed }
    }

    /// Ticks that had ended at the point of consistency: the image holds their effects and no others.
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// What it yields.
    pub fn content(&self) -> Content {
        S::CONTENT
    }

    /// What the system has spent on it so far, for schemes that leave copying to it.
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

    /// Runs the copier, for the schemes that have one; does nothing the second time. Unless called
    /// before, it happens at the end of the capture.
    pub fn copy_over(&self) {
        // Relaxed: if two threads run it at the same time, one of them waits.
        if self.is_copied.load(Relaxed) {
            return;
        }
        for slot in &self.shared.slots {
            with_grid!(&slot.grid, grid => {
                S::copy_over(grid, self.turn, grid.cells());
            });
        }
        self.is_copied.store(true, Relaxed);
    }

    /// Runs the copier over an array until it is done with at least so many of its cells, the first
    /// ones.
    ///
    /// # Panics
    /// If there is no such array.
    pub fn copy_over_until(&self, array: usize, cells: usize) {
        with_grid!(&self.shared.slots[array].grid, grid => S::copy_over(grid, self.turn, cells));
    }

    /// Puts the cells of a range of an array that belong to the image into `image`, little-endian,
    /// the range's first cell at 0. Bytes of cells that do not belong to it stay: see
    /// [`Content`]. Ranges may be asked for in any order, by several threads, and again.
    ///
    /// # Errors
    /// For fork: its child is gone, or could not be had. The capture cannot go on.
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

    /// The capture has failed because the image before it is lost: the next capture holds all cells.
    pub fn base_is_lost(mut self) {
        self.last = Last::BaseLost;
    }

    /// The image is durable: the next capture holds what changes from here on.
    pub fn durable(mut self) {
        self.last = Last::Durable;
    }
}

impl<S: Scheme> Drop for Capture<S> {
    fn drop(&mut self) {
        self.copy_over();
        let is_durable = mutant!(self.last == Last::Durable, MarksClearedBeforeDurable => true);
        if is_durable {
            for slot in &self.shared.slots {
                with_grid!(&slot.grid, grid => S::image_is_durable(grid, self.turn));
            }
        }
        self.shared.gate.end(self.last);
    }
}
