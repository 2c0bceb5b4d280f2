//! Commit: with all locks held, read the phase, append to the log, install the writes, release.
//!
//! Whatever can fail is done before the log takes the commit: memory for values that do not fit
//! their cells is found first. Installing cannot fail.

use stillpoint_format::Stamp;
use stillpoint_sync::lock_word;
use stillpoint_sync::steps::{Step, step};

use crate::capture::{self, Overwritten, mark_of};
use crate::error::TxError;
use crate::memory::arena::{CellCache, Kind};
use crate::memory::blob;
use crate::memory::cell::Record;
use crate::memory::stamp::ABSENT;
use crate::phase::PhaseWord;
use crate::planted::Bug;
use crate::policy::{NoSink, Sink};
use crate::record::{self, NewCell, Prepared};
use crate::txn::commit_log::{Change, Commit, WriteSet};
use crate::txn::locking::LockState;
use crate::txn::pending::{NONE, OpKind};
use crate::worker::Worker;

/// Dropped only when installing panics, which the log has taken for granted cannot happen: half a
/// transaction would be seen, so the process ends here.
struct HalfInstalled;

impl Drop for HalfInstalled {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Worker {
    /// Commits and releases all locks; gives the stamp, `None` if nothing was written. Inside a
    /// read section. After an error the caller rolls back.
    pub(crate) fn commit(&mut self) -> Result<Option<Stamp>, TxError> {
        let driver = self.store.driver();
        let phase =
            if driver.has_planted(Bug::PhaseReadBeforeLocks) { self.begun } else { driver.now() };
        step(Step::PhaseRead);
        self.touched.clear();
        self.written.clear();
        for (slot, held) in self.held.iter().enumerate() {
            if matches!(held.state, LockState::Shared | LockState::Exclusive) {
                self.touched.push(Stamp::from_bits(held.stamp_word));
                if held.pending != NONE {
                    self.written.push((self.first_key + slot, held.pending));
                }
            }
        }
        self.check_tables()?;
        if self.written.is_empty() {
            for at in 0..self.touched.len() {
                self.depend_on(self.touched[at]);
            }
            self.pending.clear();
            self.release_all();
            return Ok(None);
        }
        self.prepare(phase)?;
        let saves_before_images = phase.is_capturing() && self.store.marks();
        let too_late = self.store.driver().has_planted(Bug::BeforeImageAfterInstall);
        if saves_before_images && !too_late {
            self.save_before_images(phase);
        }
        let Self { keys, written, pending, tables, touched, log, .. } = self;
        let writes = WriteSet { keys, written, pending, tables };
        let stamp = log.append(&Commit { epoch: phase.epoch(), touched, writes })?;
        step(Step::Appended);
        self.install_all(stamp);
        step(Step::Installed);
        if saves_before_images && too_late {
            self.save_before_images(phase);
        }
        self.depend_on(stamp);
        self.release_all();
        self.pending.clear();
        self.prepared.clear();
        Ok(Some(stamp))
    }

    /// A transaction that locked records of a table generation that is gone must not commit: what
    /// it read of them is not so any more, and what it writes to them would be lost.
    fn check_tables(&self) -> Result<(), TxError> {
        if self.tables.version <= self.locked_version {
            return Ok(());
        }
        for (slot, held) in self.held.iter().enumerate() {
            if !matches!(held.state, LockState::Shared | LockState::Exclusive) {
                continue;
            }
            let table = self.tables.get(self.keys.keys[self.first_key + slot].table);
            let owner = self.store.memory().arena.owner_of(held.cell);
            if table.map(|table| table.owner) != Some(owner) {
                return Err(TxError::Conflict);
            }
        }
        Ok(())
    }

    /// Undoes nothing, since nothing was done: frees what was prepared, releases the locks.
    pub(crate) fn roll_back(&mut self) {
        for (_, prepared) in std::mem::take(&mut self.prepared) {
            match prepared {
                Prepared::Large(blob, _) => {
                    blob::release(self.store.memory(), &mut self.cache, blob);
                }
                Prepared::Cell(number) => self.retire_unpublished(number),
            }
        }
        self.pending.clear();
        // Whoever hears of the failure has learnt something of what was read.
        for at in 0..self.held.len() {
            let held = self.held[at];
            if matches!(held.state, LockState::Shared | LockState::Exclusive) {
                self.depend_on(Stamp::from_bits(held.stamp_word));
            }
        }
        self.release_all();
    }

