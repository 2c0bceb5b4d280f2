//! Models of the lock word, in every interleaving. An exclusive holder is alone with the protected
//! value. One claim wins, and writes of others come after it. No release is lost.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;
use stillpoint_sync::atomic::{AtomicU64, Ordering};
use stillpoint_sync::lock_word::{self, Contended, Priority};

const MARK: u8 = 1;

/// A word and its protected value. The model checker detects unprotected accesses of the value.
struct Guarded {
    word: AtomicU64,
    value: UnsafeCell<u32>,
}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Self { word: AtomicU64::new(lock_word::free(5, 0)), value: UnsafeCell::new(0) })
    }

    fn get(&self) -> u32 {
        // SAFETY: the model checker detects and reports a violation.
        self.value.with(|value| unsafe { *value })
    }

    fn add(&self, count: u32) {
        // SAFETY: as above.
        self.value.with_mut(|value| unsafe { *value += count });
    }

    /// Checks that the word is free, with an unchanged user field and with `status`.
    fn assert_free(&self, status: u8) {
        let word = self.word.load(Ordering::Relaxed);
        assert_eq!(lock_word::user(word), 5);
        assert_eq!(lock_word::status(word), status);
        assert_eq!(lock_word::try_exclusive(&self.word, Priority::DECLARED), Ok(()));
    }
}

/// Both threads write under the exclusive lock, and release it with or without an exchange. The
/// plain store of one must not undo a concurrent change of the word by the other.
#[test]
fn exclusive_holders_exclude_each_other() {
    for plain in [false, true] {
        loom::model(move || {
            let guarded = Guarded::new();
            let work = move |guarded: &Guarded, priority: u64| {
                let taken = lock_word::try_exclusive(&guarded.word, Priority::undeclared(priority));
                if taken.is_ok() {
                    guarded.add(1);
                    if plain {
                        lock_word::release_exclusive_unclaimable(&guarded.word);
                    } else {
                        lock_word::release_exclusive(&guarded.word);
                    }
                }
                u32::from(taken.is_ok())
            };
            let other = guarded.clone();
            let thread = thread::spawn(move || work(&other, 1) + work(&other, 1));
            let taken = work(&guarded, 2) + work(&guarded, 2) + thread.join().unwrap();
            guarded.assert_free(0);
            assert_eq!(guarded.get(), taken);
            assert!(taken >= 2, "whoever comes alone gets the lock");
        });
    }
}

/// A writer releases by a plain store, beside readers that come and go.
#[test]
fn sharers_exclude_the_writer_and_not_each_other() {
    loom::model(|| {
        let guarded = Guarded::new();
        let readers: Vec<_> = [Priority::undeclared(7), Priority::DECLARED]
            .map(|priority| {
                let guarded = guarded.clone();
                thread::spawn(move || {
                    let taken = lock_word::try_shared(&guarded.word, priority);
                    if taken.is_ok() {
                        assert!(guarded.get() <= 1);
                        lock_word::release_shared(&guarded.word);
                    }
                })
            })
            .into();
        if lock_word::try_exclusive(&guarded.word, Priority::undeclared(3)).is_ok() {
            guarded.add(1);
            lock_word::release_exclusive_unclaimable(&guarded.word);
        }
        for reader in readers {
            reader.join().unwrap();
        }
        guarded.assert_free(0);
    });
}

