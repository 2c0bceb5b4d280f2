//! The tables of a store and their generations. Tables are made, replaced, and dropped once nobody
//! can reach them.
//!
//! The step that can fail comes first: [`Catalog::make`] reserves the address space of a table that
//! the store does not know yet. Adding and replacing prepared tables cannot fail.
//!
//! A replaced generation is reached by four kinds of holders, and its slabs are freed after the last:
//! 1. Read sections that began before the replacement. A grace period waits for their ends.
//! 2. Open transactions with locks outside of a read section. Each transaction announces the
//!    catalog version that it began with.
//! 3. A checkpoint whose point of consistency was before the replacement, until the checkpoint's
//!    REST.
//! 4. Large values that a checkpoint pins.

use std::sync::Arc;

use stillpoint_mem::{AddressSpace, RegionError};
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::{CachePadded, Mutex, RwLock, lock_word};
use stillpoint_txn::TableId;

use crate::memory::Memory;
use crate::memory::arena::Arena;
use crate::memory::cell::Cell;
use crate::phase::{Phase, PhaseDriver};
use crate::rules::status;
use crate::table::Table;

/// A table with its address space that is not in a store yet. From
/// [`Store::new_table`](crate::Store::new_table).
#[derive(Debug)]
pub struct NewTable(Arc<Table>);

impl NewTable {
    /// The number of the table.
    pub fn id(&self) -> TableId {
        self.0.id
    }

    /// Gives commits that touch a key of the table gsns above this one.
    pub fn begin_above(&self, gsn: u64) {
        self.0.begin_above(gsn);
    }
}

/// Fate of a replaced table's records in a checkpoint under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The checkpoint captures the records: its point of consistency was before the replacement.
    Captured,
    /// Nobody needs the records any more.
    Forgotten,
}

/// A table could not be added.
#[derive(Debug, thiserror::Error)]
pub enum AddTableError {
    /// The store has a table of that number.
    #[error("there is a table number {} already", .0.0)]
    Exists(TableId),
    /// The system refused address space.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// The tables of one catalog version.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) version: u64,
    /// Whether one of the tables is ordered.
    pub(crate) has_ordered: bool,
    /// Whether a key without a cell may have a record that is not loaded yet.
    pub(crate) has_unloaded: bool,
    tables: Vec<Option<Arc<Table>>>,
}

impl Tables {
    #[inline]
    pub(crate) fn get(&self, id: TableId) -> Option<&Arc<Table>> {
        self.tables.get(usize::from(id.0))?.as_ref()
    }

    /// Whether this number is the owner of slabs of one of the tables.
    fn has_owner(&self, owner: u32) -> bool {
        self.tables.iter().flatten().any(|table| table.owner == owner)
    }

    /// The owners of slabs in these tables and not in `new`.
    pub(crate) fn owners_gone(&self, new: &Self) -> impl Iterator<Item = u32> {
        let owners = self.tables.iter().flatten().map(|table| table.owner);
        owners.filter(|&owner| !new.has_owner(owner))
    }
}

/// A cell that had no value when its lock was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Absent {
    pub(crate) owner: u32,
    pub(crate) table: TableId,
    /// Whether the status of the cell notes that it waits for a checkpoint, and this is its entry.
    pub(crate) is_noted: bool,
    /// Size class of the cell.
    pub(crate) class: u8,
    pub(crate) cell: u64,
}

/// The memory of absent cells in the queues of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitingMemory {
    /// Cells that a checkpoint needed when they were looked at.
    pub(crate) needed: usize,
    /// Bytes of the queues.
    pub(crate) queue_bytes: usize,
    /// Bytes of the cells that a checkpoint needed.
    pub(crate) needed_bytes: usize,
    /// Bytes of the other cells.
    pub(crate) absent_bytes: usize,
}

