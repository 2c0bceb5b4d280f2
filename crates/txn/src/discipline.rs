//! How a transaction comes by its locks, and for whom it may wait.

use stillpoint_sync::lock_word::Priority;

/// How a transaction comes by its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// Its keys are declared: locked before it runs, in a global order, waiting for anybody.
    Declared,
    /// It finds its keys on the way: wait-die.
    WaitDie,
    /// The keys of its earlier runs are locked like declared ones; it waits for no other.
    Remembered,
    /// It has the permit of the store, and waits for anybody.
    Permitted,
}

impl Discipline {
    /// Whether a transaction of the priority `own` may wait for a lock whose oldest holder is `by`.
    /// `is_spinning` says that the wait has just begun.
    #[inline]
    pub fn may_wait_for(self, own: Priority, by: Priority, is_spinning: bool) -> bool {
        match self {
            Discipline::WaitDie => own.may_wait_for(by),
            // Spinning ends by itself, so it cannot close a cycle of waits.
            Discipline::Remembered => is_spinning,
            Discipline::Declared | Discipline::Permitted => true,
        }
    }
}
