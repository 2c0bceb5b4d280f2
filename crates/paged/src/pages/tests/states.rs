//! Every state that some pages, slots and rounds can reach. A search in breadth goes over the real
//! bookkeeping of slots and numbers, beside a disk that is a table.
//!
//! A crash may come in any state. So each of three maps must find its pages in their slots. These are the map
//! that counts, the one that may soon count, and the one in memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use stillpoint_format::Stamp;
use stillpoint_format::pages::PageId;

use crate::pages::ids::PageIds;
use crate::pages::slots::Slots;

const SLOTS: u64 = 6;
const PAGES: usize = 2;
/// The greatest gsn of a page in the search.
const GSN_MAX: u64 = 7;

/// Slot and gsn of each page.
type Map = BTreeMap<u64, (u64, u64)>;

#[derive(Clone, Debug)]
struct State {
    slots: Slots,
    ids: PageIds,
    /// Page and gsn in each slot.
    disk: BTreeMap<u64, (u64, u64)>,
    memory: Map,
    counted: Map,
    candidate: Option<Map>,
    /// Pages of the tree, with their gsns.
    pages: BTreeMap<u64, u64>,
    gsn: u64,
}

impl State {
    fn first() -> Self {
        let mut slots = Slots::default();
        slots.grow(SLOTS);
        Self {
            slots,
            ids: PageIds::default(),
            disk: Map::new(),
            memory: Map::new(),
            counted: Map::new(),
            candidate: None,
            pages: BTreeMap::new(),
            gsn: 0,
        }
    }

    /// All states that one step leads to.
    fn next(&self) -> Vec<State> {
        let mut next = Vec::new();
        let mut step = |change: &dyn Fn(&mut State) -> Option<()>| {
            let mut state = self.clone();
            next.extend(change(&mut state).map(|()| state));
        };
        if self.gsn < GSN_MAX {
            if self.pages.len() < PAGES {
                step(&State::allocate);
            }
            for page in self.pages.keys() {
                step(&|state| state.write(*page));
                step(&|state| state.free(*page));
            }
        }
        match &self.candidate {
            None => step(&State::begin_round),
            Some(_) => [true, false].iter().for_each(|counts| {
                step(&|state| state.end_round(*counts));
            }),
        }
        next
    }

    fn allocate(&mut self) -> Option<()> {
        let new = self.ids.allocate();
        let had = [Some(&self.memory), Some(&self.counted), self.candidate.as_ref()];
        let had = had.into_iter().flatten().filter_map(|map| map.get(&new.page)).max();
        assert!(had.is_none(), "page {} is still in a map: {self:?}", new.page);
        self.gsn = (self.gsn + 1).max(new.above + 1);
        self.pages.insert(new.page, self.gsn);
        Some(())
    }

    /// Changes a page and writes it back.
    fn write(&mut self, page: u64) -> Option<()> {
        let slot = self.slots.take_run(1)?.start;
        self.gsn += 1;
        self.pages.insert(page, self.gsn);
        self.disk.insert(slot, (page, self.gsn));
        if let Some((before, _)) = self.memory.insert(page, (slot, self.gsn)) {
            self.slots.release(before);
        }
        Some(())
    }

    fn free(&mut self, page: u64) -> Option<()> {
        self.gsn += 1;
        self.pages.remove(&page);
        self.ids.free(PageId(page), Stamp::new(self.gsn, 0));
        Some(())
    }

    fn begin_round(&mut self) -> Option<()> {
        for page in self.ids.begin_round() {
            if let Some((slot, _)) = self.memory.remove(&page.0) {
                self.slots.release(slot);
            }
        }
        self.slots.begin_round();
        self.candidate = Some(self.memory.clone());
        Some(())
    }

    fn end_round(&mut self, counts: bool) -> Option<()> {
        let candidate = self.candidate.take()?;
        if counts {
            self.counted = candidate;
            self.ids.round_counts();
            self.slots.round_counts();
        } else {
            self.slots.give_up_round();
        }
        Some(())
    }

    fn check(&self) {
        let maps = [Some(&self.memory), Some(&self.counted), self.candidate.as_ref()];
        let mut named = BTreeSet::new();
        for map in maps.into_iter().flatten() {
            let mut slots = BTreeSet::new();
            for (page, (slot, gsn)) in map {
                assert!(slots.insert(slot), "two pages in slot {slot}: {self:?}");
                assert_eq!(self.disk.get(slot), Some(&(*page, *gsn)), "slot {slot}: {self:?}");
                named.insert(*slot);
            }
        }
        assert!(self.slots.free() <= SLOTS - named.len() as u64, "too many free: {self:?}");
    }
}

#[test]
pub(super) fn no_state_loses_a_page_that_a_map_names() {
    let mut waiting = VecDeque::from([State::first()]);
    let mut seen = BTreeSet::new();
    while let Some(state) = waiting.pop_front() {
        state.check();
        for next in state.next() {
            if seen.insert(format!("{next:?}")) {
                waiting.push_back(next);
            }
        }
    }
    assert!(seen.len() > 5_000, "only {} states", seen.len());
}
