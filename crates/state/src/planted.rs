//! Bugs that tests plant in the whole process, to show that the checkers see them. Without the
//! feature `planted-bugs` every question is answered "no" at compile time, and nothing is left.

#[cfg(feature = "planted-bugs")]
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A bug to plant in a scheme, the writer, the logger or recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A partial write loses the rest of its grain (every scheme, `none` included).
    PartLosesTheRest = 1,
    /// Naive snapshot: the last cell is not copied.
    SnapshotMissesACell = 2,
    /// Copy-on-update: the new value is saved, not the old (as the published code does).
    CopyOnUpdateSavesTheNew = 3,
    /// Copy-on-update: the bits are not reset for a new period.
    CopyOnUpdateKeepsBits = 4,
    /// Zigzag: MW is not set to ¬MR for the last cell.
    ZigzagForgetsAMark = 5,
    /// Zigzag: a partial write goes to a copy that holds an older cell.
    ZigzagBringsNothingOver = 6,
    /// Ping-pong: a partial write goes to a copy of changes that holds an older cell.
    PingPongBringsNothingOver = 7,
    /// Ping-pong: the marks of a failed capture are not joined into the next period's.
    PingPongLosesFailedMarks = 8,
    /// Hourglass: reads ignore the location bit (as the published code does).
    HourglassReadsOneCopy = 9,
    /// Hourglass: a partial write goes to a copy that holds an older cell.
    HourglassBringsNothingOver = 10,
    /// Hourglass: the marks of a failed capture are not joined into the next period's.
    HourglassLosesFailedMarks = 11,
    /// Piggyback: a tick swaps before the copier is done.
    PiggybackDoesNotWaitForTheCopier = 12,
    /// Piggyback: the copier does not claim a cell, and overwrites what the mutator writes.
    PiggybackCopiesUnclaimed = 13,
    /// Marks are cleared although the image did not become durable.
    MarksClearedBeforeDurable = 14,
    /// The trailer of an image is written before its blocks are flushed.
    TrailerBeforeFlush = 15,
    /// An image is written over the newest one, not over the older.
    OverwritesTheNewest = 16,
    /// A tick is reported durable when its actions are written, not when they are flushed.
    DurableBeforeFlush = 17,
    /// Actions are removed up to the newest image, before it is durable.
    RemovesActionsTooEarly = 18,
    /// Replay begins at the image's own tick, not behind it.
    ReplaysTheImagesTick = 19,
    /// The merge takes a block of the last image as it comes, without looking at its checksum.
    MergesUnverified = 20,
    /// Recovery does not flush what it has read.
    RecoversUnflushed = 21,
}

impl Bug {
    /// Every one.
    pub const ALL: [Self; 21] = [
        Self::PartLosesTheRest,
        Self::SnapshotMissesACell,
        Self::CopyOnUpdateSavesTheNew,
        Self::CopyOnUpdateKeepsBits,
        Self::ZigzagForgetsAMark,
        Self::ZigzagBringsNothingOver,
        Self::PingPongBringsNothingOver,
        Self::PingPongLosesFailedMarks,
        Self::HourglassReadsOneCopy,
        Self::HourglassBringsNothingOver,
        Self::HourglassLosesFailedMarks,
        Self::PiggybackDoesNotWaitForTheCopier,
        Self::PiggybackCopiesUnclaimed,
        Self::MarksClearedBeforeDurable,
        Self::TrailerBeforeFlush,
        Self::OverwritesTheNewest,
        Self::DurableBeforeFlush,
        Self::RemovesActionsTooEarly,
        Self::ReplaysTheImagesTick,
        Self::MergesUnverified,
        Self::RecoversUnflushed,
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
