//! One event loop.

mod durability;
mod reclaiming;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::event::Event;
use mio::{Events, Interest, Poll, Token};
use stillpoint::Session;

use self::durability::Parked;
use self::reclaiming::{ASKED_RECLAIM_NS, RECLAIM_NS};
use super::conn::{Conn, ReadOutcome};
use super::connections::Connections;
use super::flusher::Flusher;
use super::listener::{LISTENER, Listener};
use super::long::{LongCall, LongCommands};
use super::plan::{Plan, Progress};
use super::round::Round;
use crate::error::{ServerError, quoted};
use crate::families::COMMANDS;
use crate::keyspace::{Begun, ExpiryCycle, Reclaimer};
use crate::resp::Reply;
use crate::session::client::{BlockedState, Client};
use crate::session::context::Local;
use crate::shared::Shared;
use crate::shared::client_memory::Account;
use crate::shared::mailbox::Incoming;
use crate::shared::registry::{ClientInfo, RELAXED};

/// The token of the mailbox.
pub(crate) const MAILBOX: Token = Token(usize::MAX - 1);

/// Time between two looks at timeouts, expiry and the like.
const TICK_MS: u64 = 100;
/// What the poll tells of a client's socket.
const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);
/// Bytes read from one client in one pass.
const READ_BYTES: usize = 256 << 10;
/// Bytes read from all clients in one pass.
const PASS_READ_BYTES: usize = 4 << 20;
/// Most bytes sent to one client in one pass, and about the most to all clients.
const WRITE_BYTES: usize = 256 << 10;
const PASS_WRITE_BYTES: usize = 4 << 20;
/// Bytes that may be sent to each client in any pass.
const WRITE_BYTES_MIN: usize = 16 << 10;
/// Time of execution before the loop looks at its sockets again. A request under way ends first.
const PASS_NS: u64 = 2_000_000;
/// Buffers of closed clients are freed over many turns if they have this size together. Freeing a
/// gigabyte at once takes long.
const LATER_BYTES: usize = 1 << 20;
/// Bytes freed in one turn.
const FREED_BYTES: usize = 8 << 20;

/// One event loop: its sockets, its clients, its session.
#[derive(Debug)]
pub(crate) struct Worker {
    number: usize,
    poll: Poll,
    listener: Option<Listener>,
    shared: Arc<Shared>,
    session: Session,
    local: Local,
    conns: Connections,
    plan: Plan,
    cycle: ExpiryCycle,
    reclaimer: Reclaimer,
    /// Clients that wait for keys, by their numbers.
    blocked: HashMap<u64, usize>,
    /// The ends of these waits: monotonic milliseconds, and the client's number.
    deadlines: BTreeSet<(u64, u64)>,
    scratch: Box<[u8]>,
    /// Clients with something to read, execute or write that no event will announce.
    ready: Vec<usize>,
    /// Clients to look at after the rounds.
    touched: Vec<usize>,
    /// Buffers of clients that are gone.
    discarded: Vec<Vec<u8>>,
    /// Bytes sent in this turn.
    sent: usize,
    /// Bytes of replies that each client may leave unread in this turn.
    allowance: usize,
    /// Takes clients over for their long commands.
    long: Option<Arc<LongCommands>>,
    /// The flushing thread, once replies wait for it.
    flusher: Option<Flusher>,
    /// Whether replies wait for a flush unless a client says otherwise.
    is_strict: bool,
    /// Clients whose `WAITAOF` waits.
    parked: Vec<Parked>,
    /// Clients whose replies wait for the flush of that number, oldest first. The clients are
    /// *touched*: until then the loop neither reads from them nor executes nor removes them.
    waiting: VecDeque<(u64, Vec<usize>)>,
    now_ms: u64,
    next_tick_ms: u64,
    /// The next moment for the reclaim of collections, if there was more to do.
    next_reclaim_ms: u64,
    drain_until_ms: Option<u64>,
}

