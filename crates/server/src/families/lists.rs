//! Lists: strings in the order in which they were put.

use stillpoint::Tx;

use super::elements::{Popped, bulks, clip, clip_count, numkeys, open_waiting};
use crate::args::{integer, is};
use crate::error::{CmdError, CmdResult};
use crate::keyspace::{Elements, Kind, ranges_of};
use crate::resp::{Args, Reply, parse_i64};
use crate::session::context::Context;
use crate::session::row::{COUNTED, Keyed, LIST, ONE, R, RF, TWO, W, WF, WM, WMF, closing, row};
use crate::session::spec::Spec;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    closing(row("lindex", 3, R, ONE, LIST, "1.0.0", Keyed(lindex), "Returns an element of a list by its position.")),
    row("linsert", 5, WM, ONE, LIST, "2.2.0", Keyed(linsert), "Inserts an element before or after another."),
    row("llen", 2, RF, ONE, LIST, "1.0.0", Keyed(llen), "Returns the number of elements of a list."),
    row("lmove", 5, WM, TWO, LIST, "6.2.0", Keyed(lmove), "Moves an element from an end of a list to an end of another."),
    row("lmpop", -4, W, COUNTED, LIST, "7.0.0", Keyed(lmpop), "Removes elements from the first list that has some."),
    closing(row("lpop", -2, WF, ONE, LIST, "1.0.0", Keyed(lpop), "Removes the first elements of a list and returns them.")),
    row("lpos", -3, R, ONE, LIST, "6.0.6", Keyed(lpos), "Returns the positions of an element of a list."),
    closing(row("lpush", -3, WMF, ONE, LIST, "1.0.0", Keyed(lpush), "Puts elements before a list, which is created if it is missing.")),
    row("lpushx", -3, WMF, ONE, LIST, "2.2.0", Keyed(lpushx), "Puts elements before a list that exists."),
    row("lrange", 4, R, ONE, LIST, "1.0.0", Keyed(lrange), "Returns a range of a list."),
    row("lrem", 4, W, ONE, LIST, "1.0.0", Keyed(lrem), "Removes elements of a value."),
    row("lset", 4, WM, ONE, LIST, "1.0.0", Keyed(lset), "Replaces an element of a list."),
    row("ltrim", 4, W, ONE, LIST, "1.0.0", Keyed(ltrim), "Keeps a range of a list."),
    closing(row("rpop", -2, WF, ONE, LIST, "1.0.0", Keyed(rpop), "Removes the last elements of a list and returns them.")),
    row("rpoplpush", 3, WM, TWO, LIST, "1.2.0", Keyed(rpoplpush), "Moves the last element of a list to the front of another."),
    closing(row("rpush", -3, WMF, ONE, LIST, "1.0.0", Keyed(rpush), "Puts elements behind a list, which is created if it is missing.")),
    row("rpushx", -3, WMF, ONE, LIST, "2.2.0", Keyed(rpushx), "Puts elements behind a list that exists."),
];

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Left,
    Right,
}

impl End {
    pub(super) fn parse(arg: &[u8]) -> Result<Self, CmdError> {
        match () {
            () if is(arg, "LEFT") => Ok(Self::Left),
            () if is(arg, "RIGHT") => Ok(Self::Right),
            () => Err(CmdError::SYNTAX),
        }
    }
}

fn put_at(list: &mut Elements, tx: &mut Tx<'_>, end: End, element: &[u8]) -> Result<(), CmdError> {
    let position = if end == End::Left { 0 } else { list.len() };
    Ok(list.insert_at(tx, position, element)?)
}

/// Takes an element off an end of a list that is not empty.
fn take(list: &mut Elements, tx: &mut Tx<'_>, end: End) -> Result<Vec<u8>, CmdError> {
    let position = if end == End::Left { 0 } else { list.len().saturating_sub(1) };
    Ok(list.remove_at(tx, position)?.unwrap_or_default())
}

