//! Brings what transactions need into the caches before they begin. The processor then waits for all keys
//! at once, and not for one after the other.

use stillpoint_mem::prefetch;
use stillpoint_txn::{KeyList, Mode};

use crate::kind::Siren;
use crate::slab::Slot;
use crate::table::Table;

/// Room that is used again.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    hashes: Vec<u64>,
    tuples: Vec<Slot>,
}

impl Ahead {
    /// Prefetches places in the index, then proxies, then values and tuples, then the tuples beside them.
    pub(crate) fn prefetch(&mut self, kind: &Siren, keys: &KeyList) {
        let mut from = 0;
        while from < keys.len() {
            let id = keys.get(from).table;
            let same = (from..keys.len()).take_while(|&at| keys.get(at).table == id);
            let to = from + same.count();
            if let Ok(table) = kind.table(id) {
                let mut writes = false;
                self.hashes.clear();
                for key in (from..to).map(|at| keys.get(at)) {
                    self.hashes.push(table.index.hash(key.key));
                    writes |= key.mode == Mode::Write;
                }
                self.prefetch_keys(&table, writes);
            }
            from = to;
        }
    }

    fn prefetch_keys(&mut self, table: &Table, writes: bool) {
        self.hashes.iter().for_each(|&hash| table.index.prefetch_place(hash));
        self.hashes.iter().for_each(|&hash| table.index.prefetch_proxy(hash));
        self.tuples.clear();
        for &hash in &self.hashes {
            table.index.with_likely(hash, |proxy| {
                let Some(versions) = proxy.versions.try_lock() else { return };
                let Some(committed) = &versions.committed else { return };
                let value = committed.value.as_deref().unwrap_or_default();
                // The lines of a longer value follow each other.
                let ends = [value.first(), value.last()];
                ends.into_iter().flatten().for_each(prefetch);
                self.tuples.push(committed.tuple);
            });
        }
        if writes {
            let pages = table.pages.lock();
            self.tuples.iter().for_each(|&tuple| pages.prefetch_tuple(tuple));
            self.tuples.iter().for_each(|&tuple| pages.prefetch_beside(tuple));
        }
    }
}
