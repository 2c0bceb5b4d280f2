//! Command: a record of a call has the procedure's name, its arguments and its inputs, and replay makes
//! the call again. Other transactions have the records of [`redo`](super::redo), in the same logs.
//!
//! Source: Ren, Diamond, Abadi, Thomson, *Low-Overhead Asynchronous Checkpointing in Main-Memory
//! Database Systems*, SIGMOD 2016, §1 and §3. The log has the input of deterministic transactions, and
//! lies on top of a consistent checkpoint.
//!
//! ```text
//!  a call with declared keys          other transactions        replay, in gsn order
//!  name, version, inputs, digest  ─┐  the values written    ─┐  a call runs again: same digest, or
//!  of the writes, arguments        ├▶ record of the log ◀────┘  the start is refused;
//!                                  │                            other records write their values
//! ```
//! Logs, batches, flushes, dependencies and cuts are those of redo.
//!
//! Invariants:
//! - Gsns are a serial order of all transactions that write, over all logs. The store keeps stamps of
//!   reads (`read_stamps`), so a commit that overwrites what another one has read has a greater gsn.
//!   With redo, gsns order the writes of each key alone.
//! - The checkpoint under a replay has all commits of the epochs before its own, and no other one. The
//!   engine refuses schemes without a point of consistency.
//! - A transaction whose result depends on anything but records, arguments and inputs has a record of
//!   redo. The engine decides that.
//!
//! Deviation from the paper: transactions run in parallel under locks, and not in the order of a log
//! that was written before. So the log is written at the commit.

use std::sync::Arc;

use crate::journal::{Capabilities, Durability};
use crate::registry::Row;
use crate::schemes::redo::Redo;

/// The row of the registry.
pub(crate) const ROW: Row = Row {
    name: "command",
    about: "the call of each procedure, made again by a start; else the values written",
    durabilities: &[Durability::Relaxed, Durability::Strict],
    capabilities: Capabilities {
        records_commits: true,
        logs_calls_alone: true,
        logs_before_images: false,
    },
    open: |env, config| Ok(Arc::new(Redo::open(env, config)?)),
};
