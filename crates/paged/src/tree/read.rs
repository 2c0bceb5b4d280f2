//! Reads of points and ranges, without latches.

use std::ops::Bound;

use stillpoint_txn::TableId;

use crate::frame::FrameVersion;
use crate::loads::Missing;
use crate::pool::Pool;

/// Records of a range in the order of their keys, ghosts included, as they were at one moment for each
/// leaf.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    /// Of each entry: end of the key, end of the value, and the tag. `None` for a ghost.
    entries: Vec<(usize, usize, Option<u8>)>,
    /// The leaves that were read.
    leaves: Vec<FrameVersion>,
    /// Whether the range ends here.
    pub(crate) is_end: bool,
    /// The first key beyond the range, if the range ends here and there is one.
    beyond: Vec<u8>,
    has_beyond: bool,
    fence: Vec<u8>,
}

impl Batch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.leaves.clear();
        self.is_end = false;
        self.has_beyond = false;
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The key of an entry.
    pub(crate) fn key(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.entries[before].1);
        &self.bytes[start..self.entries[at].0]
    }

    /// Tag and value of an entry. `None` for a ghost.
    pub(crate) fn value(&self, at: usize) -> Option<(u8, &[u8])> {
        let (key_end, end, tag) = self.entries[at];
        tag.map(|tag| (tag, &self.bytes[key_end..end]))
    }

    /// The first key beyond the range, at its end. `None` if there is none.
    pub(crate) fn beyond(&self) -> Option<&[u8]> {
        self.has_beyond.then_some(&self.beyond[..])
    }

    /// Forgets the entries from this number on.
    fn truncate(&mut self, len: usize) {
        self.entries.truncate(len);
        self.bytes.truncate(self.entries.last().map_or(0, |entry| entry.1));
        self.is_end = false;
        self.has_beyond = false;
    }
}

/// Whether a key is above the upper end of a range.
pub(crate) fn is_above(key: &[u8], upper: Bound<&[u8]>) -> bool {
    match upper {
        Bound::Included(upper) => key > upper,
        Bound::Excluded(upper) => key >= upper,
        Bound::Unbounded => false,
    }
}

impl Pool {
    /// Appends the value of a key to `out` and gives its tag. `None` if the key has no value.
    ///
    /// # Errors
    /// A page on the way is not in a frame.
    #[inline]
    pub(crate) fn read(
        &self,
        table: TableId,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<u8>, Missing> {
        let start = out.len();
        loop {
            let leaf = self.leaf(table, key)?;
            let node = self.node(leaf.frame);
            let tag = match node.search(key) {
                Ok(slot) if !node.is_ghost(slot) => {
                    node.read_value(slot, out);
                    Some(node.tag(slot))
                }
                _ => None,
            };
            if self.is_still(leaf) {
                return Ok(tag);
            }
            out.truncate(start);
        }
    }

    /// Whether no leaf that a batch was read from has changed since.
    pub(crate) fn is_unchanged(&self, batch: &Batch) -> bool {
        batch.leaves.iter().all(|&seen| self.is_still(seen))
    }

    /// Reads up to `most` entries of a range, from its lower end on, of one leaf. At the end of the range
    /// also the first key beyond.
    ///
    /// # Errors
    /// A page on the way is not in a frame.
    pub(crate) fn read_range(
        &self,
        table: TableId,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        most: usize,
        batch: &mut Batch,
    ) -> Result<(), Missing> {
        batch.clear();
        let (mut start, mut skips) = match lower {
            Bound::Included(key) => (key.to_vec(), false),
            Bound::Excluded(key) => (key.to_vec(), true),
            Bound::Unbounded => (Vec::new(), false),
        };
        loop {
            let (before, leaf) = (batch.len(), self.leaf(table, &start)?);
            let node = self.node(leaf.frame);
            let first = match node.search(&start) {
                Ok(slot) => slot + usize::from(skips),
                Err(slot) => slot,
            };
            for slot in first..node.slot_count() {
                if batch.len() == most {
                    break;
                }
                self.read_entry(leaf, slot, upper, batch);
                if batch.is_end {
                    break;
                }
            }
            batch.fence.clear();
            let is_bounded = node.read_upper_fence(&mut batch.fence);
            if !self.is_still(leaf) {
                batch.truncate(before);
                continue;
            }
            batch.leaves.push(leaf);
            batch.is_end |= !is_bounded && batch.len() < most;
            // A batch ends with its leaf. All its leaves must be in frames at one time, and a pool may be
            // small.
            if batch.is_end || batch.len() > 0 {
                return Ok(());
            }
            std::mem::swap(&mut start, &mut batch.fence);
            skips = false;
        }
    }

    /// Appends an entry of a leaf to a batch, or notes that it lies beyond the range.
    fn read_entry(&self, leaf: FrameVersion, slot: usize, upper: Bound<&[u8]>, batch: &mut Batch) {
        let node = self.node(leaf.frame);
        let start = batch.bytes.len();
        node.read_key(slot, &mut batch.bytes);
        if is_above(&batch.bytes[start..], upper) {
            batch.beyond.clear();
            batch.beyond.extend_from_slice(&batch.bytes[start..]);
            batch.bytes.truncate(start);
            (batch.is_end, batch.has_beyond) = (true, true);
            return;
        }
        let key_end = batch.bytes.len();
        let tag = (!node.is_ghost(slot)).then(|| node.tag(slot));
        if tag.is_some() {
            node.read_value(slot, &mut batch.bytes);
        }
        batch.entries.push((key_end, batch.bytes.len(), tag));
    }
}
