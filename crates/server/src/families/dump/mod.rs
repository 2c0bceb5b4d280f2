//! DUMP and RESTORE: values in the format of Redis's RDB files.
//!
//! ```text
//! payload  type (u8), value, RDB version (u16), CRC64 of all before it (u64); little-endian
//! ```
//! We write version 6, the oldest with DUMP, in the types that every version knows. A hash whose fields
//! expire is written in version 12, the first that has such hashes. We read all types of strings,
//! lists, sets, sorted sets and hashes up to version 12.

mod crc;
mod packed;
mod read;
mod write;

use stillpoint::Tx;

use self::read::Read;
use crate::args::{integer, is};
use crate::config::Db;
use crate::error::{CmdError, CmdResult};
use crate::keyspace::{Contents, Keyspace, Kind, NewElements};
use crate::resp::Args;
use crate::session::context::Context;
use crate::session::row::{GENERIC, Keyed, ONE, R, WM, copying, row, weighed_by};
use crate::session::spec::Spec;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    copying(row("dump", 2, R, ONE, GENERIC, "2.6.0", Keyed(dump), "Returns the value at a key as bytes.")),
    weighed_by(row("restore", -4, WM, ONE, GENERIC, "2.6.0", Keyed(restore), "Makes a key of bytes that DUMP gave."), restore_weight),
];

/// Bytes of a payload whose elements take a microsecond, about.
const BYTES_OF_UNIT: usize = 32;

/// A value outside of the keyspace.
enum Value {
    String(Vec<u8>),
    /// The contents of the elements, as the keyspace has them.
    Collection(Kind, Contents),
}

fn dump(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let value = match ctx.keys().open_any(tx, 0, args.at(1))? {
        Some(mut collection) => {
            ctx.keys().leave_if_long(collection.len())?;
            let mut contents = Contents::default();
            collection.visit_all(tx, &mut |content| contents.push(content))?;
            if contents.len() == 0 {
                // All fields of the hash have expired.
                ctx.reply.null();
                return Ok(());
            }
            Value::Collection(collection.kind(), contents)
        }
        None => match ctx.keys().read(tx, 0, args.at(1)) {
            Some(entry) => {
                let mut string = Vec::with_capacity(entry.len());
                entry.copy_to(&mut string);
                Value::String(string)
            }
            None => {
                ctx.reply.null();
                return Ok(());
            }
        },
    };
    ctx.reply.bulk(&write::payload(&value));
    Ok(())
}

/// Options of `RESTORE`.
struct Options {
    replace: bool,
    ttl_is_moment: bool,
}

impl Options {
    fn parse(args: Args<'_>) -> Result<Self, CmdError> {
        let mut options = Self { replace: false, ttl_is_moment: false };
        // The marks of accesses begin with the restored key, so these options are only parsed. At most
        // one of these options may be given.
        let (mut idle, mut frequency) = (false, false);
        let mut i = 4;
        while let Some(arg) = args.get(i) {
            let value = args.get(i + 1);
            match value {
                _ if is(arg, "REPLACE") => options.replace = true,
                _ if is(arg, "ABSTTL") => options.ttl_is_moment = true,
                Some(value) if is(arg, "IDLETIME") && !frequency => {
                    if integer(value)? < 0 {
                        return Err(CmdError::fixed("ERR Invalid IDLETIME value, must be >= 0"));
                    }
                    idle = true;
                    i += 1;
                }
                Some(value) if is(arg, "FREQ") && !idle => {
                    if !(0..=255).contains(&integer(value)?) {
                        let text = "ERR Invalid FREQ value, must be >= 0 and <= 255";
                        return Err(CmdError::fixed(text));
                    }
                    frequency = true;
                    i += 1;
                }
                _ => return Err(CmdError::SYNTAX),
            }
            i += 1;
        }
        Ok(options)
    }
}

/// An element takes two bytes of the payload at least.
fn restore_weight(args: Args<'_>, _: Db, _: &Keyspace) -> usize {
    args.get(3).map_or(0, |payload| payload.len() / BYTES_OF_UNIT)
}

fn restore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let options = Options::parse(args)?;
    if !options.replace && ctx.keys().lookup(tx, 0, args.at(1)).is_some() {
        return Err(CmdError::fixed("BUSYKEY Target key name already exists."));
    }
    let ttl = u64::try_from(integer(args.at(2))?)
        .map_err(|_| CmdError::fixed("ERR Invalid TTL value, must be >= 0"))?;
    let body = read::checked(args.at(3))
        .ok_or(CmdError::fixed("ERR DUMP payload version or checksum are wrong"))?;
    let mut heap = ctx.heap();
    let mut read = read::read(body, &mut heap, true);
    if let Read::Long(bytes) = read {
        ctx.keys().leave_if_long(bytes as u64)?;
        heap = ctx.heap();
        read = read::read(body, &mut heap, false);
    }
    heap.check()?;
    let Read::Value(value) = read else { return Err(CmdError::fixed("ERR Bad data format")) };
    let expire_at_ms = match ttl {
        0 => None,
        moment if options.ttl_is_moment => Some(moment),
        ttl => Some(ctx.now_ms().saturating_add(ttl)),
    };
    match value {
        // A value that has expired deletes the key.
        Value::String(string) => {
            ctx.keys().put(tx, 0, Kind::STRING, expire_at_ms, &string)?;
        }
        Value::Collection(kind, contents) => {
            if expire_at_ms.is_none_or(|at| at > ctx.now_ms()) {
                let new = NewElements { expire_at_ms, ..NewElements::of(kind, &contents) };
                ctx.keys().store(tx, 0, &new)?;
            } else {
                ctx.keys().delete(tx, 0)?;
            }
        }
    }
    ctx.reply.ok();
    Ok(())
}

/// Numbers that stand for types of values.
mod types {
    pub(super) const STRING: u8 = 0;
    pub(super) const LIST: u8 = 1;
    pub(super) const SET: u8 = 2;
    pub(super) const SORTED_SET: u8 = 3;
    pub(super) const HASH: u8 = 4;
    pub(super) const SORTED_SET_BINARY: u8 = 5;
    pub(super) const HASH_ZIPMAP: u8 = 9;
    pub(super) const LIST_ZIPLIST: u8 = 10;
    pub(super) const SET_INTSET: u8 = 11;
    pub(super) const SORTED_SET_ZIPLIST: u8 = 12;
    pub(super) const HASH_ZIPLIST: u8 = 13;
    pub(super) const LIST_QUICKLIST: u8 = 14;
    pub(super) const HASH_LISTPACK: u8 = 16;
    pub(super) const SORTED_SET_LISTPACK: u8 = 17;
    pub(super) const LIST_QUICKLIST_2: u8 = 18;
    pub(super) const SET_LISTPACK: u8 = 20;
    /// Hashes whose fields expire, as a release candidate of Redis wrote them: without the earliest
    /// expiry.
    pub(super) const HASH_TIMED_EARLY: u8 = 22;
    pub(super) const HASH_TIMED_LISTPACK_EARLY: u8 = 23;
    pub(super) const HASH_TIMED: u8 = 24;
    pub(super) const HASH_TIMED_LISTPACK: u8 = 25;
}

#[cfg(test)]
mod tests;
