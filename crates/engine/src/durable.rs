//! Waits for what survives any crash: by a call, or by a future without a runtime.
//!
//! ```text
//! future ── polled for the first time ─▶ queue ─▶ the engine's thread: flush or checkpoint
//!    ▲                                                      │
//!    └───────────────── waker, result ◀─────────────────────┘
//! ```

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};
use stillpoint_checkpoint::CheckpointError;
use stillpoint_format::Stamp;
use stillpoint_io::{JoinHandle, catch_panic};
use stillpoint_sync::{mutant, planted};

use crate::checkpoints;
use crate::error::Error;
use crate::session::Unflushed;
use crate::shared::Shared;

impl Shared {
    /// Everything that was committed so far.
    pub(crate) fn appended(&self) -> Unflushed {
        // A commit is appended before anybody sees it.
        let lasts = self.journal.positions_before_epoch(u64::MAX);
        let stamps = lasts.iter().map(|last| Stamp::new(last.gsn, last.log)).collect();
        Unflushed { stamps, epoch: self.store.driver().now().epoch() }
    }

    /// Whether what somebody has met survives any crash.
    pub(crate) fn is_saved(&self, needs: &Unflushed) -> bool {
        mutant!(SerialAheadOfClosed => return true);
        if self.records_commits {
            return needs.stamps.iter().all(|&stamp| self.journal.is_closed(stamp));
        }
        let has = |epoch: u64| mutant!(epoch > needs.epoch, SerialOfPresentEpoch => epoch >= needs.epoch);
        // A store without new commits has nothing that the newest checkpoint lacks.
        has(self.checkpoints.published_epoch()) || !self.checkpoints.lacks_commits(self)
    }

    /// Waits until what somebody has met survives any crash. With a journal this flushes; without
    /// one it takes a checkpoint. Call this outside of any transaction.
    pub(crate) fn make_saved(self: &Arc<Self>, needs: &Unflushed) -> Result<(), Error> {
        if self.is_saved(needs) {
            return Ok(());
        }
        self.life.check_read()?;
        if self.records_commits {
            return self.make_durable(&needs.stamps);
        }
        // One at a time: the checkpoint of one serves those who asked before it began.
        let _turn = self.checkpoints.take_turn_to_save();
        if self.is_saved(needs) {
            return Ok(());
        }
        match checkpoints::take(self) {
            Ok(_) => Ok(()),
            Err(Error::Checkpoint(CheckpointError::Cancelled)) => Err(Error::Ended),
            Err(error) => Err(error),
        }
    }
}

/// A future that ends once transactions of a session survive any crash.
/// [`Session::durable`](crate::Session::durable) makes one.
///
/// The future may be dropped at any time. It ends with an error if the log fails or the engine is
/// closed before.
#[must_use = "a future does nothing unless it is polled"]
pub struct Durable {
    shared: Arc<Shared>,
    needs: Unflushed,
    wait: Option<Arc<Wait>>,
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable").field("needs", &self.needs).finish_non_exhaustive()
    }
}

impl Durable {
    pub(crate) fn new(shared: Arc<Shared>, needs: Unflushed) -> Self {
        Self { shared, needs, wait: None }
    }
}

impl Future for Durable {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { shared, needs, wait } = &mut *self;
        if let Some(known) = wait {
            let ended = known.look(context.waker());
            if ended.is_some() {
                *wait = None;
            }
            return ended.map_or(Poll::Pending, Poll::Ready);
        }
        if shared.is_saved(needs) {
            return Poll::Ready(Ok(()));
        }
        if !shared.config.environment.background {
            // There is no thread that could work meanwhile.
            return Poll::Ready(shared.make_saved(needs));
        }
        let state = Mutex::new(State::Waits(context.waker().clone()));
        let new = Arc::new(Wait { needs: needs.clone(), state });
        shared.waits.add(shared, &new)?;
        *wait = Some(new);
        Poll::Pending
    }
}

/// A future that waits.
#[derive(Debug)]
struct Wait {
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
    /// Takes the result. If there is none yet, it will wake `waker`.
    fn look(&self, waker: &Waker) -> Option<Result<(), Error>> {
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
    fn add(&self, shared: &Arc<Shared>, wait: &Arc<Wait>) -> Result<(), Error> {
        let mut queue = self.queue.lock();
        if queue.has_ended {
            return Err(Error::Ended);
        }
        if queue.thread.is_none() {
            let its = shared.clone();
            queue.thread = Some(stillpoint_io::spawn("durable", move || its.waits.serve(&its))?);
        }
        queue.waiting.push(Arc::downgrade(wait));
        drop(queue);
        self.changed.notify_one();
        Ok(())
    }

    /// Serves futures until the engine ends.
    fn serve(&self, shared: &Arc<Shared>) {
        let mut queue = self.queue.lock();
        loop {
            self.changed.wait_while(&mut queue, |now| now.waiting.is_empty() && !now.has_ended);
            if queue.waiting.is_empty() {
                return;
            }
            let waiting = std::mem::take(&mut queue.waiting);
            drop(queue);
            for wait in waiting.iter().filter_map(Weak::upgrade) {
                let saved = catch_panic("durable", || shared.make_saved(&wait.needs));
                wait.end(saved.unwrap_or_else(|panic| Err(shared.fail_by_panic(panic))));
            }
            queue = self.queue.lock();
        }
    }

    /// Lets the thread end, after the futures that wait have their results. Gives the thread.
    pub(crate) fn end(&self) -> Option<JoinHandle<()>> {
        let mut queue = self.queue.lock();
        queue.has_ended = true;
        let thread = queue.thread.take();
        drop(queue);
        self.changed.notify_all();
        thread
    }
}
