//! Tests of strict durability: replies wait for a flush, and nothing else does.

use std::sync::Arc;
use std::time::Duration;

use stillpoint::{Config as EngineConfig, Durability, Engine};
use stillpoint_io::{Call, Clock, Disk, ManualClock, RealClock, SimDisk};
use stillpoint_server::{ServerConfig, ServerError};

use crate::common::{Client, TestServer, Value, config, eventually};

/// A server with two event loops on a simulated disk. Clients go to the loops in turn.
fn server_on(disk: &SimDisk) -> TestServer {
    server_with(disk, config())
}

fn server_with(disk: &SimDisk, config: ServerConfig) -> TestServer {
    let mut engine = EngineConfig::new("simulated");
    engine.environment.disk = Some(Arc::new(disk.clone()) as Arc<dyn Disk>);
    engine.durability = Durability::Strict;
    // Only replies ask for a flush.
    engine.flush_interval = Duration::from_secs(3600);
    TestServer::around(config, Engine::open(engine).expect("the engine opens"), None)
}

/// A server whose flushes hang until the test releases them. The drop of this value releases the
/// flushes, too; otherwise a failed test could not end.
struct Stalled<'a> {
    disk: &'a SimDisk,
    /// A client in the first loop, which waits for the flush of a SET.
    first: Client,
    /// A client in the second loop, where nobody waits.
    admin: Client,
    /// Another client in the first loop.
    other: Client,
}

impl<'a> Stalled<'a> {
    fn new(disk: &'a SimDisk, server: &TestServer) -> Self {
        let (mut first, mut admin, mut other) = (server.client(), server.client(), server.client());
        assert_eq!(other.call(&["SET", "old", "value"]), Value::ok());
        let id = id_of(&mut first);
        disk.stall(&[Call::Sync]);
        first.send(&[b"SET", b"new", b"1"]);
        until_executed(&mut admin, &id, "set");
        Self { disk, first, admin, other }
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        self.disk.resume();
    }
}

fn id_of(client: &mut Client) -> String {
    client.call(&["CLIENT", "ID"]).int().to_string()
}

