//! Asymmetric fences. Two fences order a store before a load against each other, and one side pays
//! for both (P1202).
//!
//! ```text
//! often:   store A;  light();  load B
//! rarely:  store B;  heavy();  load A        one of the two loads sees the other side's store
//! ```
//! Two ordinary fences have the same effect (Dekker), but each of them waits for all stores under
//! way. The system call membarrier(2) makes every processor that runs a thread of this process pass
//! a full barrier. So the light side only keeps the compiler from reordering. Without
//! membarrier(2), both are ordinary fences.

#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
use rustix::thread::{MembarrierCommand, membarrier};

use crate::atomic::{Ordering, fence};

/// The two fences.
#[derive(Clone, Copy, Debug)]
pub struct AsymmetricFences {
    /// Whether membarrier(2) does the work of the light side.
    by_system: bool,
}

impl AsymmetricFences {
    /// A light fence without cost if the system has membarrier(2). Otherwise two ordinary fences.
    pub fn new() -> Self {
        Self { by_system: is_registered() }
    }

    /// Two ordinary fences.
    pub fn even() -> Self {
        Self { by_system: false }
    }

    /// True if the light fence costs nothing.
    pub fn is_asymmetric(&self) -> bool {
        self.by_system
    }

    /// The fence of the side that must be fast.
    #[inline(always)]
    pub fn light(&self) {
        if self.by_system {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst); // partner of the one in `heavy`
        }
    }

    /// The fence of the rare side. The fence takes some microseconds and interrupts the process's
    /// other running threads.
    ///
    /// # Panics
    /// If membarrier(2) fails although the process has registered for it, since then no order is
    /// certain.
    pub fn heavy(&self) {
        #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
        if self.by_system {
            let passed = membarrier(MembarrierCommand::PrivateExpedited);
            return passed.expect("membarrier(2) has worked when the process registered for it");
        }
        fence(Ordering::SeqCst); // partner of the one in `light`
    }
}

impl Default for AsymmetricFences {
    fn default() -> Self {
        Self::new()
    }
}

/// Registers the process for membarrier(2). False if the system has no such barrier.
#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
fn is_registered() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

/// False: other systems have no such call, and model checkers know ordinary fences only.
#[cfg(not(all(target_os = "linux", not(any(loom, shuttle)))))]
fn is_registered() -> bool {
    false
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::atomic::AtomicUsize;
    use crate::{Backoff, CachePadded};
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};

    /// Rounds of the test, in which both sides store and load at about the same time.
    const ROUNDS: usize = 20_000;

    /// Announces that this side has reached a round, and waits for the other side.
    fn meet(mine: &AtomicUsize, other: &AtomicUsize, round: usize) {
        mine.store(round, SeqCst);
        let mut backoff = Backoff::new();
        while other.load(SeqCst) < round {
            backoff.wait();
        }
    }

    #[test]
    fn one_of_the_two_sees_the_other() {
        for fences in [AsymmetricFences::new(), AsymmetricFences::even()] {
            let cell = || CachePadded::new(AtomicUsize::new(0));
            let (often, rarely, seen_often) = (cell(), cell(), cell());
            let (mine, other) = (cell(), cell());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=ROUNDS {
                        meet(&mine, &other, 2 * round);
                        often.store(round, Relaxed);
                        fences.light();
                        seen_often.store(rarely.load(Relaxed), Relaxed);
                        meet(&mine, &other, 2 * round + 1);
                    }
                });
                for round in 1..=ROUNDS {
                    meet(&other, &mine, 2 * round);
                    rarely.store(round, Relaxed);
                    fences.heavy();
                    let seen_rarely = often.load(Relaxed);
                    meet(&other, &mine, 2 * round + 1);
                    let seen = (seen_often.load(Relaxed), seen_rarely);
                    assert!(seen.0 == round || seen.1 == round, "round {round}: {seen:?}");
                }
            });
        }
    }
}
