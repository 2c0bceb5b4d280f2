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
//! keys at full memory, the write asks for that and waits, a second at most. Both times begin when a
//! thread first takes it. Writes that wait are in a list of their own, and no thread waits with them. A
//! thread tries them again every millisecond, in turn with other commands.
//!
//! A command that needs a record which is not loaded yet comes here, too. Its run ends when it misses one.
//! The thread then reads the missed records, without a lock of a key or of the keyspace, and runs the
//! command again. While a server serves and loads, there are further threads for such commands alone: a
//! thread that waits for the disk needs no core.
//!
//! A command that meets a lock which another transaction holds for long comes here, too. The holder may wait
//! for a person, or read a large collection. No thread waits for the lock. The command is in the list of those
//! that wait, and is tried again every millisecond. When the store's longest wait for a lock is over, it fails
//! if the holder may wait for a person. Otherwise it waits on, on one of the threads. One command does so at a
//! time, and the others are tried again as before: the other thread takes commands.
//!
//! A command that stores a large collection runs twice here. The first run leaves a draft of the result.
//! Between the runs the thread writes the nodes of the draft, some at a time, without a lock of a key.
//!
//! The first thread takes any command, the oldest first. The second one takes none that is very long.
//! So commands of a millisecond or two do not queue up behind one of a second.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stillpoint::Session;

use super::conn::Conn;
use super::connections::Connections;
use super::evictor::asked_bytes;
use super::plan::{Plan, Progress};
use super::round::Round;
use super::waits::needs_memory;
use crate::error::ServerError;
use crate::families::COMMANDS;
use crate::keyspace::{Draft, Drafting, Keyspace, Written};
use crate::resp::{Args, Span};
use crate::session::context::{Context, Local};
use crate::session::exec::must_run_alone;
use crate::session::route::{Route, is_paused, joins_batch, run_now};
use crate::session::spec::{Handler, Spec};
use crate::shared::Shared;
use crate::shared::registry::RELAXED;

/// Threads for long commands, at most.
pub(crate) const LONG_THREADS: usize = 8;
/// Threads that take any long commands. The others read the disk while the server loads.
pub(crate) const LASTING_THREADS: usize = 2;
/// Threads that take very long commands which read the disk.
const WALKING_THREADS: usize = 4;
/// A command of this work, in units of about a microsecond, leaves its event loop.
pub(crate) const LONG_WORK: usize = 1024;
/// A command of this work is left to the first thread.
pub(super) const VERY_LONG_WORK: usize = 16 * LONG_WORK;
/// Longest wait of a write for memory that is being freed.
const ROOM_PATIENCE: Duration = Duration::from_millis(100);
/// Longest wait of a write for memory of keys that are given up, while none is on its way.
const EVICTION_PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait while the memory of deleted keys waits for the log. A busy device may stall for seconds.
const FLUSH_PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait of a command for a checkpoint that frees the log.
const LOG_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two tries of a command that waits.
const ROOM_LOOK: Duration = Duration::from_millis(1);
/// The same for a command over whole databases. A try may take a millisecond, and commands of keys wait
/// meanwhile.
const WHOLE_LOOK: Duration = Duration::from_millis(10);
/// A write of more than the limit without this part of it is refused before any key is given up for it.
const NEVER_PART: usize = 16;
/// A write that finds no room asks for this multiple of its size, and some more times. The memory that it
/// gets may lie in pieces of other sizes.
const ASKS_OF_SIZE: usize = 4;
const ASKS_MIN: usize = 64;
/// Interval at which a thread without work frees its garbage, as long as it has some.
const IDLE_TURN: Duration = Duration::from_millis(50);
/// Interval at which a thread that reads the disk looks whether everything is loaded.
const DISK_TURN: Duration = Duration::from_millis(500);

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
    /// Whether the command needs a record that is on the disk.
    pub(crate) reads_disk: bool,
}

