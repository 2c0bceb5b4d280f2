//! SIREN: a store of logical pages, whose checkpoints are consistent, incremental, and cost almost no
//! memory. After Liedes and Wolski, "SIREN: A Memory-Conserving, Snapshot-Consistent Checkpoint
//! Algorithm for In-Memory Databases", ICDE 2006.
//!
//! | part of the paper | here |
//! |---|---|
//! | proxies, versions, indexes (§2) | `proxy`, `index`, `table` |
//! | logical pages, pending operations (§2.1 to §3.3) | `pages` |
//! | the checkpointer (§3.2), one tuple at a time (§3.5) | `copier`, `latch` |
//! | shadow paging on the disk | `disk_pages`, `checkpoint` |
//! | recovery (§3.4), the redo log | `load`, `recovery`, `log` |
//! | a kind of table of the engine: locks of keys and gaps, the journal's records | `kind`, `part`, `held`, `gates`, `section` |
//!
//! The pages serve two owners. [`Store`] is the paper's system, with a log and a header of its own. As a
//! kind of table, [`Siren`], the engine's journal and MANIFEST take their place.
//!
//! A [`Transaction`] may stay open for minutes and across checkpoints. A checkpoint holds the tuples
//! of open transactions, marked as such.

mod ahead;
mod base;
mod by_hash;
mod checkpoint;
mod config;
mod copier;
mod cursors;
mod disk_pages;
mod error;
mod gates;
mod held;
mod index;
mod key_bytes;
mod kind;
mod latch;
mod load;
mod log;
mod look;
mod pages;
mod part;
pub mod planted;
mod proxy;
mod recovery;
mod section;
mod slab;
mod store;
mod table;
mod transaction;

pub use checkpoint::Checkpoint;
pub use config::{Config, Logging, ROWS, Removes, Row};
pub use copier::{CheckpointDone, Progress};
pub use error::{SirenError, SirenResult};
pub use kind::{KIND_NAME, KindConfig, Siren, SirenStats};
pub use look::{
    CheckedPages, PageCounts, check_pages, count_pages, is_damage, is_in_doubt, named_level,
};
pub use pages::Occupancy;
pub use recovery::Recovered;
pub use store::{Store, TableId};
pub use transaction::{Committed, Savepoint, Session, Transaction};
