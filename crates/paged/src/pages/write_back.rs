//! Write-back of a batch of frames, for whoever evicts and for checkpoints alike.

use std::ops::Range;

use stillpoint_format::pages::{MapEntry, PageId, seal_page};
use stillpoint_io::{AlignedBuf, Transfer};
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::mutant;

use super::error::PagesError;
use super::planted;
use super::store::{PageStore, Space};
use crate::backing::{DirtyFrames, Purpose};

/// Most bytes of one write.
const RUN_BYTES: usize = 1 << 20;
/// Most bytes of the copies of one batch, and of the buffers that are kept for the next one.
const BATCH_BYTES: usize = 8 << 20;
/// Most frames of one batch.
const BATCH_FRAMES: usize = 1024;

/// Claimed frames. A drop releases all of them, also after an error or a panic.
struct Claims<'a> {
    frames: &'a dyn DirtyFrames,
    claimed: Vec<u32>,
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        for frame in &self.claimed {
            self.frames.release(*frame);
        }
    }
}

/// Slots that were taken for a batch and have no page yet. A drop gives them back.
struct TakenSlots<'a> {
    store: &'a PageStore,
    slots: Vec<u64>,
}

impl Drop for TakenSlots<'_> {
    fn drop(&mut self) {
        let mut space = self.store.space.lock();
        for slot in self.slots.drain(..) {
            space.slots.release(slot);
        }
    }
}

/// A copy of a frame on its way to a slot.
struct Placing {
    frame: u32,
    page: PageId,
    entry: MapEntry,
    gsn: u64,
}

impl PageStore {
    /// Writes some frames back: those that can be claimed. Returns how many were written. An eviction
    /// leaves the slots that are held back to the checkpoints, which free others.
    ///
    /// # Errors
    /// [`PagesError::Full`]: the present batch was not written. Else the store has failed: nothing
    /// advances.
    pub fn write_frames(
        &self,
        frames: &dyn DirtyFrames,
        candidates: &[u32],
        purpose: Purpose,
    ) -> Result<usize, PagesError> {
        let mut bufs = self.writing.lock();
        let mut written = 0;
        let frames_max = (BATCH_BYTES / self.config.page_bytes).min(BATCH_FRAMES);
        for candidates in candidates.chunks(frames_max) {
            self.check_alive()?;
            written += self.write_batch(frames, candidates, purpose, &mut bufs)?;
            // Each buffer has room for the longest run that it has ever had.
            let mut kept = 0;
            bufs.retain(|buf| {
                kept += buf.capacity();
                kept <= BATCH_BYTES
            });
        }
        Ok(written)
    }

    fn write_batch(
        &self,
        frames: &dyn DirtyFrames,
        candidates: &[u32],
        purpose: Purpose,
        bufs: &mut Vec<AlignedBuf>,
    ) -> Result<usize, PagesError> {
        let mut claims = Claims { frames, claimed: Vec::with_capacity(candidates.len()) };
        for frame in candidates {
            if frames.claim(*frame) {
                claims.claimed.push(*frame);
            }
        }
        let count = claims.claimed.len() as u64;
        if count == 0 {
            return Ok(0);
        }
        self.have_free_for(count, purpose)?;
        let (runs, mut taken) = self.take_runs(count);
        let mut placings = Vec::with_capacity(claims.claimed.len());
        let mut copies = Vec::with_capacity(runs.len());
        let mut next = claims.claimed.iter();
        for run in runs {
            let mut buf = bufs.pop().unwrap_or_default();
            self.copy_run(frames, &mut next, &run, &mut buf, &mut placings);
            copies.push((buf, run.start * self.config.page_bytes as u64));
        }
        for placing in &placings {
            self.map.reserve(placing.page)?;
        }
        // From here on the device has the slots, so none may be given back before the writes end.
        let write = |(buf, offset)| self.queue.write(&self.data, buf, offset);
        let writes: Vec<Transfer> = copies.into_iter().map(write).collect();
        self.queue.submit();
        mutant!(PersistedBeforeWritten => {
            placings.iter().for_each(|placing| frames.placed(placing.frame, placing.gsn));
        });
        self.end_writes(&writes, bufs)?;
        // The round of the map that names these slots flushes them first. Until then they count in memory
        // alone, and a read finds them.
        let placed = self.place(&placings, &mut taken);
        for placing in &placings {
            frames.placed(placing.frame, placing.gsn);
        }
        // Relaxed: a count.
        self.writes.fetch_add(placed, Relaxed);
        Ok(placings.len())
    }

