//! Changes of one record, under the exclusive latch of its leaf: append, change, stamp, unlatch.

use stillpoint_format::Stamp;
use stillpoint_format::node::entry_words;
use stillpoint_format::page_log::{LoggedValue, PatchedRange, PatchedRanges, StoredValue};
use stillpoint_node::{Node, NodeError, node_key_bytes_max, node_value_bytes_max};
use stillpoint_sync::mutant;
use stillpoint_txn::TableId;

use super::descent::KeyPlace;
use crate::frame::Latched;
use crate::loads::Missing;
use crate::planted;
use crate::pool::Pool;

/// A value of a transaction: tag and bytes, or nothing.
pub(crate) type Value<'v> = Option<(u8, &'v [u8])>;

/// The leaf of a key, latched exclusively.
#[derive(Debug)]
pub(crate) struct Leaf<'p> {
    pub(crate) latched: Latched<'p>,
    /// The slot of the key, or the slot that it would get.
    pub(crate) slot: Result<usize, usize>,
}

impl<'p> Leaf<'p> {
    /// The bytes that the leaf needs for a value of the key. `None` if it has the room.
    pub(crate) fn needs(&self, key: &[u8], value: LoggedValue<'_>) -> Option<usize> {
        Self::needs_in(&self.latched.node(), self.slot, key, value)
    }

    /// As [`needs`](Self::needs), for a slot of a node.
    pub(super) fn needs_in(
        node: &Node<'_>,
        slot: Result<usize, usize>,
        key: &[u8],
        value: LoggedValue<'_>,
    ) -> Option<usize> {
        let bytes = value?.bytes.len();
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

    /// Gives the latch back. Who waits for a reader must not disturb its reading by a new version.
    pub(crate) fn release(self, is_changed: bool) {
        if !is_changed {
            self.latched.release_unchanged();
        }
    }

    /// Whether more than half of the records are deleted ones. True now and then alone, since the
    /// transactions that have deleted them may be open.
    pub(crate) fn is_worth_a_purge(&self) -> bool {
        let node = self.latched.node();
        let ghosts = node.ghost_count();
        ghosts > 0 && ghosts.is_multiple_of(16) && 2 * ghosts > node.slot_count()
    }

    /// Whether the leaf has one record at most that is not deleted, or is about to be purged and sparse then.
    pub(crate) fn is_worth_a_merge(&self) -> bool {
        let node = self.latched.node();
        let live = node.slot_count() - node.ghost_count();
        live <= 1 || self.is_worth_a_purge() && 4 * node.ghost_count() > 3 * node.slot_count()
    }

    /// Gives the key its new value. The leaf has the room.
    pub(crate) fn set(
        &self,
        key: &[u8],
        value: LoggedValue<'_>,
        stamp: Stamp,
    ) -> Result<(), NodeError> {
        set_value(&self.latched.node(), self.slot, key, value)?;
        self.latched.set_stamp(stamp);
        Ok(())
    }

    /// Gives some bytes of the key's value back what they were before a patch.
    ///
    /// # Errors
    /// As [`patch_value`].
    pub(crate) fn restore(&self, ranges: PatchedRanges<'_>, stamp: Stamp) -> Result<(), String> {
        patch_value(&self.latched.node(), self.slot, ranges, Side::Before)?;
        self.latched.set_stamp(stamp);
        Ok(())
    }
}

/// Which bytes a patch of a record writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Before,
    After,
}

impl Side {
    fn other_and_own(self, PatchedRange { before, after, .. }: PatchedRange<'_>) -> [&[u8]; 2] {
        match self {
            Self::Before => [after, before],
            Self::After => [before, after],
        }
    }
}

/// Writes the bytes of one side of a change to a value of a latched leaf. The value has those of the other
/// side, as far as they are known.
///
/// # Errors
/// The value does not have the bytes of the other side. Nothing was changed.
pub(crate) fn patch_value(
    node: &Node<'_>,
    slot: Result<usize, usize>,
    ranges: PatchedRanges<'_>,
    side: Side,
) -> Result<(), String> {
    let record = slot.ok().map(|slot| (slot, node.record(slot)));
    let Some((slot, record)) = record.filter(|(_, record)| !record.is_ghost()) else {
        return Err("a patch of a key without a value".to_owned());
    };
    let mut value = Vec::new();
    record.read_value(&mut value);
    let is_sound = |range: PatchedRange<'_>| {
        let now = value.get(range.offset..range.offset + range.before.len());
        let [known, _] = side.other_and_own(range);
        now.is_some_and(|now| known.is_empty() || now == known)
    };
    if record.is_large() || !ranges.iter().all(is_sound) {
        return Err("a patch of another value".to_owned());
    }
    for range in ranges.iter().take(mutant!(usize::MAX, PatchesOneRange => 1)) {
        let [_, bytes] = side.other_and_own(range);
        node.patch(slot, range.offset, bytes).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Gives a key of a latched leaf its value, at the slot where the search has ended.
pub(crate) fn set_value(
    node: &Node<'_>,
    slot: Result<usize, usize>,
    key: &[u8],
    value: LoggedValue<'_>,
) -> Result<(), NodeError> {
    match (slot, value) {
        (Ok(slot), Some(StoredValue { tag, bytes, is_large })) if !node.is_ghost(slot) => {
            node.update(slot, bytes, tag)?;
            node.set_large(slot, is_large);
        }
        (slot, Some(StoredValue { tag, bytes, is_large })) => {
            let slot = mutant!(slot, InsertsBesideGhost => Err(slot.map_or_else(
                |slot| slot,
                |slot| { node.remove(slot); slot },
            )));
            let slot = node.insert_at(slot, key, bytes, tag)?;
            node.set_large(slot, is_large);
        }
        (Ok(slot), None) if !node.is_ghost(slot) => node.delete(slot),
        (_, None) => {}
    }
    Ok(())
}

impl Pool {
    /// Latches the leaf of a key exclusively.
    ///
    /// # Errors
    /// A page on the way is not in a frame.
    pub(crate) fn latch_leaf(&self, table: TableId, key: &[u8]) -> Result<Leaf<'_>, Missing> {
        let mut backoff = stillpoint_sync::Backoff::new();
        loop {
            if let Some(leaf) = self.latch_place(self.place(table, key)?) {
                return Ok(leaf);
            }
            backoff.wait();
        }
    }

    /// Latches the leaf of a place exclusively, if it has not changed since.
    #[inline]
    pub(crate) fn latch_place(&self, place: KeyPlace) -> Option<Leaf<'_>> {
        let latched = self.try_latch_seen(place.leaf)?;
        Some(Leaf { latched, slot: place.slot })
    }

    /// Longest key of a table, in bytes.
    pub(crate) fn key_bytes_max(&self) -> usize {
        node_key_bytes_max(self.page_bytes())
    }

    /// Longest value that lies in a leaf, in bytes.
    pub(crate) fn value_bytes_max(&self) -> usize {
        node_value_bytes_max(self.page_bytes())
    }
}
