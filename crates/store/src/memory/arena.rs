//! Size-class slabs of cells on huge pages.
//!
//! One region of address space, cut into slabs of 2 MiB. A slab belongs to one owner (a generation
//! of a table), one kind and one size class, and is never moved. A cell's *number* is its offset
//! in the region in units of 16 bytes; number 0 is no cell.
//!
//! The arena gives runs of cells to per-worker caches, so that the common allocation takes no lock.
//! Slabs are populated ahead of their use by [`Arena::populate_ahead`].
//!
//! ```text
//! free ──▶ owned ──▶ empty ──▶ owned by the same pool      at once: its cells keep their size
//!   ▲                  │  └──▶ owned by another pool       after a grace period, zeroed
//!   └──────────────────┘                                   after a grace period, trimmed
//! ```
//! A slab whose cells are all free is *empty*. A reader that met one of its cells before may still
//! read it until its read section ends. So the slab keeps its description until then. A reader that
//! enters later sees that the slab is empty and skips it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use stillpoint_mem::{AddressSpace, HUGE_PAGE_BYTES, Region, RegionError};
use stillpoint_sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use stillpoint_sync::{GracePeriod, Mutex, ReadSections};
use stillpoint_txn::MemoryLimit;

use super::marks::Marks;

/// Bytes of a slab.
pub(crate) const SLAB_BYTES: usize = HUGE_PAGE_BYTES;
const UNIT_BYTES: usize = 16;
pub(super) const UNITS_PER_SLAB: u64 = (SLAB_BYTES / UNIT_BYTES) as u64;
/// Cell numbers fit in this many bits.
pub(crate) const NUMBER_BITS: u32 = 36;
const REGION_BYTES_MAX: usize = 1 << 40;
const REGION_BYTES_MIN: usize = 64 << 20;
/// The reserve beyond the limit is this fraction of the limit, within the two bounds.
const RESERVE_PART: usize = 16;
const RESERVE_BYTES_MIN: usize = 16 << 20;
const RESERVE_BYTES_MAX: usize = 1 << 30;
/// Most cells, and most bytes, that a cache takes from the arena at a time.
const RUN_CELLS_MAX: usize = 64;
const RUN_BYTES_MAX: usize = 64 << 10;
/// Runs of free cells of a class that a cache keeps. The cache returns further runs.
const CACHE_RUNS_MAX: usize = 4;

/// Cell sizes in bytes. Steps of 16 up to 192, then at most a quarter; the last holds a chunk or
/// the table of a large value.
const CLASS_BYTES: [usize; 41] = [
    32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256, 288, 320, 384, 448, 512, 576, 640,
    768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 10240, 12288,
    16384, 20480, 24576, 32768, 49152, 65600,
];

/// Per size class, the cells of a run.
const RUN_CELLS: [usize; CLASS_BYTES.len()] = {
    let mut runs = [RUN_CELLS_MAX; CLASS_BYTES.len()];
    let mut class = 0;
    while class < runs.len() {
        let cells = RUN_BYTES_MAX.div_ceil(CLASS_BYTES[class]);
        if cells < RUN_CELLS_MAX {
            runs[class] = cells;
        }
        class += 1;
    }
    runs
};

/// The largest allocation in bytes.
pub(crate) const CELL_BYTES_MAX: usize = CLASS_BYTES[CLASS_BYTES.len() - 1];

/// The kind of a slab's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Records, which a capture scans.
    Record = 1,
    /// Chunks and tables of large values, and long keys.
    Block = 2,
    /// Locks of keys without a value, made beyond the memory limit, up to twice the reserve, so
    /// that reads and deletions go on. These cells hold no value.
    Lock = 3,
    /// Long keys of [`Kind::Lock`].
    LockKey = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PoolKey {
    owner: u32,
    kind: u8,
    class: u8,
}

/// Bit of a slab's description: all of its cells are free, and no scan may visit it.
const EMPTY: u64 = 1 << 16;

