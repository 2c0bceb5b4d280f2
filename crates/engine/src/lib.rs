//! A transactional storage engine that keeps data at memory speed, never stops to save it, and
//! brings it back exactly.
//!
//! ```
//! # let directory = tempfile::tempdir()?;
//! use stillpoint::{Config, Engine, Mode, TxError};
//!
//! let engine = Engine::open(Config::new(directory.path()))?;
//! let accounts = engine.table("accounts")?;
//! let mut session = engine.session()?;
//! session.transact(|tx| {
//!     tx.put(accounts, b"alice", &100u64.to_le_bytes())?;
//!     tx.put(accounts, b"bob", &0u64.to_le_bytes())
//! })?;
//!
//! // Serializable: whoever looks sees both changes or none.
//! session.transact(|tx| {
//!     let read = |value: Option<stillpoint::ValueRef<'_>>| value.and_then(|v| v.u64_at(0)).unwrap_or(0);
//!     let (alice, bob) = (read(tx.get(accounts, b"alice")?), read(tx.get(accounts, b"bob")?));
//!     tx.put(accounts, b"alice", &(alice - 30).to_le_bytes())?;
//!     tx.put(accounts, b"bob", &(bob + 30).to_le_bytes())
//! })?;
//!
//! engine.checkpoint()?; // nothing stops meanwhile
//! drop(session);
//! engine.close()?;
//!
//! let engine = Engine::open(Config::new(directory.path()))?;
//! let mut out = Vec::new();
//! engine.session()?.read(engine.table("accounts")?, b"bob", &mut out)?;
//! assert_eq!(out, 30u64.to_le_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The promise: an acknowledged commit of the chosen durability survives. Recovery yields every
//! acknowledged transaction and a set closed under dependency. Damage is reported, never returned
//! as data.

mod batch;
mod builder;
mod call;
mod call_log;
mod catalog;
mod checkpoints;
mod config;
mod durable;
mod emptying;
mod engine;
mod error;
mod guards;
mod inputs;
mod kinds;
mod life;
mod loading;
mod log;
mod named;
pub mod offline;
mod open;
mod paged;
mod procedure;
mod range;
mod repeat;
mod serials;
mod session;
mod shared;
mod siren;
mod snapshot;
mod stats;
mod tables;
mod transaction;
mod tx;
mod undone;
mod unflushed;
mod waits;

pub use batch::{Batch, Procedure};
pub use builder::{EngineBuilder, Tables};
pub use call::{Call, FoundCall};
pub use checkpoints::{
    CheckpointCounts, CheckpointDone, CheckpointStatus, CheckpointsMerged, FileHolder, HeldFiles,
    MergeStatus,
};
pub use config::{CheckpointPolicy, Codec, Config, Durability, Environment, QuiesceFor};
pub use durable::Durable;
pub use engine::Engine;
pub use error::{Error, SnapshotEnd};
pub use kinds::Savepoint;
pub use loading::LoadStatus;
pub use procedure::{Arguments, StoredProcedure};
pub use range::Range;
pub use serials::DurableSerials;
pub use session::{Executed, Session};
pub use snapshot::{Snapshot, SnapshotBatch, SnapshotRecord};
pub use stats::{MemoryRoom, Stats};
pub use stillpoint_format::Label;
pub use stillpoint_format::hash::KeyHasher;
pub use stillpoint_format::registry::UnknownName;
pub use stillpoint_io::{Cancel, NotOwner, ask_for_short_slices, go_behind};
pub use stillpoint_journal::{Holder, JournalStats};
pub use stillpoint_paged::{PagesError, PoolStats};
pub use stillpoint_recovery::{Progress, RecoverySummary, Stage};
pub use stillpoint_siren::SirenStats;
pub use stillpoint_store::{
    AddressSpace, FoundValue, KeySet, MemoryLimit, Mode, PageSize, Phase, RecordUse, RegionError,
    SchemeMemory, Slot, StablePool, Stamp, TableId, TxError, ValueRef,
};
pub use stillpoint_txn::{
    Arrival, Discipline, KeyList, KindKey, KindPart, KindRange, KindTable, LockedTables, LogFreed,
    LogFull, LogPinned, LogRefused, Operation, OperationLog, Presence, RangeBatch, Sections,
    TableKind, UndoLost, UnlockedRead,
};
pub use tables::Kind;
pub use transaction::Transaction;
pub use tx::Tx;
pub use unflushed::Unflushed;

/// Names of the checkpoint schemes and a line about each, for help texts.
pub fn checkpoint_schemes() -> impl Iterator<Item = (&'static str, &'static str)> {
    stillpoint_checkpoint::registry::REGISTRY.help().chain(stillpoint_siren::ROWS.help())
}

/// Name of the checkpoint scheme that has this name or alias.
///
/// # Errors
/// No scheme has it. The text lists all names.
pub fn checkpoint_scheme_named(name: &str) -> Result<&'static str, String> {
    if let Ok(row) = stillpoint_siren::ROWS.find(name) {
        return Ok(row.name());
    }
    let row = stillpoint_checkpoint::registry::REGISTRY.find(name);
    row.map(|row| row.name).map_err(|unknown| {
        let more: Vec<_> = stillpoint_siren::ROWS.names().collect();
        format!("{unknown}, {}", more.join(", "))
    })
}

/// Name of the checkpoint scheme of a store whose settings name none.
pub const CHECKPOINT_SCHEME_DEFAULT: &str = stillpoint_checkpoint::registry::DEFAULT;

/// Names of the journals and a line about each, for help texts.
pub fn journal_schemes() -> impl Iterator<Item = (&'static str, &'static str)> {
    stillpoint_journal::registry::REGISTRY.help()
}

/// Names of the codecs of checkpoints and a line about each, for help texts. A name is
/// [parsed](str::parse) as a [`Codec`].
pub fn codecs() -> impl Iterator<Item = (&'static str, &'static str)> {
    stillpoint_format::part::CODECS.help()
}

fn journal_row(name: &str) -> Result<&'static stillpoint_journal::registry::Row, Error> {
    stillpoint_journal::registry::REGISTRY
        .find(name)
        .map_err(|unknown| Error::Config { setting: "journal", reason: unknown.to_string() })
}
