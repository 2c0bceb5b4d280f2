//! Values that are too long for a leaf: their pages, which are written once, and freed as a whole.
//!
//! Such a page is never attached to a swip: the table of loads has it as long as it is in a frame. A
//! reference names one value for ever, by its root and the root's gsn.
//!
//! The module `freeing` says who frees such pages.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use stillpoint_format::large::{
    LARGE_REFERENCE_BYTES, LargeHeader, LargeReference, large_capacity_bytes,
};
use stillpoint_format::node::{NODE_HEADER_WORDS, WORD_KIND, WORD_SPACE};
use stillpoint_format::page_log::PageRecord;
use stillpoint_format::{DecodeError, LOG_NONE, Stamp};
use stillpoint_mem::words;
use stillpoint_node::{Node, NodeKind, Record};
use stillpoint_sync::Mutex;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_txn::TableId;

use crate::backing::Purpose;
use crate::frame::{Header, Latched, State};
use crate::loads::{Load, Loading};
use crate::pool::{Pool, PoolError};
use crate::tables::Table;
use crate::tree::{PageLog, Pause, append};

/// Pages that a reader asks for ahead of their use.
const AHEAD: usize = 16;

/// The pages of a large value.
#[derive(Clone, Debug)]
pub(crate) struct LargePages {
    pub(crate) reference: LargeReference,
    pub(crate) pages: Vec<u64>,
}

/// Pages that are to be freed, or that a start may have to free.
#[derive(Debug, Default)]
pub(crate) struct Freeing {
    /// Those of values that committed transactions have replaced.
    pub(crate) replaced: Mutex<Vec<LargePages>>,
    /// Held while they are freed.
    pub(crate) freeing: Mutex<()>,
    /// Values that a replay has met, with their keys.
    pub(crate) met: Mutex<HashMap<LargeReference, (TableId, Vec<u8>)>>,
    /// Nodes that a replay has made.
    pub(crate) made: Mutex<Vec<(TableId, u64)>>,
}

/// The content of a page of a large value.
#[derive(Debug)]
pub(crate) struct LargePage {
    header: LargeHeader,
    bytes: Vec<u8>,
    gsn: u64,
    table: TableId,
}

impl LargePage {
    /// The numbers of pages in an index page.
    fn children(&self) -> impl DoubleEndedIterator<Item = u64> {
        let (words, _) = self.bytes.as_chunks::<8>();
        words.iter().map(|word| u64::from_le_bytes(*word))
    }
}

/// The header of a page of a large value. `None` if the page is a node.
pub(crate) fn large_header(page: &[AtomicU64]) -> Option<LargeHeader> {
    // Relaxed: a version is checked, or nobody writes the page.
    LargeHeader::unpack(page[WORD_KIND].load(Relaxed), page[WORD_SPACE].load(Relaxed))
}

/// Checks a page of a large value alone. `None` if the page is a node.
pub(crate) fn check_large(page: &[AtomicU64]) -> Option<Result<(), DecodeError>> {
    Some(large_header(page)?.check(page.len() * 8))
}

/// Writes header and content of a page of a large value. The owner's words stay.
pub(crate) fn fill_large(page: &[AtomicU64], level: u8, bytes: &[u8]) {
    let header = LargeHeader { level, bytes: bytes.len() as u32 };
    let behind = NODE_HEADER_WORDS + bytes.len() / 8;
    for word in page[WORD_SPACE..NODE_HEADER_WORDS].iter().chain(&page[behind..]) {
        // Relaxed: the latch orders all stores.
        word.store(0, Relaxed);
    }
    for (at, word) in header.pack() {
        page[at].store(word, Relaxed);
    }
    words::fill(&page[NODE_HEADER_WORDS..], bytes);
}

impl Pool {
    /// The pages that swips lead to, and roots.
    pub(crate) fn attached(&self) -> HashSet<u64> {
        let frames = (0..self.frame_count() as u32).map(|frame| self.header(frame));
        let is_attached = |state| matches!(state, State::Hot | State::Cool | State::Root);
        frames.filter(|header| is_attached(header.state())).map(Header::page).collect()
    }

    /// Makes a page of a large value.
    fn add_large_page(
        self: &Arc<Self>,
        table: &Table,
        (level, bytes): (u8, &[u8]),
        log: &mut dyn PageLog,
    ) -> Result<(u64, Stamp), Pause> {
        let mut reserved = self.reserve()?;
        let page = reserved.page.page;
        self.begin_page(reserved.frame, page, table.id, table.generation());
        let new = Latched::of_new(self, reserved.frame);
        fill_large(new.node().words(), level, bytes);
        let above = Stamp::new(reserved.page.above, LOG_NONE);
        // A checkpoint that comes after the append waits for this latch.
        let stamp = append(log, &[above], &PageRecord::Large { page, level, bytes })?;
        reserved.is_used = true;
        new.set_stamp(stamp);
        new.header().set_state(State::Loaded);
        self.loads.lock().insert(page, Load::Loaded(reserved.frame));
        Ok((page, stamp))
    }

