//! Errors of a journal. Each names the log or file concerned and the cure.

use std::sync::Arc;

use stillpoint_format::{EncodeError, Stamp};
use stillpoint_io::{DiskError, ThreadError};

/// The reason why a call of the journal failed.
///
/// Cheap to clone: every thread that waits for a failed flush gets its own.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// A write or a flush of the log failed. Nothing that was appended after the last successful
    /// flush is acknowledged any more. The log takes no further records.
    #[error(
        "log {log}: {source}; nothing more is acknowledged: end the process, check the disk, \
         and restart to recover what was acknowledged"
    )]
    Poisoned {
        /// The log.
        log: u8,
        /// The failed operation, which is not retried.
        source: Arc<DiskError>,
    },
    /// No space could be prepared for the record. Nothing was written and the log is sound. Writes
    /// are refused until there is space, and reads go on.
    #[error(
        "log {log}: no segment for further records: {source}; free space on the device of the \
         data directory, and writes resume by themselves"
    )]
    NoSpace {
        /// The log.
        log: u8,
        /// The reason why the segment could not be prepared, usually a full disk.
        source: Arc<DiskError>,
    },
    /// More bytes wait for the disk than [`Config::buffer_bytes`](crate::Config::buffer_bytes)
    /// allows. Nothing was appended: wait in [`Journal::admit`](crate::Journal::admit) and append
    /// again.
    #[error("log {log} has no room: too many bytes wait for the disk; wait and append again")]
    NoRoom {
        /// The log.
        log: u8,
    },
    /// The logs keep as many bytes as their [limit](crate::Journal::set_limit) allows. Nothing was
    /// appended: [wait](crate::Journal::await_limit) for so many bytes, and append again.
    #[error(
        "log {log}: the logs have reached their limit of {limit} bytes, and {bytes} more must wait for a \
         checkpoint"
    )]
    AtLimit {
        /// The log.
        log: u8,
        /// Bytes that the record may take.
        bytes: u64,
        /// The limit of all logs together.
        limit: u64,
    },
    /// There is no space for the first segment of a log, so the store is not opened.
    #[error(
        "log {log}: no space for its first segment of {bytes} bytes: {source}; free space on the \
         device of the data directory, or open the store with fewer logs"
    )]
    NoRoomToStart {
        /// The log.
        log: u8,
        /// Bytes of the segment.
        bytes: u64,
        /// The reason why the segment could not be prepared, usually a full disk.
        source: Arc<DiskError>,
    },
    /// The record cannot be encoded. Nothing was appended.
    #[error("log {log}: {source}")]
    Encode {
        /// The log.
        log: u8,
        /// The limit that the record exceeds.
        source: EncodeError,
    },
    /// There is no such log.
    #[error("log {log} does not exist: the journal was opened with {logs} logs, numbered from 0")]
    UnknownLog {
        /// The requested number.
        log: u8,
        /// The number of logs.
        logs: u8,
    },
    /// A stamp that no log of this store can have given out.
    #[error("stamp {stamp:?} was never given out: the journal has {logs} logs")]
    UnknownStamp {
        /// The stamp.
        stamp: Stamp,
        /// The number of logs.
        logs: u8,
    },
    /// The configuration is impossible.
    #[error("{field} is {value}: {requirement}")]
    Configuration {
        /// The setting.
        field: &'static str,
        /// Value of the setting.
        value: u64,
        /// The condition that the setting must satisfy.
        requirement: &'static str,
    },
    /// A file or directory could not be prepared, listed or removed.
    #[error("{0}")]
    Disk(Arc<DiskError>),
    /// A background thread could not be started, or it panicked.
    #[error("{0}")]
    Thread(Arc<ThreadError>),
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

impl JournalError {
    /// Whether the same call may succeed once the device has space.
    pub fn is_refusal(&self) -> bool {
        matches!(self, JournalError::NoSpace { .. })
    }

    /// Whether the process must end, since appended records can no longer become durable.
    pub fn is_fatal(&self) -> bool {
        matches!(self, JournalError::Poisoned { .. } | JournalError::Thread(_))
    }
}

impl From<DiskError> for JournalError {
    fn from(error: DiskError) -> Self {
        JournalError::Disk(Arc::new(error))
    }
}

impl From<ThreadError> for JournalError {
    fn from(error: ThreadError) -> Self {
        JournalError::Thread(Arc::new(error))
    }
}
