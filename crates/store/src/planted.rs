//! Bugs that tests plant in a store, to show that the checkers see them. Without the feature
//! `planted-bugs`, and outside of the models, nothing of this is left in the code.

#[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
use stillpoint_sync::Mutex;
#[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
use stillpoint_sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A commit belongs to the phase in which its transaction began, instead of the one that it
    /// reads with all its locks held.
    PhaseReadBeforeLocks = 1,
    /// A record that is inserted after the point of consistency is not marked as captured.
    InsertWithoutMark = 2,
    /// A record's before-image is not saved if the write is a deletion.
    DeleteWithoutBeforeImage = 3,
    /// The before-image is saved after the new one was installed.
    BeforeImageAfterInstall = 4,
    /// The capture does not wait for the commits from before the point of consistency.
    NoGracePeriod = 5,
    /// The scan does not look whether a record is marked.
    MarksNotSeen = 6,
    /// A capture that is given up leaves cells unmarked.
    MarksForgotten = 7,
    /// The point of consistency does not change which copy of a record commits write.
    NextCopyKept = 8,
    /// A commit writes in place, whatever the write rule of the store says.
    WriteRuleForgotten = 9,
    /// A cell is reused although a capture still needs one of its copies.
    CopyReused = 10,
    /// The dirty marks of a checkpoint that was not published are cleared.
    DirtyForgotten = 11,
    /// A checkpoint of changes, or a fuzzy one, leaves deletions out.
    TombstoneDropped = 12,
    /// The cell of a deleted key is reused before a published checkpoint has the deletion.
    DirtyCellReused = 13,
    /// The copier does not bring over the records that no commit has written in an epoch.
    NotBroughtOver = 14,
    /// A dirty mark has no bit beside the cells, where passes over the changes look.
    MarkNotNoted = 15,
    /// A cell does not show that a published checkpoint has its key.
    ChainForgotten = 16,
    /// A cell that replaces another one of a deleted key does not take over its marks.
    MovedWithoutStatus = 17,
    /// The capture of a forked child's records reads those of the parent.
    ParentRead = 18,
    /// The scan does not look for before-images that commits have kept in the cell or in the pool.
    ShadowLost = 19,
    /// A commit gives a lock back by a plain store, although a scan may claim the record.
    StatusLost = 20,
    /// A copier does not say that it is copying, so that a commit does not wait for it.
    CopyNotAwaited = 21,
    /// A relocated cell does not take over the status, so that a capture takes its record twice.
    RelocatedWithoutStatus = 22,
    /// The dirty mark of a relocated cell has no bit beside the cells.
    RelocatedWithoutMark = 23,
    /// The index goes on naming the dead cell of a relocated record.
    RelocatedNotReplaced = 24,
    /// A cell is relocated during a capture that has not claimed its record.
    RelocatedUnclaimed = 25,
    /// A commit beyond the pool of stable versions overwrites without a claim.
    ExceededUnclaimed = 26,
    /// Commits go on before the end of a capture for which they are stopped.
    StopEndsEarly = 27,
    /// A commit that changes nothing but a deadline sets no dirty mark.
    DeadlineUnmarked = 28,
    /// A commit that changes nothing but a deadline leaves it out, where cells have copies.
    DeadlineNotCopied = 29,
    /// A run without locks that has read a key under another one does not look whether that one has changed.
    ParentNotReadAgain = 30,
    /// A commit makes no record busy before it changes another one, so that a key ends before those under it.
    ParentEndedFirst = 31,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 31] = [
        Self::PhaseReadBeforeLocks,
        Self::InsertWithoutMark,
        Self::DeleteWithoutBeforeImage,
        Self::BeforeImageAfterInstall,
        Self::NoGracePeriod,
        Self::MarksNotSeen,
        Self::MarksForgotten,
        Self::NextCopyKept,
        Self::WriteRuleForgotten,
        Self::CopyReused,
        Self::DirtyForgotten,
        Self::TombstoneDropped,
        Self::DirtyCellReused,
        Self::NotBroughtOver,
        Self::MarkNotNoted,
        Self::ChainForgotten,
        Self::MovedWithoutStatus,
        Self::ParentRead,
        Self::ShadowLost,
        Self::StatusLost,
        Self::CopyNotAwaited,
        Self::RelocatedWithoutStatus,
        Self::RelocatedWithoutMark,
        Self::RelocatedNotReplaced,
        Self::RelocatedUnclaimed,
        Self::ExceededUnclaimed,
        Self::StopEndsEarly,
        Self::DeadlineUnmarked,
        Self::DeadlineNotCopied,
        Self::ParentNotReadAgain,
        Self::ParentEndedFirst,
    ];
}

/// The bug of one store, if any.
#[derive(Debug, Default)]
pub(crate) struct Planted {
    #[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
    bug: AtomicUsize,
    /// For `PhaseReadBeforeLocks`: the phase word with which the transaction of each worker began.
    #[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
    begun: Mutex<Vec<(usize, u64)>>,
}

impl Planted {
    #[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
    pub(crate) fn plant(&self, bug: Bug) {
        self.bug.store(bug as usize, Relaxed);
    }

    /// True if this bug was planted.
    #[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
    #[inline]
    pub(crate) fn has(&self, bug: Bug) -> bool {
        // Relaxed: planted before anything runs.
        self.bug.load(Relaxed) == bug as usize
    }

    /// False, since no bug can be planted in this build.
    #[cfg(not(any(feature = "planted-bugs", all(test, shuttle))))]
    #[inline(always)]
    pub(crate) fn has(&self, _: Bug) -> bool {
        false
    }

    /// Notes the phase word with which a transaction of this worker begins.
    #[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
    pub(crate) fn note_phase(&self, worker: usize, now: u64) {
        let mut begun = self.begun.lock();
        begun.retain(|(of, _)| *of != worker);
        begun.push((worker, now));
    }

    /// The phase word with which the present transaction of this worker began.
    #[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
    pub(crate) fn noted_phase(&self, worker: usize) -> u64 {
        let begun = self.begun.lock();
        begun.iter().find(|(of, _)| *of == worker).expect("it has begun").1
    }

    /// Does nothing, since no bug can be planted in this build.
    #[cfg(not(any(feature = "planted-bugs", all(test, shuttle))))]
    #[inline(always)]
    pub(crate) fn note_phase(&self, _: usize, _: u64) {}

    /// Never called, since no bug can be planted in this build.
    #[cfg(not(any(feature = "planted-bugs", all(test, shuttle))))]
    pub(crate) fn noted_phase(&self, _: usize) -> u64 {
        unreachable!("without the feature no bug is planted")
    }
}
