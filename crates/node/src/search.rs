//! Search by heads, and by whole keys where heads agree.

use std::cmp::Ordering;

use stillpoint_format::node::Slot;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::node::Node;

/// A sought key, without the node's prefix.
struct Sought<'k> {
    rest: &'k [u8],
    head: u32,
}

/// Where among the slots of a node a key probably is. Only a hint: a search with a wrong one takes some
/// more steps.
///
/// The heads around a child say where in the child a key probably is (interpolation search, Peterson
/// 1957). So a search reads few cache lines of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Near(u16);

impl Near {
    /// Nothing is known.
    pub const MIDDLE: Self = Self(1 << 15);

    /// The place of a head between two others.
    #[inline]
    fn between(low: u32, high: u32, head: u32) -> Self {
        let (span, from) =
            (u64::from(high.saturating_sub(low)), u64::from(head.saturating_sub(low)));
        match (from << 16).checked_div(span) {
            Some(part) => Self(part.min(u64::from(u16::MAX)) as u16),
            None => Self::MIDDLE,
        }
    }

    /// The slot of so many.
    #[inline]
    pub(crate) fn slot(self, slots: usize) -> usize {
        (slots * usize::from(self.0)) >> 16
    }
}

impl Node<'_> {
    /// Finds the slot of a key, a ghost's too.
    ///
    /// The node must [cover](Self::covers) the key, or the key must be the node's upper fence. A
    /// descent by separators finds such a node. For other keys the answer means nothing.
    ///
    /// # Errors
    /// The slot that the key would get, if no slot has the key.
    #[inline]
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let (sought, slots) = (self.sought(key), self.slots());
        let low = first_from(slots, (0, slots.len()), sought.head);
        self.decide(slots, low, &sought)
    }

    /// As [`search`](Self::search), for a key that is probably near a place.
    ///
    /// # Errors
    /// As [`search`](Self::search).
    #[inline]
    pub fn search_near(&self, key: &[u8], near: Near) -> Result<usize, usize> {
        self.search_heads(key, near).and_then(|first| self.search_from(key, first))
    }

    /// The first slot whose head is not below that of a key, which is probably near a place. If the heads agree,
    /// the record is prefetched, and [`search_from`](Self::search_from) ends the search.
    ///
    /// # Errors
    /// The slot that the key would get, if no slot has its head.
    #[inline]
    pub fn search_heads(&self, key: &[u8], near: Near) -> Result<usize, usize> {
        let (sought, slots) = (self.sought(key), self.slots());
        let low = first_from(slots, around(slots, near, sought.head), sought.head);
        if slots.get(low).is_none_or(|found| head_in(found) != sought.head) {
            return Err(low);
        }
        // Key and value lie in several lines, which arrive together.
        self.prefetch_record(low);
        Ok(low)
    }

    /// Ends a [search](Self::search) at the first slot whose head is not below that of the key.
    ///
    /// # Errors
    /// As [`search`](Self::search).
    #[inline]
    pub fn search_from(&self, key: &[u8], first: usize) -> Result<usize, usize> {
        self.decide(self.slots(), first, &self.sought(key))
    }

    /// As [`child_of`](Self::child_of), for a key that is probably near a place. Also gives the key's
    /// probable place in the child.
    #[inline]
    pub fn child_near(&self, key: &[u8], near: Near) -> (usize, Near) {
        let (sought, slots) = (self.sought(key), self.slots());
        let low = first_from(slots, around(slots, near, sought.head), sought.head);
        let position = match self.decide(slots, low, &sought) {
            Ok(slot) => slot + 1,
            Err(slot) => slot,
        };
        let before = position.checked_sub(1).and_then(|before| slots.get(before));
        let below = before.map_or(0, head_in);
        let above = slots.get(position).map_or(u32::MAX, head_in);
        (position, Near::between(below, above, sought.head))
    }

    #[inline]
    fn sought<'k>(&self, key: &'k [u8]) -> Sought<'k> {
        let rest = key.get(self.prefix_bytes()..).unwrap_or(b"");
        Sought { rest, head: head_of(rest) }
    }

    /// Ends a search at the first slot whose head is not below the sought one.
    #[inline]
    fn decide(&self, slots: &[AtomicU64], low: usize, sought: &Sought<'_>) -> Result<usize, usize> {
        let Some(found) = slots.get(low) else { return Err(low) };
        // Relaxed: see `Node::word`.
        let slot = Slot::unpack(found.load(Relaxed));
        if slot.head != sought.head {
            return Err(low);
        }
        if slots.get(low + 1).is_some_and(|next| head_in(next) == sought.head) {
            return self.search_among_equal(slots, low, sought);
        }
        match self.order_of(slot, sought) {
            Ordering::Less => Err(low + 1),
            Ordering::Equal => Ok(low),
            Ordering::Greater => Err(low),
        }
    }

    /// Searches the slots with the sought head, the first of which is known.
    fn search_among_equal(
        &self,
        slots: &[AtomicU64],
        first: usize,
        sought: &Sought<'_>,
    ) -> Result<usize, usize> {
        let mut low = first;
        let mut high = match sought.head.checked_add(1) {
            Some(next) => first_from(slots, (first, slots.len()), next),
            None => slots.len(),
        };
        while low < high {
            let middle = low + (high - low) / 2;
            // Relaxed: see `Node::word`.
            match self.order_of(Slot::unpack(slots[middle].load(Relaxed)), sought) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The order of a slot's key and the sought one, if their heads agree.
    #[inline]
    fn order_of(&self, slot: Slot, sought: &Sought<'_>) -> Ordering {
        let (own, other) = (usize::from(slot.rest_bytes), sought.rest.len());
        if own <= HEAD_BYTES || other <= HEAD_BYTES {
            // The shorter rest, padded with zeros, is a prefix of the longer one.
            return own.cmp(&other);
        }
        let from = usize::from(slot.start) + 1;
        for (index, chunk) in sought.rest.chunks(8).enumerate() {
            if index * 8 >= own {
                break;
            }
            let order = self.word(from + index).swap_bytes().cmp(&big_endian(chunk));
            if order != Ordering::Equal {
                return order;
            }
        }
        own.cmp(&other)
    }
}

/// The head of a slot.
#[inline]
fn head_in(slot: &AtomicU64) -> u32 {
    // Relaxed: see `Node::word`.
    Slot::unpack(slot.load(Relaxed)).head
}

/// The first slot of a range whose head is not below this one. The range ends if there is none.
#[inline]
fn first_from(slots: &[AtomicU64], (mut low, mut high): (usize, usize), head: u32) -> usize {
    while low < high {
        let middle = low + (high - low) / 2;
        if head_in(&slots[middle]) < head {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Slots between the first guess and the next one.
const STEP: usize = 4;

/// Slots among which the first one is whose head is not below this one, with steps of growing length
/// from a likely place on.
#[inline]
fn around(slots: &[AtomicU64], near: Near, head: u32) -> (usize, usize) {
    let Some(last) = slots.len().checked_sub(1) else { return (0, 0) };
    let (guess, mut step) = (near.slot(slots.len()).min(last), STEP);
    if head_in(&slots[guess]) < head {
        let mut low = guess + 1;
        loop {
            let at = low + step;
            if at >= slots.len() {
                return (low, slots.len());
            }
            if head_in(&slots[at]) >= head {
                return (low, at);
            }
            (low, step) = (at + 1, step * 2);
        }
    }
    let mut high = guess;
    loop {
        let Some(at) = high.checked_sub(step) else { return (0, high) };
        if head_in(&slots[at]) < head {
            return (at + 1, high);
        }
        (high, step) = (at, step * 2);
    }
}

/// Bytes of a key that a slot holds.
const HEAD_BYTES: usize = 4;

/// The first four bytes of a key's rest, padded with zeros.
#[inline]
pub(crate) fn head_of(rest: &[u8]) -> u32 {
    match rest.first_chunk::<HEAD_BYTES>() {
        Some(head) => u32::from_be_bytes(*head),
        None => (big_endian(rest) >> 32) as u32,
    }
}

/// Up to eight bytes as a number of the same order, padded with zeros.
#[inline]
pub(crate) fn big_endian(bytes: &[u8]) -> u64 {
    if let Some(eight) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*eight);
    }
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_be_bytes(all)
}
