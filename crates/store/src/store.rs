//! The store: memory, tables, phases.

use std::sync::{Arc, OnceLock, Weak};
use stillpoint_format::hash::KeyHasher;
use stillpoint_mem::{AddressSpace, RegionError};
use stillpoint_sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::{Backoff, CachePadded, Mutex, lock_word, mutant};
use stillpoint_txn::{MemoryLimit, TableId};

use crate::catalog::{AddTableError, Catalog, NewTable, Replaced, WaitingMemory};
use crate::chains::Chains;
use crate::deletions::Deletions;
use crate::memory::Memory;
use crate::memory::arena::{Allowance, CellCache, Moves};
use crate::memory::blob;
use crate::memory::cell::Cell;
use crate::ordered::OrderedIndex;
use crate::ordered::locks::LockTable;
use crate::phase::{Permit, Phase, PhaseDriver, PhaseWord, Quiesced};
use crate::planted;
use crate::read_stamps::ReadStamps;
use crate::rules::{CellRules, DirtyRule, Reuse, StatusChanges, WriteRule, status};
use crate::sink::{KeptValue, Sink};
use crate::unloaded::Unloaded;

/// How a store is made.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Bytes that records, large values and indexes may hold together.
    pub max_memory_bytes: usize,
    /// Most workers at a time.
    pub workers: usize,
    /// Seed of the key hash.
    pub hash_seed: u64,
    /// Bytes of the pool of stable versions, under [`WriteRule::StoreStable`]. They count against
    /// `max_memory_bytes`. `None` for a fifth of it. With uniform updates at the rate of the capture, a
    /// checkpoint needs 19.9 % of the bytes of the records (CALC, SIGMOD 2016, §5.1.6).
    pub stable_pool_bytes: Option<usize>,
    /// First epoch.
    pub epoch: u64,
    /// Whether gsns are a serial order of all transactions that write, and not of the writes of each
    /// key alone. Then commits leave stamps for the keys that they have read. They leave none for gaps
    /// and numbers of ordered tables, which no call reads.
    pub serial_gsns: bool,
    /// Where address space comes from.
    pub space: Arc<AddressSpace>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            max_memory_bytes: 1 << 40,
            workers: 64,
            stable_pool_bytes: None,
            hash_seed: 0,
            epoch: 1,
            serial_gsns: false,
            space: Arc::default(),
        }
    }
}

/// Bit of the moment since which a cell waits for the end of a capture. The other bits are the epoch that the
/// capture's point of consistency has begun.
const FOR_CAPTURE: u64 = 1 << 63;

