//! The kind of paged tables.
//!
//! **Durability, first form.** Pages are placed in free slots, and a checkpoint names the state of all
//! pages in the sections of the MANIFEST. What is placed later, by evictions, is forgotten by a crash. A
//! start takes the pages of the named state, each as it was copied, and repeats the records above each
//! page's gsn. So a page may be evicted before its records are flushed: no crash can find it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::ident::StoreId;
use stillpoint_format::page_log::{LoggedValue, PageRecord, PatchedRanges, ToUndo};
use stillpoint_io::Disk;
use stillpoint_sync::Mutex;
use stillpoint_txn::{
    Arrival, KindPart, KindTable, Lane, LockedTables, LogRefused, OperationLog, Presence,
    RangeBatch, Sections, TableId, TableKind, TxError, UnlockedRead,
};

use crate::backing::{OnFailure, Purpose};
use crate::check::open_to_read;
use crate::held::{Claims, HeldLocks};
use crate::large::Freeing;
use crate::loads::Missing;
use crate::locks::{LockTable, Name};
use crate::log::TableLog;
use crate::open::OpenChanges;
use crate::pages::PagesError;
use crate::part::Part;
use crate::pool::{POOL_PAGES_MIN, Pool, PoolError, PoolStats, root_page};
use crate::read_only::ReadOnly;
use crate::tables::{NamedPages, Section, Table, Tables};
use crate::tree::{KeyPlace, Leaf, LeafRange, PageLog, Pause, Wanted};

/// Bytes of a page, if nothing else is said.
pub const PAGE_BYTES_DEFAULT: usize = 16 << 10;

/// The name of the kind in the MANIFEST.
pub const KIND_NAME: &str = "paged";

/// Bytes of the pool of pages that are only read.
const READ_POOL_BYTES: usize = 64 << 20;
/// Attempts to read a key without a lock.
const UNLOCKED_READS: usize = 8;

/// Scans that may be under way. A scan that is older is refused.
const CURSORS: usize = 4096;

/// A record that does not belong to the kind, or does not fit the state of a page.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// The bytes are no record.
    #[error(transparent)]
    Decode(#[from] stillpoint_format::DecodeError),
    /// The record contradicts the page.
    #[error("a record of page {page} does not fit the page: {why}")]
    Misfit { page: u64, why: String },
}

/// A section of the MANIFEST that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("table {} has the section {text:?}, which this build cannot read", .table.0)]
struct UnreadableSection {
    table: TableId,
    text: String,
}

/// The error of the page store that a transaction, or a replay, was given up for.
pub fn pages_error<'e>(
    reason: &'e (dyn std::error::Error + Send + Sync + 'static),
) -> Option<&'e PagesError> {
    match reason.downcast_ref::<PoolError>()? {
        PoolError::Backing(error) => error.downcast_ref(),
        PoolError::Full { .. } | PoolError::Tables { .. } | PoolError::Large { .. } => None,
    }
}

/// Whether a transaction, or a replay, was given up for damage of the files.
pub fn is_damage(reason: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    reason.is::<RecordError>()
        || reason.is::<UnreadableSection>()
        || matches!(reason.downcast_ref(), Some(PoolError::Large { .. }))
        || pages_error(reason).is_some_and(PagesError::is_damage)
}

/// A place in a scan.
#[derive(Debug)]
struct Cursor {
    number: u64,
    table: TableId,
    /// The scan goes on with this key.
    next: Vec<u8>,
}

/// The kind of paged tables.
pub struct Paged {
    pub(crate) pool: Arc<Pool>,
    pub(crate) locks: LockTable,
    pub(crate) tables: Tables,
    pub(crate) open: OpenChanges,
    pub(crate) freeing: Freeing,
    cursors: Mutex<(u64, VecDeque<Cursor>)>,
    /// The state of all pages that a checkpoint under way has written.
    map: Mutex<Option<u64>>,
}

