//! The life of a store: it is sound, has failed, or has ended.

use parking_lot::Mutex;
use stillpoint_io::{JoinHandle, NotOwner};
use stillpoint_sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Release},
};

use crate::error::Error;
use crate::waits::Waits;

const SOUND: u8 = 0;
const FAILED: u8 = 1;
const ENDED: u8 = 2;

/// The reason why a store has failed.
#[derive(Clone, Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Reason(String),
    #[error(transparent)]
    NotOwner(NotOwner),
}

/// The state of a store between its opening and the end of its last session. The state goes from
/// sound to failed to ended, and never back.
#[derive(Debug, Default)]
pub(crate) struct Life {
    /// Each call reads the state, and it is written twice at most.
    state: AtomicU8,
    failure: Mutex<Option<Failure>>,
    /// Those who wait for what survives any crash, until the end.
    pub(crate) waits: Waits,
}

impl Life {
    /// Fails the store: nothing is acknowledged any more. The first reason counts.
    pub(crate) fn fail(&self, reason: String) {
        self.fail_with(Failure::Reason(reason));
    }

    /// Fails the store, since another process owns the data directory.
    pub(crate) fn lose(&self, reason: NotOwner) {
        self.fail_with(Failure::NotOwner(reason));
    }

    fn fail_with(&self, failure: Failure) {
        let mut first = self.failure.lock();
        if first.is_none() {
            tracing::error!(reason = %failure, "the store has failed and acknowledges nothing more");
        }
        first.get_or_insert(failure);
        drop(first);
        // Release: partner of the Acquire in `check`, which then finds the failure.
        self.state.fetch_max(FAILED, Release);
    }

    /// Ends the store: sessions do nothing any more. Gives the thread of those who wait, if there is
    /// one; it ends once they know.
    pub(crate) fn end(&self) -> Option<JoinHandle<()>> {
        self.state.fetch_max(ENDED, Release);
        self.waits.end()
    }

    /// Refuses a call that may write, unless the store is sound.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        // Acquire: partner of the Release in `fail_with` and `end`.
        if self.state.load(Acquire) == SOUND { Ok(()) } else { self.refuse() }
    }

    /// Refuses a call that only reads, after the end. A failed store still serves reads.
    #[inline]
    pub(crate) fn check_read(&self) -> Result<(), Error> {
        // Acquire: as in `check`.
        if self.state.load(Acquire) == ENDED { Err(Error::Ended) } else { Ok(()) }
    }

    #[cold]
    fn refuse(&self) -> Result<(), Error> {
        // Acquire: as in `check`.
        if self.state.load(Acquire) == ENDED {
            return Err(Error::Ended);
        }
        match &*self.failure.lock() {
            Some(Failure::Reason(reason)) => Err(Error::Failed(reason.clone())),
            Some(Failure::NotOwner(reason)) => Err(Error::NotOwner(reason.clone())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_counts_and_the_end_is_final() {
        let life = Life::default();
        assert!(life.check().is_ok() && life.check_read().is_ok());
        life.fail("the first".to_owned());
        life.lose(NotOwner::GivenBack("LOCK".into()));
        assert!(matches!(life.check(), Err(Error::Failed(reason)) if reason == "the first"));
        life.check_read().expect("reads are served");
        assert!(life.end().is_none(), "nobody has waited");
        life.fail("late".to_owned());
        assert!(matches!(life.check(), Err(Error::Ended)));
        assert!(matches!(life.check_read(), Err(Error::Ended)));
    }
}
