//! Examines a data directory: check, inspect, dump.
//!
//! None of the three tools writes, so they work on a read-only directory. If no process has the
//! directory open, the tools lock it and examine all of it. If a process has the directory open,
//! the tools examine the MANIFEST and the newest checkpoint. The tools then leave the logs alone,
//! since the process appends to them. A newer checkpoint may supersede one that is being opened;
//! then the newer one is examined. Once the parts are open, their removal does no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use stillpoint_checkpoint::LoadError;
use stillpoint_format::manifest::{CheckpointEntry, Manifest, TableEntry, TableKind};
use stillpoint_format::names;
use stillpoint_io::{Disk, RealClock, RealDisk, SharedLock, cpu_count};
use stillpoint_paged::{CheckedPages, Paged, PagesError, TreeSummary};
use stillpoint_recovery::{Calls, Operations, Plan, RecoveryError, RecoverySummary};
use stillpoint_store::{Store, StoreConfig, TableId, ValueRef, Worker};

use super::kinds::{self, ReadTables};
use super::siren::{InspectedSiren, VerifiedSiren, VerifiedSirenTable};
use super::{Directory, load_options, plan};
use crate::builder::PendingProcedures;
use crate::catalog;
use crate::config::Config;
use crate::engine::Engine;
use crate::error::Error;
use crate::kinds::{OF_ENGINE, OfEngine, TablesOfKind};
use crate::{paged, repeat};

/// Most times that a checkpoint may be superseded while it is being opened.
const TRIES: usize = 100;

/// The examined part of a data directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// The whole directory, the logs included.
    #[default]
    Whole,
    /// The newest checkpoint, named by its epoch. The logs are not examined, since a process has
    /// the directory open. `None` if there is no checkpoint yet.
    Checkpoint(Option<u64>),
}

/// A data directory under examination.
pub(super) struct Looked {
    pub(super) directory: Directory,
    /// Whether a process has the directory open.
    pub(super) is_open: bool,
}

pub(super) fn open(dir: &Path) -> Result<Looked, Error> {
    if !dir.is_dir() {
        return Err(Error::NoStore(dir.to_owned()));
    }
    open_on(Arc::new(RealDisk::new(dir)?), dir)
}

/// As [`open`], on the disk of the settings.
fn open_of(config: &Config) -> Result<Looked, Error> {
    match &config.environment.disk {
        Some(disk) => open_on(disk.clone(), &config.data),
        None => open(&config.data),
    }
}

fn open_on(disk: Arc<dyn Disk>, dir: &Path) -> Result<Looked, Error> {
    let (lock, is_open): (Box<dyn Send + Sync>, bool) =
        match disk.lock_shared(Path::new(names::LOCK))? {
            SharedLock::Held(lock) => (lock, false),
            SharedLock::Absent => (Box::new(()), false),
            SharedLock::InUse => (Box::new(()), true),
        };
    let manifest = catalog::read(&*disk)?.ok_or_else(|| Error::NoStore(dir.to_owned()))?;
    Ok(Looked { directory: Directory { disk, manifest, _lock: lock }, is_open })
}

fn newest(manifest: &Manifest) -> Option<&CheckpointEntry> {
    manifest.newest_chain().last().copied()
}

/// The part of a directory that is examined.
fn extent_of(manifest: &Manifest, is_open: bool) -> Extent {
    let epoch = || newest(manifest).map(|checkpoint| checkpoint.epoch);
    if is_open { Extent::Checkpoint(epoch()) } else { Extent::Whole }
}

impl Looked {
    /// Serials of the files that a start would load, and what the sections of other kinds name. A merge
    /// changes the serials, and not the epoch.
    fn files(&self) -> (Vec<u64>, Vec<Option<u64>>) {
        let manifest = &self.directory.manifest;
        let serials = manifest.newest_chain().iter().map(|entry| entry.serial).collect();
        // An unreadable section is told by whoever reads the pages.
        let map = paged::named(&TablesOfKind::of(manifest, paged::KIND_NAME));
        let level = InspectedSiren::of(manifest).map(|siren| siren.level);
        (serials, vec![map.ok().and_then(|named| named.map), level])
    }

