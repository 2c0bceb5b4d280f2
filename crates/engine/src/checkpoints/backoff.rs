//! The pause after a failed checkpoint.

use std::time::Duration;

/// Pause after the first failure. Each further failure doubles the pause.
const FIRST: Duration = Duration::from_secs(1);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(300);
/// Increase of free space, in bytes, that ends a pause after a full disk.
const APPEARED_BYTES: u64 = 4 << 20;

/// Failures since the last success, and the resulting pause.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    /// Monotonic time of the last failure.
    failed_ns: u64,
    /// Free bytes at the last failure, if the disk was full.
    free_bytes: Option<u64>,
}

impl Backoff {
    /// Notes a failed attempt. `free_bytes` are the free bytes of a disk that was full.
    pub(super) fn failed(&mut self, now_ns: u64, free_bytes: Option<u64>) {
        self.failures = self.failures.saturating_add(1);
        (self.failed_ns, self.free_bytes) = (now_ns, free_bytes);
    }

    /// Failures since the last success.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    fn pause(&self) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            failures => FIRST.saturating_mul(1 << (failures - 1).min(9)).min(LONGEST),
        }
    }

    /// The rest of the pause. `None` if the pause is over.
    pub(super) fn left(&self, now_ns: u64) -> Option<Duration> {
        let waited = Duration::from_nanos(now_ns.saturating_sub(self.failed_ns));
        self.pause().checked_sub(waited).filter(|left| !left.is_zero())
    }

    /// Whether the pause is over, or the disk has more space than after the failure. Space that
    /// comes and goes does not shorten the first pause.
    pub(super) fn may_try(&self, now_ns: u64, free_bytes: impl FnOnce() -> Option<u64>) -> bool {
        let waited_ns = u128::from(now_ns.saturating_sub(self.failed_ns));
        let has_appeared = || {
            self.free_bytes
                .zip(free_bytes())
                .is_some_and(|(then, now)| now >= then + APPEARED_BYTES)
        };
        self.left(now_ns).is_none() || (waited_ns >= FIRST.as_nanos() && has_appeared())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn pauses_double_from_a_second_to_five_minutes() {
        let mut backoff = Backoff::default();
        assert!(backoff.may_try(0, || None), "nothing has failed");
        let mut now_ns = 7;
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            backoff.failed(now_ns, None);
            let end_ns = now_ns + seconds * SECOND_NS;
            assert!(!backoff.may_try(end_ns - 1, || Some(u64::MAX)), "{seconds} s");
            assert_eq!(backoff.left(end_ns - 1), Some(Duration::from_nanos(1)));
            assert!(backoff.may_try(end_ns, || None), "{seconds} s");
            now_ns = end_ns + 5;
        }
        assert_eq!(backoff.failures(), 11);
    }

    #[test]
    fn space_that_appears_ends_the_pause() {
        let mut backoff = Backoff::default();
        (0..6).for_each(|_| backoff.failed(0, Some(1000)));
        assert!(!backoff.may_try(SECOND_NS, || Some(1000 + APPEARED_BYTES - 1)));
        assert!(!backoff.may_try(SECOND_NS - 1, || Some(1000 + APPEARED_BYTES)));
        assert!(backoff.may_try(SECOND_NS, || Some(1000 + APPEARED_BYTES)));
    }
}
