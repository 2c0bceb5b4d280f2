//! Verification of stored collections: every count, order, level and owner.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use stillpoint::ValueRef;

use super::bulk::Contents;
use super::members::index_elements;
use super::node::{elements, entries};
use super::reclaim::GRAVE_HEAD;
use super::sorting::divided_score;
use super::tags::{Score, tag_in};
use super::times::{time_of, timed};
use super::{Elements, IS_TREE, NODE_KEY_BYTES};
use crate::config::Db;
use crate::keyspace::kinds::{Kind, Order};
use crate::keyspace::value::{Entry, database_of, nodes_database_of};

/// A fault of a stored collection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectionFault {
    /// The record of the key is no collection of its kind.
    #[error("its record of {bytes} bytes is no {kind}")]
    Header {
        /// The kind, as `TYPE` names it.
        kind: &'static str,
        /// Bytes of the record.
        bytes: usize,
    },
    /// A node is missing, or two parents have it.
    #[error("node {node} is missing, or has two parents")]
    NodeMissing {
        /// The number of the node.
        node: u64,
    },
    /// The bytes of a node are no node of its level.
    #[error("node {node} (0: the root) does not hold what its level must")]
    NodeDamaged {
        /// The number of the node; 0 is the root.
        node: u64,
    },
    /// A count is not the number of elements.
    #[error("{counted} elements are counted below node {node} (0: all), and {found} are there")]
    Count {
        /// The node below the entry with the count; 0 for the header.
        node: u64,
        /// The count.
        counted: u64,
        /// Elements that the collection has.
        found: u64,
    },
    /// An element is at a wrong place of the order.
    #[error("an element of node {node} (0: the root) is not where its order puts it")]
    Order {
        /// The node with the element; 0 is the root.
        node: u64,
    },
    /// The index of a sorted set does not hold its elements.
    #[error("the index by member does not hold the elements of the tree")]
    Index,
    /// The index of a hash by time, or its earliest expiry, does not fit its fields.
    #[error("the index by time, or the earliest expiry, does not fit the fields")]
    Times,
    /// Another collection or grave has the same incarnation.
    #[error("another collection has its incarnation {incarnation:016x}, too")]
    SharedIncarnation {
        /// The incarnation.
        incarnation: u64,
    },
    /// Nodes that belong to no collection and to no grave.
    #[error("{nodes} nodes of incarnation {incarnation:016x} belong to no collection")]
    LostNodes {
        /// The incarnation.
        incarnation: u64,
        /// The nodes.
        nodes: u64,
    },
}

/// A fault, with the place where it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("table {table}, key {key:?}: {fault}; delete the key, or restore an older checkpoint")]
pub struct DamagedCollection {
    /// The table.
    pub table: String,
    /// The key, as far as it is text.
    pub key: String,
    /// The fault.
    pub fault: CollectionFault,
}

type NodesById = HashMap<u64, Box<[u8]>>;

/// A collection that has nodes.
#[derive(Debug)]
struct Owner {
    table: String,
    key: String,
    db: Db,
    collection: Elements,
}

/// Verifies all collections of a directory. The caller passes the records one by one.
#[derive(Debug, Default)]
pub struct CollectionCheck {
    nodes: HashMap<(Db, u64), NodesById>,
    owners: Vec<Owner>,
    damage: Vec<DamagedCollection>,
    collections: u64,
    graves: u64,
    kinds: Vec<CollectionsOfKind>,
}

/// The collections of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectionsOfKind {
    /// The kind, as `TYPE` names it.
    pub name: &'static str,
    /// Collections, small ones included.
    pub collections: u64,
    /// Their elements, expired ones included.
    pub elements: u64,
    /// Their nodes.
    pub nodes: u64,
    /// Bytes of their values: the records of the keys and of the nodes, without keys.
    pub bytes: u64,
    /// Elements of the largest one.
    pub most_elements: u64,
    /// The table of the largest one.
    pub largest_table: String,
    /// The key of the largest one, as far as it is text.
    pub largest_key: String,
}

/// The result of a verification.
#[derive(Debug, Default)]
pub struct VerifiedCollections {
    /// Collections, small ones included.
    pub collections: u64,
    /// Collections that are gone, and whose nodes have not been removed yet.
    pub graves: u64,
    /// Nodes.
    pub nodes: u64,
    /// The collections by their kinds, in the order of the kinds' names.
    pub kinds: Vec<CollectionsOfKind>,
    /// The damaged collections.
    pub damage: Vec<DamagedCollection>,
}

