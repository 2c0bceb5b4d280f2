//! Keys of any type, named one by one.

use stillpoint::{KeySet, Mode, Tx};

use super::{integer, is};
use crate::config::{DATABASES, Db};
use crate::context::Context;
use crate::databases::Databases;
use crate::error::{CmdError, CmdResult};
use crate::resp::{Args, parse_i64};
use crate::value::{TYPE_MASK, type_name};

pub(crate) fn del(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut deleted = 0;
    for (i, key) in args.from(1).enumerate() {
        deleted += i64::from(ctx.lookup(tx, i as u32, key).is_some());
        ctx.delete(tx, i as u32)?;
    }
    ctx.reply.int(deleted);
    Ok(())
}

pub(crate) fn exists(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut there = 0;
    for (i, key) in args.from(1).enumerate() {
        there += i64::from(ctx.read(tx, i as u32, key).is_some());
    }
    ctx.reply.int(there);
    Ok(())
}

pub(crate) fn type_of(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let name = ctx.lookup(tx, 0, args.at(1)).map_or("none", |entry| type_name(entry.tag()));
    ctx.reply.simple(name);
    Ok(())
}

/// Moves the value of slot 0 to slot 1 with its expiry. The source stays.
fn copy_value(ctx: &mut Context<'_>, tx: &mut Tx<'_>, source: &[u8]) -> CmdResult {
    let mut value = ctx.take_scratch();
    if let Some(entry) = ctx.lookup(tx, 0, source) {
        entry.copy_to(&mut value);
        let (tag, expire) = (entry.tag() & TYPE_MASK, entry.expire_at_ms);
        ctx.put(tx, 1, tag, expire, &value)?;
    }
    ctx.give_scratch(value);
    Ok(())
}

pub(crate) fn rename(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    if ctx.lookup(tx, 0, args.at(1)).is_none() {
        return Err(CmdError::NO_KEY);
    }
    if args.at(1) != args.at(2) {
        copy_value(ctx, tx, args.at(1))?;
        ctx.delete(tx, 0)?;
    }
    ctx.reply.ok();
    Ok(())
}

pub(crate) fn renamenx(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    if ctx.lookup(tx, 0, args.at(1)).is_none() {
        return Err(CmdError::NO_KEY);
    }
    let free = ctx.lookup(tx, 1, args.at(2)).is_none();
    if free {
        copy_value(ctx, tx, args.at(1))?;
        ctx.delete(tx, 0)?;
    }
    ctx.reply.int(i64::from(free));
    Ok(())
}

/// A database index in an argument, if it is one.
fn database(arg: &[u8]) -> Option<Db> {
    let index = parse_i64(arg)?;
    Db::try_from(index).ok().filter(|&db| db < DATABASES)
}

/// The database that `COPY … DB n` names, else the current one.
fn copy_target(args: Args<'_>, db: Db) -> Option<Db> {
    let mut target = Some(db);
    let mut i = 3;
    while let Some(arg) = args.get(i) {
        if is(arg, "DB")
            && let Some(index) = args.get(i + 1)
        {
            target = database(index);
            i += 1;
        }
        i += 1;
    }
    target
}

pub(crate) fn declare_copy(args: Args<'_>, db: Db, dbs: &Databases, keys: &mut KeySet) {
    keys.push(dbs.table(db), args.at(1), Mode::Read, 0);
    keys.push(dbs.table(copy_target(args, db).unwrap_or(db)), args.at(2), Mode::Write, 0);
}

