//! The capture of a checkpoint: the scans. For schemes that save before-images, also the marks, the
//! claims and the before-images that commits save.
//!
//! ```text
//! commit, locked:  marked? ── no ─▶ claim ─ won ─▶ emit      then busy ▶ words ▶ stamp ▶ release
//! scan, no lock:   marked? ── no ─▶ emit ─▶ claim ─ lost ─▶ take back
//! ```
//! **Marks.** One bit of a cell's status says whether the present checkpoint has the record. The
//! meaning of the bit alternates with the epoch ([`captured_in`](crate::rules::captured_in)), so
//! nothing is reset. Therefore every cell must be marked in every epoch, also in a capture that is
//! given up.
//!
//! **Claims.** The thread that sets the mark emits the record. A commit holds the record's lock, so
//! the value cannot change. So the commit claims first, and emits if it has won. The scan holds no
//! lock. It copies the value first, then claims, and takes the copy back if it has lost.
//!
//! **Proof** that a copy whose claim the scan has won is the value at the point of consistency:
//! 1. The copy is not older. Every commit of the old epoch has left its read section before the scan
//!    begins ([`PhaseDriver::advance`](crate::PhaseDriver::advance) waits for a grace period), so
//!    its writes happen before the reads of the scan.
//! 2. The copy is not newer, and not torn. Suppose that a commit T of the new epoch overwrites the
//!    record during the copy. T overwrites only after it has seen the mark set.
//!    - T has set the mark itself. Then the scan loses its claim, since no mark is unset within an
//!      epoch, and takes the copy back.
//!    - The scan has set the mark. Then T has acquired the Release of the scan's claim, so the
//!      reads of the scan, although Relaxed, happen before the writes of T.
//!
//! **Large values.** The cell holds a reference to blocks that never change. The scan reads the
//! reference before its claim, so the reference is right if the claim is won. The blocks outlive the
//! read section even if the record drops them, so the scan reads or pins them after its claim.
//!
//! The models in `capture/models.rs` try every order of the accesses of this file.

#[cfg(all(test, loom))]
mod models;

use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};
use stillpoint_sync::lock_word;
use stillpoint_sync::mutant;

use crate::checkpointer::Capture;
use crate::memory::arena::{CellCache, Kind};
use crate::memory::blob;
use crate::memory::cell::{Cell, Record, live_copy};
use crate::memory::value::ValueRef;
use crate::planted;
use crate::record::Writing;
use crate::rules::{Claim, WriteRule, copy_of, status::SHADOW};
use crate::sink::{DeletedKey, Lane, RecordImage, Sink};
use crate::store::Store;
use crate::table::Table;

/// Cells that a scan visits within one read section and one call of the lane.
const CELLS_PER_LANE: usize = 64;

// ── commits ──

/// Whether the record's mark may be unset. The holder of the record's lock then claims the mark.
#[inline]
pub(crate) fn is_unmarked(lock: &AtomicU64, claim: Claim) -> bool {
    // Acquire: partner of the Release in `lock_word::claim_if`: the scan that set the mark has read the
    // value. An unset mark may be stale, and the claim tells.
    claim.is_open(lock_word::status(lock.load(Acquire)))
}

/// Sets the mark. Returns true to the one thread that emits the record. The caller holds the
/// record's lock, so the value is stable, and nothing need be taken back.
#[inline]
pub(crate) fn claim_locked(lock: &AtomicU64, claim: Claim) -> bool {
    claim.claim(lock, 0)
}

/// Releases an exclusive lock. `claimable` says that a scan may claim the mark of the record
/// meanwhile. If not, a plain store suffices. A scan claims in CAPTURE only, and CAPTURE begins
/// after every read section has ended that may have seen an earlier phase.
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

/// Guard that is dropped only when the saving of a before-image panics. The commit may have claimed
/// a record and not emitted it, so the checkpoint may lack a record.
struct Unemitted<'a> {
    store: &'a Store,
    epoch: u64,
}

impl Drop for Unemitted<'_> {
    fn drop(&mut self) {
        self.store.driver().spoil(self.epoch);
    }
}

