//! Slabs of cells, in groups on huge pages.
//!
//! One region of address space, cut into groups of 2 MiB, and each group into narrow slabs of 64 KiB. Cells
//! of more than 4 KiB lie in wide slabs, which take the place of eight narrow ones. A slab belongs to one
//! owner (a generation of a table), one kind and one size class, and is never moved. A cell's *number*
//! is its offset in the region in units of 16 bytes; number 0 is no cell.
//!
//! The arena gives runs of cells to per-worker caches, so that the common allocation takes no lock. Runs
//! come from the fullest slab of their size, so that the others have a chance to become empty. Groups
//! are populated ahead of their use by [`Arena::populate_ahead`].
//!
//! ```text
//! group   without memory ─▶ all slabs free ◀──▶ some slabs taken
//!               ▲                 │ after a while, trimmed
//!               └─────────────────┘
//! slab    free ──▶ owned ──▶ empty ──▶ owned by the same pool      at once: its cells keep their size
//!          ▲                   │
//!          └───────────────────┘                                   after a grace period
//! ```
//! A slab whose cells are all free is *empty*. A reader that met one of its cells before may still
//! read it until its read section ends. So the slab keeps its description until then. A reader that
//! enters later sees that the slab is empty and skips it. A slab of records that was used before is
//! filled with zeros, so that no scan takes an old word for a record.
//!
//! Slabs with few cells in use can be chosen to leave ([`Arena::choose_leaving`]). Then they give out no
//! cell, and become empty once their cells were moved or freed.

mod cache;
pub(super) mod classes;
mod slab;
mod space;
mod sparse;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use stillpoint_mem::{AddressSpace, HUGE_PAGE_BYTES, PageSize, Region, RegionError};
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::{GracePeriod, Mutex, ReadSections};
use stillpoint_txn::MemoryLimit;

pub(crate) use cache::{Allowance, CellCache};
pub(crate) use classes::{CELL_BYTES_MAX, UNITS_PER_SLAB, bytes_of_class, class_bytes};
pub(crate) use slab::{Kind, Slab};
#[cfg(all(test, shuttle))]
pub(crate) use sparse::Leaving;
pub(crate) use sparse::Moves;

use super::access::{AccessMarks, MarkPosition};
use super::marks::Marks;
use cache::reserve_bytes;
use classes::{CLASS_BYTES, SLAB_BYTES, SLABS_PER_GROUP, UNIT_BYTES, width_of};
use slab::{EMPTY, LEAVING, PoolKey, place_in_wide};
use space::Space;

/// Bytes of a group.
pub(crate) const GROUP_BYTES: usize = HUGE_PAGE_BYTES;
/// Cell numbers fit in this many bits.
pub(crate) const NUMBER_BITS: u32 = 36;
const REGION_BYTES_MAX: usize = 1 << 40;
const REGION_BYTES_MIN: usize = 64 << 20;

