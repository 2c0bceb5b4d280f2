//! CALC, full checkpoints (Ren, Diamond, Abadi, Thomson: *Low-Overhead Asynchronous Checkpointing
//! in Main-Memory Database Systems*, SIGMOD 2016, §2.2), by before-image.
//!
//! The idea: nothing stops. The point of consistency is a place in commit order, the moment in
//! which the phase becomes RESOLVE. A commit reads the phase while it holds all its locks. One that
//! reads PREPARE or earlier belongs to the checkpoint. The first later commit that changes a record
//! not captured yet saves the before-image: the value that the record had until then. The commit
//! encodes the value into the checkpoint's output (semi-fuzzy output, SIREN, ICDE 2006, §3) and
//! marks the record as captured. Meanwhile the capture scan emits and marks all other records. The
//! thread that sets the mark emits. So each record is in the checkpoint once, with its value at the
//! point of consistency. What "marked" means alternates with the epoch, so no pass resets anything.
//! Commits and scan never wait for each other: one exchange, the *claim*, sets the mark.
//!
//! ```text
//!            REST ───► PREPARE ───►│ RESOLVE ───► CAPTURE ───► COMPLETE ───► REST
//!  epoch      e           e        │  e + 1        e + 1        e + 1       e + 1
//!                                  └ virtual PoC
//!  commit:   plain       plain        saves the before-image   plain (all is marked)
//!                                     of an unmarked record
//!  scan:                              –            emits the    –
//!                                                  unmarked
//!  waits for:       read sections    read sections    scan, sink   read sections
//!                   of REST          of PREPARE                    of CAPTURE, queue
//! ```
//! A read section here is a commit of microseconds; no phase waits for an open transaction.
//!
//! Invariants:
//! 1. The phase is read with all locks held: if T2 saw T1's write, T1's epoch ≤ T2's.
//! 2. A commit of the new epoch changes a record after its mark was set, by the commit or by the
//!    scan. The thread that sets the mark emits.
//!    - A commit claims the mark first and emits then, since its lock keeps the value from changing.
//!    - The scan has no lock: it copies the value first and claims then. If the mark was set
//!      meanwhile, the copy may be torn, and the scan takes it back. If not, nobody has changed the
//!      record before the claim. The proof, down to the orderings, is in `crates/store/src/capture.rs`.
//!    - A record that a commit of the new epoch inserts is born marked. A record that the commit
//!      inserts again after a deletion is claimed, with nothing to emit.
//! 3. The scan begins after the end of every read section that could commit in the old epoch. So an
//!    unmarked record that the scan meets is in the state of the point of consistency.
//! 4. When the epoch ends every record is marked, even if the checkpoint failed: the scan is
//!    finished without output. Otherwise a record left unmarked would look captured to the next
//!    checkpoint and be missing from it.
//!
//! Deviations from the paper, whose reasons are in docs/decisions/0001 and 0002:
//! - Records have no stable versions, since before-images go to the sink. So they need no add and
//!   delete status bits either.
//! - PREPARE makes no private copies, since a commit knows its phase before its first write.
//! - No phase waits for open transactions, since they have changed nothing.

use std::sync::Arc;

use stillpoint_store::{Capture, Checkpointer, PointOfConsistency, Store};

/// The scheme has no state of its own: its state is in the marks and in the sink.
struct Calc;

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(Calc))
}

impl Checkpointer for Calc {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Virtual
    }

    /// Scans the unit even if the checkpoint is given up, since the marks are needed (invariant 4).
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        store.capture_unmarked(unit, to);
    }
}
