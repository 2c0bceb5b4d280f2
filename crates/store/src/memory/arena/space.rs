//! Groups of slabs: which are free, and which hold memory of the system.

use std::collections::{BTreeSet, VecDeque};

use super::classes::SLABS_PER_GROUP;

/// Groups among which sparse ones are looked for.
const GROUPS_LOOKED_AT: usize = 4096;
/// A bit for each slab of a group.
const ALL: u32 = (u64::MAX >> (64 - SLABS_PER_GROUP)) as u32;

/// The free cells of a slab.
#[derive(Debug, Default)]
pub(super) struct SlabCells {
    /// Positions of freed cells.
    pub(super) returned: Vec<u16>,
    /// Cells from this position on were never allocated.
    pub(super) fresh: usize,
}

impl SlabCells {
    /// Number of free cells of a slab of `cells`.
    pub(super) fn free(&self, cells: usize) -> usize {
        self.returned.len() + cells - self.fresh
    }
}

#[derive(Debug)]
struct Group {
    /// Slabs that nobody has.
    free: u32,
    /// Slabs whose memory may hold something else than zeros.
    used: u32,
    cells: Box<[SlabCells]>,
}

/// The slabs of all groups that were ever taken. A wide slab has the number of its first narrow one.
#[derive(Debug, Default)]
pub(super) struct Space {
    groups: Vec<Group>,
    /// Groups with free slabs and with others.
    mixed: BTreeSet<usize>,
    /// Those of them with room for a wide slab.
    mixed_wide: BTreeSet<usize>,
    /// Groups without any other slab, with the moment since which they are so. Oldest first.
    free: VecDeque<(usize, u64)>,
    /// Groups that hold no memory.
    released: Vec<usize>,
    /// Groups that give no slab, since their slabs are to move elsewhere.
    closed: BTreeSet<usize>,
}

/// A slab that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) index: usize,
    /// Whether its memory reads as zeros.
    pub(super) is_zero: bool,
}

fn bits(place: usize, width: usize) -> u32 {
    ((u64::MAX >> (64 - width)) << place) as u32
}

/// Places of slabs of that width in a group.
fn places(width: usize) -> impl Iterator<Item = usize> {
    (0..SLABS_PER_GROUP).step_by(width)
}

/// Where a slab of this width is free. Narrow slabs lie close together, so that there is room for wide
/// ones.
fn free_place(free: u32, width: usize) -> Option<usize> {
    let is_free = |&place: &usize| free & bits(place, width) == bits(place, width);
    if width == 1 {
        const NEAR: usize = if SLABS_PER_GROUP < 8 { SLABS_PER_GROUP } else { 8 };
        let has_near = |&place: &usize| {
            let near = bits(place / NEAR * NEAR, NEAR);
            free & near != near
        };
        if let Some(place) = places(1).filter(is_free).find(has_near) {
            return Some(place);
        }
    }
    places(width).find(is_free)
}

impl Space {
    /// Adds the first groups, up to this one, which nobody has taken yet.
    pub(super) fn add_up_to(&mut self, group: usize) {
        self.groups.resize_with(group + 1, || Group {
            free: ALL,
            used: 0,
            cells: (0..SLABS_PER_GROUP).map(|_| SlabCells::default()).collect(),
        });
    }

    /// Number of free cells of a slab of `cells`.
    pub(super) fn free(&self, slab: usize, cells: usize) -> usize {
        self.groups[slab / SLABS_PER_GROUP].cells[slab % SLABS_PER_GROUP].free(cells)
    }

    pub(super) fn cells(&mut self, slab: usize) -> &mut SlabCells {
        &mut self.groups[slab / SLABS_PER_GROUP].cells[slab % SLABS_PER_GROUP]
    }

    /// Takes a slab from the groups that hold memory.
    pub(super) fn take(&mut self, width: usize) -> Option<Taken> {
        let mixed = if width == 1 { &self.mixed } else { &self.mixed_wide };
        let group = match mixed.first() {
            Some(&group) => group,
            None => self.free.pop_back()?.0,
        };
        Some(self.take_from(group, width))
    }

    /// Takes a slab from a group that held no memory.
    pub(super) fn take_from(&mut self, group: usize, width: usize) -> Taken {
        let Group { free, used, cells } = &mut self.groups[group];
        let place = free_place(*free, width).expect("the group has room");
        let taken = bits(place, width);
        let is_zero = *used & taken == 0;
        *free &= !taken;
        *used |= taken;
        cells[place] = SlabCells::default();
        self.note(group);
        Taken { index: group * SLABS_PER_GROUP + place, is_zero }
    }

    /// Gives a slab back. `now` is noted if its group has no other slab.
    pub(super) fn give(&mut self, slab: usize, width: usize, now: u64) {
        let (group, place) = (slab / SLABS_PER_GROUP, slab % SLABS_PER_GROUP);
        let Group { free, cells, .. } = &mut self.groups[group];
        *free |= bits(place, width);
        cells[place] = SlabCells::default();
        if *free == ALL {
            self.free.push_back((group, now));
            self.closed.remove(&group);
        }
        self.note(group);
    }

