//! The lists of tuples and pages: links, splits and joins.

use super::{JOIN_PERCENT, Page, Pages};
use crate::slab::Slot;

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

    /// Links a tuple behind `previous`, or as the first one of the page.
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

    pub(super) fn unlink(&mut self, tuple: Slot) {
        let it = &self.tuples[tuple];
        let (page, before, after) = (it.page, it.before, it.after);
        match before.is_none() {
            true => self.pages[page].first = after,
            false => self.tuples[before].after = after,
        }
        match after.is_none() {
            true => self.pages[page].last = before,
            false => self.tuples[after].before = before,
        }
        if self.pages[page].cursor == tuple {
            self.pages[page].cursor = after;
        }
    }

    /// Splits the front half of an overfull page off, at most one page of it. `false` if the page is
    /// not too full, or if its tuples may not move.
    pub(super) fn split(&mut self, page: Slot, level: u64) -> bool {
        let it = &self.pages[page];
        let is_overfull = it.bytes > self.capacity && it.tuples > 1;
        if !is_overfull || !self.can_move(page, level) {
            return false;
        }
        let wanted = (it.bytes / 2).min(self.capacity);
        let front = self.create_page(level, it.before);
        let mut moved = 0;
        while self.pages[page].tuples > 1 {
            let tuple = self.pages[page].first;
            let bytes = self.tuples[tuple].bytes();
            if moved > 0 && moved + bytes > wanted {
                break;
            }
            self.move_to_end(tuple, front);
            moved += bytes;
        }
        self.mark_dirty(page, level);
        true
    }

    /// Moves a tuple to the end of another page.
    fn move_to_end(&mut self, tuple: Slot, to: Slot) {
        let from = self.tuples[tuple].page;
        self.count_out(from, tuple);
        self.unlink(tuple);
        let last = self.pages[to].last;
        self.link(to, last, tuple);
        self.count_in(to, tuple);
    }

    /// Removes an empty page, or joins the page with a neighbour if they have few tuples together.
    /// Returns whether it did.
    pub(super) fn join(&mut self, page: Slot, level: u64) -> bool {
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
        while !self.pages[back].first.is_none() {
            let tuple = self.pages[back].first;
            self.move_to_end(tuple, front);
        }
        self.mark_dirty(front, level);
        self.remove_page(back, level);
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
