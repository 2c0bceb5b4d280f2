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

use std::sync::Arc;

use stillpoint_format::ident::StoreId;
use stillpoint_format::names;
use stillpoint_format::siren::{BatchReader, CheckpointHeader, LogRecord, Logged, SegmentHeader};
use stillpoint_io::{Caching, Clock, Disk, OpenMode, read_all};
use stillpoint_sync::atomic::AtomicU64;
use stillpoint_sync::{Mutex, mutant};

use crate::checkpoint::Published;
use crate::config::{Config, Removes};
use crate::copier::OnDisk;
use crate::disk_pages::{DiskPages, Newest};
use crate::error::{SirenError, SirenResult};
use crate::load::Loaded;
use crate::log::{RedoLog, segment_path};
use crate::planted;
use crate::store::Store;
use crate::table::Author;

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

/// The tables and open transactions while they are recovered.
struct Recovery {
    state: Loaded,
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
    let header = &newest.header;
    let state = Loaded::new(pages.header.store, config, (header.level, header.next_transaction));
    let recovered = Recovered { level: header.level, ..Recovered::default() };
    let mut recovery = Recovery { state, recovered };
    recovery.load(&pages, &newest)?;
    let end = recovery.roll_forward(&*disk, &pages, &newest.header)?;
    recovery.abort_open();
    recovery.assemble(disk, pages, newest, &end)
}

impl Recovery {
    /// Loads the pages of the checkpoint.
    fn load(&mut self, pages: &DiskPages, newest: &Newest) -> SirenResult<()> {
        for table in &newest.directory.tables {
            self.state.table(table.id, &table.name, 0);
        }
        self.state.load(pages, &newest.directory, false)?;
        self.recovered.tuples = self.state.tuples;
        self.recovered.reopened = self.state.open.len() as u64;
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
        self.state.next_transaction =
            self.state.next_transaction.max(transaction.saturating_add(1));
        let is_rollback = matches!(record, LogRecord::Rollback { .. });
        let is_held = level < self.state.level;
        if is_held && mutant!(true, StatementRolledBackTwice => !is_rollback) {
            return;
        }
        self.recovered.records += 1;
        match *record {
            LogRecord::Table { table, name } => self.state.table(table, name, 0),
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
                for (table, proxy) in self.state.open.get(&transaction).into_iter().flatten() {
                    table.roll_back(self.state.level, proxy, statement);
                }
            }
            LogRecord::Commit => {
                for (table, proxy) in self.state.open.remove(&transaction).into_iter().flatten() {
                    table.commit(self.state.level, &proxy, None);
                    table.index.forget(&proxy);
                }
            }
            LogRecord::Abort => self.abort(transaction),
        }
    }

    fn write(&mut self, author: Author, table: u16, key: &[u8], value: Option<Arc<[u8]>>) {
        // A table that is not there was never acknowledged, and its record was lost before this one.
        let Some(table) = self.state.find(table) else {
            return;
        };
        let proxy = table.index.find_or_insert(key);
        table.write(self.state.level, &proxy, value, author);
        self.state.open.entry(author.transaction).or_default().push((table, proxy));
    }

    fn abort(&mut self, transaction: u64) {
        for (table, proxy) in self.state.open.remove(&transaction).into_iter().flatten() {
            table.roll_back(self.state.level, &proxy, 0);
            table.index.forget(&proxy);
        }
    }

    /// Aborts the transactions that are left open.
    fn abort_open(&mut self) {
        let open: Vec<u64> = self.state.open.keys().copied().collect();
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
        let clock: Arc<dyn Clock> = self.state.config.clock.clone();
        let incarnation = end.incarnation + 1;
        let store = pages.header.store;
        let log = RedoLog::open(
            (self.state.config.logging, disk, clock),
            store,
            incarnation,
            end.next_segment,
        )?;
        let published =
            Published { header_number: newest.number, first_segment: newest.header.first_segment };
        let Self { mut state, recovered } = self;
        let next_transaction = AtomicU64::new(state.next_transaction);
        let tables = std::mem::take(&mut state.tables);
        let threads = state.config.sessions + 1;
        let at = newest.header.directory;
        let base = state.into_base(OnDisk::of(pages, &newest.directory, at), threads);
        *base.tables.write() = tables;
        let published = Mutex::new(published);
        Ok(Store { base, log, next_transaction, published, recovered })
    }
}
