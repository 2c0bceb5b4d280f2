//! Bugs that tests plant in a store, to show that the checkers see them. Without the feature
//! `planted-bugs`, and outside of the models, nothing of this is left in the code.

#[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
use stillpoint_sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::memory::stamp::ABSENT;

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A commit belongs to the phase in which its transaction began, instead of the phase that it
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
    /// The scan does not check whether a record is marked.
    MarksNotSeen = 6,
    /// A capture that is given up does not finish its marks.
    MarksForgotten = 7,
    /// The point of consistency does not change which copy of a record commits write.
    NextCopyKept = 8,
    /// A commit writes in place, whatever the write rule of the store says.
    WriteRuleForgotten = 9,
    /// A cell is reused although a capture still needs one of its copies.
    CopyReused = 10,
    /// The dirty marks of a checkpoint that was not published are cleared.
    DirtyForgotten = 11,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 11] = [
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
    ];
}

/// The bug of one store, if any.
#[derive(Debug, Default)]
pub(crate) struct Planted {
    #[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
    bug: AtomicUsize,
}

impl Planted {
    #[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
    pub(crate) fn plant(&self, bug: Bug) {
        self.bug.store(bug as usize, Relaxed);
    }

    /// Whether this bug is planted.
    #[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
    #[inline]
    pub(crate) fn has(&self, bug: Bug) -> bool {
        // Relaxed: the test plants the bug before anything runs.
        self.bug.load(Relaxed) == bug as usize
    }

    /// False: without the feature no bug is planted.
    #[cfg(not(any(feature = "planted-bugs", all(test, shuttle))))]
    #[inline(always)]
    pub(crate) fn has(&self, _: Bug) -> bool {
        false
    }

    /// True if the planted bug forgets the before-image of a write to a record with this stamp
    /// word: it had no value, or is deleted.
    #[inline]
    pub(crate) fn forgets_before_image(
        &self,
        stamp_word: u64,
        deletes: impl FnOnce() -> bool,
    ) -> bool {
        let was_absent = stamp_word & ABSENT != 0;
        self.has(Bug::InsertWithoutMark) && was_absent
            || self.has(Bug::DeleteWithoutBeforeImage) && deletes()
    }
}
