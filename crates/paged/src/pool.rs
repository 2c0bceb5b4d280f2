//! The buffer pool: frames, their headers, the free list and the roots of tables.
//!
//! After Leis, Haubenschild, Kemper, Neumann: *LeanStore* (ICDE 2018), and Haubenschild, Sauer,
//! Neumann, Leis: *Rethinking Logging, Checkpoints, and Recovery* (SIGMOD 2020, §3.5).
//!
//! ```text
//!            ┌────────── read ──────────┐          ┌──── somebody reads it ────┐
//!  free ─▶ loading ─▶ loaded ─ attach ─▶ hot ─ cooled by the provider ─▶ cool ─┤
//!    ▲                   │               ▲                                    │
//!    │                   └── never used ─┼────────────────────────────────────┤ clean: evicted
//!    └───────────────────────────────────┴────────────────────────────────────┘ dirty: written first
//! ```
//! **Rules**
//! 1. Nothing read without a latch is followed, shown or returned before its version was checked.
//! 2. Latches are taken from parent to child. Anything else is a try, and begins again.
//! 3. With a latch held nobody waits for a lock of a transaction, for I/O, for a free frame, or for room
//!    in a log.
//! 4. A swip changes only under the latch of its parent, which is hot or a root. An inner page cools only
//!    when no child is in a frame, and is evicted only then. An eviction makes a new version.
//! 5. Versions only grow, and frames are never unmapped.
//! 6. A page is dirty if the gsn of its last change is not that of its newest copy.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::large::LargeReference;
use stillpoint_mem::{Frames, RegionError, huge_slice};
use stillpoint_node::{Node, NodeKind};
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::version_latch as latch;
use stillpoint_sync::{CachePadded, Mutex};
use stillpoint_txn::TableId;

use crate::backing::{Backing, BackingError, NewPage};
use crate::frame::{FrameVersion, Header, Latched, NEVER, Shared, State};
use crate::loads::Load;
use crate::tree::Unfreed;

/// Tables that a pool can have.
const TABLES: usize = if cfg!(any(loom, shuttle)) { 4 } else { 1 << 16 };

/// Cache lines of the number of keys that were found.
const STRIPES: usize = 16;
/// Lanes of a replay that have a table of frames of their own.
const LANES: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };

/// Where the pages of one lane were in frames.
pub(crate) type LaneFrames = CachePadded<Mutex<HashMap<u64, u32, OfPages>>>;

/// Fewest frames of a pool.
pub const POOL_PAGES_MIN: usize = 16;

/// Why the pool cannot do what it was asked for.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PoolError {
    /// The page cannot be read, or there is no room for another page.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// Every frame is in use.
    #[error(
        "all {frames} pages of the pool are in use, and none could be freed: enlarge the pool, or run \
         fewer sessions at a time"
    )]
    Full {
        /// Frames of the pool.
        frames: usize,
    },
    /// A page of a large value is not the one that was expected.
    #[error("page {page} of a large value: {why}; restore a backup")]
    Large {
        /// Page.
        page: u64,
        /// The defect.
        why: String,
    },
    /// A table more would take a frame that the others need.
    #[error("a pool of {frames} pages takes at most {tables} paged tables: enlarge the pool")]
    Tables {
        /// Frames of the pool.
        frames: usize,
        /// Most tables.
        tables: usize,
    },
}

/// Numbers of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Frames.
    pub frames: usize,
    /// Frames without a page.
    pub free: usize,
    /// Pages that are evicted soon unless somebody reads them.
    pub cool: usize,
    /// Pages that differ from their copies in the backing.
    pub dirty: usize,
    /// Keys, and leaves of ranges, that were found without a wait for a page.
    pub hits: u64,
    /// Pages that were read from the backing.
    pub reads: u64,
    /// Pages that were written to the backing.
    pub writes: u64,
    /// Pages that were evicted.
    pub evictions: u64,
}

/// Hashes ids of pages, which nobody chooses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageHasher(u64);

pub(crate) type OfPages = BuildHasherDefault<PageHasher>;

impl Hasher for PageHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0 ^ u64::from(byte)));
    }

    #[inline]
    fn write_u64(&mut self, page: u64) {
        let spread = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ spread >> 32;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Frames with pages of paged tables.
pub struct Pool {
    pub(crate) frames: Arc<Frames>,
    headers: Box<[Header]>,
    pub(crate) backing: Arc<dyn Backing>,
    free: Mutex<Vec<u32>>,
    /// Pages on their way into frames, and pages in frames that no swip leads to.
    pub(crate) loads: Mutex<HashMap<u64, Load, OfPages>>,
    /// Frames in the order in which they were cooled.
    pub(crate) cooling: Mutex<VecDeque<u32>>,
    /// For each table, 1 + the frame of its root.
    roots: Box<[AtomicU64]>,
    root_count: AtomicUsize,
    /// The frame at which the provider goes on.
    pub(crate) hand: AtomicUsize,
    /// The thread that frees frames ahead of need, and whether it waits for a call.
    pub(crate) provider: Mutex<Option<std::thread::Thread>>,
    pub(crate) provider_waits: AtomicBool,
    /// Pages of emptied tables that could not be read.
    pub(crate) unfreed: Mutex<Vec<Unfreed>>,
    /// Large values to which nothing refers, and that could not be read.
    pub(crate) unread_values: Mutex<Vec<(TableId, LargeReference)>>,
    /// Page ids that were allocated and not used.
    spare: Mutex<Vec<NewPage>>,
    /// Frames of pages that a replay has used, for each lane. Lanes that look into the table of loads for each
    /// record wait for each other.
    pub(crate) lanes: [LaneFrames; LANES],
    /// Keys and leaves that were found, by stripes.
    found: [CachePadded<AtomicU64>; STRIPES],
    /// Waits for pages, each of which comes before one of these.
    waits: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) evictions: AtomicU64,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("frames", &self.headers.len()).finish_non_exhaustive()
    }
}

