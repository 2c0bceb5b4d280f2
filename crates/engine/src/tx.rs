//! A running transaction, as its body sees it, whatever kinds of tables it touches.

use stillpoint_store::{Mode, Slot, Stamp, TableId, TxError, ValueRef};

/// A running transaction. Reads see its own writes; nobody else sees them before it commits.
#[derive(Debug)]
pub struct Tx<'t> {
    memory: stillpoint_store::Tx<'t>,
}

impl<'t> Tx<'t> {
    #[inline]
    pub(crate) fn new(memory: stillpoint_store::Tx<'t>) -> Self {
        Self { memory }
    }

    /// Lets this transaction hold memory beyond the limit, from here to its end. For small writes
    /// that must go on at full memory, such as those that make room later: a time to live, a
    /// rename. They are refused only when the reserve is used up, too: a sixteenth of the limit,
    /// but at least 16 MiB and at most 1 GiB.
    pub fn use_reserve(&mut self) {
        self.memory.use_reserve();
    }

    /// Refuses `bytes` more bytes of values if this transaction, before it has written them, can tell
    /// that they do not fit. Ask before you build a long value.
    ///
    /// # Errors
    /// [`TxError::Memory`]: the store, the writes of this transaction and those bytes exceed the
    /// limit.
    pub fn check_room(&self, bytes: usize) -> Result<(), TxError> {
        self.memory.check_room(bytes)
    }

    // ── keys by slot: declared ones, and those found with `key` ──

    /// The value of a declared key.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn value(&mut self, slot: Slot) -> Option<ValueRef<'_>> {
        self.memory.value(slot)
    }

    /// Who wrote the key's value (or removed it) last, before this transaction.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn stamp(&self, slot: Slot) -> Stamp {
        self.memory.stamp(slot)
    }

    /// The hash of the key and its table, keyed by the store's seed.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn key_hash(&self, slot: Slot) -> u64 {
        self.memory.key_hash(slot)
    }

    /// True if the key had a value before this transaction.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn existed(&self, slot: Slot) -> bool {
        self.memory.existed(slot)
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

    /// Gives the key a value with a tag: a byte for the program's own use, such as a type, which is
    /// stored beside the value and read by [`ValueRef::tag`].
    ///
    /// # Errors
    /// [`TxError::ValueTooLong`]; [`TxError::Memory`] if what this transaction writes does not fit;
    /// [`TxError::DeclaredForReading`] if the key is not locked for writing.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn put_slot_tagged(&mut self, slot: Slot, tag: u8, value: &[u8]) -> Result<(), TxError> {
        self.memory.put_slot_tagged(slot, tag, value)
    }

    /// Overwrites a range of the key's value. It must begin inside the value or at its end; what
    /// reaches beyond the end makes the value longer. The journal gets the range, not the value.
    ///
    /// # Errors
    /// [`TxError::PatchOutsideValue`] if the key has no value or the value ends before `offset`;
    /// else as [`put_slot_tagged`](Self::put_slot_tagged).
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn patch_slot(&mut self, slot: Slot, offset: usize, bytes: &[u8]) -> Result<(), TxError> {
        self.memory.patch_slot(slot, offset, bytes)
    }

    /// Removes the key's value; true if it had one.
    ///
    /// # Errors
    /// [`TxError::DeclaredForReading`] if the key is not locked for writing.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn delete_slot(&mut self, slot: Slot) -> Result<bool, TxError> {
        self.memory.delete_slot(slot)
    }

    // ── keys found on the way ──

    /// Locks a key and gives its slot. In a transaction with declared keys, only a declared one.
    ///
    /// # Errors
    /// [`TxError::NotDeclared`] or [`TxError::DeclaredForReading`] in a transaction with declared
    /// keys. [`TxError::Conflict`], which is to be passed on: the transaction is tried again.
    /// [`TxError::NoSuchTable`], [`TxError::KeyTooLong`], [`TxError::KeysTooLong`];
    /// [`TxError::Memory`] and [`TxError::IndexFull`] if a missing key finds no room.
    #[inline]
    pub fn key(&mut self, table: TableId, key: &[u8], mode: Mode) -> Result<Slot, TxError> {
        self.memory.key(table, key, mode)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As [`key`](Self::key).
    #[inline]
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
    #[inline]
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

    /// Overwrites a range of a key's value; see [`patch_slot`](Self::patch_slot).
    ///
    /// # Errors
    /// As [`key`](Self::key) and [`patch_slot`](Self::patch_slot).
    #[inline]
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

    /// Removes a key's value; true if it had one.
    ///
    /// # Errors
    /// As [`key`](Self::key).
    #[inline]
    pub fn delete(&mut self, table: TableId, key: &[u8]) -> Result<bool, TxError> {
        let slot = self.key(table, key, Mode::Write)?;
        self.delete_slot(slot)
    }
}
