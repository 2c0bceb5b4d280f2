//! Collections: the elements of a hash, a list, a set or a sorted set.
//!
//! The record of a key holds a header and the root of a tree of elements:
//!
//! ```text
//! small   flags (u8), elements (u32), [earliest (u64)], leaf
//! tree    flags (u8), elements (u32), incarnation (u64), last node (u64),
//!         height (u8), height of the index (u8), length of the root (u32), [earliest (u64)],
//!         root, root of the index
//! ```
//! Each other node is a record of the table `db<n>.nodes` whose key is the incarnation and the
//! number of the node, 8 bytes each, big-endian. A transaction that reads or changes a node holds
//! the lock of the key, so no transaction waits for the lock of a node. A transaction that changes
//! a node also changes the record of the key, so that `WATCH` and readers see the change.
//!
//! A sorted set that has grown has an index beside its tree: the same elements by their members
//! (`members`). A grown hash whose fields expire has an index by time (`times`).

mod bulk;
mod changes;
mod drafts;
mod members;
mod node;
mod nodes;
mod reclaim;
mod sorting;
mod tags;
mod times;
mod tree;
mod verify;
mod visits;

use stillpoint::{KeyHasher, Slot, TableId, Tx, TxError};

pub(crate) use bulk::{Contents, ranges_of};
pub(super) use drafts::{Constructions, KeyStamps};
pub(crate) use drafts::{Draft, Drafting, Written};
pub(crate) use reclaim::Reclaimer;
pub(super) use reclaim::{NODES_AT_ONCE, Remains, bury, has_nodes};
pub(super) use times::earliest_expiry;
pub use verify::{
    CollectionCheck, CollectionFault, CollectionsOfKind, DamagedCollection, VerifiedCollections,
};

use super::kinds::{ElementRules, Kind, Order, SmallLimits};
use super::value::RECORD_OVERHEAD;
use crate::planted::mutant;
use members::Found;
pub(super) use nodes::{NODE_KEY_BYTES, SpareNodes};
use nodes::{NodeKeys, TxNodes, node_key, patch_or_splice};
use sorting::{Hashes, Sorting};
use times::{EARLIEST_BYTES, IS_TIMED, NEVER};
use tree::{PACKED_BYTES_MAX, Tree, TreePosition, damaged};

/// The flag of a collection whose nodes are records of their own.
const IS_TREE: u8 = 1;
/// The flag of a collection that `OBJECT ENCODING` calls large for ever.
const IS_LARGE: u8 = 2;
/// Bytes before the leaf of a small collection, or before the earliest expiry.
const SMALL_BYTES: usize = 5;
/// Bytes before the root of a tree, or before the earliest expiry.
const TREE_BYTES: usize = 27;

/// Bytes of a collection, at most, that tell when its elements expire.
pub(super) const HEAD_BYTES_MAX: usize = TREE_BYTES + EARLIEST_BYTES;

/// The number of elements that the head of a collection tells.
pub(super) fn len_in_head(head: &[u8]) -> Option<u64> {
    Some(u64::from(u32::from_le_bytes(*head.get(1..)?.first_chunk()?)))
}

/// Bytes before the elements of a collection with these flags.
fn head_bytes(flags: u8) -> usize {
    let times = if flags & IS_TIMED == 0 { 0 } else { EARLIEST_BYTES };
    times + if flags & IS_TREE == 0 { SMALL_BYTES } else { TREE_BYTES }
}

/// A collection, open in a transaction. Changes reach the key when the keyspace saves the collection.
#[derive(Debug)]
pub(crate) struct Elements {
    kind: Kind,
    rules: &'static ElementRules,
    keys: NodeKeys,
    /// An incarnation for the tree that this collection may become.
    next_incarnation: u64,
    flags: u8,
    tree: Tree,
    /// The index of a large sorted set: its elements by their members. Of a large hash: the fields
    /// with an expiry, in the order of time.
    index: Tree,
    /// The earliest expiry of an element, in milliseconds since the Unix epoch; `NEVER` for none.
    earliest: u64,
    /// The time by which elements are judged. An expired element counts as missing.
    pub(super) now_ms: u64,
    /// Up to where `OBJECT ENCODING` calls the collection small.
    pub(super) small: SmallLimits,
    /// The value as it was when the collection was opened; empty for a new one.
    old: Vec<u8>,
    pub(super) expire_at_ms: Option<u64>,
    has_changed: bool,
}

