//! The memory that a checkpoint scheme takes, beside one copy of each value: how much it is, and what
//! commits touch of it.

use crate::rules::WriteRule;
use crate::store::Store;

/// Memory of the checkpoint scheme, in bytes. All of it counts against the memory limit. Before-images on
/// their way to the disk are in none of the parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemeMemory {
    /// Further copies of values in the cells, or references to stable versions, about. Free cells count.
    /// Blocks that only an older copy of a large value has do not.
    pub copies_bytes: usize,
    /// The pool of stable versions, reserved from the start.
    pub stable_pool_bytes: usize,
    /// The bits that say which cells have changed.
    pub marks_bytes: usize,
    /// Pages that only the child of a fork has, at present.
    pub child_bytes: usize,
}

impl SchemeMemory {
    /// All of it.
    pub fn total_bytes(&self) -> usize {
        self.copies_bytes + self.stable_pool_bytes + self.marks_bytes + self.child_bytes
    }
}

impl Store {
    /// The memory that the checkpoint scheme takes at present.
    pub fn scheme_memory(&self) -> SchemeMemory {
        let memory = self.memory();
        SchemeMemory {
            copies_bytes: memory.further_copies_bytes(),
            stable_pool_bytes: memory.pool.as_ref().map_or(0, |pool| pool.bytes()),
            marks_bytes: memory.arena.mark_bytes(),
            child_bytes: self.child_bytes().0,
        }
    }

    /// Prefetches what a commit reads and writes of a cell.
    #[inline]
    pub(crate) fn prefetch_to_commit(&self, number: u64) {
        self.memory().arena.prefetch(number);
        if self.memory().copies > 1 {
            self.prefetch_copies_to_commit(number);
        }
    }

    #[inline(never)]
    fn prefetch_copies_to_commit(&self, number: u64) {
        let copies = match self.rules().write {
            // The shadow or the reference is written during captures alone.
            WriteRule::KeepShadow | WriteRule::StoreStable
                if !self.driver().now().is_capturing() =>
            {
                return;
            }
            // Copy 3 is that of scans.
            WriteRule::WriteBoth => 3,
            _ => self.memory().copies,
        };
        self.memory().prefetch_copies(number, copies);
    }
}
