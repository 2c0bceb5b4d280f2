//! Counters about keys: one block for each event loop, which alone writes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::config::{DATABASES, Db};
use crate::counter::Counter;

/// The counters of one event loop.
#[derive(Debug, Default)]
pub(crate) struct KeyCounters {
    hits: Counter,
    misses: Counter,
    /// Expired keys that this event loop has deleted.
    pub(super) expired: Counter,
    /// Expired fields of hashes that this event loop has deleted.
    pub(super) expired_fields: Counter,
    /// Keys that the thread of these counters has given up because memory was full.
    pub(super) evicted: Counter,
    /// Number of keys that got an expiry minus number of keys that lost an expiry, by database.
    expiring: [AtomicI64; DATABASES as usize],
    /// Keys that got an expiry, or whose fields expire earlier than before, by database; never goes
    /// down.
    expiring_set: [Counter; DATABASES as usize],
}

impl KeyCounters {
    /// Counts a lookup.
    pub(super) fn count_lookup(&self, is_hit: bool) {
        if is_hit { self.hits.add(1) } else { self.misses.add(1) }
    }

    /// Counts a key that got an expiry (`by` is 1) or lost one (-1).
    pub(super) fn expiring_changed(&self, db: Db, by: i64) {
        let count = &self.expiring[usize::from(db)];
        // Relaxed: the counter has one writer, as `Counter` has.
        count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        if by > 0 {
            self.fields_expire(db);
        }
    }

    /// Notes that the scan for expired keys and fields has something to find.
    pub(super) fn fields_expire(&self, db: Db) {
        self.expiring_set[usize::from(db)].add(1);
    }
}

/// The counters of all event loops.
#[derive(Debug)]
pub(super) struct Counts {
    loops: Vec<Arc<KeyCounters>>,
    /// Keys with an expiry by database, in addition to those that the event loops have counted.
    expiring_base: [AtomicI64; DATABASES as usize],
}

impl Counts {
    pub(super) fn new(workers: usize) -> Self {
        let loops = (0..workers).map(|_| Arc::default()).collect();
        Self { loops, expiring_base: Default::default() }
    }

    /// The counters of event loop `worker`.
    pub(super) fn of(&self, worker: usize) -> &Arc<KeyCounters> {
        &self.loops[worker]
    }

    fn sum(&self, counter: impl Fn(&KeyCounters) -> u64) -> u64 {
        self.loops.iter().map(|counters| counter(counters)).sum()
    }

    fn expiring_changes(&self, db: Db) -> i64 {
        // Relaxed: partner of the store in `expiring_changed`.
        let of = |counters: &Arc<KeyCounters>| {
            counters.expiring[usize::from(db)].load(Ordering::Relaxed)
        };
        self.loops.iter().map(of).sum()
    }

    /// Approximate number of keys of the database with an expiry.
    ///
    /// The number is the count of the last expiry scan, plus the changes since.
    pub(super) fn expiring(&self, db: Db) -> u64 {
        // Relaxed: partner of the store in `restart_expiring`.
        let base = self.expiring_base[usize::from(db)].load(Ordering::Relaxed);
        (base + self.expiring_changes(db)).max(0).cast_unsigned()
    }

    /// Makes `count` the present number of keys with an expiry.
    pub(super) fn restart_expiring(&self, db: Db, count: u64) {
        let base = count as i64 - self.expiring_changes(db);
        // Relaxed: partner of the load in `expiring`, a number for people.
        self.expiring_base[usize::from(db)].store(base, Ordering::Relaxed);
    }

    /// Exchanges the counts of two databases. No event loop counts meanwhile.
    pub(super) fn swap(&self, a: Db, b: Db) {
        let (of_a, of_b) = (self.expiring(a), self.expiring(b));
        for (db, count) in [(a, of_b), (b, of_a)] {
            self.restart_expiring(db, count);
            // The addition makes the scan for expired keys look at the database again.
            if let Some(counters) = self.loops.first() {
                counters.expiring_set[usize::from(db)].add(1);
            }
        }
    }

    /// How often a key of the database, or a field of one, got an expiry since the start, at least.
    pub(super) fn expiring_set(&self, db: Db) -> u64 {
        self.sum(|counters| counters.expiring_set[usize::from(db)].get())
    }

    pub(super) fn hits(&self) -> u64 {
        self.sum(|counters| counters.hits.get())
    }

    pub(super) fn misses(&self) -> u64 {
        self.sum(|counters| counters.misses.get())
    }

    pub(super) fn expired(&self) -> u64 {
        self.sum(|counters| counters.expired.get())
    }

    pub(super) fn expired_fields(&self) -> u64 {
        self.sum(|counters| counters.expired_fields.get())
    }

    pub(super) fn evicted(&self) -> u64 {
        self.sum(|counters| counters.evicted.get())
    }

    /// Clears the counters that `CONFIG RESETSTAT` clears.
    pub(super) fn reset(&self) {
        for counters in &self.loops {
            let KeyCounters { hits, misses, expired, expired_fields, evicted, .. } = &**counters;
            for counter in [hits, misses, expired, expired_fields, evicted] {
                counter.clear();
            }
        }
    }
}