    /// Copies a page of a large value. `Err` within: the page is on its way.
    fn read_large(
        self: &Arc<Self>,
        page: u64,
        table: TableId,
        purpose: Purpose,
    ) -> Result<Result<LargePage, Arc<Loading>>, PoolError> {
        loop {
            let frame = match self.frame_of(page, table, purpose)? {
                Ok(frame) => frame,
                Err(loading) => return Ok(Err(loading)),
            };
            let (seen, node) = (self.seen(frame), self.node(frame));
            let is_it = self.header(frame).page() == page;
            let header = large_header(node.words());
            let (mut bytes, capacity) = (Vec::new(), large_capacity_bytes(self.page_bytes()));
            let count = header.map_or(0, |header| capacity.min(header.bytes as usize));
            words::read(&node.words()[NODE_HEADER_WORDS..], 0, count, &mut bytes);
            // Relaxed: the version is checked.
            let [_, stamp, owner] = node.owner_words().each_ref().map(|word| word.load(Relaxed));
            if !self.is_still(seen) || !is_it {
                continue;
            }
            let Some(header) = header else { return Err(damaged(page, "it is another page")) };
            if let Err(error) = header.check(self.page_bytes()) {
                return Err(damaged(page, error.to_string()));
            }
            let (gsn, table) = (Stamp::from_bits(stamp).gsn(), TableId(owner as u16));
            return Ok(Ok(LargePage { header, bytes, gsn, table }));
        }
    }

    /// Takes the page of a large value out of its frame, unwritten. Waits for a write-back under way.
    fn drop_large(&self, page: u64) {
        loop {
            let found = match self.loads.lock().get(&page) {
                None => return,
                Some(Load::Loaded(frame)) => Ok(*frame),
                Some(Load::Reading(loading)) => Err(loading.clone()),
            };
            let frame = match found {
                Ok(frame) => frame,
                Err(loading) => {
                    // A page that cannot be read leaves no entry.
                    let _ = loading.arrive();
                    continue;
                }
            };
            let latched = self.latch_unwritten(frame);
            let mut loads = self.loads.lock();
            if !matches!(loads.get(&page), Some(Load::Loaded(now)) if *now == frame) {
                // Another thread has evicted it.
                continue;
            }
            loads.remove(&page);
            drop(loads);
            // From here on no write-back claims the frame.
            latched.header().set_state(State::Free);
            drop(latched);
            self.give_free([frame]);
            return;
        }
    }

    /// Frees the pages of a large value. They are all freed at one moment, as a checkpoint sees it.
    pub(crate) fn free_large(&self, pages: &[u64], gsn: u64) {
        pages.iter().for_each(|&page| self.drop_large(page));
        self.backing.free_at_once(pages, Stamp::new(gsn, LOG_NONE));
    }

    /// Frees a large value. One that cannot be read is tried again by a checkpoint.
    pub(crate) fn free_value(self: &Arc<Self>, table: TableId, reference: LargeReference) {
        match self.pages_of_large(table, reference) {
            Ok(Some(LargePages { pages, .. })) => self.free_large(&pages, reference.gsn),
            Ok(None) => {}
            Err(_) => self.unread_values.lock().push((table, reference)),
        }
    }

    /// Reads a large value to its end. Waits.
    pub(crate) fn read_whole(
        self: &Arc<Self>,
        table: TableId,
        reference: LargeReference,
    ) -> Result<LargePages, PoolError> {
        let mut reading = LargeReading::of(reference, None);
        while let Some(loading) = reading.go_on(self, table)? {
            loading.arrive()?;
        }
        Ok(reading.into_pages())
    }

