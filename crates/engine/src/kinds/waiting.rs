//! The waits of transactions for locks of tables of other kinds than the memory store.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use stillpoint_format::LogGsn;
use stillpoint_io::Clock;
use stillpoint_store::{Patience, TxError};
use stillpoint_txn::LogPinned;

use crate::kinds::open::OpenTransactions;
use crate::kinds::parts::Parts;

/// The longest wait for a lock, and the clock for it.
#[derive(Clone, Debug)]
pub(crate) struct WaitLimits {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) timeout: Option<Duration>,
    /// Whether the session leaves locks alone that others hold for longer than a moment.
    pub(crate) leaves_held: bool,
}

/// Turns of a wait that spin and yield. Each further one sleeps a tenth of a millisecond.
const QUICK_TURNS: u32 = 128;
/// Turns of a wait after which a lock counts as held for long. The first are those of a session that leaves
/// such locks alone. The second are those of a run with the permit of the store. A holder that does not wait
/// for a person is gone long before the last limit.
pub(super) const HELD_TURNS: u32 = QUICK_TURNS + 10;
pub(super) const PERMITTED_TURNS: u32 = QUICK_TURNS + 50;
pub(super) const LONG_TURNS: u32 = QUICK_TURNS + 500;
/// First and longest pause between two tries of a transaction that has met such a lock.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The wait of a transaction for a lock that another one holds for long. Meanwhile the transaction holds no
/// lock, nor the permit of the store. The holder may wait for a person, and nobody else shall wait for both.
#[derive(Debug, Default)]
pub(crate) struct LongWait {
    begun_ns: Option<u64>,
    pause: Duration,
    /// When the waits at the limit of the logs began.
    pub(super) at_limit_ns: Option<u64>,
}

impl LongWait {
    /// Pauses before another try.
    ///
    /// # Errors
    /// [`TxError::LockTimeout`] after the longest wait that the settings allow.
    pub(crate) fn pause(&mut self, limits: &WaitLimits) -> Result<(), TxError> {
        let now_ns = limits.clock.monotonic_ns();
        let waited_ns = now_ns - *self.begun_ns.get_or_insert(now_ns);
        if limits.timeout.is_some_and(|limit| u128::from(waited_ns) >= limit.as_nanos()) {
            return Err(TxError::LockTimeout { waited_ms: waited_ns / 1_000_000 });
        }
        self.pause = (2 * self.pause).clamp(PAUSE_MIN, PAUSE_MAX);
        limits.clock.sleep(self.pause);
        Ok(())
    }
}

/// The wait of a transaction for the locks of a kind. The kind asks before each turn.
pub(super) struct KindWait<'l> {
    patience: Patience,
    turns: Cell<u32>,
    turns_max: u32,
    limits: &'l WaitLimits,
    /// The first record of the transaction, which must not keep the log for too long.
    of: (&'l OpenTransactions, Option<LogGsn>),
    /// Why the transaction ends, if it keeps too much of the log.
    pinned: Cell<Option<LogPinned>>,
    /// When the wait began, if it has a limit.
    begun_ns: Cell<Option<u64>>,
    /// How long the wait was when it ended by its limit.
    ended_ns: Cell<Option<u64>>,
    /// Whether the wait ended because the lock is held for long.
    is_held: Cell<bool>,
}

impl<'l> KindWait<'l> {
    pub(super) fn new(
        (patience, turns_max): (Patience, u32),
        limits: &'l WaitLimits,
        of: (&'l OpenTransactions, Option<LogGsn>),
    ) -> Self {
        let (turns, begun_ns, ended_ns) = (Cell::new(0), Cell::new(None), Cell::new(None));
        let (is_held, pinned) = (Cell::new(false), Cell::new(None));
        Self { patience, turns, turns_max, limits, of, pinned, begun_ns, ended_ns, is_held }
    }

    /// Whether the kind may wait for another turn.
    pub(super) fn may_go_on(&self) -> bool {
        self.turns.set(self.turns.get().saturating_add(1));
        if self.turns.get() > self.turns_max {
            self.is_held.set(true);
            return false;
        }
        let (open, first) = self.of;
        self.pinned.set(open.told(first));
        if self.pinned.get().is_some() {
            return false;
        }
        if let Some(timeout) = self.limits.timeout {
            let now_ns = self.limits.clock.monotonic_ns();
            let begun_ns = self.begun_ns.get().unwrap_or(now_ns);
            self.begun_ns.set(Some(begun_ns));
            let waited_ns = now_ns - begun_ns;
            if u128::from(waited_ns) >= timeout.as_nanos() && waited_ns > 0 {
                self.ended_ns.set(Some(waited_ns));
                return false;
            }
        }
        !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.patience.is_over(self.turns.get())
    }

    /// The error of a transaction whose locks the kind has refused.
    pub(super) fn reason(&self, error: TxError) -> TxError {
        if let Some(why) = self.pinned.get().filter(|_| is_conflict(&error)) {
            return why.into();
        }
        match self.ended_ns.get() {
            _ if is_conflict(&error) && self.is_held.get() => TxError::Held,
            Some(waited_ns) if is_conflict(&error) => {
                TxError::LockTimeout { waited_ms: waited_ns / 1_000_000 }
            }
            _ if is_conflict(&error) && self.is_over() => TxError::WaitsForItself,
            _ => error,
        }
    }
}

pub(super) fn is_conflict(error: &TxError) -> bool {
    matches!(error, TxError::Conflict)
}

/// Guard of a call whose transactions must not wait for keys that are not in memory. A panic ends
/// the guard, too.
pub(crate) struct MustNotWait<'p>(&'p mut Parts);

impl<'p> MustNotWait<'p> {
    /// Begins the call.
    pub(crate) fn begin(parts: &'p mut Parts) -> Self {
        parts.must_not_wait = true;
        Self(parts)
    }
}

impl Deref for MustNotWait<'_> {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        self.0
    }
}

impl DerefMut for MustNotWait<'_> {
    fn deref_mut(&mut self) -> &mut Parts {
        self.0
    }
}

impl Drop for MustNotWait<'_> {
    fn drop(&mut self) {
        self.0.must_not_wait = false;
    }
}
