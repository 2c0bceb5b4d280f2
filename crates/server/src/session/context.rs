//! The context of a command's handler.

use std::sync::Arc;

use stillpoint::Tx;
use stillpoint_io::SeededRng;

use super::client::{Blocked, BlockedState, Client, DerivedKeys};
use super::commands::Commands;
use super::spec::Spec;
use crate::config::{Db, ServerConfig};
use crate::error::{CmdError, CmdResult};
use crate::heap::Heap;
use crate::keyspace::{Keys, LoopKeys, WaiterId, Wanted};
use crate::resp::{Args, Mark, Reply};
use crate::shared::Shared;
use crate::shared::auth::Auth;
use crate::shared::loading::LoadingProgress;
use crate::shared::stats::WorkerStats;

/// State of one event loop, passed to each of its commands.
#[derive(Debug)]
pub(crate) struct Local {
    /// Number of the event loop.
    pub(crate) worker: usize,
    pub(crate) commands: &'static Commands,
    pub(crate) stats: Arc<WorkerStats>,
    pub(crate) keys: LoopKeys,
    /// Longest value of this pass, in bytes.
    pub(crate) max_bulk_bytes: u64,
}

impl Local {
    pub(crate) fn new(worker: usize, shared: &Shared, commands: &'static Commands) -> Self {
        let stats = Arc::clone(&shared.workers[worker]);
        let keys = shared.keyspace.loop_keys(worker, &*shared.config.rng);
        let mut local = Self { worker, commands, stats, keys, max_bulk_bytes: 0 };
        local.read_params(shared);
        local
    }

    /// Reads the parameters on which the next commands depend.
    pub(crate) fn read_params(&mut self, shared: &Shared) {
        self.max_bulk_bytes = shared.max_bulk_bytes();
        self.keys.small = shared.params.small_limits();
    }
}

/// The context of one command.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) client: &'a mut Client,
    pub(crate) reply: &'a mut Reply,
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) local: &'a mut Local,
    /// Slot of the command's first key; beyond 0 only inside `EXEC`.
    pub(crate) first_slot: u32,
    /// Whether the command may wait for keys.
    pub(crate) may_wait: bool,
    /// Whether the command may run again with further keys.
    pub(crate) may_derive: bool,
}