/// Sharers come and go, one of them declared, and a writer announces its wait. The flag admits the
/// writer sooner, admits nobody whom the lock excludes, and keeps nobody out for good.
#[test]
fn who_awaits_the_sharers_changes_nothing_else() {
    loom::model(|| {
        let guarded = Guarded::new();
        let reader = |priority: Priority| {
            let guarded = guarded.clone();
            thread::spawn(move || {
                if lock_word::try_shared(&guarded.word, priority).is_ok() {
                    guarded.get();
                    lock_word::release_shared(&guarded.word);
                }
            })
        };
        let readers = [reader(Priority::undeclared(1)), reader(Priority::DECLARED)];
        let mine = Priority::undeclared(3);
        for _ in 0..2 {
            if lock_word::try_exclusive(&guarded.word, mine).is_ok() {
                guarded.add(1);
                lock_word::release_exclusive_unclaimable(&guarded.word);
                break;
            }
            lock_word::await_sharers(&guarded.word, mine);
        }
        for reader in readers {
            reader.join().unwrap();
        }
        let late = Priority::undeclared(9);
        let first = lock_word::try_shared(&guarded.word, late);
        let second = first.or_else(|_| lock_word::try_shared(&guarded.word, late));
        assert_eq!(second, Ok(()), "a stale flag costs one refusal");
        lock_word::release_shared(&guarded.word);
        guarded.assert_free(0);
    });
}

/// Two sharers both want the exclusive lock. At most one gets it. Under wait-die one of them gives
/// way, so they never wait for each other for ever.
#[test]
fn one_of_two_upgrades() {
    loom::model(|| {
        let guarded = Guarded::new();
        let work = |guarded: &Guarded, age: u64| {
            let priority = Priority::undeclared(age);
            if lock_word::try_shared(&guarded.word, priority).is_err() {
                return (0, false);
            }
            guarded.get();
            match lock_word::try_upgrade(&guarded.word, priority) {
                Ok(()) => {
                    guarded.add(1);
                    lock_word::release_exclusive(&guarded.word);
                    (1, false)
                }
                Err(Contended(by)) => {
                    let waits = priority.may_wait_for(by);
                    lock_word::release_shared(&guarded.word);
                    (0, waits)
                }
            }
        };
        let other = guarded.clone();
        let thread = thread::spawn(move || work(&other, 2));
        let (mine, i_wait) = work(&guarded, 1);
        let (others, other_waits) = thread.join().unwrap();
        guarded.assert_free(0);
        assert_eq!(guarded.get(), mine + others);
        assert!(!(i_wait && other_waits), "both would wait");
    });
}

/// The loser of a claim may overwrite the value that the winner has read before. Only the claim
/// orders the two.
#[test]
fn who_loses_a_claim_comes_after_what_the_winner_has_read() {
    for glances in [false, true] {
        loom::model(move || {
            let guarded = Guarded::new();
            let reading = guarded.clone();
            let capture = thread::spawn(move || {
                assert_eq!(reading.get(), 0, "the new value");
                lock_word::claim(&reading.word, MARK, MARK)
            });
            lock_word::try_exclusive(&guarded.word, Priority::DECLARED).expect("alone");
            // A commit loads the status with Acquire first.
            let is_marked = |word: u64| lock_word::status(word) & MARK != 0;
            let lost = glances && is_marked(guarded.word.load(Ordering::Acquire))
                || !lock_word::claim(&guarded.word, MARK, MARK);
            if lost {
                guarded.add(1);
            }
            lock_word::release_exclusive(&guarded.word);
            assert_eq!(capture.join().unwrap(), lost, "one of two claims");
            guarded.assert_free(MARK);
        });
    }
}

/// Sharers come and go while the word is claimed. Neither change is lost.
#[test]
fn a_claim_disturbs_no_lock() {
    loom::model(|| {
        let guarded = Guarded::new();
        let sharing = guarded.clone();
        let sharer = thread::spawn(move || {
            if lock_word::try_shared(&sharing.word, Priority::DECLARED).is_ok() {
                sharing.get();
                lock_word::release_shared(&sharing.word);
            }
        });
        let claiming = guarded.clone();
        let claimer = thread::spawn(move || lock_word::claim(&claiming.word, MARK, MARK));
        if lock_word::try_exclusive(&guarded.word, Priority::DECLARED).is_ok() {
            guarded.add(1);
            lock_word::release_exclusive(&guarded.word);
        }
        sharer.join().unwrap();
        assert!(claimer.join().unwrap());
        guarded.assert_free(MARK);
    });
}
