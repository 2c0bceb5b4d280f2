//! Workloads, runner, metrics, figures and report. Knows no internals of a scheme.
//!
//! An *experiment* is one row of [`experiments::EXPERIMENTS`]. Running it gives
//! one [`result::ExperimentResult`], written as `OUT/<id>.json` with its
//! figures beside it; [`report`] turns a folder of such files, and nothing
//! else, into one HTML page.
//!
//! The parts, from the bottom up:
//! - [`random`], [`workload`]: keys, values and transactions from a seed;
//! - [`stats`]: windows of 100 ms, percentiles, lost transactions;
//! - [`resp_client`]: load over the Redis protocol, against any server that speaks it;
//! - [`adapter`], [`drive`]: load inside this process, against any engine that
//!   implements [`adapter::LabEngine`];
//! - [`process`]: what a server process costs, from outside;
//! - [`figure`], [`report`]: what a person looks at.

pub mod adapter;
pub mod arrays;
pub mod calc;
pub mod cli;
pub mod conditions;
pub mod context;
pub mod device;
pub mod drive;
pub mod engines;
pub mod error;
pub mod experiments;
pub mod figure;
pub mod machine;
pub mod peers_redis;
pub mod process;
pub mod random;
pub mod redo_cost;
pub mod report;
pub mod resp_client;
pub mod result;
pub mod stats;
mod sys;
pub mod workload;

pub use context::Context;
pub use error::{LabError, LabResult};
