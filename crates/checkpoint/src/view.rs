//! The sink of a snapshot: keeps records in memory until a reader has taken them.
//!
//! ```text
//! lane (one per read section slot)        queue                  reader
//! ┌ batch ┐  full  ┌──────────────────────────┐
//! └───────┘ ─────► │ batches, and large values│ ───► one batch at a time
//!           ◄───── │ by reference             │
//!            empty └──────────────────────────┘
//! ```
//! A commit that saves before-images never waits here. If the reader is slow, the capture scan waits.
//! Before-images go on to come, and at the limit of the batches the view ends: the reader gets an error,
//! and all records are dropped. Where commits keep old values in a pool of the store, they wait for the
//! scan once the pool is used up. If the scan waits for the reader then, the view ends, too. Large values are kept by reference in the store's memory. They do not
//! count for the limit: whoever has opened the view watches the store's memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stillpoint_format::Label;
use stillpoint_store::{DeletedKey, Demand, KeptValue, Lane, RecordImage, Sink, Store};
use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// Bytes of keys and values at which a batch is full.
const BATCH_BYTES: usize = 64 << 10;
/// Records at which a batch is full.
const BATCH_RECORDS: usize = 1 << 10;
/// Bytes that a batch counts for.
const BATCH_COST: usize = BATCH_BYTES + BATCH_RECORDS * size_of::<Entry>();
/// Large values up to this length are copied into their batch.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// The capture scan waits for the reader while so many bytes wait, or half of the limit.
const SCAN_BYTES: usize = 8 << 20;
/// Pause between two looks at the end of the view, while large values are kept.
const LOOK: Duration = Duration::from_millis(5);
/// Empty batches that are kept for the lanes. They count for nothing.
const SPARE_MAX: usize = 16;

/// Some records of a view, in no order.
#[derive(Debug, Default)]
pub struct ViewBatch {
    /// The records' keys and values, one after the other.
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Bytes that the batch counts for.
    cost: usize,
}

/// A record of a batch. Its value follows its key.
#[derive(Clone, Copy, Debug)]
struct Entry {
    table: u16,
    label: Label,
    generation: u32,
    at: usize,
    key: usize,
    value: usize,
}

/// A record of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewRecord<'a> {
    /// Table.
    pub table: u16,
    /// Generation of the table.
    pub generation: u32,
    /// Key.
    pub key: &'a [u8],
    /// Tag and deadline of the value.
    pub label: Label,
    /// Value.
    pub value: &'a [u8],
}

impl ViewBatch {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The records.
    pub fn records(&self) -> impl ExactSizeIterator<Item = ViewRecord<'_>> {
        self.entries.iter().map(|entry| {
            let (key, value) = self.bytes[entry.at..].split_at(entry.key);
            let &Entry { table, generation, label, .. } = entry;
            ViewRecord { table, generation, key, label, value: &value[..entry.value] }
        })
    }

    /// Adds a record whose value `fill` writes.
    fn push(
        &mut self,
        (table, generation, label): (u16, u32, Label),
        key: &[u8],
        value_bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.resize(at + key.len() + value_bytes, 0);
        fill(&mut self.bytes[at + key.len()..]);
        let (key, value) = (key.len(), value_bytes);
        self.entries.push(Entry { table, label, generation, at, key, value });
    }

    /// Forgets the last record.
    fn pop(&mut self) {
        if let Some(last) = self.entries.pop() {
            self.bytes.truncate(last.at);
        }
    }

    fn with_room() -> Self {
        let (bytes, entries) = (Vec::with_capacity(BATCH_BYTES), Vec::with_capacity(BATCH_RECORDS));
        Self { bytes, entries, cost: 0 }
    }

    /// Whether a record of so many bytes belongs into another batch.
    fn is_full_for(&self, bytes: usize) -> bool {
        let has_room =
            self.bytes.len() + bytes <= BATCH_BYTES && self.entries.len() < BATCH_RECORDS;
        !(self.is_empty() || has_room)
    }
}

