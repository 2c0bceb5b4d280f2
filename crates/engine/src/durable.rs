//! Waits for what survives any crash: by a call, or by a future without a runtime.
//!
//! ```text
//! future ── polled for the first time ─▶ queue ─▶ the engine's thread: flush or checkpoint
//!    ▲                                                      │
//!    └───────────────── waker, result ◀─────────────────────┘
//! ```

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use stillpoint_checkpoint::CheckpointError;
use stillpoint_format::Stamp;
use stillpoint_io::catch_panic;
use stillpoint_sync::{mutant, planted};

use crate::checkpoints;
use crate::error::Error;
use crate::guards::Inside;
use crate::shared::Shared;
use crate::unflushed::Unflushed;
use crate::waits::Wait;

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
        let has =
            |epoch: u64| mutant!(epoch > needs.epoch, SerialOfPresentEpoch => epoch >= needs.epoch);
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
        // The checkpoint under way may have begun after the commits.
        self.checkpoints.wait_for_running();
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

impl Shared {
    /// As [`make_saved`](Self::make_saved), where a panic fails the store.
    fn save(self: &Arc<Self>, needs: &Unflushed) -> Result<(), Error> {
        let saved = catch_panic("durable", || self.make_saved(needs));
        saved.unwrap_or_else(|panic| Err(self.fail_by_panic(panic)))
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
    /// `None` if the transactions were found durable.
    needs: Option<Unflushed>,
    wait: Option<Arc<Wait>>,
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable").field("needs", &self.needs).finish_non_exhaustive()
    }
}

/// What a transaction refuses.
const AWAITING: &str = "awaiting a durable serial";

impl Durable {
    pub(crate) fn new(shared: Arc<Shared>, needs: Option<Unflushed>) -> Self {
        Self { shared, needs, wait: None }
    }
}

impl Future for Durable {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { shared, needs, wait } = &mut *self;
        if let Some(known) = wait {
            if let Some(ended) = known.look(context.waker()) {
                *wait = None;
                return Poll::Ready(ended);
            }
            Inside::refuse(AWAITING)?;
            return Poll::Pending;
        }
        let Some(needs) = needs.as_ref().filter(|needs| !shared.is_saved(needs)) else {
            return Poll::Ready(Ok(()));
        };
        // A checkpoint waits for the transaction around this call.
        Inside::refuse(AWAITING)?;
        if !shared.config.environment.background {
            // There is no thread that could work meanwhile.
            return Poll::Ready(shared.make_saved(needs));
        }
        let new = Arc::new(Wait::new(needs.clone(), context.waker().clone()));
        let start = || {
            let its = shared.clone();
            stillpoint_io::spawn("durable", move || its.life.waits.serve(|needs| its.save(needs)))
        };
        shared.life.waits.add(&new, start)?;
        *wait = Some(new);
        Poll::Pending
    }
}
