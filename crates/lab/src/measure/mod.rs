//! Clocks, counters and statistics of a run, for every kind of subject.

pub(crate) mod conditions;
pub(crate) mod device;
pub(crate) mod durations;
pub(crate) mod machine;
pub(crate) mod outcome;
pub(crate) mod process;
pub(crate) mod raw_pages;
pub(crate) mod stats;
