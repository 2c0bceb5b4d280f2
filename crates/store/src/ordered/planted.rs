//! Bugs that tests plant in ordered tables, to show that the tests see them.

stillpoint_sync::planted_bugs! {
    /// A bug to plant in ordered tables.
    pub enum Bug {
        /// A range reader does not lock the gaps between the keys.
        GapNotLocked,
        /// A range reader does not look again after it has taken its locks.
        RangeNotReadAgain,
        /// A reclaimed key stays in the ordered index, for instance after an abort.
        EntryLeft,
        /// A load or a replay does not enter its keys into the ordered index.
        ReplayedUnordered,
        /// An insertion does not count its record in the inner nodes.
        RecordNotCounted,
    }
}
