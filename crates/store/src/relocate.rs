//! Relocation: cells and blocks leave slabs in which little is used, so that other sizes, or the system,
//! get the memory ([`Arena::choose_leaving`](crate::memory::arena::Arena::choose_leaving)).
//!
//! ```text
//! old cell   lock ─────────────────────────────────────── dead ─▶ unlock ─▶ grace period ─▶ free
//! new cell        copy words, status, stamp ─▶ in the index ──▶ unlock
//! ```
//! The lock of the old cell is only tried, and held exclusively throughout. So no commit and no reader with
//! a lock meets a cell in motion. A reader without a lock finds the old cell dead and looks again, as after
//! a commit that replaces a cell. No log hears of it, since key, value and stamp stay.
//!
//! **Captures.** A cell moves while no checkpoint is under way, and during a capture once the checkpoint
//! has claimed the record. The copy has the same status, so no scan takes the record again, or misses it.
//! The bits beside the cells say where marked cells lie, so they are set for the copy first. No scheme
//! keeps numbers of cells, so none need be told.
//!
//! **Blocks** of large values and of long keys are found from their records. Only the reference to them
//! changes, and the old block is as good as the new one until it is free. The lock is taken only of a
//! record that seems to have a block in a slab that is to leave.
//!
//! A call moves a bounded number of bytes, a few cells in each read section.

use stillpoint_sync::atomic::Ordering::{Acquire, Relaxed};
use stillpoint_sync::lock_word::{self, Priority};
use stillpoint_sync::mutant;

#[cfg(all(test, shuttle))]
use crate::memory::arena::Leaving;
use crate::memory::arena::{Allowance, Kind, Moves};
use crate::memory::blob;
use crate::memory::cell::Cell;
use crate::memory::stamp::{ABSENT, DEAD};
use crate::participant::Participant;
use crate::planted;
use crate::rules::Claim;
use crate::table::Table;

/// Cells that are looked at in one read section.
const CELLS_PER_SECTION: usize = 32;
/// Bytes after which a read section ends.
const BYTES_PER_SECTION: usize = 64 << 10;
/// Bytes that a call copies, and cells that it looks at, about.
const BYTES_PER_CALL: usize = 512 << 10;
const CELLS_PER_CALL: usize = 4096;

impl Participant {
    /// Moves some cells and blocks out of slabs that are to be freed, if there are any. Returns whether
    /// more can be moved at once. Call this outside of read sections.
    pub(crate) fn relocate(&mut self) -> bool {
        let store = self.store.clone();
        if store.unloaded().keeps_deleted() {
            // A load beside transactions makes many cells before it enters them into the index.
            return false;
        }
        // One thread moves cells at a time.
        let Some(mut moves) = store.moves.try_lock() else { return false };
        if !store.may_relocate(store.driver().now(), || true) {
            // Nothing moves for now. So slabs that were to leave give out cells meanwhile.
            if moves.take().is_some() {
                store.memory().arena.end_leaving(true);
            }
            return false;
        }
        if moves.is_none() {
            if self.reclaim.has_garbage() {
                // The slabs of the moves before may become empty yet.
                return true;
            }
            let Some(leaving) = store.memory().arena.choose_leaving() else { return false };
            self.cache.drain(&store.memory().arena);
            *moves = Some(Moves::of(leaving));
        }
        let under_way = moves.as_mut().expect("set above");
        let (mut bytes, mut cells, mut more) = (0, 0, true);
        while more && bytes < BYTES_PER_CALL && cells < CELLS_PER_CALL {
            self.enter();
            let allowance = std::mem::replace(&mut self.cache.allowance, Allowance::Reserve);
            let (moved, looked_at, is_more) = self.relocate_some(under_way);
            self.cache.allowance = allowance;
            self.exit();
            (bytes, cells, more) = (bytes + moved, cells + looked_at, is_more);
        }
        under_way.has_moved |= bytes > 0;
        if !more {
            store.memory().arena.end_leaving(under_way.has_moved);
            *moves = None;
        }
        true
    }