    fn extent(&self) -> Extent {
        extent_of(&self.directory.manifest, self.is_open)
    }

    /// Examines the directory. If the result `is_spoilt` and another process has published a
    /// checkpoint or a merge meanwhile, tries again.
    fn look<R>(
        &mut self,
        look: impl Fn(&Directory) -> Result<R, Error>,
        is_spoilt: impl Fn(&Result<R, Error>) -> bool,
    ) -> Result<R, Error> {
        let mut tries = 0;
        loop {
            let found = look(&self.directory);
            tries += 1;
            if !self.is_open || !is_spoilt(&found) || tries == TRIES {
                return found;
            }
            let before = self.files();
            let manifest = catalog::read(&*self.directory.disk)?;
            let Some(manifest) = manifest else { return found };
            self.directory.manifest = manifest;
            if self.files() == before {
                return found;
            }
        }
    }
}

/// Contents of a data directory.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The MANIFEST.
    pub manifest: Manifest,
    /// The examined part.
    pub extent: Extent,
    /// The logs, if they were examined and are sound.
    pub logs: Option<InspectedLogs>,
    /// The pages of paged tables, if the MANIFEST names any.
    pub pages: Option<InspectedPages>,
    /// The pages of SIREN tables, if the MANIFEST names any.
    pub siren: Option<InspectedSiren>,
    /// Damage of the logs, of the map of pages, or of the directory of SIREN's pages: file, offset, meaning
    /// and cure.
    pub damage: Option<String>,
}

/// The pages of paged tables.
#[derive(Clone, Debug)]
pub struct InspectedPages {
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Number of the round of the map that the MANIFEST names.
    pub map: u64,
    /// Records of each table in these pages, by table. Later ones are in the logs.
    pub records: BTreeMap<u16, u64>,
    /// Pages that lie in slots of the data file. `None` if the map was not read.
    pub pages: Option<u64>,
    /// Slots of the data file. `None` if the map was not read.
    pub slots: Option<u64>,
}

impl InspectedPages {
    /// What the sections of the MANIFEST say. `None` if they name no pages, or cannot be read.
    fn of(manifest: &Manifest) -> Option<Self> {
        let tables = TablesOfKind::of(manifest, paged::KIND_NAME);
        let named = paged::named(&tables).ok()?;
        let (page_bytes, map) = (named.page_bytes?, named.map?);
        let paged = manifest.tables.iter().filter(|table| tables.names.contains(&&*table.name));
        let records_of =
            |table: &TableEntry| Some((table.id, Paged::records_of(table.private.as_deref()?)?));
        let records = paged.filter_map(records_of).collect();
        Some(Self { page_bytes, map, records, pages: None, slots: None })
    }
}

/// Contents of the logs.
#[derive(Clone, Copy, Debug)]
pub struct InspectedLogs {
    /// Bytes that the next start will read.
    pub replay_bytes: u64,
    /// Greatest gsn found.
    pub gsn_max: u64,
}

/// Describes the contents of a data directory. Reads the logs, the map of pages and the directory of SIREN's
/// pages, not the checkpoints and the pages. If a process has the directory open, reads the MANIFEST only. Writes nothing.
///
/// # Errors
/// The directory is no store, its MANIFEST is damaged, or the disk refuses. Damage of the logs is
/// part of the result, since its reader needs the list of checkpoints to restore.
pub fn inspect(dir: &Path) -> Result<Inspection, Error> {
    let Looked { directory, is_open } = open(dir)?;
    let extent = extent_of(&directory.manifest, is_open);
    let manifest = directory.manifest.clone();
    let pages = InspectedPages::of(&manifest);
    let siren = InspectedSiren::of(&manifest);
    let mut found = Inspection { manifest, extent, logs: None, pages, siren, damage: None };
    if is_open {
        return Ok(found);
    }
    match plan(&directory) {
        Ok(plan) => {
            let (replay_bytes, gsn_max) = (plan.replay_bytes(), plan.gsn_floor);
            found.logs = Some(InspectedLogs { replay_bytes, gsn_max });
        }
        Err(error) if error.is_damage() => found.damage = Some(error.to_string()),
        Err(error) => return Err(error),
    }
    found.add_pages(&directory)?;
    found.add_siren(&directory)?;
    Ok(found)
}

