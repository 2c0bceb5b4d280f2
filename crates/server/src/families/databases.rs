//! Whole databases: SCAN, KEYS, DBSIZE, RANDOMKEY, FLUSHDB, FLUSHALL.
//!
//! Each command has two forms. Alone, a command works on the databases themselves. Inside an `EXEC`
//! that writes, a command works on the keys that the transaction has listed.

use std::collections::HashSet;

use stillpoint::{Session, Tx};

use crate::args::{integer, is};
use crate::config::{DATABASES, Db};
use crate::error::{CmdError, CmdResult};
use crate::glob::{COMMAND_BUDGET, matches};
use crate::keyspace::{Entry, Keyspace, ListedKeys};
use crate::resp::{Args, parse_i64, parse_u64};
use crate::session::context::Context;
use crate::session::row::{F, GENERIC, NONE, R, RF, SERVER, Store, W, row, weighed_by};
use crate::session::spec::{Flags, Lists, Spec, Whole};

const fn whole(lists: Lists, run: crate::session::spec::ListedFn) -> Whole {
    Whole { lists, run }
}

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("dbsize", 1, RF.or(Flags::NEEDS_ALL), NONE, SERVER, "1.0.0", Store(dbsize, whole(Lists::Nothing, dbsize_listed)), "Returns the number of keys in the database."),
    row("flushall", -1, W.or(Flags::ALONE_IF_EXCHANGED), NONE, SERVER, "1.0.0", Store(flushall, whole(Lists::All, flushall_listed)), "Deletes all keys of all databases."),
    row("flushdb", -1, W, NONE, SERVER, "1.0.0", Store(flushdb, whole(Lists::Own, flushdb_listed)), "Deletes all keys of the database."),
    weighed_by(row("keys", 2, R.or(Flags::NEEDS_ALL), NONE, GENERIC, "1.0.0", Store(keys, whole(Lists::Own, keys_listed)), "Returns the keys that match a pattern."), keys_weight),
    row("randomkey", 1, R.or(Flags::NEEDS_ALL), NONE, GENERIC, "1.0.0", Store(randomkey, whole(Lists::Own, randomkey_listed)), "Returns a random key."),
    weighed_by(row("scan", -2, R.or(Flags::NEEDS_ALL), NONE, GENERIC, "2.8.0", Store(scan, whole(Lists::Own, scan_listed)), "Walks over the keys, some at a time."), scan_weight),
    row("swapdb", 3, W.or(F).or(Flags::ALONE).or(Flags::OUTSIDE_MULTI), NONE, SERVER, "4.0.0", Store(swapdb, whole(Lists::Nothing, swapdb_listed)), "Exchanges two databases."),
];

/// Records that one step looks at. The output limit is checked after each step.
const STEP: usize = 1024;

fn keys_weight(_: Args<'_>, db: Db, keyspace: &Keyspace) -> usize {
    keyspace.len(db) as usize
}

fn scan_weight(args: Args<'_>, db: Db, keyspace: &Keyspace) -> usize {
    let count = ScanOptions::parse(args).map_or(0, |options| options.count);
    // The keys are counted only for a large request, which is rare.
    if count < STEP { count } else { count.min(keyspace.len(db) as usize) }
}

/// Arguments of `SCAN`.
struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    kind: Option<&'a [u8]>,
    count: usize,
}

impl<'a> ScanOptions<'a> {
    fn parse(args: Args<'a>) -> Result<Self, CmdError> {
        let mut options = Self { pattern: None, kind: None, count: 10 };
        let mut i = 2;
        while let Some(arg) = args.get(i) {
            let value = args.get(i + 1).ok_or(CmdError::SYNTAX)?;
            if is(arg, "MATCH") {
                options.pattern = Some(value).filter(|p| *p != b"*");
            } else if is(arg, "COUNT") {
                let count = integer(value)?;
                if count < 1 {
                    return Err(CmdError::SYNTAX);
                }
                options.count = usize::try_from(count).unwrap_or(usize::MAX);
            } else if is(arg, "TYPE") {
                options.kind = Some(value);
            } else {
                return Err(CmdError::SYNTAX);
            }
            i += 2;
        }
        Ok(options)
    }

    /// Whether the scan asks for this key and its value.
    fn fit(&self, key: &[u8], entry: &Entry<'_>, budget: &mut u64) -> Result<bool, CmdError> {
        let kind_fits = self.kind.is_none_or(|kind| is(kind, entry.kind().name()));
        let name_fits = self.pattern.map_or(Ok(true), |pattern| name_fits(pattern, key, budget));
        Ok(name_fits? && kind_fits)
    }
}

fn name_fits(pattern: &[u8], key: &[u8], budget: &mut u64) -> Result<bool, CmdError> {
    matches(pattern, key, budget).map_err(|_| CmdError::PATTERN)
}

