//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.

use stillpoint::{KeySet, Mode, Tx};

use crate::config::Db;
use crate::error::{CmdError, CmdResult};
use crate::keyspace::Keyspace;
use crate::resp::Args;
use crate::session::context::Context;
use crate::session::row::{ALL, CONN, Exec, F, Keyed, NONE, Pure, declared_by, row};
use crate::session::spec::{Flags, Group, Spec};

const TRANSACTIONS: Group = Group { name: "transactions", category: Some("@transaction") };

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("discard", 1, CONN.or(F).or(Flags::IN_MULTI), NONE, TRANSACTIONS, "2.0.0", Pure(discard), "Drops a transaction."),
    row("exec", 1, CONN.or(Flags::IN_MULTI).or(Flags::SKIP_SLOWLOG), NONE, TRANSACTIONS, "1.2.0", Exec, "Runs the commands of a transaction."),
    row("multi", 1, CONN.or(F).or(Flags::IN_MULTI), NONE, TRANSACTIONS, "1.2.0", Pure(multi), "Begins a transaction."),
    row("unwatch", 1, CONN.or(F), NONE, TRANSACTIONS, "2.2.0", Pure(unwatch), "Forgets the watched keys."),
    declared_by(row("watch", -2, CONN.or(F).or(Flags::IN_MULTI).or(Flags::OUTSIDE_MULTI), ALL, TRANSACTIONS, "2.2.0", Keyed(watch), "Makes the next EXEC fail if a key changes before it."), declare_watch),
];

fn multi(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    if ctx.client.multi.is_some() {
        return Err(CmdError::fixed("ERR MULTI calls can not be nested"));
    }
    ctx.client.multi = Some(Box::default());
    ctx.reply.ok();
    Ok(())
}

fn discard(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    if ctx.client.multi.take().is_none() {
        return Err(CmdError::fixed("ERR DISCARD without MULTI"));
    }
    ctx.client.watched.clear();
    ctx.reply.ok();
    Ok(())
}

/// Declares the keys for writing, although nothing is written. A key for reading alone would not be
/// locked, and somebody could make a missing key while the client begins to watch it.
fn declare_watch(args: Args<'_>, db: Db, keyspace: &Keyspace, keys: &mut KeySet) {
    for key in args.from(1) {
        keyspace.declare(keys, db, key, Mode::Write, 0);
    }
}

/// Remembers the state of the keys. The command has declared the keys, so their states are those of
/// one moment.
fn watch(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let db = ctx.db();
    for (i, key) in args.from(1).enumerate() {
        if ctx.client.watched.iter().any(|watched| watched.is(db, key)) {
            continue;
        }
        let watched = ctx.keys().watch(tx, i as u32, key);
        ctx.client.watched.push(watched);
    }
    ctx.reply.ok();
    Ok(())
}

fn unwatch(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.client.watched.clear();
    ctx.reply.ok();
    Ok(())
}
