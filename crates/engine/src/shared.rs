//! The state that engine, sessions, checkpoints and background threads share.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_format::Stamp;
use stillpoint_format::manifest::Manifest;
use stillpoint_io::{Disk, DiskError, OwnedDisk, ThreadError};
use stillpoint_journal::{Journal, JournalError};
use stillpoint_recovery::RecoverySummary;
use stillpoint_store::{Checkpointer, Store};
use stillpoint_sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::LogFreed;

use crate::catalog::Catalog;
use crate::checkpoints::Checkpoints;
use crate::config::Config;
use crate::error::Error;
use crate::guards::Seats;
use crate::kinds::{Kinds, OfEngine, OpenTransactions, WaitLimits};
use crate::life::Life;
use crate::loading::BackgroundLoad;
use crate::log::CommitCounters;
use crate::procedure::Procedures;
use crate::undone::Overwritten;

/// State shared by engine, sessions and background threads.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) disk: Arc<dyn Disk>,
    /// The same disk, with the lock of the data directory.
    pub(crate) owned: Arc<OwnedDisk>,
    pub(crate) store: Arc<Store>,
    /// The part that takes checkpoints, if the scheme takes any.
    pub(crate) scheme: Option<Arc<dyn Checkpointer>>,
    /// Name of the scheme in the MANIFEST.
    pub(crate) scheme_name: &'static str,
    /// Whether the memory of deleted keys is free only when a published checkpoint has the deletion.
    pub(crate) keeps_deleted_keys: bool,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) records_commits: bool,
    /// Whether the journal may get the call of a procedure without its writes.
    pub(crate) logs_calls_alone: bool,
    /// Which logs have overwritten commits of which. Present if records have before-images.
    pub(crate) overwritten: Option<Arc<Overwritten>>,
    /// Whether the logs hold a call, or have held one since the opening.
    pub(crate) holds_calls: AtomicBool,
    pub(crate) acknowledges_closed: bool,
    pub(crate) catalog: Catalog,
    pub(crate) incarnation: u32,
    pub(crate) floor: u64,
    pub(crate) procedures: Procedures,
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) of_engine: OfEngine,
    pub(crate) open: Arc<OpenTransactions>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) commits: Mutex<CommitCounters>,
    pub(crate) recovered: RecoverySummary,
    pub(crate) load: BackgroundLoad,
    pub(crate) life: Life,
    pub(crate) seats: Seats,
    pub(crate) stopping: AtomicBool,
    pub(crate) next_log: AtomicUsize,
}

impl Shared {
    /// Lets no further checkpoint begin but a last one, and the one under way end soon.
    pub(crate) fn stop_checkpoints(&self) {
        self.checkpoints.stop();
        self.kinds.kinds.iter().for_each(|kind| kind.hurry());
    }

    /// How long transactions wait for locks of tables of other kinds.
    pub(crate) fn wait_limits(&self) -> WaitLimits {
        let clock = self.config.environment.clock.clone();
        WaitLimits { clock, timeout: self.config.lock_timeout, leaves_held: false }
    }

    #[inline]
    pub(crate) fn admit(&self, log: u8) -> Result<(), Error> {
        self.life.check()?;
        if self.records_commits {
            return self.journal.admit(log).map_err(|error| self.note_failure(error));
        }
        Ok(())
    }

    /// Makes the journal keep to the limit of the log. Tables in memory alone have no such limit: their log grows
    /// until the checkpoint under way has ended. So has no store that is served while it is loaded, since it
    /// has no tables of other kinds.
    pub(crate) fn heed_log_limit(&self) {
        let limit = self.checkpoints.policy().log_limit_bytes;
        let freed = match () {
            () if self.scheme.is_none() => LogFreed::Never,
            () if !self.config.environment.background => LogFreed::ByCaller,
            () => LogFreed::InTime,
        };
        self.open.set_limit(limit, freed);
        // Relaxed: the thread of checkpoints takes the limit back at its end.
        let is_kept = self.kinds.have_tables() && !self.stopping.load(Relaxed);
        self.journal.set_limit(if is_kept { limit } else { u64::MAX });
    }

    /// Heeds the limit of the log, and ends the transactions that keep too much of it.
    pub(crate) fn watch_log(&self) {
        self.heed_log_limit();
        if self.kinds.have_tables() {
            self.open.end_oldest_in_time();
        }
    }

    /// Changes the MANIFEST durably. If the MANIFEST on disk is in doubt afterwards, the store has
    /// failed.
    pub(crate) fn publish<R>(&self, change: impl FnOnce(&mut Manifest) -> R) -> Result<R, Error> {
        self.confirm_ownership()?;
        self.catalog.publish(change).inspect_err(|error| {
            if let Error::ManifestUncertain { source } = error {
                self.fail(error.to_string());
                mutant!(CommitsInDoubt => return);
                // Open transactions must not commit either: half of their writes may be in tables
                // that the MANIFEST has emptied.
                let reason = std::io::Error::new(source.source.kind(), source.source.to_string());
                let source = DiskError::new(source.op.clone(), source.path.clone(), reason);
                self.journal.refuse(Arc::new(source));
            }
        })
    }

    /// Remembers a failure after which nothing may be acknowledged.
    pub(crate) fn note_failure(&self, error: JournalError) -> Error {
        if error.is_fatal() {
            self.fail(error.to_string());
        }
        error.into()
    }

    pub(crate) fn make_durable(&self, stamps: &[Stamp]) -> Result<(), Error> {
        let closed = self.journal.make_closed(stamps);
        closed.map_err(|error| self.note_failure(error))
    }

    pub(crate) fn fail(&self, reason: String) {
        self.life.fail(reason);
    }

    /// Fails the store. Open transactions do not commit either: the log takes nothing more.
    pub(crate) fn fail_for_good(&self, reason: String) {
        self.fail(reason.clone());
        let path = self.disk.describe(Path::new(""));
        let source = DiskError::new("work in", path, std::io::Error::other(reason));
        self.journal.refuse(Arc::new(source));
    }

    /// Fails the store after a panic that may have left a publication or a flush half done.
    pub(crate) fn fail_by_panic(&self, panic: ThreadError) -> Error {
        self.fail_for_good(panic.to_string());
        panic.into()
    }

    /// Reserves the space of the next checkpoint, so that the log does not use it. Returns the
    /// space. The log's own next segments are part of the free space that the checkpoint leaves.
    pub(crate) fn reserve_space(&self) -> u64 {
        if self.scheme.is_none() {
            return 0;
        }
        let of_kinds: u64 = self.kinds.kinds.iter().map(|kind| kind.checkpoint_bytes()).sum();
        let bytes = self.checkpoints.needed_bytes(self) + of_kinds + self.journal.headroom_bytes();
        self.journal.set_reserve(bytes);
        bytes
    }

    /// Free bytes of the disk, if the disk can tell.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.disk.space().ok().flatten().map(|space| space.free_bytes)
    }

    pub(crate) fn health(&self) -> Result<(), Error> {
        self.life.check()
    }

    /// Fails the store if the data directory is not ours any more. From then on every change of the
    /// disk is refused, including flushes of the journal.
    pub(crate) fn confirm_ownership(&self) -> Result<(), Error> {
        if let Some(reason) = self.owned.confirm()? {
            self.life.lose(reason);
        }
        self.life.check()
    }

    pub(crate) fn commit_count(&self) -> u64 {
        self.commits.lock().sum()
    }
}
