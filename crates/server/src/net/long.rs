//! Threads for long commands, so that no client waits for the long command of another.
//!
//! ```text
//! event loop   plan ─ park client 7 ─ others ─ others ─ others ─ client 7 is back: replies, goes on
//! this thread          └── its command, as a round of one call ──┘
//! ```
//! A parked client is away from its event loop with its socket, its buffers and its transaction. So
//! none of its further commands begins, its replies stay in order, and its buffers still count. A
//! kill, the end of its connection or of the server take effect once the client is back.
//!
//! Each client has one command here at most. So the queue is bounded by the number of clients, and
//! its bytes by the limit of all clients.
//!
//! A write that found no memory comes here, too, if the memory of a flushed database is being
//! freed. The write waits here for that memory, a tenth of a second at most. If the server gives up
//! keys at full memory, the write asks for that and waits, a second at most.
//!
//! A command that needs a record which is not loaded yet comes here, too, and may wait for the disk.
//!
//! The first thread takes any command, the oldest first. The others take none that is very long, so
//! that commands of a millisecond or two do not queue up behind one of a second.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stillpoint::Session;

use super::conn::Conn;
use super::connections::Connections;
use super::evictor::asked_bytes;
use super::plan::Plan;
use super::round::Round;
use crate::error::ServerError;
use crate::families::COMMANDS;
use crate::resp::{Args, Span};
use crate::session::context::{Context, Local};
use crate::session::route::{Route, joins_batch, run_now};
use crate::session::spec::{Handler, Spec};
use crate::shared::Shared;
use crate::shared::registry::RELAXED;

/// Threads for long commands.
pub(crate) const LONG_THREADS: usize = 2;
/// A command of this work, in units of about a microsecond, leaves its event loop.
pub(crate) const LONG_WORK: usize = 1024;
/// A command of this work is left to the first thread.
const VERY_LONG_WORK: usize = 16 * LONG_WORK;
/// Longest wait of a write for memory that is being freed.
const ROOM_PATIENCE: Duration = Duration::from_millis(100);
/// Longest wait of a write for memory of keys that are given up, from the moment on at which it leaves its
/// event loop.
const EVICTION_PATIENCE: Duration = Duration::from_secs(1);
/// The same from the moment on at which a thread takes it, if that is later.
const SERVED_PATIENCE: Duration = Duration::from_millis(100);
const ROOM_LOOK: Duration = Duration::from_millis(1);
/// A write of more than the limit without this part of it is refused before any key is given up for it.
const NEVER_PART: usize = 16;
/// A write that finds no room asks for this multiple of its size, and some more times. The memory that it
/// gets may lie in pieces of other sizes.
const ASKS_OF_SIZE: usize = 4;
const ASKS_MIN: usize = 64;
/// Interval at which a thread without work frees its garbage, as long as it has some.
const IDLE_TURN: Duration = Duration::from_millis(50);

/// A command that leaves its event loop: the first of its client's input.
#[derive(Debug)]
pub(crate) struct LongCall {
    pub(crate) spec: &'static Spec,
    /// Where the request begins in the client's input, and its length.
    pub(crate) base: usize,
    pub(crate) used: usize,
    pub(crate) spans: Box<[Span]>,
    /// Work of the command, in units of about a microsecond.
    pub(crate) work: usize,
}

/// A parked client. If the thread that has it panics, its event loop learns that it is gone.
#[derive(Debug)]
struct Parked {
    desk: Arc<LongCommands>,
    event_loop: usize,
    /// The client's number in its event loop.
    id: usize,
    conn: Option<Box<Conn>>,
    call: LongCall,
    /// When the client left its event loop, in monotonic nanoseconds.
    since_ns: u64,
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.desk.back[self.event_loop].lock().push((self.id, self.conn.take()));
        self.desk.shared.mailboxes.wake(self.event_loop);
    }
}

/// A client that is back in its event loop, by its number there; `None` if it is lost.
pub(crate) type Returned = (usize, Option<Box<Conn>>);

/// The queue of parked clients, from event loops to the threads for long commands and back.
#[derive(Debug)]
pub(crate) struct LongCommands {
    shared: Arc<Shared>,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Clients on their way back, by event loop.
    back: Vec<Mutex<Vec<Returned>>>,
}

#[derive(Debug, Default)]
struct Queue {
    parked: VecDeque<Parked>,
    over: bool,
}

