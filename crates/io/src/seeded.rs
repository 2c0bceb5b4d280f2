//! A loop over seeds, for tests.

use crate::clock::{Clock, RealClock};

/// Runs `round` with the seeds from 1 on, `count` of them.
///
/// `STILLPOINT_FUZZ_SEED` sets the first seed. `STILLPOINT_FUZZ_SECONDS` sets a time in place of
/// the number of rounds. A panicking round prints its seed, and with that first seed it fails at
/// once.
///
/// ```
/// let mut seeds = Vec::new();
/// # if std::env::vars_os().all(|(name, _)| !name.to_string_lossy().contains("STILLPOINT_FUZZ")) {
/// stillpoint_io::seeded_rounds(3, |seed| seeds.push(seed));
/// assert_eq!(seeds, [1, 2, 3]);
/// # }
/// ```
///
/// # Panics
/// If a round panics, or no round was run.
pub fn seeded_rounds(count: u64, round: impl FnMut(u64)) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("STILLPOINT_FUZZ_SEED").unwrap_or(1);
    run(&RealClock, first, count, number("STILLPOINT_FUZZ_SECONDS"), round);
}

/// As many rounds as fit into `seconds`, if given. Otherwise `count` rounds.
fn run(
    clock: &dyn Clock,
    first: u64,
    count: u64,
    seconds: Option<u64>,
    mut round: impl FnMut(u64),
) {
    let now_s = || clock.monotonic_ns() / 1_000_000_000;
    let deadline_s = seconds.map(|seconds| now_s().saturating_add(seconds));
    let mut seed = first;
    while deadline_s.map_or(seed - first < count, |deadline_s| now_s() < deadline_s) {
        let guard = PrintOnPanic(seed);
        round(seed);
        std::mem::forget(guard);
        seed += 1;
    }
    assert!(seed > first, "no round was run");
}

struct PrintOnPanic(u64);

impl Drop for PrintOnPanic {
    #[expect(clippy::print_stderr, reason = "a failing test says how to repeat it")]
    fn drop(&mut self) {
        eprintln!("failed with STILLPOINT_FUZZ_SEED={}", self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn rounds_end_by_number_or_by_time() {
        let clock = ManualClock::new(0);
        let mut seeds = Vec::new();
        run(&clock, 7, 3, None, |seed| seeds.push(seed));
        assert_eq!(seeds, [7, 8, 9]);
        seeds.clear();
        run(&clock, 1, 2, Some(5), |seed| {
            seeds.push(seed);
            clock.advance(Duration::from_secs(1));
        });
        assert_eq!(seeds, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_round_that_fails_ends_them_and_so_does_no_round_at_all() {
        let mut last = 0;
        let failed = catch_unwind(std::panic::AssertUnwindSafe(|| {
            run(&RealClock, 1, 9, None, |seed| {
                last = seed;
                assert!(seed < 4, "planted");
            });
        }));
        assert!(failed.is_err());
        assert_eq!(last, 4);
        assert!(catch_unwind(|| run(&RealClock, 1, 9, Some(0), |_| {})).is_err());
    }
}
