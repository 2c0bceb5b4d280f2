//! Reading payloads. Whatever the bytes are, the answer is a value or `None`.

use std::collections::HashSet;

use super::crc::crc64;
use super::packed::{Strings, intset, listpack, ziplist, zipmap};
use super::{Value, types};
use crate::families::sorted_sets::score::{parts, score_bytes};
use crate::heap::Heap;
use crate::keyspace::{Contents, Field, Kind};
use crate::resp::{parse_f64, parse_i64};

/// The newest RDB version that we read.
const VERSION_MAX: u16 = 12;
/// The latest expiry of a field in milliseconds since the Unix epoch, as in Redis.
const EXPIRE_AT_MS_MAX: u64 = (1 << 46) - 1;
/// Bytes of the footer, which follows the value.
const FOOTER_BYTES: usize = 10;
/// Most bytes that one byte of compressed LZF becomes.
const LZF_GAIN_MAX: usize = 264;

/// The bytes before the footer, if version and checksum are right.
pub(super) fn checked(payload: &[u8]) -> Option<&[u8]> {
    let (body, footer) = payload.split_at_checked(payload.len().checked_sub(FOOTER_BYTES)?)?;
    let version = u16::from_le_bytes(*footer.first_chunk()?);
    let crc = u64::from_le_bytes(*footer.last_chunk()?);
    let is_right = crc == crc64(&payload[..payload.len() - 8]);
    (version <= VERSION_MAX && is_right).then_some(body)
}

/// Bytes that a payload may have unpacked before the command has to leave its event loop.
const UNPACKED_BYTES: usize = 64 << 10;

/// What a body is.
pub(super) enum Read {
    Value(Value),
    /// Long strings are to be unpacked first: so many bytes, and perhaps more.
    Long(usize),
    /// No value, or one for which the command has no heap.
    Nothing,
}

/// Reads a body within the heap of the command. A command that may leave its event loop gets no value
/// of long strings that are packed.
pub(super) fn read(body: &[u8], heap: &mut Heap, may_leave: bool) -> Read {
    let left = if may_leave { UNPACKED_BYTES } else { usize::MAX };
    let mut input = Input { bytes: &[], left, unpacked: 0 };
    let value = value(body, &mut input, heap);
    match value {
        Some(value) => Read::Value(value),
        None if input.unpacked > left => Read::Long(input.unpacked),
        None => Read::Nothing,
    }
}

/// The value of a body.
fn value<'a>(body: &'a [u8], input: &mut Input<'a>, heap: &mut Heap) -> Option<Value> {
    let (&kind, rest) = body.split_first()?;
    input.bytes = rest;
    let mut strings = Strings::new(heap);
    let value = match kind {
        types::STRING => Value::String(input.string(strings.heap)?),
        types::LIST => {
            input.strings(1, &mut strings)?;
            list(strings)?
        }
        types::SET => {
            input.strings(1, &mut strings)?;
            set(strings)?
        }
        types::HASH => {
            input.strings(2, &mut strings)?;
            hash(strings)?
        }
        types::SORTED_SET => input.sorted_set(strings, Input::score_text)?,
        types::SORTED_SET_BINARY => input.sorted_set(strings, Input::score_binary)?,
        types::HASH_ZIPMAP => hash(input.packed(strings, zipmap)?)?,
        types::LIST_ZIPLIST => list(input.packed(strings, ziplist)?)?,
        types::SET_INTSET => set(input.packed(strings, intset)?)?,
        types::SORTED_SET_ZIPLIST => sorted_set_of_texts(input.packed(strings, ziplist)?)?,
        types::HASH_ZIPLIST => hash(input.packed(strings, ziplist)?)?,
        types::LIST_QUICKLIST => input.quicklist(strings, false)?,
        types::HASH_LISTPACK => hash(input.packed(strings, listpack)?)?,
        types::SORTED_SET_LISTPACK => sorted_set_of_texts(input.packed(strings, listpack)?)?,
        types::LIST_QUICKLIST_2 => input.quicklist(strings, true)?,
        types::SET_LISTPACK => set(input.packed(strings, listpack)?)?,
        types::HASH_TIMED_EARLY => input.timed_hash(strings, None)?,
        types::HASH_TIMED_LISTPACK_EARLY => timed_hash_of_texts(input.packed(strings, listpack)?)?,
        types::HASH_TIMED => {
            let earliest = u64::from_le_bytes(input.array()?);
            input.timed_hash(strings, Some(earliest))?
        }
        types::HASH_TIMED_LISTPACK => {
            let _earliest: [u8; 8] = input.array()?;
            timed_hash_of_texts(input.packed(strings, listpack)?)?
        }
        _ => return None,
    };
    input.bytes.is_empty().then_some(value)
}

