//! The capture of a checkpoint: the scans. For schemes that save before-images also the marks, the
//! claims, and the before-images that commits save.
//!
//! ```text
//! commit, locked:  marked? ── no ─▶ claim ─ won ─▶ emit      then busy ▶ words ▶ stamp ▶ release
//! scan, no lock:   marked? ── no ─▶ emit ─▶ claim ─ lost ─▶ take back
//! ```
//! **Marks.** One bit of a cell's status says whether the latest full checkpoint has the record.
//! The meaning of the bit alternates with every full checkpoint, so nothing is reset. So every full
//! checkpoint must mark every cell, even if its capture is given up.
//!
//! A checkpoint of changes has the cells with the dirty bit of the ended epoch, and marks those by a
//! bit of its own. The pass before the next checkpoint clears both bits. If the checkpoint was not
//! published, the pass sets the dirty bit of the present epoch instead ([`Store::settle_marks`]).
//!
//! **Claims.** The thread that sets the mark emits the record. A commit holds the record's lock, so
//! the value cannot change: the commit claims first, and emits if it has won. The scan holds no
//! lock and keeps nobody out: it copies the value first, claims then, and takes the copy back if it
//! has lost.
//!
//! **Proof** that a copy whose claim the scan has won is the value at the point of consistency:
//! 1. The copy is not older. Every commit of the old epoch has left its read section before the scan
//!    begins, since [`PhaseDriver::advance`](crate::PhaseDriver::advance) waits for a grace period.
//!    So the writes of these commits happen before the reads of the scan.
//! 2. The copy is not newer, and not torn. Suppose that a commit T of the new epoch overwrites the
//!    record during the copy. T overwrites only after it has seen the mark set.
//!    - T has set the mark itself. Then the scan loses its claim, since no mark is unset within an
//!      epoch, and takes the copy back.
//!    - The scan has set the mark. Then T has acquired what the scan released by its claim, so the
//!      reads of the scan, although Relaxed, happen before the writes of T.
//!
//! **Large values.** The cell holds a reference to blocks that never change. The scan reads the
//! reference before its claim, so the reference is right if the claim is won. The blocks outlive the
//! read section even if the record drops them, so the scan reads or pins them after its claim.
//!
//! The models in `capture/models.rs` try every order of the accesses of this file.

#[cfg(all(test, loom))]
mod models;

use stillpoint_format::{LOG_NONE, Stamp};
use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
    fence,
};
use stillpoint_sync::{Backoff, lock_word, mutant};

use crate::checkpointer::Capture;
use crate::dirty::Cells;
use crate::memory::Memory;
use crate::memory::arena::{Arena, CellCache, UNITS_PER_SLAB};
use crate::memory::blob;
use crate::memory::cell::{Cell, Record, live_copy};
use crate::memory::marks::UNITS_PER_BIT;
use crate::memory::stamp::{ABSENT, BUSY, DEAD};
use crate::memory::value::ValueRef;
use crate::phase::PhaseWord;
use crate::planted;
use crate::record::Writing;
use crate::rules::{
    Claim, WriteRule, second_copy,
    status::{self, COPYING, NEXT_COPY, SHADOW},
};
use crate::sink::{DeletedKey, Lane, NoSink, RecordImage, Sink};
use crate::stable::VersionReader;
use crate::store::Store;
use crate::table::Table;

/// Cells that a scan visits within one read section and one call of the lane.
const CELLS_PER_LANE: usize = 64;
/// Cells that a pass over marked cells prefetches before it visits the first. The work on a cell then
/// overlaps with the memory accesses of later ones, of which a core has a few dozen under way.
const CELLS_AHEAD: usize = 12;

// ── the side of the commits ──

/// Whether the checkpoint may lack the record. The holder of the record's lock then claims the mark.
#[inline]
pub(crate) fn is_unmarked(lock: &AtomicU64, claim: Claim) -> bool {
    // Acquire: partner of the Release in `lock_word::claim_if`: the scan that set the mark has read the
    // value. An unset mark may be stale, and the claim tells.
    claim.is_open(lock_word::status(lock.load(Acquire)))
}

