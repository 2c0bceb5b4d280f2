//! Tests of hashes, lists, sets and sorted sets in comparison with a real redis-server, and of
//! promises that only this server makes.

use std::sync::Arc;
use std::time::Duration;

use stillpoint::{Config as EngineConfig, Durability, Engine};
use stillpoint_io::{Clock, RealClock};

use crate::common::{Client, RealRedis, TestServer, Value, config, encode, eventually, field};
use crate::differential::{TEMPLATES, compare, compare_families};

/// Commands of one run.
const COMMANDS: usize = 4500;

/// Commands of any kind of key, between those of a family.
macro_rules! with_keys {
    ($($template:literal),* $(,)?) => {
        &[
            $($template,)*
            "DEL|UNLINK a|b|c", "TYPE a|b|c", "EXISTS a|b|c", "OBJECT ENCODING a|b|c",
            "RENAME|RENAMENX|COPY a|b|c a|b|c", "COPY a|b|c a|b|c REPLACE", "EXPIRE a|b|c 1000",
            "COPY a|b|c a|b|c DB 1 REPLACE", "MOVE a|b|c 1", "SELECT 0|0|0|0|1", "PTTL a|b|c",
            "PERSIST a|b|c", "SET s <value>", "MULTI|EXEC|EXEC", "WATCH a|b|c", "KEYS *",
            "PEXPIREAT a|b|c 1", "DBSIZE", "SET a|b <value> KEEPTTL", "INCR|GETDEL|STRLEN a|b|c",
        ]
    };
}

const HASHES: &[&str] = with_keys![
    "HSET a|b|c|s <field> <value>",
    "HSET a|b|c <many> <value>",
    "HSET a|b|c <many> <long> <many> <value> <many> <value>",
    "HSET|HMSET a|b <field> <value> <field>",
    "HMSET a|b|c <many> <value> <field> <value> <many> <value>",
    "HSETNX a|b|c|s <field> <value>",
    "HGET|HEXISTS|HSTRLEN a|b|c|s <field>",
    "HGET|HEXISTS|HSTRLEN a|b|c|s <many>",
    "HMGET a|b|c|s <field> <many> <many>",
    "HDEL a|b|c|s <field>",
    "HDEL a|b|c <many> <many> <many>",
    "HGETALL|HKEYS|HVALS|HLEN a|b|c|s",
    "HINCRBY a|b|c|s <field> <number>",
    "HINCRBY a|b|c n <number>",
    "HINCRBYFLOAT a|b|c|s <field>|n 1.5|-0.1|x|5.0e3|inf|nan|3",
    "HRANDFIELD a|b|c|s <nothing>|5|-7|x|0|1000 <nothing>|WITHVALUES|JUNK",
    "HSCAN a|b|c|s 0 COUNT 100000 MATCH f*|*1|m?",
    "HSCAN a|b|c|s 0|x COUNT 0|x",
    "HSCAN a|b|c 0 JUNK 1",
    "HSCAN a|b|c|s +0|-|+|18446744073709551616 COUNT 100000",
];

const SETS: &[&str] = with_keys![
    "SADD a|b|c|s <field> <value>",
    "SADD a|b|c <many> <many> <long>",
    "SADD a|b|c 1|2|3|x <number> 5",
    "SREM a|b|c|s <field> <many>",
    "SREM a|b|c <number> <value>",
    "SCARD|SMEMBERS a|b|c|s",
    "SISMEMBER a|b|c|s <field>|5",
    "SMISMEMBER a|b|c|s <field> <many> 3",
    "SMOVE a|b|c|s a|b|c|s <field>|1|2|5",
    "SRANDMEMBER a|b|c|s <nothing>|5|-7|x|0|1000|-9223372036854775808",
    "SINTER|SUNION|SDIFF a|b|c|s a|b|c|d",
    "SINTER|SUNION|SDIFF a|b|c a|b|c|s a|b|c|d",
    "SINTERSTORE|SUNIONSTORE|SDIFFSTORE a|b|c|s a|b|c|s a|b|c|d",
    "SINTERCARD 2 a|b|c|s a|b|c|d",
    "SINTERCARD 2|1|0|x|9 a|b|c LIMIT 2|0|-1|x",
    "SSCAN a|b|c|s 0 COUNT 100000 MATCH f*|*1|m?|[0-9]",
    "COMMAND GETKEYS SINTERCARD 2|1 a b",
];

const LISTS: &[&str] = with_keys![
    "LPUSH|RPUSH a|b|c|s <field> <value>",
    "LPUSH|RPUSH a|b|c <many> <many> <long> <field>",
    "LPUSHX|RPUSHX a|b|c|s <field>",
    "LPOP|RPOP a|b|c|s",
    "LPOP|RPOP a|b|c|s 3|0|-1|x|2",
    "LPOP a 1 2",
    "LLEN a|b|c|s",
    "LINDEX a|b|c|s <number>",
    "LSET a|b|c|s <number> <value>",
    "LSET a|b|c 0|-1|1|2 <long>",
    "LRANGE a|b|c|s <number> <number>",
    "LRANGE a|b|c|s 0 -1",
    "LTRIM a|b|c|s 0|1|2|x -1|-2|-3|100",
    "LREM a|b|c|s 0|1|-1|2|-2|x <field>",
    "LINSERT a|b|c|s BEFORE|AFTER|JUNK <field> <value>",
    "LPOS a|b|c|s <field>",
    "LPOS a|b|c|s <field> RANK 1|-1|2|-2|0|x|-9223372036854775808 COUNT 0|1|2|-1 MAXLEN 0|5|100|-1",
    "LPOS a|b|c <field> COUNT 0|JUNK",
    "LMOVE a|b|c|s a|b|c|s LEFT|RIGHT|JUNK LEFT|RIGHT",
    "RPOPLPUSH a|b|c|s a|b|c|s",
    "LMPOP 2 a|b|c|s a|b|c LEFT|RIGHT|JUNK COUNT 2|0|x|1",
    "LMPOP 1|2|0|x|9 a|b|c LEFT|RIGHT",
];