/// All memory of a store's records and large values.
#[derive(Debug)]
pub(crate) struct Arena {
    region: Region,
    /// A word for each narrow slab: the size class, kind and owner of its slab, and its place in a wide
    /// slab. Bits say whether the slab is [`EMPTY`] or [`LEAVING`]. 0 while it is free.
    table: Region,
    /// Groups below this index were taken at least once.
    groups_taken: AtomicUsize,
    groups_populated: AtomicUsize,
    /// Groups that hold memory.
    groups_held: AtomicUsize,
    /// Bytes of these groups in which no cell is given out.
    spare_bytes: AtomicUsize,
    limit_bytes: AtomicUsize,
    /// Whether memory was refused since slabs were last chosen to leave.
    was_refused: AtomicBool,
    /// Bytes that others hold under the same limit (indexes).
    other_bytes: AtomicUsize,
    pools: Mutex<Pools>,
    /// Read sections, which may still reach a slab that has become empty.
    read_sections: ReadSections,
    /// Which cells have dirty marks, if the store marks cells.
    marks: Option<Marks>,
    /// When the records were used, if somebody has asked.
    accesses: OnceLock<AccessMarks>,
    /// Cells of the slabs of records, those for locks alone excepted.
    record_cells: AtomicUsize,
    /// Bytes of these cells.
    record_cell_bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct Pools {
    /// Per owner, kind and class, the slabs with free cells, the fullest first.
    by_key: HashMap<PoolKey, BTreeSet<(Level, usize)>>,
    space: Space,
    /// Slabs all of whose cells are free, oldest first.
    empty: VecDeque<EmptySlab>,
    /// Slabs that were chosen to leave.
    leaving: Vec<usize>,
    /// The number of trims before which it was in vain to choose slabs.
    vain_until: u64,
    /// Counts the calls of [`Arena::trim`].
    trims: u64,
}

/// Eighths of a slab's cells that are free.
type Level = u8;

/// The level of a slab with so many free cells. `None` for a full one.
fn level(free: usize, cells: usize) -> Option<Level> {
    (free > 0).then(|| (free * 8 / cells) as Level)
}

/// Notes that the free cells of a slab of `cells` are `after`, and were `before`.
fn move_level(
    slabs: &mut BTreeSet<(Level, usize)>,
    (slab, cells): (usize, usize),
    before: usize,
    after: usize,
) {
    let (before, after) = (level(before, cells), level(after, cells));
    if before != after {
        before.map(|level| slabs.remove(&(level, slab)));
        after.map(|level| slabs.insert((level, slab)));
    }
}

/// A slab whose cells are all free, with unchanged memory.
#[derive(Debug)]
struct EmptySlab {
    index: usize,
    last: PoolKey,
    /// Grace period after which no read section can reach one of the cells.
    grace: GracePeriod,
}

/// Number of calls of [`Arena::trim`] during which a group without slabs keeps its memory.
const TRIMS_KEPT: u64 = 64;
/// Groups that a writer returns to the system at a time, beyond the limit.
const RELEASED_AT_ONCE: usize = 8;
/// Slabs that the drop of an owner looks at before others may use the pools.
const DROPPED_AT_ONCE: usize = 1024;
/// Empty slabs among which one of the same pool is looked for.
const LOOKED_AT: usize = 64;

impl Arena {
    pub(crate) fn new(
        limit_bytes: usize,
        space: &Arc<AddressSpace>,
        read_sections: ReadSections,
    ) -> Result<Self, RegionError> {
        let beyond = limit_bytes.max(2 * reserve_bytes(limit_bytes));
        let wanted = limit_bytes.saturating_add(beyond).clamp(REGION_BYTES_MIN, REGION_BYTES_MAX);
        let region = space.reserve_to_grow(wanted, REGION_BYTES_MIN.min(wanted))?;
        // A table on small pages takes memory only for the slabs that exist.
        let table = space.reserve_on(region.reserved_bytes() / SLAB_BYTES * 8, PageSize::Small)?;
        Ok(Self {
            region,
            table,
            // Group 0 is never used, so that 0 is no cell number.
            groups_taken: AtomicUsize::new(1),
            groups_populated: AtomicUsize::new(1),
            groups_held: AtomicUsize::new(0),
            spare_bytes: AtomicUsize::new(0),
            limit_bytes: AtomicUsize::new(limit_bytes),
            was_refused: AtomicBool::new(false),
            other_bytes: AtomicUsize::new(0),
            pools: Mutex::default(),
            read_sections,
            marks: None,
            accesses: OnceLock::new(),
            record_cells: AtomicUsize::new(0),
            record_cell_bytes: AtomicUsize::new(0),
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
        self.marks.as_ref().map_or(0, |_| self.slabs() * Marks::SLAB_BYTES)
    }

    /// Keeps an access mark for each record from now on.
    pub(crate) fn keep_accesses(&self, space: &Arc<AddressSpace>) -> Result<(), RegionError> {
        // With the mutex, no group is taken for the first time meanwhile.
        let _pools = self.pools.lock();
        if self.accesses.get().is_some() {
            return Ok(());
        }
        let accesses = AccessMarks::new(Arc::clone(space));
        accesses.reserve(self.slabs() - 1)?;
        let _ = self.accesses.set(accesses);
        Ok(())
    }

    /// The place of a cell's access mark. Call this inside a read section or with the lock of the cell.
    fn place_of_access(&self, number: u64) -> Option<MarkPosition> {
        let index = (number / UNITS_PER_SLAB) as usize;
        let description = self.description(index);
        let slab = index.checked_sub(place_in_wide(description))?;
        let cell_units = CLASS_BYTES.get(description as u8 as usize)? / UNIT_BYTES;
        let unit = (number - slab as u64 * UNITS_PER_SLAB) as usize;
        Some(MarkPosition { slab, position: unit / cell_units })
    }

    /// The access mark of a cell: 0 for none. `None` if no marks are kept.
    pub(crate) fn access(&self, number: u64) -> Option<u32> {
        let accesses = self.accesses.get()?;
        Some(self.place_of_access(number).map_or(0, |place| accesses.get(place)))
    }

    /// Prefetches the access marks of some cells, if marks are kept. Call this inside a read section.
    #[inline]
    pub(crate) fn prefetch_accesses(&self, numbers: impl Iterator<Item = u64>) {
        if let Some(accesses) = self.accesses.get() {
            numbers
                .filter_map(|number| self.place_of_access(number))
                .for_each(|place| accesses.prefetch(place));
        }
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
        // Relaxed: a statistic.
        self.record_cells.load(Relaxed) * size_of::<u32>()
    }

    /// Counts the cells of a slab that was taken, or that is taken no more.
    fn count_record_cells(&self, slab: Slab, is_taken: bool) {
        if slab.kind == Kind::Record as u8 {
            let add = |to: &AtomicUsize, count: usize| {
                // Relaxed: a statistic. The sum wraps and comes right at once.
                to.fetch_add(if is_taken { count } else { count.wrapping_neg() }, Relaxed);
            };
            add(&self.record_cells, slab.cells());
            add(&self.record_cell_bytes, slab.cells_bytes());
        }
    }

    /// Number and bytes of the cells of all slabs of records, free cells included.
    pub(crate) fn record_cells(&self) -> (usize, usize) {
        // Relaxed: statistics.
        (self.record_cells.load(Relaxed), self.record_cell_bytes.load(Relaxed))
    }

    /// What the table says of a slab; 0 if it has no such slab.
    #[inline]
    fn description(&self, slab: usize) -> u64 {
        // Relaxed: a live cell's number comes from the index (Acquire). Cells are published through
        // their own stamp word.
        self.table.words().get(slab).map_or(0, |slab| slab.load(Relaxed))
    }

    /// The words of a cell. A stale or invented number yields some words or none, never a fault.
    #[inline]
    pub(crate) fn cell(&self, number: u64) -> &[AtomicU64] {
        // Relaxed: as in `description`.
        let description = match self.table.words().get((number / UNITS_PER_SLAB) as usize) {
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

    /// Whether records have more than four cache lines on average.
    #[inline]
    pub(crate) fn records_are_long(&self) -> bool {
        let (cells, bytes) = self.record_cells();
        bytes > cells * 4 * 64
    }

    /// Number of groups to scan. Group 0 holds nothing.
    pub(crate) fn group_count(&self) -> usize {
        self.groups_taken.load(Relaxed)
    }

    /// The slabs of a group.
    pub(crate) fn slabs_of(group: usize) -> std::ops::Range<usize> {
        group * SLABS_PER_GROUP..(group + 1) * SLABS_PER_GROUP
    }

    /// Number of slabs of all groups.
    fn slabs(&self) -> usize {
        self.group_count() * SLABS_PER_GROUP
    }

    /// A slab. `None` if it is free or empty, or a further part of a wide slab. Inside a read section its
    /// cells keep their size and kind until the section ends.
    pub(crate) fn slab(&self, index: usize) -> Option<Slab> {
        Slab::described(index, self.published(index))
    }

    /// The description of a slab whose cells are looked at next, although no index has named them.
    fn published(&self, slab: usize) -> u64 {
        // Acquire: partner of the Release in `find_slab`, which fills a slab with zeros first.
        self.table.words().get(slab).map_or(0, |slab| slab.load(Acquire))
    }

    /// As [`slab`](Self::slab), also for a further part of a wide slab.
    pub(crate) fn slab_around(&self, index: usize) -> Option<Slab> {
        Slab::around(index, self.published(index))
    }

    /// The table of slabs: a description of each.
    pub(crate) fn descriptions(&self) -> &[AtomicU64] {
        &self.table.words()[..self.slabs()]
    }

    /// Whether this number is a record's cell of this owner. A cell then stays a record's until the
    /// caller's read section ends.
    pub(crate) fn has_record_cell(&self, number: u64, owner: u32) -> bool {
        self.slab_around((number / UNITS_PER_SLAB) as usize).is_some_and(|slab| {
            let kind_fits = slab.kind == Kind::Record as u8 || slab.kind == Kind::Lock as u8;
            kind_fits && slab.owner == owner && slab.is_cell(number)
        })
    }

    /// The owner of a cell's slab. 0 for none.
    pub(crate) fn owner_of(&self, number: u64) -> u32 {
        // The caller holds the cell's lock, so the slab is not dropped.
        PoolKey::of(self.description((number / UNITS_PER_SLAB) as usize)).owner
    }

    /// The size class of a cell.
    pub(crate) fn class_of(&self, number: u64) -> u8 {
        // As in `owner_of`.
        PoolKey::of(self.description((number / UNITS_PER_SLAB) as usize)).class
    }

    /// Whether the cell is of this kind.
    pub(crate) fn is_of_kind(&self, number: u64, kind: Kind) -> bool {
        // As in `owner_of`.
        PoolKey::of(self.description((number / UNITS_PER_SLAB) as usize)).kind == kind as u8
    }

    /// Bytes held by groups, and other bytes that count against the limit.
    pub(crate) fn held_bytes(&self) -> usize {
        self.groups_held.load(Relaxed) * GROUP_BYTES + self.other_bytes.load(Relaxed)
    }

    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Relaxed)
    }

    /// Bytes of cells that are given out, and other bytes that count against the limit.
    fn given_out_bytes(&self) -> usize {
        // Relaxed: a count.
        self.held_bytes().saturating_sub(self.spare_bytes.load(Relaxed))
    }

    /// Bytes below the limit in which no cell is given out, of slabs of whatever size class, and of
    /// groups that are not held.
    pub(crate) fn spare_bytes(&self) -> usize {
        // Relaxed: a statistic.
        let (held, limit) = (self.held_bytes(), self.limit_bytes());
        let spare = self.spare_bytes.load(Relaxed);
        match limit.checked_sub(held) {
            // What is left below the limit serves whole groups.
            Some(left) => spare + left / GROUP_BYTES * GROUP_BYTES,
            None => spare.saturating_sub(held - limit),
        }
    }

    /// Counts bytes of held groups in which no cell is given out any more, and bytes in which none was.
    /// The caller holds the pools' mutex, or has withdrawn the group.
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
            Allowance::Load => usize::MAX,
        };
        if self.given_out_bytes().saturating_add(bytes) > limit.saturating_add(beyond) {
            return Err(MemoryLimit { held: self.held_bytes(), limit });
        }
        Ok(())
    }

