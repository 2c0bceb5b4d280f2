//! Surgery on data directories: files deleted, older MANIFESTs put back, copies taken while the
//! engine runs. Each time either the directory is refused, by all tools alike, or nothing
//! acknowledged is missing.
//!
//! `STILLPOINT_SURGERY_PAIRS=1` deletes every pair of files instead of a sample.

mod closed;
mod copied;
mod deleted;
mod older;
mod repaired;
mod store;
mod unreadable;
