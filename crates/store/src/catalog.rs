//! The tables of a store: made, replaced, and dropped once nobody can reach them.
//!
//! Whatever can fail comes first: [`Store::new_table`] reserves the address space of a table that
//! the store does not know yet. Adding and replacing prepared tables cannot fail.

use std::sync::Arc;

use stillpoint_mem::{AddressSpace, RegionError};
use stillpoint_sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::{CachePadded, Mutex, RwLock};

use crate::phase::{Phase, Quiesced};
use crate::store::Store;
use crate::table::{Table, TableId};

/// A table with its address space that is not in a store yet. From [`Store::new_table`].
#[derive(Debug)]
pub struct NewTable(Arc<Table>);

/// What becomes of the records of a replaced table in a checkpoint that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The checkpoint captures them: its point of consistency was before.
    Captured,
    /// Nobody needs them any more.
    Forgotten,
}

/// A table could not be added.
#[derive(Debug, thiserror::Error)]
pub enum AddTableError {
    /// There is one of that number.
    #[error("there is a table number {} already", .0.0)]
    Exists(TableId),
    /// Address space for it could not be had.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// A table generation that was replaced, until nobody can reach it.
#[derive(Debug)]
struct Retired {
    table: Arc<Table>,
    /// Catalog version that replaced it.
    version: u64,
    replaced: Replaced,
}

/// The tables, by number and by owner of slabs.
#[derive(Debug)]
pub(crate) struct Catalog {
    space: Arc<AddressSpace>,
    /// LockedKey by who adds or replaces tables.
    changing: Mutex<()>,
    tables: RwLock<Vec<Option<Arc<Table>>>>,
    /// Grows with every change of `tables`; workers keep a copy of the tables of one version.
    version: CachePadded<AtomicU64>,
    owners: Mutex<Vec<(u32, Arc<Table>)>>,
    next_owner: AtomicU32,
    retired: Mutex<Vec<Retired>>,
}

impl Catalog {
    pub(crate) fn new(space: Arc<AddressSpace>) -> Self {
        Self {
            space,
            changing: Mutex::default(),
            tables: RwLock::default(),
            version: CachePadded::new(AtomicU64::new(0)),
            owners: Mutex::default(),
            next_owner: AtomicU32::new(1),
            retired: Mutex::default(),
        }
    }

    /// The table that owns a slab.
    pub(crate) fn owner(&self, owner: u32) -> Option<Arc<Table>> {
        let owners = self.owners.lock();
        // `own` keeps them in the order of their numbers.
        let at = owners.binary_search_by_key(&owner, |(number, _)| *number).ok()?;
        Some(owners[at].1.clone())
    }

    /// Calls `visit` with every table that has slabs, replaced ones included.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Table)) {
        self.owners.lock().iter().for_each(|(_, table)| visit(table));
    }

    /// Puts tables in and gives back those that had their numbers, and the new version.
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
        // Release: partner of the Acquire in `catalog_version`.
        (old, self.version.fetch_add(1, Release) + 1)
    }
}

impl Store {
    /// Makes a table that [`add_tables`](Self::add_tables) or
    /// [`replace_tables`](Self::replace_tables) can put into the store.
    ///
    /// # Errors
    /// Address space for it could not be had.
    pub fn new_table(&self, id: TableId, generation: u32) -> Result<NewTable, RegionError> {
        let catalog = &self.catalog;
        // Relaxed: only the number counts.
        let owner = catalog.next_owner.fetch_add(1, Relaxed);
        Ok(NewTable(Arc::new(Table::new(id, generation, owner, &catalog.space)?)))
    }

    /// Adds tables, all of them or none.
    ///
    /// # Errors
    /// The store has a table of one of the numbers already; it stays as it is.
    pub fn add_tables(&self, new: Vec<NewTable>) -> Result<(), AddTableError> {
        let _changing = self.catalog.changing.lock();
        for NewTable(table) in &new {
            if self.table(table.id).is_some() {
                return Err(AddTableError::Exists(table.id));
            }
        }
        self.own(&new);
        let (old, _) = self.catalog.put(new);
        assert!(old.is_empty(), "two new tables of one number");
        Ok(())
    }

    /// Makes a table and adds it.
    ///
    /// # Errors
    /// As [`new_table`](Self::new_table) and [`add_tables`](Self::add_tables).
    pub fn add_table(&self, id: TableId, generation: u32) -> Result<(), AddTableError> {
        self.add_tables(vec![self.new_table(id, generation)?])
    }

