//! The store: tables and their log, sessions, checkpoints.

use std::sync::Arc;

use stillpoint_format::siren::LogRecord;
use stillpoint_io::Disk;
use stillpoint_sync::Mutex;
use stillpoint_sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::base::Base;
use crate::checkpoint::{Checkpoint, Published};
use crate::config::Config;
use crate::copier::CheckpointDone;
use crate::error::{SirenError, SirenResult};
use crate::log::RedoLog;
use crate::pages::Occupancy;
use crate::recovery::{self, Recovered};
use crate::table::Table;
use crate::transaction::Session;

/// The number of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u16);

/// A store of tables of tuples.
///
/// ```
/// use std::sync::Arc;
/// use stillpoint_io::SimDisk;
/// use stillpoint_siren::{Config, Store};
///
/// let disk = SimDisk::new(1);
/// let store = Store::open(Arc::new(disk.clone()), Config::default())?;
/// let accounts = store.table("accounts")?;
/// let session = store.session()?;
/// let mut transaction = session.begin();
/// transaction.put(accounts, b"ann", b"100")?;
/// store.checkpoint()?; // the image has the open transaction, marked as open
/// let savepoint = transaction.savepoint();
/// transaction.put(accounts, b"bob", b"7")?;
/// transaction.roll_back_to(savepoint)?;
/// transaction.commit()?;
///
/// let after = Store::open(Arc::new(disk.crash(2)), Config::default())?;
/// let session = after.session()?;
/// let mut transaction = session.begin();
/// assert_eq!(transaction.get(accounts, b"ann")?.as_deref(), Some(&b"100"[..]));
/// assert_eq!(transaction.get(accounts, b"bob")?, None);
/// # Ok::<(), stillpoint_siren::SirenError>(())
/// ```
#[derive(Debug)]
pub struct Store {
    pub(crate) base: Base,
    pub(crate) log: RedoLog,
    pub(crate) next_transaction: AtomicU64,
    pub(crate) published: Mutex<Published>,
    pub(crate) recovered: Recovered,
}

impl Store {
    /// Opens the store on a disk, or makes it. Reads the newest checkpoint, and reopens the
    /// transactions that it found open. Then rolls the log forward in one pass, and aborts what is
    /// left open. A log is rolled forward whatever the logging of this opening.
    ///
    /// # Errors
    /// A setting outside its range; the disk; damaged files.
    pub fn open(disk: Arc<dyn Disk>, config: Config) -> SirenResult<Self> {
        check(&config)?;
        recovery::open(disk, config)
    }

    /// What the opening has found.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// The table of this name, a new one if there is none.
    ///
    /// # Errors
    /// All numbers of tables are taken; the log.
    pub fn table(&self, name: &str) -> SirenResult<TableId> {
        let find = |tables: &[Arc<Table>]| tables.iter().find(|it| it.name == name).map(|it| it.id);
        let base = &self.base;
        if let Some(id) = find(&base.tables.read()) {
            return Ok(TableId(id));
        }
        let slot = self.claim_section()?;
        let section = base.sections.read_section(slot);
        let mut tables = base.tables.write();
        let made: SirenResult<u16> = find(&tables).map_or_else(
            || {
                let id = tables.iter().map(|it| it.id).max().unwrap_or(0);
                let id = id.checked_add(1).ok_or(SirenError::TooManyTables)?;
                let level = base.level.load(SeqCst);
                self.log.append(level, 0, &LogRecord::Table { table: id, name })?;
                // Operations of the level before may be under way in other tables, and none in this.
                tables.push(Table::new(id, name, 0, base.new_pages(id, level, 0)));
                Ok(id)
            },
            Ok,
        );
        drop(tables);
        drop(section);
        base.sections.unclaim(slot);
        let id = made?;
        self.log.settle(self.log.end())?;
        Ok(TableId(id))
    }

    fn claim_section(&self) -> SirenResult<usize> {
        let limit = self.base.config.sessions;
        self.base.sections.claim().ok_or(SirenError::NoSession { limit })
    }

    pub(crate) fn table_of(&self, id: TableId) -> Option<Arc<Table>> {
        self.base.table(id.0)
    }

    /// A session: the place of one thread.
    ///
    /// # Errors
    /// All sessions are taken.
    pub fn session(&self) -> SirenResult<Session<'_>> {
        Ok(Session::new(self, self.claim_section()?))
    }

    /// Takes a checkpoint: everything committed so far, and the open transactions, marked as open.
    ///
    /// # Errors
    /// The disk. The checkpoint before stays in force.
    pub fn checkpoint(&self) -> SirenResult<CheckpointDone> {
        self.begin_checkpoint()?.finish()
    }

    /// Begins a checkpoint that the caller takes step by step. Waits for one that is under way.
    ///
    /// # Errors
    /// The log; an earlier checkpoint is in doubt.
    pub fn begin_checkpoint(&self) -> SirenResult<Checkpoint<'_>> {
        Checkpoint::begin(self)
    }

    /// Whether enough log has gathered for the next checkpoint.
    pub fn is_checkpoint_due(&self) -> bool {
        self.log.bytes_since_checkpoint() >= self.base.config.checkpoint_log_bytes
    }

    /// Makes all commits so far durable, if they are logged.
    ///
    /// # Errors
    /// The log has failed.
    pub fn flush(&self) -> SirenResult<()> {
        self.log.flush(self.log.end())
    }

    /// Bytes of all log records of this opening, and the bytes that were written for them.
    pub fn log_bytes(&self) -> (u64, u64) {
        self.log.bytes()
    }

    /// The memory that checkpoints take in a table.
    pub fn occupancy(&self, table: TableId) -> Occupancy {
        let table = self.table_of(table);
        table.map(|table| table.pages.lock().occupancy()).unwrap_or_default()
    }

    /// The peaks of a table's [`Occupancy`] count anew from here.
    pub fn begin_peaks(&self, table: TableId) {
        if let Some(table) = self.table_of(table) {
            table.pages.lock().begin_peaks();
        }
    }

    /// Number of keys of a table with a committed value.
    pub fn records(&self, table: TableId) -> u64 {
        self.table_of(table).map_or(0, |table| table.records())
    }

    /// The most turns of the checkpointer, of one tuple each, that a writer has waited for.
    pub fn waited_turns_max(&self) -> u64 {
        let tables = self.base.tables.read();
        tables.iter().map(|table| table.pages.waited_turns_max()).max().unwrap_or(0)
    }

    /// Writes that waited for the pages of pending removes.
    pub fn slowed_writes(&self) -> u64 {
        self.base.slowed.load(SeqCst)
    }

    /// Checks the links, counts and versions of all tables, while nothing else runs.
    ///
    /// # Errors
    /// What contradicts what.
    pub fn check(&self) -> Result<(), String> {
        self.base.check()
    }
}

/// Checks the settings.
pub(crate) fn check(config: &Config) -> SirenResult<()> {
    use stillpoint_format::siren::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};
    let page_bytes = config.page_bytes;
    let wrong = |setting, value, allowed| Err(SirenError::Setting { setting, value, allowed });
    if !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes)
        || !page_bytes.is_multiple_of(PAGE_BYTES_MIN)
    {
        return wrong("page_bytes", page_bytes.into(), "a multiple of 4096 up to 1048576");
    }
    if !(10..=100).contains(&config.fill_percent) {
        return wrong("fill_percent", config.fill_percent.into(), "10 to 100");
    }
    if config.sessions == 0 || config.sessions > 1 << 16 {
        return wrong("sessions", config.sessions as u64, "1 to 65536");
    }
    Ok(())
}
