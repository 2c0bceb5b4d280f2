//! SIREN as a kind of table of the engine. The journal takes the place of the redo log, and the MANIFEST
//! that of the checkpoint's header.
//!
//! ```text
//! operation: read section [ level ─▶ record with the level ─▶ pages ]
//! commit:    one record of all kinds ─▶ read section [ level ─▶ pages ]
//! declared:  read section [ level ─▶ all records and the commit ─▶ pages ]
//! checkpoint ─▶ pages, directory ─▶ sections ─▶ MANIFEST ─▶ old disk pages are free
//! ```
//! 1. A record has the level of its operation. A checkpoint of level n holds exactly the operations of
//!    levels up to n, so a replay leaves out these.
//! 2. A replay does not hear of commits. It undoes the transactions without an end. Then every version that
//!    is left was committed. So it does not matter which commits the checkpoint holds already.
//! 3. A version under another transaction's operation is committed: that transaction got the lock.
//! 4. Nobody sees what a declared transaction writes before its commit. So its records, which all have one level,
//!    and its changes are one operation. A checkpoint holds all of it or nothing.
//! 5. Levels and numbers of transactions go on above all that the checkpoint and the logs have.

use std::collections::HashMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::ident::StoreId;
use stillpoint_format::siren::{TupleChange, TupleOperation};
use stillpoint_io::{Disk, OpenMode, grow_heap_in_large_steps};
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use stillpoint_sync::{Backoff, Mutex, mutant};
use stillpoint_txn::{
    KindPart, KindTable, LockedTables, LogRefused, MemoryLimit, Operation, OperationLog, Presence,
    Sections, TableId, TableKind, TxError, UnlockedRead,
};

use crate::base::{Base, HeldBytes};
use crate::config::Config;
use crate::copier::{Copier, OnDisk, Prepared};
use crate::cursors::Cursors;
use crate::disk_pages::DiskPages;
use crate::error::{SirenError, SirenResult};
use crate::load::{Loaded, WrittenKey};
use crate::look::Named;
use crate::part::Part;
use crate::planted;
use crate::proxy::{tagged, untagged};
use crate::section::Section;
use crate::store;
use crate::table::{Author, Table};

/// The name of the kind in the MANIFEST.
pub const KIND_NAME: &str = "siren";

/// The settings of the kind.
#[derive(Clone, Debug)]
pub struct KindConfig {
    /// The store.
    pub store: StoreId,
    /// Bytes that the tuples may take in memory, those that wait for a checkpoint's pages included. A write
    /// beyond this is refused.
    pub memory_bytes: usize,
    /// Pages, checkpoints and sessions. The settings of logs and of the store's own transactions do not
    /// count.
    pub config: Config,
}

/// A record that does not belong to the kind, or does not fit the state of its key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error(transparent)]
    Decode(#[from] stillpoint_format::DecodeError),
    #[error("an undo of transaction {transaction} does not fit its key, which {found}")]
    Misfit { transaction: u64, found: &'static str },
    #[error("a record of the log after the replay")]
    TooLate,
}

/// Bytes of a page's entry in the directory, at most.
const DIRECTORY_ENTRY_BYTES: u64 = 24;
/// Bytes of memory from which on the tuples' memory comes in large steps.
const LARGE_BYTES: usize = 256 << 20;
/// Cursors from here on are random places in a table.
const PLACES_FROM: u64 = 1 << 48;

/// What the kind holds at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SirenStats {
    /// Tuples, open ones and such that wait for a checkpoint among them.
    pub tuples: u64,
    /// Logical pages.
    pub pages: u64,
    /// Bytes of memory of the tuples, those included that wait for the pages of a checkpoint.
    pub held_bytes: usize,
    /// The most that they may take.
    pub memory_bytes: usize,
    /// The level of the present operations. Each checkpoint raises it.
    pub level: u64,
    /// The most turns of the checkpointer, of one tuple each, that a writer has waited for.
    pub waited_turns_max: u64,
    /// Writes that waited for the pages of pending removes.
    pub slowed_writes: u64,
}

/// The state of a replay.
struct Replay {
    /// Tables of the checkpoint that were not added yet.
    loaded: HashMap<u16, Arc<Table>>,
    /// The tables that the checkpoint has, and its level.
    held: HashMap<u16, u64>,
    /// Keys that have, or had, versions of transactions that are not known to have ended.
    open: Vec<WrittenKey>,
    /// The greatest level of any record.
    level_max: u64,
    /// Whether the operations are at a level above all records.
    is_raised: bool,
}

