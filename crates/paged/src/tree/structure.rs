//! Splits and higher roots. Each is one record that holds all pages of the change, with the entries that
//! it moved, and is redone whatever becomes of its transaction.

use std::sync::Arc;

use stillpoint_format::node::entry_words;
use stillpoint_format::page_log::{LoggedValue, PageImage, PageRecord};
use stillpoint_format::{LOG_NONE, Stamp};
use stillpoint_node::{Child, Node, NodeKind};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{Backoff, mutant};
use stillpoint_txn::TableId;

use super::change::Leaf;
use super::{PageLog, Pause};
use crate::backing::NewPage;
use crate::frame::{Latched, State};
use crate::held::{Claimed, Claims};
use crate::locks::Blocked;
use crate::planted;
use crate::pool::Pool;
use crate::swip::Swip;

/// What room is wanted for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Room<'a> {
    /// A value of the key, in the leaf.
    Value(LoggedValue<'a>),
    /// A separator of so many bytes in all, in an inner node.
    Separator(usize),
}

/// The result of an attempt to split a node.
enum Attempt {
    /// The node has room, or another one has its keys now.
    Ended,
    /// Another thread was faster.
    Again,
    /// The parent needs this many bytes for another child.
    ParentFull(usize),
}

/// A frame and a page id for a new page. What is not used goes back.
pub(crate) struct Reserved<'p> {
    pool: &'p Pool,
    pub(crate) frame: u32,
    pub(crate) page: NewPage,
    pub(crate) is_used: bool,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            self.pool.give_free([self.frame]);
            self.pool.keep_page(self.page);
        }
    }
}

impl Pool {
    /// Splits the leaf of a key until the leaf has room for a value of the key.
    ///
    /// # Errors
    /// The tree may have been split in part, which is a sound state. Take the step again.
    pub(crate) fn make_room(
        self: &Arc<Self>,
        table: TableId,
        key: &[u8],
        value: LoggedValue<'_>,
        (log, claims): (&mut dyn PageLog, &mut Claims<'_, '_>),
    ) -> Result<(), Pause> {
        self.make_room_at(table, key, (0, Room::Value(value)), (log, claims))
    }

