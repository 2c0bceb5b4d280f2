//! A page store with a pool that holds every page, and an oracle that knows what a crash may leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::ident::StoreId;
use stillpoint_format::pages::{PageHeader, PageId};
use stillpoint_io::{Rng, SeededRng, SimDisk};
use stillpoint_mem::{Frames, words};
use stillpoint_sync::Mutex;

use crate::backing::{Copied, DirtyFrames, Purpose};
use crate::pages::{PageStore, PageStoreConfig, PagesError};

pub(super) const PAGE_BYTES: usize = 4096;
pub(super) const STORE: StoreId = StoreId(*b"the store's name");

pub(super) fn config(counts: Option<u64>) -> PageStoreConfig {
    let growth_bytes = 16 * PAGE_BYTES as u64;
    let (page_bytes, held_back, rollback) = (PAGE_BYTES, 8, 4);
    PageStoreConfig { store: STORE, page_bytes, growth_bytes, held_back, rollback, counts }
}

/// The bytes of a page after the change with this gsn.
pub(super) fn bytes_of(page: u64, gsn: u64) -> Vec<u8> {
    let rng = SeededRng::new(page << 32 ^ gsn);
    let mut bytes: Vec<u8> =
        (0..PAGE_BYTES / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    let header =
        PageHeader { checksum: 0, page: PageId(page), gsn, log: 0, table: 7, generation: 1 };
    bytes[..4].fill(0);
    for (at, word) in header.owner_words().iter().enumerate() {
        bytes[8 + at * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// A page of the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolPage {
    pub(super) gsn: u64,
    /// The gsn that the backing has; `None` if it has none.
    pub(super) persisted: Option<u64>,
    claimed: bool,
}

impl PoolPage {
    /// A page that no backing has.
    pub(super) fn new(gsn: u64) -> Self {
        Self { gsn, persisted: None, claimed: false }
    }
}

/// A pool that never gives a page up. The number of a frame is that of the page.
#[derive(Debug, Default)]
pub(super) struct Pool {
    pub(super) pages: Mutex<BTreeMap<u64, PoolPage>>,
    /// Pages that change right after they were copied.
    pub(super) busy: Mutex<BTreeSet<u64>>,
}

impl DirtyFrames for Pool {
    fn claim(&self, frame: u32) -> bool {
        let mut pages = self.pages.lock();
        let Some(held) = pages.get_mut(&u64::from(frame)) else { return false };
        let claims = !held.claimed && held.persisted != Some(held.gsn);
        held.claimed |= claims;
        claims
    }

    fn copy(&self, frame: u32, out: &mut [u8]) -> Option<Copied> {
        let page = u64::from(frame);
        let mut pages = self.pages.lock();
        let held = pages.get_mut(&page)?;
        assert!(held.claimed, "only claimed frames are copied");
        let gsn = held.gsn;
        out.copy_from_slice(&bytes_of(page, gsn));
        if self.busy.lock().contains(&page) {
            held.gsn += 1;
        }
        Some(Copied { page, stamp: Stamp::new(gsn, 0) })
    }

    fn placed(&self, frame: u32, gsn: u64) {
        if let Some(held) = self.pages.lock().get_mut(&u64::from(frame)) {
            held.persisted = Some(gsn);
        }
    }

    fn release(&self, frame: u32) {
        if let Some(held) = self.pages.lock().get_mut(&u64::from(frame)) {
            assert!(held.claimed, "released once");
            held.claimed = false;
        }
    }
}

/// What a map on the disk has: pages with their gsns, and pages that may be there.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    /// Number of the round. `None` for the empty store.
    pub(super) number: Option<u64>,
    pub(super) pages: BTreeMap<u64, u64>,
}

/// The store, its pool and its oracle.
pub(super) struct World {
    pub(super) disk: SimDisk,
    pub(super) store: Arc<PageStore>,
    pub(super) pool: Pool,
    /// What a crash leaves: named by the MANIFEST.
    pub(super) counts: Image,
    /// The round that was written and does not count yet.
    pub(super) open: Option<Image>,
    /// Freed pages: the number of rounds begun since, and the gsn that their slots have.
    freed: BTreeMap<u64, (u32, Option<u64>)>,
    /// The greatest gsn that each number of a page has had.
    gsns: BTreeMap<u64, u64>,
    clock: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        let store = PageStore::open(&disk, config(None)).expect("an empty store");
        Self {
            disk,
            store,
            pool: Pool::default(),
            counts: Image::default(),
            open: None,
            freed: BTreeMap::new(),
            gsns: BTreeMap::new(),
            clock: 0,
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(super) fn allocate(&mut self) -> Result<u64, PagesError> {
        let new = self.store.allocate_page()?;
        let had = self.gsns.get(&new.page).copied().unwrap_or(0);
        assert!(new.above >= had, "page {} begins above {}, it had {had}", new.page, new.above);
        let is_new = !self.pool.pages.lock().contains_key(&new.page);
        assert!(is_new && !self.freed.contains_key(&new.page), "page {} is in use", new.page);
        self.clock = self.clock.max(new.above);
        self.make(new.page);
        Ok(new.page)
    }

    /// Makes a page with this number.
    pub(super) fn make(&mut self, page: u64) {
        let gsn = self.tick();
        self.pool.pages.lock().insert(page, PoolPage::new(gsn));
        self.gsns.insert(page, gsn);
    }

    pub(super) fn change(&mut self, page: u64) {
        let gsn = self.tick();
        self.pool.pages.lock().get_mut(&page).expect("a page").gsn = gsn;
        self.gsns.insert(page, gsn);
    }

    pub(super) fn free(&mut self, page: u64) {
        let gsn = self.tick();
        let freed = self.pool.pages.lock().remove(&page).expect("a page");
        self.gsns.insert(page, gsn);
        self.freed.insert(page, (0, freed.persisted));
        self.store.free_page(PageId(page), Stamp::new(gsn, 0));
    }

    /// Writes frames back. A failure advances nothing.
    pub(super) fn write(&self, frames: &[u32], purpose: Purpose) -> Result<usize, PagesError> {
        let persisted = || -> Vec<Option<u64>> {
            self.pool.pages.lock().values().map(|held| held.persisted).collect()
        };
        let before = persisted();
        let result = self.store.write_frames(&self.pool, frames, purpose);
        if result.is_err() {
            assert_eq!(persisted(), before, "a failed write-back advances nothing");
        }
        result
    }

    pub(super) fn dirty(&self) -> Vec<u32> {
        let pages = self.pool.pages.lock();
        let dirty = pages.iter().filter(|(_, held)| held.persisted != Some(held.gsn));
        dirty.map(|(page, _)| *page as u32).collect()
    }

    /// Writes a round. The image has what is placed now, and pages freed too lately to leave.
    pub(super) fn begin_round(&mut self) -> Result<(), PagesError> {
        let mut image = Image::default();
        for (page, held) in &*self.pool.pages.lock() {
            image.pages.extend(held.persisted.map(|gsn| (*page, gsn)));
        }
        for (page, (rounds, persisted)) in &mut self.freed {
            *rounds += 1;
            // A page freed since the round before is in the image, if it has a slot.
            image.pages.extend(persisted.filter(|_| *rounds == 1).map(|gsn| (*page, gsn)));
        }
        image.number = Some(self.store.write_round()?);
        self.open = Some(image);
        Ok(())
    }

    pub(super) fn end_round(&mut self, counts: bool) -> Result<(), PagesError> {
        let Some(image) = self.open.take() else { return Ok(()) };
        let number = image.number.expect("a number");
        if counts {
            self.counts = image;
            self.freed.retain(|_, (rounds, _)| *rounds < 2);
        }
        self.store.round_ended(number, counts)
    }

    /// Cuts the power, opens what is left, and compares.
    pub(super) fn crash(&mut self, seed: u64) -> Result<(), PagesError> {
        self.disk = self.disk.crash(seed);
        self.store = PageStore::open(&self.disk, config(self.counts.number))?;
        self.open = None;
        self.freed.clear();
        self.gsns.clear();
        let mut pages = BTreeMap::new();
        for (page, gsn) in &self.counts.pages {
            assert_eq!(self.read(*page)?, *gsn, "page {page}");
            pages.insert(*page, PoolPage { gsn: *gsn, persisted: Some(*gsn), claimed: false });
        }
        assert_eq!(self.store.stats().pages, pages.len() as u64, "no other page has a slot");
        self.pool = Pool { pages: Mutex::new(pages), ..Pool::default() };
        self.check()
    }

    /// Reads a page that has a place. Returns its gsn, once the whole page is that of the gsn.
    pub(super) fn read(&self, page: u64) -> Result<u64, PagesError> {
        let frames = Frames::new(1, PAGE_BYTES)?;
        let read = self.store.read(PageId(page), frames.target(0))?;
        crate::backing::PendingRead::wait(&read);
        read.check_page()?;
        let mut bytes = vec![0; PAGE_BYTES];
        words::read_into(frames.words(0), 0, &mut bytes);
        let gsn = PageHeader::read(&bytes).expect("a header").gsn;
        assert_eq!(bytes, bytes_of(page, gsn), "page {page} of gsn {gsn}");
        Ok(gsn)
    }

    /// Compares every clean page with the disk, and checks all slots.
    pub(super) fn check(&self) -> Result<(), PagesError> {
        let placed: Vec<(u64, u64)> = (self.pool.pages.lock().iter())
            .filter_map(|(page, held)| Some((*page, held.persisted?)))
            .collect();
        for (page, gsn) in placed {
            assert_eq!(self.read(page)?, gsn, "page {page}");
        }
        let mut defects = Vec::new();
        self.store.check_pages(
            |_| Ok(()),
            |defect| {
                // A crash may have torn the copy that does not count.
                if !matches!(defect, PagesError::MapCopy { .. }) {
                    defects.push(defect.to_string());
                }
            },
        )?;
        assert!(self.disk.is_dead() || defects.is_empty(), "{defects:?}");
        Ok(())
    }
}
