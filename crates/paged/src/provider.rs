//! The provider of free frames: cools, writes back and evicts, in rounds.
//!
//! Haubenschild, Sauer, Neumann, Leis: *Rethinking Logging, Checkpoints, and Recovery* (SIGMOD 2020,
//! §3.5). A round cools some hot pages, writes the dirty ones among those that were cooled first, and
//! evicts the clean ones. A thread of the engine makes rounds while few frames are free. A worker that finds
//! no free frame makes rounds itself.
//!
//! Deviation: pages are cooled in the order of their frames, and not at random. A page that is read
//! while it is cool becomes hot again, so this is a second chance.

use std::sync::Arc;

use stillpoint_mem::words;
use stillpoint_node::{Node, NodeKind};
use stillpoint_sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use stillpoint_sync::{Backoff, mutant};

use crate::backing::{BackingError, Copied, DirtyFrames, Purpose};
use crate::frame::{FrameVersion, State};
use crate::loads::Load;
use crate::planted;
use crate::pool::{Pool, PoolError};
use crate::swip::Swip;
use crate::tree::copy_of;

/// Pages that one round evicts at most.
const BUNCH: usize = 64;
/// Fewest frames of a pool for which a thread frees frames ahead of need.
const FRAMES_MIN: usize = 1024;
/// Longest wait of that thread for a call.
const IDLE: std::time::Duration = std::time::Duration::from_millis(50);
/// Rounds without a free frame after which the pool counts as full.
const ROUNDS: u32 = 20_000;

impl Pool {
    /// Free frames, all or none. Makes rounds while there are too few. Call this with no latch held.
    ///
    /// # Errors
    /// [`PoolError::Full`], or an error of the backing.
    pub(crate) fn free_frames(self: &Arc<Self>, count: usize) -> Result<Vec<u32>, PoolError> {
        self.free_frames_for(count, Purpose::Eviction)
    }

    /// As [`free_frames`](Self::free_frames), for work that may need the room which others leave.
    ///
    /// # Errors
    /// As [`free_frames`](Self::free_frames).
    pub(crate) fn free_frames_for(
        self: &Arc<Self>,
        count: usize,
        purpose: Purpose,
    ) -> Result<Vec<u32>, PoolError> {
        let mut backoff = Backoff::new();
        // A small pool frees few frames at a time, or it would evict what was just read.
        let goal = BUNCH.min(self.frame_count() / 16).max(count);
        // Pages that cannot be written go to the end of the queue. Clean ones may come behind them.
        let mut refusals_left = 2 + 2 * self.frame_count() / goal;
        for _ in 0..ROUNDS {
            if let Some(frames) = self.take_free(count) {
                return Ok(frames);
            }
            match self.round(goal, purpose) {
                Ok(0) => backoff.wait(),
                Ok(_) => {}
                Err(error) if refusals_left == 0 => return Err(error),
                Err(_) => refusals_left -= 1,
            }
        }
        Err(PoolError::Full { frames: self.frame_count() })
    }

    /// A free frame for a page that is wanted later. Makes one round at most, and none in a small pool, whose
    /// pages are wanted at once. `None` while most pages are such that no swip leads to, more than a round
    /// leaves. Call this with no latch held.
    pub(crate) fn frame_ahead(self: &Arc<Self>) -> Option<u32> {
        let frames = self.frame_count();
        if self.free_count() <= frames / 4 {
            if frames < FRAMES_MIN || self.loads.lock().len() > frames / 2 {
                return None;
            }
            if self.free_count() == 0 {
                // An error is that of whoever needs a frame and gets none.
                let _ = self.round(BUNCH, Purpose::GoOn);
            }
        }
        self.take_free(1)?.pop()
    }

    /// Fewest free frames that the thread of [`provide`](Self::provide) leaves: a hundredth.
    pub(crate) fn low_water(&self) -> usize {
        if self.frame_count() < FRAMES_MIN { 0 } else { self.frame_count() / 100 }
    }

    /// Calls the thread that frees frames, if it waits.
    pub(crate) fn call_provider(&self) {
        // Relaxed: a first look. AcqRel: partner of the Release in `provide`.
        if self.provider_waits.load(Relaxed)
            && self.provider_waits.swap(false, AcqRel)
            && let Some(thread) = &*self.provider.lock()
        {
            thread.unpark();
        }
    }

    /// Frees frames ahead of need, until `stops` says so. So who reads a page seldom writes others first.
    /// A pool of fewer than 1,024 frames has no such need: each page is wanted at once.
    pub fn provide(self: &Arc<Self>, stops: impl Fn() -> bool) {
        *self.provider.lock() = Some(std::thread::current());
        while !stops() {
            let is_low = || self.free_count() < self.low_water();
            // An error is that of whoever needs a frame and gets none.
            if is_low() && self.round(4 * BUNCH, Purpose::Eviction).is_ok_and(|freed| freed > 0) {
                continue;
            }
            // Release: partner of the AcqRel in `call_provider`.
            self.provider_waits.store(true, Release);
            std::thread::park_timeout(IDLE);
        }
        *self.provider.lock() = None;
    }

