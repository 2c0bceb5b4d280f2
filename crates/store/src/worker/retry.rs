//! Undeclared transactions: run, and run again after a conflict, so that each ends.
//!
//! ```text
//! wait-die ──▶ conflicts ──▶ keys of the runs so far locked in order ──▶ permit of the store
//!    8 runs                     8 runs                                      1 run
//! ```
//! 1. *Wait-die* alone starves behind declared transactions: an undeclared transaction never waits for
//!    a declared one, and its age means nothing to a declared one.
//! 2. The next runs therefore lock the keys that earlier runs have met before the body runs, as
//!    declared transactions do: in the order of cells, waiting for any holder. A further key is taken
//!    if the key is free, and is never waited for. No cycle of waits can close.
//! 3. A transaction whose keys differ from run to run may meet a busy key in each run. The last run
//!    takes the permit of the store. While the permit is held no transaction begins, a declared
//!    transaction that would have to wait gives its locks back first, and no undeclared transaction
//!    waits for the holder. Every transaction that the holder waits for therefore ends.

use stillpoint_format::Stamp;
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::lock_word::Priority;

use crate::error::TxError;
use crate::txn::Discipline;
use crate::txn::tx::Tx;
use crate::worker::Worker;

/// Runs under wait-die. A model has one, so that few steps lead to the next stage.
const RUNS_WAIT_DIE: u32 = if cfg!(shuttle) { 1 } else { 8 };
/// Runs with the keys of the earlier runs locked first.
const RUNS_REMEMBERED: u32 = if cfg!(shuttle) { 1 } else { 8 };

/// Most runs of the body of an undeclared transaction, unless tables are flushed meanwhile.
pub const RUNS_MAX: u32 = RUNS_WAIT_DIE + RUNS_REMEMBERED + 1;

/// The result of an undeclared transaction with its stamp, or the reason why it did not commit.
type Ended<R> = Result<(R, Option<Stamp>), TxError>;

impl Worker {
    pub(crate) fn transact_until_ended<R>(
        &mut self,
        mut body: impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Ended<R> {
        // Relaxed: only the number counts.
        let age = self.local.store.ages.fetch_add(1, Relaxed);
        self.transaction.remembered.clear();
        let mut backoff = Backoff::new();
        for runs in 0..RUNS_MAX - 1 {
            let ended = if runs < RUNS_WAIT_DIE {
                self.run_undeclared(Priority::undeclared(age), Discipline::WaitDie, &mut body)
            } else {
                self.run_remembered(&mut body)
            };
            match ended {
                Err(TxError::Conflict) => self.transaction.remember(),
                ended => return ended,
            }
            if runs + 1 < RUNS_WAIT_DIE {
                backoff.wait();
            }
        }
        self.run_permitted(&mut body)
    }

    #[cold]
    fn run_remembered<R>(
        &mut self,
        body: &mut impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Ended<R> {
        self.run_undeclared(Priority::DECLARED, Discipline::Remembered, body)
    }

    /// Runs while no other transaction begins. A conflict then has one cause: a table was flushed.
    #[cold]
    fn run_permitted<R>(
        &mut self,
        body: &mut impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Ended<R> {
        let store = self.local.store.clone();
        let _permit = store.driver().take_permit();
        loop {
            match self.run_undeclared(Priority::DECLARED, Discipline::Permitted, body) {
                Err(TxError::Conflict) if self.transaction.has_conflicted => {}
                ended => return ended,
            }
        }
    }

    /// One run.
    fn run_undeclared<R>(
        &mut self,
        priority: Priority,
        discipline: Discipline,
        body: &mut impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Ended<R> {
        let Self { local, transaction, log, .. } = self;
        transaction.begin_undeclared(priority, discipline);
        transaction.note_phase(local.store.driver());
        local.store.catalog().begin_transaction(local.number, local.tables.version);
        let locked = match discipline {
            Discipline::Remembered => transaction.lock_remembered(local),
            _ => Ok(()),
        };
        let ran = locked.and_then(|()| body(&mut Tx::new(transaction, local)));
        // A body that goes on after a conflict has seen and written a part of its keys only.
        let ran = match ran {
            Ok(_) if transaction.has_conflicted => Err(TxError::Conflict),
            ran => ran,
        };
        let ended = ran.and_then(|result| {
            local.enter();
            let committed = transaction.commit(local, log);
            local.exit();
            transaction.has_conflicted = matches!(committed, Err(TxError::Conflict));
            Ok((result, committed?))
        });
        if ended.is_err() {
            transaction.roll_back(local);
        }
        local.store.catalog().end_transaction(local.number);
        local.enter();
        local.collect_garbage(&|stamp| log.is_closed(stamp));
        local.exit();
        ended
    }
}