    /// Up to `most` groups of whose slabs half or more are free, the emptiest first. The other groups with
    /// free slabs have twice as many of them.
    pub(super) fn sparse_groups(&self, most: usize) -> Vec<usize> {
        let free = |group: usize| self.groups[group].free.count_ones() as usize;
        // Slabs are taken from the lowest groups first. So the emptiest ones lie at the end.
        let last = self.mixed.iter().rev().take(GROUPS_LOOKED_AT);
        let mut by_free: Vec<(usize, usize)> = last.map(|&group| (free(group), group)).collect();
        by_free.sort_unstable();
        let mut room: usize = by_free.iter().map(|(free, _)| free).sum();
        let mut chosen = Vec::new();
        while chosen.len() < most
            && let Some((free, group)) = by_free.pop()
        {
            let used = SLABS_PER_GROUP - free;
            // The groups that were chosen before use up some of the room.
            room = room.saturating_sub(free);
            if free < SLABS_PER_GROUP / 2 || room < 2 * used {
                break;
            }
            room -= used;
            chosen.push(group);
        }
        chosen
    }

    /// Has a group give no slab.
    pub(super) fn close(&mut self, group: usize) {
        self.closed.insert(group);
        self.note(group);
    }

    /// Has all groups give slabs again.
    pub(super) fn open_all(&mut self) {
        for group in std::mem::take(&mut self.closed) {
            self.note(group);
        }
    }

    fn note(&mut self, group: usize) {
        const WIDTH: usize = if SLABS_PER_GROUP < 8 { SLABS_PER_GROUP } else { 8 };
        let free = self.groups[group].free;
        let is_mixed = free != 0 && free != ALL && !self.closed.contains(&group);
        let is_wide = is_mixed && free_place(free, WIDTH).is_some();
        for (set, is_in) in [(&mut self.mixed, is_mixed), (&mut self.mixed_wide, is_wide)] {
            if is_in {
                set.insert(group)
            } else {
                set.remove(&group)
            };
        }
    }

    /// Withdraws the group that has been without a slab for longest, if that was before `before`. Nobody
    /// finds it until the caller has returned its memory to the system, and [adds](Self::add_released) it.
    pub(super) fn withdraw(&mut self, before: u64) -> Option<usize> {
        Some(self.free.pop_front_if(|(_, since)| *since < before)?.0)
    }

    /// Adds a group that was withdrawn, and holds no memory any more.
    pub(super) fn add_released(&mut self, group: usize) {
        self.groups[group].used = 0;
        self.released.push(group);
    }

    /// A group that was released.
    pub(super) fn take_released(&mut self) -> Option<usize> {
        self.released.pop()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn new(groups: usize) -> Space {
        let mut space = Space::default();
        space.add_up_to(groups - 1);
        space.released = (0..groups).rev().collect();
        space
    }

    fn take(space: &mut Space, width: usize) -> usize {
        let taken = space.take(width).unwrap_or_else(|| {
            let group = space.take_released().expect("a group");
            space.take_from(group, width)
        });
        taken.index
    }

    #[test]
    fn narrow_slabs_leave_room_for_wide_ones() {
        let mut space = new(2);
        assert_eq!([1, 1, 8, 1, 8, 8].map(|width| take(&mut space, width)), [0, 1, 8, 2, 16, 24]);
        // The first group has five narrow slabs left, and no wide one.
        assert_eq!(take(&mut space, 8), 32);
        assert_eq!([1; 6].map(|width| take(&mut space, width)), [3, 4, 5, 6, 7, 40]);
        space.give(16, 8, 1);
        assert_eq!(take(&mut space, 1), 16, "a wide slab is divided");
        assert_eq!(take(&mut space, 1), 17);
    }

    /// Of many groups the lowest are nearly full, and the highest are sparse.
    #[test]
    fn sparse_groups_are_found_among_many() {
        const GROUPS: usize = GROUPS_LOOKED_AT + 1_000;
        let mut space = new(GROUPS);
        let slabs: Vec<usize> =
            (0..GROUPS * SLABS_PER_GROUP).map(|_| take(&mut space, 1)).collect();
        for slab in slabs {
            let (group, place) = (slab / SLABS_PER_GROUP, slab % SLABS_PER_GROUP);
            if place < if group < GROUPS_LOOKED_AT { 2 } else { 20 } {
                space.give(slab, 1, 1);
            }
        }
        let sparse = space.sparse_groups(8);
        assert_eq!(sparse.len(), 8);
        assert!(sparse.into_iter().all(|group| group >= GROUPS_LOOKED_AT));
    }

    #[test]
    fn a_group_without_slabs_is_released_later() {
        let mut space = new(2);
        let slabs: Vec<usize> = (0..33).map(|_| take(&mut space, 1)).collect();
        assert_eq!(slabs, (0..33).collect::<Vec<_>>());
        (0..32).for_each(|slab| space.give(slab, 1, 7));
        let release = |space: &mut Space, before| {
            let group = space.withdraw(before)?;
            space.add_released(group);
            Some(group)
        };
        assert_eq!(release(&mut space, 7), None);
        assert_eq!(space.take(1), Some(Taken { index: 33, is_zero: true }), "of the other group");
        assert_eq!((release(&mut space, 8), release(&mut space, 8)), (Some(0), None));
        assert_eq!(space.take_released(), Some(0));
        assert_eq!(space.take_from(0, 8), Taken { index: 0, is_zero: true });
        space.give(0, 8, 9);
        assert_eq!(space.take(8), Some(Taken { index: 40, is_zero: true }));
        assert_eq!(space.free.len(), 1, "a group with slabs is preferred");
        (34..40).for_each(|slab| assert_eq!(take(&mut space, 1), slab));
        (0..2).for_each(|_| assert!(space.take(8).is_some()));
        assert_eq!(space.take(8), Some(Taken { index: 0, is_zero: false }), "it was used before");
    }
}
