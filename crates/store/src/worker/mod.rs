//! A worker: runs transactions one at a time, in read sections.

mod open;
mod retry;
mod scan;

use std::sync::Arc;

use stillpoint_format::{Label, Stamp};
use stillpoint_sync::mutant;
use stillpoint_txn::{DeclaredKey, KeySet, Mode, Patience, TableId, TxError};

use crate::participant::Participant;
use crate::planted;
use crate::store::Store;
use crate::txn::Transaction;
use crate::txn::commit_log::CommitLog;
use crate::txn::tx::Tx;

pub use open::OpenTransaction;
pub use scan::RecordUse;

/// A transaction with declared keys.
pub trait Procedure {
    /// Names the keys of the transaction. Called once per execution, with an empty set.
    fn declare(&mut self, keys: &mut KeySet);
    /// Reads and writes the declared keys. An error rolls back. A transaction that declared one
    /// key, for reading alone, runs without its lock first. After [`TxError::NotLocked`] it runs again, with
    /// the lock at the latest in the fifth run.
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
    /// The number of keys with which no further transaction is declared until those before it have run.
    #[inline]
    fn keys_together(&self) -> usize {
        BATCH_KEYS_MAX
    }
    /// Whether transaction `index` shall run now. Asked before the transaction locks a key or
    /// copies a value. A refused transaction does not run, and [`ended`](Self::ended) is not called
    /// for it. `large_bytes` estimates the bytes of the large values under the transaction's keys;
    /// nothing is locked yet.
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

/// A value found without a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundValue {
    /// Tag of the value.
    pub tag: u8,
    /// Deadline of the value, 0 for none.
    pub deadline: u64,
    /// Stamp of the value's writer.
    pub stamp: Stamp,
}

/// Runs of a transaction that only reads one key without its lock, at most. Then it takes the lock.
pub(crate) const RUNS_WITHOUT_LOCK: u32 = 4;
/// Transactions of a batch whose keys are prefetched together, at most this many keys.
const BATCH_KEYS_MAX: usize = 64;

/// Runs transactions on a [`Store`]. One per thread.
pub struct Worker {
    pub(crate) local: Participant,
    pub(crate) transaction: Transaction,
    pub(crate) log: Box<dyn CommitLog>,
    /// End of each transaction's keys in the running batch.
    ends: Vec<usize>,
    /// Buffers of scans.
    copied: scan::Copied,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker that commits to `log`. `None` if all of the store's workers are taken.
    pub fn new(store: Arc<Store>, log: Box<dyn CommitLog>) -> Option<Self> {
        let transaction = Transaction::new(store.hasher());
        let local = Participant::new(store, (log.wants_dependencies(), log.orders_reads()))?;
        let (ends, copied) = Default::default();
        Some(Self { local, transaction, log, ends, copied })
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.local.store
    }

    /// The worker's number, below the store's number of workers.
    pub fn number(&self) -> usize {
        self.local.number
    }

    /// Sets how long transactions wait for others, from the next wait on.
    #[inline]
    pub fn set_patience(&mut self, patience: Patience) {
        self.local.patience = patience;
    }

    /// Sets whether transactions with declared keys leave locks alone that others hold for longer than a
    /// moment, from the next wait on. So is the permit of the store, which one transaction has when many runs
    /// have failed. A transaction that meets such a lock ends with [`TxError::Held`].
    #[inline]
    pub fn leave_held(&mut self, leaves: bool) {
        self.local.leaves_held = leaves;
    }

    /// Sets whether transactions leave records alone that are to be read from a disk, while the store is
    /// served and loaded. A transaction that needs such a record ends with [`TxError::NotLoaded`].
    /// [`load_missed`](Self::load_missed) loads what was needed since the last call with `true`.
    #[inline]
    pub fn leave_unloaded(&mut self, leaves: bool) {
        self.local.leaves_unloaded = leaves;
        if leaves && !self.local.missed.is_empty() {
            self.local.missed.forget();
        }
    }

    /// Loads the records for whose lack transactions of this worker have ended, and those that they
    /// [asked for](Tx::ask_for). Returns whether there were such records.
    ///
    /// # Errors
    /// [`TxError::Unreadable`] if the first of them cannot be read.
    pub fn load_missed(&mut self) -> Result<bool, TxError> {
        if self.local.missed.is_empty() {
            return Ok(false);
        }
        self.guarded(|worker| worker.local.load_missed()).map(|()| true)
    }

