//! Errors of logs that recovery finds.

use std::path::PathBuf;
use std::sync::Arc;

use stillpoint_format::DecodeError;
use stillpoint_format::log::{EndCause, LaterBatch};
use stillpoint_io::{DiskError, ThreadError};

/// A valid batch that was written when the missing one was durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The segment that holds the batch.
    pub path: PathBuf,
    /// The batch.
    pub batch: LaterBatch,
}

/// The reason why logs cannot be read. Then nothing is served.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ScanError {
    /// Bytes that were durable once are damaged.
    #[error(
        "{} at byte {offset}: log {log} is damaged ({cause}){}; records above gsn {last_gsn} are \
         lost: put a copy of this file back, restore a checkpoint with `stillpoint \
         restore`, or give up what is missing with `stillpoint repair --accept-loss`",
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
        /// Last gsn before the damage.
        last_gsn: u64,
        /// The defect.
        cause: Box<EndCause>,
        /// The proof that the batch was durable.
        proof: Option<Box<Proof>>,
    },
    /// A segment's header, or a record in an intact batch, breaks the format.
    #[error(
        "{}: {source}; put a copy of this file back, restore a checkpoint with `stillpoint \
         restore`, or give up what is missing with `stillpoint repair --accept-loss`",
        path.display()
    )]
    Malformed {
        /// The segment.
        path: PathBuf,
        /// The defect and its offset.
        source: DecodeError,
    },
    /// A segment is missing.
    #[error(
        "{}: log {log} has no segment with the records after gsn {after_gsn}{}; put the missing \
         file back, restore a checkpoint with `stillpoint restore`, or give up what is missing with \
         `stillpoint repair --accept-loss`",
        dir.display(),
        found_gsn.map_or_else(String::new, |gsn| format!(", the next one begins at gsn {gsn}"))
    )]
    Missing {
        /// The log's directory.
        dir: PathBuf,
        /// The log.
        log: u8,
        /// The last gsn that exists or is not needed.
        after_gsn: u64,
        /// Begin of the next segment, if there is one.
        found_gsn: Option<u64>,
    },
    /// The log ends before the last gsn that an earlier recovery, or a clean shutdown, had kept.
    #[error(
        "{} at byte {offset}: log {log} ends at gsn {last_gsn}, and gsn {kept_gsn} was durable; \
         put a copy of this file back, restore a checkpoint with `stillpoint restore`, or give up \
         what is missing with `stillpoint repair --accept-loss`",
        path.display()
    )]
    Short {
        /// The segment in which the log ends.
        path: PathBuf,
        /// The log.
        log: u8,
        /// File offset of the log's end.
        offset: u64,
        /// The last gsn that exists.
        last_gsn: u64,
        /// The last gsn that must exist.
        kept_gsn: u64,
    },
    /// A log ends before a position that another log states as durable.
    #[error(
        "log {log} ends at gsn {last_gsn}, and {} proves that gsn {closed_gsn} was durable; put a \
         copy of the missing file back, restore a checkpoint with `stillpoint restore`, or give up \
         what is missing with `stillpoint repair --accept-loss`",
        path.display()
    )]
    Unclosed {
        /// The log.
        log: u8,
        /// The last gsn that exists.
        last_gsn: u64,
        /// The last gsn that must exist.
        closed_gsn: u64,
        /// The segment with the proof.
        path: PathBuf,
    },
    /// A file belongs to an incarnation that the manifest does not name, and no failed start leaves
    /// such a file.
    #[error(
        "{} is of incarnation {incarnation}, and the MANIFEST ends with incarnation \
         {latest}: the MANIFEST is older than the log; put the newest MANIFEST back, or give up \
         what it does not name with `stillpoint repair --accept-loss`",
        path.display()
    )]
    NewerLog {
        /// The segment.
        path: PathBuf,
        /// Incarnation of the segment.
        incarnation: u32,
        /// The latest incarnation of the manifest.
        latest: u32,
    },
    /// Records belong to an epoch that the manifest does not know.
    #[error(
        "{} holds records of epoch {epoch}, and the MANIFEST says that epoch {next_epoch} has not \
         begun: the MANIFEST is older than the log; put the newest MANIFEST back, or accept the \
         records with `stillpoint repair --accept-loss`",
        path.display()
    )]
    NewerEpoch {
        /// The segment.
        path: PathBuf,
        /// The epoch of a record.
        epoch: u64,
        /// The first epoch that has not begun.
        next_epoch: u64,
    },
    /// A log holds records that contradict the manifest and its checkpoints.
    #[error(
        "{}: from gsn {gsn} on log {log} holds writes that do not go with the MANIFEST and its \
         checkpoints: some file is older than the others",
        dir.display()
    )]
    Unknown {
        /// The log's directory.
        dir: PathBuf,
        /// The log.
        log: u8,
        /// Gsn of the first such record.
        gsn: u64,
    },
    /// The disk refused.
    #[error("{0}")]
    Disk(Arc<DiskError>),
    /// A thread of the reader could not start, or panicked.
    #[error("{0}")]
    Thread(Arc<ThreadError>),
}

impl ScanError {
    /// Whether files are damaged or missing, as opposed to a disk or a system that refused.
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
