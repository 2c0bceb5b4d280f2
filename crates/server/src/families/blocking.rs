//! Commands that wait until a list or a sorted set has elements.
//!
//! A command that finds nothing waits for its keys ([`Context::wait_for_keys`]). The transaction that
//! makes one of these keys takes elements for the clients that wait, at its end ([`serve`]).

use std::sync::Arc;

use stillpoint::Tx;

use super::lists::{
    End, answer_popped, move_between, move_element, pop_first, pop_options, take_some,
};
use super::sorted_sets;
use crate::error::{CmdError, CmdResult};
use crate::keyspace::{Claim, Kind, NextWaiter, ReadyKey, Wanted};
use crate::resp::{Args, Reply, parse_bound};
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

/// Waits for the `count` keys from argument `first` on, or answers that the command found nothing.
fn wait(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    keys: (usize, usize),
    (wanted, timeout_ms): (Wanted, u64),
) -> CmdResult {
    if !ctx.wait_for_keys(tx, args, keys, (wanted, timeout_ms))? {
        ctx.reply.null_array();
    }
    Ok(())
}

fn pop(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>, end: End) -> CmdResult {
    let (timeout_ms, count) = (timeout(ctx, args.last())?, args.len() - 2);
    match pop_first(ctx, args, tx, (1, count), (end, 1))? {
        Some((key, taken)) => {
            answer_element(ctx.reply, args.at(key), &taken);
            Ok(())
        }
        None => {
            let wanted = Wanted::Elements { from_right: end == End::Right, most: None };
            wait(ctx, args, tx, (1, count), (wanted, timeout_ms))
        }
    }
}

fn answer_element(reply: &mut Reply, key: &[u8], taken: &[Vec<u8>]) {
    reply.array(2);
    reply.bulk(key);
    taken.iter().for_each(|element| reply.bulk(element));
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
            answer_popped(ctx.reply, args.at(key), &taken);
            Ok(())
        }
        None => {
            let wanted = Wanted::Elements { from_right: end == End::Right, most: Some(most) };
            wait(ctx, args, tx, (3, count), (wanted, timeout_ms))
        }
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
    let [from_right, to_right] = [ends.0, ends.1].map(|end| end == End::Right);
    let wanted = Wanted::Move { from_right, to_right, target: args.at(2).into() };
    match ctx.wait_for_keys(tx, args, (1, 1), (wanted, timeout_ms))? {
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
            answer_member(ctx.reply, args.at(key), &taken);
            Ok(())
        }
        None => {
            let wanted = Wanted::Members { highest, most: None };
            wait(ctx, args, tx, (1, count), (wanted, timeout_ms))
        }
    }
}

fn answer_member(reply: &mut Reply, key: &[u8], taken: &[Vec<u8>]) {
    reply.array(3);
    reply.bulk(key);
    taken.iter().for_each(|element| sorted_sets::answer_pair(reply, element));
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
            sorted_sets::answer_popped(ctx.reply, args.at(key), &taken);
            Ok(())
        }
        None => {
            let wanted = Wanted::Members { highest, most: Some(most) };
            wait(ctx, args, tx, (3, count), (wanted, timeout_ms))
        }
    }
}

/// Serves the clients that wait for what the transaction has made. Keys come in the order in which they were made,
/// and the clients of each in the order in which they came. Their replies leave once the transaction has committed.
///
/// # Errors
/// The store refuses a write. The command is to run again, with further keys or beside the event loop.
pub(super) fn serve(ctx: &mut Context<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let (db, first_slot) = (ctx.client.db, ctx.first_slot);
    ctx.first_slot = 0;
    let mut done = Ok(());
    while done.is_ok()
        && let Some(ready) = ctx.local.keys.serving.next_ready()
    {
        ctx.client.db = ready.db;
        done = serve_key(ctx, tx, ready);
    }
    (ctx.client.db, ctx.first_slot) = (db, first_slot);
    done
}

