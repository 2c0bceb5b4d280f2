//! Commands on one large collection: each adds or replaces an element, or reads a few in their order.
//!
//! An element is sixteen hexadecimal digits that look like no others: a number with all of its bits changed.

/// The key of the collection.
pub(crate) const KEY: &[u8] = b"k";
/// Members that a read of a range asks for.
pub(crate) const RANGE_MEMBERS: u64 = 10;

const ELEMENT_BYTES: usize = 16;
/// Scores are whole numbers below this prime.
const SCORES: u64 = 1_000_003;

/// The bytes of element `number`.
pub(crate) fn element(number: u64) -> [u8; ELEMENT_BYTES] {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut left = mixed ^ (mixed >> 29);
    let mut digits = [0; ELEMENT_BYTES];
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(left & 15) as usize];
        left >>= 4;
    }
    digits
}

/// A command on the collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// HSET of a field with a value, sixteen bytes each.
    HSet,
    /// ZADD of a member with a score.
    ZAdd,
    /// LPUSH of an element.
    LPush,
    /// ZRANGE of [`RANGE_MEMBERS`] members by rank.
    ZRange,
}

impl Command {
    /// The command's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HSet => "HSET",
            Self::ZAdd => "ZADD",
            Self::LPush => "LPUSH",
            Self::ZRange => "ZRANGE",
        }
    }

    /// Appends the request for element `number`. Requests of other stamps give other values and scores.
    pub(crate) fn request(self, out: &mut Vec<u8>, number: u64, stamp: u64) {
        let arguments: u64 = if self == Self::LPush { 3 } else { 4 };
        out.push(b'*');
        digits(out, arguments);
        argument(out, self.name().as_bytes());
        argument(out, KEY);
        match self {
            Self::HSet => {
                argument(out, &element(number));
                argument(out, &element(stamp));
            }
            Self::ZAdd => {
                decimal(out, number.wrapping_add(stamp).wrapping_mul(0x9e37_79b9) % SCORES);
                argument(out, &element(number));
            }
            Self::LPush => argument(out, &element(stamp)),
            Self::ZRange => {
                decimal(out, number);
                decimal(out, number + RANGE_MEMBERS - 1);
            }
        }
    }
}

fn argument(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'$');
    digits(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends a whole number as an argument.
fn decimal(out: &mut Vec<u8>, number: u64) {
    out.push(b'$');
    digits(out, u64::from(number.checked_ilog10().unwrap_or(0)) + 1);
    digits(out, number);
}

/// Appends a whole number and the end of the line.
fn digits(out: &mut Vec<u8>, mut number: u64) {
    let from = out.len();
    loop {
        out.push(b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out[from..].reverse();
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subjects::resp::codec;

    #[test]
    fn requests_are_what_a_client_would_send() {
        let scored = 12_u64.wrapping_mul(0x9e37_79b9) % SCORES;
        let cases: [(Command, Vec<Vec<u8>>); 4] = [
            (Command::HSet, vec![element(7).to_vec(), element(5).to_vec()]),
            (Command::ZAdd, vec![scored.to_string().into_bytes(), element(7).to_vec()]),
            (Command::LPush, vec![element(5).to_vec()]),
            (Command::ZRange, vec![b"7".to_vec(), b"16".to_vec()]),
        ];
        for (command, arguments) in cases {
            let mut words: Vec<&[u8]> = vec![command.name().as_bytes(), KEY];
            words.extend(arguments.iter().map(Vec::as_slice));
            let (mut want, mut found) = (Vec::new(), Vec::new());
            codec::request(&mut want, &words);
            command.request(&mut found, 7, 5);
            assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&want));
        }
        for number in [0, 9, 10, 99, 100, u64::MAX] {
            let mut found = Vec::new();
            decimal(&mut found, number);
            let text = number.to_string();
            assert_eq!(found, format!("${}\r\n{text}\r\n", text.len()).into_bytes());
        }
    }

    #[test]
    fn elements_differ() {
        let mut all: Vec<_> = (0..10_000).map(element).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10_000);
        assert_eq!(&element(0), b"9e3779bd8ef1b1de");
    }
}
