//! Tests that acknowledged writes survive a crash, and that a failed flush is never acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use stillpoint::{Config as EngineConfig, Durability, Engine};
use stillpoint_io::{Call, Clock, Disk, Fault, FaultPlan, Lasts, RealClock, SimDisk};
use stillpoint_server::{Server, ServerError};

use crate::common::{Client, TestServer, Value, config, encode, eventually, field, opened};

fn on(disk: &SimDisk, durability: Durability) -> EngineConfig {
    let mut config = EngineConfig::new("simulated");
    config.environment.disk = Some(Arc::new(disk.clone()) as Arc<dyn Disk>);
    config.durability = durability;
    config.log_limit_bytes = 64 << 20;
    config
}

fn server_on(disk: &SimDisk, durability: Durability) -> TestServer {
    server_with(disk, durability, "redo")
}

fn server_with(disk: &SimDisk, durability: Durability, journal: &str) -> TestServer {
    let engine = EngineConfig { journal: journal.to_owned(), ..on(disk, durability) };
    TestServer::around(config(), opened(engine), None)
}

/// Increments a key of its own, and moves money between two shared keys, until the connection ends.
/// Returns the last acknowledged number.
fn count_up(port: u16, number: u64, total: &AtomicU64) -> u64 {
    let mut client = Client::connect(port);
    let (own, mut acknowledged) = (format!("own{number}"), 0);
    loop {
        let next = acknowledged + 1;
        client.send(&[b"MULTI"]);
        client.send(&[b"SET", own.as_bytes(), next.to_string().as_bytes()]);
        client.send(&[b"DECR", b"left"]);
        client.send(&[b"INCR", b"right"]);
        client.send(&[b"EXEC"]);
        for _ in 0..4 {
            if client.read() == Value::Closed {
                return acknowledged;
            }
        }
        match client.read() {
            Value::Array(replies) if replies.len() == 3 => acknowledged = next,
            _ => return acknowledged,
        }
        total.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn strict_acknowledgements_survive_a_power_loss_under_load() {
    for seed in 1..=8 {
        let disk = SimDisk::new(seed);
        // A start may also be one with the other journal.
        let journals =
            (["redo", "command"][seed as usize % 2], ["redo", "command"][seed as usize / 2 % 2]);
        let server = server_with(&disk, Durability::Strict, journals.0);
        let port = server.port;
        let total = Arc::new(AtomicU64::new(0));
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let total = Arc::clone(&total);
                stillpoint_io::spawn("client", move || count_up(port, number, &total))
                    .expect("thread")
            })
            .collect();
        let mut admin = server.client();
        eventually("commits are acknowledged", || total.load(Ordering::Relaxed) > 100 * seed);
        if seed % 2 == 0 {
            admin.call(&["BGSAVE"]);
            RealClock.sleep(Duration::from_millis(seed * 3));
        }
        let after = disk.crash(seed);
        let acknowledged: Vec<u64> =
            clients.into_iter().map(|client| client.join().expect("client")).collect();
        let ended = server.end();
        assert!(matches!(ended, Err(ServerError::Flush(_))), "seed {seed}: {ended:?}");
        let server = server_with(&after, Durability::Strict, journals.1);
        let mut client = server.client();
        for (number, &acknowledged) in acknowledged.iter().enumerate() {
            let found = client.call(&["GET", &format!("own{number}")]);
            let found: u64 = found.text().parse().unwrap_or(0);
            assert!(
                (acknowledged..=acknowledged + 1).contains(&found),
                "seed {seed}: client {number} had {acknowledged} acknowledged, found {found}"
            );
        }
        let sum: i64 = ["left", "right"]
            .iter()
            .map(|key| client.call(&["GET", key]).text().parse::<i64>().expect("number"))
            .sum();
        assert_eq!(sum, 0, "seed {seed}: a transaction came back in part");
    }
}

