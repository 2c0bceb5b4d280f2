//! Writes of the logs that wait until their key is asked for or loaded.
//!
//! ```text
//! logs: each thread reads windows, notes where a write lies ─▶ partitions by hash, in no order
//!   ─▶ once a partition is sorted: by hash and gsn ─▶ all writes of a key, in their order
//! ```
//! What is noted of a write is small. The load reads the windows again, and keeps them. Who needs a write
//! before reads it alone. So a start touches little new memory before it serves. Once the store is served,
//! nobody changes any of this but the order of a partition. Threads of the load sort. Who looks for one key
//! before searches the whole partition: nobody waits for a thread that sorts. All of them get the same. The
//! memory goes when the load has settled.

mod apart;
mod making;

use std::borrow::Cow;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use stillpoint_format::Label;
use stillpoint_format::log::{Write, WriteIter, WriteOp};
use stillpoint_io::AlignedBuf;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::{Mutex, RwLock};
use stillpoint_txn::TableId;

use super::{UnreadableRecord, WholeValue};
use apart::ReadPart;
use making::Making;
pub use making::PatchWithoutBase;
pub(crate) use making::Resolved;

/// Bits of the hash that choose a partition.
const PARTITIONS_LOG2: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 11 };
/// Number of partitions.
pub(crate) const PARTITIONS: usize = 1 << PARTITIONS_LOG2;
/// Writes of the smallest and the largest piece of memory of a partition.
const CHUNK_WRITES_MIN: usize = 16;
const CHUNK_WRITES_MAX: usize = 1024;
/// Writes that share an entry of a partition's directory, about.
const BUCKET_WRITES: usize = 4;
/// Windows that the load reads into one buffer. It lies on huge pages then, and looks at random places in all
/// windows cost less.
const WINDOWS_TOGETHER: usize = 32;
/// Writes of a key whose lines are prefetched.
const PREFETCHED_WRITES: usize = 32;

fn partition_of(hash: u64) -> usize {
    ((hash >> 1) >> (63 - PARTITIONS_LOG2)) as usize
}

/// A part of a log with writes that wait, which can be read again.
pub trait WindowSource: Debug + Send + Sync {
    /// Bytes of the part.
    fn bytes(&self) -> usize;

    /// Reads the part into a buffer of that length.
    ///
    /// # Errors
    /// The bytes have changed, or the disk refuses. The buffer holds anything then.
    fn read(&self, into: &mut [u8]) -> Result<(), UnreadableRecord>;

    /// Reads these bytes of the part, as far as it goes, and perhaps some beside them. Returns the range that
    /// the buffer has then.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_part(
        &self,
        wanted: Range<usize>,
        into: &mut AlignedBuf,
    ) -> Result<Range<usize>, UnreadableRecord>;
}

/// Where the bytes of a window lie in memory: in a buffer that it may share with others.
#[derive(Debug)]
struct WindowBytes {
    buffer: Arc<AlignedBuf>,
    range: Range<usize>,
}

/// A window, and its bytes once the load has read them.
#[derive(Debug)]
struct KeptWindow {
    source: Box<dyn WindowSource>,
    held: OnceLock<WindowBytes>,
}

impl KeptWindow {
    /// The bytes, if they are in memory.
    fn held(&self) -> Option<&[u8]> {
        self.held.get().map(|WindowBytes { buffer, range }| &buffer[range.clone()])
    }

    fn bytes(&self) -> Result<&[u8], UnreadableRecord> {
        if self.held.get().is_none() {
            // Two threads may read it. Nobody waits for the other.
            Self::read_together(&[self])?;
        }
        Ok(self.held().expect("somebody has read it"))
    }

    /// Reads windows into one buffer.
    fn read_together(windows: &[&Self]) -> Result<(), UnreadableRecord> {
        let bytes: usize = windows.iter().map(|window| window.source.bytes()).sum();
        let (mut buffer, mut ranges) = (AlignedBuf::zeroed(bytes), Vec::new());
        let mut begin = 0;
        for window in windows {
            let range = begin..begin + window.source.bytes();
            window.source.read(&mut buffer[range.clone()])?;
            begin = range.end;
            ranges.push(range);
        }
        let buffer = Arc::new(buffer);
        for (window, range) in windows.iter().zip(ranges) {
            // Another thread may have read it, too.
            let _ = window.held.set(WindowBytes { buffer: buffer.clone(), range });
        }
        Ok(())
    }
}

