//! Writes of the logs that wait until their key is asked for or loaded.
//!
//! ```text
//! replay: each thread appends ─▶ partitions by hash, in no order
//!   ─▶ first use of a partition: places sorted by hash and gsn ─▶ all writes of a key, in their order
//! ```
//! A replay only appends, and so touches memory in sequence. Once the store is served, nobody changes any
//! of this. So any number of threads may ask without a lock, and all of them get the same. The memory
//! goes when the load has settled.

use std::sync::OnceLock;

use stillpoint_format::Label;
use stillpoint_format::log::{Write, WriteIter, WriteOp};
use stillpoint_sync::atomic::{AtomicUsize, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::TableId;

/// Bits of the hash that choose a partition.
const PARTITIONS_LOG2: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 11 };
/// Number of partitions.
pub(crate) const PARTITIONS: usize = 1 << PARTITIONS_LOG2;
/// Bytes of the smallest and the largest piece of memory, but for larger writes.
const CHUNK_BYTES_MIN: usize = 512;
const CHUNK_BYTES_MAX: usize = 32 << 10;
/// Bytes of a write's head: gsn, hash, length, generation, table.
const HEAD_BYTES: usize = 8 + 8 + 4 + 4 + 2;
/// Writes that share an entry of a partition's directory, about.
const BUCKET_WRITES: usize = 4;
/// Writes of a key whose lines are prefetched.
const PREFETCHED_WRITES: usize = 16;

/// The patches of a key do not fit its record. The log or the checkpoint is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log changes a part of a value at offset {offset}, and the checkpoints have {len} bytes of it"
)]
pub struct PatchWithoutBase {
    offset: usize,
    len: usize,
}

fn partition_of(hash: u64) -> usize {
    ((hash >> 1) >> (63 - PARTITIONS_LOG2)) as usize
}

/// What precedes a write in memory.
struct Head {
    gsn: u64,
    hash: u64,
    /// Bytes of the write.
    len: u32,
    table: (TableId, u32),
}

impl Head {
    fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.gsn.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.hash.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.table.1.to_le_bytes());
        bytes[24..].copy_from_slice(&self.table.0.0.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEAD_BYTES]) -> Self {
        let eight =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let four =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let table = TableId(u16::from_le_bytes([bytes[24], bytes[25]]));
        Self { gsn: eight(0), hash: eight(8), len: four(16), table: (table, four(20)) }
    }
}

/// Pieces of memory of one partition. Only the last one grows.
#[derive(Debug, Default)]
struct Chunks {
    full: Vec<Vec<u8>>,
    last: Vec<u8>,
}

impl Chunks {
    /// Begins a new piece with room for `len` bytes. Returns its size.
    #[cold]
    fn grow(&mut self, len: usize) -> usize {
        let size = (2 * self.last.capacity()).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).max(len);
        let full = std::mem::replace(&mut self.last, Vec::with_capacity(size));
        if !full.is_empty() {
            self.full.push(full);
        }
        self.last.capacity()
    }
}

/// Writes of the logs that wait for their keys, appended by one thread in any order.
#[derive(Debug)]
pub struct WaitingWrites {
    partitions: Vec<Chunks>,
    bytes: usize,
}

impl Default for WaitingWrites {
    fn default() -> Self {
        Self { partitions: (0..PARTITIONS).map(|_| Chunks::default()).collect(), bytes: 0 }
    }
}

impl WaitingWrites {
    /// Bytes of memory that a write takes beside those of [`bytes`](Self::bytes) once its key has been
    /// asked for.
    pub const PLACE_BYTES: usize = size_of::<WriteLocation>() + size_of::<u32>();