/// Writes around FLUSHDB, FLUSHALL and DBSIZE until the power is lost. The recovered state is that
/// of the last transaction, or of the one before.
#[test]
fn a_transaction_that_empties_databases_survives_a_power_loss_whole() {
    for seed in 1..=8 {
        let disk = SimDisk::new(seed);
        // A start may also be one with the other journal.
        let journals =
            (["redo", "command"][seed as usize % 2], ["redo", "command"][seed as usize / 2 % 2]);
        let server = server_with(&disk, Durability::Strict, journals.0);
        let port = server.port;
        let total = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&total);
        let client = stillpoint_io::spawn("client", move || {
            let mut client = Client::connect(port);
            for next in 1u64.. {
                let text = next.to_string();
                let odd = format!("odd{}", next % 2);
                let script: [&[&str]; 9] = [
                    &["MULTI"],
                    &["SET", "before", &text],
                    &[if next % 3 == 0 { "FLUSHALL" } else { "FLUSHDB" }],
                    &["SET", "one", &text],
                    &["DBSIZE"],
                    &["SET", &odd, &text],
                    &["KEYS", "*"],
                    &["SET", "two", &text],
                    &["EXEC"],
                ];
                for words in &script[..8] {
                    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
                    client.send(&words);
                }
                client.send(&[b"EXEC"]);
                for _ in 0..8 {
                    if client.read() == Value::Closed {
                        return next - 1;
                    }
                }
                match client.read() {
                    Value::Array(replies) if replies.len() == 7 => {
                        assert_eq!(replies[3], Value::Int(1), "the others are gone");
                    }
                    _ => return next - 1,
                }
                counted.store(next, Ordering::Relaxed);
            }
            unreachable!("the server ends first")
        })
        .expect("thread");
        eventually("commits are acknowledged", || total.load(Ordering::Relaxed) > 5 * seed);
        if seed % 2 == 0 {
            server.client().call(&["BGSAVE"]);
            RealClock.sleep(Duration::from_millis(seed));
        }
        let after = disk.crash(seed);
        let acknowledged = client.join().expect("client");
        let ended = server.end();
        assert!(ended.is_err(), "seed {seed}: {ended:?}");
        let server = server_with(&after, Durability::Strict, journals.1);
        let mut client = server.client();
        let mut found = |key: &str| client.call(&["GET", key]);
        let last: u64 = found("one").text().parse().expect("a number");
        assert!((acknowledged..=acknowledged + 1).contains(&last), "seed {seed}: {last}");
        let text = Value::bulk(&last.to_string());
        let odd = format!("odd{}", last % 2);
        assert_eq!((found("two"), found(&odd)), (text.clone(), text), "seed {seed}");
        assert_eq!(found("before"), Value::Null, "seed {seed}");
        assert_eq!(client.call(&["DBSIZE"]), Value::Int(3), "seed {seed}");
    }
}

#[test]
fn a_failed_flush_ends_the_server_and_acknowledges_nothing() {
    let disk = SimDisk::new(1);
    let server = server_on(&disk, Durability::Strict);
    let mut client = server.client();
    assert_eq!(client.call(&["SET", "before", "1"]), Value::ok());
    let fault = Fault::InputOutput;
    disk.inject(FaultPlan { calls: vec![Call::Sync], nth: 1, fault, lasts: Lasts::Once });
    assert_eq!(client.call(&["SET", "after", "1"]), Value::Closed);
    let ended = server.end();
    assert!(matches!(ended, Err(ServerError::Flush(_))), "{ended:?}");
    let server = server_on(&disk.crash(2), Durability::Strict);
    assert_eq!(server.client().call(&["GET", "before"]), Value::bulk("1"));
}

