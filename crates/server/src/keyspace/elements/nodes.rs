//! The nodes of a collection, inside a transaction.
//!
//! A node that was read stays open. Changes are made to the open node. They reach the record of the node when
//! the collection is saved. So the record is read once, and the log gets each changed range once, however many
//! changes came before.

use std::ops::Range;
use std::sync::Arc;

use stillpoint::{Slot, TableId, Tx, TxError};

use super::changes::{SPLICE_BYTES, changed_range, changed_ranges, removed_ranges};
use super::tree::{NodeBytes, Nodes, PACKED_BYTES_MAX, damaged};
use crate::keyspace::encoding::splice;

/// Nodes that are open at once, at most. With more of them, the changed ones are written and all are closed.
const OPEN_MAX: usize = 64;
/// Bytes of open nodes after which no further node is opened beside them. A node may have one long element.
const OPEN_BYTES_MAX: usize = 256 << 10;
/// A longer buffer of a node is not used again.
const SPARE_BYTES_MAX: usize = 4 * PACKED_BYTES_MAX;

/// Bytes of a node's key.
pub(in crate::keyspace) const NODE_KEY_BYTES: usize = 16;

/// The key of a node.
pub(super) fn node_key(incarnation: u64, node: u64) -> [u8; NODE_KEY_BYTES] {
    let mut key = [0; NODE_KEY_BYTES];
    key[..8].copy_from_slice(&incarnation.to_be_bytes());
    key[8..].copy_from_slice(&node.to_be_bytes());
    key
}

/// Ranges of a record, at most, that are noted one by one.
const RANGES_MAX: usize = 4;

/// What distinguishes an open node from its record.
#[derive(Debug)]
enum Change {
    /// Nothing.
    None,
    /// There is no record yet.
    New,
    /// The record has `len` bytes, and differs in these ranges. What the node has behind them is not in it. Empty
    /// ranges come last, and stand for none.
    Ranges { len: usize, ranges: [Range<usize>; RANGES_MAX] },
    /// Anything. The two are compared.
    Any,
}

impl Change {
    /// Notes that bytes are appended to a node of `len` bytes.
    fn append(&mut self, len: usize) {
        if matches!(self, Self::None) {
            *self = Self::Ranges { len, ranges: std::array::from_fn(|_| 0..0) };
        }
    }

    /// Notes that a range of a node of `len` bytes is overwritten.
    fn overwrite(&mut self, len: usize, range: Range<usize>) {
        self.append(len);
        let Self::Ranges { len, ranges } = self else { return };
        let range = range.start..range.end.min(*len);
        if range.is_empty() {
            return;
        }
        let meets = |noted: &&mut Range<usize>| {
            noted.start == noted.end || (noted.start <= range.end && range.start <= noted.end)
        };
        match ranges.iter_mut().find(meets) {
            Some(noted) if noted.start == noted.end => *noted = range,
            Some(noted) => *noted = noted.start.min(range.start)..noted.end.max(range.end),
            None => *self = Self::Any,
        }
    }

    /// Notes any other change.
    fn replace(&mut self) {
        if !matches!(self, Self::New) {
            *self = Self::Any;
        }
    }
}

/// Buffers of nodes that are open no more, to be used again.
#[derive(Debug, Default)]
pub(in crate::keyspace) struct SpareNodes(Vec<NodeBytes>);

impl SpareNodes {
    /// An empty buffer with room for a node.
    fn take(&mut self) -> NodeBytes {
        let mut bytes = self.0.pop().unwrap_or_default();
        let own = Arc::make_mut(&mut bytes);
        own.clear();
        own.reserve(PACKED_BYTES_MAX);
        bytes
    }

    /// Takes the buffers of nodes that nobody else has open.
    fn put(&mut self, nodes: impl Iterator<Item = OpenNode>) {
        let is_free = |bytes: &NodeBytes| {
            Arc::strong_count(bytes) == 1 && bytes.capacity() <= SPARE_BYTES_MAX
        };
        let free = nodes.map(|open| open.bytes).filter(is_free);
        self.0.extend(free.take(OPEN_MAX - self.0.len().min(OPEN_MAX)));
    }
}

/// A node that the transaction has read or made.
#[derive(Debug)]
struct OpenNode {
    /// The slot of its record. `None` for a record that does not exist yet, and for one that was read without
    /// its lock.
    slot: Option<Slot>,
    bytes: NodeBytes,
    change: Change,
}

/// Where the nodes of a collection are, and those that are open.
#[derive(Debug)]
pub(super) struct NodeKeys {
    /// The key whose lock covers the nodes.
    pub(super) parent: Slot,
    table: TableId,
    pub(super) incarnation: u64,
    /// The last number that was given to a node.
    pub(super) last: u64,
    /// The numbers of the open nodes.
    numbers: Vec<u64>,
    /// The open nodes, in the order of `numbers`.
    open: Vec<OpenNode>,
    /// Bytes that were read into open nodes or written to them.
    open_bytes: usize,
    pub(super) spare: SpareNodes,
}

