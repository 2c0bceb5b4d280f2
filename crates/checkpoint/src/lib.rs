//! Checkpoint schemes, their registry, the writer and the reader of checkpoints. Knows no journal
//! and no sockets.
//!
//! A *scheme* ([`registry`]) says how a consistent image of a live store comes about. The *cycle*
//! ([`run_checkpoint`]) moves the phases, owns the threads and keeps the pace. The *writer*
//! ([`PartSink`]) takes records from commits and capture threads, and puts them into part files.
//! The *reader* ([`load`], [`verify`], [`for_each_record`]) reads the records, or names the damaged
//! file and offset.
//!
//! ```text
//! workers ── before-images ──┐
//!                        ├─► PartSink: lanes ─► full blocks ─► writer threads ─► part-NNN
//! capture threads ───────┘             ▲ bounded ▲
//! ```
//!
//! A checkpoint exists once a manifest that names it is durable; the manifest belongs to the
//! engine. [`Written::into_entry`] gives the manifest's entry. Everything that an entry names has
//! been flushed, directories included, before [`PartSink::finish`] returns.

mod changes;
mod cycle;
mod error;
mod merge;
mod progress;
mod reader;
pub mod registry;
mod schemes;
mod undone;
mod view;
mod writer;

pub use cycle::{
    Captured, Cycle, NoSchemeLog, Observer, QuiesceFor, Wanted, run_checkpoint, take_checkpoint,
    work_after_capture,
};
pub use error::{CheckpointError, Damage, DamageCause, LoadError};
pub use merge::{MERGE_KEY_BYTES, Merge, MergeError};
pub use progress::{Progress, ProgressSnapshot};
pub use reader::{
    Beside, DAMAGE_MAX, Described, FindCounts, Found, LoadOptions, LoadSummary, LoadedRecord,
    OpenChain, SoughtKey, Verified, Visit, VisitError, describe, epoch_of, for_each_record, load,
    load_chain, verify,
};
pub use registry::{Capabilities, Row, Scheme};
pub use stillpoint_io::Pace;
pub use undone::{UndoneRecord, write_undone};
pub use view::{ViewBatch, ViewNext, ViewRecord, ViewSink};
pub use writer::{
    PartSink, SinkStats, WriterConfig, Written, remove_checkpoint, remove_checkpoint_soon,
};
