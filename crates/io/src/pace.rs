//! The pace of a checkpoint: of the scan that captures records, or of the writer of an image.

use std::sync::Arc;
use std::time::Duration;

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

/// A pace, and the time at which the capture began.
#[derive(Debug)]
pub struct Meter {
    pace: Pace,
    clock: Arc<dyn Clock>,
    start_ns: u64,
}

impl Meter {
    /// A capture that begins now.
    pub fn new(pace: Pace, clock: Arc<dyn Clock>) -> Self {
        let start_ns = clock.monotonic_ns();
        Self::since(pace, clock, start_ns)
    }

    /// A capture that began at `start_ns` of the monotonic clock.
    pub fn since(pace: Pace, clock: Arc<dyn Clock>, start_ns: u64) -> Self {
        Self { pace, clock, start_ns }
    }

    /// Whether the pace has a limit.
    pub fn is_paced(&self) -> bool {
        self.pace != Pace::Unpaced
    }

    /// Nanoseconds to wait until the pace allows more, after `taken` bytes since the start.
    fn ahead_ns(&self, taken: u64) -> u64 {
        let Pace::BytesPerSecond(rate) = self.pace else {
            return 0;
        };
        let due_ns = u128::from(taken) * 1_000_000_000 / u128::from(rate.max(1));
        let passed_ns = u128::from(self.clock.monotonic_ns().saturating_sub(self.start_ns));
        u64::try_from(due_ns.saturating_sub(passed_ns)).unwrap_or(u64::MAX)
    }

    /// Sleeps for `duration`.
    pub fn pause(&self, duration: Duration) {
        self.clock.sleep(duration);
    }

    /// Sleeps until the pace allows `taken` bytes, or until `stop` is true.
    pub fn wait(&self, taken: impl Fn() -> u64, stop: impl Fn() -> bool) {
        loop {
            let ahead_ns = self.ahead_ns(taken());
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
        assert_eq!(crawl.ahead_ns(3), 3_000_000_000);
    }
}