/// Id of the root page of a table.
pub(crate) fn root_page(table: TableId) -> u64 {
    1 + u64::from(table.0)
}

/// The table whose root the page is.
pub(crate) fn table_of_root(page: u64) -> Option<TableId> {
    page.checked_sub(1).and_then(|table| u16::try_from(table).ok()).map(TableId)
}

/// The word of a page with its table and the generation of the table.
pub(crate) fn table_word(table: TableId, generation: u32) -> u64 {
    u64::from(table.0) | u64::from(generation) << 32
}

impl Pool {
    /// A pool of `count` frames over a backing.
    ///
    /// # Errors
    /// The system grants no address space.
    pub fn new(
        count: usize,
        page_bytes: usize,
        backing: Arc<dyn Backing>,
    ) -> Result<Arc<Self>, RegionError> {
        let frames = Frames::new(count, page_bytes)?;
        Ok(Arc::new(Self {
            frames,
            headers: huge_slice(count, Header::new),
            backing,
            free: Mutex::new((0..count as u32).rev().collect()),
            loads: Mutex::default(),
            cooling: Mutex::default(),
            roots: (0..TABLES).map(|_| AtomicU64::new(0)).collect(),
            root_count: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
            provider: Mutex::default(),
            provider_waits: AtomicBool::new(false),
            unfreed: Mutex::default(),
            unread_values: Mutex::default(),
            spare: Mutex::default(),
            lanes: std::array::from_fn(|_| CachePadded::new(Mutex::default())),
            found: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
            waits: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }))
    }

    /// Number of frames.
    pub fn frame_count(&self) -> usize {
        self.headers.len()
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.frames.page_bytes()
    }

    /// Numbers of the pool. Each is as of another moment.
    pub fn stats(&self) -> PoolStats {
        let is_dirty = |header: &&Header| header.state() != State::Free && header.is_dirty();
        PoolStats {
            frames: self.headers.len(),
            free: self.free.lock().len(),
            cool: self.headers.iter().filter(|header| header.state() == State::Cool).count(),
            dirty: self.headers.iter().filter(is_dirty).count(),
            // Relaxed: statistics.
            hits: (self.found.iter().map(|found| found.load(Relaxed)).sum::<u64>())
                .saturating_sub(self.waits.load(Relaxed)),
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
        }
    }

    /// Counts keys and leaves that were found. Threads that count much use different stripes.
    #[inline]
    pub(crate) fn note_found(&self, stripe: u64, count: u64) {
        // Relaxed: a statistic.
        self.found[stripe as usize % STRIPES].fetch_add(count, Relaxed);
    }

    /// Counts a wait for a page.
    pub(crate) fn note_wait(&self) {
        // Relaxed: a statistic.
        self.waits.fetch_add(1, Relaxed);
    }