    /// Appends a write to a key with this [hash](crate::Store::hash), in the form that
    /// [`WriteIter::behind`] takes. Its bytes were decoded before.
    #[inline]
    pub fn push(&mut self, hash: u64, gsn: u64, table: (TableId, u32), encoded: &[u8]) {
        let chunks = &mut self.partitions[partition_of(hash)];
        let len = HEAD_BYTES + encoded.len();
        if chunks.last.capacity() - chunks.last.len() < len {
            self.bytes += chunks.grow(len);
        }
        let head = Head { gsn, hash, len: encoded.len() as u32, table };
        chunks.last.extend_from_slice(&head.encode());
        chunks.last.extend_from_slice(encoded);
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Where a write lies in its partition.
#[derive(Clone, Copy, Debug, Default)]
struct WriteLocation {
    hash: u64,
    chunk: u32,
    at: u32,
}

/// The places of a partition's writes, by hash. Those of one hash are in the order of their gsns.
#[derive(Debug)]
struct Order {
    places: Vec<WriteLocation>,
    /// For each of a power of two ranges of hashes, the first place; and the number of places.
    starts: Vec<u32>,
}

impl Order {
    fn of(chunks: &[Vec<u8>]) -> Self {
        let mut found = Vec::new();
        for (chunk, bytes) in chunks.iter().enumerate() {
            let mut at = 0;
            while let Some(head) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
                let Head { hash, gsn, len, .. } = Head::decode(head);
                found.push((WriteLocation { hash, chunk: chunk as u32, at: at as u32 }, gsn));
                at += HEAD_BYTES + len as usize;
            }
        }
        let log2 = (found.len() / BUCKET_WRITES).max(1).next_power_of_two().ilog2();
        let mut order = Self { places: Vec::new(), starts: vec![0; (1 << log2) + 1] };
        for (place, _) in &found {
            let bucket = order.bucket(place.hash);
            order.starts[bucket + 1] += 1;
        }
        for bucket in 1..order.starts.len() {
            order.starts[bucket] += order.starts[bucket - 1];
        }
        let mut next = order.starts.clone();
        let mut sorted = vec![(WriteLocation::default(), 0); found.len()];
        for (place, gsn) in found {
            let slot = &mut next[order.bucket(place.hash)];
            sorted[*slot as usize] = (place, gsn);
            *slot += 1;
        }
        for bucket in order.starts.windows(2) {
            // Stable, and fast for what is in order already: writes of one thread are, by gsn.
            sorted[bucket[0] as usize..bucket[1] as usize]
                .sort_by_key(|(place, gsn)| (place.hash, *gsn));
        }
        order.places = Vec::with_capacity(sorted.len());
        order.places.extend(sorted.iter().map(|(place, _)| *place));
        order
    }

    fn bucket(&self, hash: u64) -> usize {
        let log2 = (self.starts.len() - 1).ilog2();
        (((hash << PARTITIONS_LOG2) >> 1) >> (63 - log2)) as usize
    }

    fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<WriteLocation>()
            + self.starts.capacity() * size_of::<u32>()
    }

    fn of_hash(&self, hash: u64) -> &[WriteLocation] {
        let bucket = self.bucket(hash);
        let (from, to) = (self.starts[bucket] as usize, self.starts[bucket + 1] as usize);
        let of_bucket = &self.places[from..to];
        let from = of_bucket.partition_point(|place| place.hash < hash);
        let count = of_bucket[from..].partition_point(|place| place.hash == hash);
        &of_bucket[from..from + count]
    }
}

/// The head of a write, and the write.
fn head_at<'a>(chunks: &'a [Vec<u8>], place: &WriteLocation) -> (Head, &'a [u8]) {
    let bytes = &chunks[place.chunk as usize][place.at as usize..];
    let (head, bytes) = bytes.split_first_chunk().expect("a head precedes each write");
    let head = Head::decode(head);
    let len = head.len as usize;
    (head, &bytes[..len])
}

#[derive(Debug, Default)]
struct Partition {
    chunks: Vec<Vec<u8>>,
    order: OnceLock<Order>,
}

impl Partition {
    fn write_at(&self, place: &WriteLocation) -> (Head, Write<'_>) {
        let (head, encoded) = head_at(&self.chunks, place);
        let (table, generation) = head.table;
        let write = WriteIter::behind((table.0, generation), encoded).next();
        (head, write.and_then(Result::ok).expect("the replay has decoded it"))
    }
}

/// A key whose writes wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingKey<'a> {
    pub(crate) hash: u64,
    pub(crate) table: (TableId, u32),
    pub(crate) key: &'a [u8],
}

/// What the writes of a key make of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// The label of the value; `None` if the key has none.
    pub(crate) label: Option<Label>,
    /// The gsn of the last write.
    pub(crate) gsn: u64,
}

/// All writes that wait.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Empty if no write waits.
    partitions: Box<[Partition]>,
    bytes: AtomicUsize,
}