/// The kind of tables.
pub struct Siren {
    pub(crate) base: Base,
    memory_bytes: AtomicUsize,
    next_transaction: AtomicU64,
    section: Option<Section>,
    replay: Mutex<Replay>,
    is_serving: AtomicBool,
    /// The read section of whoever has none of its own: an undo, a new table.
    shared_slot: Mutex<usize>,
    /// The checkpoint that is to be published.
    prepared: Mutex<Option<Prepared>>,
    cursors: Cursors,
}

impl fmt::Debug for Siren {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Siren").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

fn abandon(error: SirenError) -> TxError {
    TxError::abandon(error)
}

impl Siren {
    /// The kind, with what the sections of the MANIFEST name. `tables` are its tables: number, generation
    /// and section. `mode` is for a reader who changes nothing.
    ///
    /// # Errors
    /// A setting outside its range, a section that cannot be read, the disk, damage.
    pub fn open(
        disk: &dyn Disk,
        settings: KindConfig,
        mode: OpenMode,
        tables: &[KindTable<'_>],
    ) -> SirenResult<Arc<Self>> {
        let KindConfig { store, memory_bytes, mut config } = settings;
        store::check(&config)?;
        if memory_bytes >= LARGE_BYTES {
            grow_heap_in_large_steps();
        }
        let named = Named::of(tables)?;
        let section = named.newest;
        let (created_ms, threads) = (config.clock.wall_ms(), 2 * config.sessions + 2);
        let (state, on_disk) = match section {
            None => {
                let pages = DiskPages::absent(store, created_ms, config.page_bytes);
                (Loaded::new(store, config, (0, 1)), OnDisk::empty(pages))
            }
            Some(section) => {
                let Section { level, next_transaction, directory, bytes } = section;
                let place = (directory, bytes, level);
                let counts = |id| named.has(id);
                let (pages, stored) = DiskPages::open_named(disk, store, mode, place, counts)?;
                config.page_bytes = pages.header.page_bytes;
                let mut state = Loaded::new(store, config, (level, next_transaction));
                for (id, generation) in &named.tables {
                    state.table(id.0, "", *generation);
                }
                state.load(&pages, &stored, true)?;
                (state, OnDisk::of(pages, &stored, directory))
            }
        };
        Ok(Arc::new(Self::assemble(state, on_disk, threads, (memory_bytes, section))))
    }

    fn assemble(
        mut state: Loaded,
        on_disk: OnDisk,
        threads: usize,
        (memory_bytes, section): (usize, Option<Section>),
    ) -> Self {
        let tables = std::mem::take(&mut state.tables);
        let level = section.map_or(0, |section| section.level);
        let replay = Replay {
            held: tables.iter().map(|table| (table.id, level)).collect(),
            loaded: tables.into_iter().map(|table| (table.id, table)).collect(),
            open: std::mem::take(&mut state.open).into_values().flatten().collect(),
            level_max: 0,
            is_raised: false,
        };
        let next_transaction = AtomicU64::new(state.next_transaction);
        let base = state.into_base(on_disk, threads);
        let slot = base.sections.claim().expect("a slot of a new base");
        Self {
            base,
            memory_bytes: AtomicUsize::new(memory_bytes),
            next_transaction,
            section,
            replay: Mutex::new(replay),
            is_serving: AtomicBool::new(false),
            shared_slot: Mutex::new(slot),
            prepared: Mutex::default(),
            cursors: Cursors::default(),
        }
    }

    /// What the kind holds at present.
    pub fn stats(&self) -> SirenStats {
        let tables = self.base.tables.read();
        let mut stats = SirenStats {
            held_bytes: self.held_bytes(),
            // Relaxed: a limit, which orders nothing.
            memory_bytes: self.memory_bytes.load(Relaxed),
            level: self.base.level.load(SeqCst),
            slowed_writes: self.base.slowed.load(SeqCst),
            ..SirenStats::default()
        };
        for table in tables.iter() {
            let pages = table.pages.lock();
            let of_table = pages.occupancy();
            stats.tuples += of_table.tuples;
            stats.pages += of_table.pages;
            stats.held_bytes = stats.held_bytes.saturating_add_signed(pages.untold_bytes());
            stats.waited_turns_max = stats.waited_turns_max.max(table.pages.waited_turns_max());
        }
        stats
    }

    /// Checks the links, counts and versions of all tables, while nothing else runs.
    ///
    /// # Errors
    /// What contradicts what.
    pub fn check(&self) -> Result<(), String> {
        self.serve();
        self.base.check()
    }

    /// Pages of a table. 0 if there is no such table.
    pub fn page_count(&self, table: TableId) -> u64 {
        self.serve();
        self.base.table(table.0).map_or(0, |table| table.pages.lock().occupancy().pages)
    }

    pub(crate) fn table(&self, id: TableId) -> Result<Arc<Table>, TxError> {
        self.base.table(id.0).ok_or(TxError::NoSuchTable(id))
    }

    /// A number for a transaction.
    pub(crate) fn new_transaction(&self) -> u64 {
        // Relaxed: numbers are unique, and order nothing.
        self.next_transaction.fetch_add(1, Relaxed)
    }

    /// Bytes of memory of the tuples, those included that wait for the pages of a checkpoint.
    ///
    /// The count may be wrong by some tuples of each table.
    fn held_bytes(&self) -> usize {
        // Relaxed: counts.
        let HeldBytes { tuples, removes, .. } = &*self.base.held;
        tuples.load(Relaxed).saturating_add(removes.load(Relaxed))
    }

    /// Sets the limit of these bytes. Memory already in use stays in use.
    pub fn set_memory_bytes(&self, bytes: usize) {
        // Relaxed: as in `check_room`.
        self.memory_bytes.store(bytes, Relaxed);
    }

    /// Refuses a version of so many bytes if there is no memory for it.
    pub(crate) fn check_room(&self, bytes: usize) -> Result<(), TxError> {
        // Relaxed: a limit, which orders nothing.
        let (held, limit) = (self.held_bytes(), self.memory_bytes.load(Relaxed));
        if held.saturating_add(bytes) > limit {
            return Err(TxError::Memory(MemoryLimit { held, limit }));
        }
        Ok(())
    }

    /// Claims a read section for a session. Sessions that end give theirs back a moment after their place
    /// is free.
    pub(crate) fn claim_section(&self) -> usize {
        let mut backoff = Backoff::new();
        loop {
            if let Some(slot) = self.base.sections.claim() {
                return slot;
            }
            backoff.wait();
        }
    }

    /// Raises the level above all that the logs have, once.
    fn raise_level(&self, replay: &mut Replay) {
        if std::mem::replace(&mut replay.is_raised, true) {
            return;
        }
        let level = self.base.level.load(SeqCst).max(replay.level_max);
        self.base.level.store(level, SeqCst);
        self.base.tables.read().iter().for_each(|table| table.pages.lock().raise_level(level));
    }

    /// Ends the replay: what was not undone is committed.
    pub(crate) fn serve(&self) {
        // Acquire: partner of the Release below.
        if self.is_serving.load(Acquire) {
            return;
        }
        let mut replay = self.replay.lock();
        self.raise_level(&mut replay);
        let level = self.base.level.load(SeqCst);
        for (table, proxy) in std::mem::take(&mut replay.open) {
            mutant!(table.commit(level, &proxy, None), CommittedLeftOpen => ());
            if proxy.versions.lock().is_empty() {
                table.gates.purge(proxy.stamp());
                table.index.forget(&proxy);
            }
        }
        self.is_serving.store(true, Release);
    }

    /// Repeats an operation of a log.
    fn repeat(&self, table: &Arc<Table>, operation: &TupleOperation<'_>) -> Result<(), TxError> {
        let TupleOperation { level, transaction, statement, replaces, key, change } = *operation;
        let replay = &mut *self.replay.lock();
        // Acquire: partner of the Release in `serve`.
        if self.is_serving.load(Acquire) {
            return Err(TxError::abandon(RecordError::TooLate));
        }
        replay.level_max = replay.level_max.max(level);
        self.next_transaction.fetch_max(transaction.saturating_add(1), Relaxed);
        let held = replay.held.get(&table.id).copied().unwrap_or(0);
        if mutant!(level <= held, RepeatedTwice => false) {
            return Ok(());
        }
        let now = self.base.level.load(SeqCst);
        let proxy = table.index.find_or_insert(key);
        let author = table.author(&proxy);
        if author.is_some_and(|author| author != transaction) {
            table.commit(now, &proxy, None);
        }
        let value = match change {
            TupleChange::Put(tag, value) => Some(tagged(tag, value)),
            TupleChange::Delete => None,
            TupleChange::Undo => {
                if author != Some(transaction) {
                    let found = if author.is_none() { "is not open" } else { "another one has" };
                    return Err(TxError::abandon(RecordError::Misfit { transaction, found }));
                }
                if !replaces {
                    table.roll_back(now, &proxy, statement);
                }
                return Ok(());
            }
        };
        if author.is_none() {
            replay.open.push((table.clone(), proxy.clone()));
        }
        table.write(now, &proxy, value, Author { transaction, statement });
        Ok(())
    }

    /// Logs the undo of an operation, and takes its version back.
    fn undo_operation(
        &self,
        table: &Arc<Table>,
        operation: &TupleOperation<'_>,
        log: &mut dyn OperationLog,
    ) -> Result<(), TxError> {
        let TupleOperation { transaction, statement, replaces, key, .. } = *operation;
        let found = "is not in the table";
        let misfit = || TxError::abandon(RecordError::Misfit { transaction, found });
        let proxy = table.index.find(key).ok_or_else(misfit)?;
        let touched = [proxy.stamp()];
        loop {
            let slot = self.shared_slot.lock();
            let appended = self.base.operate(*slot, |level| {
                let mut body = Vec::new();
                TupleOperation { level, ..*operation }.encode(&mut body);
                let (table_id, generation) = (TableId(table.id), table.generation);
                let stamp = log.append(&Operation {
                    table: table_id,
                    generation,
                    touched: &touched,
                    body: &body,
                    undo: &body,
                    undo_bytes: body.len(),
                })?;
                // Nobody else notes the end of a transaction that a start undoes.
                mutant!(proxy.set_stamp(stamp), UndoWithoutStamp => ());
                if !replaces {
                    table.roll_back(level, &proxy, statement);
                }
                Ok(())
            });
            drop(slot);
            match appended {
                Ok(()) => return Ok(()),
                Err(LogRefused::NoRoom) => log.wait_for_room()?,
                Err(refused) => return Err(refused.into()),
            }
        }
    }
}

fn decode(body: &[u8]) -> Result<TupleOperation<'_>, TxError> {
    TupleOperation::decode(body).map_err(|error| TxError::abandon(RecordError::from(error)))
}

impl TableKind for Siren {
    fn name(&self) -> &'static str {
        KIND_NAME
    }

