//! The interface of a kind of table to transactions: a kind locks, reads and changes keys. A kind
//! logs operations, and takes part in the one commit of all kinds.
//!
//! ```text
//! ask ──▶ lock ──▶ value, put, delete ──▶ prepare ─▶ [one record] ─▶ install ─▶ release
//!  │       │                │ each logs an operation        ▲
//!  └ not here: wait, outside│ of any read section           │ or: undo, newest first ─▶ release
//!                           └───────────────────────────────┘
//! ```
//! 1. **One clock.** The stamps that a part has met ([`KindPart::touched`]) bound the gsn of the
//!    commit from below, like those of records in memory. An operation has a gsn of its own, below
//!    that of the commit.
//! 2. **One commit.** All kinds that a transaction has changed commit with one record, whose stamp
//!    [`KindPart::install`] gets. An abort is a record, too, and gives its stamp to
//!    [`KindPart::release`]. So a transaction that locks a key later depends on the end of the one
//!    before.
//!    A part may leave the operations of a declared transaction to the commit
//!    ([`KindPart::commit_deferred`]). Then their records and that of the commit are appended in one step.
//! 3. **Waiting.** Only `commit_deferred`, `install` and `release`, which never wait, are called
//!    inside of a read section. A key that is not in memory is [`Presence::NotHere`], and the caller waits.
//! 4. **Checkpoints.** A kind may keep its records in files of its own. The kind writes these files
//!    at a checkpoint ([`TableKind::checkpoint`]), while transactions go on. The MANIFEST that
//!    names the checkpoint names these files, too. A start replays for the kind from there on.
//! 5. **Locks.** A part has locks of its own. The part follows the priorities and disciplines of
//!    this crate, so that no cycle of waits closes across kinds. A declared transaction locks its
//!    keys of the memory store first, then those of each kind in the order of the kinds.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_io::Disk;
use stillpoint_sync::lock_word::Priority;

use crate::discipline::Discipline;
use crate::error::{LogRefused, TxError};
use crate::key_list::KeyList;
use crate::keys::Mode;
use crate::lane::Lane;
use crate::range_batch::RangeBatch;
use crate::table::TableId;

/// The requested value, or an arrival to wait for.
#[derive(Clone, Debug)]
pub enum Presence<T> {
    /// The key is in memory.
    Here(T),
    /// The key is not in memory, and nothing has changed. The caller waits for the arrival and asks
    /// again.
    NotHere(Arc<dyn Arrival>),
}

impl<T> Presence<T> {
    /// What `f` makes of the requested value, if it is here.
    #[inline]
    pub fn map<R>(self, f: impl FnOnce(T) -> R) -> Presence<R> {
        match self {
            Self::Here(found) => Presence::Here(f(found)),
            Self::NotHere(arrival) => Presence::NotHere(arrival),
        }
    }
}

/// Something on its way into memory.
pub trait Arrival: Send + Sync + fmt::Debug {
    /// Whether it is time to lock the key again.
    fn has_arrived(&self) -> bool;

    /// Waits until it is time to lock the key again. Call this outside of any read section.
    ///
    /// # Errors
    /// The key cannot be brought into memory, and the transaction is rolled back.
    fn wait(&self) -> Result<(), TxError>;
}

/// An operation on a key of a table, as its record holds it.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// Table.
    pub table: TableId,
    /// Generation of the table.
    pub generation: u32,
    /// The stamps that the operation depends on.
    pub touched: &'a [Stamp],
    /// Bytes with which the kind repeats the operation.
    pub body: &'a [u8],
    /// Bytes with which the kind undoes the operation: the body, or a begin of it. A start that undoes has
    /// the whole body.
    pub undo: &'a [u8],
    /// Bytes of the body of the undo's record, at most.
    pub undo_bytes: usize,
}

