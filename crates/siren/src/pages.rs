//! Logical pages (SIREN, ICDE 2006, §2.1 to §3.3): tuples that float in memory, linked to pages in
//! clustering order.
//!
//! ```text
//!            add, remove, commit of level L
//!  page not frozen ──▶ changed in place, dirty at L ──▶ split, join
//!  page frozen     ──▶ pending add, remove, commit ──▶ [copied] ──▶ made permanent, one by one
//! ```
//! A page is frozen for an operation of level L if it is dirty at a lower level. The level replaces
//! the paper's flag, so the begin of a checkpoint touches no page. Invariants:
//! 1. Until a checkpoint has copied a frozen page, its image stays as it was. The image has the
//!    page's tuples but those with a pending add. It ignores pending removes and commits.
//! 2. While operations of the level before may be under way, a clean page counts as frozen for
//!    operations of the new level. It then belongs to the checkpoint. So an operation of the old level
//!    never meets a page that the new level has changed in place.
//! 3. Pending operations split and join nothing. Only pages that are frozen for nobody are joined.
//! 4. A page that is dirty stands in the list of its level, once.

mod check;
mod copy;
mod lists;

use std::cmp::Ordering;
use std::sync::Arc;

use stillpoint_format::siren::{OPEN_TUPLE_BYTES, PAGE_HEADER_BYTES, TUPLE_HEAD_BYTES};
use stillpoint_mem::prefetch;
use stillpoint_sync::atomic::Ordering::{Relaxed, SeqCst};
use stillpoint_sync::mutant;

use crate::base::HeldBytes;
use crate::config::Removes;
use crate::key_bytes::KeyBytes;
use crate::planted;
use crate::proxy::{Proxy, Value};
use crate::slab::{Slab, Slot};

pub(crate) use copy::{Copied, Frozen, Removed};
pub(crate) use lists::Split;

/// Two neighbours are joined if they have less than this share of a page together, in percent.
const JOIN_PERCENT: usize = 60;

/// The count of all tables' bytes may be wrong by less than this for each table.
const UNTOLD_BYTES: usize = 4096;

/// What waits until the tuple's page has been copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Nothing,
    Add,
    Remove,
    Commit,
}

/// A tuple, in one cache line.
///
/// It stands in the list of its page, or hangs on the one before it, which has the same key. Most new
/// versions hang, and then take the older tuple's place. So an update meets no neighbours in the list.
#[derive(Debug)]
#[repr(align(64))]
struct Tuple {
    /// `None` if the tuple hangs on `before`, whose proxy it shares. Then it has no `after`.
    proxy: Option<Arc<Proxy>>,
    /// `None` is a delete mark.
    value: Value,
    /// Transaction and statement that created the tuple. Without meaning once it is committed.
    transaction: u64,
    statement: u32,
    is_committed: bool,
    pending: Pending,
    /// Place in the page's list of pending operations.
    pending_at: u32,
    /// The low half of the level of the last checkpoint that has copied the tuple.
    copied: u32,
    page: Slot,
    before: Slot,
    after: Slot,
    /// The tuple that hangs on this one.
    newer: Slot,
}

impl Tuple {
    /// The transaction and the statement that created the tuple, if the transaction is open.
    fn open(&self) -> Option<(u64, u32)> {
        (!self.is_committed).then_some((self.transaction, self.statement))
    }

    /// The checkpoint of this level has copied the tuple.
    fn note_copied(&mut self, level: u64) {
        self.copied = level as u32;
    }

    fn was_copied(&self, level: u64) -> bool {
        self.copied == level as u32
    }

    fn hangs(&self) -> bool {
        self.proxy.is_none()
    }

    /// The proxy of a tuple that does not hang.
    fn own_proxy(&self) -> &Arc<Proxy> {
        self.proxy.as_ref().expect("a tuple that does not hang")
    }

    /// Bytes in the page of a tuple of this key.
    fn bytes(&self, key: &KeyBytes) -> usize {
        let open = if self.is_committed { 0 } else { OPEN_TUPLE_BYTES };
        open + committed_bytes(key, &self.value)
    }