    pub(super) fn make_room_at(
        self: &Arc<Self>,
        table: TableId,
        key: &[u8],
        (level, room): (u8, Room<'_>),
        (log, claims): (&mut dyn PageLog, &mut Claims<'_, '_>),
    ) -> Result<(), Pause> {
        let mut backoff = Backoff::new();
        loop {
            match self.try_make_room(table, key, (level, room), (&mut *log, &mut *claims))? {
                Attempt::Ended => return Ok(()),
                Attempt::Again => backoff.wait(),
                Attempt::ParentFull(bytes) => {
                    let room = Room::Separator(bytes);
                    self.make_room_at(table, key, (level + 1, room), (&mut *log, &mut *claims))?;
                }
            }
        }
    }

    fn try_make_room(
        self: &Arc<Self>,
        table: TableId,
        key: &[u8],
        (level, room): (u8, Room<'_>),
        (log, claims): (&mut dyn PageLog, &mut Claims<'_, '_>),
    ) -> Result<Attempt, Pause> {
        // What may wait comes first: a page id, a frame, and the child itself.
        let mut reserved = self.reserve()?;
        self.descend(table, key, level)?;
        let place = self.descend(table, key, level + 1)?;
        let Some(parent) = self.try_latch_seen(place.seen) else { return Ok(Attempt::Again) };
        let node = parent.node();
        match node.level() {
            lower if lower < level => return Ok(Attempt::Ended),
            same if same == level => {
                if has_room(&parent, key, room) {
                    return Ok(Attempt::Ended);
                }
                // A part of the leaf's stretch moves to the new page.
                let page = parent.header().page();
                let claimed = claim_leaf(level, page, &reserved, claims);
                let _claimed = match claimed {
                    Ok(claimed) => claimed,
                    Err(blocked) => {
                        parent.release_unchanged();
                        return Err(blocked.into());
                    }
                };
                if level == 0 {
                    self.purge(&parent, table, log, claims)?;
                    if has_room(&parent, key, room) {
                        return Ok(Attempt::Ended);
                    }
                }
                self.raise_root(&parent, &mut reserved, log)?;
                return Ok(Attempt::Again);
            }
            _ => {}
        }
        let Some(frame) = Swip::unpack(node.child(place.position).at).frame() else {
            return Ok(Attempt::Again);
        };
        let child = self.latch(frame);
        if has_room(&child, key, room) {
            return Ok(Attempt::Ended);
        }
        let _claimed = match claim_leaf(level, child.header().page(), &reserved, claims) {
            Ok(claimed) => claimed,
            Err(blocked) => {
                child.release_unchanged();
                parent.release_unchanged();
                return Err(blocked.into());
            }
        };
        if level == 0 {
            self.purge(&child, table, log, claims)?;
            if has_room(&child, key, room) {
                return Ok(Attempt::Ended);
            }
        }
        self.split(&parent, &child, key, &mut reserved, log)
    }

    /// Removes deleted records from a latched leaf, if no open transaction has deleted them.
    ///
    /// The record of the purge depends on the ends of the deletions. So a crash does not take these away
    /// and leave the purge.
    pub(crate) fn purge(
        &self,
        leaf: &Latched<'_>,
        table: TableId,
        log: &mut dyn PageLog,
        claims: &mut Claims<'_, '_>,
    ) -> Result<(), Pause> {
        let node = leaf.node();
        if node.ghost_count() == 0 {
            return Ok(());
        }
        let (mut slots, mut bytes, mut ghost) = (Vec::new(), Vec::new(), Vec::new());
        let mut touched = vec![leaf.header().stamp()];
        for slot in (0..node.slot_count()).filter(|&slot| node.is_ghost(slot)) {
            ghost.clear();
            node.read_key(slot, &mut ghost);
            if let Some(end) = claims.end_of(table, &ghost) {
                slots.push(slot);
                bytes.extend_from_slice(&(slot as u16).to_le_bytes());
                touched.push(end);
            }
        }
        if slots.is_empty() {
            return Ok(());
        }
        let record = PageRecord::Purge { page: leaf.header().page(), slots: &bytes };
        let stamp = append(log, &touched, &record)?;
        slots.iter().rev().for_each(|&slot| node.remove(slot));
        leaf.set_stamp(stamp);
        Ok(())
    }

    /// Splits a node whose latch and whose parent's latch the caller holds.
    fn split(
        &self,
        parent: &Latched<'_>,
        child: &Latched<'_>,
        key: &[u8],
        reserved: &mut Reserved<'_>,
        log: &mut dyn PageLog,
    ) -> Result<Attempt, Pause> {
        let split = child.node().split_for(key);
        let rest = split.separator.len().saturating_sub(parent.node().prefix_bytes());
        let needed = (entry_words(rest, 8) + 1) * 8;
        if parent.node().free_bytes() < needed {
            return Ok(Attempt::ParentFull(needed));
        }
        let owner = child.node().owner_words()[2].load(Relaxed);
        let page = reserved.page.page;
        self.begin_page(reserved.frame, page, TableId(owner as u16), (owner >> 32) as u32);
        let right = self.node(reserved.frame);
        let scratch = copy_of(child.node());
        Node::new(&scratch).split(&split, &right);
        // A checkpoint that comes after the append waits for this latch.
        let new = Latched::of_new(self, reserved.frame);
        let [head, heap] = self.image(&right);
        let record = PageRecord::Split {
            left: child.header().page(),
            right: page,
            parent: mutant!(parent.header().page(), ParentLeftOut => child.header().page()),
            separator: &split.separator,
            image: image_of(&head, &heap, right.page_bytes()),
        };
        let above = Stamp::new(reserved.page.above, LOG_NONE);
        let touched = [child.header().stamp(), parent.header().stamp(), above];
        let stamp = append(log, &touched, &record)?;
        reserved.is_used = true;
        copy_words(&scratch, child.node());
        new.header().set_state(State::Hot);
        let (position, node) = (parent.node().child_of(&split.separator), parent.node());
        let left = node.child(position);
        let right = Child { at: Swip::Hot(reserved.frame).pack(), records: 0 };
        node.insert_child(&split.separator, left, right).expect("its room was measured");
        [parent, child, &new].iter().for_each(|page| page.set_stamp(stamp));
        Ok(Attempt::Ended)
    }

    /// Moves the content of the root, which is latched, into a new page, the only child of the root.
    fn raise_root(
        &self,
        root: &Latched<'_>,
        reserved: &mut Reserved<'_>,
        log: &mut dyn PageLog,
    ) -> Result<(), Pause> {
        debug_assert_eq!(root.header().state(), State::Root, "only the root has no parent");
        let owner = root.node().owner_words()[2].load(Relaxed);
        let page = reserved.page.page;
        self.begin_page(reserved.frame, page, TableId(owner as u16), (owner >> 32) as u32);
        let child = self.node(reserved.frame);
        copy_words(&copy_of(root.node()), child);
        let new = Latched::of_new(self, reserved.frame);
        let [head, heap] = self.image(&child);
        let record = PageRecord::Raise {
            root: root.header().page(),
            child: page,
            image: image_of(&head, &heap, child.page_bytes()),
        };
        let above = Stamp::new(reserved.page.above, LOG_NONE);
        let stamp = append(log, &[root.header().stamp(), above], &record)?;
        reserved.is_used = true;
        new.header().set_state(State::Hot);
        raise(&root.node(), Swip::Hot(reserved.frame).pack());
        [root, &new].iter().for_each(|page| page.set_stamp(stamp));
        Ok(())
    }

    /// A page id and a frame for a new page.
    pub(crate) fn reserve(self: &Arc<Self>) -> Result<Reserved<'_>, Pause> {
        let page = self.take_page()?;
        match self.free_frames(1) {
            Ok(frames) => Ok(Reserved { pool: self, frame: frames[0], page, is_used: false }),
            Err(error) => {
                self.keep_page(page);
                Err(error.into())
            }
        }
    }

    /// The used words of a latched page as bytes: those at the begin, and those of the heap. Children
    /// are page ids.
    pub(super) fn image(&self, node: &Node<'_>) -> [Vec<u8>; 2] {
        let scratch = copy_of(*node);
        self.unswizzle(&Node::new(&scratch));
        let (head, heap) = Node::new(&scratch).used_words();
        let bytes = |words: &[AtomicU64]| {
            let mut bytes = Vec::with_capacity(words.len() * 8);
            // Relaxed: the words are the caller's own.
            words
                .iter()
                .for_each(|word| bytes.extend_from_slice(&word.load(Relaxed).to_le_bytes()));
            bytes
        };
        let heap = mutant!(&scratch[heap..], SplitWithoutEntries => &scratch[..0]);
        [bytes(&scratch[..head]), bytes(heap)]
    }

    /// Replaces frames by page ids in a private copy of a page whose latch the caller holds.
    pub(crate) fn unswizzle(&self, node: &Node<'_>) {
        if node.kind() != Some(NodeKind::Inner) {
            return;
        }
        for position in 0..node.child_count() {
            let child = node.child(position);
            if let Some(frame) = Swip::unpack(child.at).frame() {
                let page = self.header(frame).page();
                node.set_child(position, Child { at: Swip::Out(page).pack(), ..child });
            }
        }
    }
}

/// Makes the content of a root that of an inner node with one child.
pub(crate) fn raise(root: &Node<'_>, child: u64) {
    root.init(NodeKind::Inner, root.level() + 1, b"", None);
    root.set_only_child(Child { at: child, records: 0 });
}

/// Appends a record.
pub(crate) fn append(
    log: &mut dyn PageLog,
    touched: &[Stamp],
    record: &PageRecord<'_>,
) -> Result<Stamp, Pause> {
    let mut body = Vec::new();
    record.encode(&mut body);
    Ok(log.append(touched, &body)?)
}

pub(super) fn image_of<'b>(head: &'b [u8], heap: &'b [u8], page_bytes: usize) -> PageImage<'b> {
    PageImage { head, heap_start: ((page_bytes - heap.len()) / 8) as u16, heap }
}

/// Claims the stretch of a leaf that is about to be split. Nothing for an inner node.
fn claim_leaf<'t>(
    level: u8,
    page: u64,
    reserved: &Reserved<'_>,
    claims: &mut Claims<'t, '_>,
) -> Result<Option<Claimed<'t>>, Blocked> {
    match level {
        0 => claims.claim(page, Some(reserved.page.page)).map(Some),
        _ => Ok(None),
    }
}

/// Whether a latched node has the room.
fn has_room(latched: &Latched<'_>, key: &[u8], room: Room<'_>) -> bool {
    let node = latched.node();
    match room {
        Room::Separator(bytes) => node.free_bytes() >= bytes,
        Room::Value(value) => Leaf::needs_in(&node, node.search(key), key, value).is_none(),
    }
}

/// A copy of a page's words.
pub(crate) fn copy_of(node: Node<'_>) -> Vec<AtomicU64> {
    // Relaxed: the latch orders the stores, or a version is checked.
    node.words().iter().map(|word| AtomicU64::new(word.load(Relaxed))).collect()
}

/// Copies words into a page, but for those of the owner.
pub(crate) fn copy_words(from: &[AtomicU64], to: Node<'_>) {
    use stillpoint_format::node::{OWNER_WORDS, WORD_OWNER};
    for (at, (to, from)) in to.words().iter().zip(from).enumerate() {
        if !(WORD_OWNER..WORD_OWNER + OWNER_WORDS).contains(&at) {
            // Relaxed: the latch orders all stores.
            to.store(from.load(Relaxed), Relaxed);
        }
    }
}