#[test]
fn a_save_that_fails_is_told_with_the_next_attempt() {
    let disk = SimDisk::new(1);
    let server = server_on(&disk, Durability::Strict);
    let mut client = server.client();
    assert_eq!(client.call(&["SET", "key", "1"]), Value::ok());
    let of = |info: &str, name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("no {name} in {info}")).to_owned()
    };
    let fault = Fault::InputOutput;
    for failures in 1..=8 {
        disk.inject(FaultPlan { calls: vec![Call::CreateDir], nth: 1, fault, lasts: Lasts::Once });
        assert!(matches!(client.call(&["SAVE"]), Value::Error(_)));
        let info = client.call(&["INFO", "persistence"]).text();
        assert_eq!(of(&info, "checkpoint_failures_in_row"), failures.to_string());
        let next: i64 = of(&info, "checkpoint_next_attempt_sec").parse().expect("a number");
        let pause = 1 << (failures - 1);
        assert!(next <= pause, "{next} s after {failures} failures");
        // The longest pauses would exceed the test's time.
        assert!(failures < 8 || next > 0, "{next} s after {failures} failures");
    }
    assert_eq!(client.call(&["SAVE"]), Value::ok());
    let info = client.call(&["INFO", "persistence"]).text();
    assert_eq!(of(&info, "checkpoint_failures_in_row"), "0");
    assert_eq!(of(&info, "checkpoint_next_attempt_sec"), "-1");
}

/// The event loops check the store's health ten times a second. A failure between two checks must
/// end the server with an error, too.
#[test]
fn a_failure_just_before_the_end_is_told() {
    for seed in 1..=5 {
        let disk = SimDisk::new(seed);
        let engine = Engine::open(on(&disk, Durability::Strict)).expect("the engine opens");
        let engine = Arc::new(engine);
        let stopping = Arc::new(AtomicBool::new(false));
        let server = Server::start(config(), Arc::clone(&engine), Arc::clone(&stopping));
        let server = server.expect("server starts");
        let mut client = Client::connect(server.port());
        assert_eq!(client.call(&["PING"]), Value::Simple("PONG".to_owned()));
        let (_, table) = engine.tables()[0];
        disk.crash(seed);
        let mut session = engine.session().expect("a session");
        let put = session.transact(|tx| tx.put(table, b"k", b"v"));
        put.expect_err("the machine has lost power");
        stopping.store(true, Ordering::Relaxed);
        // This request wakes its loop before the next check is due.
        client.send(&[b"PING"]);
        let ended = server.join();
        assert!(matches!(ended, Err(ServerError::Flush(_))), "seed {seed}: {ended:?}");
    }
}

#[test]
fn a_full_disk_refuses_writes_while_reads_go_on() {
    let disk = SimDisk::new(1);
    let mut engine = on(&disk, Durability::Strict);
    engine.logs = 1;
    let engine = Engine::open(engine).expect("the engine opens");
    let server = TestServer::around(config(), engine, None);
    let mut client = server.client();
    client.call(&["SET", "k", "v"]);
    disk.set_capacity(Some(disk.used_bytes()));
    let value = "x".repeat(1 << 20);
    let mut refused = None;
    for i in 0..400 {
        let reply = client.call(&["SET", &format!("fill{i}"), &value]);
        if reply != Value::ok() {
            refused = Some(reply.text());
            break;
        }
    }
    let refused = refused.expect("the disk is full");
    assert!(refused.starts_with("MISCONF "), "{refused}");
    assert_eq!(client.call(&["GET", "k"]), Value::bulk("v"));
    assert_eq!(client.call(&["MGET", "k", "k"]).items().len(), 2);
    disk.set_capacity(None);
    eventually("writes resume", || client.call(&["SET", "k", "w"]) == Value::ok());
}

#[test]
fn a_restart_brings_back_values_expiries_and_databases() {
    ["redo", "command"].into_iter().for_each(restarts);
}

