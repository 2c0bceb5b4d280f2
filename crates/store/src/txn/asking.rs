//! Asking for records ahead of their use: on the disk, or in memory.

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

/// Keys whose lines of the index and of the arena are prefetched together.
const TOGETHER: usize = 16;

impl Tx<'_> {
    /// Prefetches what the locks and reads of some keys will touch. Keys of other tables are left out.
    pub fn prefetch<K: AsRef<[u8]>>(&mut self, keys: impl Iterator<Item = (TableId, K)>) {
        let (transaction, local) = self.parts();
        let enters = !local.in_section;
        if enters {
            local.enter();
        }
        let Participant { tables, store, .. } = &*local;
        let known = keys.filter_map(|(id, key)| {
            let hash = transaction.keys.hash(id, key.as_ref());
            tables.get(id).map(|table| (&table.index, hash))
        });
        let mut known = known.peekable();
        while known.peek().is_some() {
            let mut group = [None; TOGETHER];
            for (asked, (index, hash)) in group.iter_mut().zip(known.by_ref()) {
                *asked = Some((index, hash, index.prefetch(hash)));
            }
            for (index, hash, bucket) in group.into_iter().flatten() {
                store.memory().prefetch(index.candidate(bucket, hash));
            }
        }
        if enters {
            local.exit();
        }
    }

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
