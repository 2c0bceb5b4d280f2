//! Mutexes, lock words, version latches, read sections and padded atomics, switchable to loom and
//! shuttle with `--cfg loom` or `--cfg shuttle`. Knows no data layout.
//!
//! This crate may hold unsafe code; at present it needs none.

mod asymmetric;
pub mod atomic;
pub mod lock_word;
mod mutex;
mod padded;
pub mod planted;
mod read_sections;
pub mod steps;
pub mod version_latch;
mod wait;

pub use asymmetric::AsymmetricFences;
pub use mutex::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
pub use padded::CachePadded;
pub use read_sections::{GracePeriod, ReadSection, ReadSections};
pub use wait::Backoff;