impl Inspection {
    /// Counts the pages and slots of paged tables. Damage is part of the result.
    fn add_pages(&mut self, directory: &Directory) -> Result<(), Error> {
        let tables = TablesOfKind::of(&directory.manifest, paged::KIND_NAME);
        let store = directory.manifest.store;
        match stillpoint_paged::count_pages(&*directory.disk, store, &tables.sections()) {
            Ok(found) => {
                for (pages, found) in self.pages.iter_mut().zip(found) {
                    (pages.pages, pages.slots) = (Some(found.pages), Some(found.slots));
                }
                Ok(())
            }
            Err(error) if error.is_damage() => {
                self.damage.get_or_insert(error.to_string());
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Result of a verification.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// The examined part.
    pub extent: Extent,
    /// Checkpoints, by epoch, with their records and bytes.
    pub checkpoints: Vec<(u64, u64, u64)>,
    /// The pages of paged tables, if there are any on the disk.
    pub pages: Option<VerifiedPages>,
    /// The paged tables as the next start will find them, if they are sound and were brought to the end of
    /// the logs.
    pub trees: Vec<VerifiedTree>,
    /// The pages of SIREN tables, if there are any on the disk and they are sound.
    pub siren: Option<VerifiedSiren>,
    /// The SIREN tables as the next start will find them, if they are sound and were brought to the end of
    /// the logs.
    pub siren_tables: Vec<VerifiedSirenTable>,
    /// Bytes of log that the next start will read, if the logs were examined.
    pub replay_bytes: Option<u64>,
    /// The procedures whose calls the next start makes again: name and version.
    pub procedures: Vec<(String, u32)>,
    /// Damage: file, offset, meaning and cure, for the first places of each checkpoint. Empty if
    /// the examined part is sound.
    pub damage: Vec<String>,
    /// Number of further damaged places.
    pub damage_more: u64,
    /// What a crash may have left, and what the next checkpoint mends: file, block and meaning. The
    /// directory is sound.
    pub harmless: Vec<String>,
}

/// Pages that were verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedPages {
    /// Number of pages.
    pub pages: u64,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Slots of the data file. Each page lies in one, and no slot has two pages.
    pub slots: u64,
}

/// A paged table that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedTree {
    /// Name of the table.
    pub name: String,
    /// Number of records.
    pub records: u64,
    /// Number of pages.
    pub pages: u64,
    /// Number of levels.
    pub levels: u8,
}

impl Checked {
    /// Verifies the map and each page alone. Returns the numbers of the pages.
    fn add_pages(&mut self, directory: &Directory) -> Result<BTreeSet<u64>, Error> {
        let manifest = &directory.manifest;
        let tables = TablesOfKind::of(manifest, paged::KIND_NAME);
        let checked =
            stillpoint_paged::check_pages(&*directory.disk, manifest.store, &tables.tables)?;
        let Some(checked) = checked else { return Ok(BTreeSet::new()) };
        let CheckedPages { page_bytes, pages, slots, damage, damage_more, unused_copies, placed } =
            checked;
        if damage.is_empty() {
            self.pages = Some(VerifiedPages { pages, page_bytes, slots });
        }
        self.damage.extend(damage.iter().map(|defect| with_name(manifest, defect)));
        self.damage_more += damage_more;
        self.harmless.extend(unused_copies.iter().map(ToString::to_string));
        Ok(placed)
    }

    /// Brings the tables of other kinds to the end of the logs in memory, and verifies them.
    fn add_tables(
        &mut self,
        directory: &Directory,
        plan: &Plan,
        placed: &BTreeSet<u64>,
    ) -> Result<(), Error> {
        let manifest = &directory.manifest;
        let Some(tables) = ReadTables::open(&*directory.disk, manifest)? else { return Ok(()) };
        tables.bring_to_end(plan)?;
        let OfEngine { paged, siren } = &tables.of_engine;
        siren.iter().for_each(|siren| self.add_siren_tables(manifest, siren));
        paged.iter().for_each(|paged| self.add_trees(manifest, paged, placed));
        Ok(())
    }