/// A replaced generation of a table that somebody may still reach.
#[derive(Debug)]
struct Retired {
    table: Arc<Table>,
    /// The catalog version that replaced this generation.
    version: u64,
    replaced: Replaced,
    /// The number of resets of the pool of stable versions by then, if commits stored versions then.
    resets: Option<u64>,
}

impl Retired {
    /// Whether slots of the pool may belong to stable versions of the table: commits stored them, and the
    /// pool was not reset since. After a [checkpoint that lost its marks](PhaseDriver::spoil) records refer
    /// to slots that are free.
    fn has_versions(&self, memory: &Memory, driver: &PhaseDriver) -> bool {
        let resets = memory.pool.as_ref().map(|pool| pool.resets());
        self.resets.is_some() && self.resets == resets && !driver.is_spoilt(u64::MAX)
    }
}

/// The tables, by number and by owner of slabs.
#[derive(Debug)]
pub(crate) struct Catalog {
    space: Arc<AddressSpace>,
    /// Held while tables are added or replaced.
    changing: Mutex<()>,
    tables: RwLock<Vec<Option<Arc<Table>>>>,
    /// Version, which grows with every change of `tables`. Workers keep a copy of the tables of one
    /// version.
    version: CachePadded<AtomicU64>,
    /// Whether records are still to be loaded. Changes with the version.
    has_unloaded: AtomicBool,
    /// The tables that have slabs, replaced ones included, by ascending owner.
    owners: Mutex<Vec<(u32, Arc<Table>)>>,
    next_owner: AtomicU32,
    retired: Mutex<Vec<Retired>>,
    /// Replaced tables that are not in `retired` any more, and whose slabs are being freed.
    being_freed: AtomicUsize,
    /// Per worker, 1 + the catalog version at the begin of its open transaction. 0 without an open
    /// transaction.
    transactions: Box<[CachePadded<AtomicU64>]>,
    /// Absent cells that workers could not reclaim before they ended.
    unreclaimed: Mutex<Vec<Absent>>,
}

impl Catalog {
    pub(crate) fn new(space: Arc<AddressSpace>, workers: usize) -> Self {
        Self {
            space,
            changing: Mutex::default(),
            tables: RwLock::default(),
            version: CachePadded::new(AtomicU64::new(0)),
            has_unloaded: AtomicBool::new(false),
            owners: Mutex::default(),
            next_owner: AtomicU32::new(1),
            retired: Mutex::default(),
            being_freed: AtomicUsize::new(0),
            transactions: (0..workers).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            unreclaimed: Mutex::default(),
        }
    }

    /// Makes a table that the catalog does not have yet.
    pub(crate) fn make(
        &self,
        id: TableId,
        generation: u32,
        is_ordered: bool,
    ) -> Result<NewTable, RegionError> {
        // Relaxed: only the number counts.
        let owner = self.next_owner.fetch_add(1, Relaxed);
        Ok(NewTable(Arc::new(Table::new(id, generation, owner, is_ordered, &self.space)?)))
    }

    /// Adds tables, all of them or none.
    pub(crate) fn add(&self, new: Vec<NewTable>) -> Result<(), AddTableError> {
        let _changing = self.changing.lock();
        for NewTable(table) in &new {
            if self.table(table.id).is_some() {
                return Err(AddTableError::Exists(table.id));
            }
        }
        self.own(&new);
        let (old, _) = self.put(new);
        assert!(old.is_empty(), "two new tables of one number");
        Ok(())
    }

    /// Replaces tables, or adds those whose numbers are new. The store is quiesced.
    /// `resets` counts those of the pool of stable versions, if commits store versions now.
    pub(crate) fn replace(&self, new: Vec<NewTable>, replaced: Replaced, resets: Option<u64>) {
        let _changing = self.changing.lock();
        self.own(&new);
        let (old, version) = self.put(new);
        let mut retired = self.retired.lock();
        retired.extend(old.into_iter().map(|table| Retired { table, version, replaced, resets }));
    }

