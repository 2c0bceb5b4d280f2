//! Binary search by heads, and by whole keys if heads agree.

use std::cmp::Ordering;

use stillpoint_format::node::Slot;
use stillpoint_sync::atomic::Ordering::Relaxed;

use crate::node::Node;

/// A sought key, without the node's prefix.
struct Sought<'k> {
    rest: &'k [u8],
    head: u32,
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
        let rest = key.get(self.prefix_bytes()..).unwrap_or(b"");
        let sought = Sought { rest, head: head_of(rest) };
        let slots = self.slots();
        let (mut low, mut high) = (0, slots.len());
        while low < high {
            let middle = low + (high - low) / 2;
            // Relaxed: see `Node::word`.
            let slot = Slot::unpack(slots[middle].load(Relaxed));
            let is_less = if slot.head == sought.head {
                self.order_of(slot, &sought) == Ordering::Less
            } else {
                slot.head < sought.head
            };
            if is_less {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(found) = slots.get(low) else {
            return Err(low);
        };
        let slot = Slot::unpack(found.load(Relaxed));
        let is_found = slot.head == sought.head && self.order_of(slot, &sought) == Ordering::Equal;
        if is_found { Ok(low) } else { Err(low) }
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
fn big_endian(bytes: &[u8]) -> u64 {
    if let Some(eight) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*eight);
    }
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_be_bytes(all)
}
