//! The phases of a checkpoint in miniature, in every interleaving: the protocol of the store's
//! commit and capture, with windows, lock word and marks as they are, and one or two records.
//!
//! Each commit adds one to its record, word by word; a commit from after the point of consistency
//! adds a hundred instead. Whatever goes to the checkpoint must then be below a hundred, whole, hold
//! every commit from before, and go there once.
#![cfg(loom)]

use loom::thread;
use std::sync::Arc;
use stillpoint_sync::Windows;
use stillpoint_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use stillpoint_sync::lock_word::{self, Priority};

const REST: u64 = 0;
const RESOLVE: u64 = 2;
const CAPTURE: u64 = 3;
/// Parity of the new epoch. The records start with that of the old one.
const MARK: u8 = 1;

struct Record {
    lock: AtomicU64,
    /// Equal, but for whoever reads without the lock.
    words: [AtomicU32; 2],
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
        let record = || Record {
            lock: AtomicU64::new(lock_word::free(0, 0)),
            words: [AtomicU32::new(0), AtomicU32::new(0)],
        };
        Arc::new(Self {
            windows: Windows::new(3),
            phase: AtomicU64::new(REST),
            records: [record(), record()],
            emitted: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    fn is_marked(&self, at: usize, order: Ordering) -> bool {
        lock_word::status(self.records[at].lock.load(order)) & MARK != 0
    }

    fn claim(&self, at: usize) -> bool {
        lock_word::claim(&self.records[at].lock, MARK, MARK)
    }

    fn copy(&self, at: usize) -> [u32; 2] {
        self.records[at].words.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    fn emit(&self, at: usize, [first, second]: [u32; 2]) {
        assert_eq!(first, second, "half of a write");
        let before = self.emitted[at].swap(u64::from(first) + 1, Ordering::Relaxed);
        assert_eq!(before, 0, "given twice");
    }

    /// Gives a locked record to the checkpoint unless it has it.
    fn hand_out(&self, at: usize) {
        if self.claim(at) {
            self.emit(at, self.copy(at));
        }
    }

    /// The same for one that is not locked: the copy counts if the claim comes after it.
    fn capture(&self, at: usize) {
        if self.is_marked(at, Ordering::Relaxed) {
            return;
        }
        let copy = self.copy(at);
        if self.claim(at) {
            self.emit(at, copy);
        }
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
            let marked = self.is_marked(at, Ordering::Acquire);
            if !is_before && !marked {
                self.hand_out(at);
            }
            assert!(!is_before || !marked, "captured before its last commit");
            let add = if is_before { 1 } else { 100 };
            for word in &self.records[at].words {
                // One access: behind a load of its own, loom does not try the store earlier.
                word.fetch_add(add, Ordering::Relaxed);
            }
        }
        self.release(records);
        self.windows.exit(slot);
        Some(is_before)
    }

    /// As the store does: without an exchange while no walk can claim. Inside a window.
    fn release(&self, records: &[usize]) {
        let claimable = self.phase.load(Ordering::Acquire) == CAPTURE;
        for &at in records {
            match claimable {
                true => lock_word::release_exclusive(&self.records[at].lock),
                false => lock_word::release_exclusive_unclaimable(&self.records[at].lock),
            }
        }
    }

    fn checkpoint(&self, records: &[usize]) {
        for phase in [RESOLVE, CAPTURE] {
            self.phase.store(phase, Ordering::SeqCst);
            self.windows.wait_grace();
        }
        for &at in records {
            self.capture(at);
        }
    }

    /// The checkpoint has exactly the commits from before.
    fn assert_captured(&self, at: usize, before: u32) {
        let emitted = self.emitted[at].load(Ordering::Relaxed);
        assert_eq!(emitted, u64::from(before) + 1, "record {at}");
        let word = self.records[at].lock.load(Ordering::Relaxed);
        assert_eq!(word & 0x1ff, 0, "no lock is left");
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

/// Who locks a record and does not change it, may give it back while the walk claims it.
#[test]
fn a_record_given_back_unchanged_stays_claimed() {
    loom::model(|| {
        let world = World::new();
        let working = world.clone();
        let slot = world.windows.claim().expect("room");
        let worker = thread::spawn(move || {
            for _ in 0..2 {
                let lock = &working.records[0].lock;
                lock_word::try_exclusive(lock, Priority::DECLARED).expect("alone");
                working.windows.enter(slot);
                working.release(&[0]);
                working.windows.exit(slot);
            }
        });
        world.checkpoint(&[0]);
        worker.join().unwrap();
        world.assert_captured(0, 0);
    });
}
