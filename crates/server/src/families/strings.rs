//! Strings: reading and writing whole values and parts of them.

use stillpoint::Tx;

use super::conditions::Condition;
use super::expiry::{Unit, deadline};
use crate::args::{integer, is};
use crate::config::Db;
use crate::error::{CmdError, CmdResult};
use crate::keyspace::{Keyspace, Kind};
use crate::resp::{Args, parse_u64};
use crate::session::context::Context;
use crate::session::row::{
    ALL, Keyed, ONE, PAIRS, R, RF, STRING, TWO, WF, WM, WMF, copying, row, weighed_by,
};
use crate::session::spec::Spec;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("append", 3, WMF, ONE, STRING, "2.0.0", Keyed(append), "Appends to a string, which is created if it is missing."),
    copying(row("get", 2, RF, ONE, STRING, "1.0.0", Keyed(get), "Returns the string at a key.")),
    copying(row("getdel", 2, WF, ONE, STRING, "6.2.0", Keyed(getdel), "Returns the string at a key and deletes the key.")),
    copying(row("getex", -2, WF, ONE, STRING, "6.2.0", Keyed(getex), "Returns the string at a key and changes its expiry.")),
    copying(row("getrange", 4, R, ONE, STRING, "2.4.0", Keyed(getrange), "Returns part of the string at a key.")),
    copying(row("getset", 3, WMF, ONE, STRING, "1.0.0", Keyed(getset), "Sets a string and returns the old one.")),
    weighed_by(row("lcs", -3, R, TWO, STRING, "7.0.0", Keyed(lcs), "Finds the longest common subsequence of two strings."), |_, _, _| LCS_MAX_CELLS),
    copying(row("mget", -2, RF, ALL, STRING, "1.0.0", Keyed(mget), "Returns the strings at several keys.")),
    row("mset", -3, WM, PAIRS, STRING, "1.0.1", Keyed(mset), "Sets several strings at once."),
    row("msetnx", -3, WM, PAIRS, STRING, "1.0.1", Keyed(msetnx), "Sets several strings at once if none of the keys exists."),
    row("psetex", 4, WM, ONE, STRING, "2.6.0", Keyed(psetex), "Sets a string and its expiry in milliseconds."),
    row("set", -3, WM, ONE, STRING, "1.0.0", Keyed(set), "Sets a string, whatever the key held."),
    row("setex", 4, WM, ONE, STRING, "2.0.0", Keyed(setex), "Sets a string and its expiry in seconds."),
    row("setnx", 3, WMF, ONE, STRING, "1.0.0", Keyed(setnx), "Sets a string if the key does not exist."),
    weighed_by(row("setrange", 4, WM, ONE, STRING, "2.2.0", Keyed(setrange), "Overwrites part of a string."), setrange_weight),
    row("strlen", 2, RF, ONE, STRING, "2.2.0", Keyed(strlen), "Returns the length of a string."),
    copying(row("substr", 4, R, ONE, STRING, "1.0.0", Keyed(getrange), "Returns part of the string at a key.")),
];

fn get(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    match ctx.keys().read_kind(tx, 0, args.at(1), Kind::STRING)? {
        None => ctx.reply.null(),
        Some(entry) => ctx.reply.bulk_with(entry.len(), |out| entry.copy_to(out)),
    }
    Ok(())
}

/// Options of `SET` and of `GETEX`.
#[derive(Default)]
struct Options<'a> {
    condition: Condition<'a>,
    keep_ttl: bool,
    get: bool,
    persist: bool,
    expire: Option<(Unit, &'a [u8])>,
}

impl<'a> Options<'a> {
    /// Reads the options from argument `i` on: those of `SET` if `for_set`, else those of `GETEX`.
    fn parse(args: Args<'a>, mut i: usize, for_set: bool) -> Result<Self, CmdError> {
        let mut o = Self::default();
        while let Some(arg) = args.get(i) {
            let other_unit = |unit| o.expire.is_some_and(|(given, _)| given != unit);
            if for_set && let Some(condition) = Condition::parse(args, i, o.condition)? {
                i += usize::from(condition.has_operand());
                o.condition = condition;
            } else if for_set && is(arg, "GET") {
                o.get = true;
            } else if for_set && is(arg, "KEEPTTL") && o.expire.is_none() {
                o.keep_ttl = true;
            } else if !for_set && is(arg, "PERSIST") && o.expire.is_none() {
                o.persist = true;
            } else if let (Some(unit), Some(value)) = (Unit::of_option(arg), args.get(i + 1))
                && !other_unit(unit)
                && !o.keep_ttl
                && !o.persist
            {
                o.expire = Some((unit, value));
                i += 1;
            } else {
                return Err(CmdError::SYNTAX);
            }
            i += 1;
        }
        Ok(o)
    }

