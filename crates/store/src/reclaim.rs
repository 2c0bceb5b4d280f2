//! Reclaiming: absent cells whose deletion is durable, and garbage that waits for a grace period.
//!
//! An absent cell may be reclaimed once its stamp is closed: a key inserted later then need not
//! depend on the deletion. The cell's gsn raises the floor of its part of the key space. So a key
//! inserted again never gets a smaller gsn than its deletion had. The index bucket of the key has a
//! lock, which an insertion of the same key must take. Under this lock the floor is raised and the
//! cell killed, and only then does the index let the cell go.
//!
//! A cell that no log wrote, made for the lock of a missing key for instance, is reclaimed by the
//! transaction that releases it last. Each other release of an absent cell's lock makes an entry in
//! the worker's queue. A worker looks at twice as many entries as it has made since it last looked. So
//! the queue is no longer than the deletions in the time that closing takes.
//!
//! **Cells that a checkpoint needs** wait in a queue for each epoch of their marks:
//! ```text
//! marked in epoch e ─▶ checkpoint e + 1 has the deletions, and is published
//!   ─▶ PREPARE of checkpoint e + 2 clears the marks ─▶ the whole queue is looked at
//! ```
//! A cell that is still needed then waits in the queue of a later epoch. So each cell is looked at once
//! for each checkpoint at most. A full checkpoint that ends may free cells of all epochs. A cell that is
//! too large, and that a capture may read, is looked at once more when that capture has ended.
//!
//! A bit of the cell's status notes that the cell waits, so that it waits in one queue only. Whoever
//! sets the bit or takes the entry out of the queue holds the cell's lock.
//!
//! Such a cell keeps the key, and no room for the value: a smaller cell replaces it.
//!
//! The other queue may name a cell twice. An entry may also name a cell that was reclaimed or moved. Its
//! place may belong to another key now, or be no cell any more, or a cell that its maker is filling. So an
//! entry is only a hint where to look. Only the lock of a published cell may be taken, since a maker
//! writes the lock word of a new cell by a plain store.

mod queue;

use std::collections::VecDeque;
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_sync::GracePeriod;
use stillpoint_sync::atomic::Ordering::{Acquire, Relaxed};
use stillpoint_sync::lock_word::{self, Priority};
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::TableId;

use crate::catalog::{Absent, WaitingMemory};
use crate::memory::arena::{Allowance, Kind, bytes_of_class};
use crate::memory::blob::{self, Blob};
use crate::memory::stamp::{ABSENT, DEAD};
use crate::ordered::locks::{Name, RemovedKey};
use crate::participant::Participant;
use crate::phase::Phase;
use crate::record::NewCell;
use crate::rules::Claim;
use crate::table::Table;
use queue::{Queue, Waiting};

#[derive(Clone, Copy, Debug)]
enum Garbage {
    Cell {
        owner: u32,
        number: u64,
    },
    Blob {
        owner: u32,
        blob: Blob,
    },
    /// A cell or a block whose contents lie elsewhere now.
    Left {
        owner: u32,
        number: u64,
    },
}

impl Garbage {
    fn owner(&self) -> u32 {
        match *self {
            Self::Cell { owner, .. } | Self::Blob { owner, .. } | Self::Left { owner, .. } => owner,
        }
    }

    /// Bytes of a large value.
    fn large_bytes(&self) -> usize {
        match self {
            Self::Cell { .. } | Self::Left { .. } => 0,
            Self::Blob { blob, .. } => blob.len,
        }
    }
}

/// Garbage is collected up to this number of pieces, or up to a number of bytes of large values.
/// All collected garbage then waits for one grace period.
const PER_GRACE: usize = 64;
const BYTES_PER_GRACE: usize = 1 << 20;
/// Absent cells looked at per round, at least.
const PER_ROUND: usize = 128;
/// Absent cells that are looked at in one read section, at most, unless the worker has just made more.
const PER_SECTION: usize = 512;
/// Read sections of a round of an idle worker, at most.
const IDLE_SECTIONS: usize = 16;

