//! The state of one client, without its socket.

use std::sync::Arc;

use stillpoint::{CheckpointCounts, DurableSerials, Session, Unflushed};

use super::spec::Spec;
use crate::config::Db;
use crate::keyspace::{Waiting, Watched};
use crate::resp::{Args, Reply, Span};
use crate::shared::Shared;
use crate::shared::auth::Auth;
use crate::shared::registry::{ClientInfo, RELAXED};

/// One queued command: its row, its arguments, and the number of keys that it declared.
#[derive(Clone, Copy, Debug)]
struct Queued {
    spec: &'static Spec,
    first_span: u32,
    spans: u32,
    keys: u32,
}

/// The queue between `MULTI` and `EXEC`.
#[derive(Debug, Default)]
pub(crate) struct Multi {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    queued: Vec<Queued>,
    /// What commands have answered that act on others and run once, with their numbers.
    answers: Vec<(usize, Box<[u8]>)>,
    /// Whether a command was refused while queueing, so that `EXEC` will refuse the queue.
    pub(crate) dirty: bool,
}

impl Multi {
    /// Appends a command, copying its arguments.
    pub(crate) fn push(&mut self, spec: &'static Spec, args: Args<'_>) {
        let first_span = self.spans.len() as u32;
        for arg in args.from(0) {
            let start = self.bytes.len() as u32;
            self.bytes.extend_from_slice(arg);
            self.spans.push(Span { start, len: arg.len() as u32 });
        }
        self.queued.push(Queued { spec, first_span, spans: args.len() as u32, keys: 0 });
    }

    pub(crate) fn len(&self) -> usize {
        self.queued.len()
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity()
            + self.spans.capacity() * size_of::<Span>()
            + self.queued.capacity() * size_of::<Queued>()
            + self.answers.iter().map(|(_, answer)| answer.len()).sum::<usize>()
    }

    /// Command `i` with its arguments.
    pub(crate) fn command(&self, i: usize) -> (&'static Spec, Args<'_>) {
        let q = self.queued[i];
        let spans = &self.spans[q.first_span as usize..(q.first_span + q.spans) as usize];
        (q.spec, Args::new(&self.bytes, spans))
    }

    pub(crate) fn specs(&self) -> impl Iterator<Item = &'static Spec> {
        self.queued.iter().map(|q| q.spec)
    }

    /// The answer of command `i`, if an earlier run of the queue had it.
    pub(crate) fn answer(&self, i: usize) -> Option<&[u8]> {
        self.answers.iter().find(|(of, _)| *of == i).map(|(_, answer)| &**answer)
    }

    /// Keeps the answer of command `i` for a further run of the queue.
    pub(crate) fn keep_answer(&mut self, i: usize, answer: &[u8]) {
        self.answers.push((i, answer.into()));
    }

    pub(crate) fn set_key_count(&mut self, i: usize, keys: u32) {
        self.queued[i].keys = keys;
    }

    pub(crate) fn key_count(&self, i: usize) -> u32 {
        self.queued[i].keys
    }
}

/// The queue of an `EXEC` that has run and whose transaction has not ended yet, and what went with it.
#[derive(Debug)]
pub(crate) struct RanQueue {
    pub(crate) multi: Box<Multi>,
    pub(crate) watched: Vec<Watched>,
    /// The database before the run.
    pub(crate) db: Db,
    /// Whether the commands of the queue are counted as calls.
    pub(crate) is_counted: bool,
}

/// Which replies a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    On,
    Off,
    /// Replies, but not to the next command.
    SkipNext,
    /// Replies, but not to this command.
    Skip,
}

/// A command that waits for keys, and runs again when one is made.
#[derive(Debug)]
pub(crate) struct Blocked {
    pub(crate) waiting: Waiting,
    /// The end of the wait, in monotonic milliseconds.
    pub(crate) until_ms: u64,
    pub(crate) state: BlockedState,
}

/// The state of a command that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockedState {
    Waits,
    /// A key was made: the command runs again.
    Runs,
    /// The command runs for the last time, and answers that it has waited in vain.
    TimedOut,
    /// As `TimedOut`, with an error.
    Unblocked,
    /// Another transaction has served it. The event loop sends its reply.
    Served,
}

/// Keys whose names follow from values that a command has read, in ascending order. When the
/// command runs again, it declares these keys for reading, behind its own keys.
#[derive(Debug)]
pub(crate) struct DerivedKeys {
    /// The number of the first of these keys among all keys of the command.
    pub(crate) first: u32,
    pub(crate) keys: Vec<Vec<u8>>,
}

/// A `WAITAOF` that waits.
#[derive(Debug)]
pub(crate) struct AwaitedFlush {
    /// What is to be durable.
    pub(crate) wanted: Unflushed,
    /// Whether the command waits for that, or for replicas alone.
    pub(crate) local: bool,
    /// Whether the command waits for replicas, of which there are none.
    pub(crate) replicas: bool,
    /// Whether the client wants the reply.
    pub(crate) replies: bool,
    /// The end of the wait, in monotonic milliseconds.
    pub(crate) until_ms: u64,
}

/// Takes what the session has met since the last call. `is_strict` says that the store notes it in
/// any case.
pub(crate) fn take_met(session: &mut Session, is_strict: bool) -> Unflushed {
    if is_strict { session.unflushed() } else { session.dependencies() }
}

