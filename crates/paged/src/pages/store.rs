//! The page store: opening, rounds of the map, growth, numbers of pages.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::ident::StoreId;
use stillpoint_format::names::PAGES_DIR;
use stillpoint_format::pages::{
    MAP_BLOCK_ENTRIES, MapHeader, PAGE_BYTES_MAX, PAGE_BYTES_MIN, PageId, SLOTS_MAX,
    pages_data_path, pages_map_path,
};
use stillpoint_format::{DecodeError, Stamp};
use stillpoint_io::{AlignedBuf, Caching, Disk, DiskError, DiskFile, DiskResult, OpenMode, Queue};
use stillpoint_sync::Mutex;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::mutant;

use super::bits::Bits;
use super::error::PagesError;
use super::ids::PageIds;
use super::map::PageMap;
use super::map_file::{LoadedMap, MapFile};
use super::planted;
use super::slots::Slots;
use crate::backing::{NewPage, OnFailure};

/// Bytes by which the data file grows, if nothing else is said.
pub const GROWTH_BYTES: u64 = 64 << 20;
/// Bytes of one write of zeros.
const ZEROS_BYTES: usize = 1 << 20;
/// Transfers under way at a time.
const QUEUE_DEPTH: usize = 256;

/// How a page store is opened.
#[derive(Clone, Copy, Debug)]
pub struct PageStoreConfig {
    /// The store.
    pub store: StoreId,
    /// Bytes of a page: a power of two from 4 KiB to 64 KiB.
    pub page_bytes: usize,
    /// The data file grows by so many bytes of zeros, ahead of need.
    pub growth_bytes: u64,
    /// Most slots that new pages, evictions and rollbacks leave free. A checkpoint then finds a slot for
    /// each dirty frame. So these are the number of frames, and a batch more.
    pub held_back: u64,
    /// Most further slots that new pages and writes leave to reads and rollbacks: the number of frames, which
    /// reads may evict, and a batch more.
    pub rollback: u64,
    /// The round of the map that the MANIFEST names. `None` for an empty store: leftover files are
    /// removed.
    pub counts: Option<u64>,
}

/// Figures of a page store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageStoreStats {
    /// Pages with a slot.
    pub pages: u64,
    /// Slots of the data file.
    pub slots: u64,
    /// Free slots.
    pub slots_free: u64,
    /// Pages read since the start.
    pub reads: u64,
    /// Pages written since the start.
    pub writes: u64,
}

/// Pages on a disk.
#[derive(Debug)]
pub struct PageStore {
    pub(super) config: PageStoreConfig,
    pub(super) data: Arc<dyn DiskFile>,
    pub(super) queue: Arc<Queue>,
    pub(super) map: PageMap,
    pub(super) space: Mutex<Space>,
    map_file: Mutex<MapFile>,
    pub(super) map_path: PathBuf,
    /// Copies of map blocks that the start could not use. Their other copies are whole.
    pub(super) unused_copies: Vec<DecodeError>,
    /// Held during a write-back. One at a time keeps the order of its steps.
    pub(super) writing: Mutex<Vec<AlignedBuf>>,
    failure: Mutex<Failure>,
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
}

/// Why the store takes no further write, and who hears of it.
#[derive(Default)]
struct Failure {
    reason: Option<String>,
    tell: Option<OnFailure>,
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

/// What changes with the places of pages.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) slots: Slots,
    pub(super) ids: PageIds,
    /// Pages that exist and have no slot yet.
    pub(super) unplaced: u64,
}

impl PageStore {
    /// Opens the pages of a store, in `pages/` of the disk. Without a round that counts, leftover
    /// files are removed. Otherwise an error leaves everything as it is.
    ///
    /// # Errors
    /// A damaged map, one that contradicts the MANIFEST, or an error of the disk.
    ///
    /// # Panics
    /// If the size of a page is none.
    pub fn open(disk: &dyn Disk, config: PageStoreConfig) -> Result<Arc<Self>, PagesError> {
        Self::open_as(disk, config, OpenMode::ReadWrite)
    }

    /// As [`open`](Self::open), and writes nothing: works on a disk that is read-only.
    ///
    /// # Errors
    /// As [`open`](Self::open); a write to the store.
    ///
    /// # Panics
    /// If the size of a page is none, or no round counts.
    pub fn open_to_read(disk: &dyn Disk, config: PageStoreConfig) -> Result<Arc<Self>, PagesError> {
        assert!(config.counts.is_some(), "an empty store has no files");
        Self::open_as(disk, config, OpenMode::Read)
    }

