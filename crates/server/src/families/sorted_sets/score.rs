//! Scores, their bytes in elements, and the bounds of ranges.

use crate::error::CmdError;
use crate::keyspace::SCORE_BYTES;
use crate::resp::{parse_bound, parse_f64};

/// The bytes of a score, so that the order of the bytes is that of the scores.
pub(in crate::families) fn score_bytes(score: f64) -> [u8; SCORE_BYTES] {
    // Plus and minus zero get the same bytes.
    let bits = if score == 0.0 { 0 } else { score.to_bits() };
    let sign = 1 << 63;
    (if bits & sign == 0 { bits | sign } else { !bits }).to_be_bytes()
}

/// The score and the member of an element.
pub(in crate::families) fn parts(content: &[u8]) -> (f64, &[u8]) {
    let Some((score, member)) = content.split_first_chunk::<SCORE_BYTES>() else {
        return (0.0, &[]);
    };
    let (bits, sign) = (u64::from_be_bytes(*score), 1 << 63);
    (f64::from_bits(if bits & sign == 0 { !bits } else { bits & !sign }), member)
}

/// The content of an element.
pub(in crate::families) fn content(score: f64, member: &[u8]) -> Vec<u8> {
    let mut content = score_bytes(score).to_vec();
    content.extend_from_slice(member);
    content
}

/// Reads a score.
pub(in crate::families) fn parse_score(arg: &[u8]) -> Result<f64, CmdError> {
    parse_f64(arg).ok_or(CmdError::NOT_FLOAT)
}

/// A range of scores or of members of one score.
#[derive(Debug)]
pub(in crate::families) enum Bounds<'a> {
    Scores { from: (f64, bool), to: (f64, bool) },
    Members { from: Bound<'a>, to: Bound<'a> },
}

/// A bound of a range of members.
#[derive(Clone, Copy, Debug)]
pub(in crate::families) enum Bound<'a> {
    Lowest,
    Highest,
    Member(&'a [u8], bool),
}

const NOT_SCORES: CmdError = CmdError::fixed("ERR min or max is not a float");
const NOT_MEMBERS: CmdError = CmdError::fixed("ERR min or max not valid string range item");

/// A bound of a range of scores, and whether the bound itself is outside of the range.
fn score_bound(arg: &[u8]) -> Result<(f64, bool), CmdError> {
    let (text, is_outside) = match arg {
        [b'(', rest @ ..] => (rest, true),
        _ => (arg, false),
    };
    parse_bound(text).map(|score| (score, is_outside)).ok_or(NOT_SCORES)
}

fn member_bound(arg: &[u8]) -> Result<Bound<'_>, CmdError> {
    match arg {
        b"-" => Ok(Bound::Lowest),
        b"+" => Ok(Bound::Highest),
        [b'[', member @ ..] => Ok(Bound::Member(member, false)),
        [b'(', member @ ..] => Ok(Bound::Member(member, true)),
        _ => Err(NOT_MEMBERS),
    }
}

impl<'a> Bounds<'a> {
    /// A range of scores.
    pub(in crate::families) fn of_scores(from: &'a [u8], to: &'a [u8]) -> Result<Self, CmdError> {
        Ok(Self::Scores { from: score_bound(from)?, to: score_bound(to)? })
    }

    /// A range of members of one score.
    pub(in crate::families) fn of_members(from: &'a [u8], to: &'a [u8]) -> Result<Self, CmdError> {
        Ok(Self::Members { from: member_bound(from)?, to: member_bound(to)? })
    }

    /// Whether an element is before the range.
    pub(in crate::families) fn is_before(&self, content: &[u8]) -> bool {
        let (score, member) = parts(content);
        match self {
            Self::Scores { from: (from, is_outside), .. } => {
                score < *from || (*is_outside && score == *from)
            }
            Self::Members { from, .. } => match from {
                Bound::Lowest => false,
                Bound::Highest => true,
                Bound::Member(from, is_outside) => {
                    member < *from || (*is_outside && member == *from)
                }
            },
        }
    }