    /// Groups that there is address space for.
    fn groups_max(&self) -> usize {
        self.region.reserved_bytes() / GROUP_BYTES
    }

    /// Touches the pages of the next few groups. Called in the background. Returns whether there was
    /// work.
    pub(crate) fn populate_ahead(&self) -> bool {
        let taken = self.groups_taken.load(Relaxed);
        let ahead = (taken / 16).clamp(2, 64);
        let goal = (taken + ahead).min(self.groups_max());
        let from = self.groups_populated.load(Relaxed).max(taken);
        let over = (from - taken) * GROUP_BYTES + self.held_bytes() > self.limit_bytes();
        if from >= goal || over || !self.grow_to(from) {
            return false;
        }
        self.region.populate(from * GROUP_BYTES / 8, GROUP_BYTES / 8);
        self.groups_populated.store(from + 1, Relaxed);
        from + 1 < goal
    }

    fn take_slab(
        &self,
        pools: &mut Pools,
        key: PoolKey,
        allowance: Allowance,
    ) -> Result<usize, MemoryLimit> {
        let taken = self.find_slab(pools, key, allowance);
        if taken.is_err() {
            // Relaxed: a hint.
            self.was_refused.store(true, Relaxed);
        }
        taken
    }

    fn find_slab(
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
            Allowance::Load => usize::MAX,
        };
        let bound = limit.saturating_add(beyond);
        let width = width_of(key.class);
        self.free_empty(pools);
        self.release_beyond(pools, bound);
        // Groups may be held beyond the limit, since others hold more by now. Their free slabs serve as long
        // as what is given out stays below the limit.
        if self.given_out_bytes() + width * SLAB_BYTES > bound {
            return Err(full);
        }
        let index = match self.reuse_slab(pools, key) {
            Some(index) => index,
            None => {
                let taken = match pools.space.take(width) {
                    Some(taken) => taken,
                    None if self.held_bytes() + GROUP_BYTES > bound => return Err(full),
                    None => {
                        let group = self.hold_group(pools).ok_or(full)?;
                        pools.space.take_from(group, width)
                    }
                };
                if key.is_of_records() && !taken.is_zero {
                    self.fill_with_zeros(taken.index, width);
                }
                taken.index
            }
        };
        let slab = Slab::of(index, key);
        self.count_spare(slab.cells_bytes(), width * SLAB_BYTES);
        self.count_record_cells(slab, true);
        for place in 0..width {
            // Release: who finds a slab of records without a number from an index finds zeros in it, and no
            // older word. The pools' mutex orders the threads that take slabs. A capture must see the cells
            // of earlier epochs, and a grace period came between the end of these epochs and its beginning.
            self.table.words()[index + place].store(key.describe(place), Release);
        }
        Ok(index)
    }