impl LongCall {
    /// Whether thread `number` takes this command.
    fn is_for(&self, number: usize) -> bool {
        let is_very_long = self.work >= VERY_LONG_WORK;
        match number {
            0 => true,
            1..LASTING_THREADS => !is_very_long,
            _ => self.reads_disk && (!is_very_long || number < WALKING_THREADS),
        }
    }
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
    /// The wait of a write that has found no memory.
    wait: Option<RoomWait>,
    /// The wait of a command that has met a lock.
    lock_wait: Option<LockWait>,
    /// The draft of a command that waits.
    drafting: Option<Drafting>,
}

/// The wait of a command for a lock that another transaction holds for long. Times are monotonic
/// nanoseconds.
#[derive(Clone, Copy, Debug)]
struct LockWait {
    /// The end of the wait.
    until_ns: u64,
    /// The time of the next try.
    next_ns: u64,
}

/// The wait of a write for memory. Times are monotonic nanoseconds.
#[derive(Clone, Copy, Debug)]
struct RoomWait {
    /// Bytes of memory that the write needs, about.
    bytes: usize,
    /// The end of the wait for memory that is being freed.
    returned_ns: u64,
    /// The end of the wait for memory of keys that are given up, if none is on its way.
    until_ns: u64,
    /// The end of the wait in any case.
    longest_ns: u64,
    /// How many answers the write may have yet to its wish that keys are given up.
    asks: usize,
    /// The answers that were counted.
    answers: u64,
    /// The time of the next try.
    next_ns: u64,
}

impl RoomWait {
    /// Whether the write may still wait for memory of keys that are given up. Its patience begins anew
    /// while such memory is on its way, since others may take what comes.
    fn goes_on(&mut self, keyspace: &Keyspace, now_ns: u64) -> bool {
        if keyspace.memory_comes_back() {
            let from_now_ns = now_ns + EVICTION_PATIENCE.as_nanos() as u64;
            self.until_ns = self.until_ns.max(from_now_ns.min(self.longest_ns));
        }
        keyspace.may_get_room() && now_ns < self.until_ns
    }
}

impl Parked {
    /// The time of the next try.
    fn next_ns(&self) -> u64 {
        let (room, lock) = (self.wait.map(|wait| wait.next_ns), self.lock_wait);
        room.into_iter().chain(lock.map(|wait| wait.next_ns)).max().unwrap_or(0)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        // A client whose event loop has ended is closed.
        if let Some(back) = &mut *self.desk.back[self.event_loop].lock() {
            back.push((self.id, self.conn.take()));
        }
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
    /// Whether a thread waits for a lock.
    waits_for_lock: AtomicBool,
    /// Clients on their way back, by event loop; `None` where the loop has ended.
    back: Vec<Mutex<Option<Vec<Returned>>>>,
}

#[derive(Debug, Default)]
struct Queue {
    parked: VecDeque<Parked>,
    /// Commands that wait for memory or for a lock, in the order of their next tries.
    waiting: VecDeque<Parked>,
    over: bool,
}

impl LongCommands {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let back = (0..shared.config.threads).map(|_| Mutex::new(Some(Vec::new()))).collect();
        let (queue, changed) = (Mutex::default(), Condvar::new());
        Self { shared, queue, changed, waits_for_lock: AtomicBool::new(false), back }
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
        let is_for_all = call.is_for(LONG_THREADS - 1);
        let conn = Some(conn);
        let (wait, lock_wait, drafting) = (None, None, None);
        let parked = Parked { desk, event_loop, id, conn, call, wait, lock_wait, drafting };
        self.queue.lock().parked.push_back(parked);
        if is_for_all {
            self.changed.notify_one();
        } else {
            // Each thread decides whether it may take the command.
            self.changed.notify_all();
        }
    }

