//! The contents of one simulated file: the present bytes, and for every sector written since the
//! last flush the possible older ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::crash::{Fate, Odds, Outcome};
use super::pages::{PAGE, Page, Pages, SECTOR, SECTORS, pages_of};
use crate::rng::{Rng, SeededRng};

/// Most remembered lengths of a file since its flush. Beyond this number a random one is dropped.
const LENGTHS_MAX: usize = 32;

#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// The content as readers see it. Bytes beyond `len` are zero.
    pages: Pages,
    len: u64,
    /// Pages below this number have space, written or not.
    reserved_pages: u64,
    durable_len: u64,
    /// Lengths between the durable one and the present one.
    lens_between: Vec<u64>,
    /// The sectors that a power loss leaves uncertain, by page number.
    doubts: BTreeMap<u64, Doubt>,
}

/// One page with uncertain sectors.
#[derive(Clone, Debug)]
struct Doubt {
    /// The page as it is on the disk; `None` is zeros.
    before: Option<Arc<Page>>,
    /// Sectors changed since the last flush.
    dirty: u8,
    /// Sectors whose flush failed. A later flush does not reach these sectors, since the page cache
    /// no longer holds them as dirty. Source: Rebello et al., "Can Applications Recover from fsync
    /// Failures?", USENIX ATC 2020.
    lost: u8,
    /// Sectors of both sets that were written with data. Only these sectors may tear; sectors of a
    /// cut file do not.
    written: u8,
    /// Number of the page's last write among all writes of the machine.
    order: u64,
    /// Values that sectors had between the durable and the present one, one for a sector.
    between: Vec<(usize, Box<[u8; SECTOR]>)>,
}

impl Doubt {
    fn sectors(&self) -> u8 {
        self.dirty | self.lost
    }

    /// A value that the sector had between the durable one and the present one.
    fn value_between(&self, sector: usize) -> Option<&[u8; SECTOR]> {
        let (_, value) = self.between.iter().find(|(number, _)| *number == sector)?;
        Some(value)
    }

    /// Fate of each sector in doubt.
    fn fates(&self, outcome: &Outcome, odds: &Odds, rng: &SeededRng) -> [Fate; SECTORS] {
        let mut fates = [Fate::New; SECTORS];
        for sector in sectors_of(self.sectors()) {
            let may_tear = self.written & (1 << sector) != 0;
            let between = self.value_between(sector).is_some();
            fates[sector] = outcome.fate_of_sector(odds, self.order, may_tear, between, rng);
        }
        fates
    }

    /// The page when its sectors in doubt do not all share one fate.
    fn mixture(
        &self,
        now: Option<&Page>,
        fates: &[Fate; SECTORS],
        outcome: &Outcome,
        rng: &SeededRng,
    ) -> Page {
        let mut page = page_or_zeros(now);
        for sector in sectors_of(self.sectors()) {
            let place = sector_mut(&mut page, sector);
            let old = sector_or_zeros(self.before.as_deref(), sector);
            *place = match fates[sector] {
                Fate::New => continue,
                Fate::Old => old,
                Fate::Between => *self.value_between(sector).unwrap_or(&old),
                Fate::Torn => outcome.tear(&old, place, rng),
            };
        }
        page
    }
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Pages of space that the file takes.
    pub(super) fn footprint_pages(&self) -> u64 {
        self.pages.present() + self.reserved_pages - self.pages.present_below(self.reserved_pages)
    }

    /// Sectors in doubt.
    pub(super) fn unflushed_sectors(&self) -> u64 {
        self.doubts.values().map(|doubt| u64::from(doubt.sectors().count_ones())).sum()
    }

    /// Number of the last write of the oldest page in doubt.
    pub(super) fn oldest_unflushed(&self) -> Option<u64> {
        self.doubts.values().map(|doubt| doubt.order).min()
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let left = self.len.saturating_sub(offset);
        let n = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        for (number, inside, range) in spans(offset, n) {
            match self.pages.get(number) {
                Some(page) => {
                    let end = inside + range.len();
                    buf[range].copy_from_slice(&page[inside..end]);
                }
                None => buf[range].fill(0),
            }
        }
        n
    }

