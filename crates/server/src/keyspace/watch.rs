//! The observation of a key when a client began to watch the key.
//!
//! A key with a value is compared by the stamp of its last writer. A missing key has no stamp: a
//! reclaimed record leaves only a bound for all keys around it, which rises for many reasons. So a
//! transaction that makes a key tells the clients that watch the key. A later deletion of the key
//! takes nothing back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use stillpoint::{KeySet, Mode, Slot, Stamp, Tx};

use super::databases::Keyspace;
use super::value::Entry;
use crate::config::Db;

/// A key under `WATCH`.
#[derive(Debug)]
pub(crate) struct Watched {
    db: Db,
    key: Box<[u8]>,
    seen: Observation,
}

/// The client's observation of the key.
#[derive(Debug)]
enum Observation {
    /// The key had a value, whose last writer left this stamp.
    Value(Stamp),
    /// The key was missing or had expired.
    Missing(MissingKey),
}

impl Watched {
    /// Watches the key at `slot`, which the transaction holds locked for writing.
    pub(super) fn new(
        missing_keys: &Arc<MissingKeys>,
        tx: &mut Tx<'_>,
        slot: Slot,
        (db, key): (Db, &[u8]),
        now_ms: u64,
    ) -> Self {
        let seen = if is_present(tx, slot, now_ms) {
            Observation::Value(tx.stamp(slot))
        } else {
            Observation::Missing(missing_keys.watch(tx.key_hash(slot)))
        };
        Self { db, key: key.into(), seen }
    }

    /// Whether this value watches the given key.
    pub(crate) fn is(&self, db: Db, key: &[u8]) -> bool {
        self.db == db && *self.key == *key
    }

    /// Declares the key in a transaction that asks for [`is_unchanged`](Self::is_unchanged).
    pub(crate) fn declare(&self, keyspace: &Keyspace, keys: &mut KeySet) {
        keyspace.declare(keys, self.db, &self.key, Mode::Read, 0);
    }

    /// Whether the key, declared at `slot`, is as the client saw it. A key that was missing and
    /// still is counts as unchanged, unless a transaction has made the key in between.
    pub(crate) fn is_unchanged(&self, tx: &mut Tx<'_>, slot: Slot, now_ms: u64) -> bool {
        let is_present = is_present(tx, slot, now_ms);
        match &self.seen {
            Observation::Value(stamp) => is_present && tx.stamp(slot) == *stamp,
            Observation::Missing(key) => !is_present && !key.was_made(),
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        self.key.len() + size_of::<Self>()
    }
}

fn is_present(tx: &mut Tx<'_>, slot: Slot, now_ms: u64) -> bool {
    tx.value(slot).is_some_and(|value| !Entry::new(value).is_expired(now_ms))
}

/// Counters of the filter.
const COUNTERS: usize = 1024;

/// The missing keys that are watched, by their hash.
#[derive(Debug)]
pub(super) struct MissingKeys {
    /// Number of the `keys` that share some bits of the hash. A transaction that makes a key reads
    /// a counter first. The counters are rarely written. Relaxed: watcher and maker hold the key's
    /// lock, which orders their accesses.
    counters: Box<[AtomicU32]>,
    /// By hash, whether the key was made. A key that was made has left the map.
    keys: Mutex<HashMap<u64, Arc<AtomicBool>>>,
}

impl Default for MissingKeys {
    fn default() -> Self {
        let counters = (0..COUNTERS).map(|_| AtomicU32::new(0)).collect();
        Self { counters, keys: Mutex::default() }
    }
}

impl MissingKeys {
    /// Watches a missing key by its hash. The caller holds the key's lock.
    fn watch(self: &Arc<Self>, hash: u64) -> MissingKey {
        let mut keys = self.keys.lock();
        let made = keys.entry(hash).or_insert_with(|| {
            self.counter(hash).fetch_add(1, Ordering::Relaxed);
            Arc::default()
        });
        MissingKey { made: Arc::clone(made), hash, of: Arc::clone(self) }
    }

    /// Whether somebody may watch the key. The caller holds the key's lock.
    #[inline]
    pub(super) fn may_watch(&self, hash: u64) -> bool {
        self.counter(hash).load(Ordering::Relaxed) > 0
    }

    /// Tells the watchers of the key that it is made. The caller holds the key's lock for writing.
    pub(super) fn made(&self, hash: u64) {
        if let Some(made) = self.keys.lock().remove(&hash) {
            self.counter(hash).fetch_sub(1, Ordering::Relaxed);
            // Relaxed: the key's lock orders this store and the load in `was_made`.
            made.store(true, Ordering::Relaxed);
        }
    }

    fn counter(&self, hash: u64) -> &AtomicU32 {
        &self.counters[hash as usize % COUNTERS]
    }
}

/// A key that was missing, watched until this value is dropped.
#[derive(Debug)]
struct MissingKey {
    made: Arc<AtomicBool>,
    hash: u64,
    of: Arc<MissingKeys>,
}

impl MissingKey {
    /// Whether the key was made since.
    fn was_made(&self) -> bool {
        // Relaxed: see `MissingKeys::made`.
        self.made.load(Ordering::Relaxed)
    }
}

impl Drop for MissingKey {
    fn drop(&mut self) {
        let mut keys = self.of.keys.lock();
        // The reference of this watcher and that of the map are the last two. New references come
        // only from the map.
        let is_last = Arc::strong_count(&self.made) == 2;
        if is_last && keys.get(&self.hash).is_some_and(|made| Arc::ptr_eq(made, &self.made)) {
            keys.remove(&self.hash);
            self.of.counter(self.hash).fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_watches_a_key_that_is_made_is_told_and_who_comes_later_is_not() {
        let missing = Arc::new(MissingKeys::default());
        let (one, two, other) = (missing.watch(7), missing.watch(7), missing.watch(8));
        assert!(missing.may_watch(7) && !missing.may_watch(9));
        missing.made(7);
        assert!(one.was_made() && two.was_made() && !other.was_made());
        let late = missing.watch(7);
        drop((one, two));
        assert!(!late.was_made() && missing.may_watch(7));
        missing.made(7);
        assert!(late.was_made());
    }

    #[test]
    fn nothing_is_left_of_keys_that_nobody_watches_any_more() {
        let missing = Arc::new(MissingKeys::default());
        // The third key is another one, and shares the counter of the first two.
        let (one, two, other) = (missing.watch(7), missing.watch(7), missing.watch(7 + 1024));
        drop(one);
        missing.made(7);
        drop(two);
        assert!(missing.may_watch(7) && !other.was_made());
        drop(other);
        assert!(!missing.may_watch(7) && missing.keys.lock().is_empty());
        assert!(missing.counters.iter().all(|count| count.load(Ordering::Relaxed) == 0));
    }
}