    /// Verifies the trees of paged tables, which were brought to the end of the logs.
    fn add_trees(&mut self, manifest: &Manifest, paged: &Paged, placed: &BTreeSet<u64>) {
        let checked = paged.check_trees();
        for (table, summary) in checked.tables {
            let name = manifest.table(table.0).map_or_else(String::new, |table| table.name.clone());
            let TreeSummary { records, levels, .. } = summary;
            let pages = summary.pages.len() as u64;
            self.trees.push(VerifiedTree { name, records, pages, levels });
        }
        let unreached = placed.difference(&checked.pages).count();
        if unreached > 0 && checked.damage.is_empty() {
            self.harmless.push(format!(
                "{unreached} pages in slots belong to no table any more, as after a flush of a table: \
                 they take room and nothing else"
            ));
        }
        self.damage.extend(checked.damage.iter().map(ToString::to_string));
    }

    fn add(&mut self, directory: &Directory, entry: &CheckpointEntry) -> Result<(), Error> {
        let options = load_options(&directory.manifest);
        let progress = Arc::default();
        let disk = &directory.disk;
        let verified = stillpoint_checkpoint::verify(disk, entry, &options, cpu_count(), &progress);
        let verified = verified.map_err(RecoveryError::from)?;
        if verified.damage.is_empty() {
            let summary = verified.summary;
            let records = summary.records + summary.stale_records;
            self.checkpoints.push((entry.epoch, records, summary.file_bytes));
        }
        self.damage.extend(verified.damage.iter().map(ToString::to_string));
        self.damage_more += verified.damage_more;
        Ok(())
    }
}

/// Verifies a data directory: every checksum. In checkpoints each key must also lie in its
/// partition and occur once. Large values must be whole, and the MANIFEST must state the right
/// number of records. Records of logs must decode, with the values that they have overwritten.
///
/// Of paged tables, the map and all pages are verified. Then the tables are brought to the end of the
/// logs, in memory. Their keys must be in order, each page must be in one tree once, and the number of
/// records must be the counted one. Of SIREN tables, the page directory and all pages are verified. Then
/// the tables are brought to the end of the logs, and their lists of pages and tuples are verified.
///
/// If a process has the directory open, only the newest checkpoint is verified, and each page alone.
/// Writes nothing.
///
/// # Errors
/// The directory is no store, or cannot be read. Damage is part of the result, except damage of the
/// MANIFEST, which is an error.
pub fn check(dir: &Path) -> Result<Checked, Error> {
    check_looked(open(dir)?)
}

/// As [`check`], on the disk of the settings.
pub(crate) fn check_with(config: &Config) -> Result<Checked, Error> {
    check_looked(open_of(config)?)
}

fn check_looked(mut looked: Looked) -> Result<Checked, Error> {
    if looked.is_open {
        let verify = |directory: &Directory| {
            let mut checked = Checked::default();
            newest(&directory.manifest).map_or(Ok(()), |entry| checked.add(directory, entry))?;
            // As of the MANIFEST that was read. A later one makes the look begin anew.
            checked.add_pages(directory)?;
            checked.add_siren_pages(directory)?;
            // The process may be writing these copies.
            checked.harmless.clear();
            Ok(checked)
        };
        let is_spoilt = |found: &Result<Checked, Error>| {
            found.as_ref().map_or(true, |checked| !checked.damage.is_empty())
        };
        let checked = looked.look(verify, is_spoilt)?;
        return Ok(Checked { extent: looked.extent(), ..checked });
    }
    let directory = &looked.directory;
    let mut checked = Checked::default();
    for entry in &directory.manifest.checkpoints {
        checked.add(directory, entry)?;
    }
    let placed = checked.add_pages(directory)?;
    checked.add_siren_pages(directory)?;
    let pages_are_sound = checked.damage.is_empty();
    let planned = plan(directory).and_then(|plan| {
        plan.verify_records(&directory.disk, cpu_count())?;
        plan.verify_before_images(cpu_count())?;
        let needed = plan.procedures_needed(cpu_count())?;
        checked.replay_bytes = Some(plan.replay_bytes());
        checked.procedures = needed.into_iter().map(|of| (of.name, of.version)).collect();
        // Damaged pages are told one by one above.
        if pages_are_sound { checked.add_tables(directory, &plan, &placed) } else { Ok(()) }
    });
    match planned {
        Ok(()) => {}
        // The damage was found above.
        Err(Error::Recovery(RecoveryError::Checkpoint(LoadError::Damaged(_)))) => {}
        Err(error) if error.is_damage() => checked.damage.push(error.to_string()),
        Err(error) => return Err(error),
    }
    Ok(checked)
}

/// A defect of a page, with the name of the table.
fn with_name(manifest: &Manifest, defect: &PagesError) -> String {
    match defect {
        PagesError::Page { table: Some(table), .. } => match manifest.table(*table) {
            Some(known) => format!("{defect} (table {:?})", known.name),
            None => defect.to_string(),
        },
        _ => defect.to_string(),
    }
}

/// Result of a dump.
#[derive(Clone, Debug)]
pub struct Dumped {
    /// The examined part.
    pub extent: Extent,
    /// Counts of the recovery that the dump ran.
    pub recovered: RecoverySummary,
    /// Names of the tables, empty ones too, in the order in which their keys were visited.
    pub tables: Vec<String>,
}

/// A function that takes one key of a dump: the table's name, the key, the value.
pub type DumpVisit<'a> = dyn FnMut(&str, &[u8], ValueRef<'_>) -> std::io::Result<()> + 'a;

