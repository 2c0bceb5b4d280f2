//! Models of the words and versions that readers look at, in every interleaving.
//!
//! One leaf with one record, whose value is a word. A writer changes the record under the latch and then
//! commits, or changes it back and aborts.

use std::sync::Arc;

use loom::thread;
use stillpoint_format::Stamp;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::lock_word::{self, Priority};
use stillpoint_sync::version_latch::{self as latch, Version};
use stillpoint_txn::{Discipline, Mode, TableId};

use crate::held::{Claims, HeldLocks};
use crate::locks::{LockTable, Name};
use crate::open::OpenChanges;

const PAGE: u64 = 70_000;
const BEFORE: Stamp = Stamp::new(3, 1);
const CHANGE: u64 = 7;
const END: Stamp = Stamp::new(9, 0);

struct Leaf {
    locks: LockTable,
    open: OpenChanges,
    key: Name,
    latch: AtomicU64,
    /// The first two versions. A load before the exchange would hide the loads of others from the model
    /// checker.
    versions: [Version; 2],
    gsn: AtomicU64,
    value: AtomicU64,
}

/// What of a protocol is left out. The model must then see a wrong value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    Word,
    Check,
    /// The fence of the check: the version is loaded as any word.
    Fence,
    OpenChanges,
    Claim,
    /// The word until the undo.
    Locks,
}

impl Leaf {
    fn new() -> Self {
        let locks = LockTable::new(1, 1);
        let key = locks.key(locks.hash(TableId(1), b"key"));
        locks.set_stamp(key, BEFORE);
        let [latch, gsn, value, other] = [0, 3, 0, 0].map(AtomicU64::new);
        let first = latch::await_version(&other);
        latch::exclusive(&other);
        latch::release_exclusive(&other);
        let versions = [first, latch::await_version(&other)];
        Self { locks, open: OpenChanges::new(), key, latch, versions, gsn, value }
    }

    /// Changes the value, unless the stretch is shared.
    fn change(&self, value: u64, first: Option<usize>, without: Without) -> bool {
        let mut held = HeldLocks::new();
        (held.priority, held.discipline) = (Priority::undeclared(2), Discipline::WaitDie);
        assert!(latch::try_upgrade(&self.latch, self.versions[0]), "alone");
        let mut claims = Claims { table: &self.locks, held: &mut held };
        let claimed = claims.claim(PAGE, None);
        let changes = claimed.is_ok() || without == Without::Claim;
        if changes {
            if first.is_some() {
                self.open.begin(first, CHANGE);
            }
            self.value.store(value, Relaxed);
            self.gsn.store(CHANGE, Relaxed);
        }
        drop(claimed);
        latch::release_exclusive(&self.latch);
        changes
    }

    /// An undo changes the value back, and claims nothing.
    fn undo(&self) {
        assert!(latch::try_upgrade(&self.latch, self.versions[1]), "alone");
        self.value.store(0, Relaxed);
        self.gsn.store(CHANGE + 1, Relaxed);
        latch::release_exclusive(&self.latch);
    }

    /// A transaction that changes the record.
    fn write(&self, commits: bool, without: Without) {
        let seat = self.open.sit();
        let word = self.locks.word(self.key);
        assert!(lock_word::try_exclusive(word, Priority::undeclared(2)).is_ok());
        if self.change(1, seat, without) {
            if without == Without::Locks {
                lock_word::release_exclusive(word);
            }
            if !commits {
                self.undo();
            }
            if without == Without::Locks {
                return self.open.end(seat, Some(END));
            }
            self.open.end(seat, Some(END));
            self.locks.set_stamp(self.key, END);
        }
        lock_word::release_exclusive(word);
    }

    fn is_still(&self, version: Version, without: Without) -> bool {
        match without {
            Without::Check => true,
            Without::Fence => latch::read(&self.latch) == Some(version),
            _ => latch::is_still(&self.latch, version),
        }
    }