const SORTED_SETS: &[&str] = with_keys![
    "ZADD a|b|c|s <score> <field>",
    "ZADD a|b|c <score> <many> 1 <many> 2.5 <many>",
    "ZADD a|b|c 0 <many> 0 <many> 0 <field>",
    "ZADD a|b|c 7 <long>",
    "ZADD a|b|c NX|XX|GT|LT|CH|INCR <score> <field>",
    "ZADD a|b|c NX|XX|GT|LT|CH|INCR NX|XX|GT|LT|CH|INCR <score> <field>",
    "ZADD a|b|c CH <score> <field> <score> <many>",
    "ZINCRBY a|b|c|s <score> <field>",
    "ZREM a|b|c|s <field> <many>",
    "ZCARD a|b|c|s",
    "ZSCORE|ZRANK|ZREVRANK a|b|c|s <field>",
    "ZADD a|b|c 1e400|1e-400|0x10|-0x1.8p1|.5|5.|+7|1e <field>",
    "ZADD a|b|c infinity|-Infinity|4e-320|0x|e5 <field>",
    "ZCOUNT a|b|c|s (|0x2|1e400|(0x1p1|nan|1e-400 (5|(|+inf|infinity",
    "ZRANGE|ZREVRANGE a|b|c|s 0|1 -1|2 LIMIT 0|1 2|-1",
    "ZRANGESTORE a|b|c a|b|c 0|1 -1|3 LIMIT 0|1 1|-1",
    "ZUNION 2 a|b|c a|b|c WEIGHTS 0x2|1e400 1e-400|.5 WITHSCORES",
    "ZMSCORE a|b|c|s <field> <many>",
    "ZRANGE|ZREVRANGE a|b|c|s <number> <number>",
    "ZRANGE|ZREVRANGE a|b|c|s 0|1|-3 -1|2 WITHSCORES|JUNK",
    "ZRANGE a|b|c (1|-inf|0|x|5 (3|+inf|9 BYSCORE LIMIT 0|1|-1 2|-1|100",
    "ZRANGE a|b|c|s 0 -1 REV|BYSCORE|WITHSCORES REV|WITHSCORES",
    "ZRANGEBYSCORE a|b|c|s (1|-inf|0|x|5|1 (3|+inf|9|5 WITHSCORES|<nothing>",
    "ZREVRANGEBYSCORE a|b|c|s (3|+inf|9|5 (1|-inf|0|x|5 LIMIT 0|1|-1 2|-1|100",
    "ZCOUNT a|b|c|s (1|-inf|0|x|5 (3|+inf|9",
    "ZRANGESTORE a|b|c a|b|c (1|-inf (3|+inf BYSCORE LIMIT 0 4",
    "ZREMRANGEBYRANK a|b|c|s 0|1|-2|x 0|2|-1",
    "ZREMRANGEBYSCORE a|b|c|s (1|3|5|x 3|5|(9",
    "ZPOPMIN|ZPOPMAX a|b|c|s",
    "ZPOPMIN|ZPOPMAX a|b|c|s 2|0|-1|x",
    "ZMPOP 2 a|b|c|s a|b|c MIN|MAX|JUNK COUNT 2|0|x",
    "ZMPOP 1|0|x|9 a|b|c MIN|MAX",
    "ZUNION|ZINTER|ZDIFF 2 a|b|c|s a|b|c WITHSCORES|<nothing>|JUNK",
    "ZUNION|ZINTER|ZDIFF 2|0|x|9 a|b|c a|b|c WEIGHTS 2|x|inf 0.5|-1 AGGREGATE SUM|MIN|MAX|JUNK WITHSCORES",
    "ZUNIONSTORE|ZINTERSTORE|ZDIFFSTORE a|b|c|s 2 a|b|c|s a|b|c",
    "ZUNIONSTORE|ZINTERSTORE a|b|c 2 a|b|c a|b|c WEIGHTS 2 3 AGGREGATE MAX",
    "ZINTERCARD 2|0|x a|b|c|s a|b|c LIMIT 1|0|-1|x",
    "ZINTERCARD 2 a|b|c a|b|c",
    "ZRANDMEMBER a|b|c|s <nothing>|5|-7|x|0|1000 <nothing>|WITHSCORES|JUNK",
    "ZSCAN a|b|c|s 0 COUNT 100000 MATCH f*|*1|m?",
    "SADD d <field> <many>",
    "ZUNIONSTORE a|b|c 2 a|b|c d",
    "ZINTER|ZDIFF 2 d a|b|c WITHSCORES",
];

