//! A transaction that is open on a worker.

use stillpoint_format::Stamp;
use stillpoint_sync::lock_word::Priority;
use stillpoint_txn::{Discipline, Patience, TxError};

use crate::txn::commit::CommitSteps;
use crate::txn::tx::Tx;
use crate::worker::Worker;

/// A transaction that is open on a worker, outside of any read section. The worker rolls back a
/// transaction that is not committed.
#[derive(Debug)]
pub struct OpenTransaction<'w> {
    worker: &'w mut Worker,
}

impl<'w> OpenTransaction<'w> {
    pub(crate) fn new(worker: &'w mut Worker) -> Self {
        Self { worker }
    }

    /// The transaction in its body's view.
    #[inline]
    pub fn tx(&mut self) -> Tx<'_> {
        Tx::new(&mut self.worker.transaction, &mut self.worker.local)
    }

    /// The transaction in its body's view, for as long as the worker is borrowed.
    pub fn into_tx(self) -> Tx<'w> {
        Tx::new(&mut self.worker.transaction, &mut self.worker.local)
    }

    /// The priority of the transaction's locks.
    pub fn priority(&self) -> Priority {
        self.worker.transaction.priority
    }

    /// The transaction's locking discipline.
    pub fn discipline(&self) -> Discipline {
        self.worker.transaction.discipline
    }

    /// How long the transaction waits for others.
    pub fn patience(&self) -> Patience {
        self.worker.local.patience
    }

    /// Waits while another thread has the permit of the store. Called before the transaction takes its
    /// first lock outside of the store. A checkpoint does not wait meanwhile for this transaction.
    ///
    /// # Errors
    /// [`TxError::WaitsForItself`] if the permit did not become free within the patience.
    pub fn wait_for_permit(&self) -> Result<(), TxError> {
        self.worker.local.wait_for_permit()
    }

    /// Notes that the transaction has met a lock outside of the store that it may not wait for.
    pub fn note_conflict(&mut self) {
        self.worker.transaction.has_conflicted = true;
    }

    /// Begins the commit, in a read section that ends with the steps.
    ///
    /// # Errors
    /// [`TxError::Conflict`] if the transaction has met a lock that it may not wait for. A body that
    /// goes on after a conflict has seen and written a part of its keys only.
    #[inline]
    pub fn begin_commit(&mut self) -> Result<CommitSteps<'_>, TxError> {
        let Worker { local, transaction, log, .. } = &mut *self.worker;
        transaction.check_fit()?;
        local.enter();
        Ok(CommitSteps::new(transaction, local, log, true))
    }

    /// Commits to the worker's log. Returns the stamp, `None` if nothing was written.
    ///
    /// # Errors
    /// The reason why the commit was refused: [`TxError::Log`], [`TxError::Memory`],
    /// [`TxError::IndexFull`] or [`TxError::Conflict`].
    #[inline]
    pub fn commit(&mut self) -> Result<Option<Stamp>, TxError> {
        let Worker { local, transaction, log, .. } = &mut *self.worker;
        transaction.check_fit()?;
        local.enter();
        let committed = transaction.commit(local, log);
        local.exit();
        committed
    }
}
