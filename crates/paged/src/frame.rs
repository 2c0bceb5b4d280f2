//! Headers of frames, with their latches. The headers lie apart from the pages, so a device that
//! fills a page never touches a latch.

use stillpoint_format::Stamp;
use stillpoint_node::Node;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use stillpoint_sync::version_latch::{self as latch, Version};

use crate::pool::Pool;

/// The persisted gsn of a page that was never written.
pub(crate) const NEVER: u64 = u64::MAX;

/// What a frame is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// No page. The frame is in the free list, or some thread has taken it from there.
    Free,
    /// A page that no swip leads to. The table of loads has the frame.
    Loaded,
    /// A swip leads to the frame.
    Hot,
    /// A cool swip leads to the frame.
    Cool,
    /// The root of a table, which stays.
    Root,
}

impl State {
    fn of(code: u8) -> Self {
        [Self::Free, Self::Loaded, Self::Hot, Self::Cool, Self::Root][usize::from(code)]
    }
}

/// The header of a frame, in a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Header {
    latch: AtomicU64,
    /// Id of the page.
    page: AtomicU64,
    /// The last change of the page.
    stamp: AtomicU64,
    /// The gsn of the newest copy in the backing. [`NEVER`] without one.
    persisted: AtomicU64,
    state: AtomicU8,
    /// Whether a thread is writing the page back. Such a page may change and is not evicted.
    writing: AtomicBool,
}

impl Header {
    pub(crate) fn new() -> Self {
        Self {
            latch: AtomicU64::new(0),
            page: AtomicU64::new(0),
            stamp: AtomicU64::new(Stamp::NONE.to_bits()),
            persisted: AtomicU64::new(NEVER),
            state: AtomicU8::new(State::Free as u8),
            writing: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn latch(&self) -> &AtomicU64 {
        &self.latch
    }

    #[inline]
    pub(crate) fn page(&self) -> u64 {
        // Relaxed: ordered by the frame's latch, or checked by a version.
        self.page.load(Relaxed)
    }

    pub(crate) fn stamp(&self) -> Stamp {
        // Relaxed: as `page`.
        Stamp::from_bits(self.stamp.load(Relaxed))
    }

    pub(crate) fn state(&self) -> State {
        // Acquire: partner of the Release in `set_state`.
        State::of(self.state.load(Acquire))
    }

    pub(crate) fn set_state(&self, state: State) {
        // Release: partner of the Acquire in `state`. Who sees the state sees the page's header.
        self.state.store(state as u8, Release);
    }

    /// Whether the page differs from its copy in the backing.
    pub(crate) fn is_dirty(&self) -> bool {
        // Acquire: partner of the Release in `set_persisted`.
        self.persisted.load(Acquire) != self.stamp().gsn()
    }

    /// Whether there is a copy with this gsn or a later one.
    pub(crate) fn is_persisted_to(&self, gsn: u64) -> bool {
        // Acquire: as `is_dirty`.
        let persisted = self.persisted.load(Acquire);
        persisted != NEVER && persisted >= gsn
    }

    pub(crate) fn set_persisted(&self, gsn: u64) {
        // Release: partner of the Acquire in `is_dirty`.
        self.persisted.store(gsn, Release);
    }

    /// Sets the writing flag. False if it was set.
    pub(crate) fn begin_writing(&self) -> bool {
        // AcqRel: partner of the Release in `end_writing`.
        !self.writing.swap(true, AcqRel)
    }

    pub(crate) fn end_writing(&self) {
        // Release: partner of the AcqRel in `begin_writing` and of the Acquire in `is_written`.
        self.writing.store(false, Release);
    }

    /// Whether a thread is writing the page back.
    pub(crate) fn is_written(&self) -> bool {
        // Acquire: partner of the Release in `end_writing`.
        self.writing.load(Acquire)
    }

    /// Sets who changed the page last. The caller holds the latch, or nobody else knows the frame.
    pub(crate) fn set_stamp(&self, stamp: Stamp) {
        // Relaxed: ordered by the latch.
        self.stamp.store(stamp.to_bits(), Relaxed);
    }

    /// Gives the frame a page. Nobody else knows the frame.
    pub(crate) fn begin(&self, page: u64, stamp: Stamp, persisted: u64) {
        // Relaxed: the state or the latch publishes these.
        self.page.store(page, Relaxed);
        self.set_stamp(stamp);
        self.set_persisted(persisted);
    }
}

/// A frame as of a version of its latch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameVersion {
    pub(crate) frame: u32,
    pub(crate) version: Version,
}

/// The exclusive latch of a frame. Its drop makes a new version.
#[derive(Debug)]
pub(crate) struct Latched<'p> {
    pub(crate) pool: &'p Pool,
    pub(crate) frame: u32,
}

impl<'p> Latched<'p> {
    /// The latch of a frame that no swip leads to yet. Threads that knew the frame before may hold it
    /// for a moment, and wait for nothing meanwhile.
    pub(crate) fn of_new(pool: &'p Pool, frame: u32) -> Self {
        pool.latch(frame)
    }

    #[inline]
    pub(crate) fn node(&self) -> Node<'p> {
        self.pool.node(self.frame)
    }

    #[inline]
    pub(crate) fn header(&self) -> &'p Header {
        self.pool.header(self.frame)
    }

    /// Gives the latch back of a frame that was not changed. Readers do not notice.
    pub(crate) fn release_unchanged(self) {
        latch::release_unchanged(self.header().latch());
        std::mem::forget(self);
    }

    /// Notes the record of the change that was just made.
    pub(crate) fn set_stamp(&self, stamp: Stamp) {
        self.header().set_stamp(stamp);
        // Relaxed: the latch orders all stores.
        self.node().owner_words()[1].store(stamp.to_bits(), Relaxed);
    }
}

impl Drop for Latched<'_> {
    fn drop(&mut self) {
        latch::release_exclusive(self.header().latch());
    }
}

/// A share of the latch of a frame.
#[derive(Debug)]
pub(crate) struct Shared<'p> {
    pub(crate) pool: &'p Pool,
    pub(crate) frame: u32,
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        latch::release_shared(self.pool.header(self.frame).latch());
    }
}
