//! Opens a data directory: locks it, plans and runs the recovery, and begins a new incarnation.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_format::manifest::{Manifest, TableEntry, TableKind};
use stillpoint_format::names;
use stillpoint_io::{Cancel, CancellableDisk, Disk, OwnedDisk};
use stillpoint_journal::{Capabilities, Durability, Ends, Hold, Journal};
use stillpoint_recovery::{Calls, Plan, Progress, RecoverySummary, Remaining, Stage};
use stillpoint_store::{CellRules, Store, StoreConfig};
use stillpoint_sync::atomic::{AtomicBool, AtomicUsize};
use stillpoint_sync::{mutant, planted};

use crate::builder::Parts;
use crate::catalog::{self, Catalog};
use crate::checkpoints::{Checkpoints, LOG_HOLDER, marks_replayed};
use crate::config::Config;
use crate::error::Error;
use crate::guards::Seats;
use crate::kinds::{self, KindReplay, Kinds, OfEngine, OpenTransactions, UndoFiles};
use crate::life::Life;
use crate::loading::BackgroundLoad;
use crate::procedure::Procedures;
use crate::repeat;
use crate::shared::Shared;
use crate::tables::{name_kinds, new_table};
use crate::undone::{self, Overwritten};

/// Time between two attempts to lock a directory in use.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Opens a store and recovers the last run's state. After a cancellation the next read fails.
pub(crate) fn open(parts: Parts<'_>) -> Result<Arc<Shared>, Error> {
    let Parts { config, cancel, mut progress, procedures, kinds } = parts;
    let names = config.check_with(&kinds)?;
    let owned = lock(&config, &cancel)?;
    let disk: Arc<dyn Disk> = owned.clone();
    let read: Arc<dyn Disk> = Arc::new(CancellableDisk::new(disk.clone(), cancel.clone()));
    let scheme_row = config.checkpoint_row()?;
    let scheme = scheme_row.build();
    let mut plan = plan(&config, &read, &names, &mut *progress)?;
    let (kinds, of_engine) = open_kinds(kinds, &config, &disk, &plan.manifest)?;
    let mut tables = plan.manifest.tables.clone();
    let procedures = procedures.make(&mut tables, &config.usual_kind())?;
    let Capabilities { records_commits, logs_calls_alone, logs_before_images } =
        crate::journal_row(&config.journal)?.capabilities;
    let wanted = Manifest { tables, ..plan.manifest.clone() };
    let needed = plan.procedures_needed(config.recovery_threads)?;
    let holds_calls = repeat::check(&procedures, &needed)?;
    let cells = (scheme.cells, logs_calls_alone, holds_calls);
    let (store, (kind_replay, undo_files), (mut recovered, remaining)) =
        recover(&read, &plan, &config, (&wanted, &kinds, &procedures), cells, &mut *progress)?;
    // From here on files are made, so the opening can no longer be cancelled.
    if !cancel.seal() {
        return Err(Error::Cancelled);
    }
    keep_undone(&disk, &config, &mut plan, &mut recovered)?;
    let ends = plan.copy_ends(config.environment.clock.wall_ms())?;
    let journal = open_journal(&config, (&disk, &kinds), &plan, &ends)?;
    let logs = (if records_commits { config.logs as u8 } else { 0 }, logs_calls_alone);
    let catalog = begin_incarnation(&disk, &plan, (wanted.tables, logs, scheme_row.name), &ends)?;
    let open = Arc::new(OpenTransactions::new(journal.clone(), undo_files, &config));
    let to_logs = (&journal, config.logs);
    kind_replay.undo_losers(to_logs, &open, store.driver().now().epoch())?;
    Ok(failing_with_pages(Shared {
        kinds,
        of_engine,
        open,
        records_commits,
        logs_calls_alone,
        overwritten: Overwritten::where_logged(logs_before_images, config.logs as u8),
        holds_calls: AtomicBool::new(holds_calls),
        acknowledges_closed: records_commits && config.durability.acknowledges_closed(),
        disk,
        owned,
        store,
        scheme: scheme.checkpointer,
        scheme_name: scheme_row.name,
        keeps_deleted_keys: scheme_row.capabilities.keeps_deleted_keys(),
        journal,
        catalog,
        incarnation: plan.incarnation,
        floor: plan.gsn_floor,
        procedures,
        checkpoints: Checkpoints::new(
            &plan.manifest,
            (scheme_row.capabilities.takes_checkpoints(), scheme_row.capabilities.may_merge()),
            (config.keep_checkpoints, config.checkpoint_policy()),
            !marks_replayed(&plan.manifest, scheme_row.name),
            recovered.log_bytes,
            config.environment.clock.monotonic_ns(),
        ),
        commits: Mutex::default(),
        recovered,
        load: BackgroundLoad::new(remaining, config.environment.clock.monotonic_ns()),
        life: Life::default(),
        seats: Seats::default(),
        stopping: AtomicBool::new(false),
        next_log: AtomicUsize::new(0),
        config,
    }))
}

