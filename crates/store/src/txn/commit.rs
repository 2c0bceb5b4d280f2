//! Commit: with all locks held, read the phase, append to the log, install the writes, release.
//!
//! Whatever can fail is done before the log takes the commit: for instance, memory is found for
//! values that do not fit their cells. Installing cannot fail.

use stillpoint_format::{LOG_NONE, Label, Stamp};
use stillpoint_sync::lock_word;
use stillpoint_sync::mutant;
use stillpoint_sync::steps::{Step, step};
use stillpoint_txn::{Discipline, LogRefused, TxError};

use crate::capture::{self, Overwritten};
use crate::memory::arena::{CellCache, Kind};
use crate::memory::blob::{self, Blob};
use crate::memory::cell::Record;
use crate::memory::stamp::ABSENT;
use crate::participant::Participant;
use crate::phase::PhaseWord;
use crate::planted;
use crate::read_stamps::ReadStamps;
use crate::record::{self, NewCell, Prepared, Writing};
use crate::rules::{Claim, DirtyRule, WriteRule};
use crate::txn::Transaction;
use crate::txn::commit_log::{Change, Commit, CommitLog, Locked, WriteSet};
use crate::txn::pending::{NONE, OpKind};

/// Dropped only when installing panics. The log already has the commit, and readers would see half
/// of it, so the process ends here.
struct HalfInstalled;

impl Drop for HalfInstalled {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// The part that has no room for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The log.
    Log,
    /// The sink of the checkpoint that began this epoch.
    Sink(u64),
    /// The pool of stable versions, which lacks so many free slots.
    Stable(usize),
    /// The read section: the commit is long, and is to be encoded outside of it.
    Section,
}

/// A commit with longer values than this is encoded before its read section. A core copies so much in a
/// millisecond or two.
const LONG_BYTES: usize = 4 << 20;

/// No checkpoint begins this epoch.
const NO_EPOCH: u64 = 0;

/// The steps of one commit, with all locks held, inside one read section:
///
/// ```text
/// prepare ──▶ append ──▶ install ──▶ release
///    ▲  no room  │
///    └── wait ◀──┘
/// ```
/// The caller may append an entry of its own that holds [`entry`](Self::entry) among other things,
/// and may do work of its own between the steps. In this way another kind of table commits with the
/// same stamp. Until a log has taken the entry nothing has changed. If the steps are dropped before
/// that, the transaction is to be rolled back.
///
/// A commit that finds no room waits outside of the read section and keeps its locks. So neither a
/// grace period nor a phase waits for a stalled disk. Tables are not replaced meanwhile, since a
/// quiesce waits for the commit.
pub struct CommitSteps<'t> {
    transaction: &'t mut Transaction,
    local: &'t mut Participant,
    log: &'t mut Box<dyn CommitLog>,
    /// Phase and epoch in which the transaction commits, as the last preparation has read them.
    phase: PhaseWord,
    /// The stamp of the commit, once its writes are installed.
    stamp: Option<Stamp>,
    /// The epoch whose sink the commit has waited for.
    waited_in: u64,
    has_waited: bool,
    has_ended: bool,
    /// Whether the read section ends with the steps.
    leaves: bool,
}

