//! Recovery (SIREN, ICDE 2006, §3.4).
//!
//! ```text
//! newest header ─▶ directory ─▶ pages ─▶ transactions found open, open again
//!   ─▶ log, one forward pass: operations of higher levels ─▶ what is left open is aborted
//! ```
//! 1. An operation of a level up to that of the checkpoint is in the pages, with its effect.
//! 2. A segment of a later opening begins where all transactions of the earlier ones have ended: that
//!    opening has aborted what was open.
//! 3. What was read is durable before anything new is written. The torn end of the last segment is cut
//!    off, so it can never be read as whole.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use stillpoint_format::ident::StoreId;
use stillpoint_format::names;
use stillpoint_format::siren::{
    BatchReader, CheckpointHeader, ExtentKind, LogRecord, Logged, SegmentHeader, StoredExtent,
    StoredPage,
};
use stillpoint_io::{Caching, Clock, Disk, OpenMode, in_parallel, read_all};
use stillpoint_sync::atomic::{AtomicU64, AtomicUsize};
use stillpoint_sync::{Mutex, ReadSections, RwLock, mutant};

use crate::checkpoint::OnDisk;
use crate::config::{Config, Removes};
use crate::disk_pages::{DiskPages, Newest};
use crate::error::{SirenError, SirenResult};
use crate::log::{RedoLog, segment_path};
use crate::planted;
use crate::proxy::Proxy;
use crate::slab::Slot;
use crate::store::{Store, capacity};
use crate::table::{Author, Table};

/// What an opening has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Level of the checkpoint; 0 without one.
    pub level: u64,
    /// Tuples in the checkpoint.
    pub tuples: u64,
    /// Transactions that the checkpoint holds as open.
    pub reopened: u64,
    /// Records of the log that were rolled forward.
    pub records: u64,
    /// Transactions that were left open at the end, and aborted.
    pub aborted: u64,
}

/// A tuple of a checkpoint.
struct LoadedTuple {
    table: u16,
    key: Vec<u8>,
    value: Option<Arc<[u8]>>,
    open: Option<(u64, u32)>,
}

/// An extent of a checkpoint, with its tuples.
struct LoadedPage {
    stored: StoredExtent,
    tuples: Vec<LoadedTuple>,
}

impl LoadedPage {
    /// Table, first and last key.
    fn place(&self) -> (u16, Option<&[u8]>, Option<&[u8]>) {
        let first = self.tuples.first().map(|tuple| &tuple.key[..]);
        (self.stored.table, first, self.tuples.last().map(|tuple| &tuple.key[..]))
    }
}

/// A key that a transaction has written.
type WrittenKey = (Arc<Table>, Arc<Proxy>);

/// The tables and open transactions while they are recovered.
struct Recovery {
    config: Config,
    removes_bytes: Arc<AtomicUsize>,
    tables: Vec<Arc<Table>>,
    /// The keys that each open transaction has written.
    open: BTreeMap<u64, Vec<WrittenKey>>,
    /// The level at which operations are repeated: that of the checkpoint, plus one.
    level: u64,
    next_transaction: u64,
    extents: HashMap<(u16, u64), StoredExtent>,
    recovered: Recovered,
}

/// The end of the log.
struct LogEnd {
    next_segment: u64,
    incarnation: u64,
}

pub(crate) fn open(disk: Arc<dyn Disk>, mut config: Config) -> SirenResult<Store> {
    let new_store = || {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&config.rng.next_u64().to_le_bytes());
        id[8..].copy_from_slice(&config.rng.next_u64().to_le_bytes());
        StoreId(id)
    };
    let created_ms = config.clock.wall_ms();
    let (pages, newest) = DiskPages::open(&*disk, config.page_bytes, created_ms, new_store)?;
    let is_new = newest.header.level == 0;
    if newest.header.is_fuzzy || config.removes == Removes::AtOnce && !is_new {
        return Err(SirenError::Fuzzy { path: pages.path_of_file() });
    }
    config.page_bytes = pages.header.page_bytes;
    let mut recovery = Recovery {
        removes_bytes: Arc::default(),
        tables: Vec::new(),
        open: BTreeMap::new(),
        level: newest.header.level + 1,
        next_transaction: newest.header.next_transaction,
        extents: HashMap::new(),
        recovered: Recovered { level: newest.header.level, ..Recovered::default() },
        config,
    };
    recovery.load(&pages, &newest)?;
    let end = recovery.roll_forward(&*disk, &pages, &newest.header)?;
    recovery.abort_open();
    recovery.assemble(disk, pages, newest, &end)
}

