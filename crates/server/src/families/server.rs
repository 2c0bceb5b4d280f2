//! Administration: checkpoints, replication, time, shutdown.

use stillpoint::{CheckpointCounts, DurableSerials};

use super::help::HELP;
use crate::args::{integer, is};
use crate::error::{CmdError, CmdResult};
use crate::resp::Args;
use crate::session::client::{AwaitedFlush, ReplyMode};
use crate::session::context::Context;
use crate::session::row::{
    ADM, ANY, CONN, Container, F, GENERIC, NONE, Pure, RF, SERVER, row, sub,
};
use crate::session::spec::{Flags, Spec};

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("bgrewriteaof", 1, ADM, NONE, SERVER, "1.0.0", Pure(bgrewriteaof), "Starts a checkpoint, which frees the log before it."),
    row("bgsave", -1, ADM, NONE, SERVER, "1.0.0", Pure(bgsave), "Starts a checkpoint."),
    row("lastsave", 1, ANY.or(F), NONE, SERVER, "1.0.0", Pure(lastsave), "Returns the Unix time of the last checkpoint."),
    row("lolwut", -1, RF, NONE, SERVER, "5.0.0", Pure(lolwut), "Shows the version."),
    row("replicaof", 3, ADM.or(Flags::STALE), NONE, SERVER, "5.0.0", Pure(replicaof), "Makes the server a replica."),
    row("role", 1, CONN.or(F), NONE, SERVER, "2.8.12", Pure(role), "Returns the role in replication."),
    row("save", -1, ADM.or(Flags::NO_MULTI), NONE, SERVER, "1.0.0", Pure(save), "Makes a checkpoint and waits for it."),
    row("shutdown", -1, ADM.or(ANY).or(Flags::NO_MULTI), NONE, SERVER, "1.0.0", Pure(shutdown), "Ends the server."),
    row("slaveof", 3, ADM.or(Flags::STALE), NONE, SERVER, "1.0.0", Pure(replicaof), "Makes the server a replica."),
    row("time", 1, ANY.or(F), NONE, SERVER, "2.6.0", Pure(time), "Returns the server's time."),
    row("stillpoint", -2, Flags::NONE, NONE, SERVER, "1.0.0", Container(STILLPOINT, None), "What only this server has."),
    row("wait", 3, Flags::NONE, NONE, GENERIC, "3.0.0", Pure(wait), "Waits for replicas, of which there are none."),
    row("waitaof", 4, Flags::NONE, NONE, GENERIC, "7.2.0", Pure(waitaof), "Waits until all commits so far are durable."),
];

#[rustfmt::skip] // each row takes one line
const STILLPOINT: &[Spec] = &[
    sub("durable", 2, CONN.or(F).or(Flags::NO_MULTI), "1.0.0", Pure(durable), "Returns how many requests of the connection have run, and how many of them are durable."),
    HELP,
];

fn time(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let now_us = ctx.shared.config.clock.wall_ms() * 1000
        + ctx.shared.config.clock.monotonic_ns() / 1000 % 1000;
    ctx.reply.array(2);
    ctx.reply.bulk_int((now_us / 1_000_000) as i64);
    ctx.reply.bulk_int((now_us % 1_000_000) as i64);
    Ok(())
}

/// Refuses if no scheme takes checkpoints.
fn check_scheme(ctx: &Context<'_>) -> CmdResult {
    if !ctx.shared.keyspace.engine().takes_checkpoints() {
        return Err(CmdError::fixed(
            "ERR checkpoints are switched off; start with --checkpoint calc:partial",
        ));
    }
    Ok(())
}

/// Asks for a checkpoint: with FULL for one of every record, otherwise for the kind that is due.
/// Returns the counts before it.
fn request_checkpoint(ctx: &Context<'_>, is_full: bool) -> Result<CheckpointCounts, CmdError> {
    check_scheme(ctx)?;
    let engine = ctx.shared.keyspace.engine();
    if let Some(failure) = engine.loading().failure {
        let error = stillpoint::Error::NotLoaded(failure);
        return Err(CmdError::text(format!("ERR {error}")));
    }
    let before = match is_full {
        true => engine.full_checkpoint_in_background(),
        false => engine.checkpoint_in_background(),
    };
    before.ok_or(CmdError::fixed("ERR Background save already in progress"))
}

/// Asks for a checkpoint. This client waits for the checkpoint's end, and no other client does.
fn save(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let is_full = match args.get(1) {
        None => false,
        Some(option) if args.len() == 2 && is(option, "FULL") => true,
        Some(_) => return Err(CmdError::SYNTAX),
    };
    ctx.client.awaited_save = Some(request_checkpoint(ctx, is_full)?);
    Ok(())
}

/// `BGSAVE HOLD name` holds the files of checkpoints for who copies them, until `BGSAVE RELEASE
/// name`.
fn hold(ctx: &mut Context<'_>, option: &[u8], name: &[u8]) -> CmdResult {
    let name = String::from_utf8_lossy(name);
    let shared = ctx.shared;
    if is(option, "HOLD") {
        let held = shared.keyspace.engine().hold_files(&name);
        let held = held.map_err(|error| CmdError::text(format!("ERR {error}")))?;
        shared.held_files.lock().push(held);
    } else if is(option, "RELEASE") {
        let mut held = shared.held_files.lock();
        let at = held.iter().position(|held| held.holder() == name);
        let at = at.ok_or_else(|| CmdError::text(format!("ERR nobody holds files as {name:?}")))?;
        let released = held.swap_remove(at);
        drop(held);
        drop(released);
    } else {
        return Err(CmdError::SYNTAX);
    }
    ctx.reply.ok();
    Ok(())
}

