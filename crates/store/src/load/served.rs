//! Loading while the store is served: see [`unloaded`](crate::unloaded).
//!
//! The writes of the logs wait beside the store. A record of a checkpoint enters the store together with
//! the writes that wait for its key. Once all records are loaded, the keys that only the logs have enter.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use stillpoint_format::Label;
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::{TableId, TxError};

use crate::load::{ALL_CLOSED, KeyImage, Loader};
use crate::memory::arena::Allowance;
use crate::store::Store;
use crate::table::Table;
use crate::unloaded::pending::{
    PARTITIONS, Pending, Resolved, WaitingError, WaitingKey, WaitingWrites,
};
use crate::unloaded::{ColdRecords, UnreadableRecord, WholeValue};

/// Keys whose index lines are prefetched together.
const BATCH: usize = 32;

/// Values made of records and of writes that have waited, for the records of a batch.
#[derive(Debug, Default)]
pub(super) struct Made {
    bytes: Vec<u8>,
    /// For each record, what the writes have made of it; `None` if no write waits for it.
    values: Vec<Option<MadeValue>>,
    /// The hashes of keys with writes that no other key has, and that have a cell after the batch.
    entered: Vec<u64>,
}

#[derive(Clone, Debug)]
struct MadeValue {
    label: Label,
    gsn: u64,
    range: Range<usize>,
}

impl Made {
    /// A record, or what was made of it.
    fn image<'a>(&'a self, record: KeyImage<'a>, value: &Option<MadeValue>) -> KeyImage<'a> {
        match value {
            None => record,
            Some(MadeValue { label, gsn, range }) => KeyImage {
                label: *label,
                value: Some(&self.bytes[range.clone()]),
                gsn: *gsn,
                ..record
            },
        }
    }
}

impl Store {
    /// Begins a load while which the store is served. `records` has what is not in the store yet, and
    /// `waiting` has what the logs have written since. Call this before the first worker is made. The
    /// records take about so many `bytes` of memory, which nobody else gets.
    ///
    /// Every record is loaded by [loaders](crate::Loader), which then [load the rest of the
    /// writes](crate::Loader::load_waiting). Then [`end_load`](Self::end_load) is called. Until then no
    /// capture may begin, and no table may be ordered.
    pub fn begin_load(
        &self,
        records: Arc<dyn ColdRecords>,
        waiting: Vec<WaitingWrites>,
        bytes: usize,
    ) {
        self.unloaded().begin(records, waiting);
        self.unloaded().reserve(bytes);
        self.catalog().note_unloaded(true);
    }

    /// Touches the memory of the tables' indexes, so that no transaction waits for its first pages. `share` is
    /// that of [`sort_waiting`](Self::sort_waiting).
    pub fn populate_indexes(&self, share: (usize, usize)) {
        self.catalog().for_each(|table| table.index.populate(share));
    }

    /// Sorts the writes that wait, so that no transaction has to do that. The first number of `share` tells
    /// which thread this is, and the second how many share the work. Without this call, who first needs a
    /// partition of the writes sorts it.
    pub fn sort_waiting(&self, share: (usize, usize)) {
        if let Some(unentered) = self.unloaded().unentered() {
            unentered.pending.sort(share);
        }
    }

    /// Reads the writes that wait, so that no other thread of the load reads the logs. `share` is that of
    /// [`sort_waiting`](Self::sort_waiting), and `is_over` ends the work early. Without this call, who first
    /// needs such writes reads them.
    ///
    /// # Errors
    /// A log is damaged, or the disk refuses.
    pub fn read_waiting(
        &self,
        share: (usize, usize),
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), UnreadableRecord> {
        match self.unloaded().unentered() {
            Some(unentered) => unentered.pending.read_windows(share, is_over),
            None => Ok(()),
        }
    }

    /// Notes that every key with writes that wait has a cell, and that nobody is about to make another one.
    /// From then on nobody reads those writes, and the logs need not be held for them.
    pub fn note_replayed(&self) {
        if let Some(unentered) = self.unloaded().unentered() {
            unentered.pending.note_all_entered();
        }
    }

    /// Sets the bytes of memory that are kept for records that are not loaded yet.
    pub fn reserve_for_load(&self, bytes: usize) {
        self.unloaded().reserve(bytes);
    }

    /// Ends a load: the loaders have loaded every record and all writes that have waited, and have been
    /// dropped. Waits for a grace period.
    pub fn end_load(&self) {
        self.unloaded().end();
        self.catalog().note_unloaded(false);
        self.driver().read_sections().wait_grace_period();
        self.unloaded().settle();
    }
}

