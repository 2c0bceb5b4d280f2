//! The nodes of an ordered index, by number, with their latches.

use std::sync::Arc;

use stillpoint_mem::{AddressSpace, RegionError, Segments};
use stillpoint_node::{Node, NodeKind, node_key_bytes_max};
use stillpoint_sync::Mutex;
use stillpoint_sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use stillpoint_sync::version_latch::{self as latch, Version};

/// Words of a node: a page of 4 KiB. A model checker has small nodes, so that a few keys fill them.
const NODE_WORDS: usize = if cfg!(any(loom, shuttle)) { 64 } else { 512 };
/// Nodes in the first segment.
const FIRST_NODES: usize = 16;
/// The root has this number for ever.
pub(super) const ROOT: u64 = 0;
/// Longest key of an ordered index, in bytes.
pub(crate) const ORDERED_KEY_BYTES_MAX: usize = node_key_bytes_max(NODE_WORDS * 8);

/// A node as of a version of its latch.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeVersion {
    pub(super) number: u64,
    version: Version,
}

/// The nodes of an index.
#[derive(Debug)]
pub(super) struct Nodes {
    words: Segments,
    /// Numbers of nodes that were used and are free.
    free: Mutex<Vec<u64>>,
    /// Nodes that were ever used, with the numbers from 0 on.
    used: AtomicUsize,
}

impl Nodes {
    /// One empty leaf, the root.
    pub(super) fn new(space: &Arc<AddressSpace>) -> Result<Self, RegionError> {
        let words = Segments::new(space.clone(), NODE_WORDS * FIRST_NODES);
        words.reserve_up_to(0)?;
        let nodes = Self { words, free: Mutex::default(), used: AtomicUsize::new(1) };
        nodes.node(ROOT).init(NodeKind::Leaf, 0, b"", None);
        Ok(nodes)
    }

    /// The words of a node.
    #[inline]
    pub(super) fn words(&self, number: u64) -> &[AtomicU64] {
        self.words.line::<NODE_WORDS>(number as usize)
    }

    #[inline]
    pub(super) fn node(&self, number: u64) -> Node<'_> {
        Node::new(self.words(number))
    }

    /// The latch of a node, in a word of the page that the node leaves to its owner.
    #[inline]
    pub(super) fn latch(&self, number: u64) -> &AtomicU64 {
        &self.node(number).owner_words()[0]
    }

    /// The node as it is now, once nobody changes it.
    #[inline]
    pub(super) fn seen(&self, number: u64) -> NodeVersion {
        NodeVersion { number, version: latch::await_version(self.latch(number)) }
    }

    /// Whether the node has not changed since.
    #[inline]
    pub(super) fn is_still(&self, seen: NodeVersion) -> bool {
        latch::is_still(self.latch(seen.number), seen.version)
    }

    /// Latches a node exclusively, if it has not changed since.
    pub(super) fn try_latch_seen(&self, seen: NodeVersion) -> Option<Latched<'_>> {
        let taken = latch::try_upgrade(self.latch(seen.number), seen.version);
        taken.then(|| Latched { nodes: self, number: seen.number })
    }

    /// Latches a node exclusively, if nobody has latched it.
    pub(super) fn try_latch(&self, number: u64) -> Option<Latched<'_>> {
        latch::try_exclusive(self.latch(number)).then(|| Latched { nodes: self, number })
    }

    /// Waits for the exclusive latch of a node.
    pub(super) fn latch_exclusively(&self, number: u64) -> Latched<'_> {
        latch::exclusive(self.latch(number));
        Latched { nodes: self, number }
    }

    /// Waits for a share of the latch of a node.
    pub(super) fn share(&self, number: u64) -> Shared<'_> {
        latch::shared(self.latch(number));
        Shared { nodes: self, number }
    }

    /// A free node, latched. `None` if the system grants no more address space.
    pub(super) fn allocate(&self) -> Option<Latched<'_>> {
        let mut free = self.free.lock();
        let number = match free.pop() {
            Some(number) => number,
            None => {
                // Relaxed: the lock orders all changes.
                let number = self.used.load(Relaxed);
                self.words.reserve_up_to((number + 1) * NODE_WORDS - 1).ok()?;
                self.used.store(number + 1, Relaxed);
                number as u64
            }
        };
        drop(free);
        Some(self.latch_exclusively(number))
    }

    /// Bytes of the nodes that were ever used.
    pub(super) fn held_bytes(&self) -> usize {
        // Relaxed: a statistic.
        self.used.load(Relaxed) * NODE_WORDS * 8
    }
}

/// The exclusive latch of a node. Its drop makes a new version.
#[derive(Debug)]
pub(super) struct Latched<'a> {
    nodes: &'a Nodes,
    pub(super) number: u64,
}

impl<'a> Latched<'a> {
    pub(super) fn node(&self) -> Node<'a> {
        self.nodes.node(self.number)
    }

    /// Gives the node back, which nobody can reach any more but readers that check its version.
    pub(super) fn free(self) {
        let (nodes, number) = (self.nodes, self.number);
        drop(self);
        nodes.free.lock().push(number);
    }
}

impl Drop for Latched<'_> {
    fn drop(&mut self) {
        latch::release_exclusive(self.nodes.latch(self.number));
    }
}

/// A share of the latch of a node.
#[derive(Debug)]
pub(super) struct Shared<'a> {
    nodes: &'a Nodes,
    number: u64,
}

impl<'a> Shared<'a> {
    pub(super) fn node(&self) -> Node<'a> {
        self.nodes.node(self.number)
    }

    /// The node in its present version, which cannot change while the share is held.
    pub(super) fn seen(&self) -> NodeVersion {
        self.nodes.seen(self.number)
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        latch::release_shared(self.nodes.latch(self.number));
    }
}
