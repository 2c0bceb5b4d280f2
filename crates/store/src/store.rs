//! The store: memory, tables, phases.

use std::sync::Arc;
use stillpoint_format::hash::KeyHasher;
use stillpoint_mem::{AddressSpace, RegionError};
use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};
use stillpoint_sync::{CachePadded, Mutex};

use crate::catalog::Catalog;
use crate::memory::Memory;
use crate::memory::arena::{CellCache, Kind};
use crate::memory::blob;
use crate::memory::cell::Cell;
use crate::phase::PhaseDriver;
use crate::planted::Bug;
use crate::policy::{Capture, CellPolicy, KeptValue, Lane, RecordImage, Sink};
use crate::protocol::{self, Captured};
use crate::reclaim::Absent;
use crate::table::{Table, TableId};

/// Bit of a cell's status that says in which epochs it counts as captured.
pub(crate) const MARK: u8 = 1;

/// Cells that a walk visits in one read section and with the lane in hand.
const CELLS_PER_LANE: usize = 64;

/// How a store is made.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Bytes that records, large values and indexes may hold together.
    pub max_memory_bytes: usize,
    /// Most workers at a time.
    pub workers: usize,
    /// Seed of the key hash.
    pub hash_seed: u64,
    /// First epoch.
    pub epoch: u64,
    /// Where address space comes from.
    pub space: Arc<AddressSpace>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            max_memory_bytes: 1 << 40,
            workers: 64,
            hash_seed: 0,
            epoch: 1,
            space: Arc::default(),
        }
    }
}

/// Tables of records in memory.
pub struct Store {
    memory: Memory,
    driver: PhaseDriver,
    hasher: KeyHasher,
    policy: Arc<dyn CellPolicy>,
    /// What takes the before-images of the present checkpoint.
    sink: Mutex<Option<Arc<dyn Sink>>>,
    marks: bool,
    pub(crate) catalog: Catalog,
    /// Per worker: catalog version + 1 that an open transaction began with, 0 without one.
    pub(crate) transactions: Box<[CachePadded<AtomicU64>]>,
    /// Ages of undeclared transactions, for wait-die.
    pub(crate) ages: CachePadded<AtomicU64>,
    /// Cells of workers that are gone.
    pub(crate) departed_caches: Mutex<CellCache>,
    /// Absent cells that they could not reclaim yet.
    unreclaimed: Mutex<Vec<Absent>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("phase", &self.driver.now()).finish_non_exhaustive()
    }
}

impl Store {
    /// An empty store whose cells follow `policy`.
    pub fn new(config: &StoreConfig, policy: Arc<dyn CellPolicy>) -> Result<Self, RegionError> {
        let slot = || CachePadded::new(AtomicU64::new(0));
        Ok(Self {
            memory: Memory::new(config.max_memory_bytes, &config.space)?,
            driver: PhaseDriver::new(config.workers, config.epoch),
            hasher: KeyHasher::new(config.hash_seed),
            marks: policy.wants_first_writes(),
            policy,
            sink: Mutex::default(),
            catalog: Catalog::new(config.space.clone()),
            transactions: (0..config.workers).map(|_| slot()).collect(),
            ages: slot(),
            departed_caches: Mutex::default(),
            unreclaimed: Mutex::default(),
        })
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The phase driver.
    pub fn driver(&self) -> &PhaseDriver {
        &self.driver
    }

    pub(crate) fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    pub(crate) fn policy(&self) -> &dyn CellPolicy {
        &*self.policy
    }

    /// Sets the sink that takes what workers save: from before [`Phase::Prepare`](crate::Phase)
    /// until [`Phase::Rest`](crate::Phase) has begun again.
    pub fn set_sink(&self, sink: Option<Arc<dyn Sink>>) {
        *self.sink.lock() = sink;
    }

    pub(crate) fn sink(&self) -> Option<Arc<dyn Sink>> {
        self.sink.lock().clone()
    }

    #[inline]
    pub(crate) fn marks(&self) -> bool {
        self.marks
    }

    /// The key hash.
    #[inline]
    pub fn hash(&self, table: TableId, key: &[u8]) -> u64 {
        self.hasher.hash(table.0, key)
    }

    #[inline]
    pub(crate) fn cell(&self, number: u64) -> Cell<'_> {
        Cell::new(&self.memory, number)
    }

    /// Bytes held by records, large values and indexes.
    pub fn held_bytes(&self) -> usize {
        self.memory.arena.held_bytes()
    }

    /// The limit of [`held_bytes`](Self::held_bytes).
    pub fn max_memory_bytes(&self) -> usize {
        self.memory.arena.limit_bytes()
    }

    /// Sets the limit; what is held already stays.
    pub fn set_max_memory_bytes(&self, bytes: usize) {
        self.memory.arena.set_limit_bytes(bytes);
    }

    /// Announces a transaction that may keep cells while it is outside its read section.
    pub(crate) fn begin_transaction(&self, worker: usize, version: u64) {
        self.transactions[worker].store(version + 1, Relaxed);
        // The caller enters a read section next, whose fence orders this store; partner: `retire`.
    }

    pub(crate) fn end_transaction(&self, worker: usize) {
        self.transactions[worker].store(0, Release);
    }