impl Worker {
    pub(crate) fn new(
        number: usize,
        poll: Poll,
        listener: Option<Listener>,
        session: Session,
        shared: Arc<Shared>,
        long: Option<Arc<LongCommands>>,
    ) -> Result<Self, ServerError> {
        let local = Local::new(number, &shared, &COMMANDS);
        Ok(Self {
            number,
            poll,
            listener,
            session,
            local,
            conns: Connections::default(),
            plan: if long.is_some() { Plan::diverting() } else { Plan::default() },
            long,
            cycle: ExpiryCycle::new(number, shared.config.threads),
            reclaimer: Reclaimer::default(),
            blocked: HashMap::new(),
            deadlines: BTreeSet::new(),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            ready: Vec::new(),
            touched: Vec::new(),
            discarded: Vec::new(),
            sent: 0,
            allowance: usize::MAX,
            flusher: None,
            is_strict: shared.is_strict(),
            parked: Vec::new(),
            waiting: VecDeque::new(),
            now_ms: 0,
            next_tick_ms: 0,
            next_reclaim_ms: u64::MAX,
            drain_until_ms: None,
            shared,
        })
    }

    /// Runs until the server is to end and the clients have their replies.
    ///
    /// # Errors
    /// When the poll breaks, or commits cannot be made durable.
    pub(crate) fn run(&mut self) -> Result<(), ServerError> {
        let mut events = Events::with_capacity(1024);
        while !self.turn(&mut events)? {}
        Ok(())
    }

    /// One turn: waits for sockets, serves clients, and does the work that is due by time. True
    /// once the server has ended and the clients have their replies.
    pub(crate) fn turn(&mut self, events: &mut Events) -> Result<bool, ServerError> {
        self.wait(events)?;
        for event in &*events {
            match event.token() {
                LISTENER => self.accept(),
                MAILBOX => self.adopt(),
                Token(id) => {
                    self.note_event(id, event);
                }
            }
        }
        self.sent = 0;
        self.allowance = self.shared.client_memory.allowance();
        self.free_discarded();
        self.send_flushed()?;
        self.unblock();
        self.pass()?;
        if self.now_ms >= self.next_tick_ms {
            self.tick()?;
        } else if self.number == 0 && self.shared.keyspace.eviction.takes_burial() {
            self.reclaim(ASKED_RECLAIM_NS);
        } else if self.now_ms >= self.next_reclaim_ms {
            self.reclaim(RECLAIM_NS);
        }
        for worker in self.shared.keyspace.waiters.take_passed_on() {
            self.shared.mailboxes.wake(worker);
        }
        let over = self.shared.is_stopping() && self.drain();
        if over {
            // A failure since the last tick must end the loop with an error.
            self.check_health()?;
        }
        Ok(over)
    }

    fn check_health(&self) -> Result<(), ServerError> {
        let health = self.shared.keyspace.engine().health();
        health.map_err(|error| ServerError::Flush(error.to_string()))
    }

    fn wait(&mut self, events: &mut Events) -> Result<(), ServerError> {
        let is_idle = self.ready.is_empty() && self.discarded.is_empty();
        let next_ms = self.deadlines.first().map_or(u64::MAX, |(until_ms, _)| *until_ms);
        let next_ms = next_ms.min(self.next_tick_ms).min(self.next_reclaim_ms);
        let next_ms = next_ms.min(self.parked_until_ms());
        let reclaims = is_idle && self.session.reclaims();
        let waits = is_idle && !reclaims;
        let timeout_ms = if waits { next_ms.saturating_sub(self.monotonic_ms()) } else { 0 };
        match self.poll.poll(events, Some(Duration::from_millis(timeout_ms))) {
            Err(source) if source.kind() != ErrorKind::Interrupted => {
                return Err(ServerError::Loop { what: "waiting for sockets", source });
            }
            Err(_) => events.clear(),
            Ok(()) => {}
        }
        if reclaims && events.is_empty() {
            self.session.idle();
        }
        self.now_ms = self.monotonic_ms();
        self.local.keys.now_ms = self.shared.config.clock.wall_ms();
        Ok(())
    }

    fn monotonic_ms(&self) -> u64 {
        self.shared.config.clock.monotonic_ns() / 1_000_000
    }

