//! Where the records of a checkpoint go, and what a record in a checkpoint is.

use crate::memory::blob;
use crate::memory::value::ValueRef;

/// Where the records of one thread go.
pub trait Lane {
    /// Takes one record. The lane reads the value before this call ends, unless it
    /// [keeps](RecordImage::keep_large) a large value. A failure is reported when the sink is
    /// closed, and the sink drops all records after a failure.
    fn emit(&mut self, record: &RecordImage<'_>);

    /// Takes the deletion of a key. Called only for a checkpoint of changes, and for a fuzzy
    /// checkpoint.
    fn emit_deletion(&mut self, key: &DeletedKey<'_>);

    /// Forgets the record that was emitted last. A commit has captured the record meanwhile, so the
    /// value that was read may be neither the old one nor the new one. Called directly after
    /// [`emit`](Self::emit), by a capture scan only, and never for a large value.
    fn take_back(&mut self);
}

/// Where the records of a checkpoint go: a set of files by default.
pub trait Sink: Send + Sync {
    /// Calls `with` once, with the lane of a read section slot, which the caller owns. A commit
    /// that saves before-images calls this once, and a capture scan once for a few dozen cells. A
    /// thread uses one lane at a time.
    fn with_lane(&self, lane: usize, with: &mut dyn FnMut(&mut dyn Lane));

    /// False if a commit that saves before-images has to [wait](Self::wait_for_room). Asked by
    /// every commit while a checkpoint is under way.
    fn has_room(&self) -> bool {
        true
    }

    /// Waits until the sink has room for the before-images of this lane's owner.
    fn wait_for_room(&self, lane: usize) {
        let _ = lane;
    }

    /// Called again and again by a commit that waits, with its locks held, for the scan to come by. A sink
    /// whose scan waits for a reader must not let the commit wait for the reader, too.
    fn let_commits_pass(&self) {}

    /// What the capture should do now.
    fn demand(&self) -> Demand {
        Demand::Go
    }

    /// Bytes taken so far, before-images included.
    fn taken_bytes(&self) -> u64 {
        0
    }

    /// Called after the last record. Returns once the sink keeps no large value of the store any
    /// more.
    fn drain(&self) {}
}

/// Where before-images go while no sink is set: nowhere. For a scheme that saves before-images a
/// sink is set.
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
    /// Go on, at the pace.
    Go,
    /// Wait: records come faster than they are written, and the free buffers are reserved for
    /// commits.
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

/// A large value that a sink keeps after the call that emitted its record.
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

    /// Whether the value has no bytes. Always false, since a large value has bytes.
    pub fn is_empty(&self) -> bool {
        self.blob.len == 0
    }

    pub(crate) fn blob(&self) -> blob::Blob {
        self.blob
    }
}
