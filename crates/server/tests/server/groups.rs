//! Tests of groups: the successive commands of a client on one key are one transaction.

use crate::common::{Client, TestServer, Value, encode, field};

/// Sends requests together, and gives their replies.
fn pipeline(client: &mut Client, requests: &[Vec<String>]) -> Vec<Value> {
    let mut bytes = Vec::new();
    for request in requests {
        let words: Vec<&[u8]> = request.iter().map(String::as_bytes).collect();
        bytes.extend(encode(&words));
    }
    client.send_raw(&bytes);
    requests.iter().map(|_| client.read()).collect()
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Number of transactions that have written.
fn written(client: &mut Client) -> u64 {
    let info = client.call(&["INFO", "persistence"]).text();
    field(&info, "rdb_changes_since_last_save")
}

/// The replies are those of single commands.
#[test]
fn commands_on_one_key_are_one_transaction() {
    let server = TestServer::start();
    let mut c = server.client();
    let push = |key: &str| -> Vec<Vec<String>> {
        (0..30).map(|i| words(&format!("RPUSH {key} element-{i:08}"))).collect()
    };
    let want: Vec<Value> = (1..=30).map(Value::Int).collect();
    for request in push("alone") {
        pipeline(&mut c, &[request]);
    }
    let before = written(&mut c);
    assert!(before >= 30, "{before}");
    assert_eq!(pipeline(&mut c, &push("group")), want);
    // The requests may arrive in several pieces.
    let count = written(&mut c) - before;
    assert!((1..20).contains(&count), "{count}");
    let (a, b) = (c.call(&["LRANGE", "alone", "0", "-1"]), c.call(&["LRANGE", "group", "0", "-1"]));
    assert_eq!(a, b);
}

/// An error of one command leaves the others of its group as they are.
#[test]
fn an_error_concerns_its_own_command() {
    let server = TestServer::start();
    let mut c = server.client();
    let requests =
        ["SET k 5", "INCR k", "LPUSH k x", "INCRBY k x", "APPEND k 7", "GET k"].map(words);
    let replies = pipeline(&mut c, &requests);
    assert_eq!((&replies[0], &replies[1]), (&Value::ok(), &Value::Int(6)));
    assert!(matches!(&replies[2], Value::Error(text) if text.starts_with("WRONGTYPE")));
    assert!(matches!(&replies[3], Value::Error(text) if text.contains("not an integer")));
    assert_eq!((&replies[4], &replies[5]), (&Value::Int(2), &Value::bulk("67")));
    let stats = c.call(&["INFO", "commandstats"]).text();
    assert!(stats.contains("cmdstat_incr:calls=1,"), "{stats}");
}

/// A command that leaves its event loop dissolves its group. Nothing of the group happens twice, and
/// the replies keep their order.
#[test]
fn a_long_command_dissolves_its_group() {
    const ELEMENTS: usize = 10_000;
    let server = TestServer::start();
    let mut c = server.client();
    for from in (0..ELEMENTS).step_by(1_000) {
        let mut push = words("RPUSH list");
        push.extend((from..from + 1_000).map(|i| i.to_string()));
        pipeline(&mut c, &[push]);
    }
    let requests = ["RPUSH list a", "LPUSH list b", "LRANGE list 0 -1", "RPOP list", "LPOP list"];
    let replies = pipeline(&mut c, &requests.map(words));
    let len = ELEMENTS as i64;
    assert_eq!((&replies[0], &replies[1]), (&Value::Int(len + 1), &Value::Int(len + 2)));
    assert_eq!(replies[2].items().len(), ELEMENTS + 2);
    assert_eq!((&replies[3], &replies[4]), (&Value::bulk("a"), &Value::bulk("b")));
    assert_eq!(c.call(&["LLEN", "list"]), Value::Int(len));
    let stats = c.call(&["INFO", "commandstats"]).text();
    assert!(stats.contains("cmdstat_rpush:calls=11,"), "{stats}");
    assert!(stats.contains("cmdstat_lrange:calls=1,"), "{stats}");
}

/// Reads of a grown collection need its lock, which a group of reads takes in a second run.
#[test]
fn a_group_of_reads_runs_again_under_the_lock() {
    let server = TestServer::start();
    let mut c = server.client();
    for i in 0..200 {
        c.call(&["HSET", "hash", &format!("field-{i}"), &format!("value-{i}")]);
    }
    let requests = ["HLEN hash", "HGET hash field-7", "HEXISTS hash field-8", "HLEN hash"];
    let replies = pipeline(&mut c, &requests.map(words));
    let want = [Value::Int(200), Value::bulk("value-7"), Value::Int(1), Value::Int(200)];
    assert_eq!(replies, want);
    let stats = c.call(&["INFO", "commandstats"]).text();
    assert!(stats.contains("cmdstat_hlen:calls=2,"), "{stats}");
}

/// At full memory the commands of a group that find room succeed, and the others do not.
#[test]
fn full_memory_refuses_single_commands_of_a_group() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SET", "k", "1"]);
    c.call(&["CONFIG", "SET", "maxmemory", "1"]);
    let long = "x".repeat(20_000);
    let requests = vec![words("GET k"), words(&format!("SETRANGE k 0 {long}")), words("STRLEN k")];
    let replies = pipeline(&mut c, &requests);
    assert_eq!(replies[0], Value::bulk("1"));
    match &replies[1] {
        Value::Error(text) => {
            assert!(text.starts_with("OOM"), "{text}");
            assert_eq!(replies[2], Value::Int(1));
        }
        done => panic!("there was room: {done:?}"),
    }
}

