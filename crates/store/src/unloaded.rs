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
//! **What was replayed waits here**, too, until its key is asked for or loaded: see [`pending`]. So the
//! present record of a key without a cell is that of the checkpoints, with the writes that wait. Nothing
//! of both changes during the load. Whoever finds that record, finds the same one.

pub(crate) mod missed;
pub(crate) mod pending;

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use stillpoint_format::Label;
use stillpoint_sync::atomic::{
    AtomicU8, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use stillpoint_sync::{RwLock, mutant, planted};
use stillpoint_txn::TableId;

use pending::{Pending, WaitingWrites};

/// The reason why a record cannot be read.
pub type UnreadableRecord = Box<dyn std::error::Error + Send + Sync>;

/// A record of a checkpoint: its label and value. `None` if no checkpoint has the key, or the newest one
/// that has it has its deletion.
pub type FoundRecord = Option<(Label, Vec<u8>)>;

/// A value that was read, perhaps for another key.
#[derive(Clone, Copy, Debug)]
pub struct BesideRecord<'a> {
    /// Keyed hash of table and key.
    pub hash: u64,
    /// Key.
    pub key: &'a [u8],
    /// Tag and deadline of the value.
    pub label: Label,
    /// The value.
    pub value: &'a [u8],
}

/// Takes values that were read for the one that somebody has asked for, of a generation of a table. Returns
/// whether all of them are in the store now.
pub type TakeBeside<'a> = dyn FnMut((TableId, u32), &[BesideRecord<'_>]) -> bool + 'a;

/// Where the records are that are not in the store yet.
pub trait ColdRecords: Debug + Send + Sync {
    /// Whether there may be records of this generation of a table.
    fn may_have(&self, table: TableId, generation: u32) -> bool;

    /// Whether [`find`](Self::find) reads from a disk for such a key of this generation.
    fn reads_for(&self, hash: u64) -> bool;

    /// What the key has there. Any number of threads may ask. `beside` gets the values that were read on the
    /// way, and that are the newest ones of their keys.
    ///
    /// # Errors
    /// The record is damaged, or the disk refuses.
    fn find(
        &self,
        table: TableId,
        generation: u32,
        hash: u64,
        key: &[u8],
        beside: &mut TakeBeside<'_>,
    ) -> Result<FoundRecord, UnreadableRecord>;
}

const SETTLED: u8 = 0;
const LOADING: u8 = 1;
const LOADED: u8 = 2;

/// What a key has, which is to enter the store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WholeValue<'a> {
    pub(crate) label: Label,
    /// `None` for a deletion that was replayed.
    pub(crate) value: Option<Cow<'a, [u8]>>,
    /// The gsn of the last replayed write; 0 without one.
    pub(crate) gsn: u64,
}

impl WholeValue<'_> {
    fn into_owned(self) -> WholeValue<'static> {
        let Self { label, value, gsn } = self;
        WholeValue { label, value: value.map(|value| Cow::Owned(value.into_owned())), gsn }
    }
}

/// What keys without a cell may have: records of checkpoints, and writes of the logs.
#[derive(Debug)]
pub(crate) struct Unentered {
    records: Arc<dyn ColdRecords>,
    pub(crate) pending: Pending,
}

impl Unentered {
    /// Whether a key with this hash may have a record or a write.
    fn may_have(&self, (table, generation): (TableId, u32), hash: u64) -> bool {
        self.records.may_have(table, generation)
            && (self.records.reads_for(hash) || self.pending.may_have(hash))
    }

