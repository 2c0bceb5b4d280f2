//! A worker: runs transactions, one at a time, in read_sections.

use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_sync::lock_word::Priority;

use crate::catalog::Tables;
use crate::error::TxError;
use crate::memory::arena::CellCache;
use crate::memory::cell::{OptimisticRead, Record};
use crate::phase::PhaseWord;
use crate::planted::Bug;
use crate::policy::Sink;
use crate::reclaim::Reclaim;
use crate::record::Prepared;
use crate::store::Store;
use crate::table::TableId;
use crate::txn::commit_log::CommitLog;
use crate::txn::keys::{KeySet, Mode};
use crate::txn::locking::{Discipline, LockedKey};
use crate::txn::lookup::Lookup;
use crate::txn::pending::Pending;
use crate::txn::retry::Remembered;
use crate::txn::tx::Tx;

/// A transaction with declared keys.
pub trait Procedure {
    /// Names the keys it touches. Called once per execution, with an empty set.
    fn declare(&mut self, keys: &mut KeySet);
    /// Reads and writes them; an error rolls back.
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
    /// does not end, either.
    #[inline]
    fn begins(&mut self, _index: usize) -> bool {
        true
    }
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
pub struct Seen {
    /// Tag of the value.
    pub tag: u8,
    /// Who wrote it.
    pub stamp: Stamp,
}

/// Transactions of a batch whose keys are prefetched together, at most this many keys.
const BATCH_KEYS_MAX: usize = 64;

/// Runs transactions on a [`Store`]. One per thread.
pub struct Worker {
    pub(crate) store: Arc<Store>,
    /// ReadSection slot, and the number by which schemes know the worker.
    pub(crate) number: usize,
    pub(crate) in_window: bool,
    /// The sink of the checkpoint that began this epoch, once the worker has handed something out.
    pub(crate) sink: Option<(u64, Arc<dyn Sink>)>,
    /// The phase in which the transaction began, if a planted bug asks for it.
    pub(crate) begun: PhaseWord,
    pub(crate) log: Box<dyn CommitLog>,
    pub(crate) tables: Tables,
    pub(crate) cache: CellCache,
    pub(crate) keys: KeySet,
    /// Per key of the running transaction, from `first_key` on.
    pub(crate) held: Vec<LockedKey>,
    pub(crate) first_key: usize,
    /// Oldest catalog version that a locked cell is of.
    pub(crate) locked_version: u64,
    pub(crate) priority: Priority,
    pub(crate) discipline: Discipline,
    /// Slots of the running transaction by key and by cell, once there are many.
    pub(crate) slots_by_key: Lookup,
    pub(crate) slots_by_cell: Lookup,
    /// Keys that an undeclared transaction has met in runs that conflicted.
    pub(crate) remembered: Remembered,
    pub(crate) pending: Pending,
    pub(crate) written: Vec<(usize, u32)>,
    pub(crate) touched: Vec<Stamp>,
    pub(crate) prepared: Vec<(usize, Prepared)>,
    /// Where the keys of each transaction of the running batch end.
    ends: Vec<usize>,
    /// The value of a key that is read without a lock, or of a patched one.
    pub(crate) scratch: Vec<u8>,
    pub(crate) reclaim: Reclaim,
    dependencies: Vec<Stamp>,
    wants_dependencies: bool,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker that commits to `log`; `None` if the store has as many workers as it has room for.
    pub fn new(store: Arc<Store>, log: Box<dyn CommitLog>) -> Option<Self> {
        let number = store.driver().read_sections().claim()?;
        let tables = store.catalog().tables();
        let wants_dependencies = log.wants_dependencies();
        let mut reclaim = Reclaim::default();
        reclaim.adopt(store.catalog().take_absent());
        let begun = store.driver().now();
        let store_hasher = store.hasher();
        Some(Self {
            keys: KeySet::new(store.hasher()),
            store,
            number,
            in_window: false,
            sink: None,
            begun,
            log,
            tables,
            cache: CellCache::default(),
            held: Vec::new(),
            first_key: 0,
            locked_version: u64::MAX,
            priority: Priority::DECLARED,
            discipline: Discipline::Declared,
            slots_by_key: Lookup::default(),
            slots_by_cell: Lookup::default(),
            remembered: Remembered::new(store_hasher),
            pending: Pending::default(),
            written: Vec::new(),
            touched: Vec::new(),
            prepared: Vec::new(),
            ends: Vec::new(),
            scratch: Vec::new(),
            reclaim,
            dependencies: Vec::new(),
            wants_dependencies,
        })
    }

