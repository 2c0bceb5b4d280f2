//! The lock between commands of single keys and commands of whole databases.

use parking_lot::{Mutex, MutexGuard};

/// A lock of one stripe for each thread that executes commands. Such a thread locks its own stripe
/// while it executes, and one thread can lock all stripes.
///
/// So event loops and threads for long commands share no cache line here.
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
