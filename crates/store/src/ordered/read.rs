//! Reads of keys in their order, and of ranks.

use std::ops::Bound;

use super::OrderedIndex;
use super::descent::To;
use super::nodes::{NodeVersion, ROOT};

/// Keys of an index in their order, as they were at one moment for each leaf. Ghosts are among them.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    /// End of each key in `bytes`.
    ends: Vec<usize>,
    /// The leaves that were read.
    leaves: Vec<NodeVersion>,
    /// Whether the range ends here. Then an ascending read has the first key beyond the range behind
    /// the others, if there is one.
    is_end: bool,
    has_beyond: bool,
    fence: Vec<u8>,
}

impl Batch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.leaves.clear();
        self.is_end = false;
        self.has_beyond = false;
    }

    /// Number of keys in the range.
    pub(crate) fn len(&self) -> usize {
        self.ends.len() - usize::from(self.has_beyond)
    }

    /// A key, in the direction of the read.
    pub(crate) fn key(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[number]]
    }

    /// Whether the range has no more keys.
    pub(crate) fn is_end(&self) -> bool {
        self.is_end
    }

    /// The first key beyond the range, at the end of an ascending read. `None` if there is none.
    pub(crate) fn beyond(&self) -> Option<&[u8]> {
        self.has_beyond.then(|| self.key(self.ends.len() - 1))
    }

    /// Whether both hold the same keys and ends.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (self.is_end, self.has_beyond, &self.ends, &self.bytes)
            == (other.is_end, other.has_beyond, &other.ends, &other.bytes)
    }

    fn push(&mut self, read: impl FnOnce(&mut Vec<u8>)) {
        read(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// Forgets the keys from this number on.
    fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
        self.is_end = false;
        self.has_beyond = false;
    }
}

/// Whether a key is above the upper end of a range.
fn is_above(key: &[u8], upper: Bound<&[u8]>) -> bool {
    match upper {
        Bound::Included(upper) => key > upper,
        Bound::Excluded(upper) => key >= upper,
        Bound::Unbounded => false,
    }
}

/// Whether a key is below the lower end of a range.
fn is_below(key: &[u8], lower: Bound<&[u8]>) -> bool {
    match lower {
        Bound::Included(lower) => key < lower,
        Bound::Excluded(lower) => key <= lower,
        Bound::Unbounded => false,
    }
}

impl OrderedIndex {
    /// Whether no leaf that a batch was read from has changed since.
    pub(crate) fn is_unchanged(&self, batch: &Batch) -> bool {
        batch.leaves.iter().all(|&seen| self.nodes.is_still(seen))
    }

    /// Reads up to `most` keys of a range, from its lower end on. At the end of the range also the first
    /// key beyond.
    pub(crate) fn read_ascending(
        &self,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        most: usize,
        batch: &mut Batch,
    ) {
        batch.clear();
        let (Bound::Included(start) | Bound::Excluded(start)) = lower else {
            return self.read_ascending((Bound::Included(b""), upper), most, batch);
        };
        let mut start = start.to_vec();
        let mut skips = matches!(lower, Bound::Excluded(_));
        loop {
            let (before, leaf) = (batch.len(), self.leaf(To::Key(&start)));
            let node = self.nodes.node(leaf.number);
            let first = match node.search(&start) {
                Ok(slot) => slot + usize::from(skips),
                Err(slot) => slot,
            };
            for slot in first..node.slot_count() {
                if batch.ends.len() == most {
                    break;
                }
                batch.push(|bytes| node.read_key(slot, bytes));
                if is_above(batch.key(batch.ends.len() - 1), upper) {
                    (batch.is_end, batch.has_beyond) = (true, true);
                    break;
                }
            }
            batch.fence.clear();
            let is_bounded = node.read_upper_fence(&mut batch.fence);
            if !self.nodes.is_still(leaf) {
                batch.truncate(before);
                continue;
            }
            batch.leaves.push(leaf);
            if batch.is_end || batch.ends.len() == most {
                return;
            }
            if !is_bounded {
                batch.is_end = true;
                return;
            }
            std::mem::swap(&mut start, &mut batch.fence);
            skips = false;
        }
    }