    /// Writes until `free_pages` new pages are used up. Returns the bytes written.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        offset: u64,
        mut free_pages: u64,
        order: u64,
        rng: &SeededRng,
    ) -> usize {
        let mut written = 0;
        for (number, inside, range) in spans(offset, bytes.len()) {
            if self.pages.get(number).is_none() && number >= self.reserved_pages {
                if free_pages == 0 {
                    break;
                }
                free_pages -= 1;
            }
            let end = inside + range.len();
            self.doubt(number, inside / SECTOR..end.div_ceil(SECTOR), true, order, rng);
            written = range.end;
            if range.len() == PAGE {
                // A whole page needs no copy of its old bytes.
                let mut page = [0; PAGE];
                page.copy_from_slice(&bytes[range]);
                self.pages.set(number, Some(Arc::new(page)));
            } else {
                self.pages.page_mut(number)[inside..end].copy_from_slice(&bytes[range]);
            }
        }
        if written > 0 {
            self.change_len(self.len.max(offset + written as u64), rng);
        }
        written
    }

    pub(super) fn set_len(&mut self, len: u64, order: u64, rng: &SeededRng) {
        if len < self.len {
            let inside = (len % PAGE as u64) as usize;
            let kept = len / PAGE as u64;
            if inside > 0 && self.pages.get(kept).is_some() {
                self.doubt(kept, inside / SECTOR..SECTORS, false, order, rng);
                self.pages.page_mut(kept)[inside..].fill(0);
            }
            for number in self.pages.numbers_from(pages_of(len)) {
                self.doubt(number, 0..SECTORS, false, order, rng);
                self.pages.set(number, None);
            }
            self.reserved_pages = self.reserved_pages.min(pages_of(len));
        }
        self.change_len(len, rng);
    }

    /// Pages of space that reserving up to `len` would take.
    pub(super) fn pages_to_reserve(&self, len: u64) -> u64 {
        let (from, to) = (self.reserved_pages, pages_of(len));
        if to <= from {
            return 0;
        }
        (to - from) - (self.pages.present_below(to) - self.pages.present_below(from))
    }

    pub(super) fn allocate(&mut self, len: u64, rng: &SeededRng) {
        self.reserved_pages = self.reserved_pages.max(pages_of(len));
        self.change_len(self.len.max(len), rng);
    }

    /// Makes the present state durable, except for sectors that an earlier failure lost.
    pub(super) fn flush(&mut self) {
        let pages = &self.pages;
        self.doubts.retain(|&number, doubt| {
            if doubt.lost == 0 {
                return false;
            }
            let mut before = page_or_zeros(doubt.before.as_deref());
            let now = page_or_zeros(pages.get(number).map(|page| &**page));
            for sector in sectors_of(doubt.dirty) {
                let bytes = sector * SECTOR..(sector + 1) * SECTOR;
                before[bytes.clone()].copy_from_slice(&now[bytes]);
            }
            doubt.before = Some(Arc::new(before));
            let lost = doubt.lost;
            doubt.dirty = 0;
            doubt.written &= lost;
            doubt.between.retain(|(sector, _)| lost & (1 << sector) != 0);
            true
        });
        self.durable_len = self.len;
        self.lens_between.clear();
    }

    /// Notes a failed flush. The sectors of that flush stay in doubt, whatever later flushes
    /// return.
    pub(super) fn fail_flush(&mut self) {
        for doubt in self.doubts.values_mut() {
            doubt.lost |= doubt.dirty;
            doubt.dirty = 0;
        }
    }

    /// The contents after a power loss, drawn from `outcome`.
    pub(super) fn after_power_loss(&self, outcome: &Outcome, rng: &SeededRng) -> Content {
        let mut pages = self.pages.clone();
        let odds = outcome.odds_of_file(rng);
        for (&number, doubt) in &self.doubts {
            let now = self.pages.get(number);
            let fates = doubt.fates(outcome, &odds, rng);
            let doubtful = || sectors_of(doubt.sectors()).map(|sector| fates[sector]);
            // Most pages are whole, old or new, and stay shared.
            if doubtful().all(|fate| fate == Fate::New) {
                continue;
            }
            if doubtful().all(|fate| fate == Fate::Old) {
                pages.set(number, doubt.before.clone());
                continue;
            }
            let page = doubt.mixture(now.map(|page| &**page), &fates, outcome, rng);
            let empty = page == [0; PAGE];
            pages.set(number, (!empty).then(|| Arc::new(page)));
        }
        let mut lens = self.lens_between.clone();
        lens.extend([self.durable_len, self.len]);
        let len = outcome.pick_len(self.durable_len, self.len, &lens, rng);
        cut(&mut pages, len);
        Content {
            pages,
            len,
            reserved_pages: self.reserved_pages.min(pages_of(len)),
            durable_len: len,
            lens_between: Vec::new(),
            doubts: BTreeMap::new(),
        }
    }

    fn change_len(&mut self, len: u64, rng: &SeededRng) {
        if len == self.len {
            return;
        }
        if self.len != self.durable_len {
            if self.lens_between.len() == LENGTHS_MAX {
                self.lens_between.swap_remove(rng.below(LENGTHS_MAX as u64) as usize);
            }
            self.lens_between.push(self.len);
        }
        self.len = len;
    }

    /// Notes that sectors of a page are about to change.
    fn doubt(
        &mut self,
        number: u64,
        sectors: std::ops::Range<usize>,
        tearable: bool,
        order: u64,
        rng: &SeededRng,
    ) {
        let now = self.pages.get(number);
        let doubt = self.doubts.entry(number).or_insert_with(|| Doubt {
            before: now.cloned(),
            dirty: 0,
            lost: 0,
            written: 0,
            order,
            between: Vec::new(),
        });
        for sector in sectors {
            let bit = 1u8 << sector;
            if doubt.sectors() & bit != 0 {
                let value = sector_or_zeros(now.map(|page| &**page), sector);
                match doubt.between.iter_mut().find(|(number, _)| *number == sector) {
                    Some((_, kept)) if rng.below(2) == 0 => **kept = value,
                    Some(_) => {}
                    None => doubt.between.push((sector, Box::new(value))),
                }
            }
            doubt.dirty |= bit;
            doubt.lost &= !bit;
            if tearable {
                doubt.written |= bit;
            }
        }
        doubt.order = order;
    }
}

