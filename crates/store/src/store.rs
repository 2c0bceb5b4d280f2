//! The store: memory, tables, phases.

use std::sync::Arc;
use stillpoint_format::hash::KeyHasher;
use stillpoint_mem::{AddressSpace, RegionError};
use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::{CachePadded, Mutex, lock_word, mutant};
use stillpoint_txn::TableId;

use crate::catalog::{AddTableError, Catalog, NewTable, Replaced};
use crate::memory::Memory;
use crate::memory::arena::CellCache;
use crate::memory::blob;
use crate::memory::cell::Cell;
use crate::phase::{Phase, PhaseDriver, Quiesced};
use crate::planted;
use crate::rules::{CellRules, Reuse, StatusChanges, status};
use crate::sink::{KeptValue, Sink};

/// Settings of a store.
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
    /// Source of address space.
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
    rules: CellRules,
    /// The sink of the present checkpoint's before-images.
    sink: Mutex<Option<Arc<dyn Sink>>>,
    catalog: Catalog,
    /// Number of replacements of tables, and of those whose memory has been freed.
    replacements: AtomicU64,
    returned: AtomicU64,
    /// Ages of undeclared transactions, for wait-die.
    pub(crate) ages: CachePadded<AtomicU64>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("phase", &self.driver.now()).finish_non_exhaustive()
    }
}

