//! Threads that make blocking calls for others, and the state that they share with them.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::thread::{JoinHandle, ThreadError, spawn};

/// State under the lock of [`Workers`]: jobs that wait, and what has come of others.
pub(crate) trait Work: std::fmt::Debug + Default + Send + 'static {
    /// A call to be made.
    type Job;
    /// What has come of a call.
    type Done;

    /// Called by each thread at its begin.
    fn begin() {}

    /// The job that comes next.
    fn next(&mut self) -> Option<Self::Job>;

    /// Makes the call, without the lock. `thread` is the name of the thread.
    fn run(thread: &str, job: Self::Job) -> Self::Done;

    /// Notes what has come of a call.
    fn end(&mut self, done: Self::Done);
}

/// Some threads with the work that they do.
#[derive(Debug)]
pub(crate) struct Workers<W> {
    shared: Arc<Shared<W>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared<W> {
    state: Mutex<State<W>>,
    /// Signals jobs that wait, or the end.
    came: Condvar,
    /// Signals the end of a job.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State<W> {
    work: W,
    stops: bool,
}

/// The work, locked.
pub(crate) struct Locked<'a, W> {
    shared: &'a Shared<W>,
    state: MutexGuard<'a, State<W>>,
}

impl<W: Work> Workers<W> {
    /// Starts so many threads, of these names with a number behind.
    ///
    /// # Errors
    /// The system refuses a thread. Threads already started have ended.
    pub(crate) fn start(name: &str, count: usize) -> Result<Self, ThreadError> {
        let mut this = Self { shared: Arc::default(), threads: Vec::with_capacity(count) };
        for number in 0..count {
            let shared = this.shared.clone();
            let name = format!("{name}-{number}");
            this.threads.push(spawn(&name.clone(), move || shared.run(&name))?);
        }
        Ok(this)
    }

    /// Number of threads.
    pub(crate) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Locks the work.
    pub(crate) fn lock(&self) -> Locked<'_, W> {
        Locked { shared: &self.shared, state: self.shared.state.lock() }
    }
}

impl<W> Locked<'_, W> {
    /// Says that so many jobs wait.
    pub(crate) fn came(&self, jobs: usize) {
        match jobs {
            0 => {}
            1 => _ = self.shared.came.notify_one(),
            _ => _ = self.shared.came.notify_all(),
        }
    }

    /// Waits until a job has ended.
    pub(crate) fn wait(&mut self) {
        self.shared.ended.wait(&mut self.state);
    }
}

impl<W> std::ops::Deref for Locked<'_, W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.state.work
    }
}

impl<W> std::ops::DerefMut for Locked<'_, W> {
    fn deref_mut(&mut self) -> &mut W {
        &mut self.state.work
    }
}

impl<W: Work> Shared<W> {
    fn run(&self, thread: &str) {
        W::begin();
        let mut state = self.state.lock();
        loop {
            let Some(job) = state.work.next() else {
                if state.stops {
                    return;
                }
                self.came.wait(&mut state);
                continue;
            };
            drop(state);
            let done = W::run(thread, job);
            state = self.state.lock();
            state.work.end(done);
            self.ended.notify_all();
        }
    }
}

impl<W> Drop for Workers<W> {
    fn drop(&mut self) {
        self.shared.state.lock().stops = true;
        self.shared.came.notify_all();
        for thread in self.threads.drain(..) {
            // The thread's panic was printed already, and no caller is left that could get it.
            let _ = thread.join();
        }
    }
}