/// The log of one transaction's operations.
pub trait OperationLog {
    /// Appends an operation and returns the stamp of its record. Never waits, so the caller may
    /// hold a latch: append, change, stamp, unlatch.
    ///
    /// # Errors
    /// [`LogRefused::NoRoom`]: nothing was appended; unlatch, [wait](Self::wait_for_room), begin
    /// again. Otherwise the transaction is rolled back. An undo is never refused for good.
    fn append(&mut self, operation: &Operation<'_>) -> Result<Stamp, LogRefused>;

    /// Waits for room, with no latch held.
    ///
    /// # Errors
    /// There will be no room, and the transaction is rolled back.
    fn wait_for_room(&mut self) -> Result<(), LogRefused>;
}

/// Takes the operations of a transaction that has logged none before, and the end of the transaction, in one
/// step.
pub trait DeferredLog {
    /// Adds an operation on a table of this generation. `encode` appends its bytes.
    fn add(&mut self, table: TableId, generation: u32, encode: &mut dyn FnMut(&mut Vec<u8>));

    /// Appends all added operations and the record of the commit. Returns the stamp of the commit. Never
    /// waits.
    ///
    /// # Errors
    /// [`LogRefused::NoRoom`]: nothing was appended, and the caller begins again after a wait. Otherwise the
    /// transaction is rolled back; nothing was appended either.
    fn commit(&mut self) -> Result<Stamp, LogRefused>;
}

/// A table of a kind, as the MANIFEST has it.
#[derive(Clone, Copy, Debug)]
pub struct KindTable<'a> {
    /// Number of the table.
    pub id: TableId,
    /// Generation of the table.
    pub generation: u32,
    /// What the kind gave the MANIFEST for this table at the last checkpoint that it took part in. Before
    /// that, what it gave when the table was made or emptied.
    pub section: Option<&'a str>,
}

/// What a kind gives a checkpoint: the new section of each of its tables.
pub type Sections = Vec<(TableId, String)>;

/// A kind of table. The memory store is the first kind and has its own path through the engine.
/// Every other kind implements this trait.
pub trait TableKind: Send + Sync + fmt::Debug {
    /// The kind's name in the MANIFEST, other than `memory`.
    fn name(&self) -> &'static str;

    /// Whether the kind takes a further table. Called before the MANIFEST names it.
    ///
    /// # Errors
    /// There is no room for it.
    fn admit_table(&self) -> Result<(), TxError> {
        Ok(())
    }

    /// The section of a table that is made, or emptied. `None` if such a table needs none.
    fn new_section(&self) -> Option<String> {
        None
    }

