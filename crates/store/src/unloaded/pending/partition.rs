//! The writes of a range of hashes: in no order at first, and by hash and gsn once somebody has sorted them.
//! Who sorts leaves those out of which later writes of their keys leave nothing.

use std::ops::Range;
use std::sync::OnceLock;

use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{Mutex, RwLock};

use super::notes::{AllNotes, Chunk, PARTITIONS_LOG2, PartitionNotes, WriteEffect, WriteLocation};

/// Writes that share an entry of a partition's directory, about.
const BUCKET_WRITES: usize = 4;
/// Writes of a key whose lines are prefetched.
const PREFETCHED_WRITES: usize = 32;

/// Memory of who sorts partitions, for the next one.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    unsorted: Vec<WriteLocation>,
    sorted: Vec<WriteLocation>,
}

/// Where the writes of each hash lie in a partition that is sorted. Those of one hash are in the order of
/// their gsns.
#[derive(Debug)]
struct Order {
    /// For each of a power of two ranges of hashes, the first note; and the number of notes.
    starts: Box<[u32]>,
    /// A bit for each note, which says that the key has a cell.
    entered: Box<[AtomicU64]>,
}

/// The range of hashes that a hash is in, of a power of two ranges.
fn bucket_of(hash: u64, starts: &[u32]) -> usize {
    let log2 = (starts.len() - 1).ilog2();
    (((hash << PARTITIONS_LOG2) >> 1) >> (63 - log2)) as usize
}

