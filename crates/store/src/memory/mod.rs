//! Cells, large values and index buckets in slabs of memory. Knows no transaction, no phase and no
//! checkpoint.

mod access;
pub(crate) mod arena;
pub(crate) mod blob;
pub(crate) mod cell;
pub(crate) mod index;
pub(crate) mod marks;
pub(crate) mod pool;
pub(crate) mod stamp;
pub(crate) mod value;
pub(crate) use stillpoint_mem::words;

use std::sync::Arc;

use stillpoint_mem::{AddressSpace, RegionError};
use stillpoint_sync::{Mutex, ReadSections};

use arena::Arena;
use pool::Pool;

/// The memory of cells and large values.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) arena: Arena,
    /// Places for a value in each cell.
    pub(crate) copies: usize,
    /// The pool of stable versions. Then each cell has two places. The second one only refers to a value.
    pub(crate) pool: Option<Pool>,
    /// Owners of slabs whose large values a checkpoint pins, each with the number of pinned values.
    /// An owner without pinned values has no entry.
    pinned: Mutex<Vec<(u32, u64)>>,
}

impl Memory {
    pub(crate) fn new(
        limit_bytes: usize,
        copies: usize,
        space: &Arc<AddressSpace>,
        read_sections: ReadSections,
    ) -> Result<Self, RegionError> {
        let arena = Arena::new(limit_bytes, space, read_sections)?;
        Ok(Self { arena, copies, pool: None, pinned: Mutex::default() })
    }

    /// Keeps a bit for each marked cell from now on. Call this before the first cell is made.
    pub(crate) fn keep_marks(&mut self, space: &Arc<AddressSpace>) {
        self.arena.keep_marks(space.clone());
    }

    /// Gives each cell a reference to a stable version in a pool of so many bytes. Call this before the
    /// first cell is made.
    ///
    /// # Errors
    /// There is no address space for the pool.
    pub(crate) fn keep_stable_versions(
        &mut self,
        bytes: usize,
        space: &Arc<AddressSpace>,
    ) -> Result<(), RegionError> {
        self.pool = Some(Pool::new(bytes, space)?);
        self.copies = 2;
        self.arena.set_other_bytes(bytes);
        Ok(())
    }

    /// Prefetches the first two cache lines of a cell, and of a cell of several copies the first kilobyte.
    #[inline]
    pub(crate) fn prefetch(&self, number: u64) {
        self.arena.prefetch(number);
        if self.copies > 1 {
            self.prefetch_copies(number, self.copies);
        }
    }

    /// Prefetches the lines of a cell behind the second one, as far as they have its first `copies` copies,
    /// and up to the first kilobyte.
    #[inline(never)]
    pub(crate) fn prefetch_copies(&self, number: u64, copies: usize) {
        const LINE_WORDS: usize = 8;
        let words = self.arena.cell(number);
        let lines = words[..words.len() * copies / self.copies].chunks(LINE_WORDS);
        lines.take(1024 / 64).skip(2).for_each(|line| stillpoint_mem::prefetch(&line[0]));
    }

    /// Counts one large value of `owner` as pinned by a checkpoint. The caller is inside a read
    /// section. A thread that waits for that section to end sees the count in
    /// [`is_pinned`](Self::is_pinned).
    pub(crate) fn pin(&self, owner: u32) {
        let mut pinned = self.pinned.lock();
        match pinned.iter_mut().find(|(of, _)| *of == owner) {
            Some((_, count)) => *count += 1,
            None => pinned.push((owner, 1)),
        }
    }

    /// Ends one pin of `owner`. The caller has freed the large value before.
    pub(crate) fn unpin(&self, owner: u32) {
        let mut pinned = self.pinned.lock();
        let at = pinned.iter().position(|(of, _)| *of == owner).expect("the owner was pinned");
        pinned[at].1 -= 1;
        if pinned[at].1 == 0 {
            pinned.swap_remove(at);
        }
    }

    /// Whether a checkpoint pins large values of this owner, so that the owner's slabs must stay.
    pub(crate) fn is_pinned(&self, owner: u32) -> bool {
        self.pinned.lock().iter().any(|(of, _)| *of == owner)
    }
}
