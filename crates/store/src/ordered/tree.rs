//! The changes of single keys.

use stillpoint_node::{Node, NodeError};
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::{Backoff, mutant};

use super::descent::To;
use super::nodes::{Latched, NodeVersion, ROOT, Shared};
use super::{AddError, GapClaim, OrderedIndex, planted};

/// The key behind a place of a leaf, and the leaves that have none in between.
#[derive(Default)]
struct NextKey {
    key: Vec<u8>,
    is_some: bool,
    passed: Vec<NodeVersion>,
    fence: Vec<u8>,
}

impl NextKey {
    fn clear(&mut self) {
        self.key.clear();
        self.is_some = false;
        self.passed.clear();
        self.fence.clear();
    }

    fn key(&self) -> Option<&[u8]> {
        self.is_some.then_some(&self.key[..])
    }
}

impl OrderedIndex {
    /// Adds a key as a ghost, if the index does not have it. `gaps` claims the gap that the key falls
    /// into. The key must not be longer than an index takes.
    ///
    /// # Errors
    /// Another transaction has locked the gap, or there is no address space for another node.
    pub(crate) fn add(&self, key: &[u8], gaps: &mut impl GapClaim) -> Result<(), AddError> {
        let mut next = NextKey::default();
        let mut backoff = Backoff::new();
        loop {
            let leaf = self.leaf(To::Key(key));
            let node = self.nodes.node(leaf.number);
            match node.search(key) {
                Ok(_) if self.nodes.is_still(leaf) => return Ok(()),
                Err(slot) if self.find_next(leaf, slot, &mut next) => {}
                _ => continue,
            }
            let Some(latched) = self.nodes.try_latch_seen(leaf) else {
                backoff.wait();
                continue;
            };
            if !gaps.claim(next.key()) {
                return Err(AddError::GapLocked);
            }
            // Nobody adds or removes a key in the claimed gap. So the next key stays the next one
            // if it was so at any moment since the claim.
            let is_next = next.passed.iter().all(|&seen| self.nodes.is_still(seen));
            let added = is_next.then(|| add_ghost(&latched, key));
            drop(latched);
            gaps.end();
            match added {
                Some(None) => return Ok(()),
                Some(Some(needed_bytes)) => self.make_room(key, 0, needed_bytes)?,
                None => {}
            }
        }
    }

    /// Finds the key of a slot of a leaf, or the first key of the leaves behind. False if a leaf has
    /// changed meanwhile.
    fn find_next(&self, leaf: NodeVersion, slot: usize, next: &mut NextKey) -> bool {
        next.clear();
        let node = self.nodes.node(leaf.number);
        if slot < node.slot_count() {
            node.read_key(slot, &mut next.key);
            next.is_some = true;
            return self.nodes.is_still(leaf);
        }
        let mut is_bounded = node.read_upper_fence(&mut next.fence);
        if !self.nodes.is_still(leaf) {
            return false;
        }
        while is_bounded {
            let seen = self.leaf(To::Key(&next.fence));
            let node = self.nodes.node(seen.number);
            next.is_some = node.slot_count() > 0;
            if next.is_some {
                node.read_key(0, &mut next.key);
            }
            next.fence.clear();
            is_bounded = node.read_upper_fence(&mut next.fence);
            next.passed.push(seen);
            if !self.nodes.is_still(seen) {
                return false;
            }
            if next.is_some {
                return true;
            }
        }
        true
    }

    /// Removes a key, if the index has it. `gaps` claims the gap below the key. False if another
    /// transaction has locked the gap.
    ///
    /// # Panics
    /// If the key is a record.
    pub(crate) fn remove(&self, key: &[u8], gaps: &mut impl GapClaim) -> bool {
        mutant!(EntryLeft => return true);
        let mut backoff = Backoff::new();
        loop {
            let leaf = self.leaf(To::Key(key));
            let found = self.nodes.node(leaf.number).search(key);
            let Ok(slot) = found else {
                if self.nodes.is_still(leaf) {
                    return true;
                }
                continue;
            };
            let Some(latched) = self.nodes.try_latch_seen(leaf) else {
                backoff.wait();
                continue;
            };
            if !gaps.claim(Some(key)) {
                return false;
            }
            let node = latched.node();
            assert!(node.is_ghost(slot), "a key with a value was removed");
            node.remove(slot);
            let is_sparse = super::merge::is_sparse(&node);
            drop(latched);
            gaps.end();
            if is_sparse {
                self.merge(key, 0);
            }
            return true;
        }
    }

