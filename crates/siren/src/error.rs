//! Errors of a store: what was being done, and what the program can do now.

use std::path::PathBuf;

use stillpoint_format::DecodeError;
use stillpoint_io::{DiskError, ThreadError};

/// Result of an operation of a store.
pub type SirenResult<T> = Result<T, SirenError>;

/// An error of a store.
#[derive(Debug, thiserror::Error)]
pub enum SirenError {
    /// The disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A thread could not be started, or panicked.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// A file holds bytes that no crash leaves behind.
    #[error("{}: {cause}; restore the store from a copy", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The defect.
        #[source]
        cause: DecodeError,
    },
    /// A page holds bytes that no crash leaves behind, or is not the page that the directory names.
    #[error(
        "{}: disk page {page}{}: {cause}; restore the store from a copy", path.display(),
        table.map_or_else(String::new, |table| format!(" of table {table}"))
    )]
    DamagedPage {
        /// The file.
        path: PathBuf,
        /// The first of the disk pages of the logical page.
        page: u32,
        /// Number of the table. `None` if the page has removed tuples of all tables.
        table: Option<u16>,
        /// The defect.
        #[source]
        cause: DecodeError,
    },
    /// A file is gone.
    #[error("{}: the file is missing, but {needed_by}; put the file back, or restore the store from a copy", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// What names the file.
        needed_by: String,
    },
    /// Intact files that contradict each other.
    #[error("{}: {what}; restore the store from a copy", path.display())]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        what: String,
    },
    /// The checkpoint was taken for a measurement of fuzzy checkpoints, which have no recovery.
    #[error("{}: its checkpoint is fuzzy and was made to be measured; remove the directory", path.display())]
    Fuzzy {
        /// The file.
        path: PathBuf,
    },
    /// A section of the MANIFEST that cannot be used.
    #[error(
        "table {table} has the section {text:?}, which this build cannot use; restore the store from a copy"
    )]
    Section {
        /// Number of the table.
        table: u16,
        /// The section.
        text: String,
    },
    /// A scan goes on from a place that is not known any more.
    #[error("cursor {cursor} of table {table} is unknown or too old: begin the scan again")]
    UnknownCursor {
        /// Number of the table.
        table: u16,
        /// The cursor.
        cursor: u64,
    },
    /// A setting is outside its range.
    #[error("{setting} is {value}: {allowed}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        allowed: &'static str,
    },
    /// All sessions are taken.
    #[error("all {limit} sessions are taken; drop one, or open the store with more")]
    NoSession {
        /// The limit.
        limit: usize,
    },
    /// An older transaction holds the lock of a key.
    #[error("an older transaction holds a key of table {table}; abort this one and run it again")]
    Conflict {
        /// Number of the table.
        table: u16,
    },
    /// The lock of a key did not become free in time.
    #[error(
        "lock timeout: a key of table {table} was held for {waited_ms} ms; abort this transaction and run it again"
    )]
    LockTimeout {
        /// Number of the table.
        table: u16,
        /// The wait in milliseconds.
        waited_ms: u64,
    },
    /// The transaction has been open for too long.
    #[error("the transaction is {age_ms} ms old and the limit is {limit_ms}; abort it")]
    TooOld {
        /// Age in milliseconds.
        age_ms: u64,
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// The transaction has written too much.
    #[error("the transaction would hold {bytes} bytes and the limit is {limit}; commit in parts")]
    TooLarge {
        /// Bytes that the transaction would hold.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A key is too long.
    #[error("a key of {bytes} bytes is too long; the limit is 65536")]
    KeyTooLong {
        /// Length of the key.
        bytes: usize,
    },
    /// A value is too long.
    #[error("a value of {bytes} bytes is too long; the limit is 536870912")]
    ValueTooLong {
        /// Length of the value.
        bytes: usize,
    },
    /// The savepoint belongs to another transaction, or lies in the future.
    #[error("the savepoint is none of this transaction; take savepoints from it")]
    NoSavepoint,
    /// An earlier statement of the transaction has failed in its middle.
    #[error("the transaction has failed and can only be aborted")]
    Failed,
    /// There is no such table.
    #[error("there is no table number {table}; take numbers from Store::table")]
    NoSuchTable {
        /// The number.
        table: u16,
    },
    /// There is no room for a further table.
    #[error("a store has at most 65535 tables")]
    TooManyTables,
    /// The log has failed, and nothing more is acknowledged.
    #[error("the log has failed ({reason}); close the store, check the disk and open it again")]
    LogFailed {
        /// The first error of the log.
        reason: String,
    },
    /// It is unknown whether the last checkpoint is on the disk.
    #[error(
        "the last checkpoint may or may not be on the disk ({reason}); close the store and open it again"
    )]
    InDoubt {
        /// The error.
        reason: String,
    },
}

impl SirenError {
    pub(crate) fn damaged(path: PathBuf, cause: DecodeError) -> Self {
        Self::Damaged { path, cause }
    }

    pub(crate) fn missing(path: PathBuf, needed_by: String) -> Self {
        Self::Missing { path, needed_by }
    }

    pub(crate) fn inconsistent(path: PathBuf, what: impl Into<String>) -> Self {
        Self::Inconsistent { path, what: what.into() }
    }

    /// Whether a file is damaged, or contradicts another.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. }
                | Self::DamagedPage { .. }
                | Self::Missing { .. }
                | Self::Inconsistent { .. }
                | Self::Section { .. }
        )
    }

    /// Whether the transaction may succeed when it is aborted and run again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Conflict { .. } | Self::LockTimeout { .. })
    }
}
