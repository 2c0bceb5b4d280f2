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

/// Reads a floating-point number: decimal or exponent form, `inf` accepted, NaN not.
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    if text.is_empty() || text.len() > 256 {
        return None;
    }
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!value.is_nan()).then_some(value)
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
    fn floats_print_short_and_refuse_nan() {
        assert_eq!(parse_f64(b"nan"), None);
        assert_eq!(parse_f64(b"inf"), Some(f64::INFINITY));
        assert_eq!(format_f64(3.0), "3");
        assert_eq!(format_f64(0.1), "0.1");
        assert_eq!(format_f64(1e300), "1e300");
    }
}
