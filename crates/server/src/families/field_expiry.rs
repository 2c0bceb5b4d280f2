//! Commands on the expiry of fields of hashes.
//!
//! A field is judged by the clock when it is read. A command that sets a time in the past deletes the
//! field at once. Fields whose time comes are deleted in the background.

use stillpoint::Tx;

use super::expiry::Unit;
use super::hashes::named_fields;
use crate::args::is;
use crate::error::{CmdError, CmdResult, quoted};
use crate::keyspace::{Elements, Field, Kind};
use crate::resp::{Args, parse_i64};
use crate::session::context::Context;
use crate::session::row::{HASH, Keyed, ONE, RF, WF, WMF, row};
use crate::session::spec::Spec;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("hexpire", -6, WMF, ONE, HASH, "7.4.0", Keyed(hexpire), "Sets the expiry of fields in seconds."),
    row("hexpireat", -6, WMF, ONE, HASH, "7.4.0", Keyed(hexpireat), "Sets the expiry of fields as a Unix time in seconds."),
    row("hexpiretime", -5, RF, ONE, HASH, "7.4.0", Keyed(hexpiretime), "Returns the expiry of fields as Unix times in seconds."),
    row("hgetex", -5, WF, ONE, HASH, "8.0.0", Keyed(hgetex), "Returns the values of fields and sets their expiry or takes it off."),
    row("hpersist", -5, WF, ONE, HASH, "7.4.0", Keyed(hpersist), "Takes the expiry off fields."),
    row("hpexpire", -6, WMF, ONE, HASH, "7.4.0", Keyed(hpexpire), "Sets the expiry of fields in milliseconds."),
    row("hpexpireat", -6, WMF, ONE, HASH, "7.4.0", Keyed(hpexpireat), "Sets the expiry of fields as a Unix time in milliseconds."),
    row("hpexpiretime", -5, RF, ONE, HASH, "7.4.0", Keyed(hpexpiretime), "Returns the expiry of fields as Unix times in milliseconds."),
    row("hpttl", -5, RF, ONE, HASH, "7.4.0", Keyed(hpttl), "Returns the milliseconds that fields have left."),
    row("hsetex", -6, WMF, ONE, HASH, "8.0.0", Keyed(hsetex), "Sets fields of a hash together with their expiry."),
    row("httl", -5, RF, ONE, HASH, "7.4.0", Keyed(httl), "Returns the seconds that fields have left."),
];

/// The latest expiry of a field, in milliseconds since the Unix epoch.
const LATEST_MS: i64 = (1 << 46) - 1;

/// What a command answers for a field.
mod code {
    /// There is no such field.
    pub(super) const MISSING: i64 = -2;
    /// The field does not expire.
    pub(super) const NO_EXPIRY: i64 = -1;
    /// The condition does not hold.
    pub(super) const CONDITION: i64 = 0;
    pub(super) const DONE: i64 = 1;
    /// The field was deleted, since the time has passed.
    pub(super) const DELETED: i64 = 2;
}

/// The moment that an argument names, in milliseconds since the Unix epoch.
fn moment(ctx: &Context<'_>, unit: Unit, arg: &[u8], command: &str) -> Result<u64, CmdError> {
    let value = parse_i64(arg).ok_or(CmdError::NOT_INTEGER)?;
    if value < 0 {
        return Err(CmdError::fixed("ERR invalid expire time, must be >= 0"));
    }
    let base = unit.base(ctx.now_ms());
    let at = value.checked_mul(unit.factor()).filter(|ms| *ms <= LATEST_MS - base);
    match at {
        Some(ms) => Ok((ms + base).cast_unsigned()),
        None => Err(CmdError::text(format!("ERR invalid expire time in '{command}' command"))),
    }
}

fn unknown(arg: &[u8]) -> CmdError {
    CmdError::text(format!("ERR unknown argument: {}", quoted(arg, 128)))
}

/// The condition under which `HEXPIRE` sets an expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    NoneYet,
    HasOne,
    Later,
    Earlier,
}

