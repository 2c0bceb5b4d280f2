//! A latch with a version, in one 64-bit word, for optimistic readers.
//!
//! ```text
//!  63              17 16          1 0
//! ┌──────────────────┬─────────────┬───────┐
//! │ version 47       │ shares 16   │ excl. │
//! └──────────────────┴─────────────┴───────┘
//! ```
//!
//! After Leis, Haubenschild, Neumann: *Optimistic Lock Coupling* (2019).
//!
//! - *Optimistic readers* write nothing. A reader takes the [version](read), reads the protected
//!   words, and asks whether the version [is still](is_still) the same. Only then may the reader use
//!   what it has read.
//! - *The exclusive holder* changes the protected words. Its release makes a new version.
//! - *Sharers* keep exclusive holders away and change nothing that a version protects. So optimistic
//!   readers do not notice sharers.
//!
//! The protected words are atomics, accessed Relaxed. Latches are held for a few hundred instructions
//! and never while their holder waits for anything but a further latch. A version repeats after 2⁴⁷
//! exclusive holders. No reader sleeps through so many.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::wait::Backoff;

const EXCLUSIVE: u64 = 1;
const SHARE: u64 = 1 << 1;
const VERSION_ONE: u64 = 1 << 17;
const VERSION_MASK: u64 = !(VERSION_ONE - 1);
const SHARES_MASK: u64 = !VERSION_MASK & !EXCLUSIVE;

/// The version of a latch that nobody held exclusively when the version was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(u64);

/// The version. `None` while somebody holds the latch exclusively.
#[inline]
pub fn read(word: &AtomicU64) -> Option<Version> {
    // Acquire: partner of the Release in `release_exclusive`. The reads that follow see what the
    // holder before has written.
    let seen = word.load(Ordering::Acquire);
    (seen & EXCLUSIVE == 0).then_some(Version(seen & VERSION_MASK))
}

/// The version, once nobody holds the latch exclusively.
#[inline]
pub fn await_version(word: &AtomicU64) -> Version {
    let mut backoff = Backoff::new();
    loop {
        match read(word) {
            Some(version) => return version,
            None => backoff.wait(),
        }
    }
}

/// Whether nobody has held the latch exclusively since the version was read. If so, the words read in
/// between are of one state.
#[inline]
pub fn is_still(word: &AtomicU64, version: Version) -> bool {
    // Acquire: partner of the Release fence in `begin_writes`. A reader that has seen one word of a
    // later holder sees the latch taken, too.
    fence(Ordering::Acquire);
    // Relaxed: ordered by the fence.
    word.load(Ordering::Relaxed) & !SHARES_MASK == version.0
}

/// Takes the latch exclusively if the version is still the same and nobody shares the latch.
#[inline]
#[must_use]
pub fn try_upgrade(word: &AtomicU64, version: Version) -> bool {
    // Acquire: as in `try_exclusive`. Relaxed failure: nothing is read then.
    let taken = word.compare_exchange(
        version.0,
        version.0 | EXCLUSIVE,
        Ordering::Acquire,
        Ordering::Relaxed,
    );
    if taken.is_ok() {
        begin_writes();
    }
    taken.is_ok()
}

/// Takes the latch exclusively if nobody holds or shares it.
#[must_use]
pub fn try_exclusive(word: &AtomicU64) -> bool {
    // Relaxed: a first guess, which the exchange checks.
    let seen = word.load(Ordering::Relaxed);
    if seen & (EXCLUSIVE | SHARES_MASK) != 0 {
        return false;
    }
    // Acquire: partner of the Releases in `release_exclusive` and `release_shared`. Relaxed failure:
    // nothing is read then.
    let taken = word.compare_exchange(seen, seen | EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed);
    if taken.is_ok() {
        begin_writes();
    }
    taken.is_ok()
}

