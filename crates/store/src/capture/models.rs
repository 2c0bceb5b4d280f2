//! Every order of the accesses to one or two cells, under loom. Cells, lock words, read sections
//! and phases are the store's own. Commits that write or only lock, a scan, and a reader without a
//! lock use these parts.
//!
//! Each commit adds one to a record, in both words of its value; a commit from after the point of
//! consistency adds a hundred. Each value in the checkpoint must be whole and below a hundred. Each
//! value must also hold every commit from before, and be emitted once.

use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::thread;
use std::sync::Arc;

use stillpoint_format::{LOG_NONE, Stamp};
use stillpoint_sync::lock_word::{self, Priority};

use super::{Captured, capture, claim_locked, is_unmarked, release_exclusive};
use crate::memory::Memory;
use crate::memory::arena::{CellCache, Kind};
use crate::memory::blob;
use crate::memory::cell::{Cell, OptimisticRead, cell_bytes};
use crate::memory::value::ValueRef;
use crate::phase::{Phase, PhaseDriver};
use crate::record::begin_writes;
use crate::rules::{Claim, status::CAPTURED};

const KEY: &[u8] = b"k";
/// Bytes of a value: two words with their head.
const BYTES: usize = 12;

struct World {
    memory: Memory,
    driver: PhaseDriver,
    cells: Vec<u64>,
    /// Per cell: what went to the checkpoint, plus one.
    emitted: Vec<AtomicU64>,
    gsn: AtomicU64,
}

fn value(number: u32) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes.as_chunks_mut::<4>().0.fill(number.to_le_bytes());
    bytes
}

fn number(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty() && words.len() == 3, "half of a value");
    assert!(words.iter().all(|word| *word == words[0]), "half of a write: {words:?}");
    u32::from_le_bytes(words[0])
}

impl World {
    fn new(cells: usize) -> Arc<Self> {
        let driver = PhaseDriver::new(3, 2);
        let read_sections = driver.read_sections().clone();
        let memory =
            Memory::new(1 << 12, 1, &Arc::default(), read_sections).expect("a model's memory");
        let mut cache = CellCache::default();
        let cells: Vec<u64> = (0..cells)
            .map(|_| {
                let bytes = cell_bytes(KEY.len(), BYTES, 1);
                let cell = cache.allocate(&memory.arena, 1, Kind::Record, bytes).expect("room");
                let free = lock_word::free(KEY.len() as u64, 0);
                let stamp = Stamp::new(1, LOG_NONE);
                Cell::new(&memory, cell).initialise(KEY, 0, free, stamp);
                let record = Cell::new(&memory, cell).record();
                record.put_inline(0u8.into(), &value(0));
                record.end_write(stamp);
                cell
            })
            .collect();
        let emitted = cells.iter().map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { memory, driver, cells, emitted, gsn: AtomicU64::new(1) })
    }

    fn cell(&self, at: usize) -> Cell<'_> {
        Cell::new(&self.memory, self.cells[at])
    }

    fn emit(&self, at: usize, number: u32) {
        let before = self.emitted[at].swap(u64::from(number) + 1, Relaxed);
        assert_eq!(before, 0, "given twice");
    }

    /// Locks the cells. Returns false if another commit holds a cell's lock, since a wait would
    /// only lengthen the model.
    fn lock(&self, cells: &[usize]) -> bool {
        for (count, &at) in cells.iter().enumerate() {
            if lock_word::try_exclusive(self.cell(at).lock(), Priority::DECLARED).is_err() {
                let locked = &cells[..count];
                locked.iter().for_each(|&at| lock_word::release_exclusive(self.cell(at).lock()));
                return false;
            }
        }
        true
    }

    /// A commit that writes the cells, as `Transaction::commit` does. True if the commit is from before
    /// the point of consistency, `None` if it did not get its locks.
    fn commit(&self, slot: usize, cells: &[usize], writes: bool) -> Option<bool> {
        self.driver.enter(slot);
        if !self.lock(cells) {
            self.driver.exit(slot);
            return None;
        }
        let phase = self.driver.now();
        let is_before = phase.epoch() == 2;
        if writes {
            let claim = Claim::of_all(phase);
            for &at in cells {
                let lock = self.cell(at).lock();
                if phase.is_capturing()
                    && is_unmarked(lock, claim)
                    && claim_locked(lock, claim, true)
                {
                    let old = self.cell(at).value().expect("a value").to_vec();
                    self.emit(at, number(&old));
                }
            }
            let new: Vec<[u8; BYTES]> = cells
                .iter()
                .map(|&at| {
                    let old = self.cell(at).value().expect("a value").to_vec();
                    value(number(&old) + if is_before { 1 } else { 100 })
                })
                .collect();
            let stamp = Stamp::new(self.gsn.fetch_add(1, Relaxed) + 1, LOG_NONE);
            begin_writes(cells.iter().map(|&at| self.cell(at).record()));
            for (&at, new) in cells.iter().zip(&new) {
                self.cell(at).record().put_inline(0u8.into(), new);
                self.cell(at).record().end_write(stamp);
            }
        }
        let claimable = self.driver.now().phase() == Phase::Capture;
        cells.iter().for_each(|&at| release_exclusive(self.cell(at).lock(), claimable));
        self.driver.exit(slot);
        Some(is_before)
    }

    /// A checkpoint, as far as it meets the cells.
    fn checkpoint(&self) {
        for phase in [Phase::Prepare, Phase::Resolve, Phase::Capture] {
            self.driver.advance(phase);
        }
        let claim = Claim::of_all(self.driver.now());
        for at in 0..self.cells.len() {
            let mut walk = ScannedValue { copy: None };
            capture(self.cell(at), claim, false, &mut walk);
            if let Some(copy) = walk.copy {
                self.emit(at, number(&copy));
            }
        }
    }

    /// The checkpoint has exactly the commits from before.
    fn assert_captured(&self, at: usize, before: u32) {
        let emitted = self.emitted[at].load(Relaxed);
        assert_eq!(emitted, u64::from(before) + 1, "cell {at}");
        let word = self.cell(at).lock().load(Relaxed);
        assert_eq!(word & 0x1ff, 0, "no lock is left");
        assert_eq!(lock_word::status(word) & CAPTURED, CAPTURED, "the mark is lost");
    }
}