impl Condition {
    fn parse(arg: &[u8]) -> Option<Self> {
        [("NX", Self::NoneYet), ("XX", Self::HasOne), ("GT", Self::Later), ("LT", Self::Earlier)]
            .into_iter()
            .find_map(|(name, condition)| is(arg, name).then_some(condition))
    }

    /// Whether a field with the expiry `old` may get the expiry `new`. No expiry is the latest.
    fn holds(self, old: Option<u64>, new: u64) -> bool {
        match self {
            Self::NoneYet => old.is_none(),
            Self::HasOne => old.is_some(),
            Self::Later => old.is_some_and(|old| new > old),
            Self::Earlier => old.is_none_or(|old| new < old),
        }
    }
}

const ARGUMENTS: CmdError = CmdError::fixed("ERR wrong number of arguments");
const FIELDS_TWICE: CmdError = CmdError::fixed("ERR FIELDS keyword specified multiple times");
const NO_FIELDS: CmdError = CmdError::fixed("ERR missing FIELDS argument");

/// The condition of `HEXPIRE`, the argument of the first field, and the number of fields.
fn expire_options(args: Args<'_>) -> Result<(Option<Condition>, usize, usize), CmdError> {
    let (mut condition, mut fields, mut has_several) = (None, None, false);
    let mut i = 3;
    while let Some(arg) = args.get(i) {
        if let Some(next) = Condition::parse(arg) {
            has_several |= condition.replace(next).is_some_and(|old| old != next);
            i += 1;
        } else if is(arg, "FIELDS") {
            if fields.is_some() {
                return Err(FIELDS_TWICE);
            }
            let count = args.get(i + 1).ok_or(ARGUMENTS)?;
            let count = parse_i64(count).and_then(|count| usize::try_from(count).ok());
            let count = count
                .filter(|&count| count > 0)
                .ok_or(CmdError::fixed("ERR Parameter `numFields` should be greater than 0"))?;
            if count > args.len() - i - 2 {
                return Err(ARGUMENTS);
            }
            fields = Some((i + 2, count));
            i += 2 + count;
        } else {
            return Err(unknown(arg));
        }
    }
    let (first, count) = fields.ok_or(NO_FIELDS)?;
    if has_several {
        return Err(CmdError::fixed("ERR Multiple condition flags specified"));
    }
    Ok((condition, first, count))
}

fn set_expiry(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    (unit, command): (Unit, &str),
) -> CmdResult {
    let mut hash = ctx.keys().open(tx, 0, args.at(1), Kind::HASH)?;
    let at = moment(ctx, unit, args.at(2), command)?;
    let (condition, first, count) = expire_options(args)?;
    ctx.reply.array(count);
    for i in first..first + count {
        let done = match &mut hash {
            Some(hash) => set_field_expiry(hash, tx, args.at(i), (condition, at, ctx.now_ms()))?,
            None => code::MISSING,
        };
        ctx.reply.int(done);
    }
    if let Some(hash) = &mut hash {
        ctx.keys().save(tx, 0, hash)?;
    }
    Ok(())
}

fn set_field_expiry(
    hash: &mut Elements,
    tx: &mut Tx<'_>,
    name: &[u8],
    (condition, at, now_ms): (Option<Condition>, u64, u64),
) -> Result<i64, CmdError> {
    let Some(content) = hash.get(tx, name)? else { return Ok(code::MISSING) };
    let field = Field::of(&content);
    if condition.is_some_and(|condition| !condition.holds(field.expire_at_ms, at)) {
        return Ok(code::CONDITION);
    }
    if at <= now_ms {
        hash.remove(tx, name)?;
        return Ok(code::DELETED);
    }
    hash.put(tx, &Field { expire_at_ms: Some(at), ..field }.content())?;
    hash.touch();
    Ok(code::DONE)
}

fn hexpire(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    set_expiry(ctx, args, tx, (Unit::Seconds, "hexpire"))
}

fn hexpireat(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    set_expiry(ctx, args, tx, (Unit::UnixSeconds, "hexpireat"))
}

