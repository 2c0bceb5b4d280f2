//! Mutexes, lock words, windows and padded atomics, switchable to loom and
//! shuttle with `--cfg loom` or `--cfg shuttle`. Knows no data layout.
//!
//! This crate may hold unsafe code; at present it needs none.

pub mod atomic;
pub mod lock_word;
mod mutex;
mod padded;
pub mod planted;
pub mod steps;
mod uneven;
mod wait;
mod windows;

pub use mutex::{Mutex, MutexGuard, RwLock};
pub use padded::CachePadded;
pub use uneven::UnevenFences;
pub use wait::Backoff;
pub use windows::{GraceToken, Window, Windows};