/// Ranges of members are defined for members of one score only.
const RANGES_OF_MEMBERS: &[&str] = with_keys![
    "ZADD a|b|c 0 <many> 0 <many> 0 <field>",
    "ZADD a|b|c 0 <long> 0 <field>",
    "ZREM a|b|c <field> <many>",
    "ZRANGE|ZREVRANGE a|b|c 0 -1",
    "ZRANGE a|b|c +|[m|(f [f|- BYLEX REV LIMIT 1 3",
    "ZRANGE a|b|c|s - + BYLEX|JUNK WITHSCORES|REV|BYLEX|BYSCORE|<nothing>",
    "ZRANGEBYLEX a|b|c|s -|[f|(f1|x +|[m|(m2 LIMIT 0|1 5|-1",
    "ZREVRANGEBYLEX a|b|c|s +|[m|(m2 -|[f|(f1|x",
    "ZLEXCOUNT a|b|c|s -|[f|(f1|x +|[m|(m2",
    "ZRANGESTORE a|b|c|s a|b|c|s -|[f +|(m2 BYLEX",
    "ZREMRANGEBYLEX a|b|c|s [f1|(f2|x [f3|(m1",
];

/// Places between two degrees of longitude and latitude.
const PLACES: &[&str] = with_keys![
    "GEOADD a|b|c|s <place> <field>",
    "GEOADD a|b|c <place> <many> <place> <many> <place> <field>",
    "GEOADD a|b|c <place> <many> <place> <many> <place> <field>",
    "GEOADD a|b|c NX|XX|CH NX|XX|CH <place> <field>",
    "GEOADD a|b|c CH XX NX <place>",
    "GEOPOS|GEOHASH a|b|c|s <field> <many> <field>",
    "GEOPOS|GEOHASH a|b|c|s",
    "GEODIST a|b|c|s <field> <field>|<many> m|km|ft|mi|x|<nothing>",
    "GEORADIUS|GEORADIUS_RO a|b|c|s <place> 10|300|5000|0|-1|x m|km|ft|mi ASC|DESC",
    "GEORADIUS a|b|c|s <place> 300|3000 km WITHDIST WITHCOORD|WITHHASH ASC",
    "GEORADIUS a|b|c|s <place> 300|3000 km COUNT 2|0|x|-1 DESC|WITHDIST",
    "GEORADIUS a|b|c|s <place> 300 km ANY|COUNT",
    "GEORADIUS|GEORADIUS_RO a|b|c|s <place> 300 km ASC STORE|STOREDIST a|b|c|d",
    "GEORADIUS a|b|c|s <place> 300 km STORE d WITHDIST",
    "GEORADIUSBYMEMBER|GEORADIUSBYMEMBER_RO a|b|c|s <field> 100|1000 km|mi ASC WITHDIST",
    "GEORADIUSBYMEMBER a|b|c|s <field> 1000 km ASC COUNT 3 STORE|STOREDIST|JUNK d|a",
    "GEOSEARCH a|b|c|s FROMMEMBER <field> BYBOX 100|900|x 500|-1 km ASC WITHDIST|WITHHASH",
    "GEOSEARCH a|b|c|s FROMLONLAT <place> BYRADIUS 500|0 km DESC COUNT 3 WITHCOORD",
    "GEOSEARCH a|b|c|s FROMLONLAT <place> BYBOX 900 900 km ASC",
    "GEOSEARCH a|b|c FROMMEMBER|JUNK <field> FROMLONLAT <place> BYRADIUS 100 km",
    "GEOSEARCH a|b|c FROMMEMBER <field> BYRADIUS 10 km BYBOX 1 1 km",
    "GEOSEARCH a|b|c|s FROMMEMBER <field> ASC COUNT 1 WITHDIST",
    "GEOSEARCH a|b|c|s BYRADIUS 10 km ASC COUNT 1",
    "GEOSEARCHSTORE a|b|c|d|s a|b|c|s FROMLONLAT <place> BYBOX 900 900 km ASC COUNT 4",
    "GEOSEARCHSTORE a|b|c|d a|b|c FROMLONLAT <place> BYRADIUS 500 km STOREDIST|WITHDIST",
    "ZRANGE a|b|c|d 0 -1 WITHSCORES",
    "ZREM a|b|c <many> <field>",
];

/// Without `WATCH`: to Redis, `PFCOUNT` is a change.
const HYPERLOGLOGS: &[&str] = &[
    "DEL|UNLINK|PERSIST|STRLEN a|b|c",
    "RENAME|RENAMENX|COPY a|b|c a|b|c",
    "COPY a|b|c a|b|c REPLACE",
    "EXPIRE a|b|c 1000",
    "PEXPIREAT a|b|c 1",
    "SET s|a <value>",
    "MULTI|EXEC|EXEC",
    "PFADD a|b|c|s <any> <any> <any> <any> <any> <any> <any> <any>",
    "PFADD a|b|c <any> <any> <any> <any> <any> <any> <any> <any> <any> <any> <any>",
    "PFADD a|b|c <field> <field>",
    "PFADD a|b|c|s",
    "PFCOUNT a|b|c|s",
    "PFCOUNT a|b|c|s a|b|c|d",
    "PFMERGE a|b|c|s a|b|c|s a|b|c|d",
    "PFMERGE a|b|c|s",
    "PFDEBUG ENCODING|DECODE|TODENSE|GETREG|JUNK a|b|c|s",
    "PFDEBUG ENCODING|DECODE a|b|c",
    "GET a|b|c",
    "GETRANGE a|b|c 0 7",
];