/// The first number of a range of which this does not hold, as `partition_point` of a slice.
fn partition_point(
    Range { mut start, mut end }: Range<usize>,
    holds: impl Fn(usize) -> bool,
) -> usize {
    while start < end {
        let middle = start + (end - start) / 2;
        if holds(middle) {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    start
}

/// Keeps those notes of a sorted bucket of whose writes something is left. Moves them to `kept` and behind, and
/// returns the end. Keys with the same two hashes, of 96 bits, are taken for one.
fn keep_what_counts(notes: &mut [WriteLocation], bucket: Range<usize>, mut kept: usize) -> usize {
    let mut from = bucket.start;
    while from < bucket.end {
        let hash = notes[from].hash;
        let end = (from..bucket.end).find(|&at| notes[at].hash != hash).unwrap_or(bucket.end);
        let key = |note: &WriteLocation| (note.check, note.table);
        let of_one_key = notes[from..end].iter().all(|note| key(note) == key(&notes[from]));
        let is_whole = |note: &WriteLocation| note.effect == WriteEffect::Whole;
        let whole = notes[from..end].iter().rposition(is_whole).filter(|_| of_one_key);
        for at in from + whole.unwrap_or(0)..end {
            let next = (at + 1 < end && of_one_key).then(|| notes[at + 1].effect);
            let is_covered = next.is_some_and(|next| notes[at].effect.is_covered_by(next));
            if !is_covered {
                notes[kept] = notes[at];
                kept += 1;
            }
        }
        from = end;
    }
    kept
}

impl Order {
    /// Sorts the notes, and leaves those out of which later writes leave nothing.
    fn of(notes: PartitionNotes<'_>, Scratch { unsorted, sorted }: &mut Scratch) -> Self {
        unsorted.clear();
        unsorted.extend(notes.unsorted());
        let len = unsorted.len();
        let log2 = (len / BUCKET_WRITES).max(1).next_power_of_two().ilog2();
        let mut starts = vec![0_u32; (1 << log2) + 1];
        for note in &*unsorted {
            let bucket = bucket_of(note.hash, &starts);
            starts[bucket + 1] += 1;
        }
        for bucket in 1..starts.len() {
            starts[bucket] += starts[bucket - 1];
        }
        let mut next = starts.clone();
        sorted.clear();
        sorted.resize(len, WriteLocation::default());
        for note in &*unsorted {
            let slot = &mut next[bucket_of(note.hash, &starts)];
            sorted[*slot as usize] = *note;
            *slot += 1;
        }
        let mut kept = 0;
        for bucket in 0..starts.len() - 1 {
            let notes = starts[bucket] as usize..starts[bucket + 1] as usize;
            // Stable, and fast for what is in order already: writes of one thread are, by gsn.
            sorted[notes.clone()].sort_by_key(|note| (note.hash, note.gsn));
            starts[bucket] = kept as u32;
            kept = keep_what_counts(sorted, notes, kept);
        }
        if let Some(end) = starts.last_mut() {
            *end = kept as u32;
        }
        sorted.truncate(kept);
        let entered = (0..kept.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { starts: starts.into(), entered }
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.starts) + size_of_val(&*self.entered)
    }
}

/// A range of hashes.
#[derive(Debug)]
pub(super) struct Partition {
    chunks: Box<[Chunk]>,
    /// Held by who sorts.
    sorting: Mutex<()>,
    /// Held by who searches notes that are in no order. Who puts them into order holds it alone.
    searching: RwLock<()>,
    order: OnceLock<Order>,
}

impl Partition {
    pub(super) fn new(chunks: Vec<Chunk>) -> Self {
        Self {
            chunks: chunks.into(),
            sorting: Mutex::default(),
            searching: RwLock::default(),
            order: OnceLock::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The partition, with this number, if it is sorted.
    pub(super) fn sorted<'a>(&'a self, notes: &'a AllNotes, number: usize) -> Option<Sorted<'a>> {
        let notes = notes.of_partition(number, &self.chunks);
        self.order.get().map(|order| Sorted { order, notes })
    }

    /// Sorts the writes, unless they are. `note` learns which ones count before anybody else does. Returns
    /// the bytes of memory that this has taken.
    pub(super) fn sort(
        &self,
        (notes, number): (&AllNotes, usize),
        scratch: &mut Scratch,
        note: impl FnOnce(&[WriteLocation]),
    ) -> usize {
        let _turn = self.sorting.lock();
        if self.order.get().is_some() {
            return 0;
        }
        let notes = notes.of_partition(number, &self.chunks);
        let order = Order::of(notes, scratch);
        let bytes = order.bytes();
        note(&scratch.sorted);
        let alone = self.searching.write();
        notes.put_back(&scratch.sorted);
        // Who searches next finds the order.
        let _ = self.order.set(order);
        drop(alone);
        bytes
    }

    /// The writes of a hash, in the order of their gsns. Sorts no others.
    pub(super) fn of_hash(&self, all: &AllNotes, number: usize, hash: u64) -> Vec<WriteLocation> {
        if self.is_empty() {
            return Vec::new();
        }
        if let Some(sorted) = self.sorted(all, number) {
            return sorted.of_hash(hash).collect();
        }
        let _searching = self.searching.read();
        // Who sorts leaves the order before anybody searches again.
        if let Some(sorted) = self.sorted(all, number) {
            return sorted.of_hash(hash).collect();
        }
        let notes = all.of_partition(number, &self.chunks);
        let mut found: Vec<_> = notes.unsorted_of_hash(hash).collect();
        found.sort_by_key(|note| note.gsn);
        found
    }
}

/// A partition that is sorted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sorted<'a> {
    order: &'a Order,
    notes: PartitionNotes<'a>,
}

impl<'a> Sorted<'a> {
    fn bucket(&self, hash: u64) -> Range<usize> {
        let bucket = bucket_of(hash, &self.order.starts);
        self.order.starts[bucket] as usize..self.order.starts[bucket + 1] as usize
    }

    fn range_of(&self, hash: u64) -> Range<usize> {
        let bucket = self.bucket(hash);
        let first = partition_point(bucket.clone(), |at| self.notes.hash(at) < hash);
        first..partition_point(first..bucket.end, |at| self.notes.hash(at) == hash)
    }

    /// Whether there is a write of such a hash.
    pub(super) fn has(&self, hash: u64) -> bool {
        !self.range_of(hash).is_empty()
    }

    /// The writes of a hash, in the order of their gsns.
    pub(super) fn of_hash(self, hash: u64) -> impl Iterator<Item = WriteLocation> + 'a {
        self.range_of(hash).map(move |at| self.notes.sorted(at))
    }

    /// All writes whose keys are not [entered](Self::note_entered).
    pub(super) fn left(self) -> impl Iterator<Item = WriteLocation> + 'a {
        let is_left = move |at: &usize| {
            // Relaxed: as in `note_entered`.
            self.order.entered[at / 64].load(Relaxed) & 1 << (at % 64) == 0
        };
        let len = self.order.starts.last().map_or(0, |&len| len as usize);
        (0..len).filter(is_left).map(move |at| self.notes.sorted(at))
    }

    /// Notes that the only key with such a hash has a cell.
    pub(super) fn note_entered(&self, hash: u64) {
        for at in self.range_of(hash) {
            // Relaxed: only the pass at the end asks, which comes after the threads of the load.
            self.order.entered[at / 64].fetch_or(1 << (at % 64), Relaxed);
        }
    }

    /// Prefetches what leads to the writes of a hash.
    pub(super) fn prefetch(&self, hash: u64) {
        let starts = &self.order.starts;
        stillpoint_mem::prefetch(&starts[bucket_of(hash, starts)]);
    }

    /// Prefetches the writes of a hash.
    pub(super) fn prefetch_notes(&self, hash: u64) {
        // More than two of them lie in a line.
        for at in self.bucket(hash).step_by(2).take(PREFETCHED_WRITES / 2) {
            stillpoint_mem::prefetch(&self.notes.words(at)[0]);
        }
    }

    /// The first writes of a hash, whose lines are to be prefetched.
    pub(super) fn first_of_hash(self, hash: u64) -> impl Iterator<Item = WriteLocation> + 'a {
        self.of_hash(hash).take(PREFETCHED_WRITES)
    }
}
