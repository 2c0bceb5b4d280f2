//! Descents from the root to a node.

use stillpoint_mem::prefetch;
use stillpoint_node::{Near, Node};
use stillpoint_sync::Backoff;
use stillpoint_txn::TableId;

use crate::frame::{FrameVersion, Latched, State};
use crate::loads::Missing;
use crate::pool::Pool;
use crate::swip::Swip;

/// Failed descents without latches after which a reader latches.
const OPTIMISTIC_DESCENTS: u8 = if cfg!(shuttle) { 2 } else { 16 };
/// Slots of a leaf that are prefetched before its header has arrived.
const LEAF_SLOTS: usize = 96;
/// Slots of an inner node that are prefetched likewise.
const INNER_SLOTS: usize = 8;

/// The end of a descent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundNode {
    pub(crate) seen: FrameVersion,
    /// Position of the child on the way, in an inner node.
    pub(crate) position: usize,
    /// Where in the node the key probably is.
    near: Near,
}

/// The slot of a key in its leaf, as of a version of the leaf. The slot means nothing before the version
/// was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPlace {
    pub(crate) leaf: FrameVersion,
    /// The slot of the key, or the slot that it would get.
    pub(crate) slot: Result<usize, usize>,
}

/// The result of an attempt without latches.
enum Attempt {
    At(FoundNode),
    /// A node has changed, or a swip was changed on the way.
    Again,
    Missing(Missing),
}

impl Pool {
    /// The place of a key in its leaf.
    ///
    /// # Errors
    /// A page on the way is not in a frame.
    #[inline]
    pub(crate) fn place(&self, table: TableId, key: &[u8]) -> Result<KeyPlace, Missing> {
        let FoundNode { seen, near, .. } = self.descend(table, key, 0)?;
        Ok(KeyPlace { leaf: seen, slot: self.node(seen.frame).search_near(key, near) })
    }

    /// The place of a key in the leaf that has the keys just below it. Without a key, the end of the last
    /// leaf.
    ///
    /// # Errors
    /// A page on the way is not in a frame.
    pub(crate) fn place_below(
        &self,
        table: TableId,
        key: Option<&[u8]>,
    ) -> Result<KeyPlace, Missing> {
        let FoundNode { seen, .. } = match key {
            Some(key) => self.descend_below(table, key, 0)?,
            None => self.descend_to_last(table, 0)?,
        };
        let node = self.node(seen.frame);
        let slot = key.map_or_else(|| Err(node.slot_count()), |key| node.search(key));
        Ok(KeyPlace { leaf: seen, slot })
    }

    /// The last node of this level, or the root of a lower tree.
    ///
    /// # Errors
    /// A page on the way is not in a frame.
    pub(super) fn descend_to_last(&self, table: TableId, level: u8) -> Result<FoundNode, Missing> {
        let last = |node: Node<'_>, _: Near| (node.child_count() - 1, Near::MIDDLE);
        self.descend_by(table, last, level)
    }