    fn deadline(&self, ctx: &Context<'_>, command: &str) -> Result<Option<u64>, CmdError> {
        self.expire.map(|(unit, value)| deadline(ctx, unit, value, command)).transpose()
    }
}

fn set(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    if args.len() == 3 {
        ctx.keys().put(tx, 0, Kind::STRING, None, args.at(2))?;
        ctx.reply.ok();
        return Ok(());
    }
    let options = Options::parse(args, 3, true)?;
    let deadline = options.deadline(ctx, "set")?;
    let mark = ctx.reply.mark();
    let old = ctx.keys().lookup(tx, 0, args.at(1));
    let kept_expiry = old.and_then(|e| e.expire_at_ms);
    if options.condition.compares() && old.is_some_and(|old| old.kind() != Kind::STRING) {
        return Err(CmdError::WRONG_TYPE);
    }
    let holds = options.condition.holds(old.as_ref());
    if options.get {
        match old {
            None => ctx.reply.null(),
            Some(entry) if entry.kind() != Kind::STRING => return Err(CmdError::WRONG_TYPE),
            Some(entry) => ctx.reply.bulk_with(entry.len(), |out| entry.copy_to(out)),
        }
    }
    if !holds {
        if !options.get {
            ctx.reply.truncate(mark);
            ctx.reply.null();
        }
        return Ok(());
    }
    let expire = if options.keep_ttl { kept_expiry } else { deadline };
    ctx.keys().put(tx, 0, Kind::STRING, expire, args.at(2))?;
    if !options.get {
        ctx.reply.ok();
    }
    Ok(())
}

fn setnx(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let missing = ctx.keys().lookup(tx, 0, args.at(1)).is_none();
    if missing {
        ctx.keys().put(tx, 0, Kind::STRING, None, args.at(2))?;
    }
    ctx.reply.int(i64::from(missing));
    Ok(())
}

fn setex(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let at = deadline(ctx, Unit::Seconds, args.at(2), "setex")?;
    ctx.keys().put(tx, 0, Kind::STRING, Some(at), args.at(3))?;
    ctx.reply.ok();
    Ok(())
}

fn psetex(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let at = deadline(ctx, Unit::Milliseconds, args.at(2), "psetex")?;
    ctx.keys().put(tx, 0, Kind::STRING, Some(at), args.at(3))?;
    ctx.reply.ok();
    Ok(())
}

fn getset(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    get(ctx, args, tx)?;
    ctx.keys().put(tx, 0, Kind::STRING, None, args.at(2))?;
    Ok(())
}

fn getdel(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    get(ctx, args, tx)?;
    ctx.keys().delete(tx, 0)?;
    Ok(())
}

fn getex(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let options = Options::parse(args, 2, false)?;
    let old = ctx.keys().lookup(tx, 0, args.at(1)).map(|entry| entry.expire_at_ms);
    get(ctx, args, tx)?;
    let Some(old_expiry) = old else { return Ok(()) };
    // A key without an expiry stays as it is: watchers would see a write as a change.
    if options.expire.is_some() || (options.persist && old_expiry.is_some()) {
        let expire = options.deadline(ctx, "getex")?;
        ctx.keys().set_expiry(tx, 0, expire)?;
    }
    Ok(())
}

fn mget(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    ctx.reply.array(args.len() - 1);
    for (i, key) in args.from(1).enumerate() {
        match ctx.keys().read(tx, i as u32, key) {
            Some(entry) if entry.kind() == Kind::STRING => {
                ctx.reply.bulk_with(entry.len(), |out| entry.copy_to(out));
            }
            _ => ctx.reply.null(),
        }
        if ctx.reply.overflowed() {
            break;
        }
    }
    Ok(())
}

