//! The slow path of a transaction on tables of any kind.

use stillpoint_store::{Mode, Slot, TableId, TxError, ValueRef};
use stillpoint_txn::KindPart;

use super::Tx;
use crate::kinds::{KeyLocation, Parts};

impl Tx<'_> {
    /// Tells which keys the transaction will use soon, best in the order of their use. Their misses of the
    /// processor's caches overlap, and so do the reads of their pages from the disk, for which this call
    /// waits. It locks nothing and changes nothing. Keys of tables that do not exist are left out.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let mut config = stillpoint::Config::new(directory.path());
    /// # config.pool_bytes = Some(1 << 20);
    /// # let engine = stillpoint::Engine::open(config)?;
    /// # let stocks = engine.table_with("stocks", stillpoint::Kind::Paged)?;
    /// # let mut session = engine.session()?;
    /// let items = [17u32, 4, 1_000_003].map(u32::to_be_bytes);
    /// let missing = session.transact(|tx| {
    ///     tx.prefetch(items.iter().map(|item| (stocks, item)));
    ///     let mut missing = 0;
    ///     for item in &items {
    ///         missing += usize::from(tx.get(stocks, item)?.is_none());
    ///     }
    ///     Ok(missing)
    /// })?;
    /// assert_eq!(missing, 3);
    /// # drop(session);
    /// # engine.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefetch<K: AsRef<[u8]>>(&mut self, keys: impl Iterator<Item = (TableId, K)> + Clone) {
        match &mut self.parts {
            None => self.memory.prefetch(keys),
            Some(parts) => {
                parts.prefetch(keys.clone());
                let kinds = &parts.kinds;
                self.memory.prefetch(keys.filter(|(table, _)| kinds.of(*table).is_none()));
            }
        }
    }

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