fn restarts(journal: &str) {
    let mut engine = EngineConfig::new("unused");
    engine.journal = journal.to_owned();
    let server = TestServer::over(config(), engine.clone());
    let mut client = server.client();
    client.call(&["SET", "plain", "v"]);
    client.call(&["SET", "dying", "v", "EX", "1000"]);
    client.call(&["SET", "gone", "v", "PX", "20"]);
    client.call(&["SELECT", "7"]);
    client.call(&["SET", "seven", "v"]);
    assert_eq!(client.call(&["SAVE"]), Value::ok());
    let server = server.restart(config(), engine.clone());
    let mut client = server.client();
    assert_eq!(client.call(&["GET", "plain"]), Value::bulk("v"));
    assert!((900..=1000).contains(&client.call(&["TTL", "dying"]).int()));
    RealClock.sleep(Duration::from_millis(20));
    assert_eq!(client.call(&["GET", "gone"]), Value::Null);
    client.call(&["SELECT", "7"]);
    assert_eq!(client.call(&["GET", "seven"]), Value::bulk("v"));
    client.call(&["FLUSHALL"]);
    let server = server.restart(config(), engine.clone());
    assert_eq!(server.client().call(&["DBSIZE"]), Value::Int(0));
    assert!(server.client().call(&["LASTSAVE"]).int() > 1_600_000_000);
}

/// Databases that were exchanged, with small values, trees, expiries and clients that wait, also after
/// a restart.
#[test]
fn databases_are_exchanged_and_stay_so() {
    ["redo", "command"].into_iter().for_each(exchange);
}

fn exchange(journal: &str) {
    let mut engine = EngineConfig::new("unused");
    engine.journal = journal.to_owned();
    engine.durability = Durability::Strict;
    let server = TestServer::over(config(), engine.clone());
    let mut c = server.client();
    let names: Vec<String> = (0..400).map(|i| format!("member {i}")).collect();
    let mut words = vec!["SADD", "set"];
    words.extend(names.iter().map(String::as_str));
    assert_eq!(c.call(&words), Value::Int(400));
    c.call(&["SET", "k", "zero", "EX", "1000"]);
    c.call(&["SELECT", "3"]);
    c.call(&["SET", "k", "three"]);
    let mut waits = server.client();
    waits.call(&["SELECT", "0"]);
    waits.send(&[b"BLPOP", b"list", b"20"]);
    let waiting = |c: &mut Client| field(&c.call(&["INFO", "clients"]).text(), "blocked_clients");
    eventually("a client waits", || waiting(&mut c) == 1);
    for (words, error) in [
        (["SWAPDB", "x", "1"], "ERR invalid first DB index"),
        (["SWAPDB", "0", "x"], "ERR invalid second DB index"),
        (["SWAPDB", "0", "16"], "ERR DB index is out of range"),
    ] {
        assert_eq!(c.call(&words), Value::Error(error.to_owned()));
    }
    // After the exchange the watched name means the key of the other database, so `EXEC` fails.
    let mut watches = server.client();
    watches.call(&["WATCH", "k"]);
    watches.call(&["MULTI"]);
    assert_eq!(c.call(&["SWAPDB", "0", "3"]), Value::ok());
    assert_eq!(watches.call(&["EXEC"]), Value::Null);
    let look = |c: &mut Client| {
        let three = [c.call(&["GET", "k"]), c.call(&["SCARD", "set"])];
        c.call(&["SELECT", "0"]);
        let zero = [c.call(&["GET", "k"]), c.call(&["SCARD", "set"])];
        c.call(&["SELECT", "3"]);
        let expected =
            [[Value::bulk("zero"), Value::Int(400)], [Value::bulk("three"), Value::Int(0)]];
        assert_eq!([three, zero], expected);
    };
    look(&mut c);
    let keyspace = c.call(&["INFO", "keyspace"]).text();
    assert!(keyspace.contains("db3:keys=2,expires=1"), "{keyspace}");
    // The client waits for the list of database 0, which has another table now.
    c.call(&["RPUSH", "list", "of three"]);
    c.call(&["SELECT", "0"]);
    c.call(&["RPUSH", "list", "of zero"]);
    let taken = Value::Array(vec![Value::bulk("list"), Value::bulk("of zero")]);
    assert_eq!(waits.read(), taken);
    c.call(&["SELECT", "3"]);
    assert_eq!(c.call(&["DEL", "list"]), Value::Int(1));
    let server = server.restart(config(), engine);
    let mut c = server.client();
    c.call(&["SELECT", "3"]);
    look(&mut c);
    assert_eq!(c.call(&["SWAPDB", "3", "0"]), Value::ok());
    assert_eq!(c.call(&["GET", "k"]), Value::bulk("three"));
}

