//! Changes of one record, under the exclusive latch of its leaf: append, change, stamp, unlatch.

use stillpoint_format::Stamp;
use stillpoint_format::node::entry_words;
use stillpoint_node::{Node, NodeError, node_key_bytes_max, node_value_bytes_max};
use stillpoint_txn::TableId;

use crate::frame::{FrameVersion, Latched};
use crate::loads::Missing;
use crate::pool::Pool;

/// A record of a table: tag and value, or nothing.
pub(crate) type Value<'v> = Option<(u8, &'v [u8])>;

/// The leaf of a key, latched exclusively.
#[derive(Debug)]
pub(crate) struct Leaf<'p> {
    pub(crate) latched: Latched<'p>,
    /// The slot of the key, or the slot that it would get.
    pub(crate) slot: Result<usize, usize>,
}

impl<'p> Leaf<'p> {
    /// Tag and value of the key before the change.
    pub(crate) fn value(&self, out: &mut Vec<u8>) -> Option<u8> {
        let node = self.latched.node();
        let slot = self.slot.ok().filter(|&slot| !node.is_ghost(slot))?;
        node.read_value(slot, out);
        Some(node.tag(slot))
    }

    /// The bytes that the leaf needs for a value of the key. `None` if it has the room.
    pub(crate) fn needs(&self, key: &[u8], value: Value<'_>) -> Option<usize> {
        Self::needs_in(&self.latched.node(), self.slot, key, value)
    }

    /// As [`needs`](Self::needs), for a slot of a node.
    pub(super) fn needs_in(
        node: &Node<'_>,
        slot: Result<usize, usize>,
        key: &[u8],
        value: Value<'_>,
    ) -> Option<usize> {
        let bytes = value?.1.len();
        let capacity = bytes.next_multiple_of(8);
        let rest = key.len().saturating_sub(node.prefix_bytes());
        let needed = (entry_words(rest, capacity) + 1) * 8;
        let free = node.free_bytes();
        let has_room = match slot {
            Ok(slot) if bytes <= node.capacity_bytes(slot) => true,
            // The entry moves, and its old place counts as free.
            Ok(slot) => free + (entry_words(rest, node.capacity_bytes(slot)) + 1) * 8 >= needed,
            Err(_) => free >= needed,
        };
        (!has_room).then_some(needed)
    }

    /// Gives the key its new value. The leaf has the room.
    pub(crate) fn set(&self, key: &[u8], value: Value<'_>, stamp: Stamp) -> Result<(), NodeError> {
        set_value(&self.latched.node(), self.slot, key, value)?;
        self.latched.set_stamp(stamp);
        Ok(())
    }

    /// The first key of the leaf behind the slot that a missing key would get.
    pub(crate) fn next_key(&self, out: &mut Vec<u8>) -> bool {
        let node = self.latched.node();
        let (Ok(slot) | Err(slot)) = self.slot;
        let has_next = slot < node.slot_count();
        if has_next {
            node.read_key(slot, out);
        }
        has_next
    }
}

/// Gives a key of a latched leaf its value, at the slot where the search has ended.
pub(crate) fn set_value(
    node: &Node<'_>,
    slot: Result<usize, usize>,
    key: &[u8],
    value: Value<'_>,
) -> Result<(), NodeError> {
    match (slot, value) {
        (Ok(slot), Some((tag, bytes))) if !node.is_ghost(slot) => node.update(slot, bytes, tag)?,
        (_, Some((tag, bytes))) => drop(node.insert(key, bytes, tag)?),
        (Ok(slot), None) if !node.is_ghost(slot) => node.delete(slot),
        (_, None) => {}
    }
    Ok(())
}

/// The key behind the end of a leaf, and the leaves that it was looked for in.
#[derive(Debug, Default)]
pub(crate) struct Beyond {
    pub(crate) key: Vec<u8>,
    pub(crate) is_some: bool,
    /// The upper fence of the leaf, if it has one.
    fence: Option<Vec<u8>>,
    passed: Vec<FrameVersion>,
}

impl Pool {
    /// Latches the leaf of a key exclusively.
    ///
    /// # Errors
    /// A page on the way is not in a frame.
    pub(crate) fn latch_leaf(&self, table: TableId, key: &[u8]) -> Result<Leaf<'_>, Missing> {
        let mut backoff = stillpoint_sync::Backoff::new();
        loop {
            let seen = self.leaf(table, key)?;
            if let Some(latched) = self.try_latch_seen(seen) {
                let slot = latched.node().search(key);
                return Ok(Leaf { latched, slot });
            }
            backoff.wait();
        }
    }

    /// The first key behind the leaf of `key`. The leaf itself is not among those that are checked
    /// afterwards.
    ///
    /// # Errors
    /// A page on the way is not in a frame.
    pub(crate) fn key_beyond_leaf(
        &self,
        table: TableId,
        key: &[u8],
        beyond: &mut Beyond,
    ) -> Result<(), Missing> {
        'again: loop {
            beyond.key.clear();
            beyond.is_some = false;
            beyond.passed.clear();
            let (mut to, mut fence) = (key.to_vec(), Vec::new());
            let mut is_own = true;
            loop {
                let seen = self.leaf(table, &to)?;
                let node = self.node(seen.frame);
                if !is_own && node.slot_count() > 0 {
                    node.read_key(0, &mut beyond.key);
                    beyond.is_some = true;
                }
                fence.clear();
                let is_bounded = node.read_upper_fence(&mut fence);
                if !self.is_still(seen) {
                    continue 'again;
                }
                if is_own {
                    beyond.fence = is_bounded.then(|| fence.clone());
                } else {
                    beyond.passed.push(seen);
                }
                if beyond.is_some || !is_bounded {
                    return Ok(());
                }
                std::mem::swap(&mut to, &mut fence);
                is_own = false;
            }
        }
    }

    /// Whether the key beyond is still the first one behind a latched leaf.
    pub(crate) fn is_beyond_still(&self, leaf: &Leaf<'_>, beyond: &Beyond) -> bool {
        let mut fence = Vec::new();
        let is_bounded = leaf.latched.node().read_upper_fence(&mut fence);
        is_bounded.then_some(&fence) == beyond.fence.as_ref()
            && beyond.passed.iter().all(|&seen| self.is_still(seen))
    }

    /// Longest key of a table, in bytes.
    pub(crate) fn key_bytes_max(&self) -> usize {
        node_key_bytes_max(self.page_bytes())
    }

    /// Longest value of a table, in bytes.
    pub(crate) fn value_bytes_max(&self) -> usize {
        node_value_bytes_max(self.page_bytes())
    }
}