impl Elements {
    /// A collection without elements, to be saved at the key of `parent`.
    pub(super) fn new(
        kind: Kind,
        (parent, table): (Slot, TableId),
        next_incarnation: u64,
    ) -> Option<Self> {
        let rules = kind.elements()?;
        Some(Self {
            kind,
            rules,
            keys: NodeKeys::new(parent, table),
            next_incarnation,
            flags: 0,
            tree: Tree::new(rules.order == Order::Contents),
            index: if rules.times.is_some() { Tree::new(true) } else { Tree::uncounted() },
            earliest: NEVER,
            now_ms: 0,
            small: SmallLimits::DEFAULT,
            old: Vec::new(),
            expire_at_ms: None,
            has_changed: false,
        })
    }

    /// A stored value outside of a transaction, without its expiry; `None` if it is damaged.
    fn stored(kind: Kind, value: Vec<u8>) -> Option<Self> {
        let mut collection = Self::new(kind, (Slot(0), TableId(0)), 0)?;
        collection.read(value).then_some(collection)
    }

    /// Reads a stored value, without its expiry; false if it is damaged.
    pub(super) fn read(&mut self, value: Vec<u8>) -> bool {
        self.old = value;
        self.read_header().is_some()
    }

    fn read_header(&mut self) -> Option<()> {
        let value = &self.old;
        let word = |at: usize| Some(u64::from_le_bytes(*value.get(at..)?.first_chunk()?));
        let half =
            |at: usize| Some(u64::from(u32::from_le_bytes(*value.get(at..)?.first_chunk()?)));
        self.flags = *value.first()?;
        self.tree.len = half(1)?;
        let head = head_bytes(self.flags);
        if self.flags & IS_TIMED != 0 {
            self.earliest = word(head - EARLIEST_BYTES)?;
        }
        if self.flags & IS_TREE == 0 {
            self.tree.root = value.get(head..)?.to_vec();
            return Some(());
        }
        (self.keys.incarnation, self.keys.last) = (word(5)?, word(13)?);
        (self.tree.height, self.index.height) = (*value.get(21)?, *value.get(22)?);
        let root_end = head.checked_add(half(23)? as usize)?;
        self.tree.root = value.get(head..root_end)?.to_vec();
        self.index.root = value.get(root_end..)?.to_vec();
        self.index.len = self.index.len_by_root();
        Some(())
    }

    /// The value as the record of the key holds it, without an expiry.
    pub(super) fn value(&self) -> Vec<u8> {
        let Tree { root, height, len, .. } = &self.tree;
        let mut out = Vec::with_capacity(HEAD_BYTES_MAX + root.len() + self.index.root.len());
        let is_tree = *height > 0;
        out.push(if is_tree { self.flags | IS_TREE } else { self.flags & !IS_TREE });
        let len = mutant!(*len, HeaderBeforeNodes => len.max(&1) - 1 + u64::from(!is_tree));
        out.extend_from_slice(&(len as u32).to_le_bytes());
        if is_tree {
            out.extend_from_slice(&self.keys.incarnation.to_le_bytes());
            out.extend_from_slice(&self.keys.last.to_le_bytes());
            out.extend_from_slice(&[*height, self.index.height]);
            out.extend_from_slice(&(root.len() as u32).to_le_bytes());
        }
        if self.flags & IS_TIMED != 0 {
            out.extend_from_slice(&self.earliest.to_le_bytes());
        }
        out.extend_from_slice(root);
        if is_tree {
            out.extend_from_slice(&self.index.root);
        }
        out
    }

    /// Whether `OBJECT ENCODING` calls the collection large for ever.
    pub(super) fn is_large(&self) -> bool {
        self.flags & IS_LARGE != 0
    }

    /// Says whether `OBJECT ENCODING` calls the collection large for ever.
    pub(super) fn set_large(&mut self, is_large: bool) {
        self.flags = (self.flags & !IS_LARGE) | if is_large { IS_LARGE } else { 0 };
    }

    /// Writes the changed nodes, and gives the step that saves the collection.
    ///
    /// # Errors
    /// The store refuses a write.
    pub(super) fn begin_save(&mut self, tx: &mut Tx<'_>) -> Result<Save, TxError> {
        if !self.has_changed {
            return Ok(Save::Nothing);
        }
        TxNodes { keys: &mut self.keys, tx }.write_back()?;
        if self.tree.len == 0 {
            return Ok(Save::Delete);
        }
        let new = self.value();
        if self.is_new() || new[0] != self.old[0] {
            return Ok(Save::Put(new));
        }
        Ok(Save::Patch(new))
    }

