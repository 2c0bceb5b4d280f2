//! The replay of a start that serves at once: what the logs have written waits beside the store, and
//! enters it with the load.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_format::hash::KeyHasher;
use stillpoint_format::log::WriteOp;
use stillpoint_format::manifest::Manifest;
use stillpoint_io::{Clock, Disk, go_behind, in_parallel, spawn};
use stillpoint_journal::{KeptWrite, ReceiveWrites, ReplayOperation, scan_receiving};
use stillpoint_store::{Loader, Store, TableId, WaitingWrites};
use stillpoint_sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::error::RecoveryError;
use crate::plan::{Plan, plan_with};
use crate::progress::{Progress, Stage};
use crate::run::{RecoverySummary, unknown_kind};

/// Bytes of memory that a record takes beside its entry in a block, about: its cell's header and its
/// entry in the index.
pub(crate) const RECORD_BYTES: u64 = 32;

/// The writes of the logs, gathered while the logs were scanned.
#[derive(Debug)]
pub(crate) struct Gathered {
    gatherers: Vec<Gatherer>,
    commits: u64,
}

/// One gathering thread.
#[derive(Debug)]
pub(crate) struct Gatherer {
    waiting: WaitingWrites,
    hasher: KeyHasher,
    /// The generation of each table, by its number.
    generations: Arc<[Option<u32>]>,
    writes: u64,
    stale: u64,
    /// Bytes of memory for the writes, and for the records that they may become.
    bytes: usize,
    /// The part of these bytes that `left` knows.
    told: usize,
    /// Bytes of memory that are left for the writes of all threads.
    left: Arc<AtomicUsize>,
    is_full: bool,
}

impl Gatherer {
    /// Tells the other threads what this one takes.
    fn tell(&mut self) {
        let more = self.bytes + self.waiting.bytes() - self.told;
        self.told += more;
        // Relaxed: a count.
        let fits = |left: usize| left.checked_sub(more);
        self.is_full |= self.left.fetch_update(Relaxed, Relaxed, fits).is_err();
    }
}

impl ReceiveWrites for Gatherer {
    type Error = RecoveryError;

    #[inline]
    fn write(&mut self, kept: &KeptWrite<'_>) -> Result<(), RecoveryError> {
        let (table, generation) = (kept.write.table, kept.write.generation);
        let now = self.generations.get(usize::from(table)).copied().flatten();
        match now.map(|now| generation.cmp(&now)) {
            Some(Ordering::Equal) => self.writes += 1,
            Some(Ordering::Less) => {
                self.stale += 1;
                return Ok(());
            }
            Some(Ordering::Greater) | None => {
                let (log, gsn) = (kept.log, kept.gsn);
                return Err(RecoveryError::NewerTable { log, gsn, table, generation });
            }
        }
        if self.is_full {
            return Ok(());
        }
        let hash = self.hasher.hash(table, kept.write.key);
        let held = self.waiting.bytes();
        self.waiting.push(hash, kept.gsn, (TableId(table), generation), kept.encoded);
        self.bytes += WaitingWrites::PLACE_BYTES;
        if matches!(kept.write.op, WriteOp::Put { .. }) {
            self.bytes += kept.encoded.len() + RECORD_BYTES as usize;
        }
        if self.waiting.bytes() != held {
            self.tell();
        }
        Ok(())
    }

    fn operation(&mut self, operation: &ReplayOperation<'_>) -> Result<(), RecoveryError> {
        Err(unknown_kind(operation))
    }
}

/// Receivers for so many threads, which have these bytes of memory together.
fn gatherers(manifest: &Manifest, (threads, left_bytes): (usize, usize)) -> Vec<Gatherer> {
    let last = manifest.tables.iter().map(|table| table.id).max().unwrap_or(0);
    let generation = |id| manifest.table(id).map(|table| table.generation);
    let generations: Arc<[Option<u32>]> = (0..=last).map(generation).collect();
    let left = Arc::new(AtomicUsize::new(left_bytes));
    let gatherer = |_| Gatherer {
        waiting: WaitingWrites::default(),
        hasher: KeyHasher::new(manifest.hash_seed),
        generations: generations.clone(),
        writes: 0,
        stale: 0,
        bytes: 0,
        told: 0,
        left: left.clone(),
        is_full: false,
    };
    (0..threads).map(gatherer).collect()
}