    fn own(&self, new: &[NewTable]) {
        let mut owners = self.owners.lock();
        owners.extend(new.iter().map(|NewTable(table)| (table.owner, table.clone())));
        owners.sort_unstable_by_key(|(number, _)| *number);
    }

    /// Puts tables in. Returns the replaced tables and the new version.
    fn put(&self, new: Vec<NewTable>) -> (Vec<Arc<Table>>, u64) {
        let mut tables = self.tables.write();
        let mut old = Vec::new();
        for NewTable(table) in new {
            let at = usize::from(table.id.0);
            if tables.len() <= at {
                tables.resize(at + 1, None);
            }
            old.extend(tables[at].replace(table));
        }
        // Release: partner of the Acquire in `version`.
        (old, self.version.fetch_add(1, Release) + 1)
    }

    /// The present version.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        // Acquire: partner of the Release in `put`.
        self.version.load(Acquire)
    }

    /// The tables of the present version.
    pub(crate) fn tables(&self) -> Tables {
        let tables = self.tables.read();
        let has_ordered = tables.iter().flatten().any(|table| table.ordered.is_some());
        // Relaxed: written with the version, by the holder of the write lock of `tables`.
        let has_unloaded = self.has_unloaded.load(Relaxed);
        Tables { version: self.version(), has_ordered, has_unloaded, tables: tables.clone() }
    }

    /// Notes in a new version whether records are still to be loaded.
    pub(crate) fn note_unloaded(&self, has_unloaded: bool) {
        let _changing = self.tables.write();
        // Relaxed: as in `tables`.
        self.has_unloaded.store(has_unloaded, Relaxed);
        // Release: partner of the Acquire in `version`.
        self.version.fetch_add(1, Release);
    }

    pub(crate) fn table(&self, id: TableId) -> Option<Arc<Table>> {
        self.tables.read().get(usize::from(id.0)).cloned().flatten()
    }

    /// The table that owns a slab.
    pub(crate) fn owner(&self, owner: u32) -> Option<Arc<Table>> {
        let owners = self.owners.lock();
        // `own` is sorted by number.
        let at = owners.binary_search_by_key(&owner, |(number, _)| *number).ok()?;
        Some(owners[at].1.clone())
    }

    /// Calls `visit` with every table that has slabs, replaced ones included.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Table)) {
        self.owners.lock().iter().for_each(|(_, table)| visit(table));
    }

    /// Records with a value in the present tables.
    pub(crate) fn record_total(&self) -> u64 {
        self.tables.read().iter().flatten().map(|table| table.len()).sum()
    }

    /// Present tables, and replaced ones whose slabs are not freed yet.
    pub(crate) fn generations_held(&self) -> usize {
        let present = self.tables.read().iter().flatten().count();
        let retired = self.retired.lock();
        // Relaxed: the mutex orders.
        present + retired.len() + self.being_freed.load(Relaxed)
    }

    /// Whether the slabs of a replaced table are not freed yet. Call this outside of read sections.
    pub(crate) fn has_retired(&self) -> bool {
        let retired = self.retired.lock();
        // Acquire: partner of the Release in `free`, after which the memory is free.
        !retired.is_empty() || self.being_freed.load(Acquire) > 0
    }

    /// Announces a worker's transaction, which began with the tables of `version` and may keep
    /// locks outside of its read section. The worker enters a read section next.
    pub(crate) fn begin_transaction(&self, worker: usize, version: u64) {
        // Relaxed: the fence of `ReadSections::enter` orders this store before the transaction's
        // reads. The fence's partner is the grace period and the Acquire in `drop_retired`.
        self.transactions[worker].store(version + 1, Relaxed);
    }

    /// Notes that the transaction holds no lock any more.
    pub(crate) fn end_transaction(&self, worker: usize) {
        // Release: partner of the Acquire in `drop_retired`.
        self.transactions[worker].store(0, Release);
    }

    /// Takes the announcement of a worker's transaction back, which holds no lock.
    pub(crate) fn withdraw_transaction(&self, worker: usize) -> u64 {
        // Release: as in `end_transaction`. The worker alone writes its announcement.
        self.transactions[worker].swap(0, Release)
    }

    /// Announces the transaction again, before its worker enters a read section.
    pub(crate) fn announce_transaction_again(&self, worker: usize, announced: u64) {
        // Relaxed: as in `begin_transaction`.
        self.transactions[worker].store(announced, Relaxed);
    }

    /// Whether a transaction is open that may hold locks outside of its read section.
    pub(crate) fn has_open_transaction(&self) -> bool {
        // Acquire: partner of the Release in `end_transaction`.
        self.transactions.iter().any(|slot| slot.load(Acquire) != 0)
    }

    /// Leaves the absent cells of a worker that ends to the others.
    pub(crate) fn leave_absent(&self, absent: impl Iterator<Item = Absent>) {
        self.unreclaimed.lock().extend(absent);
    }

    /// The absent cells that other workers have left.
    pub(crate) fn take_absent(&self) -> Vec<Absent> {
        std::mem::take(&mut self.unreclaimed.lock())
    }

    /// Drops the replaced tables that nobody can reach any more.
    ///
    /// Their memory is freed with no lock held. It takes time that grows with the tables, and
    /// [`replace`](Self::replace) wants the lock of `retired` while all commits wait.
    pub(crate) fn drop_retired(&self, memory: &Memory, driver: &PhaseDriver) {
        let unreachable = self.take_unreachable(memory, driver);
        self.free(unreachable, memory, driver);
    }

    /// Frees the memory of tables that [`take_unreachable`](Self::take_unreachable) has given.
    fn free(&self, unreachable: Vec<Retired>, memory: &Memory, driver: &PhaseDriver) {
        for old in &unreachable {
            if let Some(resets) = old.resets.filter(|_| old.has_versions(memory, driver)) {
                free_versions(memory, old.table.owner, resets);
            }
            memory.arena.drop_owner(old.table.owner);
        }
        // Release: partner of the Acquire in `has_retired`.
        self.being_freed.fetch_sub(unreachable.len(), Release);
    }

    /// Takes the replaced tables that nobody can reach any more out of `retired`.
    ///
    /// The grace periods pass with `retired` locked. No thread takes that lock inside a read
    /// section, or while it holds a lock that is taken inside read sections. (`replace` has
    /// released `tables` before.) So no read section that this call waits for can wait for this
    /// lock.
    fn take_unreachable(&self, memory: &Memory, driver: &PhaseDriver) -> Vec<Retired> {
        let mut retired = self.retired.lock();
        // A checkpoint may still have to capture an old generation.
        let at_rest = driver.now().phase() == Phase::Rest;
        let may_go = |old: &Retired| at_rest || old.replaced == Replaced::Forgotten;
        if !retired.iter().any(may_go) {
            return Vec::new();
        }
        driver.read_sections().wait_grace_period();
        let is_open = |old: &Retired| {
            self.transactions.iter().any(|slot| {
                // Acquire: partner of the Release in `end_transaction`.
                let began = slot.load(Acquire);
                began != 0 && began <= old.version
            })
        };
        // A checkpoint that begins meanwhile must not find the slabs when they are dropped.
        let unreachable: Vec<u32> = retired
            .iter()
            .filter(|old| may_go(old) && !is_open(old))
            .map(|old| old.table.owner)
            .collect();
        let goes = |owner: &u32| unreachable.contains(owner);
        self.owners.lock().retain(|(owner, _)| !goes(owner));
        driver.read_sections().wait_grace_period();
        // A pin from before the grace period is visible after it, and nobody pins more.
        let is_free = |old: &Retired| {
            unreachable.contains(&old.table.owner) && !memory.is_pinned(old.table.owner)
        };
        let free: Vec<Retired> = retired.extract_if(.., |old| is_free(old)).collect();
        // Relaxed: the mutex orders.
        self.being_freed.fetch_add(free.len(), Relaxed);
        free
    }
}

