//! The ordered index of a table in memory: a B+-tree of keys that counts records.
//!
//! The tree is latched by *optimistic lock coupling* (Leis, Haubenschild, Neumann 2019), over the
//! slotted nodes of `stillpoint-node`. Counts for ranks are those of Knuth (TAOCP 3, §6.2.3).
//!
//! ```text
//! root (node 0, counted) ─▶ inner nodes: separator, child, records below it ─▶ leaves: keys
//! ```
//!
//! **The index holds keys alone.** The hash index finds the cell of a key. So the ordered index hears
//! nothing when another cell replaces a key's cell.
//!
//! **Invariants**
//! 1. A key with a value is in the index, and its entry is a *record*. So the counts of inner nodes are
//!    those of keys with values.
//! 2. A key without a value may be in the index, as a *ghost*. The key has a cell then.
//! 3. Only the holder of the exclusive lock of a key's cell adds, changes or removes its entry.
//! 4. A key is added only while nobody else shares the gap that it falls into, the gap below the next
//!    key. A key is removed only while nobody shares the gap below that key. See [`locks`].
//!
//! **Latches.** Readers take none. They read a child's version before they check the parent's. Changes
//! of a leaf latch that leaf exclusively. Splits and merges latch the parent first, then the child, then
//! its right neighbour. A change of a key from ghost to record shares the latches of the inner nodes on
//! the way, since it adds to their counts. With a latch held nobody waits for a lock.
//!
//! **Memory.** Nodes are never unmapped, and their versions only grow. So a freed node may be used
//! again at once: whoever has read its old version finds another one.

mod descent;
pub(crate) mod locks;
mod merge;
mod nodes;
pub mod planted;
mod read;
mod split;
mod stamps;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod tree;

use std::sync::Arc;

use stillpoint_mem::{AddressSpace, RegionError};

use nodes::Nodes;
pub(crate) use nodes::ORDERED_KEY_BYTES_MAX;
pub(crate) use read::Batch;
use stamps::NumberStamps;

/// The ordered index of one generation of a table.
#[derive(Debug)]
pub(crate) struct OrderedIndex {
    nodes: Nodes,
    /// The commits that have added or removed records.
    pub(crate) number_stamps: NumberStamps,
}

/// The lock of the gap below a key, held while the key set of the index changes there.
pub(crate) trait GapClaim {
    /// Claims the gap below `next`, or the one above all keys for `None`. True if nobody else shares
    /// that gap. Called with a leaf latched, so this must not wait.
    fn claim(&mut self, next: Option<&[u8]>) -> bool;
    /// Ends the claim. The key set has changed, or the claim was not used.
    fn end(&mut self);
}

/// No claims, for tests of the index alone.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Unclaimed;

#[cfg(test)]
impl GapClaim for Unclaimed {
    fn claim(&mut self, _: Option<&[u8]>) -> bool {
        true
    }
    fn end(&mut self) {}
}

/// Why a key was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddError {
    /// The gap that the key falls into is locked by another transaction.
    GapLocked,
    /// The system grants no more address space.
    Full,
}

impl OrderedIndex {
    /// An empty index.
    ///
    /// # Errors
    /// The system refuses the address space.
    pub(crate) fn new(space: &Arc<AddressSpace>) -> Result<Self, RegionError> {
        Ok(Self { nodes: Nodes::new(space)?, number_stamps: NumberStamps::new() })
    }

    /// Bytes of the nodes and of the stamps.
    pub(crate) fn held_bytes(&self) -> usize {
        self.nodes.held_bytes() + self.number_stamps.held_bytes()
    }
}
