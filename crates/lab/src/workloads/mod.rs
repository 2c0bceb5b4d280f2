//! What is done to an engine or a state, from a seed. Knows neither.
//!
//! Every workload can check the state that it leaves behind: a figure from a run whose recovered
//! state fails its check is not a figure.
//!
//! Records: [`calc`] (the CALC paper's microbenchmark), [`tpcc`], [`ycsb`], [`strings`] (of
//! servers). State arrays: a [`load::Load`] is what happens in each tick, the same for every scheme;
//! [`trace::TraceLoad`] takes it from accesses in memory that [`zipf`] draws; [`game`] and [`tpcc`].

pub(crate) mod calc;
pub(crate) mod game;
pub(crate) mod load;
pub(crate) mod random;
pub(crate) mod strings;
pub(crate) mod tpcc;
pub(crate) mod trace;
pub(crate) mod ycsb;
pub(crate) mod zipf;
