//! Guards of states that every call must release, however it ends.

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use stillpoint_store::{Patience, Worker};
use stillpoint_sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::error::Error;
use crate::kinds::Kinds;
use crate::named::SessionNames;

/// The sessions: their number, and the names of some of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seats {
    taken: Arc<AtomicUsize>,
    pub(crate) names: SessionNames,
}

impl Seats {
    /// Counts a session, unless `limit` sessions exist.
    pub(crate) fn take(&self, limit: usize) -> Result<Seat, Error> {
        let one_more = |taken: usize| (taken < limit).then_some(taken + 1);
        // Acquire: partner of the Release in `drop`, so that resources of the session before are
        // free. Relaxed: a refusal reads nothing else.
        match self.taken.fetch_update(Acquire, Relaxed, one_more) {
            Ok(_) => Ok(Seat(self.taken.clone())),
            Err(_) => Err(Error::TooManySessions(limit)),
        }
    }
}

/// Guard of a counted session.
#[derive(Debug)]
pub(crate) struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        // Release: partner of the Acquire in `take`.
        self.0.fetch_sub(1, Release);
    }
}

/// The innermost call of the engine that the thread is inside of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    Outside,
    /// The body of a transaction that finds its keys on the way. The thread may hold locks.
    Body,
    /// A batch of declared transactions. The thread stands in a read section, too.
    Batch,
}

thread_local! {
    /// The thread's innermost call, and whether `ENDED` holds workers.
    static INSIDE: Cell<(Now, bool)> = const { Cell::new((Now::Outside, false)) };
    /// Workers of sessions that were dropped inside a transaction of this thread.
    static ENDED: RefCell<Vec<Seated>> = const { RefCell::new(Vec::new()) };
    /// The number of open transactions of the thread, once it has had one.
    static OPEN: OnceCell<Arc<AtomicUsize>> = const { OnceCell::new() };
}

/// Guard of a transaction that stays open across calls. The transaction counts for the thread that
/// has used it last, since an open transaction may move to another thread.
#[derive(Debug)]
pub(crate) struct OpenOnThread(Arc<AtomicUsize>);

impl OpenOnThread {
    /// Counts a transaction of this thread.
    pub(crate) fn new() -> Self {
        Self::of(OPEN.with(|open| open.get_or_init(Arc::default).clone()))
    }

    fn of(open: Arc<AtomicUsize>) -> Self {
        // Relaxed, here and below: a thread asks for its own count only. Another thread changes the
        // count only if a transaction has moved there, and the move orders that change.
        open.fetch_add(1, Relaxed);
        Self(open)
    }

    /// Counts the transaction for this thread from here on.
    pub(crate) fn note_use(&mut self) {
        let here = OPEN.with(|open| open.get_or_init(Arc::default).clone());
        if !Arc::ptr_eq(&here, &self.0) {
            *self = Self::of(here);
        }
    }

    /// How long this transaction may wait for others: briefly if the thread has another open
    /// transaction.
    pub(crate) fn patience(&self) -> Patience {
        patience_beside(self.0.load(Relaxed) - 1)
    }
}

impl Drop for OpenOnThread {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn patience_beside(open: usize) -> Patience {
    if open == 0 { Patience::Endless } else { Patience::Short }
}

/// The number of open transactions of this thread.
#[inline]
pub(crate) fn open_on_thread() -> usize {
    // A thread that is ending has none.
    OPEN.try_with(|open| open.get().map_or(0, |open| open.load(Relaxed))).unwrap_or(0)
}

/// How long a further transaction of this thread may wait for others.
#[inline]
pub(crate) fn patience() -> Patience {
    patience_beside(open_on_thread())
}

/// A worker and the count of its session. The session stays counted until the worker has ended.
type Seated = (Worker, Seat);

/// Why a session has no worker.
const LENT: &str = "an open transaction of this session was leaked, so the session cannot be used";

/// A session's worker. A worker that ends waits for all read sections. Inside a transaction the
/// worker might wait for the thread's own read section. So the worker is kept until the thread has
/// left the transaction.
pub(crate) struct SessionWorker(Option<Seated>);

impl SessionWorker {
    pub(crate) fn new(worker: Worker, seat: Seat) -> Self {
        Self(Some((worker, seat)))
    }

    /// A guard without its worker, which an open transaction has.
    pub(crate) fn lent() -> Self {
        Self(None)
    }

    /// Whether an open transaction has the worker.
    pub(crate) fn is_lent(&self) -> bool {
        self.0.is_none()
    }
}

impl Deref for SessionWorker {
    type Target = Worker;

    #[inline]
    fn deref(&self) -> &Worker {
        &self.0.as_ref().expect(LENT).0
    }
}

impl DerefMut for SessionWorker {
    #[inline]
    fn deref_mut(&mut self) -> &mut Worker {
        &mut self.0.as_mut().expect(LENT).0
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

/// Guard of a call that runs the caller's code inside a transaction. Holds the thread's innermost
/// call from before.
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

    /// Refuses a call that would wait for the transaction around it.
    pub(crate) fn refuse(what: &'static str) -> Result<(), Error> {
        if Self::is_now() { Err(Error::InsideTransaction { what }) } else { Ok(()) }
    }

    /// Refuses a change of tables, which would wait for the transaction around it. With other kinds
    /// of tables a flush holds the right to change tables while it waits for locks of these kinds.
    /// An open transaction of the thread may hold such a lock.
    pub(crate) fn refuse_changing_tables(what: &'static str, kinds: &Kinds) -> Result<(), Error> {
        let waits = Self::is_now() || (!kinds.is_empty() && open_on_thread() > 0);
        if waits { Err(Error::InsideTransaction { what }) } else { Ok(()) }
    }

    /// Refuses a call that enters a read section. While a flush of tables waits for the batch's
    /// read section, no other begins, so the two would wait for each other.
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

/// Ends the kept workers, after the thread has left its transaction.
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
