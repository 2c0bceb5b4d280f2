//! Finding the cells of a transaction's keys, and locking them.
//!
//! - **Declared keys** are first tried in the order of their declaration, which nearly always
//!   succeeds and sorts nothing. If another transaction holds one of the locks, the transaction
//!   gives all its locks back. Then the transaction takes the locks in the order of cell numbers,
//!   and waits for each. All waits go up in one order, so no cycle can close, and a declared
//!   transaction is never aborted.
//! - **Undeclared keys** are locked one by one under wait-die.
//! - **One key for reading**, declared alone, is read without its lock, and keys under it likewise.

use stillpoint_format::Stamp;
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::Ordering::{Acquire, Relaxed};
use stillpoint_sync::atomic::{AtomicU64, fence};
use stillpoint_sync::lock_word::{self, Contended, Priority};
use stillpoint_sync::mutant;
use stillpoint_txn::{
    DeclaredKey, Discipline, MemoryLimit, Mode, Patience, SCAN_MAX, Slot, TableId, TxError,
};

use crate::capture;
use crate::memory::arena::{Allowance, Kind};
use crate::memory::cell::Cell;
use crate::memory::index::Inserted;
use crate::memory::stamp::{ABSENT, DEAD, SECOND};
use crate::participant::Participant;
use crate::planted;
use crate::record::NewCell;
use crate::txn::names::{HeldByOthers, announce, announce_no_longer, await_name_no_longer};
use crate::txn::{LockState, LockedKey, Snapshots, Transaction};

/// Keys under another one that a run may have read without locks when it is tried again without them. Who
/// reads more is likely to meet the next change, too.
const UNDER_AGAIN_MAX: u32 = 64;
/// Most tries to lock a key under another key. Nobody holds such a lock for long.
const TRIES_UNDER: usize = 1 << 20;

/// Why a cell could not be locked at once.
enum Refused {
    /// Other transactions hold the lock; the oldest of them has this priority.
    Held(Priority),
    /// The cell stopped being the key's. The caller looks up the key again.
    Gone,
}

impl Transaction {
    /// Reads a declared key without locking it.
    pub(crate) fn snapshot_key(
        &mut self,
        local: &mut Participant,
        index: usize,
    ) -> Result<(), TxError> {
        let Self { keys, held, scratch, snapshot_deadline, .. } = self;
        let DeclaredKey { table, hash, candidate, .. } = keys.declared()[index];
        scratch.clear();
        let found = local.read_optimistic(table, keys.key(index), hash, candidate, scratch);
        let (label, stamp, cell) = found?;
        *snapshot_deadline = label.map_or(0, |label| label.deadline);
        held.push(LockedKey {
            state: LockState::Snapshot(label.map(|label| label.tag)),
            stamp_word: stamp.to_bits() | if label.is_none() { ABSENT } else { 0 },
            ..LockedKey::unlocked(cell)
        });
        local.dependencies.add(stamp);
        Ok(())
    }

    /// Reads a key under the key of slot `parent`, which has a value and was read without its lock. Appends
    /// the value to `out`, and returns whether there is one.
    ///
    /// A commit makes all its records busy before the first of them changes, and every commit that changes a
    /// key under `parent` writes `parent`. So a `parent` that is neither busy nor has another stamp, seen
    /// after the read, was as it is now when the key was read.
    pub(crate) fn snapshot_under(
        &mut self,
        local: &mut Participant,
        parent: usize,
        (table, key): (TableId, &[u8]),
        out: &mut Vec<u8>,
    ) -> Result<bool, TxError> {
        let LockedKey { cell, stamp_word, .. } = self.held[parent];
        self.snapshots.under += 1;
        let hash = self.keys.hash(table, key);
        let (label, stamp, _) = local.read_optimistic(table, key, hash, 0, out)?;
        // Acquire: the read of the key comes before the look at its parent. Partner: `record::begin_writes`.
        fence(Acquire);
        // A moved parent has left a dead cell.
        let now = local.store.cell(cell).stamp_word() & !SECOND;
        let is_as_read = now == stamp_word;
        if !mutant!(in local.store.driver(); is_as_read, ParentNotReadAgain => true) {
            self.snapshots.has_changed = true;
            return Err(TxError::NotLocked);
        }
        local.dependencies.add(stamp);
        Ok(label.is_some())
    }