/// A client waits for lists, and skips a value of another kind that was made meanwhile. A command that
/// has not waited refuses such a value, so a start must not make the command again as one of these.
#[test]
fn a_command_that_has_waited_comes_back() {
    let mut engine = EngineConfig::new("unused");
    engine.journal = "command".to_owned();
    engine.durability = Durability::Strict;
    let server = TestServer::over(config(), engine.clone());
    let (mut c, mut waits) = (server.client(), server.client());
    waits.send(&[b"BLPOP", b"a", b"b", b"20"]);
    let waiting = |c: &mut Client| field(&c.call(&["INFO", "clients"]).text(), "blocked_clients");
    eventually("a client waits", || waiting(&mut c) == 1);
    assert_eq!(c.call(&["SET", "a", "text"]), Value::ok());
    assert_eq!(c.call(&["RPUSH", "b", "1", "2"]), Value::Int(2));
    assert_eq!(waits.read(), Value::Array(vec![Value::bulk("b"), Value::bulk("1")]));
    let server = server.restart(config(), engine);
    let mut c = server.client();
    assert_eq!(c.call(&["LRANGE", "b", "0", "-1"]), Value::Array(vec![Value::bulk("2")]));
    assert_eq!(c.call(&["GET", "a"]), Value::bulk("text"));
}

/// Calls of a group that run after a large reply belong to the record of the group.
#[test]
fn a_group_in_the_log_runs_whole() {
    let mut engine = EngineConfig::new("unused");
    engine.journal = "command".to_owned();
    engine.durability = Durability::Strict;
    let server = TestServer::over(config(), engine.clone());
    let mut c = server.client();
    let long = "x".repeat(15 << 10);
    assert_eq!(c.call(&["SET", "k", &long]), Value::ok());
    let mut requests = Vec::new();
    for _ in 0..40 {
        requests.extend(encode(&[b"GET", b"k"]));
        requests.extend(encode(&[b"APPEND", b"k", b"."]));
    }
    c.send_whole(&requests);
    let replies: Vec<Value> = (0..80).map(|_| c.read()).collect();
    assert_eq!(replies[79], Value::Int((15 << 10) + 40));
    let server = server.restart(config(), engine);
    assert_eq!(server.client().call(&["STRLEN", "k"]), Value::Int((15 << 10) + 40));
}

/// The field of `INFO persistence`.
fn shown_as(client: &mut Client, name: &str) -> String {
    let info = client.call(&["INFO", "persistence"]).text();
    let start = format!("{name}:");
    let line = info.lines().find(|line| line.starts_with(&start)).expect("a field");
    line[start.len()..].trim().to_owned()
}

