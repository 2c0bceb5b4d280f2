//! All pages of a table: given back when the table is emptied.

use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::large::LargeReference;
use stillpoint_node::{Node, NodeKind};
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::{Backoff, mutant};
use stillpoint_txn::TableId;

use crate::frame::{Latched, NEVER, State};
use crate::large::references;
use crate::loads::Load;
use crate::planted;
use crate::pool::{Pool, table_word};
use crate::swip::Swip;

/// The page of an emptied table that could not be read.
#[derive(Debug)]
pub(crate) struct Unfreed {
    table: TableId,
    page: u64,
    level: u8,
    has_large: bool,
}

impl Pool {
    /// Makes the root of a table an empty leaf of a new generation, and gives all other pages back. The
    /// caller holds all locks of the table.
    ///
    /// What cannot be read is [tried again](Self::free_unfreed).
    ///
    /// `has_large` says whether leaves may refer to large values. Then all leaves are read.
    pub(crate) fn empty_table(self: &Arc<Self>, table: TableId, generation: u32, has_large: bool) {
        let frame = self.root(table).expect("the caller has looked for the table");
        // The copy of a write-back under way would count as the newest one.
        let root = self.latch_unwritten(frame);
        let (level, children) = (root.node().level(), children_of(&root.node()));
        let mut values = references(&root.node());
        // Relaxed: the latch orders the store.
        root.node().owner_words()[2].store(table_word(table, generation), Relaxed);
        root.node().init(NodeKind::Leaf, 0, b"", None);
        // The copy that the backing has is of the older generation.
        root.header().set_persisted(NEVER);
        drop(root);
        // Pages in frames come first: nothing evicts them any more, and others need frames to be read.
        let (mut in_frames, mut out) = (Vec::new(), Vec::new());
        sort(children, level.saturating_sub(1), &mut in_frames, &mut out);
        values.drain(..).for_each(|reference| self.free_value(table, reference));
        self.free_subtrees(table, has_large, in_frames, out);
    }

    /// Gives pages back that could not be read before.
    pub(crate) fn free_unfreed(self: &Arc<Self>) {
        for (table, reference) in std::mem::take(&mut *self.unread_values.lock()) {
            self.free_value(table, reference);
        }
        let unfreed = std::mem::take(&mut *self.unfreed.lock());
        for Unfreed { table, page, level, has_large } in unfreed {
            self.free_subtrees(table, has_large, Vec::new(), vec![(page, level)]);
        }
    }

    /// Gives pages back to which nothing leads, and all pages below them.
    fn free_subtrees(
        self: &Arc<Self>,
        table: TableId,
        has_large: bool,
        mut in_frames: Vec<(u32, u8)>,
        mut out: Vec<(u64, u8)>,
    ) {
        let mut values = Vec::new();
        loop {
            while let Some((frame, level)) = in_frames.pop() {
                let children = self.free_frame(frame, level, &mut values);
                sort(children, level.saturating_sub(1), &mut in_frames, &mut out);
            }
            for reference in values.drain(..) {
                self.free_value(table, reference);
            }
            let Some((page, level)) = out.pop() else { return };
            let is_known = self.loads.lock().contains_key(&page);
            if level == 0 && !is_known && !has_large {
                self.backing.free(page, Stamp::NONE);
            } else if self.page(page).is_ok() {
                match self.loads.lock().remove(&page) {
                    Some(Load::Loaded(frame)) => in_frames.push((frame, level)),
                    // Another thread has evicted it.
                    _ => out.push((page, level)),
                }
            } else if mutant!(true, UnreadNotFreed => false) {
                self.unfreed.lock().push(Unfreed { table, page, level, has_large });
            }
        }
    }

    /// Latches a frame exclusively that no thread writes back. No write-back begins while it is latched.
    pub(crate) fn latch_unwritten(&self, frame: u32) -> Latched<'_> {
        let mut backoff = Backoff::new();
        loop {
            let latched = self.latch(frame);
            if !mutant!(latched.header().is_written(), EmptiesWhileWritten => false) {
                return latched;
            }
            drop(latched);
            backoff.wait();
        }
    }

    /// Gives the page of a frame back that nothing leads to. Returns its children, and appends the large
    /// values to which it refers.
    fn free_frame(&self, frame: u32, level: u8, values: &mut Vec<LargeReference>) -> Vec<Swip> {
        let latched = self.latch_unwritten(frame);
        let (page, stamp) = (latched.header().page(), latched.header().stamp());
        let children = if level == 0 { Vec::new() } else { children_of(&latched.node()) };
        values.extend(references(&latched.node()));
        // From here on no write-back claims the frame.
        latched.header().set_state(State::Free);
        drop(latched);
        self.give_free([frame]);
        self.backing.free(page, stamp);
        children
    }
}

/// Sorts the children of a freed page, which have this level: those in frames, and those that are out.
fn sort(children: Vec<Swip>, level: u8, in_frames: &mut Vec<(u32, u8)>, out: &mut Vec<(u64, u8)>) {
    for child in children {
        match child {
            Swip::Hot(frame) | Swip::Cool(frame) => in_frames.push((frame, level)),
            Swip::Out(page) => out.push((page, level)),
        }
    }
}

/// The children of a latched node.
fn children_of(node: &Node<'_>) -> Vec<Swip> {
    if node.level() == 0 {
        return Vec::new();
    }
    (0..node.child_count()).map(|position| Swip::unpack(node.child(position).at)).collect()
}