/// Lists and sorted sets are at a, b and c, sets at d and e. Other keys that decide the order have
/// different values.
const SORTED: &[&str] = &[
    "RPUSH a|b|c 1|2|3|4|5 1|2|3|4|5 1|2|3|4|5",
    "RPUSH a|b|c 10|-7|1.5|0x3|1e2 1|2|3",
    "ZADD a|b|c <score> 1|2|3|4|5|6 <score> 7|8|9",
    "SADD d|e 1|2|3|4|5 1|2|3|4|5 20",
    "SADD d|e 1|3|x",
    "LPOP|DEL a|b|c",
    "SREM d|e x",
    "LTRIM a|b|c 0 9",
    "SET w1|w2|w3|w4|w5|w6 <score>",
    "SET w1|w2|w3|w4|w5|w6 1|2|3|4.5|-1",
    "SET w7|w8|w9 hello|10",
    "HSET h1|h2|h3|h4|h5 f 1|2|3.5|-1|9",
    "HSET h1|h2|h3 g->x 7|text",
    "DEL w1|w2|h3|h4",
    "SET h1 1",
    "SORT|SORT_RO a|b|c|d|e|w1",
    "SORT|SORT_RO a|b|c|d|e ASC|DESC",
    "SORT|SORT_RO a|b|c|d|e ALPHA ASC|DESC LIMIT 0|1|-1|x 2|-1|0|100",
    "SORT a|b|c|d|e BY w*|h*->f|h*->g->x DESC|ASC",
    "SORT a|b|c|d|e BY w*|h*->f GET # GET w*|h*->f|h*->g->x|*|x LIMIT 0|2 3",
    "SORT_RO a|b|c|d|e BY w*|nothing* GET w*->f|h*|h*-> GET #",
    "SORT a|b|c BY nosort|w->x GET #|w* DESC|ASC LIMIT 0|1 2|3|-1",
    "SORT a|b|c|d|e BY w*|nosort GET w*|# STORE a|b|c|f",
    "SORT|SORT_RO a|b|c|d|e STORE a|b|f",
    "SORT a|b BY|GET|LIMIT|STORE|JUNK",
    "LRANGE a|b|c|f 0 -1",
    "TYPE a|b|c|f",
];

const PAYLOADS: &[&str] = with_keys![
    "RESTORE a|b|c|s 0|-1|x|100000 junk",
    "RESTORE a|b|c 0|1 <value> REPLACE|JUNK",
    "RESTORE a|b|c 0 junk REPLACE ABSTTL IDLETIME 5|-1|x",
    "RESTORE a|b|c 0 junk FREQ 5|-1|256|x REPLACE",
    "RESTORE a|b|c 0 junk IDLETIME 5 FREQ 5",
    "DUMP d|e",
    "SADD a|b 1",
];

const NAMED: &[&str] = &[
    "COMMAND GETKEYS SORT a BY w* LIMIT 0 1 GET store STORE b|c STORE c|d",
    "COMMAND GETKEYS SORT|SORT_RO a STORE|BY b|<nothing>",
    "COMMAND GETKEYS ZUNIONSTORE|ZINTERSTORE|ZDIFFSTORE a 2 b c|b",
    "COMMAND GETKEYS GEORADIUS a 1 2 3 km STORE|STOREDIST|ASC b",
    "COMMAND GETKEYS GEORADIUSBYMEMBER a m 3 km ASC STORE|STOREDIST b",
    "COMMAND GETKEYS BITOP|COPY|RENAME|LMOVE a b c d",
    "COMMAND GETKEYSANDFLAGS GET|TYPE|DEL|EXISTS|TTL|DUMP|INCR|LLEN|SCARD|GETDEL|GETEX|PERSIST|PFCOUNT a",
    "COMMAND GETKEYSANDFLAGS TOUCH|STRLEN|LPOP|SPOP|ZPOPMIN|SMEMBERS|HLEN|HGETALL|ZCARD|UNLINK|WATCH a",
    "COMMAND GETKEYSANDFLAGS APPEND|RPUSH|SADD|HDEL|SREM|HGET|HEXISTS|GETSET|INCRBY|EXPIRE|SETNX a b",
    "COMMAND GETKEYSANDFLAGS RPOPLPUSH|RENAME|RENAMENX|COPY|MGET|PFMERGE|SUNIONSTORE|PFADD|ZREM|MOVE a b",
    "COMMAND GETKEYSANDFLAGS MSET|MSETNX|SETEX|HSET|HSETNX|LSET|LTRIM|LRANGE|ZADD|ZINCRBY|ZCOUNT a 1 2",
    "COMMAND GETKEYSANDFLAGS SMOVE|BLPOP|SETBIT|SETRANGE|HINCRBY|RESTORE|ZREMRANGEBYRANK|LREM|SINTER a b c",
    "COMMAND GETKEYSANDFLAGS SET a b GET|NX",
    "COMMAND GETKEYSANDFLAGS BITFIELD a GET|INCRBY u8 0 1",
    "COMMAND GETKEYSANDFLAGS BITFIELD a OVERFLOW WRAP GET|SET u8 0",
    "COMMAND GETKEYSANDFLAGS LMOVE|ZRANGESTORE|LINSERT|BITOP|GEOADD a b c d",
    "COMMAND GETKEYSANDFLAGS ZUNIONSTORE a 2 b c",
    "COMMAND GETKEYSANDFLAGS SINTERCARD|ZMPOP|LMPOP 2 a b MIN",
    "COMMAND GETKEYSANDFLAGS GEORADIUS a 1 2 3 km STORE b",
    "COMMAND GETKEYSANDFLAGS SORT a STORE b",
    "COMMAND GETKEYSANDFLAGS OBJECT ENCODING|FREQ a",
    "COMMAND GETKEYSANDFLAGS MEMORY USAGE a",
    "COMMAND GETKEYS|GETKEYSANDFLAGS PFMERGE|DEL|PING a",
    "COMMAND GETKEYS|GETKEYSANDFLAGS DEL|PFMERGE",
];

