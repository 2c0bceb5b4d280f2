//! The expiries of elements: of the fields of a hash.
//!
//! An element with an expiry has it in its content. The head of the collection tells the earliest
//! expiry. A collection that is a tree has an index by time beside it:
//!
//! ```text
//! content of an element of the index   expiry (u64, big-endian), name
//! ```
//! So a reader judges each element by the clock, and whoever removes the expired ones finds them at
//! the beginning of the index.

use stillpoint::{Tx, TxError};

use super::bulk::Contents;
use super::node::elements;
use super::sorting::Sorting;
use super::tree::bulk::Doomed;
use super::tree::{Nodes, damaged};
use super::{Elements, IS_TREE, SMALL_BYTES, TREE_BYTES, TxNodes, head_bytes};
use crate::keyspace::kinds::ExpiryOf;
use crate::keyspace::value::Entry;

/// The flag of a collection whose head tells the earliest expiry, since an element had one.
pub(super) const IS_TIMED: u8 = 4;
/// Bytes of the earliest expiry.
pub(super) const EARLIEST_BYTES: usize = 8;
/// The value of the earliest expiry while no element has an expiry.
pub(super) const NEVER: u64 = u64::MAX;
/// Bytes of an expiry in the index.
const TIME_BYTES: usize = 8;

/// Tells which elements have expired at a given time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judge {
    expiry: Option<ExpiryOf>,
    now_ms: u64,
}

impl Judge {
    /// Whether an element of that content has not expired.
    pub(crate) fn is_live(&self, content: &[u8]) -> bool {
        self.expiry.is_none_or(|expiry| expiry(content).is_none_or(|at| at > self.now_ms))
    }
}

/// The earliest expiry of an element of a stored collection, in milliseconds since the Unix epoch.
pub(in crate::keyspace) fn earliest_expiry(entry: &Entry<'_>) -> Option<u64> {
    entry.kind().elements()?.times.as_ref()?;
    let [flags, ..] = entry.u64_at(0)?.to_le_bytes();
    if flags & IS_TIMED == 0 {
        return None;
    }
    let at = if flags & IS_TREE == 0 { SMALL_BYTES } else { TREE_BYTES };
    entry.u64_at(at).filter(|at| *at != NEVER)
}

/// The expiry at the beginning of an element of the index.
pub(super) fn time_of(timed: &[u8]) -> Option<u64> {
    timed.first_chunk::<TIME_BYTES>().map(|at| u64::from_be_bytes(*at))
}

/// An element of the index.
pub(super) fn timed(at: u64, name: &[u8]) -> Vec<u8> {
    [&at.to_be_bytes(), name].concat()
}

impl Elements {
    /// Judges elements by the time at which the collection was opened.
    pub(crate) fn judge(&self) -> Judge {
        let expiry = self.rules.times.as_ref().map(|times| times.expiry);
        Judge { expiry, now_ms: self.now_ms }
    }

    fn expiry_of(&self, content: &[u8]) -> Option<u64> {
        self.rules.times.as_ref().and_then(|times| (times.expiry)(content))
    }

    /// The earliest expiry of an element, in milliseconds since the Unix epoch.
    pub(in crate::keyspace) fn earliest(&self) -> Option<u64> {
        (self.earliest != NEVER).then_some(self.earliest)
    }

    /// Whether an element expires earlier than any did when the collection was opened.
    pub(in crate::keyspace) fn expires_earlier(&self) -> bool {
        let mut before = NEVER;
        if self.old.first().is_some_and(|flags| flags & IS_TIMED != 0) {
            let at = head_bytes(self.old[0]) - EARLIEST_BYTES;
            let old = self.old.get(at..).and_then(|rest| rest.first_chunk());
            before = old.map_or(NEVER, |old| u64::from_le_bytes(*old));
        }
        self.earliest < before
    }

    /// How many elements have expired, and are still there.
    ///
    /// # Errors
    /// A node cannot be locked or read.
    pub(crate) fn expired(&mut self, tx: &mut Tx<'_>) -> Result<u64, TxError> {
        let now_ms = self.now_ms;
        if self.earliest > now_ms {
            return Ok(0);
        }
        if self.tree.height == 0 {
            let judge = self.judge();
            let dead = elements(&self.tree.root, 0).filter(|e| !judge.is_live(e.content));
            return Ok(dead.count() as u64);
        }
        let has_expired = |timed: &[u8]| time_of(timed).is_none_or(|at| at <= now_ms);
        self.index.count_before(&mut TxNodes { keys: &mut self.keys, tx }, &has_expired)
    }

