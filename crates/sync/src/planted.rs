//! Bugs that tests plant in the whole process, to show that the checkers see them. Without the
//! feature `planted-bugs`, `is_planted` is `false` at compile time and no code is left.

/// Puts the code of a planted bug beside the correct code, on one line. `planted` must name the
/// module that declares the bug.
///
/// - `mutant!(honest, Bug => planted)` is the expression `honest`, unless a test has planted the
///   bug.
/// - `mutant!(Bug => planted)` runs additional code if a test has planted the bug.
/// - `mutant!(in place; …)` asks `place.has_planted(…)`, for bugs that are planted in one object.
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

/// Declares the bugs that a crate's tests plant, with `Bug::ALL`, `plant` and `is_planted`. The
/// feature `planted-bugs` of the declaring crate decides whether they exist.
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
            /// Every bug.
            pub const ALL: &[Self] = &[$(Self::$bug),+];
        }

        /// Number of the planted bug, from 1 on. 0 for none.
        #[cfg(feature = "planted-bugs")]
        static PLANTED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

        /// Plants a bug in this process, in place of the one before. `None` removes the bug.
        #[cfg(feature = "planted-bugs")]
        pub fn plant(bug: Option<Bug>) {
            let number = bug.map_or(0, |bug| bug as usize + 1);
            // Relaxed: the test plants the bug before anything runs.
            PLANTED.store(number, std::sync::atomic::Ordering::Relaxed);
        }

        /// Whether this bug is planted.
        #[cfg(feature = "planted-bugs")]
        #[inline]
        pub fn is_planted(bug: Bug) -> bool {
            // Relaxed: the test plants the bug before anything runs.
            PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as usize + 1
        }

        /// False: without the feature no bug is planted.
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
        /// A record names dependencies that are not flushed, instead of those that are not closed.
        /// A flushed dependency may itself depend on a record that is not flushed (two hops).
        NamesOnlyUnflushed,
        /// Recovery records all valid records as its cut and removes nothing beyond it. So dropped
        /// records come back after a second crash.
        CutNotRecorded,
        /// A commit is acknowledged before its log is flushed.
        AnswersBeforeFlush,
        /// A commit is acknowledged when its own log is flushed, whatever its dependencies.
        AnswersWhenFlushed,
        /// A read is answered without a wait for its writer's commit.
        AnswersReadsAtOnce,
        /// A MANIFEST in doubt does not stop open transactions.
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
        /// The cut names ends of logs that only a cache may hold, as if they were durable.
        EndsNotCopied,
        /// Recovery keeps every valid record, even if it depends on a lost one.
        CutNotClosed,
        /// A deleted record is reclaimed before its deletion is closed.
        ReclaimsBeforeClosed,
        /// A flush of tables is durable before earlier commits are.
        EmptiesBeforeLogs,
        /// Recovery does not undo commits that a checkpoint holds and a crash has taken away.
        UndoLeftOut,
        /// Recovery undoes such commits in ascending order of their gsns.
        UndoesUpwards,
        /// A checkpoint is published before the logs can undo what it holds.
        PublishesBeforeUndo,
        /// A start leaves it to the next one to undo commits.
        UndoNotKept,
        /// The undo of a change of a deadline leaves the deadline as it is.
        DeadlineNotUndone,
        /// The before-image of a key without a value is an empty value.
        AbsentTakenAsPresent,
        /// Recovery does not undo transactions on tables in place that a crash has cut off.
        LosersKept,
        /// An abort does not undo changes in place.
        AbortKeepsChanges,
        /// The operations of a transaction are undone oldest first.
        UndoesOldestFirst,
        /// The part of a transaction's operations that was brought to a file is undone oldest first.
        UndoFileInOrder,
        /// What a file has of a transaction's operations is not verified.
        UndoFileTrusted,
        /// Other records take the room that is set aside for undos.
        UndoRoomNotKept,
        /// A checkpoint leaves nothing in the logs for transactions that are open.
        OpenTransactionsNotHeld,
        /// A kind of table needs the logs only from where they stand when its files are written.
        KindPositionTooLate,
        /// A commit of several kinds names its dependencies in the memory store alone.
        PartStampsForgotten,
        /// The record of a commit of several kinds leaves out the writes to the memory store.
        MemoryWritesLeftOut,
        /// Replay does not mark what it applies: the first checkpoint of changes lacks it.
        ReplaysWithoutMarks,
        /// A merge without the full checkpoint leaves deletions out: deleted keys come back.
        MergeDropsDeletions,
        /// A merge takes a point of consistency away that is kept for a restore.
        MergesOverKeptPoint,
        /// Files are removed although somebody copies them.
        RemovesHeldFiles,
        /// Files of a checkpoint under way are removed once nobody holds files any more.
        RemovesWhatIsMade,
        /// A key that is inserted again may get a smaller gsn than its deletion had.
        FloorNotRaised,
        /// A commit leaves no stamp for what it has read, so gsns are no serial order.
        ReadStampLeftOut,
        /// Replay makes the calls of one log after those of another, and not in the order of gsns.
        CallsOutOfOrder,
        /// In a replay of calls, a record that overwrites a key does not wait for those that read it.
        ReadersNotAwaited,
        /// A call that is made again gets new inputs, and not the logged ones.
        InputsNotRepeated,
        /// A call is made again in the newest version, whatever version the log names.
        VersionMistaken,
        /// Nobody compares what a call writes with what it has written.
        DigestNotCompared,
        /// A replay of calls reads tables as they are after they were emptied.
        EmptiedTooEarly,
        /// Transactions count as durable as soon as they have ended.
        SerialAheadOfClosed,
        /// Transactions count as durable when those of their own log are, whatever they have read.
        SerialWithoutReads,
        /// Without a journal, transactions of a checkpoint's own epoch count as durable with it.
        SerialOfPresentEpoch,
        /// A commit of a named session writes the serial of the next commit.
        SerialBeforeCommit,
        /// A snapshot clears marks of changes, as if a checkpoint were published.
        SnapshotClearsMarks,
        /// A snapshot goes on while its tables are emptied.
        SnapshotSurvivesFlush,
        /// A commit leaves no stamp for those who count the records of an ordered table.
        NumberWithoutStamp,
        /// A record that is loaded while the store is served takes the place of a newer one.
        LoadOverwrites,
        /// A patch that is replayed before its base is loaded is applied to an empty value.
        PatchesWithoutBase,
        /// A load that goes on while the store is served does not know which keys were deleted.
        LoadForgetsDeletions,
        /// Records that are read with a sought one are entered although a newer checkpoint has them.
        BesideIsOlder,
        /// A run that has missed a record on the disk, and goes on, commits.
        CommitsAfterMiss,
        /// Memory stays kept for records on the disk whose table was emptied.
        FlushKeepsMemory,
        /// A load that goes on while the store is served leaves out what only the log has.
        LoadForgetsNewKeys,
        /// A checkpoint that is taken during a load lacks what the logs of earlier runs have.
        CheckpointLacksReplayed,
        /// A commit that only deletes, as an eviction does, leaves no deletion in the log.
        EvictionNotLogged,
        /// A replay leaves out the undos that the log has.
        UndosNotRepeated,
        /// A start undoes from the end again what was undone before a second crash.
        UndoneAgain,
        /// A checkpoint takes the generations of tables before the positions of the logs.
        GenerationsBeforePositions,
        /// The store goes on after a failed write or flush of pages.
        PagesFailUnheard,
        /// Transactions that were rolled back make no checkpoint due.
        RollbacksNotCounted,
        /// Transactions that keep too much of the log go on.
        LogPinnedForEver,
        /// The logs take records beyond their limit.
        LogLimitIgnored,
        /// An open transaction that nobody uses keeps the log until its owner comes back.
        IdleKeepsLog,
        /// A capture leaves deadlines out.
        DeadlineNotCaptured,
        /// Replay leaves another deadline of a key out.
        DeadlineNotReplayed,
        /// A large value whose blocks move loses its deadline.
        DeadlineNotMoved,
    }
}
