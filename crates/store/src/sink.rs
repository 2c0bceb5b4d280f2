//! Where the records of a checkpoint go, and what a record in a checkpoint is.

use crate::memory::blob;
use crate::memory::value::ValueRef;

/// Where the records of one thread go.
pub trait Lane {
    /// Takes one record, whose value is read here and not later, but for one that is
    /// [kept](RecordImage::keep_large). Failures are kept and reported when the sink is closed;
    /// after one, whatever comes is dropped.
    fn emit(&mut self, record: &RecordImage<'_>);

    /// Takes the news that a key has no value. Only in a checkpoint of changes, and in a fuzzy one.
    fn emit_deletion(&mut self, key: &DeletedKey<'_>);

    /// Forgets the record that was emitted last. A commit has captured the record meanwhile, so the
    /// value that was read may be neither the old one nor the new one. Called directly after
    /// [`emit`](Self::emit), by a capture scan only, and never for a large value.
    fn take_back(&mut self);
}

/// Where the records of a checkpoint go: a set of files by default.
pub trait Sink: Send + Sync {
    /// Calls `with` once, with the lane of a read section slot, which the caller owns. Once per commit
    /// that saves before-images, or per few dozen cells of the walk. Nobody asks for two lanes at a time.
    fn with_lane(&self, lane: usize, with: &mut dyn FnMut(&mut dyn Lane));

    /// False if whoever saves before-images has to [wait](Self::wait_for_room). Asked by every commit while a
    /// checkpoint is under way.
    fn has_room(&self) -> bool {
        true
    }

    /// Waits until there is room for before-images of this lane's owner.
    fn wait_for_room(&self, lane: usize) {
        let _ = lane;
    }

    /// What the capture should do now.
    fn demand(&self) -> Demand {
        Demand::Go
    }

    /// Bytes taken so far, before-images included.
    fn taken_bytes(&self) -> u64 {
        0
    }

    /// Nothing more comes. Returns once nothing of the store's is referred to any more.
    fn drain(&self) {}
}

/// Where before-images go while no sink is set: nowhere. A scheme that wants them has one set.
pub(crate) struct NoSink;

impl Sink for NoSink {
    fn with_lane(&self, _: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        with(&mut NoLane);
    }
}

struct NoLane;

impl Lane for NoLane {
    fn emit(&mut self, _: &RecordImage<'_>) {
        debug_assert!(false, "a before-image outside of a checkpoint");
    }
    fn emit_deletion(&mut self, _: &DeletedKey<'_>) {
        debug_assert!(false, "a deletion outside of a checkpoint");
    }
    fn take_back(&mut self) {}
}

/// What a sink asks of the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Walk on, at the pace.
    Go,
    /// Wait: more was taken than could be written yet, and what is left of the buffers is for the
    /// workers.
    Wait,
    /// The sink has failed.
    GiveUp,
}

/// A record as it is in a checkpoint.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RecordImage<'a> {
    /// Table.
    pub table: u16,
    /// Generation of the table.
    pub generation: u32,
    /// Keyed hash of table and key.
    pub hash: u64,
    /// Key.
    pub key: &'a [u8],
    /// Value.
    pub value: ValueRef<'a>,
    /// The gsn of the commit that wrote the value; 0 unless the scheme wants it in the checkpoint.
    pub gsn: u64,
}

/// A key that has no value, as it is in a checkpoint of changes or in a fuzzy one.
#[derive(Clone, Copy, Debug)]
pub struct DeletedKey<'a> {
    /// Table.
    pub table: u16,
    /// Generation of the table.
    pub generation: u32,
    /// Keyed hash of table and key.
    pub hash: u64,
    /// Key.
    pub key: &'a [u8],
    /// The gsn of the deletion; 0 unless the scheme wants it in the checkpoint.
    pub gsn: u64,
}

/// A large value kept beyond the moment in which the record was seen.
#[derive(Debug)]
pub struct KeptValue {
    blob: blob::Blob,
}

impl<'a> RecordImage<'a> {
    /// The image of a record whose value is held elsewhere than in a cell.
    pub fn new(table: u16, generation: u32, hash: u64, key: &'a [u8], value: ValueRef<'a>) -> Self {
        Self { table, generation, hash, key, value, gsn: 0 }
    }

    /// Keeps a large value alive without copying it, so that it can be read after the record has
    /// changed. `None` for a value that lives in its cell. Give the value back with
    /// [`Store::release_kept`](crate::Store::release_kept).
    pub fn keep_large(&self) -> Option<KeptValue> {
        let (memory, blob) = self.value.large_in()?;
        blob::retain(memory, blob);
        memory.pin(memory.arena.owner_of(blob.table));
        Some(KeptValue { blob })
    }
}

impl KeptValue {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.blob.len
    }

    /// True for a value of no bytes, which a large one never is.
    pub fn is_empty(&self) -> bool {
        self.blob.len == 0
    }

    pub(crate) fn blob(&self) -> blob::Blob {
        self.blob
    }
}