    /// Has all records move to other cells.
    #[cfg(all(test, shuttle))]
    pub(crate) fn relocate_all(&mut self) {
        let store = self.store.clone();
        if let Some(mut moves) = store.moves.try_lock()
            && moves.is_none()
        {
            *moves = Some(Moves::of(store.memory().arena.choose_all()));
        }
        self.relocate();
    }

    /// Goes through all records for blocks that are to leave their slabs.
    #[cfg(all(test, shuttle))]
    pub(crate) fn relocate_blocks(&mut self) {
        let store = self.store.clone();
        if let Some(mut moves) = store.moves.try_lock() {
            let leaving = Leaving { records: Vec::new(), has_blocks: true };
            *moves = Some(Moves::of(leaving));
        }
        self.relocate();
    }

    /// Has the record of one cell move to another, if it may. Call this inside a read section.
    #[cfg(all(test, shuttle))]
    pub(crate) fn relocate_one(&mut self, table: &Table, number: u64) {
        if self.store.cell(number).is_record() {
            self.visit_locked(table, number, Self::move_cell);
        }
    }

    /// Goes through some cells, within a read section. Gives the bytes moved, the cells looked at, and
    /// whether there are more.
    fn relocate_some(&mut self, moves: &mut Moves) -> (usize, usize, bool) {
        if let Some(&slab) = moves.leaving.records.get(moves.slabs) {
            let (bytes, cells, next) =
                self.visit_slab((slab, moves.cells), |_| true, Self::move_cell);
            (moves.slabs, moves.cells) = match next {
                Some(next) => (moves.slabs, next),
                None => (moves.slabs + 1, 0),
            };
            return (bytes, cells, true);
        }
        let (slab, cell) = moves.asked;
        if !moves.leaving.has_blocks || slab >= self.store.memory().arena.descriptions().len() {
            return (0, 0, false);
        }
        let (bytes, cells, next) =
            self.visit_slab((slab, cell), |cell| cell.has_leaving_block(), Self::move_blocks);
        moves.asked = next.map_or((slab + 1, 0), |next| (slab, next));
        (bytes, cells.max(1), true)
    }

