//! A thread that flushes for one event loop, which executes other requests meanwhile.
//!
//! ```text
//! event loop   execute ─ ask(1) ─ execute ─ ask(2) ─ execute ─ ask(3) ─ replies of 1 ─ …
//! this thread            └── flush: 1 ──────────────────────┘└── flush: 2 and 3 ──────── …
//! ```
//! There is no timer: a flush begins when the last one has ended and something waits. Each flush
//! takes all requests that have arrived by its begin.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

use parking_lot::{Condvar, Mutex};
use stillpoint::Unflushed;
use stillpoint_io::JoinHandle;

use crate::error::ServerError;
use crate::shared::Shared;

/// The thread that flushes for an event loop. A drop waits for the flush under way.
#[derive(Debug)]
pub(crate) struct Flusher {
    desk: Arc<FlushRequests>,
    thread: Option<JoinHandle<()>>,
    /// Number of the newest request.
    asked: u64,
}

#[derive(Debug, Default)]
struct FlushRequests {
    state: Mutex<State>,
    changed: Condvar,
    /// Number of the newest request that is answered, like all before.
    done: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// The commits that requests up to `asked` wait for; none once a flush has taken the requests.
    wanted: Unflushed,
    asked: u64,
    /// Flushes since the last `settle`, and their nanoseconds.
    flushes: u64,
    flush_ns: u64,
    failure: Option<String>,
    stop: bool,
}

impl Flusher {
    /// Starts the thread of the event loop of that number.
    ///
    /// # Errors
    /// When the system refuses another thread.
    pub(crate) fn start(number: usize, shared: Arc<Shared>) -> Result<Self, ServerError> {
        let desk = Arc::new(FlushRequests::default());
        let its = Arc::clone(&desk);
        let run = move || {
            // The thread sleeps in a flush, and clients wait for its next step.
            stillpoint_io::ask_for_short_slices();
            its.run(number, &shared);
        };
        let thread = stillpoint_io::spawn(&format!("flusher-{number}"), run);
        let thread = thread.map_err(|error| ServerError::Thread(error.to_string()))?;
        Ok(Self { desk, thread: Some(thread), asked: 0 })
    }

    /// Asks for a flush and gives the request's number. The event loop is woken after the flush.
    pub(crate) fn ask(&mut self, wanted: Unflushed) -> u64 {
        self.asked += 1;
        let mut state = self.desk.state.lock();
        state.wanted.join(wanted);
        state.asked = self.asked;
        drop(state);
        self.desk.changed.notify_one();
        self.asked
    }

    /// Number of the newest request that is answered, like all before.
    pub(crate) fn done(&self) -> u64 {
        // Acquire: partner of the Release in `run`. Replies leave after the flush.
        self.desk.done.load(Acquire)
    }

    /// Number and nanoseconds of the flushes since the last call.
    ///
    /// # Errors
    /// The flush that failed, or the end of the thread by a panic.
    pub(crate) fn settle(&self) -> Result<(u64, u64), ServerError> {
        let mut state = self.desk.state.lock();
        if let Some(why) = &state.failure {
            return Err(ServerError::Flush(why.clone()));
        }
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Err(ServerError::Flush("the thread that flushes has panicked".to_owned()));
        }
        Ok((std::mem::take(&mut state.flushes), std::mem::take(&mut state.flush_ns)))
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.desk.state.lock().stop = true;
        self.desk.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic has ended the loop already.
            let _ = thread.join();
        }
    }
}

impl FlushRequests {
    fn run(&self, number: usize, shared: &Shared) {
        let (engine, clock) = (shared.keyspace.engine(), &shared.config.clock);
        let mut state = self.state.lock();
        loop {
            self.changed.wait_while(&mut state, |state| state.wanted.is_empty() && !state.stop);
            if state.stop {
                return;
            }
            let (wanted, asked) = (std::mem::take(&mut state.wanted), state.asked);
            drop(state);
            let start_ns = clock.monotonic_ns();
            let flushed = engine.make_durable(&wanted);
            let took_ns = clock.monotonic_ns() - start_ns;
            state = self.state.lock();
            state.flushes += 1;
            state.flush_ns += took_ns;
            match flushed {
                Ok(()) => self.done.store(asked, Release),
                Err(error) => state.failure = Some(error.to_string()),
            }
            let failed = state.failure.is_some();
            drop(state);
            shared.mailboxes.wake(number);
            if failed {
                return;
            }
            state = self.state.lock();
        }
    }
}
