//! One round of an event loop: the calls of the plan as a batch of transactions.
//!
//! Successive calls on one key are a group, which is one transaction ([`groups`]). A
//! group takes the lock of its key once, and its log record names each node once. If a call of a
//! group can only end with a rollback, the group is dissolved. Its calls then run again, each as a
//! transaction of its own.
//!
//! [`groups`]: super::groups

use std::ops::Range;
use std::sync::Arc;

use stillpoint::{Batch, KeySet, Mode, Session, Stamp, Tx, TxError};

use super::conn::Conn;
use super::connections::Connections;
use super::drafting::run_keyed;
use super::long::{LONG_WORK, VERY_LONG_WORK};
use super::plan::{Call, Plan, ROUND_WORK, UNIT_BYTES};
use super::waits::{can_run_again, exec_lacks_room, is_at_limit, waits_for_room};
use crate::error::CmdError;
use crate::keyspace::Keys;
use crate::repeat;
use crate::resp::Mark;
use crate::session::call::{name_command, name_exec};
use crate::session::client::RanQueue;
use crate::session::context::{Context, Local};
use crate::session::exec::{answered, declare_exec, run_exec};
use crate::session::logged::{log_queue, log_requests};
use crate::session::route::{note_latency, note_time, settle_reply};
use crate::session::spec::{Flags, Handler};
use crate::shared::Shared;
use crate::shared::registry::RELAXED;

