//! Reclaims the nodes of deleted collections in the background.
//!
//! A command that deletes or overwrites a collection that is a tree changes the record of its key.
//! In the same transaction the command removes the nodes, if these are few. Otherwise the command
//! puts the header into the table of graves, under the incarnation. One event loop looks at the
//! graves in the background, and removes the nodes below each, a few in a transaction.
//!
//! The transactions of this event loop go to the log of one session. A grave is found only after
//! the commit that made it. The reclaim of its nodes depends on that commit, by the stamp of the
//! grave: no crash keeps the reclaim and loses the deletion. Children go before their parent, and
//! the grave goes last, so the event loop finds all remaining nodes after a crash. A grave that cannot
//! be read stays, since the names of its nodes are nowhere else.
//!
//! A collection that is built before its key has it has a grave, too. While it is built, its grave is left alone.

use std::collections::HashSet;

use stillpoint::{Batch, KeySet, Mode, Session, Slot, Stamp, TableId, Tx, TxError};

use super::node::entries;
use super::tree::Tree;
use super::{Elements, IS_TREE, SMALL_BYTES, node_key};
use crate::config::Db;
use crate::keyspace::databases::Keyspace;
use crate::keyspace::kinds::Kind;
use crate::keyspace::value::{Entry, INDEX_BYTES};
use crate::planted::mutant;

/// Nodes that one transaction removes.
const STEP: usize = 64;
/// Most nodes that a command removes when it deletes a collection.
pub(in crate::keyspace) const NODES_AT_ONCE: usize = 32;
/// Bytes of a grave before the header: the number of the database's table, and the kind.
pub(super) const GRAVE_HEAD: usize = 3;
/// Graves that one step of a scan looks at.
const SCAN: usize = 16;

/// What becomes of the nodes of a collection that loses its key.
#[derive(Debug, Default)]
pub(in crate::keyspace) struct Buried {
    /// Bytes of the nodes that the transaction removes.
    pub(in crate::keyspace) removed_bytes: usize,
    /// The collection whose nodes are removed later.
    left: Option<Box<Elements>>,
}

impl Buried {
    /// Number and bytes of the nodes that are removed later, about. Each counts as a leaf in the middle of its
    /// tree, since a long member has a leaf of its own. `slot` has the key of the collection.
    ///
    /// # Errors
    /// A node cannot be locked.
    pub(in crate::keyspace) fn left(
        &self,
        tx: &mut Tx<'_>,
        slot: Slot,
        nodes: TableId,
    ) -> Result<(usize, usize), TxError> {
        let Some(collection) = &self.left else { return Ok((0, 0)) };
        let (mut bytes, mut trees) = (0, 0);
        for tree in [&collection.tree, &collection.index].into_iter().filter(|it| it.height > 0) {
            bytes += leaf_bytes(tree, collection.keys.incarnation, tx, (slot, nodes))?;
            trees += 1;
        }
        let count = nodes_at_most(collection);
        Ok((count, count * (bytes / trees.max(1))))
    }
}

/// Bytes that a leaf in the middle of a tree takes. 0 if the tree is damaged.
fn leaf_bytes(
    tree: &Tree,
    incarnation: u64,
    tx: &mut Tx<'_>,
    (slot, nodes): (Slot, TableId),
) -> Result<usize, TxError> {
    let mut inner = tree.root.clone();
    for level in (0..tree.height).rev() {
        let children: Vec<u64> = entries(&inner, 0).map(|entry| entry.child).collect();
        let Some(&child) = children.get(children.len() / 2) else { return Ok(0) };
        let node = tx.key_under(slot, nodes, &node_key(incarnation, child), 0)?;
        if level == 0 {
            return Ok(tx.taken_bytes(node) + INDEX_BYTES);
        }
        inner = tx.value(node).map_or_else(Vec::new, |value| value.to_vec());
    }
    Ok(0)
}

/// A part of a collection that is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// An inner node whose children have not been listed yet.
    Inner { node: u64, height: u8 },
    /// A node whose children are gone.
    Node(u64),
    /// The grave itself.
    Grave,
}

/// The tables that hold the remains of a database's collections: nodes and graves.
#[derive(Clone, Copy, Debug)]
pub(in crate::keyspace) struct Remains {
    /// The number in the name of the database's table.
    pub(in crate::keyspace) place: Db,
    /// The table of the database's nodes.
    pub(in crate::keyspace) nodes: TableId,
    pub(in crate::keyspace) graves: TableId,
}

