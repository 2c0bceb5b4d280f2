use std::path::PathBuf;

use stillpoint_checkpoint::LoadError;
use stillpoint_io::{DiskError, ThreadError};
use stillpoint_journal::ScanError;
use stillpoint_store::{RegionError, TableId, TxError};

/// The reason why a store could not be recovered. Nothing is served then.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// A checkpoint is damaged, or could not be read.
    #[error(transparent)]
    Checkpoint(#[from] LoadError),
    /// A log is damaged, or could not be read.
    #[error(transparent)]
    Log(#[from] ScanError),
    /// A record did not fit into memory, or contradicts the loaded records.
    #[error("record of table {table} with gsn {gsn}: {source}")]
    Apply {
        /// Number of the table.
        table: u16,
        /// The record's gsn. 0 for a record of a checkpoint.
        gsn: u64,
        /// The reason.
        #[source]
        source: TxError,
    },
    /// The logs change a part of a value that no checkpoint has.
    #[error(
        "the logs change a part of the value of the key \"{}\", which no checkpoint has: put a copy of \
         the data directory back",
        key.escape_ascii()
    )]
    PatchWithoutRecord {
        /// The key.
        key: Vec<u8>,
    },
    /// A log holds an operation on a table of an unknown kind.
    #[error(
        "log {log} holds an operation, with gsn {gsn}, on a table of a kind that is not known here: \
         open the store with the program that has this kind"
    )]
    UnknownKind {
        /// The log.
        log: u8,
        /// The record's gsn.
        gsn: u64,
    },
    /// The logs hold calls of procedures that are not known here.
    #[error(
        "the logs hold calls of {}, which a start makes again and which are not registered: open the \
         store with the program that registers them, and close it in order, so that its checkpoint \
         replaces the calls",
        list(needed)
    )]
    NeedsProcedures {
        /// The procedures.
        needed: Vec<ProcedureNeeded>,
    },
    /// The manifest is lost, and a log holds calls.
    #[error(
        "log {log}, gsn {gsn} is a call, and no file but the MANIFEST names the tables that calls use: put \
         a copy of the MANIFEST back"
    )]
    CallsWithoutManifest {
        /// The log.
        log: u8,
        /// The record's gsn.
        gsn: u64,
    },
    /// A call did not do again what it has done.
    #[error(
        "log {log}, gsn {gsn}: the call of procedure {name:?} version {version} diverges: {why}; nothing \
         was changed: open the store with the program that made the call"
    )]
    Diverged {
        /// The log.
        log: u8,
        /// The record's gsn.
        gsn: u64,
        /// Name of the procedure.
        name: String,
        /// Version of the procedure.
        version: u32,
        /// The difference.
        why: String,
    },
    /// The system refused the address space of a table.
    #[error(transparent)]
    Space(#[from] RegionError),
    /// A record of a transaction contradicts earlier records of it.
    #[error("log {log}, gsn {gsn}: {why}; put a copy of the data directory back")]
    Operation {
        /// The log.
        log: u8,
        /// The record's gsn.
        gsn: u64,
        /// The contradiction.
        why: String,
    },
    /// What a start may have to undo was brought to a file, which cannot be read back.
    #[error("what the start may have to undo: {0}; start again")]
    Undo(#[source] DiskError),
    /// A log holds a write of a table that the manifest does not know.
    #[error(
        "log {log} holds a write of table {table}, generation {generation}, with gsn {gsn}, which \
         the MANIFEST does not name: the MANIFEST is older than the log; put the newest MANIFEST \
         back, or give up what it does not name with `stillpoint repair --accept-loss`"
    )]
    NewerTable {
        /// The log.
        log: u8,
        /// The record's gsn.
        gsn: u64,
        /// The table.
        table: u16,
        /// The table's generation in the record.
        generation: u32,
    },
    /// A checkpoint is newer than the manifest.
    #[error(
        "{} is checkpoint directory {serial}, and the MANIFEST says that {next_serial} is the next: \
         the MANIFEST is older than the checkpoint; put the newest MANIFEST back, or give up \
         what it does not name with `stillpoint repair --accept-loss`",
        path.display()
    )]
    NewerCheckpoint {
        /// The checkpoint's directory.
        path: PathBuf,
        /// Serial of the checkpoint's directory.
        serial: u64,
        /// The first unused serial, by the manifest.
        next_serial: u64,
    },
    /// The store has no room for the loaders.
    #[error(
        "recovery needs {wanted} workers of the store, and only {found} are free: raise the number of sessions"
    )]
    NoSlot {
        /// Loaders wanted.
        wanted: usize,
        /// Free slots found.
        found: usize,
    },
    /// A thread could not be started, or panicked.
    #[error(transparent)]
    Thread(#[from] ThreadError),
}

impl RecoveryError {
    /// A record of a checkpoint, with the writes that have waited for it, did not enter the store.
    pub(crate) fn of_record(TableId(table): TableId, source: TxError) -> Self {
        let apply = |source| Self::Apply { table, gsn: 0, source };
        match source {
            TxError::Unreadable(reason) => match reason.downcast() {
                Ok(of_log) => Self::Log(*of_log),
                Err(reason) => apply(TxError::Unreadable(reason)),
            },
            source => apply(source),
        }
    }

    /// Whether files are damaged or missing, as opposed to a system that refused.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Checkpoint(LoadError::Visitor(reason)) => {
                reason.downcast_ref().is_some_and(Self::is_damage)
            }
            Self::Checkpoint(error) => matches!(error, LoadError::Damaged(_)),
            Self::Log(error) => error.is_damage(),
            Self::Apply { source, .. } => {
                matches!(source, TxError::PatchOutsideValue { .. } | TxError::Unreadable(_))
            }
            Self::NewerTable { .. }
            | Self::NewerCheckpoint { .. }
            | Self::PatchWithoutRecord { .. }
            | Self::Operation { .. } => true,
            Self::UnknownKind { .. }
            | Self::NeedsProcedures { .. }
            | Self::CallsWithoutManifest { .. }
            | Self::Diverged { .. }
            | Self::Space(_)
            | Self::NoSlot { .. }
            | Self::Undo(_)
            | Self::Thread(_) => false,
        }
    }
}

/// A procedure that a log needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcedureNeeded {
    /// Name of the procedure.
    pub name: String,
    /// Version of the procedure.
    pub version: u32,
}

impl std::fmt::Display for ProcedureNeeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} version {}", self.name, self.version)
    }
}

fn list(needed: &[ProcedureNeeded]) -> String {
    needed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_disk_that_refuses_a_log_late_is_no_damage() {
        let refused = DiskError::new("read", "log/000/1-1", io::ErrorKind::Interrupted.into());
        let dir = PathBuf::new();
        let damaged = ScanError::Missing { dir, log: 0, after_gsn: 1, found_gsn: None };
        for (of_log, is_damage) in [(ScanError::from(refused), false), (damaged, true)] {
            let error = RecoveryError::of_record(TableId(1), TxError::Unreadable(of_log.into()));
            assert!(matches!(error, RecoveryError::Log(_)), "{error}");
            assert_eq!(error.is_damage(), is_damage);
            // As a thread of the load tells it.
            let told = RecoveryError::from(LoadError::Visitor(error.into()));
            assert_eq!(told.is_damage(), is_damage);
        }
        let misfit = RecoveryError::of_record(TableId(1), TxError::Unreadable("misfit".into()));
        assert!(matches!(misfit, RecoveryError::Apply { table: 1, .. }) && misfit.is_damage());
    }
}
