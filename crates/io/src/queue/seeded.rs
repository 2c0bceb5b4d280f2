//! The engine of a simulated disk: transfers end in an order that a seed decides, and only while
//! somebody polls or waits. So a run of one thread is the same for the same seed.

use parking_lot::{Condvar, Mutex};

use super::transfer::{Job, Transfer};
use crate::rng::{Rng, SeededRng};

#[derive(Debug)]
pub(super) struct Seeded {
    state: Mutex<State>,
    /// Signals the end of a transfer.
    ended: Condvar,
}

#[derive(Debug)]
struct State {
    rng: SeededRng,
    queued: Vec<Job>,
    submitted: Vec<Job>,
    /// Transfers that threads are making.
    running: usize,
}

impl Seeded {
    pub(super) fn new(seed: u64) -> Self {
        let state = State {
            rng: SeededRng::new(seed),
            queued: Vec::new(),
            submitted: Vec::new(),
            running: 0,
        };
        Self { state: Mutex::new(state), ended: Condvar::new() }
    }

    pub(super) fn queue(&self, job: Job) {
        self.state.lock().queued.push(job);
    }

    pub(super) fn submit(&self) {
        let State { queued, submitted, .. } = &mut *self.state.lock();
        submitted.append(queued);
    }

    /// Ends some of the transfers, perhaps none.
    pub(super) fn poll(&self) -> usize {
        let count = {
            let state = self.state.lock();
            state.rng.below(state.submitted.len() as u64 + 1)
        };
        (0..count).filter(|_| self.run_one()).count()
    }

    pub(super) fn wait(&self, transfer: &Transfer) {
        self.submit();
        while !transfer.has_ended() {
            if self.run_one() {
                continue;
            }
            let mut state = self.state.lock();
            if !transfer.has_ended() && state.submitted.is_empty() && state.running > 0 {
                self.ended.wait(&mut state);
            }
        }
    }

    /// Makes one of the submitted transfers. Returns false if there is none.
    fn run_one(&self) -> bool {
        let job = {
            let mut state = self.state.lock();
            let count = state.submitted.len() as u64;
            if count == 0 {
                return false;
            }
            state.running += 1;
            let at = state.rng.below(count) as usize;
            state.submitted.swap_remove(at)
        };
        let _running = Running(self);
        job.run();
        true
    }
}

/// Notes the end of a transfer, also by a panic.
struct Running<'a>(&'a Seeded);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state.lock().running -= 1;
        self.0.ended.notify_all();
    }
}
