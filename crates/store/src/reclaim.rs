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
//! the queue is no longer than the deletions in the time that closing takes. Cells that a checkpoint
//! needs are kept apart, each once. A worker looks through them when a checkpoint has gone on.
//!
//! The queue may name a cell twice. An entry may also name a cell that was reclaimed and belongs to
//! another key now, or is no cell any more. So an entry is only a hint where to look.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use stillpoint_format::Stamp;
use stillpoint_sync::GracePeriod;
use stillpoint_sync::lock_word::{self, Priority};
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::TableId;

use crate::catalog::Absent;
use crate::memory::blob::{self, Blob};
use crate::memory::stamp::{ABSENT, DEAD};
use crate::participant::Participant;
use crate::phase::Phase;
use crate::table::Table;

#[derive(Clone, Copy, Debug)]
enum Garbage {
    Cell { owner: u32, number: u64 },
    Blob { owner: u32, blob: Blob },
}

impl Garbage {
    fn owner(&self) -> u32 {
        match *self {
            Self::Cell { owner, .. } | Self::Blob { owner, .. } => owner,
        }
    }

    /// Bytes of a large value.
    fn large_bytes(&self) -> usize {
        match self {
            Self::Cell { .. } => 0,
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
/// Absent cells that an idle worker looks at per round, at most.
const PER_IDLE_ROUND: usize = 8192;

/// A round of n looks also looks again at n / 4 cells that a checkpoint needed, if a checkpoint has
/// gone on since.
const LOOKS_PER_NEEDED: usize = 4;

/// The result of a look at an entry.
#[derive(Clone, Copy, Debug)]
enum Looked {
    /// The cell was reclaimed, or is not absent any more.
    Done,
    /// The deletion of the cell's key is not closed.
    NotClosed,
    /// A checkpoint needs the cell.
    Needed,
}

/// The cells and large values that a worker has to reclaim.
#[derive(Debug, Default)]
pub(crate) struct Reclaim {
    absent: VecDeque<Absent>,
    /// Entries made since the last round.
    added: usize,
    /// Absent cells that a checkpoint needed when they were looked at. A set, since each release of such
    /// a cell's lock makes an entry.
    needed: BTreeSet<Absent>,
    /// How far checkpoints had gone when a look through `needed` began.
    needed_at: (u64, bool, u64),
    /// The least of `needed` that this look has not come to. `None` if it has come to all of them.
    needed_next: Option<Absent>,
    garbage: Vec<Garbage>,
    /// Bytes of the large values in `garbage`.
    garbage_bytes: usize,
    waiting: VecDeque<(GracePeriod, Vec<Garbage>)>,
    /// The key of the absent cell that is looked at.
    key: Vec<u8>,
}

/// Tells whether a commit survives any crash, so that records deleted by it may be reclaimed.
pub(crate) type IsClosed<'a> = &'a dyn Fn(Stamp) -> bool;

impl Reclaim {
    pub(crate) fn add(&mut self, owner: u32, table: TableId, cell: u64) {
        self.absent.push_back(Absent { owner, table, cell });
        self.added += 1;
    }

    pub(crate) fn retire_cell(&mut self, owner: u32, number: u64) {
        self.garbage.push(Garbage::Cell { owner, number });
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
        self.needed_next = self.needed.first().copied();
        self.garbage.retain(|garbage| garbage.owner() != owner);
        self.garbage_bytes = self.garbage.iter().map(Garbage::large_bytes).sum();
        for (_, batch) in &mut self.waiting {
            batch.retain(|garbage| garbage.owner() != owner);
        }
    }

    fn is_much_garbage(&self) -> bool {
        self.garbage.len() >= PER_GRACE || self.garbage_bytes >= BYTES_PER_GRACE
    }

    /// Whether nothing waits to be reclaimed or freed.
    pub(crate) fn is_empty(&self) -> bool {
        let is_empty = self.absent.is_empty() && self.needed.is_empty();
        is_empty && self.garbage.is_empty() && self.waiting.is_empty()
    }

    /// Gives up the absent cells that wait to be reclaimed, and returns them.
    pub(crate) fn give_up_absent(&mut self) -> Vec<Absent> {
        (self.added, self.needed_next) = (0, None);
        self.absent.extend(std::mem::take(&mut self.needed));
        std::mem::take(&mut self.absent).into()
    }

    /// Takes over the absent cells that an ended worker could not reclaim.
    pub(crate) fn adopt(&mut self, absent: Vec<Absent>) {
        self.absent.extend(absent);
    }
}

impl Participant {
    /// Reclaims the cells and frees the garbage whose time has come. Call this inside a read
    /// section.
    #[inline]
    pub(crate) fn collect_garbage(&mut self, is_closed: IsClosed<'_>) {
        if !(self.reclaim.absent.is_empty() && self.reclaim.needed.is_empty()) {
            let added = std::mem::take(&mut self.reclaim.added);
            self.reclaim_absent(PER_ROUND.max(2 * added), is_closed);
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
    /// frees garbage at once instead of collecting it.
    pub(crate) fn collect_all_garbage(&mut self, is_closed: IsClosed<'_>) {
        self.reclaim.added = 0;
        self.reclaim_absent(PER_IDLE_ROUND, is_closed);
        self.make_room();
    }

    /// Looks at the `most` oldest entries, up to the first whose deletion is not closed yet, since
    /// those behind it are hardly older. True if more cells might be reclaimed at once.
    #[cold]
    fn reclaim_absent(&mut self, most: usize, is_closed: IsClosed<'_>) -> bool {
        let gone = self.look_again(most / LOOKS_PER_NEEDED, is_closed);
        for _ in 0..most {
            let Some(&absent) = self.reclaim.absent.front() else {
                return gone;
            };
            match self.try_reclaim(absent, is_closed) {
                Looked::NotClosed => return gone,
                Looked::Done => {}
                Looked::Needed => drop(self.reclaim.needed.insert(absent)),
            }
            self.reclaim.absent.pop_front();
        }
        true
    }

    /// Looks at the `most` next cells that a checkpoint needed, if a checkpoint has gone on since they
    /// were last looked at. True if one of them is gone.
    fn look_again(&mut self, most: usize, is_closed: IsClosed<'_>) -> bool {
        let now = self.store.driver().now();
        let at = (now.epoch(), now.phase() == Phase::Rest, self.store.chains().ends());
        let reclaim = &mut self.reclaim;
        if reclaim.needed_at != at {
            reclaim.needed_at = at;
            reclaim.needed_next = reclaim.needed.first().copied();
        }
        let before = reclaim.needed.len();
        for _ in 0..most {
            let Some(absent) = self.reclaim.needed_next else { break };
            let later = self.reclaim.needed.range((Excluded(absent), Unbounded)).next();
            self.reclaim.needed_next = later.copied();
            if matches!(self.try_reclaim(absent, is_closed), Looked::Done) {
                self.reclaim.needed.remove(&absent);
            }
        }
        self.reclaim.needed.len() < before
    }

    /// Takes an absent cell, whose lock the caller holds exclusively, out of the index. False if
    /// the index does not have the cell.
    pub(crate) fn remove_cell(&self, table: &Table, hash: u64, number: u64, stamp: Stamp) -> bool {
        table.index.remove(self.number, hash, number, || {
            mutant!(table.raise_floor(hash, stamp.gsn()), FloorNotRaised => ());
            self.store.cell(number).kill();
        })
    }

    /// Reclaims a cell, if nothing forbids it.
    fn try_reclaim(&mut self, absent: Absent, is_closed: IsClosed<'_>) -> Looked {
        let Some(table) = self.tables.get(absent.table).filter(|table| table.owner == absent.owner)
        else {
            return Looked::Done;
        };
        // The entry may be outdated: its place may now hold a cell of another size, or a large
        // value.
        if !self.store.memory().arena.has_record_cell(absent.cell, absent.owner) {
            return Looked::Done;
        }
        let cell = self.store.cell(absent.cell);
        let word = cell.stamp_word();
        if word & ABSENT == 0 || word & DEAD != 0 {
            return Looked::Done;
        }
        let is_closed = |stamp: Stamp| mutant!(is_closed(stamp), ReclaimsBeforeClosed => true);
        if !is_closed(Stamp::from_bits(word)) {
            return Looked::NotClosed;
        }
        if lock_word::try_exclusive(cell.lock(), Priority::DECLARED).is_err() {
            // The transaction that holds the lock makes a new entry when it releases the lock.
            return Looked::Done;
        }
        // Under the lock the key and the stamp stay.
        let word = cell.stamp_word();
        let stamp = Stamp::from_bits(word);
        let is_absent = word & (ABSENT | DEAD) == ABSENT;
        let is_needed = is_absent && !self.store.may_reuse(cell);
        let may_go = is_closed(stamp);
        let mut gone = false;
        if is_absent && may_go && !is_needed {
            cell.read_key(&mut self.reclaim.key);
            let hash = self.store.hash(absent.table, &self.reclaim.key);
            // If the cell is not in the index yet, the transaction that adds it makes a new entry.
            gone = self.remove_cell(table, hash, absent.cell, stamp);
        }
        lock_word::release_exclusive(cell.lock());
        if gone {
            self.reclaim.retire_cell(absent.owner, absent.cell);
        }
        match (is_absent && !may_go, is_needed) {
            (true, _) => Looked::NotClosed,
            (false, true) => Looked::Needed,
            (false, false) => Looked::Done,
        }
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
            more = self.reclaim_absent(PER_IDLE_ROUND, is_closed);
            self.exit();
        }
        self.store.driver().read_sections().wait_grace_period();
        // The worker enters a read section, since a table may have been dropped and its garbage
        // must be forgotten.
        self.enter();
        self.store.catalog().leave_absent(self.reclaim.give_up_absent().into_iter());
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
    use std::sync::Arc;

    use super::*;
    use crate::rules::{CellRules, DirtyRule, Reuse, StatusChanges};
    use crate::store::{Store, StoreConfig};
    use crate::txn::commit_log::NoLog;
    use crate::worker::Worker;

    /// Transactions lock a deleted key again and again, while a checkpoint needs the key's cell.
    #[test]
    fn a_needed_cell_is_noted_once() {
        const T: TableId = TableId(0);
        let rules = CellRules {
            dirty: DirtyRule::ByEpoch,
            status_changes: StatusChanges::InPrepareAndCapture,
            reuse: Reuse::WhenClean,
            ..CellRules::BEFORE_IMAGES
        };
        let store = Arc::new(Store::new(&StoreConfig::default(), rules).expect("address space"));
        store.add_table(T, 1).expect("address space");
        let log = Box::new(NoLog::default());
        let mut worker = Worker::new(Arc::clone(&store), log).expect("a free slot");
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
}
