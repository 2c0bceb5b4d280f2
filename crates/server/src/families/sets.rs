//! Sets of strings.

use std::collections::HashSet;
use std::sync::Arc;

use stillpoint::{KeySet, Mode, Tx};
use stillpoint_io::Rng;

use super::elements::{clip_count, distinct, numkeys, random_count, scan};
use crate::args::is;
use crate::config::Db;
use crate::error::{CmdError, CmdResult};
use crate::heap::Heap;
use crate::keyspace::{Contents, Elements, Keyspace, Kind, NewElements, ranges_of};
use crate::resp::Args;
use crate::session::context::Context;
use crate::session::row::{
    ALL, COUNTED, Keyed, ONE, R, RF, SET, TWO, WF, WM, WMF, closing, declared_by, row,
};
use crate::session::spec::Spec;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    closing(row("sadd", -3, WMF, ONE, SET, "1.0.0", Keyed(sadd), "Adds members to a set, which is created if it is missing.")),
    row("scard", 2, RF, ONE, SET, "1.0.0", Keyed(scard), "Returns the number of members of a set."),
    row("sdiff", -2, R, ALL, SET, "1.0.0", Keyed(sdiff), "Returns the members of a set that no other set has."),
    declared_by(row("sdiffstore", -3, WM, ALL, SET, "1.0.0", Keyed(sdiffstore), "Stores the members of a set that no other set has."), declare_store),
    row("sinter", -2, R, ALL, SET, "1.0.0", Keyed(sinter), "Returns the members that all sets have."),
    row("sintercard", -3, R, COUNTED, SET, "7.0.0", Keyed(sintercard), "Returns the number of members that all sets have."),
    declared_by(row("sinterstore", -3, WM, ALL, SET, "1.0.0", Keyed(sinterstore), "Stores the members that all sets have."), declare_store),
    closing(row("sismember", 3, RF, ONE, SET, "1.0.0", Keyed(sismember), "Returns whether a set has a member.")),
    row("smembers", 2, R, ONE, SET, "1.0.0", Keyed(smembers), "Returns the members of a set."),
    closing(row("smismember", -3, RF, ONE, SET, "6.2.0", Keyed(smismember), "Returns which of several members a set has.")),
    row("smove", 4, WF, TWO, SET, "1.0.0", Keyed(smove), "Moves a member from one set to another."),
    closing(row("spop", -2, WF, ONE, SET, "1.0.0", Keyed(spop), "Removes random members of a set and returns them.")),
    row("srandmember", -2, R, ONE, SET, "1.0.0", Keyed(srandmember), "Returns random members of a set."),
    closing(row("srem", -3, WF, ONE, SET, "1.0.0", Keyed(srem), "Removes members of a set.")),
    row("sscan", -3, R, ONE, SET, "2.8.0", Keyed(sscan), "Walks over the members of a set, some at a time."),
    row("sunion", -2, R, ALL, SET, "1.0.0", Keyed(sunion), "Returns the members that any of the sets has."),
    declared_by(row("sunionstore", -3, WM, ALL, SET, "1.0.0", Keyed(sunionstore), "Stores the members that any of the sets has."), declare_store),
];

fn declare_store(args: Args<'_>, db: Db, keyspace: &Keyspace, keys: &mut KeySet) {
    keyspace.declare(keys, db, args.at(1), Mode::Write, 0);
    for key in args.from(2) {
        keyspace.declare(keys, db, key, Mode::Read, 0);
    }
}

fn sadd(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut set = ctx.keys().open_or_new(tx, 0, args.at(1), Kind::SET)?;
    let mut new = 0;
    for member in args.from(2) {
        new += i64::from(set.put(tx, member)?.is_none());
    }
    ctx.keys().close(tx, 0, set)?;
    ctx.reply.int(new);
    Ok(())
}

fn srem(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut removed = 0;
    if let Some(mut set) = ctx.keys().open(tx, 0, args.at(1), Kind::SET)? {
        for member in args.from(2) {
            removed += i64::from(set.remove(tx, member)?.is_some());
        }
        ctx.keys().close(tx, 0, set)?;
    }
    ctx.reply.int(removed);
    Ok(())
}

fn scard(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let len = ctx.keys().read_len(tx, 0, args.at(1), Kind::SET)?;
    ctx.reply.int(len as i64);
    Ok(())
}

fn has(set: &mut Option<Elements>, tx: &mut Tx<'_>, member: &[u8]) -> Result<bool, CmdError> {
    match set {
        Some(set) => Ok(set.get(tx, member)?.is_some()),
        None => Ok(false),
    }
}

fn sismember(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut set = ctx.keys().open_read(tx, 0, args.at(1), Kind::SET)?;
    let has = has(&mut set, tx, args.at(2))?;
    if let Some(set) = set {
        ctx.keys().close(tx, 0, set)?;
    }
    ctx.reply.int(i64::from(has));
    Ok(())
}