impl std::fmt::Debug for CommitSteps<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitSteps").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl<'t> CommitSteps<'t> {
    /// The steps of a transaction that holds all its locks. Inside a read section, which ends with
    /// the steps if `leaves` says so.
    pub(crate) fn new(
        transaction: &'t mut Transaction,
        local: &'t mut Participant,
        log: &'t mut Box<dyn CommitLog>,
        leaves: bool,
    ) -> Self {
        // Each preparation reads the phase anew.
        let phase = local.store.driver().now();
        Self {
            transaction,
            local,
            log,
            phase,
            stamp: None,
            waited_in: NO_EPOCH,
            has_waited: false,
            has_ended: false,
            leaves,
        }
    }

    /// Takes all steps: the transaction commits to the worker's log and gives all locks back.
    /// Returns the stamp, `None` if nothing was written.
    ///
    /// # Errors
    /// The reason why the commit was refused. The caller rolls the transaction back.
    pub(crate) fn take_all(mut self) -> Result<Option<Stamp>, TxError> {
        while let Some(shortage) = self.attempt()? {
            self.wait(shortage)?;
        }
        Ok(self.release())
    }

    /// Waits until the log or the sink has room, and then takes all steps.
    #[cold]
    fn take_all_after_waiting(mut self, shortage: Shortage) -> Result<Option<Stamp>, TxError> {
        self.wait(shortage)?;
        self.take_all()
    }

    /// Takes the steps up to the installation. Returns the part that has no room, if any.
    fn attempt(&mut self) -> Result<Option<Shortage>, TxError> {
        let shortage = self.prepare()?;
        if shortage.is_some() || !self.writes() {
            return Ok(shortage);
        }
        match self.append() {
            Ok(stamp) => self.install(stamp),
            Err(LogRefused::NoRoom) => return Ok(Some(Shortage::Log)),
            Err(refused) => return Err(refused.into()),
        }
        Ok(None)
    }

    /// Reads the phase and does whatever can fail: finds memory, saves before-images. Returns the
    /// part that has no room, if any. Then only the marks of records whose before-images were saved
    /// have changed, and the commit [waits](Self::wait) and prepares anew.
    ///
    /// # Errors
    /// [`TxError::Conflict`] if a table was flushed under the transaction. [`TxError::Memory`],
    /// [`TxError::IndexFull`].
    pub fn prepare(&mut self) -> Result<Option<Shortage>, TxError> {
        let Self { transaction, local, .. } = self;
        self.phase = transaction.read_phase(local)?;
        transaction.prepare(local, self.phase, self.waited_in)
    }

    /// Whether the transaction writes any record of the store. Known after the preparation.
    pub fn writes(&self) -> bool {
        !self.transaction.written.is_empty()
    }

    /// The entry for the log: the writes of the store's records. Valid after the preparation.
    pub fn entry(&self) -> Commit<'_> {
        self.transaction.entry(self.local, self.phase)
    }

    /// Gives the entry to the worker's log, which decides its stamp.
    ///
    /// # Errors
    /// [`LogRefused::NoRoom`]: the commit [waits](Self::wait) and prepares anew. Otherwise the
    /// transaction is rolled back.
    pub fn append(&mut self) -> Result<Stamp, LogRefused> {
        self.log.append(&self.transaction.entry(self.local, self.phase))
    }

    /// Puts the writes into their cells. A log has taken the entry with this stamp.
    pub fn install(&mut self, stamp: Stamp) {
        self.transaction.install(self.local, stamp, self.phase);
        self.stamp = Some(stamp);
    }

    /// Gives all locks back. The transaction has ended, with this stamp if one was installed.
    pub fn release(mut self) -> Option<Stamp> {
        self.transaction.release(self.local, self.stamp);
        self.has_ended = true;
        self.stamp
    }

    /// Waits until the log or the sink has room again, outside of the read section and with all
    /// locks held. The next preparation reads the phase anew.
    ///
    /// # Errors
    /// There will be no room, and the transaction is rolled back.
    #[cold]
    pub fn wait(&mut self, shortage: Shortage) -> Result<(), TxError> {
        let Self { transaction, local, log, .. } = self;
        if !self.has_waited {
            local.store.driver().announce_wait();
            self.has_waited = true;
        }
        transaction.free_prepared(local);
        transaction.keys.forget_candidates();
        local.exit();
        let room = match shortage {
            Shortage::Log => log.wait_for_room(),
            Shortage::Sink(epoch) => {
                local.sink().wait_for_room(local.number);
                self.waited_in = epoch;
                Ok(())
            }
            Shortage::Stable(slots) => {
                local.wait_for_slots(slots);
                Ok(())
            }
            Shortage::Section => {
                log.encode_ahead(&transaction.entry(local, self.phase));
                Ok(())
            }
        };
        local.enter_to_end();
        Ok(room?)
    }

    /// Takes back the announcement of the first wait.
    #[cold]
    fn end_wait(&mut self) {
        let Self { transaction, local, log, .. } = self;
        if !self.has_ended {
            transaction.roll_back(local);
        }
        local.return_surplus_slots();
        log.forget_ahead();
        // The next transaction begins in a read section that respects a quiesce.
        if local.in_section {
            local.exit();
        }
        local.store.driver().end_wait();
        // The transaction may hold locks outside of the store, so it waits for no permit. It enters nothing
        // any more.
        if self.leaves {
            return;
        }
        // Later transactions of a batch may begin beside the permit rather than wait without end.
        if transaction.discipline == Discipline::Permitted || local.enter_to_begin().is_err() {
            local.enter();
        }
    }
}

