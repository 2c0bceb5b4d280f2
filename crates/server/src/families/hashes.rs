//! Hashes: fields with a value each.

use stillpoint::Tx;

use super::elements::{random_pairs, scan};
use super::long_double::LongDouble;
use super::numbers::NOT_FINITE;
use crate::args::{integer, is};
use crate::error::{CmdError, CmdResult};
use crate::keyspace::{Elements, Field, Kind};
use crate::resp::{Args, Reply, parse_i64, push_i64};
use crate::session::context::Context;
use crate::session::row::{HASH, Keyed, ONE, R, RF, WF, WMF, closing, row};
use crate::session::spec::Spec;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    closing(row("hdel", -3, WF, ONE, HASH, "2.0.0", Keyed(hdel), "Deletes fields of a hash.")),
    closing(row("hexists", 3, RF, ONE, HASH, "2.0.0", Keyed(hexists), "Returns whether a hash has a field.")),
    closing(row("hget", 3, RF, ONE, HASH, "2.0.0", Keyed(hget), "Returns the value of a field of a hash.")),
    row("hgetall", 2, R, ONE, HASH, "2.0.0", Keyed(hgetall), "Returns the fields of a hash with their values."),
    row("hgetdel", -5, WF, ONE, HASH, "8.0.0", Keyed(hgetdel), "Returns the values of fields and deletes the fields."),
    closing(row("hincrby", 4, WMF, ONE, HASH, "2.0.0", Keyed(hincrby), "Adds to an integer in a field, which is 0 if it is missing.")),
    closing(row("hincrbyfloat", 4, WMF, ONE, HASH, "2.6.0", Keyed(hincrbyfloat), "Adds to a number in a field, which is 0 if it is missing.")),
    row("hkeys", 2, R, ONE, HASH, "2.0.0", Keyed(hkeys), "Returns the fields of a hash."),
    row("hlen", 2, RF, ONE, HASH, "2.0.0", Keyed(hlen), "Returns the number of fields of a hash."),
    closing(row("hmget", -3, RF, ONE, HASH, "2.0.0", Keyed(hmget), "Returns the values of several fields of a hash.")),
    closing(row("hmset", -4, WMF, ONE, HASH, "2.0.0", Keyed(hmset), "Sets several fields of a hash.")),
    row("hrandfield", -2, R, ONE, HASH, "6.2.0", Keyed(hrandfield), "Returns random fields of a hash."),
    row("hscan", -3, R, ONE, HASH, "2.8.0", Keyed(hscan), "Walks over the fields of a hash, some at a time."),
    closing(row("hset", -4, WMF, ONE, HASH, "2.0.0", Keyed(hset), "Sets fields of a hash, which is created if it is missing.")),
    closing(row("hsetnx", 4, WMF, ONE, HASH, "2.0.0", Keyed(hsetnx), "Sets a field of a hash if the field does not exist.")),
    row("hstrlen", 3, RF, ONE, HASH, "3.2.0", Keyed(hstrlen), "Returns the length of the value of a field."),
    row("hvals", 2, R, ONE, HASH, "2.0.0", Keyed(hvals), "Returns the values of a hash."),
];

/// The content of a field that does not expire.
fn content(name: &[u8], value: &[u8]) -> Vec<u8> {
    Field { name, value, expire_at_ms: None }.content()
}

fn open_read(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
) -> Result<Option<Elements>, CmdError> {
    ctx.keys().open_read(tx, 0, args.at(1), Kind::HASH)
}

/// Ends a command that has read a hash.
fn close(ctx: &mut Context<'_>, tx: &mut Tx<'_>, hash: Option<Elements>) -> CmdResult {
    match hash {
        Some(hash) => Ok(ctx.keys().close(tx, 0, hash)?),
        None => Ok(()),
    }
}

/// The value of a field, if there is one.
fn value_of(
    hash: &mut Option<Elements>,
    tx: &mut Tx<'_>,
    field: &[u8],
) -> Result<Option<Vec<u8>>, CmdError> {
    let Some(hash) = hash else { return Ok(None) };
    Ok(hash.get(tx, field)?.map(|content| Field::of(&content).value.to_vec()))
}

