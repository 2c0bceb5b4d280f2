//! Strict durability: replies wait for a flush, and only they.

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
    // Nothing but replies asks for a flush.
    engine.flush_interval = Duration::from_secs(3600);
    TestServer::around(config, Engine::open(engine).expect("the engine opens"), None)
}

/// A server whose flushes hang. Let go, they go on, also when a test fails: it could not end.
struct Stalled<'a> {
    disk: &'a SimDisk,
    /// In the first loop; it waits for the flush of a SET.
    first: Client,
    /// In the second loop, where nobody waits.
    admin: Client,
    /// In the first loop.
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

/// Waits until a client's last command is this one: what others send from now on has its turn in a
/// later pass of the loop. (Replies of one pass wait together.)
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
    // What is durable is told at once, by the loop whose other client waits.
    assert_eq!(stalled.other.call(&["GET", "old"]), Value::bulk("value"));
    assert_eq!(stalled.other.call(&["MGET", "old", "none"]).items().len(), 2);
    // Sent while the reply to the first is held: they have their turn afterwards, in order.
    stalled.first.send(&[b"SET", b"new", b"2"]);
    stalled.first.send(&[b"GET", b"new"]);
    assert_eq!(stalled.other.call(&["GET", "old"]), Value::bulk("value"));
    disk.resume();
    assert_eq!((stalled.first.read(), stalled.first.read()), (Value::ok(), Value::ok()));
    assert_eq!(stalled.first.read(), Value::bulk("2"));
    drop(stalled);
    server.end().expect("the server ends cleanly");
}

/// Neither the write whose flush hangs, nor a read of it, nor what was executed behind it is told.
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
        // Time for wrong replies to leave.
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

/// A client that waits keeps its place until its flush, though it has gone: who comes meanwhile gets
/// another, and replies of its own.
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
    // Longer than the time between two looks at clients.
    RealClock.sleep(Duration::from_millis(250));
    assert_eq!(listed(&mut stalled.admin).len(), 5, "both are still there");
    disk.resume();
    assert_eq!(next.read(), Value::ok());
    eventually("three are left", || listed(&mut stalled.admin).len() == 3);
    assert_eq!(stalled.admin.call(&["GET", "new"]), Value::bulk("1"));
    drop(stalled);
    server.end().expect("the server ends cleanly");
}

/// More requests than a pass executes, all of them read at once: no event of the socket announces the
/// rest. It has its turn when the flush of the first ones ends, not when the loop next looks after its
/// clients, which by this clock is never.
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

/// The end of a server waits for the replies that wait for a flush.
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
