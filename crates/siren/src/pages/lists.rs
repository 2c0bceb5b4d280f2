//! The lists of tuples and pages: links, splits and joins.
//!
//! An operation splits and joins at once. The checkpointer moves some tuples a turn. In between, both pages are
//! whole: each tuple is on one of them, in its place. A tuple that hangs on another one moves with it.

use std::sync::Arc;

use stillpoint_format::siren::OPEN_TUPLE_BYTES;

use super::{JOIN_PERCENT, Page, Pages, Tuple, committed_bytes};
use crate::proxy::{Proxy, Value};
use crate::slab::Slot;

/// A split under way: the front page takes tuples up to so many bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    front: Slot,
    /// Number of the front page.
    number: u64,
    wanted: usize,
}

impl Pages {
    /// Makes an empty page behind `before`, or the first one. The page is dirty at the level.
    pub(super) fn create_page(&mut self, level: u64, before: Slot) -> Slot {
        let page = self.insert_page(before);
        // An unsettled level counts a clean page as frozen, and the checkpoint gets it.
        if level <= self.settled {
            self.mark_dirty(page, level);
        }
        page
    }

    /// Makes an empty, clean page behind `before`, or the first one.
    pub(super) fn insert_page(&mut self, before: Slot) -> Slot {
        self.numbers += 1;
        let after = if before.is_none() { self.first } else { self.pages[before].after };
        let page = self.pages.insert(Page {
            number: self.numbers,
            dirty: 0,
            first: Slot::NONE,
            last: Slot::NONE,
            before,
            after,
            bytes: 0,
            tuples: 0,
            pending: Vec::new(),
            is_changed: false,
            is_stored: false,
            cursor: Slot::NONE,
            is_copying: false,
            touched: 0,
        });
        match before.is_none() {
            true => self.first = page,
            false => self.pages[before].after = page,
        }
        match after.is_none() {
            true => self.last = page,
            false => self.pages[after].before = page,
        }
        page
    }

    /// The page of a tuple on which a new one of this key and value can hang. `None` if the tuple has another key,
    /// hangs itself, or has a tuple that hangs. Also if the two are too large for one page, since they cannot be
    /// split.
    pub(super) fn may_hang(&self, on: Slot, proxy: &Arc<Proxy>, value: &Value) -> Option<Slot> {
        let on = self.tuples.get(on).filter(|on| on.newer.is_none())?;
        on.proxy.as_ref().filter(|of| Arc::ptr_eq(of, proxy))?;
        let both = on.bytes(&proxy.key) + committed_bytes(&proxy.key, value) + OPEN_TUPLE_BYTES;
        (both <= self.capacity).then_some(on.page)
    }

    pub(super) fn hang_on(&mut self, page: Slot, on: Slot, tuple: Slot) {
        self.tuples[on].newer = tuple;
        let it = &mut self.tuples[tuple];
        (it.page, it.before, it.after, it.proxy) = (page, on, Slot::NONE, None);
    }

    /// Gives a tuple that hangs a proxy of its own, since it is about to hang no more.
    fn own(&mut self, tuple: Slot) {
        let proxy = self.proxy(tuple).clone();
        self.tuples[tuple].proxy = Some(proxy);
    }

    /// The tuple of a list behind which a new one goes that belongs behind `previous`. If a later version of the
    /// new tuple's key hangs there, it gets a place in the list.
    pub(super) fn listed(&mut self, previous: Slot, new: Slot) -> Slot {
        let Some(it) = self.tuples.get(previous) else { return previous };
        if it.hangs() {
            return it.before;
        }
        let (page, newer) = (it.page, it.newer);
        if !newer.is_none() && Arc::ptr_eq(it.own_proxy(), self.proxy(new)) {
            self.own(newer);
            self.tuples[previous].newer = Slot::NONE;
            self.link(page, previous, newer);
        }
        previous
    }

    /// The tuple behind another one of its page, in the order of keys and versions.
    pub(super) fn next(&self, tuple: Slot) -> Slot {
        let it = &self.tuples[tuple];
        match (it.newer.is_none(), it.hangs()) {
            (false, _) => it.newer,
            (true, true) => self.tuples[it.before].after,
            (true, false) => it.after,
        }
    }

