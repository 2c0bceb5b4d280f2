//! A counter with one writer and many readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread counts up and other threads read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the thread that owns the counter may call this.
    pub(crate) fn add(&self, n: u64) {
        // Relaxed: the counter has one writer, and its readers want no order with other memory.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Subtracts 1. Only the thread that owns the counter may call this.
    pub(crate) fn take_back(&self) {
        // Relaxed: as in `add`.
        self.0.store(self.0.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// The number at present, or a slightly older one.
    pub(crate) fn get(&self) -> u64 {
        // Relaxed: partner of the store in `add`.
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the number to zero. A concurrent addition may survive.
    pub(crate) fn clear(&self) {
        // Relaxed: partner of the load in `get`.
        self.0.store(0, Ordering::Relaxed);
    }
}
