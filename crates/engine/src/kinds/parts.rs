//! The parts that the kinds of tables have in one session's transactions.

use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_store::{
    KeySet, Mode, OpenTransaction, Patience, Slot, Store, TableId, TxError, ValueRef, Worker,
};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_txn::{
    Arrival, Discipline, KeyList, KindKey, KindPart, KindRange, Lookup, Presence, RangeBatch,
};

use crate::kinds::Kinds;
use crate::kinds::open::OpenTransactions;
use crate::kinds::operations::Operations;
use crate::kinds::waiting::{
    HELD_TURNS, KindWait, LONG_TURNS, LongWait, PERMITTED_TURNS, WaitLimits, is_conflict,
};

/// Where a key of the transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyLocation {
    /// The key is in the memory store, under this slot.
    Memory(Slot),
    /// The key is in the part of the kind with this number, under this slot of the part.
    Part(usize, u32),
}

/// Keys up to which a search looks at the hash of each of them.
const SEARCHED: usize = 32;

/// Keys of a run after which those whose slots nobody has may be forgotten.
const KEYS_KEPT: usize = 64;

/// Keys of other kinds than the memory store, each with its slot in the transaction, in buffers that
/// are used again.
#[derive(Debug, Default)]
struct Met {
    keys: KeyList,
    /// Of each key: its hash.
    hashes: Vec<u64>,
    /// Of each key: its kind, and its slot.
    places: Vec<(usize, Slot)>,
    /// Numbers of keys by hash. Used for more than [`SEARCHED`].
    at: Lookup,
}

impl Met {
    fn clear(&mut self) {
        self.keys.clear();
        self.hashes.clear();
        self.places.clear();
        if !self.at.is_empty() {
            self.at.clear();
        }
    }

    /// The number of a key with this hash.
    fn find(&mut self, hash: u64, table: TableId, key: &[u8]) -> Option<usize> {
        let Self { keys, hashes, at, .. } = self;
        let is_it = |number: usize| {
            let known = keys.get(number);
            hashes[number] == hash && known.table == table && known.key == key
        };
        if hashes.len() <= SEARCHED {
            let mut equal = (0..hashes.len()).filter(|&number| hashes[number] == hash);
            return equal.find(|&number| is_it(number));
        }
        while at.covered() < hashes.len() {
            at.cover(Some(hashes[at.covered()]), |number| hashes[number]);
        }
        at.find(hash, is_it)
    }

    fn push(&mut self, kind: usize, (hash, key): (u64, KindKey<'_>), slot: Slot) {
        self.keys.push(key);
        self.hashes.push(hash);
        self.places.push((kind, slot));
    }

    fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether the last key may be [removed](Self::pop): no search looks at it by its number.
    fn may_pop(&self) -> bool {
        self.at.covered() < self.hashes.len()
    }

    /// Removes the last key. Returns the access to it.
    fn pop(&mut self) -> Option<Mode> {
        self.hashes.pop();
        self.places.pop();
        self.keys.pop()
    }
}

/// A savepoint of an open transaction: [`Transaction::savepoint`](crate::Transaction::savepoint) takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    run: u64,
    number: u64,
}

/// What a run had done at a savepoint.
#[derive(Clone, Copy, Debug)]
struct Mark {
    number: u64,
    /// Number of operations.
    done: usize,
    memory_writes: u64,
}

/// Numbers of runs and of savepoints.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: numbers are unique, and order nothing.
    NEXT.fetch_add(1, Relaxed)
}

