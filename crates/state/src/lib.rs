//! Arrays of plain data with one mutator and ticks, for games, simulations and trading: captured
//! while they change, by the schemes of two papers. Knows no transactions.
//!
//! | paper | schemes |
//! |---|---|
//! | "Fast Checkpoint Recovery Algorithms for Frequently Consistent Applications", SIGMOD 2011 | naive snapshot, copy-on-update, wait-free zigzag, wait-free ping-pong |
//! | "Consistent Snapshot Algorithms for In-Memory Database Systems", ICDE 2018 | hourglass, piggyback |
//!
//! [`Arrays`] is the memory: cells that one thread reads and writes, and whose image as of a tick
//! another thread takes meanwhile ([`Capture`]). A [`Scheme`] says how, a [`Layout`] where copies
//! and marks lie; [`registry`] has them by name.

mod arrays;
mod bits;
mod capture;
mod error;
mod grid;
mod layout;
mod plain;
pub mod planted;
pub mod registry;
mod scheme;
pub mod schemes;

pub use arrays::{
    ARRAYS_MAX, Array, ArrayInfo, ArrayMut, ArrayRef, Arrays, ArraysBuilder, NAME_BYTES_MAX,
};
pub use capture::Capture;
pub use error::ArraysError;
pub use grid::{Grid, Needs};
pub use layout::{BitArray, Interleaved, Layout, Naive, Packed};
pub use plain::{AnyGrid, CELL_BYTES_MAX, CellGrain, Field, FieldValue, Plain};
pub use scheme::{Content, Extent, Last, Scheme, Turn};
pub use stillpoint_mem::PageSize;

#[doc(hidden)]
pub use arrays::RecordGrain as AtomicU64;
#[doc(hidden)]
pub use plain::{load_record, store_record};
