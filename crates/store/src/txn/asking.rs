//! Asking for records on the disk before a run ends for one of them.

use std::ops::Range;

use stillpoint_txn::{DeclaredKey, TableId};

use crate::participant::Participant;
use crate::txn::Transaction;
use crate::txn::tx::Tx;

impl Transaction {
    /// Asks for all of these keys that are not in memory, so that they are loaded together.
    #[cold]
    pub(crate) fn ask_for_declared(&self, local: &mut Participant, keys: Range<usize>) {
        for index in keys {
            let DeclaredKey { table, hash, .. } = self.keys.declared()[index];
            local.is_loaded(table, self.keys.key(index), hash);
        }
    }
}

impl Tx<'_> {
    /// Whether the record of a key is in memory, or there is none. Otherwise the worker remembers the key:
    /// if the run ends with [`NotLoaded`](stillpoint_txn::TxError::NotLoaded), this record is loaded with those that the run has
    /// missed. So a run that will need many records asks for all of them before it ends.
    pub fn ask_for(&mut self, table: TableId, key: &[u8]) -> bool {
        let (transaction, local) = self.parts();
        if !local.tables.has_unloaded {
            return true;
        }
        let hash = transaction.keys.hash(table, key);
        let enters = !local.in_section;
        if enters {
            local.enter();
        }
        let is_loaded = local.is_loaded(table, key, hash);
        if enters {
            local.exit();
        }
        is_loaded
    }
}
