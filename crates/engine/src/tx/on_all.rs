//! The slow path of a transaction on tables of any kind.

use stillpoint_store::{Mode, Slot, TableId, TxError, ValueRef};
use stillpoint_txn::KindPart;

use super::Tx;
use crate::kinds::{KeyLocation, Parts};

impl Tx<'_> {
    /// The location of a key: its slot in the memory store, or its part and its slot there.
    pub(super) fn place(&self, slot: Slot) -> KeyLocation {
        match &self.parts {
            None => KeyLocation::Memory(slot),
            Some(parts) => parts.place(slot),
        }
    }

    /// Notes a write to a table in memory, which no savepoint takes back.
    #[inline]
    pub(super) fn note_memory_write(&mut self) {
        if let Some(parts) = &mut self.parts {
            parts.note_memory_write();
        }
    }

    /// Name of the kind of a slot's table.
    pub(super) fn kind_of(&self, slot: Slot) -> &'static str {
        match (self.place(slot), &self.parts) {
            (KeyLocation::Part(part, _), Some(parts)) => parts.kinds.kinds[part].name(),
            _ => "memory",
        }
    }

    pub(super) fn part(&self, part: usize) -> &dyn KindPart {
        let parts = self.parts.as_deref();
        &*parts.expect("a place in a part is of a transaction with parts").parts[part]
    }

    pub(crate) fn in_parts(&mut self) -> &mut Parts {
        self.parts.as_deref_mut().expect("a place in a part is of a transaction with parts")
    }

    #[inline(never)]
    pub(super) fn value_on_all(&mut self, slot: Slot) -> Option<ValueRef<'_>> {
        match self.place(slot) {
            KeyLocation::Memory(slot) => self.memory.value(slot),
            KeyLocation::Part(part, slot) => self.in_parts().value(part, slot),
        }
    }

    #[inline(never)]
    pub(super) fn put_on_all(&mut self, slot: Slot, tag: u8, value: &[u8]) -> Result<(), TxError> {
        match self.place(slot) {
            KeyLocation::Memory(slot) => {
                self.note_memory_write();
                self.memory.put_slot_tagged(slot, tag, value)
            }
            KeyLocation::Part(part, slot) => self.in_parts().put(part, slot, Some((tag, value))),
        }
    }

    #[inline(never)]
    pub(super) fn patch_on_all(
        &mut self,
        slot: Slot,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), TxError> {
        match self.place(slot) {
            KeyLocation::Memory(slot) => {
                self.note_memory_write();
                self.memory.patch_slot(slot, offset, bytes)
            }
            KeyLocation::Part(part, slot) => self.in_parts().patch(part, slot, offset, bytes),
        }
    }

    #[inline(never)]
    pub(super) fn key_on_all(
        &mut self,
        table: TableId,
        key: &[u8],
        mode: Mode,
    ) -> Result<Slot, TxError> {
        let parts = self.parts.as_deref_mut().expect("called with parts");
        if let Some(kind) = parts.kinds.of(table) {
            return parts.lock(kind, table, key, mode);
        }
        if parts.holds_locks {
            self.memory.note_locks();
        }
        Ok(parts.slot_in_memory(self.memory.key(table, key, mode)?))
    }
}