/// An error that dissolves a group counts once, and so do the errors before it.
#[test]
fn errors_of_a_dissolved_group_count_once() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SET", "k", "1"]);
    c.call(&["CONFIG", "SET", "maxmemory", "1"]);
    c.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    c.call(&["CONFIG", "RESETSTAT"]);
    c.call(&["SLOWLOG", "RESET"]);
    let long = "x".repeat(20_000);
    let requests = [words("STRLEN k"), words("LPUSH k x"), words(&format!("SETRANGE k 0 {long}"))];
    let replies = pipeline(&mut c, &requests);
    assert_eq!(replies[0], Value::Int(1));
    assert!(matches!(&replies[1], Value::Error(text) if text.starts_with("WRONGTYPE")));
    assert!(matches!(&replies[2], Value::Error(text) if text.starts_with("OOM")));
    // RESETSTAT and RESET were slow, too.
    let slow = c.call(&["SLOWLOG", "LEN"]);
    assert_eq!(slow, Value::Int(4));
    let stats = c.call(&["INFO", "commandstats"]).text();
    for command in ["lpush", "setrange"] {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        let line = line.expect("the command ran");
        assert!(line.contains(":calls=1,") && line.contains("failed_calls=1"), "{line}");
    }
    let stats = c.call(&["INFO", "errorstats"]).text();
    assert!(
        stats.contains("errorstat_OOM:count=1") && stats.contains("WRONGTYPE:count=1"),
        "{stats}"
    );
}

/// Commands that change a long string are transactions of their own, since each command of a group
/// would copy the string.
#[test]
fn commands_on_a_long_string_are_no_group() {
    const COMMANDS: u64 = 30;
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SETRANGE", "bits", "1000000", "x"]);
    let requests: Vec<Vec<String>> =
        (0..COMMANDS).map(|i| words(&format!("SETBIT bits {} 1", 9 * i))).collect();
    let before = written(&mut c);
    assert_eq!(pipeline(&mut c, &requests), vec![Value::Int(0); COMMANDS as usize]);
    assert_eq!(written(&mut c) - before, COMMANDS);
    assert_eq!(c.call(&["BITCOUNT", "bits", "0", "999"]), Value::Int(COMMANDS as i64));
}