fn hpexpire(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    set_expiry(ctx, args, tx, (Unit::Milliseconds, "hpexpire"))
}

fn hpexpireat(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    set_expiry(ctx, args, tx, (Unit::UnixMilliseconds, "hpexpireat"))
}

/// Answers the expiry of each field, in a unit, from its origin on.
fn answer_expiry(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>, unit: Unit) -> CmdResult {
    let mut hash = ctx.keys().open_read(tx, 0, args.at(1), Kind::HASH)?;
    let first = named_fields(args, 2)?;
    let base = unit.base(ctx.now_ms()).cast_unsigned();
    ctx.reply.array(args.len() - first);
    for name in args.from(first) {
        let content = match &mut hash {
            Some(hash) => hash.get(tx, name)?,
            None => None,
        };
        let answer = content.map_or(code::MISSING, |content| {
            Field::of(&content).expire_at_ms.map_or(code::NO_EXPIRY, |at| {
                let left = at.saturating_sub(base);
                left.div_ceil(unit.factor().cast_unsigned()).cast_signed()
            })
        });
        ctx.reply.int(answer);
    }
    Ok(())
}

fn httl(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer_expiry(ctx, args, tx, Unit::Seconds)
}

fn hpttl(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer_expiry(ctx, args, tx, Unit::Milliseconds)
}

fn hexpiretime(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer_expiry(ctx, args, tx, Unit::UnixSeconds)
}

fn hpexpiretime(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer_expiry(ctx, args, tx, Unit::UnixMilliseconds)
}

fn hpersist(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut hash = ctx.keys().open(tx, 0, args.at(1), Kind::HASH)?;
    let first = named_fields(args, 2)?;
    ctx.reply.array(args.len() - first);
    for name in args.from(first) {
        let content = match &mut hash {
            Some(hash) => hash.get(tx, name)?,
            None => None,
        };
        let field = content.as_deref().map(Field::of);
        let done = match (&mut hash, field) {
            (Some(hash), Some(field)) if field.expire_at_ms.is_some() => {
                hash.put(tx, &Field { expire_at_ms: None, ..field }.content())?;
                code::DONE
            }
            (_, Some(_)) => code::NO_EXPIRY,
            (_, None) => code::MISSING,
        };
        ctx.reply.int(done);
    }
    if let Some(hash) = &mut hash {
        ctx.keys().save(tx, 0, hash)?;
    }
    Ok(())
}

/// What `HGETEX` or `HSETEX` does with the expiry of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The word `PERSIST` of `HGETEX`, or `KEEPTTL` of `HSETEX`.
    Word,
    At(u64),
}

/// The words that differ between `HGETEX` and `HSETEX`.
struct Syntax {
    command: &'static str,
    /// The word that stands in the place of an expiry.
    word: &'static str,
    /// Arguments of each field.
    parts: usize,
    has_conditions: bool,
}

const GET: Syntax = Syntax { command: "hgetex", word: "PERSIST", parts: 1, has_conditions: false };
const SET: Syntax = Syntax { command: "hsetex", word: "KEEPTTL", parts: 2, has_conditions: true };

/// Options of `HGETEX` and `HSETEX`.
#[derive(Debug, Default)]
struct Options {
    change: Option<Change>,
    /// Whether the fields must all be there, or must all be missing.
    all_there: Option<bool>,
    /// The arguments of the fields.
    fields: std::ops::Range<usize>,
}

