//! Reading payloads. Whatever the bytes are, the answer is a value or `None`.

use std::collections::HashSet;

use super::crc::crc64;
use super::packed::{intset, listpack, ziplist, zipmap};
use super::{Value, types};
use crate::families::sorted_sets::score::score_bytes;
use crate::keyspace::{Contents, Field, Kind};
use crate::resp::{parse_f64, parse_i64};

/// The newest RDB version that we read.
const VERSION_MAX: u16 = 12;
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

/// The value of a body.
pub(super) fn value(body: &[u8]) -> Option<Value> {
    let (&kind, rest) = body.split_first()?;
    let mut input = Input { bytes: rest };
    let value = match kind {
        types::STRING => Value::String(input.string()?),
        types::LIST => input.list()?,
        types::SET => set(input.strings(1)?)?,
        types::HASH => hash(input.strings(2)?)?,
        types::SORTED_SET => input.sorted_set(Input::score_text)?,
        types::SORTED_SET_BINARY => input.sorted_set(Input::score_binary)?,
        types::HASH_ZIPMAP => hash(zipmap(&input.string()?)?)?,
        types::LIST_ZIPLIST => list(ziplist(&input.string()?)?)?,
        types::SET_INTSET => set(intset(&input.string()?)?)?,
        types::SORTED_SET_ZIPLIST => sorted_set_of_texts(ziplist(&input.string()?)?)?,
        types::HASH_ZIPLIST => hash(ziplist(&input.string()?)?)?,
        types::LIST_QUICKLIST => input.quicklist(false)?,
        types::HASH_LISTPACK => hash(listpack(&input.string()?)?)?,
        types::SORTED_SET_LISTPACK => sorted_set_of_texts(listpack(&input.string()?)?)?,
        types::LIST_QUICKLIST_2 => input.quicklist(true)?,
        types::SET_LISTPACK => set(listpack(&input.string()?)?)?,
        types::HASH_TIMED_EARLY => input.timed_hash(None)?,
        types::HASH_TIMED_LISTPACK_EARLY => timed_hash_of_texts(listpack(&input.string()?)?)?,
        types::HASH_TIMED => {
            let earliest = u64::from_le_bytes(input.array()?);
            input.timed_hash(Some(earliest))?
        }
        types::HASH_TIMED_LISTPACK => {
            let _earliest: [u8; 8] = input.array()?;
            timed_hash_of_texts(listpack(&input.string()?)?)?
        }
        _ => return None,
    };
    input.bytes.is_empty().then_some(value)
}

/// The rest of a body.
struct Input<'a> {
    bytes: &'a [u8],
}

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

    fn string(&mut self) -> Option<Vec<u8>> {
        let code = match self.len_or_code()? {
            Ok(len) => return Some(self.take(usize::try_from(len).ok()?)?.to_vec()),
            Err(code) => code,
        };
        let integer = match code {
            0 => i32::from(i8::from_le_bytes(self.array()?)),
            1 => i32::from(i16::from_le_bytes(self.array()?)),
            2 => i32::from_le_bytes(self.array()?),
            3 => {
                let packed = usize::try_from(self.len_or_code()?.ok()?).ok()?;
                let len = usize::try_from(self.len_or_code()?.ok()?).ok()?;
                return unpacked(self.take(packed)?, len);
            }
            _ => return None,
        };
        Some(integer.to_string().into_bytes())
    }

    /// Reads a count, and then that count times `each` strings.
    fn strings(&mut self, each: usize) -> Option<Vec<Vec<u8>>> {
        let count = self.count()?.checked_mul(each)?;
        (0..count).map(|_| self.string()).collect()
    }

    fn list(&mut self) -> Option<Value> {
        list(self.strings(1)?)
    }

    fn sorted_set(&mut self, score: fn(&mut Self) -> Option<f64>) -> Option<Value> {
        let count = self.count()?;
        let pairs = (0..count).map(|_| {
            let member = self.string()?;
            Some((member, score(self)?))
        });
        sorted_set(pairs.collect::<Option<_>>()?)
    }

    /// A hash with an expiry before each field: 0 for none, or the distance to the earliest expiry
    /// plus 1. If the earliest expiry is not known, the number is the expiry itself.
    fn timed_hash(&mut self, earliest: Option<u64>) -> Option<Value> {
        let count = self.count()?;
        let fields = (0..count).map(|_| {
            let expire_at_ms = match (self.len_or_code()?.ok()?, earliest) {
                (0, _) => None,
                (distance, Some(earliest)) => Some(earliest.checked_add(distance - 1)?),
                (at, None) => Some(at),
            };
            Some((self.string()?, self.string()?, expire_at_ms))
        });
        hash_of_fields(&fields.collect::<Option<Vec<_>>>()?)
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

    fn quicklist(&mut self, has_containers: bool) -> Option<Value> {
        let mut elements = Vec::new();
        for _ in 0..self.count()? {
            let container = if has_containers { Some(self.len_or_code()?.ok()?) } else { None };
            let node = self.string()?;
            match container {
                None => elements.extend(ziplist(&node)?),
                Some(1) => elements.push(node),
                Some(2) => elements.extend(listpack(&node)?),
                Some(_) => return None,
            }
        }
        list(elements)
    }
}

