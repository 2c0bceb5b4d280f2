//! `EXEC`: the queue as one serializable transaction over the watched keys and the keys of all
//! commands of the queue.
//!
//! Commands over whole databases (`DBSIZE`, `KEYS`, `FLUSHDB`) declare no keys. A queue with such a
//! command runs while the keyspace lock keeps every other command out. The commands over whole
//! databases cut the queue into steps.
//!
//! 1. At most one step writes: each step is a transaction of its own. A crash keeps that step or
//!    loses it.
//! 2. Several steps write: the queue is one transaction over all keys of the databases ([`whole`]). So it is,
//!    too, if a step behind a write names keys that an open transaction of a program may hold. The queue cannot
//!    run again once it has written, and would wait for a person while nobody else runs.
//!
//! A step that makes keys serves the clients that wait for them at its own end.
//!
//! [`whole`]: super::whole

use std::ops::Range;

use stillpoint::{Batch, Call, KeySet, Session, Slot, Stamp, Tx, TxError};

use super::call::name_exec;
use super::client::{Client, Multi, RanQueue};
use super::context::Context;
use super::logged::log_queue;
use super::spec::{Flags, Handler, Spec};
use super::whole;
use crate::config::{DATABASES, Db};
use crate::error::{CmdError, CmdResult};
use crate::keyspace::Keyspace;
use crate::resp::{Args, Mark, parse_i64};

/// Whether the queue of `EXEC` must run while no other command runs.
pub(crate) fn must_run_alone(client: &Client) -> bool {
    client.multi.as_ref().is_some_and(|multi| {
        !multi.dirty && multi.specs().any(|spec| matches!(spec.handler, Handler::Store(..)))
    })
}

/// The database that the commands after `SELECT` concern.
pub(super) fn selected(spec: &Spec, args: Args<'_>, db: Db) -> Db {
    if !spec.flags.has(Flags::SELECTS) {
        return db;
    }
    let chosen = args.get(1).and_then(parse_i64).and_then(|n| Db::try_from(n).ok());
    chosen.filter(|&n| n < DATABASES).unwrap_or(db)
}

/// Declares the watched keys, then the keys of commands `from..to` in order. Notes the number of
/// keys of each command.
pub(super) fn declare_range(
    client: &mut Client,
    from: usize,
    to: usize,
    keyspace: &Keyspace,
    keys: &mut KeySet,
) {
    if from == 0 {
        for watched in &client.watched {
            watched.declare(keyspace, keys);
        }
    }
    let mut db = client.db;
    let Some(multi) = client.multi.as_mut() else {
        return;
    };
    for i in from..to.min(multi.len()) {
        let (spec, args) = multi.command(i);
        let count = match spec.handler {
            Handler::Keyed(_) => spec.declare_keys(args, db, keyspace, keys),
            _ => 0,
        };
        db = selected(spec, args, db);
        multi.set_key_count(i, count);
    }
}

/// Declares everything that `EXEC` touches.
pub(crate) fn declare_exec(client: &mut Client, keyspace: &Keyspace, keys: &mut KeySet) {
    let dirty = client.multi.as_ref().is_none_or(|multi| multi.dirty);
    if !dirty {
        declare_range(client, 0, usize::MAX, keyspace, keys);
    }
}

/// Whether the watched keys, declared as the first slots, are as the client saw them.
pub(super) fn is_unchanged(client: &Client, tx: &mut Tx<'_>, now_ms: u64) -> bool {
    let slots = (0..).map(Slot);
    client.watched.iter().zip(slots).all(|(key, slot)| key.is_unchanged(tx, slot, now_ms))
}

/// Ends the transaction of the client, and gives its queue if the queue may run.
fn take_queue(client: &mut Client) -> Result<Box<Multi>, CmdError> {
    let multi = client.multi.take().ok_or(CmdError::fixed("ERR EXEC without MULTI"))?;
    if multi.dirty {
        client.watched.clear();
        return Err(CmdError::fixed("EXECABORT Transaction discarded because of previous errors."));
    }
    Ok(multi)
}