/// The result of a look at an entry.
#[derive(Clone, Copy, Debug)]
enum Looked {
    /// The cell was reclaimed, is not absent any more, or waits in another queue.
    Done,
    /// The deletion of the cell's key is not closed, or marks are settled at present.
    Later,
    /// Another thread holds the lock of the cell, whose status notes that it waits.
    Locked,
    /// A transaction has read the gap below the key of an ordered table.
    GapLocked,
    /// A checkpoint needs the cell, or this smaller one that has replaced it. It waits since this
    /// moment.
    Needed(u64, u64),
}

/// Why the cell of a deleted key cannot be made smaller.
enum Unmoved {
    /// A pass settles the marks of cells at present.
    AreSettled,
    /// The capture under way has yet to take the deletion, or may read the cell.
    IsCaptured,
    /// There is no memory, or the cell is not in the index yet.
    ForNow,
}

/// The cells and large values that a worker has to reclaim.
#[derive(Debug, Default)]
pub(crate) struct Reclaim {
    absent: Queue,
    /// Entries made since the last round.
    added: usize,
    /// Absent cells that a checkpoint needed when they were looked at.
    needed: Waiting,
    /// Full checkpoints that had ended when `needed` was looked at.
    full_ends: u64,
    /// What the store counts of this worker.
    counted: WaitingMemory,
    garbage: Vec<Garbage>,
    /// Bytes of the large values in `garbage`.
    garbage_bytes: usize,
    waiting: VecDeque<(GracePeriod, Vec<Garbage>)>,
    /// The key of the cell that is looked at.
    pub(crate) key: Vec<u8>,
}

/// Tells whether a commit survives any crash, so that records deleted by it may be reclaimed.
pub(crate) type IsClosed<'a> = &'a dyn Fn(Stamp) -> bool;

impl Reclaim {
    fn add(&mut self, absent: Absent) {
        self.absent.push(absent);
        self.added += 1;
    }

    pub(crate) fn retire_cell(&mut self, owner: u32, number: u64) {
        self.garbage.push(Garbage::Cell { owner, number });
    }

    /// Retires a cell or a block alone. What it refers to stays.
    pub(crate) fn retire_left(&mut self, owner: u32, number: u64) {
        self.garbage.push(Garbage::Left { owner, number });
    }

    pub(crate) fn retire_blob(&mut self, owner: u32, blob: Blob) {
        self.garbage.push(Garbage::Blob { owner, blob });
        self.garbage_bytes += blob.len;
    }

    /// Forgets the cells and large values of a dropped owner. The drop has freed the cells and
    /// values with the owner's slabs, which may belong to another owner already.
    pub(crate) fn forget_owner(&mut self, owner: u32) {
        self.absent.retain(|absent| absent.owner != owner);
        self.needed.retain(|absent| absent.owner != owner);
        self.garbage.retain(|garbage| garbage.owner() != owner);
        self.garbage_bytes = self.garbage.iter().map(Garbage::large_bytes).sum();
        for (_, batch) in &mut self.waiting {
            batch.retain(|garbage| garbage.owner() != owner);
        }
    }

    fn is_much_garbage(&self) -> bool {
        self.garbage.len() >= PER_GRACE || self.garbage_bytes >= BYTES_PER_GRACE
    }

    /// Whether memory waits for a grace period.
    pub(crate) fn has_garbage(&self) -> bool {
        !(self.garbage.is_empty() && self.waiting.is_empty())
    }

    /// Whether nothing waits to be reclaimed or freed.
    pub(crate) fn is_empty(&self) -> bool {
        let is_empty = self.absent.is_empty() && self.needed.is_empty();
        is_empty && self.garbage.is_empty() && self.waiting.is_empty()
    }

