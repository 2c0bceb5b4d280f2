//! A mutex with a condition variable, switchable to the model checkers.

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(any(loom, shuttle)))]
use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(shuttle)]
use shuttle::sync::{Condvar, Mutex, MutexGuard};

/// State behind a mutex, and a condition variable for its changes.
#[derive(Debug, Default)]
pub(crate) struct Monitor<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T> Monitor<T> {
    pub(crate) fn new(state: T) -> Self {
        Monitor { state: Mutex::new(state), changed: Condvar::new() }
    }

    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock()
    }

    #[cfg(any(loom, shuttle))]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().expect("a model's thread has panicked")
    }

    /// Releases the lock, waits for [`Monitor::notify_all`], and takes it again.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn wait<'a>(&'a self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.changed.wait(&mut guard);
        guard
    }

    #[cfg(any(loom, shuttle))]
    pub(crate) fn wait<'a>(&'a self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.changed.wait(guard).expect("a model's thread has panicked")
    }

    /// As [`Monitor::wait`], for at most `timeout`.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn wait_for<'a>(
        &'a self,
        mut guard: MutexGuard<'a, T>,
        timeout: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        self.changed.wait_for(&mut guard, timeout);
        guard
    }

    pub(crate) fn notify_all(&self) {
        self.changed.notify_all();
    }
}
