//! The records of a store that is served while its checkpoints are loaded (decision 0038).
//!
//! ```text
//! logs replayed ─▶ LOADING: served; a key without a cell is looked for in the checkpoints
//!   ─▶ every record is loaded ─▶ LOADED: a key without a cell has no value
//!   ─▶ a grace period ─▶ SETTLED: cells of deleted keys are reclaimed
//! ```
//! **A key is known exactly if it has a cell.** The cell says what the key has now, whoever made it: the
//! replay, the load, a transaction. Who finds a record in a checkpoint holds the lock of the index
//! bucket, and enters the record only if the key has no cell.
//!
//! **No cell goes before SETTLED whose key a checkpoint may have.** The cell of a deleted key stays, so that no older
//! record takes its place. Who enters a record has seen LOADING inside its read section. The grace
//! period ends after that section, and so after the entry.
//!
//! **A patch that was replayed waits here** until its key's record is found: see [`pending`].

pub(crate) mod pending;

use std::fmt::Debug;
use std::sync::Arc;

use stillpoint_format::Label;
use stillpoint_sync::atomic::{
    AtomicU8, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use stillpoint_sync::{RwLock, mutant, planted};
use stillpoint_txn::TableId;

use pending::Pending;

/// The reason why a record cannot be read.
pub type UnreadableRecord = Box<dyn std::error::Error + Send + Sync>;

/// A record of a checkpoint: its label and value. `None` if no checkpoint has the key, or the newest one
/// that has it has its deletion.
pub type FoundRecord = Option<(Label, Vec<u8>)>;

/// Where the records are that are not in the store yet.
pub trait ColdRecords: Debug + Send + Sync {
    /// Whether there may be records of this generation of a table.
    fn may_have(&self, table: TableId, generation: u32) -> bool;

    /// Whether [`find`](Self::find) reads from a disk for such a key of this generation.
    fn reads_for(&self, hash: u64) -> bool;

    /// What the key has there. Any number of threads may ask.
    ///
    /// # Errors
    /// The record is damaged, or the disk refuses.
    fn find(
        &self,
        table: TableId,
        generation: u32,
        hash: u64,
        key: &[u8],
    ) -> Result<FoundRecord, UnreadableRecord>;
}

const SETTLED: u8 = 0;
const LOADING: u8 = 1;
const LOADED: u8 = 2;

/// A key's value that is to enter the store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WholeValue {
    pub(crate) label: Label,
    pub(crate) value: Vec<u8>,
    /// The gsn of the last patch; 0 without one.
    pub(crate) gsn: u64,
}

/// The state of the load.
#[derive(Debug, Default)]
pub(crate) struct Unloaded {
    state: AtomicU8,
    records: RwLock<Option<Arc<dyn ColdRecords>>>,
    pending: Pending,
    /// Bytes of memory that the records take that are not loaded yet, about.
    reserved: AtomicUsize,
}

impl Unloaded {
    /// Begins a load. Nobody uses the store yet.
    pub(crate) fn begin(&self, records: Arc<dyn ColdRecords>) {
        *self.records.write() = Some(records);
        // Release: partner of the Acquire in `is_loading`.
        self.state.store(LOADING, Release);
    }

    /// Whether a key without a cell may have a record in a checkpoint. To be asked inside of the read
    /// section in which that record enters the index.
    pub(crate) fn is_loading(&self) -> bool {
        // Acquire: partner of the stores in `begin` and `end`. Who sees that the load has ended finds
        // each record in the index.
        self.state.load(Acquire) == LOADING
    }

    /// Whether the cells of deleted keys must stay.
    #[inline]
    pub(crate) fn keeps_deleted(&self) -> bool {
        // Acquire: partner of the Release in `settle`. All entries of loaded records come before.
        let keeps = self.state.load(Acquire) != SETTLED;
        mutant!(keeps, LoadForgetsDeletions => false)
    }

    /// Whether the cell of a deleted key must stay, since a checkpoint may have an older record of the key.
    pub(crate) fn must_keep(&self, (table, generation): (TableId, u32), hash: u64) -> bool {
        let may_come = |records: &Arc<dyn ColdRecords>| {
            records.may_have(table, generation) && records.reads_for(hash)
        };
        // Between the end and the grace period nothing new is found, and what was found may still come.
        self.keeps_deleted()
            && (!self.is_loading() || self.records.read().as_ref().is_none_or(may_come))
    }

    /// Every record is loaded.
    pub(crate) fn end(&self) {
        // SeqCst: as a change of the phase, before the grace period that comes next.
        self.state.store(LOADED, SeqCst);
    }

    /// A grace period has passed since the end.
    pub(crate) fn settle(&self) {
        *self.records.write() = None;
        self.reserved.store(0, Relaxed);
        // Release: partner of the Acquire in `keeps_deleted`.
        self.state.store(SETTLED, Release);
    }

    pub(crate) fn pending(&self) -> &Pending {
        &self.pending
    }

    /// Bytes of memory that are kept for records.
    pub(crate) fn reserved(&self) -> usize {
        // Relaxed: a count.
        self.reserved.load(Relaxed)
    }

    pub(crate) fn reserve(&self, bytes: usize) {
        // Relaxed: a count.
        self.reserved.store(bytes, Relaxed);
    }

    /// Whether [`read`](Self::read) reads from a disk for a key.
    pub(crate) fn reads_for(&self, (table, generation): (TableId, u32), hash: u64) -> bool {
        let is_of = |records: &Arc<dyn ColdRecords>| {
            records.may_have(table, generation) && records.reads_for(hash)
        };
        self.is_loading() && self.records.read().as_ref().is_some_and(is_of)
    }

    /// What a key has that has no cell: its record with the patches that wait for it. `None` if the load
    /// has ended.
    pub(crate) fn read(
        &self,
        (table, generation): (TableId, u32),
        hash: u64,
        key: &[u8],
    ) -> Option<Result<Option<WholeValue>, UnreadableRecord>> {
        if !self.is_loading() {
            return None;
        }
        let records = self.records.read().clone()?;
        let has_none = !records.reads_for(hash) && self.pending.bytes() == 0;
        if has_none || !records.may_have(table, generation) {
            return Some(Ok(None));
        }
        Some(records.find(table, generation, hash, key).and_then(|found| {
            self.pending.apply((table, generation), (hash, key), found).map_err(Into::into)
        }))
    }
}
