//! One round of an event loop: the calls of the plan as a batch of transactions.

use std::sync::Arc;

use stillpoint::{Batch, KeySet, Mode, Session, Stamp, Tx, TxError};

use super::conn::Conn;
use super::connections::Connections;
use super::long::LONG_WORK;
use super::plan::{Call, Plan, ROUND_WORK, UNIT_BYTES};
use crate::error::CmdError;
use crate::resp::Mark;
use crate::session::call::{name_command, name_exec};
use crate::session::context::{Context, Local};
use crate::session::exec::{answered, declare_exec, run_exec};
use crate::session::route::{note_latency, note_time, settle_reply};
use crate::session::spec::{Flags, Handler, Spec};
use crate::shared::Shared;
use crate::shared::registry::RELAXED;

/// After a reply of this length the round asks whether the clients hold too much.
const LARGE_REPLY_BYTES: usize = 64 << 10;
/// Elements of a collection that are visited in a microsecond, about.
const ELEMENTS_OF_UNIT: u64 = 8;
/// A request of this length is dropped as soon as it has run, before its commit.
const LONG_REQUEST_BYTES: usize = 1 << 20;
/// A long request with more bytes than these behind it stays in the buffer until its end. To remove
/// the request earlier would move those bytes.
const MOVED_BYTES_MAX: usize = 64 << 10;

/// One round: the calls of the plan as a batch of transactions.
pub(crate) struct Round<'a> {
    pub(crate) plan: &'a mut Plan,
    pub(crate) conns: &'a mut Connections,
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) local: &'a mut Local,
    /// Whether each call is timed, and not only the round.
    pub(crate) time_each: bool,
    /// Where the reply of the call that runs now begins.
    mark: Option<Mark>,
    /// Whether the reply of the call that runs now is an error already.
    has_error: bool,
    /// Whether the call that has run must run again, since memory is on its way back.
    runs_again: bool,
    /// Whether the call that has run must run again, with further keys or beside the event loop.
    comes_back: bool,
    /// Whether the call that has run waits for keys.
    waits: bool,
    /// Work of the calls and their replies so far.
    work: usize,
    /// Whether no more calls run in this round, because it did enough or the clients hold too much.
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
            runs_again: false,
            comes_back: false,
            waits: false,
            work: 0,
            is_over: false,
        }
    }

    /// Executes the round and counts its time. Gives the moment of its end in nanoseconds.
    pub(crate) fn execute(&mut self, session: &mut Session) -> u64 {
        let start_ns = self.shared.config.clock.monotonic_ns();
        {
            let _stripe = self.shared.keyspace.lock.enter(self.local.worker);
            session.execute(self);
            self.local.keys.may_leave = false;
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
            note_latency(
                self.shared,
                only.spec,
                self.local.keys.now_ms / 1000,
                took_ns / 1_000_000,
            );
        }
        ended_ns
    }

    /// Ends a run of call `i` that asks for another: under a lock, with further keys, or beside the
    /// event loop.
    fn end_for_a_run(&mut self, i: usize, mark: Mark, error: &CmdError) -> TxError {
        let call = self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(call.conn as usize) else {
            return answered();
        };
        if error.is_not_locked() {
            conn.reply.truncate(mark);
            self.local.stats.uncount_call(call.spec.id);
            return TxError::NotLocked;
        }
        (self.comes_back, conn.runs_again) = (true, true);
        conn.leaves_with = if error.leaves() {
            let work = self.local.keys.take_elements_ahead() / ELEMENTS_OF_UNIT;
            LONG_WORK.max(work as usize)
        } else {
            let keys = conn.client.derived.as_ref().map_or(0, |derived| derived.keys.len());
            if self.plan.diverts && keys >= LONG_WORK { keys } else { 0 }
        };
        answered()
    }

    /// Notes that a call has cost `work`, its reply of `replied` bytes included.
    fn note_work(&mut self, work: usize, replied: usize) {
        self.work += work;
        // All event loops write the total, so the round reads it after large replies only.
        let too_much = || replied >= LARGE_REPLY_BYTES && self.shared.client_memory.is_over();
        self.is_over |= self.work >= ROUND_WORK || too_much();
    }
}

/// Whether a call that found no memory is run again a little later. `EXEC` is not, since its run
/// has used up the queue.
fn waits_for_room(shared: &Shared, diverts: bool, spec: &Spec) -> bool {
    diverts && matches!(spec.handler, Handler::Keyed(_)) && shared.keyspace.engine.memory_returns()
}

