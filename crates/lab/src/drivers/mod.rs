//! Runs of a workload on a subject: how fast, for how long, with a checkpoint when.
//!
//! - [`transactions`]: threads of transactions on an engine in this process;
//! - [`ticks`]: a load on a state, tick by tick, and on bare arrays without checkpoints beside it;
//! - [`sweep`]: the same in memory alone, at many rates;
//! - [`resp`]: clients of a server.

pub(crate) mod profiled;
pub(crate) mod resp;
pub(crate) mod sweep;
pub(crate) mod ticks;
pub(crate) mod transactions;