impl CollectionCheck {
    /// Takes a record of a database, of a database's nodes, or of the graves. Other records are
    /// ignored.
    pub fn add(&mut self, table: &str, key: &[u8], value: ValueRef<'_>) {
        if let Some(db) = nodes_database_of(table) {
            let parts = key.split_first_chunk::<8>();
            let node = parts.and_then(|(head, rest)| Some((head, rest.first_chunk::<8>()?)));
            let Some((incarnation, node)) = node.filter(|_| key.len() == NODE_KEY_BYTES) else {
                return;
            };
            let (incarnation, node) = (u64::from_be_bytes(*incarnation), u64::from_be_bytes(*node));
            let of = self.nodes.entry((db, incarnation)).or_default();
            of.insert(node, value.to_vec().into());
            return;
        }
        if table == super::super::databases::GRAVES {
            self.graves += 1;
            let grave = value.to_vec();
            let parts = grave.split_first_chunk::<GRAVE_HEAD>();
            let (&[low, high, kind], header) = parts.unwrap_or((&[0; GRAVE_HEAD], &[]));
            let db = Db::from_le_bytes([low, high]);
            self.header((table, key), db, Kind::of(kind), header.to_vec());
            return;
        }
        let Some(db) = database_of(table) else { return };
        let entry = Entry::new(value);
        if entry.kind().elements().is_some() {
            self.collections += 1;
            let mut header = Vec::with_capacity(entry.len());
            entry.copy_to(&mut header);
            self.header((table, key), db, entry.kind(), header);
        }
    }

    fn header(&mut self, (table, key): (&str, &[u8]), db: Db, kind: Kind, header: Vec<u8>) {
        let bytes = header.len();
        let is_tree = header.first().is_some_and(|flags| flags & IS_TREE != 0);
        let (table, key) = (table.to_owned(), String::from_utf8_lossy(key).into_owned());
        let Some(collection) = Elements::stored(kind, header) else {
            let fault = CollectionFault::Header { kind: kind.name(), bytes };
            return self.damage.push(DamagedCollection { table, key, fault });
        };
        let owner = Owner { table, key, db, collection };
        if is_tree {
            return self.owners.push(owner);
        }
        self.count(&owner, (0, 0));
        if let Err(fault) = verify(&owner.collection, &mut NodesById::new()) {
            self.damage.push(DamagedCollection { table: owner.table, key: owner.key, fault });
        }
    }

    /// Counts a collection with its number of nodes and their bytes.
    fn count(&mut self, owner: &Owner, (nodes, node_bytes): (u64, u64)) {
        let Owner { table, key, collection, .. } = owner;
        let name = collection.kind.name();
        let at = self.kinds.binary_search_by(|of| of.name.cmp(name)).unwrap_or_else(|at| {
            let empty = CollectionsOfKind {
                name,
                collections: 0,
                elements: 0,
                nodes: 0,
                bytes: 0,
                most_elements: 0,
                largest_table: String::new(),
                largest_key: String::new(),
            };
            self.kinds.insert(at, empty);
            at
        });
        let (of, elements) = (&mut self.kinds[at], collection.tree.len);
        of.collections += 1;
        of.elements += elements;
        of.nodes += nodes;
        of.bytes += collection.old.len() as u64 + node_bytes;
        if elements > of.most_elements {
            of.most_elements = elements;
            (of.largest_table, of.largest_key) = (table.clone(), key.clone());
        }
    }

    /// Verifies the records that were passed.
    pub fn finish(mut self) -> VerifiedCollections {
        let nodes = self.nodes.values().map(|nodes| nodes.len() as u64).sum();
        let mut seen = std::collections::HashSet::new();
        for owner in std::mem::take(&mut self.owners) {
            let incarnation = owner.collection.keys.incarnation;
            let is_grave = owner.table == super::super::databases::GRAVES;
            let mut own = self.nodes.remove(&(owner.db, incarnation)).unwrap_or_default();
            if !is_grave {
                let bytes = own.values().map(|node| node.len() as u64).sum();
                self.count(&owner, (own.len() as u64, bytes));
            }
            let Owner { table, key, db, collection } = owner;
            let fault = if !seen.insert((db, incarnation)) {
                Some(CollectionFault::SharedIncarnation { incarnation })
            } else if is_grave {
                // Some nodes of a grave's collection may be removed already.
                own.clear();
                None
            } else {
                verify(&collection, &mut own).err()
            };
            if let Some(fault) = fault {
                self.damage.push(DamagedCollection { table, key, fault });
            } else if !own.is_empty() {
                let fault = CollectionFault::LostNodes { incarnation, nodes: own.len() as u64 };
                self.damage.push(DamagedCollection { table, key, fault });
            }
        }
        for ((db, incarnation), lost) in self.nodes {
            let fault = CollectionFault::LostNodes { incarnation, nodes: lost.len() as u64 };
            let table = crate::keyspace::value::nodes_table_name(db);
            self.damage.push(DamagedCollection { table, key: String::new(), fault });
        }
        let Self { collections, graves, kinds, damage, .. } = self;
        VerifiedCollections { collections, graves, nodes, kinds, damage }
    }
}

