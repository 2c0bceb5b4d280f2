//! Administration: checkpoints, statistics, slow log, latency, shutdown.

use super::{COMMANDS, Section, integer, is, write_info};
use crate::client::AwaitedSave;
use crate::context::Context;
use crate::error::{CmdError, CmdResult};
use crate::registry::RELAXED;
use crate::resp::Args;
use crate::stats::LATENCY_BUCKETS;

pub(crate) fn info(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let mut text = String::new();
    write_info(&mut text, ctx, &Section::chosen(args));
    ctx.reply.verbatim(&text);
    Ok(())
}

pub(crate) fn time(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let now_us = ctx.shared.config.clock.wall_ms() * 1000
        + ctx.shared.config.clock.monotonic_ns() / 1000 % 1000;
    ctx.reply.array(2);
    ctx.reply.bulk_int((now_us / 1_000_000) as i64);
    ctx.reply.bulk_int((now_us % 1_000_000) as i64);
    Ok(())
}

/// Refuses where no scheme takes checkpoints.
fn check_scheme(ctx: &Context<'_>) -> CmdResult {
    if ctx.shared.databases.engine.config().checkpoint == "none" {
        return Err(CmdError::fixed(
            "ERR checkpoints are switched off; start with --checkpoint calc",
        ));
    }
    Ok(())
}

/// Asks for a checkpoint and lets this client, and nobody else, wait for its end.
pub(crate) fn save(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    check_scheme(ctx)?;
    let engine = &ctx.shared.databases.engine;
    let now = engine.stats().checkpoints;
    if !engine.checkpoint_in_background() {
        return Err(CmdError::fixed("ERR Background save already in progress"));
    }
    ctx.client.awaited_save =
        Some(AwaitedSave { published: now.published, failures: now.failures });
    Ok(())
}

pub(crate) fn bgsave(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    match args.get(1) {
        None => {}
        Some(option) if args.len() == 2 && is(option, "SCHEDULE") => {}
        Some(_) => return Err(CmdError::SYNTAX),
    }
    check_scheme(ctx)?;
    if !ctx.shared.databases.engine.checkpoint_in_background() {
        return Err(CmdError::fixed("ERR Background save already in progress"));
    }
    ctx.reply.simple("Background saving started");
    Ok(())
}

/// The log needs no rewriting: checkpoints free it.
pub(crate) fn bgrewriteaof(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    // One under way will do.
    ctx.shared.databases.engine.checkpoint_in_background();
    ctx.reply.simple("Background append only file rewriting started");
    Ok(())
}

pub(crate) fn lastsave(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let last_ms = ctx.shared.databases.engine.stats().checkpoints.last_finished_ms;
    let last_ms = last_ms.unwrap_or(ctx.shared.started_ms);
    ctx.reply.int((last_ms / 1000) as i64);
    Ok(())
}

pub(crate) fn shutdown(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    for arg in args.from(1) {
        if is(arg, "ABORT") {
            return Err(CmdError::fixed("ERR No shutdown in progress."));
        }
        if !["NOSAVE", "SAVE", "NOW", "FORCE"].iter().any(|word| is(arg, word)) {
            return Err(CmdError::SYNTAX);
        }
    }
    // Redis answers nothing: the end of the connection is the answer.
    tracing::info!(client = %ctx.client.info.address, "a client ends the server");
    ctx.client.closing = true;
    ctx.shared.stop();
    ctx.shared.wake_all();
    Ok(())
}

pub(crate) fn role(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.array(3);
    ctx.reply.bulk(b"master");
    ctx.reply.int(0);
    ctx.reply.array(0);
    Ok(())
}

pub(crate) fn replicaof(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    if is(args.at(1), "NO") && is(args.at(2), "ONE") {
        ctx.reply.ok();
        return Ok(());
    }
    Err(CmdError::fixed("ERR replication is not supported yet by this server"))
}

pub(crate) fn wait(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    integer(args.at(1))?;
    if integer(args.at(2)).map_err(|_| TIMEOUT)? < 0 {
        return Err(CmdError::fixed("ERR timeout is negative"));
    }
    ctx.reply.int(0);
    Ok(())
}

