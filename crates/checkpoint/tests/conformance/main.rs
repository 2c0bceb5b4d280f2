//! The conformance suite: one set of tests for every row of the registry.
//!
//! Concurrent runs are compared with the sequential model (`model`), whose only input is what the
//! commits gave to their logs. Scripted runs place single transactions at exact points of a
//! checkpoint. Everything follows from seeds, which a failure prints.

mod adya;
mod bank;
mod deleted;
mod descriptors;
mod faults;
mod files;
mod memory;
mod merges;
mod mirror;
mod model;
mod panics;
mod planted;
mod point;
mod pressure;
mod stored;
mod traps;
mod world;
