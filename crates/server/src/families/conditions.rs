//! Commands that ask for the present value first: conditions of SET, and DELEX, DIGEST, MSETEX.

use stillpoint::Tx;
use xxhash_rust::xxh3::xxh3_64;

use super::expiry::{Unit, deadline};
use crate::args::is;
use crate::error::{CmdError, CmdResult};
use crate::keyspace::{Entry, Kind};
use crate::resp::{Args, parse_i64};
use crate::session::context::Context;
use crate::session::row::{Keyed, ONE, RF, STRING, WF, WM, copying, row};
use crate::session::spec::{KeySpec, Spec};

/// Pairs of key and value; the argument after the name tells how many.
const COUNTED_PAIRS: KeySpec = KeySpec { first: 2, last: -1, step: 2, count_at: 1 };

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    copying(row("delex", -2, WF, ONE, STRING, "8.4.0", Keyed(delex), "Deletes a key if its value is as expected.")),
    copying(row("digest", 2, RF, ONE, STRING, "8.4.0", Keyed(digest), "Returns the XXH3 hash of a string.")),
    row("msetex", -4, WM, COUNTED_PAIRS, STRING, "8.4.0", Keyed(msetex), "Sets several strings at once, with an expiry and on a condition."),
];

/// A condition on a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Condition<'a> {
    #[default]
    None,
    Missing,
    There,
    Equals(&'a [u8]),
    /// True also of a missing key.
    Differs(&'a [u8]),
    HasDigest(u64),
    /// True also of a missing key.
    HasOtherDigest(u64),
}

impl<'a> Condition<'a> {
    /// The condition that argument `i` begins, if it begins one and `before` does not exclude it.
    pub(super) fn parse(args: Args<'a>, i: usize, before: Self) -> Result<Option<Self>, CmdError> {
        let arg = args.at(i);
        let operand = args.get(i + 1);
        let found = match operand {
            _ if is(arg, "NX") => Self::Missing,
            _ if is(arg, "XX") => Self::There,
            Some(operand) if is(arg, "IFEQ") => Self::Equals(operand),
            Some(operand) if is(arg, "IFNE") => Self::Differs(operand),
            Some(operand) if is(arg, "IFDEQ") => Self::HasDigest(parse_digest(operand)?),
            Some(operand) if is(arg, "IFDNE") => Self::HasOtherDigest(parse_digest(operand)?),
            _ => return Ok(None),
        };
        let again = !found.has_operand() && found == before;
        Ok((before == Self::None || again).then_some(found))
    }

    /// Whether the condition takes two arguments.
    pub(super) fn has_operand(self) -> bool {
        !matches!(self, Self::None | Self::Missing | Self::There)
    }

    /// Whether the condition concerns the value, which must be a string.
    pub(super) fn compares(self) -> bool {
        self.has_operand()
    }

    /// Whether the condition is true of the value of a key.
    pub(super) fn holds(self, old: Option<&Entry<'_>>) -> bool {
        let is_equal = |value: &[u8]| {
            old.is_some_and(|old| old.len() == value.len() && bytes_of(old) == value)
        };
        let has = |digest: u64| old.is_some_and(|old| xxh3_64(&bytes_of(old)) == digest);
        match self {
            Self::None => true,
            Self::Missing => old.is_none(),
            Self::There => old.is_some(),
            Self::Equals(value) => is_equal(value),
            Self::Differs(value) => !is_equal(value),
            Self::HasDigest(digest) => has(digest),
            Self::HasOtherDigest(digest) => !has(digest),
        }
    }
}

fn bytes_of(entry: &Entry<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entry.len());
    entry.copy_to(&mut bytes);
    bytes
}

/// Reads a hash as `DIGEST` gives it.
fn parse_digest(arg: &[u8]) -> Result<u64, CmdError> {
    let text = std::str::from_utf8(arg)
        .ok()
        .filter(|text| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    text.and_then(|text| u64::from_str_radix(text, 16).ok())
        .ok_or(CmdError::fixed("ERR digest must be exactly 16 hexadecimal characters"))
}

fn digest(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    match ctx.keys().read_kind(tx, 0, args.at(1), Kind::STRING)? {
        Some(entry) => {
            let digest = format!("{:016x}", xxh3_64(&bytes_of(&entry)));
            ctx.reply.bulk(digest.as_bytes());
        }
        None => ctx.reply.null(),
    }
    Ok(())
}

fn delex(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let condition = match args.len() {
        2 => Condition::None,
        4 => Condition::parse(args, 2, Condition::None)?
            .filter(|condition| condition.compares())
            .ok_or(CmdError::SYNTAX)?,
        3 => return Err(CmdError::SYNTAX),
        _ => {
            return Err(CmdError::fixed("ERR wrong number of arguments for 'delex' command"));
        }
    };
    let Some(entry) = ctx.keys().lookup(tx, 0, args.at(1)) else {
        ctx.reply.int(0);
        return Ok(());
    };
    if condition.compares() && entry.kind() != Kind::STRING {
        return Err(CmdError::WRONG_TYPE);
    }
    let holds = condition.holds(Some(&entry));
    if holds {
        ctx.keys().delete(tx, 0)?;
    }
    ctx.reply.int(i64::from(holds));
    Ok(())
}

fn msetex(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let count = parse_i64(args.at(1)).and_then(|count| usize::try_from(count).ok());
    let count =
        count.filter(|&count| count > 0).ok_or(CmdError::fixed("ERR invalid numkeys value"))?;
    if count > (args.len() - 2) / 2 {
        return Err(CmdError::fixed("ERR wrong number of key-value pairs"));
    }
    let (mut condition, mut keeps_expiry, mut expiry) = (Condition::None, false, None);
    let mut i = 2 + 2 * count;
    while let Some(arg) = args.get(i) {
        if (is(arg, "NX") || is(arg, "XX"))
            && let Some(found) = Condition::parse(args, i, condition)?
        {
            condition = found;
        } else if is(arg, "KEEPTTL") && expiry.is_none() {
            keeps_expiry = true;
        } else if let (Some(unit), Some(value)) = (Unit::of_option(arg), args.get(i + 1))
            && !keeps_expiry
            && expiry.is_none()
        {
            expiry = Some(deadline(ctx, unit, value, "msetex")?);
            i += 1;
        } else {
            return Err(CmdError::SYNTAX);
        }
        i += 1;
    }
    let key = |pair: usize| (pair as u32, args.at(2 + 2 * pair));
    for (slot, key) in (0..count).map(key) {
        if !condition.holds(ctx.keys().lookup(tx, slot, key).as_ref()) {
            ctx.reply.int(0);
            return Ok(());
        }
    }
    for pair in 0..count {
        let (slot, key) = key(pair);
        let kept = ctx.keys().lookup(tx, slot, key).and_then(|entry| entry.expire_at_ms);
        let expire_at_ms = if keeps_expiry { kept } else { expiry };
        ctx.keys().put(tx, slot, Kind::STRING, expire_at_ms, args.at(3 + 2 * pair))?;
    }
    ctx.reply.int(1);
    Ok(())
}