/// Whether call `i` is the last of its client, and few bytes came behind it.
fn is_last(plan: &Plan, i: usize, conn: &Conn) -> bool {
    let call = &plan.calls[i];
    conn.input.len() - conn.start <= MOVED_BYTES_MAX
        && conn.postponed.is_empty()
        && plan.calls[i + 1..].iter().all(|other| other.conn != call.conn)
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
            declare_exec(&mut conn.client, &self.shared.keyspace, keys);
        } else {
            let args = self.plan.args(call, &conn.input);
            let (db, keyspace) = (conn.client.db, &self.shared.keyspace);
            call.spec.declare_keys(args, db, keyspace, keys);
            if call.spec.flags.has(Flags::DERIVES_KEYS)
                && let Some(derived) = &conn.client.derived
            {
                derived.keys.iter().for_each(|key| {
                    keyspace.declare(keys, db, key, Mode::Read, 0);
                });
            }
        }
    }

    /// Whether the call runs now. A call that does not run goes back to its client after the round.
    fn begins(&mut self, i: usize, large_bytes: &dyn Fn() -> usize) -> bool {
        let Call { conn, spec, .. } = self.plan.calls[i];
        let conn = self.conns.get_mut(conn as usize);
        let copies = spec.flags.has(Flags::COPIES) || matches!(spec.handler, Handler::Exec);
        let may_run = |conn: &mut Conn| {
            let is_waiting = conn.client.waits_for_keys();
            if is_waiting
                || conn.runs_again
                || conn.leaves_with > 0
                || conn.is_blocked(self.plan.allowance)
            {
                return false;
            }
            if self.plan.diverts && copies {
                let work = large_bytes() / UNIT_BYTES;
                conn.leaves_with = if work < LONG_WORK { 0 } else { work };
            }
            conn.leaves_with == 0
        };
        let begins = !self.is_over && conn.is_some_and(may_run);
        if !begins {
            self.plan.postponed.push(i as u32);
        }
        begins
    }

    fn call(&mut self, i: usize, to: &mut stillpoint::Call) {
        let call = self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(call.conn as usize) else {
            return;
        };
        let now_ms = self.local.keys.now_ms;
        if matches!(call.spec.handler, Handler::Exec) {
            name_exec(to, &conn.client, (0, usize::MAX), now_ms);
        } else {
            let args = self.plan.args(&call, &conn.input);
            name_command(to, (call.spec, args), &conn.client, now_ms);
        }
    }

    fn run(&mut self, i: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let call = self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(call.conn as usize) else {
            return Err(answered());
        };
        let args = self.plan.args(&call, &conn.input);
        conn.replied = true;
        let before = conn.reply.pending();
        let mark = conn.reply.begin();
        self.mark = Some(mark);
        let start_ns = if self.time_each { self.shared.config.clock.monotonic_ns() } else { 0 };
        let is_keyed = matches!(call.spec.handler, Handler::Keyed(_));
        self.local.keys.may_leave = self.plan.diverts && is_keyed;
        let mut ctx = Context {
            client: &mut conn.client,
            reply: &mut conn.reply,
            shared: self.shared,
            local: self.local,
            first_slot: 0,
            // A thread for long commands keeps no client.
            may_wait: self.plan.diverts && is_keyed,
            may_derive: is_keyed,
        };
        ctx.count_call(call.spec);
        if call.spec.flags.may_use_reserve() {
            tx.use_reserve();
        }
        let result = match call.spec.handler {
            Handler::Keyed(run) => run(&mut ctx, args, tx),
            _ => run_exec(&mut ctx, tx),
        };
        if let Err(error) = &result
            && error.asks_for_a_run()
        {
            return Err(self.end_for_a_run(i, mark, error));
        }
        ctx.client.derived = None;
        if ctx.client.waits_for_keys() {
            self.waits = true;
            return Err(answered());
        }
        ctx.client.blocked = None;
        let done = result.map_err(|error| {
            if error.is_full() && waits_for_room(self.shared, self.plan.diverts, call.spec) {
                self.runs_again = true;
                return answered();
            }
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
        let work = call.spans as usize + replied / UNIT_BYTES;
        conn.load.add(work + args.total_len() / UNIT_BYTES, self.plan.now_ms);
        // The transaction has copied the long argument, and the log will copy it again. So the input
        // goes first.
        let base = call.base as usize;
        if conn.start.saturating_sub(base) >= LONG_REQUEST_BYTES && is_last(self.plan, i, conn) {
            conn.drop_request(base);
        }
        self.note_work(work, replied);
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
        if std::mem::take(&mut self.waits) {
            conn.reply.truncate(mark);
            self.local.stats.uncount_call(call.spec.id);
            self.plan.blocked.push(call.conn as usize);
            self.plan.postponed.push(i as u32);
            return;
        }
        if std::mem::take(&mut self.comes_back) {
            conn.reply.truncate(mark);
            self.local.stats.uncount_call(call.spec.id);
            self.plan.postponed.push(i as u32);
            return;
        }
        let found_none = matches!(result, Err(TxError::Memory(_))) && !has_error;
        let again = found_none && waits_for_room(self.shared, self.plan.diverts, call.spec);
        if std::mem::take(&mut self.runs_again) || again {
            // The client leaves the event loop for this command, so that no other client waits.
            conn.reply.truncate(mark);
            (conn.needs_room, conn.leaves_with) = (true, LONG_WORK);
            self.local.stats.uncount_call(call.spec.id);
            self.plan.postponed.push(i as u32);
            return;
        }
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
