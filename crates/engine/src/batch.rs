//! Transactions with declared keys, and how the memory store runs them.

use stillpoint_store::{KeySet, Stamp, TxError};

use crate::tx::Tx;

/// A transaction with declared keys.
pub trait Procedure {
    /// Names the keys it touches. Called once per execution, with an empty set.
    fn declare(&mut self, keys: &mut KeySet);
    /// Reads and writes them; an error rolls back.
    ///
    /// # Errors
    /// Any error rolls back; [`ended`](Self::ended) gets it.
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError>;
    /// How it ended: the commit's stamp (`None` if it wrote nothing), or why it did not commit.
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>);
}

/// Transactions with declared keys, to be run one after the other, numbered from 0. A slice of
/// [`Procedure`]s is one; implement it directly where no slice is wanted.
pub trait Batch {
    /// How many.
    fn len(&self) -> usize;
    /// True if there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// As [`Procedure::declare`], for number `index`.
    fn declare(&mut self, index: usize, keys: &mut KeySet);
    /// Asked before number `index` locks or copies a value: false if it is not to run now. It then
    /// does not end, either. `large_bytes` gives the bytes of the large values that its keys have. It
    /// is an estimate, for nothing is locked.
    #[inline]
    fn begins(&mut self, _index: usize, _large_bytes: &dyn Fn() -> usize) -> bool {
        true
    }
    /// As [`Procedure::run`].
    ///
    /// # Errors
    /// As [`Procedure::run`].
    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError>;
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
pub(crate) struct InMemory<'b, B: ?Sized>(pub(crate) &'b mut B);

impl<B: Batch + ?Sized> stillpoint_store::Batch for InMemory<'_, B> {
    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }
    #[inline]
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        self.0.declare(index, keys);
    }
    #[inline]
    fn begins(&mut self, index: usize, large_bytes: &dyn Fn() -> usize) -> bool {
        self.0.begins(index, large_bytes)
    }
    #[inline]
    fn run(&mut self, index: usize, tx: &mut stillpoint_store::Tx<'_>) -> Result<(), TxError> {
        self.0.run(index, &mut Tx::new(tx.reborrow()))
    }
    #[inline]
    fn ended(&mut self, index: usize, result: Result<Option<Stamp>, TxError>) {
        self.0.ended(index, result);
    }
}