    /// What a key has whose newest record was read with another one: the record, with the writes that wait
    /// for it. `None` if they do not fit, or if nobody has sorted or read them yet.
    pub(crate) fn complete<'a>(
        &self,
        of: (TableId, u32),
        record: &BesideRecord<'a>,
    ) -> Option<WholeValue<'a>> {
        let &BesideRecord { hash, key, label, value } = record;
        if !self.pending.may_have(hash) {
            return Some(WholeValue { label, value: Some(Cow::Borrowed(value)), gsn: 0 });
        }
        if !self.pending.is_sorted(hash) || self.pending.reads_for(hash) {
            return None;
        }
        self.pending.of_key(of, (hash, key)).whole(Some((label, value))).ok()?
    }

    fn read(
        &self,
        (table, generation): (TableId, u32),
        hash: u64,
        key: &[u8],
        beside: &mut TakeBeside<'_>,
    ) -> Result<Option<WholeValue<'static>>, UnreadableRecord> {
        let of = (table, generation);
        if !self.records.may_have(table, generation) {
            return Ok(None);
        }
        let mut writes = self.pending.of_key(of, (hash, key));
        writes.read_apart()?;
        let found = match writes.stand_alone()? {
            Some(true) => None,
            _ if !self.records.reads_for(hash) => None,
            _ => self.records.find(table, generation, hash, key, beside)?,
        };
        let base = found.as_ref().map(|(label, value)| (*label, &value[..]));
        Ok(writes.whole(base)?.map(WholeValue::into_owned))
    }
}

/// The state of the load.
#[derive(Debug, Default)]
pub(crate) struct Unloaded {
    state: AtomicU8,
    unentered: RwLock<Option<Arc<Unentered>>>,
    /// Bytes of memory that the records take that are not loaded yet, about.
    reserved: AtomicUsize,
}

impl Unloaded {
    /// Begins a load. Nobody uses the store yet.
    pub(crate) fn begin(&self, records: Arc<dyn ColdRecords>, waiting: Vec<WaitingWrites>) {
        let pending = Pending::new(waiting);
        *self.unentered.write() = Some(Arc::new(Unentered { records, pending }));
        // Release: partner of the Acquire in `is_loading`.
        self.state.store(LOADING, Release);
    }

    /// Whether a key without a cell may have a record. To be asked inside of the read section in which
    /// that record enters the index.
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

    /// Whether the cell of a deleted key must stay, since an older record of the key may come.
    pub(crate) fn must_keep(&self, of: (TableId, u32), hash: u64) -> bool {
        // Between the end and the grace period nothing new is found, and what was found may still come.
        self.keeps_deleted()
            && (!self.is_loading()
                || self.unentered.read().as_ref().is_none_or(|from| from.may_have(of, hash)))
    }

    /// Every record is loaded.
    pub(crate) fn end(&self) {
        // SeqCst: as a change of the phase, before the grace period that comes next.
        self.state.store(LOADED, SeqCst);
    }

    /// A grace period has passed since the end.
    pub(crate) fn settle(&self) {
        let gone = self.unentered.write().take();
        self.reserved.store(0, Relaxed);
        // Release: partner of the Acquire in `keeps_deleted`.
        self.state.store(SETTLED, Release);
        drop(gone);
    }

    /// What keys without a cell may have, as long as the store is loaded.
    pub(crate) fn unentered(&self) -> Option<Arc<Unentered>> {
        if self.is_loading() { self.unentered.read().clone() } else { None }
    }

    /// Bytes of memory of the writes that wait.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.unentered.read().as_ref().map_or(0, |from| from.pending.bytes())
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

    /// Whether [`read`](Self::read) may read from a disk for a key.
    pub(crate) fn reads_for(&self, (table, generation): (TableId, u32), of: (u64, &[u8])) -> bool {
        let reads = |from: &Arc<Unentered>| {
            let reads_record = from.records.reads_for(of.0)
                && !from.pending.is_known_alone((table, generation), of);
            from.records.may_have(table, generation)
                && (reads_record || from.pending.reads_for(of.0))
        };
        self.is_loading() && self.unentered.read().as_ref().is_some_and(reads)
    }

    /// What a key has that has no cell: its record with the writes that wait for it. `None` if the load
    /// has ended. `beside` gets other records that were read on the way.
    pub(crate) fn read(
        &self,
        of: (TableId, u32),
        hash: u64,
        key: &[u8],
        beside: &mut TakeBeside<'_>,
    ) -> Option<Result<Option<WholeValue<'static>>, UnreadableRecord>> {
        Some(self.unentered()?.read(of, hash, key, beside))
    }
}
