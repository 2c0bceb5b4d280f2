//! Commands on strings that are numbers: INCR, INCRBYFLOAT and others.

use stillpoint::Tx;

use super::long_double::LongDouble;
use crate::args::integer;
use crate::error::{CmdError, CmdResult};
use crate::keyspace::Kind;
use crate::resp::{Args, parse_i64, push_i64};
use crate::session::context::Context;
use crate::session::row::{Keyed, ONE, STRING, WMF, row};
use crate::session::spec::Spec;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("decr", 2, WMF, ONE, STRING, "1.0.0", Keyed(decr), "Subtracts one from an integer, which is 0 if it is missing."),
    row("decrby", 3, WMF, ONE, STRING, "1.0.0", Keyed(decrby), "Subtracts from an integer, which is 0 if it is missing."),
    row("incr", 2, WMF, ONE, STRING, "1.0.0", Keyed(incr), "Adds one to an integer, which is 0 if it is missing."),
    row("incrby", 3, WMF, ONE, STRING, "1.0.0", Keyed(incrby), "Adds to an integer, which is 0 if it is missing."),
    row("incrbyfloat", 3, WMF, ONE, STRING, "2.6.0", Keyed(incrbyfloat), "Adds to a number, which is 0 if it is missing."),
];

fn incr(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    add(ctx, args.at(1), 1, tx)
}

fn decr(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    add(ctx, args.at(1), -1, tx)
}

fn incrby(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    add(ctx, args.at(1), integer(args.at(2))?, tx)
}

fn decrby(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let by = integer(args.at(2))?;
    let by = by.checked_neg().ok_or(CmdError::fixed("ERR decrement would overflow"))?;
    add(ctx, args.at(1), by, tx)
}

fn add(ctx: &mut Context<'_>, key: &[u8], by: i64, tx: &mut Tx<'_>) -> CmdResult {
    let mut text = ctx.local.keys.take_scratch();
    let (old, expire) = match ctx.keys().lookup_kind(tx, 0, key, Kind::STRING)? {
        None => (0, None),
        Some(entry) => {
            entry.copy_to(&mut text);
            (parse_i64(&text).ok_or(CmdError::NOT_INTEGER)?, entry.expire_at_ms)
        }
    };
    let new = old.checked_add(by).ok_or(CmdError::OVERFLOW)?;
    text.clear();
    push_i64(&mut text, new);
    ctx.keys().put(tx, 0, Kind::STRING, expire, &text)?;
    ctx.local.keys.give_scratch(text);
    ctx.reply.int(new);
    Ok(())
}

fn incrbyfloat(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut text = ctx.local.keys.take_scratch();
    let mut expire = None;
    match ctx.keys().lookup_kind(tx, 0, args.at(1), Kind::STRING)? {
        None => text.push(b'0'),
        Some(entry) => {
            entry.copy_to(&mut text);
            expire = entry.expire_at_ms;
        }
    }
    let sum = add_floats(&text, args.at(2))?;
    ctx.keys().put(tx, 0, Kind::STRING, expire, sum.as_bytes())?;
    ctx.reply.bulk(sum.as_bytes());
    ctx.local.keys.give_scratch(text);
    Ok(())
}

/// The error of a sum that no value can hold.
pub(super) const NOT_FINITE: CmdError =
    CmdError::fixed("ERR increment would produce NaN or Infinity");

/// Adds two numbers given as text.
fn add_floats(a: &[u8], b: &[u8]) -> Result<String, CmdError> {
    let float = |text| LongDouble::parse(text).ok_or(CmdError::NOT_FLOAT);
    let sum = float(a)?.plus(float(b)?);
    sum.map(|sum| sum.to_string()).ok_or(NOT_FINITE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_add_as_in_redis() {
        for (a, b, want) in [
            ("10.5", "0.1", "10.6"),
            ("0.1", "0.2", "0.3"),
            ("5.0e3", "2.0e2", "5200"),
            ("3", "-3", "0"),
            ("-1.5", "0.25", "-1.25"),
            ("1e-17", "0", "0.00000000000000001"),
            ("-1e-18", "0", "0"),
            ("1e17", "3.14159265358979323846", "100000000000000003.140625"),
            ("1", "1e22", "10000000000000000000000"),
            ("1", "1e19", "10000000000000000001"),
            ("0x1.8p1", "+.5", "3.5"),
            ("3.6e-4951", "1", "1"),
        ] {
            let sum = add_floats(a.as_bytes(), b.as_bytes()).expect("numbers");
            assert_eq!(sum, want, "{a} + {b}");
        }
        let huge = add_floats(b"1e4932", b"1e4900").expect("numbers");
        assert_eq!(huge.len(), 4933);
        for text in ["x", "", " 1", "1 ", "1e", ".", "1e4933", "1e-4960", "nan", "0x", "1_0", "--1"]
        {
            assert_eq!(add_floats(text.as_bytes(), b"1"), Err(CmdError::NOT_FLOAT), "{text}");
        }
        assert!(add_floats(b"1.1e4932", b"1.1e4932").is_err());
        assert!(add_floats(b"inf", b"-inf").is_err());
    }
}
