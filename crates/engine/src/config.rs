use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use stillpoint_format::manifest::Codec;
use stillpoint_io::{Clock, Disk, RealClock, RealDisk, RealRng, Rng};

use stillpoint_store::AddressSpace;

use crate::error::Error;
use crate::paged::STORE_BYTES_MIN;

pub use stillpoint_checkpoint::QuiesceFor;
pub use stillpoint_journal::Durability;

/// Settings of a store. Every field has a sensible default.
///
/// ```
/// use std::time::Duration;
/// let mut config = stillpoint::Config::new("data");
/// config.checkpoint_every = Some(Duration::from_secs(30));
/// assert_eq!(config.checkpoint, "calc:partial");
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// The data directory. The opening makes it if it does not exist.
    pub data: PathBuf,
    /// Time for which [`open`](crate::Engine::open) waits for a data directory that another process
    /// has open, before it refuses. A killed process takes a moment to end.
    pub lock_wait: Duration,
    /// Name of the checkpoint scheme, as [`checkpoint_schemes`](crate::checkpoint_schemes) lists
    /// them. With `siren` or `siren-semi-fuzzy`, tables without a named kind are
    /// [SIREN tables](crate::Kind::Siren).
    pub checkpoint: String,
    /// Time from one checkpoint to the next, if anything was committed since. `None` means never.
    pub checkpoint_every: Option<Duration>,
    /// A checkpoint begins once recovery would read this number of bytes of the log. With tables of other
    /// kinds than memory it begins at half of them, and the log has never more than 1.05 times as many.
    /// Whoever writes then waits, and gets [`TxError::LogFull`](crate::TxError::LogFull) after ten seconds
    /// or [`lock_timeout`](Self::lock_timeout). The error comes after a fifth of a second if no thread frees the log: with the
    /// scheme `none`, or without background threads.
    pub log_limit_bytes: u64,
    /// Most bytes per second that a checkpoint writes. `None` means as fast as the disk.
    pub checkpoint_pace: Option<u64>,
    /// Compression of checkpoints.
    pub codec: Codec,
    /// Threads that capture a checkpoint.
    pub checkpoint_threads: usize,
    /// What a physical point of consistency waits for. With [`QuiesceFor::Transactions`] the schemes
    /// stop as they were published. A transaction that stays open then stops the store until it ends or
    /// the checkpoint is cancelled. The last checkpoint of a store never waits so.
    pub quiesce_for: QuiesceFor,
    /// Number of checkpoints that `stillpoint restore` can use: the newest ones. The checkpoints
    /// that they go on from are kept, too. The log is kept from the newest checkpoint on.
    pub keep_checkpoints: usize,
    /// A checkpoint holds only the changes if no more than this percentage of the records has
    /// changed. For schemes that take such checkpoints.
    pub changed_percent_max: u64,
    /// Number of checkpoints of changes after which they are merged, unless a point that is kept
    /// lies between them. At least 2; `None` for never.
    pub merge_after: Option<usize>,
    /// Most bytes of records that wait for the reader of a [snapshot](crate::Engine::snapshot). Beyond
    /// this the snapshot ends. Each session takes about 100 KB of it. Large values do not count: they
    /// stay in the memory of the store.
    pub snapshot_memory_bytes: usize,
    /// Time for which a checkpoint that is due waits for an open [snapshot](crate::Engine::snapshot),
    /// from the snapshot's begin on. Then the snapshot ends.
    pub snapshot_max_age: Duration,
    /// Name of the journal, as [`journal_schemes`](crate::journal_schemes) lists them.
    pub journal: String,
    /// Durability of commits. A journal that keeps nothing ignores this setting.
    pub durability: Durability,
    /// Whether a record of the log names the call of the procedure or command that wrote it, with
    /// its arguments and inputs. [`offline::calls`](crate::offline::calls) lists the calls. The log
    /// is longer by as much. The setting changes nothing for a journal that keeps nothing.
    pub log_calls: bool,
    /// Whether each call of a procedure runs twice before it commits, to compare the writes. A procedure
    /// whose writes differ shows itself by
    /// [`TxError::NotDeterministic`](crate::TxError::NotDeterministic). For tests of procedures. The
    /// setting changes nothing for a journal that does not log calls alone.
    pub run_calls_twice: bool,
    /// Greatest age of an unflushed commit in relaxed durability.
    pub flush_interval: Duration,
    /// Bytes that records, large values and indexes may hold. Beyond this limit writes get a typed
    /// error.
    pub max_memory_bytes: usize,
    /// Longest wait for a lock of a key in a table of another kind than the memory store. Then the
    /// transaction ends with [`TxError::LockTimeout`](crate::TxError::LockTimeout). A flush of such tables
    /// waits as long. Waits for locks of records in memory have no limit. `None` for no limit.
    pub lock_timeout: Option<Duration>,
    /// Greatest age of a [transaction that stays open](crate::Session::begin). Then each use of it ends with
    /// [`TxError::TooOld`](crate::TxError::TooOld). `None` for no limit.
    pub transaction_age_max: Option<Duration>,
    /// Most bytes of values that a transaction which stays open writes to tables of other kinds than the
    /// memory store, and remembers to undo them. `None` for no limit.
    pub transaction_bytes_max: Option<usize>,
    /// Bytes of the pool of stable versions, for checkpoint schemes that have one. The pool counts against
    /// [`max_memory_bytes`](Self::max_memory_bytes) from the start. `None` for a fifth of that.
    pub stable_pool_bytes: Option<usize>,
    /// Bytes of the pool of [paged tables](crate::Kind::Paged), at least 16 pages. The pool counts against
    /// [`max_memory_bytes`](Self::max_memory_bytes) from the start. `None` for a store without such tables.
    pub pool_bytes: Option<usize>,
    /// Bytes of memory of the tuples in [SIREN tables](crate::Kind::Siren). They count against
    /// [`max_memory_bytes`](Self::max_memory_bytes) from the start. `None` for a store without such tables.
    /// If [`checkpoint`](Self::checkpoint) names SIREN, `None` means seven eighths of that.
    pub siren_bytes: Option<usize>,
    /// Bytes of a page of paged tables: a power of two from 4 KiB to 64 KiB. The first paged table of a
    /// store fixes the size, and a later opening with another one is refused. `None` for the size that the
    /// store has, and for 16 KiB in a store without such tables. New files of SIREN tables have pages of as
    /// many bytes.
    pub page_bytes: Option<usize>,
    /// Bytes by which the file of pages grows.
    pub page_growth_bytes: u64,
    /// Most sessions at a time. Each has a worker of the store.
    pub sessions: usize,
    /// Number of logs that the sessions share, 1 to 255. The best number is that of the committing
    /// threads.
    pub logs: usize,
    /// Bytes of a segment file of the log: a multiple of 4096, at least 16 KiB. Segments are
    /// shorter on a small disk, so that prepared segments fill at most a sixteenth of it.
    pub log_segment_bytes: u64,
    /// Threads that recovery uses.
    pub recovery_threads: usize,
    /// Whether a start serves before every record is loaded. The logs are replayed first. Then a
    /// transaction that asks for a key that is not in memory reads it from the checkpoints. The rest is
    /// loaded in the background. Counts, scans, checkpoints and snapshots wait for it.
    ///
    /// Some stores are loaded first in any case, and the log says why. They have tables of other kinds, or
    /// ordered tables. Or their journal keeps nothing, calls, or before-images. Or their scheme keeps
    /// several copies of a value. Or the newest checkpoint has no point of consistency, or is of an earlier release.
    pub serve_while_loading: bool,
    /// Disk, clock and source of seeds: the real ones, or a test's.
    pub environment: Environment,
}