    /// Has `visit` visit some cells of a slab of records, from a position on, those that `concerns` it. Gives
    /// the bytes moved, the cells looked at, and the next position, `None` at the end.
    fn visit_slab(
        &mut self,
        (slab, from): (usize, usize),
        concerns: impl Fn(Cell<'_>) -> bool,
        visit: fn(&mut Self, &Table, u64) -> usize,
    ) -> (usize, usize, Option<usize>) {
        let store = self.store.clone();
        let Some(found) = store.memory().arena.slab(slab).filter(|slab| slab.is_of_records())
        else {
            return (0, 0, None);
        };
        let table = store.catalog().owner(found.owner);
        // The cells of a table that was replaced are freed with it.
        let is_present = |table: &Table| {
            self.tables.get(table.id).is_some_and(|present| present.owner == found.owner)
        };
        let Some(table) = table.filter(|table| is_present(table)) else { return (0, 0, None) };
        let (mut bytes, mut looked_at) = (0, 0);
        for number in found.numbers(from..from + CELLS_PER_SECTION) {
            looked_at += 1;
            let cell = store.cell(number);
            if cell.is_record() && concerns(cell) {
                bytes += self.visit_locked(&table, number, visit);
            }
            if bytes >= BYTES_PER_SECTION {
                break;
            }
        }
        let next = from + looked_at;
        (bytes, looked_at, (next < found.cells()).then_some(next))
    }

    /// Has `visit` visit a record's cell with its lock held, if the lock is free. Gives the bytes moved.
    fn visit_locked(
        &mut self,
        table: &Table,
        number: u64,
        visit: fn(&mut Self, &Table, u64) -> usize,
    ) -> usize {
        let store = self.store.clone();
        let cell = store.cell(number);
        if lock_word::try_exclusive(cell.lock(), Priority::DECLARED).is_err() {
            return 0;
        }
        let is_dead = cell.stamp_word() & DEAD != 0;
        let moved = if is_dead { 0 } else { visit(self, table, number) };
        lock_word::release_exclusive(cell.lock());
        moved
    }

    /// Whether a cell may move whose lock this worker holds.
    fn may_relocate(&self, cell: Cell<'_>) -> bool {
        let now = self.store.driver().now();
        // Acquire: the status is read after the phase.
        let status = || lock_word::status(cell.lock().load(Acquire));
        let is_claimed = || {
            mutant!(in self.store.driver(); RelocatedUnclaimed => return true);
            !Claim::of(now).is_open(status())
        };
        self.store.may_relocate(now, is_claimed)
    }

    /// Moves the record of a cell, whose lock this worker holds, to another cell of the same size. Gives
    /// the bytes moved.
    fn move_cell(&mut self, table: &Table, number: u64) -> usize {
        let store = self.store.clone();
        let (old, arena) = (store.cell(number), &store.memory().arena);
        let is_absent = old.stamp_word() & ABSENT != 0;
        let status = lock_word::status(old.lock().load(Acquire));
        // A cell that waits for a checkpoint has an entry in the queue of some worker, and is counted by it.
        if is_absent && status & store.rules().waits() != 0 || !self.may_relocate(old) {
            return 0;
        }
        old.read_key(&mut self.reclaim.key);
        let hash = store.hash(table.id, &self.reclaim.key);
        if !table.index.has(hash, number) {
            // The transaction that adds the cell to the index may set its stamp anew.
            return 0;
        }
        let kind = if arena.is_of_kind(number, Kind::Lock) { Kind::Lock } else { Kind::Record };
        let was_refused = self.cache.was_refused;
        let made = self.cache.allocate(arena, table.owner, kind, old.bytes());
        self.cache.was_refused = was_refused;
        let Ok(new) = made else { return 0 };
        // The entry of a queue in which the old cell was before it got a value leads nowhere.
        let status = lock_word::status(old.lock().load(Acquire)) & !store.rules().waits();
        let status = mutant!(in store.driver(); status, RelocatedWithoutStatus => 0);
        arena.set_access(new, arena.access(number).unwrap_or(0));
        store.note_moved_marks(new, mutant!(in store.driver(); status, RelocatedWithoutMark => 0));
        store.cell(new).take_over(old, status, Priority::DECLARED);
        let replace = || table.index.replace(hash, (number, new), || old.kill());
        let replaced = mutant!(in store.driver(); replace(), RelocatedNotReplaced => {
            old.kill();
            true
        });
        debug_assert!(replaced, "a published cell stays in the index while its lock is held");
        lock_word::release_exclusive(store.cell(new).lock());
        if is_absent {
            self.add_absent(table.owner, table.id, new);
        }
        self.reclaim.retire_left(table.owner, number);
        old.bytes()
    }

    /// Moves those blocks of a record elsewhere that are to leave their slabs. This worker holds the lock
    /// of the record's cell. Gives the bytes moved.
    fn move_blocks(&mut self, table: &Table, number: u64) -> usize {
        let store = self.store.clone();
        let (cell, memory) = (store.cell(number), store.memory());
        let blob = cell.record().blob().filter(|&blob| blob::is_leaving(memory, blob));
        let key = cell.long_key().filter(|&(_, block)| memory.arena.is_leaving(block));
        if blob.is_none() && key.is_none() || !self.may_relocate(cell) {
            return 0;
        }
        let was_refused = self.cache.was_refused;
        let cache = &mut self.cache;
        let mut bytes = 0;
        if let Some(old) = blob
            && let Ok((new, copied)) = blob::moved(memory, cache, table.owner, old)
        {
            cell.record().set_table(new.table);
            self.reclaim.retire_blob(table.owner, old);
            bytes += copied;
        }
        if let Some((len, block)) = key
            && let Ok(new) =
                cache.allocate(&memory.arena, table.owner, Kind::Block, len.next_multiple_of(8))
        {
            let words = memory.arena.cell(new).iter().zip(memory.arena.cell(block));
            // Relaxed: the key never changes, and the block is published by the store that follows.
            words.for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
            cell.set_long_key_block(new);
            self.reclaim.retire_left(table.owner, block);
            bytes += len;
        }
        self.cache.was_refused = was_refused;
        bytes
    }
}
