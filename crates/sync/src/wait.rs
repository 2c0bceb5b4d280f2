//! A wait for another thread, without a lock.

use crate::atomic::spin;
use crate::steps::{Step, step};

/// A wait that first spins, then yields, then sleeps.
#[derive(Debug, Default)]
pub struct Backoff {
    turns: u32,
}

/// Turns spent spinning before the first yield.
const SPINS: u32 = 64;
/// Turns spent yielding before the first sleep.
const YIELDS: u32 = 64;

impl Backoff {
    /// A fresh wait.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the wait only spins so far. Spinning takes nanoseconds, so the caller may stay in
    /// its read section.
    #[inline]
    pub fn is_spinning(&self) -> bool {
        self.turns < SPINS
    }

    /// How often the caller has waited.
    #[inline]
    pub fn turns(&self) -> u32 {
        self.turns
    }

    /// Waits a little, longer each time (at most about 100 µs).
    #[inline]
    pub fn wait(&mut self) {
        self.turns = self.turns.saturating_add(1);
        if step(Step::Waits) {
            return;
        }
        if self.turns < SPINS {
            spin();
        } else {
            self.wait_long();
        }
    }

    #[cold]
    fn wait_long(&self) {
        #[cfg(any(loom, shuttle))]
        spin();
        #[cfg(not(any(loom, shuttle)))]
        if self.turns < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::park_timeout(std::time::Duration::from_micros(100));
        }
        #[cfg(any(loom, shuttle))]
        let _ = YIELDS;
    }
}
