//! From bytes to a batch: which requests run now, and which wait for those before them.
//!
//! Requests of one client are answered in order; requests of different clients may run in any
//! order. Commands over declared keys go into the batch, so that the memory of all of them is
//! fetched together. Other commands run while planning, once the client has no call in the batch.
//! Until then such commands wait for the next round. So do long commands, which then leave the
//! event loop.

use std::sync::Arc;

use stillpoint::{Session, Unflushed};

use super::conn::{Conn, Postponed};
use super::connections::Connections;
use super::long::{LONG_WORK, LongCall};
use crate::keyspace::Served;
use crate::resp::{Args, Span};
use crate::session::client::{BlockedState, Client};
use crate::session::context::{Context, Local};
use crate::session::exec::must_run_alone;
use crate::session::route::{
    MetLock, Route, classify, is_paused, run_now, runs_alone, settle_reply,
};
use crate::session::spec::{Handler, Spec};
use crate::shared::Shared;

/// Calls of one round. With more calls, prefetched lines would push each other out of the cache.
const ROUND_CALLS: usize = 256;
/// Calls of one client that fit into a round however many clients there are.
const CLIENT_CALLS_MIN: usize = 8;
/// Work of one round: about a microsecond for each argument and for each [`UNIT_BYTES`] read or
/// answered. A single command of more work runs all the same.
pub(super) const ROUND_WORK: usize = 2048;
pub(super) const UNIT_BYTES: usize = 1 << 10;

/// One call of the batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(super) conn: u32,
    /// Where the request begins in the client's input.
    pub(super) base: u32,
    first_span: u32,
    pub(super) spans: u32,
    pub(crate) spec: &'static Spec,
    /// Whether the call must be a transaction of its own.
    pub(super) is_alone: bool,
}

/// The state of a client's input after planning.
#[derive(Debug)]
pub(crate) enum Progress {
    /// No whole request is left, or nothing more is to be executed.
    Drained,
    /// More to do in the next round.
    More,
    /// Too many replies wait to be taken, or the reply to the last request has to wait.
    Blocked,
    /// `CLIENT PAUSE`: look again later.
    HeldBack,
    /// The next request is long and waits until the client's replies are sent.
    AfterReplies,
    /// The next request is long: the client leaves the event loop with this call.
    Leaves(LongCall),
}

/// The outcome for a parsed request.
enum Enqueued {
    /// The request is in the batch, or has run.
    Done,
    /// The request waits for the client's calls in the batch.
    Waits,
    /// `CLIENT PAUSE` holds the request back.
    HeldBack,
    /// The request is long and waits until the client's replies are sent.
    AfterReplies,
    /// The request is long, and its client leaves the event loop.
    Leaves(LongCall),
}

/// Lets a client leave its event loop with the parsed request of `used` bytes.
fn leaves(conn: &mut Conn, used: usize, spec: &'static Spec, work: usize) -> Enqueued {
    // Earlier replies of the client leave first, since they may wait for a flush.
    if conn.replied {
        return Enqueued::AfterReplies;
    }
    conn.client.requests += 1;
    let (spans, base, reads_disk) = (conn.parser.spans().into(), conn.start, false);
    Enqueued::Leaves(LongCall { spec, base, used, spans, work, reads_disk })
}

/// The batch of one round, and the buffers from which it is made.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) calls: Vec<Call>,
    spans: Vec<Span>,
    /// Work of the calls, replies excepted.
    work: usize,
    /// Most calls of one client in the round.
    calls_max: usize,
    /// When the event loop looks at the sockets again, in monotonic nanoseconds.
    until_ns: u64,
    /// Bytes of replies that each client may leave unread at present.
    pub(super) allowance: usize,
    /// The moment of the round in monotonic milliseconds.
    pub(super) now_ms: u64,
    /// Whether long commands are left to other threads.
    pub(super) diverts: bool,
    /// Whether calls end that need a record on the disk, and come back.
    pub(super) leaves_unloaded: bool,
    /// Whether a call that finds no memory comes back, although the plan diverts no call.
    pub(super) waits_for_room: bool,
    /// Whether a call that meets a lock which is held for long comes back.
    pub(super) waits_for_locks: bool,
    /// Whether a commit may meet the limit of the log, and run again.
    pub(super) has_log_limit: bool,
    /// Calls that did not run, in the order of `calls`.
    pub(super) postponed: Vec<u32>,
    /// Clients whose call waits for keys.
    pub(super) blocked: Vec<usize>,
    /// The commits of other sessions that have served clients, since the pass before.
    pub(super) met: Unflushed,
    /// Ends of the groups of calls. The calls of a group are one transaction.
    pub(super) group_ends: Vec<u32>,
}