impl NodeKeys {
    pub(super) fn new(parent: Slot, table: TableId) -> Self {
        let (numbers, open, spare) = (Vec::new(), Vec::new(), SpareNodes::default());
        Self { parent, table, incarnation: 0, last: 0, numbers, open, open_bytes: 0, spare }
    }

    /// Lends the open nodes out, until [`give_back`](Self::give_back).
    pub(super) fn lend(&mut self) -> Self {
        let (numbers, open) = (std::mem::take(&mut self.numbers), std::mem::take(&mut self.open));
        let spare = std::mem::take(&mut self.spare);
        Self { numbers, open, spare, ..*self }
    }

    /// Takes back what was lent.
    pub(super) fn give_back(&mut self, lent: Self) {
        let Self { last, numbers, open, open_bytes, spare, .. } = lent;
        (self.last, self.open_bytes, self.spare) = (last, open_bytes, spare);
        (self.numbers, self.open) = (numbers, open);
    }

    /// Closes the open nodes, whose changes are written.
    pub(super) fn close(&mut self) {
        self.numbers.clear();
        self.open_bytes = 0;
        self.spare.put(self.open.drain(..));
    }

    fn place(&self, node: u64) -> Option<usize> {
        self.numbers.iter().position(|number| *number == node)
    }

    fn push(&mut self, node: u64, open: OpenNode) -> &mut OpenNode {
        if self.open.capacity() == 0 {
            self.numbers.reserve_exact(OPEN_MAX);
            self.open.reserve_exact(OPEN_MAX);
        }
        self.open_bytes += open.bytes.len();
        self.numbers.push(node);
        let at = self.open.len();
        self.open.push(open);
        &mut self.open[at]
    }
}

/// The nodes of a collection, inside a transaction.
pub(super) struct TxNodes<'a, 't> {
    pub(super) keys: &'a mut NodeKeys,
    pub(super) tx: &'a mut Tx<'t>,
}

impl TxNodes<'_, '_> {
    /// The slot of the record of a node, which has room for so many bytes if it is new.
    fn slot_for(&mut self, node: u64, len: usize) -> Result<Slot, TxError> {
        let NodeKeys { parent, table, incarnation, .. } = *self.keys;
        self.tx.key_under(parent, table, &node_key(incarnation, node), len)
    }

    /// The node, which is opened if it is not open.
    fn opened(&mut self, node: u64) -> Result<&mut OpenNode, TxError> {
        if let Some(at) = self.keys.place(node) {
            return Ok(&mut self.keys.open[at]);
        }
        self.make_room()?;
        let mut bytes = self.keys.spare.take();
        let own = Arc::make_mut(&mut bytes);
        let slot = match self.slot_for(node, 0) {
            Ok(slot) => {
                self.tx.value(slot).ok_or_else(damaged)?.copy_to(own);
                Some(slot)
            }
            // A command that only reads one key holds no lock.
            Err(TxError::NotLocked) => {
                self.read_unlocked(node, own)?;
                None
            }
            Err(error) => return Err(error),
        };
        Ok(self.keys.push(node, OpenNode { slot, bytes, change: Change::None }))
    }

    /// Reads a node of a collection whose key was read without its lock.
    fn read_unlocked(&mut self, node: u64, bytes: &mut Vec<u8>) -> Result<(), TxError> {
        let NodeKeys { parent, table, incarnation, .. } = *self.keys;
        match self.tx.read_under(parent, table, &node_key(incarnation, node), bytes)? {
            true => Ok(()),
            false => Err(damaged()),
        }
    }

    /// Makes room for another open node.
    fn make_room(&mut self) -> Result<(), TxError> {
        if self.keys.open.len() < OPEN_MAX && self.keys.open_bytes < OPEN_BYTES_MAX {
            return Ok(());
        }
        self.write_back()?;
        self.keys.close();
        Ok(())
    }

    /// Gives each record what its open node has.
    ///
    /// # Errors
    /// The store refuses a write.
    pub(super) fn write_back(&mut self) -> Result<(), TxError> {
        for at in 0..self.keys.open.len() {
            let open = &mut self.keys.open[at];
            let change = std::mem::replace(&mut open.change, Change::None);
            if matches!(change, Change::None) {
                continue;
            }
            let (slot, bytes) = (open.slot, Arc::clone(&open.bytes));
            let slot = match slot {
                Some(slot) => slot,
                None => self.slot_for(self.keys.numbers[at], bytes.len())?,
            };
            self.keys.open[at].slot = Some(slot);
            self.change_record(slot, &bytes, change)?;
        }
        Ok(())
    }

