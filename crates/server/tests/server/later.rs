//! Commands that are younger than the redis-server of the comparisons, by their documentation.

use crate::common::{TestServer, Value};

fn check(commands: &[(&str, Value)]) {
    let server = TestServer::start();
    let mut c = server.client();
    for (line, expected) in commands {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(c.call(&words), *expected, "{line}");
    }
}

fn error(text: &str) -> Value {
    Value::Error(text.to_owned())
}

fn bulks(texts: &[&str]) -> Value {
    let text = |text: &&str| if text.is_empty() { Value::Null } else { Value::bulk(text) };
    Value::Array(texts.iter().map(text).collect())
}

#[test]
fn strings_are_set_and_deleted_on_conditions() {
    let wrong_type = "WRONGTYPE Operation against a key holding the wrong kind of value";
    check(&[
        ("SET k v IFEQ v", Value::Null),
        ("EXISTS k", Value::Int(0)),
        ("SET k v IFNE other", Value::ok()),
        ("SET k w IFEQ x", Value::Null),
        ("SET k w IFEQ v GET", Value::bulk("v")),
        ("SET k x IFNE w", Value::Null),
        ("SET k x IFNE v EX 100", Value::ok()),
        ("SET k x NX IFEQ v", error("ERR syntax error")),
        ("SET k x IFEQ", error("ERR syntax error")),
        ("DIGEST missing", Value::Null),
        ("SET k y IFDEQ 0000000000000000", Value::Null),
        ("SET k y IFDEQ 12", error("ERR digest must be exactly 16 hexadecimal characters")),
        ("SET k y IFDNE 0000000000000000", Value::ok()),
        ("GET k", Value::bulk("y")),
        ("DELEX k IFEQ x", Value::Int(0)),
        ("DELEX k IFNE y", Value::Int(0)),
        ("DELEX k NX", error("ERR syntax error")),
        ("DELEX k IFEQ y", Value::Int(1)),
        ("DELEX k IFNE y", Value::Int(0)),
        ("RPUSH l a", Value::Int(1)),
        ("DELEX l IFEQ a", error(wrong_type)),
        ("SET l a IFNE a", error(wrong_type)),
        ("DELEX l", Value::Int(1)),
    ]);
}

#[test]
fn a_digest_is_that_of_the_value() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SET", "k", "value"]);
    let Value::Bulk(digest) = c.call(&["DIGEST", "k"]) else { panic!("a digest") };
    let digest = String::from_utf8(digest).expect("hexadecimal");
    assert_eq!(digest.len(), 16);
    assert_eq!(c.call(&["SET", "k", "new", "IFDNE", &digest]), Value::Null);
    assert_eq!(c.call(&["SET", "k", "new", "IFDEQ", &digest]), Value::ok());
    assert_eq!(c.call(&["DELEX", "k", "IFDEQ", &digest]), Value::Int(0));
    assert_eq!(c.call(&["DELEX", "k", "IFDNE", &digest]), Value::Int(1));
}

#[test]
fn strings_are_set_together() {
    check(&[
        ("MSETEX 2 a 1 b 2 EX 100", Value::Int(1)),
        ("MGET a b", bulks(&["1", "2"])),
        ("TTL b", Value::Int(100)),
        ("MSETEX 2 b 3 c 4 NX", Value::Int(0)),
        ("MSETEX 2 b 3 c 4 XX", Value::Int(0)),
        ("MSETEX 2 a 3 b 4 XX KEEPTTL", Value::Int(1)),
        ("MGET a b c", bulks(&["3", "4", ""])),
        ("TTL a", Value::Int(100)),
        ("MSETEX 1 a 5", Value::Int(1)),
        ("TTL a", Value::Int(-1)),
        ("MSETEX 1 a 5 KEEPTTL EX 5", error("ERR syntax error")),
        ("MSETEX 1 a 5 EX 0", error("ERR invalid expire time in 'msetex' command")),
        ("MSETEX 0 a 5", error("ERR invalid numkeys value")),
        ("MSETEX 2 a 5", error("ERR wrong number of key-value pairs")),
    ]);
}

#[test]
fn fields_are_returned_and_deleted() {
    let misplaced = "ERR Mandatory argument FIELDS is missing or not at the right position";
    check(&[
        ("HSET h a 1 b 2 c 3", Value::Int(3)),
        ("HGETDEL h FIELDS 2 a x", bulks(&["1", ""])),
        ("HGETDEL h FIELD 1 a", error(misplaced)),
        ("HGETDEL h FIELDS 0 a", error("ERR Number of fields must be a positive integer")),
        (
            "HGETDEL h FIELDS 2 a",
            error("ERR The `numfields` parameter must match the number of arguments"),
        ),
        ("HGETDEL h FIELDS 2 b c", bulks(&["2", "3"])),
        ("EXISTS h", Value::Int(0)),
        ("HGETDEL h FIELDS 1 a", bulks(&[""])),
    ]);
}

#[test]
fn ranks_come_with_scores() {
    check(&[
        ("ZADD z 1 a 2.5 b", Value::Int(2)),
        ("ZRANK z b WITHSCORE", Value::Array(vec![Value::Int(1), Value::bulk("2.5")])),
        ("ZREVRANK z b WITHSCORE", Value::Array(vec![Value::Int(0), Value::bulk("2.5")])),
        ("ZRANK z x WITHSCORE", Value::Null),
        ("ZRANK z a JUNK", error("ERR syntax error")),
        ("ZRANK z a WITHSCORE 1", error("ERR wrong number of arguments for 'zrank' command")),
    ]);
}

#[test]
fn bits_are_combined_in_further_ways() {
    let server = TestServer::start();
    let mut c = server.client();
    c.send(&[b"MSET", b"a", &[0xf0, 0xff], b"b", &[0xcc], b"c", &[0xaa, 0x0f]]);
    assert_eq!(c.read(), Value::ok());
    for (op, expected) in [
        ("DIFF", [0x10, 0xf0]),
        ("DIFF1", [0x0e, 0]),
        ("ANDOR", [0xe0, 0x0f]),
        ("ONE", [0x16, 0xf0]),
    ] {
        assert_eq!(c.call(&["BITOP", op, "d", "a", "b", "c"]), Value::Int(2), "{op}");
        assert_eq!(c.call(&["GET", "d"]), Value::Bulk(expected.to_vec()), "{op}");
    }
}

#[test]
fn the_test_of_hyperloglogs_passes() {
    check(&[("PFSELFTEST", Value::ok())]);
}
