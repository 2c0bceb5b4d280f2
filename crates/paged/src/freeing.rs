//! Who frees pages: transactions that replace large values, those that abort, and starts.
//!
//! The pages of a replaced or deleted value are freed once its transaction has committed. Those of a
//! transaction that aborts are freed by the undo of each page's record. A start frees what the records that it
//! has repeated leave without a reference. A checkpoint frees before it takes the state of all pages. So a freed
//! page is missing in that state, or a start from it meets the records again.

use stillpoint_format::Stamp;
use stillpoint_format::large::{LargeHeader, LargeReference};
use stillpoint_format::pages::PageId;
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::mutant;
use stillpoint_txn::{TableId, TxError};

use crate::kind::Paged;
use crate::large::{LargePages, fill_large};
use crate::planted;
use crate::pool::table_word;
use crate::redo::Target;

impl Paged {
    /// Takes over the pages of values that a committed transaction has replaced. Never waits.
    pub(crate) fn note_replaced(&self, replaced: &mut Vec<LargePages>) {
        if !replaced.is_empty() {
            let mut to_free = self.freeing.replaced.lock();
            mutant!(to_free.append(replaced), LargeNotFreed => replaced.clear());
        }
    }

    /// Frees the values that committed transactions have replaced. Waits for write-backs.
    pub(crate) fn free_replaced(&self) {
        let _one = self.freeing.freeing.lock();
        let replaced = std::mem::take(&mut *self.freeing.replaced.lock());
        for LargePages { reference, pages } in replaced {
            self.pool.free_large(&pages, reference.gsn);
        }
    }

    /// Frees a page of a transaction that has aborted, whose undo has this stamp.
    pub(crate) fn free_undone(&self, page: u64, undo: Stamp) {
        self.pool.free_large(&[page], undo.gsn());
    }

    /// Notes a node that a replay has made. A merge that is not repeated may have freed it.
    pub(crate) fn note_made(&self, table: TableId, page: u64) {
        self.freeing.made.lock().push((table, page));
    }

    /// Notes a value that a repeated record names.
    pub(crate) fn note_met(&self, table: TableId, key: &[u8], reference: LargeReference) {
        self.freeing.met.lock().insert(reference, (table, key.to_vec()));
    }

    /// Frees the values that the repeated records name, and to which nothing refers any more. What cannot be
    /// read keeps its place.
    pub(crate) fn free_unreferenced(&self) {
        let mut met = std::mem::take(&mut *self.freeing.met.lock());
        mutant!(LargeNotFreedByStart => return);
        met.retain(|reference, (table, key)| {
            let now = self.reference_of(*table, key);
            now.is_ok_and(|now| now != Some(*reference))
        });
        // The number of a root may belong to a node by now, which must not be read into a second frame.
        let attached = self.pool.attached();
        for (reference, (table, _)) in met {
            if !attached.contains(&reference.root) {
                self.pool.free_value(table, reference);
            }
        }
    }

    /// Frees the nodes that the replay has made, and to which no tree leads.
    pub(crate) fn free_unreached(&self) {
        let made = std::mem::take(&mut *self.freeing.made.lock());
        for (table, page) in made {
            let is_reached = self.is_reached(table, page);
            if let Ok(false) = is_reached
                && let Ok(frame) = self.pool.page(page)
            {
                self.free_undone(page, self.pool.header(frame).stamp());
            }
        }
    }

    /// Whether a node belongs to the tree of its table, as far as it exists. Waits.
    fn is_reached(&self, table: TableId, page: u64) -> Result<bool, TxError> {
        if !self.pool.loads.lock().contains_key(&page) {
            // It is attached, or was evicted, and then keeps its place.
            return Ok(true);
        }
        let frame = self.pool.page(page).map_err(TxError::abandon)?;
        let node = self.pool.node(frame);
        let (level, mut fence) = (node.level(), Vec::new());
        node.read_lower_fence(&mut fence);
        loop {
            match self.pool.descend(table, &fence, level) {
                Ok(found) => return Ok(self.pool.header(found.seen.frame).page() == page),
                Err(missing) => self.bring(missing)?,
            }
        }
    }

    /// What the leaf of a key refers to. Waits.
    fn reference_of(&self, table: TableId, key: &[u8]) -> Result<Option<LargeReference>, TxError> {
        loop {
            let place = match self.pool.place(table, key) {
                Ok(place) => place,
                Err(missing) => {
                    self.bring(missing)?;
                    continue;
                }
            };
            let mut bytes = Vec::new();
            let found = self.pool.copy_value(place, &mut bytes);
            if self.pool.is_still(place.leaf) {
                let is_large = found.is_some_and(|found| found.is_large);
                return Ok(is_large.then(|| LargeReference::unpack(&bytes)).flatten());
            }
        }
    }

    /// Frees a page for which the log has a record of its freeing.
    pub(crate) fn redo_freed(&self, target: &Target<'_>) -> Result<(), TxError> {
        let Target { table, page, stamp, lane } = *target;
        // No swip leads to a page while records are repeated, but to roots.
        if page < PageId::FIRST.0 || !lane.has(page) || !self.pool.exists(page) {
            return Ok(());
        }
        let find = || self.pool.page(page).map(Some);
        let latched = self.pool.latch_found(page, lane, find).map_err(TxError::abandon)?;
        let frees = latched.is_some_and(|latched| {
            // Relaxed: the latch orders the loads.
            let owner = latched.node().owner_words()[2].load(Relaxed) as u16;
            let frees = latched.header().stamp().gsn() < stamp.gsn() && owner == table.id.0;
            latched.release_unchanged();
            frees
        });
        if frees {
            self.free_undone(page, stamp);
        }
        Ok(())
    }

    /// Writes a page of a large value, unless the page has that or later content.
    pub(crate) fn redo_large(
        &self,
        target: &Target<'_>,
        (level, bytes): (u8, &[u8]),
    ) -> Result<(), String> {
        let Target { table, page, stamp, lane } = *target;
        let header = LargeHeader { level, bytes: bytes.len().try_into().unwrap_or(u32::MAX) };
        header.check(self.pool.page_bytes()).map_err(|error| error.to_string())?;
        self.pool.backing.note_used(page);
        let latched = self.pool.latch_or_make(page, lane, table);
        let latched = latched.map_err(|error| error.to_string())?;
        if stamp.gsn() > latched.header().stamp().gsn() {
            fill_large(latched.node().words(), level, bytes);
            // Relaxed: the latch orders the stores.
            let owner = table_word(table.id, table.generation());
            latched.node().owner_words()[2].store(owner, Relaxed);
            latched.set_stamp(stamp);
        }
        Ok(())
    }
}
