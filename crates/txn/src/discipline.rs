//! The locking discipline of a transaction: the way to its locks, and the holders that it may wait
//! for.

use stillpoint_sync::lock_word::Priority;

/// The locking discipline of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// Declared keys are locked before the transaction runs, in a global order. The transaction
    /// waits for any holder.
    Declared,
    /// The transaction finds its keys on the way, and follows wait-die.
    WaitDie,
    /// The keys of earlier runs are locked like declared ones. The transaction waits for no other
    /// key.
    Remembered,
    /// The transaction has the permit of the store, and waits for any holder.
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
