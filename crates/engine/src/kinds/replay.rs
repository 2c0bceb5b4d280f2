//! Replays operations on tables of other kinds in the order of gsns, also those of transactions
//! that a crash has cut off. These transactions are undone at the end, newest operation first, like
//! an abort.
//!
//! Operations are gathered, and repeated in lanes: each thread repeats all of them on its own pages.
//!
//! A kind's own files may hold the effects of some records. Replay begins at the least position of
//! any kind, and repeats for each kind the records above the kind's own position. A transaction
//! that began at or below the least position has ended. The records of that transaction are
//! repeated, and it need not be undone.
//!
//! A crash during that undo is no special case. The undo is logged, so the next opening repeats it
//! and goes on with the rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_format::log::{LoggedOperation, TransactionEnd};
use stillpoint_format::manifest::{KindEntry, Manifest};
use stillpoint_format::{LogGsn, Stamp};
use stillpoint_io::in_parallel;
use stillpoint_journal::{Journal, OperationRecord, ReplayOperation};
use stillpoint_recovery::{Operations as Hears, RecoveryError};
use stillpoint_store::TableId;
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::{Lane, OperationLog};

use crate::error::Error;
use crate::kinds::Kinds;
use crate::kinds::done::{DoneList, UndoFiles};
use crate::kinds::open::OpenTransactions;
use crate::kinds::operations::Operations;
use crate::log::CommitCounter;

/// Log and gsn of a transaction's first record.
type First = (u8, u64);

/// Operations that wait for what their kinds read from the disk meanwhile.
const AHEAD: usize = 64;
/// Bytes of operations that are gathered, and repeated by all lanes. A lane takes milliseconds for them.
const GATHERED_BYTES: usize = 4 << 20;

/// Operations that are to be repeated, in order.
#[derive(Debug, Default)]
struct Gathered {
    /// Of each operation: its table, its stamp, and where its body ends.
    operations: Vec<(TableId, Stamp, usize)>,
    bodies: Vec<u8>,
}

impl Gathered {
    fn body(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.operations[before].2);
        &self.bodies[start..self.operations[number].2]
    }
}

/// The transactions of a replay that have not ended yet.
#[derive(Debug)]
pub(crate) struct KindReplay {
    kinds: Arc<Kinds>,
    generations: BTreeMap<u16, u32>,
    /// The positions of the kinds in the logs.
    positions: Vec<KindEntry>,
    /// The operations of each open transaction that are not undone, oldest first.
    open: BTreeMap<First, DoneList>,
    /// The files of operations that memory has no place for. `None` if nothing may be written.
    files: Option<Arc<UndoFiles>>,
    /// The operations that are repeated next.
    gathered: Gathered,
    /// Number of lanes.
    lanes: usize,
}

impl KindReplay {
    /// A replay into tables that have what their sections name, in so many lanes.
    pub(crate) fn new(
        kinds: Arc<Kinds>,
        manifest: &Manifest,
        lanes: usize,
        files: Option<Arc<UndoFiles>>,
    ) -> Self {
        let generations = manifest.tables.iter().map(|table| (table.id, table.generation));
        let (generations, positions) = (generations.collect(), manifest.kinds.clone());
        let (open, gathered) = (BTreeMap::new(), Gathered::default());
        Self { kinds, generations, positions, open, files, gathered, lanes }
    }

    /// True if a transaction with this first record has ended for certain.
    fn ended_before(&self, LogGsn { log, gsn }: LogGsn) -> bool {
        let positions = self.positions.iter().map(|kind| kind.position(log));
        positions.min().is_some_and(|least| gsn <= least)
    }

    /// Whether the kind's own files have the effect of the record.
    fn is_kept(&self, kind: &str, (log, gsn): First) -> bool {
        let entry = self.positions.iter().find(|entry| entry.name == kind);
        entry.is_some_and(|entry| gsn <= entry.position(log))
    }