    /// Whether the key keeps its record when the collection is saved, and may be saved later.
    pub(super) fn may_stay_open(&self) -> bool {
        let is_tree = self.tree.height > 0;
        self.tree.len > 0
            && self.old.first().is_some_and(|old| {
                let flags = if is_tree { self.flags | IS_TREE } else { self.flags & !IS_TREE };
                *old == flags
            })
    }

    /// Whether saving the collection writes something.
    pub(super) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Patches the record of the key, whose value begins at byte `skip`.
    pub(super) fn patch(&self, tx: &mut Tx<'_>, skip: usize, new: &[u8]) -> Result<(), TxError> {
        // The head, the root and the root of the index change independently. So each gets a patch of
        // its own, unless the root has another length.
        let head = head_bytes(new[0]);
        let (old_head, old_rest) = self.old.split_at(head.min(self.old.len()));
        let slot = self.keys.parent;
        // A byte is written even if only nodes have changed: the stamp of the key is that of the change.
        let stamp: &[u8] = mutant!(&new[..1], KeyNotStamped => &[]);
        match old_head == &new[..head] {
            true if stamp.is_empty() => {}
            true => tx.patch_slot(slot, skip, stamp)?,
            false => patch_or_splice(tx, slot, skip, old_head, &new[..head])?,
        }
        let root_bytes = TREE_BYTES - 4..TREE_BYTES;
        let has_two_roots =
            new[0] & IS_TREE != 0 && self.old.get(root_bytes.clone()) == new.get(root_bytes);
        let cut = if has_two_roots { self.tree.root.len().min(old_rest.len()) } else { 0 };
        let ((old_root, old_rest), (root, rest)) =
            (old_rest.split_at(cut), new[head..].split_at(cut));
        patch_or_splice(tx, slot, skip + head, old_root, root)?;
        patch_or_splice(tx, slot, skip + head + cut, old_rest, rest)
    }

    /// Whether the collection was made in this transaction, and has no record yet.
    pub(super) fn is_new(&self) -> bool {
        self.old.is_empty()
    }

    /// Gives the collection buffers for its nodes.
    pub(super) fn give_spare(&mut self, spare: SpareNodes) {
        self.keys.spare = spare;
    }

    /// The buffers for nodes of the collection, which was saved.
    pub(super) fn into_spare(mut self) -> SpareNodes {
        self.keys.close();
        self.keys.spare
    }

    /// The slot of its key.
    pub(super) fn slot(&self) -> Slot {
        self.keys.parent
    }

    /// The kind of the collection.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Says that the collection, which has elements, counts as changed for those who watch its key.
    pub(crate) fn touch(&mut self) {
        self.has_changed = true;
    }

    /// The number of elements.
    pub(crate) fn len(&self) -> u64 {
        self.tree.len
    }