/// After a reply of this length the round asks whether the clients hold too much.
const LARGE_REPLY_BYTES: usize = 64 << 10;
/// Elements of a collection that are visited in a microsecond, about.
const ELEMENTS_OF_UNIT: u64 = 8;
/// A group that writes does not run if the value of its key is longer. Each of its calls would copy
/// the value, to see what the calls before it have changed.
const GROUP_VALUE_BYTES_MAX: usize = 16 << 10;
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
    /// Where the first reply of the group that runs now begins.
    mark: Option<Mark>,
    /// The other clients of the running group that have replies, and where the first reply of each begins.
    joined: Vec<(u32, Mark)>,
    /// Whether the reply of the call that runs now is an error already.
    has_error: bool,
    /// Whether the call that has run must run again, since memory is on its way back.
    runs_again: bool,
    /// Whether the run under way has missed a record that is on the disk.
    needs_disk: bool,
    /// Whether the call that has run must run again, when a lock may be free.
    met_lock: bool,
    /// Whether the call that has run must run again, with further keys or beside the event loop.
    comes_back: bool,
    /// Whether the call that has run waits for keys.
    waits: bool,
    /// Work of the calls and their replies so far.
    work: usize,
    /// Whether no more calls run in this round, because it did enough or the clients hold too much.
    is_over: bool,
    /// The call behind the last one of the running group that has begun.
    ran_to: usize,
    /// Errors of the calls of the running group, which count once the group has committed.
    errors: Vec<(u16, CmdError)>,
    /// The times of the calls of the running group in nanoseconds, if each call is timed.
    times: Vec<(usize, u64)>,
    /// Keys that the running call has declared.
    keys: u32,
    /// The first slot of each request in the call of the running transaction, if it is `EXEC`.
    slots: Vec<u32>,
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
            joined: Vec::new(),
            has_error: false,
            runs_again: false,
            needs_disk: false,
            met_lock: false,
            comes_back: false,
            waits: false,
            work: 0,
            is_over: false,
            ran_to: 0,
            errors: Vec::new(),
            times: Vec::new(),
            keys: 0,
            slots: Vec::new(),
        }
    }

    /// Executes the round and counts its time. Gives the moment of its end in nanoseconds.
    pub(crate) fn execute(&mut self, session: &mut Session) -> u64 {
        let start_ns = self.shared.config.clock.monotonic_ns();
        {
            let _stripe = self.shared.keyspace.lock.enter(self.local.worker);
            self.local.read_params(self.shared);
            self.plan.group(self.conns, &self.shared.keyspace);
            self.local.keys.serving.begin_batch(&self.shared.keyspace.waiters, true);
            // A call that needs the disk comes back. It waits for the disk without a lock.
            session.leave_unloaded(self.plan.leaves_unloaded);
            // So does one that would wait for a person.
            session.leave_held(true);
            self.plan.has_log_limit = session.may_meet_held();
            // And one that would wait for a long command of another client. A command that has waited for as
            // long as it may wait for a person waits for the command here.
            session.leave_busy_keys(self.plan.waits_for_locks);
            session.execute(self);
            session.leave_busy_keys(false);
            session.leave_held(false);
            session.leave_unloaded(false);
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

    /// Ends a run of the calls `first..=i` whose last one asks for another run: under a lock, with
    /// further keys, or beside the event loop.
    fn end_for_a_run(&mut self, first: usize, i: usize, error: &CmdError) -> TxError {
        if error.is_not_locked() {
            // The call has not begun as long as it waits for the lock.
            if let Some(mark) = self.mark.take() {
                self.take_replies_back(first, mark);
            }
            self.uncount(first..i + 1);
            return TxError::NotLocked;
        }
        let call = self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(call.conn as usize).filter(|_| i == first) else {
            return answered();
        };
        (self.comes_back, conn.runs_again) = (true, true);
        conn.leaves_with = if error.leaves() {
            let work = self.local.keys.take_elements_ahead() / ELEMENTS_OF_UNIT;
            LONG_WORK.max(work as usize)
        } else if error.has_drafted() {
            LONG_WORK
        } else {
            let keys = conn.client.derived.as_ref().map_or(0, |derived| derived.keys.len());
            if self.plan.diverts && keys >= LONG_WORK { keys } else { 0 }
        };
        answered()
    }

    /// Runs call `i` of a group.
    fn run_call(&mut self, group: &Range<usize>, i: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let call = self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(call.conn as usize) else {
            return Err(answered());
        };
        if i > group.start && call.conn != self.plan.calls[i - 1].conn {
            conn.replied = true;
            self.joined.push((call.conn, conn.reply.begin()));
        }
        let args = self.plan.args(&call, &conn.input);
        let before = conn.reply.pending();
        let mark = conn.reply.mark();
        let start_ns = if self.time_each { self.shared.config.clock.monotonic_ns() } else { 0 };
        let is_keyed = matches!(call.spec.handler, Handler::Keyed(_));
        self.local.keys.begin_command(self.plan.diverts && is_keyed);
        let mut ctx = Context {
            client: &mut conn.client,
            reply: &mut conn.reply,
            shared: self.shared,
            local: self.local,
            first_slot: 0,
            may_wait: is_keyed,
            may_derive: is_keyed,
        };
        ctx.count_call(call.spec);
        let result = match call.spec.handler {
            Handler::Keyed(run) => {
                let done = run_keyed(&mut ctx, run, (args, self.keys), tx);
                done.and_then(|()| ctx.serve(tx))
            }
            _ => run_exec(&mut ctx, tx),
        };
        if let Err(error) = &result
            && error.asks_for_a_run()
        {
            return Err(self.end_for_a_run(group.start, i, error));
        }
        if !result.as_ref().is_err_and(CmdError::is_not_loaded) {
            // Another run needs the same keys.
            ctx.client.derived = None;
        }
        if ctx.client.waits_for_keys() {
            self.waits = true;
            return Err(answered());
        }
        let changes = !is_keyed || call.spec.flags.has(Flags::WRITE);
        let done = match result {
            // The connection ends behind the replies before this one.
            Ok(()) if conn.reply.overflowed() => {
                conn.reply.truncate(mark);
                // Nobody sees what the call has taken.
                if changes { Err(answered()) } else { Ok(()) }
            }
            Ok(()) => Ok(()),
            Err(error) => self.fail_call(group, i, mark, error),
        };
        if self.needs_disk {
            return done;
        }
        self.has_error = done.is_err();
        self.note_call(group, i, (before, start_ns));
        done
    }

    /// Answers the error of call `i`, whose reply begins at `mark`.
    ///
    /// # Errors
    /// The transaction is to be rolled back.
    fn fail_call(
        &mut self,
        group: &Range<usize>,
        i: usize,
        mark: Mark,
        error: CmdError,
    ) -> Result<(), TxError> {
        let spec = self.plan.calls[i].spec;
        let Some(conn) = self.conns.get_mut(self.plan.calls[i].conn as usize) else {
            return Err(answered());
        };
        let is_grouped = group.len() > 1;
        if error.is_not_loaded() {
            self.needs_disk = true;
            return Err(TxError::NotLoaded);
        }
        if is_grouped && matches!(error, CmdError::Store(_)) {
            // By itself the call may find memory in the reserve, or wait for memory.
            return Err(answered());
        }
        let is_at_limit = error.is_at_limit();
        let waits = (error.is_held() || is_at_limit) && self.plan.waits_for_locks;
        if waits && matches!(spec.handler, Handler::Keyed(_)) {
            (self.met_lock, conn.met_log_limit) = (true, is_at_limit);
            return Err(answered());
        }
        if error.is_full() && waits_for_room(self.shared, self.plan, spec, &conn.client) {
            self.runs_again = true;
            return Err(answered());
        }
        conn.reply.truncate(mark);
        error.warn();
        conn.reply.error(error.message());
        if is_grouped {
            // As in `EXEC`, an error of the command itself comes before its first change.
            self.errors.push((spec.id, error));
            return Ok(());
        }
        self.count_error(spec.id, &error);
        Err(answered())
    }

    fn count_error(&self, command: u16, error: &CmdError) {
        self.local.stats.count_error(error.message());
        self.local.stats.command(command).failed.add(1);
    }

    /// Notes the time and the work of call `i`, which began at `start_ns` when `before` bytes of
    /// replies were pending.
    fn note_call(&mut self, group: &Range<usize>, i: usize, (before, start_ns): (usize, u64)) {
        let call = self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(call.conn as usize) else {
            return;
        };
        let args = self.plan.args(&call, &conn.input);
        let is_grouped = group.len() > 1;
        if self.time_each {
            let took_ns = self.shared.config.clock.monotonic_ns() - start_ns;
            if is_grouped {
                self.times.push((i, took_ns));
            } else {
                note_time(self.shared, self.local, &conn.client, call.spec, args, took_ns);
            }
        }
        let replied = conn.reply.pending() - before;
        let work = call.spans as usize + replied / UNIT_BYTES;
        conn.load.add(work + args.total_len() / UNIT_BYTES, self.plan.now_ms);
        // The transaction has copied the long argument, and the log will copy it again. So the input
        // goes first.
        let base = call.base as usize;
        let is_long = conn.start.saturating_sub(base) >= LONG_REQUEST_BYTES;
        let may_run_again = self.plan.waits_for_room
            || self.plan.has_log_limit && self.plan.waits_for_locks
            || self.met_lock
            || self.runs_again
            || !self.shared.keyspace.has_all();
        if is_long && !is_grouped && !may_run_again && is_last(self.plan, i, conn) {
            conn.drop_request(base);
        }
        self.note_work(work, replied);
    }

    /// Counts the errors and the times of the calls of a group that has committed.
    fn count_group(&mut self) {
        for (command, error) in std::mem::take(&mut self.errors) {
            self.count_error(command, &error);
        }
        for (i, took_ns) in std::mem::take(&mut self.times) {
            let call = self.plan.calls[i];
            if let Some(conn) = self.conns.get(call.conn as usize) {
                let args = self.plan.args(&call, &conn.input);
                note_time(self.shared, self.local, &conn.client, call.spec, args, took_ns);
            }
        }
    }

    /// Whether the running group goes on with its next call, after the calls before `next`.
    fn goes_on(&self, group: &Range<usize>, next: usize) -> bool {
        let goes_on = || {
            let conn = self.conns.get(self.plan.calls[next].conn as usize);
            !self.is_over && conn.is_some_and(|conn| !conn.is_blocked(self.plan.allowance))
        };
        next < group.end && (self.is_logged_whole(group) || goes_on())
    }

    /// Whether the log has got the requests of the group, so that all of them must run.
    fn is_logged_whole(&self, group: &Range<usize>) -> bool {
        let mut calls = self.plan.calls[group.clone()].iter();
        self.shared.keyspace.logs_commands && calls.any(|call| call.spec.flags.has(Flags::WRITE))
    }

    /// Whether call `i` may run now, as far as its client is concerned.
    fn may_begin(&mut self, i: usize, large_bytes: &dyn Fn() -> usize) -> bool {
        let Call { conn, spec, .. } = self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(conn as usize) else { return false };
        let copies = spec.flags.has(Flags::COPIES) || matches!(spec.handler, Handler::Exec);
        let is_exec = self.plan.diverts && matches!(spec.handler, Handler::Exec);
        let is_waiting = conn.client.waits_for_keys();
        if is_waiting
            || conn.runs_again
            || conn.leaves_with > 0
            || conn.is_blocked(self.plan.allowance)
        {
            return false;
        }
        if is_exec && exec_lacks_room(self.shared, spec, &conn.client) {
            (conn.needs_room, conn.leaves_with) = (true, LONG_WORK);
        } else if self.plan.diverts && copies {
            let work = large_bytes() / UNIT_BYTES;
            conn.leaves_with = if work < LONG_WORK { 0 } else { work };
        }
        conn.leaves_with == 0
    }

    /// Whether a group changes a value that is too long for it.
    fn patches_long_value(&self, group: &Range<usize>, large_bytes: &dyn Fn() -> usize) -> bool {
        let mut calls = self.plan.calls[group.clone()].iter();
        group.len() > 1
            && calls.any(|call| call.spec.flags.has(Flags::WRITE))
            && large_bytes() > GROUP_VALUE_BYTES_MAX
    }

    /// Ends the first call of a group, whose transaction has ended with this result.
    fn end_call(&mut self, i: usize, mark: Option<Mark>, result: Result<Option<Stamp>, TxError>) {
        let has_error = std::mem::take(&mut self.has_error);
        if self.parks_at_lock(i, mark, &result) {
            return;
        }
        let call = &self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(call.conn as usize) else {
            return;
        };
        let has_run = mark.is_some();
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
        self.needs_disk = false;
        if self.plan.leaves_unloaded && matches!(result, Err(TxError::NotLoaded)) {
            return self.leave_for_disk(i, mark, has_run);
        }
        let found_none = matches!(result, Err(TxError::Memory(_))) && !has_error;
        let again = found_none && waits_for_room(self.shared, self.plan, call.spec, &conn.client);
        let waits_for_log = is_at_limit(&result)
            && !has_error
            && self.plan.waits_for_locks
            && can_run_again(call.spec, &conn.client);
        let ran = conn.client.ran.take();
        if std::mem::take(&mut self.runs_again) || again {
            return self.leave_with_queue(i, (mark, has_run), ran, |conn| conn.needs_room = true);
        }
        if waits_for_log {
            // A checkpoint frees the log meanwhile.
            return self.leave_with_queue(i, (mark, has_run), ran, |conn| {
                (conn.met_lock, conn.met_log_limit) = (true, true);
            });
        }
        if let Some(blocked) = conn.client.blocked.take()
            && result.is_ok()
        {
            // Otherwise the next client gets what has woken this one.
            blocked.waiting.settle_served();
        }
        if let Err(error) = result
            && !has_error
        {
            conn.reply.truncate(mark);
            let error = CmdError::from(error);
            error.warn();
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

    /// Gives call `i` back to its client, since a record is on the disk. The client leaves the event loop for
    /// this command, so that no other client waits.
    fn leave_for_disk(&mut self, i: usize, mark: Mark, has_run: bool) {
        let call = &self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(call.conn as usize) else { return };
        conn.reply.truncate(mark);
        conn.needs_disk = true;
        // A command that finds records on its way may need many of them.
        conn.leaves_with = if has_run { VERY_LONG_WORK } else { LONG_WORK };
        if has_run {
            self.local.stats.uncount_call(call.spec.id);
        }
        self.plan.postponed.push(i as u32);
    }

    /// Gives call `i`, which has found no memory or no room in the log, back to its client. `has_run` says whether
    /// it has begun. An `EXEC` that has run gets its queue again. The client leaves the event loop for the next run, so that no other client
    /// waits. `note` notes what the client waits for.
    fn leave_with_queue(
        &mut self,
        i: usize,
        (mark, has_run): (Mark, bool),
        ran: Option<RanQueue>,
        note: fn(&mut Conn),
    ) {
        let call = &self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(call.conn as usize) else { return };
        conn.reply.truncate(mark);
        note(conn);
        conn.leaves_with = LONG_WORK;
        if has_run {
            self.local.stats.uncount_call(call.spec.id);
        }
        if let Some(ran) = ran {
            let counted = ran.multi.specs().filter(|_| ran.is_counted);
            counted.for_each(|spec| self.local.stats.uncount_call(spec.id));
            conn.client.bring_queue_back(ran);
        }
        self.plan.postponed.push(i as u32);
    }

    /// Gives call `i` back to its client if it has met a lock that is held for long and may wait for it. The
    /// client leaves the event loop, so that no other client waits.
    fn parks_at_lock(
        &mut self,
        i: usize,
        mark: Option<Mark>,
        result: &Result<Option<Stamp>, TxError>,
    ) -> bool {
        // `EXEC` whose run has used up the queue has replied.
        let met_lock = matches!(result, Err(TxError::Held)) && mark.is_none();
        let was_told = std::mem::take(&mut self.met_lock);
        let waits = was_told || met_lock && self.plan.waits_for_locks;
        if !waits {
            return false;
        }
        let call = &self.plan.calls[i];
        let Some(conn) = self.conns.get_mut(call.conn as usize) else { return false };
        if let Some(mark) = mark {
            conn.reply.truncate(mark);
            self.local.stats.uncount_call(call.spec.id);
        }
        (conn.met_lock, conn.leaves_with) = (true, LONG_WORK);
        self.plan.postponed.push(i as u32);
        true
    }

    /// Declares the key of a group.
    fn declare_group(&mut self, group: Range<usize>, keys: &mut KeySet) {
        let calls = &self.plan.calls[group];
        // The transaction has one slot, which every call has as its first.
        let writer = calls.iter().find(|call| call.spec.flags.has(Flags::WRITE));
        let call = writer.unwrap_or(&calls[0]);
        if let Some(conn) = self.conns.get_mut(call.conn as usize) {
            let args = self.plan.args(call, &conn.input);
            call.spec.declare_keys(args, conn.client.db, &self.shared.keyspace, keys);
        }
    }

    /// Declares the keys of the calls of a group.
    fn declare_own(&mut self, group: Range<usize>, keys: &mut KeySet) {
        if group.len() > 1 {
            return self.declare_group(group, keys);
        }
        let call = &self.plan.calls[group.start];
        let Some(conn) = self.conns.get_mut(call.conn as usize) else {
            return;
        };
        if matches!(call.spec.handler, Handler::Exec) {
            declare_exec(&mut conn.client, &self.shared.keyspace, keys);
        } else {
            let args = self.plan.args(call, &conn.input);
            let (db, keyspace) = (conn.client.db, &self.shared.keyspace);
            let before = keys.len();
            call.spec.declare_keys(args, db, keyspace, keys);
            if call.spec.flags.has(Flags::DERIVES_KEYS)
                && let Some(derived) = &conn.client.derived
            {
                derived.keys.iter().for_each(|key| {
                    keyspace.declare(keys, db, key, Mode::Read, 0);
                });
            }
            // A command that may make drafts is alone in its round.
            self.keys = (keys.len() - before) as u32;
        }
    }

    /// Runs the calls of a group.
    fn run_group(&mut self, group: Range<usize>, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let calls = &self.plan.calls[group.clone()];
        if calls.iter().all(|call| call.spec.flags.may_use_reserve()) {
            tx.use_reserve();
        }
        let Some(conn) = self.conns.get_mut(calls[0].conn as usize) else {
            return Err(answered());
        };
        conn.replied = true;
        if std::mem::take(&mut self.needs_disk) {
            // This is another run: the store has loaded what the one before has missed.
            if let Some(mark) = self.mark {
                self.take_replies_back(group.start, mark);
            }
            self.uncount(group.start..self.ran_to);
        } else {
            self.mark = Some(conn.reply.begin());
            self.joined.clear();
        }
        self.errors.clear();
        self.times.clear();
        self.ran_to = group.start;
        // A log of commands runs them again one by one, and compares what they write.
        let leaves_open = group.len() > 1 && !self.shared.keyspace.logs_commands;
        self.local.keys.left_open.begin(leaves_open);
        let done = self.run_calls(&group, tx);
        self.local.keys.left_open.begin(false);
        done
    }

    fn run_calls(&mut self, group: &Range<usize>, tx: &mut Tx<'_>) -> Result<(), TxError> {
        loop {
            let i = self.ran_to;
            if !self.plan.calls[i].spec.flags.has(Flags::LEAVES_OPEN) {
                self.save_left_open(group, tx)?;
            }
            self.ran_to = i + 1;
            self.run_call(group, i, tx)?;
            if self.local.keys.left_open.is_lost() {
                return Err(answered());
            }
            if !self.goes_on(group, self.ran_to) {
                return self.save_left_open(group, tx);
            }
        }
    }

    /// Saves the collection that the calls of a group have left open.
    fn save_left_open(&mut self, group: &Range<usize>, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let client = self.plan.calls[group.start].conn as usize;
        let Some(conn) = self.conns.get(client) else { return Err(answered()) };
        let (keyspace, local) = (&self.shared.keyspace, &mut self.local.keys);
        let saved = Keys::new(keyspace, local, conn.client.db, 0).save_left_open(tx);
        self.needs_disk = matches!(saved, Err(TxError::NotLoaded));
        // By itself each call may find memory in the reserve, or wait for memory.
        saved.map_err(|error| if self.needs_disk { error } else { answered() })
    }

    /// Notes that a call has cost `work`, its reply of `replied` bytes included.
    fn note_work(&mut self, work: usize, replied: usize) {
        self.work += work;
        // All event loops write the total, so the round reads it after large replies only.
        let too_much = || replied >= LARGE_REPLY_BYTES && self.shared.client_memory.is_over();
        self.is_over |= self.work >= ROUND_WORK || too_much();
    }
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
        self.plan.groups()
    }

    fn declare(&mut self, group: usize, keys: &mut KeySet) {
        self.declare_own(self.plan.group_calls(group), keys);
        self.local.keys.serving.declare(&self.shared.keyspace.waiters, group, keys);
    }

    /// Whether the calls run now. Calls that do not run go back to their clients after the round.
    fn begins(&mut self, group: usize, large_bytes: &dyn Fn() -> usize) -> bool {
        let group = self.plan.group_calls(group);
        let begins = !self.is_over && group.clone().all(|i| self.may_begin(i, large_bytes));
        if !begins {
            self.postpone(group);
            return false;
        }
        let separates = self.patches_long_value(&group, large_bytes);
        if separates {
            self.separate(group);
        }
        !separates
    }

    fn call(&mut self, group: usize, to: &mut stillpoint::Call) {
        if self.local.keys.serving.may_serve(group) {
            return;
        }
        let calls = &self.plan.calls[self.plan.group_calls(group)];
        let call = calls[0];
        let Some(conn) = self.conns.get(call.conn as usize) else {
            return;
        };
        if self.shared.keyspace.logs_commands {
            let is_exec = matches!(call.spec.handler, Handler::Exec);
            let requests = calls.iter().map(|call| (call.spec, self.plan.args(call, &conn.input)));
            let (all, slots) = ((0, usize::MAX), &mut self.slots);
            slots.clear();
            return match () {
                () if !self.shared.keyspace.is_in_order() => {}
                () if is_exec => log_queue(to, &conn.client, all, self.local, slots),
                () => log_requests(to, requests, &conn.client, self.local),
            };
        }
        // A store that logs calls beside their writes gets groups of one call.
        let now_ms = self.local.keys.now_ms;
        if matches!(call.spec.handler, Handler::Exec) {
            name_exec(to, &conn.client, (0, usize::MAX), now_ms);
        } else {
            let args = self.plan.args(&call, &conn.input);
            name_command(to, (call.spec, args), &conn.client, now_ms);
        }
    }

    fn run(&mut self, group: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.local.keys.serving.begin(group);
        let done = self.run_group(self.plan.group_calls(group), tx);
        if done.is_err() {
            self.local.keys.serving.release();
        }
        done
    }

    fn run_again(
        &mut self,
        _: usize,
        call: &stillpoint::Call,
        tx: &mut Tx<'_>,
    ) -> Result<(), TxError> {
        repeat::run_again(self.shared, self.local.worker, call, &self.slots, tx)
    }

    fn ended(&mut self, group: usize, result: Result<Option<Stamp>, TxError>) {
        self.local.keys.end_serving(&result);
        let group = self.plan.group_calls(group);
        let mark = self.mark.take();
        // Some of the calls may do alone what the group cannot: they need no lock, or less memory.
        if group.len() > 1 && result.is_err() && !self.comes_back {
            (self.has_error, self.runs_again, self.needs_disk) = (false, false, false);
            self.met_lock = false;
            return self.dissolve(group, mark);
        }
        let ran_to = match mark {
            Some(_) => {
                self.count_group();
                self.ran_to
            }
            None => group.start + 1,
        };
        if ran_to == group.start + 1 {
            self.end_call(group.start, mark, result);
        }
        self.postpone(ran_to..group.end);
    }
}

mod returns;