/// Runs the queue, whose keys are all locked.
pub(crate) fn run_exec(ctx: &mut Context<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let (mut multi, db) = (take_queue(ctx.client)?, ctx.client.db);
    let same = is_unchanged(ctx.client, tx, ctx.now_ms());
    let first_slot = ctx.client.watched.len() as u32;
    if !same {
        ctx.client.watched.clear();
        ctx.reply.null_array();
        return Ok(());
    }
    allow_reserve(&multi, 0, multi.len(), tx);
    ctx.reply.array(multi.len());
    let queued = multi.len();
    let mut done = run_range(ctx, &mut multi, 0, queued, first_slot, tx);
    if done.is_ok() {
        done = ctx.serve(tx);
        if done.as_ref().is_err_and(is_uncounted) {
            multi.specs().for_each(|spec| ctx.local.stats.uncount_call(spec.id));
        }
    }
    if done.as_ref().is_err_and(|error| error.runs_again() || error.needs_keys()) {
        // A queued `SELECT` may have run.
        (ctx.client.multi, ctx.client.db) = (Some(multi), db);
    } else {
        let watched = std::mem::take(&mut ctx.client.watched);
        let ran = RanQueue { multi, watched, db, is_counted: done.is_ok() };
        ctx.client.ran = may_run_twice(&ran.multi).then_some(ran);
    }
    done
}

/// Whether nobody sees that the queue has run, if its transaction is rolled back.
fn may_run_twice(multi: &Multi) -> bool {
    let is_unseen =
        |spec: &Spec| matches!(spec.handler, Handler::Keyed(_)) || spec.flags.has(Flags::SELECTS);
    multi.specs().all(is_unseen)
}

/// Whether the commands of a queue that ends so run again. They count once, with their last run.
fn is_uncounted(error: &CmdError) -> bool {
    error.runs_again() || error.needs_keys() || error.is_full()
}

/// Lets a transaction of commands `from..to` use the reserve of memory, unless one of the commands
/// is refused at full memory.
fn allow_reserve(multi: &Multi, from: usize, to: usize, tx: &mut Tx<'_>) {
    if (from..to).all(|i| !multi.command(i).0.flags.has(Flags::DENYOOM)) {
        tx.use_reserve();
    }
}

/// Runs commands `from..to` of the queue. The keys of these commands begin at `slot`.
pub(super) fn run_range(
    ctx: &mut Context<'_>,
    multi: &mut Multi,
    from: usize,
    to: usize,
    mut slot: u32,
    tx: &mut Tx<'_>,
) -> CmdResult {
    for i in from..to {
        let (spec, args) = multi.command(i);
        ctx.first_slot = slot;
        slot += multi.key_count(i);
        let mark = ctx.reply.mark();
        ctx.count_call(spec);
        let result = match spec.handler {
            Handler::Keyed(run) => run(ctx, args, tx),
            Handler::Pure(run) => run_pure(ctx, multi, i, run),
            _ => Err(CmdError::fixed("ERR Command not allowed inside a transaction")),
        };
        ctx.first_slot = 0;
        match result {
            Ok(()) => {}
            Err(error) if is_uncounted(&error) => {
                (from..=i).for_each(|i| ctx.local.stats.uncount_call(multi.command(i).0.id));
                return Err(error);
            }
            Err(CmdError::Store(error)) => return Err(CmdError::Store(error)),
            Err(error) => ctx.answer_error(mark, &error),
        }
    }
    Ok(())
}

/// Runs a command of the queue that concerns no keys. One that acts on others, such as `CLIENT UNBLOCK`, does so
/// once, and answers a further run of the queue as it did then.
fn run_pure(
    ctx: &mut Context<'_>,
    multi: &mut Multi,
    i: usize,
    run: fn(&mut Context<'_>, Args<'_>) -> CmdResult,
) -> CmdResult {
    if let Some(answer) = multi.answer(i) {
        ctx.reply.raw(answer);
        return Ok(());
    }
    let mark = ctx.reply.mark();
    let (spec, args) = multi.command(i);
    run(ctx, args)?;
    // Inside a transaction nobody waits.
    if let Some(awaited) = ctx.client.awaited_flush.take() {
        awaited.answer(ctx.reply, ctx.shared);
    }
    if spec.flags.has(Flags::ADMIN) {
        multi.keep_answer(i, ctx.reply.since(mark));
    }
    Ok(())
}

