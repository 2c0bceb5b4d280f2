//! Descents from the root to a node.

use stillpoint_sync::Backoff;
use stillpoint_txn::TableId;

use crate::frame::{FrameVersion, Latched, State};
use crate::loads::Missing;
use crate::pool::Pool;
use crate::swip::Swip;

/// Failed descents without latches after which a reader latches.
const OPTIMISTIC_DESCENTS: usize = 16;

/// The end of a descent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundNode {
    pub(crate) seen: FrameVersion,
    /// Position of the child on the way, in an inner node.
    pub(crate) position: usize,
}

/// The result of an attempt without latches.
enum Attempt {
    At(FoundNode),
    /// A node has changed, or a swip was changed on the way.
    Again,
    Missing(Missing),
}

impl Pool {
    /// The leaf of a key.
    #[inline]
    pub(crate) fn leaf(&self, table: TableId, key: &[u8]) -> Result<FrameVersion, Missing> {
        self.descend(table, key, 0).map(|place| place.seen)
    }

    /// The node of this level on the way to a key, or the root of a lower tree.
    ///
    /// # Errors
    /// A page on the way is not in a frame.
    ///
    /// # Panics
    /// If the pool does not have the table.
    #[inline]
    pub(crate) fn descend(
        &self,
        table: TableId,
        key: &[u8],
        level: u8,
    ) -> Result<FoundNode, Missing> {
        let root = self.root(table).expect("the caller has looked for the table");
        for _ in 0..OPTIMISTIC_DESCENTS {
            match self.try_descend(root, key, level) {
                Attempt::At(place) => return Ok(place),
                Attempt::Missing(missing) => return Err(missing),
                Attempt::Again => {}
            }
        }
        self.descend_latched(root, key, level)
    }

    #[inline]
    fn try_descend(&self, root: u32, key: &[u8], level: u8) -> Attempt {
        let mut seen = self.seen(root);
        loop {
            let node = self.node(seen.frame);
            let is_end = node.level() <= level;
            let is_leaf = node.level() == 0;
            let position = if is_leaf { 0 } else { node.child_of(key) };
            let child = if is_end { 0 } else { node.child(position).at };
            if !self.is_still(seen) {
                return Attempt::Again;
            }
            if is_end {
                return Attempt::At(FoundNode { seen, position });
            }
            let frame = match Swip::unpack(child) {
                Swip::Hot(frame) => frame,
                Swip::Cool(frame) => {
                    self.heat(seen, position, frame);
                    return Attempt::Again;
                }
                Swip::Out(page) => {
                    if !self.has_arrived(page) {
                        return Attempt::Missing(Missing::new(page, seen));
                    }
                    if let Some(parent) = self.try_latch_seen(seen) {
                        self.attach(&parent, position, page);
                    }
                    return Attempt::Again;
                }
            };
            // The child's version is read before the parent's is checked. So the frame held the
            // parent's child in that version.
            let next = self.seen(frame);
            if !self.is_still(seen) {
                return Attempt::Again;
            }
            seen = next;
        }
    }

    /// Makes a cool child hot again, if the parent has not changed.
    fn heat(&self, parent: FrameVersion, position: usize, frame: u32) {
        let Some(latched) = self.try_latch_seen(parent) else { return };
        self.set_swip(&latched, position, Swip::Hot(frame));
        self.header(frame).set_state(State::Hot);
    }

    /// Changes a swip of a node that the caller has latched.
    pub(crate) fn set_swip(&self, parent: &Latched<'_>, position: usize, swip: Swip) {
        let node = parent.node();
        let child = node.child(position);
        node.set_child(position, stillpoint_node::Child { at: swip.pack(), ..child });
    }

    /// A descent that shares the latches of parent and child.
    #[cold]
    fn descend_latched(&self, root: u32, key: &[u8], level: u8) -> Result<FoundNode, Missing> {
        let mut backoff = Backoff::new();
        'again: loop {
            let mut shared = self.share(root);
            loop {
                let seen = self.seen(shared.frame);
                let node = self.node(shared.frame);
                let position = if node.level() == 0 { 0 } else { node.child_of(key) };
                if node.level() <= level {
                    return Ok(FoundNode { seen, position });
                }
                match Swip::unpack(node.child(position).at) {
                    // An eviction would need the latch of the parent, which is shared here.
                    Swip::Hot(frame) | Swip::Cool(frame) => shared = self.share(frame),
                    Swip::Out(page) if self.has_arrived(page) => {
                        let frame = shared.frame;
                        drop(shared);
                        let parent = self.latch(frame);
                        // The frame may hold another node by now.
                        if self.is_parent(&parent, key, page, root) {
                            let position = parent.node().child_of(key);
                            self.attach(&parent, position, page);
                        }
                        drop(parent);
                        backoff.wait();
                        continue 'again;
                    }
                    Swip::Out(page) => return Err(Missing::new(page, seen)),
                }
            }
        }
    }

    /// Whether a latched frame holds an inner node whose child on the way is a page that is out.
    fn is_parent(&self, latched: &Latched<'_>, key: &[u8], page: u64, root: u32) -> bool {
        let attached =
            matches!(latched.header().state(), State::Hot | State::Cool) || latched.frame == root;
        let node = latched.node();
        attached && node.level() > 0 && node.child(node.child_of(key)).at == Swip::Out(page).pack()
    }

    /// The parent of a node that a swip leads to, and the position of that swip. `None` if the node or
    /// its parent is being changed.
    pub(crate) fn parent_of(
        &self,
        frame: u32,
        child: FrameVersion,
        fence: &mut Vec<u8>,
    ) -> Option<(FrameVersion, usize)> {
        let node = self.node(frame);
        // Relaxed: a version is checked below.
        let table = node.owner_words()[2].load(stillpoint_sync::atomic::Ordering::Relaxed);
        let level = node.level();
        fence.clear();
        node.read_lower_fence(fence);
        if !self.is_still(child) {
            return None;
        }
        let root = self.root(TableId(table as u16))?;
        let Attempt::At(place) = self.try_descend(root, fence, level.checked_add(1)?) else {
            return None;
        };
        let parent = self.node(place.seen.frame);
        if parent.level() != level + 1 {
            return None;
        }
        let swip = Swip::unpack(parent.child(place.position).at);
        (self.is_still(place.seen) && swip.frame() == Some(frame))
            .then_some((place.seen, place.position))
    }
}
