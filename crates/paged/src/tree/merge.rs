//! Merges of sparse nodes with a neighbour below the same parent. A merge is one record that holds the merged
//! page, and is redone whatever becomes of its transaction.
//!
//! A table that serves as a queue would otherwise keep a nearly empty leaf for each that it ever had. Who is
//! about to delete the last record of a leaf merges first.

use std::sync::Arc;

use stillpoint_format::page_log::PageRecord;
use stillpoint_node::{Child, Node};
use stillpoint_sync::mutant;
use stillpoint_txn::TableId;

use super::structure::{append, copy_of, copy_words, image_of};
use super::{PageLog, Pause};
use crate::frame::{Latched, State};
use crate::held::Claims;
use crate::loads::Missing;
use crate::planted;
use crate::pool::Pool;
use crate::swip::Swip;

/// Most steps of one call: merges, and attempts for which others were faster.
const STEPS: usize = 16;

/// The neighbour that a node is merged with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum With {
    Left,
    Right,
}

/// The result of an attempt to merge a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merged {
    /// Another thread was faster, or a page has come.
    Again,
    /// Two nodes are one now.
    Done,
    /// There is no such neighbour, both have too much for one page, or somebody needs one of them as it is.
    Ended,
}

/// Whether a node has less than a third of its page.
fn is_sparse(node: &Node<'_>) -> bool {
    node.free_bytes() * 3 > node.page_bytes() * 2
}

/// Whether the node of a merge leaves room for insertions, or saves a page that has nothing.
fn is_worth_it(merged: &Node<'_>, left: &Node<'_>, right: &Node<'_>) -> bool {
    let is_empty = left.slot_count() == 0 || right.slot_count() == 0;
    is_empty || merged.free_bytes() * 4 >= merged.page_bytes()
}

impl Pool {
    /// Merges the leaf of a key with its neighbours, and then its parents with theirs, as long as they are
    /// sparse.
    ///
    /// # Errors
    /// As a step in the tree. What was merged is a sound state.
    pub(crate) fn merge_sparse(
        self: &Arc<Self>,
        table: TableId,
        key: &[u8],
        (log, claims): (&mut dyn PageLog, &mut Claims<'_, '_>),
    ) -> Result<(), Pause> {
        let (mut level, mut with, mut has_merged) = (0, With::Left, false);
        for _ in 0..STEPS {
            let at = (level, with);
            match self.try_merge(table, key, at, (&mut *log, &mut *claims))? {
                Merged::Again => {}
                // The next neighbour may have nothing but deletions that have ended meanwhile.
                Merged::Done => has_merged = true,
                Merged::Ended if with == With::Left => with = With::Right,
                Merged::Ended if has_merged => {
                    (level, with, has_merged) = (level + 1, With::Left, false);
                }
                Merged::Ended => break,
            }
        }
        Ok(())
    }

    fn try_merge(
        self: &Arc<Self>,
        table: TableId,
        key: &[u8],
        (level, with): (u8, With),
        (log, claims): (&mut dyn PageLog, &mut Claims<'_, '_>),
    ) -> Result<Merged, Pause> {
        let place = self.descend(table, key, level + 1)?;
        let Some(parent) = self.try_latch_seen(place.seen) else { return Ok(Merged::Again) };
        let node = parent.node();
        let at = match with {
            With::Left => place.position.checked_sub(1),
            With::Right => Some(place.position),
        };
        let at = at.filter(|&at| node.level() == level + 1 && at < node.slot_count());
        let Some(at) = at else {
            parent.release_unchanged();
            return Ok(Merged::Ended);
        };
        for position in [at, at + 1] {
            match Swip::unpack(node.child(position).at) {
                Swip::Hot(_) => {}
                Swip::Cool(frame) => {
                    self.set_swip(&parent, position, Swip::Hot(frame));
                    self.header(frame).set_state(State::Hot);
                    return Ok(Merged::Again);
                }
                Swip::Out(page) if self.has_arrived(page) => {
                    self.attach(&parent, position, page);
                    return Ok(Merged::Again);
                }
                Swip::Out(page) => {
                    parent.release_unchanged();
                    return Err(Missing::new(page, place.seen).into());
                }
            }
        }
        let [left, right] = [at, at + 1].map(|position| {
            let frame = Swip::unpack(node.child(position).at).frame();
            self.latch(frame.expect("both are hot"))
        });
        self.merge(table, (parent, left, right), (level, log), claims)
    }

    /// Merges two children of a node. All three are latched.
    fn merge(
        &self,
        table: TableId,
        (parent, left, right): (Latched<'_>, Latched<'_>, Latched<'_>),
        (level, log): (u8, &mut dyn PageLog),
        claims: &mut Claims<'_, '_>,
    ) -> Result<Merged, Pause> {
        let [left_page, right_page] = [&left, &right].map(|page| page.header().page());
        // The copy of a write-back under way would be taken for one of the frame's next page.
        let claimed = match right.header().is_written() {
            true => None,
            false if level > 0 => Some(None),
            false => claims.claim_both(left_page, right_page).ok().map(Some),
        };
        let Some(_claimed) = claimed else {
            [right, left, parent].into_iter().for_each(Latched::release_unchanged);
            return Ok(Merged::Ended);
        };
        if level == 0 {
            self.purge(&left, table, log, claims)?;
            self.purge(&right, table, log, claims)?;
        }
        let scratch = copy_of(left.node());
        let merged = Node::new(&scratch);
        let is_sparse = level == 0 || [&left, &right].iter().any(|page| is_sparse(&page.node()));
        if !is_sparse
            || merged.merge(&right.node()).is_err()
            || !is_worth_it(&merged, &left.node(), &right.node())
        {
            return Ok(Merged::Ended);
        }
        let mut separator = Vec::new();
        right.node().read_lower_fence(&mut separator);
        let [head, heap] = self.image(&merged);
        let record = PageRecord::Merge {
            left: left_page,
            right: right_page,
            parent: parent.header().page(),
            separator: &separator,
            image: image_of(&head, &heap, merged.page_bytes()),
        };
        let touched = [&left, &right, &parent].map(|page| page.header().stamp());
        let stamp = append(log, &touched, &record)?;
        copy_words(&scratch, left.node());
        let slot = parent.node().search(&separator).expect("the separator of both");
        let child = Child { at: Swip::Hot(left.frame).pack(), records: 0 };
        parent.node().merge_children(slot, child);
        [&parent, &left].iter().for_each(|page| page.set_stamp(stamp));
        // From here on no write-back claims the frame, and nothing leads to it.
        right.header().set_state(State::Free);
        let frame = right.frame;
        drop(right);
        self.give_free([frame]);
        mutant!(self.backing.free_at_once(&[right_page], stamp), MergedPageNotFreed => ());
        Ok(Merged::Done)
    }
}