/// Tables of records in memory.
pub struct Store {
    memory: Memory,
    space: Arc<AddressSpace>,
    driver: PhaseDriver,
    hasher: KeyHasher,
    rules: CellRules,
    /// The sink of the present checkpoint, which takes before-images.
    sink: Mutex<Option<Arc<dyn Sink>>>,
    catalog: Catalog,
    /// How often tables were replaced, and for how many of these replacements the memory is freed.
    replacements: AtomicU64,
    returned: AtomicU64,
    /// Whether replay marks the cells that it writes as dirty, for schemes that mark changes.
    marks_replayed: bool,
    chains: Chains,
    /// Stamps of reads, if gsns are a serial order.
    pub(crate) read_stamps: Option<ReadStamps>,
    /// The locks of gaps and numbers, once a table was ordered.
    lock_table: OnceLock<LockTable>,
    /// The deleted keys that the present loaders share, and their bytes.
    deletions: Mutex<Weak<Deletions>>,
    deletion_bytes: AtomicUsize,
    /// What is still to be loaded while the store is served.
    unloaded: Unloaded,
    /// Cells that wait for a checkpoint, and bytes of the workers' queues of absent cells.
    waiting_cells: AtomicUsize,
    queue_bytes: AtomicUsize,
    /// Bytes of these cells, and of other absent cells in the queues.
    needed_bytes: AtomicUsize,
    absent_bytes: AtomicUsize,
    /// Bytes that a checkpoint holds in a child process.
    child_bytes: AtomicUsize,
    /// The last such number that was not zero.
    last_child_bytes: AtomicUsize,
    /// Bytes of large values that a checkpoint has read whole.
    copied_bytes: AtomicUsize,
    /// The moves of cells under way.
    pub(crate) moves: Mutex<Option<Moves>>,
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
        let space = &config.space;
        let mut memory = Memory::new(config.max_memory_bytes, rules.copies, space, read_sections)?;
        if rules.write == WriteRule::StoreStable {
            let bytes = config.stable_pool_bytes.unwrap_or(config.max_memory_bytes / 5);
            memory.keep_stable_versions(bytes, space)?;
        }
        if rules.dirty == DirtyRule::ByEpoch {
            memory.keep_marks(space);
        }
        Ok(Self {
            memory,
            space: Arc::clone(space),
            driver,
            hasher: KeyHasher::new(config.hash_seed),
            rules,
            sink: Mutex::default(),
            catalog: Catalog::new(config.space.clone(), config.workers),
            replacements: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            marks_replayed: true,
            chains: Chains::default(),
            read_stamps: config.serial_gsns.then(ReadStamps::new),
            lock_table: OnceLock::new(),
            deletions: Mutex::default(),
            deletion_bytes: AtomicUsize::new(0),
            unloaded: Unloaded::default(),
            waiting_cells: AtomicUsize::new(0),
            queue_bytes: AtomicUsize::new(0),
            needed_bytes: AtomicUsize::new(0),
            absent_bytes: AtomicUsize::new(0),
            child_bytes: AtomicUsize::new(0),
            last_child_bytes: AtomicUsize::new(0),
            copied_bytes: AtomicUsize::new(0),
            moves: Mutex::default(),
            ages: CachePadded::new(AtomicU64::new(0)),
        })
    }

    /// Makes replay set no dirty marks, so that it can reuse the cells of keys that it deletes. For
    /// a store whose next checkpoint has every record in any case.
    pub fn leave_replayed_unmarked(&mut self) {
        self.marks_replayed = false;
    }

    pub(crate) fn unloaded(&self) -> &Unloaded {
        &self.unloaded
    }

    pub(crate) fn chains(&self) -> &Chains {
        &self.chains
    }

    /// The status bit of keys that the present chain has.
    pub(crate) fn present_chain(&self) -> u8 {
        mutant!(in self.driver; self.chains.present(), ChainForgotten => 0)
    }

    /// The status bit of keys that the full checkpoint under way has.
    #[inline]
    pub(crate) fn begun_chain(&self) -> u8 {
        mutant!(in self.driver; self.chains.begun(), ChainForgotten => 0)
    }

    /// The locks of gaps and numbers. Only ordered tables need them.
    pub(crate) fn lock_table(&self) -> &LockTable {
        self.lock_table.get().expect("made with the first ordered table")
    }

    pub(crate) fn marks_replayed(&self) -> bool {
        self.marks_replayed
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

    /// Whether others than the holder of a record's lock may change the status of the record now.
    /// `in_section` says that the caller is inside of a read section.
    #[inline]
    pub(crate) fn status_may_change(&self, in_section: bool) -> bool {
        mutant!(in self.driver; StatusLost => return !in_section);
        match self.rules.status_changes {
            StatusChanges::Never => false,
            StatusChanges::AtAnyTime => true,
            StatusChanges::WhileQuiesced => !in_section,
            // CAPTURE begins after every read section has ended that may have seen the phase before.
            StatusChanges::InCapture => !in_section || self.driver.now().phase() == Phase::Capture,
            // PREPARE likewise begins after every such read section has ended.
            StatusChanges::InPrepareAndCapture => {
                !in_section || matches!(self.driver.now().phase(), Phase::Prepare | Phase::Capture)
            }
        }
    }

    /// Whether no checkpoint needs a cell whose key has no value, or loses its value to another cell.
    /// The caller holds the lock and is inside of a read section, so that no capture begins meanwhile.
    pub(crate) fn may_reuse(&self, cell: Cell<'_>) -> bool {
        match self.rules.reuse {
            Reuse::Always => true,
            Reuse::OutsideOfCaptures => self.has_no_captured_copy(cell),
            Reuse::OutsideOfCheckpoints => self.is_at_rest(),
            Reuse::WhenMerged => is_clean(cell) || cell.copies_with_value() == 0,
            Reuse::WhenClean => self.has_no_missing_deletion(cell),
            Reuse::WhenCleanOutsideOfCaptures => {
                self.has_no_captured_copy(cell) && self.has_no_missing_deletion(cell)
            }
            Reuse::WhenCleanOutsideOfCheckpoints => {
                self.is_at_rest() && self.has_no_missing_deletion(cell)
            }
        }
    }

    /// Whether a commit in the phase `now` may replace the cell of a key by another cell. The caller
    /// holds the lock, and is inside of a read section.
    ///
    /// The commit saves the before-image of a key with a value before, if the capture under way needs
    /// one.
    pub(crate) fn may_replace(&self, now: PhaseWord, cell: Cell<'_>, is_absent: bool) -> bool {
        if is_absent {
            return self.may_reuse(cell) || self.may_move(now, || true);
        }
        self.rules.write.replaces_present_cells()
            && match self.rules.reuse.waits_for_deletions() {
                true => self.may_move(now, || true),
                false => self.may_reuse(cell),
            }
    }

    /// The status bits that the cell takes over which replaces the cell `old` in a commit in the phase
    /// `now`. A checkpoint may have a key that has a value, however clean its cell is.
    pub(crate) fn replaced_status(&self, now: PhaseWord, old: Cell<'_>, is_absent: bool) -> u8 {
        let moves = self.may_move(now, || true) && !(is_absent && self.may_reuse(old));
        if moves { self.moved_status(old) } else { 0 }
    }

    /// Whether the cell of a deleted key is kept while a capture or checkpoint is under way that might spare it.
    pub fn captures_keep_deleted_keys(&self) -> bool {
        !matches!(self.rules.reuse, Reuse::Always | Reuse::WhenClean)
    }

    /// Whether no checkpoint is under way.
    fn is_at_rest(&self) -> bool {
        let is_at_rest = self.driver.now().phase() == Phase::Rest;
        mutant!(in self.driver; is_at_rest, CopyReused => true)
    }

    /// Whether no capture under way may read a copy of the cell.
    fn has_no_captured_copy(&self, cell: Cell<'_>) -> bool {
        let phase = self.driver.now().phase();
        mutant!(in self.driver; CopyReused => return true);
        matches!(phase, Phase::Rest | Phase::Prepare) || cell.copies_with_value() == 0
    }

    /// Whether a published checkpoint has the deletion of the cell's key, or none has the key.
    fn has_no_missing_deletion(&self, cell: Cell<'_>) -> bool {
        is_clean(cell)
            || !self.chains.may_have(status_of(cell))
            || mutant!(in self.driver; false, DirtyCellReused => true)
    }

    /// The moment since which a cell with this status waits for checkpoints, if it may not be reused
    /// now. If a published checkpoint must have the deletion, this is the epoch of the marks. It is an
    /// earlier epoch if only the checkpoint under way needs the cell. Under other rules it is a count
    /// of captures that begin or end.
    pub(crate) fn waits_since(&self, status: u8) -> u64 {
        let now = self.driver.now();
        let epoch = now.epoch();
        if !self.rules.reuse.waits_for_deletions() {
            return 2 * epoch + u64::from(now.phase() <= Phase::Prepare);
        }
        match status & (status::DIRTY_EVEN | status::DIRTY_ODD) {
            0 => epoch.saturating_sub(2),
            marks if marks & status::dirty_in(epoch) == 0 => epoch.saturating_sub(1),
            _ => epoch,
        }
    }

    /// The moment since which a cell waits for the end of the capture under way, and for nothing else.
    pub(crate) fn waits_for_capture(&self) -> u64 {
        FOR_CAPTURE | self.driver.now().epoch()
    }

    /// Whether a cell may be free that has waited since this moment.
    pub(crate) fn wait_is_over(&self, since: u64) -> bool {
        let (now, reuse) = (self.driver.now(), self.rules.reuse);
        if since & FOR_CAPTURE != 0 {
            let is_capturing = matches!(now.phase(), Phase::Resolve | Phase::Capture);
            return !is_capturing || now.epoch() != since & !FOR_CAPTURE;
        }
        if !reuse.waits_for_deletions() {
            return self.waits_since(0) > since;
        }
        let is_outside = match reuse {
            Reuse::WhenCleanOutsideOfCaptures => now.phase() <= Phase::Prepare,
            Reuse::WhenCleanOutsideOfCheckpoints => now.phase() == Phase::Rest,
            _ => true,
        };
        // PREPARE of the epoch after that of the marks has cleared them.
        is_outside && now.epoch() >= since + 2
    }

    /// Counts the memory of a worker's queues of absent cells, which was so much `before` and is so much
    /// `now`.
    pub(crate) fn count_waiting(&self, before: WaitingMemory, now: WaitingMemory) {
        // Relaxed: statistics. The sums wrap and come right in the end.
        let count = |sum: &AtomicUsize, before: usize, now: usize| {
            if before != now {
                sum.fetch_add(now.wrapping_sub(before), Relaxed);
            }
        };
        count(&self.waiting_cells, before.needed, now.needed);
        count(&self.queue_bytes, before.queue_bytes, now.queue_bytes);
        count(&self.needed_bytes, before.needed_bytes, now.needed_bytes);
        count(&self.absent_bytes, before.absent_bytes, now.absent_bytes);
    }

    /// Cells of deleted keys that wait until a published checkpoint has the deletion.
    pub fn waiting_cells(&self) -> usize {
        self.waiting_cells.load(Relaxed)
    }

    /// Bytes of deleted keys that are free once their deletions are durable, or the checkpoint under way
    /// has ended. And bytes of deleted keys that wait for a checkpoint to begin.
    pub fn returning_bytes(&self) -> (usize, usize) {
        // Relaxed: statistics.
        let (absent, needed) = (self.absent_bytes.load(Relaxed), self.needed_bytes.load(Relaxed));
        match self.rules.reuse.waits_for_deletions() {
            true => (absent, needed),
            false => (absent.saturating_add(needed), 0),
        }
    }

    /// Whether a cell that a checkpoint needs may be replaced by another cell of its key, with the
    /// [status that moves along](Self::moved_status). Asked in the phase `now`, by the holder of the
    /// cell's lock, who has entered a read section before. `is_claimed` tells that no checkpoint will
    /// claim the cell.
    ///
    /// Only a pass in PREPARE and a claim in CAPTURE would change the status meanwhile. Where commits hand
    /// no before-images to a sink, a capture may yet read another copy of the cell, or the cell itself.
    pub(crate) fn may_move(&self, now: PhaseWord, is_claimed: impl FnOnce() -> bool) -> bool {
        self.rules.reuse.waits_for_deletions()
            && match now.phase() {
                Phase::Rest | Phase::Complete => true,
                Phase::Prepare => false,
                Phase::Resolve | Phase::Capture => {
                    self.rules.write == WriteRule::SaveBeforeImage && is_claimed()
                }
            }
    }

    /// Whether the contents of a cell may move to another cell of the same size. Asked as
    /// [`may_move`](Self::may_move) is. Where cells have several copies, the scheme may write one of
    /// them at any time.
    pub(crate) fn may_relocate(&self, now: PhaseWord, is_claimed: impl FnOnce() -> bool) -> bool {
        self.rules.write.replaces_present_cells()
            && match now.phase() {
                Phase::Rest => true,
                Phase::Prepare | Phase::Complete => false,
                Phase::Resolve | Phase::Capture => {
                    self.rules.write == WriteRule::SaveBeforeImage && is_claimed()
                }
            }
    }

    /// The status bits that a cell takes over from the cell `old` that it replaces, if a checkpoint
    /// needs the key.
    pub(crate) fn moved_status(&self, old: Cell<'_>) -> u8 {
        // Relaxed: nobody changes the status while the cell may be moved.
        let moved = lock_word::status(old.lock().load(Relaxed)) & status::MOVED;
        mutant!(in self.driver; moved, MovedWithoutStatus => 0)
    }

    /// Notes the marks of a cell that has taken over this status.
    pub(crate) fn note_moved_marks(&self, cell: u64, status: u8) {
        for epoch in (0..2).filter(|&epoch| status & status::dirty_in(epoch) != 0) {
            self.note_mark(cell, epoch);
        }
    }

    /// Notes beside the cells that a cell has the dirty mark of `epoch`, so that passes over the changes
    /// find the cell.
    #[inline(never)]
    pub(crate) fn note_mark(&self, cell: u64, epoch: u64) {
        mutant!(in self.driver; MarkNotNoted => return);
        if let Some(marks) = self.memory.arena.marks() {
            marks.set(cell, epoch);
        }
    }

    /// Sets the sink that takes before-images. The sink is set from before
    /// [`Phase::Prepare`](crate::Phase) until [`Phase::Rest`](crate::Phase) has begun again.
    pub fn set_sink(&self, sink: Option<Arc<dyn Sink>>) {
        if sink.is_none()
            && let Some(pool) = &self.memory.pool
        {
            // In REST no record has a stable version, but those of tables that were emptied meanwhile.
            pool.reset();
        }
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

    /// Copies of the value in each cell.
    pub fn copies(&self) -> usize {
        self.rules.copies
    }

    /// Bytes held by records, large values and indexes, by the workers' queues of absent cells, and by
    /// deleted keys while a chain is loaded.
    pub fn held_bytes(&self) -> usize {
        // Relaxed: a statistic.
        self.memory.arena.held_bytes() + self.deletion_bytes.load(Relaxed)
    }

    /// The deleted keys that all present loaders share.
    pub(crate) fn deletions(&self) -> Arc<Deletions> {
        let mut shared = self.deletions.lock();
        shared.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Deletions::default());
            *shared = Arc::downgrade(&new);
            new
        })
    }

    /// Counts bytes of deleted keys, if they fit into the memory limit and its reserve.
    ///
    /// # Errors
    /// They do not.
    pub(crate) fn count_deletions(&self, bytes: usize) -> Result<(), MemoryLimit> {
        let counted = self.deletion_bytes.load(Relaxed);
        // A load beside transactions never fails for the memory that these take.
        let is_served = self.unloaded.is_loading();
        let allowance = if is_served { Allowance::Load } else { Allowance::Reserve };
        self.memory.arena.check_room(counted + bytes, allowance)?;
        self.deletion_bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Ends a loader's share of the deleted keys. The last loader frees the keys.
    pub(crate) fn release_deletions(&self, share: Arc<Deletions>) {
        if let Some(all) = Arc::into_inner(share) {
            self.deletion_bytes.fetch_sub(all.bytes(), Relaxed);
        }
    }

    /// Bytes below the memory limit that no record uses. Some may serve only records of some sizes.
    pub fn spare_bytes(&self) -> usize {
        self.memory.arena.spare_bytes()
    }

    /// Keeps an access mark for each record from now on: 32 bits that transactions
    /// [set](crate::Tx::set_access). Until then the store has no memory for marks, and nothing is set.
    ///
    /// # Errors
    /// The system refuses the address space.
    pub fn keep_accesses(&self) -> Result<(), RegionError> {
        self.memory.arena.keep_accesses(&self.space)
    }

    /// The limit of [`held_bytes`](Self::held_bytes).
    pub fn max_memory_bytes(&self) -> usize {
        self.memory.arena.limit_bytes()
    }

    /// Sets the memory limit. Memory that is held already stays.
    pub fn set_max_memory_bytes(&self, bytes: usize) {
        self.memory.arena.set_limit_bytes(bytes);
    }

    /// Background work: touches memory ahead of its use, counts bytes beside the cells, frees table
    /// generations that nobody can reach. True if more work can be done at once.
    pub fn maintain(&self) -> bool {
        // Acquire: partner of the Release in `replace_tables`; the tables of these replacements are
        // found below.
        let replacements = self.replacements.load(Acquire);
        self.catalog.drop_retired(&self.memory, &self.driver);
        let mut more = self.memory.arena.populate_ahead() | self.memory.arena.trim();
        // Relaxed: counts.
        let mut other_bytes = self.unloaded.reserved()
            + self.unloaded.waiting_bytes()
            + self.memory.arena.mark_bytes()
            + self.memory.arena.access_bytes()
            + self.queue_bytes.load(Relaxed)
            + self.child_bytes.load(Relaxed)
            + self.lock_table.get().map_or(0, LockTable::held_bytes)
            + self.copied_bytes.load(Relaxed);
        if let Some(pool) = &self.memory.pool {
            more |= pool.populate_ahead();
            other_bytes += pool.bytes();
        }
        let may_shrink = !self.unloaded.is_loading();
        self.catalog.for_each(|table| {
            if may_shrink {
                table.index.shrink(self.driver.read_sections());
            }
            more |= table.index.populate_ahead();
            other_bytes += table.index.held_bytes();
            other_bytes += table.ordered.as_ref().map_or(0, OrderedIndex::held_bytes);
        });
        self.memory.arena.set_other_bytes(other_bytes);
        if !self.catalog.has_retired() {
            // Release: partner of the Acquire in `memory_returns`.
            self.returned.fetch_max(replacements, Release);
        }
        more
    }

    /// Notes the bytes of memory that a checkpoint holds in a child process. They count against the
    /// memory limit from the next [maintenance](Self::maintain) on.
    pub fn note_child_bytes(&self, bytes: u64) {
        // Relaxed: counts.
        self.child_bytes.store(bytes as usize, Relaxed);
        if bytes > 0 {
            self.last_child_bytes.store(bytes as usize, Relaxed);
        }
    }

    /// Notes that a thread of a checkpoint holds a copy of a large value of `now` bytes, and of `before`
    /// bytes before. Copies count as [child bytes](Self::note_child_bytes) do.
    pub(crate) fn note_copied(&self, before: usize, now: usize) {
        // Relaxed: a count. The sum wraps around as the difference does.
        self.copied_bytes.fetch_add(now.wrapping_sub(before), Relaxed);
    }

    /// Bytes of memory that a checkpoint holds in a child process, and those that the last such
    /// checkpoint held at the end of its capture.
    pub fn child_bytes(&self) -> (usize, usize) {
        // Relaxed: counts.
        (self.child_bytes.load(Relaxed), self.last_child_bytes.load(Relaxed))
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
    /// [`replace_tables`](Self::replace_tables) can put into the store. The table is ordered if the
    /// present table of that number is.
    ///
    /// # Errors
    /// The system refuses the address space for the table.
    pub fn new_table(&self, id: TableId, generation: u32) -> Result<NewTable, RegionError> {
        self.catalog.make(id, generation, self.is_ordered(id))
    }

    /// As [`new_table`](Self::new_table), but the table is ordered in any case. A transaction can read
    /// [ranges](crate::Tx::range) of an ordered table.
    ///
    /// # Errors
    /// As [`new_table`](Self::new_table).
    pub fn new_ordered_table(&self, id: TableId, generation: u32) -> Result<NewTable, RegionError> {
        self.lock_table.get_or_init(LockTable::new);
        self.catalog.make(id, generation, true)
    }

    /// Whether the present table of that number is ordered.
    pub fn is_ordered(&self, id: TableId) -> bool {
        self.catalog.table(id).is_some_and(|table| table.ordered.is_some())
    }

    /// Keeps transactions from beginning, and waits until none is open: the published form of a physical
    /// point of consistency (CALC, SIGMOD 2016, §4.1.4). Quiesce the store then. `None` once `gives_up`
    /// says so, which is asked all the while.
    pub fn hold_transactions(&self, gives_up: &dyn Fn() -> bool) -> Option<HeldTransactions<'_>> {
        let mut backoff = Backoff::new();
        let permit = loop {
            match self.driver.try_take_permit() {
                Some(permit) => break permit,
                None if gives_up() => return None,
                None => backoff.wait(),
            }
        };
        // After this, each transaction either waits to begin, or is announced, or is in a read section.
        self.driver.read_sections().wait_grace_period();
        while self.catalog.has_open_transaction() {
            if gives_up() {
                return None;
            }
            backoff.wait();
        }
        Some(HeldTransactions { _permit: permit })
    }

    /// Adds tables, all of them or none.
    ///
    /// # Errors
    /// The store has a table of one of the numbers already; it stays as it is.
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
        let pool = self.memory.pool.as_ref().filter(|_| self.driver().now().is_capturing());
        let resets = pool.map(|pool| pool.resets());
        self.catalog.replace(new, replaced, resets);
        // Release: partner of the Acquire loads in `memory_returns` and in `maintain`.
        self.replacements.fetch_add(1, Release);
    }

    /// True while memory of replaced tables is not free yet. The memory waits for a grace period,
    /// or for a checkpoint that may need it. Takes no lock.
    pub fn memory_returns(&self) -> bool {
        // Acquire: partner of the Release in `replace_tables`; then of the one in `maintain`. So a
        // thread that sees the memory as freed can use it.
        let replacements = self.replacements.load(Acquire);
        self.returned.load(Acquire) < replacements
    }

    /// Generation of a table; `None` if there is none of that number.
    pub fn generation(&self, id: TableId) -> Option<u32> {
        self.catalog.table(id).map(|table| table.generation)
    }

    /// Records with a value in a table.
    pub fn record_count(&self, id: TableId) -> u64 {
        self.catalog.table(id).map_or(0, |table| table.len())
    }

    /// Records with a value in all tables.
    pub fn record_total(&self) -> u64 {
        self.catalog.record_total()
    }

    /// Keys of a table that have a cell: those with a value, and absent ones not yet reclaimed.
    pub fn cell_count(&self, id: TableId) -> u64 {
        self.catalog.table(id).map_or(0, |table| table.index.len())
    }

    /// Keys in the ordered index of a table: those with a value, and others that are not yet reclaimed.
    /// A table that is not ordered has 0. Takes time for each key.
    pub fn ordered_key_count(&self, id: TableId) -> u64 {
        let table = self.catalog.table(id);
        let ordered = table.as_ref().and_then(|table| table.ordered.as_ref());
        ordered.map_or(0, OrderedIndex::key_count)
    }

    /// Generations of tables whose memory is held: the present ones, and replaced ones that
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

/// While this value lives, no transaction begins.
#[derive(Debug)]
pub struct HeldTransactions<'a> {
    _permit: Permit<'a>,
}

/// The status of a cell whose lock the caller holds.
fn status_of(cell: Cell<'_>) -> u8 {
    // Relaxed: the holder of the lock sets the dirty bits, and only a checkpoint clears them.
    lock_word::status(cell.lock().load(Relaxed))
}

/// Whether no dirty bit of the cell is set. The caller holds the lock.
fn is_clean(cell: Cell<'_>) -> bool {
    status_of(cell) & (status::DIRTY_EVEN | status::DIRTY_ODD) == 0
}
