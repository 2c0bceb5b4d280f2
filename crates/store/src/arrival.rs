//! Keys that come into the store while it is served and loaded: see [`unloaded`](crate::unloaded).
//!
//! A lookup reads no disk. If it misses a record that is not in memory, it remembers the key, and the run
//! ends with [`TxError::NotLoaded`]. Outside of locks and read sections, the worker then reads all records
//! that it has missed, and runs again. Each such turn loads one record at least, or tells why it cannot.

use std::borrow::Cow;
use std::sync::Arc;

use stillpoint_format::{LOG_NONE, Stamp};
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::{TableId, TxError};

use crate::memory::arena::{Allowance, Kind};
use crate::memory::index::Inserted;
use crate::participant::Participant;
use crate::record::{self, NewCell, RecordChange};
use crate::table::Table;
use crate::unloaded::missed::MissedKey;
use crate::unloaded::{BesideRecord, Unentered, WholeValue};

/// Records that were read for one of them and that enter the store in one read section.
const BESIDE_TOGETHER: usize = 64;

impl Participant {
    /// The cell of a key, if the key has one. Reads no disk. Call this inside a read section.
    ///
    /// # Errors
    /// [`TxError::NoSuchTable`]; [`TxError::NotLoaded`] if the key's record is on the disk. Then
    /// [`load_missed`](Self::load_missed) loads it.
    #[inline]
    pub(crate) fn find_loaded(
        &mut self,
        id: TableId,
        key: &[u8],
        hash: u64,
    ) -> Result<Option<u64>, TxError> {
        let table = self.tables.get(id).ok_or(TxError::NoSuchTable(id))?;
        let found = self.find(table, key, hash);
        if found.is_none() && self.tables.has_unloaded {
            return match self.look_for_cold(id, key, hash)? {
                Some(found) => Ok(found),
                None => {
                    self.missed.in_run = true;
                    Err(TxError::NotLoaded)
                }
            };
        }
        Ok(found)
    }