/// Commands of all families but `SORT` between each other, on the same keys: `SORT` has patterns that do not run
/// inside of `MULTI`. `STILLPOINT_DIFFERENTIAL_COMMANDS` says how many; a million take some minutes.
#[test]
fn commands_of_all_families_answer_as_those_of_redis() {
    let wanted = std::env::var("STILLPOINT_DIFFERENTIAL_COMMANDS").ok();
    let commands = wanted.map_or(6_000, |wanted| wanted.parse().expect("a number of commands"));
    let families = [
        ("", TEMPLATES),
        ("", HASHES),
        ("", SETS),
        ("", LISTS),
        ("", SORTED_SETS),
        ("payloads ", PAYLOADS),
        ("", NAMED),
        ("members ", RANGES_OF_MEMBERS),
        ("places ", PLACES),
        ("sketches ", HYPERLOGLOGS),
    ];
    for resp3 in [false, true] {
        compare_families(1000 + u64::from(resp3), resp3, families.to_vec(), commands / 2);
    }
}

fn compare_both(templates: &'static [&'static str], first: u64) {
    for seed in first..first + 3 {
        compare(seed, seed % 2 == 1, templates, COMMANDS);
    }
}

#[test]
fn hashes_answer_as_those_of_redis() {
    compare_both(HASHES, 100);
}

#[test]
fn sets_answer_as_those_of_redis() {
    compare_both(SETS, 200);
}

#[test]
fn lists_answer_as_those_of_redis() {
    compare_both(LISTS, 300);
}

#[test]
fn sorted_sets_answer_as_those_of_redis() {
    compare_both(SORTED_SETS, 400);
}

#[test]
fn ranges_of_members_answer_as_those_of_redis() {
    compare_both(RANGES_OF_MEMBERS, 500);
}

#[test]
fn places_answer_as_those_of_redis() {
    compare_both(PLACES, 600);
}

#[test]
fn hyperloglogs_answer_as_those_of_redis() {
    compare_both(HYPERLOGLOGS, 700);
}

#[test]
fn sorts_answer_as_those_of_redis() {
    compare_both(SORTED, 800);
}

#[test]
fn payloads_that_are_none_are_refused_as_by_redis() {
    compare_both(PAYLOADS, 900);
}

#[test]
fn members_are_taken_at_random() {
    let server = TestServer::start();
    let mut client = Client::connect(server.port);
    let mut call = |words: &str| client.call(&words.split(' ').collect::<Vec<_>>());
    assert_eq!(call("SADD s 1 2 3 4 5 6 7 8"), Value::Int(8));
    assert!(matches!(call("SPOP s"), Value::Bulk(_)));
    assert!(matches!(call("SPOP s 3"), Value::Array(taken) if taken.len() == 3));
    assert_eq!(call("SPOP s 0"), Value::Array(Vec::new()));
    assert_eq!(call("SCARD s"), Value::Int(4));
    assert!(matches!(call("SPOP s 100"), Value::Array(taken) if taken.len() == 4));
    assert_eq!((call("EXISTS s"), call("SPOP s")), (Value::Int(0), Value::Null));
    assert_eq!(call("SPOP s 1"), Value::Array(Vec::new()));
    let range = Value::Error("ERR value is out of range, must be positive".to_owned());
    assert_eq!((call("SPOP s x"), call("SPOP s -1")), (range.clone(), range));
}

/// Fills large collections. Returns the contents of all these collections.
fn fill(client: &mut Client, elements: usize) {
    for from in (0..elements).step_by(500) {
        let names: Vec<String> = (from..from + 500).map(|i| format!("element:{i:08}")).collect();
        let mut hash = vec!["HSET", "hash"];
        let mut set = vec!["SADD", "set"];
        let mut list = vec!["RPUSH", "list"];
        let mut sorted = vec!["ZADD", "sorted"];
        for name in &names {
            hash.extend([name.as_str(), &name[8..]]);
            set.push(name);
            list.push(name);
            sorted.extend([&name[8..], name.as_str()]);
        }
        assert_eq!(client.call(&hash), Value::Int(500));
        assert_eq!(client.call(&set), Value::Int(500));
        assert_eq!(client.call(&list), Value::Int((from + 500) as i64));
        assert_eq!(client.call(&sorted), Value::Int(500));
    }
}