    /// Gives up the absent cells that wait to be reclaimed, and returns them.
    pub(crate) fn give_up_absent(&mut self) -> Vec<Absent> {
        self.added = 0;
        self.absent.drain().chain(self.needed.drain()).collect()
    }

    /// Takes over the absent cells that an ended worker could not reclaim.
    pub(crate) fn adopt(&mut self, absent: Vec<Absent>) {
        absent.into_iter().for_each(|absent| self.absent.push(absent));
    }

    /// Whether the wait of cells is over that a checkpoint needed.
    pub(crate) fn has_over(&self) -> bool {
        self.needed.has_over()
    }
}

impl Participant {
    /// Reclaims the cells and frees the garbage whose time has come. Call this inside a read
    /// section.
    #[inline]
    pub(crate) fn collect_garbage(&mut self, is_closed: IsClosed<'_>) {
        if !(self.reclaim.absent.is_empty() && self.reclaim.needed.is_empty()) {
            let added = std::mem::take(&mut self.reclaim.added);
            // After a refusal this worker may have the only memory that is left.
            let least = if self.cache.was_refused { PER_SECTION } else { PER_ROUND };
            self.reclaim_absent(least.max(2 * added), is_closed);
        }
        let is_much = self.reclaim.is_much_garbage();
        if is_much || !self.reclaim.waiting.is_empty() {
            self.pass_grace(is_much);
        }
        if self.cache.was_refused {
            self.make_room();
        }
    }

    /// Called after memory was refused: returns all spare cells, which may empty a slab.
    #[cold]
    fn make_room(&mut self) {
        self.pass_grace(true);
        let Self { cache, store, .. } = self;
        cache.drain(&store.memory().arena);
    }

    /// As [`collect_garbage`](Self::collect_garbage), for an idle worker: looks at more cells, and
    /// frees garbage at once instead of collecting it. Call this outside of read sections. It enters one
    /// for some cells at a time, so that no grace period waits for all of them.
    pub(crate) fn collect_all_garbage(&mut self, is_closed: IsClosed<'_>) {
        self.reclaim.added = 0;
        let (mut more, mut sections) = (true, 0);
        while more && sections < IDLE_SECTIONS {
            self.enter();
            more = self.reclaim_absent(PER_SECTION, is_closed);
            self.exit();
            sections += 1;
        }
        self.enter();
        self.make_room();
        self.exit();
    }

    /// Looks at the `most` oldest cells whose wait for a checkpoint is over. Then looks at the `most`
    /// oldest entries, up to the first whose deletion is not closed yet, since those behind it are
    /// hardly older. True if more cells might be reclaimed at once.
    #[cold]
    fn reclaim_absent(&mut self, most: usize, is_closed: IsClosed<'_>) -> bool {
        self.look_again(most, is_closed);
        let (mut more, mut is_in_range) = (true, false);
        for _ in 0..most.min(self.reclaim.absent.len() + 1) {
            let Some(absent) = self.reclaim.absent.first() else {
                more = false;
                break;
            };
            match self.try_reclaim(absent, is_closed) {
                Looked::Later => {
                    more = false;
                    break;
                }
                Looked::Done => {}
                Looked::Locked => self.wait_anew(absent),
                Looked::GapLocked => {
                    // The other entries need not wait for this transaction.
                    is_in_range = true;
                    self.reclaim.absent.push(absent);
                }
                Looked::Needed(since, cell) => self.wait_since(since, Absent { cell, ..absent }),
            }
            self.reclaim.absent.pop();
        }
        self.count_waiting();
        more && !is_in_range || self.reclaim.has_over()
    }