    /// The pages of a large value, of which the index alone is read. Waits. `None` if the value was freed.
    pub(crate) fn pages_of_large(
        self: &Arc<Self>,
        table: TableId,
        reference: LargeReference,
    ) -> Result<Option<LargePages>, PoolError> {
        if !self.exists(reference.root) {
            return Ok(None);
        }
        let read = |page| -> Result<LargePage, PoolError> {
            loop {
                match self.read_large(page, table, Purpose::GoOn)? {
                    Ok(found) => return Ok(found),
                    Err(loading) => loading.arrive()?,
                }
            }
        };
        // The number of the root may belong to another page by now.
        let root = match read(reference.root) {
            Ok(root) if root.gsn == reference.gsn && root.table == table => root,
            Ok(_) | Err(PoolError::Large { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut found = LargePages { reference, pages: vec![reference.root] };
        let mut index: Vec<LargePage> = Vec::new();
        index.extend((root.header.level > 0).then_some(root));
        while let Some(next) = index.pop() {
            for page in next.children() {
                found.pages.push(page);
                if next.header.level > 1 {
                    index.push(read(page)?);
                }
            }
        }
        Ok(Some(found))
    }
}

fn damaged(page: u64, why: impl Into<String>) -> PoolError {
    PoolError::Large { page, why: why.into() }
}

/// The writing of a large value, page by page. It may be taken up again after a pause.
#[derive(Debug)]
pub(crate) struct LargeWriting {
    /// The slot of the key in its transaction.
    pub(crate) slot: usize,
    level: u8,
    /// Pages of this level.
    made: Vec<u64>,
    /// Pages of the level below, as the bytes of index pages.
    below: Vec<u8>,
    pages: Vec<u64>,
    last: Stamp,
}

impl LargeWriting {
    pub(crate) fn new(slot: usize) -> Self {
        let (made, below, pages) = (Vec::new(), Vec::new(), Vec::new());
        Self { slot, level: 0, made, below, pages, last: Stamp::NONE }
    }

    /// Writes the pages that are missing. Returns the reference.
    pub(crate) fn go_on(
        &mut self,
        pool: &Arc<Pool>,
        table: &Table,
        value: &[u8],
        log: &mut dyn PageLog,
    ) -> Result<LargePages, Pause> {
        let capacity = large_capacity_bytes(pool.page_bytes());
        loop {
            let Self { level, made, below, pages, last, .. } = &mut *self;
            let content = if *level == 0 { value } else { &below[..] };
            for part in content.chunks(capacity).skip(made.len()) {
                let (page, stamp) = pool.add_large_page(table, (*level, part), log)?;
                made.push(page);
                pages.push(page);
                *last = stamp;
            }
            if let &[root] = &made[..] {
                let (gsn, bytes) = (last.gsn(), value.len() as u64);
                let reference = LargeReference { root, gsn, bytes };
                return Ok(LargePages { reference, pages: pages.clone() });
            }
            *below = made.drain(..).flat_map(u64::to_le_bytes).collect();
            *level += 1;
        }
    }
}

/// The reading of a large value, page by page. It may be taken up again after a wait.
#[derive(Debug)]
pub(crate) struct LargeReading {
    pub(crate) reference: LargeReference,
    /// Pages that are still to be read, the next one last, with their levels. None for the root.
    left: Vec<(u64, Option<u8>)>,
    pages: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

impl LargeReading {
    /// Goes on with `begun` if it reads the same value, or begins.
    pub(crate) fn of(reference: LargeReference, begun: Option<Self>) -> Self {
        begun.filter(|begun| begun.reference == reference).unwrap_or_else(|| Self {
            reference,
            left: vec![(reference.root, None)],
            pages: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// Reads pages until one is on its way. `None` at the end.
    pub(crate) fn go_on(
        &mut self,
        pool: &Arc<Pool>,
        table: TableId,
    ) -> Result<Option<Arc<Loading>>, PoolError> {
        while let Some(&(page, level)) = self.left.last() {
            let found = match pool.read_large(page, table, Purpose::GoOn)? {
                Ok(found) => found,
                Err(loading) => {
                    let next = self.left.iter().rev().skip(1).take(AHEAD);
                    next.for_each(|(page, _)| pool.ask_page(*page, table));
                    return Ok(Some(loading));
                }
            };
            let is_it = match level {
                None => found.gsn == self.reference.gsn,
                Some(level) => found.header.level == level,
            };
            if !is_it || found.table != table {
                return Err(damaged(page, "it belongs to another value"));
            }
            self.left.pop();
            self.pages.push(page);
            if found.header.level == 0 {
                self.bytes.extend_from_slice(&found.bytes);
            } else {
                let below = Some(found.header.level - 1);
                self.left.extend(found.children().rev().map(|page| (page, below)));
            }
            if self.bytes.len() as u64 > self.reference.bytes {
                return Err(damaged(page, "the value is longer than its reference says"));
            }
        }
        match self.bytes.len() as u64 == self.reference.bytes {
            true => Ok(None),
            false => {
                Err(damaged(self.reference.root, "the value is shorter than its reference says"))
            }
        }
    }

    /// The pages of the value, which was read to its end.
    pub(crate) fn into_pages(self) -> LargePages {
        LargePages { reference: self.reference, pages: self.pages }
    }
}

/// What the records of a leaf refer to. Deleted records have given their pages up.
pub(crate) fn references(leaf: &Node<'_>) -> Vec<LargeReference> {
    if leaf.kind() != Some(NodeKind::Leaf) {
        return Vec::new();
    }
    let records = (0..leaf.slot_count()).map(|slot| leaf.record(slot));
    let large = records.filter(|record| record.is_large() && !record.is_ghost());
    let mut bytes = Vec::with_capacity(LARGE_REFERENCE_BYTES);
    let reference = |record: Record<'_>| {
        bytes.clear();
        record.read_value(&mut bytes);
        LargeReference::unpack(&bytes)
    };
    large.filter_map(reference).collect()
}
