//! Transactions on the memory store: locks, deferred writes and the steps of a commit.

mod asking;
pub(crate) mod commit;
pub(crate) mod commit_log;
mod installs;
pub(crate) mod locking;
pub(crate) mod names;
pub(crate) mod pending;
pub(crate) mod range;
pub(crate) mod tx;
mod versions;

use stillpoint_format::Stamp;
use stillpoint_format::hash::KeyHasher;
use stillpoint_sync::lock_word::Priority;
use stillpoint_txn::{Discipline, KeySet, Lookup, Remembered};

use crate::memory::cell::CellAddress;
use crate::record::Prepared;
use names::HeldNames;
use pending::Pending;

/// The content of a transaction's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockState {
    None,
    Shared,
    Exclusive,
    /// The same record as an earlier slot of the transaction.
    Alias(u32),
    /// Read without a lock into the transaction's scratch buffer, with this tag if it had a value.
    Snapshot(Option<u8>),
}

/// A transaction's entry of one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockedKey {
    pub(crate) cell: u64,
    /// Position of the record, once it is locked.
    pub(crate) place: CellAddress,
    pub(crate) state: LockState,
    /// The stamp word when the lock was taken.
    pub(crate) stamp_word: u64,
    /// First pending operation.
    pub(crate) pending: u32,
}

impl LockedKey {
    /// Whether the slot holds the lock of its record.
    #[inline]
    pub(crate) fn is_locked(&self) -> bool {
        matches!(self.state, LockState::Shared | LockState::Exclusive)
    }

    pub(crate) fn unlocked(cell: u64) -> Self {
        Self {
            cell,
            place: CellAddress::default(),
            state: LockState::None,
            stamp_word: 0,
            pending: pending::NONE,
        }
    }
}

/// One transaction: its keys, its locks, and its writes until it commits. A worker runs one
/// transaction after the other in the same object. The keys of a batch are declared together, and
/// each transaction of the batch has a range of them.
#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) keys: KeySet,
    /// The number of the transaction's first key in `keys`. Slots count from there.
    pub(crate) first_key: usize,
    /// The entries of the slots.
    pub(crate) held: Vec<LockedKey>,
    /// Locks of gaps and numbers in ordered tables.
    pub(crate) names: HeldNames,
    /// Oldest catalog version of a locked cell.
    pub(crate) locked_version: u64,
    pub(crate) priority: Priority,
    pub(crate) discipline: Discipline,
    /// Whether the run has met a lock that it may not wait for. Such a run must not commit.
    pub(crate) has_conflicted: bool,
    /// Whether a key or a range was refused. Such a run must not commit either, and
    /// another run would not help.
    pub(crate) is_unfit: bool,
    /// Whether the transaction holds locks outside of the store.
    pub(crate) holds_elsewhere: bool,
    /// Slots by key and by cell, once there are many.
    pub(crate) slots_by_key: Lookup,
    pub(crate) slots_by_cell: Lookup,
    /// Keys of earlier runs of the transaction that conflicted.
    pub(crate) remembered: Remembered,
    pub(crate) pending: Pending,
    /// The call that the transaction is, encoded by its caller. Empty for a transaction without a
    /// call.
    pub(crate) call: Vec<u8>,
    /// For the commit: key number and first pending operation of every written key.
    written: Vec<(usize, u32)>,
    /// For the commit: the stamps of every record read or overwritten.
    touched: Vec<Stamp>,
    /// For the commit: the memory found for written keys, by key number.
    prepared: Vec<(usize, Prepared)>,
    /// The value of a key that was read without a lock, or of a patched key.
    pub(crate) scratch: Vec<u8>,
    /// The deadline of the key that was read without a lock, 0 for none.
    pub(crate) snapshot_deadline: u64,
    /// The keys under it that were read without locks.
    pub(crate) snapshots: Snapshots,
}

/// What a run without locks has read under its key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Snapshots {
    /// Number of keys under it that were read.
    pub(crate) under: u32,
    /// Whether the key has changed meanwhile, so that the run must end.
    pub(crate) has_changed: bool,
}

impl Transaction {
    pub(crate) fn new(hasher: KeyHasher) -> Self {
        Self {
            keys: KeySet::new(hasher),
            first_key: 0,
            held: Vec::new(),
            names: HeldNames::default(),
            locked_version: u64::MAX,
            priority: Priority::DECLARED,
            discipline: Discipline::Declared,
            has_conflicted: false,
            is_unfit: false,
            holds_elsewhere: false,
            slots_by_key: Lookup::default(),
            slots_by_cell: Lookup::default(),
            remembered: Remembered::new(hasher),
            pending: Pending::default(),
            call: Vec::new(),
            written: Vec::new(),
            touched: Vec::new(),
            prepared: Vec::new(),
            scratch: Vec::new(),
            snapshot_deadline: 0,
            snapshots: Snapshots::default(),
        }
    }

    /// Begins a run of a transaction that declares no keys.
    pub(crate) fn begin_undeclared(&mut self, priority: Priority, discipline: Discipline) {
        self.keys.clear();
        self.first_key = 0;
        self.priority = priority;
        self.discipline = discipline;
        self.has_conflicted = false;
        self.is_unfit = false;
        self.holds_elsewhere = false;
        // A run without locks leaves its call.
        self.call.clear();
    }

    /// Begins a transaction of a batch, whose first key is number `first_key`.
    #[inline]
    pub(crate) fn begin_declared(&mut self, first_key: usize) {
        self.first_key = first_key;
        self.priority = Priority::DECLARED;
        self.discipline = Discipline::Declared;
        // As in `begin_undeclared`.
        self.call.clear();
    }

    /// Forgets the call of a run that has ended. The buffer of a long call is freed.
    #[cold]
    pub(crate) fn forget_call(&mut self) {
        const KEEP_BYTES: usize = 1 << 20;
        self.call.clear();
        self.call.shrink_to(KEEP_BYTES);
    }

    /// Adds the keys of a rolled-back run to the remembered ones.
    #[cold]
    pub(crate) fn remember(&mut self) {
        for index in 0..self.keys.declared().len() {
            let key = self.keys.declared()[index];
            self.remembered.add(key.table, self.keys.key(index), key.mode);
        }
    }
}