    /// Runs a batch of procedures, each as a transaction of its own, one after the other. Index
    /// lines and records of several are prefetched together before the first runs. A procedure that
    /// only reads a single key takes no lock.
    ///
    /// If a procedure panics, its transaction is rolled back. Earlier ones stay committed, later
    /// ones do not run, and the worker can be used again.
    pub fn execute<B: Batch + ?Sized>(&mut self, batch: &mut B) {
        self.guarded(|worker| worker.execute_all(batch));
    }

    /// Runs a closure that enters the read section. If the closure panics, the worker leaves the
    /// read section and releases its locks.
    #[inline]
    pub(crate) fn guarded<R>(&mut self, run: impl FnOnce(&mut Self) -> R) -> R {
        let unwinding = Unwinding(self);
        let result = run(unwinding.0);
        std::mem::forget(unwinding);
        result
    }

    fn execute_all<B: Batch + ?Sized>(&mut self, batch: &mut B) {
        let mut next = 0;
        while next < batch.len() {
            if let Err(error) = self.local.enter_to_begin_declared() {
                return refuse_all(batch, next, &error);
            }
            self.declare_batch(batch, next);
            if self.local.loads_ahead()
                && let Err(error) = self.load_declared()
            {
                return refuse_all(batch, next, &error);
            }
            self.prefetch_batch();
            let are_long = self.local.store.memory().arena.records_are_long();
            let mut first = 0;
            for at in 0..self.ends.len() {
                let end = self.ends[at];
                if are_long && let Some(&next) = self.ends.get(at + 1) {
                    self.prefetch_long(end..next);
                }
                let large_bytes = || self.large_bytes(first..end);
                if batch.begins(next + at, &large_bytes) {
                    let mut result = self.run_declared(first..end, batch, next + at);
                    if self.local.runs_again(&result) {
                        result = self.run_loaded(first..end, batch, next + at);
                    }
                    batch.ended(next + at, result);
                }
                first = end;
            }
            next += self.ends.len();
            let Self { local, log, .. } = self;
            local.collect_garbage(&|stamp| log.is_closed(stamp));
            local.exit();
        }
    }

    /// Declares transactions from number `first` on, until the batch has enough keys. `ends` holds
    /// the end of each transaction's keys.
    fn declare_batch<B: Batch + ?Sized>(&mut self, batch: &mut B, first: usize) {
        let keys = &mut self.transaction.keys;
        keys.clear();
        self.ends.clear();
        for index in first..batch.len() {
            keys.next_transaction();
            batch.declare(index, keys);
            self.ends.push(keys.declared().len());
            if keys.declared().len() >= batch.keys_together() {
                break;
            }
        }
    }

    /// Loads the declared keys that are not in memory yet. Leaves the read section for a while, in which
    /// nothing was looked up yet.
    ///
    /// # Errors
    /// [`TxError::WaitsForItself`] or [`TxError::Held`]. Then the thread is outside of the read section.
    #[cold]
    fn load_declared(&mut self) -> Result<(), TxError> {
        let Self { local, transaction, .. } = self;
        local.exit();
        for (index, declared) in transaction.keys.declared().iter().enumerate() {
            // The lookup of the key tells what cannot be read.
            let _ = local.load_ahead(declared.table, transaction.keys.key(index), declared.hash);
        }
        local.missed.forget();
        local.enter_to_begin_declared()
    }

    /// Loads what a transaction of a batch has missed, which holds no lock any more. Leaves the read
    /// section for that time.
    ///
    /// # Errors
    /// As [`Participant::load_missed`], or [`TxError::WaitsForItself`].
    #[cold]
    fn load_between_runs(&mut self) -> Result<(), TxError> {
        let Self { local, transaction, .. } = self;
        local.exit();
        let loaded = local.load_missed();
        // The candidates were found in the section that has ended.
        transaction.keys.forget_candidates();
        local.enter_to_begin().inspect_err(|_| local.enter())?;
        loaded
    }

    fn prefetch_batch(&mut self) {
        let local = &self.local;
        let keys = self.transaction.keys.declared_mut();
        let Participant { tables, store, .. } = local;
        for key in &mut *keys {
            if let Some(table) = tables.get(key.table) {
                // The field holds the bucket's number until the second pass sets the candidate.
                key.candidate = table.index.prefetch(key.hash);
            }
        }
        for key in &mut *keys {
            if let Some(table) = tables.get(key.table) {
                key.candidate = table.index.candidate(key.candidate, key.hash);
                store.prefetch_to_commit(key.candidate);
            }
        }
        store.memory().arena.prefetch_accesses(keys.iter().map(|key| key.candidate));
        if let Some(reads) = local.read_stamps() {
            let are_left = reads.are_left();
            for key in self.transaction.keys.declared() {
                match key.mode {
                    Mode::Read => reads.prefetch_to_leave(key.hash),
                    Mode::Write if are_left => reads.prefetch_to_heed(key.hash),
                    Mode::Write => {}
                }
            }
        }
    }

