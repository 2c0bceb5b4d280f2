//! The table of loads: pages on their way into frames, and pages in frames that no swip leads to.
//!
//! One thread reads a page, and others wait for the same read. A page that has arrived is attached by a
//! fresh descent, since its parent may have been split meanwhile. A failed read is an error for all who
//! wait for it, and leaves no entry.
//!
//! No page is in two frames. A read begins under the lock of the table of loads, while a version of
//! the parent still holds in which the child is out. A page is attached under the parent's latch, and
//! only from this table. So a page that has an entry is in no other frame.

use std::fmt;
use std::sync::Arc;

use stillpoint_format::{LOG_NONE, Stamp};
use stillpoint_sync::Mutex;
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::mutant;
use stillpoint_txn::{Arrival, Lane, TableId, TxError};

use crate::backing::{BackingError, PendingRead, Purpose};
use crate::frame::{FrameVersion, Latched, State};
use crate::planted;
use crate::pool::{Pool, PoolError, table_of_root};
use crate::swip::Swip;

/// Fewest frames of a pool in which a replay frees frames for pages ahead of their use.
const FREEING_FRAMES: usize = 1024;

/// An entry of the table of loads.
#[derive(Debug)]
pub(crate) enum Load {
    /// A read is under way.
    Reading(Arc<Loading>),
    /// The page is in this frame.
    Loaded(u32),
}

/// A child that is not in a frame, as a descent has met it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missing {
    pub(crate) page: u64,
    /// The parent, in a version in which the child is out.
    parent: FrameVersion,
}

impl Missing {
    pub(crate) fn new(page: u64, parent: FrameVersion) -> Self {
        Self { page, parent }
    }
}

/// A read of a page into a frame.
pub(crate) struct Loading {
    pool: Arc<Pool>,
    page: u64,
    frame: u32,
    read: Box<dyn PendingRead>,
    /// The result, once the read has ended.
    result: Mutex<Option<Result<(), BackingError>>>,
}

impl fmt::Debug for Loading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loading").field("page", &self.page).finish_non_exhaustive()
    }
}

impl Loading {
    /// Waits until the page is in its frame.
    ///
    /// # Errors
    /// The page cannot be read.
    pub(crate) fn arrive(&self) -> Result<(), BackingError> {
        self.read.wait();
        self.end()
    }

    /// Ends the read if it has arrived.
    pub(crate) fn end_if_done(&self) {
        if self.read.is_done() {
            // Who waits for the page gets the error.
            let _ = self.end();
        }
    }

    /// Ends the read if nobody else has done so, and gives its result.
    fn end(&self) -> Result<(), BackingError> {
        let mut result = self.result.lock();
        if let Some(result) = &*result {
            return result.clone();
        }
        let ended = self.read.check();
        if ended.is_ok() {
            self.pool.begin_loaded(self.frame, self.page);
        }
        let mut loads = self.pool.loads.lock();
        match &ended {
            Ok(()) => drop(loads.insert(self.page, Load::Loaded(self.frame))),
            Err(_) => {
                loads.remove(&self.page);
                self.pool.give_free([self.frame]);
            }
        }
        *result = Some(ended.clone());
        ended
    }
}

impl Arrival for Loading {
    fn has_arrived(&self) -> bool {
        self.read.is_done()
    }

    fn wait(&self) -> Result<(), TxError> {
        self.arrive().map_err(|error| TxError::abandon(PoolError::Backing(error)))
    }
}

impl Pool {
    /// Sets the header of a frame that has been read.
    fn begin_loaded(&self, frame: u32, page: u64) {
        let node = self.node(frame);
        // Relaxed: nobody else knows the frame.
        let stamp = Stamp::from_bits(node.owner_words()[1].load(Relaxed));
        // Records of other logs may depend on the page's last one, so its log matters.
        let stamp = mutant!(stamp, LogForgotten => Stamp::new(stamp.gsn(), LOG_NONE));
        node.clear_checksum();
        let header = self.header(frame);
        header.begin(page, stamp, stamp.gsn());
        header.set_state(State::Loaded);
        self.reads.fetch_add(1, Relaxed);
    }

