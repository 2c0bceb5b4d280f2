//! Loading and replaying while the store is served, or before it is: see [`unloaded`](crate::unloaded).
//!
//! The logs are replayed first. A put or a deletion needs nothing older. A patch of a key without a cell
//! waits until the key's record is found in a checkpoint. The load comes after that, beside transactions.

use stillpoint_format::Label;
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::TxError;

use crate::load::{KeyImage, Loader, Replayed};
use crate::memory::arena::Allowance;
use crate::table::Table;
use crate::unloaded::WholeValue;
use crate::unloaded::pending::{ByteChange, KEY_PATCH_BYTES_MAX, WaitingChange};

impl Loader {
    /// Whether a replayed change of a key without a cell waits for the key's record. Others take the place
    /// of changes that wait.
    pub(super) fn waits(
        &mut self,
        table: &Table,
        (hash, key): (u64, &[u8]),
        gsn: u64,
        change: Replayed<'_>,
    ) -> Result<bool, TxError> {
        let (deadline, ranges) = match change {
            Replayed::Patch(ranges) => (None, ranges),
            Replayed::Until { deadline, ranges } => (Some(deadline), ranges),
            Replayed::Put { .. } | Replayed::Delete | Replayed::Share { .. } => {
                let of = (table.id, table.generation);
                self.local.store.unloaded().pending().forget(of, (hash, key));
                return Ok(false);
            }
        };
        let overwrite = |&(offset, bytes)| ByteChange { offset, removed: None, bytes };
        let ranges = ranges.iter().map(overwrite).map(WaitingChange::Bytes);
        let deadline = deadline.map(WaitingChange::Deadline);
        self.wait_for_base(table, (hash, key), gsn, deadline.into_iter().chain(ranges))?;
        Ok(true)
    }

    /// Has replayed splices of a key without a cell wait for the key's record.
    pub(super) fn splice_unknown(
        &mut self,
        table: &Table,
        (hash, key): (u64, &[u8]),
        gsn: u64,
        splices: &[(usize, usize, &[u8])],
    ) -> Result<(), TxError> {
        let change =
            |&(offset, removed, bytes)| ByteChange { offset, removed: Some(removed), bytes };
        let changes = splices.iter().map(change).map(WaitingChange::Bytes);
        self.wait_for_base(table, (hash, key), gsn, changes)
    }

    /// Has changes wait for the record of their key. If many wait already, or memory is scarce, finds the
    /// record.
    fn wait_for_base<'a>(
        &mut self,
        table: &Table,
        (hash, key): (u64, &[u8]),
        gsn: u64,
        changes: impl Iterator<Item = WaitingChange<'a>>,
    ) -> Result<(), TxError> {
        let store = self.local.store.clone();
        let pending = store.unloaded().pending();
        let has_room = store.memory().arena.check_room(pending.bytes(), Allowance::Limit).is_ok();
        let bytes = pending.add((table.id, table.generation), (hash, key), gsn, changes);
        if bytes > KEY_PATCH_BYTES_MAX || !has_room {
            // The cell has these changes, too.
            self.local.load_key(table.id, key, hash)?;
        }
        Ok(())
    }

    /// Loads the records whose keys have patches that wait, and hides them. A deletion of such a key is
    /// not what the patches were made on.
    pub(super) fn load_patched<'a>(
        &mut self,
        table: &Table,
        records: impl Iterator<Item = KeyImage<'a>>,
        hidden: &mut [bool],
    ) -> Result<(), TxError> {
        let store = self.local.store.clone();
        let pending = store.unloaded().pending();
        if pending.bytes() == 0 {
            return Ok(());
        }
        let of = (table.id, table.generation);
        for (record, hidden) in records.zip(hidden) {
            let KeyImage { hash, key, label, value, .. } = record;
            if *hidden || !pending.has(of, (hash, key)) {
                continue;
            }
            *hidden = true;
            let found = value.map(|value| (label, value.to_vec()));
            let whole = pending.apply(of, (hash, key), found);
            let whole = whole.map_err(|error| TxError::Unreadable(error.into()))?;
            if let Some(whole) = whole {
                self.local.enter_loaded(table, (hash, key), &whole)?;
            }
        }
        Ok(())
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

    /// Loads a value that does not fit a usual cell.
    pub(super) fn load_whole(
        &mut self,
        table: &Table,
        (hash, key): (u64, &[u8]),
        (label, value): (Label, &[u8]),
    ) -> Result<(), TxError> {
        let whole = WholeValue { label, value: value.to_vec(), gsn: 0 };
        self.local.enter_loaded(table, (hash, key), &whole)
    }
}
