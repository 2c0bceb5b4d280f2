//! The choice of slabs whose cells are to be moved, so that others can use the memory.
//!
//! ```text
//! of one pool, the fullest first:   ▇ ▇ ▆ ▅ │ ▃ ▂ ▁      what is left of the line has room for the cells
//!                                   stay    │ leave      on its right
//! of one owner or many:  a group of which half the slabs or more are free, as a whole
//! ```
//! A slab leaves only if half of its cells or more are free. So a move copies no more bytes than it frees.
//! The slabs that are chosen at a time are few, since the choice is made under the pools' mutex.

use std::collections::BTreeSet;

use stillpoint_sync::atomic::Ordering::Relaxed;

use super::classes::{SLABS_PER_GROUP, UNITS_PER_SLAB, width_of};
use super::slab::{EMPTY, Kind, LEAVING, PoolKey, Slab};
use super::space::Space;
use super::{Arena, GROUP_BYTES, Level, Pools, move_level};

/// Slabs that leave at a time, at most.
const LEAVING_MAX: usize = 256;
/// Slabs of a pool that are looked at for free cells.
const LOOKED_AT: usize = 4 * LEAVING_MAX;
/// Eighths of a slab that are free at least, if it leaves.
const SPARSE: Level = 4;
/// Bytes to win at least, and their part of the bytes that are held, unless memory was refused.
const WON_BYTES_MIN: usize = 8 << 20;
const WON_PART: usize = 8;
/// Calls of [`Arena::trim`] to wait for after a choice in vain.
const VAIN_TRIMS: u64 = 32;

/// The slabs that were chosen to leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaving {
    /// Those that records lie in.
    pub(crate) records: Vec<usize>,
    /// Whether blocks of large values and of long keys are to leave others.
    pub(crate) has_blocks: bool,
}

/// The moves of cells that are under way.
#[derive(Debug)]
pub(crate) struct Moves {
    pub(crate) leaving: Leaving,
    /// Slabs of records that were gone through, and cells of the next one.
    pub(crate) slabs: usize,
    pub(crate) cells: usize,
    /// The slab, and its cell, from which on records are asked for their blocks.
    pub(crate) asked: (usize, usize),
    pub(crate) has_moved: bool,
}

impl Moves {
    pub(crate) fn of(leaving: Leaving) -> Self {
        Self { leaving, slabs: 0, cells: 0, asked: (0, 0), has_moved: false }
    }
}

impl Arena {
    /// Chooses slabs to leave, if much can be won or memory was refused. Only one thread at a time moves
    /// cells, and it calls [`end_leaving`](Self::end_leaving) afterwards.
    pub(crate) fn choose_leaving(&self) -> Option<Leaving> {
        let (spare, held) = (self.spare_bytes.load(Relaxed), self.held_bytes());
        // Relaxed: a hint.
        let is_asked = self.was_refused.load(Relaxed);
        let is_much = spare >= WON_BYTES_MIN.max(held / WON_PART);
        if !(is_much || is_asked && spare >= GROUP_BYTES) {
            return None;
        }
        let mut pools = self.pools.lock();
        if pools.trims < pools.vain_until {
            return None;
        }
        self.was_refused.store(false, Relaxed);
        self.free_empty(&mut pools);
        let mut chosen = Vec::new();
        for (key, slabs) in &pools.by_key {
            choose_slabs(&pools.space, *key, slabs, &mut chosen);
        }
        if chosen.is_empty() {
            self.choose_groups(&mut pools, &mut chosen);
        }
        if chosen.is_empty() {
            pools.vain_until = pools.trims + VAIN_TRIMS;
            return None;
        }
        Some(self.mark_leaving(&mut pools, chosen))
    }

    /// Chooses all slabs of records to leave, and those of blocks.
    #[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
    pub(crate) fn choose_all(&self) -> Leaving {
        let mut pools = self.pools.lock();
        let slabs = (0..self.slabs()).filter_map(|index| Some((index, self.slab(index)?)));
        // The models of captures move blocks in a model of their own.
        let moves =
            |slab: &Slab| slab.is_of_records() || !cfg!(shuttle) && slab.kind == Kind::Block as u8;
        let chosen = slabs.filter(|(_, slab)| moves(slab)).map(|(index, _)| index);
        self.mark_leaving(&mut pools, chosen.collect())
    }