impl fmt::Debug for Paged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paged").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl Paged {
    /// The kind, over a pool. `seed` spreads keys over locks.
    pub fn new(pool: Arc<Pool>, seed: u64) -> Arc<Self> {
        let locks = LockTable::new(seed, pool.frame_count());
        Arc::new(Self {
            pool,
            locks,
            tables: Tables::new(),
            open: OpenChanges::new(),
            freeing: Freeing::default(),
            cursors: Mutex::default(),
            map: Mutex::default(),
        })
    }

    /// The kind for so many tables, over the pages that their sections in the MANIFEST name, on a disk
    /// that is only read. What a replay changes is kept in memory. Such a kind makes no pages.
    ///
    /// # Errors
    /// As [`PageStore::open`](crate::PageStore::open).
    pub fn open_to_read(
        disk: &dyn Disk,
        (store, seed): (StoreId, u64),
        tables: usize,
        sections: &[&str],
    ) -> Result<Arc<Self>, PagesError> {
        let page_bytes = NamedPages::of(sections)?.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT);
        let pages = open_to_read(disk, store, sections)?;
        // Each table has its root in a frame.
        let frames = (READ_POOL_BYTES / page_bytes).max(POOL_PAGES_MIN + 8 * tables);
        let backing = Arc::new(ReadOnly::over(pages, page_bytes));
        Ok(Self::new(Pool::new(frames, page_bytes, backing)?, seed))
    }

    /// Number of records in the pages that this section names.
    pub fn records_of(section: &str) -> Option<u64> {
        Section::read(section).map(|section| section.records.max(0) as u64)
    }

    /// Numbers of the pool.
    pub fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Calls `tell` once a write or a flush of pages has failed. Then nothing more may be acknowledged.
    pub fn on_failure(&self, tell: OnFailure) {
        self.pool.backing.on_failure(tell);
    }

    /// Whether nobody holds a lock. For tests.
    pub fn is_unlocked(&self) -> bool {
        self.locks.is_free()
    }

    /// Begins to load a page. `None` if the step should be taken again at once.
    pub(crate) fn arrival(&self, missing: Missing) -> Result<Option<Arc<dyn Arrival>>, TxError> {
        let loading = self.pool.load(missing, Purpose::GoOn).map_err(TxError::abandon)?;
        loading.iter().for_each(|_| self.pool.note_wait());
        Ok(loading.map(|loading| loading as Arc<dyn Arrival>))
    }

    /// Loads a page for a rollback or a start. Take the step again.
    pub(crate) fn bring(&self, missing: Missing) -> Result<(), TxError> {
        match self.pool.load(missing, Purpose::GoOn).map_err(TxError::abandon)? {
            Some(loading) => Arrival::wait(&*loading),
            None => Ok(()),
        }
    }

    /// Reads a committed value without a lock, and appends it to `out`. `name` is the word of the key. A place
    /// that was found before may be given. `Here(None)` if another transaction may be changing the key, and
    /// for a large value.
    ///
    /// The word of the key is looked at once, after the version of the leaf was taken. If the leaf holds an
    /// uncommitted value of the key in that version, the value's transaction had the word before. Then it still
    /// has the word, or it has ended. If it has committed, the value counts. If it has aborted, the leaf has
    /// another version by now.
    #[inline]
    pub(crate) fn read_unlocked(
        &self,
        (table, key): (TableId, &[u8]),
        (name, mut hint): (Name, Option<KeyPlace>),
        out: &mut Vec<u8>,
    ) -> Result<Presence<Option<(UnlockedRead, KeyPlace)>>, TxError> {
        let start = out.len();
        for _ in 0..UNLOCKED_READS {
            let place = match hint.take() {
                Some(place) => place,
                None => match self.pool.place(table, key) {
                    Ok(place) => place,
                    Err(missing) => match self.arrival(missing)? {
                        Some(arrival) => return Ok(Presence::NotHere(arrival)),
                        None => continue,
                    },
                },
            };
            let Some(stamp) = self.locks.stamp_if_free(name) else { break };
            let found = self.pool.copy_value(place, out);
            if self.pool.is_still(place.leaf) {
                if found.is_some_and(|found| found.is_large) {
                    // Its pages may be freed meanwhile.
                    out.truncate(start);
                    break;
                }
                let tag = found.map(|found| found.tag);
                return Ok(Presence::Here(Some((UnlockedRead { tag, stamp }, place))));
            }
            out.truncate(start);
        }
        Ok(Presence::Here(None))
    }

    /// Asks for the leaf of a key ahead of its use, as far as there are frames for it.
    pub(crate) fn ask(&self, table: TableId, key: &[u8]) -> Presence<()> {
        loop {
            let Err(missing) = self.pool.descend(table, key, 0) else {
                return Presence::Here(());
            };
            match self.pool.load_ahead(missing) {
                Some(loading) => return Presence::NotHere(loading),
                // Either the page has arrived, or there is no frame for it.
                None if self.pool.has_arrived(missing.page) => {}
                None => return Presence::Here(()),
            }
        }
    }

    /// Undoes a change of a key.
    fn undo_change(
        &self,
        table: &Table,
        (key, before, had): (&[u8], LoggedValue<'_>, bool),
        log: &mut dyn OperationLog,
    ) -> Result<(), TxError> {
        let added = i64::from(before.is_some()) - i64::from(had);
        let undo = |page| PageRecord::Undo { page, key, had, after: before };
        self.undo_on_leaf(table, (key, added), undo, log, |leaf, stamp| {
            leaf.set(key, before, stamp).expect("a change keeps the room of its undo");
            Ok(())
        })
    }

    /// Undoes a change of some bytes of a value.
    fn undo_patch(
        &self,
        table: &Table,
        (key, ranges): (&[u8], PatchedRanges<'_>),
        log: &mut dyn OperationLog,
    ) -> Result<(), TxError> {
        let undo = |page| PageRecord::Restore { page, key, ranges };
        self.undo_on_leaf(table, (key, 0), undo, log, |leaf, stamp| {
            let page = leaf.latched.header().page();
            let misfit = |why| TxError::abandon(RecordError::Misfit { page, why });
            leaf.restore(ranges, stamp).map_err(misfit)
        })
    }

    /// Logs an undo, which adds so many records, and makes it on the leaf of a key.
    fn undo_on_leaf<'r>(
        &self,
        table: &Table,
        (key, added): (&[u8], i64),
        undo: impl Fn(u64) -> PageRecord<'r>,
        log: &mut dyn OperationLog,
        make: impl FnOnce(&Leaf<'_>, Stamp) -> Result<(), TxError>,
    ) -> Result<(), TxError> {
        let mut body = Vec::new();
        loop {
            let leaf = match self.pool.latch_leaf(table.id, key) {
                Ok(leaf) => leaf,
                Err(missing) => {
                    self.bring(missing)?;
                    continue;
                }
            };
            body.clear();
            undo(leaf.latched.header().page()).encode(&mut body);
            let touched = [leaf.latched.header().stamp()];
            let mut table_log =
                TableLog { log: &mut *log, table: table.id, generation: table.generation() };
            let appended =
                self.tables.append_counted(table, added, || table_log.append(&touched, &body));
            match appended {
                Ok(stamp) => return make(&leaf, stamp),
                Err(LogRefused::NoRoom) => drop(leaf),
                Err(refused) => return Err(refused.into()),
            }
            log.wait_for_room()?;
        }
    }

    /// Refuses a key that is too long.
    #[inline]
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<(), TxError> {
        let (len, limit) = (key.len(), self.pool.key_bytes_max());
        match len <= limit {
            true => Ok(()),
            false => Err(TxError::OrderedKeyTooLong { len, limit }),
        }
    }

    /// A cursor at a key.
    fn note_cursor(&self, table: TableId, next: &[u8]) -> u64 {
        let (last, cursors) = &mut *self.cursors.lock();
        *last += 1;
        if cursors.len() == CURSORS {
            cursors.pop_front();
        }
        cursors.push_back(Cursor { number: *last, table, next: next.to_vec() });
        *last
    }

    /// The key of a cursor.
    fn cursor(&self, table: TableId, number: u64) -> Result<Vec<u8>, TxError> {
        let (_, cursors) = &*self.cursors.lock();
        let found = cursors.iter().find(|cursor| cursor.number == number && cursor.table == table);
        found.map(|cursor| cursor.next.clone()).ok_or_else(|| {
            TxError::abandon(format!(
                "cursor {number} of a paged table is unknown or too old: begin the scan again"
            ))
        })
    }
}

impl TableKind for Paged {
    fn name(&self) -> &'static str {
        KIND_NAME
    }

    fn new_section(&self) -> Option<String> {
        let (page_bytes, counted) = (self.pool.page_bytes(), Vec::new());
        Some(Section { map: 0, page_bytes, records: 0, counted, has_large: false }.write())
    }

    fn admit_table(&self) -> Result<(), TxError> {
        self.pool.admit_table().map_err(TxError::abandon)
    }

    fn add_table(&self, table: &KindTable<'_>, _: &dyn Disk) -> Result<(), TxError> {
        let KindTable { id, generation, section } = *table;
        let section = match section {
            None => None,
            Some(text) => Some(Section::read(text).ok_or_else(|| {
                TxError::abandon(UnreadableSection { table: id, text: text.to_owned() })
            })?),
        };
        // A table that no checkpoint has held yet has no page on the disk.
        let section = section.filter(|section| section.map > 0);
        self.pool.add_table(id, generation, section.is_some()).map_err(TxError::abandon)?;
        self.tables.add(id, generation, section.as_ref());
        Ok(())
    }

    fn new_part(self: Arc<Self>) -> Box<dyn KindPart> {
        self.tables.serve();
        Box::new(Part::new(self))
    }

    fn lock_tables(
        &self,
        tables: &[TableId],
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Box<dyn LockedTables + '_>, TxError> {
        let tables = tables.iter().map(|&id| self.tables.get(id)).collect::<Result<_, _>>()?;
        if !self.locks.lock_all(may_wait) {
            return Err(TxError::Conflict);
        }
        Ok(Box::new(AllLocked { kind: self, tables }))
    }

    fn takes_sorted(&self) -> bool {
        true
    }

    fn append_sorted(
        &self,
        table: TableId,
        (records, from): (&RangeBatch, usize),
        log: &mut dyn OperationLog,
    ) -> Result<usize, TxError> {
        let table = self.tables.get(table)?;
        let mut held = HeldLocks::new();
        let mut next = from;
        while next < records.len() {
            let mut log =
                TableLog { log: &mut *log, table: table.id, generation: table.generation() };
            let mut claims = Claims { table: &self.locks, held: &mut held };
            let appended = self.pool.append_leaf(
                (&self.tables, &table),
                (records, next),
                (&mut log, &mut claims),
            );
            match appended {
                Ok(0) => break,
                Ok(count) => {
                    // No rollback takes the records away.
                    table.commit(count as i64);
                    next += count;
                }
                Err(Pause::LogFull) => log.log.wait_for_room()?,
                Err(Pause::Missing(missing)) => self.bring(missing)?,
                Err(Pause::Refused(error)) => return Err(error),
                Err(Pause::Blocked(_)) => unreachable!("no stretch of a leaf is claimed"),
            }
        }
        Ok(next - from)
    }

    fn keys(
        &self,
        table: TableId,
        cursor: u64,
        count: usize,
        out: &mut Vec<Vec<u8>>,
    ) -> Result<Presence<u64>, TxError> {
        use std::ops::Bound::{Included, Unbounded};
        self.tables.get(table)?;
        let from = if cursor == 0 { Vec::new() } else { self.cursor(table, cursor)? };
        let mut batch = RangeBatch::default();
        batch.most = count.max(1);
        loop {
            let place = match self.pool.place(table, &from) {
                Ok(place) => place,
                Err(missing) => match self.arrival(missing)? {
                    Some(arrival) => return Ok(Presence::NotHere(arrival)),
                    None => continue,
                },
            };
            batch.clear();
            let (lower, upper, is_descending) = (Included(&from[..]), Unbounded, false);
            let range = LeafRange { place, lower, upper, is_descending };
            let _ = self.pool.read_leaf(&range, Wanted::Keys, &mut batch);
            if self.pool.is_still(place.leaf) {
                break;
            }
        }
        out.extend((0..batch.len()).map(|at| batch.record(at).0.to_vec()));
        let next = if batch.is_end { 0 } else { self.note_cursor(table, &batch.next) };
        Ok(Presence::Here(next))
    }

    fn read(
        &self,
        table: TableId,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Presence<Option<UnlockedRead>>, TxError> {
        self.pool.root(table).ok_or(TxError::NoSuchTable(table))?;
        self.check_key(key)?;
        let name = self.locks.key(self.locks.hash(table, key));
        self.locks.prefetch(name);
        let found = self.read_unlocked((table, key), (name, None), out)?;
        if matches!(found, Presence::Here(Some(_))) {
            self.pool.note_found(name.hash(), 1);
        }
        Ok(found.map(|found| found.map(|(read, _)| read)))
    }

    fn record_count(&self, table: TableId) -> u64 {
        self.tables.get(table).map_or(0, |table| table.record_count())
    }

    fn redo(&self, table: TableId, stamp: Stamp, body: &[u8]) -> Result<(), TxError> {
        self.redo_in((table, stamp), body, Lane::ALL)
    }

    fn redo_in(
        &self,
        (table, stamp): (TableId, Stamp),
        body: &[u8],
        lane: Lane,
    ) -> Result<(), TxError> {
        if PageRecord::only_page(body).is_some_and(|page| !lane.has(page)) {
            return Ok(());
        }
        let record =
            PageRecord::decode(body).map_err(|error| TxError::abandon(RecordError::from(error)))?;
        self.redo_record(&*self.tables.get(table)?, (stamp, lane), &record)
    }

    fn ask_for_redo(&self, table: TableId, body: &[u8], lane: Lane) {
        if PageRecord::only_page(body).is_some_and(|page| !lane.has(page)) {
            return;
        }
        // An error is that of the redo.
        let Ok(record) = PageRecord::decode(body) else { return };
        record.changed_pages().into_iter().flatten().for_each(|page| {
            if page != root_page(table) && lane.has(page) {
                self.pool.ask_for_redo(page, table, lane);
            }
        });
    }

    fn undo(&self, table: TableId, body: &[u8], log: &mut dyn OperationLog) -> Result<(), TxError> {
        let undone =
            ToUndo::decode(body).map_err(|error| TxError::abandon(RecordError::from(error)))?;
        let table = self.tables.get(table)?;
        match undone {
            ToUndo::Change { key, before, has } => {
                self.undo_change(&table, (key, before, has), log)
            }
            ToUndo::Patch { key, ranges } => self.undo_patch(&table, (key, ranges), log),
            ToUndo::Structure => append_undo(&table, &PageRecord::Kept, log).map(drop),
            ToUndo::Large { page } => {
                let undo = append_undo(&table, &PageRecord::Freed { page }, log)?;
                self.free_undone(page, undo);
                Ok(())
            }
        }
    }

    fn replay_ended(&self) -> Result<(), TxError> {
        self.pool.end_lanes();
        self.free_unreferenced();
        self.free_unreached();
        Ok(())
    }

    fn checkpoint(&self, _: &dyn Disk) -> Result<Option<Sections>, TxError> {
        self.free_replaced();
        self.pool.free_unfreed();
        let mut sections = self.tables.sections(self.pool.page_bytes());
        if sections.is_empty() {
            return Ok(Some(Sections::new()));
        }
        self.pool.write_all().map_err(TxError::abandon)?;
        let map = self.pool.backing.write_map();
        let map = map.map_err(|error| TxError::abandon(PoolError::Backing(error)))?;
        *self.map.lock() = Some(map);
        sections.iter_mut().for_each(|(_, section)| section.map = map);
        Ok(Some(sections.into_iter().map(|(id, section)| (id, section.write())).collect()))
    }

    fn checkpoint_ended(&self, _: &dyn Disk, is_published: bool) {
        if let Some(map) = self.map.lock().take() {
            self.pool.backing.map_ended(map, is_published);
        }
    }
}

/// Appends an undo that changes no leaf. Waits for room.
fn append_undo(
    table: &Table,
    record: &PageRecord<'_>,
    log: &mut dyn OperationLog,
) -> Result<Stamp, TxError> {
    let mut body = Vec::new();
    record.encode(&mut body);
    let (id, generation) = (table.id, table.generation());
    loop {
        let mut log = TableLog { log: &mut *log, table: id, generation };
        match log.append(&[], &body) {
            Ok(stamp) => return Ok(stamp),
            Err(LogRefused::NoRoom) => log.log.wait_for_room()?,
            Err(refused) => return Err(refused.into()),
        }
    }
}

/// All words of the kind, held for some tables.
struct AllLocked<'k> {
    kind: &'k Paged,
    tables: Vec<Arc<Table>>,
}

impl LockedTables for AllLocked<'_> {
    fn empty(&mut self, generations: &[u32]) {
        for (table, &generation) in self.tables.iter().zip(generations) {
            self.kind.pool.empty_table(table.id, generation, table.has_large());
            table.empty(generation);
        }
    }
}

impl Drop for AllLocked<'_> {
    fn drop(&mut self) {
        self.kind.locks.release_all();
    }
}
