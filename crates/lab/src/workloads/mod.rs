//! Workloads, made from a seed. This module knows no engine and no scheme.
//!
//! Every workload can check its final state. A figure of a run does not count if the recovered
//! state fails this check.
//!
//! Records: [`calc`] (the CALC paper's microbenchmark), [`tpcc`], [`ycsb`], [`strings`] and
//! [`elements`] (of servers). State arrays: a [`load::Load`] runs the same ticks on every scheme.
//! [`trace::TraceLoad`] is a load of recorded accesses, which [`zipf`] draws. [`game`] and [`tpcc`]
//! are loads, too.

pub(crate) mod calc;
pub(crate) mod elements;
pub(crate) mod game;
pub(crate) mod load;
pub(crate) mod random;
pub(crate) mod strings;
pub(crate) mod tpcc;
pub(crate) mod trace;
pub(crate) mod ycsb;
pub(crate) mod zipf;