    /// Bytes of memory: the tuple of this key, its value, and its key with all that belongs to it.
    fn held_bytes(&self, key: &KeyBytes) -> usize {
        let value = self.value.as_ref().map_or(0, |value| value.len() + ARC_BYTES);
        TUPLE_HELD_BYTES + key.held_bytes() + value
    }
}

/// Bytes in the page of a committed tuple.
fn committed_bytes(key: &KeyBytes, value: &Value) -> usize {
    TUPLE_HEAD_BYTES + key.len() + value.as_ref().map_or(0, |value| value.len())
}

/// Bytes of the counts of an `Arc`.
const ARC_BYTES: usize = 2 * size_of::<usize>();
/// Bytes of a key in the index: in the order of keys, and by its hash. Both have free places.
const INDEX_BYTES: usize = 48;
/// Bytes of a tuple, its proxy with one version, and their places in lists and in the index.
const TUPLE_HELD_BYTES: usize =
    size_of::<Option<Tuple>>() + size_of::<Proxy>() + ARC_BYTES + INDEX_BYTES;

/// Bytes of memory that a new tuple of this key takes beside its value.
pub(crate) fn new_tuple_bytes(key: &KeyBytes) -> usize {
    TUPLE_HELD_BYTES + key.held_bytes() + ARC_BYTES
}

const _: () = assert!(size_of::<Option<Tuple>>() == 64, "a tuple takes one cache line");
const _: () = assert!(size_of::<Option<Page>>() == 128, "a page begins with a cache line");

/// A logical page. The order of the fields in memory is that of the source: what an update needs lies in one
/// cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct Page {
    /// The level at which the page was changed since its last copy. 0 if it was not.
    dirty: u64,
    /// Bytes and number of the tuples without pending adds.
    bytes: usize,
    tuples: usize,
    /// Never used twice, unlike the slot.
    number: u64,
    first: Slot,
    last: Slot,
    before: Slot,
    after: Slot,
    /// The next tuple to copy.
    cursor: Slot,
    is_copying: bool,
    /// Whether an operation was pending since the freeze.
    is_changed: bool,
    /// Whether a checkpoint may hold the page.
    is_stored: bool,
    pending: Vec<Slot>,
    /// Tuples that a copy-on-update of whole pages would have copied.
    touched: usize,
}

/// How much memory a checkpoint costs at present, and cost at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Tuples.
    pub tuples: u64,
    /// Pages.
    pub pages: u64,
    /// Removed tuples that stay until their page is copied, or until they are written.
    pub removed: u64,
    /// The most of them since [`begin_peaks`](crate::Store::begin_peaks).
    pub removed_max: u64,
    /// Tuples on frozen, changed pages: what a copy-on-update of whole pages would hold twice.
    pub touched: u64,
    /// The most of them.
    pub touched_max: u64,
    /// Pending operations.
    pub pending: u64,
}

/// The pages that a checkpoint would write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DirtyPages {
    pub(crate) dirty: u64,
    pub(crate) bytes: u64,
    /// Number of all pages.
    pub(crate) all: u64,
}

/// The pages of a table.
#[derive(Debug)]
pub(crate) struct Pages {
    table: u16,
    /// Bytes of tuples above which a page is split.
    capacity: usize,
    removes: Removes,
    tuples: Slab<Tuple>,
    pages: Slab<Page>,
    first: Slot,
    last: Slot,
    numbers: u64,
    /// No operation of a lower level is under way.
    settled: u64,
    /// Pages that are dirty at a level, by the level's parity.
    dirty: [Vec<(Slot, u64)>; 2],
    /// Numbers of stored pages that were joined or removed at a level.
    gone: [Vec<u64>; 2],
    /// Tuples removed from frozen pages that were not copied.
    removed: Vec<Removed>,
    /// What all tables hold.
    held: Arc<HeldBytes>,
    /// Bytes of the tuples, with what belongs to them in memory. The second number is what `held` knows.
    held_bytes: [usize; 2],
    occupancy: Occupancy,
}

impl Drop for Pages {
    fn drop(&mut self) {
        // Relaxed: a count, see `tell_held`.
        self.held.tuples.fetch_sub(self.held_bytes[1], Relaxed);
    }
}

