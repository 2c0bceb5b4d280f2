//! Reads of leaves, without latches.

use std::ops::{Bound, Range};

use stillpoint_mem::words;
use stillpoint_node::{Node, Record};
use stillpoint_sync::atomic::AtomicU64;
use stillpoint_txn::{KindRange, RangeBatch, TableId};

use super::descent::KeyPlace;
use crate::loads::Missing;
use crate::pool::Pool;
use crate::swip::Swip;

/// Records of a range that are prefetched ahead of their use. They lie anywhere in the heap of the leaf.
const RECORDS_AHEAD: usize = 8;

/// What a leaf has of a value besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundValue {
    pub(crate) tag: u8,
    /// Whether the bytes are a reference.
    pub(crate) is_large: bool,
}

/// What is wanted of the slots of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Keys and values.
    Records,
    /// Keys alone, those of deleted records among them.
    Keys,
}

/// The part of a range that lies in one leaf, and of which a batch has been read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafRange<'k> {
    pub(crate) place: KeyPlace,
    pub(crate) lower: Bound<&'k [u8]>,
    pub(crate) upper: Bound<&'k [u8]>,
    pub(crate) is_descending: bool,
}

impl Pool {
    /// The place at which the reading of a range begins.
    ///
    /// # Errors
    /// A page on the way is not in a frame.
    pub(crate) fn begin_of(&self, range: &KindRange<'_>) -> Result<KeyPlace, Missing> {
        let table = range.table;
        match (range.is_descending, range.lower, range.upper) {
            (false, Bound::Included(key) | Bound::Excluded(key), _) => self.place(table, key),
            (false, Bound::Unbounded, _) => self.place(table, b""),
            (true, _, Bound::Included(key)) => self.place(table, key),
            (true, _, Bound::Excluded(key)) => self.place_below(table, Some(key)),
            (true, _, Bound::Unbounded) => self.place_below(table, None),
        }
    }

    /// Appends the bytes of a value, as the leaf has them, to `out`. `None` if the key has no value. Means
    /// nothing before the version of the leaf was checked.
    #[inline]
    pub(crate) fn copy_value(&self, place: KeyPlace, out: &mut Vec<u8>) -> Option<FoundValue> {
        let record = self.node(place.leaf.frame).record(place.slot.ok()?);
        if record.is_ghost() {
            return None;
        }
        record.read_value(out);
        Some(FoundValue { tag: record.tag(), is_large: record.is_large() })
    }

    /// Reads up to `out.most` slots of the part of a range that lies in a leaf. Returns the slots that were
    /// looked at, and whether the value of the last record is a reference: the batch ends behind such a
    /// record. All this means nothing before the leaf's version was checked.
    pub(crate) fn read_leaf(
        &self,
        range: &LeafRange<'_>,
        wanted: Wanted,
        out: &mut RangeBatch,
    ) -> (Range<usize>, bool) {
        let node = self.node(range.place.leaf.frame);
        let is_descending = range.is_descending;
        // The fence behind which the range goes on, if there is one.
        let (slots, is_bounded) = match is_descending {
            false => ascending(&node, range, &mut out.next),
            true => descending(&node, range, &mut out.next),
        };
        let prefix = node.prefix_words();
        // Words of two states may name more bytes than a page has.
        let mut left = self.page_bytes();
        let Range { start: mut first, mut end } = slots;
        for ahead in 0..RECORDS_AHEAD {
            node.prefetch_record(if is_descending {
                end.saturating_sub(ahead + 1)
            } else {
                first + ahead
            });
        }
        let mut is_large = false;
        while !is_large && first < end && out.len() < out.most {
            let slot = if is_descending { end - 1 } else { first };
            let record = node.record(slot);
            if is_descending {
                end = slot;
                node.prefetch_record(slot.saturating_sub(RECORDS_AHEAD));
            } else {
                first = slot + 1;
                node.prefetch_record(slot + RECORDS_AHEAD);
            }
            if record.is_ghost() && wanted == Wanted::Records {
                continue;
            }
            let value_bytes = if wanted == Wanted::Keys { 0 } else { record.value_bytes() };
            let Some(rest) = left.checked_sub(record.rest_bytes() + value_bytes) else { break };
            left = rest;
            push(out, prefix, &record, value_bytes);
            is_large = wanted == Wanted::Records && record.is_large();
        }
        if first < end {
            // A descending range goes on below the slot that was read last.
            let next = if is_descending { end } else { first };
            out.next.clear();
            node.read_prefix(&mut out.next);
            node.record(next).read_rest(&mut out.next);
        } else {
            out.is_end = !is_bounded;
        }
        let looked_at = match is_descending {
            false => slots.start..first,
            true => end..slots.end,
        };
        (looked_at, is_large)
    }

