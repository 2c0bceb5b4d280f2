//! What a checkpoint scheme is to the driver of the phases.

use stillpoint_format::Stamp;
use stillpoint_txn::LogRefused;

use crate::sink::Lane;
use crate::store::Store;

/// How a scheme's point of consistency comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointOfConsistency {
    /// A place in commit order; nothing stops.
    Virtual,
    /// A moment without commits under way, as short as possible.
    Physical,
    /// No commit from the point of consistency to the end of the capture.
    PhysicalThroughout,
    /// There is none. Each record is as the scan meets it, with the stamp of its last writer. A start
    /// replays what was committed since the begin of the checkpoint, where it is newer than the record.
    Fuzzy,
}

/// The log, for a scheme's own records.
pub trait SchemeLog {
    /// Appends a record and returns its stamp. Waits for room.
    ///
    /// # Errors
    /// The log refuses the record.
    fn append(&self, body: &[u8]) -> Result<Stamp, LogRefused>;
}

/// A checkpoint scheme: what it does at its point of consistency, and how it captures. The driver moves the phases and owns the
/// threads; the scheme starts none and opens no file.
pub trait Checkpointer: Send + Sync {
    /// How its point of consistency comes about.
    fn point_of_consistency(&self) -> PointOfConsistency;

    /// Whether it takes checkpoints of what has changed, besides full ones.
    fn takes_changes(&self) -> bool {
        false
    }

    /// Passes one unit in PREPARE, before any checkpoint of a scheme that
    /// [takes changes](Self::takes_changes) or [works after the capture](Self::works_after_capture): a
    /// slab of the store, once. Settles what the marks of the checkpoint before mean now, or does what
    /// was left undone. Commits go on. `slot` is a read section slot that the caller owns. The pass of a
    /// checkpoint that fails may end anywhere; the next one passes all units again. Gives the keys that
    /// have changed since the last published checkpoint, deleted ones included.
    fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        let _ = (store, unit, slot);
        0
    }

    /// PREPARE has begun, and every commit sees it. The positions of the logs have been noted, if the
    /// scheme is [fuzzy](PointOfConsistency::Fuzzy). The scheme may put a record of its own into the
    /// log.
    ///
    /// # Errors
    /// The log refuses the record: the checkpoint is given up.
    fn begin(&self, epoch: u64, log: &dyn SchemeLog) -> Result<(), LogRefused> {
        let _ = (epoch, log);
        Ok(())
    }

    /// True if the scheme has work for after the capture, unit by unit.
    fn works_after_capture(&self) -> bool {
        false
    }

    /// Works on one unit after the capture, in REST, beside commits: at the pace and in parallel, as
    /// captures are. Nothing is emitted. The next checkpoint begins after the last unit.
    /// [`settle`](Self::settle) makes up for work that was cut off.
    fn after_capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        let _ = (store, unit, to);
    }

    /// The section of the scheme in the MANIFEST, a text, for the checkpoint that is about to be
    /// published.
    fn section(&self) -> Option<String> {
        None
    }

    /// Passes one unit at a physical point of consistency, while nothing commits: a slab of the
    /// store, once. `slot` is a read section slot that the caller owns. Commits wait meanwhile. The
    /// pass of a checkpoint that fails may end anywhere; the next one passes all units again.
    fn at_point_of_consistency(&self, store: &Store, unit: usize, slot: usize) {
        let _ = (store, unit, slot);
    }

    /// Captures one unit: a slab of the store, of those that there are when
    /// [`Phase::Capture`](crate::Phase) has been entered. Several threads call this, each unit once,
    /// in that phase. A capture
    /// that was [abandoned](Capture::is_abandoned) is walked to its end all the same, if the next
    /// one needs the marks that the walk leaves.
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture);

    /// How the checkpoint ended; after [`Phase::Rest`](crate::Phase), and if it was published, once that is
    /// durable. Whatever says "not captured yet" for a later checkpoint is cleared here and not
    /// before.
    fn ended(&self, epoch: u64, outcome: Outcome) {
        let _ = (epoch, outcome);
    }
}

/// How a checkpoint ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It exists, durably.
    Published,
    /// It failed or was cancelled; the previous one stays.
    Abandoned,
}

/// A capture thread, as the scheme that it walks for sees it.
pub trait Capture {
    /// The read section slot that the thread has claimed.
    fn slot(&self) -> usize;

    /// Calls `with` once, with the lane that takes the thread's records: for a few dozen cells at a
    /// time.
    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane));

    /// Called between read sections and with no lane in hand, every few dozen records: waits as the pace
    /// and the sink ask.
    fn pause(&mut self);

    /// True if the checkpoint is given up: what is emitted goes nowhere.
    fn is_abandoned(&self) -> bool;

    /// Notes that so many bytes were moved in memory. The pace counts them like emitted bytes.
    fn moved(&mut self, bytes: u64) {
        let _ = bytes;
    }
}
