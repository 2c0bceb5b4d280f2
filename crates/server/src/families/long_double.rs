//! The arithmetic of INCRBYFLOAT: the 80-bit floats of x86 ("long double"), printed with 17
//! decimals.
//!
//! Redis uses the type of C. Rust has no such type, so this file computes the same numbers in
//! integers. A number is a mantissa of 64 bits times a power of two. Each operation is exact, or
//! keeps a flag for a nonzero rest below the last bit. At the end the operation rounds once, half
//! to even.

/// Exponent of the last bit of the smallest numbers.
const EXPONENT_MIN: i32 = -16_445;
/// Exponent of the last bit of the largest numbers.
const EXPONENT_MAX: i32 = 16_320;
/// Longest text of a number, as in Redis.
const TEXT_MAX: usize = 5 * 1024;
/// Decimals that are printed, and their power of ten.
const DECIMALS: usize = 17;
const ONE: u128 = 100_000_000_000_000_000;

/// A number of that type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LongDouble {
    negative: bool,
    magnitude: Magnitude,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Magnitude {
    /// Mantissa times two to the exponent. The mantissa's first bit is set unless the exponent is the
    /// smallest one.
    Finite(u64, i32),
    Infinite,
}

impl LongDouble {
    /// Reads a number as C does: decimal, hexadecimal or `inf`. `None` if the text is no number, is
    /// out of range, or is `nan`.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() >= TEXT_MAX {
            return None;
        }
        let (negative, rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        let is = |word: &str| rest.eq_ignore_ascii_case(word.as_bytes());
        let magnitude = match rest {
            _ if is("inf") || is("infinity") => Magnitude::Infinite,
            [b'0', b'x' | b'X', digits @ ..] => hexadecimal(digits)?,
            _ => decimal(rest)?,
        };
        Some(Self { negative, magnitude })
    }

    /// Whether the number is an infinity.
    pub(crate) fn is_infinite(self) -> bool {
        self.magnitude == Magnitude::Infinite
    }

    /// The sum; `None` if it is infinite or no number.
    pub(crate) fn plus(self, other: Self) -> Option<Self> {
        let (Magnitude::Finite(am, ae), Magnitude::Finite(bm, be)) =
            (self.magnitude, other.magnitude)
        else {
            return None;
        };
        // `x` is the number with the greater exponent. Only if both are zero, `x` is zero. With
        // equal exponents `y` may be the greater one.
        let a_first = bm == 0 || (am != 0 && ae >= be);
        let ((high, e), (low, low_e)) =
            if a_first { ((am, ae), (bm, be)) } else { ((bm, be), (am, ae)) };
        let negative = if a_first { self.negative } else { other.negative };
        if low == 0 {
            return Some(Self { negative, magnitude: Magnitude::Finite(high, e) });
        }
        let (x, whole) = (u128::from(high) << 63, u128::from(low) << 63);
        let (y, below) = shift_right(whole, (e - low_e).unsigned_abs());
        if self.negative == other.negative {
            return rounded(negative, x + y, e - 63, below);
        }
        match x.checked_sub(y) {
            // `y` lost a nonzero rest, which is subtracted, too.
            Some(difference) => rounded(negative, difference - u128::from(below), e - 63, below),
            None => rounded(!negative, y - x, e - 63, below),
        }
    }
}

/// The number as Redis prints it for people: 17 decimals, less the zeros at the end.
impl std::fmt::Display for LongDouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Magnitude::Finite(mantissa, exponent) = self.magnitude else {
            return f.write_str(if self.negative { "-inf" } else { "inf" });
        };
        let sign = if self.negative { "-" } else { "" };
        if exponent >= 0 && mantissa > 0 {
            let mut whole = Big::from(u128::from(mantissa));
            whole.shift_left(exponent.unsigned_abs());
            return write!(f, "{sign}{}", whole.into_decimal());
        }
        let scaled = half_even(u128::from(mantissa) * ONE, exponent.unsigned_abs(), false);
        let (whole, part) = (scaled / ONE, scaled % ONE);
        let part = format!("{part:0width$}", width = DECIMALS);
        match (scaled, part.trim_end_matches('0')) {
            (0, _) => f.write_str("0"),
            (_, "") => write!(f, "{sign}{whole}"),
            (_, part) => write!(f, "{sign}{whole}.{part}"),
        }
    }
}

/// `value` without its last `bits` bits, and whether one of these bits was set.
fn shift_right(value: u128, bits: u32) -> (u128, bool) {
    match value.checked_shr(bits) {
        Some(high) => (high, high << bits != value),
        None => (0, value != 0),
    }
}