#[test]
fn clients_see_the_chain_and_control_it() {
    let disk = SimDisk::new(1);
    let mut settings = on(&disk, Durability::Strict);
    settings.checkpoint = "calc:partial".to_owned();
    settings.merge_after = None;
    let engine = Engine::open(settings).expect("the engine opens");
    let server = TestServer::around(config(), engine, None);
    let mut c = server.client();
    for key in 0..100 {
        c.call(&["SET", &format!("k{key}"), "v"]);
    }
    let save = |c: &mut Client, words: &[&str]| {
        assert_eq!(c.call(words), Value::ok());
        let shown = ["checkpoint_last_kind", "checkpoint_last_records", "checkpoint_chain_links"];
        shown.map(|name| shown_as(c, name)).join(" ")
    };
    assert_eq!(save(&mut c, &["SAVE"]), "full 100 1");
    for links in 2..=4 {
        c.call(&["SET", "k1", "w"]);
        c.call(&["DEL", &format!("k{links}")]);
        assert_eq!(save(&mut c, &["SAVE"]), format!("partial 2 {links}"));
        assert_eq!(shown_as(&mut c, "checkpoint_last_changed_records"), "2");
    }
    assert_ne!(shown_as(&mut c, "checkpoint_last_consistency_ms"), "-1");
    assert_eq!(shown_as(&mut c, "checkpoint_last_stopped_ms"), "0.000", "nobody is stopped");
    assert_eq!(shown_as(&mut c, "checkpoint_last_waits"), "0");
    assert_eq!(shown_as(&mut c, "checkpoint_last_wait_ms"), "0.000");
    assert_eq!(shown_as(&mut c, "checkpoint_phase"), "rest");
    assert_eq!(c.call(&["CONFIG", "SET", "merge-after", "2"]), Value::ok());
    eventually("the changes are merged", || shown_as(&mut c, "checkpoint_chain_links") == "2");
    assert_eq!(shown_as(&mut c, "merges"), "1");
    c.call(&["SET", "k1", "x"]);
    assert_eq!(save(&mut c, &["save", "full"]), "full 97 1");
    assert!(c.call(&["SAVE", "PARTIAL"]).text().starts_with("ERR syntax"));
    assert_eq!(c.call(&["BGSAVE", "HOLD", "backup"]), Value::ok());
    assert!(c.call(&["BGSAVE", "HOLD", "backup"]).text().contains("backup"));
    assert_eq!(shown_as(&mut c, "file_holders"), "backup=0");
    assert_eq!(c.call(&["BGSAVE", "RELEASE", "backup"]), Value::ok());
    assert!(c.call(&["BGSAVE", "RELEASE", "backup"]).text().starts_with("ERR nobody"));
    assert!(c.call(&["BGSAVE", "KEEP", "backup"]).text().starts_with("ERR syntax"));
    assert_eq!(shown_as(&mut c, "file_holders"), "");
    c.call(&["SET", "k1", "y"]);
    assert_eq!(c.call(&["BGSAVE", "FULL"]).text(), "Background saving started");
    eventually("it is published", || shown_as(&mut c, "rdb_saves") == "6");
    assert_eq!(shown_as(&mut c, "checkpoint_last_kind"), "full");
}

/// What a scheme needs of the cells is chosen at the start. INFO tells it, with the time for which
/// commits were stopped.
#[test]
fn a_scheme_is_chosen_at_the_start() {
    let disk = SimDisk::new(1);
    let mut settings = on(&disk, Durability::Strict);
    settings.checkpoint = "pzigzag".to_owned();
    let engine = Engine::open(settings).expect("the engine opens");
    let server = TestServer::around(config(), engine, None);
    let mut c = server.client();
    assert_eq!(c.call(&["SET", "k", "v"]), Value::ok());
    assert_eq!(c.call(&["SAVE"]), Value::ok());
    assert_eq!(shown_as(&mut c, "checkpoint_scheme"), "zigzag:partial");
    assert_eq!(shown_as(&mut c, "checkpoint_copies"), "2");
    assert_ne!(shown_as(&mut c, "checkpoint_last_stopped_ms"), "-1");
    let shown = c.call(&["CONFIG", "GET", "checkpoint"]);
    assert_eq!(shown.items()[1], Value::bulk("zigzag:partial"));
    for name in ["pzigzag", "zigzag:partial"] {
        assert_eq!(c.call(&["CONFIG", "SET", "checkpoint", name]), Value::ok());
    }
    for (name, says) in [("calc", "laid out for 'zigzag:partial'"), ("sparrow", "sparrow")] {
        let refused = c.call(&["CONFIG", "SET", "checkpoint", name]).text().to_owned();
        assert!(refused.contains(says), "{refused}");
    }
}

