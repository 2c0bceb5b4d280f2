//! How the background threads are woken and ended.

use std::time::Duration;

use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{AtomicBool, Ordering};

use crate::monitor::Monitor;

/// Wakes one thread. Telling a thread that is awake costs one load.
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

/// Why a thread woke up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// There is work, or the time is over.
    Work,
    /// The thread shall end.
    Stop,
}

impl Signal {
    /// There is work. The caller has made it visible before, with SeqCst.
    #[inline]
    pub(crate) fn work(&self) {
        // SeqCst: either this sees the thread asleep, or the thread's last look sees the work.
        if self.asleep.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.state.lock().work = true;
        self.state.notify_all();
    }

    /// The thread shall end.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.state.notify_all();
    }

    /// Sleeps for at most `timeout`, or until there is work. `idle` is the last look: false
    /// if there is work already.
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

    /// Sleeps for `time`, whatever work comes; only the end interrupts it.
    pub(crate) fn pause(&self, time: Duration) -> Wake {
        let mut state = self.state.lock();
        if !state.stop {
            state = self.state.wait_for(state, time);
        }
        if state.stop { Wake::Stop } else { Wake::Work }
    }
}
