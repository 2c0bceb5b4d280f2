//! Numbers as Redis reads and writes them.

/// Reads a signed decimal integer as Redis does: no sign but `-`, no leading
/// zeros, no spaces, nothing beyond 64 bits.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    match digits {
        [b'0'] => return if negative { None } else { Some(0) },
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut magnitude: u64 = 0;
    for &byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        // 19 digits stay below 10^19, which fits 64 bits unsigned.
        magnitude = magnitude * 10 + u64::from(byte - b'0');
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// Reads an unsigned decimal integer, digits only.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0u64, |sum, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Reads a floating-point number as Redis does: decimal or hexadecimal, with an exponent or not, or
/// `inf`. NaN is refused, and so is what 64 bits round to infinity or to zero.
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    if text.first().is_none_or(u8::is_ascii_whitespace) {
        return None;
    }
    let (number, end) = float_prefix(text)?;
    (end == text.len() && !number.value.is_nan() && number.is_in_range()).then_some(number.value)
}

/// Reads a bound of a range of scores, with three differences from [`parse_f64`]. An empty text is 0,
/// white space may come first, and a number that is too large is infinite.
pub fn parse_bound(text: &[u8]) -> Option<f64> {
    // Redis reads the text as a string of C, which ends at the first zero byte.
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(0.0);
    }
    let (number, end) = float_prefix(text)?;
    (end == text.len() && !number.value.is_nan()).then_some(number.value)
}

/// Reads a number that sorts elements: as [`parse_bound`], but nothing out of range.
pub fn parse_number(text: &[u8]) -> Option<f64> {
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(0.0);
    }
    let (number, end) = float_prefix(text)?;
    let fits = end == text.len() && !number.value.is_nan() && number.is_in_range();
    fits.then_some(number.value)
}

/// A number, and whether its text says that it is infinite or zero.
struct Float {
    value: f64,
    is_infinity: bool,
    is_zero: bool,
}

impl Float {
    /// Whether the value is infinite or zero only if its text says so.
    fn is_in_range(&self) -> bool {
        self.value.is_infinite() == self.is_infinity && (self.value == 0.0) == self.is_zero
    }
}

/// The longest number at the beginning of a text, as `strtod` of C finds it, and where it ends.
fn float_prefix(text: &[u8]) -> Option<(Float, usize)> {
    let space = text.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let (negative, start) = match text.get(space) {
        Some(b'-') => (true, space + 1),
        Some(b'+') => (false, space + 1),
        _ => (false, space),
    };
    let rest = &text[start..];
    let begins =
        |word: &[u8]| rest.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word));
    let (mut float, len) = match () {
        () if begins(b"infinity") => (infinity(), 8),
        () if begins(b"inf") => (infinity(), 3),
        () if begins(b"nan") => (Float { value: f64::NAN, is_infinity: false, is_zero: false }, 3),
        () if begins(b"0x") => hexadecimal(&rest[2..]).map_or(
            (Float { value: 0.0, is_infinity: false, is_zero: true }, 1),
            |(float, len)| (float, len + 2),
        ),
        () => decimal(rest)?,
    };
    if negative {
        float.value = -float.value;
    }
    Some((float, start + len))
}

fn infinity() -> Float {
    Float { value: f64::INFINITY, is_infinity: true, is_zero: false }
}

/// Digits with or without a point: the number of bytes, and whether any digit is not 0.
fn digits(text: &[u8], is_digit: fn(&u8) -> bool) -> Option<(usize, bool)> {
    let (mut len, mut any, mut point, mut nonzero) = (0, false, false, false);
    for byte in text {
        match byte {
            b'.' if !point => point = true,
            digit if is_digit(digit) => {
                any = true;
                nonzero |= *digit != b'0';
            }
            _ => break,
        }
        len += 1;
    }
    any.then_some((len, nonzero))
}

