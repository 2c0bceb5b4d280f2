//! A running transaction in its body's view.

mod under;

use stillpoint_format::{Label, Stamp};
use stillpoint_txn::{Discipline, Mode, SCAN_MAX, Slot, TableId, TxError};

use crate::memory::arena::Allowance;
use crate::memory::blob::{Blob, VALUE_BYTES_MAX};
use crate::memory::cell::INLINE_VALUE_BYTES_MAX;
use crate::memory::stamp::ABSENT;
use crate::memory::value::ValueRef;
use crate::participant::Participant;
use crate::txn::pending::{NONE, OpKind};
use crate::txn::{LockState, Transaction};

/// Bytes of private writes that do not count against the memory limit.
const UNCOUNTED_BYTES: usize = 1 << 20;
/// Values up to this length, in bytes, are written as a whole after many patches. So a transaction
/// that patches and reads one key again and again takes linear time.
const REWRITTEN_BYTES: usize = 4096;

/// A running transaction. Reads see the transaction's own writes; nobody else sees the writes
/// before the commit.
#[derive(Debug)]
pub struct Tx<'w> {
    transaction: &'w mut Transaction,
    local: &'w mut Participant,
}

impl<'w> Tx<'w> {
    pub(crate) fn new(transaction: &'w mut Transaction, local: &'w mut Participant) -> Self {
        Self { transaction, local }
    }

    /// The transaction and its worker's participation.
    pub(crate) fn parts(&mut self) -> (&mut Transaction, &mut Participant) {
        (self.transaction, self.local)
    }

    /// The transaction.
    pub(crate) fn transaction(&self) -> &Transaction {
        self.transaction
    }

