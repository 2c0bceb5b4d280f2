//! What a checkpoint scheme is to the store.

use crate::blob;
use crate::phase::Phase;
use crate::store::{Memory, Store};
use crate::value::ValueRef;

/// How a scheme's point of consistency comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointOfConsistency {
    /// There is none: the scheme takes no checkpoints.
    None,
    /// A place in commit order; nothing stops.
    Virtual,
    /// A moment without commits under way, as short as possible.
    Physical,
    /// No commit from the point of consistency to the end of the capture.
    PhysicalThroughout,
}

/// How the cells of a scheme are read and written. Asked once, when the store is made.
pub trait CellPolicy: Send + Sync {
    /// True if a record must be offered to [`before_first_write`](Self::before_first_write) before
    /// the first change that commits after a point of consistency. Each record then carries a mark
    /// that says whether it was captured; what marks mean alternates with the epoch, so nothing is
    /// reset.
    fn wants_first_writes(&self) -> bool;

    /// The old value of a record that is about to be changed by the first commit after the point
    /// of consistency, and was not captured yet. Called with all of the transaction's locks and the
    /// record's latch held: short, and never waiting for a transaction. `worker` is the number of
    /// the committing worker.
    fn before_first_write(&self, worker: usize, record: &RecordImage<'_>);
}

/// A checkpoint scheme: what it does on entering a phase. The driver moves the phases and owns the
/// threads; the scheme starts none and opens no file.
pub trait Checkpointer: CellPolicy {
    /// How its point of consistency comes about.
    fn point_of_consistency(&self) -> PointOfConsistency;

    /// A phase is about to begin (for [`Phase::Rest`], has begun). From [`Phase::Prepare`] on,
    /// `sink` takes the records of the checkpoint that begins the epoch `epoch`.
    fn enter(&self, phase: Phase, epoch: u64, sink: &std::sync::Arc<dyn Sink>);

    /// Captures what one slab holds, as lane `lane` of the sink. Several threads call this, each
    /// slab once, in the phase [`Phase::Capture`].
    fn capture(&self, store: &Store, slab: usize, lane: usize);
}

/// Where the records of a checkpoint go: a set of files by default.
pub trait Sink: Send + Sync {
    /// Takes one record. Lanes below the number of workers belong to the workers; each capture
    /// thread has one of its own above. Failures are kept and reported when the sink is closed.
    fn emit(&self, lane: usize, record: &RecordImage<'_>);
}

/// A record as it is in a checkpoint.
#[derive(Clone, Copy, Debug)]
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
    pub(crate) memory: &'a Memory,
}

/// A large value kept beyond the moment in which the record was seen.
#[derive(Debug)]
pub struct KeptValue {
    blob: blob::Blob,
}

impl RecordImage<'_> {
    /// Keeps a large value alive without copying it, so that it can be read after the record has
    /// changed; `None` for a value that lives in its cell. Give it back with
    /// [`Store::release_kept`].
    pub fn keep_large(&self) -> Option<KeptValue> {
        let blob = self.value.blob()?;
        blob::retain(self.memory, blob);
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

    /// Appends `count` bytes from `offset` on.
    pub fn copy_range_to(&self, store: &Store, offset: usize, count: usize, out: &mut Vec<u8>) {
        blob::read(store.memory(), self.blob, offset, count, out);
    }

    pub(crate) fn into_blob(self) -> blob::Blob {
        self.blob
    }
}

/// The policy of a store that takes no checkpoints: no hook, no mark.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPolicy;

impl CellPolicy for NoPolicy {
    fn wants_first_writes(&self) -> bool {
        false
    }
    fn before_first_write(&self, _: usize, _: &RecordImage<'_>) {}
}