    /// Prefetches the lines of records that [`prefetch_batch`](Self::prefetch_batch) leaves out. Those of a whole
    /// batch at once would be more than the processor fetches at a time.
    fn prefetch_long(&self, keys: std::ops::Range<usize>) {
        let memory = self.local.store.memory();
        for key in &self.transaction.keys.declared()[keys] {
            memory.prefetch_copies(key.candidate, 1);
        }
    }

    /// Bytes of the large values of declared keys, at this moment. Call this inside a read section.
    fn large_bytes(&self, keys: std::ops::Range<usize>) -> usize {
        let Self { local, transaction: Transaction { keys: all, .. }, .. } = self;
        let large = |index| {
            let (DeclaredKey { table, hash, candidate, .. }, key) =
                (all.declared()[index], all.key(index));
            // The candidate may belong to another key, while the key's cell is in an overflow
            // bucket.
            let cell = Some(candidate)
                .filter(|&cell| cell != 0 && local.is_cell_of(cell, key))
                .or_else(|| local.find(local.tables.get(table)?, key, hash))?;
            local.store.cell(cell).record().blob().map(|blob| blob.len)
        };
        keys.filter_map(large).sum()
    }

    /// Runs a transaction of a batch that has missed a record, until it misses none. In a call of its own, so
    /// that the first run is inlined.
    #[cold]
    fn run_loaded<B: Batch + ?Sized>(
        &mut self,
        keys: std::ops::Range<usize>,
        batch: &mut B,
        index: usize,
    ) -> Result<Option<Stamp>, TxError> {
        loop {
            self.load_between_runs()?;
            let result = self.run_declared(keys.clone(), batch, index);
            if !self.local.runs_again(&result) {
                return result;
            }
        }
    }

    // Always inlined: once for the first runs, once for the others.
    #[inline(always)]
    fn run_declared<B: Batch + ?Sized>(
        &mut self,
        keys: std::ops::Range<usize>,
        batch: &mut B,
        index: usize,
    ) -> Result<Option<Stamp>, TxError> {
        let Self { local, transaction, log, .. } = self;
        let driver = local.store.driver();
        mutant!(in driver; PhaseReadBeforeLocks => driver.note_phase(local.number));
        transaction.begin_declared(keys.start);
        // Also after the load: the last run that missed a record may have been during it.
        local.missed.in_run = false;
        transaction.keys.check(keys.clone())?;
        let reads_one =
            keys.len() == 1 && transaction.keys.declared()[keys.start].mode == Mode::Read;
        if reads_one {
            for _ in 0..RUNS_WITHOUT_LOCK {
                let found = transaction.snapshot_key(local, keys.start);
                let ran = found.and_then(|()| batch.run(index, &mut Tx::new(transaction, local)));
                transaction.end_snapshot(local);
                let mut may_succeed = false;
                if transaction.snapshots.under > 0 {
                    may_succeed = transaction.end_under();
                    if local.has_missed() {
                        // Whatever the run has made of that.
                        return Err(TxError::NotLoaded);
                    }
                }
                if !matches!(ran, Err(TxError::NotLocked)) {
                    return ran.map(|()| None);
                }
                if !may_succeed {
                    break;
                }
            }
        }
        let declared = transaction.keys.declared().len();
        if let Err(error) = transaction.lock_declared(local, keys.clone()) {
            transaction.roll_back(local);
            if matches!(error, TxError::NotLoaded) {
                transaction.ask_for_declared(local, keys);
            }
            return Err(error);
        }
        let ran = batch.run(index, &mut Tx::new(transaction, local));
        if local.has_missed() {
            // Whatever the run has made of that.
            transaction.roll_back(local);
            transaction.keys.truncate(declared);
            return Err(TxError::NotLoaded);
        }
        let ended = ran.and_then(|()| transaction.commit(local, log));
        if ended.is_err() {
            transaction.roll_back(local);
        }
        transaction.keys.truncate(declared);
        ended
    }

