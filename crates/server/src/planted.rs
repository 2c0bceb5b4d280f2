//! Bugs that unit tests plant in the server of their own thread, to show that the checks of
//! collections see them. Outside of unit tests nothing of this is left in the code.

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A collection that becomes a tree gets the incarnation of the one before it.
    IncarnationReused,
    /// A change of nodes alone does not write the record of the key.
    KeyNotStamped,
    /// The record of the key is written as if no node had changed: it keeps its counts.
    HeaderBeforeNodes,
    /// A deletion of a large collection leaves no grave.
    GraveForgotten,
    /// Nodes of a deleted collection are removed before the deletion is safe.
    ReclaimBeforeClosed,
    /// The reclaimer does not know which collections are being built.
    ConstructionSwept,
    /// A collection that is being built has no grave.
    DraftUngraved,
    /// A draft goes on although a database was emptied.
    FlushUnseen,
    /// A draft is used although a key of its command has changed.
    DraftOutdated,
    /// Members of one tag and one score are both short in the index of their sorted set.
    TwinsStayShort,
    /// A split that divides a score leaves its elements short in the index.
    DividedStayShort,
    /// A call in the log does not have the time of its commands.
    TimeNotLogged,
    /// A log gets calls although a start would make other collections large.
    SmallLimitsForgotten,
    /// A call in the log has the number of a database for that of its table.
    SwapForgotten,
    /// A call in the log lacks the last request of a group.
    GroupCutOff,
    /// A renamed or copied key does not expire.
    ExpiryNotRenamed,
}

#[cfg(test)]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in this thread, in place of the one before. `None` removes the bug.
#[cfg(test)]
pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether a test has planted the bug in this thread.
#[cfg(test)]
pub(crate) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// False: only unit tests plant bugs.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}

/// The expression `honest`, unless a test has planted the bug.
macro_rules! mutant {
    ($honest:expr, $bug:ident => $planted:expr) => {
        if crate::planted::is_planted(crate::planted::Bug::$bug) { $planted } else { $honest }
    };
}
pub(crate) use mutant;