/// Estimated cost of a request, in units of about a microsecond.
#[inline]
fn work_of(
    spec: &'static Spec,
    args: Args<'_>,
    used: usize,
    client: &Client,
    shared: &Shared,
) -> usize {
    let weigh = |spec: &Spec, args, db| match spec.weigh {
        Some(weigh) => weigh(args, db, &shared.keyspace),
        None => 0,
    };
    match (&client.multi, spec.handler) {
        // It waits for every command that runs, and the event loop must not.
        (_, Handler::Store(..)) if runs_alone(shared, spec) => LONG_WORK,
        (Some(multi), Handler::Exec) if must_run_alone(client) => LONG_WORK + multi.len(),
        (Some(multi), Handler::Exec) => {
            let commands = (0..multi.len()).map(|i| multi.command(i));
            let weights = commands.map(|(spec, args)| args.len() + weigh(spec, args, client.db));
            multi.memory() / UNIT_BYTES + weights.fold(0, usize::saturating_add)
        }
        _ => (args.len() + used / UNIT_BYTES).saturating_add(weigh(spec, args, client.db)),
    }
}

impl Plan {
    /// Plans of an event loop that leaves long commands to other threads.
    pub(crate) fn diverting() -> Self {
        Self { diverts: true, leaves_unloaded: true, waits_for_locks: true, ..Self::default() }
    }

    /// Begins a round for `clients` clients at `now_ms`, to be planned before `until_ns`. Each
    /// client may leave `allowance` bytes unread.
    pub(crate) fn begin(&mut self, clients: usize, now_ms: u64, until_ns: u64, allowance: usize) {
        self.calls.clear();
        self.spans.clear();
        self.postponed.clear();
        self.work = 0;
        self.calls_max = (ROUND_CALLS / clients.max(1)).max(CLIENT_CALLS_MIN);
        (self.now_ms, self.until_ns, self.allowance) = (now_ms, until_ns, allowance);
    }

    fn is_full(&self) -> bool {
        self.calls.len() >= ROUND_CALLS || self.work >= ROUND_WORK
    }

    pub(super) fn push(
        &mut self,
        id: usize,
        base: usize,
        used: usize,
        spans: &[Span],
        spec: &'static Spec,
    ) {
        let first_span = self.spans.len() as u32;
        self.spans.extend_from_slice(spans);
        self.work += spans.len() + used / UNIT_BYTES;
        let spans = spans.len() as u32;
        let (conn, base) = (id as u32, base as u32);
        self.calls.push(Call { conn, base, first_span, spans, spec, is_alone: false });
    }