/// The parts of all kinds in the transactions of one session, and the place of each key.
pub(crate) struct Parts {
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) store: Arc<Store>,
    pub(crate) parts: Vec<Box<dyn KindPart>>,
    pub(crate) operations: Operations,
    open: Arc<OpenTransactions>,
    /// The location of the key under each slot of the transaction.
    places: Vec<KeyLocation>,
    /// For each slot of the memory store, that of the transaction.
    of_memory: Vec<Option<Slot>>,
    /// Slots below this number may be known to the body of the transaction.
    given_out: usize,
    /// Whether a key was forgotten that was locked for writing.
    has_forgotten_write: bool,
    /// The keys of the run in the parts, with their slots.
    met: Met,
    /// Keys that earlier runs of the transaction have met. Their slots mean nothing.
    remembered: Met,
    /// Keys that are asked for or locked together, and then their slots in their part.
    asked: KeyList,
    slots: Vec<u32>,
    discipline: Discipline,
    pub(crate) has_conflicted: bool,
    /// Whether the run may hold locks of the parts.
    pub(crate) holds_locks: bool,
    /// Whether a run is open in the parts.
    pub(crate) is_open: bool,
    /// Whether the session must not wait for a key that is not in memory. The run is then rolled
    /// back, and `absent` holds the arrival of the key.
    pub(crate) must_not_wait: bool,
    pub(crate) absent: Option<Arc<dyn Arrival>>,
    /// How long the run waits for other transactions.
    pub(crate) patience: Patience,
    /// How long a transaction waits for a lock, by which clock.
    pub(crate) limits: WaitLimits,
    /// Whether the transaction stays open across calls, so that it cannot run again.
    pub(crate) stays_open: bool,
    /// Most bytes of operations that the transaction remembers.
    pub(crate) bytes_max: Option<usize>,
    /// Number of the run, of all runs of all sessions.
    run: u64,
    /// The savepoints of the run.
    savepoints: Vec<Mark>,
    /// Writes of the run to tables in memory.
    memory_writes: u64,
    /// The value that was read last.
    pub(crate) scratch: Vec<u8>,
    pub(crate) touched: Vec<Stamp>,
    /// The commits that answers depend on because of reads in the parts.
    pub(crate) dependencies: Vec<Stamp>,
}

impl Parts {
    pub(crate) fn new(
        kinds: Arc<Kinds>,
        store: Arc<Store>,
        operations: Operations,
        limits: WaitLimits,
    ) -> Self {
        let parts = kinds.kinds.iter().map(|kind| Arc::clone(kind).new_part()).collect();
        Self {
            open: operations.open().clone(),
            kinds,
            store,
            parts,
            operations,
            places: Vec::new(),
            of_memory: Vec::new(),
            given_out: 0,
            has_forgotten_write: false,
            met: Met::default(),
            remembered: Met::default(),
            asked: KeyList::default(),
            slots: Vec::new(),
            discipline: Discipline::Declared,
            has_conflicted: false,
            holds_locks: false,
            is_open: false,
            must_not_wait: false,
            absent: None,
            patience: Patience::Endless,
            limits,
            stays_open: false,
            bytes_max: None,
            run: 0,
            savepoints: Vec::new(),
            memory_writes: 0,
            scratch: Vec::new(),
            touched: Vec::new(),
            dependencies: Vec::new(),
        }
    }

    /// Tells the worker what answers depend on.
    pub(crate) fn give_dependencies(&mut self, worker: &mut Worker) {
        for stamp in self.dependencies.drain(..) {
            worker.depend_on(stamp);
        }
    }