/// `value`, plus a little more if `below`, divided by two to the `bits` and rounded half to even.
fn half_even(value: u128, bits: u32, below: bool) -> u128 {
    if bits == 0 {
        return value;
    }
    let (doubled, rest) = shift_right(value, bits - 1);
    let (high, half) = (doubled >> 1, doubled & 1 == 1);
    high + u128::from(half && (rest || below || high & 1 == 1))
}

/// The number nearest to `value` times two to the `exponent`. With `below` the true value is
/// slightly greater, and `value` has at least 66 bits. `None` if the number is too large.
fn rounded(negative: bool, value: u128, exponent: i32, below: bool) -> Option<LongDouble> {
    let bits = 128 - value.leading_zeros() as i32;
    let exponent_wanted = (exponent + bits - 64).max(EXPONENT_MIN);
    let drop = exponent_wanted - exponent;
    let mut mantissa = if drop > 0 {
        half_even(value, drop.unsigned_abs(), below)
    } else {
        value << drop.unsigned_abs()
    };
    let mut exponent = exponent_wanted;
    if mantissa >> 64 != 0 {
        mantissa >>= 1;
        exponent += 1;
    }
    if mantissa == 0 {
        exponent = 0;
    }
    let magnitude = Magnitude::Finite(u64::try_from(mantissa).ok()?, exponent);
    (exponent <= EXPONENT_MAX).then_some(LongDouble { negative, magnitude })
}

/// As [`rounded`], for a number that was read. A number that becomes zero was out of range.
fn read(value: u128, exponent: i32, below: bool) -> Option<Magnitude> {
    let magnitude = rounded(false, value, exponent, below)?.magnitude;
    (value == 0 || magnitude != Magnitude::Finite(0, 0)).then_some(magnitude)
}

/// Splits `digits[.digits][mark[sign]digits]`: the digits, their number behind the point, and the
/// exponent. The exponent is clamped to the range that changes the result.
fn parts(text: &[u8], mark: u8, is_digit: fn(&u8) -> bool) -> Option<(Vec<u8>, i64, i64)> {
    let end = text.iter().position(|byte| byte.to_ascii_lowercase() == mark);
    let (mantissa, exponent) = text.split_at(end.unwrap_or(text.len()));
    let point = mantissa.iter().position(|&byte| byte == b'.');
    let (whole, part) = mantissa.split_at(point.unwrap_or(mantissa.len()));
    let part = part.get(1..).unwrap_or(&[]);
    let digits = [whole, part].concat();
    if digits.is_empty() || !digits.iter().all(is_digit) {
        return None;
    }
    let exponent = match exponent {
        [] => 0,
        [_, b'-', digits @ ..] => -exponent_value(digits)?,
        [_, b'+', digits @ ..] | [_, digits @ ..] => exponent_value(digits)?,
    };
    Some((digits, part.len() as i64, exponent))
}

fn exponent_value(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: i64, byte: &u8| (sum * 10 + i64::from(byte - b'0')).min(1_000_000);
    Some(digits.iter().fold(0, add))
}

fn hexadecimal(text: &[u8]) -> Option<Magnitude> {
    let (digits, behind, exponent) = parts(text, b'p', u8::is_ascii_hexdigit)?;
    let (mut value, mut skipped, mut below) = (0u128, 0i64, false);
    for &digit in &digits {
        let digit = (digit as char).to_digit(16)?;
        if value >> 100 == 0 {
            value = value << 4 | u128::from(digit);
        } else {
            skipped += 1;
            below |= digit != 0;
        }
    }
    let exponent = (exponent + 4 * (skipped - behind)).clamp(-100_000, 100_000);
    read(value, exponent as i32, below)
}

fn decimal(text: &[u8]) -> Option<Magnitude> {
    let (digits, behind, exponent) = parts(text, b'e', u8::is_ascii_digit)?;
    let zeros = digits.iter().take_while(|&&digit| digit == b'0').count();
    let digits = &digits[zeros..];
    if digits.is_empty() {
        return Some(Magnitude::Finite(0, 0));
    }
    let exponent = exponent - behind;
    if !(-5000..5000).contains(&(exponent + digits.len() as i64)) {
        return None;
    }
    let mut numerator = Big::default();
    for chunk in digits.chunks(9) {
        let value = chunk.iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
        numerator.multiply_add(10u32.pow(chunk.len() as u32), value);
    }
    if exponent >= 0 {
        numerator.multiply_by_power_of_ten(exponent.unsigned_abs());
        let (value, bits, below) = numerator.first_bits();
        return read(value, bits, below);
    }
    let mut divisor = Big::from(1);
    divisor.multiply_by_power_of_ten(exponent.unsigned_abs());
    // The shift gives the quotient about a hundred bits.
    let shift = QUOTIENT_BITS + divisor.bits() as i32 - numerator.bits() as i32;
    if shift >= 0 {
        numerator.shift_left(shift.unsigned_abs());
    } else {
        divisor.shift_left(shift.unsigned_abs());
    }
    let (quotient, below) = numerator.divide(divisor);
    read(quotient, -shift, below)
}