    /// Chooses the slabs of groups of which half is free, if other groups have room for them.
    fn choose_groups(&self, pools: &mut Pools, chosen: &mut Vec<usize>) {
        for group in pools.space.sparse_groups(LEAVING_MAX / SLABS_PER_GROUP) {
            let slabs = Self::slabs_of(group).filter(|&slab| self.slab(slab).is_some());
            chosen.extend(slabs);
            pools.space.close(group);
        }
    }

    /// Has slabs give out no more cells.
    fn mark_leaving(&self, pools: &mut Pools, chosen: Vec<usize>) -> Leaving {
        let mut leaving = Leaving::default();
        for &index in &chosen {
            let key = PoolKey::of(self.description(index));
            let slab = Slab::of(index, key);
            let free = pools.space.free(index, slab.cells);
            if let Some(slabs) = pools.by_key.get_mut(&key) {
                move_level(slabs, (index, slab.cells), free, 0);
            }
            for part in index..index + width_of(key.class) {
                let description = self.description(part);
                // Relaxed: as in `take_slab`. Who reads an older description finds the same cells.
                self.table.words()[part].store(description | LEAVING, Relaxed);
            }
            match key.is_of_records() {
                true => leaving.records.push(index),
                false => leaving.has_blocks |= key.kind == Kind::Block as u8,
            }
        }
        pools.by_key.retain(|_, slabs| !slabs.is_empty());
        pools.leaving = chosen;
        leaving
    }

    /// Ends the moves of cells. A slab that was to leave and has cells still gives out cells again. If
    /// nothing `has_moved`, no slab is chosen for a while.
    pub(crate) fn end_leaving(&self, has_moved: bool) {
        let mut pools = self.pools.lock();
        let pools = &mut *pools;
        if !has_moved {
            pools.vain_until = pools.trims + VAIN_TRIMS;
        }
        for index in std::mem::take(&mut pools.leaving) {
            let description = self.description(index);
            if description & LEAVING == 0 || description & EMPTY != 0 || description == 0 {
                continue;
            }
            let key = PoolKey::of(description);
            let cells = Slab::of(index, key).cells;
            for part in index..index + width_of(key.class) {
                let description = self.description(part);
                self.table.words()[part].store(description & !LEAVING, Relaxed);
            }
            let free = pools.space.free(index, cells);
            if free > 0 {
                move_level(pools.by_key.entry(key).or_default(), (index, cells), 0, free);
            }
        }
        pools.space.open_all();
    }

    /// Whether the cell of this number is to be moved elsewhere.
    pub(crate) fn is_leaving(&self, number: u64) -> bool {
        self.description((number / UNITS_PER_SLAB) as usize) & LEAVING != 0
    }
}

