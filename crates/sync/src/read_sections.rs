//! Read sections, and grace periods that wait for open ones (as in RCU).
//!
//! A worker enters its read section before it looks at shared structures or reads the phase, and
//! leaves it soon after. A grace period begins after a change was published. The grace period has
//! passed when every read section has been left that was open at its beginning. A worker that
//! enters later sees the change.
//!
//! ```text
//! worker:  slot := odd;  fence;  read the phase …        slot := even
//! driver:  publish the phase;  fence;  read the slots;  wait for the odd ones to change
//! ```
//! The two fences make it impossible that the worker misses the change *and* the driver misses
//! the worker (Dekker).

use std::sync::Arc;

use crate::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::{Backoff, CachePadded};

#[derive(Debug)]
struct Slot {
    /// Odd while the owner is in its read section.
    turns: AtomicU64,
    claimed: AtomicBool,
}

/// One slot per worker. A clone has the same slots.
#[derive(Clone, Debug)]
pub struct ReadSections {
    slots: Arc<[CachePadded<Slot>]>,
}

/// A grace period under way: it waits for the slots that were odd at its begin.
#[derive(Debug, Clone)]
pub struct GracePeriod {
    open: Vec<(usize, u64)>,
}

impl ReadSections {
    /// Slots for `capacity` workers.
    pub fn new(capacity: usize) -> Self {
        let slot =
            || CachePadded::new(Slot { turns: AtomicU64::new(0), claimed: AtomicBool::new(false) });
        Self { slots: (0..capacity).map(|_| slot()).collect() }
    }

    /// Number of slots.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Claims a slot for one worker. `None` if all are taken. [`unclaim`](Self::unclaim) frees the
    /// slot.
    pub fn claim(&self) -> Option<usize> {
        self.slots.iter().position(|slot| {
            slot.claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })
    }

    /// Frees a slot.
    pub fn unclaim(&self, slot: usize) {
        debug_assert!(!self.is_open(slot), "gave back an open read section");
        self.slots[slot].claimed.store(false, Ordering::Release);
    }

    /// Opens the read section of a claimed slot.
    #[inline]
    pub fn enter(&self, slot: usize) {
        let turns = &self.slots[slot].turns;
        // Relaxed load: the owner is the only writer. The store is Release, like the store in
        // `exit`. `has_passed` may see either store, and must then see all effects of the previous
        // read section. The fence orders the store before all that follows, partner of the fence in
        // `token`.
        let now = turns.load(Ordering::Relaxed);
        debug_assert!(now.is_multiple_of(2), "read section entered twice");
        turns.store(now + 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Closes the read section of a claimed slot.
    #[inline]
    pub fn exit(&self, slot: usize) {
        let turns = &self.slots[slot].turns;
        // Relaxed load: the owner is the only writer. The store releases to `has_passed`.
        let now = turns.load(Ordering::Relaxed);
        debug_assert!(!now.is_multiple_of(2), "read section left twice");
        turns.store(now + 1, Ordering::Release);
    }

    /// Whether the slot's owner is in its read section.
    pub fn is_open(&self, slot: usize) -> bool {
        !self.slots[slot].turns.load(Ordering::Acquire).is_multiple_of(2)
    }

    /// Opens the read section of a claimed slot. A drop of the guard closes the read section.
    #[inline]
    pub fn read_section(&self, slot: usize) -> ReadSection<'_> {
        self.enter(slot);
        ReadSection { read_sections: self, slot }
    }

    /// Begins a grace period. Read sections that open after this call see everything published
    /// before it.
    pub fn token(&self) -> GracePeriod {
        fence(Ordering::SeqCst);
        let turns = |slot: &CachePadded<Slot>| slot.turns.load(Ordering::Acquire);
        let open = self.slots.iter().map(turns).enumerate();
        GracePeriod { open: open.filter(|(_, turns)| !turns.is_multiple_of(2)).collect() }
    }

    /// Whether every read section that was open at the token's beginning has been left.
    pub fn has_passed(&self, token: &mut GracePeriod) -> bool {
        token.open.retain(|&(slot, turns)| self.slots[slot].turns.load(Ordering::Acquire) == turns);
        token.open.is_empty()
    }

    /// Waits a grace period. Never call this inside a read section.
    pub fn wait_grace_period(&self) {
        let mut token = self.token();
        let mut backoff = Backoff::new();
        while !self.has_passed(&mut token) {
            backoff.wait();
        }
    }
}

/// An open read section. A drop closes the section.
#[derive(Debug)]
pub struct ReadSection<'a> {
    read_sections: &'a ReadSections,
    slot: usize,
}

impl Drop for ReadSection<'_> {
    fn drop(&mut self) {
        self.read_sections.exit(self.slot);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_grace_period_waits_for_open_read_sections_only() {
        let read_sections = ReadSections::new(3);
        let a = read_sections.claim().expect("room");
        let b = read_sections.claim().expect("room");
        assert_ne!(a, b);
        read_sections.enter(a);
        let mut token = read_sections.token();
        assert!(!read_sections.has_passed(&mut token));
        read_sections.enter(b);
        assert!(!read_sections.has_passed(&mut token), "a is still open");
        read_sections.exit(a);
        assert!(read_sections.has_passed(&mut token), "b entered later and is not waited for");
        read_sections.enter(a);
        assert!(read_sections.has_passed(&mut token), "a's new read section is a later one");
        read_sections.exit(a);
        read_sections.exit(b);
        read_sections.unclaim(a);
        assert_eq!(read_sections.claim(), Some(a));
    }
}
