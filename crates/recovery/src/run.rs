//! Loads and replays in parallel.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_checkpoint::{LoadOptions, UndoneRecord, Visit};
use stillpoint_format::manifest::{CheckpointEntry, Manifest, TableEntry, TableGeneration};
use stillpoint_io::{Clock, Disk, in_parallel, spawn};
use stillpoint_journal::{ReplayOperation, ReplayOptions};
use stillpoint_store::{Loader, Store, TableId};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::RecoveryError;
use crate::load::Loading;
use crate::plan::Plan;
use crate::progress::{Progress, Stage};
use crate::repeat::{Calls, replay_with_calls};
use crate::replay::{Applied, apply_partition};
use crate::undo::undo;

/// Bytes of log that a round of replay reads.
pub(crate) const ROUND_BYTES: usize = 32 << 20;
/// Time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// Time between two looks whether a load has ended.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Counts of a recovery.
#[derive(Clone, Debug, Default)]
pub struct RecoverySummary {
    /// Epoch of the newest checkpoint loaded, if there was one.
    pub checkpoint: Option<u64>,
    /// Records read from checkpoints, including those that a newer checkpoint of the chain
    /// replaces.
    pub records_loaded: u64,
    /// The greatest gsn that a loaded record has; 0 if the checkpoints have no gsns. A log that ends
    /// before that gsn was given up by a repair.
    pub gsn_loaded_max: u64,
    /// Bytes of the checkpoints' files.
    pub checkpoint_bytes: u64,
    /// Time that the load took.
    pub load_time: Duration,
    /// Keys of which a loaded checkpoint held what a crash has taken away, with what they have instead.
    /// The checkpoint still holds it. So these keys must be in a further checkpoint before the next
    /// manifest is published: the records that undo them are beyond the cut.
    pub undone: Vec<UndoneRecord>,
    /// Number of these keys.
    pub keys_undone: u64,
    /// Time that it took to undo them, and to make that durable.
    pub undo_time: Duration,
    /// Commits replayed from logs.
    pub commits_replayed: u64,
    /// Writes of the replayed commits.
    pub writes_replayed: u64,
    /// Writes and records that were skipped, since their table was emptied later.
    pub stale: u64,
    /// Bytes of log read.
    pub log_bytes: u64,
    /// Time that the replay took.
    pub replay_time: Duration,
}

