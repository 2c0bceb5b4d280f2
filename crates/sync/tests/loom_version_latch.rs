//! Models of the version latch, in every interleaving. An optimistic reader never accepts words of
//! two states. Exclusive holders are alone, and sharers keep them away.
//!
//! The model checker compares an access with the last one before it, whoever made that. So a thread that
//! loads a word before it changes the word hides the loads of others. Writers here therefore take the
//! latch by a known version, and store without a load.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;
use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};
use stillpoint_sync::version_latch as latch;

/// A latch, two words that are always equal, and a value that the model checker watches.
struct Latched {
    word: AtomicU64,
    pair: [AtomicU64; 2],
    value: UnsafeCell<u64>,
}

impl Latched {
    fn new() -> Arc<Self> {
        let pair = [AtomicU64::new(0), AtomicU64::new(0)];
        Arc::new(Self { word: AtomicU64::new(0), pair, value: UnsafeCell::new(0) })
    }

    /// Gives everything this value. The caller holds the latch exclusively.
    fn set(&self, to: u64) {
        for word in &self.pair {
            word.store(to, Relaxed);
        }
        // SAFETY: the model checker detects and reports a violation.
        self.value.with_mut(|value| unsafe { *value = to });
    }

    fn value(&self) -> u64 {
        // SAFETY: as above.
        self.value.with(|value| unsafe { *value })
    }

    /// Both words, if a reader without the latch may use them.
    fn read(&self) -> Option<[u64; 2]> {
        let version = latch::read(&self.word)?;
        let seen = [self.pair[0].load(Relaxed), self.pair[1].load(Relaxed)];
        latch::is_still(&self.word, version).then_some(seen)
    }

    /// As [`read`](Self::read), but the check has no Acquire fence. Nobody shares the latch.
    fn read_without_fence(&self) -> Option<[u64; 2]> {
        let before = self.word.load(Acquire);
        if before & 1 != 0 {
            return None;
        }
        let seen = [self.pair[0].load(Relaxed), self.pair[1].load(Relaxed)];
        (self.word.load(Relaxed) == before).then_some(seen)
    }
}

fn reader_beside_a_writer(read: fn(&Latched) -> Option<[u64; 2]>) {
    loom::model(move || {
        let latched = Latched::new();
        let writing = latched.clone();
        let version = latch::read(&latched.word).expect("nobody writes yet");
        let writer = thread::spawn(move || {
            assert!(latch::try_upgrade(&writing.word, version), "alone");
            writing.set(1);
            latch::release_exclusive(&writing.word);
            latch::exclusive(&writing.word);
            writing.set(2);
            latch::release_exclusive(&writing.word);
        });
        if let Some([first, second]) = read(&latched) {
            assert_eq!(first, second, "two states");
        }
        writer.join().unwrap();
        assert_eq!(latched.read(), Some([2, 2]), "the last state is seen");
    });
}

#[test]
fn a_reader_accepts_one_state_only() {
    reader_beside_a_writer(Latched::read);
}

#[test]
#[should_panic(expected = "two states")]
fn a_reader_needs_the_fence() {
    reader_beside_a_writer(Latched::read_without_fence);
}

/// A reader that has seen a later state never goes back to an earlier one.
#[test]
fn a_reader_sees_what_the_version_says() {
    loom::model(|| {
        let latched = Latched::new();
        let writing = latched.clone();
        let version = latch::read(&latched.word).expect("nobody writes yet");
        let writer = thread::spawn(move || {
            assert!(latch::try_upgrade(&writing.word, version), "alone");
            writing.set(1);
            latch::release_exclusive(&writing.word);
        });
        let first = latched.read();
        let second = latched.read();
        if let (Some(first), Some(second)) = (first, second) {
            assert!(first <= second, "back from {first:?} to {second:?}");
        }
        writer.join().unwrap();
    });
}

/// Two readers want to write on the ground of what they have read. One version admits one of them.
#[test]
fn one_of_two_upgrades_of_a_version() {
    loom::model(|| {
        let latched = Latched::new();
        let work = |latched: &Latched| {
            let Some(version) = latch::read(&latched.word) else { return 0 };
            let seen = latched.pair[0].load(Relaxed);
            if !latch::try_upgrade(&latched.word, version) {
                return 0;
            }
            assert_eq!(latched.value(), seen, "the version admits who has read its state");
            latched.set(seen + 1);
            latch::release_exclusive(&latched.word);
            1
        };
        let other = latched.clone();
        let thread = thread::spawn(move || work(&other));
        let done = work(&latched) + thread.join().unwrap();
        assert!(done >= 1, "whoever comes alone gets the latch");
        assert_eq!(latched.value(), done);
    });
}

/// Sharers see one state without a check, and a version outlives their shares.
#[test]
fn sharers_keep_writers_away_and_not_readers() {
    loom::model(|| {
        let latched = Latched::new();
        let sharer = {
            let latched = latched.clone();
            thread::spawn(move || {
                if latch::try_shared(&latched.word) {
                    let seen = latched.pair[1].load(Relaxed);
                    assert_eq!(seen, latched.value());
                    assert_eq!(seen, latched.pair[0].load(Relaxed));
                    latch::release_shared(&latched.word);
                }
            })
        };
        let version = latch::read(&latched.word).expect("nobody writes yet");
        assert!(latch::is_still(&latched.word, version), "a share is no new version");
        if latch::try_upgrade(&latched.word, version) {
            latched.set(1);
            latch::release_exclusive(&latched.word);
            assert!(!latch::is_still(&latched.word, version));
        }
        sharer.join().unwrap();
        assert!(latch::try_exclusive(&latched.word), "nobody is left");
    });
}
