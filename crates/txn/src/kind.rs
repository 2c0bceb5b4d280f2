//! What a kind of table is to a transaction: where its keys are, how they are locked, read and
//! changed, what it logs, and how it takes part in the one commit of all kinds.
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
//!    [`KindPart::release`]: whoever locks a key later rests on the end of the transaction before.
//! 3. **Waiting.** Nothing of a part is called inside of a read section but `install` and `release`,
//!    which do not wait. What is not in memory is [`Presence::NotHere`], and the caller waits.
//! 4. **Locks.** A part has locks of its own. It follows the priorities and disciplines of this crate,
//!    so that no cycle of waits closes across kinds: a declared transaction locks its keys of the
//!    memory store first, then those of each kind in the order of the kinds.

use std::fmt;
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_sync::lock_word::Priority;

use crate::discipline::Discipline;
use crate::error::{LogRefused, TxError};
use crate::keys::Mode;
use crate::table::TableId;

/// What was asked for, or what it waits for.
#[derive(Clone, Debug)]
pub enum Presence<T> {
    /// It is in memory.
    Here(T),
    /// It is not. Nothing has changed; who asked waits for the arrival and asks again.
    NotHere(Arc<dyn Arrival>),
}

/// Something on its way into memory.
pub trait Arrival: Send + Sync + fmt::Debug {
    /// True once it is worth to ask again.
    fn has_arrived(&self) -> bool;

    /// Waits until it is worth to ask again. Outside of any read section.
    ///
    /// # Errors
    /// It will not come: the transaction is rolled back.
    fn wait(&self) -> Result<(), TxError>;
}

/// An operation on a key of a table, as its record holds it.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// Table.
    pub table: TableId,
    /// Generation of the table.
    pub generation: u32,
    /// The stamps that the operation rests on.
    pub touched: &'a [Stamp],
    /// What the kind needs to repeat and to undo the operation.
    pub body: &'a [u8],
}

/// Takes the operations of one transaction.
pub trait OperationLog {
    /// Appends an operation and gives the stamp of its record. Waits for nothing, so that the caller
    /// may hold a latch: append, change, stamp, unlatch.
    ///
    /// # Errors
    /// [`LogRefused::NoRoom`]: nothing was appended; unlatch, [wait](Self::wait_for_room), begin
    /// again. Otherwise the transaction is rolled back. An undo is never refused for good.
    fn append(&mut self, operation: &Operation<'_>) -> Result<Stamp, LogRefused>;

    /// Waits for room, with no latch held.
    ///
    /// # Errors
    /// There will be no room: the transaction is rolled back.
    fn wait_for_room(&mut self) -> Result<(), LogRefused>;
}

/// A kind of table. The memory store is the first kind, and has a way of its own through the engine;
/// each other kind implements this.
pub trait TableKind: Send + Sync + fmt::Debug {
    /// The name by which the MANIFEST knows it; not `memory`.
    fn name(&self) -> &'static str;

    /// Adds an empty table. Called once for each table, before anything else names it.
    ///
    /// # Errors
    /// There is no room for it.
    fn add_table(&self, table: TableId, generation: u32) -> Result<(), TxError>;

    /// The part that this kind has in the transactions of one session.
    fn new_part(self: Arc<Self>) -> Box<dyn KindPart>;

    /// Repeats an operation, or an undo, that a log holds. Called in the order of gsns, before
    /// anything is served; also for operations that are undone later.
    ///
    /// # Errors
    /// The body is none of this kind's, or does not fit what is there.
    fn redo(&self, table: TableId, stamp: Stamp, body: &[u8]) -> Result<(), TxError>;

    /// Undoes an operation of a transaction that aborts, or that a crash has cut off. Logs what
    /// repeats the undo, and changes the key. The key is locked, or nothing is served yet.
    ///
    /// # Errors
    /// The body is none of this kind's. There is no other: what an operation needs to be undone it
    /// has reserved.
    fn undo(&self, table: TableId, body: &[u8], log: &mut dyn OperationLog) -> Result<(), TxError>;
}

/// A key that is to be locked.
#[derive(Clone, Copy, Debug)]
pub struct KindKey<'a> {
    /// Table.
    pub table: TableId,
    /// Key.
    pub key: &'a [u8],
    /// What the transaction does to the key.
    pub mode: Mode,
}

/// What one session's transactions do on the tables of one kind. One transaction at a time.
///
/// A slot is the number of a key of the transaction in this part, from 0 on, in the order in which
/// the keys were locked first. What a slot has is in memory until the transaction ends.
pub trait KindPart: Send {
    /// Begins a run of a transaction.
    fn begin(&mut self, priority: Priority, discipline: Discipline);

    /// Asks for a key ahead of its use: a batch asks for all keys before it waits for one.
    fn ask(&mut self, table: TableId, key: &[u8]) -> Presence<()>;

    /// Locks a key and gives its slot. Waits for the lock as long as the discipline allows and
    /// `may_wait` says so. A key that is locked already keeps its slot; its lock becomes exclusive
    /// for [`Mode::Write`].
    ///
    /// # Errors
    /// [`TxError::Conflict`]: the run ends. [`TxError::NoSuchTable`]; the kind's own.
    fn lock(
        &mut self,
        key: KindKey<'_>,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Presence<u32>, TxError>;

    /// Locks several keys in the order of this kind, whatever their order here. Waits for any holder as
    /// long as `may_wait` says so: all waits go up in one order. Called before any
    /// [`lock`](Self::lock) of the run, which then gives the slots. After [`Presence::NotHere`] it is
    /// called again with the same keys.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    fn lock_all(
        &mut self,
        keys: &[KindKey<'_>],
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Presence<()>, TxError>;

    /// Appends the value of a slot to `out` and gives its tag; `None` if the key has no value.
    fn value(&mut self, slot: u32, out: &mut Vec<u8>) -> Option<u8>;

    /// The end of the transaction that changed the key last, before this one.
    fn stamp(&self, slot: u32) -> Stamp;

    /// True if the key had a value before this transaction.
    fn existed(&self, slot: u32) -> bool;

    /// Gives the key a value, or takes the value away, and logs the operation.
    ///
    /// # Errors
    /// [`TxError::DeclaredForReading`] if the slot is not locked for writing. [`TxError::Log`]. The
    /// kind's own.
    fn put(
        &mut self,
        slot: u32,
        value: Option<(u8, &[u8])>,
        log: &mut dyn OperationLog,
    ) -> Result<Presence<()>, TxError>;

    /// Appends the stamps of everything that was locked.
    fn touched(&self, out: &mut Vec<Stamp>);

    /// Does whatever can fail of a commit. May wait; nothing is final yet.
    ///
    /// # Errors
    /// The transaction is rolled back.
    fn prepare(&mut self) -> Result<(), TxError>;

    /// The log has taken the commit with this stamp. Cannot fail, and waits for nothing.
    fn install(&mut self, stamp: Stamp);

    /// Gives all locks back. `end` is the stamp of the record that ended the transaction, by a commit
    /// or after the undo of an abort; `None` if the part has changed nothing.
    fn release(&mut self, end: Option<Stamp>);
}
