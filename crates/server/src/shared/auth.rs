//! Passwords are kept as digests and compared in constant time. A wrong password is answered late.
//!
//! A right password is admitted at once, whatever its address did before. Many clients can share an
//! address, behind a gateway or in a pod, and no guesser can lock them out. The price is that a
//! guesser with many connections need not wait: a missing reply tells that a guess was wrong. So
//! the delay slows down misconfigured clients only. A long random password protects against
//! guessers (docs/server.md).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// The delay of the answer to an address's first wrong password. Each further one doubles the delay.
const FIRST_DELAY_MS: u64 = 100;
/// The longest delay. Clients usually wait longer than this for a reply.
const LONGEST_DELAY_MS: u64 = 3000;
/// Time without a wrong password after which the count of an address begins anew.
const FORGOTTEN_AFTER_MS: u64 = 600_000;
/// Most addresses remembered. Beyond, the address with the oldest last failure is forgotten.
const ADDRESSES_MAX: usize = 10_000;

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The password is right.
    Accepted,
    /// The password is wrong. The answer leaves after the delay.
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
    /// Sets the password. An empty password means that none is required.
    pub(crate) fn set_password(&self, password: &[u8]) {
        let mut current = self.digest.lock();
        *current = (!password.is_empty()).then(|| digest(password));
        // Relaxed: partner of the load in `is_required`. A client that reads the old value came a
        // moment earlier.
        self.is_required.store(current.is_some(), Ordering::Relaxed);
    }

    /// Whether clients must authenticate.
    pub(crate) fn is_required(&self) -> bool {
        // Relaxed: partner of the store in `set_password`.
        self.is_required.load(Ordering::Relaxed)
    }

    /// Checks a password of a client at `address`. `now_ms` comes from a monotonic clock.
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