    /// As `Paged::read_unlocked`: value and stamp, if the first attempt succeeds.
    fn read(&self, without: Without) -> Option<(u64, Stamp)> {
        let version = latch::read(&self.latch)?;
        let stamp = match without {
            Without::Word => Some(BEFORE),
            _ => self.locks.stamp_if_free(self.key),
        }?;
        let value = self.value.load(Relaxed);
        self.is_still(version, without).then_some((value, stamp))
    }

    /// As `Part::range`: the value, if the first attempt succeeds. The stretch stays shared then.
    fn range(&self, held: &mut HeldLocks, without: Without) -> Option<u64> {
        let version = latch::read(&self.latch)?;
        let gsn = self.gsn.load(Relaxed);
        if !latch::is_still(&self.latch, version) {
            return None;
        }
        let name = self.locks.stretch(PAGE);
        held.take(&self.locks, name, Mode::Read, &|| false).ok()?;
        let value = self.value.load(Relaxed);
        let is_free = without == Without::OpenChanges
            || !self.open.has_older_than(gsn, None)
            || self.locks.exclusive_holder(self.key).is_none();
        (is_free && self.is_still(version, without)).then_some(value)
    }
}

fn read_beside_a_writer(commits: bool, without: Without) {
    loom::model(move || {
        let leaf = Arc::new(Leaf::new());
        let writer = thread::spawn({
            let leaf = leaf.clone();
            move || leaf.write(commits, without)
        });
        if let Some((value, stamp)) = leaf.read(without) {
            match (commits, value) {
                (_, 0) => {}
                (true, 1) => assert_eq!(stamp, END, "the reader depends on the commit"),
                _ => panic!("a value that was not committed"),
            }
        }
        writer.join().expect("no panic");
    });
}

fn range_beside_a_writer(commits: bool, without: Without) {
    loom::model(move || {
        let leaf = Arc::new(Leaf::new());
        let writer = thread::spawn({
            let leaf = leaf.clone();
            move || leaf.write(commits, without)
        });
        let mut held = HeldLocks::new();
        (held.priority, held.discipline) = (Priority::undeclared(1), Discipline::Remembered);
        if let Some(value) = leaf.range(&mut held, without) {
            assert!(commits || value == 0, "a value that was not committed");
            if value == 1 {
                let mut ends = Vec::new();
                leaf.open.ends(&mut ends);
                assert_eq!(ends, [END], "the reader depends on the commit");
            }
            if let Some(again) = leaf.range(&mut held, without) {
                assert_eq!(again, value, "a range that was read has changed");
            }
        }
        held.release(&leaf.locks, None);
        writer.join().expect("no panic");
    });
}

#[test]
fn an_unlocked_read_sees_committed_values() {
    read_beside_a_writer(true, Without::Nothing);
    read_beside_a_writer(false, Without::Nothing);
}

#[test]
#[should_panic(expected = "not committed")]
fn an_unlocked_read_needs_the_word() {
    read_beside_a_writer(false, Without::Word);
}

#[test]
#[should_panic(expected = "not committed")]
fn an_unlocked_read_needs_the_check() {
    read_beside_a_writer(false, Without::Check);
}

#[test]
#[should_panic(expected = "not committed")]
fn an_unlocked_read_needs_the_fence_of_the_check() {
    read_beside_a_writer(false, Without::Fence);
}

#[test]
#[should_panic(expected = "not committed")]
fn an_abort_needs_its_locks_until_it_has_undone() {
    read_beside_a_writer(false, Without::Locks);
}

#[test]
fn a_range_sees_committed_values_that_stay() {
    range_beside_a_writer(true, Without::Nothing);
    range_beside_a_writer(false, Without::Nothing);
}

#[test]
#[should_panic(expected = "not committed")]
fn a_range_needs_the_check() {
    range_beside_a_writer(false, Without::Check);
}

#[test]
#[should_panic(expected = "not committed")]
fn a_range_needs_the_open_changes() {
    range_beside_a_writer(false, Without::OpenChanges);
}

#[test]
#[should_panic(expected = "has changed")]
fn a_range_needs_the_claims_of_writers() {
    range_beside_a_writer(true, Without::Claim);
}