    fn prepare(&mut self, phase: PhaseWord) -> Result<(), TxError> {
        let Self { store, cache, keys, held, pending, tables, written, prepared, .. } = self;
        let memory = store.memory();
        for &(key, first) in written.iter() {
            let held = held[key - self.first_key];
            let record = Record::at(memory, held.place);
            let change = Change::of(pending, first);
            let larger = |cache: &mut CellCache, value_len| {
                let declared = keys.keys[key];
                let new = NewCell {
                    table: tables.get(declared.table).expect("checked"),
                    hash: declared.hash,
                    key: keys.key(key),
                    value_len,
                    kind: Kind::Record,
                    locked_by: Some(self.priority),
                    mark: mark_of(phase.epoch()),
                };
                new.make(memory, cache)
            };
            let found = record::prepare(memory, cache, held.cell, change, record, larger)?;
            if let Some(found) = found {
                prepared.push((key, found));
            }
        }
        Ok(())
    }

    /// Puts the writes into their cells.
    #[inline]
    fn install_all(&mut self, stamp: Stamp) {
        let unwinding = HalfInstalled;
        let record = |&(key, _): &(usize, u32)| self.record(&self.held[key - self.first_key]);
        record::begin_writes(self.written.iter().map(record));
        // In the order of the writes, as they were prepared.
        let mut prepared = 0;
        for at in 0..self.written.len() {
            let (key, first) = self.written[at];
            let next = self.prepared.get(prepared).filter(|next| next.0 == key);
            let found = next.map(|next| next.1);
            prepared += usize::from(found.is_some());
            self.install(key - self.first_key, first, found, stamp);
        }
        std::mem::forget(unwinding);
    }

    /// Puts one write into its cell, which is busy.
    #[inline]
    fn install(&mut self, slot: usize, first: u32, prepared: Option<Prepared>, stamp: Stamp) {
        let Self { store, held, pending, keys, tables, reclaim, .. } = self;
        let memory = store.memory();
        let held = &mut held[slot];
        let was_absent = held.stamp_word & ABSENT != 0;
        let change = Change::of(pending, first);
        let added = change.added_records(was_absent);
        let table_of = |slot: usize| {
            let declared = &keys.keys[self.first_key + slot];
            (&**tables.get(declared.table).expect("checked"), declared.hash)
        };
        let large = match prepared {
            None => None,
            Some(Prepared::Large(blob, tag)) => Some((blob, tag)),
            Some(Prepared::Cell(new)) => {
                let place = table_of(slot);
                record::install_in_new_cell(memory, place, (held.cell, new), change, stamp);
                lock_word::release_exclusive(store.cell(held.cell).lock());
                reclaim.retire_cell(place.0.owner, held.cell);
                held.cell = new;
                held.place = store.cell(new).place(new);
                place.0.count(self.number, added);
                return;
            }
        };
        let record = Record::at(memory, held.place);
        if let Some(old) = record::install(record, change, large, stamp) {
            reclaim.retire_blob(memory.arena.owner_of(held.cell), old);
        }
        if added != 0 {
            table_of(slot).0.count(self.number, added);
        }
    }

    /// Gives the checkpoint the old values of the records that this commit is the first to change
    /// after the point of consistency, unless the scan has captured them before.
    #[inline]
    fn save_before_images(&mut self, phase: PhaseWord) {
        let mark = mark_of(phase.epoch());
        let is_unmarked = |&(key, _): &(usize, u32)| {
            let lock = self.record(&self.held[key - self.first_key]).lock();
            capture::is_unmarked(lock, mark)
        };
        if let Some(first) = self.written.iter().position(is_unmarked) {
            self.save_before_images_from(first, phase);
        }
    }

    /// Saves the before-images from the `from`-th write on.
    #[cold]
    fn save_before_images_from(&mut self, from: usize, phase: PhaseWord) {
        if self.sink.as_ref().is_none_or(|(epoch, _)| *epoch != phase.epoch()) {
            self.sink = self.store.sink().map(|sink| (phase.epoch(), sink));
        }
        let sink: &dyn Sink = self.sink.as_ref().map_or(&NoSink, |(_, sink)| &**sink);
        if !sink.has_room() {
            self.store.policy().before_saves(self.number, sink);
        }
        let saved = |&&(key, first): &&(usize, u32)| !self.is_left_out(key, first);
        let overwritten = |&(key, _): &(usize, u32)| {
            let declared = &self.keys.keys[key];
            Overwritten {
                record: self.record(&self.held[key - self.first_key]),
                table: self.tables.get(declared.table).expect("checked"),
                hash: declared.hash,
                key: self.keys.key(key),
            }
        };
        let records = self.written[from..].iter().filter(saved).map(overwritten);
        capture::save_before_images(&self.store, sink, (self.number, phase.epoch()), records);
    }

    /// What planted bugs do not save.
    fn is_left_out(&self, key: usize, first: u32) -> bool {
        let driver = self.store.driver();
        let was_absent = self.held[key - self.first_key].stamp_word & ABSENT != 0;
        let deletes = || self.pending.op(first).is_some_and(|op| op.kind == OpKind::Delete);
        driver.has_planted(Bug::InsertWithoutMark) && was_absent
            || driver.has_planted(Bug::DeleteWithoutBeforeImage) && deletes()
    }
}
