//! What can go wrong with a checkpoint, and what to do about it.

use std::path::PathBuf;

use stillpoint_format::{DecodeError, EncodeError};
use stillpoint_io::{DiskError, ThreadError};
use stillpoint_store::LogRefused;

/// Why a checkpoint was not taken. The previous one is untouched.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The disk refused.
    #[error("the checkpoint was given up: {0}")]
    Disk(#[from] DiskError),
    /// The flush of a directory that every checkpoint needs has failed. It is not retried, so no
    /// later checkpoint can become durable.
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
    /// Another one is under way.
    #[error("a checkpoint is being taken already; wait for its end")]
    Busy,
    /// The sink gave up; closing it says why.
    #[error("the checkpoint was given up: its sink failed")]
    Sink,
    /// A commit panicked between claiming a record and emitting it: the checkpoint lacks the record.
    #[error("the checkpoint was given up: a commit panicked while it saved a before-image")]
    BeforeImage,
    /// The walk panicked again and again, so that records may lack the mark of this epoch. A further
    /// checkpoint would leave them out, and is refused.
    #[error("no further checkpoint can be taken before a restart: {0}")]
    MarksLost(#[source] Box<CheckpointError>),
    /// An earlier checkpoint has lost marks.
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
    /// True if no later checkpoint can succeed before the store is opened again.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Directory(_) | Self::MarksLost(_) | Self::Refused)
    }
}

/// Bytes of a checkpoint that are not what was written.
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
    /// What is wrong there.
    pub cause: DamageCause,
}

/// What is wrong with a checkpoint file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DamageCause {
    /// A structure cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// An intact structure that is not the one the manifest or the index speaks of.
    #[error("{what} is {found}, expected {expected}")]
    Differs {
        /// The number that differs.
        what: &'static str,
        /// What the file has.
        found: u64,
        /// What the manifest or the index says.
        expected: u64,
    },
    /// A key that comes twice.
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
        /// The file with the other one.
        other: PathBuf,
        /// Offset of the other entry's block, in bytes.
        other_offset: u64,
    },
    /// Another number of records of a table than the manifest says.
    #[error("{found} records of table {table}, the manifest says {expected}")]
    TableRecords {
        /// The table.
        table: u16,
        /// Records found.
        found: u64,
        /// Records that the manifest counts.
        expected: u64,
    },
    /// The file is not there.
    #[error("the manifest names it, but it does not exist")]
    Missing,
}

/// Why a checkpoint was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The checkpoint is damaged.
    #[error(transparent)]
    Damaged(#[from] Box<Damage>),
    /// Whoever takes the records refused one.
    #[error("loading was given up: {0}")]
    Visitor(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A thread could not be started, or panicked.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The load was cancelled.
    #[error("loading was cancelled")]
    Cancelled,
}
