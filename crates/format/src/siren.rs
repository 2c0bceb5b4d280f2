//! Files of a SIREN store: one file of disk pages with shadow paging, and a redo log of operations.
//!
//! ```text
//! pages   = file header · checkpoint header 0 · checkpoint header 1 · disk pages
//! extent  = 1 or more adjacent disk pages: page header · tuples · zeros
//! segment = file header · batches
//! ```
//! A checkpoint writes new extents, then its directory, then one of the two checkpoint headers. The
//! valid header of the greatest level counts, so a half-written one leaves the checkpoint before.
//!
//! In a store of the engine, the MANIFEST takes the place of the checkpoint headers, and the engine's
//! log that of the segments. The log's records have operations on tuples (`operation`).

mod directory;
mod header;
mod log;
mod operation;
mod page;

pub use directory::{Directory, Extent, ExtentKind, StoredExtent, StoredTable};
pub use header::{
    CHECKPOINT_HEADER_BYTES, CHECKPOINT_HEADERS, CheckpointHeader, PAGE_BYTES_MAX, PAGE_BYTES_MIN,
    PagesHeader,
};
pub use log::{
    BATCH_ALIGN, BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BatchReader, LogRecord, Logged,
    SegmentHeader, seal_batch,
};
pub use operation::{TupleChange, TupleOperation};
pub use page::{
    OPEN_TUPLE_BYTES, PAGE_HEADER_BYTES, PageBuilder, StoredPage, TUPLE_HEAD_BYTES, TupleImage,
};