impl Pages {
    /// Empty pages of a table. Their numbers begin above `numbers`, and operations at this level.
    pub(crate) fn new(
        (table, level, numbers): (u16, u64, u64),
        capacity: usize,
        removes: Removes,
        held: Arc<HeldBytes>,
    ) -> Self {
        Self {
            table,
            capacity,
            removes,
            tuples: Slab::default(),
            pages: Slab::default(),
            first: Slot::NONE,
            last: Slot::NONE,
            numbers,
            settled: level,
            dirty: [Vec::new(), Vec::new()],
            gone: [Vec::new(), Vec::new()],
            removed: Vec::new(),
            held,
            held_bytes: [0; 2],
            occupancy: Occupancy::default(),
        }
    }

    /// ADD-TUPLE: adds a tuple of an open transaction behind `previous`, which may be none.
    pub(crate) fn add(
        &mut self,
        level: u64,
        previous: Slot,
        proxy: &Arc<Proxy>,
        value: Value,
        open: (u64, u32),
    ) -> Slot {
        let (tuple, page) = match self.may_hang(previous, proxy, &value) {
            Some(page) => {
                let tuple = self.new_tuple(&proxy.key, None, value, open);
                self.hang_on(page, previous, tuple);
                (tuple, page)
            }
            None => {
                let tuple = self.new_tuple(&proxy.key, Some(proxy.clone()), value, open);
                (tuple, self.link_behind(level, previous, tuple))
            }
        };
        if self.is_frozen(page, level) {
            self.freeze(page, level);
            self.push_pending(page, tuple, Pending::Add);
        } else {
            self.count_in(page, tuple);
            self.mark_dirty(page, level);
            // One split at most: a page may have far too many tuples after its copy.
            self.split(page, level);
        }
        tuple
    }

    /// Makes an open tuple of a key, which gets its proxy if it does not hang.
    fn new_tuple(
        &mut self,
        key: &KeyBytes,
        proxy: Option<Arc<Proxy>>,
        value: Value,
        (transaction, statement): (u64, u32),
    ) -> Slot {
        let tuple = Tuple {
            proxy,
            value,
            transaction,
            statement,
            is_committed: false,
            pending: Pending::Nothing,
            pending_at: 0,
            copied: 0,
            page: Slot::NONE,
            before: Slot::NONE,
            after: Slot::NONE,
            newer: Slot::NONE,
        };
        self.held_bytes[0] += tuple.held_bytes(key);
        self.tell_held();
        self.tuples.insert(tuple)
    }

    /// Tells all tables' count what this table holds, once the count is wrong by some tuples.
    fn tell_held(&mut self) {
        let [bytes, told] = self.held_bytes;
        if bytes.abs_diff(told) >= UNTOLD_BYTES {
            // Relaxed: a count; whoever adds to it looks at it without an order. It wraps below a count that
            // another table has told.
            self.held.tuples.fetch_add(bytes.wrapping_sub(told), Relaxed);
            self.held_bytes[1] = bytes;
        }
    }

    /// Bytes of memory of the tuples that all tables' count does not know, less those that it knows too many.
    pub(crate) fn untold_bytes(&self) -> isize {
        self.held_bytes[0].wrapping_sub(self.held_bytes[1]).cast_signed()
    }

    /// Links a new tuple behind another one, which may be none; gives its page.
    fn link_behind(&mut self, level: u64, previous: Slot, tuple: Slot) -> Slot {
        let previous = self.listed(previous, tuple);
        let page = match (previous.is_none(), self.first.is_none()) {
            (false, _) => self.page_behind(level, previous, tuple),
            (true, false) if !self.waits_for_copy(self.first, level) => self.first,
            (true, _) => self.create_page(level, Slot::NONE),
        };
        let previous = if self.tuple_page(previous) == page { previous } else { Slot::NONE };
        self.link(page, previous, tuple);
        page
    }

    /// Takes a tuple out of memory, which stands in no list any more, and hangs nowhere.
    fn take_tuple(&mut self, tuple: Slot) -> Tuple {
        let tuple = self.tuples.remove(tuple);
        self.held_bytes[0] -= tuple.held_bytes(&tuple.own_proxy().key);
        self.tell_held();
        tuple
    }