fn put_pairs(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    for pair in 0..(args.len() - 1) / 2 {
        ctx.keys().put(tx, pair as u32, Kind::STRING, None, args.at(2 + 2 * pair))?;
    }
    Ok(())
}

fn check_pairs(args: Args<'_>, command: &str) -> CmdResult {
    if args.len().is_multiple_of(2) {
        let text = format!("ERR wrong number of arguments for '{command}' command");
        return Err(CmdError::text(text));
    }
    Ok(())
}

fn mset(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    check_pairs(args, "mset")?;
    put_pairs(ctx, args, tx)?;
    ctx.reply.ok();
    Ok(())
}

fn msetnx(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    check_pairs(args, "msetnx")?;
    for (i, key) in args.from(1).step_by(2).enumerate() {
        if ctx.keys().lookup(tx, i as u32, key).is_some() {
            ctx.reply.int(0);
            return Ok(());
        }
    }
    put_pairs(ctx, args, tx)?;
    ctx.reply.int(1);
    Ok(())
}

fn strlen(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let entry = ctx.keys().read_kind(tx, 0, args.at(1), Kind::STRING)?;
    ctx.reply.int(entry.map_or(0, |entry| entry.len()) as i64);
    Ok(())
}

fn append(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let tail = args.at(2);
    let Some(entry) = ctx.keys().lookup_kind(tx, 0, args.at(1), Kind::STRING)? else {
        check_len(ctx, tail.len())?;
        ctx.keys().put(tx, 0, Kind::STRING, None, tail)?;
        ctx.reply.int(tail.len() as i64);
        return Ok(());
    };
    let len = entry.len();
    check_len(ctx, len + tail.len())?;
    ctx.keys().patch(tx, 0, len, tail)?;
    ctx.reply.int((len + tail.len()) as i64);
    Ok(())
}

fn check_len(ctx: &Context<'_>, len: usize) -> CmdResult {
    if len as u64 > ctx.local.max_bulk_bytes { Err(CmdError::TOO_LONG) } else { Ok(()) }
}

/// The value may grow up to the offset.
fn setrange_weight(args: Args<'_>, _: Db, _: &Keyspace) -> usize {
    args.get(2).and_then(parse_u64).map_or(0, |offset| (offset >> 10) as usize)
}

fn setrange(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let offset = integer(args.at(2))?;
    let offset = usize::try_from(offset).map_err(|_| CmdError::OFFSET)?;
    let part = args.at(3);
    let old = ctx.keys().lookup_kind(tx, 0, args.at(1), Kind::STRING)?;
    let (is_there, old_len) = (old.is_some(), old.map_or(0, |entry| entry.len()));
    if part.is_empty() {
        ctx.reply.int(old_len as i64);
        return Ok(());
    }
    let end = offset.checked_add(part.len()).ok_or(CmdError::TOO_LONG)?;
    check_len(ctx, end)?;
    if is_there && offset <= old_len {
        ctx.keys().patch(tx, 0, offset, part)?;
        ctx.reply.int(end.max(old_len) as i64);
        return Ok(());
    }
    tx.check_room(end - old_len)?;
    // The bytes between the end of the value and the offset become zeros.
    let mut value = vec![0; end - old_len];
    value[offset - old_len..].copy_from_slice(part);
    if is_there {
        ctx.keys().patch(tx, 0, old_len, &value)?;
    } else {
        ctx.keys().put(tx, 0, Kind::STRING, None, &value)?;
    }
    ctx.reply.int(end as i64);
    Ok(())
}

fn getrange(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let (start, end) = (integer(args.at(2))?, integer(args.at(3))?);
    match ctx.keys().read_kind(tx, 0, args.at(1), Kind::STRING)? {
        None => ctx.reply.bulk(b""),
        Some(entry) => {
            let (from, to) = clip(start, end, entry.len());
            ctx.reply.bulk_with(to - from, |out| entry.copy_range_to(from, to, out));
        }
    }
    Ok(())
}