    /// Adds a table: with the records that its section names, or empty without a section. Called
    /// once for each table, before anything else names the table. The kind's files are on `disk`.
    /// Files that no section names are left from before a crash.
    ///
    /// # Errors
    /// There is no room for the table, or what its section names cannot be read.
    fn add_table(&self, table: &KindTable<'_>, disk: &dyn Disk) -> Result<(), TxError>;

    /// Makes the kind's part in the transactions of one session.
    fn new_part(self: Arc<Self>) -> Box<dyn KindPart>;

    /// Whether [`append_sorted`](Self::append_sorted) appends anything.
    fn takes_sorted(&self) -> bool {
        false
    }

    /// Appends records to a table, from number `from` of these on, as long as their keys ascend and are above
    /// all keys of the table. Returns how many were appended; the kind may leave any to ordinary puts. The
    /// caller has [locked](Self::lock_tables) the table as a whole, and gives it back once the logs hold all
    /// records for good. What was appended stays, also if the transaction of the log is rolled back.
    ///
    /// # Errors
    /// [`TxError::NoSuchTable`]; the kind's own.
    fn append_sorted(
        &self,
        table: TableId,
        (records, from): (&RangeBatch, usize),
        log: &mut dyn OperationLog,
    ) -> Result<usize, TxError> {
        let _ = (table, records, from, log);
        Ok(0)
    }

    /// Locks whole tables, in order to empty them. Waits for all holders of locks in the tables, as
    /// a declared transaction does, as long as `may_wait` allows. Keeps others out until the returned
    /// guard is dropped. Once the tables are emptied, each of their keys counts as one that never had a
    /// value.
    ///
    /// # Errors
    /// [`TxError::Conflict`] if it may not wait: nothing is locked. [`TxError::NoSuchTable`]; the kind's
    /// own.
    fn lock_tables(
        &self,
        tables: &[TableId],
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Box<dyn LockedTables + '_>, TxError>;

    /// Appends to `out` about `count` keys of a table, from a cursor on (0 at first). Returns the
    /// next cursor, 0 at the end. A key that has a value during the whole scan is found exactly
    /// once. A key without a committed value may be among the found keys, so the caller locks and
    /// checks.
    ///
    /// # Errors
    /// [`TxError::NoSuchTable`]; the kind's own.
    fn keys(
        &self,
        table: TableId,
        cursor: u64,
        count: usize,
        out: &mut Vec<Vec<u8>>,
    ) -> Result<Presence<u64>, TxError>;

    /// Reads a committed value without a lock, and appends it to `out`. `Here(None)` if the kind has no
    /// such reads, or if a transaction may be changing the key: then a transaction has to read it.
    ///
    /// # Errors
    /// [`TxError::NoSuchTable`]; the kind's own.
    fn read(
        &self,
        table: TableId,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Presence<Option<UnlockedRead>>, TxError> {
        let _ = (table, key, out);
        Ok(Presence::Here(None))
    }

    /// Number of keys of a table with a committed value. 0 without the table.
    fn record_count(&self, table: TableId) -> u64;

    /// Repeats an operation, or an undo, of a log. Called in the order of gsns before anything is
    /// served, also for operations that are undone later. The kind leaves out an operation that its
    /// own files hold already: the gsn is not above that of the key's last change.
    ///
    /// # Errors
    /// The body does not belong to this kind, or does not fit the table's state.
    fn redo(&self, table: TableId, stamp: Stamp, body: &[u8]) -> Result<(), TxError>;

    /// As [`redo`](Self::redo), but repeats only what is of a lane. Each lane gets every operation, in the order
    /// of gsns, from a thread of its own. A kind that does not divide itself repeats all in the first lane.
    ///
    /// # Errors
    /// As [`redo`](Self::redo).
    fn redo_in(
        &self,
        (table, stamp): (TableId, Stamp),
        body: &[u8],
        lane: Lane,
    ) -> Result<(), TxError> {
        if lane.is_first() { self.redo(table, stamp, body) } else { Ok(()) }
    }

    /// Says that a lane of a replay will soon repeat an operation or an undo. So the kind can ask for what it has on the
    /// disk, and need not wait for one read after the other. Only a hint.
    fn ask_for_redo(&self, table: TableId, body: &[u8], lane: Lane) {
        let _ = (table, body, lane);
    }

    /// Undoes an operation of a transaction that aborts, or that a crash has cut off. Logs the undo
    /// and changes the key. The key is locked, or nothing is served yet.
    ///
    /// The kind logs one record, whose body has at most [`Operation::undo_bytes`] bytes: so much room was set
    /// aside.
    ///
    /// # Errors
    /// The body does not belong to this kind. No other error is possible, since an operation
    /// reserves what its undo needs.
    fn undo(&self, table: TableId, body: &[u8], log: &mut dyn OperationLog) -> Result<(), TxError>;

    /// Called once a start has repeated and undone all operations, and before anything is served.
    ///
    /// # Errors
    /// What the replay has left cannot be read.
    fn replay_ended(&self) -> Result<(), TxError> {
        Ok(())
    }

    /// Called before a checkpoint is published. A kind that takes part makes its records durable,
    /// in files that no section names yet, and returns its tables' sections. These files hold the
    /// effect of each operation whose record was in a log before the call. The files may also hold
    /// effects of later operations and of open transactions, since all logs are flushed before the
    /// sections count. From the publication on, older records are replayed only if open
    /// transactions need them. `None`: the kind still needs the logs from its earlier position, and
    /// its sections stay.
    ///
    /// # Errors
    /// The checkpoint is given up, and the earlier sections stay in force.
    fn checkpoint(&self, disk: &dyn Disk) -> Result<Option<Sections>, TxError>;

    /// Bytes that the kind's part in the next checkpoint may add to the disk, about. The log leaves so much
    /// free, since only a checkpoint frees the log.
    fn checkpoint_bytes(&self) -> u64 {
        0
    }

    /// Called when the store is being closed. A checkpoint under way, or a last one, goes on without a pace.
    fn hurry(&self) {}

    /// Called when the checkpoint with the kind's last sections was published or given up. Then the
    /// files of the older or of the newer sections are no longer needed.
    fn checkpoint_ended(&self, disk: &dyn Disk, is_published: bool);
}

/// Tables that are locked as wholes.
pub trait LockedTables {
    /// Empties the tables. `generations` are the tables' new generations, in order. The MANIFEST
    /// holds these generations already, so this cannot fail.
    fn empty(&mut self, generations: &[u32]);
}

/// A key to be locked.
#[derive(Clone, Copy, Debug)]
pub struct KindKey<'a> {
    /// Table.
    pub table: TableId,
    /// Key.
    pub key: &'a [u8],
    /// The transaction's access to the key.
    pub mode: Mode,
}

/// A range of keys of an ordered kind of table.
#[derive(Clone, Copy, Debug)]
pub struct KindRange<'a> {
    /// Table.
    pub table: TableId,
    /// Lower end.
    pub lower: Bound<&'a [u8]>,
    /// Upper end.
    pub upper: Bound<&'a [u8]>,
    /// Whether the range is read from its upper end down.
    pub is_descending: bool,
}

/// A committed value that was read without a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnlockedRead {
    /// The value's tag. `None` if the key has no value.
    pub tag: Option<u8>,
    /// Stamp of the end of the last transaction that changed the key.
    pub stamp: Stamp,
}

