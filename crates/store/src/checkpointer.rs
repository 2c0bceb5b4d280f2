//! The interface of a checkpoint scheme to the driver of the phases.

use stillpoint_format::Stamp;
use stillpoint_txn::LogRefused;

use crate::sink::Lane;
use crate::store::Store;

/// How a scheme's point of consistency comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointOfConsistency {
    /// A place in commit order; no commit waits.
    Virtual,
    /// A moment without commits under way, as short as possible.
    Physical,
    /// No commit from the point of consistency to the end of the capture.
    PhysicalThroughout,
    /// No point of consistency. Each record is as the scan meets it, with the stamp of its last
    /// writer. A start replays the commits since the begin of the checkpoint that are newer than
    /// the record.
    Fuzzy,
    /// As [`Fuzzy`](Self::Fuzzy), but commits wait for a moment at the begin. A record may hold the value
    /// of a commit that a crash then takes away. A start undoes such a commit by the before-image in its
    /// log.
    FuzzyUndone,
}

impl PointOfConsistency {
    /// Whether commits wait for it.
    pub const fn stops_commits(self) -> bool {
        matches!(self, Self::Physical | Self::PhysicalThroughout | Self::FuzzyUndone)
    }

    /// Whether there is none, so that records have stamps and a replay completes the checkpoint.
    pub const fn is_fuzzy(self) -> bool {
        matches!(self, Self::Fuzzy | Self::FuzzyUndone)
    }
}

/// The log, for a scheme's own records.
pub trait SchemeLog {
    /// Appends a record and returns its stamp.
    ///
    /// # Errors
    /// [`LogRefused::NoRoom`]: the log has no room now, and a full disk may keep it so until a checkpoint
    /// has freed the log. Otherwise the log refuses the record.
    fn append(&self, body: &[u8]) -> Result<Stamp, LogRefused>;
}

/// A checkpoint scheme: what it does at its point of consistency, and how it captures. The driver moves
/// the phases and owns the threads; the scheme starts none and opens no file.
pub trait Checkpointer: Send + Sync {
    /// How the scheme's point of consistency comes about.
    fn point_of_consistency(&self) -> PointOfConsistency;

    /// The point of consistency of the scheme as it was published, where [ours](Self::point_of_consistency)
    /// stops nobody.
    fn published_point(&self) -> PointOfConsistency {
        self.point_of_consistency()
    }

    /// Whether the scheme takes checkpoints of changes, besides full ones.
    fn takes_changes(&self) -> bool {
        false
    }

