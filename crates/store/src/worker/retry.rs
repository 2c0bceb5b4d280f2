//! Runs of undeclared transactions, and their retries after a conflict.

use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::mutant;
use stillpoint_txn::{Discipline, KeySet, Patience, Run, Runs, TxError};

use crate::planted;
use crate::worker::open::OpenTransaction;
use crate::worker::{Unwinding, Worker};

impl Worker {
    /// Runs a transaction that finds its keys on the way, as [`transact`](Self::transact) does.
    /// `run` gets the open transaction: it calls the body and takes the steps of the commit.
    ///
    /// # Errors
    /// The error of `run`, except a conflict, which is tried again. [`TxError::WaitsForItself`] if the
    /// transaction would need the permit of the store, and [the patience](Self::set_patience) is short.
    pub fn run_until_ended<R>(
        &mut self,
        mut run: impl FnMut(&mut OpenTransaction<'_>) -> Result<R, TxError>,
    ) -> Result<R, TxError> {
        self.guarded(|worker| {
            // Relaxed: only the number counts.
            let age = worker.local.store.ages.fetch_add(1, Relaxed);
            worker.transaction.remembered.clear();
            let mut backoff = Backoff::new();
            for next in Runs::new(age) {
                let ended = match next.discipline {
                    Discipline::Permitted => return worker.run_permitted(next, &mut run),
                    _ => worker.run_once(next, &mut run),
                };
                match ended {
                    Err(TxError::Conflict) => worker.transaction.remember(),
                    ended => return ended,
                }
                if next.backs_off {
                    backoff.wait();
                }
            }
            unreachable!("the last run has the permit")
        })
    }

    /// Runs a transaction with declared keys outside of any read section, so that its body may
    /// wait. `declare` names the keys of the store. The store locks these keys before `run`, which
    /// calls the body and takes the steps of the commit. The transaction runs again if a table is
    /// flushed meanwhile, or if it has given way to the holder of the store's permit.
    ///
    /// # Errors
    /// The error of `run`, or the reason why the keys could not be locked.
    pub fn run_declared_outside<R>(
        &mut self,
        declare: impl Fn(&mut KeySet),
        mut run: impl FnMut(&mut OpenTransaction<'_>) -> Result<R, TxError>,
    ) -> Result<R, TxError> {
        self.guarded(|worker| {
            loop {
                match worker.run_declared_once(&declare, &mut run) {
                    Err(TxError::Conflict) if worker.transaction.has_conflicted => {}
                    ended => return ended,
                }
            }
        })
    }

    /// Begins a transaction that finds its keys on the way and stays open across calls: outside of
    /// any read section, until [`end`](Self::end). Nobody tries the transaction again after a
    /// conflict.
    pub fn begin(&mut self) {
        // Relaxed: only the number counts.
        let age = self.local.store.ages.fetch_add(1, Relaxed);
        let first = Runs::new(age).next().expect("a transaction has a first run");
        let Self { local, transaction, .. } = self;
        transaction.remembered.clear();
        transaction.begin_undeclared(first.priority, first.discipline);
        let driver = local.store.driver();
        mutant!(in driver; PhaseReadBeforeLocks => driver.note_phase(local.number));
        local.store.catalog().begin_transaction(local.number, local.tables.version);
    }

    /// The transaction that [`begin`](Self::begin) has begun.
    pub fn open(&mut self) -> OpenTransaction<'_> {
        OpenTransaction::new(self)
    }

    /// Ends the transaction that [`begin`](Self::begin) has begun, and rolls it back after an error.
    ///
    /// # Errors
    /// The given error.
    pub fn end<R>(&mut self, ended: Result<R, TxError>) -> Result<R, TxError> {
        self.guarded(|worker| worker.end_run(ended))
    }

    /// Rolls back the transaction that [`begin`](Self::begin) has begun, also after a panic in the
    /// middle of one of its calls.
    pub fn abandon(&mut self) {
        drop(Unwinding(self));
    }

    fn run_declared_once<R>(
        &mut self,
        declare: &impl Fn(&mut KeySet),
        run: &mut impl FnMut(&mut OpenTransaction<'_>) -> Result<R, TxError>,
    ) -> Result<R, TxError> {
        let Self { local, transaction, .. } = self;
        transaction.keys.clear();
        declare(&mut transaction.keys);
        transaction.begin_declared(0);
        transaction.has_conflicted = false;
        let driver = local.store.driver();
        mutant!(in driver; PhaseReadBeforeLocks => driver.note_phase(local.number));
        let keys = 0..transaction.keys.declared().len();
        transaction.keys.check(keys.clone())?;
        local.enter_to_begin()?;
        let locked = transaction.lock_declared(local, keys);
        // Outside of the read section the announcement keeps the tables of the locked cells.
        let oldest = transaction.locked_version.min(local.tables.version);
        local.store.catalog().begin_transaction(local.number, oldest);
        local.exit();
        let ended = locked.and_then(|()| run(&mut OpenTransaction::new(self)));
        self.end_run(ended)
    }

    /// Rolls back a run that has not committed, ends its announcement, and reclaims.
    fn end_run<R>(&mut self, ended: Result<R, TxError>) -> Result<R, TxError> {
        let Self { local, transaction, log, .. } = self;
        if ended.is_err() {
            transaction.roll_back(local);
        }
        local.store.catalog().end_transaction(local.number);
        local.enter();
        local.collect_garbage(&|stamp| log.is_closed(stamp));
        local.exit();
        ended
    }

    /// Runs while no other transaction begins. Then only a flush of a table can cause a conflict.
    #[cold]
    fn run_permitted<R>(
        &mut self,
        next: Run,
        run: &mut impl FnMut(&mut OpenTransaction<'_>) -> Result<R, TxError>,
    ) -> Result<R, TxError> {
        if self.local.patience != Patience::Endless {
            return Err(TxError::WaitsForItself);
        }
        let store = self.local.store.clone();
        let _permit = store.driver().take_permit();
        loop {
            match self.run_once(next, run) {
                Err(TxError::Conflict) if self.transaction.has_conflicted => {}
                ended => return ended,
            }
        }
    }

    /// Makes one run.
    fn run_once<R>(
        &mut self,
        next: Run,
        run: &mut impl FnMut(&mut OpenTransaction<'_>) -> Result<R, TxError>,
    ) -> Result<R, TxError> {
        let Self { local, transaction, .. } = self;
        transaction.begin_undeclared(next.priority, next.discipline);
        let driver = local.store.driver();
        mutant!(in driver; PhaseReadBeforeLocks => driver.note_phase(local.number));
        local.store.catalog().begin_transaction(local.number, local.tables.version);
        let locked = match next.discipline {
            Discipline::Remembered => self.lock_remembered(),
            _ => Ok(()),
        };
        let ended = locked.and_then(|()| run(&mut OpenTransaction::new(self)));
        self.end_run(ended)
    }

    #[cold]
    fn lock_remembered(&mut self) -> Result<(), TxError> {
        self.transaction.lock_remembered(&mut self.local)
    }
}
