//! The checkpointer's side of pages: the dirty list, and the copy of a page tuple by tuple. Then pending
//! operations become permanent. Also pages that come from a checkpoint.

use std::sync::Arc;

use stillpoint_format::siren::{PageBuilder, TupleImage};
use stillpoint_sync::mutant;

use super::lists::Split;
use super::{Pages, Pending, Tuple};
use crate::config::Removes;
use crate::planted;
use crate::proxy::{Proxy, Value};
use crate::slab::Slot;

/// A tuple that was removed from a frozen page before the page was copied.
#[derive(Debug)]
pub(crate) struct Removed {
    table: u16,
    proxy: Arc<Proxy>,
    value: Value,
    open: Option<(u64, u32)>,
}

impl Removed {
    pub(super) fn new(table: u16, tuple: Tuple) -> Self {
        let open = tuple.open();
        let proxy = tuple.proxy.expect("a tuple in no list hangs nowhere");
        Self { table, proxy, value: tuple.value, open }
    }

    pub(crate) fn image(&self) -> TupleImage<'_> {
        image(self.table, &self.proxy, &self.value, self.open)
    }
}

fn image<'a>(
    table: u16,
    proxy: &'a Proxy,
    value: &'a Value,
    open: Option<(u64, u32)>,
) -> TupleImage<'a> {
    TupleImage {
        table,
        key: &proxy.key,
        value: value.as_deref().unwrap_or_default(),
        is_delete_mark: value.is_none(),
        open,
    }
}

/// How far the copy of a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    /// There may be further tuples.
    Partly,
    /// All tuples are in the buffer.
    Whole,
}

/// So many tuples with a pending add one turn passes over. So many pending operations it makes permanent, or
/// tuples it moves to another page. Each is as much as the copy of one tuple of some length.
pub(super) const PENDING_A_TURN: usize = 32;

/// What a checkpoint concerns of a table.
#[derive(Debug, Default)]
pub(crate) struct Frozen {
    /// Pages to copy, with their numbers.
    pub(crate) dirty: Vec<(Slot, u64)>,
    /// Numbers of stored pages that are no more.
    pub(crate) gone: Vec<u64>,
}

impl Pages {
    /// No operation of a level below `level` is under way any more. Returns what the checkpoint of
    /// the level before concerns.
    pub(crate) fn settle(&mut self, level: u64) -> Frozen {
        self.settled = level;
        let before = ((level - 1) & 1) as usize;
        let dirty = std::mem::take(&mut self.dirty[before]);
        Frozen { dirty, gone: std::mem::take(&mut self.gone[before]) }
    }

    /// Before anything is served: operations go on at this level, and not at the one of the recovery.
    pub(crate) fn raise_level(&mut self, level: u64) {
        let before = std::mem::replace(&mut self.settled, level);
        let dirty = std::mem::take(&mut self.dirty[(before & 1) as usize]);
        for (page, number) in &dirty {
            if self.is_same(*page, *number) && self.pages[*page].dirty == before {
                self.pages[*page].dirty = level;
            }
        }
        let gone = std::mem::take(&mut self.gone[(before & 1) as usize]);
        self.dirty[(level & 1) as usize] = dirty;
        self.gone[(level & 1) as usize] = gone;
    }

    pub(super) fn is_same(&self, page: Slot, number: u64) -> bool {
        self.pages.get(page).is_some_and(|page| page.number == number)
    }

    /// Begins the copy of a page for the checkpoint of a level. `false` if the page is no more, or
    /// was not frozen by that level.
    pub(crate) fn begin_copy(&mut self, page: Slot, number: u64, level: u64) -> bool {
        if !self.is_same(page, number) || self.pages[page].dirty != level {
            return false;
        }
        let it = &mut self.pages[page];
        it.cursor = it.first;
        (it.is_stored, it.is_copying) = (true, true);
        if self.removes == Removes::AtOnce {
            // The copy has what was changed before it.
            it.is_changed = false;
        }
        true
    }

    /// Copies the next tuple of a page.
    pub(crate) fn copy_next(&mut self, page: Slot, level: u64, to: &mut PageBuilder) -> Copied {
        let mut cursor = self.pages[page].cursor;
        for _ in 1..PENDING_A_TURN {
            let next = self.tuples.get(cursor).filter(|tuple| tuple.pending == Pending::Add);
            if next.is_none() {
                break;
            }
            cursor = self.next(cursor);
        }
        if cursor.is_none() {
            self.pages[page].cursor = cursor;
            return Copied::Whole;
        }
        let next = self.next(cursor);
        let tuple = &self.tuples[cursor];
        if tuple.pending != Pending::Add {
            to.push(&image(self.table, self.proxy(cursor), &tuple.value, tuple.open()));
            self.tuples[cursor].note_copied(level);
        }
        self.pages[page].cursor = next;
        if next.is_none() { Copied::Whole } else { Copied::Partly }
    }