impl PoolKey {
    /// Most cells that a cache takes and returns at a time.
    fn run_cells(self) -> usize {
        RUN_CELLS[usize::from(self.class)]
    }
    fn describe(self) -> u64 {
        u64::from(self.class) | u64::from(self.kind) << 8 | u64::from(self.owner) << 32
    }
    fn of(description: u64) -> Self {
        Self {
            class: description as u8,
            kind: (description >> 8) as u8,
            owner: (description >> 32) as u32,
        }
    }
}

/// The free cells of a slab.
#[derive(Debug, Default)]
struct SlabCells {
    /// Positions of freed cells.
    returned: Vec<u16>,
    /// Cells from this position on were never allocated.
    fresh: usize,
}

/// All memory of a store's records and large values.
#[derive(Debug)]
pub(crate) struct Arena {
    region: Region,
    /// Per slab, its size class, kind and owner, and whether it is [`EMPTY`]. 0 while the slab is
    /// free.
    slabs: Box<[AtomicU64]>,
    /// Slabs below this index were taken at least once.
    slabs_taken: AtomicUsize,
    slabs_populated: AtomicUsize,
    /// Slabs held by owners.
    slabs_held: AtomicUsize,
    limit_bytes: AtomicUsize,
    /// Bytes that others hold under the same limit (indexes).
    other_bytes: AtomicUsize,
    pools: Mutex<Pools>,
    /// Read sections, which may still reach a slab that has become empty.
    read_sections: ReadSections,
    /// Which cells have dirty marks, if the store marks cells.
    marks: Option<Marks>,
}

#[derive(Debug, Default)]
struct Pools {
    /// Per owner, kind and class, the slabs with free cells. The first are used first, so that the
    /// last ones have a chance to become empty.
    by_key: HashMap<PoolKey, BTreeSet<usize>>,
    /// Per slab that was taken at least once.
    cells: Vec<SlabCells>,
    /// Free slabs that read as zero.
    free_slabs: Vec<usize>,
    /// Slabs all of whose cells are free, oldest first.
    empty: VecDeque<EmptySlab>,
    /// Counts the calls of [`Arena::trim`].
    trims: u64,
}

/// A slab whose cells are all free, with unchanged memory.
#[derive(Debug)]
struct EmptySlab {
    index: usize,
    last: PoolKey,
    /// Grace period after which no read section can reach one of the cells.
    grace: GracePeriod,
    /// Value of [`Pools::trims`] when the slab became empty.
    trims: u64,
}

/// Number of calls of [`Arena::trim`] during which an empty slab keeps its memory.
const TRIMS_KEPT: u64 = 64;

/// Sizes up to this one find their class in a table.
const SMALL_BYTES_MAX: usize = 2048;

/// Class of a size, in units.
const SMALL_CLASSES: [u8; SMALL_BYTES_MAX / UNIT_BYTES + 1] = {
    let mut classes = [0; SMALL_BYTES_MAX / UNIT_BYTES + 1];
    let (mut units, mut class) = (0, 0);
    while units < classes.len() {
        if CLASS_BYTES[class] < units * UNIT_BYTES {
            class += 1;
        }
        classes[units] = class as u8;
        units += 1;
    }
    classes
};

#[inline]
fn class_for(bytes: usize) -> usize {
    match SMALL_CLASSES.get(bytes.div_ceil(UNIT_BYTES)) {
        Some(&class) => usize::from(class),
        None => CLASS_BYTES.partition_point(|&class| class < bytes),
    }
}

/// Bytes of the smallest cell of at least so many bytes.
pub(crate) fn bytes_of_class(bytes: usize) -> usize {
    CLASS_BYTES[class_for(bytes)]
}

/// A slab that has an owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slab {
    pub(crate) owner: u32,
    pub(crate) kind: u8,
    first: u64,
    cells: usize,
    cell_units: usize,
}

impl Slab {
    fn of(index: usize, key: PoolKey) -> Self {
        let bytes = CLASS_BYTES[usize::from(key.class)];
        Self {
            owner: key.owner,
            kind: key.kind,
            first: index as u64 * UNITS_PER_SLAB,
            cells: SLAB_BYTES / bytes,
            cell_units: bytes / UNIT_BYTES,
        }
    }

    /// The slab that a description stands for. `None` for a slab that is free or empty.
    pub(crate) fn described(index: usize, description: u64) -> Option<Self> {
        let is_owned = description != 0 && description & EMPTY == 0;
        is_owned.then(|| Self::of(index, PoolKey::of(description)))
    }