/// Takes up to `count` elements off an end.
pub(super) fn take_some(
    list: &mut Elements,
    tx: &mut Tx<'_>,
    end: End,
    count: u64,
) -> Result<Vec<Vec<u8>>, CmdError> {
    if count == 1 && list.len() > 0 {
        return Ok(vec![take(list, tx, end)?]);
    }
    Ok(list.take_end(tx, end == End::Right, count)?)
}

fn push(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>, end: End) -> CmdResult {
    let mut list = ctx.keys().open_or_new(tx, 0, args.at(1), Kind::LIST)?;
    for element in args.from(2) {
        put_at(&mut list, tx, end, element)?;
    }
    let len = list.len();
    ctx.keys().close(tx, 0, list)?;
    ctx.reply.int(len as i64);
    Ok(())
}

fn lpush(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    push(ctx, args, tx, End::Left)
}

fn rpush(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    push(ctx, args, tx, End::Right)
}

fn push_if_there(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>, end: End) -> CmdResult {
    if ctx.keys().lookup_kind(tx, 0, args.at(1), Kind::LIST)?.is_none() {
        ctx.reply.int(0);
        return Ok(());
    }
    push(ctx, args, tx, end)
}

fn lpushx(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    push_if_there(ctx, args, tx, End::Left)
}

fn rpushx(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    push_if_there(ctx, args, tx, End::Right)
}

fn pop(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    end: End,
    command: &str,
) -> CmdResult {
    if args.len() > 3 {
        let text = format!("ERR wrong number of arguments for '{command}' command");
        return Err(CmdError::text(text));
    }
    let count = args.get(2).map(clip_count).transpose()?;
    let Some(mut list) = ctx.keys().open(tx, 0, args.at(1), Kind::LIST)? else {
        match count {
            Some(_) => ctx.reply.null_array(),
            None => ctx.reply.null(),
        }
        return Ok(());
    };
    ctx.keys().leave_if_long(count.unwrap_or(1).min(list.len()))?;
    let taken = take_some(&mut list, tx, end, count.unwrap_or(1))?;
    ctx.keys().close(tx, 0, list)?;
    match (count, &taken[..]) {
        (None, [only]) => ctx.reply.bulk(only),
        _ => bulks(ctx.reply, &taken),
    }
    Ok(())
}

fn lpop(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    pop(ctx, args, tx, End::Left, "lpop")
}

fn rpop(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    pop(ctx, args, tx, End::Right, "rpop")
}

fn llen(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let len = ctx.keys().read_len(tx, 0, args.at(1), Kind::LIST)?;
    ctx.reply.int(len as i64);
    Ok(())
}

/// The position that an index means, if the list has one. Negative numbers count from the end.
fn position(index: i64, len: u64) -> Option<u64> {
    let position =
        if index < 0 { len.checked_sub(index.unsigned_abs())? } else { index.unsigned_abs() };
    Some(position).filter(|&position| position < len)
}

fn lindex(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let Some(mut list) = ctx.keys().open_read(tx, 0, args.at(1), Kind::LIST)? else {
        ctx.reply.null();
        return Ok(());
    };
    let found = match position(integer(args.at(2))?, list.len()) {
        Some(position) => list.at(tx, position)?,
        None => None,
    };
    ctx.keys().close(tx, 0, list)?;
    match found {
        Some(element) => ctx.reply.bulk(&element),
        None => ctx.reply.null(),
    }
    Ok(())
}

fn lset(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let list = ctx.keys().open(tx, 0, args.at(1), Kind::LIST)?;
    let mut list = list.ok_or(CmdError::NO_KEY)?;
    let position = position(integer(args.at(2))?, list.len())
        .ok_or(CmdError::fixed("ERR index out of range"))?;
    list.replace_at(tx, position, args.at(3))?;
    ctx.keys().save(tx, 0, &mut list)?;
    ctx.reply.ok();
    Ok(())
}