impl AwaitedFlush {
    /// Answers how many logs have what was to be durable, and how many replicas.
    pub(crate) fn answer(&self, reply: &mut Reply, shared: &Shared) {
        let has_it = shared.has_journal() && shared.keyspace.engine().is_durable(&self.wanted);
        reply.array(2);
        reply.int(i64::from(has_it));
        reply.int(0);
    }
}

/// The state of one client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) db: Db,
    pub(crate) authenticated: bool,
    pub(crate) multi: Option<Box<Multi>>,
    pub(crate) watched: Vec<Watched>,
    /// Present until the transaction of an `EXEC` ends, if the queue can run once more.
    pub(crate) ran: Option<RanQueue>,
    pub(crate) reply_mode: ReplyMode,
    /// The counts before the `SAVE` whose end the next request waits for, if any.
    pub(crate) awaited_save: Option<CheckpointCounts>,
    /// The `WAITAOF` that waits.
    pub(crate) awaited_flush: Option<Box<AwaitedFlush>>,
    /// Whether replies wait until they are durable, although the client has asked for others. They
    /// were made before that.
    pub(crate) was_strict: bool,
    /// Number of requests of the client that have run.
    pub(crate) requests: u64,
    /// What these need to survive any crash, once the client has asked.
    pub(crate) durable: Option<Box<DurableSerials>>,
    /// Until this moment, in monotonic milliseconds, the client is sent nothing and its next request
    /// waits. 0: the client need not wait.
    pub(crate) silent_until_ms: u64,
    /// The command that waits for keys.
    pub(crate) blocked: Option<Box<Blocked>>,
    /// Further keys of the command that runs next.
    pub(crate) derived: Option<Box<DerivedKeys>>,
    /// Whether the connection is closed once the replies so far are sent.
    pub(crate) closing: bool,
    /// The data of the client that other threads see.
    pub(crate) info: Arc<ClientInfo>,
}

impl Client {
    pub(crate) fn new(info: Arc<ClientInfo>, authenticated: bool) -> Self {
        Self {
            db: 0,
            authenticated,
            multi: None,
            watched: Vec::new(),
            ran: None,
            reply_mode: ReplyMode::On,
            awaited_save: None,
            awaited_flush: None,
            was_strict: false,
            requests: 0,
            durable: None,
            silent_until_ms: 0,
            blocked: None,
            derived: None,
            closing: false,
            info,
        }
    }

    /// Whether the client may do nothing before it has authenticated.
    pub(crate) fn must_authenticate(&self, auth: &Auth) -> bool {
        !self.authenticated && auth.is_required()
    }

    /// Brings the queue back that has just run, so that it runs once more.
    pub(crate) fn bring_queue_back(&mut self, ran: RanQueue) {
        (self.multi, self.watched, self.db) = (Some(ran.multi), ran.watched, ran.db);
    }

    /// Whether the next request waits for the end of the last one.
    pub(crate) fn is_waiting(&self) -> bool {
        self.awaited_save.is_some()
            || self.awaited_flush.is_some()
            || self.silent_until_ms > 0
            || self.waits_for_keys()
    }

    /// Whether the replies of this pass wait until they are durable.
    pub(crate) fn is_strict(&self) -> bool {
        self.was_strict || self.info.strict.load(RELAXED)
    }

    /// Whether a command waits for keys.
    pub(crate) fn waits_for_keys(&self) -> bool {
        self.blocked.as_ref().is_some_and(|blocked| blocked.state == BlockedState::Waits)
    }

    /// Whether a command that waited for keys was served.
    pub(crate) fn is_served(&self) -> bool {
        self.blocked.as_ref().is_some_and(|blocked| blocked.state == BlockedState::Served)
    }

    /// Whether somebody must know what the client's requests have met.
    pub(crate) fn needs_met(&self) -> bool {
        self.durable.is_some() || self.is_strict()
    }

    /// Notes what the client's requests so far need to survive any crash, if the client has asked.
    pub(crate) fn note_met(&mut self, met: &Unflushed) {
        if let Some(durable) = &mut self.durable
            && durable.newest() < self.requests
        {
            durable.add(self.requests, met.clone());
        }
    }

    /// Takes and notes what the session has met, if somebody must know. `is_strict` says that all
    /// replies of the server wait for a flush, unless a client says otherwise.
    pub(crate) fn meet(&mut self, session: &mut Session, is_strict: bool) -> Option<Unflushed> {
        if !self.needs_met() {
            return None;
        }
        let met = take_met(session, is_strict);
        self.note_met(&met);
        Some(met)
    }

    /// Returns to the state of a new connection.
    pub(crate) fn reset(&mut self, authenticated: bool) {
        let info = Arc::clone(&self.info);
        info.names.lock().name.clear();
        // The reply to this command may be one that the client does not want.
        let skips = self.reply_mode == ReplyMode::Skip;
        let (was_strict, requests) = (self.is_strict(), self.requests);
        let durable = self.durable.take();
        *self = Self { was_strict, requests, durable, ..Self::new(info, authenticated) };
        if skips {
            self.reply_mode = ReplyMode::Skip;
        }
    }

    /// Bytes of memory of the queue and of the watched keys.
    pub(crate) fn memory(&self) -> usize {
        let derived = self.derived.as_ref().map_or(&[][..], |derived| &derived.keys);
        self.multi.as_ref().map_or(0, |multi| multi.memory())
            + derived.iter().map(|key| key.len() + size_of::<Vec<u8>>()).sum::<usize>()
            + self.watched.iter().map(Watched::memory).sum::<usize>()
    }
}
