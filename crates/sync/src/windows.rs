//! Windows: short announced sections, and grace periods that wait for the open ones.
//!
//! A worker enters its window before it looks at shared structures or reads the phase, and leaves
//! it soon after. A grace period, begun after a change was published, has passed when every window
//! that was open at its beginning has been left; whoever enters later sees the change.
//!
//! ```text
//! worker:  slot := odd;  fence;  read the phase …        slot := even
//! driver:  publish the phase;  fence;  read the slots;  wait for the odd ones to change
//! ```
//! The two fences make it impossible that the worker misses the change *and* the driver misses
//! the worker (Dekker).

use crate::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::{Backoff, CachePadded};

#[derive(Debug)]
struct Slot {
    /// Odd while the owner is in its window.
    turns: AtomicU64,
    claimed: AtomicBool,
}

/// One slot per worker.
#[derive(Debug)]
pub struct Windows {
    slots: Box<[CachePadded<Slot>]>,
}

/// What a grace period waits for: the slots that were odd when it began.
#[derive(Debug, Clone)]
pub struct GraceToken {
    open: Vec<(usize, u64)>,
}

impl Windows {
    /// Room for `capacity` workers at a time.
    pub fn new(capacity: usize) -> Self {
        let slot =
            || CachePadded::new(Slot { turns: AtomicU64::new(0), claimed: AtomicBool::new(false) });
        Self { slots: (0..capacity).map(|_| slot()).collect() }
    }

    /// How many workers there is room for.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Claims a slot for one worker; `None` if all are taken. Give it back with
    /// [`unclaim`](Self::unclaim).
    pub fn claim(&self) -> Option<usize> {
        self.slots.iter().position(|slot| {
            slot.claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })
    }

    /// Gives a slot back.
    pub fn unclaim(&self, slot: usize) {
        debug_assert!(!self.is_open(slot), "gave back an open window");
        self.slots[slot].claimed.store(false, Ordering::Release);
    }

    /// Opens the window of a claimed slot.
    #[inline]
    pub fn enter(&self, slot: usize) {
        let turns = &self.slots[slot].turns;
        // Relaxed load: the owner is the only writer. The store is Release as that of `exit` is:
        // `has_passed` may see this one instead, and must then see what the window before did.
        // The fence orders it before what follows, partner of the fence in `token`.
        let now = turns.load(Ordering::Relaxed);
        debug_assert!(now.is_multiple_of(2), "window entered twice");
        turns.store(now + 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Closes it.
    #[inline]
    pub fn exit(&self, slot: usize) {
        let turns = &self.slots[slot].turns;
        // Relaxed load: the owner is the only writer. The store releases to `has_passed`.
        let now = turns.load(Ordering::Relaxed);
        debug_assert!(!now.is_multiple_of(2), "window left twice");
        turns.store(now + 1, Ordering::Release);
    }

    /// True if the slot's owner is in its window.
    pub fn is_open(&self, slot: usize) -> bool {
        !self.slots[slot].turns.load(Ordering::Acquire).is_multiple_of(2)
    }

    /// Enters, and leaves when the guard is dropped.
    #[inline]
    pub fn window(&self, slot: usize) -> Window<'_> {
        self.enter(slot);
        Window { windows: self, slot }
    }

    /// Begins a grace period: everything published before this call is seen by all windows that
    /// open after it.
    pub fn token(&self) -> GraceToken {
        fence(Ordering::SeqCst);
        let turns = |slot: &CachePadded<Slot>| slot.turns.load(Ordering::Acquire);
        let open = self.slots.iter().map(turns).enumerate();
        GraceToken { open: open.filter(|(_, turns)| !turns.is_multiple_of(2)).collect() }
    }

    /// True once every window that was open at the token's beginning has been left.
    pub fn has_passed(&self, token: &mut GraceToken) -> bool {
        token.open.retain(|&(slot, turns)| self.slots[slot].turns.load(Ordering::Acquire) == turns);
        token.open.is_empty()
    }

    /// Waits a grace period. Never call it from inside a window.
    pub fn wait_grace(&self) {
        let mut token = self.token();
        let mut backoff = Backoff::new();
        while !self.has_passed(&mut token) {
            backoff.wait();
        }
    }
}

/// An open window; dropping it leaves.
#[derive(Debug)]
pub struct Window<'a> {
    windows: &'a Windows,
    slot: usize,
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        self.windows.exit(self.slot);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_grace_period_waits_for_open_windows_only() {
        let windows = Windows::new(3);
        let a = windows.claim().expect("room");
        let b = windows.claim().expect("room");
        assert_ne!(a, b);
        windows.enter(a);
        let mut token = windows.token();
        assert!(!windows.has_passed(&mut token));
        windows.enter(b);
        assert!(!windows.has_passed(&mut token), "a is still open");
        windows.exit(a);
        assert!(windows.has_passed(&mut token), "b entered later and is not waited for");
        windows.enter(a);
        assert!(windows.has_passed(&mut token), "a's new window is a later one");
        windows.exit(a);
        windows.exit(b);
        windows.unclaim(a);
        assert_eq!(windows.claim(), Some(a));
    }
}