/// The state of a store that fails once a write or a flush of pages has failed. The log brings everything back.
fn failing_with_pages(shared: Shared) -> Arc<Shared> {
    let shared = Arc::new(shared);
    if let Some(paged) = &shared.of_engine.paged {
        let failing = Arc::downgrade(&shared);
        paged.on_failure(Box::new(move |reason| {
            if let Some(shared) = failing.upgrade() {
                let reason = format!("a write or flush of pages failed: {reason}");
                mutant!(shared.fail_for_good(reason), PagesFailUnheard => drop(reason));
            }
        }));
    }
    shared
}

/// Opens the kinds that the settings have, over the files that the MANIFEST names. Returns all kinds, those
/// of the program among them.
fn open_kinds(
    kinds: Vec<Arc<dyn stillpoint_txn::TableKind>>,
    config: &Config,
    disk: &Arc<dyn Disk>,
    manifest: &Manifest,
) -> Result<(Arc<Kinds>, OfEngine), Error> {
    let paged = crate::paged::open(config, disk, manifest)?;
    let of_engine = OfEngine { paged, siren: crate::siren::open(config, disk, manifest)? };
    Ok((Kinds::with_those_of_engine(kinds, &of_engine)?, of_engine))
}

/// A checkpoint without a point of consistency may have later commits than a log that a repair has cut.
/// Commits to come get greater gsns than it has.
fn raise_floor(plan: &mut Plan, recovered: &RecoverySummary) {
    plan.gsn_floor = plan.gsn_floor.max(recovered.gsn_loaded_max);
}

/// Makes what the recovery has undone durable, and notes how far the recovered commits reach.
fn keep_undone(
    disk: &Arc<dyn Disk>,
    config: &Config,
    plan: &mut Plan,
    recovered: &mut RecoverySummary,
) -> Result<(), Error> {
    raise_floor(plan, recovered);
    match std::mem::take(&mut recovered.undone) {
        undone if undone.is_empty() => Ok(()),
        undone => {
            let keys = undone.len();
            tracing::info!(keys, "undid commits that the checkpoint holds and a crash took away");
            let clock = &*config.environment.clock;
            let start_ns = clock.monotonic_ns();
            undone::keep(disk, clock, config.codec, plan, &undone)?;
            recovered.undo_time += Duration::from_nanos(clock.monotonic_ns() - start_ns);
            Ok(())
        }
    }
}

/// Publishes the MANIFEST that begins the new incarnation, with these tables and logs, and removes what
/// it has given up.
fn begin_incarnation(
    disk: &Arc<dyn Disk>,
    plan: &Plan,
    (tables, logs, scheme): (Vec<TableEntry>, (u8, bool), &str),
    ends: &Ends,
) -> Result<Catalog, Error> {
    let catalog = Catalog::new(disk.clone(), plan.manifest.clone());
    let mut next = Manifest { tables, ..plan.successor(logs, ends) };
    name_kinds(&mut next, plan.gsn_floor);
    if let Some(present) = next.incarnations.last_mut() {
        present.scheme = Some(scheme.to_owned());
    }
    catalog.publish(|manifest| *manifest = next)?;
    plan.trim(ends)?;
    crate::checkpoints::remove_strays(&**disk, &plan.manifest)?;
    Ok(catalog)
}

/// A filled store, what other kinds of tables have still to undo and its files, and what was loaded and is left
/// to load.
type Recovered = (Arc<Store>, (KindReplay, Arc<UndoFiles>), (RecoverySummary, Option<Remaining>));

