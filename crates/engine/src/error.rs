use std::path::PathBuf;

use stillpoint_checkpoint::{CheckpointError, MergeError};
use stillpoint_format::manifest::ManifestError;
use stillpoint_io::{DiskError, NotOwner};
use stillpoint_journal::JournalError;
use stillpoint_paged::PagesError;
use stillpoint_recovery::RecoveryError;
use stillpoint_store::{LogRefused, TxError};

/// Errors of the engine. Each names the file or setting concerned and the cure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process, or another engine of this one, has the data directory open.
    #[error("{} is in use by another process: stop it, or choose another data directory", .0.display())]
    InUse(PathBuf),
    /// The directory holds data, but no MANIFEST.
    #[error("{} holds {found} but no MANIFEST: it is not started empty over existing data; put the MANIFEST back from a copy, or make one from the other files with `stillpoint repair --accept-loss`, or move the directory away", directory.display())]
    ManifestMissing {
        /// The data directory.
        directory: PathBuf,
        /// Names that were found in the directory, joined by "and".
        found: String,
    },
    /// The MANIFEST cannot be used.
    #[error("{}: {source}{}", file.display(), cure_of(source))]
    Manifest {
        /// The file.
        file: PathBuf,
        /// The defect and the cure.
        #[source]
        source: ManifestError,
    },
    /// The pages of paged tables cannot be opened.
    #[error("paged tables: {0}")]
    Pages(#[from] PagesError),
    /// The pages of SIREN's tables cannot be opened.
    #[error("tables of kind siren: {0}")]
    Siren(#[from] stillpoint_siren::SirenError),
    /// The store has tables of another kind than memory, and the tool does not work on those.
    #[error("{} has {kind} tables{}, and {reason}", dir.display(), listed(names))]
    OtherKinds {
        /// The data directory.
        dir: PathBuf,
        /// The kind, `paged` or `siren`.
        kind: &'static str,
        /// Names of the tables. Empty if they are not known.
        names: Vec<String>,
        /// The reason and the cure.
        reason: String,
    },
    /// The opening was cancelled.
    #[error("the opening of the store was cancelled: nothing has changed, open it again")]
    Cancelled,
    /// Checkpoints were not merged, and stay as they were.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// There is no store in the directory.
    #[error("{} holds no store: give the data directory of a server or engine", .0.display())]
    NoStore(PathBuf),
    /// The directory has no checkpoint of that epoch.
    #[error(
        "{} offers no checkpoint {epoch}{}; it offers {known:?}", dir.display(),
        into.map_or_else(String::new, |into| format!(
            ": it was merged away into {into}, or was never published"
        ))
    )]
    NoSuchCheckpoint {
        /// The data directory.
        dir: PathBuf,
        /// The requested epoch.
        epoch: u64,
        /// The existing epochs.
        known: Vec<u64>,
        /// The oldest existing epoch whose checkpoint holds what was committed up to the requested
        /// epoch, if there is one.
        into: Option<u64>,
    },
    /// A merged checkpoint of a copy does not replace what this directory has.
    #[error(
        "{copy}: its merged checkpoint is not adopted by {dir}: {reason}; merge {dir} itself, or merge a \
         newer copy of it", copy = copy.display(), dir = dir.display()
    )]
    NotAdopted {
        /// The data directory.
        dir: PathBuf,
        /// The copy.
        copy: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The checkpoint of that epoch is no state of the store without the log.
    #[error(
        "{} has checkpoint {epoch} without a point of consistency: only a start that replays the log \
         makes a state of it; open the directory, or name another checkpoint", dir.display()
    )]
    NeedsLog {
        /// The data directory.
        dir: PathBuf,
        /// The requested epoch.
        epoch: u64,
    },
    /// The target directory exists and is not empty.
    #[error("{} is not empty: name a directory that does not exist", .0.display())]
    NotEmpty(PathBuf),
    /// The target directory of a load holds records.
    #[error(
        "{} holds {records} records: name a directory without any, or say that the load adds to them",
        dir.display()
    )]
    HoldsRecords {
        /// The data directory.
        dir: PathBuf,
        /// Number of records.
        records: u64,
    },
    /// The output of a dump could not be written.
    #[error("writing the dump: {0}")]
    Output(std::io::Error),
    /// A new MANIFEST was written, but its durability is in doubt.
    #[error(
        "{source}; the MANIFEST is in doubt and nothing more is acknowledged: end the process, check the disk, and restart to recover what was acknowledged"
    )]
    ManifestUncertain {
        /// The failed operation, which is not retried.
        #[source]
        source: DiskError,
    },
    /// Not every record is in memory yet, and the load has stopped.
    #[error(
        "the records of the checkpoints are not all loaded: {0}; keys that can be read are served, and the \
         logs hold every commit"
    )]
    NotLoaded(String),
    /// A setting cannot be used.
    #[error("setting {setting}: {reason}")]
    Config {
        /// Name of the setting.
        setting: &'static str,
        /// The reason.
        reason: String,
    },
    /// Recovery failed; nothing is served.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The journal failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A transaction did not commit.
    #[error(transparent)]
    Transaction(#[from] TxError),
    /// A checkpoint failed; the previous one is kept.
    #[error("checkpoint failed, the previous one is kept: {0}")]
    Checkpoint(#[from] CheckpointError),
    /// The system refused address space for a table.
    #[error(transparent)]
    Memory(#[from] stillpoint_store::RegionError),
    /// The system refused address space for another table. No table was made.
    #[error("no room for another table beside the {open} that are open: {source}")]
    TableSpace {
        /// Number of open tables.
        open: usize,
        /// The system's reason.
        #[source]
        source: stillpoint_store::RegionError,
    },
    /// A table could not be added to the store.
    #[error(transparent)]
    AddTable(#[from] stillpoint_store::AddTableError),
    /// A thread could not be started, or panicked.
    #[error(transparent)]
    Thread(#[from] stillpoint_io::ThreadError),
    /// As many sessions as [`Config::sessions`](crate::Config::sessions) are open.
    #[error("all {0} sessions are open: close one, or raise Config::sessions")]
    TooManySessions(usize),
    /// A name of a session cannot be used.
    #[error("session name {:?}: {reason}", name.chars().take(32).collect::<String>())]
    SessionName {
        /// The name.
        name: String,
        /// The reason and the cure.
        reason: &'static str,
    },
    /// The session has not run so many transactions.
    #[error(
        "the session's last serial is {last}, so nobody can wait for {serial}: ask for one that Session::serial has given"
    )]
    NoSuchSerial {
        /// The serial that was asked for.
        serial: u64,
        /// The serial of the session's last transaction.
        last: u64,
    },
    /// The call might wait for the transaction that it was made from.
    #[error("{what} may wait for transactions: call it when the one of this thread has ended")]
    InsideTransaction {
        /// The call.
        what: &'static str,
    },
    /// The checkpoint scheme has no snapshots: it has no point of consistency, or commits wait for the end
    /// of its capture.
    #[error(
        "checkpoint scheme {scheme} has no snapshots: open the store with one whose commits go on during \
         a capture, such as {}",
        crate::CHECKPOINT_SCHEME_DEFAULT
    )]
    NoSnapshots {
        /// Name of the scheme.
        scheme: String,
    },
    /// Another snapshot is open.
    #[error("another snapshot is open: read it to its end and drop it first")]
    SnapshotOpen,
    /// A snapshot has ended before its reader had all records.
    #[error("the snapshot has ended early, and what was read of it is no whole view: {0}")]
    SnapshotEnded(SnapshotEnd),
    /// There is no procedure of that name.
    #[error("there is no procedure {0:?}: give it to Engine::builder when the store is opened")]
    NoSuchProcedure(String),
    /// The arguments of a procedure do not have its types.
    #[error("the arguments of procedure {0:?} do not decode as its types")]
    Arguments(String),
    /// A table's name cannot be used.
    #[error("table name {name:?}: {reason}")]
    TableName {
        /// The name.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// The data directory is not this engine's any more: `LOCK` was replaced or removed.
    #[error("the store has failed and takes no more writes: {0}")]
    NotOwner(NotOwner),
    /// The engine of this session was closed or dropped.
    #[error("the engine was closed or dropped: open the store again and make a new session")]
    Ended,
    /// A flush failed earlier: nothing is acknowledged any more.
    #[error(
        "the store has failed and takes no more writes: {0}; end the process, check the disk, and restart to recover what was acknowledged"
    )]
    Failed(String),
}