fn check(client: &mut Client, elements: usize) {
    let len = Value::Int(elements as i64);
    for command in ["HLEN hash", "SCARD set", "LLEN list", "ZCARD sorted"] {
        let words: Vec<&str> = command.split(' ').collect();
        assert_eq!(client.call(&words), len, "{command}");
    }
    for i in (0..elements).step_by(elements / 50) {
        let name = format!("element:{i:08}");
        assert_eq!(client.call(&["HGET", "hash", &name]), Value::bulk(&name[8..]));
        assert_eq!(client.call(&["SISMEMBER", "set", &name]), Value::Int(1));
        assert_eq!(client.call(&["LINDEX", "list", &i.to_string()]), Value::bulk(&name));
        assert_eq!(client.call(&["ZRANK", "sorted", &name]), Value::Int(i as i64));
        assert_eq!(client.call(&["ZSCORE", "sorted", &name]), Value::bulk(&i.to_string()));
    }
    for (key, least) in [("hash", 26), ("set", 17), ("list", 17), ("sorted", 30)] {
        let Value::Int(bytes) = client.call(&["MEMORY", "USAGE", key]) else { panic!("bytes") };
        let of_one = bytes as usize / elements;
        assert!((least..3 * least).contains(&of_one), "{key}: {of_one} bytes for an element");
    }
    let Value::Array(all) = client.call(&["LRANGE", "list", "0", "-1"]) else { panic!("a list") };
    let expected = (0..elements).map(|i| Value::bulk(&format!("element:{i:08}")));
    assert!(all.into_iter().eq(expected));
    let Value::Array(pairs) = client.call(&["HGETALL", "hash"]) else { panic!("pairs") };
    assert_eq!(pairs.len(), 2 * elements);
}

/// Whoever reads a large collection without its lock sees one instant of it.
#[test]
fn reads_of_a_large_hash_show_one_instant() {
    const CHANGES: usize = 300;
    let server = TestServer::start();
    let (mut writer, mut reader) = (server.client(), server.client());
    fill(&mut writer, 1_000);
    let changes: Vec<u8> = (0..CHANGES)
        .flat_map(|i| {
            let (value, odd) = (i.to_string(), [&b"HDEL"[..], b"HLEN"][i % 2]);
            let both = [&b"HSET"[..], b"hash", b"one", value.as_bytes(), b"two", value.as_bytes()];
            [encode(&both), encode(&[odd, b"hash", b"one", b"two"][..4 - i % 2 * 2])].concat()
        })
        .collect();
    let read = encode(&[b"HMGET", b"hash", b"one", b"element:00000500", b"two"]);
    let writing = stillpoint_io::spawn("test-writer", move || {
        writer.send_raw(&changes);
        (0..2 * CHANGES).for_each(|_| assert!(matches!(writer.read(), Value::Int(_))));
    })
    .expect("a thread");
    for _ in 0..CHANGES {
        reader.send_raw(&read);
        let Value::Array(fields) = reader.read() else { panic!("three fields") };
        assert_eq!((&fields[0], &fields[1]), (&fields[2], &Value::bulk("00000500")));
    }
    writing.join().expect("no panic");
}

fn records(engine: &Engine, table: &str) -> u64 {
    engine.table(table).map_or(0, |table| engine.len(table))
}

/// Waits until a table is empty.
fn await_empty(engine: &Engine, table: &str) {
    for _ in 0..400 {
        if records(engine, table) == 0 {
            return;
        }
        RealClock.sleep(Duration::from_millis(25));
    }
    let graves = records(engine, "graves");
    panic!("{} records are left in {table}, and {graves} graves", records(engine, table));
}

#[test]
fn large_collections_outlive_a_restart_and_leave_nothing_when_they_go() {
    const ELEMENTS: usize = 20_000;
    let directory = Arc::new(tempfile::tempdir().expect("a directory"));
    let open = || {
        let mut engine = EngineConfig::new("unused");
        engine.data = directory.path().join("data");
        engine.durability = Durability::Strict;
        Engine::open(engine).expect("the engine opens")
    };
    {
        let server = TestServer::around(config(), open(), None);
        let mut client = Client::connect(server.port);
        fill(&mut client, ELEMENTS);
        check(&mut client, ELEMENTS);
        assert_eq!(client.call(&["SAVE"]), Value::ok());
        // Commands after the checkpoint are in the log alone.
        assert_eq!(client.call(&["RENAME", "hash", "other"]), Value::ok());
        assert_eq!(client.call(&["LPUSH", "list", "first"]), Value::Int(ELEMENTS as i64 + 1));
        assert_eq!(client.call(&["LPOP", "list"]), Value::bulk("first"));
        assert_eq!(client.call(&["RENAME", "other", "hash"]), Value::ok());
        assert_eq!(client.call(&["COPY", "sorted", "copied", "DB", "1"]), Value::Int(1));
    }
    {
        let server = TestServer::around(config(), open(), None);
        let mut client = Client::connect(server.port);
        check(&mut client, ELEMENTS);
        assert_eq!(client.call(&["DEL", "hash", "set"]), Value::Int(2));
        assert_eq!(client.call(&["SET", "list", "a string"]), Value::ok());
        assert_eq!(client.call(&["PEXPIRE", "sorted", "1"]), Value::Int(1));
    }
    // Remains of the four collections that the server had not reclaimed are reclaimed now.
    let engine = open();
    let names: Vec<u64> = ["db0.nodes", "db1.nodes"].map(|table| records(&engine, table)).into();
    assert!(names[1] > 100, "{names:?}");
    drop(engine);
    let directory_again = Arc::clone(&directory);
    let engine = Arc::new(open());
    let stopping = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let server =
        stillpoint_server::Server::start(config(), Arc::clone(&engine), Arc::clone(&stopping))
            .expect("it starts");
    await_empty(&engine, "db0.nodes");
    await_empty(&engine, "graves");
    assert_eq!(records(&engine, "db1.nodes"), names[1]);
    let mut client = Client::connect(server.port());
    client.call(&["SELECT", "1"]);
    assert_eq!(client.call(&["ZCARD", "copied"]), Value::Int(ELEMENTS as i64));
    assert_eq!(client.call(&["FLUSHALL"]), Value::ok());
    assert_eq!(records(&engine, "db1.nodes"), 0);
    drop(directory_again);
    stopping.store(true, std::sync::atomic::Ordering::SeqCst);
    drop(client);
    server.join().expect("it ends");
}