    /// Runs a transaction that finds its keys on the way. A transaction that meets the lock of an
    /// older or a declared transaction is rolled back and tried again. So `body` may run several
    /// times, must have no other effects, and must use no other worker. After a few conflicts a run
    /// locks the keys of earlier runs first, like declared ones. The last run has the permit of the
    /// whole store. A transaction runs [`RUNS_MAX`] times at most, and again if tables are flushed
    /// meanwhile. If the body panics, the transaction is rolled back and the worker can be used
    /// again.
    ///
    /// [`RUNS_MAX`]: crate::RUNS_MAX
    ///
    /// # Errors
    /// The error of `body`, except a conflict, which is tried again. Or the reason why the commit
    /// was refused: [`TxError::Log`], [`TxError::Memory`], [`TxError::IndexFull`].
    pub fn transact<R>(
        &mut self,
        mut body: impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Result<R, TxError> {
        self.transact_stamped(&mut body).map(|(result, _)| result)
    }

    /// As [`transact`](Self::transact), but also returns the commit's stamp, `None` if nothing was
    /// written.
    ///
    /// # Errors
    /// As [`transact`](Self::transact).
    pub fn transact_stamped<R>(
        &mut self,
        mut body: impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Result<(R, Option<Stamp>), TxError> {
        self.run_until_ended(|open| {
            let result = body(&mut open.tx())?;
            Ok((result, open.commit()?))
        })
    }

    /// Reads one key without a lock: appends the newest committed value to `out`.
    ///
    /// # Errors
    /// [`TxError::NoSuchTable`].
    pub fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<FoundValue>, TxError> {
        let hash = self.local.store.hash(table, key);
        let found = self.guarded(|worker| {
            loop {
                if worker.local.loads_ahead() {
                    worker.local.load_ahead(table, key, hash)?;
                }
                worker.local.enter();
                let found = worker.local.read_optimistic(table, key, hash, 0, out);
                worker.local.exit();
                if !worker.local.runs_again(&found) {
                    return found;
                }
                worker.local.missed.forget();
            }
        });
        let (label, stamp, _) = found?;
        self.local.dependencies.add(stamp);
        Ok(label.map(|Label { tag, deadline }| FoundValue { tag, deadline, stamp }))
    }

    /// Notes that an answer depends on a commit, if the log wants to know.
    #[inline]
    pub fn depend_on(&mut self, stamp: Stamp) {
        self.local.dependencies.add(stamp);
    }

    /// From here on the worker collects the stamps that its answers depend on, whatever
    /// [the log wants](CommitLog::wants_dependencies).
    pub fn want_dependencies(&mut self) {
        self.local.dependencies.want();
    }

    /// The newest commit of every log that answers since the last call depend on, own commits
    /// included.
    pub fn take_dependencies(&mut self) -> Vec<Stamp> {
        self.local.dependencies.take()
    }

    /// Does pending upkeep: reclaims records whose deletion is durable. Call this from time to time
    /// while idle. Returns whether work is left.
    pub fn idle(&mut self) -> bool {
        self.local.reclaim.adopt(self.local.store.catalog().take_absent());
        self.guarded(|worker| {
            let Self { local, log, .. } = worker;
            local.collect_all_garbage(&|stamp| log.is_closed(stamp));
        });
        !self.local.reclaim.is_empty()
    }

    /// Moves some records closer together, if slabs are used so little that others can do with their
    /// memory. Frees what an earlier call has left. Returns whether a further call may find more to do at
    /// once. Call this while idle.
    pub fn relocate(&mut self) -> bool {
        self.idle();
        self.guarded(|worker| worker.local.relocate())
    }

    /// As [`relocate`](Self::relocate), for records and blocks of all slabs, so that tests need no large
    /// store. Moves some of them.
    #[cfg(feature = "planted-bugs")]
    pub fn relocate_all(&mut self) {
        self.idle();
        self.guarded(|worker| worker.local.relocate_all());
    }

    /// Whether the next call of [`idle`](Self::idle) reclaims cells for which a checkpoint was awaited.
    /// A caller with nothing else to do then calls it at once.
    #[inline]
    pub fn reclaims(&self) -> bool {
        self.local.reclaim.has_over()
    }
}

/// Ends the transactions of a batch from number `from` on that would wait for their own thread.
#[cold]
fn refuse_all<B: Batch + ?Sized>(batch: &mut B, from: usize, error: &TxError) {
    let is_held = matches!(error, TxError::Held);
    for index in from..batch.len() {
        let error = if is_held { TxError::Held } else { TxError::WaitsForItself };
        batch.ended(index, Err(error));
    }
}

/// Guard that is dropped only after a panic inside the worker: releases its locks and leaves its
/// read section.
struct Unwinding<'w>(&'w mut Worker);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        let Worker { local, transaction, .. } = &mut *self.0;
        transaction.roll_back(local);
        local.store.catalog().end_transaction(local.number);
        if local.in_section {
            local.exit();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Self { local, log, .. } = self;
        local.finish_reclaiming(&|stamp| log.is_closed(stamp));
    }
}