/// Emits the before-images of those records that have no mark yet, within one call of the lane of
/// worker `worker`. The caller commits in `epoch`, in RESOLVE or CAPTURE. Afterwards, and until the
/// next point of consistency, each of the records is marked.
pub(crate) fn save_before_images<'a>(
    store: &Store,
    sink: &dyn Sink,
    (worker, epoch): (usize, u64),
    records: impl Iterator<Item = Overwritten<'a>> + Clone,
) {
    let unemitted = Unemitted { store, epoch };
    let claim = Claim::of(store.rules(), epoch);
    sink.with_lane(worker, &mut |lane| {
        let claimed = records.clone().filter(|it| claim_locked(it.record.lock(), claim));
        for Overwritten { record, table, hash, key } in claimed {
            let (table, generation) = (table.id.0, table.generation);
            if let Some(value) = record.value() {
                lane.emit(&RecordImage::new(table, generation, hash, key, value));
            } else if claim.has_deletions {
                lane.emit_deletion(&DeletedKey { table, generation, hash, key });
            }
        }
    });
    std::mem::forget(unemitted);
}

// ── the scan ──

/// The output of a scan.
pub(crate) trait Captured {
    /// Emits a value, which may be taken back.
    fn emit(&mut self, cell: Cell<'_>, value: ValueRef<'_>);
    /// Emits the absence of a value.
    fn emit_deletion(&mut self, cell: Cell<'_>);
    /// Takes the last value back.
    fn take_back(&mut self);
}

/// Emits the record of a cell, unless a commit of the new epoch saves the before-image. `blind` is a
/// planted bug: marks are not seen.
pub(crate) fn capture(cell: Cell<'_>, by: Claim, blind: bool, to: &mut impl Captured) {
    // Relaxed: a marked record is left alone. If a record only looks unmarked, the claim tells.
    let is_open = by.is_open(lock_word::status(cell.lock().load(Relaxed)));
    if !cell.is_record() || !(is_open || blind) {
        return;
    }
    let claim = || by.claim(cell.lock(), 0) || blind;
    let Some(value) = cell.value() else {
        if claim() && by.has_deletions {
            to.emit_deletion(cell);
        }
        return;
    };
    if value.large_in().is_some() {
        if claim() {
            to.emit(cell, value);
        }
        return;
    }
    to.emit(cell, value);
    if !claim() {
        to.take_back();
    }
}

impl Store {
    /// Number of slabs that a capture scans.
    pub fn slab_count(&self) -> usize {
        self.memory().arena.slab_count()
    }

    /// Emits every record of a slab that is not yet marked for the present epoch, and marks it.
    /// In [`Phase::Capture`](crate::Phase) only. Waits for no lock.
    pub fn capture_unmarked(&self, slab: usize, to: &mut dyn Capture) {
        let by = Claim::of(self.rules(), self.driver().now().epoch());
        let blind = mutant!(in self.driver(); false, MarksNotSeen => true);
        self.scan(slab, to, &mut |scanned| capture(scanned.cell, by, blind, scanned));
    }

    /// Emits every record of a slab. The caller holds the store quiesced.
    pub fn capture_all(&self, slab: usize, to: &mut dyn Capture) {
        self.scan(slab, to, &mut |scanned| {
            if scanned.cell.is_record()
                && let Some(value) = scanned.cell.value()
            {
                Captured::emit(scanned, scanned.cell, value);
            }
        });
    }

    /// For every record of a slab, emits copy `copy(status)` if that copy has a value. Commits do
    /// not write these copies meanwhile.
    pub fn capture_copy(&self, slab: usize, to: &mut dyn Capture, copy: impl Fn(u8) -> usize) {
        self.scan(slab, to, &mut |scanned| {
            let cell = scanned.cell;
            if !cell.is_record() {
                return;
            }
            // Acquire: the copy was written before the status named another one for the commits.
            let status = lock_word::status(cell.lock().load(Acquire));
            if let Some(value) = cell.copy(copy(status)).copy_value() {
                Captured::emit(scanned, cell, value);
            }
        });
    }

    /// As [`capture_unmarked`](Self::capture_unmarked), for [`WriteRule::KeepShadow`]: a record whose
    /// old value a commit has kept in copy 1 is emitted from there.
    pub fn capture_or_shadow(&self, slab: usize, to: &mut dyn Capture) {
        let by = Claim::of_all(self.driver().now().epoch());
        self.scan(slab, to, &mut |scanned| {
            let cell = scanned.cell;
            capture(cell, by, false, scanned);
            // Acquire: partner of the Release in `lock_word::claim_if`: copy 1 was written before.
            let status = lock_word::status(cell.lock().load(Acquire));
            if cell.is_record() && status & SHADOW != 0 {
                let value = cell.copy(1).copy_value().expect("a shadow is a value");
                Captured::emit(scanned, cell, value);
                lock_word::claim(cell.lock(), SHADOW, 0);
            }
        });
    }