impl Drop for CommitSteps<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.has_waited {
            self.end_wait();
        }
        if self.leaves && self.local.in_section {
            self.local.exit();
        }
    }
}

/// Whether the commits of a phase store the stable versions of what they overwrite.
#[inline]
fn stores_versions(local: &Participant, phase: PhaseWord) -> bool {
    phase.is_capturing() && local.store.rules().write == WriteRule::StoreStable
}

/// Whether the commits of a phase save the before-images of what they overwrite.
#[inline]
fn saves_before_images(local: &Participant, phase: PhaseWord) -> bool {
    phase.is_capturing() && local.store.rules().write == WriteRule::SaveBeforeImage
}

impl Transaction {
    /// Commits to `log` and releases all locks; gives the stamp, `None` if nothing was written.
    /// Call this inside a read section. After an error the caller rolls back.
    #[inline]
    pub(crate) fn commit(
        &mut self,
        local: &mut Participant,
        log: &mut Box<dyn CommitLog>,
    ) -> Result<Option<Stamp>, TxError> {
        let phase = self.read_phase(local)?;
        let shortage = match self.prepare(local, phase, NO_EPOCH)? {
            None if self.written.is_empty() => {
                self.release(local, None);
                return Ok(None);
            }
            None if !self.prepared.is_empty() && self.is_long() => Shortage::Section,
            None => match log.append(&self.entry(local, phase)) {
                Ok(stamp) => {
                    self.install(local, stamp, phase);
                    self.release(local, Some(stamp));
                    return Ok(Some(stamp));
                }
                Err(LogRefused::NoRoom) => Shortage::Log,
                Err(refused) => return Err(refused.into()),
            },
            Some(shortage) => shortage,
        };
        CommitSteps::new(self, local, log, false).take_all_after_waiting(shortage)
    }

    /// Whether the log gets long values of the transaction.
    #[cold]
    fn is_long(&self) -> bool {
        self.pending.logged_bytes(self.written.iter().map(|&(_, first)| first)) > LONG_BYTES
    }

    /// Reads the phase, which decides the epoch of the commit, with all locks held.
    #[inline]
    fn read_phase(&mut self, local: &Participant) -> Result<PhaseWord, TxError> {
        let driver = local.store.driver();
        let mut phase = driver.now();
        mutant!(in driver; PhaseReadBeforeLocks => phase = driver.noted_phase(local.number));
        step(Step::PhaseRead);
        self.note_touched();
        if let Some(reads) = local.read_stamps()
            && reads.are_left()
        {
            self.heed_reads(reads);
        }
        if local.tables.version > self.locked_version {
            self.check_tables(local)?;
        }
        Ok(phase)
    }

