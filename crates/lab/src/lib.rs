//! The laboratory: experiments on engines of records, servers and state arrays. Knows no internals
//! of a scheme.
//!
//! An *experiment* is one row of `experiments::EXPERIMENTS`. A run gives one result, written as
//! `OUT/<id>.json` with its figures as SVG files beside it. The report turns a folder of such files
//! into one HTML page.
//!
//! The modules, from the bottom up. Each knows only those above it in this list:
//! - `workloads`: the work that subjects do, made from a seed;
//! - `measure`: clocks, counters and statistics;
//! - `subjects`: the measured engines, servers and states;
//! - `drivers`: runs of a workload on a subject;
//! - `report`: result files, figures, the page;
//! - `context`, `harness`: folders, lengths and engines of an experiment's run;
//! - `crash`: child processes that are killed, and the checks of their recovered data;
//! - `advise`: recommends a scheme for a state, or for records, by measurement;
//! - `experiments`: one file or folder each, and the registry;
//! - [`peers`]: the comparison with other embedded stores, which another program links;
//! - [`cli`]: the commands.

mod advise;
pub mod cli;
mod context;
mod crash;
mod drivers;
mod error;
mod experiments;
mod harness;
mod measure;
pub mod peers;
mod report;
mod subjects;
mod sys;
mod workloads;

pub use error::{LabError, LabResult};
