//! Tests that change data directories: delete files, put older MANIFESTs back, or copy while the
//! engine runs. Each time either all tools refuse the directory, or no acknowledged commit is
//! missing.
//!
//! `STILLPOINT_SURGERY_PAIRS=1` deletes every pair of files instead of a sample.

mod chained;
mod closed;
mod copied;
mod deleted;
mod older;
mod repaired;
mod store;
mod subsets;
mod unreadable;
