//! The background threads: one flushes, one prepares segments.

use std::time::Duration;

use crate::monitor::Monitor;

/// How a thread is woken and ended.
#[derive(Debug, Default)]
pub(crate) struct Signal {
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
    /// There is work.
    pub(crate) fn work(&self) {
        let mut state = self.state.lock();
        if !state.work {
            state.work = true;
            drop(state);
            self.state.notify_all();
        }
    }

    /// The thread shall end.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.state.notify_all();
    }

    /// Waits for work, at most for `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Wake {
        let mut state = self.state.lock();
        if !state.work && !state.stop {
            state = self.state.wait_for(state, timeout);
        }
        state.work = false;
        if state.stop { Wake::Stop } else { Wake::Work }
    }
}
