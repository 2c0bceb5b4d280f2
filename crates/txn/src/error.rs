//! Why a transaction did not commit.

use std::fmt;

use crate::table::TableId;

/// The reason why a transaction did not commit. The transaction's writes are rolled back.
#[derive(Debug, thiserror::Error)]
pub enum TxError {
    /// An older or declared transaction holds a lock. The body must return this error, and the
    /// engine tries the transaction again. A caller sees this error only if the body invents it in
    /// each of the [`RUNS_MAX`](crate::RUNS_MAX) runs.
    #[error("the transaction met a lock of an older one and is tried again")]
    Conflict,
    /// Memory ran out.
    #[error(transparent)]
    Memory(#[from] MemoryLimit),
    /// A key is longer than 65,536 bytes.
    #[error("a key of {len} bytes is too long; the limit is 65536")]
    KeyTooLong {
        /// The key's length in bytes.
        len: usize,
    },
    /// The keys of one transaction have too many bytes together.
    #[error("the keys of one transaction have more than {limit_bytes} bytes together; split it")]
    KeysTooLong {
        /// The limit.
        limit_bytes: usize,
    },
    /// A value is longer than 512 MiB.
    #[error("a value of {len} bytes is too long; the limit is 536870912")]
    ValueTooLong {
        /// The value's length in bytes.
        len: usize,
    },
    /// A patch begins beyond the end of the value, or the key has none.
    #[error("a patch at offset {offset} is outside the value, which has {len} bytes")]
    PatchOutsideValue {
        /// Offset of the patch.
        offset: usize,
        /// Length of the value; 0 without a value.
        len: usize,
    },
    /// A key declared for reading was written.
    #[error("key number {slot} was declared for reading; declare it with Mode::Write")]
    DeclaredForReading {
        /// The key's slot.
        slot: u32,
    },
    /// A transaction with declared keys asked for an undeclared key.
    #[error("the key was not declared; name it in Procedure::declare")]
    NotDeclared,
    /// A transaction that declared one key, for reading alone, first runs without the key's lock.
    /// The transaction asked for another key by `key_under`, which needs that lock, or by `read_under`
    /// after the key had changed. Pass the error on: the transaction runs again.
    #[error("the transaction needs the lock of its key and runs again with it")]
    NotLocked,
    /// A transaction asked for an input of a call, and is none.
    #[error(
        "the time and random numbers are inputs of calls, and this transaction declares no keys"
    )]
    NoCall,
    /// Two runs of a call with the same arguments and inputs gave different writes.
    #[error(
        "procedure {name:?} gave other writes when it ran again: it may depend on nothing but its \
         arguments, the records, and the time and random numbers of the transaction"
    )]
    NotDeterministic {
        /// Name of the procedure.
        name: String,
    },
    /// The thread has another open transaction, and a lock or the permit of the store did not become
    /// free. The holder may wait for the open transaction, which cannot go on meanwhile.
    #[error(
        "the transaction would wait for another open one of this thread; end that one and run this one again"
    )]
    WaitsForItself,
    /// A lock did not become free within the time that the settings allow. Its holder may be an open
    /// transaction that waits for a person. The transaction is rolled back.
    #[error("a lock did not become free within {waited_ms} ms: run the transaction again later")]
    LockTimeout {
        /// The wait in milliseconds.
        waited_ms: u64,
    },
    /// Another transaction holds a lock for long, and this session leaves such locks alone. The holder may wait
    /// for a person. The transaction is rolled back.
    #[error("another transaction holds a lock for long: run the transaction again later")]
    Held,
    /// An open transaction is older than the settings allow.
    #[error("the transaction is {age_ms} ms old and the limit is {limit_ms}: drop it")]
    TooOld {
        /// Age in milliseconds.
        age_ms: u64,
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// An open transaction has written more in place than the settings allow.
    #[error(
        "the transaction would remember {bytes} bytes of writes and the limit is {limit}: commit in parts"
    )]
    TooLarge {
        /// Bytes that the transaction would remember.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// An open transaction keeps too much of the log.
    #[error(transparent)]
    PinsLog(#[from] LogPinned),
    /// The logs have as many bytes as they may.
    #[error(transparent)]
    LogFull(#[from] LogFull),
    /// Writes to a table of a kind that takes nothing back to a savepoint. Nothing was taken back, and the
    /// transaction goes on.
    #[error(
        "writes to tables of kind {0} are not taken back to a savepoint: commit or drop the transaction"
    )]
    NoSavepoints(&'static str),
    /// The savepoint belongs to another transaction, or was taken back itself.
    #[error("the savepoint is none of this transaction, or was taken back: take a new one")]
    UnknownSavepoint,
    /// There is no such table.
    #[error("there is no table number {}", .0.0)]
    NoSuchTable(TableId),
    /// A range, or a number of records, of a table without an ordered index.
    #[error("table number {} is not ordered: make an ordered table to read ranges", .0.0)]
    NotOrdered(TableId),
    /// A transaction with declared keys read a range or a number of records.
    #[error("a transaction with declared keys reads no ranges: run it without declared keys")]
    RangeDeclared,
    /// A key of an ordered table is too long. The transaction cannot commit.
    #[error("a key of {len} bytes is too long for an ordered table; the limit is {limit}")]
    OrderedKeyTooLong {
        /// The key's length in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A deadline for a record of a table of another kind than the memory store.
    #[error("tables of kind {0} keep no deadlines: put the record into a table in memory")]
    NoDeadlines(&'static str),
    /// A key below one in a table of another kind than the memory store.
    #[error(
        "tables of kind {0} have no keys below a key, of which large collections are made: keep the \
         collection small, or in a table in memory"
    )]
    NoKeysUnder(&'static str),
    /// The index of a table has no address space left.
    #[error("the index of table number {} is full: no address space is left for it", .0.0)]
    IndexFull(TableId),
    /// The record of a key is not in memory yet, and the transaction does not read it from a disk.
    #[error("a record is not loaded yet, and this transaction does not wait for the disk")]
    NotLoaded,
    /// The record of a key is not in memory yet, and cannot be read.
    #[error("a record that is not loaded yet cannot be read: {0}")]
    Unreadable(Box<dyn std::error::Error + Send + Sync>),
    /// The journal refused the commit.
    #[error(transparent)]
    Log(LogRefused),
    /// The procedure gave up.
    #[error("the transaction was abandoned: {0}")]
    Abandoned(Box<dyn std::error::Error + Send + Sync>),
}

impl TxError {
    /// An error with which a procedure gives up.
    pub fn abandon(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Abandoned(reason.into())
    }
}

impl From<LogRefused> for TxError {
    fn from(refused: LogRefused) -> Self {
        match refused {
            LogRefused::Memory(limit) => Self::Memory(limit),
            LogRefused::Pinned(pinned) => Self::PinsLog(pinned),
            LogRefused::Full(full) => Self::LogFull(full),
            refused => Self::Log(refused),
        }
    }
}

/// The journal did not take a commit.
#[derive(Debug, thiserror::Error)]
pub enum LogRefused {
    /// The log has no room at present. The commit waits and is tried again.
    #[error("the log has no room at present; wait for room and try again")]
    NoRoom,
    /// The record of the commit would take more memory than the limit allows. The transaction is rolled
    /// back.
    #[error(transparent)]
    Memory(#[from] MemoryLimit),
    /// The transaction keeps too much of the log, and is rolled back.
    #[error(transparent)]
    Pinned(#[from] LogPinned),
    /// The logs have reached their limit, and the transaction is rolled back.
    #[error(transparent)]
    Full(#[from] LogFull),
    /// The undo of an earlier statement is not in the log. The transaction can only be rolled back.
    #[error(transparent)]
    UndoLost(#[from] UndoLost),
    /// The log refuses the commit, and the transaction is rolled back.
    #[error(transparent)]
    Refused(#[from] Box<dyn std::error::Error + Send + Sync>),
}

/// A transaction keeps more of the log than the limit of the log allows. A start may have to undo it, so the
/// log is kept from its first change in place on. The transaction is rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the transaction keeps {bytes} bytes of the log, and the log has a limit of {limit}: commit in parts, end \
     transactions sooner, or raise log_limit"
)]
pub struct LogPinned {
    /// Bytes of the log that the transaction has written, or that it keeps.
    pub bytes: u64,
    /// The limit of the log in bytes.
    pub limit: u64,
}

/// A transaction has taken a statement back, and the undo is not in the log. What the transaction would write
/// from there on could not be undone either, so it writes nothing more and does not commit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "an undo could not be logged, so the transaction writes nothing more and does not commit: roll it back, and \
     open the store again once the cause is removed ({reason})"
)]
pub struct UndoLost {
    /// Why the store has failed.
    pub reason: String,
}

/// The logs have as many bytes as their limit allows, and nothing freed enough of them in time. Whoever reads
/// goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the logs have reached their limit of {limit} bytes, and {freed} (waited {waited_ms} ms)")]
pub struct LogFull {
    /// The limit of the logs in bytes.
    pub limit: u64,
    /// The wait in milliseconds.
    pub waited_ms: u64,
    /// What frees the logs.
    pub freed: LogFreed,
}

/// What frees the logs of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFreed {
    /// The checkpoints that the store takes by itself.
    InTime,
    /// The checkpoints that the program takes, since the store has no background threads.
    ByCaller,
    /// Nothing: without a checkpoint scheme, the tables in memory need the whole log.
    Never,
}

impl fmt::Display for LogFreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InTime => {
                "too little was freed in time: run the transaction again later, end long transactions, or raise \
                 log_limit"
            }
            Self::ByCaller => {
                "the store has no background threads: take a checkpoint, or raise log_limit"
            }
            Self::Never => {
                "nothing frees them with checkpoint scheme none: choose another scheme, or raise log_limit"
            }
        })
    }
}

/// More memory was asked for than the limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "out of memory: {held} bytes are held and the limit is {limit}; raise max_memory or delete keys"
)]
pub struct MemoryLimit {
    /// Bytes held.
    pub held: usize,
    /// The limit in bytes.
    pub limit: usize,
}