/// Decompresses LZF.
fn unpacked(mut packed: &[u8], len: usize) -> Option<Vec<u8>> {
    if len > packed.len().saturating_mul(LZF_GAIN_MAX) {
        return None;
    }
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

fn list(elements: Vec<Vec<u8>>) -> Option<Value> {
    let mut contents = Contents::default();
    elements.iter().for_each(|element| contents.push(element));
    collection(Kind::LIST, contents)
}

fn set(members: Vec<Vec<u8>>) -> Option<Value> {
    let mut contents = Contents::default();
    members.iter().for_each(|member| contents.push(member));
    differ(members.iter()).then_some(())?;
    collection(Kind::SET, contents)
}

/// A hash of fields and values in turn.
fn hash(pairs: Vec<Vec<u8>>) -> Option<Value> {
    let fields = pairs.chunks(2).map(|pair| match pair {
        [field, value] => Some((field.clone(), value.clone(), None)),
        _ => None,
    });
    hash_of_fields(&fields.collect::<Option<Vec<_>>>()?)
}

/// A hash of fields, values and expiries in turn; an expiry of 0 is none.
fn timed_hash_of_texts(texts: Vec<Vec<u8>>) -> Option<Value> {
    let fields = texts.chunks(3).map(|texts| {
        let [field, value, at] = texts else { return None };
        let at = u64::try_from(parse_i64(at)?).ok()?;
        Some((field.clone(), value.clone(), (at > 0).then_some(at)))
    });
    hash_of_fields(&fields.collect::<Option<Vec<_>>>()?)
}

/// Name, value, and expiry in milliseconds since the Unix epoch.
type FieldParts = (Vec<u8>, Vec<u8>, Option<u64>);

fn hash_of_fields(fields: &[FieldParts]) -> Option<Value> {
    let mut contents = Contents::default();
    for (name, value, expire_at_ms) in fields {
        contents.push(&Field { name, value, expire_at_ms: *expire_at_ms }.content());
    }
    differ(fields.iter().map(|(name, ..)| name)).then_some(())?;
    collection(Kind::HASH, contents)
}

/// A sorted set of members and scores in turn, both as text.
fn sorted_set_of_texts(texts: Vec<Vec<u8>>) -> Option<Value> {
    let pairs = texts.chunks(2).map(|pair| match pair {
        [member, score] => Some((member.clone(), parse_f64(score)?)),
        _ => None,
    });
    sorted_set(pairs.collect::<Option<_>>()?)
}

fn sorted_set(pairs: Vec<(Vec<u8>, f64)>) -> Option<Value> {
    let mut contents = Contents::default();
    pairs.iter().for_each(|(member, score)| contents.push_parts(&[&score_bytes(*score), member]));
    differ(pairs.iter().map(|(member, _)| member)).then_some(())?;
    collection(Kind::SORTED_SET, contents)
}

fn differ<'a>(mut names: impl Iterator<Item = &'a Vec<u8>>) -> bool {
    let mut seen = HashSet::new();
    names.all(|name| seen.insert(name))
}

/// A collection, which must have elements.
fn collection(kind: Kind, contents: Contents) -> Option<Value> {
    (contents.len() > 0).then_some(Value::Collection(kind, contents))
}