/// The rest of a body.
struct Input<'a> {
    bytes: &'a [u8],
    /// Bytes that may be unpacked.
    left: usize,
    /// Bytes that were unpacked, or would have to be.
    unpacked: usize,
}

/// Reads the strings of a packed form.
type Unpack = fn(&[u8], &mut Strings<'_>) -> Option<()>;

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A length, or the code of an encoding of a string.
    fn len_or_code(&mut self) -> Option<Result<u64, u8>> {
        let first = self.byte()?;
        Some(match first >> 6 {
            0 => Ok(u64::from(first)),
            1 => Ok(u64::from(first & 0x3f) << 8 | u64::from(self.byte()?)),
            2 if first == 0x80 => Ok(u64::from(u32::from_be_bytes(self.array()?))),
            2 if first == 0x81 => Ok(u64::from_be_bytes(self.array()?)),
            2 => return None,
            _ => Err(first & 0x3f),
        })
    }

    /// Reads a number of parts. Each part takes at least a byte, so the number is at most that of
    /// the remaining bytes.
    fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.len_or_code()?.ok()?).ok()?;
        (count <= self.bytes.len()).then_some(count)
    }

    fn string(&mut self, heap: &mut Heap) -> Option<Vec<u8>> {
        let code = match self.len_or_code()? {
            Ok(len) => {
                // A string that is not packed is no longer than the payload.
                return Some(self.take(usize::try_from(len).ok()?)?.to_vec());
            }
            Err(code) => code,
        };
        let integer = match code {
            0 => i32::from(i8::from_le_bytes(self.array()?)),
            1 => i32::from(i16::from_le_bytes(self.array()?)),
            2 => i32::from_le_bytes(self.array()?),
            3 => {
                let packed = usize::try_from(self.len_or_code()?.ok()?).ok()?;
                let len = usize::try_from(self.len_or_code()?.ok()?).ok()?;
                let packed = self.take(packed)?;
                self.unpacked = self.unpacked.saturating_add(len);
                if len > packed.len().saturating_mul(LZF_GAIN_MAX) || self.unpacked > self.left {
                    return None;
                }
                return if heap.take(len) { unpacked(packed, len) } else { None };
            }
            _ => return None,
        };
        Some(integer.to_string().into_bytes())
    }

    /// Reads a count, and then that count times `each` strings.
    fn strings(&mut self, each: usize, into: &mut Strings<'_>) -> Option<()> {
        let count = self.count()?.checked_mul(each)?;
        (0..count).try_for_each(|_| {
            let string = self.string(into.heap)?;
            into.push(&string)
        })
    }

    /// Reads the strings of one packed form.
    fn packed<'h>(&mut self, mut into: Strings<'h>, unpack: Unpack) -> Option<Strings<'h>> {
        let packed = self.string(into.heap)?;
        unpack(&packed, &mut into)?;
        Some(into)
    }

    fn sorted_set(
        &mut self,
        mut into: Strings<'_>,
        score: fn(&mut Self) -> Option<f64>,
    ) -> Option<Value> {
        for _ in 0..self.count()? {
            let member = self.string(into.heap)?;
            into.push(&[&score_bytes(score(self)?), &member[..]].concat())?;
        }
        sorted_set(into.contents)
    }

    /// A hash with an expiry before each field: 0 for none, or the distance to the earliest expiry
    /// plus 1. If the earliest expiry is not known, the number is the expiry itself.
    fn timed_hash(&mut self, mut into: Strings<'_>, earliest: Option<u64>) -> Option<Value> {
        for _ in 0..self.count()? {
            let expire_at_ms = match (self.len_or_code()?.ok()?, earliest) {
                (0, _) => None,
                (distance, Some(earliest)) => Some(earliest.checked_add(distance - 1)?),
                (at, None) => Some(at),
            };
            let (name, value) = (self.string(into.heap)?, self.string(into.heap)?);
            push_field(&mut into, (&name, &value, expire_at_ms))?;
        }
        hash_of_fields(into.contents)
    }

    fn score_text(&mut self) -> Option<f64> {
        match self.byte()? {
            253 => None,
            254 => Some(f64::INFINITY),
            255 => Some(f64::NEG_INFINITY),
            len => parse_f64(self.take(usize::from(len))?),
        }
    }

    fn score_binary(&mut self) -> Option<f64> {
        Some(f64::from_le_bytes(self.array()?)).filter(|score| !score.is_nan())
    }

    fn quicklist(&mut self, mut into: Strings<'_>, has_containers: bool) -> Option<Value> {
        for _ in 0..self.count()? {
            let container = if has_containers { Some(self.len_or_code()?.ok()?) } else { None };
            let node = self.string(into.heap)?;
            match container {
                None => ziplist(&node, &mut into)?,
                Some(1) => into.push(&node)?,
                Some(2) => listpack(&node, &mut into)?,
                Some(_) => return None,
            }
        }
        list(into)
    }
}

