//! Fork: copy-on-update by the system. Sources: Li et al., *Consistent Snapshots*, ICDE 2018, §II-A.2;
//! Redis saves so. The parent writes the file, by decision 0008.
//!
//! At a physical point of consistency the process forks. The child keeps the memory as it was, and
//! stands still. The capture threads of the parent read the child's memory
//! ([`HeldRecords`](stillpoint_store::HeldRecords)). Commits run no code of the scheme, but the system
//! copies each page at its first write.
//!
//! ```text
//! commits   … │ fork │ write ↯ write … write ↯        ↯ the system copies a page
//! child       └──────┴── holds the memory ────┐
//! capture            └──── child → lanes ─────┘
//! ```
//! Invariants:
//! 1. No commit is under way at the fork, so no cell in the child is being written.
//! 2. The child allocates nothing, takes no lock, and ends with its parent (`stillpoint_io::ForkedMemory`).
//! 3. A fork that is refused, a child that is killed, and a read that is denied fail this checkpoint
//!    alone. Nothing is marked that the next one needs.
//! 4. The child's private pages count against the memory limit while the child lives.
//!
//! Deviation: with deferred updates the point of consistency waits for commits under way, and not for
//! open transactions.

use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_io::{ForkError, ForkedMemory};
use stillpoint_store::{
    Capture, CaptureError, Checkpointer, HeldMemory, HeldRecords, PointOfConsistency, Store,
};

/// Looks at the pages of the child in a capture, at most. A look walks all of its page tables.
const LOOKS: usize = 16;
/// Fewest slabs between two looks.
const SLABS_PER_LOOK: usize = 8;

/// Makes the memory of a point of consistency.
type Hold = dyn Fn() -> Result<Box<dyn HeldMemory>, ForkError> + Send + Sync;

struct Fork {
    make: Box<Hold>,
    /// The records of the point of consistency, or why they cannot be read.
    held: Mutex<Option<Result<Arc<HeldRecords>, ForkError>>>,
}

impl Fork {
    fn new(make: Box<Hold>) -> Self {
        Fork { make, held: Mutex::default() }
    }
}

fn fork() -> Result<Box<dyn HeldMemory>, ForkError> {
    Ok(Box::new(ForkedMemory::fork()?))
}

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(Fork::new(Box::new(fork))))
}

impl Checkpointer for Fork {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Physical
    }

    fn hold(&self) -> Result<(), CaptureError> {
        let held = Arc::new(HeldRecords::new((self.make)()?));
        *self.held.lock() = Some(Ok(held));
        Ok(())
    }

    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        if to.is_abandoned() {
            return;
        }
        let held = match &*self.held.lock() {
            Some(Ok(held)) => held.clone(),
            Some(Err(_)) => return,
            None => unreachable!("the point of consistency has a child"),
        };
        if unit.is_multiple_of(store.group_count().div_ceil(LOOKS).max(SLABS_PER_LOOK)) {
            store.note_child_bytes(held.private_bytes());
        }
        if let Err(error) = held.capture(store, unit, to) {
            *self.held.lock() = Some(Err(error));
        }
    }

    fn release(&self, store: &Store) -> Result<(), CaptureError> {
        let held = self.held.lock().take();
        if let Some(Ok(held)) = &held {
            store.note_child_bytes(held.private_bytes());
        }
        store.note_child_bytes(0);
        held.map_or(Ok(()), |held| Ok(held.map(drop)?))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
