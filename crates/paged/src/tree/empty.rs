//! All pages of a table: given back when the table is emptied.

use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_node::{Node, NodeKind};
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::{Backoff, mutant};
use stillpoint_txn::TableId;

use crate::frame::{Latched, NEVER, State};
use crate::loads::Load;
use crate::planted;
use crate::pool::{Pool, table_word};
use crate::swip::Swip;

impl Pool {
    /// Makes the root of a table an empty leaf of a new generation, and gives all other pages back. The
    /// caller holds all locks of the table.
    ///
    /// An inner page that cannot be read leaves the pages below it unused for ever.
    pub(crate) fn empty_table(self: &Arc<Self>, table: TableId, generation: u32) {
        let frame = self.root(table).expect("the caller has looked for the table");
        // The copy of a write-back under way would count as the newest one.
        let root = self.latch_unwritten(frame);
        let (level, children) = (root.node().level(), children_of(&root.node()));
        // Relaxed: the latch orders the store.
        root.node().owner_words()[2].store(table_word(table, generation), Relaxed);
        root.node().init(NodeKind::Leaf, 0, b"", None);
        // The copy that the backing has is of the older generation.
        root.header().set_persisted(NEVER);
        drop(root);
        // Pages in frames come first: nothing evicts them any more, and others need frames to be read.
        let (mut in_frames, mut out) = (Vec::new(), Vec::new());
        sort(children, level.saturating_sub(1), &mut in_frames, &mut out);
        loop {
            while let Some((frame, level)) = in_frames.pop() {
                let children = self.free_frame(frame, level);
                sort(children, level.saturating_sub(1), &mut in_frames, &mut out);
            }
            let Some((page, level)) = out.pop() else { return };
            let is_known = self.loads.lock().contains_key(&page);
            if level == 0 && !is_known {
                self.backing.free(page, Stamp::NONE);
            } else if self.page(page).is_ok() {
                match self.loads.lock().remove(&page) {
                    Some(Load::Loaded(frame)) => in_frames.push((frame, level)),
                    // Another thread has evicted it.
                    _ => out.push((page, level)),
                }
            }
        }
    }

    /// Latches a frame exclusively that no thread writes back. No write-back begins while it is latched.
    fn latch_unwritten(&self, frame: u32) -> Latched<'_> {
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

    /// Gives the page of a frame back that nothing leads to. Returns its children.
    fn free_frame(&self, frame: u32, level: u8) -> Vec<Swip> {
        let latched = self.latch_unwritten(frame);
        let (page, stamp) = (latched.header().page(), latched.header().stamp());
        let children = if level == 0 { Vec::new() } else { children_of(&latched.node()) };
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