    /// Looks at the `most` oldest cells whose wait for a checkpoint is over.
    fn look_again(&mut self, most: usize, is_closed: IsClosed<'_>) {
        let store = &self.store;
        let full_ends = store.chains().full_ends();
        let all = std::mem::replace(&mut self.reclaim.full_ends, full_ends) != full_ends;
        self.reclaim.needed.end(|since| all || store.wait_is_over(since));
        for _ in 0..most {
            let Some(absent) = self.reclaim.needed.pop() else { return };
            match self.try_reclaim(absent, is_closed) {
                Looked::Done => {}
                Looked::Later | Looked::Locked | Looked::GapLocked => self.wait_anew(absent),
                Looked::Needed(since, cell) => self.wait_since(since, Absent { cell, ..absent }),
            }
        }
    }

    fn wait_since(&mut self, since: u64, absent: Absent) {
        let class = self.store.memory().arena.class_of(absent.cell);
        self.reclaim.needed.push(since, Absent { is_noted: true, class, ..absent });
    }

    /// Has the cell of a key without a value reclaimed later.
    pub(crate) fn add_absent(&mut self, owner: u32, table: TableId, cell: u64) {
        let class = self.store.memory().arena.class_of(cell);
        self.reclaim.add(Absent { owner, table, is_noted: false, class, cell });
    }

    /// Has a cell wait that cannot be looked at now.
    fn wait_anew(&mut self, absent: Absent) {
        self.wait_since(self.store.waits_since(u8::MAX), absent);
    }

    /// Tells the store how many cells wait here, and the bytes of the entries.
    pub(crate) fn count_waiting(&mut self) {
        let Reclaim { needed, absent, counted, .. } = &mut self.reclaim;
        let now = WaitingMemory {
            needed: needed.len(),
            queue_bytes: needed.bytes() + absent.bytes(),
            needed_bytes: needed.cell_bytes(),
            absent_bytes: absent.cell_bytes(),
        };
        self.store.count_waiting(std::mem::replace(counted, now), now);
    }

    /// Takes an absent cell, whose lock the caller holds exclusively, out of the indexes of its table.
    /// False if the hash index does not have the cell, or if a transaction has read the gap below the
    /// key.
    pub(crate) fn remove_cell(
        &self,
        table: &Table,
        (hash, key): (u64, &[u8]),
        number: u64,
        stamp: Stamp,
    ) -> bool {
        if let Some(ordered) = &table.ordered {
            // A cell that is not in the hash index yet, or not any more, is not the key's. While the
            // lock of a published cell is held, the cell stays in the index.
            if !table.index.has(hash, number) {
                return false;
            }
            let (locks, gap) = (self.store.lock_table(), Name::gap(hash));
            if !ordered.remove(key, &mut RemovedKey { locks, gap }) {
                return false;
            }
        }
        table.index.remove(self.number, hash, number, || {
            mutant!(table.raise_floor(hash, stamp.gsn()), FloorNotRaised => ());
            self.store.cell(number).kill();
        })
    }

    /// Reclaims a cell, if nothing forbids it.
    fn try_reclaim(&mut self, absent: Absent, is_closed: IsClosed<'_>) -> Looked {
        let is_owner = |table: &Arc<Table>| table.owner == absent.owner;
        if !self.tables.get(absent.table).is_some_and(is_owner) {
            return Looked::Done;
        }
        // The entry may be outdated: its place may now hold a cell of another size, or a large
        // value.
        if !self.store.memory().arena.has_record_cell(absent.cell, absent.owner) {
            return Looked::Done;
        }
        let cell = self.store.cell(absent.cell);
        let word = cell.stamp_word();
        if !cell.is_record() || word & ABSENT == 0 && !absent.is_noted {
            return Looked::Done;
        }
        let is_closed = |stamp: Stamp| mutant!(is_closed(stamp), ReclaimsBeforeClosed => true);
        if word & ABSENT != 0 && !is_closed(Stamp::from_bits(word)) {
            return Looked::Later;
        }
        if lock_word::try_exclusive(cell.lock(), Priority::DECLARED).is_err() {
            // The transaction that holds the lock makes a new entry when it releases the lock. That
            // entry counts only if the cell does not wait already.
            return if absent.is_noted { Looked::Locked } else { Looked::Done };
        }
        let looked = self.look_locked(absent, is_closed);
        lock_word::release_exclusive(self.store.cell(absent.cell).lock());
        looked
    }

