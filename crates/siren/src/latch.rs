//! The latch of a table's pages, which the checkpointer takes for one tuple at a time.
//!
//! ```text
//! writer:       announce in gate[g]; lock; leave gate[g]; …
//! checkpointer: flip g; wait for the old gate to empty; lock; copy one tuple; unlock; again
//! ```
//! 1. A writer that finds the latch free takes it and announces nothing.
//! 2. A writer that must wait announces itself under the present gate, and looks again. If the gate
//!    has flipped meanwhile, the writer moves on to the new one. So the next flip sees the writer.
//! 3. A turn of the checkpointer begins only after every writer announced before it has the latch. So a
//!    writer meets at most one turn in its wait: the one under way, or the one that just begins.
//! 4. Writers that announce after the flip delay the checkpointer no further.

use std::ops::{Deref, DerefMut};

use stillpoint_sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use stillpoint_sync::{Backoff, Mutex, MutexGuard, mutant};

use crate::planted;

/// A latch around `T`, for many writers and one checkpointer.
#[derive(Debug, Default)]
pub(crate) struct Latch<T> {
    value: Mutex<T>,
    gate: AtomicU32,
    waiting: [AtomicU32; 2],
    turns_begun: AtomicU64,
    turns_ended: AtomicU64,
    waited_turns_max: AtomicU64,
}

/// The held latch.
pub(crate) struct Latched<'l, T>(MutexGuard<'l, T>);

impl<T> Deref for Latched<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Latched<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Latch<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            gate: AtomicU32::new(0),
            waiting: [AtomicU32::new(0), AtomicU32::new(0)],
            turns_begun: AtomicU64::new(0),
            turns_ended: AtomicU64::new(0),
            waited_turns_max: AtomicU64::new(0),
        }
    }

    /// Takes the latch for a writer.
    #[inline]
    pub(crate) fn lock(&self) -> Latched<'_, T> {
        match self.value.try_lock() {
            Some(guard) => Latched(guard),
            None => self.lock_announced(),
        }
    }

    #[cold]
    fn lock_announced(&self) -> Latched<'_, T> {
        // SeqCst, as in `turn` (Dekker): the flip that must see an announcement comes after it.
        // Otherwise the second look at the gate comes after that flip.
        let gate = loop {
            let gate = self.gate.load(SeqCst) as usize & 1;
            self.waiting[gate].fetch_add(1, SeqCst);
            if self.gate.load(SeqCst) as usize & 1 == gate {
                break gate;
            }
            self.waiting[gate].fetch_sub(1, SeqCst);
        };
        let ended = self.turns_ended.load(SeqCst);
        let guard = self.value.lock();
        let waited = self.turns_begun.load(SeqCst) - ended;
        if waited > 0 {
            self.waited_turns_max.fetch_max(waited, SeqCst);
        }
        self.waiting[gate].fetch_sub(1, SeqCst);
        Latched(guard)
    }

    /// Takes the latch for one turn of the checkpointer: the copy of one tuple, or as much. Only one
    /// thread takes turns.
    pub(crate) fn turn<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        let gate = self.gate.fetch_xor(1, SeqCst) as usize & 1;
        let mut backoff = Backoff::new();
        let must_wait = mutant!(true, TurnPassesWriters => false);
        while must_wait && self.waiting[gate].load(SeqCst) != 0 {
            backoff.wait();
        }
        let mut guard = self.value.lock();
        self.turns_begun.fetch_add(1, SeqCst);
        let result = act(&mut guard);
        self.turns_ended.fetch_add(1, SeqCst);
        result
    }

    /// The most turns of the checkpointer that a writer has waited for.
    pub(crate) fn waited_turns_max(&self) -> u64 {
        self.waited_turns_max.load(SeqCst)
    }
}
