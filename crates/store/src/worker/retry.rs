//! Undeclared transactions: run, and run again after a conflict, so that each ends.
//!
//! ```text
//! wait-die ──▶ conflicts ──▶ keys of the runs so far locked in order ──▶ permit of the store
//!    8 runs                     8 runs                                      1 run
//! ```
//! 1. *Wait-die* alone starves behind declared transactions: an undeclared one never waits for
//!    them, and its age means nothing to them.
//! 2. So its next runs lock what the earlier ones have met as declared transactions do, before they
//!    begin: in the order of cells, waiting for anybody. A further key is taken if it is free, and
//!    is never waited for. So no cycle of waits can close.
//! 3. A transaction whose keys differ from run to run may meet a busy one each time. It takes the
//!    permit: nobody begins, declared transactions that would have to wait give their locks back
//!    first, and undeclared ones never wait for it. So everybody whom it waits for ends.

use stillpoint_format::Stamp;
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::lock_word::Priority;

use crate::error::TxError;
use crate::txn::Discipline;
use crate::txn::tx::Tx;
use crate::worker::Worker;

/// Runs under wait-die. Models are small, and come to the next stages soon.
const RUNS_WAIT_DIE: u32 = if cfg!(shuttle) { 1 } else { 8 };
/// Runs with the keys of the earlier runs locked first.
const RUNS_REMEMBERED: u32 = if cfg!(shuttle) { 1 } else { 8 };

/// Most runs of the body of an undeclared transaction, unless tables are flushed meanwhile.
pub const RUNS_MAX: u32 = RUNS_WAIT_DIE + RUNS_REMEMBERED + 1;

/// What an undeclared transaction gives, with its stamp, or why it did not commit.
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

    /// Runs while nobody else begins. A conflict then only says that a table was flushed.
    #[cold]
    fn run_permitted<R>(
        &mut self,
        body: &mut impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Ended<R> {
        let store = self.local.store.clone();
        let _permit = store.driver().take_permit();
        loop {
            match self.run_undeclared(Priority::DECLARED, Discipline::Permitted, body) {
                Err(TxError::Conflict) => {}
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
        let ended = ran.and_then(|result| {
            local.enter();
            let committed = transaction.commit(local, &mut **log);
            local.exit();
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