/// Gives back the slots of all stable versions in the slabs of an owner. Nobody else can reach the slabs.
/// `resets` is the number of resets of the pool when the last version was stored.
fn free_versions(memory: &Memory, owner: u32, resets: u64) {
    let Some(pool) = &memory.pool else { return };
    let mut stored = Vec::new();
    for index in (0..memory.arena.group_count()).flat_map(Arena::slabs_of) {
        let slab = memory.arena.slab(index);
        let Some(slab) = slab.filter(|it| it.owner == owner && it.is_of_records()) else {
            continue;
        };
        let versions = slab.numbers(0..slab.cells()).filter_map(|number| {
            let cell = Cell::new(memory, number);
            // Relaxed: the grace period before this call orders.
            let bits = lock_word::status(cell.lock().load(Relaxed));
            if bits & status::SHADOW == 0 || !cell.is_record() {
                return None;
            }
            // The reference lies at the end of the cell, on another cache line.
            cell.copy(1).pooled().map(|version| version.slot)
        });
        stored.extend(versions);
        pool.erase_all(&mut stored, resets);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::rules::{CellRules, Reuse, WriteRule};
    use crate::store::{Store, StoreConfig};

    const T: TableId = TableId(0);

    fn store() -> Store {
        let rules = CellRules {
            write: WriteRule::StoreStable,
            reuse: Reuse::OutsideOfCaptures,
            ..CellRules::BEFORE_IMAGES
        };
        let config = StoreConfig { stable_pool_bytes: Some(1 << 20), ..StoreConfig::default() };
        let store = Store::new(&config, rules).expect("address space");
        store.add_table(T, 1).expect("address space");
        store
    }

    /// Puts an empty table in the place of the present one.
    fn empty(store: &Store) {
        let new = store.new_table(T, 2).expect("address space");
        let quiesced = store.driver().quiesce();
        store.replace_tables(&quiesced, vec![new], Replaced::Forgotten);
    }

    /// Whether the table that was emptied last is searched for stable versions.
    fn is_searched(store: &Store) -> bool {
        let retired = store.catalog().retired.lock();
        let last = retired.last().expect("a table was emptied");
        last.has_versions(store.memory(), store.driver())
    }

    /// A search visits every record. So it is made only where commits may have stored versions.
    #[test]
    fn emptied_tables_are_searched_for_versions_only_where_some_may_be() {
        let store = store();
        let driver = store.driver();
        empty(&store);
        assert!(!is_searched(&store), "at rest");
        driver.advance(Phase::Prepare);
        empty(&store);
        assert!(!is_searched(&store), "before the point of consistency");
        driver.advance(Phase::Resolve);
        driver.advance(Phase::Capture);
        empty(&store);
        assert!(is_searched(&store), "commits store versions");
        store.memory().pool.as_ref().expect("a pool").reset();
        assert!(!is_searched(&store), "all slots are free");
        empty(&store);
        assert!(is_searched(&store));
        driver.spoil(u64::MAX);
        assert!(!is_searched(&store), "marks of an earlier checkpoint may be left");
    }

    /// Who empties a table holds up all commits, and does not wait until the memory of another is free.
    #[test]
    fn a_table_is_emptied_while_the_memory_of_another_is_freed() {
        let store = store();
        empty(&store);
        let (catalog, memory, driver) = (store.catalog(), store.memory(), store.driver());
        let unreachable = catalog.take_unreachable(memory, driver);
        assert_eq!((unreachable.len(), catalog.generations_held()), (1, 2));
        assert!(catalog.has_retired() && store.memory_returns());
        assert!(catalog.retired.try_lock().is_some(), "the next one is not held up");
        empty(&store);
        catalog.free(unreachable, memory, driver);
        assert!(catalog.has_retired() && catalog.generations_held() == 2);
        catalog.drop_retired(memory, driver);
        assert!(!catalog.has_retired() && catalog.generations_held() == 1);
    }
}
