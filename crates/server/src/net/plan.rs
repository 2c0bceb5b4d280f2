//! From bytes to a batch: which requests run now, and which wait for those before them.
//!
//! Requests of one client are answered in order; those of different clients may run
//! in any. Commands over declared keys go into the batch, so that the memory of all
//! of them is fetched together. Others run while planning, once the client has
//! nothing in the batch; until then they wait for the next round.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stillpoint::{Batch, KeySet, Session, Stamp, Tx, TxError};

use super::conn::{Conn, Postponed};
use crate::client::{Client, ReplyMode};
use crate::command::{
    Flags, Handler, Spec, answered, declare_exec, describe_all, exec_needs_gate, is, queue,
    resolve, run_exec, run_exec_alone,
};
use crate::config::DebugCommand;
use crate::context::{Context, Local};
use crate::error::{CmdError, CmdResult};
use crate::registry::RELAXED;
use crate::resp::{Args, Mark, Reply, Span};
use crate::shared::Shared;

/// Calls of one round; beyond, prefetched lines would push each other out of the cache.
const ROUND_CALLS: usize = 256;
/// Calls of one client that fit into a round however many clients there are.
const CLIENT_CALLS_MIN: usize = 8;
/// Work of one round: about a microsecond for each argument and for each [`UNIT_BYTES`] read or
/// answered. A command that alone is more runs all the same.
const ROUND_WORK: usize = 2048;
const UNIT_BYTES: usize = 1 << 10;
/// A reply of this length is reason enough to ask whether the clients hold too much.
const LARGE_REPLY_BYTES: usize = 64 << 10;

/// A request of this length is dropped as soon as it has run, before its commit.
const LONG_REQUEST_BYTES: usize = 1 << 20;

/// One call of the batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    conn: u32,
    /// Where the request begins in the client's input.
    base: u32,
    first_span: u32,
    spans: u32,
    pub(crate) spec: &'static Spec,
}

/// The clients of an event loop by number; a number is used again once it is free.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    places: Vec<Option<Box<Conn>>>,
    free: Vec<usize>,
}

impl Connections {
    pub(crate) fn insert(&mut self, make: impl FnOnce(usize) -> Option<Conn>) -> Option<usize> {
        let id = self.free.pop().unwrap_or(self.places.len());
        match make(id) {
            Some(conn) if id == self.places.len() => self.places.push(Some(Box::new(conn))),
            Some(conn) => self.places[id] = Some(Box::new(conn)),
            None => {
                if id < self.places.len() {
                    self.free.push(id);
                }
                return None;
            }
        }
        Some(id)
    }

