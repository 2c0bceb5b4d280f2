//! The parts of a transaction that all kinds of tables share: keys, priorities, runs after a
//! conflict, and dependencies. Knows neither the storage of records nor the journal.

mod dependencies;
mod discipline;
mod error;
mod key_list;
mod keys;
mod kind;
mod lane;
mod lookup;
mod patience;
mod range_batch;
mod remembered;
mod retry;
mod table;

pub use dependencies::Dependencies;
pub use discipline::Discipline;
pub use error::{LogFreed, LogFull, LogPinned, LogRefused, MemoryLimit, TxError, UndoLost};
pub use key_list::KeyList;
pub use keys::{DeclaredKey, KeySet, Mode, Slot};
pub use kind::{
    Arrival, DeferredLog, KindKey, KindPart, KindRange, KindTable, LockedTables, Operation,
    OperationLog, Presence, Sections, TableKind, UnlockedRead,
};
pub use lane::Lane;
pub use lookup::{Lookup, SCAN_MAX};
pub use patience::Patience;
pub use range_batch::RangeBatch;
pub use remembered::Remembered;
pub use retry::{RUNS_MAX, Run, Runs};
pub use table::TableId;