    /// Begins to read a missing child, or finds the read that is under way. `None` if the page has
    /// arrived or the parent has changed: descend again.
    ///
    /// # Errors
    /// There is no such page, or no frame could be freed.
    pub(crate) fn load(
        self: &Arc<Self>,
        missing: Missing,
        purpose: Purpose,
    ) -> Result<Option<Arc<Loading>>, PoolError> {
        if let Some(found) = self.known_load(missing.page)? {
            return Ok(found);
        }
        let frame = self.free_frames_for(1, purpose)?[0];
        self.begin_load(missing, frame)
    }

    /// As [`load`](Self::load), ahead of the use of the page. Begins nothing if there is no
    /// [frame](Self::frame_ahead) for it.
    pub(crate) fn load_ahead(self: &Arc<Self>, missing: Missing) -> Option<Arc<Loading>> {
        if let Some(found) = self.known_load(missing.page).ok()? {
            return found;
        }
        let frame = self.frame_ahead()?;
        self.begin_load(missing, frame).ok().flatten()
    }

    /// Queues the read of a missing page ahead of its use, for [`Backing::submit`](crate::Backing::submit). True
    /// if that was begun. `None` if there is no [frame](Self::frame_ahead) for it.
    pub(crate) fn queue_ahead(self: &Arc<Self>, missing: Missing) -> Option<bool> {
        if self.loads.lock().contains_key(&missing.page) {
            return Some(false);
        }
        let frame = self.frame_ahead()?;
        // Who needs the page asks again, and gets the error.
        Some(self.queue_missing(missing, frame).is_ok_and(|begun| begun.is_some()))
    }

    /// The read of a page that is under way. `Some(None)` if the page has arrived.
    fn known_load(&self, page: u64) -> Result<Option<Option<Arc<Loading>>>, BackingError> {
        let loading = match self.loads.lock().get(&page) {
            Some(Load::Reading(loading)) => loading.clone(),
            Some(Load::Loaded(_)) => return Ok(Some(None)),
            None => return Ok(None),
        };
        if loading.read.is_done() {
            // Nobody has waited for it. An event loop only asks.
            return loading.end().map(|()| Some(None));
        }
        Ok(Some(Some(loading)))
    }

    fn begin_load(
        self: &Arc<Self>,
        missing: Missing,
        frame: u32,
    ) -> Result<Option<Arc<Loading>>, PoolError> {
        let queued = self.queue_missing(missing, frame)?;
        self.backing.submit();
        Ok(queued)
    }

    fn queue_missing(
        self: &Arc<Self>,
        Missing { page, parent }: Missing,
        frame: u32,
    ) -> Result<Option<Arc<Loading>>, PoolError> {
        // Relaxed: who finds that the parent has not changed has read its table.
        let table = TableId(self.node(parent.frame).owner_words()[2].load(Relaxed) as u16);
        let is_out = || mutant!(self.is_still(parent), LoadsWithoutParent => true);
        self.queue_load(page, Some(table), frame, is_out)
    }

    /// As [`queue_load`](Self::queue_load), and hands the read to the device.
    fn insert_load(
        self: &Arc<Self>,
        page: u64,
        table: Option<TableId>,
        frame: u32,
    ) -> Result<Option<Arc<Loading>>, PoolError> {
        let queued = self.queue_load(page, table, frame, || true)?;
        self.backing.submit();
        Ok(queued)
    }

    /// Queues a read into a free frame, unless the page has an entry or is not out. `None` if it has
    /// arrived or is not out.
    fn queue_load(
        self: &Arc<Self>,
        page: u64,
        table: Option<TableId>,
        frame: u32,
        is_out: impl Fn() -> bool,
    ) -> Result<Option<Arc<Loading>>, PoolError> {
        let mut loads = self.loads.lock();
        let found = match loads.get(&page) {
            Some(Load::Reading(loading)) => Some(Some(loading.clone())),
            Some(Load::Loaded(_)) => Some(None),
            None if !is_out() => Some(None),
            None => None,
        };
        if let Some(found) = found {
            drop(loads);
            self.give_free([frame]);
            return Ok(found);
        }
        let read = match self.backing.begin_read(page, table, self.frames.target(frame as usize)) {
            Ok(read) => read,
            Err(error) => {
                drop(loads);
                self.give_free([frame]);
                return Err(error.into());
            }
        };
        let loading =
            Arc::new(Loading { pool: self.clone(), page, frame, read, result: Mutex::new(None) });
        loads.insert(page, Load::Reading(loading.clone()));
        Ok(Some(loading))
    }

