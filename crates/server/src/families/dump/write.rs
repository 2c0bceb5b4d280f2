//! Writing payloads.

use super::crc::crc64;
use super::{Value, types};
use crate::families::sorted_sets::score::{parts, score_text};
use crate::keyspace::{Contents, Field, Kind};
use crate::resp::parse_i64;

/// The RDB version of what we write.
const VERSION: u16 = 6;
/// The RDB version of a hash whose fields expire.
const TIMED_VERSION: u16 = 12;

/// The payload of a value.
pub(super) fn payload(value: &Value) -> Vec<u8> {
    let (mut out, mut version) = (Vec::new(), VERSION);
    match value {
        Value::String(string) => {
            out.push(types::STRING);
            put_string(&mut out, string);
        }
        Value::Collection(Kind::HASH, contents) => {
            let earliest = contents.iter().filter_map(|content| Field::of(content).expire_at_ms);
            match earliest.min() {
                Some(earliest) => {
                    version = TIMED_VERSION;
                    put_timed_hash(&mut out, earliest, contents);
                }
                None => put_collection(&mut out, Kind::HASH, contents),
            }
        }
        Value::Collection(kind, contents) => put_collection(&mut out, *kind, contents),
    }
    out.extend_from_slice(&version.to_le_bytes());
    let crc = crc64(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

fn put_collection(out: &mut Vec<u8>, kind: Kind, contents: &Contents) {
    out.push(match kind {
        Kind::LIST => types::LIST,
        Kind::SET => types::SET,
        Kind::SORTED_SET => types::SORTED_SET,
        _ => types::HASH,
    });
    put_len(out, contents.len() as u64);
    for content in contents.iter() {
        if kind == Kind::SORTED_SET {
            let (score, member) = parts(content);
            put_string(out, member);
            put_score(out, score);
        } else if kind == Kind::HASH {
            let field = Field::of(content);
            put_string(out, field.name);
            put_string(out, field.value);
        } else {
            put_string(out, content);
        }
    }
}

/// Appends a hash with the expiries of its fields: the earliest, and each as the distance to it plus
/// 1, or 0 for none.
fn put_timed_hash(out: &mut Vec<u8>, earliest: u64, contents: &Contents) {
    out.push(types::HASH_TIMED);
    out.extend_from_slice(&earliest.to_le_bytes());
    put_len(out, contents.len() as u64);
    for field in contents.iter().map(Field::of) {
        put_len(out, field.expire_at_ms.map_or(0, |at| at.saturating_sub(earliest) + 1));
        put_string(out, field.name);
        put_string(out, field.value);
    }
}

fn put_len(out: &mut Vec<u8>, len: u64) {
    match len {
        0..0x40 => out.push(len as u8),
        0x40..0x4000 => out.extend_from_slice(&(len as u16 | 0x4000).to_be_bytes()),
        0x4000..=0xffff_ffff => {
            out.push(0x80);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
        _ => {
            out.push(0x81);
            out.extend_from_slice(&len.to_be_bytes());
        }
    }
}

/// Appends a string. A short integer is written as a number.
fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    let integer = if string.len() <= 11 { parse_i64(string) } else { None };
    if let Some(integer) = integer.and_then(|integer| i32::try_from(integer).ok()) {
        let bytes = integer.to_le_bytes();
        let (code, len) = match integer {
            -0x80..=0x7f => (0, 1),
            -0x8000..=0x7fff => (1, 2),
            _ => (2, 4),
        };
        out.push(0xc0 | code);
        return out.extend_from_slice(&bytes[..len]);
    }
    put_len(out, string.len() as u64);
    out.extend_from_slice(string);
}

/// Appends a score as text.
fn put_score(out: &mut Vec<u8>, score: f64) {
    match score {
        f64::INFINITY => out.push(254),
        f64::NEG_INFINITY => out.push(255),
        score => {
            let text = score_text(score);
            out.push(text.len() as u8);
            out.extend_from_slice(text.as_bytes());
        }
    }
}
