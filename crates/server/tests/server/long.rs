//! Commands over many keys or bytes run beside the event loops. No other client waits for such a
//! command, and its own client sees no difference.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stillpoint::{Config as EngineConfig, Durability, Engine};
use stillpoint_io::{Call, Clock, Disk, Fault, FaultPlan, Lasts, RealClock, SimDisk};
use stillpoint_server::ServerError;

use crate::common::{Client, TestServer, Value, config, encode, eventually, field, opened, verify};
use crate::groups::{send_in_one_round, words};

/// The machine's clock. Threads for long commands that read the clock wait until the gate is open.
#[derive(Debug, Default)]
struct GatedClock {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl GatedClock {
    fn open(&self) {
        *self.is_open.lock() = true;
        self.changed.notify_all();
    }

    fn close(&self) {
        *self.is_open.lock() = false;
    }

    fn pass(&self) {
        if std::thread::current().name().is_some_and(|name| name.starts_with("long-")) {
            self.changed.wait_while(&mut self.is_open.lock(), |is_open| !*is_open);
        }
    }
}

/// The gate of a test. The gate opens at the end of the test at the latest.
struct ClockGate(Arc<GatedClock>);

impl std::ops::Deref for ClockGate {
    type Target = GatedClock;
    fn deref(&self) -> &GatedClock {
        &self.0
    }
}

impl Drop for ClockGate {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl Clock for GatedClock {
    fn monotonic_ns(&self) -> u64 {
        self.pass();
        RealClock.monotonic_ns()
    }

    fn wall_ms(&self) -> u64 {
        self.pass();
        RealClock.wall_ms()
    }

