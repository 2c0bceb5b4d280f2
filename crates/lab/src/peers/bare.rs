//! The limit of the CALC transaction: a bare hash table with a lock word for each record. It has no
//! transactions that can end otherwise, no log and no checkpoints.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{BARE, CALC_SHAPE};
use crate::error::{LabError, LabResult};
use crate::subjects::adapter::{Checkpointed, Client, Status};
use crate::workloads::random::{Random, splitmix64};

/// Words of an entry: lock, key + 1 (0 for none), counter and further words of the value. Two cache lines.
const ENTRY_WORDS: usize = 16;
const LOCK: usize = 0;
const KEY: usize = 1;
const VALUE: usize = 2;
/// Words of a value.
const VALUE_WORDS: usize = CALC_SHAPE.1.div_ceil(8);

/// Open addressing with linear probing.
pub(super) struct BareTable {
    words: Vec<AtomicU64>,
    mask: u64,
    records: u64,
    updates: AtomicU64,
}

impl BareTable {
    /// A table with these records, at most half full.
    pub(super) fn filled(records: u64) -> BareTable {
        let entries = (records * 2).next_power_of_two();
        let mut words = Vec::new();
        words.resize_with(entries as usize * ENTRY_WORDS, AtomicU64::default);
        let table = BareTable { words, mask: entries - 1, records, updates: AtomicU64::new(0) };
        for key in 0..records {
            let mut at = table.home(key);
            // Relaxed: nobody else has the table yet.
            while table.entry(at)[KEY].load(Ordering::Relaxed) != 0 {
                at = (at + 1) & table.mask;
            }
            let entry = table.entry(at);
            entry[KEY].store(key + 1, Ordering::Relaxed);
            for word in &entry[VALUE + 1..VALUE + VALUE_WORDS] {
                word.store(key, Ordering::Relaxed);
            }
        }
        table
    }

    fn home(&self, key: u64) -> u64 {
        let mut mix = key;
        splitmix64(&mut mix) & self.mask
    }

    fn entry(&self, at: u64) -> &[AtomicU64] {
        &self.words[at as usize * ENTRY_WORDS..][..ENTRY_WORDS]
    }

    fn find(&self, key: u64) -> &[AtomicU64] {
        let mut at = self.home(key);
        loop {
            let entry = self.entry(at);
            // Relaxed: keys are never changed once the table is filled.
            if entry[KEY].load(Ordering::Relaxed) == key + 1 {
                return entry;
            }
            at = (at + 1) & self.mask;
        }
    }

    /// A client that runs CALC transactions.
    pub(super) fn client(&self, worker: usize, seed: u64) -> Box<dyn Client + '_> {
        let random = Random::for_thread(seed, worker);
        Box::new(BareClient { table: self, random, keys: Vec::new(), computed: 0 })
    }

    /// Compares the counters with the number of updates.
    pub(super) fn check(&self) -> LabResult<()> {
        // Relaxed: all clients have ended.
        let counted = |key| self.find(key)[VALUE].load(Ordering::Relaxed);
        let (found, expected) =
            ((0..self.records).map(counted).sum::<u64>(), self.updates.load(Ordering::Relaxed));
        if found == expected {
            return Ok(());
        }
        let reason = format!("{found} updates are there, {expected} were made");
        Err(LabError::Engine { engine: BARE.into(), reason })
    }
}

impl Checkpointed for BareTable {
    fn start_checkpoint(&self) -> LabResult<()> {
        let reason = "a bare table takes no checkpoints".into();
        Err(LabError::Engine { engine: BARE.into(), reason })
    }

    fn status(&self) -> Status {
        Status::default()
    }
}

struct BareClient<'a> {
    table: &'a BareTable,
    random: Random,
    keys: Vec<u64>,
    computed: u64,
}

impl BareClient<'_> {
    /// Locks the records in the order of their keys, reads and updates them, and unlocks.
    fn run_one(&mut self, keys: &[u64]) {
        let entries: Vec<&[AtomicU64]> = keys.iter().map(|&key| self.table.find(key)).collect();
        for entry in &entries {
            // Acquire: partner of the Release below, by which the last holder has given it back.
            while entry[LOCK]
                .compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
            {
                std::hint::spin_loop();
            }
        }
        for entry in &entries {
            // Relaxed: the lock orders the accesses of its holders.
            let value = &entry[VALUE..VALUE + VALUE_WORDS];
            let sum = value.iter().map(|word| word.load(Ordering::Relaxed));
            self.computed = sum.fold(self.computed, u64::wrapping_add);
            value[0].store(value[0].load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        for entry in &entries {
            entry[LOCK].store(0, Ordering::Release);
        }
    }
}

impl Client for BareClient<'_> {
    fn run(&mut self, count: usize) -> LabResult<usize> {
        let (touched, records) = (CALC_SHAPE.0, self.table.records);
        let mut keys = std::mem::take(&mut self.keys);
        keys.clear();
        for _ in 0..count {
            let first = keys.len();
            while keys.len() < first + touched {
                let key = self.random.below(records);
                if !keys[first..].contains(&key) {
                    keys.push(key);
                }
            }
            keys[first..].sort_unstable();
        }
        for &key in &keys {
            let at = self.table.home(key) as usize * ENTRY_WORDS;
            stillpoint_mem::prefetch(&self.table.words[at]);
            stillpoint_mem::prefetch(&self.table.words[at + ENTRY_WORDS / 2]);
        }
        for transaction in keys.chunks(touched) {
            self.run_one(transaction);
        }
        std::hint::black_box(self.computed);
        // Relaxed: a statistic.
        self.table.updates.fetch_add(keys.len() as u64, Ordering::Relaxed);
        self.keys = keys;
        Ok(count)
    }
}