/// Sets the mark. True for the one thread that emits the record into the checkpoint. The caller
/// holds the record's lock, so that the value stays and nothing need be taken back.
#[inline]
pub(crate) fn claim_locked(lock: &AtomicU64, claim: Claim, has_value: bool) -> bool {
    claim.claim_record(lock, has_value)
}

/// Gives an exclusive lock back. `claimable` says that a scan may claim the mark of the record
/// meanwhile. If not, a plain store suffices. A scan claims in CAPTURE only, and CAPTURE begins after
/// every read section has ended that may have seen an earlier phase.
#[inline]
pub(crate) fn release_exclusive(lock: &AtomicU64, claimable: bool) {
    if claimable {
        lock_word::release_exclusive(lock);
    } else {
        lock_word::release_exclusive_unclaimable(lock);
    }
}

/// A record that a commit is about to overwrite, and whose lock the commit holds.
pub(crate) struct Overwritten<'a> {
    pub(crate) record: Record<'a>,
    pub(crate) table: &'a Table,
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
}

/// Dropped only when saving a before-image panics. The commit may have claimed a record and not
/// emitted it, so the checkpoint lacks a record.
struct Unemitted<'a> {
    store: &'a Store,
    epoch: u64,
}

impl Drop for Unemitted<'_> {
    fn drop(&mut self) {
        self.store.driver().spoil(self.epoch);
    }
}

/// Emits the values of those records that the checkpoint lacks, within one call of the lane of
/// worker `worker`. The caller commits in `phase`: RESOLVE or CAPTURE. Afterwards, and until the
/// next point of consistency, every record is marked.
pub(crate) fn save_before_images<'a>(
    store: &Store,
    sink: &dyn Sink,
    (worker, phase): (usize, PhaseWord),
    records: impl Iterator<Item = Overwritten<'a>> + Clone,
) {
    let unemitted = Unemitted { store, epoch: phase.epoch() };
    let claim = store.claim_in(phase);
    sink.with_lane(worker, &mut |lane| {
        let claimed = records.clone().filter(|it| {
            mutant!(in store.driver(); InsertWithoutMark => if it.record.is_absent() { return false });
            claim_locked(it.record.lock(), claim, !it.record.is_absent())
        });
        for Overwritten { record, table, hash, key } in claimed {
            let (table, generation) = (table.id.0, table.generation);
            if let Some(value) = record.value() {
                lane.emit(&RecordImage::new(table, generation, hash, key, value));
            } else if claim.has_deletions {
                let deleted = DeletedKey { table, generation, hash, key, gsn: 0 };
                mutant!(in store.driver(); lane.emit_deletion(&deleted), TombstoneDropped => ());
            }
        }
    });
    std::mem::forget(unemitted);
}

// ── the side of the scan ──

/// Takes the records of a scan.
pub(crate) trait Captured {
    /// Takes a value, which may be taken back again.
    fn emit(&mut self, cell: Cell<'_>, value: ValueRef<'_>);
    /// Takes the deletion of the cell's key.
    fn emit_deletion(&mut self, cell: Cell<'_>);
    /// Drops the last value.
    fn take_back(&mut self);
}

/// Emits the record of a cell, unless a commit of the new epoch saves the before-image. `blind`
/// plants the bug that marks are not seen.
pub(crate) fn capture(cell: Cell<'_>, by: Claim, blind: bool, to: &mut impl Captured) {
    // Relaxed: a marked record is left alone. If a record only looks unmarked, the claim tells.
    let is_open = by.is_open(lock_word::status(cell.lock().load(Relaxed)));
    if !cell.is_record() || !(is_open || blind) {
        return;
    }
    let claim = |has_value| by.claim_record(cell.lock(), has_value) || blind;
    let Some(value) = cell.value() else {
        if claim(false) && by.has_deletions {
            to.emit_deletion(cell);
        }
        return;
    };
    if value.large_in().is_some() {
        if claim(true) {
            to.emit(cell, value);
        }
        return;
    }
    to.emit(cell, value);
    if !claim(true) {
        to.take_back();
    }
}

impl Store {
    /// Number of groups of slabs that a capture scans.
    pub fn group_count(&self) -> usize {
        self.memory().arena.group_count()
    }