fn bgsave(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    if args.len() == 3 {
        return hold(ctx, args.at(1), args.at(2));
    }
    let is_full = match args.get(1) {
        None => false,
        Some(option) if args.len() == 2 && is(option, "SCHEDULE") => false,
        Some(option) if args.len() == 2 && is(option, "FULL") => true,
        Some(_) => return Err(CmdError::SYNTAX),
    };
    request_checkpoint(ctx, is_full)?;
    ctx.reply.simple("Background saving started");
    Ok(())
}

/// Starts a checkpoint, which frees the log. The log itself is never rewritten.
fn bgrewriteaof(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    // If a checkpoint is under way, no other one is needed.
    ctx.shared.keyspace.engine().checkpoint_in_background();
    ctx.reply.simple("Background append only file rewriting started");
    Ok(())
}

fn lastsave(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let last_ms = ctx.shared.keyspace.engine().stats().checkpoints.last_finished_ms;
    let last_ms = last_ms.unwrap_or(ctx.shared.started_ms);
    ctx.reply.int((last_ms / 1000) as i64);
    Ok(())
}

fn shutdown(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    for arg in args.from(1) {
        if is(arg, "ABORT") {
            return Err(CmdError::fixed("ERR No shutdown in progress."));
        }
        if !["NOSAVE", "SAVE", "NOW", "FORCE"].iter().any(|word| is(arg, word)) {
            return Err(CmdError::SYNTAX);
        }
    }
    // As in Redis there is no reply: the end of the connection is the answer.
    tracing::info!(client = %ctx.client.info.address, "a client ends the server");
    ctx.client.closing = true;
    ctx.shared.stop();
    ctx.shared.wake_all();
    Ok(())
}

fn role(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.array(3);
    ctx.reply.bulk(b"master");
    ctx.reply.int(0);
    ctx.reply.array(0);
    Ok(())
}

fn replicaof(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    if is(args.at(1), "NO") && is(args.at(2), "ONE") {
        ctx.reply.ok();
        return Ok(());
    }
    Err(CmdError::fixed("ERR replication is not supported yet by this server"))
}

fn wait(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    integer(args.at(1))?;
    if integer(args.at(2)).map_err(|_| TIMEOUT)? < 0 {
        return Err(CmdError::fixed("ERR timeout is negative"));
    }
    ctx.reply.int(0);
    Ok(())
}

/// `WAITAOF numlocal numreplicas timeout`, with the errors of Redis 7.2. Waits for the commits of all
/// clients, where Redis waits for those of the client. There are no replicas.
fn waitaof(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let local = match integer(args.at(1))? {
        0 => false,
        1 => true,
        _ => {
            return Err(CmdError::fixed("ERR value is out of range, value must between 0 and 1"));
        }
    };
    let out_of_range = CmdError::fixed("ERR value is out of range, must be positive");
    let replicas = match integer(args.at(2)) {
        Ok(count @ 0..) => count > 0,
        _ => return Err(out_of_range),
    };
    let timeout_ms = integer(args.at(3)).map_err(|_| TIMEOUT)?;
    let timeout_ms =
        u64::try_from(timeout_ms).map_err(|_| CmdError::fixed("ERR timeout is negative"))?;
    if local && !ctx.shared.has_journal() {
        return Err(CmdError::fixed(
            "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
        ));
    }
    let engine = ctx.shared.keyspace.engine();
    let wanted = engine.appended();
    let now_ms = ctx.shared.config.clock.monotonic_ns() / 1_000_000;
    let until_ms = if timeout_ms == 0 { u64::MAX } else { now_ms.saturating_add(timeout_ms) };
    let waits = replicas || local && !engine.is_durable(&wanted);
    let replies = ctx.client.reply_mode == ReplyMode::On;
    let awaited = AwaitedFlush { wanted, local, replicas, replies, until_ms };
    if waits {
        ctx.client.awaited_flush = Some(Box::new(awaited));
    } else {
        awaited.answer(ctx.reply, ctx.shared);
    }
    Ok(())
}

/// `STILLPOINT DURABLE`. The first call begins to note what the connection's requests need. All of
/// them have ended: inside a transaction `EXEC` would still be under way.
fn durable(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let engine = ctx.shared.keyspace.engine();
    let requests = ctx.client.requests;
    let durable = ctx.client.durable.get_or_insert_with(|| {
        let mut begun = Box::<DurableSerials>::default();
        begun.add(requests, engine.appended());
        begun
    });
    let durable = durable.durable(|met| engine.is_saved(met));
    ctx.reply.array(2);
    ctx.reply.int(requests as i64);
    ctx.reply.int(durable as i64);
    Ok(())
}

const TIMEOUT: CmdError = CmdError::fixed("ERR timeout is not an integer or out of range");

fn lolwut(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.verbatim(&format!(
        "At the still point of the turning world.\n\nStillpoint ver. {}\n",
        env!("CARGO_PKG_VERSION")
    ));
    Ok(())
}
