//! Undeclared transactions: each run, and what comes after a conflict.

use stillpoint_format::Stamp;
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::lock_word::Priority;
use stillpoint_txn::{Discipline, Runs, TxError};

use crate::txn::tx::Tx;
use crate::worker::Worker;

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
        for run in Runs::new(age) {
            let ended = match run.discipline {
                Discipline::Remembered => self.run_remembered(&mut body),
                Discipline::Permitted => return self.run_permitted(&mut body),
                discipline => self.run_undeclared(run.priority, discipline, &mut body),
            };
            match ended {
                Err(TxError::Conflict) => self.transaction.remember(),
                ended => return ended,
            }
            if run.backs_off {
                backoff.wait();
            }
        }
        unreachable!("the last run has the permit")
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