impl LongCommands {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let back = (0..shared.config.threads).map(|_| Mutex::default()).collect();
        Self { shared, queue: Mutex::default(), changed: Condvar::new(), back }
    }

    /// Takes a client over from its event loop, where it has number `id`, for one command.
    pub(crate) fn park(
        self: &Arc<Self>,
        event_loop: usize,
        id: usize,
        conn: Box<Conn>,
        call: LongCall,
    ) {
        let desk = Arc::clone(self);
        let since_ns = self.shared.config.clock.monotonic_ns();
        let parked = Parked { desk, event_loop, id, conn: Some(conn), call, since_ns };
        self.queue.lock().parked.push_back(parked);
        // Each thread decides whether it may take the command.
        self.changed.notify_all();
    }

    /// The clients that are back.
    pub(crate) fn returned(&self, event_loop: usize) -> Vec<Returned> {
        std::mem::take(&mut *self.back[event_loop].lock())
    }

    /// Ends the threads. Commands that have not begun do not begin.
    pub(crate) fn end(&self) {
        let mut queue = self.queue.lock();
        queue.over = true;
        let left = std::mem::take(&mut queue.parked);
        drop(queue);
        self.changed.notify_all();
        drop(left);
    }
}

/// Bytes of memory that a call needs, about.
fn needed_bytes(conn: &Conn, call: &LongCall) -> usize {
    match (&conn.client.multi, call.spec.handler) {
        (Some(multi), Handler::Exec) => multi.memory(),
        _ => call.used,
    }
}

/// Whether a write of so many bytes is refused however many keys are given up for it.
fn never_fits(bytes: usize, limit_bytes: usize) -> bool {
    bytes > limit_bytes - limit_bytes / NEVER_PART
}

/// The next step of a thread.
enum Next {
    Run(Box<Parked>),
    Idle,
    End,
}

/// One thread for long commands.
pub(crate) struct LongThread {
    number: usize,
    desk: Arc<LongCommands>,
    shared: Arc<Shared>,
    session: Session,
    local: Local,
    plan: Plan,
    conns: Connections,
}

impl LongThread {
    /// Thread `number` of [`LONG_THREADS`].
    pub(crate) fn new(number: usize, desk: &Arc<LongCommands>, session: Session) -> Self {
        let (desk, shared) = (Arc::clone(desk), Arc::clone(&desk.shared));
        let local = Local::new(shared.config.threads + number, &shared, &COMMANDS);
        let (plan, conns) = (Plan::default(), Connections::default());
        Self { number, desk, shared, session, local, plan, conns }
    }

    /// Runs commands until the queue is closed.
    ///
    /// # Errors
    /// When commits cannot be made durable.
    pub(crate) fn run(&mut self) -> Result<(), ServerError> {
        let mut has_garbage = false;
        loop {
            match self.next(has_garbage) {
                Next::End => return Ok(()),
                Next::Idle => {}
                Next::Run(parked) => self.serve(*parked)?,
            }
            has_garbage = self.session.idle();
        }
    }

    /// Waits for a command that this thread may take. A thread with garbage waits for a short time
    /// only.
    fn next(&self, has_garbage: bool) -> Next {
        let mut queue = self.desk.queue.lock();
        loop {
            if queue.over {
                return Next::End;
            }
            let mine = |parked: &Parked| self.number == 0 || parked.call.work < VERY_LONG_WORK;
            let oldest = queue.parked.iter().position(mine);
            if let Some(parked) = oldest.and_then(|at| queue.parked.remove(at)) {
                return Next::Run(Box::new(parked));
            }
            if !has_garbage {
                self.desk.changed.wait(&mut queue);
            } else if self.desk.changed.wait_for(&mut queue, IDLE_TURN).timed_out() {
                return Next::Idle;
            }
        }
    }

    fn serve(&mut self, mut parked: Parked) -> Result<(), ServerError> {
        let Some(mut conn) = parked.conn.take() else { return Ok(()) };
        // Others may have waited on this thread before.
        let served_ns = self.shared.config.clock.monotonic_ns() + SERVED_PATIENCE.as_nanos() as u64;
        let until_ns = served_ns.max(parked.since_ns + EVICTION_PATIENCE.as_nanos() as u64);
        if std::mem::take(&mut conn.needs_room) || self.will_need_room(&parked.call) {
            self.await_room(needed_bytes(&conn, &parked.call), parked.since_ns, until_ns);
        }
        self.local.keys.now_ms = self.shared.config.clock.wall_ms();
        let id = self.conns.insert_boxed(conn);
        let client = self.conns.get(id).map(|conn| &conn.client);
        if client.is_some_and(|client| joins_batch(parked.call.spec, client)) {
            self.run_as_round(id, &parked.call, until_ns);
        } else {
            self.run_now(id, &parked.call);
        }
        self.local.keys.delete_expired(&mut self.session, &self.shared.keyspace);
        for worker in self.local.keys.take_wakes() {
            self.shared.mailboxes.wake(worker);
        }
        for worker in self.shared.keyspace.waiters.take_passed_on() {
            self.shared.mailboxes.wake(worker);
        }
        self.make_durable(id)?;
        parked.conn = self.conns.remove(id);
        drop(parked);
        Ok(())
    }