/// A database that an argument of `SWAPDB` names.
fn database(arg: &[u8], error: &'static str) -> Result<Db, CmdError> {
    let index = parse_i64(arg).and_then(|index| i32::try_from(index).ok());
    let index = index.ok_or(CmdError::fixed(error))?;
    Db::try_from(index).ok().filter(|&db| db < DATABASES).ok_or(CmdError::DB_INDEX)
}

fn swapdb(ctx: &mut Context<'_>, args: Args<'_>, session: &mut Session) -> CmdResult {
    let a = database(args.at(1), "ERR invalid first DB index")?;
    let b = database(args.at(2), "ERR invalid second DB index")?;
    if a != b {
        ctx.shared.keyspace.swap(session, a, b)?;
        ctx.shared.wake_all();
    }
    ctx.reply.ok();
    Ok(())
}

/// A queue never holds the command.
fn swapdb_listed(_: &mut Context<'_>, _: Args<'_>, _: &ListedKeys, _: &mut Tx<'_>) -> CmdResult {
    Err(CmdError::fixed("ERR SWAPDB inside MULTI is not allowed"))
}

/// A cursor. As in Redis, a negative number means its two's complement, and an empty argument means
/// 0.
pub(super) fn cursor(arg: &[u8]) -> Result<u64, CmdError> {
    let cursor = match arg {
        [] => Some(0),
        [b'-', digits @ ..] => parse_u64(digits).map(u64::wrapping_neg),
        [b'+', digits @ ..] => parse_u64(digits),
        _ => parse_u64(arg),
    };
    cursor.ok_or(CmdError::fixed("ERR invalid cursor"))
}

fn scan(ctx: &mut Context<'_>, args: Args<'_>, session: &mut Session) -> CmdResult {
    let mut next = cursor(args.at(1))?;
    let options = ScanOptions::parse(args)?;
    let (now_ms, db, keyspace) = (ctx.now_ms(), ctx.db(), &ctx.shared.keyspace);
    let mut budget = COMMAND_BUDGET;
    let mut spent = Ok(());
    let mut looked_at = 0;
    let header = ctx.reply.mark();
    let mut found = 0;
    loop {
        let count = STEP.min(options.count - looked_at);
        let reply = &mut *ctx.reply;
        let step =
            keyspace.scan(
                session,
                (db, next),
                count,
                now_ms,
                &mut |key, entry| match options.fit(key, entry, &mut budget) {
                    Ok(true) => {
                        reply.bulk(key);
                        found += 1;
                    }
                    Ok(false) => {}
                    Err(error) => spent = Err(error),
                },
            )?;
        spent.clone()?;
        next = step.next;
        looked_at += step.records;
        if next == 0 || looked_at >= options.count || ctx.reply.overflowed() {
            break;
        }
    }
    ctx.reply.array_at(header, found);
    let keys = ctx.reply.take_from(header);
    ctx.reply.array(2);
    ctx.reply.bulk(next.to_string().as_bytes());
    ctx.reply.raw(&keys);
    Ok(())
}

/// The first step of a scan answers all keys and ends the scan.
fn scan_listed(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    listed: &ListedKeys,
    tx: &mut Tx<'_>,
) -> CmdResult {
    cursor(args.at(1))?;
    let options = ScanOptions::parse(args)?;
    let mut budget = COMMAND_BUDGET;
    let fits = |key: &[u8], entry: &Entry<'_>| options.fit(key, entry, &mut budget);
    let found = listed.present(tx, ctx.db(), ctx.now_ms(), fits)?;
    ctx.reply.array(2);
    ctx.reply.bulk(b"0");
    array(ctx, &found);
    Ok(())
}

fn keys(ctx: &mut Context<'_>, args: Args<'_>, session: &mut Session) -> CmdResult {
    let header = ctx.reply.mark();
    let before = ctx.shared.keyspace.flushes().now();
    let mut found = matching_keys(ctx, args.at(1), session, |_| true)?;
    if !ctx.shared.keyspace.flushes().none_since(before) {
        // A key that was set again after the flush may have been met twice.
        ctx.reply.truncate(header);
        let mut seen: HashSet<Box<[u8]>> = HashSet::new();
        found = matching_keys(ctx, args.at(1), session, |key| seen.insert(key.into()))?;
    }
    ctx.reply.array_at(header, found);
    Ok(())
}

