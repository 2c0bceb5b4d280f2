//! Bugs that tests plant in the whole process, to show that the checkers see them. Without the
//! feature `planted-bugs` every question is answered "no" at compile time, and nothing is left.

#[cfg(feature = "planted-bugs")]
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A bug to plant in commit, acknowledgement, publication or recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A record names what is not flushed, instead of what is not closed: what it rests on is
    /// flushed, but hangs on something that is not (two hops).
    NamesOnlyUnflushed = 1,
    /// Recovery records all that is valid as its cut and removes nothing beyond it: what it has
    /// dropped comes back (the second crash).
    CutNotRecorded = 2,
    /// A commit is acknowledged before its log is flushed.
    AnswersBeforeFlush = 3,
    /// A commit is acknowledged when its own log is flushed, whatever it rests on.
    AnswersWhenFlushed = 4,
    /// What was read is answered without waiting for who wrote it.
    AnswersReadsAtOnce = 5,
    /// A MANIFEST in doubt stops no transaction that is open already.
    CommitsInDoubt = 6,
    /// The older checkpoint is removed before the newer one is published.
    RemovesBeforePublishing = 7,
    /// The names of new log segments are not made durable.
    DirectoryNotFlushed = 8,
    /// Replay looks neither at the positions nor at the epoch of the checkpoint.
    ReplaysFromTheBeginning = 9,
    /// The logs' positions are those at the publication, not those at the point of consistency.
    PositionsTooLate = 10,
    /// Recovery keeps every valid record, whether or not it rests on a lost one.
    CutNotClosed = 11,
    /// A deleted record is reclaimed before its deletion is closed.
    ReclaimsBeforeClosed = 12,
    /// A flush of tables is durable before what was committed earlier.
    EmptiesBeforeLogs = 13,
    /// A key that is inserted again may get a smaller gsn than its deletion had.
    FloorNotRaised = 14,
}

impl Bug {
    /// Every one.
    pub const ALL: [Self; 14] = [
        Self::NamesOnlyUnflushed,
        Self::CutNotRecorded,
        Self::AnswersBeforeFlush,
        Self::AnswersWhenFlushed,
        Self::AnswersReadsAtOnce,
        Self::CommitsInDoubt,
        Self::RemovesBeforePublishing,
        Self::DirectoryNotFlushed,
        Self::ReplaysFromTheBeginning,
        Self::PositionsTooLate,
        Self::CutNotClosed,
        Self::ReclaimsBeforeClosed,
        Self::EmptiesBeforeLogs,
        Self::FloorNotRaised,
    ];
}

#[cfg(feature = "planted-bugs")]
static PLANTED: AtomicUsize = AtomicUsize::new(0);

/// Plants a bug in this process in place of the one before; `None` takes it out.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    // Relaxed: planted before anything runs.
    PLANTED.store(bug.map_or(0, |bug| bug as usize), Relaxed);
}

/// True if this bug was planted.
#[cfg(feature = "planted-bugs")]
#[inline]
pub fn is_planted(bug: Bug) -> bool {
    // Relaxed: planted before anything runs.
    PLANTED.load(Relaxed) == bug as usize
}

/// Never.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn is_planted(_: Bug) -> bool {
    false
}