    /// Emits every record of a group of slabs that is not yet marked for the present epoch, and marks it. For a
    /// checkpoint of changes, visits the dirty cells only. In [`Phase::Capture`](crate::Phase) only.
    /// Waits for no lock.
    pub fn capture_unmarked(&self, group: usize, to: &mut dyn Capture) {
        let now = self.driver().now();
        let (by, cells) = (self.claim_in(now), self.wanted_cells(now));
        let blind = mutant!(in self.driver(); false, MarksNotSeen => true);
        self.scan_some((group, cells), to, &mut |scanned| {
            capture(scanned.cell, by, blind, scanned);
        });
    }

    /// The cells that the checkpoint under way looks at.
    fn wanted_cells(&self, now: PhaseWord) -> Cells {
        if now.is_of_changes() { Cells::Marked(now.epoch() - 1) } else { Cells::All }
    }

    /// As [`scan_records`](Self::scan_records), before the capture, when nothing is emitted. The
    /// caller owns read section slot `slot`.
    pub fn visit_records(
        &self,
        group: usize,
        slot: usize,
        visit: &mut dyn FnMut(&mut ScannedCell<'_>),
    ) {
        self.scan_records(group, &mut AtRest(slot), visit);
    }

    /// As [`visit_records`](Self::visit_records), of at least the records with the dirty mark of the
    /// epoch before the present one.
    pub fn visit_ended_marks(
        &self,
        group: usize,
        slot: usize,
        visit: &mut dyn FnMut(&mut ScannedCell<'_>),
    ) {
        let ended = Cells::Marked(self.driver().now().epoch().wrapping_sub(1));
        self.scan_some((group, ended), &mut AtRest(slot), &mut |scanned| {
            if scanned.cell.is_record() {
                visit(scanned);
            }
        });
    }

    /// Visits the records of a group of slabs that the checkpoint under way has. These are all, or those
    /// with the dirty mark of the ended epoch. The visitor [takes](ScannedCell::take_copy) each.
    pub fn scan_wanted(
        &self,
        group: usize,
        to: &mut dyn Capture,
        visit: &mut dyn FnMut(&mut ScannedCell<'_>),
    ) {
        let now = self.driver().now();
        let dirty = status::dirty_in(now.epoch().wrapping_sub(1));
        self.scan_some((group, self.wanted_cells(now)), to, &mut |scanned| {
            let is_wanted = || !now.is_of_changes() || scanned.status() & dirty != 0;
            if scanned.cell.is_record() && is_wanted() {
                visit(scanned);
            }
        });
    }

    /// Visits every record of a group of slabs, a few dozen in each read section and each call of the lane.
    /// The visitor decides what it emits of a record.
    pub fn scan_records(
        &self,
        group: usize,
        to: &mut dyn Capture,
        visit: &mut dyn FnMut(&mut ScannedCell<'_>),
    ) {
        self.scan(group, to, &mut |scanned| {
            if scanned.cell.is_record() {
                visit(scanned);
            }
        });
    }

    /// Whether the checkpoint may lack the record in this cell, whose lock the caller holds.
    pub(crate) fn is_unmarked(&self, cell: u64, claim: Claim) -> bool {
        is_unmarked(self.cell(cell).lock(), claim)
    }

    /// As [`capture_unmarked`](Self::capture_unmarked), for [`WriteRule::StoreStable`]: if a commit has
    /// stored a record's old value as its stable version, this emits and erases that version.
    pub fn capture_or_stable(&self, group: usize, to: &mut dyn Capture) {
        let now = self.driver().now();
        let by = self.claim_in(now);
        self.scan_some((group, self.wanted_cells(now)), to, &mut |scanned| {
            let cell = scanned.cell;
            capture(cell, by, false, scanned);
            // Acquire: partner of the Release in `lock_word::claim_if`: the version was stored before.
            let status = lock_word::status(cell.lock().load(Acquire));
            mutant!(in self.driver(); ShadowLost => return);
            if cell.is_record() && status & SHADOW != 0 {
                let memory = self.memory();
                // Taken out meanwhile, since the image borrows from the reader and needs the cell.
                let mut reader = std::mem::take(&mut *scanned.versions);
                match reader.version(memory, cell) {
                    Some(value) => Captured::emit(scanned, cell, value),
                    None => Captured::emit_deletion(scanned, cell),
                }
                reader.erase(memory, scanned.cache, cell);
                *scanned.versions = reader;
                lock_word::claim(cell.lock(), SHADOW, 0);
            }
        });
    }

    /// As [`capture_unmarked`](Self::capture_unmarked), for [`WriteRule::KeepShadow`]: if a commit
    /// has kept a record's old value in copy 1, this emits copy 1 and removes its value.
    pub fn capture_or_shadow(&self, group: usize, to: &mut dyn Capture) {
        let now = self.driver().now();
        let by = self.claim_in(now);
        self.scan_some((group, self.wanted_cells(now)), to, &mut |scanned| {
            let cell = scanned.cell;
            capture(cell, by, false, scanned);
            // Acquire: partner of the Release in `lock_word::claim_if`: copy 1 was written before.
            let status = lock_word::status(cell.lock().load(Acquire));
            mutant!(in self.driver(); ShadowLost => return);
            if cell.is_record() && status & SHADOW != 0 {
                let shadow = cell.copy(1);
                match shadow.copy_value() {
                    Some(value) => Captured::emit(scanned, cell, value),
                    None => Captured::emit_deletion(scanned, cell),
                }
                // The lane has its own reference to the blocks. A commit writes copy 1 again only after
                // a later point of consistency.
                let blob = shadow.copy_blob();
                shadow.put_nothing();
                lock_word::claim(cell.lock(), SHADOW, 0);
                let (memory, cache) = (self.memory(), &mut *scanned.cache);
                blob.into_iter().for_each(|blob| blob::release(memory, cache, blob));
            }
        });
    }

    /// For [`WriteRule::WriteBoth`]: merges into copy 3 what commits of the epoch before have written.
    /// Then emits copy 3 of every record that has a value there.
    pub fn capture_merged(&self, group: usize, to: &mut dyn Capture) {
        let now = self.driver().now();
        let ended = now.epoch() - 1;
        let (copy, dirty) = (second_copy(ended), status::dirty_in(ended));
        self.scan(group, to, &mut |scanned| {
            let (memory, cell) = (self.memory(), scanned.cell);
            if !cell.is_record() {
                return;
            }
            // Acquire: the commit wrote the copy before it set the bit.
            if lock_word::status(cell.lock().load(Acquire)) & dirty != 0 {
                let rule = WriteRule::WriteBoth;
                let number = scanned.number;
                let merged = Writing { memory, number, rule, phase: now, noted: 0 };
                // Only scans read copy 3, so the blocks of its old value are freed at once.
                let mut free = |blob| blob::release(memory, scanned.cache, blob);
                merged.share_copy(copy, 3, &mut free);
                lock_word::claim(cell.lock(), dirty, 0);
            }
            if let Some(value) = cell.copy(3).copy_value() {
                Captured::emit(scanned, cell, value);
            }
        });
    }

    /// For [`WriteRule::SwitchCopies`]: commits write the older copy of each record from now on. The
    /// caller holds the store quiesced, in PREPARE, and owns read section slot `slot`. For a checkpoint
    /// of changes this visits only the records that the checkpoint has.
    pub fn switch_copies(&self, group: usize, slot: usize) {
        let now = self.driver().now();
        let cells = if now.is_of_changes() { Cells::Marked(now.epoch()) } else { Cells::All };
        self.for_each_record(group, slot, cells, &mut |cell, _| {
            let older = if live_copy(cell.stamp_word()) == 0 { NEXT_COPY } else { 0 };
            // Relaxed: commits wait meanwhile, and transactions that are open change other bits. Only
            // records that were written since the last pass need an exchange.
            if lock_word::status(cell.lock().load(Relaxed)) & NEXT_COPY != older {
                lock_word::claim(cell.lock(), NEXT_COPY, older);
            }
        });
    }

    /// Visits records of a group of slabs and their numbers, those without a value included. The caller owns
    /// read section slot `slot`.
    pub(crate) fn for_each_record(
        &self,
        group: usize,
        slot: usize,
        cells: Cells,
        visit: &mut dyn FnMut(Cell<'_>, u64),
    ) {
        for slab in self.slabs_to_visit(group, cells) {
            let mut next = Some(0);
            while let Some(from) = next {
                // A quiesce holds commits back, but not the maintenance that frees slabs.
                let _read_section = self.driver().read_sections().read_section(slot);
                let prefetch = |memory: &Memory, number| memory.arena.prefetch_header(number);
                next = self.visit_cells((slab, cells), from, prefetch, &mut |_, number| {
                    let cell = self.cell(number);
                    if cell.is_record() {
                        visit(cell, number);
                    }
                });
            }
        }
    }

    /// The slabs of a group that a scan visits, in order. A slab that gets an owner meanwhile has no cell
    /// that the scan must meet.
    fn slabs_to_visit(&self, group: usize, cells: Cells) -> impl Iterator<Item = usize> {
        let arena = &self.memory().arena;
        Arena::slabs_of(group).filter(move |&index| {
            let slab = match (cells, arena.marks()) {
                // The bits of a wide slab's cells lie in its parts.
                (Cells::Marked(epoch), Some(marks)) if marks.has_any(index, epoch) => {
                    arena.slab_around(index)
                }
                (Cells::Marked(_), Some(_)) => None,
                _ => arena.slab(index),
            };
            slab.is_some_and(|slab| slab.is_of_records())
        })
    }

    /// Visits every cell of a group of slabs, a few dozen in each read section and each call of the lane.
    fn scan(
        &self,
        group: usize,
        to: &mut dyn Capture,
        visit: &mut dyn FnMut(&mut ScannedCell<'_>),
    ) {
        self.scan_some((group, Cells::All), to, visit);
    }

    /// As [`scan`](Self::scan), of some cells.
    fn scan_some(
        &self,
        cells: (usize, Cells),
        to: &mut dyn Capture,
        visit: &mut dyn FnMut(&mut ScannedCell<'_>),
    ) {
        let mut hold = Hold::default();
        let (group, cells) = cells;
        for slab in self.slabs_to_visit(group, cells) {
            self.scan_slab((slab, cells), to, &mut hold, visit);
        }
        hold.cache.drain(&self.memory().arena);
    }

    fn scan_slab(
        &self,
        cells: (usize, Cells),
        to: &mut dyn Capture,
        hold: &mut Hold,
        visit: &mut dyn FnMut(&mut ScannedCell<'_>),
    ) {
        let mut next = Some(0);
        while let Some(from) = next {
            let read_section = self.driver().read_sections().read_section(to.slot());
            let mut moved = 0;
            to.with_lane(&mut |lane| {
                next = self.visit_cells(cells, from, Memory::prefetch, &mut |table, number| {
                    let (store, cell, moved) = (self, self.cell(number), &mut moved);
                    let Hold { key, cache, versions } = &mut *hold;
                    visit(&mut ScannedCell {
                        store,
                        table,
                        number,
                        cell,
                        key,
                        lane,
                        cache,
                        versions,
                        moved,
                    });
                });
            });
            drop(read_section);
            to.moved(moved);
            // A commit may wait for these slots.
            hold.versions.give_back(self.memory());
            // After each slab, too: one of records of a kilobyte has no more cells than one section visits.
            to.pause();
        }
    }

    /// Visits a few dozen cells of a group of slabs, from position `from` on. Gives the position to go on from,
    /// `None` at the end. `prefetch` fetches what the visit reads of a cell.
    fn visit_cells(
        &self,
        (index, cells): (usize, Cells),
        from: usize,
        prefetch: impl Fn(&Memory, u64),
        visit: &mut dyn FnMut(&Table, u64),
    ) -> Option<usize> {
        let arena = &self.memory().arena;
        let slab = arena.slab_around(index)?;
        if !slab.is_of_records() {
            return None;
        }
        let table = self.catalog().owner(slab.owner)?;
        if let (Cells::Marked(epoch), Some(marks)) = (cells, arena.marks()) {
            let mut units = [0; CELLS_PER_LANE];
            let found = marks.find(index, epoch, from as u64, &mut units);
            let first = index as u64 * UNITS_PER_SLAB;
            let cell =
                |&unit: &u64| (unit..unit + UNITS_PER_BIT).find(|at| slab.is_cell(first + at));
            let numbers = || units[..found].iter().filter_map(cell).map(|unit| first + unit);
            // The cells lie apart, so the processor does not foresee them.
            numbers().take(CELLS_AHEAD).for_each(|number| prefetch(self.memory(), number));
            let mut ahead = numbers().skip(CELLS_AHEAD);
            for number in numbers() {
                if let Some(number) = ahead.next() {
                    prefetch(self.memory(), number);
                }
                visit(&table, number);
            }
            let next = |last: u64| (last + UNITS_PER_BIT) as usize;
            return (found == CELLS_PER_LANE).then(|| next(units[found - 1]));
        }
        let numbers = slab.numbers(from..from + CELLS_PER_LANE);
        let seen = numbers.map(|number| visit(&table, number)).count();
        (seen == CELLS_PER_LANE).then_some(from + seen)
    }
}

/// What a scan keeps from cell to cell.
#[derive(Default)]
struct Hold {
    key: Vec<u8>,
    /// Cells of blocks that the scan has freed.
    cache: CellCache,
    versions: VersionReader,
}

/// A scan while no checkpoint is taken, with the read section slot that the scan owns.
struct AtRest(usize);

impl Capture for AtRest {
    fn slot(&self) -> usize {
        self.0
    }
    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane)) {
        NoSink.with_lane(self.0, with);
    }
    fn pause(&mut self) {}
    fn is_abandoned(&self) -> bool {
        false
    }
}

/// The cell that a scan visits at present, and the lane of the scan.
pub struct ScannedCell<'a> {
    store: &'a Store,
    table: &'a Table,
    number: u64,
    cell: Cell<'a>,
    key: &'a mut Vec<u8>,
    lane: &'a mut dyn Lane,
    cache: &'a mut CellCache,
    versions: &'a mut VersionReader,
    /// Bytes of values that were moved in memory.
    moved: &'a mut u64,
}

impl std::fmt::Debug for ScannedCell<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScannedCell").field("number", &self.number).finish_non_exhaustive()
    }
}

impl ScannedCell<'_> {
    /// The [status](crate::rules::status) of the cell.
    pub fn status(&self) -> u8 {
        // Acquire: a commit writes a copy before it sets the status bit for the copy.
        lock_word::status(self.cell.lock().load(Acquire))
    }

    /// Takes a copy for the checkpoint under way: its value or, in a checkpoint of changes, the
    /// deletion of a key without one. Commits do not write this copy meanwhile. Call this only for cells
    /// of several copies.
    pub fn take_copy(&mut self, copy: usize) {
        self.take(self.cell.copy(copy).copy_value());
    }

    /// As [`take_copy`](Self::take_copy), for a cell of one copy while the store is quiesced.
    pub fn take_value(&mut self) {
        self.take(self.cell.value());
    }

    fn take(&mut self, value: Option<ValueRef<'_>>) {
        let claim = self.store.claim_in(self.store.driver().now());
        match value {
            Some(value) => self.image(value, 0),
            None if claim.has_deletions => self.deletion(0),
            None => {}
        }
        claim.note(self.cell.lock(), value.is_some());
    }

    /// Takes the record's present value, with the stamp of its last writer. If a commit of this run has
    /// deleted the record, or if the checkpoint is of changes, takes the deletion. Waits for a commit
    /// that is in the middle of its writes. Returns the stamp of what was taken.
    pub fn take_stamped(&mut self) -> Option<Stamp> {
        let claim = self.store.claim_in(self.store.driver().now());
        let (stamp, has_value) = self.emit_stamped(claim.has_deletions);
        claim.note(self.cell.lock(), has_value);
        stamp
    }

    /// The stamp of what was emitted, and whether the record has a value.
    fn emit_stamped(&mut self, of_changes: bool) -> (Option<Stamp>, bool) {
        let mut backoff = Backoff::new();
        loop {
            let before = self.cell.stamp_word();
            let stamp = Stamp::from_bits(before);
            let gsn = stamp.gsn();
            // No commit has written a cell whose stamp names no log. Two cells may have been made
            // for a new key, one of which is not in the index.
            let is_of_no_commit = before & ABSENT != 0 && stamp.log() == LOG_NONE;
            if before & DEAD != 0 || (is_of_no_commit && !of_changes) {
                return (None, false);
            }
            if before & BUSY != 0 {
                backoff.wait();
                continue;
            }
            let Some(value) = self.cell.record().value() else {
                if before & ABSENT != 0 {
                    self.deletion(gsn);
                    return (Some(stamp), false);
                }
                // A commit has deleted the record since the stamp was read.
                backoff.wait();
                continue;
            };
            // A large value is read later, so the reference to it must be valid before it is
            // emitted.
            let is_large = value.large_in().is_some();
            if !is_large {
                self.image(value, gsn);
            }
            fence(Acquire);
            if self.cell.stamp_word() == before {
                if is_large {
                    self.image(value, gsn);
                }
                return (Some(stamp), true);
            }
            if !is_large {
                self.lane.take_back();
            }
        }
    }

    /// For [`WriteRule::AlternateCopies`] and [`WriteRule::WriteAlongside`], while no checkpoint
    /// captures: copies the newest value to the copy of the present epoch's parity. Does nothing if that
    /// copy has the newest value.
    pub fn bring_over(&mut self) {
        let (store, cell) = (self.store, self.cell);
        let now = store.driver().now();
        let (lock, epoch, rule) = (cell.lock(), now.epoch(), store.rules().write);
        let Some((to, from)) = rule.copies_of(epoch) else { return };
        // The thread that wins the claim writes the copy: this thread, or that of the first commit.
        let also = mutant!(in store.driver(); COPYING, CopyNotAwaited => 0);
        if !Claim::of_copy(epoch).claim(lock, also) {
            return;
        }
        let (memory, number) = (store.memory(), self.number);
        let writing = Writing { memory, number, rule, phase: now, noted: 0 };
        // The newest value is there if no commit of the epoch before has written the record.
        if live_copy(cell.stamp_word()) != to {
            // Nobody reads this copy: the capture before the last did.
            let cache = &mut *self.cache;
            writing.share_copy(from, to, &mut |blob| blob::release(store.memory(), cache, blob));
            *self.moved += cell.copy(to).copy_value().map_or(0, |value| value.len() as u64);
        }
        lock_word::claim(lock, COPYING, 0);
    }

    fn image(&mut self, value: ValueRef<'_>, gsn: u64) {
        self.cell.read_key(self.key);
        let Table { id, generation, .. } = *self.table;
        let hash = self.store.hash(id, self.key);
        let image = RecordImage::new(id.0, generation, hash, self.key, value);
        self.lane.emit(&RecordImage { gsn, ..image });
    }

    fn deletion(&mut self, gsn: u64) {
        self.cell.read_key(self.key);
        let Table { id, generation, .. } = *self.table;
        let hash = self.store.hash(id, self.key);
        let deleted = DeletedKey { table: id.0, generation, hash, key: self.key, gsn };
        mutant!(in self.store.driver(); TombstoneDropped => return);
        self.lane.emit_deletion(&deleted);
    }
}

impl Captured for ScannedCell<'_> {
    fn emit(&mut self, _: Cell<'_>, value: ValueRef<'_>) {
        self.image(value, 0);
    }
    fn emit_deletion(&mut self, _: Cell<'_>) {
        self.deletion(0);
    }
    fn take_back(&mut self) {
        self.lane.take_back();
    }
}
