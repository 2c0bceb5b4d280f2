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

mod cache;
pub(super) mod classes;
mod slab;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use stillpoint_mem::{AddressSpace, Region, RegionError};
use stillpoint_sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use stillpoint_sync::{GracePeriod, Mutex, ReadSections};
use stillpoint_txn::MemoryLimit;

pub(crate) use cache::{Allowance, CellCache};
pub(crate) use classes::{CELL_BYTES_MAX, bytes_of_class};
pub(crate) use slab::{Kind, Slab};

use super::access::{AccessMarks, MarkPosition};
use super::marks::Marks;
use cache::reserve_bytes;
use classes::{CLASS_BYTES, SLAB_BYTES, UNIT_BYTES, UNITS_PER_SLAB};
use slab::{EMPTY, PoolKey};

/// Cell numbers fit in this many bits.
pub(crate) const NUMBER_BITS: u32 = 36;
const REGION_BYTES_MAX: usize = 1 << 40;
const REGION_BYTES_MIN: usize = 64 << 20;

/// The free cells of a slab.
#[derive(Debug, Default)]
struct SlabCells {
    /// Positions of freed cells.
    returned: Vec<u16>,
    /// Cells from this position on were never allocated.
    fresh: usize,
}

impl SlabCells {
    /// Number of free cells of the slab.
    fn free(&self, slab: &Slab) -> usize {
        self.returned.len() + slab.cells - self.fresh
    }
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
    /// Bytes of these slabs in which no cell is given out.
    spare_bytes: AtomicUsize,
    limit_bytes: AtomicUsize,
    /// Bytes that others hold under the same limit (indexes).
    other_bytes: AtomicUsize,
    pools: Mutex<Pools>,
    /// Read sections, which may still reach a slab that has become empty.
    read_sections: ReadSections,
    /// Which cells have dirty marks, if the store marks cells.
    marks: Option<Marks>,
    /// When the records were used, if somebody has asked.
    accesses: OnceLock<AccessMarks>,
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
            spare_bytes: AtomicUsize::new(0),
            limit_bytes: AtomicUsize::new(limit_bytes),
            other_bytes: AtomicUsize::new(0),
            pools: Mutex::default(),
            read_sections,
            marks: None,
            accesses: OnceLock::new(),
        })
    }

    /// Keeps an access mark for each record from now on.
    pub(crate) fn keep_accesses(&self, space: &Arc<AddressSpace>) -> Result<(), RegionError> {
        // With the mutex, no slab is taken for the first time meanwhile.
        let _pools = self.pools.lock();
        if self.accesses.get().is_some() {
            return Ok(());
        }
        let accesses = AccessMarks::new(Arc::clone(space));
        accesses.reserve(self.slab_count() - 1)?;
        let _ = self.accesses.set(accesses);
        Ok(())
    }

    /// The place of a cell's access mark. Call this inside a read section or with the lock of the cell.
    fn place_of_access(&self, number: u64) -> Option<MarkPosition> {
        let (slab, unit) = ((number / UNITS_PER_SLAB) as usize, number % UNITS_PER_SLAB);
        // Relaxed: as in `cell`.
        let class = self.slabs.get(slab)?.load(Relaxed) as u8;
        let cell_units = CLASS_BYTES.get(usize::from(class))? / UNIT_BYTES;
        Some(MarkPosition { slab, position: unit as usize / cell_units })
    }

    /// The access mark of a cell: 0 for none. `None` if no marks are kept.
    pub(crate) fn access(&self, number: u64) -> Option<u32> {
        let accesses = self.accesses.get()?;
        Some(self.place_of_access(number).map_or(0, |place| accesses.get(place)))
    }

    /// Sets the access mark of a cell, if marks are kept.
    #[inline]
    pub(crate) fn set_access(&self, number: u64, mark: u32) {
        if let Some(accesses) = self.accesses.get()
            && let Some(place) = self.place_of_access(number)
        {
            accesses.set(place, mark);
        }
    }

    /// Bytes of the access marks of all records.
    pub(crate) fn access_bytes(&self) -> usize {
        if self.accesses.get().is_none() {
            return 0;
        }
        let slabs = self.descriptions().iter().map(|slab| PoolKey::of(slab.load(Relaxed)));
        let marks = |key: PoolKey| SLAB_BYTES / CLASS_BYTES[usize::from(key.class)] * 4;
        slabs.filter(|key| key.kind == Kind::Record as u8).map(marks).sum()
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

    /// Bytes below the limit in which no cell is given out, of slabs of whatever size class, and of
    /// slabs that are not held.
    pub(crate) fn spare_bytes(&self) -> usize {
        // Relaxed: a statistic.
        let given_out = self.held_bytes().saturating_sub(self.spare_bytes.load(Relaxed));
        self.limit_bytes().saturating_sub(given_out)
    }

    /// Counts bytes of held slabs in which no cell is given out any more, and bytes in which none was.
    /// The caller holds the pools' mutex.
    fn count_spare(&self, added: usize, removed: usize) {
        // Relaxed: a statistic. The sum wraps and comes right at once.
        self.spare_bytes.fetch_add(added.wrapping_sub(removed), Relaxed);
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
        // Relaxed: a count.
        let given_out = held.saturating_sub(self.spare_bytes.load(Relaxed));
        if given_out.saturating_add(bytes) > limit.saturating_add(beyond) {
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
        let cells_bytes = Slab::of(0, key).cells_bytes();
        let index = match self.reuse_slab(pools, key) {
            Some(index) => {
                self.count_spare(cells_bytes, SLAB_BYTES);
                index
            }
            None if held + SLAB_BYTES > bound => return Err(full),
            None => {
                let index = match pools.free_slabs.pop() {
                    Some(index) => index,
                    None => self.first_slab().ok_or(full)?,
                };
                self.slabs_held.fetch_add(1, Relaxed);
                self.count_spare(cells_bytes, 0);
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
        if self.accesses.get().is_some_and(|accesses| accesses.reserve(index).is_err()) {
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
        let description = self.slabs[index].load(Relaxed);
        let spare = match Slab::described(index, description) {
            None => SLAB_BYTES,
            Some(slab) => pools.cells[index].free(&slab) * slab.cell_units * UNIT_BYTES,
        };
        self.count_spare(0, spare);
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
        let (wanted, before) = (key.run_cells(), run.len());
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
        self.count_spare(0, (run.len() - before) * CLASS_BYTES[usize::from(key.class)]);
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
            self.count_spare(slab.cell_units * UNIT_BYTES, 0);
            if cells.returned.len() < cells.fresh {
                if cells.returned.len() == 1 {
                    slabs.insert(index);
                }
                continue;
            }
            slabs.remove(&index);
            self.count_spare(SLAB_BYTES, slab.cells_bytes());
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
