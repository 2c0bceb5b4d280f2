//! The engine of systems without io_uring: threads that make blocking calls.

use std::collections::VecDeque;

use super::transfer::{Job, Transfer};
use crate::thread::{ThreadError, catch_panic};
use crate::workers::{Locked, Work, Workers};

#[derive(Debug)]
pub(super) struct Threads {
    workers: Workers<Transfers>,
}

#[derive(Debug, Default)]
struct Transfers {
    queued: Vec<Job>,
    submitted: VecDeque<Job>,
    /// Transfers that have ended since the last poll.
    ended: usize,
}

impl Work for Transfers {
    type Job = Job;
    type Done = ();

    fn next(&mut self) -> Option<Job> {
        self.submitted.pop_front()
    }

    fn run(thread: &str, job: Job) {
        // The transfer has the error of a panic. The thread goes on to the next one.
        let _ = catch_panic(thread, || job.run());
    }

    fn end(&mut self, (): ()) {
        self.ended += 1;
    }
}

impl Threads {
    pub(super) fn start(name: &str, count: usize) -> Result<Self, ThreadError> {
        Ok(Self { workers: Workers::start(&format!("{name}-io"), count)? })
    }

    pub(super) fn queue(&self, job: Job) {
        self.workers.lock().queued.push(job);
    }

    pub(super) fn submit(&self) {
        submit(&mut self.workers.lock());
    }

    pub(super) fn poll(&self) -> usize {
        std::mem::take(&mut self.workers.lock().ended)
    }

    pub(super) fn wait(&self, transfer: &Transfer) {
        let mut work = self.workers.lock();
        submit(&mut work);
        while !transfer.has_ended() {
            work.wait();
        }
    }
}

fn submit(work: &mut Locked<'_, Transfers>) {
    work.came(work.queued.len());
    let Transfers { queued, submitted, .. } = &mut **work;
    submitted.extend(queued.drain(..));
}
