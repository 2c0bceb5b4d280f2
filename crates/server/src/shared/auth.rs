//! Passwords: kept as digests, compared in constant time; a wrong one is answered late.
//!
//! A right password is admitted at once, whatever came before it from the same address: others
//! share the address, behind a gateway or in a pod, and nobody is locked out. The price: a guesser
//! with many connections need not wait for the late answers, since silence says that a guess was
//! wrong. The delay slows down clients that are misconfigured, not guessers; against these only a
//! long random password helps, as docs/server.md says.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// How late the first wrong password of an address is answered; each further one doubles it.
const FIRST_DELAY_MS: u64 = 100;
/// The longest delay: below the time for which clients usually wait for a reply.
const LONGEST_DELAY_MS: u64 = 3000;
/// An address that has failed no more for so long begins anew.
const FORGOTTEN_AFTER_MS: u64 = 600_000;
/// Addresses remembered; beyond, the one whose last failure is the oldest is forgotten.
const ADDRESSES_MAX: usize = 10_000;

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The password is right.
    Accepted,
    /// It is wrong, which is to be answered after so many milliseconds.
    Refused { delay_ms: u64 },
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last_ms: u64,
}

/// The password of the default user.
#[derive(Debug, Default)]
pub(crate) struct Auth {
    is_required: AtomicBool,
    digest: Mutex<Option<[u8; 32]>>,
    failures: Mutex<HashMap<IpAddr, Failures>>,
}

fn digest(password: &[u8]) -> [u8; 32] {
    Sha256::digest(password).into()
}

/// Equality without an early exit.
fn equal(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let difference = a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y));
    std::hint::black_box(difference) == 0
}

impl Auth {
    /// Sets the password; an empty one means none.
    pub(crate) fn set_password(&self, password: &[u8]) {
        let mut current = self.digest.lock();
        *current = (!password.is_empty()).then(|| digest(password));
        // Relaxed: written under the lock; a client that meets the old value came a moment earlier.
        self.is_required.store(current.is_some(), Ordering::Relaxed);
    }

    /// True if clients must authenticate.
    pub(crate) fn is_required(&self) -> bool {
        // Relaxed: partner of the store in `set_password`.
        self.is_required.load(Ordering::Relaxed)
    }

    /// Tries a password of a client at `address`. `now_ms` may be any clock that goes on.
    pub(crate) fn attempt(&self, address: IpAddr, password: &[u8], now_ms: u64) -> Attempt {
        let accepted = match *self.digest.lock() {
            Some(expected) => equal(&digest(password), &expected),
            None => true,
        };
        let mut failures = self.failures.lock();
        if accepted {
            failures.remove(&address);
            return Attempt::Accepted;
        }
        if failures.len() >= ADDRESSES_MAX
            && !failures.contains_key(&address)
            && let Some(oldest) = failures.iter().min_by_key(|(_, f)| f.last_ms).map(|(a, _)| *a)
        {
            failures.remove(&oldest);
        }
        let entry = failures.entry(address).or_insert(Failures { count: 0, last_ms: now_ms });
        if now_ms.saturating_sub(entry.last_ms) > FORGOTTEN_AFTER_MS {
            entry.count = 0;
        }
        entry.count = entry.count.saturating_add(1);
        entry.last_ms = now_ms;
        let delay_ms = FIRST_DELAY_MS << (entry.count - 1).min(10);
        Attempt::Refused { delay_ms: delay_ms.min(LONGEST_DELAY_MS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_passwords_are_answered_ever_later_and_right_ones_accepted_at_once() {
        let auth = Auth::default();
        auth.set_password(b"secret");
        let guesser: IpAddr = [10, 0, 0, 1].into();
        let other: IpAddr = [10, 0, 0, 2].into();
        let mut delays = Vec::new();
        for i in 0..8 {
            match auth.attempt(guesser, b"guess", 1000 + i) {
                Attempt::Refused { delay_ms } => delays.push(delay_ms),
                Attempt::Accepted => panic!("a wrong password is accepted"),
            }
        }
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3000, 3000, 3000]);
        assert_eq!(auth.attempt(other, b"x", 1010), Attempt::Refused { delay_ms: 100 });
        assert_eq!(auth.attempt(other, b"secret", 1010), Attempt::Accepted);
        let much_later = 1010 + FORGOTTEN_AFTER_MS;
        assert_eq!(auth.attempt(guesser, b"x", much_later), Attempt::Refused { delay_ms: 100 });
        assert_eq!(auth.attempt(guesser, b"secret", much_later), Attempt::Accepted);
    }

    #[test]
    fn the_memory_of_failures_is_bounded() {
        let auth = Auth::default();
        auth.set_password(b"secret");
        for i in 0..ADDRESSES_MAX as u32 + 50 {
            auth.attempt(IpAddr::V4(i.into()), b"x", u64::from(i));
        }
        assert_eq!(auth.failures.lock().len(), ADDRESSES_MAX);
    }
}
