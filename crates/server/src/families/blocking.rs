//! Commands that wait until a list or a sorted set has elements.
//!
//! A command that finds nothing waits for its keys ([`Context::wait_for_keys`]). A command that
//! makes one of these keys wakes the client that has waited longest. The command of that client
//! runs again, as a transaction of its own.

use stillpoint::Tx;

use super::lists::{End, answer_popped, move_between, pop_first, pop_options};
use super::sorted_sets;
use crate::error::{CmdError, CmdResult};
use crate::resp::{Args, parse_bound};
use crate::session::context::Context;
use crate::session::row::{
    COUNTED_THIRD, Keyed, LIST, SORTED_SET, TIMED, TWO, W, WF, WM, blocking, row,
};
use crate::session::spec::Spec;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    blocking(row("blmove", 6, WM, TWO, LIST, "6.2.0", Keyed(blmove), "As LMOVE, and waits for an element.")),
    blocking(row("blmpop", -5, W, COUNTED_THIRD, LIST, "7.0.0", Keyed(blmpop), "As LMPOP, and waits for an element.")),
    blocking(row("blpop", -3, W, TIMED, LIST, "2.0.0", Keyed(blpop), "Removes the first element of the first list that has one, and waits for it.")),
    blocking(row("brpop", -3, W, TIMED, LIST, "2.0.0", Keyed(brpop), "Removes the last element of the first list that has one, and waits for it.")),
    blocking(row("brpoplpush", 4, WM, TWO, LIST, "2.2.0", Keyed(brpoplpush), "As RPOPLPUSH, and waits for an element.")),
    blocking(row("bzmpop", -5, W, COUNTED_THIRD, SORTED_SET, "7.0.0", Keyed(bzmpop), "As ZMPOP, and waits for a member.")),
    blocking(row("bzpopmax", -3, WF, TIMED, SORTED_SET, "5.0.0", Keyed(bzpopmax), "Removes the member with the highest score of the first sorted set that has one, and waits for it.")),
    blocking(row("bzpopmin", -3, WF, TIMED, SORTED_SET, "5.0.0", Keyed(bzpopmin), "Removes the member with the lowest score of the first sorted set that has one, and waits for it.")),
];

/// Reads a timeout in seconds; gives milliseconds.
fn timeout(ctx: &Context<'_>, arg: &[u8]) -> Result<u64, CmdError> {
    // As in Redis, a number may be beyond 64 bits, and no white space may come first.
    let is_number = arg.first().is_some_and(|byte| !byte.is_ascii_whitespace());
    let seconds = parse_bound(arg)
        .filter(|_| is_number)
        .ok_or(CmdError::fixed("ERR timeout is not a float or out of range"))?;
    let ms = (seconds * 1000.0).ceil();
    // Redis's arithmetic makes a number beyond 64 bits negative, so the reply is the error for a
    // negative timeout.
    if ms < 0.0 || ms >= i64::MAX as f64 {
        return Err(CmdError::fixed("ERR timeout is negative"));
    }
    let ms = ms as u64;
    if ms > i64::MAX.cast_unsigned() - ctx.now_ms() {
        return Err(CmdError::fixed("ERR timeout is out of range"));
    }
    Ok(ms)
}

/// Waits for the first `count` keys, or answers that the command found nothing.
fn wait(ctx: &mut Context<'_>, tx: &mut Tx<'_>, count: usize, timeout_ms: u64) -> CmdResult {
    if !ctx.wait_for_keys(tx, (0, count as u32), timeout_ms)? {
        ctx.reply.null_array();
    }
    Ok(())
}

fn pop(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>, end: End) -> CmdResult {
    let (timeout_ms, count) = (timeout(ctx, args.last())?, args.len() - 2);
    match pop_first(ctx, args, tx, (1, count), (end, 1))? {
        Some((key, taken)) => {
            ctx.reply.array(2);
            ctx.reply.bulk(args.at(key));
            taken.iter().for_each(|element| ctx.reply.bulk(element));
            Ok(())
        }
        None => wait(ctx, tx, count, timeout_ms),
    }
}

fn blpop(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    pop(ctx, args, tx, End::Left)
}

fn brpop(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    pop(ctx, args, tx, End::Right)
}

fn blmpop(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let timeout_ms = timeout(ctx, args.at(1))?;
    let (count, end, most) = pop_options(args, 2, End::parse)?;
    match pop_first(ctx, args, tx, (3, count), (end, most))? {
        Some((key, taken)) => {
            answer_popped(ctx, args.at(key), &taken);
            Ok(())
        }
        None => wait(ctx, tx, count, timeout_ms),
    }
}

fn move_waiting(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    ends: (End, End),
    timeout_ms: u64,
) -> CmdResult {
    if move_between(ctx, args, tx, ends)? {
        return Ok(());
    }
    let may_wait = ctx.may_wait;
    match ctx.wait_for_keys(tx, (0, 1), timeout_ms)? {
        true => {}
        false if may_wait => ctx.reply.null_array(),
        false => ctx.reply.null(),
    }
    Ok(())
}

fn blmove(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let ends = (End::parse(args.at(3))?, End::parse(args.at(4))?);
    let timeout_ms = timeout(ctx, args.at(5))?;
    move_waiting(ctx, args, tx, ends, timeout_ms)
}

fn brpoplpush(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let timeout_ms = timeout(ctx, args.at(3))?;
    move_waiting(ctx, args, tx, (End::Right, End::Left), timeout_ms)
}

fn pop_scored(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>, highest: bool) -> CmdResult {
    let (timeout_ms, count) = (timeout(ctx, args.last())?, args.len() - 2);
    match sorted_sets::pop_first(ctx, args, tx, (1, count), (highest, 1))? {
        Some((key, taken)) => {
            ctx.reply.array(3);
            ctx.reply.bulk(args.at(key));
            taken.iter().for_each(|element| sorted_sets::answer_pair(ctx.reply, element));
            Ok(())
        }
        None => wait(ctx, tx, count, timeout_ms),
    }
}

fn bzpopmin(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    pop_scored(ctx, args, tx, false)
}

fn bzpopmax(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    pop_scored(ctx, args, tx, true)
}

fn bzmpop(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let timeout_ms = timeout(ctx, args.at(1))?;
    let (count, highest, most) = pop_options(args, 2, sorted_sets::parse_end)?;
    match sorted_sets::pop_first(ctx, args, tx, (3, count), (highest, most))? {
        Some((key, taken)) => {
            sorted_sets::answer_popped(ctx, args.at(key), &taken);
            Ok(())
        }
        None => wait(ctx, tx, count, timeout_ms),
    }
}
