//! Repeats records of a log on pages, by page and gsn, before anything is served. Each page belongs to a lane of
//! the replay, and one thread repeats the records of a lane. A record of several pages is repeated by several
//! lanes, each on its own pages.
//!
//! Each page is brought forward alone: a record is applied to those of its pages whose gsn is smaller. A
//! page is found by its id and not by a descent, since parents may be older or newer than their children
//! until the end.

use std::collections::HashMap;
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::page_log::{LoggedValue, PageImage, PageRecord, PatchedRanges};
use stillpoint_node::{Child, Node, NodeKind, Split};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::mutant;
use stillpoint_txn::{Lane, TableId, TxError};

use crate::backing::Purpose;
use crate::frame::{Latched, State};
use crate::kind::{Paged, RecordError};
use crate::loads::Load;
use crate::planted;
use crate::pool::{LaneFrames, Pool, PoolError, root_page, table_word};
use crate::swip::Swip;
use crate::tables::Table;
use crate::tree::{Side, copy_of, copy_words, patch_value, raise, set_value};

/// A page that a record changes.
pub(crate) struct Target<'r> {
    pub(crate) table: &'r Table,
    pub(crate) page: u64,
    pub(crate) stamp: Stamp,
    pub(crate) lane: Lane,
}

impl Paged {
    /// Repeats a record.
    ///
    /// # Errors
    /// A page cannot be read, or the record does not fit a page.
    pub(crate) fn redo_record(
        &self,
        table: &Table,
        (stamp, lane): (Stamp, Lane),
        record: &PageRecord<'_>,
    ) -> Result<(), TxError> {
        let on = |page| Target { table, page, stamp, lane };
        match *record {
            // Numbers of records are those of the lane that has the page.
            PageRecord::Change { page, .. } | PageRecord::Undo { page, .. } if !lane.has(page) => {
                Ok(())
            }
            PageRecord::Change { page, key, before, after } => {
                let added = i64::from(after.is_some()) - i64::from(before.is_some());
                self.tables.count_replayed(table, stamp, added);
                self.note_values(table, key, [before, after]);
                self.redo_on(&on(page), |page| set(page, key, after))
            }
            PageRecord::Undo { page, key, had, after } => {
                let added = i64::from(after.is_some()) - i64::from(had);
                self.tables.count_replayed(table, stamp, added);
                self.note_values(table, key, [None, after]);
                self.redo_on(&on(page), |page| set(page, key, after))
            }
            PageRecord::Patch { page, key, ranges } => {
                self.redo_on(&on(page), |page| patch(page, key, ranges, Side::After))
            }
            PageRecord::Restore { page, key, ranges } => {
                self.redo_on(&on(page), |page| patch(page, key, ranges, Side::Before))
            }
            PageRecord::Split { left, right, parent, separator, image } => {
                self.redo_split(on, [left, right, parent], (separator, &image))
            }
            PageRecord::Load { left, right, parent, separator, image } => {
                if lane.has(right) {
                    let misfit = |why| TxError::abandon(RecordError::Misfit { page: right, why });
                    let words = self.sound_words(&image).map_err(misfit)?;
                    let added = Node::new(&words).slot_count() as i64;
                    self.tables.count_replayed(table, stamp, added);
                }
                self.redo_split(on, [left, right, parent], (separator, &image))
            }
            PageRecord::Raise { root, child, image } => {
                self.redo_image(&on(child), &image)?;
                self.redo_on(&on(root), |page| {
                    raise(&page.node(), Swip::Out(child).pack());
                    Ok(())
                })
            }
            PageRecord::Kept => Ok(()),
            PageRecord::Purge { page, slots } => {
                self.redo_on(&on(page), |page| purge(&page.node(), slots))
            }
            PageRecord::Large { page, .. } | PageRecord::Freed { page } if !lane.has(page) => {
                Ok(())
            }
            PageRecord::Large { page, level, bytes } => {
                table.note_large();
                let misfit = |why| TxError::abandon(RecordError::Misfit { page, why });
                self.redo_large(&on(page), (level, bytes)).map_err(misfit)
            }
            PageRecord::Freed { page } => self.redo_freed(&on(page)),
            PageRecord::Merge { left, right, parent, separator, image } => {
                self.redo_merge(&on(left), parent, (separator, &image))?;
                self.redo_freed(&on(right))
            }
        }
    }

    /// Repeats a split on its three pages.
    fn redo_split<'r>(
        &self,
        on: impl Fn(u64) -> Target<'r>,
        [left, right, parent]: [u64; 3],
        (separator, image): (&[u8], &PageImage<'_>),
    ) -> Result<(), TxError> {
        self.redo_image(&on(right), image)?;
        self.redo_on(&on(left), |page| cut(page, separator))?;
        self.redo_on(&on(parent), |page| {
            let child = |id| Child { at: Swip::Out(id).pack(), records: 0 };
            let node = page.node();
            if node.kind() == Some(NodeKind::Leaf) || node.search(separator).is_ok() {
                return Err("the parent of a split".to_owned());
            }
            let inserted = node.insert_child(separator, child(left), child(right));
            inserted.map_err(|error| error.to_string())
        })
    }