impl Loader {
    /// Loads records that are not hidden, each with the writes that wait for its key.
    pub(super) fn load_with_writes<'a>(
        &mut self,
        table: &Table,
        records: impl Iterator<Item = KeyImage<'a>> + Clone,
        hidden: &mut [bool],
    ) -> Result<(), TxError> {
        let waits = |pending: &Pending| !pending.is_empty() && !pending.are_all_entered();
        let unentered = self.unentered.clone().filter(|from| waits(&from.pending));
        let Some(unentered) = unentered else {
            return self.load_unless_hidden(table, records.zip(hidden.iter().copied()));
        };
        let mut made = std::mem::take(&mut self.made);
        let resolved =
            self.resolve(table, &unentered.pending, records.clone(), (hidden, &mut made));
        let loaded = resolved.and_then(|()| {
            let images = records.zip(&made.values);
            let images = images.map(|(record, value)| made.image(record, value));
            self.load_unless_hidden(table, images.zip(hidden.iter().copied()))?;
            made.entered.iter().for_each(|&hash| unentered.pending.note_entered(hash));
            Ok(())
        });
        self.made = made;
        loaded
    }

    /// Applies the writes that wait to the records that are not hidden. Hides those whose keys the table
    /// has, and those that a write deletes.
    fn resolve<'a>(
        &mut self,
        table: &Table,
        pending: &Pending,
        records: impl Iterator<Item = KeyImage<'a>> + Clone,
        (hidden, made): (&mut [bool], &mut Made),
    ) -> Result<(), TxError> {
        made.bytes.clear();
        made.values.clear();
        made.entered.clear();
        for record in records.clone() {
            table.index.prefetch(record.hash);
            pending.prefetch(record.hash);
        }
        records.clone().for_each(|record| pending.prefetch_places(record.hash));
        records.clone().for_each(|record| pending.prefetch_writes(record.hash));
        let of = (table.id, table.generation);
        for (record, hidden) in records.zip(hidden) {
            let KeyImage { hash, key, label, value, .. } = record;
            let is_key = |cell| self.local.store.cell(cell).has_key(key);
            // A newer record of the key is loaded, or somebody has written the key.
            *hidden = *hidden || table.index.find(hash, is_key).is_some();
            if *hidden {
                made.values.push(None);
                continue;
            }
            let start = made.bytes.len();
            let base = value.map(|value| (label, value));
            let writes = pending.of_key(of, (hash, key));
            let resolved = writes.apply(base, &mut made.bytes);
            let resolved = resolved.map_err(|error| TxError::Unreadable(error.into()))?;
            if resolved.is_some_and(|resolved| resolved.writes == writes.of_hash()) {
                made.entered.push(hash);
            }
            let range = start..made.bytes.len();
            made.values.push(match resolved {
                None => None,
                Some(Resolved { label: Some(label), gsn, .. }) => {
                    Some(MadeValue { label, gsn, range })
                }
                Some(Resolved { label: None, gsn, .. }) => {
                    *hidden = true;
                    self.enter(table, (hash, key), (None, gsn))?;
                    None
                }
            });
        }
        Ok(())
    }

    /// Enters a value, or the deletion of one, that does not come with a batch.
    pub(super) fn enter(
        &mut self,
        table: &Table,
        key: (u64, &[u8]),
        (value, gsn): (Option<(Label, &[u8])>, u64),
    ) -> Result<(), TxError> {
        let (label, value) = value.unzip();
        let (label, value) = (label.unwrap_or_default(), value.map(Cow::Borrowed));
        self.local.enter_loaded(table, key, &WholeValue { label, value, gsn })
    }

    /// Loads the keys for which writes wait, each with its record, whatever else is still to be loaded. The
    /// first number of `share` tells which loader this is, and the second how many share the work.
    /// `is_over` ends the work early.
    ///
    /// # Errors
    /// A record cannot be read, or the writes do not fit it; too little memory; and the table of the key. The
    /// call can be repeated.
    pub fn load_replayed(
        &mut self,
        share: (usize, usize),
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), (TableId, TxError)> {
        let Some(unentered) = self.unentered.clone() else { return Ok(()) };
        for partition in (share.0..PARTITIONS).step_by(share.1) {
            if is_over() {
                break;
            }
            for WaitingKey { hash, table, key } in self.keys_of(&unentered.pending, partition)? {
                let loaded = self.local.load_replayed(table, (hash, key));
                loaded.map_err(|error| (table.0, error))?;
            }
            self.local.enter();
            self.local.collect_garbage(&ALL_CLOSED);
            self.local.exit();
        }
        Ok(())
    }

    /// Loads the keys that only writes of the logs have, once all records of the checkpoints are loaded.
    /// The first number of `share` tells which loader this is, and the second how many share the work.
    /// Returns a key of which the logs change a part and that nothing else has: a damage.
    ///
    /// # Errors
    /// Too little memory, and the table of the key. The call can be repeated.
    pub fn load_waiting(
        &mut self,
        share: (usize, usize),
    ) -> Result<Option<Vec<u8>>, (TableId, TxError)> {
        let Some(unentered) = self.unentered.clone() else { return Ok(None) };
        // The store has kept memory for these records.
        self.local.cache.allowance = Allowance::Load;
        let pending = &unentered.pending;
        for partition in (share.0..PARTITIONS).step_by(share.1) {
            mutant!(LoadForgetsNewKeys => continue);
            let keys = match self.keys_of(pending, partition) {
                // A checkpoint has all of them, and has given their logs up.
                _ if pending.are_all_entered() => break,
                keys => keys?,
            };
            for keys in keys.chunks(BATCH) {
                // Nobody empties a table inside of this section.
                self.local.enter();
                let entered = self.load_keys(pending, keys);
                self.local.collect_garbage(&ALL_CLOSED);
                self.local.exit();
                if let Some(key) = entered? {
                    return Ok(Some(key.to_vec()));
                }
            }
        }
        Ok(None)
    }

    /// The keys of a partition whose writes count, but those that are known to have a cell.
    fn keys_of<'k>(
        &self,
        pending: &'k Pending,
        partition: usize,
    ) -> Result<Vec<WaitingKey<'k>>, (TableId, TxError)> {
        let counts = |(id, generation): (TableId, u32)| {
            self.local.tables.get(id).is_some_and(|now| now.generation == generation)
        };
        let keys = pending.keys_of(partition, counts);
        keys.map_err(|unreadable| (TableId(0), TxError::Unreadable(unreadable)))
    }

    /// Loads those of these keys that have no cell. Returns a key without a base.
    fn load_keys<'k>(
        &mut self,
        pending: &'k Pending,
        keys: &[WaitingKey<'k>],
    ) -> Result<Option<&'k [u8]>, (TableId, TxError)> {
        let mut of_keys = Vec::with_capacity(keys.len());
        for of in keys {
            // Writes of an emptied table count no more.
            let (table, generation) = of.table;
            let table = self.local.tables.get(table).filter(|now| now.generation == generation);
            let Some(table) = table.map(Arc::clone) else { continue };
            let bucket = table.index.prefetch(of.hash);
            of_keys.push((of, table, bucket));
        }
        for (of, table, bucket) in &of_keys {
            self.local.store.memory().prefetch(table.index.candidate(*bucket, of.hash));
        }
        let mut value = std::mem::take(&mut self.made.bytes);
        let mut loaded = Ok(None);
        for (of, table, _) in of_keys {
            let is_key = |cell| self.local.store.cell(cell).has_key(of.key);
            if table.index.find(of.hash, is_key).is_some() {
                continue;
            }
            value.clear();
            match pending.of_key(of.table, (of.hash, of.key)).apply(None, &mut value) {
                Err(WaitingError::Misfit(_)) => {
                    loaded = Ok(Some(of.key));
                    break;
                }
                Err(WaitingError::Log(unreadable)) => {
                    loaded = Err((table.id, TxError::Unreadable(unreadable)));
                    break;
                }
                Ok(None) => {}
                Ok(Some(Resolved { label, gsn, .. })) => {
                    let content = (label.map(|label| (label, &value[..])), gsn);
                    let entered = self.enter(&table, (of.hash, of.key), content);
                    if let Err(error) = entered {
                        loaded = Err((table.id, error));
                        break;
                    }
                }
            }
        }
        self.made.bytes = value;
        loaded
    }

    /// Drops the cell of a loaded record whose key has a cell.
    pub(super) fn leave_existing(
        &mut self,
        table: &Table,
        hash: u64,
        (existing, loaded): (u64, u64),
    ) {
        mutant!(LoadOverwrites => {
            let retire = || self.local.store.cell(existing).kill();
            table.index.replace(hash, (existing, loaded), retire);
            return;
        });
        self.drop_cell(loaded);
    }
}