/// The log of a sorted set gets what is new: neither the rest of a leaf, nor all between the roots of
/// its two trees.
#[test]
fn a_sorted_set_logs_what_is_new() {
    const COMMANDS: usize = 4_000;
    let server = TestServer::start();
    let mut c = server.client();
    let logged =
        |c: &mut Client| field(&c.call(&["INFO", "persistence"]).text(), "aof_current_size");
    let mut requests = Vec::new();
    for i in 0..COMMANDS {
        let (score, member) = (i * 7_919 % 100_003, format!("member-{i:09}"));
        requests.extend(encode(&[
            b"ZADD",
            b"set",
            score.to_string().as_bytes(),
            member.as_bytes(),
        ]));
    }
    let before = logged(&mut c);
    c.send_raw(&requests);
    for _ in 0..COMMANDS {
        assert_eq!(c.read(), Value::Int(1));
    }
    // The log is written a while after the replies.
    let mean = |c: &mut Client| (logged(c) - before) / COMMANDS as u64;
    eventually("the log is written", || mean(&mut c) > 100);
    RealClock.sleep(Duration::from_millis(100));
    let mean = mean(&mut c);
    assert!(mean < 450, "{mean} bytes for each ZADD");
}

/// A key that a command names again and again is read once, and the reply is that of Redis.
#[test]
fn keys_that_are_named_again_answer_as_those_of_redis() {
    const SCRIPT: &[&str] = &[
        "SADD s 1 2 3 4",
        "SADD t 3 4 5",
        "ZADD z 1 a 2 b 3 c",
        "ZADD y 5 b 7 d",
        "SET b1 abc",
        "SET b2 xyzw",
        "SUNIONSTORE r s s t s t",
        "SORT r",
        "SINTERSTORE r s t s t t",
        "SORT r",
        "SDIFFSTORE r s t t",
        "SORT r",
        "SDIFF s s",
        "SDIFF s t s",
        "SINTERCARD 4 s s t t LIMIT 1",
        "SINTER s none s",
        "ZUNION 4 z y z z WEIGHTS 1 2 3 4 WITHSCORES",
        "ZINTER 3 z z y WEIGHTS 1 2 3 AGGREGATE MAX WITHSCORES",
        "ZDIFF 3 z y y WITHSCORES",
        "ZDIFF 2 z z",
        "ZUNION 3 s z s WITHSCORES",
        "ZINTERCARD 3 z y z",
        "BITOP XOR r b1 b2 b1",
        "GET r",
        "BITOP AND r b2 b2 none b2",
        "GET r",
        "BITOP OR b1 b1 b1 b2",
        "GET b1",
        "SUNION s b2 s",
        "SUNION s b2 b2",
        "RPUSH l aaaa b",
        "SET kaaaa 2",
        "SORT l BY nosort GET k* GET k* GET # GET k*",
        "SORT l BY k* ALPHA GET k*",
    ];
    let server = TestServer::start();
    let ours = replies(server.port, SCRIPT);
    let Some(redis) = RealRedis::start(&[]) else { return };
    for ((ours, theirs), line) in ours.iter().zip(&replies(redis.port, SCRIPT)).zip(SCRIPT) {
        assert_eq!(ours, theirs, "{line}");
    }
}

