//! The bytes of a simulated file as shared pages. A copy of a file raises a few reference counts. A
//! page is copied when one of its owners writes to it.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Smallest unit that a disk writes, in bytes.
pub(super) const SECTOR: usize = 512;
/// Unit of sharing and of space, in bytes.
pub(super) const PAGE: usize = 4096;
/// Number of sectors in a page. A set of sectors is a byte with one bit for each sector.
pub(super) const SECTORS: usize = PAGE / SECTOR;
const LEAF: u64 = 64;

/// The bytes of one page.
pub(super) type Page = [u8; PAGE];

/// Pages by number; a missing one reads as zeros.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    leaves: BTreeMap<u64, Arc<Leaf>>,
}

#[derive(Clone, Debug)]
struct Leaf {
    pages: [Option<Arc<Page>>; LEAF as usize],
    /// How many pages are present.
    present: u64,
}

impl Default for Leaf {
    fn default() -> Self {
        Self { pages: [const { None }; LEAF as usize], present: 0 }
    }
}

impl Pages {
    pub(super) fn get(&self, number: u64) -> Option<&Arc<Page>> {
        self.leaves.get(&(number / LEAF))?.pages[(number % LEAF) as usize].as_ref()
    }

    pub(super) fn set(&mut self, number: u64, page: Option<Arc<Page>>) {
        if page.is_none() && self.get(number).is_none() {
            return;
        }
        let leaf = Arc::make_mut(self.leaves.entry(number / LEAF).or_default());
        let slot = &mut leaf.pages[(number % LEAF) as usize];
        leaf.present += u64::from(page.is_some());
        leaf.present -= u64::from(slot.is_some());
        *slot = page;
        if leaf.present == 0 {
            self.leaves.remove(&(number / LEAF));
        }
    }

    /// The page for writing: made of zeros if missing, copied if shared.
    pub(super) fn page_mut(&mut self, number: u64) -> &mut Page {
        let leaf = Arc::make_mut(self.leaves.entry(number / LEAF).or_default());
        let slot = &mut leaf.pages[(number % LEAF) as usize];
        leaf.present += u64::from(slot.is_none());
        Arc::make_mut(slot.get_or_insert_with(|| Arc::new([0; PAGE])))
    }

    /// Numbers of the pages that are there, from `first` on.
    pub(super) fn numbers_from(&self, first: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        for (&leaf_number, leaf) in self.leaves.range(first / LEAF..) {
            let present = leaf.pages.iter().enumerate().filter(|(_, page)| page.is_some());
            numbers.extend(
                present
                    .map(|(i, _)| leaf_number * LEAF + i as u64)
                    .filter(|&number| number >= first),
            );
        }
        numbers
    }

    /// Pages that are there.
    pub(super) fn present(&self) -> u64 {
        self.leaves.values().map(|leaf| leaf.present).sum()
    }

    /// Pages that are there with a number below `end`.
    pub(super) fn present_below(&self, end: u64) -> u64 {
        let whole: u64 = self.leaves.range(..end / LEAF).map(|(_, leaf)| leaf.present).sum();
        let ragged = self.leaves.get(&(end / LEAF)).map_or(0, |leaf| {
            leaf.pages[..(end % LEAF) as usize].iter().filter(|page| page.is_some()).count()
        });
        whole + ragged as u64
    }
}

/// Pages that `bytes` bytes from the start of a file touch.
pub(super) fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_sets_and_copies_do_not_share_changes() {
        let mut pages = Pages::default();
        for number in [0, 1, 63, 64, 200, 1 << 40] {
            pages.page_mut(number)[0] = 1;
        }
        pages.set(1, None);
        pages.set(1, None);
        assert_eq!(pages.present(), 5);
        assert_eq!([0, 1, 63, 64, 65, 201].map(|end| pages.present_below(end)), [0, 1, 1, 2, 3, 4]);
        assert_eq!(pages.numbers_from(63), [63, 64, 200, 1 << 40]);
        let copy = pages.clone();
        pages.page_mut(64)[0] = 2;
        assert_eq!((copy.get(64).expect("there")[0], pages.get(64).expect("there")[0]), (1, 2));
        for number in pages.numbers_from(0) {
            pages.set(number, None);
        }
        assert!(pages.leaves.is_empty() && copy.present() == 5);
    }
}
