//! One generation of a table: its indexes, its counters, and the floors of reclaimed keys.

use std::sync::Arc;
use stillpoint_format::{LOG_NONE, Stamp};
use stillpoint_mem::{AddressSpace, RegionError};
use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{
    AtomicI64, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::memory::index::Index;
use crate::ordered::OrderedIndex;

use stillpoint_txn::TableId;

/// Parts of the key space that keep a floor for reclaimed keys.
const FLOORS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 256 };
const COUNTERS: usize = 16;

/// One generation of a table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) id: TableId,
    pub(crate) generation: u32,
    /// Owner of the slabs.
    pub(crate) owner: u32,
    pub(crate) index: Index,
    /// The keys in their order, if the table is ordered.
    pub(crate) ordered: Option<OrderedIndex>,
    floors: Box<[AtomicU64]>,
    records: [CachePadded<AtomicI64>; COUNTERS],
}

impl Table {
    pub(crate) fn new(
        id: TableId,
        generation: u32,
        owner: u32,
        is_ordered: bool,
        space: &Arc<AddressSpace>,
    ) -> Result<Self, RegionError> {
        Ok(Self {
            id,
            generation,
            owner,
            index: Index::new(space)?,
            ordered: is_ordered.then(|| OrderedIndex::new(space)).transpose()?,
            floors: (0..FLOORS).map(|_| AtomicU64::new(0)).collect(),
            records: std::array::from_fn(|_| CachePadded::new(AtomicI64::new(0))),
        })
    }

    fn floor(&self, hash: u64) -> &AtomicU64 {
        &self.floors[(hash >> 56) as usize % FLOORS]
    }

    /// The stamp of a new cell: not below that of any reclaimed cell of the same key.
    pub(crate) fn floor_stamp(&self, hash: u64) -> Stamp {
        Stamp::new(self.floor(hash).load(Acquire), LOG_NONE)
    }

    /// Raises all floors to this gsn.
    pub(crate) fn begin_above(&self, gsn: u64) {
        for floor in &self.floors {
            floor.fetch_max(gsn, Release);
        }
    }

    /// Raises the floor for a cell with this stamp, which is about to be reclaimed.
    pub(crate) fn raise_floor(&self, hash: u64, gsn: u64) {
        let floor = self.floor(hash);
        // Relaxed: a floor only rises. Most stamps do not exceed the floor and need no change.
        if floor.load(Relaxed) < gsn {
            floor.fetch_max(gsn, Release);
        }
    }

    /// Counts added and removed records.
    pub(crate) fn count(&self, worker: usize, change: i64) {
        // Relaxed: a statistic.
        self.records[worker % COUNTERS].fetch_add(change, Relaxed);
    }

    /// Records with a value.
    pub(crate) fn len(&self) -> u64 {
        let sum: i64 = self.records.iter().map(|counter| counter.load(Relaxed)).sum();
        sum.max(0).unsigned_abs()
    }
}