impl Recovery {
    fn table(&mut self, id: u16, name: &str) {
        if self.tables.iter().any(|table| table.id == id) {
            return;
        }
        let removes = (self.config.removes, self.removes_bytes.clone());
        // Nobody works at a lower level, so the level is settled.
        self.tables.push(Table::new(id, name, capacity(&self.config), removes, self.level));
    }

    fn find(&self, id: u16) -> Option<Arc<Table>> {
        self.tables.iter().find(|table| table.id == id).cloned()
    }

    /// Loads the pages of the checkpoint.
    fn load(&mut self, pages: &DiskPages, newest: &Newest) -> SirenResult<()> {
        for table in &newest.directory.tables {
            self.table(table.id, &table.name);
        }
        let mut loaded = read_pages(pages, newest, self.config.recovery_threads)?;
        // The directory lists pages by their place on the disk. Their order is that of their keys.
        // Versions of one key may begin several pages.
        loaded.sort_by(|a, b| a.place().cmp(&b.place()));
        let (apart, ordinary): (Vec<_>, Vec<_>) =
            loaded.into_iter().partition(|page| page.stored.kind == ExtentKind::Removes);
        for page in ordinary {
            self.load_page(pages, page)?;
        }
        for tuple in apart.into_iter().flat_map(|page| page.tuples) {
            let table = self.table_of_tuple(pages, &tuple)?;
            let proxy = table.index.find_or_insert(&tuple.key);
            let statement = tuple.open.map(|(_, statement)| statement);
            let previous = proxy.versions.lock().before(statement);
            let previous = previous.or_else(|| table.index.predecessor(&tuple.key));
            let slot = table.pages.lock().load_apart(
                self.level,
                previous.unwrap_or(Slot::NONE),
                proxy.clone(),
                tuple.value.clone(),
                tuple.open,
            );
            self.add_version(pages, &table, &proxy, slot, tuple)?;
        }
        self.recovered.reopened = self.open.len() as u64;
        Ok(())
    }

    fn load_page(&mut self, pages: &DiskPages, page: LoadedPage) -> SirenResult<()> {
        let Some(table) = self.find(page.stored.table) else {
            let what = format!("a page of table {}, which it has not", page.stored.table);
            return Err(SirenError::inconsistent(pages.path_of_file(), what));
        };
        let (slot, number) = table.pages.lock().load_page();
        self.extents.insert((table.id, number), page.stored);
        for tuple in page.tuples {
            let proxy = table.index.find_or_insert(&tuple.key);
            let (value, open) = (tuple.value.clone(), tuple.open);
            let at = table.pages.lock().load_tuple(slot, proxy.clone(), value, open);
            self.add_version(pages, &table, &proxy, at, tuple)?;
        }
        Ok(())
    }

    fn table_of_tuple(&self, pages: &DiskPages, tuple: &LoadedTuple) -> SirenResult<Arc<Table>> {
        self.find(tuple.table).ok_or_else(|| {
            let what = format!("a tuple of table {}, which it has not", tuple.table);
            SirenError::inconsistent(pages.path_of_file(), what)
        })
    }

    fn add_version(
        &mut self,
        pages: &DiskPages,
        table: &Arc<Table>,
        proxy: &Arc<Proxy>,
        slot: Slot,
        tuple: LoadedTuple,
    ) -> SirenResult<()> {
        let statement = tuple.open.map(|(_, statement)| statement);
        if !table.load_version(proxy, slot, tuple.value, statement) {
            let what = format!("table {} has two tuples of one version of a key", table.id);
            return Err(SirenError::inconsistent(pages.path_of_file(), what));
        }
        if let Some((transaction, _)) = tuple.open {
            self.next_transaction = self.next_transaction.max(transaction + 1);
            self.open.entry(transaction).or_default().push((table.clone(), proxy.clone()));
        }
        self.recovered.tuples += 1;
        Ok(())
    }