/// Decompresses LZF.
fn unpacked(mut packed: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(len);
    while let Some((&control, rest)) = packed.split_first() {
        packed = rest;
        if control < 32 {
            let (literal, rest) = packed.split_at_checked(usize::from(control) + 1)?;
            out.extend_from_slice(literal);
            packed = rest;
        } else {
            let mut copied = usize::from(control >> 5);
            if copied == 7 {
                let (&more, rest) = packed.split_first()?;
                copied += usize::from(more);
                packed = rest;
            }
            let (&low, rest) = packed.split_first()?;
            packed = rest;
            let back = (usize::from(control & 0x1f) << 8 | usize::from(low)) + 1;
            let from = out.len().checked_sub(back)?;
            // The copied range may include bytes that this copy itself appends.
            (from..from + copied + 2).for_each(|at| out.push(out[at]));
        }
        if out.len() > len {
            return None;
        }
    }
    (out.len() == len).then_some(out)
}

fn list(elements: Strings<'_>) -> Option<Value> {
    collection(Kind::LIST, elements.contents)
}

fn set(members: Strings<'_>) -> Option<Value> {
    differ(members.contents.iter()).then_some(())?;
    collection(Kind::SET, members.contents)
}

/// Name, value, and expiry in milliseconds since the Unix epoch.
type FieldParts<'a> = (&'a [u8], &'a [u8], Option<u64>);

/// Adds a field, whose expiry must be one that a command could set.
fn push_field(fields: &mut Strings<'_>, (name, value, expire_at_ms): FieldParts<'_>) -> Option<()> {
    if expire_at_ms.is_some_and(|at| at > EXPIRE_AT_MS_MAX) {
        return None;
    }
    fields.push(&Field { name, value, expire_at_ms }.content())
}

/// A hash of fields and values in turn.
fn hash(pairs: Strings<'_>) -> Option<Value> {
    let Strings { contents, heap } = pairs;
    let (mut fields, mut texts) = (Strings::new(heap), contents.iter());
    while let Some(name) = texts.next() {
        push_field(&mut fields, (name, texts.next()?, None))?;
    }
    hash_of_fields(fields.contents)
}

/// A hash of fields, values and expiries in turn; an expiry of 0 is none.
fn timed_hash_of_texts(texts: Strings<'_>) -> Option<Value> {
    let Strings { contents, heap } = texts;
    let (mut fields, mut texts) = (Strings::new(heap), contents.iter());
    while let Some(name) = texts.next() {
        let (value, at) = (texts.next()?, texts.next()?);
        let at = u64::try_from(parse_i64(at)?).ok()?;
        push_field(&mut fields, (name, value, (at > 0).then_some(at)))?;
    }
    hash_of_fields(fields.contents)
}

fn hash_of_fields(contents: Contents) -> Option<Value> {
    differ(contents.iter().map(|content| Field::of(content).name)).then_some(())?;
    collection(Kind::HASH, contents)
}

/// A sorted set of members and scores in turn, both as text.
fn sorted_set_of_texts(texts: Strings<'_>) -> Option<Value> {
    let Strings { contents, heap } = texts;
    let (mut elements, mut texts) = (Strings::new(heap), contents.iter());
    while let Some(member) = texts.next() {
        let score = parse_f64(texts.next()?)?;
        elements.push(&[&score_bytes(score), member].concat())?;
    }
    sorted_set(elements.contents)
}

fn sorted_set(contents: Contents) -> Option<Value> {
    differ(contents.iter().map(|content| parts(content).1)).then_some(())?;
    collection(Kind::SORTED_SET, contents)
}

fn differ<'a>(mut names: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut seen = HashSet::new();
    names.all(|name| seen.insert(name))
}

/// A collection, which must have elements.
fn collection(kind: Kind, contents: Contents) -> Option<Value> {
    (contents.len() > 0).then_some(Value::Collection(kind, contents))
}
