//! States that must be given back, however a call ends: one guard for each.

use std::cell::Cell;
use std::sync::Arc;

use stillpoint_sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::error::Error;

/// The places for sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seats(Arc<AtomicUsize>);

impl Seats {
    /// Takes one of `limit` places.
    pub(crate) fn take(&self, limit: usize) -> Result<Seat, Error> {
        let one_more = |taken: usize| (taken < limit).then_some(taken + 1);
        // Acquire: partner of the Release in `drop`; what the session before held is free then.
        // Relaxed: a refusal reads nothing else.
        match self.0.fetch_update(Acquire, Relaxed, one_more) {
            Ok(_) => Ok(Seat(self.0.clone())),
            Err(_) => Err(Error::TooManySessions(limit)),
        }
    }
}

/// A session's place.
#[derive(Debug)]
pub(crate) struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        // Release: partner of the Acquire in `take`.
        self.0.fetch_sub(1, Release);
    }
}

thread_local! {
    /// Calls of sessions that this thread is inside.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// This thread runs a transaction's body, or the visitor of a scan.
pub(crate) struct Inside(());

impl Inside {
    #[inline]
    pub(crate) fn enter() -> Self {
        INSIDE.with(|depth| depth.set(depth.get() + 1));
        Self(())
    }

    /// Refuses what would wait for the transaction that it is called from.
    pub(crate) fn refuse(what: &'static str) -> Result<(), Error> {
        if Self::is_now() { Err(Error::InsideTransaction { what }) } else { Ok(()) }
    }

    pub(crate) fn is_now() -> bool {
        INSIDE.with(|depth| depth.get() != 0)
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        INSIDE.with(|depth| depth.set(depth.get() - 1));
    }
}