    /// Looks at a cell whose lock this worker holds. So key and stamp stay.
    fn look_locked(&mut self, absent: Absent, is_closed: impl Fn(Stamp) -> bool) -> Looked {
        let cell = self.store.cell(absent.cell);
        let (word, noted) = (cell.stamp_word(), self.store.rules().waits());
        let stamp = Stamp::from_bits(word);
        if word & DEAD != 0 {
            return Looked::Done;
        }
        // Relaxed: only holders of the lock change the bit.
        let status = lock_word::status(cell.lock().load(Relaxed));
        let waits = status & noted != 0;
        let is_absent = word & ABSENT != 0;
        if is_absent && !is_closed(stamp) {
            return Looked::Later;
        }
        let is_kept = is_absent && self.must_keep(absent);
        let table = self.tables.get(absent.table).expect("found before");
        let cell = self.store.cell(absent.cell);
        if is_absent && (is_kept || !self.store.may_reuse(cell)) {
            if waits && !absent.is_noted {
                return Looked::Done;
            }
            let mut since = self.store.waits_since(if is_kept { u8::MAX } else { status });
            if self.is_too_large(absent) {
                match self.make_smaller(absent) {
                    Ok(smaller) => {
                        return Looked::Needed(since, smaller);
                    }
                    Err(Unmoved::AreSettled) if !waits => return Looked::Later,
                    // The cell can be made smaller then, though no checkpoint has the deletion yet.
                    Err(Unmoved::IsCaptured) => since = self.store.waits_for_capture(),
                    Err(Unmoved::AreSettled | Unmoved::ForNow) => {}
                }
            }
            if !waits {
                let lock = self.store.cell(absent.cell).lock();
                lock_word::update_status(lock, |status| status | noted);
            }
            return Looked::Needed(since, absent.cell);
        }
        let gone = is_absent && {
            cell.read_key(&mut self.reclaim.key);
            let hash = self.store.hash(absent.table, &self.reclaim.key);
            // If the cell is not in the index yet, the transaction that adds it makes a new entry.
            self.remove_cell(table, (hash, &self.reclaim.key), absent.cell, stamp)
        };
        if is_absent && !gone && table.ordered.is_some() {
            return Looked::GapLocked;
        }
        if gone {
            self.reclaim.retire_cell(absent.owner, absent.cell);
        } else if waits && absent.is_noted {
            lock_word::update_status(cell.lock(), |status| status & !noted);
        }
        Looked::Done
    }

    /// Whether a checkpoint that is still to be loaded may have the key. This worker holds the cell's lock.
    fn must_keep(&mut self, absent: Absent) -> bool {
        let Self { store, reclaim, tables, .. } = self;
        if !store.unloaded().keeps_deleted() {
            return false;
        }
        store.cell(absent.cell).read_key(&mut reclaim.key);
        let hash = store.hash(absent.table, &reclaim.key);
        let generation = tables.get(absent.table).map_or(0, |table| table.generation);
        store.unloaded().must_keep((absent.table, generation), hash)
    }

    /// Whether a smaller cell has room for the key alone. Reads the key.
    fn is_too_large(&mut self, absent: Absent) -> bool {
        let Self { store, reclaim, .. } = self;
        let cell = store.cell(absent.cell);
        cell.read_key(&mut reclaim.key);
        let least = store.memory().cell_bytes(reclaim.key.len(), 0);
        store.rules().reuse.waits_for_deletions() && bytes_of_class(least) < cell.bytes()
    }

