//! Batches of transactions with declared keys where a table may be of any kind.
//!
//! All transactions of a chunk are declared first, and the kinds are asked for all their keys
//! before any wait. Transactions on the memory store alone then run in one read section. A
//! transaction with keys of another kind runs outside of any read section. Such a transaction locks
//! its keys of the memory store first, then those of each kind. Transactions that read one key each share a
//! run, in which each reads without a lock.
//!
//! A caller that must not wait gets the arrivals of the missing keys, and the number of the first
//! transaction that has not run. If a key proves missing in the middle of a transaction, its run is
//! rolled back.

use std::ops::Range;
use std::sync::Arc;

use stillpoint_store::{KeySet, Mode, Stamp, TableId, TxError, Worker};
use stillpoint_txn::Arrival;

use crate::batch::Batch;
use crate::call_log::Runner;
use crate::kinds::{LongWait, Parts, commit};
use crate::tx::Tx;

/// Transactions of a batch that are declared together, at most this many keys.
const CHUNK_KEYS_MAX: usize = 64;

/// Declared transactions.
struct Chunk {
    keys: KeySet,
    /// Where the keys of each transaction end.
    ends: Vec<usize>,
}

impl Chunk {
    /// Declares transactions from number `first` on.
    fn declare<B: Batch + ?Sized>(&mut self, batch: &mut B, runner: &Runner<'_>, first: usize) {
        self.keys.clear();
        self.ends.clear();
        for index in first..batch.len() {
            self.keys.next_transaction();
            runner.declare(batch, index, &mut self.keys);
            self.ends.push(self.keys.declared().len());
            if self.keys.declared().len() >= CHUNK_KEYS_MAX {
                break;
            }
        }
    }

    /// The keys of a transaction of the chunk.
    fn range(&self, at: usize) -> Range<usize> {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[at]
    }

    fn is_in_memory(&self, at: usize, parts: &Parts) -> bool {
        let keys = &self.keys.declared()[self.range(at)];
        let is_refused = self.keys.check(self.range(at)).is_err();
        !is_refused && keys.iter().all(|key| parts.kinds.of(key.table).is_none())
    }

    /// How many transactions of these, from the first on, read one key of another kind than the memory store
    /// and do nothing else.
    fn reads_from(&self, transactions: Range<usize>, parts: &Parts) -> usize {
        let reads_one = |&at: &usize| {
            let range = self.range(at);
            let [key] = &self.keys.declared()[range.clone()] else { return false };
            let is_read = key.mode == Mode::Read && parts.kinds.of(key.table).is_some();
            is_read && self.keys.check(range).is_ok()
        };
        transactions.take_while(reads_one).count()
    }

    /// Declares keys of the chunk once more, for the store.
    fn copy(&self, range: Range<usize>, into: &mut KeySet, wanted: impl Fn(TableId) -> bool) {
        for index in range {
            let key = &self.keys.declared()[index];
            if wanted(key.table) {
                into.push(key.table, self.keys.key(index), key.mode, key.value_len as usize);
            }
        }
    }
}

/// The state of a batch that must not wait: transactions before number `next` have ended.
#[derive(Clone, Debug)]
pub(crate) struct Absent {
    pub(crate) next: usize,
    pub(crate) arrivals: Vec<Arc<dyn Arrival>>,
}