    /// Replaces tables by new ones, or adds those whose numbers are new. No commit is under way
    /// meanwhile, which the quiesce proves, so none is lost in the tables that go.
    ///
    /// # Panics
    /// If another store was quiesced.
    pub fn replace_tables(&self, quiesced: &Quiesced<'_>, new: Vec<NewTable>, replaced: Replaced) {
        assert!(quiesced.is_of(self.driver()), "the quiesce of another store");
        let _changing = self.catalog.changing.lock();
        self.own(&new);
        let (old, version) = self.catalog.put(new);
        let mut retired = self.catalog.retired.lock();
        retired.extend(old.into_iter().map(|table| Retired { table, version, replaced }));
    }

    fn own(&self, new: &[NewTable]) {
        let mut owners = self.catalog.owners.lock();
        owners.extend(new.iter().map(|NewTable(table)| (table.owner, table.clone())));
        owners.sort_unstable_by_key(|(number, _)| *number);
    }

    #[inline]
    pub(crate) fn catalog_version(&self) -> u64 {
        self.catalog.version.load(Acquire)
    }

    pub(crate) fn tables(&self) -> (u64, Vec<Option<Arc<Table>>>) {
        let tables = self.catalog.tables.read();
        (self.catalog_version(), tables.clone())
    }

    pub(crate) fn table(&self, id: TableId) -> Option<Arc<Table>> {
        self.catalog.tables.read().get(usize::from(id.0)).cloned().flatten()
    }

    /// Generation of a table; `None` if there is none of that number.
    pub fn generation(&self, id: TableId) -> Option<u32> {
        self.table(id).map(|table| table.generation)
    }

    /// Records with a value in a table.
    pub fn record_count(&self, id: TableId) -> u64 {
        self.table(id).map_or(0, |table| table.len())
    }

    /// Keys of a table that have a cell: those with a value, and absent ones not yet reclaimed.
    pub fn cell_count(&self, id: TableId) -> u64 {
        self.table(id).map_or(0, |table| table.index.len())
    }

    /// Generations of tables whose memory is held: the present ones, and replaced ones that
    /// somebody might still reach.
    pub fn generations_held(&self) -> usize {
        let present = self.catalog.tables.read().iter().flatten().count();
        present + self.catalog.retired.lock().len()
    }

    /// Makes room in a table's index, if it is empty.
    pub fn reserve(&self, id: TableId, records: u64) {
        if let Some(table) = self.table(id) {
            table.index.reserve(records);
        }
    }

    /// Drops the replaced tables that nobody can reach any more.
    ///
    /// It waits for read sections with `retired` locked. Nobody takes that lock inside a read section, nor with
    /// a lock that is taken inside read_sections: `replace_tables` has let go of `tables` before. So no
    /// read section that is waited for can wait for this.
    pub(crate) fn drop_retired(&self) {
        let mut retired = self.catalog.retired.lock();
        // A checkpoint may still have to capture an old generation.
        let at_rest = self.driver().now().phase() == Phase::Rest;
        let may_go = |old: &Retired| at_rest || old.replaced == Replaced::Forgotten;
        if !retired.iter().any(may_go) {
            return;
        }
        self.driver().read_sections().wait_grace_period();
        let is_open = |old: &Retired| {
            self.transactions.iter().any(|slot| {
                let began = slot.load(Acquire);
                began != 0 && began <= old.version
            })
        };
        // A checkpoint that begins meanwhile must not find the slabs any more when they are dropped.
        let unreachable: Vec<u32> = retired
            .iter()
            .filter(|old| may_go(old) && !is_open(old))
            .map(|old| old.table.owner)
            .collect();
        let goes = |owner: &u32| unreachable.contains(owner);
        self.catalog.owners.lock().retain(|(owner, _)| !goes(owner));
        self.driver().read_sections().wait_grace_period();
        // What was kept before the grace period is seen after it, and nobody keeps more of it.
        let free: Vec<u32> =
            unreachable.into_iter().filter(|&owner| !self.memory().is_pinned(owner)).collect();
        retired.retain(|old| !free.contains(&old.table.owner));
        for owner in free {
            self.departed_caches.lock().forget_owner(owner);
            self.memory().arena.drop_owner(owner);
        }
    }
}
