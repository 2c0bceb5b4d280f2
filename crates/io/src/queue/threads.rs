//! The engine of systems without io_uring: threads that make blocking calls.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::transfer::{Job, Transfer};
use crate::thread::{JoinHandle, ThreadError, catch_panic, spawn};

#[derive(Debug)]
pub(super) struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Signals submitted transfers, or the end of the queue.
    came: Condvar,
    /// Signals the end of a transfer.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queued: Vec<Job>,
    submitted: VecDeque<Job>,
    /// Transfers that have ended since the last poll.
    ended: usize,
    stops: bool,
}

impl Threads {
    pub(super) fn start(name: &str, count: usize) -> Result<Self, ThreadError> {
        let mut this = Self { shared: Arc::default(), threads: Vec::with_capacity(count) };
        for number in 0..count {
            let shared = this.shared.clone();
            let thread_name = format!("{name}-io-{number}");
            this.threads.push(spawn(&thread_name.clone(), move || shared.run(&thread_name))?);
        }
        Ok(this)
    }

    pub(super) fn queue(&self, job: Job) {
        self.shared.state.lock().queued.push(job);
    }

    pub(super) fn submit(&self) {
        self.shared.submit(&mut self.shared.state.lock());
    }

    pub(super) fn poll(&self) -> usize {
        std::mem::take(&mut self.shared.state.lock().ended)
    }

    pub(super) fn wait(&self, transfer: &Transfer) {
        let mut state = self.shared.state.lock();
        self.shared.submit(&mut state);
        while !transfer.has_ended() {
            self.shared.ended.wait(&mut state);
        }
    }
}

impl Shared {
    fn submit(&self, state: &mut State) {
        match state.queued.len() {
            0 => return,
            1 => _ = self.came.notify_one(),
            _ => _ = self.came.notify_all(),
        }
        state.submitted.extend(state.queued.drain(..));
    }

    fn run(&self, name: &str) {
        let mut state = self.state.lock();
        loop {
            let Some(job) = state.submitted.pop_front() else {
                if state.stops {
                    return;
                }
                self.came.wait(&mut state);
                continue;
            };
            drop(state);
            // The transfer has the error of a panic. The thread goes on to the next one.
            let _ = catch_panic(name, || job.run());
            state = self.state.lock();
            state.ended += 1;
            self.ended.notify_all();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.state.lock().stops = true;
        self.shared.came.notify_all();
        for thread in self.threads.drain(..) {
            // The thread's panic was printed already, and no caller is left that could get it.
            let _ = thread.join();
        }
    }
}
