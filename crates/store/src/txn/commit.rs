//! Commit: with all locks held, read the phase, append to the log, install the writes, release.
//!
//! Whatever can fail is done before the log takes the commit: memory for values that do not fit
//! their cells is found first. Installing cannot fail.

use stillpoint_format::Stamp;
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
use crate::record::{self, NewCell, Prepared, Writing};
use crate::rules::{Claim, DirtyRule, WriteRule, status};
use crate::txn::Transaction;
use crate::txn::commit_log::{Change, Commit, CommitLog, WriteSet};
use crate::txn::pending::NONE;

/// Dropped only when installing panics, which the log has taken for granted cannot happen: half a
/// transaction would be seen, so the process ends here.
struct HalfInstalled;

impl Drop for HalfInstalled {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// How an attempt to commit went.
enum Attempt {
    /// The transaction has ended, with this stamp if anything was written.
    Ended(Option<Stamp>),
    /// Nothing has changed.
    NoRoom(Shortage),
}

/// What has no room.
#[derive(Clone, Copy)]
enum Shortage {
    Log,
    /// The sink of the checkpoint that began this epoch.
    Sink(u64),
}

/// No checkpoint begins this epoch.
const NO_EPOCH: u64 = 0;

impl Transaction {
    /// Commits to `log` and releases all locks; gives the stamp, `None` if nothing was written. Inside
    /// a read section. After an error the caller rolls back.
    #[inline]
    pub(crate) fn commit(
        &mut self,
        local: &mut Participant,
        log: &mut Box<dyn CommitLog>,
    ) -> Result<Option<Stamp>, TxError> {
        match self.try_commit(local, log, NO_EPOCH)? {
            Attempt::Ended(stamp) => Ok(stamp),
            Attempt::NoRoom(shortage) => self.commit_after_waiting(local, log, shortage),
        }
    }

    /// Commits once the log and the sink have room. The transaction waits outside of the read section
    /// and keeps its locks, so that neither a grace period nor a phase waits for a stalled disk. The
    /// attempt after the wait reads the phase anew. Tables are not replaced meanwhile, since a
    /// quiesce waits for the commit.
    #[cold]
    fn commit_after_waiting(
        &mut self,
        local: &mut Participant,
        log: &mut Box<dyn CommitLog>,
        mut shortage: Shortage,
    ) -> Result<Option<Stamp>, TxError> {
        let mut waited_in = NO_EPOCH;
        let store = local.store.clone();
        let waiting = store.driver().announce_wait();
        let ended = loop {
            self.free_prepared(local);
            self.keys.forget_candidates();
            local.exit();
            let room = match shortage {
                Shortage::Log => log.wait_for_room(),
                Shortage::Sink(epoch) => {
                    local.sink().wait_for_room(local.number);
                    waited_in = epoch;
                    Ok(())
                }
            };
            local.enter_to_end();
            match room.map_err(TxError::from).and_then(|()| self.try_commit(local, log, waited_in))
            {
                Ok(Attempt::NoRoom(another)) => shortage = another,
                Ok(Attempt::Ended(stamp)) => break Ok(stamp),
                Err(error) => break Err(error),
            }
        };
        if ended.is_err() {
            self.roll_back(local);
        }
        // The next transaction begins in a read section that respects a quiesce.
        local.exit();
        drop(waiting);
        if self.discipline == Discipline::Permitted {
            local.enter();
        } else {
            local.enter_to_begin();
        }
        ended
    }

    /// One attempt. Without room in the log or the sink nothing has changed but the marks of records
    /// whose before-images were saved. A commit that has waited for the sink of epoch `waited_in` does
    /// not wait for that sink again, so that others cannot take its room for ever.
    #[inline]
    fn try_commit(
        &mut self,
        local: &mut Participant,
        log: &mut Box<dyn CommitLog>,
        waited_in: u64,
    ) -> Result<Attempt, TxError> {
        let driver = local.store.driver();
        let phase = mutant!(in driver; driver.now(), PhaseReadBeforeLocks => self.begun);
        step(Step::PhaseRead);
        self.note_touched();
        if local.tables.version > self.locked_version {
            self.check_tables(local)?;
        }
        if self.written.is_empty() {
            for &stamp in &self.touched {
                local.dependencies.add(stamp);
            }
            self.pending.clear();
            self.release_all(local);
            return Ok(Attempt::Ended(None));
        }
        self.prepare(local, phase)?;
        let saves_before_images =
            phase.is_capturing() && local.store.rules().write == WriteRule::SaveBeforeImage;
        if saves_before_images {
            let has_waited = waited_in == phase.epoch();
            let has_room = mutant!(
                in local.store.driver();
                self.save_before_images(local, phase, has_waited), BeforeImageAfterInstall => true
            );
            if !has_room {
                return Ok(Attempt::NoRoom(Shortage::Sink(phase.epoch())));
            }
        }
        let stamp = match self.append(local, log, phase) {
            Ok(stamp) => stamp,
            Err(LogRefused::NoRoom) => return Ok(Attempt::NoRoom(Shortage::Log)),
            Err(refused) => return Err(refused.into()),
        };
        step(Step::Appended);
        self.install_all(local, stamp, phase);
        step(Step::Installed);
        if saves_before_images {
            mutant!(
                in local.store.driver();
                BeforeImageAfterInstall => { self.save_before_images(local, phase, true); }
            );
        }
        local.dependencies.add(stamp);
        self.release_all(local);
        self.pending.clear();
        self.prepared.clear();
        Ok(Attempt::Ended(Some(stamp)))
    }

