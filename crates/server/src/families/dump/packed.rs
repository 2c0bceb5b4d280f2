//! The packed forms of small collections in RDB: listpack, ziplist, intset, zipmap.

use crate::heap::Heap;
use crate::keyspace::Contents;

/// Bytes of heap that a string takes, beside its own: its place, and those of the steps behind.
const STRING_BYTES: usize = 64;

/// The strings of a payload, within the heap of the command.
#[derive(Debug)]
pub(super) struct Strings<'h> {
    pub(super) contents: Contents,
    pub(super) heap: &'h mut Heap,
}

impl<'h> Strings<'h> {
    pub(super) fn new(heap: &'h mut Heap) -> Self {
        Self { contents: Contents::default(), heap }
    }

    /// Adds a string; `None` if the command has no heap for it.
    pub(super) fn push(&mut self, string: &[u8]) -> Option<()> {
        self.heap.take(string.len() + STRING_BYTES).then(|| self.contents.push(string))
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn text(number: i64) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// A signed number from its bytes, the lowest first.
fn signed(bytes: &[u8]) -> i64 {
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut all = [if negative { 0xff } else { 0 }; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(all)
}

/// Elements of a listpack: length in bytes (u32), elements (u16), and each element with its own length
/// behind it.
pub(super) fn listpack(bytes: &[u8], into: &mut Strings<'_>) -> Option<()> {
    if u32::from_le_bytes(array(bytes, 0)?) as usize != bytes.len() {
        return None;
    }
    let mut at = 6;
    loop {
        let first = *bytes.get(at)?;
        if first == 0xff {
            return (at + 1 == bytes.len()).then_some(());
        }
        let (element, len) = listpack_element(bytes, at, first)?;
        into.push(&element)?;
        at += len + back_bytes(len);
    }
}

/// An element, and its number of bytes. The length that stands behind the element does not count.
fn listpack_element(bytes: &[u8], at: usize, first: u8) -> Option<(Vec<u8>, usize)> {
    let string = |head: usize, len: usize| {
        let start = at + head;
        Some((bytes.get(start..start.checked_add(len)?)?.to_vec(), head + len))
    };
    let integer = |len: usize| Some((text(signed(bytes.get(at + 1..at + 1 + len)?)), 1 + len));
    match first {
        0..0x80 => Some((text(i64::from(first)), 1)),
        0x80..0xc0 => string(1, usize::from(first & 0x3f)),
        0xc0..0xe0 => {
            let number = i64::from(first & 0x1f) << 8 | i64::from(*bytes.get(at + 1)?);
            Some((text(if number < 0x1000 { number } else { number - 0x2000 }), 2))
        }
        0xe0..0xf0 => string(2, usize::from(first & 0xf) << 8 | usize::from(*bytes.get(at + 1)?)),
        0xf0 => string(5, u32::from_le_bytes(array(bytes, at + 1)?) as usize),
        0xf1 => integer(2),
        0xf2 => integer(3),
        0xf3 => integer(4),
        0xf4 => integer(8),
        _ => None,
    }
}

/// Bytes of the length behind an element of `len` bytes.
fn back_bytes(len: usize) -> usize {
    match len {
        0..=127 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        2_097_151..268_435_455 => 4,
        _ => 5,
    }
}

/// Elements of a ziplist. The head of a ziplist is the length in bytes (u32), the offset of the
/// last element (u32) and the number of elements (u16). Before each element stands the length of
/// the previous one.
pub(super) fn ziplist(bytes: &[u8], into: &mut Strings<'_>) -> Option<()> {
    if u32::from_le_bytes(array(bytes, 0)?) as usize != bytes.len() {
        return None;
    }
    let mut at = 10;
    loop {
        let before = *bytes.get(at)?;
        if before == 0xff {
            return (at + 1 == bytes.len()).then_some(());
        }
        at += if before == 0xfe { 5 } else { 1 };
        let (element, len) = ziplist_element(bytes, at)?;
        into.push(&element)?;
        at += len;
    }
}

fn ziplist_element(bytes: &[u8], at: usize) -> Option<(Vec<u8>, usize)> {
    let first = *bytes.get(at)?;
    let string = |head: usize, len: usize| {
        let start = at + head;
        Some((bytes.get(start..start.checked_add(len)?)?.to_vec(), head + len))
    };
    let integer = |len: usize| Some((text(signed(bytes.get(at + 1..at + 1 + len)?)), 1 + len));
    match first {
        0..0x40 => string(1, usize::from(first)),
        0x40..0x80 => string(2, usize::from(first & 0x3f) << 8 | usize::from(*bytes.get(at + 1)?)),
        0x80..0xc0 => string(5, u32::from_be_bytes(array(bytes, at + 1)?) as usize),
        0xc0 => integer(2),
        0xd0 => integer(4),
        0xe0 => integer(8),
        0xf0 => integer(3),
        0xfe => integer(1),
        0xf1..=0xfd => Some((text(i64::from(first & 0xf) - 1), 1)),
        _ => None,
    }
}

/// Members of an intset: the bytes of each number (u32), how many numbers there are (u32), and the
/// numbers.
pub(super) fn intset(bytes: &[u8], into: &mut Strings<'_>) -> Option<()> {
    let width = u32::from_le_bytes(array(bytes, 0)?) as usize;
    let count = u32::from_le_bytes(array(bytes, 4)?) as usize;
    let numbers = bytes.get(8..)?;
    if ![2, 4, 8].contains(&width) || numbers.len() != count.checked_mul(width)? {
        return None;
    }
    numbers.chunks(width).try_for_each(|number| into.push(&text(signed(number))))
}

/// Fields and values of a zipmap: the number of fields (u8), then each string behind its length. One
/// more byte behind the length of a value tells how many bytes behind the value are free.
pub(super) fn zipmap(bytes: &[u8], into: &mut Strings<'_>) -> Option<()> {
    let mut at = 1;
    while *bytes.get(at)? != 0xff {
        let is_value = into.contents.len() % 2 == 1;
        let len = match bytes[at] {
            0xfe => {
                at += 5;
                u32::from_le_bytes(array(bytes, at - 4)?) as usize
            }
            len => {
                at += 1;
                usize::from(len)
            }
        };
        let free = if is_value { usize::from(*bytes.get(at)?) } else { 0 };
        at += usize::from(is_value);
        let end = at.checked_add(len)?;
        into.push(bytes.get(at..end)?)?;
        at = end + free;
    }
    (at + 1 == bytes.len()).then_some(())
}
