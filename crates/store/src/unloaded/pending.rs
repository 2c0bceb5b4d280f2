//! Writes of the logs that wait until their key is asked for or loaded.
//!
//! ```text
//! logs: each thread reads windows, notes where a write lies ─▶ partitions by hash, in no order
//!   ─▶ once a partition is sorted: by hash and gsn ─▶ all writes of a key, in their order
//! ```
//! The bytes of the logs stay in memory as they were read. Who reads them only appends, and so touches
//! memory in sequence. Once the store is served, nobody changes any of this but the order of a partition.
//! Threads of the load sort. Who looks for one key before searches the whole partition: nobody waits for a
//! thread that sorts. All of them get the same. The memory goes when the load has settled.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use stillpoint_format::Label;
use stillpoint_format::log::{Write, WriteIter, WriteOp};
use stillpoint_io::AlignedBuf;
use stillpoint_sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use stillpoint_sync::{RwLock, mutant, planted};
use stillpoint_txn::TableId;

use super::WholeValue;

/// Bits of the hash that choose a partition.
const PARTITIONS_LOG2: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 11 };
/// Number of partitions.
pub(crate) const PARTITIONS: usize = 1 << PARTITIONS_LOG2;
/// Writes of the smallest and the largest piece of memory of a partition.
const CHUNK_WRITES_MIN: usize = 16;
const CHUNK_WRITES_MAX: usize = 1024;
/// Writes that share an entry of a partition's directory, about.
const BUCKET_WRITES: usize = 4;
/// Writes of a key whose lines are prefetched.
const PREFETCHED_WRITES: usize = 32;

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

/// Where a write lies, and what puts it into order.
#[derive(Clone, Copy, Debug, Default)]
struct WriteLocation {
    hash: u64,
    gsn: u64,
    /// Number of the window, and the offset in it.
    window: u32,
    at: u32,
    generation: u32,
    table: u16,
}

/// Writes of one partition, in pieces of memory. Only the last one grows.
#[derive(Debug, Default)]
struct Chunks {
    full: Vec<Vec<WriteLocation>>,
    last: Vec<WriteLocation>,
}

impl Chunks {
    /// Begins a new piece. Returns its bytes.
    #[cold]
    fn grow(&mut self) -> usize {
        let size = (2 * self.last.capacity()).clamp(CHUNK_WRITES_MIN, CHUNK_WRITES_MAX);
        let full = std::mem::replace(&mut self.last, Vec::with_capacity(size));
        if !full.is_empty() {
            self.full.push(full);
        }
        self.last.capacity() * size_of::<WriteLocation>()
    }
}

/// Writes of the logs that wait for their keys, noted by one thread in any order.
#[derive(Debug)]
pub struct WaitingWrites {
    partitions: Vec<Chunks>,
    /// The windows with writes, and their numbers, which no other thread has.
    windows: Vec<(u32, AlignedBuf)>,
    next_window: Arc<AtomicU32>,
    /// Number of the present window, if it has a write.
    window: Option<u32>,
    bytes: usize,
}

impl WaitingWrites {
    /// Bytes of memory that a write takes beside those of [`bytes`](Self::bytes), about, once the writes
    /// are sorted.
    pub const PLACE_BYTES: usize = size_of::<u32>();

    /// For so many threads of a start.
    pub fn for_threads(threads: usize) -> Vec<Self> {
        let next_window = Arc::new(AtomicU32::new(0));
        let of_thread = |_| Self {
            partitions: (0..PARTITIONS).map(|_| Chunks::default()).collect(),
            windows: Vec::new(),
            next_window: next_window.clone(),
            window: None,
            bytes: 0,
        };
        (0..threads).map(of_thread).collect()
    }

    /// Notes a write to a key with this [hash](crate::Store::hash), which begins at an offset of the
    /// present window, in the form that [`WriteIter::behind`] takes. Its bytes were decoded before.
    #[inline]
    pub fn push(&mut self, hash: u64, gsn: u64, (table, generation): (TableId, u32), at: usize) {
        let window = match self.window {
            Some(window) => window,
            // Relaxed: only the number counts.
            None => *self.window.insert(self.next_window.fetch_add(1, Relaxed)),
        };
        let chunks = &mut self.partitions[partition_of(hash)];
        if chunks.last.len() == chunks.last.capacity() {
            self.bytes += chunks.grow();
        }
        let (at, table) = (at as u32, table.0);
        chunks.last.push(WriteLocation { hash, gsn, window, at, generation, table });
    }

    /// Ends the present window of a log. Takes its bytes, if they have a write.
    pub fn end_window(&mut self, bytes: &mut AlignedBuf) {
        if let Some(number) = self.window.take() {
            self.bytes += bytes.capacity();
            self.windows.push((number, std::mem::take(bytes)));
        }
    }

