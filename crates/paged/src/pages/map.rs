//! The map in memory: a word for each page, read without a lock.

use std::collections::BTreeSet;
use std::sync::Arc;

use stillpoint_format::pages::{MAP_BLOCK_ENTRIES, MapEntry, PageId};
use stillpoint_mem::{AddressSpace, RegionError, Segments};
use stillpoint_sync::Mutex;
use stillpoint_sync::atomic::Ordering::Relaxed;

/// Words of the first segment.
const FIRST_WORDS: usize = if cfg!(any(loom, shuttle)) { 512 } else { 1 << 17 };

/// The entries of one block of the map file.
pub(super) type Entries = Box<[u64; MAP_BLOCK_ENTRIES]>;

/// Where each page lies.
#[derive(Debug)]
pub(super) struct PageMap {
    words: Segments,
    changes: Mutex<Changes>,
}

#[derive(Debug, Default)]
struct Changes {
    /// Number of blocks.
    blocks: u64,
    /// Blocks that differ from those of the round that counts.
    changed: BTreeSet<u64>,
    /// Number of pages with a slot.
    placed: u64,
}

impl PageMap {
    pub(super) fn new() -> Self {
        let space = Arc::new(AddressSpace::default());
        Self { words: Segments::new(space, FIRST_WORDS), changes: Mutex::default() }
    }

    /// The entry of a page. `None` if the page has no slot.
    pub(super) fn entry(&self, page: PageId) -> Option<MapEntry> {
        let number = usize::try_from(page.0).ok()?;
        if !self.words.is_reserved(number) {
            return None;
        }
        // Relaxed: a page is read after its eviction, and who evicts it has seen its placing. The
        // latch of its parent, or the pool's lock, orders the two.
        MapEntry::unpack(self.words.line::<1>(number)[0].load(Relaxed))
    }

    /// Makes room for the entry of a page.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub(super) fn reserve(&self, page: PageId) -> Result<(), RegionError> {
        let block = page.0 / MAP_BLOCK_ENTRIES as u64;
        let mut changes = self.changes.lock();
        if block >= changes.blocks {
            let last = (block + 1) * MAP_BLOCK_ENTRIES as u64 - 1;
            self.words.reserve_up_to(last as usize)?;
            let first = changes.blocks;
            changes.changed.extend(first..=block);
            changes.blocks = block + 1;
        }
        Ok(())
    }

    /// Changes the entry of a page for which there is room. Returns the entry before.
    pub(super) fn set(&self, page: PageId, entry: Option<MapEntry>) -> Option<MapEntry> {
        let mut changes = self.changes.lock();
        let word = entry.map_or(0, MapEntry::pack);
        // Relaxed: see `entry`.
        let before = self.words.line::<1>(page.0 as usize)[0].swap(word, Relaxed);
        changes.changed.insert(page.0 / MAP_BLOCK_ENTRIES as u64);
        changes.placed += u64::from(word != 0);
        changes.placed -= u64::from(before != 0);
        MapEntry::unpack(before)
    }

    /// Takes over the entries of a block from the disk.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub(super) fn load(
        &self,
        block: u64,
        entries: impl Iterator<Item = u64>,
    ) -> Result<(), RegionError> {
        let first = block * MAP_BLOCK_ENTRIES as u64;
        self.reserve(PageId(first))?;
        let mut changes = self.changes.lock();
        changes.changed.remove(&block);
        for (at, word) in entries.enumerate() {
            // Relaxed: nothing is served yet.
            self.words.line::<1>(first as usize + at)[0].store(word, Relaxed);
            changes.placed += u64::from(word != 0);
        }
        Ok(())
    }

    /// Notes that the next round must write a block.
    pub(super) fn mark_changed(&self, blocks: impl IntoIterator<Item = u64>) {
        self.changes.lock().changed.extend(blocks);
    }

    /// Number of blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.changes.lock().blocks
    }

    /// Number of pages with a slot.
    pub(super) fn placed(&self) -> u64 {
        self.changes.lock().placed
    }

    /// Takes the changed blocks, with a copy of their entries.
    pub(super) fn take_changed(&self) -> Vec<(u64, Entries)> {
        let changed = std::mem::take(&mut self.changes.lock().changed);
        changed.into_iter().map(|block| (block, self.entries(block))).collect()
    }

    fn entries(&self, block: u64) -> Entries {
        let first = block as usize * MAP_BLOCK_ENTRIES;
        // Relaxed: the caller keeps writers of the map off.
        Box::new(std::array::from_fn(|at| self.words.line::<1>(first + at)[0].load(Relaxed)))
    }

    /// All pages that have a slot, in order.
    pub(super) fn pages(&self) -> impl Iterator<Item = (PageId, MapEntry)> {
        let pages = self.blocks() * MAP_BLOCK_ENTRIES as u64;
        (0..pages).map(PageId).filter_map(|page| Some((page, self.entry(page)?)))
    }
}