/// Fills a new store, and the tables of other kinds, with the data that the plan names.
fn recover(
    disk: &Arc<dyn Disk>,
    plan: &Plan,
    config: &Config,
    (wanted, kinds, procedures): (&Manifest, &Arc<Kinds>, &Procedures),
    (cells, serial_gsns, holds_calls): (CellRules, bool, bool),
    progress: &mut (dyn FnMut(&Progress) + Send),
) -> Result<Recovered, Error> {
    let mut tables = wanted.tables.clone();
    if holds_calls {
        for at_point in plan.tables_at_point() {
            let table = tables.iter_mut().find(|table| table.id == at_point.id);
            table.into_iter().for_each(|table| table.generation = at_point.generation);
        }
    }
    let store = new_store(config, plan, &tables, (cells, serial_gsns))?;
    if holds_calls {
        // What a call has written fitted then, and it must not fail now.
        store.set_max_memory_bytes(usize::MAX);
    }
    wanted.tables.iter().try_for_each(|table| kinds.add_table(table, &**disk))?;
    // With one lane the calls of the disk always come in the same order.
    let lanes = if config.environment.background { config.recovery_threads } else { 1 };
    let undo_files = UndoFiles::begin(disk)?;
    let mut kind_replay = KindReplay::new(kinds.clone(), wanted, lanes, Some(undo_files.clone()));
    let (threads, clock) = (config.recovery_threads, &*config.environment.clock);
    let of_kinds = (!kinds.is_empty(), holds_calls);
    let served = match may_serve(config, wanted, of_kinds, &cells)? {
        Ok(()) => stillpoint_recovery::run_served(disk, plan, &store, threads, clock, progress)?,
        Err(reason) => Err(reason),
    };
    match served {
        Ok((recovered, remaining)) => {
            store.maintain();
            return Ok((store, (kind_replay, undo_files), (recovered, Some(remaining))));
        }
        Err(reason) if config.serve_while_loading => {
            tracing::info!(reason, "the store is loaded before it is served");
        }
        Err(_) => {}
    }
    let calls = holds_calls.then_some(procedures as &dyn Calls);
    let recovered = stillpoint_recovery::run_with(
        disk,
        plan,
        &store,
        (&mut kind_replay, calls),
        threads,
        clock,
        progress,
    )?;
    kind_replay.end()?;
    store.set_max_memory_bytes(config.store_memory_bytes());
    Ok((store, (kind_replay, undo_files), (recovered, None)))
}

/// Whether the store may be served while it is loaded; if not, why.
fn may_serve(
    config: &Config,
    wanted: &Manifest,
    (has_kinds, holds_calls): (bool, bool),
    cells: &CellRules,
) -> Result<Result<(), &'static str>, Error> {
    let journal = crate::journal_row(&config.journal)?.capabilities;
    let has_ordered = wanted.tables.iter().any(|table| table.kind == TableKind::Ordered);
    Ok(match () {
        () if !config.serve_while_loading => Err("the settings say so"),
        () if has_kinds => Err("there are tables of other kinds than memory"),
        () if has_ordered => Err("a table is ordered"),
        () if !journal.records_commits => {
            Err("without a log, the end of the store needs every record")
        }
        () if holds_calls || journal.logs_calls_alone => Err("the journal holds calls"),
        () if journal.logs_before_images => Err("the journal holds before-images"),
        () if cells.copies > 1 || !cells.write.is_in_place() => {
            Err("the checkpoint scheme keeps several copies of a value")
        }
        () => Ok(()),
    })
}

/// Locks the data directory. Waits for another holder as long as the settings say.
fn lock(config: &Config, cancel: &Cancel) -> Result<Arc<OwnedDisk>, Error> {
    let disk = config.disk()?;
    disk.create_dir_all(Path::new(""))?;
    let clock = &config.environment.clock;
    let waited_ns = config.lock_wait.as_nanos().try_into().unwrap_or(u64::MAX);
    let deadline_ns = clock.monotonic_ns().saturating_add(waited_ns);
    loop {
        if let Some(owned) = OwnedDisk::lock(disk.clone(), Path::new(names::LOCK))? {
            return Ok(Arc::new(owned));
        }
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        if clock.monotonic_ns() >= deadline_ns {
            return Err(Error::InUse(disk.describe(Path::new(""))));
        }
        clock.sleep(LOCK_POLL);
    }
}