    fn accept(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.accept(&self.shared);
        }
    }

    /// Takes over the clients in the mailbox and those that are back from a long command. Disconnects
    /// the clients chosen for their memory.
    fn adopt(&mut self) {
        self.take_back();
        if self.shared.client_memory.has_leaving() {
            self.close_evicted();
        }
        for incoming in self.shared.mailboxes.take(self.number) {
            let id = self.adopt_one(incoming);
            match id {
                Some(id) => self.ready.push(id),
                None => self.shared.mailboxes.forget(self.number),
            }
        }
    }

    /// Goes on with the clients whose long command has ended.
    fn take_back(&mut self) {
        let Some(long) = &self.long else { return };
        let mut waiting = Vec::new();
        for (id, mut conn) in long.returned(self.number) {
            if let Some(conn) = &mut conn {
                if conn.client.waits_for_keys() {
                    waiting.push(id);
                }
                // No event of the socket was noted meanwhile. The poll tells again whether the client has left.
                (conn.readable, conn.writable) = (true, true);
                let _ = self.poll.registry().reregister(&mut conn.stream, Token(id), BOTH);
                conn.wants_input = conn.start == conn.input.len();
                conn.active_ms = self.now_ms;
                conn.progress_ms = self.now_ms;
                self.ready.push(id);
            } else {
                self.shared.mailboxes.forget(self.number);
            }
            self.conns.take_back(id, conn);
        }
        for id in waiting {
            // What has woken the client meanwhile was told to nobody. So its command looks again.
            if let Some(client) = self.note_waiting(id) {
                self.run_blocked(client, BlockedState::Runs);
            }
        }
    }

    /// Passes a client to a thread for long commands.
    fn lend(&mut self, id: usize, call: LongCall) {
        let Some(long) = &self.long else { return };
        // The flush that this pass may ask for does not cover later replies.
        self.touched.retain(|&touched| touched != id);
        if let Some(mut conn) = self.conns.lend(id) {
            conn.touched = false;
            long.park(self.number, id, conn, call);
        }
    }

    fn adopt_one(&mut self, incoming: Incoming) -> Option<usize> {
        let Self { conns, poll, shared, local, now_ms, number, is_strict, .. } = self;
        let Incoming { mut stream, address, said } = incoming;
        conns.insert(|id| {
            poll.registry().register(&mut stream, Token(id), BOTH).ok()?;
            let local_address = stream.local_addr().unwrap_or(address);
            let info = Arc::new(ClientInfo {
                id: shared.registry.next_id(),
                address,
                local_address,
                worker: *number,
                created_ms: local.keys.now_ms,
                last_ms: local.keys.now_ms.into(),
                strict: (*is_strict).into(),
                ..ClientInfo::blank(address)
            });
            shared.registry.insert(Arc::clone(&info));
            let output_bytes = shared.config.output_buffer_bytes;
            let account = Account { shared: Arc::clone(shared), info: Arc::clone(&info) };
            let reply = Reply::with_room(output_bytes, Box::new(account));
            let client = Client::new(info, !shared.auth.is_required());
            let mut conn = Conn::new(stream, client, reply, output_bytes / 2, *now_ms);
            if let Some(said) = said {
                conn.resume(*said);
            }
            Some(conn)
        })
    }

    fn note_event(&mut self, id: usize, event: &Event) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.readable |= event.is_readable();
            conn.read_closed |= event.is_read_closed();
            conn.writable |= event.is_writable();
            self.ready.push(id);
        }
    }

    /// Reads, executes, and writes the replies that need not wait for a flush.
    fn pass(&mut self) -> Result<(), ServerError> {
        let mut active = std::mem::take(&mut self.ready);
        self.order(&mut active);
        let (mut bytes, mut unread) = (0, Vec::new());
        active.retain(|&id| {
            if bytes < PASS_READ_BYTES {
                return self.read(id, &mut bytes);
            }
            unread.push(id);
            false
        });
        self.ready.append(&mut unread);
        let executed = self.rounds(active);
        // What needs the disk is met again later.
        leave_what_waits(&mut self.session, self.long.is_some());
        self.local.keys.delete_expired(&mut self.session, &self.shared.keyspace);
        leave_what_waits(&mut self.session, false);
        for worker in self.local.keys.take_wakes() {
            self.shared.mailboxes.wake(worker);
        }
        self.settle_pass(executed)
    }

    /// Notes the clients whose last call waits for keys.
    fn note_blocked(&mut self) {
        for id in std::mem::take(&mut self.plan.blocked) {
            self.note_waiting(id);
        }
    }

    /// Notes that a client waits. Gives the client's number.
    fn note_waiting(&mut self, id: usize) -> Option<u64> {
        let conn = self.conns.get(id)?;
        let client = conn.client.info.id;
        self.blocked.insert(client, id);
        if let Some(blocked) = conn.client.blocked.as_ref().filter(|b| b.until_ms < u64::MAX) {
            self.deadlines.insert((blocked.until_ms, client));
        }
        Some(client)
    }

    /// Lets the commands run again whose keys were made, or whose time is over.
    fn unblock(&mut self) {
        for client in self.shared.keyspace.waiters.take_woken(self.number) {
            self.run_blocked(client, BlockedState::Runs);
        }
        while let Some(&(until_ms, client)) = self.deadlines.first()
            && until_ms <= self.now_ms
        {
            self.deadlines.pop_first();
            self.run_blocked(client, BlockedState::TimedOut);
        }
    }

    /// Lets the command of a client run again, if it waits.
    fn run_blocked(&mut self, client: u64, state: BlockedState) {
        let Some(&id) = self.blocked.get(&client) else { return };
        let now_ms = self.now_ms;
        let conn = self.conns.get_mut(id).filter(|conn| conn.client.info.id == client);
        let Some(conn) = conn.filter(|conn| conn.client.waits_for_keys()) else {
            self.blocked.remove(&client);
            return;
        };
        if conn.read_closed {
            // Its end comes with the pass.
            self.ready.push(id);
            return;
        }
        if let Some(blocked) = &mut conn.client.blocked {
            let unblocked = blocked.waiting.take_unblocked();
            if state == BlockedState::TimedOut && blocked.until_ms > now_ms && unblocked.is_none() {
                // The deadline was that of an earlier command.
                return;
            }
            let state = match unblocked {
                Some(true) => BlockedState::Unblocked,
                Some(false) => BlockedState::TimedOut,
                None => state,
            };
            match blocked.waiting.begin_run(state != BlockedState::Runs) {
                Begun::Runs => blocked.state = state,
                Begun::Served => {
                    blocked.state = BlockedState::Served;
                    self.blocked.remove(&client);
                }
                Begun::Later if state == BlockedState::TimedOut => {
                    self.deadlines.insert((now_ms + 1, client));
                }
                Begun::Later => {}
            }
        }
        self.ready.push(id);
    }

    /// Reads from a client that may send requests, and adds the number of bytes to `bytes`. True if
    /// the client may have requests to execute.
    fn read(&mut self, id: usize, bytes: &mut usize) -> bool {
        let Self { conns, scratch, local, shared, touched, now_ms, .. } = self;
        let Some(conn) = conns.get_mut(id) else {
            return false;
        };
        if conn.touched {
            conn.missed = true;
            return false;
        }
        conn.touched = true;
        touched.push(id);
        // Acquire: partner of the Release in `kill`. What the client sent after the answer to it does not run.
        conn.broken |= conn.client.info.killed.load(Ordering::Acquire);
        let capacity = conn.input.capacity();
        if conn.readable
            && conn.wants_input
            && !conn.client.closing
            && !conn.broken
            && let ReadOutcome::Some(n) = conn.read(scratch)
        {
            *bytes += n;
            local.stats.net_in.add(n as u64);
            local.stats.reads.add(1);
            conn.active_ms = *now_ms;
            if conn.input.len() > shared.config.query_buffer_bytes {
                shared.totals.query_limit_disconnects.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(client = %conn.client.info.address, bytes = conn.memory(), "client closed: its request is too long");
                conn.broken = true;
            }
            if conn.input.capacity() > capacity {
                conn.broken |= !shared.count_client_memory(&conn.client.info, conn.memory());
            }
        }
        !conn.broken && conn.start < conn.input.len()
    }

    /// Puts the clients first for which the event loop has done the least of late.
    fn order(&self, active: &mut [usize]) {
        let rank = |&id: &usize| self.conns.get(id).map_or(0, |conn| conn.load.rank(self.now_ms));
        if active.len() > 1 {
            active.sort_by_cached_key(rank);
        }
    }

    /// Plans and executes until the clients have no more requests, or until it is time to look at
    /// the sockets again. True if a client had a turn.
    fn rounds(&mut self, mut active: Vec<usize>) -> bool {
        let executed = !active.is_empty();
        let mut again = Vec::new();
        let mut now_ns = self.shared.config.clock.monotonic_ns();
        let until_ns = now_ns + PASS_NS;
        while !active.is_empty() && now_ns < until_ns {
            let Self { plan, conns, shared, local, session, now_ms, .. } = self;
            plan.begin(active.len(), *now_ms, until_ns, shared.client_memory.allowance());
            let mut leaving = Vec::new();
            for &id in &active {
                let Some(conn) = conns.get_mut(id) else {
                    continue;
                };
                conn.wants_input = false;
                let progress = plan.take(id, conn, shared, local, session);
                conn.is_held_back = matches!(progress, Progress::HeldBack);
                match progress {
                    Progress::More => again.push(id),
                    Progress::AfterReplies => self.ready.push(id),
                    Progress::Leaves(call) => leaving.push((id, call)),
                    Progress::Drained | Progress::Blocked | Progress::HeldBack => {}
                }
            }
            for (id, call) in leaving {
                self.lend(id, call);
            }
            let Self { plan, conns, shared, local, session, .. } = self;
            now_ns = if plan.calls.is_empty() {
                shared.config.clock.monotonic_ns()
            } else {
                let limit_us = shared.params.slowlog_slower_us.load(RELAXED);
                let time_each = (0..1000).contains(&limit_us);
                let ended_ns = Round::new(plan, conns, shared, local, time_each).execute(session);
                plan.give_back(conns, &mut again);
                self.note_blocked();
                ended_ns
            };
            active.clear();
            std::mem::swap(&mut active, &mut again);
            self.order(&mut active);
        }
        self.ready.append(&mut active);
        executed
    }

    /// Sends a client's replies, closes the connection if it is over, and counts its memory.
    fn finish(&mut self, id: usize) {
        let Self { conns, local, shared, now_ms, ready, sent, allowance, .. } = self;
        let Some(conn) = conns.get_mut(id) else {
            return;
        };
        conn.touched = false;
        conn.missed = false;
        conn.replied = false;
        conn.client.was_strict = false;
        let was_blocked = conn.is_blocked(*allowance);
        let may_send = conn.client.silent_until_ms == 0;
        if conn.unsent() > 0 && conn.writable && may_send {
            let most = WRITE_BYTES.min(PASS_WRITE_BYTES.saturating_sub(*sent)).max(WRITE_BYTES_MIN);
            let bytes = conn.write(most, *now_ms);
            *sent += bytes;
            local.stats.net_out.add(bytes as u64);
            local.stats.writes.add(1);
        }
        // The replies before the one that did not fit were sent.
        if conn.reply.overflowed() {
            if conn.client.info.evicted_bytes.load(RELAXED) == 0 {
                shared.totals.output_limit_disconnects.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(client = %conn.client.info.address, unsent_bytes = conn.unsent(), limit_bytes = shared.config.output_buffer_bytes, "client closed: its replies are too long");
            }
            conn.broken = true;
        }
        let killed = conn.client.info.killed.load(Ordering::Acquire);
        let waits = conn.client.blocked.is_some() || conn.client.awaited_flush.is_some();
        let left = conn.read_closed && waits;
        let over = left || conn.client.closing || (conn.end_of_input && conn.wants_input);
        if conn.broken || killed || (over && conn.unsent() == 0) {
            return self.close(id);
        }
        conn.compact();
        publish(conn, local.keys.now_ms);
        let unblocked = was_blocked && !conn.is_blocked(*allowance);
        let may_read = (conn.readable || conn.end_of_input) && conn.wants_input;
        let may_write = conn.writable && conn.unsent() > 0 && may_send;
        if !shared.count_client_memory(&conn.client.info, conn.memory()) {
            self.close(id);
        } else if unblocked || may_read || may_write {
            ready.push(id);
        }
    }

    /// Closes a connection. One whose client a transaction serves stays open until that has ended.
    fn close(&mut self, id: usize) {
        let blocked = self.conns.get(id).and_then(|conn| conn.client.blocked.as_ref());
        if blocked.is_some_and(|blocked| !blocked.waiting.leaves()) {
            self.ready.push(id);
            return;
        }
        let Some(conn) = self.conns.remove(id) else {
            return;
        };
        let Conn { mut stream, reply, input, client, .. } = *conn;
        // If this fails, the socket leaves the poll when it is closed.
        let _ = self.poll.registry().deregister(&mut stream);
        self.shared.registry.remove(client.info.id);
        self.blocked.remove(&client.info.id);
        let mut later: Vec<Vec<u8>> = reply.into_pieces().into();
        later.push(input);
        let bytes = later.iter().map(Vec::capacity).sum();
        if bytes < LATER_BYTES {
            later.clear();
        }
        self.shared.client_memory.leave(&client.info, if later.is_empty() { 0 } else { bytes });
        self.discarded.append(&mut later);
        self.shared.mailboxes.forget(self.number);
    }

    /// Frees some of the buffers of closed clients.
    fn free_discarded(&mut self) {
        let mut freed = 0;
        while freed < FREED_BYTES
            && let Some(buffer) = self.discarded.pop()
        {
            freed += buffer.capacity();
        }
        if freed > 0 {
            self.shared.client_memory.freed(freed);
        }
    }

    /// Disconnects the clients that were chosen because all clients hold too much.
    fn close_evicted(&mut self) {
        let ids: Vec<usize> = self.conns.ids().collect();
        for id in ids {
            // A client whose replies wait for a flush is disconnected after it.
            if self.conns.get_mut(id).is_some_and(|conn| {
                !conn.touched && conn.client.info.evicted_bytes.load(RELAXED) > 0
            }) {
                self.close(id);
            }
        }
    }

    /// Deletes expired keys in the background.
    fn expire(&mut self) -> Result<(), ServerError> {
        let Self { shared, session, cycle, local, .. } = self;
        let (keyspace, clock) = (&shared.keyspace, &*shared.config.clock);
        let is_on = shared.params.active_expiry.load(RELAXED);
        // What needs the disk, or what a long command has locked, is met again later.
        leave_what_waits(session, self.long.is_some());
        let has_deleted = is_on && cycle.run(session, keyspace, clock, local.keys.now_ms);
        leave_what_waits(session, false);
        if has_deleted && self.is_strict {
            let met = self.session.unflushed();
            self.flush(met, true)?;
        }
        Ok(())
    }

    /// Does the work that is due ten times a second.
    fn tick(&mut self) -> Result<(), ServerError> {
        self.next_tick_ms = self.now_ms + TICK_MS;
        self.adopt();
        if self.listener.as_ref().is_some_and(|listener| listener.retry) {
            self.accept();
        }
        self.look_after_clients();
        self.expire()?;
        self.reclaim(RECLAIM_NS);
        self.session.idle();
        self.check_health()?;
        if self.number == 0 {
            let now_ns = self.shared.config.clock.monotonic_ns();
            let mut rates = self.shared.rates.lock();
            rates.commands.sample(now_ns, self.shared.sum(|w| w.commands.get()));
            rates.net_in.sample(now_ns, self.shared.sum(|w| w.net_in.get()));
            rates.net_out.sample(now_ns, self.shared.sum(|w| w.net_out.get()));
            drop(rates);
            let stats = self.shared.keyspace.engine().stats();
            self.shared.refusals.lock().note(stats.journal.refusals, stats.commits);
            self.shared.used_memory();
        }
        Ok(())
    }

    /// Serves a client again once the moment [`Client::silent_until_ms`] has passed.
    fn settle_silence(&mut self, id: usize) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        if conn.client.silent_until_ms > 0 {
            conn.progress_ms = self.now_ms;
            if self.now_ms >= conn.client.silent_until_ms {
                conn.client.silent_until_ms = 0;
                self.ready.push(id);
            }
        }
    }

    /// Answers a client whose `SAVE` has ended.
    fn settle_save(&mut self, id: usize) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        let Some(awaited) = conn.client.awaited_save else {
            return;
        };
        let now = self.shared.keyspace.engine().stats().checkpoints;
        if now.published > awaited.published {
            conn.reply.ok();
        } else if now.failures > awaited.failures {
            let why = now.last_error.unwrap_or_default();
            conn.reply.error(&format!("ERR {}", quoted(why.as_bytes(), 512)));
            self.local.stats.count_error("ERR");
        } else {
            return;
        }
        conn.client.awaited_save = None;
        self.ready.push(id);
    }

    /// Disconnects idle, slow and killed clients. Resumes clients that were held back.
    fn look_after_clients(&mut self) {
        let timeout_ms = self.shared.params.timeout_s.load(RELAXED).saturating_mul(1000);
        let slow_ms = self.shared.config.slow_reader_s.saturating_mul(1000);
        let ids: Vec<usize> = self.conns.ids().collect();
        for id in ids {
            if self.conns.get_mut(id).is_some_and(|conn| conn.touched) {
                // The client's replies wait for a flush.
                continue;
            }
            self.settle_save(id);
            self.settle_silence(id);
            let Some(conn) = self.conns.get_mut(id) else {
                continue;
            };
            let idle_ms = self.now_ms.saturating_sub(conn.active_ms);
            let stuck_ms = self.now_ms.saturating_sub(conn.progress_ms);
            if conn.unsent() == 0 {
                conn.progress_ms = self.now_ms;
            }
            let waits = conn.unsent() > 0 || conn.client.is_waiting();
            let idle = timeout_ms > 0 && idle_ms > timeout_ms && !waits;
            let slow = slow_ms > 0 && conn.unsent() > 0 && stuck_ms > slow_ms;
            if slow {
                tracing::warn!(client = %conn.client.info.address, unsent_bytes = conn.unsent(), stuck_ms, "client closed: it does not take its replies");
                let totals = &self.shared.totals;
                totals.output_limit_disconnects.fetch_add(1, Ordering::Relaxed);
            }
            if idle || slow || conn.client.info.killed.load(Ordering::Acquire) {
                self.close(id);
            } else if !conn.is_blocked(self.allowance)
                && conn.start < conn.input.len()
                && !conn.wants_input
            {
                self.ready.push(id);
            }
        }
    }

    /// Lets the clients take their last replies. Returns true when all clients have their replies,
    /// or the time is over.
    fn drain(&mut self) -> bool {
        if let Some(mut listener) = self.listener.take() {
            listener.deregister(self.poll.registry());
        }
        let drain_ms = self.shared.config.drain_s * 1000;
        let until_ms = *self.drain_until_ms.get_or_insert(self.now_ms + drain_ms);
        self.adopt();
        let ids: Vec<usize> = self.conns.ids().collect();
        for id in ids {
            let Some(conn) = self.conns.get_mut(id) else {
                continue;
            };
            let executing =
                conn.start < conn.input.len() && !conn.wants_input && !conn.is_held_back;
            if std::mem::take(&mut conn.client.silent_until_ms) > 0 {
                self.ready.push(id);
            }
            let waits = conn.client.waits_for_keys() || conn.client.awaited_flush.is_some();
            if !conn.touched && conn.unsent() == 0 && (waits || !executing) {
                self.close(id);
            }
        }
        self.conns.len() == 0 || self.now_ms >= until_ms
    }
}

impl Drop for Worker {
    /// Nobody takes back the clients that are away when their loop ends. They are closed.
    fn drop(&mut self) {
        self.shared.mailboxes.close(self.number);
        if let Some(long) = &self.long {
            long.close(self.number);
        }
    }
}

/// Writes the data of a client that other threads see.
fn publish(conn: &Conn, now_ms: u64) {
    let (client, info) = (&conn.client, &conn.client.info);
    info.last_ms.store(now_ms, RELAXED);
    info.db.store(u32::from(client.db), RELAXED);
    info.multi.store(client.multi.as_ref().map_or(0, |m| m.len() as u32 + 1), RELAXED);
    info.watched.store(client.watched.len() as u32, RELAXED);
    info.input_bytes.store(conn.input.len(), RELAXED);
    info.output_bytes.store(conn.unsent(), RELAXED);
    info.resp3.store(conn.reply.is_resp3(), RELAXED);
}

/// Says whether transactions leave alone what another thread may hold for long, and what is on the disk.
fn leave_what_waits(session: &mut Session, leaves: bool) {
    session.leave_unloaded(leaves);
    session.leave_busy_keys(leaves);
}
