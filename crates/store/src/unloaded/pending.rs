//! Writes of the logs that wait until their key is asked for or loaded.
//!
//! ```text
//! logs: each thread reads windows, notes where a write lies ─▶ partitions by hash, in no order
//!   ─▶ once a partition is sorted: by hash and gsn ─▶ all writes of a key, in their order
//! ```
//! What is noted of a write is small, and sorting takes no more memory. The load reads the windows again, and
//! keeps them. Who needs a write before reads it alone. So a start touches little new memory before it serves.
//! Once the store is served, nobody changes any of this but the order of a partition. Threads of the load sort.
//! Who looks for one key before searches the whole partition: nobody waits for a thread that sorts. All of them
//! get the same. The memory goes when the load has settled.

mod apart;
mod making;
mod notes;
mod partition;

use std::borrow::Cow;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use stillpoint_format::Label;
use stillpoint_format::log::{Write, WriteOp};
use stillpoint_io::AlignedBuf;
use stillpoint_sync::Mutex;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_txn::TableId;

use super::{UnreadableRecord, WholeValue};
use apart::ReadPart;
use making::Making;
pub use making::PatchWithoutBase;
pub(crate) use making::Resolved;
pub(crate) use notes::PARTITIONS;
pub use notes::WriteEffect;
use notes::{AllNotes, TableNumbers, TableOf, ThreadNotes, WriteLocation, partition_of};
use partition::{Partition, Scratch, Sorted};

/// Windows that the load reads into one buffer. It lies on huge pages then, and looks at random places in all
/// windows cost less.
const WINDOWS_TOGETHER: usize = 32;

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
    /// If some of the writes alone are there: for each its offset in the window, and that in the range.
    places: Option<Box<[(u32, u32)]>>,
}

/// A window, and its bytes once the load has read them.
#[derive(Debug)]
struct KeptWindow {
    source: Box<dyn WindowSource>,
    held: OnceLock<WindowBytes>,
    /// Offsets of the writes that count, of partitions that are sorted.
    counted: Mutex<Vec<u32>>,
}

impl KeptWindow {
    fn new(source: Box<dyn WindowSource>) -> Self {
        Self { source, held: OnceLock::new(), counted: Mutex::default() }
    }

    /// The bytes from a write on, if they are in memory.
    fn held(&self, at: u32) -> Option<&[u8]> {
        let WindowBytes { buffer, range, places } = self.held.get()?;
        let begin = match places {
            None => at,
            Some(places) => {
                let found = places.binary_search_by_key(&at, |&(offset, _)| offset).ok()?;
                places[found].1
            }
        };
        Some(&buffer[range.clone()][begin as usize..])
    }

    /// The bytes from a write on that counts.
    fn bytes(&self, at: u32) -> Result<&[u8], UnreadableRecord> {
        if self.held.get().is_none() {
            // Two threads may read it. Nobody waits for the other.
            let mut buffer = AlignedBuf::zeroed(self.source.bytes());
            self.source.read(&mut buffer)?;
            let range = 0..buffer.len();
            let _ = self.held.set(WindowBytes { buffer: Arc::new(buffer), range, places: None });
        }
        Ok(self.held(at).expect("each write that counts was kept"))
    }
}

/// Memory of a thread that reads windows.
#[derive(Default)]
struct WindowReader {
    window: AlignedBuf,
    kept: Vec<u8>,
}