/// Verifies a collection, and takes its nodes out of `nodes`.
fn verify(collection: &Elements, nodes: &mut NodesById) -> Result<(), CollectionFault> {
    let (hashes, name) = (collection.hashes(), collection.rules.name);
    let order = collection.rules.order;
    let tree = &collection.tree;
    let mut contents = Vec::new();
    let mut walk = TreeVerifier {
        nodes,
        places: &|content| match order {
            Order::Position => None,
            Order::Contents => Some(Places::one(content)),
            Order::Names if tree.height == 0 => None,
            Order::Names => Some(Places::of(hashes.of(content))),
        },
        is_sorted: order == Order::Contents && tree.height == 0,
        is_counted: true,
        divided: Vec::new(),
        visit: &mut |content| contents.push(content.to_vec()),
    };
    let found = walk.node((0, &tree.root), tree.height, (&[], None))?;
    let divided = walk.divided;
    if found != tree.len || found == 0 {
        return Err(CollectionFault::Count { node: 0, counted: tree.len, found });
    }
    if order == Order::Position {
        return Ok(());
    }
    if !differ(contents.iter().map(|content| name(content))) {
        return Err(CollectionFault::Order { node: 0 });
    }
    match order {
        Order::Names => verify_times(collection, nodes, &contents),
        _ if tree.height == 0 => Ok(()),
        _ => verify_members(collection, nodes, &contents, divided),
    }
}

/// Verifies the index of a sorted set. `divided` has the scores that separators of the tree divide.
fn verify_members(
    collection: &Elements,
    nodes: &mut NodesById,
    contents: &[Vec<u8>],
    mut divided: Vec<Score>,
) -> Result<(), CollectionFault> {
    let (index, hashes) = (&collection.index, collection.member_hashes());
    let (mut whole, mut short) = (Vec::new(), Vec::new());
    let mut walk = TreeVerifier {
        nodes,
        places: &|content| (index.height > 0).then(|| Places::of(hashes.of(content))),
        is_sorted: false,
        is_counted: index.is_counted,
        divided: Vec::new(),
        visit: &mut |content| match tag_in(content) {
            Some(_) => short.push(content.to_vec()),
            None => whole.push(content.to_vec()),
        },
    };
    walk.node((0, &index.root), index.height, (&[], None))?;
    divided.sort_unstable();
    whole.sort_unstable();
    let count = whole.len() + short.len();
    let all: Vec<&[u8]> = contents.iter().map(|content| &content[..]).collect();
    let must_be_whole = |element: &[u8]| tag_in(element).is_none();
    // An element may be whole without need, and is not short then.
    let wanted: Contents = index_elements(&hashes, &divided, &all);
    let is_whole = |content: &[u8]| whole.binary_search_by(|other| other[..].cmp(content)).is_ok();
    let rest: Vec<&[u8]> = all.iter().copied().filter(|content| !is_whole(content)).collect();
    let all_needed = wanted.iter().filter(|e| must_be_whole(e)).all(is_whole);
    let mut wanted: Vec<Vec<u8>> =
        index_elements(&hashes, &divided, &rest).iter().map(<[u8]>::to_vec).collect();
    wanted.sort_unstable();
    short.sort_unstable();
    let is_sound = all_needed && wanted == short && count == contents.len();
    if is_sound { Ok(()) } else { Err(CollectionFault::Index) }
}