    #[inline]
    pub(crate) fn node(&self, frame: u32) -> Node<'_> {
        Node::new(self.frames.words(frame as usize))
    }

    #[inline]
    pub(crate) fn header(&self, frame: u32) -> &Header {
        &self.headers[frame as usize]
    }

    // ── versions and latches ──

    /// The frame as it is now, once nobody changes it.
    #[inline]
    pub(crate) fn seen(&self, frame: u32) -> FrameVersion {
        FrameVersion { frame, version: latch::await_version(self.header(frame).latch()) }
    }

    /// The frame as it is now. `None` while somebody changes it.
    pub(crate) fn try_seen(&self, frame: u32) -> Option<FrameVersion> {
        latch::read(self.header(frame).latch()).map(|version| FrameVersion { frame, version })
    }

    /// Whether the frame has not changed since.
    #[inline]
    pub(crate) fn is_still(&self, seen: FrameVersion) -> bool {
        latch::is_still(self.header(seen.frame).latch(), seen.version)
    }

    /// Latches a frame exclusively, if it has not changed since.
    pub(crate) fn try_latch_seen(&self, seen: FrameVersion) -> Option<Latched<'_>> {
        let taken = latch::try_upgrade(self.header(seen.frame).latch(), seen.version);
        taken.then(|| Latched { pool: self, frame: seen.frame })
    }

    /// Latches a frame exclusively, if nobody has latched it.
    pub(crate) fn try_latch(&self, frame: u32) -> Option<Latched<'_>> {
        let taken = latch::try_exclusive(self.header(frame).latch());
        taken.then(|| Latched { pool: self, frame })
    }

    /// Takes a share of the latch of a frame, if nobody has latched it exclusively.
    pub(crate) fn try_share(&self, frame: u32) -> Option<Shared<'_>> {
        let taken = latch::try_shared(self.header(frame).latch());
        taken.then(|| Shared { pool: self, frame })
    }

    /// Waits for the exclusive latch of a frame.
    pub(crate) fn latch(&self, frame: u32) -> Latched<'_> {
        latch::exclusive(self.header(frame).latch());
        Latched { pool: self, frame }
    }

    /// Waits for a share of the latch of a frame.
    pub(crate) fn share(&self, frame: u32) -> Shared<'_> {
        latch::shared(self.header(frame).latch());
        Shared { pool: self, frame }
    }

    // ── roots ──

    /// The frame of a table's root. `None` without the table.
    #[inline]
    pub(crate) fn root(&self, table: TableId) -> Option<u32> {
        // Acquire: partner of the Release in `set_root`.
        let root = self.roots.get(usize::from(table.0))?.load(Acquire);
        (root as u32).checked_sub(1)
    }

    fn set_root(&self, table: TableId, frame: u32) {
        self.header(frame).set_state(State::Root);
        // Release: partner of the Acquire in `root`.
        self.roots[usize::from(table.0)].store(u64::from(frame) + 1, Release);
    }

    /// Whether the pool takes a further table.
    ///
    /// # Errors
    /// [`PoolError::Tables`].
    pub(crate) fn admit_table(&self) -> Result<(), PoolError> {
        let (frames, tables) = (self.frame_count(), self.frame_count() / 4);
        // Relaxed: tables are added one after the other.
        match self.root_count.load(Relaxed) < tables {
            true => Ok(()),
            false => Err(PoolError::Tables { frames, tables }),
        }
    }

    /// Adds a table: with the root that the backing has, or with an empty one.
    ///
    /// # Errors
    /// The root cannot be read, or the pool has too few frames.
    pub(crate) fn add_table(
        self: &Arc<Self>,
        table: TableId,
        generation: u32,
        is_placed: bool,
    ) -> Result<(), PoolError> {
        assert!(self.root(table).is_none(), "a table is added once");
        self.admit_table()?;
        let page = root_page(table);
        let frame = if is_placed {
            let frame = self.page(page)?;
            self.loads.lock().remove(&page);
            // Relaxed: nobody else knows the frame.
            let owner = self.node(frame).owner_words()[2].load(Relaxed);
            if owner != table_word(table, generation) {
                // The page is of a generation that is gone.
                self.begin_page(frame, page, table, generation);
                self.node(frame).init(NodeKind::Leaf, 0, b"", None);
            }
            frame
        } else {
            let frame = self.free_frames(1)?[0];
            self.begin_page(frame, page, table, generation);
            self.node(frame).init(NodeKind::Leaf, 0, b"", None);
            frame
        };
        // Relaxed: as above.
        self.root_count.fetch_add(1, Relaxed);
        self.set_root(table, frame);
        Ok(())
    }

    /// Sets the owner's words of a new page, and the header of its frame, which nobody else knows.
    pub(crate) fn begin_page(&self, frame: u32, page: u64, table: TableId, generation: u32) {
        let words = self.node(frame).owner_words();
        // Relaxed: published with the frame.
        words[0].store(page, Relaxed);
        words[1].store(Stamp::NONE.to_bits(), Relaxed);
        words[2].store(table_word(table, generation), Relaxed);
        self.header(frame).begin(page, Stamp::NONE, NEVER);
    }

    // ── free frames and page ids ──

    /// Takes frames from the free list. `None` if it has too few.
    pub(crate) fn take_free(&self, count: usize) -> Option<Vec<u32>> {
        let mut free = self.free.lock();
        let left = free.len().checked_sub(count)?;
        let taken = free.split_off(left);
        drop(free);
        if left < self.low_water() {
            self.call_provider();
        }
        Some(taken)
    }

    /// Number of frames in the free list.
    pub(crate) fn free_count(&self) -> usize {
        self.free.lock().len()
    }

    /// Gives frames back that nobody can reach but readers that check a version.
    pub(crate) fn give_free(&self, frames: impl IntoIterator<Item = u32>) {
        let frames = frames.into_iter().inspect(|&frame| {
            self.header(frame).set_state(State::Free);
            self.header(frame).begin(0, Stamp::NONE, NEVER);
        });
        self.free.lock().extend(frames);
    }

    /// A page id for a new page.
    pub(crate) fn take_page(&self) -> Result<NewPage, BackingError> {
        match self.spare.lock().pop() {
            Some(page) => Ok(page),
            None => self.backing.allocate(),
        }
    }

    /// Keeps a page id that was not used for the next page.
    pub(crate) fn keep_page(&self, page: NewPage) {
        self.spare.lock().push(page);
    }
}
