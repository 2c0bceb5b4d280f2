//! Transactions with declared keys: the traits that a program implements, and the adapter from
//! these to the memory store's traits.

use stillpoint_store::{KeySet, Stamp, TxError};

use crate::call::Call;
use crate::call_log::Runner;
use crate::tx::Tx;

/// A transaction with declared keys.
pub trait Procedure {
    /// Names the keys of the transaction. Called once per execution, with an empty set.
    fn declare(&mut self, keys: &mut KeySet);
    /// As [`Batch::call`].
    fn call(&mut self, _call: &mut Call) {}
    /// Reads and writes the declared keys. An error rolls back.
    ///
    /// # Errors
    /// Any error rolls back, and is passed to [`ended`](Self::ended).
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError>;
    /// Told how the transaction ended: the commit's stamp (`None` if it wrote nothing), or the
    /// error.
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>);
}

/// Transactions with declared keys, run one after the other and numbered from 0. A slice of
/// [`Procedure`]s is a batch.
pub trait Batch {
    /// Number of transactions.
    fn len(&self) -> usize;
    /// Whether the batch is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Declares the keys of transaction `index`, as [`Procedure::declare`].
    fn declare(&mut self, index: usize, keys: &mut KeySet);
    /// Whether transaction `index` shall run now. Asked before the transaction locks a key or
    /// copies a value. A refused transaction does not run, and [`ended`](Self::ended) is not called
    /// for it. `large_bytes` estimates the bytes of the large values under the transaction's keys;
    /// nothing is locked yet.
    #[inline]
    fn begins(&mut self, _index: usize, _large_bytes: &dyn Fn() -> usize) -> bool {
        true
    }
    /// Fills in the call that transaction `index` is, before it runs. Asked if
    /// [`Config::log_calls`](crate::Config::log_calls) says so, or the journal logs calls. A transaction
    /// without a call is logged by its writes alone.
    fn call(&mut self, _index: usize, _call: &mut Call) {}
    /// As [`Procedure::run`].
    ///
    /// # Errors
    /// As [`Procedure::run`].
    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError>;
    /// Runs transaction `index` once more before it commits, with what `call` says, to compare what it
    /// writes. Asked if [`Config::run_calls_twice`](crate::Config::run_calls_twice) says so. A batch whose
    /// run does more than to read and write has a second run without the rest.
    ///
    /// # Errors
    /// As [`Procedure::run`].
    fn run_again(&mut self, index: usize, _call: &Call, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.run(index, tx)
    }
    /// As [`Procedure::ended`].
    fn ended(&mut self, index: usize, result: Result<Option<Stamp>, TxError>);
}

impl<P: Procedure> Batch for [P] {
    fn len(&self) -> usize {
        <[P]>::len(self)
    }
    #[inline]
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        self[index].declare(keys);
    }
    fn call(&mut self, index: usize, call: &mut Call) {
        self[index].call(call);
    }
    #[inline]
    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self[index].run(tx)
    }
    #[inline]
    fn ended(&mut self, index: usize, result: Result<Option<Stamp>, TxError>) {
        self[index].ended(result);
    }
}

/// A batch whose keys are all the memory store's.
pub(crate) struct InMemory<'b, B: ?Sized> {
    pub(crate) batch: &'b mut B,
    pub(crate) runner: Runner<'b>,
}

impl<B: Batch + ?Sized> stillpoint_store::Batch for InMemory<'_, B> {
    #[inline]
    fn len(&self) -> usize {
        self.batch.len()
    }
    #[inline]
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        self.runner.declare(self.batch, index, keys);
    }
    #[inline]
    fn begins(&mut self, index: usize, large_bytes: &dyn Fn() -> usize) -> bool {
        self.batch.begins(index, large_bytes)
    }
    #[inline]
    fn run(&mut self, index: usize, tx: &mut stillpoint_store::Tx<'_>) -> Result<(), TxError> {
        self.runner.run(self.batch, index, &mut Tx::in_memory(tx.reborrow()))
    }
    #[inline]
    fn ended(&mut self, index: usize, result: Result<Option<Stamp>, TxError>) {
        self.runner.serials.ended(&result);
        self.batch.ended(index, result);
    }
}
