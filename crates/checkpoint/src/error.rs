//! The errors of checkpoints, with their cures.

use std::path::PathBuf;

use stillpoint_format::{DecodeError, EncodeError};
use stillpoint_io::{DiskError, ThreadError};
use stillpoint_store::{CaptureError, LogRefused};

/// The reason why a checkpoint was not taken. The previous checkpoint is untouched.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The disk refused.
    #[error("the checkpoint was given up: {0}")]
    Disk(#[from] DiskError),
    /// The flush of a directory that every checkpoint needs has failed. The flush is not retried,
    /// so no later checkpoint can become durable.
    #[error(
        "{0}; no further checkpoint can be made durable: end the process, check the disk, and restart"
    )]
    Directory(DiskError),
    /// A record could not be encoded.
    #[error("the checkpoint was given up: {0}")]
    Encode(#[from] EncodeError),
    /// The log refused the record with which the scheme begins.
    #[error("the checkpoint was given up: {0}")]
    Log(#[source] LogRefused),
    /// The memory of the point of consistency could not be held, or not be read.
    #[error("the checkpoint was given up: {0}")]
    Memory(#[source] CaptureError),
    /// A thread could not be started, or panicked.
    #[error("the checkpoint was given up: {0}")]
    Thread(#[from] ThreadError),
    /// All read section slots of the store are taken.
    #[error(
        "no checkpoint can be taken: all {slots} worker slots of the store are in use, and the \
         capture needs one; open the store with room for more workers"
    )]
    NoSlot {
        /// Slots of the store.
        slots: usize,
    },
    /// Another checkpoint is under way.
    #[error("a checkpoint is being taken already; wait for its end")]
    Busy,
    /// The sink gave up. The error of its end tells why.
    #[error("the checkpoint was given up: its sink failed")]
    Sink,
    /// A commit panicked between claiming a record and emitting it, or could not wait for room for the
    /// stable version, since all commits were stopped. The checkpoint lacks the record.
    #[error(
        "the checkpoint was given up: a commit panicked while it saved a before-image, or tables were \
         emptied while it waited for the pool of stable versions; the next checkpoint has all records"
    )]
    BeforeImage,
    /// A commit after the point of consistency needed more room for stable versions than the pool has.
    /// The commit went on.
    #[error(
        "the checkpoint was given up: a transaction needs more than the {bytes} bytes of the pool of \
         stable versions; make the pool larger (stable_pool), or take another scheme"
    )]
    StablePool {
        /// Bytes of the pool.
        bytes: usize,
    },
    /// The capture scan panicked twice, so some records may lack the mark of this epoch. The next
    /// checkpoint would lack these records, so it is refused.
    #[error("no further checkpoint can be taken before a restart: {0}")]
    MarksLost(#[source] Box<CheckpointError>),
    /// After an earlier checkpoint some records lack their marks.
    #[error(
        "no checkpoint can be taken before a restart: a walk over the records panicked earlier and \
         has left them without their marks"
    )]
    Refused,
    /// The checkpoint was cancelled.
    #[error("the checkpoint was cancelled")]
    Cancelled,
}

impl CheckpointError {
    /// Whether no checkpoint can succeed before the store is opened again.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Directory(_) | Self::MarksLost(_) | Self::Refused)
    }
}

/// Damage to a file of a checkpoint: other bytes than those that were written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is damaged at byte {offset}: {cause}. Nothing of it was used. Restore the file from a copy, or restore an \
     older checkpoint with `stillpoint restore`",
    file.display()
)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The damage at the offset.
    pub cause: DamageCause,
}

/// The kind of damage to a checkpoint file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DamageCause {
    /// A structure cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A structure is intact, but differs from the entry of the manifest or of the index.
    #[error("{what} is {found}, expected {expected}")]
    Differs {
        /// The number that differs.
        what: &'static str,
        /// What the file has.
        found: u64,
        /// The value in the manifest or in the index.
        expected: u64,
    },
    /// A key is in the checkpoint twice.
    #[error(
        "table {table} has the key \"{}\" in this block and, again, in that at byte {other_offset} \
         of {}",
        key.escape_ascii(),
        other.display()
    )]
    RepeatedKey {
        /// The table.
        table: u16,
        /// The key's first bytes.
        key: Vec<u8>,
        /// The file with the other entry of the key.
        other: PathBuf,
        /// Offset of the other entry's block, in bytes.
        other_offset: u64,
    },
    /// The number of records of a table differs from that in the manifest.
    #[error("{found} records of table {table}, the manifest says {expected}")]
    TableRecords {
        /// The table.
        table: u16,
        /// Records found.
        found: u64,
        /// Records that the manifest counts.
        expected: u64,
    },
    /// The file is missing.
    #[error("the manifest names it, but it does not exist")]
    Missing,
}

/// The reason why a checkpoint was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The checkpoint is damaged.
    #[error(transparent)]
    Damaged(#[from] Box<Damage>),
    /// The visitor refused a record.
    #[error("loading was given up: {0}")]
    Visitor(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A thread could not be started, or panicked.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The load was cancelled.
    #[error("loading was cancelled")]
    Cancelled,
}
