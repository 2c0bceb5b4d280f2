//! What the engines are asked to do, from a seed. Knows no engine.
//!
//! Every workload can check the state it leaves behind: a figure from a run
//! whose recovered state fails its check is not a figure.

pub mod bank;
pub mod calc;
pub mod strings;