/// A receiver of log records on tables of other kinds than the memory store.
pub trait Operations {
    /// A record of a transaction that changes tables of other kinds in place. Records come in gsn
    /// order.
    ///
    /// # Errors
    /// The record belongs to no known table, or does not fit the earlier records.
    fn hear(&mut self, record: &ReplayOperation<'_>) -> Result<(), RecoveryError>;
}

/// A receiver that knows the memory store alone, and refuses every record of another kind.
#[derive(Debug)]
struct MemoryAlone;

impl Operations for MemoryAlone {
    fn hear(&mut self, record: &ReplayOperation<'_>) -> Result<(), RecoveryError> {
        Err(unknown_kind(record))
    }
}

/// The record of a kind of table that is not known here.
pub(crate) fn unknown_kind(record: &ReplayOperation<'_>) -> RecoveryError {
    RecoveryError::UnknownKind { log: record.log, gsn: record.gsn }
}

/// Fills an empty store with the data of the plan. Changes nothing on disk. If the logs [hold
/// calls](Plan::procedures_needed), `calls` makes them again. The tables of the store are those [at the
/// point of consistency](Plan::tables_at_point) then.
///
/// # Errors
/// Damage that shows only now, too little memory, or a disk that refuses. The store is useless
/// then, and recovery can be begun again with a new one. [`RecoveryError::UnknownKind`] if a log
/// holds operations on tables of another kind. [`RecoveryError::Diverged`] if a call does something
/// else than it has done.
pub fn run(
    disk: &Arc<dyn Disk>,
    plan: &Plan,
    store: &Arc<Store>,
    calls: Option<&dyn Calls>,
    threads: usize,
    clock: &dyn Clock,
    report: &mut (dyn FnMut(&Progress) + Send),
) -> Result<RecoverySummary, RecoveryError> {
    run_with(disk, plan, store, (&mut MemoryAlone, calls), threads, clock, report)
}

/// As [`run`]. `operations` receives the log records on tables of other kinds.
///
/// # Errors
/// As [`run`], or an error of `operations`.
pub fn run_with(
    disk: &Arc<dyn Disk>,
    plan: &Plan,
    store: &Arc<Store>,
    (operations, calls): (&mut dyn Operations, Option<&dyn Calls>),
    threads: usize,
    clock: &dyn Clock,
    report: &mut (dyn FnMut(&Progress) + Send),
) -> Result<RecoverySummary, RecoveryError> {
    let threads = threads.max(1);
    // The logs are replayed.
    drop(plan.gathered.lock().take());
    let mut summary = RecoverySummary::default();
    let Some(calls) = calls else {
        load_chain(disk, &plan.manifest, store, threads, clock, report, &mut summary)?;
        undo_into(plan, store, clock, &mut summary)?;
        replay(plan, store, operations, threads, clock, report, &mut summary)?;
        return Ok(summary);
    };
    let manifest = plan.manifest_at_point();
    load_chain(disk, &manifest, store, threads, clock, report, &mut summary)?;
    undo_into(plan, store, clock, &mut summary)?;
    let applied = plan.last_before_calls();
    replay_writes(plan, store, applied, &mut summary)?;
    let rest = (calls, applied);
    replay_with_calls(plan, store, (operations, rest), threads, clock, report, &mut summary)?;
    Ok(summary)
}

/// Undoes what the loaded checkpoints hold beyond the cut.
fn undo_into(
    plan: &Plan,
    store: &Arc<Store>,
    clock: &dyn Clock,
    summary: &mut RecoverySummary,
) -> Result<(), RecoveryError> {
    let start_ns = clock.monotonic_ns();
    summary.undone = undo(plan, store)?;
    summary.keys_undone = summary.undone.len() as u64;
    summary.undo_time = Duration::from_nanos(clock.monotonic_ns() - start_ns);
    Ok(())
}

/// Replays the writes of records up to gsn `last` alone.
fn replay_writes(
    plan: &Plan,
    store: &Arc<Store>,
    last: u64,
    summary: &mut RecoverySummary,
) -> Result<(), RecoveryError> {
    if last == 0 {
        return Ok(());
    }
    let mut loader = loaders(store, 1)?.remove(0);
    let options = ReplayOptions::new(1, ROUND_BYTES, 1);
    let mut rounds = plan.logs.replay(options, &|_, _| 0);
    while let Some(round) = rounds.next_round()? {
        let Applied { writes, stale } = apply_partition(&mut loader, &round, 0, last)?;
        summary.writes_replayed += writes;
        summary.stale += stale;
    }
    Ok(())
}

pub(crate) fn loaders(store: &Arc<Store>, wanted: usize) -> Result<Vec<Loader>, RecoveryError> {
    let loaders: Vec<Loader> = (0..wanted).map_while(|_| Loader::new(store.clone())).collect();
    if loaders.len() < wanted {
        return Err(RecoveryError::NoSlot { wanted, found: loaders.len() });
    }
    Ok(loaders)
}

/// Fills an empty store with the newest checkpoint of a manifest alone, whatever the logs hold.
/// Changes nothing on disk.
///
/// # Errors
/// As [`run`].
pub fn load(
    disk: &Arc<dyn Disk>,
    manifest: &Manifest,
    store: &Arc<Store>,
    threads: usize,
    clock: &dyn Clock,
    report: &mut (dyn FnMut(&Progress) + Send),
) -> Result<RecoverySummary, RecoveryError> {
    let mut summary = RecoverySummary::default();
    load_chain(disk, manifest, store, threads.max(1), clock, report, &mut summary)?;
    Ok(summary)
}

fn load_chain(
    disk: &Arc<dyn Disk>,
    manifest: &Manifest,
    store: &Arc<Store>,
    threads: usize,
    clock: &dyn Clock,
    report: &mut (dyn FnMut(&Progress) + Send),
    summary: &mut RecoverySummary,
) -> Result<(), RecoveryError> {
    let options = load_options(manifest);
    let start_ns = clock.monotonic_ns();
    let chain: Vec<CheckpointEntry> = manifest.newest_chain().into_iter().cloned().collect();
    let Some(newest) = chain.last() else { return Ok(()) };
    summary.checkpoint = Some(newest.epoch);
    reserve(store, manifest, &chain);
    let gsn_max = Arc::new(AtomicU64::new(0));
    let visitors: Vec<Box<dyn Visit>> = loaders(store, threads)?
        .into_iter()
        .map(|loader| Box::new(Loading { loader, gsn_max: gsn_max.clone() }) as Box<dyn Visit>)
        .collect();
    let total = chain.iter().flat_map(|entry| &entry.parts).map(|part| part.bytes).sum();
    let progress = Arc::new(stillpoint_checkpoint::Progress::default());
    let (disk, watched) = (disk.clone(), progress.clone());
    let loading = spawn("load", move || {
        let chain: Vec<&CheckpointEntry> = chain.iter().collect();
        stillpoint_checkpoint::load_chain(&disk, &chain, &options, visitors, &watched)
    })?;
    while !loading.is_finished() {
        report(&Progress {
            stage: Stage::Load,
            bytes_done: progress.snapshot().written_bytes,
            bytes_total: total,
            elapsed: Duration::from_nanos(clock.monotonic_ns() - start_ns),
        });
        for _ in 0..REPORT_EVERY.as_millis() / LOOK_EVERY.as_millis() {
            if !loading.is_finished() {
                clock.sleep(LOOK_EVERY);
            }
        }
    }
    let loaded = loading.join()??;
    // Relaxed: partner of the maximum in `Loading`, whose threads have ended.
    summary.gsn_loaded_max = gsn_max.load(Relaxed);
    summary.records_loaded += loaded.records;
    summary.stale += loaded.stale_records;
    summary.checkpoint_bytes += loaded.file_bytes;
    summary.load_time = Duration::from_nanos(clock.monotonic_ns() - start_ns);
    Ok(())
}

/// The options of a load of what a manifest names.
pub(crate) fn load_options(manifest: &Manifest) -> LoadOptions {
    let generation =
        |table: &TableEntry| TableGeneration { table: table.id, generation: table.generation };
    LoadOptions {
        store: manifest.store,
        hash_seed: manifest.hash_seed,
        generations: Some(manifest.tables.iter().map(generation).collect()),
    }
}

/// Makes the tables' indexes large enough for the records of a chain. Room is made for the most
/// records that one checkpoint has of a table. The index grows by itself if the other checkpoints
/// add more.
pub(crate) fn reserve(store: &Arc<Store>, manifest: &Manifest, chain: &[CheckpointEntry]) {
    let mut most: BTreeMap<u16, u64> = BTreeMap::new();
    for entry in chain {
        for room in &entry.table_records {
            // Records of an emptied table in the checkpoint will be skipped.
            let at_poc = entry.generations.iter().find(|then| then.table == room.table);
            let now = manifest.table(room.table).map(|table| table.generation);
            if at_poc.is_some_and(|then| Some(then.generation) == now) {
                let records = most.entry(room.table).or_default();
                *records = room.records.max(*records);
            }
        }
    }
    for (table, records) in most {
        store.reserve(TableId(table), records);
    }
}

fn replay(
    plan: &Plan,
    store: &Arc<Store>,
    operations: &mut dyn Operations,
    threads: usize,
    clock: &dyn Clock,
    report: &mut (dyn FnMut(&Progress) + Send),
    summary: &mut RecoverySummary,
) -> Result<(), RecoveryError> {
    let start_ns = clock.monotonic_ns();
    let total = plan.logs.replay_bytes();
    if total == 0 {
        return Ok(());
    }
    let loaders: Vec<Mutex<Loader>> =
        loaders(store, threads)?.into_iter().map(Mutex::new).collect();
    let partition_of = |table: u16, key: &[u8]| {
        // The low bits of the hash. The high ones choose partitions of checkpoints and tags of the
        // index.
        store.hash(TableId(table), key) as usize % threads
    };
    let options = ReplayOptions::new(threads, ROUND_BYTES, threads);
    let mut rounds = plan.logs.replay(options, &partition_of);
    while let Some(round) = rounds.next_round()? {
        let jobs: Vec<_> = (0..threads)
            .map(|partition| {
                let (loader, round) = (&loaders[partition], &round);
                move || apply_partition(&mut loader.lock(), round, partition, u64::MAX)
            })
            .collect();
        for applied in in_parallel("replay", jobs)? {
            let Applied { writes, stale } = applied?;
            summary.writes_replayed += writes;
            summary.stale += stale;
        }
        round.operations().iter().try_for_each(|record| operations.hear(record))?;
        summary.commits_replayed += round.records();
        let (done, total) = round.progress();
        report(&Progress {
            stage: Stage::Replay,
            bytes_done: done,
            bytes_total: total,
            elapsed: Duration::from_nanos(clock.monotonic_ns() - start_ns),
        });
    }
    summary.log_bytes = total;
    summary.replay_time = Duration::from_nanos(clock.monotonic_ns() - start_ns);
    Ok(())
}
