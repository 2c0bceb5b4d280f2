//! Bytes in slices of atomic words, little-endian.
//!
//! All accesses are Relaxed. A thread that needs a consistent view holds a lock or a latch. Or the
//! thread claims a mark after the copy, or validates a stamp or a version around the copy.

use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Words needed for `bytes` bytes.
#[inline]
pub const fn words_for(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// Writes `bytes` from byte offset `at` on. Bytes before and behind this range stay.
///
/// # Panics
/// If the words end before the bytes do. All functions here but [`starts_with`] panic then.
#[inline]
pub fn write(words: &[AtomicU64], at: usize, bytes: &[u8]) {
    let (index, shift) = (at / 8, at % 8 * 8);
    let Ok(eight) = <[u8; 8]>::try_from(bytes) else {
        return write_any(words, at, bytes);
    };
    // The commonest patch: one integer.
    let new = u64::from_le_bytes(eight);
    if shift == 0 {
        words[index].store(new, Relaxed);
        return;
    }
    let [low, high] = &words[index..index + 2] else { unreachable!("two words") };
    let kept = (1 << shift) - 1;
    low.store(low.load(Relaxed) & kept | new << shift, Relaxed);
    high.store(high.load(Relaxed) & !kept | new >> (64 - shift), Relaxed);
}

fn write_any(words: &[AtomicU64], at: usize, bytes: &[u8]) {
    let (mut index, shift) = (at / 8, at % 8);
    let mut rest = bytes;
    if shift != 0 {
        let (head, tail) = rest.split_at(rest.len().min(8 - shift));
        merge(&words[index], shift, head);
        rest = tail;
        index += 1;
    }
    let whole = rest.chunks_exact(8);
    let tail = whole.remainder();
    let count = whole.len();
    for (word, chunk) in words[index..index + count].iter().zip(whole) {
        word.store(u64::from_le_bytes(chunk.try_into().expect("eight bytes")), Relaxed);
    }
    if !tail.is_empty() {
        merge(&words[index + count], 0, tail);
    }
}

/// Replaces part of one word.
fn merge(word: &AtomicU64, shift: usize, bytes: &[u8]) {
    let mut all = word.load(Relaxed).to_le_bytes();
    all[shift..shift + bytes.len()].copy_from_slice(bytes);
    word.store(u64::from_le_bytes(all), Relaxed);
}

/// Appends `count` bytes from byte offset `at` on to `out`.
#[inline]
pub fn read(words: &[AtomicU64], at: usize, count: usize, out: &mut Vec<u8>) {
    if count == 0 {
        return;
    }
    let start = out.len();
    out.resize(start + count, 0);
    read_into(words, at, &mut out[start..]);
}

/// Fills `out` with the bytes from byte offset `at` on.
#[inline]
pub fn read_into(words: &[AtomicU64], at: usize, out: &mut [u8]) {
    let (index, shift) = (at / 8, at % 8);
    if out.len() < 8 {
        return read_few(words, at, out);
    }
    // The first and the last eight bytes are copied here. The copy of the whole words in between
    // writes some of these bytes again.
    let end = out.len() - 8;
    out[..8].copy_from_slice(&eight_at(words, at));
    out[end..].copy_from_slice(&eight_at(words, at + end));
    let (index, skipped) = if shift == 0 { (index, 0) } else { (index + 1, 8 - shift) };
    let body = &mut out[skipped..];
    let whole = body.len() / 8;
    for (chunk, word) in body.chunks_exact_mut(8).zip(&words[index..index + whole]) {
        chunk.copy_from_slice(&word.load(Relaxed).to_le_bytes());
    }
}

/// Fills `out` with whole words, as many as both have. Cheaper than an exact copy, for a caller with room for
/// the padding of the last word.
#[inline]
pub fn copy_whole(words: &[AtomicU64], out: &mut [u8]) {
    for (chunk, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *chunk = word.load(Relaxed).to_le_bytes();
    }
}

/// The eight bytes from byte offset `at` on.
#[inline]
fn eight_at(words: &[AtomicU64], at: usize) -> [u8; 8] {
    let (index, bits) = (at / 8, at % 8 * 8);
    let low = words[index].load(Relaxed) >> bits;
    let high = if bits == 0 { 0 } else { words[index + 1].load(Relaxed) << (64 - bits) };
    (low | high).to_le_bytes()
}

/// Fills `out`, which has less than eight bytes, from byte offset `at` on.
fn read_few(words: &[AtomicU64], at: usize, out: &mut [u8]) {
    let (first, shift) = (at / 8, at % 8);
    let mut bytes = [0; 16];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(&words[first..words_for(at + out.len())]) {
        chunk.copy_from_slice(&word.load(Relaxed).to_le_bytes());
    }
    out.copy_from_slice(&bytes[shift..shift + out.len()]);
}

/// Whether the words' first bytes are `bytes`, with zeros as padding of the last word.
#[inline]
pub fn starts_with(words: &[AtomicU64], bytes: &[u8]) -> bool {
    let whole = bytes.chunks_exact(8);
    let tail = whole.remainder();
    let count = whole.len();
    for (word, chunk) in words.iter().zip(whole) {
        if word.load(Relaxed) != u64::from_le_bytes(chunk.try_into().expect("eight bytes")) {
            return false;
        }
    }
    if tail.is_empty() {
        return true;
    }
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    words.get(count).is_some_and(|word| word.load(Relaxed) == u64::from_le_bytes(last))
}

/// Writes `bytes` from word 0 on, the last word padded with zeros.
#[inline]
pub fn fill(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, tail) = bytes.as_chunks::<8>();
    let (first, rest) = words.split_at(whole.len());
    for (word, chunk) in first.iter().zip(whole) {
        word.store(u64::from_le_bytes(*chunk), Relaxed);
    }
    if tail.is_empty() {
        return;
    }
    let last = match bytes.last_chunk::<8>() {
        // The last eight bytes, without those that earlier words hold.
        Some(last) => u64::from_le_bytes(*last) >> (64 - tail.len() * 8),
        None => {
            let mut all = [0; 8];
            all[..tail.len()].copy_from_slice(tail);
            u64::from_le_bytes(all)
        }
    };
    rest[0].store(last, Relaxed);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn zeroed(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn writes_at_any_offset_keep_what_is_around_them() {
        for at in 0..20 {
            for len in 0..30 {
                let words = zeroed(8);
                write(&words, 0, &[0xee; 64]);
                let bytes: Vec<u8> = (1..=len as u8).collect();
                write(&words, at, &bytes);
                let mut all = Vec::new();
                read(&words, 0, 64, &mut all);
                let mut expected = vec![0xee; 64];
                expected[at..at + len].copy_from_slice(&bytes);
                assert_eq!(all, expected, "at {at}, length {len}");
                let mut part = vec![9];
                read(&words, at, len, &mut part);
                assert_eq!(part[1..], bytes[..]);
                let mut slice = vec![0; len];
                read_into(&words, at, &mut slice);
                assert_eq!(slice, bytes);
            }
        }
    }

    #[test]
    fn equality_looks_at_every_byte() {
        for len in 0..20 {
            let bytes: Vec<u8> = (0..len).collect();
            let words = zeroed(4);
            fill(&words, &bytes);
            assert!(starts_with(&words, &bytes));
            for i in 0..bytes.len() {
                let mut other = bytes.clone();
                other[i] ^= 1;
                assert!(!starts_with(&words, &other));
            }
        }
    }
}