/// Chooses slabs of a pool, the emptiest first, as far as the others have room for their cells.
fn choose_slabs(
    space: &Space,
    key: PoolKey,
    slabs: &BTreeSet<(Level, usize)>,
    chosen: &mut Vec<usize>,
) {
    if key.kind > Kind::Block as u8 {
        return;
    }
    let cells = Slab::of(0, key).cells;
    let mut fullest = slabs.iter().take(LOOKED_AT).peekable();
    let (mut room, mut looked_at) = (0, None);
    for &(level, index) in slabs.iter().rev() {
        if level < SPARSE || chosen.len() == LEAVING_MAX {
            return;
        }
        let used = cells - space.free(index, cells);
        while room < used
            && let Some(&other) = fullest.next_if(|&&other| other < (level, index))
        {
            room += space.free(other.1, cells);
            looked_at = Some(other);
        }
        if room < used || looked_at.is_some_and(|other| other >= (level, index)) {
            return;
        }
        room -= used;
        chosen.push(index);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use stillpoint_sync::ReadSections;

    use super::*;
    use crate::memory::arena::CellCache;
    use crate::memory::arena::classes::SLAB_BYTES;

    fn allocate(arena: &Arena, cache: &mut CellCache, bytes: usize, count: usize) -> Vec<u64> {
        let one = |_| cache.allocate(arena, 5, Kind::Record, bytes).expect("memory");
        (0..count).map(one).collect()
    }

    /// Frees all but every tenth cell. Gives those that are left.
    fn thin_out(arena: &Arena, cache: &mut CellCache, numbers: Vec<u64>) -> Vec<u64> {
        let mut left = Vec::new();
        for (at, number) in numbers.into_iter().enumerate() {
            if at % 10 == 0 { left.push(number) } else { cache.free(arena, number) }
        }
        cache.drain(arena);
        left
    }

    #[test]
    fn cells_of_sparse_slabs_find_room_in_the_others() {
        let arena = Arena::new(64 << 20, &Arc::default(), ReadSections::new(1)).expect("space");
        let mut cache = CellCache::default();
        let numbers = allocate(&arena, &mut cache, 120, 20 * GROUP_BYTES / 128);
        assert_eq!(arena.choose_leaving(), None, "nothing is free");
        let mut left = thin_out(&arena, &mut cache, numbers);
        let held = arena.held_bytes();
        let mut rounds = 0;
        while let Some(leaving) = arena.choose_leaving() {
            rounds += 1;
            assert!(leaving.records.len() <= LEAVING_MAX && !leaving.has_blocks);
            let goes: HashSet<usize> = leaving.records.iter().copied().collect();
            for number in &mut left {
                let slab = (*number / UNITS_PER_SLAB) as usize;
                assert_eq!(goes.contains(&slab), arena.is_leaving(*number));
                if goes.contains(&slab) {
                    let new = cache.allocate(&arena, 5, Kind::Record, 120).expect("memory");
                    assert!(!arena.is_leaving(new));
                    cache.free(&arena, std::mem::replace(number, new));
                }
            }
            cache.drain(&arena);
            arena.end_leaving(true);
            assert!(arena.held_bytes() <= held, "no group is taken for cells that move");
        }
        assert!(rounds > 1 && left.iter().all(|&number| !arena.is_leaving(number)));
        (0..200).for_each(|_| _ = arena.trim());
        assert!(arena.held_bytes() <= 3 * GROUP_BYTES, "{} bytes", arena.held_bytes());
        assert_eq!(left.iter().collect::<HashSet<_>>().len(), left.len());
    }

    #[test]
    fn a_slab_that_was_to_leave_gives_out_cells_again() {
        let arena = Arena::new(64 << 20, &Arc::default(), ReadSections::new(1)).expect("space");
        let mut cache = CellCache::default();
        let numbers = allocate(&arena, &mut cache, 1_000, 20 * GROUP_BYTES / 1_000);
        let left = thin_out(&arena, &mut cache, numbers);
        let chosen = arena.choose_leaving().expect("nine tenths are free");
        assert!(left.iter().any(|&number| arena.is_leaving(number)));
        arena.end_leaving(true);
        assert!(left.iter().all(|&number| !arena.is_leaving(number)));
        let again = arena.choose_leaving().expect("nothing has changed");
        assert_eq!(again, chosen);
        left.iter().for_each(|&number| cache.free(&arena, number));
        cache.drain(&arena);
        arena.end_leaving(true);
        assert_eq!(arena.choose_leaving(), None);
        arena.drop_owner(5);
        assert_eq!(arena.held_bytes(), 0);
    }

    /// Full slabs that lie far apart come together, so that whole groups become free.
    #[test]
    fn sparse_groups_are_emptied() {
        let arena = Arena::new(64 << 20, &Arc::default(), ReadSections::new(1)).expect("space");
        let mut cache = CellCache::default();
        let numbers = allocate(&arena, &mut cache, SLAB_BYTES, 20 * SLABS_PER_GROUP);
        let left = thin_out(&arena, &mut cache, numbers);
        let leaving = arena.choose_leaving().expect("every group is nearly free");
        for number in left {
            if arena.is_leaving(number) {
                let new = allocate(&arena, &mut cache, SLAB_BYTES, 1)[0];
                assert!(!arena.is_leaving(new));
                cache.free(&arena, number);
            }
        }
        cache.drain(&arena);
        arena.end_leaving(true);
        (0..200).for_each(|_| _ = arena.trim());
        let emptied = 20 - arena.held_bytes() / GROUP_BYTES;
        assert!(emptied >= 6, "{emptied} groups are empty, {} slabs left", leaving.records.len());
    }
}