    /// The transaction of a tuple, if it was open when the tuple was added and the tuple is not committed.
    pub(crate) fn author(&self, tuple: Slot) -> Option<u64> {
        let tuple = &self.tuples[tuple];
        tuple.open().map(|(transaction, _)| transaction)
    }

    /// The seed of the hashes of keys.
    pub(crate) fn hash_seed(&self) -> u64 {
        self.held.hash_seed
    }

    /// The greatest number that a page has had.
    pub(crate) fn numbers(&self) -> u64 {
        self.numbers
    }

    /// The page for a tuple behind `previous`: a new one where the last page is full, or waits for its
    /// copy. Else all that is appended meanwhile would gather there.
    fn page_behind(&mut self, level: u64, previous: Slot, tuple: Slot) -> Slot {
        let at = self.tuples[previous].page;
        let page = &self.pages[at];
        let is_last = page.after.is_none() && page.last == previous;
        let is_full = page.bytes + self.bytes(tuple) > self.capacity;
        let is_closed = match self.is_frozen(at, level) {
            true => mutant!(self.waits_for_copy(at, level), AppendsToFrozenPage => false),
            false => is_full,
        };
        if is_last && is_closed {
            return self.create_page(level, at);
        }
        at
    }

    /// Whether a page is frozen for operations of this level, while a new page would not be.
    fn waits_for_copy(&self, page: Slot, level: u64) -> bool {
        level <= self.settled && self.is_frozen(page, level)
    }

    fn tuple_page(&self, tuple: Slot) -> Slot {
        self.tuples.get(tuple).map_or(Slot::NONE, |tuple| tuple.page)
    }

    /// REMOVE-TUPLE and FUZZY-REMOVE-TUPLE: removes a tuple that no version names any more.
    pub(crate) fn remove(&mut self, level: u64, tuple: Slot) {
        let page = self.tuples[tuple].page;
        if !self.is_frozen(page, level) {
            debug_assert_eq!(self.tuples[tuple].pending, Pending::Nothing);
            self.count_out(page, tuple);
            self.unlink(tuple);
            self.take_tuple(tuple);
            self.mark_dirty(page, level);
            self.join(page, level);
            return;
        }
        self.freeze(page, level);
        let before = self.tuples[tuple].pending;
        self.drop_pending(tuple);
        if before == Pending::Add {
            self.unlink(tuple);
            self.take_tuple(tuple);
        } else if self.removes == Removes::ToPages {
            self.count_out(page, tuple);
            self.unlink(tuple);
            self.pages[page].is_changed = true;
            self.touch(page);
            let tuple = self.take_tuple(tuple);
            let is_copied = mutant!(tuple.was_copied(level - 1), RemovedTupleTwice => false);
            if !is_copied {
                let removed = Removed::new(self.table, tuple);
                self.held.removes.fetch_add(removed.image().bytes(), SeqCst);
                self.removed.push(removed);
                self.count_removed(1);
            }
        } else {
            self.push_pending(page, tuple, Pending::Remove);
            self.count_removed(1);
        }
    }

    /// COMMIT-TUPLE: marks a tuple as committed.
    pub(crate) fn commit(&mut self, level: u64, tuple: Slot) {
        let page = self.tuples[tuple].page;
        if !self.is_frozen(page, level) {
            debug_assert_eq!(self.tuples[tuple].pending, Pending::Nothing);
            self.set_committed(page, tuple);
            self.mark_dirty(page, level);
            return;
        }
        self.freeze(page, level);
        match self.tuples[tuple].pending {
            // The image has no such tuple.
            Pending::Add => self.tuples[tuple].is_committed = true,
            Pending::Nothing => self.push_pending(page, tuple, Pending::Commit),
            pending => unreachable!("a commit of a tuple with a pending {pending:?}"),
        }
    }