    /// Reborrows the transaction.
    #[inline]
    pub fn reborrow(&mut self) -> Tx<'_> {
        Tx { transaction: self.transaction, local: self.local }
    }

    /// Notes that the transaction holds locks outside of the store. The holder of the store's
    /// permit may wait for these locks, so the transaction goes on meanwhile.
    #[inline]
    pub fn note_locks(&mut self) {
        self.transaction.holds_elsewhere = true;
    }

    /// The call that the transaction is: bytes that the log of the commit gets beside the writes.
    /// The caller encodes these bytes; empty for none.
    pub fn call(&mut self) -> &mut Vec<u8> {
        &mut self.transaction.call
    }

    /// Lets this transaction use memory beyond the limit, from here to its end. The permission is
    /// for small writes that must go on at full memory, such as an expiry or a rename. Such writes
    /// are refused only when the reserve is used up, too. The reserve is a sixteenth of the limit,
    /// but at least 16 MiB and at most 1 GiB.
    pub fn use_reserve(&mut self) {
        self.local.cache.allowance = Allowance::Reserve;
    }

    /// Refuses `bytes` more bytes of values if it is already clear that they do not fit. Ask before
    /// you build a long value.
    ///
    /// # Errors
    /// [`TxError::Memory`]: the store, the writes of this transaction and those bytes exceed the
    /// limit.
    pub fn check_room(&self, bytes: usize) -> Result<(), TxError> {
        let asked = self.transaction.pending.held_bytes().saturating_add(bytes);
        let memory = self.local.store.memory();
        Ok(memory.arena.check_room(asked, self.local.cache.allowance)?)
    }

    /// Counts the private writes, from one mebibyte on, against the memory limit. `bytes` replace
    /// those of `at`.
    #[inline]
    fn check_pending(&self, at: usize, bytes: usize) -> Result<(), TxError> {
        if self.transaction.pending.held_bytes() + bytes <= UNCOUNTED_BYTES {
            return Ok(());
        }
        let replaced = self.transaction.pending.room_of(self.transaction.held[at].pending);
        self.check_room(bytes.saturating_sub(replaced))
    }

    // ── keys by slot: declared ones, and those found with `key` ──

    /// The value of a declared key.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn value(&mut self, slot: Slot) -> Option<ValueRef<'_>> {
        let at = self.base(slot);
        let transaction = &mut *self.transaction;
        let held = &transaction.held[at];
        if let LockState::Snapshot(tag) = held.state {
            let deadline = transaction.snapshot_deadline;
            let label = |tag| Label { tag, deadline };
            return tag.map(|tag| ValueRef::from_bytes(label(tag), &transaction.scratch));
        }
        let value = self.local.record(held.place).value();
        let Some(op) = transaction.pending.op(held.pending) else {
            return value;
        };
        match op.kind {
            OpKind::Splice => unreachable!("a splice follows a put"),
            OpKind::Put => {
                let label = transaction.pending.label(op);
                Some(ValueRef::from_bytes(label, transaction.pending.bytes(op)))
            }
            OpKind::Share => {
                let blob = transaction.pending.shared(op)?;
                let label = transaction.pending.label(op);
                Some(ValueRef::large(self.local.store.memory(), blob, label))
            }
            OpKind::Delete => None,
            OpKind::Patch | OpKind::Until => {
                let mut base = value.expect("only a value is patched");
                if op.kind == OpKind::Until {
                    base = base.until(transaction.pending.deadline(op));
                    if op.next == NONE {
                        return Some(base);
                    }
                }
                let label = base.label();
                transaction.scratch.clear();
                base.copy_to(&mut transaction.scratch);
                transaction.pending.apply(held.pending, &mut transaction.scratch);
                Some(ValueRef::from_bytes(label, &transaction.scratch))
            }
        }
    }

    /// Stamp of the last writer of the key, or of its removal, before this transaction.
    pub fn stamp(&self, slot: Slot) -> Stamp {
        Stamp::from_bits(self.transaction.held[self.base(slot)].stamp_word)
    }

    /// The hash of the key and its table, keyed by the store's seed.
    #[inline]
    pub fn key_hash(&self, slot: Slot) -> u64 {
        self.transaction.keys.declared()[self.transaction.first_key + slot.0 as usize].hash
    }

    /// The access mark of the key: what was [set](Self::set_access) last, 0 for nothing. `None` if the
    /// store [keeps](crate::Store::keep_accesses) no marks, or has nothing of the key.
    pub fn access(&self, slot: Slot) -> Option<u32> {
        let cell = self.transaction.held[self.base(slot)].cell;
        self.local.store.memory().arena.access(cell).filter(|_| cell != 0)
    }

    /// Bytes of memory that the record of the key takes before this transaction. Its share of the index
    /// is not among them. Gives 0 if the store has nothing of the key.
    pub fn taken_bytes(&self, slot: Slot) -> usize {
        match self.transaction.held[self.base(slot)].cell {
            0 => 0,
            cell => self.local.store.cell(cell).taken_bytes(),
        }
    }

    /// Sets the access mark of the key, at once and whatever becomes of the transaction. Marks are no
    /// data: no log has them, and another thread's mark may take the place of this one. Call this inside
    /// of the transaction's body.
    pub fn set_access(&mut self, slot: Slot, mark: u32) {
        let cell = self.transaction.held[self.base(slot)].cell;
        if cell != 0 {
            self.local.store.memory().arena.set_access(cell, mark);
        }
    }

    /// Whether the key had a value before this transaction.
    pub fn existed(&self, slot: Slot) -> bool {
        self.transaction.held[self.base(slot)].stamp_word & ABSENT == 0
    }

    /// Gives the key a value, with tag 0.
    ///
    /// # Errors
    /// As [`put_slot_tagged`](Self::put_slot_tagged).
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn put_slot(&mut self, slot: Slot, value: &[u8]) -> Result<(), TxError> {
        self.put_slot_tagged(slot, 0, value)
    }

    /// Gives the key a value with a tag. A tag is a byte for the program's own use, such as a type.
    /// The tag is stored with the value, and [`ValueRef::tag`] reads it.
    ///
    /// # Errors
    /// [`TxError::ValueTooLong`]; [`TxError::Memory`] if what this transaction writes does not fit;
    /// [`TxError::DeclaredForReading`] if the key is not locked for writing.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn put_slot_tagged(&mut self, slot: Slot, tag: u8, value: &[u8]) -> Result<(), TxError> {
        self.put_slot_labelled(slot, Label::from(tag), value)
    }

    /// Gives the key a value with a tag and a deadline. A deadline is a number for the program's own use,
    /// such as the time at which a record expires, 0 for none. It is stored with the value, and
    /// [`ValueRef::deadline`] reads it. A later put without a deadline takes it away.
    ///
    /// # Errors
    /// As [`put_slot_tagged`](Self::put_slot_tagged).
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn put_slot_labelled(
        &mut self,
        slot: Slot,
        label: Label,
        value: &[u8],
    ) -> Result<(), TxError> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(TxError::ValueTooLong { len: value.len() });
        }
        let at = self.writable(slot)?;
        self.check_pending(at, value.len())?;
        self.transaction.clear_pending(at);
        let op = self.transaction.pending.add_put(label, value);
        self.transaction.set_pending(at, op);
        Ok(())
    }

    /// Gives the key another deadline, 0 for none. The value stays, and the journal gets the deadline
    /// alone. A large value shares its blocks.
    ///
    /// # Errors
    /// [`TxError::PatchOutsideValue`] if the key has no value; else as
    /// [`put_slot_tagged`](Self::put_slot_tagged).
    ///
    /// # Panics
    /// If the transaction has no such slot.
    pub fn set_slot_deadline(&mut self, slot: Slot, deadline: u64) -> Result<(), TxError> {
        let at = self.writable(slot)?;
        let missing = TxError::PatchOutsideValue { offset: 0, len: 0 };
        let held = self.transaction.held[at];
        let pending = &mut self.transaction.pending;
        let kind = pending.op(held.pending).map(|op| op.kind);
        match kind {
            Some(OpKind::Delete) => return Err(missing),
            Some(OpKind::Put | OpKind::Splice | OpKind::Share) => {
                pending.set_deadline(held.pending, deadline);
                pending.forget_splices(held.pending);
                return Ok(());
            }
            Some(OpKind::Until | OpKind::Patch) | None => {}
        }
        let record = self.local.record(held.place);
        let len = pending.len_after(held.pending, record.value_len().ok_or(missing)?);
        if !record.can_have_until(len, deadline) {
            // A small value moves to a larger cell.
            let value = self.value(slot).expect("it has a length");
            let (label, whole) = (Label { deadline, ..value.label() }, value.to_vec());
            return self.put_slot_labelled(slot, label, &whole);
        }
        if kind == Some(OpKind::Until) {
            pending.set_deadline(held.pending, deadline);
        } else {
            let op = pending.add_deadline(deadline, held.pending);
            self.transaction.set_pending(at, op);
        }
        Ok(())
    }

    /// Overwrites a range of the key's value. The range must begin inside the value or at its end,
    /// and may make the value longer. The journal gets the range, not the value.
    ///
    /// # Errors
    /// [`TxError::PatchOutsideValue`] if the key has no value or the value ends before `offset`;
    /// else as [`put_slot_tagged`](Self::put_slot_tagged).
    #[inline]
    pub fn patch_slot(&mut self, slot: Slot, offset: usize, bytes: &[u8]) -> Result<(), TxError> {
        // The first patch of a value in its cell. The rest is apart, so that a caller with a patch of
        // constant length keeps that constant.
        let at = self.writable(slot)?;
        let transaction = &mut *self.transaction;
        let held = &mut transaction.held[at];
        if held.pending == NONE && transaction.pending.held_bytes() + bytes.len() <= UNCOUNTED_BYTES
        {
            let cell = self.local.record(held.place);
            let fits = bytes.len() <= INLINE_VALUE_BYTES_MAX
                && offset <= INLINE_VALUE_BYTES_MAX
                && offset + bytes.len() <= cell.patch_capacity();
            if fits && cell.value_len().is_some_and(|len| offset <= len) {
                held.pending = transaction.pending.add(OpKind::Patch, 0, offset, bytes);
                return Ok(());
            }
        }
        self.patch_any(slot, offset, bytes)
    }

    /// As [`patch_slot`](Self::patch_slot), for any value with any patches.
    #[inline(never)]
    fn patch_any(&mut self, slot: Slot, offset: usize, bytes: &[u8]) -> Result<(), TxError> {
        let at = self.writable(slot)?;
        if self.transaction.pending.held_bytes() + bytes.len() > UNCOUNTED_BYTES {
            self.check_room(bytes.len())?;
        }
        let transaction = &mut *self.transaction;
        let held = transaction.held[at];
        let (first, kind, put_len) = match transaction.pending.op(held.pending) {
            Some(op) => (held.pending, Some(op.kind), transaction.pending.len_of(op)),
            None => (NONE, None, 0),
        };
        let cell = self.local.record(held.place);
        let len = match kind {
            Some(OpKind::Put | OpKind::Splice | OpKind::Share) => put_len,
            Some(OpKind::Delete) => return Err(TxError::PatchOutsideValue { offset, len: 0 }),
            Some(OpKind::Patch | OpKind::Until) | None => {
                let len = cell.value_len().ok_or(TxError::PatchOutsideValue { offset, len: 0 })?;
                transaction.pending.len_after(first, len)
            }
        };
        if offset > len {
            return Err(TxError::PatchOutsideValue { offset, len });
        }
        let end = offset + bytes.len();
        if end > VALUE_BYTES_MAX {
            return Err(TxError::ValueTooLong { len: end });
        }
        if kind == Some(OpKind::Share) {
            return self.put_patched(slot, offset, bytes);
        }
        if kind == Some(OpKind::Put) {
            transaction.pending.patch_put(first, offset, bytes);
            let removed = bytes.len().min(len - offset);
            transaction.pending.note_splice(first, (offset, removed, bytes), false);
            return Ok(());
        }
        let is_long = first != NONE && len <= REWRITTEN_BYTES && transaction.pending.is_long(first);
        if is_long {
            return self.put_patched(slot, offset, bytes);
        }
        let has_room = match kind {
            Some(OpKind::Until) => {
                let deadline =
                    transaction.pending.op(first).map(|op| transaction.pending.deadline(op));
                cell.can_have_until(end, deadline.unwrap_or(0))
            }
            _ => cell.can_patch_to(end),
        };
        if !has_room {
            return self.splice_slot(slot, offset, bytes.len().min(len - offset), bytes);
        }
        if first != NONE && transaction.pending.merge(first, offset, bytes) {
            return Ok(());
        }
        let op = transaction.pending.add(OpKind::Patch, 0, offset, bytes);
        match first {
            NONE => transaction.set_pending(at, op),
            first => transaction.pending.chain(first, op),
        }
        Ok(())
    }

    /// Replaces `removed` bytes of the key's value, from `offset` on, by `bytes`. The journal gets
    /// the splice and not the value, unless the value is shorter than all its splices.
    ///
    /// # Errors
    /// [`TxError::PatchOutsideValue`] if the key has no value or the value ends before the replaced
    /// bytes do; else as [`put_slot_tagged`](Self::put_slot_tagged).
    pub fn splice_slot(
        &mut self,
        slot: Slot,
        offset: usize,
        removed: usize,
        bytes: &[u8],
    ) -> Result<(), TxError> {
        let at = self.writable(slot)?;
        let first = self.transaction.held[at].pending;
        let is_put = self.transaction.pending.op(first).is_some_and(|op| op.kind == OpKind::Put);
        let Some(value) = self.value(slot) else {
            return Err(TxError::PatchOutsideValue { offset, len: 0 });
        };
        let (label, len) = (value.label(), value.len());
        let whole = if is_put { Vec::new() } else { value.to_vec() };
        if removed > len || offset > len - removed {
            return Err(TxError::PatchOutsideValue { offset: offset + removed, len });
        }
        if len - removed + bytes.len() > VALUE_BYTES_MAX {
            return Err(TxError::ValueTooLong { len: len - removed + bytes.len() });
        }
        let mut is_first = false;
        if !is_put {
            is_first = self.put_for_splices(slot, at, (label, &whole))?;
        }
        if bytes.len() > removed {
            self.check_pending(at, len - removed + bytes.len())?;
        }
        let put = self.transaction.held[at].pending;
        let pending = &mut self.transaction.pending;
        pending.splice_put(put, offset, removed, bytes);
        pending.note_splice(put, (offset, removed, bytes), is_first);
        Ok(())
    }

    /// Puts the value that a key has in this transaction, whose patches become splices. Returns
    /// whether there were none. After a change of the deadline the log gets the whole value, as it does
    /// if the value is that of another key.
    fn put_for_splices(
        &mut self,
        slot: Slot,
        at: usize,
        (label, whole): (Label, &[u8]),
    ) -> Result<bool, TxError> {
        let first = self.transaction.held[at].pending;
        let logs_value = |kind| matches!(kind, OpKind::Until | OpKind::Share);
        if self.transaction.pending.op(first).is_some_and(|op| logs_value(op.kind)) {
            return self.put_slot_labelled(slot, label, whole).map(|()| false);
        }
        let mut len = self.local.record(self.transaction.held[at].place).value_len().unwrap_or(0);
        let mut patches: Vec<(usize, usize, Vec<u8>)> = Vec::new();
        let pending = &self.transaction.pending;
        for op in std::iter::successors(pending.op(first), |op| pending.op(op.next)) {
            let (offset, bytes) = (op.offset as usize, pending.bytes(op));
            patches.push((offset, bytes.len().min(len - offset), bytes.to_vec()));
            len = len.max(offset + bytes.len());
        }
        self.put_slot_labelled(slot, label, whole)?;
        let put = self.transaction.held[at].pending;
        for (i, (offset, removed, bytes)) in patches.iter().enumerate() {
            self.transaction.pending.note_splice(put, (*offset, *removed, bytes), i == 0);
        }
        Ok(patches.is_empty())
    }

    /// Writes the value as a whole, since it has many patches.
    fn put_patched(&mut self, slot: Slot, offset: usize, bytes: &[u8]) -> Result<(), TxError> {
        let value = self.value(slot).expect("patched values exist");
        let (label, mut whole) = (value.label(), value.to_vec());
        whole.resize(whole.len().max(offset + bytes.len()), 0);
        whole[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.put_slot_labelled(slot, label, &whole)
    }

    /// Whether key `to` can [share](Self::share_slot) the value of key `from`: a large one that the
    /// transaction has not changed, of the same table.
    ///
    /// # Panics
    /// If the transaction has no such slots.
    pub fn can_share_slot(&self, from: Slot, to: Slot) -> bool {
        let (source, target) = (self.base(from), self.base(to));
        source != target && self.shared_blob(source, target).is_some()
    }

    /// The blocks of the value at `source`, if the record at `target` can share them.
    fn shared_blob(&self, source: usize, target: usize) -> Option<Blob> {
        let (from, to) = (self.transaction.held[source], self.transaction.held[target]);
        // The lock keeps the blocks where they are until the commit has a reference of its own.
        if from.pending != NONE || !from.is_locked() {
            return None;
        }
        let blob = self.local.record(from.place).blob()?;
        let arena = &self.local.store.memory().arena;
        (arena.owner_of(blob.table) == arena.owner_of(to.cell)).then_some(blob)
    }

    /// Gives key `to` the value of key `from` and this label. Both share the blocks of the value. Returns
    /// false if they [cannot](Self::can_share_slot): then nothing has changed. The journal gets the value.
    ///
    /// # Errors
    /// [`TxError::DeclaredForReading`] if `to` is not locked for writing.
    ///
    /// # Panics
    /// If the transaction has no such slots.
    pub fn share_slot(&mut self, from: Slot, to: Slot, label: Label) -> Result<bool, TxError> {
        let (source, target) = (self.base(from), self.writable(to)?);
        let blob = self.shared_blob(source, target).filter(|_| source != target);
        let Some(blob) = blob else { return Ok(false) };
        self.transaction.clear_pending(target);
        let op = self.transaction.pending.add_share(label, blob);
        self.transaction.set_pending(target, op);
        Ok(true)
    }

    /// Removes the key's value. Returns whether the key had a value.
    ///
    /// # Errors
    /// [`TxError::DeclaredForReading`] if the key is not locked for writing.
    pub fn delete_slot(&mut self, slot: Slot) -> Result<bool, TxError> {
        let at = self.writable(slot)?;
        let existed = self.value(slot).is_some();
        let transaction = &mut *self.transaction;
        transaction.clear_pending(at);
        // An absent key has only this transaction's own write to remove.
        if !self_absent(transaction.held[at].stamp_word) {
            let op = transaction.pending.add(OpKind::Delete, 0, 0, &[]);
            transaction.set_pending(at, op);
        }
        Ok(existed)
    }

    /// Whether the transaction has written anything so far.
    pub fn has_written(&self) -> bool {
        self.transaction.held.iter().any(|held| held.pending != NONE)
    }

    /// Forgets everything that the transaction has written. Its locks stay.
    pub fn discard_writes(&mut self) {
        self.transaction.held.iter_mut().for_each(|held| held.pending = NONE);
        self.transaction.pending.clear();
    }

    // ── keys found on the way ──

    /// Locks a key and returns its slot. A transaction with declared keys can lock only these.
    ///
    /// # Errors
    /// [`TxError::NotDeclared`] or [`TxError::DeclaredForReading`] in a transaction with declared
    /// keys. [`TxError::Conflict`], which the body must return: the transaction is tried again.
    /// [`TxError::WaitsForItself`], after which the transaction cannot commit.
    /// [`TxError::NoSuchTable`], [`TxError::KeyTooLong`], [`TxError::KeysTooLong`];
    /// [`TxError::Memory`] and [`TxError::IndexFull`] if a missing key finds no room.
    pub fn key(&mut self, table: TableId, key: &[u8], mode: Mode) -> Result<Slot, TxError> {
        let transaction = &mut *self.transaction;
        if let Some(slot) = transaction.slot_of_key(table, key) {
            let at = self.base(Slot(slot as u32));
            if mode == Mode::Write && self.transaction.held[at].state == LockState::Shared {
                if self.transaction.is_declared() {
                    return Err(TxError::DeclaredForReading { slot: slot as u32 });
                }
                let upgraded = self.transaction.upgrade(self.local, at);
                if let Err(error) = upgraded.and_then(|()| self.enter_if_ordered(at)) {
                    self.transaction.note_end(&error);
                    self.transaction.remembered.add(table, key, mode);
                    return Err(error);
                }
                self.transaction.keys.declared_mut()[slot].mode = Mode::Write;
            }
            return Ok(Slot(slot as u32));
        }
        if transaction.is_declared() {
            return Err(TxError::NotDeclared);
        }
        let slot = transaction.keys.push(table, key, mode, 0);
        let index = slot.0 as usize;
        let locked = transaction
            .keys
            .check(index..index + 1)
            .and_then(|()| transaction.lock_undeclared(self.local, index));
        if let Err(error) = locked {
            transaction.keys.pop();
            if ends_run(&error) {
                transaction.has_conflicted = true;
                transaction.remembered.add(table, key, mode);
            }
            // The record may be there when the body asks again.
            transaction.is_unfit |= matches!(error, TxError::NotLoaded | TxError::Unreadable(_));
            return Err(error);
        }
        if mode == Mode::Write
            && let Err(error) = self.enter_if_ordered(index)
        {
            self.transaction.note_end(&error);
            return Err(error);
        }
        Ok(slot)
    }

    /// Prepares a slot that is locked exclusively for changes of an ordered table.
    #[inline]
    fn enter_if_ordered(&mut self, slot: usize) -> Result<(), TxError> {
        if !self.local.tables.has_ordered {
            return Ok(());
        }
        self.transaction.enter_undeclared(self.local, slot)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As [`key`](Self::key).
    pub fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<ValueRef<'_>>, TxError> {
        let slot = self.key(table, key, Mode::Read)?;
        Ok(self.value(slot))
    }

    /// Gives a key a value, with tag 0.
    ///
    /// # Errors
    /// As [`put_tagged`](Self::put_tagged).
    #[inline]
    pub fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), TxError> {
        self.put_tagged(table, key, 0, value)
    }

    /// Gives a key a value with a tag; see [`put_slot_tagged`](Self::put_slot_tagged).
    ///
    /// # Errors
    /// [`TxError::ValueTooLong`]; those of [`key`](Self::key).
    pub fn put_tagged(
        &mut self,
        table: TableId,
        key: &[u8],
        tag: u8,
        value: &[u8],
    ) -> Result<(), TxError> {
        let slot = self.key(table, key, Mode::Write)?;
        self.put_slot_tagged(slot, tag, value)
    }

    /// Gives a key a value, with tag 0 and a deadline; see
    /// [`put_slot_labelled`](Self::put_slot_labelled).
    ///
    /// # Errors
    /// [`TxError::ValueTooLong`]; those of [`key`](Self::key).
    pub fn put_until(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        deadline: u64,
    ) -> Result<(), TxError> {
        let slot = self.key(table, key, Mode::Write)?;
        self.put_slot_labelled(slot, Label { tag: 0, deadline }, value)
    }

    /// Overwrites a range of a key's value; see [`patch_slot`](Self::patch_slot).
    ///
    /// # Errors
    /// As [`key`](Self::key) and [`patch_slot`](Self::patch_slot).
    pub fn patch(
        &mut self,
        table: TableId,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), TxError> {
        let slot = self.key(table, key, Mode::Write)?;
        self.patch_slot(slot, offset, bytes)
    }

    /// Removes a key's value. Returns whether the key had a value.
    ///
    /// # Errors
    /// As [`key`](Self::key).
    pub fn delete(&mut self, table: TableId, key: &[u8]) -> Result<bool, TxError> {
        let slot = self.key(table, key, Mode::Write)?;
        self.delete_slot(slot)
    }

    /// The slot that holds the lock of the record.
    #[inline]
    fn base(&self, slot: Slot) -> usize {
        match self.transaction.held[slot.0 as usize].state {
            LockState::Alias(base) => base as usize,
            _ => slot.0 as usize,
        }
    }

    #[inline]
    fn writable(&self, slot: Slot) -> Result<usize, TxError> {
        let at = slot.0 as usize;
        match self.transaction.held[at].state {
            LockState::Exclusive => Ok(at),
            LockState::Alias(base) if self.is_exclusive(base as usize) => Ok(base as usize),
            _ => Err(TxError::DeclaredForReading { slot: slot.0 }),
        }
    }

    fn is_exclusive(&self, at: usize) -> bool {
        matches!(self.transaction.held[at].state, LockState::Exclusive)
    }
}

