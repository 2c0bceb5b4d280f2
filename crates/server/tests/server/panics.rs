//! Tests that a panic in one event loop ends the whole server. Every client is disconnected, the
//! server returns an error, and no acknowledged write is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use stillpoint::{Config as EngineConfig, Durability, Engine};
use stillpoint_io::{Clock, Disk, RealClock, SimDisk};

use crate::common::{TestServer, Value, config, encode};

/// The machine's clock. The n-th reading by one thread panics.
#[derive(Debug)]
struct PanickingClock {
    thread: String,
    readings_left: AtomicI64,
}

impl PanickingClock {
    fn new(thread: &str) -> Arc<Self> {
        let thread = thread.to_owned();
        Arc::new(Self { thread, readings_left: AtomicI64::new(i64::MAX) })
    }

    fn panic_after(&self, readings: i64) {
        self.readings_left.store(readings, Ordering::SeqCst);
    }

    fn read(&self) {
        if std::thread::current().name() == Some(&self.thread) {
            let left = self.readings_left.fetch_sub(1, Ordering::SeqCst);
            assert!(left != 0, "a panic as planted");
        }
    }
}

impl Clock for PanickingClock {
    fn monotonic_ns(&self) -> u64 {
        self.read();
        RealClock.monotonic_ns()
    }

    fn wall_ms(&self) -> u64 {
        self.read();
        RealClock.wall_ms()
    }

    fn sleep(&self, duration: Duration) {
        RealClock.sleep(duration);
    }
}

fn start(disk: &SimDisk, clock: Arc<dyn Clock>) -> TestServer {
    let mut engine = EngineConfig::new("simulated");
    engine.environment.disk = Some(Arc::new(disk.clone()) as Arc<dyn Disk>);
    engine.durability = Durability::Strict;
    let mut config = config();
    config.clock = clock;
    TestServer::around(config, Engine::open(engine).expect("the engine opens"), None)
}

/// Writes of two clients, one in each loop, until both are disconnected. Returns the acknowledged
/// ones.
fn write_until_closed(server: &TestServer, clock: &PanickingClock, readings: i64) -> Vec<String> {
    let mut clients = [server.client(), server.client()];
    for client in &mut clients {
        // Each transaction reads the clock, too.
        let slow = client.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        assert_eq!(slow, Value::ok());
    }
    clock.panic_after(readings);
    let mut acknowledged = Vec::new();
    let mut is_open = [true; 2];
    for round in 0.. {
        assert!(round < 100_000, "the server goes on without one of its event loops");
        for (number, client) in clients.iter_mut().enumerate() {
            if !is_open[number] {
                continue;
            }
            let key = |part| format!("{number} {round} {part}");
            let request = |part| encode(&[b"SET", key(part).as_bytes(), b"v"]);
            client.send_raw(&[request(0), request(1)].concat());
            for part in 0..2 {
                match client.read() {
                    Value::Closed => is_open[number] = false,
                    reply if reply == Value::ok() => acknowledged.push(key(part)),
                    // The transaction that met the panic may return an error.
                    other => assert!(matches!(other, Value::Error(_)), "{other:?}"),
                }
            }
        }
        if is_open == [false; 2] {
            break;
        }
    }
    acknowledged
}

#[test]
fn a_panic_in_an_event_loop_ends_the_server_and_loses_nothing() {
    for readings in 0..16 {
        let disk = SimDisk::new(readings as u64);
        let clock = PanickingClock::new(&format!("stillpoint-{}", readings / 2 % 2));
        let server = start(&disk, clock.clone());
        let acknowledged = write_until_closed(&server, &clock, readings);
        let ended = server.end().expect_err("the end is a failure").to_string();
        assert!(ended.contains("panic"), "{ended}");
        let server = start(&disk, Arc::new(RealClock));
        let mut client = server.client();
        for key in acknowledged {
            let found = client.call(&["GET", &key]);
            assert_eq!(found, Value::bulk("v"), "{key}, lost after {readings} readings");
        }
    }
}

#[test]
fn a_panic_in_a_long_command_ends_the_server_and_loses_nothing() {
    let keys: Vec<String> = (0..2000).map(|i| format!("long{i}")).collect();
    let mut long: Vec<&[u8]> = vec![b"MSET"];
    for key in &keys {
        long.extend([key.as_bytes(), b"v"]);
    }
    for readings in 0..5 {
        let disk = SimDisk::new(readings as u64);
        let clock = PanickingClock::new("long-0");
        let server = start(&disk, clock.clone());
        let mut client = server.client();
        let slow = client.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        assert_eq!(slow, Value::ok());
        assert_eq!(client.call(&["SET", "before", "v"]), Value::ok());
        clock.panic_after(readings);
        let mut acknowledged = 0;
        // Either of the two threads may take the command.
        for round in 0.. {
            assert!(round < 100_000, "the server goes on without a thread for long commands");
            client.send(&long);
            match client.read() {
                Value::Closed => break,
                reply if reply == Value::ok() => acknowledged += 1,
                other => assert!(matches!(other, Value::Error(_)), "{other:?}"),
            }
        }
        let ended = server.end().expect_err("the end is a failure").to_string();
        assert!(ended.contains("panic"), "{ended}");
        let server = start(&disk, Arc::new(RealClock));
        let mut client = server.client();
        assert_eq!(client.call(&["GET", "before"]), Value::bulk("v"));
        if acknowledged > 0 {
            let mut exists = vec!["EXISTS"];
            exists.extend(keys.iter().map(String::as_str));
            assert_eq!(client.call(&exists), Value::Int(2000), "lost after {readings} readings");
        }
    }
}
