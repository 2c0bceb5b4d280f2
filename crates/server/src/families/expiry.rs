//! Commands on the expiry of keys: EXPIRE, TTL and others.
//!
//! Time enters a transaction as an input, which the event loop reads once per pass.

use stillpoint::Tx;

use crate::args::is;
use crate::error::{CmdError, CmdResult, quoted};
use crate::resp::{Args, parse_i64};
use crate::session::context::Context;
use crate::session::row::{GENERIC, Keyed, ONE, RF, WF, copying, row};
use crate::session::spec::Spec;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    copying(row("expire", -3, WF, ONE, GENERIC, "1.0.0", Keyed(expire), "Sets the expiry of a key in seconds.")),
    copying(row("expireat", -3, WF, ONE, GENERIC, "1.2.0", Keyed(expireat), "Sets the expiry of a key as a Unix time in seconds.")),
    row("expiretime", 2, RF, ONE, GENERIC, "7.0.0", Keyed(expiretime), "Returns the expiry of a key as a Unix time in seconds."),
    copying(row("persist", 2, WF, ONE, GENERIC, "2.2.0", Keyed(persist), "Takes the expiry off a key.")),
    copying(row("pexpire", -3, WF, ONE, GENERIC, "2.6.0", Keyed(pexpire), "Sets the expiry of a key in milliseconds.")),
    copying(row("pexpireat", -3, WF, ONE, GENERIC, "2.6.0", Keyed(pexpireat), "Sets the expiry of a key as a Unix time in milliseconds.")),
    row("pexpiretime", 2, RF, ONE, GENERIC, "7.0.0", Keyed(pexpiretime), "Returns the expiry of a key as a Unix time in milliseconds."),
    row("pttl", 2, RF, ONE, GENERIC, "2.6.0", Keyed(pttl), "Returns the milliseconds that a key has left."),
    row("ttl", 2, RF, ONE, GENERIC, "1.0.0", Keyed(ttl), "Returns the seconds that a key has left."),
];

/// The unit and the origin of an expiry in an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Seconds from now.
    Seconds,
    /// Milliseconds from now.
    Milliseconds,
    /// Seconds since the Unix epoch.
    UnixSeconds,
    /// Milliseconds since the Unix epoch.
    UnixMilliseconds,
}

impl Unit {
    /// The unit that an option of `SET` or `GETEX` names.
    pub(super) fn of_option(option: &[u8]) -> Option<Self> {
        [
            ("EX", Self::Seconds),
            ("PX", Self::Milliseconds),
            ("EXAT", Self::UnixSeconds),
            ("PXAT", Self::UnixMilliseconds),
        ]
        .into_iter()
        .find_map(|(name, unit)| is(option, name).then_some(unit))
    }

    /// Milliseconds of the unit.
    pub(super) fn factor(self) -> i64 {
        match self {
            Self::Seconds | Self::UnixSeconds => 1000,
            Self::Milliseconds | Self::UnixMilliseconds => 1,
        }
    }

    /// The origin, in milliseconds since the Unix epoch.
    pub(super) fn base(self, now_ms: u64) -> i64 {
        match self {
            Self::Seconds | Self::Milliseconds => now_ms as i64,
            Self::UnixSeconds | Self::UnixMilliseconds => 0,
        }
    }
}

fn invalid(command: &str) -> CmdError {
    CmdError::text(format!("ERR invalid expire time in '{command}' command"))
}

/// The moment, in milliseconds since the Unix epoch, that a positive argument names.
pub(super) fn deadline(
    ctx: &Context<'_>,
    unit: Unit,
    value: &[u8],
    command: &str,
) -> Result<u64, CmdError> {
    let value = parse_i64(value).ok_or(CmdError::NOT_INTEGER)?;
    if value <= 0 {
        return Err(invalid(command));
    }
    let at = value.checked_mul(unit.factor()).and_then(|v| v.checked_add(unit.base(ctx.now_ms())));
    at.map(i64::cast_unsigned).ok_or_else(|| invalid(command))
}

