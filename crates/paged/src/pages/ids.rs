//! Numbers of pages, and when one may be used again.
//!
//! A freed page stays in the map until no replay can meet an older record of it. A replay begins at
//! the positions that were taken before the round of the map that counts. So the page leaves the map
//! with the second round after its freeing, and its number is free once that round counts. A page that a
//! replay makes anew, or does not need, leaves with the first one.

use std::collections::BTreeSet;

use stillpoint_format::Stamp;
use stillpoint_format::pages::PageId;
use stillpoint_sync::mutant;

use super::bits::{Bits, absent_run};
use super::planted;
use crate::backing::NewPage;

/// The numbers in use.
#[derive(Clone, Debug, Default)]
pub(super) struct PageIds {
    taken: Bits,
    freed: Vec<Freed>,
    /// Pages that have left the map, and whose numbers are not free yet.
    left: BTreeSet<PageId>,
    /// The greatest gsn of a freeing whose page may be used again.
    above: u64,
    /// All numbers from the first on below this one are taken.
    cursor: u64,
}

/// A page that was freed.
#[derive(Clone, Debug)]
struct Freed {
    page: PageId,
    /// Stamp of the page's last change.
    stamp: Stamp,
    stage: Stage,
}

/// How far the freeing of a page has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No round has begun since.
    New,
    /// One round has begun since, which still has the page.
    Old,
    /// A round has begun that lacks the page.
    Left,
}

impl PageIds {
    /// Takes this number: the map or a repeated record has the page.
    pub(super) fn take(&mut self, page: PageId) {
        self.taken.add(page.0);
    }

    /// Takes the freeing of a page back: a repeated record has made it anew. False if it was not freed.
    pub(super) fn keep(&mut self, page: PageId) -> bool {
        let before = self.freed.len();
        self.freed.retain(|freed| freed.page != page);
        self.freed.len() < before
    }

    /// Whether the number is in use. Those of roots always are.
    pub(super) fn is_taken(&self, page: PageId) -> bool {
        page < PageId::FIRST || self.taken.has(page.0)
    }

    /// Takes the smallest free number.
    pub(super) fn allocate(&mut self) -> NewPage {
        let none = Bits::default();
        let from = self.cursor.max(PageId::FIRST.0);
        let run = absent_run([&self.taken, &none, &none], from..u64::MAX, 1);
        let page = run.map_or(from, |run| run.start);
        self.taken.add(page);
        self.cursor = page + 1;
        // The first record of the page must have a greater gsn. So no change that the number had in
        // an earlier life is taken for one of this life.
        NewPage { page, above: mutant!(self.above, PageIdTooEarly => 0) }
    }

    /// Notes that a page was freed whose last change has this stamp.
    pub(super) fn free(&mut self, page: PageId, stamp: Stamp) {
        debug_assert!(self.is_taken(page), "page {page} does not exist");
        self.freed.push(Freed {
            page,
            stamp,
            stage: mutant!(Stage::New, FreedTooEarly => Stage::Old),
        });
    }

    /// As [`free`](Self::free), of a page that may leave the map with the next round.
    pub(super) fn free_at_once(&mut self, page: PageId, stamp: Stamp) {
        debug_assert!(self.is_taken(page), "page {page} does not exist");
        self.freed.push(Freed { page, stamp, stage: Stage::Old });
    }

    /// A round of the map begins. Returns the pages that leave the map with it.
    pub(super) fn begin_round(&mut self) -> Vec<PageId> {
        let mut leaving = Vec::new();
        for freed in &mut self.freed {
            freed.stage = match freed.stage {
                Stage::New => Stage::Old,
                Stage::Old => {
                    leaving.push(freed.page);
                    self.left.insert(freed.page);
                    Stage::Left
                }
                Stage::Left => Stage::Left,
            };
        }
        leaving
    }

    /// Whether the page has left the map, or has been freed for good.
    pub(super) fn has_left(&self, page: PageId) -> bool {
        !self.is_taken(page) || self.left.contains(&page)
    }

    /// The last round counts: the numbers of pages that it lacks are free.
    pub(super) fn round_counts(&mut self) {
        for freed in self.freed.extract_if(.., |freed| freed.stage == Stage::Left) {
            self.taken.remove(freed.page.0);
            self.left.remove(&freed.page);
            self.above = self.above.max(freed.stamp.gsn());
            self.cursor = self.cursor.min(freed.page.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_made_again_stays() {
        let mut ids = PageIds::default();
        let page = PageId(ids.allocate().page);
        ids.free_at_once(page, Stamp::new(9, 0));
        assert!(ids.keep(page) && !ids.keep(page));
        assert_eq!(ids.begin_round(), []);
        ids.free_at_once(page, Stamp::new(9, 0));
        assert_eq!(ids.begin_round(), [page], "a replay makes it anew before it needs it");
    }

    #[test]
    fn a_number_comes_back_once_a_round_counts_that_lacks_the_page() {
        let first = PageId::FIRST;
        let mut ids = PageIds::default();
        ids.take(PageId(first.0 + 1));
        assert_eq!(ids.allocate(), NewPage { page: first.0, above: 0 });
        assert_eq!(ids.allocate().page, first.0 + 2);
        ids.free(first, Stamp::new(17, 1));
        assert_eq!(ids.begin_round(), [], "a replay from before the round may meet the page");
        ids.round_counts();
        assert!(ids.is_taken(first) && !ids.has_left(first));
        assert_eq!(ids.begin_round(), [first]);
        assert!(ids.is_taken(first) && ids.has_left(first));
        assert_eq!(ids.begin_round(), [], "after a round that was given up");
        assert_eq!(ids.allocate().page, first.0 + 3);
        ids.round_counts();
        assert!(!ids.is_taken(first));
        assert_eq!(ids.allocate(), NewPage { page: first.0, above: 17 });
        assert_eq!(ids.allocate(), NewPage { page: first.0 + 4, above: 17 });
    }
}
