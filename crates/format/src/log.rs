//! The redo log: segments, batches, records (`docs/formats.md`, "Log").
//!
//! ```text
//! segment = header block (4096) · batch · batch · … · [continuation mark] · zeros or stale bytes
//! batch   = header (64) · record · record · … · dependency summary · watermarks · zero padding
//! record  = head (16) · dependencies (8 each) · body
//! ```
//!
//! One write call appends one batch, which is valid as a whole or not at all. The checksums of a
//! batch are seeded with store, incarnation, log, segment and offset. So old bytes beyond the tail
//! of a recycled or preallocated segment never validate. [`BatchReader`] stops at the first invalid
//! batch. [`classify_tail`] then tells a torn tail from damage.

mod batch;
mod before;
mod call;
mod continuation;
mod digest;
mod operation;
mod read;
mod record;
mod segment;
mod tail;
mod write;

pub use batch::{BATCH_ALIGN, BATCH_HEADER_BYTES, BODY_ROOM, BatchBuilder, BatchPlace, RecordHead};
pub use before::encode_before_images;
pub use call::{CALL_INPUTS_BYTES_MAX, CALL_NAME_BYTES_MAX, CallReader, CallToRepeat, LoggedCall};
pub use continuation::{CONTINUATION_BYTES, Continuation};
pub use digest::WritesDigest;
pub use operation::{LoggedEnd, LoggedOperation, TransactionEnd};
pub use read::{Batch, BatchReader, EndCause, Record, RecordIter, SegmentEnd, Step};
pub use record::{DepIter, RECORD_BYTES_MAX, RECORD_HEAD_BYTES, RecordKind};
pub use segment::SegmentHeader;
pub use tail::{LaterBatch, Tail, TailSearch, classify_tail};
pub use write::{
    PatchRange, RangeIter, Splice, SpliceIter, Write, WriteIter, WriteOp, WritesEncoder,
};