/// The part of one kind in one session's transactions. One transaction runs at a time.
///
/// A slot is the number of a key of the transaction in this part, in the order of the first locks,
/// from 0 on. The value of a slot stays in memory until the transaction ends, or until the slot is
/// [forgotten](Self::forget).
pub trait KindPart: Send {
    /// Begins a run of a transaction.
    fn begin(&mut self, priority: Priority, discipline: Discipline);

    /// Asks for keys ahead of their use, before the caller waits for one of them. Calls `missing` with
    /// the number of each key that is not in memory, and its arrival.
    fn ask(&mut self, keys: &KeyList, missing: &mut dyn FnMut(usize, Arc<dyn Arrival>));

    /// Locks a key and returns its slot. Waits for the lock as long as the discipline and
    /// `may_wait` allow. A locked key keeps its slot, and its lock becomes exclusive for
    /// [`Mode::Write`].
    ///
    /// # Errors
    /// [`TxError::Conflict`]: the run ends. [`TxError::NoSuchTable`]. Errors of the kind.
    fn lock(
        &mut self,
        key: KindKey<'_>,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Presence<u32>, TxError>;

    /// Locks several keys in the global order of this kind, and puts their slots into `slots`, in the
    /// order of `keys`. Waits for any holder as long as `may_wait` allows, since all waits follow one
    /// order. Called before any [`lock`](Self::lock) of the run. After [`Presence::NotHere`] this is
    /// called again with the same keys.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    fn lock_all(
        &mut self,
        keys: &KeyList,
        may_wait: &dyn Fn() -> bool,
        slots: &mut Vec<u32>,
    ) -> Result<Presence<()>, TxError>;

    /// Reads the committed value of a key without a lock, for a transaction that has no other key and
    /// writes nothing. Returns the slot. Several such transactions may follow each other in one run of the
    /// part. `Here(None)` if the kind has no such reads, or if another transaction may be changing the key:
    /// then the key has to be [locked](Self::lock_all).
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    fn read_alone(&mut self, key: KindKey<'_>) -> Result<Presence<Option<u32>>, TxError> {
        let _ = key;
        Ok(Presence::Here(None))
    }