    /// Number of cells.
    pub(crate) fn cells(&self) -> usize {
        self.cells
    }

    /// Words of a cell.
    pub(crate) fn cell_words(&self) -> usize {
        self.cell_units * (UNIT_BYTES / 8)
    }

    /// Index in the region of the first word of the cell at a position.
    pub(crate) fn first_word(&self, position: usize) -> usize {
        Arena::first_word(self.first) + position * self.cell_words()
    }

    /// The numbers of the cells at the positions in `part`.
    pub(crate) fn numbers(&self, part: Range<usize>) -> impl Iterator<Item = u64> + use<> {
        let at = |position: usize| self.first + (position.min(self.cells) * self.cell_units) as u64;
        (at(part.start)..at(part.end)).step_by(self.cell_units)
    }

    /// The number of the cell that begins at a unit of the slab, if one does.
    pub(crate) fn number_at(&self, unit: u64) -> Option<u64> {
        let (unit, units) = (unit as usize, self.cell_units);
        let is_cell = unit.is_multiple_of(units) && unit / units < self.cells;
        is_cell.then(|| self.first + unit as u64)
    }
}

impl Arena {
    pub(crate) fn new(
        limit_bytes: usize,
        space: &Arc<AddressSpace>,
        read_sections: ReadSections,
    ) -> Result<Self, RegionError> {
        let beyond = limit_bytes.max(2 * reserve_bytes(limit_bytes));
        let wanted = limit_bytes.saturating_add(beyond).clamp(REGION_BYTES_MIN, REGION_BYTES_MAX);
        let region = space.reserve_to_grow(wanted, REGION_BYTES_MIN.min(wanted))?;
        let slabs = region.reserved_bytes() / SLAB_BYTES;
        Ok(Self {
            region,
            slabs: (0..slabs).map(|_| AtomicU64::new(0)).collect(),
            // Slab 0 is never used, so that 0 is no cell number.
            slabs_taken: AtomicUsize::new(1),
            slabs_populated: AtomicUsize::new(1),
            slabs_held: AtomicUsize::new(0),
            limit_bytes: AtomicUsize::new(limit_bytes),
            other_bytes: AtomicUsize::new(0),
            pools: Mutex::default(),
            read_sections,
            marks: None,
        })
    }

    pub(super) fn keep_marks(&mut self, space: Arc<AddressSpace>) {
        self.marks = Some(Marks::new(space));
    }

    /// Which cells have dirty marks, if the store marks cells.
    pub(crate) fn marks(&self) -> Option<&Marks> {
        self.marks.as_ref()
    }

    /// Bytes of the bits for marked cells, if every page of them is in use.
    pub(crate) fn mark_bytes(&self) -> usize {
        self.marks.as_ref().map_or(0, |_| self.slab_count() * Marks::SLAB_BYTES)
    }

    /// The words of a cell. A stale or invented number yields some words or none, never a fault.
    #[inline]
    pub(crate) fn cell(&self, number: u64) -> &[AtomicU64] {
        // Relaxed: a live cell's number comes from the index (Acquire).
        let description = match self.slabs.get((number / UNITS_PER_SLAB) as usize) {
            Some(slab) => slab.load(Relaxed),
            None => return &[],
        };
        let class = description as u8 as usize;
        let Some(bytes) = CLASS_BYTES.get(class) else {
            return &[];
        };
        let first = number as usize * (UNIT_BYTES / 8);
        self.region.words().get(first..first + bytes / 8).unwrap_or(&[])
    }

    /// Index of a cell's first word in the region.
    #[inline]
    pub(crate) fn first_word(number: u64) -> usize {
        number as usize * (UNIT_BYTES / 8)
    }

    /// Words of a cell at a known place.
    #[inline]
    pub(crate) fn span(&self, first: usize, len: usize) -> &[AtomicU64] {
        &self.region.words()[first..first + len]
    }