    /// Notes the stamps of the locked records, and which keys are written.
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
    }

    /// Gives the transaction to the log, which decides its stamp.
    #[inline]
    fn append(
        &self,
        local: &Participant,
        log: &mut Box<dyn CommitLog>,
        phase: PhaseWord,
    ) -> Result<Stamp, LogRefused> {
        let Self { keys, written, pending, touched, .. } = self;
        let writes = WriteSet { keys, written, pending, tables: &local.tables };
        log.append(&Commit { epoch: phase.epoch(), touched, writes })
    }

    /// Refuses a transaction that locked records of a table generation that was replaced: what the
    /// transaction read there does not hold any more, and what it writes there would be lost.
    #[cold]
    fn check_tables(&self, local: &Participant) -> Result<(), TxError> {
        for (slot, held) in self.held.iter().enumerate().filter(|(_, held)| held.is_locked()) {
            let table = local.tables.get(self.keys.declared()[self.first_key + slot].table);
            let owner = local.store.memory().arena.owner_of(held.cell);
            if table.map(|table| table.owner) != Some(owner) {
                return Err(TxError::Conflict);
            }
        }
        Ok(())
    }

    /// Frees what was prepared and releases the locks. No record has changed, so nothing is undone.
    pub(crate) fn roll_back(&mut self, local: &mut Participant) {
        self.free_prepared(local);
        self.pending.clear();
        // The caller learns by the failure something of what was read.
        for held in self.held.iter().filter(|held| held.is_locked()) {
            local.dependencies.add(Stamp::from_bits(held.stamp_word));
        }
        self.release_all(local);
    }

    fn free_prepared(&mut self, local: &mut Participant) {
        for (_, prepared) in std::mem::take(&mut self.prepared) {
            match prepared {
                Prepared::Large(blob, _) => {
                    blob::release(local.store.memory(), &mut local.cache, blob);
                }
                Prepared::Cell(number) => local.retire_unpublished(number),
            }
        }
    }

    /// Finds the memory for writes that do not fit their cells.
    #[inline]
    fn prepare(&mut self, local: &mut Participant, phase: PhaseWord) -> Result<(), TxError> {
        let memory = local.store.memory();
        let needs_memory = |&(key, first): &(usize, u32)| {
            let held = &self.held[key - self.first_key];
            let change = Change::of(&self.pending, first);
            !record::is_enough(memory, held.cell, change, local.record(held.place))
        };
        match self.written.iter().position(needs_memory) {
            Some(from) => self.prepare_from(local, from, phase),
            None => Ok(()),
        }
    }

    /// Finds the memory for the writes from the `from`-th on.
    #[cold]
    fn prepare_from(
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
            let change = Change::of(pending, first);
            let larger = |cache: &mut CellCache, value_len| {
                let declared = keys.declared()[key];
                let new = NewCell {
                    table: tables.get(declared.table).expect("checked"),
                    hash: declared.hash,
                    key: keys.key(key),
                    value_len,
                    kind: Kind::Record,
                    locked_by: Some(self.priority),
                    status: store.rules().first_status(phase.epoch()),
                };
                new.make(memory, cache)
            };
            let larger = store.may_reuse(store.cell(held.cell)).then_some(larger);
            let found = record::prepare(memory, cache, held.cell, change, record, larger)?;
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
        let record = |&(key, _): &(usize, u32)| local.record(self.held[key - self.first_key].place);
        record::begin_writes(self.written.iter().map(record));
        if self.prepared.is_empty() && local.store.memory().copies == 1 {
            for at in 0..self.written.len() {
                self.install_in_place(local, at, None, stamp);
            }
        } else {
            self.install_prepared(local, stamp, phase);
        }
        if local.store.rules().dirty == DirtyRule::ByEpoch {
            self.mark_dirty(local, phase);
        }
        std::mem::forget(unwinding);
    }

