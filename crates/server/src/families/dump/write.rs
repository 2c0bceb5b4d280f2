//! Writing payloads.

use super::crc::crc64;
use super::{Value, types};
use crate::families::sorted_sets::score::{parts, score_text};
use crate::keyspace::{Contents, Kind, string_at};
use crate::resp::parse_i64;

/// The RDB version of what we write.
const VERSION: u16 = 6;

/// The payload of a value.
pub(super) fn payload(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    match value {
        Value::String(string) => {
            out.push(types::STRING);
            put_string(&mut out, string);
        }
        Value::Collection(kind, contents) => put_collection(&mut out, *kind, contents),
    }
    out.extend_from_slice(&VERSION.to_le_bytes());
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
            let (field, end) = string_at(content, 0).unwrap_or((content, content.len()));
            put_string(out, field);
            put_string(out, &content[end..]);
        } else {
            put_string(out, content);
        }
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

/// Appends a string; a short integer as such.
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
