//! Clocks, counters and statistics: what a run cost, whoever ran.

pub(crate) mod conditions;
pub(crate) mod device;
pub(crate) mod machine;
pub(crate) mod outcome;
pub(crate) mod process;
pub(crate) mod stats;