    /// Does what can fail of a commit in this phase. The commit has already waited for the sink of
    /// epoch `waited_in`, and does not wait for that sink again. Otherwise other commits could take
    /// the room for ever.
    #[inline]
    fn prepare(
        &mut self,
        local: &mut Participant,
        phase: PhaseWord,
        waited_in: u64,
    ) -> Result<Option<Shortage>, TxError> {
        if self.written.is_empty() {
            return Ok(None);
        }
        self.find_memory(local, phase)?;
        if !saves_before_images(local, phase) {
            return Ok(self.store_versions_in(local, phase));
        }
        mutant!(in local.store.driver(); BeforeImageAfterInstall => return Ok(None));
        let has_waited = waited_in == phase.epoch();
        let has_room = self.save_before_images(local, phase, has_waited);
        Ok(if has_room { None } else { Some(Shortage::Sink(phase.epoch())) })
    }

    /// Stores stable versions, where the store has them. Returns what has no room.
    #[inline]
    fn store_versions_in(&self, local: &mut Participant, phase: PhaseWord) -> Option<Shortage> {
        if stores_versions(local, phase) { self.store_versions(local, phase) } else { None }
    }

    /// The cells of the written records.
    pub(crate) fn written_cells(&self) -> impl Iterator<Item = u64> {
        self.written.iter().map(|&(key, _)| self.held[key - self.first_key].cell)
    }

    /// The entry of the transaction for the log.
    #[inline]
    fn entry<'a>(&'a self, local: &'a Participant, phase: PhaseWord) -> Commit<'a> {
        let Self { keys, written, pending, touched, call, held, first_key, .. } = self;
        let (tables, memory) = (&local.tables, local.store.memory());
        let locked = Locked { held, first_key: *first_key, memory };
        let writes = WriteSet { keys, written, pending, tables, locked };
        Commit { epoch: phase.epoch(), touched, call, writes }
    }

    /// Puts the writes into their cells.
    #[inline]
    fn install(&mut self, local: &mut Participant, stamp: Stamp, phase: PhaseWord) {
        step(Step::Appended);
        if stores_versions(local, phase) {
            self.claim_without_versions(local, phase);
        }
        self.install_all(local, stamp, phase);
        step(Step::Installed);
        mutant!(in local.store.driver(); BeforeImageAfterInstall => self.save_late(local, phase));
    }

    /// Part of a planted bug: saves before-images although the values are in their cells already.
    fn save_late(&mut self, local: &mut Participant, phase: PhaseWord) {
        if saves_before_images(local, phase) {
            self.save_before_images(local, phase, true);
        }
    }

    /// Gives all locks back at the end of a commit.
    #[inline]
    fn release(&mut self, local: &mut Participant, stamp: Option<Stamp>) {
        match stamp {
            Some(stamp) => {
                if let Some(reads) = local.read_stamps() {
                    self.leave_read_stamps(reads, local.number, stamp.gsn());
                }
                local.dependencies.add(stamp);
            }
            None => {
                for &stamp in &self.touched {
                    local.dependencies.add(stamp);
                }
            }
        }
        self.release_all(local);
        self.pending.clear();
        self.prepared.clear();
    }

    /// Notes the stamps of the locked records and of the counted ones, and which keys are written.
    #[inline]
    fn note_touched(&mut self) {
        self.touched.clear();
        self.written.clear();
        for (slot, held) in self.held.iter().enumerate() {
            if held.is_locked() {
                self.touched.push(Stamp::from_bits(held.stamp_word));
                if held.pending != NONE {
                    self.written.push((self.first_key + slot, held.pending));
                }
            }
        }
        if !self.names.stamps().is_empty() {
            self.touched.extend_from_slice(self.names.stamps());
        }
    }

    /// Adds the stamps of the commits that have read what this transaction overwrites.
    #[inline(never)]
    fn heed_reads(&mut self, reads: &ReadStamps) {
        for &(key, _) in &self.written {
            let gsn = reads.heed(self.keys.declared()[key].hash);
            if gsn > 0 {
                // A read that a crash takes away is no dependency, so the stamp names no log.
                self.touched.push(Stamp::new(gsn, LOG_NONE));
            }
        }
    }