/// Number of the store's workers: sessions, plus recovery's loaders or the capture threads.
fn workers(config: &Config) -> usize {
    let (loaders, captures) = (config.recovery_threads, config.checkpoint_threads);
    // A load that ends early leaves its loaders for a while. A checkpoint may begin then.
    let both =
        if config.serve_while_loading { 2 * loaders + captures } else { loaders.max(captures) };
    config.sessions + both + 1
}

/// Plans the recovery. Changes nothing on disk, except that a new store gets its MANIFEST.
fn plan(
    config: &Config,
    disk: &Arc<dyn Disk>,
    kinds: &[&str],
    progress: &mut (dyn FnMut(&Progress) + Send),
) -> Result<Plan, Error> {
    let environment = &config.environment;
    let manifest = match catalog::read_with_kinds(&**disk, kinds)? {
        Some(manifest) => manifest,
        None => {
            // The MANIFEST is the first file of a store, so the files of a failed start never lie
            // without a MANIFEST.
            let fresh = catalog::fresh(&*environment.rng, environment.clock.wall_ms());
            Catalog::new(disk.clone(), fresh.clone()).publish(|_| ())?;
            fresh
        }
    };
    let clock = &*environment.clock;
    let start_ns = clock.monotonic_ns();
    let report = Mutex::new(progress);
    let told = |bytes_done, bytes_total| {
        let elapsed = Duration::from_nanos(clock.monotonic_ns() - start_ns);
        (report.lock())(&Progress { stage: Stage::Scan, bytes_done, bytes_total, elapsed });
    };
    let threads = config.recovery_threads;
    let of_kinds = (!kinds.is_empty(), manifest.may_hold_calls());
    let cells = config.checkpoint_row()?.build().cells;
    let may_serve = may_serve(config, &manifest, of_kinds, &cells)?.is_ok();
    Ok(if may_serve && !manifest.newest_chain().is_empty() {
        let room = (threads, config.store_memory_bytes());
        stillpoint_recovery::plan_to_serve(disk, manifest, room, &told)?
    } else {
        stillpoint_recovery::plan(disk, manifest, threads, &told)?
    })
}

fn new_store(
    config: &Config,
    plan: &Plan,
    tables: &[TableEntry],
    (cells, serial_gsns): (CellRules, bool),
) -> Result<Arc<Store>, Error> {
    let mut store = Store::new(
        &StoreConfig {
            max_memory_bytes: config.store_memory_bytes(),
            workers: workers(config),
            stable_pool_bytes: config.stable_pool_bytes,
            hash_seed: plan.manifest.hash_seed,
            epoch: plan.epoch,
            serial_gsns,
            space: config.environment.space.clone(),
        },
        cells,
    )?;
    if !marks_replayed(&plan.manifest, config.checkpoint_row()?.name) {
        store.leave_replayed_unmarked();
    }
    store.note_loaded_chain(plan.manifest.checkpoints.is_empty());
    let store = Arc::new(store);
    for table in tables.iter().filter(|table| table.kind.is_in_memory()) {
        store.add_tables(vec![new_table(&store, table)?])?;
    }
    Ok(store)
}

/// Opens the journal, which holds everything for the newest checkpoint and for the kinds of tables.
fn open_journal(
    config: &Config,
    (disk, kinds): (&Arc<dyn Disk>, &Kinds),
    plan: &Plan,
    ends: &Ends,
) -> Result<Arc<dyn Journal>, Error> {
    let row = crate::journal_row(&config.journal)?;
    let environment = stillpoint_journal::Environment {
        disk: disk.clone(),
        clock: config.environment.clock.clone(),
    };
    let mut settings = stillpoint_journal::Config::new(
        plan.manifest.store,
        plan.incarnation,
        plan.gsn_floor,
        config.logs as u8,
    );
    settings.durability =
        if row.capabilities.records_commits { config.durability } else { Durability::Checkpoint };
    settings.interval = config.flush_interval;
    settings.segment_bytes = config.log_segment_bytes;
    settings.earlier = ends.segments.clone();
    settings.background = config.environment.background;
    let journal = (row.open)(&environment, &settings)?;
    journal.hold(Hold::everything(LOG_HOLDER))?;
    kinds::checkpoint::hold_at_start(kinds, &plan.manifest, plan.gsn_floor, &*journal)?;
    Ok(journal)
}
