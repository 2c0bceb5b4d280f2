//! CALC, full checkpoints (Ren, Diamond, Abadi, Thomson: *Low-Overhead Asynchronous Checkpointing
//! in Main-Memory Database Systems*, SIGMOD 2016, §2.2), by before-image.
//!
//! The idea: nothing stops. The point of consistency is a place in commit order, the moment in
//! which the phase becomes RESOLVE. A commit reads the phase while it holds all its locks. One
//! that reads PREPARE or earlier belongs to the checkpoint. The first one after it that meets a
//! record not captured yet saves the record's old value: here it *hands it out*, that is, encodes
//! it into the checkpoint's output (semi-fuzzy output, SIREN, ICDE 2006, §3) and marks the record
//! captured. Meanwhile a walk over all records emits and marks those that nobody has saved.
//! Whoever sets the mark emits, so each record is in the checkpoint once, with the value that it
//! had at the point of consistency. What "marked" means alternates with the epoch, so no pass
//! resets anything. Nobody waits for anybody there: setting the mark is one exchange, the *claim*.
//!
//! ```text
//!            REST ───► PREPARE ───►│ RESOLVE ───► CAPTURE ───► COMPLETE ───► REST
//!  epoch      e           e        │  e + 1        e + 1        e + 1       e + 1
//!                                  └ virtual PoC
//!  commit:   plain       plain        saves the before-image   plain (all is marked)
//!                                     of an unmarked record
//!  walk:                              –            emits the    –
//!                                                  unmarked
//!  waits for:       read sections       read sections of     walk, sink   read sections of
//!                   of REST       PREPARE                     CAPTURE, queue
//! ```
//! "ReadSections" are commit sections of microseconds; no phase waits for a transaction.
//!
//! Invariants:
//! 1. The phase is read with all locks held: if T2 saw T1's write, T1's epoch ≤ T2's.
//! 2. A commit of the new epoch changes a record after its mark was set, by itself or by the walk.
//!    Whoever sets it emits. A commit claims the mark first, since its lock keeps the value from
//!    changing. The walk, which has no lock, copies the value first and claims then: if the mark was
//!    set meanwhile, the copy may be torn, and is taken back; if not, nobody has changed the record
//!    before the claim. (The proof, down to the orderings, is at `Store::capture_cell`.) A record
//!    that a commit of the new epoch inserts is born marked; one that it inserts again after a
//!    deletion is claimed, with nothing to emit.
//! 3. The walk begins after every read section that could commit in the old epoch has closed, so an
//!    unmarked record that it meets is in the state of the point of consistency.
//! 4. When the epoch ends every record is marked, even if the checkpoint failed: the walk is
//!    finished without output. Otherwise a record left unmarked would look captured to the next
//!    checkpoint and be missing from it.
//!
//! Deviations from the paper, whose reasons are in docs/decisions/0001 and 0002: no stable
//! versions in the records (they are saved to the sink), hence no add and delete status bits either; no
//! private copies in PREPARE (a commit knows its phase before its first write); no phase waits for
//! open transactions (they have changed nothing).

use std::sync::Arc;

use stillpoint_store::{Capture, Checkpointer, PointOfConsistency, Store};

/// All that it remembers is in the marks and in the sink.
struct Calc;

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(Calc))
}

impl Checkpointer for Calc {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Virtual
    }

    /// Walks on though the checkpoint is given up: the marks are needed (invariant 4).
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        store.capture_unmarked(unit, to);
    }
}