    /// Leaves stamps for the records that this transaction has locked and not written.
    #[inline(never)]
    fn leave_read_stamps(&self, reads: &ReadStamps, worker: usize, gsn: u64) {
        if self.written.len() == self.touched.len() {
            // Every locked record was written.
            return;
        }
        for (slot, held) in self.held.iter().enumerate() {
            if held.is_locked() && held.pending == NONE {
                let hash = self.keys.declared()[self.first_key + slot].hash;
                reads.leave(worker, hash, gsn);
            }
        }
    }

    /// Refuses a transaction that locked records of a table generation that was replaced. What the
    /// transaction read there is not true any more, and what it writes there would be lost.
    #[cold]
    pub(super) fn check_tables(&mut self, local: &Participant) -> Result<(), TxError> {
        let owner_of = |id| local.tables.get(id).map(|table| table.owner);
        if self.names.read().iter().any(|&(id, owner)| owner_of(id) != Some(owner)) {
            self.has_conflicted = true;
            return Err(TxError::Conflict);
        }
        for (slot, held) in self.held.iter().enumerate().filter(|(_, held)| held.is_locked()) {
            let table = local.tables.get(self.keys.declared()[self.first_key + slot].table);
            let owner = local.store.memory().arena.owner_of(held.cell);
            if table.map(|table| table.owner) != Some(owner) {
                self.has_conflicted = true;
                return Err(TxError::Conflict);
            }
        }
        Ok(())
    }

    /// Frees what was prepared and releases the locks. No record has changed, so nothing is undone.
    pub(crate) fn roll_back(&mut self, local: &mut Participant) {
        self.free_prepared(local);
        self.pending.clear();
        // The failure may tell the caller something about the records that were read, so it depends
        // on them.
        for held in self.held.iter().filter(|held| held.is_locked()) {
            local.dependencies.add(Stamp::from_bits(held.stamp_word));
        }
        self.names.stamps().iter().for_each(|&stamp| local.dependencies.add(stamp));
        self.release_all(local);
    }

    fn free_prepared(&mut self, local: &mut Participant) {
        for (_, prepared) in std::mem::take(&mut self.prepared) {
            match prepared {
                Prepared::Large(blob, _) => {
                    blob::release(local.store.memory(), &mut local.cache, blob);
                }
                Prepared::Blocks(blob, _) => {
                    blob::discard(local.store.memory(), &mut local.cache, blob);
                }
                Prepared::Cell(number) => local.retire_unpublished(number),
            }
        }
    }

    /// Finds the memory for writes that do not fit their cells.
    #[inline]
    fn find_memory(&mut self, local: &mut Participant, phase: PhaseWord) -> Result<(), TxError> {
        let memory = local.store.memory();
        let needs_memory = |&(key, first): &(usize, u32)| {
            let held = &self.held[key - self.first_key];
            let change = Change::of(memory, &self.pending, first);
            !record::is_enough(memory, held.cell, change, local.record(held.place))
        };
        match self.written.iter().position(needs_memory) {
            Some(from) => self.find_memory_from(local, from, phase),
            None => Ok(()),
        }
    }

    /// Finds the memory for the writes from the `from`-th on.
    #[cold]
    fn find_memory_from(
        &mut self,
        local: &mut Participant,
        from: usize,
        phase: PhaseWord,
    ) -> Result<(), TxError> {
        let Self { keys, held, pending, written, prepared, .. } = self;
        let Participant { store, cache, tables, .. } = local;
        let memory = store.memory();
        for &(key, first) in &written[from..] {
            let held = held[key - self.first_key];
            let record = Record::at(memory, held.place);
            let change = Change::of(memory, pending, first);
            let other = |cache: &mut CellCache, value_len| {
                let declared = keys.declared()[key];
                let new = NewCell {
                    table: tables.get(declared.table).expect("checked"),
                    hash: declared.hash,
                    key: keys.key(key),
                    value_len,
                    kind: Kind::Record,
                    locked_by: Some(self.priority),
                    status: store.rules().first_status(phase),
                };
                new.make(memory, cache)
            };
            // A capture will have claimed the record before its cell is replaced.
            let may_replace = store.may_replace(phase, store.cell(held.cell), record.is_absent());
            let other = may_replace.then_some(other);
            let found = record::prepare(memory, cache, held.cell, change, record, other)?;
            if let Some(found) = found {
                prepared.push((key, found));
            }
        }
        Ok(())
    }