fn lrange(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let (start, end) = (integer(args.at(2))?, integer(args.at(3))?);
    let Some(mut list) = ctx.keys().open_read(tx, 0, args.at(1), Kind::LIST)? else {
        ctx.reply.array(0);
        return Ok(());
    };
    let (from, to) = clip(start, end, list.len());
    ctx.keys().leave_if_long(to - from)?;
    ctx.reply.array((to - from) as usize);
    list.visit(tx, (from, to - from), false, &mut |element| ctx.reply.bulk(element))?;
    Ok(())
}

fn ltrim(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let (start, end) = (integer(args.at(2))?, integer(args.at(3))?);
    if let Some(mut list) = ctx.keys().open(tx, 0, args.at(1), Kind::LIST)? {
        let (from, to) = clip(start, end, list.len());
        if from == to {
            ctx.keys().delete(tx, 0)?;
        } else {
            let outside = [0..from, to..list.len()];
            let outside: Vec<_> = outside.into_iter().filter(|range| !range.is_empty()).collect();
            list.remove_ranges(tx, &outside, None)?;
            // Redis takes any LTRIM for a change.
            list.touch();
            ctx.keys().save(tx, 0, &mut list)?;
        }
    }
    ctx.reply.ok();
    Ok(())
}

/// Elements that an event loop compares. For more it leaves the command to another thread.
const COMPARED_MAX: u64 = 8192;

/// A search for elements of a value.
#[derive(Clone, Copy, Debug)]
struct Sought<'a> {
    element: &'a [u8],
    /// Whether the search begins at the end.
    back: bool,
    /// Elements that are looked at, at most.
    looked_at: u64,
    /// Elements that are wanted, at most.
    most: usize,
}

impl Sought<'_> {
    /// The positions of the elements, in the order in which they are met.
    fn positions(
        &self,
        ctx: &mut Context<'_>,
        list: &mut Elements,
        tx: &mut Tx<'_>,
    ) -> Result<Vec<u64>, CmdError> {
        let looked_at = self.looked_at.min(list.len());
        let mut found = Vec::new();
        let mut at = if self.back { list.len().saturating_sub(1) } else { 0 };
        let mut seen = 0;
        let mut limit = COMPARED_MAX.min(looked_at);
        loop {
            list.visit_while(tx, (at, limit.saturating_sub(seen)), self.back, &mut |other| {
                if other == self.element {
                    found.push(at);
                }
                seen += 1;
                at = if self.back { at.wrapping_sub(1) } else { at + 1 };
                found.len() < self.most
            })?;
            if limit == looked_at || found.len() >= self.most {
                return Ok(found);
            }
            ctx.keys().leave_if_long(looked_at)?;
            limit = looked_at;
        }
    }
}

fn lrem(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let count = integer(args.at(2))?;
    let Some(mut list) = ctx.keys().open(tx, 0, args.at(1), Kind::LIST)? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let most = usize::try_from(count.unsigned_abs()).ok().filter(|&most| most > 0);
    let (back, most) = (count < 0, most.unwrap_or(usize::MAX));
    let sought = Sought { element: args.at(3), back, looked_at: u64::MAX, most };
    let mut found = sought.positions(ctx, &mut list, tx)?;
    found.sort_unstable();
    list.remove_ranges(tx, &ranges_of(&found), None)?;
    ctx.keys().save(tx, 0, &mut list)?;
    ctx.reply.int(found.len() as i64);
    Ok(())
}