    /// Makes some pending operations of a copied page permanent. `false` if there is none left: then
    /// the page is no longer frozen, and is dirty at `level` if an operation was pending.
    pub(crate) fn make_permanent(&mut self, page: Slot, level: u64) -> bool {
        for _ in 0..PENDING_A_TURN {
            if !self.make_one_permanent(page, level) {
                self.unfreeze(page, level);
                return false;
            }
        }
        true
    }

    fn make_one_permanent(&mut self, page: Slot, level: u64) -> bool {
        let Some(&tuple) = self.pages[page].pending.last() else {
            return false;
        };
        let pending = self.tuples[tuple].pending;
        self.drop_pending(tuple);
        match pending {
            Pending::Add => {
                self.count_in(page, tuple);
                // The checkpoint has nothing to do with this tuple any more, if it is removed now.
                self.tuples[tuple].note_copied(level - 1);
            }
            Pending::Remove => {
                self.count_out(page, tuple);
                self.unlink(tuple);
                self.take_tuple(tuple);
                self.occupancy.removed -= 1;
            }
            Pending::Commit => {
                mutant!(self.set_committed(page, tuple), PendingCommitLost => ());
            }
            Pending::Nothing => unreachable!("the list has pending operations only"),
        }
        true
    }

    fn unfreeze(&mut self, page: Slot, level: u64) {
        let it = &mut self.pages[page];
        self.occupancy.touched -= it.touched as u64;
        (it.touched, it.dirty, it.cursor, it.is_copying) = (0, 0, Slot::NONE, false);
        if std::mem::take(&mut it.is_changed) {
            self.mark_dirty(page, level);
        }
    }

    /// Splits or joins a page that was copied, if it must be, some tuples at a time. `false` once nothing is
    /// left to do. `split` has a split that is under way.
    pub(crate) fn rebalance(
        &mut self,
        (page, number): (Slot, u64),
        level: u64,
        split: &mut Option<Split>,
    ) -> bool {
        if !self.is_same(page, number) || self.pages[page].dirty != level {
            return false;
        }
        *split = split.or_else(|| self.begin_split(page, level));
        match *split {
            Some(begun) => {
                split.take_if(|_| !self.move_front(page, begun, level, PENDING_A_TURN));
                true
            }
            None => self.join_some(page, level, PENDING_A_TURN),
        }
    }

    /// The checkpoint that has copied the page is given up: the page is dirty again.
    pub(crate) fn dirty_again(&mut self, page: Slot, number: u64, level: u64) {
        if self.is_same(page, number) && self.pages[page].dirty == 0 {
            self.mark_dirty(page, level);
        }
    }

    /// The checkpoint is given up: what it would have removed is removed with the next one.
    pub(crate) fn gone_again(&mut self, gone: Vec<u64>, level: u64) {
        self.gone[(level & 1) as usize].extend(gone);
    }

    /// Takes the removed tuples, to be written or forgotten.
    pub(crate) fn take_removed(&mut self) -> Vec<Removed> {
        let removed = std::mem::take(&mut self.removed);
        self.occupancy.removed -= removed.len() as u64;
        removed
    }

    /// Adds a clean page of a checkpoint behind all pages. Returns its slot and number.
    pub(crate) fn load_page(&mut self) -> (Slot, u64) {
        let page = self.insert_page(self.last);
        let it = &mut self.pages[page];
        it.is_stored = true;
        (page, it.number)
    }

    /// Adds a tuple of a checkpoint at the end of a loaded page.
    pub(crate) fn load_tuple(
        &mut self,
        page: Slot,
        proxy: &Arc<Proxy>,
        value: Value,
        open: Option<(u64, u32)>,
    ) -> Slot {
        let own = Some(proxy.clone());
        let tuple = self.new_tuple(&proxy.key, own, value, open.unwrap_or_default());
        self.tuples[tuple].is_committed = open.is_none();
        let last = self.pages[page].last;
        self.link(page, last, tuple);
        self.count_in(page, tuple);
        tuple
    }

    /// Adds a tuple that the checkpoint holds apart from its page, behind `previous`, which may be
    /// none. Its page is dirty at the level, since the next checkpoint must hold the tuple there.
    pub(crate) fn load_apart(
        &mut self,
        level: u64,
        previous: Slot,
        proxy: &Arc<Proxy>,
        value: Value,
        open: Option<(u64, u32)>,
    ) -> Slot {
        let tuple = self.add(level, previous, proxy, value, open.unwrap_or_default());
        if open.is_none() {
            self.commit(level, tuple);
        }
        tuple
    }
}