    /// Forgets the slot that was made last, since nobody will use it. The key stays locked, and gets another
    /// slot if the transaction locks it again. `false`: the part keeps the slot.
    fn forget(&mut self, slot: u32) -> bool {
        let _ = slot;
        false
    }

    /// Appends the value of a slot to `out` and returns its tag. `None` if the key has no value.
    fn value(&mut self, slot: u32, out: &mut Vec<u8>) -> Option<u8>;

    /// Stamp of the end of the last transaction that changed the key before this one.
    fn stamp(&self, slot: u32) -> Stamp;

    /// Whether the key had a value before this transaction.
    fn existed(&self, slot: u32) -> bool;

    /// Gives the key a value, or removes its value, and logs the operation. A new key of an ordered
    /// kind may have to wait for the gap that the key falls into, as [`lock`](Self::lock) waits.
    ///
    /// # Errors
    /// [`TxError::DeclaredForReading`] if the slot is not locked for writing. [`TxError::Conflict`].
    /// [`TxError::Log`]. Errors of the kind.
    fn put(
        &mut self,
        slot: u32,
        value: Option<(u8, &[u8])>,
        log: &mut dyn OperationLog,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Presence<()>, TxError>;

    /// Reads the next records of a range, in the order of their keys or against it. Locks the records and
    /// the gaps between them. Records of the transaction itself are among them. The batch has no
    /// record if all keys of a stretch have no value, and the range may go on behind them.
    /// For transactions without declared keys.
    ///
    /// # Errors
    /// [`TxError::NotOrdered`] if the kind has no order. Else as [`lock`](Self::lock).
    fn range(
        &mut self,
        range: &KindRange<'_>,
        may_wait: &dyn Fn() -> bool,
        out: &mut RangeBatch,
    ) -> Result<Presence<()>, TxError> {
        let (_, _) = (may_wait, out);
        Err(TxError::NotOrdered(range.table))
    }

    /// Begins a statement. Later, the engine may undo all operations from here on, and the transaction goes
    /// on with what was before. `false`: the kind cannot do that.
    fn begin_statement(&mut self) -> bool {
        false
    }

    /// Bytes of the keys and values of operations that this part has not logged yet. A part may leave the
    /// operations of a declared transaction until the commit, since nobody else sees them before.
    fn deferred_bytes(&self) -> usize {
        0
    }

    /// Logs what was deferred, each operation by itself, and changes the keys. Called before
    /// [`prepare`](Self::prepare), where something else in the transaction was logged already.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    fn log_deferred(&mut self, log: &mut dyn OperationLog) -> Result<(), TxError> {
        let _ = log;
        Ok(())
    }

    /// Commits what was deferred: adds the operations to `log`, commits it, and changes the keys. Later,
    /// [`install`](Self::install) has nothing left to do. Never waits.
    ///
    /// # Errors
    /// Those of [`DeferredLog::commit`]. Nothing has changed, and the caller may call this again.
    fn commit_deferred(&mut self, log: &mut dyn DeferredLog) -> Result<Stamp, LogRefused> {
        log.commit()
    }

    /// Appends the stamps of all locked keys.
    fn touched(&self, out: &mut Vec<Stamp>);

    /// Prepares a commit: makes every step that can fail. May wait. Nothing is final yet.
    ///
    /// # Errors
    /// The transaction is rolled back.
    fn prepare(&mut self) -> Result<(), TxError>;

    /// Installs a commit that the log has taken with this stamp. Cannot fail, and never waits.
    fn install(&mut self, stamp: Stamp);

    /// Releases all locks. `end` is the stamp of the record that ended the transaction, by a commit
    /// or after the undo of an abort. `None` if the part has changed nothing.
    fn release(&mut self, end: Option<Stamp>);
}