    /// Whether an element is not behind the range.
    pub(in crate::families) fn is_not_behind(&self, content: &[u8]) -> bool {
        let (score, member) = parts(content);
        match self {
            Self::Scores { to: (to, is_outside), .. } => {
                score < *to || (!*is_outside && score == *to)
            }
            Self::Members { to, .. } => match to {
                Bound::Lowest => false,
                Bound::Highest => true,
                Bound::Member(to, is_outside) => member < *to || (!*is_outside && member == *to),
            },
        }
    }
}

/// A score as Redis 7.0 prints it: 17 significant digits, as `%.17g` of C does.
pub(in crate::families) fn score_text(score: f64) -> String {
    if score.is_infinite() {
        return if score > 0.0 { "inf".to_owned() } else { "-inf".to_owned() };
    }
    if score == 0.0 {
        return "0".to_owned();
    }
    let text = format!("{score:.16e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let digits = mantissa.replace('.', "");
    let digits = digits.trim_end_matches('0');
    let point = |digits: &str| match digits.split_at(1) {
        (first, "") => first.to_owned(),
        (first, rest) => format!("{first}.{rest}"),
    };
    let text = match exponent {
        ..=-5 | 17.. => {
            let exponent_sign = if exponent < 0 { '-' } else { '+' };
            format!("{}e{exponent_sign}{:02}", point(digits), exponent.unsigned_abs())
        }
        -4..=-1 => format!("0.{}{digits}", "0".repeat(exponent.unsigned_abs() as usize - 1)),
        _ => {
            let whole = exponent as usize + 1;
            match digits.len() {
                len if len <= whole => format!("{digits}{}", "0".repeat(whole - len)),
                _ => format!("{}.{}", &digits[..whole], &digits[whole..]),
            }
        }
    };
    format!("{sign}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_in_the_order_of_the_scores() {
        let scores = [
            f64::NEG_INFINITY,
            -1e300,
            -2.5,
            -1.0,
            -1e-300,
            0.0,
            5e-324,
            1.0,
            1.5,
            1e17,
            f64::INFINITY,
        ];
        for pair in scores.windows(2) {
            assert!(score_bytes(pair[0]) < score_bytes(pair[1]), "{pair:?}");
        }
        for score in scores {
            let content = content(score, b"m");
            assert_eq!(parts(&content), (score, &b"m"[..]));
        }
        assert_eq!(score_bytes(-0.0), score_bytes(0.0));
    }

    #[test]
    fn scores_are_printed_as_c_prints_them() {
        for (score, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (3.24, "3.2400000000000002"),
            (0.1, "0.10000000000000001"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (123456789012345680000.0, "1.2345678901234568e+20"),
            (0.0001, "0.0001"),
            (0.00001, "1.0000000000000001e-05"),
            (1e-7, "9.9999999999999995e-08"),
            (1e300, "1.0000000000000001e+300"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (100.0, "100"),
            (1024.25, "1024.25"),
        ] {
            assert_eq!(score_text(score), text);
        }
    }

    #[test]
    fn bounds_tell_what_is_inside() {
        let inside = |bounds: &Bounds<'_>, score: f64, member: &str| {
            let content = content(score, member.as_bytes());
            !bounds.is_before(&content) && bounds.is_not_behind(&content)
        };
        let scores = Bounds::of_scores(b"(1", b"3").expect("scores");
        for (score, is_inside) in [(1.0, false), (1.1, true), (3.0, true), (3.1, false)] {
            assert_eq!(inside(&scores, score, "m"), is_inside, "{score}");
        }
        let members = Bounds::of_members(b"[b", b"(d").expect("members");
        for (member, is_inside) in [("a", false), ("b", true), ("cc", true), ("d", false)] {
            assert_eq!(inside(&members, 0.0, member), is_inside, "{member}");
        }
        assert!(inside(&Bounds::of_members(b"-", b"+").expect("members"), 0.0, "x"));
        assert!(!inside(&Bounds::of_members(b"+", b"-").expect("members"), 0.0, "x"));
        assert!(Bounds::of_members(b"a", b"+").is_err() && Bounds::of_scores(b"x", b"1").is_err());
    }
}