    /// Prefetches the first cache line of a cell, which has its header.
    #[inline]
    pub(crate) fn prefetch_header(&self, number: u64) {
        let first = (number as usize).wrapping_mul(UNIT_BYTES / 8);
        if let Some(header) = self.region.words().get(first) {
            stillpoint_mem::prefetch(header);
        }
    }

    /// Prefetches the first and the last of a cell's first 16 words.
    #[inline]
    pub(crate) fn prefetch(&self, number: u64) {
        let first = (number as usize).wrapping_mul(UNIT_BYTES / 8);
        if let Some([head, .., tail]) = self.region.words().get(first..first.wrapping_add(16)) {
            stillpoint_mem::prefetch(head);
            stillpoint_mem::prefetch(tail);
        }
    }

    /// Number of slabs to scan. Slab 0 holds nothing.
    pub(crate) fn slab_count(&self) -> usize {
        self.slabs_taken.load(Relaxed)
    }

    /// A slab. `None` if it is free or empty. Inside a read section its cells keep their size and
    /// kind until the section ends.
    pub(crate) fn slab(&self, index: usize) -> Option<Slab> {
        // Acquire is not needed: cells are published through their own stamp word.
        Slab::described(index, self.slabs.get(index)?.load(Relaxed))
    }

    /// The table of slabs: a description of each.
    pub(crate) fn descriptions(&self) -> &[AtomicU64] {
        &self.slabs[..self.slab_count()]
    }

    /// Whether this number is a record's cell of this owner. A cell then stays a record's until the
    /// caller's read section ends.
    pub(crate) fn has_record_cell(&self, number: u64, owner: u32) -> bool {
        let index = (number / UNITS_PER_SLAB) as usize;
        self.slab(index).is_some_and(|slab| {
            let kind_fits = slab.kind == Kind::Record as u8 || slab.kind == Kind::Lock as u8;
            let is_cell = slab.number_at(number % UNITS_PER_SLAB).is_some();
            kind_fits && slab.owner == owner && is_cell
        })
    }

    /// The owner of a cell's slab. 0 for none.
    pub(crate) fn owner_of(&self, number: u64) -> u32 {
        // Relaxed: the caller holds the cell's lock, so the slab is not dropped.
        let slab = self.slabs.get((number / UNITS_PER_SLAB) as usize);
        slab.map_or(0, |slab| PoolKey::of(slab.load(Relaxed)).owner)
    }

    /// Whether the cell is of this kind.
    pub(crate) fn is_of_kind(&self, number: u64, kind: Kind) -> bool {
        // Relaxed: as in `owner_of`.
        let slab = self.slabs.get((number / UNITS_PER_SLAB) as usize);
        slab.is_some_and(|slab| PoolKey::of(slab.load(Relaxed)).kind == kind as u8)
    }