    /// Whether the call should wait for memory that is being freed. The call cannot run twice,
    /// since the request is freed before the commit.
    fn will_need_room(&self, call: &LongCall) -> bool {
        let limit = self.shared.max_memory_bytes();
        limit > 0 && self.shared.data_bytes() + call.used as u64 > limit
    }

    /// Waits for so much memory that is being freed, outside of any read section.
    fn await_room(&self, bytes: usize, since_ns: u64, until_ns: u64) {
        let Shared { config, keyspace, .. } = &*self.shared;
        let (clock, engine) = (&config.clock, keyspace.engine());
        let returned_ns = since_ns + ROOM_PATIENCE.as_nanos() as u64;
        while engine.memory_returns() && clock.monotonic_ns() < returned_ns {
            clock.sleep(ROOM_LOOK);
        }
        let limit_bytes = engine.memory_room().limit_bytes;
        if never_fits(bytes, limit_bytes) {
            return;
        }
        let lacks_room = || engine.memory_room().spare_bytes < bytes;
        let mut asks = bytes / asked_bytes(limit_bytes) * ASKS_OF_SIZE + ASKS_MIN;
        while keyspace.eviction.makes_room() && lacks_room() && clock.monotonic_ns() < until_ns {
            if asks > 0 {
                asks -= 1;
                keyspace.eviction.ask();
            }
            clock.sleep(ROOM_LOOK);
        }
    }

    /// Runs the call as an event loop runs the calls of a round. If the call finds no memory and the
    /// server gives up keys, the call runs again.
    fn run_as_round(&mut self, id: usize, call: &LongCall, until_ns: u64) {
        let Self { plan, conns, shared, local, session, .. } = self;
        let clock = &shared.config.clock;
        let limit_bytes = shared.keyspace.engine().memory_room().limit_bytes;
        let mut asks = call.used / asked_bytes(limit_bytes) * ASKS_OF_SIZE + ASKS_MIN;
        let begin = |plan: &mut Plan| {
            let now_ns = clock.monotonic_ns();
            plan.begin(1, now_ns / 1_000_000, u64::MAX, usize::MAX);
            let waits = now_ns < until_ns && !never_fits(call.used, limit_bytes);
            plan.waits_for_room = waits && shared.keyspace.eviction.makes_room();
        };
        begin(plan);
        plan.push(id, call.base, call.used, &call.spans, call.spec);
        if let Some(conn) = conns.get_mut(id) {
            conn.pending += 1;
        }
        loop {
            let limit_us = shared.params.slowlog_slower_us.load(RELAXED);
            Round::new(plan, conns, shared, local, limit_us >= 0).execute(session);
            plan.give_back(conns, &mut Vec::new());
            // The event loop of a client that waits learns it when the client is back.
            plan.blocked.clear();
            let Some(conn) = conns.get_mut(id) else { return };
            if !std::mem::take(&mut conn.needs_room) {
                return;
            }
            if asks > 0 {
                asks -= 1;
                shared.keyspace.eviction.ask();
            }
            clock.sleep(ROOM_LOOK);
            // The garbage of this thread may be the memory that is missing.
            session.idle();
            conn.leaves_with = 0;
            begin(plan);
            if plan.take_postponed(id, conn).is_some() {
                return;
            }
        }
    }

    /// Runs the command as an event loop runs a command during planning.
    fn run_now(&mut self, id: usize, call: &LongCall) {
        let Self { conns, shared, local, session, .. } = self;
        let Some(conn) = conns.get_mut(id) else { return };
        let args = Args::new(&conn.input[call.base..call.base + call.used], &call.spans);
        let (client, reply) = (&mut conn.client, &mut conn.reply);
        let mut ctx = Context {
            client,
            reply,
            shared,
            local,
            first_slot: 0,
            may_wait: false,
            may_derive: false,
        };
        run_now(&mut ctx, Route::Now(call.spec), args, session);
    }

    /// If the client's replies wait for a flush: waits until the reply may leave.
    fn make_durable(&mut self, id: usize) -> Result<(), ServerError> {
        let Some(conn) = self.conns.get_mut(id) else { return Ok(()) };
        let engine = self.shared.keyspace.engine();
        let Some(unflushed) = conn.client.meet(&mut self.session, self.shared.is_strict()) else {
            return Ok(());
        };
        if !conn.client.is_strict() || engine.is_durable(&unflushed) {
            return Ok(());
        }
        let clock = &self.shared.config.clock;
        let start_ns = clock.monotonic_ns();
        let done = engine.make_durable(&unflushed);
        self.local.stats.flushes.add(1);
        self.local.stats.flush_nanoseconds.add(clock.monotonic_ns() - start_ns);
        done.map_err(|error| ServerError::Flush(error.to_string()))
    }
}