    /// Notes that the element of a name has got another content, or was made or removed.
    pub(super) fn note_times(
        &mut self,
        tx: &mut Tx<'_>,
        was_tree: bool,
        name: &[u8],
        (old, new): (Option<&[u8]>, Option<&[u8]>),
    ) -> Result<(), TxError> {
        let expiry = |content: Option<&[u8]>| content.and_then(|content| self.expiry_of(content));
        let (before, after) = (expiry(old), expiry(new));
        if after.is_some() {
            self.flags |= IS_TIMED;
        }
        if self.flags & IS_TIMED == 0 {
            return Ok(());
        }
        if !was_tree {
            return match self.tree.height {
                0 => {
                    self.earliest = self.earliest_of_leaf();
                    Ok(())
                }
                _ => self.index_times(tx),
            };
        }
        if before == after {
            return Ok(());
        }
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        if let Some(before) = before {
            let place = self.index.place_of(&mut nodes, &timed(before, name))?;
            if !place.is_there {
                return Err(damaged());
            }
            self.index.remove(&mut nodes, place)?;
        }
        if let Some(after) = after {
            self.index.insert_content(&mut nodes, &timed(after, name))?;
        }
        self.read_earliest(tx)
    }

    fn earliest_of_leaf(&self) -> u64 {
        let all = elements(&self.tree.root, 0).filter_map(|e| self.expiry_of(e.content));
        all.min().unwrap_or(NEVER)
    }

    /// Makes the index by time of a tree that has none.
    fn index_times(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let mut all = Vec::new();
        let (expiry, name) = (self.rules.times.as_ref().map(|times| times.expiry), self.rules.name);
        let mut visit = |content: &[u8]| {
            if let Some(at) = expiry.and_then(|expiry| expiry(content)) {
                all.push(timed(at, name(content)));
            }
        };
        let mut keys = self.keys.lend();
        let mut nodes = TxNodes { keys: &mut keys, tx };
        self.tree.visit(&mut nodes, 0, u64::MAX, false, &mut visit)?;
        self.fill_times(&mut nodes, all)?;
        self.keys.give_back(keys);
        Ok(())
    }

    /// Notes the expiries of elements that were put together into an empty collection.
    pub(super) fn note_all_times(
        &mut self,
        nodes: &mut dyn Nodes,
        contents: &[&[u8]],
    ) -> Result<(), TxError> {
        let times = contents.iter().filter_map(|content| {
            self.expiry_of(content).map(|at| timed(at, (self.rules.name)(content)))
        });
        let all: Vec<Vec<u8>> = times.collect();
        if all.is_empty() {
            return Ok(());
        }
        self.flags |= IS_TIMED;
        if self.tree.height == 0 {
            self.earliest = self.earliest_of_leaf();
            return Ok(());
        }
        self.fill_times(nodes, all)
    }

    fn fill_times(&mut self, nodes: &mut dyn Nodes, mut all: Vec<Vec<u8>>) -> Result<(), TxError> {
        all.sort_unstable();
        self.earliest = all.first().and_then(|first| time_of(first)).unwrap_or(NEVER);
        let all: Vec<&[u8]> = all.iter().map(|timed| &timed[..]).collect();
        self.index.fill(nodes, &Sorting::Contents, &all)
    }

    /// Reads the earliest expiry out of the index.
    fn read_earliest(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let first = self.index.place_at(&mut TxNodes { keys: &mut self.keys, tx }, 0)?;
        let first = first.is_there.then(|| time_of(self.index.content(&first))).flatten();
        self.earliest = first.unwrap_or(NEVER);
        Ok(())
    }

    /// Removes elements that have expired, `most` of them; gives how many.
    ///
    /// # Errors
    /// A node cannot be locked, read or written.
    pub(in crate::keyspace) fn remove_expired(
        &mut self,
        tx: &mut Tx<'_>,
        most: u64,
    ) -> Result<u64, TxError> {
        let count = self.expired(tx)?.min(most);
        if count == 0 {
            return Ok(0);
        }
        self.has_changed = true;
        if self.tree.height == 0 {
            let judge = self.judge();
            let live = elements(&self.tree.root, 0).filter(|e| judge.is_live(e.content));
            let kept: Vec<u8> = live.flat_map(|e| &self.tree.root[e.at..e.end]).copied().collect();
            self.tree.root = kept;
            let len = self.tree.len_by_root();
            let removed = self.tree.len.saturating_sub(len);
            self.tree.len = len;
            self.earliest = self.earliest_of_leaf();
            return Ok(removed);
        }
        let mut gone = Contents::default();
        let mut keep = |timed: &[u8]| gone.push(timed);
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        let first = 0..count;
        let doomed = Doomed::Positions(std::slice::from_ref(&first));
        self.index.remove_all(&mut nodes, doomed, Some(&mut keep))?;
        let hashes = self.hashes();
        let mut names: Vec<(u64, &[u8])> = gone
            .iter()
            .filter_map(|timed| timed.get(TIME_BYTES..))
            .map(|name| (hashes.of_name(name), name))
            .collect();
        names.sort_unstable_by_key(|(hash, _)| *hash);
        let doomed = Doomed::Names { hashes, names: &names };
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        if self.tree.remove_all(&mut nodes, doomed, None)? != count {
            return Err(damaged());
        }
        self.read_earliest(tx)?;
        Ok(count)
    }
}
