//! The lock between commands of single keys and commands of whole databases.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};

/// A lock of one stripe for each thread that executes commands. Such a thread locks its own stripe
/// while it executes, and one thread can lock all stripes.
///
/// So event loops and threads for long commands share no cache line here.
#[derive(Debug)]
pub(crate) struct KeyspaceLock {
    stripes: Box<[Mutex<()>]>,
    /// Whether one thread has all stripes. Relaxed: who holds a stripe sees what its last holder wrote.
    is_alone: AtomicBool,
}

/// All stripes of a lock.
#[derive(Debug)]
pub(crate) struct Alone<'a> {
    is_alone: &'a AtomicBool,
    _stripes: Vec<MutexGuard<'a, ()>>,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.is_alone.store(false, Relaxed);
    }
}

impl KeyspaceLock {
    pub(super) fn new(workers: usize) -> Self {
        let stripes = (0..workers).map(|_| Mutex::new(())).collect();
        Self { stripes, is_alone: AtomicBool::new(false) }
    }

    /// Lets event loop `worker`, or another thread of that number, execute commands.
    pub(crate) fn enter(&self, worker: usize) -> MutexGuard<'_, ()> {
        self.stripes[worker].lock()
    }

    /// Keeps every event loop out. The caller must not hold a stripe.
    pub(crate) fn alone(&self) -> Alone<'_> {
        // All callers lock in one order, so two of them cannot wait for each other. The last stripes
        // are those of long commands: while the caller waits for their end, event loops go on.
        let stripes = self.stripes.iter().rev().map(Mutex::lock).collect();
        self.is_alone.store(true, Relaxed);
        Alone { is_alone: &self.is_alone, _stripes: stripes }
    }

    /// Whether this thread, which holds a stripe, holds all of them.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone.load(Relaxed)
    }
}