impl Options {
    fn parse(ctx: &Context<'_>, args: Args<'_>, syntax: &Syntax) -> Result<Self, CmdError> {
        let Syntax { command, word, has_conditions, .. } = *syntax;
        let (mut options, mut has_fields) = (Self::default(), false);
        let mut i = 2;
        while let Some(arg) = args.get(i) {
            let unit = Unit::of_option(arg);
            if unit.is_some() || is(arg, word) {
                if options.change.is_some() {
                    return Err(CmdError::text(format!(
                        "ERR Only one of EX, PX, EXAT, PXAT or {word} arguments can be specified"
                    )));
                }
                options.change = Some(Change::Word);
                if let Some(unit) = unit {
                    i += 1;
                    let time = args.get(i).ok_or(CmdError::fixed("ERR missing expire time"))?;
                    options.change = Some(Change::At(moment(ctx, unit, time, command)?));
                }
                i += 1;
            } else if has_conditions && (is(arg, "FXX") || is(arg, "FNX")) {
                if options.all_there.replace(is(arg, "FXX")).is_some() {
                    return Err(CmdError::fixed(
                        "ERR Only one of FXX or FNX arguments can be specified",
                    ));
                }
                i += 1;
            } else if is(arg, "FIELDS") {
                if std::mem::replace(&mut has_fields, true) {
                    return Err(FIELDS_TWICE);
                }
                options.fields = counted(args, i + 1, syntax)?;
                i = options.fields.end;
            } else {
                return Err(unknown(arg));
            }
        }
        if has_fields { Ok(options) } else { Err(NO_FIELDS) }
    }
}

/// The arguments of the fields whose number is argument `at`.
fn counted(args: Args<'_>, at: usize, syntax: &Syntax) -> Result<std::ops::Range<usize>, CmdError> {
    let arity = || {
        let command = syntax.command;
        CmdError::text(format!("ERR wrong number of arguments for '{command}' command"))
    };
    let count = parse_i64(args.get(at).ok_or_else(arity)?);
    let count = count
        .and_then(|count| usize::try_from(count).ok())
        .filter(|&count| count > 0 && count <= i32::MAX as usize)
        .ok_or(CmdError::fixed("ERR invalid number of fields"))?;
    let end = at + 1 + count * syntax.parts;
    if end > args.len() { Err(arity()) } else { Ok(at + 1..end) }
}

fn hgetex(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let options = Options::parse(ctx, args, &GET)?;
    let mut hash = ctx.keys().open(tx, 0, args.at(1), Kind::HASH)?;
    ctx.reply.array(options.fields.len());
    for i in options.fields {
        let content = match &mut hash {
            Some(hash) => hash.get(tx, args.at(i))?,
            None => None,
        };
        let (Some(hash), Some(content)) = (&mut hash, content) else {
            ctx.reply.null();
            continue;
        };
        let field = Field::of(&content);
        ctx.reply.bulk(field.value);
        match options.change {
            Some(Change::At(at)) if at <= ctx.now_ms() => {
                hash.remove(tx, field.name)?;
            }
            Some(Change::At(at)) => {
                hash.put(tx, &Field { expire_at_ms: Some(at), ..field }.content())?;
                hash.touch();
            }
            Some(Change::Word) => {
                hash.put(tx, &Field { expire_at_ms: None, ..field }.content())?;
            }
            None => {}
        }
    }
    if let Some(hash) = &mut hash {
        ctx.keys().save(tx, 0, hash)?;
    }
    Ok(())
}

fn hsetex(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let options = Options::parse(ctx, args, &SET)?;
    let mut hash = ctx.keys().open_or_new(tx, 0, args.at(1), Kind::HASH)?;
    if let Some(all_there) = options.all_there {
        for i in options.fields.clone().step_by(SET.parts) {
            if hash.get(tx, args.at(i))?.is_some() != all_there {
                ctx.reply.int(0);
                return Ok(());
            }
        }
    }
    for i in options.fields.step_by(SET.parts) {
        let (name, value) = (args.at(i), args.at(i + 1));
        let expire_at_ms = match options.change {
            Some(Change::At(at)) if at <= ctx.now_ms() => {
                hash.remove(tx, name)?;
                continue;
            }
            Some(Change::At(at)) => Some(at),
            Some(Change::Word) => {
                let old = hash.get(tx, name)?;
                old.and_then(|old| Field::of(&old).expire_at_ms)
            }
            None => None,
        };
        hash.put(tx, &Field { name, value, expire_at_ms }.content())?;
        hash.touch();
    }
    ctx.keys().save(tx, 0, &mut hash)?;
    ctx.reply.int(1);
    Ok(())
}