    /// Ends a run that has read one key without a lock. Such a run has neither locks nor writes.
    #[inline]
    pub(crate) fn end_snapshot(&mut self, local: &mut Participant) {
        local.cache.allowance = Allowance::Limit;
        self.held.clear();
    }

    /// Ends such a run that has read keys under its key. Returns whether another one may succeed where this
    /// one has not.
    pub(crate) fn end_under(&mut self) -> bool {
        let Snapshots { under, has_changed } = std::mem::take(&mut self.snapshots);
        has_changed && under <= UNDER_AGAIN_MAX
    }

    /// Locks the declared keys of one transaction.
    pub(crate) fn lock_declared(
        &mut self,
        local: &mut Participant,
        keys: std::ops::Range<usize>,
    ) -> Result<(), TxError> {
        for index in keys.clone() {
            let DeclaredKey { candidate, mode, .. } = self.keys.declared()[index];
            // The position of the cell is computed once and used several times.
            let found = local.store.cell(candidate);
            let (number, cell) = if candidate != 0 && found.is_of(self.keys.key(index)) {
                (candidate, found)
            } else {
                let number = self.resolve(local, index)?;
                (number, local.store.cell(number))
            };
            if self.take(local, (number, cell), mode, Priority::DECLARED).is_err()
                && !self.alias(local, number, mode)
            {
                return self.lock_in_order(local, keys);
            }
        }
        if local.tables.has_ordered { self.lock_ordered(local, keys) } else { Ok(()) }
    }

    /// Prepares the locked keys of ordered tables. If others hold what that needs, gives all locks back
    /// and takes them in order.
    #[cold]
    fn lock_ordered(
        &mut self,
        local: &mut Participant,
        keys: std::ops::Range<usize>,
    ) -> Result<(), TxError> {
        match self.enter_ordered(local, 0..keys.len())? {
            None => Ok(()),
            Some(_) => self.lock_in_order(local, keys),
        }
    }

    /// Locks the keys that earlier runs have met, like declared ones. Do not call this inside a
    /// read section.
    pub(crate) fn lock_remembered(&mut self, local: &mut Participant) -> Result<(), TxError> {
        let Self { keys, remembered, .. } = self;
        let count = remembered.keys().declared().len();
        remembered.keys().check(0..count)?;
        for (index, key) in remembered.keys().declared().iter().enumerate() {
            keys.push(key.table, remembered.keys().key(index), key.mode, 0);
        }
        local.enter_to_begin()?;
        let locked = self.lock_declared(local, 0..count);
        local.exit();
        locked
    }