/// The lines of CLIENT LIST.
fn listed(admin: &mut Client) -> Vec<String> {
    let list = admin.call(&["CLIENT", "LIST"]).text();
    list.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Waits until `command` is the last command of client `id`. Requests that others send afterwards
/// belong to a later pass of the loop. (Replies of one pass wait together.)
fn until_executed(admin: &mut Client, id: &str, command: &str) {
    let (id, command) = (format!("id={id} "), format!(" cmd={command} "));
    eventually("a command is executed", || {
        listed(admin).iter().any(|line| line.starts_with(&id) && line.contains(&command))
    });
}

#[test]
fn the_loop_goes_on_while_a_flush_is_under_way() {
    let disk = SimDisk::new(1);
    let server = server_on(&disk);
    let mut stalled = Stalled::new(&disk, &server);
    // Replies to durable writes leave at once, also from the loop whose other client waits.
    assert_eq!(stalled.other.call(&["GET", "old"]), Value::bulk("value"));
    assert_eq!(stalled.other.call(&["MGET", "old", "none"]).items().len(), 2);
    // Requests sent while the reply to the first is held run afterwards, in order.
    stalled.first.send(&[b"SET", b"new", b"2"]);
    stalled.first.send(&[b"GET", b"new"]);
    assert_eq!(stalled.other.call(&["GET", "old"]), Value::bulk("value"));
    disk.resume();
    assert_eq!((stalled.first.read(), stalled.first.read()), (Value::ok(), Value::ok()));
    assert_eq!(stalled.first.read(), Value::bulk("2"));
    drop(stalled);
    server.end().expect("the server ends cleanly");
}

/// No reply leaves to the write whose flush hangs, to a read of it, or to requests executed behind
/// it.
#[test]
fn nothing_leaves_before_its_flush() {
    for seed in 1..=4 {
        let disk = SimDisk::new(seed);
        let server = server_on(&disk);
        let mut stalled = Stalled::new(&disk, &server);
        assert_eq!(stalled.other.call(&["GET", "old"]), Value::bulk("value"), "seed {seed}");
        let (mut reader, mut writer) = (server.client(), server.client());
        reader.send(&[b"GET", b"new"]);
        writer.send(&[b"SET", b"later", b"1"]);
        stalled.other.send(&[b"GET", b"new"]);
        // The pause gives wrong replies time to leave.
        RealClock.sleep(Duration::from_millis(20));
        let after = disk.crash(seed);
        for client in [&mut stalled.first, &mut stalled.other, &mut reader, &mut writer] {
            assert_eq!(client.read(), Value::Closed, "seed {seed}");
        }
        let ended = server.end();
        assert!(matches!(ended, Err(ServerError::Flush(_))), "seed {seed}: {ended:?}");
        let server = server_on(&after);
        assert_eq!(server.client().call(&["GET", "old"]), Value::bulk("value"), "seed {seed}");
    }
}

/// A waiting client keeps its number until its flush, even if it has disconnected. A new client
/// gets another number, and its own replies.
#[test]
fn who_leaves_or_is_killed_while_waiting_is_gone_after_the_flush() {
    let disk = SimDisk::new(1);
    let server = server_on(&disk);
    let mut stalled = Stalled::new(&disk, &server);
    let killed = id_of(&mut stalled.other);
    stalled.other.send(&[b"SET", b"killed", b"1"]);
    until_executed(&mut stalled.admin, &killed, "set");
    let (filler, mut next) = (server.client(), server.client());
    drop(std::mem::replace(&mut stalled.first, filler));
    let id = id_of(&mut next);
    assert_eq!(stalled.admin.call(&["CLIENT", "KILL", "ID", &killed]), Value::Int(1));
    next.send(&[b"SET", b"next", b"1"]);
    until_executed(&mut stalled.admin, &id, "set");
    // The pause is longer than the time between two checks of clients.
    RealClock.sleep(Duration::from_millis(250));
    assert_eq!(listed(&mut stalled.admin).len(), 4, "who has left is still there");
    disk.resume();
    assert_eq!(next.read(), Value::ok());
    eventually("three are left", || listed(&mut stalled.admin).len() == 3);
    assert_eq!(stalled.admin.call(&["GET", "new"]), Value::bulk("1"));
    drop(stalled);
    server.end().expect("the server ends cleanly");
}

/// The client sends more requests than a pass executes, and the loop reads them all at once. So no
/// event of the socket announces the rest. The rest must run when the flush of the first requests
/// ends. The loop's next check of its clients never comes by this clock.
#[test]
fn a_long_pipeline_goes_on_after_each_flush() {
    const REQUESTS: usize = 10_000;
    let disk = SimDisk::new(1);
    let mut config = config();
    config.clock = Arc::new(ManualClock::new(0));
    let server = server_with(&disk, config);
    let mut stalled = Stalled::new(&disk, &server);
    stalled.first.send_raw(&b"INCR n\r\n".repeat(REQUESTS));
    disk.resume();
    assert_eq!(stalled.first.read(), Value::ok());
    for number in 1..=REQUESTS {
        assert_eq!(stalled.first.read(), Value::Int(number as i64));
    }
    drop(stalled);
    server.end().expect("the server ends cleanly");
}

/// The end of a server waits for replies that wait for a flush.
#[test]
fn a_server_that_ends_tells_what_was_flushed() {
    let disk = SimDisk::new(1);
    let server = server_on(&disk);
    let mut stalled = Stalled::new(&disk, &server);
    let ending = stillpoint_io::spawn("ending", move || server.end()).expect("a thread");
    RealClock.sleep(Duration::from_millis(150));
    assert!(!ending.is_finished(), "a reply is still due");
    disk.resume();
    assert_eq!(stalled.first.read(), Value::ok());
    ending.join().expect("no panic").expect("the server ends cleanly");
}

/// What a new client is answered; `None` if no answer comes within a second. Replies of one pass of an event
/// loop wait together. That pass may have served a client whose reply waits for the flush.
fn answer(server: &TestServer, words: &[&[u8]]) -> Option<String> {
    let mut client = server.client();
    client.send(words);
    for _ in 0..200 {
        if client.has_reply() {
            return Some(client.read().text());
        }
        RealClock.sleep(Duration::from_millis(5));
    }
    None
}

/// A client that waits gets its reply once the commit that has served it is durable, though that is of another event
/// loop. So it does if that transaction has only read what is not durable yet.
#[test]
fn who_is_served_waits_for_the_flush_of_the_push() {
    let disk = SimDisk::new(6);
    let server = server_on(&disk);
    let mut stalled = Stalled::new(&disk, &server);
    let (mut waits, mut copies, mut waits_too) =
        (server.client(), server.client(), server.client());
    waits.send(&[b"BLPOP", b"queue", b"0"]);
    waits_too.send(&[b"BLPOP", b"copy", b"0"]);
    let blocked = |count: usize| {
        let shown = format!("blocked_clients:{count}\r\n");
        let is_shown =
            || answer(&server, &[b"INFO", b"clients"]).is_some_and(|it| it.contains(&shown));
        eventually("clients wait", is_shown);
    };
    blocked(2);
    stalled.other.send(&[b"RPUSH", b"queue", b"one", b"other"]);
    blocked(1);
    copies.send(&[b"COPY", b"queue", b"copy"]);
    blocked(0);
    for _ in 0..5 {
        RealClock.sleep(Duration::from_millis(4));
        eventually("the loops go on", || answer(&server, &[b"PING"]).as_deref() == Some("PONG"));
        let waiting = [&mut waits, &mut copies, &mut waits_too, &mut stalled.other];
        assert_eq!(waiting.map(Client::has_reply), [false; 4]);
    }
    disk.resume();
    assert_eq!((stalled.other.read(), copies.read()), (Value::Int(2), Value::Int(1)));
    let popped = |key, element| Value::Array(vec![Value::bulk(key), Value::bulk(element)]);
    assert_eq!((waits.read(), waits_too.read()), (popped("queue", "one"), popped("copy", "other")));
    assert_eq!(stalled.first.read(), Value::ok());
}