    /// Bytes held by slabs, and other bytes that count against the limit.
    pub(crate) fn held_bytes(&self) -> usize {
        self.slabs_held.load(Relaxed) * SLAB_BYTES + self.other_bytes.load(Relaxed)
    }

    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Relaxed)
    }

    pub(crate) fn set_limit_bytes(&self, bytes: usize) {
        self.limit_bytes.store(bytes, Relaxed);
    }

    /// Sets the bytes that others hold under the same limit.
    pub(crate) fn set_other_bytes(&self, bytes: usize) {
        self.other_bytes.store(bytes, Relaxed);
    }

    /// Refuses `bytes` more bytes outside of slabs if they exceed the grant.
    pub(crate) fn check_room(&self, bytes: usize, allowance: Allowance) -> Result<(), MemoryLimit> {
        let limit = self.limit_bytes();
        let beyond = match allowance {
            Allowance::Reserve => reserve_bytes(limit),
            Allowance::Limit => 0,
        };
        let held = self.held_bytes();
        if held.saturating_add(bytes) > limit.saturating_add(beyond) {
            return Err(MemoryLimit { held, limit });
        }
        Ok(())
    }

    /// Touches the pages of the next few slabs. Called in the background. Returns whether there was
    /// work.
    pub(crate) fn populate_ahead(&self) -> bool {
        let taken = self.slabs_taken.load(Relaxed);
        let ahead = (taken / 16).clamp(2, 64);
        let goal = (taken + ahead).min(self.slabs.len());
        let from = self.slabs_populated.load(Relaxed).max(taken);
        let over = (from - taken) * SLAB_BYTES + self.held_bytes() > self.limit_bytes();
        if from >= goal || over || !self.grow_to(from) {
            return false;
        }
        self.region.populate(from * SLAB_BYTES / 8, SLAB_BYTES / 8);
        self.slabs_populated.store(from + 1, Relaxed);
        from + 1 < goal
    }

    fn take_slab(
        &self,
        pools: &mut Pools,
        key: PoolKey,
        allowance: Allowance,
    ) -> Result<usize, MemoryLimit> {
        let limit = self.limit_bytes();
        let full = MemoryLimit { held: self.held_bytes(), limit };
        let reserve = reserve_bytes(limit);
        let beyond = match allowance {
            // Locks of keys without a value must go on when writers have used up the reserve.
            _ if key.kind >= Kind::Lock as u8 => 2 * reserve,
            Allowance::Reserve => reserve,
            Allowance::Limit => 0,
        };
        let bound = limit.saturating_add(beyond);
        self.free_beyond(pools, bound);
        let held = self.held_bytes();
        if held > bound {
            return Err(full);
        }
        let index = match self.reuse_slab(pools, key) {
            Some(index) => index,
            None if held + SLAB_BYTES > bound => return Err(full),
            None => {
                let index = match pools.free_slabs.pop() {
                    Some(index) => index,
                    None => self.first_slab().ok_or(full)?,
                };
                self.slabs_held.fetch_add(1, Relaxed);
                index
            }
        };
        pools.cells.resize_with(self.slab_count(), SlabCells::default);
        pools.cells[index] = SlabCells::default();
        // Relaxed: the pools' mutex orders the threads that take slabs. A capture must see the
        // cells of earlier epochs, and a grace period came between the end of these epochs and its
        // beginning.
        self.slabs[index].store(key.describe(), Relaxed);
        Ok(index)
    }

    /// Returns empty slabs to the system while more than `bound` bytes are held.
    fn free_beyond(&self, pools: &mut Pools, bound: usize) {
        while self.held_bytes() > bound
            && let Some(oldest) = pools.empty.front_mut()
            && self.read_sections.has_passed(&mut oldest.grace)
        {
            let index = oldest.index;
            pools.empty.pop_front();
            self.free_slab(pools, index);
        }
    }

    /// An empty slab: one of the same pool, or one that no reader can reach any more. The bytes
    /// held stay the same.
    fn reuse_slab(&self, pools: &mut Pools, key: PoolKey) -> Option<usize> {
        if let Some(at) = pools.empty.iter().position(|empty| empty.last == key) {
            return pools.empty.remove(at).map(|empty| empty.index);
        }
        let oldest = pools.empty.front_mut()?;
        if !self.read_sections.has_passed(&mut oldest.grace) {
            return None;
        }
        let index = pools.empty.pop_front()?.index;
        self.region.discard(index * SLAB_BYTES / 8, SLAB_BYTES / 8);
        Some(index)
    }

    /// A slab that was never taken.
    fn first_slab(&self) -> Option<usize> {
        let index = self.slabs_taken.load(Relaxed);
        if index == self.slabs.len() || !self.grow_to(index) {
            return None;
        }
        if self.marks.as_ref().is_some_and(|marks| marks.reserve(index).is_err()) {
            return None;
        }
        // Relaxed: as in `take_slab`, whose caller holds the pools' mutex.
        self.slabs_taken.store(index + 1, Relaxed);
        Some(index)
    }

    /// Gives the memory of a slab back to the system, if a slab was empty for long. Called in the
    /// background. Returns whether there was such a slab.
    pub(crate) fn trim(&self) -> bool {
        let mut pools = self.pools.lock();
        pools.trims += 1;
        let now = pools.trims;
        let Some(oldest) = pools.empty.front_mut() else {
            return false;
        };
        if now - oldest.trims < TRIMS_KEPT || !self.read_sections.has_passed(&mut oldest.grace) {
            return false;
        }
        let index = oldest.index;
        pools.empty.pop_front();
        self.free_slab(&mut pools, index);
        true
    }

    /// Returns the memory of a slab that no reader can reach any more to the system.
    fn free_slab(&self, pools: &mut Pools, index: usize) {
        // Relaxed: the pools' mutex orders the threads that take slabs. For other threads a free
        // slab is like an empty one.
        self.slabs[index].store(0, Relaxed);
        self.region.discard(index * SLAB_BYTES / 8, SLAB_BYTES / 8);
        self.slabs_held.fetch_sub(1, Relaxed);
        pools.free_slabs.push(index);
    }

    /// Makes the memory of a slab and of some following ones usable. Returns false if the system
    /// refuses.
    fn grow_to(&self, index: usize) -> bool {
        if (index + 1) * SLAB_BYTES <= self.region.len_bytes() {
            return true;
        }
        // More than one, so that not every slab costs a system call.
        let more = (index + 1 + (index / 16).clamp(1, 64)).min(self.slabs.len());
        [more, index + 1].into_iter().any(|slabs| self.region.grow(slabs * SLAB_BYTES).is_ok())
    }

    /// Moves up to a run of free cells of one kind into `run`.
    fn refill(
        &self,
        key: PoolKey,
        run: &mut Vec<u64>,
        allowance: Allowance,
    ) -> Result<(), MemoryLimit> {
        let wanted = key.run_cells();
        let mut pools = self.pools.lock();
        while run.len() < wanted {
            let index = match pools.by_key.get(&key).and_then(|slabs| slabs.first()) {
                Some(&index) => index,
                None if !run.is_empty() => break,
                None => {
                    let index = self.take_slab(&mut pools, key, allowance)?;
                    pools.by_key.entry(key).or_default().insert(index);
                    index
                }
            };
            let slab = Slab::of(index, key);
            let cells = &mut pools.cells[index];
            while run.len() < wanted {
                let position = match cells.returned.pop() {
                    Some(position) => usize::from(position),
                    None if cells.fresh < slab.cells => {
                        cells.fresh += 1;
                        cells.fresh - 1
                    }
                    None => break,
                };
                run.push(slab.first + (position * slab.cell_units) as u64);
            }
            if cells.returned.is_empty() && cells.fresh == slab.cells {
                pools.by_key.get_mut(&key).expect("seen above").remove(&index);
            }
        }
        Ok(())
    }

    /// Frees all slabs of an owner. Nobody may hold one of its numbers any more.
    pub(crate) fn drop_owner(&self, owner: u32) {
        let mut pools = self.pools.lock();
        pools.by_key.retain(|key, _| key.owner != owner);
        pools.empty.retain(|empty| empty.last.owner != owner);
        for index in 1..self.slab_count() {
            if PoolKey::of(self.slabs[index].load(Relaxed)).owner == owner {
                self.free_slab(&mut pools, index);
            }
        }
    }

    /// Returns free cells to a pool. A slab whose cells are all free becomes empty.
    fn give_back(&self, key: PoolKey, numbers: impl Iterator<Item = u64>) {
        let mut pools = self.pools.lock();
        let Pools { by_key, cells, empty, trims, .. } = &mut *pools;
        let slabs = by_key.entry(key).or_default();
        for number in numbers {
            let index = (number / UNITS_PER_SLAB) as usize;
            // Relaxed: a thread that changes a description holds the pools' mutex.
            if self.slabs[index].load(Relaxed) != key.describe() {
                // The owner is gone, and its cell was freed with it.
                continue;
            }
            let slab = Slab::of(index, key);
            let position = (number % UNITS_PER_SLAB) as usize / slab.cell_units;
            let cells = &mut cells[index];
            cells.returned.push(position as u16);
            if cells.returned.len() < cells.fresh {
                if cells.returned.len() == 1 {
                    slabs.insert(index);
                }
                continue;
            }
            slabs.remove(&index);
            *cells = SlabCells::default();
            // Relaxed: a thread that enters a read section after the token sees the bit, by the
            // fences of `ReadSections::token` and `ReadSections::enter`.
            self.slabs[index].store(key.describe() | EMPTY, Relaxed);
            let grace = self.read_sections.token();
            empty.push_back(EmptySlab { index, last: key, grace, trims: *trims });
        }
        if slabs.is_empty() {
            by_key.remove(&key);
        }
    }
}

