//! The locks of a whole table of the engine: its gates, the gap above all keys, and what purged keys have
//! left behind.
//!
//! A transaction that uses a table holds one of its gates shared. Who empties the table holds all gates.
//! There are several so that more than 255 transactions may use a table, and do not share one word.

use stillpoint_format::Stamp;
use stillpoint_sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Release};
use stillpoint_sync::lock_word::{self, Priority};
use stillpoint_sync::{Backoff, CachePadded, Mutex};

/// Number of gates of a table.
const GATES: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };

/// The locks of a whole table.
#[derive(Debug)]
pub(crate) struct Gates {
    gates: [CachePadded<AtomicU64>; GATES],
    /// The lock of the gap above all keys.
    pub(crate) end_gap: AtomicU64,
    is_emptied: AtomicBool,
    /// For each log, the end of the last transaction that has changed a purged key.
    purged: Mutex<Vec<Stamp>>,
}

impl Gates {
    pub(crate) fn new() -> Self {
        let free = || AtomicU64::new(lock_word::free(0, 0));
        Self {
            gates: std::array::from_fn(|_| CachePadded::new(free())),
            end_gap: free(),
            is_emptied: AtomicBool::new(false),
            purged: Mutex::default(),
        }
    }

    /// The gate of a session.
    pub(crate) fn gate(&self, session: usize) -> &AtomicU64 {
        &self.gates[session % GATES]
    }

    /// Waits for all gates, as a declared transaction does. False if it may not wait: no gate is held.
    pub(crate) fn close(&self, may_wait: &dyn Fn() -> bool) -> bool {
        for (at, gate) in self.gates.iter().enumerate() {
            let mut backoff = Backoff::new();
            while lock_word::try_exclusive(gate, Priority::DECLARED).is_err() {
                if !may_wait() {
                    // The holder may keep the gate for minutes, and others use it meanwhile.
                    lock_word::await_no_longer(gate);
                    let closed = self.gates[..at].iter();
                    closed.for_each(|gate| lock_word::release_exclusive(gate));
                    return false;
                }
                lock_word::await_sharers(gate, Priority::DECLARED);
                backoff.wait();
            }
        }
        true
    }

    /// Gives all gates back.
    pub(crate) fn open(&self) {
        self.gates.iter().for_each(|gate| lock_word::release_exclusive(gate));
    }

    /// Whether the table was emptied: another one has taken its place. Who holds a gate of a table that
    /// was not emptied keeps it so.
    pub(crate) fn is_emptied(&self) -> bool {
        // Acquire: partner of the Release in `note_emptied`.
        self.is_emptied.load(Acquire)
    }

    pub(crate) fn note_emptied(&self) {
        // Release: partner of the Acquire in `is_emptied`.
        self.is_emptied.store(true, Release);
    }

    /// Notes that a key with this stamp is purged. A later transaction on the key or on its gap depends on
    /// the stamp.
    pub(crate) fn purge(&self, stamp: Stamp) {
        if stamp.is_none() {
            return;
        }
        let mut purged = self.purged.lock();
        match purged.iter_mut().find(|known| known.log() == stamp.log()) {
            Some(known) => *known = (*known).max(stamp),
            None => purged.push(stamp),
        }
    }

    /// Appends the stamps of purged keys.
    pub(crate) fn add_purged(&self, out: &mut Vec<Stamp>) {
        out.extend_from_slice(&self.purged.lock());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Other sessions of the same gate go on while an open transaction keeps the table from being emptied.
    #[test]
    fn who_gives_up_on_a_gate_holds_up_nobody() {
        let gates = Gates::new();
        let share = |session| lock_word::try_shared(gates.gate(session), Priority::DECLARED);
        assert!(share(3).is_ok());
        let turns = Cell::new(0);
        let may_wait = || turns.replace(turns.get() + 1) < 3;
        assert!(!gates.close(&may_wait), "a gate is held");
        assert!(share(3 + GATES).is_ok() && share(0).is_ok());
    }
}
