//! Statistics of the engine.

use stillpoint_journal::{Holder, JournalStats};
use stillpoint_paged::PoolStats;
use stillpoint_recovery::RecoverySummary;
use stillpoint_siren::SirenStats;
use stillpoint_store::{SchemeMemory, StablePool};

use crate::checkpoints::CheckpointStatus;
use crate::shared::Shared;

/// Statistics of an open store.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Bytes that records, large values and indexes hold, and those of the pool.
    pub memory_bytes: usize,
    /// The limit of the memory, in bytes.
    pub max_memory_bytes: usize,
    /// Commits that wrote something, since the store was opened.
    pub commits: u64,
    /// Checkpoints.
    pub checkpoints: CheckpointStatus,
    /// The journal.
    pub journal: JournalStats,
    /// Holders that keep segments of the logs, and the bytes that each needs.
    pub log_holders: Vec<Holder>,
    /// Counts of the recovery when the store was opened.
    pub recovered: RecoverySummary,
    /// The present epoch of commits.
    pub epoch: u64,
    /// Number of this opening of the store.
    pub incarnation: u32,
    /// Name of the checkpoint scheme.
    pub checkpoint_scheme: String,
    /// Copies of each value in memory that the checkpoint scheme keeps.
    pub checkpoint_copies: usize,
    /// Memory that the checkpoint scheme takes, beside one copy of each value.
    pub checkpoint_memory: SchemeMemory,
    /// Bytes of memory that a checkpoint holds in a child process.
    pub checkpoint_child_bytes: usize,
    /// Bytes that the last such checkpoint held there at the end of its capture.
    pub checkpoint_last_child_bytes: usize,
    /// The pool of stable versions, if the checkpoint scheme has one.
    pub stable_pool: StablePool,
    /// Name of the journal.
    pub journal_scheme: String,
    /// The pool of paged tables, if there is one. [`log_holders`](Self::log_holders) says how much of the
    /// log these tables keep.
    pub pool: Option<PoolStats>,
    /// Numbers of SIREN tables. `None` if the settings do not have them.
    pub siren: Option<SirenStats>,
}

/// Room for records below the memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRoom {
    /// The limit, in bytes.
    pub limit_bytes: usize,
    /// Bytes below the limit that no record uses. Some may serve only records of some sizes.
    pub spare_bytes: usize,
    /// Bytes of deleted keys that are free once their deletions are durable, or the checkpoint under way
    /// has ended.
    pub returning_bytes: usize,
    /// Bytes of deleted keys that are free only when a later checkpoint was published.
    pub waiting_bytes: usize,
    /// Bytes that a checkpoint holds in a child process at present. They count against the limit.
    pub child_bytes: usize,
}

pub(crate) fn gather(shared: &Shared) -> Stats {
    let commits = shared.commit_count();
    let siren = shared.of_engine.siren.as_ref().map(|siren| siren.stats());
    let pool_bytes = shared.config.pool_bytes.unwrap_or(0);
    let siren_bytes = siren.map_or(0, |siren| siren.held_bytes);
    let others_max_bytes = pool_bytes + siren.map_or(0, |siren| siren.memory_bytes);
    Stats {
        memory_bytes: shared.store.held_bytes() + pool_bytes + siren_bytes,
        max_memory_bytes: shared.store.max_memory_bytes().saturating_add(others_max_bytes),
        commits,
        checkpoints: shared
            .checkpoints
            .status(commits, shared.config.environment.clock.monotonic_ns()),
        journal: shared.journal.stats(),
        log_holders: shared.journal.holders(),
        recovered: shared.load.recovered(&shared.recovered),
        epoch: shared.store.driver().now().epoch(),
        incarnation: shared.incarnation,
        checkpoint_scheme: match shared.config.siren_row() {
            Some(row) => row.name().to_owned(),
            None => shared.scheme_name.to_owned(),
        },
        checkpoint_copies: shared.store.copies(),
        checkpoint_memory: shared.store.scheme_memory(),
        checkpoint_child_bytes: shared.store.child_bytes().0,
        checkpoint_last_child_bytes: shared.store.child_bytes().1,
        stable_pool: shared.store.stable_pool_bytes(),
        journal_scheme: shared.config.journal.clone(),
        pool: shared.of_engine.paged.as_ref().map(|paged| paged.stats()),
        siren,
    }
}