/// Sets fields from argument 2 on; gives how many are new.
fn put_pairs(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    command: &str,
) -> Result<i64, CmdError> {
    if !args.len().is_multiple_of(2) {
        let text = format!("ERR wrong number of arguments for '{command}' command");
        return Err(CmdError::text(text));
    }
    let mut hash = ctx.keys().open_or_new(tx, 0, args.at(1), Kind::HASH)?;
    let mut new = 0;
    for i in (2..args.len()).step_by(2) {
        new += i64::from(hash.put(tx, &content(args.at(i), args.at(i + 1)))?.is_none());
    }
    // As in Redis, a write of the same value counts as a change.
    hash.touch();
    ctx.keys().close(tx, 0, hash)?;
    Ok(new)
}

fn hset(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let new = put_pairs(ctx, args, tx, "hset")?;
    ctx.reply.int(new);
    Ok(())
}

fn hmset(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    put_pairs(ctx, args, tx, "hmset")?;
    ctx.reply.ok();
    Ok(())
}

fn hsetnx(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut hash = ctx.keys().open_or_new(tx, 0, args.at(1), Kind::HASH)?;
    let is_new = hash.get(tx, args.at(2))?.is_none();
    if is_new {
        hash.put(tx, &content(args.at(2), args.at(3)))?;
    }
    ctx.keys().close(tx, 0, hash)?;
    ctx.reply.int(i64::from(is_new));
    Ok(())
}

fn hget(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut hash = open_read(ctx, args, tx)?;
    match value_of(&mut hash, tx, args.at(2))? {
        Some(value) => ctx.reply.bulk(&value),
        None => ctx.reply.null(),
    }
    close(ctx, tx, hash)
}

fn hmget(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut hash = open_read(ctx, args, tx)?;
    ctx.reply.array(args.len() - 2);
    for field in args.from(2) {
        match value_of(&mut hash, tx, field)? {
            Some(value) => ctx.reply.bulk(&value),
            None => ctx.reply.null(),
        }
        if ctx.reply.overflowed() {
            break;
        }
    }
    close(ctx, tx, hash)
}

fn hexists(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut hash = open_read(ctx, args, tx)?;
    let value = value_of(&mut hash, tx, args.at(2))?;
    ctx.reply.int(i64::from(value.is_some()));
    close(ctx, tx, hash)
}

fn hstrlen(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut hash = open_read(ctx, args, tx)?;
    let value = value_of(&mut hash, tx, args.at(2))?;
    ctx.reply.int(value.map_or(0, |value| value.len() as i64));
    Ok(())
}

fn hlen(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let len = ctx.keys().read_len(tx, 0, args.at(1), Kind::HASH)?;
    ctx.reply.int(len as i64);
    Ok(())
}

fn hdel(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut deleted = 0;
    if let Some(mut hash) = ctx.keys().open(tx, 0, args.at(1), Kind::HASH)? {
        for field in args.from(2) {
            deleted += i64::from(hash.remove(tx, field)?.is_some());
        }
        ctx.keys().close(tx, 0, hash)?;
    }
    ctx.reply.int(deleted);
    Ok(())
}

/// The fields behind argument `at`, which is the word FIELDS and their number.
pub(super) fn named_fields(args: Args<'_>, at: usize) -> Result<usize, CmdError> {
    if !is(args.at(at), "FIELDS") {
        return Err(CmdError::fixed(
            "ERR Mandatory argument FIELDS is missing or not at the right position",
        ));
    }
    let count = parse_i64(args.at(at + 1)).and_then(|count| usize::try_from(count).ok());
    let count = count
        .filter(|&count| count > 0)
        .ok_or(CmdError::fixed("ERR Number of fields must be a positive integer"))?;
    if count != args.len() - at - 2 {
        return Err(CmdError::fixed(
            "ERR The `numfields` parameter must match the number of arguments",
        ));
    }
    Ok(at + 2)
}

