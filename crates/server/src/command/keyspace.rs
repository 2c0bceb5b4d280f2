//! The keyspace as a whole: SCAN, KEYS, DBSIZE, RANDOMKEY, FLUSHDB.

use std::collections::HashSet;

use stillpoint::{Session, TableId};

use super::{integer, is};
use crate::config::{DATABASES, Db};
use crate::context::Context;
use crate::error::{CmdError, CmdResult};
use crate::glob::{COMMAND_BUDGET, matches};
use crate::resp::{Args, parse_u64};
use crate::value::{Entry, type_name};

/// Records looked at between two checks of the output limit.
const CHUNK: usize = 1024;

/// What `SCAN` is asked for.
pub(super) struct ScanOptions<'a> {
    pub(super) pattern: Option<&'a [u8]>,
    pub(super) kind: Option<&'a [u8]>,
    count: usize,
}

impl<'a> ScanOptions<'a> {
    pub(super) fn parse(args: Args<'a>) -> Result<Self, CmdError> {
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
}

/// A cursor; like Redis, a negative number stands for its two's complement.
pub(super) fn cursor(arg: &[u8]) -> Option<u64> {
    match arg {
        [b'-', digits @ ..] => parse_u64(digits).map(u64::wrapping_neg),
        _ => parse_u64(arg),
    }
}

pub(crate) fn scan(ctx: &mut Context<'_>, args: Args<'_>, session: &mut Session) -> CmdResult {
    let cursor = cursor(args.at(1)).ok_or(CmdError::fixed("ERR invalid cursor"))?;
    let options = ScanOptions::parse(args)?;
    let (now_ms, table) = (ctx.now_ms(), ctx.shared.databases.table(ctx.db()));
    let mut budget = COMMAND_BUDGET;
    let mut spent = false;
    let mut next = cursor;
    let mut looked_at = 0;
    let header = ctx.reply.mark();
    let mut found = 0;
    loop {
        let chunk = CHUNK.min(options.count - looked_at);
        let reply = &mut *ctx.reply;
        next = session.scan(table, next, chunk, &mut |key, value| {
            looked_at += 1;
            let entry = Entry::new(value);
            let kind_fits = options.kind.is_none_or(|kind| is(kind, type_name(entry.tag())));
            let name_fits = options.pattern.is_none_or(|pattern| {
                matches(pattern, key, &mut budget).unwrap_or_else(|_| {
                    spent = true;
                    false
                })
            });
            if kind_fits && name_fits && !entry.is_expired(now_ms) {
                reply.bulk(key);
                found += 1;
            }
        })?;
        if spent {
            return Err(CmdError::PATTERN);
        }
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

pub(crate) fn keys(ctx: &mut Context<'_>, args: Args<'_>, session: &mut Session) -> CmdResult {
    let pattern = args.at(1);
    let all = pattern == b"*";
    let (now_ms, table) = (ctx.now_ms(), ctx.shared.databases.table(ctx.db()));
    let mut budget = COMMAND_BUDGET;
    let mut spent = false;
    // The walk may meet a key twice while the index grows.
    let mut seen: HashSet<Box<[u8]>> = HashSet::new();
    let header = ctx.reply.mark();
    let mut found = 0;
    let mut cursor = 0;
    loop {
        let reply = &mut *ctx.reply;
        cursor = session.scan(table, cursor, CHUNK, &mut |key, value| {
            let fits = all
                || matches(pattern, key, &mut budget).unwrap_or_else(|_| {
                    spent = true;
                    false
                });
            if fits && !Entry::new(value).is_expired(now_ms) && seen.insert(key.into()) {
                reply.bulk(key);
                found += 1;
            }
        })?;
        if spent {
            return Err(CmdError::PATTERN);
        }
        if cursor == 0 || ctx.reply.overflowed() {
            break;
        }
    }
    ctx.reply.array_at(header, found);
    Ok(())
}

pub(crate) fn dbsize(ctx: &mut Context<'_>, _: Args<'_>, session: &mut Session) -> CmdResult {
    let len = session.len(ctx.shared.databases.table(ctx.db()))?;
    ctx.reply.int(len as i64);
    Ok(())
}

/// Tries of `RANDOMKEY` before it looks at every key.
const RANDOM_TRIES: usize = 64;

pub(crate) fn randomkey(ctx: &mut Context<'_>, _: Args<'_>, session: &mut Session) -> CmdResult {
    let (now_ms, db) = (ctx.now_ms(), ctx.db());
    let table = ctx.shared.databases.table(db);
    for _ in 0..RANDOM_TRIES {
        if session.len(table)? == 0 {
            break;
        }
        let mut candidates: Vec<Box<[u8]>> = Vec::new();
        // Any number is a cursor: it stands for a place in the index.
        let random = ctx.shared.config.rng.next_u64();
        session.scan(table, random, 1, &mut |key, value| {
            if candidates.len() < 64 && !Entry::new(value).is_expired(now_ms) {
                candidates.push(key.into());
            }
        })?;
        if !candidates.is_empty() {
            let pick = (ctx.shared.config.rng.next_u64() % candidates.len() as u64) as usize;
            ctx.reply.bulk(&candidates[pick]);
            return Ok(());
        }
    }
    let mut cursor = 0;
    let mut found: Option<Box<[u8]>> = None;
    loop {
        cursor = session.scan(table, cursor, CHUNK, &mut |key, value| {
            if found.is_none() && !Entry::new(value).is_expired(now_ms) {
                found = Some(key.into());
            }
        })?;
        if cursor == 0 || found.is_some() {
            break;
        }
    }
    match found {
        Some(key) => ctx.reply.bulk(&key),
        None => ctx.reply.null(),
    }
    Ok(())
}

/// `FLUSHALL` and `FLUSHDB` take `ASYNC` or `SYNC`; both are one change of generation.
pub(super) fn check_flush_option(args: Args<'_>) -> CmdResult {
    match args.get(1) {
        None => Ok(()),
        Some(option) if args.len() == 2 && (is(option, "ASYNC") || is(option, "SYNC")) => Ok(()),
        Some(_) => Err(CmdError::SYNTAX),
    }
}

fn flush(ctx: &mut Context<'_>, dbs: &[Db]) -> CmdResult {
    let databases = &ctx.shared.databases;
    let tables: Vec<TableId> = dbs.iter().map(|&db| databases.table(db)).collect();
    databases.engine.flush_tables(&tables)?;
    for &db in dbs {
        ctx.shared.expiring_restart(db, 0);
    }
    ctx.reply.ok();
    Ok(())
}

pub(crate) fn flushdb(ctx: &mut Context<'_>, args: Args<'_>, _: &mut Session) -> CmdResult {
    check_flush_option(args)?;
    let db = ctx.db();
    flush(ctx, &[db])
}

pub(crate) fn flushall(ctx: &mut Context<'_>, args: Args<'_>, _: &mut Session) -> CmdResult {
    check_flush_option(args)?;
    // Those without keys too: they may hold memory of keys that were deleted.
    let all: Vec<Db> = (0..DATABASES).collect();
    flush(ctx, &all)
}