    /// The clients that are back.
    pub(crate) fn returned(&self, event_loop: usize) -> Vec<Returned> {
        self.back[event_loop].lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Closes the clients of an event loop that has ended. Their commands that have not begun do not begin.
    pub(crate) fn close(&self, event_loop: usize) {
        let back = self.back[event_loop].lock().take();
        drop(back);
    }

    fn has_ended(&self, event_loop: usize) -> bool {
        self.back[event_loop].lock().is_none()
    }

    /// Ends the threads. Commands that have not begun do not begin.
    pub(crate) fn end(&self) {
        let mut queue = self.queue.lock();
        queue.over = true;
        let left = (std::mem::take(&mut queue.parked), std::mem::take(&mut queue.waiting));
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
    /// Whether the last command was a write that waits. The next one is another, if there is one.
    tried_waiting: bool,
}

impl LongThread {
    /// Thread `number` of [`LONG_THREADS`].
    pub(crate) fn new(number: usize, desk: &Arc<LongCommands>, session: Session) -> Self {
        let (desk, shared) = (Arc::clone(desk), Arc::clone(&desk.shared));
        let local = Local::new(shared.config.threads + number, &shared, &COMMANDS);
        let (plan, conns) = (Plan::default(), Connections::default());
        Self { number, desk, shared, session, local, plan, conns, tried_waiting: false }
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
    fn next(&mut self, has_garbage: bool) -> Next {
        let number = self.number;
        let mine = |parked: &Parked| parked.call.is_for(number);
        let desk = Arc::clone(&self.desk);
        let mut queue = desk.queue.lock();
        loop {
            if queue.over {
                return Next::End;
            }
            let oldest = queue.parked.iter().position(mine);
            let is_turn = number < LASTING_THREADS && (oldest.is_none() || !self.tried_waiting);
            let due = if is_turn { self.due(&mut queue, mine) } else { None };
            let is_due = due.is_some();
            let next = due.or_else(|| oldest.and_then(|at| queue.parked.remove(at)));
            if let Some(parked) = next {
                self.tried_waiting = is_due;
                if !queue.parked.is_empty() {
                    // The thread may have been woken for another command than this.
                    desk.changed.notify_one();
                }
                return Next::Run(Box::new(parked));
            }
            if number >= LASTING_THREADS {
                if self.shared.keyspace.has_all() {
                    return Next::End;
                }
                desk.changed.wait_for(&mut queue, DISK_TURN);
                continue;
            }
            let has_waiting = !queue.waiting.is_empty();
            let longest = if has_waiting { ROOM_LOOK } else { IDLE_TURN };
            if !has_garbage && !has_waiting {
                desk.changed.wait(&mut queue);
            } else if desk.changed.wait_for(&mut queue, longest).timed_out() && has_garbage {
                return Next::Idle;
            }
        }
    }

    /// A command that waits, is to be tried again, and that this thread may take.
    fn due(&self, queue: &mut Queue, mine: impl Fn(&Parked) -> bool) -> Option<Parked> {
        if queue.waiting.is_empty() {
            return None;
        }
        let now_ns = self.shared.config.clock.monotonic_ns();
        let is_due = |parked: &&Parked| parked.next_ns() <= now_ns;
        let at = queue.waiting.iter().take_while(is_due).position(mine)?;
        queue.waiting.remove(at)
    }

    fn serve(&mut self, mut parked: Parked) -> Result<(), ServerError> {
        let is_wanted = !self.desk.has_ended(parked.event_loop);
        let Some(mut conn) = parked.conn.take().filter(|_| is_wanted) else { return Ok(()) };
        if self.must_wait(&mut conn, &mut parked) {
            parked.conn = Some(conn);
            self.wait(parked);
            return Ok(());
        }
        self.local.keys.now_ms = self.shared.config.clock.wall_ms();
        let id = self.conns.insert_boxed(conn);
        let client = self.conns.get(id).map(|conn| &conn.client);
        let locks_until_ns = parked.lock_wait.map(|wait| wait.until_ns);
        let mut waits_on = None;
        if client.is_some_and(|client| joins_batch(parked.call.spec, client)) {
            let wait = parked.wait.unwrap_or_else(|| self.begin_wait(parked.call.used));
            if matches!(parked.call.spec.handler, Handler::Keyed(_)) {
                let drafting = parked.drafting.take();
                self.local.keys.drafting =
                    drafting.unwrap_or_else(|| self.shared.keyspace.drafting());
            }
            if let Some(call) = self.run_as_round(id, &parked.call, (wait, locks_until_ns)) {
                parked.call = call;
                waits_on = Some(wait);
            }
            let drafting = std::mem::take(&mut self.local.keys.drafting);
            parked.drafting = waits_on.is_some().then_some(drafting);
        } else if !self.run_now(id, &parked.call, locks_until_ns) {
            waits_on = Some(self.begin_wait(parked.call.used));
        }
        self.local.keys.delete_expired(&mut self.session, &self.shared.keyspace);
        for worker in self.local.keys.take_wakes() {
            self.shared.mailboxes.wake(worker);
        }
        for worker in self.shared.keyspace.waiters.take_passed_on() {
            self.shared.mailboxes.wake(worker);
        }
        if let Some(mut wait) = waits_on {
            parked.conn = self.conns.remove(id);
            let mut conn = parked.conn.as_mut();
            let is_log = conn.as_mut().is_some_and(|conn| std::mem::take(&mut conn.met_log_limit));
            if conn.is_some_and(|conn| std::mem::take(&mut conn.met_lock)) {
                parked.lock_wait.get_or_insert_with(|| self.begin_lock_wait(is_log));
            } else {
                self.ask(&mut wait);
                // The garbage of this thread may be the memory that is missing.
                self.session.idle();
                parked.wait = Some(wait);
            }
            self.wait(parked);
            return Ok(());
        }
        self.make_durable(id)?;
        parked.conn = self.conns.remove(id);
        drop(parked);
        Ok(())
    }

    /// Whether a command waits before it runs: for the end of a pause, for memory, or for the lock that its event
    /// loop has met.
    fn must_wait(&self, conn: &mut Conn, parked: &mut Parked) -> bool {
        if is_paused(&self.shared, parked.call.spec) && !self.shared.is_stopping() {
            // Its patience with a lock begins anew after the pause.
            parked.lock_wait = Some(self.begin_lock_wait(false));
            return true;
        }
        let needs_room =
            std::mem::take(&mut conn.needs_room) || self.will_need_room(conn, &parked.call);
        if needs_room && parked.wait.is_none() {
            parked.wait = Some(self.begin_wait(needed_bytes(conn, &parked.call)));
        }
        if parked.wait.as_mut().is_some_and(|wait| self.should_wait(wait)) {
            return true;
        }
        let met_lock = std::mem::take(&mut conn.met_lock);
        if met_lock {
            // The event loop has tried it a moment ago.
            let is_log = std::mem::take(&mut conn.met_log_limit);
            parked.lock_wait = Some(self.begin_lock_wait(is_log));
        }
        met_lock
    }

    /// Puts a command into the list of those that wait for memory or for a lock.
    fn wait(&self, mut parked: Parked) {
        let client = parked.conn.as_ref().map(|conn| &conn.client);
        let is_whole = match parked.call.spec.handler {
            Handler::Store(..) => true,
            Handler::Exec => client.is_some_and(must_run_alone),
            _ => false,
        };
        let look = if is_whole { WHOLE_LOOK } else { ROOM_LOOK };
        let next_ns = self.shared.config.clock.monotonic_ns() + look.as_nanos() as u64;
        parked.wait.iter_mut().for_each(|wait| wait.next_ns = next_ns);
        parked.lock_wait.iter_mut().for_each(|wait| wait.next_ns = next_ns);
        let mut queue = self.desk.queue.lock();
        // The end of the server lets no write wait.
        if queue.over {
            return;
        }
        if queue.waiting.is_empty() {
            // The other thread may sleep until it is woken, and this one may begin a very long command.
            self.desk.changed.notify_all();
        }
        let at = queue.waiting.partition_point(|other| other.next_ns() <= next_ns);
        queue.waiting.insert(at, parked);
    }

    /// The wait of a write for so much memory, from now on.
    fn begin_wait(&self, bytes: usize) -> RoomWait {
        let Shared { config, keyspace, .. } = &*self.shared;
        let now_ns = config.clock.monotonic_ns();
        let limit_bytes = keyspace.engine().memory_room().limit_bytes;
        let never_fits = never_fits(bytes, limit_bytes);
        let (patience, longest) = match never_fits {
            true => (Duration::ZERO, Duration::ZERO),
            false => (EVICTION_PATIENCE, FLUSH_PATIENCE),
        };
        RoomWait {
            bytes,
            returned_ns: now_ns + ROOM_PATIENCE.as_nanos() as u64,
            until_ns: now_ns + patience.as_nanos() as u64,
            longest_ns: now_ns + longest.as_nanos() as u64,
            asks: bytes / asked_bytes(limit_bytes) * ASKS_OF_SIZE + ASKS_MIN,
            answers: keyspace.eviction.answers(),
            next_ns: now_ns,
        }
    }

    /// The wait of a command for a lock, or for a checkpoint that frees the log, from now on.
    fn begin_lock_wait(&self, is_log: bool) -> LockWait {
        let Shared { config, keyspace, .. } = &*self.shared;
        let (now_ns, limit) =
            (config.clock.monotonic_ns(), keyspace.engine().config().lock_timeout);
        let limit_ns =
            limit.map_or(u64::MAX, |limit| limit.as_nanos().try_into().unwrap_or(u64::MAX));
        let log_ns = LOG_PATIENCE.as_nanos() as u64;
        let limit_ns = if is_log { limit_ns.min(log_ns) } else { limit_ns };
        LockWait { until_ns: now_ns.saturating_add(limit_ns), next_ns: now_ns }
    }

    /// Whether a write should wait on before it runs. Asks that keys are given up for it.
    fn should_wait(&self, wait: &mut RoomWait) -> bool {
        let Shared { config, keyspace, .. } = &*self.shared;
        let (now_ns, engine) = (config.clock.monotonic_ns(), keyspace.engine());
        if engine.memory_returns() && now_ns < wait.returned_ns {
            return true;
        }
        let lacks_room =
            wait.goes_on(keyspace, now_ns) && engine.memory_room().spare_bytes < wait.bytes;
        if lacks_room {
            self.ask(wait);
        }
        lacks_room
    }

    /// Asks that keys are given up, unless that was done too often. A busy machine may answer late, so answers
    /// count.
    fn ask(&self, wait: &mut RoomWait) {
        let answers = self.shared.keyspace.eviction.answers();
        if std::mem::replace(&mut wait.answers, answers) != answers {
            wait.asks = wait.asks.saturating_sub(1);
        }
        if wait.asks > 0 {
            self.shared.keyspace.eviction.ask();
        }
    }

    /// Whether the call should wait for memory that is being freed. The call cannot run twice,
    /// since the request is freed before the commit.
    fn will_need_room(&self, conn: &Conn, call: &LongCall) -> bool {
        let limit = self.shared.max_memory_bytes();
        limit > 0
            && needs_memory(call.spec, &conn.client)
            && self.shared.data_bytes() + call.used as u64 > limit
    }

    /// Runs the call as an event loop runs the calls of a round. If the call finds no memory or meets a lock,
    /// and may wait for it, gives the call back. Reads what the call misses on the disk, and runs it again. Does
    /// so, too, once it has written the nodes of a draft.
    /// `waits` has the wait for memory, and the end of a wait for a lock.
    fn run_as_round(
        &mut self,
        id: usize,
        call: &LongCall,
        waits: (RoomWait, Option<u64>),
    ) -> Option<LongCall> {
        self.plan.leaves_unloaded = true;
        let mut missing = self.run_once(id, call, waits)?;
        loop {
            // No lock is held here.
            if let Some(draft) = self.local.keys.drafting.made.take() {
                self.build(draft);
            } else if missing.reads_disk {
                // If a record cannot be read, the next run waits for it and tells why.
                self.plan.leaves_unloaded = self.session.load_missed().unwrap_or(false);
            } else {
                return Some(missing);
            }
            missing = self.run_once(id, &missing, waits)?;
        }
    }

    /// Writes the nodes of a draft. If the store refuses them, the command makes no further draft.
    fn build(&mut self, mut draft: Box<Draft>) {
        let Self { shared, session, local, .. } = self;
        loop {
            let stripe = shared.keyspace.lock.enter(local.worker);
            let written = draft.step(session, &shared.keyspace);
            drop(stripe);
            match written {
                Written::Some => {}
                Written::All => return local.keys.drafting.built = Some(draft),
                Written::Refused => return local.keys.drafting.end(),
            }
        }
    }

    /// Runs the call once. Gives the call back if it lacks memory, a lock, or a record that is on the disk.
    fn run_once(
        &mut self,
        id: usize,
        call: &LongCall,
        (mut wait, locks_until_ns): (RoomWait, Option<u64>),
    ) -> Option<LongCall> {
        let Self { plan, conns, shared, local, session, desk, .. } = self;
        let now_ns = shared.config.clock.monotonic_ns();
        local.keys.now_ms = shared.config.clock.wall_ms();
        plan.begin(1, now_ns / 1_000_000, u64::MAX, usize::MAX);
        plan.waits_for_room = wait.goes_on(&shared.keyspace, now_ns);
        let is_over = locks_until_ns.is_some_and(|until_ns| now_ns >= until_ns);
        // Relaxed: the flag orders nothing but itself.
        let waits_here = is_over && !desk.waits_for_lock.swap(true, Ordering::Relaxed);
        plan.waits_for_locks = !waits_here;
        plan.push(id, call.base, call.used, &call.spans, call.spec);
        if let Some(conn) = conns.get_mut(id) {
            conn.pending += 1;
        }
        let limit_us = shared.params.slowlog_slower_us.load(RELAXED);
        Round::new(plan, conns, shared, local, limit_us >= 0).execute(session);
        if waits_here {
            desk.waits_for_lock.store(false, Ordering::Relaxed);
        }
        plan.give_back(conns, &mut Vec::new());
        // The event loop of a client that waits learns it when the client is back.
        plan.blocked.clear();
        let conn = conns.get_mut(id)?;
        // The caller looks at the mark of a lock.
        let lacks_room = std::mem::take(&mut conn.needs_room);
        let has_drafted = local.keys.drafting.made.is_some();
        if !lacks_room && !conn.needs_disk && !conn.met_lock && !has_drafted {
            return None;
        }
        conn.replied = false;
        match plan.take_postponed(id, conn)? {
            Progress::Leaves(call) => Some(call),
            _ => None,
        }
    }

    /// Runs the command as an event loop runs a command during planning. False if the command has met a lock
    /// and may wait for it, until `locks_until_ns`.
    fn run_now(&mut self, id: usize, call: &LongCall, locks_until_ns: Option<u64>) -> bool {
        let Self { conns, shared, local, session, .. } = self;
        let Some(conn) = conns.get_mut(id) else { return true };
        let now_ns = shared.config.clock.monotonic_ns();
        let may_wait = locks_until_ns.is_none_or(|until_ns| now_ns < until_ns);
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
        conn.met_lock = run_now(&mut ctx, Route::Now(call.spec), args, session, may_wait).is_err();
        !conn.met_lock
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