/// Why the writes of a key cannot be applied.
#[derive(Debug)]
pub(crate) enum WaitingError {
    Misfit(PatchWithoutBase),
    Log(UnreadableRecord),
}

impl From<WaitingError> for UnreadableRecord {
    fn from(error: WaitingError) -> Self {
        match error {
            WaitingError::Misfit(misfit) => misfit.into(),
            WaitingError::Log(unreadable) => unreadable,
        }
    }
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

impl WriteLocation {
    /// The write that begins these bytes, and its length. `None` if the bytes end before.
    fn decode<'b>(&self, bytes: &'b [u8]) -> Option<(Write<'b>, usize)> {
        let mut reader = WriteIter::behind((self.table, self.generation), bytes);
        let write = reader.next()?.ok()?;
        Some((write, bytes.len() - reader.undecoded().0.len()))
    }

    /// The write that begins these bytes, which have all of it.
    fn decode_whole<'b>(&self, bytes: &'b [u8]) -> Write<'b> {
        self.decode(bytes).expect("the start has decoded the same bytes").0
    }
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
    windows: Vec<(u32, Box<dyn WindowSource>)>,
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

    /// Ends the present window of a log. Asks for its source if it has a write.
    pub fn end_window(&mut self, source: impl FnOnce() -> Box<dyn WindowSource>) {
        if let Some(number) = self.window.take() {
            let source = source();
            self.bytes += source.bytes();
            self.windows.push((number, source));
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
        self.push(hash, gsn, table, 0);
        self.end_window(|| Box::new(InMemory(encoded.to_vec())));
    }

    /// Bytes of memory, those of the windows included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A window of a test.
#[cfg(test)]
#[derive(Debug)]
struct InMemory(Vec<u8>);

#[cfg(test)]
impl WindowSource for InMemory {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn read(&self, into: &mut [u8]) -> Result<(), UnreadableRecord> {
        into.copy_from_slice(&self.0);
        Ok(())
    }

    fn read_part(
        &self,
        wanted: Range<usize>,
        into: &mut AlignedBuf,
    ) -> Result<Range<usize>, UnreadableRecord> {
        let range = wanted.start..wanted.end.min(self.0.len());
        into.clear();
        into.extend_from_slice(&self.0[range.clone()]);
        Ok(range)
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

/// The writes of a key, in the order of their gsns.
#[derive(Debug)]
pub(crate) struct KeyWrites<'a> {
    pending: &'a Pending,
    of_hash: Cow<'a, [WriteLocation]>,
    /// The bytes of those writes that were [read apart](Self::read_apart).
    apart: Vec<Option<Box<[u8]>>>,
    table: (TableId, u32),
    key: &'a [u8],
}

impl KeyWrites<'_> {
    /// Reads those writes that are not in memory, for this key alone, and little beside them. A key may have
    /// writes in dozens of windows, each of which holds a batch of the log at least.
    ///
    /// # Errors
    /// A log cannot be read.
    pub(crate) fn read_apart(&mut self) -> Result<(), UnreadableRecord> {
        let pending = self.pending;
        let mut missing: Vec<usize> = (0..self.of_hash.len()).collect();
        missing.retain(|&at| pending.window(&self.of_hash[at]).held().is_none());
        if missing.is_empty() {
            return Ok(());
        }
        missing.sort_by_key(|&at| (self.of_hash[at].window, self.of_hash[at].at));
        let mut part = ReadPart::new(pending.buffers.lock().pop().unwrap_or_default());
        let mut apart = vec![None; self.of_hash.len()];
        for at in missing {
            let place = self.of_hash[at];
            let len_of = |bytes: &[u8]| place.decode(bytes).map(|(_, len)| len);
            let source = &pending.window(&place).source;
            let read = |wanted, into: &mut AlignedBuf| source.read_part(wanted, into);
            match part.write((place.window, place.at as usize), len_of, read) {
                Ok(write) => apart[at] = Some(write),
                // The log may hold other records by now. The key has a cell, if it has writes at all.
                Err(_) if pending.are_all_entered() => {
                    self.of_hash = Cow::Borrowed(&[]);
                    return Ok(());
                }
                Err(unreadable) => return Err(unreadable),
            }
        }
        pending.buffers.lock().push(part.into_buffer());
        self.apart = apart;
        Ok(())
    }

    /// The writes, each with its gsn.
    fn iter(&self) -> impl Iterator<Item = Result<(u64, WriteOp<'_>), UnreadableRecord>> {
        self.of_hash.iter().enumerate().filter_map(|(at, place)| {
            let apart = self.apart.get(at).and_then(Option::as_deref);
            let write = apart.map(|bytes| Ok(place.decode_whole(bytes)));
            match write.unwrap_or_else(|| self.pending.write_at(place)) {
                Ok(write) => {
                    let of = (TableId(write.table), write.generation);
                    let is_its = of == self.table && write.key == self.key;
                    is_its.then_some(Ok((place.gsn, write.op)))
                }
                Err(unreadable) => Some(Err(unreadable)),
            }
        })
    }

    /// Whether they need no record of a checkpoint. `None` if no write of the key waits.
    ///
    /// # Errors
    /// A log cannot be read.
    pub(crate) fn stand_alone(&self) -> Result<Option<bool>, UnreadableRecord> {
        let mut alone = None;
        for write in self.iter() {
            let op = match write {
                Ok((_, op)) => op,
                Err(_) if self.pending.are_all_entered() => return Ok(None),
                Err(unreadable) => return Err(unreadable),
            };
            let is_whole = matches!(op, WriteOp::Put { .. } | WriteOp::Delete);
            alone = Some(alone == Some(true) || is_whole);
        }
        Ok(alone)
    }

    /// The number of writes with such a hash, whoever's they are.
    pub(crate) fn of_hash(&self) -> usize {
        self.of_hash.len()
    }

    /// Applies them to the key's record. Appends the value to `out`. Returns `None` and leaves `out` alone
    /// if no write of the key waits.
    ///
    /// # Errors
    /// They do not fit the record, or a log cannot be read. Leaves `out` alone.
    pub(crate) fn apply(
        &self,
        base: Option<(Label, &[u8])>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Resolved>, WaitingError> {
        let mut writes = self.iter().peekable();
        if writes.peek().is_none() {
            return Ok(None);
        }
        let mut making = Making::new(base, out);
        for write in writes {
            match write {
                Ok((gsn, op)) => {
                    making.gsn = gsn;
                    making.writes += 1;
                    making.apply(op);
                }
                Err(unreadable) => {
                    making.give_up();
                    // The log may hold other records by now. The key has a cell, if it has writes at all.
                    let is_gone = self.pending.are_all_entered();
                    return if is_gone { Ok(None) } else { Err(WaitingError::Log(unreadable)) };
                }
            }
        }
        making.end().map(Some).map_err(WaitingError::Misfit)
    }

    /// What the key has after them. Without a write, what its record has; `None` without a record, too.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub(crate) fn whole<'b>(
        &self,
        base: Option<(Label, &'b [u8])>,
    ) -> Result<Option<WholeValue<'b>>, WaitingError> {
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
    /// The parts of the logs that have the writes, by their numbers.
    windows: Box<[Option<KeptWindow>]>,
    bytes: AtomicUsize,
    /// Whether every key with a write has a cell.
    all_entered: AtomicBool,
    /// Buffers of those who read for one key.
    buffers: Mutex<Vec<AlignedBuf>>,
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
        let count = numbers.max().map_or(0, |last| last as usize + 1);
        let mut windows: Vec<Option<KeptWindow>> = (0..count).map(|_| None).collect();
        for writes in from {
            debug_assert!(writes.window.is_none(), "the last window has ended");
            for (partition, Chunks { full, last }) in partitions.iter_mut().zip(writes.partitions) {
                partition.extend(full);
                partition.extend(Some(last).filter(|last| !last.is_empty()));
            }
            for (number, source) in writes.windows {
                windows[number as usize] = Some(KeptWindow { source, held: OnceLock::new() });
            }
        }
        Self {
            partitions: partitions.into_iter().map(Partition::new).collect(),
            windows: windows.into(),
            bytes: AtomicUsize::new(bytes),
            all_entered: AtomicBool::new(false),
            buffers: Mutex::default(),
        }
    }

    /// Notes that every key with a write has a cell. From then on no window need be readable. A thread may
    /// have begun a look before: what it fails to read counts as nothing, and its entry meets the cell.
    pub(crate) fn note_all_entered(&self) {
        // Release: partner of the Acquire in `are_all_entered`.
        self.all_entered.store(true, Release);
    }

    pub(crate) fn are_all_entered(&self) -> bool {
        // Acquire: partner of the Release in `note_all_entered`.
        self.all_entered.load(Acquire)
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

    fn window(&self, place: &WriteLocation) -> &KeptWindow {
        self.windows[place.window as usize].as_ref().expect("it was noted with its writes")
    }

    fn write_at(&self, place: &WriteLocation) -> Result<Write<'_>, UnreadableRecord> {
        Ok(place.decode_whole(&self.window(place).bytes()?[place.at as usize..]))
    }

    /// Whether to look for the writes of keys with such a hash reads from a disk.
    pub(crate) fn reads_for(&self, hash: u64) -> bool {
        let is_held = |place: &WriteLocation| self.window(place).held().is_some();
        let partition = self.partitions.get(partition_of(hash));
        let partition = partition.filter(|_| !self.are_all_entered());
        partition.is_some_and(|of| !of.of_hash(hash).iter().all(is_held))
    }

    /// Reads a share of the windows, in the order of their numbers, until all are read or `is_over`.
    ///
    /// # Errors
    /// A log cannot be read.
    pub(crate) fn read_windows(
        &self,
        (first, step): (usize, usize),
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), UnreadableRecord> {
        for windows in self.windows.chunks(WINDOWS_TOGETHER).skip(first).step_by(step) {
            if is_over() {
                break;
            }
            let missing = windows.iter().flatten().filter(|window| window.held().is_none());
            match KeptWindow::read_together(&missing.collect::<Vec<_>>()) {
                // A checkpoint has all of them, and has given their logs up.
                _ if self.are_all_entered() => break,
                read => read?,
            }
        }
        Ok(())
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

    /// The writes of a key that may have no cell. None, once [every key](Self::note_all_entered) has one.
    pub(crate) fn of_key<'a>(
        &'a self,
        table: (TableId, u32),
        (hash, key): (u64, &'a [u8]),
    ) -> KeyWrites<'a> {
        let partition = self.partitions.get(partition_of(hash));
        let partition = partition.filter(|_| !self.are_all_entered());
        let of_hash = partition.map_or(Cow::Borrowed(&[][..]), |of| of.of_hash(hash));
        KeyWrites { pending: self, of_hash, apart: Vec::new(), table, key }
    }

    /// Whether the writes of a key need no record of a checkpoint, as far as this is known without a
    /// search.
    pub(crate) fn is_known_alone(&self, table: (TableId, u32), of: (u64, &[u8])) -> bool {
        self.is_sorted(of.0)
            && !self.reads_for(of.0)
            && matches!(self.of_key(table, of).stand_alone(), Ok(Some(true)))
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
            // Who applies the write tells an error.
            let Ok(bytes) = self.window(place).bytes() else { return };
            let bytes = &bytes[place.at as usize..];
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

    /// The keys of a partition, each once, of generations of tables that count. Leaves out those that are
    /// [entered](Self::note_entered).
    ///
    /// # Errors
    /// A log cannot be read.
    pub(crate) fn keys_of(
        &self,
        number: usize,
        counts: impl Fn((TableId, u32)) -> bool,
    ) -> Result<Vec<WaitingKey<'_>>, UnreadableRecord> {
        let Some(order) = self.sorted(number) else { return Ok(Vec::new()) };
        let mut keys: Vec<WaitingKey<'_>> = Vec::new();
        for (at, place) in order.places.iter().enumerate() {
            let table = (TableId(place.table), place.generation);
            if order.is_entered(at) || !counts(table) {
                continue;
            }
            let of = WaitingKey { hash: place.hash, table, key: self.write_at(place)?.key };
            let mut same_hash = keys.iter().rev().take_while(|earlier| earlier.hash == of.hash);
            if same_hash.all(|one| (one.table, one.key) != (of.table, of.key)) {
                keys.push(of);
            }
        }
        Ok(keys)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