/// A large value, by reference.
#[derive(Debug)]
struct LargeRecord {
    of: (u16, u32, Label),
    key: Box<[u8]>,
    value: KeptValue,
}

#[derive(Debug)]
enum Item {
    Batch(ViewBatch),
    Large(LargeRecord),
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Item>,
    /// Large values that are queued, or that the reader copies.
    large: usize,
    spare: Vec<ViewBatch>,
    /// All records are queued.
    is_complete: bool,
}

/// The lane of one read section slot. Until the drain only the slot's owner takes the lane's mutex.
#[derive(Debug, Default)]
struct LaneSlot {
    open: Mutex<OpenBatch>,
    /// Bytes of records taken, as of the end of the last call of the lane.
    taken_bytes: AtomicU64,
}

/// The batch of one lane.
#[derive(Debug, Default)]
struct OpenBatch {
    batch: ViewBatch,
    taken_bytes: u64,
    /// Bytes of the last record, if it may be taken back.
    last: Option<u64>,
}

/// The sink of a view, and the reader's end of it.
pub struct ViewSink {
    /// The store, until nobody emits any more and no large value is kept.
    store: Mutex<Option<Arc<Store>>>,
    limit_bytes: usize,
    lanes: Box<[CachePadded<LaneSlot>]>,
    state: Mutex<State>,
    /// Signals an item, or the end of the view.
    filled: Condvar,
    /// Signals that no large value is kept.
    emptied: Condvar,
    /// Bytes of the batches that are filled, queued or with the reader.
    bytes: AtomicUsize,
    bytes_peak: AtomicUsize,
    /// Bytes of the large values that are kept.
    large_bytes: AtomicUsize,
    /// The view has ended early. What is emitted is dropped.
    has_ended: AtomicBool,
    is_over_limit: AtomicBool,
}

impl std::fmt::Debug for ViewSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ViewSink").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// What the reader of a view finds.
#[derive(Debug)]
pub enum ViewNext {
    /// Some records.
    Batch(ViewBatch),
    /// All records were taken.
    Complete,
    /// The view has ended early, and is no consistent state.
    Ended,
}

impl ViewSink {
    /// A view whose batches hold at most `limit_bytes` bytes that its reader has not taken.
    pub fn new(store: Arc<Store>, limit_bytes: usize) -> Self {
        let lanes = store.driver().read_sections().capacity();
        Self {
            store: Mutex::new(Some(store)),
            limit_bytes,
            lanes: (0..lanes).map(|_| CachePadded::default()).collect(),
            state: Mutex::default(),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            bytes: AtomicUsize::new(0),
            bytes_peak: AtomicUsize::new(0),
            large_bytes: AtomicUsize::new(0),
            has_ended: AtomicBool::new(false),
            is_over_limit: AtomicBool::new(false),
        }
    }

    /// Waits for records, and takes them. `used` is the batch taken before, whose memory is used again.
    pub fn next(&self, used: Option<ViewBatch>) -> ViewNext {
        if let Some(used) = used {
            self.give_back(used);
        }
        let mut state = self.state.lock();
        loop {
            if self.has_ended() && !state.is_complete {
                drop(state);
                self.drop_items();
                return ViewNext::Ended;
            }
            match state.items.pop_front() {
                Some(Item::Batch(batch)) => return ViewNext::Batch(batch),
                Some(Item::Large(large)) => {
                    drop(state);
                    return ViewNext::Batch(self.copy_large(large));
                }
                None if state.is_complete => return ViewNext::Complete,
                None => self.filled.wait(&mut state),
            }
        }
    }

    /// A batch with a large value alone.
    fn copy_large(&self, large: LargeRecord) -> ViewBatch {
        let LargeRecord { of, key, value } = large;
        let mut batch = ViewBatch::default();
        let store = self.store.lock().clone().expect("it is there while a value is kept");
        batch.push(of, &key, value.len(), |out| store.read_kept(&value, 0, out));
        self.release(value);
        batch
    }