fn smismember(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut set = ctx.keys().open_read(tx, 0, args.at(1), Kind::SET)?;
    ctx.reply.array(args.len() - 2);
    for member in args.from(2) {
        let has = has(&mut set, tx, member)?;
        ctx.reply.int(i64::from(has));
    }
    if let Some(set) = set {
        ctx.keys().close(tx, 0, set)?;
    }
    Ok(())
}

fn smembers(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let Some(mut set) = ctx.keys().open_read(tx, 0, args.at(1), Kind::SET)? else {
        ctx.reply.set(0);
        return Ok(());
    };
    ctx.keys().leave_if_long(set.len())?;
    ctx.reply.set(set.len() as usize);
    set.visit_all(tx, &mut |member| ctx.reply.bulk(member))?;
    Ok(())
}

fn smove(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let member = args.at(3);
    if ctx.keys().lookup(tx, 0, args.at(1)).is_none() {
        ctx.reply.int(0);
        return Ok(());
    }
    let source = ctx.keys().open(tx, 0, args.at(1), Kind::SET)?;
    let target = ctx.keys().open_or_new(tx, 1, args.at(2), Kind::SET)?;
    let (Some(mut source), mut target) = (source, target) else { return Ok(()) };
    let is_there = source.get(tx, member)?.is_some();
    if is_there && args.at(1) != args.at(2) {
        source.remove(tx, member)?;
        ctx.keys().save(tx, 0, &mut source)?;
        target.put(tx, member)?;
        ctx.keys().save(tx, 1, &mut target)?;
    }
    ctx.reply.int(i64::from(is_there));
    Ok(())
}

fn spop(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    if args.len() > 3 {
        return Err(CmdError::SYNTAX);
    }
    let rng = ctx.random_numbers(tx)?;
    let count = args.get(2).map(clip_count).transpose()?;
    let Some(mut set) = ctx.keys().open(tx, 0, args.at(1), Kind::SET)? else {
        match count {
            Some(_) => ctx.reply.set(0),
            None => ctx.reply.null(),
        }
        return Ok(());
    };
    let Some(count) = count else {
        let member = set.remove_at(tx, rng.below(set.len()))?;
        ctx.keys().close(tx, 0, set)?;
        ctx.reply.bulk(&member.unwrap_or_default());
        return Ok(());
    };
    let count = count.min(set.len());
    ctx.keys().leave_if_long(count)?;
    ctx.reply.set(count as usize);
    let mut positions = distinct(&rng, set.len(), count);
    positions.sort_unstable();
    let reply = &mut *ctx.reply;
    set.remove_ranges(tx, &ranges_of(&positions), Some(&mut |member| reply.bulk(member)))?;
    ctx.keys().close(tx, 0, set)?;
    Ok(())
}

fn srandmember(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    if args.len() > 3 {
        return Err(CmdError::SYNTAX);
    }
    let rng = Arc::clone(&ctx.shared.config.rng);
    let count = args.get(2).map(random_count).transpose()?;
    let set = ctx.keys().open_read(tx, 0, args.at(1), Kind::SET)?;
    let Some(mut set) = set else {
        match count {
            Some(_) => ctx.reply.array(0),
            None => ctx.reply.null(),
        }
        return Ok(());
    };
    let Some(count) = count else {
        let member = set.at(tx, rng.below(set.len()))?;
        ctx.reply.bulk(&member.unwrap_or_default());
        return Ok(());
    };
    let len = set.len();
    ctx.keys().leave_if_long(if count < 0 {
        count.unsigned_abs()
    } else {
        len.min(count as u64)
    })?;
    if count < 0 {
        ctx.reply.array(count.unsigned_abs() as usize);
        for _ in 0..count.unsigned_abs() {
            let member = set.at(tx, rng.below(len))?;
            ctx.reply.bulk(&member.unwrap_or_default());
            if ctx.reply.overflowed() {
                break;
            }
        }
        return Ok(());
    }
    let positions = distinct(&*rng, len, count as u64);
    ctx.reply.array(positions.len());
    for position in positions {
        let member = set.at(tx, position)?;
        ctx.reply.bulk(&member.unwrap_or_default());
    }
    Ok(())
}

fn sscan(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    scan(ctx, args, tx, Kind::SET, |member| (member, None))
}

/// Opens the sets at arguments `from..to`, whose keys begin at `slot`. A set that is named again is
/// left out. But if it is the first, it comes once more, since a difference is empty then.
fn open_all(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    (from, to, slot): (usize, usize, u32),
) -> Result<Vec<Option<Elements>>, CmdError> {
    let (mut sets, mut named, mut first_again) = (Vec::new(), HashSet::new(), false);
    for (i, slot) in (from..to).zip(slot..) {
        let key = args.at(i);
        let is_first_again = i > from && !first_again && key == args.at(from);
        first_again |= is_first_again;
        if named.insert(key) || is_first_again {
            sets.push(ctx.keys().open_read(tx, slot, key, Kind::SET)?);
        } else {
            ctx.keys().read_kind(tx, slot, key, Kind::SET)?;
        }
    }
    let elements = sets.iter().flatten().map(Elements::len).sum();
    ctx.keys().leave_if_long(elements)?;
    Ok(sets)
}