    pub(crate) fn get(&self, id: usize) -> Option<&Conn> {
        self.places.get(id)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: usize) -> Option<&mut Conn> {
        self.places.get_mut(id)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, id: usize) -> Option<Box<Conn>> {
        let conn = self.places.get_mut(id)?.take()?;
        self.free.push(id);
        Some(conn)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = usize> {
        self.places.iter().enumerate().filter(|(_, c)| c.is_some()).map(|(id, _)| id)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

/// What the planner leaves of a client's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// No whole request is left, or nothing more is to be executed.
    Drained,
    /// More to do in the next round.
    More,
    /// Too many replies wait to be taken, or the reply to the last request has to wait.
    Blocked,
    /// `CLIENT PAUSE`: look again later.
    HeldBack,
}

/// What became of a parsed request.
enum Placed {
    /// It is in the batch, or has run.
    Done,
    /// It waits for the client's requests in the batch.
    Waits,
    HeldBack,
}

/// Decision about one request.
enum Route {
    Batch(&'static Spec),
    Now(&'static Spec),
    Queue(&'static Spec),
    Refuse(Option<&'static Spec>, CmdError),
    /// `CLIENT PAUSE`: look again later.
    HoldBack,
}

/// The batch of one round and what it is made from.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) calls: Vec<Call>,
    spans: Vec<Span>,
    /// Work of the calls, replies excepted.
    work: usize,
    /// The round's requests of one client end at this number of calls.
    calls_max: usize,
    /// When to look at the sockets again, in monotonic nanoseconds.
    until_ns: u64,
    /// Calls that did not run, in the order of `calls`.
    postponed: Vec<u32>,
}

impl Plan {
    /// Begins a round for `clients` clients, to be planned before `until_ns`.
    pub(crate) fn begin(&mut self, clients: usize, until_ns: u64) {
        self.calls.clear();
        self.spans.clear();
        self.postponed.clear();
        self.work = 0;
        self.calls_max = (ROUND_CALLS / clients.max(1)).max(CLIENT_CALLS_MIN);
        self.until_ns = until_ns;
    }

    fn is_full(&self) -> bool {
        self.calls.len() >= ROUND_CALLS || self.work >= ROUND_WORK
    }

    fn push(&mut self, id: usize, base: usize, used: usize, spans: &[Span], spec: &'static Spec) {
        let first_span = self.spans.len() as u32;
        self.spans.extend_from_slice(spans);
        self.work += spans.len() + used / UNIT_BYTES;
        let spans = spans.len() as u32;
        self.calls.push(Call { conn: id as u32, base: base as u32, first_span, spans, spec });
    }

    /// Gives the calls that did not run back to their clients, and these for the next round.
    pub(crate) fn give_back(&mut self, conns: &mut Connections, again: &mut Vec<usize>) {
        // From the last on: each ends where the next one, or what is not yet planned, begins.
        for i in self.postponed.drain(..).rev() {
            let call = self.calls[i as usize];
            let id = call.conn as usize;
            let Some(conn) = conns.get_mut(id) else {
                continue;
            };
            let spans = call.first_span as usize..(call.first_span + call.spans) as usize;
            let spans = self.spans[spans].into();
            let used = conn.start - call.base as usize;
            conn.start = call.base as usize;
            conn.postponed.push_front(Postponed { used, spans, spec: call.spec });
            conn.wants_input = false;
            if !again.contains(&id) {
                again.push(id);
            }
        }
    }

    /// Takes as many requests of a client as may run in this round.
    pub(crate) fn take(
        &mut self,
        id: usize,
        conn: &mut Conn,
        shared: &Arc<Shared>,
        local: &mut Local,
        session: &mut Session,
    ) -> Progress {
        let first = self.calls.len();
        conn.served = false;
        loop {
            if conn.client.closing || conn.broken {
                return Progress::Drained;
            }
            if conn.start == conn.input.len() {
                conn.wants_input = true;
                return Progress::Drained;
            }
            if self.is_full() || self.calls.len() - first >= self.calls_max {
                return Progress::More;
            }
            if conn.is_blocked() || conn.client.is_waiting() {
                return Progress::Blocked;
            }
            if let Some(next) = conn.postponed.pop_front() {
                self.push(id, conn.start, next.used, &next.spans, next.spec);
                conn.pending += 1;
                conn.start += next.used;
                continue;
            }
            let used = match conn.held {
                Some(used) => used,
                None => {
                    let limits = conn.limits(shared);
                    match conn.parser.next(&mut conn.input[conn.start..], &limits) {
                        Ok(Some(used)) => used,
                        Ok(None) => {
                            conn.wants_input = true;
                            return Progress::Drained;
                        }
                        Err(_) if conn.pending > 0 => return Progress::More,
                        Err(error) => {
                            conn.reply.error(&format!("ERR {error}"));
                            local.stats.count_error("ERR");
                            conn.client.closing = true;
                            return Progress::Drained;
                        }
                    }
                }
            };
            let placed = self.place(id, conn, used, shared, local, session);
            conn.held = Some(used);
            match placed {
                Placed::Waits => return Progress::More,
                Placed::HeldBack => return Progress::HeldBack,
                Placed::Done => {}
            }
            conn.held = None;
            conn.start += used;
        }
    }

    /// Puts the parsed request of `used` bytes where it belongs.
    fn place(
        &mut self,
        id: usize,
        conn: &mut Conn,
        used: usize,
        shared: &Arc<Shared>,
        local: &mut Local,
        session: &mut Session,
    ) -> Placed {
        let request = &conn.input[conn.start..conn.start + used];
        let args = Args::new(request, conn.parser.spans());
        if args.is_empty() {
            return Placed::Done;
        }
        let verdict = judge(shared, &conn.client, args);
        if let Route::Batch(spec) = verdict {
            self.push(id, conn.start, used, conn.parser.spans(), spec);
            conn.pending += 1;
            return Placed::Done;
        }
        if conn.pending > 0 {
            return Placed::Waits;
        }
        if matches!(verdict, Route::HoldBack) {
            return Placed::HeldBack;
        }
        conn.served = true;
        let (client, reply) = (&mut conn.client, &mut conn.reply);
        let mut ctx = Context { client, reply, shared, local, first_slot: 0 };
        let ended_ns = run_now(&mut ctx, verdict, args, session);
        if ended_ns >= self.until_ns {
            // Others have waited long enough.
            self.work = ROUND_WORK;
        }
        Placed::Done
    }
}

/// Decides about a request.
fn judge(shared: &Shared, client: &Client, args: Args<'_>) -> Route {
    let spec = match resolve(shared.lookup, args) {
        Ok(spec) => spec,
        Err(error) => {
            // Before authentication nobody is told which commands there are.
            let error = if client.must_authenticate(&shared.auth) { NO_AUTH } else { error };
            return Route::Refuse(None, error);
        }
    };
    if !spec.flags.has(Flags::NO_AUTH) && client.must_authenticate(&shared.auth) {
        return Route::Refuse(Some(spec), NO_AUTH);
    }
    if is_paused(shared, spec) {
        return Route::HoldBack;
    }
    if client.multi.is_some() && !spec.flags.has(Flags::IN_MULTI) {
        return Route::Queue(spec);
    }
    match spec.handler {
        Handler::Keyed(_) if spec.name == "watch" && client.multi.is_some() => {
            Route::Refuse(Some(spec), CmdError::fixed("ERR WATCH inside MULTI is not allowed"))
        }
        Handler::Keyed(_) => Route::Batch(spec),
        Handler::Exec if !exec_needs_gate(client) => Route::Batch(spec),
        _ => Route::Now(spec),
    }
}

const NO_AUTH: CmdError = CmdError::fixed("NOAUTH Authentication required.");

fn is_paused(shared: &Shared, spec: &Spec) -> bool {
    // Acquire: pairs with the Release in `CLIENT PAUSE`.
    let until_ms = shared.paused_until_ms.load(Ordering::Acquire);
    if until_ms == 0 || spec.parent == "client" {
        return false;
    }
    let all = shared.paused_all.load(Ordering::Relaxed);
    let concerned = all || spec.flags.has(Flags::WRITE) || matches!(spec.handler, Handler::Exec);
    concerned && shared.config.clock.monotonic_ns() / 1_000_000 < until_ms
}

/// Runs a request that is not for the batch; gives the moment of its end in nanoseconds.
fn run_now(ctx: &mut Context<'_>, verdict: Route, args: Args<'_>, session: &mut Session) -> u64 {
    let mark = ctx.reply.begin();
    let start_ns = ctx.shared.config.clock.monotonic_ns();
    let (spec, result) = match verdict {
        Route::Now(spec) => (Some(spec), dispatch(ctx, spec, args, session)),
        Route::Queue(spec) => (None, queue(ctx, spec, args)),
        Route::Refuse(spec, error) => {
            if let Some(spec) = spec {
                ctx.local.stats.command(spec.id).rejected.add(1);
            }
            ctx.client.closing |= is_http(args);
            (None, Err(refuse_in_multi(ctx.client, spec, args, error)))
        }
        Route::Batch(_) | Route::HoldBack => (None, Ok(())),
    };
    if let Err(error) = result {
        ctx.answer_error(mark, &error);
        if let Some(spec) = spec {
            ctx.local.stats.command(spec.id).failed.add(1);
        }
    }
    settle_reply(ctx.client, ctx.reply, mark);
    let ended_ns = ctx.shared.config.clock.monotonic_ns();
    if let Some(spec) = spec {
        note_time(ctx.shared, ctx.local, ctx.client, spec, args, ended_ns - start_ns);
    }
    ended_ns
}

/// True for the first line of an HTTP request: a page in somebody's browser that was
/// made to send commands to this port.
fn is_http(args: Args<'_>) -> bool {
    is(args.at(0), "POST") || is(args.at(0), "Host:")
}

/// A refused command spoils the transaction it was meant for; a refused `EXEC` ends it.
fn refuse_in_multi(
    client: &mut Client,
    spec: Option<&Spec>,
    args: Args<'_>,
    error: CmdError,
) -> CmdError {
    if is(args.at(0), "EXEC") {
        client.multi = None;
        client.watched.clear();
        let message = error.message();
        let why = message.strip_prefix("ERR ").unwrap_or(message);
        return CmdError::text(format!("EXECABORT Transaction discarded because of: {why}"));
    }
    if let Some(multi) = client.multi.as_mut() {
        multi.dirty |= spec.is_none_or(|spec| spec.name != "watch");
    }
    error
}

/// Refuses a protected command unless the server was started so that this client may use it.
fn check_protected(ctx: &Context<'_>) -> CmdResult {
    let allowed = match ctx.shared.config.debug_command {
        DebugCommand::No => false,
        DebugCommand::Local => ctx.client.info.address.ip().to_canonical().is_loopback(),
        DebugCommand::Yes => true,
    };
    if allowed {
        return Ok(());
    }
    Err(CmdError::fixed(
        "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you \
         can run it from a local connection, otherwise you need to set this option in the \
         configuration file, and then restart the server.",
    ))
}

fn dispatch(
    ctx: &mut Context<'_>,
    spec: &'static Spec,
    args: Args<'_>,
    session: &mut Session,
) -> CmdResult {
    if spec.flags.has(Flags::PROTECTED) {
        check_protected(ctx)?;
    }
    ctx.count_call(spec);
    ctx.client.info.last_command.store(u32::from(spec.id) + 1, RELAXED);
    let shared = Arc::clone(ctx.shared);
    match spec.handler {
        Handler::Pure(run) => run(ctx, args),
        Handler::Store(run, _) => {
            let _place = shared.gate.enter(ctx.local.worker);
            run(ctx, args, session)
        }
        Handler::Exec => {
            let _places = shared.gate.alone();
            run_exec_alone(ctx, session)
        }
        Handler::Container(_) => describe_all(ctx, args),
        Handler::Keyed(_) => Ok(()),
    }
}

/// Drops the reply of a client that wants none.
#[inline]
fn settle_reply(client: &mut Client, reply: &mut Reply, mark: Mark) {
    if client.reply_mode != ReplyMode::On {
        reply.truncate(mark);
        client.reply_mode = match client.reply_mode {
            ReplyMode::SkipNext => ReplyMode::Skip,
            ReplyMode::Skip => ReplyMode::On,
            mode => mode,
        };
    }
}

/// Counts a command's time; notes it if it was slow.
fn note_time(
    shared: &Shared,
    local: &Local,
    client: &Client,
    spec: &Spec,
    args: Args<'_>,
    took_ns: u64,
) {
    local.stats.count_time(spec.id, took_ns);
    let took_us = took_ns / 1000;
    let limit_us = shared.params.slowlog_slower_us.load(RELAXED);
    let unix_s = local.now_ms / 1000;
    if limit_us >= 0 && took_us >= limit_us.cast_unsigned() && !spec.flags.has(Flags::SKIP_SLOWLOG)
    {
        let max_len = shared.params.slowlog_max_len.load(RELAXED);
        let name = client.info.names.lock().name.clone();
        let address = client.info.address.to_string();
        shared.slowlog.push(max_len, unix_s, took_us, (spec, args), address, name);
    }
    note_latency(shared, spec, unix_s, took_us / 1000);
}

fn note_latency(shared: &Shared, spec: &Spec, unix_s: u64, took_ms: u64) {
    let threshold_ms = shared.params.latency_threshold_ms.load(RELAXED);
    if threshold_ms > 0 && took_ms >= threshold_ms {
        let event = if spec.flags.has(Flags::FAST) { "fast-command" } else { "command" };
        shared.latency.note(event, unix_s, took_ms);
    }
}

/// One round: the calls of the plan as a batch of transactions.
pub(crate) struct Round<'a> {
    pub(crate) plan: &'a mut Plan,
    pub(crate) conns: &'a mut Connections,
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) local: &'a mut Local,
    /// Take the time of each call, not only of the round.
    pub(crate) time_each: bool,
    /// Where the reply of the call that runs now begins.
    mark: Option<Mark>,
    /// That reply is an error already.
    has_error: bool,
    /// Work of the calls and their replies so far.
    work: usize,
    /// No more calls run in this round: enough was done, or the clients hold too much.
    is_over: bool,
}

impl<'a> Round<'a> {
    pub(crate) fn new(
        plan: &'a mut Plan,
        conns: &'a mut Connections,
        shared: &'a Arc<Shared>,
        local: &'a mut Local,
        time_each: bool,
    ) -> Self {
        Self {
            plan,
            conns,
            shared,
            local,
            time_each,
            mark: None,
            has_error: false,
            work: 0,
            is_over: false,
        }
    }

    /// Executes the round and counts its time; gives the moment of its end in nanoseconds.
    pub(crate) fn execute(&mut self, session: &mut Session) -> u64 {
        let start_ns = self.shared.config.clock.monotonic_ns();
        {
            let _place = self.shared.gate.enter(self.local.worker);
            session.execute(self);
        }
        let ended_ns = self.shared.config.clock.monotonic_ns();
        let took_ns = ended_ns - start_ns;
        let ran = self.plan.calls.len() - self.plan.postponed.len();
        let mean_ns = took_ns / ran.max(1) as u64;
        let mut postponed = self.plan.postponed.iter().peekable();
        for (i, call) in self.plan.calls.iter().enumerate() {
            if let Some(conn) = self.conns.get_mut(call.conn as usize) {
                conn.pending = 0;
                conn.client.info.last_command.store(u32::from(call.spec.id) + 1, RELAXED);
            }
            if postponed.next_if(|&&next| next as usize == i).is_none() && !self.time_each {
                self.local.stats.count_time(call.spec.id, mean_ns);
            }
        }
        if let [only] = self.plan.calls[..] {
            note_latency(self.shared, only.spec, self.local.now_ms / 1000, took_ns / 1_000_000);
        }
        ended_ns
    }

    /// Notes what call `i` has cost, its reply of `replied` bytes included.
    fn note_work(&mut self, i: usize, replied: usize) {
        self.work += self.plan.calls[i].spans as usize + replied / UNIT_BYTES;
        // The total is shared by all event loops: it is read after large replies only.
        let too_much = || replied >= LARGE_REPLY_BYTES && self.shared.client_memory.is_over();
        self.is_over |= self.work >= ROUND_WORK || too_much();
    }
}

impl Plan {
    fn args<'b>(&'b self, call: &Call, input: &'b [u8]) -> Args<'b> {
        let spans = call.first_span as usize..(call.first_span + call.spans) as usize;
        Args::new(&input[call.base as usize..], &self.spans[spans])
    }
}

impl Batch for Round<'_> {
    fn len(&self) -> usize {
        self.plan.calls.len()
    }

    fn declare(&mut self, i: usize, keys: &mut KeySet) {
        let call = &self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(call.conn as usize) else {
            return;
        };
        if matches!(call.spec.handler, Handler::Exec) {
            declare_exec(&mut conn.client, &self.shared.databases, keys);
        } else {
            let args = self.plan.args(call, &conn.input);
            call.spec.declare_keys(args, conn.client.db, &self.shared.databases, keys);
        }
    }

    /// What does not begin is given back to its client after the round.
    fn begins(&mut self, i: usize) -> bool {
        let conn = self.conns.get_mut(self.plan.calls[i].conn as usize);
        let begins = !self.is_over && conn.is_some_and(|conn| !conn.is_blocked());
        if !begins {
            self.plan.postponed.push(i as u32);
        }
        begins
    }

    fn run(&mut self, i: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let call = self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(call.conn as usize) else {
            return Err(answered());
        };
        let args = self.plan.args(&call, &conn.input);
        conn.served = true;
        let before = conn.reply.pending();
        let mark = conn.reply.begin();
        self.mark = Some(mark);
        let start_ns = if self.time_each { self.shared.config.clock.monotonic_ns() } else { 0 };
        let mut ctx = Context {
            client: &mut conn.client,
            reply: &mut conn.reply,
            shared: self.shared,
            local: self.local,
            first_slot: 0,
        };
        ctx.count_call(call.spec);
        if call.spec.flags.may_use_reserve() {
            tx.use_reserve();
        }
        let result = match call.spec.handler {
            Handler::Keyed(run) => run(&mut ctx, args, tx),
            _ => run_exec(&mut ctx, tx),
        };
        let done = result.map_err(|error| {
            ctx.answer_error(mark, &error);
            ctx.local.stats.command(call.spec.id).failed.add(1);
            answered()
        });
        if self.time_each {
            let took_ns = self.shared.config.clock.monotonic_ns() - start_ns;
            note_time(self.shared, self.local, &conn.client, call.spec, args, took_ns);
        }
        self.has_error = done.is_err();
        let replied = conn.reply.pending() - before;
        // The transaction has its own copy of a long argument by now; the log takes another one.
        let is_last = |call: &Call| {
            conn.start == conn.input.len()
                && conn.postponed.is_empty()
                && self.plan.calls[i + 1..].iter().all(|other| other.conn != call.conn)
        };
        if conn.input.len() - call.base as usize >= LONG_REQUEST_BYTES && is_last(&call) {
            conn.drop_input(call.base as usize);
        }
        self.note_work(i, replied);
        done
    }

    fn ended(&mut self, i: usize, result: Result<Option<Stamp>, TxError>) {
        let mark = self.mark.take();
        let has_error = std::mem::take(&mut self.has_error);
        let call = &self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(call.conn as usize) else {
            return;
        };
        let mark = mark.unwrap_or_else(|| conn.reply.mark());
        if let Err(error) = result
            && !has_error
        {
            conn.reply.truncate(mark);
            let error = CmdError::from(error);
            conn.reply.error(error.message());
            self.local.stats.count_error(error.message());
            self.local.stats.command(call.spec.id).failed.add(1);
            if matches!(call.spec.handler, Handler::Exec) {
                conn.client.multi = None;
                conn.client.watched.clear();
            }
        }
        settle_reply(&mut conn.client, &mut conn.reply, mark);
    }
}
