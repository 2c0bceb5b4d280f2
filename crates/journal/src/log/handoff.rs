//! Sealed batches on their way to the leader, and their buffers on the way back.
//!
//! The handoff has a lock of its own, so that a working leader does not contend with appends, which
//! come here once per batch.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{AtomicUsize, Ordering};

use super::append::Batch;

/// Most buffers that are kept while the log is idle.
const FREE_AT_REST: usize = 4;

#[derive(Debug, Default)]
struct Queue {
    sealed: VecDeque<Batch>,
    free: Vec<Batch>,
    /// Fewest free buffers since the last [`Handoff::trim`].
    free_min: usize,
}

/// The queue between the appending and the writing half of a log.
#[derive(Debug, Default)]
pub(crate) struct Handoff {
    queue: CachePadded<Mutex<Queue>>,
    /// Bytes of records in sealed batches that are not written yet.
    sealed_bytes: CachePadded<AtomicUsize>,
    /// Signalled whenever a written batch makes room.
    room: Condvar,
}

impl Handoff {
    /// Queues a batch that has its place. Called in the order of the places.
    pub(crate) fn push(&self, mut batch: Batch) {
        let bytes = batch.builder.bytes();
        batch.queued_bytes = bytes;
        self.queue.lock().sealed.push_back(batch);
        // SeqCst: partner of the flusher's `Signal::wait`, which must not miss the batch.
        self.sealed_bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// An empty batch, if one is left over.
    pub(crate) fn take_free(&self) -> Option<Batch> {
        let mut queue = self.queue.lock();
        let batch = queue.free.pop();
        queue.free_min = queue.free_min.min(queue.free.len());
        batch
    }

    /// Moves all queued batches to `into`, which is empty.
    pub(crate) fn take_sealed(&self, into: &mut VecDeque<Batch>) {
        debug_assert!(into.is_empty(), "the batches of the turn before are written");
        std::mem::swap(&mut self.queue.lock().sealed, into);
    }

    /// Takes back the buffer of a written batch.
    pub(crate) fn recycle(&self, mut batch: Batch, free_max: usize) {
        let keep = !batch.oversized;
        if keep {
            batch.builder.clear();
            batch.named.clear();
        }
        {
            let mut queue = self.queue.lock();
            self.sealed_bytes.fetch_sub(batch.queued_bytes, Ordering::SeqCst);
            if keep && queue.free.len() < free_max {
                queue.free.push(batch);
            }
        }
        self.room.notify_all();
    }

    /// Bytes of records that wait for a leader.
    #[inline]
    pub(crate) fn sealed_bytes(&self) -> usize {
        self.sealed_bytes.load(Ordering::SeqCst)
    }

    /// Waits for some batch to be written if more than `limit` bytes wait.
    pub(crate) fn wait_for_room(&self, limit: usize, timeout: Duration) {
        let mut queue = self.queue.lock();
        if self.sealed_bytes() > limit {
            self.room.wait_for(&mut queue, timeout);
        }
    }

    /// Ends all waits, since there will be no room any more.
    pub(crate) fn wake_all(&self) {
        self.room.notify_all();
    }

    /// Frees half of the buffers that were unused since the last call.
    pub(crate) fn trim(&self) {
        let mut queue = self.queue.lock();
        let needed = queue.free.len() - queue.free_min;
        let keep = FREE_AT_REST.max(needed + queue.free_min / 2);
        queue.free.truncate(keep);
        queue.free_min = queue.free.len();
    }

    /// Empty buffers held.
    pub(crate) fn free(&self) -> usize {
        self.queue.lock().free.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stillpoint_format::ident::StoreId;
    use stillpoint_format::log::{BatchBuilder, SegmentHeader};

    use super::*;
    use crate::segments::Segment;

    fn batch() -> Batch {
        let header = SegmentHeader {
            store: StoreId([1; 16]),
            created_ms: 0,
            incarnation: 1,
            log: 0,
            first_gsn: 1,
            first_batch: 1,
            file_bytes: 0,
        };
        let segment = Segment {
            identity: header.identity(),
            header,
            bytes: 1 << 20,
            spare: "spare".into(),
            path: "segment".into(),
        };
        Batch {
            builder: BatchBuilder::with_capacity(64),
            named: Vec::new(),
            segment: Arc::new(segment),
            offset: 0,
            number: 0,
            queued_bytes: 0,
            oversized: false,
        }
    }

    #[test]
    fn no_more_buffers_are_kept_than_asked_for() {
        let handoff = Handoff::default();
        let kept = |free_max| {
            handoff.recycle(batch(), free_max);
            handoff.free()
        };
        assert_eq!([2, 2, 2, 3, 0].map(kept), [1, 2, 2, 3, 3]);
        handoff.recycle(Batch { oversized: true, ..batch() }, usize::MAX);
        assert_eq!(handoff.free(), 3, "a long one is given away");
    }

    #[test]
    fn trimming_leaves_what_was_needed_since_the_last_time() {
        let handoff = Handoff::default();
        for _ in 0..40 {
            handoff.recycle(batch(), usize::MAX);
        }
        handoff.trim();
        // Ten buffers are in use at a time, repeatedly.
        for _ in 0..6 {
            let taken: Vec<Batch> =
                (0..10).map(|_| handoff.take_free().expect("there are enough")).collect();
            taken.into_iter().for_each(|batch| handoff.recycle(batch, usize::MAX));
            handoff.trim();
        }
        assert_eq!(handoff.free(), 10);
        for _ in 0..3 {
            handoff.trim();
        }
        assert_eq!(handoff.free(), FREE_AT_REST, "nobody needs them any more");
    }
}