    /// Reads up to `most` keys of a range, from its upper end down.
    pub(crate) fn read_descending(
        &self,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        most: usize,
        batch: &mut Batch,
    ) {
        batch.clear();
        let mut end = upper.map(<[u8]>::to_vec);
        loop {
            let end_key = end.as_ref().map(|key| &key[..]);
            let to = match end_key {
                Bound::Included(key) => To::Key(key),
                Bound::Excluded(key) => To::Below(key),
                Bound::Unbounded => To::Last,
            };
            let (before, leaf) = (batch.len(), self.leaf(to));
            let node = self.nodes.node(leaf.number);
            let behind = match end_key {
                Bound::Included(key) => node.search(key).map_or_else(|slot| slot, |slot| slot + 1),
                Bound::Excluded(key) => node.search(key).unwrap_or_else(|slot| slot),
                Bound::Unbounded => node.slot_count(),
            };
            for slot in (0..behind.min(node.slot_count())).rev() {
                if batch.ends.len() == most {
                    break;
                }
                batch.push(|bytes| node.read_key(slot, bytes));
                if is_below(batch.key(batch.ends.len() - 1), lower) {
                    batch.truncate(batch.ends.len() - 1);
                    batch.is_end = true;
                    break;
                }
            }
            batch.fence.clear();
            node.read_lower_fence(&mut batch.fence);
            if !self.nodes.is_still(leaf) {
                batch.truncate(before);
                continue;
            }
            batch.leaves.push(leaf);
            if batch.is_end || batch.ends.len() == most {
                return;
            }
            if batch.fence.is_empty() {
                batch.is_end = true;
                return;
            }
            end = Bound::Excluded(std::mem::take(&mut batch.fence));
        }
    }

    /// Number of records below a key, and the key itself if `counts_key`. Exact if nobody adds or removes
    /// records meanwhile.
    pub(crate) fn rank(&self, key: &[u8], counts_key: bool) -> u64 {
        loop {
            if let Some(rank) = self.try_rank(key, counts_key) {
                return rank;
            }
        }
    }

    fn try_rank(&self, key: &[u8], counts_key: bool) -> Option<u64> {
        let mut before = 0;
        let mut seen = self.nodes.seen(ROOT);
        loop {
            let node = self.nodes.node(seen.number);
            if node.level() == 0 {
                let end = match node.search(key) {
                    Ok(slot) => slot + usize::from(counts_key),
                    Err(slot) => slot,
                };
                let records = (0..end).filter(|&slot| !node.is_ghost(slot)).count() as u64;
                return self.nodes.is_still(seen).then_some(before + records);
            }
            let position = node.child_of(key);
            let records = node.records_before(position);
            let child = node.child(position).at;
            seen = self.step(seen, child)?;
            before += records;
        }
    }

    /// Number of records. Exact if nobody adds or removes records meanwhile.
    pub(crate) fn records(&self) -> u64 {
        loop {
            let root = self.nodes.seen(ROOT);
            let records = self.nodes.node(ROOT).records();
            if self.nodes.is_still(root) {
                return records;
            }
        }
    }

    /// Number of keys, ghosts included. Reads all leaves.
    pub(crate) fn key_count(&self) -> u64 {
        let (mut count, mut batch) = (0, Batch::default());
        let mut last: Option<Vec<u8>> = None;
        loop {
            let lower = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            self.read_ascending((lower, Bound::Unbounded), 1024, &mut batch);
            count += batch.len() as u64;
            if batch.is_end() {
                return count;
            }
            last = Some(batch.key(batch.len() - 1).to_vec());
        }
    }

    /// Appends the key of the record of this number, counted from 0. False if there are fewer records.
    /// Exact if nobody adds or removes records meanwhile.
    pub(crate) fn nth(&self, number: u64, key: &mut Vec<u8>) -> bool {
        let start = key.len();
        loop {
            if let Some(found) = self.try_nth(number, key) {
                return found;
            }
            key.truncate(start);
        }
    }

    fn try_nth(&self, mut number: u64, key: &mut Vec<u8>) -> Option<bool> {
        let mut seen = self.nodes.seen(ROOT);
        loop {
            let node = self.nodes.node(seen.number);
            if node.level() == 0 {
                let mut records = (0..node.slot_count()).filter(|&slot| !node.is_ghost(slot));
                let found = usize::try_from(number).ok().and_then(|number| records.nth(number));
                if let Some(slot) = found {
                    node.read_key(slot, key);
                }
                return self.nodes.is_still(seen).then_some(found.is_some());
            }
            let found = node.child_at_record(number);
            let child = found.map(|(position, before)| (node.child(position).at, before));
            let Some((child, before)) = child else {
                return self.nodes.is_still(seen).then_some(false);
            };
            seen = self.step(seen, child)?;
            number -= before;
        }
    }

    /// A child of a node, as of a version in which it was the node's child. `None` if the node has
    /// changed.
    fn step(&self, parent: NodeVersion, child: u64) -> Option<NodeVersion> {
        if !self.nodes.is_still(parent) {
            return None;
        }
        let seen = self.nodes.seen(child);
        self.nodes.is_still(parent).then_some(seen)
    }
}