    /// Puts one write into its cell, which is busy and has one copy.
    #[inline]
    fn install_in_place(
        &self,
        local: &mut Participant,
        at: usize,
        large: Option<(Blob, u8)>,
        stamp: Stamp,
    ) {
        let (key, first) = self.written[at];
        let held = &self.held[key - self.first_key];
        let change = Change::of(&self.pending, first);
        let memory = local.store.memory();
        if let Some(old) = record::install(Record::at(memory, held.place), change, large, stamp) {
            local.reclaim.retire_blob(memory.arena.owner_of(held.cell), old);
        }
        let was_absent = held.stamp_word & ABSENT != 0;
        if was_absent || matches!(change, Change::Delete) {
            self.count(local, key, change.added_records(was_absent));
        }
    }

    /// Counts the records that a write to a key adds to the key's table.
    fn count(&self, local: &Participant, key: usize, added: i64) {
        if added != 0 {
            let table = local.tables.get(self.keys.declared()[key].table).expect("checked");
            table.count(local.number, added);
        }
    }

    /// Puts writes into their cells, some of which have memory prepared for them, or several copies.
    #[inline(never)]
    fn install_prepared(&mut self, local: &mut Participant, stamp: Stamp, phase: PhaseWord) {
        // In the order of the writes, as they were prepared.
        let mut prepared = std::mem::take(&mut self.prepared).into_iter().peekable();
        for at in 0..self.written.len() {
            let (key, first) = self.written[at];
            let large = match prepared.next_if(|next| next.0 == key) {
                None => None,
                Some((_, Prepared::Large(blob, tag))) => Some((blob, tag)),
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
        let change = Change::of(&self.pending, first);
        let declared = &self.keys.declared()[key];
        let table = tables.get(declared.table).expect("checked");
        let writing =
            Writing { memory: store.memory(), number: new, rule: store.rules().write, phase };
        let place = (&**table, declared.hash);
        record::install_in_new_cell(writing, place, held.cell, change, stamp);
        lock_word::release_exclusive(store.cell(held.cell).lock());
        reclaim.retire_cell(table.owner, held.cell);
        let added = change.added_records(held.stamp_word & ABSENT != 0);
        held.cell = new;
        held.place = store.cell(new).place(new, stamp.to_bits());
        self.count(local, key, added);
    }

    /// Puts one write into its cell, which is busy and has several copies.
    fn install_in_copies(
        &self,
        local: &mut Participant,
        (key, first): (usize, u32),
        large: Option<(Blob, u8)>,
        stamp: Stamp,
        phase: PhaseWord,
    ) {
        let Participant { store, reclaim, .. } = local;
        let held = &self.held[key - self.first_key];
        let change = Change::of(&self.pending, first);
        let (memory, owner) = (store.memory(), store.memory().arena.owner_of(held.cell));
        let rule = store.rules().write;
        let rule = mutant!(in store.driver(); rule, WriteRuleForgotten => WriteRule::InPlace);
        let writing = Writing { memory, number: held.cell, rule, phase };
        writing.install(change, large, stamp, |old| reclaim.retire_blob(owner, old));
        self.count(local, key, change.added_records(held.stamp_word & ABSENT != 0));
    }

    /// Sets the dirty bit of the epoch in the cells that were written.
    #[inline(never)]
    fn mark_dirty(&self, local: &Participant, phase: PhaseWord) {
        let dirty = status::dirty_in(phase.epoch());
        for &(key, _) in &self.written {
            let lock = local.store.cell(self.held[key - self.first_key].cell).lock();
            lock_word::claim(lock, dirty, dirty);
        }
    }

    /// Gives the checkpoint the old values of the records that this commit is the first to change
    /// after the point of consistency, unless the scan has captured them before. False if the sink
    /// has no room and the commit has not waited for room: nothing was saved.
    #[inline]
    fn save_before_images(
        &mut self,
        local: &mut Participant,
        phase: PhaseWord,
        has_waited: bool,
    ) -> bool {
        let claim = Claim::of(local.store.rules(), phase.epoch());
        let is_unmarked = |&(key, _): &(usize, u32)| {
            let lock = local.record(self.held[key - self.first_key].place).lock();
            capture::is_unmarked(lock, claim)
        };
        match self.written.iter().position(is_unmarked) {
            Some(first) => self.save_before_images_from(local, first, phase, has_waited),
            None => true,
        }
    }

    /// Saves the before-images from the `from`-th write on.
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
        let saved = |&&(key, first): &&(usize, u32)| {
            let stamp_word = self.held[key - self.first_key].stamp_word;
            let deletes = || matches!(Change::of(&self.pending, first), Change::Delete);
            !local.store.driver().forgets_before_image(stamp_word, deletes)
        };
        let overwritten = |&(key, _): &(usize, u32)| {
            let declared = &self.keys.declared()[key];
            Overwritten {
                record: local.record(self.held[key - self.first_key].place),
                table: local.tables.get(declared.table).expect("checked"),
                hash: declared.hash,
                key: self.keys.key(key),
            }
        };
        let records = self.written[from..].iter().filter(saved).map(overwritten);
        capture::save_before_images(&local.store, sink, (local.number, phase.epoch()), records);
        true
    }
}