/// Splits a byte range of a file into pages: page number, first byte in the page, and position in
/// the range.
fn spans(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let inside = (at % PAGE as u64) as usize;
        let n = (PAGE - inside).min(len - done);
        done += n;
        Some((at / PAGE as u64, inside, done - n..done))
    })
}

/// The sectors in a set.
fn sectors_of(set: u8) -> impl Iterator<Item = usize> {
    (0..SECTORS).filter(move |sector| set & (1 << sector) != 0)
}

fn page_or_zeros(page: Option<&Page>) -> Page {
    page.copied().unwrap_or([0; PAGE])
}

fn sector_mut(page: &mut Page, sector: usize) -> &mut [u8; SECTOR] {
    &mut page.as_chunks_mut().0[sector]
}

fn sector_or_zeros(page: Option<&Page>, sector: usize) -> [u8; SECTOR] {
    page.map_or([0; SECTOR], |page| page.as_chunks().0[sector])
}

/// Zeroes everything beyond `len`.
fn cut(pages: &mut Pages, len: u64) {
    for number in pages.numbers_from(pages_of(len)) {
        pages.set(number, None);
    }
    let inside = (len % PAGE as u64) as usize;
    let last = len / PAGE as u64;
    let ragged = pages.get(last).is_some_and(|page| page[inside..].iter().any(|&byte| byte != 0));
    if inside > 0 && ragged {
        pages.page_mut(last)[inside..].fill(0);
    }
}
