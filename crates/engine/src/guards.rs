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

/// What a thread is inside of, innermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    Outside,
    /// The body of a transaction that finds its keys on the way: it may hold locks.
    Body,
    /// A batch of declared transactions: it stands in a read section, too.
    Batch,
}

thread_local! {
    static INSIDE: Cell<Now> = const { Cell::new(Now::Outside) };
}

/// This thread runs code of the caller as a part of a transaction. Remembers what it was inside of
/// before.
pub(crate) struct Inside(Now);

impl Inside {
    /// Begins the body of a transaction.
    #[inline]
    pub(crate) fn body() -> Result<Self, Error> {
        Self::refuse_in_batch("transact")?;
        Ok(Self(INSIDE.replace(Now::Body)))
    }

    /// Begins a batch of declared transactions.
    #[inline]
    pub(crate) fn batch(what: &'static str) -> Result<Self, Error> {
        Self::refuse_in_batch(what)?;
        Ok(Self(INSIDE.replace(Now::Batch)))
    }

    /// Refuses what would wait for the transaction that it is called from.
    pub(crate) fn refuse(what: &'static str) -> Result<(), Error> {
        if Self::is_now() { Err(Error::InsideTransaction { what }) } else { Ok(()) }
    }

    /// Refuses what enters a read section. While a flush of tables waits for the read section of
    /// the batch, no other one begins: each would wait for the other.
    #[inline]
    pub(crate) fn refuse_in_batch(what: &'static str) -> Result<(), Error> {
        if Self::is_in_batch() { Err(Error::InsideTransaction { what }) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn is_in_batch() -> bool {
        INSIDE.get() == Now::Batch
    }

    pub(crate) fn is_now() -> bool {
        INSIDE.get() != Now::Outside
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}
