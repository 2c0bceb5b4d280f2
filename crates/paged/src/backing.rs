//! The pages outside of the pool, as the pool sees them. The page store is one backing. Tests have
//! another one, in memory.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_mem::Target;
use stillpoint_txn::TableId;

/// Why a page cannot be read, written or had.
pub type BackingError = Arc<dyn Error + Send + Sync>;

/// A page id for a new page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPage {
    /// The id.
    pub page: u64,
    /// The first record of the page must have a greater gsn.
    pub above: u64,
}

/// A copy of a page that was made for the disk.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// Id of the page.
    pub page: u64,
    /// The change that was the page's last one when it was copied.
    pub stamp: Stamp,
}

/// The frames that a write-back copies. The pool implements this trait.
pub trait DirtyFrames: Sync {
    /// Begins the write-back of a frame. False if the frame has nothing to write, if another thread is
    /// writing it, or if somebody has latched it.
    fn claim(&self, frame: u32) -> bool;

    /// Copies the page of a claimed frame, with page ids as children. `None` if the page is being
    /// changed all the time: it stays dirty.
    fn copy(&self, frame: u32, out: &mut [u8]) -> Option<Copied>;

    /// Notes that the copy with this gsn is durable, as far as the backing makes it so.
    fn placed(&self, frame: u32, gsn: u64);

    /// Ends the write-back of a frame, after a failure, too.
    fn release(&self, frame: u32);
}

/// What pages are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Their frames are needed by a write. Room for a checkpoint must be left, and room with which others go
    /// on.
    Eviction,
    /// Their frames are needed by a read, a rollback or a start. Room for a checkpoint must be left.
    GoOn,
    /// A checkpoint.
    Checkpoint,
}

/// A read on its way into a frame.
pub trait PendingRead: Send + Sync + fmt::Debug {
    /// Whether the read has ended. Also ends reads of others that have arrived. Never blocks.
    fn is_done(&self) -> bool;

    /// Waits until the read has ended. Call this with no latch held.
    fn wait(&self);

    /// The result of a read that has ended. Called once.
    ///
    /// # Errors
    /// The device failed, or the page is not the one that was asked for.
    fn check(&self) -> Result<(), BackingError>;
}

/// Who hears why the backing takes no further write.
pub type OnFailure = Box<dyn Fn(&str) + Send + Sync>;

/// The pages outside of the pool.
pub trait Backing: Send + Sync + fmt::Debug {
    /// Begins to read a page. Call [`submit`](Self::submit) afterwards. Errors name `table`, if the
    /// reader knows it and the page does not say it itself.
    ///
    /// # Errors
    /// There is no such page.
    fn begin_read(
        &self,
        page: u64,
        table: Option<TableId>,
        target: Target,
    ) -> Result<Box<dyn PendingRead>, BackingError>;

    /// Hands all begun reads to the device.
    fn submit(&self);

    /// Whether the backing has the page.
    fn is_placed(&self, page: u64) -> bool;

    /// A page id that no page has.
    ///
    /// # Errors
    /// There is no room for another page.
    fn allocate(&self) -> Result<NewPage, BackingError>;

    /// Whether a page that is like its copy may change, as far as room for further copies is known. Never
    /// waits.
    fn has_room_for_change(&self) -> bool {
        true
    }

    /// Makes room for a page that is about to differ from its copy. May wait.
    ///
    /// # Errors
    /// There is no room.
    fn admit_change(&self) -> Result<(), BackingError> {
        Ok(())
    }

    /// Gives the id of a page back whose last change has this stamp.
    fn free(&self, page: u64, stamp: Stamp);

    /// Gives the ids of pages back whose last change has at most this gsn, all at one moment. A replay makes
    /// these pages anew before it needs them, so they leave with the next state of all pages.
    fn free_at_once(&self, pages: &[u64], stamp: Stamp);

    /// Notes that a page has this id. A replay has met the record that made the page.
    fn note_used(&self, page: u64);

    /// Writes the frames of these numbers back. Skips frames that cannot be claimed.
    ///
    /// # Errors
    /// The pages that could not be written stay dirty.
    fn write_back(
        &self,
        frames: &dyn DirtyFrames,
        candidates: &[u32],
        purpose: Purpose,
    ) -> Result<(), BackingError>;

    /// Makes what was written so far durable as a state of all pages, and gives its number. The state
    /// does not count yet.
    ///
    /// # Errors
    /// The earlier state stays in force.
    fn write_map(&self) -> Result<u64, BackingError>;

    /// Notes that a state counts from here on, or never will.
    fn map_ended(&self, number: u64, counts: bool);

    /// Calls `tell` once a write or a flush has failed, which is final. At once if one has failed already.
    fn on_failure(&self, tell: OnFailure) {
        drop(tell);
    }
}
