//! Futures that wait, and the queue from which one thread serves them.

use std::sync::{Arc, Weak};
use std::task::Waker;

use parking_lot::{Condvar, Mutex};
use stillpoint_io::{JoinHandle, ThreadError, catch_panic};

use crate::error::Error;
use crate::unflushed::Unflushed;

/// A future that waits.
#[derive(Debug)]
pub(crate) struct Wait {
    needs: Unflushed,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Waits(Waker),
    /// The result, until the future takes it.
    Ended(Option<Result<(), Error>>),
}

impl Wait {
    pub(crate) fn new(needs: Unflushed, waker: Waker) -> Self {
        Self { needs, state: Mutex::new(State::Waits(waker)) }
    }

    /// Takes the result. If there is none yet, it will wake `waker`.
    pub(crate) fn look(&self, waker: &Waker) -> Option<Result<(), Error>> {
        match &mut *self.state.lock() {
            State::Waits(known) => {
                known.clone_from(waker);
                None
            }
            State::Ended(result) => result.take(),
        }
    }

    fn end(&self, result: Result<(), Error>) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Ended(Some(result)));
        if let State::Waits(waker) = before {
            waker.wake();
        }
    }
}

/// The futures that wait, and the thread that works for them. The first wait starts the thread.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// The queue does not keep a future that was dropped.
    waiting: Vec<Weak<Wait>>,
    thread: Option<JoinHandle<()>>,
    has_ended: bool,
}

impl Waits {
    /// Adds a future that waits. `start` starts the thread, unless it runs already.
    ///
    /// # Errors
    /// [`Error::Ended`] after the end. [`Error::Thread`] if the thread could not be started.
    pub(crate) fn add(
        &self,
        wait: &Arc<Wait>,
        start: impl FnOnce() -> Result<JoinHandle<()>, ThreadError>,
    ) -> Result<(), Error> {
        let mut queue = self.queue.lock();
        if queue.has_ended {
            return Err(Error::Ended);
        }
        if queue.thread.is_none() {
            queue.thread = Some(start()?);
        }
        queue.waiting.push(Arc::downgrade(wait));
        drop(queue);
        self.changed.notify_one();
        Ok(())
    }

    /// Serves futures until the end: `save` waits for what one needs.
    pub(crate) fn serve(&self, save: impl Fn(&Unflushed) -> Result<(), Error>) {
        let mut queue = self.queue.lock();
        loop {
            self.changed.wait_while(&mut queue, |now| now.waiting.is_empty() && !now.has_ended);
            if queue.waiting.is_empty() {
                return;
            }
            let waiting = std::mem::take(&mut queue.waiting);
            drop(queue);
            for wait in waiting.iter().filter_map(Weak::upgrade) {
                let saved = save(&wait.needs);
                // A waker is the program's code. Its panic must not end the other waits.
                let _ = catch_panic("durable", || wait.end(saved));
            }
            queue = self.queue.lock();
        }
    }

    /// Lets the thread end, once the futures that wait have their results. Gives the thread.
    pub(crate) fn end(&self) -> Option<JoinHandle<()>> {
        let mut queue = self.queue.lock();
        queue.has_ended = true;
        let thread = queue.thread.take();
        drop(queue);
        self.changed.notify_all();
        thread
    }
}