/// Runs an `EXEC` whose queue holds commands over whole databases. The caller holds the keyspace
/// lock alone, so nothing else runs in between.
///
/// Before it writes, it waits for nobody who holds a lock for long. If it meets such a lock, the error is
/// [held](CmdError::is_held). The client then has its queue and its watched keys still, and `EXEC` may run
/// again.
pub(crate) fn run_exec_alone(ctx: &mut Context<'_>, session: &mut Session) -> CmdResult {
    let db = ctx.client.db;
    session.leave_held(true);
    let is_one = ctx.client.multi.as_ref().is_some_and(|multi| {
        writing_steps(multi.specs()) > 1
            || session.may_meet_held() && reads_behind_writes(multi.specs())
    });
    let result = match is_one {
        true => whole::run_exec(ctx, session),
        false => run_in_pieces(ctx, session),
    };
    session.leave_held(false);
    if result.as_ref().is_err_and(CmdError::is_held) {
        ctx.client.db = db;
    } else {
        forget_queue(ctx.client);
    }
    result
}

/// Ends the transaction of a client.
pub(crate) fn forget_queue(client: &mut Client) {
    client.multi = None;
    client.watched.clear();
}

/// The number of steps that write, if the queue runs in steps.
pub(crate) fn writing_steps(queue: impl Iterator<Item = &'static Spec>) -> usize {
    let mut steps = 0;
    let mut piece_writes = false;
    for spec in queue {
        let writes = spec.flags.has(Flags::WRITE);
        if matches!(spec.handler, Handler::Store(..)) {
            steps += usize::from(writes);
            piece_writes = false;
        } else if writes && !piece_writes {
            steps += 1;
            piece_writes = true;
        }
    }
    steps
}

/// Whether a command behind the first step that writes names keys.
fn reads_behind_writes(queue: impl Iterator<Item = &'static Spec>) -> bool {
    let (mut has_written, mut piece_writes) = (false, false);
    for spec in queue {
        let writes = spec.flags.has(Flags::WRITE);
        if matches!(spec.handler, Handler::Store(..)) {
            has_written |= piece_writes || writes;
            piece_writes = false;
        } else if has_written && matches!(spec.handler, Handler::Keyed(_)) {
            return true;
        } else {
            piece_writes |= writes;
        }
    }
    false
}

fn run_in_pieces(ctx: &mut Context<'_>, session: &mut Session) -> CmdResult {
    let queued = ctx.client.multi.as_ref().map_or(0, |multi| multi.len());
    let is_store = |client: &Client, i: usize| {
        client.multi.as_ref().is_some_and(|m| matches!(m.command(i).0.handler, Handler::Store(..)))
    };
    let writes = |client: &Client, mut range: Range<usize>| {
        let multi = client.multi.as_ref();
        multi.is_some_and(|m| range.any(|i| m.command(i).0.flags.has(Flags::WRITE)))
    };
    let start = ctx.reply.mark();
    let mut piece = QueuedRun { ctx, from: 0, to: 0, start, stop: false, error: None };
    let mut i = 0;
    while i < queued {
        let mut to = i;
        while to < queued && !is_store(piece.ctx.client, to) {
            to += 1;
        }
        // The first piece checks the watched keys even if it holds no command.
        if to > i || i == 0 {
            (piece.from, piece.to) = (i, to);
            piece.ctx.local.keys.serving.begin_batch(&piece.ctx.shared.keyspace.waiters, false);
            session.execute(&mut piece);
        }
        if piece.stop {
            break;
        }
        if to < queued {
            if let Err(error) = run_store_command(piece.ctx, session, to) {
                piece.error = Some(error);
                break;
            }
            to += 1;
        }
        if writes(piece.ctx.client, i..to) {
            // The queue cannot run again.
            session.leave_held(false);
        }
        i = to;
    }
    piece.error.take().map_or(Ok(()), Err)
}