    /// REMOVE-TUPLE of a version and COMMIT-TUPLE of the next one in one step. The page must not be frozen,
    /// and the new tuple must hang on the old one. Then the new version takes the old tuple's place, and its
    /// own place is free. `false` if nothing was done.
    pub(crate) fn replace(&mut self, level: u64, old: Slot, new: Slot) -> bool {
        let Tuple { page, newer, .. } = self.tuples[old];
        if newer != new || self.is_frozen(page, level) {
            return false;
        }
        if self.pages[page].cursor == new {
            self.pages[page].cursor = self.tuples[old].after;
        }
        let Tuple { value, transaction, statement, pending, copied, .. } = self.tuples.remove(new);
        let at = &mut self.tuples[old];
        debug_assert_eq!([pending, at.pending], [Pending::Nothing; 2], "the page is not frozen");
        let key = &at.own_proxy().key;
        let (before, held) = (at.bytes(key), at.held_bytes(key));
        let after = committed_bytes(key, &value);
        (at.value, at.is_committed, at.newer) = (value, true, Slot::NONE);
        (at.transaction, at.statement, at.copied) = (transaction, statement, copied);
        self.held_bytes[0] -= held;
        self.tell_held();
        let it = &mut self.pages[page];
        // The page has counted both.
        it.bytes -= before + OPEN_TUPLE_BYTES;
        it.tuples -= 1;
        self.mark_dirty(page, level);
        if after < before {
            self.join(page, level);
        }
        true
    }

    /// As [`replace`](Self::replace), for a value that is committed at once and needs no tuple of its own. `version`
    /// is the value of the tuple's version. Its memory is used again if nobody else reads it.
    pub(crate) fn overwrite(
        &mut self,
        level: u64,
        tuple: Slot,
        version: &mut Value,
        value: &[u8],
    ) -> bool {
        let Tuple { page, newer, .. } = self.tuples[tuple];
        if self.is_frozen(page, level) || !newer.is_none() {
            return false;
        }
        let it = &mut self.tuples[tuple];
        debug_assert!(it.is_committed && it.pending == Pending::Nothing, "the page is not frozen");
        let before = it.value.take().map_or(0, |value| value.len());
        let same = version.as_mut().and_then(Arc::get_mut).filter(|old| old.len() == value.len());
        match same {
            Some(old) => old.copy_from_slice(value),
            None => *version = Some(Arc::from(value)),
        }
        it.value.clone_from(version);
        // The last checkpoint has copied another value.
        it.copied = 0;
        self.held_bytes[0] = self.held_bytes[0] - before + value.len();
        self.tell_held();
        let it = &mut self.pages[page];
        it.bytes = it.bytes - before + value.len();
        self.mark_dirty(page, level);
        match value.len().cmp(&before) {
            Ordering::Greater => self.split(page, level),
            Ordering::Less => self.join(page, level),
            Ordering::Equal => {}
        }
        true
    }

    fn set_committed(&mut self, page: Slot, tuple: Slot) {
        self.tuples[tuple].is_committed = true;
        self.pages[page].bytes -= OPEN_TUPLE_BYTES;
    }

    /// Whether operations of this level must leave the image of the page alone.
    fn is_frozen(&self, page: Slot, level: u64) -> bool {
        if self.removes == Removes::AtOnce {
            return false;
        }
        let is_frozen = match self.pages[page].dirty {
            0 => level > self.settled,
            dirty => dirty < level,
        };
        mutant!(is_frozen, FrozenPageChanged => false)
    }

    /// Gives a clean page that counts as frozen to the checkpoint of the level before.
    fn freeze(&mut self, page: Slot, level: u64) {
        if self.pages[page].dirty == 0 {
            self.mark_dirty(page, level - 1);
        }
    }

    fn mark_dirty(&mut self, page: Slot, level: u64) {
        let it = &mut self.pages[page];
        let before = it.dirty;
        if before == level {
            return;
        }
        if before != 0 && self.removes == Removes::AtOnce {
            it.is_changed = true;
            return;
        }
        mutant!(debug_assert_eq!(before, 0, "a frozen page"), FrozenPageChanged => ());
        it.dirty = level;
        let number = it.number;
        self.dirty[(level & 1) as usize].push((page, number));
    }

    fn push_pending(&mut self, page: Slot, tuple: Slot, pending: Pending) {
        self.touch(page);
        let list = &mut self.pages[page].pending;
        list.push(tuple);
        let at = list.len() as u32 - 1;
        let it = &mut self.tuples[tuple];
        (it.pending, it.pending_at) = (pending, at);
        self.occupancy.pending += 1;
    }

