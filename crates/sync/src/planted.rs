//! Bugs that tests plant in the whole process, to show that the checkers see them. Without the
//! feature `planted-bugs`, `is_planted` is `false` at compile time and no code is left.

/// Puts what a planted bug does beside the honest code, on one line. `planted` must name the module
/// that declares the bug.
///
/// - `mutant!(honest, Bug => planted)` is the honest expression, unless a test has planted the bug.
/// - `mutant!(Bug => planted)` does something more if a test has planted the bug.
/// - `mutant!(in place; …)` asks `place.has_planted(…)`, where each of several has its own bug.
#[macro_export]
macro_rules! mutant {
    (in $place:expr; $honest:expr, $bug:ident => $planted:expr) => {
        if $place.has_planted(planted::Bug::$bug) { $planted } else { $honest }
    };
    (in $place:expr; $bug:ident => $planted:expr) => {
        if $place.has_planted(planted::Bug::$bug) {
            $planted
        }
    };
    ($honest:expr, $bug:ident => $planted:expr) => {
        if planted::is_planted(planted::Bug::$bug) { $planted } else { $honest }
    };
    ($bug:ident => $planted:expr) => {
        if planted::is_planted(planted::Bug::$bug) {
            $planted
        }
    };
}

/// Declares the bugs that a crate's tests plant, with `Bug::ALL`, `plant` and `is_planted`. What is
/// left without the feature `planted-bugs` is that of the crate that declares them.
#[macro_export]
macro_rules! planted_bugs {
    ($(#[$doc:meta])* pub enum Bug { $($(#[$bug_doc:meta])* $bug:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Bug {
            $($(#[$bug_doc])* $bug,)+
        }

        impl Bug {
            /// Every one.
            pub const ALL: &[Self] = &[$(Self::$bug),+];
        }

        /// The number of the planted one, from 1 on; 0 for none.
        #[cfg(feature = "planted-bugs")]
        static PLANTED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

        /// Plants a bug in this process in place of the one before; `None` takes it out.
        #[cfg(feature = "planted-bugs")]
        pub fn plant(bug: Option<Bug>) {
            let number = bug.map_or(0, |bug| bug as usize + 1);
            // Relaxed: planted before anything runs.
            PLANTED.store(number, std::sync::atomic::Ordering::Relaxed);
        }

        /// True if this bug was planted.
        #[cfg(feature = "planted-bugs")]
        #[inline]
        pub fn is_planted(bug: Bug) -> bool {
            // Relaxed: planted before anything runs.
            PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as usize + 1
        }

        /// Never.
        #[cfg(not(feature = "planted-bugs"))]
        #[inline(always)]
        pub const fn is_planted(_: Bug) -> bool {
            false
        }
    };
}

crate::planted_bugs! {
    /// A bug to plant in commit, acknowledgement, publication or recovery.
    pub enum Bug {
        /// A record names what is not flushed, instead of what is not closed: what it rests on is
        /// flushed, but hangs on something that is not (two hops).
        NamesOnlyUnflushed,
        /// Recovery records all that is valid as its cut and removes nothing beyond it: what it has
        /// dropped comes back (the second crash).
        CutNotRecorded,
        /// A commit is acknowledged before its log is flushed.
        AnswersBeforeFlush,
        /// A commit is acknowledged when its own log is flushed, whatever it rests on.
        AnswersWhenFlushed,
        /// What was read is answered without waiting for who wrote it.
        AnswersReadsAtOnce,
        /// A MANIFEST in doubt stops no transaction that is open already.
        CommitsInDoubt,
        /// The older checkpoint is removed before the newer one is published.
        RemovesBeforePublishing,
        /// A checkpoint is published before the logs are flushed past its point of consistency.
        PublishesBeforeLogs,
        /// The names of new log segments are not made durable.
        DirectoryNotFlushed,
        /// Replay looks neither at the positions nor at the epoch of the checkpoint.
        ReplaysFromTheBeginning,
        /// The logs' positions are those at the publication, not those at the point of consistency.
        PositionsTooLate,
        /// The ends of logs that a cache may hold are named by the cut as if they were durable.
        EndsNotCopied,
        /// Recovery keeps every valid record, whether or not it rests on a lost one.
        CutNotClosed,
        /// A deleted record is reclaimed before its deletion is closed.
        ReclaimsBeforeClosed,
        /// A flush of tables is durable before what was committed earlier.
        EmptiesBeforeLogs,
        /// What a crash has cut off of transactions on tables that are changed in place stays.
        LosersKept,
        /// An abort leaves what it has changed in place.
        AbortKeepsChanges,
        /// The operations of a transaction are undone oldest first.
        UndoesOldestFirst,
        /// A commit of several kinds names what it has met in the memory store alone.
        PartStampsForgotten,
        /// The record of a commit of several kinds leaves out the writes to the memory store.
        MemoryWritesLeftOut,
        /// A key that is inserted again may get a smaller gsn than its deletion had.
        FloorNotRaised,
    }
}