/// Parameters, and the encodings after changes of them.
const ENCODINGS: &[&str] = &[
    "CONFIG GET hash-max-listpack-entries",
    "CONFIG GET hash-max-ziplist-value",
    "CONFIG GET set-max-intset-entries",
    "CONFIG GET zset-max-listpack-entries",
    "CONFIG GET zset-max-ziplist-value",
    "CONFIG GET list-max-listpack-size",
    "CONFIG GET list-compress-depth",
    "CONFIG SET hash-max-listpack-entries -1",
    "CONFIG SET hash-max-listpack-entries x",
    "CONFIG SET set-max-intset-entries 9223372036854775808",
    "CONFIG SET list-compress-depth -1",
    "CONFIG SET list-max-listpack-size 1.5",
    "CONFIG SET list-max-ziplist-size -5 list-compress-depth 2",
    "CONFIG GET list-max-listpack-size",
    "HSET w a 1 b 2 c 3 d 4",
    "CONFIG SET hash-max-listpack-entries 3",
    "HSET h a 1 b 2 c 3",
    "OBJECT ENCODING h",
    "HSET h d 4",
    "OBJECT ENCODING h",
    "HDEL h b c d",
    "OBJECT ENCODING h",
    "CONFIG GET hash-max-ziplist-entries",
    "OBJECT ENCODING w",
    "COPY w x",
    "OBJECT ENCODING x",
    "HSET w a 2",
    "OBJECT ENCODING w",
    "CONFIG SET hash-max-ziplist-entries 512 hash-max-ziplist-value 5",
    "HSET v f 12345",
    "OBJECT ENCODING v",
    "HSET v f 123456",
    "OBJECT ENCODING v",
    "SADD s 1 2 3",
    "OBJECT ENCODING s",
    "CONFIG SET set-max-intset-entries 2",
    "OBJECT ENCODING s",
    "SADD t 1 2",
    "OBJECT ENCODING t",
    "SADD t 3",
    "OBJECT ENCODING t",
    "SUNIONSTORE u s t",
    "OBJECT ENCODING u",
    "ZADD y 1 a 2 b 3 c",
    "CONFIG SET zset-max-listpack-entries 2",
    "ZADD z 1 a 2 b",
    "OBJECT ENCODING z",
    "ZADD z 3 c",
    "OBJECT ENCODING z",
    "ZREM z c",
    "OBJECT ENCODING z",
    "ZADD y 4 a",
    "OBJECT ENCODING y",
    "ZINCRBY y 4 a",
    "OBJECT ENCODING y",
    "ZRANGESTORE r y 0 -1",
    "OBJECT ENCODING r",
    "ZUNIONSTORE r 1 z",
    "OBJECT ENCODING r",
    "CONFIG SET zset-max-listpack-value 4",
    "ZADD long 1 12345",
    "OBJECT ENCODING long",
    "ZADD short 1 1234",
    "OBJECT ENCODING short",
    "CONFIG SET zset-max-ziplist-entries 0",
    "ZADD none 1 1234",
    "OBJECT ENCODING none",
];

/// `OBJECT ENCODING` follows the parameters of Redis, and what was large once stays so.
#[test]
fn encodings_follow_the_parameters_of_redis() {
    let server = TestServer::start();
    let ours = replies(server.port, ENCODINGS);
    let Some(redis) = RealRedis::start(&[]) else { return };
    for ((ours, theirs), line) in ours.iter().zip(&replies(redis.port, ENCODINGS)).zip(ENCODINGS) {
        assert_eq!(ours, theirs, "{line}");
    }
}

/// The replies to the lines of a script.
fn replies(port: u16, script: &[&str]) -> Vec<Value> {
    let mut client = Client::connect(port);
    let call = |line: &&str| client.call(&line.split(' ').collect::<Vec<_>>());
    script.iter().map(call).collect()
}

/// Commands that would copy far more than they read answer what they can, or that it is too much.
#[test]
fn commands_that_ask_for_many_copies_take_bounded_memory() {
    let mut engine = EngineConfig::new("unused");
    engine.max_memory_bytes = 256 << 20;
    let server = TestServer::over(config(), engine);
    let mut c = server.client();
    // Keys of more than 65,536 bytes cannot exist.
    let element = "e".repeat(70_000);
    assert_eq!(c.call(&["RPUSH", "long", &element]), Value::Int(1));
    let mut words = vec!["SORT", "long", "BY", "nosort"];
    (0..3_000).for_each(|_| words.extend(["GET", "w*"]));
    assert_eq!(c.call(&words), Value::Array(vec![Value::Null; 3_000]));
    // Shorter ones can, but 300 MB of them are too many.
    let element = "e".repeat(60_000);
    assert_eq!(c.call(&["RPUSH", "list", &element]), Value::Int(1));
    let patterns: Vec<String> = (0..5_000).map(|number| format!("{number}*")).collect();
    let mut words = vec!["SORT", "list", "BY", "nosort"];
    patterns.iter().for_each(|pattern| words.extend(["GET", pattern.as_str()]));
    let reply = c.call(&words);
    assert!(matches!(&reply, Value::Error(error) if error.starts_with("OOM ")), "{reply:?}");
    // One value stands for many elements.
    c.call(&["SET", "we", &"v".repeat(1 << 20)]);
    let elements = ["e"; 400];
    c.call(&[&["RPUSH", "same"][..], &elements].concat());
    let reply = c.call(&["SORT", "same", "BY", "w*", "ALPHA"]);
    assert!(matches!(&reply, Value::Error(error) if error.starts_with("OOM ")), "{reply:?}");
    // A sketch with more runs than it has registers.
    let mut sketch = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80".to_vec();
    sketch.extend([0; 20_000]);
    c.send(&[b"SET", b"sketch", &sketch]);
    assert_eq!(c.read(), Value::ok());
    let reply = c.call(&["PFDEBUG", "DECODE", "sketch"]);
    assert!(matches!(&reply, Value::Error(error) if error.starts_with("INVALIDOBJ ")), "{reply:?}");
}
