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
        /// The gap at the end of a leaf is not looked at.
        GapAtLeafEndUnchecked,
        /// A range is not read again after its locks were taken.
        RangeNotReadAgain,
        /// A checkpoint does not wait for a page that somebody is changing.
        SkipsLatched,
        /// The persisted gsn becomes the present one, and not the copied one.
        PresentGsnPersisted,
    }
}