    /// Repeats a merge on the page that has all entries, and on the parent.
    fn redo_merge(
        &self,
        left: &Target<'_>,
        parent: u64,
        (separator, image): (&[u8], &PageImage<'_>),
    ) -> Result<(), TxError> {
        self.redo_on(left, |page| {
            copy_words(&self.sound_words(image)?, page.node());
            Ok(())
        })?;
        self.redo_on(&Target { page: parent, ..*left }, |page| {
            let node = page.node();
            match (node.kind(), node.search(separator)) {
                (Some(NodeKind::Inner), Ok(slot)) => {
                    let at = Swip::Out(left.page).pack();
                    node.merge_children(slot, Child { at, records: 0 });
                    Ok(())
                }
                _ => Err("the parent of a merge".to_owned()),
            }
        })
    }

    /// The words of a whole page.
    fn sound_words(&self, image: &PageImage<'_>) -> Result<Vec<AtomicU64>, String> {
        let words = self.pool.words_of(image).ok_or("the image's length")?;
        Node::new(&words).check().map_err(|error| error.to_string())?;
        Ok(words)
    }

    /// Notes the large values that a record names.
    fn note_values(&self, table: &Table, key: &[u8], values: [LoggedValue<'_>; 2]) {
        let references = values.into_iter().filter_map(|value| value?.reference());
        references.for_each(|reference| self.note_met(table.id, key, reference));
    }

    /// Repeats the effect of a record on one page, if there is such a page and it does not have the effect.
    fn redo_on(
        &self,
        target: &Target<'_>,
        effect: impl FnOnce(&Latched<'_>) -> Result<(), String>,
    ) -> Result<(), TxError> {
        let Target { table, page, stamp, lane } = *target;
        if !lane.has(page) {
            return Ok(());
        }
        let misfit = |why| TxError::abandon(RecordError::Misfit { page, why });
        let latched = if page == root_page(table.id) {
            let root = self.pool.root(table.id).ok_or(TxError::NoSuchTable(table.id))?;
            Some(self.pool.latch(root))
        } else {
            let find = || self.pool.page_if_exists(page);
            self.pool.latch_found(page, lane, find).map_err(TxError::abandon)?
        };
        // A later record has freed the page, and its content went elsewhere.
        let Some(latched) = latched else { return Ok(()) };
        let gsn = latched.header().stamp().gsn();
        if mutant!(stamp.gsn() <= gsn, RedoneAtSameGsn => stamp.gsn() < gsn) {
            return Ok(());
        }
        // Relaxed: the latch orders the loads.
        let owner = TableId(latched.node().owner_words()[2].load(Relaxed) as u16);
        if owner != table.id {
            return Err(misfit(format!("the page belongs to table {}", owner.0)));
        }
        effect(&latched).map_err(misfit)?;
        latched.set_stamp(stamp);
        Ok(())
    }

    /// Gives a page its first content, unless the page has that or later content.
    fn redo_image(&self, target: &Target<'_>, image: &PageImage<'_>) -> Result<(), TxError> {
        let Target { table, page, stamp, lane } = *target;
        if !lane.has(page) {
            return Ok(());
        }
        let misfit = |why| TxError::abandon(RecordError::Misfit { page, why });
        let words = self.sound_words(image).map_err(misfit)?;
        self.pool.backing.note_used(page);
        self.note_made(table.id, page);
        let latched = self.pool.latch_or_make(page, lane, table).map_err(TxError::abandon)?;
        if stamp.gsn() > latched.header().stamp().gsn() {
            copy_words(&words, latched.node());
            // Relaxed: the latch orders the stores.
            let owner = table_word(table.id, table.generation());
            latched.node().owner_words()[2].store(owner, Relaxed);
            latched.set_stamp(stamp);
        }
        Ok(())
    }
}

impl Pool {
    /// The words of a page with this content. `None` if pages have another length.
    fn words_of(&self, image: &PageImage<'_>) -> Option<Vec<AtomicU64>> {
        let PageImage { head, heap_start, heap } = *image;
        let count = self.page_bytes() / 8;
        if usize::from(heap_start) + heap.len() / 8 != count {
            return None;
        }
        let words: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
        for (from, bytes) in [(0, head), (usize::from(heap_start), heap)] {
            let (chunks, _) = bytes.as_chunks::<8>();
            for (word, chunk) in words[from..].iter().zip(chunks) {
                // Relaxed: the words are the caller's own.
                word.store(u64::from_le_bytes(*chunk), Relaxed);
            }
        }
        Some(words)
    }

    /// Whether there is a page that no swip leads to, or one that is out.
    pub(crate) fn exists(&self, page: u64) -> bool {
        self.loads.lock().contains_key(&page) || self.backing.is_placed(page)
    }

    /// As [`page`](Self::page). `None` if there is no such page.
    fn page_if_exists(self: &Arc<Self>, page: u64) -> Result<Option<u32>, PoolError> {
        match self.loads.lock().get(&page) {
            Some(Load::Loaded(frame)) => return Ok(Some(*frame)),
            Some(Load::Reading(_)) => {}
            None if self.backing.is_placed(page) => {}
            None => return Ok(None),
        }
        self.page(page).map(Some)
    }

    /// The frames of the pages of a lane.
    pub(crate) fn frames_of(&self, lane: Lane) -> &LaneFrames {
        &self.lanes[lane.number() % self.lanes.len()]
    }

    /// Forgets what replays have noted.
    pub(crate) fn end_lanes(&self) {
        self.lanes.iter().for_each(|frames| *frames.lock() = HashMap::default());
    }

    /// Latches a page where the lane has had it, or where `find` finds it. Other lanes may have evicted it: then it
    /// is found anew. Only its lane reads a page into a frame, and an eviction latches the frame. So a latched
    /// frame that says so has the page.
    pub(crate) fn latch_found(
        &self,
        page: u64,
        lane: Lane,
        find: impl Fn() -> Result<Option<u32>, PoolError>,
    ) -> Result<Option<Latched<'_>>, PoolError> {
        let mut frames = self.frames_of(lane).lock();
        loop {
            let frame = match frames.get(&page) {
                Some(&frame) => frame,
                None => {
                    let Some(frame) = find()? else { return Ok(None) };
                    if frames.len() >= 2 * self.frame_count() {
                        frames.clear();
                    }
                    frames.insert(page, frame);
                    frame
                }
            };
            let latched = self.latch(frame);
            let header = latched.header();
            if header.page() == page && header.state() == State::Loaded {
                return Ok(Some(latched));
            }
            latched.release_unchanged();
            frames.remove(&page);
        }
    }

    /// Latches a page that a replay makes.
    pub(crate) fn latch_or_make(
        self: &Arc<Self>,
        page: u64,
        lane: Lane,
        table: &Table,
    ) -> Result<Latched<'_>, PoolError> {
        let find = || self.page_or_new(page, table).map(Some);
        self.latch_found(page, lane, find).map(|latched| latched.expect("it is made"))
    }

    /// The frame of a page that a replay makes. A page that nobody has gets a frame.
    fn page_or_new(self: &Arc<Self>, page: u64, table: &Table) -> Result<u32, PoolError> {
        if let Some(frame) = self.page_if_exists(page)? {
            return Ok(frame);
        }
        let frame = self.free_frames_for(1, Purpose::GoOn)?[0];
        self.begin_page(frame, page, table.id, table.generation());
        self.header(frame).set_state(State::Loaded);
        self.loads.lock().insert(page, Load::Loaded(frame));
        Ok(frame)
    }
}

/// The node of a page that is the leaf of a key.
fn leaf_of<'p>(page: &Latched<'p>, key: &[u8]) -> Result<Node<'p>, String> {
    let node = page.node();
    match node.kind() == Some(NodeKind::Leaf) && node.covers(key) {
        true => Ok(node),
        false => Err("the page is no leaf of the key".to_owned()),
    }
}