/// When checkpoints are taken and merged. May be changed while the store is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointPolicy {
    /// Time from one checkpoint to the next, if anything was committed since. `None` means never.
    pub every: Option<Duration>,
    /// A checkpoint begins once recovery would read this number of bytes of the log.
    pub log_limit_bytes: u64,
    /// Most bytes per second that a checkpoint or a merge writes. `None` means as fast as the disk.
    pub pace: Option<u64>,
    /// Number of checkpoints of changes after which they are merged. At least 2; `None` for never.
    pub merge_after: Option<usize>,
}

impl CheckpointPolicy {
    /// Checks the policy.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(links @ ..2) = self.merge_after {
            let reason = format!("a merge needs at least 2 checkpoints of changes, not {links}");
            return Err(Error::Config { setting: "merge_after", reason });
        }
        Ok(())
    }
}

/// The environment of an engine.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The disk. `None` means the directory [`Config::data`].
    pub disk: Option<Arc<dyn Disk>>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Source of seeds.
    pub rng: Arc<dyn Rng>,
    /// Address space for records and indexes.
    pub space: Arc<AddressSpace>,
    /// Whether the engine has background threads. Without background threads, for a simulation, the
    /// caller's thread runs a requested checkpoint or a needed flush.
    pub background: bool,
}

