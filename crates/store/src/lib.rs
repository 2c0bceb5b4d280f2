//! Records, indexes, transactions and the phase driver. Knows no checkpoint algorithm's name and
//! no journal.
//!
//! A [`Store`] holds tables of records in memory. A [`Worker`] runs transactions of two kinds on
//! the store:
//! - [`Worker::execute`] with declared keys, which are prefetched in batches and locked in a global
//!   order. Such a transaction is never aborted.
//! - [`Worker::transact`] with keys found on the way, under wait-die. The worker tries such a
//!   transaction again by itself.
//!
//! Both kinds are strict two-phase locked and serializable, and both keep their writes to
//! themselves until they commit.
//!
//! ```
//! use std::sync::Arc;
//! use stillpoint_store::{CellRules, NoLog, Store, StoreConfig, TableId, TxError, Worker};
//!
//! let store = Arc::new(Store::new(&StoreConfig::default(), CellRules::IN_PLACE)?);
//! let accounts = TableId(0);
//! store.add_table(accounts, 1)?;
//! let mut worker = Worker::new(store, Box::new(NoLog::default())).expect("a free slot");
//! worker.transact(|tx| tx.put(accounts, b"alice", b"100"))?;
//! let balance = worker.transact(|tx| Ok(tx.get(accounts, b"alice")?.map(|value| value.to_vec())))?;
//! assert_eq!(balance.as_deref(), Some(&b"100"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arrival;
mod capture;
mod catalog;
mod chains;
mod checkpointer;
mod deletions;
mod dirty;
mod held;
mod load;
mod memory;
#[cfg(all(test, shuttle))]
mod models;
mod ordered;
mod participant;
mod phase;
pub mod planted;
mod read_stamps;
mod reclaim;
mod record;
mod relocate;
pub mod rules;
mod scheme_memory;
mod sink;
mod stable;
mod store;
mod table;
mod txn;
mod unloaded;
mod worker;

pub use capture::ScannedCell;
pub use catalog::{AddTableError, NewTable, Replaced};
pub use checkpointer::{
    Capture, CaptureError, Checkpointer, Outcome, PointOfConsistency, SchemeLog,
};
pub use held::{HeldMemory, HeldRecords};
pub use load::{Before, KeyImage, Loader, Replayed};
pub use memory::value::ValueRef;
pub use ordered::planted as ordered_bugs;
pub use phase::{CheckpointPermit, Phase, PhaseDriver, PhaseWord, Quiesced};
pub use planted::Bug;
pub use record::RecordChange;
pub use rules::{CellRules, DirtyRule, Reuse, StatusChanges, WriteRule};
pub use scheme_memory::SchemeMemory;
pub use sink::{DeletedKey, Demand, KeptValue, Lane, RecordImage, Sink};
pub use stable::StablePool;
pub use stillpoint_format::{Label, Stamp};
pub use stillpoint_mem::{AddressSpace, PageSize, RegionError};
pub use stillpoint_txn::{
    KeySet, LogRefused, MemoryLimit, Mode, Patience, RUNS_MAX, Slot, TableId, TxError,
};
pub use store::{HeldTransactions, Store, StoreConfig};
pub use txn::commit::{CommitSteps, Shortage};
pub use txn::commit_log::{Change, Commit, CommitLog, NoLog, Patches, Write, WriteSet, Writes};
pub use txn::pending::Splices;
pub use txn::range::Range;
pub use txn::tx::Tx;
pub use unloaded::pending::{PatchWithoutBase, WaitingWrites, WindowSource, WriteEffect};
pub use unloaded::{BesideRecord, ColdRecords, FoundRecord, TakeBeside, UnreadableRecord};
pub use worker::{Batch, FoundValue, OpenTransaction, Procedure, RecordUse, Worker};
