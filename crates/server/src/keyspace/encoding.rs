//! Numbers and strings of any length in the bytes of a value.
//!
//! Nothing here panics on damaged bytes: what cannot be read is `None`.

use std::ops::Range;

/// Appends a number.
pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The number at `at`, and where it ends.
#[inline(always)]
pub(super) fn number_at(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    match bytes.get(at) {
        Some(&only) if only < 0x80 => Some((u64::from(only), at + 1)),
        _ => number_of_bytes_at(bytes, at),
    }
}

/// As [`number_at`], for a number of two bytes or more.
fn number_of_bytes_at(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    match bytes.get(at..)? {
        [low, high, ..] if *high < 0x80 => {
            Some((u64::from(low & 0x7f) | u64::from(*high) << 7, at + 2))
        }
        [low, middle, high, ..] if *high < 0x80 => {
            let low = u64::from(low & 0x7f) | u64::from(middle & 0x7f) << 7;
            Some((low | u64::from(*high) << 14, at + 3))
        }
        _ => long_number_at(bytes, at),
    }
}

fn long_number_at(bytes: &[u8], mut at: usize) -> Option<(u64, usize)> {
    let (mut number, mut shift) = (0, 0);
    loop {
        let byte = *bytes.get(at)?;
        at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some((number, at));
        }
        shift += 7;
        if shift > 56 {
            return None;
        }
    }
}

/// Appends a string with its length before it.
pub(super) fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    put_number(out, string.len() as u64);
    out.extend_from_slice(string);
}

/// Replaces a range of bytes by others.
pub(super) fn splice(own: &mut Vec<u8>, range: Range<usize>, bytes: &[u8]) {
    let (len, end) = (own.len(), range.start + bytes.len());
    if bytes.len() > range.len() {
        own.resize(len + bytes.len() - range.len(), 0);
    }
    own.copy_within(range.end..len, end);
    own[range.start..end].copy_from_slice(bytes);
    own.truncate(len + bytes.len() - range.len());
}

/// Bytes that [`put_string`] appends for a string of `len` bytes.
pub(super) fn string_bytes(len: usize) -> usize {
    let bits = usize::BITS - (len | 1).leading_zeros();
    len + bits.div_ceil(7) as usize
}

/// The string at `at`, and where it ends.
#[inline]
pub(super) fn string_at(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let (len, start) = number_at(bytes, at)?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    Some((bytes.get(start..end)?, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_strings_come_back_and_damage_ends_them() {
        let mut bytes = Vec::new();
        for number in [0, 1, 127, 128, 300, 1 << 20, u64::from(u32::MAX), (1 << 56) - 1] {
            bytes.clear();
            put_number(&mut bytes, number);
            assert_eq!(number_at(&bytes, 0), Some((number, bytes.len())));
            assert_eq!(number_at(&bytes[..bytes.len() - 1], 0), None);
            assert_eq!(string_bytes(number as usize), number as usize + bytes.len());
        }
        bytes.clear();
        put_string(&mut bytes, b"abc");
        assert_eq!(string_at(&bytes, 0), Some((&b"abc"[..], 4)));
        assert_eq!(string_at(&bytes[..3], 0), None);
        assert_eq!(string_at(&[0xff; 12], 0), None);
    }

    #[test]
    fn ranges_are_replaced() {
        for range in [0..0, 0..3, 2..5, 4..6, 6..6] {
            for new in [&b""[..], b"x", b"xyz", b"longer than it"] {
                let mut want = b"abcdef".to_vec();
                want.splice(range.clone(), new.iter().copied());
                let mut own = b"abcdef".to_vec();
                splice(&mut own, range.clone(), new);
                assert_eq!(own, want);
            }
        }
    }
}