    /// Makes a ghost a record, or a record a ghost, and counts it.
    ///
    /// # Panics
    /// If the index does not have the key.
    pub(crate) fn set_present(&self, key: &[u8], is_present: bool) {
        self.on_path(key, |leaf| {
            let slot = leaf.search(key).expect("the holder of the key's lock has added the key");
            if leaf.is_ghost(slot) != is_present {
                return ((), 0);
            }
            match is_present {
                true => leaf.restore(slot),
                false => leaf.delete(slot),
            }
            ((), if is_present { 1 } else { -1 })
        });
    }

    /// Adds a key as a record, while nobody reads ranges.
    ///
    /// # Errors
    /// There is no address space for another node.
    pub(crate) fn load(&self, key: &[u8]) -> Result<(), AddError> {
        loop {
            let loaded = self.on_path(key, |leaf| match leaf.insert(key, b"", 0) {
                Ok(_) => (Ok(()), 1),
                Err(NodeError::Exists { .. }) => (Ok(()), 0),
                Err(NodeError::Full { needed_bytes }) => (Err(needed_bytes), 0),
                Err(refused) => unreachable!("the key's length was checked: {refused}"),
            });
            match loaded {
                Ok(()) => return Ok(()),
                Err(needed_bytes) => self.make_room(key, 0, needed_bytes)?,
            }
        }
    }

    /// Changes the leaf of a key with its latch held exclusively, and adds the difference that `change`
    /// returns to the counts on the way.
    fn on_path<R>(&self, key: &[u8], change: impl FnOnce(&Node<'_>) -> (R, i64)) -> R {
        let (path, leaf) = self.latch_path(key);
        let (result, difference) = change(&leaf.node());
        if mutant!(difference != 0, RecordNotCounted => difference < 0) {
            for (shared, position) in &path {
                // Relaxed: readers of counts are kept away by a lock, and splits by the latch.
                let records = shared.node();
                records.child_records(*position).fetch_add(difference as u64, Relaxed);
            }
        }
        result
    }

    /// Shares the latches of the inner nodes on the way to a key, and latches the leaf exclusively. The
    /// nodes cannot be split meanwhile.
    fn latch_path(&self, key: &[u8]) -> (Vec<(Shared<'_>, usize)>, Latched<'_>) {
        loop {
            // The level of the root is only a guess until the root is latched.
            if self.nodes.node(ROOT).level() == 0 {
                let root = self.nodes.latch_exclusively(ROOT);
                if root.node().level() == 0 {
                    return (Vec::new(), root);
                }
                continue;
            }
            let mut shared = self.nodes.share(ROOT);
            if shared.node().level() == 0 {
                continue;
            }
            let mut path = Vec::new();
            loop {
                let node = shared.node();
                let position = node.child_of(key);
                let child = node.child(position).at;
                path.push((shared, position));
                if node.level() == 1 {
                    return (path, self.nodes.latch_exclusively(child));
                }
                shared = self.nodes.share(child);
            }
        }
    }
}

/// Inserts a ghost into a leaf. Returns the bytes that it needs if the leaf has no room.
fn add_ghost(leaf: &Latched<'_>, key: &[u8]) -> Option<usize> {
    let node = leaf.node();
    match node.insert(key, b"", 0) {
        Ok(slot) => {
            node.delete(slot);
            None
        }
        Err(NodeError::Full { needed_bytes }) => Some(needed_bytes),
        Err(refused) => unreachable!("a missing key of checked length: {refused}"),
    }
}