    fn add_table(&self, table: &KindTable<'_>, _: &dyn Disk) -> Result<(), TxError> {
        let KindTable { id, generation, section } = *table;
        let loaded = self.replay.lock().loaded.remove(&id.0);
        let is_it = section.map(Section::read) == loaded.as_ref().map(|_| self.section);
        if !is_it {
            let text = section.unwrap_or_default().to_owned();
            return Err(abandon(SirenError::Section { table: id.0, text }));
        }
        let slot = self.shared_slot.lock();
        // The level is read in a read section, so a checkpoint that begins now concerns the table.
        self.base.operate(*slot, |level| {
            let new = || Table::new(id.0, "", generation, self.base.new_pages(id.0, level, 0));
            self.base.tables.write().push(loaded.unwrap_or_else(new));
        });
        Ok(())
    }

    fn new_part(self: Arc<Self>) -> Box<dyn KindPart> {
        self.serve();
        Box::new(Part::new(self))
    }

    fn lock_tables(
        &self,
        tables: &[TableId],
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Box<dyn LockedTables + '_>, TxError> {
        let mut locked = AllLocked { kind: self, tables: Vec::new() };
        for &id in tables {
            let table = self.table(id)?;
            if !table.gates.close(may_wait) {
                return Err(TxError::Conflict);
            }
            locked.tables.push(table);
        }
        Ok(Box::new(locked))
    }

