//! Drivers run a workload on a subject: at a rate, for a time, with checkpoints at given moments.
//!
//! - [`transactions`]: threads of transactions on an engine in this process;
//! - [`ticks`]: a load on a state, tick by tick, and on the baseline, bare arrays without
//!   checkpoints;
//! - [`sweep`]: a load on arrays in memory alone, at many rates;
//! - [`resp`]: clients of a server.

pub(crate) mod profiled;
pub(crate) mod resp;
pub(crate) mod sweep;
pub(crate) mod ticks;
pub(crate) mod transactions;
