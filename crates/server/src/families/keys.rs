//! Keys of any type, named one by one.

use stillpoint::{KeySet, Mode, Tx};

use super::help::HELP;
use crate::args::{integer, is};
use crate::config::{DATABASES, Db};
use crate::error::{CmdError, CmdResult};
use crate::keyspace::{KeyUse, Keyspace, Kind};
use crate::resp::{Args, parse_i64};
use crate::session::context::Context;
use crate::session::row::{
    ALL, Container, GENERIC, Keyed, NONE, ONE, R, RF, TWO, W, WF, WM, copying, declared_by, row,
    sub, with_key,
};
use crate::session::spec::{Flags, Spec};

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    copying(declared_by(row("copy", -3, WM, TWO, GENERIC, "6.2.0", Keyed(copy), "Copies a key's value to another key."), declare_copy)),
    row("del", -2, W, ALL, GENERIC, "1.0.0", Keyed(del), "Deletes keys."),
    row("exists", -2, RF, ALL, GENERIC, "1.0.0", Keyed(exists), "Counts which of the keys exist."),
    copying(declared_by(row("move", 3, WF, ONE, GENERIC, "1.0.0", Keyed(move_key), "Moves a key to another database."), declare_move)),
    row("object", -2, Flags::NONE, NONE, GENERIC, "2.2.3", Container(OBJECT, None), "How values are kept."),
    copying(row("rename", 3, W, TWO, GENERIC, "1.0.0", Keyed(rename), "Renames a key and overwrites the destination.")),
    copying(row("renamenx", 3, WF, TWO, GENERIC, "1.0.0", Keyed(renamenx), "Renames a key if the destination does not exist.")),
    row("touch", -2, RF, ALL, GENERIC, "3.2.1", Keyed(touch), "Counts which of the keys exist, and counts as a use of them."),
    row("type", 2, RF, ONE, GENERIC, "1.0.0", Keyed(type_of), "Returns the type of the value at a key."),
    row("unlink", -2, WF, ALL, GENERIC, "4.0.0", Keyed(del), "Deletes keys."),
];

#[rustfmt::skip] // each row takes one line
const OBJECT: &[Spec] = &[
    with_key(sub("encoding", 3, R, "2.2.3", Keyed(object_encoding), "Returns how a value is stored.")),
    with_key(sub("freq", 3, R, "4.0.0", Keyed(object_freq), "Returns the access frequency of a key.")),
    HELP,
    with_key(sub("idletime", 3, R, "2.2.3", Keyed(object_idletime), "Returns the seconds since a key was used, under an LRU policy. Without one this is not tracked.")),
    with_key(sub("refcount", 3, R, "2.2.3", Keyed(object_refcount), "Returns the references to a value.")),
];

fn del(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut deleted = 0;
    for (i, key) in args.from(1).enumerate() {
        deleted += i64::from(ctx.keys().lookup(tx, i as u32, key).is_some());
        ctx.keys().delete(tx, i as u32)?;
    }
    ctx.reply.int(deleted);
    Ok(())
}

fn exists(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut there = 0;
    for (i, key) in args.from(1).enumerate() {
        there += i64::from(ctx.keys().exists(tx, i as u32, key));
    }
    ctx.reply.int(there);
    Ok(())
}

fn touch(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut there = 0;
    for (i, key) in args.from(1).enumerate() {
        there += i64::from(ctx.keys().read(tx, i as u32, key).is_some());
    }
    ctx.reply.int(there);
    Ok(())
}

fn type_of(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let entry = ctx.keys().peek(tx, 0, args.at(1));
    let name = entry.map_or("none", |entry| entry.kind().name());
    ctx.reply.simple(name);
    Ok(())
}

fn rename(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    if ctx.keys().lookup(tx, 0, args.at(1)).is_none() {
        return Err(CmdError::NO_KEY);
    }
    if args.at(1) != args.at(2) {
        ctx.keys().rename_first_to_second(tx, args.at(1))?;
    }
    ctx.reply.ok();
    Ok(())
}