    /// Gives the calls that did not run back to their clients, and adds these clients to `again`.
    pub(crate) fn give_back(&mut self, conns: &mut Connections, again: &mut Vec<usize>) {
        // The loop begins with the last call. Each call ends where the next call of its client
        // begins, or where the unplanned input begins.
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
            conn.runs_again = false;
            conn.client.requests -= 1;
            let Call { spec, is_alone, .. } = call;
            conn.postponed.push_front(Postponed { used, spans, spec, is_alone });
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
        loop {
            if conn.client.closing || conn.broken {
                return Progress::Drained;
            }
            if conn.start == conn.input.len() {
                conn.wants_input = true;
                return Progress::Drained;
            }
            if conn.client.is_served() {
                self.answer_served(conn, shared, local);
                continue;
            }
            if self.is_full() || self.calls.len() - first >= self.calls_max {
                return Progress::More;
            }
            if conn.is_blocked(self.allowance) || conn.client.is_waiting() {
                return Progress::Blocked;
            }
            if !conn.postponed.is_empty() {
                match self.resume(id, conn, shared) {
                    Some(progress) => return progress,
                    None => continue,
                }
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
            let enqueued = self.enqueue(id, conn, used, shared, local, session);
            conn.held = Some(used);
            match enqueued {
                Enqueued::Waits => return Progress::More,
                Enqueued::HeldBack => return Progress::HeldBack,
                Enqueued::AfterReplies => return Progress::AfterReplies,
                Enqueued::Leaves(call) => {
                    conn.held = None;
                    conn.start += used;
                    return Progress::Leaves(call);
                }
                Enqueued::Done => {}
            }
            conn.held = None;
            conn.start += used;
        }
    }

    /// Answers the command of a client that another transaction has served.
    fn answer_served(&mut self, conn: &mut Conn, shared: &Shared, local: &Local) {
        let Some(blocked) = conn.client.blocked.take() else { return };
        let Some(Served { reply, commit }) = blocked.waiting.take_served() else { return };
        let Some(Postponed { used, spec, .. }) = conn.postponed.pop_front() else { return };
        conn.start += used;
        conn.client.requests += 1;
        conn.replied = true;
        local.stats.count_call(spec.id);
        let mark = conn.reply.begin();
        match reply {
            Ok(encoded) => conn.reply.raw(&encoded),
            Err(text) => {
                conn.reply.error(&text);
                local.stats.count_error(&text);
                local.stats.command(spec.id).failed.add(1);
            }
        }
        settle_reply(&mut conn.client, &mut conn.reply, mark);
        if conn.client.needs_met() {
            // A transaction that has made a key and emptied it may have written nothing. But it may have read what
            // others have written.
            let all = || shared.keyspace.engine().appended();
            self.met.join(commit.map_or_else(all, |commit| Unflushed::of(vec![commit])));
        }
    }

    /// As [`take_postponed`](Self::take_postponed), unless a pause holds the request back.
    fn resume(&mut self, id: usize, conn: &mut Conn, shared: &Shared) -> Option<Progress> {
        // What has timed out writes nothing.
        let may_write =
            conn.client.blocked.as_ref().is_none_or(|it| it.state == BlockedState::Runs);
        let next = conn.postponed.front()?;
        if may_write && is_paused(shared, next.spec) {
            return Some(Progress::HeldBack);
        }
        self.take_postponed(id, conn)
    }

    /// Takes the first request that a round has given back. Gives how the client goes on, if not with
    /// its next request.
    pub(super) fn take_postponed(&mut self, id: usize, conn: &mut Conn) -> Option<Progress> {
        if conn.leaves_with > 0 && conn.replied {
            return Some(Progress::AfterReplies);
        }
        let Postponed { used, spans, spec, is_alone } = conn.postponed.pop_front()?;
        let base = conn.start;
        conn.start += used;
        if conn.leaves_with > 0 {
            let work = std::mem::take(&mut conn.leaves_with);
            conn.client.requests += 1;
            let reads_disk = std::mem::take(&mut conn.needs_disk);
            let call = LongCall { spec, base, used, spans, work, reads_disk };
            return Some(Progress::Leaves(call));
        }
        self.push(id, base, used, &spans, spec);
        if let Some(call) = self.calls.last_mut() {
            call.is_alone = is_alone;
        }
        conn.client.requests += 1;
        conn.pending += 1;
        None
    }

    /// Puts the parsed request of `used` bytes into the batch, or runs it.
    fn enqueue(
        &mut self,
        id: usize,
        conn: &mut Conn,
        used: usize,
        shared: &Arc<Shared>,
        local: &mut Local,
        session: &mut Session,
    ) -> Enqueued {
        let request = &conn.input[conn.start..conn.start + used];
        let args = Args::new(request, conn.parser.spans());
        if args.is_empty() {
            return Enqueued::Done;
        }
        let route = classify(shared, local.commands, &conn.client, args);
        if self.diverts
            && let Route::Batch(spec) | Route::Now(spec) = route
        {
            let work = work_of(spec, args, used, &conn.client, shared);
            if work >= LONG_WORK {
                if conn.pending > 0 {
                    return Enqueued::Waits;
                }
                return leaves(conn, used, spec, work);
            }
        }
        if let Route::Batch(spec) = route {
            self.push(id, conn.start, used, conn.parser.spans(), spec);
            conn.client.requests += 1;
            conn.pending += 1;
            return Enqueued::Done;
        }
        if conn.pending > 0 {
            return Enqueued::Waits;
        }
        if matches!(route, Route::HoldBack) {
            return Enqueued::HeldBack;
        }
        let had_replied = std::mem::replace(&mut conn.replied, true);
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
        let before = ctx.reply.pending();
        let ended_ns = match run_now(&mut ctx, route, args, session, self.diverts) {
            Ok(ended_ns) => ended_ns,
            Err(MetLock(spec)) => {
                conn.replied = had_replied;
                conn.met_lock = !had_replied;
                return leaves(conn, used, spec, LONG_WORK);
            }
        };
        conn.client.requests += 1;
        let moved_bytes = used + conn.reply.pending().saturating_sub(before);
        conn.load.add(args.len() + moved_bytes / UNIT_BYTES, self.now_ms);
        if ended_ns >= self.until_ns {
            // The command took so long that the round ends.
            self.work = ROUND_WORK;
        }
        Enqueued::Done
    }

    /// The arguments of a call, whose client has `input`.
    pub(super) fn args<'b>(&'b self, call: &Call, input: &'b [u8]) -> Args<'b> {
        let spans = call.first_span as usize..(call.first_span + call.spans) as usize;
        Args::new(&input[call.base as usize..], &self.spans[spans])
    }
}