    fn sleep(&self, duration: Duration) {
        RealClock.sleep(duration);
    }
}

/// A server with one event loop, where long commands wait until the gate is opened.
fn gated() -> (TestServer, ClockGate) {
    let clock = Arc::new(GatedClock::default());
    let mut config = config();
    config.threads = 1;
    config.clock = Arc::clone(&clock) as Arc<dyn Clock>;
    (TestServer::with(config), ClockGate(clock))
}

/// A command of thousands of keys: `long0` to `long1999` get `value`.
fn long_request(value: &str) -> Vec<u8> {
    let keys: Vec<String> = (0..2000).map(|i| format!("long{i}")).collect();
    let mut args: Vec<&[u8]> = vec![b"MSET"];
    for key in &keys {
        args.extend([key.as_bytes(), value.as_bytes()]);
    }
    encode(&args)
}

/// Number of long commands that have begun or wait, judged by their clients' last requests.
fn wait_until_parked(witness: &mut Client) {
    // The loop has read the requests sent before, and the witness's request comes later.
    for _ in 0..20 {
        assert_eq!(witness.call(&["PING"]).text(), "PONG");
        RealClock.sleep(Duration::from_millis(5));
    }
}

#[test]
fn nobody_waits_for_a_long_command_of_another() {
    let (server, gate) = gated();
    let (mut a, mut b) = (server.client(), server.client());
    a.send_raw(&[encode(&[b"SET", b"n", b"1"]), long_request("x")].concat());
    a.send_raw(&[encode(&[b"INCR", b"n"]), encode(&[b"GET", b"long7"])].concat());
    assert_eq!(a.read(), Value::ok());
    wait_until_parked(&mut b);
    for i in 0..100 {
        assert_eq!(b.call(&["SET", "other", &i.to_string()]), Value::ok());
    }
    // Nothing behind the long command has begun.
    assert_eq!(b.call(&["GET", "n"]), Value::bulk("1"));
    assert_eq!(b.call(&["EXISTS", "long7"]), Value::Int(0));
    gate.open();
    assert_eq!(a.read(), Value::ok());
    assert_eq!(a.read(), Value::Int(2));
    assert_eq!(a.read(), Value::bulk("x"));
}

#[test]
fn commands_of_every_kind_leave_the_loop() {
    let (server, gate) = gated();
    gate.open();
    let (mut a, mut b) = (server.client(), server.client());
    a.send_raw(&long_request("x"));
    assert_eq!(a.read(), Value::ok());
    gate.close();
    let value = vec![b'v'; 2 << 20];
    let long: &[&[&[u8]]] = &[
        &[b"SET", b"value", &value],
        &[b"SETRANGE", b"made", b"3000000", b"x"],
        &[b"KEYS", b"long*"],
        &[b"SCAN", b"0", b"COUNT", b"5000"],
        &[b"LCS", b"long1", b"long2"],
        // These commands are long because of the value that they find.
        &[b"GET", b"value"],
        &[b"MGET", b"n", b"value"],
        &[b"EXPIRE", b"value", b"1000"],
        &[b"RENAME", b"value", b"other"],
    ];
    for command in long {
        a.send(command);
        wait_until_parked(&mut b);
        assert_eq!(b.call(&["INCR", "n"]).text(), b.call(&["GET", "n"]).text());
        gate.open();
        assert!(!matches!(a.read(), Value::Error(_) | Value::Closed));
        gate.close();
    }
    // Such a request keeps its position among the others.
    for i in 0..3 {
        assert_eq!(b.call(&["SET", "i", &i.to_string()]), Value::ok());
        let around = [encode(&[b"INCR", b"i"]), encode(&[b"GET", b"other"])];
        a.send_raw(
            &[around.concat(), encode(&[b"INCR", b"i"]), encode(&[b"STRLEN", b"other"])].concat(),
        );
        assert_eq!(a.read(), Value::Int(i + 1));
        wait_until_parked(&mut b);
        assert_eq!(b.call(&["GET", "i"]), Value::bulk(&(i + 1).to_string()));
        gate.open();
        assert!(a.read() == Value::Bulk(value.clone()));
        assert_eq!(a.read(), Value::Int(i + 2));
        assert_eq!(a.read(), Value::Int(2 << 20));
        gate.close();
    }
    // A queue of `MULTI` makes no difference, whatever its length.
    assert_eq!(a.call(&["MULTI"]), Value::ok());
    for request in [long_request("y"), encode(&[b"DBSIZE"])] {
        a.send_raw(&request);
        assert_eq!(a.read().text(), "QUEUED");
    }
    a.send(&[b"EXEC"]);
    wait_until_parked(&mut b);
    assert_eq!(b.call(&["GET", "long1"]), Value::bulk("x"));
    gate.open();
    let Value::Array(replies) = a.read() else { panic!("the replies of the queue") };
    assert_eq!(replies, [Value::ok(), Value::Int(2004)]);
    assert_eq!(b.call(&["GET", "long1"]), Value::bulk("y"));
}

/// Makes the collections `hash`, `set`, `list` and `sorted`, of so many elements each.
fn fill_collections(b: &mut Client, elements: usize) {
    const BATCH: usize = 250;
    for from in (0..elements).step_by(BATCH) {
        let names: Vec<String> = (from..from + BATCH).map(|i| i.to_string()).collect();
        for (command, key, words_of_element) in
            [("HSET", "hash", 2), ("SADD", "set", 1), ("RPUSH", "list", 1), ("ZADD", "sorted", 2)]
        {
            let elements =
                names.iter().flat_map(|name| std::iter::repeat_n(&**name, words_of_element));
            let words: Vec<&str> = [command, key].into_iter().chain(elements).collect();
            assert!(matches!(b.call(&words), Value::Int(_)));
        }
    }
}

/// Commands that visit few elements of large collections.
const SHORT: &[&str] = &[
    "HLEN hash",
    "HGET hash 7",
    "LRANGE list 0 99",
    "ZRANGE sorted 0 99",
    "SSCAN set 0",
    "HRANDFIELD hash 5",
    "SRANDMEMBER set",
    "ZCOUNT sorted 0 1000000",
    "LREM list 1 7",
    "LPOS list 8",
    "LINSERT list BEFORE 9 0",
    "LPOP list 3",
    "SPOP set 3",
    "ZPOPMAX sorted 3",
    "LINDEX list 5000",
];

/// Commands that visit thousands of elements, in an order in which each of them has its collection.
const LONG: &[&str] = &[
    "HGETALL hash",
    "HKEYS hash",
    "HVALS hash",
    "SMEMBERS set",
    "LRANGE list 0 -1",
    "ZRANGE sorted 0 -1 WITHSCORES",
    "ZRANGESTORE copied sorted 0 -1",
    "SUNION set nothing",
    "SUNIONSTORE both set nothing",
    "ZUNION 2 sorted set",
    "ZINTERSTORE both 2 sorted set",
    "SORT list DESC",
    "COPY hash other",
    "MOVE other 1",
    "DUMP hash",
    "HSCAN hash 0 COUNT 9000",
    "HRANDFIELD hash 9000",
    "SRANDMEMBER set -9000",
    "ZRANDMEMBER sorted 9000",
    "ZINTERCARD 3 sorted half half",
    "GEOSEARCH sorted FROMLONLAT 0 0 BYRADIUS 40000 km",
    "MEMORY USAGE hash",
    "LPOS list none COUNT 0",
    "LREM list 0 none",
    "LINSERT list BEFORE 9990 0",
    "SPOP copy_of_set 9000",
    "ZPOPMIN copied 9000",
    "ZMPOP 1 copied_again MAX COUNT 9000",
    "LPOP list 9000",
];

/// Commands that visit thousands of elements show one instant, and nobody else waits for them.
/// Commands that visit few elements of the same collections stay in their event loop.
#[test]
fn commands_over_many_elements_leave_the_loop() {
    const ELEMENTS: usize = 10_000;
    let (server, gate) = gated();
    let (mut a, mut b) = (server.client(), server.client());
    fill_collections(&mut b, ELEMENTS);
    for line in SHORT {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(!matches!(b.call(&words), Value::Error(_) | Value::Null), "{line}");
    }
    assert_eq!(b.call(&["ZRANGESTORE", "half", "sorted", "0", "4999"]), Value::Int(5_000));
    for copy in ["SUNIONSTORE copy_of_set set", "ZUNIONSTORE copied_again 1 sorted"] {
        let words: Vec<&str> = copy.split(' ').collect();
        a.send(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
        gate.open();
        assert!(matches!(a.read(), Value::Int(9_990..=10_000)));
        gate.close();
    }
    for line in LONG {
        let words: Vec<&str> = line.split(' ').collect();
        a.send(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
        wait_until_parked(&mut b);
        assert!(!a.has_reply(), "{line} has run in the event loop");
        gate.open();
        let reply = a.read();
        assert!(!matches!(reply, Value::Error(_) | Value::Closed | Value::Null), "{line}");
        gate.close();
    }
    a.send(&[b"HGETALL", b"hash"]);
    wait_until_parked(&mut b);
    assert_eq!(b.call(&["HLEN", "hash"]), Value::Int(ELEMENTS as i64));
    assert_eq!(b.call(&["HDEL", "hash", "7"]), Value::Int(1));
    gate.open();
    // What came in between is in the reply.
    assert_eq!(a.read().items().len(), 2 * (ELEMENTS - 1));
}

/// A transaction that has read the key holds its lock until the returned function is called, as a command of
/// a second does.
fn hold(server: &TestServer, key: &'static [u8]) -> impl FnOnce() {
    let (mut session, table) = server.look(|engine| {
        (engine.session().expect("a session"), engine.table("db0").expect("a table"))
    });
    let (tell, told) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let hold = move || {
        let held = session.transact(|tx| {
            let is_there = tx.get(table, key)?.is_some();
            let _ = tell.send(is_there);
            let _ = released.recv();
            Ok(())
        });
        held.expect("nobody is older");
    };
    let holder = stillpoint_io::spawn("test-holder", hold).expect("a thread");
    assert_eq!(told.recv(), Ok(true));
    move || {
        drop(release);
        holder.join().expect("no panic");
    }
}

/// A client whose command waits for a lock is away from its event loop. It is closed with the others
/// when the loop ends, and need not wait for the end of the whole server.
#[test]
fn a_failed_flush_closes_a_client_whose_command_waits() {
    let disk = SimDisk::new(1);
    let mut one = config();
    one.threads = 1;
    let mut engine = EngineConfig::new("simulated");
    engine.environment.disk = Some(Arc::new(disk.clone()) as Arc<dyn Disk>);
    engine.durability = Durability::Strict;
    let server = TestServer::around(one, opened(engine), None);
    let [mut client, mut waiting] = std::array::from_fn(|_| server.client());
    assert_eq!(client.call(&["SET", "held", "1"]), Value::ok());
    let release = hold(&server, b"held");
    waiting.send(&[b"APPEND", b"held", b"!"]);
    wait_until_parked(&mut client);
    let fault = Fault::InputOutput;
    disk.inject(FaultPlan { calls: vec![Call::Sync], nth: 1, fault, lasts: Lasts::Once });
    assert_eq!(client.call(&["SET", "after", "1"]), Value::Closed);
    assert_eq!(waiting.read(), Value::Closed);
    release();
    let ended = server.end();
    assert!(matches!(ended, Err(ServerError::Flush(_))), "{ended:?}");
}

/// A client may leave while its command waits for a lock. The command then runs, and finds nothing to take. Nobody
/// waits on for the client, and nothing is taken for it later.
#[test]
fn a_client_that_has_left_waits_for_no_key() {
    let mut one = config();
    one.threads = 1;
    let server = TestServer::with(one);
    let [mut waiting, mut others] = std::array::from_fn(|_| server.client());
    assert_eq!(others.call(&["RPUSH", "held", "before"]), Value::Int(1));
    let release = hold(&server, b"held");
    waiting.send(&[b"BLMOVE", b"source", b"held", b"LEFT", b"RIGHT", b"0"]);
    wait_until_parked(&mut others);
    drop(waiting);
    wait_until_parked(&mut others);
    release();
    eventually("the client is gone", || {
        field(&others.call(&["INFO", "clients"]).text(), "connected_clients") == 1
    });
    assert_eq!(others.call(&["RPUSH", "source", "x"]), Value::Int(1));
    assert_eq!(others.call(&["LLEN", "source"]), Value::Int(1));
}

/// A pause holds back a command, too, that was waiting for a lock when the pause began.
#[test]
fn a_pause_holds_back_a_command_that_waits_for_a_lock() {
    let mut one = config();
    one.threads = 1;
    let server = TestServer::with(one);
    let [mut waiting, mut others] = std::array::from_fn(|_| server.client());
    assert_eq!(others.call(&["SET", "held", "before"]), Value::ok());
    let release = hold(&server, b"held");
    waiting.send(&[b"APPEND", b"held", b"!"]);
    wait_until_parked(&mut others);
    assert_eq!(others.call(&["CLIENT", "PAUSE", "60000", "WRITE"]), Value::ok());
    // A try that had begun before the pause ends.
    wait_until_parked(&mut others);
    release();
    wait_until_parked(&mut others);
    assert!(!waiting.has_reply());
    assert_eq!(others.call(&["GET", "held"]), Value::bulk("before"));
    assert_eq!(others.call(&["CLIENT", "UNPAUSE"]), Value::ok());
    assert_eq!(waiting.read(), Value::Int(7));
}

/// A client whose command needs a key that others have locked for long leaves its event loop. Others are served, and
/// the command is answered when the lock is free.
#[test]
fn nobody_waits_for_a_command_that_meets_a_long_lock() {
    let mut one = config();
    one.threads = 1;
    let server = TestServer::with(one);
    let [mut writer, mut exec, mut reader, mut others] = std::array::from_fn(|_| server.client());
    assert_eq!(others.call(&["MSET", "held", "before", "free", "0"]), Value::ok());
    assert_eq!(exec.call(&["MULTI"]), Value::ok());
    assert_eq!(exec.call(&["INCR", "free"]).text(), "QUEUED");
    assert_eq!(exec.call(&["STRLEN", "held"]).text(), "QUEUED");
    let release = hold(&server, b"held");
    writer.send_raw(&[encode(&[b"APPEND", b"held", b"!"]), encode(&[b"GET", b"held"])].concat());
    wait_until_parked(&mut others);
    // Who comes behind a waiting writer waits, too, unless it reads one key alone.
    exec.send(&[b"EXEC"]);
    reader.send(&[b"MGET", b"held", b"free"]);
    wait_until_parked(&mut others);
    assert_eq!(others.call(&["GET", "held"]), Value::bulk("before"));
    assert_eq!(others.call(&["SET", "another", "1"]), Value::ok());
    assert!(!writer.has_reply() && !exec.has_reply() && !reader.has_reply());
    release();
    assert_eq!((writer.read(), writer.read()), (Value::Int(7), Value::bulk("before!")));
    let Value::Array(replies) = exec.read() else { panic!("the replies of the queue") };
    assert!(replies[0] == Value::Int(1) && matches!(replies[1], Value::Int(6 | 7)), "{replies:?}");
    assert!(matches!(reader.read(), Value::Array(_)));
}

/// A long request is freed before it has ended, whatever requests came behind it.
#[test]
fn requests_behind_a_long_one_are_answered() {
    let server = TestServer::start();
    let mut c = server.client();
    for (round, len) in [1 << 20, (1 << 20) - 20, 2 << 20, 5_000_000].into_iter().enumerate() {
        let value = vec![b'a' + round as u8; len];
        let small = [encode(&[b"INCR", b"n"]), encode(&[b"STRLEN", b"long"])].concat();
        let many = small.repeat(10_000);
        for behind in [&small[..7], &small, &many] {
            let before = encode(&[b"SET", b"n", b"0"]);
            c.send_raw(&[&before, &encode(&[b"SET", b"long", &value])[..], behind].concat());
            if behind.len() == 7 {
                c.send_raw(&small[7..]);
            }
            assert_eq!((c.read(), c.read()), (Value::ok(), Value::ok()));
            for n in 1..=(behind.len() / small.len()).max(1) as i64 {
                assert_eq!((c.read(), c.read()), (Value::Int(n), Value::Int(len as i64)));
            }
        }
        assert!(c.call(&["GET", "long"]) == Value::Bulk(value));
    }
}

#[test]
fn a_client_may_leave_during_its_long_command() {
    let (server, gate) = gated();
    let (mut a, mut b) = (server.client(), server.client());
    a.send_raw(&long_request("x"));
    wait_until_parked(&mut b);
    drop(a);
    wait_until_parked(&mut b);
    gate.open();
    eventually("the client is gone", || {
        field(&b.call(&["INFO", "clients"]).text(), "connected_clients") == 1
    });
    assert_eq!(b.call(&["EXISTS", "long7"]), Value::Int(1));
    let held = field(&b.call(&["INFO", "memory"]).text(), "mem_clients_normal");
    assert!(held < 1 << 20, "{held} bytes of a client that is gone");
}

#[test]
fn a_client_may_be_killed_during_its_long_command() {
    let (server, gate) = gated();
    let (mut a, mut b) = (server.client(), server.client());
    let id = a.call(&["CLIENT", "ID"]).text();
    a.send_raw(&[long_request("x"), encode(&[b"SET", b"after", b"1"])].concat());
    wait_until_parked(&mut b);
    assert_eq!(b.call(&["CLIENT", "KILL", "ID", &id]), Value::Int(1));
    // It is still connected, and counts as gone.
    assert_eq!(b.call(&["CLIENT", "LIST"]).text().lines().count(), 1);
    assert_eq!(b.call(&["CLIENT", "KILL", "ID", &id]), Value::Int(0));
    gate.open();
    eventually("the client is gone", || {
        field(&b.call(&["INFO", "clients"]).text(), "connected_clients") == 1
    });
    while !a.is_closed() {
        a.skip_buffered();
    }
}

#[test]
fn the_end_of_the_server_waits_for_a_long_command() {
    let (server, gate) = gated();
    let (mut a, mut b) = (server.client(), server.client());
    a.send_raw(&long_request("x"));
    wait_until_parked(&mut b);
    let ended = stillpoint_io::spawn("end", move || server.end()).expect("a thread");
    eventually("the server ends", || b.is_closed());
    gate.open();
    assert_eq!(a.read(), Value::ok());
    assert!(a.is_closed());
    ended.join().expect("no panic").expect("a clean end");
}

#[test]
fn a_watched_key_that_changes_before_a_long_exec_spoils_it() {
    let (server, gate) = gated();
    let (mut a, mut b) = (server.client(), server.client());
    assert_eq!(a.call(&["WATCH", "k"]), Value::ok());
    assert_eq!(a.call(&["MULTI"]), Value::ok());
    a.send_raw(&long_request("x"));
    assert_eq!(a.read().text(), "QUEUED");
    a.send(&[b"EXEC"]);
    wait_until_parked(&mut b);
    assert_eq!(b.call(&["SET", "k", "changed"]), Value::ok());
    gate.open();
    assert_eq!(a.read(), Value::Null);
    assert_eq!(a.call(&["EXISTS", "long7"]), Value::Int(0));
    // The transaction is over.
    assert_eq!(a.call(&["DISCARD"]).text(), "ERR DISCARD without MULTI");
}

/// The reply waits until the deletion is durable, however long that takes.
#[test]
fn what_a_long_command_deletes_is_freed() {
    let disk = SimDisk::new(5);
    let mut engine = EngineConfig::new("simulated");
    engine.environment.disk = Some(Arc::new(disk.clone()) as Arc<dyn Disk>);
    let server = TestServer::around(config(), Engine::open(engine).expect("opens"), None);
    let mut c = server.client();
    assert_eq!(c.call(&["CONFIG", "SET", "maxmemory", "12mb"]), Value::ok());
    c.send_raw(&long_request(&"x".repeat(1_800)));
    assert_eq!(c.read(), Value::ok());
    // Part of a stream of requests that no thread for long commands executes.
    let value = "y".repeat(100_000);
    const LARGE: usize = 90;
    let mut put = 0;
    let mut fits = |c: &mut Client| {
        while put < LARGE && c.call(&["SET", &format!("large{put}"), &value]) == Value::ok() {
            put += 1;
        }
        put == LARGE
    };
    assert!(!fits(&mut c), "there is memory for all");
    disk.stall(&[Call::Write, Call::Sync]);
    let keys: Vec<String> = (0..2000).map(|i| format!("long{i}")).collect();
    let del: Vec<&str> = ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    assert_eq!(c.call(&del), Value::Int(2000));
    RealClock.sleep(Duration::from_millis(800));
    disk.resume();
    eventually("the memory is free", || fits(&mut c));
}

#[test]
fn what_waits_for_its_turn_counts_and_is_told() {
    let (server, gate) = gated();
    let (mut a, mut b) = (server.client(), server.client());
    assert_eq!(b.call(&["CONFIG", "SET", "slowlog-log-slower-than", "5000"]), Value::ok());
    a.send(&[b"SET", b"value", &vec![b'v'; 8 << 20]]);
    eventually("the request is there", || {
        field(&b.call(&["INFO", "memory"]).text(), "mem_clients_normal") > 8 << 20
    });
    wait_until_parked(&mut b);
    let held = field(&b.call(&["INFO", "memory"]).text(), "mem_clients_normal");
    assert!(held > 8 << 20, "{held} bytes, and a request of 8 MiB waits");
    gate.open();
    assert_eq!(a.read(), Value::ok());
    let stats = b.call(&["INFO", "commandstats"]).text();
    assert!(stats.contains("cmdstat_set:calls=1,"), "{stats}");
    assert_eq!(b.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]), Value::ok());
    a.send_raw(&long_request("x"));
    assert_eq!(a.read(), Value::ok());
    let slow = format!("{:?}", b.call(&["SLOWLOG", "GET", "10"]));
    assert!(slow.contains(&format!("{:?}", Value::bulk("MSET"))), "{slow}");
}

#[test]
fn in_strict_durability_replies_keep_their_order() {
    let disk = SimDisk::new(3);
    let mut engine = EngineConfig::new("simulated");
    engine.environment.disk = Some(Arc::new(disk.clone()) as Arc<dyn Disk>);
    engine.durability = Durability::Strict;
    let mut config = config();
    config.threads = 1;
    let server = TestServer::around(config, Engine::open(engine).expect("opens"), None);
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    for round in 0..20 {
        for (i, client) in clients.iter_mut().enumerate() {
            let n = format!("n{i}");
            let value = format!("{i} {round}");
            let incr = || encode(&[b"INCR", n.as_bytes()]);
            client.send_raw(&[incr(), long_request(&value), incr(), long_request("x")].concat());
            client.send_raw(&[incr(), encode(&[b"EXISTS", b"long7"])].concat());
        }
        for client in &mut clients {
            for part in 0..3 {
                assert_eq!(client.read(), Value::Int(3 * round + part + 1));
                if part < 2 {
                    assert_eq!(client.read(), Value::ok());
                }
            }
            assert_eq!(client.read(), Value::Int(1));
        }
    }
}

/// Puts `words` behind a command, a thousand at a time.
fn in_parts(client: &mut Client, command: &[&str], words: &[String], step: usize) {
    for part in words.chunks(1000 * step) {
        let words = command.iter().copied().chain(part.iter().map(String::as_str));
        assert_eq!(client.call(&words.collect::<Vec<_>>()), Value::Int((part.len() / step) as i64));
    }
}

/// A start makes the calls of a log again, and each writes what it has written.
#[test]
fn calls_that_make_large_collections_are_made_again() {
    const MEMBERS: i64 = 9_000;
    let engine = || {
        let mut engine = EngineConfig::new("unused");
        engine.journal = "command".to_owned();
        engine.durability = Durability::Strict;
        engine.checkpoint_every = None;
        engine
    };
    let server = TestServer::over(config(), engine());
    let mut client = server.client();
    let names: Vec<String> = (0..MEMBERS).map(|i| format!("{i}")).collect();
    in_parts(&mut client, &["SADD", "one"], &names, 1);
    let all = Value::Int(MEMBERS);
    assert_eq!(client.call(&["COPY", "one", "two"]), Value::Int(1));
    assert_eq!(client.call(&["SUNIONSTORE", "three", "one", "two"]), all);
    let server = server.restart(config(), engine());
    let mut client = server.client();
    assert_eq!(
        (client.call(&["SCARD", "two"]), client.call(&["SCARD", "three"])),
        (all.clone(), all)
    );
}

/// Commands that store a large collection build it beside its key. What they store is of one instant, also
/// while others change what they read.
#[test]
fn large_stored_collections_are_of_one_instant() {
    const MEMBERS: i64 = 9_000;
    let server = TestServer::with(config());
    let mut client = server.client();
    let names: Vec<String> = (0..MEMBERS).map(|i| format!("{i}")).collect();
    in_parts(&mut client, &["SADD", "one"], &names, 1);
    let is_over = AtomicBool::new(false);
    let union = |client: &mut Client| {
        // A member is in one of the sets at every instant.
        let all = Value::Int(MEMBERS);
        assert_eq!(client.call(&["SUNIONSTORE", "u", "one", "two"]), all);
        assert_eq!(client.call(&["ZUNIONSTORE", "z", "2", "two", "one"]), all);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = server.client();
            for i in (0..MEMBERS).map(|i| i.to_string()) {
                assert_eq!(other.call(&["SMOVE", "one", "two", &i]), Value::Int(1));
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        (0..6).for_each(|_| union(&mut client));
        is_over.store(true, Ordering::Relaxed);
    });
    union(&mut client);
    let all = Value::Int(MEMBERS);
    assert_eq!(client.call(&["ZCARD", "z"]), all);
    assert_eq!(client.call(&["SDIFF", "u", "one", "two"]), Value::Array(Vec::new()));
    // The other forms, over keys that have a value and perhaps an expiry.
    assert_eq!(client.call(&["EXPIRE", "z", "1000"]), Value::Int(1));
    assert_eq!(client.call(&["ZRANGESTORE", "u", "z", "0", "-1"]), all);
    assert_eq!(client.call(&["TTL", "u"]), Value::Int(-1));
    assert_eq!(client.call(&["ZSCORE", "u", "8999"]), Value::bulk("1"));
    assert_eq!(client.call(&["SORT", "z", "STORE", "l"]), all);
    assert_eq!(client.call(&["LINDEX", "l", "4321"]), Value::bulk("4321"));
    assert_eq!(client.call(&["COPY", "z", "l"]), Value::Int(0));
    assert_eq!(client.call(&["COPY", "z", "l", "DB", "1"]), Value::Int(1));
    let commits = || server.look(|engine| engine.stats().commits);
    let before = commits();
    assert_eq!(client.call(&["COPY", "z", "l", "REPLACE"]), Value::Int(1));
    assert!(commits() > before + 5, "several transactions write the nodes");
    let payload = client.call(&["DUMP", "l"]);
    let Value::Bulk(payload) = &payload else { panic!("a payload") };
    client.send_raw(&encode(&[b"RESTORE", b"r", b"100000", payload]));
    assert_eq!(client.read(), Value::ok());
    client.send_raw(&encode(&[b"RESTORE", b"r", b"0", payload]));
    assert_eq!(client.read().text(), "BUSYKEY Target key name already exists.");
    for key in ["l", "r"] {
        assert_eq!(client.call(&["ZINTERCARD", "2", key, "z"]), all, "{key}");
        assert!(matches!(client.call(&["TTL", key]), Value::Int(1..=1000)), "{key}");
    }
    // The copy of a hash has the expiries of its fields.
    let words: Vec<String> = names.iter().flat_map(|name| [name.clone(), name.clone()]).collect();
    in_parts(&mut client, &["HSET", "h"], &words, 2);
    assert_eq!(client.call(&["HEXPIRE", "h", "1000", "FIELDS", "1", "77"]).items().len(), 1);
    assert_eq!(client.call(&["COPY", "h", "h2"]), Value::Int(1));
    let lives = client.call(&["HTTL", "h2", "FIELDS", "2", "77", "78"]);
    assert!(matches!(lives.items(), [Value::Int(1..=1000), Value::Int(-1)]), "{lives:?}");
    assert_eq!(client.call(&["MOVE", "r", "1"]), Value::Int(1));
    assert_eq!(client.call(&["SELECT", "1"]), Value::ok());
    assert_eq!(client.call(&["ZRANK", "r", "8999"]), Value::Int(8_888));
    eventually("all drafts are gone", || server.records("graves") == 0);
    assert!(server.look(verify) > 5);
}

/// Who only reads a key needs no lock, also beside a writer of the key in the same round. The writer alone leaves the
/// event loop.
#[test]
fn readers_do_not_wait_with_a_writer_of_their_round() {
    let (server, gate) = gated();
    let mut control = server.client();
    let mut clients: Vec<Client> = (0..5).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.call(&["PING"]).text(), "PONG"));
    assert_eq!(control.call(&["HSET", "held", "field", "before"]), Value::Int(1));
    let release = hold(&server, b"held");
    let requests: Vec<_> =
        ["HGET held field", "HGET held field", "HSET held other 1", "HGET held field", "HLEN held"]
            .map(|request| vec![words(request)])
            .into();
    send_in_one_round(&mut control, &mut clients, &requests);
    for i in [0, 1, 3] {
        assert_eq!(clients[i].read(), Value::bulk("before"));
    }
    assert_eq!(clients[4].read(), Value::Int(1));
    assert!(!clients[2].has_reply());
    gate.open();
    release();
    assert_eq!(clients[2].read(), Value::Int(1));
}

