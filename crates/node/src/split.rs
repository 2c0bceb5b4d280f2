//! Splits and merges. Both move entries with their capacities and ghosts, and free nothing.

use std::ops::Range;

use stillpoint_format::node::{NODE_HEADER_WORDS, NodeKind, entry_words};
use stillpoint_mem::words::words_for;

use crate::error::NodeError;
use crate::node::{Node, common_prefix_bytes};

/// Where a node is split: by slots, and by keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The first slot that leaves the node. In an inner node, the separator of this slot goes to
    /// the parent.
    pub slot: usize,
    /// The key between both nodes: the upper fence of the left one, the lower fence of the right one.
    pub separator: Vec<u8>,
}

/// Number of ascending insertions from which a leaf is split at their place, so that it stays full.
const ASCENDING_MIN: u16 = 8;

impl Node<'_> {
    /// Chooses the place of a split that makes room for `key`. If insertions ascend, a leaf is
    /// split at the key's place. Otherwise the leaf is split near the middle, at the shortest
    /// separator. A separator is the shortest key that separates the keys around it.
    ///
    /// With large entries the key's node may still be full after one split. Repeated splits end,
    /// since each split leaves the key's node fewer entries, and an empty node takes any entry.
    ///
    /// # Panics
    /// If an inner node has no separator, or a leaf no record other than this key's.
    pub fn split_for(&self, key: &[u8]) -> Split {
        debug_assert!(self.covers(key), "the key belongs into another node");
        let slots = self.slot_count();
        if self.own_kind() != NodeKind::Leaf {
            assert!(slots > 0, "an inner node with one child is not split");
            let slot = self.shortest_near_middle(0..slots, |slot| self.rest_len(slot));
            return Split { slot, separator: self.key(slot) };
        }
        let place = self.search(key);
        let insertions = self.insertions();
        let ascends = insertions.ascending >= ASCENDING_MIN
            && place == Err(usize::from(insertions.last_slot) + 1);
        if slots < 2 || ascends {
            let place = place.expect_err("a record beside that of the key");
            let split = Split { slot: place, separator: self.separator_beside(place, key) };
            if slots < 2 || self.parts_fit(&split) {
                return split;
            }
            // The new fence does not fit. A separator of existing keys does: it is no longer than
            // the key that leaves the part.
            let slot = (place - 1).max(1);
            return Split { slot, separator: self.separator_before(slot) };
        }
        let slot = self.shortest_near_middle(1..slots, |slot| self.separator_before(slot).len());
        Split { slot, separator: self.separator_before(slot) }
    }

    /// The split of a leaf that gives `key` to a right neighbour, and leaves this leaf all its records.
    /// `None` if the key is not above all of them, or if a page has no room for the fence between both.
    pub fn split_behind(&self, key: &[u8]) -> Option<Split> {
        let slots = self.slot_count();
        let is_behind = self.own_kind() == NodeKind::Leaf && self.covers(key);
        if !is_behind || self.search(key) != Err(slots) {
            return None;
        }
        let split = Split { slot: slots, separator: self.separator_beside(slots, key) };
        let (lower, _) = self.fence_keys();
        (split.separator > lower && self.parts_fit(&split)).then_some(split)
    }

    /// Moves the slots from `split.slot` on into `right`, which takes the fences from the separator on.
    /// The words of `right` may hold anything; its owner's words stay.
    ///
    /// # Panics
    /// If the pages differ in size, or the separator does not part the slots.
    pub fn split(&self, split: &Split, right: &Node<'_>) {
        assert_eq!(self.page_bytes(), right.page_bytes(), "pages of one size");
        let (lower, upper) = self.fence_keys();
        let is_leaf = self.own_kind() == NodeKind::Leaf;
        let fits = "a part of a node fits its page";
        right.init(self.own_kind(), self.level(), &split.separator, upper.as_deref());
        let first = if is_leaf { split.slot } else { split.slot + 1 };
        let insertions = self.insertions();
        let last_of_left = if is_leaf { None } else { Some(self.child(split.slot)) };
        right
            .rebuild(&split.separator, upper.as_deref(), |next, buffers| {
                (first..self.slot_count())
                    .try_for_each(|slot| next.push_from(self, slot, false, buffers))?;
                next.take_last_child(self);
                Ok(())
            })
            .expect(fits);
        self.rebuild(&lower, Some(&split.separator), |next, buffers| {
            (0..split.slot).try_for_each(|slot| next.push_from(self, slot, false, buffers))?;
            if let Some(child) = last_of_left {
                next.set_child(split.slot, child);
            } else if usize::from(insertions.last_slot) < split.slot {
                next.keep_insertions(insertions);
            }
            Ok(())
        })
        .expect(fits);
    }

    /// Takes over everything of the right neighbour, whose lower fence is this node's upper fence.
    /// The neighbour stays unchanged.
    ///
    /// # Errors
    /// [`NodeError::Full`] if both do not fit into one page. The node is then unchanged.
    ///
    /// # Panics
    /// If the nodes are no neighbours of one kind, or the pages differ in size.
    pub fn merge(&self, right: &Node<'_>) -> Result<(), NodeError> {
        assert_eq!(self.page_bytes(), right.page_bytes(), "pages of one size");
        assert_eq!(self.own_kind(), right.own_kind(), "nodes of one kind");
        assert_eq!(self.level(), right.level(), "nodes of one level");
        let (lower, middle) = self.fence_keys();
        let (right_lower, upper) = right.fence_keys();
        assert_eq!(middle.as_ref(), Some(&right_lower), "neighbours");
        self.rebuild(&lower, upper.as_deref(), |next, buffers| {
            (0..self.slot_count())
                .try_for_each(|slot| next.push_from(self, slot, false, buffers))?;
            if self.own_kind() != NodeKind::Leaf {
                let last = self.child(self.slot_count());
                next.put_child(next.slot_count(), &right_lower, last)?;
            }
            (0..right.slot_count())
                .try_for_each(|slot| next.push_from(right, slot, false, buffers))?;
            next.take_last_child(right);
            Ok(())
        })
    }

    /// The slot with the shortest separator within the middle quarter of the space. Of several, the
    /// one nearest to the middle.
    fn shortest_near_middle(&self, slots: Range<usize>, length: impl Fn(usize) -> usize) -> usize {
        let total: usize = (0..self.slot_count()).map(|slot| self.words_of(slot)).sum();
        let mut before: usize = (0..slots.start).map(|slot| self.words_of(slot)).sum();
        let mut best = (usize::MAX, usize::MAX, slots.start);
        for slot in slots {
            let from_middle = before.abs_diff(total / 2);
            // Outside of the middle quarter only the distance counts.
            let outside = from_middle > total / 8;
            let rank = if outside { usize::MAX } else { length(slot) };
            best = best.min((rank, from_middle, slot));
            before += self.words_of(slot);
        }
        best.2
    }

    /// True if each part of a leaf and its new fence fit into a page.
    fn parts_fit(&self, split: &Split) -> bool {
        let (lower, upper) = self.fence_keys();
        let upper = upper.unwrap_or_default();
        let fits = |slots: Range<usize>, fence: &[u8]| {
            let entries: usize = slots.map(|slot| self.words_of(slot)).sum();
            let fences = words_for(fence.len()) + words_for(split.separator.len());
            NODE_HEADER_WORDS + entries + fences <= self.words.len()
        };
        fits(0..split.slot, &lower) && fits(split.slot..self.slot_count(), &upper)
    }

    /// Words of a slot and its entry.
    fn words_of(&self, slot: usize) -> usize {
        1 + entry_words(self.rest_len(slot), self.capacity_bytes(slot))
    }

    fn rest_len(&self, slot: usize) -> usize {
        usize::from(self.slot(slot).rest_bytes)
    }

    /// The shortest key that is above the previous slot's key, and at most this slot's key.
    fn separator_before(&self, slot: usize) -> Vec<u8> {
        shortest_between(&self.key(slot - 1), self.key(slot))
    }

    /// The shortest key that separates the slots before `place` from those behind, for a new key at
    /// this place. The new key goes to the left of the separator if there are slots behind, and
    /// otherwise to its right.
    fn separator_beside(&self, place: usize, key: &[u8]) -> Vec<u8> {
        if place < self.slot_count() {
            return shortest_between(key, self.key(place));
        }
        match place.checked_sub(1) {
            Some(last) => shortest_between(&self.key(last), key.to_vec()),
            None => key.to_vec(),
        }
    }

    fn key(&self, slot: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.read_key(slot, &mut key);
        key
    }
}

/// The shortest prefix of `high` that is above `low`. No key above `low` and at most `high` is
/// shorter.
fn shortest_between(low: &[u8], mut high: Vec<u8>) -> Vec<u8> {
    debug_assert!(low < high.as_slice(), "keys out of order");
    high.truncate(common_prefix_bytes(low, &high) + 1);
    high
}
