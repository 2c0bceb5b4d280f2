//! States that must be given back, however a call ends: one guard for each.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use stillpoint_store::Worker;
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
    /// What the thread is inside of, and whether anything is in `ENDED`.
    static INSIDE: Cell<(Now, bool)> = const { Cell::new((Now::Outside, false)) };
    /// What sessions left that were dropped inside a transaction of this thread.
    static ENDED: RefCell<Vec<Seated>> = const { RefCell::new(Vec::new()) };
}

/// A worker, and the place of its session, which is given back after the worker.
type Seated = (Worker, Seat);

/// A session's worker. A worker that ends waits for the read sections of all others. Inside a
/// transaction that could be the thread's own, so the worker is kept until the thread has left it.
pub(crate) struct SessionWorker(Option<Seated>);

impl SessionWorker {
    pub(crate) fn new(worker: Worker, seat: Seat) -> Self {
        Self(Some((worker, seat)))
    }
}

impl Deref for SessionWorker {
    type Target = Worker;

    #[inline]
    fn deref(&self) -> &Worker {
        &self.0.as_ref().expect("there until the drop").0
    }
}

impl DerefMut for SessionWorker {
    #[inline]
    fn deref_mut(&mut self) -> &mut Worker {
        &mut self.0.as_mut().expect("there until the drop").0
    }
}

impl Drop for SessionWorker {
    fn drop(&mut self) {
        let (now, _) = INSIDE.get();
        if now != Now::Outside {
            ENDED.with_borrow_mut(|ended| ended.extend(self.0.take()));
            INSIDE.set((now, true));
        }
    }
}

/// This thread runs code of the caller as a part of a transaction. Remembers what it was inside of
/// before.
pub(crate) struct Inside(Now);

impl Inside {
    /// Begins the body of a transaction.
    #[inline]
    pub(crate) fn body() -> Result<Self, Error> {
        Self::refuse_in_batch("transact")?;
        Ok(Self::begin(Now::Body))
    }

    /// Begins a batch of declared transactions.
    #[inline]
    pub(crate) fn batch(what: &'static str) -> Result<Self, Error> {
        Self::refuse_in_batch(what)?;
        Ok(Self::begin(Now::Batch))
    }

    #[inline]
    fn begin(now: Now) -> Self {
        let (before, ended) = INSIDE.get();
        INSIDE.set((now, ended));
        Self(before)
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
        INSIDE.get().0 == Now::Batch
    }

    pub(crate) fn is_now() -> bool {
        INSIDE.get().0 != Now::Outside
    }
}

/// Ends the workers of sessions that were dropped inside the transaction that the thread has left.
#[cold]
fn drop_ended() {
    INSIDE.set((Now::Outside, false));
    drop(ENDED.take());
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        let (_, ended) = INSIDE.get();
        INSIDE.set((self.0, ended));
        if ended && self.0 == Now::Outside {
            drop_ended();
        }
    }
}