    /// As [`push`](Self::push), of a window that has this write alone.
    #[cfg(test)]
    pub(crate) fn push_alone(
        &mut self,
        hash: u64,
        gsn: u64,
        table: (TableId, u32),
        encoded: &[u8],
    ) {
        let mut window = AlignedBuf::new();
        window.extend_from_slice(encoded);
        self.push(hash, gsn, table, 0);
        self.end_window(&mut window);
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A partition's writes, by hash. Those of one hash are in the order of their gsns.
#[derive(Debug)]
struct Order {
    places: Vec<WriteLocation>,
    /// For each of a power of two ranges of hashes, the first place; and the number of places.
    starts: Vec<u32>,
    /// A bit for each place, which says that the key has a cell.
    entered: Box<[AtomicU64]>,
}

impl Order {
    fn of(chunks: &[Vec<WriteLocation>]) -> Self {
        let len: usize = chunks.iter().map(Vec::len).sum();
        let log2 = (len / BUCKET_WRITES).max(1).next_power_of_two().ilog2();
        let entered = (0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let mut order = Self { places: Vec::new(), starts: vec![0; (1 << log2) + 1], entered };
        for place in chunks.iter().flatten() {
            let bucket = order.bucket(place.hash);
            order.starts[bucket + 1] += 1;
        }
        for bucket in 1..order.starts.len() {
            order.starts[bucket] += order.starts[bucket - 1];
        }
        let mut next = order.starts.clone();
        let mut sorted = vec![WriteLocation::default(); len];
        for place in chunks.iter().flatten() {
            let slot = &mut next[order.bucket(place.hash)];
            sorted[*slot as usize] = *place;
            *slot += 1;
        }
        for bucket in order.starts.windows(2) {
            // Stable, and fast for what is in order already: writes of one thread are, by gsn.
            sorted[bucket[0] as usize..bucket[1] as usize]
                .sort_by_key(|place| (place.hash, place.gsn));
        }
        order.places = sorted;
        order
    }

    fn bucket(&self, hash: u64) -> usize {
        let log2 = (self.starts.len() - 1).ilog2();
        (((hash << PARTITIONS_LOG2) >> 1) >> (63 - log2)) as usize
    }

    fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<WriteLocation>()
            + self.starts.capacity() * size_of::<u32>()
            + self.entered.len() * size_of::<u64>()
    }

    fn range_of(&self, hash: u64) -> Range<usize> {
        let bucket = self.bucket(hash);
        let (from, to) = (self.starts[bucket] as usize, self.starts[bucket + 1] as usize);
        let of_bucket = &self.places[from..to];
        let first = of_bucket.partition_point(|place| place.hash < hash);
        let count = of_bucket[first..].partition_point(|place| place.hash == hash);
        from + first..from + first + count
    }

    fn of_hash(&self, hash: u64) -> &[WriteLocation] {
        &self.places[self.range_of(hash)]
    }

    fn note_entered(&self, hash: u64) {
        for at in self.range_of(hash) {
            // Relaxed: only the pass at the end asks, which comes after the threads of the load.
            self.entered[at / 64].fetch_or(1 << (at % 64), Relaxed);
        }
    }

    fn is_entered(&self, at: usize) -> bool {
        // Relaxed: as in `note_entered`.
        self.entered[at / 64].load(Relaxed) & 1 << (at % 64) != 0
    }
}

#[derive(Debug, Default)]
struct Partition {
    is_empty: bool,
    /// The writes until somebody has sorted them, and nothing then.
    unsorted: RwLock<Vec<Vec<WriteLocation>>>,
    order: OnceLock<Order>,
}

impl Partition {
    fn new(unsorted: Vec<Vec<WriteLocation>>) -> Self {
        let (is_empty, order) = (unsorted.is_empty(), OnceLock::new());
        Self { is_empty, unsorted: RwLock::new(unsorted), order }
    }

    /// The writes of a hash, in the order of their gsns. Sorts no others.
    fn of_hash(&self, hash: u64) -> Cow<'_, [WriteLocation]> {
        if self.is_empty {
            return Cow::Borrowed(&[]);
        }
        let unsorted = match self.order.get() {
            Some(order) => return Cow::Borrowed(order.of_hash(hash)),
            None => self.unsorted.read(),
        };
        // Who sorts them leaves the order before the writes go.
        if let Some(order) = self.order.get() {
            return Cow::Borrowed(order.of_hash(hash));
        }
        let is_one = |place: &&WriteLocation| place.hash == hash;
        let mut found: Vec<_> = unsorted.iter().flatten().filter(is_one).copied().collect();
        found.sort_by_key(|place| place.gsn);
        Cow::Owned(found)
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
    /// Number of the writes.
    pub(crate) writes: usize,
}

/// The writes of a key, in the order of their gsns.
#[derive(Debug)]
pub(crate) struct KeyWrites<'a> {
    pending: &'a Pending,
    of_hash: Cow<'a, [WriteLocation]>,
    table: (TableId, u32),
    key: &'a [u8],
}

impl KeyWrites<'_> {
    /// The writes, each with its gsn.
    fn iter(&self) -> impl Iterator<Item = (u64, WriteOp<'_>)> {
        self.of_hash.iter().filter_map(|place| {
            let write = self.pending.write_at(place);
            let is_its =
                (TableId(write.table), write.generation) == self.table && write.key == self.key;
            is_its.then_some((place.gsn, write.op))
        })
    }