/// Members that differ from each other.
type Members = Contents;

/// Members that are looked up before the next ones are read.
const PART: u64 = 1024;

/// Members that all sets have, at most `limit`.
fn intersection(
    sets: Vec<Option<Elements>>,
    tx: &mut Tx<'_>,
    heap: &mut Heap,
    limit: usize,
) -> Result<Members, CmdError> {
    let Some(mut sets) = sets.into_iter().collect::<Option<Vec<Elements>>>() else {
        return Ok(Contents::default());
    };
    sets.sort_by_key(Elements::len);
    let mut found = Contents::default();
    let Some((smallest, others)) = sets.split_first_mut() else { return Ok(found) };
    for from in (0..smallest.len()).step_by(PART as usize) {
        let mut part = Contents::default();
        smallest.visit(tx, (from, PART), false, &mut |member| part.push(member))?;
        for member in part.iter() {
            let mut in_all = true;
            for other in &mut *others {
                in_all = in_all && other.get(tx, member)?.is_some();
            }
            if in_all {
                heap.take(member.len());
                heap.check()?;
                found.push(member);
                if found.len() == limit {
                    return Ok(found);
                }
            }
        }
    }
    Ok(found)
}

/// Members of the first set that no other has.
fn difference(
    sets: Vec<Option<Elements>>,
    tx: &mut Tx<'_>,
    heap: &mut Heap,
) -> Result<Members, CmdError> {
    let mut sets = sets.into_iter();
    let (mut found, mut all) = (Contents::default(), Contents::default());
    let Some(Some(mut first)) = sets.next() else { return Ok(found) };
    first.copy_all(tx, heap, &mut |member| all.push(member))?;
    let mut others: Vec<Elements> = sets.flatten().collect();
    for member in all.iter() {
        let mut in_any = false;
        for other in &mut others {
            in_any = in_any || other.get(tx, member)?.is_some();
        }
        if !in_any {
            found.push(member);
        }
    }
    Ok(found)
}

/// Members that any set has.
fn union(
    sets: Vec<Option<Elements>>,
    tx: &mut Tx<'_>,
    heap: &mut Heap,
) -> Result<Members, CmdError> {
    let mut all = Contents::default();
    for mut set in sets.into_iter().flatten() {
        set.copy_all(tx, heap, &mut |member| all.push(member))?;
    }
    let (mut seen, mut found) = (HashSet::with_capacity(all.len()), Contents::default());
    all.iter().filter(|member| seen.insert(*member)).for_each(|member| found.push(member));
    Ok(found)
}

/// An operation on sets.
type Operation = fn(Vec<Option<Elements>>, &mut Tx<'_>, &mut Heap) -> Result<Members, CmdError>;

fn answer(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    operation: Operation,
) -> CmdResult {
    let sets = open_all(ctx, args, tx, (1, args.len(), 0))?;
    let members = operation(sets, tx, &mut ctx.heap())?;
    ctx.reply.set(members.len());
    members.iter().for_each(|member| ctx.reply.bulk(member));
    Ok(())
}

fn store(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    operation: Operation,
) -> CmdResult {
    let sets = open_all(ctx, args, tx, (2, args.len(), 1))?;
    let members = operation(sets, tx, &mut ctx.heap())?;
    ctx.keys().store(tx, 0, &NewElements::of(Kind::SET, &members))?;
    ctx.reply.int(members.len() as i64);
    Ok(())
}

fn all_of(
    sets: Vec<Option<Elements>>,
    tx: &mut Tx<'_>,
    heap: &mut Heap,
) -> Result<Members, CmdError> {
    intersection(sets, tx, heap, 0)
}

fn sinter(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer(ctx, args, tx, all_of)
}

fn sdiff(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer(ctx, args, tx, difference)
}

fn sunion(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer(ctx, args, tx, union)
}

fn sinterstore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    store(ctx, args, tx, all_of)
}

fn sdiffstore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    store(ctx, args, tx, difference)
}

fn sunionstore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    store(ctx, args, tx, union)
}

fn sintercard(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let end = 2 + numkeys(args, 1)?;
    let mut limit = 0;
    let mut i = end;
    while let Some(arg) = args.get(i) {
        let value = args.get(i + 1).filter(|_| is(arg, "LIMIT")).ok_or(CmdError::SYNTAX)?;
        let negative = CmdError::fixed("ERR LIMIT can't be negative");
        let count = crate::resp::parse_i64(value).ok_or(negative.clone())?;
        limit = usize::try_from(count).map_err(|_| negative)?;
        i += 2;
    }
    let sets = open_all(ctx, args, tx, (2, end, 0))?;
    let members = intersection(sets, tx, &mut ctx.heap(), limit)?;
    ctx.reply.int(members.len() as i64);
    Ok(())
}