/// Recovers a data directory into memory, without a change to it, and visits every key: the table's
/// name, key, and value. If a process has the directory open, visits the keys of the newest
/// checkpoint.
///
/// The newest checkpoint alone is no state of a [paged table](crate::Kind::Paged) or a
/// [SIREN table](crate::Kind::Siren). So such a table is dumped only if no process has the directory open.
///
/// A log of calls needs their procedures, with which [`EngineBuilder::dump`](crate::EngineBuilder::dump)
/// does the same.
///
/// # Errors
/// The directory is no store, is damaged, or cannot be read. There is no table `table`, or `visit`
/// fails. [`Error::OtherKinds`] for such tables of a directory that a process has open.
pub fn dump(dir: &Path, table: Option<&str>, visit: &mut DumpVisit<'_>) -> Result<Dumped, Error> {
    Engine::builder(Config::new(dir)).dump(table, visit)
}

/// As [`dump`], with these procedures.
pub(crate) fn dump_with(
    config: &Config,
    table: Option<&str>,
    procedures: PendingProcedures<'_>,
    visit: &mut DumpVisit<'_>,
) -> Result<Dumped, Error> {
    let mut looked = open_of(config)?;
    let known = |name: &str| looked.directory.manifest.tables.iter().any(|t| t.name == name);
    if let Some(name) = table.filter(|name| !known(name)) {
        let name = name.to_owned();
        return Err(Error::TableName { name, reason: "there is no such table" });
    }
    let (store, others, recovered) = if looked.is_open {
        let manifest = &looked.directory.manifest;
        let is_asked = |name: &&str| table.is_none_or(|table| table == *name);
        let mut kinds = OF_ENGINE.iter().map(|kind| TablesOfKind::of(manifest, kind));
        if kinds.any(|of| of.names.iter().any(is_asked)) {
            let reason = "a process has the directory open: their pages make a state only together with \
                 the logs, to which it appends; end the process, or name a table in memory";
            kinds::refuse(&config.data, manifest, reason)?;
        }
        let (store, recovered) = looked.look(load_newest, Result::is_err)?;
        (store, None, recovered)
    } else {
        recover(&looked.directory, procedures)?
    };
    let mut worker = Worker::new(store, Box::new(stillpoint_store::NoLog::default()))
        .ok_or(Error::TooManySessions(cpu_count()))?;
    let mut tables = Vec::new();
    for entry in &looked.directory.manifest.tables {
        if table.is_none_or(|name| name == entry.name) {
            match &others {
                Some(others) if !entry.kind.is_in_memory() => {
                    others.visit(TableId(entry.id), &entry.name, visit)?;
                }
                _ => dump_table(&mut worker, TableId(entry.id), &entry.name, visit)?,
            }
            tables.push(entry.name.clone());
        }
    }
    Ok(Dumped { extent: looked.extent(), recovered, tables })
}

