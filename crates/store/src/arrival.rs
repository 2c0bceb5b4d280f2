//! Keys that come into the store while it is served and loaded: see [`unloaded`](crate::unloaded).

use std::sync::Arc;

use stillpoint_format::{LOG_NONE, Stamp};
use stillpoint_txn::{TableId, TxError};

use crate::memory::arena::{Allowance, Kind};
use crate::memory::index::Inserted;
use crate::participant::Participant;
use crate::record::{self, NewCell, RecordChange};
use crate::table::Table;
use crate::unloaded::WholeValue;

impl Participant {
    /// The cell of a key, if the key has one. While the store is loaded, first looks for a key without a
    /// cell in the checkpoints. Call this inside a read section.
    ///
    /// # Errors
    /// [`TxError::NoSuchTable`]; [`TxError::Unreadable`] if the key's record cannot be read;
    /// [`TxError::NotLoaded`] if the thread leaves it alone; [`TxError::IndexFull`].
    #[inline]
    pub(crate) fn find_or_load(
        &mut self,
        id: TableId,
        key: &[u8],
        hash: u64,
    ) -> Result<Option<u64>, TxError> {
        let table = self.tables.get(id).ok_or(TxError::NoSuchTable(id))?;
        let found = self.find(table, key, hash);
        if found.is_none() && self.tables.has_unloaded {
            return self.load_key(id, key, hash);
        }
        Ok(found)
    }

    /// Loads a key without a cell. Returns its cell; `None` if the key has no value, and had no cell at
    /// that moment. Call this inside a read section.
    #[cold]
    pub(crate) fn load_key(
        &mut self,
        id: TableId,
        key: &[u8],
        hash: u64,
    ) -> Result<Option<u64>, TxError> {
        let table = self.tables.get(id).ok_or(TxError::NoSuchTable(id))?.clone();
        let store = Arc::clone(&self.store);
        if self.leaves_unloaded && store.unloaded().reads_for((id, table.generation), (hash, key)) {
            // Another thread may have entered the record in the meantime.
            return self
                .find(&table, key, hash)
                .map_or(Err(TxError::NotLoaded), |cell| Ok(Some(cell)));
        }
        match store.unloaded().read((id, table.generation), hash, key) {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(whole))) => self.enter_loaded(&table, (hash, key), &whole)?,
            Some(Err(unreadable)) => {
                // Another thread may have found the record in the meantime.
                let found = self.find(&table, key, hash);
                return found.map_or(Err(TxError::Unreadable(unreadable)), |cell| Ok(Some(cell)));
            }
        }
        Ok(self.find(&table, key, hash))
    }

    /// Loads the keys of a transaction that holds no lock yet, while the store is loaded. Reads from the
    /// disk happen outside of read sections, so that no grace period waits for them. What cannot be read
    /// is left to the lookup of the key. Do not call this inside a read section.
    #[cold]
    pub(crate) fn load_ahead(&mut self, id: TableId, key: &[u8], hash: u64) {
        let store = Arc::clone(&self.store);
        self.enter();
        let missing = self.tables.get(id).filter(|table| self.find(table, key, hash).is_none());
        let missing = missing.cloned();
        self.exit();
        let Some(table) = missing.filter(|_| self.loads_ahead()) else { return };
        let of = (id, table.generation);
        if !store.unloaded().reads_for(of, (hash, key)) {
            return;
        }
        if let Some(Ok(Some(whole))) = store.unloaded().read(of, hash, key) {
            self.enter();
            let is_present = |now: &Arc<Table>| now.generation == table.generation;
            if store.unloaded().is_loading() && self.tables.get(id).is_some_and(is_present) {
                // The lookup meets the error again.
                let _ = self.enter_loaded(&table, (hash, key), &whole);
            }
            self.exit();
        }
    }

    /// Whether keys without a cell are to be loaded before a transaction locks them.
    #[inline]
    pub(crate) fn loads_ahead(&self) -> bool {
        self.tables.has_unloaded && !self.leaves_unloaded
    }

    /// Enters the value of a key into the index, unless the key has a cell by now. The caller has seen
    /// inside of its read section that the store is being loaded.
    pub(crate) fn enter_loaded(
        &mut self,
        table: &Table,
        (hash, key): (u64, &[u8]),
        whole: &WholeValue,
    ) -> Result<(), TxError> {
        let number = self.make_loaded(table, (hash, key), whole)?;
        let is_key = |cell| self.is_cell_of(cell, key);
        match table.index.insert(self.number, hash, number, is_key, || {}) {
            Inserted::New if whole.value.is_some() => table.count(self.number, 1),
            Inserted::New => self.add_absent(table.owner, table.id, number),
            Inserted::Existing(_) => self.drop_loaded(number),
            Inserted::Full => {
                self.drop_loaded(number);
                return Err(TxError::IndexFull(table.id));
            }
        }
        Ok(())
    }

    /// Makes a cell with a value, or with the deletion of one, that is not in the index. Memory is kept
    /// for it, so the limit does not count.
    fn make_loaded(
        &mut self,
        table: &Table,
        (hash, key): (u64, &[u8]),
        whole: &WholeValue,
    ) -> Result<u64, TxError> {
        let Self { store, cache, .. } = self;
        let now = store.driver().now();
        let mark = if whole.gsn > 0 { store.replayed_status() } else { 0 };
        let status = store.rules().first_status(now) | store.loaded_status() | mark;
        let bytes = |value: &Vec<u8>| value.len() + whole.label.deadline_bytes();
        let value_len = whole.value.as_ref().map_or(0, bytes);
        let kind = Kind::Record;
        let new = NewCell { table, hash, key, value_len, kind, locked_by: None, status };
        let allowance = std::mem::replace(&mut cache.allowance, Allowance::Load);
        let made = new.make(store.memory(), cache);
        let put = made.map(|number| {
            let stamp = Stamp::new(whole.gsn, LOG_NONE);
            let Some(value) = &whole.value else {
                store.cell(number).record().end_delete(stamp);
                return (number, Ok(None));
            };
            let change: RecordChange<'_, &[(usize, &[u8])]> =
                RecordChange::Put { label: whole.label, value };
            let place = (number, store.rules().write, now);
            let put = record::apply(store.memory(), cache, place, change, stamp, new);
            debug_assert!(!matches!(put, Ok(Some(_))), "the cell was made for this value");
            (number, put)
        });
        cache.allowance = allowance;
        let (number, put) = put?;
        if let Err(full) = put {
            self.drop_loaded(number);
            return Err(full.into());
        }
        if mark != 0 {
            store.note_mark(number, now.epoch());
        }
        Ok(number)
    }

    /// Drops a cell that never was in the index.
    fn drop_loaded(&mut self, number: u64) {
        let owner = self.store.memory().arena.owner_of(number);
        if let Some(blob) = self.store.cell(number).record().blob() {
            self.reclaim.retire_blob(owner, blob);
        }
        self.retire_unpublished(number);
    }
}