    /// Links a tuple behind `previous`, which hangs nowhere, or as the first one of the page.
    pub(super) fn link(&mut self, page: Slot, previous: Slot, tuple: Slot) {
        let next = match previous.is_none() {
            true => self.pages[page].first,
            false => self.tuples[previous].after,
        };
        let it = &mut self.tuples[tuple];
        (it.page, it.before, it.after) = (page, previous, next);
        match previous.is_none() {
            true => self.pages[page].first = tuple,
            false => self.tuples[previous].after = tuple,
        }
        match next.is_none() {
            true => self.pages[page].last = tuple,
            false => self.tuples[next].before = tuple,
        }
    }

    /// Takes a tuple out of its page. One that hangs on it takes its place in the list.
    pub(super) fn unlink(&mut self, tuple: Slot) {
        let next = self.next(tuple);
        let Tuple { page, before, after, newer, .. } = self.tuples[tuple];
        if self.pages[page].cursor == tuple {
            self.pages[page].cursor = next;
        }
        if self.tuples[tuple].hangs() {
            self.own(tuple);
            self.tuples[before].newer = Slot::NONE;
            return;
        }
        let (mut front, mut back) = (after, before);
        if !newer.is_none() {
            self.own(newer);
            let it = &mut self.tuples[newer];
            (it.before, it.after) = (before, after);
            (front, back) = (newer, newer);
        }
        match before.is_none() {
            true => self.pages[page].first = front,
            false => self.tuples[before].after = front,
        }
        match after.is_none() {
            true => self.pages[page].last = back,
            false => self.tuples[after].before = back,
        }
    }

    /// Splits the front half of an overfull page off, at most one page of it. Nothing happens if the page is
    /// not too full, or if its tuples may not move.
    pub(super) fn split(&mut self, page: Slot, level: u64) {
        if let Some(split) = self.begin_split(page, level) {
            self.move_front(page, split, level, usize::MAX);
        }
    }

    /// Begins a split with an empty front page. `None` if the page is not too full, or if its tuples may not
    /// move.
    pub(super) fn begin_split(&mut self, page: Slot, level: u64) -> Option<Split> {
        let it = &self.pages[page];
        let is_overfull = it.bytes > self.capacity && it.first != it.last;
        if !is_overfull || !self.can_move(page, level) {
            return None;
        }
        let wanted = (it.bytes / 2).min(self.capacity);
        let front = self.create_page(level, it.before);
        self.mark_dirty(page, level);
        Some(Split { front, number: self.pages[front].number, wanted })
    }

    /// Moves the next tuples of a split, `most` at most. `false` once the split is over: the front page is full
    /// enough, or operations have come between the two pages.
    pub(super) fn move_front(&mut self, page: Slot, split: Split, level: u64, most: usize) -> bool {
        let Split { front, number, wanted } = split;
        let is_here = self.is_same(front, number) && self.pages[front].after == page;
        if !is_here || !self.can_move(page, level) || !self.can_move(front, level) {
            return false;
        }
        let mut moved = 0;
        while moved < most {
            let (tuple, has) = (self.pages[page].first, self.pages[front].bytes);
            let is_last = tuple == self.pages[page].last;
            if is_last || has > 0 && has + self.bytes(tuple) > wanted {
                return false;
            }
            moved += self.move_to_end(tuple, front);
        }
        true
    }

    /// Moves a tuple of a list to the end of another page, with the one that hangs on it. Returns how many.
    fn move_to_end(&mut self, tuple: Slot, to: Slot) -> usize {
        let newer = self.tuples[tuple].newer;
        let from = self.tuples[tuple].page;
        self.count_out(from, tuple);
        self.unlink(tuple);
        self.tuples[tuple].newer = Slot::NONE;
        let last = self.pages[to].last;
        self.link(to, last, tuple);
        self.count_in(to, tuple);
        if newer.is_none() {
            return 1;
        }
        self.count_out(from, newer);
        self.unlink(newer);
        self.hang_on(to, tuple, newer);
        self.count_in(to, newer);
        2
    }

    /// Removes an empty page, or joins the page with a neighbour if they have few tuples together.
    pub(super) fn join(&mut self, page: Slot, level: u64) {
        self.join_some(page, level, usize::MAX);
    }

