//! The family MEMORY: memory in use.

use stillpoint::Tx;

use super::help::HELP;
use crate::args::{integer, is};
use crate::config::DATABASES;
use crate::error::{CmdError, CmdResult};
use crate::resp::Args;
use crate::session::context::Context;
use crate::session::row::{Container, Keyed, NONE, Pure, R, SERVER, row, sub, with_key};
use crate::session::spec::{Flags, Spec};
use crate::shared::registry::RELAXED;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("memory", -2, Flags::NONE, NONE, SERVER, "4.0.0", Container(MEMORY, None), "Memory."),
];

#[rustfmt::skip] // each row takes one line
const MEMORY: &[Spec] = &[
    sub("doctor", 2, Flags::NONE, "4.0.0", Pure(memory_doctor), "Reports on memory."),
    HELP,
    sub("purge", 2, Flags::NONE, "4.0.0", Pure(memory_purge), "Asks the allocator to give memory back."),
    sub("stats", 2, Flags::NONE, "4.0.0", Pure(memory_stats), "Returns numbers about memory."),
    with_key(sub("usage", -3, R, "4.0.0", Keyed(memory_usage), "Estimates the bytes of a key and its value.")),
];

fn memory_doctor(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
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

fn memory_stats(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let shared = ctx.shared;
    let used = shared.used_memory();
    let keys: u64 = (0..DATABASES).map(|db| shared.keyspace.len(db)).sum();
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

fn memory_purge(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.ok();
    Ok(())
}

fn memory_usage(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    match (args.get(3), args.get(4), args.len()) {
        (None, ..) => {}
        (Some(option), Some(count), 5) if is(option, "SAMPLES") => {
            if integer(count)? < 0 {
                return Err(CmdError::SYNTAX);
            }
        }
        _ => return Err(CmdError::SYNTAX),
    }
    let key = args.at(2);
    if ctx.keys().peek(tx, 0, key).is_none() {
        ctx.reply.null();
        return Ok(());
    }
    let record = ctx.keys().record_bytes(tx, 0);
    let nodes = match ctx.keys().open_any(tx, 0, key)? {
        Some(mut elements) => {
            ctx.keys().leave_if_long(elements.len())?;
            elements.node_bytes(tx)?
        }
        None => 0,
    };
    ctx.reply.int((record + nodes) as i64);
    Ok(())
}