/// An exponent behind one of two letters: the number of its bytes, and its value, clamped to the
/// range that matters.
fn exponent(text: &[u8], letters: [u8; 2]) -> Option<(usize, i32)> {
    let (letter, rest) = text.split_first()?;
    if !letters.contains(letter) {
        return None;
    }
    let (negative, sign) = match rest.first() {
        Some(b'-') => (true, 1),
        Some(b'+') => (false, 1),
        _ => (false, 0),
    };
    let count = rest[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 {
        return None;
    }
    let value = rest[sign..sign + count]
        .iter()
        .fold(0i32, |sum, digit| (sum * 10 + i32::from(digit - b'0')).min(100_000));
    Some((1 + sign + count, if negative { -value } else { value }))
}

fn decimal(text: &[u8]) -> Option<(Float, usize)> {
    let (mantissa, nonzero) = digits(text, u8::is_ascii_digit)?;
    let len = mantissa + exponent(&text[mantissa..], [b'e', b'E']).map_or(0, |(len, _)| len);
    let value = std::str::from_utf8(&text[..len]).ok()?.parse().ok()?;
    Some((Float { value, is_infinity: false, is_zero: !nonzero }, len))
}

fn hexadecimal(text: &[u8]) -> Option<(Float, usize)> {
    let (len, nonzero) = digits(text, u8::is_ascii_hexdigit)?;
    let (mut mantissa, mut scale, mut behind_point) = (0u64, 0i32, false);
    for byte in &text[..len] {
        let Some(digit) = char::from(*byte).to_digit(16) else {
            behind_point = true;
            continue;
        };
        if mantissa >> 58 == 0 {
            mantissa = mantissa << 4 | u64::from(digit);
            scale -= if behind_point { 4 } else { 0 };
        } else {
            // Digits that do not fit decide only how the last bit is rounded.
            mantissa |= u64::from(digit != 0);
            scale += if behind_point { 0 } else { 4 };
        }
    }
    let (exponent_len, by) = exponent(&text[len..], [b'p', b'P']).unwrap_or((0, 0));
    let mut value = mantissa as f64;
    let mut left = scale.saturating_add(by).clamp(-3000, 3000);
    while left != 0 && value != 0.0 && value.is_finite() {
        let step = left.clamp(-512, 512);
        value *= 2f64.powi(step);
        left -= step;
    }
    Some((Float { value, is_infinity: false, is_zero: !nonzero }, len + exponent_len))
}

/// Appends `value` in decimal.
pub fn push_i64(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    out.extend_from_slice(&digits[at..]);
}

/// The shortest text that reads back as `value`, in plain form while that is short
/// (Redis prints the same for the magnitudes that people store).
pub fn format_f64(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "inf".to_owned() } else { "-inf".to_owned() };
    }
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value != 0.0 && !(1e-5..1e17).contains(&value.abs()) {
        return format!("{value:e}");
    }
    format!("{value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_redis_reads_them() {
        for (text, want) in [
            ("0", Some(0)),
            ("-0", None),
            ("+1", None),
            ("01", None),
            ("", None),
            ("-", None),
            (" 1", None),
            ("1 ", None),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("-9223372036854775808", Some(i64::MIN)),
            ("-9223372036854775809", None),
            ("10000000000000000000", None),
            ("99999999999999999999999", None),
        ] {
            assert_eq!(parse_i64(text.as_bytes()), want, "{text:?}");
        }
    }

    #[test]
    fn integers_round_trip() {
        for value in [0, 1, -1, 9, 10, 99, 100, -100, i64::MAX, i64::MIN, 1_234_567_890] {
            let mut out = Vec::new();
            push_i64(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
            assert_eq!(parse_i64(&out), Some(value));
        }
    }

    #[test]
    fn floats_may_have_many_digits() {
        let most = format!("{}.{}", f64::MAX, "0".repeat(200));
        assert!(most.len() > 500);
        assert_eq!(parse_f64(most.as_bytes()), Some(f64::MAX));
        assert_eq!(parse_f64(format!("1{most}").as_bytes()), None);
        assert_eq!(parse_f64(format!("0.{}1", "0".repeat(300)).as_bytes()), Some(1e-301));
    }

    #[test]
    fn floats_print_short_and_refuse_nan() {
        assert_eq!(parse_f64(b"nan"), None);
        for (text, want) in [
            ("inf", Some(f64::INFINITY)),
            ("-Infinity", Some(f64::NEG_INFINITY)),
            ("", None),
            (" 1", None),
            ("1 ", None),
            ("1e", None),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("+5", Some(5.0)),
            (".", None),
            ("0x", None),
            ("0x10", Some(16.0)),
            ("-0X1.8p1", Some(-3.0)),
            ("0x1p-1074", Some(5e-324)),
            ("0x1p2000", None),
            ("0x1p-2000", None),
            ("0x123456789abcdef123", Some(335_812_727_670_730_326_307.0)),
            ("1e400", None),
            ("1e-400", None),
            ("4e-320", Some(4e-320)),
            ("0e999999999999", Some(0.0)),
            ("1x", None),
        ] {
            assert_eq!(parse_f64(text.as_bytes()), want, "{text:?}");
        }
        assert_eq!(parse_bound(b""), Some(0.0));
        assert_eq!(parse_bound(b" 1"), Some(1.0));
        assert_eq!(parse_bound(b"1e400"), Some(f64::INFINITY));
        assert_eq!((parse_bound(b"1x"), parse_bound(b"nan")), (None, None));
        assert_eq!(format_f64(3.0), "3");
        assert_eq!(format_f64(0.1), "0.1");
        assert_eq!(format_f64(1e300), "1e300");
    }
}