    /// Puts the writes into their cells.
    #[inline]
    fn install_all(&mut self, local: &mut Participant, stamp: Stamp, phase: PhaseWord) {
        let unwinding = HalfInstalled;
        if !self.prepared.is_empty() {
            self.fill_prepared(local);
        }
        let record = |&(key, _): &(usize, u32)| local.record(self.held[key - self.first_key].place);
        let needs_marks = match local.store.rules().dirty {
            DirtyRule::None => {
                let begin = || record::begin_writes(self.written.iter().map(record));
                mutant!(in local.store.driver(); begin(), ParentEndedFirst => ());
                false
            }
            DirtyRule::ByEpoch => self.begin_marked_writes(local, phase),
        };
        if self.prepared.is_empty() && local.store.memory().copies == 1 {
            for at in 0..self.written.len() {
                self.install_in_place(local, at, None, stamp);
            }
        } else {
            self.install_prepared(local, stamp, phase);
        }
        if needs_marks {
            self.mark_dirty(local, phase);
        }
        std::mem::forget(unwinding);
    }

    /// Moves whole large values into the blocks that were prepared for them. The log has these
    /// values already, and no record is busy yet.
    #[cold]
    fn fill_prepared(&mut self, local: &Participant) {
        let memory = local.store.memory();
        let Self { prepared, written, pending, .. } = self;
        let mut prepared = prepared.iter().rev().peekable();
        // The last value comes first, so that the memory of each can be freed at once.
        for &(key, first) in written.iter().rev() {
            let found = prepared.next_if(|next| next.0 == key);
            if let Some((_, Prepared::Blocks(blob, _))) = found {
                pending.take_value(first, |offset, bytes| blob::fill(memory, *blob, offset, bytes));
            }
        }
    }

    /// Puts one write into its cell, which is busy and has one copy.
    #[inline]
    fn install_in_place(
        &self,
        local: &mut Participant,
        at: usize,
        large: Option<(Blob, Label)>,
        stamp: Stamp,
    ) {
        let (key, first) = self.written[at];
        let held = &self.held[key - self.first_key];
        let memory = local.store.memory();
        let change = Change::of(memory, &self.pending, first);
        if let Some(old) = record::install(Record::at(memory, held.place), change, large, stamp) {
            local.reclaim.retire_blob(memory.arena.owner_of(held.cell), old);
        }
        let was_absent = held.stamp_word & ABSENT != 0;
        if was_absent || matches!(change, Change::Delete) {
            self.count(local, key, change.added_records(was_absent), stamp);
        }
    }

    /// Counts the records that a write to a key adds to the key's table.
    pub(super) fn count(&self, local: &Participant, key: usize, added: i64, stamp: Stamp) {
        if added != 0 {
            let table = local.tables.get(self.keys.declared()[key].table).expect("checked");
            table.count(local.number, added);
            if let Some(ordered) = &table.ordered {
                ordered.set_present(self.keys.key(key), added > 0);
                ordered.number_stamps.note(stamp);
            }
        }
    }

