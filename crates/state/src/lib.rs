//! Arrays of plain data with one mutator and ticks, for games, simulations and trading: captured
//! while they change, by the schemes of two papers. Knows no transactions.
//!
//! | paper | schemes |
//! |---|---|
//! | "Fast Checkpoint Recovery Algorithms for Frequently Consistent Applications", SIGMOD 2011 | naive snapshot, copy-on-update, wait-free zigzag, wait-free ping-pong |
//! | "Consistent Snapshot Algorithms for In-Memory Database Systems", ICDE 2018 | hourglass, piggyback |
//!
//! [`State`] is the whole: arrays on a disk, with a writer that takes images in two files in turn, a
//! logger for the actions between them, and recovery.
//!
//! [`Arrays`] is the memory alone: cells that one thread reads and writes, and whose image as of a tick
//! another thread takes meanwhile ([`Capture`]). A [`Scheme`] says how, a [`Layout`] where copies
//! and marks lie; [`registry`] has them by name.

mod actions;
mod arrays;
mod background;
mod bits;
mod capture;
mod config;
mod error;
mod files;
mod frontier;
mod grid;
mod layout;
mod logger;
mod plain;
pub mod planted;
mod progress;
mod recovery;
pub mod registry;
mod scheme;
pub mod schemes;
mod settle;
mod state;
mod writer;

pub use actions::{ActionIter, Actions};
pub use arrays::{
    ARRAYS_MAX, Array, ArrayInfo, ArrayMut, ArrayRef, Arrays, ArraysBuilder, Cells, NAME_BYTES_MAX,
};
pub use capture::Capture;
pub use config::{Background, Config, Every, Merge, Pace};
pub use error::{ArraysError, StateError};
pub use files::Place;
pub use frontier::{Frontier, Writing};
pub use grid::{Grid, Needs};
pub use layout::{BitArray, Interleaved, Layout, Naive, Packed};
pub use logger::TICK_BYTES_MAX;
pub use plain::{AnyGrid, CELL_BYTES_MAX, CellGrain, Field, FieldValue, Plain};
pub use progress::{Progress, ProgressSnapshot};
pub use recovery::Recovered;
pub use scheme::{Content, Extent, FreezeCost, Frozen, Intent, Last, Scheme, Turn};
pub use state::{State, StateBuilder};
pub use stillpoint_mem::PageSize;
pub use writer::Advance;

#[doc(hidden)]
pub use arrays::RecordGrain as AtomicU64;
#[doc(hidden)]
pub use plain::{load_record, store_record};
