//! Numbers and strings of any length in the bytes of a value.
//!
//! Nothing here panics on damaged bytes: what cannot be read is `None`.

/// Appends a number.
pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The number at `at`, and where it ends.
pub(super) fn number_at(bytes: &[u8], mut at: usize) -> Option<(u64, usize)> {
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

/// Bytes that [`put_string`] appends for a string of `len` bytes.
pub(super) fn string_bytes(len: usize) -> usize {
    let bits = usize::BITS - (len | 1).leading_zeros();
    len + bits.div_ceil(7) as usize
}

/// The string at `at`, and where it ends.
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
}
