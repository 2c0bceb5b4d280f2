//! Leaves that a long scan asks for ahead of their use.

use std::sync::Arc;

use stillpoint_txn::TableId;

use crate::frame::FrameVersion;
use crate::loads::Missing;
use crate::pool::Pool;
use crate::swip::Swip;

/// Most leaves that a scan asks for at a time. A device has about half as many reads under way all the time.
const LEAVES: usize = 64;
/// A scan asks for this part of the pool at most.
const PART: usize = 32;
/// A batch of so many records makes a scan a long one. Each further leaf then doubles what is asked for.
const LONG: usize = 128;

/// What the reader of a range has asked for ahead of its use.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// The leaf that was read last.
    page: u64,
    /// Further leaves that were asked for.
    left: usize,
}

impl ReadAhead {
    /// Notes that a batch of up to `most` records was read from a leaf, in a pool of so many frames. Returns the
    /// number of leaves to ask for now, which is 0 most of the time.
    pub(crate) fn note(&mut self, page: u64, most: usize, frames: usize) -> usize {
        if std::mem::replace(&mut self.page, page) != page {
            self.left = self.left.saturating_sub(1);
        }
        if most < LONG {
            self.left = 0;
            return 0;
        }
        let wanted = (most / (LONG / 2)).min(LEAVES).min(frames / PART);
        if self.left > wanted / 2 { 0 } else { wanted }
    }

    /// Notes that so many leaves were asked for.
    pub(crate) fn note_asked(&mut self, leaves: usize) {
        self.left = leaves;
    }
}

impl Pool {
    /// Begins to read up to `count` leaves of a scan that goes on with a key, or below it. Returns the number
    /// of leaves that are here or on their way.
    pub(crate) fn ask_for_leaves(
        self: &Arc<Self>,
        table: TableId,
        from: &[u8],
        (is_descending, count): (bool, usize),
    ) -> usize {
        let (mut found, mut key, mut begun) = (0, from.to_vec(), false);
        // The leaves below one inner node after the other.
        while found < count {
            let parent = match is_descending {
                false => self.descend(table, &key, 1),
                true => self.descend_below(table, &key, 1),
            };
            let parent = match parent {
                Ok(parent) => parent,
                Err(missing) => {
                    begun |= self.queue_ahead(missing) == Some(true);
                    break;
                }
            };
            let node = self.node(parent.seen.frame);
            if node.level() != 1 {
                break;
            }
            let position = parent.position;
            let at = |step: usize| if is_descending { position - step } else { position + step };
            let steps = if is_descending {
                position + 1
            } else {
                node.child_count().saturating_sub(position)
            };
            for step in 0..steps.min(count - found) {
                match self.ask_for_child(parent.seen, at(step)) {
                    Some(is_begun) => begun |= is_begun,
                    None => return self.end_asking(found, begun),
                }
                found += 1;
            }
            key.clear();
            let goes_on = match is_descending {
                false => node.read_upper_fence(&mut key),
                true => {
                    node.read_lower_fence(&mut key);
                    !key.is_empty()
                }
            };
            if !goes_on || !self.is_still(parent.seen) {
                break;
            }
        }
        self.end_asking(found, begun)
    }

    fn end_asking(&self, found: usize, begun: bool) -> usize {
        if begun {
            self.backing.submit();
        }
        found
    }

    /// Begins to read a child if it is out. True if that was begun. `None` if the parent has changed, or if there
    /// is no frame.
    fn ask_for_child(self: &Arc<Self>, parent: FrameVersion, position: usize) -> Option<bool> {
        let swip = Swip::unpack(self.node(parent.frame).child_number(position));
        if !self.is_still(parent) {
            return None;
        }
        match swip {
            Swip::Out(page) => self.queue_ahead(Missing::new(page, parent)),
            Swip::Hot(_) | Swip::Cool(_) => Some(false),
        }
    }
}
