//! The lock between commands of single keys and commands of whole databases.

use parking_lot::{Mutex, MutexGuard};

/// A lock that each event loop takes alone while it executes, and that one taker can have whole.
///
/// Each event loop has a stripe of its own, so event loops share no cache line here. So has each
/// thread for long commands.
#[derive(Debug)]
pub(crate) struct KeyspaceLock {
    stripes: Box<[Mutex<()>]>,
}

impl KeyspaceLock {
    pub(super) fn new(workers: usize) -> Self {
        Self { stripes: (0..workers).map(|_| Mutex::new(())).collect() }
    }

    /// Lets event loop `worker`, or another thread of that number, execute commands.
    pub(crate) fn enter(&self, worker: usize) -> MutexGuard<'_, ()> {
        self.stripes[worker].lock()
    }

    /// Keeps every event loop out. The caller must not hold a stripe.
    pub(crate) fn alone(&self) -> Vec<MutexGuard<'_, ()>> {
        // All callers lock in one order, so two of them cannot wait for each other. The last stripes
        // are those of long commands: while the caller waits for their end, event loops go on.
        self.stripes.iter().rev().map(Mutex::lock).collect()
    }
}