    fn keys(
        &self,
        table: TableId,
        cursor: u64,
        count: usize,
        out: &mut Vec<Vec<u8>>,
    ) -> Result<Presence<u64>, TxError> {
        let of_table = self.table(table)?;
        let unknown = || abandon(SirenError::UnknownCursor { table: table.0, cursor });
        let after = match cursor {
            0 => None,
            // No scan has so many steps: whoever draws records at random gives a random number.
            PLACES_FROM.. => of_table.index.key_at(cursor),
            cursor => Some(self.cursors.find(table, cursor).ok_or_else(unknown)?),
        };
        let above = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let is_end = of_table.index.keys(above, count.max(1), out);
        let next = match out.last() {
            Some(last) if !is_end => self.cursors.note(table, cursor, last),
            _ => 0,
        };
        Ok(Presence::Here(next))
    }

    fn read(
        &self,
        table: TableId,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Presence<Option<UnlockedRead>>, TxError> {
        // A key without a value may depend on purged ones, so a transaction reads it.
        let found = self.table(table)?.index.with(key, |proxy| proxy.committed()).flatten();
        Ok(Presence::Here(found.map(|(value, stamp)| {
            let (tag, bytes) = untagged(&value);
            out.extend_from_slice(bytes);
            UnlockedRead { tag: Some(tag), stamp }
        })))
    }

    fn record_count(&self, table: TableId) -> u64 {
        self.serve();
        self.base.table(table.0).map_or(0, |table| table.records())
    }

    fn redo(&self, table: TableId, _: Stamp, body: &[u8]) -> Result<(), TxError> {
        self.repeat(&self.table(table)?, &decode(body)?)
    }

    fn undo(&self, table: TableId, body: &[u8], log: &mut dyn OperationLog) -> Result<(), TxError> {
        let operation = TupleOperation::decode_undo(body)
            .map_err(|error| TxError::abandon(RecordError::from(error)))?;
        // Acquire: partner of the Release in `serve`.
        if !self.is_serving.load(Acquire) {
            self.raise_level(&mut self.replay.lock());
        }
        self.undo_operation(&self.table(table)?, &operation, log)
    }

    fn checkpoint(&self, disk: &dyn Disk) -> Result<Option<Sections>, TxError> {
        self.serve();
        if self.base.tables.read().is_empty() {
            return Ok(Some(Sections::new()));
        }
        let mut on_disk = self.base.lock_disk().map_err(abandon)?;
        if let Err(error) = on_disk.pages.make(disk) {
            // A flush may have failed, and a second one would say nothing about what was lost.
            let reason = error.to_string();
            on_disk.in_doubt = Some(reason.clone());
            return Err(abandon(SirenError::InDoubt { reason }));
        }
        let level = self.base.change_level();
        let mut copier = Copier::begin(&self.base, on_disk, level);
        // Relaxed: the grace period has ordered the numbers of all operations of the level.
        let next_transaction = self.next_transaction.load(Relaxed);
        let prepared = copier.prepare().map_err(|error| match &copier.on_disk.in_doubt {
            Some(reason) => abandon(SirenError::InDoubt { reason: reason.clone() }),
            None => abandon(error),
        })?;
        let (stored, bytes) = prepared.directory();
        let section = Section { level, next_transaction, directory: stored.extent, bytes };
        let section = section.write();
        let sections = copier.tables().map(|id| (TableId(id), section.clone())).collect();
        *self.prepared.lock() = Some(prepared);
        Ok(Some(sections))
    }

    fn hurry(&self) {
        // Relaxed: a wish, which orders nothing.
        self.base.hurries.store(true, Relaxed);
    }

    fn checkpoint_bytes(&self) -> u64 {
        let (mut bytes, mut pages) = (0, 0);
        for table in self.base.tables.read().iter() {
            let of_table = table.pages.lock().dirty();
            bytes += of_table.bytes;
            pages += of_table.dirty + of_table.all;
        }
        // Each page ends within a disk page, and has an entry in the directory.
        bytes + pages * DIRECTORY_ENTRY_BYTES + 2 * u64::from(self.base.config.page_bytes)
    }

    fn checkpoint_ended(&self, _: &dyn Disk, is_published: bool) {
        let Some(prepared) = self.prepared.lock().take() else { return };
        let mut on_disk = self.base.on_disk.lock();
        match is_published {
            true => prepared.publish(&self.base, &mut on_disk),
            false => prepared.give_up(&self.base, &mut on_disk),
        }
    }
}

/// Some tables, locked as wholes.
struct AllLocked<'k> {
    kind: &'k Siren,
    tables: Vec<Arc<Table>>,
}

impl LockedTables for AllLocked<'_> {
    fn empty(&mut self, generations: &[u32]) {
        let base = &self.kind.base;
        for (table, &generation) in self.tables.iter().zip(generations) {
            let slot = self.kind.shared_slot.lock();
            base.operate(*slot, |level| {
                let numbers = table.pages.lock().numbers();
                let pages = base.new_pages(table.id, level, numbers);
                let empty = Table::new(table.id, "", generation, pages);
                table.gates.note_emptied();
                let mut tables = base.tables.write();
                let place = tables.iter_mut().find(|now| now.id == table.id);
                *place.expect("a locked table is there") = empty;
            });
        }
    }
}

impl Drop for AllLocked<'_> {
    fn drop(&mut self) {
        self.tables.iter().for_each(|table| table.gates.open());
    }
}