    /// The frame of a page of a large value, which no swip ever leads to. `Err` within: the page is on its way.
    pub(crate) fn frame_of(
        self: &Arc<Self>,
        page: u64,
        table: TableId,
        purpose: Purpose,
    ) -> Result<Result<u32, Arc<Loading>>, PoolError> {
        loop {
            match self.loads.lock().get(&page) {
                Some(Load::Loaded(frame)) => return Ok(Ok(*frame)),
                Some(Load::Reading(_)) | None => {}
            }
            match self.known_load(page)? {
                Some(Some(loading)) => return Ok(Err(loading)),
                Some(None) => continue,
                None => {}
            }
            let frame = self.free_frames_for(1, purpose)?[0];
            if let Some(loading) = self.insert_load(page, Some(table), frame)? {
                return Ok(Err(loading));
            }
        }
    }

    /// Asks for a page of a large value ahead of its use, if there is a [frame](Self::frame_ahead) for it.
    pub(crate) fn ask_page(self: &Arc<Self>, page: u64, table: TableId) {
        if self.loads.lock().contains_key(&page) {
            return;
        }
        if let Some(frame) = self.frame_ahead() {
            // Who needs the page asks again, and gets the error.
            let _ = self.insert_load(page, Some(table), frame);
        }
    }

    /// Asks for a page that a replay will soon need: begins to read it, or prefetches it. A small pool frees
    /// no frame for that.
    pub(crate) fn ask_for_redo(self: &Arc<Self>, page: u64, table: TableId, lane: Lane) {
        if let Some(&frame) = self.frames_of(lane).lock().get(&page) {
            return self.prefetch_leaf(frame);
        }
        match self.loads.lock().get(&page) {
            Some(Load::Loaded(frame)) => return self.prefetch_leaf(*frame),
            Some(Load::Reading(_)) => return,
            None => {}
        }
        let frames = self.frame_count();
        if frames < FREEING_FRAMES && self.free_count() <= frames / 4 {
            return;
        }
        if self.backing.is_placed(page)
            && let Ok(frames) = self.free_frames_for(1, Purpose::GoOn)
        {
            // Who needs the page asks again, and gets the error.
            let _ = self.insert_load(page, Some(table), frames[0]);
        }
    }

    /// The frame of a page that no swip leads to. Reads the page if it is in no frame. For a replay, for
    /// roots, and for pages that are given back.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn page(self: &Arc<Self>, page: u64) -> Result<u32, PoolError> {
        loop {
            let under_way = match self.loads.lock().get(&page) {
                Some(Load::Loaded(frame)) => return Ok(*frame),
                Some(Load::Reading(loading)) => Some(loading.clone()),
                None => None,
            };
            let loading = match under_way {
                Some(loading) => loading,
                None => {
                    let frame = self.free_frames_for(1, Purpose::GoOn)?[0];
                    let loading = self.insert_load(page, table_of_root(page), frame)?;
                    let Some(loading) = loading else { continue };
                    loading
                }
            };
            loading.arrive()?;
        }
    }

    /// Attaches a page that has arrived to its parent, which the caller has latched. False if the page
    /// has not arrived.
    pub(crate) fn attach(&self, parent: &Latched<'_>, position: usize, page: u64) -> bool {
        let mut loads = self.loads.lock();
        let Some(Load::Loaded(frame)) = loads.get(&page) else { return false };
        let frame = *frame;
        loads.remove(&page);
        drop(loads);
        self.header(frame).set_state(State::Hot);
        let node = parent.node();
        let child = node.child(position);
        node.set_child(position, stillpoint_node::Child { at: Swip::Hot(frame).pack(), ..child });
        true
    }

    /// Whether a page has arrived and is not attached.
    pub(crate) fn has_arrived(&self, page: u64) -> bool {
        matches!(self.loads.lock().get(&page), Some(Load::Loaded(_)))
    }
}