/// Runs a batch from transaction `from` on.
///
/// # Errors
/// If `parts` may not wait: the arrivals of the keys that are not in memory.
pub(crate) fn execute<B: Batch + ?Sized>(
    worker: &mut Worker,
    parts: &mut Parts,
    (batch, mut runner): (&mut B, Runner<'_>),
    from: usize,
) -> Result<(), Absent> {
    let mut chunk = Chunk { keys: KeySet::new(worker.store().hasher()), ends: Vec::new() };
    let mut next = from;
    while next < batch.len() {
        chunk.declare(batch, &runner, next);
        let ran = execute_chunk(worker, parts, (batch, runner.reborrow()), (&chunk, next));
        parts.give_dependencies(worker);
        ran?;
        next += chunk.ends.len();
    }
    Ok(())
}

/// Runs a chunk whose first transaction is number `next` of the batch.
fn execute_chunk<B: Batch + ?Sized>(
    worker: &mut Worker,
    parts: &mut Parts,
    (batch, mut runner): (&mut B, Runner<'_>),
    (chunk, next): (&Chunk, usize),
) -> Result<(), Absent> {
    let (first, arrivals) = parts.ask_for_all(&chunk.keys);
    // The first transaction that lacks a key for which nobody has waited.
    let end = first.map_or(chunk.ends.len(), |key| chunk.ends.partition_point(|&end| end <= key));
    // A log of calls has transactions that end by themselves.
    let (mut at, mut may_read) = (0, runner.log.is_none());
    while at < end {
        let count = (at..end).take_while(|&at| chunk.is_in_memory(at, parts)).count();
        if count > 0 {
            let runner = runner.reborrow();
            worker.execute(&mut InMemoryOnly { batch, runner, chunk, next, at, count });
            at += count;
            continue;
        }
        let mut has_begun = false;
        let reads = if may_read { chunk.reads_from(at..end, parts) } else { 0 };
        if reads > 1 {
            let reads = at..at + reads;
            let done;
            let of = (chunk, reads.clone());
            (done, has_begun) = execute_reads(worker, parts, (batch, runner.reborrow()), of, next);
            at += done;
            if at == reads.end {
                continue;
            }
            // The kind has no such reads, or the keys are being changed.
            may_read = done > 0;
        }
        let runner = runner.reborrow();
        execute_mixed(worker, parts, (batch, runner), (chunk, at), (next + at, has_begun))?;
        at += 1;
    }
    if arrivals.is_empty() { Ok(()) } else { Err(Absent { next: next + end, arrivals }) }
}

/// Runs transactions of a chunk that read one key each, as one run of the parts. They take no lock, so nobody
/// waits for them, and each sees one committed value. Ends early before a transaction that has to lock its key.
/// Returns the number of transactions that have ended, and whether the next one has [begun](Batch::begins).
fn execute_reads<B: Batch + ?Sized>(
    worker: &mut Worker,
    parts: &mut Parts,
    (batch, mut runner): (&mut B, Runner<'_>),
    (chunk, reads): (&Chunk, Range<usize>),
    next: usize,
) -> (usize, bool) {
    let (mut done, mut has_begun) = (0, false);
    let no_lock = |_: &mut Parts| Ok(());
    let ran = worker.run_declared_outside(
        |_| (),
        |open| {
            commit::run(open, parts, no_lock, |tx| {
                while done < reads.len() {
                    let (at, index) = (reads.start + done, next + reads.start + done);
                    // As in `execute_mixed`.
                    if !has_begun && !batch.begins(index, &|| 0) {
                        done += 1;
                        continue;
                    }
                    has_begun = true;
                    if !tx.in_parts().read_alone(&chunk.keys, chunk.range(at).start) {
                        break;
                    }
                    let ended = runner.run(batch, index, tx).map(|()| None);
                    (done, has_begun) = (done + 1, false);
                    runner.serials.ended(&ended);
                    batch.ended(index, ended);
                }
                Ok(())
            })
        },
    );
    debug_assert!(ran.is_ok() || done == 0, "a run without a lock and a write: {ran:?}");
    (done, has_begun)
}

/// Runs number `index` of the batch, which is number `at` of the chunk. It may have begun already.
fn execute_mixed<B: Batch + ?Sized>(
    worker: &mut Worker,
    parts: &mut Parts,
    (batch, mut runner): (&mut B, Runner<'_>),
    (chunk, at): (&Chunk, usize),
    (index, has_begun): (usize, bool),
) -> Result<(), Absent> {
    // The bytes of its large values are not known, since they may not be in memory.
    if !has_begun && !batch.begins(index, &|| 0) {
        return Ok(());
    }
    let range = chunk.range(at);
    let mut wait = LongWait::default();
    let ended = chunk.keys.check(range.clone()).and_then(|()| {
        loop {
            let kinds = parts.kinds.clone();
            let ended = worker.run_declared_outside(
                |keys| chunk.copy(range.clone(), keys, |table| kinds.of(table).is_none()),
                |open| {
                    let lock = |parts: &mut Parts| parts.lock_declared(&chunk.keys, range.clone());
                    commit::run(open, parts, lock, |tx| runner.run(batch, index, tx))
                },
            );
            if !parts.waits_on(&ended) {
                return ended;
            }
            parts.pause(&mut wait)?;
        }
    });
    if let Some(arrival) = parts.absent.take() {
        return Err(Absent { next: index, arrivals: vec![arrival] });
    }
    runner.serials.ended(&ended);
    batch.ended(index, ended.map(|((), stamp)| stamp));
    Ok(())
}

/// Transactions of a chunk that are on the memory store alone.
struct InMemoryOnly<'b, B: ?Sized> {
    batch: &'b mut B,
    runner: Runner<'b>,
    chunk: &'b Chunk,
    /// The number in the batch of the first transaction of the chunk.
    next: usize,
    /// The number in the chunk of the first transaction of this batch.
    at: usize,
    count: usize,
}

impl<B: Batch + ?Sized> stillpoint_store::Batch for InMemoryOnly<'_, B> {
    fn len(&self) -> usize {
        self.count
    }
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        self.chunk.copy(self.chunk.range(self.at + index), keys, |_| true);
    }
    fn begins(&mut self, index: usize, large_bytes: &dyn Fn() -> usize) -> bool {
        self.batch.begins(self.next + self.at + index, large_bytes)
    }
    fn run(&mut self, index: usize, tx: &mut stillpoint_store::Tx<'_>) -> Result<(), TxError> {
        let index = self.next + self.at + index;
        self.runner.run(self.batch, index, &mut Tx::in_memory(tx.reborrow()))
    }
    fn ended(&mut self, index: usize, result: Result<Option<Stamp>, TxError>) {
        self.runner.serials.ended(&result);
        self.batch.ended(self.next + self.at + index, result);
    }
}
