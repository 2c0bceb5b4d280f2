//! Journals, their registry and their commit rules. Knows no store.
//!
//! | module | what it holds |
//! |---|---|
//! | [`registry`] | the journals that can be chosen, one row each |
//! | `schemes` | one file per journal |
//! | `log`, `segments` | one log: records, batches, segment files |
//! | `group` | group commit: one leader flushes, the others wait |
//! | `limit` | the limit of the bytes that the logs keep |
//! | `holds` | the holders of segments, from which position each needs a log |
//! | `closing` | the closed records, which no crash can lose |
//! | `reader`, `cut` | after a crash: the valid records, and those that recovery keeps |
//! | `replay` | the kept writes in rounds, by key |

mod closing;
#[cfg(not(any(loom, shuttle)))]
mod content;
#[cfg(not(any(loom, shuttle)))]
mod cut;
#[cfg(not(any(loom, shuttle)))]
mod error;
mod group;
#[cfg(not(any(loom, shuttle)))]
mod holds;
#[cfg(not(any(loom, shuttle)))]
mod journal;
#[cfg(not(any(loom, shuttle)))]
mod limit;
#[cfg(not(any(loom, shuttle)))]
mod log;
mod monitor;
#[cfg(not(any(loom, shuttle)))]
mod reader;
#[cfg(not(any(loom, shuttle)))]
pub mod registry;
#[cfg(not(any(loom, shuttle)))]
mod replay;
#[cfg(not(any(loom, shuttle)))]
mod room;
#[cfg(not(any(loom, shuttle)))]
mod schemes;
#[cfg(not(any(loom, shuttle)))]
mod segments;
#[cfg(not(any(loom, shuttle)))]
mod workers;

#[cfg(not(any(loom, shuttle)))]
pub use content::{KeptWrite, OperationRecord, ReceiveWrites, ReplayOperation};
#[cfg(not(any(loom, shuttle)))]
pub use error::JournalError;
#[cfg(not(any(loom, shuttle)))]
pub use holds::{Hold, Holder};
#[cfg(not(any(loom, shuttle)))]
pub use journal::{
    Capabilities, Config, Durability, EarlierSegment, EncodeBody, Entry, Environment, Journal,
    JournalStats, Shortage, Together,
};
#[cfg(not(any(loom, shuttle)))]
pub use reader::{
    BeyondCut, Ends, LogEnd, LogWindow, Logs, Loss, Proof, Received, ReplayStart, ScanError,
    ScanInput, SegmentBegin, scan, scan_accepting_loss, scan_receiving, segment_begin,
};
#[cfg(not(any(loom, shuttle)))]
pub use replay::{Merge, PartitionOf, Replay, ReplayCall, ReplayOptions, ReplayWrite, Round};