    /// For [`WriteRule::WriteBoth`]: merges the copies that commits of the epoch before have written
    /// into copy 3, and emits copy 3 of every record that has a value there.
    pub fn capture_merged(&self, slab: usize, to: &mut dyn Capture) {
        let now = self.driver().now();
        let (copy, dirty) = copy_of(now.epoch() - 1);
        let mut cache = CellCache::default();
        self.scan(slab, to, &mut |scanned| {
            let (memory, cell) = (self.memory(), scanned.cell);
            if !cell.is_record() {
                return;
            }
            // Acquire: the commit wrote the copy before it set the bit.
            if lock_word::status(cell.lock().load(Acquire)) & dirty != 0 {
                let rule = WriteRule::WriteBoth;
                let merged = Writing { memory, number: scanned.number, rule, phase: now };
                // Only scans read copy 3, so its old value is freed at once.
                let mut free = |blob| blob::release(memory, &mut cache, blob);
                merged.share_copy(copy, 3, &mut free);
                lock_word::claim(cell.lock(), dirty, 0);
            }
            if let Some(value) = cell.copy(3).copy_value() {
                Captured::emit(scanned, cell, value);
            }
        });
        cache.drain(&self.memory().arena);
    }

    /// Changes the status of every record of a slab. `next` maps the present status and the number
    /// of the newest copy to the new status. The rules of the store must allow the change at this
    /// time. The caller owns read section slot `slot`.
    pub fn set_statuses(&self, slab: usize, slot: usize, next: impl Fn(u8, usize) -> u8) {
        for from in (0..).step_by(CELLS_PER_LANE) {
            // The quiesce stops commits, but not the maintenance that frees slabs.
            let _read_section = self.driver().read_sections().read_section(slot);
            let seen = self.scan_cells(slab, from..from + CELLS_PER_LANE, &mut |_, number| {
                let cell = self.cell(number);
                if cell.is_record() {
                    let newest = live_copy(cell.stamp_word());
                    lock_word::update_status(cell.lock(), |status| next(status, newest));
                }
            });
            if seen < CELLS_PER_LANE {
                return;
            }
        }
    }

    /// Visits the cells of a slab, a few dozen in each read section and each call of the lane.
    fn scan(&self, slab: usize, to: &mut dyn Capture, visit: &mut dyn FnMut(&mut Scanned<'_>)) {
        let mut key = Vec::new();
        for from in (0..).step_by(CELLS_PER_LANE) {
            let read_section = self.driver().read_sections().read_section(to.slot());
            let mut seen = 0;
            to.with_lane(&mut |lane| {
                seen = self.scan_cells(slab, from..from + CELLS_PER_LANE, &mut |table, number| {
                    let cell = self.cell(number);
                    visit(&mut Scanned { store: self, table, number, cell, key: &mut key, lane });
                });
            });
            drop(read_section);
            if seen < CELLS_PER_LANE {
                return;
            }
            to.pause();
        }
    }

    fn scan_cells(
        &self,
        slab: usize,
        part: std::ops::Range<usize>,
        visit: &mut dyn FnMut(&Table, u64),
    ) -> usize {
        let Some(slab) = self.memory().arena.slab(slab) else {
            return 0;
        };
        if slab.kind != Kind::Record as u8 && slab.kind != Kind::Lock as u8 {
            return 0;
        }
        let Some(table) = self.catalog().owner(slab.owner) else {
            return 0;
        };
        let mut seen = 0;
        for number in slab.numbers(part) {
            visit(&table, number);
            seen += 1;
        }
        seen
    }
}

/// A cell that a scan visits, and the lane of the scan.
struct Scanned<'a> {
    store: &'a Store,
    table: &'a Table,
    number: u64,
    cell: Cell<'a>,
    key: &'a mut Vec<u8>,
    lane: &'a mut dyn Lane,
}

impl Captured for Scanned<'_> {
    fn emit(&mut self, cell: Cell<'_>, value: ValueRef<'_>) {
        cell.read_key(self.key);
        let Table { id, generation, .. } = *self.table;
        let hash = self.store.hash(id, self.key);
        self.lane.emit(&RecordImage::new(id.0, generation, hash, self.key, value));
    }
    fn emit_deletion(&mut self, cell: Cell<'_>) {
        cell.read_key(self.key);
        let Table { id, generation, .. } = *self.table;
        let hash = self.store.hash(id, self.key);
        self.lane.emit_deletion(&DeletedKey { table: id.0, generation, hash, key: self.key });
    }
    fn take_back(&mut self) {
        self.lane.take_back();
    }
}
