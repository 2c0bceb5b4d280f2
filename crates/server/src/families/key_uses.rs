//! How commands use their keys, as `COMMAND GETKEYSANDFLAGS` of Redis 7 names it.

use crate::args::is;
use crate::resp::Args;
use crate::session::spec::{Flags, Spec};

/// The words for one key.
type Words = &'static [&'static str];

const LOOK: Words = &["RO"];
const READ: Words = &["RO", "access"];
const CHANGE: Words = &["RW", "update"];
const READ_AND_CHANGE: Words = &["RW", "access", "update"];
const ADD: Words = &["RW", "insert"];
const READ_AND_ADD: Words = &["RW", "access", "insert"];
const TAKE: Words = &["RW", "delete"];
const READ_AND_TAKE: Words = &["RW", "access", "delete"];
const REPLACE: Words = &["OW", "update"];
const MAKE: Words = &["OW", "insert"];
const DELETE: Words = &["RM", "delete"];

/// Commands, as words, whose keys are used in the same way: the first key, and the others.
type Row = (&'static str, [Words; 2]);

const ROWS: &[Row] = &[
    (
        "exists hexists hlen hstrlen llen scard sismember strlen touch type watch zcard object memory",
        [LOOK, LOOK],
    ),
    ("del unlink", [DELETE, DELETE]),
    ("append hsetnx linsert lpush lpushx pfadd rpush rpushx sadd", [ADD, ADD]),
    ("hdel lrem ltrim srem zrem zremrangebylex zremrangebyrank zremrangebyscore", [TAKE, TAKE]),
    (
        "blmpop blpop brpop bzmpop bzpopmax bzpopmin getdel hgetdel lmpop lpop rpop spop zmpop zpopmax zpopmin",
        [READ_AND_TAKE, READ_AND_TAKE],
    ),
    (
        "decr decrby getex getset hgetex hincrby hincrbyfloat incr incrby incrbyfloat move setbit zincrby",
        [READ_AND_CHANGE, READ_AND_CHANGE],
    ),
    ("mset psetex restore setex", [REPLACE, REPLACE]),
    ("msetnx setnx", [MAKE, MAKE]),
    ("blmove brpoplpush lmove rpoplpush smove", [READ_AND_TAKE, ADD]),
    ("rename", [READ_AND_TAKE, REPLACE]),
    ("renamenx", [READ_AND_TAKE, MAKE]),
    ("copy georadius georadiusbymember sort", [READ, REPLACE]),
    (
        "bitop geosearchstore sdiffstore sinterstore sunionstore zdiffstore zinterstore zrangestore zunionstore",
        [REPLACE, READ],
    ),
    ("pfmerge", [READ_AND_ADD, READ]),
    ("pfcount pfdebug", [&["RW", "access"], &["RW", "access"]]),
];

/// How a command uses its first key, and how its others.
pub(super) fn key_uses(spec: &Spec, args: Args<'_>) -> [Words; 2] {
    let name = if spec.parent.is_empty() { spec.name } else { spec.parent };
    let gets = || args.from(2).any(|arg| is(arg, "GET"));
    let found = ROWS.iter().find(|(names, _)| names.split(' ').any(|other| other == name));
    match (name, found) {
        ("set", _) if gets() => [READ_AND_CHANGE; 2],
        ("set", _) => [REPLACE; 2],
        ("bitfield", _) => [if only_gets(args) { READ } else { READ_AND_CHANGE }; 2],
        (_, Some((_, uses))) => *uses,
        _ if spec.flags.has(Flags::WRITE) => [CHANGE; 2],
        _ => [READ; 2],
    }
}

/// Whether the operations of `BITFIELD` only read, and are well formed.
fn only_gets(args: Args<'_>) -> bool {
    let mut i = 2;
    while let Some(arg) = args.get(i) {
        let behind = args.len() - i - 1;
        i += match () {
            () if is(arg, "GET") && behind >= 2 => 3,
            () if is(arg, "OVERFLOW") && behind >= 1 => 2,
            () => return false,
        };
    }
    true
}