fn hgetdel(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut hash = ctx.keys().open(tx, 0, args.at(1), Kind::HASH)?;
    let first = named_fields(args, 2)?;
    ctx.reply.array(args.len() - first);
    for field in args.from(first) {
        let removed = match &mut hash {
            Some(hash) => hash.remove(tx, field)?,
            None => None,
        };
        match removed {
            Some(content) => ctx.reply.bulk(Field::of(&content).value),
            None => ctx.reply.null(),
        }
    }
    if let Some(hash) = &mut hash {
        ctx.keys().save(tx, 0, hash)?;
    }
    Ok(())
}

fn hgetall(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let Some(mut hash) = open_read(ctx, args, tx)? else {
        ctx.reply.map(0);
        return Ok(());
    };
    ctx.keys().leave_if_long(hash.len())?;
    let live = hash.len().saturating_sub(hash.expired(tx)?);
    ctx.reply.map(live as usize);
    hash.visit_all(tx, &mut |content| {
        let field = Field::of(content);
        ctx.reply.bulk(field.name);
        ctx.reply.bulk(field.value);
    })?;
    Ok(())
}

fn answer_all(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    part: for<'a> fn(&Field<'a>) -> &'a [u8],
) -> CmdResult {
    let Some(mut hash) = open_read(ctx, args, tx)? else {
        ctx.reply.array(0);
        return Ok(());
    };
    ctx.keys().leave_if_long(hash.len())?;
    let live = hash.len().saturating_sub(hash.expired(tx)?);
    ctx.reply.array(live as usize);
    hash.visit_all(tx, &mut |content| ctx.reply.bulk(part(&Field::of(content))))?;
    Ok(())
}

fn hkeys(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer_all(ctx, args, tx, |field| field.name)
}

fn hvals(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer_all(ctx, args, tx, |field| field.value)
}

fn hincrby(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let by = integer(args.at(3))?;
    let mut hash = ctx.keys().open_or_new(tx, 0, args.at(1), Kind::HASH)?;
    let old = hash.get(tx, args.at(2))?;
    let old = old.as_deref().map(Field::of);
    let number = match old {
        None => 0,
        Some(old) => {
            parse_i64(old.value).ok_or(CmdError::fixed("ERR hash value is not an integer"))?
        }
    };
    let new = number.checked_add(by).ok_or(CmdError::OVERFLOW)?;
    let mut text = Vec::with_capacity(20);
    push_i64(&mut text, new);
    put_number(ctx, args, tx, hash, (&text, old))?;
    ctx.reply.int(new);
    Ok(())
}

/// Puts a number into the field of argument 2, which keeps its expiry.
fn put_number(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    mut hash: Elements,
    (value, old): (&[u8], Option<Field<'_>>),
) -> CmdResult {
    let expire_at_ms = old.and_then(|old| old.expire_at_ms);
    hash.put(tx, &Field { name: args.at(2), value, expire_at_ms }.content())?;
    hash.touch();
    Ok(ctx.keys().close(tx, 0, hash)?)
}

fn hincrbyfloat(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let by = LongDouble::parse(args.at(3)).ok_or(CmdError::NOT_FLOAT)?;
    if by.is_infinite() {
        return Err(CmdError::fixed("ERR value is NaN or Infinity"));
    }
    let mut hash = ctx.keys().open_or_new(tx, 0, args.at(1), Kind::HASH)?;
    let old = hash.get(tx, args.at(2))?;
    let old = old.as_deref().map(Field::of);
    let number = old.map_or(&b"0"[..], |old| old.value);
    let number =
        LongDouble::parse(number).ok_or(CmdError::fixed("ERR hash value is not a float"))?;
    let sum = number.plus(by).ok_or(NOT_FINITE)?.to_string();
    put_number(ctx, args, tx, hash, (sum.as_bytes(), old))?;
    ctx.reply.bulk(sum.as_bytes());
    Ok(())
}

fn hrandfield(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    random_pairs(ctx, args, tx, (Kind::HASH, "WITHVALUES"), |reply: &mut Reply, content, both| {
        let field = Field::of(content);
        if both && reply.is_resp3() {
            reply.array(2);
        }
        reply.bulk(field.name);
        if both {
            reply.bulk(field.value);
        }
    })
}

fn hscan(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    scan(ctx, args, tx, Kind::HASH, |content| {
        let field = Field::of(content);
        (field.name, Some(field.value.to_vec()))
    })
}