    /// The node of this level that has the keys just below a key, or the root of a lower tree.
    ///
    /// # Errors
    /// A page on the way is not in a frame.
    pub(super) fn descend_below(
        &self,
        table: TableId,
        key: &[u8],
        level: u8,
    ) -> Result<FoundNode, Missing> {
        self.descend_by(table, |node, _| (node.child_below(key), Near::MIDDLE), level)
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
        self.descend_by(table, |node: Node<'_>, near| node.child_near::<false>(key, near), level)
    }

    /// The node of this level on the way that `choose` takes. It gives a child of each inner node, and a
    /// probable place in that child.
    #[inline]
    fn descend_by(
        &self,
        table: TableId,
        choose: impl Fn(Node<'_>, Near) -> (usize, Near),
        level: u8,
    ) -> Result<FoundNode, Missing> {
        let root = self.root(table).expect("the caller has looked for the table");
        for _ in 0..OPTIMISTIC_DESCENTS {
            match self.try_descend(root, &choose, level) {
                Attempt::At(place) => return Ok(place),
                Attempt::Missing(missing) => return Err(missing),
                Attempt::Again => {}
            }
        }
        self.descend_latched(root, &choose, level)
    }

    #[inline]
    fn try_descend(
        &self,
        root: u32,
        choose: &impl Fn(Node<'_>, Near) -> (usize, Near),
        level: u8,
    ) -> Attempt {
        let (mut seen, mut near) = (self.seen(root), Near::MIDDLE);
        loop {
            let node = self.node(seen.frame);
            let own = node.level();
            if own <= level {
                let position = if own == 0 { 0 } else { choose(node, near).0 };
                return match self.is_still(seen) {
                    true => Attempt::At(FoundNode { seen, position, near }),
                    false => Attempt::Again,
                };
            }
            let (position, below) = choose(node, near);
            let Swip::Hot(frame) = Swip::unpack(node.child_number(position)) else {
                return self.not_hot(seen, position);
            };
            // The number of the frame is not checked yet.
            let Some(next) = self.enter(frame, if own == 1 { LEAF_SLOTS } else { INNER_SLOTS })
            else {
                return Attempt::Again;
            };
            // The child's version is read before the parent's is checked. So the frame held the
            // parent's child in that version.
            if !self.is_still(seen) {
                return Attempt::Again;
            }
            (seen, near) = (next, below);
        }
    }

    /// Prefetches the begin of a node, and takes the version of its frame. `None` if there is no such
    /// frame.
    #[inline]
    fn enter(&self, frame: u32, slots: usize) -> Option<FrameVersion> {
        self.prefetch(frame, slots).then(|| self.seen(frame))
    }

    /// Prefetches latch, header and first slots of a node. False if there is no such frame.
    #[inline]
    pub(super) fn prefetch(&self, frame: u32, slots: usize) -> bool {
        let is_frame = (frame as usize) < self.frame_count();
        if is_frame {
            prefetch(self.header(frame).latch());
            self.node(frame).prefetch_head(slots);
        }
        is_frame
    }

    /// Prefetches latch, header and slots of a leaf.
    pub(crate) fn prefetch_leaf(&self, frame: u32) {
        self.prefetch(frame, LEAF_SLOTS);
    }

    /// A step of a descent to a child that is not hot.
    #[cold]
    fn not_hot(&self, seen: FrameVersion, position: usize) -> Attempt {
        let swip = Swip::unpack(self.node(seen.frame).child_number(position));
        if !self.is_still(seen) {
            return Attempt::Again;
        }
        match swip {
            Swip::Hot(_) => {}
            Swip::Cool(frame) => self.heat(seen, position, frame),
            Swip::Out(page) => {
                if !self.has_arrived(page) {
                    return Attempt::Missing(Missing::new(page, seen));
                }
                if let Some(parent) = self.try_latch_seen(seen) {
                    self.attach(&parent, position, page);
                }
            }
        }
        Attempt::Again
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
    fn descend_latched(
        &self,
        root: u32,
        choose: &dyn Fn(Node<'_>, Near) -> (usize, Near),
        level: u8,
    ) -> Result<FoundNode, Missing> {
        let choose = |node: Node<'_>| choose(node, Near::MIDDLE).0;
        let mut backoff = Backoff::new();
        'again: loop {
            let mut shared = self.share(root);
            loop {
                let seen = self.seen(shared.frame);
                let node = self.node(shared.frame);
                let position = if node.level() == 0 { 0 } else { choose(node) };
                if node.level() <= level {
                    return Ok(FoundNode { seen, position, near: Near::MIDDLE });
                }
                match Swip::unpack(node.child(position).at) {
                    // An eviction would need the latch of the parent, which is shared here.
                    Swip::Hot(frame) => shared = self.share(frame),
                    Swip::Out(page) if !self.has_arrived(page) => {
                        return Err(Missing::new(page, seen));
                    }
                    swip => {
                        let frame = shared.frame;
                        drop(shared);
                        let parent = self.latch(frame);
                        // The frame may hold another node by now.
                        let node = parent.node();
                        let position = if node.level() == 0 { 0 } else { choose(node) };
                        if self.is_parent(&parent, position, swip, root) {
                            match swip {
                                Swip::Out(page) => drop(self.attach(&parent, position, page)),
                                Swip::Hot(frame) | Swip::Cool(frame) => {
                                    self.set_swip(&parent, position, Swip::Hot(frame));
                                    self.header(frame).set_state(State::Hot);
                                }
                            }
                        }
                        drop(parent);
                        backoff.wait();
                        continue 'again;
                    }
                }
            }
        }
    }

    /// Whether a latched frame holds an inner node, hot or the root, with this swip at a position.
    fn is_parent(&self, latched: &Latched<'_>, position: usize, swip: Swip, root: u32) -> bool {
        let attached = latched.header().state() == State::Hot || latched.frame == root;
        let node = latched.node();
        attached && node.level() > 0 && node.child_number(position) == swip.pack()
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
        let choose = |node: Node<'_>, near: Near| node.child_near::<false>(fence, near);
        let Attempt::At(place) = self.try_descend(root, &choose, level.checked_add(1)?) else {
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

/// The descent of one key among others, which goes on by one step at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descent {
    root: u32,
    stage: Stage,
    near: Near,
    /// Descents that were begun.
    begun: u8,
}

/// What a descent does next. What it reads then was prefetched by the step before.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Root,
    /// Takes the version of a child of a node.
    Enter(FrameVersion, u32),
    /// Searches a node.
    Search(FrameVersion),
    /// Follows the swip at a position, which is in this word of the node.
    Follow(FrameVersion, u32, u32),
    /// Compares the keys of a leaf from a slot on that has the head of the sought one.
    Compare(FrameVersion, usize),
    Ended(DescentEnd),
}

/// The end of a descent among others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DescentEnd {
    At(KeyPlace),
    /// A page is not in a frame, or others were faster too often: descend alone.
    Alone,
}

impl Descent {
    /// A descent from a root. Without a root it has ended.
    pub(crate) fn new(root: Option<u32>) -> Self {
        let stage = if root.is_some() { Stage::Root } else { Stage::Ended(DescentEnd::Alone) };
        Self { root: root.unwrap_or(0), stage, near: Near::MIDDLE, begun: 0 }
    }

    /// The end, if the descent has ended.
    #[inline]
    pub(crate) fn end(&self) -> Option<DescentEnd> {
        match self.stage {
            Stage::Ended(end) => Some(end),
            _ => None,
        }
    }
}

impl Pool {
    /// Takes all descents to their ends, each by a step in turn. The steps of the others hide the time
    /// that a cache line takes.
    ///
    /// Chen, Ailamaki, Gibbons, Mowry: *Improving hash join performance through prefetching* (ICDE 2004).
    pub(crate) fn walk_all<'k>(&self, walks: &mut [Descent], key: impl Fn(usize) -> &'k [u8]) {
        let mut is_moving = true;
        while is_moving {
            is_moving = false;
            for (at, walk) in walks.iter_mut().enumerate() {
                walk.stage = match walk.stage {
                    // These two come to other pages. A prefetch waits for the translation of its address. The
                    // fewer instructions a step has, the more of these waits overlap.
                    Stage::Follow(seen, position, word) => self.follow(seen, position, word),
                    Stage::Enter(parent, frame) => self.enter_child(parent, frame, walk.near),
                    Stage::Ended(_) => continue,
                    _ => self.step(walk, key(at)),
                };
                is_moving = true;
            }
        }
    }

    #[inline(always)]
    fn follow(&self, seen: FrameVersion, position: u32, word: u32) -> Stage {
        match Swip::unpack(self.node(seen.frame).child_in(word as usize)) {
            Swip::Hot(frame) if self.prefetch(frame, 0) => Stage::Enter(seen, frame),
            Swip::Hot(_) => Stage::Root,
            _ => self.follow_not_hot(seen, position),
        }
    }

    #[cold]
    fn follow_not_hot(&self, seen: FrameVersion, position: u32) -> Stage {
        match self.not_hot(seen, position as usize) {
            Attempt::Missing(_) => Stage::Ended(DescentEnd::Alone),
            _ => Stage::Root,
        }
    }

    #[inline(always)]
    fn enter_child(&self, parent: FrameVersion, frame: u32, near: Near) -> Stage {
        match self.try_seen(frame) {
            // As in `try_descend`.
            Some(seen) if self.is_still(parent) => {
                self.node(frame).prefetch_near(near);
                Stage::Search(seen)
            }
            _ => Stage::Root,
        }
    }

    fn step(&self, walk: &mut Descent, key: &[u8]) -> Stage {
        match walk.stage {
            Stage::Root => {
                walk.begun += 1;
                walk.near = Near::MIDDLE;
                match self.try_seen(walk.root).filter(|_| walk.begun < OPTIMISTIC_DESCENTS) {
                    Some(seen) => self.search(walk, seen, key),
                    None => Stage::Ended(DescentEnd::Alone),
                }
            }
            Stage::Search(seen) => self.search(walk, seen, key),
            Stage::Compare(leaf, first) => {
                let slot = self.node(leaf.frame).search_from(key, first);
                Stage::Ended(DescentEnd::At(KeyPlace { leaf, slot }))
            }
            stage => stage,
        }
    }

    #[inline]
    fn search(&self, walk: &mut Descent, seen: FrameVersion, key: &[u8]) -> Stage {
        let node = self.node(seen.frame);
        if node.level() == 0 {
            return match node.search_heads::<true>(key, walk.near) {
                Ok(first) => Stage::Compare(seen, first),
                slot => Stage::Ended(DescentEnd::At(KeyPlace { leaf: seen, slot })),
            };
        }
        let (position, near) = node.child_near::<true>(key, walk.near);
        let word = node.prefetch_child(position);
        walk.near = near;
        Stage::Follow(seen, position as u32, word as u32)
    }
}
