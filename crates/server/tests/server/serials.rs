//! Tests of durability by connection, of `WAITAOF`, and of `STILLPOINT DURABLE`.

use std::sync::Arc;
use std::time::Duration;

use stillpoint::{Config as EngineConfig, Durability, Engine};
use stillpoint_io::{Call, Clock, Disk, RealClock, SimDisk};

use crate::common::{Client, TestServer, Value, config, eventually};

/// A server with two event loops on a simulated disk, where only clients ask for flushes. Clients go
/// to the loops in turn.
fn server_on(disk: &SimDisk, durability: Durability, journal: &str) -> TestServer {
    let mut engine = EngineConfig::new("simulated");
    engine.environment.disk = Some(Arc::new(disk.clone()) as Arc<dyn Disk>);
    engine.durability = durability;
    engine.journal = journal.to_owned();
    engine.flush_interval = Duration::from_secs(3600);
    engine.checkpoint_every = None;
    TestServer::around(config(), Engine::open(engine).expect("the engine opens"), None)
}

/// Two clients of one event loop.
fn neighbours(server: &TestServer) -> (Client, Client) {
    let (first, _elsewhere, second) = (server.client(), server.client(), server.client());
    (first, second)
}

fn pair(local: i64, replicas: i64) -> Value {
    Value::Array(vec![Value::Int(local), Value::Int(replicas)])
}