/// With fork INFO also tells the memory that the child holds.
#[test]
fn fork_shows_the_memory_of_its_child() {
    let disk = SimDisk::new(1);
    let mut settings = on(&disk, Durability::Strict);
    settings.checkpoint = "fork".to_owned();
    let engine = Engine::open(settings).expect("the engine opens");
    let server = TestServer::around(config(), engine, None);
    let mut c = server.client();
    assert_eq!(c.call(&["SET", "k", "v"]), Value::ok());
    assert_eq!(c.call(&["SAVE"]), Value::ok());
    assert_eq!(shown_as(&mut c, "checkpoint_scheme"), "fork");
    assert_eq!(shown_as(&mut c, "checkpoint_child_bytes"), "0", "the child is gone");
    let held: u64 = shown_as(&mut c, "checkpoint_last_child_bytes").parse().expect("a number");
    assert!(held > 0, "the child has a stack of its own at least");
    assert_ne!(shown_as(&mut c, "checkpoint_last_stopped_ms"), "-1");
}

#[test]
fn periods_paces_and_limits_of_checkpoints_are_parameters() {
    let server = TestServer::start();
    let mut c = server.client();
    for (name, value, shown) in [
        ("save", "3600 1 300 100", "300 1"),
        ("save", "", ""),
        ("checkpoint-every", "30", "30"),
        ("checkpoint-pace", "100mb", "104857600"),
        ("checkpoint-pace", "0", "0"),
        ("log-limit", "1gb", "1073741824"),
        ("log-limit", "4GiB", "4294967296"),
        ("log-limit", "0", "0"),
        ("merge-after", "0", "0"),
        ("merge-after", "4", "4"),
    ] {
        assert_eq!(c.call(&["CONFIG", "SET", name, value]), Value::ok(), "{name} {value}");
        let found = c.call(&["CONFIG", "GET", name]);
        assert_eq!(found.items()[1], Value::bulk(shown), "{name} {value}");
    }
    assert_eq!(c.call(&["CONFIG", "GET", "save"]).items()[1], Value::bulk("30 1"));
    for (name, value) in [("save", "60"), ("checkpoint-every", "-1"), ("checkpoint-pace", "x")] {
        let refused = c.call(&["CONFIG", "SET", name, value]).text();
        assert!(refused.contains(name), "{refused}");
    }
}

/// The journals that suffice for the checkpoints of a scheme, the least first.
const JOURNALS: [&str; 2] = ["redo", "undo-redo"];

/// What a life of [`every_scheme_serves_and_goes_on_from_any_other`] has left.
fn assert_left(c: &mut Client, name: &str, last: &str, (large, larger): (&str, &str), due: &str) {
    let mut ask = |words: &[&str]| c.call(words);
    for (key, value) in [("small", last), ("after", last), ("renamed", large), ("grown", larger)] {
        assert_eq!(ask(&["GET", key]), Value::bulk(value), "{name}: {key}");
    }
    for key in ["renamed", "due"] {
        assert_eq!(ask(&["PEXPIRETIME", key]).int().to_string(), due, "{name}: {key}");
    }
    assert_eq!(ask(&["EXISTS", "deleted", "source"]), Value::Int(0), "{name}");
    assert_eq!(ask(&["DBSIZE"]), Value::Int(5), "{name}");
}