    /// Prefetches header and slots of the leaf in which a range goes on with a key, or below it. The leaf may
    /// have about so many slots.
    pub(crate) fn prefetch_next(
        &self,
        table: TableId,
        from: &[u8],
        (is_descending, slots): (bool, usize),
    ) {
        let parent = match is_descending {
            false => self.descend(table, from, 1),
            true => self.descend_below(table, from, 1),
        };
        if let Ok(parent) = parent
            && let node = self.node(parent.seen.frame)
            && node.level() == 1
            && let Swip::Hot(frame) = Swip::unpack(node.child_number(parent.position))
        {
            self.prefetch(frame, slots);
        }
    }

    /// The key of a slot, appended to `out`.
    pub(crate) fn read_key(&self, place: KeyPlace, slot: usize, out: &mut Vec<u8>) {
        self.node(place.leaf.frame).read_key(slot, out);
    }
}

#[inline]
fn push(
    out: &mut RangeBatch,
    (prefix, prefix_bytes): (&[AtomicU64], usize),
    record: &Record<'_>,
    value_bytes: usize,
) {
    // Each part is written in whole words, and the next one over their padding.
    let room = out.push_padded(record.tag(), prefix_bytes + record.rest_bytes(), value_bytes);
    words::copy_whole(prefix, room);
    record.copy_padded(value_bytes, &mut room[prefix_bytes..]);
}

/// The slots of an ascending range in a leaf. Puts the upper fence into `fence`. True if the range goes on
/// there.
fn ascending(node: &Node<'_>, range: &LeafRange<'_>, fence: &mut Vec<u8>) -> (Range<usize>, bool) {
    let is_bounded = node.read_upper_fence(fence);
    let first = match (range.place.slot, range.lower) {
        (Ok(slot), Bound::Excluded(_)) => slot + 1,
        (Ok(slot) | Err(slot), _) => slot,
    };
    let slots = node.slot_count();
    let last = match range.upper {
        Bound::Included(key) if !is_bounded || key < fence.as_slice() => {
            Some(end_of(node, key, true))
        }
        Bound::Excluded(key) if !is_bounded || key <= fence.as_slice() => {
            Some(end_of(node, key, false))
        }
        _ => None,
    };
    (first..last.unwrap_or(slots).min(slots), is_bounded && last.is_none())
}

/// The slots of a descending range in a leaf. Puts the lower fence into `fence`. True if the range goes on
/// there.
fn descending(node: &Node<'_>, range: &LeafRange<'_>, fence: &mut Vec<u8>) -> (Range<usize>, bool) {
    node.read_lower_fence(fence);
    let end = match (range.place.slot, range.upper) {
        (Ok(slot), Bound::Included(_)) => slot + 1,
        (Ok(slot) | Err(slot), _) => slot,
    };
    let first = match range.lower {
        Bound::Included(key) if key >= fence.as_slice() => Some(end_of(node, key, false)),
        Bound::Excluded(key) if key >= fence.as_slice() => Some(end_of(node, key, true)),
        _ => None,
    };
    let is_bounded = first.is_none() && !fence.is_empty();
    (first.unwrap_or(0)..end.min(node.slot_count()), is_bounded)
}

/// The slot behind all keys below a key, or behind the key itself, too.
fn end_of(node: &Node<'_>, key: &[u8], is_included: bool) -> usize {
    match node.search(key) {
        Ok(slot) => slot + usize::from(is_included),
        Err(slot) => slot,
    }
}