impl WindowReader {
    /// Reads windows, and keeps what counts of them in one buffer. Keeps a window as a whole if most of it
    /// counts, or if it is not known what does. `len_of` tells the length of a write that begins some bytes.
    /// Returns the bytes of the buffer.
    fn read(
        &mut self,
        windows: &[&KeptWindow],
        is_known: bool,
        len_of: impl Fn(&[u8]) -> usize,
    ) -> Result<usize, UnreadableRecord> {
        self.kept.clear();
        let mut places = Vec::new();
        for window in windows {
            let begin = self.kept.len();
            let mut counted = window.counted.lock().clone();
            counted.sort_unstable();
            self.window.resize(window.source.bytes(), 0);
            window.source.read(&mut self.window)?;
            let mut of_window = Vec::with_capacity(counted.len());
            for &at in &counted {
                let write = &self.window[at as usize..];
                of_window.push((at, (self.kept.len() - begin) as u32));
                self.kept.extend_from_slice(&write[..len_of(write)]);
            }
            let bytes = self.kept.len() - begin + size_of_val(&*of_window);
            let is_dense = 2 * bytes > self.window.len();
            if !is_known || is_dense {
                self.kept.truncate(begin);
                self.kept.extend_from_slice(&self.window);
            }
            let of_window = (is_known && !is_dense).then(|| of_window.into_boxed_slice());
            places.push((begin..self.kept.len(), of_window));
        }
        let mut buffer = AlignedBuf::zeroed(self.kept.len());
        buffer.copy_from_slice(&self.kept);
        let (buffer, mut bytes) = (Arc::new(buffer), self.kept.len());
        for (window, (range, places)) in windows.iter().zip(places) {
            bytes += places.as_deref().map_or(0, size_of_val);
            // Another thread may have read it, too.
            let _ = window.held.set(WindowBytes { buffer: buffer.clone(), range, places });
        }
        Ok(bytes)
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

/// Writes of the logs that wait for their keys, noted by one thread in any order.
#[derive(Debug)]
pub struct WaitingWrites {
    notes: ThreadNotes,
    tables: TableNumbers,
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
        let (next_window, tables) = (Arc::new(AtomicU32::new(0)), Arc::default());
        let of_thread = |_| Self {
            notes: ThreadNotes::new(),
            tables: TableNumbers::new(Arc::clone(&tables)),
            windows: Vec::new(),
            next_window: next_window.clone(),
            window: None,
            bytes: 0,
        };
        (0..threads).map(of_thread).collect()
    }

    /// Notes a write to a key with this [hash](crate::Store::hash), and with a second one that is made with
    /// another secret. It begins at an offset of the present window, in the form that
    /// [`WriteIter::behind`](stillpoint_format::log::WriteIter::behind) takes. Its bytes were decoded before.
    #[inline]
    pub fn push(
        &mut self,
        (hash, check): (u64, u32),
        gsn: u64,
        of: (TableId, u32),
        (at, effect): (usize, WriteEffect),
    ) {
        let window = match self.window {
            Some(window) => window,
            // Relaxed: only the number counts.
            None => *self.window.insert(self.next_window.fetch_add(1, Relaxed)),
        };
        let (table, at) = (self.tables.of(of), at as u32);
        let note = WriteLocation { hash, gsn, window, at, table, check, effect };
        self.bytes += self.notes.push(&note);
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
        self.push((hash, 0), gsn, table, (0, WriteEffect::Change));
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
    of_hash: Vec<WriteLocation>,
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
        missing.retain(|&at| !pending.is_held(&self.of_hash[at]));
        if missing.is_empty() {
            return Ok(());
        }
        missing.sort_by_key(|&at| (self.of_hash[at].window, self.of_hash[at].at));
        let mut part = ReadPart::new(pending.buffers.lock().pop().unwrap_or_default());
        let mut apart = vec![None; self.of_hash.len()];
        for at in missing {
            let place = self.of_hash[at];
            let table = pending.table_of(&place);
            let len_of = |bytes: &[u8]| WriteLocation::decode(table, bytes).map(|(_, len)| len);
            let source = &pending.window(&place).source;
            let read = |wanted, into: &mut AlignedBuf| source.read_part(wanted, into);
            match part.write((place.window, place.at as usize), len_of, read) {
                Ok(write) => apart[at] = Some(write),
                // The log may hold other records by now. The key has a cell, if it has writes at all.
                Err(_) if pending.are_all_entered() => {
                    self.of_hash.clear();
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
            let decode = |bytes| WriteLocation::decode_whole(self.pending.table_of(place), bytes);
            let write = apart.map(|bytes| Ok(decode(bytes)));
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
    notes: AllNotes,
    /// The tables, by the numbers that notes have of them.
    tables: Box<[TableOf]>,
    /// The parts of the logs that have the writes, by their numbers.
    windows: Box<[Option<KeptWindow>]>,
    bytes: AtomicUsize,
    /// Whether every key with a write has a cell.
    all_entered: AtomicBool,
    /// Whether a partition is sorted.
    is_any_sorted: AtomicBool,
    /// Buffers of those who read for one key.
    buffers: Mutex<Vec<AlignedBuf>>,
    /// Memory of those who sort.
    scratches: Mutex<Vec<Scratch>>,
}

impl Pending {
    /// The writes that the [threads of a start](WaitingWrites::for_threads) have noted.
    pub(crate) fn new(from: Vec<WaitingWrites>) -> Self {
        let bytes = from.iter().map(WaitingWrites::bytes).sum();
        if bytes == 0 {
            return Self::default();
        }
        let tables = from.first().map(|of| of.tables.all().into()).unwrap_or_default();
        let numbers = from.iter().flat_map(|of| &of.windows).map(|(number, _)| *number);
        let count = numbers.max().map_or(0, |last| last as usize + 1);
        let mut windows: Vec<Option<KeptWindow>> = (0..count).map(|_| None).collect();
        let mut noted = Vec::new();
        for writes in from {
            debug_assert!(writes.window.is_none(), "the last window has ended");
            noted.push(writes.notes);
            for (number, source) in writes.windows {
                windows[number as usize] = Some(KeptWindow::new(source));
            }
        }
        let (notes, chunks) = AllNotes::gather(noted);
        Self {
            partitions: chunks.into_iter().map(Partition::new).collect(),
            notes,
            tables,
            windows: windows.into(),
            bytes: AtomicUsize::new(bytes),
            all_entered: AtomicBool::new(false),
            is_any_sorted: AtomicBool::new(false),
            buffers: Mutex::default(),
            scratches: Mutex::default(),
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

    /// A partition that is sorted, if need be now.
    fn sorted(&self, number: usize) -> Option<Sorted<'_>> {
        let partition = self.partitions.get(number).filter(|of| !of.is_empty())?;
        if let Some(sorted) = partition.sorted(&self.notes, number) {
            return Some(sorted);
        }
        let mut scratch = self.scratches.lock().pop().unwrap_or_default();
        // Who finds the partition sorted relies on these notes.
        let note = |counted: &[WriteLocation]| {
            counted.iter().for_each(|place| self.window(place).counted.lock().push(place.at));
        };
        let made = partition.sort((&self.notes, number), &mut scratch, note);
        // Relaxed: a count, and a hint.
        self.bytes.fetch_add(made, Relaxed);
        self.is_any_sorted.store(true, Relaxed);
        self.scratches.lock().push(scratch);
        partition.sorted(&self.notes, number)
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

    fn is_held(&self, place: &WriteLocation) -> bool {
        self.window(place).held(place.at).is_some()
    }

    fn table_of(&self, place: &WriteLocation) -> TableOf {
        self.tables[usize::from(place.table)]
    }

    fn write_at(&self, place: &WriteLocation) -> Result<Write<'_>, UnreadableRecord> {
        let bytes = self.window(place).bytes(place.at)?;
        Ok(WriteLocation::decode_whole(self.table_of(place), bytes))
    }

    /// The writes of a hash, in the order of their gsns.
    fn of_hash(&self, hash: u64) -> Vec<WriteLocation> {
        let number = partition_of(hash);
        // Once all are entered, their windows need not be readable.
        let partition = self.partitions.get(number).filter(|_| !self.are_all_entered());
        partition.map(|of| of.of_hash(&self.notes, number, hash)).unwrap_or_default()
    }

    /// Whether to look for the writes of keys with such a hash reads from a disk.
    pub(crate) fn reads_for(&self, hash: u64) -> bool {
        !self.of_hash(hash).iter().all(|place| self.is_held(place))
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
        let is_sorted = |(number, of): (usize, &Partition)| {
            of.is_empty() || of.sorted(&self.notes, number).is_some()
        };
        let is_known = self.partitions.iter().enumerate().all(is_sorted);
        // The table makes no difference to the length.
        let any = self.tables.first().copied().unwrap_or((TableId(0), 0));
        let len_of = |bytes: &[u8]| {
            WriteLocation::decode(any, bytes).expect("the start has decoded the same bytes").1
        };
        let mut reader = WindowReader::default();
        for windows in self.windows.chunks(WINDOWS_TOGETHER).skip(first).step_by(step) {
            if is_over() {
                break;
            }
            let mut missing: Vec<&KeptWindow> = windows.iter().flatten().collect();
            missing.retain(|window| window.held.get().is_none());
            let counted: usize = missing.iter().map(|window| window.source.bytes()).sum();
            missing.retain(|window| !is_known || !window.counted.lock().is_empty());
            let kept = match reader.read(&missing, is_known, len_of) {
                // A checkpoint has all of them, and has given their logs up.
                _ if self.are_all_entered() => break,
                read => read?,
            };
            // Relaxed: a count.
            self.bytes.fetch_add(kept, Relaxed);
            self.bytes.fetch_sub(counted, Relaxed);
        }
        Ok(())
    }

    /// Whether writes of a key with this hash may wait. Searches no writes that are not sorted.
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        let number = partition_of(hash);
        self.partitions.get(number).is_some_and(|of| {
            !of.is_empty() && of.sorted(&self.notes, number).is_none_or(|sorted| sorted.has(hash))
        })
    }

    /// Whether it may be known of a key, without a search of writes that are not sorted, that none waits for it.
    pub(crate) fn knows_any(&self) -> bool {
        // Relaxed: a hint.
        self.is_empty() || self.is_any_sorted.load(Relaxed)
    }

    /// Whether the writes of keys with such a hash are sorted already.
    pub(crate) fn is_sorted(&self, hash: u64) -> bool {
        let number = partition_of(hash);
        self.partitions.get(number).is_some_and(|of| of.sorted(&self.notes, number).is_some())
    }

    /// The writes of a key that may have no cell. None, once [every key](Self::note_all_entered) has one.
    pub(crate) fn of_key<'a>(
        &'a self,
        table: (TableId, u32),
        (hash, key): (u64, &'a [u8]),
    ) -> KeyWrites<'a> {
        KeyWrites { pending: self, of_hash: self.of_hash(hash), apart: Vec::new(), table, key }
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
        if let Some(sorted) = self.sorted(partition_of(hash)) {
            sorted.prefetch(hash);
        }
    }

    pub(crate) fn prefetch_places(&self, hash: u64) {
        if let Some(sorted) = self.sorted(partition_of(hash)) {
            sorted.prefetch_notes(hash);
        }
    }

    pub(crate) fn prefetch_writes(&self, hash: u64) {
        let Some(sorted) = self.sorted(partition_of(hash)) else { return };
        for place in sorted.first_of_hash(hash) {
            // Who applies the write tells an error.
            let Ok(bytes) = self.window(&place).bytes(place.at) else { return };
            // The key and its change are at most in two lines, as a rule.
            stillpoint_mem::prefetch(&bytes[0]);
            if let Some(next) = bytes.get(64) {
                stillpoint_mem::prefetch(next);
            }
        }
    }

    /// Notes that the only key with such a hash has a cell.
    pub(crate) fn note_entered(&self, hash: u64) {
        if let Some(sorted) = self.sorted(partition_of(hash)) {
            sorted.note_entered(hash);
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
        let Some(sorted) = self.sorted(number) else { return Ok(Vec::new()) };
        let mut keys: Vec<WaitingKey<'_>> = Vec::new();
        for place in sorted.left() {
            let table = self.table_of(&place);
            if !counts(table) {
                continue;
            }
            let of = WaitingKey { hash: place.hash, table, key: self.write_at(&place)?.key };
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