    /// Repeats the operations of the log that the checkpoint does not hold, in one pass.
    fn roll_forward(
        &mut self,
        disk: &dyn Disk,
        pages: &DiskPages,
        checkpoint: &CheckpointHeader,
    ) -> SirenResult<LogEnd> {
        let first = checkpoint.first_segment;
        let names = disk.list(names::SIREN_DIR.as_ref())?;
        let numbers = names.iter().filter_map(|name| names::parse_siren_segment_name(name));
        let (mut numbers, older): (Vec<u64>, Vec<u64>) =
            numbers.partition(|number| *number >= first);
        numbers.sort_unstable();
        for number in older {
            disk.remove(&segment_path(number))?;
        }
        let mut end = LogEnd { next_segment: first, incarnation: checkpoint.incarnation };
        let missing = |number: u64| {
            let what = format!("segment {number} of the log is missing");
            SirenError::inconsistent(disk.describe(&segment_path(number)), what)
        };
        if numbers.is_empty() && checkpoint.is_logged {
            return Err(missing(first));
        }
        let last = numbers.last().copied();
        for number in numbers {
            if number != end.next_segment {
                return Err(missing(end.next_segment));
            }
            let is_last = Some(number) == last;
            let has_header = self.roll_segment(disk, pages, (number, is_last), &mut end)?;
            end.next_segment = number + u64::from(has_header);
        }
        Ok(end)
    }

    /// Repeats the operations of a segment. `false` for a last one without a valid header: a segment
    /// takes no record before its header is flushed.
    fn roll_segment(
        &mut self,
        disk: &dyn Disk,
        pages: &DiskPages,
        (number, is_last): (u64, bool),
        end: &mut LogEnd,
    ) -> SirenResult<bool> {
        let path = segment_path(number);
        let bytes = read_all(disk, &path)?;
        let damaged = |cause| SirenError::damaged(disk.describe(&path), cause);
        let header = match SegmentHeader::decode(&bytes, pages.header.store, number) {
            Ok(header) => header,
            Err(_) if is_last => {
                disk.remove(&path)?;
                return Ok(false);
            }
            Err(cause) => return Err(damaged(cause)),
        };
        if header.incarnation > end.incarnation {
            mutant!(self.abort_open(), LosersKept => ());
            end.incarnation = header.incarnation;
        }
        let mut reader = BatchReader::new(&header, &bytes);
        let mut records: Vec<Logged<'_>> = Vec::new();
        while reader.read(&mut records).map_err(damaged)? {
            for (level, transaction, record) in records.drain(..) {
                self.repeat(level, transaction, &record);
            }
        }
        let end = reader.offset();
        if end < bytes.len() as u64 && (!is_last || reader.is_damaged()) {
            let what = format!("the batch at byte {end} was durable once and is damaged");
            return Err(SirenError::inconsistent(disk.describe(&path), what));
        }
        if is_last {
            let file = disk.open(&path, OpenMode::ReadWrite, Caching::Buffered)?;
            if end < bytes.len() as u64 {
                file.set_len(end)?;
            }
            file.sync()?;
        }
        Ok(true)
    }

    /// Repeats an operation, unless the checkpoint holds it.
    fn repeat(&mut self, level: u64, transaction: u64, record: &LogRecord<'_>) {
        self.next_transaction = self.next_transaction.max(transaction + 1);
        let is_rollback = matches!(record, LogRecord::Rollback { .. });
        let is_held = level < self.level;
        if is_held && mutant!(true, StatementRolledBackTwice => !is_rollback) {
            return;
        }
        self.recovered.records += 1;
        match *record {
            LogRecord::Table { table, name } => self.table(table, name),
            LogRecord::Put { statement, table, key, value } => {
                let author = Author { transaction, statement };
                self.write(author, table, key, Some(Arc::from(value)));
            }
            LogRecord::Delete { statement, table, key } => {
                self.write(Author { transaction, statement }, table, key, None);
            }
            LogRecord::Change { statement, table, key, after, .. } => {
                self.write(Author { transaction, statement }, table, key, after.map(Arc::from));
            }
            LogRecord::Rollback { statement } => {
                for (table, proxy) in self.open.get(&transaction).into_iter().flatten() {
                    table.roll_back(self.level, proxy, statement);
                }
            }
            LogRecord::Commit => {
                for (table, proxy) in self.open.remove(&transaction).into_iter().flatten() {
                    table.commit(self.level, &proxy);
                    table.index.forget(&proxy);
                }
            }
            LogRecord::Abort => self.abort(transaction),
        }
    }

