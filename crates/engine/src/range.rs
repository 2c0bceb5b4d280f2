//! The records of a range, of an ordered table in memory, of a paged table or of a SIREN table.

use std::ops::{Bound, RangeBounds};

use stillpoint_store::{TableId, TxError, ValueRef};
use stillpoint_txn::{KindRange, RangeBatch};

use crate::kinds::Parts;

/// The records of a range of a table, in the order of their keys or against it. From
/// [`Tx::range`](crate::Tx::range).
///
/// Records are locked as they are read, some ahead. A transaction that stops early has not locked the
/// rest of the range.
#[derive(Debug)]
pub struct Range<'t>(Of<'t>);

#[derive(Debug)]
enum Of<'t> {
    Memory(stillpoint_store::Range<'t>),
    Part(PartRange<'t>),
}

/// A range of a table of another kind than the memory store.
struct PartRange<'t> {
    parts: &'t mut Parts,
    kind: usize,
    table: TableId,
    /// The part of the range that is still to be read.
    bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    is_descending: bool,
    batch: RangeBatch,
    /// The next record of `batch`.
    next: usize,
    has_begun: bool,
}

impl std::fmt::Debug for PartRange<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartRange").field("table", &self.table).finish_non_exhaustive()
    }
}

impl<'t> Range<'t> {
    pub(crate) fn in_memory(range: stillpoint_store::Range<'t>) -> Self {
        Self(Of::Memory(range))
    }

    pub(crate) fn in_part<'k>(
        parts: &'t mut Parts,
        (kind, table): (usize, TableId),
        range: &impl RangeBounds<&'k [u8]>,
        is_descending: bool,
    ) -> Self {
        let bounds = (
            range.start_bound().map(|key| key.to_vec()),
            range.end_bound().map(|key| key.to_vec()),
        );
        let batch = RangeBatch::default();
        let (next, has_begun) = (0, false);
        Self(Of::Part(PartRange {
            parts,
            kind,
            table,
            bounds,
            is_descending,
            batch,
            next,
            has_begun,
        }))
    }

    /// The next record: its key, and its value as the transaction sees it. `None` at the end.
    ///
    /// # Errors
    /// [`TxError::Conflict`], which the body must return: the transaction is tried again.
    /// [`TxError::WaitsForItself`], after which the transaction cannot commit. Of a paged table: a page
    /// cannot be read.
    pub fn next_record(&mut self) -> Result<Option<(&[u8], ValueRef<'_>)>, TxError> {
        match &mut self.0 {
            Of::Memory(range) => range.next_record(),
            Of::Part(range) => range.next_record(),
        }
    }
}

impl PartRange<'_> {
    fn next_record(&mut self) -> Result<Option<(&[u8], ValueRef<'_>)>, TxError> {
        while self.next == self.batch.len() {
            if self.has_begun && self.batch.is_end {
                return Ok(None);
            }
            if self.has_begun {
                let next = std::mem::take(&mut self.batch.next);
                match self.is_descending {
                    true => self.bounds.1 = Bound::Excluded(next),
                    false => self.bounds.0 = Bound::Included(next),
                }
            }
            let Self { parts, kind, table, bounds, is_descending, batch, .. } = self;
            let range = KindRange {
                table: *table,
                lower: bounds.0.as_ref().map(|key| &key[..]),
                upper: bounds.1.as_ref().map(|key| &key[..]),
                is_descending: *is_descending,
            };
            parts.range(*kind, &range, batch)?;
            (self.has_begun, self.next) = (true, 0);
        }
        self.next += 1;
        let (key, tag, value) = self.batch.record(self.next - 1);
        Ok(Some((key, ValueRef::from_bytes(tag, value))))
    }
}