    /// As [`join`](Self::join), but moves `most` tuples at most. Returns whether anything has happened. A join
    /// that is not over goes on with the next call, if the two pages still have few tuples.
    pub(super) fn join_some(&mut self, page: Slot, level: u64, most: usize) -> bool {
        if !self.can_move(page, level) {
            return false;
        }
        let it = &self.pages[page];
        let (before, after, bytes) = (it.before, it.after, it.bytes);
        if it.first.is_none() {
            self.remove_page(page, level);
            return true;
        }
        let limit = self.capacity * JOIN_PERCENT / 100;
        if bytes >= limit {
            // Without a look at the neighbours.
            return false;
        }
        let fits = |other: Slot| {
            !other.is_none()
                && self.pages[other].bytes + bytes < limit
                && self.can_move(other, level)
        };
        let (front, back) = match (fits(before), fits(after)) {
            (true, _) => (before, page),
            (false, true) => (page, after),
            (false, false) => return false,
        };
        self.mark_dirty(front, level);
        let mut moved = 0;
        while moved < most {
            let tuple = self.pages[back].first;
            if tuple.is_none() {
                self.remove_page(back, level);
                return true;
            }
            moved += self.move_to_end(tuple, front);
        }
        self.mark_dirty(back, level);
        true
    }

    /// Whether operations of this level may move tuples of the page.
    fn can_move(&self, page: Slot, level: u64) -> bool {
        let it = &self.pages[page];
        it.pending.is_empty() && !it.is_copying && !self.is_frozen(page, level)
    }