    /// Replaces the cell of a deleted key that a checkpoint needs by a cell without room for a value.
    /// So the value's bytes are free although the checkpoint, or each further one, should fail. This worker
    /// holds the cell's lock, and has read the key.
    ///
    /// The new cell takes over the stamp and the marks. Its lock is free only after the old cell is dead.
    /// So whoever writes the new cell writes it after all reads of the old one.
    fn make_smaller(&mut self, absent: Absent) -> Result<u64, Unmoved> {
        let Self { store, cache, tables, reclaim, .. } = self;
        let (now, old) = (store.driver().now(), store.cell(absent.cell));
        if now.phase() == Phase::Prepare {
            return Err(Unmoved::AreSettled);
        }
        // Acquire: the status is read after the phase.
        let is_claimed = || !Claim::of(now).is_open(lock_word::status(old.lock().load(Acquire)));
        if !store.may_move(now, is_claimed) {
            return Err(Unmoved::IsCaptured);
        }
        let moved = store.moved_status(old);
        let table: &Table = tables.get(absent.table).expect("found before");
        let key = &reclaim.key[..];
        let hash = store.hash(absent.table, key);
        if !table.index.has(hash, absent.cell) {
            // The transaction that adds the cell may set its stamp anew, and makes a new entry.
            return Err(Unmoved::ForNow);
        }
        let stamp = Stamp::from_bits(old.stamp_word());
        let status = moved | store.rules().first_status(now) | store.rules().waits();
        let locked_by = Some(Priority::DECLARED);
        let new = |kind| NewCell { table, hash, key, value_len: 0, kind, locked_by, status };
        // The move frees more than it takes. So it may take more than the limit allows.
        let allowance = std::mem::replace(&mut cache.allowance, Allowance::Reserve);
        let made = new(Kind::Record)
            .make(store.memory(), cache)
            .or_else(|_| new(Kind::Lock).make(store.memory(), cache));
        cache.allowance = allowance;
        let number = made.map_err(|_| Unmoved::ForNow)?;
        store.cell(number).record().end_delete(stamp);
        store.note_moved_marks(number, moved);
        let replaced = table.index.replace(hash, (absent.cell, number), || old.kill());
        debug_assert!(replaced, "a published cell stays in the index while its lock is held");
        lock_word::release_exclusive(store.cell(number).lock());
        self.reclaim.retire_cell(absent.owner, absent.cell);
        Ok(number)
    }

    /// Frees the garbage whose grace period has passed. If `begins`, begins a grace period for the
    /// garbage collected since.
    fn pass_grace(&mut self, begins: bool) {
        let read_sections = self.store.driver().read_sections();
        if begins && !self.reclaim.garbage.is_empty() {
            let batch = std::mem::take(&mut self.reclaim.garbage);
            self.reclaim.garbage_bytes = 0;
            // This worker's own read section is open. So the grace period passes only after the
            // worker has left that section.
            self.reclaim.waiting.push_back((read_sections.token(), batch));
        }
        while let Some((token, _)) = self.reclaim.waiting.front_mut() {
            if !self.store.driver().read_sections().has_passed(token) {
                return;
            }
            let (_, batch) = self.reclaim.waiting.pop_front().expect("seen");
            for garbage in batch {
                self.free_garbage(garbage);
            }
        }
    }

    fn free_garbage(&mut self, garbage: Garbage) {
        match garbage {
            Garbage::Cell { number, .. } => {
                let memory = self.store.memory();
                let arena = &memory.arena;
                if memory.copies > 1 {
                    let cache = &mut self.cache;
                    let free = |blob| blob::release(memory, cache, blob);
                    self.store.cell(number).for_each_blob(free);
                }
                if let Some(block) = self.store.cell(number).long_key_block() {
                    self.cache.free(arena, block);
                }
                self.cache.free(arena, number);
            }
            Garbage::Left { number, .. } => self.cache.free(&self.store.memory().arena, number),
            Garbage::Blob { blob, .. } => {
                blob::release(self.store.memory(), &mut self.cache, blob);
            }
        }
    }