/// Removes the nodes of the collection at a slot, if it has nodes. A few nodes are removed at once.
/// For more nodes this writes a grave, and they are removed in the background. So a grave is small
/// beside the nodes that it stands for, and the graves of a full store fit into the reserve of memory.
pub(in crate::keyspace) fn bury(
    tx: &mut Tx<'_>,
    slot: Slot,
    remains: Remains,
) -> Result<Buried, TxError> {
    let Some(value) = tx.value(slot) else { return Ok(Buried::default()) };
    let Some((incarnation, grave)) = grave_of(remains.place, &Entry::new(value)) else {
        return Ok(Buried::default());
    };
    let kind = Kind::of(grave[GRAVE_HEAD - 1]);
    let collection = Elements::stored(kind, grave[GRAVE_HEAD..].to_vec());
    if let Some(few) = collection.as_ref().and_then(few_nodes) {
        // All of them are loaded together, if some are not in memory.
        for &node in &few {
            tx.ask_for(remains.nodes, &node_key(incarnation, node));
        }
        let mut removed_bytes = 0;
        for node in few {
            let node = tx.key_under(slot, remains.nodes, &node_key(incarnation, node), 0)?;
            removed_bytes += tx.taken_bytes(node) + INDEX_BYTES;
            tx.delete_slot(node)?;
        }
        return Ok(Buried { removed_bytes, left: None });
    }
    let at = tx.key_under(slot, remains.graves, &incarnation.to_be_bytes(), grave.len())?;
    mutant!(tx.put_slot(at, &grave), GraveForgotten => Ok(()))?;
    Ok(Buried { removed_bytes: 0, left: collection.map(Box::new) })
}

/// Nodes of a collection, at most: no node is without an element, and each has a number.
fn nodes_at_most(collection: &Elements) -> usize {
    let elements = collection.tree.len + collection.index.len;
    collection.keys.last.min(elements) as usize
}

/// All nodes of a collection, if these are few leaves.
fn few_nodes(collection: &Elements) -> Option<Vec<u64>> {
    let mut few = Vec::new();
    for tree in [&collection.tree, &collection.index] {
        match tree.height {
            0 => {}
            1 => few.extend(entries(&tree.root, 0).map(|entry| entry.child)),
            _ => return None,
        }
    }
    (few.len() <= NODES_AT_ONCE).then_some(few)
}

/// Whether a value is a collection with nodes, by its first eight bytes.
pub(in crate::keyspace) fn has_nodes(entry: &Entry<'_>) -> bool {
    let is_tree = || entry.u64_at(0).is_none_or(|head| head as u8 & IS_TREE != 0);
    entry.kind().elements().is_some() && is_tree()
}

/// The header of a collection for its grave, if the collection has nodes.
fn grave_of(place: Db, entry: &Entry<'_>) -> Option<(u64, Vec<u8>)> {
    entry.kind().elements()?;
    let mut flags = Vec::with_capacity(8);
    entry.copy_range_to(0, entry.len().min(1), &mut flags);
    if flags.first()? & IS_TREE == 0 {
        return None;
    }
    let mut header = Vec::with_capacity(entry.len());
    entry.copy_to(&mut header);
    grave_of_header(place, entry.kind(), &header)
}

/// The incarnation and the grave of a collection with this header.
pub(super) fn grave_of_header(place: Db, kind: Kind, header: &[u8]) -> Option<(u64, Vec<u8>)> {
    let [low, high] = place.to_le_bytes();
    let grave = [&[low, high, kind.tag()], header].concat();
    let incarnation = u64::from_le_bytes(*header.get(SMALL_BYTES..)?.first_chunk()?);
    Some((incarnation, grave))
}

/// A collection whose nodes are being removed.
#[derive(Debug)]
struct Burial {
    incarnation: u64,
    nodes: TableId,
    graves: TableId,
    left: Vec<Left>,
}

impl Burial {
    /// The burial of a grave; `None` if the bytes of the grave are no header of a tree.
    fn of(keyspace: &Keyspace, incarnation: u64, grave: &[u8]) -> Option<Self> {
        let (&[low, high, tag], header) = grave.split_first_chunk::<GRAVE_HEAD>()?;
        let nodes = keyspace.nodes_table_at(Db::from_le_bytes([low, high]))?;
        let Elements { keys, tree, index, .. } = Elements::stored(Kind::of(tag), header.to_vec())?;
        if keys.incarnation != incarnation {
            return None;
        }
        let left = vec![Left::Grave];
        let mut burial = Self { incarnation, nodes, graves: keyspace.graves, left };
        for tree in [tree, index].iter().filter(|tree| tree.height > 0) {
            let end = entries(&tree.root, 0).last().map_or(0, |entry| entry.end);
            if end != tree.root.len() {
                return None;
            }
            burial.add_children(&tree.root, tree.height);
        }
        Some(burial)
    }

    fn add_children(&mut self, inner: &[u8], height: u8) {
        self.left.extend(entries(inner, 0).map(|entry| match height {
            0 | 1 => Left::Node(entry.child),
            _ => Left::Inner { node: entry.child, height: height - 1 },
        }));
    }

    /// The number of nodes that the next transaction takes off the end of the list: one inner node
    /// to read, or several nodes to remove.
    fn next(&self) -> usize {
        match self.left.last() {
            Some(Left::Inner { .. }) => 1,
            _ => {
                let is_removed = |left: &&Left| !matches!(left, Left::Inner { .. });
                self.left.iter().rev().take(STEP).take_while(is_removed).count()
            }
        }
    }

