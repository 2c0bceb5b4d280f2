//! The laboratory: experiments on engines of records, servers and state arrays. Knows no internals
//! of a scheme.
//!
//! An *experiment* is one row of `experiments::EXPERIMENTS`. Running it gives one result, written
//! as `OUT/<id>.json` with its figures beside it; `report` turns a folder of such files, and
//! nothing else, into one HTML page.
//!
//! The rooms, from the bottom up; each knows those before it and none behind it:
//! - `workloads`: what is done, from a seed;
//! - `measure`: clocks, counters and statistics;
//! - `subjects`: what is measured;
//! - `drivers`: runs of a workload on a subject;
//! - `report`: result files, figures, the page;
//! - `context`, `harness`: what an experiment is run with;
//! - `crash`: child processes that are killed, and what they must leave;
//! - `advise`: which scheme for a state, by measurement;
//! - `experiments`: one file or folder each, and the registry;
//! - [`cli`]: the commands, all that other crates see.

mod advise;
pub mod cli;
mod context;
mod crash;
mod drivers;
mod error;
mod experiments;
mod harness;
mod measure;
mod report;
mod subjects;
mod sys;
mod workloads;

pub use error::{LabError, LabResult};
