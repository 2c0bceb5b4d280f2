//! Keys that clients watch while they are missing.
//!
//! A key that is there is compared by the stamp of its last writer. One that is missing has none to
//! compare: a reclaimed record leaves only a bound for all keys around it, which rises for many
//! reasons. So who makes a key tells those who watch it, and then it does not matter whether the
//! key is removed again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;

/// Counters of the filter.
const COUNTERS: usize = 1024;

/// The missing keys that are watched, by their hash.
#[derive(Debug)]
pub(crate) struct MissingKeys {
    /// How many of `keys` share some bits of the hash. Who makes a key looks here first, at memory
    /// that nobody writes as a rule. Relaxed: both sides hold the key's lock, which orders them.
    counters: Box<[AtomicU32]>,
    /// Whether the key was made since it is watched; then it is not in here any more.
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
    pub(crate) fn watch(self: &Arc<Self>, hash: u64) -> MissingKey {
        let mut keys = self.keys.lock();
        let made = keys.entry(hash).or_insert_with(|| {
            self.counter(hash).fetch_add(1, Ordering::Relaxed);
            Arc::default()
        });
        MissingKey { made: Arc::clone(made), hash, of: Arc::clone(self) }
    }

    /// True if somebody may watch the key. The caller holds its lock.
    pub(crate) fn may_watch(&self, hash: u64) -> bool {
        self.counter(hash).load(Ordering::Relaxed) > 0
    }

    /// Tells those who watch the key that it is made. The caller holds its lock for writing.
    pub(crate) fn made(&self, hash: u64) {
        if let Some(made) = self.keys.lock().remove(&hash) {
            self.counter(hash).fetch_sub(1, Ordering::Relaxed);
            // Relaxed: ordered by the key's lock, as the counters are.
            made.store(true, Ordering::Relaxed);
        }
    }

    fn counter(&self, hash: u64) -> &AtomicU32 {
        &self.counters[hash as usize % COUNTERS]
    }
}

/// A key that was missing, watched until this is dropped.
#[derive(Debug)]
pub(crate) struct MissingKey {
    made: Arc<AtomicBool>,
    hash: u64,
    of: Arc<MissingKeys>,
}

impl MissingKey {
    /// True if the key was made since.
    pub(crate) fn was_made(&self) -> bool {
        // Relaxed: see `MissingKeys::made`.
        self.made.load(Ordering::Relaxed)
    }
}

impl Drop for MissingKey {
    fn drop(&mut self) {
        let mut keys = self.of.keys.lock();
        // Only this one and the map still have it; more come only through the map.
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
        // The same counter, another key.
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