fn linsert(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let behind = match args.at(2) {
        word if is(word, "AFTER") => 1,
        word if is(word, "BEFORE") => 0,
        _ => return Err(CmdError::SYNTAX),
    };
    let Some(mut list) = ctx.keys().open(tx, 0, args.at(1), Kind::LIST)? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let sought = Sought { element: args.at(3), back: false, looked_at: u64::MAX, most: 1 };
    let found = sought.positions(ctx, &mut list, tx)?;
    let Some(pivot) = found.first() else {
        ctx.reply.int(-1);
        return Ok(());
    };
    list.insert_at(tx, pivot + behind, args.at(4))?;
    ctx.keys().save(tx, 0, &mut list)?;
    ctx.reply.int(list.len() as i64);
    Ok(())
}

/// Options of `LPOS`.
struct PosOptions {
    rank: i64,
    count: Option<u64>,
    looked_at: u64,
}

impl PosOptions {
    fn parse(args: Args<'_>) -> Result<Self, CmdError> {
        let mut options = Self { rank: 1, count: None, looked_at: u64::MAX };
        let not_negative = |value: &[u8], error: &'static str| {
            let number = parse_i64(value).and_then(|number| u64::try_from(number).ok());
            number.ok_or(CmdError::fixed(error))
        };
        let mut i = 3;
        while let Some(arg) = args.get(i) {
            let value = args.get(i + 1).ok_or(CmdError::SYNTAX)?;
            if is(arg, "RANK") {
                options.rank = integer(value)?;
                match options.rank {
                    // Redis 7.0 cannot negate the smallest integer, and finds the last element.
                    i64::MIN => options.rank = -1,
                    0 => return Err(RANK_ZERO),
                    _ => {}
                }
            } else if is(arg, "COUNT") {
                options.count = Some(not_negative(value, "ERR COUNT can't be negative")?);
            } else if is(arg, "MAXLEN") {
                let most = not_negative(value, "ERR MAXLEN can't be negative")?;
                options.looked_at = if most == 0 { u64::MAX } else { most };
            } else {
                return Err(CmdError::SYNTAX);
            }
            i += 2;
        }
        Ok(options)
    }
}

const RANK_ZERO: CmdError = CmdError::fixed(
    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use \
     negative to start from the end of the list",
);

fn lpos(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let options = PosOptions::parse(args)?;
    let list = ctx.keys().open_read(tx, 0, args.at(1), Kind::LIST)?;
    let skipped = usize::try_from(options.rank.unsigned_abs() - 1).unwrap_or(usize::MAX);
    let wanted = match options.count {
        None => 1,
        Some(0) => usize::MAX,
        Some(count) => usize::try_from(count).unwrap_or(usize::MAX),
    };
    let found = match list {
        None => Vec::new(),
        Some(mut list) => {
            let (back, looked_at) = (options.rank < 0, options.looked_at);
            let most = skipped.saturating_add(wanted);
            let sought = Sought { element: args.at(2), back, looked_at, most };
            sought.positions(ctx, &mut list, tx)?
        }
    };
    let found = found.into_iter().skip(skipped);
    if options.count.is_none() {
        match { found }.next() {
            Some(position) => ctx.reply.int(position as i64),
            None => ctx.reply.null(),
        }
        return Ok(());
    }
    let found: Vec<u64> = found.collect();
    ctx.reply.array(found.len());
    found.iter().for_each(|&position| ctx.reply.int(position as i64));
    Ok(())
}

/// Moves an element from the first list to the second, and answers it; false if there is none.
pub(super) fn move_between(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    ends: (End, End),
) -> Result<bool, CmdError> {
    let opened = open_waiting(ctx, tx, (0, args.at(1)), Kind::LIST)?;
    let Some(mut source) = opened else { return Ok(false) };
    let keys = [(0, args.at(1)), (1, args.at(2))];
    let element = move_element(ctx, tx, &mut source, keys, ends)?;
    if source.len() > 0 {
        ctx.keys().wake_next(tx, 0, None);
    }
    ctx.reply.bulk(&element);
    Ok(true)
}

