//! Undo-redo: the record of a commit has the values that it wrote, and those that it overwrote.
//!
//! Source: Ren, Diamond, Abadi, Thomson, *Low-Overhead Asynchronous Checkpointing in Main-Memory
//! Database Systems*, SIGMOD 2016, §4.1.2. The log under its fuzzy checkpoints is that of ARIES (Mohan
//! et al., ACM TODS 1992, §3).
//!
//! ```text
//!  commit, locks held                         start
//!  values of before (none for an absent key) ─▶ undo of what a checkpoint has beyond the cut
//!  values of after                           ─▶ redo of what it lacks
//! ```
//! Logs, batches, flushes, dependencies and cuts are those of [`redo`](super::redo).
//!
//! Invariants:
//! - The before-image is read under the lock of the record, before the log has the commit. So it is the
//!   value that the last commit with a smaller gsn has left.
//! - A patch logs the old bytes of its ranges alone. It can be undone only where the value is the one
//!   that the patch has left.
//!
//! Deviation from ARIES: writes are kept back until the commit, so an abort has no record. Only records
//! that a crash cuts off need an undo.

use std::sync::Arc;

use crate::journal::{Capabilities, Durability};
use crate::registry::Row;
use crate::schemes::redo::Redo;

/// The row of the registry.
pub(crate) const ROW: Row = Row {
    name: "undo-redo",
    about: "the values that each transaction wrote and those that it overwrote, for fuzzy-undo",
    durabilities: &[Durability::Relaxed, Durability::Strict],
    capabilities: Capabilities {
        records_commits: true,
        logs_calls_alone: false,
        logs_before_images: true,
    },
    open: |env, config| Ok(Arc::new(Redo::open(env, config)?)),
};