/// Runs a command over whole databases, and answers its error.
///
/// # Errors
/// The command has met a lock that is held for long, and has changed nothing.
fn run_store_command(ctx: &mut Context<'_>, session: &mut Session, i: usize) -> CmdResult {
    let Some(multi) = ctx.client.multi.take() else {
        return Ok(());
    };
    let (spec, args) = multi.command(i);
    let mark = ctx.reply.mark();
    ctx.count_call(spec);
    let mut result = Ok(());
    if let Handler::Store(run, _) = spec.handler
        && let Err(error) = run(ctx, args, session)
    {
        if error.is_held() {
            ctx.local.stats.uncount_call(spec.id);
            result = Err(error);
        } else {
            ctx.answer_error(mark, &error);
        }
    }
    ctx.client.multi = Some(multi);
    result
}

/// One step: consecutive commands that declare their keys, as one transaction.
struct QueuedRun<'a, 'b> {
    ctx: &'a mut Context<'b>,
    from: usize,
    to: usize,
    start: Mark,
    stop: bool,
    error: Option<CmdError>,
}

impl Batch for QueuedRun<'_, '_> {
    fn len(&self) -> usize {
        1
    }

    fn declare(&mut self, _: usize, keys: &mut KeySet) {
        let ctx = &mut *self.ctx;
        let keyspace = &ctx.shared.keyspace;
        declare_range(ctx.client, self.from, self.to, keyspace, keys);
        ctx.local.keys.serving.declare(&keyspace.waiters, 0, keys);
    }

    fn call(&mut self, _: usize, to: &mut Call) {
        let (ctx, range) = (&*self.ctx, (self.from, self.to));
        let keyspace = &ctx.shared.keyspace;
        if ctx.local.keys.serving.may_serve(0) {
            return;
        }
        if !keyspace.logs_commands {
            name_exec(to, ctx.client, range, ctx.now_ms());
        } else if keyspace.is_in_order() {
            log_queue(to, ctx.client, range, ctx.local, &mut Vec::new());
        }
    }

    fn run(&mut self, _: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let ctx = &mut *self.ctx;
        let (mark, db) = (ctx.reply.mark(), ctx.client.db);
        ctx.local.keys.serving.begin(0);
        let mut slot = 0;
        if self.from == 0 {
            if !is_unchanged(ctx.client, tx, ctx.now_ms()) {
                self.stop = true;
                ctx.reply.null_array();
                return Ok(());
            }
            slot = ctx.client.watched.len() as u32;
            let queued = ctx.client.multi.as_ref().map_or(0, |multi| multi.len());
            ctx.reply.array(queued);
        }
        let Some(mut multi) = ctx.client.multi.take() else {
            return Err(answered());
        };
        allow_reserve(&multi, self.from, self.to, tx);
        let result = run_range(ctx, &mut multi, self.from, self.to, slot, tx);
        let result = result.and_then(|()| ctx.serve(tx));
        ctx.client.multi = Some(multi);
        let result = result.and_then(|()| ctx.check_reply());
        result.map_err(|error| {
            if let Some(again) = error.as_another_run() {
                ctx.reply.truncate(mark);
                ctx.client.db = db;
                return again;
            }
            self.stop = true;
            self.error = Some(error);
            answered()
        })
    }

    fn run_again(&mut self, _: usize, _: &Call, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let ctx = &mut *self.ctx;
        let mark = ctx.reply.mark();
        let Some(mut multi) = ctx.client.multi.take() else {
            return Err(answered());
        };
        // With watched keys there is no call. So the first key of the queue is the first slot.
        let done = run_range(ctx, &mut multi, self.from, self.to, 0, tx);
        ctx.client.multi = Some(multi);
        ctx.reply.truncate(mark);
        done.map_err(|error| second_run_failed(error.message()))
    }

    fn ended(&mut self, _: usize, result: Result<Option<Stamp>, TxError>) {
        self.ctx.local.keys.end_serving(&result);
        if let Err(error) = result {
            self.stop = true;
            self.ctx.reply.truncate(self.start);
            self.error.get_or_insert(error.into());
        }
    }
}

/// The error of a call whose second run does not succeed, as its first one did.
pub(crate) fn second_run_failed(why: &str) -> TxError {
    TxError::abandon(format!("the second run of the call has failed: {why}"))
}

/// The error of a transaction whose client has an error reply already.
pub(crate) fn answered() -> TxError {
    TxError::abandon("the command answered an error")
}