    /// Gives the record of a node its new bytes. The log gets what differs.
    fn change_record(&mut self, slot: Slot, new: &[u8], change: Change) -> Result<(), TxError> {
        match change {
            Change::None => Ok(()),
            Change::New => self.tx.put_slot(slot, new),
            Change::Ranges { len, ranges } => {
                for range in ranges.into_iter().take_while(|range| !range.is_empty()) {
                    self.tx.patch_slot(slot, range.start, &new[range])?;
                }
                match &new[len..] {
                    [] => Ok(()),
                    added => self.tx.patch_slot(slot, len, added),
                }
            }
            Change::Any => {
                let old = self.tx.value(slot).ok_or_else(damaged)?.to_vec();
                write_difference(self.tx, slot, &old, new)
            }
        }
    }
}

impl Nodes for TxNodes<'_, '_> {
    fn ask_for(&mut self, node: u64) -> bool {
        self.keys.place(node).is_some()
            || self.tx.ask_for(self.keys.table, &node_key(self.keys.incarnation, node))
    }

    fn read(&mut self, node: u64) -> Result<NodeBytes, TxError> {
        Ok(Arc::clone(&self.opened(node)?.bytes))
    }

    fn write(&mut self, node: u64, bytes: Vec<u8>) -> Result<(), TxError> {
        let written = bytes.len();
        let open = self.opened(node)?;
        open.change.replace();
        open.bytes = Arc::new(bytes);
        self.keys.open_bytes += written;
        Ok(())
    }

    fn splice(&mut self, node: u64, range: Range<usize>, bytes: &[u8]) -> Result<(), TxError> {
        let OpenNode { bytes: own, change, .. } = self.opened(node)?;
        let own = Arc::make_mut(own);
        let (start, len) = (range.start, own.len());
        match own.get_mut(range.clone()).ok_or_else(damaged)? {
            old if old.len() == bytes.len() => {
                let changed = changed_range(old, bytes);
                old.copy_from_slice(bytes);
                change.overwrite(len, start + changed.start..start + changed.end);
            }
            [] if start == len => {
                own.extend_from_slice(bytes);
                change.append(len);
            }
            _ => {
                splice(own, range, bytes);
                change.replace();
            }
        }
        self.keys.open_bytes += bytes.len();
        Ok(())
    }

    fn add(&mut self, bytes: Vec<u8>) -> Result<u64, TxError> {
        self.make_room()?;
        self.keys.last += 1;
        let open = OpenNode { slot: None, bytes: Arc::new(bytes), change: Change::New };
        self.keys.push(self.keys.last, open);
        Ok(self.keys.last)
    }

    fn remove(&mut self, node: u64) -> Result<(), TxError> {
        let mut slot = None;
        if let Some(at) = self.keys.place(node) {
            self.keys.numbers.swap_remove(at);
            let open = self.keys.open.swap_remove(at);
            if matches!(open.change, Change::New) {
                return Ok(());
            }
            slot = open.slot;
        }
        let slot = match slot {
            Some(slot) => slot,
            None => self.slot_for(node, 0)?,
        };
        self.tx.delete_slot(slot).map(|_| ())
    }
}

/// Gives a record new bytes in place of `old`. The log gets what differs.
fn write_difference(tx: &mut Tx<'_>, slot: Slot, old: &[u8], new: &[u8]) -> Result<(), TxError> {
    if let Some((kept, added)) = new.split_at_checked(old.len()) {
        let ranges = changed_ranges(old, kept);
        let changed: usize = ranges.iter().map(|range| SPLICE_BYTES + range.len()).sum();
        if added.is_empty() || changed <= old.len() / 4 {
            for range in ranges {
                tx.patch_slot(slot, range.start, &new[range])?;
            }
            return if added.is_empty() { Ok(()) } else { tx.patch_slot(slot, old.len(), added) };
        }
    }
    match removed_ranges(old, new) {
        Some(removed) => remove_ranges(tx, slot, old, new, &removed),
        None => patch_or_splice(tx, slot, 0, old, new),
    }
}

/// Gives a record new bytes in place of `old`, from byte `skip` on. The log gets the range in which
/// they differ.
pub(super) fn patch_or_splice(
    tx: &mut Tx<'_>,
    slot: Slot,
    skip: usize,
    old: &[u8],
    new: &[u8],
) -> Result<(), TxError> {
    let changed = changed_range(old, new);
    let removed = old.len() + changed.len() - new.len();
    let (at, bytes) = (skip + changed.start, &new[changed]);
    match bytes.len() {
        0 if removed == 0 => Ok(()),
        len if len == removed => tx.patch_slot(slot, at, bytes),
        _ => tx.splice_slot(slot, at, removed, bytes),
    }
}

/// Removes ranges of a record, and appends what `new` has behind the kept bytes.
fn remove_ranges(
    tx: &mut Tx<'_>,
    slot: Slot,
    old: &[u8],
    new: &[u8],
    ranges: &[Range<usize>],
) -> Result<(), TxError> {
    // The last range comes first, so that the others stay where they are.
    for range in ranges.iter().rev() {
        tx.splice_slot(slot, range.start, range.len(), &[])?;
    }
    let kept = old.len() - ranges.iter().map(Range::len).sum::<usize>();
    match &new[kept..] {
        [] => Ok(()),
        added => tx.splice_slot(slot, kept, 0, added),
    }
}