    /// Forgets the pending operation of a tuple, if there is one.
    fn drop_pending(&mut self, tuple: Slot) {
        let it = &mut self.tuples[tuple];
        if it.pending == Pending::Nothing {
            return;
        }
        it.pending = Pending::Nothing;
        let (page, at) = (it.page, it.pending_at);
        let list = &mut self.pages[page].pending;
        list.swap_remove(at as usize);
        if let Some(&moved) = list.get(at as usize) {
            self.tuples[moved].pending_at = at;
        }
        self.pages[page].is_changed = true;
        self.occupancy.pending -= 1;
    }

    /// Counts what a copy-on-update of the whole page would copy now.
    fn touch(&mut self, page: Slot) {
        let it = &mut self.pages[page];
        if it.touched == 0 {
            it.touched = it.tuples;
            self.occupancy.touched += it.touched as u64;
            self.occupancy.touched_max = self.occupancy.touched_max.max(self.occupancy.touched);
        }
    }

    fn count_removed(&mut self, more: u64) {
        self.occupancy.removed += more;
        self.occupancy.removed_max = self.occupancy.removed_max.max(self.occupancy.removed);
    }

    /// The proxy of a tuple, which may hang.
    fn proxy(&self, tuple: Slot) -> &Arc<Proxy> {
        let it = &self.tuples[tuple];
        it.proxy.as_ref().unwrap_or_else(|| self.tuples[it.before].own_proxy())
    }

    /// Bytes of a tuple in its page.
    fn bytes(&self, tuple: Slot) -> usize {
        self.tuples[tuple].bytes(&self.proxy(tuple).key)
    }

    fn count_in(&mut self, page: Slot, tuple: Slot) {
        let bytes = self.bytes(tuple);
        let it = &mut self.pages[page];
        it.bytes += bytes;
        it.tuples += 1;
    }

    fn count_out(&mut self, page: Slot, tuple: Slot) {
        let bytes = self.bytes(tuple);
        let it = &mut self.pages[page];
        it.bytes -= bytes;
        it.tuples -= 1;
    }

    /// Prefetches a tuple, which may be gone.
    pub(crate) fn prefetch_tuple(&self, tuple: Slot) {
        if let Some(tuple) = self.tuples.get_place(tuple) {
            prefetch(tuple);
        }
    }

    /// Whether some pages are frozen and changed: a checkpoint is under way.
    pub(crate) fn has_touched(&self) -> bool {
        self.occupancy.touched > 0
    }

    /// Prefetches the tuples before and behind a tuple, which may be gone, if its page is frozen. There the new
    /// version cannot take the tuple's place.
    pub(crate) fn prefetch_beside(&self, tuple: Slot) {
        let Some(tuple) = self.tuples.get(tuple) else { return };
        if self.is_frozen(tuple.page, self.settled) {
            self.prefetch_tuple(tuple.before);
            self.prefetch_tuple(tuple.after);
        }
    }

    /// Prefetches the page of a tuple, which may be gone.
    pub(crate) fn prefetch_page(&self, tuple: Slot) {
        let page = self.tuples.get(tuple).and_then(|tuple| self.pages.get_place(tuple.page));
        if let Some(page) = page {
            prefetch(page);
        }
    }

    /// Bytes that a checkpoint of the dirty pages would write, and numbers of pages.
    pub(crate) fn dirty(&self) -> DirtyPages {
        let listed = self.dirty.iter().flatten();
        let present = listed.filter_map(|(page, _)| self.pages.get(*page));
        let mut dirty = DirtyPages { all: self.pages.len() as u64, ..DirtyPages::default() };
        for page in present {
            dirty.dirty += 1;
            // A page takes whole disk pages.
            dirty.bytes += page.bytes.max(self.capacity) as u64 + PAGE_HEADER_BYTES as u64;
        }
        dirty
    }

    pub(crate) fn occupancy(&self) -> Occupancy {
        let (tuples, pages) = (self.tuples.len() as u64, self.pages.len() as u64);
        Occupancy { tuples, pages, ..self.occupancy }
    }

    /// From here on the peaks count anew.
    pub(crate) fn begin_peaks(&mut self) {
        self.occupancy.removed_max = self.occupancy.removed;
        self.occupancy.touched_max = self.occupancy.touched;
    }
}