    /// Prepares a slab that was used before for records.
    fn fill_with_zeros(&self, index: usize, width: usize) {
        let words = self.span(index * SLAB_BYTES / 8, width * SLAB_BYTES / 8);
        // Relaxed: nobody reads these words before the description is stored (Release), and then only as
        // cells that were never published.
        words.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// An empty slab of the same pool. Its cells were never of another size or kind since somebody may
    /// have met them.
    fn reuse_slab(&self, pools: &mut Pools, key: PoolKey) -> Option<usize> {
        let at = pools.empty.iter().take(LOOKED_AT).position(|empty| empty.last == key)?;
        pools.empty.remove(at).map(|empty| empty.index)
    }

    /// Makes empty slabs free that no reader can reach any more.
    fn free_empty(&self, pools: &mut Pools) {
        while let Some(oldest) = pools.empty.front_mut()
            && self.read_sections.has_passed(&mut oldest.grace)
        {
            let EmptySlab { index, last, .. } = *oldest;
            pools.empty.pop_front();
            self.free_slab(pools, index, last);
        }
    }

    /// Makes a slab free that no reader can reach.
    fn free_slab(&self, pools: &mut Pools, index: usize, last: PoolKey) {
        let width = width_of(last.class);
        for place in 0..width {
            // Relaxed: the pools' mutex orders the threads that take slabs. For other threads a free
            // slab is like an empty one.
            self.table.words()[index + place].store(0, Relaxed);
        }
        pools.space.give(index, width, pools.trims);
    }

    /// A group that held no memory before.
    fn hold_group(&self, pools: &mut Pools) -> Option<usize> {
        let group = match pools.space.take_released() {
            Some(group) => group,
            None => {
                let group = self.first_group()?;
                pools.space.add_up_to(group);
                group
            }
        };
        self.groups_held.fetch_add(1, Relaxed);
        self.count_spare(GROUP_BYTES, 0);
        Some(group)
    }

    /// A group that was never taken.
    fn first_group(&self) -> Option<usize> {
        let group = self.groups_taken.load(Relaxed);
        if group == self.groups_max() || !self.grow_to(group) {
            return None;
        }
        let last_slab = Self::slabs_of(group).end - 1;
        if self.marks.as_ref().is_some_and(|marks| marks.reserve(last_slab).is_err()) {
            return None;
        }
        if self.accesses.get().is_some_and(|accesses| accesses.reserve(last_slab).is_err()) {
            return None;
        }
        // Relaxed: as in `take_slab`, whose caller holds the pools' mutex.
        self.groups_taken.store(group + 1, Relaxed);
        Some(group)
    }

    /// Makes the memory of a group and of some following ones usable. Returns false if the system
    /// refuses.
    fn grow_to(&self, group: usize) -> bool {
        if (group + 1) * GROUP_BYTES <= self.region.len_bytes() {
            return true;
        }
        // More than one, so that not every group costs a system call.
        let more = (group + 1 + (group / 16).clamp(1, 64)).min(self.groups_max());
        [more, group + 1].into_iter().any(|groups| self.region.grow(groups * GROUP_BYTES).is_ok())
    }

    /// Returns some groups without slabs to the system if more than `bound` bytes are held. A call returns a
    /// few, since other threads wait for the pools meanwhile.
    fn release_beyond(&self, pools: &mut Pools, bound: usize) {
        for _ in 0..RELEASED_AT_ONCE {
            if self.held_bytes() <= bound {
                return;
            }
            let Some(group) = pools.space.withdraw(u64::MAX) else { return };
            self.discard_group(group);
            pools.space.add_released(group);
        }
    }

    /// Returns the memory of the group to the system that has been without a slab for longest, if that was
    /// before `before`. Other threads can use the pools while the system takes the memory.
    fn release(&self, before: u64) -> bool {
        let withdrawn = self.pools.lock().space.withdraw(before);
        let Some(group) = withdrawn else { return false };
        self.discard_group(group);
        self.pools.lock().space.add_released(group);
        true
    }

    /// Returns the memory of a group to the system that was withdrawn from the space.
    fn discard_group(&self, group: usize) {
        self.region.discard(group * GROUP_BYTES / 8, GROUP_BYTES / 8);
        self.groups_held.fetch_sub(1, Relaxed);
        self.count_spare(0, GROUP_BYTES);
    }

    /// Gives the memory of a group back to the system, if none of its slabs was used for long. Called in
    /// the background. Returns whether there was such a group.
    pub(crate) fn trim(&self) -> bool {
        let mut pools = self.pools.lock();
        pools.trims += 1;
        self.free_empty(&mut pools);
        let before = (pools.trims + 1).saturating_sub(TRIMS_KEPT);
        drop(pools);
        self.release(before)
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
                Some(&(_, index)) => index,
                None if !run.is_empty() => break,
                None => {
                    let index = self.take_slab(&mut pools, key, allowance)?;
                    let slabs = pools.by_key.entry(key).or_default();
                    move_level(slabs, (index, 1), 0, 1);
                    index
                }
            };
            let slab = Slab::of(index, key);
            let Pools { by_key, space, .. } = &mut *pools;
            let cells = space.cells(index);
            let free = cells.free(slab.cells);
            while run.len() < wanted {
                let position = match cells.returned.pop() {
                    Some(position) => usize::from(position),
                    None if cells.fresh < slab.cells => {
                        cells.fresh += 1;
                        cells.fresh - 1
                    }
                    None => break,
                };
                run.push(slab.number(position));
            }
            let slabs = by_key.get_mut(&key).expect("seen above");
            move_level(slabs, (index, slab.cells), free, cells.free(slab.cells));
        }
        self.count_spare(0, (run.len() - before) * key.cell_bytes());
        Ok(())
    }

    /// Frees all slabs of an owner, and returns groups without slabs to the system. Nobody may hold one
    /// of the owner's numbers any more.
    pub(crate) fn drop_owner(&self, owner: u32) {
        let mut pools = self.pools.lock();
        pools.by_key.retain(|key, _| key.owner != owner);
        pools.empty.retain(|empty| empty.last.owner != owner);
        for index in 1..self.slabs() {
            if index.is_multiple_of(DROPPED_AT_ONCE) {
                // Threads that need cells wait for the pools inside of their read sections.
                drop(pools);
                pools = self.pools.lock();
            }
            let description = self.description(index);
            let key = PoolKey::of(description);
            if key.owner != owner || description == 0 || place_in_wide(description) != 0 {
                continue;
            }
            if let Some(slab) = Slab::described(index, description) {
                // The cells that were given out are spare, too, and so is what was left over.
                let free = pools.space.cells(index).free(slab.cells) * key.cell_bytes();
                self.count_spare(width_of(key.class) * SLAB_BYTES, free);
                self.count_record_cells(slab, false);
            }
            self.free_slab(&mut pools, index, key);
        }
        drop(pools);
        while self.release(u64::MAX) {}
    }

    /// Returns free cells to a pool. A slab whose cells are all free becomes empty.
    fn give_back(&self, key: PoolKey, numbers: impl Iterator<Item = u64>) {
        let mut pools = self.pools.lock();
        let Pools { by_key, space, empty, .. } = &mut *pools;
        let slabs = by_key.entry(key).or_default();
        for number in numbers {
            let part = (number / UNITS_PER_SLAB) as usize;
            // A thread that changes a description holds the pools' mutex.
            let description = self.description(part);
            let place = place_in_wide(description);
            if description & !LEAVING != key.describe(place) {
                // The owner is gone, and its cell was freed with it.
                continue;
            }
            let is_leaving = description & LEAVING != 0;
            let index = part - place;
            let slab = Slab::of(index, key);
            let cells = space.cells(index);
            let before = cells.free(slab.cells);
            cells.returned.push(slab.position(number) as u16);
            self.count_spare(key.cell_bytes(), 0);
            if before + 1 < slab.cells {
                if !is_leaving {
                    move_level(slabs, (index, slab.cells), before, before + 1);
                }
                continue;
            }
            if !is_leaving {
                move_level(slabs, (index, slab.cells), before, 0);
            }
            let width = width_of(key.class);
            self.count_spare(width * SLAB_BYTES, slab.cells_bytes());
            self.count_record_cells(slab, false);
            *cells = space::SlabCells::default();
            for place in 0..width {
                // Relaxed: a thread that enters a read section after the token sees the bit, by the
                // fences of `ReadSections::token` and `ReadSections::enter`.
                self.table.words()[index + place].store(key.describe(place) | EMPTY, Relaxed);
            }
            let grace = self.read_sections.token();
            empty.push_back(EmptySlab { index, last: key, grace });
        }
        if slabs.is_empty() {
            by_key.remove(&key);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