    /// Runs one transaction; false if it failed.
    fn step(&mut self, session: &mut Session) -> bool {
        let first = self.left.len() - self.next();
        let mut step = Step { burial: self, first, children: None, done: false };
        session.execute(&mut step);
        let (children, done) = (step.children.take(), step.done);
        if done {
            let taken = self.left.split_off(first);
            if let (Some(children), Some(Left::Inner { node, height })) = (children, taken.first())
            {
                self.left.push(Left::Node(*node));
                self.add_children(&children, *height);
            }
        }
        done
    }
}

/// One transaction of a [`Burial`].
struct Step<'a> {
    burial: &'a Burial,
    first: usize,
    children: Option<Vec<u8>>,
    done: bool,
}

impl Batch for Step<'_> {
    fn len(&self) -> usize {
        1
    }

    fn declare(&mut self, _: usize, keys: &mut KeySet) {
        let Burial { incarnation, nodes, graves, left } = self.burial;
        let left = &left[self.first..];
        // The stamp of the grave is that of the commit that made it.
        let grave = mutant!(*incarnation, ReclaimBeforeClosed => {
            if left.contains(&Left::Grave) { *incarnation } else { !*incarnation }
        });
        keys.push(*graves, &grave.to_be_bytes(), Mode::Write, 0);
        for left in left {
            if let Left::Inner { node, .. } | Left::Node(node) = left {
                keys.push(*nodes, &node_key(*incarnation, *node), Mode::Write, 0);
            }
        }
    }

    fn run(&mut self, _: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        tx.use_reserve();
        let mut slot = 0;
        for left in &self.burial.left[self.first..] {
            slot += u32::from(*left != Left::Grave);
            match left {
                Left::Inner { .. } => {
                    self.children = Some(tx.value(Slot(slot)).map_or(Vec::new(), |v| v.to_vec()));
                }
                Left::Node(_) => tx.delete_slot(Slot(slot)).map(|_| ())?,
                Left::Grave => tx.delete_slot(Slot(0)).map(|_| ())?,
            }
        }
        Ok(())
    }

    fn ended(&mut self, _: usize, result: Result<Option<Stamp>, TxError>) {
        self.done = result.is_ok();
    }
}

/// Removes the nodes of deleted collections, some at a time.
#[derive(Debug, Default)]
pub(crate) struct Reclaimer {
    /// Incarnations of graves that were found, and whose burial has not begun.
    found: Vec<u64>,
    burial: Option<Burial>,
    /// Incarnations of the graves that cannot be read.
    unreadable: HashSet<u64>,
}

impl Reclaimer {
    /// Removes some nodes; true if there is more to do.
    pub(crate) fn step(&mut self, session: &mut Session, keyspace: &Keyspace) -> bool {
        let Some(burial) = &mut self.burial else {
            return self.begin(session, keyspace);
        };
        let done = burial.step(session);
        if !done {
            // The log or the memory has no room. The grave is found again.
            self.found.clear();
        }
        self.burial.take_if(|burial| !done || burial.left.is_empty());
        done
    }

    /// Begins the burial of a grave; false if there is none.
    fn begin(&mut self, session: &mut Session, keyspace: &Keyspace) -> bool {
        if self.found.is_empty() {
            self.find(session, keyspace);
        }
        let Some(incarnation) = self.found.pop() else { return false };
        let mut grave = Vec::new();
        let read = session.read(keyspace.graves, &incarnation.to_be_bytes(), &mut grave);
        match read {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
        // A header may have any length: an element that lies in it may.
        self.burial = Burial::of(keyspace, incarnation, &grave);
        if self.burial.is_none() {
            tracing::error!(
                incarnation = format_args!("{incarnation:016x}"),
                bytes = grave.len(),
                "the nodes of a deleted collection stay, since its grave cannot be read: run \
                 `stillpoint check --collections`"
            );
            self.unreadable.insert(incarnation);
            keyspace.note_unreadable_graves(self.unreadable.len() as u64);
        }
        true
    }

    /// Finds some graves.
    fn find(&mut self, session: &mut Session, keyspace: &Keyspace) {
        if !keyspace.has_all() {
            // A scan would wait for the load.
            return;
        }
        if !keyspace.has_unreadable_graves() {
            // A flush of all databases has removed them.
            self.unreadable.clear();
        }
        let mut cursor = 0;
        while keyspace.has_graves() {
            let Self { found, unreadable, .. } = self;
            let mut visit = |key: &[u8], _: stillpoint::ValueRef<'_>| {
                let incarnation = key.first_chunk::<8>().map(|key| u64::from_be_bytes(*key));
                let is_free = |grave: &u64| {
                    !unreadable.contains(grave) && !keyspace.constructions.has(*grave)
                };
                found.extend(incarnation.filter(is_free));
            };
            let step = session.scan_heads(keyspace.graves, cursor, SCAN, 0, &mut visit);
            cursor = step.unwrap_or(0);
            if cursor == 0 || !found.is_empty() {
                return;
            }
        }
    }
}