    /// Bytes of the large values that are kept in the store's memory.
    pub fn large_bytes(&self) -> usize {
        self.large_bytes.load(Relaxed) // a figure
    }

    /// Frees a large value that was queued.
    fn release(&self, value: KeptValue) {
        self.large_bytes.fetch_sub(value.len(), Relaxed); // a figure
        let store = self.store.lock().clone().expect("it is there while a value is kept");
        store.release_kept(value);
        let mut state = self.state.lock();
        state.large -= 1;
        if state.large == 0 {
            self.emptied.notify_all();
        }
    }

    fn give_back(&self, mut used: ViewBatch) {
        self.bytes.fetch_sub(used.cost, Relaxed); // a figure
        let is_usual = used.cost == BATCH_COST;
        used.bytes.clear();
        used.entries.clear();
        let mut state = self.state.lock();
        if is_usual && state.spare.len() < SPARE_MAX && !state.is_complete && !self.has_ended() {
            state.spare.push(used);
        }
    }

    /// Says that all records of a consistent state are queued. Nothing is emitted any more.
    pub fn complete(&self) {
        let mut state = self.state.lock();
        // An end that came before stays the end.
        state.is_complete = !self.has_ended();
        state.spare = Vec::new();
        drop(state);
        self.filled.notify_all();
        *self.store.lock() = None;
    }

    /// Ends the view early, unless it is complete. What was emitted is dropped by the reader, or when the
    /// capture ends. Does little work: a commit calls this with its locks held.
    pub fn end(&self) {
        let state = self.state.lock();
        if !state.is_complete {
            // Release: a lane that sees the end drops what it emits. Pairs with the Acquire in
            // `has_ended`.
            self.has_ended.store(true, Release);
        }
        drop(state);
        self.filled.notify_all();
    }

    /// Frees all memory, complete or not, since nobody reads the view any more.
    pub fn discard(&self) {
        self.end();
        self.drop_items();
        for lane in &self.lanes {
            self.drop_batch(std::mem::take(&mut lane.open.lock().batch));
        }
    }

    /// Drops what is queued, and the empty batches.
    fn drop_items(&self) {
        let mut state = self.state.lock();
        let (items, spare) = (std::mem::take(&mut state.items), std::mem::take(&mut state.spare));
        drop(state);
        drop(spare);
        for item in items {
            match item {
                Item::Batch(batch) => self.drop_batch(batch),
                Item::Large(large) => self.release(large.value),
            }
        }
    }

    fn drop_batch(&self, batch: ViewBatch) {
        self.bytes.fetch_sub(batch.cost, Relaxed); // a figure
    }

    /// Whether the view has ended early.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Acquire) // pairs with the Release in `end`
    }

    /// Whether the view has ended since its reader had left too many bytes.
    pub fn is_over_limit(&self) -> bool {
        self.is_over_limit.load(Relaxed) // set before the end
    }

    /// Most bytes of batches that waited for the reader, were filled, or were with the reader.
    pub fn bytes_peak(&self) -> usize {
        self.bytes_peak.load(Relaxed)
    }

    /// An empty batch for a record of so many bytes. `None` if the limit is reached, which ends the view.
    #[cold]
    fn empty_batch(&self, bytes: usize) -> Option<ViewBatch> {
        let cost = BATCH_COST + bytes.saturating_sub(BATCH_BYTES);
        // Relaxed: figures; the mutex orders the items themselves.
        let now = self.bytes.fetch_add(cost, Relaxed) + cost;
        if now > self.limit_bytes {
            self.bytes.fetch_sub(cost, Relaxed);
            self.is_over_limit.store(true, Relaxed);
            self.end();
            return None;
        }
        self.bytes_peak.fetch_max(now, Relaxed);
        let spare = self.state.lock().spare.pop();
        let batch = spare.unwrap_or_else(ViewBatch::with_room);
        Some(ViewBatch { cost, ..batch })
    }

    /// Queues an item. What comes after the end is dropped with the rest.
    fn push(&self, item: Item) {
        let mut state = self.state.lock();
        state.large += usize::from(matches!(item, Item::Large(_)));
        state.items.push_back(item);
        drop(state);
        self.filled.notify_one();
    }
}