    /// Grows the file for a batch, and ahead of the next ones.
    fn have_free_for(&self, count: u64, purpose: Purpose) -> Result<(), PagesError> {
        let (held_back, rollback) = (self.held_back(0), self.rollback_slots());
        let ahead = self.config.growth_bytes / self.config.page_bytes as u64 / 2;
        match self.have_free(count + held_back + rollback + ahead) {
            Err(PagesError::Full { .. }) => {}
            result => return result,
        }
        let left = match purpose {
            Purpose::Eviction => held_back + rollback,
            Purpose::GoOn => held_back + mutant!(0, UndoHeldBack => rollback),
            Purpose::Checkpoint => 0,
        };
        self.have_free(count + left)
    }

    /// Takes runs of so many free slots, which are there.
    fn take_runs(&self, count: u64) -> (Vec<Range<u64>>, TakenSlots<'_>) {
        let longest = (RUN_BYTES / self.config.page_bytes) as u64;
        let mut runs = Vec::new();
        let mut taken = TakenSlots { store: self, slots: Vec::with_capacity(count as usize) };
        let mut space = self.space.lock();
        let mut missing = count;
        while missing > 0 {
            let run = space.slots.take_run(missing.min(longest));
            let run = run.expect("a write-back is the only taker of free slots");
            missing -= run.end - run.start;
            taken.slots.extend(run.clone());
            runs.push(run);
        }
        (runs, taken)
    }

    /// Copies frames into the buffer of a run. A frame that cannot be copied leaves no gap, but a
    /// slot at the end of the run.
    fn copy_run(
        &self,
        frames: &dyn DirtyFrames,
        next: &mut std::slice::Iter<'_, u32>,
        run: &Range<u64>,
        buf: &mut AlignedBuf,
        placings: &mut Vec<Placing>,
    ) {
        let page_bytes = self.config.page_bytes;
        let bytes = (run.end - run.start) as usize * page_bytes;
        buf.clear();
        buf.resize(bytes, 0);
        let mut slots = run.clone();
        for out in buf.chunks_exact_mut(page_bytes) {
            let copied = next.find_map(|frame| Some((*frame, frames.copy(*frame, out)?)));
            let (Some((frame, copied)), Some(slot)) = (copied, slots.next()) else { break };
            let (page, gsn) = (PageId(copied.page), copied.stamp.gsn());
            seal_page(self.config.store, page, out);
            placings.push(Placing { frame, page, entry: MapEntry::new(slot, gsn), gsn });
        }
    }

    /// Waits for all writes, also after a failure of one: the buffers are in use until then.
    fn end_writes(
        &self,
        writes: &[Transfer],
        bufs: &mut Vec<AlignedBuf>,
    ) -> Result<(), PagesError> {
        let mut failed = None;
        for write in writes {
            self.queue.wait(write);
            if let Some(ended) = write.take() {
                bufs.extend(ended.buf);
                failed = failed.or(ended.result.err());
            }
        }
        failed.map_or(Ok(()), |error| self.or_fail(Err(error)))
    }

    /// Moves pages to their new slots, and gives up their old ones. Returns how many have moved.
    fn place(&self, placings: &[Placing], taken: &mut TakenSlots<'_>) -> u64 {
        let Space { slots, ids, unplaced } = &mut *self.space.lock();
        let mut moved = 0;
        let mut kept: Vec<u64> = Vec::with_capacity(placings.len());
        for placing in placings {
            if ids.has_left(placing.page) {
                continue;
            }
            kept.push(placing.entry.slot);
            moved += 1;
            match self.map.set(placing.page, Some(placing.entry)) {
                Some(before) => slots.release(before.slot),
                None if placing.page >= PageId::FIRST => *unplaced = unplaced.saturating_sub(1),
                None => {}
            }
        }
        kept.sort_unstable();
        taken.slots.retain(|slot| kept.binary_search(slot).is_err());
        moved
    }
}
