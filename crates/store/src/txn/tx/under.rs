//! Keys under a key: locked, or read, on the way.

use stillpoint_txn::{Mode, Slot, TableId, TxError};

use crate::txn::LockState;
use crate::txn::tx::Tx;

impl Tx<'_> {
    /// Locks a key that only holders of the lock of `parent` ever lock, and returns its slot. The
    /// lock is exclusive if that of `parent` is. So a transaction with declared keys may find such
    /// keys on the way: no cycle of waits goes through them.
    ///
    /// A new record has room for a value of `value_len` bytes.
    ///
    /// # Errors
    /// [`TxError::NotLocked`] if `parent` was read without its lock: pass it on, or call
    /// [`read_under`](Self::read_under). [`TxError::NotDeclared`] if the table is ordered and the transaction
    /// has declared keys.
    /// [`TxError::NotLoaded`] if the record is on the disk and the transaction has declared keys: pass it
    /// on. Then the transaction gives its locks back, loads the record, and runs again. Else as for
    /// [`key`](Self::key).
    ///
    /// # Panics
    /// If the transaction has no slot `parent`.
    pub fn key_under(
        &mut self,
        parent: Slot,
        table: TableId,
        key: &[u8],
        value_len: usize,
    ) -> Result<Slot, TxError> {
        let mode = match self.transaction.held[self.base(parent)].state {
            LockState::Exclusive => Mode::Write,
            LockState::Shared => Mode::Read,
            _ => return Err(TxError::NotLocked),
        };
        if !self.transaction.is_declared() {
            return self.key(table, key, mode);
        }
        if let Some(slot) = self.transaction.slot_of_key(table, key) {
            return Ok(Slot(slot as u32));
        }
        let tables = &self.local.tables;
        if tables.has_ordered && tables.get(table).is_some_and(|table| table.ordered.is_some()) {
            return Err(TxError::NotDeclared);
        }
        self.transaction.lock_under(self.local, (table, key), mode, value_len)
    }

    /// Appends the value of a key under `parent` to `out`, where [`key_under`](Self::key_under) would lock
    /// the key. Returns whether there is a value. If `parent` was read without its lock, so is this key. Then
    /// the value belongs to what was read of `parent`, as long as every change of such a key changes its
    /// parent, too.
    ///
    /// # Errors
    /// [`TxError::NotLocked`] if `parent` has changed since it was read without its lock: pass it on. Else as
    /// for [`key_under`](Self::key_under).
    ///
    /// # Panics
    /// If the transaction has no slot `parent`.
    pub fn read_under(
        &mut self,
        parent: Slot,
        table: TableId,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool, TxError> {
        let at = self.base(parent);
        if matches!(self.transaction.held[at].state, LockState::Snapshot(Some(_))) {
            return self.transaction.snapshot_under(self.local, at, (table, key), out);
        }
        let slot = self.key_under(parent, table, key, 0)?;
        let Some(value) = self.value(slot) else { return Ok(false) };
        value.copy_to(out);
        Ok(true)
    }
}