    /// Whether they need no record of a checkpoint. `None` if no write of the key waits.
    pub(crate) fn stand_alone(&self) -> Option<bool> {
        let is_whole = |op: &WriteOp<'_>| matches!(op, WriteOp::Put { .. } | WriteOp::Delete);
        self.iter().map(|(_, op)| is_whole(&op)).reduce(|one, next| one || next)
    }

    /// The number of writes with such a hash, whoever's they are.
    pub(crate) fn of_hash(&self) -> usize {
        self.of_hash.len()
    }

    /// Applies them to the key's record. Appends the value to `out`. Returns `None` and leaves `out` alone
    /// if no write of the key waits.
    ///
    /// # Errors
    /// They do not fit the record.
    pub(crate) fn apply(
        &self,
        base: Option<(Label, &[u8])>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Resolved>, PatchWithoutBase> {
        let mut writes = self.iter().peekable();
        if writes.peek().is_none() {
            return Ok(None);
        }
        let mut making = Making::new(base, out);
        for (gsn, op) in writes {
            making.gsn = gsn;
            making.writes += 1;
            making.apply(op);
        }
        making.end().map(Some)
    }

    /// What the key has after them. Without a write, what its record has; `None` without a record, too.
    ///
    /// # Errors
    /// They do not fit the record.
    pub(crate) fn whole<'b>(
        &self,
        base: Option<(Label, &'b [u8])>,
    ) -> Result<Option<WholeValue<'b>>, PatchWithoutBase> {
        let mut value = Vec::new();
        Ok(match self.apply(base, &mut value)? {
            Some(Resolved { label, gsn, .. }) => Some(WholeValue {
                label: label.unwrap_or_default(),
                value: label.map(|_| Cow::Owned(value)),
                gsn,
            }),
            None => base.map(|(label, value)| WholeValue {
                label,
                value: Some(Cow::Borrowed(value)),
                gsn: 0,
            }),
        })
    }
}

/// All writes that wait.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Empty if no write waits.
    partitions: Box<[Partition]>,
    /// The bytes of the logs that have the writes.
    windows: Box<[AlignedBuf]>,
    bytes: AtomicUsize,
}

impl Pending {
    /// The writes that the [threads of a start](WaitingWrites::for_threads) have noted.
    pub(crate) fn new(from: Vec<WaitingWrites>) -> Self {
        let bytes = from.iter().map(WaitingWrites::bytes).sum();
        if bytes == 0 {
            return Self::default();
        }
        let mut partitions: Vec<Vec<Vec<WriteLocation>>> = vec![Vec::new(); PARTITIONS];
        let numbers = from.iter().flat_map(|of| &of.windows).map(|(number, _)| *number);
        let mut windows =
            vec![AlignedBuf::new(); numbers.max().map_or(0, |last| last as usize + 1)];
        for writes in from {
            debug_assert!(writes.window.is_none(), "the last window has ended");
            for (partition, Chunks { full, last }) in partitions.iter_mut().zip(writes.partitions) {
                partition.extend(full);
                partition.extend(Some(last).filter(|last| !last.is_empty()));
            }
            for (number, window) in writes.windows {
                windows[number as usize] = window;
            }
        }
        Self {
            partitions: partitions.into_iter().map(Partition::new).collect(),
            windows: windows.into(),
            bytes: AtomicUsize::new(bytes),
        }
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
    fn sorted(&self, number: usize) -> Option<&Order> {
        let partition = self.partitions.get(number).filter(|of| !of.is_empty)?;
        if let Some(order) = partition.order.get() {
            return Some(order);
        }
        let mut made = 0;
        let unsorted = partition.unsorted.read();
        let order = partition.order.get_or_init(|| {
            let order = Order::of(&unsorted);
            made = order.bytes();
            order
        });
        drop(unsorted);
        if made > 0 {
            let gone = std::mem::take(&mut *partition.unsorted.write());
            let freed = gone.iter().map(|chunk| chunk.capacity() * size_of::<WriteLocation>());
            // Relaxed: a count.
            self.bytes.fetch_add(made, Relaxed);
            self.bytes.fetch_sub(freed.sum(), Relaxed);
        }
        Some(order)
    }

    /// Makes the orders of a share of the partitions.
    pub(crate) fn sort(&self, (first, step): (usize, usize)) {
        for number in (first..PARTITIONS).step_by(step) {
            self.sorted(number);
        }
    }

    fn write_at(&self, place: &WriteLocation) -> Write<'_> {
        let of = (place.table, place.generation);
        let bytes = &self.windows[place.window as usize][place.at as usize..];
        let write = WriteIter::behind(of, bytes).next();
        write.and_then(Result::ok).expect("the start has decoded it")
    }

