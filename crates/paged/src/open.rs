//! Transactions that have changed pages and have not ended, and the ends of those that have.
//!
//! Who reads a range must not see what an open transaction has changed. The gsn of a page only grows, and
//! a transaction's changes have no smaller gsn than its first one. So a page whose gsn is below the first
//! gsn of every open transaction holds nothing uncommitted. Otherwise the reader looks at the word of each
//! key.
//!
//! The first gsn is noted before the first changed leaf is unlatched, and forgotten after the end of the
//! transaction. So a reader that sees a change also sees the first gsn, or what the end has left. A leaf
//! that an abort has changed back has another version.

use stillpoint_format::Stamp;
use stillpoint_sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Release},
};
use stillpoint_sync::{CachePadded, Mutex};

/// Sessions that have a place of their own.
const PLACES: usize = if cfg!(any(loom, shuttle)) { 4 } else { 256 };
/// Logs that a store may have.
const LOGS: usize = if cfg!(loom) { 2 } else { 255 };

/// The place of a session. `None` if there were too many sessions.
pub(crate) type Seat = Option<usize>;

/// Open transactions and ends.
#[derive(Debug)]
pub(crate) struct OpenChanges {
    /// Of each place, the first gsn of the open transaction. 0 without one.
    first: Box<[CachePadded<AtomicU64>]>,
    /// Places that were given away so far.
    used: AtomicUsize,
    returned: Mutex<Vec<usize>>,
    /// Open transactions of sessions without a place.
    others: AtomicU64,
    /// For each log, the gsn of its last end of a transaction that has changed a page.
    ends: Box<[AtomicU64]>,
    /// 1 + the greatest number of a log with an end.
    logs: AtomicUsize,
}

impl OpenChanges {
    pub(crate) fn new() -> Self {
        Self {
            first: (0..PLACES).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            used: AtomicUsize::new(0),
            returned: Mutex::default(),
            others: AtomicU64::new(0),
            ends: (0..LOGS).map(|_| AtomicU64::new(0)).collect(),
            logs: AtomicUsize::new(0),
        }
    }

    /// A place for a session.
    pub(crate) fn sit(&self) -> Seat {
        let mut returned = self.returned.lock();
        // Acquire: the mutex orders the changes. Readers without it see the number or an older one.
        returned.pop().or_else(|| {
            let next = self.used.load(Acquire);
            (next < PLACES).then(|| {
                self.used.store(next + 1, Release);
                next
            })
        })
    }

    /// Gives the place of a session back, whose transactions have ended.
    pub(crate) fn leave(&self, seat: Seat) {
        self.returned.lock().extend(seat);
    }

    /// Notes the first gsn of a transaction, before the changed leaf is unlatched.
    pub(crate) fn begin(&self, seat: Seat, gsn: u64) {
        match seat {
            // Release: partner of the Acquire in `has_older_than`.
            Some(seat) => self.first[seat].store(gsn, Release),
            None => drop(self.others.fetch_add(1, AcqRel)),
        }
    }

    /// Notes the end of a transaction, before its locks are given back.
    pub(crate) fn end(&self, seat: Seat, end: Option<Stamp>) {
        if let Some(end) = end
            && let Some(last) = self.ends.get(usize::from(end.log()))
        {
            // Release: partner of the Acquire in `ends`.
            last.fetch_max(end.gsn(), Release);
            self.logs.fetch_max(usize::from(end.log()) + 1, Release);
        }
        match seat {
            // Release: partner of the Acquire in `has_older_than`.
            Some(seat) => self.first[seat].store(0, Release),
            None => drop(self.others.fetch_sub(1, AcqRel)),
        }
    }

    /// Whether a transaction of another session may have made a change up to this gsn, and is open.
    #[inline]
    pub(crate) fn has_older_than(&self, gsn: u64, seat: Seat) -> bool {
        // Acquire: partners of the Releases in `begin` and `end`.
        let first = &self.first[..self.used.load(Acquire)];
        let is_older = |(place, first): (usize, &CachePadded<AtomicU64>)| {
            let first = first.load(Acquire);
            first != 0 && first <= gsn && Some(place) != seat
        };
        self.others.load(Acquire) > 0 || first.iter().enumerate().any(is_older)
    }

    /// Appends the last end of each log.
    pub(crate) fn ends(&self, out: &mut Vec<Stamp>) {
        // Acquire: partners of the Releases in `end`.
        for (log, last) in (0..=u8::MAX).zip(&self.ends[..self.logs.load(Acquire)]) {
            let gsn = last.load(Acquire);
            if gsn > 0 {
                out.push(Stamp::new(gsn, log));
            }
        }
    }
}
