//! Search by heads, and by whole keys where heads agree.

use std::cmp::Ordering;
use std::hint::select_unpredictable;

use stillpoint_format::node::Slot;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::node::Node;

/// A sought key, without the node's prefix.
struct Sought<'k> {
    rest: &'k [u8],
    head: u32,
}

impl Sought<'_> {
    /// The first eight bytes as a number of the same order.
    #[inline]
    fn begin(&self) -> u64 {
        big_endian(self.rest.get(..8).unwrap_or(self.rest))
    }
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

    /// The place of a number between two others.
    #[inline]
    fn between(low: u64, high: u64, sought: u64) -> Self {
        let (span, from) = (high.saturating_sub(low), sought.saturating_sub(low));
        // So that the product fits.
        let spare = 16u32.saturating_sub(span.leading_zeros());
        match (from.min(span) >> spare << 16).checked_div(span >> spare) {
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
        self.search_heads::<false>(key, near).and_then(|first| self.search_from(key, first))
    }

    /// The first slot whose head is not below that of a key, which is probably near a place. If the heads agree,
    /// the record is prefetched, and [`search_from`](Self::search_from) ends the search.
    ///
    /// `TOGETHER`: the caller searches for many keys in turn, and has [prefetched](Self::prefetch_near) what this
    /// one reads. Then nothing branches on the comparisons. Otherwise the processor runs ahead along the branches
    /// that it foresees, and reads several lines at a time.
    ///
    /// # Errors
    /// The slot that the key would get, if no slot has its head.
    #[inline]
    pub fn search_heads<const TOGETHER: bool>(
        &self,
        key: &[u8],
        near: Near,
    ) -> Result<usize, usize> {
        let (sought, slots) = (self.sought(key), self.slots());
        let low = first_near::<TOGETHER>(slots, near, sought.head);
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
    /// probable place in the child. `TOGETHER` is as in [`search_heads`](Self::search_heads).
    #[inline]
    pub fn child_near<const TOGETHER: bool>(&self, key: &[u8], near: Near) -> (usize, Near) {
        let (sought, slots) = (self.sought(key), self.slots());
        let low = first_near::<TOGETHER>(slots, near, sought.head);
        let position = match self.decide(slots, low, &sought) {
            Ok(slot) => slot + 1,
            Err(slot) => slot,
        };
        let before = position.checked_sub(1).and_then(|before| slots.get(before));
        let (before, behind) = (before.map(read), slots.get(position).map(read));
        let below = before.map_or(0, |slot| slot.head);
        let above = behind.map_or(u32::MAX, |slot| slot.head);
        if below != above {
            let [below, above, head] = [below, above, sought.head].map(u64::from);
            return (position, Near::between(below, above, head));
        }
        let below = before.map_or(0, |slot| self.begin_of(slot));
        let above = behind.map_or(u64::MAX, |slot| self.begin_of(slot));
        (position, Near::between(below, above, sought.begin()))
    }

    /// The first eight bytes of a slot's rest as a number of the same order.
    #[inline]
    fn begin_of(&self, slot: Slot) -> u64 {
        match usize::from(slot.rest_bytes) {
            0..=HEAD_BYTES => u64::from(slot.head) << 32,
            _ => self.word(usize::from(slot.start) + 1).swap_bytes(),
        }
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
        let slot = read(found);
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
        let end = match sought.head.checked_add(1) {
            Some(next) => first_from(slots, (first, slots.len()), next),
            None => slots.len(),
        };
        if end <= first {
            // The slots are being changed.
            return Err(first);
        }
        // Numbers are often evenly spread, and those of a node often differ in their last bytes alone.
        let [below, above] = [first, end - 1].map(|at| self.begin_of(read(&slots[at])));
        let near = Near::between(below, above, sought.begin());
        let is_below = |at: usize| self.order_of(read(&slots[at]), sought) == Ordering::Less;
        let range = gallop((first, end), first + near.slot(end - first), is_below);
        let found = halve(range, is_below);
        match found < end && self.order_of(read(&slots[found]), sought) == Ordering::Equal {
            true => Ok(found),
            false => Err(found),
        }
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

/// A slot, as its word is now.
#[inline]
fn read(slot: &AtomicU64) -> Slot {
    // Relaxed: see `Node::word`.
    Slot::unpack(slot.load(Relaxed))
}

/// The head of a slot.
#[inline]
fn head_in(slot: &AtomicU64) -> u32 {
    read(slot).head
}

/// The first slot of a range whose head is not below this one. The range ends if there is none.
#[inline]
fn first_from(slots: &[AtomicU64], range: (usize, usize), head: u32) -> usize {
    halve(range, |at| head_in(&slots[at]) < head)
}

/// As [`first_from`] of all slots. The answer is probably near a place.
#[inline]
fn first_near<const TOGETHER: bool>(slots: &[AtomicU64], near: Near, head: u32) -> usize {
    let (all, likely) = ((0, slots.len()), near.slot(slots.len()));
    let is_below = |at: usize| head_in(&slots[at]) < head;
    match TOGETHER {
        true if near == Near::MIDDLE => halve_without_branches(all, is_below),
        true => halve_without_branches(around(all, likely, is_below), is_below),
        false => halve(gallop(all, likely, is_below), is_below),
    }
}

/// The first number of a range that is not below the sought place. The range ends if there is none.
#[inline]
fn halve((mut low, mut high): (usize, usize), is_below: impl Fn(usize) -> bool) -> usize {
    while low < high {
        let middle = low + (high - low) / 2;
        if is_below(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// As [`halve`]. The processor cannot foresee the answers, so nothing branches on them.
#[inline]
fn halve_without_branches(
    (mut low, high): (usize, usize),
    is_below: impl Fn(usize) -> bool,
) -> usize {
    let mut size = high.saturating_sub(low);
    while size > 1 {
        let half = size / 2;
        low = select_unpredictable(is_below(low + half - 1), low + half, low);
        size -= half;
    }
    low + usize::from(size == 1 && is_below(low))
}

/// Slots between the first guess and the next one.
const STEP: usize = 4;

/// The part of a range with the first number that is not below the sought place. Steps of growing length begin at
/// a likely number.
#[inline]
fn gallop(
    (first, end): (usize, usize),
    likely: usize,
    is_below: impl Fn(usize) -> bool,
) -> (usize, usize) {
    if first >= end {
        return (first, first);
    }
    let (guess, mut step) = (likely.clamp(first, end - 1), STEP);
    if is_below(guess) {
        let mut low = guess + 1;
        loop {
            let at = low + step;
            if at >= end {
                return (low, end);
            }
            if !is_below(at) {
                return (low, at);
            }
            (low, step) = (at + 1, step * 2);
        }
    }
    let mut high = guess;
    loop {
        let at = match high.checked_sub(step) {
            Some(at) if at >= first => at,
            _ => return (first, high),
        };
        if is_below(at) {
            return (at + 1, high);
        }
        (high, step) = (at, step * 2);
    }
}

/// Slots on each side of a likely place among which a search begins. If keys are evenly spread, few of them are
/// farther away: the places of such keys vary by the square root of their number.
pub(crate) const AROUND: usize = 8;

/// As [`gallop`], but begins with so many numbers around the likely one. So it rarely goes on.
#[inline]
fn around(
    (first, end): (usize, usize),
    likely: usize,
    is_below: impl Fn(usize) -> bool,
) -> (usize, usize) {
    let low = likely.saturating_sub(AROUND).max(first);
    let high = likely.saturating_add(AROUND).min(end);
    if low > first && !is_below(low - 1) {
        return gallop((first, low), low - 1, is_below);
    }
    if high < end && is_below(high) {
        return gallop((high, end), high, is_below);
    }
    (low, high)
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