impl Drop for ViewSink {
    fn drop(&mut self) {
        self.drop_items();
    }
}

impl Sink for ViewSink {
    #[inline]
    fn with_lane(&self, lane: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        let LaneSlot { open, taken_bytes } = &*self.lanes[lane];
        let mut open = open.lock();
        with(&mut ViewLane { sink: self, open: &mut open });
        // Relaxed, and no RMW: only the holder of the lane writes this figure. The capture rests while
        // commits save as much as it scans.
        taken_bytes.store(open.taken_bytes, Relaxed);
    }

    fn demand(&self) -> Demand {
        if self.has_ended() {
            Demand::GiveUp
        } else if self.bytes.load(Relaxed) + self.large_bytes.load(Relaxed)
            > SCAN_BYTES.min(self.limit_bytes / 2)
        {
            Demand::Wait
        } else {
            Demand::Go
        }
    }

    fn let_commits_pass(&self) {
        if self.demand() == Demand::Wait {
            self.is_over_limit.store(true, Relaxed);
            self.end();
        }
    }

    fn taken_bytes(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.taken_bytes.load(Relaxed)).sum()
    }

    fn drain(&self) {
        for lane in &self.lanes {
            let batch = std::mem::take(&mut lane.open.lock().batch);
            if batch.is_empty() {
                self.drop_batch(batch);
            } else {
                self.push(Item::Batch(batch));
            }
        }
        loop {
            if self.has_ended() {
                self.drop_items();
            }
            let mut state = self.state.lock();
            if state.large == 0 {
                return;
            }
            // The end of the view is no signal of this condition.
            self.emptied.wait_for(&mut state, LOOK);
        }
    }
}

/// A lane during one call.
struct ViewLane<'a> {
    sink: &'a ViewSink,
    open: &'a mut OpenBatch,
}

impl Lane for ViewLane<'_> {
    fn emit(&mut self, record: &RecordImage<'_>) {
        self.open.last = None;
        if self.sink.has_ended() {
            return;
        }
        let of = (record.table, record.generation, record.value.label());
        let value_bytes = record.value.len();
        let bytes = record.key.len() + value_bytes;
        self.open.taken_bytes += bytes as u64;
        if value_bytes > COPIED_BYTES_MAX
            && let Some(value) = record.keep_large()
        {
            self.sink.large_bytes.fetch_add(value_bytes, Relaxed); // a figure
            return self.sink.push(Item::Large(LargeRecord { of, key: record.key.into(), value }));
        }
        let batch = &mut self.open.batch;
        if batch.cost == 0 || batch.is_full_for(bytes) {
            let Some(empty) = self.sink.empty_batch(bytes) else { return };
            let full = std::mem::replace(batch, empty);
            if !full.is_empty() {
                self.sink.push(Item::Batch(full));
            }
        }
        batch.push(of, record.key, value_bytes, |out| record.value.read_range(0, out));
        self.open.last = Some(bytes as u64);
    }

    /// A view is of all records, so deleted keys are not in it.
    fn emit_deletion(&mut self, _: &DeletedKey<'_>) {
        self.open.last = None;
    }

    #[cold]
    fn take_back(&mut self) {
        // A record that was dropped after the end leaves nothing to take back.
        if let Some(bytes) = self.open.last.take() {
            self.open.batch.pop();
            self.open.taken_bytes -= bytes;
        }
    }
}