impl Pending {
    pub(crate) fn new(from: Vec<WaitingWrites>) -> Self {
        let bytes = from.iter().map(WaitingWrites::bytes).sum();
        if bytes == 0 {
            return Self::default();
        }
        let mut partitions: Box<[Partition]> =
            (0..PARTITIONS).map(|_| Partition::default()).collect();
        for writes in from {
            for (partition, Chunks { full, last }) in partitions.iter_mut().zip(writes.partitions) {
                partition.chunks.extend(full);
                partition.chunks.extend(Some(last).filter(|last| !last.is_empty()));
            }
        }
        Self { partitions, bytes: AtomicUsize::new(bytes) }
    }

    /// Whether no write waits at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        // Relaxed: a count.
        self.bytes.load(Relaxed)
    }

    /// A partition with its order, which is made now if nobody has made it.
    fn sorted(&self, number: usize) -> Option<(&Partition, &Order)> {
        let partition = self.partitions.get(number).filter(|of| !of.chunks.is_empty())?;
        let mut made = 0;
        let order = partition.order.get_or_init(|| {
            let order = Order::of(&partition.chunks);
            made = order.bytes();
            order
        });
        if made > 0 {
            // Relaxed: a count.
            self.bytes.fetch_add(made, Relaxed);
        }
        Some((partition, order))
    }

    /// Makes the orders of a share of the partitions.
    pub(crate) fn sort(&self, (first, step): (usize, usize)) {
        for number in (first..PARTITIONS).step_by(step) {
            self.sorted(number);
        }
    }

    /// Whether writes of a key with this hash may wait. Makes no order.
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        self.partitions.get(partition_of(hash)).is_some_and(|of| {
            let has = |order: &Order| !order.of_hash(hash).is_empty();
            !of.chunks.is_empty() && of.order.get().is_none_or(has)
        })
    }

    /// The writes of a key in the order of their gsns, each with its gsn.
    fn writes<'a>(
        &'a self,
        table: (TableId, u32),
        (hash, key): (u64, &'a [u8]),
    ) -> impl Iterator<Item = (u64, WriteOp<'a>)> {
        let sorted = self.sorted(partition_of(hash));
        sorted.into_iter().flat_map(move |(partition, order)| {
            order.of_hash(hash).iter().filter_map(move |place| {
                let (head, write) = partition.write_at(place);
                (head.table == table && write.key == key).then_some((head.gsn, write.op))
            })
        })
    }

    /// Whether the writes of a key need no record of a checkpoint. `None` if no write of the key waits.
    pub(crate) fn stands_alone(
        &self,
        table: (TableId, u32),
        (hash, key): (u64, &[u8]),
    ) -> Option<bool> {
        let is_whole = |op: &WriteOp<'_>| matches!(op, WriteOp::Put { .. } | WriteOp::Delete);
        let whole = self.writes(table, (hash, key)).map(|(_, op)| is_whole(&op));
        whole.reduce(|one, next| one || next)
    }

    /// Whether the writes of a key need no record of a checkpoint, as far as this is known without making
    /// an order.
    pub(crate) fn is_known_alone(&self, table: (TableId, u32), of: (u64, &[u8])) -> bool {
        let is_sorted = |of: &Partition| of.order.get().is_some();
        self.partitions.get(partition_of(of.0)).is_some_and(is_sorted)
            && self.stands_alone(table, of) == Some(true)
    }

    /// Prefetches what leads to the writes of a hash. Then [`prefetch_places`](Self::prefetch_places) and
    /// [`prefetch_writes`](Self::prefetch_writes) prefetch the rest.
    pub(crate) fn prefetch(&self, hash: u64) {
        if let Some((_, order)) = self.sorted(partition_of(hash)) {
            stillpoint_mem::prefetch(&order.starts[order.bucket(hash)]);
        }
    }

    pub(crate) fn prefetch_places(&self, hash: u64) {
        if let Some((_, order)) = self.sorted(partition_of(hash))
            && let Some(first) = order.places.get(order.starts[order.bucket(hash)] as usize)
        {
            stillpoint_mem::prefetch(first);
        }
    }

    pub(crate) fn prefetch_writes(&self, hash: u64) {
        let Some((partition, order)) = self.sorted(partition_of(hash)) else { return };
        for place in order.of_hash(hash).iter().take(PREFETCHED_WRITES) {
            let bytes = &partition.chunks[place.chunk as usize][place.at as usize..];
            // A head and the key are at most in two lines, as a rule.
            stillpoint_mem::prefetch(&bytes[0]);
            if let Some(next) = bytes.get(64) {
                stillpoint_mem::prefetch(next);
            }
        }
    }

    /// Applies the writes of a key to its record. Appends the value to `out`. Returns `None` and leaves
    /// `out` alone if no write of the key waits.
    ///
    /// # Errors
    /// The writes do not fit the record.
    pub(crate) fn apply(
        &self,
        table: (TableId, u32),
        (hash, key): (u64, &[u8]),
        base: Option<(Label, &[u8])>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Resolved>, PatchWithoutBase> {
        let mut writes = self.writes(table, (hash, key)).peekable();
        if writes.peek().is_none() {
            return Ok(None);
        }
        let mut making = Making::new(base, out);
        for (gsn, op) in writes {
            making.gsn = gsn;
            making.apply(op);
        }
        making.end().map(Some)
    }

    /// The keys of a partition, each once.
    pub(crate) fn keys_of(&self, number: usize) -> Vec<WaitingKey<'_>> {
        let Some((partition, order)) = self.sorted(number) else { return Vec::new() };
        let mut keys: Vec<WaitingKey<'_>> = Vec::new();
        for place in &order.places {
            let (head, write) = partition.write_at(place);
            let of = WaitingKey { hash: head.hash, table: head.table, key: write.key };
            let mut same_hash = keys.iter().rev().take_while(|earlier| earlier.hash == of.hash);
            if same_hash.all(|one| (one.table, one.key) != (of.table, of.key)) {
                keys.push(of);
            }
        }
        keys
    }
}

