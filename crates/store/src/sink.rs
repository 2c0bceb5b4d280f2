//! The sink of a checkpoint's records, and the form of a record in a checkpoint.

use crate::memory::blob;
use crate::memory::value::ValueRef;

/// The lane of one thread's records.
pub trait Lane {
    /// Takes one record. The value is read here and not later, unless it is
    /// [kept](RecordImage::keep_large). Failures are kept and reported when the sink is closed.
    /// After a failure, later records are dropped.
    fn emit(&mut self, record: &RecordImage<'_>);

    /// Takes a key without a value. Only in a checkpoint of changes.
    fn emit_deletion(&mut self, key: &DeletedKey<'_>);

    /// Takes the last emitted record back. A commit has captured it meanwhile, so the copy may be
    /// neither the old value nor the new one. Called directly after [`emit`](Self::emit), by a scan
    /// only, and never for a large value.
    fn take_back(&mut self);
}

/// The sink of a checkpoint's records, usually a set of files.
pub trait Sink: Send + Sync {
    /// Calls `with` once, with the lane of a read section slot, which the caller owns. A commit
    /// that saves before-images makes one call, and the scan one call per few dozen cells. No
    /// thread uses two lanes at a time.
    fn with_lane(&self, lane: usize, with: &mut dyn FnMut(&mut dyn Lane));

    /// Whether there is room for before-images. If not, a commit that saves some must
    /// [wait](Self::wait_for_room). Every commit asks this while a checkpoint is under way.
    fn has_room(&self) -> bool {
        true
    }

    /// Waits until there is room for before-images of this lane's owner.
    fn wait_for_room(&self, lane: usize) {
        let _ = lane;
    }

    /// The sink's demand on the capture scan.
    fn demand(&self) -> Demand {
        Demand::Go
    }

    /// Bytes taken so far, before-images included.
    fn taken_bytes(&self) -> u64 {
        0
    }

    /// Ends the input. Returns once the sink refers to no memory of the store any more.
    fn drain(&self) {}
}

/// A sink that drops everything. It is used while no other sink is set.
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

/// A sink's demand on the capture scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Go on, at the pace.
    Go,
    /// Pause: the scan's share of the write queue is full, and the rest is reserved for
    /// before-images saved by commits.
    Wait,
    /// The sink has failed.
    GiveUp,
}

/// A record in its form for a checkpoint.
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
}

/// A key without a value, in its form for a checkpoint of changes.
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
}

/// A large value that is kept alive after the record was read.
#[derive(Debug)]
pub struct KeptValue {
    blob: blob::Blob,
}

impl<'a> RecordImage<'a> {
    /// The image of a record whose value does not lie in a cell.
    pub fn new(table: u16, generation: u32, hash: u64, key: &'a [u8], value: ValueRef<'a>) -> Self {
        Self { table, generation, hash, key, value }
    }

    /// Keeps a large value alive without a copy, so that it can be read after the record has
    /// changed. `None` for a value in its cell. [`Store::release_kept`](crate::Store::release_kept)
    /// releases it.
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

    /// Whether the value has no bytes. A large value always has some.
    pub fn is_empty(&self) -> bool {
        self.blob.len == 0
    }

    pub(crate) fn blob(&self) -> blob::Blob {
        self.blob
    }
}
