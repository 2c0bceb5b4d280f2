//! Brings what transactions need into the caches before they begin. The processor then waits for all keys
//! at once, and not for one after the other. The proxies that are found on the way spare another search.

use std::ops::Range;
use std::sync::Arc;

use stillpoint_mem::prefetch_shared;
use stillpoint_txn::{KeyList, Mode};

use crate::kind::Siren;
use crate::proxy::Proxy;
use crate::slab::Slot;
use crate::table::Table;

/// Keys that are searched together. More would push each other out of the caches, and keep others from the
/// index for long.
const TOGETHER: usize = 64;

/// A key that was asked for. It keeps no emptied table in memory.
#[derive(Clone, Debug)]
struct AskedKey {
    hash: u64,
    /// Number and generation of its table.
    table: (u16, u32),
    found: Option<Arc<Proxy>>,
}

/// The keys that were asked for, in room that is used again.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    keys: Vec<AskedKey>,
    /// Keys whose transactions have begun.
    begun: usize,
    tuples: Vec<Slot>,
}

impl Ahead {
    /// Prefetches places in the index, then proxies, then values and tuples, then pages.
    pub(crate) fn prefetch(&mut self, kind: &Siren, asked: &KeyList) {
        self.keys.clear();
        self.begun = 0;
        let mut from = 0;
        while from < asked.len() {
            let id = asked.get(from).table;
            let same = (from..asked.len()).take_while(|&at| asked.get(at).table == id);
            let to = from + same.take(TOGETHER).count();
            match kind.table(id) {
                Ok(table) => self.prefetch_keys(&table, asked, from..to),
                Err(_) => {
                    let absent = AskedKey { hash: 0, table: (id.0, 0), found: None };
                    self.keys.resize(to, absent);
                }
            }
            from = to;
        }
    }

    fn prefetch_keys(&mut self, table: &Table, asked: &KeyList, range: Range<usize>) {
        let Self { keys, tuples, .. } = self;
        let mut writes = false;
        let mut map = table.index.search();
        for key in range.clone().map(|at| asked.get(at)) {
            let hash = table.index.hash(key.key);
            map.part(hash).prefetch(hash);
            keys.push(AskedKey { hash, table: (table.id, table.generation), found: None });
            writes |= key.mode == Mode::Write;
        }
        for &AskedKey { hash, .. } in &keys[range.clone()] {
            map.part(hash).likely(hash).into_iter().for_each(prefetch_shared);
        }
        tuples.clear();
        for at in range {
            let AskedKey { hash, found, .. } = &mut keys[at];
            let Some(proxy) = map.part(*hash).find(*hash, asked.get(at).key) else { continue };
            *found = Some(proxy.clone());
            let Some(versions) = proxy.versions.try_lock() else { continue };
            let Some(committed) = &versions.committed else { continue };
            committed.value.iter().for_each(prefetch_shared);
            tuples.push(committed.tuple);
        }
        drop(map);
        if writes {
            let pages = table.pages.lock();
            tuples.iter().for_each(|&tuple| pages.prefetch_tuple(tuple));
            tuples.iter().for_each(|&tuple| pages.prefetch_page(tuple));
            if pages.has_touched() {
                tuples.iter().for_each(|&tuple| pages.prefetch_beside(tuple));
            }
        }
    }

    /// Begins a transaction with so many keys, which are the next ones that were asked for. Gives the number of
    /// the first.
    pub(crate) fn begin(&mut self, keys: usize) -> usize {
        let first = self.begun;
        self.begun += keys;
        first
    }

    /// Forgets what was found, once all transactions have begun.
    pub(crate) fn end(&mut self) {
        if self.begun >= self.keys.len() {
            self.keys.clear();
        }
    }

    /// Takes the proxy that was found for a key, if this key of this table was asked for. The proxy may have left
    /// the index since.
    pub(crate) fn take(&mut self, number: usize, table: &Table, key: &[u8]) -> Option<Arc<Proxy>> {
        let AskedKey { table: of, found, .. } = self.keys.get_mut(number)?;
        let is_of_table = *of == (table.id, table.generation);
        found.take_if(|proxy| is_of_table && *proxy.key == *key)
    }
}
