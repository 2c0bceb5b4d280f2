//! Collections that versions before this one have written.

use std::sync::Arc;

use stillpoint::{Config as EngineConfig, Durability, Engine};

use crate::common::{TestServer, Value, config, verify};

/// Records of a sorted set `set` of the members `member-0000` to `member-0159`, whose scores are
/// 7,919 times their number, modulo 1,009. The version of 25 November 2026, 02:00, has written them:
/// its leaves are in order, and its index by member counts. Each line has table, key, tag and value,
/// keys and values in hexadecimal digits.
const IN_ORDER: &str = include_str!("fixtures/sorted-set-in-order.txt");

const MEMBERS: usize = 160;

fn score(member: usize) -> i64 {
    (member * 7919 % 1009) as i64
}

fn bytes(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(&String::from_utf8_lossy(pair), 16);
    pairs.map(|pair| byte(pair).expect("digits")).collect()
}

/// Puts the records of a fixture into tables of their names.
fn load(engine: &Engine, records: &str) {
    let mut session = engine.session().expect("a session");
    for record in records.lines() {
        let mut words = record.split(' ');
        let mut word = || words.next().expect("four words");
        let (table, key, tag, value) = (word(), bytes(word()), word(), bytes(word()));
        let table = engine.table(table).expect("a table");
        let tag = tag.parse().expect("a tag");
        session.transact(|tx| tx.put_tagged(table, &key, tag, &value)).expect("room");
    }
}

/// A sorted set of an older version is read, grows, changes its scores, and loses members. It is
/// sound then, also after a restart that replays all of it.
#[test]
fn a_sorted_set_with_leaves_in_order_and_a_counted_index_goes_on() {
    let directory = Arc::new(tempfile::tempdir().expect("a directory"));
    let open = || {
        let mut engine = EngineConfig::new("unused");
        engine.data = directory.path().join("data");
        engine.durability = Durability::Strict;
        Engine::open(engine).expect("the engine opens")
    };
    // The server makes its tables.
    drop(TestServer::around(config(), open(), None));
    let engine = open();
    load(&engine, IN_ORDER);
    assert_eq!(verify(&engine), 1);
    drop(engine);

    let mut scores: Vec<(i64, String)> =
        (0..MEMBERS).map(|i| (score(i), format!("member-{i:04}"))).collect();
    scores.sort();
    let want = |scores: &[(i64, String)]| {
        let pairs = scores.iter().flat_map(|(score, member)| [member.clone(), score.to_string()]);
        Value::Array(pairs.map(|text| Value::bulk(&text)).collect())
    };
    {
        let server = TestServer::around(config(), open(), None);
        let mut c = server.client();
        let mut range = |words: &str| c.call(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(range("ZRANGE set 0 -1 WITHSCORES"), want(&scores));
        for (position, (score, member)) in scores.iter().enumerate() {
            assert_eq!(range(&format!("ZSCORE set {member}")), Value::bulk(&score.to_string()));
            assert_eq!(range(&format!("ZRANK set {member}")), Value::Int(position as i64));
        }
        // Some members get new scores, some go, and others come.
        for i in 0..MEMBERS {
            let member = format!("member-{i:04}");
            let place = scores.iter().position(|(_, other)| *other == member).expect("a member");
            if i % 5 == 0 {
                scores.remove(place);
                assert_eq!(range(&format!("ZREM set {member}")), Value::Int(1));
            } else if i % 2 == 0 {
                scores[place].0 = score(i + 500);
                range(&format!("ZADD set {} {member}", score(i + 500)));
            }
        }
        for i in MEMBERS..3 * MEMBERS {
            let member = format!("member-{i:04}");
            assert_eq!(range(&format!("ZADD set {} {member}", score(i))), Value::Int(1));
            scores.push((score(i), member));
        }
        scores.sort();
        assert_eq!(range("ZRANGE set 0 -1 WITHSCORES"), want(&scores));
    }
    let engine = open();
    assert_eq!(verify(&engine), 1);
    drop(engine);
    let server = TestServer::around(config(), open(), None);
    let mut c = server.client();
    assert_eq!(c.call(&["ZRANGE", "set", "0", "-1", "WITHSCORES"]), want(&scores));
}