pub(super) fn new_store(manifest: &Manifest) -> Result<Arc<Store>, Error> {
    let config = StoreConfig {
        workers: cpu_count() + 1,
        hash_seed: manifest.hash_seed,
        ..StoreConfig::default()
    };
    let store = Arc::new(Store::new(&config, stillpoint_store::CellRules::IN_PLACE)?);
    for entry in manifest.tables.iter().filter(|entry| entry.kind.is_in_memory()) {
        store.add_table(TableId(entry.id), entry.generation)?;
    }
    Ok(store)
}

fn recover(
    directory: &Directory,
    procedures: PendingProcedures<'_>,
) -> Result<(Arc<Store>, Option<ReadTables>, RecoverySummary), Error> {
    let plan = plan(directory)?;
    let (disk, threads) = (&directory.disk, cpu_count());
    let needed = plan.procedures_needed(threads)?;
    // Procedures ask for tables. So they are made for logs with calls alone.
    let procedures = if needed.is_empty() {
        None
    } else {
        // Tables that are missing hold nothing.
        let made = procedures.make(&mut plan.manifest.tables.clone(), &TableKind::Memory)?;
        repeat::check(&made, &needed)?;
        Some(made)
    };
    let calls = procedures.as_ref().map(|made| made as &dyn Calls);
    let store = match calls {
        Some(_) => {
            new_store(&Manifest { tables: plan.tables_at_point(), ..plan.manifest.clone() })?
        }
        None => new_store(&plan.manifest)?,
    };
    let (clock, quiet) = (&RealClock, &mut |_: &_| {});
    let Some(others) = ReadTables::open(&**disk, &plan.manifest)? else {
        let summary = stillpoint_recovery::run(disk, &plan, &store, calls, threads, clock, quiet)?;
        return Ok((store, None, summary));
    };
    let mut replay = others.replay(&plan.manifest);
    let heard = (&mut replay as &mut dyn Operations, calls);
    let summary = stillpoint_recovery::run_with(disk, &plan, &store, heard, threads, clock, quiet)?;
    kinds::undo_losers(replay, &plan)?;
    Ok((store, Some(others), summary))
}

/// The state at the newest checkpoint's point of consistency. A later flush of a table is not part
/// of this state.
fn load_newest(directory: &Directory) -> Result<(Arc<Store>, RecoverySummary), Error> {
    let mut manifest = directory.manifest.clone();
    let generations = newest(&directory.manifest).map_or(&[][..], |entry| &entry.generations);
    for then in generations {
        let table = manifest.tables.iter_mut().find(|table| table.id == then.table);
        table.into_iter().for_each(|table| table.generation = then.generation);
    }
    let store = new_store(&manifest)?;
    let (disk, threads) = (&directory.disk, cpu_count());
    let summary =
        stillpoint_recovery::load(disk, &manifest, &store, threads, &RealClock, &mut |_| {})?;
    Ok((store, summary))
}

fn dump_table(
    worker: &mut Worker,
    id: TableId,
    name: &str,
    visit: &mut DumpVisit<'_>,
) -> Result<(), Error> {
    let mut cursor = 0;
    loop {
        let mut result = Ok(());
        cursor = worker.scan(id, cursor, 1024, &mut |key, value| {
            if result.is_ok() {
                result = visit(name, key, value);
            }
        })?;
        result.map_err(Error::Output)?;
        if cursor == 0 {
            return Ok(());
        }
    }
}
