//! Bugs that tests plant in paged tables, to show that the tests see them.

stillpoint_sync::planted_bugs! {
    /// A bug to plant in paged tables.
    pub enum Bug {
        /// A read of a page begins although its parent has changed: the page may be in another frame.
        LoadsWithoutParent,
        /// The copy of an inner page for the disk holds a frame as a child.
        FrameOnDisk,
        /// The record of a split has no moved entries.
        SplitWithoutEntries,
        /// The parent of a split is not in its record.
        ParentLeftOut,
        /// A replay repeats a change whose gsn is that of the page.
        RedoneAtSameGsn,
        /// An undo or a replay of a patch writes the first of its ranges alone.
        PatchesOneRange,
        /// A record is changed although another transaction has read a range of its leaf.
        StretchUnclaimed,
        /// Who splits a leaf that it has read a range of does not keep the part on the new page.
        NewStretchNotShared,
        /// A range is taken as read although its leaf has changed meanwhile.
        RangeNotReadAgain,
        /// A range is read over the changes of open transactions.
        RangeOverOpenChanges,
        /// A read without a lock does not look at the key's word.
        UnlockedReadIgnoresWord,
        /// Leaves are merged although another transaction has read a range of one of them.
        MergesUnclaimed,
        /// Who merges a leaf that it has read a range of does not keep the range.
        MergedStretchNotKept,
        /// The page that a merge leaves empty is never freed.
        MergedPageNotFreed,
        /// A page of an emptied table that could not be read is never freed.
        UnreadNotFreed,
        /// A deleted record is purged although the transaction that has deleted it is open.
        PurgesOpenGhosts,
        /// An insertion over a deleted record gives up the room that an undo of the deletion needs.
        InsertsBesideGhost,
        /// A page that is read again has no log, so nothing depends on its last record.
        LogForgotten,
        /// A table is emptied while its root is written back.
        EmptiesWhileWritten,
        /// The end of a transaction does not become the stamp of the words that it has changed.
        StampsLeft,
        /// A range depends on no earlier change.
        RangeNamesNothing,
        /// The pages of a replaced large value are never freed.
        LargeNotFreed,
        /// A start does not free the large values that a crash has left without a reference.
        LargeNotFreedByStart,
        /// A checkpoint does not wait for a page that somebody is changing.
        SkipsLatched,
        /// The persisted gsn becomes the present one, and not the copied one.
        PresentGsnPersisted,
    }
}
