//! The queue of blocks and large values to be written, the empty blocks, and the first failure.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use stillpoint_format::Label;
use stillpoint_format::part::BlockBuilder;
use stillpoint_io::Clock;
use stillpoint_store::{Demand, KeptValue, RecordImage, Store};
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use super::{SinkStats, WriterConfig};
use crate::error::CheckpointError;
use crate::progress::Progress;

/// Something to write.
#[derive(Debug)]
pub(super) enum Item {
    /// A block with entries.
    Block(BlockBuilder),
    /// A large value, by reference.
    Large(Large),
}

/// The bytes of a large value to be written.
#[derive(Debug)]
pub(super) enum LargeValue {
    /// Blocks of the store.
    Kept(KeptValue),
    /// A copy, of a value that is not in the store.
    Copied(Box<[u8]>),
}

impl LargeValue {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Kept(kept) => kept.len(),
            Self::Copied(bytes) => bytes.len(),
        }
    }

    /// Fills `out` with the bytes from `offset` on.
    pub(super) fn read(&self, store: &Store, offset: usize, out: &mut [u8]) {
        match self {
            Self::Kept(kept) => store.read_kept(kept, offset, out),
            Self::Copied(bytes) => out.copy_from_slice(&bytes[offset..offset + out.len()]),
        }
    }
}

/// A large value to be written.
#[derive(Debug)]
pub(super) struct Large {
    pub(super) table: u16,
    pub(super) generation: u32,
    pub(super) partition: u32,
    pub(super) label: Label,
    pub(super) gsn: u64,
    pub(super) key: Box<[u8]>,
    pub(super) value: LargeValue,
}

impl Large {
    pub(super) fn new(record: &RecordImage<'_>, partition: u32) -> Self {
        let value = match record.keep_large() {
            Some(kept) => LargeValue::Kept(kept),
            None => LargeValue::Copied(record.value.to_vec().into()),
        };
        Self {
            table: record.table,
            generation: record.generation,
            partition,
            label: record.value.label(),
            gsn: record.gsn,
            key: record.key.into(),
            value,
        }
    }
}

impl Item {
    /// Bytes that the item holds, in its own memory or in the store's.
    fn bytes(&self) -> usize {
        match self {
            Item::Block(block) => block.bytes(),
            Item::Large(large) => large.key.len() + large.value.len(),
        }
    }