    /// One round. Returns the number of frames that became free.
    ///
    /// # Errors
    /// Pages could not be written, and no frame became free.
    fn round(self: &Arc<Self>, goal: usize, purpose: Purpose) -> Result<usize, PoolError> {
        self.end_reads();
        let cool_wanted = (self.frame_count() / 10).max(goal);
        let cool = self.cooling.lock().len();
        if cool < cool_wanted {
            self.cool_some(cool_wanted - cool);
        }
        let (mut freed, mut dirty, mut met) = (0, Vec::new(), 0);
        while met < goal {
            let Some(frame) = self.cooling.lock().pop_front() else { break };
            let header = self.header(frame);
            if header.state() != State::Cool {
                continue;
            }
            met += 1;
            match header.is_dirty() || header.is_written() {
                true => dirty.push(frame),
                false => freed += usize::from(self.try_evict(frame)),
            }
        }
        if !dirty.is_empty() {
            let written = self.backing.write_back(&**self, &dirty, purpose);
            freed += dirty.iter().filter(|&&frame| self.try_evict(frame)).count();
            if freed == 0 {
                written?;
            }
        }
        // A replay leaves pages that nobody may ever ask for.
        if freed == 0 || self.loads.lock().len() > self.frame_count() / 4 {
            freed += self.evict_loaded(goal, purpose)?;
        }
        Ok(freed)
    }

    /// Cools up to `count` hot pages, and looks at no more than all frames.
    fn cool_some(&self, count: usize) {
        let (mut cooled, mut fence) = (0, Vec::new());
        for _ in 0..self.frame_count() {
            if cooled == count {
                break;
            }
            // Relaxed: any order of frames will do.
            let at = self.hand.fetch_add(1, Relaxed) % self.frame_count();
            cooled += usize::from(self.try_cool(at as u32, &mut fence));
        }
    }

    /// Makes a hot page cool, unless it is in use or one of its children is in a frame.
    fn try_cool(&self, frame: u32, fence: &mut Vec<u8>) -> bool {
        let header = self.header(frame);
        if header.state() != State::Hot {
            return false;
        }
        let Some(seen) = self.try_seen(frame) else { return false };
        let Some((parent, position)) = self.parent_of(frame, seen, fence) else { return false };
        let Some(parent) = self.try_latch_seen(parent) else { return false };
        let Some(child) = self.try_latch_seen(seen) else { return false };
        let is_hot = parent.node().child(position).at == Swip::Hot(frame).pack();
        if !is_hot || has_children_in_frames(&child.node()) {
            return false;
        }
        self.set_swip(&parent, position, Swip::Cool(frame));
        header.set_state(State::Cool);
        drop((child, parent));
        self.cooling.lock().push_back(frame);
        true
    }

    /// Evicts a cool page that is clean. A page that cannot be evicted now goes to the end of the queue.
    fn try_evict(&self, frame: u32) -> bool {
        let evicted = self.evict_if_clean(frame);
        if evicted {
            // Relaxed: a statistic.
            self.evictions.fetch_add(1, Relaxed);
            self.give_free([frame]);
        } else if self.header(frame).state() == State::Cool {
            self.cooling.lock().push_back(frame);
        }
        evicted
    }

    fn evict_if_clean(&self, frame: u32) -> bool {
        let Some(seen) = self.try_seen(frame) else { return false };
        let mut fence = Vec::new();
        let Some((parent, position)) = self.parent_of(frame, seen, &mut fence) else {
            return false;
        };
        let Some(parent) = self.try_latch_seen(parent) else { return false };
        let Some(child) = self.try_latch_seen(seen) else { return false };
        let header = child.header();
        let is_cool = parent.node().child(position).at == Swip::Cool(frame).pack();
        if !is_cool || header.is_dirty() || header.is_written() {
            return false;
        }
        if has_children_in_frames(&child.node()) {
            self.set_swip(&parent, position, Swip::Hot(frame));
            header.set_state(State::Hot);
            return false;
        }
        self.set_swip(&parent, position, Swip::Out(header.page()));
        header.set_state(State::Free);
        true
    }