/// Whether a run that has met this error when it locked a key must not commit. A body that goes on has
/// seen and written a part of its keys only.
fn ends_run(error: &TxError) -> bool {
    matches!(error, TxError::Conflict | TxError::WaitsForItself)
}

impl Transaction {
    /// Notes an error after which the run must not commit: a key is locked and not prepared, or a range
    /// was read in part.
    pub(crate) fn note_end(&mut self, error: &TxError) {
        // After another error a further run would meet the same one.
        self.has_conflicted |= ends_run(error);
        self.is_unfit |= !ends_run(error);
    }

    /// Refuses the commit of a run that has met such an error.
    ///
    /// # Errors
    /// [`TxError::Conflict`], after which the transaction is tried again, or [`TxError::Abandoned`].
    #[inline]
    pub(crate) fn check_fit(&self) -> Result<(), TxError> {
        if self.has_conflicted {
            return Err(TxError::Conflict);
        }
        if self.is_unfit {
            return Err(TxError::abandon(
                "a key or a range was refused: return that error from the body",
            ));
        }
        Ok(())
    }
}

fn self_absent(stamp_word: u64) -> bool {
    stamp_word & ABSENT != 0
}

impl Transaction {
    fn is_declared(&self) -> bool {
        self.discipline == Discipline::Declared
    }

    #[inline]
    fn set_pending(&mut self, slot: usize, op: u32) {
        self.held[slot].pending = op;
    }

    #[inline]
    fn clear_pending(&mut self, slot: usize) {
        let first = std::mem::replace(&mut self.held[slot].pending, NONE);
        if first != NONE {
            self.pending.discard(first);
        }
    }

    pub(crate) fn slot_of_key(&mut self, table: TableId, key: &[u8]) -> Option<usize> {
        let hash = self.keys.hash(table, key);
        let Self { keys, held, first_key, slots_by_key, .. } = self;
        let hash_of = |slot: usize| keys.declared()[*first_key + slot].hash;
        let is_it = |slot: usize| {
            let declared = &keys.declared()[*first_key + slot];
            declared.table == table && keys.key(*first_key + slot) == key
        };
        if held.len() <= SCAN_MAX {
            return (0..held.len()).find(|&slot| hash_of(slot) == hash && is_it(slot));
        }
        while slots_by_key.covered() < held.len() {
            slots_by_key.cover(Some(hash_of(slots_by_key.covered())), hash_of);
        }
        slots_by_key.find(hash, |slot| hash_of(slot) == hash && is_it(slot))
    }
}
