//! Routes a request: it runs in a batch, at once, or in `EXEC`, or it is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stillpoint::Session;

use super::client::{Client, Multi, ReplyMode};
use super::commands::{Commands, Refusal};
use super::context::{Context, Local};
use super::exec::{forget_queue, must_run_alone, run_exec_alone};
use super::spec::{Flags, Handler, Spec};
use crate::args::is;
use crate::config::DebugCommand;
use crate::error::{CmdError, CmdResult};
use crate::resp::{Args, Mark, Reply};
use crate::shared::Shared;
use crate::shared::registry::RELAXED;
use crate::shared::slowlog::shortened;

/// The route of one request.
pub(crate) enum Route {
    /// The request becomes a call of the batch.
    Batch(&'static Spec),
    /// The command runs at once.
    Now(&'static Spec),
    /// The command joins the queue of `MULTI`.
    Queue(&'static Spec),
    /// The client gets an error, and a later `EXEC` is refused.
    Refuse(Option<&'static Spec>, CmdError),
    /// The client gets an error, and the queue of `MULTI` goes on.
    RefuseAlone(&'static Spec, CmdError),
    /// `CLIENT PAUSE` holds the request back; the planner looks again later.
    HoldBack,
}

/// Chooses the route of a request.
#[inline]
pub(crate) fn classify(
    shared: &Shared,
    commands: &Commands,
    client: &Client,
    args: Args<'_>,
) -> Route {
    let spec = match commands.resolve(args) {
        Ok(spec) => spec,
        Err(refusal) => {
            let Refusal { spec, error } = *refusal;
            // Before authentication nobody is told which commands there are.
            let error = if client.must_authenticate(&shared.auth) { NO_AUTH } else { error };
            return Route::Refuse(spec, error);
        }
    };
    if !spec.flags.has(Flags::NO_AUTH) && client.must_authenticate(&shared.auth) {
        return Route::Refuse(Some(spec), NO_AUTH);
    }
    if is_paused(shared, spec) || waits_for_load(shared, client, spec) {
        return Route::HoldBack;
    }
    if client.multi.is_some() {
        if spec.flags.has(Flags::OUTSIDE_MULTI) {
            return Route::RefuseAlone(spec, outside_multi(spec));
        }
        if !spec.flags.has(Flags::IN_MULTI) {
            return Route::Queue(spec);
        }
    }
    if joins_batch(spec, client) { Route::Batch(spec) } else { Route::Now(spec) }
}

/// Whether a command of the client becomes a call of a batch.
#[inline]
pub(crate) fn joins_batch(spec: &Spec, client: &Client) -> bool {
    match spec.handler {
        Handler::Keyed(_) => true,
        Handler::Exec => !must_run_alone(client),
        _ => false,
    }
}

fn outside_multi(spec: &Spec) -> CmdError {
    let name = spec.full_name().to_ascii_uppercase();
    CmdError::text(format!("ERR {name} inside MULTI is not allowed"))
}

/// The answer to a client that has not authenticated.
pub(crate) const NO_AUTH: CmdError = CmdError::fixed("NOAUTH Authentication required.");

pub(crate) fn is_paused(shared: &Shared, spec: &Spec) -> bool {
    // Acquire: partner of the Release in `pause`.
    let until_ms = shared.paused_until_ms.load(Ordering::Acquire);
    if until_ms == 0 || spec.flags.has(Flags::DURING_PAUSE) {
        return false;
    }
    let all = shared.paused_all.load(Ordering::Relaxed);
    let concerned = all || spec.flags.has(Flags::WRITE) || matches!(spec.handler, Handler::Exec);
    concerned && shared.config.clock.monotonic_ns() / 1_000_000 < until_ms
}

/// Whether a command needs every record, while a server that serves already loads them. After a load that
/// has stopped the command runs, and says why it fails.
fn waits_for_load(shared: &Shared, client: &Client, spec: &Spec) -> bool {
    let runs_now = client.multi.is_none();
    let needs_all = runs_now && spec.flags.has(Flags::NEEDS_ALL)
        || matches!(spec.handler, Handler::Exec) && must_run_alone(client);
    needs_all && shared.keyspace.engine().is_loading()
}

/// A command over whole databases has met a lock that is held for long. It has changed nothing and replied
/// nothing, and may run again.
#[derive(Debug)]
pub(crate) struct MetLock(pub(crate) &'static Spec);

/// Runs a request that is not for the batch. Gives the moment of its end in nanoseconds. `parks` says that a
/// command which meets a lock that is held for long comes back.
pub(crate) fn run_now(
    ctx: &mut Context<'_>,
    route: Route,
    args: Args<'_>,
    session: &mut Session,
    parks: bool,
) -> Result<u64, MetLock> {
    let mark = ctx.reply.begin();
    let start_ns = ctx.shared.config.clock.monotonic_ns();
    let (spec, result) = match route {
        Route::Now(spec) => {
            let result = dispatch(ctx, spec, args, session);
            if may_run_again(spec, &result) {
                if parks {
                    ctx.reply.truncate(mark);
                    ctx.local.stats.uncount_call(spec.id);
                    return Err(MetLock(spec));
                }
                if matches!(spec.handler, Handler::Exec) {
                    forget_queue(ctx.client);
                }
            }
            (Some(spec), result)
        }
        Route::Queue(spec) => (None, queue(ctx, spec, args)),
        Route::Refuse(spec, error) => {
            if let Some(spec) = spec {
                ctx.local.stats.command(spec.id).rejected.add(1);
            }
            ctx.client.closing |= is_http(args);
            (None, Err(refuse_in_multi(ctx.client, spec, error)))
        }
        Route::RefuseAlone(spec, error) => {
            ctx.local.stats.command(spec.id).rejected.add(1);
            (None, Err(error))
        }
        Route::Batch(_) | Route::HoldBack => (None, Ok(())),
    };
    if let Err(error) = result {
        ctx.answer_error(mark, &error);
        if let Some(spec) = spec {
            ctx.local.stats.command(spec.id).failed.add(1);
        }
    }
    if ctx.reply.overflowed() {
        // The connection ends behind the replies before this one.
        ctx.reply.truncate(mark);
    }
    settle_reply(ctx.client, ctx.reply, mark);
    let ended_ns = ctx.shared.config.clock.monotonic_ns();
    if let Some(spec) = spec {
        note_time(ctx.shared, ctx.local, ctx.client, spec, args, ended_ns - start_ns);
    }
    Ok(ended_ns)
}

/// Whether a command over whole databases has met a lock that is held for long. Each is one step, so it has
/// changed nothing. `EXEC` leaves such locks alone before its first change.
fn may_run_again(spec: &Spec, result: &CmdResult) -> bool {
    matches!(spec.handler, Handler::Store(..) | Handler::Exec)
        && result.as_ref().is_err_and(CmdError::is_held)
}

/// Whether this is the first line of an HTTP request. A hostile page can make a browser send
/// commands to this port that way.
fn is_http(args: Args<'_>) -> bool {
    is(args.at(0), "POST") || is(args.at(0), "Host:")
}

/// Notes the refusal in the client's transaction: after a refused command the transaction's `EXEC`
/// is refused, and a refused `EXEC` ends the transaction.
fn refuse_in_multi(client: &mut Client, spec: Option<&Spec>, error: CmdError) -> CmdError {
    if spec.is_some_and(|spec| matches!(spec.handler, Handler::Exec)) {
        client.multi = None;
        client.watched.clear();
        let message = error.message();
        let why = message.strip_prefix("ERR ").unwrap_or(message);
        return CmdError::text(format!("EXECABORT Transaction discarded because of: {why}"));
    }
    if let Some(multi) = client.multi.as_mut() {
        multi.dirty = true;
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

/// Whether a command over whole databases runs while no other command does.
pub(crate) fn runs_alone(shared: &Shared, spec: &Spec) -> bool {
    let if_exchanged = spec.flags.has(Flags::ALONE_IF_EXCHANGED);
    spec.flags.has(Flags::ALONE) || if_exchanged && shared.keyspace.were_exchanged()
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
    ctx.local.read_params(&shared);
    match spec.handler {
        Handler::Pure(run) => run(ctx, args),
        Handler::Store(run, _) => {
            // Neither an event loop nor a thread for long commands waits for a person.
            session.leave_held(true);
            let result = if runs_alone(&shared, spec) {
                let _stripes = shared.keyspace.lock.alone();
                run(ctx, args, session)
            } else {
                let _stripe = shared.keyspace.lock.enter(ctx.local.worker);
                run(ctx, args, session)
            };
            session.leave_held(false);
            result
        }
        Handler::Exec => {
            let _stripes = shared.keyspace.lock.alone();
            run_exec_alone(ctx, session)
        }
        Handler::Container(_, alone) => alone.map_or(Ok(()), |run| run(ctx, args)),
        Handler::Keyed(_) => Ok(()),
    }
}

/// Adds a command to the queue of `MULTI`.
fn queue(ctx: &mut Context<'_>, spec: &'static Spec, args: Args<'_>) -> CmdResult {
    let limit = ctx.shared.config.query_buffer_bytes;
    let multi: &mut Multi = ctx.client.multi.get_or_insert_default();
    if spec.flags.has(Flags::NO_MULTI) {
        multi.dirty = true;
        return Err(CmdError::fixed("ERR Command not allowed inside a transaction"));
    }
    if multi.memory() + args.total_len() > limit {
        multi.dirty = true;
        return Err(CmdError::fixed("ERR transaction is too large"));
    }
    multi.push(spec, args);
    ctx.reply.raw(b"+QUEUED\r\n");
    Ok(())
}

/// Drops the reply of a client that wants none.
#[inline]
pub(crate) fn settle_reply(client: &mut Client, reply: &mut Reply, mark: Mark) {
    if client.reply_mode != ReplyMode::On {
        reply.truncate(mark);
        client.reply_mode = match client.reply_mode {
            ReplyMode::SkipNext => ReplyMode::Skip,
            ReplyMode::Skip => ReplyMode::On,
            mode => mode,
        };
    }
}

/// Counts the time of a command, and notes the command if it was slow.
pub(crate) fn note_time(
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
    let unix_s = local.keys.now_ms / 1000;
    if limit_us >= 0 && took_us >= limit_us.cast_unsigned() && !spec.flags.has(Flags::SKIP_SLOWLOG)
    {
        let max_len = shared.params.slowlog_max_len.load(RELAXED);
        let name = client.info.names.lock().name.clone();
        let address = client.info.address.to_string();
        let args = shortened(args, |i| spec.secrets.hide(args, i));
        shared.slowlog.push(max_len, unix_s, took_us, args, address, name);
    }
    note_latency(shared, spec, unix_s, took_us / 1000);
}

/// Notes a latency event if the command took `latency-monitor-threshold` or longer.
pub(crate) fn note_latency(shared: &Shared, spec: &Spec, unix_s: u64, took_ms: u64) {
    let threshold_ms = shared.params.latency_threshold_ms.load(RELAXED);
    if threshold_ms > 0 && took_ms >= threshold_ms {
        let event = if spec.flags.has(Flags::FAST) { "fast-command" } else { "command" };
        shared.latency.note(event, unix_s, took_ms);
    }
}
