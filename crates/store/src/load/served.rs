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
use crate::table::Table;
use crate::unloaded::WholeValue;
use crate::unloaded::pending::{PARTITIONS, Pending, Resolved, WaitingKey};

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

impl Loader {
    /// Loads records that are not hidden, each with the writes that wait for its key.
    pub(super) fn load_with_writes<'a>(
        &mut self,
        table: &Table,
        records: impl Iterator<Item = KeyImage<'a>> + Clone,
        hidden: &mut [bool],
    ) -> Result<(), TxError> {
        let unentered = self.unentered.clone().filter(|from| !from.pending.is_empty());
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
            for WaitingKey { hash, table, key } in unentered.pending.keys_of(partition) {
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
            for keys in pending.keys_of(partition).chunks(BATCH) {
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
                Err(_) => {
                    loaded = Ok(Some(of.key));
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