    /// Frees all garbage. Absent cells whose deletion is not closed are left to another worker.
    pub(crate) fn finish_reclaiming(&mut self, is_closed: IsClosed<'_>) {
        let mut more = true;
        while more {
            self.enter();
            more = self.reclaim_absent(PER_SECTION, is_closed);
            self.exit();
        }
        self.store.driver().read_sections().wait_grace_period();
        // The worker enters a read section, since a table may have been dropped and its garbage
        // must be forgotten.
        self.enter();
        self.store.catalog().leave_absent(self.reclaim.give_up_absent().into_iter());
        self.count_waiting();
        let waiting = std::mem::take(&mut self.reclaim.waiting);
        let garbage = std::mem::take(&mut self.reclaim.garbage);
        for item in waiting.into_iter().flat_map(|(_, batch)| batch).chain(garbage) {
            self.free_garbage(item);
        }
        self.exit();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::rules::{CellRules, DirtyRule, Reuse, StatusChanges};
    use crate::store::{Store, StoreConfig};
    use crate::txn::commit_log::NoLog;
    use crate::worker::Worker;

    const T: TableId = TableId(0);

    fn open(rules: CellRules) -> (Arc<Store>, Worker) {
        let store = Arc::new(Store::new(&StoreConfig::default(), rules).expect("address space"));
        store.add_table(T, 1).expect("address space");
        let worker = Worker::new(Arc::clone(&store), Box::new(NoLog::default()));
        (store, worker.expect("a free slot"))
    }

    /// Transactions lock a deleted key again and again, while a checkpoint needs the key's cell.
    #[test]
    fn a_needed_cell_is_noted_once() {
        let rules = CellRules {
            dirty: DirtyRule::ByEpoch,
            status_changes: StatusChanges::InPrepareAndCapture,
            reuse: Reuse::WhenClean,
            ..CellRules::BEFORE_IMAGES
        };
        let (store, mut worker) = open(rules);
        for key in [b"a", b"b"] {
            worker.transact(|tx| tx.put(T, key, b"value")).expect("memory");
        }
        for _ in 0..1_000 {
            for key in [b"a", b"b"] {
                worker.transact(|tx| tx.delete(T, key)).expect("memory");
            }
            worker.idle();
        }
        let Reclaim { absent, needed, .. } = &worker.local.reclaim;
        assert_eq!((absent.len(), needed.len(), store.cell_count(T)), (0, 2, 2));
    }

    /// The slab of an entry's cell was emptied and used anew. So the number is that of a cell that its
    /// maker is filling: the lock word is written, and the stamp is not.
    #[test]
    fn the_lock_of_a_cell_that_is_being_made_is_left_alone() {
        let (store, mut worker) = open(CellRules::IN_PLACE);
        worker.transact(|tx| tx.put(T, b"a", b"value")).expect("memory");
        let owner = worker.local.tables.get(T).expect("the table").owner;
        let arena = &store.memory().arena;
        let slabs = (0..arena.descriptions().len()).filter_map(|index| arena.slab(index));
        let slab = { slabs }.find(|slab| slab.is_of_records()).expect("that of the record");
        let last = slab.numbers(slab.cells() - 1..slab.cells()).next().expect("the last cell");
        assert!(arena.has_record_cell(last, owner) && store.cell(last).stamp_word() == 0);
        let lock = store.cell(last).lock();
        for word in [lock_word::locked(3, 0, Priority::DECLARED), 0] {
            lock.store(word, Relaxed);
            for is_noted in [true, false] {
                let class = arena.class_of(last);
                let entry = Absent { owner, table: T, is_noted, class, cell: last };
                worker.local.enter();
                let looked = worker.local.try_reclaim(entry, &|_| true);
                worker.local.exit();
                assert!(matches!(looked, Looked::Done), "{looked:?}");
                assert_eq!(lock.load(Relaxed), word, "the maker's lock");
            }
        }
    }
}