    fn records(&self) -> u64 {
        match self {
            Item::Block(block) => u64::from(block.entry_count()),
            Item::Large(_) => 1,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Item>,
    /// Bytes of the queued blocks.
    bytes: usize,
    /// Whether writers take whatever is queued at once, since no more items come.
    hurry: bool,
    /// Items that writers have taken and not finished.
    in_hand: usize,
    empty: Vec<BlockBuilder>,
    closed: bool,
    /// A copy of the queue's `failed` under the mutex. New items are dropped, so that no thread
    /// needs a writer any more.
    failed: bool,
}

/// The pool: a bounded queue between the lanes and the writer threads.
pub(super) struct Queue {
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    progress: Arc<Progress>,
    block_bytes: usize,
    limit_bytes: usize,
    /// Bytes above which the capture scan waits. So many keep the writers busy.
    walk_bytes: usize,
    /// A writer sleeps until so many bytes are queued, since it writes so many at a time. A writer
    /// that is woken for every block costs commits more than the blocks do.
    batch_bytes: usize,
    state: Mutex<State>,
    /// Signals that there is an item, or that there will be no more.
    filled: Condvar,
    /// Signals that no item is queued, and that writers have finished all items that they took.
    emptied: Condvar,
    /// Bytes of the items that are queued, or that writers have taken and not finished.
    bytes: AtomicUsize,
    bytes_peak: AtomicUsize,
    waits: AtomicU64,
    wait_ns: AtomicU64,
    failed: AtomicBool,
    failure: Mutex<Option<CheckpointError>>,
}

impl Queue {
    pub(super) fn new(
        store: Arc<Store>,
        clock: Arc<dyn Clock>,
        progress: Arc<Progress>,
        config: &WriterConfig,
    ) -> Self {
        let block_bytes = config.block_bytes.max(1);
        // Blocks are made ahead, so that no worker pays for the first touch of their memory.
        let ahead = (2usize << config.partitions_log2).min(config.pool_bytes_max / block_bytes);
        let empty = (0..ahead).map(|_| BlockBuilder::with_target(0, block_bytes));
        let walk_bytes =
            (config.pool_bytes_max / 2).min(4 * config.write_bytes * config.parts.max(1) as usize);
        Self {
            store,
            clock,
            progress,
            block_bytes,
            limit_bytes: config.pool_bytes_max,
            walk_bytes,
            batch_bytes: config.write_bytes.min(walk_bytes),
            state: Mutex::new(State { empty: empty.collect(), ..State::default() }),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            bytes: AtomicUsize::new(0),
            bytes_peak: AtomicUsize::new(0),
            waits: AtomicU64::new(0),
            wait_ns: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    pub(super) fn stats(&self) -> SinkStats {
        SinkStats {
            taken_bytes: 0,
            pool_bytes: self.bytes.load(Relaxed) as u64,
            pool_bytes_peak: self.bytes_peak.load(Relaxed) as u64,
            worker_waits: self.waits.load(Relaxed),
            worker_wait_ns: self.wait_ns.load(Relaxed),
        }
    }

    pub(super) fn demand(&self) -> Demand {
        if self.has_failed() {
            Demand::GiveUp
        } else if self.bytes.load(Relaxed) > self.walk_bytes {
            Demand::Wait
        } else {
            Demand::Go
        }
    }

    /// An empty block of a partition.
    pub(super) fn empty_block(&self, partition: u32) -> BlockBuilder {
        let used = self.state.lock().empty.pop();
        match used {
            Some(mut block) => {
                block.reset(partition);
                block
            }
            None => BlockBuilder::with_target(partition, self.block_bytes),
        }
    }

    /// Most bytes in the pool with which a commit may still save before-images.
    fn most_before_saves(&self) -> usize {
        self.limit_bytes / 4 * 3
    }

    /// True if the pool has room for the before-images of a commit.
    pub(super) fn has_room(&self) -> bool {
        self.bytes.load(Relaxed) <= self.most_before_saves()
    }

    /// Waits until the pool has room for the before-images of a commit.
    pub(super) fn wait_before_saves(&self) {
        self.wait_until_at_most(self.most_before_saves());
    }

    /// Queues an item; while the pool is beyond its limit, waits for room.
    pub(super) fn push(&self, item: Item) {
        let bytes = item.bytes();
        if self.bytes.load(Relaxed) > self.limit_bytes {
            self.wait_until_at_most(self.limit_bytes);
        }
        Progress::add(&self.progress.records, item.records());
        Progress::add(&self.progress.bytes, bytes as u64);
        // Relaxed: a figure; the mutex orders the items themselves.
        let now = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        self.bytes_peak.fetch_max(now, Relaxed);
        let mut state = self.state.lock();
        if state.failed {
            drop(state);
            self.bytes.fetch_sub(bytes, Relaxed);
            return self.release(item);
        }
        state.items.push_back(item);
        state.bytes += bytes;
        let wake = self.is_worth_waking(&state);
        drop(state);
        if wake {
            self.filled.notify_one();
        }
    }

    fn is_worth_waking(&self, state: &State) -> bool {
        !state.items.is_empty() && (state.bytes >= self.batch_bytes || state.hurry)
    }

    #[cold]
    fn wait_until_at_most(&self, most: usize) {
        let start_ns = self.clock.monotonic_ns();
        let mut backoff = Backoff::new();
        while self.bytes.load(Relaxed) > most && !self.has_failed() {
            backoff.wait();
        }
        self.waits.fetch_add(1, Relaxed);
        let waited_ns = self.clock.monotonic_ns() - start_ns;
        self.wait_ns.fetch_add(waited_ns, Relaxed);
    }

    /// Waits for the next items to write. `None` once the queue is closed and empty.
    pub(super) fn take(&self) -> Option<InHand<'_>> {
        let mut state = self.state.lock();
        let sleeps = |state: &mut State| !state.closed && !self.is_worth_waking(state);
        self.filled.wait_while(&mut state, sleeps);
        let mut taken = InHand { queue: self, items: Vec::new(), bytes: 0 };
        while taken.bytes < self.batch_bytes
            && let Some(item) = state.items.pop_front()
        {
            taken.bytes += item.bytes();
            taken.items.push(item);
        }
        state.in_hand += taken.items.len();
        state.bytes -= taken.bytes;
        drop(state);
        Some(taken).filter(|taken| !taken.items.is_empty())
    }

    /// Frees the large value of an item that will not be written.
    fn release(&self, item: Item) {
        if let Item::Large(Large { value: LargeValue::Kept(kept), .. }) = item {
            self.store.release_kept(kept);
        }
    }

    pub(super) fn wait_until_empty(&self) {
        let mut state = self.state.lock();
        state.hurry = true;
        self.filled.notify_all();
        while state.in_hand > 0 || !state.items.is_empty() {
            self.emptied.wait(&mut state);
        }
    }

    /// Closes the queue: no more items come.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_all();
    }

    /// Frees the blocks once the writers have ended, since a worker may keep the sink for long.
    pub(super) fn free_blocks(&self) {
        self.state.lock().empty = Vec::new();
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Acquire)
    }

    /// Drops all queued items, and from now on all new ones.
    pub(super) fn set_failed(&self) {
        self.failed.store(true, Release);
        let mut state = self.state.lock();
        state.failed = true;
        let dropped = std::mem::take(&mut state.items);
        let bytes = std::mem::take(&mut state.bytes);
        // A thread that waits for the drain waits for these items too, since they may refer to the
        // store's memory.
        let dropped = InHand { queue: self, items: dropped.into(), bytes };
        state.in_hand += dropped.items.len();
        drop(state);
        drop(dropped);
    }

    /// Keeps the first failure. From now on new items are dropped.
    pub(super) fn fail(&self, error: CheckpointError) {
        self.failure.lock().get_or_insert(error);
        self.set_failed();
    }

    pub(super) fn take_failure(&self) -> Option<CheckpointError> {
        self.failure.lock().take()
    }
}

/// Items that were taken from the queue. This value is dropped when the items are written, or when
/// the write has failed or panicked. The drop frees the items' memory and ends waits for the items.
pub(super) struct InHand<'a> {
    queue: &'a Queue,
    pub(super) items: Vec<Item>,
    bytes: usize,
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        let Self { queue, items, bytes } = self;
        let count = items.len();
        let blocks = Vec::with_capacity(count);
        // Dropped last, so that the count is right even if a release panics.
        let mut settled = Settled { queue, count, bytes: *bytes, blocks };
        for item in items.drain(..) {
            match item {
                Item::Block(block) => settled.blocks.push(block),
                large @ Item::Large(_) => queue.release(large),
            }
        }
    }
}