const TIMEOUT: CmdError = CmdError::fixed("ERR timeout is not an integer or out of range");

pub(crate) fn lolwut(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.verbatim(&format!(
        "At the still point of the turning world.\n\nStillpoint ver. {}\n",
        env!("CARGO_PKG_VERSION")
    ));
    Ok(())
}

pub(crate) fn empty_array(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.array(0);
    Ok(())
}

pub(crate) fn acl_whoami(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.bulk(b"default");
    Ok(())
}

pub(crate) fn acl_users(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.array(1);
    ctx.reply.bulk(b"default");
    Ok(())
}

pub(crate) fn acl_list(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let secret = if ctx.shared.auth.is_required() { "#(hidden)" } else { "nopass" };
    ctx.reply.array(1);
    ctx.reply.bulk(format!("user default on {secret} ~* &* +@all").as_bytes());
    Ok(())
}

pub(crate) fn acl_cat(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let names = super::docs::CATEGORIES;
    ctx.reply.array(names.len());
    for name in names {
        ctx.reply.bulk(name.as_bytes());
    }
    Ok(())
}

/// Longest `DEBUG SLEEP`.
const SLEEP_MAX_S: f64 = 60.0;

/// Lets this client, and nobody else, wait.
pub(crate) fn debug_sleep(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let seconds = crate::resp::parse_f64(args.at(2)).ok_or(CmdError::NOT_FLOAT)?;
    let sleep_ms = (seconds.clamp(0.0, SLEEP_MAX_S) * 1000.0) as u64;
    let now_ms = ctx.shared.config.clock.monotonic_ns() / 1_000_000;
    ctx.client.silent_until_ms = now_ms + sleep_ms;
    ctx.reply.ok();
    Ok(())
}

pub(crate) fn debug_ok(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.ok();
    Ok(())
}

pub(crate) fn debug_active_expire(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    ctx.shared.params.active_expiry.store(integer(args.at(2))? != 0, RELAXED);
    ctx.reply.ok();
    Ok(())
}

pub(crate) fn slowlog_get(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let count = match args.get(2) {
        None => 10,
        Some(_) if args.len() > 3 => {
            return Err(CmdError::fixed("ERR wrong number of arguments for 'slowlog|get' command"));
        }
        Some(count) => match integer(count)? {
            -1 => usize::MAX,
            n => usize::try_from(n)
                .map_err(|_| CmdError::fixed("ERR count should be greater than or equal to -1"))?,
        },
    };
    let entries = ctx.shared.slowlog.newest(count);
    ctx.reply.array(entries.len());
    for entry in entries {
        ctx.reply.array(6);
        ctx.reply.int(entry.id as i64);
        ctx.reply.int(entry.unix_s as i64);
        ctx.reply.int(entry.duration_us as i64);
        ctx.reply.array(entry.args.len());
        for arg in &entry.args {
            ctx.reply.bulk(arg);
        }
        ctx.reply.bulk(entry.client.as_bytes());
        ctx.reply.bulk(entry.client_name.as_bytes());
    }
    Ok(())
}

pub(crate) fn slowlog_len(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.int(ctx.shared.slowlog.len() as i64);
    Ok(())
}

pub(crate) fn slowlog_reset(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.shared.slowlog.clear();
    ctx.reply.ok();
    Ok(())
}

pub(crate) fn latency_latest(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let latest = ctx.shared.latency.latest();
    ctx.reply.array(latest.len());
    for (event, (unix_s, ms), max_ms) in latest {
        ctx.reply.array(4);
        ctx.reply.bulk(event.as_bytes());
        for n in [unix_s, ms, max_ms] {
            ctx.reply.int(n as i64);
        }
    }
    Ok(())
}

pub(crate) fn latency_history(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let event = String::from_utf8_lossy(args.at(2)).to_ascii_lowercase();
    let samples = ctx.shared.latency.history(&event);
    ctx.reply.array(samples.len());
    for (unix_s, ms) in samples {
        ctx.reply.array(2);
        ctx.reply.int(unix_s as i64);
        ctx.reply.int(ms as i64);
    }
    Ok(())
}