    fn write(&mut self, author: Author, table: u16, key: &[u8], value: Option<Arc<[u8]>>) {
        // A table that is not there was never acknowledged, and its record was lost before this one.
        let Some(table) = self.find(table) else {
            return;
        };
        let proxy = table.index.find_or_insert(key);
        table.write(self.level, &proxy, value, author);
        self.open.entry(author.transaction).or_default().push((table, proxy));
    }

    fn abort(&mut self, transaction: u64) {
        for (table, proxy) in self.open.remove(&transaction).into_iter().flatten() {
            table.roll_back(self.level, &proxy, 0);
            table.index.forget(&proxy);
        }
    }

    /// Aborts the transactions that are left open.
    fn abort_open(&mut self) {
        let open: Vec<u64> = self.open.keys().copied().collect();
        self.recovered.aborted += open.len() as u64;
        open.into_iter().for_each(|transaction| self.abort(transaction));
    }

    fn assemble(
        self,
        disk: Arc<dyn Disk>,
        pages: DiskPages,
        newest: Newest,
        end: &LogEnd,
    ) -> SirenResult<Store> {
        // What was repeated at a level must stay in the dirty list of that level.
        let level = self.level;
        let clock: Arc<dyn Clock> = self.config.clock.clone();
        let incarnation = end.incarnation + 1;
        let store = pages.header.store;
        let log = RedoLog::open(
            (self.config.logging, disk, clock),
            store,
            incarnation,
            end.next_segment,
        )?;
        let directory = StoredExtent {
            extent: newest.header.directory,
            kind: ExtentKind::Removes,
            table: 0,
            level: newest.header.level,
        };
        let others = newest.directory.extents.iter().filter(|it| it.kind == ExtentKind::Removes);
        let on_disk = OnDisk {
            others: others.copied().collect(),
            pages,
            extents: self.extents,
            directory: Some(directory),
            header_number: newest.number,
            first_segment: newest.header.first_segment,
            in_doubt: None,
        };
        Ok(Store {
            log,
            level: AtomicU64::new(level),
            sections: ReadSections::new(self.config.sessions + 1),
            tables: RwLock::new(self.tables),
            next_transaction: AtomicU64::new(self.next_transaction),
            on_disk: Mutex::new(on_disk),
            removes_bytes: self.removes_bytes,
            slowed: AtomicU64::new(0),
            recovered: self.recovered,
            config: self.config,
        })
    }
}

/// Reads the extents of a checkpoint, in several threads.
fn read_pages(pages: &DiskPages, newest: &Newest, threads: usize) -> SirenResult<Vec<LoadedPage>> {
    let extents = &newest.directory.extents;
    let share = extents.len().div_ceil(threads.max(1)).max(1);
    let jobs: Vec<_> = extents
        .chunks(share)
        .map(|chunk| {
            move || {
                let read = chunk.iter().map(|stored| {
                    pages
                        .read(stored, |page| load_tuples(pages, &page))
                        .map(|tuples| LoadedPage { stored: *stored, tuples })
                });
                read.collect::<SirenResult<Vec<_>>>()
            }
        })
        .collect();
    let mut loaded = Vec::with_capacity(extents.len());
    for result in in_parallel("siren-load", jobs)? {
        loaded.extend(result?);
    }
    Ok(loaded)
}

fn load_tuples(pages: &DiskPages, page: &StoredPage<'_>) -> SirenResult<Vec<LoadedTuple>> {
    let tuples = page.tuples();
    let tuples = tuples.map_err(|cause| SirenError::damaged(pages.path_of_file(), cause))?;
    let load = |tuple: &stillpoint_format::siren::TupleImage<'_>| LoadedTuple {
        table: tuple.table,
        key: tuple.key.to_vec(),
        value: (!tuple.is_delete_mark).then(|| Arc::from(tuple.value)),
        open: tuple.open,
    };
    Ok(tuples.iter().map(load).collect())
}
