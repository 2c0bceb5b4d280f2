//! Bugs that tests plant in the whole process, to show that the checkers see them. Without the
//! feature `planted-bugs` `is_planted` is `false` at compile time, and no code is left.

stillpoint_sync::planted_bugs! {
    /// A bug to plant in a scheme, the writer, the logger or recovery.
    pub enum Bug {
        /// A partial write loses the rest of its grain (every scheme, `none` included).
        PartLosesTheRest,
        /// Naive snapshot: the last cell is not copied.
        SnapshotMissesACell,
        /// Fork: the image is read from the parent's memory, which goes on changing.
        ForkReadsTheParent,
        /// Written pages: of adjacent written pages only the first is copied.
        OnePageOfEachRange,
        /// Copy-on-update: the new value is saved, not the old (as the published code does).
        CopyOnUpdateSavesTheNew,
        /// Copy-on-update: the bits are not reset for a new period.
        CopyOnUpdateKeepsBits,
        /// Zigzag: MW is not set to ¬MR for the last cell.
        ZigzagForgetsAMark,
        /// Zigzag: a partial write goes to a copy that holds an older cell.
        ZigzagBringsNothingOver,
        /// Ping-pong: a partial write goes to a copy of changes that holds an older cell.
        PingPongBringsNothingOver,
        /// Hourglass: reads ignore the location bit (as the published code does).
        HourglassReadsOneCopy,
        /// Hourglass: a partial write goes to a copy that holds an older cell.
        HourglassBringsNothingOver,
        /// Hourglass, ping-pong, piggyback: a partial write to a line of a long cell does not bring
        /// over the rest of the line.
        LinesLoseTheirRest,
        /// Hourglass, ping-pong: a failed capture of changes is not taken again.
        ForgetsAFailedCapture,
        /// Piggyback: the mutator assumes too early that the copier is done.
        PiggybackSettlesTooEarly,
        /// Piggyback: a tick swaps before the copier is done.
        PiggybackDoesNotWaitForTheCopier,
        /// Piggyback: the mutator writes in the very piece that the copier is at.
        PiggybackIgnoresThePieceUnderWay,
        /// Piggyback: the copier announces a stretch when it has copied it, not before.
        PiggybackAnnouncesTooLate,
        /// Piggyback: the copier begins a piece in which the mutator is writing.
        PiggybackOverlooksTheWriter,
        /// Piggyback: threads write chunks while the copier is at work.
        ChunksIgnoreTheCopier,
        /// Chunks of different threads share marks and words of marks.
        ChunksShareMarks,
        /// Marks are cleared although the image did not become durable.
        MarksClearedBeforeDurable,
        /// The trailer of an image is written before its blocks are flushed.
        TrailerBeforeFlush,
        /// An image is written over the newest one, not over the older.
        OverwritesTheNewest,
        /// An image that is merged from the disk is written over the image before the newest.
        OverwritesTheImageBefore,
        /// The base image of changes is lost, and the next capture still holds only changes.
        ForgetsALostBase,
        /// A tick is reported durable when its actions are written, not when they are flushed.
        DurableBeforeFlush,
        /// Actions are removed up to the newest image, before it is durable.
        RemovesActionsTooEarly,
        /// Replay begins at the image's own tick, not behind it.
        ReplaysTheImagesTick,
        /// The merge takes a block of the last image as it comes, without looking at its checksum.
        MergesUnverified,
        /// Recovery does not make durable what it has read.
        RecoversUnflushed,
    }
}