    /// The reply of `OBJECT ENCODING`.
    pub(crate) fn encoding(&self) -> &'static str {
        match &self.rules.times {
            Some(times) if self.flags & (IS_TIMED | IS_LARGE) == IS_TIMED => times.encoding,
            _ => self.rules.encodings[usize::from(self.flags & IS_LARGE != 0)],
        }
    }

    /// Approximate bytes of memory that the nodes take, without the record of the key.
    ///
    /// # Errors
    /// A node cannot be locked or read.
    pub(crate) fn node_bytes(&mut self, tx: &mut Tx<'_>) -> Result<usize, TxError> {
        let overhead = NODE_KEY_BYTES + RECORD_OVERHEAD;
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        let own = self.tree.node_bytes(&mut nodes, overhead)?;
        Ok(own + self.index.node_bytes(&mut nodes, overhead)?)
    }

    /// The hashes of the names of elements.
    fn hashes(&self) -> Hashes {
        let hasher = KeyHasher::new(self.keys.incarnation);
        Hashes { hasher, name: self.rules.name, are_tags: false }
    }

    fn sorting(&self) -> Sorting {
        match self.rules.order {
            Order::Position => Sorting::Positions,
            Order::Names => Sorting::Hashes(self.hashes()),
            Order::Contents => Sorting::Contents,
        }
    }

    /// Whether elements are found by the index.
    fn has_index(&self) -> bool {
        self.rules.order == Order::Contents && self.tree.height > 0
    }

    /// Finds the element of that name, by the index if there is one.
    fn find(&mut self, tx: &mut Tx<'_>, name: &[u8]) -> Result<Found, TxError> {
        if self.has_index() {
            return self.find_member(tx, name);
        }
        let (sorting, of) = (Sorting::Hashes(self.hashes()), self.rules.name);
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        let named = &|content: &[u8]| of(content) == name;
        let place = self.tree.place_of_name(&mut nodes, &sorting, named, name)?;
        let content = place.is_there.then(|| self.tree.content(&place).to_vec());
        Ok(Found { place, content, in_tree: None })
    }

    /// The content of the element of that name, unless the element has expired.
    ///
    /// # Errors
    /// A node cannot be locked or read.
    pub(crate) fn get(&mut self, tx: &mut Tx<'_>, name: &[u8]) -> Result<Option<Vec<u8>>, TxError> {
        let content = self.find(tx, name)?.content;
        Ok(content.filter(|content| self.judge().is_live(content)))
    }

    /// Puts an element by its name; gives the old content of the element, unless it had expired.
    ///
    /// # Errors
    /// A node cannot be locked, read or written, or the collection is full.
    pub(crate) fn put(
        &mut self,
        tx: &mut Tx<'_>,
        content: &[u8],
    ) -> Result<Option<Vec<u8>>, TxError> {
        let found = self.find(tx, (self.rules.name)(content))?;
        let old = found.content.clone();
        self.put_found(tx, found, content)?;
        Ok(old.filter(|old| self.judge().is_live(old)))
    }

    /// Changes the element of a name. `change` gets the content of the element, if there is one. It
    /// gives the new content, or none to change nothing.
    ///
    /// # Errors
    /// A node cannot be locked, read or written, the collection is full, or `change` fails.
    pub(crate) fn update<E: From<TxError>>(
        &mut self,
        tx: &mut Tx<'_>,
        name: &[u8],
        change: impl FnOnce(Option<&[u8]>) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<(), E> {
        let found = self.find(tx, name)?;
        let judge = self.judge();
        let old = found.content.as_deref().filter(|old| judge.is_live(old));
        match change(old)? {
            Some(new) => Ok(self.put_found(tx, found, &new)?),
            None => Ok(()),
        }
    }

    /// Puts an element, which was sought by its name.
    fn put_found(&mut self, tx: &mut Tx<'_>, found: Found, content: &[u8]) -> Result<(), TxError> {
        if found.content.as_deref() == Some(content) {
            return Ok(());
        }
        if self.rules.order == Order::Contents {
            return self.put_content(tx, found, content);
        }
        let Found { place, content: old, .. } = found;
        let name = (self.rules.name)(content);
        self.prepare_for(content, old.is_none())?;
        let (sorting, was_tree) = (self.sorting(), self.tree.height > 0);
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        match old {
            Some(_) => self.tree.replace(&mut nodes, &sorting, place, content)?,
            None => self.tree.insert(&mut nodes, &sorting, place, content)?,
        }
        self.note_times(tx, was_tree, name, (old.as_deref(), Some(content)))
    }

    /// Notes a change of the collection, which may become large or a tree by it.
    fn prepare_for(&mut self, content: &[u8], is_new: bool) -> Result<(), TxError> {
        let len = self.tree.len + u64::from(is_new);
        if len > u64::from(u32::MAX) {
            return Err(TxError::abandon("a collection has at most 4294967295 elements"));
        }
        self.has_changed = true;
        if !(self.rules.is_small)(&self.small, len, content) {
            self.flags |= IS_LARGE;
        }
        if self.tree.height == 0 && self.tree.root.len() + content.len() + 5 > PACKED_BYTES_MAX {
            // The collection may become a tree.
            self.keys.incarnation = self.next_incarnation;
        }
        Ok(())
    }

    /// Removes the element of that name; gives its content, unless it had expired.
    ///
    /// # Errors
    /// A node cannot be locked, read or written.
    pub(crate) fn remove(
        &mut self,
        tx: &mut Tx<'_>,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, TxError> {
        let found = self.find(tx, name)?;
        let Some(content) = found.content.clone() else { return Ok(None) };
        if self.rules.order == Order::Contents {
            self.take_out(tx, found, &content)?;
        } else {
            self.has_changed = true;
            let was_tree = self.tree.height > 0;
            self.tree.remove(&mut TxNodes { keys: &mut self.keys, tx }, found.place)?;
            self.note_times(tx, was_tree, name, (Some(&content), None))?;
        }
        Ok(Some(content).filter(|content| self.judge().is_live(content)))
    }

    /// The content of the element at a position, expired or not.
    ///
    /// # Errors
    /// A node cannot be locked or read.
    pub(crate) fn at(
        &mut self,
        tx: &mut Tx<'_>,
        position: u64,
    ) -> Result<Option<Vec<u8>>, TxError> {
        let place = self.tree.place_at(&mut TxNodes { keys: &mut self.keys, tx }, position)?;
        Ok(place.is_there.then(|| self.tree.content(&place).to_vec()))
    }

    /// Inserts an element before a position, of a list.
    ///
    /// # Errors
    /// A node cannot be locked, read or written, or the collection is full.
    pub(crate) fn insert_at(
        &mut self,
        tx: &mut Tx<'_>,
        position: u64,
        content: &[u8],
    ) -> Result<(), TxError> {
        self.prepare_for(content, true)?;
        let sorting = self.sorting();
        let place = self.place_to_change(tx, position)?;
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        self.tree.insert(&mut nodes, &sorting, place, content)
    }

    /// Replaces the element at a position, of a list.
    ///
    /// # Errors
    /// A node cannot be locked, read or written.
    pub(crate) fn replace_at(
        &mut self,
        tx: &mut Tx<'_>,
        position: u64,
        content: &[u8],
    ) -> Result<(), TxError> {
        self.prepare_for(content, false)?;
        let sorting = self.sorting();
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        let place = self.tree.place_at(&mut nodes, position)?;
        self.tree.replace(&mut nodes, &sorting, place, content)
    }

    /// Removes the element at a position; gives its content.
    ///
    /// # Errors
    /// A node cannot be locked, read or written.
    pub(crate) fn remove_at(
        &mut self,
        tx: &mut Tx<'_>,
        position: u64,
    ) -> Result<Option<Vec<u8>>, TxError> {
        let place = self.place_to_change(tx, position)?;
        if !place.is_there {
            return Ok(None);
        }
        let content = self.tree.content(&place).to_vec();
        if self.rules.order == Order::Contents {
            self.take_content_out(tx, &content)?;
        } else {
            self.has_changed = true;
            self.tree.remove(&mut TxNodes { keys: &mut self.keys, tx }, place)?;
        }
        Ok(Some(content))
    }

    /// The place of a position at which an element is inserted or removed.
    fn place_to_change(&mut self, tx: &mut Tx<'_>, position: u64) -> Result<TreePosition, TxError> {
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        let is_at_end = position < u64::MAX && position + 1 >= self.tree.len;
        if is_at_end && self.rules.order == Order::Position && self.tree.height > 0 {
            return self.tree.place_at_end(&mut nodes, position);
        }
        self.tree.place_at(&mut nodes, position)
    }

    /// The position and the content of the element of that name, of a sorted set.
    ///
    /// # Errors
    /// A node cannot be locked or read, or the collection is damaged.
    pub(crate) fn ranked(
        &mut self,
        tx: &mut Tx<'_>,
        name: &[u8],
    ) -> Result<Option<(u64, Vec<u8>)>, TxError> {
        let Found { content, in_tree, .. } = self.find(tx, name)?;
        let Some(content) = content else { return Ok(None) };
        let place = match in_tree {
            Some(place) => place,
            None => self.tree.place_of(&mut TxNodes { keys: &mut self.keys, tx }, &content)?,
        };
        if place.is_there { Ok(Some((place.position, content))) } else { Err(damaged()) }
    }

    /// How many elements are before a bound, of a sorted set. `is_before` tells whether an element
    /// is before the bound.
    ///
    /// # Errors
    /// A node cannot be locked or read.
    pub(crate) fn count_before(
        &mut self,
        tx: &mut Tx<'_>,
        is_before: &dyn Fn(&[u8]) -> bool,
    ) -> Result<u64, TxError> {
        // The first subtree has no separator of its own.
        let is_before = |content: &[u8]| content.is_empty() || is_before(content);
        self.tree.count_before(&mut TxNodes { keys: &mut self.keys, tx }, &is_before)
    }
}

/// The step that saves a collection.
pub(super) enum Save {
    Nothing,
    /// The collection has no elements.
    Delete,
    /// The record gets this value.
    Put(Vec<u8>),
    /// The record is patched with the differences between its value and this one.
    Patch(Vec<u8>),
}
