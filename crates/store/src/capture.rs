//! The capture of a checkpoint, for schemes that save before-images: marks, claims, the
//! before-images that commits save, and the scan.
//!
//! ```text
//! commit, locked:  marked? ── no ─▶ claim ─ won ─▶ emit      then busy ▶ words ▶ stamp ▶ release
//! scan, no lock:   marked? ── no ─▶ emit ─▶ claim ─ lost ─▶ take back
//! ```
//! **Marks.** One bit of a cell's status says whether the present checkpoint has the record. The
//! meaning of the bit alternates with the epoch ([`mark_of`]), so nothing is reset. It follows that
//! every cell must be marked in every epoch, also in a capture that is given up.
//!
//! **Claims.** Whoever sets the mark emits the record. A commit holds the record's lock, so the
//! value cannot change: the commit claims first, and emits if it has won. The scan holds no lock and
//! keeps nobody out: it copies the value first, claims then, and takes the copy back if it has lost.
//!
//! **Proof** that a copy whose claim the scan has won is the value at the point of consistency:
//! 1. The copy is not older. Every commit of the old epoch has left its read section before the scan
//!    begins ([`PhaseDriver::advance`](crate::PhaseDriver::advance) waits for a grace period), so
//!    its writes happen before the reads of the scan.
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

use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};
use stillpoint_sync::lock_word;
use stillpoint_sync::mutant;

use crate::checkpointer::Capture;
use crate::memory::arena::Kind;
use crate::memory::cell::{Cell, Record};
use crate::memory::value::ValueRef;
use crate::planted;
use crate::policy::{Lane, RecordImage, Sink};
use crate::store::Store;
use crate::table::Table;

/// Bit of a cell's status that says in which epochs the record counts as captured.
pub(crate) const MARK: u8 = 1;

/// Cells that a scan visits within one read section and one call of the lane.
const CELLS_PER_LANE: usize = 64;

/// The mark of records captured by the checkpoint that began `epoch`.
#[inline]
pub(crate) fn mark_of(epoch: u64) -> u8 {
    (epoch & 1) as u8 * MARK
}

// ── the side of the commits ──

/// Whether the checkpoint may lack the record. The holder of the record's lock then claims the mark.
#[inline]
pub(crate) fn is_unmarked(lock: &AtomicU64, mark: u8) -> bool {
    // Acquire: partner of the Release in `lock_word::claim`: the scan that set the mark has read the
    // value. An unset mark may be stale, and the claim tells.
    lock_word::status(lock.load(Acquire)) & MARK != mark
}

/// Sets the mark; true for the one thread that gives the record to the checkpoint. The caller holds
/// the record's lock, so that the value stays and nothing need be taken back.
#[inline]
pub(crate) fn claim_locked(lock: &AtomicU64, mark: u8) -> bool {
    lock_word::claim(lock, MARK, mark)
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

/// Gives the checkpoint the values of those records that it lacks, within one call of the lane of
/// worker `worker`. The caller commits in `epoch`, in RESOLVE or CAPTURE. Afterwards, and until the
/// next point of consistency, every record is marked.
pub(crate) fn save_before_images<'a>(
    store: &Store,
    sink: &dyn Sink,
    (worker, epoch): (usize, u64),
    records: impl Iterator<Item = Overwritten<'a>> + Clone,
) {
    let unemitted = Unemitted { store, epoch };
    let mark = mark_of(epoch);
    sink.with_lane(worker, &mut |lane| {
        let claimed = records.clone().filter(|it| claim_locked(it.record.lock(), mark));
        for Overwritten { record, table, hash, key } in claimed {
            if let Some(value) = record.value() {
                let image = RecordImage::new(table.id.0, table.generation, hash, key, value);
                store.policy().before_first_write(&image, lane);
            }
        }
    });
    std::mem::forget(unemitted);
}

// ── the side of the scan ──

/// What takes the records of a scan.
pub(crate) trait Captured {
    /// Takes a value, which may be taken back again.
    fn emit(&mut self, cell: Cell<'_>, value: ValueRef<'_>);
    /// Drops the last value.
    fn take_back(&mut self);
}

/// Emits the record of a cell, unless a commit of the new epoch saves the before-image. `blind` is a
/// planted bug: marks are not seen.
pub(crate) fn capture(cell: Cell<'_>, mark: u8, blind: bool, to: &mut impl Captured) {
    // Relaxed: a marked record is left alone. If a record only looks unmarked, the claim tells.
    let seen = lock_word::status(cell.lock().load(Relaxed)) & MARK;
    if !cell.is_record() || (seen == mark && !blind) {
        return;
    }
    let claim = || lock_word::claim(cell.lock(), MARK, mark) || blind;
    let Some(value) = cell.value() else {
        claim();
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
        let mark = mark_of(self.driver().now().epoch());
        let blind = mutant!(in self.driver(); false, MarksNotSeen => true);
        let mut key = Vec::new();
        for from in (0..).step_by(CELLS_PER_LANE) {
            let read_section = self.driver().read_sections().read_section(to.slot());
            let seen = self.scan_part(slab, from, to, &mut |table, cell, lane| {
                let mut scanned = Scanned { store: self, table, key: &mut key, lane };
                capture(cell, mark, blind, &mut scanned);
            });
            drop(read_section);
            if seen < CELLS_PER_LANE {
                return;
            }
            to.pause();
        }
    }

    /// Emits every record of a slab. The caller holds the store quiesced.
    pub fn capture_all(&self, slab: usize, to: &mut dyn Capture) {
        let mut key = Vec::new();
        for from in (0..).step_by(CELLS_PER_LANE) {
            // The quiesce holds commits back, but not the maintenance that frees slabs.
            let read_section = self.driver().read_sections().read_section(to.slot());
            let seen = self.scan_part(slab, from, to, &mut |table, cell, lane| {
                if cell.is_record()
                    && let Some(value) = cell.value()
                {
                    Scanned { store: self, table, key: &mut key, lane }.emit(cell, value);
                }
            });
            drop(read_section);
            if seen < CELLS_PER_LANE {
                return;
            }
            to.pause();
        }
    }

    /// Visits the cells of a slab from the `from`-th on, at most [`CELLS_PER_LANE`], within one call
    /// of the lane. Gives the number of cells that there were.
    fn scan_part(
        &self,
        slab: usize,
        from: usize,
        to: &mut dyn Capture,
        visit: &mut dyn FnMut(&Table, Cell<'_>, &mut dyn Lane),
    ) -> usize {
        let mut seen = 0;
        to.with_lane(&mut |lane| {
            seen = self.scan_cells(slab, from..from + CELLS_PER_LANE, &mut |table, cell| {
                visit(table, cell, lane);
            });
        });
        seen
    }

    fn scan_cells(
        &self,
        slab: usize,
        part: std::ops::Range<usize>,
        visit: &mut dyn FnMut(&Table, Cell<'_>),
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
            visit(&table, self.cell(number));
            seen += 1;
        }
        seen
    }
}

/// A scan inside a call of its lane.
struct Scanned<'a> {
    store: &'a Store,
    table: &'a Table,
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
    fn take_back(&mut self) {
        self.lane.take_back();
    }
}