/// Verifies the earliest expiry of a hash's elements, and the index by time.
fn verify_times(
    collection: &Elements,
    nodes: &mut NodesById,
    contents: &[Vec<u8>],
) -> Result<(), CollectionFault> {
    let expiry = collection.rules.times.as_ref().map(|times| times.expiry);
    let name = collection.rules.name;
    let times = contents.iter().filter_map(|content| Some((expiry?(content)?, content)));
    let mut want: Vec<Vec<u8>> = times.map(|(at, content)| timed(at, name(content))).collect();
    want.sort_unstable();
    let earliest = want.first().and_then(|first| time_of(first));
    if earliest != collection.earliest() {
        return Err(CollectionFault::Times);
    }
    if collection.tree.height == 0 {
        return Ok(());
    }
    let index = &collection.index;
    let mut indexed = Vec::with_capacity(want.len());
    let mut walk = TreeVerifier {
        nodes,
        places: &|content| Some(Places::one(content)),
        is_sorted: index.height == 0,
        is_counted: index.is_counted,
        divided: Vec::new(),
        visit: &mut |content| indexed.push(content.to_vec()),
    };
    walk.node((0, &index.root), index.height, (&[], None))?;
    indexed.sort_unstable();
    if indexed == want { Ok(()) } else { Err(CollectionFault::Times) }
}

fn differ<'a>(mut names: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut seen = std::collections::HashSet::new();
    names.all(|name| seen.insert(name))
}

/// The first and the last place that an element may have in the order.
struct Places(Vec<u8>, Vec<u8>);

impl Places {
    fn one(place: &[u8]) -> Self {
        Self(place.to_vec(), place.to_vec())
    }

    fn of(hashes: RangeInclusive<u64>) -> Self {
        Self(hashes.start().to_be_bytes().to_vec(), hashes.end().to_be_bytes().to_vec())
    }
}

/// A visit of all nodes of a tree.
struct TreeVerifier<'a> {
    nodes: &'a mut NodesById,
    /// The places of an element in the order. `None` for a list.
    places: &'a dyn Fn(&[u8]) -> Option<Places>,
    /// Whether the elements of one leaf are also in order.
    is_sorted: bool,
    /// Whether inner nodes count the elements below their entries.
    is_counted: bool,
    /// The scores that separators divide, if the tree is that of a sorted set.
    divided: Vec<Score>,
    visit: &'a mut dyn FnMut(&[u8]),
}

impl TreeVerifier<'_> {
    /// Verifies a subtree, whose elements are from the first bound on and before the second.
    /// Returns the number of elements of the subtree.
    fn node(
        &mut self,
        (node, bytes): (u64, &[u8]),
        height: u8,
        (from, to): (&[u8], Option<&[u8]>),
    ) -> Result<u64, CollectionFault> {
        if height == 0 {
            return self.leaf((node, bytes), (from, to));
        }
        let all: Vec<_> = entries(bytes, 0).collect();
        if all.last().is_none_or(|last| last.end != bytes.len()) {
            return Err(CollectionFault::NodeDamaged { node });
        }
        let mut found = 0;
        for (i, entry) in all.iter().enumerate() {
            let from = if i == 0 { from } else { entry.separator };
            let to = all.get(i + 1).map_or(to, |next| Some(next.separator));
            self.divided.extend(divided_score(entry.separator).filter(|_| i > 0));
            if to.is_some_and(|to| from > to) {
                return Err(CollectionFault::Order { node });
            }
            let missing = CollectionFault::NodeMissing { node: entry.child };
            let child = self.nodes.remove(&entry.child).ok_or(missing)?;
            let below = self.node((entry.child, &child), height - 1, (from, to))?;
            if (self.is_counted && below != entry.below) || below == 0 {
                let (node, counted) = (entry.child, entry.below);
                return Err(CollectionFault::Count { node, counted, found: below });
            }
            found += below;
        }
        Ok(found)
    }

    fn leaf(
        &mut self,
        (node, bytes): (u64, &[u8]),
        (from, to): (&[u8], Option<&[u8]>),
    ) -> Result<u64, CollectionFault> {
        let (mut found, mut end, mut last) = (0, 0, None);
        for element in elements(bytes, 0) {
            (found, end) = (found + 1, element.end);
            (self.visit)(element.content);
            let Some(Places(first, most)) = (self.places)(element.content) else { continue };
            let is_behind = to.is_some_and(|to| *first >= *to);
            let is_unsorted = self.is_sorted && last.as_ref().is_some_and(|last| *last >= first);
            if *most < *from || is_behind || is_unsorted {
                return Err(CollectionFault::Order { node });
            }
            last = Some(first);
        }
        if end != bytes.len() {
            return Err(CollectionFault::NodeDamaged { node });
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