/// The half-open range that `start..=end` covers of `len` bytes. Negative numbers count from the
/// end.
fn clip(start: i64, end: i64, len: usize) -> (usize, usize) {
    if start < 0 && end < 0 && start > end {
        return (0, 0);
    }
    let len = len as i64;
    let place = |i: i64| {
        if i < 0 { i.saturating_add(len).max(0) } else { i }
    };
    let (from, to) = (place(start), place(end).min(len - 1));
    if from > to || len == 0 { (0, 0) } else { (from as usize, to as usize + 1) }
}

/// Options of `LCS`.
#[derive(Default)]
struct LcsOptions {
    len: bool,
    idx: bool,
    with_match_len: bool,
    min_match_len: i64,
}

/// Most cells of the table that `LCS` fills, of 4 bytes each.
const LCS_MAX_CELLS: usize = 16 << 20;

fn lcs(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for (i, value) in [&mut a, &mut b].into_iter().enumerate() {
        if let Some(entry) = ctx.keys().read(tx, i as u32, args.at(1 + i)) {
            if entry.kind() != Kind::STRING {
                return Err(CmdError::fixed("ERR The specified keys must contain string values"));
            }
            entry.copy_to(value);
        }
    }
    let mut options = LcsOptions::default();
    let mut i = 3;
    while let Some(arg) = args.get(i) {
        if is(arg, "LEN") {
            options.len = true;
        } else if is(arg, "IDX") {
            options.idx = true;
        } else if is(arg, "WITHMATCHLEN") {
            options.with_match_len = true;
        } else if is(arg, "MINMATCHLEN") && args.get(i + 1).is_some() {
            options.min_match_len = integer(args.at(i + 1))?.max(0);
            i += 1;
        } else {
            return Err(CmdError::SYNTAX);
        }
        i += 1;
    }
    if options.len && options.idx {
        return Err(CmdError::fixed(
            "ERR If you want both the length and indexes, please just use IDX.",
        ));
    }
    if (a.len() + 1).saturating_mul(b.len() + 1) > LCS_MAX_CELLS {
        return Err(CmdError::fixed(
            "ERR Insufficient memory, failed allocating transient memory for LCS",
        ));
    }
    lcs_reply(ctx, &options, &a, &b);
    Ok(())
}

/// Lengths of the longest common subsequence of each pair of prefixes, row by row.
fn lcs_table(a: &[u8], b: &[u8]) -> Vec<u32> {
    let width = b.len() + 1;
    let mut table = vec![0u32; (a.len() + 1) * width];
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            table[i * width + j] = if a[i - 1] == b[j - 1] {
                table[(i - 1) * width + j - 1] + 1
            } else {
                table[(i - 1) * width + j].max(table[i * width + j - 1])
            };
        }
    }
    table
}

fn lcs_reply(ctx: &mut Context<'_>, options: &LcsOptions, a: &[u8], b: &[u8]) {
    let width = b.len() + 1;
    let table = lcs_table(a, b);
    let total = table[table.len() - 1];
    if options.len {
        return ctx.reply.int(i64::from(total));
    }
    let (mut i, mut j) = (a.len(), b.len());
    let mut common = Vec::with_capacity(total as usize);
    // Runs of matches, last first: (end in a, end in b, length).
    let mut runs: Vec<(usize, usize, usize)> = Vec::new();
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            common.push(a[i - 1]);
            match runs.last_mut() {
                Some((ea, eb, n)) if *ea - *n == i && *eb - *n == j => *n += 1,
                _ => runs.push((i, j, 1)),
            }
            i -= 1;
            j -= 1;
        } else if table[(i - 1) * width + j] > table[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    if !options.idx {
        common.reverse();
        return ctx.reply.bulk(&common);
    }
    runs.retain(|run| run.2 as i64 >= options.min_match_len);
    ctx.reply.map(2);
    ctx.reply.bulk(b"matches");
    ctx.reply.array(runs.len());
    for (end_a, end_b, n) in runs {
        ctx.reply.array(if options.with_match_len { 3 } else { 2 });
        for end in [end_a, end_b] {
            ctx.reply.array(2);
            ctx.reply.int((end - n) as i64);
            ctx.reply.int(end as i64 - 1);
        }
        if options.with_match_len {
            ctx.reply.int(n as i64);
        }
    }
    ctx.reply.bulk(b"len");
    ctx.reply.int(i64::from(total));
}