impl Config {
    /// The defaults, for a data directory: a checkpoint of what has changed every 60 s or 4 GiB of
    /// log, redo, relaxed.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        let cores = stillpoint_io::cpu_count();
        Self {
            data: data.into(),
            lock_wait: Duration::ZERO,
            checkpoint: crate::CHECKPOINT_SCHEME_DEFAULT.to_owned(),
            checkpoint_every: Some(Duration::from_secs(60)),
            log_limit_bytes: 4 << 30,
            checkpoint_pace: None,
            codec: Codec::None,
            checkpoint_threads: (cores / 4).max(1),
            quiesce_for: QuiesceFor::Commits,
            keep_checkpoints: 1,
            changed_percent_max: 50,
            merge_after: Some(8),
            snapshot_memory_bytes: 256 << 20,
            snapshot_max_age: Duration::from_secs(60),
            journal: "redo".to_owned(),
            durability: Durability::Relaxed,
            log_calls: false,
            run_calls_twice: false,
            flush_interval: Duration::from_secs(1),
            max_memory_bytes: (stillpoint_io::total_memory_bytes() as usize / 4 * 3).max(64 << 20),
            lock_timeout: None,
            transaction_age_max: None,
            transaction_bytes_max: None,
            stable_pool_bytes: None,
            pool_bytes: None,
            siren_bytes: None,
            page_bytes: None,
            page_growth_bytes: stillpoint_paged::GROWTH_BYTES,
            sessions: 128,
            logs: cores.clamp(1, 64),
            log_segment_bytes: 64 << 20,
            recovery_threads: cores,
            serve_while_loading: false,
            environment: Environment {
                disk: None,
                clock: Arc::new(RealClock),
                rng: Arc::new(RealRng),
                space: Arc::default(),
                background: true,
            },
        }
    }

    /// When checkpoints are taken and merged, as these settings say.
    pub(crate) fn checkpoint_policy(&self) -> CheckpointPolicy {
        CheckpointPolicy {
            every: self.checkpoint_every,
            log_limit_bytes: self.log_limit_bytes,
            pace: self.checkpoint_pace,
            merge_after: self.merge_after,
        }
    }

    pub(crate) fn disk(&self) -> Result<Arc<dyn Disk>, Error> {
        match &self.environment.disk {
            Some(disk) => Ok(disk.clone()),
            None => Ok(Arc::new(RealDisk::new(&self.data)?)),
        }
    }

    /// The row of the checkpoint scheme of records in memory. A form of SIREN's checkpoint leaves these to
    /// the default scheme.
    pub(crate) fn checkpoint_row(&self) -> Result<&'static stillpoint_checkpoint::Row, Error> {
        crate::checkpoint_scheme_named(&self.checkpoint)
            .map_err(|reason| Error::Config { setting: "checkpoint", reason })?;
        let name = self.siren_row().map_or(&*self.checkpoint, |_| crate::CHECKPOINT_SCHEME_DEFAULT);
        let row = stillpoint_checkpoint::registry::REGISTRY.find(name);
        Ok(row.expect("a scheme of that name, or the default one"))
    }

    /// Checks that the settings allow tables of other kinds than the memory store.
    pub(crate) fn check_kinds(&self, kinds: &[&str]) -> Result<(), Error> {
        let Some(kind) = kinds.first() else { return Ok(()) };
        let refuse = |setting, reason: String| Err(Error::Config { setting, reason });
        let journal = crate::journal_row(&self.journal)?;
        if !journal.capabilities.records_commits {
            let reason =
                format!("tables of kind {kind} need one that keeps records: choose journal redo");
            return refuse("journal", reason);
        }
        if journal.capabilities.logs_before_images {
            let name = journal.name;
            let reason = format!(
                "tables of kind {kind} log their own undo, and journal {name} has before-images of \
                 records in memory alone: choose journal redo"
            );
            return refuse("journal", reason);
        }
        Ok(())
    }

    /// Checks the settings and their combinations.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |setting, reason: String| Err(Error::Config { setting, reason });
        let journal = crate::journal_row(&self.journal)?;
        let scheme = self.checkpoint_row()?;
        if scheme.capabilities.needs_journal() && !journal.capabilities.records_commits {
            let (name, journal) = (scheme.name, journal.name);
            let reason = format!(
                "{name} needs a log, since a replay completes its checkpoints; journal {journal} keeps \
                 no commits"
            );
            return refuse("checkpoint", reason);
        }
        if scheme.capabilities.needs_journal() && journal.capabilities.logs_calls_alone {
            let (name, journal) = (scheme.name, journal.name);
            let reason = format!(
                "{name} has no point of consistency, and journal {journal} makes calls again on top of \
                 one: choose another scheme, or journal redo"
            );
            return refuse("checkpoint", reason);
        }
        if scheme.capabilities.needs_before_images() && !journal.capabilities.logs_before_images {
            let (name, journal) = (scheme.name, journal.name);
            let reason = format!(
                "{name} needs before-images in the log, with which a start undoes what a checkpoint \
                 holds and a crash has taken away; journal {journal} has none: choose journal \
                 undo-redo, or scheme fuzzy"
            );
            return refuse("checkpoint", reason);
        }
        if !(1..=255).contains(&self.logs) {
            return refuse("logs", format!("{} is not between 1 and 255", self.logs));
        }
        if self.sessions == 0 || self.sessions > 4096 {
            return refuse("sessions", format!("{} is not between 1 and 4096", self.sessions));
        }
        if self.keep_checkpoints == 0 {
            return refuse("keep_checkpoints", "at least one must be kept".to_owned());
        }
        self.checkpoint_policy().check()?;
        if self.max_memory_bytes < STORE_BYTES_MIN {
            return refuse("max_memory", "less than 32 MiB does not hold a store".to_owned());
        }
        if let Some(bytes) =
            self.stable_pool_bytes.filter(|&bytes| bytes > self.max_memory_bytes / 2)
        {
            let reason = format!("{bytes} bytes are more than half of max_memory, which has them");
            return refuse("stable_pool", reason);
        }
        self.check_pool(None)?;
        self.check_siren(journal.capabilities.logs_calls_alone)?;
        if self.stable_pool_bytes.is_some_and(|bytes| bytes < 1 << 20) {
            return refuse("stable_pool", "less than 1 MiB does not hold old values".to_owned());
        }
        if journal.capabilities.records_commits && !journal.durabilities.contains(&self.durability)
        {
            let names: Vec<_> = journal.durabilities.iter().map(|d| d.as_str()).collect();
            return refuse("durability", format!("{} offers {}", journal.name, names.join(", ")));
        }
        Ok(())
    }
}