pub(crate) fn latency_reset(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let names: Vec<&[u8]> = args.from(2).collect();
    let count = ctx.shared.latency.reset(&names);
    ctx.reply.int(count as i64);
    Ok(())
}

pub(crate) fn latency_doctor(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let threshold_ms = ctx.shared.params.latency_threshold_ms.load(RELAXED);
    let mut text = String::new();
    if threshold_ms == 0 {
        text.push_str(
            "Latency monitoring is off. To switch it on: CONFIG SET latency-monitor-threshold \
             <milliseconds>.\n",
        );
    }
    let latest = ctx.shared.latency.latest();
    if latest.is_empty() {
        text.push_str("No latency event was seen.\n");
    }
    for (event, (unix_s, ms), max_ms) in latest {
        text.push_str(&format!("{event}: last {ms} ms at {unix_s}, greatest {max_ms} ms.\n"));
    }
    ctx.reply.verbatim(&text);
    Ok(())
}

/// Per command: calls, and how many took at most 2^n microseconds.
pub(crate) fn latency_histogram(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let wanted: Vec<&[u8]> = args.from(2).collect();
    let mut rows: Vec<(String, [u64; LATENCY_BUCKETS])> = Vec::new();
    for spec in COMMANDS.all() {
        let name = spec.full_name();
        if !wanted.is_empty() && !wanted.iter().any(|w| is(w, &name)) {
            continue;
        }
        let mut buckets = [0; LATENCY_BUCKETS];
        for worker in &ctx.shared.workers {
            for (sum, counter) in buckets.iter_mut().zip(&worker.command(spec.id).latency) {
                *sum += counter.get();
            }
        }
        if buckets.iter().any(|&n| n > 0) {
            rows.push((name, buckets));
        }
    }
    ctx.reply.map(rows.len());
    for (name, buckets) in rows {
        ctx.reply.bulk(name.as_bytes());
        ctx.reply.map(2);
        ctx.reply.bulk(b"calls");
        ctx.reply.int(buckets.iter().sum::<u64>() as i64);
        ctx.reply.bulk(b"histogram_usec");
        let mut sum = 0;
        let shown: Vec<(u64, u64)> = buckets
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(bucket, n)| {
                sum += n;
                (1u64 << bucket, sum)
            })
            .collect();
        ctx.reply.map(shown.len());
        for (bound_us, count) in shown {
            ctx.reply.int(bound_us as i64);
            ctx.reply.int(count as i64);
        }
    }
    Ok(())
}

pub(crate) fn memory_doctor(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let (used, limit) = (ctx.shared.used_memory(), ctx.shared.max_memory_bytes());
    let text = if limit > 0 && used * 10 > limit * 9 {
        format!(
            "{used} of {limit} bytes are in use. Beyond the limit writes are refused while reads \
             and deletes go on: delete keys or start with a larger --max-memory.\n"
        )
    } else {
        format!("{used} bytes are in use; nothing to worry about.\n")
    };
    ctx.reply.verbatim(&text);
    Ok(())
}

pub(crate) fn memory_stats(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let shared = ctx.shared;
    let used = shared.used_memory();
    let keys: u64 = (0..crate::config::DATABASES).map(|db| shared.databases.len(db)).sum();
    let fields = [
        ("peak.allocated", shared.totals.peak_memory.load(RELAXED).max(used)),
        ("total.allocated", used),
        ("startup.allocated", 0),
        ("replication.backlog", 0),
        ("clients.slaves", 0),
        ("clients.normal", shared.client_memory.total()),
        ("aof.buffer", 0),
        ("keys.count", keys),
        ("keys.bytes-per-key", shared.data_bytes().checked_div(keys).unwrap_or(0)),
        ("dataset.bytes", shared.data_bytes()),
    ];
    ctx.reply.map(fields.len());
    for (name, value) in fields {
        ctx.reply.bulk(name.as_bytes());
        ctx.reply.int(value as i64);
    }
    Ok(())
}

pub(crate) fn memory_purge(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.ok();
    Ok(())
}
