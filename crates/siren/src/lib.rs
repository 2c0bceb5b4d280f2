//! SIREN: a store of logical pages, whose checkpoints are consistent, incremental, and cost almost no
//! memory. After Liedes and Wolski, "SIREN: A Memory-Conserving, Snapshot-Consistent Checkpoint
//! Algorithm for In-Memory Databases", ICDE 2006.
//!
//! | part of the paper | here |
//! |---|---|
//! | proxies, versions, indexes (§2) | `proxy`, `table` |
//! | logical pages, pending operations (§2.1 to §3.3) | `pages` |
//! | the checkpointer (§3.2), one tuple at a time (§3.5) | `checkpoint`, `latch` |
//! | shadow paging on the disk | `disk_pages` |
//! | recovery (§3.4), the redo log | `recovery`, `log` |
//!
//! A [`Transaction`] may stay open for minutes and across checkpoints. A checkpoint holds the tuples
//! of open transactions, marked as such.

mod checkpoint;
mod config;
mod disk_pages;
mod error;
mod latch;
mod log;
mod pages;
pub mod planted;
mod proxy;
mod recovery;
mod slab;
mod store;
mod table;
mod transaction;

pub use checkpoint::{Checkpoint, CheckpointDone, Progress};
pub use config::{Config, Logging, ROWS, Removes, Row};
pub use error::{SirenError, SirenResult};
pub use pages::Occupancy;
pub use recovery::Recovered;
pub use store::{Store, TableId};
pub use transaction::{Committed, Savepoint, Session, Transaction};
