//! The pace of a checkpoint: of the scan that captures records, or of the writer of an image.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;

/// How fast a checkpoint is captured or written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// As fast as the device writes.
    #[default]
    Unpaced,
    /// At most this number of bytes per second, before-images included. Commits are never delayed:
    /// the more they save, the less the capture scan emits. Zero counts as one. A scheme that stops
    /// commits during its capture is not paced.
    BytesPerSecond(u64),
}

/// Longest single sleep, so that a cancelled checkpoint ends soon.
const SLEEP_NS_MAX: u64 = 10_000_000;

/// A pace, and where it began.
#[derive(Debug)]
pub struct Meter {
    pace: Pace,
    clock: Arc<dyn Clock>,
    since: Mutex<Since>,
}

/// The begin of a pace: the time, and the bytes that were taken before.
#[derive(Clone, Copy, Debug)]
struct Since {
    pace: Pace,
    start_ns: u64,
    taken: u64,
}

impl Meter {
    /// A capture that begins now.
    pub fn new(pace: Pace, clock: Arc<dyn Clock>) -> Self {
        let start_ns = clock.monotonic_ns();
        Self::since(pace, clock, start_ns)
    }

    /// A capture that began at `start_ns` of the monotonic clock.
    pub fn since(pace: Pace, clock: Arc<dyn Clock>, start_ns: u64) -> Self {
        Self { pace, clock, since: Mutex::new(Since { pace, start_ns, taken: 0 }) }
    }

    /// Nanoseconds to wait until the pace allows more, after `taken` bytes since the start. A pace that
    /// has changed begins now.
    fn ahead_ns(&self, pace: Pace, taken: &impl Fn() -> u64) -> u64 {
        let mut since = self.since.lock();
        if (since.pace, pace) == (Pace::Unpaced, Pace::Unpaced) {
            return 0;
        }
        let (now_ns, taken) = (self.clock.monotonic_ns(), taken());
        if since.pace != pace {
            *since = Since { pace, start_ns: now_ns, taken };
        }
        let Pace::BytesPerSecond(rate) = pace else {
            return 0;
        };
        let taken = u128::from(taken.saturating_sub(since.taken));
        let due_ns = taken * 1_000_000_000 / u128::from(rate.max(1));
        let passed_ns = u128::from(now_ns.saturating_sub(since.start_ns));
        u64::try_from(due_ns.saturating_sub(passed_ns)).unwrap_or(u64::MAX)
    }

    /// Sleeps for `duration`.
    pub fn pause(&self, duration: Duration) {
        self.clock.sleep(duration);
    }

    /// Sleeps until the pace allows `taken` bytes, or until `stop` is true.
    pub fn wait(&self, taken: impl Fn() -> u64, stop: impl Fn() -> bool) {
        self.wait_at(|| self.pace, taken, stop);
    }

    /// [Waits](Self::wait) at a pace that may change meanwhile.
    pub fn wait_at(
        &self,
        pace: impl Fn() -> Pace,
        taken: impl Fn() -> u64,
        stop: impl Fn() -> bool,
    ) {
        loop {
            let ahead_ns = self.ahead_ns(pace(), &taken);
            if ahead_ns == 0 || stop() {
                return;
            }
            self.clock.sleep(Duration::from_nanos(ahead_ns.min(SLEEP_NS_MAX)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn waits_until_the_bytes_are_due() {
        let clock = Arc::new(ManualClock::self_advancing(0));
        let meter = Meter::new(Pace::BytesPerSecond(1000), clock.clone());
        meter.wait(|| 2500, || false);
        assert_eq!(clock.monotonic_ns(), 2_500_000_000);
        meter.wait(|| 2500, || false);
        assert_eq!(clock.monotonic_ns(), 2_500_000_000, "nothing is owed");
        meter.wait(|| u64::MAX, || clock.monotonic_ns() > 3_000_000_000);
        assert!(clock.monotonic_ns() < 3_100_000_000, "stops when told");
    }

    #[test]
    fn unpaced_never_waits_and_zero_does_not_divide() {
        let clock = Arc::new(ManualClock::new(0));
        Meter::new(Pace::Unpaced, clock.clone()).wait(|| u64::MAX, || false);
        let crawl = Meter::new(Pace::BytesPerSecond(0), clock);
        assert_eq!(crawl.ahead_ns(Pace::BytesPerSecond(0), &|| 3), 3_000_000_000);
    }

    #[test]
    fn a_pace_that_changes_counts_from_the_change() {
        let clock = Arc::new(ManualClock::self_advancing(0));
        let meter = Meter::new(Pace::BytesPerSecond(1), clock.clone());
        let is_late = || clock.monotonic_ns() > 1_000_000_000;
        let slow_at_first = || match is_late() {
            false => Pace::BytesPerSecond(1),
            true => Pace::Unpaced,
        };
        meter.wait_at(slow_at_first, || 1_000_000, || false);
        let begin_ns = clock.monotonic_ns();
        assert!(begin_ns < 1_100_000_000, "the change ends the wait: {begin_ns}");
        meter.wait_at(|| Pace::BytesPerSecond(10), || 1_000_000, || false);
        meter.wait_at(|| Pace::BytesPerSecond(10), || 1_000_020, || false);
        let passed_ns = clock.monotonic_ns() - begin_ns;
        assert!((1_900_000_000..2_100_000_000).contains(&passed_ns), "{passed_ns}");
    }
}