    /// Repeats an operation after those that wait already.
    fn redo_later(
        &mut self,
        table: TableId,
        stamp: Stamp,
        body: &[u8],
    ) -> Result<(), RecoveryError> {
        let Gathered { operations, bodies } = &mut self.gathered;
        bodies.extend_from_slice(body);
        operations.push((table, stamp, bodies.len()));
        if bodies.len() >= GATHERED_BYTES { self.end() } else { Ok(()) }
    }

    /// Repeats what is of one lane. Gives the first operation that it cannot repeat.
    fn redo_lane(&self, lane: Lane) -> Result<(), (Stamp, RecoveryError)> {
        let gathered = &self.gathered;
        for (number, &(table, stamp, _)) in gathered.operations.iter().enumerate() {
            if let Some(&(later, ..)) = gathered.operations.get(number + AHEAD)
                && let Ok(kind) = self.kinds.kind_of(later)
            {
                kind.ask_for_redo(later, gathered.body(number + AHEAD), lane);
            }
            let failed =
                |source| (stamp, RecoveryError::Apply { table: table.0, gsn: stamp.gsn(), source });
            self.kinds
                .kind_of(table)
                .and_then(|kind| kind.redo_in((table, stamp), gathered.body(number), lane))
                .map_err(failed)?;
        }
        Ok(())
    }