    /// The record of a locked key.
    #[inline]
    pub(crate) fn record(&self, held: &LockedKey) -> Record<'_> {
        Record::at(self.store.memory(), held.place)
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The worker's number, below the store's number of workers.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Opens the read section; the tables are those of the present catalog afterwards.
    #[inline]
    pub(crate) fn enter(&mut self) {
        self.store.driver().enter(self.number);
        self.entered();
    }

    /// As [`enter`](Self::enter), to take locks while none is held: waits for who has the permit.
    #[inline]
    pub(crate) fn enter_to_begin(&mut self) {
        self.store.driver().enter_to_begin(self.number);
        self.entered();
    }

    #[inline]
    fn entered(&mut self) {
        self.in_window = true;
        if self.tables.version != self.store.catalog().version() {
            self.refresh_tables();
        }
    }

    #[cold]
    fn refresh_tables(&mut self) {
        let tables = self.store.catalog().tables();
        for owner in self.tables.owners_gone(&tables) {
            self.cache.forget_owner(owner);
            self.reclaim.forget_owner(owner);
        }
        self.tables = tables;
    }

    #[inline]
    pub(crate) fn exit(&mut self) {
        self.in_window = false;
        self.store.driver().exit(self.number);
    }

    /// Runs a batch of procedures, each as a transaction of its own, one after the other. Index
    /// lines and records of several are fetched together before the first of them runs.
    /// A procedure with a single key that it only reads takes no lock.
    ///
    /// If a procedure panics, its transaction is rolled back, those before it stay committed, those
    /// after it do not run, and the worker can be used again.
    pub fn execute<B: Batch + ?Sized>(&mut self, batch: &mut B) {
        self.guarded(|worker| worker.execute_all(batch));
    }

    /// Runs something that opens the read section. If it panics, the read section is closed and locks are given
    /// back.
    #[inline]
    pub(crate) fn guarded<R>(&mut self, run: impl FnOnce(&mut Self) -> R) -> R {
        let unwinding = Unwinding(self);
        let result = run(unwinding.0);
        std::mem::forget(unwinding);
        result
    }

    fn execute_all<B: Batch + ?Sized>(&mut self, batch: &mut B) {
        let mut next = 0;
        self.discipline = Discipline::Declared;
        while next < batch.len() {
            self.enter_to_begin();
            self.declare_batch(batch, next);
            self.prefetch_batch();
            let mut first = 0;
            for at in 0..self.ends.len() {
                let end = self.ends[at];
                if batch.begins(next + at) {
                    let result = self.run_declared(first..end, batch, next + at);
                    batch.ended(next + at, result);
                }
                first = end;
            }
            next += self.ends.len();
            self.collect_garbage();
            self.exit();
        }
    }

    /// Declares transactions from number `first` on until the batch has keys enough; `ends` holds
    /// where the keys of each end.
    fn declare_batch<B: Batch + ?Sized>(&mut self, batch: &mut B, first: usize) {
        self.keys.clear();
        self.ends.clear();
        for index in first..batch.len() {
            self.keys.next_transaction();
            batch.declare(index, &mut self.keys);
            self.ends.push(self.keys.keys.len());
            if self.keys.keys.len() >= BATCH_KEYS_MAX {
                break;
            }
        }
    }

    fn prefetch_batch(&mut self) {
        let Self { keys, tables, store, .. } = self;
        let table_of = |id| tables.get(id);
        for key in &keys.keys {
            if let Some(table) = table_of(key.table) {
                table.index.prefetch(key.hash);
            }
        }
        for key in &mut keys.keys {
            if let Some(table) = table_of(key.table) {
                key.candidate = table.index.candidate(key.hash);
                store.memory().arena.prefetch(key.candidate);
            }
        }
    }

    /// Remembers the phase in which a transaction begins, for a planted bug that commits in it.
    #[inline]
    pub(crate) fn note_phase(&mut self) {
        let driver = self.store.driver();
        if driver.has_planted(Bug::PhaseReadBeforeLocks) {
            self.begun = driver.now();
        }
    }

