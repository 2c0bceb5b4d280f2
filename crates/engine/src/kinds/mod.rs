//! Tables of other kinds than the memory store, beside it in one transaction: one clock, one log, one
//! commit. What a kind is says `stillpoint_txn::TableKind`.
//!
//! | file | what |
//! |---|---|
//! | here | which kinds there are, and of which kind a table is |
//! | `parts` | the parts of the kinds in one session's transactions, and the slots of a transaction |
//! | `operations` | the log of a transaction's operations: doing, undoing |
//! | `commit` | the steps of the one commit, and of an abort |
//! | `mixed` | batches of declared transactions on several kinds |
//! | `replay` | what the logs hold of other kinds, and the undo of what a crash has cut off |

mod commit;
mod mixed;
mod operations;
mod parts;
mod replay;

use std::sync::Arc;

use stillpoint_format::manifest::{TableEntry, TableKind as KindName};
use stillpoint_store::{TableId, Worker};
use stillpoint_sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Release},
};
use stillpoint_txn::{TableKind, TxError};

use crate::error::Error;
use crate::tx::Tx;

pub(crate) use mixed::execute;
pub(crate) use operations::Operations;
pub(crate) use parts::{Parts, Place};
pub(crate) use replay::KindReplay;

/// The kinds of tables that an engine knows beside the memory store, and the tables that are theirs.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    kinds: Vec<Arc<dyn TableKind>>,
    /// Of each table number, one more than the number of its kind; 0 for the memory store. Empty
    /// without other kinds.
    of_table: Box<[AtomicU8]>,
}

impl Kinds {
    /// The kinds of an engine.
    ///
    /// # Errors
    /// Two have one name, or one has the name of the memory store, or they are too many.
    pub(crate) fn new(kinds: Vec<Arc<dyn TableKind>>) -> Result<Self, Error> {
        for (at, kind) in kinds.iter().enumerate() {
            let name = kind.name();
            if name == "memory" || kinds[..at].iter().any(|other| other.name() == name) {
                let reason = format!("{name:?} is given twice: kinds differ in their names");
                return Err(Error::Config { setting: "table_kind", reason });
            }
        }
        if kinds.len() >= usize::from(u8::MAX) {
            let reason = format!("{} kinds are too many: at most 254", kinds.len());
            return Err(Error::Config { setting: "table_kind", reason });
        }
        let tables = if kinds.is_empty() { 0 } else { usize::from(u16::MAX) + 1 };
        Ok(Self { kinds, of_table: (0..tables).map(|_| AtomicU8::new(0)).collect() })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Their names.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.kinds.iter().map(|kind| kind.name()).collect()
    }

    /// The number of a table's kind; `None` for the memory store.
    pub(crate) fn of(&self, table: TableId) -> Option<usize> {
        // Acquire: partner of the Release in `add_table`; the kind has the table.
        let number = self.of_table.get(usize::from(table.0))?.load(Acquire);
        usize::from(number).checked_sub(1)
    }

    /// Adds a table of the MANIFEST to its kind; nothing for a table of the memory store.
    pub(crate) fn add_table(&self, entry: &TableEntry) -> Result<(), Error> {
        let KindName::Other(name) = &entry.kind else { return Ok(()) };
        let number = self.number_of(name)?;
        let table = TableId(entry.id);
        self.kinds[number].add_table(table, entry.generation)?;
        // Release: partner of the Acquire in `of`.
        self.of_table[usize::from(entry.id)].store(number as u8 + 1, Release);
        Ok(())
    }

    /// The number of the kind of that name.
    pub(crate) fn number_of(&self, name: &str) -> Result<usize, Error> {
        self.kinds.iter().position(|kind| kind.name() == name).ok_or_else(|| {
            let known = self.names().join(", ");
            let reason = format!("{name:?} is not known; known: memory, {known}");
            Error::Config { setting: "table_kind", reason }
        })
    }

    fn kind_of(&self, table: TableId) -> Result<&Arc<dyn TableKind>, TxError> {
        let number = self.of(table).ok_or(TxError::NoSuchTable(table))?;
        Ok(&self.kinds[number])
    }
}

/// Runs a transaction that finds its keys on the way.
pub(crate) fn transact<R>(
    worker: &mut Worker,
    parts: &mut Parts,
    body: &mut impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
) -> Result<R, TxError> {
    parts.forget_keys();
    let ended = worker
        .run_until_ended(|open| commit::run(open, parts, Parts::lock_remembered, &mut *body))
        .map(|(result, _)| result);
    parts.give_dependencies(worker);
    ended
}
