//! What recovery can find wrong with logs.

use std::path::PathBuf;
use std::sync::Arc;

use stillpoint_format::DecodeError;
use stillpoint_format::log::{EndCause, LaterBatch};
use stillpoint_io::{DiskError, ThreadError};

/// A valid batch that was written when the missing one was durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The segment that it is in.
    pub path: PathBuf,
    /// The batch.
    pub batch: LaterBatch,
}

/// Why logs cannot be read. Nothing is served that is not known to be right.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ScanError {
    /// Bytes that were durable once are damaged.
    #[error(
        "{} at byte {offset}: log {log} is damaged ({cause}){}; records above gsn {last_gsn} are \
         lost: put a copy of this file back, or restore an older checkpoint with \
         `stillpoint restore`",
        path.display(),
        proof.as_ref().map_or_else(String::new, |proof| format!(
            ", batch {} at byte {} of {} proves that it was durable",
            proof.batch.number, proof.batch.offset, proof.path.display()
        ))
    )]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// The log.
        log: u8,
        /// File offset of the first byte that belongs to no valid batch.
        offset: u64,
        /// Last gsn before it.
        last_gsn: u64,
        /// What is wrong there.
        cause: Box<EndCause>,
        /// What shows that it was durable.
        proof: Option<Box<Proof>>,
    },
    /// A segment's header, or a record in an intact batch, is not what it should be.
    #[error(
        "{}: {source}; put a copy of this file back, or restore an older checkpoint with \
         `stillpoint restore`",
        path.display()
    )]
    Malformed {
        /// The segment.
        path: PathBuf,
        /// What is wrong, and where.
        source: DecodeError,
    },
    /// A segment is not there.
    #[error(
        "{}: log {log} has no segment with the records after gsn {after_gsn}{}; put the missing \
         file back, or restore an older checkpoint with `stillpoint restore`",
        dir.display(),
        found_gsn.map_or_else(String::new, |gsn| format!(", the next one begins at gsn {gsn}"))
    )]
    Missing {
        /// The log's directory.
        dir: PathBuf,
        /// The log.
        log: u8,
        /// The last gsn that is there or not needed.
        after_gsn: u64,
        /// Where the next segment begins, if there is one.
        found_gsn: Option<u64>,
    },
    /// The log ends before what an earlier recovery, or a clean shutdown, had kept.
    #[error(
        "{} at byte {offset}: log {log} ends at gsn {last_gsn}, and gsn {kept_gsn} was durable; \
         put a copy of this file back, or restore an older checkpoint with `stillpoint restore`",
        path.display()
    )]
    Short {
        /// The segment in which it ends.
        path: PathBuf,
        /// The log.
        log: u8,
        /// File offset of its end.
        offset: u64,
        /// The last gsn that is there.
        last_gsn: u64,
        /// The last gsn that must be there.
        kept_gsn: u64,
    },
    /// The disk refused.
    #[error("{0}")]
    Disk(Arc<DiskError>),
    /// A thread of the reader could not start, or panicked.
    #[error("{0}")]
    Thread(Arc<ThreadError>),
}

impl ScanError {
    /// True if files are damaged or missing, as opposed to a disk or a system that refused.
    pub fn is_damage(&self) -> bool {
        !matches!(self, ScanError::Disk(_) | ScanError::Thread(_))
    }
}

impl From<DiskError> for ScanError {
    fn from(error: DiskError) -> Self {
        ScanError::Disk(Arc::new(error))
    }
}

impl From<ThreadError> for ScanError {
    fn from(error: ThreadError) -> Self {
        ScanError::Thread(Arc::new(error))
    }
}