    fn run_declared<B: Batch + ?Sized>(
        &mut self,
        keys: std::ops::Range<usize>,
        batch: &mut B,
        index: usize,
    ) -> Result<Option<Stamp>, TxError> {
        self.note_phase();
        self.first_key = keys.start;
        self.priority = Priority::DECLARED;
        self.keys.check(keys.clone())?;
        if keys.len() == 1 && self.keys.keys[keys.start].mode == Mode::Read {
            self.snapshot_key(keys.start)?;
        } else {
            let locked = self.lock_declared(keys);
            if let Err(error) = locked {
                self.roll_back();
                return Err(error);
            }
        }
        let ran = batch.run(index, &mut Tx::new(self));
        match ran.and_then(|()| self.commit()) {
            Ok(stamp) => Ok(stamp),
            Err(error) => {
                self.roll_back();
                Err(error)
            }
        }
    }

    /// Runs a transaction that finds its keys on the way. Meeting the lock of an older or a declared
    /// transaction it is rolled back and tried again; `body` may therefore run several times and
    /// must have no other effects, and use no other worker. After a few conflicts the keys of the
    /// earlier runs are locked like declared ones before it runs. If its keys differ from run to
    /// run, it gets the permit of the whole store at last, and runs once more: [`RUNS_MAX`] times
    /// in all, and again if tables are flushed meanwhile. If it panics, the transaction is rolled
    /// back and the worker can be used again.
    ///
    /// [`RUNS_MAX`]: crate::RUNS_MAX
    pub fn transact<R>(
        &mut self,
        mut body: impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Result<R, TxError> {
        self.transact_stamped(&mut body).map(|(result, _)| result)
    }

    /// As [`transact`](Self::transact); gives the commit's stamp too, `None` if nothing was
    /// written.
    pub fn transact_stamped<R>(
        &mut self,
        body: impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Result<(R, Option<Stamp>), TxError> {
        self.guarded(|worker| worker.transact_until_ended(body))
    }

    /// Reads one key without a lock: appends the newest committed value to `out`.
    pub fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Seen>, TxError> {
        let hash = self.store.hash(table, key);
        let found = self.guarded(|worker| {
            worker.enter();
            let found = worker.read_optimistic(table, key, hash, 0, out);
            worker.exit();
            found
        });
        let (tag, stamp) = found?;
        self.depend_on(stamp);
        Ok(tag.map(|tag| Seen { tag, stamp }))
    }

    /// Appends a key's value and gives its tag, if it has one, and the stamp.
    pub(crate) fn read_optimistic(
        &self,
        table: TableId,
        key: &[u8],
        hash: u64,
        candidate: u64,
        out: &mut Vec<u8>,
    ) -> Result<(Option<u8>, Stamp), TxError> {
        let table = self.tables.get(table).ok_or(TxError::NoSuchTable(table))?;
        let mut number = Some(candidate).filter(|&candidate| candidate != 0);
        loop {
            if let Some(number) = number {
                match self.store.cell(number).read_optimistic(key, out) {
                    OptimisticRead::Value(tag, stamp) => return Ok((Some(tag), stamp)),
                    OptimisticRead::Absent(stamp) => return Ok((None, stamp)),
                    OptimisticRead::Other => {}
                }
            }
            number = table.index.find(hash, |cell| {
                let cell = self.store.cell(cell);
                cell.has_key(key) && !cell.is_dead()
            });
            if number.is_none() {
                return Ok((None, table.floor_stamp(hash)));
            }
        }
    }

    /// Remembers that an answer depends on a commit, if the log wants to know.
    #[inline]
    pub fn depend_on(&mut self, stamp: Stamp) {
        if self.wants_dependencies && !stamp.is_none() {
            match self.dependencies.iter_mut().find(|known| known.log() == stamp.log()) {
                Some(known) => *known = (*known).max(stamp),
                None => self.dependencies.push(stamp),
            }
        }
    }

    /// The newest commit of every log that answers since the last call depend on, own commits
    /// included.
    pub fn take_dependencies(&mut self) -> Vec<Stamp> {
        std::mem::take(&mut self.dependencies)
    }

    /// Does what waits to be done: reclaims deleted records that are durably gone. Call it now and
    /// then while idle.
    pub fn idle(&mut self) {
        self.reclaim.adopt(self.store.catalog().take_absent());
        self.guarded(|worker| {
            worker.enter();
            worker.collect_all_garbage();
            worker.exit();
        });
    }
}

/// Dropped only when something panics inside the worker: gives its locks and its read section back.
struct Unwinding<'w>(&'w mut Worker);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        self.0.roll_back();
        self.0.store.catalog().end_transaction(self.0.number);
        if self.0.in_window {
            self.0.exit();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.finish_reclaiming();
        self.cache.drain(&self.store.memory().arena);
        self.store.driver().read_sections().unclaim(self.number);
    }
}
