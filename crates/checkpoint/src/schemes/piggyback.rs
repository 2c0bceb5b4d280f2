//! Piggyback (Li, Wang, Chen, Liu, Zhang, Zhou: *Consistent Snapshot Algorithms for In-Memory Database
//! Systems: Experiments and Analysis*, ICDE 2018, §III-B), for records: full by nature.
//!
//! Each cell has two copies. Commits of an epoch write the copy of its parity. So at the point of
//! consistency nothing changes but the epoch, and no pass over the cells is needed. The capture
//! reads the other copy, which no commit writes any more. After the capture, a copier brings over
//! the records that no commit has written in the new epoch. So when the epoch ends, the copy of its
//! parity has every record.
//!
//! ```text
//!  epoch      e          │ e + 1                                │ e + 2
//!  copy 0   commits      │ scan ─ read by the copier            │ commits
//!  copy 1                │ commits ──────── copier ──▶ whole    │ scan
//! ```
//! Invariants:
//! 1. At the end of epoch e, copy *e mod 2* of each record is its newest value. A commit of e wrote
//!    this copy, or the copier has brought the value over.
//! 2. The thread that claims a record in an epoch writes the copy: the first commit, or the copier.
//!    A commit that comes second waits for the copier, for the length of one copy.
//! 3. The copier is done before the next checkpoint enters PREPARE. Work that was cut off begins again,
//!    at the pace, with all capture threads.
//!
//! Deviations: the paper has one mutator and a physical point of consistency. Here the point of
//! consistency is a place in commit order, since the epoch of a commit tells which copy it writes.

use std::sync::Arc;

use stillpoint_store::rules::alternate_copy;
use stillpoint_store::{Capture, Checkpointer, PointOfConsistency, Store};
use stillpoint_sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::changes::bring_all_over;

#[derive(Default)]
struct Piggyback {
    /// The last epoch in which the copier has come to its end.
    copied_in: AtomicU64,
}

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(Piggyback::default()))
}

impl Checkpointer for Piggyback {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Virtual
    }

    fn published_point(&self) -> PointOfConsistency {
        PointOfConsistency::Physical
    }

    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        if !to.is_abandoned() {
            let stable = alternate_copy(store.driver().now().epoch() + 1);
            store.scan_records(unit, to, &mut |cell| cell.take_copy(stable));
        }
    }

    fn has_work_left(&self, epoch: u64) -> bool {
        // SeqCst: another thread may have done the work. Cells that were made later have their value in
        // the copy of the epoch from the start.
        self.copied_in.load(SeqCst) != epoch
    }

    fn after_capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        bring_all_over(store, unit, to);
    }

    fn after_capture_ended(&self, epoch: u64) {
        // SeqCst: as in `has_work_left`.
        self.copied_in.store(epoch, SeqCst);
    }
}
