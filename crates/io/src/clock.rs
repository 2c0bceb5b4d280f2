//! Time: the machine's, or one that a test moves.

use std::fmt;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::time::{ClockId, clock_gettime};

/// Time. The real clock, or one that a test moves.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Nanoseconds since an arbitrary start; never goes back.
    fn monotonic_ns(&self) -> u64;
    /// Milliseconds since the Unix epoch; may jump.
    fn wall_ms(&self) -> u64;
    /// Blocks the calling thread.
    fn sleep(&self, duration: Duration);
}

/// Reads one of the machine's clocks, in nanoseconds.
pub(crate) fn clock_ns(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealClock;

impl Clock for RealClock {
    fn monotonic_ns(&self) -> u64 {
        clock_ns(ClockId::Monotonic)
    }

    fn wall_ms(&self) -> u64 {
        clock_ns(ClockId::Realtime) / 1_000_000
    }

    #[expect(clippy::disallowed_methods, reason = "this is the sleep that the lint points to")]
    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// A clock that stands still until a test moves it.
///
/// A sleeper waits until [`advance`](ManualClock::advance) reaches the end of its sleep. On a clock
/// made by [`self_advancing`](ManualClock::self_advancing), the sleeper moves the clock itself and
/// returns at once.
///
/// ```
/// use std::time::Duration;
/// use stillpoint_io::{Clock, ManualClock};
/// let clock = ManualClock::new(1_000);
/// clock.advance(Duration::from_millis(5));
/// assert_eq!((clock.monotonic_ns(), clock.wall_ms()), (5_000_000, 1_005));
/// clock.set_wall_ms(7); // the wall clock may jump, the monotonic one never does
/// assert_eq!((clock.monotonic_ns(), clock.wall_ms()), (5_000_000, 7));
/// ```
#[derive(Debug)]
pub struct ManualClock {
    state: Mutex<ManualState>,
    moved: Condvar,
    self_advancing: bool,
}

#[derive(Debug)]
struct ManualState {
    monotonic_ns: u64,
    /// Wall time minus monotonic time.
    wall_offset_ns: i128,
    sleepers: usize,
    released: bool,
}

impl ManualClock {
    /// A clock at monotonic time 0 whose sleepers wait for [`advance`](Self::advance).
    pub fn new(wall_ms: u64) -> Self {
        Self {
            state: Mutex::new(ManualState {
                monotonic_ns: 0,
                wall_offset_ns: i128::from(wall_ms) * 1_000_000,
                sleepers: 0,
                released: false,
            }),
            moved: Condvar::new(),
            self_advancing: false,
        }
    }

    /// A clock that each sleeping thread moves forward by the time of its sleep, without a wait.
    pub fn self_advancing(wall_ms: u64) -> Self {
        Self { self_advancing: true, ..Self::new(wall_ms) }
    }

    /// Moves both clocks forward and wakes the sleepers whose time has come.
    pub fn advance(&self, duration: Duration) {
        let mut state = self.state.lock();
        state.monotonic_ns = state.monotonic_ns.saturating_add(nanos(duration));
        self.moved.notify_all();
    }

    /// Makes the wall clock jump, forward or back.
    pub fn set_wall_ms(&self, wall_ms: u64) {
        let mut state = self.state.lock();
        state.wall_offset_ns = i128::from(wall_ms) * 1_000_000 - i128::from(state.monotonic_ns);
    }

    /// Threads now inside [`Clock::sleep`].
    pub fn sleepers(&self) -> usize {
        self.state.lock().sleepers
    }

    /// Wakes every sleeper and lets later sleeps return at once: for the end of a test.
    pub fn release(&self) {
        self.state.lock().released = true;
        self.moved.notify_all();
    }
}

impl Clock for ManualClock {
    fn monotonic_ns(&self) -> u64 {
        self.state.lock().monotonic_ns
    }

    fn wall_ms(&self) -> u64 {
        let state = self.state.lock();
        let wall_ns = i128::from(state.monotonic_ns) + state.wall_offset_ns;
        u64::try_from(wall_ns / 1_000_000).unwrap_or(0)
    }

    fn sleep(&self, duration: Duration) {
        if self.self_advancing {
            return self.advance(duration);
        }
        let mut state = self.state.lock();
        let until_ns = state.monotonic_ns.saturating_add(nanos(duration));
        state.sleepers += 1;
        while state.monotonic_ns < until_ns && !state.released {
            self.moved.wait(&mut state);
        }
        state.sleepers -= 1;
    }
}

/// A duration in whole nanoseconds, at most 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn real_clock_moves_forward_and_knows_the_century() {
        let before = RealClock.monotonic_ns();
        RealClock.sleep(Duration::from_millis(2));
        assert!(RealClock.monotonic_ns() - before >= 2_000_000);
        assert!(RealClock.wall_ms() > 1_600_000_000_000);
    }

    #[test]
    fn manual_sleeper_wakes_at_its_hour_and_not_before() {
        let clock = Arc::new(ManualClock::new(0));
        let sleeper = {
            let clock = clock.clone();
            crate::spawn("sleeper", move || {
                clock.sleep(Duration::from_secs(10));
                clock.monotonic_ns()
            })
            .expect("thread starts")
        };
        while clock.sleepers() == 0 {
            std::hint::spin_loop();
        }
        clock.advance(Duration::from_secs(9));
        assert_eq!(clock.sleepers(), 1);
        clock.advance(Duration::from_secs(1));
        assert_eq!(sleeper.join().expect("no panic"), 10_000_000_000);
    }

    #[test]
    fn released_and_self_advancing_clocks_keep_nobody() {
        let clock = ManualClock::new(0);
        clock.release();
        clock.sleep(Duration::MAX);
        assert_eq!(clock.monotonic_ns(), 0);
        let clock = ManualClock::self_advancing(0);
        clock.sleep(Duration::from_secs(3));
        assert_eq!(clock.wall_ms(), 3_000);
    }

    #[test]
    fn wall_clock_jumps_back_without_the_monotonic_one() {
        let clock = ManualClock::new(1_000_000);
        clock.advance(Duration::from_secs(1));
        clock.set_wall_ms(0);
        clock.advance(Duration::from_millis(1));
        assert_eq!((clock.wall_ms(), clock.monotonic_ns()), (1, 1_001_000_000));
    }
}