    /// Why the store has failed, if an undo could not be logged.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.operations.take_failure()
    }

    /// Forgets the keys of the transaction before.
    pub(crate) fn forget_keys(&mut self) {
        self.remembered.clear();
    }

    /// Begins a run. Call this outside of any read section.
    ///
    /// # Errors
    /// [`TxError::WaitsForItself`] if the permit of the store did not become free within the patience.
    pub(crate) fn begin(&mut self, open: &OpenTransaction<'_>) -> Result<(), TxError> {
        self.discipline = open.discipline();
        self.patience = open.patience();
        self.places.clear();
        self.of_memory.clear();
        (self.given_out, self.has_forgotten_write) = (0, false);
        self.met.clear();
        self.has_conflicted = false;
        self.holds_locks = false;
        self.absent = None;
        self.run = 0;
        self.savepoints.clear();
        self.memory_writes = 0;
        if self.discipline == Discipline::WaitDie {
            // Other runs wait where they enter the read section that locks their keys of the store.
            open.wait_for_permit()?;
        }
        self.is_open = true;
        self.operations.begin(self.store.driver().now().epoch());
        for part in &mut self.parts {
            part.begin(open.priority(), self.discipline);
        }
        Ok(())
    }

    /// Locks the keys that earlier runs have met, if the run's discipline says so. Call this after
    /// the locking of the keys of the memory store.
    ///
    /// # Errors
    /// [`TxError::Conflict`] while another transaction has the permit of the store.
    pub(crate) fn lock_remembered(&mut self) -> Result<(), TxError> {
        if self.discipline != Discipline::Remembered || self.remembered.len() == 0 {
            return Ok(());
        }
        let remembered = std::mem::take(&mut self.remembered);
        let locked = self.lock_all(&remembered, |_, _, _| {});
        self.remembered = remembered;
        locked
    }

    /// Locks the keys of a declared transaction that are of other kinds, and gives all slots.
    ///
    /// # Errors
    /// As [`lock_remembered`](Self::lock_remembered); the kind's own.
    pub(crate) fn lock_declared(
        &mut self,
        keys: &KeySet,
        range: std::ops::Range<usize>,
    ) -> Result<(), TxError> {
        let mut in_memory = 0;
        for index in range {
            let declared = keys.declared()[index];
            match self.kinds.of(declared.table) {
                None => {
                    self.add_memory(Slot(in_memory));
                    in_memory += 1;
                }
                Some(kind) => {
                    let slot = Slot(self.places.len() as u32);
                    let (table, mode) = (declared.table, declared.mode);
                    let key = KindKey { table, key: keys.key(index), mode };
                    self.met.push(kind, (declared.hash, key), slot);
                    // The slot of the key in its part is known once the key is locked.
                    self.places.push(KeyLocation::Part(kind, 0));
                }
            }
        }
        let met = std::mem::take(&mut self.met);
        let locked = self.lock_all(&met, |places, (kind, slot), of_part| {
            places[slot.0 as usize] = KeyLocation::Part(kind, of_part);
        });
        self.met = met;
        locked
    }

    /// Reads the only key of a declared transaction without a lock, and gives it the first slot. False if the
    /// key has to be locked.
    pub(crate) fn read_alone(&mut self, keys: &KeySet, index: usize) -> bool {
        let declared = keys.declared()[index];
        let Some(kind) = self.kinds.of(declared.table) else { return false };
        let (table, mode) = (declared.table, declared.mode);
        let key = KindKey { table, key: keys.key(index), mode };
        let Ok(Presence::Here(Some(of_part))) = self.parts[kind].read_alone(key) else {
            return false;
        };
        self.places.clear();
        self.places.push(KeyLocation::Part(kind, of_part));
        self.met.clear();
        self.met.push(kind, (declared.hash, key), Slot(0));
        true
    }

    /// Locks keys, those of each kind together and in the order of the kind. Calls `locked` with the
    /// places of all keys, the place of each locked key, and its slot in its part.
    fn lock_all(
        &mut self,
        keys: &Met,
        locked: impl Fn(&mut [KeyLocation], (usize, Slot), u32),
    ) -> Result<(), TxError> {
        for kind in 0..self.parts.len() {
            let mine = keys.places.iter().filter(|(of, _)| *of == kind).count();
            if mine == 0 {
                continue;
            }
            // Most transactions have keys of one kind.
            let are_all = mine == keys.len();
            if !are_all {
                self.asked.clear();
                let mine = keys.places.iter().zip(keys.keys.iter());
                mine.filter(|((of, _), _)| *of == kind).for_each(|(_, key)| self.asked.push(key));
            }
            self.holds_locks = true;
            let (turns_max, first) = (self.turns_max(), self.operations.first_record());
            let Self {
                store,
                parts,
                absent,
                must_not_wait,
                has_conflicted,
                patience,
                limits,
                open,
                ..
            } = self;
            let asked = if are_all { &keys.keys } else { &self.asked };
            let slots = &mut self.slots;
            let wait = KindWait::new((*patience, turns_max), limits, (open, first));
            let part = &mut parts[kind];
            let mut here = Here { must_not_wait: *must_not_wait, absent };
            // The holder of the store's permit may wait for locks of this transaction.
            let may_wait = || !store.driver().now().is_permitted() && wait.may_go_on();
            here.until(|| part.lock_all(asked, &may_wait, slots))
                .inspect_err(|error| *has_conflicted |= is_conflict(error))
                .map_err(|error| wait.reason(error))?;
            let mine = keys.places.iter().filter(|(of, _)| *of == kind);
            for (place, &slot) in mine.zip(&*slots) {
                locked(&mut self.places, *place, slot);
            }
        }
        Ok(())
    }

    /// Notes that the body of the transaction knows a slot.
    pub(crate) fn give_out(&mut self, Slot(slot): Slot) {
        self.given_out = self.given_out.max(slot as usize + 1);
    }

    /// Forgets the key that was met last, if there are many and nobody has its slot. So the memory of a
    /// transaction has a bound, however many keys it changes.
    fn forget_last(&mut self) {
        let Some(&KeyLocation::Part(kind, slot)) = self.places.last() else { return };
        let is_known = self.places.len() <= self.given_out.max(KEYS_KEPT) || !self.met.may_pop();
        if !is_known && self.parts[kind].forget(slot) {
            self.places.pop();
            self.has_forgotten_write |= self.met.pop() == Some(Mode::Write);
        }
    }

    /// Locks a key of a part and gives its slot in the transaction. The slot is good until the next lock,
    /// unless it is [given out](Self::give_out).
    pub(crate) fn lock(
        &mut self,
        kind: usize,
        table: TableId,
        key: &[u8],
        mode: Mode,
    ) -> Result<Slot, TxError> {
        self.forget_last();
        let hash = self.store.hash(table, key);
        let known = self.met.find(hash, table, key);
        let known = known.map(|number| (number, self.met.keys.get(number).mode));
        if self.discipline == Discipline::Declared {
            let Some((known, has)) = known else { return Err(TxError::NotDeclared) };
            let slot = self.met.places[known].1;
            return match (has, mode) {
                (Mode::Read, Mode::Write) => Err(TxError::DeclaredForReading { slot: slot.0 }),
                _ => Ok(slot),
            };
        }
        if let Some((known, has)) = known
            && has >= mode
        {
            return Ok(self.met.places[known].1);
        }
        let asked = KindKey { table, key, mode };
        self.holds_locks = true;
        let (turns_max, first) = (self.turns_max(), self.operations.first_record());
        let Self { parts, absent, must_not_wait, patience, limits, open, .. } = self;
        let wait = KindWait::new((*patience, turns_max), limits, (open, first));
        let mut here = Here { must_not_wait: *must_not_wait, absent };
        let may_wait = || wait.may_go_on();
        let slot = match here.until(|| parts[kind].lock(asked, &may_wait)) {
            Ok(slot) => slot,
            Err(error) => {
                let (has_conflicted, error) = (is_conflict(&error), wait.reason(error));
                if has_conflicted {
                    self.has_conflicted = true;
                    remember(&mut self.remembered, kind, (hash, asked));
                }
                return Err(error);
            }
        };
        if let Some((known, _)) = known {
            self.met.keys.set_mode(known, mode);
            return Ok(self.met.places[known].1);
        }
        let public = Slot(self.places.len() as u32);
        self.places.push(KeyLocation::Part(kind, slot));
        self.met.push(kind, (hash, asked), public);
        Ok(public)
    }

    /// Turns of a wait after which the run gives up, and the transaction waits without its locks.
    fn turns_max(&self) -> u32 {
        match () {
            () if self.limits.leaves_held => HELD_TURNS,
            // It keeps its locks, or its patience ends the wait.
            () if self.stays_open || self.patience != Patience::Endless => u32::MAX,
            () if self.discipline == Discipline::Permitted => PERMITTED_TURNS,
            () => LONG_TURNS,
        }
    }

    /// Whether the transaction waits without its locks, and runs again after this end. Then it has met a lock
    /// that is held for long, or has found the logs at their limit.
    pub(crate) fn waits_on<R>(&self, ended: &Result<R, TxError>) -> bool {
        let waits = match ended {
            Err(TxError::Held) => true,
            Err(TxError::LogFull(_)) => self.operations.lacks_log(),
            _ => false,
        };
        waits && !self.limits.leaves_held
    }

    /// Waits, before the transaction runs again.
    ///
    /// # Errors
    /// [`TxError::LockTimeout`], [`TxError::LogFull`] after the longest wait.
    pub(crate) fn pause(&self, wait: &mut LongWait) -> Result<(), TxError> {
        match self.operations.lacks_log() {
            true => Ok(self.operations.wait_to_begin(&mut wait.at_limit_ns)?),
            false => wait.pause(&self.limits),
        }
    }

    /// Notes a write of the run to a table in memory.
    pub(crate) fn note_memory_write(&mut self) {
        self.memory_writes += 1;
    }

    /// Takes a savepoint, and begins a statement.
    pub(crate) fn savepoint(&mut self) -> Savepoint {
        if self.run == 0 {
            self.run = next_number();
        }
        let (number, done) = (next_number(), self.operations.done().len());
        let memory_writes = self.memory_writes;
        self.savepoints.push(Mark { number, done, memory_writes });
        for part in &mut self.parts {
            part.begin_statement();
        }
        Savepoint { run: self.run, number }
    }

    /// Undoes what the run has done since a savepoint. The locks stay.
    ///
    /// # Errors
    /// [`TxError::UnknownSavepoint`]; [`TxError::NoSavepoints`] if a write since then was to a table whose
    /// kind takes nothing back. Nothing was undone.
    pub(crate) fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), TxError> {
        let known = self.savepoints.iter().position(|mark| mark.number == savepoint.number);
        let at = known.filter(|_| savepoint.run == self.run).ok_or(TxError::UnknownSavepoint)?;
        let mark = self.savepoints[at];
        if self.memory_writes != mark.memory_writes {
            return Err(TxError::NoSavepoints("memory"));
        }
        // A new statement also divides what comes from what was undone.
        let takes_back: Vec<bool> =
            self.parts.iter_mut().map(|part| part.begin_statement()).collect();
        let tables = self.operations.done().tables(mark.done).map_err(TxError::abandon)?;
        for table in tables {
            let kind = self.kinds.of(table).ok_or(TxError::NoSuchTable(table))?;
            if !takes_back[kind] {
                return Err(TxError::NoSavepoints(self.kinds.kinds[kind].name()));
            }
        }
        while self.operations.done().len() > mark.done {
            let next = self.operations.undo_next();
            let next = next.inspect_err(|error| self.operations.fail_undo(error));
            let done = next.map_err(TxError::abandon)?.expect("they were counted");
            let kind = self.kinds.kind_of(done.table)?;
            let undone = kind.undo(done.table, &done.undo, &mut self.operations);
            undone.expect("a kind undoes what it has logged");
        }
        self.operations.go_on();
        self.savepoints.truncate(at + 1);
        Ok(())
    }

    /// Whether the run may have written to a table of another kind.
    pub(crate) fn may_have_written(&self) -> bool {
        self.has_forgotten_write || self.met.keys.iter().any(|key| key.mode == Mode::Write)
    }

    /// The slot of a key that the memory store has locked under `slot`.
    pub(crate) fn slot_in_memory(&mut self, slot: Slot) -> Slot {
        let known = self.of_memory.get(slot.0 as usize).copied().flatten();
        known.unwrap_or_else(|| self.add_memory(slot))
    }

    /// Adds a key of the memory store, which has this slot there.
    fn add_memory(&mut self, slot: Slot) -> Slot {
        let (number, of_all) = (slot.0 as usize, Slot(self.places.len() as u32));
        self.places.push(KeyLocation::Memory(slot));
        if self.of_memory.len() <= number {
            self.of_memory.resize(number + 1, None);
        }
        self.of_memory[number] = Some(of_all);
        of_all
    }

    /// Where a key of the transaction is.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    pub(crate) fn place(&self, slot: Slot) -> KeyLocation {
        self.places[slot.0 as usize]
    }

    /// The hash of the key of a slot in a part.
    pub(crate) fn key_hash(&self, slot: Slot) -> u64 {
        let found = self.met.places.iter().position(|(_, of)| *of == slot);
        self.met.hashes[found.expect("a slot in a part has its key")]
    }

    /// The value of a slot in a part.
    pub(crate) fn value(&mut self, part: usize, slot: u32) -> Option<ValueRef<'_>> {
        self.scratch.clear();
        let tag = self.parts[part].value(slot, &mut self.scratch)?;
        Some(ValueRef::from_bytes(tag, &self.scratch))
    }

    /// Overwrites a range of the value of a slot in a part.
    pub(crate) fn patch(
        &mut self,
        part: usize,
        slot: u32,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), TxError> {
        let tag = self.value(part, slot).map(|value| value.tag());
        let tag = tag.ok_or(TxError::PatchOutsideValue { offset, len: 0 })?;
        let mut value = std::mem::take(&mut self.scratch);
        let len = value.len();
        let patched = if offset > len {
            Err(TxError::PatchOutsideValue { offset, len })
        } else {
            let end = offset + bytes.len();
            value.resize(len.max(end), 0);
            value[offset..end].copy_from_slice(bytes);
            self.put(part, slot, Some((tag, &value)))
        };
        self.scratch = value;
        patched
    }

    /// Removes the value of a slot in a part; true if there was one.
    pub(crate) fn delete(&mut self, part: usize, slot: u32) -> Result<bool, TxError> {
        let existed = self.value(part, slot).is_some();
        if existed {
            self.put(part, slot, None)?;
        }
        Ok(existed)
    }

    /// Gives a slot in a part a value, or takes the value away.
    pub(crate) fn put(
        &mut self,
        part: usize,
        slot: u32,
        value: Option<(u8, &[u8])>,
    ) -> Result<(), TxError> {
        if let Some(limit) = self.bytes_max {
            let more = value.map_or(0, |(_, value)| value.len());
            let bytes = self.operations.done().operation_bytes().saturating_add(more);
            if bytes > limit {
                return Err(TxError::TooLarge { bytes, limit });
            }
        }
        let (turns_max, first) = (self.turns_max(), self.operations.first_record());
        let Self {
            store, parts, operations, absent, must_not_wait, patience, limits, open, ..
        } = self;
        let wait = KindWait::new((*patience, turns_max), limits, (open, first));
        let mut here = Here { must_not_wait: *must_not_wait, absent };
        let gives_way = self.discipline == Discipline::Declared;
        // The holder of the store's permit may have the gap, and wait for locks of this transaction.
        let may_wait = || !(gives_way && store.driver().now().is_permitted()) && wait.may_go_on();
        let put = here.until(|| parts[part].put(slot, value, operations, &may_wait));
        put.map_err(|error| {
            self.has_conflicted |= is_conflict(&error);
            wait.reason(error)
        })
    }

    /// Reads and locks the next records of a range of a table of another kind.
    ///
    /// # Errors
    /// [`TxError::RangeDeclared`], [`TxError::Conflict`], [`TxError::NotOrdered`]; the kind's own.
    pub(crate) fn range(
        &mut self,
        kind: usize,
        range: &KindRange<'_>,
        out: &mut RangeBatch,
    ) -> Result<(), TxError> {
        if self.discipline == Discipline::Declared {
            return Err(TxError::RangeDeclared);
        }
        self.holds_locks = true;
        let (turns_max, first) = (self.turns_max(), self.operations.first_record());
        let Self { parts, absent, must_not_wait, patience, limits, open, .. } = self;
        let wait = KindWait::new((*patience, turns_max), limits, (open, first));
        let mut here = Here { must_not_wait: *must_not_wait, absent };
        let may_wait = || wait.may_go_on();
        let read = here.until(|| parts[kind].range(range, &may_wait, out));
        read.map_err(|error| {
            self.has_conflicted |= is_conflict(&error);
            wait.reason(error)
        })
    }

    /// Appends records to a table of a kind that [takes](stillpoint_txn::TableKind::takes_sorted) them, and
    /// that is locked as a whole.
    pub(crate) fn append_sorted(
        &mut self,
        table: TableId,
        records: (&RangeBatch, usize),
    ) -> Result<usize, TxError> {
        self.kinds.kind_of(table)?.append_sorted(table, records, &mut self.operations)
    }

    /// Keeps the keys of a run that has conflicted for the next one.
    pub(crate) fn remember_run(&mut self) {
        let Self { met, remembered, .. } = self;
        let keys = met.hashes.iter().copied().zip(met.keys.iter());
        for (&(kind, _), key) in met.places.iter().zip(keys) {
            remember(remembered, kind, key);
        }
        met.clear();
    }

    /// Asks for all keys of other kinds, and only then waits for those that are not in memory.
    /// Called outside of any read section, with no lock held. A key that does not arrive fails the
    /// transaction that locks it. If the session must not wait, returns the number of the first
    /// missing key and all arrivals.
    pub(crate) fn ask_for_all(&mut self, keys: &KeySet) -> (Option<usize>, Vec<Arc<dyn Arrival>>) {
        let (mut first, mut awaited) = (None::<usize>, Vec::new());
        let declared = keys.declared().iter().enumerate();
        let keys = declared.map(|(index, it)| (it.table, keys.key(index), it.mode));
        self.ask_together(keys, &mut |index, arrival| {
            first = Some(first.map_or(index, |first| first.min(index)));
            awaited.push(arrival);
        });
        if self.must_not_wait {
            return (first, awaited);
        }
        wait_for_all(&awaited);
        (None, Vec::new())
    }

    /// Asks for keys that the run will use soon, and waits for them, unless the session must not wait.
    pub(crate) fn prefetch<K: AsRef<[u8]>>(
        &mut self,
        keys: impl Iterator<Item = (TableId, K)> + Clone,
    ) {
        let mut awaited = Vec::new();
        let keys = keys.map(|(table, key)| (table, key, Mode::Read));
        self.ask_together(keys, &mut |_, arrival| awaited.push(arrival));
        if !self.must_not_wait {
            wait_for_all(&awaited);
        }
    }

    /// Asks for keys of other kinds. `missing` gets the number of each key that is not in memory.
    fn ask_together<K: AsRef<[u8]>>(
        &mut self,
        keys: impl Iterator<Item = (TableId, K, Mode)> + Clone,
        missing: &mut dyn FnMut(usize, Arc<dyn Arrival>),
    ) {
        for kind in 0..self.parts.len() {
            let Self { kinds, parts, asked, slots, .. } = self;
            asked.clear();
            slots.clear();
            for (index, (table, key, mode)) in keys.clone().enumerate() {
                if kinds.of(table) == Some(kind) {
                    asked.push(KindKey { table, key: key.as_ref(), mode });
                    slots.push(index as u32);
                }
            }
            if !asked.is_empty() {
                parts[kind].ask(asked, &mut |number, arrival| {
                    missing(slots[number] as usize, arrival);
                });
            }
        }
    }
}