fn serve_key(ctx: &mut Context<'_>, tx: &mut Tx<'_>, ready: ReadyKey) -> CmdResult {
    let waiters = Arc::clone(&ctx.shared.keyspace.waiters);
    let slot = ready.slot.0;
    if !ctx.local.keys.serving.is_on() {
        return leave_to_waiters(ctx, tx, slot);
    }
    let mut last = 0;
    while ctx.keys().has_kind(tx, slot, ready.kind) {
        let claim = match waiters.claim(ready.hash, last, ready.kind == Kind::LIST) {
            NextWaiter::Nobody => return Ok(()),
            NextWaiter::Awake => {
                ctx.keys().wake_next(tx, slot, None);
                return Ok(());
            }
            NextWaiter::Claimed(claim) => claim,
        };
        last = claim.place();
        let target = match &claim.wanted {
            Wanted::Move { target, .. } if *target == claim.key => Some(slot),
            Wanted::Move { target, .. } => ctx.keys().target_for_waiters(target).map(|it| it.0),
            Wanted::Elements { .. } | Wanted::Members { .. } => Some(slot),
        };
        let Some(target) = target else {
            drop(claim);
            return leave_to_waiters(ctx, tx, slot);
        };
        let mut reply = Reply::new(usize::MAX);
        reply.set_resp3(claim.resp3);
        let reply = match serve_one(ctx, tx, (slot, target), &claim, &mut reply) {
            Ok(()) => Ok(reply.into_bytes()),
            // The client gets the error, and the next one the element.
            Err(error @ CmdError::Reply(_)) => Err(error),
            Err(error) => return Err(error),
        };
        ctx.local.keys.serving.note_reply(claim, reply);
    }
    Ok(())
}

/// Ends a run whose transaction has not declared what it needs to serve somebody. The command runs again, or the
/// clients that wait are woken.
fn leave_to_waiters(ctx: &mut Context<'_>, tx: &mut Tx<'_>, slot: u32) -> CmdResult {
    if ctx.local.keys.serving.may_run_again() {
        return Err(CmdError::NEEDS_KEYS);
    }
    ctx.keys().wake_next(tx, slot, None);
    Ok(())
}

/// Takes what a client wants off the collection at a slot, and writes its reply.
fn serve_one(
    ctx: &mut Context<'_>,
    tx: &mut Tx<'_>,
    (slot, target_slot): (u32, u32),
    claim: &Claim,
    reply: &mut Reply,
) -> CmdResult {
    let end_at = |is_right: bool| if is_right { End::Right } else { End::Left };
    let (key, is_of_list) = (&*claim.key, !matches!(claim.wanted, Wanted::Members { .. }));
    let kind = if is_of_list { Kind::LIST } else { Kind::SORTED_SET };
    let opened = ctx.keys().open(tx, slot, key, kind)?;
    let mut elements = opened.ok_or(CmdError::NO_KEY)?;
    let (Wanted::Elements { most, .. } | Wanted::Members { most, .. }) = claim.wanted else {
        let Wanted::Move { from_right, to_right, target } = &claim.wanted else { return Ok(()) };
        let keys = [(slot, key), (target_slot, &**target)];
        let ends = (end_at(*from_right), end_at(*to_right));
        let element = move_element(ctx, tx, &mut elements, keys, ends)?;
        reply.bulk(&element);
        return Ok(());
    };
    let count = most.unwrap_or(1).min(elements.len());
    ctx.keys().leave_if_long(count)?;
    let taken = match claim.wanted {
        Wanted::Members { highest, .. } => elements.take_end(tx, highest, count)?,
        Wanted::Elements { from_right, .. } => {
            take_some(&mut elements, tx, end_at(from_right), count)?
        }
        Wanted::Move { .. } => Vec::new(),
    };
    ctx.keys().save(tx, slot, &mut elements)?;
    match (is_of_list, most) {
        (true, None) => answer_element(reply, key, &taken),
        (true, Some(_)) => answer_popped(reply, key, &taken),
        (false, None) => answer_member(reply, key, &taken),
        (false, Some(_)) => sorted_sets::answer_popped(reply, key, &taken),
    }
    Ok(())
}