    /// Repeats all operations that wait. The logs have no more, or the next ones come later.
    ///
    /// # Errors
    /// A kind cannot repeat an operation. That of the least gsn, whatever the number of lanes.
    pub(crate) fn end(&mut self) -> Result<(), RecoveryError> {
        if self.gathered.operations.is_empty() {
            return Ok(());
        }
        let this = &*self;
        let jobs = Lane::all(self.lanes).map(|lane| move || this.redo_lane(lane));
        let ended = in_parallel("redo", jobs.collect())?;
        let first = ended.into_iter().filter_map(Result::err).min_by_key(|(stamp, _)| *stamp);
        self.gathered.operations.clear();
        self.gathered.bodies.clear();
        first.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn operation(
        &mut self,
        (log, gsn): First,
        operation: &LoggedOperation<'_>,
    ) -> Result<(), RecoveryError> {
        let LoggedOperation { table, generation, body, .. } = *operation;
        let now = self.generations.get(&table).copied().unwrap_or(0);
        let kind = self.kinds.kind_of(TableId(table)).ok().filter(|_| generation <= now);
        let kind = kind.ok_or(RecoveryError::NewerTable { log, gsn, table, generation })?;
        // The table was emptied since. The operation is still noted as one of its transaction.
        let is_stale = generation < now;
        let is_left_out = mutant!(false, UndosNotRepeated => operation.undoes.is_some());
        if !is_stale && !is_left_out && !self.is_kept(kind.name(), (log, gsn)) {
            self.redo_later(TableId(table), Stamp::new(gsn, log), body)?;
        }
        if self.ended_before(operation.transaction.unwrap_or(LogGsn { log, gsn })) {
            return Ok(());
        }
        let contradicts =
            |why: &str| Err(RecoveryError::Operation { log, gsn, why: why.to_owned() });
        match (operation.transaction, operation.undoes) {
            (None, _) => {
                let mut done = DoneList::default();
                done.push((gsn, TableId(table)), body, (body.len(), body.len()));
                self.open.insert((log, gsn), done);
            }
            (Some(LogGsn { log, gsn: first }), undoes) => {
                let Some(open) = self.open.get_mut(&(log, first)) else {
                    return contradicts("an operation of a transaction that is not open");
                };
                let Some((undone, next)) = undoes else {
                    if open.is_full() {
                        to_file(open, &mut self.files);
                    }
                    open.push((gsn, TableId(table)), body, (body.len(), body.len()));
                    return Ok(());
                };
                mutant!(UndoneAgain => return Ok(()));
                let last = open.pop().map_err(RecoveryError::Undo)?.map(|done| done.gsn);
                if last != Some(undone) || open.last_gsn() != next {
                    return contradicts("an undo out of its order");
                }
            }
        }
        Ok(())
    }

    fn end_transaction(
        &mut self,
        (log, gsn): First,
        transaction: LogGsn,
        outcome: TransactionEnd,
    ) -> Result<(), RecoveryError> {
        let contradicts =
            |why: &str| Err(RecoveryError::Operation { log, gsn, why: why.to_owned() });
        match (self.open.remove(&(transaction.log, transaction.gsn)), outcome) {
            (None, _) if self.ended_before(transaction) => Ok(()),
            (None, _) => contradicts("the end of a transaction that is not open"),
            (Some(left), TransactionEnd::Aborted) if !left.is_empty() => {
                contradicts("an abort before everything was undone")
            }
            (Some(_), _) => Ok(()),
        }
    }

    /// Undoes the transactions that a crash has cut off, and logs the undos in `logs` logs. No two of them have
    /// changed the same key, so each thread takes the next one. The MANIFEST names the journal's incarnation
    /// already.
    ///
    /// # Errors
    /// The log refuses the undo.
    pub(crate) fn undo_losers(
        self,
        (journal, logs): (&Arc<dyn Journal>, usize),
        open: &Arc<OpenTransactions>,
        epoch: u64,
    ) -> Result<(), Error> {
        mutant!(LosersKept => return Ok(()));
        let threads = self.lanes.min(self.open.len());
        let (kinds, losers) = (&self.kinds, Mutex::new(self.open.into_iter()));
        let (losers, jobs) = (&losers, 0..threads);
        let jobs = jobs.map(|number| {
            let (log, lack) = ((number % logs) as u8, Arc::default());
            let counter = CommitCounter::default();
            let mut operations =
                Operations::new(journal.clone(), log, counter, (open.clone(), lack));
            move || -> Result<(), Error> {
                loop {
                    // The lock ends before the undo begins.
                    let Some(((log, gsn), done)) = losers.lock().next() else { return Ok(()) };
                    operations.resume(LogGsn { log, gsn }, done, epoch);
                    undo_loser(kinds, &mut operations)?;
                }
            }
        });
        let ended = in_parallel("undo", jobs.collect())?;
        ended.into_iter().collect::<Result<(), Error>>()?;
        Ok(kinds.kinds.iter().try_for_each(|kind| kind.replay_ended())?)
    }
}

/// Brings operations to a file. If the disk refuses, memory keeps them, since the transaction may have committed.
#[cold]
fn to_file(open: &mut DoneList, files: &mut Option<Arc<UndoFiles>>) {
    let Some(to) = files else { return };
    if let Err(error) = open.file_away(to) {
        tracing::warn!(%error, "memory keeps what a start may have to undo");
        *files = None;
    }
}

/// Undoes a transaction, newest operation first, and logs its end.
fn undo_loser(kinds: &Kinds, operations: &mut Operations) -> Result<(), Error> {
    while let Some(done) = operations.undo_next()? {
        let kind = kinds.kind_of(done.table)?;
        kind.undo(done.table, &done.undo, operations)?;
    }
    operations.append_abort();
    operations.take_failure().map_or(Ok(()), |reason| Err(Error::Failed(reason)))
}

impl KindReplay {
    /// As [`undo_losers`](Self::undo_losers), of tables on a disk that is only read.
    ///
    /// # Errors
    /// A page cannot be read.
    pub(crate) fn undo_with(self, log: &mut dyn OperationLog) -> Result<(), Error> {
        for mut open in self.open.into_values() {
            while let Some(done) = open.pop()? {
                self.kinds.kind_of(done.table)?.undo(done.table, &done.undo, log)?;
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
            OperationRecord::End(transaction, outcome) => {
                self.end_transaction(place, *transaction, *outcome)
            }
            // The writes of a call are replayed by key.
            OperationRecord::Call(_) => Ok(()),
        }
    }
}
