//! MULTI, DISCARD, WATCH, UNWATCH, and the queue that EXEC runs.

use stillpoint::{KeySet, Mode, Slot, Tx};

use super::{Flags, Spec};
use crate::client::{Client, Multi, Seen, Watched};
use crate::config::Db;
use crate::context::Context;
use crate::databases::Databases;
use crate::error::{CmdError, CmdResult};
use crate::resp::Args;
use crate::value::Entry;

pub(crate) fn multi(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    if ctx.client.multi.is_some() {
        return Err(CmdError::fixed("ERR MULTI calls can not be nested"));
    }
    ctx.client.multi = Some(Box::default());
    ctx.reply.ok();
    Ok(())
}

pub(crate) fn discard(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    if ctx.client.multi.take().is_none() {
        return Err(CmdError::fixed("ERR DISCARD without MULTI"));
    }
    ctx.client.watched.clear();
    ctx.reply.ok();
    Ok(())
}

/// For writing, though nothing is written: nobody makes a missing key while it is being watched,
/// and one key for reading alone would not be locked.
pub(crate) fn declare_watch(args: Args<'_>, db: Db, dbs: &Databases, keys: &mut KeySet) {
    for key in args.from(1) {
        keys.push(dbs.table(db), key, Mode::Write, 0);
    }
}

/// Remembers the state of the keys; they are declared, so it is one consistent state.
pub(crate) fn watch(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let (db, now_ms) = (ctx.db(), ctx.now_ms());
    for (i, key) in args.from(1).enumerate() {
        if ctx.client.watched.iter().any(|w| w.db == db && *w.key == *key) {
            continue;
        }
        let slot = ctx.slot(i as u32);
        let seen = if present(tx, slot, now_ms) {
            Seen::Value(tx.stamp(slot))
        } else {
            Seen::Missing(ctx.shared.missing_keys.watch(tx.key_hash(slot)))
        };
        ctx.client.watched.push(Watched { db, key: key.into(), seen });
    }
    ctx.reply.ok();
    Ok(())
}

fn present(tx: &mut Tx<'_>, slot: Slot, now_ms: u64) -> bool {
    tx.value(slot).is_some_and(|value| !Entry::new(value).is_expired(now_ms))
}

/// True if the watched keys, declared as the first slots, are as they were seen.
/// A key that is missing as it was before is unchanged unless it was made meanwhile.
pub(crate) fn unchanged(client: &Client, tx: &mut Tx<'_>, now_ms: u64) -> bool {
    client.watched.iter().enumerate().all(|(i, watched)| {
        let slot = Slot(i as u32);
        match &watched.seen {
            Seen::Value(stamp) => present(tx, slot, now_ms) && tx.stamp(slot) == *stamp,
            Seen::Missing(key) => !present(tx, slot, now_ms) && !key.was_made(),
        }
    })
}

pub(crate) fn unwatch(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.client.watched.clear();
    ctx.reply.ok();
    Ok(())
}

/// Queues a command inside `MULTI`.
pub(crate) fn queue(ctx: &mut Context<'_>, spec: &'static Spec, args: Args<'_>) -> CmdResult {
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
