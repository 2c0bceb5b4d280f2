//! Commit: with all locks held, read the phase, append to the log, install the writes, release.
//!
//! Whatever can fail is done before the log takes the commit: memory for values that do not fit
//! their cells is found first. Installing cannot fail.

use stillpoint_format::Stamp;
use stillpoint_sync::lock_word;
use stillpoint_sync::steps::{Step, step};

use crate::error::TxError;
use crate::memory::arena::Kind;
use crate::memory::blob::{self, Blob};
use crate::memory::cell::{INLINE_VALUE_BYTES_MAX, Record};
use crate::memory::stamp::ABSENT;
use crate::phase::PhaseWord;
use crate::planted::Bug;
use crate::policy::{Lane, NoSink, RecordImage, Sink};
use crate::protocol;
use crate::store::{Store, mark_of};
use crate::txn::commit_log::{Commit, WriteSet};
use crate::txn::locking::LockState;
use crate::txn::pending::{NONE, OpKind};
use crate::worker::Worker;

/// Memory found for a write that does not fit its cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prepared {
    /// A large value, with its tag.
    Large(Blob, u8),
    /// A larger cell for a key that had no value.
    Cell(u64),
}

/// Dropped only when installing panics, which the log has taken for granted cannot happen: half a
/// transaction would be seen, so the process ends here.
struct HalfInstalled;

impl Drop for HalfInstalled {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Dropped only when a before-image panics: a record may have been claimed and not emitted, so the
/// checkpoint is incomplete.
struct Unemitted<'a> {
    store: &'a Store,
    epoch: u64,
}

