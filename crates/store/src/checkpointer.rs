//! The interface of a checkpoint scheme to the driver of the phases.

use stillpoint_format::names::CheckpointKind;

use crate::sink::Lane;
use crate::store::Store;

/// The kind of a scheme's point of consistency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointOfConsistency {
    /// A place in commit order. No commit stops.
    Virtual,
    /// A moment without commits under way, as short as possible.
    Physical,
    /// No commit from the point of consistency to the end of the capture.
    PhysicalThroughout,
}

/// A checkpoint scheme: its work at the point of consistency, and its capture. The driver moves the
/// phases and owns the threads. The scheme starts no thread and opens no file.
pub trait Checkpointer: Send + Sync {
    /// The kind of the scheme's point of consistency.
    fn point_of_consistency(&self) -> PointOfConsistency;

    /// What its checkpoints hold.
    fn kind(&self) -> CheckpointKind {
        CheckpointKind::Full
    }

    /// Passes one unit in REST, before PREPARE begins: a slab of the store, once. Commits go on.
    /// `slot` is a read section slot that the caller owns. The pass of a checkpoint that fails may end
    /// anywhere; the next one passes all units again.
    fn before_prepare(&self, store: &Store, unit: usize, slot: usize) {
        let _ = (store, unit, slot);
    }

    /// Passes one unit at a physical point of consistency, while nothing commits: a slab of the
    /// store, once. `slot` is a read section slot that the caller owns. Commits wait meanwhile. The
    /// pass of a checkpoint that fails may end anywhere; the next one passes all units again.
    fn at_point_of_consistency(&self, store: &Store, unit: usize, slot: usize) {
        let _ = (store, unit, slot);
    }

    /// Captures one unit: a slab that exists when [`Phase::Capture`](crate::Phase) has been
    /// entered. Several threads call this in that phase, once for each unit. An
    /// [abandoned](Capture::is_abandoned) capture still scans all units if the next one needs the
    /// marks.
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture);

    /// Told how the checkpoint ended, after [`Phase::Rest`](crate::Phase). For a published
    /// checkpoint, it is called once the publication is durable. Bits that say "not captured yet"
    /// for a later checkpoint are cleared here and not before.
    fn ended(&self, epoch: u64, outcome: Outcome) {
        let _ = (epoch, outcome);
    }
}

/// How a checkpoint ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The checkpoint exists, durably.
    Published,
    /// The checkpoint failed or was cancelled. The previous one stays in force.
    Abandoned,
}

/// A capture thread, in the view of its scheme.
pub trait Capture {
    /// The read section slot that the thread has claimed.
    fn slot(&self) -> usize;

    /// Calls `with` once, with the thread's lane. One call serves a few dozen cells.
    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane));

    /// Waits as the pace and the sink demand. Called every few dozen records, between read sections
    /// and outside of the lane.
    fn pause(&mut self);

    /// Whether the checkpoint is given up, so that emitted records are dropped.
    fn is_abandoned(&self) -> bool;
}
