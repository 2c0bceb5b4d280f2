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
use crate::memory::arena::CellCache;
use crate::memory::blob;
use crate::memory::cell::Cell;
use crate::phase::PhaseDriver;
use crate::policy::{CellPolicy, KeptValue, Sink};
use crate::reclaim::Absent;
use crate::table::TableId;

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

    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
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

    /// Fills `out` with the bytes of a kept large value from `offset` on.
    ///
    /// # Panics
    /// If the range is not inside the value.
    pub fn read_kept(&self, kept: &KeptValue, offset: usize, out: &mut [u8]) {
        let blob = kept.blob();
        assert!(offset <= blob.len && out.len() <= blob.len - offset, "range outside the value");
        blob::read_into(&self.memory, blob, offset, out);
    }

    /// Drops a large value kept by [`RecordImage::keep_large`](crate::RecordImage::keep_large).
    pub fn release_kept(&self, kept: KeptValue) {
        let blob = kept.blob();
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