    fn remove_page(&mut self, page: Slot, level: u64) {
        let it = self.pages.remove(page);
        match it.before.is_none() {
            true => self.first = it.after,
            false => self.pages[it.before].after = it.after,
        }
        match it.after.is_none() {
            true => self.last = it.before,
            false => self.pages[it.after].before = it.before,
        }
        if it.is_stored {
            self.gone[(level & 1) as usize].push(it.number);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use stillpoint_format::ident::StoreId;
    use stillpoint_format::siren::PageBuilder;

    use stillpoint_io::{Rng, SeededRng};

    use super::super::copy::PENDING_A_TURN;
    use super::super::{Copied, Pending};
    use super::*;
    use crate::base::HeldBytes;
    use crate::config::Removes;

    const KEYS: u64 = 800;
    const CAPACITY: usize = 4000;

    /// The proxy of a key, and its versions, with whether they are committed.
    type Versions = (Arc<Proxy>, Vec<(Slot, bool)>);

    struct World {
        pages: Pages,
        tuples: Vec<Slot>,
        keys: Vec<Versions>,
    }

    impl World {
        fn new(removes: Removes) -> Self {
            let held = HeldBytes::of(StoreId([1; 16]));
            let pages = Pages::new((1, 1, 0), CAPACITY, removes, held);
            Self { pages, tuples: Vec::new(), keys: Vec::new() }
        }

        /// Adds, commits, replaces or removes a version of a key.
        fn step(&mut self, level: u64, rng: &SeededRng) {
            let key = rng.below(self.keys.len() as u64) as usize;
            let len = self.keys[key].1.len() as u64;
            match rng.below(4) {
                0 | 1 if len < 4 => {
                    let at = rng.below(len + 1) as usize;
                    let below = self.keys[..key].iter().rev().find_map(|(_, all)| all.last());
                    let before = self.keys[key].1[..at].last().or(below);
                    let before = before.map_or(Slot::NONE, |&(tuple, _)| tuple);
                    let value = vec![7; [20, 100, CAPACITY as u64][rng.below(3) as usize] as usize];
                    let proxy = &self.keys[key].0;
                    let tuple =
                        self.pages.add(level, before, proxy, Some(Arc::from(value)), (1, 1));
                    self.keys[key].1.insert(at, (tuple, false));
                }
                2 if len > 1 => {
                    let versions = &mut self.keys[key].1;
                    let (new, is_committed) = versions.pop().expect("two");
                    let (old, _) = versions.pop().expect("two");
                    let is_new = is_committed || !self.pages.replace(level, old, new);
                    if is_new {
                        self.pages.remove(level, old);
                        (!is_committed).then(|| self.pages.commit(level, new));
                    }
                    versions.push((if is_new { new } else { old }, true));
                }
                _ if len > 0 => {
                    let (tuple, _) = self.keys[key].1.remove(rng.below(len) as usize);
                    self.pages.remove(level, tuple);
                }
                _ => {}
            }
            self.pages.check().expect("sound pages");
            let shown = |tuple: &Slot| self.pages.tuples[*tuple].pending != Pending::Remove;
            let known = self.keys.iter().flat_map(|(_, all)| all.iter().map(|(tuple, _)| *tuple));
            assert!(self.pages.walk().filter(shown).eq(known), "out of order");
        }

        fn add(&mut self, level: u64, key: u64, previous: Slot) -> Slot {
            let (proxy, value) = (Proxy::new(&key.to_be_bytes()), Some(Arc::from(&[7][..])));
            let tuple = self.pages.add(level, previous, &proxy, value, (1, 1));
            self.pages.commit(level, tuple);
            self.tuples.push(tuple);
            tuple
        }

        fn places(&self) -> Vec<Option<Slot>> {
            let place = |&tuple: &Slot| self.pages.tuples.get(tuple).map(|tuple| tuple.page);
            self.tuples.iter().map(place).collect()
        }

        /// The checkpoint of a level, with `amid` after its begin. Gives the most tuples that a turn has moved.
        fn checkpoint(&mut self, level: u64, amid: impl FnOnce(&mut Self)) -> usize {
            let frozen = self.pages.settle(level + 1);
            amid(self);
            let mut moved_max = 0;
            for (page, number) in frozen.dirty {
                if !self.pages.begin_copy(page, number, level) {
                    continue;
                }
                let mut to = PageBuilder::default();
                while self.pages.copy_next(page, level, &mut to) == Copied::Partly {}
                while self.pages.make_permanent(page, level + 1) {}
                let (mut split, mut goes_on) = (None, true);
                while goes_on {
                    let before = self.places();
                    goes_on = self.pages.rebalance((page, number), level + 1, &mut split);
                    self.pages.check().expect("sound pages after each turn");
                    let pairs = before.iter().zip(self.places());
                    moved_max = moved_max.max(pairs.filter(|(old, new)| *old != new).count());
                }
            }
            moved_max
        }
    }

    /// Versions come behind any other one of their key, also where one hangs. They lie in order, and what hangs
    /// moves along.
    #[test]
    fn versions_lie_in_their_order() {
        for seed in 0..20 {
            let (rng, mut world) = (
                SeededRng::new(seed),
                World::new([Removes::Pend, Removes::ToPages][seed as usize % 2]),
            );
            world.keys.extend((0..40u64).map(|key| (Proxy::new(&key.to_be_bytes()), Vec::new())));
            for level in 1..5 {
                (0..100).for_each(|_| world.step(level, &rng));
                world.checkpoint(level, |world| (0..40).for_each(|_| world.step(level + 1, &rng)));
            }
        }
    }

    /// A turn of the checkpointer moves few tuples, however many a split or a join moves together.
    #[test]
    fn the_checkpointer_splits_and_joins_in_steps() {
        let mut world = World::new(Removes::Pend);
        let first = world.add(1, 0, Slot::NONE);
        world.add(1, KEYS, first);
        let moved = world.checkpoint(1, |world| {
            // Between two tuples of a frozen page, so that all of them gather there.
            (1..KEYS).fold(first, |previous, key| world.add(2, key, previous));
        });
        assert_eq!(moved, PENDING_A_TURN, "tuples that one turn of a split has moved");
        let before = world.pages.pages.len();
        let is_full = |page: Option<Slot>| world.pages.pages[page.expect("there")].bytes > CAPACITY;
        assert!(before > 3 && !world.places().into_iter().any(is_full));
        let moved = world.checkpoint(2, |world| {
            for (at, tuple) in std::mem::take(&mut world.tuples).into_iter().enumerate() {
                match at % 4 {
                    0 => world.tuples.push(tuple),
                    _ => world.pages.remove(3, tuple),
                }
            }
        });
        assert_eq!(moved, PENDING_A_TURN, "tuples that one turn of a join has moved");
        assert!(world.pages.pages.len() < before, "{before} pages before");
    }
}
