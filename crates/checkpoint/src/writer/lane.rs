//! A lane: the open blocks of one worker or capture thread, one per partition.

use parking_lot::Mutex;
use stillpoint_format::hash::partition_of;
use stillpoint_format::manifest::TableRecords;
use stillpoint_format::part::{BlockBuilder, BlockMark, KeyRef};
use stillpoint_format::{EncodeError, Label};
use stillpoint_mem::prefetch_to_write;
use stillpoint_store::{DeletedKey, Lane, RecordImage};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};

use super::queue::{Item, Large, Queue};

/// The thread that emits a value copies it up to this length. The writer threads copy longer
/// values.
pub(super) const COPIED_BYTES_MAX: usize = 16 << 10;

/// Bytes behind a new entry of a block that are prefetched, so that the next small entries find
/// them in the cache.
const FETCHED_AHEAD_BYTES: usize = 192;

/// The lane of one read section slot. Until the drain only the slot's owner takes the lane's mutex.
#[derive(Debug)]
pub(super) struct LaneSlot {
    blocks: Mutex<Blocks>,
    /// Bytes of records taken, as of the end of the last call of the lane.
    taken_bytes: AtomicU64,
}

#[derive(Debug)]
struct Blocks {
    partitions_log2: u8,
    /// The open block of each partition. Empty until the lane is used.
    open: Vec<Option<BlockBuilder>>,
    /// Records taken, by table. The table of the last record is the first.
    table_records: Vec<TableRecords>,
    taken_bytes: u64,
    /// The last record, if it was copied.
    last: Option<Undo>,
}

/// The data with which a record is taken back.
#[derive(Clone, Copy, Debug)]
struct Undo {
    partition: u32,
    before: BlockMark,
    bytes: usize,
}

/// A lane during one call.
struct OpenLane<'a> {
    blocks: &'a mut Blocks,
    queue: &'a Queue,
}

impl LaneSlot {
    pub(super) fn new(partitions_log2: u8) -> Self {
        let blocks = Blocks {
            partitions_log2,
            open: Vec::new(),
            table_records: Vec::new(),
            taken_bytes: 0,
            last: None,
        };
        Self { blocks: Mutex::new(blocks), taken_bytes: AtomicU64::new(0) }
    }

    pub(super) fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Relaxed)
    }

    #[inline]
    pub(super) fn open(&self, queue: &Queue, with: &mut dyn FnMut(&mut dyn Lane)) {
        let mut blocks = self.blocks.lock();
        with(&mut OpenLane { blocks: &mut blocks, queue });
        // Relaxed, and no RMW: only the holder of the lane writes this number, a figure for the
        // pace.
        self.taken_bytes.store(blocks.taken_bytes, Relaxed);
    }

    /// How many records of each table were taken.
    pub(super) fn table_records(&self) -> Vec<TableRecords> {
        self.blocks.lock().table_records.clone()
    }

    /// Gives the open blocks to the writer threads.
    pub(super) fn flush(&self, queue: &Queue) {
        let open = std::mem::take(&mut self.blocks.lock().open);
        for block in open.into_iter().flatten().filter(|block| !block.is_empty()) {
            queue.push(Item::Block(block));
        }
    }
}

impl Lane for OpenLane<'_> {
    #[inline]
    fn emit(&mut self, record: &RecordImage<'_>) {
        self.blocks.last = None;
        if !self.queue.has_failed() {
            self.blocks.emit(record, self.queue);
        }
    }

    fn emit_deletion(&mut self, key: &DeletedKey<'_>) {
        self.blocks.last = None;
        if !self.queue.has_failed() {
            self.blocks.emit_deletion(key, self.queue);
        }
    }

    #[cold]
    fn take_back(&mut self) {
        self.blocks.take_back();
    }
}

impl Blocks {
    #[inline]
    fn emit(&mut self, record: &RecordImage<'_>, queue: &Queue) {
        let partition = partition_of(record.hash, self.partitions_log2);
        let len = record.value.len();
        let bytes = record.key.len() + len;
        self.count(record.table);
        self.taken_bytes += bytes as u64;
        if len > COPIED_BYTES_MAX {
            return queue.push(Item::Large(Large::new(record, partition)));
        }
        loop {
            let block = match self.open.get_mut(partition as usize) {
                Some(Some(block)) => block,
                _ => self.begin_block(partition, queue),
            };
            let before = block.mark();
            let (table, generation) = (record.table, record.generation);
            let label = record.value.label();
            let deadline = mutant!(label.deadline, DeadlineNotCaptured => 0);
            let label = Label { deadline, ..label };
            let reserved = if record.gsn == 0 && label.deadline == 0 {
                block.reserve_value(table, generation, record.key.len(), label.tag, len)
            } else {
                let of = (table, generation);
                block.reserve_record(of, record.key.len(), (label, record.gsn), len)
            };
            match reserved {
                Ok((key, value)) => {
                    key.copy_from_slice(record.key);
                    record.value.read_range(0, value);
                    prefetch_to_write(block.tail(FETCHED_AHEAD_BYTES));
                    self.last = Some(Undo { partition, before, bytes });
                    return;
                }
                Err(EncodeError::BlockFull) => self.end_block(partition, queue),
                Err(error) => return queue.fail(error.into()),
            }
        }
    }

    fn emit_deletion(&mut self, deleted: &DeletedKey<'_>, queue: &Queue) {
        let &DeletedKey { table, generation, hash, key, gsn } = deleted;
        let partition = partition_of(hash, self.partitions_log2);
        self.count(table);
        self.taken_bytes += key.len() as u64;
        loop {
            let block = match self.open.get_mut(partition as usize) {
                Some(Some(block)) => block,
                _ => self.begin_block(partition, queue),
            };
            match block.push_stamped_tombstone(KeyRef { table, generation, key }, gsn) {
                Ok(()) => return,
                Err(EncodeError::BlockFull) => self.end_block(partition, queue),
                Err(error) => return queue.fail(error.into()),
            }
        }
    }

    /// The record's block is still the open block of its partition, and the count of its table is
    /// still the first. A record that was dropped after a failure leaves nothing to take back.
    fn take_back(&mut self) {
        let Some(Undo { partition, before, bytes }) = self.last.take() else {
            return;
        };
        let block = self.open[partition as usize].as_mut().expect("it took the record");
        block.rollback(before);
        self.taken_bytes -= bytes as u64;
        self.table_records[0].records -= 1;
    }

    #[inline]
    fn count(&mut self, table: u16) {
        match self.table_records.first_mut() {
            Some(last) if last.table == table => last.records += 1,
            _ => self.count_other(table),
        }
    }

    #[cold]
    fn count_other(&mut self, table: u16) {
        let known = self.table_records.iter().position(|entry| entry.table == table);
        let at = known.unwrap_or_else(|| {
            self.table_records.push(TableRecords { table, records: 0 });
            self.table_records.len() - 1
        });
        self.table_records[at].records += 1;
        self.table_records.swap(0, at);
    }

    #[cold]
    fn begin_block(&mut self, partition: u32, queue: &Queue) -> &mut BlockBuilder {
        if self.open.is_empty() {
            self.open.resize_with(1 << self.partitions_log2, || None);
        }
        self.open[partition as usize].insert(queue.empty_block(partition))
    }

    #[cold]
    fn end_block(&mut self, partition: u32, queue: &Queue) {
        if let Some(block) = self.open[partition as usize].take() {
            queue.push(Item::Block(block));
        }
    }
}