    /// Called in PREPARE, once for each unit, which is a group of slabs of the store. Only for a scheme that
    /// [takes changes](Self::takes_changes). Settles the marks of the checkpoint before. Commits go
    /// on. `slot` is a read section slot that the caller owns. If a checkpoint fails, its calls may end at any unit, and the next checkpoint calls
    /// this for all units again. Returns how many keys of the unit have changed since the last
    /// published checkpoint, deleted ones included.
    fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        let _ = (store, unit, slot);
        0
    }

    /// Whether the scheme works on each unit before a checkpoint that holds every record.
    fn works_before_full(&self) -> bool {
        false
    }

    /// Works on one unit in PREPARE, after [`settle`](Self::settle), while commits go on. Only for a
    /// scheme that [does such work](Self::works_before_full). Like a capture, this work keeps the pace,
    /// and several threads share it. Nothing is emitted. If it is cut off, the next full checkpoint calls
    /// this for all units again.
    fn before_full(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        let _ = (store, unit, to);
    }

    /// Called once PREPARE has begun and every commit sees it. If the scheme is
    /// [fuzzy](PointOfConsistency::is_fuzzy), the positions of the logs have been noted. The scheme
    /// may put a record of its own into the log.
    ///
    /// # Errors
    /// The log refuses the record: the checkpoint is given up.
    fn begin(&self, epoch: u64, log: &dyn SchemeLog) -> Result<(), LogRefused> {
        let _ = (epoch, log);
        Ok(())
    }

    /// For each log the greatest stamp that the capture has met. Only for a scheme whose checkpoints are
    /// [undone](PointOfConsistency::FuzzyUndone). Then the publication waits until the log can undo
    /// these commits, and not until they are closed.
    fn met(&self) -> Vec<Stamp> {
        Vec::new()
    }

    /// Whether the scheme has work on each unit left to do in this epoch, the present one. The next
    /// checkpoint begins after it.
    fn has_work_left(&self, epoch: u64) -> bool {
        let _ = epoch;
        false
    }

    /// Works on one unit after the capture, in REST, while commits go on. Like a capture, this work
    /// keeps the pace, and several threads share it. Nothing is emitted. If the work was cut off, it is
    /// [left](Self::has_work_left), and begins again.
    fn after_capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        let _ = (store, unit, to);
    }

    /// Called once [`after_capture`](Self::after_capture) has come to its end in this epoch.
    fn after_capture_ended(&self, epoch: u64) {
        let _ = epoch;
    }

    /// The section of the scheme in the MANIFEST, a text, for the checkpoint that is about to be
    /// published.
    fn section(&self) -> Option<String> {
        None
    }

    /// Whether [`at_point_of_consistency`](Self::at_point_of_consistency) does anything.
    fn has_pass_at_point(&self) -> bool {
        false
    }

    /// Called at a physical point of consistency, once for each unit, which is a group of slabs of the store, by
    /// all capture threads. Only for a scheme that [has such a pass](Self::has_pass_at_point). Commits
    /// wait meanwhile. `slot` is a read section slot that the caller owns.
    /// If a checkpoint fails, its calls may end at any unit, and the next checkpoint calls this for all
    /// units again.
    fn at_point_of_consistency(&self, store: &Store, unit: usize, slot: usize) {
        let _ = (store, unit, slot);
    }

    /// Called once at a physical point of consistency, while commits wait. A scheme that captures
    /// another memory than the store's makes it here.
    ///
    /// # Errors
    /// There is no such memory: the checkpoint is given up.
    fn hold(&self) -> Result<(), CaptureError> {
        Ok(())
    }

    /// Called after the last call of [`capture`](Self::capture), and if a checkpoint is given up before.
    /// Gives back what [`hold`](Self::hold) has made.
    ///
    /// # Errors
    /// A unit could not be captured: the checkpoint is given up.
    fn release(&self, store: &Store) -> Result<(), CaptureError> {
        let _ = store;
        Ok(())
    }

    /// Captures one unit, which is a group of slabs of the store. Units are the groups that exist when
    /// [`Phase::Capture`](crate::Phase) begins. Several threads call this in that phase, once for
    /// each unit. If a capture was [abandoned](Capture::is_abandoned), the scheme still visits all
    /// cells if the next capture needs their marks.
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture);

    /// Tells the scheme how the checkpoint ended. Called after [`Phase::Rest`](crate::Phase), and
    /// after a publication is durable. A scheme that notes "not captured yet" for later checkpoints
    /// clears these notes here and not before.
    fn ended(&self, epoch: u64, outcome: Outcome) {
        let _ = (epoch, outcome);
    }
}

/// The reason why a scheme could not capture.
pub type CaptureError = Box<dyn std::error::Error + Send + Sync>;

/// How a checkpoint ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The checkpoint exists, durably.
    Published,
    /// The checkpoint failed or was cancelled. The previous checkpoint stays.
    Abandoned,
}

/// A capture thread, in the view of its scheme.
pub trait Capture {
    /// The read section slot that the thread has claimed.
    fn slot(&self) -> usize;

    /// Calls `with` once, with the lane that takes the thread's records: for a few dozen cells at a
    /// time.
    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane));

    /// Waits as long as the pace and the sink require. Called every few dozen records, outside of
    /// read sections and of calls of the lane.
    fn pause(&mut self);

    /// Whether the checkpoint is given up. Emitted records are then discarded.
    fn is_abandoned(&self) -> bool;

    /// Notes that so many bytes were moved in memory. The pace counts these bytes like emitted
    /// ones.
    fn moved(&mut self, bytes: u64) {
        let _ = bytes;
    }
}