/// Gives a key of a leaf its value.
fn set(page: &Latched<'_>, key: &[u8], after: LoggedValue<'_>) -> Result<(), String> {
    let node = leaf_of(page, key)?;
    set_value(&node, node.search(key), key, after).map_err(|error| error.to_string())
}

/// Gives some bytes of the value of a key what they were before a patch or after it.
fn patch(
    page: &Latched<'_>,
    key: &[u8],
    ranges: PatchedRanges<'_>,
    side: Side,
) -> Result<(), String> {
    let node = leaf_of(page, key)?;
    patch_value(&node, node.search(key), ranges, side)
}

/// Removes deleted records.
fn purge(node: &Node<'_>, slots: &[u8]) -> Result<(), String> {
    let (slots, _) = slots.as_chunks::<2>();
    let is_ghost = |slot: &[u8; 2]| {
        let slot = usize::from(u16::from_le_bytes(*slot));
        slot < node.slot_count() && node.is_ghost(slot)
    };
    if node.kind() != Some(NodeKind::Leaf) || !slots.iter().all(is_ghost) {
        return Err("the page has no such deleted records".to_owned());
    }
    slots.iter().rev().for_each(|slot| node.remove(u16::from_le_bytes(*slot).into()));
    Ok(())
}

/// Removes the entries from a separator on, which are on another page.
fn cut(page: &Latched<'_>, separator: &[u8]) -> Result<(), String> {
    let node = page.node();
    let slot = match (node.kind(), node.search(separator)) {
        (Some(NodeKind::Leaf), Ok(slot) | Err(slot)) | (_, Ok(slot)) => slot,
        (_, Err(_)) => return Err("the node has no such separator".to_owned()),
    };
    if !node.covers(separator) {
        return Err("the separator is outside of the fences".to_owned());
    }
    let scratch = copy_of(node);
    let rest: Vec<AtomicU64> = scratch.iter().map(|_| AtomicU64::new(0)).collect();
    let split = Split { slot, separator: separator.to_vec() };
    Node::new(&scratch).split(&split, &Node::new(&rest));
    copy_words(&scratch, node);
    Ok(())
}