    /// Whether writes of a key with this hash may wait. Searches no writes that are not sorted.
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        self.partitions.get(partition_of(hash)).is_some_and(|of| {
            let has = |order: &Order| !order.of_hash(hash).is_empty();
            !of.is_empty && of.order.get().is_none_or(has)
        })
    }

    /// Whether the writes of keys with such a hash are sorted already.
    pub(crate) fn is_sorted(&self, hash: u64) -> bool {
        self.partitions.get(partition_of(hash)).is_some_and(|of| of.order.get().is_some())
    }

    /// The writes of a key.
    pub(crate) fn of_key<'a>(
        &'a self,
        table: (TableId, u32),
        (hash, key): (u64, &'a [u8]),
    ) -> KeyWrites<'a> {
        let partition = self.partitions.get(partition_of(hash));
        let of_hash = partition.map_or(Cow::Borrowed(&[][..]), |of| of.of_hash(hash));
        KeyWrites { pending: self, of_hash, table, key }
    }

    /// Whether the writes of a key need no record of a checkpoint, as far as this is known without a
    /// search.
    pub(crate) fn is_known_alone(&self, table: (TableId, u32), of: (u64, &[u8])) -> bool {
        self.is_sorted(of.0) && self.of_key(table, of).stand_alone() == Some(true)
    }

    /// Prefetches what leads to the writes of a hash. Then [`prefetch_places`](Self::prefetch_places) and
    /// [`prefetch_writes`](Self::prefetch_writes) prefetch the rest.
    pub(crate) fn prefetch(&self, hash: u64) {
        if let Some(order) = self.sorted(partition_of(hash)) {
            stillpoint_mem::prefetch(&order.starts[order.bucket(hash)]);
        }
    }

    pub(crate) fn prefetch_places(&self, hash: u64) {
        let Some(order) = self.sorted(partition_of(hash)) else { return };
        let bucket = order.bucket(hash);
        let places = order.starts[bucket] as usize..order.starts[bucket + 1] as usize;
        // Two of them lie in a line.
        for place in order.places[places].iter().step_by(2).take(PREFETCHED_WRITES / 2) {
            stillpoint_mem::prefetch(place);
        }
    }

    pub(crate) fn prefetch_writes(&self, hash: u64) {
        let Some(order) = self.sorted(partition_of(hash)) else { return };
        for place in order.of_hash(hash).iter().take(PREFETCHED_WRITES) {
            let bytes = &self.windows[place.window as usize][place.at as usize..];
            // The key and its change are at most in two lines, as a rule.
            stillpoint_mem::prefetch(&bytes[0]);
            if let Some(next) = bytes.get(64) {
                stillpoint_mem::prefetch(next);
            }
        }
    }

    /// Notes that the only key with such a hash has a cell.
    pub(crate) fn note_entered(&self, hash: u64) {
        if let Some(order) = self.sorted(partition_of(hash)) {
            order.note_entered(hash);
        }
    }

    /// The keys of a partition, each once, but those that are [entered](Self::note_entered).
    pub(crate) fn keys_of(&self, number: usize) -> Vec<WaitingKey<'_>> {
        let Some(order) = self.sorted(number) else { return Vec::new() };
        let mut keys: Vec<WaitingKey<'_>> = Vec::new();
        for (at, place) in order.places.iter().enumerate() {
            if order.is_entered(at) {
                continue;
            }
            let table = (TableId(place.table), place.generation);
            let of = WaitingKey { hash: place.hash, table, key: self.write_at(place).key };
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
    writes: usize,
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
        Self { out, start, label, gsn: 0, writes: 0, wrong: None }
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
            None => {
                let Self { label, gsn, writes, .. } = self;
                Ok(Resolved { label, gsn, writes })
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
