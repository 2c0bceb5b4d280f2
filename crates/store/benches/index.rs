//! Compares our index with `scc`, `papaya` and sharded `hashbrown`. The benchmark measures
//! insertion into an empty index, lookup of present and missing keys, and replacement, with one and
//! two threads, by 8-byte keys. `cargo bench -p stillpoint-store --bench index -- [ENTRIES]`
//! (default 1 M; the figures of docs/decisions/0007-own-index.md are for 10 M).
//!
//! Every lookup reads the record, 128 bytes in a large array. Our index finds the key there. The
//! others hold the key themselves, with the record's number as value. All use the same hash.
#![expect(clippy::print_stdout, reason = "a report on the terminal")]

#[expect(dead_code, unused_imports, reason = "the index has more uses than this")]
#[path = "../src/memory/index.rs"]
mod index;

/// The index's view of cells.
mod arena {
    pub(crate) const NUMBER_BITS: u32 = 36;
}

use hashbrown::HashMap;
use index::{Index, Inserted};
use parking_lot::RwLock;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use stillpoint_io::{Clock, RealClock};

/// Lookups whose lines are prefetched together, if an index can do that.
const BATCH: usize = 16;
const SHARDS: usize = 64;
const RECORD_WORDS: usize = 16;

/// A hash of 8-byte keys, good in all bits, with one multiplication more than usual.
fn hash(key: u64) -> u64 {
    let product = u128::from(key ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (product as u64) ^ (product >> 64) as u64
}

#[derive(Clone, Copy, Default)]
struct OneHash;

struct Hashed(u64);

impl BuildHasher for OneHash {
    type Hasher = Hashed;
    fn build_hasher(&self) -> Hashed {
        Hashed(0)
    }
}

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are integers")
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = hash(key);
    }
}

/// The records: word 2 is the key, word 4 something to read.
struct Records(Vec<AtomicU64>);

impl Records {
    fn new(count: u64) -> Self {
        let words = (count as usize + 1) * RECORD_WORDS;
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }
    fn word(&self, number: u64, word: usize) -> &AtomicU64 {
        &self.0[number as usize * RECORD_WORDS + word]
    }
    fn set(&self, number: u64, key: u64) {
        self.word(number, 2).store(key, Relaxed);
        self.word(number, 4).store(key, Relaxed);
    }
    fn has_key(&self, number: u64, key: u64) -> bool {
        self.word(number, 2).load(Relaxed) == key
    }
    fn read(&self, number: u64) -> u64 {
        self.word(number, 4).load(Relaxed)
    }
}

/// An index under test. Keys are below 2^63, record numbers from 1 on.
trait Subject: Send + Sync {
    fn insert(&self, worker: usize, key: u64, number: u64);
    /// The record of a key. 0 if there is none.
    fn find(&self, key: u64) -> u64;
    fn remove(&self, worker: usize, key: u64, number: u64);
    /// Reads the records of several keys.
    fn read_all(&self, records: &Records, keys: &[u64]) -> u64 {
        let read = |key: &u64| match self.find(*key) {
            0 => 0,
            number => records.read(number),
        };
        keys.iter().map(read).fold(0, u64::wrapping_add)
    }
}

struct Ours {
    index: Index,
    records: Arc<Records>,
    batched: bool,
}

