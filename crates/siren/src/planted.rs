//! Bugs that tests plant in the whole process, to show that the checkers see them. Without the
//! feature `planted-bugs` `is_planted` is `false` at compile time, and no code is left.

stillpoint_sync::planted_bugs! {
    /// A bug to plant in pages, checkpointer, log or recovery.
    pub enum Bug {
        /// A pending commit is dropped when its page has been copied.
        PendingCommitLost,
        /// Operations change a frozen page in place.
        FrozenPageChanged,
        /// A page's old place on the disk is used again before the header is durable.
        FreedBeforeHeader,
        /// Recovery repeats a rollback of a statement that the checkpoint holds already.
        StatementRolledBackTwice,
        /// The dirty pages are taken while operations of the old level are under way.
        TakenBeforeSettled,
        /// A turn of the checkpointer waits for no announced writer.
        TurnPassesWriters,
        /// The header of a checkpoint is written before its pages are flushed.
        HeaderBeforePages,
        /// A commit is acknowledged before its log is flushed.
        AnswersBeforeFlush,
        /// A given-up checkpoint forgets the pages that it has written.
        ForgetsWrittenPages,
        /// A removed tuple that its page's copy holds goes to a page of pending removes, too.
        RemovedTupleTwice,
        /// Recovery goes on in a new segment with the transactions that the earlier opening aborted.
        LosersKept,
        /// After a replay, committed versions stay open.
        CommittedLeftOpen,
        /// A start that undoes a transaction does not note the undo at its keys.
        UndoWithoutStamp,
        /// A replay repeats operations that the checkpoint holds.
        RepeatedTwice,
        /// A new key claims no gap.
        GapUnclaimed,
        /// A range is not read again once its gaps are locked.
        RangeNotReadAgain,
        /// A key without versions is purged while its gap is locked.
        PurgedUnderGapLock,
        /// What is appended while the last page waits for its copy gathers on that page.
        AppendsToFrozenPage,
        /// A commit shows its values before its stamp.
        CommitWithoutStamp,
        /// A declared transaction changes its keys at a later level than its records have.
        ChangesAtLaterLevel,
    }
}
