//! Leaves that a load of sorted records appends. A leaf is filled apart. One record then has the whole leaf and
//! its place behind the last one, so a load descends once for each leaf. A crash leaves the leaves up to one.
//!
//! The caller has all words of the kind, so nobody else changes the tree or reads it under locks.

use std::sync::Arc;

use stillpoint_format::node::entry_words;
use stillpoint_format::page_log::PageRecord;
use stillpoint_format::{LOG_NONE, Stamp};
use stillpoint_node::{Child, Node, NodeKind, Split};
use stillpoint_sync::atomic::AtomicU64;
use stillpoint_txn::RangeBatch;

use super::structure::{Reserved, Room, image_of};
use super::{PageLog, Pause, copy_of, copy_words};
use crate::frame::{Latched, State};
use crate::held::Claims;
use crate::pool::Pool;
use crate::swip::Swip;
use crate::tables::{Table, Tables};

/// The result of an attempt to append a leaf.
enum Appended {
    /// A leaf with so many records. 0 if the next record is one for an ordinary put.
    Leaf(usize),
    /// Another thread was faster.
    Again,
    /// The parent needs this many bytes for a separator of this key.
    ParentFull(Vec<u8>, usize),
}

impl Pool {
    /// Appends a leaf with the next of these records, from number `from` on. Returns how many it has. It is
    /// none if the next record is for an ordinary put. Then the tree has one leaf, or the record is too long or
    /// not above all others.
    ///
    /// # Errors
    /// The tree may have been split in part, which is a sound state. Take the step again.
    pub(crate) fn append_leaf(
        self: &Arc<Self>,
        (tables, table): (&Tables, &Table),
        (records, from): (&RangeBatch, usize),
        (log, claims): (&mut dyn PageLog, &mut Claims<'_, '_>),
    ) -> Result<usize, Pause> {
        let mut backoff = stillpoint_sync::Backoff::new();
        loop {
            match self.try_append_leaf((tables, table), (records, from), &mut *log)? {
                Appended::Leaf(count) => return Ok(count),
                Appended::Again => backoff.wait(),
                Appended::ParentFull(separator, bytes) => {
                    let room = (1, Room::Separator(bytes));
                    self.make_room_at(table.id, &separator, room, (&mut *log, &mut *claims))?;
                }
            }
        }
    }

    fn try_append_leaf(
        self: &Arc<Self>,
        (tables, table): (&Tables, &Table),
        (records, from): (&RangeBatch, usize),
        log: &mut dyn PageLog,
    ) -> Result<Appended, Pause> {
        let (key, _, value) = records.record(from);
        if !self.fits_leaf(key, value) {
            return Ok(Appended::Leaf(0));
        }
        // What may wait comes first: a page id, a frame, and the last leaf itself.
        let mut reserved = self.reserve()?;
        self.descend_to_last(table.id, 0)?;
        let place = self.descend_to_last(table.id, 1)?;
        let Some(parent) = self.try_latch_seen(place.seen) else { return Ok(Appended::Again) };
        let node = parent.node();
        if node.kind() != Some(NodeKind::Inner) {
            parent.release_unchanged();
            return Ok(Appended::Leaf(0));
        }
        let last = node.child(node.child_count() - 1);
        let Some(frame) = Swip::unpack(last.at).frame() else { return Ok(Appended::Again) };
        let left = self.latch(frame);
        let Some(split) = left.node().split_behind(key) else {
            [left, parent].into_iter().for_each(Latched::release_unchanged);
            return Ok(Appended::Leaf(0));
        };
        let rest = split.separator.len().saturating_sub(node.prefix_bytes());
        let needed = (entry_words(rest, 8) + 1) * 8;
        if node.free_bytes() < needed {
            [left, parent].into_iter().for_each(Latched::release_unchanged);
            return Ok(Appended::ParentFull(split.separator, needed));
        }
        self.begin_page(reserved.frame, reserved.page.page, table.id, table.generation());
        let right = self.node(reserved.frame);
        right.init(NodeKind::Leaf, 0, &split.separator, None);
        let count = self.fill_leaf(&right, records, from);
        if count == 0 {
            [left, parent].into_iter().for_each(Latched::release_unchanged);
            return Ok(Appended::Leaf(0));
        }
        let log = |touched: &[Stamp], body: &[u8]| {
            tables.append_counted(table, count as i64, || log.append(touched, body))
        };
        self.attach_leaf([&parent, &left], &split, &mut reserved, log)?;
        Ok(Appended::Leaf(count))
    }

    /// Whether a record is none with a key that is too long, or a value that has pages of its own.
    fn fits_leaf(&self, key: &[u8], value: &[u8]) -> bool {
        key.len() <= self.key_bytes_max() && value.len() <= self.value_bytes_max()
    }

    /// Fills an empty last leaf with the next records, whose keys ascend. Leaves room for the upper fence that
    /// a further leaf would give it. Returns the number of records.
    fn fill_leaf(&self, leaf: &Node<'_>, records: &RangeBatch, from: usize) -> usize {
        let mut count = 0;
        let mut last: Option<&[u8]> = None;
        for number in from..records.len() {
            let (key, tag, value) = records.record(number);
            let ascends = last.is_none_or(|last| last < key);
            // The fence has a byte more than the last key at most.
            let fence = (key.len() + 1).next_multiple_of(8);
            let entry = (entry_words(key.len(), value.len().next_multiple_of(8)) + 1) * 8;
            let has_room = leaf.free_bytes() >= entry + fence;
            if !ascends || !self.fits_leaf(key, value) || !has_room {
                break;
            }
            leaf.insert_at(Err(count), key, value, tag).expect("its room was measured");
            (count, last) = (count + 1, Some(key));
        }
        count
    }

    /// Logs a filled leaf, and gives it its place behind the last one.
    fn attach_leaf(
        &self,
        [parent, left]: [&Latched<'_>; 2],
        split: &Split,
        reserved: &mut Reserved<'_>,
        log: impl FnOnce(&[Stamp], &[u8]) -> Result<Stamp, stillpoint_txn::LogRefused>,
    ) -> Result<(), Pause> {
        let right = self.node(reserved.frame);
        let scratch = copy_of(left.node());
        let none: Vec<AtomicU64> = scratch.iter().map(|_| AtomicU64::new(0)).collect();
        Node::new(&scratch).split(split, &Node::new(&none));
        // A checkpoint that comes after the append waits for this latch.
        let new = Latched::of_new(self, reserved.frame);
        let [head, heap] = self.image(&right);
        let record = PageRecord::Load {
            left: left.header().page(),
            right: reserved.page.page,
            parent: parent.header().page(),
            separator: &split.separator,
            image: image_of(&head, &heap, right.page_bytes()),
        };
        let above = Stamp::new(reserved.page.above, LOG_NONE);
        let touched = [left.header().stamp(), parent.header().stamp(), above];
        let mut body = Vec::new();
        record.encode(&mut body);
        let stamp = log(&touched, &body)?;
        reserved.is_used = true;
        copy_words(&scratch, left.node());
        new.header().set_state(State::Hot);
        let (position, node) = (parent.node().child_of(&split.separator), parent.node());
        let right = Child { at: Swip::Hot(reserved.frame).pack(), records: 0 };
        node.insert_child(&split.separator, node.child(position), right)
            .expect("its room was measured");
        [parent, left, &new].iter().for_each(|page| page.set_stamp(stamp));
        Ok(())
    }
}
