//! The families SLOWLOG and LATENCY: commands that took long.

use super::help::HELP;
use crate::args::{integer, is};
use crate::error::{CmdError, CmdResult};
use crate::resp::Args;
use crate::session::context::Context;
use crate::session::row::{ADM, ANY, Container, NONE, Pure, SERVER, row, sub};
use crate::session::spec::{Flags, Spec};
use crate::shared::registry::RELAXED;
use crate::shared::stats::LATENCY_BUCKETS;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("latency", -2, Flags::NONE, NONE, SERVER, "2.8.13", Container(LATENCY, None), "Latency."),
    row("slowlog", -2, Flags::NONE, NONE, SERVER, "2.2.12", Container(SLOWLOG, None), "Slow commands."),
];

#[rustfmt::skip] // each row takes one line
const SLOWLOG: &[Spec] = &[
    sub("get", -2, ADM.or(ANY), "2.2.12", Pure(slowlog_get), "Returns the slowest commands of late."),
    HELP,
    sub("len", 2, ADM.or(ANY), "2.2.12", Pure(slowlog_len), "Returns the length of the slow log."),
    sub("reset", 2, ADM.or(ANY), "2.2.12", Pure(slowlog_reset), "Empties the slow log."),
];

#[rustfmt::skip] // each row takes one line
const LATENCY: &[Spec] = &[
    sub("doctor", 2, ADM.or(ANY), "2.8.13", Pure(latency_doctor), "Reports on latency."),
    HELP,
    sub("histogram", -2, ADM.or(ANY), "7.0.0", Pure(latency_histogram), "Returns the distribution of command latencies."),
    sub("history", 3, ADM.or(ANY), "2.8.13", Pure(latency_history), "Returns the samples of a latency event."),
    sub("latest", 2, ADM.or(ANY), "2.8.13", Pure(latency_latest), "Returns the latest sample of each latency event."),
    sub("reset", -2, ADM.or(ANY), "2.8.13", Pure(latency_reset), "Forgets latency events."),
];

fn slowlog_get(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
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

fn slowlog_len(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.int(ctx.shared.slowlog.len() as i64);
    Ok(())
}

fn slowlog_reset(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.shared.slowlog.clear();
    ctx.reply.ok();
    Ok(())
}

fn latency_latest(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
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

fn latency_history(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
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

fn latency_reset(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let names: Vec<&[u8]> = args.from(2).collect();
    let count = ctx.shared.latency.reset(&names);
    ctx.reply.int(count as i64);
    Ok(())
}

fn latency_doctor(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
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

/// For each command, the number of calls, and of calls that took at most 2^n microseconds.
fn latency_histogram(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let wanted: Vec<&[u8]> = args.from(2).collect();
    let mut rows: Vec<(String, [u64; LATENCY_BUCKETS])> = Vec::new();
    for spec in ctx.local.commands.all() {
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
