use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use stillpoint_format::manifest::Codec;
use stillpoint_io::{Clock, Disk, RealClock, RealDisk, RealRng, Rng};

use stillpoint_store::AddressSpace;

use crate::error::Error;

pub use stillpoint_journal::Durability;

/// How a store is opened. Every field has a sensible value; change what matters.
///
/// ```
/// use std::time::Duration;
/// let mut config = stillpoint::Config::new("data");
/// config.checkpoint_every = Some(Duration::from_secs(30));
/// assert_eq!(config.checkpoint, "calc");
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// The data directory; opening makes the directory if it does not exist.
    pub data: PathBuf,
    /// How long [`open`](crate::Engine::open) waits for a data directory that another process has
    /// open, before it refuses. A process that was killed takes a moment to be gone.
    pub lock_wait: Duration,
    /// Name of the checkpoint scheme, as [`checkpoint_schemes`](crate::checkpoint_schemes) lists
    /// them.
    pub checkpoint: String,
    /// A checkpoint begins this long after the last one, if anything was committed since; `None`
    /// for never.
    pub checkpoint_every: Option<Duration>,
    /// A checkpoint begins when recovery would have to read this many bytes of log.
    pub log_limit_bytes: u64,
    /// Most bytes per second that a checkpoint writes; `None` for as fast as the disk takes them.
    pub checkpoint_pace: Option<u64>,
    /// Compression of checkpoints.
    pub codec: Codec,
    /// Threads that capture a checkpoint.
    pub checkpoint_threads: usize,
    /// Checkpoints that are kept; the older ones for `stillpoint restore`. The log is kept back to
    /// the newest.
    pub keep_checkpoints: usize,
    /// Name of the journal, as [`journal_schemes`](crate::journal_schemes) lists them.
    pub journal: String,
    /// When a commit is safe from a crash. Ignored by a journal that keeps nothing.
    pub durability: Durability,
    /// Greatest age of an unflushed commit in relaxed durability.
    pub flush_interval: Duration,
    /// Bytes that records, large values and indexes may hold; beyond, writes get a typed error.
    pub max_memory_bytes: usize,
    /// Sessions at a time; each has a worker of the store.
    pub sessions: usize,
    /// Logs that the sessions share, 1 to 255. As many as threads that commit is best.
    pub logs: usize,
    /// Bytes of a segment file of the log; a multiple of 4096, at least 16 KiB. Segments are shorter
    /// on a disk that those prepared ahead would fill by more than a sixteenth.
    pub log_segment_bytes: u64,
    /// Threads that recovery uses.
    pub recovery_threads: usize,
    /// Where files live, what time it is, where seeds come from: the real ones, or a test's.
    pub environment: Environment,
}

/// The world outside.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The disk; `None` for the directory [`Config::data`].
    pub disk: Option<Arc<dyn Disk>>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Seeds.
    pub rng: Arc<dyn Rng>,
    /// Address space for records and indexes.
    pub space: Arc<AddressSpace>,
    /// False for a simulation: no thread of the engine's own; checkpoints run where they are
    /// asked for, flushes where they are needed.
    pub background: bool,
}

impl Config {
    /// The defaults, for a data directory: calc every 60 s or 4 GiB of log, redo, relaxed.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        let cores = stillpoint_io::cpu_count();
        Self {
            data: data.into(),
            lock_wait: Duration::ZERO,
            checkpoint: "calc".to_owned(),
            checkpoint_every: Some(Duration::from_secs(60)),
            log_limit_bytes: 4 << 30,
            checkpoint_pace: None,
            codec: Codec::None,
            checkpoint_threads: (cores / 4).max(1),
            keep_checkpoints: 1,
            journal: "redo".to_owned(),
            durability: Durability::Relaxed,
            flush_interval: Duration::from_secs(1),
            max_memory_bytes: (stillpoint_io::total_memory_bytes() as usize / 4 * 3).max(64 << 20),
            sessions: 128,
            logs: cores.clamp(1, 64),
            log_segment_bytes: 64 << 20,
            recovery_threads: cores,
            environment: Environment {
                disk: None,
                clock: Arc::new(RealClock),
                rng: Arc::new(RealRng),
                space: Arc::default(),
                background: true,
            },
        }
    }

    pub(crate) fn disk(&self) -> Result<Arc<dyn Disk>, Error> {
        match &self.environment.disk {
            Some(disk) => Ok(disk.clone()),
            None => Ok(Arc::new(RealDisk::new(&self.data)?)),
        }
    }

    /// Says whether the settings go together with tables of other kinds than the memory store.
    pub(crate) fn check_kinds(&self, kinds: &[&str]) -> Result<(), Error> {
        let Some(kind) = kinds.first() else { return Ok(()) };
        let refuse = |setting, reason: String| Err(Error::Config { setting, reason });
        if !crate::journal_row(&self.journal)?.capabilities.records_commits {
            return refuse("journal", format!("tables of kind {kind} need one that keeps records"));
        }
        if crate::checkpoint_row(&self.checkpoint)?.capabilities.takes_checkpoints() {
            let reason =
                format!("with tables of kind {kind}, which no checkpoint holds, only none");
            return refuse("checkpoint", reason);
        }
        Ok(())
    }

    /// The one place that says which settings go together.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |setting, reason: String| Err(Error::Config { setting, reason });
        let journal = crate::journal_row(&self.journal)?;
        crate::checkpoint_row(&self.checkpoint)?;
        if !(1..=255).contains(&self.logs) {
            return refuse("logs", format!("{} is not between 1 and 255", self.logs));
        }
        if self.sessions == 0 || self.sessions > 4096 {
            return refuse("sessions", format!("{} is not between 1 and 4096", self.sessions));
        }
        if self.keep_checkpoints == 0 {
            return refuse("keep_checkpoints", "at least one must be kept".to_owned());
        }
        if self.max_memory_bytes < 32 << 20 {
            return refuse("max_memory", "less than 32 MiB does not hold a store".to_owned());
        }
        if journal.capabilities.records_commits && !journal.durabilities.contains(&self.durability)
        {
            let names: Vec<_> = journal.durabilities.iter().map(|d| d.as_str()).collect();
            return refuse("durability", format!("{} offers {}", journal.name, names.join(", ")));
        }
        Ok(())
    }
}