pub(crate) fn copy(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut replace = false;
    let mut i = 3;
    while let Some(arg) = args.get(i) {
        if is(arg, "REPLACE") {
            replace = true;
        } else if is(arg, "DB")
            && let Some(index) = args.get(i + 1)
        {
            integer(index)?;
            database(index).ok_or(CmdError::DB_INDEX)?;
            i += 1;
        } else {
            return Err(CmdError::SYNTAX);
        }
        i += 1;
    }
    let db = ctx.db();
    if copy_target(args, db) == Some(db) && args.at(1) == args.at(2) {
        return Err(SAME_OBJECT);
    }
    let possible = ctx.lookup(tx, 0, args.at(1)).is_some()
        && (replace || ctx.lookup(tx, 1, args.at(2)).is_none());
    if possible {
        copy_value(ctx, tx, args.at(1))?;
    }
    ctx.reply.int(i64::from(possible));
    Ok(())
}

const SAME_OBJECT: CmdError = CmdError::fixed("ERR source and destination objects are the same");

pub(crate) fn declare_move(args: Args<'_>, db: Db, dbs: &Databases, keys: &mut KeySet) {
    keys.push(dbs.table(db), args.at(1), Mode::Write, 0);
    keys.push(dbs.table(database(args.at(2)).unwrap_or(db)), args.at(1), Mode::Write, 0);
}

pub(crate) fn move_key(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    integer(args.at(2))?;
    let target = database(args.at(2)).ok_or(CmdError::DB_INDEX)?;
    if target == ctx.db() {
        return Err(SAME_OBJECT);
    }
    let possible =
        ctx.lookup(tx, 0, args.at(1)).is_some() && ctx.lookup(tx, 1, args.at(1)).is_none();
    if possible {
        copy_value(ctx, tx, args.at(1))?;
        ctx.delete(tx, 0)?;
    }
    ctx.reply.int(i64::from(possible));
    Ok(())
}

pub(crate) fn object_encoding(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let Some(entry) = ctx.lookup(tx, 0, args.at(2)) else {
        ctx.reply.null();
        return Ok(());
    };
    let mut text = Vec::new();
    if entry.len() <= 20 {
        entry.copy_to(&mut text);
    }
    ctx.reply.bulk(match entry.len() {
        _ if !entry.is_string() => b"raw",
        1..=20 if parse_i64(&text).is_some() => b"int",
        0..=44 => b"embstr",
        _ => b"raw",
    });
    Ok(())
}

pub(crate) fn object_refcount(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    match ctx.lookup(tx, 0, args.at(2)) {
        Some(_) => ctx.reply.int(1),
        None => ctx.reply.null(),
    }
    Ok(())
}

/// Null for a key that is not there; for one that is, the answer that it is not tracked.
fn object_untracked(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    error: &'static str,
) -> CmdResult {
    if ctx.lookup(tx, 0, args.at(2)).is_some() {
        return Err(CmdError::fixed(error));
    }
    ctx.reply.null();
    Ok(())
}

/// When a key was read last is not known: a read writes nothing that others share, and a clock in
/// each record would make it write. Redis refuses in the same way under a policy without the clock,
/// so clients know the answer; any number of seconds would be a lie.
pub(crate) fn object_idletime(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let error = "ERR Reads leave no trace in this store, idle time not tracked.";
    object_untracked(ctx, args, tx, error)
}

pub(crate) fn object_freq(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let error = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. \
                 Please note that when switching between policies at runtime LRU and LFU data will \
                 take some time to adjust.";
    object_untracked(ctx, args, tx, error)
}

/// Bytes of a record beside its key and value: cell header and index entry.
const RECORD_OVERHEAD: usize = 24;

pub(crate) fn memory_usage(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    match (args.get(3), args.get(4), args.len()) {
        (None, ..) => {}
        (Some(option), Some(count), 5) if is(option, "SAMPLES") => {
            if integer(count)? < 0 {
                return Err(CmdError::SYNTAX);
            }
        }
        _ => return Err(CmdError::SYNTAX),
    }
    match ctx.lookup(tx, 0, args.at(2)) {
        Some(entry) => {
            let bytes = entry.len() + entry.skip() + args.at(2).len() + RECORD_OVERHEAD;
            ctx.reply.int(bytes.next_multiple_of(16) as i64);
        }
        None => ctx.reply.null(),
    }
    Ok(())
}