const QUOTIENT_BITS: i32 = 100;

/// A natural number of any length, least digit first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Big(Vec<u32>);

impl From<u128> for Big {
    fn from(value: u128) -> Self {
        let mut big = Self((0..4).map(|i| (value >> (32 * i)) as u32).collect());
        big.trim();
        big
    }
}

impl Big {
    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn bits(&self) -> usize {
        let last = self.0.last().map_or(0, |last| last.leading_zeros() as usize);
        32 * self.0.len() - last
    }

    fn multiply_add(&mut self, factor: u32, term: u32) {
        let mut carry = u64::from(term);
        for digit in &mut self.0 {
            carry += u64::from(*digit) * u64::from(factor);
            *digit = carry as u32;
            carry >>= 32;
        }
        self.0.push(carry as u32);
        self.trim();
    }

    fn multiply_by_power_of_ten(&mut self, mut power: u64) {
        while power > 0 {
            let step = power.min(9) as u32;
            self.multiply_add(10u32.pow(step), 0);
            power -= u64::from(step);
        }
    }

    fn shift_left(&mut self, bits: u32) {
        self.multiply_add(1 << (bits % 32), 0);
        self.0.splice(0..0, std::iter::repeat_n(0, bits as usize / 32));
    }

    fn halve(&mut self) {
        let mut carry = 0;
        for digit in self.0.iter_mut().rev() {
            let low = *digit & 1;
            *digit = carry << 31 | *digit >> 1;
            carry = low;
        }
        self.trim();
    }

    fn is_less_than(&self, other: &Self) -> bool {
        let by_digits = || self.0.iter().rev().cmp(other.0.iter().rev());
        self.0.len().cmp(&other.0.len()).then_with(by_digits).is_lt()
    }

    /// Subtracts a number that is not greater.
    fn subtract(&mut self, other: &Self) {
        let mut borrow = false;
        for (i, digit) in self.0.iter_mut().enumerate() {
            let (less, first) = digit.overflowing_sub(other.0.get(i).copied().unwrap_or(0));
            let (less, second) = less.overflowing_sub(u32::from(borrow));
            (*digit, borrow) = (less, first || second);
        }
        self.trim();
    }

    /// The first 128 bits, the number of further bits, and whether a further bit is set.
    fn first_bits(&self) -> (u128, i32, bool) {
        let more = self.bits().saturating_sub(128);
        let bit = |i: usize| self.0.get(i / 32).is_some_and(|digit| digit >> (i % 32) & 1 == 1);
        let value = (0..128).rev().fold(0u128, |sum, i| sum << 1 | u128::from(bit(more + i)));
        (value, more as i32, (0..more).any(bit))
    }

    /// The quotient, of at most [`QUOTIENT_BITS`] + 1 bits, and whether the division leaves a
    /// remainder.
    fn divide(mut self, mut divisor: Self) -> (u128, bool) {
        divisor.shift_left(QUOTIENT_BITS as u32 + 1);
        let mut quotient = 0;
        for _ in 0..=QUOTIENT_BITS + 1 {
            quotient <<= 1;
            if !self.is_less_than(&divisor) {
                self.subtract(&divisor);
                quotient |= 1;
            }
            divisor.halve();
        }
        (quotient, !self.0.is_empty())
    }

    fn into_decimal(mut self) -> String {
        let mut chunks = Vec::new();
        while !self.0.is_empty() {
            let mut rest = 0u64;
            for digit in self.0.iter_mut().rev() {
                rest = rest << 32 | u64::from(*digit);
                *digit = (rest / 1_000_000_000) as u32;
                rest %= 1_000_000_000;
            }
            self.trim();
            chunks.push(rest);
        }
        let first = chunks.pop().unwrap_or(0).to_string();
        chunks.iter().rev().fold(first, |text, chunk| text + &format!("{chunk:09}"))
    }
}
