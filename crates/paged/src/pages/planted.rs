//! Bugs that unit tests plant in the page stores of their own thread, to show that the tests see
//! them. Outside of unit tests nothing of this is left in the code.

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// A frame counts as written before its write has ended.
    PersistedBeforeWritten,
    /// A round of the map is written before the pages that it names are flushed.
    PagesNotFlushed,
    /// A slot is reused although a map on the disk names it.
    OldSlotReused,
    /// A start takes the slots that the map on the disk names for free once it has moved their pages.
    StartFreesSlots,
    /// The number of a freed page is used again without regard to its gsns.
    PageIdTooEarly,
    /// A freed page leaves the map with the first round.
    FreedTooEarly,
    /// A round of the map writes both places of a block before it counts.
    MapInPlace,
    /// A round of the map is not flushed before it may count.
    MapNotFlushed,
    /// A page's gsn is not compared with the map's entry.
    StaleNotSeen,
    /// A start does not count the blocks that the last round has written.
    RoundNotCounted,
    /// A start takes the newest copy of a block, whether it counts or not.
    NewestBlockTaken,
    /// A rollback finds no slot once evictions find none.
    UndoHeldBack,
}

#[cfg(test)]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in this thread, in place of the one before. `None` removes the bug.
#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether a test has planted the bug in this thread.
#[cfg(test)]
pub(super) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// False: only unit tests plant bugs.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn is_planted(_: Bug) -> bool {
    false
}
