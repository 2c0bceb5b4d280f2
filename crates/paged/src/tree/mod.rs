//! The B+-tree of a paged table, over the pool.
//!
//! Optimistic lock coupling after Leis, Haubenschild, Neumann (2019), over the slotted nodes of
//! `stillpoint-node`. A reader reads a child's version before it checks the parent's. A writer latches
//! one leaf. A change of structure latches parent, child, and new pages that nobody knows. Descents of
//! several keys go on step by step in turn, each with a prefetch of what its next step reads.
//!
//! | file | what |
//! |---|---|
//! | `descent` | descents, heating of cool children, attaching of pages that have arrived |
//! | `read` | points and ranges |
//! | `read_ahead` | leaves that a long scan asks for ahead of their use |
//! | `change` | changes of one record, with their records in a log |
//! | `structure` | splits and higher roots, each one record |
//! | `load` | leaves that a load of sorted records appends |
//! | `merge` | merges of sparse nodes |
//! | `empty` | all pages of a table |
//! | `check` | the check of a whole tree |

mod change;
mod check;
mod descent;
mod empty;
mod load;
mod merge;
mod read;
mod read_ahead;
mod structure;

use stillpoint_format::Stamp;
use stillpoint_txn::{LogRefused, TxError};

use crate::backing::BackingError;
use crate::loads::Missing;
use crate::locks::Blocked;
use crate::pool::PoolError;

pub(crate) use change::{Leaf, Side, Value, patch_value, set_value};
pub use check::{TreeError, TreeSummary};
pub(crate) use descent::{Descent, DescentEnd, KeyPlace};
pub(crate) use empty::Unfreed;
pub(crate) use read::{LeafRange, Wanted};
pub(crate) use read_ahead::ReadAhead;
pub(crate) use structure::{append, copy_of, copy_words, raise};

/// Appends the records of changes of pages. Called with latches held, so it must not wait.
pub(crate) trait PageLog {
    /// Appends a record that depends on these stamps, and gives its stamp.
    ///
    /// # Errors
    /// Nothing was appended.
    fn append(&mut self, touched: &[Stamp], body: &[u8]) -> Result<Stamp, LogRefused>;
}

/// Why a step in a tree did not come to its end. Nothing has changed, and no latch is held.
#[derive(Debug)]
pub(crate) enum Pause {
    /// A page is not in a frame: load it, and take the step again.
    Missing(Missing),
    /// The log has no room: wait for room, and take the step again.
    LogFull,
    /// Another transaction reads the range of a leaf, or changes it: wait, and take the step again.
    Blocked(Blocked),
    /// The step is refused for good.
    Refused(TxError),
}

impl From<Missing> for Pause {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

impl From<Blocked> for Pause {
    fn from(blocked: Blocked) -> Self {
        Self::Blocked(blocked)
    }
}

impl From<PoolError> for Pause {
    fn from(error: PoolError) -> Self {
        Self::Refused(TxError::abandon(error))
    }
}

impl From<BackingError> for Pause {
    fn from(error: BackingError) -> Self {
        PoolError::Backing(error).into()
    }
}

impl From<LogRefused> for Pause {
    fn from(refused: LogRefused) -> Self {
        match refused {
            LogRefused::NoRoom => Self::LogFull,
            refused => Self::Refused(refused.into()),
        }
    }
}
