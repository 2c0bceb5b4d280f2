//! Compares the trackers of changed records that the CALC paper names (SIGMOD 2016, §2.3): a bit
//! vector, a hash set, a Bloom filter. Each is marked by the first write of a record in a period, and
//! walked once by the capture. `cargo bench -p stillpoint-store --bench trackers -- [RECORDS]`
//! (default 20 M; the figures of docs/decisions/0026-a-bit-vector-tracks-changes.md).
//!
//! The header of a cell says whether it is marked already, so a tracker sees each record once. The
//! marks come in random order, as transactions do. The walk visits the cells in the order of their
//! numbers: a walk in random order would find no cell in the cache.
#![expect(clippy::print_stdout, reason = "a report on the terminal")]

use hashbrown::HashSet;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_io::{Clock, RealClock};

const SHARDS: usize = 64;
/// Bits of a Bloom filter for each record that is expected to change, and bits that a record sets.
const BLOOM_BITS: usize = 10;
const BLOOM_HASHES: u64 = 7;

/// The distance of two marked records. A prime, so that each record comes once.
const STEP: u64 = 15_485_863;

/// A hash of a number, good in all bits.
fn hash(number: u64) -> u64 {
    let product = u128::from(number ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (product as u64) ^ (product >> 64) as u64
}

/// A tracker: all methods may be called by several threads.
trait Tracker {
    /// The name in the report.
    const NAME: &'static str;
    /// A tracker of `records` records, of which about `changed` change.
    fn new(records: u64, changed: u64) -> Self;
    fn mark(&self, record: u64);
    /// Visits at least the marked records.
    fn walk(&self, visit: &mut dyn FnMut(u64));
    fn bytes(&self) -> usize;
}

struct Bits(Vec<AtomicU64>);

impl Tracker for Bits {
    const NAME: &'static str = "bit vector";
    fn new(records: u64, _: u64) -> Self {
        Self((0..records.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }
    fn mark(&self, record: u64) {
        self.0[(record / 64) as usize].fetch_or(1 << (record % 64), Relaxed);
    }
    fn walk(&self, visit: &mut dyn FnMut(u64)) {
        for (word, bits) in (0..).zip(&self.0) {
            let mut bits = bits.load(Relaxed);
            while bits != 0 {
                visit(word * 64 + u64::from(bits.trailing_zeros()));
                bits &= bits - 1;
            }
        }
    }
    fn bytes(&self) -> usize {
        self.0.len() * 8
    }
}

struct Set(Vec<Mutex<HashSet<u64>>>);

impl Tracker for Set {
    const NAME: &'static str = "hash set";
    fn new(_: u64, changed: u64) -> Self {
        let shard = || Mutex::new(HashSet::with_capacity(changed as usize / SHARDS));
        Self((0..SHARDS).map(|_| shard()).collect())
    }
    fn mark(&self, record: u64) {
        self.0[hash(record) as usize % SHARDS].lock().insert(record);
    }
    fn walk(&self, visit: &mut dyn FnMut(u64)) {
        let mut all: Vec<u64> = Vec::new();
        self.0.iter().for_each(|shard| all.extend(&*shard.lock()));
        all.sort_unstable();
        all.into_iter().for_each(visit);
    }
    fn bytes(&self) -> usize {
        // A slot of the set has a number and a byte; the sorted copy has the number again.
        let slots = |shard: &Mutex<HashSet<u64>>| shard.lock().capacity() / 7 * 8;
        self.0.iter().map(|shard| slots(shard) * 9 + shard.lock().len() * 8).sum()
    }
}

struct Bloom {
    bits: Vec<AtomicU64>,
    records: u64,
}

impl Bloom {
    fn places(&self, record: u64) -> impl Iterator<Item = (usize, u64)> + '_ {
        let (first, step) = (hash(record), hash(record ^ 0x5555) | 1);
        (0..BLOOM_HASHES).map(move |n| {
            let bit = first.wrapping_add(step.wrapping_mul(n)) as usize % (self.bits.len() * 64);
            (bit / 64, 1 << (bit % 64))
        })
    }
}

impl Tracker for Bloom {
    const NAME: &'static str = "Bloom filter";
    fn new(records: u64, changed: u64) -> Self {
        let words = (changed as usize * BLOOM_BITS).div_ceil(64);
        Self { bits: (0..words).map(|_| AtomicU64::new(0)).collect(), records }
    }
    fn mark(&self, record: u64) {
        for (word, bit) in self.places(record) {
            self.bits[word].fetch_or(bit, Relaxed);
        }
    }
    fn walk(&self, visit: &mut dyn FnMut(u64)) {
        let is_set = |(word, bit): (usize, u64)| self.bits[word].load(Relaxed) & bit != 0;
        // A Bloom filter cannot enumerate: each record is tested.
        (0..self.records).filter(|&record| self.places(record).all(is_set)).for_each(visit);
    }
    fn bytes(&self) -> usize {
        self.bits.len() * 8
    }
}

fn measure<T: Tracker>(records: u64, percent: u64) {
    let changed = records * percent / 100;
    let record = |n: u64| ((u128::from(n) * u128::from(STEP)) % u128::from(records)) as u64;
    let tracker = T::new(records, changed);
    let start_ns = RealClock.monotonic_ns();
    (0..changed).for_each(|n| tracker.mark(record(n)));
    let marked_ns = RealClock.monotonic_ns();
    let (mut visited, mut sum) = (0u64, 0u64);
    tracker.walk(&mut |record| {
        visited += 1;
        sum = sum.wrapping_add(record);
    });
    let walked_ns = RealClock.monotonic_ns();
    assert!(visited >= changed, "a marked record was not visited: {sum}");
    let per = |ns: u64| ns as f64 / changed as f64;
    println!(
        "{percent:>3} % of {records}: {:<13} {:>7.1} MB, mark {:>6.1} ns, walk {:>7.1} ns for each marked, visited {:.3} × the marked",
        T::NAME,
        tracker.bytes() as f64 / 1e6,
        per(marked_ns - start_ns),
        per(walked_ns - marked_ns),
        visited as f64 / changed as f64,
    );
}

fn main() {
    let number = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let records = number.unwrap_or(20_000_000);
    for percent in [10, 1] {
        measure::<Bits>(records, percent);
        measure::<Set>(records, percent);
        measure::<Bloom>(records, percent);
    }
}