/// Moves an element of the list at the first of two keys to the list at the second. Each key comes with its number
/// among those of the command.
pub(super) fn move_element(
    ctx: &mut Context<'_>,
    tx: &mut Tx<'_>,
    source: &mut Elements,
    [(at, key), (target_at, target_key)]: [(u32, &[u8]); 2],
    (from, to): (End, End),
) -> Result<Vec<u8>, CmdError> {
    if key == target_key {
        let element = take(source, tx, from)?;
        put_at(source, tx, to, &element)?;
        ctx.keys().save(tx, at, source)?;
        return Ok(element);
    }
    let mut target = ctx.keys().open_or_new(tx, target_at, target_key, Kind::LIST)?;
    let element = take(source, tx, from)?;
    put_at(&mut target, tx, to, &element)?;
    ctx.keys().save(tx, at, source)?;
    ctx.keys().save(tx, target_at, &mut target)?;
    Ok(element)
}

fn lmove(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let ends = (End::parse(args.at(3))?, End::parse(args.at(4))?);
    move_or_null(ctx, args, tx, ends)
}

fn rpoplpush(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    move_or_null(ctx, args, tx, (End::Right, End::Left))
}

fn move_or_null(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    ends: (End, End),
) -> CmdResult {
    if !move_between(ctx, args, tx, ends)? {
        ctx.reply.null();
    }
    Ok(())
}

fn lmpop(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let (count, end, most) = pop_options(args, 1, End::parse)?;
    match pop_first(ctx, args, tx, (2, count), (end, most))? {
        Some((key, taken)) => answer_popped(ctx.reply, args.at(key), &taken),
        None => ctx.reply.null_array(),
    }
    Ok(())
}

/// Reads the arguments of `LMPOP` and similar commands, from the number of keys at argument `at`
/// on. Returns that number, the end of the list, and the most elements wanted.
pub(super) fn pop_options<E>(
    args: Args<'_>,
    at: usize,
    parse_end: fn(&[u8]) -> Result<E, CmdError>,
) -> Result<(usize, E, u64), CmdError> {
    let count = match numkeys(args, at) {
        Ok(count) => count,
        Err(error) if parse_i64(args.at(at)).is_none_or(|count| count < 1) => return Err(error),
        // The number of keys leaves no argument for the end of the list.
        Err(_) => return Err(CmdError::SYNTAX),
    };
    let end = parse_end(args.get(at + 1 + count).ok_or(CmdError::SYNTAX)?)?;
    let mut most = None;
    let mut i = at + 2 + count;
    while let Some(arg) = args.get(i) {
        let value = args.get(i + 1).filter(|_| is(arg, "COUNT") && most.is_none());
        let number = value.ok_or(CmdError::SYNTAX).map(parse_i64)?;
        let number = number.and_then(|number| u64::try_from(number).ok()).filter(|&n| n > 0);
        most = Some(number.ok_or(CmdError::fixed("ERR count should be greater than 0"))?);
        i += 2;
    }
    Ok((count, end, most.unwrap_or(1)))
}

/// Takes elements off the first of `count` lists, from argument `first` on, that has elements. Also
/// returns the argument of the list's key.
pub(super) fn pop_first(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    (first, count): (usize, usize),
    (end, most): (End, u64),
) -> Result<Popped, CmdError> {
    for slot in 0..count as u32 {
        let at = first + slot as usize;
        let Some(mut list) = open_waiting(ctx, tx, (slot, args.at(at)), Kind::LIST)? else {
            continue;
        };
        ctx.keys().leave_if_long(most.min(list.len()))?;
        let taken = take_some(&mut list, tx, end, most)?;
        ctx.keys().save(tx, slot, &mut list)?;
        if list.len() > 0 {
            ctx.keys().wake_next(tx, slot, None);
        }
        return Ok(Some((at, taken)));
    }
    Ok(None)
}

pub(super) fn answer_popped(reply: &mut Reply, key: &[u8], taken: &[Vec<u8>]) {
    reply.array(2);
    reply.bulk(key);
    bulks(reply, taken);
}