/// INFO tells the memory of every scheme: further copies, marks of changes, and a pool.
fn assert_memory_is_told(c: &mut Client, name: &str) {
    let mut number = |field: &str| shown_as(c, field).parse::<u64>().expect("a number");
    let (copies, copies_bytes) = (number("checkpoint_copies"), number("checkpoint_copies_bytes"));
    let (marks, pool) = (number("checkpoint_marks_bytes"), number("checkpoint_stable_pool_bytes"));
    let has_pool = name.starts_with("calc-stored");
    assert_eq!((copies_bytes > 0, pool > 0), (copies > 1 || has_pool, has_pool), "{name}");
    let is_of_changes = name.ends_with(":partial") || name == "hourglass";
    assert_eq!(marks > 0, is_of_changes, "{name}: {marks} bytes of marks");
    let all = copies_bytes + marks + pool + number("checkpoint_child_bytes");
    assert_eq!(number("checkpoint_memory_bytes"), all, "{name}");
}

/// Each scheme serves clients, and opens what the one before it has left when it was killed.
#[test]
fn every_scheme_serves_and_goes_on_from_any_other() {
    // SIREN keeps the databases in tables of its own kind, which no other scheme opens.
    let all = stillpoint::checkpoint_schemes().map(|(name, _)| name);
    let names: Vec<&str> = all.filter(|name| !name.starts_with("siren")).collect();
    let mut disk = SimDisk::new(1);
    let (large, larger) = ("l".repeat(100_000), "m".repeat(200_000));
    let due = "9000000000000";
    // The first scheme goes on from the last one, too.
    for (life, name) in names.iter().chain(&names[..1]).enumerate() {
        let open = |journal: &&str| {
            let mut settings = on(&disk, Durability::Strict);
            settings.checkpoint = (*name).to_owned();
            settings.journal = (*journal).to_owned();
            Engine::open(settings).ok()
        };
        let engine = JOURNALS.iter().find_map(open).unwrap_or_else(|| panic!("{name} opens"));
        let server = TestServer::around(config(), engine, None);
        let mut c = server.client();
        if life > 0 {
            assert_left(&mut c, name, &(life - 1).to_string(), (&large, &larger), due);
        }
        let mut ask = |words: &[&str]| c.call(words);
        let life = life.to_string();
        for words in [
            &["SET", "small", "before"][..],
            &["SET", "deleted", "v"],
            &["SET", "source", &large],
            &["SET", "grown", "g"],
            &["SET", "due", "d"],
        ] {
            assert_eq!(ask(words), Value::ok(), "{name}");
        }
        assert_eq!(ask(&["PEXPIREAT", "source", due]), Value::Int(1), "{name}");
        let takes_checkpoints = *name != "none";
        if takes_checkpoints {
            assert_eq!(ask(&["SAVE"]), Value::ok(), "{name}");
        }
        assert_eq!(ask(&["SET", "small", &life]), Value::ok());
        assert_eq!(ask(&["DEL", "deleted"]), Value::Int(1));
        assert_eq!(ask(&["RENAME", "source", "renamed"]), Value::ok());
        assert_eq!(ask(&["SET", "grown", &larger]), Value::ok());
        assert_eq!(ask(&["PEXPIREAT", "due", due]), Value::Int(1), "{name}");
        if takes_checkpoints {
            assert_eq!(ask(&["SAVE"]), Value::ok(), "{name}");
        }
        assert_eq!(ask(&["SET", "after", &life]), Value::ok());
        assert_memory_is_told(&mut c, name);
        if takes_checkpoints {
            assert_eq!(shown_as(&mut c, "checkpoint_scheme"), *name);
            let ms = |c: &mut Client, field: &str| -> f64 {
                shown_as(c, field).parse().expect("milliseconds")
            };
            let (last, ready) =
                (ms(&mut c, "checkpoint_last_ms"), ms(&mut c, "checkpoint_last_ready_ms"));
            // Only this scheme copies records after the capture.
            let copies = *name == "piggyback";
            assert!(ready >= last && (!copies || ready > last), "{name}: {last}, then {ready} ms");
            assert!(
                !name.starts_with("naive") || ms(&mut c, "checkpoint_last_stopped_ms") > 0.0,
                "{name}"
            );
        }
        disk = disk.kill();
    }
}