    /// Looks once more for a key without a cell. `None` if its record is on the disk: the worker
    /// remembers the key. Call this inside a read section.
    #[cold]
    fn look_for_cold(
        &mut self,
        id: TableId,
        key: &[u8],
        hash: u64,
    ) -> Result<Option<Option<u64>>, TxError> {
        let table = self.tables.get(id).ok_or(TxError::NoSuchTable(id))?.clone();
        let store = Arc::clone(&self.store);
        let of = (id, table.generation);
        if store.unloaded().reads_for(of, (hash, key)) {
            // Another thread may have entered the record in the meantime.
            return Ok(match self.find(&table, key, hash) {
                None => {
                    self.missed.note(id, key, hash);
                    None
                }
                found => Some(found),
            });
        }
        // No disk is read: the logs alone have the key, or nobody has it.
        match store.unloaded().read(of, hash, key, &mut |_, _| false) {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(whole))) => self.enter_loaded(&table, (hash, key), &whole)?,
            Some(Err(unreadable)) => {
                // Another thread may have found the record in the meantime.
                let found = self.find(&table, key, hash);
                let found = found.ok_or(TxError::Unreadable(unreadable))?;
                return Ok(Some(Some(found)));
            }
        }
        Ok(Some(self.find(&table, key, hash)))
    }

    /// Whether a key has a cell, or no record on the disk. Otherwise the worker remembers the key. Call
    /// this inside a read section.
    pub(crate) fn is_loaded(&mut self, id: TableId, key: &[u8], hash: u64) -> bool {
        let found = self.tables.get(id).is_none_or(|table| self.find(table, key, hash).is_some());
        // The lookup of the key tells an error.
        found || !matches!(self.look_for_cold(id, key, hash), Ok(None))
    }

    /// Loads the keys that the worker has missed. Reads from the disk happen outside of read sections and
    /// without locks, so that nobody waits for them. Do not call this inside a read section.
    ///
    /// # Errors
    /// As [`load_ahead`](Self::load_ahead), for the key that was missed first. The keys behind one that
    /// cannot be read are left out.
    #[cold]
    pub(crate) fn load_missed(&mut self) -> Result<(), TxError> {
        self.missed.in_run = false;
        let mut keys = self.missed.take();
        let mut first = Ok(());
        for (at, MissedKey { table, hash, key }) in keys.drain(..).enumerate() {
            let loaded = self.load_ahead(table, &key, hash);
            let is_over = loaded.is_err();
            if at == 0 {
                first = loaded;
            }
            if is_over {
                break;
            }
        }
        self.missed.give_back(keys);
        first
    }

    /// Loads a key, if its record is on the disk. A key that proves to have none gets a cell without a
    /// value. So the key is known from then on. Do not call this inside a read section.
    ///
    /// # Errors
    /// [`TxError::Unreadable`] if the key's record cannot be read; [`TxError::IndexFull`].
    #[cold]
    pub(crate) fn load_ahead(&mut self, id: TableId, key: &[u8], hash: u64) -> Result<(), TxError> {
        let store = Arc::clone(&self.store);
        self.enter();
        let missing = self.tables.get(id).filter(|table| self.find(table, key, hash).is_none());
        let missing = missing.filter(|_| self.tables.has_unloaded).cloned();
        self.exit();
        let Some(table) = missing else { return Ok(()) };
        let of = (id, table.generation);
        if !store.unloaded().reads_for(of, (hash, key)) {
            return Ok(());
        }
        let enter_beside =
            &mut |of: (TableId, u32), records: &[BesideRecord<'_>]| self.enter_beside(of, records);
        let read = store.unloaded().read(of, hash, key, enter_beside);
        let Some(read) = read else { return Ok(()) };
        self.enter();
        let is_present = |now: &Arc<Table>| now.generation == table.generation;
        let counts = store.unloaded().is_loading() && self.tables.get(id).is_some_and(is_present);
        let entered = match read {
            _ if !counts || self.find(&table, key, hash).is_some() => Ok(()),
            Ok(Some(whole)) => self.enter_loaded(&table, (hash, key), &whole),
            Ok(None) => self.enter_absent(&table, (hash, key)),
            Err(unreadable) => Err(TxError::Unreadable(unreadable)),
        };
        self.exit();
        entered
    }

    /// Enters values of a generation of a table that were read for one of them, with the writes that wait for
    /// their keys. Leaves out keys that have a cell, and those whose writes nobody has sorted yet. The reading
    /// of a block costs as much as the entry of its records, and somebody will ask for them. Returns
    /// whether every key has a cell now.
    fn enter_beside(
        &mut self,
        (id, generation): (TableId, u32),
        records: &[BesideRecord<'_>],
    ) -> bool {
        let store = Arc::clone(&self.store);
        let Some(unentered) = store.unloaded().unentered() else { return false };
        if !unentered.pending.knows_any() {
            // None of them could enter.
            return false;
        }
        let mut all = true;
        for records in records.chunks(BESIDE_TOGETHER) {
            self.enter();
            let of = |table: &&Arc<Table>| table.generation == generation;
            let table = self.tables.get(id).filter(of).cloned();
            match table.filter(|_| store.unloaded().is_loading()) {
                Some(table) => all &= self.enter_some_beside(&table, &unentered, records),
                None => all = false,
            }
            self.exit();
        }
        all
    }

    /// As [`enter_beside`](Self::enter_beside), inside of a read section that has seen the store being
    /// loaded.
    fn enter_some_beside(
        &mut self,
        table: &Table,
        unentered: &Unentered,
        records: &[BesideRecord<'_>],
    ) -> bool {
        let mut all = true;
        for record in records {
            table.index.prefetch(record.hash);
        }
        for record in records {
            let (hash, key) = (record.hash, record.key);
            if self.find(table, key, hash).is_some() {
                continue;
            }
            // Nobody has asked for it, so nobody needs an error.
            let whole = unentered.complete((table.id, table.generation), record);
            all &= whole.is_some_and(|whole| self.enter_loaded(table, (hash, key), &whole).is_ok());
        }
        all
    }

    /// Has the writes enter the store that wait for a key of this generation of a table. If they need its
    /// record from the disk, reads it. Do not call this inside a read section.
    ///
    /// # Errors
    /// As [`load_ahead`](Self::load_ahead).
    pub(crate) fn load_replayed(
        &mut self,
        (id, generation): (TableId, u32),
        (hash, key): (u64, &[u8]),
    ) -> Result<(), TxError> {
        loop {
            self.load_ahead(id, key, hash)?;
            self.enter();
            // Writes of an emptied table count no more.
            let counts = self.tables.get(id).is_some_and(|table| table.generation == generation);
            let found = if counts { self.find_loaded(id, key, hash).map(|_| ()) } else { Ok(()) };
            self.exit();
            self.missed.forget();
            if !matches!(found, Err(TxError::NotLoaded)) {
                return found;
            }
        }
    }

    /// Whether keys without a cell are to be loaded before a transaction locks them.
    #[inline]
    pub(crate) fn loads_ahead(&self) -> bool {
        self.tables.has_unloaded && !self.leaves_unloaded
    }

    /// Whether the run under way has missed a record, and must not commit.
    #[inline]
    pub(crate) fn has_missed(&self) -> bool {
        mutant!(self.missed.in_run, CommitsAfterMiss => false)
    }

    /// Whether a run that has ended so runs again, once what it has missed is loaded.
    #[inline]
    pub(crate) fn runs_again<R>(&self, ended: &Result<R, TxError>) -> bool {
        matches!(ended, Err(TxError::NotLoaded)) && self.loads_ahead() && !self.missed.is_empty()
    }

    /// Enters a cell without a value for a key that no checkpoint has. The caller has seen inside of its
    /// read section that the store is being loaded.
    fn enter_absent(&mut self, table: &Table, (hash, key): (u64, &[u8])) -> Result<(), TxError> {
        let Self { store, cache, .. } = self;
        let status = store.rules().first_status(store.driver().now());
        let kind = Kind::Lock;
        let new = NewCell { table, hash, key, value_len: 0, kind, locked_by: None, status };
        let allowance = std::mem::replace(&mut cache.allowance, Allowance::Load);
        let made = new.make(store.memory(), cache);
        cache.allowance = allowance;
        let number = made?;
        let is_key = |cell| self.is_cell_of(cell, key);
        // The key may have been inserted and reclaimed since the cell was made.
        let settle = || self.store.cell(number).record().end_delete(table.floor_stamp(hash));
        match table.index.insert(self.number, hash, number, is_key, settle) {
            Inserted::New => self.add_absent(table.owner, table.id, number),
            Inserted::Existing(_) => self.retire_unpublished(number),
            Inserted::Full => {
                self.retire_unpublished(number);
                return Err(TxError::IndexFull(table.id));
            }
        }
        Ok(())
    }

    /// Enters the value of a key into the index, unless the key has a cell by now. The caller has seen
    /// inside of its read section that the store is being loaded.
    pub(crate) fn enter_loaded(
        &mut self,
        table: &Table,
        (hash, key): (u64, &[u8]),
        whole: &WholeValue<'_>,
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
        whole: &WholeValue<'_>,
    ) -> Result<u64, TxError> {
        let Self { store, cache, .. } = self;
        let now = store.driver().now();
        let mark = if whole.gsn > 0 { store.replayed_status() } else { 0 };
        let status = store.rules().first_status(now) | store.loaded_status() | mark;
        let bytes = |value: &Cow<'_, [u8]>| value.len() + whole.label.deadline_bytes();
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
