//! Group commit. One leader flushes, the others wait, and the next leader takes all records that
//! gathered meanwhile. The protocol is greedy and pipelined, without a timer.
//!
//! ```text
//!            nobody leads                     lead() returns
//!  caller ───────────────▶ leader: lead() ───────────────────▶ wakes everybody
//!     │ somebody leads                                             │
//!     └────────────────▶ waiter ◀──────────────────────────────────┘
//!                          │ own target reached: leave; else try to lead
//! ```
//!
//! Invariants: there is at most one leader. A leader's work covers everything that was appended
//! before it began. While a thread waits, another one leads. The state machine holds no data of the
//! log, so that the loom and shuttle models run exactly this code.

use crate::monitor::Monitor;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, shuttle))]
mod models;

/// The right to flush one log.
#[derive(Debug, Default)]
pub(crate) struct GroupCommit {
    leading: Monitor<bool>,
}

impl GroupCommit {
    pub(crate) fn new() -> Self {
        GroupCommit { leading: Monitor::new(false) }
    }

    /// Returns once `done` says so. Until then the call runs `lead` as the only leader, or waits
    /// for another leader.
    ///
    /// `done` is called with the state locked and must be cheap. The answer may only change from
    /// "no" to "yes" or to an error. The answer must change before `lead` returns, for everything
    /// that the leader covered.
    ///
    /// # Errors
    /// The error of `done`, or of `lead` if this thread leads.
    pub(crate) fn until<E>(
        &self,
        done: impl Fn() -> Result<bool, E>,
        mut lead: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut leading = self.leading.lock();
        loop {
            if done()? {
                return Ok(());
            }
            if *leading {
                leading = self.leading.wait(leading);
                continue;
            }
            *leading = true;
            drop(leading);
            let turn = LeaderGuard(self);
            lead()?;
            drop(turn);
            leading = self.leading.lock();
        }
    }

    /// Runs `lead` if nobody leads. Returns whether `lead` ran.
    ///
    /// # Errors
    /// The error of `lead`.
    pub(crate) fn try_lead<E>(&self, lead: impl FnOnce() -> Result<(), E>) -> Result<bool, E> {
        {
            let mut leading = self.leading.lock();
            if *leading {
                return Ok(false);
            }
            *leading = true;
        }
        let turn = LeaderGuard(self);
        lead()?;
        drop(turn);
        Ok(true)
    }
}

/// Guard that ends the turn of a leader, also after an error or a panic.
struct LeaderGuard<'a>(&'a GroupCommit);

impl Drop for LeaderGuard<'_> {
    fn drop(&mut self) {
        *self.0.leading.lock() = false;
        self.0.leading.notify_all();
    }
}