/// As [`plan`](crate::plan), with these bytes of memory for a start that [serves at once](crate::run_served). The
/// writes of the logs are gathered while the logs are scanned, so that they are read once.
///
/// # Errors
/// As [`plan`](crate::plan).
pub fn plan_to_serve(
    disk: &Arc<dyn Disk>,
    manifest: Manifest,
    (threads, left_bytes): (usize, usize),
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Plan, RecoveryError> {
    let gatherers = gatherers(&manifest, (threads.max(1), left_bytes));
    plan_with(disk, manifest, threads, progress, |disk, input| {
        let (logs, received) = scan_receiving(disk, input, gatherers)?;
        let gathered = received.map(|(gatherers, commits)| Gathered { gatherers, commits });
        Ok((logs, gathered))
    })
}

/// The writes of the logs, which wait in memory. `None` if they need more than these bytes. Reads the logs
/// if the plan has not gathered them.
pub(crate) fn gather(
    plan: &Plan,
    (threads, left_bytes): (usize, usize),
    clock: &dyn Clock,
    report: &mut (dyn FnMut(&Progress) + Send),
    summary: &mut RecoverySummary,
) -> Result<Option<Vec<WaitingWrites>>, RecoveryError> {
    let start_ns = clock.monotonic_ns();
    let elapsed = || Duration::from_nanos(clock.monotonic_ns() - start_ns);
    let gathered = match plan.gathered.lock().take() {
        Some(gathered) => gathered,
        None => {
            let report = Mutex::new(report);
            let told = |bytes_done, bytes_total| {
                let progress =
                    Progress { stage: Stage::Replay, bytes_done, bytes_total, elapsed: elapsed() };
                let mut report = report.lock();
                (*report)(&progress);
            };
            let gatherers = gatherers(&plan.manifest, (threads, left_bytes));
            let (gatherers, commits) = plan.logs.replay_unordered(gatherers, &told)?;
            Gathered { gatherers, commits }
        }
    };
    let Gathered { gatherers, commits } = gathered;
    let needed: usize = gatherers.iter().map(|of| of.bytes + of.waiting.bytes()).sum();
    if needed > left_bytes || gatherers.iter().any(|of| of.is_full) {
        return Ok(None);
    }
    summary.writes_replayed += gatherers.iter().map(|of| of.writes).sum::<u64>();
    summary.stale += gatherers.iter().map(|of| of.stale).sum::<u64>();
    summary.commits_replayed += commits;
    summary.log_bytes = plan.logs.replay_bytes();
    summary.replay_time = elapsed();
    Ok(Some(gatherers.into_iter().map(|of| of.waiting).collect()))
}

/// Sorts the writes that wait, before clients need many of them.
pub(crate) fn sort_waiting(store: &Store, threads: usize) -> Result<(), RecoveryError> {
    let jobs = (0..threads).map(|at| move || store.sort_waiting((at, threads)));
    in_parallel("load", jobs.collect())?;
    Ok(())
}

/// Has the writes enter the store whose keys no record of a checkpoint has brought in. The threads leave
/// the CPU time to others. There may be fewer of them: after a flush of tables, the threads of the load
/// still wait for their last reads.
pub(crate) fn enter_waiting(store: &Arc<Store>, wanted: usize) -> Result<(), RecoveryError> {
    let loaders: Vec<Loader> = (0..wanted).map_while(|_| Loader::new(Arc::clone(store))).collect();
    let threads = loaders.len();
    if threads == 0 {
        return Err(RecoveryError::NoSlot { wanted, found: 0 });
    }
    let entering = spawn("load", move || {
        go_behind();
        let jobs = loaders.into_iter().enumerate();
        let jobs = jobs.map(|(at, mut loader)| move || loader.load_waiting((at, threads)));
        in_parallel("load", jobs.collect())
    })?;
    for entered in entering.join()?? {
        match entered {
            Ok(None) => {}
            Ok(Some(key)) => return Err(RecoveryError::PatchWithoutRecord { key }),
            Err((TableId(table), source)) => {
                return Err(RecoveryError::Apply { table, gsn: 0, source });
            }
        }
    }
    Ok(())
}