impl Subject for Ours {
    fn insert(&self, worker: usize, key: u64, number: u64) {
        let is_key = |cell| self.records.has_key(cell, key);
        let inserted = self.index.insert(worker, hash(key), number, is_key, || {});
        assert_eq!(inserted, Inserted::New);
    }
    fn find(&self, key: u64) -> u64 {
        let is_key = |cell| self.records.has_key(cell, key);
        self.index.find(hash(key), is_key).unwrap_or(0)
    }
    fn remove(&self, worker: usize, key: u64, number: u64) {
        assert!(self.index.remove(worker, hash(key), number, || {}));
    }
    fn read_all(&self, records: &Records, keys: &[u64]) -> u64 {
        let mut sum = 0u64;
        if self.batched {
            for keys in keys.chunks(BATCH) {
                let mut buckets = [0; BATCH];
                for (key, bucket) in keys.iter().zip(&mut buckets) {
                    *bucket = self.index.prefetch(hash(*key));
                }
                for (key, bucket) in keys.iter().zip(buckets) {
                    let candidate = self.index.candidate(bucket, hash(*key));
                    stillpoint_mem::prefetch(records.word(candidate, 0));
                }
                for key in keys {
                    let number = self.find(*key);
                    sum = sum.wrapping_add(if number == 0 { 0 } else { records.read(number) });
                }
            }
            return sum;
        }
        for key in keys {
            let number = self.find(*key);
            sum = sum.wrapping_add(if number == 0 { 0 } else { records.read(number) });
        }
        sum
    }
}

impl Subject for scc::HashMap<u64, u64, OneHash> {
    fn insert(&self, _: usize, key: u64, number: u64) {
        assert!(self.insert_sync(key, number).is_ok());
    }
    fn find(&self, key: u64) -> u64 {
        self.read_sync(&key, |_, number| *number).unwrap_or(0)
    }
    fn remove(&self, _: usize, key: u64, _: u64) {
        assert!(self.remove_sync(&key).is_some());
    }
}

impl Subject for papaya::HashMap<u64, u64, OneHash> {
    fn insert(&self, _: usize, key: u64, number: u64) {
        assert!(self.pin().insert(key, number).is_none());
    }
    fn find(&self, key: u64) -> u64 {
        self.pin().get(&key).copied().unwrap_or(0)
    }
    fn remove(&self, _: usize, key: u64, _: u64) {
        assert!(self.pin().remove(&key).is_some());
    }
    fn read_all(&self, records: &Records, keys: &[u64]) -> u64 {
        // One guard for all lookups, as the library recommends.
        let pinned = self.pin();
        let read = |key: &u64| pinned.get(key).map_or(0, |number| records.read(*number));
        keys.iter().map(read).fold(0, u64::wrapping_add)
    }
}

struct Sharded(Vec<RwLock<HashMap<u64, u64, OneHash>>>);

impl Sharded {
    fn shard(&self, key: u64) -> &RwLock<HashMap<u64, u64, OneHash>> {
        // Bits that hashbrown uses neither for the bucket nor for the tag.
        &self.0[(hash(key) >> 50) as usize % SHARDS]
    }
}

impl Subject for Sharded {
    fn insert(&self, _: usize, key: u64, number: u64) {
        assert!(self.shard(key).write().insert(key, number).is_none());
    }
    fn find(&self, key: u64) -> u64 {
        self.shard(key).read().get(&key).copied().unwrap_or(0)
    }
    fn remove(&self, _: usize, key: u64, _: u64) {
        assert!(self.shard(key).write().remove(&key).is_some());
    }
}

/// Key of the record `number`. The keys are scattered, and none is the key of a missing record.
fn key_of(number: u64) -> u64 {
    hash(number) >> 1
}

/// Runs `work` on a number of threads. Returns the nanoseconds of the whole.
fn timed(threads: u64, work: impl Fn(u64) + Send + Sync + 'static) -> f64 {
    let work = Arc::new(work);
    let ready = Arc::new(AtomicU64::new(0));
    let running: Vec<_> = (0..threads)
        .map(|thread| {
            let (work, ready) = (work.clone(), ready.clone());
            let run = move || {
                ready.fetch_add(1, SeqCst);
                while ready.load(SeqCst) <= threads {
                    std::hint::spin_loop();
                }
                work(thread);
            };
            stillpoint_io::spawn(&format!("bench-{thread}"), run).expect("a thread")
        })
        .collect();
    while ready.load(SeqCst) < threads {
        std::hint::spin_loop();
    }
    let start = RealClock.monotonic_ns();
    ready.fetch_add(1, SeqCst);
    for thread in running {
        thread.join().expect("no panic");
    }
    (RealClock.monotonic_ns() - start) as f64
}

