//! Signals that wake and end background threads.

use std::time::Duration;

use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{AtomicBool, Ordering};

use crate::monitor::Monitor;

/// A signal for one thread. To signal a thread that is awake costs one load.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    asleep: CachePadded<AtomicBool>,
    state: Monitor<State>,
}

#[derive(Debug, Default)]
struct State {
    work: bool,
    stop: bool,
}

/// The reason of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// There is work, or the time is over.
    Work,
    /// The thread shall end.
    Stop,
}

impl Signal {
    /// Signals work. The caller has made the work visible before, with SeqCst.
    #[inline]
    pub(crate) fn work(&self) {
        // SeqCst: either this load sees the thread asleep, or the thread's last check sees the
        // work.
        if self.asleep.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.state.lock().work = true;
        self.state.notify_all();
    }

    /// Tells the thread to end.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.state.notify_all();
    }

    /// Sleeps for at most `timeout`, or until there is work. `idle` is the last check before the
    /// sleep, and returns false if there is work already.
    pub(crate) fn wait(&self, timeout: Duration, idle: impl Fn() -> bool) -> Wake {
        self.asleep.store(true, Ordering::SeqCst);
        let mut state = self.state.lock();
        if !state.work && !state.stop && idle() {
            state = self.state.wait_for(state, timeout);
        }
        state.work = false;
        let wake = if state.stop { Wake::Stop } else { Wake::Work };
        drop(state);
        self.asleep.store(false, Ordering::SeqCst);
        wake
    }

    /// Sleeps for `time`, whatever work comes. Only the end interrupts the sleep.
    pub(crate) fn pause(&self, time: Duration) -> Wake {
        let mut state = self.state.lock();
        if !state.stop {
            state = self.state.wait_for(state, time);
        }
        if state.stop { Wake::Stop } else { Wake::Work }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use stillpoint_io::{Clock, RealClock, spawn};

    use super::*;

    /// A timeout that is longer than any test.
    const FOREVER: Duration = Duration::from_secs(100_000);

    /// Work from before the sleep keeps the thread awake.
    #[test]
    fn nobody_sleeps_over_work_or_the_end() {
        for (work, stop, idle, expected) in [
            (true, false, true, Wake::Work),
            (false, true, true, Wake::Stop),
            (true, true, true, Wake::Stop),
            (false, false, false, Wake::Work),
        ] {
            let signal = Arc::new(Signal::default());
            *signal.state.lock() = State { work, stop };
            let waits = signal.clone();
            let thread = spawn("waits", move || waits.wait(FOREVER, || idle)).expect("a thread");
            let woken = (0..10_000).any(|_| {
                RealClock.sleep(Duration::from_millis(1));
                thread.is_finished()
            });
            assert!(woken, "{work} {stop} {idle}: it sleeps for ever");
            assert_eq!(thread.join().expect("no panic"), expected);
            assert!(!signal.state.lock().work, "the work is seen to");
        }
    }

    #[test]
    fn work_and_the_end_wake_a_thread_that_waits() {
        for expected in [Wake::Work, Wake::Stop] {
            let signal = Arc::new(Signal::default());
            let waits = signal.clone();
            let thread = spawn("waits", move || waits.wait(FOREVER, || true)).expect("a thread");
            for _ in 0..10_000 {
                match expected {
                    // The thread may not be asleep yet.
                    Wake::Work => signal.work(),
                    Wake::Stop => signal.stop(),
                }
                if thread.is_finished() {
                    break;
                }
                RealClock.sleep(Duration::from_millis(1));
            }
            assert!(thread.is_finished(), "{expected:?}: it sleeps for ever");
            assert_eq!(thread.join().expect("no panic"), expected);
        }
    }
}
