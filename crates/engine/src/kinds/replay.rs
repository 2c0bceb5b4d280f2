//! What the logs hold of tables of other kinds: repeated in the order of gsns, also of transactions
//! that a crash has cut off. Those are undone at the end, newest operation first, as an abort is.
//!
//! A crash during that undo is no special case: the undo is logged, so the next opening repeats what
//! was undone and goes on with the rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use stillpoint_format::log::{LoggedOperation, TransactionEnd};
use stillpoint_format::manifest::TableEntry;
use stillpoint_format::{LogGsn, Stamp};
use stillpoint_journal::{Journal, OperationRecord, ReplayOperation};
use stillpoint_recovery::{Operations as Hears, RecoveryError};
use stillpoint_store::TableId;
use stillpoint_sync::{mutant, planted};

use crate::error::Error;
use crate::kinds::Kinds;
use crate::kinds::operations::{Done, Operations};
use crate::log::CommitCounter;

/// Log and gsn of a transaction's first record.
type First = (u8, u64);

/// The transactions of a replay that have not ended yet.
#[derive(Debug)]
pub(crate) struct KindReplay {
    kinds: Arc<Kinds>,
    generations: BTreeMap<u16, u32>,
    /// What is not undone of each open transaction, oldest first.
    open: BTreeMap<First, Vec<Done>>,
}

impl KindReplay {
    /// A replay into tables that are empty.
    pub(crate) fn new(kinds: Arc<Kinds>, tables: &[TableEntry]) -> Self {
        let generations = tables.iter().map(|table| (table.id, table.generation)).collect();
        Self { kinds, generations, open: BTreeMap::new() }
    }

    fn operation(
        &mut self,
        (log, gsn): First,
        operation: &LoggedOperation<'_>,
    ) -> Result<(), RecoveryError> {
        let LoggedOperation { table, generation, body, .. } = *operation;
        let known = self.generations.get(&table) == Some(&generation);
        let kind = self.kinds.kind_of(TableId(table)).ok().filter(|_| known);
        let kind = kind.ok_or(RecoveryError::NewerTable { log, gsn, table, generation })?;
        kind.redo(TableId(table), Stamp::new(gsn, log), body)
            .map_err(|source| RecoveryError::Apply { table, gsn, source })?;
        let contradicts =
            |why: &str| Err(RecoveryError::Operation { log, gsn, why: why.to_owned() });
        match (operation.transaction, operation.undoes) {
            (None, _) => {
                let done = Done { gsn, table: TableId(table), body: body.to_vec() };
                self.open.insert((log, gsn), vec![done]);
            }
            (Some(LogGsn { log, gsn: first }), undoes) => {
                let Some(open) = self.open.get_mut(&(log, first)) else {
                    return contradicts("an operation of a transaction that is not open");
                };
                let Some((undone, next)) = undoes else {
                    open.push(Done { gsn, table: TableId(table), body: body.to_vec() });
                    return Ok(());
                };
                let last = open.pop().map(|done| done.gsn);
                if last != Some(undone) || open.last().map(|done| done.gsn) != next {
                    return contradicts("an undo out of its order");
                }
            }
        }
        Ok(())
    }

    fn end(
        &mut self,
        (log, gsn): First,
        transaction: LogGsn,
        outcome: TransactionEnd,
    ) -> Result<(), RecoveryError> {
        let contradicts =
            |why: &str| Err(RecoveryError::Operation { log, gsn, why: why.to_owned() });
        match (self.open.remove(&(transaction.log, transaction.gsn)), outcome) {
            (None, _) => contradicts("the end of a transaction that is not open"),
            (Some(left), TransactionEnd::Aborted) if !left.is_empty() => {
                contradicts("an abort before everything was undone")
            }
            (Some(_), _) => Ok(()),
        }
    }

    /// Undoes what a crash has cut off, and logs that. The MANIFEST names the journal's incarnation
    /// already.
    ///
    /// # Errors
    /// The log refuses the undo.
    pub(crate) fn undo_losers(self, journal: &Arc<dyn Journal>, epoch: u64) -> Result<(), Error> {
        mutant!(LosersKept => return Ok(()));
        let mut operations = Operations::new(journal.clone(), 0, CommitCounter::default());
        for ((log, gsn), done) in self.open {
            operations.resume(LogGsn { log, gsn }, done, epoch);
            while let Some(done) = operations.undo_next() {
                let kind = self.kinds.kind_of(done.table)?;
                kind.undo(done.table, &done.body, &mut operations)?;
            }
            operations.append_abort();
            if let Some(reason) = operations.take_failure() {
                return Err(Error::Failed(reason));
            }
        }
        Ok(())
    }
}

impl Hears for KindReplay {
    fn hear(&mut self, record: &ReplayOperation<'_>) -> Result<(), RecoveryError> {
        let place = (record.log, record.gsn);
        match &record.record {
            OperationRecord::Operation(operation) => self.operation(place, operation),
            OperationRecord::End(transaction, outcome) => self.end(place, *transaction, *outcome),
        }
    }
}