fn error(client: &mut Client, words: &[&str]) -> String {
    match client.call(words) {
        Value::Error(text) => text,
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn a_strict_connection_of_a_relaxed_server_waits_alone() {
    let disk = SimDisk::new(1);
    let server = server_on(&disk, Durability::Relaxed, "redo");
    let (mut strict, mut other) = neighbours(&server);
    assert_eq!(strict.call(&["CLIENT", "DURABILITY"]), Value::bulk("relaxed"));
    assert_eq!(other.call(&["SET", "seen", "1"]), Value::ok());
    disk.stall(&[Call::Sync]);
    // Its replies have their order: all of them wait, also that of the change.
    strict.send(&[b"CLIENT", b"DURABILITY", b"strict"]);
    strict.send(&[b"GET", b"seen"]);
    strict.send(&[b"SET", b"own", b"1"]);
    strict.send(&[b"CLIENT", b"DURABILITY", b"relaxed"]);
    for n in 0..20 {
        assert_eq!(other.call(&["INCR", "count"]), Value::Int(n + 1));
    }
    assert!(!strict.has_reply(), "the flush hangs");
    disk.resume();
    assert_eq!((strict.read(), strict.read()), (Value::ok(), Value::bulk("1")));
    assert_eq!((strict.read(), strict.read()), (Value::ok(), Value::ok()));
    // From here on nothing of the connection waits.
    disk.stall(&[Call::Sync]);
    assert_eq!(strict.call(&["SET", "late", "1"]), Value::ok());
    let after = disk.crash(2);
    disk.resume();
    drop((strict, other));
    let _ = server.end();
    let server = server_on(&after, Durability::Relaxed, "redo");
    let mut client = server.client();
    assert_eq!(client.call(&["MGET", "seen", "own"]).items(), ["1", "1"].map(Value::bulk));
}

#[test]
fn a_relaxed_connection_of_a_strict_server_does_not_wait() {
    let disk = SimDisk::new(1);
    let server = server_on(&disk, Durability::Strict, "redo");
    let (mut relaxed, mut strict) = neighbours(&server);
    assert_eq!(relaxed.call(&["CLIENT", "DURABILITY", "relaxed"]), Value::ok());
    assert_eq!(strict.call(&["SET", "old", "1"]), Value::ok());
    disk.stall(&[Call::Sync]);
    assert_eq!(relaxed.call(&["SET", "new", "1"]), Value::ok());
    assert_eq!(relaxed.call(&["GET", "new"]), Value::bulk("1"));
    // A third client has gone, and its event loop may notice it later.
    eventually("one client of each kind", || {
        let list = relaxed.call(&["CLIENT", "LIST"]).text();
        let count = |level: &str| list.matches(&format!("durability={level}")).count();
        (count("relaxed"), count("strict")) == (1, 1)
    });
    // Who shows the write to a strict client makes it wait.
    strict.send(&[b"GET", b"new"]);
    assert_eq!(relaxed.call(&["GET", "old"]), Value::bulk("1"));
    RealClock.sleep(Duration::from_millis(20));
    let waits = !strict.has_reply();
    disk.resume();
    assert!(waits, "the flush hangs");
    assert_eq!(strict.read(), Value::bulk("1"));
    // The client is strict at the end of this pass, so its reply waits for what the loop has met before.
    assert_eq!(relaxed.call(&["RESET"]), Value::Simple("RESET".to_owned()));
    disk.stall(&[Call::Sync]);
    relaxed.send(&[b"SET", b"new", b"2"]);
    RealClock.sleep(Duration::from_millis(20));
    let waits = !relaxed.has_reply();
    disk.resume();
    assert!(waits, "RESET brings the server's durability back");
    assert_eq!(relaxed.read(), Value::ok());
}

#[test]
fn waitaof_parks_its_client_alone() {
    let disk = SimDisk::new(1);
    let server = server_on(&disk, Durability::Relaxed, "redo");
    let (mut waiting, mut other) = neighbours(&server);
    for (words, wanted) in [
        (["2", "0", "0"], "ERR value is out of range, value must between 0 and 1"),
        (["-1", "0", "0"], "ERR value is out of range, value must between 0 and 1"),
        (["x", "0", "0"], "ERR value is not an integer or out of range"),
        (["1", "-1", "0"], "ERR value is out of range, must be positive"),
        (["1", "x", "0"], "ERR value is out of range, must be positive"),
        (["1", "0", "-1"], "ERR timeout is negative"),
        (["1", "0", "x"], "ERR timeout is not an integer or out of range"),
    ] {
        let [local, replicas, timeout] = words;
        assert_eq!(error(&mut waiting, &["WAITAOF", local, replicas, timeout]), wanted);
    }
    disk.stall(&[Call::Sync]);
    assert_eq!(waiting.call(&["SET", "key", "1"]), Value::ok());
    assert_eq!(waiting.call(&["WAITAOF", "0", "0", "0"]), pair(0, 0));
    assert_eq!(waiting.call(&["WAITAOF", "1", "0", "30"]), pair(0, 0), "its time is over");
    // Inside of MULTI nobody waits.
    waiting.call(&["MULTI"]);
    waiting.call(&["WAITAOF", "1", "0", "0"]);
    assert_eq!(waiting.call(&["EXEC"]).items(), [pair(0, 0)]);
    waiting.send(&[b"WAITAOF", b"1", b"0", b"0"]);
    waiting.send(&[b"GET", b"key"]);
    for n in 0..20 {
        assert_eq!(other.call(&["INCR", "count"]), Value::Int(n + 1));
    }
    assert!(!waiting.has_reply(), "the flush hangs");
    // Another client that waits goes.
    let mut gone = server.client();
    gone.send(&[b"WAITAOF", b"1", b"0", b"0"]);
    RealClock.sleep(Duration::from_millis(10));
    drop(gone);
    eventually("it is gone", || other.call(&["CLIENT", "LIST"]).text().lines().count() <= 3);
    disk.resume();
    assert_eq!((waiting.read(), waiting.read()), (pair(1, 0), Value::bulk("1")));
    // There are no replicas, so who wants one waits in vain.
    assert_eq!(waiting.call(&["WAITAOF", "1", "1", "30"]), pair(1, 0));
    assert_eq!(waiting.call(&["WAITAOF", "1", "0", "0"]).items().len(), 2);
    let after = disk.crash(1);
    drop((waiting, other));
    // A dead disk ends the server with an error, or not, as flushes come.
    let _ = server.end();
    let server = server_on(&after, Durability::Relaxed, "redo");
    assert_eq!(server.client().call(&["GET", "key"]), Value::bulk("1"));
}

#[test]
fn client_unblock_ends_a_waitaof() {
    let disk = SimDisk::new(1);
    let server = server_on(&disk, Durability::Relaxed, "redo");
    // One of the others shares the event loop of the client that waits.
    let (mut waiting, mut other, mut near) = (server.client(), server.client(), server.client());
    let id = waiting.call(&["CLIENT", "ID"]).int().to_string();
    disk.stall(&[Call::Sync]);
    assert_eq!(waiting.call(&["SET", "key", "1"]), Value::ok());
    let is_blocked = |client: &mut Client, count| {
        let line = format!("blocked_clients:{count}\r\n");
        eventually(&line, || client.call(&["INFO", "clients"]).text().contains(&line));
    };
    for (replicas, how) in [("0", "TIMEOUT"), ("1", "ERROR"), ("0", "ERROR"), ("1", "TIMEOUT")] {
        waiting.send(&[b"WAITAOF", b"1", replicas.as_bytes(), b"0"]);
        is_blocked(&mut other, 1);
        assert!(!waiting.has_reply(), "the flush hangs");
        let by = if replicas == "0" { &mut other } else { &mut near };
        assert_eq!(by.call(&["CLIENT", "UNBLOCK", &id, how]), Value::Int(1));
        let unblocked = "UNBLOCKED client unblocked via CLIENT UNBLOCK".to_owned();
        let wanted = if how == "ERROR" { Value::Error(unblocked) } else { pair(0, 0) };
        assert_eq!(waiting.read(), wanted, "{how}");
        is_blocked(&mut other, 0);
        assert_eq!(near.call(&["CLIENT", "UNBLOCK", &id, how]), Value::Int(0), "nothing waits");
    }
    disk.resume();
    assert_eq!(waiting.call(&["WAITAOF", "1", "0", "0"]), pair(1, 0));
    waiting.send(&[b"WAITAOF", b"0", b"1", b"0"]);
    is_blocked(&mut other, 1);
    drop(waiting);
    is_blocked(&mut other, 0);
}

#[test]
fn a_waitaof_that_nobody_wants_an_answer_to_gives_none() {
    let disk = SimDisk::new(1);
    let server = server_on(&disk, Durability::Relaxed, "redo");
    let (mut client, _other) = neighbours(&server);
    disk.stall(&[Call::Sync]);
    assert_eq!(client.call(&["SET", "key", "1"]), Value::ok());
    client.send(&[b"CLIENT", b"REPLY", b"SKIP"]);
    client.send(&[b"WAITAOF", b"1", b"0", b"0"]);
    client.send(&[b"ECHO", b"next"]);
    client.send(&[b"CLIENT", b"REPLY", b"OFF"]);
    client.send(&[b"WAITAOF", b"1", b"1", b"10"]);
    client.send(&[b"CLIENT", b"REPLY", b"ON"]);
    RealClock.sleep(Duration::from_millis(20));
    assert!(!client.has_reply(), "the flush hangs");
    disk.resume();
    assert_eq!((client.read(), client.read()), (Value::bulk("next"), Value::ok()));
}

#[test]
fn a_transaction_that_is_not_over_calls_nothing_durable() {
    let disk = SimDisk::new(1);
    let server = server_on(&disk, Durability::Relaxed, "redo");
    let mut client = server.client();
    client.call(&["MULTI"]);
    client.call(&["SET", "key", "1"]);
    let refused = error(&mut client, &["STILLPOINT", "DURABLE"]);
    assert_eq!(refused, "ERR Command not allowed inside a transaction");
    assert!(error(&mut client, &["EXEC"]).starts_with("EXECABORT"));
    client.call(&["MULTI"]);
    client.call(&["SET", "key", "1"]);
    assert_eq!(client.call(&["EXEC"]).items(), [Value::ok()]);
    assert_eq!(client.call(&["STILLPOINT", "DURABLE"]), pair(7, 0), "nothing is flushed");
}

#[test]
fn without_a_journal_nothing_waits_and_checkpoints_count() {
    let server = server_on(&SimDisk::new(1), Durability::Checkpoint, "none");
    let mut client = server.client();
    let refused = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";
    assert_eq!(error(&mut client, &["WAITAOF", "1", "0", "0"]), refused);
    assert_eq!(client.call(&["WAITAOF", "0", "0", "0"]), pair(0, 0));
    assert!(error(&mut client, &["CLIENT", "DURABILITY", "strict"]).contains("--journal redo"));
    assert_eq!(error(&mut client, &["CLIENT", "DURABILITY", "fast"]), "ERR syntax error");
    // Four requests, of which one was an error to read, and a write.
    client.call(&["SET", "key", "1"]);
    assert_eq!(client.call(&["STILLPOINT", "DURABLE"]), pair(5, 0));
    assert_eq!(client.call(&["SAVE"]), Value::ok());
    assert_eq!(client.call(&["STILLPOINT", "DURABLE"]), pair(7, 7));
    client.call(&["SET", "key", "2"]);
    let now = client.call(&["STILLPOINT", "DURABLE"]);
    assert_eq!(now.items()[0], Value::Int(9));
    assert!((7..=8).contains(&now.items()[1].int()), "the write is in no checkpoint: {now:?}");
}

#[test]
fn a_connection_learns_what_is_durable() {
    let disk = SimDisk::new(1);
    let server = server_on(&disk, Durability::Relaxed, "redo");
    let (mut client, mut other) = neighbours(&server);
    other.call(&["SET", "seen", "1"]);
    assert_eq!(client.call(&["STILLPOINT", "DURABLE"]), pair(0, 0));
    for n in 1..=30 {
        client.call(&["SET", &format!("key{n}"), "1"]);
    }
    assert_eq!(client.call(&["GET", "seen"]), Value::bulk("1"));
    let seen = client.call(&["STILLPOINT", "DURABLE"]);
    assert_eq!(seen, pair(32, 0), "nothing is flushed");
    assert_eq!(other.call(&["WAITAOF", "1", "0", "0"]), pair(1, 0));
    let Value::Array(told) = client.call(&["STILLPOINT", "DURABLE"]) else { panic!("no array") };
    assert_eq!(told[0], Value::Int(33));
    assert!((32..=33).contains(&told[1].int()), "{told:?}");
    let help = client.call(&["STILLPOINT", "HELP"]);
    assert!(help.items().iter().any(|line| line.text().contains("durable")), "{help:?}");
}