/// Conditions of `EXPIRE`.
#[derive(Default, Clone, Copy)]
struct Conditions {
    none_yet: bool,
    has_one: bool,
    later: bool,
    earlier: bool,
}

impl Conditions {
    fn parse(args: Args<'_>) -> Result<Self, CmdError> {
        let mut c = Self::default();
        for arg in args.from(3) {
            match () {
                () if is(arg, "NX") => c.none_yet = true,
                () if is(arg, "XX") => c.has_one = true,
                () if is(arg, "GT") => c.later = true,
                () if is(arg, "LT") => c.earlier = true,
                () => {
                    let shown = quoted(arg, 256);
                    return Err(CmdError::text(format!("ERR Unsupported option {shown}")));
                }
            }
        }
        if c.none_yet && (c.has_one || c.later || c.earlier) {
            return Err(CmdError::fixed(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if c.later && c.earlier {
            return Err(CmdError::fixed(
                "ERR GT and LT options at the same time are not compatible",
            ));
        }
        Ok(c)
    }

    /// Whether an expiry `at` may replace `current`. No expiry counts as the latest one.
    fn allow(self, current: Option<u64>, at: i64) -> bool {
        let past = |c: u64| at <= c as i64;
        let not_before = |c: u64| at >= c as i64;
        !(self.none_yet && current.is_some()
            || self.has_one && current.is_none()
            || self.later && current.is_none_or(past)
            || self.earlier && current.is_some_and(not_before))
    }
}

fn expire_generic(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    unit: Unit,
    command: &str,
) -> CmdResult {
    let conditions = Conditions::parse(args)?;
    let value = parse_i64(args.at(2)).ok_or(CmdError::NOT_INTEGER)?;
    let at = value
        .checked_mul(unit.factor())
        .and_then(|v| v.checked_add(unit.base(ctx.now_ms())))
        .ok_or_else(|| invalid(command))?;
    let Some(entry) = ctx.keys().lookup(tx, 0, args.at(1)) else {
        ctx.reply.int(0);
        return Ok(());
    };
    if !conditions.allow(entry.expire_at_ms, at) {
        ctx.reply.int(0);
        return Ok(());
    }
    // An expiry in the past deletes the key at once.
    ctx.keys().set_expiry(tx, 0, Some(at.max(0).cast_unsigned()))?;
    ctx.reply.int(1);
    Ok(())
}

fn expire(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    expire_generic(ctx, args, tx, Unit::Seconds, "expire")
}

fn pexpire(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    expire_generic(ctx, args, tx, Unit::Milliseconds, "pexpire")
}

fn expireat(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    expire_generic(ctx, args, tx, Unit::UnixSeconds, "expireat")
}

fn pexpireat(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    expire_generic(ctx, args, tx, Unit::UnixMilliseconds, "pexpireat")
}

/// Replies -2 without the key and -1 without an expiry. Otherwise `show` makes the reply from the
/// expiry.
fn answer_expiry(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    show: impl Fn(u64, u64) -> u64,
) -> CmdResult {
    let now_ms = ctx.now_ms();
    let answer = match ctx.keys().peek(tx, 0, args.at(1)) {
        None => -2,
        Some(entry) => entry.expire_at_ms.map_or(-1, |at| show(at, now_ms) as i64),
    };
    ctx.reply.int(answer);
    Ok(())
}

fn seconds(ms: u64) -> u64 {
    ms.saturating_add(500) / 1000
}

fn ttl(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer_expiry(ctx, args, tx, |at, now| seconds(at - now))
}

fn pttl(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer_expiry(ctx, args, tx, |at, now| at - now)
}

fn expiretime(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer_expiry(ctx, args, tx, |at, _| seconds(at))
}

fn pexpiretime(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer_expiry(ctx, args, tx, |at, _| at)
}

fn persist(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let has_expiry =
        ctx.keys().lookup(tx, 0, args.at(1)).is_some_and(|entry| entry.expire_at_ms.is_some());
    if has_expiry {
        ctx.keys().set_expiry(tx, 0, None)?;
    }
    ctx.reply.int(i64::from(has_expiry));
    Ok(())
}
