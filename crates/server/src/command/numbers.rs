//! Strings that are numbers: INCR and its kin.

use stillpoint::Tx;

use super::integer;
use crate::context::Ctx;
use crate::error::{CmdError, CmdResult};
use crate::resp::{Args, format_f64, parse_f64, parse_i64, push_i64};
use crate::value::TYPE_STRING;

pub(crate) fn incr(ctx: &mut Ctx<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    add(ctx, args.at(1), 1, tx)
}

pub(crate) fn decr(ctx: &mut Ctx<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    add(ctx, args.at(1), -1, tx)
}

pub(crate) fn incrby(ctx: &mut Ctx<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    add(ctx, args.at(1), integer(args.at(2))?, tx)
}

pub(crate) fn decrby(ctx: &mut Ctx<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let by = integer(args.at(2))?;
    let by = by.checked_neg().ok_or(CmdError::fixed("ERR decrement would overflow"))?;
    add(ctx, args.at(1), by, tx)
}

fn add(ctx: &mut Ctx<'_>, key: &[u8], by: i64, tx: &mut Tx<'_>) -> CmdResult {
    let mut text = ctx.take_scratch();
    let expire = ctx.load_string(tx, 0, key, &mut text)?;
    let old = match ctx.was_there() {
        true => parse_i64(&text).ok_or(CmdError::NOT_INTEGER)?,
        false => 0,
    };
    let new = old.checked_add(by).ok_or(CmdError::OVERFLOW)?;
    text.clear();
    push_i64(&mut text, new);
    ctx.put(tx, 0, TYPE_STRING, expire, &text)?;
    ctx.give_scratch(text);
    ctx.reply.int(new);
    Ok(())
}

pub(crate) fn incrbyfloat(ctx: &mut Ctx<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut text = ctx.take_scratch();
    let expire = ctx.load_string(tx, 0, args.at(1), &mut text)?;
    if !ctx.was_there() {
        text.push(b'0');
    }
    let sum = add_decimal(&text, args.at(2))?;
    ctx.put(tx, 0, TYPE_STRING, expire, sum.as_bytes())?;
    ctx.reply.bulk(sum.as_bytes());
    ctx.give_scratch(text);
    Ok(())
}

/// Digits kept after the point, as Redis prints them.
const DECIMALS: i32 = 17;

/// Adds two numbers given as text. Exact, in fixed point, while they have at most 17
/// decimals and stay below 10^20 (Redis uses 80-bit floats, which agree there up to
/// their own rounding); in 64-bit floats beyond.
fn add_decimal(a: &[u8], b: &[u8]) -> Result<String, CmdError> {
    let float = |text| parse_f64(text).ok_or(CmdError::NOT_FLOAT);
    let (float_a, float_b) = (float(a)?, float(b)?);
    if let (Some(a), Some(b)) = (fixed_point(a), fixed_point(b)) {
        return Ok(format_fixed(a + b));
    }
    let sum = float_a + float_b;
    if !sum.is_finite() {
        return Err(CmdError::fixed("ERR increment would produce NaN or Infinity"));
    }
    Ok(format_f64(sum))
}

/// `text` times 10^17, if that is exact and below 10^37.
fn fixed_point(text: &[u8]) -> Option<i128> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let e = text.iter().position(|b| matches!(b, b'e' | b'E'));
    let (mantissa, exponent) = text.split_at(e.unwrap_or(text.len()));
    let exponent: i32 = match exponent {
        [] => 0,
        [_, digits @ ..] => std::str::from_utf8(digits).ok()?.parse().ok()?,
    };
    let (mut digits, mut decimals, mut point) = (0i128, 0i32, false);
    for &byte in mantissa {
        match byte {
            b'.' => point = true,
            b'0'..=b'9' if digits < 10i128.pow(36) => {
                digits = digits * 10 + i128::from(byte - b'0');
                decimals += i32::from(point);
            }
            _ => return None,
        }
    }
    let shift = DECIMALS.checked_add(exponent)?.checked_sub(decimals)?;
    let scaled = if shift >= 0 {
        digits.checked_mul(10i128.checked_pow(shift.unsigned_abs())?)?
    } else {
        let divisor = 10i128.checked_pow(shift.unsigned_abs())?;
        (digits % divisor == 0).then_some(digits / divisor)?
    };
    (scaled < 10i128.pow(37)).then_some(if negative { -scaled } else { scaled })
}

fn format_fixed(value: i128) -> String {
    let one = 10u128.pow(DECIMALS as u32);
    let (whole, part) = (value.unsigned_abs() / one, value.unsigned_abs() % one);
    let sign = if value < 0 { "-" } else { "" };
    let part = format!("{part:017}");
    let part = part.trim_end_matches('0');
    if part.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_add_as_people_expect() {
        for (a, b, want) in [
            ("10.5", "0.1", "10.6"),
            ("0.1", "0.2", "0.3"),
            ("5.0e3", "2.0e2", "5200"),
            ("3", "-3", "0"),
            ("-1.5", "0.25", "-1.25"),
            ("1e-17", "0", "0.00000000000000001"),
            ("1e300", "1e300", "2e300"),
        ] {
            let sum = add_decimal(a.as_bytes(), b.as_bytes()).expect("numbers");
            assert_eq!(sum, want, "{a} + {b}");
        }
        assert_eq!(add_decimal(b"x", b"1"), Err(CmdError::NOT_FLOAT));
        assert!(add_decimal(b"1e308", b"1.7e308").is_err());
    }
}