/// The drop of this value counts the items as finished.
struct Settled<'a> {
    queue: &'a Queue,
    count: usize,
    bytes: usize,
    /// The items' blocks, which may be filled again.
    blocks: Vec<BlockBuilder>,
}

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.empty.append(&mut self.blocks);
        state.in_hand -= self.count;
        self.queue.bytes.fetch_sub(self.bytes, Relaxed);
        if state.in_hand == 0 && state.items.is_empty() {
            self.queue.emptied.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use stillpoint_format::ident::StoreId;
    use stillpoint_io::RealClock;
    use stillpoint_store::{CellRules, StoreConfig};

    /// A worker that keeps the sink does not keep the blocks of its pool.
    #[test]
    fn no_block_is_left_once_the_writers_are_gone() {
        let config = StoreConfig { max_memory_bytes: 16 << 20, ..StoreConfig::default() };
        let store = Arc::new(Store::new(&config, CellRules::BEFORE_IMAGES).expect("memory"));
        let config = WriterConfig::new(StoreId([1; 16]), 0, 1);
        let queue = Queue::new(store, Arc::new(RealClock), Arc::default(), &config);
        let blocks = || queue.state.lock().empty.len();
        assert_eq!(blocks(), 2 << config.partitions_log2, "two for each partition");
        let used = queue.empty_block(1);
        queue.push(Item::Block(used));
        queue.close();
        drop(queue.take().expect("the writer's last block"));
        assert_eq!(blocks(), 2 << config.partitions_log2, "it is there again");
        queue.free_blocks();
        assert_eq!(blocks(), 0);
    }
}
