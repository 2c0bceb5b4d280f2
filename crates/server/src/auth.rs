//! Passwords: kept as digests, compared in constant time, tried ever more slowly.

use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// Failures of one address after which it must wait.
const FREE_FAILURES: u32 = 5;
/// The first wait; each further failure doubles it.
const FIRST_WAIT_MS: u64 = 100;
/// The longest wait.
const LONGEST_WAIT_MS: u64 = 30_000;
/// Addresses remembered; beyond, the one that waited longest ago is forgotten.
const ADDRESSES_MAX: usize = 10_000;

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The password is right.
    Accepted,
    /// It is wrong.
    Refused,
    /// The address failed too often; the password was not looked at.
    TooSoon,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    until_ms: u64,
}

/// The password of the default user.
#[derive(Debug, Default)]
pub(crate) struct Auth {
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
        *self.digest.lock() = (!password.is_empty()).then(|| digest(password));
    }

    /// True if clients must authenticate.
    pub(crate) fn is_required(&self) -> bool {
        self.digest.lock().is_some()
    }

    /// Tries a password of a client at `address`. `now_ms` may be any clock that goes on.
    pub(crate) fn attempt(&self, address: IpAddr, password: &[u8], now_ms: u64) -> Attempt {
        let mut failures = self.failures.lock();
        if failures.get(&address).is_some_and(|f| now_ms < f.until_ms) {
            return Attempt::TooSoon;
        }
        let accepted = match *self.digest.lock() {
            Some(expected) => equal(&digest(password), &expected),
            None => true,
        };
        if accepted {
            failures.remove(&address);
            return Attempt::Accepted;
        }
        if failures.len() >= ADDRESSES_MAX
            && !failures.contains_key(&address)
            && let Some(oldest) = failures.iter().min_by_key(|(_, f)| f.until_ms).map(|(a, _)| *a)
        {
            failures.remove(&oldest);
        }
        let entry = failures.entry(address).or_insert(Failures { count: 0, until_ms: 0 });
        entry.count = entry.count.saturating_add(1);
        let beyond = entry.count.saturating_sub(FREE_FAILURES);
        if beyond > 0 {
            let wait = FIRST_WAIT_MS << (beyond - 1).min(20);
            entry.until_ms = now_ms + wait.min(LONGEST_WAIT_MS);
        } else {
            entry.until_ms = now_ms;
        }
        Attempt::Refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_guesses_must_wait_and_others_need_not() {
        let auth = Auth::default();
        auth.set_password(b"secret");
        let guesser: IpAddr = [10, 0, 0, 1].into();
        let other: IpAddr = [10, 0, 0, 2].into();
        for _ in 0..=FREE_FAILURES {
            assert_eq!(auth.attempt(guesser, b"guess", 1000), Attempt::Refused);
        }
        assert_eq!(auth.attempt(guesser, b"secret", 1000), Attempt::TooSoon);
        assert_eq!(auth.attempt(other, b"secret", 1000), Attempt::Accepted);
        assert_eq!(auth.attempt(guesser, b"guess", 1000 + FIRST_WAIT_MS), Attempt::Refused);
        assert_eq!(auth.attempt(guesser, b"secret", 1050 + 2 * FIRST_WAIT_MS), Attempt::TooSoon);
        assert_eq!(auth.attempt(guesser, b"secret", 1000 + 3 * FIRST_WAIT_MS), Attempt::Accepted);
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