/// Waits for keys that were asked for. Who locks a key asks again, and gets the error.
fn wait_for_all(awaited: &[Arc<dyn Arrival>]) {
    for arrival in awaited {
        let _ = arrival.wait();
    }
}

/// Adds a key, or strengthens the access to a known one.
fn remember(remembered: &mut Met, kind: usize, (hash, key): (u64, KindKey<'_>)) {
    match remembered.find(hash, key.table, key.key) {
        Some(known) => {
            let mode = remembered.keys.get(known).mode.max(key.mode);
            remembered.keys.set_mode(known, mode);
        }
        None => remembered.push(kind, (hash, key), Slot(0)),
    }
}

/// Asks for keys that may not be in memory.
struct Here<'p> {
    must_not_wait: bool,
    /// The arrival of a key for which the session did not wait.
    absent: &'p mut Option<Arc<dyn Arrival>>,
}

impl Here<'_> {
    /// Asks until the key is in memory. Called outside of any read section.
    ///
    /// # Errors
    /// Those of `ask`. [`TxError::Conflict`] if the key is not in memory and the session must not
    /// wait.
    fn until<T>(
        &mut self,
        mut ask: impl FnMut() -> Result<Presence<T>, TxError>,
    ) -> Result<T, TxError> {
        loop {
            match ask()? {
                Presence::Here(found) => return Ok(found),
                Presence::NotHere(arrival) if self.must_not_wait => {
                    *self.absent = Some(arrival);
                    return Err(TxError::Conflict);
                }
                Presence::NotHere(arrival) => arrival.wait()?,
            }
        }
    }
}