impl Store {
    /// An empty store whose cells follow `rules`.
    ///
    /// # Errors
    /// There is no address space for the memory that `config` allows.
    pub fn new(config: &StoreConfig, rules: CellRules) -> Result<Self, RegionError> {
        let driver = PhaseDriver::new(config.workers, config.epoch);
        let read_sections = driver.read_sections().clone();
        Ok(Self {
            memory: Memory::new(
                config.max_memory_bytes,
                rules.copies,
                &config.space,
                read_sections,
            )?,
            driver,
            hasher: KeyHasher::new(config.hash_seed),
            rules,
            sink: Mutex::default(),
            catalog: Catalog::new(config.space.clone(), config.workers),
            replacements: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            ages: CachePadded::new(AtomicU64::new(0)),
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

    /// The hash function of keys, with the store's seed.
    pub fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    #[inline]
    pub(crate) fn rules(&self) -> &CellRules {
        &self.rules
    }

    /// Whether others than the holder of a record's lock may change the record's status now.
    /// `in_section` says that the caller is inside of a read section.
    #[inline]
    pub(crate) fn status_may_change(&self, in_section: bool) -> bool {
        match self.rules.status_changes {
            StatusChanges::Never => false,
            StatusChanges::AtAnyTime => true,
            StatusChanges::WhileQuiesced => !in_section,
            // CAPTURE begins after the end of every read section that may have seen the phase
            // before.
            StatusChanges::InCapture => !in_section || self.driver.now().phase() == Phase::Capture,
        }
    }

    /// Whether no capture needs the copies of a cell whose key has no value. The caller holds the
    /// lock and is inside of a read section, so that no capture begins meanwhile.
    pub(crate) fn may_reuse(&self, cell: Cell<'_>) -> bool {
        match self.rules.reuse {
            Reuse::Always => true,
            Reuse::OutsideOfCaptures => {
                let phase = self.driver.now().phase();
                matches!(phase, Phase::Rest | Phase::Prepare)
                    || mutant!(
                        in self.driver; cell.copies_with_value() == 0, CopyReused => true
                    )
            }
            Reuse::WhenMerged | Reuse::WhenClean => {
                // Relaxed: the holder of the lock sets the bits, and only a checkpoint clears them.
                let status = lock_word::status(cell.lock().load(Relaxed));
                status & (status::DIRTY_EVEN | status::DIRTY_ODD) == 0
                    || self.rules.reuse == Reuse::WhenMerged && cell.copies_with_value() == 0
            }
        }
    }

    /// Sets the sink for the workers' before-images, from before [`Phase::Prepare`](crate::Phase)
    /// until [`Phase::Rest`](crate::Phase) has begun again.
    pub fn set_sink(&self, sink: Option<Arc<dyn Sink>>) {
        *self.sink.lock() = sink;
    }

    pub(crate) fn sink(&self) -> Option<Arc<dyn Sink>> {
        self.sink.lock().clone()
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

    /// Sets the limit. Memory in use stays in use.
    pub fn set_max_memory_bytes(&self, bytes: usize) {
        self.memory.arena.set_limit_bytes(bytes);
    }

    /// Background work: touches memory ahead of its use, counts the indexes' bytes, frees
    /// generations of tables that nobody can reach. Returns whether more can be done at once.
    pub fn maintain(&self) -> bool {
        // Acquire: partner of the Release in `replace_tables`, so that the replaced tables are
        // found below.
        let replacements = self.replacements.load(Acquire);
        self.catalog.drop_retired(&self.memory, &self.driver);
        let mut more = self.memory.arena.populate_ahead() | self.memory.arena.trim();
        let mut index_bytes = 0;
        self.catalog.for_each(|table| {
            more |= table.index.populate_ahead();
            index_bytes += table.index.held_bytes();
        });
        self.memory.arena.set_other_bytes(index_bytes);
        if !self.catalog.has_retired() {
            // Release: partner of the Acquire in `memory_returns`.
            self.returned.fetch_max(replacements, Release);
        }
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
        let mut cache = CellCache::default();
        blob::release(&self.memory, &mut cache, blob);
        cache.drain(&self.memory.arena);
        self.memory.unpin(owner);
    }

    /// Makes a table that [`add_tables`](Self::add_tables) or
    /// [`replace_tables`](Self::replace_tables) can put into the store.
    ///
    /// # Errors
    /// The system refused address space.
    pub fn new_table(&self, id: TableId, generation: u32) -> Result<NewTable, RegionError> {
        self.catalog.make(id, generation)
    }

    /// Adds tables, all of them or none.
    ///
    /// # Errors
    /// The store has a table of one of the numbers already, and stays unchanged.
    pub fn add_tables(&self, new: Vec<NewTable>) -> Result<(), AddTableError> {
        self.catalog.add(new)
    }

    /// Makes a table and adds it.
    ///
    /// # Errors
    /// As [`new_table`](Self::new_table) and [`add_tables`](Self::add_tables).
    pub fn add_table(&self, id: TableId, generation: u32) -> Result<(), AddTableError> {
        self.add_tables(vec![self.new_table(id, generation)?])
    }

    /// Replaces tables by new ones, or adds those whose numbers are new. The quiesce proves that no
    /// commit is under way, so none is lost in the replaced tables.
    ///
    /// # Panics
    /// If another store was quiesced.
    pub fn replace_tables(&self, quiesced: &Quiesced<'_>, new: Vec<NewTable>, replaced: Replaced) {
        assert!(quiesced.is_of(self.driver()), "the quiesce of another store");
        self.catalog.replace(new, replaced);
        // Release: partner of the Acquire loads in `memory_returns` and in `maintain`.
        self.replacements.fetch_add(1, Release);
    }

    /// Whether memory of replaced tables is still to be freed: it waits for a grace period, or for
    /// a checkpoint that may need it. Takes no lock.
    pub fn memory_returns(&self) -> bool {
        // Acquire: partner of the Release in `replace_tables`, and of the one in `maintain`. So a
        // thread that sees the memory as freed can allocate it.
        let replacements = self.replacements.load(Acquire);
        self.returned.load(Acquire) < replacements
    }

    /// Generation of a table. `None` if no table has that number.
    pub fn generation(&self, id: TableId) -> Option<u32> {
        self.catalog.table(id).map(|table| table.generation)
    }

    /// Records with a value in a table.
    pub fn record_count(&self, id: TableId) -> u64 {
        self.catalog.table(id).map_or(0, |table| table.len())
    }

    /// Keys of a table that have a cell: those with a value, and absent ones not yet reclaimed.
    pub fn cell_count(&self, id: TableId) -> u64 {
        self.catalog.table(id).map_or(0, |table| table.index.len())
    }

    /// Number of generations of tables that hold memory: the present ones, and replaced ones that
    /// somebody might still reach.
    pub fn generations_held(&self) -> usize {
        self.catalog.generations_held()
    }

    /// Makes room in a table's index, if it is empty.
    pub fn reserve(&self, id: TableId, records: u64) {
        if let Some(table) = self.catalog.table(id) {
            table.index.reserve(records);
        }
    }
}