/// One worker's free cells.
#[derive(Debug, Default)]
pub(crate) struct CellCache {
    pools: Vec<(PoolKey, Vec<u64>)>,
    /// Memory that the present transaction may use.
    pub(crate) allowance: Allowance,
    /// Whether memory was refused since the worker last returned its spare cells.
    pub(crate) was_refused: bool,
}

/// The bound up to which memory is granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// Up to the memory limit.
    #[default]
    Limit,
    /// Up to the end of the reserve beyond the memory limit.
    Reserve,
}

/// Bytes beyond a limit that transactions with the reserve may hold. Locks of keys without a value
/// may take the same amount again.
pub(crate) fn reserve_bytes(limit: usize) -> usize {
    (limit / RESERVE_PART).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX)
}

impl CellCache {
    fn pool(&mut self, key: PoolKey) -> &mut Vec<u64> {
        let at = match self.pools.iter().position(|(k, _)| *k == key) {
            Some(at) => at,
            None => {
                self.pools.push((key, Vec::new()));
                self.pools.len() - 1
            }
        };
        &mut self.pools[at].1
    }

    /// Allocates a cell of at least `bytes` bytes. The cell's words keep their old contents.
    pub(crate) fn allocate(
        &mut self,
        arena: &Arena,
        owner: u32,
        kind: Kind,
        bytes: usize,
    ) -> Result<u64, MemoryLimit> {
        let class = class_for(bytes);
        assert!(class < CLASS_BYTES.len(), "no cell holds {bytes} bytes");
        let key = PoolKey { owner, kind: kind as u8, class: class as u8 };
        let allowance = self.allowance;
        let pool = self.pool(key);
        if pool.is_empty()
            && let Err(full) = arena.refill(key, pool, allowance)
        {
            self.was_refused = true;
            return Err(full);
        }
        Ok(pool.pop().expect("refilled"))
    }