    /// Evicts pages that were read and that nobody has attached.
    fn evict_loaded(
        self: &Arc<Self>,
        count: usize,
        purpose: Purpose,
    ) -> Result<usize, BackingError> {
        let (mut dirty, mut freed) = (Vec::new(), Vec::new());
        let mut loads = self.loads.lock();
        loads.retain(|_, load| {
            let Load::Loaded(frame) = load else { return true };
            let Some(latched) = self.try_latch(*frame) else { return true };
            let header = latched.header();
            if header.is_dirty() || header.is_written() {
                dirty.push(*frame);
                return true;
            }
            let evicts = freed.len() < count;
            if evicts {
                header.set_state(State::Free);
                freed.push(*frame);
            }
            !evicts
        });
        drop(loads);
        let count = freed.len();
        self.give_free(freed);
        if count == 0 && !dirty.is_empty() {
            dirty.truncate(BUNCH);
            self.backing.write_back(&**self, &dirty, purpose)?;
        }
        Ok(count)
    }

    /// Ends reads that have arrived, and that nobody may be waiting for.
    fn end_reads(&self) {
        let reading: Vec<_> = {
            let loads = self.loads.lock();
            let reading = loads.values().filter_map(|load| match load {
                Load::Reading(loading) => Some(loading.clone()),
                Load::Loaded(_) => None,
            });
            reading.collect()
        };
        for loading in reading {
            loading.end_if_done();
        }
    }

    /// Writes back every page that was dirty when the call began. Waits for each page that somebody is
    /// changing: its record may be in a log already.
    ///
    /// # Errors
    /// The backing cannot write pages.
    pub fn write_all(&self) -> Result<(), PoolError> {
        let mut backoff = Backoff::new();
        let frames = 0..self.frame_count() as u32;
        let mut left: Vec<(u32, u64, u64)> = frames
            .filter_map(|frame| {
                let header = self.header(frame);
                let is_free = mutant!(true, SkipsLatched => false);
                let _ = is_free.then(|| self.seen(frame));
                let is_dirty = header.state() != State::Free && header.is_dirty();
                is_dirty.then(|| (frame, header.page(), header.stamp().gsn()))
            })
            .collect();
        while !left.is_empty() {
            for bunch in left.chunks(BUNCH * 4) {
                let frames: Vec<u32> = bunch.iter().map(|(frame, ..)| *frame).collect();
                self.backing.write_back(self, &frames, Purpose::Checkpoint)?;
            }
            left.retain(|&(frame, page, gsn)| !self.is_written_up_to(frame, page, gsn));
            if !left.is_empty() {
                backoff.wait();
            }
        }
        Ok(())
    }

    /// Whether the page that a frame held has a copy with this gsn or a later one.
    fn is_written_up_to(&self, frame: u32, page: u64, gsn: u64) -> bool {
        let header = self.header(frame);
        // Only a clean page leaves its frame.
        header.state() == State::Free || header.page() != page || header.is_persisted_to(gsn)
    }
}

fn has_children_in_frames(node: &Node<'_>) -> bool {
    node.kind() == Some(NodeKind::Inner)
        && (0..node.child_count())
            .any(|position| Swip::unpack(node.child(position).at).frame().is_some())
}

impl DirtyFrames for Pool {
    fn claim(&self, frame: u32) -> bool {
        // With a share of the latch, since an eviction latches the frame and looks at the flag.
        let Some(_shared) = self.try_share(frame) else { return false };
        let header = self.header(frame);
        header.state() != State::Free && header.is_dirty() && header.begin_writing()
    }

    fn copy(&self, frame: u32, out: &mut [u8]) -> Option<Copied> {
        let mut backoff = Backoff::new();
        for _ in 0..64 {
            if let Some(copied) = self.try_seen(frame).and_then(|seen| self.try_copy(seen, out)) {
                return Some(copied);
            }
            backoff.wait();
        }
        None
    }

    fn placed(&self, frame: u32, gsn: u64) {
        let header = self.header(frame);
        let gsn = mutant!(gsn, PresentGsnPersisted => header.stamp().gsn());
        header.set_persisted(gsn);
        // Relaxed: a statistic.
        self.writes.fetch_add(1, Relaxed);
    }

    fn release(&self, frame: u32) {
        self.header(frame).end_writing();
    }
}

impl Pool {
    /// Copies a page. `None` if it has changed meanwhile.
    fn try_copy(&self, seen: FrameVersion, out: &mut [u8]) -> Option<Copied> {
        let (header, node) = (self.header(seen.frame), self.node(seen.frame));
        let copied = Copied { page: header.page(), stamp: header.stamp() };
        let scratch = (node.kind() == Some(NodeKind::Inner)).then(|| copy_of(node));
        if scratch.is_none() {
            words::read_into(node.words(), 0, out);
        }
        if header.state() == State::Free || !self.is_still(seen) {
            return None;
        }
        let Some(scratch) = scratch else { return Some(copied) };
        // The copy is of one state. Its children stay in their frames as long as the version holds.
        mutant!(self.unswizzle(&Node::new(&scratch)), FrameOnDisk => ());
        if !self.is_still(seen) {
            return None;
        }
        words::read_into(&scratch, 0, out);
        Some(copied)
    }
}