/// A value that is being made of a record and writes. Its bytes are the last ones of `out`.
struct Making<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    /// `None` without a value.
    label: Option<Label>,
    gsn: u64,
    /// The first change that did not fit, if no whole value has come since.
    wrong: Option<PatchWithoutBase>,
}

impl<'a> Making<'a> {
    fn new(base: Option<(Label, &[u8])>, out: &'a mut Vec<u8>) -> Self {
        let planted = || Some((Label::default(), &[0; 1 << 10][..]));
        let base = mutant!(base, PatchesWithoutBase => planted());
        let start = out.len();
        let label = base.map(|(label, value)| {
            out.extend_from_slice(value);
            label
        });
        Self { out, start, label, gsn: 0, wrong: None }
    }

    fn apply(&mut self, op: WriteOp<'_>) {
        match op {
            WriteOp::Put { label, value } => {
                self.out.truncate(self.start);
                self.out.extend_from_slice(value);
                (self.label, self.wrong) = (Some(label), None);
            }
            WriteOp::Delete => {
                self.out.truncate(self.start);
                (self.label, self.wrong) = (None, None);
            }
            WriteOp::Patch(ranges) => {
                ranges.for_each(|range| self.change(range.offset, None, range.bytes));
            }
            WriteOp::Until { deadline, ranges } => {
                match &mut self.label {
                    Some(label) => {
                        mutant!(label.deadline = deadline, DeadlineNotReplayed => ());
                    }
                    None => self.misfit(0, 0),
                }
                ranges.for_each(|range| self.change(range.offset, None, range.bytes));
            }
            WriteOp::Splice(splices) => {
                splices.for_each(|of| self.change(of.offset, Some(of.removed), of.bytes));
            }
        }
    }

    /// Replaces bytes of the value. Without a number of removed bytes the bytes overwrite what is there,
    /// and may make the value longer.
    fn change(&mut self, offset: u32, removed: Option<u32>, bytes: &[u8]) {
        let (offset, len) = (offset as usize, self.out.len() - self.start);
        let end = match removed {
            Some(removed) => offset + removed as usize,
            None => len.min(offset + bytes.len()),
        };
        if self.label.is_none() || offset > end || end > len {
            return self.misfit(offset, len);
        }
        let at = self.start + offset;
        if end - offset == bytes.len() {
            self.out[at..at + bytes.len()].copy_from_slice(bytes);
        } else {
            self.out.splice(at..self.start + end, bytes.iter().copied());
        }
    }

    fn misfit(&mut self, offset: usize, len: usize) {
        self.wrong.get_or_insert(PatchWithoutBase { offset, len });
    }

    fn end(self) -> Result<Resolved, PatchWithoutBase> {
        match self.wrong {
            Some(wrong) => {
                self.out.truncate(self.start);
                Err(wrong)
            }
            None => Ok(Resolved { label: self.label, gsn: self.gsn }),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