    /// Frees a cell. Nobody may hold its number any more.
    pub(crate) fn free(&mut self, arena: &Arena, number: u64) {
        let slab = &arena.slabs[(number / UNITS_PER_SLAB) as usize];
        let key = PoolKey::of(slab.load(Relaxed));
        if key.kind == 0 {
            return;
        }
        let pool = self.pool(key);
        pool.push(number);
        let run = key.run_cells();
        if pool.len() > CACHE_RUNS_MAX * run {
            let keep = pool.len() - run;
            arena.give_back(key, pool.drain(keep..));
        }
    }

    /// Drops cells of an owner that is gone.
    pub(crate) fn forget_owner(&mut self, owner: u32) {
        self.pools.retain(|(key, _)| key.owner != owner);
    }

    /// Returns all cells to the arena.
    pub(crate) fn drain(&mut self, arena: &Arena) {
        self.was_refused = false;
        for (key, pool) in self.pools.drain(..) {
            arena.give_back(key, pool.into_iter());
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn classes_waste_at_most_a_third() {
        for bytes in 33..=CELL_BYTES_MAX {
            let class = CLASS_BYTES[class_for(bytes)];
            assert!(class >= bytes && class <= bytes + bytes / 2 + 16, "{bytes} in {class}");
            let least = CLASS_BYTES.partition_point(|&class| class < bytes);
            assert_eq!(class_for(bytes), least, "{bytes}");
        }
        assert!(CLASS_BYTES.iter().all(|bytes| bytes % UNIT_BYTES == 0));
        assert!(CLASS_BYTES.is_sorted());
    }

    #[test]
    fn cells_are_distinct_and_come_back() {
        let arena =
            Arena::new(64 << 20, &Arc::default(), ReadSections::new(1)).expect("address space");
        let mut cache = CellCache::default();
        let mut seen = HashSet::new();
        let per_slab = SLAB_BYTES / 128;
        for _ in 0..3 * per_slab {
            let number = cache.allocate(&arena, 5, Kind::Record, 120).expect("memory");
            assert!(seen.insert(number));
            assert_eq!(arena.cell(number).len(), 16);
        }
        assert_eq!(arena.held_bytes(), 3 * SLAB_BYTES);
        for &number in &seen {
            cache.free(&arena, number);
        }
        for _ in 0..3 * per_slab {
            let number = cache.allocate(&arena, 5, Kind::Record, 128).expect("memory");
            assert!(seen.contains(&number));
        }
        assert_eq!(arena.held_bytes(), 3 * SLAB_BYTES, "freed cells are used again");
        arena.drop_owner(5);
        assert_eq!(arena.held_bytes(), 0);
    }

    /// Slabs whose cells are all free serve other sizes and large values, within the limit.
    #[test]
    fn an_empty_slab_serves_any_size() {
        let read_sections = ReadSections::new(2);
        let arena = Arena::new(4 * SLAB_BYTES, &Arc::default(), read_sections.clone())
            .expect("address space");
        let mut cache = CellCache::default();
        for (kind, bytes) in
            [(Kind::Record, 120), (Kind::Record, 1_000), (Kind::Block, 60_000), (Kind::Record, 32)]
        {
            let mut numbers = Vec::new();
            while let Ok(number) = cache.allocate(&arena, 5, kind, bytes) {
                numbers.push(number);
            }
            assert!(numbers.len() >= 4 * (SLAB_BYTES / (bytes + bytes / 4)), "{bytes}");
            // One cell stays until the end, so only its slab is not free.
            for &number in &numbers[1..] {
                cache.free(&arena, number);
            }
            cache.drain(&arena);
            assert!(arena.has_record_cell(numbers[0], 5) == (kind == Kind::Record));
            let other = cache.allocate(&arena, 5, Kind::Block, 5_000).expect("empty slabs");
            cache.free(&arena, other);
            cache.free(&arena, numbers[0]);
            cache.drain(&arena);
            assert!(!arena.has_record_cell(numbers[0], 5));
        }
        assert_eq!(arena.held_bytes(), 4 * SLAB_BYTES, "memory that is kept counts");
        for _ in 0..2 * TRIMS_KEPT {
            arena.trim();
        }
        assert_eq!(arena.held_bytes(), 0);
    }

    /// While a read section may still reach its cells, an empty slab serves only cells of the same
    /// kind and size.
    #[test]
    fn a_read_section_keeps_an_empty_slab_as_it_was() {
        let read_sections = ReadSections::new(2);
        let arena = Arena::new(SLAB_BYTES, &Arc::default(), read_sections.clone()).expect("space");
        let mut cache = CellCache::default();
        let number = cache.allocate(&arena, 5, Kind::Record, 128).expect("memory");
        arena.cell(number)[3].store(7, Relaxed);
        read_sections.enter(0);
        cache.free(&arena, number);
        cache.drain(&arena);
        assert!(cache.allocate(&arena, 5, Kind::Block, 1_000).is_err(), "somebody may look at it");
        for _ in 0..2 * TRIMS_KEPT {
            arena.trim();
        }
        assert_eq!(arena.cell(number)[3].load(Relaxed), 7);
        let again = cache.allocate(&arena, 5, Kind::Record, 128).expect("the same kind and size");
        cache.free(&arena, again);
        cache.drain(&arena);
        read_sections.exit(0);
        let block = cache.allocate(&arena, 5, Kind::Block, 1_000).expect("nobody looks at it");
        assert_eq!(arena.cell(block)[3].load(Relaxed), 0, "nothing of the cells is left");
    }

    #[test]
    fn the_limit_is_a_typed_error_and_invented_numbers_are_harmless() {
        let arena = Arena::new(2 * SLAB_BYTES, &Arc::default(), ReadSections::new(1))
            .expect("address space");
        let mut cache = CellCache::default();
        let cells =
            std::iter::from_fn(|| cache.allocate(&arena, 1, Kind::Block, CELL_BYTES_MAX).ok());
        assert_eq!(cells.count(), 2 * (SLAB_BYTES / CELL_BYTES_MAX));
        let error = cache.allocate(&arena, 1, Kind::Block, 32).expect_err("full");
        assert_eq!(error.limit, 2 * SLAB_BYTES);
        for number in [0, 1, u64::MAX, 1 << 35, UNITS_PER_SLAB - 1] {
            let _ = arena.cell(number);
            arena.prefetch(number);
        }
    }
}