/// Replies the keys that match a pattern and that `is_new` does not know. Returns the number of
/// these keys.
fn matching_keys(
    ctx: &mut Context<'_>,
    pattern: &[u8],
    session: &mut Session,
    mut is_new: impl FnMut(&[u8]) -> bool,
) -> Result<usize, CmdError> {
    let all = pattern == b"*";
    let (now_ms, db, keyspace) = (ctx.now_ms(), ctx.db(), &ctx.shared.keyspace);
    let mut budget = COMMAND_BUDGET;
    let mut spent = Ok(());
    let (mut cursor, mut found) = (0, 0);
    loop {
        let reply = &mut *ctx.reply;
        let step = keyspace.scan(session, (db, cursor), STEP, now_ms, &mut |key, _| {
            let fits = if all { Ok(true) } else { name_fits(pattern, key, &mut budget) };
            match fits {
                Ok(true) if is_new(key) => {
                    reply.bulk(key);
                    found += 1;
                }
                Ok(_) => {}
                Err(error) => spent = Err(error),
            }
        })?;
        spent.clone()?;
        cursor = step.next;
        if cursor == 0 || ctx.reply.overflowed() {
            return Ok(found);
        }
    }
}

fn keys_listed(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    listed: &ListedKeys,
    tx: &mut Tx<'_>,
) -> CmdResult {
    let mut budget = COMMAND_BUDGET;
    let fits = |key: &[u8], _: &Entry<'_>| name_fits(args.at(1), key, &mut budget);
    let found = listed.present(tx, ctx.db(), ctx.now_ms(), fits)?;
    array(ctx, &found);
    Ok(())
}

fn array(ctx: &mut Context<'_>, keys: &[&[u8]]) {
    ctx.reply.array(keys.len());
    for key in keys {
        ctx.reply.bulk(key);
    }
}

fn dbsize(ctx: &mut Context<'_>, _: Args<'_>, session: &mut Session) -> CmdResult {
    let len = ctx.shared.keyspace.exact_len(session, ctx.db())?;
    ctx.reply.int(len as i64);
    Ok(())
}

fn dbsize_listed(
    ctx: &mut Context<'_>,
    _: Args<'_>,
    listed: &ListedKeys,
    tx: &mut Tx<'_>,
) -> CmdResult {
    ctx.reply.int(listed.len(tx, ctx.db()));
    Ok(())
}

fn randomkey(ctx: &mut Context<'_>, _: Args<'_>, session: &mut Session) -> CmdResult {
    let (keyspace, rng) = (&ctx.shared.keyspace, &*ctx.shared.config.rng);
    match keyspace.random_key(session, ctx.db(), ctx.now_ms(), rng)? {
        Some(key) => ctx.reply.bulk(&key),
        None => ctx.reply.null(),
    }
    Ok(())
}

fn randomkey_listed(
    ctx: &mut Context<'_>,
    _: Args<'_>,
    listed: &ListedKeys,
    tx: &mut Tx<'_>,
) -> CmdResult {
    let found = listed.present(tx, ctx.db(), ctx.now_ms(), |_, _| Ok(true))?;
    let random = ctx.shared.config.rng.next_u64();
    match found.len() as u64 {
        0 => ctx.reply.null(),
        count => ctx.reply.bulk(found[(random % count) as usize]),
    }
    Ok(())
}

/// `FLUSHALL` and `FLUSHDB` take `ASYNC` or `SYNC`; both are one change of generation.
fn check_flush_option(args: Args<'_>) -> CmdResult {
    match args.get(1) {
        None => Ok(()),
        Some(option) if args.len() == 2 && (is(option, "ASYNC") || is(option, "SYNC")) => Ok(()),
        Some(_) => Err(CmdError::SYNTAX),
    }
}

fn flushdb(ctx: &mut Context<'_>, args: Args<'_>, session: &mut Session) -> CmdResult {
    check_flush_option(args)?;
    ctx.shared.keyspace.flush(session, &[ctx.db()])?;
    ctx.reply.ok();
    Ok(())
}

fn flushdb_listed(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    listed: &ListedKeys,
    tx: &mut Tx<'_>,
) -> CmdResult {
    check_flush_option(args)?;
    let db = ctx.db();
    listed.flush(&mut ctx.keys(), tx, db)?;
    ctx.reply.ok();
    Ok(())
}

/// Databases without keys are flushed too, since they may hold memory of deleted keys.
fn flushall(ctx: &mut Context<'_>, args: Args<'_>, session: &mut Session) -> CmdResult {
    check_flush_option(args)?;
    let all: Vec<Db> = (0..DATABASES).collect();
    ctx.shared.keyspace.flush(session, &all)?;
    ctx.reply.ok();
    Ok(())
}

fn flushall_listed(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    listed: &ListedKeys,
    tx: &mut Tx<'_>,
) -> CmdResult {
    check_flush_option(args)?;
    for db in 0..DATABASES {
        listed.flush(&mut ctx.keys(), tx, db)?;
    }
    ctx.reply.ok();
    Ok(())
}
