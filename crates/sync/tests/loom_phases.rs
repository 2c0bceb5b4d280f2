//! The phases of a checkpoint in miniature, in every interleaving: the protocol of the store's
//! commit and capture, with windows, lock word and marks as they are, and one or two records.
//!
//! Each commit adds one to its record; a commit from after the point of consistency adds a hundred
//! instead. Whatever goes to the checkpoint must then be below a hundred, hold every commit from
//! before, and go there once.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;
use stillpoint_sync::Windows;
use stillpoint_sync::atomic::{AtomicU64, Ordering};
use stillpoint_sync::lock_word::{self, Priority};

const REST: u64 = 0;
const RESOLVE: u64 = 2;
const CAPTURE: u64 = 3;
/// Parity of the new epoch. The records start with that of the old one.
const MARK: u8 = 1;

struct Record {
    lock: AtomicU64,
    value: UnsafeCell<u32>,
}

struct World {
    windows: Windows,
    phase: AtomicU64,
    records: [Record; 2],
    /// Per record: what went to the checkpoint, plus one.
    emitted: [AtomicU64; 2],
}

impl World {
    fn new() -> Arc<Self> {
        let record =
            || Record { lock: AtomicU64::new(lock_word::free(0, 0)), value: UnsafeCell::new(0) };
        Arc::new(Self {
            windows: Windows::new(3),
            phase: AtomicU64::new(REST),
            records: [record(), record()],
            emitted: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    fn value(&self, at: usize) -> u32 {
        // SAFETY: a violation is what the model checker looks for, and reports.
        self.records[at].value.with(|value| unsafe { *value })
    }

    /// Gives a record to the checkpoint unless it has it, under the latch.
    fn hand_out(&self, at: usize) {
        let lock = &self.records[at].lock;
        let status = lock_word::status(lock_word::latch(lock));
        if status & MARK == 0 {
            let value = self.value(at);
            let before = self.emitted[at].swap(u64::from(value) + 1, Ordering::Relaxed);
            assert_eq!(before, 0, "given twice");
        }
        lock_word::unlatch(lock, MARK);
    }

    /// A commit that writes the records: true if it was one from before the point of consistency.
    /// `None` if another has one of them: waiting would only lengthen the model.
    fn commit(&self, slot: usize, records: &[usize]) -> Option<bool> {
        for (at, &record) in records.iter().enumerate() {
            let lock = &self.records[record].lock;
            if lock_word::try_exclusive(lock, Priority::DECLARED).is_err() {
                for &held in &records[..at] {
                    lock_word::release_exclusive(&self.records[held].lock);
                }
                return None;
            }
        }
        self.windows.enter(slot);
        let phase = self.phase.load(Ordering::Acquire);
        let is_before = phase == REST;
        for &at in records {
            let lock = &self.records[at].lock;
            let marked = lock_word::status(lock.load(Ordering::Acquire)) & MARK != 0;
            if !is_before && !marked {
                self.hand_out(at);
            }
            assert!(!is_before || !marked, "captured before its last commit");
            let add = if is_before { 1 } else { 100 };
            // SAFETY: as in `value`.
            self.records[at].value.with_mut(|value| unsafe { *value += add });
        }
        // As the store does: without an exchange while no capture can run.
        let latchable = self.phase.load(Ordering::Acquire) != REST;
        for &at in records {
            match latchable {
                true => lock_word::release_exclusive(&self.records[at].lock),
                false => lock_word::release_exclusive_unlatched(&self.records[at].lock),
            }
        }
        self.windows.exit(slot);
        Some(is_before)
    }

    fn checkpoint(&self, records: &[usize]) {
        for phase in [RESOLVE, CAPTURE] {
            self.phase.store(phase, Ordering::SeqCst);
            self.windows.wait_grace();
        }
        for &at in records {
            self.hand_out(at);
        }
    }

    /// The checkpoint has exactly the commits from before.
    fn assert_captured(&self, at: usize, before: u32) {
        let emitted = self.emitted[at].load(Ordering::Relaxed);
        assert_eq!(emitted, u64::from(before) + 1, "record {at}");
        let word = self.records[at].lock.load(Ordering::Relaxed);
        assert_eq!(word & 0x3ff, 0, "no lock and no latch is left");
        assert_eq!(lock_word::status(word), MARK);
    }
}

/// One worker commits twice while a checkpoint is taken.
#[test]
fn one_worker_two_commits() {
    loom::model(|| {
        let world = World::new();
        let working = world.clone();
        let slot = world.windows.claim().expect("room");
        let worker = thread::spawn(move || {
            let first = working.commit(slot, &[0]).expect("alone");
            let second = working.commit(slot, &[0]).expect("alone");
            assert!(first || !second, "the epoch went back");
            u32::from(first) + u32::from(second)
        });
        world.checkpoint(&[0]);
        let before = worker.join().unwrap();
        world.assert_captured(0, before);
    });
}

/// Two workers share a record; one of them writes another in the same transaction, so that one is
/// wholly before or wholly after.
#[test]
fn two_workers_and_a_shared_record() {
    let mut model = loom::model::Builder::new();
    model.max_branches = 10_000;
    model.check(|| {
        let world = World::new();
        let workers = [&[0usize, 1][..], &[0][..]].map(|records| {
            let world = world.clone();
            let slot = world.windows.claim().expect("room");
            thread::spawn(move || world.commit(slot, records))
        });
        world.checkpoint(&[0, 1]);
        let [both, one] = workers.map(|worker| {
            let was_before = worker.join().unwrap();
            u32::from(was_before == Some(true))
        });
        world.assert_captured(0, both + one);
        world.assert_captured(1, both);
    });
}