impl Context<'_> {
    /// Wall time of this pass, in milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.local.keys.now_ms
    }

    /// Random numbers on which the writes of a command depend. A log of calls keeps their seed.
    ///
    /// # Errors
    /// The transaction has no declared keys.
    pub(crate) fn random_numbers(&self, tx: &mut Tx<'_>) -> Result<SeededRng, CmdError> {
        Ok(SeededRng::new(tx.random()?))
    }

    /// The client's database.
    pub(crate) fn db(&self) -> Db {
        self.client.db
    }

    /// The heap that the command may take for copies.
    pub(crate) fn heap(&self) -> Heap {
        Heap::beside(self.shared.keyspace.max_memory_bytes())
    }

    /// The keys that the command declared.
    #[inline]
    pub(crate) fn keys(&mut self) -> Keys<'_> {
        let Self { client, shared, local, first_slot, .. } = self;
        Keys::new(&shared.keyspace, &mut local.keys, client.db, *first_slot)
    }

    /// Whether the command has waited, and runs again.
    pub(crate) fn has_waited(&self) -> bool {
        self.client.blocked.is_some()
    }

    /// Ends a run that has found nothing at the first `count` keys, from argument `first` on. The command
    /// now waits until one of these keys has what it wants, for `timeout_ms` at most (0: for ever). Returns
    /// false if the command has waited that long. The command then answers that it found nothing.
    ///
    /// # Errors
    /// `CLIENT UNBLOCK` has ended the wait with an error.
    pub(crate) fn wait_for_keys(
        &mut self,
        tx: &mut Tx<'_>,
        args: Args<'_>,
        (first, count): (usize, usize),
        (wanted, timeout_ms): (Wanted, u64),
    ) -> Result<bool, CmdError> {
        // The client's own event loop, also while the client is away from it.
        let id = WaiterId { worker: self.client.info.worker, client: self.client.info.id };
        let wish = (wanted, self.reply.is_resp3());
        let is_stale =
            |blocked: &Blocked| blocked.state == BlockedState::Runs && blocked.waiting.is_stale();
        if let Some(mut blocked) = self.client.blocked.take_if(|blocked| is_stale(blocked)) {
            let keys = args.from(first).take(count);
            self.keys().wait_elsewhere(tx, keys, &mut blocked.waiting);
            self.client.blocked = Some(blocked);
        }
        if let Some(blocked) = &mut self.client.blocked {
            blocked.waiting.settle();
            let state = std::mem::replace(&mut blocked.state, BlockedState::Waits);
            if matches!(state, BlockedState::TimedOut | BlockedState::Unblocked) {
                self.client.blocked = None;
            }
            return match state {
                BlockedState::Unblocked => Err(CmdError::UNBLOCKED),
                state => Ok(state != BlockedState::TimedOut),
            };
        }
        if !self.may_wait {
            return Ok(false);
        }
        let waiting = self.keys().wait_for(tx, args.from(first).take(count), wish, id);
        let now_ms = self.shared.config.clock.monotonic_ns() / 1_000_000;
        let until_ms = if timeout_ms == 0 { u64::MAX } else { now_ms.saturating_add(timeout_ms) };
        let state = BlockedState::Waits;
        self.client.blocked = Some(Box::new(Blocked { waiting, until_ms, state }));
        Ok(true)
    }

    /// Ends the commands of a transaction: serves the clients that wait for the keys which it has made.
    ///
    /// # Errors
    /// The store refuses a write, or the commands are to run again.
    #[inline]
    pub(crate) fn serve(&mut self, tx: &mut Tx<'_>) -> CmdResult {
        if self.local.keys.serving.is_done() {
            return Ok(());
        }
        (self.local.commands.serve)(self, tx)
    }

    /// Tells which keys a command needs behind its own `own` keys. Returns `Ok` if the command has
    /// declared them.
    ///
    /// # Errors
    /// The command is to run again, and must pass this on. Inside `EXEC` a command cannot run
    /// again.
    pub(crate) fn derive_keys(&mut self, own: u32, mut keys: Vec<Vec<u8>>) -> CmdResult {
        keys.sort_unstable();
        keys.dedup();
        let declared = self.client.derived.as_ref().map_or(&[][..], |derived| &derived.keys);
        if keys.iter().all(|key| declared.binary_search(key).is_ok()) {
            return Ok(());
        }
        if !self.may_derive {
            return Err(CmdError::fixed(
                "ERR BY and GET patterns with keys of their own are not supported inside MULTI",
            ));
        }
        self.client.derived = Some(Box::new(DerivedKeys { first: own, keys }));
        Err(CmdError::NEEDS_KEYS)
    }

    /// The number of a key that [`derive_keys`](Self::derive_keys) has named.
    pub(crate) fn derived_slot(&self, key: &[u8]) -> Option<u32> {
        let derived = self.client.derived.as_ref()?;
        let at = derived.keys.binary_search_by(|other| other.as_slice().cmp(key)).ok()?;
        Some(derived.first + at as u32)
    }

    /// Whether the client can get the replies so far. Otherwise its connection ends.
    ///
    /// # Errors
    /// A reply is longer than the client may have. The transaction is to be rolled back.
    pub(crate) fn check_reply(&self) -> CmdResult {
        if self.reply.overflowed() { Err(CmdError::REPLY_TOO_LONG) } else { Ok(()) }
    }

    /// Counts a call of a command.
    pub(crate) fn count_call(&self, spec: &Spec) {
        self.local.stats.count_call(spec.id);
    }

    /// Replaces the reply since `mark` by an error.
    pub(crate) fn answer_error(&mut self, mark: Mark, error: &CmdError) {
        self.reply.truncate(mark);
        self.reply.error(error.message());
        self.local.stats.count_error(error.message());
    }
}

/// The context of a command while data is loaded and no engine exists yet.
#[derive(Debug)]
pub(crate) struct LoadingContext<'a> {
    pub(crate) client: &'a mut Client,
    pub(crate) reply: &'a mut Reply,
    pub(crate) config: &'a ServerConfig,
    pub(crate) auth: &'a Auth,
    pub(crate) progress: &'a LoadingProgress,
}