    fn open_as(
        disk: &dyn Disk,
        config: PageStoreConfig,
        mode: OpenMode,
    ) -> Result<Arc<Self>, PagesError> {
        let sizes = PAGE_BYTES_MIN..=PAGE_BYTES_MAX;
        let is_size = sizes.contains(&config.page_bytes) && config.page_bytes.is_power_of_two();
        assert!(is_size, "{} bytes are no page", config.page_bytes);
        let queue = Queue::of(disk, "pages", QUEUE_DEPTH)?;
        let map = PageMap::new();
        let paths = [pages_data_path(), pages_map_path()];
        let mut unused_copies = Vec::new();
        let (data, map_file, slots, ids) = match config.counts {
            None => {
                let [data, map_file] = create(disk, &paths)?;
                let map_file = MapFile::empty(map_file, queue.clone(), config.store);
                (data, map_file, Slots::default(), PageIds::default())
            }
            Some(counts) => {
                let [data, map_file] = open(disk, &paths, mode)?;
                let loaded = MapFile::load(map_file, queue.clone(), config.store, counts, &map)?;
                let (slots, ids) = named_by(&config, &*data, &loaded, &map)?;
                unused_copies = loaded.unused_copies;
                (data, loaded.file, slots, ids)
            }
        };
        Ok(Arc::new(Self {
            config,
            map_path: map_file.path(),
            unused_copies,
            data,
            queue,
            map,
            space: Mutex::new(Space { slots, ids, unplaced: 0 }),
            map_file: Mutex::new(map_file),
            writing: Mutex::new(Vec::new()),
            failure: Mutex::default(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        }))
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.config.page_bytes
    }

    /// Figures.
    pub fn stats(&self) -> PageStoreStats {
        let (slots, slots_free) = {
            let space = self.space.lock();
            (space.slots.count(), space.slots.free())
        };
        // Relaxed: counts.
        let (reads, writes) = (self.reads.load(Relaxed), self.writes.load(Relaxed));
        PageStoreStats { pages: self.map.placed(), slots, slots_free, reads, writes }
    }

    /// Refuses writes after a failure.
    pub(super) fn check_alive(&self) -> Result<(), PagesError> {
        match &self.failure.lock().reason {
            Some(reason) => Err(PagesError::Failed(reason.clone())),
            None => Ok(()),
        }
    }

    /// Passes a result of the disk on. An error is final.
    pub(super) fn or_fail<T>(&self, result: DiskResult<T>) -> Result<T, PagesError> {
        result.map_err(|error| {
            let mut failure = self.failure.lock();
            if failure.reason.is_none() {
                let reason = failure.reason.insert(error.to_string()).clone();
                failure.tell.iter().for_each(|tell| tell(&reason));
            }
            PagesError::Disk(error)
        })
    }

    /// The error of a file that cannot grow. It is final unless the disk is full.
    fn full(&self, wanted: u64, error: DiskError) -> PagesError {
        match error.is_disk_full() {
            true => PagesError::Full { wanted, reason: error.to_string() },
            false => self.or_fail::<()>(Err(error)).expect_err("it has failed"),
        }
    }

    /// Calls `tell` once a write or a flush has failed.
    pub(super) fn on_failure(&self, tell: OnFailure) {
        let mut failure = self.failure.lock();
        failure.reason.iter().for_each(|reason| tell(reason));
        failure.tell = Some(tell);
    }

    /// A number for a new page.
    ///
    /// # Errors
    /// [`PagesError::Full`]: neither the file nor the disk has room for the page beyond the slots that
    /// are held back.
    pub fn allocate_page(&self) -> Result<NewPage, PagesError> {
        self.check_alive()?;
        // A new page finds a slot when it is evicted, too.
        let unplaced = self.space.lock().unplaced;
        self.have_free(self.held_back(1) + self.rollback_slots() + unplaced + 1)?;
        let mut space = self.space.lock();
        space.unplaced += 1;
        Ok(space.ids.allocate())
    }

    /// Takes the number of a page: a repeated record has made the page.
    pub fn take_page(&self, page: PageId) {
        let mut space = self.space.lock();
        let was_freed = space.ids.keep(page);
        if was_freed && self.map.entry(page).is_none() {
            space.unplaced += 1;
        }
        if !space.ids.is_taken(page) {
            space.ids.take(page);
            space.unplaced += 1;
        }
    }

    /// Gives a page up whose last change has this stamp. Its slot and its number stay until no replay
    /// can need them.
    pub fn free_page(&self, page: PageId, stamp: Stamp) {
        let mut space = self.space.lock();
        if self.map.entry(page).is_none() {
            space.unplaced = space.unplaced.saturating_sub(1);
        }
        space.ids.free(page, stamp);
    }

    /// Gives pages up that a replay makes anew before it needs them. They leave the map with the next round.
    pub(super) fn free_pages(&self, pages: &[u64], stamp: Stamp) {
        let mut space = self.space.lock();
        for page in pages.iter().map(|&page| PageId(page)) {
            if self.map.entry(page).is_none() {
                space.unplaced = space.unplaced.saturating_sub(1);
            }
            space.ids.free_at_once(page, stamp);
        }
    }

    /// Slots that a checkpoint may need: one for each page, so many further ones included, but no
    /// more than the configured number.
    pub(super) fn held_back(&self, further: u64) -> u64 {
        let pages = self.map.placed() + self.space.lock().unplaced + further;
        pages.min(self.config.held_back)
    }

    /// Slots with which reads and rollbacks go on, for what they evict.
    pub(super) fn rollback_slots(&self) -> u64 {
        self.map.placed().min(self.config.rollback)
    }

    /// Whether all slots that are held back are free.
    pub(super) fn has_reserve(&self) -> bool {
        let held_back = self.held_back(0) + self.rollback_slots();
        self.space.lock().slots.free() >= held_back
    }

    /// Grows the file until all slots that are held back are free.
    ///
    /// # Errors
    /// [`PagesError::Full`].
    pub(super) fn have_reserve(&self) -> Result<(), PagesError> {
        self.check_alive()?;
        self.have_free(self.held_back(0) + self.rollback_slots())
    }

    /// Grows the file until so many slots are free.
    ///
    /// # Errors
    /// [`PagesError::Full`].
    pub(super) fn have_free(&self, wanted: u64) -> Result<(), PagesError> {
        if self.space.lock().slots.free() >= wanted {
            return Ok(());
        }
        // One thread grows the file. The others find the room.
        let mut map_file = self.map_file.lock();
        loop {
            let (count, free) = {
                let space = self.space.lock();
                (space.slots.count(), space.slots.free())
            };
            if free >= wanted {
                return Ok(());
            }
            let missing = wanted - free;
            // The map has room for the pages before the slots are there. So a round finds room also
            // on a disk that is full by then.
            let pages = PageId::FIRST.0 + count + missing + self.config.held_back;
            let blocks = pages / MAP_BLOCK_ENTRIES as u64 + 1;
            map_file.make_room(blocks).map_err(|error| self.full(missing, error))?;
            self.grow(count, missing)?;
        }
    }

    /// Adds slots of zeros behind `count` slots: one growth step at least, if the disk has room for
    /// it, else as many as are missing.
    fn grow(&self, count: u64, missing: u64) -> Result<(), PagesError> {
        let page_bytes = self.config.page_bytes as u64;
        let step = (self.config.growth_bytes / page_bytes).max(missing);
        let mut refusal = None;
        for added in [step, missing] {
            let slots = (count + added).min(SLOTS_MAX);
            match self.add_zeros(count * page_bytes, slots * page_bytes) {
                Ok(()) => {
                    self.space.lock().slots.grow(slots);
                    return Ok(());
                }
                Err(error) if error.is_disk_full() => refusal = Some(error),
                Err(error) => return self.or_fail(Err(error)),
            }
        }
        let reason = refusal.map(|error| error.to_string()).unwrap_or_default();
        Err(PagesError::Full { wanted: missing, reason })
    }

    /// Extends the data file. One growth step of zeros is written, since the first flush of a block
    /// that was only reserved writes metadata, too.
    fn add_zeros(&self, start: u64, end: u64) -> DiskResult<()> {
        self.data.allocate(end)?;
        let step = self.config.growth_bytes.next_multiple_of(self.config.page_bytes as u64);
        let end = end.min(start + step);
        let zeros = AlignedBuf::zeroed(ZEROS_BYTES.min((end - start) as usize));
        let mut at = start;
        while at < end {
            let bytes = (zeros.len() as u64).min(end - at) as usize;
            self.data.write_at(&zeros[..bytes], at)?;
            at += bytes as u64;
        }
        Ok(())
    }

    /// Writes and flushes a round of the map: the places of all pages now. The round does not count
    /// until [`round_ended`](Self::round_ended) says so. Returns its number, for the MANIFEST.
    ///
    /// # Errors
    /// The disk is full, or the store has failed. The earlier round stays in force.
    pub fn write_round(&self) -> Result<u64, PagesError> {
        let mut map_file = self.map_file.lock();
        self.check_alive()?;
        // Room comes first. A refusal changes nothing.
        map_file.make_room(self.map.blocks()).map_err(|error| self.full(0, error))?;
        let (header, blocks) = {
            let Space { slots, ids, .. } = &mut *self.space.lock();
            // A page that is placed from here on belongs to the next round.
            for page in ids.begin_round() {
                // A page that was never placed has no entry, and perhaps no room for one.
                if self.map.entry(page).is_some()
                    && let Some(entry) = self.map.set(page, None)
                {
                    slots.release(entry.slot);
                }
            }
            slots.begin_round();
            let header = MapHeader {
                store: self.config.store,
                created_ms: 0,
                number: 0,
                blocks: self.map.blocks(),
                written: 0,
                slots: slots.count(),
                page_bytes: self.config.page_bytes as u32,
            };
            (header, self.map.take_changed())
        };
        // The pages, and the length of their file, are flushed before a map names them.
        mutant!(self.or_fail(self.data.sync())?, PagesNotFlushed => ());
        self.or_fail(map_file.write_round(header, blocks))
    }

    /// Says whether the last round counts. If it counts, the MANIFEST that names it is durable.
    ///
    /// # Errors
    /// The store has failed.
    ///
    /// # Panics
    /// If `number` is not the last round.
    pub fn round_ended(&self, number: u64, counts: bool) -> Result<(), PagesError> {
        let mut map_file = self.map_file.lock();
        if counts {
            self.or_fail(map_file.round_counts(number))?;
            let mut space = self.space.lock();
            space.ids.round_counts();
            space.slots.round_counts();
        } else {
            self.map.mark_changed(map_file.give_up_round());
            self.space.lock().slots.give_up_round();
        }
        Ok(())
    }
}

/// Makes both files anew. What is there from before counts for nobody.
fn create(disk: &dyn Disk, paths: &[String; 2]) -> DiskResult<[Arc<dyn DiskFile>; 2]> {
    disk.create_dir_all(Path::new(PAGES_DIR))?;
    for path in paths {
        disk.remove(Path::new(path))?;
    }
    let open = |path: &String| disk.open(Path::new(path), OpenMode::CreateNew, Caching::Direct);
    let files = [open(&paths[0])?, open(&paths[1])?];
    disk.sync_dir(Path::new(PAGES_DIR))?;
    disk.sync_dir(Path::new(""))?;
    Ok(files)
}

fn open(
    disk: &dyn Disk,
    paths: &[String; 2],
    mode: OpenMode,
) -> DiskResult<[Arc<dyn DiskFile>; 2]> {
    let open = |path: &String| disk.open(Path::new(path), mode, Caching::Direct);
    Ok([open(&paths[0])?, open(&paths[1])?])
}

/// The slots and pages that a map names.
fn named_by(
    config: &PageStoreConfig,
    data: &dyn DiskFile,
    loaded: &LoadedMap,
    map: &PageMap,
) -> Result<(Slots, PageIds), PagesError> {
    let LoadedMap { file, header, .. } = loaded;
    let wrong = |reason| PagesError::Map { file: file.path(), reason };
    if header.page_bytes as usize != config.page_bytes {
        let (found, asked) = (header.page_bytes, config.page_bytes);
        return Err(wrong(format!("its pages have {found} bytes, the store's {asked}")));
    }
    let page_bytes = config.page_bytes as u64;
    let slots = data.len()? / page_bytes;
    if slots < header.slots {
        let file = data.path().to_owned();
        let reason =
            format!("it was cut off: the map names {} slots, it has {slots}", header.slots);
        return Err(PagesError::Map { file, reason });
    }
    let (mut named, mut ids) = (Bits::default(), PageIds::default());
    for (page, entry) in map.pages() {
        if entry.slot >= header.slots {
            return Err(wrong(format!("page {page} lies in slot {}, beyond the end", entry.slot)));
        }
        if !named.add(entry.slot) {
            return Err(wrong(format!("page {page} lies in slot {}, as another does", entry.slot)));
        }
        ids.take(page);
    }
    Ok((Slots::new(slots, &named), ids))
}
