//! The check of a table's pages: links, order, counts, pending operations.

use super::{Pages, Pending};
use crate::slab::Slot;

impl Pages {
    /// Tuples that a version may name: all but those with a pending remove.
    pub(crate) fn visible(&self) -> usize {
        let removed = self.walk().filter(|tuple| self.tuples[*tuple].pending == Pending::Remove);
        self.tuples.len() - removed.count()
    }

    /// All tuples, in the order of the lists.
    pub(super) fn walk(&self) -> impl Iterator<Item = Slot> {
        let next_page = |page: &Slot| Some(self.pages[*page].after).filter(|it| !it.is_none());
        let first = Some(self.first).filter(|it| !it.is_none());
        std::iter::successors(first, next_page).flat_map(|page| self.tuples_of(page))
    }

    fn tuples_of(&self, page: Slot) -> impl Iterator<Item = Slot> {
        let next = |tuple: &Slot| Some(self.next(*tuple)).filter(|it| !it.is_none());
        std::iter::successors(Some(self.pages[page].first).filter(|it| !it.is_none()), next)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let fail = |what: String| Err(format!("table {}: {what}", self.table));
        let (mut page, mut before, mut pages) = (self.first, Slot::NONE, 0);
        while !page.is_none() {
            let it = &self.pages[page];
            if it.before != before {
                return fail(format!("page {} is linked to another one before", it.number));
            }
            self.check_page(page).or_else(|what| fail(format!("page {}: {what}", it.number)))?;
            (before, page) = (page, it.after);
            pages += 1;
        }
        let tuples: Vec<Slot> = self.walk().collect();
        if (self.last, pages, tuples.len()) != (before, self.pages.len(), self.tuples.len()) {
            return fail("pages or tuples are in no list".to_owned());
        }
        // Whoever adds a tuple does not find one with a pending remove, and may come before it.
        let shown = |tuple: &&Slot| self.tuples[**tuple].pending != Pending::Remove;
        let keys = tuples.iter().filter(shown).map(|tuple| &*self.proxy(*tuple).key);
        match keys.is_sorted() {
            true => Ok(()),
            false => fail("tuples are out of order".to_owned()),
        }
    }

    fn check_page(&self, page: Slot) -> Result<(), String> {
        let it = &self.pages[page];
        let (mut before, mut bytes, mut count, mut pending) = (Slot::NONE, 0, 0, 0);
        for tuple in self.tuples_of(page) {
            let at = &self.tuples[tuple];
            // One that hangs is behind the one that knows it, or its list ends there.
            if (at.before, at.page) != (before, page) || at.hangs() && !at.newer.is_none() {
                return Err("a tuple is linked wrongly".to_owned());
            }
            if at.pending != Pending::Nothing {
                pending += 1;
                if it.pending.get(at.pending_at as usize) != Some(&tuple) {
                    return Err("a pending operation is not in the list".to_owned());
                }
            }
            if at.pending != Pending::Add {
                bytes += self.bytes(tuple);
                count += 1;
            }
            if !at.hangs() {
                before = tuple;
            }
        }
        if it.last != before || (it.bytes, it.tuples) != (bytes, count) {
            return Err(format!("{bytes} bytes counted, {} noted", it.bytes));
        }
        if it.pending.len() != pending {
            return Err(format!("{pending} pending operations, {} listed", it.pending.len()));
        }
        let is_listed = |level: u64| self.dirty[(level & 1) as usize].contains(&(page, it.number));
        if it.dirty == self.settled && !is_listed(it.dirty) {
            return Err("a dirty page is in no list".to_owned());
        }
        Ok(())
    }
}