/// Waits until nobody holds or shares the latch, and takes it exclusively.
pub fn exclusive(word: &AtomicU64) {
    let mut backoff = Backoff::new();
    while !try_exclusive(word) {
        backoff.wait();
    }
}

/// Orders the taking of a latch before the writes of its holder.
#[inline]
fn begin_writes() {
    // Release: partner of the Acquire fence in `is_still`.
    fence(Ordering::Release);
}

/// Releases the exclusive latch, with a new version.
#[inline]
pub fn release_exclusive(word: &AtomicU64) {
    // Relaxed load: the holder alone changes the word.
    let seen = word.load(Ordering::Relaxed);
    debug_assert!(seen & EXCLUSIVE != 0, "released a latch that was not held");
    // Release: partner of the Acquires in `read`, `try_upgrade`, `try_exclusive` and `try_shared`.
    word.store((seen & !EXCLUSIVE).wrapping_add(VERSION_ONE), Ordering::Release);
}

/// Releases the exclusive latch of a holder that has changed nothing, with the old version. So the holder
/// does not disturb optimistic readers.
#[inline]
pub fn release_unchanged(word: &AtomicU64) {
    // Relaxed load: the holder alone changes the word.
    let seen = word.load(Ordering::Relaxed);
    debug_assert!(seen & EXCLUSIVE != 0, "released a latch that was not held");
    // Release: as in `release_exclusive`.
    word.store(seen & !EXCLUSIVE, Ordering::Release);
}

/// Takes a share of the latch if nobody holds it exclusively and fewer than 65,535 share it.
#[must_use]
pub fn try_shared(word: &AtomicU64) -> bool {
    // Relaxed: a first guess, which the exchange checks.
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        if seen & EXCLUSIVE != 0 || seen & SHARES_MASK == SHARES_MASK {
            return false;
        }
        // Acquire: partner of the Release in `release_exclusive`. Relaxed failure: the loop looks
        // again.
        match word.compare_exchange_weak(seen, seen + SHARE, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
}

/// Waits until nobody holds the latch exclusively, and takes a share.
pub fn shared(word: &AtomicU64) {
    let mut backoff = Backoff::new();
    while !try_shared(word) {
        backoff.wait();
    }
}

/// Releases one share.
#[inline]
pub fn release_shared(word: &AtomicU64) {
    // Release: partner of the Acquires in `try_exclusive` and `try_upgrade`.
    let before = word.fetch_sub(SHARE, Ordering::Release);
    debug_assert!(before & SHARES_MASK != 0, "released a share that was not held");
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn holders_exclude_each_other_and_make_versions() {
        let word = AtomicU64::new(0);
        let first = read(&word).expect("free");
        assert!(is_still(&word, first) && try_shared(&word) && try_shared(&word));
        assert!(is_still(&word, first), "readers do not notice shares");
        assert_eq!(read(&word), Some(first));
        assert!(!try_exclusive(&word) && !try_upgrade(&word, first));
        release_shared(&word);
        release_shared(&word);
        assert!(try_upgrade(&word, first));
        assert!(read(&word).is_none() && !is_still(&word, first));
        assert!(!try_exclusive(&word) && !try_shared(&word) && !try_upgrade(&word, first));
        release_exclusive(&word);
        assert!(try_exclusive(&word) && read(&word).is_none());
        let second = {
            release_unchanged(&word);
            await_version(&word)
        };
        assert!(try_exclusive(&word));
        release_unchanged(&word);
        assert!(is_still(&word, second), "nothing was changed");
        assert!(second != first && !is_still(&word, first) && !try_upgrade(&word, first));
        exclusive(&word);
        release_exclusive(&word);
        shared(&word);
        release_shared(&word);
        assert!(read(&word).is_some_and(|third| third != second));
    }

    #[test]
    fn the_last_version_is_followed_by_the_first() {
        let word = AtomicU64::new(VERSION_MASK);
        exclusive(&word);
        release_exclusive(&word);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }
}
