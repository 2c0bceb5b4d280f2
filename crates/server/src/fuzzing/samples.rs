//! Streams of requests that seed the fuzzers.

use stillpoint_io::{Rng, SeededRng};

use crate::families::COMMANDS;

/// Words among the arguments of commands, in addition to keys and numbers.
const WORDS: &[&str] = &[
    "NX",
    "XX",
    "GET",
    "EX",
    "PX",
    "EXAT",
    "PXAT",
    "KEEPTTL",
    "FIELDS",
    "FNX",
    "FXX",
    "PERSIST",
    "GT",
    "LT",
    "MATCH",
    "COUNT",
    "TYPE",
    "string",
    "DB",
    "REPLACE",
    "LEN",
    "IDX",
    "MINMATCHLEN",
    "WITHMATCHLEN",
    "ON",
    "OFF",
    "SKIP",
    "YES",
    "NO",
    "ALL",
    "WRITE",
    "ID",
    "ADDR",
    "LADDR",
    "USER",
    "default",
    "AUTH",
    "SETNAME",
    "SKIPME",
    "ASYNC",
    "SYNC",
    "NOSAVE",
    "LIB-NAME",
    "LIB-VER",
    "RESETSTAT",
    "everything",
    "maxmemory",
    "requirepass",
    "timeout",
    "slowlog-log-slower-than",
    "LEFT",
    "RIGHT",
    "BEFORE",
    "RANK",
    "MAXLEN",
    "LIMIT",
    "WITHVALUES",
    "WITHSCORES",
    "BYSCORE",
    "BYLEX",
    "REV",
    "MIN",
    "MAX",
    "CH",
    "INCR",
    "INCRBY",
    "WEIGHTS",
    "AGGREGATE",
    "OVERFLOW",
    "SAT",
    "BIT",
    "XOR",
    "u8",
    "i64",
    "#1",
    "(1",
    "[m",
    "-",
    "+",
    "*",
    "[a-c]?*",
    "\\*",
    "[^",
];
const KEYS: &[&str] = &["k", "l", "counter", "", "a key with spaces"];
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "-1",
    "10",
    "100",
    "1000000",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "1.5",
    "3e10",
    "inf",
    "nan",
    "-0",
    "007",
];

/// A stream of requests from two clients, made from a seed. The stream holds every command of the
/// table, with valid and invalid arguments.
pub fn sample_stream(seed: u64) -> Vec<u8> {
    let rng = SeededRng::new(seed);
    let specs: Vec<_> = COMMANDS.all().collect();
    let mut stream = Vec::new();
    if rng.below(2) == 0 {
        stream.extend_from_slice(b"HELLO 3\r\n");
    }
    for _ in 0..1 + rng.below(12) {
        let spec = match rng.below(3) {
            // Commands that change the connection's state appear more often than their share of the
            // table.
            0 => COMMANDS.find(STATEFUL[pick(&rng, STATEFUL.len())].as_bytes()),
            _ => Some(specs[pick(&rng, specs.len())]),
        };
        let Some(spec) = spec else { continue };
        let mut words: Vec<Vec<u8>> =
            spec.full_name().split('|').map(|word| word.as_bytes().to_vec()).collect();
        let wanted = usize::from(spec.arity.unsigned_abs()) + pick(&rng, 4) * pick(&rng, 2);
        while words.len() < wanted {
            words.push(argument(&rng));
        }
        encode(&mut stream, &words, rng.below(8) == 0);
        if rng.below(4) == 0 {
            stream.push(0xFF);
        }
    }
    stream
}

const STATEFUL: &[&str] = &[
    "multi", "exec", "set", "get", "watch", "discard", "select", "append", "incr", "scan", "hset",
    "lpush", "sadd", "zadd",
];

fn pick(rng: &SeededRng, count: usize) -> usize {
    rng.below(count as u64) as usize
}

fn argument(rng: &SeededRng) -> Vec<u8> {
    let list = match rng.below(8) {
        0..4 => KEYS,
        4..6 => NUMBERS,
        6 => WORDS,
        _ => return (0..rng.below(12)).map(|_| rng.next_u64() as u8).collect(),
    };
    list[pick(rng, list.len())].as_bytes().to_vec()
}

fn encode(stream: &mut Vec<u8>, words: &[Vec<u8>], inline: bool) {
    if inline {
        stream.extend_from_slice(&words.join(&b' '));
        stream.extend_from_slice(b"\r\n");
        return;
    }
    stream.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        stream.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        stream.extend_from_slice(word);
        stream.extend_from_slice(b"\r\n");
    }
}