fn renamenx(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    if ctx.keys().lookup(tx, 0, args.at(1)).is_none() {
        return Err(CmdError::NO_KEY);
    }
    let free = ctx.keys().lookup(tx, 1, args.at(2)).is_none();
    if free {
        ctx.keys().rename_first_to_second(tx, args.at(1))?;
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

fn declare_copy(args: Args<'_>, db: Db, keyspace: &Keyspace, keys: &mut KeySet) {
    keyspace.declare(keys, db, args.at(1), Mode::Read, 0);
    keyspace.declare(keys, copy_target(args, db).unwrap_or(db), args.at(2), Mode::Write, 0);
}

fn copy(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
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
    let target = copy_target(args, db).unwrap_or(db);
    if target == db && args.at(1) == args.at(2) {
        return Err(SAME_OBJECT);
    }
    let possible = ctx.keys().lookup(tx, 0, args.at(1)).is_some()
        && (replace || ctx.keys().lookup(tx, 1, args.at(2)).is_none());
    if possible {
        ctx.keys().copy_first_to_second(tx, args.at(1), (target, true))?;
    }
    ctx.reply.int(i64::from(possible));
    Ok(())
}

const SAME_OBJECT: CmdError = CmdError::fixed("ERR source and destination objects are the same");

fn declare_move(args: Args<'_>, db: Db, keyspace: &Keyspace, keys: &mut KeySet) {
    keyspace.declare(keys, db, args.at(1), Mode::Write, 0);
    keyspace.declare(keys, database(args.at(2)).unwrap_or(db), args.at(1), Mode::Write, 0);
}

fn move_key(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    integer(args.at(2))?;
    let target = database(args.at(2)).ok_or(CmdError::DB_INDEX)?;
    if target == ctx.db() {
        return Err(SAME_OBJECT);
    }
    let possible = ctx.keys().lookup(tx, 0, args.at(1)).is_some()
        && ctx.keys().lookup(tx, 1, args.at(1)).is_none();
    if possible {
        ctx.keys().copy_first_to_second(tx, args.at(1), (target, false))?;
        ctx.keys().delete(tx, 0)?;
    }
    ctx.reply.int(i64::from(possible));
    Ok(())
}

fn object_encoding(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    if ctx.keys().peek(tx, 0, args.at(2)).is_none() {
        ctx.reply.null();
        return Ok(());
    }
    if let Some(elements) = ctx.keys().open_any(tx, 0, args.at(2))? {
        ctx.reply.bulk(elements.encoding().as_bytes());
        return Ok(());
    }
    let Some(entry) = ctx.keys().peek(tx, 0, args.at(2)) else { return Ok(()) };
    let mut text = Vec::new();
    if entry.len() <= 20 {
        entry.copy_to(&mut text);
    }
    ctx.reply.bulk(match entry.len() {
        _ if entry.kind() != Kind::STRING => b"raw",
        1..=20 if parse_i64(&text).is_some() => b"int",
        0..=44 => b"embstr",
        _ => b"raw",
    });
    Ok(())
}

fn object_refcount(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    match ctx.keys().peek(tx, 0, args.at(2)) {
        Some(_) => ctx.reply.int(1),
        None => ctx.reply.null(),
    }
    Ok(())
}

/// What is known of a key's use. For a missing key, replies null.
fn key_use(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> Option<KeyUse> {
    if ctx.keys().peek(tx, 0, args.at(2)).is_none() {
        ctx.reply.null();
        return None;
    }
    Some(ctx.keys().key_use(tx, 0))
}

/// Only a policy that chooses by the last use keeps the times of accesses. Under another policy a read
/// writes no shared memory, and any number of seconds would be false. Redis refuses in the same way
/// under an LFU policy, so clients know this answer.
fn object_idletime(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    match key_use(ctx, args, tx) {
        None => Ok(()),
        Some(KeyUse::IdleMs(ms)) => {
            ctx.reply.int((ms / 1000).cast_signed());
            Ok(())
        }
        Some(KeyUse::Frequency(_)) => Err(CmdError::fixed(
            "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when \
             switching between policies at runtime LRU and LFU data will take some time to adjust.",
        )),
        Some(KeyUse::Unknown) => Err(CmdError::fixed(
            "ERR Reads leave no trace in this store, idle time not tracked. An LRU maxmemory policy \
             tracks it.",
        )),
    }
}

fn object_freq(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    match key_use(ctx, args, tx) {
        None => Ok(()),
        Some(KeyUse::Frequency(counter)) => {
            ctx.reply.int(i64::from(counter));
            Ok(())
        }
        Some(_) => Err(CmdError::fixed(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note \
             that when switching between policies at runtime LRU and LFU data will take some time to \
             adjust.",
        )),
    }
}