impl Drop for Unemitted<'_> {
    fn drop(&mut self) {
        self.store.driver().spoil(self.epoch);
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
            self.save_before_image(phase);
        }
        let Self { keys, written, pending, tables, touched, log, .. } = self;
        let writes = WriteSet { keys, written, pending, tables };
        let stamp = log.append(&Commit { epoch: phase.epoch(), touched, writes })?;
        step(Step::Appended);
        self.install_all(stamp);
        step(Step::Installed);
        if saves_before_images && too_late {
            self.save_before_image(phase);
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
        for at in 0..self.written.len() {
            let (key, first) = self.written[at];
            let op = *self.pending.op(first).expect("written");
            let held = self.held[key - self.first_key];
            let cell = self.record(&held);
            let prepared = match op.kind {
                OpKind::Delete => continue,
                OpKind::Put => {
                    let len = self.pending.len_of(&op);
                    let absent = held.stamp_word & ABSENT != 0;
                    let arena = &self.store.memory().arena;
                    let is_lock = absent && arena.is_of_kind(held.cell, Kind::Lock);
                    if len <= cell.inline_capacity() && !is_lock {
                        continue;
                    }
                    if absent && len <= INLINE_VALUE_BYTES_MAX {
                        let locked_by = Some(self.priority);
                        Prepared::Cell(self.new_cell(key, len, locked_by, phase, Kind::Record)?)
                    } else {
                        let Self { store, cache, pending, .. } = self;
                        let memory = store.memory();
                        let owner = memory.arena.owner_of(held.cell);
                        let blob = blob::create(memory, cache, owner, pending.bytes(&op))?;
                        Prepared::Large(blob, op.tag)
                    }
                }
                OpKind::Patch => match cell.blob() {
                    None => continue,
                    Some(old) => {
                        let tag = cell.value().expect("it is large").tag();
                        Prepared::Large(self.patch_large(held.cell, old, first)?, tag)
                    }
                },
            };
            self.prepared.push((key, prepared));
        }
        Ok(())
    }

    /// The large value after a chain of patches; the untouched chunks are shared with the old.
    fn patch_large(&mut self, cell: u64, old: Blob, first: u32) -> Result<Blob, TxError> {
        let Self { store, cache, pending, .. } = self;
        let memory = store.memory();
        let owner = memory.arena.owner_of(cell);
        let mut now = old;
        let mut next = first;
        while let Some(op) = pending.op(next) {
            let offset = op.offset as usize;
            let patched = blob::patched(memory, cache, owner, now, offset, pending.bytes(op));
            if now != old {
                blob::release(memory, cache, now);
            }
            now = patched?;
            next = op.next;
        }
        Ok(now)
    }

    /// Puts the writes into their cells.
    #[inline]
    fn install_all(&mut self, stamp: Stamp) {
        let unwinding = HalfInstalled;
        let record = |&(key, _): &(usize, u32)| self.record(&self.held[key - self.first_key]);
        protocol::begin_writes(self.written.iter().map(record));
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
        let held = self.held[slot];
        let cell = self.record(&held);
        let op = *self.pending.op(first).expect("written");
        let was_absent = held.stamp_word & ABSENT != 0;
        if let Some(Prepared::Cell(number)) = prepared {
            self.install_in_new_cell(slot, number, &op, stamp);
        } else {
            let old_blob = cell.blob();
            match (op.kind, prepared) {
                (_, Some(Prepared::Large(blob, tag))) => cell.put_large(tag, blob),
                (OpKind::Put, _) => cell.put_inline(op.tag, self.pending.bytes(&op)),
                (OpKind::Patch, _) => self.patch_cell(cell, first),
                (OpKind::Delete, _) => {}
            }
            if op.kind == OpKind::Delete {
                cell.end_delete(stamp);
            } else {
                cell.end_write(stamp);
            }
            // Whatever was done to a large value, the old blocks are not the value any more.
            if let Some(blob) = old_blob {
                let owner = self.store.memory().arena.owner_of(held.cell);
                self.reclaim.retire_blob(owner, blob);
            }
        }
        let change = i64::from(was_absent) - i64::from(op.kind == OpKind::Delete);
        if change != 0 {
            let table = self.tables.get(self.keys.keys[self.first_key + slot].table);
            table.expect("checked").count(self.number, change);
        }
    }

    #[inline]
    fn patch_cell(&self, cell: Record<'_>, first: u32) {
        let mut next = first;
        while let Some(op) = self.pending.op(next) {
            cell.patch_inline(op.offset as usize, self.pending.bytes(op));
            next = op.next;
        }
    }

    /// The key had no value, and its cell is too small for the one it gets: a larger cell takes
    /// its place in the index. Whoever waits for the old cell finds it dead and looks again.
    fn install_in_new_cell(
        &mut self,
        slot: usize,
        number: u64,
        op: &crate::txn::pending::Op,
        stamp: Stamp,
    ) {
        let old_number = self.held[slot].cell;
        let declared = self.keys.keys[self.first_key + slot];
        let table = self.tables.get(declared.table).expect("checked");
        let cell = self.store.cell(number);
        cell.record().put_inline(op.tag, self.pending.bytes(op));
        cell.record().end_write(stamp);
        let place = cell.place(number);
        let replaced = table.index.replace(declared.hash, old_number, number);
        debug_assert!(replaced, "a locked cell is in the index");
        let old = self.store.cell(old_number);
        old.kill();
        lock_word::release_exclusive(old.lock());
        self.reclaim.retire_cell(table.owner, old_number);
        self.held[slot].cell = number;
        self.held[slot].place = place;
    }

    /// Gives the checkpoint the old values of the records that this commit is the first to change
    /// after the point of consistency, unless the capture was there before. In CAPTURE at the
    /// latest; afterwards, and until the next point of consistency, every record is marked.
    #[inline]
    fn save_before_image(&mut self, phase: PhaseWord) {
        let mark = mark_of(phase.epoch());
        let is_unmarked = |&(key, _): &(usize, u32)| {
            let lock = self.record(&self.held[key - self.first_key]).lock();
            protocol::is_unmarked(lock, mark)
        };
        if let Some(first) = self.written.iter().position(is_unmarked) {
            self.save_before_image_from(first, phase);
        }
    }

    /// Hands out from the `from`-th write on, in one go with the lane.
    #[cold]
    fn save_before_image_from(&mut self, from: usize, phase: PhaseWord) {
        if self.sink.as_ref().is_none_or(|(epoch, _)| *epoch != phase.epoch()) {
            self.sink = self.store.sink().map(|sink| (phase.epoch(), sink));
        }
        let sink: &dyn Sink = self.sink.as_ref().map_or(&NoSink, |(_, sink)| &**sink);
        if !sink.has_room() {
            self.store.policy().before_saves(self.number, sink);
        }
        let mark = mark_of(phase.epoch());
        let unemitted = Unemitted { store: &self.store, epoch: phase.epoch() };
        sink.with_lane(self.number, &mut |lane| {
            for &(key, first) in &self.written[from..] {
                self.first_write(key - self.first_key, first, mark, lane);
            }
        });
        std::mem::forget(unemitted);
    }

    /// Whoever claims the mark emits.
    fn first_write(&self, slot: usize, first: u32, mark: u8, lane: &mut dyn Lane) {
        let cell = self.record(&self.held[slot]);
        if self.breaks_first_write(slot, first) || !protocol::claim_locked(cell.lock(), mark) {
            return;
        }
        let Some(value) = cell.value() else {
            return;
        };
        let index = self.first_key + slot;
        let declared = &self.keys.keys[index];
        let table = self.tables.get(declared.table).expect("checked");
        let (id, generation) = (table.id.0, table.generation);
        let key = self.keys.key(index);
        let image = RecordImage::new(id, generation, declared.hash, key, value);
        self.store.policy().before_first_write(&image, lane);
    }

    /// What planted bugs leave out.
    fn breaks_first_write(&self, slot: usize, first: u32) -> bool {
        let driver = self.store.driver();
        let was_absent = self.held[slot].stamp_word & ABSENT != 0;
        let deletes = || self.pending.op(first).is_some_and(|op| op.kind == OpKind::Delete);
        driver.has_planted(Bug::InsertWithoutMark) && was_absent
            || driver.has_planted(Bug::DeleteWithoutBeforeImage) && deletes()
    }
}
