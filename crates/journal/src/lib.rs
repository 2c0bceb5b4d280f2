//! Journals, their registry and their commit rules. Knows no store.
//!
//! | module | what it holds |
//! |---|---|
//! | [`registry`] | the journals that can be chosen, one row each |
//! | `schemes` | one file per journal |
//! | `log`, `segments` | one log: records, batches, segment files |
//! | `group` | who flushes, who waits |
//! | `closing` | what no crash can lose any more |

#[cfg(not(any(loom, shuttle)))]
mod closing;
#[cfg(not(any(loom, shuttle)))]
mod error;
mod group;
#[cfg(not(any(loom, shuttle)))]
mod journal;
#[cfg(not(any(loom, shuttle)))]
mod log;
mod monitor;
#[cfg(not(any(loom, shuttle)))]
pub mod registry;
#[cfg(not(any(loom, shuttle)))]
mod schemes;
#[cfg(not(any(loom, shuttle)))]
mod segments;
#[cfg(not(any(loom, shuttle)))]
mod workers;

#[cfg(not(any(loom, shuttle)))]
pub use error::JournalError;
#[cfg(not(any(loom, shuttle)))]
pub use journal::{
    Appended, Capabilities, CommitInput, Config, Durability, EncodeWrites, Environment, Journal,
    JournalStats, Operation,
};