/// Why a snapshot has ended before its reader had all records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotEnd {
    /// The reader was slower than the commits that overwrote what it had not read.
    #[error(
        "what commits have overwritten takes more than Config::snapshot_memory_bytes: read faster, or raise the limit"
    )]
    MemoryLimit,
    /// A checkpoint was due, and the snapshot had reached its greatest age.
    #[error(
        "a checkpoint was due, and the snapshot was open for {max_age:?}: read faster, or raise Config::snapshot_max_age"
    )]
    TooOld {
        /// The greatest age.
        max_age: std::time::Duration,
    },
    /// A checkpoint was due, and the log had reached its limit, or the disk had no room for more of it.
    #[error("a checkpoint was due, since the log had reached its limit: try again")]
    LogLimit,
    /// The store had little memory left for commits, and the snapshot held some of it: large values, or
    /// memory of deleted keys.
    #[error(
        "half of the store's memory that was free at its begin is used: read faster, or raise the memory limit"
    )]
    StoreMemory,
    /// A table was emptied.
    #[error("a table was emptied meanwhile: try again")]
    TablesEmptied,
    /// The engine was closed.
    #[error("the store was closed")]
    Closed,
    /// The capture has failed.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// Whether the disk lacks space. The same call may succeed once there is space.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Disk(error) | Self::Checkpoint(CheckpointError::Disk(error)) => {
                error.is_disk_full()
            }
            Self::Merge(MergeError::Write(CheckpointError::Disk(error))) => error.is_disk_full(),
            Self::Journal(error) => error.is_refusal(),
            Self::Transaction(TxError::Log(LogRefused::Refused(refused))) => {
                refused.downcast_ref().is_some_and(JournalError::is_refusal)
                    || refused.downcast_ref().is_some_and(DiskError::is_disk_full)
            }
            Self::Pages(error) => error.is_full(),
            _ => self.lacks_pages(),
        }
    }

    /// Whether paged tables have no room on the disk for further pages. A checkpoint may free some.
    pub(crate) fn lacks_pages(&self) -> bool {
        let pages = self.abandoned().and_then(stillpoint_paged::pages_error);
        pages.is_some_and(PagesError::is_full)
    }

    /// Whether the data on disk are damaged or of another version, as opposed to unreadable.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Manifest { .. } | Self::ManifestMissing { .. } => true,
            Self::Pages(error) => error.is_damage(),
            Self::Siren(error) => error.is_damage(),
            Self::Recovery(error) if error.is_damage() => true,
            _ => self.abandoned().is_some_and(|reason| {
                stillpoint_paged::is_damage(reason) || stillpoint_siren::is_damage(reason)
            }),
        }
    }

    /// The damaged, stale or misplaced page of a paged table that a transaction has met: file, slot, page
    /// and table. Other transactions go on. Also the defect of the files of pages that an opening has
    /// met.
    ///
    /// ```
    /// # fn show(error: &stillpoint::Error) {
    /// use stillpoint::PagesError;
    /// if let Some(PagesError::Page { file, slot, page, table, .. }) = error.damaged_pages() {
    ///     println!("{}: slot {slot} has not page {page} of table {table:?}", file.display());
    /// }
    /// # }
    /// ```
    pub fn damaged_pages(&self) -> Option<&PagesError> {
        let found = match self {
            Self::Pages(error) => Some(error),
            _ => self.abandoned().and_then(stillpoint_paged::pages_error),
        };
        found.filter(|error| error.is_damage())
    }

    /// Why a transaction, or the replay of one, was given up.
    fn abandoned(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        match self {
            Self::Transaction(TxError::Abandoned(reason))
            | Self::Recovery(RecoveryError::Apply { source: TxError::Abandoned(reason), .. }) => {
                Some(&**reason)
            }
            _ => None,
        }
    }
}

/// Names in brackets, if there are any.
fn listed(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
}

/// The cure for a MANIFEST whose error names none.
fn cure_of(source: &ManifestError) -> &'static str {
    if source.is_damage() {
        "; put a copy back, or make one from the other files with `stillpoint repair --accept-loss`"
    } else {
        "; a kind of table is known once the settings give it memory"
    }
}