/// Nanoseconds per operation of all threads together, and the longest single insertion.
struct Figures {
    insert: f64,
    insert_us_max: f64,
    hit: f64,
    miss: f64,
    replace: f64,
}

fn measure(
    subject: &Arc<dyn Subject>,
    records: &Arc<Records>,
    entries: u64,
    threads: u64,
) -> Figures {
    let per = entries / threads;
    let longest = Arc::new(AtomicU64::new(0));
    let (index, all, max) = (subject.clone(), records.clone(), longest.clone());
    let insert = timed(threads, move |thread| {
        for number in thread * per + 1..=(thread + 1) * per {
            all.set(number, key_of(number));
            let start = RealClock.monotonic_ns();
            index.insert(thread as usize, key_of(number), number);
            max.fetch_max(RealClock.monotonic_ns() - start, Relaxed);
        }
    });
    let lookups = (entries / threads).min(4_000_000);
    let read = |missing: u64| {
        let (index, all) = (subject.clone(), records.clone());
        timed(threads, move |thread| {
            let mut keys = [0; 64];
            let mut number = thread;
            let mut sum = 0u64;
            for _ in 0..lookups / 64 {
                for key in &mut keys {
                    number = hash(number);
                    let drawn = (u128::from(number) * u128::from(per * threads)) >> 64;
                    *key = key_of(drawn as u64 + 1 + missing);
                }
                sum = sum.wrapping_add(index.read_all(&all, &keys));
            }
            assert_eq!(sum == 0, missing != 0);
        })
    };
    let (hit, miss) = (read(0), read(1 << 40));
    let index = subject.clone();
    let replaced = (lookups / 4).min(per);
    let replace = timed(threads, move |thread| {
        for turn in 0..replaced {
            let number = thread * per + 1 + hash(turn) % per;
            index.remove(thread as usize, key_of(number), number);
            index.insert(thread as usize, key_of(number), number);
        }
    });
    Figures {
        insert: insert / (per * threads) as f64,
        insert_us_max: longest.load(Relaxed) as f64 / 1e3,
        hit: hit / (lookups * threads) as f64,
        miss: miss / (lookups * threads) as f64,
        replace: replace / (replaced * threads) as f64,
    }
}

fn main() {
    let asked = std::env::args().filter_map(|text| text.parse().ok()).next();
    let entries: u64 = asked.unwrap_or(1_000_000);
    println!("{entries} entries; nanoseconds per operation, all threads together");
    println!("{:24} threads  insert  longest insert (us)     hit    miss  remove+insert", "index");
    let records = Arc::new(Records::new(entries));
    for threads in [1, 2] {
        let subject = |name: &str| -> Arc<dyn Subject> {
            let ours = |batched| Ours {
                index: Index::new(&Arc::default()).expect("address space"),
                records: records.clone(),
                batched,
            };
            match name {
                "ours" => Arc::new(ours(false)),
                "ours, fetched ahead" => Arc::new(ours(true)),
                "scc" => Arc::new(scc::HashMap::with_hasher(OneHash)),
                "papaya" => Arc::new(papaya::HashMap::with_hasher(OneHash)),
                _ => Arc::new(Sharded((0..SHARDS).map(|_| RwLock::default()).collect())),
            }
        };
        for name in ["ours", "ours, fetched ahead", "scc", "papaya", "hashbrown, 64 shards"] {
            let figures = measure(&subject(name), &records, entries, threads);
            println!(
                "{name:24} {threads:7} {:7.0} {:20.0} {:7.0} {:7.0} {:14.0}",
                figures.insert, figures.insert_us_max, figures.hit, figures.miss, figures.replace
            );
        }
    }
}