/// Of commands that have waited for a lock for long, one waits on a thread. The other thread takes commands.
#[test]
fn waits_for_locks_take_one_thread_at_most() {
    let mut server = config();
    server.threads = 1;
    let mut engine = EngineConfig::new("unused");
    engine.lock_timeout = Some(Duration::from_millis(1));
    let server = TestServer::over(server, engine);
    let mut clients: [Client; 4] = std::array::from_fn(|_| server.client());
    let (mut session, table) = server.look(|engine| {
        (engine.session().expect("a session"), engine.table("db0").expect("a table"))
    });
    let mut holder = session.begin().expect("begins");
    for key in ["one", "two"] {
        holder.tx().expect("open").put(table, key.as_bytes(), b"held").expect("free");
    }
    clients[0].send(&[b"SET", b"one", b"1"]);
    clients[1].send(&[b"SET", b"two", b"2"]);
    // Both waits are over soon.
    for _ in 0..20 {
        assert_eq!(clients[2].call(&["PING"]).text(), "PONG");
        RealClock.sleep(Duration::from_millis(5));
    }
    clients[2].send_raw(&long_request("x"));
    assert_eq!(clients[2].read(), Value::ok());
    // It waits for all commands that run. The event loop does not.
    clients[3].send(&[b"SWAPDB", b"1", b"2"]);
    wait_until_parked(&mut clients[2]);
    drop(holder);
    for client in [0, 1, 3] {
        assert_eq!(clients[client].read(), Value::ok());
    }
}
