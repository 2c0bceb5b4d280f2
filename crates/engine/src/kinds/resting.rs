//! The parts of a transaction that stays open, for whoever uses them.
//!
//! ```text
//!  Transaction ──▶ [ parts ] ◀── a thread that waits for the log rolls back a transaction at rest
//!       │ tx()         ▲
//!       └─▶ Tx has them┘ its drop gives them back
//! ```
//! While a `Tx` has the parts, nobody else can roll the transaction back. The next call of
//! `Transaction::tx` tells its owner.

use std::ops::{Deref, DerefMut};

use parking_lot::Mutex;
use stillpoint_format::LogGsn;
use stillpoint_txn::LogPinned;

use crate::kinds::Parts;

/// The place of the parts. `None` while a [`Tx`](crate::Tx) has them.
pub(crate) struct Resting(Mutex<Option<Box<Parts>>>);

impl std::fmt::Debug for Resting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resting").finish_non_exhaustive()
    }
}

impl Resting {
    pub(crate) fn new(parts: Box<Parts>) -> Self {
        Self(Mutex::new(Some(parts)))
    }

    /// Takes the parts out, for a while. Waits for the end of a rollback.
    ///
    /// # Panics
    /// If a `Tx` was leaked that has them.
    pub(crate) fn take(&self) -> PartsInUse<'_> {
        let parts = self.0.lock().take();
        let parts = parts.expect("a Tx of this open transaction was leaked");
        PartsInUse { parts: Some(parts), place: self }
    }

    /// Takes the parts out for good. `None` if a `Tx` was leaked that has them.
    pub(crate) fn end(&self) -> Option<Box<Parts>> {
        self.0.lock().take()
    }

    /// What a look at the parts gives. `None` if a `Tx` was leaked that has them.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Parts) -> Option<R>) -> Option<R> {
        self.0.lock().as_deref().and_then(look)
    }

    /// Rolls the transaction with this first record back, if it rests. Its owner gets the reason. False if
    /// the transaction is in use, or is another one.
    pub(crate) fn roll_back(&self, first: LogGsn, why: LogPinned) -> bool {
        // Whoever holds the lock is about to use the transaction, or rolls it back.
        let Some(mut place) = self.0.try_lock() else { return false };
        let Some(parts) = place.as_deref_mut() else { return false };
        if !parts.is_open || parts.operations.first_record() != Some(first) {
            return false;
        }
        parts.operations.pin(why);
        parts.roll_back();
        true
    }
}

/// The parts while they are used. A drop gives them back.
pub(crate) struct PartsInUse<'t> {
    /// Present until the drop.
    parts: Option<Box<Parts>>,
    place: &'t Resting,
}

impl Deref for PartsInUse<'_> {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        self.parts.as_deref().expect("present until the drop")
    }
}

impl DerefMut for PartsInUse<'_> {
    fn deref_mut(&mut self) -> &mut Parts {
        self.parts.as_deref_mut().expect("present until the drop")
    }
}

impl Drop for PartsInUse<'_> {
    fn drop(&mut self) {
        *self.place.0.lock() = self.parts.take();
    }
}

/// The parts of a transaction: of a run, or of a transaction that stays open.
pub(crate) enum PartsOf<'t> {
    Run(&'t mut Parts),
    Open(PartsInUse<'t>),
}

impl Deref for PartsOf<'_> {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        match self {
            Self::Run(parts) => parts,
            Self::Open(parts) => parts,
        }
    }
}

impl DerefMut for PartsOf<'_> {
    fn deref_mut(&mut self) -> &mut Parts {
        match self {
            Self::Run(parts) => parts,
            Self::Open(parts) => parts,
        }
    }
}