    /// Locks a cell and enters it as the next slot. Inlined, since it runs once for each key.
    #[inline(always)]
    fn take(
        &mut self,
        local: &Participant,
        (number, cell): (u64, Cell<'_>),
        mode: Mode,
        priority: Priority,
    ) -> Result<(), Refused> {
        let (state, stamp_word) = lock_cell(cell, mode, priority)?;
        self.locked_version = self.locked_version.min(local.tables.version);
        self.held.push(LockedKey {
            place: cell.place(number, stamp_word),
            state,
            stamp_word,
            ..LockedKey::unlocked(number)
        });
        Ok(())
    }

    /// If the transaction has locked the record already, makes the next slot an alias of the
    /// earlier one. Returns whether the alias was made. Without an earlier slot, or if that slot's
    /// lock cannot become exclusive, none is made.
    fn alias(&mut self, local: &Participant, number: u64, mode: Mode) -> bool {
        let Some(at) = self.slot_of_cell(number) else {
            return false;
        };
        if mode == Mode::Write && self.held[at].state == LockState::Shared {
            let lock = local.store.cell(number).lock();
            if lock_word::try_upgrade(lock, self.priority).is_err() {
                return false;
            }
            self.held[at].state = LockState::Exclusive;
        }
        self.held
            .push(LockedKey { state: LockState::Alias(at as u32), ..LockedKey::unlocked(number) });
        true
    }

    /// Locks a key for reading and enters it as the next slot, if `cell` is the key's and its lock is
    /// free. Call this inside the read section that found the cell.
    pub(crate) fn take_free(
        &mut self,
        local: &Participant,
        (table, key): (TableId, &[u8]),
        cell: u64,
    ) -> Option<Slot> {
        let found = local.store.cell(cell);
        if cell == 0 || !found.is_of(key) {
            return None;
        }
        let slot = self.keys.push(table, key, Mode::Read, 0);
        let index = slot.0 as usize;
        let has_room = self.keys.check(index..index + 1).is_ok();
        if !has_room || self.take(local, (cell, found), Mode::Read, self.priority).is_err() {
            self.keys.pop();
            return None;
        }
        Some(slot)
    }

    fn slot_of_cell(&mut self, number: u64) -> Option<usize> {
        let Self { held, slots_by_cell, .. } = self;
        let holds =
            |held: &LockedKey| matches!(held.state, LockState::Shared | LockState::Exclusive);
        if held.len() <= SCAN_MAX {
            return held.iter().position(|held| held.cell == number && holds(held));
        }
        while slots_by_cell.covered() < held.len() {
            let next = &held[slots_by_cell.covered()];
            slots_by_cell.cover(holds(next).then_some(next.cell), |slot| held[slot].cell);
        }
        slots_by_cell.find(number, |slot| held[slot].cell == number)
    }

    /// Gives all locks back and takes them in the order of cell numbers.
    ///
    /// A cell may be reclaimed between two read sections, unless its lock is held. In the later
    /// section the cell may belong to another key. So the keys that are not locked yet are looked
    /// up again after each wait outside of the read section.
    #[cold]
    fn lock_in_order(
        &mut self,
        local: &mut Participant,
        keys: std::ops::Range<usize>,
    ) -> Result<(), TxError> {
        // An undeclared transaction has announced itself already.
        let announces = self.discipline == Discipline::Declared;
        if announces {
            local.store.catalog().begin_transaction(local.number, local.tables.version);
        }
        self.release_all(local);
        let mut backoff = Backoff::new();
        let mut name = None;
        let locked = loop {
            let locked = self.try_lock_in_order(local, keys.clone());
            let locked =
                locked.and_then(|is| Ok(is && self.may_go_on(local, keys.len(), &mut name)?));
            match locked {
                Ok(true) => break Ok(()),
                Ok(false) => {
                    self.release_all(local);
                    if let Err(error) = self.wait_outside(local, &mut backoff, true) {
                        break Err(error);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        if locked.is_err() {
            // As in `wait_for`.
            let comes_back = matches!(locked, Err(TxError::Held));
            name.filter(|_| !comes_back)
                .into_iter()
                .for_each(|held| await_name_no_longer(local, held));
            self.release_all(local);
        }
        if announces {
            local.store.catalog().end_transaction(local.number);
        }
        locked
    }

    /// Prepares the keys of ordered tables, once all keys are locked. False if others hold what that
    /// needs, which `name` tells. Then the transaction must give all its locks back. The holder may have the
    /// permit of the store, and wait for these locks.
    fn may_go_on(
        &mut self,
        local: &Participant,
        keys: usize,
        name: &mut Option<HeldByOthers>,
    ) -> Result<bool, TxError> {
        if !local.tables.has_ordered {
            return Ok(true);
        }
        let held = self.enter_ordered(local, 0..keys)?;
        // At most one name says that this transaction waits for it.
        name.take().into_iter().for_each(|before| await_name_no_longer(local, before));
        held.into_iter().for_each(|held| self.await_name(local, held));
        *name = held;
        Ok(held.is_none())
    }

    fn try_lock_in_order(
        &mut self,
        local: &mut Participant,
        keys: std::ops::Range<usize>,
    ) -> Result<bool, TxError> {
        for index in keys.clone() {
            let cell = self.resolve(local, index)?;
            self.held.push(LockedKey::unlocked(cell));
        }
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|&slot| {
            (self.held[slot].cell, std::cmp::Reverse(self.keys.declared()[keys.start + slot].mode))
        });
        let mut previous: Option<usize> = None;
        let mut left = false;
        for slot in order {
            let cell = self.held[slot].cell;
            if let Some(base) = previous.filter(|&base| self.held[base].cell == cell) {
                // If several slots mean one record, the first of them in this order has the
                // strongest mode.
                self.held[slot].state = LockState::Alias(base as u32);
                continue;
            }
            if left && self.resolve(local, keys.start + slot)? != cell {
                return Ok(false);
            }
            if !self.wait_for(local, keys.start + slot, slot, &mut left)? {
                return Ok(false);
            }
            previous = Some(slot);
        }
        Ok(true)
    }

    /// Waits for one lock. False if the cell is not the key's any more, if the tables have changed, or
    /// if another transaction has the permit of the store. Sets `left` if the wait left the read section.
    ///
    /// # Errors
    /// Those of [`wait_outside`](Self::wait_outside); a cell cannot be made.
    fn wait_for(
        &mut self,
        local: &mut Participant,
        index: usize,
        slot: usize,
        left: &mut bool,
    ) -> Result<bool, TxError> {
        let (cell, mode) = (self.held[slot].cell, self.keys.declared()[index].mode);
        let version = local.tables.version;
        let mut backoff = Backoff::new();
        loop {
            match lock_cell(local.store.cell(cell), mode, Priority::DECLARED) {
                Ok((state, stamp_word)) => {
                    self.locked_version = self.locked_version.min(local.tables.version);
                    self.held[slot].place = local.store.cell(cell).place(cell, stamp_word);
                    self.held[slot].state = state;
                    self.held[slot].stamp_word = stamp_word;
                    return Ok(true);
                }
                Err(Refused::Gone) => return Ok(false),
                // The holder of the permit may wait for locks of this transaction.
                Err(Refused::Held(_)) if local.store.driver().now().is_permitted() => {
                    announce_no_longer(local, cell, mode);
                    return Ok(false);
                }
                Err(Refused::Held(_)) if backoff.is_spinning() => {
                    announce(local, cell, mode, Priority::DECLARED);
                    backoff.wait();
                }
                Err(Refused::Held(_)) => {
                    if let Err(error) = self.may_wait_on(local, &backoff) {
                        // Who leaves the lock alone comes back, and others do not share it meanwhile.
                        if !matches!(error, TxError::Held) {
                            announce_no_longer(local, cell, mode);
                        }
                        return Err(error);
                    }
                    announce(local, cell, mode, Priority::DECLARED);
                    self.wait_outside(local, &mut backoff, false)?;
                    *left = true;
                    // The cell may have been reclaimed while the worker was outside of its read
                    // section.
                    if local.tables.version != version || self.resolve(local, index)? != cell {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Whether a wait may go on.
    ///
    /// # Errors
    /// [`TxError::WaitsForItself`] after the last wait of the thread's patience. [`TxError::Held`] if the
    /// thread leaves locks alone that are held for long.
    fn may_wait_on(&self, local: &Participant, backoff: &Backoff) -> Result<(), TxError> {
        if local.patience.is_over(backoff.turns()) {
            return Err(TxError::WaitsForItself);
        }
        if local.leaves_held && is_held_long(backoff) && self.discipline == Discipline::Declared {
            return Err(TxError::Held);
        }
        Ok(())
    }

    /// Leaves the read section for a moment. `begins` says that no lock is held.
    ///
    /// # Errors
    /// Those of [`may_wait_on`](Self::may_wait_on), and of the begin of a read section. The thread is in
    /// the read section then, too.
    fn wait_outside(
        &mut self,
        local: &mut Participant,
        backoff: &mut Backoff,
        begins: bool,
    ) -> Result<(), TxError> {
        self.may_wait_on(local, backoff)?;
        local.exit();
        backoff.wait();
        // The candidate cells of later transactions of the batch were also found in the read
        // section that has ended.
        self.keys.forget_candidates();
        if begins {
            // The caller leaves a read section.
            return match self.discipline {
                Discipline::Declared => local.enter_to_begin_declared(),
                _ => local.enter_to_begin(),
            }
            .inspect_err(|_| local.enter());
        }
        local.enter();
        Ok(())
    }

    /// Locks one key of an undeclared transaction, and enters it as the next slot. Do not call this
    /// inside a read section.
    pub(crate) fn lock_undeclared(
        &mut self,
        local: &mut Participant,
        index: usize,
    ) -> Result<(), TxError> {
        let DeclaredKey { table, hash, mode, .. } = self.keys.declared()[index];
        let mut version = local.tables.version;
        let mut backoff = Backoff::new();
        loop {
            if local.loads_ahead() {
                local.load_ahead(table, self.keys.key(index), hash)?;
            }
            if self.gives_way() {
                local.enter_to_begin()?;
            } else {
                local.enter();
            }
            let outcome = self.try_lock_undeclared(local, index, mode, version, &backoff);
            version = local.tables.version;
            local.exit();
            if local.runs_again(&outcome) {
                local.missed.forget();
                continue;
            }
            match outcome? {
                Some(()) => return Ok(()),
                None if local.patience.is_over(backoff.turns()) => {
                    return Err(TxError::WaitsForItself);
                }
                None => backoff.wait(),
            }
        }
    }

    /// Whether an undeclared transaction still gives way to the holder of the store's permit, since it
    /// holds nothing.
    pub(crate) fn gives_way(&self) -> bool {
        let holds = !self.held.is_empty() || self.holds_elsewhere || self.names.holds_some();
        !holds && self.discipline != Discipline::Permitted
    }

    /// Whether an undeclared transaction may wait for a lock whose oldest holder is `by`.
    pub(crate) fn may_wait_for(&self, by: Priority, backoff: &Backoff) -> bool {
        self.discipline.may_wait_for(self.priority, by, backoff.is_spinning())
    }

    fn try_lock_undeclared(
        &mut self,
        local: &mut Participant,
        index: usize,
        mode: Mode,
        version: u64,
        backoff: &Backoff,
    ) -> Result<Option<()>, TxError> {
        if local.tables.version != version {
            self.check_tables(local)?;
        }
        let cell = self.resolve(local, index)?;
        match self.take(local, (cell, local.store.cell(cell)), mode, self.priority) {
            Ok(()) => Ok(Some(())),
            Err(Refused::Gone) => Ok(None),
            Err(Refused::Held(by)) => {
                if self.alias(local, cell, mode) {
                    Ok(Some(()))
                } else if !self.may_wait_for(by, backoff) {
                    announce_no_longer(local, cell, mode);
                    Err(TxError::Conflict)
                } else if local.patience.is_over(backoff.turns()) {
                    announce_no_longer(local, cell, mode);
                    Err(TxError::WaitsForItself)
                } else {
                    announce(local, cell, mode, self.priority);
                    Ok(None)
                }
            }
        }
    }

    /// Locks an undeclared key in a transaction with declared keys, and enters it as the next slot.
    /// Nobody else who locks the key can hold its lock for long: see [`Tx::key_under`].
    ///
    /// [`Tx::key_under`]: crate::Tx::key_under
    pub(crate) fn lock_under(
        &mut self,
        local: &mut Participant,
        (table, key): (TableId, &[u8]),
        mode: Mode,
        value_len: usize,
    ) -> Result<Slot, TxError> {
        let slot = self.held.len();
        if self.first_key + slot != self.keys.declared().len() {
            // Keys of later transactions of the batch follow.
            self.first_key = self.keys.copy_to_end(self.first_key..self.first_key + slot);
        }
        let index = self.first_key + slot;
        self.keys.push(table, key, mode, value_len);
        let locked =
            self.keys.check(index..index + 1).and_then(|()| self.take_under(local, index, mode));
        if let Err(error) = locked {
            self.keys.pop();
            return Err(error);
        }
        Ok(Slot(slot as u32))
    }

    fn take_under(
        &mut self,
        local: &mut Participant,
        index: usize,
        mode: Mode,
    ) -> Result<(), TxError> {
        let mut backoff = Backoff::new();
        for _ in 0..TRIES_UNDER {
            // Outside of a declared transaction's read section, the lookup opens a read section of
            // its own.
            let enters = !local.in_section;
            if enters {
                local.enter();
            }
            let taken = self.resolve(local, index).map(|cell| {
                let priority = self.priority;
                self.take(local, (cell, local.store.cell(cell)), mode, priority).is_ok()
            });
            if enters {
                local.exit();
            }
            if taken? {
                return Ok(());
            }
            // A worker that reclaims the absent cell holds its lock for a moment.
            backoff.wait();
        }
        Err(TxError::Conflict)
    }

    /// Makes the lock of an undeclared key exclusive.
    pub(crate) fn upgrade(&mut self, local: &Participant, slot: usize) -> Result<(), TxError> {
        let mut backoff = Backoff::new();
        loop {
            let lock = local.store.cell(self.held[slot].cell).lock();
            match lock_word::try_upgrade(lock, self.priority) {
                Ok(()) => {
                    self.held[slot].state = LockState::Exclusive;
                    return Ok(());
                }
                Err(Contended(by)) => {
                    let may_wait = self.may_wait_for(by, &backoff);
                    if !may_wait || local.patience.is_over(backoff.turns()) {
                        lock_word::await_no_longer(lock);
                        return Err(match may_wait {
                            true => TxError::WaitsForItself,
                            false => TxError::Conflict,
                        });
                    }
                    lock_word::await_sharers(lock, self.priority);
                    backoff.wait();
                }
            }
        }
    }

    /// The cell of a key, made if there is none. Call this inside a read section.
    fn resolve(&mut self, local: &mut Participant, index: usize) -> Result<u64, TxError> {
        let declared = self.keys.declared()[index];
        match local.find_loaded(declared.table, self.keys.key(index), declared.hash)? {
            Some(cell) => Ok(cell),
            None => self.add_absent(local, index),
        }
    }

    /// Adds an absent cell for a key: the place of its lock, and of its value to come.
    fn add_absent(&mut self, local: &mut Participant, index: usize) -> Result<u64, TxError> {
        let declared = self.keys.declared()[index];
        let table = local.tables.get(declared.table).expect("resolved").clone();
        let number = {
            let len = declared.value_len as usize;
            match self.new_cell(local, index, len, Kind::Record) {
                // A transaction that only reads or removes the missing key needs no more than a lock.
                Err(_) => self.new_cell(local, index, 0, Kind::Lock)?,
                Ok(number) => number,
            }
        };
        let key = self.keys.key(index);
        let inserted = table.index.insert(
            local.number,
            declared.hash,
            number,
            |cell| local.is_cell_of(cell, key),
            // The key may have been inserted and reclaimed since the cell was made.
            || local.store.cell(number).record().end_delete(table.floor_stamp(declared.hash)),
        );
        match inserted {
            Inserted::New => Ok(number),
            Inserted::Existing(existing) => {
                local.retire_unpublished(number);
                Ok(existing)
            }
            Inserted::Full => {
                local.retire_unpublished(number);
                Err(TxError::IndexFull(declared.table))
            }
        }
    }

    /// Makes a cell for a key that is free and has no value, with room for `value_len` bytes.
    fn new_cell(
        &self,
        local: &mut Participant,
        index: usize,
        value_len: usize,
        kind: Kind,
    ) -> Result<u64, MemoryLimit> {
        let Participant { tables, store, cache, .. } = local;
        let declared = self.keys.declared()[index];
        // If the epoch changes before the commit, a commit or a capture sets the status anew.
        let new = NewCell {
            table: tables.get(declared.table).expect("resolved"),
            hash: declared.hash,
            key: self.keys.key(index),
            value_len,
            kind,
            locked_by: None,
            status: store.rules().first_status(store.driver().now()),
        };
        new.make(store.memory(), cache)
    }

    /// Gives all locks back after a commit or a rollback, and forgets the transaction's keys, writes
    /// and call.
    pub(crate) fn release_all(&mut self, local: &mut Participant) {
        self.locked_version = u64::MAX;
        local.cache.allowance = Allowance::Limit;
        // A plain store releases a lock while nobody else can change the status of the record.
        let claimable = local.store.status_may_change(local.in_section);
        if !self.names.is_empty() {
            self.names.release_all(local.store.lock_table());
        }
        for slot in 0..self.held.len() {
            let held = self.held[slot];
            if !matches!(held.state, LockState::Shared | LockState::Exclusive) {
                continue;
            }
            let cell = local.record(held.place);
            let word = cell.stamp_word();
            if word & ABSENT != 0 {
                self.release_absent(local, slot, word, claimable);
                continue;
            }
            match held.state {
                LockState::Exclusive => capture::release_exclusive(cell.lock(), claimable),
                state => release(cell.lock(), state),
            }
        }
        self.held.clear();
        if !self.slots_by_key.is_empty() || !self.slots_by_cell.is_empty() {
            self.slots_by_key.clear();
            self.slots_by_cell.clear();
        }
        if !self.call.is_empty() {
            self.forget_call();
        }
    }

    /// Gives back the lock of a key without a value, and has its cell reclaimed later. `word` is the
    /// stamp word under the lock.
    #[inline(never)]
    fn release_absent(&mut self, local: &mut Participant, slot: usize, word: u64, claimable: bool) {
        if self.remove_released(local, slot, word) {
            return;
        }
        let held = self.held[slot];
        let cell = local.record(held.place);
        match held.state {
            LockState::Exclusive => capture::release_exclusive(cell.lock(), claimable),
            state => release(cell.lock(), state),
        }
        let table = self.keys.declared()[self.first_key + slot].table;
        let owner = local.store.memory().arena.owner_of(held.cell);
        local.add_absent(owner, table, held.cell);
    }

    /// Removes the cell of a key without a value instead of giving its lock back. True if the cell
    /// was removed. A cell that a log wrote stays, since its deletion must be closed before. A cell
    /// whose lock another transaction shares or awaits stays, too. `word` is the stamp word.
    #[cold]
    fn remove_released(&self, local: &mut Participant, slot: usize, word: u64) -> bool {
        let held = self.held[slot];
        let stamp = Stamp::from_bits(word);
        if !stamp.is_none() || !local.store.may_reuse(local.store.cell(held.cell)) {
            return false;
        }
        let declared = self.keys.declared()[self.first_key + slot];
        let owner = local.store.memory().arena.owner_of(held.cell);
        let table = local.tables.get(declared.table).filter(|table| table.owner == owner);
        let Some(table) = table else {
            // The cell is of a replaced generation, and goes with it.
            return false;
        };
        if local.store.unloaded().must_keep((declared.table, table.generation), declared.hash) {
            return false;
        }
        let lock = local.store.cell(held.cell).lock();
        if held.state == LockState::Shared {
            // Relaxed: a waiting transaction that this load misses finds the cell dead, and makes
            // another cell.
            let awaited = lock_word::is_awaited(lock.load(Relaxed));
            if awaited || lock_word::try_upgrade(lock, self.priority).is_err() {
                return false;
            }
        }
        let key = self.keys.key(self.first_key + slot);
        let gone = local.remove_cell(table, (declared.hash, key), held.cell, stamp);
        debug_assert!(gone || table.ordered.is_some(), "a locked cell is in the index");
        lock_word::release_exclusive(lock);
        match gone {
            true => local.reclaim.retire_cell(owner, held.cell),
            // Another transaction has read the gap below the key.
            false => local.add_absent(owner, declared.table, held.cell),
        }
        true
    }
}

/// Whether the lock that a thread waits for is held for longer than a moment.
fn is_held_long(backoff: &Backoff) -> bool {
    Patience::Moment.is_over(backoff.turns())
}

fn release(lock: &AtomicU64, state: LockState) {
    match state {
        LockState::Shared => lock_word::release_shared(lock),
        LockState::Exclusive => lock_word::release_exclusive(lock),
        _ => {}
    }
}

#[inline]
fn lock_cell(cell: Cell<'_>, mode: Mode, priority: Priority) -> Result<(LockState, u64), Refused> {
    let (locked, state) = match mode {
        Mode::Write => (lock_word::try_exclusive(cell.lock(), priority), LockState::Exclusive),
        Mode::Read => (lock_word::try_shared(cell.lock(), priority), LockState::Shared),
    };
    locked.map_err(|Contended(by)| Refused::Held(by))?;
    let stamp_word = cell.stamp_word();
    if stamp_word & DEAD != 0 {
        release(cell.lock(), state);
        return Err(Refused::Gone);
    }
    Ok((state, stamp_word))
}