/// The values that the scan has copied and not taken back.
struct ScannedValue {
    copy: Option<Vec<u8>>,
}

impl Captured for ScannedValue {
    fn emit(&mut self, _: Cell<'_>, value: ValueRef<'_>) {
        self.copy = Some(value.to_vec());
    }
    fn emit_deletion(&mut self, _: Cell<'_>) {
        unreachable!("every checkpoint has every record");
    }
    fn take_back(&mut self) {
        self.copy = None;
    }
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

#[test]
fn one_worker_commits_twice_while_a_walk_passes() {
    explore(|| {
        let world = World::new(1);
        let (working, slot) = (world.clone(), world.driver.read_sections().claim().expect("room"));
        let worker = thread::spawn(move || {
            let first = working.commit(slot, &[0], true).expect("alone");
            let second = working.commit(slot, &[0], true).expect("alone");
            assert!(first || !second, "the epoch went back");
            u32::from(first) + u32::from(second)
        });
        world.checkpoint();
        let before = worker.join().expect("no panic");
        world.assert_captured(0, before);
    });
}

/// One of two workers writes both cells, so that it is wholly before or wholly after.
#[test]
fn two_workers_share_a_cell_while_a_walk_passes() {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let world = World::new(2);
        let workers = [&[0usize, 1][..], &[0][..]].map(|cells| {
            let (world, slot) =
                (world.clone(), world.driver.read_sections().claim().expect("room"));
            thread::spawn(move || world.commit(slot, cells, true) == Some(true))
        });
        world.checkpoint();
        let [both, one] = workers.map(|worker| u32::from(worker.join().expect("no panic")));
        world.assert_captured(0, both + one);
        world.assert_captured(1, both);
    });
}

/// A commit that locks a record exclusively and does not write it may give the lock back while the
/// scan claims the record.
#[test]
fn a_record_given_back_unchanged_stays_claimed() {
    explore(|| {
        let world = World::new(1);
        let (working, slot) = (world.clone(), world.driver.read_sections().claim().expect("room"));
        let worker = thread::spawn(move || {
            for _ in 0..2 {
                working.commit(slot, &[0], false).expect("alone");
            }
        });
        world.checkpoint();
        worker.join().expect("no panic");
        world.assert_captured(0, 0);
    });
}

/// A reader sees whole values. If a commit writes two records, a reader that sees the first new
/// value then sees the second new value too.
#[test]
fn a_read_without_a_lock_is_whole_and_never_goes_back() {
    explore(|| {
        let world = World::new(2);
        let (working, slot) = (world.clone(), world.driver.read_sections().claim().expect("room"));
        let worker = thread::spawn(move || {
            working.commit(slot, &[0, 1], true).expect("alone");
        });
        let mut least = 0;
        for at in [0, 1] {
            let mut out = Vec::new();
            let OptimisticRead::Value(_, stamp) = world.cell(at).read_optimistic(KEY, &mut out)
            else {
                panic!("the cell has a value");
            };
            let seen = number(&out);
            assert_eq!(u64::from(seen) + 1, stamp.gsn(), "the value of another commit");
            assert!(seen >= least, "half of a transaction");
            least = seen;
        }
        worker.join().expect("no panic");
    });
}

/// A relocation gives a large value another table, and changes no stamp. A reader without a lock finds the whole
/// value by either table.
#[test]
fn a_large_value_is_whole_while_its_table_moves() {
    explore(|| {
        let world = World::new(1);
        let mut cache = CellCache::default();
        let old = blob::allocate(&world.memory, &mut cache, 1, (BYTES, 0)).expect("room");
        blob::fill(&world.memory, old, 0, &value(7));
        begin_writes(std::iter::once(world.cell(0).record()));
        world.cell(0).record().put_large(0u8.into(), old);
        world.cell(0).record().end_write(Stamp::new(2, LOG_NONE));
        let moving = world.clone();
        let mover = thread::spawn(move || {
            let cell = moving.cell(0);
            assert!(lock_word::try_exclusive(cell.lock(), Priority::DECLARED).is_ok(), "alone");
            let (new, _) =
                blob::moved(&moving.memory, &mut cache, 1, (old, usize::MAX)).expect("room");
            cell.record().set_table(new.table);
            lock_word::release_exclusive(cell.lock());
        });
        let mut out = Vec::new();
        let OptimisticRead::Value(_, stamp) = world.cell(0).read_optimistic(KEY, &mut out) else {
            panic!("the cell has a value");
        };
        assert_eq!((number(&out), stamp.gsn()), (7, 2));
        mover.join().expect("no panic");
    });
}