    /// Background work: touches memory ahead of its use, counts the indexes' bytes, frees table
    /// generations that nobody can reach. True if more can be done at once.
    pub fn maintain(&self) -> bool {
        let mut more = self.memory.arena.populate_ahead();
        let mut index_bytes = 0;
        self.catalog.for_each(|table| {
            more |= table.index.populate_ahead();
            index_bytes += table.index.held_bytes();
        });
        self.memory.arena.set_other_bytes(index_bytes);
        self.drop_retired();
        more
    }

    /// Number of slabs to walk for a capture.
    pub fn slab_count(&self) -> usize {
        self.memory.arena.slab_count()
    }

    /// Emits every record of a slab that is not yet marked for the present epoch, and marks it.
    /// In [`Phase::Capture`](crate::Phase) only; waits for no lock.
    pub fn capture_unmarked(&self, slab: usize, to: &mut dyn Capture) {
        let mark = mark_of(self.driver.now().epoch());
        let blind = self.driver.has_planted(Bug::MarksNotSeen);
        let mut key = Vec::new();
        for from in (0..).step_by(CELLS_PER_LANE) {
            let read_section = self.driver.read_sections().read_section(to.slot());
            let seen = self.walk_part(slab, from, to, &mut |table, cell, lane| {
                let mut walked = Walked { store: self, table, key: &mut key, lane };
                protocol::capture(cell, mark, blind, &mut walked);
            });
            drop(read_section);
            if seen < CELLS_PER_LANE {
                return;
            }
            to.pause();
        }
    }

    /// Emits every record of a slab. The caller holds the store quiesced.
    pub fn capture_all(&self, slab: usize, to: &mut dyn Capture) {
        let mut key = Vec::new();
        for from in (0..).step_by(CELLS_PER_LANE) {
            let seen = self.walk_part(slab, from, to, &mut |table, cell, lane| {
                if cell.is_record()
                    && let Some(value) = cell.value()
                {
                    cell.read_key(&mut key);
                    lane.emit(&self.image(table, &key, value));
                }
            });
            if seen < CELLS_PER_LANE {
                return;
            }
            to.pause();
        }
    }

    /// Visits the cells of a slab from the `from`-th on, with the lane; gives how many there were.
    fn walk_part(
        &self,
        slab: usize,
        from: usize,
        to: &mut dyn Capture,
        visit: &mut dyn FnMut(&Table, Cell<'_>, &mut dyn Lane),
    ) -> usize {
        let mut seen = 0;
        to.with_lane(&mut |lane| {
            seen = self.walk_cells(slab, from..from + CELLS_PER_LANE, &mut |table, cell| {
                visit(table, cell, lane);
            });
        });
        seen
    }

    pub(crate) fn image<'a>(
        &self,
        table: &Table,
        key: &'a [u8],
        value: crate::ValueRef<'a>,
    ) -> RecordImage<'a> {
        let hash = self.hash(table.id, key);
        RecordImage::new(table.id.0, table.generation, hash, key, value)
    }

    fn walk_cells(
        &self,
        slab: usize,
        part: std::ops::Range<usize>,
        visit: &mut dyn FnMut(&Table, Cell<'_>),
    ) -> usize {
        let Some(slab) = self.memory.arena.slab(slab) else {
            return 0;
        };
        if slab.kind != Kind::Record as u8 && slab.kind != Kind::Lock as u8 {
            return 0;
        }
        let Some(table) = self.catalog.owner(slab.owner) else {
            return 0;
        };
        let mut seen = 0;
        for number in slab.numbers(part) {
            visit(&table, self.cell(number));
            seen += 1;
        }
        seen
    }

    /// Drops a large value kept by [`RecordImage::keep_large`].
    pub fn release_kept(&self, kept: KeptValue) {
        let blob = kept.into_blob();
        let owner = self.memory.arena.owner_of(blob.table);
        let mut departed_caches = self.departed_caches.lock();
        blob::release(&self.memory, &mut departed_caches, blob);
        departed_caches.drain(&self.memory.arena);
        drop(departed_caches);
        self.memory.unpin(owner);
    }

    pub(crate) fn orphan(&self, absent: impl Iterator<Item = Absent>) {
        self.unreclaimed.lock().extend(absent);
    }

    pub(crate) fn unreclaimed(&self) -> Vec<Absent> {
        std::mem::take(&mut self.unreclaimed.lock())
    }

    pub(crate) fn take_over(&self, mut cache: CellCache) {
        cache.drain(&self.memory.arena);
        self.departed_caches.lock().drain(&self.memory.arena);
    }
}

/// A walk with the lane in hand.
struct Walked<'a> {
    store: &'a Store,
    table: &'a Table,
    key: &'a mut Vec<u8>,
    lane: &'a mut dyn Lane,
}

impl Captured for Walked<'_> {
    fn emit(&mut self, cell: Cell<'_>, value: crate::ValueRef<'_>) {
        cell.read_key(self.key);
        self.lane.emit(&self.store.image(self.table, self.key, value));
    }
    fn take_back(&mut self) {
        self.lane.take_back();
    }
}

/// The mark of records captured by the checkpoint that began `epoch`.
#[inline]
pub(crate) fn mark_of(epoch: u64) -> u8 {
    (epoch & 1) as u8 * MARK
}