    /// Puts writes into their cells, some of which have memory prepared for them, or several copies.
    #[inline(never)]
    fn install_prepared(&mut self, local: &mut Participant, stamp: Stamp, phase: PhaseWord) {
        // The prepared memory has the order of the writes.
        let mut prepared = std::mem::take(&mut self.prepared).into_iter().peekable();
        for at in 0..self.written.len() {
            let (key, first) = self.written[at];
            let large = match prepared.next_if(|next| next.0 == key) {
                None => None,
                Some((_, Prepared::Large(blob, label) | Prepared::Blocks(blob, label))) => {
                    Some((blob, label))
                }
                Some((_, Prepared::Cell(new))) => {
                    self.install_in_new_cell(local, (key, first), new, stamp, phase);
                    continue;
                }
            };
            if local.store.memory().copies > 1 {
                self.install_in_copies(local, (key, first), large, stamp, phase);
            } else {
                self.install_in_place(local, at, large, stamp);
            }
        }
    }

    /// Puts one write into the prepared cell `new`, which replaces the cell of its key.
    fn install_in_new_cell(
        &mut self,
        local: &mut Participant,
        (key, first): (usize, u32),
        new: u64,
        stamp: Stamp,
        phase: PhaseWord,
    ) {
        let Participant { store, tables, reclaim, .. } = local;
        let held = &mut self.held[key - self.first_key];
        let change = Change::of(store.memory(), &self.pending, first);
        let declared = &self.keys.declared()[key];
        let table = tables.get(declared.table).expect("checked");
        let (memory, rule, noted) = (store.memory(), store.rules().write, store.begun_chain());
        let writing = Writing { memory, number: new, rule, phase, noted };
        let place = (&**table, declared.hash);
        let is_absent = held.stamp_word & ABSENT != 0;
        let moved = store.replaced_status(phase, store.cell(held.cell), is_absent);
        if moved != 0 {
            lock_word::set_status_held(store.cell(new).lock(), moved, false);
            store.note_moved_marks(new, moved);
        }
        if let Some(large) = record::install_in_new_cell(writing, place, held.cell, change, stamp) {
            reclaim.retire_blob(table.owner, large);
        }
        lock_word::release_exclusive(store.cell(held.cell).lock());
        reclaim.retire_cell(table.owner, held.cell);
        let added = change.added_records(is_absent);
        held.cell = new;
        held.place = store.cell(new).place(new, stamp.to_bits());
        self.count(local, key, added, stamp);
    }

    /// Saves the before-images of the records that this commit is the first to change after the point
    /// of consistency. Records that the scan has captured before need none. False if the sink has no
    /// room and the commit has not waited for room. Then nothing was saved.
    #[inline]
    fn save_before_images(
        &mut self,
        local: &mut Participant,
        phase: PhaseWord,
        has_waited: bool,
    ) -> bool {
        let (claim, driver) = (Claim::of(phase), local.store.driver());
        let is_unmarked = |&(key, first): &(usize, u32)| {
            let lock = local.record(self.held[key - self.first_key].place).lock();
            let deletes = || self.pending.op(first).is_some_and(|op| op.kind == OpKind::Delete);
            let is_unmarked = capture::is_unmarked(lock, claim);
            mutant!(in driver; DeleteWithoutBeforeImage => return is_unmarked && !deletes());
            is_unmarked
        };
        match self.written.iter().position(is_unmarked) {
            Some(first) => self.save_before_images_from(local, first, phase, has_waited),
            None => true,
        }
    }

    /// As [`save_before_images`](Self::save_before_images), from the `from`-th write on.
    #[cold]
    fn save_before_images_from(
        &mut self,
        local: &mut Participant,
        from: usize,
        phase: PhaseWord,
        has_waited: bool,
    ) -> bool {
        local.find_sink(phase.epoch());
        let local = &*local;
        let sink = local.sink();
        if !has_waited && !sink.has_room() {
            return false;
        }
        let overwritten = |&(key, _): &(usize, u32)| {
            let declared = &self.keys.declared()[key];
            Overwritten {
                record: local.record(self.held[key - self.first_key].place),
                table: local.tables.get(declared.table).expect("checked"),
                hash: declared.hash,
                key: self.keys.key(key),
            }
        };
        let records = self.written[from..].iter().map(overwritten);
        capture::save_before_images(&local.store, sink, (local.number, phase), records);
        true
    }
}
