//! The replay of a start that serves at once: what the logs have written waits beside the store, and
//! enters it with the load.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_format::manifest::Manifest;
use stillpoint_io::{Clock, Disk, go_behind, in_parallel, spawn};
use stillpoint_journal::scan_receiving;
use stillpoint_store::{Loader, Store, TableId, TxError, WaitingWrites};

use crate::error::RecoveryError;
use crate::gathered::{Gathered, gatherers};
use crate::plan::{Plan, plan_with};
use crate::progress::{Progress, Stage};
use crate::run::RecoverySummary;

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

/// Touches the indexes' memory, so that the first clients meet few fresh pages. The threads leave the CPU time
/// to others.
pub(crate) fn populate_indexes(store: &Arc<Store>, threads: usize) -> Result<(), RecoveryError> {
    let store = Arc::clone(store);
    let populating = spawn("load", move || {
        go_behind();
        let jobs = (0..threads).map(|at| {
            let store = &store;
            move || store.populate_indexes((at, threads))
        });
        in_parallel("load", jobs.collect()).map(|_| ())
    })?;
    Ok(populating.join()??)
}

/// Sorts the writes that wait.
pub(crate) fn sort_waiting(store: &Store, threads: usize) -> Result<(), RecoveryError> {
    let jobs = (0..threads).map(|at| move || store.sort_waiting((at, threads)));
    in_parallel("load", jobs.collect())?;
    Ok(())
}

/// Reads the writes that wait, in the order of the logs, unless the load is cancelled.
pub(crate) fn read_waiting(
    store: &Store,
    threads: usize,
    progress: &stillpoint_checkpoint::Progress,
) -> Result<(), RecoveryError> {
    let is_over = &|| progress.is_cancelled();
    let jobs = (0..threads).map(|at| move || store.read_waiting((at, threads), is_over));
    for read in in_parallel("load", jobs.collect())? {
        let read = read.map_err(TxError::Unreadable);
        read.map_err(|source| RecoveryError::of_record(TableId(0), source))?;
    }
    Ok(())
}

/// Has all writes that wait enter the store, each with its record, while the rest is still to be loaded.
/// Then waits until nobody is about to enter one of them a second time.
pub(crate) fn enter_replayed(
    store: &Arc<Store>,
    wanted: usize,
    is_over: &(dyn Fn() -> bool + Sync),
) -> Result<(), RecoveryError> {
    let loaders: Vec<Loader> = (0..wanted).map_while(|_| Loader::new(Arc::clone(store))).collect();
    let threads = loaders.len();
    if threads == 0 {
        return Err(RecoveryError::NoSlot { wanted, found: 0 });
    }
    let jobs = loaders.into_iter().enumerate();
    let jobs = jobs.map(|(at, mut loader)| move || loader.load_replayed((at, threads), is_over));
    for entered in in_parallel("replay", jobs.collect())? {
        entered.map_err(|(table, source)| RecoveryError::of_record(table, source))?;
    }
    store.driver().read_sections().wait_grace_period();
    if !is_over() {
        store.note_replayed();
    }
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
            Err((table, source)) => return Err(RecoveryError::of_record(table, source)),
        }
    }
    Ok(())
}
